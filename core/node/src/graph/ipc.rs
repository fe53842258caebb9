//! One canonical Arrow IPC stream as a batch: a schema message, one record batch, the end of the stream, and nothing else.

use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, Int8Type,
    TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type, UInt8Type,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, ListArray, PrimitiveArray,
    RecordBatch, RecordBatchOptions, StringArray,
};
use arrow_buffer::{
    ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer,
};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::writer::StreamWriter;
use arrow_ipc::{
    root_as_message, Buffer as IpcBuffer, FieldNode, Message, MessageHeader,
    RecordBatch as IpcBatch, Schema as IpcSchema,
};
use arrow_schema::{ArrowError, Schema, SchemaRef};

use super::fields::{fixed_size, item_field, UTC};
use crate::lang::ast::{Field, FieldType, Scalar};

/// What is wrong with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefectKind {
    MalformedBatch,
    UnexpectedMessage,
    CompressedBatch,
    SchemaMismatch,
    NotOneBatch,
    TooManyRows,
    InvalidData,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defect {
    pub kind: DefectKind,
    pub message: String,
}

impl Defect {
    fn new(kind: DefectKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    fn within(self, field: &str) -> Self {
        Self::new(self.kind, format!("field `{field}`: {}", self.message))
    }
}

fn malformed(message: &str) -> Defect {
    Defect::new(DefectKind::MalformedBatch, message)
}

/// Four bytes of ones in front of every message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Splits off the next message's metadata; None for the end of the stream.
fn next_metadata(rest: &[u8]) -> Result<(Option<&[u8]>, &[u8]), Defect> {
    let too_short = || malformed("the stream ends before its end-of-stream marker");
    let (marker, rest) = rest.split_first_chunk::<4>().ok_or_else(too_short)?;
    if *marker != CONTINUATION {
        return Err(malformed(
            "a message does not begin with the continuation marker",
        ));
    }
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(too_short)?;
    let length = usize::try_from(i32::from_le_bytes(*length))
        .map_err(|_| malformed("a message's length is negative"))?;
    if length == 0 {
        return Ok((None, rest));
    }
    let (metadata, rest) = rest.split_at_checked(length).ok_or_else(too_short)?;
    Ok((Some(metadata), rest))
}

/// Splits off the body of a message.
fn body<'a>(message: &Message<'_>, rest: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Defect> {
    usize::try_from(message.bodyLength())
        .ok()
        .and_then(|length| rest.split_at_checked(length))
        .ok_or_else(|| malformed("a message's body reaches past the end of the stream"))
}

/// What a stream is made of: its schema, and its one record batch with the batch's body.
struct Parts<'a> {
    schema: IpcSchema<'a>,
    batch: IpcBatch<'a>,
    body: &'a [u8],
}

/// Splits a stream into the messages that it must be made of.
fn parts(stream: &[u8]) -> Result<Parts<'_>, Defect> {
    let mut rest = stream;
    let mut schema = None;
    let mut batch = None;
    loop {
        let (metadata, after) = next_metadata(rest)?;
        let Some(metadata) = metadata else {
            if !after.is_empty() {
                return Err(malformed("bytes follow the end-of-stream marker"));
            }
            let Some(((batch, body), schema)) = batch.zip(schema) else {
                return Err(Defect::new(
                    DefectKind::NotOneBatch,
                    "the stream holds no record batch",
                ));
            };
            return Ok(Parts {
                schema,
                batch,
                body,
            });
        };
        let message = root_as_message(metadata)
            .map_err(|_| malformed("a message's metadata is malformed"))?;
        let (body, after) = body(&message, after)?;
        match message.header_type() {
            MessageHeader::Schema if schema.is_none() => schema = message.header_as_schema(),
            MessageHeader::RecordBatch if schema.is_some() && batch.is_none() => {
                batch = message.header_as_record_batch().map(|batch| (batch, body));
            }
            MessageHeader::RecordBatch if batch.is_some() => {
                return Err(Defect::new(
                    DefectKind::NotOneBatch,
                    "the stream holds more than one record batch",
                ))
            }
            other => {
                return Err(Defect::new(
                    DefectKind::UnexpectedMessage,
                    format!("the stream holds an unexpected message of type {other:?}"),
                ))
            }
        }
        rest = after;
    }
}

/// Writes a batch as one canonical stream.
pub fn stream(batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema())?;
    writer.write(batch)?;
    writer.into_inner()
}

/// Names the first difference between what came and what was expected.
fn schema_difference(found: &Schema, expected: &Schema) -> Option<String> {
    if !found.metadata().is_empty() {
        return Some("the schema carries metadata".to_string());
    }
    for (index, expected) in expected.fields().iter().enumerate() {
        let Some(found) = found.fields().get(index) else {
            return Some(format!("the field `{}` is missing", expected.name()));
        };
        if found.name() != expected.name() {
            return Some(format!(
                "field {index} is `{}` and should be `{}`",
                found.name(),
                expected.name()
            ));
        }
        if found.data_type() != expected.data_type() {
            return Some(format!(
                "the field `{}` is {} and should be {}",
                found.name(),
                found.data_type(),
                expected.data_type()
            ));
        }
        if found.is_nullable() != expected.is_nullable() {
            return Some(format!(
                "the field `{}` must {}be nullable",
                found.name(),
                if expected.is_nullable() { "" } else { "not " }
            ));
        }
        if !found.metadata().is_empty() {
            return Some(format!("the field `{}` carries metadata", found.name()));
        }
    }
    found
        .fields()
        .get(expected.fields().len())
        .map(|extra| format!("there is no field `{}`", extra.name()))
}

/// Reads a stream whose batch must have exactly these fields and at most so many rows; `schema` is how Arrow holds them.
pub fn batch(
    fields: &[Field],
    schema: &SchemaRef,
    max_rows: usize,
    stream: &[u8],
) -> Result<RecordBatch, Defect> {
    let parts = parts(stream)?;
    let found = try_fb_to_schema(parts.schema)
        .map_err(|error| Defect::new(DefectKind::SchemaMismatch, error.to_string()))?;
    if let Some(difference) = schema_difference(&found, schema) {
        return Err(Defect::new(DefectKind::SchemaMismatch, difference));
    }
    if parts.batch.compression().is_some() {
        return Err(Defect::new(
            DefectKind::CompressedBatch,
            "the record batch is compressed",
        ));
    }
    let rows = count(parts.batch.length())?;
    if rows > max_rows {
        return Err(Defect::new(
            DefectKind::TooManyRows,
            format!("the record batch has {rows} rows, and at most {max_rows} are allowed"),
        ));
    }
    let mut reader = Reader {
        nodes: parts.batch.nodes().into_iter().flatten(),
        buffers: parts.batch.buffers().into_iter().flatten(),
        // The one copy: from here on the arrays share the body, aligned.
        body: Buffer::from(parts.body),
    };
    let columns = fields
        .iter()
        .map(|field| {
            let array = reader
                .array(&field.field_type, field.optional, None)
                .map_err(|defect| defect.within(&field.name.text))?;
            if array.len() != rows {
                return Err(
                    malformed("a column has another number of rows than the batch")
                        .within(&field.name.text),
                );
            }
            Ok(array)
        })
        .collect::<Result<Vec<_>, Defect>>()?;
    if reader.nodes.next().is_some() || reader.buffers.next().is_some() {
        return Err(malformed("the record batch holds more than its fields"));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .map_err(|error| invalid(&error))
}

fn invalid(error: &dyn std::fmt::Display) -> Defect {
    Defect::new(DefectKind::InvalidData, error.to_string())
}

fn count(length: i64) -> Result<usize, Defect> {
    u32::try_from(length)
        .ok()
        .and_then(|length| usize::try_from(length).ok())
        .ok_or_else(|| malformed("a row count is out of range"))
}

/// Reads arrays off a record batch, in the order of its fields. Arrow's own reader trusts what it is given in places and
/// ends the process over the rest, so every length is checked here first.
struct Reader<N, B> {
    nodes: N,
    buffers: B,
    body: Buffer,
}

impl<'a, N, B> Reader<N, B>
where
    N: Iterator<Item = &'a FieldNode>,
    B: Iterator<Item = &'a IpcBuffer>,
{
    fn buffer(&mut self) -> Result<Buffer, Defect> {
        let buffer = self
            .buffers
            .next()
            .ok_or_else(|| malformed("a buffer is missing"))?;
        let range = usize::try_from(buffer.offset())
            .ok()
            .zip(usize::try_from(buffer.length()).ok());
        match range {
            Some((offset, length))
                if offset % 8 == 0
                    && offset
                        .checked_add(length)
                        .is_some_and(|end| end <= self.body.len()) =>
            {
                Ok(self.body.slice_with_length(offset, length))
            }
            _ => Err(malformed(
                "a buffer is not aligned, or lies outside of the record batch's body",
            )),
        }
    }

    /// The next buffer as values in place.
    fn values<T: ArrowNativeType>(&mut self, count: usize) -> Result<ScalarBuffer<T>, Defect> {
        let buffer = self.buffer()?;
        let bytes = count.checked_mul(std::mem::size_of::<T>());
        if bytes.is_none_or(|bytes| bytes > buffer.len()) {
            return Err(malformed("a buffer is too short for its values"));
        }
        Ok(ScalarBuffer::new(buffer, 0, count))
    }

    fn bits(buffer: Buffer, count: usize) -> Result<BooleanBuffer, Defect> {
        if buffer.len() < count.div_ceil(8) {
            return Err(malformed("a buffer is too short for its values"));
        }
        Ok(BooleanBuffer::new(buffer, 0, count))
    }

    /// Offsets that ascend from zero or more to at most `end`.
    fn offsets(&mut self, count: usize) -> Result<OffsetBuffer<i32>, Defect> {
        if count == 0 {
            // A writer may leave the one offset of no values out.
            self.buffer()?;
            return Ok(OffsetBuffer::new_empty());
        }
        let offsets: ScalarBuffer<i32> = self.values(count.saturating_add(1))?;
        let ascending = offsets
            .iter()
            .try_fold(0, |last, offset| (*offset >= last).then_some(*offset));
        match ascending {
            Some(_) => Ok(OffsetBuffer::new(offsets)),
            None => Err(invalid(&"offsets do not ascend")),
        }
    }

    /// The validity of an array. Where `nothing` is null, the values are of fixed lists that are null as a whole: they mean
    /// nothing, writers make them null, and they are read as not null here, so that the same rows are always the same.
    fn validity(
        &mut self,
        node: &FieldNode,
        length: usize,
        nullable: bool,
        nothing: Option<&NullBuffer>,
    ) -> Result<Option<NullBuffer>, Defect> {
        let buffer = self.buffer()?;
        let declared = count(node.null_count())?;
        let nulls = if buffer.is_empty() {
            None
        } else {
            Some(NullBuffer::new(Self::bits(buffer, length)?))
        };
        let found = nulls.as_ref().map_or(0, NullBuffer::null_count);
        if found != declared {
            return Err(invalid(&"the number of nulls is not what was declared"));
        }
        let Some(nulls) = nulls.filter(|_| found > 0) else {
            return Ok(None);
        };
        if nullable {
            return Ok(Some(nulls));
        }
        let means_nothing =
            |row: usize| nothing.is_some_and(|nothing| row < nothing.len() && nothing.is_null(row));
        let row = nulls
            .iter()
            .enumerate()
            .position(|(row, valid)| !valid && !means_nothing(row));
        match row {
            None => Ok(None),
            Some(row) => Err(invalid(&format_args!(
                "it is required and null in row {row}"
            ))),
        }
    }

    fn primitive<T: ArrowPrimitiveType>(
        &mut self,
        length: usize,
        nulls: Option<NullBuffer>,
    ) -> Result<PrimitiveArray<T>, Defect> {
        PrimitiveArray::try_new(self.values(length)?, nulls).map_err(|error| invalid(&error))
    }

    fn array(
        &mut self,
        field_type: &FieldType,
        nullable: bool,
        nothing: Option<&NullBuffer>,
    ) -> Result<ArrayRef, Defect> {
        let node = self
            .nodes
            .next()
            .ok_or_else(|| malformed("a field is missing"))?;
        let length = count(node.length())?;
        let nulls = self.validity(node, length, nullable, nothing)?;
        let scalar = match field_type {
            FieldType::Scalar(scalar) => *scalar,
            FieldType::List(element) => {
                let offsets = self.offsets(length)?;
                let child = self.array(element, false, None)?;
                return ListArray::try_new(item_field(element), offsets, child, nulls)
                    .map(|array| Arc::new(array) as ArrayRef)
                    .map_err(|error| invalid(&error));
            }
            FieldType::FixedList {
                element,
                length: size,
            } => {
                let size_of_one = usize::try_from(*size).unwrap_or(usize::MAX);
                let wanted = size_of_one.checked_mul(length);
                let nothing = NullBuffer::union(nulls.as_ref(), nothing);
                // What would be longer than the body can hold is refused before it is made.
                let fits = wanted.is_some_and(|wanted| wanted / 8 <= self.body.len());
                let nothing = match nothing {
                    Some(nothing) if fits => Some(nothing.expand(size_of_one)),
                    _ => None,
                };
                let child = self.array(element, false, nothing.as_ref())?;
                if wanted != Some(child.len()) {
                    return Err(malformed("a fixed list has another number of elements"));
                }
                return FixedSizeListArray::try_new(
                    item_field(element),
                    fixed_size(*size),
                    child,
                    nulls,
                )
                .map(|array| Arc::new(array) as ArrayRef)
                .map_err(|error| invalid(&error));
            }
        };
        Ok(match scalar {
            Scalar::U8 => Arc::new(self.primitive::<UInt8Type>(length, nulls)?),
            Scalar::I8 => Arc::new(self.primitive::<Int8Type>(length, nulls)?),
            Scalar::U16 => Arc::new(self.primitive::<UInt16Type>(length, nulls)?),
            Scalar::I16 => Arc::new(self.primitive::<Int16Type>(length, nulls)?),
            Scalar::U32 => Arc::new(self.primitive::<UInt32Type>(length, nulls)?),
            Scalar::I32 => Arc::new(self.primitive::<Int32Type>(length, nulls)?),
            Scalar::U64 => Arc::new(self.primitive::<UInt64Type>(length, nulls)?),
            Scalar::I64 => Arc::new(self.primitive::<Int64Type>(length, nulls)?),
            Scalar::F32 => Arc::new(self.primitive::<Float32Type>(length, nulls)?),
            Scalar::F64 => Arc::new(self.primitive::<Float64Type>(length, nulls)?),
            Scalar::Datetime => Arc::new(
                self.primitive::<TimestampNanosecondType>(length, nulls)?
                    .with_timezone(UTC),
            ),
            Scalar::Bool => {
                let buffer = self.buffer()?;
                let values = Self::bits(buffer, length)?;
                Arc::new(BooleanArray::new(values, nulls))
            }
            Scalar::String => {
                let offsets = self.offsets(length)?;
                let text = self.buffer()?;
                Arc::new(
                    StringArray::try_new(offsets, text, nulls).map_err(|error| invalid(&error))?,
                )
            }
            Scalar::Bytes => {
                let offsets = self.offsets(length)?;
                let bytes = self.buffer()?;
                Arc::new(
                    BinaryArray::try_new(offsets, bytes, nulls).map_err(|error| invalid(&error))?,
                )
            }
        })
    }
}
