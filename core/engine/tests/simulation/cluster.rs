//! A model of a cluster: who leads, what was executed under which reference, and each session's subscriptions.
//!
//! Owns what a server answers. Knows nothing of the network or of the engine, and takes every decision from the generator it
//! is given.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nervix_engine::ConnId;
use nervix_wire::types::*;

use crate::clocks::Clock;
use crate::common::frames::*;
use crate::common::watch::subscription_name;
use crate::common::Rng;
use crate::endpoints::{Attachment, Endpoints};
use crate::transactions::Transaction;

/// How often the model misbehaves, in percent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odds {
    /// A reply never comes.
    pub silent: f64,
    /// An admitted command is answered with OutcomeUnknown.
    pub unknown: f64,
    /// A request is refused as not admitted.
    pub refused: f64,
    /// An admitted command's reply is refused as too large.
    pub too_large: f64,
    /// A subscription is not opened.
    pub not_opened: f64,
    /// A reply comes in parts.
    pub parts: f64,
}

pub struct Node {
    pub up: bool,
    /// Takes what it is sent and answers nothing.
    pub mute: bool,
    /// Who it believes leads.
    pub view: Option<usize>,
}

/// What is known of a command that was admitted.
#[derive(Debug)]
pub struct Record {
    pub request: CommandRequest,
    pub effects: u32,
    /// Its outcome, whoever asks.
    pub body: ReplyBody,
    pub done_at: u64,
    /// The transaction that it began.
    pub begun: Option<String>,
}

impl Record {
    pub fn outcome(&self) -> &CommandOutcome {
        match &self.body {
            ReplyBody::CommandOutcome(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }

    pub fn failed(&self) -> bool {
        self.outcome().disposition == CommandDisposition::RequestFailed
    }
}

/// One generation of a subscription on one session.
#[derive(Debug)]
pub struct Stream {
    pub name: String,
    pub generation: u64,
    pub conn: ConnId,
    /// The request that opened it.
    pub request_id: u64,
    /// The place of the next row.
    pub place: u64,
    pub ended: bool,
}

#[derive(Debug)]
pub struct Session {
    pub node: usize,
    /// The stream of each name; an ended one stays until its name is used again.
    pub subs: BTreeMap<String, usize>,
    /// What was received and not served.
    pub waiting: BTreeMap<u64, ClientRequest>,
    /// What was served and not yet answered.
    pub serving: BTreeMap<u64, bool>,
    pub lane_free: u64,
    /// What concerns endpoints is taken in the order it came.
    pub endpoint_free: u64,
    /// The domains whose clocks it follows.
    pub clocks: BTreeSet<String>,
    /// The clocks whose attaches are not answered yet, by request.
    pub attaching: BTreeMap<u64, String>,
    /// The transaction it is bound to; who holds it is with the transaction.
    pub transaction: Option<String>,
    pub endpoints: BTreeMap<u64, Attachment>,
}

impl Session {
    pub fn new(node: usize, now: u64) -> Self {
        Self {
            node,
            subs: BTreeMap::new(),
            waiting: BTreeMap::new(),
            serving: BTreeMap::new(),
            lane_free: now,
            endpoint_free: now,
            clocks: BTreeSet::new(),
            attaching: BTreeMap::new(),
            transaction: None,
            endpoints: BTreeMap::new(),
        }
    }
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    pub leader: Option<usize>,
    pub records: HashMap<String, Record>,
    pub sessions: BTreeMap<ConnId, Session>,
    pub streams: Vec<Stream>,
    pub by_generation: HashMap<(String, u64), usize>,
    next_generation: u64,
    pub clocks: BTreeMap<String, Clock>,
    pub transactions: BTreeMap<String, Transaction>,
    /// The transaction that each command's client held when it first sent it.
    pub meant: HashMap<String, Option<String>>,
    pub endpoints: Endpoints,
}

/// What a served request is answered with, and when.
pub struct Answer {
    pub body: Option<ReplyBody>,
    pub delay: u64,
}

impl Answer {
    pub fn now(body: ReplyBody) -> Self {
        Self {
            body: Some(body),
            delay: 0,
        }
    }
}

pub fn uri(node: usize) -> String {
    format!("http://n{node}:{}", 1000 + node)
}

impl Cluster {
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes: (0..nodes)
                .map(|_| Node {
                    up: true,
                    mute: false,
                    view: Some(0),
                })
                .collect(),
            leader: Some(0),
            records: HashMap::new(),
            sessions: BTreeMap::new(),
            streams: Vec::new(),
            by_generation: HashMap::new(),
            next_generation: 1,
            clocks: Clock::all(),
            transactions: BTreeMap::new(),
            meant: HashMap::new(),
            endpoints: Endpoints::default(),
        }
    }

    pub fn leadership(&self, node: usize) -> Leadership {
        match self.nodes[node].view {
            None => Leadership::LeaderUnknown,
            Some(leader) if leader == node => leads_itself(),
            Some(leader) => led_by(&uri(leader)),
        }
    }

    pub fn leads(&self, node: usize) -> bool {
        self.leader == Some(node) && self.nodes[node].view == Some(node)
    }

    /// Serves one request that a session received.
    pub fn serve(
        &mut self,
        rng: &mut Rng,
        odds: &Odds,
        now: u64,
        conn: ConnId,
        id: u64,
        request: ClientRequest,
    ) -> Answer {
        if rng.chance(odds.refused) {
            let refusal = match request {
                ClientRequest::SuggestRequest(_) | ClientRequest::ListDomainsRequest
                    if rng.chance(50.0) =>
                {
                    RequestRejection::ServerBusy
                }
                _ => RequestRejection::TooManyRequestsInFlight,
            };
            return Answer::now(rejected(refusal));
        }
        match request {
            ClientRequest::CommandRequest(command) => self.command(rng, odds, now, conn, command),
            ClientRequest::AttachTransactionRequest(attach) => {
                self.attach_transaction(rng, odds, conn, &attach.transaction_id)
            }
            ClientRequest::AttachDomainClockRequest(attach) => {
                self.attach_clock(rng, odds, conn, &attach.domain)
            }
            ClientRequest::DetachDomainClockRequest(detach) => {
                self.detach_clock(rng, odds, conn, &detach.domain)
            }
            ClientRequest::SubscribeRequest(subscribe) => {
                assert_eq!(subscribe.subscription_type, SubscriptionType::Row);
                let name = subscription_name(&subscribe.statement);
                let session = self.sessions.get_mut(&conn).unwrap();
                let held = session
                    .subs
                    .get(&name)
                    .is_some_and(|stream| !self.streams[*stream].ended);
                if held {
                    return Answer::now(not_opened("it is open already"));
                }
                if rng.chance(odds.not_opened) {
                    return Answer::now(not_opened("the relay is not ready"));
                }
                self.next_generation += rng.within(1, 5);
                let generation = self.next_generation;
                session.subs.insert(name.clone(), self.streams.len());
                self.by_generation
                    .insert((name.clone(), generation), self.streams.len());
                self.streams.push(Stream {
                    name: name.clone(),
                    generation,
                    conn,
                    request_id: id,
                    place: 0,
                    ended: false,
                });
                let mut body = opened(&name, generation, numbers());
                if let ReplyBody::SubscribeOutcome(SubscribeOutcome {
                    disposition: SubscribeDisposition::SubscriptionOpened(opened),
                    ..
                }) = &mut body
                {
                    opened.domain = subscribe.domain;
                }
                Answer::now(body)
            }
            ClientRequest::UnsubscribeRequest(request) => {
                let session = self.sessions.get_mut(&conn).unwrap();
                match session.subs.remove(&request.subscription) {
                    Some(stream) => {
                        self.streams[stream].ended = true;
                        let generation = self.streams[stream].generation;
                        Answer::now(deleted(&request.subscription, generation))
                    }
                    None => Answer::now(not_deleted("there is no such subscription")),
                }
            }
            ClientRequest::SuggestRequest(suggest) => {
                Answer::now(suggestions(&[&format!("{}!", suggest.input)]))
            }
            ClientRequest::ListDomainsRequest => Answer::now(domain_list(&["d0", "d1"])),
            other => panic!("a request this client has no reason to send: {other:?}"),
        }
    }

    /// The next frame of a stream, and how many places it takes.
    pub fn publish(&mut self, rng: &mut Rng, stream: usize) -> Option<Vec<u8>> {
        let held = &mut self.streams[stream];
        if held.ended {
            return None;
        }
        let (name, generation, place) = (held.name.clone(), held.generation, held.place);
        Some(match rng.within(0, 100) {
            0..=84 => {
                let count = rng.within(1, 4);
                held.place += count;
                rows(&name, generation, stream as u64, place..place + count)
            }
            85..=90 => {
                let count = rng.within(1, 9);
                held.place += count;
                delivery_lost(&name, generation, count)
            }
            91..=96 => {
                let count = rng.within(1, 9);
                held.place += count;
                rows_skipped(&name, generation, count)
            }
            // Nobody holds this one.
            97..=98 => rows(&name, generation + 1_000_000, stream as u64, 0..1),
            _ => {
                held.ended = true;
                ended(&name, generation, SubscriptionEndReason::RelayChanged)
            }
        })
    }
}
