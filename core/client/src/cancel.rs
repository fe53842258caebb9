//! Tokens that end waits.
//!
//! Owns when a token ends the calls under it, and waking them. Knows nothing of what they wait for.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nervix_engine::Stop;

use crate::fork;
use crate::locks::lock;

const LIVE: u8 = 0;
const CANCELLED: u8 = 1;
const DEADLINE: u8 = 2;

/// What a token wakes when it is triggered.
pub(crate) trait Waiter: Send + Sync {
    fn wake(&self);
}

/// Ends every wait that it is given to: once triggered, or once its time is over, whichever comes first. Clones are one token.
#[derive(Clone)]
pub struct Cancel {
    shared: Arc<Shared>,
}

struct Shared {
    state: AtomicU8,
    deadline: Option<Instant>,
    generation: u64,
    waiters: Mutex<Vec<Arc<dyn Waiter>>>,
}

impl Default for Cancel {
    fn default() -> Self {
        Self::new()
    }
}

impl Cancel {
    /// A token without a deadline.
    pub fn new() -> Self {
        Self::with(None)
    }

    /// A token that ends its calls `after` from now; one of no time at all has already expired.
    pub fn with_deadline(after: Duration) -> Self {
        // A deadline that no clock reaches is none.
        Self::with(Instant::now().checked_add(after))
    }

    fn with(deadline: Option<Instant>) -> Self {
        let state = AtomicU8::new(LIVE);
        let shared = Shared {
            state,
            deadline,
            generation: fork::generation(),
            waiters: Mutex::new(Vec::new()),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Ends every present and later call under the token. Without effect when its deadline has passed.
    pub fn trigger(&self) {
        if self.stopped().is_none() {
            let _ = self.shared.state.compare_exchange(
                LIVE,
                CANCELLED,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
        if self.is_stale() {
            return;
        }
        // Waiters are woken outside the lock, so that none of them can meet it.
        let waiters = lock(&self.shared.waiters).clone();
        for waiter in waiters {
            waiter.wake();
        }
    }

    /// Why calls under the token end, once they do. The first answer is the last.
    pub fn stopped(&self) -> Option<Stop> {
        let mut state = self.shared.state.load(Ordering::SeqCst);
        if state == LIVE
            && self
                .shared
                .deadline
                .is_some_and(|deadline| Instant::now() >= deadline)
        {
            state = match self.shared.state.compare_exchange(
                LIVE,
                DEADLINE,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => DEADLINE,
                Err(earlier) => earlier,
            };
        }
        match state {
            LIVE => None,
            CANCELLED => Some(Stop::Cancelled),
            _ => Some(Stop::Deadline),
        }
    }

    /// Whether the token was made before a fork that lies behind this process.
    pub fn is_stale(&self) -> bool {
        self.shared.generation != fork::generation()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.shared.deadline
    }

    /// Has `waiter` woken by the token until the registration is dropped.
    pub(crate) fn register(&self, waiter: Arc<dyn Waiter>) -> Registration<'_> {
        lock(&self.shared.waiters).push(Arc::clone(&waiter));
        Registration {
            cancel: self,
            waiter,
        }
    }
}

pub(crate) struct Registration<'a> {
    cancel: &'a Cancel,
    waiter: Arc<dyn Waiter>,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let mut waiters = lock(&self.cancel.shared.waiters);
        if let Some(at) = waiters
            .iter()
            .position(|waiter| Arc::ptr_eq(waiter, &self.waiter))
        {
            waiters.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_first_sticks() {
        let triggered = Cancel::with_deadline(Duration::from_secs(3600));
        assert_eq!(triggered.stopped(), None);
        triggered.trigger();
        assert_eq!(triggered.clone().stopped(), Some(Stop::Cancelled));
        let expired = Cancel::with_deadline(Duration::ZERO);
        expired.trigger();
        assert_eq!(expired.stopped(), Some(Stop::Deadline));
        assert_eq!(
            Cancel::with_deadline(Duration::from_millis(u64::MAX)).stopped(),
            None
        );
    }
}
