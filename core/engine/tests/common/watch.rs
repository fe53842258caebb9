//! Watches everything that goes into an engine and comes out of it, and refuses what no client may ever do, whatever the
//! test around it is about.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use nervix_engine::{ConnId, Input, Output};
use nervix_wire::types::*;
use nervix_wire::{decode_client, decode_server, Frame};

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
    pub commands: usize,
}

#[derive(Debug, Default)]
pub struct Watch {
    pub conns: BTreeMap<ConnId, Watched>,
    /// What a reference was first sent with (E-2).
    commands: HashMap<String, CommandRequest>,
    /// Subscriptions a session that opens now owes its host.
    pub kept: BTreeSet<String>,
    opens: VecDeque<u64>,
    pub opened: usize,
    /// Servers beyond a few, each of which may be tried a few times a second.
    pub many_servers: usize,
}

/// The name in `CREATE SUBSCRIPTION name …`.
pub fn subscription_name(statement: &str) -> String {
    let mut words = statement.split_whitespace();
    assert_eq!(words.next(), Some("CREATE"), "{statement}");
    assert_eq!(words.next(), Some("SUBSCRIPTION"), "{statement}");
    words.next().unwrap().trim_end_matches(';').to_owned()
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
                let late: Vec<_> = watched.owed.difference(&watched.asked).collect();
                assert!(
                    late.is_empty(),
                    "a command before {late:?} were opened again (D-5)"
                );
                watched.commands += 1;
                let reference = &command.execution_reference;
                assert_uuid_v7(reference);
                let first = self
                    .commands
                    .entry(reference.clone())
                    .or_insert_with(|| command.clone());
                assert_eq!(first, command, "a repetition that differs (E-2)");
            }
            ClientRequest::SubscribeRequest(subscribe) => {
                watched
                    .asked
                    .insert(subscription_name(&subscribe.statement));
                assert!(!subscribe.domain.is_empty());
            }
            ClientRequest::CancelRequest(cancel) => assert!(
                watched.used.contains(&cancel.target_request_id),
                "a cancellation of nothing (C-9)"
            ),
            _ => {}
        }
        watched.flights.insert(id, message.request.clone());
        assert!(
            watched.flights.len() <= 64,
            "more than 64 requests in flight (C-6)"
        );
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
                }
                if let ServerBody::Reply(reply) = message.body {
                    let terminal = match &reply.body {
                        ReplyBody::TransferPart(part) => {
                            part.offset + part.chunk.len() as u64 >= part.total_bytes
                        }
                        _ => true,
                    };
                    if terminal {
                        watched.flights.remove(&reply.request_id);
                    }
                }
            }
            Input::Closed { conn, .. } => {
                if let Some(watched) = self.conns.get_mut(conn) {
                    watched.over = true;
                }
            }
        }
    }

    /// The host no longer wants this subscription, or the server ended it.
    pub fn disowned(&mut self, name: &str) {
        self.kept.remove(name);
        for watched in self.conns.values_mut() {
            watched.owed.remove(name);
        }
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
