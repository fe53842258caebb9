//! Commands as transactions have them: which are appended, what commits and reverts do, and what is refused meanwhile.
//! Must not know how a statement runs, or what a record is.

use std::sync::Arc;

use nervix_wire::types::{
    AttachDisposition, AttachOutcome, AttachTransactionRequest, CommandCompleted,
    CommandDisposition, CommandOutcome, CommandRequest, Diagnostic, InspectTransactionRequest,
    InspectionDisposition, InspectionOutcome, InspectionRejected, InspectionRejection,
    InspectionTarget, LeaderRedirect, PreviewStale, SourceSpan, StatementDisposition,
    StatementOutcome, TransactionAlreadyFinished, TransactionAttached, TransactionDetached,
    TransactionInspected, TransactionOperation, TransactionOperationAdmission,
    TransactionTakenOver,
};
use serde_json::Value;

use super::{endpoints, misplaced, status, Cluster, State};
use crate::graph::{Act, Disposition, Now, StatementResult, World};
use crate::session::Session;
use crate::statements::Statement;
use crate::transactions::{Attach, Binding, Operation, HIDDEN_SESSION};

/// What a command came to, and whether its reference stands for that from now on.
pub(super) struct Decision {
    pub outcome: CommandOutcome,
    pub recorded: bool,
}

/// What one statement of a command came to.
struct Step {
    disposition: CommandDisposition,
    message: String,
    diagnostics: Vec<Diagnostic>,
    admission: Option<TransactionOperationAdmission>,
    inspection: Option<TransactionInspected>,
}

impl Step {
    fn new(disposition: CommandDisposition, message: impl Into<String>) -> Self {
        Self {
            disposition,
            message: message.into(),
            diagnostics: Vec::new(),
            admission: None,
            inspection: None,
        }
    }

    fn completed(message: impl Into<String>) -> Self {
        let completed = CommandCompleted {
            already_existed: false,
        };
        Self::new(CommandDisposition::CommandCompleted(completed), message)
    }

    fn failed(message: impl Into<String>) -> Self {
        Self::new(CommandDisposition::RequestFailed, message)
    }

    fn is_completed(&self) -> bool {
        matches!(self.disposition, CommandDisposition::CommandCompleted(_))
    }

    fn report(&self) -> StatementOutcome {
        StatementOutcome {
            disposition: match &self.disposition {
                CommandDisposition::CommandCompleted(completed) => {
                    StatementDisposition::CommandCompleted(completed.clone())
                }
                _ => StatementDisposition::RequestFailed,
            },
            message: self.message.clone(),
            diagnostics: self.diagnostics.clone(),
        }
    }
}

impl From<StatementResult> for Step {
    fn from(result: StatementResult) -> Self {
        let disposition = match result.disposition {
            Disposition::Completed { already_existed } => {
                CommandDisposition::CommandCompleted(CommandCompleted { already_existed })
            }
            Disposition::Failed => CommandDisposition::RequestFailed,
        };
        Self {
            diagnostics: result.diagnostics,
            ..Self::new(disposition, result.message)
        }
    }
}

/// A command while it is carried out.
struct Work<'a> {
    session: &'a Session,
    request: &'a CommandRequest,
    now: i64,
    /// The transaction whose status the outcome carries.
    concerns: Option<String>,
    /// The position of the request was compared, or needs no comparison.
    placed: bool,
}

/// What a statement needs of the position that its request expects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It is there, and right.
    Stated,
    /// It is right where it is there.
    AsFound,
    Anywhere,
}

pub(super) fn leader_redirect(state: &State) -> LeaderRedirect {
    let leader = state
        .leader
        .and_then(|leader| state.nodes.get(leader))
        .map(endpoints);
    LeaderRedirect { leader }
}

/// Moves diagnostics to where their statement stands in the whole text.
fn moved(diagnostics: Vec<Diagnostic>, start: usize) -> Vec<Diagnostic> {
    let start = u32::try_from(start).unwrap_or(u32::MAX);
    diagnostics
        .into_iter()
        .map(|diagnostic| Diagnostic {
            span: diagnostic.span.map(|span| SourceSpan {
                start: span.start.saturating_add(start),
                end: span.end.saturating_add(start),
            }),
            ..diagnostic
        })
        .collect()
}

impl Cluster {
    /// What is wrong with several statements in one command, before anything is asked about it.
    pub(super) fn ill_combined(
        &self,
        state: &State,
        session: &Session,
        request: &CommandRequest,
        statements: &[Statement<'_>],
    ) -> Option<CommandOutcome> {
        let [first, second, ..] = statements else {
            return None;
        };
        let reference = request.execution_reference.as_str();
        let domain = request.domain.as_deref();
        let apart = statements.iter().find(|statement| {
            matches!(
                Act::of(domain, statement.text),
                Act::ShowTransactions | Act::DescribeTransaction { .. }
            )
        });
        if let Some(apart) = apart {
            let message = format!("`{}` is sent on its own", apart.brief());
            return Some(misplaced(reference, apart, message));
        }
        let outside = state.transactions.binding(session.id).is_none()
            && request.expected_transaction_position.is_none()
            && Act::of(domain, first.text) != Act::Begin;
        outside.then(|| {
            let message = format!(
                "a command holds one statement outside a transaction; `{}` is the second of {}",
                second.brief(),
                statements.len()
            );
            misplaced(reference, second, message)
        })
    }

    /// Carries a command out that was not carried out before.
    pub(super) fn transact(
        &self,
        state: &mut State,
        session: &Session,
        request: &CommandRequest,
        statements: &[Statement<'_>],
    ) -> Decision {
        let reference = request.execution_reference.as_str();
        let domain = request.domain.as_deref();
        // A single statement is judged with all that surrounds it, so that spans are those of the text that was sent.
        let pieces: Vec<(&str, usize)> = match statements {
            [] | [_] => vec![(request.query.as_str(), 0)],
            several => several.iter().map(|it| (it.text, it.start)).collect(),
        };
        let acts: Vec<Act> = pieces
            .iter()
            .map(|(text, _)| Act::of(domain, text))
            .collect();
        let reads = acts.iter().all(|act| {
            matches!(
                act,
                Act::Read | Act::ShowTransactions | Act::DescribeTransaction { .. }
            )
        });
        if !reads {
            let told = match state.transactions.binding(session.id).cloned() {
                Some(Binding::TakenOver(transaction_id)) => {
                    state.transactions.unbind(session.id);
                    Some(CommandDisposition::TransactionTakenOver(
                        TransactionTakenOver { transaction_id },
                    ))
                }
                Some(Binding::Detached(transaction_id)) => Some(
                    CommandDisposition::TransactionDetached(TransactionDetached { transaction_id }),
                ),
                Some(Binding::Bound(_)) | None => None,
            };
            if let Some(disposition) = told {
                let message = match &disposition {
                    CommandDisposition::TransactionTakenOver(_) => {
                        "another session took the transaction over"
                    }
                    _ => "the transaction is not attached to this session",
                };
                return Decision {
                    outcome: CommandOutcome::plain(reference, disposition, message),
                    recorded: false,
                };
            }
        }
        let mut work = Work {
            session,
            request,
            now: state.clock.now(),
            concerns: match state.transactions.binding(session.id) {
                Some(Binding::Bound(id)) => Some(id.clone()),
                _ => None,
            },
            placed: false,
        };
        let mut reports = Vec::new();
        let mut admission = None;
        let mut last = Step::failed("the query holds no statement");
        for ((text, start), act) in pieces.iter().zip(acts) {
            let mut step = self.step(state, &mut work, text, act);
            step.diagnostics = moved(step.diagnostics, *start);
            admission = step.admission.take().or(admission);
            reports.push(step.report());
            last = step;
            if !last.is_completed() {
                break;
            }
        }
        self.counts.executed(reference);
        let transaction = work
            .concerns
            .as_deref()
            .and_then(|id| state.transactions.get(id));
        let over = transaction.is_some_and(|transaction| !transaction.is_open());
        let transaction = transaction.map(|transaction| transaction.status());
        if over && !reads {
            state.transactions.unbind(session.id);
        }
        let outcome = CommandOutcome {
            diagnostics: last.diagnostics,
            statements: if pieces.len() > 1 {
                reports
            } else {
                Vec::new()
            },
            transaction,
            transaction_admission: admission,
            inspection: last.inspection,
            ..CommandOutcome::plain(reference, last.disposition, last.message)
        };
        Decision {
            outcome,
            recorded: true,
        }
    }

    fn step(&self, state: &mut State, work: &mut Work<'_>, text: &str, act: Act) -> Step {
        match act {
            Act::Begin => begin(state, work),
            Act::Commit => self.commit(state, work),
            // Where it goes is no question for what takes everything back.
            Act::Revert => match self.place(state, work, Place::Anywhere) {
                Ok(id) => {
                    if let Some(transaction) = state.transactions.get_mut(&id) {
                        transaction.revert(work.now);
                    }
                    Step::completed(format!("transaction {id} is reverted"))
                }
                Err(refusal) => Step::failed(refusal),
            },
            Act::ShowTransactions => Step::completed(state.transactions.show()),
            Act::DescribeTransaction { id, operation } => {
                let target = id.as_deref();
                match inspect(state, work.session, target, operation) {
                    Ok(inspected) => Step {
                        inspection: Some(inspected),
                        ..Step::completed("the transaction is described")
                    },
                    Err(rejected) => Step::failed(rejected.message),
                }
            }
            Act::Read => self.run(state, work.request.domain.as_deref(), text).into(),
            Act::Operation(operation) if state.transactions.held(work.session.id).is_some() => {
                self.append(state, work, text, operation)
            }
            Act::Apart if state.transactions.held(work.session.id).is_some() => {
                self.refuse(state, work, text)
            }
            Act::Operation(_) | Act::Apart => self.outside(state, work, text),
        }
    }

    /// Runs a statement that no transaction is held for.
    fn outside(&self, state: &mut State, work: &Work<'_>, text: &str) -> Step {
        if let Some(id) = work.concerns.as_deref() {
            if let Some(over) = state.transactions.get(id) {
                return Step::failed(format!("transaction {id} is {}", over.state_name()));
            }
        }
        if work.request.expected_transaction_position.is_some() {
            return Step::failed("the session holds no transaction");
        }
        self.run(state, work.request.domain.as_deref(), text).into()
    }

    /// The transaction that the session holds, once the request turned out to mean it as it is.
    fn place(&self, state: &State, work: &mut Work<'_>, place: Place) -> Result<String, String> {
        let Some(held) = state.transactions.held(work.session.id) else {
            let over = work
                .concerns
                .as_deref()
                .and_then(|id| state.transactions.get(id));
            return Err(match over {
                Some(over) => format!("transaction {} is {}", over.id, over.state_name()),
                None => "the session holds no transaction".to_owned(),
            });
        };
        if work.request.domain.as_deref() != Some(held.domain.as_str()) {
            self.counts.forbidden("domain");
            return Err(format!(
                "transaction {} is of the domain `{}`, which every request of it names",
                held.id, held.domain
            ));
        }
        if std::mem::replace(&mut work.placed, true) {
            return Ok(held.id.clone());
        }
        match work.request.expected_transaction_position {
            _ if place == Place::Anywhere => Ok(held.id.clone()),
            Some(expected) if expected != held.position() => {
                if place == Place::Stated {
                    self.counts.forbidden("position");
                }
                Err(format!(
                    "transaction {} is at position {}, and the command expects {expected}",
                    held.id,
                    held.position()
                ))
            }
            None if place == Place::Stated => {
                self.counts.forbidden("position");
                Err(format!(
                    "a command that appends to transaction {} says at which position",
                    held.id
                ))
            }
            _ => Ok(held.id.clone()),
        }
    }

    /// What the graph would be with the operations of a transaction, or the number of the one that it refuses, and why.
    fn staged(&self, state: &State, now: i64, id: &str) -> Result<World, (u64, String)> {
        let mut world = state.world.clone();
        let Some(transaction) = state.transactions.get(id) else {
            return Ok(world);
        };
        let status = status(state);
        for (number, operation) in (1_u64..).zip(&transaction.operations) {
            let domain = Some(transaction.domain.as_str());
            let result = world.execute(Now(now), &status, domain, &operation.statement);
            if result.disposition == Disposition::Failed {
                return Err((number, result.message));
            }
        }
        Ok(world)
    }

    fn append(
        &self,
        state: &mut State,
        work: &mut Work<'_>,
        text: &str,
        operation: TransactionOperation,
    ) -> Step {
        let id = match self.place(state, work, Place::Stated) {
            Ok(id) => id,
            Err(refusal) => return Step::failed(refusal),
        };
        let mut world = match self.staged(state, work.now, &id) {
            Ok(world) => world,
            Err((number, error)) => {
                return Step::failed(format!(
                    "operation {number} of transaction {id} does not apply any more: {error}"
                ))
            }
        };
        let status = status(state);
        let domain = work.request.domain.as_deref();
        let mut step: Step = world.execute(Now(work.now), &status, domain, text).into();
        if !step.is_completed() {
            return step;
        }
        let operation = Operation {
            reference: work.request.execution_reference.clone(),
            statement: text.to_owned(),
            operation,
        };
        if let Some(transaction) = state.transactions.get_mut(&id) {
            transaction.append(work.now, operation);
            let admission = transaction.admission();
            step.message = format!("operation {} of {id} is accepted", admission.operation);
            step.admission = Some(admission);
        }
        step
    }

    /// Says why a statement is not appended: what is wrong with it, if anything is.
    fn refuse(&self, state: &State, work: &mut Work<'_>, text: &str) -> Step {
        let id = match self.place(state, work, Place::Stated) {
            Ok(id) => id,
            Err(refusal) => return Step::failed(refusal),
        };
        if let Ok(mut world) = self.staged(state, work.now, &id) {
            let domain = work.request.domain.as_deref();
            let step: Step = world
                .execute(Now(work.now), &status(state), domain, text)
                .into();
            if !step.is_completed() {
                return step;
            }
        }
        Step::failed("this statement is no operation of a transaction: run it outside one")
    }

    fn commit(&self, state: &mut State, work: &mut Work<'_>) -> Step {
        let id = match self.place(state, work, Place::AsFound) {
            Ok(id) => id,
            Err(refusal) => return Step::failed(refusal),
        };
        let Some(transaction) = state.transactions.get_mut(&id) else {
            return Step::failed("the session holds no transaction");
        };
        if let Some(expected) = &work.request.expected_preview {
            let current = transaction.preview();
            if *expected != current {
                let stale = PreviewStale {
                    expected: expected.clone(),
                    current,
                };
                return Step::new(
                    CommandDisposition::PreviewStale(stale),
                    format!("transaction {id} is not what the preview showed"),
                );
            }
        }
        transaction.touch(work.now);
        let operations = transaction.operations.clone();
        if let Err((number, error)) = self.staged(state, work.now, &id) {
            let message = format!("operation {number} of transaction {id} failed: {error}");
            if let Some(transaction) = state.transactions.get_mut(&id) {
                transaction.fail(work.now, number, error);
            }
            return Step::failed(message);
        }
        for operation in &operations {
            // It went well a moment ago, with the same graph at the same time.
            self.run(state, work.request.domain.as_deref(), &operation.statement);
            self.counts.applied(&operation.reference);
        }
        if let Some(transaction) = state.transactions.get_mut(&id) {
            transaction.commit(work.now);
        }
        Step::completed(format!(
            "transaction {id} is committed: {} operations",
            operations.len()
        ))
    }

    /// Whether the session holds a transaction that forbids this request; noted if so.
    pub(super) fn is_forbidden(
        &self,
        state: &mut State,
        session: &Session,
        kind: &'static str,
    ) -> bool {
        let now = state.clock.now();
        state.transactions.settle(now);
        let held = state.transactions.held(session.id).is_some();
        if held {
            self.counts.forbidden(kind);
        }
        held
    }

    /// Why a request that goes with no transaction is refused, if it is.
    pub fn forbids(&self, session: &Session, kind: &'static str) -> Option<String> {
        let mut state = self.state.lock();
        self.is_forbidden(&mut state, session, kind)
            .then(|| "the session holds a transaction, which this request does not go with".into())
    }

    pub fn attach_transaction(
        self: &Arc<Self>,
        session: &Session,
        request: &AttachTransactionRequest,
    ) -> AttachOutcome {
        let mut state = self.state.lock();
        let now = state.clock.now();
        state.transactions.settle(now);
        let id = request.transaction_id.as_str();
        let (disposition, message) = if state.leader == Some(session.node) {
            let attach = state
                .transactions
                .attach(now, session.id, &session.user, id);
            match attach {
                Attach::Attached(transaction) => (
                    AttachDisposition::TransactionAttached(TransactionAttached { transaction }),
                    format!("transaction {id} is attached"),
                ),
                Attach::Finished(transaction) => (
                    AttachDisposition::TransactionAlreadyFinished(TransactionAlreadyFinished {
                        transaction,
                    }),
                    format!("transaction {id} is finished"),
                ),
                Attach::Refused(message) => (AttachDisposition::RequestFailed, message),
            }
        } else {
            (
                AttachDisposition::LeaderRedirect(leader_redirect(&state)),
                "this node does not lead".to_owned(),
            )
        };
        AttachOutcome {
            disposition,
            message,
            diagnostics: Vec::new(),
        }
    }

    pub fn inspect_transaction(
        &self,
        session: &Session,
        request: &InspectTransactionRequest,
    ) -> InspectionOutcome {
        let mut state = self.state.lock();
        let now = state.clock.now();
        state.transactions.settle(now);
        if state.leader != Some(session.node) {
            return InspectionOutcome {
                disposition: InspectionDisposition::LeaderRedirect(leader_redirect(&state)),
            };
        }
        let target = match &request.target {
            InspectionTarget::AttachedTransaction => None,
            InspectionTarget::TransactionById(target) => Some(target.transaction_id.as_str()),
        };
        let disposition = match inspect(&state, session, target, request.operation) {
            Ok(inspected) => InspectionDisposition::TransactionInspected(inspected),
            Err(rejected) => InspectionDisposition::InspectionRejected(rejected),
        };
        InspectionOutcome { disposition }
    }

    // ---- what tests do to transactions

    pub fn transactions(&self) -> Vec<Value> {
        let mut state = self.state.lock();
        let now = state.clock.now();
        state.transactions.settle(now);
        state.transactions.list()
    }

    /// Does something to a transaction, the only open one unless it is named; an error says why not.
    pub fn with_transaction(&self, id: Option<String>, action: &str) -> Result<String, String> {
        let mut state = self.state.lock();
        let now = state.clock.now();
        state.transactions.settle(now);
        let id = match id {
            Some(id) => id,
            None => state
                .transactions
                .only_open()
                .ok_or("there is not exactly one open transaction; give its `id`")?,
        };
        let open = state.transactions.get(&id).is_some_and(|it| it.is_open());
        let done = match action {
            "expire" => state.transactions.expire(now, &id),
            "detach" => state.transactions.detach(&id),
            "take_over" => {
                if open {
                    state.transactions.take(HIDDEN_SESSION, &id);
                }
                open
            }
            other => {
                return Err(format!(
                    "`action` is expire, detach or take_over, not `{other}`"
                ))
            }
        };
        if done {
            Ok(id)
        } else {
            Err(format!(
                "transaction `{id}` is not open, or nobody holds it"
            ))
        }
    }
}

fn begin(state: &mut State, work: &mut Work<'_>) -> Step {
    if let Some(held) = state.transactions.held(work.session.id) {
        return Step::failed(format!(
            "the session holds transaction {} already: COMMIT or REVERT it first",
            held.id
        ));
    }
    if !matches!(work.request.expected_transaction_position, None | Some(0)) {
        return Step::failed("a transaction that begins is at position 0");
    }
    let Some(domain) = work.request.domain.as_deref() else {
        return Step::failed("a transaction is of a domain, and the request names none");
    };
    if !state.world.has_domain(domain) {
        return Step::failed(format!("there is no domain `{domain}`"));
    }
    let id = state
        .transactions
        .begin(work.now, work.session.id, &work.session.user, domain);
    work.placed = true;
    work.concerns = Some(id.clone());
    Step::completed(format!("transaction {id} is open"))
}

fn inspect(
    state: &State,
    session: &Session,
    target: Option<&str>,
    operation: Option<u64>,
) -> Result<TransactionInspected, InspectionRejected> {
    let reject = |rejection, message: String| InspectionRejected { rejection, message };
    let transaction = match target {
        None => state.transactions.held(session.id).ok_or_else(|| {
            reject(
                InspectionRejection::NoAttachedTransaction,
                "the session holds no transaction".to_owned(),
            )
        })?,
        Some(id) => state.transactions.get(id).ok_or_else(|| {
            reject(
                InspectionRejection::TransactionNotFound,
                format!("there is no transaction `{id}`"),
            )
        })?,
    };
    if transaction.owner != session.user {
        return Err(reject(
            InspectionRejection::NotOwner,
            format!("transaction `{}` is another user's", transaction.id),
        ));
    }
    if operation.is_some_and(|operation| operation > transaction.position()) {
        return Err(reject(
            InspectionRejection::OperationNotFound,
            format!(
                "transaction `{}` has {} operations",
                transaction.id,
                transaction.position()
            ),
        ));
    }
    Ok(TransactionInspected {
        transaction: transaction.status(),
        operation,
        report: transaction.report(),
    })
}
