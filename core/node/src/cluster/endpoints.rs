//! Which session opened which producer and consumer, under which identity, and which requests wait for one of them. Must
//! not know what becomes of a batch: the graph does, and it counts limits and credit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use nervix_wire::types::{
    CloseEmitterOutcome, CloseIngestorDisposition, CloseIngestorOutcome, EmitterCloseDisposition,
    EmitterOpenRefusal, EmitterRefused, EmitterSettlement, OpenEmitterDisposition,
    OpenEmitterOutcome, OpenEmitterRequest, OpenIngestorDisposition, OpenIngestorOutcome,
    OpenIngestorRequest, ProducerEndReason, ProducerRefusal, ProducerRefused,
    ReadEmitterBatchOutcome, ReadEmitterDisposition, ReplyBody, RequestRejected, RequestRejection,
    SettleEmitterBatchOutcome, SettleEmitterBatchRequest, SubmissionDisposition,
    SubmissionNotAdmitted, SubmissionOutcome, SubmissionRefusal, SubmitBatchRequest,
};

use super::{check_domain, invalid, rejected, Cluster, State};
use crate::faults::Scope;
use crate::graph::{ConsumerId, Effect, Now, Opener, ProducerId, Tag};
use crate::journal::Event;
use crate::outbox::Opens;
use crate::session::{conclude, Session, Told};

/// An endpoint of a session goes by the request that opened it.
type Identity = (u64, u64);

#[derive(Default)]
pub struct Endpoints {
    producers: BTreeMap<ProducerId, Producer>,
    consumers: BTreeMap<ConsumerId, Consumer>,
    producer_names: HashMap<Identity, ProducerId>,
    consumer_names: HashMap<Identity, ConsumerId>,
}

struct Producer {
    session: Arc<Session>,
    identity: u64,
    /// The content of each batch without an outcome, by its request.
    outstanding: BTreeMap<u64, [u8; 32]>,
    /// Outcomes that a test keeps back. The end of the producer must not overtake them.
    withheld: usize,
    closing: Option<u64>,
    finished: Option<Finished>,
    /// Its end was told; what reached the graph behind it still gets its outcome.
    over: bool,
}

enum Finished {
    Closed,
    Ended(ProducerEndReason, String),
}

struct Consumer {
    session: Arc<Session>,
    identity: u64,
    reads: Vec<u64>,
    closed: bool,
}

impl Endpoints {
    /// Forgets a consumer that is closed, once its reads are answered.
    fn drop_answered(&mut self, id: ConsumerId) {
        let over = |consumer: &Consumer| consumer.closed && consumer.reads.is_empty();
        if self.consumers.get(&id).is_some_and(over) {
            self.consumers.remove(&id);
        }
    }

    fn remove_producer(&mut self, id: ProducerId) -> Option<Producer> {
        let producer = self.producers.remove(&id)?;
        self.producer_names
            .remove(&(producer.session.id, producer.identity));
        Some(producer)
    }

    /// Forgets a producer whose end was told, once every outcome was too.
    fn drop_concluded(&mut self, id: ProducerId) {
        let concluded = |producer: &Producer| {
            producer.over && producer.outstanding.is_empty() && producer.withheld == 0
        };
        if self.producers.get(&id).is_some_and(concluded) {
            self.producers.remove(&id);
        }
    }
}

/// What a test wants an endpoint to answer.
pub enum ForcedAt {
    OpenIngestor(ProducerRefusal),
    OpenEmitter(EmitterOpenRefusal),
    Submission(SubmissionDisposition),
    Settlement(EmitterSettlement),
}

/// A request that is answered when the graph has something to say, or at once.
pub enum Answered<Outcome> {
    Now(Outcome),
    Later,
}

impl<Outcome> Answered<Outcome> {
    pub fn map<Other>(self, map: impl FnOnce(Outcome) -> Other) -> Answered<Other> {
        match self {
            Self::Now(outcome) => Answered::Now(map(outcome)),
            Self::Later => Answered::Later,
        }
    }
}

fn not_admitted(refusal: SubmissionRefusal, message: &str) -> SubmissionOutcome {
    SubmissionOutcome {
        disposition: SubmissionDisposition::SubmissionNotAdmitted(SubmissionNotAdmitted {
            refusal,
        }),
        message: message.to_owned(),
    }
}

fn closed(disposition: CloseIngestorDisposition) -> CloseIngestorOutcome {
    let message = match disposition {
        CloseIngestorDisposition::ProducerClosed => "the producer is closed",
        CloseIngestorDisposition::ProducerNotOpen => "the session has no such producer",
    };
    CloseIngestorOutcome {
        disposition,
        message: message.to_owned(),
    }
}

fn read_outcome(disposition: ReadEmitterDisposition) -> ReadEmitterBatchOutcome {
    let message = match disposition {
        ReadEmitterDisposition::EmitterBatchReceived(_) => "",
        ReadEmitterDisposition::EmitterConsumerEnded => "the consumer ended",
    };
    ReadEmitterBatchOutcome {
        disposition,
        message: message.to_owned(),
    }
}

fn taken(request_id: u64) -> RequestRejected {
    rejected(
        RequestRejection::DuplicateRequestId,
        Some("request_id"),
        format!("request {request_id} is the identity of what it opened, which is open still"),
    )
}

fn opener(session: &Session, in_transaction: bool) -> Opener {
    Opener {
        session: session.id,
        node: u64::try_from(session.node).unwrap_or(u64::MAX),
        in_transaction,
        available: true,
    }
}

impl Cluster {
    // ---- producers

    pub fn open_ingestor(
        self: &Arc<Self>,
        session: &Arc<Session>,
        request_id: u64,
        request: &OpenIngestorRequest,
    ) -> Result<(OpenIngestorOutcome, Option<Opens>), RequestRejected> {
        check_domain(Some(&request.domain))?;
        if request.ingestor.is_empty() {
            return Err(invalid("ingestor", "the ingestor's name is empty"));
        }
        let name = (session.id, request_id);
        if self.endpoints.lock().producer_names.contains_key(&name) {
            return Err(taken(request_id));
        }
        let opened = self.change(|state| {
            let now = Now(state.clock.now());
            let in_transaction = self.is_forbidden(state, session, "OpenIngestorRequest");
            let opener = opener(session, in_transaction);
            let opened = state.world.open_producer(now, opener, request);
            if let Ok((id, _)) = &opened {
                session.outbox.open_producer(request_id);
                let mut endpoints = self.endpoints.lock();
                endpoints.producer_names.insert(name, *id);
                endpoints.producers.insert(
                    *id,
                    Producer {
                        session: session.clone(),
                        identity: request_id,
                        outstanding: BTreeMap::new(),
                        withheld: 0,
                        closing: None,
                        finished: None,
                        over: false,
                    },
                );
                self.count_endpoints(&endpoints);
            }
            opened
        });
        Ok(match opened {
            Ok((_, opened)) => (
                OpenIngestorOutcome {
                    message: format!("a producer of `{}` is open", opened.ingestor),
                    disposition: OpenIngestorDisposition::ProducerOpened(opened),
                },
                Some(Opens::Producer(request_id)),
            ),
            Err((refusal, message)) => (
                OpenIngestorOutcome {
                    disposition: OpenIngestorDisposition::ProducerRefused(ProducerRefused {
                        refusal,
                    }),
                    message,
                },
                None,
            ),
        })
    }

    /// Counts a batch that a test has answered in the graph's place.
    pub fn ignore_batch(&self, batch: &[u8], disposition: &SubmissionDisposition) {
        let content = *blake3::hash(batch).as_bytes();
        self.counts.batch_received(&content, batch.len());
        self.counts.batch_concluded(&content, disposition);
    }

    pub fn submit_batch(
        self: &Arc<Self>,
        session: &Session,
        request_id: u64,
        request: &SubmitBatchRequest,
    ) -> Answered<SubmissionOutcome> {
        let content = *blake3::hash(&request.batch).as_bytes();
        self.counts.batch_received(&content, request.batch.len());
        let submitted = self.change(|state| {
            let mut endpoints = self.endpoints.lock();
            let id = endpoints
                .producer_names
                .get(&(session.id, request.producer))
                .copied()?;
            if let Some(producer) = endpoints.producers.get_mut(&id) {
                producer.outstanding.insert(request_id, content);
            }
            drop(endpoints);
            self.counts.outstanding(1);
            let now = Now(state.clock.now());
            state.world.submit(now, id, Tag(request_id), &request.batch);
            Some(())
        });
        match submitted {
            Some(()) => Answered::Later,
            None => {
                let outcome = not_admitted(
                    SubmissionRefusal::ProducerEnded,
                    "the session has no such producer",
                );
                self.counts.batch_concluded(&content, &outcome.disposition);
                Answered::Now(outcome)
            }
        }
    }

    pub fn close_ingestor(
        self: &Arc<Self>,
        session: &Session,
        request_id: u64,
        producer: u64,
    ) -> Answered<CloseIngestorOutcome> {
        let closing = self.change(|state| {
            let id = {
                let mut endpoints = self.endpoints.lock();
                let id = endpoints
                    .producer_names
                    .get(&(session.id, producer))
                    .copied()?;
                let open = endpoints
                    .producers
                    .get_mut(&id)
                    .filter(|producer| producer.closing.is_none() && producer.finished.is_none())?;
                open.closing = Some(request_id);
                id
            };
            let now = Now(state.clock.now());
            if state.world.close_producer(now, id) {
                return Some(());
            }
            if let Some(open) = self.endpoints.lock().producers.get_mut(&id) {
                open.closing = None;
            }
            None
        });
        match closing {
            Some(()) => Answered::Later,
            None => Answered::Now(closed(CloseIngestorDisposition::ProducerNotOpen)),
        }
    }

    // ---- consumers

    pub fn open_emitter(
        self: &Arc<Self>,
        session: &Arc<Session>,
        request_id: u64,
        request: &OpenEmitterRequest,
    ) -> Result<OpenEmitterOutcome, RequestRejected> {
        check_domain(Some(&request.domain))?;
        if request.emitter.is_empty() {
            return Err(invalid("emitter", "the emitter's name is empty"));
        }
        let name = (session.id, request_id);
        if self.endpoints.lock().consumer_names.contains_key(&name) {
            return Err(taken(request_id));
        }
        let opened = self.change(|state| {
            let now = Now(state.clock.now());
            let in_transaction = self.is_forbidden(state, session, "OpenEmitterRequest");
            let opener = opener(session, in_transaction);
            let opened = state.world.open_consumer(now, opener, request);
            if let Ok((id, _)) = &opened {
                let mut endpoints = self.endpoints.lock();
                endpoints.consumer_names.insert(name, *id);
                endpoints.consumers.insert(
                    *id,
                    Consumer {
                        session: session.clone(),
                        identity: request_id,
                        reads: Vec::new(),
                        closed: false,
                    },
                );
                self.count_endpoints(&endpoints);
            }
            opened
        });
        Ok(match opened {
            Ok((_, opened)) => OpenEmitterOutcome {
                message: format!("a consumer of `{}` is open", opened.emitter),
                disposition: OpenEmitterDisposition::EmitterOpened(opened),
            },
            Err((refusal, message)) => OpenEmitterOutcome {
                disposition: OpenEmitterDisposition::EmitterRefused(EmitterRefused { refusal }),
                message,
            },
        })
    }

    pub fn read_emitter(
        self: &Arc<Self>,
        session: &Session,
        request_id: u64,
        consumer: u64,
    ) -> Result<Answered<ReadEmitterBatchOutcome>, RequestRejected> {
        let parked = self.change(|state| {
            let mut endpoints = self.endpoints.lock();
            let Some(id) = endpoints
                .consumer_names
                .get(&(session.id, consumer))
                .copied()
            else {
                return Ok(false);
            };
            if let Some(consumer) = endpoints.consumers.get_mut(&id) {
                if !consumer.reads.is_empty() {
                    return Err(invalid("consumer", "a read of this consumer waits already"));
                }
                consumer.reads.push(request_id);
                self.counts.parked_reads(1);
            }
            drop(endpoints);
            let now = Now(state.clock.now());
            state.world.read(now, id, Tag(request_id));
            Ok(true)
        })?;
        Ok(if parked {
            Answered::Later
        } else {
            Answered::Now(read_outcome(ReadEmitterDisposition::EmitterConsumerEnded))
        })
    }

    /// Takes back a read that is still parked; false when it was answered or is none.
    pub fn withdraw_read(self: &Arc<Self>, session: &Session, request_id: u64) -> bool {
        self.change(|state| {
            let mut endpoints = self.endpoints.lock();
            let reading = endpoints.consumers.iter_mut().find(|(_, consumer)| {
                consumer.session.id == session.id && consumer.reads.contains(&request_id)
            });
            let Some((id, consumer)) = reading else {
                return false;
            };
            if !state.world.cancel_read(*id, Tag(request_id)) {
                return false;
            }
            consumer.reads.retain(|read| *read != request_id);
            self.counts.parked_reads(-1);
            true
        })
    }

    pub fn settle_batch(
        self: &Arc<Self>,
        session: &Session,
        request: &SettleEmitterBatchRequest,
    ) -> SettleEmitterBatchOutcome {
        let (disposition, message) = self.change(|state| {
            let name = (session.id, request.consumer);
            let id = self.endpoints.lock().consumer_names.get(&name).copied();
            match id {
                Some(id) => state.world.settle(
                    Now(state.clock.now()),
                    id,
                    request.reference,
                    request.decision,
                    &request.reason,
                ),
                None => (
                    EmitterSettlement::ConsumerEnded,
                    "the session has no such consumer".to_owned(),
                ),
            }
        });
        self.journal.note(
            session.id,
            Event::Settled {
                reference: request.reference,
                decision: request.decision,
                settlement: disposition,
            },
        );
        SettleEmitterBatchOutcome {
            disposition,
            message,
        }
    }

    pub fn close_emitter(
        self: &Arc<Self>,
        session: &Session,
        consumer: u64,
    ) -> CloseEmitterOutcome {
        let closed = self.change(|state| {
            let name = (session.id, consumer);
            let id = self.endpoints.lock().consumer_names.get(&name).copied();
            let closed =
                id.is_some_and(|id| state.world.close_consumer(Now(state.clock.now()), id));
            if let Some(id) = id.filter(|_| closed) {
                let mut endpoints = self.endpoints.lock();
                endpoints.consumer_names.remove(&name);
                // The reads that this close ends are still to be answered.
                if let Some(consumer) = endpoints.consumers.get_mut(&id) {
                    consumer.closed = true;
                }
                endpoints.drop_answered(id);
                self.count_endpoints(&endpoints);
            }
            closed
        });
        let (disposition, message) = if closed {
            (EmitterCloseDisposition::Closed, "the consumer is closed")
        } else {
            (
                EmitterCloseDisposition::NotOpen,
                "the session has no such consumer",
            )
        };
        CloseEmitterOutcome {
            disposition,
            message: message.to_owned(),
        }
    }

    // ---- what the graph says

    /// Answers who waits for this, or tells who should know.
    pub(super) fn tell_endpoint(self: &Arc<Self>, effect: Effect) {
        match effect {
            Effect::Submission {
                producer,
                tag,
                disposition,
                message,
            } => self.tell_outcome(
                producer,
                tag.0,
                SubmissionOutcome {
                    disposition,
                    message,
                },
            ),
            Effect::Admission {
                producer,
                admission,
            } => {
                if let Some(producer) = self.endpoints.lock().producers.get(&producer) {
                    let outbox = &producer.session.outbox;
                    outbox.admission_changed(producer.identity, admission);
                }
            }
            Effect::ProducerEnded {
                producer,
                reason,
                message,
            } => self.finish_producer(producer, Finished::Ended(reason, message)),
            Effect::ProducerClosed { producer } => {
                self.finish_producer(producer, Finished::Closed);
            }
            Effect::Read {
                consumer,
                tag,
                received,
            } => {
                let disposition = received.map_or(
                    ReadEmitterDisposition::EmitterConsumerEnded,
                    ReadEmitterDisposition::EmitterBatchReceived,
                );
                self.tell_read(consumer, tag.0, disposition);
            }
            Effect::ConsumerEnded { consumer } => {
                let mut endpoints = self.endpoints.lock();
                if let Some(ended) = endpoints.consumers.get_mut(&consumer) {
                    ended.closed = true;
                    let name = (ended.session.id, ended.identity);
                    endpoints.consumer_names.remove(&name);
                    endpoints.drop_answered(consumer);
                    self.count_endpoints(&endpoints);
                }
            }
            // Whoever takes the graph's effects deals with these.
            Effect::Clock { .. } | Effect::Tick(_) | Effect::Rows(_) => {}
        }
    }

    fn tell_outcome(self: &Arc<Self>, id: ProducerId, request_id: u64, outcome: SubmissionOutcome) {
        let session = {
            let mut endpoints = self.endpoints.lock();
            let Some(producer) = endpoints.producers.get_mut(&id) else {
                return;
            };
            let Some(content) = producer.outstanding.remove(&request_id) else {
                return;
            };
            // Told before it is known to be withheld, so that nobody finishes the producer in between.
            producer.withheld += 1;
            let session = producer.session.clone();
            let seen = match session.forced(request_id) {
                Some(ReplyBody::SubmissionOutcome(forced)) => forced.disposition,
                _ => outcome.disposition.clone(),
            };
            self.counts.batch_concluded(&content, &seen);
            self.counts.outstanding(-1);
            if outcome.disposition
                == not_admitted(SubmissionRefusal::CreditExceeded, "").disposition
            {
                self.counts.violation("CreditExceeded");
            }
            session
        };
        let body = ReplyBody::SubmissionOutcome(outcome);
        let told = conclude(
            self,
            &session,
            request_id,
            "SubmitBatchRequest",
            body,
            move |cluster| cluster.outcome_told(id),
        );
        if told == Told::Now {
            self.outcome_told(id);
        }
    }

    /// An outcome is on its way; what waited for the last of them follows.
    fn outcome_told(self: &Arc<Self>, id: ProducerId) {
        let finished = {
            let mut endpoints = self.endpoints.lock();
            let Some(producer) = endpoints.producers.get_mut(&id) else {
                return;
            };
            producer.withheld = producer.withheld.saturating_sub(1);
            let finished = producer.finished.take();
            endpoints.drop_concluded(id);
            finished
        };
        if let Some(finished) = finished {
            self.finish_producer(id, finished);
        }
    }

    /// Tells that a producer is over, or remembers to, while outcomes of it are withheld.
    fn finish_producer(self: &Arc<Self>, id: ProducerId, finished: Finished) {
        let (session, identity, closing) = {
            let mut endpoints = self.endpoints.lock();
            let Some(producer) = endpoints.producers.get_mut(&id) else {
                return;
            };
            if producer.withheld > 0 {
                producer.finished = Some(finished);
                return;
            }
            producer.over = true;
            let told = (
                producer.session.clone(),
                producer.identity,
                producer.closing.take(),
            );
            endpoints.producer_names.remove(&(told.0.id, told.1));
            endpoints.drop_concluded(id);
            self.count_endpoints(&endpoints);
            told
        };
        let disposition = match finished {
            Finished::Closed => {
                session.outbox.close_producer(identity);
                CloseIngestorDisposition::ProducerClosed
            }
            Finished::Ended(reason, message) => {
                session.outbox.producer_ended(identity, reason, message);
                CloseIngestorDisposition::ProducerNotOpen
            }
        };
        if let Some(request_id) = closing {
            let body = ReplyBody::CloseIngestorOutcome(closed(disposition));
            conclude(
                self,
                &session,
                request_id,
                "CloseIngestorRequest",
                body,
                |_| {},
            );
        }
    }

    fn tell_read(
        self: &Arc<Self>,
        id: ConsumerId,
        request_id: u64,
        disposition: ReadEmitterDisposition,
    ) {
        let session = {
            let mut endpoints = self.endpoints.lock();
            let Some(consumer) = endpoints.consumers.get_mut(&id) else {
                return;
            };
            consumer.reads.retain(|read| *read != request_id);
            let session = consumer.session.clone();
            endpoints.drop_answered(id);
            self.counts.parked_reads(-1);
            session
        };
        if let ReadEmitterDisposition::EmitterBatchReceived(batch) = &disposition {
            let event = Event::Delivered {
                identity: batch.identity,
                reference: batch.reference,
            };
            self.journal.note(session.id, event);
        }
        let body = ReplyBody::ReadEmitterBatchOutcome(read_outcome(disposition));
        conclude(
            self,
            &session,
            request_id,
            "ReadEmitterBatchRequest",
            body,
            |_| {},
        );
    }

    /// Lets go of everything a session has open, when it is over.
    pub(super) fn forget_endpoints(&self, state: &mut State, session: &Session) {
        let now = Now(state.clock.now());
        let mut endpoints = self.endpoints.lock();
        let producers: Vec<ProducerId> = endpoints
            .producers
            .iter()
            .filter(|(_, producer)| producer.session.id == session.id)
            .map(|(id, _)| *id)
            .collect();
        for id in producers {
            if let Some(producer) = endpoints.remove_producer(id) {
                self.counts.outstanding(-delta(producer.outstanding.len()));
                state.world.abandon_producer(now, id);
            }
        }
        let consumers: Vec<ConsumerId> = endpoints
            .consumers
            .iter()
            .filter(|(_, consumer)| consumer.session.id == session.id)
            .map(|(id, _)| *id)
            .collect();
        for id in consumers {
            if let Some(consumer) = endpoints.consumers.remove(&id) {
                endpoints
                    .consumer_names
                    .remove(&(session.id, consumer.identity));
                self.counts.parked_reads(-delta(consumer.reads.len()));
                state.world.close_consumer(now, id);
            }
        }
        self.count_endpoints(&endpoints);
    }

    fn count_endpoints(&self, endpoints: &Endpoints) {
        self.counts.endpoints(
            endpoints.producer_names.len(),
            endpoints.consumer_names.len(),
        );
    }

    // ---- for tests

    /// Suspends an ingestor's producers or lets them go on; false when there is no such ingestor.
    pub fn suspend_ingestor(
        self: &Arc<Self>,
        domain: &str,
        ingestor: &str,
        suspended: bool,
    ) -> bool {
        self.change(|state| {
            let now = Now(state.clock.now());
            if suspended {
                state.world.suspend_ingestor(now, domain, ingestor)
            } else {
                state.world.resume_ingestor(now, domain, ingestor)
            }
        })
    }

    /// Ends producers in the scope, or the one of this identity, and says how many.
    pub fn end_producers(
        self: &Arc<Self>,
        scope: &Scope,
        identity: Option<u64>,
        reason: ProducerEndReason,
    ) -> usize {
        self.change(|state| {
            let now = Now(state.clock.now());
            let producers: Vec<ProducerId> = self
                .endpoints
                .lock()
                .producers
                .iter()
                .filter(|(_, producer)| {
                    scope.covers(producer.session.place())
                        && identity.is_none_or(|identity| identity == producer.identity)
                })
                .map(|(id, _)| *id)
                .collect();
            let mut end = |id: &ProducerId| state.world.end_producer(now, *id, reason);
            producers.iter().filter(|id| end(id)).count()
        })
    }

    pub fn end_consumers(self: &Arc<Self>, scope: &Scope, identity: Option<u64>) -> usize {
        self.change(|state| {
            let now = Now(state.clock.now());
            let consumers: Vec<ConsumerId> = self
                .endpoints
                .lock()
                .consumers
                .iter()
                .filter(|(_, consumer)| {
                    scope.covers(consumer.session.place())
                        && identity.is_none_or(|identity| identity == consumer.identity)
                })
                .map(|(id, _)| *id)
                .collect();
            let mut end = |id: &ConsumerId| state.world.end_consumer(now, *id);
            consumers.iter().filter(|id| end(id)).count()
        })
    }

    /// Forgets what endpoints were to answer.
    pub fn forget_answers(self: &Arc<Self>) {
        self.change(|state| state.world.forget_forced());
    }

    /// Makes an endpoint answer the next request of a kind so.
    pub fn force_at(self: &Arc<Self>, domain: &str, endpoint: &str, forced: &ForcedAt) {
        self.change(|state| match forced {
            ForcedAt::OpenIngestor(refusal) => {
                state
                    .world
                    .force_producer_refusal(domain, endpoint, *refusal);
            }
            ForcedAt::OpenEmitter(refusal) => {
                state
                    .world
                    .force_consumer_refusal(domain, endpoint, *refusal);
            }
            ForcedAt::Submission(disposition) => {
                state
                    .world
                    .force_submission(domain, endpoint, disposition.clone());
            }
            ForcedAt::Settlement(settlement) => {
                state.world.force_settlement(domain, endpoint, *settlement);
            }
        });
    }
}

fn delta(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
