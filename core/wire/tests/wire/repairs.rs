//! Hand-written ends of the generated samples: what makes fields that constrain each other agree,
//! and values of types that contain themselves.

use nervix_wire::types::*;
use nervix_wire::{decode_server, encode_rows, Frame, RowsFrame};

pub fn source_span(mut v: SourceSpan) -> SourceSpan {
    (v.start, v.end) = (v.start.min(v.end), v.start.max(v.end));
    v
}

pub fn operation_range(mut v: OperationRange) -> OperationRange {
    v.first = v.first.clamp(1, v.last.max(1));
    v.last = v.last.max(1);
    v
}

pub fn paced_domain_clock(mut v: PacedDomainClock) -> PacedDomainClock {
    if !(v.time_rate.is_finite() && v.time_rate > 0.0) {
        v.time_rate = f64::MIN_POSITIVE;
    }
    v
}

pub fn producer_opened(mut v: ProducerOpened) -> ProducerOpened {
    v.retry_max_backoff_nanos = v.retry_max_backoff_nanos.max(v.retry_backoff_nanos);
    v.max_batch_bytes = v.max_batch_bytes.min(v.granted_bytes);
    v
}

pub fn emitter_opened(mut v: EmitterOpened) -> EmitterOpened {
    v.retry_max_backoff_nanos = v.retry_max_backoff_nanos.max(v.retry_backoff_nanos);
    v.max_batch_bytes = v.max_batch_bytes.min(v.granted_bytes);
    v
}

pub fn transaction_status(mut v: TransactionStatus) -> TransactionStatus {
    v.applied_operations = v.applied_operations.min(v.accepted_operations);
    v
}

pub fn backup_cut(v: BackupCut) -> BackupCut {
    if v.kind == BackupCutKind::Quiesced {
        let engaged = v.engaged_at.unwrap_or(-1);
        return BackupCut {
            engaged_at: Some(engaged),
            released_at: Some(v.released_at.unwrap_or(engaged).max(engaged)),
            ..v
        };
    }
    BackupCut {
        kind: v.kind,
        engaged_at: None,
        released_at: None,
        buffered_records: 0,
        buffered_bytes: 0,
        dropped_records: 0,
        rejected_records: 0,
    }
}

pub fn backup_archive_summary(mut v: BackupArchiveSummary) -> BackupArchiveSummary {
    for (number, domain) in v.domains.iter_mut().enumerate() {
        domain.domain = format!("domain{number}");
    }
    v
}

pub fn restore_step_report(mut v: RestoreStepReport) -> RestoreStepReport {
    v.domain = match v.kind {
        RestoreStepKind::Users => None,
        _ => Some(v.domain.unwrap_or_default()),
    };
    v
}

pub fn restore_report(mut v: RestoreReport) -> RestoreReport {
    if v.domains
        .iter()
        .any(|domain| domain.planned_models.is_some())
    {
        v.mode = RestoreMode::DryRun;
    }
    v
}

pub fn resource_description(mut v: ResourceDescription) -> ResourceDescription {
    for (number, version) in (1..).zip(&mut v.versions) {
        version.version = number;
    }
    v
}

pub fn quiesce_subgraph(mut v: QuiesceSubgraph) -> QuiesceSubgraph {
    for (number, node) in v.nodes.iter_mut().enumerate() {
        node.coverage.node.name = format!("node{number}");
    }
    for (number, gate) in v.gate_boundaries.iter_mut().enumerate() {
        gate.boundary.relay = format!("relay{number}");
    }
    v
}

pub fn transaction_impact_report(mut v: TransactionImpactReport) -> TransactionImpactReport {
    for (number, operation) in (1..).zip(&mut v.operations) {
        operation.number = number;
    }
    v.execution_steps.truncate(v.operations.len());
    let last = v.execution_steps.len();
    if last == 0 {
        v.operations.clear();
    }
    for (number, step) in (1..).zip(&mut v.execution_steps) {
        step.operations = OperationRange {
            first: number,
            last: if number == last as u64 {
                v.operations.len() as u64
            } else {
                number
            },
        };
    }
    v
}

fn scalar(scalar: ScalarType) -> FieldType {
    FieldType {
        shape: FieldTypeShape::ScalarFieldType(ScalarFieldType { scalar }),
    }
}

pub fn list_field_type_element(n: usize) -> FieldType {
    match n % 3 {
        0 => scalar(ScalarType::U8),
        1 => FieldType {
            shape: FieldTypeShape::ListFieldType(Box::new(ListFieldType {
                element: scalar(ScalarType::String),
            })),
        },
        _ => FieldType {
            shape: FieldTypeShape::FixedListFieldType(Box::new(FixedListFieldType {
                element: scalar(ScalarType::F64),
                length: 1,
            })),
        },
    }
}

pub fn fixed_list_field_type_element(n: usize) -> FieldType {
    list_field_type_element(n)
}

fn number(value: u8) -> Cell {
    Cell {
        value: CellValue::U8Cell(U8Cell { value }),
    }
}

pub fn list_cell_elements(n: usize) -> Vec<Cell> {
    match n % 4 {
        0 => vec![],
        1 => vec![number(0), number(255)],
        2 => vec![Cell {
            value: CellValue::StringCell(StringCell {
                value: "element".into(),
            }),
        }],
        _ => vec![Cell {
            value: CellValue::ListCell(ListCell {
                elements: vec![number(1)],
            }),
        }],
    }
}

/// Rows with every kind of cell, in frames with and without a branch key.
pub fn rows(n: usize) -> RowsFrame {
    let handle = super::samples::subscription_handle(n);
    let cells: Vec<CellValue> = (0..super::samples::CELL_VALUE)
        .map(super::samples::cell_value)
        .collect();
    let key = [CellValue::U8Cell(U8Cell { value: 1 })];
    let rows = [cells.clone(), cells];
    let encoded = match n % 4 {
        0 => encode_rows(&handle, None, &rows),
        1 => encode_rows(&handle, Some(&key), &rows),
        2 => encode_rows(&handle, Some(&[]), &rows[..1]),
        _ => encode_rows(&handle, None, &[vec![], vec![]]),
    };
    let message = decode_server(&Frame::copy_from(&encoded.unwrap())).unwrap();
    match message.body {
        ServerBody::SubscriptionRows(rows) => rows,
        other => panic!("rows came back as {other:?}"),
    }
}
