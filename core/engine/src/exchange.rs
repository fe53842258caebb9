//! One exchange with a server: its requests in flight and their identities (C-1 to C-6, F-7).
//!
//! Owns correlation. Knows nothing of what a reply means.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nervix_wire::types::{ClientMessage, ClientRequest, Reply, ReplyBody, ServerBody};
use nervix_wire::{EncodeError, Reassembler, Violation, TRANSFER_LIMIT};

use crate::api::{CallId, ConnId, EndpointId, ExecutionId, Role};
use crate::origin::Origin;
use crate::subscriptions::SubId;

/// Requests in flight that a server promises to admit (C-6).
const IN_FLIGHT: usize = 64;

/// Bytes of replies that are not whole yet, together: several of the transfer limit, so that no server that means well meets it.
const ASSEMBLING: usize = 4 * TRANSFER_LIMIT;

/// Who asked, and so what a reply is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    Command(ExecutionId),
    Domains(ExecutionId),
    Subscribe(ExecutionId),
    Unsubscribe(ExecutionId, SubId),
    /// Opens a kept subscription again.
    Reopen(SubId),
    /// Deletes a subscription whose reader was too slow.
    Drop(SubId),
    Suggest(CallId),
    Cancel,
    /// Asks for anything at all, to see whether the server still answers.
    Probe,
    AttachClock(ExecutionId),
    DetachClock(ExecutionId),
    /// Attaches a followed clock again.
    Reattach(Arc<str>),
    AttachTransaction,
    Open(CallId, Role),
    /// Opens an endpoint again.
    Restore(EndpointId, Role),
    Submit(EndpointId, u64),
    Read(EndpointId),
    Settle(CallId),
    Close(EndpointId, Role),
    /// Releases what was opened for nobody, by the identity of its open.
    Release(u64, Role),
}

impl Asked {
    /// The command it belongs to.
    pub(crate) fn execution(&self) -> Option<ExecutionId> {
        match self {
            Self::Command(execution)
            | Self::Domains(execution)
            | Self::Subscribe(execution)
            | Self::Unsubscribe(execution, _)
            | Self::AttachClock(execution)
            | Self::DetachClock(execution) => Some(*execution),
            _ => None,
        }
    }

    /// Whether a call of the host asked, and not the session for itself.
    fn of_the_host(&self) -> bool {
        !matches!(
            self,
            Self::Reopen(_)
                | Self::Drop(_)
                | Self::Cancel
                | Self::Probe
                | Self::Reattach(_)
                | Self::AttachTransaction
                | Self::Restore(..)
                | Self::Release(..)
        )
    }

    /// Whether its answer waits for others, so that no request timeout ends it.
    fn may_take_any_time(&self) -> bool {
        matches!(
            self,
            Self::Submit(..) | Self::Read(_) | Self::Close(_, Role::Producer)
        )
    }

    /// Whether it counts among the requests in flight; submissions go by credit.
    fn counts(&self) -> bool {
        !matches!(self, Self::Submit(..))
    }
}

#[derive(Debug)]
struct Pending {
    asked: Asked,
    sent: u64,
    parts: Option<Reassembler>,
}

#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) conn: ConnId,
    pub(crate) origin: Origin,
    /// When it became a session.
    pub(crate) since: u64,
    /// Something that the host asked was answered on it.
    pub(crate) of_use: bool,
    /// When a frame last arrived.
    pub(crate) heard: u64,
    last_id: u64,
    /// A request found no identity left.
    spent: bool,
    /// Another exchange took over, and some requests were given up.
    left: bool,
    pending: BTreeMap<u64, Pending>,
    /// Bytes of their replies that are not whole yet.
    assembling: usize,
    /// Those that were given up and that the server still counts as in flight (C-6).
    given_up: BTreeSet<u64>,
}

/// Why a request was not written.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// Wait until one in flight is answered.
    Full,
    /// It is no legal frame.
    Refused(EncodeError),
}

impl Exchange {
    pub(crate) fn new(conn: ConnId, origin: Origin, now: u64) -> Self {
        Self {
            conn,
            origin,
            since: now,
            of_use: false,
            heard: now,
            last_id: 0,
            spent: false,
            left: false,
            pending: BTreeMap::new(),
            assembling: 0,
            given_up: BTreeSet::new(),
        }
    }

    /// Registers a request and gives its frame; the frame is sent after this (C-2).
    pub(crate) fn register(
        &mut self,
        asked: Asked,
        request: ClientRequest,
        now: u64,
    ) -> Result<(u64, Vec<u8>), Unsent> {
        // Where nothing in flight has a time to be answered in, only asking tells whether the server is there; that it has no
        // room is an answer.
        let only_way = asked == Asked::Probe && self.oldest().is_none();
        if asked.counts() && !self.has_room() && !only_way {
            return Err(Unsent::Full);
        }
        // 2^64 requests do not fit into the lifetime of a machine, but the identity must not wrap (C-1).
        let Some(id) = self.last_id.checked_add(1) else {
            self.spent = true;
            return Err(Unsent::Full);
        };
        let message = ClientMessage {
            request_id: id,
            request,
        };
        let frame = nervix_wire::encode_client(&message).map_err(Unsent::Refused)?;
        self.last_id = id;
        self.pending.insert(
            id,
            Pending {
                asked,
                sent: now,
                parts: None,
            },
        );
        Ok((id, frame))
    }

    /// Whether it can take no request any more, so that another session has to (C-1).
    pub(crate) fn is_spent(&self) -> bool {
        self.spent
    }

    /// Has the next request take this identity.
    #[cfg(test)]
    pub(crate) fn begin_at(&mut self, id: u64) {
        self.last_id = id.saturating_sub(1);
    }

    pub(crate) fn has_room(&self) -> bool {
        let counted = self
            .pending
            .values()
            .filter(|pending| pending.asked.counts())
            .count();
        counted.saturating_add(self.given_up.len()) < IN_FLIGHT
    }

    /// Reads a reply to a request in flight, which stays in flight until [`Exchange::completed`]. None while parts are missing,
    /// and for a reply nobody waits for (C-3).
    pub(crate) fn answered(
        &mut self,
        reply: Reply,
    ) -> Result<Option<(Asked, ReplyBody)>, Violation> {
        let id = reply.request_id;
        let Some(pending) = self.pending.get_mut(&id) else {
            // A reply may have been given up; parts are never begun under an identity that nothing has.
            let last = match &reply.body {
                ReplyBody::TransferPart(part) => {
                    let end = u64::try_from(part.chunk.len()).unwrap_or(u64::MAX);
                    part.offset.saturating_add(end) >= part.total_bytes
                }
                _ => true,
            };
            if last {
                self.given_up.remove(&id);
            }
            return match reply.body {
                ReplyBody::TransferPart(_) if !self.left => Err(Violation::new(
                    "F-7",
                    "a part of a reply to no request in flight",
                )),
                _ => Ok(None),
            };
        };
        let body = match reply.body {
            ReplyBody::TransferPart(part) => {
                let parts = pending.parts.get_or_insert_with(|| Reassembler::new(id));
                let before = parts.received();
                let whole = parts.push(id, &part)?;
                self.assembling = self
                    .assembling
                    .saturating_sub(before)
                    .saturating_add(parts.received());
                if self.assembling > ASSEMBLING {
                    return Err(Violation::new(
                        "F-7",
                        format!("more than {ASSEMBLING} bytes of replies that are not whole"),
                    ));
                }
                match whole {
                    None => return Ok(None),
                    Some(message) => match message.body {
                        ServerBody::Reply(reply) => reply.body,
                        _ => return Err(Violation::new("F-7", "joined parts that are no reply")),
                    },
                }
            }
            _ if pending.parts.is_some() => {
                return Err(Violation::new(
                    "F-7",
                    "a whole reply between the parts of one",
                ))
            }
            body => body,
        };
        Ok(Some((pending.asked.clone(), body)))
    }

    /// The reply was acted on: its request is over.
    pub(crate) fn completed(&mut self, id: u64) {
        if let Some(pending) = self.pending.remove(&id) {
            self.of_use |= pending.asked.of_the_host();
        }
    }

    pub(crate) fn asks(&self, wanted: &Asked) -> Option<u64> {
        self.pending
            .iter()
            .find(|(_, pending)| pending.asked == *wanted)
            .map(|(id, _)| *id)
    }

    pub(crate) fn idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// When the oldest request in flight was sent.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.pending
            .values()
            .filter(|pending| !pending.asked.may_take_any_time())
            .map(|pending| pending.sent)
            .min()
    }

    pub(crate) fn in_flight(&self) -> impl Iterator<Item = Asked> + '_ {
        self.pending.values().map(|pending| pending.asked.clone())
    }

    /// Stops waiting for what another exchange does from now on.
    pub(crate) fn keep_only(&mut self, keep: impl Fn(&Asked) -> bool) {
        self.left = true;
        let given_up = &mut self.given_up;
        let assembling = &mut self.assembling;
        self.pending.retain(|id, pending| {
            let kept = keep(&pending.asked);
            if let (false, Some(parts)) = (kept, &pending.parts) {
                *assembling = assembling.saturating_sub(parts.received());
            }
            if !kept && pending.asked.counts() {
                given_up.insert(*id);
            }
            kept
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;
    use nervix_wire::types::TransferPart;

    use super::*;

    fn part(request_id: u64, offset: u64, chunk: &Bytes) -> Reply {
        Reply {
            request_id,
            body: ReplyBody::TransferPart(TransferPart {
                total_bytes: TRANSFER_LIMIT as u64,
                offset,
                chunk: chunk.clone(),
            }),
        }
    }

    // rule: F-7
    #[test]
    fn replies_in_parts_that_never_become_whole_are_bounded_together() {
        let origin = Origin::parse("http://a:1").unwrap();
        let mut exchange = Exchange::new(ConnId(1), origin, 0);
        let chunk = Bytes::from(vec![0; 4 << 20]);
        let almost = TRANSFER_LIMIT / chunk.len() - 1;
        let mut held = 0;
        let mut refused = false;
        for read in 1..=5 {
            let asked = Asked::Read(EndpointId(read));
            let request = ClientRequest::ListDomainsRequest;
            let (id, _) = exchange.register(asked, request, 0).unwrap();
            for index in 0..almost {
                let offset = (index * chunk.len()) as u64;
                let taken = exchange.answered(part(id, offset, &chunk));
                held += chunk.len();
                assert_eq!(taken.is_err(), held > ASSEMBLING, "{held}");
                refused |= taken.is_err();
            }
        }
        assert!(refused);
    }
}
