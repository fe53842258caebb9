//! Locks that a fork cannot break for others.
//!
//! Owns taking a lock whatever happened under it. The standard ones are used, since each is only its own memory: others keep
//! waiting threads in a table of the whole process, which a fork may leave locked for good in a child.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Takes a lock. What a panic may have left under it is the concern of whoever caught the panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until it is woken, or until the deadline, or for no reason.
pub(crate) fn wait<'a, T>(
    changed: &Condvar,
    held: MutexGuard<'a, T>,
    deadline: Option<Instant>,
) -> MutexGuard<'a, T> {
    match deadline {
        None => changed.wait(held).unwrap_or_else(PoisonError::into_inner),
        Some(deadline) => {
            let left = deadline.saturating_duration_since(Instant::now());
            changed
                .wait_timeout(held, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0
        }
    }
}
