//! A host that does whatever the interface allows, and holds the engine to what it says.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use nervix_engine::{
    Call, CallId, Decision, Delivery, Disposition, Done, Error, ErrorKind, Event, EventKind,
    ExecutionId, Outcome, Role, Stop,
};
use nervix_wire::types::{TransactionState, TransactionStatus};
use nervix_wire::CellRef;
use nervix_wire::Part;

use crate::clocks::Known;
use crate::common::SEC;
use crate::world::World;

const NAMES: [&str; 3] = ["s0", "s1", "s2"];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Command,
    Read,
    Create(String),
    Delete(String),
    Use(String),
    List,
    AttachClock(String),
    DetachClock(String),
    Begin,
    Commit,
    Revert,
}

struct Prepared {
    id: ExecutionId,
    reference: Arc<str>,
    query: String,
    kind: Kind,
    /// The domain it has to name, when that is certain (L-1).
    domain: Option<String>,
    outcome: Option<Arc<Outcome>>,
    running: usize,
    uncertain: bool,
}

#[derive(Debug)]
struct Waiting {
    what: What,
    since: u64,
    stopped: Option<Stop>,
}

#[derive(Debug, Clone)]
pub enum What {
    Connect,
    Execute(usize),
    Reader,
    ClockReader,
    Suggest(String),
    Open(Role, String),
    Submit(usize, Bytes),
    Rejoin(usize, u64),
    Next(usize),
    /// What is settled, and the identity it carries.
    Settle(usize, u64, Box<(Delivery, Decision)>),
    Close(usize),
}

impl What {
    /// Whether it waits for others, however long that takes.
    fn is_endless(&self) -> bool {
        matches!(
            self,
            What::Reader | What::ClockReader | What::Rejoin(..) | What::Next(_) | What::Close(_)
        )
    }
}

/// What the host knows of one name.
#[derive(Debug, Default)]
struct Name {
    kept: bool,
    deleted: bool,
    overflowed: bool,
    /// The stream whose events come now, and the place its next row has.
    current: Option<(usize, u64)>,
    /// A gap was reported, so another stream may begin.
    gap: bool,
    /// Nothing of a stream asked for up to here is handed out any more.
    dead_before: u64,
    dead: Vec<usize>,
    /// Nothing but the end of this stream is handed out any more.
    cut_off: Option<usize>,
    /// The generation of its last event; the model's generations grow.
    last: u64,
}

#[derive(Default)]
pub struct Host {
    prepared: Vec<Prepared>,
    calls: BTreeMap<CallId, Waiting>,
    next_call: u64,
    names: BTreeMap<String, Name>,
    domain: String,
    /// A transaction of another domain, or whose begin nobody waited for, may have moved it.
    domain_unknown: bool,
    /// A transaction was lost, and told so.
    left: bool,
    connected: bool,
    pub shut_down: bool,
    rows: u64,
    pub clocks: BTreeMap<String, Known>,
}

impl World {
    pub fn waits(&self, call: CallId) -> bool {
        self.host.calls.contains_key(&call)
    }

    pub fn any_waiting(&self, which: impl Fn(&What) -> bool) -> bool {
        self.host.calls.values().any(|call| which(&call.what))
    }

    /// Whether a call for the same is waiting.
    pub fn is_waiting(&self, what: &What) -> bool {
        self.any_waiting(|other| match (other, what) {
            (What::Open(_, one), What::Open(_, two)) => one == two,
            (What::Rejoin(one, first), What::Rejoin(two, second)) => one == two && first == second,
            (What::Next(one), What::Next(two)) => one == two,
            _ => false,
        })
    }

    /// Whether an attach of this clock may be under way.
    pub fn runs_attach(&self, domain: &str) -> bool {
        self.host.prepared.iter().any(|prepared| {
            prepared.outcome.is_none()
                && (prepared.running > 0 || prepared.uncertain)
                && matches!(&prepared.kind, Kind::AttachClock(other) if other == domain)
        })
    }

    /// Whether a detach of this clock may be under way.
    pub fn wants_detach(&self, domain: &str) -> bool {
        self.host.prepared.iter().any(|prepared| {
            prepared.outcome.is_none()
                && matches!(&prepared.kind, Kind::DetachClock(other) if other == domain)
        })
    }

    pub fn start(&mut self, what: What) -> CallId {
        let call = CallId(self.host.next_call);
        self.host.next_call += 1;
        self.counts.calls += 1;
        self.host.calls.insert(
            call,
            Waiting {
                what: what.clone(),
                since: self.now,
                stopped: None,
            },
        );
        self.note(|| format!("{call:?} {what:?}"));
        let what = match what {
            What::Connect => Call::Connect,
            What::Execute(index) => {
                let prepared = &mut self.host.prepared[index];
                prepared.running += 1;
                match &prepared.kind {
                    Kind::Create(name) if prepared.outcome.is_none() => {
                        self.host.names.get_mut(name).unwrap().deleted = false;
                    }
                    Kind::Delete(name) => self.watch.disowned(name),
                    Kind::DetachClock(domain) => self.watch.disowned_clock(domain),
                    _ => {}
                }
                Call::Execute(prepared.id)
            }
            What::Reader => Call::NextEvent,
            What::ClockReader => Call::NextClockEvent,
            What::Suggest(input) => Call::Suggest {
                cursor: input.len() as u32,
                input,
                page_size: 10,
                continuation: None,
            },
            other => self.endpoint_call(&other),
        };
        self.engine.call(self.time(), call, what);
        self.pump();
        call
    }

    pub fn connect(&mut self) {
        for name in NAMES {
            self.host.names.insert(name.into(), Name::default());
        }
        self.host.domain = "d0".into();
        self.start(What::Connect);
    }

    fn prepare(&mut self, kind: Kind) -> usize {
        let serial = self.host.prepared.len();
        let query = match &kind {
            Kind::Command => format!("CREATE SCHEMA t{serial} (a I64);"),
            Kind::Read => "SHOW CLUSTER STATUS;".into(),
            Kind::Create(name) => format!("CREATE SUBSCRIPTION {name} TO r;"),
            Kind::Delete(name) => format!("DELETE SUBSCRIPTION {name};"),
            Kind::Use(domain) => format!("USE {domain};"),
            Kind::List => "LIST DOMAINS;".into(),
            Kind::AttachClock(_) => "ATTACH DOMAIN CLOCK;".into(),
            Kind::DetachClock(_) => "DETACH DOMAIN CLOCK;".into(),
            Kind::Begin => "BEGIN;".into(),
            Kind::Commit => "COMMIT;".into(),
            Kind::Revert => "REVERT;".into(),
        };
        let entropy = self.rng.entropy();
        let (id, reference) = self.engine.prepare(self.time(), &query, entropy);
        self.pump();
        assert!(
            self.host
                .prepared
                .iter()
                .all(|prepared| prepared.reference != reference),
            "a reference twice"
        );
        let moving = self.is_moving();
        self.note(|| format!("prepared {serial}: {query} as {reference}"));
        self.host.prepared.push(Prepared {
            id,
            reference,
            query,
            kind,
            domain: (!moving).then(|| self.host.domain.clone()),
            outcome: None,
            running: 0,
            uncertain: false,
        });
        serial
    }

    /// Whether the selected domain may be another by now.
    fn is_moving(&self) -> bool {
        self.host.domain_unknown
            || self.host.prepared.iter().any(|prepared| {
                matches!(prepared.kind, Kind::Use(_) | Kind::Begin) && prepared.outcome.is_none()
            })
    }

    fn open_of(&self, name: &str, deletes: bool) -> bool {
        self.host.prepared.iter().any(|prepared| {
            prepared.outcome.is_none()
                && match &prepared.kind {
                    Kind::Create(other) => !deletes && other == name,
                    Kind::Delete(other) => deletes && other == name,
                    _ => false,
                }
        })
    }

    fn readers(&self) -> usize {
        let readers = self.host.calls.values();
        readers
            .filter(|call| matches!(call.what, What::Reader))
            .count()
    }

    fn clock_readers(&self) -> usize {
        let readers = self.host.calls.values();
        readers
            .filter(|call| matches!(call.what, What::ClockReader))
            .count()
    }

    /// One thing a host might do.
    pub fn act(&mut self) {
        if !self.host.connected {
            return;
        }
        if self.mix.endpoints && self.rng.chance(50.0) {
            return self.work();
        }
        if self.mix.clocks && self.rng.chance(30.0) {
            return self.follow();
        }
        if self.mix.transactions && self.rng.chance(15.0) {
            let kind = match self.rng.within(0, 10) {
                0..=4 => Kind::Begin,
                5..=7 => Kind::Commit,
                _ => Kind::Revert,
            };
            let index = self.prepare(kind);
            self.start(What::Execute(index));
            return;
        }
        match self.rng.within(0, 100) {
            0..=24 => {
                let index = self.prepare(Kind::Command);
                self.start(What::Execute(index));
            }
            25..=29 => {
                let index = self.prepare(Kind::Read);
                self.start(What::Execute(index));
            }
            30..=44 => {
                let name = NAMES[self.rng.index(3)];
                let held = self.host.names[name].kept;
                if !held && !self.open_of(name, true) && !self.open_of(name, false) {
                    let index = self.prepare(Kind::Create(name.into()));
                    self.start(What::Execute(index));
                } else if self.rng.chance(25.0) && !self.open_of(name, true) {
                    let index = self.prepare(Kind::Delete(name.into()));
                    self.start(What::Execute(index));
                }
            }
            45..=59 => {
                let unfinished: Vec<usize> = (0..self.host.prepared.len())
                    .filter(|index| {
                        self.host.prepared[*index].outcome.is_none() || self.rng.chance(5.0)
                    })
                    .collect();
                if !unfinished.is_empty() {
                    let index = unfinished[self.rng.index(unfinished.len())];
                    self.start(What::Execute(index));
                }
            }
            60..=72 => {
                let calls: Vec<CallId> = self.host.calls.keys().copied().collect();
                if !calls.is_empty() {
                    let call = calls[self.rng.index(calls.len())];
                    self.stop(call);
                }
            }
            73..=87 => {
                if self.readers() < 3 {
                    self.start(What::Reader);
                }
            }
            88..=93 => {
                let input = format!("SH{}", self.rng.within(0, 1000));
                self.start(What::Suggest(input));
            }
            94..=96 => {
                let domain = format!("d{}", self.rng.within(0, 2));
                let index = self.prepare(Kind::Use(domain));
                self.start(What::Execute(index));
            }
            97..=98 => {
                let index = self.prepare(Kind::List);
                self.start(What::Execute(index));
            }
            _ => {
                for _ in 0..self.rng.within(1, 90) {
                    self.start(What::Suggest("many".into()));
                }
            }
        }
    }

    /// One thing a host might do with clocks.
    fn follow(&mut self) {
        if self.rng.chance(60.0) {
            if self.clock_readers() < 2 {
                self.start(What::ClockReader);
            }
            return;
        }
        if self.is_moving() {
            return;
        }
        let domain = self.host.domain.clone();
        let kind = if self.rng.chance(65.0) {
            Kind::AttachClock(domain)
        } else {
            Kind::DetachClock(domain)
        };
        let index = self.prepare(kind);
        self.start(What::Execute(index));
    }

    fn stop(&mut self, call: CallId) {
        if matches!(self.host.calls[&call].what, What::Connect) {
            return;
        }
        let why = if self.rng.chance(50.0) {
            Stop::Cancelled
        } else {
            Stop::Deadline
        };
        self.note(|| format!("{call:?} stops: {why:?}"));
        self.host.calls.get_mut(&call).unwrap().stopped = Some(why);
        self.counts.stopped += 1;
        self.engine.stop(self.time(), call, why);
        self.pump();
        assert!(
            !self.host.calls.contains_key(&call),
            "{call:?} goes on although its host stopped waiting"
        );
    }

    /// A call is over.
    pub fn done(&mut self, call: CallId, result: Result<Done, Error>) {
        self.note(|| match &result {
            Ok(Done::Event(event)) => {
                let what = format!("{:?}", event.kind);
                let short: String = what.chars().take(60).collect();
                format!("{call:?} event {} {} {short}", event.name, event.generation)
            }
            other => format!("{call:?} is over: {other:?}"),
        });
        let waited = self
            .host
            .calls
            .remove(&call)
            .unwrap_or_else(|| panic!("{call:?} answered twice, or never made"));
        if let Err(error) = &result {
            assert!(!error.message.is_empty() && !error.message.contains('\n'));
        }
        if !waited.what.is_endless() {
            let took = self.now - waited.since;
            assert!(
                took <= self.retry_timeout + SEC,
                "{waited:?} took {took} ns (D-4)"
            );
        }
        if let Some(why) = waited.stopped {
            let error = result.as_ref().expect_err("a stopped call fails");
            let kind = match why {
                Stop::Cancelled => ErrorKind::Cancelled,
                Stop::Deadline => ErrorKind::Deadline,
            };
            assert_eq!(error.kind, kind, "{waited:?}");
        }
        match (waited.what, result) {
            (What::Connect, Ok(Done::Connected)) => self.host.connected = true,
            (What::Connect, Err(error)) => {
                assert_eq!(error.kind, ErrorKind::Connect, "{error:?}");
            }
            (What::Execute(index), result) => {
                self.host.prepared[index].running -= 1;
                match result {
                    Ok(Done::Outcome(outcome)) => self.outcome(index, outcome),
                    Err(error) => self.failure(index, error, waited.stopped.is_some()),
                    other => panic!("an execute ends with {other:?}"),
                }
            }
            (What::Suggest(input), Ok(Done::Suggestions(page))) => {
                assert_eq!(page.suggestions.len(), 1);
                assert_eq!(
                    page.suggestions[0].value,
                    format!("{input}!"),
                    "another request's answer (C-3)"
                );
            }
            (What::Suggest(_), Err(error)) => assert!(
                waited.stopped.is_some()
                    || self.host.shut_down
                    || matches!(
                        error.kind,
                        ErrorKind::Connect | ErrorKind::Transport | ErrorKind::Protocol
                    ),
                "{error:?}"
            ),
            (What::Reader, Ok(Done::Event(event))) => self.event(event),
            (What::Reader, Err(error)) => {
                assert!(
                    waited.stopped.is_some() || self.host.shut_down,
                    "next_event fails with {error:?}"
                );
            }
            (What::ClockReader, Ok(Done::ClockEvent(event))) => self.clock_event(event),
            (What::ClockReader, Err(error)) => {
                assert!(
                    waited.stopped.is_some() || self.host.shut_down,
                    "next_clock_event fails with {error:?}"
                );
            }
            (what, result) => self.endpoint_done(what, result, waited.stopped.is_some()),
        }
    }

    /// The one outcome of what was sent as a command.
    fn command_outcome(&mut self, index: usize, outcome: &Outcome, first: bool) {
        let prepared = &self.host.prepared[index];
        let reference = prepared.reference.to_string();
        let Some(sent) = self.watch.sent_command(&reference) else {
            // Of a transaction that is lost, and nobody said to go on without it.
            assert!(outcome.decided_locally && self.mix.transactions);
            assert_eq!(outcome.disposition, Disposition::Failed);
            self.host.left = true;
            return;
        };
        assert!(!outcome.decided_locally);
        assert_eq!(outcome.reference.as_deref(), Some(&*reference));
        assert_eq!(sent.query, prepared.query);
        if let Some(domain) = &prepared.domain {
            assert_eq!(sent.domain.as_ref(), Some(domain), "(L-1)");
        }
        if let Disposition::ExecutionReferenceConflict
        | Disposition::TransactionTakenOver
        | Disposition::TransactionDetached
        | Disposition::PreviewStale = outcome.disposition
        {
            assert!(sent.expected_transaction_position.is_some() || self.mix.transactions);
            self.counts.refused_commands += 1;
            assert!(!self.cluster.records.contains_key(&reference));
            return;
        }
        let record = &self.cluster.records[&reference];
        assert!(record.effects <= 1);
        assert_eq!(outcome.message, record.outcome().message);
        assert_eq!(
            outcome.disposition == Disposition::Failed,
            record.failed(),
            "{outcome:?}"
        );
        assert_eq!(outcome.admission, record.outcome().transaction_admission);
        if outcome.origin == Some(nervix_wire::types::OutcomeOrigin::Recovered) {
            self.counts.recovered += 1;
        }
        match (&outcome.admission, &self.watch.meant[&reference]) {
            (Some(admission), Some(transaction)) => {
                let operations = &self.cluster.transactions[transaction].operations;
                assert_eq!(operations[admission.operation as usize - 1], reference);
                self.counts.appended += 1;
            }
            (Some(_), None) => panic!("an append outside a transaction"),
            _ if sent.expected_transaction_position.is_none() && !record.failed() => {
                assert_eq!(record.effects, 1, "completed without an effect");
            }
            _ => {}
        }
        if first && prepared.kind == Kind::Begin {
            self.host.domain_unknown |= prepared.uncertain;
            if let Some(TransactionStatus {
                state: TransactionState::TransactionOpen,
                transaction_id,
                domain,
                ..
            }) = &outcome.transaction
            {
                // Begun in place of one that was lost.
                let others = self.cluster.transactions.iter();
                self.host.left |= others
                    .filter(|(id, _)| *id != transaction_id)
                    .any(|(_, other)| other.is_open());
                // Selected until it is over, whenever that is told.
                self.host.domain_unknown |= self.host.domain != *domain;
                self.counts.begun += 1;
            }
        }
        if self.host.prepared[index].kind == Kind::Commit
            && outcome.disposition == Disposition::Completed
        {
            self.counts.committed += 1;
        }
    }

    fn outcome(&mut self, index: usize, outcome: Arc<Outcome>) {
        let prepared = &mut self.host.prepared[index];
        let first = prepared.outcome.is_none();
        if let Some(before) = &prepared.outcome {
            assert_eq!(before, &outcome, "another outcome than before (B-1)");
        }
        prepared.outcome = Some(Arc::clone(&outcome));
        self.counts.outcomes += 1;
        let reference = prepared.reference.to_string();
        let kind = prepared.kind.clone();
        let terminal = match outcome.disposition {
            Disposition::Completed | Disposition::Failed => true,
            Disposition::ExecutionReferenceConflict
            | Disposition::TransactionTakenOver
            | Disposition::PreviewStale => self.mix.transactions,
            // Of a transaction that could not be attached, and that the host left.
            Disposition::TransactionDetached => self.mix.transactions && self.host.left,
            _ => false,
        };
        assert!(terminal, "no terminal disposition: {outcome:?} (E-6)");
        match kind {
            Kind::Command | Kind::Begin | Kind::Commit | Kind::Revert => {
                self.command_outcome(index, &outcome, first);
            }
            Kind::AttachClock(domain) => {
                let late = self.host.prepared[index].uncertain;
                let follows = self.engine.domain_clock(&domain).is_some();
                if first && outcome.disposition == Disposition::Completed {
                    assert!(follows || late, "attached, and no clock to read (B-11)");
                }
                // Refused as attached already, it may be one that nobody waited for (B-11).
                let known = self.host.clocks.contains_key(&domain);
                let completed = outcome.disposition == Disposition::Completed;
                if first && follows && (completed || !known) {
                    self.attached(&domain);
                }
            }
            Kind::DetachClock(domain) => {
                let follows = self.engine.domain_clock(&domain).is_some();
                if first && outcome.disposition == Disposition::Completed && !follows {
                    self.host.clocks.remove(&domain);
                    self.watch.disowned_clock(&domain);
                }
            }
            Kind::Read => assert_eq!(outcome.message, format!("outcome of {reference}")),
            Kind::Create(name) => {
                let Some(opened) = &outcome.subscription else {
                    assert_eq!(outcome.disposition, Disposition::Failed);
                    return;
                };
                assert_eq!(outcome.disposition, Disposition::Completed);
                assert_eq!(*opened.name, *name);
                assert_eq!(*opened.schema, crate::common::frames::numbers());
                let stream = self.cluster.by_generation[&(name.clone(), opened.generation)];
                let order = self.order_of(stream);
                let going = self.open_of(&name, true);
                let held = self.host.names.get_mut(&name).unwrap();
                if first && order > held.dead_before {
                    held.kept = true;
                    if !going && order > self.ended.get(&name).copied().unwrap_or(0) {
                        self.watch.kept.insert(name);
                    }
                }
            }
            Kind::Delete(name) => {
                if first && outcome.disposition == Disposition::Completed {
                    let again =
                        self.host.prepared.iter().any(|other| {
                            other.running > 0 && other.kind == Kind::Create(name.clone())
                        });
                    let sent = self.sent;
                    let held = self.host.names.get_mut(&name).unwrap();
                    held.kept = false;
                    held.deleted = !again;
                    held.overflowed = false;
                    held.current = None;
                    held.gap = true;
                    held.dead_before = sent;
                }
            }
            Kind::Use(domain) => {
                assert!(outcome.decided_locally);
                let completed = outcome.disposition == Disposition::Completed;
                assert!(completed || self.mix.transactions);
                if first && completed {
                    self.host.domain = domain;
                    self.host.domain_unknown = self.host.prepared[index].uncertain;
                }
            }
            Kind::List => {
                assert_eq!(outcome.disposition, Disposition::Completed);
                assert_eq!(outcome.message.lines().count(), 2, "{outcome:?}");
            }
        }
    }

    fn failure(&mut self, index: usize, error: Error, stopped: bool) {
        let prepared = &mut self.host.prepared[index];
        assert_eq!(
            error.reference.as_deref(),
            Some(&*prepared.reference),
            "every failure of an execute names its reference"
        );
        prepared.uncertain = true;
        if stopped {
            return;
        }
        if self.host.shut_down {
            return;
        }
        let written = self.watch.sent_command(&prepared.reference).is_some();
        match &prepared.kind {
            Kind::Command | Kind::Read | Kind::Begin | Kind::Commit | Kind::Revert if written => {
                assert_eq!(error.kind, ErrorKind::Uncertain, "{error:?} (D-4)");
                assert!(error.message.contains(&*prepared.reference), "{error:?}");
                self.counts.uncertain += 1;
            }
            Kind::Command
            | Kind::Read
            | Kind::Use(_)
            | Kind::Begin
            | Kind::Commit
            | Kind::Revert => assert!(
                matches!(
                    error.kind,
                    ErrorKind::Connect | ErrorKind::Transport | ErrorKind::Protocol
                ),
                "never sent, yet {error:?}"
            ),
            _ => assert!(
                matches!(
                    error.kind,
                    ErrorKind::Uncertain
                        | ErrorKind::Connect
                        | ErrorKind::Transport
                        | ErrorKind::Protocol
                ),
                "{error:?}"
            ),
        }
    }

    fn order_of(&self, stream: usize) -> u64 {
        let stream = &self.cluster.streams[stream];
        self.order[&(stream.conn, stream.request_id)]
    }

    fn event(&mut self, event: Event) {
        self.counts.events += 1;
        let name = event.name.to_string();
        let stream = self
            .cluster
            .by_generation
            .get(&(name.clone(), event.generation))
            .copied();
        let order = stream.map(|stream| self.order_of(stream));
        let held = self.host.names.get_mut(&name).unwrap();
        assert!(!held.deleted, "{event:?} after the deletion (S-6)");
        assert!(
            event.generation >= held.last,
            "{event:?} after one of generation {}",
            held.last
        );
        held.last = event.generation;
        let carries = |held: &mut Name, count: u64| {
            let stream = stream.expect("a generation of the server");
            assert!(
                order.unwrap() > held.dead_before
                    && !held.dead.contains(&stream)
                    && held.cut_off != Some(stream),
                "something of a generation that is over (S-4, S-6)"
            );
            let place = match held.current {
                Some((current, place)) if current == stream => place,
                None => 0,
                Some(_) => {
                    assert!(held.gap, "two generations without a gap between them (S-7)");
                    0
                }
            };
            held.gap = false;
            held.current = Some((stream, place + count));
            (stream as u64, place)
        };
        match event.kind {
            EventKind::Rows(rows) => {
                let count = rows.row_count() as u64;
                let (stream, first) = carries(held, count);
                for row in 0..rows.row_count() {
                    let cell = |column| match rows.cell(Part::Rows, row, column) {
                        Some(CellRef::U64(value)) => value,
                        other => panic!("{other:?}"),
                    };
                    assert_eq!(cell(0), stream, "rows of another generation (S-3)");
                    assert_eq!(cell(1), first + row as u64, "rows lost or moved (S-5)");
                }
                self.host.rows += count;
            }
            EventKind::DeliveryLost { rows } | EventKind::RowsSkipped { rows, .. } => {
                carries(held, rows);
            }
            EventKind::Ended { .. } if stream.is_some() && held.cut_off == stream => {
                held.dead.extend(stream);
                held.dead_before = held.dead_before.max(order.unwrap());
                held.kept = false;
                held.overflowed = false;
                self.counts.endings += 1;
            }
            EventKind::Ended { .. } => {
                let (stream, place) = carries(held, 0);
                let stream = stream as usize;
                assert_eq!(
                    place, self.cluster.streams[stream].place,
                    "ended before its rows were handed out (S-4)"
                );
                held.dead.push(stream);
                held.dead_before = held.dead_before.max(order.unwrap());
                held.kept = false;
                held.gap = true;
                self.counts.endings += 1;
            }
            EventKind::Interrupted { .. } => {
                held.dead.extend(stream);
                held.gap = true;
                held.overflowed = false;
                self.counts.interruptions += 1;
            }
            EventKind::Overflow { dropped } => {
                assert!(dropped > 0);
                held.cut_off = Some(stream.expect("a generation of the server"));
                held.gap = true;
                held.overflowed = true;
                self.counts.overflows += 1;
            }
            EventKind::RestorationFailed { .. } => {
                held.gap = true;
                self.counts.refused_restorations += 1;
            }
        }
    }

    /// Without faults, reads every event that comes within a time.
    pub fn read_for(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            while self.readers() < 1 {
                self.start(What::Reader);
            }
            while self.mix.clocks && self.clock_readers() < 1 {
                self.start(What::ClockReader);
            }
            let step = (self.now + SEC / 2).min(end);
            self.until(step);
        }
    }

    /// Leaves whatever transaction is held.
    fn revert(&mut self) {
        let revert = self.prepare(Kind::Revert);
        for _ in 0..3 {
            if self.host.prepared[revert].outcome.is_none() {
                self.start(What::Execute(revert));
                self.read_for(4 * SEC);
            }
        }
    }

    /// Executes what has no outcome until it has one.
    fn finish_commands(&mut self) {
        for index in 0..self.host.prepared.len() {
            if self.host.prepared[index].outcome.is_none() {
                if self.mix.transactions {
                    // Whatever is held belongs to another command than this one.
                    self.revert();
                }
                // What takes longer than one call may is recovered by another.
                for _ in 0..3 {
                    if self.host.prepared[index].outcome.is_none() {
                        self.start(What::Execute(index));
                        self.read_for(4 * SEC);
                    }
                }
            }
        }
    }

    /// After the last fault: everything unfinished finishes, and what is kept is there.
    pub fn settle(&mut self) {
        let enough = 2 * self.request_timeout + self.retry_timeout + 15 * SEC;
        if !self.host.connected {
            // Nobody gets a session whose connect failed.
            self.until(self.now + enough);
            self.finish();
            return;
        }
        self.read_for(enough);
        for domain in crate::clocks::DOMAINS {
            self.cluster.clocks.get_mut(domain).unwrap().exists = true;
        }
        self.set_running("d0", true);
        // A command that may not go into what an abandoned BEGIN began is for after that BEGIN.
        for _ in 0..2 {
            self.finish_commands();
        }
        if self.mix.transactions {
            self.revert();
        }
        self.read_for(enough + 120 * SEC);
        if self.mix.endpoints {
            self.settle_endpoints();
        }
        if self.mix.clocks {
            self.settle_clocks();
        }
        for (index, prepared) in self.host.prepared.iter().enumerate() {
            assert!(
                prepared.outcome.is_some(),
                "{index} never ended: {}",
                prepared.query
            );
            if let (Kind::Command, Some(record)) = (
                &prepared.kind,
                self.cluster.records.get(&*prepared.reference),
            ) {
                let meant = &self.watch.meant[&*prepared.reference];
                let outcome = prepared.outcome.as_ref().unwrap();
                let effects = match meant {
                    None if self.mix.transactions => record.effects.min(1),
                    None => 1,
                    Some(transaction) => {
                        let transaction = &self.cluster.transactions[transaction];
                        let committed = transaction.state == TransactionState::TransactionCommitted;
                        u32::from(committed && outcome.admission.is_some())
                    }
                };
                assert_eq!(record.effects, effects, "{}", prepared.query);
            }
        }
        let held: Vec<(String, usize)> = self
            .cluster
            .sessions
            .values()
            .flat_map(|session| session.subs.iter())
            .filter(|(_, stream)| !self.cluster.streams[**stream].ended)
            .map(|(name, stream)| (name.clone(), *stream))
            .collect();
        assert!(
            self.cluster.sessions.len() <= 1,
            "more sessions than one: {:?}",
            self.cluster.sessions.keys()
        );
        for (name, known) in &self.host.names {
            let there = held.iter().any(|(other, _)| other == name);
            assert_eq!(
                there,
                known.kept && !known.overflowed,
                "{name} on the server, against {known:?} (S-7)"
            );
        }
        let before = self.host.rows;
        for (name, stream) in &held {
            let stream_of = &mut self.cluster.streams[*stream];
            let place = stream_of.place;
            stream_of.place += 1;
            let frame = crate::common::frames::rows(
                name,
                stream_of.generation,
                *stream as u64,
                place..place + 1,
            );
            let conn = stream_of.conn;
            self.put(conn, frame);
        }
        self.read_for(3 * SEC);
        assert_eq!(
            self.host.rows,
            before + held.len() as u64,
            "rows that never came"
        );
        self.finish();
    }

    fn finish(&mut self) {
        let waiting: Vec<_> = self
            .host
            .calls
            .values()
            .filter(|call| !matches!(call.what, What::Reader | What::ClockReader))
            .collect();
        assert!(waiting.is_empty(), "never answered: {waiting:?}");
        self.host.shut_down = true;
        self.engine.shut_down();
        self.pump();
        assert!(
            self.host.calls.is_empty(),
            "the end leaves calls waiting: {:?}",
            self.host.calls
        );
        let open = self.watch.conns.values().filter(|conn| !conn.over).count();
        assert_eq!(open, 0, "the end leaves connections open");
        assert_eq!(self.engine.wakeup(), None, "the end leaves a wake-up");
    }
}
