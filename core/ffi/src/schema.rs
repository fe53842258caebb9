//! Schemas: nx_schema.
//!
//! Owns the numbers of types and parts, and how nested lists read as levels.

use std::sync::Arc;

use nervix_batch::levels;
use nervix_wire::types::{FieldType, FieldTypeShape, RowField, RowSchema, ScalarType};
use nervix_wire::Part;

use crate::arguments::{
    contained, free, guarded, invalid, object, put_buffer, BufferPlace, Outcome, Place,
};
use crate::errors::ErrorObject;

/// nx_schema.
pub struct SchemaObject {
    pub(crate) schema: Arc<RowSchema>,
}

impl SchemaObject {
    pub(crate) fn hand_out(schema: Arc<RowSchema>) -> *mut Self {
        Box::into_raw(Box::new(Self { schema }))
    }
}

/// The part that an nx_part names.
pub(crate) fn part(number: i32) -> Outcome<Part> {
    match number {
        1 => Ok(Part::Rows),
        2 => Ok(Part::BranchKey),
        other => Err(invalid(format!(
            "there is no part {other}: 1 is the rows, 2 the branch key"
        ))),
    }
}

fn fields(schema: &RowSchema, part: Part) -> &[RowField] {
    match part {
        Part::Rows => &schema.fields,
        Part::BranchKey => schema.branch.as_ref().map_or(&[], |branch| &branch.fields),
    }
}

fn field(schema: &RowSchema, number: i32, index: usize) -> Outcome<&RowField> {
    let fields = fields(schema, part(number)?);
    fields.get(index).ok_or_else(|| {
        invalid(format!(
            "there is no field {index}: the part has {}",
            fields.len()
        ))
    })
}

/// The nx_type of the outermost level, and its length: the element count of a fixed list, 0 otherwise.
fn outermost(field_type: &FieldType) -> (i32, u32) {
    match &field_type.shape {
        FieldTypeShape::ScalarFieldType(scalar) => {
            let number = match scalar.scalar {
                ScalarType::U8 => 1,
                ScalarType::I8 => 2,
                ScalarType::U16 => 3,
                ScalarType::I16 => 4,
                ScalarType::U32 => 5,
                ScalarType::I32 => 6,
                ScalarType::U64 => 7,
                ScalarType::I64 => 8,
                ScalarType::F32 => 9,
                ScalarType::F64 => 10,
                ScalarType::Bool => 11,
                ScalarType::String => 12,
                ScalarType::Bytes => 13,
                ScalarType::Datetime => 14,
            };
            (number, 0)
        }
        FieldTypeShape::FixedListFieldType(list) => (15, list.length),
        FieldTypeShape::ListFieldType(_) => (16, 0),
    }
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_schema_field_count(
    schema: *const SchemaObject,
    part: i32,
    count: *mut usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a schema of this library, or NULL.
        let schema = &unsafe { object("schema", schema) }?.schema;
        let count = Place::new("count", count)?;
        let fields = fields(schema, self::part(part)?);
        // SAFETY: the host's place can be written to.
        unsafe { count.write(fields.len()) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_schema_field(
    schema: *const SchemaObject,
    part: i32,
    index: usize,
    name: *mut *const u8,
    name_len: *mut usize,
    r#type: *mut i32,
    nullable: *mut bool,
    sensitive: *mut bool,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a schema of this library, or NULL.
        let schema = &unsafe { object("schema", schema) }?.schema;
        let (name, kind) = (
            BufferPlace::new("name", name, name_len)?,
            Place::new("type", r#type)?,
        );
        let (nullable, sensitive) = (
            Place::new("nullable", nullable)?,
            Place::new("sensitive", sensitive)?,
        );
        let field = field(schema, part, index)?;
        // SAFETY: the host's places can be written to.
        unsafe {
            name.write(field.name.as_bytes());
            kind.write(outermost(&field.field_type).0);
            nullable.write(field.nullable);
            sensitive.write(field.sensitive);
        }
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_schema_field_levels(
    schema: *const SchemaObject,
    part: i32,
    index: usize,
    levels: *mut usize,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a schema of this library, or NULL.
        let schema = &unsafe { object("schema", schema) }?.schema;
        let out = Place::new("levels", levels)?;
        let count = self::levels(&field(schema, part, index)?.field_type).count();
        // SAFETY: the host's place can be written to.
        unsafe { out.write(count) };
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_schema_field_level(
    schema: *const SchemaObject,
    part: i32,
    index: usize,
    level: usize,
    r#type: *mut i32,
    length: *mut u32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes a schema of this library, or NULL.
        let schema = &unsafe { object("schema", schema) }?.schema;
        let (kind, length) = (Place::new("type", r#type)?, Place::new("length", length)?);
        let field = field(schema, part, index)?;
        let Some(found) = levels(&field.field_type).nth(level) else {
            let count = levels(&field.field_type).count();
            return Err(invalid(format!(
                "there is no level {level}: the field has {count}"
            )));
        };
        let (number, count) = outermost(found);
        // SAFETY: the host's places can be written to.
        unsafe {
            kind.write(number);
            length.write(count);
        }
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_schema_branch(
    schema: *const SchemaObject,
    name: *mut *const u8,
    name_len: *mut usize,
) -> bool {
    contained(false, || {
        // SAFETY: the host passes a schema of this library, or NULL.
        let Some(branch) =
            unsafe { schema.as_ref() }.and_then(|object| object.schema.branch.as_ref())
        else {
            return false;
        };
        // SAFETY: the host's places can be written to.
        unsafe { put_buffer(name, name_len, branch.branch.as_bytes()) };
        true
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_schema_free(schema: *mut SchemaObject) {
    // SAFETY: the host passes a schema of this library that it has not freed, or NULL.
    unsafe { free(schema) }
}
