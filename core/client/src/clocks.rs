//! Domain clocks as hosts follow them (B-9, B-11).
//!
//! Owns the two ways to read a clock: the next event, which waits, and what the session knows now, which does not.

use nervix_engine::{Call, ClockEvent, DomainClock, Done, Error, ErrorKind};

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
        if !is_name(domain) {
            let message = format!("{domain:?} is no name of a domain");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.enter(|engine, _| engine.domain_clock(domain))
    }
}

/// Whether text can name a domain: a letter or an underscore, then letters, digits and underscores.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
