//! The client side of the session protocol as a state machine.
//!
//! Owns every decision about requests, commands, redirects, recovery and subscriptions. Knows no sockets, threads, clocks or
//! randomness: a runner feeds it the time, what hosts ask and what happened on connections, and does what comes out.

mod api;
mod clocks;
mod contract;
mod engine;
mod exchange;
mod execution;
mod origin;
mod projection;
mod reach;
mod reference;
mod statement;
mod subscriptions;

pub use api::{
    Call, CallId, Cause, ClockEvent, ClockEventKind, Config, ConnId, Decision, Delivery,
    Disposition, Done, EndpointId, EndpointState, Error, ErrorKind, Event, EventKind, ExecutionId,
    Given, Input, Now, OpenedSubscription, Outcome, Output, Role, Sent, Settlement,
    StatementReport, Stop, SubmissionOutcome, SubmissionResult, Uncertainty,
};
pub use contract::{Contract, OpenRefusal, OpenRequest, ReopenReason};
pub use engine::Engine;
pub use origin::{Origin, DEFAULT_PORT};
pub use projection::{DomainClock, ProjectionError, Tick};
pub use statement::{recognise, Statement};
