//! One stream to columns that lie within it, wholly checked (EC-3).
//!
//! Owns what a stream must be: exactly the schema, one record batch, the end. Every length, offset, bit and text is checked
//! before anything is made of it, since the readers of Arrow trust them in places. Nothing is copied, except values that lie
//! where they cannot be read in place, and text columns that hold no text where a row is null.

use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, Int8Type,
    TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type, UInt8Type,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, ListArray, PrimitiveArray,
    StringArray,
};
use arrow_buffer::{
    ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer,
};
use arrow_ipc::{
    root_as_message, Buffer as IpcBuffer, Endianness, Field as IpcField, FieldNode, Message,
    MessageHeader, MetadataVersion, Precision, RecordBatch as IpcBatch, Schema as IpcSchema,
    TimeUnit, Type,
};
use bytes::Bytes;
use nervix_wire::types::{FieldType, FieldTypeShape, RowField, ScalarType};

use crate::fields::{item, length, spelled, UTC};
use crate::Refusal;

fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Stream(why.into()))
}

/// The columns of a stream that has exactly these fields, and its number of rows.
pub(crate) fn columns(
    fields: &[RowField],
    stream: &Bytes,
) -> Result<(Vec<ArrayRef>, usize), Refusal> {
    let (schema, rest) = message(stream)?;
    let Some(schema) = schema else {
        return refuse("the stream ends before its schema");
    };
    let schema = root(&schema)?;
    let Some(found) = schema.header_as_schema() else {
        return refuse("the stream does not begin with a schema");
    };
    if schema.bodyLength() != 0 {
        return refuse("the schema has a body");
    }
    check_schema(fields, &found)?;
    let (metadata, rest) = message(rest)?;
    let Some(metadata) = metadata else {
        return refuse("the stream holds no record batch");
    };
    let batch = root(&metadata)?;
    let Some(header) = batch.header_as_record_batch() else {
        return refuse("a record batch does not follow the schema");
    };
    let body = usize::try_from(batch.bodyLength())
        .ok()
        .and_then(|length| rest.split_at_checked(length));
    let Some((body, rest)) = body else {
        return refuse("the record batch reaches past the end of the stream");
    };
    match message(rest)? {
        (None, []) => {}
        (None, _) => return refuse("bytes follow the end of the stream"),
        (Some(_), _) => return refuse("the stream holds more than one record batch"),
    }
    // The slice shares the stream's memory, and so does whatever is made of it.
    read(fields, &header, Buffer::from(stream.slice_ref(body)))
}

/// Splits off a message's metadata, copied to where it can be verified; none for the end of the stream.
fn message(stream: &[u8]) -> Result<(Option<Buffer>, &[u8]), Refusal> {
    let ends = || Refusal::Stream("the stream ends before its end-of-stream marker".to_owned());
    let (marker, rest) = stream.split_first_chunk::<4>().ok_or_else(ends)?;
    if *marker != [0xff; 4] {
        return refuse("a message does not begin with the continuation marker");
    }
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(ends)?;
    let Ok(length) = usize::try_from(i32::from_le_bytes(*length)) else {
        return refuse("a message has a negative length");
    };
    if length == 0 {
        return Ok((None, rest));
    }
    let (metadata, rest) = rest.split_at_checked(length).ok_or_else(ends)?;
    Ok((Some(Buffer::from(metadata)), rest))
}

fn root(metadata: &Buffer) -> Result<Message<'_>, Refusal> {
    let Ok(message) = root_as_message(metadata) else {
        return refuse("the metadata of a message is malformed");
    };
    if !matches!(message.version(), MetadataVersion::V4 | MetadataVersion::V5) {
        return refuse("a message is of a version that is not written any more");
    }
    if !matches!(
        message.header_type(),
        MessageHeader::Schema | MessageHeader::RecordBatch
    ) {
        return refuse("the stream holds a message that is neither a schema nor a record batch");
    }
    Ok(message)
}

fn check_schema(fields: &[RowField], schema: &IpcSchema<'_>) -> Result<(), Refusal> {
    if schema.endianness() != Endianness::Little {
        return refuse("the stream is not little-endian");
    }
    if schema.custom_metadata().is_some_and(|all| !all.is_empty()) {
        return refuse("the schema carries metadata");
    }
    let found = schema.fields().unwrap_or_default();
    if found.len() != fields.len() {
        let (found, wanted) = (found.len(), fields.len());
        return refuse(format!(
            "the stream has {found} fields, and {wanted} were agreed"
        ));
    }
    for (wanted, found) in fields.iter().zip(found) {
        let name = &wanted.name;
        check_field(name, wanted.nullable, &wanted.field_type, &found)
            .map_err(|why| Refusal::Stream(format!("the field {name:?}: {why}")))?;
    }
    Ok(())
}

fn check_field(
    name: &str,
    nullable: bool,
    wanted: &FieldType,
    found: &IpcField<'_>,
) -> Result<(), String> {
    if found.name().unwrap_or_default() != name {
        let found = found.name().unwrap_or_default();
        return Err(format!("it is named {found:?}"));
    }
    if found.nullable() != nullable {
        let not = if nullable { "not " } else { "" };
        return Err(format!("it is {not}nullable"));
    }
    if found.dictionary().is_some() {
        return Err("it is encoded with a dictionary".to_owned());
    }
    if found.custom_metadata().is_some_and(|all| !all.is_empty()) {
        return Err("it carries metadata".to_owned());
    }
    let other = || format!("it is not {}", spelled(wanted));
    let is = |right: bool| if right { Ok(()) } else { Err(other()) };
    let mut children = found.children().unwrap_or_default().iter();
    let child = children.next();
    if children.next().is_some() {
        return Err(other());
    }
    let scalar = match (&wanted.shape, child) {
        (FieldTypeShape::ScalarFieldType(scalar), None) => scalar.scalar,
        (FieldTypeShape::FixedListFieldType(list), Some(child)) => {
            let size = found.type_as_fixed_size_list().map(|list| list.listSize());
            is(size.is_some_and(|size| u32::try_from(size) == Ok(list.length)))?;
            return check_field("item", false, &list.element, &child);
        }
        (FieldTypeShape::ListFieldType(list), Some(child)) => {
            is(found.type_type() == Type::List)?;
            return check_field("item", false, &list.element, &child);
        }
        _ => return Err(other()),
    };
    let int = |width, signed| {
        let found = found.type_as_int();
        found.is_some_and(|int| int.bitWidth() == width && int.is_signed() == signed)
    };
    let float = |wanted| {
        let found = found.type_as_floating_point();
        found.is_some_and(|float| float.precision() == wanted)
    };
    is(match scalar {
        ScalarType::U8 => int(8, false),
        ScalarType::I8 => int(8, true),
        ScalarType::U16 => int(16, false),
        ScalarType::I16 => int(16, true),
        ScalarType::U32 => int(32, false),
        ScalarType::I32 => int(32, true),
        ScalarType::U64 => int(64, false),
        ScalarType::I64 => int(64, true),
        ScalarType::F32 => float(Precision::SINGLE),
        ScalarType::F64 => float(Precision::DOUBLE),
        ScalarType::Bool => found.type_type() == Type::Bool,
        ScalarType::String => found.type_type() == Type::Utf8,
        ScalarType::Bytes => found.type_type() == Type::Binary,
        ScalarType::Datetime => found.type_as_timestamp().is_some_and(|timestamp| {
            timestamp.unit() == TimeUnit::NANOSECOND && timestamp.timezone() == Some(UTC)
        }),
    })
}

fn read(
    fields: &[RowField],
    batch: &IpcBatch<'_>,
    body: Buffer,
) -> Result<(Vec<ArrayRef>, usize), Refusal> {
    if batch.compression().is_some() {
        return refuse("the record batch is compressed");
    }
    if batch
        .variadicBufferCounts()
        .is_some_and(|counts| !counts.is_empty())
    {
        return refuse("the record batch holds views");
    }
    let rows = count(batch.length())?;
    let mut reader = Reader {
        nodes: batch.nodes().into_iter().flatten(),
        buffers: batch.buffers().into_iter().flatten(),
        body,
    };
    let mut columns = Vec::with_capacity(fields.len());
    for field in fields {
        let column = reader.array(&field.field_type, field.nullable, None);
        let column = column
            .and_then(|column| match column.len() == rows {
                true => Ok(column),
                false => refuse("it has another number of rows than the batch"),
            })
            .map_err(|why| {
                Refusal::Stream(format!("the column {:?}: {}", field.name, why.message()))
            })?;
        columns.push(column);
    }
    if reader.nodes.next().is_some() || reader.buffers.next().is_some() {
        return refuse("the record batch holds more than its columns");
    }
    Ok((columns, rows))
}

fn count(length: i64) -> Result<usize, Refusal> {
    match u32::try_from(length).map(usize::try_from) {
        Ok(Ok(length)) => Ok(length),
        _ => refuse("a number of rows or elements is out of range"),
    }
}

/// The level above elements: which of its cells hold a list, and where the elements of each are.
struct Above<'a> {
    above: Option<&'a Above<'a>>,
    nulls: Option<&'a NullBuffer>,
    spread: Spread<'a>,
}

enum Spread<'a> {
    Fixed { size: usize, lists: usize },
    Offsets(&'a OffsetBuffer<i32>),
}

impl Above<'_> {
    /// Which of `cells` elements belong to a list that is there. The others mean nothing.
    fn alive(&self, cells: usize) -> Vec<bool> {
        let lists = match self.spread {
            Spread::Fixed { lists, .. } => lists,
            Spread::Offsets(offsets) => offsets.len().saturating_sub(1),
        };
        let above = self.above.map(|above| above.alive(lists));
        let mut alive = vec![false; cells];
        for list in 0..lists {
            let there = above
                .as_ref()
                .is_none_or(|above| above.get(list).copied().unwrap_or(false))
                && self.nulls.is_none_or(|nulls| nulls.is_valid(list));
            if !there {
                continue;
            }
            let range = match self.spread {
                Spread::Fixed { size, .. } => {
                    let first = list.saturating_mul(size);
                    first..first.saturating_add(size)
                }
                Spread::Offsets(offsets) => bounds(offsets, list),
            };
            if let Some(elements) = alive.get_mut(range) {
                elements.fill(true);
            }
        }
        alive
    }
}

/// Where cell `index` lies, by offsets that ascend from zero or more.
fn bounds(offsets: &[i32], index: usize) -> std::ops::Range<usize> {
    let at = |index: usize| {
        let offset = offsets.get(index).copied().unwrap_or(0);
        usize::try_from(offset).unwrap_or(0)
    };
    at(index)..at(index.saturating_add(1))
}

/// Reads columns off a record batch, in the order of its fields.
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
    fn buffer(&mut self) -> Result<Buffer, Refusal> {
        let Some(buffer) = self.buffers.next() else {
            return refuse("a buffer is missing");
        };
        let place = usize::try_from(buffer.offset())
            .ok()
            .zip(usize::try_from(buffer.length()).ok());
        match place {
            Some((offset, length))
                if offset
                    .checked_add(length)
                    .is_some_and(|end| end <= self.body.len()) =>
            {
                Ok(self.body.slice_with_length(offset, length))
            }
            _ => refuse("a buffer lies outside of the record batch"),
        }
    }

    /// The next buffer as `count` values.
    fn values<T: ArrowNativeType>(&mut self, count: usize) -> Result<ScalarBuffer<T>, Refusal> {
        let buffer = self.buffer()?;
        let length = count.checked_mul(std::mem::size_of::<T>());
        let Some(length) = length.filter(|length| *length <= buffer.len()) else {
            return refuse("a buffer is too short for its values");
        };
        let buffer = buffer.slice_with_length(0, length);
        let buffer = match buffer.as_ptr().align_offset(std::mem::align_of::<T>()) {
            0 => buffer,
            _ => Buffer::from(buffer.as_slice()),
        };
        Ok(ScalarBuffer::new(buffer, 0, count))
    }

    fn bits(buffer: Buffer, count: usize) -> Result<BooleanBuffer, Refusal> {
        if buffer.len() < count.div_ceil(8) {
            return refuse("a buffer is too short for its values");
        }
        Ok(BooleanBuffer::new(buffer, 0, count))
    }

    /// Offsets of `count` cells: they ascend from zero or more, and the last is the second result.
    fn offsets(&mut self, count: usize) -> Result<(OffsetBuffer<i32>, usize), Refusal> {
        if count == 0 {
            // A writer may leave out the one offset of no cells.
            self.buffer()?;
            return Ok((OffsetBuffer::new_empty(), 0));
        }
        let Some(places) = count.checked_add(1) else {
            return refuse("it is too long");
        };
        let offsets: ScalarBuffer<i32> = self.values(places)?;
        let first_is_fine = offsets.first().is_some_and(|first| *first >= 0);
        let ascends = offsets
            .iter()
            .zip(offsets.iter().skip(1))
            .fold(first_is_fine, |so_far, (one, next)| so_far & (one <= next));
        let last = offsets.last().and_then(|last| usize::try_from(*last).ok());
        match last {
            Some(last) if ascends => Ok((OffsetBuffer::new(offsets), last)),
            _ => refuse("its offsets do not ascend"),
        }
    }

    /// Which cells of a level are null. Only rows of a nullable field are; what is null besides belongs to no list that is
    /// there.
    fn nulls(
        &mut self,
        node: &FieldNode,
        cells: usize,
        nullable: bool,
        above: Option<&Above<'_>>,
    ) -> Result<Option<NullBuffer>, Refusal> {
        let buffer = self.buffer()?;
        let declared = count(node.null_count())?;
        let nulls = match buffer.is_empty() {
            true => None,
            false => Some(NullBuffer::new(Self::bits(buffer, cells)?)),
        };
        let found = nulls.as_ref().map_or(0, NullBuffer::null_count);
        if found != declared {
            return refuse(format!(
                "{found} cells are null, and {declared} are declared"
            ));
        }
        let Some(nulls) = nulls.filter(|_| found > 0) else {
            return Ok(None);
        };
        if nullable {
            return Ok(Some(nulls));
        }
        let alive = above.map(|above| above.alive(cells));
        let wrong = nulls.iter().enumerate().position(|(cell, valid)| {
            !valid
                && alive
                    .as_ref()
                    .is_none_or(|alive| alive.get(cell).copied().unwrap_or(true))
        });
        match (wrong, above) {
            (None, _) => Ok(None),
            (Some(row), None) => refuse(format!("it is required, and null in row {row}")),
            (Some(cell), Some(_)) => refuse(format!("an element of a list is null: {cell}")),
        }
    }

    fn primitive<T: ArrowPrimitiveType>(
        &mut self,
        cells: usize,
        nulls: Option<NullBuffer>,
    ) -> Result<PrimitiveArray<T>, Refusal> {
        PrimitiveArray::try_new(self.values(cells)?, nulls).map_err(|error| unfit(&error))
    }

    fn array(
        &mut self,
        field_type: &FieldType,
        nullable: bool,
        above: Option<&Above<'_>>,
    ) -> Result<ArrayRef, Refusal> {
        let Some(node) = self.nodes.next() else {
            return refuse("a column or a level of it is missing");
        };
        let cells = count(node.length())?;
        let nulls = self.nulls(node, cells, nullable, above)?;
        let scalar = match &field_type.shape {
            FieldTypeShape::ScalarFieldType(scalar) => scalar.scalar,
            FieldTypeShape::ListFieldType(list) => {
                let (offsets, last) = self.offsets(cells)?;
                let level = Above {
                    above,
                    nulls: nulls.as_ref(),
                    spread: Spread::Offsets(&offsets),
                };
                let elements = self.array(&list.element, false, Some(&level))?;
                if last > elements.len() {
                    return refuse("a list reaches past its elements");
                }
                let array = ListArray::try_new(item(&list.element)?, offsets, elements, nulls);
                return Ok(Arc::new(array.map_err(|error| unfit(&error))?));
            }
            FieldTypeShape::FixedListFieldType(list) => {
                let size = usize::try_from(list.length).unwrap_or(usize::MAX);
                let level = Above {
                    above,
                    nulls: nulls.as_ref(),
                    spread: Spread::Fixed { size, lists: cells },
                };
                let elements = self.array(&list.element, false, Some(&level))?;
                if cells.checked_mul(size) != Some(elements.len()) {
                    return refuse("it has another number of elements than its fixed lists");
                }
                let array = FixedSizeListArray::try_new(
                    item(&list.element)?,
                    length(list.length)?,
                    elements,
                    nulls,
                );
                return Ok(Arc::new(array.map_err(|error| unfit(&error))?));
            }
        };
        Ok(match scalar {
            ScalarType::U8 => Arc::new(self.primitive::<UInt8Type>(cells, nulls)?),
            ScalarType::I8 => Arc::new(self.primitive::<Int8Type>(cells, nulls)?),
            ScalarType::U16 => Arc::new(self.primitive::<UInt16Type>(cells, nulls)?),
            ScalarType::I16 => Arc::new(self.primitive::<Int16Type>(cells, nulls)?),
            ScalarType::U32 => Arc::new(self.primitive::<UInt32Type>(cells, nulls)?),
            ScalarType::I32 => Arc::new(self.primitive::<Int32Type>(cells, nulls)?),
            ScalarType::U64 => Arc::new(self.primitive::<UInt64Type>(cells, nulls)?),
            ScalarType::I64 => Arc::new(self.primitive::<Int64Type>(cells, nulls)?),
            ScalarType::F32 => Arc::new(self.primitive::<Float32Type>(cells, nulls)?),
            ScalarType::F64 => Arc::new(self.primitive::<Float64Type>(cells, nulls)?),
            ScalarType::Datetime => {
                let instants = self.primitive::<TimestampNanosecondType>(cells, nulls)?;
                Arc::new(instants.with_timezone(UTC))
            }
            ScalarType::Bool => {
                let buffer = self.buffer()?;
                Arc::new(BooleanArray::new(Self::bits(buffer, cells)?, nulls))
            }
            ScalarType::String => {
                let (offsets, data) = self.octets(cells)?;
                Arc::new(text(offsets, data, nulls, above)?)
            }
            ScalarType::Bytes => {
                let (offsets, data) = self.octets(cells)?;
                let array = BinaryArray::try_new(offsets, data, nulls);
                Arc::new(array.map_err(|error| unfit(&error))?)
            }
        })
    }

    fn octets(&mut self, cells: usize) -> Result<(OffsetBuffer<i32>, Buffer), Refusal> {
        let (offsets, last) = self.offsets(cells)?;
        let data = self.buffer()?;
        if last > data.len() {
            return refuse("a value reaches past its buffer");
        }
        Ok((offsets, data.slice_with_length(0, last)))
    }
}

/// Text, which must be UTF-8 wherever there is a value. What lies where there is none means nothing, and is blanked when it is
/// no text, in a copy: nobody is given it as text.
fn text(
    offsets: OffsetBuffer<i32>,
    data: Buffer,
    nulls: Option<NullBuffer>,
    above: Option<&Above<'_>>,
) -> Result<StringArray, Refusal> {
    if let Ok(array) = StringArray::try_new(offsets.clone(), data.clone(), nulls.clone()) {
        return Ok(array);
    }
    let cells = offsets.len().saturating_sub(1);
    let alive = above.map(|above| above.alive(cells));
    let mut blanked = vec![0; data.len()];
    for cell in 0..cells {
        let there = alive
            .as_ref()
            .is_none_or(|alive| alive.get(cell).copied().unwrap_or(true))
            && nulls.as_ref().is_none_or(|nulls| nulls.is_valid(cell));
        if !there {
            continue;
        }
        let range = bounds(&offsets, cell);
        let value = data.get(range.clone()).unwrap_or_default();
        if std::str::from_utf8(value).is_err() {
            return refuse(format!("value {cell} is not UTF-8"));
        }
        if let Some(place) = blanked.get_mut(range) {
            place.copy_from_slice(value);
        }
    }
    StringArray::try_new(offsets, Buffer::from_vec(blanked), nulls).map_err(|error| unfit(&error))
}

fn unfit(error: &arrow_schema::ArrowError) -> Refusal {
    Refusal::Stream(error.to_string())
}
