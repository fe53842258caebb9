//! The graph: domains, schemas, branches, relays, endpoints and the subscriptions that read them.
//!
//! Owns every model, what statements do to them, and the way from published rows to subscription frames. Must not
//! know sockets, threads, sessions or the machine's clock: the caller says what time it is and delivers what comes out.

pub mod delivery;
pub mod failure;

use nervix_wire::types::{
    Diagnostic, DomainInfo, RowSchema, SubscriptionEndReason, SuggestOutcome,
};

pub use delivery::{Delivery, Published, RowsPayload};
pub use failure::Failure;

/// The caller's reading of UTC, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now(pub i64);

/// One subscription for the life of the process: never zero, never reused, so that it also serves as its generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId(pub u64);

/// What `SHOW CLUSTER STATUS` prints; the graph knows nothing of nodes by itself.
#[derive(Debug, Clone, Default)]
pub struct ClusterStatus {
    pub nodes: Vec<NodeStatus>,
}

#[derive(Debug, Clone)]
pub struct NodeStatus {
    pub name: String,
    pub grpc_uri: String,
    pub running: bool,
    pub leader: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    Completed { already_existed: bool },
    Failed,
}

/// What one command came to.
#[derive(Debug, Clone)]
pub struct StatementResult {
    pub disposition: Disposition,
    pub message: String,
    pub diagnostics: Vec<Diagnostic>,
    /// The list of domains, or something a DomainInfo says, is no longer what it was.
    pub domains_changed: bool,
    /// Subscriptions this command ended, with the reason and words for a person.
    pub ended: Vec<(SubscriptionId, SubscriptionEndReason, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryMode {
    Blocking,
    Dropping,
}

/// A subscription that was just opened.
#[derive(Debug, Clone)]
pub struct OpenedSubscription {
    pub id: SubscriptionId,
    pub name: String,
    pub domain: String,
    pub relay: String,
    pub schema: RowSchema,
    pub delivery: DeliveryMode,
}

/// Every domain with its models and the subscriptions on them.
#[derive(Debug, Default)]
pub struct World {}

impl World {
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs one statement that is a command; `domain` is the one the request names.
    pub fn execute(
        &mut self,
        now: Now,
        cluster: &ClusterStatus,
        domain: Option<&str>,
        query: &str,
    ) -> StatementResult {
        StatementResult {
            disposition: Disposition::Failed,
            message: "not supported by this node yet".into(),
            diagnostics: vec![],
            domains_changed: false,
            ended: vec![],
        }
    }

    /// Whether a follower may serve this query by itself; whatever cannot be told is the leader's.
    pub fn served_by_any_node(query: &str) -> bool {
        false
    }

    /// In name order.
    pub fn domains(&self) -> Vec<DomainInfo> {
        vec![]
    }
    pub fn has_domain(&self, domain: &str) -> bool {
        false
    }

    /// Opens what exactly one CREATE SUBSCRIPTION statement says. Names are the session's matter: the same name twice is two subscriptions here.
    pub fn subscribe(
        &mut self,
        domain: &str,
        statement: &str,
    ) -> Result<OpenedSubscription, Failure> {
        Err(Failure {
            message: "not supported by this node yet".into(),
            diagnostics: vec![],
        })
    }

    /// Forgets a subscription; false when it is not there (deleted, or ended by a statement).
    pub fn unsubscribe(&mut self, id: SubscriptionId) -> bool {
        false
    }

    /// Publishes an array of row objects, or one row object, as one batch.
    pub fn publish_json(
        &mut self,
        now: Now,
        domain: &str,
        relay: &str,
        rows: &serde_json::Value,
    ) -> Result<Published, String> {
        Err("not supported by this node yet".into())
    }

    /// Publishes one canonical Arrow IPC stream as one batch.
    pub fn publish_ipc(
        &mut self,
        now: Now,
        domain: &str,
        relay: &str,
        stream: &[u8],
    ) -> Result<Published, String> {
        Err("not supported by this node yet".into())
    }

    /// Completions at a byte offset of `input`; `page_size` 1 to 100.
    pub fn suggest(
        &self,
        domain: Option<&str>,
        input: &str,
        cursor: usize,
        page_size: usize,
        continuation: Option<&str>,
    ) -> SuggestOutcome {
        SuggestOutcome {
            status: nervix_wire::types::SuggestionStatus::Ready,
            suggestions: vec![],
            continuation: None,
        }
    }
}
