//! The endpoints as a session uses them: producers feed client ingestors, consumers read client emitters, and everything
//! else that happens on its own comes out as effects.
//!
//! Owns the interface and the limits of sessions and nodes. Must not know frames, request identities or leaders: whoever
//! calls gives time and tags, and delivers the effects in their order.

use nervix_wire::types::{
    ConsumerWindow, DomainClockObservation, DomainClockTicked, EmitterBatchDecision,
    EmitterBatchReceived, EmitterOpenRefusal, EmitterOpened, EmitterSettlement, Fingerprint,
    OpenEmitterRequest, OpenIngestorRequest, ParallelConsumerWindow, ParallelProducerWindow,
    ProducerAdmission, ProducerEndReason, ProducerOpened, ProducerRefusal, ProducerWindow,
    SubmissionDisposition, SubmissionRefusal,
};

use std::collections::{BTreeMap, VecDeque};

use super::domain::Domain;
use super::fields::wire_fields;
use super::flow::{Consumer, Flow, MAX_BATCH_ROWS};
use super::ledger::{not_admitted, Producer};
use super::{Delivery, Now, SubscriptionId, World};
use crate::lang::ast::{Kind, Window};

/// One producer for the life of the process: never zero, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId(pub u64);

/// One consumer for the life of the process: never zero, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId(pub u64);

/// The caller's name for a submission or a read, such as its request identity. Comes back with the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// Who opens an endpoint, and what of its situation decides whether it may.
#[derive(Debug, Clone, Copy)]
pub struct Opener {
    /// Sessions share limits: 32 producers, 32 consumers, 32 MiB of credit each.
    pub session: u64,
    /// Nodes share a limit: 128 MiB of credit for producers and for consumers.
    pub node: u64,
    pub in_transaction: bool,
    /// Whether the serving node reaches whoever owns the endpoint.
    pub available: bool,
}

/// What happened, for the caller to deliver. Effects of one producer or consumer are in the order they must be seen.
#[derive(Debug, Clone)]
pub enum Effect {
    /// The outcome of a submission: exactly one for each call of `submit`.
    Submission {
        producer: ProducerId,
        tag: Tag,
        disposition: SubmissionDisposition,
        message: String,
    },
    /// Admission of a producer changed.
    Admission {
        producer: ProducerId,
        admission: ProducerAdmission,
    },
    /// The graph ended a producer; every outcome came before.
    ProducerEnded {
        producer: ProducerId,
        reason: ProducerEndReason,
        message: String,
    },
    /// A close that `close_producer` accepted is through; every outcome came before.
    ProducerClosed { producer: ProducerId },
    /// A read is answered: with a batch, or with None because the consumer ended.
    Read {
        consumer: ConsumerId,
        tag: Tag,
        received: Option<EmitterBatchReceived>,
    },
    /// The graph ended a consumer: its reads were answered, and further calls answer ConsumerEnded.
    ConsumerEnded { consumer: ConsumerId },
    /// The clock of a domain is another one; None when the domain is gone, and its attachments with it.
    Clock {
        domain: String,
        clock: Option<DomainClockObservation>,
    },
    /// The newest due tick of a paced domain.
    Tick(DomainClockTicked),
    /// Rows for a subscription.
    Rows(Delivery),
}

/// The most producers, and the most consumers, of a session.
const MAX_PER_SESSION: usize = 32;

/// The most batches of credit that can be asked for.
const MAX_CREDIT_BATCHES: u32 = 1_024;

/// The most bytes of credit of one handle, and of a session's producers or consumers together.
const MAX_SESSION_BYTES: u64 = 32 << 20;

/// The most bytes of credit of a node's producers or consumers together.
const MAX_NODE_BYTES: u64 = 128 << 20;

/// What a frame needs beside a batch.
const FRAME_OVERHEAD: u64 = 256;

type Named<T> = BTreeMap<(String, String), VecDeque<T>>;

/// Endpoints by number, what happened to them, and what tests decided beforehand.
#[derive(Debug, Clone, Default)]
pub struct Endpoints {
    newest: u64,
    producers: BTreeMap<ProducerId, String>,
    consumers: BTreeMap<ConsumerId, String>,
    effects: Vec<Effect>,
    forced_producer_refusals: Named<ProducerRefusal>,
    forced_consumer_refusals: Named<EmitterOpenRefusal>,
    forced_submissions: Named<SubmissionDisposition>,
    forced_settlements: Named<EmitterSettlement>,
}

impl Endpoints {
    pub fn push(&mut self, effect: Effect) {
        match &effect {
            Effect::ProducerEnded { producer, .. } | Effect::ProducerClosed { producer } => {
                self.producers.remove(producer);
            }
            Effect::ConsumerEnded { consumer } => {
                self.consumers.remove(consumer);
            }
            _ => (),
        }
        self.effects.push(effect);
    }
}

fn take_forced<T>(forced: &mut Named<T>, domain: &str, name: &str) -> Option<T> {
    forced
        .get_mut(&(domain.to_string(), name.to_string()))?
        .pop_front()
}

fn force<T>(forced: &mut Named<T>, domain: &str, name: &str, value: T) {
    forced
        .entry((domain.to_string(), name.to_string()))
        .or_default()
        .push_back(value);
}

/// Why credit cannot be granted.
enum NoCredit {
    TooMany,
    Session,
    Node,
}

/// Whether another handle fits beside those that are open: who opened each, and its bytes.
fn check_credit(
    opener: Opener,
    bytes: u64,
    open: impl Iterator<Item = (Opener, u64)>,
) -> Result<(), NoCredit> {
    let (mut handles, mut of_session, mut of_node) = (0, bytes, bytes);
    for (other, granted) in open {
        if other.session == opener.session {
            handles += 1;
            of_session = of_session.saturating_add(granted);
        }
        if other.node == opener.node {
            of_node = of_node.saturating_add(granted);
        }
    }
    if handles >= MAX_PER_SESSION {
        return Err(NoCredit::TooMany);
    }
    if of_session > MAX_SESSION_BYTES {
        return Err(NoCredit::Session);
    }
    if of_node > MAX_NODE_BYTES {
        return Err(NoCredit::Node);
    }
    Ok(())
}

fn limits_are_valid(batches: u32, bytes: u64) -> bool {
    (1..=MAX_CREDIT_BATCHES).contains(&batches) && (1..=MAX_SESSION_BYTES).contains(&bytes)
}

impl World {
    fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.domains
            .values()
            .filter_map(|domain| domain.flow.as_ref())
    }

    fn flow_of_producer(&mut self, producer: ProducerId) -> Option<(&str, &mut Flow)> {
        let domain = self.endpoints.producers.get(&producer)?;
        let flow = self.domains.get_mut(domain)?.flow.as_mut()?;
        Some((domain, flow))
    }

    fn flow_of_consumer(&mut self, consumer: ConsumerId) -> Option<(&str, &mut Flow)> {
        let domain = self.endpoints.consumers.get(&consumer)?;
        let flow = self.domains.get_mut(domain)?.flow.as_mut()?;
        Some((domain, flow))
    }

    /// Lets everything move that can, and gathers what happened.
    pub(super) fn settle_down(&mut self, now: Now) {
        for domain in self.domains.values_mut() {
            let Domain { flow, readers, .. } = domain;
            if let Some(flow) = flow {
                flow.pump(now, readers);
                for effect in flow.ledger.effects.drain(..) {
                    self.endpoints.push(effect);
                }
            }
            if let Some(tick) = domain.tick(now) {
                self.endpoints.push(Effect::Tick(tick));
            }
        }
    }

    // ---- clocks

    /// The clock of a domain, as an attachment learns it; None when there is no such domain.
    pub fn clock(&self, domain: &str) -> Option<DomainClockObservation> {
        self.domains.get(domain).map(Domain::observation)
    }

    /// The newest due tick of a domain, told or not, with this node's reading of its time; None where there are no ticks.
    pub fn newest_tick(&self, now: Now, domain: &str) -> Option<DomainClockTicked> {
        self.domains.get(domain)?.newest_tick(now)
    }

    /// For tests: the domain's clock reads as not installed until it is installed again.
    pub fn set_clock_installed(&mut self, domain: &str, installed: bool) -> bool {
        let Some(found) = self.domains.get_mut(domain) else {
            return false;
        };
        if found.uninstalled == installed {
            found.uninstalled = !installed;
            let clock = Some(found.observation());
            self.endpoints.push(Effect::Clock {
                domain: domain.to_string(),
                clock,
            });
        }
        true
    }

    // ---- time

    /// Lets happen what is due: ticks, flushes, timeouts, retries. Every other call that takes the time does so too.
    pub fn advance(&mut self, now: Now) {
        self.settle_down(now);
    }

    /// When `advance` has something to do next, if nothing else happens.
    pub fn next_deadline(&self, now: Now) -> Option<Now> {
        let ticks = self
            .domains
            .values()
            .filter_map(|domain| domain.next_tick_at(now));
        self.flows()
            .filter_map(|flow| flow.next_deadline(now))
            .chain(ticks)
            .min()
    }

    /// What happened since the last call, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.endpoints.effects)
    }

    // ---- producers

    pub fn open_producer(
        &mut self,
        now: Now,
        opener: Opener,
        request: &OpenIngestorRequest,
    ) -> Result<(ProducerId, ProducerOpened), (ProducerRefusal, String)> {
        let OpenIngestorRequest {
            domain,
            ingestor,
            expected_fields,
            max_outstanding_batches: batches,
            max_outstanding_bytes: bytes,
        } = request;
        let refuse = |refusal, message: String| Err((refusal, message));
        if let Some(refusal) = take_forced(
            &mut self.endpoints.forced_producer_refusals,
            domain,
            ingestor,
        ) {
            return refuse(refusal, "refused by the control endpoint".to_string());
        }
        if opener.in_transaction {
            return refuse(
                ProducerRefusal::InTransaction,
                "a session that holds a transaction opens no producers".to_string(),
            );
        }
        if !opener.available {
            return refuse(
                ProducerRefusal::EndpointUnavailable,
                "the ingestor's owner cannot be reached".to_string(),
            );
        }
        let Some(found) = self.domains.get(domain) else {
            return refuse(
                ProducerRefusal::DomainNotFound,
                format!("there is no domain `{domain}`"),
            );
        };
        if found.catalog.get(Kind::Ingestor, ingestor).is_none() {
            return refuse(
                ProducerRefusal::IngestorNotFound,
                format!("there is no ingestor `{ingestor}`"),
            );
        }
        let running = found
            .flow
            .as_ref()
            .and_then(|flow| Some((flow, flow.ingestor(ingestor)?)));
        let Some((flow, state)) = running else {
            return refuse(
                ProducerRefusal::DomainStopped,
                format!("the domain `{domain}` is stopped"),
            );
        };
        let fields = wire_fields(&state.fields);
        if *expected_fields != fields {
            return refuse(
                ProducerRefusal::SchemaMismatch,
                format!("the fields are not those of the ingestor `{ingestor}`"),
            );
        }
        if !limits_are_valid(*batches, *bytes) {
            return refuse(
                ProducerRefusal::InvalidLimits,
                format!("credit is 1 to {MAX_CREDIT_BATCHES} batches and 1 to {MAX_SESSION_BYTES} bytes"),
            );
        }
        let open = self.flows().flat_map(|flow| {
            flow.ledger
                .producers()
                .map(|(_, producer)| (producer.opener, producer.granted_bytes))
        });
        match check_credit(opener, *bytes, open) {
            Ok(()) => (),
            Err(NoCredit::TooMany) => {
                return refuse(
                    ProducerRefusal::TooManyProducers,
                    format!("a session has at most {MAX_PER_SESSION} producers"),
                )
            }
            Err(NoCredit::Session) => {
                return refuse(
                    ProducerRefusal::SessionCapacityExhausted,
                    format!("the producers of a session share {MAX_SESSION_BYTES} bytes of credit"),
                )
            }
            Err(NoCredit::Node) => {
                return refuse(
                    ProducerRefusal::NodeCapacityExhausted,
                    format!("the producers of a node share {MAX_NODE_BYTES} bytes of credit"),
                )
            }
        }
        let max_batch_bytes = (*bytes).min(frame_limit() - FRAME_OVERHEAD);
        let id = ProducerId(self.endpoints.newest + 1);
        let mut attachment = [0; 16];
        let mut hasher = blake3::Hasher::new_keyed(&state.contract);
        hasher.update(&id.0.to_le_bytes());
        hasher.update(&now.0.to_le_bytes());
        hasher.finalize_xof().fill(&mut attachment);
        let opened = ProducerOpened {
            domain: domain.clone(),
            ingestor: ingestor.clone(),
            fields,
            generation: flow.generation,
            contract: Fingerprint {
                bytes: state.contract,
            },
            attachment,
            window: match state.mode.window {
                Window::Sequential => ProducerWindow::SequentialProducerWindow,
                Window::Parallel(max) => {
                    ProducerWindow::ParallelProducerWindow(ParallelProducerWindow { max })
                }
            },
            ack_timeout_nanos: state.mode.ack_timeout_nanos,
            retry_backoff_nanos: state.mode.backoff_nanos,
            retry_max_backoff_nanos: state.mode.max_backoff_nanos,
            granted_batches: *batches,
            granted_bytes: *bytes,
            max_batch_bytes,
            max_batch_rows: u32::try_from(MAX_BATCH_ROWS).unwrap_or(u32::MAX),
            admission: if state.suspended {
                ProducerAdmission::Suspended
            } else {
                ProducerAdmission::Open
            },
        };
        let producer = Producer {
            ingestor: ingestor.clone(),
            opener,
            granted_batches: u64::from(*batches),
            granted_bytes: *bytes,
            max_batch_bytes,
            outstanding_batches: 0,
            outstanding_bytes: 0,
            draining: false,
        };
        self.endpoints.newest = id.0;
        self.endpoints.producers.insert(id, domain.clone());
        if let Some(flow) = self
            .domains
            .get_mut(domain)
            .and_then(|domain| domain.flow.as_mut())
        {
            flow.ledger.add_producer(id, producer);
        }
        Ok((id, opened))
    }

    /// Submits one batch; its outcome is an `Effect::Submission` with this tag, now or later.
    pub fn submit(&mut self, now: Now, producer: ProducerId, tag: Tag, batch: &[u8]) {
        // What ends with time ends before it could take the batch.
        self.settle_down(now);
        let place = self.flow_of_producer(producer).and_then(|(domain, flow)| {
            let ingestor = &flow.ledger.producer(producer)?.ingestor;
            Some((domain.to_string(), ingestor.clone()))
        });
        let forced = place.as_ref().and_then(|(domain, ingestor)| {
            take_forced(&mut self.endpoints.forced_submissions, domain, ingestor)
        });
        let decided = match (place, forced) {
            (None, _) => Some((
                not_admitted(SubmissionRefusal::ProducerEnded),
                "the producer has ended",
            )),
            (Some(_), Some(disposition)) => Some((disposition, "decided by the control endpoint")),
            (Some(_), None) => None,
        };
        if let Some((disposition, message)) = decided {
            self.endpoints.push(Effect::Submission {
                producer,
                tag,
                message: match disposition {
                    SubmissionDisposition::SubmissionCompleted => String::new(),
                    _ => message.to_string(),
                },
                disposition,
            });
        } else if let Some((_, flow)) = self.flow_of_producer(producer) {
            flow.submit(now, producer, tag, batch);
        }
        self.settle_down(now);
    }

    /// Closes a producer, for CloseIngestorRequest: `Effect::ProducerClosed` follows its last outcome. False when it is not
    /// open.
    pub fn close_producer(&mut self, now: Now, producer: ProducerId) -> bool {
        let closing = self
            .flow_of_producer(producer)
            .is_some_and(|(_, flow)| flow.ledger.close_producer(producer));
        self.settle_down(now);
        closing
    }

    /// Forgets a producer whose session is gone: nothing more is said about it. What it submitted goes on.
    pub fn abandon_producer(&mut self, now: Now, producer: ProducerId) {
        if let Some((_, flow)) = self.flow_of_producer(producer) {
            flow.ledger.abandon_producer(producer);
        }
        self.endpoints.producers.remove(&producer);
        self.settle_down(now);
    }

    // ---- consumers

    pub fn open_consumer(
        &mut self,
        now: Now,
        opener: Opener,
        request: &OpenEmitterRequest,
    ) -> Result<(ConsumerId, EmitterOpened), (EmitterOpenRefusal, String)> {
        let OpenEmitterRequest {
            domain,
            emitter,
            expected_fields,
            max_outstanding_batches: batches,
            max_outstanding_bytes: bytes,
        } = request;
        let refuse = |refusal, message: String| Err((refusal, message));
        if let Some(refusal) = take_forced(
            &mut self.endpoints.forced_consumer_refusals,
            domain,
            emitter,
        ) {
            return refuse(refusal, "refused by the control endpoint".to_string());
        }
        if opener.in_transaction {
            return refuse(
                EmitterOpenRefusal::InTransaction,
                "a session that holds a transaction opens no consumers".to_string(),
            );
        }
        if !opener.available {
            return refuse(
                EmitterOpenRefusal::EndpointUnavailable,
                "the emitter's owner cannot be reached".to_string(),
            );
        }
        let Some(found) = self.domains.get(domain) else {
            return refuse(
                EmitterOpenRefusal::DomainNotFound,
                format!("there is no domain `{domain}`"),
            );
        };
        if found.catalog.get(Kind::Emitter, emitter).is_none() {
            return refuse(
                EmitterOpenRefusal::EmitterNotFound,
                format!("there is no emitter `{emitter}`"),
            );
        }
        let running = found
            .flow
            .as_ref()
            .and_then(|flow| Some((flow, flow.emitter(emitter)?)));
        let Some((flow, state)) = running else {
            return refuse(
                EmitterOpenRefusal::DomainStopped,
                format!("the domain `{domain}` is stopped"),
            );
        };
        let fields = wire_fields(&state.fields);
        if *expected_fields != fields {
            return refuse(
                EmitterOpenRefusal::SchemaMismatch,
                format!("the fields are not those of the emitter `{emitter}`"),
            );
        }
        let max_batch_bytes = u64::try_from(state.max_bytes).unwrap_or(u64::MAX);
        if !limits_are_valid(*batches, *bytes) || *bytes < max_batch_bytes {
            return refuse(
                EmitterOpenRefusal::InvalidLimits,
                format!(
                    "credit is 1 to {MAX_CREDIT_BATCHES} batches and {max_batch_bytes} to {MAX_SESSION_BYTES} bytes: one batch must fit"
                ),
            );
        }
        let open = self.flows().flat_map(|flow| {
            flow.consumers()
                .map(|consumer| (consumer.opener, consumer.granted_bytes))
        });
        match check_credit(opener, *bytes, open) {
            Ok(()) => (),
            Err(NoCredit::TooMany) => {
                return refuse(
                    EmitterOpenRefusal::TooManyConsumers,
                    format!("a session has at most {MAX_PER_SESSION} consumers"),
                )
            }
            Err(NoCredit::Session) => {
                return refuse(
                    EmitterOpenRefusal::SessionCapacityExhausted,
                    format!("the consumers of a session share {MAX_SESSION_BYTES} bytes of credit"),
                )
            }
            Err(NoCredit::Node) => {
                return refuse(
                    EmitterOpenRefusal::NodeCapacityExhausted,
                    format!("the consumers of a node share {MAX_NODE_BYTES} bytes of credit"),
                )
            }
        }
        let id = ConsumerId(self.endpoints.newest + 1);
        let opened = EmitterOpened {
            domain: domain.clone(),
            emitter: emitter.clone(),
            fields,
            generation: flow.generation,
            contract: Fingerprint {
                bytes: state.contract,
            },
            window: match state.mode.window {
                Window::Sequential => ConsumerWindow::SequentialConsumerWindow,
                Window::Parallel(max) => {
                    ConsumerWindow::ParallelConsumerWindow(ParallelConsumerWindow { max })
                }
            },
            ack_timeout_nanos: state.mode.ack_timeout_nanos,
            retry_backoff_nanos: state.mode.backoff_nanos,
            retry_max_backoff_nanos: state.mode.max_backoff_nanos,
            granted_batches: *batches,
            granted_bytes: *bytes,
            max_batch_bytes,
            max_batch_rows: u32::try_from(state.max_rows).unwrap_or(u32::MAX),
        };
        let consumer = Consumer::new(emitter.clone(), opener, u64::from(*batches), *bytes);
        self.endpoints.newest = id.0;
        self.endpoints.consumers.insert(id, domain.clone());
        if let Some(flow) = self
            .domains
            .get_mut(domain)
            .and_then(|domain| domain.flow.as_mut())
        {
            flow.add_consumer(id, consumer);
        }
        self.settle_down(now);
        Ok((id, opened))
    }

    /// Parks a read; it is answered by an `Effect::Read` with this tag, now or later. Several are answered in order.
    pub fn read(&mut self, now: Now, consumer: ConsumerId, tag: Tag) {
        let parked = self
            .flow_of_consumer(consumer)
            .is_some_and(|(_, flow)| flow.read(consumer, tag));
        if !parked {
            self.endpoints.push(Effect::Read {
                consumer,
                tag,
                received: None,
            });
        }
        self.settle_down(now);
    }

    /// Takes a parked read back; false when it was answered.
    pub fn cancel_read(&mut self, consumer: ConsumerId, tag: Tag) -> bool {
        self.flow_of_consumer(consumer)
            .is_some_and(|(_, flow)| flow.cancel_read(consumer, tag))
    }

    pub fn settle(
        &mut self,
        now: Now,
        consumer: ConsumerId,
        reference: [u8; 16],
        decision: EmitterBatchDecision,
        reason: &str,
    ) -> (EmitterSettlement, String) {
        // What timed out by now must not be settled.
        self.settle_down(now);
        let ended = (
            EmitterSettlement::ConsumerEnded,
            "the consumer has ended".to_string(),
        );
        let place = self.flow_of_consumer(consumer).and_then(|(domain, flow)| {
            Some((domain.to_string(), flow.emitter_of(consumer)?.to_string()))
        });
        let Some((domain, emitter)) = place else {
            return ended;
        };
        if let Some(settlement) =
            take_forced(&mut self.endpoints.forced_settlements, &domain, &emitter)
        {
            return (settlement, "decided by the control endpoint".to_string());
        }
        let Some((_, flow)) = self.flow_of_consumer(consumer) else {
            return ended;
        };
        let (settlement, message) = flow.settle(now, consumer, reference, decision, reason);
        self.settle_down(now);
        (settlement, message.to_string())
    }

    /// Closes a consumer, for CloseEmitterRequest and for a session that is gone: its references are revoked, its parked
    /// reads answered. False when it is not open.
    pub fn close_consumer(&mut self, now: Now, consumer: ConsumerId) -> bool {
        let closed = self
            .flow_of_consumer(consumer)
            .is_some_and(|(_, flow)| flow.drop_consumer(consumer));
        self.settle_down(now);
        self.endpoints.consumers.remove(&consumer);
        closed
    }

    // ---- subscriptions that hold their relay back

    /// Says whether a BLOCKING subscription has room: while one has none, its relay takes no rows.
    pub fn set_reader_room(&mut self, now: Now, subscription: SubscriptionId, room: bool) {
        for domain in self.domains.values_mut() {
            for reader in domain.readers.values_mut().flatten() {
                if reader.id == subscription {
                    reader.room = room;
                }
            }
        }
        self.settle_down(now);
    }

    // ---- faults, for tests; false when there is nothing of that name

    /// Quiesces an ingestor: its producers read Suspended, and submissions are refused so.
    pub fn suspend_ingestor(&mut self, now: Now, domain: &str, ingestor: &str) -> bool {
        self.set_suspended(now, domain, ingestor, true)
    }

    pub fn resume_ingestor(&mut self, now: Now, domain: &str, ingestor: &str) -> bool {
        self.set_suspended(now, domain, ingestor, false)
    }

    fn set_suspended(&mut self, now: Now, domain: &str, ingestor: &str, suspended: bool) -> bool {
        let found = self
            .domains
            .get_mut(domain)
            .and_then(|domain| domain.flow.as_mut())
            .is_some_and(|flow| flow.suspend(ingestor, suspended));
        self.settle_down(now);
        found
    }

    /// The next open of this ingestor is refused so.
    pub fn force_producer_refusal(
        &mut self,
        domain: &str,
        ingestor: &str,
        refusal: ProducerRefusal,
    ) {
        let forced = &mut self.endpoints.forced_producer_refusals;
        force(forced, domain, ingestor, refusal);
    }

    /// The next open of this emitter is refused so.
    pub fn force_consumer_refusal(
        &mut self,
        domain: &str,
        emitter: &str,
        refusal: EmitterOpenRefusal,
    ) {
        let forced = &mut self.endpoints.forced_consumer_refusals;
        force(forced, domain, emitter, refusal);
    }

    /// The next submission to this ingestor ends so and is otherwise ignored; Busy n times is n calls of this.
    pub fn force_submission(
        &mut self,
        domain: &str,
        ingestor: &str,
        disposition: SubmissionDisposition,
    ) {
        let forced = &mut self.endpoints.forced_submissions;
        force(forced, domain, ingestor, disposition);
    }

    /// The next settlement at this emitter is answered so and otherwise ignored.
    pub fn force_settlement(&mut self, domain: &str, emitter: &str, settlement: EmitterSettlement) {
        let forced = &mut self.endpoints.forced_settlements;
        force(forced, domain, emitter, settlement);
    }

    /// Whatever was decided beforehand is decided no longer.
    pub fn forget_forced(&mut self) {
        let endpoints = &mut self.endpoints;
        endpoints.forced_producer_refusals.clear();
        endpoints.forced_consumer_refusals.clear();
        endpoints.forced_submissions.clear();
        endpoints.forced_settlements.clear();
    }

    /// Ends a producer: its admitted batches become OutcomeUnknown first.
    pub fn end_producer(
        &mut self,
        now: Now,
        producer: ProducerId,
        reason: ProducerEndReason,
    ) -> bool {
        let Some((_, flow)) = self.flow_of_producer(producer) else {
            return false;
        };
        flow.ledger
            .end_producer(producer, reason, "ended by the control endpoint");
        self.settle_down(now);
        true
    }

    /// Ends a consumer as if its attachment were lost.
    pub fn end_consumer(&mut self, now: Now, consumer: ConsumerId) -> bool {
        let ended = self
            .flow_of_consumer(consumer)
            .is_some_and(|(_, flow)| flow.drop_consumer(consumer));
        self.settle_down(now);
        if ended {
            self.endpoints.push(Effect::ConsumerEnded { consumer });
        }
        ended
    }
}

fn frame_limit() -> u64 {
    u64::try_from(nervix_wire::FRAME_LIMIT).unwrap_or(u64::MAX)
}
