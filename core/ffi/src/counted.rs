//! Objects with a count of references.
//!
//! Owns adding and dropping references: the count is that of the Arc that an object lives in.

use std::sync::Arc;

use crate::arguments::contained;

/// A reference for a host.
pub(crate) fn hand_out<T>(object: Arc<T>) -> *mut T {
    Arc::into_raw(object).cast_mut()
}

/// Adds a reference and returns it; NULL has none.
///
/// # Safety
/// A handle that is not NULL came from [`hand_out`], and the host holds a reference.
pub(crate) unsafe fn retain<T>(handle: *mut T) -> *mut T {
    contained((), || {
        if !handle.is_null() {
            // SAFETY: the caller's promise.
            unsafe { Arc::increment_strong_count(handle.cast_const()) }
        }
    });
    handle
}

/// Drops a reference; NULL has none.
///
/// # Safety
/// As [`retain`]; the reference is given up.
pub(crate) unsafe fn release<T>(handle: *mut T) {
    contained((), || {
        if !handle.is_null() {
            // SAFETY: the caller's promise.
            unsafe { Arc::decrement_strong_count(handle.cast_const()) }
        }
    });
}
