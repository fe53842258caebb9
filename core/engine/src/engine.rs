//! The engine itself.

use std::sync::Arc;

use crate::api::{Call, CallId, Config, ExecutionId, Input, Now, Output, Stop};

/// One session of a host, through all its connections.
#[derive(Debug)]
pub struct Engine {
    config: Config,
}

impl Engine {
    /// An engine that has not connected.
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Fixes a command and gives it its reference, a UUIDv7 of `now` and the given random bytes (E-1).
    pub fn prepare(&mut self, _now: Now, _query: &str, _entropy: [u8; 10]) -> (ExecutionId, Arc<str>) {
        todo!()
    }

    /// Forgets a prepared command; a call that runs it goes on.
    pub fn release(&mut self, _execution: ExecutionId) {}

    /// Starts a call. It ends with one [`Output::Done`], perhaps at once.
    pub fn call(&mut self, _now: Now, _call: CallId, _what: Call) {}

    /// The host stops waiting: the call ends now with CANCELLED or DEADLINE, unless it is over already.
    pub fn stop(&mut self, _now: Now, _call: CallId, _why: Stop) {}

    /// Takes what happened on a connection. What concerns an unknown or finished connection is ignored.
    pub fn input(&mut self, _now: Now, _input: Input) {}

    /// Does what has become due. Harmless at any time.
    pub fn wake(&mut self, _now: Now) {}

    /// The monotonic time of the next [`Engine::wake`] that matters.
    pub fn wakeup(&self) -> Option<u64> {
        None
    }

    /// The next thing for the runner to do. Take all of them after every other call.
    pub fn output(&mut self) -> Option<Output> {
        None
    }

    /// Ends the session for good: every connection is reset and every waiting call ends as CLOSED.
    pub fn shut_down(&mut self, _now: Now) {}
}
