//! Typed reading of batches: each column is looked at once, and its cells are then read without another look at its type.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, Int8Type, TimestampNanosecondType,
    UInt16Type, UInt32Type, UInt64Type, UInt8Type,
};
use arrow_array::{
    Array, BinaryArray, BooleanArray, FixedSizeListArray, ListArray, PrimitiveArray, StringArray,
};
use nervix_wire::types::{
    BoolCell, BytesCell, Cell, CellValue, DatetimeCell, F32Cell, F64Cell, I16Cell, I32Cell,
    I64Cell, I8Cell, ListCell, StringCell, U16Cell, U32Cell, U64Cell, U8Cell,
};

use super::expr::Value;
use crate::lang::ast::{FieldType, Scalar};

/// A column of a batch, borrowed.
#[derive(Debug)]
pub enum Column<'a> {
    U8(&'a PrimitiveArray<UInt8Type>),
    I8(&'a PrimitiveArray<Int8Type>),
    U16(&'a PrimitiveArray<UInt16Type>),
    I16(&'a PrimitiveArray<Int16Type>),
    U32(&'a PrimitiveArray<UInt32Type>),
    I32(&'a PrimitiveArray<Int32Type>),
    U64(&'a PrimitiveArray<UInt64Type>),
    I64(&'a PrimitiveArray<Int64Type>),
    F32(&'a PrimitiveArray<Float32Type>),
    F64(&'a PrimitiveArray<Float64Type>),
    Bool(&'a BooleanArray),
    String(&'a StringArray),
    Bytes(&'a BinaryArray),
    Datetime(&'a PrimitiveArray<TimestampNanosecondType>),
    List(&'a ListArray, Box<Column<'a>>),
    FixedList(&'a FixedSizeListArray, Box<Column<'a>>),
}

/// At most what a cell takes up in a frame beside its text or elements: the cell's table and the value's with their
/// vtables, an offset each, a length and padding.
pub const CELL_BYTES: usize = 64;

impl<'a> Column<'a> {
    /// None when the array is not of the declared type.
    pub fn new(array: &'a dyn Array, field_type: &FieldType) -> Option<Self> {
        Some(match field_type {
            FieldType::List(element) => {
                let list = array.as_list_opt::<i32>()?;
                Column::List(list, Box::new(Column::new(list.values(), element)?))
            }
            FieldType::FixedList { element, .. } => {
                let list = array.as_fixed_size_list_opt()?;
                Column::FixedList(list, Box::new(Column::new(list.values(), element)?))
            }
            FieldType::Scalar(scalar) => match scalar {
                Scalar::U8 => Column::U8(array.as_primitive_opt()?),
                Scalar::I8 => Column::I8(array.as_primitive_opt()?),
                Scalar::U16 => Column::U16(array.as_primitive_opt()?),
                Scalar::I16 => Column::I16(array.as_primitive_opt()?),
                Scalar::U32 => Column::U32(array.as_primitive_opt()?),
                Scalar::I32 => Column::I32(array.as_primitive_opt()?),
                Scalar::U64 => Column::U64(array.as_primitive_opt()?),
                Scalar::I64 => Column::I64(array.as_primitive_opt()?),
                Scalar::F32 => Column::F32(array.as_primitive_opt()?),
                Scalar::F64 => Column::F64(array.as_primitive_opt()?),
                Scalar::Bool => Column::Bool(array.as_boolean_opt()?),
                Scalar::String => Column::String(array.as_string_opt::<i32>()?),
                Scalar::Bytes => Column::Bytes(array.as_binary_opt::<i32>()?),
                Scalar::Datetime => Column::Datetime(array.as_primitive_opt()?),
            },
        })
    }

    fn array(&self) -> &dyn Array {
        match self {
            Column::U8(array) => *array,
            Column::I8(array) => *array,
            Column::U16(array) => *array,
            Column::I16(array) => *array,
            Column::U32(array) => *array,
            Column::I32(array) => *array,
            Column::U64(array) => *array,
            Column::I64(array) => *array,
            Column::F32(array) => *array,
            Column::F64(array) => *array,
            Column::Bool(array) => *array,
            Column::String(array) => *array,
            Column::Bytes(array) => *array,
            Column::Datetime(array) => *array,
            Column::List(array, _) => *array,
            Column::FixedList(array, _) => *array,
        }
    }

    pub fn is_null(&self, row: usize) -> bool {
        self.array().is_null(row)
    }

    /// The rows of the child that a list's row stands for.
    fn elements(&self, row: usize) -> std::ops::Range<usize> {
        match self {
            Column::List(list, _) => {
                let offsets = list.value_offsets();
                let at = |index: usize| {
                    offsets
                        .get(index)
                        .and_then(|offset| usize::try_from(*offset).ok())
                        .unwrap_or(0)
                };
                at(row)..at(row + 1)
            }
            Column::FixedList(list, _) => list.value_offset_at(row)..list.value_offset_at(row + 1),
            _ => 0..0,
        }
    }

    /// The cell of a row; `row` is below the column's length.
    pub fn cell(&self, row: usize) -> CellValue {
        if self.is_null(row) {
            return CellValue::NullCell;
        }
        match self {
            Column::U8(array) => CellValue::U8Cell(U8Cell {
                value: array.value(row),
            }),
            Column::I8(array) => CellValue::I8Cell(I8Cell {
                value: array.value(row),
            }),
            Column::U16(array) => CellValue::U16Cell(U16Cell {
                value: array.value(row),
            }),
            Column::I16(array) => CellValue::I16Cell(I16Cell {
                value: array.value(row),
            }),
            Column::U32(array) => CellValue::U32Cell(U32Cell {
                value: array.value(row),
            }),
            Column::I32(array) => CellValue::I32Cell(I32Cell {
                value: array.value(row),
            }),
            Column::U64(array) => CellValue::U64Cell(U64Cell {
                value: array.value(row),
            }),
            Column::I64(array) => CellValue::I64Cell(I64Cell {
                value: array.value(row),
            }),
            Column::F32(array) => CellValue::F32Cell(F32Cell {
                value: array.value(row),
            }),
            Column::F64(array) => CellValue::F64Cell(F64Cell {
                value: array.value(row),
            }),
            Column::Bool(array) => CellValue::BoolCell(BoolCell {
                value: array.value(row),
            }),
            Column::String(array) => CellValue::StringCell(StringCell {
                value: array.value(row).to_string(),
            }),
            Column::Bytes(array) => CellValue::BytesCell(BytesCell {
                value: bytes::Bytes::copy_from_slice(array.value(row)),
            }),
            Column::Datetime(array) => CellValue::DatetimeCell(DatetimeCell {
                unix_nanos: array.value(row),
            }),
            Column::List(_, child) | Column::FixedList(_, child) => CellValue::ListCell(ListCell {
                elements: self
                    .elements(row)
                    .map(|element| Cell {
                        value: child.cell(element),
                    })
                    .collect(),
            }),
        }
    }

    /// At most how many bytes the cell of a row adds to a frame.
    pub fn frame_bytes(&self, row: usize) -> usize {
        if self.is_null(row) {
            return CELL_BYTES;
        }
        match self {
            Column::String(array) => CELL_BYTES + array.value(row).len(),
            Column::Bytes(array) => CELL_BYTES + array.value(row).len(),
            Column::List(_, child) | Column::FixedList(_, child) => self
                .elements(row)
                .map(|element| child.frame_bytes(element))
                .fold(CELL_BYTES, usize::saturating_add),
            _ => CELL_BYTES,
        }
    }

    /// The cell of a row for an expression.
    pub fn value(&self, row: usize) -> Value<'a> {
        if self.is_null(row) {
            return Value::Null;
        }
        match self {
            Column::U8(array) => Value::Integer(i128::from(array.value(row))),
            Column::I8(array) => Value::Integer(i128::from(array.value(row))),
            Column::U16(array) => Value::Integer(i128::from(array.value(row))),
            Column::I16(array) => Value::Integer(i128::from(array.value(row))),
            Column::U32(array) => Value::Integer(i128::from(array.value(row))),
            Column::I32(array) => Value::Integer(i128::from(array.value(row))),
            Column::U64(array) => Value::Integer(i128::from(array.value(row))),
            Column::I64(array) => Value::Integer(i128::from(array.value(row))),
            Column::F32(array) => Value::F32(array.value(row)),
            Column::F64(array) => Value::F64(array.value(row)),
            Column::Bool(array) => Value::Bool(array.value(row)),
            Column::String(array) => Value::Text(array.value(row).into()),
            Column::Bytes(array) => Value::Bytes(array.value(row)),
            Column::Datetime(array) => Value::Datetime(array.value(row)),
            Column::List(..) | Column::FixedList(..) => Value::List,
        }
    }

    /// Appends bytes that are equal for two rows exactly when their cells are, floats by their bits. For scalars.
    pub fn append_identity(&self, row: usize, into: &mut Vec<u8>) {
        if self.is_null(row) {
            into.push(0);
            return;
        }
        into.push(1);
        let mut sized = |bytes: &[u8]| {
            into.extend_from_slice(&bytes.len().to_le_bytes());
            into.extend_from_slice(bytes);
        };
        match self {
            Column::U8(array) => into.extend_from_slice(&array.value(row).to_le_bytes()),
            Column::I8(array) => into.extend_from_slice(&array.value(row).to_le_bytes()),
            Column::U16(array) => into.extend_from_slice(&array.value(row).to_le_bytes()),
            Column::I16(array) => into.extend_from_slice(&array.value(row).to_le_bytes()),
            Column::U32(array) => into.extend_from_slice(&array.value(row).to_le_bytes()),
            Column::I32(array) => into.extend_from_slice(&array.value(row).to_le_bytes()),
            Column::U64(array) => into.extend_from_slice(&array.value(row).to_le_bytes()),
            Column::I64(array) => into.extend_from_slice(&array.value(row).to_le_bytes()),
            Column::F32(array) => into.extend_from_slice(&array.value(row).to_bits().to_le_bytes()),
            Column::F64(array) => into.extend_from_slice(&array.value(row).to_bits().to_le_bytes()),
            Column::Bool(array) => into.push(u8::from(array.value(row))),
            Column::String(array) => sized(array.value(row).as_bytes()),
            Column::Bytes(array) => sized(array.value(row)),
            Column::Datetime(array) => into.extend_from_slice(&array.value(row).to_le_bytes()),
            Column::List(..) | Column::FixedList(..) => (),
        }
    }
}
