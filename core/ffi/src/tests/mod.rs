//! Tests of the interface without a server: each accessor, each convention, and rows as Arrow.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod arrow;
mod batches;
mod calls;
mod clocks;
mod endpoints;
mod events;
mod fields;
mod objects;
mod rows;

use std::ptr::{null, null_mut};

use crate::errors::{nx_error_free, nx_error_kind_of, nx_error_message, ErrorObject};

pub(crate) const INVALID_ARGUMENT: i32 = 1;
pub(crate) const DEADLINE: i32 = 6;
pub(crate) const CANCELLED: i32 = 7;
pub(crate) const PROTOCOL: i32 = 9;
pub(crate) const TYPE: i32 = 10;

/// Takes an error apart and frees it: its kind and message, or 0 for none.
pub(crate) fn take(error: *mut ErrorObject) -> (i32, String) {
    let (mut text, mut len) = (null(), 0);
    // SAFETY: the error came from the call before, and its message is copied before it is freed.
    unsafe {
        nx_error_message(error, &mut text, &mut len);
        let message = borrowed(text, len).to_vec();
        let kind = nx_error_kind_of(error);
        nx_error_free(error);
        (kind, String::from_utf8(message).unwrap())
    }
}

pub(crate) fn kind(error: *mut ErrorObject) -> i32 {
    let (kind, message) = take(error);
    assert_eq!(kind == 0, message.is_empty());
    assert!(!message.contains('\n'));
    kind
}

/// A borrowed buffer as a slice.
///
/// # Safety
/// As [`std::slice::from_raw_parts`], for as long as the slice is used.
pub(crate) unsafe fn borrowed<'a>(pointer: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(pointer, len) }
}

#[test]
fn every_free_accepts_null() {
    // SAFETY: NULL is nothing to free.
    unsafe {
        nx_error_free(null_mut());
        crate::cancel::nx_cancel_free(null_mut());
        crate::session::nx_session_free(null_mut());
        crate::session::nx_execution_free(null_mut());
        crate::outcome::nx_outcome_free(null_mut());
        crate::schema::nx_schema_free(null_mut());
        crate::event::nx_event_release(null_mut());
        crate::suggestions::nx_suggestions_free(null_mut());
        crate::options::nxx_connect_options_free(null_mut());
        assert!(crate::event::nx_event_retain(null_mut()).is_null());
        assert_eq!(nx_error_kind_of(null()), 0);
    }
}

#[test]
fn a_panic_becomes_an_error() {
    let (kind, message) = take(crate::arguments::guarded(|| panic!("two\nlines")));
    assert_eq!(kind, PROTOCOL);
    assert!(message.contains("two lines"), "{message}");
    assert_eq!(crate::arguments::contained(7, || panic!("no")), 7);
}

#[test]
fn messages_are_one_line() {
    let (_, message) = take(crate::arguments::guarded(|| {
        Err(crate::arguments::invalid("a\r\nb\tc"))
    }));
    assert_eq!(message, "a  b c");
}
