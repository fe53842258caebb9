//! What producers and consumers have in common.
//!
//! Owns the numbers of their states and reasons, and reading what an open established. Knows nothing of what flows through them.

use nervix_client::Expected;
use nervix_engine::{Contract, EndpointState, OpenRefusal, ReopenReason};
use nervix_wire::types::RowField;

use crate::arguments::{object, put, required_text, Outcome};
use crate::fields::FieldsObject;

/// What a host passes to an open.
pub(crate) struct Opening<'a> {
    domain: &'a str,
    endpoint: &'a str,
    fields: Vec<RowField>,
    batches: u32,
    bytes: u64,
}

impl<'a> Opening<'a> {
    /// # Safety
    /// The buffers are readable during the call, and `fields` is NULL or fields of this library.
    pub(crate) unsafe fn read(
        domain: (*const u8, usize),
        (what, endpoint, endpoint_len): (&str, *const u8, usize),
        fields: *const FieldsObject,
        batches: u32,
        bytes: u64,
    ) -> Outcome<Self> {
        // SAFETY: the caller's promise.
        unsafe {
            Ok(Self {
                domain: required_text("domain", domain.0, domain.1)?,
                endpoint: required_text(what, endpoint, endpoint_len)?,
                fields: object("fields", fields)?.complete()?,
                batches,
                bytes,
            })
        }
    }

    pub(crate) fn expected(&self) -> Expected<'_> {
        Expected {
            domain: self.domain,
            endpoint: self.endpoint,
            fields: &self.fields,
            batches: self.batches,
            bytes: self.bytes,
        }
    }
}

pub(crate) fn state_number(state: EndpointState) -> i32 {
    match state {
        EndpointState::Active => 1,
        EndpointState::Interrupted => 2,
        EndpointState::Restoring => 3,
        EndpointState::ReopenRequired => 4,
        EndpointState::Closed => 5,
    }
}

fn reason_number(reason: ReopenReason) -> i32 {
    match reason {
        ReopenReason::DomainStopped => 1,
        ReopenReason::EndpointRemoved => 2,
        ReopenReason::SchemaChanged => 3,
        ReopenReason::ContractChanged => 4,
        ReopenReason::GenerationChanged => 5,
        ReopenReason::ProtocolViolated => 6,
        ReopenReason::Refused => 7,
    }
}

pub(crate) fn refusal_number(refusal: OpenRefusal) -> i32 {
    match refusal {
        OpenRefusal::DomainNotFound => 1,
        OpenRefusal::DomainStopped => 2,
        OpenRefusal::EndpointNotFound => 3,
        OpenRefusal::NotClientEndpoint => 4,
        OpenRefusal::EndpointUnavailable => 5,
        OpenRefusal::SchemaMismatch => 6,
        OpenRefusal::TooManyEndpoints => 7,
        OpenRefusal::SessionCapacityExhausted => 8,
        OpenRefusal::NodeCapacityExhausted => 9,
        OpenRefusal::InvalidLimits => 10,
        OpenRefusal::InTransaction => 11,
    }
}

/// Writes why a handle is over; false when it is not.
///
/// # Safety
/// Each place is NULL or can be written to.
pub(crate) unsafe fn put_reopen_reason(
    why: Option<(ReopenReason, Option<OpenRefusal>)>,
    reason: *mut i32,
    refusal: *mut i32,
) -> bool {
    let Some((why, refused)) = why else {
        return false;
    };
    // SAFETY: the caller's promise.
    unsafe {
        put(reason, reason_number(why));
        if let Some(refused) = refused {
            put(refusal, refusal_number(refused));
        }
    }
    true
}

/// Writes the grant, or nothing for no endpoint.
///
/// # Safety
/// Each place is NULL or can be written to.
pub(crate) unsafe fn put_grant(
    contract: Option<&Contract>,
    batches: *mut u32,
    bytes: *mut u64,
    max_batch_rows: *mut u32,
    max_batch_bytes: *mut u64,
) {
    if let Some(contract) = contract {
        // SAFETY: the caller's promise.
        unsafe {
            put(batches, contract.batches);
            put(bytes, contract.bytes);
            put(max_batch_rows, contract.max_batch_rows);
            put(max_batch_bytes, contract.max_batch_bytes);
        }
    }
}

/// Writes the policy, or nothing for no endpoint.
///
/// # Safety
/// Each place is NULL or can be written to.
pub(crate) unsafe fn put_policy(
    contract: Option<&Contract>,
    window: *mut i32,
    outstanding: *mut u64,
    ack_timeout_nanos: *mut u64,
    retry_backoff_nanos: *mut u64,
    retry_max_backoff_nanos: *mut u64,
) {
    if let Some(contract) = contract {
        let (number, most) = match contract.window {
            None => (1, 1),
            Some(most) => (2, most),
        };
        // SAFETY: the caller's promise.
        unsafe {
            put(window, number);
            put(outstanding, most);
            put(ack_timeout_nanos, contract.ack_timeout_nanos);
            put(retry_backoff_nanos, contract.retry_backoff_nanos);
            put(retry_max_backoff_nanos, contract.retry_max_backoff_nanos);
        }
    }
}
