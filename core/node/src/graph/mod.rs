//! The graph: domains, schemas, branches, relays, endpoints and the subscriptions that read them.
//!
//! Owns every model, what statements do to them, and the way from published rows to subscription frames. Must not
//! know sockets, threads, sessions or the machine's clock: the caller says what time it is and delivers what comes out.

mod arrays;
mod branch;
mod catalog;
mod clock;
mod columns;
mod command;
mod construct;
mod delivery;
mod describe;
mod domain;
mod emit;
mod endpoints;
mod expr;
mod failure;
mod fields;
mod flow;
mod ingest;
mod ipc;
mod json;
mod ledger;
mod program;
mod relay;
mod staging;
mod suggest;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use nervix_wire::types::{
    Diagnostic, DomainInfo, RowSchema, SubscriptionEndReason, SuggestOutcome,
};

pub use delivery::{Delivery, Published};
pub use endpoints::{ConsumerId, Effect, Opener, ProducerId, Tag};
pub use failure::Failure;
pub use staging::Act;

use crate::lang::ast::Statement;
use crate::lang::parse::parse_script;
use delivery::{Reader, RelayShape, Source};
use domain::Domain;
use endpoints::Endpoints;
use expr::Scope;

/// The caller's reading of UTC, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now(pub i64);

impl Now {
    pub fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add_unsigned(nanos))
    }
}

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
#[derive(Debug, Clone, Default)]
pub struct World {
    domains: BTreeMap<String, Domain>,
    /// The newest subscription's number.
    subscriptions: u64,
    /// Producers, consumers and what happened to them.
    endpoints: Endpoints,
}

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
        self.advance(now);
        let result = command::execute(self, now, cluster, domain, query);
        self.settle_down(now);
        result
    }

    /// Whether a follower may serve this query by itself; whatever cannot be told is the leader's.
    pub fn served_by_any_node(query: &str) -> bool {
        command::served_by_any_node(query)
    }

    /// In name order.
    pub fn domains(&self) -> Vec<DomainInfo> {
        self.domains.values().map(Domain::info).collect()
    }

    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Opens what exactly one CREATE SUBSCRIPTION statement says. Names are the session's matter: the same name twice is
    /// two subscriptions here.
    pub fn subscribe(
        &mut self,
        domain: &str,
        statement: &str,
    ) -> Result<OpenedSubscription, Failure> {
        let mut statements = parse_script(statement)?.into_iter();
        let declared = match (statements.next(), statements.next()) {
            (Some(only), None) => match only.statement {
                Statement::CreateSubscription(declared) => declared,
                _ => {
                    return Err(Failure::at(
                        "a subscription is opened with CREATE SUBSCRIPTION, and this is another statement",
                        only.span,
                    ))
                }
            },
            (Some(_), Some(second)) => {
                return Err(Failure::at(
                    "a subscription is opened with one statement, and a second one begins here",
                    second.span,
                ))
            }
            (None, _) => return Err(Failure::new("there is no statement in this request")),
        };
        let Some(domain) = self.domains.get_mut(domain) else {
            return Err(Failure::new(format!("there is no domain `{domain}`")));
        };
        let view = domain.catalog.find_relay(&declared.relay)?;
        // Rows reach a subscription with sensitive values withheld. A filter over such a value would tell it bit by bit,
        // leak_sensitive() or not, since whoever may subscribe may write any filter.
        let scope = Scope {
            input: Some(view.fields),
            message: Some(view.fields),
            error: false,
            refuses_sensitive: Some("a subscription"),
        };
        let filter = declared
            .filter
            .as_ref()
            .map(|filter| expr::check_filter(filter, &scope))
            .transpose()?;
        let schema = delivery::row_schema(&view);
        self.subscriptions += 1;
        let id = SubscriptionId(self.subscriptions);
        let name = declared.name.text;
        let relay = declared.relay.text;
        let reader = Reader::new(id, name.clone(), filter, declared.sample_rate);
        domain
            .readers
            .entry(relay.clone())
            .or_default()
            .push(reader);
        Ok(OpenedSubscription {
            id,
            name,
            domain: domain.name.clone(),
            relay,
            schema,
            delivery: match declared.delivery {
                crate::lang::ast::DeliveryMode::Blocking => DeliveryMode::Blocking,
                crate::lang::ast::DeliveryMode::Dropping => DeliveryMode::Dropping,
            },
        })
    }

    /// Forgets a subscription; false when it is not there (deleted, or ended by a statement).
    pub fn unsubscribe(&mut self, id: SubscriptionId) -> bool {
        self.domains
            .values_mut()
            .any(|domain| domain.remove_reader(id))
    }

    /// Publishes an array of row objects, or one row object, as one batch. The domain need not run: what is published so
    /// enters the relay past every endpoint.
    pub fn publish_json(
        &mut self,
        now: Now,
        domain: &str,
        relay: &str,
        rows: &serde_json::Value,
    ) -> Result<Published, String> {
        self.publish(now, domain, relay, |shape| {
            json::batch(&shape.fields, &shape.schema, rows)
        })
    }

    /// Publishes one canonical Arrow IPC stream as one batch.
    pub fn publish_ipc(
        &mut self,
        now: Now,
        domain: &str,
        relay: &str,
        stream: &[u8],
    ) -> Result<Published, String> {
        self.publish(now, domain, relay, |shape| {
            ipc::batch(&shape.fields, &shape.schema, usize::MAX, stream)
                .map_err(|defect| defect.message)
        })
    }

    fn publish(
        &mut self,
        now: Now,
        domain: &str,
        relay: &str,
        batch: impl FnOnce(&RelayShape) -> Result<arrow_array::RecordBatch, String>,
    ) -> Result<Published, String> {
        let Some(domain) = self.domains.get_mut(domain) else {
            return Err(format!("there is no domain `{domain}`"));
        };
        let Some(view) = domain.catalog.relay_view(relay) else {
            return Err(format!("there is no relay `{relay}`"));
        };
        let shape = RelayShape::new(&view)?;
        let batch = batch(&shape)?;
        let rows = batch.num_rows();
        let source = Arc::new(Source {
            batch,
            fields: Arc::clone(&shape.fields),
        });
        let columns = source
            .columns()
            .ok_or("the batch is not of the relay's types")?;
        let groups = delivery::groups(&shape, &columns, rows)?;
        let time = domain.time(now);
        let readers = domain.readers.get_mut(relay).into_iter().flatten();
        let deliveries = delivery::publish(&source, &columns, &groups, time, readers);
        domain.publish(relay, &source, &groups)?;
        self.settle_down(now);
        Ok(Published {
            rows: u64::try_from(rows).unwrap_or(u64::MAX),
            deliveries,
        })
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
        suggest::suggest(self, domain, input, cursor, page_size, continuation)
    }
}
