#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod accounting;
mod changes;
mod clocks;
mod completion;
mod consumers;
mod filters;
mod harness;
mod producers;
mod publishing;
mod statements;
mod values;

use std::path::PathBuf;
use std::sync::Arc;

use nervix_wire::types::{RowSchema, ServerBody, SourceSpan, SubscriptionHandle};
use nervix_wire::{CellRef, CheckedRows, Frame, Part};

use super::{
    ClusterStatus, Delivery, Disposition, NodeStatus, Now, OpenedSubscription, Published,
    StatementResult, SubscriptionId, World,
};
use crate::lang::ast::Statement;
use crate::lang::parse::parse_script;

/// 2026-01-01T00:00:00Z.
const NOW: Now = Now(1_767_225_600_000_000_000);

fn cluster() -> ClusterStatus {
    ClusterStatus {
        nodes: vec![NodeStatus {
            name: "node-1".to_string(),
            grpc_uri: "http://127.0.0.1:1".to_string(),
            running: true,
            leader: true,
        }],
    }
}

fn run(world: &mut World, query: &str) -> StatementResult {
    world.execute(NOW, &cluster(), Some("d"), query)
}

/// Runs a command that must complete, and gives its message.
fn done(world: &mut World, query: &str) -> String {
    let result = run(world, query);
    assert!(
        matches!(result.disposition, Disposition::Completed { .. }),
        "{query}: {}",
        result.message
    );
    assert_eq!(result.diagnostics, []);
    result.message
}

/// Runs a command that must fail; gives its message and what the first diagnostic's span covers.
fn fails(world: &mut World, query: &str) -> (String, Option<String>) {
    let result = run(world, query);
    assert_eq!(result.disposition, Disposition::Failed, "{query}");
    let covered = result.diagnostics.first().map(|diagnostic| {
        let SourceSpan { start, end } = diagnostic.span.unwrap();
        query[start as usize..end as usize].to_string()
    });
    (result.message, covered)
}

/// A world with the unpaced domain `d` and these statements run in it.
fn world(statements: &[&str]) -> World {
    let mut world = World::new();
    done(&mut world, "CREATE UNPACED DOMAIN d");
    for statement in statements {
        done(&mut world, statement);
    }
    world
}

fn file(folder: &str, name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join(folder)
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a text as a client that loads it does: statement by statement, USE by itself.
fn load(world: &mut World, text: &str) -> Option<String> {
    let mut domain: Option<String> = None;
    for located in parse_script(text).unwrap() {
        match located.statement {
            Statement::Use { domain: name } => domain = Some(name.text),
            _ => {
                let query = &text[located.span.start..located.span.end];
                let result = world.execute(NOW, &cluster(), domain.as_deref(), query);
                assert_eq!(
                    result.disposition,
                    Disposition::Completed {
                        already_existed: false
                    },
                    "{query}: {}",
                    result.message
                );
            }
        }
    }
    domain
}

fn subscribe(world: &mut World, statement: &str) -> OpenedSubscription {
    world
        .subscribe("d", statement)
        .unwrap_or_else(|failure| panic!("{statement}: {}", failure.message))
}

fn publish(world: &mut World, relay: &str, rows: &str) -> Published {
    let rows = serde_json::from_str(rows).unwrap();
    world
        .publish_json(NOW, "d", relay, &rows)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn delivery_to(published: &Published, id: SubscriptionId) -> &Delivery {
    published
        .deliveries
        .iter()
        .find(|delivery| delivery.subscription == id)
        .expect("something for the subscription")
}

/// What a client reads: each payload goes through a frame, its verifier and the checks against the opened schema.
fn received(delivery: &Delivery, schema: &RowSchema) -> Vec<CheckedRows> {
    let handle = SubscriptionHandle {
        name: "probe".to_string(),
        generation: 1,
    };
    let schema = Arc::new(schema.clone());
    delivery
        .frames
        .iter()
        .map(|payload| {
            let bytes = payload.encode(&handle).unwrap();
            assert!(bytes.len() <= nervix_wire::FRAME_LIMIT);
            let message = nervix_wire::decode_server(&Frame::copy_from(&bytes)).unwrap();
            let ServerBody::SubscriptionRows(rows) = message.body else {
                panic!("another body");
            };
            let rows = rows.check(Arc::clone(&schema)).unwrap();
            assert_eq!(rows.row_count(), payload.row_count());
            assert!((1..=256).contains(&rows.row_count()));
            rows
        })
        .collect()
}

/// A cell as the conformance probe prints it.
fn shown(cell: CellRef<'_>) -> String {
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    match cell {
        CellRef::Null => "null".to_string(),
        CellRef::Redacted => "redacted".to_string(),
        CellRef::U8(value) => format!("u8:{value}"),
        CellRef::I8(value) => format!("i8:{value}"),
        CellRef::U16(value) => format!("u16:{value}"),
        CellRef::I16(value) => format!("i16:{value}"),
        CellRef::U32(value) => format!("u32:{value}"),
        CellRef::I32(value) => format!("i32:{value}"),
        CellRef::U64(value) => format!("u64:{value}"),
        CellRef::I64(value) => format!("i64:{value}"),
        CellRef::F32(value) => format!("f32:{:08x}", value.to_bits()),
        CellRef::F64(value) => format!("f64:{:016x}", value.to_bits()),
        CellRef::Bool(value) => format!("bool:{value}"),
        CellRef::String(value) => format!("str:{}", hex(value.as_bytes())),
        CellRef::Bytes(value) => format!("bytes:{}", hex(value)),
        CellRef::Datetime(value) => format!("datetime:{value}"),
        CellRef::List(list) => {
            let elements: Vec<String> = list.iter().map(shown).collect();
            format!("[{}]", elements.join(","))
        }
    }
}

fn shown_cells(rows: &CheckedRows, part: Part, row: usize) -> String {
    let cells: Vec<String> = rows
        .fields(part)
        .iter()
        .enumerate()
        .map(|(column, field)| {
            format!(
                "{}={}",
                field.name,
                shown(rows.cell(part, row, column).unwrap())
            )
        })
        .collect();
    cells.join(" ")
}

/// The rows of a delivery as `ROW [key] cells` lines.
fn row_lines(delivery: &Delivery, schema: &RowSchema) -> Vec<String> {
    received(delivery, schema)
        .iter()
        .flat_map(|rows| {
            let key = if rows.has_key() {
                shown_cells(rows, Part::BranchKey, 0)
            } else {
                String::new()
            };
            (0..rows.row_count())
                .map(|row| format!("ROW [{key}] {}", shown_cells(rows, Part::Rows, row)))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The values of the first field of every row received, as the probe prints them without their type.
fn first_column(delivery: &Delivery, schema: &RowSchema) -> Vec<String> {
    received(delivery, schema)
        .iter()
        .flat_map(|rows| {
            rows.column(Part::Rows, 0)
                .unwrap()
                .map(|cell| shown(cell).split_once(':').unwrap().1.to_string())
                .collect::<Vec<_>>()
        })
        .collect()
}
