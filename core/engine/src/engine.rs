//! The session: what it holds, what it waits for, and what it does next.
//!
//! Owns the decisions between a call of the host and a frame on an exchange: reaching a server, moving to the leader,
//! repeating commands, opening subscriptions again. Each public method takes what happened and then lets everything that can
//! go on go on; nothing here waits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use nervix_wire::types::{
    CancelRequest, CancellationStage, ClientRequest, CommandDisposition, CommandOutcome,
    CommandRequest, LeaderEndpoints, Leadership, Reply, ReplyBody, RequestCancelled,
    RequestRejected, RequestRejection, ServerBody, ServerMessage, SessionEndReason,
    SubscribeDisposition, SubscribeRequest, SubscriptionType, SuggestRequest,
    UnsubscribeDisposition, UnsubscribeRequest,
};
use nervix_wire::{Frame, Violation};

use crate::api::{
    Call, CallId, Cause, Config, ConnId, Disposition, Done, Error, ErrorKind, EventKind,
    ExecutionId, Input, Now, OpenedSubscription, Outcome, Output, Stop,
};
use crate::exchange::{Asked, Exchange, Unsent};
use crate::execution::{local, of_command, outcome, render_domains, Execution};
use crate::origin::Origin;
use crate::reach::{Backoff, Jitter, Reach, BACKGROUND, RETRY};
use crate::reference::uuid_v7;
use crate::statement::Route;
use crate::subscriptions::{Limits, Place, SubId, Subscriptions};

/// Nanoseconds one connection may take until the server said who leads.
const CONNECTION: u64 = 10_000_000_000;
/// The most nanoseconds between the loss of a session and the first attempt at the next, so that many clients spread out.
const SPREAD: u64 = 50_000_000;

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
            Call::Execute(execution) => {
                if !self.executions.contains_key(&execution) {
                    let message = "this command was not prepared by this session";
                    self.finish(call, Err(Error::new(ErrorKind::InvalidArgument, message)));
                    return;
                }
                let backoff = Backoff::default();
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
                    redirects: 0,
                    leaderless: false,
                });
                self.hurry(now);
            }
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
            Input::Frame { conn, frame } => self.frame(now, conn, &frame),
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
        match self.current_exchange() {
            Some(exchange) => {
                due.extend(self.subs.next_due());
                if self.awaits_unsolicited() && exchange.asks(Asked::Probe).is_none() {
                    due.push(exchange.heard.saturating_add(self.config.request_timeout));
                }
            }
            None if self.attempt.is_none() && self.wants_session() => due.push(self.reconnect_at),
            None => {}
        }
        // What is due and was not done waits for something else than time.
        due.into_iter().filter(|due| *due > self.driven).min()
    }

    /// The next thing for the runner to do. Take all of them after every other call.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Ends the session for good: every connection is reset and every waiting call ends as CLOSED.
    pub fn shut_down(&mut self) {
        self.end("the session was closed", ErrorKind::Closed);
    }

    // ---- calls

    fn finish(&mut self, call: CallId, result: Result<Done, Error>) {
        self.outputs.push_back(Output::Done { call, result });
    }

    /// A new call does not sit out a long wait that began while nobody was waiting.
    fn hurry(&mut self, now: Now) {
        if self.current.is_none() && self.attempt.is_none() {
            let soon = now.mono.saturating_add(self.jitter.up_to(SPREAD));
            if self.reconnect_at > soon.saturating_add(1_000_000_000) {
                self.reconnect_at = soon;
                self.reconnect_backoff.reset();
            }
        }
    }

    fn stopped_error(&self, execution: ExecutionId, kind: ErrorKind, reason: &str) -> Error {
        match self.executions.get(&execution) {
            Some(held) => {
                let effect = if held.written {
                    "the command may have happened or may still happen; execute the same execution again to learn its outcome"
                } else {
                    "the command was not sent; execute the same execution again to run it"
                };
                Error::new(
                    kind,
                    format!("{reason}: {effect} (reference {})", held.reference),
                )
                .of_command(&held.reference)
            }
            None => Error::new(kind, reason),
        }
    }

    /// The error of a command that found no terminal outcome: what the manual calls uncertain once it was written (D-4).
    fn unknown_error(&self, execution: ExecutionId, kind: ErrorKind, reason: &str) -> Error {
        let Some(held) = self.executions.get(&execution) else {
            return Error::new(kind, reason);
        };
        if held.written {
            let message = format!(
                "the outcome of command {} is not known, it may have happened: {reason}; execute the same execution again \
                 to learn its outcome",
                held.reference
            );
            Error::new(ErrorKind::Uncertain, message).of_command(&held.reference)
        } else {
            Error::new(kind, format!("the command was not sent: {reason}"))
                .of_command(&held.reference)
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
        let (failed, rest): (VecDeque<Run>, VecDeque<Run>) = std::mem::take(&mut self.runs)
            .into_iter()
            .partition(|run| run.execution == execution);
        self.runs = rest;
        for run in failed {
            self.finish(run.call, Err(error.clone()));
        }
        self.forget_if_released(execution);
    }

    /// Has the first run wait before it is sent again.
    fn back_off(&mut self, now: Now, execution: ExecutionId) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.execution == execution) {
            let wait = run.backoff.next(RETRY, &mut self.jitter);
            run.due = now.mono.saturating_add(wait);
        }
    }

    // ---- exchanges

    fn current_exchange(&self) -> Option<&Exchange> {
        self.current.and_then(|conn| self.exchanges.get(&conn))
    }

    fn send(
        &mut self,
        now: Now,
        conn: ConnId,
        asked: Asked,
        request: ClientRequest,
    ) -> Result<(), Unsent> {
        let Some(exchange) = self.exchanges.get_mut(&conn) else {
            return Err(Unsent::Full);
        };
        let (_, frame) = exchange.register(asked, request, now.mono)?;
        self.outputs.push_back(Output::Send { conn, frame });
        Ok(())
    }

    fn cancel_request(&mut self, now: Now, conn: ConnId, asked: Asked) {
        let target = self
            .exchanges
            .get(&conn)
            .and_then(|exchange| exchange.asks(asked));
        if let Some(target_request_id) = target {
            // Without room the request ends by itself; cancelling is a courtesy (C-9, C-10).
            let _ = self.send(
                now,
                conn,
                Asked::Cancel,
                ClientRequest::CancelRequest(CancelRequest { target_request_id }),
            );
        }
    }

    fn begin_attempt(&mut self, now: Now, origin: Origin) {
        let conn = ConnId(self.next_conn);
        self.next_conn = self.next_conn.saturating_add(1);
        self.attempt = Some(Attempt {
            conn,
            origin: origin.clone(),
            deadline: now.mono.saturating_add(CONNECTION),
        });
        self.outputs.push_back(Output::Open { conn, origin });
    }

    fn attempt_failed(&mut self, now: Now, cause: Cause, reset: bool) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        if reset {
            self.outputs.push_back(Output::Reset { conn: attempt.conn });
        }
        let text = format!("{}: {}", attempt.origin, describe(&cause));
        if let Cause::Status {
            code: UNAUTHENTICATED,
            ..
        } = cause
        {
            self.refused_credentials(&text);
            return;
        }
        if let Some(connect) = &mut self.connect {
            connect.again |= matches!(
                cause,
                Cause::Status {
                    code: UNAVAILABLE,
                    ..
                }
            );
            connect.causes.push(text);
            if !self.candidates.is_empty() {
                return;
            }
            if connect.again {
                connect.again = false;
                connect.causes.clear();
                self.candidates = self.reach.seeds();
                let wait = connect.backoff.next(RETRY, &mut self.jitter);
                self.reconnect_at = now.mono.saturating_add(wait);
                return;
            }
            let message = format!("no session could be opened: {}", connect.causes.join("; "));
            let call = connect.call;
            self.connect = None;
            self.finish(call, Err(Error::new(ErrorKind::Connect, message)));
            self.end("the session was never opened", ErrorKind::Closed);
            return;
        }
        let kind = if matches!(cause, Cause::Violation(_)) {
            ErrorKind::Protocol
        } else {
            ErrorKind::Connect
        };
        for run in &self.runs {
            if let Some(held) = self.executions.get_mut(&run.execution) {
                held.cause = Some((kind, text.clone()));
            }
        }
        for suggest in self.suggests.values_mut() {
            suggest.cause = Some((kind, text.clone()));
        }
        if self.current.is_some() {
            // A redirect led nowhere: ask again where the session is now.
            if let Some(execution) = self.runs.front().map(|run| run.execution) {
                self.back_off(now, execution);
            }
        } else if self.candidates.is_empty() {
            let waiting =
                !self.runs.is_empty() || !self.readers.is_empty() || !self.suggests.is_empty();
            let growth = if waiting { RETRY } else { BACKGROUND };
            let wait = self.reconnect_backoff.next(growth, &mut self.jitter);
            self.reconnect_at = now.mono.saturating_add(wait);
        }
    }

    /// The server will not have these credentials, so nothing is tried again (T-5).
    fn refused_credentials(&mut self, text: &str) {
        let refused =
            "the credentials were refused; open a new session with a valid user name and password";
        if let Some(connect) = self.connect.take() {
            let message = format!("no session could be opened: {refused} ({text})");
            self.finish(connect.call, Err(Error::new(ErrorKind::Connect, message)));
        }
        for execution in self
            .runs
            .iter()
            .map(|run| run.execution)
            .collect::<Vec<_>>()
        {
            let error = self.unknown_error(
                execution,
                ErrorKind::Connect,
                &format!("{refused} ({text})"),
            );
            self.fail_runs_of(execution, &error);
        }
        self.end(
            &format!("the session is over: {refused} ({text})"),
            ErrorKind::Connect,
        );
    }

    /// The server spoke first on a new connection: it is a session now.
    fn opened(&mut self, now: Now) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        let moved = self.current.take();
        if let Some(old) = moved {
            self.retire(old);
        }
        self.reach.used(&attempt.origin);
        self.exchanges.insert(
            attempt.conn,
            Exchange::new(attempt.conn, attempt.origin, now.mono),
        );
        self.current = Some(attempt.conn);
        self.candidates.clear();
        self.reconnect_backoff.reset();
        if let Some(connect) = self.connect.take() {
            self.finish(connect.call, Ok(Done::Connected));
        }
    }

    /// An exchange that another one took over from finishes what it was asked and ends.
    fn retire(&mut self, conn: ConnId) {
        self.subs.exchange_lost("the session moved to the leader");
        if let Some(exchange) = self.exchanges.get_mut(&conn) {
            for asked in exchange.in_flight().collect::<Vec<_>>() {
                match asked {
                    // What it opened or deleted ends with it.
                    Asked::Subscribe(execution) => self.landed(execution),
                    Asked::Unsubscribe(execution, sub) => self.deleted(execution, sub),
                    _ => {}
                }
            }
            if let Some(exchange) = self.exchanges.get_mut(&conn) {
                exchange.keep_only(|asked| {
                    matches!(
                        asked,
                        Asked::Command(_) | Asked::Domains(_) | Asked::Suggest(_)
                    )
                });
            }
        }
        self.close_if_idle(conn);
    }

    fn close_if_idle(&mut self, conn: ConnId) {
        let idle = self.exchanges.get(&conn).is_some_and(Exchange::idle);
        if idle && self.current != Some(conn) {
            self.exchanges.remove(&conn);
            self.outputs.push_back(Output::Reset { conn });
        }
    }

    /// An exchange is over: every request on it ends without a reply (D-6, F-8).
    fn lose(&mut self, now: Now, conn: ConnId, cause: Cause, reset: bool) {
        let Some(exchange) = self.exchanges.remove(&conn) else {
            return;
        };
        if reset {
            self.outputs.push_back(Output::Reset { conn });
        }
        let text = format!("{}: {}", exchange.origin, describe(&cause));
        let kind = if matches!(cause, Cause::Violation(_)) {
            ErrorKind::Protocol
        } else {
            ErrorKind::Transport
        };
        // The server judged a frame malformed or oversized: nothing that was in flight is sent again (T-6).
        let condemned = matches!(
            cause,
            Cause::Status {
                code: OUT_OF_RANGE | INTERNAL,
                ..
            }
        );
        for asked in exchange.in_flight() {
            match asked {
                Asked::Command(execution)
                | Asked::Domains(execution)
                | Asked::Subscribe(execution) => {
                    self.landed(execution);
                    if let Some(held) = self.executions.get_mut(&execution) {
                        held.cause = Some((kind, text.clone()));
                        held.doubtful |= matches!(asked, Asked::Command(_));
                    }
                    if condemned {
                        let error = if matches!(asked, Asked::Command(_)) {
                            self.unknown_error(execution, ErrorKind::Transport, &text)
                        } else {
                            let reference = self
                                .executions
                                .get(&execution)
                                .map(|held| Arc::clone(&held.reference));
                            let error = Error::new(ErrorKind::Transport, text.clone());
                            reference
                                .map_or(error.clone(), |reference| error.of_command(&reference))
                        };
                        self.fail_runs_of(execution, &error);
                    }
                    self.forget_if_released(execution);
                }
                Asked::Unsubscribe(execution, sub) => self.deleted(execution, sub),
                Asked::Suggest(call) => {
                    if self.suggests.remove(&call).is_some() {
                        self.finish(
                            call,
                            Err(Error::new(kind, format!("the session was lost: {text}"))),
                        );
                    }
                }
                Asked::Reopen(_) | Asked::Drop(_) | Asked::Cancel | Asked::Probe => {}
            }
        }
        if self.current == Some(conn) {
            self.current = None;
            self.subs.exchange_lost(&text);
            self.candidates = self.reach.candidates();
            self.reconnect_at = now.mono.saturating_add(self.jitter.up_to(SPREAD));
        }
        if let Cause::Status {
            code: UNAUTHENTICATED,
            ..
        } = cause
        {
            self.refused_credentials(&text);
        }
    }

    /// No request of this command is in flight any more.
    fn landed(&mut self, execution: ExecutionId) {
        if let Some(held) = self.executions.get_mut(&execution) {
            held.flight = None;
        }
    }

    fn end(&mut self, why: &str, unsent: ErrorKind) {
        if self.over.is_some() {
            return;
        }
        let error = Error::new(ErrorKind::Closed, why);
        self.over = Some(Over {
            error: error.clone(),
            unsent,
        });
        let attempt = self.attempt.take().map(|attempt| attempt.conn);
        let exchanges = std::mem::take(&mut self.exchanges);
        for conn in attempt.into_iter().chain(exchanges.into_keys()) {
            self.outputs.push_back(Output::Reset { conn });
        }
        self.current = None;
        if let Some(connect) = self.connect.take() {
            self.finish(connect.call, Err(error));
        }
        self.fail_what_waits();
    }

    /// Ends every waiting call of a session that is over.
    fn fail_what_waits(&mut self) {
        let Some(Over { error, unsent }) = self.over.clone() else {
            return;
        };
        // What was queued before the end is still to be read.
        self.deliver();
        for run in std::mem::take(&mut self.runs) {
            let known = self
                .executions
                .get(&run.execution)
                .and_then(|held| held.outcome.clone());
            let result = match known {
                Some(outcome) => Ok(Done::Outcome(outcome)),
                None => Err(self.unknown_error(run.execution, unsent, &error.message)),
            };
            self.finish(run.call, result);
        }
        let calls: Vec<CallId> = self
            .readers
            .drain(..)
            .chain(std::mem::take(&mut self.suggests).into_keys())
            .collect();
        for call in calls {
            self.finish(call, Err(error.clone()));
        }
    }

    // ---- frames

    fn frame(&mut self, now: Now, conn: ConnId, frame: &Frame) {
        let attempt = self
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.conn == conn);
        if let Some(exchange) = self.exchanges.get_mut(&conn) {
            exchange.heard = now.mono;
        } else if !attempt {
            return;
        }
        let result = nervix_wire::decode_server(frame).and_then(|message| {
            if attempt {
                self.greeted(now, message);
                Ok(())
            } else {
                self.message(now, conn, message, frame.as_slice().len())
            }
        });
        if let Err(violation) = result {
            let cause = Cause::Violation(violation.to_string());
            if attempt {
                self.attempt_failed(now, cause, true);
            } else {
                self.lose(now, conn, cause, true);
            }
        }
    }

    /// What a server says before it said who leads.
    fn greeted(&mut self, now: Now, message: ServerMessage) {
        match message.body {
            ServerBody::LeadershipObserved(observed) => {
                self.opened(now);
                self.leadership(now, &observed.leadership);
            }
            ServerBody::SessionEnding(ending) => {
                let cause = self.ending(&ending.reason);
                self.attempt_failed(now, cause, true);
            }
            _ => {}
        }
    }

    fn message(
        &mut self,
        now: Now,
        conn: ConnId,
        message: ServerMessage,
        bytes: usize,
    ) -> Result<(), Violation> {
        let current = self.current == Some(conn);
        match message.body {
            ServerBody::Reply(reply) => return self.reply(now, conn, reply),
            ServerBody::SessionEnding(ending) => {
                let cause = self.ending(&ending.reason);
                self.lose(now, conn, cause, true);
            }
            // What an exchange that was left says about subscriptions and leaders is old news.
            _ if !current => {}
            ServerBody::LeadershipObserved(observed) => self.leadership(now, &observed.leadership),
            ServerBody::SubscriptionRows(rows) => {
                let Some(id) = self.subs.by_handle(&rows.subscription) else {
                    return Ok(());
                };
                let Some(sub) = self.subs.get(id) else {
                    return Ok(());
                };
                if sub.place != Place::Live && sub.place != Place::Superseded {
                    return Ok(());
                }
                let rows = rows.check(Arc::clone(&sub.schema))?;
                self.subs.push(id, EventKind::Rows(rows), bytes);
            }
            ServerBody::SubscriptionDeliveryLost(lost) => {
                if let Some(id) = self.live(&lost.subscription) {
                    self.subs.push(
                        id,
                        EventKind::DeliveryLost {
                            rows: lost.dropped_rows,
                        },
                        0,
                    );
                }
            }
            ServerBody::SubscriptionRowsSkipped(skipped) => {
                if let Some(id) = self.live(&skipped.subscription) {
                    let bytes = skipped.message.len();
                    let kind = EventKind::RowsSkipped {
                        rows: skipped.skipped_rows,
                        cause: skipped.cause,
                        message: skipped.message,
                    };
                    self.subs.push(id, kind, bytes);
                }
            }
            ServerBody::SubscriptionEnded(ended) => {
                if let Some(id) = self.subs.by_handle(&ended.subscription) {
                    self.subs.ended(
                        id,
                        EventKind::Ended {
                            reason: ended.reason,
                            message: ended.message,
                        },
                    );
                }
            }
            // Notices are for display and the rest answers requests this version does not send.
            ServerBody::ServerNotice(_)
            | ServerBody::DomainsObserved(_)
            | ServerBody::DomainSnapshotObserved(_)
            | ServerBody::ClusterObserved(_)
            | ServerBody::DomainClockObserved(_)
            | ServerBody::DomainClockAttachmentEnded(_)
            | ServerBody::DomainClockTicked(_)
            | ServerBody::ProducerAdmissionChanged(_)
            | ServerBody::ProducerEnded(_) => {}
        }
        Ok(())
    }

    fn live(&self, handle: &nervix_wire::types::SubscriptionHandle) -> Option<SubId> {
        let id = self.subs.by_handle(handle)?;
        let live = matches!(self.subs.get(id)?.place, Place::Live | Place::Superseded);
        live.then_some(id)
    }

    fn leadership(&mut self, now: Now, leadership: &Leadership) {
        match leadership {
            Leadership::LeaderIsRemote(remote) => {
                self.learn(&remote.leader);
            }
            Leadership::LeaderIsServingNode(_) => {}
            Leadership::LeaderUnknown => return,
        }
        // Somebody leads again, so a command that waits for it need not wait longer.
        if let Some(run) = self.runs.front_mut() {
            if std::mem::take(&mut run.leaderless) {
                run.due = run.due.min(now.mono);
            }
        }
    }

    fn learn(&mut self, leader: &LeaderEndpoints) -> Option<Origin> {
        let origin = self.reach.follow(leader.grpc_uri.as_deref()?)?;
        self.reach.learn(&origin);
        Some(origin)
    }

    fn ending(&mut self, reason: &SessionEndReason) -> Cause {
        Cause::Lost(match reason {
            SessionEndReason::ServerShuttingDown => "the server is shutting down".to_owned(),
            SessionEndReason::LeaderRedirect(redirect) => {
                if let Some(leader) = &redirect.leader {
                    self.learn(leader);
                }
                "the server ended the session because another one leads".to_owned()
            }
            SessionEndReason::ProtocolViolated(violated) => {
                format!(
                    "the server says that the protocol was violated: {}",
                    violated.message
                )
            }
        })
    }

    // ---- replies

    fn reply(&mut self, now: Now, conn: ConnId, reply: Reply) -> Result<(), Violation> {
        let Some(exchange) = self.exchanges.get_mut(&conn) else {
            return Ok(());
        };
        let id = reply.request_id;
        let Some((asked, body)) = exchange.answered(reply)? else {
            return Ok(());
        };
        // Until it was acted on it is in flight, so that a violation finds who waits for it.
        self.act_on(now, conn, asked, body)?;
        if let Some(exchange) = self.exchanges.get_mut(&conn) {
            exchange.completed(id);
        }
        self.close_if_idle(conn);
        Ok(())
    }

    fn act_on(
        &mut self,
        now: Now,
        conn: ConnId,
        asked: Asked,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        match (asked, body) {
            (Asked::Command(execution), body) => self.command_reply(now, conn, execution, body)?,
            (Asked::Domains(execution), ReplyBody::DomainList(list)) => {
                self.landed(execution);
                self.settle(
                    execution,
                    outcome(Disposition::Completed, render_domains(&list.domains)),
                );
            }
            (Asked::Probe, ReplyBody::DomainList(_) | ReplyBody::RequestRejected(_)) => {}
            (Asked::Subscribe(execution), ReplyBody::SubscribeOutcome(reply)) => {
                self.landed(execution);
                match reply.disposition {
                    SubscribeDisposition::RequestFailed => {
                        let failed = outcome(Disposition::Failed, reply.message);
                        self.settle(
                            execution,
                            Outcome {
                                diagnostics: reply.diagnostics,
                                ..failed
                            },
                        );
                    }
                    SubscribeDisposition::SubscriptionOpened(opened) => {
                        if self.subs.holds(&opened.subscription) {
                            return Err(Violation::new(
                                "S-3",
                                "a generation of a subscription was opened twice",
                            ));
                        }
                        let Some(held) = self.executions.get(&execution) else {
                            return Ok(());
                        };
                        let statement = Arc::clone(&held.query);
                        let handle = &opened.subscription;
                        let (name, schema) =
                            self.subs
                                .open(handle, &opened.domain, &statement, opened.schema);
                        let subscription = Some(OpenedSubscription {
                            name,
                            generation: opened.subscription.generation,
                            schema,
                        });
                        let done = outcome(Disposition::Completed, reply.message);
                        self.settle(
                            execution,
                            Outcome {
                                subscription,
                                diagnostics: reply.diagnostics,
                                ..done
                            },
                        );
                    }
                }
            }
            (Asked::Unsubscribe(execution, sub), ReplyBody::UnsubscribeOutcome(reply)) => {
                match reply.disposition {
                    UnsubscribeDisposition::SubscriptionDeleted(_) => {
                        self.landed(execution);
                        self.subs.delete(sub);
                        self.settle(execution, outcome(Disposition::Completed, reply.message));
                    }
                    UnsubscribeDisposition::RequestFailed => {
                        self.landed(execution);
                        let failed = outcome(Disposition::Failed, reply.message);
                        self.settle(
                            execution,
                            Outcome {
                                diagnostics: reply.diagnostics,
                                ..failed
                            },
                        );
                    }
                }
            }
            (Asked::Reopen(sub), ReplyBody::SubscribeOutcome(reply)) => match reply.disposition {
                SubscribeDisposition::SubscriptionOpened(opened) => {
                    if self.subs.holds(&opened.subscription) {
                        return Err(Violation::new(
                            "S-3",
                            "a generation of a subscription was opened twice",
                        ));
                    }
                    self.subs.reopened(sub, &opened.subscription, opened.schema);
                }
                SubscribeDisposition::RequestFailed => {
                    self.subs
                        .reopening_refused(sub, now.mono, &mut self.jitter, reply.message);
                }
            },
            (Asked::Reopen(sub), ReplyBody::RequestRejected(rejected)) => {
                self.subs.reopening_refused(
                    sub,
                    now.mono,
                    &mut self.jitter,
                    describe_rejection(&rejected),
                );
            }
            (Asked::Reopen(sub), ReplyBody::RequestCancelled(_)) => {
                let message = "the server cancelled it".to_owned();
                self.subs
                    .reopening_refused(sub, now.mono, &mut self.jitter, message);
            }
            (Asked::Drop(sub), ReplyBody::UnsubscribeOutcome(_)) => {
                if self.subs.get(sub).map(|sub| sub.place) == Some(Place::Dropping) {
                    self.subs.move_to(sub, Place::Parked);
                }
            }
            // Until it is deleted, what arrives for it is dropped.
            (Asked::Drop(sub), ReplyBody::RequestRejected(_) | ReplyBody::RequestCancelled(_)) => {
                self.subs.drop_refused(sub, now.mono, &mut self.jitter);
            }
            (Asked::Suggest(call), ReplyBody::SuggestOutcome(outcome)) => {
                if self.suggests.remove(&call).is_some() {
                    self.finish(call, Ok(Done::Suggestions(outcome)));
                }
            }
            (Asked::Suggest(call), ReplyBody::RequestCancelled(_)) => {
                if self.suggests.remove(&call).is_some() {
                    self.finish(
                        call,
                        Err(Error::new(
                            ErrorKind::Cancelled,
                            "the server cancelled the completion",
                        )),
                    );
                }
            }
            (Asked::Suggest(call), ReplyBody::RequestRejected(rejected)) => {
                if is_busy(&rejected) {
                    if let Some(suggest) = self.suggests.get_mut(&call) {
                        let wait = suggest.backoff.next(RETRY, &mut self.jitter);
                        suggest.due = now.mono.saturating_add(wait);
                        suggest.flight = None;
                    }
                } else if self.suggests.remove(&call).is_some() {
                    self.finish(
                        call,
                        Err(Error::new(
                            ErrorKind::Rejected,
                            describe_rejection(&rejected),
                        )),
                    );
                }
            }
            (Asked::Cancel, ReplyBody::CancelOutcome(_) | ReplyBody::RequestRejected(_)) => {}
            (
                Asked::Domains(execution)
                | Asked::Subscribe(execution)
                | Asked::Unsubscribe(execution, _),
                ReplyBody::RequestRejected(rejected),
            ) => {
                self.landed(execution);
                self.rejected(now, execution, &rejected, false);
            }
            (
                Asked::Domains(execution)
                | Asked::Subscribe(execution)
                | Asked::Unsubscribe(execution, _),
                ReplyBody::RequestCancelled(cancelled),
            ) => {
                self.landed(execution);
                self.cancelled(execution, &cancelled);
            }
            (Asked::Probe, ReplyBody::RequestCancelled(_)) => {}
            _ => {
                return Err(Violation::new(
                    "C-4",
                    "a reply of a kind that does not answer its request",
                ))
            }
        }
        if let Asked::Domains(execution)
        | Asked::Subscribe(execution)
        | Asked::Unsubscribe(execution, _) = asked
        {
            self.forget_if_released(execution);
        }
        Ok(())
    }

    fn command_reply(
        &mut self,
        now: Now,
        conn: ConnId,
        execution: ExecutionId,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        match body {
            ReplyBody::CommandOutcome(reply) => {
                let reference = self
                    .executions
                    .get(&execution)
                    .map(|held| Arc::clone(&held.reference));
                if reference.is_some_and(|reference| *reference != *reply.execution_reference) {
                    return Err(Violation::new(
                        "E-5",
                        "the outcome of another execution reference",
                    ));
                }
                self.landed(execution);
                self.disposed(now, conn, execution, reply);
            }
            ReplyBody::RequestRejected(rejected) => {
                self.landed(execution);
                self.rejected(now, execution, &rejected, true);
            }
            ReplyBody::RequestCancelled(cancelled) => {
                self.landed(execution);
                self.cancelled(execution, &cancelled);
            }
            _ => {
                return Err(Violation::new(
                    "C-4",
                    "a reply that does not answer a command",
                ))
            }
        }
        self.forget_if_released(execution);
        Ok(())
    }

    /// Acts on a disposition (E-6).
    fn disposed(&mut self, now: Now, conn: ConnId, execution: ExecutionId, reply: CommandOutcome) {
        match &reply.disposition {
            CommandDisposition::LeaderRedirect(redirect) => {
                if let Some(held) = self.executions.get_mut(&execution) {
                    held.cause = Some((
                        ErrorKind::Transport,
                        "no leader took the command".to_owned(),
                    ));
                }
                let target = redirect
                    .leader
                    .as_ref()
                    .and_then(|leader| self.learn(leader));
                self.redirected(now, conn, execution, target);
            }
            CommandDisposition::OutcomeUnknown(_) => {
                if let Some(held) = self.executions.get_mut(&execution) {
                    let text = format!("the server does not know it yet: {}", reply.message);
                    held.cause = Some((ErrorKind::Uncertain, text));
                    held.doubtful = true;
                }
                self.back_off(now, execution);
            }
            _ => self.settle(execution, of_command(reply)),
        }
    }

    /// Follows a redirect, or waits when it names no leader that can be followed (D-1, D-2).
    fn redirected(
        &mut self,
        now: Now,
        conn: ConnId,
        execution: ExecutionId,
        target: Option<Origin>,
    ) {
        let at_work = self
            .runs
            .front()
            .is_some_and(|run| run.execution == execution);
        if !at_work || self.current != Some(conn) {
            return;
        }
        let here = self
            .exchanges
            .get(&conn)
            .map(|exchange| exchange.origin.clone());
        let nowhere = target.is_none() || target == here;
        let redirects = self.runs.front_mut().map_or(0, |run| {
            run.redirects = run.redirects.saturating_add(1);
            run.leaderless = nowhere;
            run.redirects
        });
        // Servers that disagree about the leader would send the command around without end.
        if redirects > 1 || nowhere {
            self.back_off(now, execution);
        }
        match target {
            Some(origin) if Some(&origin) != here.as_ref() && self.attempt.is_none() => {
                self.begin_attempt(now, origin)
            }
            _ => {}
        }
    }

    fn rejected(
        &mut self,
        now: Now,
        execution: ExecutionId,
        rejected: &RequestRejected,
        command: bool,
    ) {
        let text = describe_rejection(rejected);
        if is_busy(rejected) {
            if let Some(held) = self.executions.get_mut(&execution) {
                held.cause = Some((ErrorKind::Rejected, text));
            }
            self.back_off(now, execution);
            return;
        }
        let uncertain = command && rejected.rejection == RequestRejection::ReplyTooLarge;
        let Some(held) = self.executions.get(&execution) else {
            return;
        };
        let error = if uncertain || held.doubtful {
            self.unknown_error(execution, ErrorKind::Uncertain, &text)
        } else {
            Error::new(ErrorKind::Rejected, text).of_command(&held.reference)
        };
        self.fail_runs_of(execution, &error);
    }

    fn cancelled(&mut self, execution: ExecutionId, cancelled: &RequestCancelled) {
        // The call that it cancels is over; the one that joined its request asks again, under the same reference.
        if let Some(run) = self.runs.iter_mut().find(|run| run.execution == execution) {
            if std::mem::take(&mut run.joined) {
                return;
            }
        }
        let Some(held) = self.executions.get(&execution) else {
            return;
        };
        let effect = match cancelled.stage {
            CancellationStage::BeforeAdmission => "this attempt had no effect",
            CancellationStage::AfterAdmission => "its effect continues",
        };
        let message = format!(
            "the server cancelled the request, and {effect}; execute the same execution again to learn the outcome \
             (reference {})",
            held.reference
        );
        let error = Error::new(ErrorKind::Cancelled, message).of_command(&held.reference);
        self.fail_runs_of(execution, &error);
    }

    fn deleted(&mut self, execution: ExecutionId, sub: SubId) {
        self.landed(execution);
        self.subs.delete(sub);
        self.settle(
            execution,
            outcome(
                Disposition::Completed,
                "the subscription ended with its session",
            ),
        );
    }

    // ---- progress

    /// Lets everything go on that can.
    fn drive(&mut self, now: Now) {
        self.driven = now.mono;
        if self.over.is_some() {
            self.fail_what_waits();
            return;
        }
        self.expire(now);
        self.restore(now);
        while self.step(now) {}
        self.send_suggests(now);
        self.probe(now);
        self.deliver();
        self.reach_out(now);
    }

    fn expire(&mut self, now: Now) {
        if self
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.deadline <= now.mono)
        {
            let cause =
                Cause::Unreachable("the server did not say who leads within 10 s".to_owned());
            self.attempt_failed(now, cause, true);
        }
        if let Some(connect) = self.connect.take_if(|connect| connect.deadline <= now.mono) {
            let causes = connect.causes.join("; ");
            let message = format!("no session could be opened in time: {causes}");
            self.finish(connect.call, Err(Error::new(ErrorKind::Connect, message)));
            self.end("the session was never opened", ErrorKind::Closed);
            return;
        }
        let timeout = self.config.request_timeout;
        let silent: Vec<ConnId> = self
            .exchanges
            .values()
            .filter(|exchange| {
                exchange
                    .oldest()
                    .is_some_and(|sent| sent.saturating_add(timeout) <= now.mono)
            })
            .map(|exchange| exchange.conn)
            .collect();
        for conn in silent {
            self.unanswered_reopenings(now, conn);
            let cause =
                Cause::Lost("the server did not answer within the request timeout".to_owned());
            self.lose(now, conn, cause, true);
        }
        let late: Vec<(ExecutionId, CallId)> = self
            .runs
            .iter()
            .filter(|run| run.deadline <= now.mono)
            .map(|run| (run.execution, run.call))
            .collect();
        for (execution, call) in late {
            let cause = self
                .executions
                .get(&execution)
                .and_then(|held| held.cause.clone());
            let (kind, text) = cause.unwrap_or((
                ErrorKind::Connect,
                "no session was open within the retry timeout".to_owned(),
            ));
            // Its last cause may be one that an execute never ends with by itself.
            let kind = match kind {
                ErrorKind::Connect | ErrorKind::Protocol => kind,
                _ => ErrorKind::Transport,
            };
            let error = self.unknown_error(execution, kind, &text);
            self.runs.retain(|run| run.call != call);
            self.finish(call, Err(error));
            self.forget_if_released(execution);
        }
        let late: Vec<CallId> = self
            .suggests
            .iter()
            .filter(|(_, suggest)| suggest.deadline <= now.mono)
            .map(|(call, _)| *call)
            .collect();
        for call in late {
            if let Some(suggest) = self.suggests.remove(&call) {
                let cause = suggest.cause;
                let (kind, text) = cause.unwrap_or((
                    ErrorKind::Connect,
                    "no answer came within the retry timeout".to_owned(),
                ));
                self.finish(
                    call,
                    Err(Error::new(kind, format!("no completions arrived: {text}"))),
                );
                if let Some(conn) = suggest.flight {
                    self.cancel_request(now, conn, Asked::Suggest(call));
                }
            }
        }
    }

    fn unanswered_reopenings(&mut self, now: Now, conn: ConnId) {
        let Some(exchange) = self.exchanges.get(&conn) else {
            return;
        };
        for asked in exchange.in_flight().collect::<Vec<_>>() {
            if let Asked::Reopen(sub) = asked {
                let message = "the server left the request unanswered".to_owned();
                self.subs
                    .reopening_refused(sub, now.mono, &mut self.jitter, message);
            }
        }
    }

    /// Opens kept subscriptions again, and deletes those whose reader was too slow, ahead of any command (D-5).
    fn restore(&mut self, now: Now) {
        let Some(conn) = self.current else { return };
        for sub in self.subs.due(now.mono) {
            let Some(held) = self.subs.get(sub) else {
                continue;
            };
            let request = ClientRequest::SubscribeRequest(SubscribeRequest {
                domain: held.domain.clone(),
                statement: held.statement.to_string(),
                subscription_type: SubscriptionType::Row,
            });
            if self.send(now, conn, Asked::Reopen(sub), request).is_err() {
                return;
            }
            self.subs.move_to(sub, Place::Reopening);
        }
        for sub in self.subs.to_drop(now.mono) {
            let Some(held) = self.subs.get(sub) else {
                continue;
            };
            let request = ClientRequest::UnsubscribeRequest(UnsubscribeRequest {
                subscription: held.name.to_string(),
            });
            if self.send(now, conn, Asked::Drop(sub), request).is_err() {
                return;
            }
            self.subs.move_to(sub, Place::Dropping);
        }
    }

    /// Takes the command at work one step further; true when the next one may go on.
    fn step(&mut self, now: Now) -> bool {
        let Some(run) = self.runs.front() else {
            return false;
        };
        let (call, execution, due) = (run.call, run.execution, run.due);
        let Some(held) = self.executions.get(&execution) else {
            self.runs.pop_front();
            let message = "this command was not prepared by this session";
            self.finish(call, Err(Error::new(ErrorKind::InvalidArgument, message)));
            return true;
        };
        if let Some(outcome) = held.outcome.clone() {
            self.runs.pop_front();
            self.finish(call, Ok(Done::Outcome(outcome)));
            self.forget_if_released(execution);
            return true;
        }
        if held.flight.is_some() || due > now.mono {
            return false;
        }
        let (reference, domain, query) = (
            Arc::clone(&held.reference),
            held.domain.clone(),
            Arc::clone(&held.query),
        );
        let (asked, request) = match held.route.clone() {
            Route::Refused {
                message,
                diagnostics,
            } => {
                self.settle(
                    execution,
                    Outcome {
                        diagnostics,
                        ..local(Disposition::Failed, message)
                    },
                );
                return true;
            }
            Route::Use { domain } => {
                let message = format!("domain {domain} is selected");
                self.domain = Some(domain);
                self.settle(execution, local(Disposition::Completed, message));
                return true;
            }
            Route::Subscribe { .. } => {
                let Some(domain) = domain else {
                    let message =
                        "no domain is selected: run USE <domain>; first, or connect with a domain";
                    self.settle(execution, local(Disposition::Failed, message));
                    return true;
                };
                let request = SubscribeRequest {
                    domain,
                    statement: query.to_string(),
                    subscription_type: SubscriptionType::Row,
                };
                (
                    Asked::Subscribe(execution),
                    ClientRequest::SubscribeRequest(request),
                )
            }
            Route::Unsubscribe { name } => match self.unsubscribe_step(execution, &name) {
                Step::Wait => return false,
                Step::Settled => return true,
                Step::Send(sub) => (
                    Asked::Unsubscribe(execution, sub),
                    ClientRequest::UnsubscribeRequest(UnsubscribeRequest { subscription: name }),
                ),
            },
            Route::ListDomains => (Asked::Domains(execution), ClientRequest::ListDomainsRequest),
            Route::Command => (
                Asked::Command(execution),
                ClientRequest::CommandRequest(CommandRequest {
                    query: query.to_string(),
                    domain,
                    execution_reference: reference.to_string(),
                    expected_transaction_position: None,
                    expected_preview: None,
                }),
            ),
        };
        // A move to the leader is under way for this command, or nothing is open.
        let Some(conn) = self.current else {
            return false;
        };
        if self.attempt.is_some() {
            return false;
        }
        match self.send(now, conn, asked, request) {
            Ok(()) => {
                if let Some(held) = self.executions.get_mut(&execution) {
                    held.flight = Some(conn);
                    held.written = true;
                }
                false
            }
            Err(Unsent::Full) => false,
            Err(Unsent::Refused(refusal)) => {
                let message = format!("the statement cannot be sent: {refusal}");
                let error = Error::new(ErrorKind::InvalidArgument, message).of_command(&reference);
                self.fail_runs_of(execution, &error);
                true
            }
        }
    }

    /// What deleting a subscription needs now (S-4, S-6, S-7).
    fn unsubscribe_step(&mut self, execution: ExecutionId, name: &str) -> Step {
        // An opening of that name whose caller stopped waiting is answered first.
        let opening = |held: &Execution| {
            held.flight.is_some()
                && matches!(&held.route, Route::Subscribe { name: other } if other == name)
        };
        if self.executions.values().any(opening) {
            return Step::Wait;
        }
        let Some(sub) = self.subs.named(name) else {
            let message = format!("this session has no subscription {name}");
            self.settle(execution, local(Disposition::Failed, message));
            return Step::Settled;
        };
        match self.subs.get(sub).map(|sub| sub.place) {
            Some(Place::Live | Place::Overflowed { .. }) => Step::Send(sub),
            Some(Place::Reopening | Place::Dropping) => Step::Wait,
            _ => {
                self.subs.delete(sub);
                let message =
                    format!("subscription {name} is deleted; no session held it any more");
                self.settle(execution, local(Disposition::Completed, message));
                Step::Settled
            }
        }
    }

    fn send_suggests(&mut self, now: Now) {
        let Some(conn) = self.current else { return };
        let ready: Vec<CallId> = self
            .suggests
            .iter()
            .filter(|(_, suggest)| suggest.flight.is_none() && suggest.due <= now.mono)
            .map(|(call, _)| *call)
            .collect();
        for call in ready {
            let Some(suggest) = self.suggests.get(&call) else {
                continue;
            };
            let request = ClientRequest::SuggestRequest(suggest.request.clone());
            match self.send(now, conn, Asked::Suggest(call), request) {
                Ok(()) => {
                    if let Some(suggest) = self.suggests.get_mut(&call) {
                        suggest.flight = Some(conn);
                    }
                }
                Err(Unsent::Full) => return,
                Err(Unsent::Refused(refusal)) => {
                    self.suggests.remove(&call);
                    let message = format!("the text cannot be sent: {refusal}");
                    self.finish(call, Err(Error::new(ErrorKind::InvalidArgument, message)));
                }
            }
        }
    }

    /// Whether something waits for what a server sends unasked.
    fn awaits_unsolicited(&self) -> bool {
        !self.readers.is_empty() || self.subs.any_kept()
    }

    /// Neither side sends keepalives, so a session that is silent for a request timeout is asked for something (T-8).
    fn probe(&mut self, now: Now) {
        let Some(exchange) = self.current_exchange() else {
            return;
        };
        let silent = exchange.heard.saturating_add(self.config.request_timeout) <= now.mono;
        if silent && self.awaits_unsolicited() && exchange.asks(Asked::Probe).is_none() {
            let conn = exchange.conn;
            // Without room, what is in flight tells as well.
            let _ = self.send(now, conn, Asked::Probe, ClientRequest::ListDomainsRequest);
        }
    }

    fn deliver(&mut self) {
        while let Some(reader) = self.readers.front().copied() {
            let Some(event) = self.subs.take() else {
                return;
            };
            self.readers.pop_front();
            self.finish(reader, Ok(Done::Event(event)));
        }
    }

    fn wants_session(&self) -> bool {
        self.connect.is_some()
            || !self.runs.is_empty()
            || !self.suggests.is_empty()
            || self.awaits_unsolicited()
    }

    fn reach_out(&mut self, now: Now) {
        if self.current.is_some() || self.attempt.is_some() || self.over.is_some() {
            return;
        }
        if !self.wants_session() || self.reconnect_at > now.mono {
            return;
        }
        if self.candidates.is_empty() {
            self.candidates = self.reach.candidates();
        }
        if let Some(origin) = self.candidates.pop_front() {
            self.begin_attempt(now, origin);
        }
    }
}

/// What deleting a subscription needs next.
enum Step {
    Wait,
    Settled,
    Send(SubId),
}

fn is_busy(rejected: &RequestRejected) -> bool {
    matches!(
        rejected.rejection,
        RequestRejection::TooManyRequestsInFlight | RequestRejection::ServerBusy
    )
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
    match &rejected.field {
        Some(field) => format!(
            "the server refused: {reason} (field {field}): {}",
            rejected.message
        ),
        None => format!("the server refused: {reason}: {}", rejected.message),
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
