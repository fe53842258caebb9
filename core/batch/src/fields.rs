//! Field types: how they nest, and how Arrow holds them (P-3).
//!
//! Owns the one table between the types of fields and the types of Arrow. Knows no values.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, TimeUnit};
use nervix_wire::types::{FieldType, FieldTypeShape, RowField, ScalarType};

use crate::Refusal;

/// The zone of every instant.
pub const UTC: &str = "+00:00";

/// The element type of a list; none for a scalar.
pub fn element(field_type: &FieldType) -> Option<&FieldType> {
    match &field_type.shape {
        FieldTypeShape::ScalarFieldType(_) => None,
        FieldTypeShape::FixedListFieldType(list) => Some(&list.element),
        FieldTypeShape::ListFieldType(list) => Some(&list.element),
    }
}

/// Each level's type, from the field's own to the scalar inside.
pub fn levels(field_type: &FieldType) -> impl Iterator<Item = &FieldType> {
    std::iter::successors(Some(field_type), |level| element(level))
}

/// Bytes of one value of a fixed width, as hosts hold it; none for text and bytes.
pub fn width(scalar: ScalarType) -> Option<usize> {
    match scalar {
        ScalarType::U8 | ScalarType::I8 | ScalarType::Bool => Some(1),
        ScalarType::U16 | ScalarType::I16 => Some(2),
        ScalarType::U32 | ScalarType::I32 | ScalarType::F32 => Some(4),
        ScalarType::U64 | ScalarType::I64 | ScalarType::F64 | ScalarType::Datetime => Some(8),
        ScalarType::String | ScalarType::Bytes => None,
    }
}

/// The name of a type as the language of graphs has it, for messages.
pub(crate) fn spelled(field_type: &FieldType) -> String {
    match &field_type.shape {
        FieldTypeShape::ScalarFieldType(scalar) => format!("{:?}", scalar.scalar).to_uppercase(),
        FieldTypeShape::FixedListFieldType(list) => {
            format!("ARRAY<{}, {}>", spelled(&list.element), list.length)
        }
        FieldTypeShape::ListFieldType(list) => format!("VEC<{}>", spelled(&list.element)),
    }
}

/// The Arrow type of a field type.
///
/// # Errors
/// A fixed list that is longer than Arrow can say.
pub fn data_type(field_type: &FieldType) -> Result<DataType, Refusal> {
    Ok(match &field_type.shape {
        FieldTypeShape::ScalarFieldType(scalar) => match scalar.scalar {
            ScalarType::U8 => DataType::UInt8,
            ScalarType::I8 => DataType::Int8,
            ScalarType::U16 => DataType::UInt16,
            ScalarType::I16 => DataType::Int16,
            ScalarType::U32 => DataType::UInt32,
            ScalarType::I32 => DataType::Int32,
            ScalarType::U64 => DataType::UInt64,
            ScalarType::I64 => DataType::Int64,
            ScalarType::F32 => DataType::Float32,
            ScalarType::F64 => DataType::Float64,
            ScalarType::Bool => DataType::Boolean,
            ScalarType::String => DataType::Utf8,
            ScalarType::Bytes => DataType::Binary,
            ScalarType::Datetime => DataType::Timestamp(TimeUnit::Nanosecond, Some(UTC.into())),
        },
        FieldTypeShape::FixedListFieldType(list) => {
            DataType::FixedSizeList(item(&list.element)?, length(list.length)?)
        }
        FieldTypeShape::ListFieldType(list) => DataType::List(item(&list.element)?),
    })
}

/// The child field of a list of such elements.
///
/// # Errors
/// As [`data_type`].
pub fn item(element: &FieldType) -> Result<FieldRef, Refusal> {
    Ok(Arc::new(Field::new("item", data_type(element)?, false)))
}

/// The length of a fixed list as Arrow has it.
///
/// # Errors
/// As [`data_type`].
pub fn length(length: u32) -> Result<i32, Refusal> {
    i32::try_from(length).map_err(|_| {
        Refusal::Argument(format!(
            "a fixed list of {length} elements does not fit Arrow"
        ))
    })
}

/// The Arrow fields of an endpoint's fields.
///
/// # Errors
/// As [`data_type`].
pub fn arrow_fields(fields: &[RowField]) -> Result<Fields, Refusal> {
    fields
        .iter()
        .map(|field| {
            let data_type = data_type(&field.field_type)?;
            Ok(Field::new(&field.name, data_type, field.nullable))
        })
        .collect()
}

/// What differs first between the fields of a batch and those that are wanted.
pub fn difference(wanted: &[RowField], found: &[RowField]) -> Option<String> {
    for (index, (wanted, found)) in wanted.iter().zip(found).enumerate() {
        let name = &wanted.name;
        if wanted.name != found.name {
            let found = &found.name;
            return Some(format!(
                "field {index} is {found:?}, and {name:?} is wanted"
            ));
        }
        if wanted.field_type != found.field_type {
            let (wanted, found) = (spelled(&wanted.field_type), spelled(&found.field_type));
            return Some(format!(
                "the field {name:?} is {found}, and {wanted} is wanted"
            ));
        }
        if wanted.nullable != found.nullable {
            let wanted = if wanted.nullable {
                "OPTIONAL"
            } else {
                "required"
            };
            return Some(format!("the field {name:?} is not {wanted}"));
        }
        if wanted.sensitive != found.sensitive {
            let wanted = if wanted.sensitive {
                "sensitive"
            } else {
                "public"
            };
            return Some(format!("the field {name:?} is not {wanted}"));
        }
    }
    let (wanted, found) = (wanted.len(), found.len());
    (wanted != found).then(|| format!("there are {found} fields, and {wanted} are wanted"))
}
