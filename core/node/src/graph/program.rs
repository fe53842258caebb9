//! Compiled constructions: how the columns of new rows come from those of others, with the rows for which they have no
//! value told apart. A column that is only passed on is shared, not copied.
//!
//! Must not know where rows come from or go to, and what becomes of those that fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;

use super::arrays::{self, ScalarBuilder};
use super::columns::Column;
use super::expr::{check_as, Checked, Row, Scope, Shape, Slot, Type, Value};
use super::failure::Failure;
use super::fields::arrow_schema;
use crate::lang::ast::{Assignment, Field, FieldType, Inherit};

/// Why there is no row made of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFailure {
    pub code: &'static str,
    pub message: String,
}

/// Rows that failed, each for the first reason found.
pub type Failures = BTreeMap<usize, RowFailure>;

/// The code of a row that an expression has no value for.
pub const EVALUATION: &str = "evaluation";

#[derive(Debug, Clone)]
enum Source {
    Input(usize),
    Value(Checked),
}

/// A construction.
#[derive(Debug, Clone)]
pub struct Program {
    fields: Arc<[Field]>,
    schema: SchemaRef,
    /// In order; a later one of the same column wins.
    steps: Vec<(usize, Source)>,
}

/// The rows a construction reads.
#[derive(Clone, Copy)]
pub struct Reads<'a> {
    pub input: &'a RecordBatch,
    pub input_columns: &'a [Column<'a>],
    /// Finished rows that `message.` reads; None while it reads the ones under construction.
    pub message: Option<&'a [Column<'a>]>,
    /// What `error.` reads, row by row.
    pub errors: &'a [RowFailure],
    /// The domain's time.
    pub now: Option<i64>,
}

/// One row of them.
pub struct ReadRow<'a> {
    pub input: &'a [Column<'a>],
    pub message: &'a [Column<'a>],
    pub error: Option<&'a RowFailure>,
    pub row: usize,
}

impl Row for ReadRow<'_> {
    fn value(&self, slot: Slot) -> Value<'_> {
        match slot {
            Slot::Input(column) => self
                .input
                .get(column)
                .map_or(Value::Null, |column| column.value(self.row)),
            Slot::Message(column) => self
                .message
                .get(column)
                .map_or(Value::Null, |column| column.value(self.row)),
            Slot::ErrorCode => self
                .error
                .map_or(Value::Null, |error| Value::Text(error.code.into())),
            Slot::ErrorMessage => self
                .error
                .map_or(Value::Null, |error| Value::Text((&error.message).into())),
        }
    }
}

/// Typed columns of a batch; None when it is not of these types.
pub fn columns<'a>(fields: &[Field], arrays: &'a [ArrayRef]) -> Option<Vec<Column<'a>>> {
    fields
        .iter()
        .zip(arrays)
        .map(|(field, array)| Column::new(array.as_ref(), &field.field_type))
        .collect()
}

impl Program {
    /// Compiles what the catalog checked already.
    pub fn new(
        inherit: Option<&Inherit>,
        set: &[Assignment],
        scope: &Scope<'_>,
        target: &[Field],
    ) -> Result<Self, Failure> {
        let input = scope.input.unwrap_or_default();
        let place =
            |fields: &[Field], name: &str| fields.iter().position(|field| field.name.text == name);
        let inherited = |name: &str| match inherit {
            None => false,
            Some(Inherit::All { except }) => except.iter().all(|left_out| left_out.text != name),
            Some(Inherit::Fields(names)) => names.iter().any(|taken| taken.text == name),
        };
        let mut steps = Vec::new();
        for (index, field) in input.iter().enumerate() {
            if inherited(&field.name.text) {
                if let Some(column) = place(target, &field.name.text) {
                    steps.push((column, Source::Input(index)));
                }
            }
        }
        for assignment in set {
            let Some((column, field)) = place(target, &assignment.target.text)
                .and_then(|column| Some((column, target.get(column)?)))
            else {
                return Err(Failure::name(
                    format!("there is no field `{}`", assignment.target.text),
                    &assignment.target,
                ));
            };
            let value = check_as(&assignment.value, scope, &Type::of(&field.field_type))?;
            steps.push((column, Source::Value(value)));
        }
        Ok(Self {
            fields: target.into(),
            schema: arrow_schema(target),
            steps,
        })
    }

    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub fn fields(&self) -> &Arc<[Field]> {
        &self.fields
    }

    /// Makes a row of each; those in `failures`, before and after, hold anything.
    pub fn run(&self, reads: &Reads<'_>, failures: &mut Failures) -> Result<Vec<ArrayRef>, String> {
        let rows = reads.input.num_rows();
        let mut made = self
            .fields
            .iter()
            .enumerate()
            .map(|(column, field)| {
                let first = self.steps.iter().find(|(target, _)| *target == column);
                if let Some((_, Source::Input(input))) = first {
                    return Ok(Arc::clone(reads.input.column(*input)));
                }
                arrays::nulls(&field.field_type, rows).map_err(|error| error.to_string())
            })
            .collect::<Result<Vec<ArrayRef>, String>>()?;
        for (column, source) in &self.steps {
            let array = match source {
                Source::Input(input) => Arc::clone(reads.input.column(*input)),
                Source::Value(value) => {
                    let Some(field) = self.fields.get(*column) else {
                        continue;
                    };
                    self.evaluate(field, value, reads, &made, failures)?
                }
            };
            if let Some(place) = made.get_mut(*column) {
                *place = array;
            }
        }
        Ok(made)
    }

    fn evaluate(
        &self,
        field: &Field,
        value: &Checked,
        reads: &Reads<'_>,
        made: &[ArrayRef],
        failures: &mut Failures,
    ) -> Result<ArrayRef, String> {
        let rows = reads.input.num_rows();
        match value.shape() {
            Shape::Column(Slot::Input(column)) => {
                return Ok(Arc::clone(reads.input.column(column)))
            }
            Shape::Column(Slot::Message(column)) if reads.message.is_none() => {
                if let Some(array) = made.get(column) {
                    return Ok(Arc::clone(array));
                }
            }
            _ => (),
        }
        let FieldType::Scalar(scalar) = field.field_type else {
            // A list is read from somewhere, or it is NULL.
            return arrays::nulls(&field.field_type, rows).map_err(|error| error.to_string());
        };
        let own;
        let message = match reads.message {
            Some(message) => message,
            None => {
                own = columns(&self.fields, made).ok_or("a column has another type")?;
                own.as_slice()
            }
        };
        let mut builder = ScalarBuilder::new(scalar, rows);
        for row in 0..rows {
            if failures.contains_key(&row) {
                builder.append_default();
                continue;
            }
            let read = ReadRow {
                input: reads.input_columns,
                message,
                error: reads.errors.get(row),
                row,
            };
            let failure = match value.evaluate(&read, reads.now) {
                Ok(Value::Null) if !field.optional => "it is NULL, and required".to_string(),
                Ok(value) if builder.append(&value) => continue,
                Ok(_) => "it does not fit".to_string(),
                Err(error) => error.to_string(),
            };
            builder.append_default();
            failures.insert(
                row,
                RowFailure {
                    code: EVALUATION,
                    message: format!("the field `{}`: {failure}", field.name.text),
                },
            );
        }
        Ok(builder.finish())
    }
}

/// The rows, among those that did not fail, that a filter keeps.
pub fn kept(
    filter: Option<&Checked>,
    reads: &Reads<'_>,
    message: &[Column<'_>],
    failures: &mut Failures,
) -> Vec<usize> {
    let mut kept = Vec::with_capacity(reads.input.num_rows());
    for row in 0..reads.input.num_rows() {
        if failures.contains_key(&row) {
            continue;
        }
        let Some(filter) = filter else {
            kept.push(row);
            continue;
        };
        let read = ReadRow {
            input: reads.input_columns,
            message,
            error: None,
            row,
        };
        match filter.keeps(&read, reads.now) {
            Ok(true) => kept.push(row),
            Ok(false) => (),
            Err(error) => {
                failures.insert(
                    row,
                    RowFailure {
                        code: EVALUATION,
                        message: format!("WHERE: {error}"),
                    },
                );
            }
        }
    }
    kept
}
