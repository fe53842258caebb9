//! Domain clocks: nx_clock_event, nx_domain_clock.
//!
//! Owns the numbers of clock events and states, and which accessor an event has. Knows nothing of how clocks project.

use std::sync::Arc;

use nervix_engine::{ClockEvent, ClockEventKind, DomainClock, Error, ProjectionError, Tick};
use nervix_wire::types::{
    DomainClockAttachmentEndReason, DomainClockObservedState, PacedDomainClock,
};

use crate::arguments::{
    contained, guarded, invalid, may_block, object, put, put_buffer, required_text, Outcome, Place,
};
use crate::cancel::{token, CancelObject};
use crate::counted::{self, hand_out};
use crate::errors::ErrorObject;
use crate::event::mistyped;
use crate::session::SessionObject;

fn state_number(state: &DomainClockObservedState) -> i32 {
    match state {
        DomainClockObservedState::StoppedDomainClock => 1,
        DomainClockObservedState::UninstalledDomainClock => 2,
        DomainClockObservedState::UnpacedDomainClock => 3,
        DomainClockObservedState::PacedDomainClock(_) => 4,
    }
}

/// The places for what a paced clock is made of; each may be NULL.
struct PacedPlaces {
    period_nanos: *mut u64,
    skew_nanos: *mut u64,
    logical_origin: *mut i64,
    utc_anchor: *mut i64,
    time_rate: *mut f64,
}

impl PacedPlaces {
    /// # Safety
    /// Every place that is not NULL can be written to.
    unsafe fn write(self, paced: &PacedDomainClock) {
        // SAFETY: the caller's promise.
        unsafe {
            put(self.period_nanos, paced.period_nanos);
            put(self.skew_nanos, paced.skew_nanos);
            put(self.logical_origin, paced.logical_origin_unix_nanos);
            put(self.utc_anchor, paced.utc_anchor_unix_nanos);
            put(self.time_rate, paced.time_rate);
        }
    }
}

/// The places for what a tick is made of; each may be NULL.
struct TickPlaces {
    id: *mut u64,
    logical_boundary: *mut i64,
    authority_utc: *mut i64,
    serving_logical: *mut i64,
}

impl TickPlaces {
    /// # Safety
    /// Every place that is not NULL can be written to.
    unsafe fn write(self, tick: &Tick) {
        // SAFETY: the caller's promise.
        unsafe {
            put(self.id, tick.id);
            put(self.logical_boundary, tick.logical_boundary);
            put(self.authority_utc, tick.authority_utc);
            put(self.serving_logical, tick.serving_logical);
        }
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_session_next_clock_event(
    session: *mut SessionObject,
    cancel: *const CancelObject,
    out: *mut *mut ClockEvent,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        // SAFETY: the host passes a session of this library, or NULL.
        let session = &unsafe { object("session", session) }?.session;
        may_block()?;
        // SAFETY: the host passes a token of this library, or NULL.
        let cancel = unsafe { token(cancel) };
        let event = session.next_clock_event(cancel.as_ref())?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(hand_out(Arc::new(event))) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_clock_event_kind_of(event: *const ClockEvent) -> i32 {
    // SAFETY: the host passes a clock event of this library, or NULL.
    contained(0, || {
        match unsafe { event.as_ref() }.map(|event| &event.kind) {
            None => 0,
            Some(ClockEventKind::State(_)) => 1,
            Some(ClockEventKind::Tick { .. }) => 2,
            Some(ClockEventKind::Ended(_)) => 3,
            Some(ClockEventKind::Interrupted) => 4,
            Some(ClockEventKind::RestorationFailed) => 5,
        }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_clock_event_domain(
    event: *const ClockEvent,
    domain: *mut *const u8,
    domain_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes a clock event of this library, or NULL.
        let text = unsafe { event.as_ref() }.map_or("", |event| &event.domain);
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(domain, domain_len, text.as_bytes()) }
    });
}

fn not_of(what: &str) -> Error {
    mistyped(format!(
        "the clock event carries no {what}: look at its kind first"
    ))
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_clock_event_generation(
    event: *const ClockEvent,
    generation: *mut u64,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a clock event of this library, or NULL.
        let event = unsafe { object("event", event) }?;
        let out = Place::new("generation", generation)?;
        let number = match &event.kind {
            ClockEventKind::State(clock) => clock.generation,
            ClockEventKind::Tick { generation, .. } => *generation,
            _ => return Err(not_of("generation")),
        };
        // SAFETY: the host's place can be written to.
        unsafe { out.write(number) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_clock_event_state(
    event: *const ClockEvent,
    state: *mut i32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a clock event of this library, or NULL.
        let event = unsafe { object("event", event) }?;
        let out = Place::new("state", state)?;
        let ClockEventKind::State(clock) = &event.kind else {
            return Err(not_of("state"));
        };
        // SAFETY: the host's place can be written to.
        unsafe { out.write(state_number(&clock.state)) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_clock_event_paced(
    event: *const ClockEvent,
    period_nanos: *mut u64,
    skew_nanos: *mut u64,
    logical_origin: *mut i64,
    utc_anchor: *mut i64,
    time_rate: *mut f64,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a clock event of this library, or NULL.
        let event = unsafe { object("event", event) }?;
        let paced = match &event.kind {
            ClockEventKind::State(clock) => match &clock.state {
                DomainClockObservedState::PacedDomainClock(paced) => paced,
                _ => return Err(not_of("pace")),
            },
            _ => return Err(not_of("pace")),
        };
        let places = PacedPlaces {
            period_nanos,
            skew_nanos,
            logical_origin,
            utc_anchor,
            time_rate,
        };
        // SAFETY: the host's places can be written to.
        unsafe { places.write(paced) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_clock_event_tick(
    event: *const ClockEvent,
    tick_id: *mut u64,
    logical_boundary: *mut i64,
    authority_utc: *mut i64,
    serving_logical: *mut i64,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a clock event of this library, or NULL.
        let event = unsafe { object("event", event) }?;
        let ClockEventKind::Tick { tick, .. } = &event.kind else {
            return Err(not_of("tick"));
        };
        let places = TickPlaces {
            id: tick_id,
            logical_boundary,
            authority_utc,
            serving_logical,
        };
        // SAFETY: the host's places can be written to.
        unsafe { places.write(tick) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_clock_event_end_reason(
    event: *const ClockEvent,
    reason: *mut i32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a clock event of this library, or NULL.
        let event = unsafe { object("event", event) }?;
        let out = Place::new("reason", reason)?;
        let number = match &event.kind {
            ClockEventKind::Ended(DomainClockAttachmentEndReason::DomainRemoved) => 1,
            _ => return Err(not_of("end")),
        };
        // SAFETY: the host's place can be written to.
        unsafe { out.write(number) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_clock_event_retain(event: *mut ClockEvent) -> *mut ClockEvent {
    // SAFETY: the host passes a clock event of this library that it holds, or NULL.
    unsafe { counted::retain(event) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_clock_event_release(event: *mut ClockEvent) {
    // SAFETY: the host passes a clock event of this library that it holds, or NULL.
    unsafe { counted::release(event) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_session_domain_clock(
    session: *const SessionObject,
    domain: *const u8,
    domain_len: usize,
    out: *mut *mut DomainClock,
) -> *mut ErrorObject {
    guarded(|| {
        let out = Place::new("out", out)?;
        // SAFETY: the host passes a session of this library, or NULL, and buffers that are readable during the call.
        let (session, domain) = unsafe {
            (
                &object("session", session)?.session,
                required_text("domain", domain, domain_len)?,
            )
        };
        may_block()?;
        let clock = session.domain_clock(domain)?;
        let handle = clock.map_or(std::ptr::null_mut(), |clock| hand_out(Arc::new(clock)));
        // SAFETY: the host's place can be written to.
        unsafe { out.write(handle) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_domain_clock_domain(
    clock: *const DomainClock,
    domain: *mut *const u8,
    domain_len: *mut usize,
) {
    contained((), || {
        // SAFETY: the host passes a clock of this library, or NULL.
        let text = unsafe { clock.as_ref() }.map_or("", |clock| &clock.domain);
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(domain, domain_len, text.as_bytes()) }
    });
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_domain_clock_generation(clock: *const DomainClock) -> u64 {
    // SAFETY: the host passes a clock of this library, or NULL.
    contained(0, || {
        unsafe { clock.as_ref() }.map_or(0, |clock| clock.clock.generation)
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_domain_clock_state(clock: *const DomainClock) -> i32 {
    // SAFETY: the host passes a clock of this library, or NULL.
    contained(0, || {
        unsafe { clock.as_ref() }.map_or(0, |clock| state_number(&clock.clock.state))
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_domain_clock_paced(
    clock: *const DomainClock,
    period_nanos: *mut u64,
    skew_nanos: *mut u64,
    logical_origin: *mut i64,
    utc_anchor: *mut i64,
    time_rate: *mut f64,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a clock of this library, or NULL.
        let clock = unsafe { object("clock", clock) }?;
        let DomainClockObservedState::PacedDomainClock(paced) = &clock.clock.state else {
            return Err(mistyped("the clock is not paced: look at its state first"));
        };
        let places = PacedPlaces {
            period_nanos,
            skew_nanos,
            logical_origin,
            utc_anchor,
            time_rate,
        };
        // SAFETY: the host's places can be written to.
        unsafe { places.write(paced) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_domain_clock_tick(
    clock: *const DomainClock,
    tick_id: *mut u64,
    logical_boundary: *mut i64,
    authority_utc: *mut i64,
    serving_logical: *mut i64,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes a clock of this library, or NULL.
        let Some(tick) = unsafe { clock.as_ref() }.and_then(|clock| clock.tick.as_ref()) else {
            return false;
        };
        let places = TickPlaces {
            id: tick_id,
            logical_boundary,
            authority_utc,
            serving_logical,
        };
        // SAFETY: the host's places can be written to.
        unsafe { places.write(tick) };
        true
    })
}

fn projected<T>(result: Result<T, ProjectionError>) -> Outcome<T> {
    result.map_err(|error| match error {
        ProjectionError::NoTime => mistyped(error.to_string()),
        ProjectionError::OutOfRange => invalid(error.to_string()),
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_domain_clock_logical_time_at(
    clock: *const DomainClock,
    utc: i64,
    logical: *mut i64,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a clock of this library, or NULL.
        let clock = unsafe { object("clock", clock) }?;
        let out = Place::new("logical", logical)?;
        let instant = projected(clock.logical_time_at(utc))?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(instant) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_domain_clock_wall_duration_until(
    clock: *const DomainClock,
    utc: i64,
    target: i64,
    wait_nanos: *mut u64,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a clock of this library, or NULL.
        let clock = unsafe { object("clock", clock) }?;
        let out = Place::new("wait_nanos", wait_nanos)?;
        let wait = projected(clock.wall_duration_until(utc, target))?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(wait) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_domain_clock_admission_window(
    clock: *const DomainClock,
    utc: i64,
    has_window: *mut bool,
    earliest_center: *mut i64,
    latest_center: *mut i64,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a clock of this library, or NULL.
        let clock = unsafe { object("clock", clock) }?;
        let out = Place::new("has_window", has_window)?;
        let window = projected(clock.admission_window(utc))?;
        // SAFETY: the host's places can be written to.
        unsafe {
            out.write(window.is_some());
            if let Some((earliest, latest)) = window {
                put(earliest_center, earliest);
                put(latest_center, latest);
            }
        }
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_domain_clock_admits(
    clock: *const DomainClock,
    utc: i64,
    event: i64,
    admitted: *mut bool,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a clock of this library, or NULL.
        let clock = unsafe { object("clock", clock) }?;
        let out = Place::new("admitted", admitted)?;
        let admits = projected(clock.admits(utc, event))?;
        // SAFETY: the host's place can be written to.
        unsafe { out.write(admits) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_domain_clock_retain(clock: *mut DomainClock) -> *mut DomainClock {
    // SAFETY: the host passes a clock of this library that it holds, or NULL.
    unsafe { counted::retain(clock) }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_domain_clock_release(clock: *mut DomainClock) {
    // SAFETY: the host passes a clock of this library that it holds, or NULL.
    unsafe { counted::release(clock) }
}
