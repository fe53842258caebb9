//! Expected fields: nx_fields.
//!
//! Owns how a list of fields is described step by step, and what no field can be. Knows nothing of who expects them.

use nervix_wire::types::{
    FieldType, FieldTypeShape, FixedListFieldType, ListFieldType, RowField, ScalarFieldType,
    ScalarType,
};

use crate::arguments::{contained, free, guarded, invalid, required_text, Outcome};
use crate::errors::ErrorObject;

/// The most lists around a scalar.
const MAX_LISTS: usize = 32;

const FIXED_LIST: i32 = 15;
const LIST: i32 = 16;

/// A list type, from the outermost on.
#[derive(Debug, Clone, Copy)]
enum List {
    Fixed(u32),
    Any,
}

/// A field, complete once its innermost type is a scalar.
#[derive(Debug)]
struct Draft {
    name: String,
    lists: Vec<List>,
    scalar: Option<ScalarType>,
    nullable: bool,
    sensitive: bool,
}

enum Level {
    List(List),
    Scalar(ScalarType),
}

/// nx_fields.
#[derive(Debug, Default)]
pub struct FieldsObject {
    fields: Vec<Draft>,
}

fn scalar(number: i32) -> Option<ScalarType> {
    Some(match number {
        1 => ScalarType::U8,
        2 => ScalarType::I8,
        3 => ScalarType::U16,
        4 => ScalarType::I16,
        5 => ScalarType::U32,
        6 => ScalarType::I32,
        7 => ScalarType::U64,
        8 => ScalarType::I64,
        9 => ScalarType::F32,
        10 => ScalarType::F64,
        11 => ScalarType::Bool,
        12 => ScalarType::String,
        13 => ScalarType::Bytes,
        14 => ScalarType::Datetime,
        _ => return None,
    })
}

/// The level that a host describes by an nx_type and a length.
fn level(number: i32, length: u32) -> Outcome<Level> {
    if number == FIXED_LIST {
        return match i32::try_from(length) {
            Ok(1..) => Ok(Level::List(List::Fixed(length))),
            _ => Err(invalid(format!(
                "a fixed list of {length} elements cannot be: its length is 1 to {}",
                i32::MAX
            ))),
        };
    }
    let level = match (number, scalar(number)) {
        (LIST, _) => Level::List(List::Any),
        (_, Some(scalar)) => Level::Scalar(scalar),
        (other, None) => return Err(invalid(format!("there is no type {other}"))),
    };
    match length {
        0 => Ok(level),
        length => Err(invalid(format!(
            "length is {length}: it is 0 for every type but a fixed list"
        ))),
    }
}

impl Draft {
    fn put(&mut self, level: Level) -> Outcome {
        match level {
            Level::Scalar(scalar) => self.scalar = Some(scalar),
            Level::List(_) if self.lists.len() >= MAX_LISTS => {
                return Err(invalid(format!(
                    "the field {:?} nests more than {MAX_LISTS} lists",
                    self.name
                )))
            }
            Level::List(list) => self.lists.push(list),
        }
        Ok(())
    }

    fn complete(&self) -> Outcome<RowField> {
        let scalar = self.scalar.ok_or_else(|| {
            invalid(format!(
                "the field {:?} is a list without a type of its elements: complete it with nx_fields_element",
                self.name
            ))
        })?;
        let shape = FieldTypeShape::ScalarFieldType(ScalarFieldType { scalar });
        let innermost = FieldType { shape };
        let field_type = self.lists.iter().rfold(innermost, |element, list| {
            let shape = match *list {
                List::Fixed(length) => {
                    FieldTypeShape::FixedListFieldType(Box::new(FixedListFieldType {
                        element,
                        length,
                    }))
                }
                List::Any => FieldTypeShape::ListFieldType(Box::new(ListFieldType { element })),
            };
            FieldType { shape }
        });
        Ok(RowField {
            name: self.name.clone(),
            field_type,
            nullable: self.nullable,
            sensitive: self.sensitive,
        })
    }
}

impl FieldsObject {
    /// The fields, once each is complete.
    pub(crate) fn complete(&self) -> Outcome<Vec<RowField>> {
        self.fields.iter().map(Draft::complete).collect()
    }
}

#[no_mangle]
pub extern "C" fn nx_fields_new() -> *mut FieldsObject {
    contained(std::ptr::null_mut(), || {
        Box::into_raw(Box::<FieldsObject>::default())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_fields_add(
    fields: *mut FieldsObject,
    name: *const u8,
    name_len: usize,
    r#type: i32,
    length: u32,
    nullable: bool,
    sensitive: bool,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes fields of this library, which no other call uses, or NULL.
        let object = unsafe { fields.as_mut() }.ok_or_else(|| invalid("fields is NULL"))?;
        // SAFETY: the host's buffers are readable during the call.
        let name = unsafe { required_text("name", name, name_len) }?;
        if let Some(last) = object.fields.last() {
            last.complete()?;
        }
        let mut draft = Draft {
            name: name.to_owned(),
            lists: Vec::new(),
            scalar: None,
            nullable,
            sensitive,
        };
        draft.put(level(r#type, length)?)?;
        object.fields.push(draft);
        Ok(())
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_fields_element(
    fields: *mut FieldsObject,
    r#type: i32,
    length: u32,
) -> *mut ErrorObject {
    guarded(|| {
        // SAFETY: the host passes fields of this library, which no other call uses, or NULL.
        let object = unsafe { fields.as_mut() }.ok_or_else(|| invalid("fields is NULL"))?;
        match object.fields.last_mut() {
            Some(draft) if draft.scalar.is_none() => draft.put(level(r#type, length)?),
            Some(draft) => Err(invalid(format!(
                "the field {:?} is complete: only a list has elements",
                draft.name
            ))),
            None => Err(invalid("there is no field yet: add one with nx_fields_add")),
        }
    })
}

/// # Safety
/// As the header says.
#[no_mangle]
pub unsafe extern "C" fn nx_fields_free(fields: *mut FieldsObject) {
    // SAFETY: the host passes fields of this library that it has not freed, or NULL.
    unsafe { free(fields) }
}
