//! One canonical Arrow IPC stream as a batch: a schema message, one record batch, the end of the stream, and nothing else.

use std::io::Cursor;

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::{root_as_message, Message, MessageHeader};
use arrow_schema::Schema;

/// What is wrong with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefectKind {
    MalformedBatch,
    UnexpectedMessage,
    CompressedBatch,
    SchemaMismatch,
    NotOneBatch,
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

/// Checks the one record batch message against its body, so that a reader meets no offset outside of it.
fn check_record_batch(message: &Message<'_>, body: &[u8]) -> Result<(), Defect> {
    let Some(batch) = message.header_as_record_batch() else {
        return Err(malformed("a record batch message holds no record batch"));
    };
    if batch.compression().is_some() {
        return Err(Defect::new(
            DefectKind::CompressedBatch,
            "the record batch is compressed",
        ));
    }
    let counted = |count: i64| u32::try_from(count).is_ok();
    let nodes_counted = batch.nodes().is_none_or(|nodes| {
        nodes
            .iter()
            .all(|node| counted(node.length()) && counted(node.null_count()))
    });
    if !counted(batch.length()) || !nodes_counted {
        return Err(malformed("a row count is out of range"));
    }
    let within = |offset: i64, length: i64| {
        let end = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(length).ok())
            .and_then(|(offset, length)| offset.checked_add(length));
        end.is_some_and(|end| end <= body.len())
    };
    let buffers_within = batch.buffers().is_none_or(|buffers| {
        buffers
            .iter()
            .all(|buffer| within(buffer.offset(), buffer.length()))
    });
    if !buffers_within {
        return Err(malformed(
            "a buffer lies outside of the record batch's body",
        ));
    }
    Ok(())
}

/// Checks which messages the stream is made of.
fn check_messages(stream: &[u8]) -> Result<(), Defect> {
    let mut rest = stream;
    let mut schemas = 0_usize;
    let mut batches = 0_usize;
    loop {
        let (metadata, after) = next_metadata(rest)?;
        let Some(metadata) = metadata else {
            if batches != 1 {
                return Err(Defect::new(
                    DefectKind::NotOneBatch,
                    format!("the stream holds {batches} record batches and not one"),
                ));
            }
            if !after.is_empty() {
                return Err(malformed("bytes follow the end-of-stream marker"));
            }
            return Ok(());
        };
        let message = root_as_message(metadata)
            .map_err(|_| malformed("a message's metadata is malformed"))?;
        let (body, after) = body(&message, after)?;
        match message.header_type() {
            MessageHeader::Schema if schemas == 0 => schemas += 1,
            MessageHeader::RecordBatch if schemas == 1 => {
                batches += 1;
                if batches > 1 {
                    return Err(Defect::new(
                        DefectKind::NotOneBatch,
                        "the stream holds more than one record batch",
                    ));
                }
                check_record_batch(&message, body)?;
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

/// Reads a stream whose batch must have exactly this schema.
pub fn batch(expected: &Schema, stream: &[u8]) -> Result<RecordBatch, Defect> {
    check_messages(stream)?;
    let invalid =
        |error: &dyn std::fmt::Display| Defect::new(DefectKind::InvalidData, error.to_string());
    let mut reader = StreamReader::try_new(Cursor::new(stream), None)
        .map_err(|error| malformed(&error.to_string()))?;
    if let Some(difference) = schema_difference(&reader.schema(), expected) {
        return Err(Defect::new(DefectKind::SchemaMismatch, difference));
    }
    match reader.next() {
        Some(Ok(batch)) => Ok(batch),
        Some(Err(error)) => Err(invalid(&error)),
        None => Err(malformed("the record batch could not be read")),
    }
}
