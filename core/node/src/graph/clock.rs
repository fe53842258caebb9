//! The time of a domain, computed from what its START fixed and the caller's reading of UTC: logical time, waits, the
//! window of admission, ticks.

use super::Now;

/// The newest centers that an admission window keeps.
const KEPT_CENTERS: i128 = 256;

/// The clock of one generation of a paced domain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PacedClock {
    /// Never zero.
    pub period_nanos: u64,
    pub skew_nanos: u64,
    pub logical_origin: i64,
    pub utc_anchor: i64,
    /// Positive and finite.
    pub rate: f64,
}

/// Which events are admitted at one instant: those near one of its centers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionWindow {
    origin: i128,
    period: i128,
    skew: i128,
    earliest: i128,
    newest: i128,
}

impl AdmissionWindow {
    /// Whether an instant is at most the skew away from a kept center.
    pub fn admits(&self, instant: i64) -> bool {
        let distance = i128::from(instant) - self.origin;
        let below = distance.div_euclid(self.period);
        [below, below + 1]
            .into_iter()
            .map(|index| index.clamp(self.earliest, self.newest))
            .any(|index| (distance - index * self.period).abs() <= self.skew)
    }
}

/// Which events a domain admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The domain is unpaced.
    Every,
    Near(AdmissionWindow),
    /// The domain's time cannot be said.
    Nothing,
}

impl Admission {
    pub fn admits(&self, instant: i64) -> bool {
        match self {
            Admission::Every => true,
            Admission::Near(window) => window.admits(instant),
            Admission::Nothing => false,
        }
    }
}

impl PacedClock {
    #[allow(clippy::float_cmp)]
    fn is_exact(&self) -> bool {
        self.rate == 1.0
    }

    /// The logical time at an instant; None past the end of 64 bits.
    pub fn logical_time_at(&self, now: Now) -> Option<i64> {
        let elapsed = (i128::from(now.0) - i128::from(self.utc_anchor)).max(0);
        let logical = if self.is_exact() {
            elapsed
        } else {
            // Double arithmetic is part of the contract. The cast saturates, and the sum below then does not fit.
            #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
            let logical = (elapsed as f64 * self.rate).floor() as i128;
            logical
        };
        i64::try_from(i128::from(self.logical_origin).saturating_add(logical)).ok()
    }

    /// How long to wait from an instant until logical time is `target`; None when that cannot be said in 64 bits.
    pub fn wall_duration_until(&self, now: Now, target: i64) -> Option<u64> {
        let delta = i128::from(target) - i128::from(self.logical_time_at(now)?);
        if delta <= 0 {
            return Some(0);
        }
        if self.is_exact() {
            return u64::try_from(delta).ok();
        }
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        let wall = (delta as f64 / self.rate).ceil() as i128;
        u64::try_from(wall.max(1)).ok()
    }

    /// The window at an instant; None when it has no logical time.
    pub fn admission_window(&self, now: Now) -> Option<AdmissionWindow> {
        let newest = self.newest_index(now)?;
        Some(AdmissionWindow {
            origin: i128::from(self.logical_origin),
            period: i128::from(self.period_nanos),
            skew: i128::from(self.skew_nanos),
            earliest: (newest - (KEPT_CENTERS - 1)).max(0),
            newest,
        })
    }

    fn newest_index(&self, now: Now) -> Option<i128> {
        let since = i128::from(self.logical_time_at(now)?) - i128::from(self.logical_origin);
        Some(since.div_euclid(i128::from(self.period_nanos.max(1))))
    }

    /// The newest tick that is due: its one-based number.
    pub fn newest_tick(&self, now: Now) -> Option<u64> {
        u64::try_from(self.newest_index(now)? + 1).ok()
    }

    /// When a tick is due in logical time; None past the end of 64 bits.
    pub fn boundary(&self, tick: u64) -> Option<i64> {
        let since = (i128::from(tick) - 1).checked_mul(i128::from(self.period_nanos))?;
        i64::try_from(i128::from(self.logical_origin).checked_add(since)?).ok()
    }
}
