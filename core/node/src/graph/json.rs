//! JSON rows as a batch, exactly: nothing is rounded, guessed or left out, and what does not fit names its row and field.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, BooleanBuilder, StringBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, Int8Type,
    TimestampNanosecondType, UInt16Type, UInt32Type, UInt64Type, UInt8Type,
};
use arrow_array::{
    ArrayRef, FixedSizeListArray, ListArray, PrimitiveArray, RecordBatch, RecordBatchOptions,
};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::SchemaRef;
use serde_json::{Map, Number, Value};

use super::fields::{fixed_size, item_field, UTC};
use crate::lang::ast::{Field, FieldType, Scalar};

/// A place to fill: which row it belongs to, and with what.
#[derive(Debug, Clone, Copy)]
struct Slot<'a> {
    row: usize,
    content: Content<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Content<'a> {
    Value(&'a Value),
    Null,
    /// An element of a fixed list that is null as a whole: it is there and means nothing.
    Padding,
}

/// The rows as one batch; `rows` is an array of objects, or one object.
pub fn batch(fields: &[Field], schema: &SchemaRef, rows: &Value) -> Result<RecordBatch, String> {
    let rows: &[Value] = match rows {
        Value::Array(rows) => rows,
        row => std::slice::from_ref(row),
    };
    let names: HashSet<&str> = fields
        .iter()
        .map(|field| field.name.text.as_str())
        .collect();
    let rows: Vec<&Map<String, Value>> = rows
        .iter()
        .enumerate()
        .map(|(index, row)| {
            let Value::Object(row) = row else {
                return Err(format!(
                    "row {index}: expected an object, found {}",
                    kind(row)
                ));
            };
            match row.keys().find(|key| !names.contains(key.as_str())) {
                Some(key) => Err(format!("row {index}: there is no field `{key}`")),
                None => Ok(row),
            }
        })
        .collect::<Result<_, String>>()?;
    let columns: Vec<ArrayRef> = fields
        .iter()
        .map(|field| column(field, &rows))
        .collect::<Result<_, String>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .map_err(|error| error.to_string())
}

fn column(field: &Field, rows: &[&Map<String, Value>]) -> Result<ArrayRef, String> {
    let name = field.name.text.as_str();
    let slots: Vec<Slot<'_>> = rows
        .iter()
        .enumerate()
        .map(|(row, object)| {
            let content = match object.get(name) {
                None | Some(Value::Null) if field.optional => Content::Null,
                None => {
                    return Err(format!(
                        "row {row}, field `{name}`: it is required and missing"
                    ))
                }
                Some(Value::Null) => {
                    return Err(format!(
                        "row {row}, field `{name}`: it is required and null"
                    ))
                }
                Some(value) => Content::Value(value),
            };
            Ok(Slot { row, content })
        })
        .collect::<Result<_, String>>()?;
    array(name, &field.field_type, &slots)
}

fn array(name: &str, field_type: &FieldType, slots: &[Slot<'_>]) -> Result<ArrayRef, String> {
    match field_type {
        FieldType::List(element) => list(name, element, slots),
        FieldType::FixedList { element, length } => fixed_list(name, element, *length, slots),
        FieldType::Scalar(scalar) => scalars(name, *scalar, slots),
    }
}

fn misfit(name: &str, slot: Slot<'_>, wanted: &str, found: &Value) -> String {
    let mut text = found.to_string();
    if text.chars().count() > 60 {
        text = text.chars().take(60).collect::<String>() + "…";
    }
    format!(
        "row {}, field `{name}`: expected {wanted}, found {text}",
        slot.row
    )
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Reads every slot; None is null, and padding is the default.
fn read<'a, T: Default>(
    name: &str,
    slots: &[Slot<'a>],
    wanted: &str,
    parse: impl Fn(&'a Value) -> Option<T>,
) -> Result<Vec<Option<T>>, String> {
    slots
        .iter()
        .map(|slot| match slot.content {
            Content::Null => Ok(None),
            Content::Padding => Ok(Some(T::default())),
            Content::Value(value) => match parse(value) {
                Some(parsed) => Ok(Some(parsed)),
                None => Err(misfit(name, *slot, wanted, value)),
            },
        })
        .collect()
}

fn primitive<T: ArrowPrimitiveType>(
    name: &str,
    slots: &[Slot<'_>],
    wanted: &str,
    parse: impl Fn(&Value) -> Option<T::Native>,
) -> Result<PrimitiveArray<T>, String> {
    Ok(read(name, slots, wanted, parse)?.into_iter().collect())
}

/// A number written as an integer that its type holds.
fn integer<T: std::str::FromStr>(value: &Value) -> Option<T> {
    match value {
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

fn finite<T: std::str::FromStr>(number: &Number, is_finite: impl Fn(&T) -> bool) -> Option<T> {
    number.to_string().parse().ok().filter(is_finite)
}

/// The one text of an object with only this key.
fn only<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    match object.get(key) {
        Some(Value::String(text)) if object.len() == 1 => Some(text),
        _ => None,
    }
}

fn bits(object: &Map<String, Value>, digits: usize) -> Option<u64> {
    let text = only(object, "bits")?;
    let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| plain)
}

fn f32_value(value: &Value) -> Option<f32> {
    match value {
        Value::Number(number) => finite(number, |value: &f32| value.is_finite()),
        Value::Object(object) => bits(object, 8)
            .and_then(|bits| u32::try_from(bits).ok())
            .map(f32::from_bits),
        _ => None,
    }
}

fn f64_value(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => finite(number, |value: &f64| value.is_finite()),
        Value::Object(object) => bits(object, 16).map(f64::from_bits),
        _ => None,
    }
}

fn bytes_value(value: &Value) -> Option<Vec<u8>> {
    let Value::Object(object) = value else {
        return None;
    };
    let digits = only(object, "hex")?
        .chars()
        .map(|digit| {
            digit
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        })
        .collect::<Option<Vec<u8>>>()?;
    let pairs = digits.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    Some(
        pairs
            .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
            .collect(),
    )
}

fn scalars(name: &str, scalar: Scalar, slots: &[Slot<'_>]) -> Result<ArrayRef, String> {
    macro_rules! integers {
        ($arrow:ty, $wanted:literal) => {
            Arc::new(primitive::<$arrow>(name, slots, $wanted, integer)?) as ArrayRef
        };
    }
    Ok(match scalar {
        Scalar::U8 => integers!(UInt8Type, "an integer of 0 to 2^8 - 1"),
        Scalar::I8 => integers!(Int8Type, "an integer of -2^7 to 2^7 - 1"),
        Scalar::U16 => integers!(UInt16Type, "an integer of 0 to 2^16 - 1"),
        Scalar::I16 => integers!(Int16Type, "an integer of -2^15 to 2^15 - 1"),
        Scalar::U32 => integers!(UInt32Type, "an integer of 0 to 2^32 - 1"),
        Scalar::I32 => integers!(Int32Type, "an integer of -2^31 to 2^31 - 1"),
        Scalar::U64 => integers!(UInt64Type, "an integer of 0 to 2^64 - 1"),
        Scalar::I64 => integers!(Int64Type, "an integer of -2^63 to 2^63 - 1"),
        Scalar::F32 => Arc::new(primitive::<Float32Type>(
            name,
            slots,
            "a number that F32 holds, or {\"bits\": eight hex digits}",
            f32_value,
        )?),
        Scalar::F64 => Arc::new(primitive::<Float64Type>(
            name,
            slots,
            "a number that F64 holds, or {\"bits\": sixteen hex digits}",
            f64_value,
        )?),
        Scalar::Bool => {
            let mut builder = BooleanBuilder::with_capacity(slots.len());
            for value in read(name, slots, "true or false", Value::as_bool)? {
                builder.append_option(value);
            }
            Arc::new(builder.finish())
        }
        Scalar::String => {
            let values = read(name, slots, "a text", Value::as_str)?;
            let bytes = values.iter().flatten().map(|text| text.len()).sum();
            within_offsets(name, bytes)?;
            let mut builder = StringBuilder::with_capacity(values.len(), bytes);
            for value in values {
                builder.append_option(value);
            }
            Arc::new(builder.finish())
        }
        Scalar::Bytes => {
            let values = read(name, slots, "{\"hex\": pairs of hex digits}", bytes_value)?;
            let bytes = values.iter().flatten().map(Vec::len).sum();
            within_offsets(name, bytes)?;
            let mut builder = BinaryBuilder::with_capacity(values.len(), bytes);
            for value in values {
                builder.append_option(value);
            }
            Arc::new(builder.finish())
        }
        Scalar::Datetime => {
            let array = primitive::<TimestampNanosecondType>(
                name,
                slots,
                "an integer of nanoseconds since the Unix epoch",
                integer,
            )?;
            Arc::new(array.with_timezone(UTC))
        }
    })
}

/// Null fixed lists take up their whole length in Arrow, so that a few words of JSON could fill the memory with nothing.
const MAX_ELEMENTS: usize = 1 << 24;

fn within_elements(name: &str, total: usize) -> Result<(), String> {
    if total <= MAX_ELEMENTS {
        Ok(())
    } else {
        Err(format!(
            "field `{name}`: the batch holds more than {MAX_ELEMENTS} elements of it"
        ))
    }
}

/// Arrow's offsets have 31 bits, and its builders end the process past them.
fn within_offsets(name: &str, total: usize) -> Result<(), String> {
    match i32::try_from(total) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!(
            "field `{name}`: the batch holds more of it than Arrow's offsets reach"
        )),
    }
}

/// The elements of each slot's array, and the child slots they make.
fn elements<'a>(
    name: &str,
    slot: &Slot<'a>,
    into: &mut Vec<Slot<'a>>,
) -> Result<Option<usize>, String> {
    let Content::Value(value) = slot.content else {
        return Ok(None);
    };
    let Value::Array(elements) = value else {
        return Err(misfit(name, *slot, "an array", value));
    };
    for element in elements {
        if element.is_null() {
            return Err(misfit(name, *slot, "elements that are not null", value));
        }
        into.push(Slot {
            row: slot.row,
            content: Content::Value(element),
        });
    }
    Ok(Some(elements.len()))
}

fn validity(slots: &[Slot<'_>]) -> Option<NullBuffer> {
    let is_null = |slot: &Slot<'_>| matches!(slot.content, Content::Null);
    slots
        .iter()
        .any(is_null)
        .then(|| slots.iter().map(|slot| !is_null(slot)).collect())
}

fn list(name: &str, element: &FieldType, slots: &[Slot<'_>]) -> Result<ArrayRef, String> {
    let mut children = Vec::new();
    let mut offsets = Vec::with_capacity(slots.len() + 1);
    offsets.push(0);
    for slot in slots {
        elements(name, slot, &mut children)?;
        within_offsets(name, children.len())?;
        offsets.push(i32::try_from(children.len()).unwrap_or(i32::MAX));
    }
    let values = array(name, element, &children)?;
    ListArray::try_new(
        item_field(element),
        OffsetBuffer::new(ScalarBuffer::from(offsets)),
        values,
        validity(slots),
    )
    .map(|array| Arc::new(array) as ArrayRef)
    .map_err(|error| format!("field `{name}`: {error}"))
}

fn fixed_list(
    name: &str,
    element: &FieldType,
    length: u32,
    slots: &[Slot<'_>],
) -> Result<ArrayRef, String> {
    let wanted = usize::try_from(length).unwrap_or(usize::MAX);
    let mut children = Vec::new();
    for slot in slots {
        match elements(name, slot, &mut children)? {
            Some(found) if found != wanted => {
                return Err(format!(
                    "row {}, field `{name}`: expected an array of {length} elements, found {found}",
                    slot.row
                ))
            }
            Some(_) => (),
            None => {
                within_elements(name, children.len().saturating_add(wanted))?;
                let padding = Slot {
                    row: slot.row,
                    content: Content::Padding,
                };
                children.extend(std::iter::repeat_n(padding, wanted));
            }
        }
    }
    let values = array(name, element, &children)?;
    FixedSizeListArray::try_new(
        item_field(element),
        fixed_size(length),
        values,
        validity(slots),
    )
    .map(|array| Arc::new(array) as ArrayRef)
    .map_err(|error| format!("field `{name}`: {error}"))
}
