//! What goes into an engine and what comes out of it.
//!
//! Owns the vocabulary between the engine and whatever runs it. Knows nothing of sockets, threads, clocks or randomness: a
//! runner brings the time, the random bytes and what happened on its connections.

use std::fmt;
use std::sync::Arc;

use nervix_wire::types::{
    BackupArchiveSummary, Diagnostic, OutcomeOrigin, RestoreReport, RowSchema, RowsSkippedCause,
    SubscriptionEndReason, SuggestOutcome,
};
use nervix_wire::{CheckedRows, Frame};

use crate::origin::Origin;

/// The time a runner read just before it entered the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds of a monotonic clock with any origin; deadlines and waits are told in it.
    pub mono: u64,
    /// Milliseconds since the Unix epoch; only execution references use it.
    pub unix_millis: u64,
}

/// One connection, from the [`Output::Open`] that asked for it to its end. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// One waiting host call. The runner chooses it; an engine answers each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// One prepared command of this engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExecutionId(pub u64);

/// How a session is opened and how long it waits.
#[derive(Debug, Clone)]
pub struct Config {
    /// The servers to try, in order; the first is the one the host named.
    pub seeds: Vec<Origin>,
    /// The domain selected at the start.
    pub domain: Option<String>,
    /// Nanoseconds one reply may take before its session is given up.
    pub request_timeout: u64,
    /// Nanoseconds one host call may take, with all its retries and redirects.
    pub retry_timeout: u64,
    /// Random bytes, for jitter alone.
    pub seed: u64,
}

/// What a host asks for and waits for.
#[derive(Debug, Clone)]
pub enum Call {
    /// Open the first session. Each seed is tried once.
    Connect,
    /// Run a prepared command, or recover its outcome.
    Execute(ExecutionId),
    /// The next event of any subscription.
    NextEvent,
    /// One page of completions.
    Suggest {
        input: String,
        cursor: u32,
        page_size: u16,
        continuation: Option<String>,
    },
}

/// What a finished call hands back.
#[derive(Debug, Clone)]
pub enum Done {
    Connected,
    Outcome(Arc<Outcome>),
    Event(Event),
    Suggestions(SuggestOutcome),
}

/// Why a host stopped waiting for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Its token was triggered.
    Cancelled,
    /// Its token's deadline passed.
    Deadline,
}

/// What happened on a connection.
#[derive(Debug, Clone)]
pub enum Input {
    /// One whole message arrived.
    Frame { conn: ConnId, frame: Frame },
    /// The connection is over, or never came to be. Nothing follows for it.
    Closed { conn: ConnId, cause: Cause },
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// No stream could be opened: name resolution, connecting, TLS, or the HTTP/2 handshake.
    Unreachable(String),
    /// The server ended the call with this grpc-status. Never a code that a local library made up (T-6).
    Status { code: u32, message: String },
    /// A reset, GOAWAY, a broken connection, or the end of the stream.
    Lost(String),
    /// What arrived was no frame of the protocol: too large, compressed, not gRPC.
    Violation(String),
}

/// What the runner does next, in this order.
#[derive(Debug, Clone)]
pub enum Output {
    /// Open an exchange with this server.
    Open { conn: ConnId, origin: Origin },
    /// Send one message on the exchange.
    Send { conn: ConnId, frame: Vec<u8> },
    /// Reset the exchange and close its connection; never half-close it. Nothing more is read from it.
    Reset { conn: ConnId },
    /// A call is over.
    Done {
        call: CallId,
        result: Result<Done, Error>,
    },
}

/// Kinds of errors, as the C interface numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    InvalidArgument = 1,
    Connect = 2,
    Transport = 3,
    Uncertain = 4,
    Rejected = 5,
    Deadline = 6,
    Cancelled = 7,
    Overflow = 8,
    Protocol = 9,
    Type = 10,
    Closed = 11,
    Interrupted = 12,
    ReopenRequired = 13,
}

/// Why a call failed: one line, the failure and then its causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
    /// The command the failure concerns, for every failure of an execute.
    pub reference: Option<String>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            reference: None,
        }
    }

    pub(crate) fn of_command(mut self, reference: &str) -> Self {
        self.reference = Some(reference.to_owned());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// What was decided about a command, as the C interface numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Disposition {
    Completed = 1,
    Failed = 2,
    NotLeader = 3,
    TransactionDetached = 4,
    TransactionTakenOver = 5,
    OutcomeUnknown = 6,
    ExecutionReferenceConflict = 7,
    ExecutionReferenceExpired = 8,
    PreviewStale = 9,
}

/// The outcome of one command.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub disposition: Disposition,
    pub message: String,
    pub reference: Option<String>,
    pub diagnostics: Vec<Diagnostic>,
    /// One entry a statement for a request of several (E-7).
    pub statements: Vec<StatementReport>,
    /// Absent when no record of a command was involved.
    pub origin: Option<OutcomeOrigin>,
    pub already_existed: bool,
    pub decided_locally: bool,
    pub subscription: Option<OpenedSubscription>,
    pub backup: Option<BackupArchiveSummary>,
    pub restore: Option<RestoreReport>,
}

/// What became of one statement of a request of several.
#[derive(Debug, Clone, PartialEq)]
pub struct StatementReport {
    pub disposition: Disposition,
    pub already_existed: bool,
    pub message: String,
    pub diagnostics: Vec<Diagnostic>,
}

/// A subscription that a command opened.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenedSubscription {
    pub name: Arc<str>,
    pub generation: u64,
    pub schema: Arc<RowSchema>,
}

/// Something a subscription's reader has to know, in order.
#[derive(Debug, Clone)]
pub struct Event {
    pub name: Arc<str>,
    pub generation: u64,
    pub kind: EventKind,
}

#[derive(Debug, Clone)]
pub enum EventKind {
    Rows(CheckedRows),
    /// The server dropped rows (S-5).
    DeliveryLost {
        rows: u64,
    },
    /// The server could not deliver rows (S-5).
    RowsSkipped {
        rows: u64,
        cause: RowsSkippedCause,
        message: String,
    },
    /// The last event of its generation (S-4).
    Ended {
        reason: SubscriptionEndReason,
        message: String,
    },
    /// A gap: the session was lost, and the subscription is opened again on the next one (S-7).
    Interrupted {
        message: String,
    },
    /// The reader was too slow: what was queued is gone, and nothing more comes on this session (S-8).
    Overflow {
        dropped: u64,
    },
    /// An attempt to open the subscription again was refused or left unanswered, and will be repeated (S-7).
    RestorationFailed {
        message: String,
    },
}
