//! Sessions as hosts see them: calls that block the calling thread.
//!
//! Owns the engine's lock, the waiting of host threads, the session's timer, and carrying out what the engine orders. The lock
//! is never held while anything is waited for, nor while a frame is read, and letting go of something never waits for the lock.
//! Knows nothing of what the engine decides, or why.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, TryLockError, Weak};
use std::time::{Duration, Instant, SystemTime};

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use http::HeaderValue;
use nervix_engine::{
    Call, CallId, Cause, Config, ConnId, Done, EndpointId, Engine, Error, ErrorKind, Event,
    ExecutionId, Given, Input, Now, Origin, Outcome, Output, Sent, Stop,
};
use nervix_wire::types::SuggestOutcome;
use nervix_wire::{decode_server, Frame};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{unbounded_channel, UnboundedSender};
use tokio::sync::Notify;

use crate::authorities::Authorities;
use crate::cancel::{Cancel, Waiter};
use crate::locks::{self, lock};
use crate::stream::{self, Access, Order};
use crate::{fork, runtime};

/// Who opens a session (T-4).
#[derive(Clone)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials { .. }")
    }
}

/// What a host may choose about a session.
#[derive(Debug, Clone)]
pub struct Options {
    /// More servers to try, after the one that is named.
    pub seeds: Vec<Origin>,
    /// What one reply may take.
    pub request_timeout: Duration,
    /// What one call may take, with all its retries and redirects.
    pub retry_timeout: Duration,
    /// The only authorities that an https server's certificate may come from; without them, those of the system.
    pub authorities: Option<Authorities>,
}

impl Default for Options {
    fn default() -> Self {
        let timeout = Duration::from_secs(120);
        Self {
            seeds: Vec::new(),
            request_timeout: timeout,
            retry_timeout: timeout,
            authorities: None,
        }
    }
}

/// Starts the threads that all sessions of the process share, which the first connect does otherwise. They are threads of the
/// caller, as far as what they inherit goes.
pub fn start() -> Result<(), Error> {
    shared_runtime().map(|_| ())
}

fn shared_runtime() -> Result<&'static Handle, Error> {
    runtime::handle().map_err(|why| Error::new(ErrorKind::Connect, why))
}

/// A prepared command of one session.
#[derive(Debug)]
pub struct Execution {
    id: ExecutionId,
    reference: Arc<str>,
    sent: Arc<OnceLock<Sent>>,
    generation: u64,
    /// Given up, not dropped, in a later generation.
    owner: Option<Weak<Inner>>,
}

impl Execution {
    /// The reference that the command has in every attempt (E-1).
    pub fn reference(&self) -> &str {
        &self.reference
    }

    /// What the command was first sent with beside that, once it was (E-2).
    pub fn sent(&self) -> Option<&Sent> {
        self.sent.get()
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        let owner = self.owner.take();
        if self.generation != fork::generation() {
            std::mem::forget(owner);
        } else if let Some(inner) = owner.and_then(|owner| owner.upgrade()) {
            inner.let_go(Gone::Execution(self.id));
        }
    }
}

/// One session. Usable from several threads; it ends, without waiting, when it and all producers, consumers and deliveries of it are
/// dropped.
#[derive(Debug)]
pub struct Session {
    generation: u64,
    /// Given up, not dropped, in a later generation.
    inner: Option<Arc<Inner>>,
}

impl Session {
    /// Opens a session; returns once the server said who leads.
    pub fn connect(
        server: &Origin,
        domain: Option<&str>,
        credentials: Option<&Credentials>,
        options: &Options,
        cancel: Option<&Cancel>,
    ) -> Result<Self, Error> {
        if let Some(stop) = stopped(cancel)? {
            return Err(given_up(stop, None));
        }
        let inner = Self::start(server, domain, credentials, options)?;
        let session = Self {
            generation: fork::generation(),
            inner: Some(inner),
        };
        match session.call(Call::Connect, cancel, None)? {
            Done::Connected => Ok(session),
            other => Err(unexpected(&other)),
        }
    }

    /// An engine with its timer, and nothing asked of it yet.
    fn start(
        server: &Origin,
        domain: Option<&str>,
        credentials: Option<&Credentials>,
        options: &Options,
    ) -> Result<Arc<Inner>, Error> {
        let authorization = credentials.map(authorization).transpose()?;
        let runtime = shared_runtime()?;
        let mut seeds = vec![server.clone()];
        seeds.extend(options.seeds.iter().cloned());
        let config = Config {
            seeds,
            domain: domain.map(str::to_owned),
            request_timeout: nanos(options.request_timeout),
            retry_timeout: nanos(options.retry_timeout),
            seed: u64::from_ne_bytes(random()?),
        };
        let inner = Arc::new(Inner {
            runtime,
            access: Access {
                authorization,
                trusted: options.authorities.clone(),
            },
            epoch: Instant::now(),
            holders: AtomicUsize::new(1),
            alarm: Arc::new(Alarm {
                at: AtomicU64::new(NEVER),
                set: Notify::new(),
            }),
            gone: Mutex::new(Vec::new()),
            state: Mutex::new(State {
                engine: Engine::new(config),
                connections: HashMap::new(),
                calls: HashMap::new(),
                next_call: 0,
                broken: None,
            }),
        });
        runtime.spawn(keep_time(Arc::downgrade(&inner), Arc::clone(&inner.alarm)));
        Ok(inner)
    }

    /// Fixes one logical command; sends nothing.
    pub fn prepare(&self, query: &str, cancel: Option<&Cancel>) -> Result<Execution, Error> {
        let inner = self.inner()?;
        if let Some(stop) = stopped(cancel)? {
            return Err(given_up(stop, None));
        }
        let entropy = random()?;
        let (id, reference, sent) = inner.enter(|engine, now| {
            let (id, reference) = engine.prepare(now, query, entropy);
            (id, reference, engine.sent(id))
        })?;
        Ok(Execution {
            id,
            reference,
            sent: sent.unwrap_or_default(),
            generation: self.generation,
            owner: Some(Arc::downgrade(inner)),
        })
    }

    /// As [`Session::prepare`], for a command of which more is given.
    pub fn prepare_with(
        &self,
        query: &str,
        given: Given,
        cancel: Option<&Cancel>,
    ) -> Result<Execution, Error> {
        let inner = self.inner()?;
        if let Some(stop) = stopped(cancel)? {
            return Err(given_up(stop, None));
        }
        let entropy = random()?;
        let (id, reference, sent) = inner.enter(|engine, now| {
            let (id, reference) = engine.prepare_with(now, query, entropy, given)?;
            Ok((id, reference, engine.sent(id)))
        })??;
        Ok(Execution {
            id,
            reference,
            sent: sent.unwrap_or_default(),
            generation: self.generation,
            owner: Some(Arc::downgrade(inner)),
        })
    }

    /// Runs a prepared command, or recovers its outcome. Every error names the command's reference.
    pub fn execute(
        &self,
        execution: &Execution,
        cancel: Option<&Cancel>,
    ) -> Result<Arc<Outcome>, Error> {
        self.run(execution, Call::Execute(execution.id), cancel)
    }

    /// As [`Session::execute`], for a command that must not become part of a transaction.
    pub fn execute_outside(
        &self,
        execution: &Execution,
        cancel: Option<&Cancel>,
    ) -> Result<Arc<Outcome>, Error> {
        self.run(execution, Call::ExecuteOutside(execution.id), cancel)
    }

    fn run(
        &self,
        execution: &Execution,
        call: Call,
        cancel: Option<&Cancel>,
    ) -> Result<Arc<Outcome>, Error> {
        let reference = execution.reference();
        let inner = self.inner().map_err(|error| of_command(error, reference))?;
        if !execution
            .owner
            .as_ref()
            .is_some_and(|owner| std::ptr::eq(owner.as_ptr(), Arc::as_ptr(inner)))
        {
            let why = "the execution was prepared by another session: execute it on the session that prepared it";
            return Err(of_command(
                Error::new(ErrorKind::InvalidArgument, why),
                reference,
            ));
        }
        match self.call(call, cancel, Some(reference))? {
            Done::Outcome(outcome) => Ok(outcome),
            other => Err(of_command(unexpected(&other), reference)),
        }
    }

    /// Waits for the next event of any subscription.
    pub fn next_event(&self, cancel: Option<&Cancel>) -> Result<Event, Error> {
        match self.call(Call::NextEvent, cancel, None)? {
            Done::Event(event) => Ok(event),
            other => Err(unexpected(&other)),
        }
    }

    /// One page of completions.
    pub fn suggest(
        &self,
        input: &str,
        cursor: u32,
        page_size: u16,
        continuation: Option<&str>,
        cancel: Option<&Cancel>,
    ) -> Result<SuggestOutcome, Error> {
        let what = Call::Suggest {
            input: input.to_owned(),
            cursor,
            page_size,
            continuation: continuation.map(str::to_owned),
        };
        match self.call(what, cancel, None)? {
            Done::Suggestions(page) => Ok(page),
            other => Err(unexpected(&other)),
        }
    }

    /// One more hold on the session, which ends with the last.
    pub(crate) fn share(&self) -> Result<Self, Error> {
        let inner = self.inner()?;
        inner.holders.fetch_add(1, Ordering::SeqCst);
        Ok(Self {
            generation: self.generation,
            inner: Some(Arc::clone(inner)),
        })
    }

    /// Tells the engine that the host let go of an endpoint. Never waits; without effect in a child of the process that opened
    /// the session.
    pub(crate) fn free_endpoint(&self, endpoint: EndpointId) {
        if let Ok(inner) = self.inner() {
            inner.let_go(Gone::Endpoint(endpoint));
        }
    }

    /// Asks the engine something that it answers at once.
    pub(crate) fn enter<R>(&self, with: impl FnOnce(&mut Engine, Now) -> R) -> Result<R, Error> {
        self.inner()?.enter(with)
    }

    fn inner(&self) -> Result<&Arc<Inner>, Error> {
        match &self.inner {
            Some(inner) if self.generation == fork::generation() => Ok(inner),
            _ => Err(Error::new(
                ErrorKind::Closed,
                "the session belongs to the process before the fork: open a new one in this process",
            )),
        }
    }

    /// Makes one call and blocks until it is over. `reference` is that of the command it runs, if any.
    pub(crate) fn call(
        &self,
        what: Call,
        cancel: Option<&Cancel>,
        reference: Option<&str>,
    ) -> Result<Done, Error> {
        let result = match (self.inner(), stopped(cancel)) {
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(_), Ok(Some(stop))) => Err(given_up(stop, reference)),
            (Ok(inner), Ok(None)) => inner.call(what, cancel),
        };
        result.map_err(|error| match reference {
            Some(reference) => of_command(error, reference),
            None => error,
        })
    }

    /// A call that takes effect even when its token was stopped before; the token only ends the wait.
    pub(crate) fn begin(&self, what: Call, cancel: Option<&Cancel>) -> Result<Done, Error> {
        self.inner()?.call(what, cancel)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let inner = self.inner.take();
        if self.generation != fork::generation() {
            std::mem::forget(inner);
        } else if let Some(inner) = inner {
            if inner.holders.fetch_sub(1, Ordering::SeqCst) == 1 {
                inner.let_go(Gone::Session);
            }
        }
    }
}

const NEVER: u64 = u64::MAX;

/// When the engine wants to be woken, and how its timer learns of an earlier time.
#[derive(Debug)]
struct Alarm {
    at: AtomicU64,
    set: Notify,
}

struct Inner {
    runtime: &'static Handle,
    access: Access,
    epoch: Instant,
    /// Sessions, producers, consumers and deliveries that keep the session running.
    holders: AtomicUsize,
    alarm: Arc<Alarm>,
    /// What was let go of while somebody else held the engine, in order. Held for no longer than a push or a take, if need be
    /// under the engine's lock, which is never taken under it.
    gone: Mutex<Vec<Gone>>,
    state: Mutex<State>,
}

/// What a host let go of.
#[derive(Debug, Clone, Copy)]
enum Gone {
    Execution(ExecutionId),
    Endpoint(EndpointId),
    Session,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inner { .. }")
    }
}

struct State {
    engine: Engine,
    connections: HashMap<ConnId, UnboundedSender<Order>>,
    calls: HashMap<CallId, Arc<Slot>>,
    next_call: u64,
    /// Why the engine is not entered any more.
    broken: Option<String>,
}

impl State {
    /// Ends the session after a panic.
    fn give_up(&mut self, panic: &(dyn Any + Send)) -> Error {
        let what = panic.downcast_ref::<&str>().copied();
        let what = what
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        let why = format!(
            "the client failed and this session is over, which is a defect of the client: {}",
            one_line(what)
        );
        let error = Error::new(ErrorKind::Protocol, why.clone());
        self.broken = Some(why);
        for (_, orders) in self.connections.drain() {
            let _ = orders.send(Order::Reset);
        }
        for (_, slot) in self.calls.drain() {
            slot.fill(Err(error.clone()));
        }
        error
    }
}

/// Where one host thread waits for its call.
#[derive(Default)]
struct Slot {
    result: Mutex<Option<Result<Done, Error>>>,
    changed: Condvar,
}

impl Slot {
    fn fill(&self, result: Result<Done, Error>) {
        *lock(&self.result) = Some(result);
        self.changed.notify_one();
    }
}

impl Waiter for Slot {
    fn wake(&self) {
        // Under the lock, or the wake could fall between the thread's look at its token and its going to sleep.
        let _held = lock(&self.result);
        self.changed.notify_one();
    }
}

impl Inner {
    fn now(&self) -> Now {
        let unix = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Now {
            mono: nanos(self.epoch.elapsed()),
            unix_millis: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Enters the engine and carries out what it orders. A panic in it ends this session and no other.
    fn enter<R>(self: &Arc<Self>, with: impl FnOnce(&mut Engine, Now) -> R) -> Result<R, Error> {
        self.hold(|state| self.enter_locked(state, with))
    }

    /// Holds the engine for as long as `with` takes. What was let go of before goes first, so that a thread's calls come after
    /// what it let go of; what is let go of meanwhile goes next.
    fn hold<R>(self: &Arc<Self>, with: impl FnOnce(&mut State) -> R) -> R {
        let mut state = lock(&self.state);
        self.work_off(&mut state);
        let result = with(&mut state);
        drop(state);
        self.try_work_off();
        result
    }

    /// Tells the engine of something that was let go of, or leaves that to whoever holds the engine. Never waits for the engine.
    fn let_go(self: &Arc<Self>, gone: Gone) {
        lock(&self.gone).push(gone);
        self.try_work_off();
    }

    /// Whoever held the engine looks here after letting it go, and whoever leaves something here looks whether the engine is
    /// held after leaving it: one of the two finds the other.
    fn try_work_off(self: &Arc<Self>) {
        while !lock(&self.gone).is_empty() {
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.work_off(&mut state);
        }
    }

    fn work_off(self: &Arc<Self>, state: &mut State) {
        let gone = std::mem::take(&mut *lock(&self.gone));
        for gone in gone {
            // Nothing is left to let go of in an engine that failed, which has no connection left to reset either.
            let _ = self.enter_locked(state, |engine, now| match gone {
                Gone::Execution(id) => engine.release(id),
                Gone::Endpoint(id) => engine.free_endpoint(now, id),
                Gone::Session => engine.shut_down(),
            });
        }
    }

    fn enter_locked<R>(
        self: &Arc<Self>,
        state: &mut State,
        with: impl FnOnce(&mut Engine, Now) -> R,
    ) -> Result<R, Error> {
        if let Some(why) = &state.broken {
            return Err(Error::new(ErrorKind::Protocol, why.clone()));
        }
        let entered = catch_unwind(AssertUnwindSafe(|| {
            let now = self.now();
            let result = with(&mut state.engine, now);
            while let Some(output) = state.engine.output() {
                self.carry_out(&mut state.connections, &mut state.calls, output);
            }
            self.set_alarm(state.engine.wakeup(), now);
            result
        }));
        entered.map_err(|panic| state.give_up(panic.as_ref()))
    }

    fn carry_out(
        self: &Arc<Self>,
        connections: &mut HashMap<ConnId, UnboundedSender<Order>>,
        calls: &mut HashMap<CallId, Arc<Slot>>,
        output: Output,
    ) {
        match output {
            Output::Open { conn, origin } => {
                let (sender, orders) = unbounded_channel();
                connections.insert(conn, sender);
                let mut ending = Ending {
                    owner: Arc::downgrade(self),
                    conn,
                    cause: Some(panicked()),
                };
                let owner = Arc::downgrade(self);
                let access = self.access.clone();
                self.runtime.spawn(async move {
                    let take = |frame| arrived(&owner, conn, frame);
                    stream::run(origin, access, orders, take, |cause| ending.tell(cause)).await;
                });
            }
            Output::Send { conn, frame } => {
                if let Some(orders) = connections.get(&conn) {
                    // A task that is gone has told why, or is about to.
                    let _ = orders.send(Order::Send(frame));
                }
            }
            Output::Reset { conn } => {
                if let Some(orders) = connections.remove(&conn) {
                    let _ = orders.send(Order::Reset);
                }
            }
            Output::Done { call, result } => {
                if let Some(slot) = calls.remove(&call) {
                    slot.fill(result);
                }
            }
        }
    }

    /// Wakes the timer only for an earlier time: an alarm that rings too early does no harm, and most are moved later.
    fn set_alarm(&self, wakeup: Option<u64>, now: Now) {
        // The least step keeps an engine that asks for the past from spinning.
        let wakeup = wakeup.map_or(NEVER, |at| at.max(now.mono.saturating_add(100_000)));
        if wakeup < self.alarm.at.load(Ordering::SeqCst) {
            self.alarm.at.store(wakeup, Ordering::SeqCst);
            self.alarm.set.notify_one();
        }
    }

    fn call(self: &Arc<Self>, what: Call, cancel: Option<&Cancel>) -> Result<Done, Error> {
        let slot = Arc::new(Slot::default());
        let registration =
            cancel.map(|cancel| cancel.register(Arc::clone(&slot) as Arc<dyn Waiter>));
        let call = self.hold(|state| {
            let call = CallId(state.next_call);
            state.next_call = state.next_call.saturating_add(1);
            state.calls.insert(call, Arc::clone(&slot));
            let entered = self.enter_locked(state, |engine, now| engine.call(now, call, what));
            if entered.is_err() {
                state.calls.remove(&call);
            }
            entered.map(|()| call)
        })?;
        let result = self.wait(call, &slot, cancel);
        drop(registration);
        result
    }

    fn wait(
        self: &Arc<Self>,
        call: CallId,
        slot: &Slot,
        cancel: Option<&Cancel>,
    ) -> Result<Done, Error> {
        let mut result = lock(&slot.result);
        let stop = loop {
            if let Some(result) = result.take() {
                return result;
            }
            if let Some(stop) = cancel.and_then(Cancel::stopped) {
                break stop;
            }
            result = locks::wait(&slot.changed, result, cancel.and_then(Cancel::deadline));
        };
        drop(result);
        self.enter(|engine, now| engine.stop(now, call, stop))?;
        let result = lock(&slot.result).take();
        // The engine has answered by now; a thread must not wait for ever for one that has not.
        result.unwrap_or_else(|| {
            self.hold(|state| state.calls.remove(&call));
            Err(given_up(stop, None))
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The timer finds nobody and ends; each connection's orders end, which resets it.
        self.alarm.set.notify_one();
    }
}

/// Tells the engine how an exchange ended, even when the task that ran it panicked.
struct Ending {
    owner: Weak<Inner>,
    conn: ConnId,
    cause: Option<Cause>,
}

impl Ending {
    fn tell(&mut self, cause: Option<Cause>) {
        self.cause = None;
        if let Some(cause) = cause {
            report(
                &self.owner,
                Input::Closed {
                    conn: self.conn,
                    cause,
                },
            );
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let cause = self.cause.take();
        self.tell(cause);
    }
}

fn panicked() -> Cause {
    Cause::Lost(
        "the client failed while it ran the connection, which is a defect of the client".to_owned(),
    )
}

/// Reads a frame, which may take a while, and tells the engine.
fn arrived(owner: &Weak<Inner>, conn: ConnId, frame: Frame) {
    let read = catch_unwind(AssertUnwindSafe(|| decode_server(&frame)));
    drop(frame);
    match read {
        Ok(message) => {
            let message = Box::new(message);
            report(owner, Input::Message { conn, message });
        }
        Err(panic) => {
            if let Some(inner) = owner.upgrade() {
                inner.hold(|state| state.give_up(panic.as_ref()));
            }
        }
    }
}

fn report(owner: &Weak<Inner>, input: Input) {
    let Some(inner) = owner.upgrade() else { return };
    inner.hold(|state| {
        if let Input::Closed { conn, .. } = &input {
            state.connections.remove(conn);
        }
        // An engine that failed has told everybody who waited.
        let _ = inner.enter_locked(state, |engine, now| engine.input(now, input));
    });
}

/// The timer of one session.
async fn keep_time(owner: Weak<Inner>, alarm: Arc<Alarm>) {
    while let Some(epoch) = owner.upgrade().map(|inner| inner.epoch) {
        let rung = match alarm.at.load(Ordering::SeqCst) {
            NEVER => {
                alarm.set.notified().await;
                false
            }
            at => match epoch.checked_add(Duration::from_nanos(at)) {
                Some(at) => tokio::time::timeout_at(at.into(), alarm.set.notified())
                    .await
                    .is_err(),
                None => {
                    alarm.set.notified().await;
                    false
                }
            },
        };
        let Some(inner) = owner.upgrade() else { return };
        if rung {
            inner.hold(|state| {
                // Under the lock, so that what is set next is newer.
                alarm.at.store(NEVER, Ordering::SeqCst);
                let _ = inner.enter_locked(state, |engine, now| engine.wake(now));
            });
        }
    }
}

fn stopped(cancel: Option<&Cancel>) -> Result<Option<Stop>, Error> {
    match cancel {
        Some(cancel) if cancel.is_stale() => Err(Error::new(
            ErrorKind::Closed,
            "the cancellation token belongs to the process before the fork: make a new one in this process",
        )),
        Some(cancel) => Ok(cancel.stopped()),
        None => Ok(None),
    }
}

fn given_up(stop: Stop, reference: Option<&str>) -> Error {
    let advice = match reference {
        Some(_) => "; execute the same execution again to learn what became of the command",
        None => "",
    };
    match stop {
        Stop::Cancelled => Error::new(
            ErrorKind::Cancelled,
            format!("the call's token was triggered{advice}"),
        ),
        Stop::Deadline => Error::new(
            ErrorKind::Deadline,
            format!("the call's deadline passed{advice}"),
        ),
    }
}

fn of_command(mut error: Error, reference: &str) -> Error {
    if error.reference.is_none() {
        error.reference = Some(reference.to_owned());
    }
    error
}

pub(crate) fn unexpected(done: &Done) -> Error {
    let what = match done {
        Done::Connected => "a connection",
        Done::Outcome(_) => "an outcome",
        Done::Event(_) => "an event",
        Done::Suggestions(_) => "completions",
        Done::ClockEvent(_) => "a clock event",
        Done::Endpoint(..) => "an endpoint",
        Done::Submitted(_) => "a submission",
        Done::Submission(_) => "the outcome of a submission",
        Done::Delivery(_) => "a delivery",
        Done::Settled(_) => "a settlement",
        Done::Closed => "a closed endpoint",
    };
    Error::new(
        ErrorKind::Protocol,
        format!("the client answered a call with {what}, which is a defect of the client"),
    )
}

fn authorization(credentials: &Credentials) -> Result<HeaderValue, Error> {
    if credentials.username.contains(':') {
        let why =
            "the user name holds a colon, which Basic credentials cannot carry: use another user";
        return Err(Error::new(ErrorKind::InvalidArgument, why));
    }
    let pair = format!("{}:{}", credentials.username, credentials.password);
    let value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair)));
    let mut value = value
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, "the credentials cannot be sent"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Error::new(
            ErrorKind::Closed,
            format!("the system gave no random bytes for a reference: {error}"),
        )),
    }
}

fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A session that nobody answers.
    fn unanswered() -> (TcpListener, Session) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = Origin {
            secure: false,
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
        };
        let inner = Session::start(&origin, None, None, &Options::default()).unwrap();
        let generation = fork::generation();
        let inner = Some(inner);
        (listener, Session { generation, inner })
    }

    #[test]
    fn letting_go_never_waits_for_a_thread_that_holds_the_engine() {
        let (listener, session) = unanswered();
        let inner = Arc::clone(session.inner().unwrap());
        let waiting = std::thread::spawn({
            let inner = Arc::clone(&inner);
            move || inner.call(Call::Connect, None)
        });
        let (mut socket, _) = listener.accept().unwrap();
        let execution = session.prepare("SHOW X;", None).unwrap();
        let id = execution.id;
        inner.hold(|_| {
            let (done, freed) = channel();
            std::thread::spawn(move || {
                session.free_endpoint(EndpointId(7));
                drop((execution, session));
                done.send(()).unwrap();
            });
            freed
                .recv_timeout(PATIENCE)
                .expect("letting go waits for the thread that holds the engine");
        });
        // Whoever held the engine did it all next, before anybody asked for anything else.
        assert!(lock(&inner.gone).is_empty());
        assert_eq!(waiting.join().unwrap().unwrap_err().kind, ErrorKind::Closed);
        socket.read_to_end(&mut Vec::new()).unwrap();
        let released = inner.call(Call::Execute(id), None).unwrap_err();
        assert_eq!(released.kind, ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_call_comes_after_what_was_let_go_of_before_it() {
        let (_listener, session) = unanswered();
        let inner = Arc::clone(session.inner().unwrap());
        let execution = session.prepare("SHOW X;", None).unwrap();
        lock(&inner.gone).push(Gone::Execution(execution.id));
        let released = session.execute(&execution, None).unwrap_err();
        assert_eq!(released.kind, ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_frame_is_read_before_the_engine_is_held_for_it() {
        let (_listener, session) = unanswered();
        let inner = session.inner().unwrap();
        let frame = Frame::copy_from(&[1; 64]);
        let bytes = frame.to_bytes();
        let owner = Arc::downgrade(inner);
        let reader = inner.hold(|_| {
            let reader = std::thread::spawn(move || arrived(&owner, ConnId(1), frame));
            let started = Instant::now();
            // A frame that violates the protocol is given up once it was read.
            while !bytes.is_unique() {
                assert!(
                    started.elapsed() < PATIENCE,
                    "the frame waits for the engine to be read"
                );
                std::thread::yield_now();
            }
            reader
        });
        reader.join().unwrap();
    }

    #[test]
    fn a_panic_in_the_engine_ends_its_session_and_nothing_else() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let origin = Origin {
            secure: false,
            host: "127.0.0.1".to_owned(),
            port,
        };
        let inner = Session::start(&origin, None, None, &Options::default()).unwrap();
        let waiting = std::thread::spawn({
            let inner = Arc::clone(&inner);
            move || inner.call(Call::Connect, None)
        });
        let (mut socket, _) = listener.accept().unwrap();
        let error = inner
            .enter(|_, _| -> () { panic!("two\nlines") })
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Protocol);
        assert!(error.message.contains("two lines"), "{error}");
        assert_eq!(waiting.join().unwrap().unwrap_err(), error);
        assert_eq!(inner.call(Call::NextEvent, None).unwrap_err(), error);
        // Its connection is closed, and the same process opens sessions as before.
        socket.read_to_end(&mut Vec::new()).unwrap();
        let other = Session::start(&origin, None, None, &Options::default()).unwrap();
        let cancel = Cancel::new();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| other.call(Call::Connect, Some(&cancel)));
            let _held = listener.accept().unwrap();
            cancel.trigger();
            assert_eq!(
                waiting.join().unwrap().unwrap_err().kind,
                ErrorKind::Cancelled
            );
        });
    }
}
