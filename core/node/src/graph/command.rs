//! What statements that are commands do.

use nervix_wire::types::{ProducerEndReason, SubscriptionEndReason};

use super::domain::Domain;
use super::endpoints::Effect;
use super::failure::Failure;
use super::{describe, ClusterStatus, Disposition, Now, StatementResult, SubscriptionId, World};
use crate::lang::ast::{Kind, Model, Name, Pace, RelayChange, SchemaChange, StartAt, Statement};
use crate::lang::lex::{tokenize, TokenKind};
use crate::lang::parse::parse;
use crate::lang::print::print_domain;

/// What a completed statement leaves.
struct Done {
    message: String,
    already_existed: bool,
    domains_changed: bool,
    ended: Vec<(SubscriptionId, SubscriptionEndReason, String)>,
}

impl Done {
    fn says(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            already_existed: false,
            domains_changed: false,
            ended: Vec::new(),
        }
    }

    fn already_existed(kind: Kind, name: &Name) -> Self {
        Self {
            already_existed: true,
            ..Self::says(format!(
                "the {} `{}` already exists",
                kind.word(),
                name.text
            ))
        }
    }

    fn domains_changed(message: String) -> Self {
        Self {
            domains_changed: true,
            ..Self::says(message)
        }
    }

    fn ending(
        mut self,
        subscriptions: Vec<SubscriptionId>,
        reason: SubscriptionEndReason,
        why: &str,
    ) -> Self {
        self.ended.extend(
            subscriptions
                .into_iter()
                .map(|id| (id, reason, why.to_string())),
        );
        self
    }
}

pub fn execute(
    world: &mut World,
    now: Now,
    cluster: &ClusterStatus,
    domain: Option<&str>,
    query: &str,
) -> StatementResult {
    match run(world, now, cluster, domain, query) {
        Ok(done) => StatementResult {
            disposition: Disposition::Completed {
                already_existed: done.already_existed,
            },
            message: done.message,
            diagnostics: Vec::new(),
            domains_changed: done.domains_changed,
            ended: done.ended,
        },
        Err(failure) => StatementResult {
            disposition: Disposition::Failed,
            message: failure.message,
            diagnostics: failure.diagnostics,
            domains_changed: false,
            ended: Vec::new(),
        },
    }
}

fn other_request(statement: &str, request: &str) -> Failure {
    Failure::new(format!("{statement} is no command: send {request}"))
}

fn unsupported(statement: &str) -> Failure {
    Failure::new(format!("{statement} is not supported by this node yet"))
}

fn run(
    world: &mut World,
    now: Now,
    cluster: &ClusterStatus,
    selected: Option<&str>,
    query: &str,
) -> Result<Done, Failure> {
    match parse(query)? {
        Statement::Use { .. } => Err(Failure::new(
            "USE is no command: put the domain into the requests that need it",
        )),
        Statement::ListDomains => Err(other_request("LIST DOMAINS", "ListDomainsRequest")),
        Statement::CreateSubscription(_) => {
            Err(other_request("CREATE SUBSCRIPTION", "SubscribeRequest"))
        }
        Statement::DeleteSubscription { .. } => {
            Err(other_request("DELETE SUBSCRIPTION", "UnsubscribeRequest"))
        }
        Statement::AttachDomainClock => Err(other_request(
            "ATTACH DOMAIN CLOCK",
            "AttachDomainClockRequest",
        )),
        Statement::DetachDomainClock => Err(other_request(
            "DETACH DOMAIN CLOCK",
            "DetachDomainClockRequest",
        )),
        Statement::UploadResource { .. } => {
            Err(other_request("UPLOAD RESOURCE", "an UploadResource call"))
        }
        Statement::Restore { .. } => Err(other_request("RESTORE", "a RestoreBackup call")),
        Statement::Backup { .. } => Err(unsupported("BACKUP")),
        Statement::Begin
        | Statement::Commit
        | Statement::Revert
        | Statement::ShowTransactions
        | Statement::DescribeTransaction { .. } => Err(Failure::new(
            "a transaction is a session's matter, and this statement comes without one",
        )),
        Statement::ShowClusterStatus => Ok(Done::says(describe::cluster(cluster))),
        Statement::CreateDomain {
            if_not_exists,
            name,
            pace,
        } => create_domain(world, if_not_exists, &name, pace),
        Statement::Drop {
            kind: Kind::Domain,
            name,
        } => drop_domain(world, &name),
        Statement::DescribeDomain { name } => {
            let domain = match &name {
                Some(name) => find_domain(world, name)?,
                None => selected_domain(world, selected)?,
            };
            Ok(Done::says(describe::domain(domain, now)))
        }
        Statement::ShowCreate {
            kind: Kind::Domain,
            name,
        }
        | Statement::Describe {
            kind: Kind::Domain,
            name,
        } => {
            let domain = find_domain(world, &name)?;
            let text = print_domain(&domain.name, domain.pace);
            Ok(Done::says(format!("CREATE {text};")))
        }
        statement => {
            let domain = selected_domain(world, selected)?;
            let clock = domain.observation();
            let mut effects = Vec::new();
            let done = in_domain(domain, now, cluster, statement, &mut effects)?;
            if domain.observation() != clock {
                effects.push(Effect::Clock {
                    domain: domain.name.clone(),
                    clock: Some(domain.observation()),
                });
            }
            for effect in effects {
                world.endpoints.push(effect);
            }
            Ok(done)
        }
    }
}

fn find_domain<'a>(world: &'a mut World, name: &Name) -> Result<&'a mut Domain, Failure> {
    world
        .domains
        .get_mut(&name.text)
        .ok_or_else(|| Failure::name(format!("there is no domain `{}`", name.text), name))
}

fn selected_domain<'a>(
    world: &'a mut World,
    selected: Option<&str>,
) -> Result<&'a mut Domain, Failure> {
    let Some(name) = selected else {
        return Err(Failure::new(
            "this statement needs a domain, and none is selected: USE one first",
        ));
    };
    world
        .domains
        .get_mut(name)
        .ok_or_else(|| Failure::new(format!("there is no domain `{name}`, which is selected")))
}

fn create_domain(
    world: &mut World,
    if_not_exists: bool,
    name: &Name,
    pace: Pace,
) -> Result<Done, Failure> {
    if world.domains.contains_key(&name.text) {
        return if if_not_exists {
            Ok(Done::already_existed(Kind::Domain, name))
        } else {
            Err(Failure::name(
                format!("the domain `{}` already exists", name.text),
                name,
            ))
        };
    }
    world
        .domains
        .insert(name.text.clone(), Domain::new(name.text.clone(), pace));
    Ok(Done::domains_changed(format!(
        "created the domain `{}`",
        name.text
    )))
}

fn drop_domain(world: &mut World, name: &Name) -> Result<Done, Failure> {
    find_domain(world, name)?;
    let ended = world.domains.remove(&name.text).map(|mut domain| {
        for effect in domain.stop(ProducerEndReason::EndpointRemoved, "the domain was dropped") {
            world.endpoints.push(effect);
        }
        world.endpoints.push(Effect::Clock {
            domain: name.text.clone(),
            clock: None,
        });
        domain
            .readers
            .into_values()
            .flatten()
            .map(|reader| reader.id)
            .collect()
    });
    Ok(
        Done::domains_changed(format!("dropped the domain `{}`", name.text)).ending(
            ended.unwrap_or_default(),
            SubscriptionEndReason::RelayRemoved,
            "the domain was dropped",
        ),
    )
}

/// Statements about one domain.
fn in_domain(
    domain: &mut Domain,
    now: Now,
    cluster: &ClusterStatus,
    statement: Statement,
    effects: &mut Vec<Effect>,
) -> Result<Done, Failure> {
    match statement {
        Statement::CreateModel {
            if_not_exists,
            model,
        } => create_model(domain, if_not_exists, model),
        Statement::Drop { kind, name } => {
            domain.catalog.drop_model(kind, &name)?;
            if let Some(flow) = &mut domain.flow {
                match kind {
                    Kind::Ingestor => flow.end_ingestor(
                        &name.text,
                        ProducerEndReason::EndpointRemoved,
                        "the ingestor was dropped",
                    ),
                    Kind::Emitter => flow.end_emitter(&name.text, "the emitter was dropped"),
                    Kind::Relay => flow.end_relay(&name.text, "the relay was dropped"),
                    _ => (),
                }
            }
            let done = Done::says(format!("dropped the {} `{}`", kind.word(), name.text));
            Ok(if kind == Kind::Relay {
                done.ending(
                    domain.end_readers(&name.text),
                    SubscriptionEndReason::RelayRemoved,
                    "the relay was dropped",
                )
            } else {
                done
            })
        }
        Statement::AlterRelay { name, changes } => alter_relay(domain, &name, &changes),
        Statement::AlterSchema { name, changes } => alter_schema(domain, &name, &changes),
        Statement::Start { at, rate } => start(domain, now, at, rate),
        Statement::Stop => {
            if !domain.running() {
                return Err(Failure::new(format!(
                    "the domain `{}` is not running",
                    domain.name
                )));
            }
            effects.extend(domain.stop(ProducerEndReason::DomainStopped, "the domain was stopped"));
            Ok(Done::domains_changed(format!(
                "stopped the domain `{}`",
                domain.name
            )))
        }
        Statement::ShowCreate { kind, name } => {
            let model = domain.catalog.find(kind, &name)?;
            Ok(Done::says(format!("CREATE {model};")))
        }
        Statement::ShowIngestors => Ok(Done::says(describe::ingestors(domain))),
        Statement::Describe { kind, name } => {
            let model = domain.catalog.find(kind, &name)?;
            Ok(Done::says(describe::model(domain, model, cluster)))
        }
        other => Err(unsupported(&other.to_string())),
    }
}

fn create_model(domain: &mut Domain, if_not_exists: bool, model: Model) -> Result<Done, Failure> {
    let kind = model.kind();
    let name = model.name().clone();
    if if_not_exists && domain.catalog.get(kind, &name.text).is_some() {
        return Ok(Done::already_existed(kind, &name));
    }
    domain.catalog.create(model)?;
    domain.sync()?;
    Ok(Done::says(format!(
        "created the {} `{}`",
        kind.word(),
        name.text
    )))
}

fn alter_relay(domain: &mut Domain, name: &Name, changes: &[RelayChange]) -> Result<Done, Failure> {
    let rows_change = domain.catalog.alter_relay(name, changes)?;
    if rows_change {
        let relays = [name.text.clone()];
        domain.end_changed(&relays, None, "the relay was altered");
    }
    domain.sync()?;
    let done = Done::says(format!("altered the relay `{}`", name.text));
    // A subscription reads rows against its schema: another capacity concerns none.
    Ok(if rows_change {
        done.ending(
            domain.end_readers(&name.text),
            SubscriptionEndReason::RelayChanged,
            "the relay was altered",
        )
    } else {
        done
    })
}

fn alter_schema(
    domain: &mut Domain,
    name: &Name,
    changes: &[SchemaChange],
) -> Result<Done, Failure> {
    domain.catalog.alter_schema(name, changes)?;
    let relays = domain.catalog.relays_of_schema(&name.text);
    domain.end_changed(&relays, Some(&name.text), "the schema was altered");
    domain.sync()?;
    let ended = relays
        .iter()
        .flat_map(|relay| domain.end_readers(relay))
        .collect();
    Ok(
        Done::says(format!("altered the schema `{}`", name.text)).ending(
            ended,
            SubscriptionEndReason::RelayChanged,
            "the schema of the relay was altered",
        ),
    )
}

fn start(
    domain: &mut Domain,
    now: Now,
    at: Option<StartAt>,
    rate: Option<f64>,
) -> Result<Done, Failure> {
    if domain.running() {
        return Err(Failure::new(format!(
            "the domain `{}` is running already, in generation {}",
            domain.name, domain.start_version
        )));
    }
    if domain.pace == Pace::Unpaced && (at.is_some() || rate.is_some()) {
        return Err(Failure::new(format!(
            "the domain `{}` is unpaced: its time is UTC, with no origin and no rate to choose",
            domain.name
        )));
    }
    domain.start(now, at.unwrap_or(StartAt::Now), rate.unwrap_or(1.0))?;
    Ok(Done::domains_changed(format!(
        "started the domain `{}`, generation {}",
        domain.name, domain.start_version
    )))
}

/// What follows DESCRIBE in the reads that any node serves.
const DESCRIBED_BY_ANY: [&str; 14] = [
    "DOMAIN",
    "RESOURCE",
    "ENDPOINT",
    "RELAY",
    "INGESTOR",
    "EMITTER",
    "REINGESTOR",
    "JUNCTION",
    "DEDUPLICATOR",
    "CORRELATOR",
    "REORDERER",
    "WINDOW",
    "INFERENCER",
    "WASM",
];

/// Whether a query is a read that any node answers. Decided by its first words, so that a read with a mistake further on
/// is answered here too.
pub fn served_by_any_node(query: &str) -> bool {
    let Ok(tokens) = tokenize(query) else {
        return false;
    };
    let words: Vec<String> = tokens
        .iter()
        .map_while(|token| {
            (token.kind == TokenKind::Word)
                .then(|| query.get(token.span.start..token.span.end))
                .flatten()
                .map(str::to_ascii_uppercase)
        })
        .collect();
    let word = |index: usize| words.get(index).map_or("", String::as_str);
    match (word(0), word(1)) {
        ("LOOKUP", _) => true,
        ("SHOW", "CLUSTER") => word(2) == "STATUS",
        ("SHOW", "TRANSACTIONS" | "CREATE" | "UDFS" | "PLACEMENTS") => true,
        ("SHOW", "RELAY") => word(3) == "MATERIALIZED" && word(4) == "STATE",
        ("DESCRIBE", kind) => DESCRIBED_BY_ANY.contains(&kind),
        _ => false,
    }
}
