//! Batches against streams: what is written is read, by us and by Arrow's own reader, and nothing else is.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod building;
mod foreign;
mod hostile;
mod random;
mod round_trip;

use std::sync::Arc;

use nervix_batch::{levels, Batch, Refusal};
use nervix_wire::types::{
    FieldType, FieldTypeShape, FixedListFieldType, ListFieldType, RowField, RowSchema,
    ScalarFieldType, ScalarType,
};

pub fn scalar(scalar: ScalarType) -> FieldType {
    FieldType {
        shape: FieldTypeShape::ScalarFieldType(ScalarFieldType { scalar }),
    }
}

pub fn list(element: FieldType) -> FieldType {
    FieldType {
        shape: FieldTypeShape::ListFieldType(Box::new(ListFieldType { element })),
    }
}

pub fn fixed(element: FieldType, length: u32) -> FieldType {
    FieldType {
        shape: FieldTypeShape::FixedListFieldType(Box::new(FixedListFieldType { element, length })),
    }
}

pub fn field(name: &str, field_type: FieldType) -> RowField {
    RowField {
        name: name.to_owned(),
        field_type,
        nullable: false,
        sensitive: false,
    }
}

pub fn nullable(field: RowField) -> RowField {
    RowField {
        nullable: true,
        ..field
    }
}

pub fn schema(fields: Vec<RowField>) -> Arc<RowSchema> {
    Arc::new(RowSchema {
        fields,
        branch: None,
    })
}

pub fn is_argument<T>(result: Result<T, Refusal>) -> String {
    match result {
        Err(Refusal::Argument(message)) => message,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was accepted"),
    }
}

pub fn is_type<T>(result: Result<T, Refusal>) {
    assert!(matches!(result, Err(Refusal::Type(_))));
}

pub fn is_stream<T>(result: Result<T, Refusal>) -> String {
    match result {
        Err(Refusal::Stream(message)) => message,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was accepted"),
    }
}

/// Everything that a host can read of a column, without what lies under null rows.
#[derive(Debug, PartialEq)]
pub struct Column {
    states: Vec<bool>,
    /// One text a row.
    rows: Vec<Option<String>>,
}

fn joined(list: &[String]) -> String {
    format!("[{}]", list.join(";"))
}

/// The values of each cell of a level, as text that keeps every bit.
fn cells(batch: &Batch, column: usize, level: usize) -> Vec<String> {
    let field_type = &batch.schema().fields[column].field_type;
    let here = levels(field_type).nth(level).unwrap();
    let count = batch.cells(column, level).unwrap();
    match &here.shape {
        FieldTypeShape::ListFieldType(_) => {
            let offsets = batch.offsets(column, level).unwrap();
            assert_eq!((offsets.len(), offsets[0]), (count + 1, 0));
            let elements = cells(batch, column, level + 1);
            assert_eq!(*offsets.last().unwrap(), elements.len() as u64);
            let range = |pair: &[u64]| joined(&elements[pair[0] as usize..pair[1] as usize]);
            offsets.windows(2).map(range).collect()
        }
        FieldTypeShape::FixedListFieldType(list) => {
            is_type(batch.offsets(column, level));
            let elements = cells(batch, column, level + 1);
            assert_eq!(elements.len(), count * list.length as usize);
            elements.chunks(list.length as usize).map(joined).collect()
        }
        FieldTypeShape::ScalarFieldType(scalar) => match scalar.scalar {
            ScalarType::String | ScalarType::Bytes => {
                let values = batch.varlen(column, level).unwrap();
                let offsets: Vec<u64> = values.offsets().collect();
                assert_eq!((offsets.len(), offsets[0]), (count + 1, 0));
                let value = |pair: &[u64]| {
                    let bytes = &values.data()[pair[0] as usize..pair[1] as usize];
                    format!("{bytes:?}")
                };
                offsets.windows(2).map(value).collect()
            }
            _ => {
                let mut bytes = vec![0; batch.fixed_len(column, level).unwrap()];
                batch.write_fixed(column, level, &mut bytes).unwrap();
                let width = bytes.len().checked_div(count).unwrap_or(1);
                bytes
                    .chunks(width)
                    .map(|value| format!("{value:?}"))
                    .collect()
            }
        },
    }
}

pub fn everything(batch: &Batch) -> Vec<Column> {
    let column = |index| {
        let states: Vec<bool> = batch.states(index).unwrap().collect();
        let cells = cells(batch, index, 0);
        assert_eq!((states.len(), cells.len()), (batch.rows(), batch.rows()));
        let rows = states
            .iter()
            .zip(cells)
            .map(|(there, cell)| there.then_some(cell))
            .collect();
        Column { states, rows }
    };
    (0..batch.schema().fields.len()).map(column).collect()
}
