//! Transactions of the model: who holds one, what is in it, and the records of its commands.

use nervix_engine::ConnId;
use nervix_wire::types::*;

use crate::cluster::{Answer, Cluster, Odds, Record};
use crate::common::frames::*;
use crate::common::watch::verb;
use crate::common::Rng;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    Nobody,
    Session(ConnId),
    /// Another client took it over.
    Stranger,
}

#[derive(Debug)]
pub struct Transaction {
    pub id: String,
    pub domain: String,
    pub state: TransactionState,
    /// The references of what was appended, in order.
    pub operations: Vec<String>,
    pub holder: Holder,
    basis: u8,
}

impl Transaction {
    pub fn is_open(&self) -> bool {
        self.state == TransactionState::TransactionOpen
    }

    fn status(&self) -> TransactionStatus {
        TransactionStatus {
            transaction_id: self.id.clone(),
            domain: self.domain.clone(),
            state: self.state.clone(),
            accepted_operations: self.operations.len() as u64,
            applied_operations: 0,
        }
    }

    fn preview(&self) -> TransactionPreviewIdentity {
        preview(&self.id, self.operations.len() as u64, self.basis)
    }
}

fn told(reference: &str, disposition: CommandDisposition, message: &str) -> ReplyBody {
    outcome(reference, OutcomeOrigin::Executed, disposition, message)
}

fn done() -> CommandDisposition {
    CommandDisposition::CommandCompleted(CommandCompleted {
        already_existed: false,
    })
}

impl Cluster {
    fn own(&self, conn: ConnId) -> Option<&Transaction> {
        let id = self.sessions.get(&conn)?.transaction.as_ref()?;
        let held = &self.transactions[id];
        (held.holder == Holder::Session(conn)).then_some(held)
    }

    fn bind(&mut self, conn: ConnId, id: &str) {
        for session in self.sessions.values_mut() {
            if session.transaction.as_deref() == Some(id) {
                session.transaction = None;
            }
        }
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.transaction = Some(id.to_owned());
            self.transactions.get_mut(id).unwrap().holder = Holder::Session(conn);
        }
    }

    pub fn unbind(&mut self, conn: ConnId) {
        for transaction in self.transactions.values_mut() {
            if transaction.holder == Holder::Session(conn) {
                transaction.holder = Holder::Nobody;
            }
        }
    }

    fn finish(&mut self, id: &str, state: TransactionState) {
        let transaction = self.transactions.get_mut(id).unwrap();
        assert!(transaction.is_open());
        transaction.state = state;
        transaction.holder = Holder::Nobody;
        for session in self.sessions.values_mut() {
            if session.transaction.as_deref() == Some(id) {
                session.transaction = None;
            }
        }
    }

    fn apply(&mut self, id: &str) {
        for reference in self.transactions[id].operations.clone() {
            let record = self.records.get_mut(&reference).unwrap();
            record.effects += 1;
            assert_eq!(record.effects, 1, "an operation applied twice");
        }
    }

    /// Something happens to a transaction that its client did not ask for.
    pub fn disturb_transaction(&mut self, rng: &mut Rng) {
        let open: Vec<String> = self
            .transactions
            .values()
            .filter(|transaction| transaction.is_open())
            .map(|transaction| transaction.id.clone())
            .collect();
        if open.is_empty() {
            return;
        }
        let id = &open[rng.index(open.len())];
        match rng.within(0, 10) {
            0 => {
                let holder = self.transactions[id].holder.clone();
                self.finish(id, TransactionState::TransactionExpired);
                // The session may stay bound to it until it is told.
                if let (Holder::Session(conn), true) = (holder, rng.chance(50.0)) {
                    self.sessions.get_mut(&conn).unwrap().transaction = Some(id.clone());
                }
            }
            1 => {
                let transaction = self.transactions.get_mut(id).unwrap();
                transaction.holder = Holder::Stranger;
            }
            _ => {
                let transaction = self.transactions.get_mut(id).unwrap();
                transaction.basis = transaction.basis.wrapping_add(1);
            }
        }
    }

    pub fn attach_transaction(
        &mut self,
        rng: &mut Rng,
        odds: &Odds,
        conn: ConnId,
        id: &str,
    ) -> Answer {
        let node = self.sessions[&conn].node;
        if !self.leads(node) {
            let leader = self.nodes[node].view.filter(|leader| *leader != node);
            let uri = leader.map(crate::cluster::uri);
            return Answer::now(transaction_attach_redirect(uri.as_deref()));
        }
        let transaction = &self.transactions[id];
        if !transaction.is_open() {
            return Answer::now(transaction_finished(transaction.status()));
        }
        if rng.chance(odds.not_opened / 5.0) {
            return Answer::now(transaction_attach_failed());
        }
        self.bind(conn, id);
        Answer::now(transaction_attached(self.transactions[id].status()))
    }

    /// Serves a command.
    pub fn command(
        &mut self,
        rng: &mut Rng,
        odds: &Odds,
        now: u64,
        conn: ConnId,
        command: CommandRequest,
    ) -> Answer {
        let node = self.sessions[&conn].node;
        let reference = command.execution_reference.clone();
        if verb(&command.query) == "SHOW" {
            let message = format!("outcome of {reference}");
            return Answer::now(told(&reference, done(), &message));
        }
        if !self.leads(node) {
            let leader = self.nodes[node].view.filter(|leader| *leader != node);
            let named = leader.map(|leader| {
                let uri = crate::cluster::uri(leader);
                endpoints("leader", (!rng.chance(10.0)).then_some(uri.as_str()))
            });
            return Answer::now(redirect(&reference, named));
        }
        let recovered = self.records.contains_key(&reference);
        if !recovered {
            if let Some(refusal) = self.execute(rng, odds, now, conn, &command) {
                return Answer::now(refusal);
            }
        }
        let record = &self.records[&reference];
        assert_eq!(record.request, command, "a repetition that differs (E-2)");
        let applying = record.done_at > now;
        if rng.chance(odds.unknown) || (applying && rng.chance(30.0)) {
            return Answer::now(unknown(&reference));
        }
        if rng.chance(odds.too_large) {
            return Answer::now(rejected(RequestRejection::ReplyTooLarge));
        }
        let delay = record.done_at.saturating_sub(now);
        let mut body = record.body.clone();
        let begun = record.begun.clone();
        if let (ReplyBody::CommandOutcome(outcome), true) = (&mut body, recovered) {
            outcome.origin = OutcomeOrigin::Recovered;
            // It says how the transaction stood then, or how it stands now.
            let keeps = verb(&command.query) != "BEGIN" && rng.chance(50.0);
            if !keeps {
                outcome.transaction = self.own(conn).map(Transaction::status);
            }
            // A recovered BEGIN may bind the session that asks, or say only which transaction it began.
            if let (Some(id), None) = (&begun, &outcome.transaction) {
                let open = self.transactions[id].is_open();
                let free = self.transactions[id].holder != Holder::Stranger;
                if open && free && rng.chance(40.0) {
                    self.bind(conn, id);
                    outcome.transaction = self.own(conn).map(Transaction::status);
                } else if free && rng.chance(80.0) {
                    outcome.transaction = Some(self.transactions[id].status());
                }
            }
        }
        Answer {
            body: Some(body),
            delay,
        }
    }

    fn record(&mut self, command: &CommandRequest, body: ReplyBody, effects: u32, done_at: u64) {
        let record = Record {
            request: command.clone(),
            effects,
            body,
            done_at,
            begun: None,
        };
        let before = self
            .records
            .insert(command.execution_reference.clone(), record);
        assert!(before.is_none());
    }

    /// Admits a command and records its outcome, or refuses it without a record.
    fn execute(
        &mut self,
        rng: &mut Rng,
        odds: &Odds,
        now: u64,
        conn: ConnId,
        command: &CommandRequest,
    ) -> Option<ReplyBody> {
        let reference = command.execution_reference.as_str();
        let message = format!("outcome of {reference}");
        let verb = verb(&command.query);
        let bound = self.sessions[&conn].transaction.clone();
        let lasts = if rng.chance(30.0) {
            rng.within(0, 3_000_000_000)
        } else {
            0
        };
        let fails = rng.chance(20.0);
        if let Some(id) = bound.as_ref().filter(|_| self.own(conn).is_none()) {
            // Taken over behind its back.
            let id = id.clone();
            self.sessions.get_mut(&conn).unwrap().transaction = None;
            if !self.transactions[&id].is_open() {
                let failed = command_failed(reference, &message);
                let body = bound_to(failed, &self.transactions[&id]);
                self.record(command, body, 0, now);
                return None;
            }
            let taken = TransactionTakenOver { transaction_id: id };
            let disposition = CommandDisposition::TransactionTakenOver(taken);
            return Some(told(reference, disposition, "taken over"));
        }
        let Some(position) = command.expected_transaction_position else {
            let refused = bound.is_some() || matches!(&*verb, "COMMIT" | "REVERT");
            let mut body = if refused || fails {
                command_failed(reference, &message)
            } else {
                told(reference, done(), &message)
            };
            let mut begun = None;
            if verb == "BEGIN" && !refused && !fails {
                let id = format!("t{}", self.transactions.len());
                let transaction = Transaction {
                    id: id.clone(),
                    domain: command.domain.clone().unwrap(),
                    state: TransactionState::TransactionOpen,
                    operations: Vec::new(),
                    holder: Holder::Nobody,
                    basis: 0,
                };
                self.transactions.insert(id.clone(), transaction);
                self.bind(conn, &id);
                begun = Some(id);
            }
            if let ReplyBody::CommandOutcome(outcome) = &mut body {
                outcome.transaction = self.own(conn).map(Transaction::status);
            }
            let effects = u32::from(!refused);
            self.record(command, body, effects, now + lasts);
            self.records.get_mut(reference).unwrap().begun = begun;
            return None;
        };
        let meant = self.meant[reference].clone();
        let meant = meant.expect("a position outside a transaction (X-2)");
        let Some(id) = bound else {
            let transaction = &self.transactions[&meant];
            if transaction.is_open() && transaction.holder == Holder::Stranger {
                let taken = TransactionTakenOver {
                    transaction_id: meant,
                };
                let disposition = CommandDisposition::TransactionTakenOver(taken);
                return Some(told(reference, disposition, "taken over"));
            }
            if transaction.is_open() {
                return Some(detached(reference, &meant));
            }
            self.record(command, command_failed(reference, &message), 0, now);
            return None;
        };
        let transaction = &self.transactions[&id];
        let accepted = transaction.operations.len() as u64;
        if position != accepted {
            let conflict = ExecutionReferenceConflict {
                conflict: ExecutionReferenceConflictKind::Position,
            };
            let disposition = CommandDisposition::ExecutionReferenceConflict(conflict);
            return Some(bound_to(
                told(reference, disposition, "another position"),
                transaction,
            ));
        }
        assert_eq!(
            meant, id,
            "a command of one transaction in another: {command:?}"
        );
        if command.domain.as_ref() != Some(&transaction.domain) {
            let body = bound_to(command_failed(reference, &message), transaction);
            self.record(command, body, 0, now);
            return None;
        }
        match &*verb {
            "COMMIT" => {
                let current = transaction.preview();
                match &command.expected_preview {
                    Some(expected) if *expected != current => {
                        let stale = PreviewStale {
                            expected: expected.clone(),
                            current,
                        };
                        let disposition = CommandDisposition::PreviewStale(stale);
                        return Some(bound_to(told(reference, disposition, "stale"), transaction));
                    }
                    _ => {}
                }
                let (state, body) = if fails {
                    let failed = TransactionFailed {
                        failing_operation: 1,
                        error: "no".into(),
                    };
                    (
                        TransactionState::TransactionFailed(failed),
                        command_failed(reference, &message),
                    )
                } else {
                    self.apply(&id);
                    (
                        TransactionState::TransactionCommitted,
                        told(reference, done(), &message),
                    )
                };
                self.finish(&id, state);
                let body = bound_to(body, &self.transactions[&id]);
                self.record(command, body, u32::from(!fails), now + lasts);
            }
            "BEGIN" => {
                let body = bound_to(command_failed(reference, &message), transaction);
                self.record(command, body, 0, now);
            }
            "REVERT" => {
                self.finish(&id, TransactionState::TransactionReverted);
                let mut body = told(reference, done(), &message);
                if rng.chance(50.0) {
                    body = bound_to(body, &self.transactions[&id]);
                }
                self.record(command, body, 1, now + lasts);
            }
            _ if fails || rng.chance(odds.not_opened / 10.0) => {
                let body = bound_to(command_failed(reference, &message), transaction);
                self.record(command, body, 0, now);
            }
            _ => {
                let transaction = self.transactions.get_mut(&id).unwrap();
                transaction.operations.push(reference.to_owned());
                let mut body = bound_to(told(reference, done(), &message), transaction);
                if let ReplyBody::CommandOutcome(outcome) = &mut body {
                    outcome.transaction_admission = Some(TransactionOperationAdmission {
                        operation: transaction.operations.len() as u64,
                        preview: transaction.preview(),
                    });
                }
                self.record(command, body, 0, now + lasts);
            }
        }
        None
    }
}

fn bound_to(body: ReplyBody, transaction: &Transaction) -> ReplyBody {
    bound(body, transaction.status())
}
