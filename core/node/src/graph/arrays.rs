//! Arrays made from nothing, from values, and from other arrays, and how much data they hold.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, BooleanBuilder, PrimitiveBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, Int8Type,
    TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type, UInt8Type,
};
use arrow_array::{
    new_null_array, Array, ArrayRef, FixedSizeListArray, ListArray, RecordBatch,
    RecordBatchOptions, UInt32Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use arrow_select::concat::concat_batches;
use arrow_select::take::take;

use super::expr::Value;
use super::fields::{arrow_type, fixed_size, item_field, UTC};
use crate::lang::ast::{FieldType, Scalar};

/// A column of nulls. The elements of a null fixed list are there and mean nothing: they are defaults, never nulls.
pub fn nulls(field_type: &FieldType, rows: usize) -> Result<ArrayRef, ArrowError> {
    let nulls = || Some(NullBuffer::new_null(rows));
    Ok(match field_type {
        FieldType::Scalar(_) => new_null_array(&arrow_type(field_type), rows),
        FieldType::List(element) => Arc::new(ListArray::try_new(
            item_field(element),
            OffsetBuffer::new_zeroed(rows),
            defaults(element, 0)?,
            nulls(),
        )?),
        FieldType::FixedList { element, length } => Arc::new(FixedSizeListArray::try_new(
            item_field(element),
            fixed_size(*length),
            defaults(element, elements(*length, rows)?)?,
            nulls(),
        )?),
    })
}

fn elements(length: u32, rows: usize) -> Result<usize, ArrowError> {
    usize::try_from(length)
        .ok()
        .and_then(|length| length.checked_mul(rows))
        .ok_or_else(|| ArrowError::ComputeError("a list of too many elements".to_string()))
}

/// A column of zeros, empty texts and empty lists.
fn defaults(field_type: &FieldType, rows: usize) -> Result<ArrayRef, ArrowError> {
    Ok(match field_type {
        FieldType::Scalar(scalar) => {
            let mut builder = ScalarBuilder::new(*scalar, rows);
            for _ in 0..rows {
                builder.append_default();
            }
            builder.finish()
        }
        FieldType::List(element) => Arc::new(ListArray::try_new(
            item_field(element),
            OffsetBuffer::new_zeroed(rows),
            defaults(element, 0)?,
            None,
        )?),
        FieldType::FixedList { element, length } => Arc::new(FixedSizeListArray::try_new(
            item_field(element),
            fixed_size(*length),
            defaults(element, elements(*length, rows)?)?,
            None,
        )?),
    })
}

/// A column of scalars built from values of expressions.
pub enum ScalarBuilder {
    U8(PrimitiveBuilder<UInt8Type>),
    I8(PrimitiveBuilder<Int8Type>),
    U16(PrimitiveBuilder<UInt16Type>),
    I16(PrimitiveBuilder<Int16Type>),
    U32(PrimitiveBuilder<UInt32Type>),
    I32(PrimitiveBuilder<Int32Type>),
    U64(PrimitiveBuilder<UInt64Type>),
    I64(PrimitiveBuilder<Int64Type>),
    F32(PrimitiveBuilder<Float32Type>),
    F64(PrimitiveBuilder<Float64Type>),
    Bool(BooleanBuilder),
    String(StringBuilder),
    Bytes(BinaryBuilder),
    Datetime(PrimitiveBuilder<TimestampNanosecondType>),
}

fn append_integer<T: ArrowPrimitiveType>(
    builder: &mut PrimitiveBuilder<T>,
    value: &Value<'_>,
) -> bool
where
    T::Native: TryFrom<i128>,
{
    let value = match value {
        Value::Integer(value) => T::Native::try_from(*value).ok(),
        _ => None,
    };
    match value {
        Some(value) => builder.append_value(value),
        None => return false,
    }
    true
}

/// More text than this in one column and Arrow's 31-bit offsets, whose builders end the process past them, come near.
const MAX_TEXT_BYTES: usize = 1 << 30;

impl ScalarBuilder {
    pub fn new(scalar: Scalar, rows: usize) -> Self {
        match scalar {
            Scalar::U8 => Self::U8(PrimitiveBuilder::with_capacity(rows)),
            Scalar::I8 => Self::I8(PrimitiveBuilder::with_capacity(rows)),
            Scalar::U16 => Self::U16(PrimitiveBuilder::with_capacity(rows)),
            Scalar::I16 => Self::I16(PrimitiveBuilder::with_capacity(rows)),
            Scalar::U32 => Self::U32(PrimitiveBuilder::with_capacity(rows)),
            Scalar::I32 => Self::I32(PrimitiveBuilder::with_capacity(rows)),
            Scalar::U64 => Self::U64(PrimitiveBuilder::with_capacity(rows)),
            Scalar::I64 => Self::I64(PrimitiveBuilder::with_capacity(rows)),
            Scalar::F32 => Self::F32(PrimitiveBuilder::with_capacity(rows)),
            Scalar::F64 => Self::F64(PrimitiveBuilder::with_capacity(rows)),
            Scalar::Bool => Self::Bool(BooleanBuilder::with_capacity(rows)),
            Scalar::String => Self::String(StringBuilder::with_capacity(rows, 0)),
            Scalar::Bytes => Self::Bytes(BinaryBuilder::with_capacity(rows, 0)),
            Scalar::Datetime => Self::Datetime(PrimitiveBuilder::with_capacity(rows)),
        }
    }

    /// False, and nothing appended, when the value is of another type or there is no room for it.
    pub fn append(&mut self, value: &Value<'_>) -> bool {
        if *value == Value::Null {
            self.append_null();
            return true;
        }
        match (self, value) {
            (Self::U8(builder), value) => return append_integer(builder, value),
            (Self::I8(builder), value) => return append_integer(builder, value),
            (Self::U16(builder), value) => return append_integer(builder, value),
            (Self::I16(builder), value) => return append_integer(builder, value),
            (Self::U32(builder), value) => return append_integer(builder, value),
            (Self::I32(builder), value) => return append_integer(builder, value),
            (Self::U64(builder), value) => return append_integer(builder, value),
            (Self::I64(builder), value) => return append_integer(builder, value),
            (Self::F32(builder), Value::F32(value)) => builder.append_value(*value),
            (Self::F64(builder), Value::F64(value)) => builder.append_value(*value),
            (Self::Bool(builder), Value::Bool(value)) => builder.append_value(*value),
            (Self::Datetime(builder), Value::Datetime(value)) => builder.append_value(*value),
            (Self::String(builder), Value::Text(value))
                if builder.values_slice().len().saturating_add(value.len()) <= MAX_TEXT_BYTES =>
            {
                builder.append_value(value);
            }
            (Self::Bytes(builder), Value::Bytes(value))
                if builder.values_slice().len().saturating_add(value.len()) <= MAX_TEXT_BYTES =>
            {
                builder.append_value(value);
            }
            _ => return false,
        }
        true
    }

    fn append_null(&mut self) {
        match self {
            Self::U8(builder) => builder.append_null(),
            Self::I8(builder) => builder.append_null(),
            Self::U16(builder) => builder.append_null(),
            Self::I16(builder) => builder.append_null(),
            Self::U32(builder) => builder.append_null(),
            Self::I32(builder) => builder.append_null(),
            Self::U64(builder) => builder.append_null(),
            Self::I64(builder) => builder.append_null(),
            Self::F32(builder) => builder.append_null(),
            Self::F64(builder) => builder.append_null(),
            Self::Bool(builder) => builder.append_null(),
            Self::String(builder) => builder.append_null(),
            Self::Bytes(builder) => builder.append_null(),
            Self::Datetime(builder) => builder.append_null(),
        }
    }

    /// Something for a row that will not be looked at.
    pub fn append_default(&mut self) {
        match self {
            Self::U8(builder) => builder.append_value(0),
            Self::I8(builder) => builder.append_value(0),
            Self::U16(builder) => builder.append_value(0),
            Self::I16(builder) => builder.append_value(0),
            Self::U32(builder) => builder.append_value(0),
            Self::I32(builder) => builder.append_value(0),
            Self::U64(builder) => builder.append_value(0),
            Self::I64(builder) => builder.append_value(0),
            Self::F32(builder) => builder.append_value(0.0),
            Self::F64(builder) => builder.append_value(0.0),
            Self::Bool(builder) => builder.append_value(false),
            Self::String(builder) => builder.append_value(""),
            Self::Bytes(builder) => builder.append_value(b""),
            Self::Datetime(builder) => builder.append_value(0),
        }
    }

    pub fn finish(self) -> ArrayRef {
        match self {
            Self::U8(mut builder) => Arc::new(builder.finish()),
            Self::I8(mut builder) => Arc::new(builder.finish()),
            Self::U16(mut builder) => Arc::new(builder.finish()),
            Self::I16(mut builder) => Arc::new(builder.finish()),
            Self::U32(mut builder) => Arc::new(builder.finish()),
            Self::I32(mut builder) => Arc::new(builder.finish()),
            Self::U64(mut builder) => Arc::new(builder.finish()),
            Self::I64(mut builder) => Arc::new(builder.finish()),
            Self::F32(mut builder) => Arc::new(builder.finish()),
            Self::F64(mut builder) => Arc::new(builder.finish()),
            Self::Bool(mut builder) => Arc::new(builder.finish()),
            Self::String(mut builder) => Arc::new(builder.finish()),
            Self::Bytes(mut builder) => Arc::new(builder.finish()),
            Self::Datetime(mut builder) => Arc::new(builder.finish().with_timezone(UTC)),
        }
    }
}

/// These columns as a batch of so many rows.
pub fn batch(
    schema: &SchemaRef,
    columns: Vec<ArrayRef>,
    rows: usize,
) -> Result<RecordBatch, ArrowError> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

/// The rows at these places of a batch; the same batch when they are all of them.
pub fn select(batch: &RecordBatch, rows: &[usize]) -> Result<RecordBatch, ArrowError> {
    if rows.len() == batch.num_rows() {
        return Ok(batch.clone());
    }
    if let (Some(first), Some(last)) = (rows.first(), rows.last()) {
        // Rows are ascending and each is named once, so this is a run.
        if last - first + 1 == rows.len() {
            return Ok(batch.slice(*first, rows.len()));
        }
    }
    let indices: UInt32Array = rows
        .iter()
        .map(|row| u32::try_from(*row).ok())
        .collect::<UInt32Array>();
    let columns = batch
        .columns()
        .iter()
        .map(|column| take(column.as_ref(), &indices, None))
        .collect::<Result<Vec<_>, ArrowError>>()?;
    self::batch(&batch.schema(), columns, rows.len())
}

/// Batches of one schema as one.
pub fn join(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<RecordBatch, ArrowError> {
    match batches {
        [only] => Ok(only.clone()),
        batches => concat_batches(schema, batches),
    }
}

/// How many bytes of data the rows of a batch hold, whatever the buffers behind them do.
pub fn data_bytes(batch: &RecordBatch) -> usize {
    batch
        .columns()
        .iter()
        .map(|column| array_bytes(column.as_ref()))
        .fold(0, usize::saturating_add)
}

fn array_bytes(array: &dyn Array) -> usize {
    let rows = array.len();
    let validity = if array.nulls().is_some() {
        rows.div_ceil(8)
    } else {
        0
    };
    let span = |offsets: &[i32]| match (offsets.first(), offsets.last()) {
        (Some(first), Some(last)) => (
            usize::try_from(*first).unwrap_or(0),
            usize::try_from(last - first).unwrap_or(0),
        ),
        _ => (0, 0),
    };
    let own = match array.data_type() {
        DataType::Boolean => rows.div_ceil(8),
        DataType::Utf8 => rows * 4 + span(array.as_string::<i32>().value_offsets()).1,
        DataType::Binary => rows * 4 + span(array.as_binary::<i32>().value_offsets()).1,
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let (first, length) = span(list.value_offsets());
            rows * 4 + array_bytes(list.values().slice(first, length).as_ref())
        }
        DataType::FixedSizeList(..) => array_bytes(array.as_fixed_size_list().values().as_ref()),
        other => rows.saturating_mul(other.primitive_width().unwrap_or(0)),
    };
    own.saturating_add(validity)
}
