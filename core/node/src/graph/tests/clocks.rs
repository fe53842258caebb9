use nervix_wire::types::{
    DomainClockObservation, DomainClockObservedState, DomainClockTicked, PacedDomainClock,
};
use proptest::prelude::*;

use super::super::clock::PacedClock;
use super::harness::*;
use super::*;
use crate::graph::Effect;

const PACED: &str = "CREATE PACED DOMAIN d WITH PERIOD 100ms SKEW 10ms";

fn clock(period: u64, skew: u64, rate: f64) -> PacedClock {
    PacedClock {
        period_nanos: period,
        skew_nanos: skew,
        logical_origin: 0,
        utc_anchor: 0,
        rate,
    }
}

fn ticks(run: &mut Run) -> Vec<DomainClockTicked> {
    run.gather();
    let seen = std::mem::take(&mut run.seen);
    seen.into_iter()
        .filter_map(|effect| match effect {
            Effect::Tick(tick) => Some(tick),
            _ => None,
        })
        .collect()
}

fn states(run: &mut Run) -> Vec<Option<DomainClockObservation>> {
    run.gather();
    let seen = std::mem::take(&mut run.seen);
    seen.into_iter()
        .filter_map(|effect| match effect {
            Effect::Clock { domain, clock } => {
                assert_eq!(domain, "d");
                Some(clock)
            }
            _ => None,
        })
        .collect()
}

// rule: K-4, B-11
#[test]
fn logical_time_uses_double_arithmetic_except_at_rate_one() {
    let clock_03 = clock(100, 0, 0.3);
    // Exactly 10 × 0.3 is below 3.
    assert_eq!(clock_03.logical_time_at(Now(10)), Some(3));
    assert_eq!(clock_03.logical_time_at(Now(-10)), Some(0));
    let fast = clock(100, 0, 4.0);
    assert_eq!(fast.wall_duration_until(Now(0), SECOND), Some(250_000_000));
    assert_eq!(fast.wall_duration_until(Now(0), 1), Some(1));
    assert_eq!(fast.wall_duration_until(Now(5), 20), Some(0));
    assert_eq!(fast.logical_time_at(Now(i64::MAX)), None);
    assert_eq!(fast.wall_duration_until(Now(i64::MAX), 0), None);
    let mut exact = clock(100, 0, 1.0);
    exact.utc_anchor = i64::MIN;
    exact.logical_origin = i64::MIN;
    assert_eq!(exact.logical_time_at(Now(i64::MAX)), Some(i64::MAX));
    assert_eq!(
        exact.wall_duration_until(Now(i64::MIN), i64::MAX),
        Some(u64::MAX)
    );
}

// rule: B-11
#[test]
fn the_newest_256_centers_admit_events_up_to_the_skew() {
    let narrow = clock(100, 10, 1.0);
    let window = narrow.admission_window(Now(250)).unwrap();
    for (instant, admitted) in [
        (-11, false),
        (-10, true),
        (10, true),
        (11, false),
        (89, false),
        (90, true),
        (110, true),
        (210, true),
        (211, false),
        // The next center has not come.
        (299, false),
        (300, false),
    ] {
        assert_eq!(window.admits(instant), admitted, "{instant}");
    }
    // Centers 0 to 44 are no longer kept.
    let later = narrow.admission_window(Now(300 * 100)).unwrap();
    assert!(!later.admits(4_489));
    assert!(!later.admits(4_400));
    assert!(later.admits(4_490));
    assert!(later.admits(30_010));
    let wide = clock(100, 1_000, 1.0).admission_window(Now(0)).unwrap();
    assert!(wide.admits(-1_000) && wide.admits(1_000));
    assert!(!wide.admits(-1_001) && !wide.admits(1_001));
}

proptest! {
    /// Against the definition: some kept center is near enough.
    // rule: B-11
    #[test]
    fn admission_is_what_its_definition_says(
        period in 1_u64..50,
        skew in 0_u64..120,
        elapsed in 0_i64..30_000,
        instant in -500_i64..30_500,
    ) {
        let window = clock(period, skew, 1.0).admission_window(Now(elapsed)).unwrap();
        let period = period as i64;
        let newest = elapsed / period;
        let by_definition = ((newest - 255).max(0)..=newest)
            .any(|index| (instant - index * period).abs() <= skew as i64);
        prop_assert_eq!(window.admits(instant), by_definition);
    }

    /// A wait never ends early by more than rounding, and what is waited for is then reached.
    // rule: K-4
    #[test]
    fn ticks_come_when_they_were_announced(
        period in 1_u64..1_000_000,
        rate in prop_oneof![Just(1.0), 0.01_f64..100.0],
        wait in 0_i64..1_000_000_000,
    ) {
        let clock = clock(period, 0, rate);
        let now = Now(wait);
        let newest = clock.newest_tick(now).unwrap();
        prop_assert!(clock.boundary(newest).unwrap() <= clock.logical_time_at(now).unwrap());
        let next = clock.boundary(newest + 1).unwrap();
        prop_assert!(next > clock.logical_time_at(now).unwrap());
        let due = now.after(clock.wall_duration_until(now, next).unwrap());
        prop_assert!(due > now);
        // A rounding may leave one nanosecond to wait for.
        prop_assert!(clock.logical_time_at(Now(due.0 + 1)).unwrap() + (rate as i64) + 1 >= next);
    }
}

// rule: K-1, K-3, K-4
#[test]
fn a_clock_is_stopped_before_the_first_start_and_new_with_each() {
    let mut run = Run::stopped(PACED, &[]);
    let stopped = |generation| {
        Some(DomainClockObservation {
            generation,
            state: DomainClockObservedState::StoppedDomainClock,
        })
    };
    assert_eq!(run.world.clock("nowhere"), None);
    assert_eq!(run.world.clock("d"), stopped(0));
    run.execute("START AT '2030-01-01T00:00:00Z' TIME RATE 2.0");
    let paced = Some(DomainClockObservation {
        generation: 1,
        state: DomainClockObservedState::PacedDomainClock(PacedDomainClock {
            period_nanos: 100_000_000,
            skew_nanos: 10_000_000,
            logical_origin_unix_nanos: 1_893_456_000_000_000_000,
            utc_anchor_unix_nanos: NOW.0,
            time_rate: 2.0,
        }),
    });
    assert_eq!(run.world.clock("d"), paced);
    // The state comes before the generation's first tick.
    assert!(matches!(
        run.seen.as_slice(),
        [Effect::Clock { .. }, Effect::Tick(_)]
    ));
    assert_eq!(states(&mut run), std::slice::from_ref(&paced));
    run.world.set_clock_installed("d", false);
    let uninstalled = run.world.clock("d").unwrap();
    assert_eq!(
        uninstalled.state,
        DomainClockObservedState::UninstalledDomainClock
    );
    run.world.set_clock_installed("d", true);
    assert_eq!(states(&mut run), [Some(uninstalled), paced]);
    run.execute("STOP");
    assert_eq!(states(&mut run), [stopped(1)]);
    run.execute("START");
    assert_eq!(run.world.clock("d").unwrap().generation, 2);
    states(&mut run);
    run.execute("DROP DOMAIN d");
    assert_eq!(states(&mut run), [None]);

    let mut unpaced = Run::stopped("CREATE UNPACED DOMAIN d", &[]);
    unpaced.execute("START");
    assert_eq!(
        unpaced.world.clock("d").unwrap().state,
        DomainClockObservedState::UnpacedDomainClock
    );
    unpaced.pass(SECOND);
    assert_eq!(ticks(&mut unpaced), []);
}

// rule: K-3, K-4
#[test]
fn ticks_are_numbered_from_one_and_a_late_look_finds_the_newest_only() {
    let mut run = Run::stopped(PACED, &[]);
    run.execute("START AT '2030-01-01T00:00:00Z' TIME RATE 2.0");
    let origin = 1_893_456_000_000_000_000;
    let first = ticks(&mut run);
    assert_eq!(
        first,
        [DomainClockTicked {
            domain: "d".to_string(),
            generation: 1,
            tick_id: 1,
            logical_boundary_unix_nanos: origin,
            authority_utc_unix_nanos: NOW.0,
            serving_logical_unix_nanos: origin,
        }]
    );
    // Twice as fast: a period takes 50 ms.
    assert_eq!(run.world.next_deadline(run.now), Some(Now(NOW.0 + 50 * MS)));
    run.pass(49 * MS);
    assert_eq!(ticks(&mut run), []);
    run.pass(MS);
    let second = ticks(&mut run);
    assert_eq!(second.len(), 1);
    assert_eq!(second[0].tick_id, 2);
    assert_eq!(second[0].logical_boundary_unix_nanos, origin + 100 * MS);
    // Nobody looked for ten periods.
    run.now = Now(NOW.0 + 575 * MS);
    run.world.advance(run.now);
    let late = ticks(&mut run);
    assert_eq!(late.len(), 1);
    assert_eq!(late[0].tick_id, 12);
    assert_eq!(late[0].logical_boundary_unix_nanos, origin + 1_100 * MS);
    assert_eq!(late[0].serving_logical_unix_nanos, origin + 1_150 * MS);
    run.execute("STOP");
    run.pass(SECOND);
    assert_eq!(ticks(&mut run), []);
    assert_eq!(run.world.next_deadline(run.now), None);
    run.execute("START");
    let again = ticks(&mut run);
    assert_eq!((again[0].generation, again[0].tick_id), (2, 1));
}

// rule: CL-1
#[test]
fn a_filter_on_now_works_once_the_domain_has_time() {
    use nervix_wire::types::RowsSkippedCause;
    let mut world = world(&[
        "CREATE SCHEMA t (at DATETIME)",
        "CREATE RELAY r SCHEMA t UNBRANCHED",
    ]);
    let opened = subscribe(&mut world, "CREATE SUBSCRIPTION n TO r WHERE at <= now()");
    let rows = format!("[{{\"at\": {}}}, {{\"at\": {}}}]", NOW.0, NOW.0 + 1);
    let published = publish(&mut world, "r", &rows);
    let delivery = delivery_to(&published, opened.id);
    assert!(delivery.frames.is_empty());
    let (cause, count, _) = &delivery.skipped[0];
    assert_eq!(
        (*cause, *count),
        (RowsSkippedCause::DomainTimeUnavailable, 2)
    );
    done(&mut world, "START");
    let published = publish(&mut world, "r", &rows);
    let delivery = delivery_to(&published, opened.id);
    assert_eq!(delivery.skipped, []);
    assert_eq!(first_column(delivery, &opened.schema), [NOW.0.to_string()]);
}
