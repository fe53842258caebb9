//! Ingestors and emitters of the model: attachments, credit, batches counted by their content, and deliveries.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use nervix_engine::ConnId;
use nervix_wire::types::*;

use crate::cluster::Cluster;
use crate::common::frames::*;
use crate::common::MS;
use crate::world::{Happening, World};

pub const BACKOFF: u64 = 50 * MS;
pub const MAX_BACKOFF: u64 = 200 * MS;

/// One producer or consumer on one session, under the identity of its open.
#[derive(Debug)]
pub struct Attachment {
    pub name: String,
    pub side: Side,
    /// The close that waits for the last outcome.
    closing: Option<u64>,
}

#[derive(Debug)]
pub enum Side {
    Producer {
        admission: ProducerAdmission,
        batches: u32,
        bytes: u64,
        /// What was received and has no outcome: request, and size.
        held: BTreeMap<u64, u64>,
    },
    Consumer {
        parked: Option<u64>,
        /// The identity of each unsettled attempt, by its reference.
        unsettled: BTreeMap<u64, u64>,
        settled: BTreeSet<u64>,
    },
}

/// What became of one content.
#[derive(Debug, Default)]
pub struct Content {
    /// What the server said last about it, and did not deliver yet, or did.
    pub admitted: u32,
    pub completed: u32,
}

#[derive(Debug, Default)]
pub struct Endpoints {
    /// How often each endpoint was altered.
    versions: BTreeMap<String, u8>,
    pub contents: HashMap<Bytes, Content>,
    /// Identities that wait to be delivered.
    queues: BTreeMap<String, VecDeque<u64>>,
    /// Every identity that an emitter produced, and those that are done with.
    pub produced: BTreeMap<String, BTreeSet<u64>>,
    pub done: BTreeSet<u64>,
    pub acknowledged: BTreeSet<u64>,
    /// The attachment that each reference came through.
    pub references: HashMap<u64, (ConnId, u64)>,
    next: u64,
}

impl Cluster {
    fn contract(&self, name: &str) -> (u64, Fingerprint) {
        let version = self.endpoints.versions.get(name).copied().unwrap_or(0);
        let digest = Fingerprint {
            bytes: [version; 32],
        };
        (self.clocks["d0"].generation, digest)
    }

    /// A session is over: what was delivered and not settled comes again.
    pub fn release_endpoints(&mut self, conn: ConnId) {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        for (_, attachment) in std::mem::take(&mut session.endpoints) {
            self.give_back(attachment);
        }
    }

    fn give_back(&mut self, attachment: Attachment) {
        if let Side::Consumer { unsettled, .. } = attachment.side {
            let queue = self.endpoints.queues.entry(attachment.name).or_default();
            for identity in unsettled.into_values() {
                queue.push_front(identity);
            }
        }
    }
}

fn number(bytes: &[u8; 16]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

impl World {
    fn reply(&mut self, conn: ConnId, id: u64, body: ReplyBody) {
        self.at(self.now, Happening::Put(conn, vec![reply(id, body)]));
    }

    fn attachment(&mut self, conn: ConnId, wire: u64) -> Option<&mut Attachment> {
        self.cluster
            .sessions
            .get_mut(&conn)?
            .endpoints
            .get_mut(&wire)
    }

    /// Serves what concerns endpoints; false when it is something else.
    pub fn serve_endpoint(&mut self, conn: ConnId, id: u64, request: &ClientRequest) -> bool {
        match request {
            ClientRequest::OpenIngestorRequest(open) => {
                let refusal = self.refusal();
                let body = match refusal {
                    Some(true) => producer_refused(ProducerRefusal::DomainStopped),
                    Some(false) => producer_refused(ProducerRefusal::EndpointUnavailable),
                    None => {
                        let admission = if self.rng.chance(85.0) || self.calm {
                            ProducerAdmission::Open
                        } else {
                            ProducerAdmission::Suspended
                        };
                        let (generation, contract) = self.cluster.contract(&open.ingestor);
                        let opened = ProducerOpened {
                            generation,
                            contract,
                            retry_backoff_nanos: BACKOFF,
                            retry_max_backoff_nanos: MAX_BACKOFF,
                            granted_batches: open.max_outstanding_batches,
                            granted_bytes: open.max_outstanding_bytes,
                            max_batch_bytes: open.max_outstanding_bytes,
                            admission,
                            ..ingestor(&open.domain, &open.ingestor)
                        };
                        let side = Side::Producer {
                            admission,
                            batches: opened.granted_batches,
                            bytes: opened.granted_bytes,
                            held: BTreeMap::new(),
                        };
                        self.attach(conn, id, &open.ingestor, side);
                        producer_opened(opened)
                    }
                };
                self.reply(conn, id, body);
                if refusal.is_none() && !self.calm && self.rng.chance(20.0) {
                    // Right behind the reply (P-2).
                    self.toggle(conn, id);
                }
            }
            ClientRequest::OpenEmitterRequest(open) => {
                let body = match self.refusal() {
                    Some(true) => consumer_refused(EmitterOpenRefusal::DomainStopped),
                    Some(false) => consumer_refused(EmitterOpenRefusal::EndpointUnavailable),
                    None => {
                        let (generation, contract) = self.cluster.contract(&open.emitter);
                        let side = Side::Consumer {
                            parked: None,
                            unsettled: BTreeMap::new(),
                            settled: BTreeSet::new(),
                        };
                        self.attach(conn, id, &open.emitter, side);
                        consumer_opened(EmitterOpened {
                            generation,
                            contract,
                            ..emitter(&open.domain, &open.emitter)
                        })
                    }
                };
                self.reply(conn, id, body);
            }
            ClientRequest::SubmitBatchRequest(submit) => self.receive_batch(conn, id, submit),
            ClientRequest::ReadEmitterBatchRequest(read) => {
                match self.attachment(conn, read.consumer) {
                    Some(Attachment {
                        name,
                        side: Side::Consumer { parked, .. },
                        ..
                    }) => {
                        assert!(parked.is_none(), "two parked reads (EC-2)");
                        *parked = Some(id);
                        let name = name.clone();
                        self.serve_reads(&name);
                    }
                    _ => self.reply(conn, id, consumer_ended()),
                }
            }
            ClientRequest::SettleEmitterBatchRequest(settle) => {
                let body = self.settle_batch(conn, settle);
                self.reply(conn, id, settled(body));
            }
            ClientRequest::CloseIngestorRequest(close) => {
                match self.attachment(conn, close.producer) {
                    Some(attachment) => {
                        attachment.closing = Some(id);
                        self.close_when_idle(conn, close.producer);
                    }
                    None => self.reply(conn, id, producer_not_open()),
                }
            }
            ClientRequest::CloseEmitterRequest(close) => {
                let held = self
                    .cluster
                    .sessions
                    .get_mut(&conn)
                    .and_then(|session| session.endpoints.remove(&close.consumer));
                let disposition = match held {
                    Some(attachment) => {
                        if let Side::Consumer {
                            parked: Some(read), ..
                        } = &attachment.side
                        {
                            self.reply(conn, *read, consumer_ended());
                        }
                        self.cluster.give_back(attachment);
                        EmitterCloseDisposition::Closed
                    }
                    None => EmitterCloseDisposition::NotOpen,
                };
                self.reply(conn, id, consumer_closed(disposition));
            }
            _ => return false,
        }
        true
    }

    /// Some(true) when the domain is stopped, Some(false) when the endpoint cannot be had now.
    fn refusal(&mut self) -> Option<bool> {
        if !self.cluster.clocks["d0"].running {
            return Some(true);
        }
        self.rng.chance(self.odds.not_opened).then_some(false)
    }

    fn attach(&mut self, conn: ConnId, wire: u64, name: &str, side: Side) {
        let attachment = Attachment {
            name: name.to_owned(),
            side,
            closing: None,
        };
        let session = self.cluster.sessions.get_mut(&conn).unwrap();
        session.endpoints.insert(wire, attachment);
    }

    fn receive_batch(&mut self, conn: ConnId, id: u64, submit: &SubmitBatchRequest) {
        let size = submit.batch.len() as u64;
        let Some(Attachment {
            side:
                Side::Producer {
                    admission,
                    batches,
                    bytes,
                    held,
                },
            ..
        }) = self.attachment(conn, submit.producer)
        else {
            let refusal = batch_refused(SubmissionRefusal::ProducerEnded);
            return self.reply(conn, id, refusal);
        };
        assert!(
            held.len() < *batches as usize && held.values().sum::<u64>() + size <= *bytes,
            "credit exceeded (P-4)"
        );
        held.insert(id, size);
        let suspended = *admission == ProducerAdmission::Suspended;
        let rough = 30;
        let body = match self.rng.within(0, 100) {
            _ if suspended => batch_refused(SubmissionRefusal::Suspended),
            _ if self.calm => {
                self.admit(&submit.batch, true);
                batch_completed()
            }
            n if n < rough / 3 => batch_refused(SubmissionRefusal::Busy),
            n if n < rough / 3 + 3 => batch_refused(SubmissionRefusal::InvalidData),
            n if n < rough / 3 + 5 => batch_refused(SubmissionRefusal::Draining),
            n if n < rough => {
                self.admit(&submit.batch, false);
                match self.rng.within(0, 4) {
                    0 => batch_failed(ProcessingFailure::AckTimedOut),
                    1 => batch_failed(ProcessingFailure::Rejected),
                    2 => batch_unknown(OutcomeUncertainty::Interrupted),
                    _ => batch_unknown(OutcomeUncertainty::OwnerLost),
                }
            }
            _ => {
                self.admit(&submit.batch, true);
                batch_completed()
            }
        };
        let delay = if self.rng.chance(60.0) {
            self.rng.within(0, 20 * MS)
        } else {
            self.rng.within(0, 1500 * MS)
        };
        let at = self.now + delay;
        self.at(
            at,
            Happening::Outcome(conn, submit.producer, id, Box::new(body)),
        );
    }

    fn admit(&mut self, batch: &Bytes, completed: bool) {
        let content = self
            .cluster
            .endpoints
            .contents
            .entry(batch.clone())
            .or_default();
        content.admitted += 1;
        content.completed += u32::from(completed);
        assert_eq!(content.admitted, 1, "admitted twice: {batch:?} (P-5)");
    }

    /// A batch has its outcome, unless its producer ended before.
    pub fn outcome_of_batch(&mut self, conn: ConnId, wire: u64, id: u64, body: ReplyBody) {
        if let Some(Attachment {
            side: Side::Producer { held, .. },
            ..
        }) = self.attachment(conn, wire)
        {
            if held.remove(&id).is_some() {
                self.reply(conn, id, body);
                self.close_when_idle(conn, wire);
            }
        }
    }

    fn close_when_idle(&mut self, conn: ConnId, wire: u64) {
        if let Some(Attachment {
            side: Side::Producer { held, .. },
            closing: Some(close),
            ..
        }) = self.attachment(conn, wire)
        {
            if held.is_empty() {
                let close = *close;
                let session = self.cluster.sessions.get_mut(&conn).unwrap();
                session.endpoints.remove(&wire);
                self.reply(conn, close, producer_closed());
            }
        }
    }

    /// What a lost session's node had received, it may still do.
    pub fn late_batch(&mut self, conn: ConnId, submit: &SubmitBatchRequest) {
        if self.attachment(conn, submit.producer).is_some() {
            self.admit(&submit.batch, false);
        }
    }

    pub fn settle_batch(
        &mut self,
        conn: ConnId,
        settle: &SettleEmitterBatchRequest,
    ) -> EmitterSettlement {
        let reference = number(&settle.reference);
        assert_eq!(
            self.cluster.endpoints.references.get(&reference),
            Some(&(conn, settle.consumer)),
            "settled through another attachment (EC-6)"
        );
        let decision = settle.decision;
        let Some(Attachment {
            name,
            side: Side::Consumer {
                unsettled, settled, ..
            },
            ..
        }) = self.attachment(conn, settle.consumer)
        else {
            return EmitterSettlement::ConsumerEnded;
        };
        let Some(identity) = unsettled.remove(&reference) else {
            return if settled.contains(&reference) {
                EmitterSettlement::Confirmed
            } else {
                EmitterSettlement::StaleReference
            };
        };
        settled.insert(reference);
        let name = name.clone();
        match decision {
            EmitterBatchDecision::Ack => {
                self.cluster.endpoints.acknowledged.insert(identity);
                assert!(
                    self.cluster.endpoints.done.insert(identity),
                    "settled twice"
                );
            }
            EmitterBatchDecision::Reject => {
                assert!(
                    self.cluster.endpoints.done.insert(identity),
                    "settled twice"
                );
            }
            EmitterBatchDecision::Retry => {
                let queue = self.cluster.endpoints.queues.entry(name.clone());
                queue.or_default().push_back(identity);
            }
        }
        self.serve_reads(&name);
        EmitterSettlement::Confirmed
    }

    /// Delivers to the reads that are parked.
    pub fn serve_reads(&mut self, name: &str) {
        let mut answers = Vec::new();
        for (conn, session) in &mut self.cluster.sessions {
            for (wire, attachment) in &mut session.endpoints {
                let Side::Consumer {
                    parked, unsettled, ..
                } = &mut attachment.side
                else {
                    continue;
                };
                if attachment.name != name || parked.is_none() || unsettled.len() >= 4 {
                    continue;
                }
                let endpoints = &mut self.cluster.endpoints;
                let queue = endpoints.queues.entry(name.to_owned()).or_default();
                let Some(identity) = queue.pop_front() else {
                    continue;
                };
                endpoints.next += 1;
                let reference = endpoints.next;
                endpoints.references.insert(reference, (*conn, *wire));
                unsettled.insert(reference, identity);
                answers.push((*conn, parked.take().unwrap(), identity, reference));
            }
        }
        for (conn, read, identity, reference) in answers {
            self.reply(conn, read, delivery(identity, reference));
        }
    }

    fn produce(&mut self, name: &str) {
        self.cluster.endpoints.next += 1;
        let identity = self.cluster.endpoints.next;
        let endpoints = &mut self.cluster.endpoints;
        let produced = endpoints.produced.entry(name.to_owned()).or_default();
        produced.insert(identity);
        let queue = endpoints.queues.entry(name.to_owned()).or_default();
        queue.push_back(identity);
        self.serve_reads(name);
    }

    fn toggle(&mut self, conn: ConnId, wire: u64) {
        if let Some(Attachment {
            side: Side::Producer { admission: now, .. },
            ..
        }) = self.attachment(conn, wire)
        {
            *now = match now {
                ProducerAdmission::Open => ProducerAdmission::Suspended,
                ProducerAdmission::Suspended => ProducerAdmission::Open,
            };
            let frame = admission(wire, *now);
            self.at(self.now, Happening::Put(conn, vec![frame]));
        }
    }

    pub fn open_admissions(&mut self) {
        for (conn, wire, is_open) in self.producers() {
            if !is_open {
                self.toggle(conn, wire);
            }
        }
    }

    fn producers(&self) -> Vec<(ConnId, u64, bool)> {
        let mut all = Vec::new();
        for (conn, session) in &self.cluster.sessions {
            for (wire, attachment) in &session.endpoints {
                if let Side::Producer { admission, .. } = &attachment.side {
                    all.push((*conn, *wire, *admission == ProducerAdmission::Open));
                }
            }
        }
        all
    }

    /// Ends an attachment: every outcome, and then the end (P-6).
    fn end_attachment(&mut self, conn: ConnId, wire: u64, reason: ProducerEndReason) {
        let session = self.cluster.sessions.get_mut(&conn).unwrap();
        let Some(attachment) = session.endpoints.remove(&wire) else {
            return;
        };
        match &attachment.side {
            Side::Producer { held, .. } => {
                for id in held.keys() {
                    self.reply(conn, *id, batch_unknown(OutcomeUncertainty::OwnerLost));
                }
                let frame = producer_ended(wire, reason);
                self.at(self.now, Happening::Put(conn, vec![frame]));
                if let Some(close) = attachment.closing {
                    self.reply(conn, close, producer_not_open());
                }
            }
            Side::Consumer { parked, .. } => {
                if let Some(read) = parked {
                    self.reply(conn, *read, consumer_ended());
                }
            }
        }
        let name = attachment.name.clone();
        self.cluster.give_back(attachment);
        self.serve_reads(&name);
    }

    fn end_where(&mut self, reason: ProducerEndReason, which: impl Fn(&Attachment) -> bool) {
        let mut all = Vec::new();
        for (conn, session) in &self.cluster.sessions {
            for (wire, attachment) in &session.endpoints {
                if which(attachment) {
                    all.push((*conn, *wire));
                }
            }
        }
        for (conn, wire) in all {
            self.end_attachment(conn, wire, reason);
        }
    }

    /// The domain was stopped.
    pub fn end_all_endpoints(&mut self) {
        self.end_where(ProducerEndReason::DomainStopped, |_| true);
    }

    pub fn move_endpoints(&mut self) {
        let wait = self.rng.within(20 * MS, 300 * MS);
        self.at(self.now + wait, Happening::Endpoints);
        if self.calm {
            return;
        }
        let emitter = format!("e{}", self.rng.within(0, 2));
        let producers = self.producers();
        let mut all = Vec::new();
        for (conn, session) in &self.cluster.sessions {
            for (wire, attachment) in &session.endpoints {
                all.push((*conn, *wire, attachment.name.clone()));
            }
        }
        match self.rng.within(0, 100) {
            0..=49 => self.produce(&emitter),
            50..=69 if !producers.is_empty() => {
                let (conn, wire, is_open) = producers[self.rng.index(producers.len())];
                if !is_open || self.rng.chance(40.0) {
                    self.toggle(conn, wire);
                }
            }
            70..=84 if !all.is_empty() => {
                // An ACK timeout: the same identity, under another reference, later.
                let (conn, wire, name) = all[self.rng.index(all.len())].clone();
                if let Some(Attachment {
                    side: Side::Consumer { unsettled, .. },
                    ..
                }) = self.attachment(conn, wire)
                {
                    if let Some((_, identity)) = unsettled.pop_first() {
                        let queue = self.cluster.endpoints.queues.entry(name.clone());
                        queue.or_default().push_front(identity);
                        self.serve_reads(&name);
                    }
                }
            }
            85..=89 if !all.is_empty() => {
                let (conn, wire, _) = all[self.rng.index(all.len())];
                let reason = match self.rng.within(0, 3) {
                    0 => ProducerEndReason::Relocated,
                    1 => ProducerEndReason::OwnerLost,
                    _ => ProducerEndReason::ShuttingDown,
                };
                self.end_attachment(conn, wire, reason);
            }
            90 if !all.is_empty() => {
                let (_, _, name) = all[self.rng.index(all.len())].clone();
                *self
                    .cluster
                    .endpoints
                    .versions
                    .entry(name.clone())
                    .or_default() += 1;
                self.end_where(ProducerEndReason::EndpointChanged, |attachment| {
                    attachment.name == name
                });
            }
            91 if !all.is_empty() => {
                // About somebody else's.
                let (conn, wire, _) = all[self.rng.index(all.len())];
                self.put(
                    conn,
                    producer_ended(wire + 1_000_000, ProducerEndReason::Relocated),
                );
                self.put(
                    conn,
                    admission(wire + 1_000_000, ProducerAdmission::Suspended),
                );
            }
            _ => {}
        }
    }
}
