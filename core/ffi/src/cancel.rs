//! Cancellation: nx_cancel.
//!
//! Owns nothing but the handle. Knows nothing of who waits under a token.

use std::time::Duration;

use nervix_client::Cancel;

use crate::arguments::{contained, free, guarded, Place};
use crate::errors::ErrorObject;
use crate::process;

/// nx_cancel.
pub struct CancelObject {
    cancel: Cancel,
}

/// The token behind an optional handle, held for as long as a call needs it.
///
/// # Safety
/// The handle is NULL or a token of this library that is not freed before this returns.
pub(crate) unsafe fn token(handle: *const CancelObject) -> Option<Cancel> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.map(|object| object.cancel.clone())
}

#[no_mangle]
pub extern "C" fn nx_cancel_new() -> *mut CancelObject {
    contained(std::ptr::null_mut(), || {
        process::watch();
        Box::into_raw(Box::new(CancelObject {
            cancel: Cancel::new(),
        }))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_cancel_with_deadline(
    deadline_millis: u64,
    out: *mut *mut CancelObject,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        process::watch();
        let object = CancelObject {
            cancel: Cancel::with_deadline(Duration::from_millis(deadline_millis)),
        };
        // SAFETY: the host's place can be written to.
        unsafe { out.write(Box::into_raw(Box::new(object))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_cancel_trigger(cancel: *const CancelObject) {
    contained((), || {
        // SAFETY: the host passes a token of this library, or NULL.
        if let Some(cancel) = unsafe { token(cancel) } {
            cancel.trigger();
        }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_cancel_free(cancel: *mut CancelObject) {
    // SAFETY: the host passes a token of this library that it has not freed, or NULL.
    unsafe { free(cancel) }
}
