//! Columns to one canonical stream: the schema, one record batch, the end, and nothing else (P-3).
//!
//! Owns the layout of what is written: uncompressed, without metadata, every message behind a continuation marker, every buffer
//! padded to 64 bytes, no validity buffer where nothing is null. Knows nothing of where columns come from; they may be parts of
//! longer ones.

use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_ipc::convert::IpcSchemaEncoder;
use arrow_ipc::{
    Buffer as IpcBuffer, FieldNode, MessageBuilder, MessageHeader, MetadataVersion,
    RecordBatchBuilder,
};
use arrow_schema::{DataType, Fields, Schema};
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;

use crate::Refusal;

/// In front of every message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Buffers and messages begin at multiples of this.
const ALIGNMENT: usize = 64;

/// The stream of these columns, each of `rows` rows.
pub(crate) fn stream(
    fields: &Fields,
    rows: usize,
    columns: &[ArrayData],
) -> Result<Bytes, Refusal> {
    let mut pieces = Pieces::default();
    for (field, column) in fields.iter().zip(columns) {
        let put = pieces.put(column);
        put.map_err(|why| Refusal::Argument(format!("the column {:?}: {why}", field.name())))?;
    }
    let schema = schema_message(fields);
    let batch = pieces.message(rows)?;
    let mut out = Vec::with_capacity(
        pieces
            .body
            .saturating_add(schema.len())
            .saturating_add(batch.len())
            .saturating_add(4 * ALIGNMENT),
    );
    put_metadata(&mut out, &schema)?;
    put_metadata(&mut out, &batch)?;
    for piece in &pieces.buffers {
        out.extend_from_slice(piece);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    }
    out.extend_from_slice(&CONTINUATION);
    out.extend_from_slice(&[0; 4]);
    Ok(Bytes::from(out))
}

/// Writes the frame of a message so that what follows begins at a multiple of the alignment.
fn put_metadata(out: &mut Vec<u8>, metadata: &[u8]) -> Result<(), Refusal> {
    let begin = out.len().saturating_add(8);
    let end = begin
        .saturating_add(metadata.len())
        .next_multiple_of(ALIGNMENT);
    let length = i32::try_from(end.saturating_sub(begin)).map_err(|_| too_long())?;
    out.extend_from_slice(&CONTINUATION);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(metadata);
    out.resize(end, 0);
    Ok(())
}

fn too_long() -> Refusal {
    Refusal::Argument("the batch is longer than an Arrow IPC stream can say".to_owned())
}

fn schema_message(fields: &Fields) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let schema =
        IpcSchemaEncoder::new().schema_to_fb_offset(&mut builder, &Schema::new(fields.clone()));
    let mut message = MessageBuilder::new(&mut builder);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::Schema);
    message.add_bodyLength(0);
    message.add_header(schema.as_union_value());
    let root = message.finish();
    builder.finish(root, None);
    builder.finished_data().to_vec()
}

/// What a record batch is made of.
#[derive(Default)]
struct Pieces {
    nodes: Vec<FieldNode>,
    places: Vec<IpcBuffer>,
    buffers: Vec<Buffer>,
    body: usize,
}

impl Pieces {
    fn message(&self, rows: usize) -> Result<Vec<u8>, Refusal> {
        let mut builder = FlatBufferBuilder::new();
        let nodes = builder.create_vector(&self.nodes);
        let places = builder.create_vector(&self.places);
        let mut batch = RecordBatchBuilder::new(&mut builder);
        batch.add_length(i64::try_from(rows).map_err(|_| too_long())?);
        batch.add_nodes(nodes);
        batch.add_buffers(places);
        let batch = batch.finish();
        let mut message = MessageBuilder::new(&mut builder);
        message.add_version(MetadataVersion::V5);
        message.add_header_type(MessageHeader::RecordBatch);
        message.add_bodyLength(i64::try_from(self.body).map_err(|_| too_long())?);
        message.add_header(batch.as_union_value());
        let root = message.finish();
        builder.finish(root, None);
        Ok(builder.finished_data().to_vec())
    }

    fn push(&mut self, buffer: Buffer) -> Result<(), String> {
        let place = i64::try_from(self.body)
            .ok()
            .zip(i64::try_from(buffer.len()).ok());
        let (offset, length) = place.ok_or("it is too long")?;
        self.places.push(IpcBuffer::new(offset, length));
        self.body = self
            .body
            .checked_add(buffer.len())
            .and_then(|end| end.checked_next_multiple_of(ALIGNMENT))
            .ok_or("it is too long")?;
        self.buffers.push(buffer);
        Ok(())
    }

    /// Adds one level of a column and those below it.
    fn put(&mut self, data: &ArrayData) -> Result<(), String> {
        let length = i64::try_from(data.len()).map_err(|_| "it is too long")?;
        // Counted here, since a foreign count may be wrong.
        let nulls = data
            .nulls()
            .map(|nulls| NullBuffer::new(nulls.inner().clone()));
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        let null_count = nulls.as_ref().map_or(0, NullBuffer::null_count);
        let null_count = i64::try_from(null_count).map_err(|_| "it is too long")?;
        self.nodes.push(FieldNode::new(length, null_count));
        self.push(match nulls {
            Some(nulls) => nulls.inner().sliced(),
            None => Buffer::from_vec(Vec::<u8>::new()),
        })?;
        match data.data_type() {
            DataType::Boolean => {
                let bits = buffer(data, 0)?;
                let end = data.offset().checked_add(data.len());
                if end.is_none_or(|end| bits.len() < end.div_ceil(8)) {
                    return Err("its buffer is too short".to_owned());
                }
                self.push(BooleanBuffer::new(bits.clone(), data.offset(), data.len()).sliced())
            }
            DataType::Utf8 | DataType::Binary => {
                let (offsets, first, last) = ends(data)?;
                self.push(offsets)?;
                self.push(part(buffer(data, 1)?, first, last)?)
            }
            DataType::List(_) => {
                let (offsets, first, last) = ends(data)?;
                self.push(offsets)?;
                self.put(&child(data, first, last)?)
            }
            DataType::FixedSizeList(_, size) => {
                let size = usize::try_from(*size).map_err(|_| "its lists have no length")?;
                let first = data.offset().checked_mul(size);
                let last = data
                    .offset()
                    .checked_add(data.len())
                    .and_then(|end| end.checked_mul(size));
                let (first, last) = first.zip(last).ok_or("it is too long")?;
                self.put(&child(data, first, last)?)
            }
            other => {
                let width = other
                    .primitive_width()
                    .ok_or_else(|| format!("{other} is no type of a field"))?;
                let first = data.offset().checked_mul(width);
                let last = data
                    .offset()
                    .checked_add(data.len())
                    .and_then(|end| end.checked_mul(width));
                let (first, last) = first.zip(last).ok_or("it is too long")?;
                self.push(part(buffer(data, 0)?, first, last)?)
            }
        }
    }
}

fn buffer(data: &ArrayData, index: usize) -> Result<&Buffer, String> {
    data.buffers()
        .get(index)
        .ok_or_else(|| "a buffer is missing".to_owned())
}

fn part(buffer: &Buffer, first: usize, last: usize) -> Result<Buffer, String> {
    match last.checked_sub(first) {
        Some(length) if last <= buffer.len() => Ok(buffer.slice_with_length(first, length)),
        _ => Err("its buffer is too short".to_owned()),
    }
}

fn child(data: &ArrayData, first: usize, last: usize) -> Result<ArrayData, String> {
    let child = data
        .child_data()
        .first()
        .ok_or("its elements are missing")?;
    match last.checked_sub(first) {
        Some(length) if last <= child.len() => Ok(child.slice(first, length)),
        _ => Err("it has fewer elements than its offsets say".to_owned()),
    }
}

/// The offsets of a column from 0 on, and what they span in the original.
fn ends(data: &ArrayData) -> Result<(Buffer, usize, usize), String> {
    if data.is_empty() {
        return Ok((Buffer::from_vec(vec![0_i32]), 0, 0));
    }
    let first = data.offset().checked_mul(4);
    let last = data
        .offset()
        .checked_add(data.len())
        .and_then(|end| end.checked_add(1)?.checked_mul(4));
    let (first, last) = first.zip(last).ok_or("it is too long")?;
    let offsets = part(buffer(data, 0)?, first, last)?;
    let at = |bytes: Option<&[u8; 4]>| {
        bytes
            .and_then(|bytes| usize::try_from(i32::from_ne_bytes(*bytes)).ok())
            .ok_or("its offsets are negative")
    };
    let (begin, end) = (at(offsets.first_chunk())?, at(offsets.last_chunk())?);
    if begin == 0 {
        return Ok((offsets, begin, end));
    }
    let rebased: Vec<i32> = offsets
        .chunks_exact(4)
        .map(|bytes| {
            let offset = bytes
                .first_chunk()
                .map_or(0, |bytes| i32::from_ne_bytes(*bytes));
            offset.wrapping_sub(i32::try_from(begin).unwrap_or(0))
        })
        .collect();
    Ok((Buffer::from_vec(rebased), begin, end))
}
