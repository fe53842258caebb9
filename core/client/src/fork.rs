//! Which process an object belongs to.
//!
//! Owns the generation: how many forks lie between this process and the one that loaded the library. After a fork only the
//! forking thread exists, so a lock may be held for good and every socket is shared with the parent. Whatever holds a lock, a
//! thread or a socket therefore remembers the generation it was made in, and is left alone in any later one.

use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The generation of this process. Takes no lock.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// To be called in a child, before anything else of this library, by whoever learns of the fork. Async-signal-safe.
pub fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
