//! Domain clocks as hosts follow them (B-9, B-11).
//!
//! Owns the two ways to read a clock: the next event, which waits, and what the session knows now, which does not.

use nervix_engine::{Call, ClockEvent, DomainClock, Done, Error};

use crate::cancel::Cancel;
use crate::session::{unexpected, Session};

impl Session {
    /// Waits for the next event of any domain clock that the session follows.
    pub fn next_clock_event(&self, cancel: Option<&Cancel>) -> Result<ClockEvent, Error> {
        match self.call(Call::NextClockEvent, cancel, None)? {
            Done::ClockEvent(event) => Ok(event),
            other => Err(unexpected(&other)),
        }
    }

    /// The newest clock of a domain that the session knows; none when it follows none. Never waits.
    pub fn domain_clock(&self, domain: &str) -> Result<Option<DomainClock>, Error> {
        self.enter(|engine, _| engine.domain_clock(domain))
    }
}
