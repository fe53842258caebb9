//! What hosts pass: reading it, and refusing what cannot be read.
//!
//! Owns the rules about pointers, lengths and text, and keeping panics inside. Knows nothing of what the arguments mean.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;

use nervix_engine::{Error, ErrorKind};

use crate::errors::ErrorObject;

pub(crate) type Outcome<T = ()> = Result<T, Error>;

/// Runs an entry that can fail; a panic is a PROTOCOL error like any defect.
pub(crate) fn guarded(entry: impl FnOnce() -> Outcome) -> *mut ErrorObject {
    let result =
        catch_unwind(AssertUnwindSafe(entry)).unwrap_or_else(|panic| Err(defect(panic.as_ref())));
    match result {
        Ok(()) => std::ptr::null_mut(),
        Err(error) => Box::into_raw(Box::new(ErrorObject::new(error))),
    }
}

/// Runs an entry that cannot fail; a panic is the neutral answer.
pub(crate) fn contained<T>(neutral: T, entry: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(entry)).unwrap_or(neutral)
}

fn defect(panic: &(dyn Any + Send)) -> Error {
    let what = panic.downcast_ref::<&str>().copied();
    let what = what
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    let line: String = what
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    Error::new(
        ErrorKind::Protocol,
        format!("the library failed, which is a defect of it: {line}"),
    )
}

pub(crate) fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, why)
}

/// Refuses to block a thread that drives an async runtime: the runtime could wait for itself (B-5).
pub(crate) fn may_block() -> Outcome {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => Err(invalid("this thread drives an async runtime, which a blocking call would stall: call from another thread")),
        Err(_) => Ok(()),
    }
}

/// The object behind a handle.
///
/// # Safety
/// A handle that is not NULL is one that this library gave out and that has not been freed.
pub(crate) unsafe fn object<'a, T>(name: &str, handle: *const T) -> Outcome<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| invalid(format!("{name} is NULL")))
}

/// A buffer, or None when it is absent: NULL without a length.
///
/// # Safety
/// A pointer that is not NULL has `len` readable bytes, which stay as they are during the call.
pub(crate) unsafe fn bytes<'a>(
    name: &str,
    pointer: *const u8,
    len: usize,
) -> Outcome<Option<&'a [u8]>> {
    if pointer.is_null() {
        return match len {
            0 => Ok(None),
            _ => Err(invalid(format!(
                "{name} is NULL and its length is {len}: pass a pointer, or the length 0"
            ))),
        };
    }
    if isize::try_from(len).is_err() {
        return Err(invalid(format!(
            "{name} has the length {len}, which no buffer has"
        )));
    }
    // SAFETY: the pointer is not NULL, the length is one that a buffer can have, and the rest is the caller's promise.
    Ok(Some(unsafe { std::slice::from_raw_parts(pointer, len) }))
}

/// Text, or None when it is absent.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn optional_text<'a>(
    name: &str,
    pointer: *const u8,
    len: usize,
) -> Outcome<Option<&'a str>> {
    // SAFETY: the caller's promise.
    let Some(bytes) = (unsafe { bytes(name, pointer, len) })? else {
        return Ok(None);
    };
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(error) => Err(invalid(format!(
            "{name} is not UTF-8 at byte {}: encode it as UTF-8",
            error.valid_up_to()
        ))),
    }
}

/// Text that may be empty.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn text<'a>(name: &str, pointer: *const u8, len: usize) -> Outcome<&'a str> {
    // SAFETY: the caller's promise.
    Ok(unsafe { optional_text(name, pointer, len) }?.unwrap_or_default())
}

/// Text that must be there.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn required_text<'a>(
    name: &str,
    pointer: *const u8,
    len: usize,
) -> Outcome<&'a str> {
    // SAFETY: the caller's promise.
    match unsafe { text(name, pointer, len) }? {
        "" => Err(invalid(format!("{name} is empty"))),
        text => Ok(text),
    }
}

/// A place that a call writes to when it succeeds.
pub(crate) struct Place<T>(NonNull<T>);

impl<T> Place<T> {
    /// Refuses NULL, before anything is done whose result would be lost.
    pub(crate) fn new(name: &str, pointer: *mut T) -> Outcome<Self> {
        NonNull::new(pointer).map(Self).ok_or_else(|| {
            invalid(format!(
                "{name} is NULL: the call has nowhere to write its result"
            ))
        })
    }

    /// # Safety
    /// The pointer that the place was made of can be written to.
    pub(crate) unsafe fn write(self, value: T) {
        // SAFETY: the caller's promise; a host's pointer need not be aligned for us.
        unsafe { self.0.as_ptr().write_unaligned(value) }
    }
}

/// A place for a borrowed buffer.
pub(crate) struct BufferPlace {
    pointer: Place<*const u8>,
    len: Place<usize>,
}

impl BufferPlace {
    pub(crate) fn new(name: &str, pointer: *mut *const u8, len: *mut usize) -> Outcome<Self> {
        Ok(Self {
            pointer: Place::new(name, pointer)?,
            len: Place::new(&format!("{name}_len"), len)?,
        })
    }

    /// # Safety
    /// As [`Place::write`], for both.
    pub(crate) unsafe fn write(self, value: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe {
            self.pointer.write(value.as_ptr());
            self.len.write(value.len());
        }
    }
}

/// Writes where a host gave a place, for calls that cannot fail.
///
/// # Safety
/// A pointer that is not NULL can be written to.
pub(crate) unsafe fn put<T>(pointer: *mut T, value: T) {
    if let Some(pointer) = NonNull::new(pointer) {
        // SAFETY: the caller's promise.
        unsafe { pointer.as_ptr().write_unaligned(value) }
    }
}

/// As [`put`], for a borrowed buffer.
///
/// # Safety
/// As [`put`], for both.
pub(crate) unsafe fn put_buffer(pointer: *mut *const u8, len: *mut usize, value: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe {
        put(pointer, value.as_ptr());
        put(len, value.len());
    }
}

/// Frees a handle; NULL is nothing to free.
///
/// # Safety
/// A handle that is not NULL came from [`Box::into_raw`] and has not been freed.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the caller's promise.
        contained((), || drop(unsafe { Box::from_raw(handle) }));
    }
}
