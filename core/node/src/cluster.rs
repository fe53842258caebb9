//! What all nodes share: the graph, execution records, leadership, the sessions and who subscribes to what. Must not
//! know sockets or how frames are written.

mod clocks;
mod effects;
mod endpoints;
mod transactions;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use bytes::Bytes;
use nervix_wire::types::{
    ClusterObserved, CommandDisposition, CommandOutcome, CommandRequest, Diagnostic, DomainInfo,
    DomainStatus, DomainsObserved, ExecutionReferenceConflict, LeaderEndpoints, LeaderIsRemote,
    LeaderIsServingNode, Leadership, LeadershipObserved, OutcomeOrigin, RequestRejected,
    RequestRejection, RowsSkippedCause, ServerBody, ServerMessage, SessionEndReason, SessionEnding,
    SourceSpan, SubscribeDisposition, SubscribeOutcome, SubscribeRequest, SubscriptionDeleted,
    SubscriptionHandle, SubscriptionOpened, SubscriptionType, SuggestOutcome, SuggestRequest,
    TransactionState, UnsubscribeDisposition, UnsubscribeOutcome,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::endpoints::Endpoints;
use crate::args::Account;
use crate::clock::{machine_nanos, Clock};
use crate::counts::{Counts, SessionEnd};
use crate::faults::{Faults, Scope};
use crate::graph::{
    ClusterStatus, DeliveryMode, Effect, NodeStatus, Now, Published, StatementResult,
    SubscriptionId, World,
};
use crate::journal::Journal;
use crate::outbox::{Finish, Flood, Opens, OutFrame, Outbox};
use crate::records::{is_reference, Admission, Content, Records};
use crate::session::Session;
use crate::statements::Statement;
use crate::transactions::Transactions;
use crate::{kinds, statements};

pub use self::endpoints::{Answered, ForcedAt};

/// How long what nobody asks for is kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lifetimes {
    pub retry_validity_nanos: i64,
    pub transaction_idle_nanos: i64,
}

/// Where a subscription's rows go.
#[derive(Clone)]
struct Route {
    outbox: Arc<Outbox>,
    handle: SubscriptionHandle,
    mode: DeliveryMode,
    held: Arc<Mutex<Held>>,
}

/// What a BLOCKING subscription has had no room for yet.
#[derive(Default)]
struct Held {
    /// Whether a task moves it into the lane.
    moving: bool,
    parts: VecDeque<Parts>,
}

#[derive(Debug, Clone)]
struct Node {
    name: String,
    uri: String,
    running: bool,
}

struct State {
    world: World,
    records: Records,
    transactions: Transactions,
    clock: Clock,
    nodes: Vec<Node>,
    leader: Option<usize>,
    /// The node that led when it was stopped, and leads again when it comes back to a cluster without a leader.
    stopped_leader: Option<usize>,
    sessions: BTreeMap<u64, Arc<Session>>,
    routes: HashMap<SubscriptionId, Route>,
    /// The sessions that follow the clock of each domain.
    followers: BTreeMap<String, BTreeSet<u64>>,
    /// When the graph next has something to do, as the driver knows it.
    deadline: Option<Now>,
}

/// Orders the publications of one relay, since a BLOCKING subscription can make one of them wait.
type Turn = Arc<tokio::sync::Mutex<()>>;

pub struct Cluster {
    state: Mutex<State>,
    pub faults: Faults,
    pub counts: Counts,
    pub journal: Journal,
    accounts: Vec<Account>,
    alternate_domain_info: AtomicBool,
    next_session: AtomicU64,
    turns: Mutex<HashMap<(String, String), Turn>>,
    endpoints: Mutex<Endpoints>,
    /// What the graph did and sessions have not been told.
    effects: Mutex<VecDeque<Effect>>,
    /// Held by whoever tells them, so that all is told in order.
    telling: Mutex<()>,
    /// Wakes the driver when the deadline is another one.
    wake: Notify,
}

/// Rows to publish, in either form.
pub enum Rows<'a> {
    Json(&'a serde_json::Value),
    Ipc(&'a [u8]),
}

/// What a session needs to send for a subscription it asked for.
pub struct Subscribed {
    pub outcome: SubscribeOutcome,
    /// The generation whose rows may follow the reply.
    pub opens: Option<Opens>,
}

pub fn rejected(
    rejection: RequestRejection,
    field: Option<&str>,
    message: impl Into<String>,
) -> RequestRejected {
    RequestRejected {
        rejection,
        field: field.map(str::to_owned),
        message: message.into(),
    }
}

fn invalid(field: &str, message: impl Into<String>) -> RequestRejected {
    rejected(RequestRejection::InvalidRequest, Some(field), message)
}

impl Cluster {
    /// A cluster whose nodes have these names and addresses; the first of them leads.
    pub fn new(
        nodes: Vec<(String, String)>,
        accounts: Vec<Account>,
        lifetimes: Lifetimes,
        frozen: bool,
    ) -> Self {
        Self {
            state: Mutex::new(State {
                world: World::new(),
                records: Records::new(lifetimes.retry_validity_nanos),
                transactions: Transactions::new(
                    lifetimes.transaction_idle_nanos,
                    lifetimes.retry_validity_nanos,
                ),
                clock: Clock::new(frozen),
                leader: (!nodes.is_empty()).then_some(0),
                nodes: nodes
                    .into_iter()
                    .map(|(name, uri)| Node {
                        name,
                        uri,
                        running: true,
                    })
                    .collect(),
                stopped_leader: None,
                sessions: BTreeMap::new(),
                routes: HashMap::new(),
                followers: BTreeMap::new(),
                deadline: None,
            }),
            faults: Faults::default(),
            counts: Counts::default(),
            journal: Journal::default(),
            accounts,
            alternate_domain_info: AtomicBool::new(false),
            next_session: AtomicU64::new(1),
            turns: Mutex::new(HashMap::new()),
            endpoints: Mutex::default(),
            effects: Mutex::default(),
            telling: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// The user these Basic credentials belong to; `None` when they are refused. Without accounts everybody is let in
    /// under the name they bring.
    pub fn user_of(&self, credentials: Option<(String, String)>) -> Option<String> {
        if self.accounts.is_empty() {
            return Some(
                credentials.map_or_else(|| crate::args::DEFAULT_USER.to_owned(), |(user, _)| user),
            );
        }
        let (user, password) = credentials?;
        self.accounts
            .iter()
            .any(|account| account.user == user && account.password == password)
            .then_some(user)
    }

    /// The finished frame of a message that is not a reply.
    pub fn frame(&self, body: ServerBody) -> OutFrame {
        let kind = kinds::body_kind(&body);
        let bytes = self.encode(&ServerMessage { body }).unwrap_or_default();
        OutFrame {
            kind,
            bytes: Bytes::from(bytes),
            opens: None,
        }
    }

    pub fn encode(&self, message: &ServerMessage) -> Result<Vec<u8>, nervix_wire::EncodeError> {
        if self.alternate_domain_info.load(Ordering::Relaxed) {
            nervix_wire::encode_server_alternate_domain_info(message)
        } else {
            nervix_wire::encode_server(message)
        }
    }

    pub fn use_alternate_domain_info(&self, alternate: bool) {
        self.alternate_domain_info
            .store(alternate, Ordering::Relaxed);
    }

    // ---- sessions

    /// Admits a session, with LeadershipObserved and DomainsObserved as its first two frames.
    pub fn open_session(&self, node: usize, user: String) -> Arc<Session> {
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(Session::new(id, node, user));
        let mut state = self.state.lock();
        let name = state.nodes.get(node).map_or("", |node| node.name.as_str());
        self.counts.session_opened(id, name, &session.user);
        session.outbox.send(self.frame(leadership(&state, node)));
        session.outbox.send(self.frame(domains_observed(&state)));
        state.sessions.insert(id, session.clone());
        session
    }

    pub fn close_session(self: &Arc<Self>, session: &Session, end: SessionEnd) {
        let closed = self.change(|state| {
            if state.sessions.remove(&session.id).is_none() {
                return false;
            }
            for id in session.forget_subscriptions() {
                state.world.unsubscribe(id);
                state.routes.remove(&id);
            }
            self.counts.subscriptions(state.routes.len());
            self.forget_clocks(state, session);
            self.forget_endpoints(state, session);
            let now = state.clock.now();
            state.transactions.settle(now);
            state
                .transactions
                .close(now, session.id, end == SessionEnd::EndStream);
            state.world.advance(Now(state.clock.now()));
            true
        });
        if closed {
            session.outbox.close();
            self.counts.session_ended(session.id, end);
        }
    }

    fn sessions_in(&self, scope: &Scope) -> Vec<Arc<Session>> {
        let state = self.state.lock();
        state
            .sessions
            .values()
            .filter(|session| scope.covers(session.place()))
            .cloned()
            .collect()
    }

    /// Sends a frame to every session in the scope, and says to how many.
    pub fn broadcast(&self, scope: &Scope, frame: &OutFrame) -> usize {
        let sessions = self.sessions_in(scope);
        for session in &sessions {
            session.outbox.send(frame.clone());
        }
        sessions.len()
    }

    /// Begins to flood a session, or ends that; says how often each frame of the flood before was sent, and last the tick.
    pub fn flood(&self, session: u64, flood: Option<Flood>) -> Result<Option<Vec<u64>>, String> {
        let scope = Scope {
            session: Some(session),
            node: None,
            kind: None,
        };
        match self.sessions_in(&scope).first() {
            Some(found) => Ok(found.outbox.flood(flood)),
            None => Err(format!("there is no open session {session}")),
        }
    }

    /// Ends every session in the scope, and says how many; `last` goes out before.
    pub fn finish(&self, scope: &Scope, last: Option<SessionEndReason>, finish: &Finish) -> usize {
        let sessions = self.sessions_in(scope);
        for session in &sessions {
            if let Some(reason) = &last {
                session
                    .outbox
                    .send(self.frame(ServerBody::SessionEnding(SessionEnding {
                        reason: reason.clone(),
                    })));
            }
            let drain = last.is_some() || matches!(finish, Finish::Status { .. });
            session.outbox.finish(finish.clone(), drain);
        }
        sessions.len()
    }

    // ---- nodes and leadership

    pub fn node_count(&self) -> usize {
        self.state.lock().nodes.len()
    }

    pub fn node_named(&self, name: &str) -> Option<usize> {
        self.state
            .lock()
            .nodes
            .iter()
            .position(|node| node.name == name)
    }

    /// Each node's name, address and whether it runs.
    pub fn nodes(&self) -> Vec<(String, String, bool)> {
        let state = self.state.lock();
        let described = |node: &Node| (node.name.clone(), node.uri.clone(), node.running);
        state.nodes.iter().map(described).collect()
    }

    pub fn leader(&self) -> Option<String> {
        let state = self.state.lock();
        state
            .leader
            .and_then(|leader| state.nodes.get(leader))
            .map(|node| node.name.clone())
    }

    pub fn set_leader(&self, leader: Option<usize>) {
        let mut state = self.state.lock();
        state.stopped_leader = None;
        self.lead(&mut state, leader);
    }

    fn lead(&self, state: &mut State, leader: Option<usize>) {
        if state.leader == leader {
            return;
        }
        state.leader = leader;
        state.transactions.detach_all();
        for session in state.sessions.values() {
            session
                .outbox
                .send(self.frame(leadership(state, session.node)));
        }
    }

    /// Notes that a node stopped or runs again; a leader that stops leaves the cluster without one.
    pub fn set_running(&self, node: usize, running: bool) {
        let mut state = self.state.lock();
        if let Some(entry) = state.nodes.get_mut(node) {
            entry.running = running;
        }
        if !running && state.leader == Some(node) {
            state.stopped_leader = Some(node);
            self.lead(&mut state, None);
        } else if running && state.leader.is_none() && state.stopped_leader == Some(node) {
            state.stopped_leader = None;
            self.lead(&mut state, Some(node));
        }
    }

    // ---- time

    // ---- records

    pub fn expire(&self, reference: &str) -> bool {
        self.state.lock().records.expire(reference)
    }

    pub fn expire_all(&self) -> usize {
        self.state.lock().records.expire_all()
    }

    // ---- requests

    /// What a CommandRequest comes to on this node, or why it is none.
    pub fn command(
        self: &Arc<Self>,
        session: &Session,
        request: &CommandRequest,
    ) -> Result<CommandOutcome, RequestRejected> {
        let reference = request.execution_reference.as_str();
        if !is_reference(reference) {
            return Err(invalid(
                "execution_reference",
                "an execution reference is 1 to 128 ASCII letters, digits, -, _ and .",
            ));
        }
        if request.query.is_empty() {
            return Err(invalid("query", "the query is empty"));
        }
        check_domain(request.domain.as_deref())?;
        let answer = self.faults.answer(session.place());
        let mut outcome = match &answer {
            Some(answer) if !answer.execute => CommandOutcome::plain(
                reference,
                answer.disposition.clone(),
                answer.message.clone(),
            ),
            _ => self.admit(session, request)?,
        };
        if let Some(answer) = answer.filter(|answer| answer.execute) {
            outcome.disposition = answer.disposition;
            outcome.message = answer.message;
            outcome.transaction_admission = None;
            if let (CommandDisposition::OutcomeUnknown(_), Some(status)) =
                (&outcome.disposition, &mut outcome.transaction)
            {
                status.state = TransactionState::TransactionCommitting;
                status.applied_operations = 0;
            }
        }
        Ok(outcome)
    }

    fn admit(
        self: &Arc<Self>,
        session: &Session,
        request: &CommandRequest,
    ) -> Result<CommandOutcome, RequestRejected> {
        let reference = request.execution_reference.as_str();
        let statements = statements::split(&request.query);
        let own_request = statements.iter().find_map(|statement| {
            Some((statement, statements::request_of_its_own(statement.text)?))
        });
        if let Some((statement, request)) = own_request {
            let message = format!(
                "`{}` is no command; a client sends {request} for it",
                statement.brief()
            );
            return Ok(misplaced(reference, statement, message));
        }
        self.change(|state| self.admit_statements(state, session, request, &statements))
    }

    fn admit_statements(
        &self,
        state: &mut State,
        session: &Session,
        request: &CommandRequest,
        statements: &[Statement<'_>],
    ) -> Result<CommandOutcome, RequestRejected> {
        let reference = request.execution_reference.as_str();
        let now = state.clock.now();
        state.transactions.settle(now);
        if let Some(refusal) = self.ill_combined(state, session, request, statements) {
            return Ok(refusal);
        }
        if statements.len() <= 1 && World::served_by_any_node(&request.query) {
            return Ok(self.transact(state, session, request, statements).outcome);
        }
        if state.leader != Some(session.node) {
            return Ok(redirect(state, reference));
        }
        let content = Content {
            query: request.query.clone(),
            domain: request.domain.clone(),
            owner: session.user.clone(),
            position: request.expected_transaction_position,
            preview: request.expected_preview.clone(),
        };
        let admission = state
            .records
            .admit(now, machine_nanos(), reference, &content)
            .map_err(|bad| invalid("execution_reference", bad.0))?;
        Ok(match admission {
            Admission::New => {
                let decision = self.transact(state, session, request, statements);
                if decision.recorded {
                    let outcome = decision.outcome.clone();
                    state.records.record(now, reference, content, outcome);
                }
                decision.outcome
            }
            Admission::Recovered(mut outcome) => {
                if let Some(status) = &outcome.transaction {
                    state
                        .transactions
                        .remember(session.id, &status.transaction_id);
                }
                outcome.origin = OutcomeOrigin::Recovered;
                *outcome
            }
            Admission::Conflict(conflict) => CommandOutcome::plain(
                reference,
                CommandDisposition::ExecutionReferenceConflict(ExecutionReferenceConflict {
                    conflict,
                }),
                "the execution reference already stands for another command",
            ),
            Admission::Expired => CommandOutcome::plain(
                reference,
                CommandDisposition::ExecutionReferenceExpired,
                "the execution reference is older than its retry validity",
            ),
        })
    }

    /// Runs a statement for nobody in particular, as a file to load or the control endpoint does.
    pub fn run_statement(
        self: &Arc<Self>,
        domain: Option<&str>,
        statement: &str,
    ) -> StatementResult {
        self.change(|state| self.run(state, domain, statement))
    }

    fn run(&self, state: &mut State, domain: Option<&str>, query: &str) -> StatementResult {
        let status = status(state);
        let now = Now(state.clock.now());
        let result = state.world.execute(now, &status, domain, query);
        for (id, reason, message) in &result.ended {
            if let Some(route) = state.routes.remove(id) {
                route
                    .outbox
                    .end_lane(route.handle.generation, *reason, message.clone());
            }
        }
        self.counts.subscriptions(state.routes.len());
        if result.domains_changed {
            let frame = self.frame(domains_observed(state));
            for session in state.sessions.values() {
                session.outbox.send(frame.clone());
            }
        }
        result
    }

    pub fn domains(&self) -> Vec<DomainInfo> {
        self.state.lock().world.domains()
    }

    pub fn has_domain(&self, domain: &str) -> bool {
        self.state.lock().world.has_domain(domain)
    }

    /// The numbers a console shows of the whole cluster.
    pub fn observed(&self) -> ClusterObserved {
        let domains = self.domains();
        let running = domains
            .iter()
            .filter(|domain| domain.status == DomainStatus::Running)
            .count();
        ClusterObserved {
            running_domains: u64::try_from(running).unwrap_or(u64::MAX),
            graph_nodes: 0,
            relays: 0,
        }
    }

    pub fn suggest(&self, request: &SuggestRequest) -> Result<SuggestOutcome, RequestRejected> {
        check_domain(request.domain.as_deref())?;
        let page_size = usize::from(request.page_size);
        if !(1..=100).contains(&page_size) {
            return Err(invalid("page_size", "a page holds 1 to 100 suggestions"));
        }
        let cursor = usize::try_from(request.cursor).unwrap_or(usize::MAX);
        if !request.input.is_char_boundary(cursor) {
            return Err(invalid(
                "cursor",
                "the cursor is no character boundary of the input",
            ));
        }
        Ok(self.state.lock().world.suggest(
            request.domain.as_deref(),
            &request.input,
            cursor,
            page_size,
            request.continuation.as_deref(),
        ))
    }

    pub fn subscribe(
        self: &Arc<Self>,
        session: &Session,
        request: &SubscribeRequest,
    ) -> Result<Subscribed, RequestRejected> {
        check_domain(Some(&request.domain))?;
        if let Some(message) = self.faults.refused_subscription(session.place()) {
            return Ok(refused(message, Vec::new()));
        }
        Ok(self.change(|state| self.open_subscription(state, session, request)))
    }

    fn open_subscription(
        &self,
        state: &mut State,
        session: &Session,
        request: &SubscribeRequest,
    ) -> Subscribed {
        let opened = match state.world.subscribe(&request.domain, &request.statement) {
            Ok(opened) => opened,
            Err(failure) => return refused(failure.message, failure.diagnostics),
        };
        let live = |id: SubscriptionId| state.routes.contains_key(&id);
        let Some(generation) = session.take_name(&opened.name, opened.id, live) else {
            state.world.unsubscribe(opened.id);
            return refused(
                format!(
                    "the session already holds a subscription named `{}`",
                    opened.name
                ),
                Vec::new(),
            );
        };
        let handle = SubscriptionHandle {
            name: opened.name,
            generation,
        };
        session.outbox.open_lane(handle.clone());
        state.routes.insert(
            opened.id,
            Route {
                outbox: session.outbox.clone(),
                handle: handle.clone(),
                mode: opened.delivery,
                held: Arc::default(),
            },
        );
        self.counts.subscriptions(state.routes.len());
        Subscribed {
            outcome: SubscribeOutcome {
                message: format!("subscription `{}` is open", handle.name),
                disposition: SubscribeDisposition::SubscriptionOpened(SubscriptionOpened {
                    subscription: handle,
                    domain: opened.domain,
                    relay: opened.relay,
                    subscription_type: SubscriptionType::Row,
                    schema: opened.schema,
                }),
                diagnostics: Vec::new(),
            },
            opens: Some(Opens::Subscription(generation)),
        }
    }

    pub fn unsubscribe(
        self: &Arc<Self>,
        session: &Session,
        name: &str,
    ) -> Result<UnsubscribeOutcome, RequestRejected> {
        if name.is_empty() {
            return Err(invalid("subscription", "the name is empty"));
        }
        let released = self.change(|state| {
            let (id, generation) = session.release_name(name)?;
            state.world.unsubscribe(id);
            // A relay that it held back goes on.
            state.world.advance(Now(state.clock.now()));
            state.routes.remove(&id);
            session.outbox.close_lane(generation);
            self.counts.subscriptions(state.routes.len());
            Some(generation)
        });
        let Some(generation) = released else {
            return Ok(UnsubscribeOutcome {
                disposition: UnsubscribeDisposition::RequestFailed,
                message: format!("the session holds no subscription named `{name}`"),
                diagnostics: Vec::new(),
            });
        };
        Ok(UnsubscribeOutcome {
            disposition: UnsubscribeDisposition::SubscriptionDeleted(SubscriptionDeleted {
                subscription: SubscriptionHandle {
                    name: name.to_owned(),
                    generation,
                },
            }),
            message: format!("subscription `{name}` is deleted"),
            diagnostics: Vec::new(),
        })
    }

    // ---- rows

    /// Publishes one batch and returns once every BLOCKING subscription has room for its share.
    pub async fn publish(
        self: &Arc<Self>,
        domain: &str,
        relay: &str,
        rows: Rows<'_>,
    ) -> Result<u64, String> {
        let turn = self
            .turns
            .lock()
            .entry((domain.to_owned(), relay.to_owned()))
            .or_default()
            .clone();
        let _turn = turn.lock().await;
        let (published, mut routes) = self.change(|state| {
            let now = Now(state.clock.now());
            let published: Published = match rows {
                Rows::Json(value) => state.world.publish_json(now, domain, relay, value)?,
                Rows::Ipc(stream) => state.world.publish_ipc(now, domain, relay, stream)?,
            };
            let routes: Vec<Option<Route>> = published
                .deliveries
                .iter()
                .map(|delivery| state.routes.get(&delivery.subscription).cloned())
                .collect();
            Ok::<_, String>((published, routes))
        })?;
        // Subscriptions that can wait come last, so that they hold back the relay and not each other's neighbours.
        let mut blocking = Vec::new();
        for (delivery, route) in published.deliveries.into_iter().zip(routes.drain(..)) {
            let Some(route) = route else { continue };
            match route.mode {
                DeliveryMode::Dropping => self.deliver(route, delivery).await,
                DeliveryMode::Blocking => blocking.push((route, delivery)),
            }
        }
        for (route, delivery) in blocking {
            self.deliver(route, delivery).await;
        }
        self.counts.published(published.rows);
        Ok(published.rows)
    }

    async fn deliver(&self, route: Route, delivery: crate::graph::Delivery) {
        self.deliver_parts(&route, parts_of(&route, delivery)).await;
    }

    async fn deliver_parts(&self, route: &Route, parts: Parts) {
        let generation = route.handle.generation;
        for part in parts {
            match part {
                RowsPart::Rows(frame, rows) => {
                    let waiting = || self.counts.block();
                    route
                        .outbox
                        .deliver(generation, route.mode, frame, rows, waiting)
                        .await;
                }
                RowsPart::Skipped(cause, rows, message) => {
                    route.outbox.skipped(generation, cause, rows, message);
                }
            }
        }
    }
}

/// What a subscription gets of one batch, frame by frame.
enum RowsPart {
    Rows(Bytes, u64),
    Skipped(RowsSkippedCause, u64, String),
}

/// Frames are encoded as they are taken, so that a large batch is not held twice.
type Parts = Box<dyn Iterator<Item = RowsPart> + Send>;

fn parts_of(route: &Route, delivery: crate::graph::Delivery) -> Parts {
    let handle = route.handle.clone();
    let frames = delivery.frames.into_iter().map(move |payload| {
        let rows = u64::try_from(payload.row_count()).unwrap_or(u64::MAX);
        match payload.encode(&handle) {
            Ok(frame) => RowsPart::Rows(Bytes::from(frame), rows),
            Err(error) => {
                RowsPart::Skipped(RowsSkippedCause::EncodingFailed, rows, error.to_string())
            }
        }
    });
    let skipped = delivery
        .skipped
        .into_iter()
        .map(|(cause, rows, message)| RowsPart::Skipped(cause, rows, message));
    Box::new(frames.chain(skipped))
}

fn check_domain(domain: Option<&str>) -> Result<(), RequestRejected> {
    match domain {
        Some("") => Err(invalid("domain", "the domain's name is empty")),
        _ => Ok(()),
    }
}

fn refused(message: String, diagnostics: Vec<Diagnostic>) -> Subscribed {
    Subscribed {
        outcome: SubscribeOutcome {
            disposition: SubscribeDisposition::RequestFailed,
            message,
            diagnostics,
        },
        opens: None,
    }
}

/// The failure of a request because of a statement that does not belong there.
fn misplaced(reference: &str, statement: &Statement<'_>, message: String) -> CommandOutcome {
    let offset = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let span = SourceSpan {
        start: offset(statement.start),
        end: offset(statement.start.saturating_add(statement.text.len())),
    };
    CommandOutcome {
        diagnostics: vec![Diagnostic {
            message: message.clone(),
            span: Some(span),
        }],
        ..CommandOutcome::plain(reference, CommandDisposition::RequestFailed, message)
    }
}

fn endpoints(node: &Node) -> LeaderEndpoints {
    LeaderEndpoints {
        node: node.name.clone(),
        grpc_uri: Some(node.uri.clone()),
        web_console_uri: None,
    }
}

fn redirect(state: &State, reference: &str) -> CommandOutcome {
    let redirect = transactions::leader_redirect(state);
    let message = match &redirect.leader {
        Some(leader) => format!("{} leads", leader.node),
        None => "no leader is known".to_owned(),
    };
    CommandOutcome::plain(
        reference,
        CommandDisposition::LeaderRedirect(redirect),
        message,
    )
}

fn leadership(state: &State, serving: usize) -> ServerBody {
    let leadership = match state
        .leader
        .and_then(|leader| Some((leader, state.nodes.get(leader)?)))
    {
        None => Leadership::LeaderUnknown,
        Some((leader, node)) if leader == serving => {
            Leadership::LeaderIsServingNode(LeaderIsServingNode {
                node: node.name.clone(),
            })
        }
        Some((_, node)) => Leadership::LeaderIsRemote(LeaderIsRemote {
            leader: endpoints(node),
        }),
    };
    ServerBody::LeadershipObserved(LeadershipObserved { leadership })
}

fn domains_observed(state: &State) -> ServerBody {
    ServerBody::DomainsObserved(DomainsObserved {
        domains: state.world.domains(),
    })
}

fn status(state: &State) -> ClusterStatus {
    ClusterStatus {
        nodes: state
            .nodes
            .iter()
            .enumerate()
            .map(|(index, node)| NodeStatus {
                name: node.name.clone(),
                grpc_uri: node.uri.clone(),
                running: node.running,
                leader: state.leader == Some(index),
            })
            .collect(),
    }
}
