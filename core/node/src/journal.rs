//! What passed, in order: every frame with what it is about, the faults that a test had happen at one, and what became of
//! deliveries. Must not decide anything; whoever causes something tells it.

use std::collections::VecDeque;

use nervix_wire::types::{ClientRequest, EmitterBatchDecision, EmitterSettlement};
use parking_lot::Mutex;
use serde_json::{json, Map, Value};

use crate::counts::Direction;
use crate::faults::When;

/// Entries are remembered up to this number, the oldest forgotten first.
const ENTRIES_KEPT: usize = 65_536;

/// What tells a request from others of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    Nothing,
    /// The domain, the transaction, the endpoint or the subscription it is about.
    Name(String),
    Command {
        reference: String,
        position: Option<u64>,
    },
}

impl About {
    pub fn request(request: &ClientRequest) -> Self {
        let name = match request {
            ClientRequest::CommandRequest(command) => {
                return Self::Command {
                    reference: command.execution_reference.clone(),
                    position: command.expected_transaction_position,
                }
            }
            ClientRequest::AttachTransactionRequest(attach) => &attach.transaction_id,
            ClientRequest::SubscribeRequest(subscribe) => &subscribe.statement,
            ClientRequest::UnsubscribeRequest(unsubscribe) => &unsubscribe.subscription,
            ClientRequest::AttachDomainClockRequest(attach) => &attach.domain,
            ClientRequest::DetachDomainClockRequest(detach) => &detach.domain,
            ClientRequest::OpenIngestorRequest(open) => &open.ingestor,
            ClientRequest::OpenEmitterRequest(open) => &open.emitter,
            _ => return Self::Nothing,
        };
        Self::Name(name.clone())
    }
}

/// A fault that a test had happen at a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    Cut,
    LeaderMoved,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A frame was received and understood, or written.
    Frame {
        direction: Direction,
        kind: &'static str,
        about: About,
    },
    Fault {
        made: Made,
        direction: Direction,
        kind: &'static str,
        when: When,
    },
    /// A batch was given to a read of a consumer.
    Delivered {
        identity: [u8; 16],
        reference: [u8; 16],
    },
    Settled {
        reference: [u8; 16],
        decision: EmitterBatchDecision,
        settlement: EmitterSettlement,
    },
}

#[derive(Debug, Default)]
struct Entries {
    /// How many entries were forgotten, which is the number of the oldest one kept.
    forgotten: u64,
    kept: VecDeque<(u64, Event)>,
}

#[derive(Debug, Default)]
pub struct Journal {
    entries: Mutex<Entries>,
}

impl Journal {
    /// Something happened on a session.
    pub fn note(&self, session: u64, event: Event) {
        let mut entries = self.entries.lock();
        if entries.kept.len() >= ENTRIES_KEPT {
            entries.kept.pop_front();
            entries.forgotten = entries.forgotten.saturating_add(1);
        }
        entries.kept.push_back((session, event));
    }

    /// The entries from this number on, and the number that the next one will have.
    pub fn report(&self, since: u64) -> Value {
        let entries = self.entries.lock();
        let skipped =
            usize::try_from(since.saturating_sub(entries.forgotten)).unwrap_or(usize::MAX);
        let mut number = entries.forgotten;
        let mut reported = Vec::new();
        for (at, (session, event)) in entries.kept.iter().enumerate() {
            if at >= skipped {
                reported.push(described(number, *session, event));
            }
            number = number.saturating_add(1);
        }
        json!({ "next": number, "entries": reported })
    }
}

fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::In => "in",
        Direction::Out => "out",
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn described(number: u64, session: u64, event: &Event) -> Value {
    let mut entry = Map::new();
    let mut put = |name: &str, value: Value| {
        entry.insert(name.to_owned(), value);
    };
    put("number", json!(number));
    put("session", json!(session));
    match event {
        Event::Frame {
            direction,
            kind,
            about,
        } => {
            put("what", json!("frame"));
            put("direction", json!(direction_name(*direction)));
            put("kind", json!(kind));
            match about {
                About::Nothing => {}
                About::Name(name) => put("name", json!(name)),
                About::Command {
                    reference,
                    position,
                } => {
                    put("reference", json!(reference));
                    put("position", json!(position));
                }
            }
        }
        Event::Fault {
            made,
            direction,
            kind,
            when,
        } => {
            let what = match made {
                Made::Cut => "cut",
                Made::LeaderMoved => "leader",
            };
            let when = match when {
                When::Before => "before",
                When::After => "after",
            };
            put("what", json!(what));
            put("direction", json!(direction_name(*direction)));
            put("kind", json!(kind));
            put("when", json!(when));
        }
        Event::Delivered {
            identity,
            reference,
        } => {
            put("what", json!("delivered"));
            put("identity", json!(hex(identity)));
            put("reference", json!(hex(reference)));
        }
        Event::Settled {
            reference,
            decision,
            settlement,
        } => {
            put("what", json!("settled"));
            put("reference", json!(hex(reference)));
            put("decision", json!(format!("{decision:?}")));
            put("settlement", json!(format!("{settlement:?}")));
        }
    }
    Value::Object(entry)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    fn frame(kind: &'static str) -> Event {
        Event::Frame {
            direction: Direction::Out,
            kind,
            about: About::Nothing,
        }
    }

    #[test]
    fn entries_are_reported_from_a_number_on() {
        let journal = Journal::default();
        for kind in ["LeadershipObserved", "DomainsObserved", "CommandOutcome"] {
            journal.note(4, frame(kind));
        }
        let report = journal.report(2);
        assert_eq!(report["next"], 3);
        assert_eq!(
            report["entries"],
            json!([{
                "number": 2, "session": 4, "what": "frame", "direction": "out", "kind": "CommandOutcome"
            }])
        );
        assert_eq!(journal.report(7)["entries"], json!([]));
    }

    #[test]
    fn the_oldest_entries_are_forgotten_and_keep_their_numbers() {
        let journal = Journal::default();
        for _ in 0..=ENTRIES_KEPT {
            journal.note(1, frame("DomainsObserved"));
        }
        let report = journal.report(0);
        assert_eq!(report["next"], ENTRIES_KEPT + 1);
        let entries = report["entries"].as_array().unwrap();
        assert_eq!(entries.len(), ENTRIES_KEPT);
        assert_eq!(entries.first().unwrap()["number"], 1);
    }
}
