//! Producers and the outcomes of their submissions: nx_producer, nx_submission_outcome.
//!
//! Owns the numbers of results and causes, and which cause a result has. Knows nothing of credit or of sending.

use std::sync::Arc;

use nervix_batch::Batch;
use nervix_client::Producer;
use nervix_engine::{Contract, Error, SubmissionOutcome, SubmissionResult, Uncertainty};
use nervix_wire::types::{ProcessingFailure, ProducerAdmission, SubmissionRefusal};

use crate::arguments::{bytes, contained, free, guarded, may_block, object, put_buffer, Place};
use crate::cancel::{token, CancelObject};
use crate::endpoint::{put_grant, put_policy, put_reopen_reason, state_number, Opening};
use crate::errors::ErrorObject;
use crate::event::mistyped;
use crate::fields::FieldsObject;
use crate::schema::SchemaObject;
use crate::session::SessionObject;

/// nx_producer.
pub struct ProducerObject {
    producer: Producer,
}

/// nx_submission_outcome.
pub struct SubmissionOutcomeObject {
    pub(crate) outcome: SubmissionOutcome,
}

impl SubmissionOutcomeObject {
    fn hand_out(outcome: SubmissionOutcome) -> *mut Self {
        Box::into_raw(Box::new(Self { outcome }))
    }
}

/// The contract of a handle that may be NULL.
///
/// # Safety
/// The handle is NULL or a producer of this library.
unsafe fn contract<'a>(producer: *const ProducerObject) -> Option<&'a Contract> {
    // SAFETY: the caller's promise.
    unsafe { producer.as_ref() }.map(|object| &**object.producer.contract())
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_session_open_ingestor(
    session: *const SessionObject,
    domain: *const u8,
    domain_len: usize,
    ingestor: *const u8,
    ingestor_len: usize,
    fields: *const FieldsObject,
    batches: u32,
    bytes: u64,
    cancel: *const CancelObject,
    out: *mut *mut ProducerObject,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        // SAFETY: the host passes a session and fields of this library, or NULL, and buffers that are readable during the call.
        let (session, opening) = unsafe {
            (
                &object("session", session)?.session,
                Opening::read(
                    (domain, domain_len),
                    ("ingestor", ingestor, ingestor_len),
                    fields,
                    batches,
                    bytes,
                )?,
            )
        };
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let producer = session.open_ingestor(&opening.expected(), cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(Box::into_raw(Box::new(ProducerObject { producer }))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_schema(
    producer: *const ProducerObject,
    out: *mut *mut SchemaObject,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a producer of this library, or NULL.
        let producer = &unsafe { object("producer", producer) }?.producer;
        let out = Place::new("out", out)?;
        let schema = Arc::clone(&producer.contract().schema);
        // SAFETY: the host's place can be written to.
        unsafe { out.write(SchemaObject::hand_out(schema)) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_generation(producer: *const ProducerObject) -> u64 {
    // SAFETY: the host passes a producer of this library, or NULL.
    contained(0, || {
        unsafe { contract(producer) }.map_or(0, |contract| contract.generation)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_contract(
    producer: *const ProducerObject,
    digest: *mut *const u8,
    digest_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes a producer of this library, or NULL.
        let bytes: &[u8] = match unsafe { contract(producer) } {
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
pub unsafe extern "C" fn nx_producer_grant(
    producer: *const ProducerObject,
    batches: *mut u32,
    bytes: *mut u64,
    max_batch_rows: *mut u32,
    max_batch_bytes: *mut u64,
) {
    contained((), || {
        // SAFETY: the host passes a producer of this library, or NULL, and places that can be written to, or NULL.
        unsafe {
            put_grant(
                contract(producer),
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
pub unsafe extern "C" fn nx_producer_policy(
    producer: *const ProducerObject,
    window: *mut i32,
    outstanding: *mut u64,
    ack_timeout_nanos: *mut u64,
    retry_backoff_nanos: *mut u64,
    retry_max_backoff_nanos: *mut u64,
) {
    contained((), || {
        // SAFETY: the host passes a producer of this library, or NULL, and places that can be written to, or NULL.
        unsafe {
            put_policy(
                contract(producer),
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
pub unsafe extern "C" fn nx_producer_admission(producer: *const ProducerObject) -> i32 {
    // SAFETY: the host passes a producer of this library, or NULL.
    contained(0, || {
        match unsafe { producer.as_ref() }.map(|object| object.producer.admission()) {
            None => 0,
            Some(ProducerAdmission::Open) => 1,
            Some(ProducerAdmission::Suspended) => 2,
        }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_state(producer: *const ProducerObject) -> i32 {
    // SAFETY: the host passes a producer of this library, or NULL.
    contained(0, || {
        unsafe { producer.as_ref() }.map_or(0, |object| state_number(object.producer.state()))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_reopen_reason(
    producer: *const ProducerObject,
    reason: *mut i32,
    refusal: *mut i32,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes a producer of this library, or NULL, and places that can be written to, or NULL.
        unsafe {
            let why = producer
                .as_ref()
                .and_then(|object| object.producer.reopen_reason());
            put_reopen_reason(why, reason, refusal)
        }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_submit(
    producer: *const ProducerObject,
    batch: *const Batch,
    cancel: *const CancelObject,
    submission: *mut u64,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a producer and a batch of this library, or NULL.
        let (producer, batch) = unsafe {
            (
                &object("producer", producer)?.producer,
                object("batch", batch)?,
            )
        };
        let out = Place::new("submission", submission)?;
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let identity = producer.submit(batch, cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(identity) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_submit_ipc(
    producer: *const ProducerObject,
    ipc: *const u8,
    ipc_len: usize,
    cancel: *const CancelObject,
    submission: *mut u64,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a producer of this library, or NULL, and a buffer that is readable during the call.
        let (producer, ipc) = unsafe {
            (
                &object("producer", producer)?.producer,
                bytes("ipc", ipc, ipc_len)?.unwrap_or_default(),
            )
        };
        let out = Place::new("submission", submission)?;
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let identity = producer.submit_ipc(ipc, cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(identity) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_rejoin(
    producer: *const ProducerObject,
    submission: u64,
    cancel: *const CancelObject,
    out: *mut *mut SubmissionOutcomeObject,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a producer of this library, or NULL.
        let producer = &unsafe { object("producer", producer) }?.producer;
        let out = Place::new("out", out)?;
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let outcome = producer.rejoin(submission, cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(SubmissionOutcomeObject::hand_out(outcome)) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_pending(
    producer: *const ProducerObject,
    submissions: *mut u64,
    resolved: *mut bool,
    capacity: usize,
    count: *mut usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a producer of this library, or NULL.
        let producer = &unsafe { object("producer", producer) }?.producer;
        let out = Place::new("count", count)?;
        may_block()?;
        let pending = producer.pending()?;
        for (index, (submission, has_outcome)) in pending.iter().take(capacity).enumerate() {
            // SAFETY: a buffer that is not NULL has room for `capacity` values, and the index is below that.
            unsafe {
                if !submissions.is_null() {
                    submissions.add(index).write_unaligned(*submission);
                }
                if !resolved.is_null() {
                    resolved.add(index).write_unaligned(*has_outcome);
                }
            }
        }
        // SAFETY: the host's place can be written to.
        unsafe { out.write(pending.len()) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_release(
    producer: *const ProducerObject,
    submission: u64,
    out: *mut *mut SubmissionOutcomeObject,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a producer of this library, or NULL.
        let producer = &unsafe { object("producer", producer) }?.producer;
        let out = Place::new("out", out)?;
        may_block()?;
        let outcome = producer.release(submission)?;
        let handle = outcome.map_or(std::ptr::null_mut(), SubmissionOutcomeObject::hand_out);
        // SAFETY: the host's place can be written to.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_close(
    producer: *const ProducerObject,
    cancel: *const CancelObject,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a producer of this library, or NULL.
        let producer = &unsafe { object("producer", producer) }?.producer;
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        producer.close(cancel.as_ref())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_producer_free(producer: *mut ProducerObject) {
    // SAFETY: the host passes a producer of this library that it has not freed, or NULL.
    unsafe { free(producer) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_submission_outcome_result(
    outcome: *const SubmissionOutcomeObject,
) -> i32 {
    // SAFETY: the host passes an outcome of this library, or NULL.
    contained(0, || {
        match unsafe { outcome.as_ref() }.map(|object| &object.outcome.result) {
            None => 0,
            Some(SubmissionResult::NotAdmitted(_)) => 1,
            Some(SubmissionResult::Completed) => 2,
            Some(SubmissionResult::ProcessingFailed(_)) => 3,
            Some(SubmissionResult::OutcomeUnknown(_)) => 4,
        }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_submission_outcome_message(
    outcome: *const SubmissionOutcomeObject,
    message: *mut *const u8,
    message_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let text = unsafe { outcome.as_ref() }.map_or("", |object| &object.outcome.message);
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(message, message_len, text.as_bytes()) }
    });
}

fn no(what: &str) -> Error {
    mistyped(format!(
        "the submission has no {what}: look at its result first"
    ))
}

/// The nx_submission_refusal and the nx_batch_defect of what the server says.
fn numbers(refusal: SubmissionRefusal) -> (i32, Option<i32>) {
    match refusal {
        SubmissionRefusal::MalformedBatch => (1, Some(1)),
        SubmissionRefusal::UnexpectedMessage => (1, Some(2)),
        SubmissionRefusal::CompressedBatch => (1, Some(3)),
        SubmissionRefusal::SchemaMismatch => (1, Some(4)),
        SubmissionRefusal::NotOneBatch => (1, Some(5)),
        SubmissionRefusal::TooManyRows => (1, Some(6)),
        SubmissionRefusal::BatchTooLarge => (1, Some(7)),
        SubmissionRefusal::InvalidData => (1, Some(8)),
        SubmissionRefusal::Suspended => (2, None),
        SubmissionRefusal::Busy => (3, None),
        SubmissionRefusal::Draining => (4, None),
        SubmissionRefusal::ProducerEnded => (5, None),
        SubmissionRefusal::CreditExceeded => (6, None),
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_submission_outcome_refusal(
    outcome: *const SubmissionOutcomeObject,
    refusal: *mut i32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let outcome = &unsafe { object("outcome", outcome) }?.outcome;
        let out = Place::new("refusal", refusal)?;
        let number = match &outcome.result {
            SubmissionResult::NotAdmitted(refusal) => numbers(*refusal).0,
            _ => return Err(no("refusal")),
        };
        // SAFETY: the host's place can be written to.
        unsafe { out.write(number) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_submission_outcome_defect(
    outcome: *const SubmissionOutcomeObject,
    defect: *mut i32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let outcome = &unsafe { object("outcome", outcome) }?.outcome;
        let out = Place::new("defect", defect)?;
        let number = match &outcome.result {
            SubmissionResult::NotAdmitted(refusal) => numbers(*refusal)
                .1
                .ok_or_else(|| no("defect of its batch"))?,
            _ => return Err(no("defect of its batch")),
        };
        // SAFETY: the host's place can be written to.
        unsafe { out.write(number) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_submission_outcome_failure(
    outcome: *const SubmissionOutcomeObject,
    failure: *mut i32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let outcome = &unsafe { object("outcome", outcome) }?.outcome;
        let out = Place::new("failure", failure)?;
        let number = match &outcome.result {
            SubmissionResult::ProcessingFailed(ProcessingFailure::AckTimedOut) => 1,
            SubmissionResult::ProcessingFailed(ProcessingFailure::Rejected) => 2,
            _ => return Err(no("failure")),
        };
        // SAFETY: the host's place can be written to.
        unsafe { out.write(number) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_submission_outcome_uncertainty(
    outcome: *const SubmissionOutcomeObject,
    uncertainty: *mut i32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes an outcome of this library, or NULL.
        let outcome = &unsafe { object("outcome", outcome) }?.outcome;
        let out = Place::new("uncertainty", uncertainty)?;
        let number = match &outcome.result {
            SubmissionResult::OutcomeUnknown(Uncertainty::Interrupted) => 1,
            SubmissionResult::OutcomeUnknown(Uncertainty::OwnerLost) => 2,
            SubmissionResult::OutcomeUnknown(Uncertainty::SessionLost) => 3,
            _ => return Err(no("uncertainty")),
        };
        // SAFETY: the host's place can be written to.
        unsafe { out.write(number) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_submission_outcome_free(outcome: *mut SubmissionOutcomeObject) {
    // SAFETY: the host passes an outcome of this library that it has not freed, or NULL.
    unsafe { free(outcome) }
}
