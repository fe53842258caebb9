//! Domain clocks of the model, and what a host may see of them.

use std::collections::BTreeMap;

use nervix_engine::{ClockEvent, ClockEventKind, ConnId};
use nervix_wire::types::*;

use crate::cluster::{Answer, Cluster, Odds};
use crate::common::frames::*;
use crate::common::{Rng, MS};
use crate::world::{Happening, World};

pub const DOMAINS: [&str; 2] = ["d0", "d1"];

/// The clock of one domain.
#[derive(Debug, Clone)]
pub struct Clock {
    pub exists: bool,
    pub generation: u64,
    pub running: bool,
    pub paced: bool,
    /// The newest tick of the generation; 0 before the first.
    pub tick: u64,
}

impl Clock {
    pub fn all() -> BTreeMap<String, Clock> {
        DOMAINS
            .iter()
            .map(|domain| {
                let clock = Clock {
                    exists: true,
                    generation: 1,
                    running: true,
                    paced: true,
                    tick: 1,
                };
                ((*domain).to_owned(), clock)
            })
            .collect()
    }

    fn observation(&self) -> DomainClockObservation {
        let state = match (self.running, self.paced) {
            (false, _) => DomainClockObservedState::StoppedDomainClock,
            (true, false) => DomainClockObservedState::UnpacedDomainClock,
            (true, true) => paced(),
        };
        clock(self.generation, state)
    }
}

/// How far a clock has come: generations grow, and each is stopped at most once.
fn age(observation: &DomainClockObservation) -> (u64, bool) {
    (
        observation.generation,
        observation.state == DomainClockObservedState::StoppedDomainClock,
    )
}

fn is_paced(observation: &DomainClockObservation) -> bool {
    matches!(
        observation.state,
        DomainClockObservedState::PacedDomainClock(_)
    )
}

impl Cluster {
    pub fn attach_clock(
        &mut self,
        rng: &mut Rng,
        odds: &Odds,
        conn: ConnId,
        domain: &str,
    ) -> Answer {
        let clock = &self.clocks[domain];
        if !clock.exists {
            return Answer::now(clock_domain_not_found(domain));
        }
        let session = self.sessions.get_mut(&conn).unwrap();
        if session.clocks.contains(domain) {
            return Answer::now(clock_already_attached(domain));
        }
        if session.transaction.is_some() || rng.chance(odds.not_opened) {
            return Answer::now(clock_attach_failed("not now"));
        }
        session.clocks.insert(domain.to_owned());
        Answer::now(clock_attached(domain, clock.observation()))
    }

    pub fn detach_clock(
        &mut self,
        rng: &mut Rng,
        odds: &Odds,
        conn: ConnId,
        domain: &str,
    ) -> Answer {
        let session = self.sessions.get_mut(&conn).unwrap();
        if session.transaction.is_some() || rng.chance(odds.not_opened / 5.0) {
            return Answer::now(clock_detach_failed("not now"));
        }
        if session.clocks.remove(domain) {
            Answer::now(clock_detached(domain))
        } else {
            Answer::now(clock_not_attached(domain))
        }
    }
}

/// What the host knows of one domain's clock.
#[derive(Debug, Default)]
pub struct Known {
    /// The clock that ticks are held to.
    clock: Option<DomainClockObservation>,
    /// The newest tick of that generation.
    tick: u64,
    /// A gap was told, and the restored clock was not.
    pub gap: bool,
    /// An attach was answered in the gap.
    bridged: bool,
    /// Nothing comes until the next attach.
    ended: bool,
}

impl World {
    fn tell_followers(&mut self, domain: &str, frame: &[u8]) {
        let conns: Vec<ConnId> = self
            .cluster
            .sessions
            .iter()
            .filter(|(_, session)| session.clocks.contains(domain))
            .map(|(conn, _)| *conn)
            .collect();
        for conn in conns {
            // Behind the reply that attached it.
            self.at(self.now, Happening::Put(conn, vec![frame.to_vec()]));
        }
    }

    pub fn tick(&mut self, domain: &str) {
        let clock = self.cluster.clocks.get_mut(domain).unwrap();
        if !(clock.exists && clock.running && clock.paced) {
            return;
        }
        clock.tick += self.rng.within(1, 4);
        let frame = clock_ticked(domain, clock.generation, clock.tick);
        self.tell_followers(domain, &frame);
    }

    /// The newest of a clock that a session has just attached.
    pub fn first_tick(&mut self, conn: ConnId, domain: &str) {
        let clock = &self.cluster.clocks[domain];
        if clock.running && clock.paced && clock.tick > 0 && self.rng.chance(70.0) {
            let frame = clock_ticked(domain, clock.generation, clock.tick);
            self.at(self.now, Happening::Put(conn, vec![frame]));
        }
    }

    pub fn set_running(&mut self, domain: &str, running: bool) {
        let paced = self.rng.chance(85.0);
        let clock = self.cluster.clocks.get_mut(domain).unwrap();
        if clock.running == running || !clock.exists {
            return;
        }
        clock.running = running;
        if running {
            clock.generation += self.rng.within(1, 3);
            clock.paced = paced;
            clock.tick = 0;
        }
        let frame = clock_observed(domain, clock.observation());
        self.tell_followers(domain, &frame);
        if !running && domain == "d0" {
            self.end_all_endpoints();
        }
    }

    pub fn move_clocks(&mut self) {
        let wait = self.rng.within(20 * MS, 400 * MS);
        self.at(self.now + wait, Happening::Clocks);
        if self.calm {
            return;
        }
        let domain = DOMAINS[self.rng.index(2)];
        match self.rng.within(0, 60) {
            0 => self.set_running(domain, false),
            1 | 6 if domain == "d1" => self.set_running(domain, false),
            1..=3 => self.set_running(domain, true),
            4 | 7 if domain == "d1" => {
                // The domain goes, and comes again later.
                let clock = self.cluster.clocks.get_mut(domain).unwrap();
                clock.exists = !clock.exists;
                if clock.exists {
                    clock.generation += 1;
                    (clock.running, clock.paced, clock.tick) = (true, true, 0);
                } else {
                    self.tell_followers(domain, &clock_ended(domain));
                    for session in self.cluster.sessions.values_mut() {
                        session.clocks.remove(domain);
                    }
                }
            }
            5 => {
                // About an attachment that nobody has.
                let conns: Vec<ConnId> = self.cluster.sessions.keys().copied().collect();
                if let Some(conn) = conns.first() {
                    self.put(*conn, clock_ticked("nowhere", 1, 1));
                }
            }
            _ => self.tick(domain),
        }
    }

    /// The host's attach is done: it reads the clock before it uses a tick (B-11).
    pub fn attached(&mut self, domain: &str) {
        let read = self
            .engine
            .domain_clock(domain)
            .expect("the attach's reply carried a clock");
        let known = self.host.clocks.entry(domain.to_owned()).or_default();
        *known = Known {
            // Its newest tick may be read already, and not yet told.
            clock: Some(read.clock),
            // The answer ends the gap, and what was said of that gap before may be read yet.
            bridged: known.gap || known.bridged,
            ..Known::default()
        };
        if !self.wants_detach(domain) {
            self.watch.kept_clocks.insert(domain.to_owned());
        }
    }

    pub fn clock_event(&mut self, event: ClockEvent) {
        self.counts.clock_events += 1;
        let domain = event.domain.to_string();
        let read = self.engine.domain_clock(&domain);
        let running = self.runs_attach(&domain);
        let known = self.host.clocks.entry(domain.clone()).or_default();
        if !running {
            assert!(
                known.clock.is_some() && !known.ended,
                "{event:?} about a clock that is not followed (K-2)"
            );
        }
        match event.kind {
            ClockEventKind::State(clock) => {
                let before = known.clock.as_ref().map(age);
                assert!(
                    before.is_none_or(|before| before <= age(&clock)),
                    "{clock:?} after {before:?}"
                );
                if let Some(read) = read {
                    assert!(
                        age(&read.clock) >= age(&clock),
                        "a read older than an event (B-11)"
                    );
                }
                if known.gap || before.map(|age| age.0) != Some(clock.generation) {
                    known.tick = 0;
                }
                known.gap = false;
                known.bridged = false;
                known.ended = false;
                known.clock = Some(clock);
            }
            ClockEventKind::Tick { generation, tick } => {
                assert!(
                    !known.gap || self.watch.already_attached.contains(&domain),
                    "a tick from before a gap, or of no known clock (K-5)"
                );
                if known.gap {
                    known.tick = 0;
                }
                known.gap = false;
                known.bridged = false;
                if let Some(clock) = &known.clock {
                    assert!(
                        running || (clock.generation == generation && is_paced(clock)),
                        "a tick of {generation} under {clock:?} (K-2)"
                    );
                }
                assert!(
                    running || tick.id > known.tick,
                    "tick {} after {} (K-3)",
                    tick.id,
                    known.tick
                );
                assert_eq!(tick.logical_boundary, (tick.id as i64 - 1) * 1_000_000_000);
                if let Some(read) = read {
                    let newer = read.clock.generation > generation
                        || read.tick.is_some_and(|newest| newest.id >= tick.id)
                        || !is_paced(&read.clock);
                    assert!(newer, "a read older than an event (B-11)");
                }
                known.tick = tick.id;
                self.counts.ticks += 1;
            }
            ClockEventKind::Ended(_) => {
                known.ended = true;
                known.gap = false;
                self.counts.clock_ends += 1;
            }
            ClockEventKind::Interrupted => {
                known.gap = true;
                self.counts.clock_gaps += 1;
            }
            ClockEventKind::RestorationFailed => {
                assert!(
                    known.gap || known.bridged,
                    "a failed restoration of what was not lost"
                );
            }
        }
    }

    /// Without faults: what the engine follows is what the server holds, and it ticks.
    pub fn settle_clocks(&mut self) {
        let held: Vec<String> = self
            .cluster
            .sessions
            .values()
            .flat_map(|session| session.clocks.iter().cloned())
            .collect();
        for domain in DOMAINS {
            assert_eq!(
                self.engine.domain_clock(domain).is_some(),
                held.iter().any(|other| other == domain),
                "{domain} followed here and there"
            );
            self.set_running(domain, true);
        }
        self.read_for(2 * crate::common::SEC);
        for domain in held {
            let clock = self.cluster.clocks[&domain].clone();
            if clock.paced {
                self.tick(&domain);
                self.read_for(2 * crate::common::SEC);
            }
            let read = self.engine.domain_clock(&domain).unwrap();
            let clock = &self.cluster.clocks[&domain];
            assert_eq!(read.clock, clock.observation());
            if clock.paced {
                assert_eq!(read.tick.unwrap().id, clock.tick, "a tick that never came");
                let known = &self.host.clocks[&domain];
                assert_eq!(known.tick, clock.tick, "a tick nobody was told of");
            }
        }
    }
}
