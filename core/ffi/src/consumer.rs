//! Consumers and deliveries: nx_consumer, nx_delivery.
//!
//! Owns the numbers of settlements. Knows nothing of how deliveries come and are settled.

use std::sync::Arc;

use nervix_batch::Batch;
use nervix_client::{Consumer, Delivery};
use nervix_engine::{Contract, Settlement};

use crate::arguments::{contained, free, guarded, may_block, object, put_buffer, text, Place};
use crate::cancel::{token, CancelObject};
use crate::counted::{self, hand_out};
use crate::endpoint::{put_grant, put_policy, put_reopen_reason, state_number, Opening};
use crate::errors::ErrorObject;
use crate::fields::FieldsObject;
use crate::schema::SchemaObject;
use crate::session::SessionObject;

/// nx_consumer.
pub struct ConsumerObject {
    consumer: Consumer,
}

/// The contract of a handle that may be NULL.
///
/// # Safety
/// The handle is NULL or a consumer of this library.
unsafe fn contract<'a>(consumer: *const ConsumerObject) -> Option<&'a Contract> {
    // SAFETY: the caller's promise.
    unsafe { consumer.as_ref() }.map(|object| &**object.consumer.contract())
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_session_subscribe_emitter(
    session: *const SessionObject,
    domain: *const u8,
    domain_len: usize,
    emitter: *const u8,
    emitter_len: usize,
    fields: *const FieldsObject,
    batches: u32,
    bytes: u64,
    cancel: *const CancelObject,
    out: *mut *mut ConsumerObject,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        // SAFETY: the host passes a session and fields of this library, or NULL, and buffers that are readable during the call.
        let (session, opening) = unsafe {
            (
                &object("session", session)?.session,
                Opening::read(
                    (domain, domain_len),
                    ("emitter", emitter, emitter_len),
                    fields,
                    batches,
                    bytes,
                )?,
            )
        };
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let consumer = session.subscribe_emitter(&opening.expected(), cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(Box::into_raw(Box::new(ConsumerObject { consumer }))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_consumer_schema(
    consumer: *const ConsumerObject,
    out: *mut *mut SchemaObject,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a consumer of this library, or NULL.
        let consumer = &unsafe { object("consumer", consumer) }?.consumer;
        let out = Place::new("out", out)?;
        let schema = Arc::clone(&consumer.contract().schema);
        // SAFETY: the host's place can be written to.
        unsafe { out.write(SchemaObject::hand_out(schema)) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_consumer_generation(consumer: *const ConsumerObject) -> u64 {
    // SAFETY: the host passes a consumer of this library, or NULL.
    contained(0, || {
        unsafe { contract(consumer) }.map_or(0, |contract| contract.generation)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_consumer_contract(
    consumer: *const ConsumerObject,
    digest: *mut *const u8,
    digest_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes a consumer of this library, or NULL.
        let bytes: &[u8] = match unsafe { contract(consumer) } {
            Some(contract) => &contract.digest,
            None => &[],
        };
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(digest, digest_len, bytes) }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_consumer_grant(
    consumer: *const ConsumerObject,
    batches: *mut u32,
    bytes: *mut u64,
    max_batch_rows: *mut u32,
    max_batch_bytes: *mut u64,
) {
    contained((), || {
        // SAFETY: the host passes a consumer of this library, or NULL, and places that can be written to, or NULL.
        unsafe {
            put_grant(
                contract(consumer),
                batches,
                bytes,
                max_batch_rows,
                max_batch_bytes,
            );
        }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_consumer_policy(
    consumer: *const ConsumerObject,
    window: *mut i32,
    outstanding: *mut u64,
    ack_timeout_nanos: *mut u64,
    retry_backoff_nanos: *mut u64,
    retry_max_backoff_nanos: *mut u64,
) {
    contained((), || {
        // SAFETY: the host passes a consumer of this library, or NULL, and places that can be written to, or NULL.
        unsafe {
            put_policy(
                contract(consumer),
                window,
                outstanding,
                ack_timeout_nanos,
                retry_backoff_nanos,
                retry_max_backoff_nanos,
            );
        }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_consumer_state(consumer: *const ConsumerObject) -> i32 {
    // SAFETY: the host passes a consumer of this library, or NULL.
    contained(0, || {
        unsafe { consumer.as_ref() }.map_or(0, |object| state_number(object.consumer.state()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_consumer_reopen_reason(
    consumer: *const ConsumerObject,
    reason: *mut i32,
    refusal: *mut i32,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes a consumer of this library, or NULL, and places that can be written to, or NULL.
        unsafe {
            let why = consumer
                .as_ref()
                .and_then(|object| object.consumer.reopen_reason());
            put_reopen_reason(why, reason, refusal)
        }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_consumer_next(
    consumer: *const ConsumerObject,
    cancel: *const CancelObject,
    out: *mut *mut Delivery,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a consumer of this library, or NULL.
        let consumer = &unsafe { object("consumer", consumer) }?.consumer;
        let out = Place::new("out", out)?;
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let delivery = consumer.next(cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(hand_out(Arc::new(delivery))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_consumer_close(
    consumer: *const ConsumerObject,
    cancel: *const CancelObject,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a consumer of this library, or NULL.
        let consumer = &unsafe { object("consumer", consumer) }?.consumer;
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        consumer.close(cancel.as_ref())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_consumer_free(consumer: *mut ConsumerObject) {
    // SAFETY: the host passes a consumer of this library that it has not freed, or NULL.
    unsafe { free(consumer) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_identity(
    delivery: *const Delivery,
    identity: *mut *const u8,
    identity_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes a delivery of this library, or NULL.
        let bytes: &[u8] = match unsafe { delivery.as_ref() } {
            Some(delivery) => &delivery.facts().identity,
            None => &[],
        };
        // SAFETY: the host's places can be written to; the bytes live as long as the delivery.
        unsafe { put_buffer(identity, identity_len, bytes) }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_reference(
    delivery: *const Delivery,
    reference: *mut *const u8,
    reference_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes a delivery of this library, or NULL.
        let bytes: &[u8] = match unsafe { delivery.as_ref() } {
            Some(delivery) => &delivery.facts().reference,
            None => &[],
        };
        // SAFETY: the host's places can be written to; the bytes live as long as the delivery.
        unsafe { put_buffer(reference, reference_len, bytes) }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_source_relay(
    delivery: *const Delivery,
    name: *mut *const u8,
    name_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes a delivery of this library, or NULL.
        let bytes: &[u8] = match unsafe { delivery.as_ref() } {
            Some(delivery) => delivery.facts().source_relay.as_bytes(),
            None => &[],
        };
        // SAFETY: the host's places can be written to; the bytes live as long as the delivery.
        unsafe { put_buffer(name, name_len, bytes) }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_branch_fingerprint(
    delivery: *const Delivery,
    fingerprint: *mut *const u8,
    fingerprint_len: *mut usize,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes a delivery of this library, or NULL.
        let Some(bytes) = unsafe { delivery.as_ref() }
            .and_then(|delivery| delivery.facts().branch_fingerprint.as_ref())
        else {
            return false;
        };
        // SAFETY: the host's places can be written to; the bytes live as long as the delivery.
        unsafe { put_buffer(fingerprint, fingerprint_len, bytes) };
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_members(delivery: *const Delivery) -> u32 {
    // SAFETY: the host passes a delivery of this library, or NULL.
    contained(0, || {
        unsafe { delivery.as_ref() }.map_or(0, |delivery| delivery.facts().members)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_execution_now(delivery: *const Delivery) -> i64 {
    // SAFETY: the host passes a delivery of this library, or NULL.
    contained(0, || {
        unsafe { delivery.as_ref() }.map_or(0, |delivery| delivery.facts().execution_now)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_ipc(
    delivery: *const Delivery,
    ipc: *mut *const u8,
    ipc_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes a delivery of this library, or NULL.
        let bytes: &[u8] = match unsafe { delivery.as_ref() } {
            Some(delivery) => &delivery.facts().batch,
            None => &[],
        };
        // SAFETY: the host's places can be written to; the bytes live as long as the delivery.
        unsafe { put_buffer(ipc, ipc_len, bytes) }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_batch(
    delivery: *const Delivery,
    out: *mut *mut Batch,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a delivery of this library, or NULL.
        let delivery = unsafe { object("delivery", delivery) }?;
        let out = Place::new("out", out)?;
        let batch = delivery.batch()?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(hand_out(batch)) };
        Ok(())
    })
}

fn settlement_number(settlement: Settlement) -> i32 {
    match settlement {
        Settlement::Confirmed => 1,
        Settlement::StaleReference => 2,
        Settlement::WrongConsumer => 3,
        Settlement::InvalidReason => 4,
        Settlement::ConsumerEnded => 5,
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_ack(
    delivery: *const Delivery,
    cancel: *const CancelObject,
    settlement: *mut i32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a delivery of this library, or NULL.
        let delivery = unsafe { object("delivery", delivery) }?;
        let out = Place::new("settlement", settlement)?;
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let number = settlement_number(delivery.ack(cancel.as_ref())?);
        // SAFETY: the host's place can be written to.
        unsafe { out.write(number) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_retry(
    delivery: *const Delivery,
    cancel: *const CancelObject,
    settlement: *mut i32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a delivery of this library, or NULL.
        let delivery = unsafe { object("delivery", delivery) }?;
        let out = Place::new("settlement", settlement)?;
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let number = settlement_number(delivery.retry(cancel.as_ref())?);
        // SAFETY: the host's place can be written to.
        unsafe { out.write(number) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_reject(
    delivery: *const Delivery,
    reason: *const u8,
    reason_len: usize,
    cancel: *const CancelObject,
    settlement: *mut i32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a delivery of this library, or NULL.
        let delivery = unsafe { object("delivery", delivery) }?;
        // SAFETY: the host's buffers are readable during the call.
        let reason = unsafe { text("reason", reason, reason_len) }?;
        let out = Place::new("settlement", settlement)?;
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let number = settlement_number(delivery.reject(reason, cancel.as_ref())?);
        // SAFETY: the host's place can be written to.
        unsafe { out.write(number) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_retain(delivery: *mut Delivery) -> *mut Delivery {
    // SAFETY: the host passes a delivery of this library that it holds, or NULL.
    unsafe { counted::retain(delivery) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_delivery_release(delivery: *mut Delivery) {
    // SAFETY: the host passes a delivery of this library that it holds, or NULL.
    unsafe { counted::release(delivery) }
}
