//! Rows as Arrow, read back through the C data interface.

use std::ptr::{null, null_mut};

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, Int8Type, TimestampNanosecondType,
    UInt16Type, UInt32Type, UInt64Type, UInt8Type,
};
use arrow_array::{Array, StructArray};
use arrow_data::ffi::FFI_ArrowArray;
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{DataType, TimeUnit};
use nervix_engine::EventKind;
use nervix_wire::types::{
    BoolCell, CellValue, DatetimeCell, F32Cell, F64Cell, I16Cell, I32Cell, I8Cell, RowField,
    ScalarType, U16Cell, U32Cell, U64Cell,
};
use proptest::prelude::*;

use super::rows::{
    any_rows, branched, bytes, cells, exact, field, fixed, i64_cell, list, nullable, scalar,
    schema, sensitive, text, u8_cell, Owned,
};
use super::{kind, INVALID_ARGUMENT, TYPE};
use crate::arrow::nxx_event_arrow;

/// What a host gets: the structures, imported as any consumer of Arrow imports them.
fn import(event: &Owned, part: i32) -> Result<StructArray, i32> {
    let (mut schema, mut array) = (FFI_ArrowSchema::empty(), FFI_ArrowArray::empty());
    // SAFETY: the structures can be written to, and hold nothing.
    match kind(unsafe { nxx_event_arrow(event.0, part, &mut schema, &mut array) }) {
        // SAFETY: the structures were just exported.
        0 => Ok(StructArray::from(
            unsafe { arrow_array::ffi::from_ffi(array, &schema) }.unwrap(),
        )),
        kind => Err(kind),
    }
}

/// A cell of an Arrow array as the value it stands for.
fn value(array: &dyn Array, row: usize) -> CellValue {
    if array.is_null(row) {
        return CellValue::NullCell;
    }
    macro_rules! primitive {
        ($arrow:ty, $cell:ident) => {
            CellValue::$cell($cell {
                value: array.as_primitive::<$arrow>().value(row),
            })
        };
    }
    let list = |items: arrow_array::ArrayRef| {
        cells((0..items.len()).map(|item| value(items.as_ref(), item)))
    };
    match array.data_type() {
        DataType::UInt8 => u8_cell(array.as_primitive::<UInt8Type>().value(row)),
        DataType::Int8 => primitive!(Int8Type, I8Cell),
        DataType::UInt16 => primitive!(UInt16Type, U16Cell),
        DataType::Int16 => primitive!(Int16Type, I16Cell),
        DataType::UInt32 => primitive!(UInt32Type, U32Cell),
        DataType::Int32 => primitive!(Int32Type, I32Cell),
        DataType::UInt64 => primitive!(UInt64Type, U64Cell),
        DataType::Int64 => i64_cell(array.as_primitive::<Int64Type>().value(row)),
        DataType::Float32 => primitive!(Float32Type, F32Cell),
        DataType::Float64 => primitive!(Float64Type, F64Cell),
        DataType::Timestamp(TimeUnit::Nanosecond, Some(zone)) if &**zone == "+00:00" => {
            CellValue::DatetimeCell(DatetimeCell {
                unix_nanos: array.as_primitive::<TimestampNanosecondType>().value(row),
            })
        }
        DataType::Boolean => CellValue::BoolCell(BoolCell {
            value: array.as_boolean().value(row),
        }),
        DataType::Utf8 => text(array.as_string::<i32>().value(row)),
        DataType::Binary => bytes(array.as_binary::<i32>().value(row)),
        DataType::List(item) if item.name() == "item" && !item.is_nullable() => {
            list(array.as_list::<i32>().value(row))
        }
        DataType::FixedSizeList(item, _) if item.name() == "item" && !item.is_nullable() => {
            list(array.as_fixed_size_list().value(row))
        }
        other => panic!("{other}"),
    }
}

fn compare(
    batch: &StructArray,
    fields: &[RowField],
    rows: &[Vec<CellValue>],
) -> Result<(), TestCaseError> {
    batch.to_data().validate_full().unwrap();
    prop_assert_eq!(
        (batch.len(), batch.num_columns(), batch.null_count()),
        (rows.len(), fields.len(), 0)
    );
    for (column, declared) in fields.iter().enumerate() {
        let (array, field) = (batch.column(column), &batch.fields()[column]);
        prop_assert_eq!(field.name(), &declared.name);
        prop_assert_eq!(field.is_nullable(), declared.nullable || declared.sensitive);
        let redacted = field
            .metadata()
            .get("nervix.redacted")
            .map(|value| value.as_str());
        prop_assert_eq!(redacted, declared.sensitive.then_some("true"));
        for (row, cells) in rows.iter().enumerate() {
            let wanted = match &cells[column] {
                CellValue::RedactedCell => &CellValue::NullCell,
                value => value,
            };
            prop_assert_eq!(exact(&value(array.as_ref(), row)), exact(wanted));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    // rule
    #[test]
    fn arrow_holds_exactly_the_rows((schema, key, rows) in any_rows()) {
        let event = Owned::rows(schema.clone(), key.as_deref(), &rows);
        compare(&import(&event, 1).unwrap(), &schema.fields, &rows)?;
        match (&key, &schema.branch) {
            (Some(key), Some(branch)) => {
                compare(&import(&event, 2).unwrap(), &branch.fields, std::slice::from_ref(key))?;
            }
            _ => prop_assert_eq!(import(&event, 2).unwrap_err(), INVALID_ARGUMENT),
        }
    }
}

#[test]
fn types_are_the_contracts() {
    let fields = vec![
        field("at", scalar(ScalarType::Datetime)),
        nullable("name", scalar(ScalarType::String)),
        sensitive("secret", fixed(scalar(ScalarType::F32), 2)),
        field("matrix", fixed(fixed(scalar(ScalarType::I16), 3), 2)),
        field("tags", list(scalar(ScalarType::Bytes))),
    ];
    let three = || cells((0..3).map(|value| CellValue::I16Cell(I16Cell { value })));
    let row = vec![
        CellValue::DatetimeCell(DatetimeCell { unix_nanos: 5 }),
        CellValue::NullCell,
        CellValue::RedactedCell,
        cells([three(), three()]),
        cells([]),
    ];
    let event = Owned::rows(
        branched(fields, vec![field("k", scalar(ScalarType::U8))]),
        Some(&[u8_cell(1)]),
        &[row],
    );
    let batch = import(&event, 1).unwrap();
    let types: Vec<String> = batch
        .fields()
        .iter()
        .map(|field| field.data_type().to_string())
        .collect();
    assert_eq!(types[0], "Timestamp(ns, \"+00:00\")");
    assert_eq!(types[1], "Utf8");
    for (text, part) in [
        (&types[2], "Float32"),
        (&types[3], "Int16"),
        (&types[4], "Binary"),
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(import(&event, 2).unwrap().len(), 1);
}

#[test]
fn the_schema_may_be_left_out() {
    let event = Owned::rows(
        schema(vec![field("a", scalar(ScalarType::U8))]),
        None,
        &[vec![u8_cell(4)]],
    );
    let mut array = FFI_ArrowArray::empty();
    // SAFETY: the structure can be written to, and holds nothing.
    assert_eq!(
        kind(unsafe { nxx_event_arrow(event.0, 1, null_mut(), &mut array) }),
        0
    );
    assert_eq!((array.len(), array.num_children()), (1, 1));
}

#[test]
fn refusals_write_nothing() {
    let event = Owned::rows(
        schema(vec![field("a", scalar(ScalarType::U8))]),
        None,
        &[vec![u8_cell(4)]],
    );
    let (mut schema, mut array) = (FFI_ArrowSchema::empty(), FFI_ArrowArray::empty());
    let lost = Owned::of(EventKind::DeliveryLost { rows: 1 });
    // SAFETY: the structures can be written to, and hold nothing.
    unsafe {
        assert_eq!(
            kind(nxx_event_arrow(event.0, 3, &mut schema, &mut array)),
            INVALID_ARGUMENT
        );
        assert_eq!(
            kind(nxx_event_arrow(event.0, 1, &mut schema, null_mut())),
            INVALID_ARGUMENT
        );
        assert_eq!(
            kind(nxx_event_arrow(null(), 1, &mut schema, &mut array)),
            INVALID_ARGUMENT
        );
        assert_eq!(
            kind(nxx_event_arrow(lost.0, 1, &mut schema, &mut array)),
            TYPE
        );
    }
    assert!(array.is_released());
}

#[test]
fn null_lists_do_not_grow_past_memory() {
    for declared in [
        nullable("a", fixed(scalar(ScalarType::F64), u32::MAX)),
        nullable("a", fixed(fixed(scalar(ScalarType::F64), 1 << 20), 1 << 20)),
    ] {
        let event = Owned::rows(schema(vec![declared]), None, &[vec![CellValue::NullCell]]);
        assert_eq!(import(&event, 1).unwrap_err(), TYPE);
    }
    let hidden = sensitive("a", fixed(scalar(ScalarType::F64), 1 << 30));
    let event = Owned::rows(schema(vec![hidden]), None, &[vec![CellValue::RedactedCell]]);
    assert_eq!(import(&event, 1).unwrap_err(), TYPE);
}
