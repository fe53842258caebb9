//! From a published batch to what each subscription gets of it: branches told apart, rows sampled and filtered, sensitive
//! values withheld, cut into payloads that each make one frame.
//!
//! Must not know sessions: how many frames wait for a reader, and what is dropped, is decided by those who send them.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use nervix_wire::types::{CellValue, RowBranch, RowSchema, RowsSkippedCause, SubscriptionHandle};
use nervix_wire::EncodeError;

use super::branch::{self, Group};
use super::catalog::RelayView;
use super::columns::{Column, CELL_BYTES};
use super::expr::{Checked, EvalError, Row, Slot, Value};
use super::fields::{arrow_schema, wire_fields};
use super::{program, SubscriptionId};
use crate::lang::ast::Field;

/// The most rows of one frame.
pub const MAX_FRAME_ROWS: usize = 256;

/// How full a frame gets by the estimate, which errs upwards: half of what a peer accepts.
const FRAME_BUDGET: usize = nervix_wire::FRAME_LIMIT / 2;

/// What a frame takes up beside its rows and the subscription's name.
const FRAME_BYTES: usize = 512;

/// What a row takes up beside its cells.
const ROW_BYTES: usize = 32;

/// What one publication gave rise to.
#[derive(Debug, Default)]
pub struct Published {
    /// Rows that entered the relay.
    pub rows: u64,
    /// At most one entry a subscription, in the order the subscriptions were opened.
    pub deliveries: Vec<Delivery>,
}

#[derive(Debug, Clone)]
pub struct Delivery {
    pub subscription: SubscriptionId,
    /// In relay order within each branch; each payload is one frame.
    pub frames: Vec<RowsPayload>,
    /// Rows withheld because something failed on them: at most one entry a cause, each of at least one row.
    pub skipped: Vec<(RowsSkippedCause, u64, String)>,
}

/// One frame's rows. Cheap to hold and to clone, since it shares the published batch: cells are made when it is encoded.
#[derive(Debug, Clone)]
pub struct RowsPayload {
    source: Arc<Source>,
    key: Option<Arc<[CellValue]>>,
    rows: Vec<usize>,
}

/// A batch with the declaration it was made under.
#[derive(Debug)]
pub struct Source {
    pub batch: RecordBatch,
    pub fields: Arc<[Field]>,
}

impl Source {
    /// Readers of all columns; None when the batch is not of the declared types.
    pub fn columns(&self) -> Option<Vec<Column<'_>>> {
        program::columns(&self.fields, self.batch.columns())
    }
}

impl RowsPayload {
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// The branch key's cells, for a branched relay.
    pub fn key(&self) -> Option<&[CellValue]> {
        self.key.as_deref()
    }

    /// The rows' cells, sensitive ones redacted.
    pub fn rows(&self) -> Vec<Vec<CellValue>> {
        let Some(columns) = self.source.columns() else {
            return Vec::new();
        };
        let cells: Vec<(&Field, Column<'_>)> = self.source.fields.iter().zip(columns).collect();
        self.rows
            .iter()
            .map(|row| {
                cells
                    .iter()
                    .map(|(field, column)| {
                        if field.sensitive {
                            CellValue::RedactedCell
                        } else {
                            column.cell(*row)
                        }
                    })
                    .collect()
            })
            .collect()
    }

    /// The finished SubscriptionRows frame for this handle.
    pub fn encode(&self, handle: &SubscriptionHandle) -> Result<Vec<u8>, EncodeError> {
        nervix_wire::encode_rows(handle, self.key(), &self.rows())
    }
}

/// What publishing into a relay needs of its declaration.
#[derive(Debug)]
pub struct RelayShape {
    pub fields: Arc<[Field]>,
    pub schema: SchemaRef,
    key: Option<Vec<KeyField>>,
}

/// A field of the branch key and the column it is taken from.
#[derive(Debug)]
struct KeyField {
    declared: Field,
    column: usize,
}

impl RelayShape {
    /// Published rows carry no key of their own: it is read from the fields of the key's names, which must be there.
    pub fn new(view: &RelayView<'_>) -> Result<Self, String> {
        let key = match view.branch {
            None => None,
            Some((branch, key)) => Some(
                key.iter()
                    .map(|declared| {
                        let column = view.fields.iter().position(|field| {
                            field.name == declared.name
                                && field.field_type == declared.field_type
                                // What is withheld in the row must not come out in the key.
                                && (declared.sensitive || !field.sensitive)
                        });
                        column.map_or_else(
                            || {
                                Err(format!(
                                    "rows of the relay `{}` have no field `{} {}` as sensitive as the key of the branch `{}` to take it from",
                                    view.relay.name.text,
                                    declared.name.text,
                                    declared.field_type,
                                    branch.name.text
                                ))
                            },
                            |column| {
                                Ok(KeyField {
                                    declared: declared.clone(),
                                    column,
                                })
                            },
                        )
                    })
                    .collect::<Result<Vec<_>, String>>()?,
            ),
        };
        Ok(Self {
            fields: view.fields.into(),
            schema: arrow_schema(view.fields),
            key,
        })
    }
}

/// How a subscription to this relay reads its rows.
pub fn row_schema(view: &RelayView<'_>) -> RowSchema {
    RowSchema {
        fields: wire_fields(view.fields),
        branch: view.branch.map(|(branch, key)| RowBranch {
            branch: branch.name.text.clone(),
            fields: wire_fields(key),
        }),
    }
}

/// What a subscription takes of a relay.
#[derive(Debug, Clone)]
pub struct Reader {
    pub id: SubscriptionId,
    pub name: String,
    pub filter: Option<Checked>,
    sampler: Option<Sampler>,
    /// Whether it takes rows now; one that does not holds its relay back.
    pub room: bool,
}

/// Takes an even share of batches. Which ones does not depend on chance, so that a test can tell.
#[derive(Debug, Clone)]
struct Sampler {
    rate: f64,
    seen: f64,
}

impl Reader {
    pub fn new(
        id: SubscriptionId,
        name: String,
        filter: Option<Checked>,
        sample_rate: Option<f64>,
    ) -> Self {
        Self {
            id,
            name,
            filter,
            sampler: sample_rate.map(|rate| Sampler { rate, seen: 0.0 }),
            room: true,
        }
    }

    /// Whether the next batch is among those it samples.
    fn samples(&mut self) -> bool {
        let Some(sampler) = &mut self.sampler else {
            return true;
        };
        let before = (sampler.seen * sampler.rate).floor();
        sampler.seen += 1.0;
        (sampler.seen * sampler.rate).floor() > before
    }
}

/// Tells the branches of a batch apart by the relay's own columns, in the order of their first rows.
pub fn groups(
    shape: &RelayShape,
    columns: &[Column<'_>],
    rows: usize,
) -> Result<Vec<Group>, String> {
    let Some(key) = &shape.key else {
        return Ok(vec![Group {
            key: None,
            rows: (0..rows).collect(),
        }]);
    };
    let key: Vec<(&Field, &Column<'_>)> = key
        .iter()
        .filter_map(|field| Some((&field.declared, columns.get(field.column)?)))
        .collect();
    branch::split(&key, 0..rows)
}

struct BatchRow<'a> {
    columns: &'a [Column<'a>],
    row: usize,
}

impl Row for BatchRow<'_> {
    fn value(&self, slot: Slot) -> Value<'_> {
        // A relay's row is both the input and the message of those who read it.
        match slot {
            Slot::Input(column) | Slot::Message(column) => self
                .columns
                .get(column)
                .map_or(Value::Null, |column| column.value(self.row)),
            Slot::ErrorCode | Slot::ErrorMessage => Value::Null,
        }
    }
}

/// Rows withheld, a count and the first reason for each cause.
#[derive(Default)]
struct Skipped(Vec<(RowsSkippedCause, u64, String)>);

impl Skipped {
    fn add(&mut self, cause: RowsSkippedCause, reason: impl std::fmt::Display) {
        match self.0.iter_mut().find(|(known, _, _)| *known == cause) {
            Some((_, count, _)) => *count += 1,
            None => self.0.push((cause, 1, reason.to_string())),
        }
    }
}

/// The rows of a group that a filter keeps.
fn kept(
    filter: Option<&Checked>,
    columns: &[Column<'_>],
    rows: &[usize],
    now: Option<i64>,
    skipped: &mut Skipped,
) -> Vec<usize> {
    let Some(filter) = filter else {
        return rows.to_vec();
    };
    let mut kept = Vec::new();
    for row in rows {
        match filter.keeps(&BatchRow { columns, row: *row }, now) {
            Ok(true) => kept.push(*row),
            Ok(false) => (),
            Err(error @ EvalError::NoDomainTime) => {
                skipped.add(RowsSkippedCause::DomainTimeUnavailable, error);
            }
            Err(error) => skipped.add(
                RowsSkippedCause::FilterFailed,
                format_args!("row {row}: {error}"),
            ),
        }
    }
    kept
}

/// Cuts rows of one branch into payloads that fit frames.
struct Cutter<'a> {
    source: &'a Arc<Source>,
    columns: &'a [Column<'a>],
    subscription: &'a str,
}

impl Cutter<'_> {
    fn row_bytes(&self, row: usize) -> usize {
        self.source
            .fields
            .iter()
            .zip(self.columns)
            .map(|(field, column)| {
                if field.sensitive {
                    CELL_BYTES
                } else {
                    column.frame_bytes(row)
                }
            })
            .fold(ROW_BYTES, usize::saturating_add)
    }

    fn payload(&self, group: &Group, rows: Vec<usize>) -> RowsPayload {
        RowsPayload {
            source: Arc::clone(self.source),
            key: group.key.as_ref().map(|key| Arc::clone(&key.cells)),
            rows,
        }
    }

    /// Whether a row that the estimate finds too large for a frame really is.
    fn fits_alone(&self, payload: &RowsPayload) -> Result<(), EncodeError> {
        let widest = SubscriptionHandle {
            name: self.subscription.to_string(),
            generation: u64::MAX,
        };
        payload.encode(&widest).map(|_| ())
    }

    fn cut(
        &self,
        group: &Group,
        rows: &[usize],
        frames: &mut Vec<RowsPayload>,
        skipped: &mut Skipped,
    ) {
        let budget = FRAME_BUDGET
            .saturating_sub(FRAME_BYTES)
            .saturating_sub(self.subscription.len())
            .saturating_sub(key_bytes(group.key.as_ref().map(|key| key.cells.as_ref())));
        let mut open = Vec::new();
        let mut bytes = 0_usize;
        for row in rows {
            let of_row = self.row_bytes(*row);
            if open.len() == MAX_FRAME_ROWS || bytes.saturating_add(of_row) > budget {
                if !open.is_empty() {
                    frames.push(self.payload(group, std::mem::take(&mut open)));
                }
                bytes = 0;
            }
            if of_row > budget {
                let alone = self.payload(group, vec![*row]);
                match self.fits_alone(&alone) {
                    Ok(()) => frames.push(alone),
                    Err(error) => skipped.add(
                        RowsSkippedCause::EncodingFailed,
                        format_args!("row {row}: {error}"),
                    ),
                }
                continue;
            }
            bytes = bytes.saturating_add(of_row);
            open.push(*row);
        }
        if !open.is_empty() {
            frames.push(self.payload(group, open));
        }
    }
}

fn key_bytes(key: Option<&[CellValue]>) -> usize {
    key.unwrap_or_default()
        .iter()
        .map(|cell| match cell {
            CellValue::StringCell(cell) => cell.value.len(),
            CellValue::BytesCell(cell) => cell.value.len(),
            _ => 0,
        })
        .fold(0, |sum: usize, bytes| {
            sum.saturating_add(bytes).saturating_add(CELL_BYTES)
        })
}

/// Hands a batch to the readers of its relay; `now` is the domain's time.
pub fn publish<'r>(
    source: &Arc<Source>,
    columns: &[Column<'_>],
    groups: &[Group],
    now: Option<i64>,
    readers: impl Iterator<Item = &'r mut Reader>,
) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for reader in readers {
        let mut frames = Vec::new();
        let mut skipped = Skipped::default();
        for group in groups.iter().filter(|group| !group.rows.is_empty()) {
            if !reader.samples() {
                continue;
            }
            let rows = kept(
                reader.filter.as_ref(),
                columns,
                &group.rows,
                now,
                &mut skipped,
            );
            let cutter = Cutter {
                source,
                columns,
                subscription: &reader.name,
            };
            cutter.cut(group, &rows, &mut frames, &mut skipped);
        }
        if !frames.is_empty() || !skipped.0.is_empty() {
            deliveries.push(Delivery {
                subscription: reader.id,
                frames,
                skipped: skipped.0,
            });
        }
    }
    deliveries
}
