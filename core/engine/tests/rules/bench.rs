//! Drives one engine by hand: a test says what happens, and reads what the engine does about it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use nervix_engine::{
    Call, CallId, Cause, ClockEvent, Config, ConnId, Decision, Delivery, Done, EndpointId, Engine,
    Error, ErrorKind, Event, ExecutionId, Input, Now, OpenRequest, Origin, Outcome, Output, Role,
    Settlement, Stop, SubmissionOutcome,
};
use nervix_wire::types::*;
use nervix_wire::{encode_server, Frame};

use crate::common::frames::*;
use crate::common::watch::Watch;
use crate::common::{Rng, EPOCH, MS, SEC};

pub const REQUEST_TIMEOUT: u64 = 10 * SEC;
pub const RETRY_TIMEOUT: u64 = 40 * SEC;

pub struct Bench {
    pub engine: Engine,
    pub now: u64,
    pub watch: Watch,
    sent: BTreeMap<ConnId, VecDeque<ClientMessage>>,
    opens: VecDeque<(ConnId, String)>,
    results: HashMap<CallId, Result<Done, Error>>,
    next_call: u64,
    rng: Rng,
}

impl Bench {
    pub fn new(seeds: &[&str]) -> Self {
        Self::with(seeds, Some("d"))
    }

    pub fn with(seeds: &[&str], domain: Option<&str>) -> Self {
        Self::of(seeds, domain, RETRY_TIMEOUT, 1)
    }

    /// A host whose calls have so little time that the session outlives them.
    pub fn that_gives_up_after(retry_timeout: u64) -> Self {
        Self::of(&["http://a:1"], Some("d"), retry_timeout, 1)
    }

    /// One of many hosts, whose engine draws lots of its own.
    pub fn one_of_many(lots: u64) -> Self {
        Self::of(&["http://a:1"], Some("d"), RETRY_TIMEOUT, lots)
    }

    fn of(seeds: &[&str], domain: Option<&str>, retry_timeout: u64, seed: u64) -> Self {
        Self {
            engine: Engine::new(Config {
                seeds: seeds
                    .iter()
                    .map(|seed| Origin::parse(seed).unwrap())
                    .collect(),
                domain: domain.map(Into::into),
                request_timeout: REQUEST_TIMEOUT,
                retry_timeout,
                seed,
            }),
            now: 5 * SEC,
            watch: Watch::default(),
            sent: BTreeMap::new(),
            opens: VecDeque::new(),
            results: HashMap::new(),
            next_call: 1,
            rng: Rng(1),
        }
    }

    /// An engine with a session on a server that leads.
    pub fn connected() -> (Self, ConnId) {
        let mut bench = Self::new(&["http://a:1"]);
        let conn = bench.connect();
        (bench, conn)
    }

    pub fn connect(&mut self) -> ConnId {
        let call = self.call(Call::Connect);
        let (conn, _) = self.opened();
        self.greet(conn);
        assert!(matches!(self.result(call), Ok(Done::Connected)));
        conn
    }

    pub fn time(&self) -> Now {
        Now {
            mono: self.now,
            unix_millis: EPOCH + self.now / MS,
        }
    }

    fn pump(&mut self) {
        while let Some(output) = self.engine.output() {
            let message = self.watch.output(self.now, &output);
            self.tell(&output, message.as_ref());
            match output {
                Output::Open { conn, origin } => self.opens.push_back((conn, origin.to_string())),
                Output::Send { conn, .. } => {
                    self.sent
                        .entry(conn)
                        .or_default()
                        .push_back(message.unwrap());
                }
                Output::Reset { .. } => {}
                Output::Done { call, result } => {
                    assert!(call.0 < self.next_call, "{call:?} was never made");
                    assert!(
                        self.results.insert(call, result).is_none(),
                        "{call:?} answered twice"
                    );
                }
            }
        }
    }

    /// What a failing test shows.
    fn tell(&self, output: &Output, message: Option<&ClientMessage>) {
        let now = self.now as f64 / SEC as f64;
        match (output, message) {
            (Output::Send { conn, .. }, Some(message)) => {
                println!("{now:.6} {conn:?} > {message:?}")
            }
            _ => println!("{now:.6} {output:?}"),
        }
    }

    // ---- the host

    pub fn call(&mut self, what: Call) -> CallId {
        let call = CallId(self.next_call);
        self.next_call += 1;
        self.engine.call(self.time(), call, what);
        self.pump();
        call
    }

    pub fn prepare(&mut self, query: &str) -> (ExecutionId, String) {
        let entropy = self.rng.entropy();
        let (id, reference) = self.engine.prepare(self.time(), query, entropy);
        self.pump();
        (id, reference.to_string())
    }

    pub fn execute(&mut self, query: &str) -> (CallId, ExecutionId, String) {
        let (execution, reference) = self.prepare(query);
        (self.call(Call::Execute(execution)), execution, reference)
    }

    pub fn suggest(&mut self, input: &str) -> CallId {
        self.call(Call::Suggest {
            input: input.into(),
            cursor: input.len() as u32,
            page_size: 10,
            continuation: None,
        })
    }

    pub fn stop(&mut self, call: CallId, why: Stop) {
        self.engine.stop(self.time(), call, why);
        self.pump();
    }

    pub fn shut_down(&mut self) {
        self.engine.shut_down();
        self.pump();
    }

    pub fn is_waiting(&self, call: CallId) -> bool {
        !self.results.contains_key(&call)
    }

    pub fn result(&mut self, call: CallId) -> Result<Done, Error> {
        self.results
            .remove(&call)
            .unwrap_or_else(|| panic!("{call:?} is still waiting"))
    }

    pub fn outcome(&mut self, call: CallId) -> Arc<Outcome> {
        match self.result(call) {
            Ok(Done::Outcome(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }

    pub fn error(&mut self, call: CallId) -> Error {
        self.result(call).expect_err("a failure")
    }

    pub fn fails(&mut self, call: CallId, kind: ErrorKind) -> Error {
        let error = self.error(call);
        assert_eq!(error.kind, kind, "{error:?}");
        error
    }

    /// The next event, which has to be there.
    pub fn event(&mut self) -> Event {
        let call = self.call(Call::NextEvent);
        match self.result(call) {
            Ok(Done::Event(event)) => event,
            other => panic!("{other:?}"),
        }
    }

    pub fn no_event(&mut self) {
        let call = self.call(Call::NextEvent);
        assert!(self.is_waiting(call), "{:?}", self.results.get(&call));
        self.stop(call, Stop::Cancelled);
        self.fails(call, ErrorKind::Cancelled);
    }

    /// Every event that is there.
    pub fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let call = self.call(Call::NextEvent);
            if self.is_waiting(call) {
                self.stop(call, Stop::Cancelled);
                self.fails(call, ErrorKind::Cancelled);
                return events;
            }
            match self.result(call) {
                Ok(Done::Event(event)) => events.push(event),
                other => panic!("{other:?}"),
            }
        }
    }

    // ---- the network

    /// The next connection the engine asked for.
    pub fn opened(&mut self) -> (ConnId, String) {
        self.opens.pop_front().expect("no connection is asked for")
    }

    pub fn opens_nothing(&mut self) {
        assert!(self.opens.is_empty(), "{:?}", self.opens);
    }

    pub fn will_open(&self) -> bool {
        !self.opens.is_empty()
    }

    /// Lets time pass until the engine asks for a connection.
    pub fn reopened(&mut self) -> (ConnId, String) {
        self.reopens().expect("no connection, and no wake-up")
    }

    /// As [`Bench::reopened`], unless the engine waits for nothing any more.
    pub fn reopens(&mut self) -> Option<(ConnId, String)> {
        for _ in 0..1000 {
            if self.will_open() {
                return Some(self.opened());
            }
            let at = self.engine.wakeup()?;
            self.pass_to(at.max(self.now));
        }
        panic!("no connection within 1000 wake-ups");
    }

    /// As [`Bench::reopened`], and the server says that it leads.
    pub fn reconnected(&mut self) -> ConnId {
        let (conn, _) = self.reopened();
        self.greet(conn);
        conn
    }

    pub fn frame(&mut self, conn: ConnId, frame: impl AsRef<[u8]>) {
        let input = Input::Frame {
            conn,
            frame: Frame::copy_from(frame.as_ref()),
        };
        self.watch.input(&input);
        self.engine.input(self.time(), input);
        self.pump();
    }

    pub fn reply(&mut self, conn: ConnId, id: u64, body: ReplyBody) {
        self.frame(conn, reply(id, body));
    }

    pub fn greet(&mut self, conn: ConnId) {
        self.greet_as(conn, leads_itself());
    }

    pub fn greet_as(&mut self, conn: ConnId, who: Leadership) {
        self.frame(conn, leadership(who));
        self.frame(conn, encode_server(&domains(&["d"])).unwrap());
    }

    pub fn close(&mut self, conn: ConnId, cause: Cause) {
        let input = Input::Closed { conn, cause };
        self.watch.input(&input);
        self.engine.input(self.time(), input);
        self.pump();
    }

    pub fn lose(&mut self, conn: ConnId) {
        self.close(conn, Cause::Lost("reset by peer".into()));
    }

    /// The next message the engine sent on a connection.
    pub fn sent(&mut self, conn: ConnId) -> ClientMessage {
        self.sent
            .get_mut(&conn)
            .and_then(VecDeque::pop_front)
            .expect("nothing was sent")
    }

    pub fn all_sent(&mut self, conn: ConnId) -> Vec<ClientMessage> {
        self.sent.remove(&conn).unwrap_or_default().into()
    }

    pub fn sends_nothing(&mut self, conn: ConnId) {
        let sent = self.all_sent(conn);
        assert!(sent.is_empty(), "{sent:?}");
    }

    pub fn command(&mut self, conn: ConnId) -> (u64, CommandRequest) {
        let message = self.sent(conn);
        match message.request {
            ClientRequest::CommandRequest(command) => (message.request_id, command),
            other => panic!("{other:?}"),
        }
    }

    pub fn subscribe(&mut self, conn: ConnId) -> (u64, SubscribeRequest) {
        let message = self.sent(conn);
        match message.request {
            ClientRequest::SubscribeRequest(subscribe) => (message.request_id, subscribe),
            other => panic!("{other:?}"),
        }
    }

    pub fn unsubscribe(&mut self, conn: ConnId) -> (u64, String) {
        let message = self.sent(conn);
        match message.request {
            ClientRequest::UnsubscribeRequest(request) => {
                (message.request_id, request.subscription)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn is_reset(&self, conn: ConnId) -> bool {
        self.watch.conns[&conn].reset
    }

    /// Opens a subscription of [`numbers`] rows.
    pub fn subscription(&mut self, conn: ConnId, name: &str, generation: u64) -> ExecutionId {
        self.subscription_of(conn, name, generation, numbers())
    }

    pub fn subscription_of(
        &mut self,
        conn: ConnId,
        name: &str,
        generation: u64,
        schema: RowSchema,
    ) -> ExecutionId {
        let (call, execution, _) = self.execute(&format!("CREATE SUBSCRIPTION {name} TO r;"));
        let (id, _) = self.subscribe(conn);
        self.reply(conn, id, opened(name, generation, schema));
        let outcome = self.outcome(call);
        assert_eq!(
            outcome.subscription.as_ref().unwrap().generation,
            generation
        );
        execution
    }

    // ---- clocks

    pub fn clock_attach(&mut self, conn: ConnId) -> (u64, String) {
        let message = self.sent(conn);
        match message.request {
            ClientRequest::AttachDomainClockRequest(attach) => (message.request_id, attach.domain),
            other => panic!("{other:?}"),
        }
    }

    pub fn clock_detach(&mut self, conn: ConnId) -> (u64, String) {
        let message = self.sent(conn);
        match message.request {
            ClientRequest::DetachDomainClockRequest(detach) => (message.request_id, detach.domain),
            other => panic!("{other:?}"),
        }
    }

    /// Follows the clock of the selected domain.
    pub fn follow(&mut self, conn: ConnId, domain: &str, clock: DomainClockObservation) {
        let (call, ..) = self.execute("ATTACH DOMAIN CLOCK;");
        let (id, asked) = self.clock_attach(conn);
        assert_eq!(asked, domain);
        self.reply(conn, id, clock_attached(domain, clock));
        self.outcome(call);
    }

    pub fn clock_event(&mut self) -> ClockEvent {
        let call = self.call(Call::NextClockEvent);
        match self.result(call) {
            Ok(Done::ClockEvent(event)) => event,
            other => panic!("{other:?}"),
        }
    }

    pub fn no_clock_event(&mut self) {
        let events = self.clock_events();
        assert!(events.is_empty(), "{events:?}");
    }

    /// Every clock event that is there.
    pub fn clock_events(&mut self) -> Vec<ClockEvent> {
        let mut events = Vec::new();
        loop {
            let call = self.call(Call::NextClockEvent);
            if self.is_waiting(call) {
                self.stop(call, Stop::Cancelled);
                self.fails(call, ErrorKind::Cancelled);
                return events;
            }
            match self.result(call) {
                Ok(Done::ClockEvent(event)) => events.push(event),
                other => panic!("{other:?}"),
            }
        }
    }

    // ---- producers and consumers

    pub fn wanted(endpoint: &str) -> OpenRequest {
        OpenRequest {
            domain: "d".into(),
            endpoint: endpoint.into(),
            fields: numbers().fields,
            batches: 1024,
            bytes: 32 << 20,
        }
    }

    pub fn open(&mut self, role: Role, endpoint: &str) -> CallId {
        self.call(Call::Open(role, Self::wanted(endpoint)))
    }

    pub fn endpoint(&mut self, call: CallId) -> EndpointId {
        match self.result(call) {
            Ok(Done::Endpoint(id, _)) => id,
            other => panic!("{other:?}"),
        }
    }

    pub fn open_ingestor(&mut self, conn: ConnId) -> (u64, OpenIngestorRequest) {
        let message = self.sent(conn);
        match message.request {
            ClientRequest::OpenIngestorRequest(open) => (message.request_id, open),
            other => panic!("{other:?}"),
        }
    }

    pub fn open_emitter(&mut self, conn: ConnId) -> (u64, OpenEmitterRequest) {
        let message = self.sent(conn);
        match message.request {
            ClientRequest::OpenEmitterRequest(open) => (message.request_id, open),
            other => panic!("{other:?}"),
        }
    }

    /// A producer and its identity on the connection.
    pub fn producer(&mut self, conn: ConnId) -> (EndpointId, u64) {
        self.producer_of(conn, ingestor("d", "i"))
    }

    pub fn producer_of(&mut self, conn: ConnId, opened: ProducerOpened) -> (EndpointId, u64) {
        let call = self.open(Role::Producer, "i");
        let (wire, _) = self.open_ingestor(conn);
        self.reply(conn, wire, producer_opened(opened));
        (self.endpoint(call), wire)
    }

    pub fn consumer(&mut self, conn: ConnId) -> (EndpointId, u64) {
        let call = self.open(Role::Consumer, "e");
        let (wire, _) = self.open_emitter(conn);
        self.reply(conn, wire, consumer_opened(emitter("d", "e")));
        (self.endpoint(call), wire)
    }

    /// Submits a batch, which has to be taken at once.
    pub fn submit(&mut self, producer: EndpointId, number: u64) -> u64 {
        let call = self.call(Call::Submit(producer, content(number)));
        self.submitted(call)
    }

    pub fn submitted(&mut self, call: CallId) -> u64 {
        match self.result(call) {
            Ok(Done::Submitted(submission)) => submission,
            other => panic!("{other:?}"),
        }
    }

    /// The next batch that was sent: its request, its producer and its bytes.
    pub fn batch(&mut self, conn: ConnId) -> (u64, u64, bytes::Bytes) {
        let message = self.sent(conn);
        match message.request {
            ClientRequest::SubmitBatchRequest(batch) => {
                (message.request_id, batch.producer, batch.batch)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The outcome of a submission, which has to be there.
    pub fn rejoin(&mut self, producer: EndpointId, submission: u64) -> SubmissionOutcome {
        let call = self.call(Call::Rejoin(producer, submission));
        self.submission(call)
    }

    pub fn submission(&mut self, call: CallId) -> SubmissionOutcome {
        match self.result(call) {
            Ok(Done::Submission(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }

    pub fn read(&mut self, conn: ConnId) -> (u64, u64) {
        let message = self.sent(conn);
        match message.request {
            ClientRequest::ReadEmitterBatchRequest(read) => (message.request_id, read.consumer),
            other => panic!("{other:?}"),
        }
    }

    pub fn delivery(&mut self, call: CallId) -> Delivery {
        match self.result(call) {
            Ok(Done::Delivery(delivery)) => delivery,
            other => panic!("{other:?}"),
        }
    }

    /// Reads an attempt that the server has ready.
    pub fn deliver(
        &mut self,
        conn: ConnId,
        consumer: EndpointId,
        identity: u64,
        reference: u64,
    ) -> Delivery {
        let call = self.call(Call::NextDelivery(consumer));
        let (id, _) = self.read(conn);
        self.reply(conn, id, delivery(identity, reference));
        self.delivery(call)
    }

    pub fn settle(&mut self, delivery: &Delivery, decision: Decision) -> CallId {
        self.call(Call::Settle(delivery.clone(), decision))
    }

    pub fn settlement(&mut self, conn: ConnId) -> (u64, SettleEmitterBatchRequest) {
        let message = self.sent(conn);
        match message.request {
            ClientRequest::SettleEmitterBatchRequest(settle) => (message.request_id, settle),
            other => panic!("{other:?}"),
        }
    }

    pub fn settled(&mut self, call: CallId) -> Settlement {
        match self.result(call) {
            Ok(Done::Settled(settlement)) => settlement,
            other => panic!("{other:?}"),
        }
    }

    // ---- transactions

    /// Begins a transaction.
    pub fn begin(&mut self, conn: ConnId, id: &str) {
        let (call, _, reference) = self.execute("BEGIN;");
        let (request, _) = self.command(conn);
        self.reply(
            conn,
            request,
            bound(completed(&reference), transaction(id, 0)),
        );
        self.outcome(call);
    }

    /// Appends a statement; the request that carried it.
    pub fn append(&mut self, conn: ConnId, id: &str, accepted: u64) -> CommandRequest {
        let (call, _, reference) = self.execute("CREATE SCHEMA a (b I64);");
        let (request, command) = self.command(conn);
        self.reply(conn, request, appended(&reference, id, accepted, 1));
        self.outcome(call);
        command
    }

    pub fn transaction_attach(&mut self, conn: ConnId) -> (u64, String) {
        let message = self.sent(conn);
        match message.request {
            ClientRequest::AttachTransactionRequest(attach) => {
                (message.request_id, attach.transaction_id)
            }
            other => panic!("{other:?}"),
        }
    }

    // ---- redirects

    /// A command that is redirected; the session it moves to, whose server says that it leads, and the command.
    pub fn redirected(&mut self, conn: ConnId, uri: &str) -> (ConnId, CallId, String) {
        let (call, _, reference) = self.execute("CREATE SCHEMA a (b I64);");
        let (id, _) = self.command(conn);
        let leader = Some(endpoints("n", Some(uri)));
        self.reply(conn, id, redirect(&reference, leader));
        let (next, origin) = self.opened();
        assert_eq!(origin, uri);
        self.greet(next);
        (next, call, reference)
    }

    /// Completes the command that is the next message on a connection.
    pub fn complete(&mut self, conn: ConnId, call: CallId, reference: &str) {
        let (id, command) = self.command(conn);
        assert_eq!(command.execution_reference, reference);
        self.reply(conn, id, completed(reference));
        self.outcome(call);
    }

    // ---- time

    fn pass_to(&mut self, to: u64) {
        let mut idle = 0;
        while let Some(at) = self.engine.wakeup().filter(|at| *at <= to) {
            self.now = self.now.max(at);
            self.engine.wake(self.time());
            self.pump();
            if self.engine.wakeup().is_some_and(|at| at <= self.now) {
                idle += 1;
                assert!(idle < 10, "a wake-up that stays due");
            } else {
                idle = 0;
            }
        }
        self.now = self.now.max(to);
        self.engine.wake(self.time());
        self.pump();
    }

    /// Lets time pass on a session whose server answers when it is asked whether it is there, and says what else it was sent.
    pub fn quiet(&mut self, conn: ConnId, time: u64) -> Vec<ClientMessage> {
        let end = self.now + time;
        let mut rest = Vec::new();
        loop {
            self.pass_to((self.now + REQUEST_TIMEOUT / 4).min(end));
            for message in self.all_sent(conn) {
                if message.request == ClientRequest::ListDomainsRequest {
                    self.reply(conn, message.request_id, domain_list(&["d"]));
                } else {
                    rest.push(message);
                }
            }
            if self.now >= end {
                return rest;
            }
        }
    }

    /// Lets time pass, with every wake-up on time.
    pub fn pass(&mut self, time: u64) {
        self.pass_to(self.now + time);
    }
}
