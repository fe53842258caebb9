//! The runtime that all sessions of a process share.
//!
//! Owns its making. A runtime's threads do not survive a fork, so every generation has its own, made when it is first needed;
//! runtimes are never dropped, since dropping one waits for its threads.

use std::sync::OnceLock;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::fork;

/// The runtime of one generation, and the way to the next one's. A process only ever writes to its own generation's slot, so a
/// child never meets a half-written one that it needs.
struct Slot {
    runtime: OnceLock<Runtime>,
    next: OnceLock<Box<Slot>>,
}

impl Slot {
    const fn new() -> Self {
        Self {
            runtime: OnceLock::new(),
            next: OnceLock::new(),
        }
    }
}

static FIRST: Slot = Slot::new();

/// The runtime of this process; the error says why it could not be started.
pub(crate) fn handle() -> Result<&'static Handle, String> {
    let mut slot = &FIRST;
    for _ in 0..fork::generation() {
        slot = slot.next.get_or_init(|| Box::new(Slot::new()));
    }
    if let Some(runtime) = slot.runtime.get() {
        return Ok(runtime.handle());
    }
    let made = Builder::new_multi_thread()
        .worker_threads(2)
        // Only name resolution uses these.
        .max_blocking_threads(8)
        .thread_name("nervix-client")
        .enable_io()
        .enable_time()
        .build()
        .map_err(|error| format!("the threads of the client could not be started: {error}"))?;
    if let Err(second) = slot.runtime.set(made) {
        second.shutdown_background();
    }
    match slot.runtime.get() {
        Some(runtime) => Ok(runtime.handle()),
        None => Err("the threads of the client could not be started".to_owned()),
    }
}
