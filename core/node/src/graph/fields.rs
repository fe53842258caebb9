//! Declared fields as the protocol describes them and as Arrow holds them.

use std::sync::Arc;

use arrow_schema::{DataType, Field as ArrowField, Schema as ArrowSchema, SchemaRef, TimeUnit};
use nervix_wire::types as wire;

use crate::lang::ast::{Field, FieldType, Scalar};

/// The time zone of every DATETIME column, spelled as the protocol wants it.
pub const UTC: &str = "+00:00";

fn wire_scalar(scalar: Scalar) -> wire::ScalarType {
    match scalar {
        Scalar::U8 => wire::ScalarType::U8,
        Scalar::I8 => wire::ScalarType::I8,
        Scalar::U16 => wire::ScalarType::U16,
        Scalar::I16 => wire::ScalarType::I16,
        Scalar::U32 => wire::ScalarType::U32,
        Scalar::I32 => wire::ScalarType::I32,
        Scalar::U64 => wire::ScalarType::U64,
        Scalar::I64 => wire::ScalarType::I64,
        Scalar::F32 => wire::ScalarType::F32,
        Scalar::F64 => wire::ScalarType::F64,
        Scalar::Bool => wire::ScalarType::Bool,
        Scalar::String => wire::ScalarType::String,
        Scalar::Bytes => wire::ScalarType::Bytes,
        Scalar::Datetime => wire::ScalarType::Datetime,
    }
}

fn wire_type(field_type: &FieldType) -> wire::FieldType {
    let shape = match field_type {
        FieldType::Scalar(scalar) => wire::FieldTypeShape::ScalarFieldType(wire::ScalarFieldType {
            scalar: wire_scalar(*scalar),
        }),
        FieldType::FixedList { element, length } => {
            wire::FieldTypeShape::FixedListFieldType(Box::new(wire::FixedListFieldType {
                element: wire_type(element),
                length: *length,
            }))
        }
        FieldType::List(element) => {
            wire::FieldTypeShape::ListFieldType(Box::new(wire::ListFieldType {
                element: wire_type(element),
            }))
        }
    };
    wire::FieldType { shape }
}

/// The fields as a RowSchema or an endpoint's description lists them.
pub fn wire_fields(fields: &[Field]) -> Vec<wire::RowField> {
    fields
        .iter()
        .map(|field| wire::RowField {
            name: field.name.text.clone(),
            field_type: wire_type(&field.field_type),
            nullable: field.optional,
            sensitive: field.sensitive,
        })
        .collect()
}

/// The Arrow type of a field.
pub fn arrow_type(field_type: &FieldType) -> DataType {
    match field_type {
        FieldType::Scalar(scalar) => match scalar {
            Scalar::U8 => DataType::UInt8,
            Scalar::I8 => DataType::Int8,
            Scalar::U16 => DataType::UInt16,
            Scalar::I16 => DataType::Int16,
            Scalar::U32 => DataType::UInt32,
            Scalar::I32 => DataType::Int32,
            Scalar::U64 => DataType::UInt64,
            Scalar::I64 => DataType::Int64,
            Scalar::F32 => DataType::Float32,
            Scalar::F64 => DataType::Float64,
            Scalar::Bool => DataType::Boolean,
            Scalar::String => DataType::Utf8,
            Scalar::Bytes => DataType::Binary,
            Scalar::Datetime => DataType::Timestamp(TimeUnit::Nanosecond, Some(UTC.into())),
        },
        FieldType::FixedList { element, length } => {
            DataType::FixedSizeList(item_field(element), fixed_size(*length))
        }
        FieldType::List(element) => DataType::List(item_field(element)),
    }
}

/// The child of a list.
pub fn item_field(element: &FieldType) -> Arc<ArrowField> {
    Arc::new(ArrowField::new("item", arrow_type(element), false))
}

/// Arrow counts fixed lists in 31 bits; the catalog refuses longer ones.
pub fn fixed_size(length: u32) -> i32 {
    i32::try_from(length).unwrap_or(i32::MAX)
}

/// The schema of every batch of a relay or an endpoint.
pub fn arrow_schema(fields: &[Field]) -> SchemaRef {
    let fields: Vec<ArrowField> = fields
        .iter()
        .map(|field| {
            ArrowField::new(
                field.name.text.as_str(),
                arrow_type(&field.field_type),
                field.optional,
            )
        })
        .collect();
    Arc::new(ArrowSchema::new(fields))
}
