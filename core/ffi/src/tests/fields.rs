//! Expected fields, step by step.

use std::ptr::{null, null_mut};

use nervix_wire::types::{FieldType, RowField, ScalarType};

use super::rows::{field, fixed, list, nullable, scalar};
use super::{kind, INVALID_ARGUMENT};
use crate::fields::*;

struct Fields(*mut FieldsObject);

impl Drop for Fields {
    fn drop(&mut self) {
        // SAFETY: the fields are live ones, freed here once.
        unsafe { nx_fields_free(self.0) }
    }
}

impl Fields {
    fn new() -> Self {
        Self(nx_fields_new())
    }

    fn add(&self, name: &[u8], number: i32, length: u32) -> i32 {
        // SAFETY: the fields are live ones, and the name is readable.
        kind(unsafe {
            nx_fields_add(
                self.0,
                name.as_ptr(),
                name.len(),
                number,
                length,
                false,
                false,
            )
        })
    }

    fn element(&self, number: i32, length: u32) -> i32 {
        // SAFETY: the fields are live ones.
        kind(unsafe { nx_fields_element(self.0, number, length) })
    }

    fn complete(&self) -> Result<Vec<RowField>, i32> {
        // SAFETY: the fields are live ones.
        unsafe { &*self.0 }
            .complete()
            .map_err(|error| error.kind as i32)
    }
}

const FIXED_LIST: i32 = 15;
const LIST: i32 = 16;

// rule: B-12
#[test]
fn every_type_has_its_number() {
    let scalars = [
        ScalarType::U8,
        ScalarType::I8,
        ScalarType::U16,
        ScalarType::I16,
        ScalarType::U32,
        ScalarType::I32,
        ScalarType::U64,
        ScalarType::I64,
        ScalarType::F32,
        ScalarType::F64,
        ScalarType::Bool,
        ScalarType::String,
        ScalarType::Bytes,
        ScalarType::Datetime,
    ];
    let fields = Fields::new();
    for number in 1..=14 {
        assert_eq!(fields.add(b"a", number, 0), 0);
    }
    let found: Vec<FieldType> = fields
        .complete()
        .unwrap()
        .into_iter()
        .map(|field| field.field_type)
        .collect();
    assert_eq!(found, scalars.map(scalar));
}

// rule: B-12
#[test]
fn lists_are_completed_from_the_outside_in() {
    let fields = Fields::new();
    assert_eq!(fields.add("ä\0".as_bytes(), LIST, 0), 0);
    assert_eq!(fields.complete().unwrap_err(), INVALID_ARGUMENT);
    assert_eq!(fields.add(b"b", 1, 0), INVALID_ARGUMENT);
    assert_eq!(fields.element(FIXED_LIST, 3), 0);
    assert_eq!(fields.add(b"b", 1, 0), INVALID_ARGUMENT);
    assert_eq!(fields.element(12, 0), 0);
    assert_eq!(fields.element(12, 0), INVALID_ARGUMENT);
    // SAFETY: the fields are live ones, and the name is readable.
    let added = unsafe { nx_fields_add(fields.0, b"b".as_ptr(), 1, 1, 0, true, true) };
    assert_eq!(kind(added), 0);
    let second = RowField {
        sensitive: true,
        ..nullable("b", scalar(ScalarType::U8))
    };
    let first = field("ä\0", list(fixed(scalar(ScalarType::String), 3)));
    assert_eq!(fields.complete().unwrap(), [first, second]);
}

// rule: B-12
#[test]
fn what_no_field_can_be_is_refused_and_changes_nothing() {
    let fields = Fields::new();
    assert_eq!(fields.element(1, 0), INVALID_ARGUMENT);
    for (number, length) in [
        (0, 0),
        (17, 0),
        (-1, 0),
        (1, 1),
        (LIST, 1),
        (FIXED_LIST, 0),
        (FIXED_LIST, 1 << 31),
        (FIXED_LIST, u32::MAX),
    ] {
        assert_eq!(fields.add(b"a", number, length), INVALID_ARGUMENT);
    }
    assert_eq!(fields.add(b"", 1, 0), INVALID_ARGUMENT);
    assert_eq!(fields.add(b"\xff", 1, 0), INVALID_ARGUMENT);
    assert_eq!(fields.add(b"a", FIXED_LIST, i32::MAX as u32), 0);
    assert_eq!(fields.element(FIXED_LIST, 0), INVALID_ARGUMENT);
    assert_eq!(fields.element(99, 0), INVALID_ARGUMENT);
    assert_eq!(fields.element(1, 0), 0);
    let only = field("a", fixed(scalar(ScalarType::U8), i32::MAX as u32));
    assert_eq!(fields.complete().unwrap(), [only]);
}

// rule: B-12
#[test]
fn thirty_two_lists_nest_and_no_more() {
    let fields = Fields::new();
    assert_eq!(fields.add(b"a", LIST, 0), 0);
    for _ in 1..32 {
        assert_eq!(fields.element(LIST, 0), 0);
    }
    assert_eq!(fields.element(LIST, 0), INVALID_ARGUMENT);
    assert_eq!(fields.element(FIXED_LIST, 1), INVALID_ARGUMENT);
    assert_eq!(fields.element(1, 0), 0);
    assert_eq!(fields.complete().unwrap().len(), 1);
}

#[test]
fn null_fields_are_refused() {
    // SAFETY: NULL is what is tested.
    unsafe {
        nx_fields_free(null_mut());
        let added = nx_fields_add(null_mut(), b"a".as_ptr(), 1, 1, 0, false, false);
        assert_eq!(kind(added), INVALID_ARGUMENT);
        assert_eq!(kind(nx_fields_element(null_mut(), 1, 0)), INVALID_ARGUMENT);
        let fields = Fields::new();
        for len in [0, 1] {
            let added = nx_fields_add(fields.0, null(), len, 1, 0, false, false);
            assert_eq!(kind(added), INVALID_ARGUMENT);
        }
    }
}
