//! The session: what it holds, what it waits for, and what it does next.
//!
//! Owns the decisions between a call of the host and a frame on an exchange: reaching a server, moving to the leader,
//! repeating commands, opening subscriptions again. Each public method takes what happened and then lets everything that can
//! go on go on; nothing here waits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use nervix_wire::types::{
    AttachDomainClockRequest, CancelRequest, CancellationStage, ClientRequest, CommandDisposition,
    CommandOutcome, CommandRequest, DetachDomainClockRequest, DomainClockAttachDisposition,
    DomainClockDetachDisposition, LeaderEndpoints, Leadership, Reply, ReplyBody, RequestCancelled,
    RequestRejected, RequestRejection, ServerBody, ServerMessage, SessionEndReason,
    SubscribeDisposition, SubscribeRequest, SubscriptionType, SuggestRequest,
    UnsubscribeDisposition, UnsubscribeRequest,
};
use nervix_wire::Violation;

use crate::api::{
    brief, Call, CallId, Cause, Config, ConnId, Disposition, Done, Error, ErrorKind, EventKind,
    ExecutionId, Given, Input, Now, OpenedSubscription, Outcome, Output, Sent, Stop,
};
use crate::clocks::Clocks;
use crate::exchange::{Asked, Exchange, Unsent};
use crate::execution::{local, of_command, outcome, render_domains, Execution};
use crate::origin::Origin;
use crate::projection::DomainClock;
use crate::reach::{Backoff, Jitter, Reach, BACKGROUND, RETRY};
use crate::reference::{is_uuid_v7, uuid_v7};
use crate::statement::{is_one_statement, route, Act, Route};
use crate::subscriptions::{Limits, Place, SubId, Subscriptions};

mod commands;
mod connections;
mod consumers;
mod endpoints;
mod frames;
mod producers;
mod progress;
mod replies;
mod transactions;

use endpoints::{Endpoints, Wire};

/// Nanoseconds one connection may take until the server said who leads.
const CONNECTION: u64 = 10_000_000_000;
/// The most nanoseconds between the loss of a session and the first attempt at the next. Each client takes any part of it, so that
/// those a server lost together come back one by one, and a single one still within a quarter of a second.
const SPREAD: u64 = 250_000_000;
/// A session that lasted less than these nanoseconds and answered no call is a failed attempt to those after it: a server that greets
/// and then ends every session is no more asked than one that does not answer.
const BRIEF: u64 = 1_000_000_000;

const OUT_OF_RANGE: u32 = 11;
const INTERNAL: u32 = 13;
const UNAVAILABLE: u32 = 14;
const UNAUTHENTICATED: u32 = 16;

/// One session of a host, through all its connections.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    jitter: Jitter,
    reach: Reach,
    /// The selected domain (L-1).
    domain: Option<String>,
    outputs: VecDeque<Output>,
    /// When everything that could go on last did.
    driven: u64,

    exchanges: BTreeMap<ConnId, Exchange>,
    /// The exchange that takes new requests; the others only finish theirs.
    current: Option<ConnId>,
    attempt: Option<Attempt>,
    /// Servers still to try before waiting.
    candidates: VecDeque<Origin>,
    reconnect_at: u64,
    /// When the last attempt began.
    attempted_at: u64,
    reconnect_backoff: Backoff,
    next_conn: u64,
    /// Why the session cannot come back.
    over: Option<Over>,

    connect: Option<Connecting>,
    executions: HashMap<ExecutionId, Execution>,
    next_execution: u64,
    /// Calls that run commands, in order; only the first is at work.
    runs: VecDeque<Run>,
    suggests: BTreeMap<CallId, Suggest>,
    readers: VecDeque<CallId>,
    subs: Subscriptions,
    clock_readers: VecDeque<CallId>,
    clocks: Clocks,
    endpoints: Endpoints,
    transaction: Option<transactions::Held>,
    /// The exchange that a BEGIN was sent on whose outcome is not known, so that it may hold a transaction all the same.
    begun_on: Option<ConnId>,
}

/// Why a session cannot come back.
#[derive(Debug, Clone)]
struct Over {
    error: Error,
    /// What a command that was never sent fails with.
    unsent: ErrorKind,
}

/// A connection that is being opened.
#[derive(Debug)]
struct Attempt {
    conn: ConnId,
    origin: Origin,
    deadline: u64,
}

/// The call that opens the first session.
#[derive(Debug)]
struct Connecting {
    call: CallId,
    deadline: u64,
    causes: Vec<String>,
    /// A server could not verify the credentials now, so the servers are worth trying again (T-5).
    again: bool,
    backoff: Backoff,
}

/// A call that runs a command.
#[derive(Debug)]
struct Run {
    call: CallId,
    execution: ExecutionId,
    deadline: u64,
    /// Not to be sent before this.
    due: u64,
    backoff: Backoff,
    /// It waits for a request that an earlier call of the same command sent.
    joined: bool,
    /// It is sent only while no transaction is held.
    outside: bool,
    /// Redirects it was given.
    redirects: u32,
    /// It waits because nobody leads.
    leaderless: bool,
}

#[derive(Debug)]
struct Suggest {
    request: SuggestRequest,
    deadline: u64,
    due: u64,
    backoff: Backoff,
    /// The exchange it is in flight on.
    flight: Option<ConnId>,
    cause: Option<(ErrorKind, String)>,
}

impl Engine {
    /// An engine that has not connected.
    pub fn new(config: Config) -> Self {
        Self::with_limits(config, Limits::default())
    }

    pub(crate) fn with_limits(config: Config, limits: Limits) -> Self {
        let reach = Reach::new(config.seeds.clone());
        Self {
            jitter: Jitter::new(config.seed),
            reach,
            domain: config.domain.clone(),
            config,
            outputs: VecDeque::new(),
            driven: 0,
            exchanges: BTreeMap::new(),
            current: None,
            attempt: None,
            candidates: VecDeque::new(),
            reconnect_at: 0,
            attempted_at: 0,
            reconnect_backoff: Backoff::default(),
            next_conn: 1,
            over: None,
            connect: None,
            executions: HashMap::new(),
            next_execution: 1,
            runs: VecDeque::new(),
            suggests: BTreeMap::new(),
            readers: VecDeque::new(),
            subs: Subscriptions::with_limits(limits),
            clock_readers: VecDeque::new(),
            clocks: Clocks::default(),
            endpoints: Endpoints::default(),
            transaction: None,
            begun_on: None,
        }
    }

    /// Fixes a command and gives it its reference, a UUIDv7 of `now` and the given random bytes (E-1).
    pub fn prepare(&mut self, now: Now, query: &str, entropy: [u8; 10]) -> (ExecutionId, Arc<str>) {
        let id = ExecutionId(self.next_execution);
        self.next_execution = self.next_execution.saturating_add(1);
        let reference: Arc<str> = Arc::from(uuid_v7(now.unix_millis, entropy));
        self.executions.insert(
            id,
            Execution::new(query, self.domain.clone(), Arc::clone(&reference)),
        );
        (id, reference)
    }

    /// As [`Engine::prepare`], for a command of which more is given: what it was sent with before, or what it must find.
    pub fn prepare_with(
        &mut self,
        now: Now,
        query: &str,
        entropy: [u8; 10],
        given: Given,
    ) -> Result<(ExecutionId, Arc<str>), Error> {
        if let Some(reference) = &given.reference {
            if !is_uuid_v7(reference) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    "an execution reference is a UUIDv7 in lower case, as an earlier execution had it",
                ));
            }
        }
        if given.preview.is_some() && route(query, true) != Route::Command(Act::Commit) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "only COMMIT is prepared with a preview",
            ));
        }
        let (id, mut reference) = self.prepare(now, query, entropy);
        if let Some(held) = self.executions.get_mut(&id) {
            if given.domain.is_some() {
                held.domain = given.domain;
            }
            if let Some(given) = given.reference {
                reference = Arc::from(given);
                held.reference = Arc::clone(&reference);
                held.recovered = true;
                held.doubtful = true;
            }
            held.position = given.position;
            held.bound = given.transaction.map(Arc::from);
            held.preview = given.preview;
            if held.recovered {
                let (position, preview) = (held.position, held.preview.clone());
                held.sent.get_or_init(|| Sent { position, preview });
            }
        }
        Ok((id, reference))
    }

    /// Where it is told what a command was first sent with, once it was.
    pub fn sent(&self, execution: ExecutionId) -> Option<Arc<OnceLock<Sent>>> {
        self.executions
            .get(&execution)
            .map(|held| Arc::clone(&held.sent))
    }

    /// Forgets a prepared command; a call that runs it goes on.
    pub fn release(&mut self, execution: ExecutionId) {
        if let Some(held) = self.executions.get_mut(&execution) {
            held.released = true;
        }
        self.forget_if_released(execution);
    }

    /// Starts a call. It ends with one [`Output::Done`], perhaps at once.
    pub fn call(&mut self, now: Now, call: CallId, what: Call) {
        let deadline = now.mono.saturating_add(self.config.retry_timeout);
        match what {
            Call::Connect => {
                if self.connect.is_some() || self.current.is_some() || self.over.is_some() {
                    self.finish(
                        call,
                        Err(Error::new(
                            ErrorKind::InvalidArgument,
                            "the session was opened before",
                        )),
                    );
                    return;
                }
                self.candidates = self.reach.seeds();
                self.connect = Some(Connecting {
                    call,
                    deadline,
                    causes: Vec::new(),
                    again: false,
                    backoff: Backoff::default(),
                });
            }
            Call::Execute(execution) | Call::ExecuteOutside(execution) => {
                if !self.executions.contains_key(&execution) {
                    let message = "this command was not prepared by this session";
                    self.finish(call, Err(Error::new(ErrorKind::InvalidArgument, message)));
                    return;
                }
                let backoff = Backoff::default();
                let outside = matches!(what, Call::ExecuteOutside(_));
                let joined = self
                    .executions
                    .get(&execution)
                    .is_some_and(|held| held.flight.is_some());
                self.runs.push_back(Run {
                    call,
                    execution,
                    deadline,
                    due: 0,
                    backoff,
                    joined,
                    outside,
                    redirects: 0,
                    leaderless: false,
                });
                self.hurry(now);
            }
            Call::NextClockEvent => {
                self.clock_readers.push_back(call);
                self.hurry(now);
            }
            Call::Open(role, request) => self.open_endpoint(now, call, role, request),
            Call::Submit(producer, batch) => self.submit(now, call, producer, batch),
            Call::Rejoin(producer, submission) => self.rejoin(call, producer, submission),
            Call::NextDelivery(consumer) => self.next_delivery(now, call, consumer),
            Call::Settle(delivery, decision) => {
                self.settle_delivery(now, call, &delivery, decision)
            }
            Call::Close(endpoint) => self.close_endpoint(Some(call), endpoint),
            Call::NextEvent => {
                self.readers.push_back(call);
                self.hurry(now);
            }
            Call::Suggest {
                input,
                cursor,
                page_size,
                continuation,
            } => {
                let request = SuggestRequest {
                    input,
                    cursor,
                    domain: self.domain.clone(),
                    page_size,
                    continuation,
                };
                let backoff = Backoff::default();
                self.suggests.insert(
                    call,
                    Suggest {
                        request,
                        deadline,
                        due: 0,
                        backoff,
                        flight: None,
                        cause: None,
                    },
                );
                self.hurry(now);
            }
        }
        self.drive(now);
    }

    /// The host stops waiting: the call ends now with CANCELLED or DEADLINE, unless it is over already.
    pub fn stop(&mut self, now: Now, call: CallId, why: Stop) {
        let (kind, reason) = match why {
            Stop::Cancelled => (ErrorKind::Cancelled, "cancelled by the host"),
            Stop::Deadline => (ErrorKind::Deadline, "the deadline passed"),
        };
        if self
            .connect
            .as_ref()
            .is_some_and(|connect| connect.call == call)
        {
            self.connect = None;
            self.finish(
                call,
                Err(Error::new(kind, format!("no session was opened: {reason}"))),
            );
            self.end("the session was never opened", ErrorKind::Closed);
        } else if let Some(at) = self.runs.iter().position(|run| run.call == call) {
            if let Some(run) = self.runs.remove(at) {
                let error = self.stopped_error(run.execution, kind, reason);
                self.finish(call, Err(error));
                self.forget_if_released(run.execution);
            }
        } else if let Some(at) = self.readers.iter().position(|reader| *reader == call) {
            self.readers.remove(at);
            self.finish(
                call,
                Err(Error::new(kind, format!("no event arrived: {reason}"))),
            );
        } else if let Some(at) = self.clock_readers.iter().position(|reader| *reader == call) {
            self.clock_readers.remove(at);
            self.finish(
                call,
                Err(Error::new(
                    kind,
                    format!("no clock event arrived: {reason}"),
                )),
            );
        } else if self.stop_endpoint_call(now, call, kind, reason) {
        } else if let Some(suggest) = self.suggests.remove(&call) {
            self.finish(
                call,
                Err(Error::new(
                    kind,
                    format!("no completions arrived: {reason}"),
                )),
            );
            if let Some(conn) = suggest.flight {
                self.cancel_request(now, conn, Asked::Suggest(call));
            }
        }
        self.drive(now);
    }

    /// Takes what happened on a connection. What concerns an unknown or finished connection is ignored.
    pub fn input(&mut self, now: Now, input: Input) {
        match input {
            Input::Frame { conn, frame } => {
                self.arrived(now, conn, nervix_wire::decode_server(&frame));
            }
            Input::Message { conn, message } => self.arrived(now, conn, *message),
            Input::Closed { conn, cause } => {
                if self
                    .attempt
                    .as_ref()
                    .is_some_and(|attempt| attempt.conn == conn)
                {
                    self.attempt_failed(now, cause, false);
                } else {
                    self.lose(now, conn, cause, false);
                }
            }
        }
        self.drive(now);
    }

    /// Does what has become due. Harmless at any time.
    pub fn wake(&mut self, now: Now) {
        self.drive(now);
    }

    /// The monotonic time of the next [`Engine::wake`] that matters.
    pub fn wakeup(&self) -> Option<u64> {
        if self.over.is_some() {
            return None;
        }
        let mut due: Vec<u64> = Vec::new();
        due.extend(self.attempt.as_ref().map(|attempt| attempt.deadline));
        due.extend(self.connect.as_ref().map(|connect| connect.deadline));
        for exchange in self.exchanges.values() {
            due.extend(
                exchange
                    .oldest()
                    .map(|sent| sent.saturating_add(self.config.request_timeout)),
            );
        }
        for (index, run) in self.runs.iter().enumerate() {
            due.push(run.deadline);
            let in_flight = self
                .executions
                .get(&run.execution)
                .is_some_and(|held| held.flight.is_some());
            if index == 0 && run.due > 0 && !in_flight {
                due.push(run.due);
            }
        }
        for suggest in self.suggests.values() {
            due.push(suggest.deadline);
            if suggest.due > 0 && suggest.flight.is_none() {
                due.push(suggest.due);
            }
        }
        due.extend(self.endpoints.next_deadline());
        due.extend(self.endpoints.next_due(self.current.is_some()));
        for exchange in self.exchanges.values() {
            if self.waits_on(exchange.conn) && exchange.asks(&Asked::Probe).is_none() {
                due.push(exchange.heard.saturating_add(self.config.request_timeout));
            }
        }
        if self.current.is_some() {
            due.extend(self.subs.next_due());
            due.extend(self.clocks.next_due());
            due.extend(self.next_attach());
        } else if self.attempt.is_none() && self.wants_session() {
            due.push(self.reconnect_at);
        }
        // What is due and was not done waits for something else than time.
        due.into_iter().filter(|due| *due > self.driven).min()
    }

    /// The next thing for the runner to do. Take all of them after every other call.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The clock of a domain that the session follows, never older than an event that was handed out (B-11).
    pub fn domain_clock(&self, domain: &str) -> Option<DomainClock> {
        self.clocks.read(domain)
    }

    /// Ends the session for good: every connection is reset and every waiting call ends as CLOSED.
    pub fn shut_down(&mut self) {
        self.end("the session was closed", ErrorKind::Closed);
    }

    fn finish(&mut self, call: CallId, result: Result<Done, Error>) {
        self.outputs.push_back(Output::Done { call, result });
    }

    /// A new call does not sit out a long wait that began while nobody was waiting. Many calls, one after the other, hurry no more
    /// than one that waits does.
    fn hurry(&mut self, now: Now) {
        if self.current.is_none() && self.attempt.is_none() {
            let longest = RETRY.longest();
            let soon = self.attempted_at.saturating_add(longest).max(now.mono);
            if self.reconnect_at > soon.saturating_add(longest) {
                self.reconnect_at = soon.saturating_add(self.jitter.up_to(SPREAD));
            }
        }
    }

    fn stopped_error(&self, execution: ExecutionId, kind: ErrorKind, reason: &str) -> Error {
        match self.executions.get(&execution) {
            Some(held) => {
                let effect = if held.may_have_happened() {
                    "the command may have happened or may still happen; execute the same execution again to learn its outcome"
                } else {
                    "the command was not sent; execute the same execution again to run it"
                };
                let message = format!("{reason}: {effect} (reference {})", held.reference);
                let error = Error::new(kind, message).of_command(&held.reference);
                if held.may_have_happened() {
                    error
                } else {
                    error.unsent()
                }
            }
            None => Error::new(kind, reason),
        }
    }

    /// The error of a command that found no terminal outcome: what the manual calls uncertain once it was written (D-4).
    fn unknown_error(&self, execution: ExecutionId, kind: ErrorKind, reason: &str) -> Error {
        let Some(held) = self.executions.get(&execution) else {
            return Error::new(kind, reason);
        };
        // Whatever a server made of the reason, the advice behind it is to be read.
        let reason = brief(reason.to_owned());
        if held.may_have_happened() {
            let message = format!(
                "the outcome of command {} is not known, it may have happened: {reason}; execute the same execution again \
                 to learn its outcome",
                held.reference
            );
            Error::new(ErrorKind::Uncertain, message).of_command(&held.reference)
        } else {
            Error::new(kind, format!("the command was not sent: {reason}"))
                .of_command(&held.reference)
                .unsent()
        }
    }

    fn forget_if_released(&mut self, execution: ExecutionId) {
        let running = self.runs.iter().any(|run| run.execution == execution);
        if self
            .executions
            .get(&execution)
            .is_some_and(|held| held.released && held.flight.is_none() && !running)
        {
            self.executions.remove(&execution);
        }
    }

    /// Ends the first run with an outcome that will never change.
    fn settle(&mut self, execution: ExecutionId, outcome: Outcome) {
        if let Some(held) = self.executions.get_mut(&execution) {
            held.outcome.get_or_insert_with(|| Arc::new(outcome));
        }
    }

    fn fail_runs_of(&mut self, execution: ExecutionId, error: &Error) {
        for call in self.take_runs_of(execution) {
            self.finish(call, Err(error.clone()));
        }
        self.forget_if_released(execution);
    }

    /// The calls that wait for a command, which is at work no longer.
    fn take_runs_of(&mut self, execution: ExecutionId) -> Vec<CallId> {
        let (taken, rest): (VecDeque<Run>, VecDeque<Run>) = std::mem::take(&mut self.runs)
            .into_iter()
            .partition(|run| run.execution == execution);
        self.runs = rest;
        taken.into_iter().map(|run| run.call).collect()
    }

    /// Has the first run wait before it is sent again.
    fn back_off(&mut self, now: Now, execution: ExecutionId) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.execution == execution) {
            let wait = run.backoff.next(RETRY, &mut self.jitter);
            run.due = now.mono.saturating_add(wait);
        }
    }
}

fn is_busy(rejected: &RequestRejected) -> bool {
    matches!(
        rejected.rejection,
        RequestRejection::TooManyRequestsInFlight | RequestRejection::ServerBusy
    )
}

/// Whether the request was carried out, and only its reply could not be carried (C-8).
fn is_too_large(rejected: &RequestRejected) -> bool {
    rejected.rejection == RequestRejection::ReplyTooLarge
}

fn describe_rejection(rejected: &RequestRejected) -> String {
    let reason = match rejected.rejection {
        RequestRejection::InvalidRequest => "the request is not valid",
        RequestRejection::UnsupportedRequest => "the server does not support the request",
        RequestRejection::UnsupportedValue => "the server does not support a value of the request",
        RequestRejection::DuplicateRequestId => "the request identity is in use",
        RequestRejection::ReplyTooLarge => "the reply is too large to be carried",
        RequestRejection::TooManyRequestsInFlight => "too many requests are in flight",
        RequestRejection::ServerBusy => "the server is busy",
    };
    let message = brief(rejected.message.clone());
    match &rejected.field {
        Some(field) => format!(
            "the server refused: {reason} (field {}): {message}",
            brief(field.clone())
        ),
        None => format!("the server refused: {reason}: {message}"),
    }
}

fn describe(cause: &Cause) -> String {
    match cause {
        Cause::Unreachable(why) => format!("cannot be reached: {why}"),
        Cause::Status {
            code: UNAUTHENTICATED,
            message,
        } => format!("refused the credentials: {message}"),
        Cause::Status {
            code: UNAVAILABLE,
            message,
        } => format!("is unavailable now: {message}"),
        Cause::Status { code, message } => {
            format!("ended the call with grpc-status {code}: {message}")
        }
        Cause::Lost(why) => format!("the connection ended: {why}"),
        Cause::Violation(why) => format!("broke the protocol: {why}"),
    }
}
