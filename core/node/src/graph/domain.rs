//! A domain: its pace, its generations of time, its models, and who reads its relays.

use std::collections::BTreeMap;

use nervix_wire::types::{DomainInfo, DomainPace, DomainStatus, PacedDomain};

use super::catalog::Catalog;
use super::clock::PacedClock;
use super::delivery::Reader;
use super::{Now, SubscriptionId};
use crate::lang::ast::{Pace, StartAt};

#[derive(Debug)]
pub struct Domain {
    pub name: String,
    pub pace: Pace,
    /// How often the domain was started: the generation of everything that runs in it. Zero before the first START.
    pub start_version: u64,
    pub running: bool,
    /// The clock of the running generation of a paced domain.
    pub clock: Option<PacedClock>,
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
            running: false,
            clock: None,
            catalog: Catalog::default(),
            readers: BTreeMap::new(),
        }
    }

    pub fn info(&self) -> DomainInfo {
        DomainInfo {
            domain: self.name.clone(),
            status: if self.running {
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
    pub fn start(&mut self, now: Now, at: StartAt, rate: f64) {
        self.start_version = self.start_version.saturating_add(1);
        self.running = true;
        self.clock = match self.pace {
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
    }

    pub fn stop(&mut self) {
        self.running = false;
        self.clock = None;
    }

    /// What now() is: nothing while the domain is stopped.
    pub fn time(&self, now: Now) -> Option<i64> {
        match (&self.clock, self.running) {
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
