//! Rows for tests: schemas, cells, and events made of frames that the encoder wrote.

use std::sync::Arc;

use nervix_engine::{Event, EventKind};
use nervix_wire::types::{
    BoolCell, BytesCell, Cell, CellValue, DatetimeCell, F32Cell, F64Cell, FieldType,
    FieldTypeShape, FixedListFieldType, I16Cell, I32Cell, I64Cell, I8Cell, ListCell, ListFieldType,
    RowBranch, RowField, RowSchema, ScalarFieldType, ScalarType, ServerBody, StringCell,
    SubscriptionHandle, U16Cell, U32Cell, U64Cell, U8Cell,
};
use nervix_wire::{decode_server, encode_rows, CheckedRows, Frame};
use proptest::prelude::*;

use crate::event::EventObject;

pub(crate) fn scalar(scalar: ScalarType) -> FieldType {
    FieldType {
        shape: FieldTypeShape::ScalarFieldType(ScalarFieldType { scalar }),
    }
}

pub(crate) fn list(element: FieldType) -> FieldType {
    FieldType {
        shape: FieldTypeShape::ListFieldType(Box::new(ListFieldType { element })),
    }
}

pub(crate) fn fixed(element: FieldType, length: u32) -> FieldType {
    FieldType {
        shape: FieldTypeShape::FixedListFieldType(Box::new(FixedListFieldType { element, length })),
    }
}

pub(crate) fn field(name: &str, field_type: FieldType) -> RowField {
    RowField {
        name: name.to_owned(),
        field_type,
        nullable: false,
        sensitive: false,
    }
}

pub(crate) fn nullable(name: &str, field_type: FieldType) -> RowField {
    RowField {
        nullable: true,
        ..field(name, field_type)
    }
}

pub(crate) fn sensitive(name: &str, field_type: FieldType) -> RowField {
    RowField {
        sensitive: true,
        ..field(name, field_type)
    }
}

pub(crate) fn schema(fields: Vec<RowField>) -> RowSchema {
    RowSchema {
        fields,
        branch: None,
    }
}

pub(crate) fn branched(fields: Vec<RowField>, key: Vec<RowField>) -> RowSchema {
    RowSchema {
        fields,
        branch: Some(RowBranch {
            branch: "by_carrier".to_owned(),
            fields: key,
        }),
    }
}

pub(crate) fn cells(values: impl IntoIterator<Item = CellValue>) -> CellValue {
    CellValue::ListCell(ListCell {
        elements: values.into_iter().map(|value| Cell { value }).collect(),
    })
}

pub(crate) fn text(value: &str) -> CellValue {
    CellValue::StringCell(StringCell {
        value: value.to_owned(),
    })
}

pub(crate) fn bytes(value: &[u8]) -> CellValue {
    CellValue::BytesCell(BytesCell {
        value: bytes::Bytes::copy_from_slice(value),
    })
}

pub(crate) fn u8_cell(value: u8) -> CellValue {
    CellValue::U8Cell(U8Cell { value })
}

pub(crate) fn i64_cell(value: i64) -> CellValue {
    CellValue::I64Cell(I64Cell { value })
}

/// Rows as they arrive: encoded, verified and checked.
pub(crate) fn checked(
    schema: RowSchema,
    key: Option<&[CellValue]>,
    rows: &[Vec<CellValue>],
) -> CheckedRows {
    let handle = SubscriptionHandle {
        name: "flights".to_owned(),
        generation: 3,
    };
    let frame = Frame::copy_from(&encode_rows(&handle, key, rows).unwrap());
    match decode_server(&frame).unwrap().body {
        ServerBody::SubscriptionRows(rows) => rows.check(Arc::new(schema)).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// An event that is released when the test is done with it.
pub(crate) struct Owned(pub(crate) *mut EventObject);

impl Owned {
    pub(crate) fn of(kind: EventKind) -> Self {
        Self(
            EventObject::hand_out(Event {
                name: Arc::from("flights"),
                generation: 3,
                kind,
            })
            .cast_mut(),
        )
    }

    pub(crate) fn rows(
        schema: RowSchema,
        key: Option<&[CellValue]>,
        rows: &[Vec<CellValue>],
    ) -> Self {
        Self::of(EventKind::Rows(checked(schema, key, rows)))
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the one reference that the test holds.
        unsafe { crate::event::nx_event_release(self.0) }
    }
}

pub(crate) fn any_type() -> impl Strategy<Value = FieldType> {
    let leaf = proptest::sample::select(ScalarType::ALL).prop_map(scalar);
    leaf.prop_recursive(3, 4, 1, |element| {
        prop_oneof![
            element.clone().prop_map(list),
            (element, 1..4_u32).prop_map(|(element, length)| fixed(element, length))
        ]
    })
}

/// Any value of a type, neither null nor redacted.
pub(crate) fn any_value(field_type: &FieldType) -> BoxedStrategy<CellValue> {
    match &field_type.shape {
        FieldTypeShape::FixedListFieldType(fixed) => {
            prop::collection::vec(any_value(&fixed.element), fixed.length as usize)
                .prop_map(cells)
                .boxed()
        }
        FieldTypeShape::ListFieldType(list) => {
            prop::collection::vec(any_value(&list.element), 0..4)
                .prop_map(cells)
                .boxed()
        }
        FieldTypeShape::ScalarFieldType(scalar) => match scalar.scalar {
            ScalarType::U8 => any::<u8>().prop_map(u8_cell).boxed(),
            ScalarType::I8 => any::<i8>()
                .prop_map(|value| CellValue::I8Cell(I8Cell { value }))
                .boxed(),
            ScalarType::U16 => any::<u16>()
                .prop_map(|value| CellValue::U16Cell(U16Cell { value }))
                .boxed(),
            ScalarType::I16 => any::<i16>()
                .prop_map(|value| CellValue::I16Cell(I16Cell { value }))
                .boxed(),
            ScalarType::U32 => any::<u32>()
                .prop_map(|value| CellValue::U32Cell(U32Cell { value }))
                .boxed(),
            ScalarType::I32 => any::<i32>()
                .prop_map(|value| CellValue::I32Cell(I32Cell { value }))
                .boxed(),
            ScalarType::U64 => any::<u64>()
                .prop_map(|value| CellValue::U64Cell(U64Cell { value }))
                .boxed(),
            ScalarType::I64 => any::<i64>().prop_map(i64_cell).boxed(),
            // From bits, so that every NaN and both zeros occur.
            ScalarType::F32 => any::<u32>()
                .prop_map(|bits| {
                    CellValue::F32Cell(F32Cell {
                        value: f32::from_bits(bits),
                    })
                })
                .boxed(),
            ScalarType::F64 => any::<u64>()
                .prop_map(|bits| {
                    CellValue::F64Cell(F64Cell {
                        value: f64::from_bits(bits),
                    })
                })
                .boxed(),
            ScalarType::Bool => any::<bool>()
                .prop_map(|value| CellValue::BoolCell(BoolCell { value }))
                .boxed(),
            ScalarType::String => "[\\x00a-c€🦀]{0,5}".prop_map(|value| text(&value)).boxed(),
            ScalarType::Bytes => prop::collection::vec(any::<u8>(), 0..5)
                .prop_map(|value| bytes(&value))
                .boxed(),
            ScalarType::Datetime => any::<i64>()
                .prop_map(|unix_nanos| CellValue::DatetimeCell(DatetimeCell { unix_nanos }))
                .boxed(),
        },
    }
}

/// Any cell that a field may hold.
pub(crate) fn any_cell(field: &RowField) -> BoxedStrategy<CellValue> {
    if field.sensitive {
        return Just(CellValue::RedactedCell).boxed();
    }
    let value = any_value(&field.field_type);
    match field.nullable {
        true => prop_oneof![1 => Just(CellValue::NullCell), 3 => value].boxed(),
        false => value,
    }
}

pub(crate) fn any_fields(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<RowField>> {
    let one = (
        "[a-z]{1,4}",
        any_type(),
        any::<bool>(),
        proptest::bool::weighted(0.2),
    );
    let one = one.prop_map(|(name, field_type, nullable, sensitive)| RowField {
        name,
        field_type,
        nullable,
        sensitive,
    });
    prop::collection::vec(one, count)
}

/// A schema, a key for it when it is branched, and a few rows.
pub(crate) fn any_rows(
) -> impl Strategy<Value = (RowSchema, Option<Vec<CellValue>>, Vec<Vec<CellValue>>)> {
    (any_fields(0..5), prop::option::of(any_fields(1..3))).prop_flat_map(|(fields, key)| {
        let row = fields.iter().map(any_cell).collect::<Vec<_>>();
        let keys = key
            .as_ref()
            .map(|fields| fields.iter().map(any_cell).collect::<Vec<_>>());
        let schema = match key {
            Some(key) => branched(fields, key),
            None => schema(fields),
        };
        let keys = match keys {
            Some(keys) => keys.prop_map(Some).boxed(),
            None => Just(None).boxed(),
        };
        (Just(schema), keys, prop::collection::vec(row, 1..12))
    })
}

/// A value with its exact bits, so that values compare as what they are.
pub(crate) fn exact(value: &CellValue) -> String {
    match value {
        CellValue::F32Cell(cell) => format!("f32 {:08x}", cell.value.to_bits()),
        CellValue::F64Cell(cell) => format!("f64 {:016x}", cell.value.to_bits()),
        CellValue::ListCell(list) => format!(
            "{:?}",
            list.elements
                .iter()
                .map(|cell| exact(&cell.value))
                .collect::<Vec<_>>()
        ),
        other => format!("{other:?}"),
    }
}
