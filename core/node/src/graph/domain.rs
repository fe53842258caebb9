//! A domain: its pace, its generations of time, its models, and who reads its relays.

use std::collections::BTreeMap;

use nervix_wire::types::{
    DomainClockObservation, DomainClockObservedState, DomainClockTicked, DomainInfo, DomainPace,
    DomainStatus, PacedDomain, PacedDomainClock, ProducerEndReason,
};

use super::arrays;
use super::branch::Group;
use super::catalog::Catalog;
use super::clock::PacedClock;
use super::delivery::{Reader, Source};
use super::endpoints::Effect;
use super::failure::Failure;
use super::flow::Flow;
use super::ledger::Origin;
use super::relay::RelayBatch;
use super::{Now, SubscriptionId};
use crate::lang::ast::{Pace, StartAt};

#[derive(Debug, Clone)]
pub struct Domain {
    pub name: String,
    pub pace: Pace,
    /// How often the domain was started: the generation of everything that runs in it. Zero before the first START.
    pub start_version: u64,
    /// The clock of the running generation of a paced domain.
    pub clock: Option<PacedClock>,
    /// What runs in the running generation; None while the domain is stopped.
    pub flow: Option<Flow>,
    /// The newest tick of this generation that was told.
    pub ticked: u64,
    /// Set by tests: whoever asks is told that the clock is not installed.
    pub uninstalled: bool,
    pub catalog: Catalog,
    /// Subscriptions by relay, oldest first.
    pub readers: BTreeMap<String, Vec<Reader>>,
}

impl Domain {
    pub fn new(name: String, pace: Pace) -> Self {
        Self {
            name,
            pace,
            start_version: 0,
            clock: None,
            flow: None,
            ticked: 0,
            uninstalled: false,
            catalog: Catalog::default(),
            readers: BTreeMap::new(),
        }
    }

    pub fn running(&self) -> bool {
        self.flow.is_some()
    }

    pub fn info(&self) -> DomainInfo {
        DomainInfo {
            domain: self.name.clone(),
            status: if self.running() {
                DomainStatus::Running
            } else {
                DomainStatus::Stopped
            },
            start_version: self.start_version,
            pace: match self.pace {
                Pace::Unpaced => DomainPace::UnpacedDomain,
                Pace::Paced {
                    period_nanos,
                    skew_nanos,
                } => DomainPace::PacedDomain(PacedDomain {
                    period_nanos,
                    skew_nanos,
                }),
            },
        }
    }

    /// Begins the next generation.
    pub fn start(&mut self, now: Now, at: StartAt, rate: f64) -> Result<(), Failure> {
        let generation = self.start_version.saturating_add(1);
        let clock = match self.pace {
            Pace::Unpaced => None,
            Pace::Paced {
                period_nanos,
                skew_nanos,
            } => Some(PacedClock {
                period_nanos,
                skew_nanos,
                logical_origin: match at {
                    StartAt::Now => now.0,
                    StartAt::Instant(origin) => origin,
                },
                utc_anchor: now.0,
                rate,
            }),
        };
        // Identities of batches must not come again in another process: the moment of the start tells them apart.
        let mut hasher = blake3::Hasher::new();
        hasher.update(&now.0.to_le_bytes());
        hasher.update(&generation.to_le_bytes());
        hasher.update(self.name.as_bytes());
        let seed = *hasher.finalize().as_bytes();
        self.flow = Some(Flow::new(generation, clock, seed, &self.catalog)?);
        self.clock = clock;
        self.start_version = generation;
        self.ticked = 0;
        Ok(())
    }

    /// Ends the running generation, with everything in it.
    pub fn stop(&mut self, reason: ProducerEndReason, message: &str) -> Vec<Effect> {
        self.clock = None;
        match self.flow.take() {
            Some(flow) => flow.end(reason, message),
            None => Vec::new(),
        }
    }

    /// Sets up what was declared since.
    pub fn sync(&mut self) -> Result<(), Failure> {
        match &mut self.flow {
            Some(flow) => flow.sync(&self.catalog),
            None => Ok(()),
        }
    }

    /// Ends what runs on relays that changed, or with a schema that did.
    pub fn end_changed(&mut self, relays: &[String], schema: Option<&str>, message: &str) {
        if let Some(flow) = &mut self.flow {
            flow.end_changed(&self.catalog, relays, schema, message);
        }
    }

    /// The clock as those who follow it learn it.
    pub fn observation(&self) -> DomainClockObservation {
        let state = match (&self.clock, self.running()) {
            (_, false) => DomainClockObservedState::StoppedDomainClock,
            _ if self.uninstalled => DomainClockObservedState::UninstalledDomainClock,
            (None, true) => DomainClockObservedState::UnpacedDomainClock,
            (Some(clock), true) => DomainClockObservedState::PacedDomainClock(PacedDomainClock {
                period_nanos: clock.period_nanos,
                skew_nanos: clock.skew_nanos,
                logical_origin_unix_nanos: clock.logical_origin,
                utc_anchor_unix_nanos: clock.utc_anchor,
                time_rate: clock.rate,
            }),
        };
        DomainClockObservation {
            generation: self.start_version,
            state,
        }
    }

    /// The newest tick, if it is due and was not told yet.
    pub fn tick(&mut self, now: Now) -> Option<DomainClockTicked> {
        let tick = self
            .newest_tick(now)
            .filter(|tick| tick.tick_id > self.ticked)?;
        self.ticked = tick.tick_id;
        Some(tick)
    }

    /// The newest tick that is due, told or not.
    pub fn newest_tick(&self, now: Now) -> Option<DomainClockTicked> {
        let clock = self.clock.filter(|_| !self.uninstalled)?;
        let tick_id = clock.newest_tick(now)?;
        Some(DomainClockTicked {
            domain: self.name.clone(),
            generation: self.start_version,
            tick_id,
            logical_boundary_unix_nanos: clock.boundary(tick_id)?,
            authority_utc_unix_nanos: now.0,
            serving_logical_unix_nanos: clock.logical_time_at(now)?,
        })
    }

    /// When the next tick is due.
    pub fn next_tick_at(&self, now: Now) -> Option<Now> {
        let clock = self.clock.filter(|_| !self.uninstalled)?;
        let next = clock.newest_tick(now)?.max(self.ticked).checked_add(1)?;
        let wait = clock.wall_duration_until(now, clock.boundary(next)?)?;
        Some(now.after(wait))
    }

    /// Hands a published batch to the relay's emitters.
    pub fn publish(
        &mut self,
        relay: &str,
        source: &Source,
        groups: &[Group],
    ) -> Result<(), String> {
        let Some(flow) = &mut self.flow else {
            return Ok(());
        };
        let batches = groups
            .iter()
            .map(|group| {
                let rows = arrays::select(&source.batch, &group.rows)
                    .map_err(|error| error.to_string())?;
                let origins = vec![Origin {
                    submission: None,
                    rows: rows.num_rows(),
                }];
                Ok(RelayBatch::new(
                    rows,
                    &source.fields,
                    group.key.clone(),
                    origins,
                ))
            })
            .collect::<Result<Vec<_>, String>>()?;
        flow.publish(relay, batches);
        Ok(())
    }

    /// What now() is: nothing while the domain is stopped.
    pub fn time(&self, now: Now) -> Option<i64> {
        match (&self.clock, self.running()) {
            (_, false) => None,
            (None, true) => Some(now.0),
            (Some(clock), true) => clock.logical_time_at(now),
        }
    }

    /// Ends every subscription to a relay.
    pub fn end_readers(&mut self, relay: &str) -> Vec<SubscriptionId> {
        self.readers
            .remove(relay)
            .unwrap_or_default()
            .into_iter()
            .map(|reader| reader.id)
            .collect()
    }

    pub fn remove_reader(&mut self, id: SubscriptionId) -> bool {
        let mut found = false;
        for readers in self.readers.values_mut() {
            readers.retain(|reader| {
                found |= reader.id == id;
                reader.id != id
            });
        }
        self.readers.retain(|_, readers| !readers.is_empty());
        found
    }
}
