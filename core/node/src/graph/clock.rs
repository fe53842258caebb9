//! The time of a domain, computed from what its START fixed and the caller's reading of UTC.

use super::Now;

/// The clock of one generation of a paced domain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PacedClock {
    pub period_nanos: u64,
    pub skew_nanos: u64,
    pub logical_origin: i64,
    pub utc_anchor: i64,
    pub rate: f64,
}

impl PacedClock {
    /// The logical time at an instant; None past the end of 64 bits.
    pub fn logical_time_at(&self, now: Now) -> Option<i64> {
        let elapsed = (i128::from(now.0) - i128::from(self.utc_anchor)).max(0);
        #[allow(
            clippy::float_cmp,
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation
        )]
        let logical = if self.rate == 1.0 {
            elapsed
        } else {
            // Double arithmetic is part of the contract. The cast saturates, and the sum below then does not fit.
            (elapsed as f64 * self.rate).floor() as i128
        };
        i64::try_from(i128::from(self.logical_origin).saturating_add(logical)).ok()
    }
}
