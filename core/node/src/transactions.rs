//! The cluster's transactions: what each holds, who may go on with it, and which session does. Must not know how an
//! operation is carried out or how anything is sent.

use std::collections::{BTreeMap, HashMap};

use nervix_wire::types::{
    ActualStepImpact, AffectedTopology, ExecutionStepOutcome, ExecutionStepReport, Fingerprint,
    ImpactCompleteness, ImpactEffects, ImpactTopology, OperationRange, OperationReport,
    PauseRequirement, PlannedStepImpact, TransactionFailed, TransactionImpactReport,
    TransactionOperation, TransactionOperationAdmission, TransactionPreviewIdentity,
    TransactionState, TransactionStatus,
};
use serde_json::{json, Value};

/// What holds a transaction that a test took over: no session has this number.
pub const HIDDEN_SESSION: u64 = 0;

/// One accepted statement.
#[derive(Debug, Clone)]
pub struct Operation {
    /// The command that brought it.
    pub reference: String,
    pub statement: String,
    pub operation: TransactionOperation,
}

#[derive(Debug)]
pub struct Transaction {
    pub id: String,
    pub owner: String,
    pub domain: String,
    pub operations: Vec<Operation>,
    state: TransactionState,
    applied: u64,
    /// Since when nothing renewed it.
    touched: i64,
    finished_at: Option<i64>,
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

impl Transaction {
    pub fn is_open(&self) -> bool {
        self.state == TransactionState::TransactionOpen
    }

    pub fn position(&self) -> u64 {
        number(self.operations.len())
    }

    pub fn status(&self) -> TransactionStatus {
        TransactionStatus {
            transaction_id: self.id.clone(),
            domain: self.domain.clone(),
            state: self.state.clone(),
            accepted_operations: self.position(),
            applied_operations: self.applied,
        }
    }

    pub fn state_name(&self) -> &'static str {
        match self.state {
            TransactionState::TransactionOpen => "OPEN",
            TransactionState::TransactionCommitting => "COMMITTING",
            TransactionState::TransactionCommitted => "COMMITTED",
            TransactionState::TransactionFailed(_) => "FAILED",
            TransactionState::TransactionReverted => "REVERTED",
            TransactionState::TransactionExpired => "EXPIRED",
        }
    }

    /// What a commit would carry out now.
    pub fn preview(&self) -> TransactionPreviewIdentity {
        let mut basis = blake3::Hasher::new();
        for operation in &self.operations {
            let text = operation.statement.as_bytes();
            basis.update(&number(text.len()).to_le_bytes());
            basis.update(text);
        }
        TransactionPreviewIdentity {
            transaction_id: self.id.clone(),
            position: self.position(),
            planning_basis: Fingerprint {
                bytes: *basis.finalize().as_bytes(),
            },
        }
    }

    /// The newest operation and what a commit would carry out with it.
    pub fn admission(&self) -> TransactionOperationAdmission {
        TransactionOperationAdmission {
            operation: self.position(),
            preview: self.preview(),
        }
    }

    pub fn append(&mut self, now: i64, operation: Operation) {
        self.operations.push(operation);
        self.touched = now;
    }

    pub fn touch(&mut self, now: i64) {
        self.touched = now;
    }

    fn finish(&mut self, now: i64, state: TransactionState) {
        self.state = state;
        self.finished_at = Some(now);
    }

    pub fn commit(&mut self, now: i64) {
        self.applied = self.position();
        self.finish(now, TransactionState::TransactionCommitted);
    }

    pub fn fail(&mut self, now: i64, failing_operation: u64, error: String) {
        let failed = TransactionFailed {
            failing_operation,
            error,
        };
        self.finish(now, TransactionState::TransactionFailed(failed));
    }

    pub fn revert(&mut self, now: i64) {
        self.finish(now, TransactionState::TransactionReverted);
    }

    /// Says of every operation what it is, and of effects nothing.
    pub fn report(&self) -> TransactionImpactReport {
        let outcome = match self.state {
            TransactionState::TransactionCommitted => ExecutionStepOutcome::StepApplied,
            _ => ExecutionStepOutcome::StepUnattempted,
        };
        let numbered = (1_u64..).zip(&self.operations);
        let single = |at: u64| OperationRange {
            first: at,
            last: at,
        };
        TransactionImpactReport {
            domain: self.domain.clone(),
            position: self.position(),
            planning_basis: self.preview().planning_basis,
            completeness: ImpactCompleteness::ImpactComplete,
            operations: numbered
                .clone()
                .map(|(at, operation)| OperationReport {
                    number: at,
                    operation: operation.operation.clone(),
                    execution_step: single(at),
                    completeness: ImpactCompleteness::ImpactComplete,
                    reasons: Vec::new(),
                    contribution: no_effects(),
                })
                .collect(),
            execution_steps: numbered
                .map(|(at, _)| ExecutionStepReport {
                    operations: single(at),
                    planned: PlannedStepImpact {
                        completeness: ImpactCompleteness::ImpactComplete,
                        pause: PauseRequirement::NoPause,
                        effects: no_effects(),
                    },
                    actual: ActualStepImpact {
                        outcome: outcome.clone(),
                        quiescence: Vec::new(),
                        effects: no_effects(),
                    },
                })
                .collect(),
        }
    }
}

fn no_effects() -> ImpactEffects {
    let nothing = || ImpactTopology {
        nodes: Vec::new(),
        edges: Vec::new(),
    };
    ImpactEffects {
        changed_configuration: Vec::new(),
        topology: AffectedTopology {
            before: nothing(),
            after: nothing(),
        },
        ownership_moves: Vec::new(),
        lifecycle: Vec::new(),
        activations: Vec::new(),
        rebuilds: Vec::new(),
        state_resets: Vec::new(),
        force_flushes: Vec::new(),
        resource_catalog: Vec::new(),
        resource_bindings: Vec::new(),
    }
}

/// What a session is to a transaction. The session may not know yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    Bound(String),
    /// Its next command is told so, until it attaches the transaction again.
    Detached(String),
    /// Its next command is told so.
    TakenOver(String),
}

impl Binding {
    pub fn id(&self) -> &str {
        match self {
            Self::Bound(id) | Self::Detached(id) | Self::TakenOver(id) => id,
        }
    }
}

/// What came of an attach.
#[derive(Debug)]
pub enum Attach {
    Attached(TransactionStatus),
    Finished(TransactionStatus),
    Refused(String),
}

#[derive(Debug)]
pub struct Transactions {
    idle_nanos: i64,
    /// How long the end of a transaction is remembered.
    kept_nanos: i64,
    newest: u64,
    all: BTreeMap<String, Transaction>,
    bindings: HashMap<u64, Binding>,
}

impl Transactions {
    pub fn new(idle_nanos: i64, kept_nanos: i64) -> Self {
        Self {
            idle_nanos,
            kept_nanos,
            newest: 0,
            all: BTreeMap::new(),
            bindings: HashMap::new(),
        }
    }

    /// Ends what was idle for too long, and forgets what ended long ago. Called before anything that asks.
    pub fn settle(&mut self, now: i64) {
        for transaction in self.all.values_mut() {
            let due = transaction.touched.saturating_add(self.idle_nanos);
            if transaction.is_open() && due <= now {
                transaction.finish(due, TransactionState::TransactionExpired);
            }
        }
        let kept = self.kept_nanos;
        self.all.retain(|_, transaction| {
            transaction
                .finished_at
                .is_none_or(|at| now.saturating_sub(at) <= kept)
        });
    }

    pub fn begin(&mut self, now: i64, session: u64, owner: &str, domain: &str) -> String {
        self.newest = self.newest.saturating_add(1);
        let id = format!("transaction-{}", self.newest);
        self.all.insert(
            id.clone(),
            Transaction {
                id: id.clone(),
                owner: owner.to_owned(),
                domain: domain.to_owned(),
                operations: Vec::new(),
                state: TransactionState::TransactionOpen,
                applied: 0,
                touched: now,
                finished_at: None,
            },
        );
        self.bindings.insert(session, Binding::Bound(id.clone()));
        id
    }

    pub fn get(&self, id: &str) -> Option<&Transaction> {
        self.all.get(id)
    }

    pub fn get_mut(&mut self, id: &str) -> Option<&mut Transaction> {
        self.all.get_mut(id)
    }

    pub fn binding(&self, session: u64) -> Option<&Binding> {
        self.bindings.get(&session)
    }

    pub fn unbind(&mut self, session: u64) {
        self.bindings.remove(&session);
    }

    /// The open transaction that a session holds.
    pub fn held(&self, session: u64) -> Option<&Transaction> {
        match self.bindings.get(&session)? {
            Binding::Bound(id) => self.all.get(id).filter(|transaction| transaction.is_open()),
            Binding::Detached(_) | Binding::TakenOver(_) => None,
        }
    }

    fn holder(&self, id: &str) -> Option<u64> {
        self.bindings
            .iter()
            .find(|(_, binding)| matches!(binding, Binding::Bound(bound) if bound == id))
            .map(|(session, _)| *session)
    }

    /// Makes a session hold a transaction, whoever held it before.
    pub fn attach(&mut self, now: i64, session: u64, owner: &str, id: &str) -> Attach {
        if let Some(held) = self.held(session).filter(|held| held.id != id) {
            return Attach::Refused(format!("the session holds {} already", held.id));
        }
        let refusal = match self.all.get_mut(id) {
            None => Some(format!("there is no transaction `{id}`")),
            Some(found) if found.owner != owner => {
                Some(format!("transaction `{id}` is another user's"))
            }
            Some(found) if !found.is_open() => {
                let status = found.status();
                self.unbind(session);
                return Attach::Finished(status);
            }
            Some(found) => {
                found.touch(now);
                None
            }
        };
        if let Some(refusal) = refusal {
            self.unbind(session);
            return Attach::Refused(refusal);
        }
        self.take(session, id);
        match self.all.get(id) {
            Some(found) => Attach::Attached(found.status()),
            None => Attach::Refused(format!("there is no transaction `{id}`")),
        }
    }

    /// Gives a transaction to a session; whoever held it, or could attach it again, learns that it was taken over.
    pub fn take(&mut self, session: u64, id: &str) {
        for (other, binding) in &mut self.bindings {
            if *other != session && binding.id() == id {
                *binding = Binding::TakenOver(id.to_owned());
            }
        }
        self.bindings.insert(session, Binding::Bound(id.to_owned()));
    }

    /// What a session learns that recovers a BEGIN of a session that is gone: the transaction is there, and not its own.
    pub fn remember(&mut self, session: u64, id: &str) {
        let open = self.all.get(id).is_some_and(Transaction::is_open);
        if open && !self.bindings.contains_key(&session) && self.holder(id).is_none() {
            self.bindings
                .insert(session, Binding::Detached(id.to_owned()));
        }
    }

    /// Forgets a session. One that ended cleanly takes its open transaction with it.
    pub fn close(&mut self, now: i64, session: u64, cleanly: bool) {
        if let Some(Binding::Bound(id)) = self.bindings.remove(&session) {
            if let Some(transaction) = self.all.get_mut(&id) {
                if cleanly && transaction.is_open() {
                    transaction.revert(now);
                }
            }
        }
    }

    pub fn detach(&mut self, id: &str) -> bool {
        let Some(holder) = self.holder(id) else {
            return false;
        };
        self.bindings
            .insert(holder, Binding::Detached(id.to_owned()));
        true
    }

    /// Whoever leads from now on knows of no session that holds anything.
    pub fn detach_all(&mut self) {
        for binding in self.bindings.values_mut() {
            if let Binding::Bound(id) = binding {
                *binding = Binding::Detached(id.clone());
            }
        }
    }

    pub fn expire(&mut self, now: i64, id: &str) -> bool {
        match self.all.get_mut(id) {
            Some(transaction) if transaction.is_open() => {
                transaction.finish(now, TransactionState::TransactionExpired);
                true
            }
            _ => false,
        }
    }

    pub fn only_open(&self) -> Option<String> {
        let mut open = self.all.values().filter(|it| it.is_open());
        match (open.next(), open.next()) {
            (Some(only), None) => Some(only.id.clone()),
            _ => None,
        }
    }

    /// One line a transaction.
    pub fn show(&self) -> String {
        let lines: Vec<String> = self
            .all
            .values()
            .map(|it| {
                format!(
                    "{}: domain {}, owner {}, {}, accepted {}, applied {}",
                    it.id,
                    it.domain,
                    it.owner,
                    it.state_name(),
                    it.position(),
                    it.applied
                )
            })
            .collect();
        lines.join("\n")
    }

    /// What tests ask about.
    pub fn list(&self) -> Vec<Value> {
        self.all
            .values()
            .map(|it| {
                let operations: Vec<Value> = it
                    .operations
                    .iter()
                    .map(|operation| json!({ "reference": operation.reference, "statement": operation.statement }))
                    .collect();
                json!({
                    "id": it.id,
                    "domain": it.domain,
                    "owner": it.owner,
                    "state": it.state_name(),
                    "accepted": it.position(),
                    "applied": it.applied,
                    "session": self.holder(&it.id),
                    "operations": operations,
                })
            })
            .collect()
    }
}
