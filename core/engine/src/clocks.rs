//! The domain clocks a session follows, and what its host has not read of them (K-1 to K-5, B-9).
//!
//! Owns which clock is known, which tick is the newest, and one coalesced set of events a domain. Knows no requests: it is
//! told what was answered and which exchange is lost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use nervix_wire::types::{
    DomainClockAttachmentEndReason, DomainClockObservation, DomainClockObservedState,
    DomainClockTicked,
};

use crate::api::{ClockEvent, ClockEventKind, ConnId};
use crate::projection::{DomainClock, Tick};
use crate::reach::{Backoff, Jitter, BACKGROUND};

/// What an attachment is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// This exchange sends its frames.
    By(ConnId),
    /// No exchange does; it is attached again at this time, or as soon as an exchange is there.
    Waiting(Option<u64>),
}

#[derive(Debug)]
struct Clock {
    domain: Arc<str>,
    held: Held,
    /// An attach that the engine decided on is in flight there.
    attaching: Option<ConnId>,
    /// The host's detach is unanswered, so nothing attaches it again (K-1).
    detaching: bool,
    clock: DomainClockObservation,
    tick: Option<Tick>,
    /// The newest tick of a generation whose clock is not known yet.
    early: Option<(u64, Tick)>,
    backoff: Backoff,
    unread: Unread,
}

/// What waits to be read, in this order.
#[derive(Debug, Default)]
struct Unread {
    interrupted: bool,
    restoration_failed: bool,
    state: bool,
    tick: bool,
    ended: Option<DomainClockAttachmentEndReason>,
}

impl Unread {
    fn any(&self) -> bool {
        self.interrupted
            || self.restoration_failed
            || self.state
            || self.tick
            || self.ended.is_some()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Clocks {
    clocks: BTreeMap<Arc<str>, Clock>,
    /// Attachments that ended with something unread.
    ended: BTreeMap<Arc<str>, Clock>,
    /// Domains with something unread, in the order it came.
    order: VecDeque<Arc<str>>,
}

impl Clocks {
    pub(crate) fn any(&self) -> bool {
        !self.clocks.is_empty()
    }

    pub(crate) fn follows(&self, domain: &str) -> bool {
        self.clocks.contains_key(domain)
    }

    /// The clock as its host may read it now, never older than an event it was given (B-11).
    pub(crate) fn read(&self, domain: &str) -> Option<DomainClock> {
        let clock = self.clocks.get(domain)?;
        Some(DomainClock {
            domain: Arc::clone(&clock.domain),
            clock: clock.clock.clone(),
            tick: clock.tick,
        })
    }

    pub(crate) fn is_held_by(&self, domain: &str, conn: ConnId) -> bool {
        self.clocks
            .get(domain)
            .is_some_and(|clock| clock.held == Held::By(conn))
    }

    /// The host's attach was answered with a clock (K-2).
    pub(crate) fn attached(
        &mut self,
        domain: &str,
        conn: ConnId,
        observed: DomainClockObservation,
        awaited: bool,
    ) {
        let domain: Arc<str> = Arc::from(domain);
        // What an earlier attachment left unread is over. A clock that was interrupted, or whose attach nobody waits for any
        // more, is told, though: its first tick would come out of nothing (B-9).
        let followed = self.clocks.contains_key(&domain);
        self.ended.remove(&domain);
        self.order.retain(|other| *other != domain);
        let clock = Clock {
            domain: Arc::clone(&domain),
            held: Held::By(conn),
            attaching: None,
            detaching: false,
            clock: observed,
            tick: None,
            early: None,
            backoff: Backoff::default(),
            unread: Unread {
                state: followed || !awaited,
                ..Unread::default()
            },
        };
        self.clocks.insert(Arc::clone(&domain), clock);
        self.touch(&domain);
    }

    /// The engine's attach was answered with a clock. Moved from an exchange that still held it, the newest tick of a clock
    /// that stays paced in its generation is kept (K-5).
    pub(crate) fn reattached(
        &mut self,
        domain: &str,
        conn: ConnId,
        observed: DomainClockObservation,
    ) {
        let Some(clock) = self.attaching_on(domain, conn) else {
            return;
        };
        let moved = matches!(clock.held, Held::By(old) if old != conn);
        clock.held = Held::By(conn);
        clock.attaching = None;
        clock.backoff.reset();
        if moved && is_behind(&observed, &clock.clock) {
            // The exchange that held it told more than this one had seen; what this one sees next comes in its own frames.
            return;
        }
        let changed = clock.clock != observed;
        if !moved || clock.clock.generation != observed.generation || !is_paced(&observed) {
            clock.forget_tick();
        }
        clock.clock = observed;
        if !moved || changed {
            clock.unread.state = true;
        }
        self.touch(domain);
    }

    /// The session holds the attachment already: its later frames tell the clock (K-5).
    pub(crate) fn already_attached(&mut self, domain: &str, conn: ConnId) {
        if let Some(clock) = self.attaching_on(domain, conn) {
            clock.held = Held::By(conn);
            clock.attaching = None;
            clock.backoff.reset();
        }
    }

    /// The engine's attach was refused, so the attachment is interrupted from here on, whatever held it before (K-5).
    pub(crate) fn reattach_refused(
        &mut self,
        domain: &str,
        conn: ConnId,
        now: u64,
        jitter: &mut Jitter,
    ) {
        let Some(clock) = self.attaching_on(domain, conn) else {
            return;
        };
        if matches!(clock.held, Held::By(_)) {
            clock.interrupt();
        }
        let wait = clock.backoff.next(BACKGROUND, jitter);
        clock.held = Held::Waiting(Some(now.saturating_add(wait)));
        clock.attaching = None;
        clock.unread.restoration_failed = true;
        self.touch(domain);
    }

    /// The domain does not exist any more, says the answer to the engine's attach (K-5).
    pub(crate) fn not_found(&mut self, domain: &str, conn: ConnId) {
        if self.attaching_on(domain, conn).is_some() {
            self.ended(domain, DomainClockAttachmentEndReason::DomainRemoved);
        }
    }

    /// The clock that an attach in flight on this exchange is for, unless another exchange was asked since.
    fn attaching_on(&mut self, domain: &str, conn: ConnId) -> Option<&mut Clock> {
        self.clocks
            .get_mut(domain)
            .filter(|clock| clock.attaching == Some(conn))
    }

    /// A new exchange is there: every clock is attached on it at once, ahead of all else (D-5).
    pub(crate) fn exchange_opened(&mut self) {
        for clock in self.clocks.values_mut() {
            clock.attaching = None;
            if let Held::Waiting(due) = &mut clock.held {
                *due = None;
            }
        }
    }

    pub(crate) fn attaching(&mut self, domain: &str, conn: ConnId) {
        if let Some(clock) = self.clocks.get_mut(domain) {
            clock.attaching = Some(conn);
        }
    }

    pub(crate) fn detaching(&mut self, domain: &str, detaching: bool) {
        if let Some(clock) = self.clocks.get_mut(domain) {
            clock.detaching = detaching;
        }
    }

    /// Stops following it, with what was unread (K-3).
    pub(crate) fn detached(&mut self, domain: &str) {
        self.clocks.remove(domain);
        self.ended.remove(domain);
        self.order.retain(|other| **other != *domain);
    }

    /// The server ended the attachment.
    pub(crate) fn ended(&mut self, domain: &str, reason: DomainClockAttachmentEndReason) {
        if let Some(mut clock) = self.clocks.remove(domain) {
            clock.forget_tick();
            clock.unread.ended = Some(reason);
            self.ended.insert(Arc::clone(&clock.domain), clock);
            self.touch(domain);
        }
    }

    fn of(&mut self, domain: &str, conn: ConnId) -> Option<&mut Clock> {
        self.clocks
            .get_mut(domain)
            .filter(|clock| clock.held == Held::By(conn))
    }

    /// The server installed a clock (K-3).
    pub(crate) fn observed(
        &mut self,
        domain: &str,
        conn: ConnId,
        observed: DomainClockObservation,
    ) {
        let Some(clock) = self.of(domain, conn) else {
            return;
        };
        let early = clock.early.take();
        if clock.clock.generation != observed.generation || !is_paced(&observed) {
            clock.forget_tick();
        }
        clock.clock = observed;
        clock.unread.state = true;
        if let Some((generation, tick)) = early {
            if generation == clock.clock.generation {
                clock.accept(tick);
            }
        }
        self.touch(domain);
    }

    /// The domain's authority accepted a tick (K-3).
    pub(crate) fn ticked(&mut self, conn: ConnId, ticked: &DomainClockTicked) {
        let Some(clock) = self.of(&ticked.domain, conn) else {
            return;
        };
        let tick = Tick {
            id: ticked.tick_id,
            logical_boundary: ticked.logical_boundary_unix_nanos,
            authority_utc: ticked.authority_utc_unix_nanos,
            serving_logical: ticked.serving_logical_unix_nanos,
        };
        if ticked.generation == clock.clock.generation {
            clock.accept(tick);
        } else if ticked.generation > clock.clock.generation {
            clock.early = Some((ticked.generation, tick));
        }
        self.touch(&ticked.domain);
    }

    /// The exchange is over: its clocks have a gap (K-5).
    pub(crate) fn exchange_lost(&mut self, conn: ConnId) {
        let domains: Vec<Arc<str>> = self.clocks.keys().cloned().collect();
        for domain in domains {
            let Some(clock) = self.clocks.get_mut(&domain) else {
                continue;
            };
            if clock.attaching == Some(conn) {
                clock.attaching = None;
            }
            if clock.held == Held::By(conn) {
                clock.held = Held::Waiting(None);
                clock.interrupt();
                self.touch(&domain);
            } else if let Held::Waiting(due) = &mut clock.held {
                *due = None;
            }
        }
    }

    /// The domains to attach now on the current exchange.
    pub(crate) fn due(&self, now: u64, current: ConnId) -> Vec<Arc<str>> {
        let due = |clock: &&Clock| {
            clock.attaching.is_none()
                && !clock.detaching
                && match clock.held {
                    Held::By(conn) => conn != current,
                    Held::Waiting(due) => due.is_none_or(|due| due <= now),
                }
        };
        self.clocks
            .values()
            .filter(due)
            .map(|clock| Arc::clone(&clock.domain))
            .collect()
    }

    pub(crate) fn next_due(&self) -> Option<u64> {
        self.clocks
            .values()
            .filter_map(|clock| {
                if let Held::Waiting(due) = clock.held {
                    due
                } else {
                    None
                }
            })
            .min()
    }

    /// Whether an exchange still sends a clock that no other one took over.
    pub(crate) fn held_by(&self, conn: ConnId) -> bool {
        self.clocks
            .values()
            .any(|clock| clock.held == Held::By(conn))
    }

    /// The next event of any domain.
    pub(crate) fn take(&mut self) -> Option<ClockEvent> {
        while let Some(domain) = self.order.pop_front() {
            let ended = !self.clocks.contains_key(&domain);
            let clock = if ended {
                self.ended.get_mut(&domain)
            } else {
                self.clocks.get_mut(&domain)
            };
            let kind = clock.and_then(Clock::take);
            let unread = self.clocks.get(&domain).or_else(|| self.ended.get(&domain));
            if unread.is_some_and(|clock| clock.unread.any()) {
                self.order.push_front(Arc::clone(&domain));
            } else {
                self.ended.remove(&domain);
            }
            if let Some(kind) = kind {
                return Some(ClockEvent { domain, kind });
            }
        }
        None
    }

    fn touch(&mut self, domain: &str) {
        let clock = self.clocks.get(domain).or_else(|| self.ended.get(domain));
        if let Some(clock) = clock {
            if clock.unread.any() && !self.order.iter().any(|other| **other == *domain) {
                self.order.push_back(Arc::clone(&clock.domain));
            }
        }
    }
}

impl Clock {
    fn take(&mut self) -> Option<ClockEventKind> {
        let unread = &mut self.unread;
        if std::mem::take(&mut unread.interrupted) {
            Some(ClockEventKind::Interrupted)
        } else if std::mem::take(&mut unread.restoration_failed) {
            Some(ClockEventKind::RestorationFailed)
        } else if std::mem::take(&mut unread.state) {
            Some(ClockEventKind::State(self.clock.clone()))
        } else if let (true, Some(tick)) = (std::mem::take(&mut unread.tick), self.tick) {
            Some(ClockEventKind::Tick {
                generation: self.clock.generation,
                tick,
            })
        } else {
            unread.ended.take().map(ClockEventKind::Ended)
        }
    }

    /// What is unread is over: a gap is told first, and once.
    fn interrupt(&mut self) {
        self.forget_tick();
        self.unread.state = false;
        self.unread.restoration_failed = false;
        self.unread.interrupted = true;
    }

    fn forget_tick(&mut self) {
        self.tick = None;
        self.early = None;
        self.unread.tick = false;
    }

    fn accept(&mut self, tick: Tick) {
        if is_paced(&self.clock) && self.tick.is_none_or(|last| tick.id > last.id) {
            self.tick = Some(tick);
            self.unread.tick = true;
        }
    }
}

/// Whether a clock is one that the other came after: generations count up, and a stopped clock runs again in another one only.
fn is_behind(observed: &DomainClockObservation, known: &DomainClockObservation) -> bool {
    let stopped = |clock: &DomainClockObservation| {
        matches!(clock.state, DomainClockObservedState::StoppedDomainClock)
    };
    observed.generation < known.generation
        || (observed.generation == known.generation && stopped(known) && !stopped(observed))
}

fn is_paced(observed: &DomainClockObservation) -> bool {
    matches!(
        observed.state,
        DomainClockObservedState::PacedDomainClock(_)
    )
}
