//! What tests ask about afterwards: connections, sessions and how each ended, frames by kind, commands by reference.
//! Must not decide anything; whoever causes something tells it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use nervix_wire::types::{
    OutcomeUncertainty, ProcessingFailure, SubmissionDisposition, SubmissionRefusal,
};
use parking_lot::Mutex;
use serde_json::{json, Map, Value};
use tokio::sync::watch;

/// Sessions, references and batches are remembered up to these numbers, the oldest forgotten first.
const SESSIONS_KEPT: usize = 4096;
const REFERENCES_KEPT: usize = 65_536;
const BATCHES_KEPT: usize = 65_536;

/// Which way a frame went, as seen from the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    In,
    Out,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client half-closed.
    EndStream,
    /// The client reset the stream with this code.
    Reset(u32),
    /// The connection went away.
    Lost(String),
    /// The node ended it.
    Server(String),
}

impl SessionEnd {
    fn kind(&self) -> &'static str {
        match self {
            Self::EndStream => "end_stream",
            Self::Reset(_) => "reset",
            Self::Lost(_) => "lost",
            Self::Server(_) => "server",
        }
    }

    fn detail(&self) -> Value {
        match self {
            Self::EndStream => Value::Null,
            Self::Reset(code) => json!(code),
            Self::Lost(detail) | Self::Server(detail) => json!(detail),
        }
    }
}

#[derive(Debug)]
struct SessionEntry {
    id: u64,
    node: String,
    user: String,
    end: Option<SessionEnd>,
}

/// What became of the batches of one content.
#[derive(Debug, Default)]
struct BatchEntry {
    bytes: usize,
    received: u64,
    /// What each receipt came to, in the order in which that was told.
    outcomes: Vec<&'static str>,
}

impl BatchEntry {
    /// Whether each outcome so far lets a client send the batch again by itself, and none is missing.
    fn may_come_again(&self) -> bool {
        self.received == u64::try_from(self.outcomes.len()).unwrap_or(u64::MAX)
            && self
                .outcomes
                .iter()
                .all(|outcome| matches!(*outcome, "Suspended" | "Busy"))
    }
}

#[derive(Debug, Default)]
struct Batches {
    entries: HashMap<[u8; 32], BatchEntry>,
    order: VecDeque<[u8; 32]>,
    received: u64,
    resent: u64,
    forbidden: u64,
}

/// How often something happened under each reference, the newest of them.
#[derive(Debug, Default)]
struct References {
    counts: BTreeMap<String, u64>,
    order: VecDeque<String>,
}

impl References {
    fn count(&mut self, reference: &str) {
        let count = self.counts.entry(reference.to_owned()).or_default();
        *count += 1;
        if *count > 1 {
            return;
        }
        self.order.push_back(reference.to_owned());
        if self.order.len() > REFERENCES_KEPT {
            if let Some(oldest) = self.order.pop_front() {
                self.counts.remove(&oldest);
            }
        }
    }

    fn report(&self, only: Option<&[String]>) -> Value {
        let Some(only) = only else {
            return json!(self.counts);
        };
        only.iter()
            .filter_map(|reference| Some((reference.clone(), json!(self.counts.get(reference)?))))
            .collect::<Map<String, Value>>()
            .into()
    }
}

#[derive(Debug, Default)]
struct Totals {
    connections_opened: u64,
    connections_open: u64,
    connections_refused: u64,
    sessions_opened: u64,
    sessions_open: u64,
    ended: BTreeMap<&'static str, u64>,
    sessions: VecDeque<SessionEntry>,
    frames_in: BTreeMap<&'static str, u64>,
    frames_out: BTreeMap<&'static str, u64>,
    executed: References,
    applied: References,
    forbidden: BTreeMap<&'static str, u64>,
    violations: BTreeMap<&'static str, u64>,
    unauthenticated: u64,
    unavailable: u64,
    subscriptions: u64,
    held: u64,
    blocked_publications: u64,
    published_rows: u64,
    clocks: u64,
    producers: u64,
    consumers: u64,
    parked_reads: u64,
    outstanding_batches: u64,
    batches: Batches,
}

/// The counters, and a signal at each change.
#[derive(Debug)]
pub struct Counts {
    totals: Mutex<Totals>,
    changed: watch::Sender<u64>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            totals: Mutex::new(Totals::default()),
            changed: watch::Sender::new(0),
        }
    }
}

impl Counts {
    fn change(&self, change: impl FnOnce(&mut Totals)) {
        change(&mut self.totals.lock());
        self.changed
            .send_modify(|version| *version = version.wrapping_add(1));
    }

    pub fn connection_opened(&self) {
        self.change(|totals| {
            totals.connections_opened += 1;
            totals.connections_open += 1;
        });
    }

    pub fn connection_closed(&self) {
        self.change(|totals| totals.connections_open = totals.connections_open.saturating_sub(1));
    }

    pub fn connection_refused(&self) {
        self.change(|totals| totals.connections_refused += 1);
    }

    pub fn session_opened(&self, id: u64, node: &str, user: &str) {
        self.change(|totals| {
            totals.sessions_opened += 1;
            totals.sessions_open += 1;
            if totals.sessions.len() >= SESSIONS_KEPT {
                totals.sessions.pop_front();
            }
            totals.sessions.push_back(SessionEntry {
                id,
                node: node.to_owned(),
                user: user.to_owned(),
                end: None,
            });
        });
    }

    pub fn session_ended(&self, id: u64, end: SessionEnd) {
        self.change(|totals| {
            totals.sessions_open = totals.sessions_open.saturating_sub(1);
            *totals.ended.entry(end.kind()).or_default() += 1;
            if let Some(entry) = totals.sessions.iter_mut().find(|entry| entry.id == id) {
                entry.end = Some(end);
            }
        });
    }

    pub fn frame(&self, direction: Direction, kind: &'static str) {
        self.change(|totals| {
            let frames = match direction {
                Direction::In => &mut totals.frames_in,
                Direction::Out => &mut totals.frames_out,
            };
            *frames.entry(kind).or_default() += 1;
        });
    }

    pub fn executed(&self, reference: &str) {
        self.change(|totals| totals.executed.count(reference));
    }

    /// A statement that a command appended to a transaction was carried out.
    pub fn applied(&self, reference: &str) {
        self.change(|totals| totals.applied.count(reference));
    }

    /// A session asked for what the transaction that it holds forbids.
    pub fn forbidden(&self, what: &'static str) {
        self.change(|totals| *totals.forbidden.entry(what).or_default() += 1);
    }

    /// A session did what no client may, whatever its transaction.
    pub fn violation(&self, what: &'static str) {
        self.change(|totals| *totals.violations.entry(what).or_default() += 1);
    }

    pub fn call_unauthenticated(&self) {
        self.change(|totals| totals.unauthenticated += 1);
    }

    pub fn call_unavailable(&self) {
        self.change(|totals| totals.unavailable += 1);
    }

    pub fn published(&self, rows: u64) {
        self.change(|totals| totals.published_rows = totals.published_rows.saturating_add(rows));
    }

    pub fn subscriptions(&self, open: usize) {
        self.change(|totals| totals.subscriptions = u64::try_from(open).unwrap_or(u64::MAX));
    }

    pub fn clocks(&self, followed: usize) {
        self.change(|totals| totals.clocks = u64::try_from(followed).unwrap_or(u64::MAX));
    }

    pub fn endpoints(&self, producers: usize, consumers: usize) {
        self.change(|totals| {
            totals.producers = u64::try_from(producers).unwrap_or(u64::MAX);
            totals.consumers = u64::try_from(consumers).unwrap_or(u64::MAX);
        });
    }

    /// More or fewer reads wait for a batch.
    pub fn parked_reads(&self, change: i64) {
        self.change(|totals| {
            totals.parked_reads = totals.parked_reads.saturating_add_signed(change);
        });
    }

    /// More or fewer batches wait for their outcome.
    pub fn outstanding(&self, change: i64) {
        self.change(|totals| {
            totals.outstanding_batches = totals.outstanding_batches.saturating_add_signed(change);
        });
    }

    pub fn batch_received(&self, content: &[u8; 32], bytes: usize) {
        self.change(|totals| {
            let batches = &mut totals.batches;
            batches.received += 1;
            let entry = batches.entries.entry(*content).or_default();
            if entry.received == 0 {
                batches.order.push_back(*content);
            } else {
                batches.resent += 1;
                batches.forbidden += u64::from(!entry.may_come_again());
            }
            entry.bytes = bytes;
            entry.received += 1;
            if batches.order.len() > BATCHES_KEPT {
                if let Some(oldest) = batches.order.pop_front() {
                    batches.entries.remove(&oldest);
                }
            }
        });
    }

    pub fn batch_concluded(&self, content: &[u8; 32], disposition: &SubmissionDisposition) {
        self.change(|totals| {
            if let Some(entry) = totals.batches.entries.get_mut(content) {
                entry.outcomes.push(outcome_name(disposition));
            }
        });
    }

    /// Counts a request that waits in the node until told, for as long as the guard lives.
    pub fn hold(&self) -> Gauge<'_> {
        Gauge::new(self, |totals| &mut totals.held)
    }

    /// Counts a publication that waits for a BLOCKING subscription, for as long as the guard lives.
    pub fn block(&self) -> Gauge<'_> {
        Gauge::new(self, |totals| &mut totals.blocked_publications)
    }

    /// All counts; or, when references are named, those with only these and with only the sessions that are open.
    pub fn report(&self, references: Option<&[String]>) -> Value {
        let totals = self.totals.lock();
        let sessions: Vec<Value> = totals
            .sessions
            .iter()
            .filter(|entry| references.is_none() || entry.end.is_none())
            .map(|entry| {
                json!({
                    "id": entry.id,
                    "node": entry.node,
                    "user": entry.user,
                    "ended": entry.end.as_ref().map(SessionEnd::kind),
                    "detail": entry.end.as_ref().map_or(Value::Null, SessionEnd::detail),
                })
            })
            .collect();
        json!({
            "connections": {
                "opened": totals.connections_opened,
                "open": totals.connections_open,
                "refused": totals.connections_refused,
            },
            "calls": { "unauthenticated": totals.unauthenticated, "unavailable": totals.unavailable },
            "sessions": {
                "opened": totals.sessions_opened,
                "open": totals.sessions_open,
                "ended": {
                    "end_stream": totals.ended.get("end_stream").unwrap_or(&0),
                    "reset": totals.ended.get("reset").unwrap_or(&0),
                    "lost": totals.ended.get("lost").unwrap_or(&0),
                    "server": totals.ended.get("server").unwrap_or(&0),
                },
                "list": sessions,
            },
            "frames": { "in": totals.frames_in, "out": totals.frames_out },
            "executed": totals.executed.report(references),
            "applied": totals.applied.report(references),
            "forbidden_in_transaction": totals.forbidden,
            "violations": totals.violations,
            "subscriptions": totals.subscriptions,
            "held": totals.held,
            "blocked_publications": totals.blocked_publications,
            "published_rows": totals.published_rows,
            "clocks": totals.clocks,
            "producers": totals.producers,
            "consumers": totals.consumers,
            "parked_reads": totals.parked_reads,
            "outstanding_batches": totals.outstanding_batches,
            "batches": {
                "received": totals.batches.received,
                "resent": totals.batches.resent,
                "forbidden_resends": totals.batches.forbidden,
                "contents": totals.batches.order.len(),
            },
        })
    }

    /// Each content of a batch in the order of its first receipt, with what became of it.
    pub fn batches(&self) -> Value {
        let totals = self.totals.lock();
        let batches = &totals.batches;
        batches
            .order
            .iter()
            .filter_map(|content| Some((content, batches.entries.get(content)?)))
            .map(|(content, entry)| {
                json!({
                    "content": blake3::Hash::from_bytes(*content).to_hex().as_str(),
                    "bytes": entry.bytes,
                    "received": entry.received,
                    "outcomes": entry.outcomes,
                })
            })
            .collect()
    }

    fn value(&self, subject: &Subject) -> u64 {
        let totals = self.totals.lock();
        match subject {
            Subject::Sessions => totals.sessions_open,
            Subject::SessionsOpened => totals.sessions_opened,
            Subject::SessionsEnded => totals.ended.values().sum(),
            Subject::Connections => totals.connections_open,
            Subject::ConnectionsOpened => totals.connections_opened,
            Subject::ConnectionsRefused => totals.connections_refused,
            Subject::Unauthenticated => totals.unauthenticated,
            Subject::Unavailable => totals.unavailable,
            Subject::Subscriptions => totals.subscriptions,
            Subject::Held => totals.held,
            Subject::BlockedPublications => totals.blocked_publications,
            Subject::Clocks => totals.clocks,
            Subject::Producers => totals.producers,
            Subject::Consumers => totals.consumers,
            Subject::ParkedReads => totals.parked_reads,
            Subject::OutstandingBatches => totals.outstanding_batches,
            Subject::Batches => totals.batches.received,
            Subject::Frames(direction, kind) => {
                let frames = match direction {
                    Direction::In => &totals.frames_in,
                    Direction::Out => &totals.frames_out,
                };
                frames.get(kind.as_str()).copied().unwrap_or(0)
            }
            Subject::Ended(kind) => totals.ended.get(kind.as_str()).copied().unwrap_or(0),
            Subject::SessionOver(id) => {
                let mut sessions = totals.sessions.iter();
                u64::from(sessions.any(|entry| entry.id == *id && entry.end.is_some()))
            }
        }
    }

    /// Returns once every condition holds at one moment. The caller bounds the wait.
    pub async fn wait(&self, conditions: &[Condition]) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if conditions
                .iter()
                .all(|condition| condition.holds(self.value(&condition.subject)))
            {
                return;
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

/// What a test calls an outcome: a refusal, a failure or an uncertainty by its own name.
fn outcome_name(disposition: &SubmissionDisposition) -> &'static str {
    match disposition {
        SubmissionDisposition::SubmissionCompleted => "Completed",
        SubmissionDisposition::SubmissionNotAdmitted(refused) => match refused.refusal {
            SubmissionRefusal::MalformedBatch => "MalformedBatch",
            SubmissionRefusal::UnexpectedMessage => "UnexpectedMessage",
            SubmissionRefusal::CompressedBatch => "CompressedBatch",
            SubmissionRefusal::SchemaMismatch => "SchemaMismatch",
            SubmissionRefusal::NotOneBatch => "NotOneBatch",
            SubmissionRefusal::TooManyRows => "TooManyRows",
            SubmissionRefusal::BatchTooLarge => "BatchTooLarge",
            SubmissionRefusal::InvalidData => "InvalidData",
            SubmissionRefusal::Suspended => "Suspended",
            SubmissionRefusal::Busy => "Busy",
            SubmissionRefusal::Draining => "Draining",
            SubmissionRefusal::ProducerEnded => "ProducerEnded",
            SubmissionRefusal::CreditExceeded => "CreditExceeded",
        },
        SubmissionDisposition::SubmissionFailed(failed) => match failed.failure {
            ProcessingFailure::AckTimedOut => "AckTimedOut",
            ProcessingFailure::Rejected => "Rejected",
        },
        SubmissionDisposition::SubmissionOutcomeUnknown(unknown) => match unknown.cause {
            OutcomeUncertainty::Interrupted => "Interrupted",
            OutcomeUncertainty::OwnerLost => "OwnerLost",
        },
    }
}

/// Keeps one count raised while it lives.
pub struct Gauge<'a> {
    counts: &'a Counts,
    place: fn(&mut Totals) -> &mut u64,
}

impl<'a> Gauge<'a> {
    fn new(counts: &'a Counts, place: fn(&mut Totals) -> &mut u64) -> Self {
        counts.change(|totals| *place(totals) += 1);
        Self { counts, place }
    }
}

impl Drop for Gauge<'_> {
    fn drop(&mut self) {
        self.counts.change(|totals| {
            let count = (self.place)(totals);
            *count = count.saturating_sub(1);
        });
    }
}

/// A number that can be waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Sessions,
    SessionsOpened,
    SessionsEnded,
    Connections,
    ConnectionsOpened,
    ConnectionsRefused,
    Unauthenticated,
    Unavailable,
    Subscriptions,
    Held,
    BlockedPublications,
    Clocks,
    Producers,
    Consumers,
    ParkedReads,
    OutstandingBatches,
    Batches,
    Frames(Direction, String),
    Ended(String),
    /// Whether the session of this number is over.
    SessionOver(u64),
}

/// A number reached, or met exactly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub subject: Subject,
    pub count: u64,
    pub exactly: bool,
}

impl Condition {
    fn holds(&self, value: u64) -> bool {
        if self.exactly {
            value == self.count
        } else {
            value >= self.count
        }
    }

    /// Reads the body of a wait: names of counts, each with a number to reach (0 means exactly none) or
    /// `{"exactly": n}`; `frames` and `ended` hold such counts by kind.
    pub fn parse_all(body: &Map<String, Value>) -> Result<Vec<Self>, String> {
        let mut conditions = Vec::new();
        for (name, value) in body {
            let subject = match name.as_str() {
                "sessions" => Subject::Sessions,
                "sessions_opened" => Subject::SessionsOpened,
                "sessions_ended" => Subject::SessionsEnded,
                "connections" => Subject::Connections,
                "connections_opened" => Subject::ConnectionsOpened,
                "connections_refused" => Subject::ConnectionsRefused,
                "unauthenticated" => Subject::Unauthenticated,
                "unavailable" => Subject::Unavailable,
                "subscriptions" => Subject::Subscriptions,
                "held" => Subject::Held,
                "blocked_publications" => Subject::BlockedPublications,
                "clocks" => Subject::Clocks,
                "producers" => Subject::Producers,
                "consumers" => Subject::Consumers,
                "parked_reads" => Subject::ParkedReads,
                "outstanding_batches" => Subject::OutstandingBatches,
                "batches" => Subject::Batches,
                "frames" => {
                    for (direction, kinds) in object(name, value)? {
                        let direction = match direction.as_str() {
                            "in" => Direction::In,
                            "out" => Direction::Out,
                            other => {
                                return Err(format!("`frames` has `in` and `out`, not `{other}`"))
                            }
                        };
                        for (kind, count) in object("frames", kinds)? {
                            conditions.push(Self::parse(
                                Subject::Frames(direction, kind.clone()),
                                kind,
                                count,
                            )?);
                        }
                    }
                    continue;
                }
                "session_over" => {
                    let id = value
                        .as_u64()
                        .ok_or("`session_over` is the number of a session")?;
                    conditions.push(Self {
                        subject: Subject::SessionOver(id),
                        count: 1,
                        exactly: false,
                    });
                    continue;
                }
                "ended" => {
                    for (kind, count) in object(name, value)? {
                        conditions.push(Self::parse(Subject::Ended(kind.clone()), kind, count)?);
                    }
                    continue;
                }
                other => return Err(format!("`{other}` cannot be waited for")),
            };
            conditions.push(Self::parse(subject, name, value)?);
        }
        if conditions.is_empty() {
            return Err("name at least one count to wait for".to_owned());
        }
        Ok(conditions)
    }

    fn parse(subject: Subject, name: &str, value: &Value) -> Result<Self, String> {
        let complaint = || format!("`{name}` is a count or {{\"exactly\": count}}");
        if let Some(count) = value.as_u64() {
            return Ok(Self {
                subject,
                count,
                exactly: count == 0,
            });
        }
        let count = value
            .get("exactly")
            .and_then(Value::as_u64)
            .ok_or_else(complaint)?;
        Ok(Self {
            subject,
            count,
            exactly: true,
        })
    }
}

fn object<'a>(name: &str, value: &'a Value) -> Result<&'a Map<String, Value>, String> {
    value
        .as_object()
        .ok_or_else(|| format!("`{name}` is an object of counts by kind"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn conditions(body: Value) -> Result<Vec<Condition>, String> {
        Condition::parse_all(body.as_object().unwrap())
    }

    #[test]
    fn the_newest_references_are_counted_however_many_there_were() {
        let counts = Counts::default();
        for number in 0..REFERENCES_KEPT + 10 {
            let reference = format!("{number:08}");
            counts.executed(&reference);
            counts.applied(&reference);
            counts.applied(&reference);
        }
        let newest = format!("{:08}", REFERENCES_KEPT + 9);
        let whole = counts.report(None);
        let some = counts.report(Some(&[newest.clone(), "00000009".to_owned()]));
        for (what, times) in [("executed", 1), ("applied", 2)] {
            let found = whole.get(what).and_then(Value::as_object).unwrap();
            assert_eq!(found.len(), REFERENCES_KEPT);
            assert!(!found.contains_key("00000009"));
            assert_eq!(found.get(&newest).unwrap(), times);
            assert_eq!(some.get(what).unwrap(), &json!({&newest: times}));
        }
    }

    #[test]
    fn counts_of_some_references_list_the_sessions_that_are_open() {
        let counts = Counts::default();
        for id in 1..=3 {
            counts.session_opened(id, "node-1", "somebody");
        }
        counts.session_ended(2, SessionEnd::EndStream);
        let listed = |report: Value| -> Vec<u64> {
            let list = report.pointer("/sessions/list").and_then(Value::as_array);
            list.unwrap()
                .iter()
                .filter_map(|session| session.get("id")?.as_u64())
                .collect()
        };
        assert_eq!(listed(counts.report(None)), [1, 2, 3]);
        assert_eq!(listed(counts.report(Some(&[]))), [1, 3]);
    }

    #[test]
    fn conditions_are_read_or_refused_by_name() {
        assert_eq!(
            conditions(json!({"sessions": 2, "frames": {"in": {"CommandRequest": 1}}}))
                .unwrap()
                .len(),
            2
        );
        assert!(
            conditions(json!({"sessions": 0}))
                .unwrap()
                .first()
                .unwrap()
                .exactly
        );
        assert!(
            conditions(json!({"sessions": {"exactly": 1}}))
                .unwrap()
                .first()
                .unwrap()
                .exactly
        );
        for body in [
            json!({}),
            json!({"moons": 1}),
            json!({"sessions": "two"}),
            json!({"frames": {"up": {}}}),
            json!({"session_over": {"exactly": 1}}),
        ] {
            assert!(conditions(body).is_err());
        }
    }

    // rule: X-7
    #[test]
    fn each_way_a_session_ends_is_counted_apart() {
        let counts = Counts::default();
        for (id, end) in [
            (1, SessionEnd::EndStream),
            (2, SessionEnd::Reset(8)),
            (3, SessionEnd::Lost("gone".to_owned())),
            (4, SessionEnd::Server("cut".to_owned())),
        ] {
            counts.session_opened(id, "node-1", "default");
            counts.session_ended(id, end);
        }
        let report = counts.report(None);
        let ended = report.pointer("/sessions/ended").unwrap();
        assert_eq!(
            ended,
            &json!({"end_stream": 1, "reset": 1, "lost": 1, "server": 1})
        );
        assert_eq!(report.pointer("/sessions/open").unwrap(), 0);
    }

    #[tokio::test]
    async fn a_wait_ends_when_its_count_is_reached() {
        let counts = std::sync::Arc::new(Counts::default());
        let waiting = tokio::spawn({
            let counts = counts.clone();
            async move { counts.wait(&conditions(json!({"held": 1})).unwrap()).await }
        });
        tokio::task::yield_now().await;
        let guard = counts.hold();
        waiting.await.unwrap();
        drop(guard);
        counts.wait(&conditions(json!({"held": 0})).unwrap()).await;
    }
}
