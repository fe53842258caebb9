//! Learning of a fork.
//!
//! Owns one handler that the C library calls in each child. Knows nothing of what the client does about it.

use std::sync::atomic::{AtomicBool, Ordering};

static WATCHED: AtomicBool = AtomicBool::new(false);

/// Has children of this process told apart from it. Called wherever something is made that a child must leave alone.
pub(crate) fn watch() {
    if WATCHED.swap(true, Ordering::SeqCst) {
        return;
    }
    // SAFETY: the handler is a function of this library and does nothing but count, which is safe in a child of several threads.
    // Failing, for want of memory, leaves children without protection and everything else as it is.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    }
}

extern "C" fn in_child() {
    nervix_client::fork::forked();
}
