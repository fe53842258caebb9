//! Clock events and clocks.

use std::ptr::{null, null_mut};
use std::sync::Arc;

use nervix_engine::{ClockEvent, ClockEventKind, DomainClock, Tick};
use nervix_wire::types::{
    DomainClockAttachmentEndReason, DomainClockObservation, DomainClockObservedState,
    PacedDomainClock,
};

use super::{borrowed, kind, INVALID_ARGUMENT, TYPE};
use crate::clock::*;
use crate::counted::hand_out;

const TICK: Tick = Tick {
    id: 4,
    logical_boundary: -3,
    authority_utc: 5,
    serving_logical: i64::MAX,
};

fn paced() -> DomainClockObservedState {
    DomainClockObservedState::PacedDomainClock(PacedDomainClock {
        period_nanos: 10,
        skew_nanos: 2,
        logical_origin_unix_nanos: -50,
        utc_anchor_unix_nanos: 100,
        time_rate: 2.5,
    })
}

fn observation(state: DomainClockObservedState) -> DomainClockObservation {
    DomainClockObservation {
        generation: 9,
        state,
    }
}

fn event(kind: ClockEventKind) -> *mut ClockEvent {
    hand_out(Arc::new(ClockEvent {
        domain: Arc::from("d"),
        kind,
    }))
}

fn clock(state: DomainClockObservedState, tick: Option<Tick>) -> *mut DomainClock {
    hand_out(Arc::new(DomainClock {
        domain: Arc::from("d"),
        clock: observation(state),
        tick,
    }))
}

/// The kinds of errors that the accessors give, in the order generation, state, paced, tick, end reason.
unsafe fn access(event: *const ClockEvent) -> [i32; 5] {
    let (mut a, mut b, mut c, mut d, mut e) = (0, 0, 0, 0, 0.0);
    let mut number = 0;
    // SAFETY: the event is a live one or NULL, and the places can be written to.
    unsafe {
        [
            kind(nx_clock_event_generation(event, &mut a)),
            kind(nx_clock_event_state(event, &mut number)),
            kind(nx_clock_event_paced(
                event, &mut a, &mut b, &mut c, &mut d, &mut e,
            )),
            kind(nx_clock_event_tick(event, &mut a, &mut c, &mut d, &mut c)),
            kind(nx_clock_event_end_reason(event, &mut number)),
        ]
    }
}

// rule: B-9
#[test]
fn an_event_carries_what_its_kind_has() {
    let cases = [
        (
            ClockEventKind::State(observation(paced())),
            1,
            [0, 0, 0, TYPE, TYPE],
        ),
        (
            ClockEventKind::State(observation(DomainClockObservedState::UnpacedDomainClock)),
            1,
            [0, 0, TYPE, TYPE, TYPE],
        ),
        (
            ClockEventKind::Tick {
                generation: 9,
                tick: TICK,
            },
            2,
            [0, TYPE, TYPE, 0, TYPE],
        ),
        (
            ClockEventKind::Ended(DomainClockAttachmentEndReason::DomainRemoved),
            3,
            [TYPE, TYPE, TYPE, TYPE, 0],
        ),
        (ClockEventKind::Interrupted, 4, [TYPE; 5]),
        (ClockEventKind::RestorationFailed, 5, [TYPE; 5]),
    ];
    for (carried, number, kinds) in cases {
        let event = event(carried);
        // SAFETY: the event is a live one, released as often as it is held.
        unsafe {
            assert_eq!(nx_clock_event_kind_of(event), number);
            assert_eq!(access(event), kinds);
            assert_eq!(nx_clock_event_retain(event), event);
            nx_clock_event_release(event);
            let (mut text, mut len) = (null(), 0);
            nx_clock_event_domain(event, &mut text, &mut len);
            assert_eq!(borrowed(text, len), b"d");
            nx_clock_event_release(event);
        }
    }
}

// rule: B-11, K-4
#[test]
fn values_read_as_they_are_and_places_may_be_null() {
    let state = event(ClockEventKind::State(observation(paced())));
    let tick = event(ClockEventKind::Tick {
        generation: 9,
        tick: TICK,
    });
    let followed = clock(paced(), Some(TICK));
    let (mut period, mut skew, mut origin, mut anchor, mut rate) = (0, 0, 0, 0, 0.0);
    let (mut id, mut boundary, mut utc, mut logical) = (0, 0, 0, 0);
    let none: *mut u64 = null_mut();
    // SAFETY: the objects are live ones, and the places can be written to or are NULL.
    unsafe {
        let read = nx_clock_event_paced(
            state,
            &mut period,
            &mut skew,
            &mut origin,
            &mut anchor,
            &mut rate,
        );
        assert_eq!(kind(read), 0);
        assert_eq!((period, skew, origin, anchor, rate), (10, 2, -50, 100, 2.5));
        let nothing = nx_clock_event_paced(state, none, none, null_mut(), null_mut(), null_mut());
        assert_eq!(kind(nothing), 0);
        let read = nx_clock_event_tick(tick, &mut id, &mut boundary, &mut utc, &mut logical);
        assert_eq!(kind(read), 0);
        assert_eq!((id, boundary, utc, logical), (4, -3, 5, i64::MAX));
        let nothing = nx_clock_event_tick(tick, none, null_mut(), null_mut(), null_mut());
        assert_eq!(kind(nothing), 0);
        (period, id) = (0, 0);
        let read = nx_domain_clock_paced(
            followed,
            &mut period,
            none,
            null_mut(),
            null_mut(),
            null_mut(),
        );
        assert_eq!((kind(read), period), (0, 10));
        assert!(nx_domain_clock_tick(
            followed,
            &mut id,
            null_mut(),
            null_mut(),
            null_mut()
        ));
        assert_eq!(id, 4);
        assert_eq!(nx_domain_clock_generation(followed), 9);
        assert_eq!(nx_domain_clock_state(followed), 4);
        for place in [
            kind(nx_clock_event_generation(state, null_mut())),
            kind(nx_clock_event_state(state, null_mut())),
            kind(nx_clock_event_end_reason(state, null_mut())),
            kind(nx_domain_clock_logical_time_at(followed, 0, null_mut())),
            kind(nx_domain_clock_wall_duration_until(
                followed,
                0,
                0,
                null_mut(),
            )),
            kind(nx_domain_clock_admission_window(
                followed,
                0,
                null_mut(),
                null_mut(),
                null_mut(),
            )),
            kind(nx_domain_clock_admits(followed, 0, 0, null_mut())),
        ] {
            assert_eq!(place, INVALID_ARGUMENT);
        }
        nx_clock_event_release(state);
        nx_clock_event_release(tick);
        nx_domain_clock_release(followed);
    }
}

// rule: B-11
#[test]
fn projections_answer_or_say_why_not() {
    let (mut logical, mut wait, mut has, mut first, mut last, mut admits) =
        (0, 0, false, 7, 7, false);
    let fast = clock(paced(), None);
    let unpaced = clock(DomainClockObservedState::UnpacedDomainClock, None);
    // SAFETY: the clocks are live ones, and the places can be written to.
    unsafe {
        // 30 ns of wall time are 75 of logical time.
        assert_eq!(
            kind(nx_domain_clock_logical_time_at(fast, 130, &mut logical)),
            0
        );
        assert_eq!(logical, 25);
        assert_eq!(
            kind(nx_domain_clock_wall_duration_until(
                fast, 130, 50, &mut wait
            )),
            0
        );
        assert_eq!(wait, 10);
        let window = nx_domain_clock_admission_window(fast, 130, &mut has, &mut first, &mut last);
        assert_eq!((kind(window), has, first, last), (0, true, -50, 20));
        assert_eq!(kind(nx_domain_clock_admits(fast, 130, 22, &mut admits)), 0);
        assert!(admits);
        assert_eq!(kind(nx_domain_clock_admits(fast, 130, 23, &mut admits)), 0);
        assert!(!admits);
        let far = nx_domain_clock_logical_time_at(fast, i64::MAX, &mut logical);
        assert_eq!(kind(far), INVALID_ARGUMENT);
        let window = nx_domain_clock_admission_window(unpaced, 0, &mut has, &mut first, &mut last);
        assert_eq!((kind(window), has, first, last), (0, false, -50, 20));
        assert_eq!(
            kind(nx_domain_clock_admits(unpaced, 0, 1 << 60, &mut admits)),
            0
        );
        assert!(admits);
        let mut period = 0;
        let paced = nx_domain_clock_paced(
            unpaced,
            &mut period,
            null_mut(),
            null_mut(),
            null_mut(),
            null_mut(),
        );
        assert_eq!(kind(paced), TYPE);
        assert!(!nx_domain_clock_tick(
            unpaced,
            null_mut(),
            null_mut(),
            null_mut(),
            null_mut()
        ));
        nx_domain_clock_release(fast);
        nx_domain_clock_release(unpaced);
        for (state, number) in [
            (DomainClockObservedState::StoppedDomainClock, 1),
            (DomainClockObservedState::UninstalledDomainClock, 2),
        ] {
            let clock = clock(state, None);
            assert_eq!(nx_domain_clock_state(clock), number);
            assert_eq!(
                kind(nx_domain_clock_logical_time_at(clock, 0, &mut logical)),
                TYPE
            );
            assert_eq!(
                kind(nx_domain_clock_wall_duration_until(clock, 0, 0, &mut wait)),
                TYPE
            );
            let window =
                nx_domain_clock_admission_window(clock, 0, &mut has, &mut first, &mut last);
            assert_eq!(kind(window), TYPE);
            assert_eq!(kind(nx_domain_clock_admits(clock, 0, 0, &mut admits)), TYPE);
            nx_domain_clock_release(clock);
        }
    }
}

#[test]
fn null_is_refused_or_nothing() {
    // SAFETY: NULL is what is tested.
    unsafe {
        assert_eq!(access(null()), [INVALID_ARGUMENT; 5]);
        assert_eq!(nx_clock_event_kind_of(null()), 0);
        assert!(nx_clock_event_retain(null_mut()).is_null());
        nx_clock_event_release(null_mut());
        nx_clock_event_domain(null(), null_mut(), null_mut());
        assert_eq!(nx_domain_clock_generation(null()), 0);
        assert_eq!(nx_domain_clock_state(null()), 0);
        assert!(nx_domain_clock_retain(null_mut()).is_null());
        nx_domain_clock_release(null_mut());
        nx_domain_clock_domain(null(), null_mut(), null_mut());
        let none = null_mut();
        assert!(!nx_domain_clock_tick(null(), null_mut(), none, none, none));
        let (mut logical, mut wait, mut flag) = (0, 0, false);
        for refused in [
            kind(nx_domain_clock_paced(
                null(),
                null_mut(),
                null_mut(),
                none,
                none,
                null_mut(),
            )),
            kind(nx_domain_clock_logical_time_at(null(), 0, &mut logical)),
            kind(nx_domain_clock_wall_duration_until(null(), 0, 0, &mut wait)),
            kind(nx_domain_clock_admission_window(
                null(),
                0,
                &mut flag,
                none,
                none,
            )),
            kind(nx_domain_clock_admits(null(), 0, 0, &mut flag)),
        ] {
            assert_eq!(refused, INVALID_ARGUMENT);
        }
        let (mut event, mut clock) = (null_mut(), null_mut());
        for refused in [
            kind(nx_session_next_clock_event(null_mut(), null(), &mut event)),
            kind(nx_session_next_clock_event(null_mut(), null(), null_mut())),
            kind(nx_session_domain_clock(
                null(),
                b"d".as_ptr(),
                1,
                &mut clock,
            )),
            kind(nx_session_domain_clock(null(), null(), 0, null_mut())),
        ] {
            assert_eq!(refused, INVALID_ARGUMENT);
        }
    }
}
