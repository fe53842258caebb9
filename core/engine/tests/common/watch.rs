//! Watches everything that goes into an engine and comes out of it, and refuses what no client may ever do, whatever the
//! test around it is about.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use nervix_engine::{ConnId, Input, Output};
use nervix_wire::types::*;
use nervix_wire::{decode_client, decode_server, Frame, Reassembler};

use super::SEC;

/// The most connections an engine that knows a few servers may open in any one second, however they fail.
const OPENS_A_SECOND: usize = 60;

#[derive(Debug, Default)]
pub struct Watched {
    pub origin: String,
    /// The server said something, and the engine heard it.
    pub spoke: bool,
    /// The engine reset it, or was told that it is over.
    pub over: bool,
    pub reset: bool,
    used: BTreeSet<u64>,
    /// The requests whose terminal reply the engine has not had.
    pub flights: BTreeMap<u64, ClientRequest>,
    /// Subscriptions asked for on it.
    pub asked: BTreeSet<String>,
    /// What had to be opened again before any command: what the host kept when the server first spoke.
    owed: BTreeSet<String>,
    /// Clocks asked for on it, and those that had to be.
    asked_clocks: BTreeSet<String>,
    owed_clocks: BTreeSet<String>,
    /// The transaction that it holds, as far as its client was told.
    pub bound: Option<String>,
    /// Requests that may leave it holding one, and are not answered.
    binding: BTreeSet<u64>,
    parts: BTreeMap<u64, Reassembler>,
    pub commands: usize,
}

/// Which parts of a command its host chose.
#[derive(Debug, Default, Clone, Copy)]
pub struct GivenParts {
    pub position: bool,
    pub preview: bool,
}

#[derive(Debug, Default)]
pub struct Watch {
    pub conns: BTreeMap<ConnId, Watched>,
    /// What a reference was first sent with (E-2).
    commands: HashMap<String, CommandRequest>,
    /// Subscriptions a session that opens now owes its host.
    pub kept: BTreeSet<String>,
    /// And clocks.
    pub kept_clocks: BTreeSet<String>,
    /// Clocks that some session held already when they were attached, so that no state needs to follow.
    pub already_attached: BTreeSet<String>,
    /// The accepted operations of each transaction, as the newest status that arrived says.
    positions: HashMap<String, u64>,
    /// The domain of each (L-3).
    domains: HashMap<String, String>,
    /// What the newest admission of each would commit.
    previews: HashMap<String, TransactionPreviewIdentity>,
    /// Those that the host was told are another's.
    taken: BTreeSet<String>,
    /// What the host prepared a command with, and answers for itself.
    pub given: HashMap<String, GivenParts>,
    /// The transaction that each command was first sent in.
    pub meant: HashMap<String, Option<String>>,
    opens: VecDeque<u64>,
    pub opened: usize,
    /// Servers beyond a few, each of which may be tried a few times a second.
    pub many_servers: usize,
    /// Whether a session that has no room may be asked whether its server is there.
    pub asks_without_room: bool,
}

/// The name in `CREATE SUBSCRIPTION name …`.
pub fn subscription_name(statement: &str) -> String {
    let mut words = statement.split_whitespace();
    assert_eq!(words.next(), Some("CREATE"), "{statement}");
    assert_eq!(words.next(), Some("SUBSCRIPTION"), "{statement}");
    words.next().unwrap().trim_end_matches(';').to_owned()
}

/// The first word of a statement.
pub fn verb(query: &str) -> String {
    let word: String = query
        .trim_start()
        .chars()
        .take_while(char::is_ascii_alphabetic)
        .collect();
    word.to_uppercase()
}

impl Watched {
    /// Whether what L-3, P-1 and EC-1 forbid beside a transaction may be sent.
    fn allows(&self, message: &ClientMessage) {
        assert!(
            self.bound.is_none() && self.binding.is_empty(),
            "{message:?} while the session holds {:?} or is about to (L-3, P-1, EC-1, D-5)",
            self.bound
        );
    }

    /// Everything that had to go ahead on this session was sent (D-5).
    fn is_restored(&self, message: &ClientMessage) {
        let late: Vec<_> = self
            .owed
            .difference(&self.asked)
            .chain(self.owed_clocks.difference(&self.asked_clocks))
            .collect();
        assert!(
            late.is_empty(),
            "{message:?} before {late:?} were opened again (D-5)"
        );
    }
}

impl Watch {
    /// Takes note of an output; the message, when it is one.
    pub fn output(&mut self, now: u64, output: &Output) -> Option<ClientMessage> {
        match output {
            Output::Open { conn, origin } => {
                let watched = Watched {
                    origin: origin.to_string(),
                    ..Watched::default()
                };
                assert!(
                    self.conns.insert(*conn, watched).is_none(),
                    "{conn:?} opened twice"
                );
                self.opened += 1;
                self.opens.push_back(now);
                while self.opens.front().is_some_and(|at| at + SEC <= now) {
                    self.opens.pop_front();
                }
                assert!(
                    self.opens.len() <= OPENS_A_SECOND + 5 * self.many_servers,
                    "a storm: {} connections within a second (D-2)",
                    self.opens.len()
                );
                None
            }
            Output::Reset { conn } => {
                let watched = self.conns.get_mut(conn).expect("a reset of an opened one");
                assert!(!watched.reset, "{conn:?} reset twice");
                watched.reset = true;
                watched.over = true;
                None
            }
            Output::Send { conn, frame } => {
                let message =
                    decode_client(&Frame::copy_from(frame)).expect("a frame of the protocol");
                self.sent(*conn, &message);
                Some(message)
            }
            Output::Done { .. } => None,
        }
    }

    fn sent(&mut self, conn: ConnId, message: &ClientMessage) {
        let watched = self.conns.get_mut(&conn).expect("sent on an opened one");
        assert!(
            watched.spoke,
            "sent on {conn:?} before the server spoke: {message:?}"
        );
        assert!(
            !watched.over,
            "sent on {conn:?} after its end (D-6): {message:?}"
        );
        let id = message.request_id;
        assert!(id != 0, "request identity zero (C-1)");
        assert!(watched.used.insert(id), "{id} used twice (C-1, C-5)");
        match &message.request {
            ClientRequest::CommandRequest(command) => {
                watched.is_restored(message);
                watched.commands += 1;
                let reference = &command.execution_reference;
                assert_uuid_v7(reference);
                if verb(&command.query) == "BEGIN" {
                    watched.binding.insert(id);
                }
                if !self.commands.contains_key(reference) {
                    let held = watched.bound.clone();
                    let given = self.given.get(reference).copied().unwrap_or_default();
                    if let Some(position) = command
                        .expected_transaction_position
                        .filter(|_| !given.position)
                    {
                        let held = held.as_ref().expect("a position outside a transaction");
                        assert_eq!(
                            Some(&position),
                            self.positions.get(held),
                            "not the newest position (X-2)"
                        );
                        assert_eq!(
                            command.domain.as_ref(),
                            self.domains.get(held),
                            "another domain than the transaction's (L-3)"
                        );
                    }
                    let preview = command.expected_preview.as_ref();
                    if let Some(preview) = preview.filter(|_| !given.preview) {
                        assert_eq!(verb(&command.query), "COMMIT");
                        let held = held.as_ref().expect("a preview outside a transaction");
                        assert_eq!(Some(preview), self.previews.get(held), "(X-4)");
                        assert_eq!(Some(&preview.position), self.positions.get(held));
                    }
                    self.meant.insert(reference.clone(), held);
                }
                let first = self
                    .commands
                    .entry(reference.clone())
                    .or_insert_with(|| command.clone());
                assert_eq!(first, command, "a repetition that differs (E-2)");
            }
            ClientRequest::SubscribeRequest(subscribe) => {
                watched.allows(message);
                watched
                    .asked
                    .insert(subscription_name(&subscribe.statement));
                assert!(!subscribe.domain.is_empty());
            }
            ClientRequest::CancelRequest(cancel) => {
                let target = cancel.target_request_id;
                assert!(
                    watched.used.contains(&target),
                    "a cancellation of nothing (C-9)"
                );
                assert!(
                    !matches!(
                        watched.flights.get(&target),
                        Some(ClientRequest::SubmitBatchRequest(_))
                    ),
                    "a cancellation of a batch (P-7)"
                );
            }
            ClientRequest::AttachDomainClockRequest(attach) => {
                watched.allows(message);
                watched.asked_clocks.insert(attach.domain.clone());
            }
            ClientRequest::UnsubscribeRequest(_) | ClientRequest::DetachDomainClockRequest(_) => {
                watched.allows(message);
            }
            ClientRequest::OpenIngestorRequest(_) | ClientRequest::OpenEmitterRequest(_) => {
                watched.allows(message);
                watched.is_restored(message);
            }
            ClientRequest::AttachTransactionRequest(attach) => {
                watched.is_restored(message);
                assert!(
                    !self.taken.contains(&attach.transaction_id),
                    "attached back although it was taken over (E-6)"
                );
                watched.binding.insert(id);
            }
            ClientRequest::ReadEmitterBatchRequest(read) => {
                let parked = watched.flights.values().any(|flight| {
                    matches!(flight, ClientRequest::ReadEmitterBatchRequest(other) if other == read)
                });
                assert!(!parked, "two reads of one consumer (EC-2)");
            }
            ClientRequest::ChoiceLookupRequest(_)
            | ClientRequest::InspectTransactionRequest(_)
            | ClientRequest::SelectDomainRequest(_) => {
                panic!("{message:?}, whose reply nobody handles (CF-1, Q-1)")
            }
            ClientRequest::SuggestRequest(_)
            | ClientRequest::ListDomainsRequest
            | ClientRequest::SubmitBatchRequest(_)
            | ClientRequest::CloseIngestorRequest(_)
            | ClientRequest::SettleEmitterBatchRequest(_)
            | ClientRequest::CloseEmitterRequest(_) => {}
        }
        watched.flights.insert(id, message.request.clone());
        // Batches are bound by their credit.
        let counted = watched
            .flights
            .values()
            .filter(|flight| !matches!(flight, ClientRequest::SubmitBatchRequest(_)))
            .count()
            .saturating_sub(usize::from(self.asks_without_room));
        assert!(counted <= 64, "more than 64 requests in flight (C-6)");
    }

    /// Takes note of what the engine is about to be told.
    pub fn input(&mut self, input: &Input) {
        match input {
            Input::Frame { conn, frame } => {
                let Some(watched) = self.conns.get_mut(conn) else {
                    return;
                };
                let Ok(message) = decode_server(frame) else {
                    return;
                };
                if !watched.spoke && !watched.over {
                    watched.spoke = true;
                    watched.owed = self.kept.clone();
                    watched.owed_clocks = self.kept_clocks.clone();
                }
                let ServerBody::Reply(reply) = message.body else {
                    return;
                };
                let body = match reply.body {
                    ReplyBody::TransferPart(part) => {
                        let id = reply.request_id;
                        let parts = watched
                            .parts
                            .entry(id)
                            .or_insert_with(|| Reassembler::new(id));
                        match parts.push(id, &part) {
                            Ok(None) => return,
                            Ok(Some(ServerMessage {
                                body: ServerBody::Reply(whole),
                            })) => Some(whole.body),
                            _ => None,
                        }
                    }
                    body => Some(body),
                };
                watched.binding.remove(&reply.request_id);
                let request = watched.flights.remove(&reply.request_id);
                if let (Some(body), false) = (body, watched.over) {
                    self.answered(*conn, request, body);
                }
            }
            Input::Message { .. } => panic!("the tests bring frames"),
            Input::Closed { conn, .. } => {
                if let Some(watched) = self.conns.get_mut(conn) {
                    watched.over = true;
                }
            }
        }
    }

    /// What an answer says about transactions.
    fn answered(&mut self, conn: ConnId, request: Option<ClientRequest>, body: ReplyBody) {
        let watched = self.conns.get_mut(&conn).unwrap();
        let open = |status: &TransactionStatus| {
            matches!(
                status.state,
                TransactionState::TransactionOpen | TransactionState::TransactionCommitting
            )
        };
        match (request, body) {
            (
                Some(ClientRequest::AttachTransactionRequest(_)),
                ReplyBody::AttachOutcome(AttachOutcome {
                    disposition: AttachDisposition::TransactionAttached(attached),
                    ..
                }),
            ) => {
                let status = attached.transaction;
                watched.bound = Some(status.transaction_id.clone());
                self.told(status, false);
            }
            (
                Some(ClientRequest::AttachTransactionRequest(_)),
                ReplyBody::AttachOutcome(AttachOutcome { .. }),
            ) => watched.bound = None,
            (
                Some(ClientRequest::AttachDomainClockRequest(attach)),
                ReplyBody::DomainClockAttachOutcome(outcome),
            ) => match outcome.disposition {
                DomainClockAttachDisposition::DomainNotFound(_) => {
                    self.disowned_clock(&attach.domain);
                }
                DomainClockAttachDisposition::DomainClockAlreadyAttached(_) => {
                    self.already_attached.insert(attach.domain);
                }
                _ => {}
            },
            (Some(ClientRequest::CommandRequest(command)), ReplyBody::CommandOutcome(outcome)) => {
                let done = matches!(outcome.disposition, CommandDisposition::CommandCompleted(_));
                match (&*verb(&command.query), &outcome.disposition) {
                    ("COMMIT" | "REVERT", _) if done => watched.bound = None,
                    (
                        _,
                        CommandDisposition::TransactionTakenOver(_)
                        | CommandDisposition::TransactionDetached(_),
                    ) => watched.bound = None,
                    ("BEGIN", _) if done => {
                        let status = outcome.transaction.as_ref().filter(|status| open(status));
                        if let Some(status) = status {
                            watched.bound = Some(status.transaction_id.clone());
                        }
                    }
                    _ => {}
                }
                let unbound = matches!(
                    outcome.disposition,
                    CommandDisposition::TransactionTakenOver(_)
                        | CommandDisposition::TransactionDetached(_)
                ) || outcome.origin == OutcomeOrigin::Recovered;
                // What the session holds is told with every outcome that is not a record.
                let held = outcome.transaction.as_ref().filter(|status| open(status));
                if let (Some(held), None, false) = (held, &watched.bound, unbound) {
                    watched.bound = Some(held.transaction_id.clone());
                }
                if let CommandDisposition::TransactionTakenOver(taken) = outcome.disposition {
                    self.taken.insert(taken.transaction_id);
                }
                if let Some(status) = outcome.transaction {
                    if !open(&status) && watched.bound.as_ref() == Some(&status.transaction_id) {
                        watched.bound = None;
                    }
                    let recovered = outcome.origin == OutcomeOrigin::Recovered;
                    self.told(status, recovered);
                }
                let bound = self
                    .conns
                    .get(&conn)
                    .and_then(|watched| watched.bound.clone());
                if let Some(inspected) = outcome.inspection {
                    let id = inspected.transaction.transaction_id;
                    let position = inspected.report.position;
                    if bound.as_ref() == Some(&id) && self.positions.get(&id) == Some(&position) {
                        let basis = inspected.report.planning_basis;
                        let preview = TransactionPreviewIdentity {
                            transaction_id: id.clone(),
                            position,
                            planning_basis: basis,
                        };
                        self.previews.insert(id, preview);
                    }
                }
                if let Some(admission) = outcome.transaction_admission {
                    // A session that is not bound reports no status; the admission says how many there are, too.
                    let id = admission.preview.transaction_id.clone();
                    let position = self.positions.entry(id.clone()).or_default();
                    *position = admission.preview.position.max(*position);
                    if admission.preview.position == *position {
                        self.previews.insert(id, admission.preview);
                    }
                }
            }
            _ => {}
        }
    }

    /// A status of a transaction arrived. A recovered one is that of its time.
    fn told(&mut self, status: TransactionStatus, recovered: bool) {
        let id = status.transaction_id;
        self.domains.insert(id.clone(), status.domain);
        let known = self.positions.entry(id).or_default();
        if !recovered || status.accepted_operations > *known {
            *known = status.accepted_operations;
        }
    }

    /// The host no longer wants this clock, or the server ended it.
    pub fn disowned_clock(&mut self, domain: &str) {
        self.kept_clocks.remove(domain);
        for watched in self.conns.values_mut() {
            watched.owed_clocks.remove(domain);
        }
    }

    /// The host no longer wants this subscription, or the server ended it.
    pub fn disowned(&mut self, name: &str) {
        self.kept.remove(name);
        for watched in self.conns.values_mut() {
            watched.owed.remove(name);
        }
    }

    /// Whether a detach of this clock is unanswered on a session that is not over.
    pub fn is_detaching(&self, domain: &str) -> bool {
        self.conns.values().any(|watched| {
            !watched.over
                && watched.flights.values().any(|flight| {
                    matches!(flight, ClientRequest::DetachDomainClockRequest(detach) if detach.domain == domain)
                })
        })
    }

    /// What a reference was sent with, if it was sent.
    pub fn sent_command(&self, reference: &str) -> Option<&CommandRequest> {
        self.commands.get(reference)
    }
}

/// E-1: a UUIDv7 in its usual spelling.
pub fn assert_uuid_v7(reference: &str) {
    let bytes = reference.as_bytes();
    assert_eq!(bytes.len(), 36, "{reference}");
    for (index, byte) in bytes.iter().enumerate() {
        match index {
            8 | 13 | 18 | 23 => assert_eq!(*byte, b'-', "{reference}"),
            14 => assert_eq!(*byte, b'7', "{reference}"),
            19 => assert!(matches!(byte, b'8' | b'9' | b'a' | b'b'), "{reference}"),
            _ => assert!(byte.is_ascii_hexdigit(), "{reference}"),
        }
    }
}
