//! One session: which requests are in flight and in which lane they run, what its subscriptions are called, reading its
//! frames and writing them. Must not know what a statement means or how a call is accepted.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use nervix_wire::types::{
    CancelOutcome, CancelState, CancellationStage, ClientMessage, ClientRequest,
    DomainClockAttachDisposition, DomainClockAttachOutcome, DomainClockDetachDisposition,
    DomainClockDetachOutcome, DomainList, DomainNotFound, DomainSelected, DomainSelection,
    DomainSelectionOutcome, DomainSnapshotObserved, NoticeLevel, Reply, ReplyBody,
    RequestCancelled, RequestRejected, RequestRejection, ServerBody, ServerMessage, ServerNotice,
    SubscribeDisposition, SubscribeOutcome, UnsubscribeDisposition, UnsubscribeOutcome,
};
use nervix_wire::{EncodeError, Frame, Violation, FRAME_LIMIT};
use parking_lot::Mutex;
use tokio::sync::{mpsc, Notify};
use tokio::task::JoinSet;

use crate::cluster::{rejected, Answered, Cluster};
use crate::counts::{Direction, SessionEnd};
use crate::faults::{LeaderMove, Place, Split, Spoil, Waiter, When};
use crate::graph::SubscriptionId;
use crate::grpc::{self, CallEnd, Envelope, Incoming, MessageReader, Status};
use crate::hostile;
use crate::journal::{About, Event, Made};
use crate::kinds;
use crate::outbox::{Finish, Next, Opens, OutFrame, Outbox};
use crate::server::ConnectionControl;

/// Requests that may be unanswered at once.
const IN_FLIGHT_LIMIT: usize = 64;
/// A reply above the frame limit goes out in parts of this many bytes.
const PART_BYTES: usize = 1024 * 1024;

#[derive(Debug)]
struct Flight {
    admitted: bool,
    /// How the session ends instead of answering, once the request was carried out.
    cut: Option<Finish>,
    /// Where leadership goes once the request was carried out.
    leader_move: Option<LeaderMove>,
    cancelled: Arc<Notify>,
    /// A batch is bounded by its producer's credit and does not count as a request in flight.
    submission: bool,
    /// What a test wants answered, whatever comes out.
    forced: Option<ReplyBody>,
}

#[derive(Debug, Default)]
struct Flights {
    open: HashMap<u64, Flight>,
    submissions: usize,
}

impl Flights {
    fn insert(&mut self, request_id: u64, flight: Flight) {
        self.submissions += usize::from(flight.submission);
        self.open.insert(request_id, flight);
    }

    fn remove(&mut self, request_id: u64) -> Option<Flight> {
        let flight = self.open.remove(&request_id)?;
        self.submissions -= usize::from(flight.submission);
        Some(flight)
    }

    fn is_full(&self) -> bool {
        self.open.len() - self.submissions >= IN_FLIGHT_LIMIT
    }
}

#[derive(Debug, Default)]
struct Names {
    held: HashMap<String, (SubscriptionId, u64)>,
}

#[derive(Debug)]
pub struct Session {
    pub id: u64,
    pub node: usize,
    pub user: String,
    pub outbox: Arc<Outbox>,
    flights: Mutex<Flights>,
    names: Mutex<Names>,
}

impl Session {
    pub fn new(id: u64, node: usize, user: String) -> Self {
        Self {
            id,
            node,
            user,
            outbox: Arc::new(Outbox::default()),
            flights: Mutex::default(),
            names: Mutex::new(Names::default()),
        }
    }

    pub fn place(&self) -> Place {
        Place {
            session: self.id,
            node: self.node,
        }
    }

    /// Gives a name to a subscription unless a live one has it, and says its generation.
    pub fn take_name(
        &self,
        name: &str,
        id: SubscriptionId,
        live: impl Fn(SubscriptionId) -> bool,
    ) -> Option<u64> {
        let mut names = self.names.lock();
        if names.held.get(name).is_some_and(|(id, _)| live(*id)) {
            return None;
        }
        // Never used twice by the cluster, so a subscription that is opened again is told apart from the one that was lost.
        let generation = id.0;
        names.held.insert(name.to_owned(), (id, generation));
        Some(generation)
    }

    pub fn release_name(&self, name: &str) -> Option<(SubscriptionId, u64)> {
        self.names.lock().held.remove(name)
    }

    pub fn forget_subscriptions(&self) -> Vec<SubscriptionId> {
        self.names
            .lock()
            .held
            .drain()
            .map(|(_, (id, _))| id)
            .collect()
    }

    /// Marks a request as being carried out; false when it was cancelled before.
    fn admit(&self, request_id: u64) -> bool {
        match self.flights.lock().open.get_mut(&request_id) {
            Some(flight) => {
                flight.admitted = true;
                true
            }
            None => false,
        }
    }

    fn land(&self, request_id: u64) -> Option<Flight> {
        self.flights.lock().remove(request_id)
    }

    fn cancellation(&self, request_id: u64) -> Option<Arc<Notify>> {
        let flights = self.flights.lock();
        flights
            .open
            .get(&request_id)
            .map(|flight| flight.cancelled.clone())
    }

    /// What a test wants answered to a request.
    pub fn forced(&self, request_id: u64) -> Option<ReplyBody> {
        let flights = self.flights.lock();
        flights.open.get(&request_id)?.forced.clone()
    }

    fn force(&self, request_id: u64, body: ReplyBody) {
        if let Some(flight) = self.flights.lock().open.get_mut(&request_id) {
            flight.forced = Some(body);
        }
    }

    /// What a test wants to happen once a request was carried out.
    fn afterwards(&self, request_id: u64) -> (Option<LeaderMove>, Option<Finish>) {
        let flights = self.flights.lock();
        flights
            .open
            .get(&request_id)
            .map_or((None, None), |flight| {
                (flight.leader_move, flight.cut.clone())
            })
    }
}

/// What answers a request, and what is sent right after it.
struct Answer {
    body: ReplyBody,
    opens: Option<Opens>,
    after: Vec<ServerBody>,
}

impl Answer {
    fn opening(body: ReplyBody, opens: Option<Opens>) -> Self {
        Self {
            opens,
            ..body.into()
        }
    }
}

impl From<ReplyBody> for Answer {
    fn from(body: ReplyBody) -> Self {
        Self {
            body,
            opens: None,
            after: Vec::new(),
        }
    }
}

impl From<RequestRejected> for Answer {
    fn from(rejected: RequestRejected) -> Self {
        ReplyBody::RequestRejected(rejected).into()
    }
}

/// Serves a session from its first frame to its end.
pub async fn serve(
    cluster: Arc<Cluster>,
    node: usize,
    user: String,
    body: RecvStream,
    stream: SendStream<Bytes>,
    connection: ConnectionControl,
) {
    let session = cluster.open_session(node, user);
    let writer = tokio::spawn(write(cluster.clone(), session.clone(), stream, connection));
    let reader = Reader {
        cluster: cluster.clone(),
        session: session.clone(),
    };
    let end = reader.run(MessageReader::new(body, FRAME_LIMIT)).await;
    cluster.close_session(&session, end);
    // The writer ends by itself once the outbox is closed.
    let _ = writer.await;
}

async fn write(
    cluster: Arc<Cluster>,
    session: Arc<Session>,
    mut stream: SendStream<Bytes>,
    connection: ConnectionControl,
) {
    let place = session.place();
    loop {
        let frame = match session.outbox.next().await {
            Next::Closed => break,
            Next::Finish(finish) => {
                carry_out(&finish, &mut stream, &connection).await;
                break;
            }
            Next::Frame(frame) => frame,
        };
        let cut = cluster.faults.cut(place, Direction::Out, frame.kind);
        if let Some((When::Before, finish)) = &cut {
            note_fault(
                &cluster,
                place,
                Made::Cut,
                (Direction::Out, frame.kind),
                When::Before,
            );
            session.outbox.finish(finish.clone(), false);
            continue;
        }
        let leader_move = cluster
            .faults
            .leader_move(place, Direction::Out, frame.kind);
        if let Some(moved) = leader_move.filter(|moved| moved.when == When::Before) {
            move_leader(&cluster, place, moved, frame.kind);
        }
        let envelope = match cluster.faults.spoil(place, frame.kind) {
            None => Envelope::plain(frame.bytes),
            Some(Spoil::Corrupt(corruption)) => {
                Envelope::plain(hostile::corrupt(frame.kind, &frame.bytes, corruption))
            }
            Some(Spoil::Compressed) => Envelope {
                flag: 1,
                frame: frame.bytes,
            },
        };
        let sent = tokio::select! {
            biased;
            sent = grpc::send_message(&mut stream, envelope) => sent,
            () = session.outbox.abandoned() => continue,
        };
        if sent.is_err() {
            // The reader learns how the client's side ended.
            break;
        }
        note_frame(&cluster, place, Direction::Out, frame.kind, About::Nothing);
        if let Some(opened) = &frame.opens {
            session.outbox.let_flow(opened);
        }
        if let Some(moved) = leader_move.filter(|moved| moved.when == When::After) {
            move_leader(&cluster, place, moved, frame.kind);
        }
        if let Some((When::After, finish)) = cut {
            note_fault(
                &cluster,
                place,
                Made::Cut,
                (Direction::Out, frame.kind),
                When::After,
            );
            session.outbox.finish(finish, false);
        }
    }
    session.outbox.close();
}

/// Counts a frame that was written or understood.
fn note_frame(
    cluster: &Cluster,
    place: Place,
    direction: Direction,
    kind: &'static str,
    about: About,
) {
    cluster.counts.frame(direction, kind);
    let event = Event::Frame {
        direction,
        kind,
        about,
    };
    cluster.journal.note(place.session, event);
}

fn note_fault(
    cluster: &Cluster,
    place: Place,
    made: Made,
    (direction, kind): (Direction, &'static str),
    when: When,
) {
    let event = Event::Fault {
        made,
        direction,
        kind,
        when,
    };
    cluster.journal.note(place.session, event);
}

fn move_leader(cluster: &Cluster, place: Place, moved: LeaderMove, kind: &'static str) {
    note_fault(
        cluster,
        place,
        Made::LeaderMoved,
        (moved.direction, kind),
        moved.when,
    );
    cluster.set_leader(moved.leader);
}

async fn carry_out(
    finish: &Finish,
    stream: &mut SendStream<Bytes>,
    connection: &ConnectionControl,
) {
    match finish {
        Finish::Status { code, message } => Status::new(*code, message.clone()).finish(stream),
        Finish::Reset(code) => {
            // A reset discards what is not yet on the wire.
            connection.settle().await;
            stream.send_reset(Reason::from(*code));
        }
        Finish::GoAway(code) => connection.go_away(*code).await,
        Finish::Close { abort } => connection.close(*abort).await,
    }
}

struct Reader {
    cluster: Arc<Cluster>,
    session: Arc<Session>,
}

impl Reader {
    async fn run(&self, mut messages: MessageReader) -> SessionEnd {
        let outbox = &self.session.outbox;
        // Those that still wait in the end were not admitted and have nobody to answer, so they end as well.
        let mut requests = JoinSet::new();
        let mut lane = || {
            let (lane, mut queue) = mpsc::unbounded_channel::<(u64, ClientRequest)>();
            let (cluster, session) = (self.cluster.clone(), self.session.clone());
            requests.spawn(async move {
                while let Some((request_id, request)) = queue.recv().await {
                    process(&cluster, &session, request_id, request).await;
                }
            });
            lane
        };
        let (ordered, batches) = (lane(), lane());
        let end = loop {
            let incoming = tokio::select! {
                biased;
                () = outbox.finished() => break CallEnd::Lost(String::new()),
                Some(_) = requests.join_next() => continue,
                incoming = async {
                    outbox.has_room().await;
                    messages.next().await
                } => incoming,
            };
            match incoming {
                Incoming::Message(frame) => {
                    if outbox.is_over() {
                        continue;
                    }
                    if let Some((request_id, request)) = self.accept(&frame) {
                        // The lanes live as long as this loop.
                        match order(&request) {
                            Order::Commands => drop(ordered.send((request_id, request))),
                            Order::Batches => drop(batches.send((request_id, request))),
                            Order::None => {
                                let (cluster, session) =
                                    (self.cluster.clone(), self.session.clone());
                                requests.spawn(async move {
                                    process(&cluster, &session, request_id, request).await
                                });
                            }
                        }
                    }
                }
                Incoming::Refused(status) => {
                    self.note_malformed();
                    self.refuse(status);
                    // Where one message was broken, no other can be found.
                    outbox.closed().await;
                    break CallEnd::Lost(String::new());
                }
                Incoming::End(end) => break end,
            }
        };
        let finishing = outbox.finishing();
        if finishing.is_some() || !matches!(end, CallEnd::EndStream) {
            // One that is just being carried out comes to its end first: what it opens is closed with the session.
            requests.shutdown().await;
        }
        if let Some(finish) = finishing {
            return SessionEnd::Server(finish.describe());
        }
        match end {
            CallEnd::EndStream => {
                drop((ordered, batches));
                while requests.join_next().await.is_some() {}
                outbox.finish(
                    Finish::Status {
                        code: grpc::OK,
                        message: String::new(),
                    },
                    true,
                );
                outbox.closed().await;
                SessionEnd::EndStream
            }
            CallEnd::Reset(code) => SessionEnd::Reset(code),
            CallEnd::Lost(detail) => SessionEnd::Lost(detail),
        }
    }

    /// Counts a frame that was received.
    fn note(&self, kind: &'static str, about: About) {
        note_frame(
            &self.cluster,
            self.session.place(),
            Direction::In,
            kind,
            about,
        );
    }

    /// Something arrived that is no frame of the protocol, or is in no message.
    fn note_malformed(&self) {
        self.note(kinds::MALFORMED, About::Nothing);
        self.cluster.counts.violation(kinds::MALFORMED);
    }

    fn refuse(&self, status: Status) {
        self.session.outbox.finish(
            Finish::Status {
                code: status.code,
                message: status.message,
            },
            true,
        );
    }

    /// Takes a frame in. What it asks for is answered here when that takes no time, and handed out otherwise.
    fn accept(&self, frame: &Frame) -> Option<(u64, ClientRequest)> {
        let ClientMessage {
            request_id,
            request,
        } = match nervix_wire::decode_client(frame) {
            Ok(message) => message,
            Err(violation) => {
                self.note_malformed();
                match nervix_wire::client_request_id(frame) {
                    Some(request_id) => self.answer(request_id, defect(&violation).into()),
                    None => self.refuse(Status::new(grpc::INTERNAL, violation.to_string())),
                }
                return None;
            }
        };
        let kind = kinds::request_kind(&request);
        let place = self.session.place();
        let cut = self.cluster.faults.cut(place, Direction::In, kind);
        if let Some((When::Before, finish)) = cut {
            note_fault(
                &self.cluster,
                place,
                Made::Cut,
                (Direction::In, kind),
                When::Before,
            );
            self.session.outbox.finish(finish, false);
            return None;
        }
        let leader_move = self.cluster.faults.leader_move(place, Direction::In, kind);
        if let Some(moved) = leader_move.filter(|moved| moved.when == When::Before) {
            move_leader(&self.cluster, place, moved, kind);
        }
        self.note(kind, About::request(&request));
        let mut flights = self.session.flights.lock();
        if flights.open.contains_key(&request_id) {
            drop(flights);
            let rejected = rejected(
                RequestRejection::DuplicateRequestId,
                Some("request_id"),
                format!("request {request_id} is still in flight"),
            );
            self.reject(request_id, rejected);
            return None;
        }
        if let ClientRequest::CancelRequest(cancel) = &request {
            let target = cancel.target_request_id;
            let submission = flights.open.get(&target).is_some_and(|it| it.submission);
            let flight = if submission {
                None
            } else {
                flights.remove(target)
            };
            drop(flights);
            if submission {
                let rejected = rejected(
                    RequestRejection::InvalidRequest,
                    Some("target_request_id"),
                    format!("request {target} is a submitted batch, which cannot be cancelled"),
                );
                self.reject(request_id, rejected);
            } else {
                self.cancel(request_id, target, flight);
            }
            if let Some(moved) = leader_move.filter(|moved| moved.when == When::After) {
                move_leader(&self.cluster, place, moved, kind);
            }
            if let Some((_, finish)) = cut {
                note_fault(
                    &self.cluster,
                    place,
                    Made::Cut,
                    (Direction::In, kind),
                    When::After,
                );
                self.session.outbox.finish(finish, false);
            }
            return None;
        }
        let submission = matches!(request, ClientRequest::SubmitBatchRequest(_));
        if !submission && flights.is_full() {
            drop(flights);
            let rejected = rejected(
                RequestRejection::TooManyRequestsInFlight,
                None,
                format!("{IN_FLIGHT_LIMIT} requests are in flight"),
            );
            self.reject(request_id, rejected);
            return None;
        }
        if let Some(rejection) = self.cluster.faults.rejection(place, kind) {
            drop(flights);
            let rejected = rejected(
                rejection.rejection,
                rejection.field.as_deref(),
                rejection.message,
            );
            self.answer(request_id, rejected.into());
            return None;
        }
        flights.insert(
            request_id,
            Flight {
                admitted: false,
                cut: cut.map(|(_, finish)| finish),
                leader_move: leader_move.filter(|moved| moved.when == When::After),
                cancelled: Arc::new(Notify::new()),
                submission,
                forced: None,
            },
        );
        Some((request_id, request))
    }

    fn cancel(&self, request_id: u64, target_request_id: u64, target: Option<Flight>) {
        let state = match &target {
            Some(_) => CancelState::Requested,
            None => CancelState::NotInFlight,
        };
        let outcome = CancelOutcome {
            target_request_id,
            state,
        };
        self.answer(request_id, ReplyBody::CancelOutcome(outcome).into());
        if let Some(flight) = target {
            // A read that nothing was given to has no effect.
            let withdrawn = self.cluster.withdraw_read(&self.session, target_request_id);
            let stage = if flight.admitted && !withdrawn {
                CancellationStage::AfterAdmission
            } else {
                CancellationStage::BeforeAdmission
            };
            self.answer(
                target_request_id,
                ReplyBody::RequestCancelled(RequestCancelled { stage }).into(),
            );
            flight.cancelled.notify_one();
        }
    }

    /// Answers a request that no client may make.
    fn reject(&self, request_id: u64, rejected: RequestRejected) {
        let what = kinds::rejection(&rejected.rejection);
        self.cluster.counts.violation(what);
        self.answer(request_id, rejected.into());
    }

    fn answer(&self, request_id: u64, answer: Answer) {
        send_reply(&self.cluster, &self.session, request_id, answer);
    }
}

/// Which requests a request waits for.
enum Order {
    /// Those that came before it and wait likewise.
    Commands,
    /// The batches before it: they are taken in the order in which they were sent, and a close comes behind them.
    Batches,
    None,
}

fn order(request: &ClientRequest) -> Order {
    match request {
        ClientRequest::CommandRequest(_)
        | ClientRequest::AttachTransactionRequest(_)
        | ClientRequest::SubscribeRequest(_)
        | ClientRequest::UnsubscribeRequest(_)
        | ClientRequest::AttachDomainClockRequest(_)
        | ClientRequest::DetachDomainClockRequest(_)
        // Sent ahead of a transaction, they are not opened inside of it.
        | ClientRequest::OpenIngestorRequest(_)
        | ClientRequest::OpenEmitterRequest(_) => Order::Commands,
        ClientRequest::SubmitBatchRequest(_) | ClientRequest::CloseIngestorRequest(_) => {
            Order::Batches
        }
        _ => Order::None,
    }
}

/// What to answer a request that can be told from its frame but not decoded. The violation names the field as the
/// schema does, table first.
fn defect(violation: &Violation) -> RequestRejected {
    let message = violation.message();
    let place = message.split(' ').next().unwrap_or_default();
    let field = place.split_once('.').map(|(_, field)| field);
    let rejection = if message.contains("undeclared member") {
        RequestRejection::UnsupportedRequest
    } else if message.contains("undeclared value") {
        RequestRejection::UnsupportedValue
    } else {
        RequestRejection::InvalidRequest
    };
    rejected(rejection, field, message)
}

async fn process(
    cluster: &Arc<Cluster>,
    session: &Arc<Session>,
    request_id: u64,
    request: ClientRequest,
) {
    let kind = kinds::request_kind(&request);
    if let Some(hold) = begin_hold(cluster, session, request_id, When::Before, kind) {
        hold.wait(cluster).await;
    }
    if !session.admit(request_id) {
        return;
    }
    // Read now: a request may have its answer, and be no more in flight, by the time that it was carried out.
    let (leader_move, cut) = session.afterwards(request_id);
    let forced = cluster.faults.forced(session.place(), kind);
    let handled = match forced {
        Some(forced) if !forced.execute => {
            if let (
                ClientRequest::SubmitBatchRequest(request),
                ReplyBody::SubmissionOutcome(outcome),
            ) = (&request, &forced.body)
            {
                cluster.ignore_batch(&request.batch, &outcome.disposition);
            }
            Answered::Now(forced.body.into())
        }
        forced => {
            if let Some(forced) = forced {
                session.force(request_id, forced.body);
            }
            handle(cluster, session, request_id, request)
        }
    };
    if let Some(moved) = leader_move {
        move_leader(cluster, session.place(), moved, kind);
    }
    if let Some(finish) = cut {
        note_fault(
            cluster,
            session.place(),
            Made::Cut,
            (Direction::In, kind),
            When::After,
        );
        session.outbox.finish(finish, false);
        return;
    }
    if let Answered::Now(mut answer) = handled {
        if let Some(change) = cluster.faults.change(session.place(), kind) {
            change.apply(&mut answer.body);
        }
        if let Some(hold) = begin_hold(cluster, session, request_id, When::After, kind) {
            hold.wait(cluster).await;
        }
        finish_request(cluster, session, request_id, kind, answer);
    }
}

/// Whether an answer is on its way, or a test keeps it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    Now,
    Withheld,
}

/// Answers a request that was answered neither when it was taken nor since. `told` is called when a test kept the answer
/// back, once it no longer does.
pub fn conclude(
    cluster: &Arc<Cluster>,
    session: &Arc<Session>,
    request_id: u64,
    kind: &'static str,
    body: ReplyBody,
    told: impl FnOnce(&Arc<Cluster>) + Send + 'static,
) -> Told {
    let Some(hold) = begin_hold(cluster, session, request_id, When::After, kind) else {
        finish_request(cluster, session, request_id, kind, body.into());
        return Told::Now;
    };
    let (cluster, session) = (cluster.clone(), session.clone());
    tokio::spawn(async move {
        hold.wait(&cluster).await;
        finish_request(&cluster, &session, request_id, kind, body.into());
        told(&cluster);
    });
    Told::Withheld
}

/// Sends the answer, unless the request was cancelled or a test wants it lost.
fn finish_request(
    cluster: &Cluster,
    session: &Session,
    request_id: u64,
    kind: &'static str,
    mut answer: Answer,
) {
    let dropped = cluster.faults.drops_reply(session.place(), kind);
    let flight = session.land(request_id);
    let cancelled = flight.is_none();
    if let Some(forced) = flight.and_then(|flight| flight.forced) {
        answer.body = forced;
    }
    if !cancelled && !dropped {
        send_reply(cluster, session, request_id, answer);
        return;
    }
    match answer.opens {
        // An attach that was cancelled attaches nothing.
        Some(Opens::Clock(domain)) if cancelled => {
            cluster.unfollow(session, &domain);
        }
        // Nobody is told of it, but it is open all the same.
        Some(opened) => session.outbox.let_flow(&opened),
        None => {}
    }
}

/// A wait that a test wants of a request.
struct Hold {
    waiter: Waiter,
    cancelled: Arc<Notify>,
}

impl Hold {
    async fn wait(self, cluster: &Cluster) {
        let _held = cluster.counts.hold();
        tokio::select! {
            () = self.waiter.wait() => {}
            () = self.cancelled.notified() => {}
        }
    }
}

/// Begins to wait where a test wants a request to wait. It ends early when the request is cancelled.
fn begin_hold(
    cluster: &Cluster,
    session: &Session,
    request_id: u64,
    when: When,
    kind: &str,
) -> Option<Hold> {
    // A request that was cancelled meanwhile takes no delay from another.
    let cancelled = session.cancellation(request_id)?;
    let delay = cluster.faults.delay(session.place(), when, kind)?;
    Some(Hold {
        waiter: cluster.faults.waiter(&delay),
        cancelled,
    })
}

fn handle(
    cluster: &Arc<Cluster>,
    session: &Arc<Session>,
    request_id: u64,
    request: ClientRequest,
) -> Answered<Answer> {
    if let Some(refusal) = in_transaction(cluster, session, &request) {
        return Answered::Now(refusal.into());
    }
    let answered = match request {
        ClientRequest::SubmitBatchRequest(request) => {
            let answered = cluster.submit_batch(session, request_id, &request);
            return answered.map(|outcome| ReplyBody::SubmissionOutcome(outcome).into());
        }
        ClientRequest::CloseIngestorRequest(request) => {
            let answered = cluster.close_ingestor(session, request_id, request.producer);
            return answered.map(|outcome| ReplyBody::CloseIngestorOutcome(outcome).into());
        }
        ClientRequest::ReadEmitterBatchRequest(request) => {
            match cluster.read_emitter(session, request_id, request.consumer) {
                Ok(answered) => {
                    return answered
                        .map(|outcome| ReplyBody::ReadEmitterBatchOutcome(outcome).into())
                }
                Err(rejected) => Err(rejected),
            }
        }
        ClientRequest::CommandRequest(request) => {
            cluster.command(session, &request).map(|mut outcome| {
                if let Some(reference) = cluster.faults.wrong_reference(session.place()) {
                    outcome.execution_reference = reference;
                }
                ReplyBody::CommandOutcome(outcome).into()
            })
        }
        ClientRequest::AttachTransactionRequest(request) => {
            let outcome = cluster.attach_transaction(session, &request);
            Ok(ReplyBody::AttachOutcome(outcome).into())
        }
        ClientRequest::InspectTransactionRequest(request) => {
            let outcome = cluster.inspect_transaction(session, &request);
            Ok(ReplyBody::InspectionOutcome(outcome).into())
        }
        ClientRequest::SuggestRequest(request) => cluster
            .suggest(&request)
            .map(|outcome| ReplyBody::SuggestOutcome(outcome).into()),
        ClientRequest::ListDomainsRequest => Ok(ReplyBody::DomainList(DomainList {
            domains: cluster.domains(),
        })
        .into()),
        ClientRequest::SelectDomainRequest(request) => select(cluster, request.domain),
        ClientRequest::SubscribeRequest(request) => {
            cluster.subscribe(session, &request).map(|subscribed| {
                Answer::opening(
                    ReplyBody::SubscribeOutcome(subscribed.outcome),
                    subscribed.opens,
                )
            })
        }
        ClientRequest::UnsubscribeRequest(request) => cluster
            .unsubscribe(session, &request.subscription)
            .map(|outcome| ReplyBody::UnsubscribeOutcome(outcome).into()),
        ClientRequest::AttachDomainClockRequest(request) => cluster
            .attach_clock(session, &request)
            .map(|(outcome, opens)| {
                Answer::opening(ReplyBody::DomainClockAttachOutcome(outcome), opens)
            }),
        ClientRequest::DetachDomainClockRequest(request) => cluster
            .detach_clock(session, &request)
            .map(|outcome| ReplyBody::DomainClockDetachOutcome(outcome).into()),
        ClientRequest::OpenIngestorRequest(request) => cluster
            .open_ingestor(session, request_id, &request)
            .map(|(outcome, opens)| {
                Answer::opening(ReplyBody::OpenIngestorOutcome(outcome), opens)
            }),
        ClientRequest::OpenEmitterRequest(request) => cluster
            .open_emitter(session, request_id, &request)
            .map(|outcome| ReplyBody::OpenEmitterOutcome(outcome).into()),
        ClientRequest::SettleEmitterBatchRequest(request) => Ok(
            ReplyBody::SettleEmitterBatchOutcome(cluster.settle_batch(session, &request)).into(),
        ),
        ClientRequest::CloseEmitterRequest(request) => Ok(ReplyBody::CloseEmitterOutcome(
            cluster.close_emitter(session, request.consumer),
        )
        .into()),
        other => Err(rejected(
            RequestRejection::UnsupportedRequest,
            None,
            format!("this node does not serve {}", kinds::request_kind(&other)),
        )),
    };
    Answered::Now(answered.unwrap_or_else(|rejected| {
        let what = kinds::rejection(&rejected.rejection);
        cluster.counts.violation(what);
        rejected.into()
    }))
}

/// The refusal of what a session may not ask for while it holds a transaction. Opens of endpoints have their own.
fn in_transaction(
    cluster: &Cluster,
    session: &Session,
    request: &ClientRequest,
) -> Option<ReplyBody> {
    let why = || cluster.forbids(session, kinds::request_kind(request));
    Some(match request {
        ClientRequest::SubscribeRequest(_) => ReplyBody::SubscribeOutcome(SubscribeOutcome {
            message: why()?,
            disposition: SubscribeDisposition::RequestFailed,
            diagnostics: Vec::new(),
        }),
        ClientRequest::UnsubscribeRequest(_) => ReplyBody::UnsubscribeOutcome(UnsubscribeOutcome {
            message: why()?,
            disposition: UnsubscribeDisposition::RequestFailed,
            diagnostics: Vec::new(),
        }),
        ClientRequest::AttachDomainClockRequest(_) => {
            ReplyBody::DomainClockAttachOutcome(DomainClockAttachOutcome {
                message: why()?,
                disposition: DomainClockAttachDisposition::RequestFailed,
            })
        }
        ClientRequest::DetachDomainClockRequest(_) => {
            ReplyBody::DomainClockDetachOutcome(DomainClockDetachOutcome {
                message: why()?,
                disposition: DomainClockDetachDisposition::RequestFailed,
            })
        }
        _ => return None,
    })
}

fn select(cluster: &Cluster, domain: String) -> Result<Answer, RequestRejected> {
    if domain.is_empty() {
        return Err(rejected(
            RequestRejection::InvalidRequest,
            Some("domain"),
            "the domain's name is empty",
        ));
    }
    let mut after = Vec::new();
    let selection = if cluster.has_domain(&domain) {
        after.push(ServerBody::DomainSnapshotObserved(DomainSnapshotObserved {
            domain: domain.clone(),
            graph_json: "{}".to_owned(),
            entities: Vec::new(),
        }));
        after.push(ServerBody::ClusterObserved(cluster.observed()));
        DomainSelection::DomainSelected(DomainSelected { domain })
    } else {
        DomainSelection::DomainNotFound(DomainNotFound { domain })
    };
    Ok(Answer {
        body: ReplyBody::DomainSelectionOutcome(DomainSelectionOutcome { selection }),
        opens: None,
        after,
    })
}

fn send_reply(cluster: &Cluster, session: &Session, request_id: u64, answer: Answer) {
    let kind = kinds::reply_kind(&answer.body);
    let message = ServerMessage {
        body: ServerBody::Reply(Reply {
            request_id,
            body: answer.body,
        }),
    };
    let mut frames = reply_frames(cluster, session, request_id, kind, &message);
    if let Some(last) = frames.last_mut() {
        last.opens = answer.opens;
    }
    for frame in frames {
        session.outbox.send(frame);
    }
    for body in answer.after {
        session.outbox.send(cluster.frame(body));
    }
}

fn reply_frames(
    cluster: &Cluster,
    session: &Session,
    request_id: u64,
    kind: &'static str,
    message: &ServerMessage,
) -> Vec<OutFrame> {
    let whole = match cluster.faults.split(session.place(), kind) {
        None => cluster.encode(message),
        Some(Split::Bad(defect)) => match cluster.encode(message) {
            Ok(reply) => return parts(hostile::bad_parts(request_id, &reply, defect)),
            Err(error) => Err(error),
        },
        Some(Split::Parts { bytes, notices }) => {
            let encoded = cluster
                .encode(message)
                .and_then(|whole| nervix_wire::split_reply(request_id, &Bytes::from(whole), bytes));
            match encoded {
                Ok(encoded) => {
                    let mut frames = parts(encoded);
                    if notices {
                        frames = interleave(cluster, frames);
                    }
                    return frames;
                }
                Err(error) => Err(error),
            }
        }
    };
    match whole {
        Ok(bytes) => vec![OutFrame {
            kind,
            bytes: Bytes::from(bytes),
            opens: None,
        }],
        Err(EncodeError::TooLarge { .. }) => {
            match nervix_wire::encode_server_reply_parts(message, PART_BYTES) {
                Ok(encoded) => parts(encoded),
                Err(error) => vec![too_large(cluster, request_id, &error)],
            }
        }
        Err(error) => vec![too_large(cluster, request_id, &error)],
    }
}

fn parts(encoded: Vec<Vec<u8>>) -> Vec<OutFrame> {
    encoded
        .into_iter()
        .map(|bytes| OutFrame {
            kind: "TransferPart",
            bytes: Bytes::from(bytes),
            opens: None,
        })
        .collect()
}

fn interleave(cluster: &Cluster, frames: Vec<OutFrame>) -> Vec<OutFrame> {
    let mut mixed = Vec::with_capacity(frames.len().saturating_mul(2));
    for frame in frames {
        if !mixed.is_empty() {
            mixed.push(cluster.frame(ServerBody::ServerNotice(ServerNotice {
                level: NoticeLevel::Info,
                message: "between two parts".to_owned(),
            })));
        }
        mixed.push(frame);
    }
    mixed
}

fn too_large(cluster: &Cluster, request_id: u64, error: &EncodeError) -> OutFrame {
    cluster.frame(ServerBody::Reply(Reply {
        request_id,
        body: ReplyBody::RequestRejected(rejected(
            RequestRejection::ReplyTooLarge,
            None,
            format!("the reply cannot be sent: {error}"),
        )),
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use crate::cluster::Lifetimes;
    use nervix_wire::types::{CommandDisposition, CommandOutcome};
    use nervix_wire::{decode_server, Reassembler};

    fn reply(message: String) -> ServerMessage {
        let body = ReplyBody::CommandOutcome(CommandOutcome::plain(
            "r",
            CommandDisposition::RequestFailed,
            message,
        ));
        ServerMessage {
            body: ServerBody::Reply(Reply {
                request_id: 9,
                body,
            }),
        }
    }

    fn frames(message: &ServerMessage) -> Vec<OutFrame> {
        let nodes = vec![("node-1".to_owned(), "http://127.0.0.1:1".to_owned())];
        let cluster = Cluster::new(nodes, Vec::new(), Lifetimes::default(), false);
        let session = Session::new(1, 0, "default".to_owned());
        reply_frames(&cluster, &session, 9, "CommandOutcome", message)
    }

    // rule: F-6, F-7
    #[test]
    fn a_reply_above_the_frame_limit_goes_out_in_parts() {
        let message = reply("x".repeat(FRAME_LIMIT));
        let mut reassembler = Reassembler::new(9);
        let frames = frames(&message);
        assert!(frames.len() > 1);
        let mut whole = None;
        for frame in frames {
            assert_eq!(frame.kind, "TransferPart");
            assert!(whole.is_none());
            let decoded = decode_server(&Frame::copy_from(&frame.bytes)).unwrap();
            let ServerBody::Reply(Reply {
                body: ReplyBody::TransferPart(part),
                ..
            }) = decoded.body
            else {
                panic!("no part")
            };
            whole = reassembler.push(9, &part).unwrap();
        }
        assert_eq!(whole, Some(message));
    }

    // rule: C-8
    #[test]
    fn a_reply_above_the_transfer_limit_is_rejected_as_too_large() {
        let frames = frames(&reply("x".repeat(nervix_wire::TRANSFER_LIMIT)));
        let [frame] = frames.as_slice() else {
            panic!("more than one frame")
        };
        let decoded = decode_server(&Frame::copy_from(&frame.bytes)).unwrap();
        let ServerBody::Reply(reply) = decoded.body else {
            panic!("no reply")
        };
        assert_eq!(reply.request_id, 9);
        assert!(matches!(
            reply.body,
            ReplyBody::RequestRejected(rejected) if rejected.rejection == RequestRejection::ReplyTooLarge
        ));
    }
}
