//! What goes into an engine and what comes out of it.
//!
//! Owns the vocabulary between the engine and whatever runs it. Knows nothing of sockets, threads, clocks or randomness: a
//! runner brings the time, the random bytes and what happened on its connections.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use nervix_wire::types::{
    BackupArchiveSummary, Diagnostic, DomainClockAttachmentEndReason, DomainClockObservation,
    EmitterSettlement, OutcomeOrigin, ProcessingFailure, RestoreReport, RowSchema,
    RowsSkippedCause, ServerMessage, SubmissionRefusal, SubscriptionEndReason, SuggestOutcome,
    TransactionOperationAdmission, TransactionPreviewIdentity, TransactionStatus,
};
use nervix_wire::{CheckedRows, Frame, Violation};

use crate::contract::{Contract, OpenRefusal, OpenRequest};
use crate::origin::Origin;
use crate::projection::Tick;

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

/// One producer or consumer of this engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub u64);

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
    /// As [`Call::Execute`], for a command that must not become part of a transaction: it is sent for the first time only while the
    /// session holds none.
    ExecuteOutside(ExecutionId),
    /// The next event of any subscription.
    NextEvent,
    /// One page of completions.
    Suggest {
        input: String,
        cursor: u32,
        page_size: u16,
        continuation: Option<String>,
    },
    /// The next event of any domain clock.
    NextClockEvent,
    /// Open a producer or a consumer.
    Open(Role, OpenRequest),
    /// Hand a batch to a producer: canonical Arrow IPC, or what the server is to judge.
    Submit(EndpointId, Bytes),
    /// Take the outcome of a submission.
    Rejoin(EndpointId, u64),
    /// The next delivery of a consumer.
    NextDelivery(EndpointId),
    /// Settle a delivery through the attachment that brought it.
    Settle(Delivery, Decision),
    /// Close a producer or a consumer, and wait until the server released it.
    Close(EndpointId),
}

/// The two kinds of endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Producer,
    Consumer,
}

/// What a host decides about a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Ack,
    Retry,
    /// 1 to 1024 bytes of text without sensitive values.
    Reject(String),
}

/// What a finished call hands back.
#[derive(Debug, Clone)]
pub enum Done {
    Connected,
    Outcome(Arc<Outcome>),
    Event(Event),
    Suggestions(SuggestOutcome),
    ClockEvent(ClockEvent),
    Endpoint(EndpointId, Arc<Contract>),
    Submitted(u64),
    Submission(SubmissionOutcome),
    Delivery(Delivery),
    Settled(Settlement),
    Closed,
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
    /// One whole message arrived and was read before the engine was entered, so that nobody waits for it meanwhile.
    Message {
        conn: ConnId,
        message: Box<Result<ServerMessage, Violation>>,
    },
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
    /// Why an open was refused, for a refused open.
    pub refusal: Option<OpenRefusal>,
    /// Nothing of the command was ever sent.
    pub unsent: bool,
    /// It was not, as the session holds this transaction, and it must not become part of one.
    pub held: Option<String>,
    /// The server found the command's frame malformed or oversized: nothing sends it again but the host (T-6).
    pub condemned: bool,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            reference: None,
            refusal: None,
            unsent: false,
            held: None,
            condemned: false,
        }
    }

    pub(crate) fn unsent(self) -> Self {
        Self {
            unsent: true,
            ..self
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
    /// The transaction that the session holds, as this outcome reports it; or how it ended, when that was learned before.
    pub transaction: Option<TransactionStatus>,
    /// What an append was admitted as.
    pub admission: Option<TransactionOperationAdmission>,
}

/// What a command was first sent with, beside its text, its domain and its reference: every repetition must have it (E-2).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sent {
    /// Its place in a transaction, if it is of one.
    pub position: Option<u64>,
    /// What a COMMIT had to find.
    pub preview: Option<TransactionPreviewIdentity>,
}

/// What a command is prepared with beside its text.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// The domain that it is of, in place of the selected one (L-1).
    pub domain: Option<String>,
    /// The reference of a command that may have run before, and then with this position and preview, or with none (E-3).
    pub reference: Option<String>,
    /// The position that command was first sent with (E-2).
    pub position: Option<u64>,
    /// The only transaction that it may be sent in; any, or none, when absent.
    pub transaction: Option<String>,
    /// What a COMMIT must find.
    pub preview: Option<TransactionPreviewIdentity>,
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

/// Something a follower of a domain's clock has to know, coalesced a domain (K-3, B-9).
#[derive(Debug, Clone, PartialEq)]
pub struct ClockEvent {
    pub domain: Arc<str>,
    pub kind: ClockEventKind,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ClockEventKind {
    State(DomainClockObservation),
    Tick {
        generation: u64,
        tick: Tick,
    },
    Ended(DomainClockAttachmentEndReason),
    /// A gap: changes and ticks until the next state are never reported.
    Interrupted,
    /// An attempt to attach again was refused or left unanswered, and will be repeated.
    RestorationFailed,
}

/// What a producer or consumer is in the middle of, as the C interface numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndpointState {
    Active = 1,
    Interrupted = 2,
    Restoring = 3,
    ReopenRequired = 4,
    Closed = 5,
}

/// What became of a submitted batch (P-5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubmissionOutcome {
    pub result: SubmissionResult,
    /// Bounded, without sensitive values, and empty for a completed batch.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmissionResult {
    NotAdmitted(SubmissionRefusal),
    Completed,
    ProcessingFailed(ProcessingFailure),
    OutcomeUnknown(Uncertainty),
}

/// Why the outcome of a batch is not known, as the C interface numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Uncertainty {
    Interrupted = 1,
    OwnerLost = 2,
    SessionLost = 3,
}

/// One attempt to have a batch processed.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub consumer: EndpointId,
    pub(crate) conn: ConnId,
    /// The consumer's identity on that exchange.
    pub(crate) wire: u64,
    /// The same for every attempt.
    pub identity: [u8; 16],
    /// This attempt's.
    pub reference: [u8; 16],
    pub source_relay: Arc<str>,
    pub branch_fingerprint: Option<[u8; 32]>,
    /// One Arrow IPC stream, within the frame it came in.
    pub batch: Bytes,
    pub members: u32,
    /// Domain time when the batch was prepared, in nanoseconds since the Unix epoch.
    pub execution_now: i64,
}

/// How a settlement ended, as the C interface numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Settlement {
    Confirmed = 1,
    StaleReference = 2,
    WrongConsumer = 3,
    InvalidReason = 4,
    ConsumerEnded = 5,
}

impl From<EmitterSettlement> for Settlement {
    fn from(settlement: EmitterSettlement) -> Self {
        match settlement {
            EmitterSettlement::Confirmed => Self::Confirmed,
            EmitterSettlement::StaleReference => Self::StaleReference,
            EmitterSettlement::WrongConsumer => Self::WrongConsumer,
            EmitterSettlement::InvalidReason => Self::InvalidReason,
            EmitterSettlement::ConsumerEnded => Self::ConsumerEnded,
        }
    }
}

/// The most characters of what a server says about an event that are kept for a host.
const MESSAGE_CHARS: usize = 1024;

/// A server's message, cut to a length that costs nothing.
pub(crate) fn brief(message: String) -> String {
    if message.len() <= MESSAGE_CHARS {
        return message;
    }
    message.chars().take(MESSAGE_CHARS).collect()
}
