//! Prepared commands, and outcomes made from replies (E-2, E-6 to E-8).
//!
//! Owns what must be kept of a command until its outcome is known. Knows nothing of connections.

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use nervix_wire::types::{
    CommandDisposition, CommandOutcome, DomainInfo, DomainPace, DomainStatus, StatementDisposition,
    StatementOutcome, TransactionPreviewIdentity,
};

use crate::api::{ConnId, Disposition, ErrorKind, Outcome, Sent, StatementReport};
use crate::statement::Route;

/// One logical command.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) query: Arc<str>,
    pub(crate) domain: Option<String>,
    pub(crate) reference: Arc<str>,
    /// What it is sent as; decided when it is first executed, and the same ever after (E-2).
    pub(crate) route: Option<Route>,
    /// The only transaction that it may be sent in, if it was prepared for one.
    pub(crate) bound: Option<Arc<str>>,
    /// The transaction it belongs to.
    pub(crate) transaction: Option<Arc<str>>,
    pub(crate) position: Option<u64>,
    pub(crate) preview: Option<TransactionPreviewIdentity>,
    /// It was written to some session, so it may have happened.
    pub(crate) written: bool,
    /// It may have been sent before this session knew of it.
    pub(crate) recovered: bool,
    /// For whoever wants to repeat it in another session.
    pub(crate) sent: Arc<OnceLock<Sent>>,
    /// An attempt ended without an answer, so a later refusal says nothing about the first.
    pub(crate) doubtful: bool,
    /// The exchange that a request of it is in flight on.
    pub(crate) flight: Option<ConnId>,
    pub(crate) outcome: Option<Arc<Outcome>>,
    /// Why the last attempt came to nothing.
    pub(crate) cause: Option<(ErrorKind, String)>,
    /// The host let go of it.
    pub(crate) released: bool,
}

impl Execution {
    pub(crate) fn new(query: &str, domain: Option<String>, reference: Arc<str>) -> Self {
        Self {
            query: Arc::from(query),
            domain,
            reference,
            route: None,
            bound: None,
            transaction: None,
            position: None,
            preview: None,
            written: false,
            recovered: false,
            sent: Arc::default(),
            doubtful: false,
            flight: None,
            outcome: None,
            cause: None,
            released: false,
        }
    }

    pub(crate) fn may_have_happened(&self) -> bool {
        self.written || self.recovered
    }
}

/// An outcome of this side of the wire.
pub(crate) fn outcome(disposition: Disposition, message: impl Into<String>) -> Outcome {
    Outcome {
        disposition,
        message: message.into(),
        reference: None,
        diagnostics: Vec::new(),
        statements: Vec::new(),
        origin: None,
        already_existed: false,
        decided_locally: false,
        subscription: None,
        backup: None,
        restore: None,
        transaction: None,
        admission: None,
    }
}

pub(crate) fn local(disposition: Disposition, message: impl Into<String>) -> Outcome {
    Outcome {
        decided_locally: true,
        ..outcome(disposition, message)
    }
}

pub(crate) fn of_command(reply: CommandOutcome) -> Outcome {
    let (disposition, already_existed) = match &reply.disposition {
        CommandDisposition::CommandCompleted(completed) => {
            (Disposition::Completed, completed.already_existed)
        }
        CommandDisposition::RequestFailed => (Disposition::Failed, false),
        CommandDisposition::LeaderRedirect(_) => (Disposition::NotLeader, false),
        CommandDisposition::TransactionDetached(_) => (Disposition::TransactionDetached, false),
        CommandDisposition::TransactionTakenOver(_) => (Disposition::TransactionTakenOver, false),
        CommandDisposition::OutcomeUnknown(_) => (Disposition::OutcomeUnknown, false),
        CommandDisposition::ExecutionReferenceConflict(_) => {
            (Disposition::ExecutionReferenceConflict, false)
        }
        CommandDisposition::ExecutionReferenceExpired => {
            (Disposition::ExecutionReferenceExpired, false)
        }
        CommandDisposition::PreviewStale(_) => (Disposition::PreviewStale, false),
    };
    Outcome {
        reference: Some(reply.execution_reference),
        diagnostics: reply.diagnostics,
        statements: reply.statements.into_iter().map(of_statement).collect(),
        origin: Some(reply.origin),
        already_existed,
        backup: reply.backup,
        restore: reply.restore,
        transaction: reply.transaction,
        admission: reply.transaction_admission,
        ..outcome(disposition, reply.message)
    }
}

fn of_statement(reply: StatementOutcome) -> StatementReport {
    let (disposition, already_existed) = match &reply.disposition {
        StatementDisposition::CommandCompleted(completed) => {
            (Disposition::Completed, completed.already_existed)
        }
        StatementDisposition::RequestFailed => (Disposition::Failed, false),
        StatementDisposition::LeaderRedirect(_) => (Disposition::NotLeader, false),
    };
    StatementReport {
        disposition,
        already_existed,
        message: reply.message,
        diagnostics: reply.diagnostics,
    }
}

/// One domain a line.
pub(crate) fn render_domains(domains: &[DomainInfo]) -> String {
    let mut text = String::new();
    for info in domains {
        if !text.is_empty() {
            text.push('\n');
        }
        let status = match info.status {
            DomainStatus::Stopped => "stopped",
            DomainStatus::Running => "running",
            DomainStatus::Paused => "paused",
        };
        // Writing to a String cannot fail.
        let _ = match &info.pace {
            DomainPace::UnpacedDomain => write!(text, "{}: {status}, unpaced", info.domain),
            DomainPace::PacedDomain(pace) => write!(
                text,
                "{}: {status}, paced with period {} ns and skew {} ns",
                info.domain, pace.period_nanos, pace.skew_nanos
            ),
        };
        let _ = write!(text, ", start version {}", info.start_version);
    }
    text
}
