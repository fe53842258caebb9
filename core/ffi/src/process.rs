//! What the library is to the process that loads it.
//!
//! Owns learning of forks, and keeping the host's signal handlers off the library's threads. Knows nothing of what the client
//! does about either.

use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::arguments::Outcome;

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

/// Starts the library's threads. They take no signals: the host's handlers are host code, which runs on the host's threads.
pub(crate) fn start() -> Outcome {
    // A fault is the thread's own and cannot be left to another one.
    const FAULTS: [libc::c_int; 5] = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
    ];
    let (mut blocked, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets belong to this call and are filled before they are read; only this thread's mask changes, and threads
    // that it starts inherit it.
    let changed = unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(blocked.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr()) == 0
    };
    let started = nervix_client::start();
    if changed {
        // SAFETY: the mask is the one that this thread had.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
        }
    }
    started
}
