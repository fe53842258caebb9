//! What a domain's paced clock says about instants (B-11, K-4).
//!
//! Owns the arithmetic between wall time and logical time. Instants are signed nanoseconds since the Unix epoch; differences
//! are taken in 128 bits; the one product and the one quotient with a rate are taken in double precision, as every client
//! takes them. Knows no time of its own.

use std::fmt;
use std::sync::Arc;

use nervix_wire::types::{DomainClockObservation, DomainClockObservedState, PacedDomainClock};

/// How many centers before the newest still admit events.
const KEPT_CENTERS: i128 = 256;

/// The newest accepted tick of a clock's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    pub id: u64,
    pub logical_boundary: i64,
    pub authority_utc: i64,
    pub serving_logical: i64,
}

/// A domain's clock as a session knew it at one moment. Never changes.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainClock {
    pub domain: Arc<str>,
    pub clock: DomainClockObservation,
    pub tick: Option<Tick>,
}

/// Why a projection has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectionError {
    /// A stopped or uninstalled clock has no logical time.
    NoTime,
    /// The result is no instant or wait of 64 bits.
    OutOfRange,
}

impl fmt::Display for ProjectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTime => {
                "the domain's clock is stopped or not installed, so it has no logical time"
            }
            Self::OutOfRange => "the result does not fit into 64-bit nanoseconds",
        })
    }
}

impl std::error::Error for ProjectionError {}

enum Kind<'a> {
    Unpaced,
    Paced(&'a PacedDomainClock),
}

impl DomainClock {
    fn kind(&self) -> Result<Kind<'_>, ProjectionError> {
        match &self.clock.state {
            DomainClockObservedState::StoppedDomainClock
            | DomainClockObservedState::UninstalledDomainClock => Err(ProjectionError::NoTime),
            DomainClockObservedState::UnpacedDomainClock => Ok(Kind::Unpaced),
            DomainClockObservedState::PacedDomainClock(paced) => Ok(Kind::Paced(paced)),
        }
    }

    /// The logical time at a wall instant; never before the origin of a paced clock.
    pub fn logical_time_at(&self, utc: i64) -> Result<i64, ProjectionError> {
        match self.kind()? {
            Kind::Unpaced => Ok(utc),
            Kind::Paced(paced) => logical_time(paced, utc),
        }
    }

    /// Nanoseconds of wall time from a wall instant until a logical one; 0 when it has come.
    pub fn wall_duration_until(&self, utc: i64, target: i64) -> Result<u64, ProjectionError> {
        let (now, rate) = match self.kind()? {
            Kind::Unpaced => (utc, 1.0),
            Kind::Paced(paced) => (logical_time(paced, utc)?, paced.time_rate),
        };
        let delta = i128::from(target) - i128::from(now);
        if delta <= 0 {
            return Ok(0);
        }
        let wait = if is_one(rate) {
            delta
        } else {
            whole((delta as f64 / rate).ceil())?.max(1)
        };
        u64::try_from(wait).map_err(|_| ProjectionError::OutOfRange)
    }

    /// The oldest and newest center that admit events at a wall instant; none for an unpaced clock.
    pub fn admission_window(&self, utc: i64) -> Result<Option<(i64, i64)>, ProjectionError> {
        match self.kind()? {
            Kind::Unpaced => Ok(None),
            Kind::Paced(paced) => {
                let (earliest, newest) = kept_centers(paced, utc)?;
                Ok(Some((center(paced, earliest)?, center(paced, newest)?)))
            }
        }
    }

    /// Whether an event of this logical time is admitted at a wall instant. Below a skew of half a period there are gaps between
    /// the centers, so the centers next to the event are tried, not the window.
    pub fn admits(&self, utc: i64, event: i64) -> Result<bool, ProjectionError> {
        let Kind::Paced(paced) = self.kind()? else {
            return Ok(true);
        };
        let (earliest, newest) = kept_centers(paced, utc)?;
        let period = i128::from(paced.period_nanos);
        let since = i128::from(event) - i128::from(paced.logical_origin_unix_nanos);
        let Some(below) = since.checked_div_euclid(period) else {
            return Ok(false);
        };
        let near = |index: i128| {
            let distance = since - index.clamp(earliest, newest) * period;
            distance.unsigned_abs() <= u128::from(paced.skew_nanos)
        };
        Ok(near(below) || near(below.saturating_add(1)))
    }
}

fn is_one(rate: f64) -> bool {
    rate.to_bits() == 1.0_f64.to_bits()
}

/// The whole number that a double is, when it is in the range of what is computed here.
fn whole(value: f64) -> Result<i128, ProjectionError> {
    // Far beyond 64 bits, well within 128.
    const BOUND: f64 = 1e30;
    if value.is_finite() && value.abs() < BOUND {
        Ok(value as i128)
    } else {
        Err(ProjectionError::OutOfRange)
    }
}

fn logical_time(paced: &PacedDomainClock, utc: i64) -> Result<i64, ProjectionError> {
    let elapsed = (i128::from(utc) - i128::from(paced.utc_anchor_unix_nanos)).max(0);
    let logical = if is_one(paced.time_rate) {
        elapsed
    } else {
        whole((elapsed as f64 * paced.time_rate).floor())?
    };
    let instant = i128::from(paced.logical_origin_unix_nanos) + logical;
    i64::try_from(instant).map_err(|_| ProjectionError::OutOfRange)
}

fn kept_centers(paced: &PacedDomainClock, utc: i64) -> Result<(i128, i128), ProjectionError> {
    let now = logical_time(paced, utc)?;
    let since = i128::from(now) - i128::from(paced.logical_origin_unix_nanos);
    let newest = since
        .checked_div(i128::from(paced.period_nanos))
        .ok_or(ProjectionError::OutOfRange)?;
    Ok(((newest - (KEPT_CENTERS - 1)).max(0), newest))
}

fn center(paced: &PacedDomainClock, index: i128) -> Result<i64, ProjectionError> {
    let center =
        i128::from(paced.logical_origin_unix_nanos) + index * i128::from(paced.period_nanos);
    i64::try_from(center).map_err(|_| ProjectionError::OutOfRange)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn clock(period: u64, skew: u64, origin: i64, anchor: i64, rate: f64) -> DomainClock {
        let paced = PacedDomainClock {
            period_nanos: period,
            skew_nanos: skew,
            logical_origin_unix_nanos: origin,
            utc_anchor_unix_nanos: anchor,
            time_rate: rate,
        };
        let state = DomainClockObservedState::PacedDomainClock(paced);
        DomainClock {
            domain: "d".into(),
            clock: DomainClockObservation {
                generation: 1,
                state,
            },
            tick: None,
        }
    }

    // rule: B-11
    #[test]
    fn worked_values() {
        let fast = clock(1, 0, 0, 0, 4.0);
        assert_eq!(
            fast.wall_duration_until(0, 1_000_000_000).unwrap(),
            250_000_000
        );
        assert_eq!(fast.wall_duration_until(0, 1).unwrap(), 1);
        assert_eq!(clock(1, 0, 0, 0, 0.3).logical_time_at(10).unwrap(), 3);
        let second = clock(1_000_000_000, 0, 0, 0, 1.0);
        assert_eq!(
            second.admission_window(3_500_000_000).unwrap(),
            Some((0, 3_000_000_000))
        );
    }

    // rule: B-11
    #[test]
    fn gaps_between_centers_admit_nothing() {
        let gapped = clock(100, 10, 0, 0, 1.0);
        for (event, admitted) in [
            (0, true),
            (10, true),
            (11, false),
            (89, false),
            (90, true),
            (-10, true),
            (-11, false),
        ] {
            assert_eq!(gapped.admits(250, event).unwrap(), admitted, "{event}");
        }
        // The newest center is 200: 210 is its last event, though 290 is near a later one.
        assert!(gapped.admits(250, 210).unwrap() && !gapped.admits(250, 290).unwrap());
        // 256 centers are kept.
        assert!(
            gapped.admits(100 * 300, 100 * 45).unwrap()
                && !gapped.admits(100 * 300, 100 * 44).unwrap()
        );
    }

    // rule: B-11
    #[test]
    fn a_clock_without_time_projects_nothing() {
        for state in [
            DomainClockObservedState::StoppedDomainClock,
            DomainClockObservedState::UninstalledDomainClock,
        ] {
            let clock = DomainClock {
                domain: "d".into(),
                clock: DomainClockObservation {
                    generation: 0,
                    state,
                },
                tick: None,
            };
            assert_eq!(clock.logical_time_at(0), Err(ProjectionError::NoTime));
            assert_eq!(
                clock.wall_duration_until(0, 0),
                Err(ProjectionError::NoTime)
            );
            assert_eq!(clock.admission_window(0), Err(ProjectionError::NoTime));
            assert_eq!(clock.admits(0, 0), Err(ProjectionError::NoTime));
        }
    }

    proptest! {
        // rule: B-11
        #[test]
        fn admits_is_the_distance_to_some_kept_center(
            period in 1_u64..2000, skew in 0_u64..3000, origin in -5000_i64..5000, utc in 0_i64..700_000, event in -9000_i64..700_000,
        ) {
            let clock = clock(period, skew, origin, 0, 1.0);
            let newest = utc / period as i64;
            let expected = ((newest - 255).max(0)..=newest)
                .any(|i| (event - (origin + i * period as i64)).unsigned_abs() <= skew);
            prop_assert_eq!(clock.admits(utc, event).unwrap(), expected);
        }

        // rule: B-11, K-4
        #[test]
        fn nothing_panics_at_the_extremes(
            period in any::<u64>(), skew in any::<u64>(), origin in any::<i64>(), anchor in any::<i64>(),
            rate in prop_oneof![Just(1.0), Just(f64::MIN_POSITIVE), Just(f64::MAX), 1e-9..1e9_f64],
            utc in any::<i64>(), other in any::<i64>(),
        ) {
            let clock = clock(period.max(1), skew, origin, anchor, rate);
            let _ = (clock.logical_time_at(utc), clock.wall_duration_until(utc, other));
            let _ = (clock.admission_window(utc), clock.admits(utc, other));
        }
    }
}
