//! The texts that SHOW and DESCRIBE answer with: one `key: value` a line.

use std::fmt::{Display, Write};

use super::domain::Domain;
use super::emit::EmitterState;
use super::ledger::SourceCounts;
use super::{ClusterStatus, Now};
use crate::lang::ast::{Field, Kind, Model, Pace};
use crate::lang::instant;
use crate::lang::units::print_duration;

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, key: &str, value: impl Display) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{key}: {value}");
    }

    fn fields(&mut self, fields: &[Field]) {
        for field in fields {
            self.add("field", field);
        }
    }
}

fn status(domain: &Domain) -> &'static str {
    if domain.running() {
        "running"
    } else {
        "stopped"
    }
}

pub fn domain(domain: &Domain, now: Now) -> String {
    let mut lines = Lines::default();
    lines.add("domain", &domain.name);
    lines.add("status", status(domain));
    lines.add("start version", domain.start_version);
    match domain.pace {
        Pace::Unpaced => lines.add("pace", "unpaced"),
        Pace::Paced {
            period_nanos,
            skew_nanos,
        } => {
            lines.add("pace", "paced");
            lines.add("period", print_duration(period_nanos));
            lines.add("skew", print_duration(skew_nanos));
        }
    }
    if let Some(clock) = &domain.clock {
        lines.add("time rate", format_args!("{:?}", clock.rate));
        lines.add("logical origin", instant::print(clock.logical_origin));
        lines.add("utc anchor", instant::print(clock.utc_anchor));
    }
    if let Some(time) = domain.time(now) {
        lines.add("time", instant::print(time));
    }
    for (key, kind) in [
        ("schemas", Kind::Schema),
        ("branches", Kind::Branch),
        ("relays", Kind::Relay),
        ("ingestors", Kind::Ingestor),
        ("emitters", Kind::Emitter),
        ("resources", Kind::Resource),
    ] {
        lines.add(key, domain.catalog.names(kind).count());
    }
    lines.0
}

pub fn model(domain: &Domain, model: &Model, cluster: &ClusterStatus) -> String {
    let mut lines = Lines::default();
    lines.add(model.kind().word(), &model.name().text);
    match model {
        Model::Schema(schema) => lines.fields(&schema.fields),
        Model::Branch(branch) => {
            lines.add("schema", &branch.schema);
            lines.add("ttl", print_duration(branch.ttl_nanos));
            if let Some(schema) = domain.catalog.schema(&branch.schema.text) {
                lines.fields(&schema.fields);
            }
        }
        Model::Relay(relay) => {
            lines.add("schema", &relay.schema);
            match &relay.branch {
                Some(branch) => lines.add("branched by", branch),
                None => lines.add("branched by", "nothing"),
            }
            if let Some(capacity) = relay.capacity {
                lines.add("capacity", capacity);
            }
            let readers = domain.readers.get(&relay.name.text).map_or(0, Vec::len);
            lines.add("subscriptions", readers);
            if let Some(schema) = domain.catalog.schema(&relay.schema.text) {
                lines.fields(&schema.fields);
            }
        }
        Model::Ingestor(ingestor) => {
            lines.add("source", "CLIENT");
            lines.add("schema", &ingestor.schema);
            lines.add("owner", owner(cluster));
            lines.add("status", status(domain));
            let flow = domain.flow.as_ref();
            let open = flow
                .and_then(|flow| flow.ingestor(&ingestor.name.text))
                .is_some_and(|ingestor| !ingestor.suspended);
            lines.add("admission", if open { "open" } else { "suspended" });
            let name = &ingestor.name.text;
            let producers = flow.map_or(0, |flow| flow.ledger.producers_of(name).len());
            let counts = flow.map_or_else(SourceCounts::default, |flow| flow.ledger.counts(name));
            lines.add("producers", producers);
            lines.add("outstanding batches", counts.outstanding_batches);
            lines.add("outstanding bytes", counts.outstanding_bytes);
            lines.add("admitted batches", counts.admitted_batches);
        }
        Model::Emitter(emitter) => {
            lines.add("sink", "CLIENT");
            lines.add("schema", &emitter.schema);
            lines.add("owner", owner(cluster));
            lines.add("status", status(domain));
            let flow = domain.flow.as_ref();
            let name = &emitter.name.text;
            let consumers = flow.map_or(0, |flow| flow.consumers_of(name));
            let retained = flow
                .and_then(|flow| flow.emitter(name))
                .map_or(0, EmitterState::retained);
            lines.add("consumers", consumers);
            lines.add("retained batches", retained);
        }
        Model::Resource(_) => lines.add("latest version", "none"),
    }
    lines.0
}

/// The leader runs the endpoints.
fn owner(cluster: &ClusterStatus) -> &str {
    cluster
        .nodes
        .iter()
        .find(|node| node.leader)
        .map_or("none", |node| node.name.as_str())
}

/// One ingestor a line.
pub fn ingestors(domain: &Domain) -> String {
    let lines: Vec<String> = domain
        .catalog
        .iter()
        .filter_map(|model| match model {
            Model::Ingestor(ingestor) => Some(format!(
                "{} source=CLIENT schema={} relay={} status={}",
                ingestor.name,
                ingestor.schema,
                ingestor.relay,
                status(domain)
            )),
            _ => None,
        })
        .collect();
    if lines.is_empty() {
        "no ingestors".to_string()
    } else {
        lines.join("\n")
    }
}

/// One node a line.
pub fn cluster(cluster: &ClusterStatus) -> String {
    let lines: Vec<String> = cluster
        .nodes
        .iter()
        .map(|node| {
            format!(
                "node {} {} {}{}",
                node.name,
                node.grpc_uri,
                if node.running { "running" } else { "stopped" },
                if node.leader { " leader" } else { "" }
            )
        })
        .collect();
    lines.join("\n")
}
