//! Simulated time, a network and its faults around an engine, a host and a cluster.

use std::collections::{BTreeMap, HashMap, VecDeque};

use nervix_engine::{Cause, Config, ConnId, Engine, Input, Now, Origin, Output};
use nervix_wire::types::*;
use nervix_wire::{decode_client, decode_server, encode_server_reply_parts, Frame};

use crate::cluster::{uri, Cluster, Odds, Session};
use crate::common::frames::*;
use crate::common::watch::Watch;
use crate::common::{Rng, EPOCH, MS, SEC};
use crate::host::Host;
use crate::workers::Workers;

/// Lines of a trace that are kept.
const KEPT_LINES: usize = 3000;

/// How much happened, so that a run says what it was worth.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub simulated_seconds: u64,
    pub connections: u64,
    pub frames_to_nodes: u64,
    pub frames_to_engine: u64,
    pub calls: u64,
    pub outcomes: u64,
    pub recovered: u64,
    pub uncertain: u64,
    pub stopped: u64,
    pub events: u64,
    pub interruptions: u64,
    pub overflows: u64,
    pub refused_restorations: u64,
    pub endings: u64,
    pub clock_events: u64,
    pub ticks: u64,
    pub clock_gaps: u64,
    pub clock_ends: u64,
    pub begun: u64,
    pub appended: u64,
    pub committed: u64,
    pub refused_commands: u64,
    pub opened: u64,
    pub submitted: u64,
    pub retried: u64,
    pub resolved: u64,
    pub deliveries: u64,
    pub settled: u64,
    pub gaps: u64,
    pub over: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.simulated_seconds += other.simulated_seconds;
        self.connections += other.connections;
        self.frames_to_nodes += other.frames_to_nodes;
        self.frames_to_engine += other.frames_to_engine;
        self.calls += other.calls;
        self.outcomes += other.outcomes;
        self.recovered += other.recovered;
        self.uncertain += other.uncertain;
        self.stopped += other.stopped;
        self.events += other.events;
        self.interruptions += other.interruptions;
        self.overflows += other.overflows;
        self.refused_restorations += other.refused_restorations;
        self.endings += other.endings;
        self.clock_events += other.clock_events;
        self.ticks += other.ticks;
        self.clock_gaps += other.clock_gaps;
        self.clock_ends += other.clock_ends;
        self.begun += other.begun;
        self.appended += other.appended;
        self.committed += other.committed;
        self.refused_commands += other.refused_commands;
        self.opened += other.opened;
        self.submitted += other.submitted;
        self.retried += other.retried;
        self.resolved += other.resolved;
        self.deliveries += other.deliveries;
        self.settled += other.settled;
        self.gaps += other.gaps;
        self.over += other.over;
    }
}

/// What a host of this run does beside commands and subscriptions.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    pub clocks: bool,
    pub endpoints: bool,
    pub transactions: bool,
}

pub enum Happening {
    Greet(ConnId),
    ToNode(ConnId, Vec<u8>),
    ToEngine(ConnId, Vec<u8>),
    /// The node puts frames on the wire.
    Put(ConnId, Vec<Vec<u8>>),
    Serve(ConnId, u64),
    Answered(ConnId, u64, Option<Box<ReplyBody>>),
    /// The node learns that a connection is over.
    Lost(ConnId),
    Closed(ConnId, Cause),
    /// A batch of a producer has its outcome.
    Outcome(ConnId, u64, u64, Box<ReplyBody>),
    Clocks,
    Endpoints,
    Transactions,
    Publish,
    Fault,
    Act,
    Wake,
}

struct Link {
    node: usize,
    /// Frames toward the engine arrive no earlier than this, so that they stay in order.
    to_engine: u64,
    to_node: u64,
    /// Frames until it is cut, either way.
    cut_to_engine: Option<u64>,
    cut_to_node: Option<u64>,
    /// Nothing passes any more, and nobody is told.
    black: bool,
    /// Over: what is still under way is lost.
    dead: bool,
    /// The engine was told, or reset it.
    finished: bool,
}

pub struct World {
    pub seed: u64,
    verbose: bool,
    pub trace: VecDeque<String>,
    pub rng: Rng,
    pub now: u64,
    sequence: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    pub engine: Engine,
    pub watch: Watch,
    pub cluster: Cluster,
    links: BTreeMap<ConnId, Link>,
    pub host: Host,
    pub workers: Workers,
    pub mix: Mix,
    /// When each request was sent, counted over all of them.
    pub order: HashMap<(ConnId, u64), u64>,
    pub sent: u64,
    /// The newest opening of each name whose end the engine was told.
    pub ended: HashMap<String, u64>,
    pub odds: Odds,
    pub calm: bool,
    latency: u64,
    wake_at: Option<u64>,
    pub request_timeout: u64,
    pub retry_timeout: u64,
    /// How often a connection is cut at all, in percent.
    cuts: f64,
    pub counts: Counts,
}

impl World {
    pub fn new(seed: u64, verbose: bool) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x5851_F42D_4C95_7F2D) ^ 0x1405_7B7E_F767_814F);
        let nodes = rng.within(1, 4) as usize;
        let mut seeds: Vec<usize> = (0..nodes).filter(|_| rng.chance(50.0)).collect();
        if seeds.is_empty() {
            seeds.push(rng.index(nodes));
        }
        let request_timeout = rng.within(SEC, 12 * SEC);
        let retry_timeout = rng.within(3 * SEC, 60 * SEC);
        let engine = Engine::new(Config {
            seeds: seeds
                .iter()
                .map(|node| Origin::parse(&uri(*node)).unwrap())
                .collect(),
            domain: Some("d0".into()),
            request_timeout,
            retry_timeout,
            seed: rng.word(),
        });
        let rough = rng.chance(80.0);
        let scale = if rough { 1.0 } else { 0.1 };
        let mix = Mix {
            clocks: rng.chance(60.0),
            endpoints: rng.chance(60.0),
            transactions: rng.chance(60.0),
        };
        Self {
            seed,
            verbose,
            trace: VecDeque::new(),
            latency: *[MS, 5 * MS, 50 * MS, 300 * MS].get(rng.index(4)).unwrap(),
            cuts: 70.0 * scale,
            odds: Odds {
                silent: 2.0 * scale,
                unknown: 10.0 * scale,
                refused: 4.0 * scale,
                too_large: 2.0 * scale,
                not_opened: 25.0 * scale,
                parts: 20.0,
            },
            rng,
            now: SEC,
            sequence: 0,
            agenda: BTreeMap::new(),
            engine,
            watch: Watch::default(),
            cluster: Cluster::new(nodes),
            links: BTreeMap::new(),
            host: Host::default(),
            workers: Workers::default(),
            mix,
            order: HashMap::new(),
            sent: 0,
            ended: HashMap::new(),
            calm: false,
            wake_at: None,
            request_timeout,
            retry_timeout,
            counts: Counts::default(),
        }
    }

    pub fn time(&self) -> Now {
        Now {
            mono: self.now,
            unix_millis: EPOCH + self.now / MS,
        }
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if !self.verbose {
            return;
        }
        if self.trace.len() >= KEPT_LINES {
            self.trace.pop_front();
        }
        let line = format!("{:>12.6} {}", self.now as f64 / SEC as f64, line());
        self.trace.push_back(line);
    }

    pub fn at(&mut self, time: u64, what: Happening) {
        self.sequence += 1;
        self.agenda.insert((time, self.sequence), what);
    }

    pub fn run(&mut self) -> Counts {
        let span = self.rng.within(10, 60) * SEC;
        self.connect();
        self.at(self.now, Happening::Publish);
        self.at(self.now + 10 * MS, Happening::Act);
        self.at(self.now + 20 * MS, Happening::Clocks);
        self.at(self.now + 30 * MS, Happening::Endpoints);
        self.at(self.now + 40 * MS, Happening::Transactions);
        self.at(self.now + 200 * MS, Happening::Fault);
        self.until(self.now + span);
        self.note(|| "---- the faults cease".into());
        self.calm = true;
        self.odds = Odds {
            parts: self.odds.parts,
            ..Odds::default()
        };
        for node in &mut self.cluster.nodes {
            (node.up, node.mute) = (true, false);
        }
        let leader = self.rng.index(self.cluster.nodes.len());
        self.elect(Some(leader), true);
        for link in self.links.values_mut() {
            (link.cut_to_engine, link.cut_to_node) = (None, None);
        }
        self.settle();
        self.counts.simulated_seconds = self.now / SEC;
        self.counts.connections = self.watch.opened as u64;
        self.counts.clone()
    }

    /// Lets everything happen that is due up to a time.
    pub fn until(&mut self, end: u64) {
        while let Some((&(time, sequence), _)) = self.agenda.first_key_value() {
            if time > end {
                break;
            }
            let what = self.agenda.remove(&(time, sequence)).unwrap();
            self.now = self.now.max(time);
            self.happen(what);
        }
        self.now = self.now.max(end);
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Greet(conn) => self.greet(conn),
            Happening::ToNode(conn, frame) => self.arrive_at_node(conn, &frame),
            Happening::ToEngine(conn, frame) => self.arrive_at_engine(conn, &frame),
            Happening::Put(conn, frames) => {
                for frame in frames {
                    self.put(conn, frame);
                }
            }
            Happening::Serve(conn, id) => self.serve(conn, id),
            Happening::Answered(conn, id, body) => self.answered(conn, id, body.map(|body| *body)),
            Happening::Lost(conn) => self.lost_by_node(conn),
            Happening::Closed(conn, cause) => self.closed(conn, cause),
            Happening::Outcome(conn, wire, id, body) => {
                self.outcome_of_batch(conn, wire, id, *body);
            }
            Happening::Clocks => self.move_clocks(),
            Happening::Endpoints => self.move_endpoints(),
            Happening::Transactions => {
                if !self.calm {
                    self.cluster.disturb_transaction(&mut self.rng);
                    let wait = self.rng.within(100 * MS, 3 * SEC);
                    self.at(self.now + wait, Happening::Transactions);
                }
            }
            Happening::Publish => self.publish(),
            Happening::Fault => self.fault(),
            Happening::Act => {
                if !self.calm {
                    self.act();
                    let wait = self.rng.within(MS, 400 * MS);
                    self.at(self.now + wait, Happening::Act);
                }
            }
            Happening::Wake => {
                self.wake_at = None;
                self.engine.wake(self.time());
                self.pump();
                let due = self.engine.wakeup().is_some_and(|at| at <= self.now);
                assert!(!due, "woken in vain: a wake-up that stays due");
            }
        }
    }

    /// Does what the engine asks for. To be called after every call of the engine.
    pub fn pump(&mut self) {
        while let Some(output) = self.engine.output() {
            let message = self.watch.output(self.now, &output);
            match output {
                Output::Open { conn, origin } => self.open(conn, &origin.to_string()),
                Output::Send { conn, frame } => {
                    let message = message.unwrap();
                    self.note(|| format!("{conn:?} > {message:?}"));
                    self.sent += 1;
                    self.endpoint_sent(conn, message.request_id, &message.request);
                    if let ClientRequest::AttachDomainClockRequest(attach) = &message.request {
                        let domain = &attach.domain;
                        assert!(
                            self.runs_attach(domain) || !self.watch.is_detaching(domain),
                            "an attach of its own while a detach is unanswered (K-1)"
                        );
                    }
                    if let ClientRequest::CommandRequest(command) = &message.request {
                        let reference = &command.execution_reference;
                        let meant = self.watch.meant[reference].clone();
                        self.cluster.meant.insert(reference.clone(), meant);
                    }
                    self.order.insert((conn, message.request_id), self.sent);
                    self.counts.frames_to_nodes += 1;
                    let delay = self.delay();
                    let link = self.links.get_mut(&conn).unwrap();
                    link.to_node = link.to_node.max(self.now + delay);
                    let at = link.to_node;
                    if !link.dead {
                        self.at(at, Happening::ToNode(conn, frame));
                    }
                }
                Output::Reset { conn } => {
                    self.note(|| format!("{conn:?} reset"));
                    let delay = self.delay();
                    if let Some(link) = self.links.get_mut(&conn) {
                        // A runner may hand over what it read before it saw the reset.
                        link.dead = self.rng.chance(70.0);
                        link.finished = true;
                        self.at(self.now + delay, Happening::Lost(conn));
                    }
                }
                Output::Done { call, result } => self.done(call, result),
            }
        }
        let Some(wake) = self.engine.wakeup() else {
            return;
        };
        // Timers are late more often than not.
        let late = if self.rng.chance(50.0) {
            0
        } else {
            self.rng.within(0, 2 * MS)
        };
        let wake = wake.max(self.now + 1) + late;
        if self.wake_at.is_none_or(|at| wake < at) {
            self.wake_at = Some(wake);
            self.at(wake, Happening::Wake);
        }
    }

    fn delay(&mut self) -> u64 {
        self.rng.within(self.latency / 20 + 1, self.latency + 2)
    }

    fn open(&mut self, conn: ConnId, origin: &str) {
        let node = (0..self.cluster.nodes.len()).find(|node| uri(*node) == origin);
        let node = node.expect("an address that no seed and no server named (D-2)");
        self.note(|| format!("{conn:?} open {origin}"));
        let mut link = Link {
            node,
            to_engine: self.now,
            to_node: self.now,
            cut_to_engine: None,
            cut_to_node: None,
            black: false,
            dead: false,
            finished: false,
        };
        let delay = self.delay();
        let mut refusal = None;
        if !self.cluster.nodes[node].up {
            refusal = Some(Cause::Unreachable("connection refused".into()));
        } else if !self.calm {
            if self.rng.chance(self.cuts) {
                if self.rng.chance(50.0) {
                    link.cut_to_engine = Some(self.rng.within(0, 60));
                } else {
                    link.cut_to_node = Some(self.rng.within(0, 40));
                }
            }
            match self.rng.within(0, 100) {
                0..=3 => refusal = Some(Cause::Unreachable("no route".into())),
                4..=6 => {
                    refusal = Some(Cause::Status {
                        code: 14,
                        message: "cannot verify now".into(),
                    });
                }
                // A server that accepts and says nothing.
                7 => link.black = true,
                _ => {}
            }
        }
        let black = link.black;
        self.links.insert(conn, link);
        match refusal {
            Some(cause) => self.at(self.now + delay, Happening::Closed(conn, cause)),
            None if !black => self.at(self.now + delay, Happening::Greet(conn)),
            None => {}
        }
    }

    fn greet(&mut self, conn: ConnId) {
        let node = self.links[&conn].node;
        if self.links[&conn].dead {
            return;
        }
        let session = Session::new(node, self.now);
        self.cluster.sessions.insert(conn, session);
        let first = leadership(self.cluster.leadership(node));
        let second = domains(&["d0", "d1"]);
        let second = if self.seed.is_multiple_of(2) {
            nervix_wire::encode_server(&second).unwrap()
        } else {
            nervix_wire::encode_server_alternate_domain_info(&second).unwrap()
        };
        self.put(conn, first);
        self.put(conn, second);
    }

    /// A node sends a frame.
    pub fn put(&mut self, conn: ConnId, frame: Vec<u8>) {
        let delay = self.delay();
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        // What was swallowed once leaves a hole, so nothing may follow it.
        link.black |= self.cluster.nodes[link.node].mute;
        if link.dead || link.black {
            return;
        }
        link.to_engine = link.to_engine.max(self.now + delay);
        let at = link.to_engine;
        self.at(at, Happening::ToEngine(conn, frame));
    }

    fn arrive_at_engine(&mut self, conn: ConnId, frame: &[u8]) {
        let link = self.links.get_mut(&conn).unwrap();
        if link.dead || link.black {
            return;
        }
        if let Some(left) = &mut link.cut_to_engine {
            if *left == 0 {
                // Here too: this one is lost, so those behind it are.
                link.black = true;
                self.cut(conn);
                return;
            }
            *left -= 1;
        }
        self.counts.frames_to_engine += 1;
        let input = Input::Frame {
            conn,
            frame: Frame::copy_from(frame),
        };
        let message = decode_server(&Frame::copy_from(frame));
        let finished = self.links[&conn].finished;
        self.note(|| match &message {
            Ok(ServerMessage {
                body: ServerBody::SubscriptionRows(rows),
            }) => format!(
                "{conn:?} < {} rows of {} {}: {:?}",
                rows.row_count(),
                rows.subscription.name,
                rows.subscription.generation,
                rows.clone().to_values().unwrap().batch.rows[0].cells[1].value
            ),
            Ok(message) => format!("{conn:?} < {message:?}"),
            Err(problem) => format!("{conn:?} < garbage: {problem}"),
        });
        if let Ok(ServerMessage {
            body: ServerBody::SubscriptionEnded(ended),
        }) = &message
        {
            if !finished {
                let name = ended.subscription.name.clone();
                self.watch.disowned(&name);
                let key = (name.clone(), ended.subscription.generation);
                if let Some(stream) = self.cluster.by_generation.get(&key) {
                    let stream = &self.cluster.streams[*stream];
                    let order = self.order[&(stream.conn, stream.request_id)];
                    let last = self.ended.entry(name).or_default();
                    *last = order.max(*last);
                }
            }
        }
        if let (Ok(message), false) = (&message, finished) {
            self.endpoint_told(conn, message);
            self.clock_told(message);
        }
        self.watch.input(&input);
        self.engine.input(self.time(), input);
        self.pump();
    }

    fn arrive_at_node(&mut self, conn: ConnId, frame: &[u8]) {
        let link = self.links.get_mut(&conn).unwrap();
        link.black |= self.cluster.nodes[link.node].mute;
        if link.dead || link.black {
            return;
        }
        if let Some(left) = &mut link.cut_to_node {
            if *left == 0 {
                self.cut(conn);
                return;
            }
            *left -= 1;
        }
        let message = decode_client(&Frame::copy_from(frame)).unwrap();
        let service = self.rng.within(MS / 10, 10 * MS);
        let Some(session) = self.cluster.sessions.get_mut(&conn) else {
            return;
        };
        let id = message.request_id;
        if let ClientRequest::CancelRequest(cancel) = &message.request {
            let target = cancel.target_request_id;
            let mut frames = Vec::new();
            let state = if session.waiting.remove(&target).is_some() {
                frames.push(reply(target, cancelled(CancellationStage::BeforeAdmission)));
                CancelState::Requested
            } else if let Some(answered) = session.serving.get_mut(&target) {
                if !*answered && self.rng.chance(50.0) {
                    *answered = true;
                    frames.push(reply(target, cancelled(CancellationStage::AfterAdmission)));
                    // An attach answered so attaches nothing (K-1).
                    if let Some(domain) = session.attaching.remove(&target) {
                        session.clocks.remove(&domain);
                    }
                }
                CancelState::Requested
            } else {
                CancelState::NotInFlight
            };
            frames.push(reply(id, cancel_outcome(target, state)));
            if self.rng.chance(50.0) {
                frames.reverse();
            }
            for frame in frames {
                self.put(conn, frame);
            }
            return;
        }
        let ordered = is_ordered(&message.request);
        let at = if ordered {
            session.lane_free = session.lane_free.max(self.now) + service;
            session.lane_free
        } else if is_of_endpoint(&message.request) {
            // A batch that came before a close is one that the close waits for.
            session.endpoint_free = session.endpoint_free.max(self.now + service);
            session.endpoint_free
        } else {
            self.now + service
        };
        session.waiting.insert(id, message.request);
        self.at(at, Happening::Serve(conn, id));
    }

    /// A domain's clock is followed no more by the server's word.
    fn clock_told(&mut self, message: &ServerMessage) {
        if let ServerBody::DomainClockAttachmentEnded(ended) = &message.body {
            self.watch.disowned_clock(&ended.domain);
        }
    }

    fn serve(&mut self, conn: ConnId, id: u64) {
        let Some(session) = self.cluster.sessions.get_mut(&conn) else {
            return;
        };
        let Some(request) = session.waiting.remove(&id) else {
            return;
        };
        if self.serve_endpoint(conn, id, &request) {
            return;
        }
        session_of(&mut self.cluster, conn)
            .serving
            .insert(id, false);
        let attaches = match &request {
            ClientRequest::AttachDomainClockRequest(attach) => Some(attach.domain.clone()),
            _ => None,
        };
        let answer = self
            .cluster
            .serve(&mut self.rng, &self.odds, self.now, conn, id, request);
        if let (Some(domain), Some(ReplyBody::DomainClockAttachOutcome(outcome))) =
            (attaches, &answer.body)
        {
            if matches!(
                outcome.disposition,
                DomainClockAttachDisposition::DomainClockAttached(_)
            ) {
                session_of(&mut self.cluster, conn)
                    .attaching
                    .insert(id, domain);
            }
        }
        if answer.delay > 0 {
            let session = self.cluster.sessions.get_mut(&conn).unwrap();
            session.lane_free = session.lane_free.max(self.now + answer.delay);
            self.at(
                self.now + answer.delay,
                Happening::Answered(conn, id, answer.body.map(Box::new)),
            );
        } else {
            self.answered(conn, id, answer.body);
        }
    }

    fn answered(&mut self, conn: ConnId, id: u64, body: Option<ReplyBody>) {
        let Some(session) = self.cluster.sessions.get_mut(&conn) else {
            return;
        };
        // A cancellation may have been its reply.
        if session.serving.remove(&id) != Some(false) {
            return;
        }
        let Some(body) = body.filter(|_| !self.rng.chance(self.odds.silent)) else {
            self.note(|| format!("{conn:?} nobody answers {id}"));
            return;
        };
        let is_opening = matches!(&body, ReplyBody::SubscribeOutcome(outcome)
            if matches!(outcome.disposition, SubscribeDisposition::SubscriptionOpened(_)));
        let attached = session_of(&mut self.cluster, conn).attaching.remove(&id);
        let name = match &body {
            ReplyBody::SubscribeOutcome(SubscribeOutcome {
                disposition: SubscribeDisposition::SubscriptionOpened(opened),
                ..
            }) => opened.subscription.name.clone(),
            _ => String::new(),
        };
        if self.rng.chance(self.odds.parts) {
            let size = self.rng.within(20, 200) as usize;
            let parts = encode_server_reply_parts(&reply_message(id, body), size).unwrap();
            // Rows must not overtake the reply that opens their subscription, so those parts go out at once.
            let spread = if is_opening || attached.is_some() {
                0
            } else {
                20 * MS
            };
            let mut at = self.now;
            for part in parts {
                at += self.rng.within(0, spread + 1);
                self.at(at, Happening::Put(conn, vec![part]));
            }
        } else {
            self.at(self.now, Happening::Put(conn, vec![reply(id, body)]));
        }
        if let Some(domain) = attached {
            self.first_tick(conn, &domain);
        }
        if is_opening {
            // Rows follow the reply immediately (S-2).
            let stream = self.cluster.sessions[&conn].subs.get(&name).copied();
            if let Some(stream) = stream.filter(|_| self.rng.chance(50.0)) {
                if let Some(frame) = self.cluster.publish(&mut self.rng, stream) {
                    self.at(self.now, Happening::Put(conn, vec![frame]));
                }
            }
        }
    }

    /// The network loses a connection.
    pub fn cut(&mut self, conn: ConnId) {
        let delay = self.delay();
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        if link.dead || link.finished {
            return;
        }
        let cause = match self.rng.within(0, 20) {
            0 => Cause::Status {
                code: 13,
                message: "internal".into(),
            },
            1 => Cause::Status {
                code: 14,
                message: "unavailable".into(),
            },
            2 => Cause::Violation("not a frame".into()),
            _ => Cause::Lost("reset by peer".into()),
        };
        let at = if self.rng.chance(50.0) {
            link.dead = true;
            self.now + delay
        } else {
            link.to_engine = link.to_engine.max(self.now) + 1;
            link.to_engine
        };
        self.note(|| format!("{conn:?} cut"));
        self.lost_by_node(conn);
        self.at(at, Happening::Closed(conn, cause));
    }

    fn closed(&mut self, conn: ConnId, cause: Cause) {
        let link = self.links.get_mut(&conn).unwrap();
        link.dead = true;
        if link.finished && self.rng.chance(50.0) {
            return;
        }
        link.finished = true;
        self.note(|| format!("{conn:?} closed: {cause:?}"));
        let input = Input::Closed { conn, cause };
        self.watch.input(&input);
        self.engine.input(self.time(), input);
        self.pump();
    }

    fn lost_by_node(&mut self, conn: ConnId) {
        let Some(session) = self.cluster.sessions.get_mut(&conn) else {
            return;
        };
        // What the node had received it may still do, and nobody hears of it.
        let waiting = std::mem::take(&mut session.waiting);
        for (id, request) in waiting {
            if !self.rng.chance(50.0) {
                continue;
            }
            match &request {
                ClientRequest::SubmitBatchRequest(submit) => self.late_batch(conn, submit),
                ClientRequest::SettleEmitterBatchRequest(settle) => {
                    self.settle_batch(conn, settle);
                }
                request if is_of_endpoint(request) => {}
                _ => {
                    let _ =
                        self.cluster
                            .serve(&mut self.rng, &self.odds, self.now, conn, id, request);
                }
            }
        }
        self.cluster.release_endpoints(conn);
        self.cluster.unbind(conn);
        self.cluster.sessions.remove(&conn);
        for name in ["e0", "e1"] {
            self.serve_reads(name);
        }
        for stream in &mut self.cluster.streams {
            stream.ended |= stream.conn == conn;
        }
    }

    fn publish(&mut self) {
        let wait = self.rng.within(MS, 300 * MS);
        self.at(self.now + wait, Happening::Publish);
        if self.calm {
            return;
        }
        let live: Vec<usize> = (0..self.cluster.streams.len())
            .filter(|stream| !self.cluster.streams[*stream].ended)
            .collect();
        if live.is_empty() {
            return;
        }
        let stream = live[self.rng.index(live.len())];
        let count = if self.rng.chance(1.5) {
            self.rng.within(100, 300)
        } else {
            self.rng.within(1, 4)
        };
        let conn = self.cluster.streams[stream].conn;
        for _ in 0..count {
            if let Some(frame) = self.cluster.publish(&mut self.rng, stream) {
                // Never ahead of the reply that opened it.
                self.at(self.now, Happening::Put(conn, vec![frame]));
            }
        }
    }

    /// Another node leads, or none; every node hears of it now or later.
    fn elect(&mut self, leader: Option<usize>, everywhere: bool) {
        self.note(|| format!("leader {leader:?}"));
        self.cluster.leader = leader;
        for node in 0..self.cluster.nodes.len() {
            if everywhere || self.rng.chance(70.0) {
                self.cluster.nodes[node].view = leader;
                let news = leadership(self.cluster.leadership(node));
                let conns: Vec<_> = self
                    .cluster
                    .sessions
                    .iter()
                    .filter(|(_, session)| session.node == node)
                    .map(|(conn, _)| *conn)
                    .collect();
                for conn in conns {
                    self.put(conn, news.clone());
                }
            }
        }
    }

    fn fault(&mut self) {
        if self.calm {
            return;
        }
        let wait = self.rng.within(50 * MS, 4 * SEC);
        self.at(self.now + wait, Happening::Fault);
        let nodes = self.cluster.nodes.len();
        let node = self.rng.index(nodes);
        let conns: Vec<_> = self.cluster.sessions.keys().copied().collect();
        let of_node: Vec<_> = self
            .cluster
            .sessions
            .iter()
            .filter(|(_, session)| session.node == node)
            .map(|(conn, _)| *conn)
            .collect();
        match self.rng.within(0, 13) {
            0 | 1 => {
                let leader = self.rng.index(nodes);
                self.elect(Some(leader), false);
            }
            2 => self.elect(None, false),
            3 => {
                self.note(|| format!("node {node} down"));
                self.cluster.nodes[node].up = false;
                for conn in of_node {
                    self.cut(conn);
                }
            }
            4..=6 => {
                for node in &mut self.cluster.nodes {
                    (node.up, node.mute) = (true, false);
                }
                let leader = self.rng.index(nodes);
                self.elect(Some(leader), true);
            }
            7 => {
                self.note(|| format!("node {node} mute"));
                self.cluster.nodes[node].mute = true;
            }
            8 if !conns.is_empty() => {
                let conn = conns[self.rng.index(conns.len())];
                self.note(|| format!("{conn:?} black"));
                self.links.get_mut(&conn).unwrap().black = true;
            }
            9 if !conns.is_empty() => {
                let conn = conns[self.rng.index(conns.len())];
                self.put(conn, b"no frame of the protocol".to_vec());
            }
            10 if !conns.is_empty() => {
                let conn = conns[self.rng.index(conns.len())];
                let reason = match self.rng.within(0, 3) {
                    0 => SessionEndReason::ServerShuttingDown,
                    1 => SessionEndReason::LeaderRedirect(LeaderRedirect {
                        leader: Some(endpoints("leader", Some(&uri(node)))),
                    }),
                    _ => SessionEndReason::ProtocolViolated(ProtocolViolated {
                        message: "the model says so".into(),
                    }),
                };
                self.put(conn, ending(reason));
                let delay = self.rng.within(0, 100 * MS);
                self.at(self.now + delay, Happening::Lost(conn));
                let end = self.now + delay + 2 * self.latency;
                self.at(end, Happening::Closed(conn, Cause::Lost("ended".into())));
            }
            11 if !conns.is_empty() => {
                let conn = conns[self.rng.index(conns.len())];
                self.put(conn, notice("look out"));
                let stray = self.rng.within(1, 1_000_000) + (1 << 40);
                self.put(conn, reply(stray, suggestions(&["nobody asked"])));
            }
            _ => {
                if let Some(conn) = conns.first() {
                    self.cut(*conn);
                }
            }
        }
    }
}

fn session_of(cluster: &mut Cluster, conn: ConnId) -> &mut Session {
    cluster.sessions.get_mut(&conn).unwrap()
}

fn is_of_endpoint(request: &ClientRequest) -> bool {
    matches!(
        request,
        ClientRequest::OpenIngestorRequest(_)
            | ClientRequest::SubmitBatchRequest(_)
            | ClientRequest::CloseIngestorRequest(_)
            | ClientRequest::OpenEmitterRequest(_)
            | ClientRequest::ReadEmitterBatchRequest(_)
            | ClientRequest::SettleEmitterBatchRequest(_)
            | ClientRequest::CloseEmitterRequest(_)
    )
}

/// Whether the ordered lane serves it.
fn is_ordered(request: &ClientRequest) -> bool {
    !is_of_endpoint(request)
        && !matches!(
            request,
            ClientRequest::SuggestRequest(_) | ClientRequest::ListDomainsRequest
        )
}
