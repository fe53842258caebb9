//! Consumers: one parked read each, and settling what it brought (EC-2 to EC-6, B-15, B-16).
//!
//! Owns the deliveries of a consumer from its read to their settlement. Where the consumer is attached, and how it comes back, is
//! decided with every other endpoint; a batch is bytes here.

use std::collections::VecDeque;
use std::sync::Arc;

use nervix_wire::types::{
    ClientRequest, EmitterBatchDecision, ReadEmitterBatchRequest, ReadEmitterDisposition,
    ReplyBody, SettleEmitterBatchRequest,
};
use nervix_wire::Violation;

use super::endpoints::{reopen_error, Endpoint, Place, Side, Wire};
use super::{describe_rejection, is_busy, is_too_large, Engine};
use crate::api::{
    CallId, ConnId, Decision, Delivery, Done, EndpointId, Error, ErrorKind, Now, Settlement,
};
use crate::exchange::{Asked, Unsent};
use crate::reach::{Backoff, RETRY};

#[derive(Debug, Default)]
pub(super) struct Consumer {
    /// A read is parked on the attachment.
    pub(super) reading: bool,
    /// A read that was not admitted is sent again, but not before this time.
    pub(super) due: u64,
    pub(super) backoff: Backoff,
    pub(super) ready: Option<Delivery>,
    pub(super) waiting: VecDeque<CallId>,
    /// An attachment ended and no call was told.
    pub(super) interrupted: Option<String>,
}

/// A settlement that its caller waits for.
#[derive(Debug)]
pub(super) struct Settling {
    pub(super) endpoint: EndpointId,
    pub(super) wire: Wire,
    pub(super) reference: [u8; 16],
    pub(super) decision: Decision,
    pub(super) deadline: u64,
    pub(super) due: u64,
    pub(super) backoff: Backoff,
    pub(super) flight: bool,
}

impl Consumer {
    pub(super) fn next_due(&self) -> Option<u64> {
        (!self.waiting.is_empty() && !self.reading && self.due > 0).then_some(self.due)
    }

    /// The host stops waiting; the read stays (EC-2). What to tell it, when it waited here.
    pub(super) fn stop(&mut self, call: CallId, reason: &str) -> Option<String> {
        let at = self.waiting.iter().position(|other| *other == call)?;
        self.waiting.remove(at);
        Some(format!("{reason}: no delivery was taken"))
    }

    /// Nothing is read any more; the calls that waited for it.
    pub(super) fn refuse(&mut self) -> Vec<CallId> {
        self.ready = None;
        std::mem::take(&mut self.waiting).into()
    }
}

impl Engine {
    pub(super) fn next_delivery(&mut self, now: Now, call: CallId, id: EndpointId) {
        let error = match self.endpoints.all.get_mut(&id) {
            None => Error::new(ErrorKind::Closed, "the consumer was closed"),
            Some(endpoint) => match (&mut endpoint.side, endpoint.place) {
                (_, Place::Closed | Place::Closing { .. }) => {
                    Error::new(ErrorKind::Closed, "the consumer was closed")
                }
                (Side::Producer(_), _) => {
                    Error::new(ErrorKind::InvalidArgument, "this is no consumer")
                }
                (Side::Consumer(consumer), place) => match (consumer.interrupted.take(), place) {
                    (Some(why), _) => Error::new(ErrorKind::Interrupted, why),
                    (None, Place::Over(reason, refusal)) => reopen_error(reason, refusal),
                    (None, _) => {
                        consumer.waiting.push_back(call);
                        self.hurry(now);
                        return;
                    }
                },
            },
        };
        self.finish(call, Err(error));
    }

    pub(super) fn settle_delivery(
        &mut self,
        now: Now,
        call: CallId,
        delivery: &Delivery,
        decision: Decision,
    ) {
        let wire = Wire {
            conn: delivery.conn,
            id: delivery.wire,
        };
        let settling = Settling {
            endpoint: delivery.consumer,
            wire,
            reference: delivery.reference,
            decision,
            deadline: now.mono.saturating_add(self.config.retry_timeout),
            due: 0,
            backoff: Backoff::default(),
            flight: false,
        };
        self.endpoints.settles.insert(call, settling);
    }

    pub(super) fn read_reply(
        &mut self,
        now: Now,
        conn: ConnId,
        id: EndpointId,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        let Some(endpoint) = self.endpoints.all.get_mut(&id) else {
            return Ok(());
        };
        let wire = endpoint.wire().filter(|wire| wire.conn == conn);
        let attached = matches!(endpoint.place, Place::Attached(_));
        let Side::Consumer(consumer) = &mut endpoint.side else {
            return Ok(());
        };
        let Some(wire) = wire else { return Ok(()) };
        consumer.reading = false;
        match body {
            ReplyBody::ReadEmitterBatchOutcome(outcome) => match outcome.disposition {
                ReadEmitterDisposition::EmitterBatchReceived(batch) if attached => {
                    consumer.backoff.reset();
                    let delivery = Delivery {
                        consumer: id,
                        conn: wire.conn,
                        wire: wire.id,
                        identity: batch.identity,
                        reference: batch.reference,
                        source_relay: Arc::from(batch.source_relay.as_str()),
                        branch_fingerprint: batch.branch_fingerprint,
                        batch: batch.batch,
                        members: batch.members,
                        execution_now: batch.execution_now_unix_nanos,
                    };
                    match consumer.waiting.pop_front() {
                        Some(call) => self.finish(call, Ok(Done::Delivery(delivery))),
                        None => consumer.ready = Some(delivery),
                    }
                }
                // Closing revokes it.
                ReadEmitterDisposition::EmitterBatchReceived(_) => {}
                ReadEmitterDisposition::EmitterConsumerEnded if attached => {
                    self.detached(now, id, "the server ended the consumer's attachment", false);
                }
                ReadEmitterDisposition::EmitterConsumerEnded => {}
            },
            ReplyBody::RequestRejected(rejected) if is_busy(&rejected) => {
                let wait = consumer.backoff.next(RETRY, &mut self.jitter);
                consumer.due = now.mono.saturating_add(wait);
            }
            ReplyBody::RequestRejected(rejected) => {
                let error = Error::new(ErrorKind::Rejected, describe_rejection(&rejected));
                for call in std::mem::take(&mut consumer.waiting) {
                    self.finish(call, Err(error.clone()));
                }
            }
            ReplyBody::RequestCancelled(_) => {}
            _ => return Err(Violation::new("C-4", "a reply that does not answer a read")),
        }
        Ok(())
    }

    pub(super) fn settle_reply(
        &mut self,
        now: Now,
        call: CallId,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        let result = match body {
            ReplyBody::SettleEmitterBatchOutcome(outcome) => {
                Ok(Done::Settled(Settlement::from(outcome.disposition)))
            }
            ReplyBody::RequestRejected(rejected) if is_busy(&rejected) => {
                if let Some(settling) = self.endpoints.settles.get_mut(&call) {
                    settling.due = now
                        .mono
                        .saturating_add(settling.backoff.next(RETRY, &mut self.jitter));
                    settling.flight = false;
                }
                return Ok(());
            }
            ReplyBody::RequestRejected(rejected) if is_too_large(&rejected) => Err(Error::new(
                ErrorKind::Uncertain,
                format!(
                    "the settlement may have been applied: {}",
                    describe_rejection(&rejected)
                ),
            )),
            ReplyBody::RequestRejected(rejected) => Err(Error::new(
                ErrorKind::Rejected,
                describe_rejection(&rejected),
            )),
            ReplyBody::RequestCancelled(_) => Err(Error::new(
                ErrorKind::Uncertain,
                "the server cancelled the settlement, which may have been applied",
            )),
            _ => {
                return Err(Violation::new(
                    "C-4",
                    "a reply that does not answer a settlement",
                ))
            }
        };
        if self.endpoints.settles.remove(&call).is_some() {
            self.finish(call, result);
        }
        Ok(())
    }

    /// Hands out what was read, or parks one read (EC-2).
    pub(super) fn read(&mut self, now: Now, id: EndpointId) {
        let Some(Endpoint {
            place: Place::Attached(wire),
            side: Side::Consumer(consumer),
            ..
        }) = self.endpoints.all.get_mut(&id)
        else {
            return;
        };
        let wire = *wire;
        if consumer.waiting.is_empty() || consumer.reading {
            return;
        }
        if let Some(delivery) = consumer.ready.take() {
            if let Some(call) = consumer.waiting.pop_front() {
                self.finish(call, Ok(Done::Delivery(delivery)));
            }
            return self.read(now, id);
        }
        if consumer.due > now.mono {
            return;
        }
        let request =
            ClientRequest::ReadEmitterBatchRequest(ReadEmitterBatchRequest { consumer: wire.id });
        if self.send(now, wire.conn, Asked::Read(id), request).is_ok() {
            if let Some(Side::Consumer(consumer)) =
                self.endpoints.all.get_mut(&id).map(|one| &mut one.side)
            {
                consumer.reading = true;
            }
        }
    }

    /// Settles through the attachment that delivered, and through no other (EC-6).
    pub(super) fn send_settlements(&mut self, now: Now) {
        let ready: Vec<CallId> = self
            .endpoints
            .settles
            .iter()
            .filter(|(_, one)| !one.flight && one.due <= now.mono)
            .map(|(call, _)| *call)
            .collect();
        for call in ready {
            let Some(settling) = self.endpoints.settles.get(&call) else {
                continue;
            };
            let wire = settling.wire;
            let attached = self
                .endpoints
                .all
                .get(&settling.endpoint)
                .is_some_and(|endpoint| endpoint.place == Place::Attached(wire));
            if !attached {
                self.endpoints.settles.remove(&call);
                let message = "the attachment that delivered it has ended, so nothing was sent: it comes again under its identity, unless it was settled before";
                self.finish(call, Err(Error::new(ErrorKind::Rejected, message)));
                continue;
            }
            let (decision, reason) = match &settling.decision {
                Decision::Ack => (EmitterBatchDecision::Ack, String::new()),
                Decision::Retry => (EmitterBatchDecision::Retry, String::new()),
                Decision::Reject(reason) => (EmitterBatchDecision::Reject, reason.clone()),
            };
            let request = ClientRequest::SettleEmitterBatchRequest(SettleEmitterBatchRequest {
                consumer: wire.id,
                reference: settling.reference,
                decision,
                reason,
            });
            match self.send(now, wire.conn, Asked::Settle(call), request) {
                Ok(()) => {
                    if let Some(settling) = self.endpoints.settles.get_mut(&call) {
                        settling.flight = true;
                    }
                }
                Err(Unsent::Full) => return,
                Err(Unsent::Refused(refusal)) => {
                    self.endpoints.settles.remove(&call);
                    self.finish(
                        call,
                        Err(Error::new(ErrorKind::InvalidArgument, refusal.to_string())),
                    );
                }
            }
        }
    }

    /// The host stops waiting for a settlement; true when there was one.
    pub(super) fn stop_settlement(&mut self, call: CallId, kind: ErrorKind, reason: &str) -> bool {
        if let Some(settling) = self.endpoints.settles.remove(&call) {
            let effect = if settling.flight {
                "the delivery may have been settled; settling it again tells"
            } else {
                "this settlement was not sent"
            };
            self.finish(call, Err(Error::new(kind, format!("{reason}: {effect}"))));
            return true;
        }
        false
    }

    /// Settlements that waited too long.
    pub(super) fn expire_settlements(&mut self, now: Now) {
        let late: Vec<CallId> = self
            .endpoints
            .settles
            .iter()
            .filter(|(_, one)| one.deadline <= now.mono)
            .map(|(call, _)| *call)
            .collect();
        for call in late {
            if let Some(settling) = self.endpoints.settles.remove(&call) {
                let error = if settling.flight {
                    Error::new(
                        ErrorKind::Uncertain,
                        "the settlement was not answered in time; it may have been applied",
                    )
                } else {
                    Error::new(
                        ErrorKind::Transport,
                        "the settlement could not be sent in time",
                    )
                };
                self.finish(call, Err(error));
            }
        }
    }

    /// The session is over, and with it every settlement that was not answered.
    pub(super) fn fail_settlements(&mut self, error: &Error) {
        for (call, settling) in std::mem::take(&mut self.endpoints.settles) {
            let (kind, what) = if settling.flight {
                (ErrorKind::Uncertain, "the delivery may be settled")
            } else {
                (ErrorKind::Rejected, "nothing was sent")
            };
            let message = format!("{what}: {}", error.message);
            self.finish(call, Err(Error::new(kind, message)));
        }
    }
}
