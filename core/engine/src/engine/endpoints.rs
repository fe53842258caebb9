//! Producers and consumers: opening, closing, and following an endpoint across sessions (P-1 to P-3, P-8, EC-1, EC-5, EC-6).
//!
//! Owns the endpoints of a session and where each is attached. What goes through an attachment is its side's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use nervix_wire::types::{
    CancellationStage, ClientRequest, CloseEmitterOutcome, CloseEmitterRequest,
    CloseIngestorOutcome, CloseIngestorRequest, OpenEmitterDisposition, OpenEmitterRequest,
    OpenIngestorDisposition, OpenIngestorRequest, ProducerAdmission, ReplyBody, RequestRejected,
};
use nervix_wire::Violation;

use super::consumers::{Consumer, Settling};
use super::producers::{unknown, Producer};
use super::{describe_rejection, is_busy, is_too_large, Engine, BRIEF};
use crate::api::{
    brief, CallId, ConnId, Done, EndpointId, EndpointState, Error, ErrorKind, Now, Role,
    Uncertainty,
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
pub(super) enum Place {
    Attached(Wire),
    /// The close was sent, or is about to be, not before this time.
    Closing {
        wire: Wire,
        asked: bool,
        due: u64,
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
pub(super) struct Endpoint {
    pub(super) asked: OpenRequest,
    pub(super) contract: Arc<Contract>,
    pub(super) place: Place,
    /// When it was attached last.
    since: u64,
    pub(super) backoff: Backoff,
    /// Calls that wait until it is released.
    pub(super) closes: Vec<CallId>,
    /// The host let go of it.
    pub(super) freed: bool,
    pub(super) side: Side,
}

#[derive(Debug)]
pub(super) enum Side {
    Producer(Producer),
    Consumer(Consumer),
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

/// The endpoints of a session and what is asked of them.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    pub(super) next: u64,
    pub(super) all: BTreeMap<EndpointId, Endpoint>,
    pub(super) opens: BTreeMap<CallId, Opening>,
    pub(super) settles: BTreeMap<CallId, Settling>,
    /// What was opened for nobody, and is to be let go of, with the time before which it is not asked.
    releases: Vec<(Wire, Role, u64)>,
    /// How long to wait after a server had no room for that.
    release_backoff: Backoff,
}

impl Endpoints {
    /// Whether any of them is attached to this exchange.
    pub(super) fn any_on(&self, conn: ConnId) -> bool {
        self.all
            .values()
            .any(|endpoint| endpoint.wire().is_some_and(|wire| wire.conn == conn))
    }

    /// Whether something waits for an endpoint to be opened.
    pub(super) fn want_session(&self) -> bool {
        !self.opens.is_empty() || self.all.values().any(Endpoint::wants_attachment)
    }

    pub(super) fn find(&self, wire: Wire) -> Option<EndpointId> {
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
        due.extend(self.releases.iter().map(|(_, _, at)| *at));
        for endpoint in self.all.values() {
            if let (Place::Interrupted { due: at }, true, true) =
                (endpoint.place, open, endpoint.wants_attachment())
            {
                due.push(at);
            }
            if let Place::Closing {
                asked: false,
                due: at,
                ..
            } = endpoint.place
            {
                due.push(at);
            }
            if let Place::Attached(_) = endpoint.place {
                due.extend(match &endpoint.side {
                    Side::Producer(producer) => producer.next_due(),
                    Side::Consumer(consumer) => consumer.next_due(),
                });
            }
        }
        due.into_iter().min()
    }

    /// The earliest deadline of a call that has one.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let opens = self.opens.values().map(|open| open.deadline);
        let settles = self.settles.values().map(|one| one.deadline);
        let submits = self
            .all
            .values()
            .filter_map(|endpoint| match &endpoint.side {
                Side::Producer(producer) => producer.next_deadline(),
                Side::Consumer(_) => None,
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
        since: u64,
    ) -> Self {
        let side = match role {
            Role::Producer => Side::Producer(Producer::new(admission)),
            Role::Consumer => Side::Consumer(Consumer::default()),
        };
        Self {
            asked,
            contract: Arc::new(contract),
            place: Place::Attached(wire),
            since,
            backoff: Backoff::default(),
            closes: Vec::new(),
            freed: false,
            side,
        }
    }

    pub(super) fn wire(&self) -> Option<Wire> {
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

pub(super) fn reopen_error(reason: ReopenReason, refusal: Option<OpenRefusal>) -> Error {
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
                endpoint.place = Place::Closing {
                    wire,
                    asked: false,
                    due: 0,
                };
                endpoint.backoff.reset();
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
        if self.stop_settlement(call, kind, reason) {
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
                Side::Producer(producer) => producer.stop(call, reason),
                Side::Consumer(consumer) => consumer.stop(call, reason),
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
            (Asked::Restore(id, role), body) => self.restore_reply(now, wire, id, role, body)?,
            (Asked::Submit(id, submission), body) => {
                self.submit_reply(now, id, submission, body)?
            }
            (Asked::Read(id), body) => self.read_reply(now, wire.conn, id, body)?,
            (Asked::Settle(call), body) => self.settle_reply(now, call, body)?,
            // The server had no room, and releases nothing before it is asked again (C-6).
            (Asked::Close(id, _), ReplyBody::RequestRejected(rejected)) if is_busy(&rejected) => {
                if let Some(endpoint) = self.endpoints.all.get_mut(&id) {
                    if let Place::Closing { wire, .. } = endpoint.place {
                        let wait = endpoint.backoff.next(RETRY, &mut self.jitter);
                        endpoint.place = Place::Closing {
                            wire,
                            asked: false,
                            due: now.mono.saturating_add(wait),
                        };
                    }
                }
            }
            (Asked::Release(id, role), ReplyBody::RequestRejected(rejected))
                if is_busy(&rejected) =>
            {
                let wait = self.endpoints.release_backoff.next(RETRY, &mut self.jitter);
                let attachment = Wire {
                    conn: wire.conn,
                    id,
                };
                self.endpoints
                    .releases
                    .push((attachment, role, now.mono.saturating_add(wait)));
            }
            (
                Asked::Close(id, _),
                ReplyBody::CloseIngestorOutcome(CloseIngestorOutcome { .. })
                | ReplyBody::CloseEmitterOutcome(CloseEmitterOutcome { .. })
                | ReplyBody::RequestRejected(_)
                | ReplyBody::RequestCancelled(_),
            ) => self.closed(id),
            (
                Asked::Release(..),
                ReplyBody::CloseIngestorOutcome(_)
                | ReplyBody::CloseEmitterOutcome(_)
                | ReplyBody::RequestRejected(_)
                | ReplyBody::RequestCancelled(_),
            ) => self.endpoints.release_backoff.reset(),
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
        if let (Opened::Yes(contract, _), Some(open)) = (&opened, self.endpoints.opens.get(&call)) {
            contract.answers(&open.request)?;
        }
        // What it opened for nobody is released: its caller stopped waiting, or will not know of it (C-9).
        let waiting = self.endpoints.opens.remove(&call);
        let for_nobody = waiting.is_none() && matches!(opened, Opened::Yes(..));
        if for_nobody || opened.unseen() {
            self.release_wire(now, wire, role);
        }
        let Some(mut open) = waiting else {
            return Ok(());
        };
        match opened {
            Opened::Yes(contract, admission) => {
                let id = EndpointId(self.endpoints.next);
                self.endpoints.next = self.endpoints.next.saturating_add(1);
                let endpoint =
                    Endpoint::new(role, open.request, contract, wire, admission, now.mono);
                let contract = Arc::clone(&endpoint.contract);
                // It is followed before its caller is told, so that what the server says next finds it (P-2).
                self.endpoints.all.insert(id, endpoint);
                self.finish(call, Ok(Done::Endpoint(id, contract)));
            }
            Opened::No(refusal, message) => {
                let message = format!(
                    "the server refused to open it: {}: {}",
                    refusal.text(),
                    brief(message)
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
        role: Role,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        let opened = Self::opened_or_refused(role, body)?;
        let wanted = self
            .endpoints
            .all
            .get_mut(&id)
            .filter(|endpoint| endpoint.place == Place::Restoring(wire.conn));
        let Some(endpoint) = wanted else {
            // Closing it won (P-8, EC-6).
            if opened.unseen() || matches!(opened, Opened::Yes(..)) {
                self.release_wire(now, wire, role);
            }
            return Ok(());
        };
        let unseen = opened.unseen();
        match opened {
            Opened::Yes(contract, admission) => match endpoint.contract.drift(&contract) {
                None => {
                    endpoint.place = Place::Attached(wire);
                    endpoint.since = now.mono;
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
            // The server calls the request itself defective, so it is not sent again unchanged (C-8).
            Opened::Rejected(rejected) if !is_busy(&rejected) && !is_too_large(&rejected) => {
                self.over(id, ReopenReason::ProtocolViolated, None);
            }
            Opened::No(..) | Opened::Rejected(_) | Opened::Cancelled(_) => {
                self.restoration_refused(now, id);
            }
        }
        if unseen {
            self.release_wire(now, wire, role);
        }
        Ok(())
    }

    /// It is asked for again after growing waits.
    pub(super) fn restoration_refused(&mut self, now: Now, id: EndpointId) {
        if let Some(endpoint) = self.endpoints.all.get_mut(&id) {
            if matches!(endpoint.place, Place::Restoring(_)) {
                let wait = endpoint.backoff.next(BACKGROUND, &mut self.jitter);
                endpoint.place = Place::Interrupted {
                    due: now.mono.saturating_add(wait),
                };
            }
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
            Asked::Restore(id, _) => {
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
                self.detached(now, id, text, true);
            }
        }
    }

    /// An attachment ended; the endpoint may come back. On a session that goes on, one that lasted is followed by the next at once;
    /// otherwise a server that ends each at once would be asked without end.
    pub(super) fn detached(&mut self, now: Now, id: EndpointId, why: &str, session_lost: bool) {
        let Some(endpoint) = self.endpoints.all.get_mut(&id) else {
            return;
        };
        let brief = now.mono.saturating_sub(endpoint.since) < BRIEF;
        if !brief {
            endpoint.backoff.reset();
        }
        let wait = if brief && !session_lost {
            endpoint.backoff.next(RETRY, &mut self.jitter)
        } else {
            0
        };
        endpoint.place = Place::Interrupted {
            due: now.mono.saturating_add(wait),
        };
        if let Side::Consumer(consumer) = &mut endpoint.side {
            consumer.reading = false;
            consumer.ready = None;
            let message = format!(
                "the consumer's attachment ended ({why}): deliveries read before cannot be settled and come again; read on"
            );
            // Told once: to the longest waiting, or to the next call. The others wait on, for the restored one.
            match consumer.waiting.pop_front() {
                None => consumer.interrupted = Some(message),
                Some(call) => self.finish(call, Err(Error::new(ErrorKind::Interrupted, message))),
            }
        }
    }

    /// The handle can never be attached again.
    pub(super) fn over(
        &mut self,
        id: EndpointId,
        reason: ReopenReason,
        refusal: Option<OpenRefusal>,
    ) {
        if let Some(endpoint) = self.endpoints.all.get_mut(&id) {
            endpoint.place = Place::Over(reason, refusal);
        }
        let error = reopen_error(reason, refusal);
        self.refuse_waiting(id, &error, &error.message);
        self.forget_endpoint(id);
    }

    /// The server released it, every outcome in.
    pub(super) fn closed(&mut self, id: EndpointId) {
        self.resolve_all(id, Uncertainty::Interrupted, "the producer was closed");
        self.released(id);
    }

    /// No server holds it any more.
    pub(super) fn released(&mut self, id: EndpointId) {
        if let Some(endpoint) = self.endpoints.all.get_mut(&id) {
            endpoint.place = Place::Closed;
            for call in std::mem::take(&mut endpoint.closes) {
                self.finish(call, Ok(Done::Closed));
            }
        }
        self.forget_endpoint(id);
    }

    /// Ends the calls that wait for what an endpoint will not do any more, and the batches it did not send.
    pub(super) fn refuse_waiting(&mut self, id: EndpointId, error: &Error, message: &str) {
        let mut calls = Vec::new();
        let mut taken = Vec::new();
        match self
            .endpoints
            .all
            .get_mut(&id)
            .map(|endpoint| &mut endpoint.side)
        {
            Some(Side::Producer(producer)) => {
                calls = producer.drain_submits();
                taken = producer.refuse_unsent(message);
            }
            Some(Side::Consumer(consumer)) => {
                calls = consumer.refuse();
            }
            None => {}
        }
        for call in calls {
            self.finish(call, Err(error.clone()));
        }
        self.tell_outcomes(taken);
    }

    pub(super) fn forget_endpoint(&mut self, id: EndpointId) {
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
        self.endpoints.releases.push((wire, role, 0));
        self.send_releases(now);
    }

    fn send_releases(&mut self, now: Now) {
        for (wire, role, due) in std::mem::take(&mut self.endpoints.releases) {
            let waits = due > now.mono || {
                let request = close_request(role, wire.id);
                let asked = Asked::Release(wire.id, role);
                matches!(self.send(now, wire.conn, asked, request), Err(Unsent::Full))
            };
            // With its exchange, everything on it ends.
            if waits && self.exchanges.contains_key(&wire.conn) {
                self.endpoints.releases.push((wire, role, due));
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
        self.expire_settlements(now);
        let mut late = Vec::new();
        for endpoint in self.endpoints.all.values_mut() {
            let attached = matches!(endpoint.place, Place::Attached(_));
            if let Side::Producer(producer) = &mut endpoint.side {
                let calls = producer.expire(now.mono);
                late.extend(calls.into_iter().map(|call| (call, attached)));
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
            let role = endpoint.role();
            let request = open_request(role, &endpoint.asked);
            if self
                .send(now, conn, Asked::Restore(id, role), request)
                .is_err()
            {
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

    fn send_close(&mut self, now: Now, id: EndpointId) {
        let Some(endpoint) = self.endpoints.all.get(&id) else {
            return;
        };
        let Place::Closing {
            wire,
            asked: false,
            due,
        } = endpoint.place
        else {
            return;
        };
        if due > now.mono {
            return;
        }
        let role = endpoint.role();
        let request = close_request(role, wire.id);
        let asked = Asked::Close(id, role);
        if self.send(now, wire.conn, asked, request).is_ok() {
            if let Some(endpoint) = self.endpoints.all.get_mut(&id) {
                endpoint.place = Place::Closing {
                    wire,
                    asked: true,
                    due,
                };
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
            calls.extend(match &mut endpoint.side {
                Side::Producer(producer) => producer.drain(),
                Side::Consumer(consumer) => consumer.refuse(),
            });
        }
        for call in calls {
            self.finish(call, Err(error.clone()));
        }
        self.fail_settlements(error);
    }
}

/// What an open was answered.
enum Opened {
    Yes(Contract, ProducerAdmission),
    No(OpenRefusal, String),
    Rejected(RequestRejected),
    Cancelled(CancellationStage),
}

impl Opened {
    /// Whether it may have been opened although its answer does not say what (C-8, C-9).
    fn unseen(&self) -> bool {
        match self {
            Self::Rejected(rejected) => is_too_large(rejected),
            Self::Cancelled(stage) => *stage == CancellationStage::AfterAdmission,
            Self::Yes(..) | Self::No(..) => false,
        }
    }
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
