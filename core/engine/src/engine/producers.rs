//! Producers: credit, sending, and what became of each batch (P-4 to P-8, B-14).
//!
//! Owns the batches of a producer from their submission until their outcome is taken. Where the producer is attached, and how it
//! comes back, is decided with every other endpoint; a batch is bytes here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use nervix_wire::types::{
    ClientRequest, OutcomeUncertainty, ProducerAdmission, ProducerEndReason, ReplyBody,
    SubmissionDisposition, SubmissionRefusal, SubmitBatchRequest,
};
use nervix_wire::Violation;

use super::endpoints::{reopen_error, Endpoint, Place, Side, Wire};
use super::{describe_rejection, is_busy, is_too_large, Engine};
use crate::api::{
    brief, CallId, Done, EndpointId, Error, ErrorKind, Now, SubmissionOutcome, SubmissionResult,
    Uncertainty,
};
use crate::contract::ReopenReason;
use crate::exchange::{Asked, Unsent};

#[derive(Debug)]
pub(super) struct Producer {
    pub(super) admission: ProducerAdmission,
    pub(super) next: u64,
    pub(super) submissions: BTreeMap<u64, Submission>,
    pub(super) held_bytes: u64,
    /// Batches that wait for credit or for an attachment.
    pub(super) submits: VecDeque<Submit>,
    pub(super) rejoins: Vec<(CallId, u64)>,
}

#[derive(Debug)]
pub(super) struct Submit {
    pub(super) call: CallId,
    pub(super) batch: Bytes,
    pub(super) deadline: u64,
}

#[derive(Debug)]
pub(super) struct Submission {
    pub(super) batch: Bytes,
    pub(super) bytes: u64,
    pub(super) state: Sent,
    /// The wait after the next refusal that is sent again (P-5).
    pub(super) wait: u64,
    pub(super) released: bool,
}

#[derive(Debug)]
pub(super) enum Sent {
    /// To be sent once admission is open, not before this time.
    Not {
        due: u64,
    },
    /// Its answer is due from the exchange of this attachment, ended or not.
    Flying(Wire),
    Resolved(SubmissionOutcome),
}

impl Producer {
    pub(super) fn new(admission: ProducerAdmission) -> Self {
        Self {
            admission,
            next: 1,
            submissions: BTreeMap::new(),
            held_bytes: 0,
            submits: VecDeque::new(),
            rejoins: Vec::new(),
        }
    }

    /// When the next batch is to be sent again.
    pub(super) fn next_due(&self) -> Option<u64> {
        if self.admission != ProducerAdmission::Open {
            return None;
        }
        let dues = self.submissions.values().filter_map(|one| match one.state {
            Sent::Not { due } if due > 0 => Some(due),
            _ => None,
        });
        dues.min()
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.submits.iter().map(|submit| submit.deadline).min()
    }

    /// The host stops waiting. What to tell it, when it waited here.
    pub(super) fn stop(&mut self, call: CallId, reason: &str) -> Option<String> {
        if let Some(at) = self.submits.iter().position(|submit| submit.call == call) {
            self.submits.remove(at);
            return Some(format!("{reason}: nothing was submitted"));
        }
        let at = self.rejoins.iter().position(|(other, _)| *other == call)?;
        self.rejoins.swap_remove(at);
        Some(format!(
            "{reason}: the submission stays with the producer; ask again for its outcome"
        ))
    }

    /// Takes out the calls that waited for credit too long.
    pub(super) fn expire(&mut self, now: u64) -> Vec<CallId> {
        let (late, rest): (VecDeque<Submit>, VecDeque<Submit>) = std::mem::take(&mut self.submits)
            .into_iter()
            .partition(|submit| submit.deadline <= now);
        self.submits = rest;
        late.into_iter().map(|submit| submit.call).collect()
    }

    pub(super) fn drain_submits(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.submits)
            .into_iter()
            .map(|submit| submit.call)
            .collect()
    }

    /// Every call that waits here.
    pub(super) fn drain(&mut self) -> Vec<CallId> {
        let mut calls = self.drain_submits();
        calls.extend(
            std::mem::take(&mut self.rejoins)
                .into_iter()
                .map(|(call, _)| call),
        );
        calls
    }

    /// What was not sent goes through no other attachment.
    pub(super) fn refuse_unsent(&mut self, message: &str) -> Vec<(CallId, SubmissionOutcome)> {
        self.resolve_where(|held| match held.state {
            Sent::Not { .. } => Some(not_admitted(SubmissionRefusal::ProducerEnded, message)),
            _ => None,
        })
    }

    /// Gives each submission the outcome that it is found to have, for every call that waits for it.
    fn resolve_where(
        &mut self,
        outcome: impl Fn(&Submission) -> Option<SubmissionOutcome>,
    ) -> Vec<(CallId, SubmissionOutcome)> {
        let mut taken = Vec::new();
        for submission in self.submissions.keys().copied().collect::<Vec<_>>() {
            if let Some(outcome) = self.submissions.get(&submission).and_then(&outcome) {
                taken.extend(self.resolve(submission, outcome));
            }
        }
        taken
    }

    /// Gives a submission its outcome, for every call that waits for it; without one it is kept until it is taken.
    pub(super) fn resolve(
        &mut self,
        submission: u64,
        outcome: SubmissionOutcome,
    ) -> Vec<(CallId, SubmissionOutcome)> {
        let Some(held) = self.submissions.get_mut(&submission) else {
            return Vec::new();
        };
        if matches!(held.state, Sent::Resolved(_)) {
            return Vec::new();
        }
        let (waiting, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.rejoins)
            .into_iter()
            .partition(|(_, wanted)| *wanted == submission);
        self.rejoins = others;
        // A call that waits is told even of a submission that another one let go.
        if held.released || !waiting.is_empty() {
            self.forget(submission);
        } else {
            held.state = Sent::Resolved(outcome.clone());
            // Its credit is held until the outcome is taken; its bytes are needed no more.
            held.batch = Bytes::new();
        }
        waiting
            .into_iter()
            .map(|(call, _)| (call, outcome.clone()))
            .collect()
    }

    pub(super) fn forget(&mut self, submission: u64) {
        if let Some(held) = self.submissions.remove(&submission) {
            self.held_bytes = self.held_bytes.saturating_sub(held.bytes);
        }
    }
}

impl Engine {
    pub(super) fn submit(&mut self, now: Now, call: CallId, id: EndpointId, batch: Bytes) {
        let deadline = now.mono.saturating_add(self.config.retry_timeout);
        let bytes = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let error = match self.endpoints.all.get_mut(&id) {
            None => Error::new(ErrorKind::Closed, "the producer was closed"),
            Some(endpoint) => {
                match (&mut endpoint.side, endpoint.place) {
                    (_, Place::Over(reason, refusal)) => reopen_error(reason, refusal),
                    (_, Place::Closed | Place::Closing { .. }) => {
                        Error::new(ErrorKind::Closed, "the producer was closed")
                    }
                    (Side::Consumer(_), _) => {
                        Error::new(ErrorKind::InvalidArgument, "this is no producer")
                    }
                    (Side::Producer(_), _)
                        if bytes == 0 || bytes > endpoint.contract.max_batch_bytes =>
                    {
                        let limit = endpoint.contract.max_batch_bytes;
                        let message = format!("a batch must be 1 to {limit} bytes of Arrow IPC, and this one has {bytes}");
                        Error::new(ErrorKind::InvalidArgument, message)
                    }
                    (Side::Producer(producer), _) => {
                        producer.submits.push_back(Submit {
                            call,
                            batch,
                            deadline,
                        });
                        self.hurry(now);
                        return;
                    }
                }
            }
        };
        self.finish(call, Err(error));
    }

    pub(super) fn rejoin(&mut self, call: CallId, id: EndpointId, submission: u64) {
        if let Some(Side::Producer(producer)) = self
            .endpoints
            .all
            .get_mut(&id)
            .map(|endpoint| &mut endpoint.side)
        {
            match producer.submissions.get(&submission) {
                Some(Submission {
                    state: Sent::Resolved(outcome),
                    ..
                }) => {
                    let outcome = outcome.clone();
                    producer.forget(submission);
                    self.finish(call, Ok(Done::Submission(outcome)));
                    return;
                }
                Some(held) if !held.released => {
                    producer.rejoins.push((call, submission));
                    return;
                }
                _ => {}
            }
        }
        let message = format!("the producer holds no submission {submission}: its outcome was taken, or it was never submitted");
        self.finish(call, Err(Error::new(ErrorKind::InvalidArgument, message)));
    }

    /// Whether new batches are admitted now; never without an attachment.
    pub fn admission(&self, id: EndpointId) -> ProducerAdmission {
        match self.endpoints.all.get(&id) {
            Some(Endpoint {
                place: Place::Attached(_),
                side: Side::Producer(producer),
                ..
            }) => producer.admission,
            _ => ProducerAdmission::Suspended,
        }
    }

    /// The submissions whose outcome was not taken, in order, and whether each has one.
    pub fn pending(&self, id: EndpointId) -> Vec<(u64, bool)> {
        match self.endpoints.all.get(&id).map(|endpoint| &endpoint.side) {
            Some(Side::Producer(producer)) => producer
                .submissions
                .iter()
                .filter(|(_, held)| !held.released)
                .map(|(id, held)| (*id, matches!(held.state, Sent::Resolved(_))))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Lets a submission go: hands out its outcome when it has one, or drops it when it comes. None for one not held.
    pub fn release_submission(
        &mut self,
        now: Now,
        id: EndpointId,
        submission: u64,
    ) -> Option<Option<SubmissionOutcome>> {
        let released = match self
            .endpoints
            .all
            .get_mut(&id)
            .map(|endpoint| &mut endpoint.side)
        {
            Some(Side::Producer(producer)) => match producer.submissions.get_mut(&submission) {
                Some(held) if !held.released => match &held.state {
                    Sent::Resolved(outcome) => {
                        let outcome = outcome.clone();
                        producer.forget(submission);
                        Some(Some(outcome))
                    }
                    _ => {
                        held.released = true;
                        Some(None)
                    }
                },
                _ => None,
            },
            _ => None,
        };
        self.drive(now);
        released
    }

    pub(super) fn submit_reply(
        &mut self,
        now: Now,
        id: EndpointId,
        submission: u64,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        let Some(endpoint) = self.endpoints.all.get_mut(&id) else {
            return Ok(());
        };
        let (place, contract) = (endpoint.place, Arc::clone(&endpoint.contract));
        let Side::Producer(producer) = &mut endpoint.side else {
            return Ok(());
        };
        let Some(held) = producer.submissions.get_mut(&submission) else {
            return Ok(());
        };
        let open = matches!(held.state, Sent::Flying(wire) if place == Place::Attached(wire));
        let (result, message, again) = match body {
            ReplyBody::SubmissionOutcome(outcome) => {
                let (result, again) = match outcome.disposition {
                    SubmissionDisposition::SubmissionCompleted => {
                        (SubmissionResult::Completed, false)
                    }
                    SubmissionDisposition::SubmissionNotAdmitted(refused) => (
                        SubmissionResult::NotAdmitted(refused.refusal),
                        matches!(
                            refused.refusal,
                            SubmissionRefusal::Suspended | SubmissionRefusal::Busy
                        ),
                    ),
                    SubmissionDisposition::SubmissionFailed(failed) => {
                        (SubmissionResult::ProcessingFailed(failed.failure), false)
                    }
                    SubmissionDisposition::SubmissionOutcomeUnknown(unknown) => {
                        let cause = match unknown.cause {
                            OutcomeUncertainty::Interrupted => Uncertainty::Interrupted,
                            OutcomeUncertainty::OwnerLost => Uncertainty::OwnerLost,
                        };
                        (SubmissionResult::OutcomeUnknown(cause), false)
                    }
                };
                (result, outcome.message, again)
            }
            // There is an outcome, and it could not be carried.
            ReplyBody::RequestRejected(rejected) if is_too_large(&rejected) => (
                SubmissionResult::OutcomeUnknown(Uncertainty::Interrupted),
                describe_rejection(&rejected),
                false,
            ),
            ReplyBody::RequestRejected(rejected) => {
                let message = describe_rejection(&rejected);
                (
                    SubmissionResult::NotAdmitted(SubmissionRefusal::MalformedBatch),
                    message,
                    is_busy(&rejected),
                )
            }
            ReplyBody::RequestCancelled(_) => (
                SubmissionResult::OutcomeUnknown(Uncertainty::Interrupted),
                "the server cancelled it".to_owned(),
                false,
            ),
            _ => {
                return Err(Violation::new(
                    "C-4",
                    "a reply that does not answer a submission",
                ))
            }
        };
        if again && open {
            held.state = Sent::Not {
                due: now.mono.saturating_add(held.wait),
            };
            held.wait = held
                .wait
                .saturating_mul(2)
                .min(contract.retry_max_backoff_nanos);
            return Ok(());
        }
        // The attachment it was sent on is over, and what was not admitted goes through no other.
        let result = if again {
            SubmissionResult::NotAdmitted(SubmissionRefusal::ProducerEnded)
        } else {
            result
        };
        let message = brief(message);
        let message = if result == SubmissionResult::Completed {
            String::new()
        } else {
            message
        };
        let taken = producer.resolve(submission, SubmissionOutcome { result, message });
        self.tell_outcomes(taken);
        Ok(())
    }

    pub(super) fn admission_changed(&mut self, wire: Wire, admission: ProducerAdmission) {
        let Some(id) = self.endpoints.find(wire) else {
            return;
        };
        if let Some(Side::Producer(producer)) = self
            .endpoints
            .all
            .get_mut(&id)
            .map(|endpoint| &mut endpoint.side)
        {
            producer.admission = admission;
        }
    }

    pub(super) fn producer_ended(
        &mut self,
        now: Now,
        wire: Wire,
        reason: ProducerEndReason,
        message: &str,
    ) {
        let Some(id) = self.endpoints.find(wire) else {
            return;
        };
        let closing = self
            .endpoints
            .all
            .get(&id)
            .is_some_and(|one| matches!(one.place, Place::Closing { .. }));
        // What was sent before the end was known here is answered still.
        self.resolve_unsent(id, message);
        if closing {
            self.released(id);
            return;
        }
        match reason {
            ProducerEndReason::EndpointRemoved => {
                self.over(id, ReopenReason::EndpointRemoved, None)
            }
            ProducerEndReason::DomainStopped => self.over(id, ReopenReason::DomainStopped, None),
            ProducerEndReason::ProtocolViolated => {
                self.over(id, ReopenReason::ProtocolViolated, None)
            }
            // Whether it is the same endpoint still, a fresh open tells.
            ProducerEndReason::EndpointChanged
            | ProducerEndReason::Relocated
            | ProducerEndReason::ShuttingDown
            | ProducerEndReason::OwnerLost => self.detached(now, id, message, false),
        }
    }

    pub(super) fn resolve_flying(
        &mut self,
        id: EndpointId,
        submission: u64,
        outcome: SubmissionOutcome,
    ) {
        let Some(Side::Producer(producer)) = self
            .endpoints
            .all
            .get_mut(&id)
            .map(|endpoint| &mut endpoint.side)
        else {
            return;
        };
        let taken = producer.resolve(submission, outcome);
        self.tell_outcomes(taken);
    }

    /// What was not sent when an attachment ends was not admitted, and goes through no other.
    pub(super) fn resolve_unsent(&mut self, id: EndpointId, message: &str) {
        if let Some(producer) = self.producer(id) {
            let taken = producer.refuse_unsent(message);
            self.tell_outcomes(taken);
        }
    }

    /// Gives every submission that has none its outcome, at the end of a producer.
    pub(super) fn resolve_all(&mut self, id: EndpointId, cause: Uncertainty, message: &str) {
        if let Some(producer) = self.producer(id) {
            let taken = producer.resolve_where(|held| match held.state {
                Sent::Not { .. } => Some(not_admitted(SubmissionRefusal::ProducerEnded, message)),
                Sent::Flying(_) => Some(unknown(cause, message)),
                Sent::Resolved(_) => None,
            });
            self.tell_outcomes(taken);
        }
    }

    fn producer(&mut self, id: EndpointId) -> Option<&mut Producer> {
        match &mut self.endpoints.all.get_mut(&id)?.side {
            Side::Producer(producer) => Some(producer),
            Side::Consumer(_) => None,
        }
    }

    pub(super) fn tell_outcomes(&mut self, taken: Vec<(CallId, SubmissionOutcome)>) {
        for (call, outcome) in taken {
            self.finish(call, Ok(Done::Submission(outcome)));
        }
    }

    /// Gives credit to the batches that wait for it, in order (P-4).
    pub(super) fn admit(&mut self, id: EndpointId) {
        let mut admitted = Vec::new();
        if let Some(Endpoint {
            place: Place::Attached(_),
            side: Side::Producer(producer),
            contract,
            ..
        }) = self.endpoints.all.get_mut(&id)
        {
            while let Some(submit) = producer.submits.front() {
                let bytes = u64::try_from(submit.batch.len()).unwrap_or(u64::MAX);
                let held = u32::try_from(producer.submissions.len()).unwrap_or(u32::MAX);
                if held >= contract.batches
                    || producer.held_bytes.saturating_add(bytes) > contract.bytes
                {
                    break;
                }
                let Some(submit) = producer.submits.pop_front() else {
                    break;
                };
                let submission = producer.next;
                producer.next = producer.next.saturating_add(1);
                producer.held_bytes = producer.held_bytes.saturating_add(bytes);
                let held = Submission {
                    batch: submit.batch,
                    bytes,
                    state: Sent::Not { due: 0 },
                    wait: contract.retry_backoff_nanos,
                    released: false,
                };
                producer.submissions.insert(submission, held);
                admitted.push((submit.call, submission));
            }
        }
        for (call, submission) in admitted {
            self.finish(call, Ok(Done::Submitted(submission)));
        }
    }

    pub(super) fn send_batches(&mut self, now: Now, id: EndpointId) {
        let Some(Endpoint {
            place: Place::Attached(wire),
            side: Side::Producer(producer),
            ..
        }) = self.endpoints.all.get(&id)
        else {
            return;
        };
        if producer.admission != ProducerAdmission::Open {
            return;
        }
        let wire = *wire;
        let ready: Vec<(u64, Bytes)> = producer
            .submissions
            .iter()
            .filter(|(_, held)| matches!(held.state, Sent::Not { due } if due <= now.mono))
            .map(|(submission, held)| (*submission, held.batch.clone()))
            .collect();
        for (submission, batch) in ready {
            let request = ClientRequest::SubmitBatchRequest(SubmitBatchRequest {
                producer: wire.id,
                batch,
            });
            let sent = self.send(now, wire.conn, Asked::Submit(id, submission), request);
            let Some(Side::Producer(producer)) =
                self.endpoints.all.get_mut(&id).map(|one| &mut one.side)
            else {
                return;
            };
            match sent {
                Ok(()) => {
                    if let Some(held) = producer.submissions.get_mut(&submission) {
                        held.state = Sent::Flying(wire);
                    }
                }
                Err(Unsent::Full) => return,
                Err(Unsent::Refused(refusal)) => {
                    let outcome =
                        not_admitted(SubmissionRefusal::BatchTooLarge, &refusal.to_string());
                    for (call, outcome) in producer.resolve(submission, outcome) {
                        self.finish(call, Ok(Done::Submission(outcome)));
                    }
                }
            }
        }
    }
}

pub(super) fn unknown(cause: Uncertainty, message: &str) -> SubmissionOutcome {
    SubmissionOutcome {
        result: SubmissionResult::OutcomeUnknown(cause),
        message: message.to_owned(),
    }
}

pub(super) fn not_admitted(refusal: SubmissionRefusal, message: &str) -> SubmissionOutcome {
    SubmissionOutcome {
        result: SubmissionResult::NotAdmitted(refusal),
        message: message.to_owned(),
    }
}
