//! The endpoints as a session uses them: producers feed client ingestors, consumers read client emitters, and everything
//! else that happens on its own comes out as effects.
//!
//! Owns the interface and the limits of sessions and nodes. Must not know frames, request identities or leaders: whoever
//! calls gives time and tags, and delivers the effects in their order.

use nervix_wire::types::{
    DomainClockObservation, DomainClockTicked, EmitterBatchDecision, EmitterBatchReceived,
    EmitterOpenRefusal, EmitterOpened, EmitterSettlement, OpenEmitterRequest, OpenIngestorRequest,
    ProducerAdmission, ProducerEndReason, ProducerOpened, ProducerRefusal, SubmissionDisposition,
};

use super::{Delivery, Now, SubscriptionId, World};

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
#[derive(Debug)]
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

impl World {
    // ---- clocks

    /// The clock of a domain, as an attachment learns it; None when there is no such domain.
    pub fn clock(&self, _domain: &str) -> Option<DomainClockObservation> {
        None
    }

    /// For tests: the domain's clock reads as not installed while this is set.
    pub fn set_clock_installed(&mut self, _domain: &str, _installed: bool) -> bool {
        false
    }

    // ---- time

    /// Lets happen what is due: ticks, flushes, timeouts, retries. Every other call that takes the time does so too.
    pub fn advance(&mut self, _now: Now) {}

    /// When `advance` has something to do next, if nothing else happens.
    pub fn next_deadline(&self, _now: Now) -> Option<Now> {
        None
    }

    /// What happened since the last call, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        Vec::new()
    }

    // ---- producers

    pub fn open_producer(
        &mut self,
        _now: Now,
        _opener: Opener,
        _request: &OpenIngestorRequest,
    ) -> Result<(ProducerId, ProducerOpened), (ProducerRefusal, String)> {
        Err((ProducerRefusal::DomainNotFound, String::new()))
    }

    /// Submits one batch; its outcome is an `Effect::Submission` with this tag, now or later.
    pub fn submit(&mut self, _now: Now, _producer: ProducerId, _tag: Tag, _batch: &[u8]) {}

    /// Closes a producer, for CloseIngestorRequest: `Effect::ProducerClosed` follows its last outcome. False when it is not
    /// open.
    pub fn close_producer(&mut self, _now: Now, _producer: ProducerId) -> bool {
        false
    }

    /// Forgets a producer whose session is gone: nothing more is said about it. What it submitted goes on.
    pub fn abandon_producer(&mut self, _now: Now, _producer: ProducerId) {}

    // ---- consumers

    pub fn open_consumer(
        &mut self,
        _now: Now,
        _opener: Opener,
        _request: &OpenEmitterRequest,
    ) -> Result<(ConsumerId, EmitterOpened), (EmitterOpenRefusal, String)> {
        Err((EmitterOpenRefusal::DomainNotFound, String::new()))
    }

    /// Parks a read; it is answered by an `Effect::Read` with this tag, now or later. Several are answered in order.
    pub fn read(&mut self, _now: Now, _consumer: ConsumerId, _tag: Tag) {}

    /// Takes a parked read back; false when it was answered.
    pub fn cancel_read(&mut self, _consumer: ConsumerId, _tag: Tag) -> bool {
        false
    }

    pub fn settle(
        &mut self,
        _now: Now,
        _consumer: ConsumerId,
        _reference: [u8; 16],
        _decision: EmitterBatchDecision,
        _reason: &str,
    ) -> (EmitterSettlement, String) {
        (EmitterSettlement::ConsumerEnded, String::new())
    }

    /// Closes a consumer, for CloseEmitterRequest and for a session that is gone: its references are revoked, its parked
    /// reads answered. False when it is not open.
    pub fn close_consumer(&mut self, _now: Now, _consumer: ConsumerId) -> bool {
        false
    }

    // ---- subscriptions that hold their relay back

    /// Says whether a BLOCKING subscription has room: while one has none, its relay takes no rows.
    pub fn set_reader_room(&mut self, _now: Now, _subscription: SubscriptionId, _room: bool) {}

    // ---- faults, for tests; false when there is nothing of that name

    /// Quiesces an ingestor: its producers read Suspended, and submissions are refused so.
    pub fn suspend_ingestor(&mut self, _now: Now, _domain: &str, _ingestor: &str) -> bool {
        false
    }

    pub fn resume_ingestor(&mut self, _now: Now, _domain: &str, _ingestor: &str) -> bool {
        false
    }

    /// The next open of this ingestor is refused so.
    pub fn force_producer_refusal(
        &mut self,
        _domain: &str,
        _ingestor: &str,
        _refusal: ProducerRefusal,
    ) {
    }

    /// The next open of this emitter is refused so.
    pub fn force_consumer_refusal(
        &mut self,
        _domain: &str,
        _emitter: &str,
        _refusal: EmitterOpenRefusal,
    ) {
    }

    /// The next submissions to this ingestor end so and are otherwise ignored; Busy n times is n calls of this.
    pub fn force_submission(
        &mut self,
        _domain: &str,
        _ingestor: &str,
        _disposition: SubmissionDisposition,
    ) {
    }

    /// The next settlement at this emitter is answered so and otherwise ignored.
    pub fn force_settlement(
        &mut self,
        _domain: &str,
        _emitter: &str,
        _settlement: EmitterSettlement,
    ) {
    }

    /// Ends a producer: its admitted batches become OutcomeUnknown first.
    pub fn end_producer(
        &mut self,
        _now: Now,
        _producer: ProducerId,
        _reason: ProducerEndReason,
    ) -> bool {
        false
    }

    /// Ends a consumer as if its attachment were lost.
    pub fn end_consumer(&mut self, _now: Now, _consumer: ConsumerId) -> bool {
        false
    }
}
