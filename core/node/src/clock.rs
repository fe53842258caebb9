//! The node's own reading of UTC, which tests can stop and move. Must not know what depends on it.

use std::time::{SystemTime, UNIX_EPOCH};

/// A clock that follows the machine's, at a distance that can be changed, or stands still.
#[derive(Debug, Default)]
pub struct Clock {
    offset: i64,
    frozen_at: Option<i64>,
}

impl Clock {
    pub fn new(frozen: bool) -> Self {
        Self {
            offset: 0,
            frozen_at: frozen.then(machine_nanos),
        }
    }

    /// Nanoseconds since the Unix epoch.
    pub fn now(&self) -> i64 {
        self.frozen_at
            .unwrap_or_else(|| machine_nanos().saturating_add(self.offset))
    }

    pub fn freeze(&mut self) {
        self.frozen_at = Some(self.now());
    }

    /// Goes on from where the clock stands.
    pub fn unfreeze(&mut self) {
        if let Some(at) = self.frozen_at.take() {
            self.offset = at.saturating_sub(machine_nanos());
        }
    }

    pub fn advance(&mut self, nanos: i64) {
        match &mut self.frozen_at {
            Some(at) => *at = at.saturating_add(nanos),
            None => self.offset = self.offset.saturating_add(nanos),
        }
    }

    pub fn is_frozen(&self) -> bool {
        self.frozen_at.is_some()
    }
}

/// The machine's UTC in nanoseconds since the Unix epoch.
pub fn machine_nanos() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_clock_moves_only_when_told() {
        let mut clock = Clock::new(true);
        let start = clock.now();
        assert_eq!(clock.now(), start);
        clock.advance(5);
        assert_eq!(clock.now(), start + 5);
        clock.unfreeze();
        assert!(clock.now() >= start + 5);
        clock.advance(3_600_000_000_000);
        assert!(clock.now() >= start + 3_600_000_000_005);
    }
}
