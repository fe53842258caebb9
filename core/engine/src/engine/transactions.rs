//! The transaction a session holds (X-1 to X-9, L-3, D-5).
//!
//! Owns which transaction that is, where its next append goes, and how it is attached again. What a command of it did is known
//! from the command's own outcome alone, never from the transaction's state.

use std::sync::Arc;

use nervix_wire::types::{
    AttachDisposition, AttachOutcome, AttachTransactionRequest, ClientRequest, CommandDisposition,
    CommandOutcome, OutcomeOrigin, ReplyBody, TransactionPreviewIdentity, TransactionState,
    TransactionStatus,
};
use nervix_wire::Violation;

use super::{describe_rejection, Engine};
use crate::api::{ConnId, ExecutionId, Now};
use crate::exchange::Asked;
use crate::reach::{Backoff, RETRY};
use crate::statement::{Act, Route};

/// A transaction that this session began.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) id: Arc<str>,
    domain: String,
    /// The domain that was selected before, and is again once it is over.
    selected: Option<String>,
    /// Its BEGIN was sent before this session knew of it: so may be what this session recovers.
    recovered: bool,
    /// The operations accepted so far, as the newest status said.
    accepted: u64,
    /// What the newest append's admission, or an inspection at this position, would commit.
    preview: Option<TransactionPreviewIdentity>,
    pub(super) binding: Binding,
    /// How it ended, once a server said so.
    ended: Option<TransactionStatus>,
    /// The host asked to end it on this exchange and the server could not, so there is nothing to tell when it turns out to be
    /// over.
    ending: Option<ConnId>,
    backoff: Backoff,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Binding {
    /// This exchange holds it.
    Bound(ConnId),
    /// No exchange does; it is attached again, not before this time.
    Detached {
        due: u64,
    },
    Attaching(ConnId),
    /// It cannot be held any more, and the host was not asked to go on without it.
    Lost(String),
}

impl Held {
    /// Takes how it stands. A recovered outcome tells how it stood, which may be before what is known.
    fn adopt(&mut self, status: &TransactionStatus, origin: OutcomeOrigin) {
        if origin == OutcomeOrigin::Recovered && status.accepted_operations < self.accepted {
            return;
        }
        if status.accepted_operations != self.accepted {
            self.accepted = status.accepted_operations;
            // A preview of another position would commit something else.
            self.preview = None;
        }
        self.domain.clone_from(&status.domain);
    }
}

impl Engine {
    /// Why a command that is not of the transaction may not be sent; None when it may.
    pub(super) fn transaction_lost(&self) -> Option<String> {
        match &self.transaction {
            Some(Held { id, binding: Binding::Lost(why), .. }) => Some(format!(
                "transaction {id} is not held any more: {why}; run REVERT; to go on without it, or BEGIN; for a new one"
            )),
            _ => None,
        }
    }

    /// Why a command that was prepared for a transaction, and was never sent, is not sent any more; None when it may be.
    pub(super) fn is_without(&self, bound: &str) -> Option<String> {
        let held = self.transaction.as_ref();
        held.is_none_or(|held| *held.id != *bound).then(|| {
            format!("nothing was sent, as the session does not hold transaction {bound} any more, which the command is of")
        })
    }

    /// Why a command that was sent before it was given here is not sent into the transaction that is held; None when it may have
    /// been a part of it (E-2, X-6).
    pub(super) fn is_not_of(
        &self,
        reference: &str,
        position: Option<u64>,
        preview: Option<&TransactionPreviewIdentity>,
    ) -> Option<String> {
        let held = self.transaction.as_ref()?;
        let named = preview.is_some_and(|preview| *preview.transaction_id == *held.id);
        let was_sent = || {
            self.executions.values().any(|one| {
                *one.reference == *reference && one.transaction.as_ref() == Some(&held.id)
            })
        };
        let may_be = match preview {
            Some(_) => named,
            None => position.is_some() && (held.recovered || was_sent()),
        };
        (!may_be).then(|| {
            format!(
                "it is not known to belong to transaction {}, which the session holds: COMMIT or REVERT that first",
                held.id
            )
        })
    }

    /// Nothing is held any more, and the domain selected before is selected again.
    fn let_go(&mut self) {
        if let Some(selected) = self.transaction.take().and_then(|held| held.selected) {
            self.domain = Some(selected);
        }
    }

    /// How the transaction that is lost ended, where a server said so.
    pub(super) fn transaction_ended(&self, transaction: Option<&str>) -> Option<TransactionStatus> {
        let held = self.transaction.as_ref()?;
        let concerned = transaction.is_none_or(|id| *held.id == *id);
        held.ended.clone().filter(|_| concerned)
    }

    /// Whether what the manual forbids beside a transaction must wait on this exchange (L-3, P-1, EC-1).
    pub(super) fn forbids_restoring(&self, conn: ConnId) -> bool {
        let held = self
            .transaction
            .as_ref()
            .is_some_and(|held| match held.binding {
                Binding::Bound(on) | Binding::Attaching(on) => on == conn,
                Binding::Detached { .. } => held.ending == Some(conn),
                Binding::Lost(_) => false,
            });
        // One that is being begun counts, too: what is sent behind its BEGIN would find it held.
        held || self
            .executions
            .values()
            .any(|one| one.flight == Some(conn) && one.route == Some(Route::Command(Act::Begin)))
    }

    /// Why a command that was written before must not be sent into what the session holds now, or may hold: the server would
    /// take it for one of that transaction.
    pub(super) fn belongs_elsewhere(&self, transaction: Option<&str>) -> Option<String> {
        let held = self
            .transaction
            .as_ref()
            .filter(|held| !matches!(held.binding, Binding::Lost(_)));
        match held {
            Some(held) if transaction == Some(&*held.id) => None,
            Some(held) => Some(format!(
                "it does not belong to transaction {}, which the session holds: COMMIT or REVERT that first",
                held.id
            )),
            None if transaction.is_some() && self.begun_on.is_some() && self.begun_on == self.current => {
                Some(
                    "the session may hold another transaction: execute its BEGIN again first, whose outcome is not known"
                        .to_owned(),
                )
            }
            None => None,
        }
    }

    /// Whether the answer to another command of a transaction is due on this session, one that nobody waits for any more:
    /// what is held, and at which position, is known with it.
    pub(super) fn awaits_transaction_command(&self, execution: ExecutionId) -> bool {
        self.executions.iter().any(|(id, one)| {
            *id != execution
                && one.flight.is_some()
                && one.flight == self.current
                && (one.transaction.is_some() || one.route == Some(Route::Command(Act::Begin)))
        })
    }

    /// The transaction that is held, unless it is lost.
    pub(super) fn held_id(&self) -> Option<&Arc<str>> {
        self.transaction
            .as_ref()
            .filter(|held| !matches!(held.binding, Binding::Lost(_)))
            .map(|held| &held.id)
    }

    pub(super) fn holds_transaction(&self) -> bool {
        self.held_id().is_some()
    }

    /// The identity, position and preview that a command sent now belongs to.
    pub(super) fn transaction_position(
        &self,
    ) -> Option<(Arc<str>, u64, Option<TransactionPreviewIdentity>)> {
        let held = self.transaction.as_ref()?;
        Some((Arc::clone(&held.id), held.accepted, held.preview.clone()))
    }

    /// Why a command that names this domain is not sent into the transaction that is held, every request of which names the same
    /// (L-3).
    pub(super) fn of_another_domain(&self, domain: Option<&str>) -> Option<String> {
        let held = self.transaction.as_ref()?;
        (domain != Some(held.domain.as_str())).then(|| {
            format!(
                "transaction {} is of domain {}, which every request of it names, and this command was prepared {}: COMMIT or \
                 REVERT it first",
                held.id,
                held.domain,
                domain.map_or_else(|| "without one".to_owned(), |domain| format!("for domain {domain}")),
            )
        })
    }

    /// Whether a command of this transaction has to wait until it is attached again (D-1, D-5).
    pub(super) fn waits_for_attach(&self, transaction: Option<&str>) -> bool {
        self.transaction.as_ref().is_some_and(|held| {
            let concerned = transaction.is_none_or(|id| *held.id == *id);
            concerned
                && matches!(
                    held.binding,
                    Binding::Detached { .. } | Binding::Attaching(_)
                )
        })
    }

    pub(super) fn next_attach(&self) -> Option<u64> {
        match self.transaction.as_ref()?.binding {
            Binding::Detached { due } if due > 0 => Some(due),
            _ => None,
        }
    }

    /// No exchange holds it: the next one attaches it again, unless the server condemned the session that it was being attached
    /// on, after which that is not sent again (T-6).
    pub(super) fn transaction_detached(&mut self, conn: ConnId, condemned: Option<&str>) {
        if let Some(held) = &mut self.transaction {
            if let (Binding::Attaching(on), Some(why)) = (&held.binding, condemned) {
                if *on == conn {
                    held.binding = Binding::Lost(format!("it could not be attached: {why}"));
                }
            }
            if matches!(held.binding, Binding::Bound(on) | Binding::Attaching(on) if on == conn) {
                held.binding = Binding::Detached { due: 0 };
            }
        }
    }

    /// The server says that it is not bound to this session; true when it is the one that is held.
    pub(super) fn detached_by_server(&mut self, now: Now, id: &str) -> bool {
        match &mut self.transaction {
            Some(held) if *held.id == *id => {
                let wait = held.backoff.next(RETRY, &mut self.jitter);
                held.binding = Binding::Detached {
                    due: now.mono.saturating_add(wait),
                };
                true
            }
            _ => false,
        }
    }

    pub(super) fn lose_transaction(&mut self, id: &str, why: &str) {
        if let Some(held) = &mut self.transaction {
            if *held.id == *id {
                held.binding = Binding::Lost(why.to_owned());
            }
        }
    }

    /// Leaves a transaction that is lost, for REVERT and BEGIN.
    pub(super) fn leave_lost_transaction(&mut self) {
        if self.transaction_lost().is_some() {
            self.let_go();
        }
    }

    /// Sends the attach, once everything that must go ahead of it was sent.
    pub(super) fn attach_transaction(&mut self, now: Now) {
        let Some(conn) = self.current else { return };
        let Some(held) = &self.transaction else {
            return;
        };
        if !matches!(held.binding, Binding::Detached { due } if due <= now.mono)
            || self.attempt.is_some()
        {
            return;
        }
        let request = AttachTransactionRequest {
            transaction_id: held.id.to_string(),
        };
        let request = ClientRequest::AttachTransactionRequest(request);
        if self
            .send(now, conn, Asked::AttachTransaction, request)
            .is_ok()
        {
            if let Some(held) = &mut self.transaction {
                held.binding = Binding::Attaching(conn);
            }
        }
    }

    pub(super) fn attach_reply(
        &mut self,
        now: Now,
        conn: ConnId,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        let wait = {
            let Some(held) = &mut self.transaction else {
                return Ok(());
            };
            if held.binding != Binding::Attaching(conn) {
                return Ok(());
            }
            held.backoff.next(RETRY, &mut self.jitter)
        };
        let again = Binding::Detached {
            due: now.mono.saturating_add(wait),
        };
        match body {
            ReplyBody::AttachOutcome(AttachOutcome {
                disposition,
                message,
                ..
            }) => match disposition {
                AttachDisposition::TransactionAttached(attached) => {
                    if let Some(held) = &mut self.transaction {
                        if *held.id != *attached.transaction.transaction_id {
                            return Err(Violation::new("X-6", "another transaction was attached"));
                        }
                        held.adopt(&attached.transaction, OutcomeOrigin::Executed);
                        held.binding = Binding::Bound(conn);
                        held.ending = None;
                        self.domain = Some(held.domain.clone());
                    }
                }
                AttachDisposition::TransactionAlreadyFinished(_)
                    if self
                        .transaction
                        .as_ref()
                        .is_some_and(|held| held.ending.is_some()) =>
                {
                    self.let_go();
                }
                AttachDisposition::TransactionAlreadyFinished(finished) => {
                    self.set_binding(Binding::Lost(finished_text(&finished.transaction)));
                    if let Some(held) = &mut self.transaction {
                        held.ended = Some(finished.transaction);
                    }
                }
                AttachDisposition::RequestFailed => {
                    self.set_binding(Binding::Lost(format!(
                        "it could not be attached: {message}"
                    )));
                }
                AttachDisposition::LeaderRedirect(redirect) => {
                    let target = redirect
                        .leader
                        .as_ref()
                        .and_then(|leader| self.learn(leader).ok());
                    self.set_binding(again);
                    let here = self
                        .exchanges
                        .get(&conn)
                        .map(|exchange| exchange.origin.clone());
                    if let (Some(origin), None) = (target, &self.attempt) {
                        if Some(&origin) != here.as_ref() {
                            self.begin_attempt(now, origin);
                        }
                    }
                }
            },
            ReplyBody::RequestRejected(rejected) if super::is_busy(&rejected) => {
                self.set_binding(again)
            }
            ReplyBody::RequestRejected(rejected) => {
                let why = format!(
                    "it could not be attached: {}",
                    describe_rejection(&rejected)
                );
                self.set_binding(Binding::Lost(why));
            }
            ReplyBody::RequestCancelled(_) => self.set_binding(again),
            _ => {
                return Err(Violation::new(
                    "C-4",
                    "a reply that does not answer an attach",
                ))
            }
        }
        Ok(())
    }

    fn set_binding(&mut self, binding: Binding) {
        if let Some(held) = &mut self.transaction {
            held.binding = binding;
        }
    }

    /// Holds an outcome to what it must say of the transaction. Going on after one that says something else, a host's statements
    /// would happen outside of the transaction that it believes in. What is recovered tells of then, not of now.
    pub(super) fn check_transaction(
        &self,
        execution: ExecutionId,
        outcome: &CommandOutcome,
    ) -> Result<(), Violation> {
        let Some(one) = self.executions.get(&execution) else {
            return Ok(());
        };
        if outcome.origin != OutcomeOrigin::Executed
            || !matches!(outcome.disposition, CommandDisposition::CommandCompleted(_))
        {
            return Ok(());
        }
        let status = outcome.transaction.as_ref();
        let begun = status.is_some_and(|status| is_open(&status.state));
        if one.route == Some(Route::Command(Act::Begin)) && one.transaction.is_none() && !begun {
            return Err(Violation::new(
                "X-1",
                "a BEGIN completed and told of no open transaction",
            ));
        }
        // A BEGIN in one that is over may have begun the next.
        let begins = one.route == Some(Route::Command(Act::Begin));
        if let (Some(of), Some(status), false) = (&one.transaction, status, begins) {
            if **of != *status.transaction_id {
                return Err(Violation::new(
                    "X-3",
                    "a command of a transaction completed and told of another one",
                ));
            }
        }
        match (&one.transaction, &outcome.transaction_admission) {
            (Some(of), Some(admission)) if **of != *admission.preview.transaction_id => {
                Err(Violation::new(
                    "X-3",
                    "a statement was accepted into a transaction that it is not of",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Learns from an outcome what the session holds now.
    pub(super) fn transaction_outcome(
        &mut self,
        conn: ConnId,
        execution: ExecutionId,
        act: Act,
        outcome: &CommandOutcome,
        completed: bool,
    ) {
        let of_this = self
            .executions
            .get(&execution)
            .and_then(|held| held.transaction.clone());
        let recovered = act == Act::Begin
            && self
                .executions
                .get(&execution)
                .is_some_and(|held| held.recovered);
        if let Some(status) = &outcome.transaction {
            match &mut self.transaction {
                Some(held) if *held.id == *status.transaction_id => {
                    let lost = matches!(held.binding, Binding::Lost(_));
                    let ends = matches!(act, Act::Commit | Act::Revert)
                        && of_this.as_ref() == Some(&held.id);
                    if is_open(&status.state) {
                        held.adopt(status, outcome.origin);
                        if tells_binding(outcome) {
                            held.backoff.reset();
                        }
                        if lost && act == Act::Begin && completed {
                            // The host asked for it again.
                            held.binding = Binding::Bound(conn);
                            (held.ended, held.ending) = (None, None);
                            self.domain = Some(status.domain.clone());
                        }
                    } else if ends {
                        self.let_go();
                    } else if !lost {
                        // What was called after this, as a part of it, must not happen outside of it: nothing is sent before
                        // the host leaves it.
                        held.binding = Binding::Lost(finished_text(status));
                        held.ended = Some(status.clone());
                    }
                    // Otherwise its loss was reported, and stays until the host leaves it.
                }
                held if is_open(&status.state)
                    && ((act == Act::Begin && completed)
                        // One whose BEGIN nobody waited for: what the session holds is told with every outcome.
                        || (held.is_none()
                            && self.current == Some(conn)
                            && tells_binding(outcome)
                            && !may_be_its_own(act, outcome))) =>
                {
                    self.let_go();
                    let selected = self.domain.replace(status.domain.clone());
                    self.transaction = Some(Held {
                        id: Arc::from(status.transaction_id.as_str()),
                        domain: status.domain.clone(),
                        selected,
                        recovered,
                        accepted: status.accepted_operations,
                        preview: None,
                        binding: Binding::Bound(conn),
                        ended: None,
                        ending: None,
                        backoff: Backoff::default(),
                    });
                }
                _ => {}
            }
        } else if matches!(act, Act::Commit | Act::Revert) {
            match &mut self.transaction {
                Some(held) if of_this.as_ref() != Some(&held.id) => {}
                Some(_) if completed => self.let_go(),
                // It could not be ended, and the session is bound to none: attaching it tells whether it is over.
                Some(held)
                    if outcome.disposition == CommandDisposition::RequestFailed
                        && held.binding == Binding::Bound(conn) =>
                {
                    held.binding = Binding::Detached { due: 0 };
                    held.ending = Some(conn);
                }
                _ => {}
            }
        }
        if let Some(held) = &mut self.transaction {
            // A recovered append on a session that is not bound reports no status, but how far it went all the same.
            if let Some(admission) = &outcome.transaction_admission {
                let of_it = *admission.preview.transaction_id == *held.id;
                if of_it && admission.preview.position > held.accepted {
                    held.accepted = admission.preview.position;
                    held.preview = None;
                }
            }
            let preview = match (&outcome.transaction_admission, &outcome.inspection) {
                (Some(admission), _) => Some(admission.preview.clone()),
                (None, Some(inspected)) => Some(TransactionPreviewIdentity {
                    transaction_id: inspected.transaction.transaction_id.clone(),
                    position: inspected.report.position,
                    planning_basis: inspected.report.planning_basis.clone(),
                }),
                (None, None) => None,
            };
            if let Some(preview) = preview {
                if *preview.transaction_id == *held.id && preview.position == held.accepted {
                    held.preview = Some(preview);
                }
            }
        }
    }
}

/// Whether an outcome tells what its session holds now. A recovered one may tell what was held when it happened.
fn tells_binding(outcome: &CommandOutcome) -> bool {
    outcome.origin == OutcomeOrigin::Executed
        && !matches!(
            outcome.disposition,
            CommandDisposition::TransactionDetached(_)
                | CommandDisposition::TransactionTakenOver(_)
        )
}

/// Whether what an outcome tells of may be what its command began, which that learns when it is asked about again: known before, it
/// would stand in the command's own way.
fn may_be_its_own(act: Act, outcome: &CommandOutcome) -> bool {
    act == Act::Begin && matches!(outcome.disposition, CommandDisposition::OutcomeUnknown(_))
}

fn is_open(state: &TransactionState) -> bool {
    matches!(
        state,
        TransactionState::TransactionOpen | TransactionState::TransactionCommitting
    )
}

fn finished_text(status: &TransactionStatus) -> String {
    match &status.state {
        TransactionState::TransactionCommitted => "it is finished: COMMITTED".to_owned(),
        TransactionState::TransactionFailed(failed) => {
            format!(
                "it is finished: FAILED at operation {}: {}",
                failed.failing_operation, failed.error
            )
        }
        TransactionState::TransactionReverted => "it is finished: REVERTED".to_owned(),
        TransactionState::TransactionExpired => "it is finished: EXPIRED".to_owned(),
        TransactionState::TransactionOpen | TransactionState::TransactionCommitting => {
            "the server says that it is finished".to_owned()
        }
    }
}
