//! Errors: nx_error.
//!
//! Owns the numbers of error kinds. Knows nothing of how failures come about.

use nervix_engine::{Error, ErrorKind};

use crate::arguments::{contained, free, put, put_buffer};
use crate::endpoint::refusal_number;

/// nx_error.
pub struct ErrorObject {
    error: Error,
}

impl ErrorObject {
    /// The message becomes one line, whatever a server put in it.
    pub(crate) fn new(mut error: Error) -> Self {
        if error.message.contains(char::is_control) {
            error.message = error
                .message
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect();
        }
        Self { error }
    }
}

fn number(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::InvalidArgument => 1,
        ErrorKind::Connect => 2,
        ErrorKind::Transport => 3,
        ErrorKind::Uncertain => 4,
        ErrorKind::Rejected => 5,
        ErrorKind::Deadline => 6,
        ErrorKind::Cancelled => 7,
        ErrorKind::Overflow => 8,
        ErrorKind::Protocol => 9,
        ErrorKind::Type => 10,
        ErrorKind::Closed => 11,
        ErrorKind::Interrupted => 12,
        ErrorKind::ReopenRequired => 13,
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_error_kind_of(error: *const ErrorObject) -> i32 {
    // SAFETY: the host passes an error of this library, or NULL.
    contained(0, || {
        unsafe { error.as_ref() }.map_or(0, |object| number(object.error.kind))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_error_message(
    error: *const ErrorObject,
    message: *mut *const u8,
    message_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes an error of this library, or NULL.
        let text = unsafe { error.as_ref() }.map_or("", |object| &object.error.message);
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(message, message_len, text.as_bytes()) }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_error_execution_reference(
    error: *const ErrorObject,
    reference: *mut *const u8,
    reference_len: *mut usize,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an error of this library, or NULL.
        let Some(text) =
            unsafe { error.as_ref() }.and_then(|object| object.error.reference.as_deref())
        else {
            return false;
        };
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(reference, reference_len, text.as_bytes()) };
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_error_open_refusal(
    error: *const ErrorObject,
    refusal: *mut i32,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an error of this library, or NULL.
        let Some(why) = unsafe { error.as_ref() }.and_then(|object| object.error.refusal) else {
            return false;
        };
        // SAFETY: the host's place can be written to.
        unsafe { put(refusal, refusal_number(why)) };
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_error_unsent(error: *const ErrorObject) -> bool {
    contained(false, || {
        // SAFETY: the host passes an error of this library, or NULL.
        unsafe { error.as_ref() }.is_some_and(|object| object.error.unsent)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_error_held_transaction(
    error: *const ErrorObject,
    transaction: *mut *const u8,
    transaction_len: *mut usize,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes an error of this library, or NULL.
        let Some(id) = unsafe { error.as_ref() }.and_then(|object| object.error.held.as_deref())
        else {
            return false;
        };
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(transaction, transaction_len, id.as_bytes()) };
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nxx_error_condemned(error: *const ErrorObject) -> bool {
    contained(false, || {
        // SAFETY: the host passes an error of this library, or NULL.
        unsafe { error.as_ref() }.is_some_and(|object| object.error.condemned)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_error_free(error: *mut ErrorObject) {
    // SAFETY: the host passes an error of this library that it has not freed, or NULL.
    unsafe { free(error) }
}
