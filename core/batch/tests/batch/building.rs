//! What a builder refuses, and what readers refuse.

use std::sync::Arc;

use nervix_batch::{Batch, Builder};
use nervix_wire::types::{RowField, ScalarType};

use super::{field, fixed, is_argument, is_type, list, nullable, scalar, schema};

fn builder(fields: Vec<RowField>, rows: usize) -> Builder {
    Builder::new(schema(fields), rows).unwrap()
}

fn one(field_type: nervix_wire::types::FieldType, rows: usize) -> Builder {
    builder(vec![nullable(field("a", field_type))], rows)
}

// rule: B-13
#[test]
fn columns_have_exactly_their_length() {
    let mut numbers = one(scalar(ScalarType::U32), 3);
    for length in [0, 3, 11, 13, 16] {
        is_argument(numbers.fixed(0, 0, &vec![0; length]));
    }
    is_argument(numbers.finish());
    numbers.fixed(0, 0, &[0; 12]).unwrap();
    for length in [0, 2, 4] {
        is_argument(numbers.states(0, &vec![1; length]));
    }
    let mut text = one(scalar(ScalarType::String), 2);
    is_argument(text.varlen(0, 0, [].into_iter(), b""));
    is_argument(text.varlen(0, 0, [0, 1].into_iter(), b"a"));
    is_argument(text.varlen(0, 0, [0, 1, 2, 3].into_iter(), b"abc"));
    text.varlen(0, 0, [0, 0, 0].into_iter(), b"").unwrap();
    let mut lists = one(list(scalar(ScalarType::U8)), 2);
    is_argument(lists.offsets(0, 0, [0, 1].into_iter()));
    lists.offsets(0, 0, [0, 1, 3].into_iter()).unwrap();
    is_argument(lists.finish());
    // How many elements there are is known at the end.
    lists.fixed(0, 1, &[1, 2]).unwrap();
    is_argument(lists.finish());
    lists.fixed(0, 1, &[1, 2, 3]).unwrap();
    assert_eq!(lists.finish().unwrap().cells(0, 1).unwrap(), 3);
    let mut arrays = one(fixed(fixed(scalar(ScalarType::U8), 2), 2), 2);
    is_argument(arrays.fixed(0, 2, &[0; 7]));
    arrays.fixed(0, 2, &[0; 8]).unwrap();
}

// rule: B-13
#[test]
fn offsets_begin_at_zero_never_decrease_and_end_with_the_data() {
    let mut text = one(scalar(ScalarType::Bytes), 2);
    for offsets in [[1, 2, 3], [0, 2, 1], [0, 1, 2], [0, 3, 4], [0, 1, u64::MAX]] {
        is_argument(text.varlen(0, 0, offsets.into_iter(), b"abc"));
    }
    text.varlen(0, 0, [0, 1, 3].into_iter(), b"abc").unwrap();
    let mut lists = one(list(scalar(ScalarType::U8)), 2);
    for offsets in [[1, 2, 3], [0, 2, 1], [0, 1, 1 << 31]] {
        is_argument(lists.offsets(0, 0, offsets.into_iter()));
    }
}

// rule: B-13, R-3
#[test]
fn nothing_is_converted() {
    let mut bools = one(scalar(ScalarType::Bool), 2);
    assert!(is_argument(bools.fixed(0, 0, &[1, 2])).contains("cell 1"));
    let mut text = one(scalar(ScalarType::String), 2);
    assert!(is_argument(text.varlen(0, 0, [0, 1, 2].into_iter(), b"a\xff")).contains("cell 1"));
    // Whole text that is cut inside a character is no text either.
    assert!(
        is_argument(text.varlen(0, 0, [0, 1, 2].into_iter(), "é".as_bytes())).contains("cell 0")
    );
    let mut bytes = one(scalar(ScalarType::Bytes), 2);
    bytes.varlen(0, 0, [0, 1, 2].into_iter(), b"a\xff").unwrap();
}

// rule: B-13, R-4
#[test]
fn only_nullable_fields_have_null_rows() {
    let mut both = builder(
        vec![
            field("required", scalar(ScalarType::U8)),
            nullable(field("optional", scalar(ScalarType::U8))),
        ],
        3,
    );
    let message = is_argument(both.states(0, &[1, 1, 2]));
    assert!(
        message.contains("required") && message.contains("row 2"),
        "{message}"
    );
    both.states(0, &[1, 1, 1]).unwrap();
    for state in [0, 3, 4, 255] {
        is_argument(both.states(1, &[1, state, 1]));
    }
    both.states(1, &[2, 1, 2]).unwrap();
    both.fixed(0, 0, &[1, 2, 3]).unwrap();
    // Without values for the second column nothing comes of it, and what was set stays.
    assert!(is_argument(both.finish()).contains("optional"));
    both.fixed(1, 0, &[4, 5, 6]).unwrap();
    let batch = both.finish().unwrap();
    assert_eq!(
        batch.states(1).unwrap().collect::<Vec<_>>(),
        [false, true, false]
    );
}

// rule: B-13
#[test]
fn each_level_takes_what_its_type_has() {
    let mut lists = one(list(fixed(scalar(ScalarType::U8), 2)), 1);
    is_type(lists.fixed(0, 0, &[0]));
    is_type(lists.fixed(0, 1, &[0]));
    is_type(lists.varlen(0, 0, [0, 0].into_iter(), b""));
    is_type(lists.varlen(0, 2, [0, 0].into_iter(), b""));
    is_type(lists.offsets(0, 1, [0, 0].into_iter()));
    is_type(lists.offsets(0, 2, [0, 0].into_iter()));
    is_argument(lists.fixed(0, 3, &[0]));
    is_argument(lists.offsets(0, 3, [0].into_iter()));
    is_argument(lists.fixed(1, 0, &[0]));
    is_argument(lists.varlen(1, 0, [0].into_iter(), b""));
    is_argument(lists.offsets(1, 0, [0].into_iter()));
    is_argument(lists.states(1, &[1]));
    let mut text = one(scalar(ScalarType::String), 1);
    is_type(text.fixed(0, 0, b"a"));
}

fn sample() -> Batch {
    let fields = vec![
        nullable(field("lists", list(fixed(scalar(ScalarType::U16), 2)))),
        field("text", list(scalar(ScalarType::String))),
    ];
    let mut builder = builder(fields, 3);
    builder.states(0, &[1, 2, 1]).unwrap();
    builder.offsets(0, 0, [0, 2, 3, 3].into_iter()).unwrap();
    let values: Vec<u8> = (1..=6_u16).flatten_bytes();
    builder.fixed(0, 2, &values).unwrap();
    builder.offsets(1, 0, [0, 0, 1, 3].into_iter()).unwrap();
    builder
        .varlen(1, 1, [0, 1, 1, 3].into_iter(), "xé".as_bytes())
        .unwrap();
    builder.finish().unwrap()
}

trait FlattenBytes {
    fn flatten_bytes(self) -> Vec<u8>;
}

impl<I: Iterator<Item = u16>> FlattenBytes for I {
    fn flatten_bytes(self) -> Vec<u8> {
        self.flat_map(u16::to_ne_bytes).collect()
    }
}

// rule: B-13
#[test]
fn a_batch_reads_level_by_level() {
    let batch = sample();
    assert_eq!(batch.rows(), 3);
    assert_eq!(batch.cells(0, 0).unwrap(), 3);
    assert_eq!(batch.cells(0, 1).unwrap(), 3);
    assert_eq!(batch.cells(0, 2).unwrap(), 6);
    assert_eq!(batch.offsets(0, 0).unwrap(), [0, 2, 3, 3]);
    let mut values = [0; 12];
    batch.write_fixed(0, 2, &mut values).unwrap();
    assert_eq!(values.to_vec(), (1..=6_u16).flatten_bytes());
    let text = batch.varlen(1, 1).unwrap();
    assert_eq!(text.offsets().collect::<Vec<_>>(), [0, 1, 1, 3]);
    assert_eq!(text.data(), "xé".as_bytes());
}

// rule: B-13
#[test]
fn a_batch_refuses_what_is_not_there() {
    let batch = sample();
    is_argument(batch.cells(2, 0));
    is_argument(batch.cells(0, 3));
    is_argument(batch.cells(usize::MAX, usize::MAX));
    is_argument(batch.states(2).map(|_| ()));
    is_argument(batch.offsets(2, 0));
    is_argument(batch.offsets(0, 3));
    is_type(batch.offsets(0, 1));
    is_type(batch.offsets(0, 2));
    is_type(batch.fixed_len(0, 0));
    is_type(batch.fixed_len(1, 1));
    is_argument(batch.fixed_len(0, 3));
    is_argument(batch.write_fixed(0, 2, &mut [0; 11]));
    is_type(batch.varlen(0, 2));
    is_type(batch.varlen(1, 0));
    is_argument(batch.varlen(1, 2));
}

#[test]
fn no_batch_has_more_rows_than_a_stream_says() {
    let schema = schema(vec![field(
        "a",
        fixed(scalar(ScalarType::U64), u32::MAX >> 1),
    )]);
    is_argument(Builder::new(Arc::clone(&schema), usize::MAX));
    let mut most = Builder::new(schema, u32::MAX as usize).unwrap();
    is_argument(most.fixed(0, 1, &[0; 8]));
    is_argument(most.finish());
}

#[test]
fn a_fixed_list_longer_than_arrow_says_has_no_builder() {
    let schema = schema(vec![field("a", fixed(scalar(ScalarType::U8), u32::MAX))]);
    is_argument(Builder::new(schema, 0));
}
