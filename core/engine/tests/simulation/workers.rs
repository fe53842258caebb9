//! What a host does with producers and consumers, and what it holds them to.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use nervix_engine::{
    Call, ConnId, Decision, Delivery, Done, EndpointId, EndpointState, Error, ErrorKind,
    OpenRequest, Role, Settlement, SubmissionOutcome, SubmissionResult, Uncertainty,
};
use nervix_wire::types::*;

use crate::common::frames::*;
use crate::common::SEC;
use crate::endpoints::BACKOFF;
use crate::host::What;
use crate::world::World;

pub struct Handle {
    id: EndpointId,
    role: Role,
    name: String,
    batches: u32,
    /// What was submitted and its outcome not taken.
    submissions: BTreeMap<u64, Bytes>,
    deliveries: Vec<Delivery>,
    over: bool,
    closing: bool,
    freed: bool,
    /// An interruption was told since the last delivery.
    gap: bool,
    interruptions: u64,
    /// The attachment of the last delivery.
    last: Option<(ConnId, u64)>,
    /// Openings of that name before this handle's first.
    base: u64,
}

impl Handle {
    fn is_live(&self) -> bool {
        !(self.over || self.closing || self.freed)
    }
}

/// What went over the wire about one content.
#[derive(Debug, Default)]
struct Sent {
    flying: bool,
    last: Option<SubmissionDisposition>,
    at: u64,
}

#[derive(Default)]
pub struct Workers {
    pub handles: Vec<Handle>,
    sent: HashMap<Bytes, Sent>,
    requests: HashMap<(ConnId, u64), Bytes>,
    opens: HashMap<(ConnId, u64), String>,
    admissions: HashMap<(ConnId, u64), ProducerAdmission>,
    /// How often an open of each name was answered with an attachment.
    opened: HashMap<String, u64>,
    confirmed: BTreeSet<u64>,
    serial: u64,
}

fn number(bytes: &[u8; 16]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

fn result_of(disposition: &SubmissionDisposition) -> SubmissionResult {
    match disposition {
        SubmissionDisposition::SubmissionNotAdmitted(not) => {
            SubmissionResult::NotAdmitted(not.refusal)
        }
        SubmissionDisposition::SubmissionCompleted => SubmissionResult::Completed,
        SubmissionDisposition::SubmissionFailed(failed) => {
            SubmissionResult::ProcessingFailed(failed.failure)
        }
        SubmissionDisposition::SubmissionOutcomeUnknown(unknown) => {
            SubmissionResult::OutcomeUnknown(match unknown.cause {
                OutcomeUncertainty::Interrupted => Uncertainty::Interrupted,
                OutcomeUncertainty::OwnerLost => Uncertainty::OwnerLost,
            })
        }
    }
}

fn is_sent_again(disposition: &SubmissionDisposition) -> bool {
    matches!(
        disposition,
        SubmissionDisposition::SubmissionNotAdmitted(SubmissionNotAdmitted {
            refusal: SubmissionRefusal::Suspended | SubmissionRefusal::Busy
        })
    )
}

impl World {
    /// Takes note of what the engine sends about endpoints, and refuses what P-5 and P-6 forbid.
    pub fn endpoint_sent(&mut self, conn: ConnId, id: u64, request: &ClientRequest) {
        let now = self.now;
        let workers = &mut self.workers;
        match request {
            ClientRequest::OpenIngestorRequest(open) => {
                workers.opens.insert((conn, id), open.ingestor.clone());
            }
            ClientRequest::OpenEmitterRequest(open) => {
                workers.opens.insert((conn, id), open.emitter.clone());
            }
            ClientRequest::SubmitBatchRequest(submit) => {
                assert_eq!(
                    workers.admissions.get(&(conn, submit.producer)),
                    Some(&ProducerAdmission::Open),
                    "sent although admission is suspended (P-6)"
                );
                let again = workers.sent.contains_key(&submit.batch);
                let sent = workers.sent.entry(submit.batch.clone()).or_default();
                if again {
                    assert!(
                        !sent.flying && sent.last.as_ref().is_some_and(is_sent_again),
                        "{:?} sent again after {:?} (P-5)",
                        submit.batch,
                        sent.last
                    );
                    assert!(now >= sent.at + BACKOFF, "sent again too soon (P-5)");
                    self.counts.retried += 1;
                }
                sent.flying = true;
                sent.last = None;
                workers.requests.insert((conn, id), submit.batch.clone());
            }
            _ => {}
        }
    }

    /// Takes note of what the engine is told about endpoints.
    pub fn endpoint_told(&mut self, conn: ConnId, message: &ServerMessage) {
        let now = self.now;
        let workers = &mut self.workers;
        match &message.body {
            ServerBody::ProducerAdmissionChanged(changed) => {
                if let Some(known) = workers.admissions.get_mut(&(conn, changed.producer)) {
                    *known = changed.admission;
                }
            }
            ServerBody::Reply(reply) => {
                let key = (conn, reply.request_id);
                match &reply.body {
                    ReplyBody::OpenIngestorOutcome(outcome) => {
                        if let OpenIngestorDisposition::ProducerOpened(opened) =
                            &outcome.disposition
                        {
                            workers.admissions.insert(key, opened.admission);
                        }
                    }
                    ReplyBody::OpenEmitterOutcome(outcome) => {
                        if let OpenEmitterDisposition::EmitterOpened(opened) = &outcome.disposition
                        {
                            *workers.opened.entry(opened.emitter.clone()).or_default() += 1;
                        }
                    }
                    ReplyBody::SubmissionOutcome(outcome) => {
                        let batch = &workers.requests[&key];
                        let sent = workers.sent.get_mut(batch).unwrap();
                        sent.flying = false;
                        sent.last = Some(outcome.disposition.clone());
                        sent.at = now;
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn live(&self, role: Role) -> Vec<usize> {
        (0..self.workers.handles.len())
            .filter(|handle| {
                let handle = &self.workers.handles[*handle];
                handle.role == role && handle.is_live()
            })
            .collect()
    }

    fn content(&mut self) -> Bytes {
        self.workers.serial += 1;
        let mut bytes = content(self.workers.serial).to_vec();
        let more = self.rng.within(0, 300) as usize;
        bytes.resize(bytes.len() + more, b' ');
        bytes.into()
    }

    /// One thing a host might do with endpoints.
    pub fn work(&mut self) {
        let producers = self.live(Role::Producer);
        let consumers = self.live(Role::Consumer);
        match self.rng.within(0, 100) {
            0..=14 => {
                let (role, prefix) = if self.rng.chance(50.0) {
                    (Role::Producer, "i")
                } else {
                    (Role::Consumer, "e")
                };
                let name = format!("{prefix}{}", self.rng.within(0, 2));
                let opening = What::Open(role, name.clone());
                let taken = self.is_waiting(&opening)
                    || self
                        .workers
                        .handles
                        .iter()
                        .any(|handle| handle.name == name && handle.is_live());
                if !taken {
                    self.start(opening);
                }
            }
            15..=39 if !producers.is_empty() => {
                let handle = producers[self.rng.index(producers.len())];
                let batch = self.content();
                self.start(What::Submit(handle, batch));
            }
            40..=59 => {
                let held: Vec<(usize, u64)> = (0..self.workers.handles.len())
                    .flat_map(|handle| {
                        let submissions = &self.workers.handles[handle].submissions;
                        submissions.keys().map(move |one| (handle, *one))
                    })
                    .collect();
                if !held.is_empty() {
                    let (handle, submission) = held[self.rng.index(held.len())];
                    if self.rng.chance(10.0) {
                        self.release_submission(handle, submission);
                    } else if !self.is_waiting(&What::Rejoin(handle, submission)) {
                        self.start(What::Rejoin(handle, submission));
                    }
                }
            }
            60..=79 if !consumers.is_empty() => {
                let handle = consumers[self.rng.index(consumers.len())];
                self.start(What::Next(handle));
            }
            80..=94 => {
                let held: Vec<usize> = (0..self.workers.handles.len())
                    .filter(|handle| !self.workers.handles[*handle].deliveries.is_empty())
                    .collect();
                if !held.is_empty() {
                    let handle = held[self.rng.index(held.len())];
                    self.settle_one(handle);
                }
            }
            95 => {
                let handles = self.workers.handles.len();
                if handles > 0 {
                    let handle = self.rng.index(handles);
                    if self.workers.handles[handle].freed {
                        return;
                    }
                    if self.rng.chance(50.0) {
                        self.start(What::Close(handle));
                    } else {
                        self.free(handle);
                    }
                }
            }
            _ => {}
        }
    }

    fn free(&mut self, handle: usize) {
        let waits = self.any_waiting(|what| match what {
            What::Submit(of, _)
            | What::Rejoin(of, _)
            | What::Next(of)
            | What::Settle(of, ..)
            | What::Close(of) => *of == handle,
            _ => false,
        });
        if waits {
            return;
        }
        self.note(|| format!("handle {handle} is freed"));
        let held = &mut self.workers.handles[handle];
        held.freed = true;
        held.submissions.clear();
        let id = held.id;
        self.engine.free_endpoint(self.time(), id);
        self.pump();
    }

    fn release_submission(&mut self, handle: usize, submission: u64) {
        if self.is_waiting(&What::Rejoin(handle, submission)) {
            return;
        }
        let held = &mut self.workers.handles[handle];
        let batch = held.submissions.remove(&submission).unwrap();
        let id = held.id;
        let now = self.time();
        let released = self.engine.release_submission(now, id, submission);
        match released.expect("a submission that is held") {
            Some(outcome) => self.check_outcome(&batch, &outcome),
            None => assert!(self.workers.sent.get(&batch).is_none_or(|sent| {
                sent.flying || sent.last.as_ref().is_none_or(is_sent_again)
            })),
        }
        self.pump();
    }

    fn settle_one(&mut self, handle: usize) {
        let held = &mut self.workers.handles[handle];
        let at = self.rng.index(held.deliveries.len());
        let keep = self.rng.chance(10.0);
        let delivery = if keep {
            held.deliveries[at].clone()
        } else {
            held.deliveries.swap_remove(at)
        };
        let decision = match self.rng.within(0, 10) {
            0 | 1 => Decision::Retry,
            2 => Decision::Reject("unfit".into()),
            _ => Decision::Ack,
        };
        self.start(What::Settle(
            handle,
            number(&delivery.identity),
            Box::new((delivery, decision)),
        ));
    }

    pub fn endpoint_call(&mut self, what: &What) -> Call {
        let id = |handle: &usize| self.workers.handles[*handle].id;
        match what {
            What::Open(role, name) => Call::Open(
                *role,
                OpenRequest {
                    domain: "d0".into(),
                    endpoint: name.clone(),
                    fields: numbers().fields,
                    batches: 3,
                    bytes: 700,
                },
            ),
            What::Submit(handle, batch) => Call::Submit(id(handle), batch.clone()),
            What::Rejoin(handle, submission) => Call::Rejoin(id(handle), *submission),
            What::Next(handle) => Call::NextDelivery(id(handle)),
            What::Settle(_, _, both) => Call::Settle(both.0.clone(), both.1.clone()),
            What::Close(handle) => {
                let held = &self.workers.handles[*handle];
                let call = Call::Close(held.id);
                self.workers.handles[*handle].closing = true;
                call
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn endpoint_done(&mut self, what: What, result: Result<Done, Error>, stopped: bool) {
        let excused = stopped || self.host.shut_down;
        match (what, result) {
            (What::Open(role, name), Ok(Done::Endpoint(id, contract))) => {
                self.counts.opened += 1;
                let opened = self.workers.opened.get(&name).copied().unwrap_or(0);
                self.workers.handles.push(Handle {
                    id,
                    role,
                    name,
                    batches: contract.batches,
                    submissions: BTreeMap::new(),
                    deliveries: Vec::new(),
                    over: false,
                    closing: false,
                    freed: false,
                    gap: false,
                    interruptions: 0,
                    last: None,
                    base: opened.saturating_sub(1),
                });
            }
            (What::Open(..), Err(error)) => {
                let known = matches!(
                    error.kind,
                    ErrorKind::Connect | ErrorKind::Transport | ErrorKind::Protocol
                ) || (error.kind == ErrorKind::Rejected && error.refusal.is_some());
                assert!(excused || known || rejected_by_request(&error), "{error:?}");
            }
            (What::Submit(handle, batch), Ok(Done::Submitted(submission))) => {
                self.counts.submitted += 1;
                let held = &mut self.workers.handles[handle];
                let before = held.submissions.insert(submission, batch);
                assert!(before.is_none(), "one identity for two batches");
                let pending = self.engine.pending(held.id);
                assert!(
                    pending.len() <= held.batches as usize,
                    "credit exceeded: {pending:?} (P-4)"
                );
            }
            (What::Rejoin(handle, submission), Ok(Done::Submission(outcome))) => {
                let held = &mut self.workers.handles[handle];
                let batch = held
                    .submissions
                    .remove(&submission)
                    .expect("two outcomes of one submission");
                self.counts.resolved += 1;
                self.check_outcome(&batch, &outcome);
            }
            (What::Rejoin(handle, _), Err(error)) => assert!(
                excused || self.workers.handles[handle].freed,
                "an outcome is lost: {error:?}"
            ),
            (What::Next(handle), Ok(Done::Delivery(delivery))) => {
                self.counts.deliveries += 1;
                let reference = number(&delivery.reference);
                let identity = number(&delivery.identity);
                let through = self.cluster.endpoints.references[&reference];
                let held = &mut self.workers.handles[handle];
                assert!(
                    held.last.is_none_or(|last| last == through || held.gap),
                    "a delivery of a new attachment before its interruption (EC-5)"
                );
                held.gap = false;
                held.last = Some(through);
                assert!(self.cluster.endpoints.produced[&held.name].contains(&identity));
                assert!(
                    !self.workers.confirmed.contains(&identity),
                    "delivered again after a confirmed settlement"
                );
                assert_eq!(delivery.batch, content(identity));
                held.deliveries.push(delivery);
            }
            (What::Next(handle), Err(error)) => {
                let opened = self.workers.opened.clone();
                let held = &mut self.workers.handles[handle];
                match error.kind {
                    ErrorKind::Interrupted => {
                        held.gap = true;
                        held.interruptions += 1;
                        let attachments = opened[&held.name] - held.base;
                        assert!(
                            held.interruptions <= attachments,
                            "more interruptions than attachments"
                        );
                        self.counts.gaps += 1;
                    }
                    ErrorKind::ReopenRequired => {
                        held.over = true;
                        self.counts.over += 1;
                    }
                    ErrorKind::Closed => assert!(held.closing || held.freed || excused),
                    _ => assert!(excused, "{error:?}"),
                }
            }
            (What::Submit(handle, _), Err(error)) => {
                let held = &mut self.workers.handles[handle];
                match error.kind {
                    ErrorKind::ReopenRequired => held.over = true,
                    ErrorKind::Closed => assert!(held.closing || held.freed || excused),
                    ErrorKind::Deadline | ErrorKind::Connect | ErrorKind::Transport => {}
                    _ => assert!(excused, "{error:?}"),
                }
            }
            (What::Settle(_, identity, both), Ok(Done::Settled(settlement))) => {
                assert!(
                    matches!(
                        settlement,
                        Settlement::Confirmed
                            | Settlement::StaleReference
                            | Settlement::ConsumerEnded
                    ),
                    "{settlement:?}"
                );
                if settlement == Settlement::Confirmed {
                    self.counts.settled += 1;
                    if both.1 != Decision::Retry && self.cluster.endpoints.done.contains(&identity)
                    {
                        self.workers.confirmed.insert(identity);
                    }
                }
            }
            (What::Settle(..), Err(error)) => assert!(
                excused
                    || matches!(
                        error.kind,
                        ErrorKind::Rejected | ErrorKind::Uncertain | ErrorKind::Transport
                    ),
                "{error:?}"
            ),
            (What::Close(_), Ok(Done::Closed)) => {}
            (What::Close(_), Err(error)) => assert!(excused, "{error:?}"),
            (what, result) => panic!("{what:?} ends with {result:?}"),
        }
    }

    /// The one outcome of a submission is what the server said last, or what follows from its silence.
    fn check_outcome(&self, batch: &Bytes, outcome: &SubmissionOutcome) {
        let sent = self.workers.sent.get(batch);
        let flying = sent.is_some_and(|sent| sent.flying);
        let last = sent.and_then(|sent| sent.last.as_ref());
        match outcome.result {
            SubmissionResult::OutcomeUnknown(Uncertainty::SessionLost) => {
                assert!(flying, "not known, though {last:?} (P-8)");
            }
            SubmissionResult::NotAdmitted(SubmissionRefusal::ProducerEnded) => assert!(
                !flying
                    && last.is_none_or(|last| {
                        is_sent_again(last) || result_of(last) == outcome.result
                    }),
                "not admitted, though {sent:?}"
            ),
            result => {
                assert!(!flying, "{result:?} before the server said so");
                assert_eq!(last.map(result_of), Some(result), "{sent:?}");
            }
        }
        let content = self.cluster.endpoints.contents.get(batch);
        let admitted = content.map_or(0, |content| content.admitted);
        if outcome.result == SubmissionResult::Completed {
            assert_eq!(content.map(|content| content.completed), Some(1));
            assert_eq!(outcome.message, "");
        }
        if matches!(outcome.result, SubmissionResult::NotAdmitted(_)) {
            assert_eq!(admitted, 0, "it was admitted");
        }
    }

    fn wait_until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let end = self.now + 2 * self.request_timeout + self.retry_timeout + 30 * SEC;
        while !done(self) {
            assert!(self.now < end, "{what} never came");
            self.read_for(SEC / 2);
        }
    }

    /// Without faults: no outcome is missing, no credit leaked, every delivery comes again until it is acknowledged.
    pub fn settle_endpoints(&mut self) {
        self.open_admissions();
        self.wait_until("the end of submits and settlements", |world| {
            !world.any_waiting(|what| {
                matches!(
                    what,
                    What::Submit(..) | What::Settle(..) | What::Open(..) | What::Close(_)
                ) && !matches!(what, What::Submit(..))
            })
        });
        self.take_outcomes();
        for handle in self.live(Role::Producer) {
            let mut calls = Vec::new();
            for _ in 0..self.workers.handles[handle].batches {
                let batch: Bytes = {
                    self.workers.serial += 1;
                    content(self.workers.serial)
                };
                calls.push(self.start(What::Submit(handle, batch)));
            }
            self.wait_until("credit for a batch that fits", |world| {
                calls.iter().all(|call| !world.waits(*call))
            });
            if self.workers.handles[handle].is_live() {
                let held = self.workers.handles[handle].submissions.len();
                assert_eq!(held, self.workers.handles[handle].batches as usize);
                assert_eq!(
                    self.engine.endpoint_state(self.workers.handles[handle].id),
                    EndpointState::Active
                );
            }
            self.take_outcomes();
        }
        for handle in self.live(Role::Consumer) {
            self.drain(handle);
        }
        for handle in 0..self.workers.handles.len() {
            if !self.workers.handles[handle].freed {
                let id = self.workers.handles[handle].id;
                assert_eq!(self.engine.pending(id), [], "a leaked submission");
                self.start(What::Close(handle));
            }
        }
        self.wait_until("the end of a close", |world| {
            !world.any_waiting(|what| matches!(what, What::Close(_) | What::Next(_)))
        });
        self.read_for(2 * SEC);
        for session in self.cluster.sessions.values() {
            assert!(
                session.endpoints.is_empty(),
                "left open: {:?}",
                session.endpoints
            );
        }
    }

    fn take_outcomes(&mut self) {
        let end = self.now + 60 * SEC;
        loop {
            let mut all = Vec::new();
            for (at, handle) in self.workers.handles.iter().enumerate() {
                all.extend(handle.submissions.keys().map(|one| (at, *one)));
            }
            let submits = self.any_waiting(|what| matches!(what, What::Submit(..)));
            if all.is_empty() && !submits {
                return;
            }
            assert!(self.now < end, "outcomes that never came: {all:?}");
            for (handle, submission) in all {
                if !self.is_waiting(&What::Rejoin(handle, submission)) {
                    self.start(What::Rejoin(handle, submission));
                }
            }
            self.read_for(SEC);
        }
    }

    /// Reads and acknowledges until everything of an emitter is done with.
    fn drain(&mut self, handle: usize) {
        let name = self.workers.handles[handle].name.clone();
        let end = self.now + 240 * SEC;
        loop {
            let endpoints = &self.cluster.endpoints;
            let left = endpoints
                .produced
                .get(&name)
                .map_or(0, |all| all.difference(&endpoints.done).count());
            if left == 0 || !self.workers.handles[handle].is_live() {
                return;
            }
            assert!(self.now < end, "{left} deliveries of {name} never came");
            for delivery in std::mem::take(&mut self.workers.handles[handle].deliveries) {
                let identity = number(&delivery.identity);
                let both = Box::new((delivery, Decision::Ack));
                self.start(What::Settle(handle, identity, both));
            }
            if !self.is_waiting(&What::Next(handle)) {
                self.start(What::Next(handle));
            }
            self.read_for(SEC / 10);
        }
    }
}

fn rejected_by_request(error: &Error) -> bool {
    error.kind == ErrorKind::Rejected
}
