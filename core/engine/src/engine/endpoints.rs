//! Producers and consumers: opening, credit, sending, reading, settling, and following an endpoint across sessions
//! (P-1 to P-8, EC-1 to EC-6, B-14 to B-16).
//!
//! Owns the endpoints of a session. Reaches exchanges only through the engine it belongs to; knows nothing of Arrow: a batch is
//! bytes here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use nervix_wire::types::{
    CancellationStage, ClientRequest, CloseEmitterOutcome, CloseEmitterRequest,
    CloseIngestorOutcome, CloseIngestorRequest, EmitterBatchDecision, OpenEmitterDisposition,
    OpenEmitterRequest, OpenIngestorDisposition, OpenIngestorRequest, OutcomeUncertainty,
    ProducerAdmission, ProducerEndReason, ReadEmitterBatchRequest, ReadEmitterDisposition,
    ReplyBody, RequestRejected, SettleEmitterBatchRequest, SubmissionDisposition,
    SubmissionRefusal, SubmitBatchRequest,
};
use nervix_wire::Violation;

use super::{describe_rejection, is_busy, Engine};
use crate::api::{
    CallId, ConnId, Decision, Delivery, Done, EndpointId, EndpointState, Error, ErrorKind, Now,
    Role, Settlement, SubmissionOutcome, SubmissionResult, Uncertainty,
};
use crate::contract::{Contract, OpenRefusal, OpenRequest, ReopenReason};
use crate::exchange::{Asked, Unsent};
use crate::reach::{Backoff, BACKGROUND, RETRY};

/// Where an endpoint is attached: its exchange, and the identity of its open on it (P-2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wire {
    pub(super) conn: ConnId,
    pub(super) id: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Attached(Wire),
    /// The close was sent, or is about to be.
    Closing {
        wire: Wire,
        asked: bool,
    },
    /// No exchange holds it; it is opened again for the next call that needs it, not before this time.
    Interrupted {
        due: u64,
    },
    Restoring(ConnId),
    Over(ReopenReason, Option<OpenRefusal>),
    Closed,
}

/// One producer or consumer of the host, across all its attachments.
#[derive(Debug)]
struct Endpoint {
    asked: OpenRequest,
    contract: Arc<Contract>,
    place: Place,
    backoff: Backoff,
    /// Calls that wait until it is released.
    closes: Vec<CallId>,
    /// The host let go of it.
    freed: bool,
    side: Side,
}

#[derive(Debug)]
enum Side {
    Producer(Producer),
    Consumer(Consumer),
}

#[derive(Debug)]
struct Producer {
    admission: ProducerAdmission,
    next: u64,
    submissions: BTreeMap<u64, Submission>,
    held_bytes: u64,
    /// Batches that wait for credit or for an attachment.
    submits: VecDeque<Submit>,
    rejoins: Vec<(CallId, u64)>,
}

#[derive(Debug)]
struct Submit {
    call: CallId,
    batch: Bytes,
    deadline: u64,
}

#[derive(Debug)]
struct Submission {
    batch: Bytes,
    bytes: u64,
    state: Sent,
    /// The wait after the next refusal that is sent again (P-5).
    wait: u64,
    released: bool,
}

#[derive(Debug)]
enum Sent {
    /// To be sent once admission is open, not before this time.
    Not {
        due: u64,
    },
    /// Its answer is due from the exchange of this attachment, ended or not.
    Flying(Wire),
    Resolved(SubmissionOutcome),
}

#[derive(Debug, Default)]
struct Consumer {
    /// A read is parked on the attachment.
    reading: bool,
    /// A read that was not admitted is sent again, but not before this time.
    due: u64,
    backoff: Backoff,
    ready: Option<Delivery>,
    waiting: VecDeque<CallId>,
    /// An attachment ended and no call was told.
    interrupted: Option<String>,
}

/// An open that its caller waits for.
#[derive(Debug)]
pub(super) struct Opening {
    role: Role,
    request: OpenRequest,
    pub(super) deadline: u64,
    pub(super) due: u64,
    backoff: Backoff,
    pub(super) flight: Option<ConnId>,
}

/// A settlement that its caller waits for.
#[derive(Debug)]
pub(super) struct Settling {
    endpoint: EndpointId,
    wire: Wire,
    reference: [u8; 16],
    decision: Decision,
    pub(super) deadline: u64,
    pub(super) due: u64,
    backoff: Backoff,
    pub(super) flight: bool,
}

/// The endpoints of a session and what is asked of them.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    next: u64,
    all: BTreeMap<EndpointId, Endpoint>,
    pub(super) opens: BTreeMap<CallId, Opening>,
    pub(super) settles: BTreeMap<CallId, Settling>,
    /// What was opened for nobody, and is not yet asked to be let go of.
    releases: Vec<(Wire, Role)>,
}

impl Endpoints {
    /// Whether any of them is attached to this exchange.
    pub(super) fn any_on(&self, conn: ConnId) -> bool {
        self.all
            .values()
            .any(|endpoint| endpoint.wire().is_some_and(|wire| wire.conn == conn))
    }

    /// Whether an answer that may take any time is due from this exchange.
    pub(super) fn any_waiting_on(&self, conn: ConnId) -> bool {
        self.all.values().any(|endpoint| {
            endpoint.wire().is_some_and(|wire| wire.conn == conn)
                && match &endpoint.side {
                    _ if matches!(endpoint.place, Place::Closing { .. }) => true,
                    Side::Producer(producer) => {
                        !producer.submits.is_empty()
                            || producer
                                .submissions
                                .values()
                                .any(|submission| !matches!(submission.state, Sent::Resolved(_)))
                    }
                    Side::Consumer(consumer) => consumer.reading || !consumer.waiting.is_empty(),
                }
        })
    }

    /// Whether something waits for an endpoint to be opened.
    pub(super) fn want_session(&self) -> bool {
        !self.opens.is_empty() || self.all.values().any(Endpoint::wants_attachment)
    }

    fn find(&self, wire: Wire) -> Option<EndpointId> {
        self.all
            .iter()
            .find(|(_, endpoint)| endpoint.wire() == Some(wire))
            .map(|(id, _)| *id)
    }

    /// The next time at which something here is to be done on an exchange that is open.
    pub(super) fn next_due(&self, open: bool) -> Option<u64> {
        let mut due: Vec<u64> = Vec::new();
        due.extend(
            self.opens
                .values()
                .filter(|open| open.flight.is_none() && open.due > 0)
                .map(|open| open.due),
        );
        due.extend(
            self.settles
                .values()
                .filter(|one| !one.flight && one.due > 0)
                .map(|one| one.due),
        );
        for endpoint in self.all.values() {
            if let (Place::Interrupted { due: at }, true, true) =
                (endpoint.place, open, endpoint.wants_attachment())
            {
                due.push(at);
            }
            if let (Side::Consumer(consumer), Place::Attached(_)) = (&endpoint.side, endpoint.place)
            {
                if !consumer.waiting.is_empty() && !consumer.reading && consumer.due > 0 {
                    due.push(consumer.due);
                }
            }
            if let (Side::Producer(producer), Place::Attached(_)) = (&endpoint.side, endpoint.place)
            {
                if producer.admission == ProducerAdmission::Open {
                    due.extend(
                        producer
                            .submissions
                            .values()
                            .filter_map(|one| match one.state {
                                Sent::Not { due } if due > 0 => Some(due),
                                _ => None,
                            }),
                    );
                }
            }
        }
        due.into_iter().min()
    }

    /// The earliest deadline of a call that has one.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let opens = self.opens.values().map(|open| open.deadline);
        let settles = self.settles.values().map(|one| one.deadline);
        let submits = self.all.values().flat_map(|endpoint| match &endpoint.side {
            Side::Producer(producer) => producer
                .submits
                .iter()
                .map(|submit| submit.deadline)
                .collect(),
            Side::Consumer(_) => Vec::new(),
        });
        opens.chain(settles).chain(submits).min()
    }
}

impl Endpoint {
    fn new(
        role: Role,
        asked: OpenRequest,
        contract: Contract,
        wire: Wire,
        admission: ProducerAdmission,
    ) -> Self {
        let side = match role {
            Role::Producer => Side::Producer(Producer {
                admission,
                next: 1,
                submissions: BTreeMap::new(),
                held_bytes: 0,
                submits: VecDeque::new(),
                rejoins: Vec::new(),
            }),
            Role::Consumer => Side::Consumer(Consumer::default()),
        };
        Self {
            asked,
            contract: Arc::new(contract),
            place: Place::Attached(wire),
            backoff: Backoff::default(),
            closes: Vec::new(),
            freed: false,
            side,
        }
    }

    fn wire(&self) -> Option<Wire> {
        match self.place {
            Place::Attached(wire) | Place::Closing { wire, .. } => Some(wire),
            _ => None,
        }
    }

    fn role(&self) -> Role {
        match self.side {
            Side::Producer(_) => Role::Producer,
            Side::Consumer(_) => Role::Consumer,
        }
    }

    /// Whether a call waits until an interrupted endpoint is attached again.
    fn wants_attachment(&self) -> bool {
        let waiting = match &self.side {
            Side::Producer(producer) => !producer.submits.is_empty(),
            Side::Consumer(consumer) => !consumer.waiting.is_empty(),
        };
        waiting && matches!(self.place, Place::Interrupted { .. })
    }

    fn state(&self) -> EndpointState {
        match self.place {
            Place::Attached(_) => EndpointState::Active,
            Place::Interrupted { .. } => EndpointState::Interrupted,
            Place::Restoring(_) => EndpointState::Restoring,
            Place::Over(..) => EndpointState::ReopenRequired,
            Place::Closing { .. } | Place::Closed => EndpointState::Closed,
        }
    }
}

impl Producer {
    /// Gives a submission its outcome, for every call that waits for it; without one it is kept until it is taken.
    fn resolve(
        &mut self,
        submission: u64,
        outcome: SubmissionOutcome,
    ) -> Vec<(CallId, SubmissionOutcome)> {
        let Some(held) = self.submissions.get_mut(&submission) else {
            return Vec::new();
        };
        if matches!(held.state, Sent::Resolved(_)) {
            return Vec::new();
        }
        let (waiting, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.rejoins)
            .into_iter()
            .partition(|(_, wanted)| *wanted == submission);
        self.rejoins = others;
        // A call that waits is told even of a submission that another one let go.
        if held.released || !waiting.is_empty() {
            self.forget(submission);
        } else {
            held.state = Sent::Resolved(outcome.clone());
            // Its credit is held until the outcome is taken; its bytes are needed no more.
            held.batch = Bytes::new();
        }
        waiting
            .into_iter()
            .map(|(call, _)| (call, outcome.clone()))
            .collect()
    }

    fn forget(&mut self, submission: u64) {
        if let Some(held) = self.submissions.remove(&submission) {
            self.held_bytes = self.held_bytes.saturating_sub(held.bytes);
        }
    }
}

fn unknown(cause: Uncertainty, message: &str) -> SubmissionOutcome {
    SubmissionOutcome {
        result: SubmissionResult::OutcomeUnknown(cause),
        message: message.to_owned(),
    }
}

fn not_admitted(refusal: SubmissionRefusal, message: &str) -> SubmissionOutcome {
    SubmissionOutcome {
        result: SubmissionResult::NotAdmitted(refusal),
        message: message.to_owned(),
    }
}

fn reopen_error(reason: ReopenReason, refusal: Option<OpenRefusal>) -> Error {
    let why = match reason {
        ReopenReason::DomainStopped => "the domain was stopped",
        ReopenReason::EndpointRemoved => "the endpoint was removed",
        ReopenReason::SchemaChanged => "the endpoint's fields changed",
        ReopenReason::ContractChanged => "the endpoint's contract or grant changed",
        ReopenReason::GenerationChanged => "the domain was started again",
        ReopenReason::ProtocolViolated => "the server says that the protocol was violated",
        ReopenReason::Refused => "the server refuses to open it again",
    };
    let refusal = refusal.map_or_else(String::new, |refusal| format!(" ({})", refusal.text()));
    let message = format!("the handle is over: {why}{refusal}; check what you expect of the endpoint and open a new handle");
    Error::new(ErrorKind::ReopenRequired, message)
}

impl Engine {
    // ---- calls

    pub(super) fn open_endpoint(
        &mut self,
        now: Now,
        call: CallId,
        role: Role,
        request: OpenRequest,
    ) {
        if self.holds_transaction() {
            let refusal = OpenRefusal::InTransaction;
            let message = "nothing is opened while the session holds a transaction: COMMIT or REVERT it first";
            let error = Error {
                refusal: Some(refusal),
                ..Error::new(ErrorKind::Rejected, message)
            };
            self.finish(call, Err(error));
            return;
        }
        let deadline = now.mono.saturating_add(self.config.retry_timeout);
        let backoff = Backoff::default();
        self.endpoints.opens.insert(
            call,
            Opening {
                role,
                request,
                deadline,
                due: 0,
                backoff,
                flight: None,
            },
        );
        self.hurry(now);
    }

    pub(super) fn submit(&mut self, now: Now, call: CallId, id: EndpointId, batch: Bytes) {
        let deadline = now.mono.saturating_add(self.config.retry_timeout);
        let bytes = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let error = match self.endpoints.all.get_mut(&id) {
            None => Error::new(ErrorKind::Closed, "the producer was closed"),
            Some(endpoint) => {
                match (&mut endpoint.side, endpoint.place) {
                    (_, Place::Over(reason, refusal)) => reopen_error(reason, refusal),
                    (_, Place::Closed | Place::Closing { .. }) => {
                        Error::new(ErrorKind::Closed, "the producer was closed")
                    }
                    (Side::Consumer(_), _) => {
                        Error::new(ErrorKind::InvalidArgument, "this is no producer")
                    }
                    (Side::Producer(_), _)
                        if bytes == 0 || bytes > endpoint.contract.max_batch_bytes =>
                    {
                        let limit = endpoint.contract.max_batch_bytes;
                        let message = format!("a batch must be 1 to {limit} bytes of Arrow IPC, and this one has {bytes}");
                        Error::new(ErrorKind::InvalidArgument, message)
                    }
                    (Side::Producer(producer), _) => {
                        producer.submits.push_back(Submit {
                            call,
                            batch,
                            deadline,
                        });
                        self.hurry(now);
                        return;
                    }
                }
            }
        };
        self.finish(call, Err(error));
    }

    pub(super) fn rejoin(&mut self, call: CallId, id: EndpointId, submission: u64) {
        if let Some(Side::Producer(producer)) = self
            .endpoints
            .all
            .get_mut(&id)
            .map(|endpoint| &mut endpoint.side)
        {
            match producer.submissions.get(&submission) {
                Some(Submission {
                    state: Sent::Resolved(outcome),
                    ..
                }) => {
                    let outcome = outcome.clone();
                    producer.forget(submission);
                    self.finish(call, Ok(Done::Submission(outcome)));
                    return;
                }
                Some(held) if !held.released => {
                    producer.rejoins.push((call, submission));
                    return;
                }
                _ => {}
            }
        }
        let message = format!("the producer holds no submission {submission}: its outcome was taken, or it was never submitted");
        self.finish(call, Err(Error::new(ErrorKind::InvalidArgument, message)));
    }

    pub(super) fn next_delivery(&mut self, now: Now, call: CallId, id: EndpointId) {
        let error = match self.endpoints.all.get_mut(&id) {
            None => Error::new(ErrorKind::Closed, "the consumer was closed"),
            Some(endpoint) => match (&mut endpoint.side, endpoint.place) {
                (_, Place::Closed | Place::Closing { .. }) => {
                    Error::new(ErrorKind::Closed, "the consumer was closed")
                }
                (Side::Producer(_), _) => {
                    Error::new(ErrorKind::InvalidArgument, "this is no consumer")
                }
                (Side::Consumer(consumer), place) => match (consumer.interrupted.take(), place) {
                    (Some(why), _) => Error::new(ErrorKind::Interrupted, why),
                    (None, Place::Over(reason, refusal)) => reopen_error(reason, refusal),
                    (None, _) => {
                        consumer.waiting.push_back(call);
                        self.hurry(now);
                        return;
                    }
                },
            },
        };
        self.finish(call, Err(error));
    }

    pub(super) fn settle_delivery(
        &mut self,
        now: Now,
        call: CallId,
        delivery: &Delivery,
        decision: Decision,
    ) {
        let wire = Wire {
            conn: delivery.conn,
            id: delivery.wire,
        };
        let settling = Settling {
            endpoint: delivery.consumer,
            wire,
            reference: delivery.reference,
            decision,
            deadline: now.mono.saturating_add(self.config.retry_timeout),
            due: 0,
            backoff: Backoff::default(),
            flight: false,
        };
        self.endpoints.settles.insert(call, settling);
    }

    /// Stops an endpoint's traffic and, when it is attached, asks the server to release it.
    pub(super) fn close_endpoint(&mut self, call: Option<CallId>, id: EndpointId) {
        let Some(endpoint) = self.endpoints.all.get_mut(&id) else {
            if let Some(call) = call {
                self.finish(call, Ok(Done::Closed));
            }
            return;
        };
        endpoint.freed |= call.is_none();
        let what = match endpoint.role() {
            Role::Producer => "the producer was closed",
            Role::Consumer => "the consumer was closed",
        };
        match endpoint.place {
            Place::Attached(wire) => {
                endpoint.place = Place::Closing { wire, asked: false };
                endpoint.closes.extend(call);
            }
            Place::Closing { .. } => endpoint.closes.extend(call),
            // A restoration in flight is fenced: what it opens is released again.
            _ => {
                endpoint.place = Place::Closed;
                if let Some(call) = call {
                    self.finish(call, Ok(Done::Closed));
                }
            }
        }
        self.refuse_waiting(id, &Error::new(ErrorKind::Closed, what), what);
        self.forget_endpoint(id);
    }

    /// The host stops waiting for a call of an endpoint; true when there was one.
    pub(super) fn stop_endpoint_call(
        &mut self,
        now: Now,
        call: CallId,
        kind: ErrorKind,
        reason: &str,
    ) -> bool {
        if let Some(open) = self.endpoints.opens.remove(&call) {
            if let Some(conn) = open.flight {
                self.cancel_request(now, conn, Asked::Open(call, open.role));
            }
            self.finish(
                call,
                Err(Error::new(kind, format!("nothing was opened: {reason}"))),
            );
            return true;
        }
        if let Some(settling) = self.endpoints.settles.remove(&call) {
            let effect = if settling.flight {
                "the delivery may have been settled; settling it again tells"
            } else {
                "this settlement was not sent"
            };
            self.finish(call, Err(Error::new(kind, format!("{reason}: {effect}"))));
            return true;
        }
        for endpoint in self.endpoints.all.values_mut() {
            if let Some(at) = endpoint.closes.iter().position(|other| *other == call) {
                endpoint.closes.swap_remove(at);
                let message = format!("{reason}: the endpoint is being closed and will be");
                self.finish(call, Err(Error::new(kind, message)));
                return true;
            }
            let message = match &mut endpoint.side {
                Side::Producer(producer) => {
                    if let Some(at) = producer
                        .submits
                        .iter()
                        .position(|submit| submit.call == call)
                    {
                        producer.submits.remove(at);
                        Some(format!("{reason}: nothing was submitted"))
                    } else if let Some(at) = producer
                        .rejoins
                        .iter()
                        .position(|(other, _)| *other == call)
                    {
                        producer.rejoins.swap_remove(at);
                        Some(format!("{reason}: the submission stays with the producer; ask again for its outcome"))
                    } else {
                        None
                    }
                }
                Side::Consumer(consumer) => {
                    let at = consumer.waiting.iter().position(|other| *other == call);
                    at.map(|at| {
                        consumer.waiting.remove(at);
                        format!("{reason}: no delivery was taken")
                    })
                }
            };
            if let Some(message) = message {
                self.finish(call, Err(Error::new(kind, message)));
                return true;
            }
        }
        false
    }

    // ---- what hosts read without waiting

    /// What an endpoint's open established; None when it is not known to this engine.
    pub fn endpoint_contract(&self, id: EndpointId) -> Option<Arc<Contract>> {
        self.endpoints
            .all
            .get(&id)
            .map(|endpoint| Arc::clone(&endpoint.contract))
    }

    pub fn endpoint_state(&self, id: EndpointId) -> EndpointState {
        self.endpoints
            .all
            .get(&id)
            .map_or(EndpointState::Closed, Endpoint::state)
    }

    /// Why a handle is over, and the refusal when that is why.
    pub fn reopen_reason(&self, id: EndpointId) -> Option<(ReopenReason, Option<OpenRefusal>)> {
        match self.endpoints.all.get(&id)?.place {
            Place::Over(reason, refusal) => Some((reason, refusal)),
            _ => None,
        }
    }

    /// Whether new batches are admitted now; never without an attachment.
    pub fn admission(&self, id: EndpointId) -> ProducerAdmission {
        match self.endpoints.all.get(&id) {
            Some(Endpoint {
                place: Place::Attached(_),
                side: Side::Producer(producer),
                ..
            }) => producer.admission,
            _ => ProducerAdmission::Suspended,
        }
    }

    /// The submissions whose outcome was not taken, in order, and whether each has one.
    pub fn pending(&self, id: EndpointId) -> Vec<(u64, bool)> {
        match self.endpoints.all.get(&id).map(|endpoint| &endpoint.side) {
            Some(Side::Producer(producer)) => producer
                .submissions
                .iter()
                .filter(|(_, held)| !held.released)
                .map(|(id, held)| (*id, matches!(held.state, Sent::Resolved(_))))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Lets a submission go: hands out its outcome when it has one, or drops it when it comes. None for one not held.
    pub fn release_submission(
        &mut self,
        now: Now,
        id: EndpointId,
        submission: u64,
    ) -> Option<Option<SubmissionOutcome>> {
        let released = match self
            .endpoints
            .all
            .get_mut(&id)
            .map(|endpoint| &mut endpoint.side)
        {
            Some(Side::Producer(producer)) => match producer.submissions.get_mut(&submission) {
                Some(held) if !held.released => match &held.state {
                    Sent::Resolved(outcome) => {
                        let outcome = outcome.clone();
                        producer.forget(submission);
                        Some(Some(outcome))
                    }
                    _ => {
                        held.released = true;
                        Some(None)
                    }
                },
                _ => None,
            },
            _ => None,
        };
        self.drive(now);
        released
    }

    /// The host lets go of an endpoint: it is closed, and nobody waits for that.
    pub fn free_endpoint(&mut self, now: Now, id: EndpointId) {
        self.close_endpoint(None, id);
        self.drive(now);
    }

    // ---- what arrives

    pub(super) fn endpoint_reply(
        &mut self,
        now: Now,
        wire: Wire,
        asked: Asked,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        match (asked, body) {
            (Asked::Open(call, role), body) => self.open_reply(now, wire, call, role, body)?,
            (Asked::Restore(id), body) => self.restore_reply(now, wire, id, body)?,
            (Asked::Submit(id, submission), body) => {
                self.submit_reply(now, id, submission, body)?
            }
            (Asked::Read(id), body) => self.read_reply(now, wire.conn, id, body)?,
            (Asked::Settle(call), body) => self.settle_reply(now, call, body)?,
            (
                Asked::Close(id),
                ReplyBody::CloseIngestorOutcome(CloseIngestorOutcome { .. })
                | ReplyBody::CloseEmitterOutcome(CloseEmitterOutcome { .. })
                | ReplyBody::RequestRejected(_)
                | ReplyBody::RequestCancelled(_),
            ) => self.closed(id),
            (
                Asked::Release,
                ReplyBody::CloseIngestorOutcome(_)
                | ReplyBody::CloseEmitterOutcome(_)
                | ReplyBody::RequestRejected(_)
                | ReplyBody::RequestCancelled(_),
            ) => {}
            _ => {
                return Err(Violation::new(
                    "C-4",
                    "a reply of a kind that does not answer its request",
                ))
            }
        }
        Ok(())
    }

    /// Reads the answer to an open of either side.
    fn opened_or_refused(role: Role, body: ReplyBody) -> Result<Opened, Violation> {
        Ok(match (role, body) {
            (Role::Producer, ReplyBody::OpenIngestorOutcome(outcome)) => {
                match outcome.disposition {
                    OpenIngestorDisposition::ProducerOpened(opened) => {
                        Opened::Yes(Contract::of_producer(&opened), opened.admission)
                    }
                    OpenIngestorDisposition::ProducerRefused(refused) => {
                        Opened::No(refused.refusal.into(), outcome.message)
                    }
                }
            }
            (Role::Consumer, ReplyBody::OpenEmitterOutcome(outcome)) => match outcome.disposition {
                OpenEmitterDisposition::EmitterOpened(opened) => {
                    Opened::Yes(Contract::of_consumer(&opened), ProducerAdmission::Open)
                }
                OpenEmitterDisposition::EmitterRefused(refused) => {
                    Opened::No(refused.refusal.into(), outcome.message)
                }
            },
            (_, ReplyBody::RequestRejected(rejected)) => Opened::Rejected(rejected),
            (_, ReplyBody::RequestCancelled(cancelled)) => Opened::Cancelled(cancelled.stage),
            _ => {
                return Err(Violation::new(
                    "C-4",
                    "a reply that does not answer an open",
                ))
            }
        })
    }

    fn open_reply(
        &mut self,
        now: Now,
        wire: Wire,
        call: CallId,
        role: Role,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        let opened = Self::opened_or_refused(role, body)?;
        // What it opened for nobody is released: its caller stopped waiting, or will not know of it (C-9).
        let waiting = self.endpoints.opens.remove(&call);
        if matches!(
            (&opened, &waiting),
            (Opened::Yes(..), None) | (Opened::Cancelled(CancellationStage::AfterAdmission), _)
        ) {
            self.release_wire(now, wire, role);
        }
        let Some(mut open) = waiting else {
            return Ok(());
        };
        match opened {
            Opened::Yes(contract, admission) => {
                let id = EndpointId(self.endpoints.next);
                self.endpoints.next = self.endpoints.next.saturating_add(1);
                let endpoint = Endpoint::new(role, open.request, contract, wire, admission);
                let contract = Arc::clone(&endpoint.contract);
                // It is followed before its caller is told, so that what the server says next finds it (P-2).
                self.endpoints.all.insert(id, endpoint);
                self.finish(call, Ok(Done::Endpoint(id, contract)));
            }
            Opened::No(refusal, message) => {
                let message = format!(
                    "the server refused to open it: {}: {message}",
                    refusal.text()
                );
                let error = Error {
                    refusal: Some(refusal),
                    ..Error::new(ErrorKind::Rejected, message)
                };
                self.finish(call, Err(error));
            }
            Opened::Rejected(rejected) if is_busy(&rejected) => {
                open.due = now
                    .mono
                    .saturating_add(open.backoff.next(RETRY, &mut self.jitter));
                open.flight = None;
                self.endpoints.opens.insert(call, open);
            }
            Opened::Rejected(rejected) => {
                self.finish(
                    call,
                    Err(Error::new(
                        ErrorKind::Rejected,
                        describe_rejection(&rejected),
                    )),
                );
            }
            Opened::Cancelled(_) => {
                self.finish(
                    call,
                    Err(Error::new(
                        ErrorKind::Cancelled,
                        "the server cancelled the open",
                    )),
                );
            }
        }
        Ok(())
    }

    fn restore_reply(
        &mut self,
        now: Now,
        wire: Wire,
        id: EndpointId,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        let role = match (&body, self.endpoints.all.get(&id)) {
            (_, Some(endpoint)) => endpoint.role(),
            (ReplyBody::OpenEmitterOutcome(_), None) => Role::Consumer,
            (_, None) => Role::Producer,
        };
        let opened = Self::opened_or_refused(role, body)?;
        let wanted = self
            .endpoints
            .all
            .get_mut(&id)
            .filter(|endpoint| endpoint.place == Place::Restoring(wire.conn));
        let Some(endpoint) = wanted else {
            // Closing it won (P-8, EC-6).
            if let Opened::Yes(..) = opened {
                self.release_wire(now, wire, role);
            }
            return Ok(());
        };
        match opened {
            Opened::Yes(contract, admission) => match endpoint.contract.drift(&contract) {
                None => {
                    endpoint.place = Place::Attached(wire);
                    endpoint.backoff.reset();
                    if let Side::Producer(producer) = &mut endpoint.side {
                        producer.admission = admission;
                    }
                }
                Some(reason) => {
                    self.over(id, reason, None);
                    self.release_wire(now, wire, role);
                }
            },
            Opened::No(refusal, _) if !refusal.is_temporary() => {
                let (reason, refusal) = refusal.ends_with();
                self.over(id, reason, refusal);
            }
            Opened::No(..) | Opened::Rejected(_) | Opened::Cancelled(_) => {
                let wait = endpoint.backoff.next(BACKGROUND, &mut self.jitter);
                endpoint.place = Place::Interrupted {
                    due: now.mono.saturating_add(wait),
                };
            }
        }
        Ok(())
    }

    fn submit_reply(
        &mut self,
        now: Now,
        id: EndpointId,
        submission: u64,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        let Some(endpoint) = self.endpoints.all.get_mut(&id) else {
            return Ok(());
        };
        let (place, contract) = (endpoint.place, Arc::clone(&endpoint.contract));
        let Side::Producer(producer) = &mut endpoint.side else {
            return Ok(());
        };
        let Some(held) = producer.submissions.get_mut(&submission) else {
            return Ok(());
        };
        let open = matches!(held.state, Sent::Flying(wire) if place == Place::Attached(wire));
        let (result, message, again) = match body {
            ReplyBody::SubmissionOutcome(outcome) => {
                let (result, again) = match outcome.disposition {
                    SubmissionDisposition::SubmissionCompleted => {
                        (SubmissionResult::Completed, false)
                    }
                    SubmissionDisposition::SubmissionNotAdmitted(refused) => (
                        SubmissionResult::NotAdmitted(refused.refusal),
                        matches!(
                            refused.refusal,
                            SubmissionRefusal::Suspended | SubmissionRefusal::Busy
                        ),
                    ),
                    SubmissionDisposition::SubmissionFailed(failed) => {
                        (SubmissionResult::ProcessingFailed(failed.failure), false)
                    }
                    SubmissionDisposition::SubmissionOutcomeUnknown(unknown) => {
                        let cause = match unknown.cause {
                            OutcomeUncertainty::Interrupted => Uncertainty::Interrupted,
                            OutcomeUncertainty::OwnerLost => Uncertainty::OwnerLost,
                        };
                        (SubmissionResult::OutcomeUnknown(cause), false)
                    }
                };
                (result, outcome.message, again)
            }
            ReplyBody::RequestRejected(rejected) => {
                let message = describe_rejection(&rejected);
                (
                    SubmissionResult::NotAdmitted(SubmissionRefusal::MalformedBatch),
                    message,
                    is_busy(&rejected),
                )
            }
            ReplyBody::RequestCancelled(_) => (
                SubmissionResult::OutcomeUnknown(Uncertainty::Interrupted),
                "the server cancelled it".to_owned(),
                false,
            ),
            _ => {
                return Err(Violation::new(
                    "C-4",
                    "a reply that does not answer a submission",
                ))
            }
        };
        if again && open {
            held.state = Sent::Not {
                due: now.mono.saturating_add(held.wait),
            };
            held.wait = held
                .wait
                .saturating_mul(2)
                .min(contract.retry_max_backoff_nanos);
            return Ok(());
        }
        // The attachment it was sent on is over, and what was not admitted goes through no other.
        let result = if again {
            SubmissionResult::NotAdmitted(SubmissionRefusal::ProducerEnded)
        } else {
            result
        };
        let message: String = message.chars().take(MESSAGE_CHARS).collect();
        let message = if result == SubmissionResult::Completed {
            String::new()
        } else {
            message
        };
        for (call, outcome) in producer.resolve(submission, SubmissionOutcome { result, message }) {
            self.finish(call, Ok(Done::Submission(outcome)));
        }
        Ok(())
    }

    fn read_reply(
        &mut self,
        now: Now,
        conn: ConnId,
        id: EndpointId,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        let Some(endpoint) = self.endpoints.all.get_mut(&id) else {
            return Ok(());
        };
        let wire = endpoint.wire().filter(|wire| wire.conn == conn);
        let attached = matches!(endpoint.place, Place::Attached(_));
        let Side::Consumer(consumer) = &mut endpoint.side else {
            return Ok(());
        };
        let Some(wire) = wire else { return Ok(()) };
        consumer.reading = false;
        match body {
            ReplyBody::ReadEmitterBatchOutcome(outcome) => match outcome.disposition {
                ReadEmitterDisposition::EmitterBatchReceived(batch) if attached => {
                    consumer.backoff.reset();
                    let delivery = Delivery {
                        consumer: id,
                        conn: wire.conn,
                        wire: wire.id,
                        identity: batch.identity,
                        reference: batch.reference,
                        source_relay: Arc::from(batch.source_relay.as_str()),
                        branch_fingerprint: batch.branch_fingerprint,
                        batch: batch.batch,
                        members: batch.members,
                        execution_now: batch.execution_now_unix_nanos,
                    };
                    match consumer.waiting.pop_front() {
                        Some(call) => self.finish(call, Ok(Done::Delivery(delivery))),
                        None => consumer.ready = Some(delivery),
                    }
                }
                // Closing revokes it.
                ReadEmitterDisposition::EmitterBatchReceived(_) => {}
                ReadEmitterDisposition::EmitterConsumerEnded if attached => {
                    self.detached(id, "the server ended the consumer's attachment", now.mono);
                }
                ReadEmitterDisposition::EmitterConsumerEnded => {}
            },
            ReplyBody::RequestRejected(rejected) if is_busy(&rejected) => {
                let wait = consumer.backoff.next(RETRY, &mut self.jitter);
                consumer.due = now.mono.saturating_add(wait);
            }
            ReplyBody::RequestRejected(rejected) => {
                let error = Error::new(ErrorKind::Rejected, describe_rejection(&rejected));
                for call in std::mem::take(&mut consumer.waiting) {
                    self.finish(call, Err(error.clone()));
                }
            }
            ReplyBody::RequestCancelled(_) => {}
            _ => return Err(Violation::new("C-4", "a reply that does not answer a read")),
        }
        Ok(())
    }

    fn settle_reply(&mut self, now: Now, call: CallId, body: ReplyBody) -> Result<(), Violation> {
        let result = match body {
            ReplyBody::SettleEmitterBatchOutcome(outcome) => {
                Ok(Done::Settled(Settlement::from(outcome.disposition)))
            }
            ReplyBody::RequestRejected(rejected) if is_busy(&rejected) => {
                if let Some(settling) = self.endpoints.settles.get_mut(&call) {
                    settling.due = now
                        .mono
                        .saturating_add(settling.backoff.next(RETRY, &mut self.jitter));
                    settling.flight = false;
                }
                return Ok(());
            }
            ReplyBody::RequestRejected(rejected) => Err(Error::new(
                ErrorKind::Rejected,
                describe_rejection(&rejected),
            )),
            ReplyBody::RequestCancelled(_) => Err(Error::new(
                ErrorKind::Uncertain,
                "the server cancelled the settlement, which may have been applied",
            )),
            _ => {
                return Err(Violation::new(
                    "C-4",
                    "a reply that does not answer a settlement",
                ))
            }
        };
        if self.endpoints.settles.remove(&call).is_some() {
            self.finish(call, result);
        }
        Ok(())
    }

    pub(super) fn admission_changed(&mut self, wire: Wire, admission: ProducerAdmission) {
        let Some(id) = self.endpoints.find(wire) else {
            return;
        };
        if let Some(Side::Producer(producer)) = self
            .endpoints
            .all
            .get_mut(&id)
            .map(|endpoint| &mut endpoint.side)
        {
            producer.admission = admission;
        }
    }

    pub(super) fn producer_ended(
        &mut self,
        now: Now,
        wire: Wire,
        reason: ProducerEndReason,
        message: &str,
    ) {
        let Some(id) = self.endpoints.find(wire) else {
            return;
        };
        let closing = self
            .endpoints
            .all
            .get(&id)
            .is_some_and(|one| matches!(one.place, Place::Closing { .. }));
        // What was sent before the end was known here is answered still.
        self.resolve_unsent(id, message);
        if closing {
            self.released(id);
            return;
        }
        match reason {
            ProducerEndReason::EndpointRemoved => {
                self.over(id, ReopenReason::EndpointRemoved, None)
            }
            ProducerEndReason::DomainStopped => self.over(id, ReopenReason::DomainStopped, None),
            ProducerEndReason::ProtocolViolated => {
                self.over(id, ReopenReason::ProtocolViolated, None)
            }
            // Whether it is the same endpoint still, a fresh open tells.
            ProducerEndReason::EndpointChanged
            | ProducerEndReason::Relocated
            | ProducerEndReason::ShuttingDown
            | ProducerEndReason::OwnerLost => self.detached(id, message, now.mono),
        }
    }

    /// Requests of endpoints that an ended exchange leaves unanswered.
    pub(super) fn endpoint_unanswered(
        &mut self,
        now: Now,
        asked: Asked,
        kind: ErrorKind,
        text: &str,
    ) {
        let told = match asked {
            Asked::Open(call, _) => {
                let error = Error::new(kind, format!("nothing was opened: {text}"));
                self.endpoints.opens.remove(&call).map(|_| (call, error))
            }
            Asked::Settle(call) => {
                let message = format!(
                    "the answer to the settlement was lost, and the delivery may have been settled: {text}; if it was \
                     not, it comes again under its identity"
                );
                let error = Error::new(ErrorKind::Uncertain, message);
                self.endpoints.settles.remove(&call).map(|_| (call, error))
            }
            Asked::Restore(id) => {
                if let Some(endpoint) = self.endpoints.all.get_mut(&id) {
                    if matches!(endpoint.place, Place::Restoring(_)) {
                        endpoint.place = Place::Interrupted { due: now.mono };
                    }
                }
                None
            }
            Asked::Submit(id, submission) => {
                let outcome = unknown(Uncertainty::SessionLost, text);
                self.resolve_flying(id, submission, outcome);
                None
            }
            _ => None,
        };
        if let Some((call, error)) = told {
            self.finish(call, Err(error));
        }
    }

    fn resolve_flying(&mut self, id: EndpointId, submission: u64, outcome: SubmissionOutcome) {
        let Some(Side::Producer(producer)) = self
            .endpoints
            .all
            .get_mut(&id)
            .map(|endpoint| &mut endpoint.side)
        else {
            return;
        };
        for (call, outcome) in producer.resolve(submission, outcome) {
            self.finish(call, Ok(Done::Submission(outcome)));
        }
    }

    /// The exchange is over, and with it every attachment on it (P-8, EC-5).
    pub(super) fn endpoints_lost(&mut self, now: Now, conn: ConnId, text: &str) {
        let lost: Vec<EndpointId> = self
            .endpoints
            .all
            .iter()
            .filter(|(_, endpoint)| endpoint.wire().is_some_and(|wire| wire.conn == conn))
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            self.resolve_unsent(id, text);
            let closing = self
                .endpoints
                .all
                .get(&id)
                .is_some_and(|one| matches!(one.place, Place::Closing { .. }));
            if closing {
                self.released(id);
            } else {
                self.detached(id, text, now.mono);
            }
        }
    }

    /// What was not sent when an attachment ends was not admitted, and goes through no other.
    fn resolve_unsent(&mut self, id: EndpointId, message: &str) {
        self.resolve_where(id, |held| match held.state {
            Sent::Not { .. } => Some(not_admitted(SubmissionRefusal::ProducerEnded, message)),
            _ => None,
        });
    }

    /// Gives every submission that has none its outcome, at the end of a producer.
    fn resolve_all(&mut self, id: EndpointId, cause: Uncertainty, message: &str) {
        self.resolve_where(id, |held| match held.state {
            Sent::Not { .. } => Some(not_admitted(SubmissionRefusal::ProducerEnded, message)),
            Sent::Flying(_) => Some(unknown(cause, message)),
            Sent::Resolved(_) => None,
        });
    }

    fn resolve_where(
        &mut self,
        id: EndpointId,
        outcome: impl Fn(&Submission) -> Option<SubmissionOutcome>,
    ) {
        let mut taken = Vec::new();
        if let Some(Side::Producer(producer)) = self
            .endpoints
            .all
            .get_mut(&id)
            .map(|endpoint| &mut endpoint.side)
        {
            for submission in producer.submissions.keys().copied().collect::<Vec<_>>() {
                if let Some(outcome) = producer.submissions.get(&submission).and_then(&outcome) {
                    taken.extend(producer.resolve(submission, outcome));
                }
            }
        }
        for (call, outcome) in taken {
            self.finish(call, Ok(Done::Submission(outcome)));
        }
    }

    /// An attachment ended; the endpoint may come back.
    fn detached(&mut self, id: EndpointId, why: &str, now: u64) {
        let Some(endpoint) = self.endpoints.all.get_mut(&id) else {
            return;
        };
        endpoint.place = Place::Interrupted { due: now };
        if let Side::Consumer(consumer) = &mut endpoint.side {
            consumer.reading = false;
            consumer.ready = None;
            let message = format!(
                "the consumer's attachment ended ({why}): deliveries read before cannot be settled and come again; read on"
            );
            let waiting = std::mem::take(&mut consumer.waiting);
            if waiting.is_empty() {
                consumer.interrupted = Some(message);
            } else {
                for call in waiting {
                    self.finish(
                        call,
                        Err(Error::new(ErrorKind::Interrupted, message.clone())),
                    );
                }
            }
        }
    }

    /// The handle can never be attached again.
    fn over(&mut self, id: EndpointId, reason: ReopenReason, refusal: Option<OpenRefusal>) {
        if let Some(endpoint) = self.endpoints.all.get_mut(&id) {
            endpoint.place = Place::Over(reason, refusal);
        }
        let error = reopen_error(reason, refusal);
        self.refuse_waiting(id, &error, &error.message);
        self.forget_endpoint(id);
    }

    /// The server released it, every outcome in.
    fn closed(&mut self, id: EndpointId) {
        self.resolve_all(id, Uncertainty::Interrupted, "the producer was closed");
        self.released(id);
    }

    /// No server holds it any more.
    fn released(&mut self, id: EndpointId) {
        if let Some(endpoint) = self.endpoints.all.get_mut(&id) {
            endpoint.place = Place::Closed;
            for call in std::mem::take(&mut endpoint.closes) {
                self.finish(call, Ok(Done::Closed));
            }
        }
        self.forget_endpoint(id);
    }

    /// Ends the calls that wait for what an endpoint will not do any more, and the batches it did not send.
    fn refuse_waiting(&mut self, id: EndpointId, error: &Error, message: &str) {
        let mut calls = Vec::new();
        let mut taken = Vec::new();
        match self
            .endpoints
            .all
            .get_mut(&id)
            .map(|endpoint| &mut endpoint.side)
        {
            Some(Side::Producer(producer)) => {
                calls.extend(
                    std::mem::take(&mut producer.submits)
                        .into_iter()
                        .map(|submit| submit.call),
                );
                for submission in producer.submissions.keys().copied().collect::<Vec<_>>() {
                    let unsent = producer
                        .submissions
                        .get(&submission)
                        .is_some_and(|held| matches!(held.state, Sent::Not { .. }));
                    if unsent {
                        let outcome = not_admitted(SubmissionRefusal::ProducerEnded, message);
                        taken.extend(producer.resolve(submission, outcome));
                    }
                }
            }
            Some(Side::Consumer(consumer)) => {
                consumer.ready = None;
                calls.extend(std::mem::take(&mut consumer.waiting));
            }
            None => {}
        }
        for call in calls {
            self.finish(call, Err(error.clone()));
        }
        for (call, outcome) in taken {
            self.finish(call, Ok(Done::Submission(outcome)));
        }
    }

    fn forget_endpoint(&mut self, id: EndpointId) {
        let over = |endpoint: &Endpoint| {
            endpoint.freed && matches!(endpoint.place, Place::Closed | Place::Over(..))
        };
        if self.endpoints.all.get(&id).is_some_and(over) {
            if let Some(Endpoint {
                side: Side::Producer(producer),
                ..
            }) = self.endpoints.all.remove(&id)
            {
                for (call, _) in producer.rejoins {
                    self.finish(
                        call,
                        Err(Error::new(ErrorKind::Closed, "the producer was freed")),
                    );
                }
            }
        }
    }

    /// Has the server let go of what was opened for nobody, as soon as there is room to ask.
    fn release_wire(&mut self, now: Now, wire: Wire, role: Role) {
        self.endpoints.releases.push((wire, role));
        self.send_releases(now);
    }

    fn send_releases(&mut self, now: Now) {
        for (wire, role) in std::mem::take(&mut self.endpoints.releases) {
            let request = close_request(role, wire.id);
            let full = matches!(
                self.send(now, wire.conn, Asked::Release, request),
                Err(Unsent::Full)
            );
            // With its exchange, everything on it ends.
            if full && self.exchanges.contains_key(&wire.conn) {
                self.endpoints.releases.push((wire, role));
            }
        }
    }

    // ---- progress

    /// Calls that waited too long.
    pub(super) fn expire_endpoint_calls(&mut self, now: Now) {
        let late: Vec<CallId> = self
            .endpoints
            .opens
            .iter()
            .filter(|(_, open)| open.deadline <= now.mono)
            .map(|(call, _)| *call)
            .collect();
        for call in late {
            if let Some(open) = self.endpoints.opens.remove(&call) {
                if let Some(conn) = open.flight {
                    self.cancel_request(now, conn, Asked::Open(call, open.role));
                }
                let message = "nothing was opened: no answer came within the retry timeout";
                self.finish(call, Err(Error::new(ErrorKind::Transport, message)));
            }
        }
        let late: Vec<CallId> = self
            .endpoints
            .settles
            .iter()
            .filter(|(_, one)| one.deadline <= now.mono)
            .map(|(call, _)| *call)
            .collect();
        for call in late {
            if let Some(settling) = self.endpoints.settles.remove(&call) {
                let error = if settling.flight {
                    Error::new(
                        ErrorKind::Uncertain,
                        "the settlement was not answered in time; it may have been applied",
                    )
                } else {
                    Error::new(
                        ErrorKind::Transport,
                        "the settlement could not be sent in time",
                    )
                };
                self.finish(call, Err(error));
            }
        }
        let mut late = Vec::new();
        for endpoint in self.endpoints.all.values_mut() {
            let attached = matches!(endpoint.place, Place::Attached(_));
            if let Side::Producer(producer) = &mut endpoint.side {
                producer.submits.retain(|submit| {
                    let keep = submit.deadline > now.mono;
                    if !keep {
                        late.push((submit.call, attached));
                    }
                    keep
                });
            }
        }
        for (call, attached) in late {
            let error = if attached {
                let message = "nothing was submitted: no credit came free within the retry timeout; take outcomes to free it";
                Error::new(ErrorKind::Deadline, message)
            } else {
                let message = "nothing was submitted: the producer could not be restored within the retry timeout";
                Error::new(ErrorKind::Transport, message)
            };
            self.finish(call, Err(error));
        }
    }

    /// Opens endpoints: those that calls wait for, and then new ones.
    pub(super) fn open_endpoints(&mut self, now: Now) -> bool {
        let Some(conn) = self.current else {
            return false;
        };
        if self.forbids_restoring(conn) {
            return true;
        }
        let restorable: Vec<EndpointId> = self
            .endpoints
            .all
            .iter()
            .filter(|(_, endpoint)| {
                endpoint.wants_attachment()
                    && matches!(endpoint.place, Place::Interrupted { due } if due <= now.mono)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in restorable {
            let Some(endpoint) = self.endpoints.all.get(&id) else {
                continue;
            };
            let request = open_request(endpoint.role(), &endpoint.asked);
            if self.send(now, conn, Asked::Restore(id), request).is_err() {
                return false;
            }
            if let Some(endpoint) = self.endpoints.all.get_mut(&id) {
                endpoint.place = Place::Restoring(conn);
            }
        }
        let ready: Vec<CallId> = self
            .endpoints
            .opens
            .iter()
            .filter(|(_, open)| open.flight.is_none() && open.due <= now.mono)
            .map(|(call, _)| *call)
            .collect();
        for call in ready {
            let Some(open) = self.endpoints.opens.get(&call) else {
                continue;
            };
            let role = open.role;
            let request = open_request(role, &open.request);
            match self.send(now, conn, Asked::Open(call, role), request) {
                Ok(()) => {
                    if let Some(open) = self.endpoints.opens.get_mut(&call) {
                        open.flight = Some(conn);
                    }
                }
                Err(Unsent::Full) => return false,
                Err(Unsent::Refused(refusal)) => {
                    self.endpoints.opens.remove(&call);
                    let message = format!("the expected fields cannot be sent: {refusal}");
                    self.finish(call, Err(Error::new(ErrorKind::InvalidArgument, message)));
                }
            }
        }
        true
    }

    /// Lets every endpoint send, read, settle and close what it can.
    pub(super) fn drive_endpoints(&mut self, now: Now) {
        self.send_releases(now);
        for id in self.endpoints.all.keys().copied().collect::<Vec<_>>() {
            self.admit(id);
            self.send_batches(now, id);
            self.read(now, id);
            self.send_close(now, id);
        }
        self.send_settlements(now);
    }

    /// Gives credit to the batches that wait for it, in order (P-4).
    fn admit(&mut self, id: EndpointId) {
        let mut admitted = Vec::new();
        if let Some(Endpoint {
            place: Place::Attached(_),
            side: Side::Producer(producer),
            contract,
            ..
        }) = self.endpoints.all.get_mut(&id)
        {
            while let Some(submit) = producer.submits.front() {
                let bytes = u64::try_from(submit.batch.len()).unwrap_or(u64::MAX);
                let held = u32::try_from(producer.submissions.len()).unwrap_or(u32::MAX);
                if held >= contract.batches
                    || producer.held_bytes.saturating_add(bytes) > contract.bytes
                {
                    break;
                }
                let Some(submit) = producer.submits.pop_front() else {
                    break;
                };
                let submission = producer.next;
                producer.next = producer.next.saturating_add(1);
                producer.held_bytes = producer.held_bytes.saturating_add(bytes);
                let held = Submission {
                    batch: submit.batch,
                    bytes,
                    state: Sent::Not { due: 0 },
                    wait: contract.retry_backoff_nanos,
                    released: false,
                };
                producer.submissions.insert(submission, held);
                admitted.push((submit.call, submission));
            }
        }
        for (call, submission) in admitted {
            self.finish(call, Ok(Done::Submitted(submission)));
        }
    }

    fn send_batches(&mut self, now: Now, id: EndpointId) {
        let Some(Endpoint {
            place: Place::Attached(wire),
            side: Side::Producer(producer),
            ..
        }) = self.endpoints.all.get(&id)
        else {
            return;
        };
        if producer.admission != ProducerAdmission::Open {
            return;
        }
        let wire = *wire;
        let ready: Vec<(u64, Bytes)> = producer
            .submissions
            .iter()
            .filter(|(_, held)| matches!(held.state, Sent::Not { due } if due <= now.mono))
            .map(|(submission, held)| (*submission, held.batch.clone()))
            .collect();
        for (submission, batch) in ready {
            let request = ClientRequest::SubmitBatchRequest(SubmitBatchRequest {
                producer: wire.id,
                batch,
            });
            let sent = self.send(now, wire.conn, Asked::Submit(id, submission), request);
            let Some(Side::Producer(producer)) =
                self.endpoints.all.get_mut(&id).map(|one| &mut one.side)
            else {
                return;
            };
            match sent {
                Ok(()) => {
                    if let Some(held) = producer.submissions.get_mut(&submission) {
                        held.state = Sent::Flying(wire);
                    }
                }
                Err(Unsent::Full) => return,
                Err(Unsent::Refused(refusal)) => {
                    let outcome =
                        not_admitted(SubmissionRefusal::BatchTooLarge, &refusal.to_string());
                    for (call, outcome) in producer.resolve(submission, outcome) {
                        self.finish(call, Ok(Done::Submission(outcome)));
                    }
                }
            }
        }
    }

    /// Hands out what was read, or parks one read (EC-2).
    fn read(&mut self, now: Now, id: EndpointId) {
        let Some(Endpoint {
            place: Place::Attached(wire),
            side: Side::Consumer(consumer),
            ..
        }) = self.endpoints.all.get_mut(&id)
        else {
            return;
        };
        let wire = *wire;
        if consumer.waiting.is_empty() || consumer.reading {
            return;
        }
        if let Some(delivery) = consumer.ready.take() {
            if let Some(call) = consumer.waiting.pop_front() {
                self.finish(call, Ok(Done::Delivery(delivery)));
            }
            return self.read(now, id);
        }
        if consumer.due > now.mono {
            return;
        }
        let request =
            ClientRequest::ReadEmitterBatchRequest(ReadEmitterBatchRequest { consumer: wire.id });
        if self.send(now, wire.conn, Asked::Read(id), request).is_ok() {
            if let Some(Side::Consumer(consumer)) =
                self.endpoints.all.get_mut(&id).map(|one| &mut one.side)
            {
                consumer.reading = true;
            }
        }
    }

    fn send_close(&mut self, now: Now, id: EndpointId) {
        let Some(endpoint) = self.endpoints.all.get(&id) else {
            return;
        };
        let Place::Closing { wire, asked: false } = endpoint.place else {
            return;
        };
        let request = close_request(endpoint.role(), wire.id);
        if self.send(now, wire.conn, Asked::Close(id), request).is_ok() {
            if let Some(endpoint) = self.endpoints.all.get_mut(&id) {
                endpoint.place = Place::Closing { wire, asked: true };
            }
        }
    }

    /// Settles through the attachment that delivered, and through no other (EC-6).
    fn send_settlements(&mut self, now: Now) {
        let ready: Vec<CallId> = self
            .endpoints
            .settles
            .iter()
            .filter(|(_, one)| !one.flight && one.due <= now.mono)
            .map(|(call, _)| *call)
            .collect();
        for call in ready {
            let Some(settling) = self.endpoints.settles.get(&call) else {
                continue;
            };
            let wire = settling.wire;
            let attached = self
                .endpoints
                .all
                .get(&settling.endpoint)
                .is_some_and(|endpoint| endpoint.place == Place::Attached(wire));
            if !attached {
                self.endpoints.settles.remove(&call);
                let message = "the attachment that delivered it has ended, so nothing was sent: it comes again under its identity, unless it was settled before";
                self.finish(call, Err(Error::new(ErrorKind::Rejected, message)));
                continue;
            }
            let (decision, reason) = match &settling.decision {
                Decision::Ack => (EmitterBatchDecision::Ack, String::new()),
                Decision::Retry => (EmitterBatchDecision::Retry, String::new()),
                Decision::Reject(reason) => (EmitterBatchDecision::Reject, reason.clone()),
            };
            let request = ClientRequest::SettleEmitterBatchRequest(SettleEmitterBatchRequest {
                consumer: wire.id,
                reference: settling.reference,
                decision,
                reason,
            });
            match self.send(now, wire.conn, Asked::Settle(call), request) {
                Ok(()) => {
                    if let Some(settling) = self.endpoints.settles.get_mut(&call) {
                        settling.flight = true;
                    }
                }
                Err(Unsent::Full) => return,
                Err(Unsent::Refused(refusal)) => {
                    self.endpoints.settles.remove(&call);
                    self.finish(
                        call,
                        Err(Error::new(ErrorKind::InvalidArgument, refusal.to_string())),
                    );
                }
            }
        }
    }

    /// The session is over for good, and every endpoint with it.
    pub(super) fn close_every_endpoint(&mut self, why: &str) {
        for id in self.endpoints.all.keys().copied().collect::<Vec<_>>() {
            self.resolve_all(id, Uncertainty::SessionLost, why);
            self.closed(id);
        }
    }

    /// The session is over: nothing that waits here will be answered.
    pub(super) fn fail_endpoint_calls(&mut self, error: &Error) {
        let mut calls: Vec<CallId> = Vec::new();
        calls.extend(std::mem::take(&mut self.endpoints.opens).into_keys());
        for endpoint in self.endpoints.all.values_mut() {
            match &mut endpoint.side {
                Side::Producer(producer) => {
                    calls.extend(
                        std::mem::take(&mut producer.submits)
                            .into_iter()
                            .map(|submit| submit.call),
                    );
                    calls.extend(
                        std::mem::take(&mut producer.rejoins)
                            .into_iter()
                            .map(|(call, _)| call),
                    );
                }
                Side::Consumer(consumer) => calls.extend(std::mem::take(&mut consumer.waiting)),
            }
        }
        for call in calls {
            self.finish(call, Err(error.clone()));
        }
        for (call, settling) in std::mem::take(&mut self.endpoints.settles) {
            let (kind, what) = if settling.flight {
                (ErrorKind::Uncertain, "the delivery may be settled")
            } else {
                (ErrorKind::Rejected, "nothing was sent")
            };
            let message = format!("{what}: {}", error.message);
            self.finish(call, Err(Error::new(kind, message)));
        }
    }
}

/// The most characters of a submission's message that a host is given.
const MESSAGE_CHARS: usize = 1024;

/// What an open was answered.
enum Opened {
    Yes(Contract, ProducerAdmission),
    No(OpenRefusal, String),
    Rejected(RequestRejected),
    Cancelled(CancellationStage),
}

fn open_request(role: Role, asked: &OpenRequest) -> ClientRequest {
    match role {
        Role::Producer => ClientRequest::OpenIngestorRequest(OpenIngestorRequest {
            domain: asked.domain.clone(),
            ingestor: asked.endpoint.clone(),
            expected_fields: asked.fields.clone(),
            max_outstanding_batches: asked.batches,
            max_outstanding_bytes: asked.bytes,
        }),
        Role::Consumer => ClientRequest::OpenEmitterRequest(OpenEmitterRequest {
            domain: asked.domain.clone(),
            emitter: asked.endpoint.clone(),
            expected_fields: asked.fields.clone(),
            max_outstanding_batches: asked.batches,
            max_outstanding_bytes: asked.bytes,
        }),
    }
}

fn close_request(role: Role, id: u64) -> ClientRequest {
    match role {
        Role::Producer => {
            ClientRequest::CloseIngestorRequest(CloseIngestorRequest { producer: id })
        }
        Role::Consumer => ClientRequest::CloseEmitterRequest(CloseEmitterRequest { consumer: id }),
    }
}
