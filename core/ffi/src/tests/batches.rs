//! Batches and builders through the interface, and as Arrow.

use std::ptr::{null, null_mut};
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int32Array, StringArray, StructArray};
use arrow_data::ffi::FFI_ArrowArray;
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{DataType, Field};
use nervix_batch::Batch;
use nervix_wire::types::{RowField, ScalarType};

use super::rows::{field, fixed, list, nullable, scalar, schema};
use super::{borrowed, kind, take, INVALID_ARGUMENT, PROTOCOL, TYPE};
use crate::arguments::guarded;
use crate::batch::*;
use crate::builder::*;
use crate::schema::{nx_schema_field_count, nx_schema_free, SchemaObject};

struct Schema(*mut SchemaObject);

impl Schema {
    fn new(fields: Vec<RowField>) -> Self {
        Self(SchemaObject::hand_out(Arc::new(schema(fields))))
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        // SAFETY: the schema is a live one, freed here once.
        unsafe { nx_schema_free(self.0) }
    }
}

struct Owned(*mut Batch);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the batch is a live one, and this its reference.
        unsafe { nx_batch_release(self.0) }
    }
}

impl Owned {
    fn ipc(&self) -> Vec<u8> {
        let (mut bytes, mut len) = (null(), 0);
        // SAFETY: the batch is a live one, and the places can be written to.
        unsafe {
            assert_eq!(kind(nx_batch_ipc(self.0, &mut bytes, &mut len)), 0);
            borrowed(bytes, len).to_vec()
        }
    }

    fn states(&self, column: usize, rows: usize) -> Vec<u8> {
        let mut states = vec![0; rows];
        // SAFETY: the batch is a live one, and the buffer as long as it says.
        let read = unsafe { nx_batch_states(self.0, column, states.as_mut_ptr(), rows) };
        assert_eq!(kind(read), 0);
        states
    }

    fn offsets(&self, column: usize, level: usize, cells: usize) -> Vec<u64> {
        let mut offsets = vec![0; cells + 1];
        // SAFETY: the batch is a live one, and the buffer as long as it says.
        let read =
            unsafe { nx_batch_offsets(self.0, column, level, offsets.as_mut_ptr(), cells + 1) };
        assert_eq!(kind(read), 0);
        offsets
    }

    fn fixed(&self, column: usize, level: usize, len: usize) -> Vec<u8> {
        let mut values = vec![0; len];
        // SAFETY: the batch is a live one, and the buffer as long as it says.
        let read =
            unsafe { nx_batch_fixed(self.0, column, level, values.as_mut_ptr().cast(), len) };
        assert_eq!(kind(read), 0);
        values
    }
}

fn sample_schema() -> Schema {
    Schema::new(vec![
        nullable("lists", list(fixed(scalar(ScalarType::U16), 2))),
        field("text", scalar(ScalarType::String)),
        nullable("flag", scalar(ScalarType::Bool)),
    ])
}

/// Fills a builder of three rows of the sample schema.
unsafe fn fill(builder: *mut BuilderObject) {
    let (ends, text) = ([0_u64, 1, 1, 3], "xé");
    let lists = [0_u64, 2, 2, 3];
    let values: Vec<u8> = (1..=6_u16).flat_map(u16::to_ne_bytes).collect();
    // SAFETY: the builder is a live one, and the buffers as long as they say.
    unsafe {
        let states = [1_u8, 2, 1];
        assert_eq!(
            kind(nx_batch_builder_states(builder, 0, states.as_ptr(), 3)),
            0
        );
        assert_eq!(
            kind(nx_batch_builder_offsets(builder, 0, 0, lists.as_ptr(), 4)),
            0
        );
        let set = nx_batch_builder_fixed(builder, 0, 2, values.as_ptr().cast(), values.len());
        assert_eq!(kind(set), 0);
        let set =
            nx_batch_builder_varlen(builder, 1, 0, ends.as_ptr(), 4, text.as_ptr(), text.len());
        assert_eq!(kind(set), 0);
        assert_eq!(
            kind(nx_batch_builder_fixed(
                builder,
                2,
                0,
                [1_u8, 0, 1].as_ptr().cast(),
                3
            )),
            0
        );
    }
}

fn sample() -> Owned {
    let schema = sample_schema();
    let (mut builder, mut batch) = (null_mut(), null_mut());
    // SAFETY: the objects are live ones, and the places can be written to.
    unsafe {
        assert_eq!(kind(nx_batch_builder_new(schema.0, 3, &mut builder)), 0);
        fill(builder);
        assert_eq!(kind(nx_batch_builder_finish(builder, &mut batch)), 0);
        nx_batch_builder_free(builder);
    }
    Owned(batch)
}

// rule: B-13
#[test]
fn a_built_batch_reads_as_it_was_set() {
    let batch = sample();
    let mut schema = null_mut();
    let mut count = 0;
    // SAFETY: the objects are live ones, and the places can be written to.
    unsafe {
        assert_eq!(nx_batch_row_count(batch.0), 3);
        assert_eq!(kind(nx_batch_schema(batch.0, &mut schema)), 0);
        assert_eq!(kind(nx_schema_field_count(schema, 1, &mut count)), 0);
        assert_eq!(count, 3);
        nx_schema_free(schema);
        for (level, cells) in [(0, 3), (1, 3), (2, 6)] {
            assert_eq!(kind(nx_batch_cells(batch.0, 0, level, &mut count)), 0);
            assert_eq!(count, cells);
        }
    }
    assert_eq!(batch.states(0, 3), [1, 2, 1]);
    assert_eq!(batch.states(2, 3), [1, 1, 1]);
    assert_eq!(batch.offsets(0, 0, 3), [0, 2, 2, 3]);
    let values: Vec<u8> = (1..=6_u16).flat_map(u16::to_ne_bytes).collect();
    assert_eq!(batch.fixed(0, 2, 12), values);
    assert_eq!(batch.fixed(2, 0, 3), [1, 0, 1]);
    let (mut offsets, mut data, mut len) = ([9; 4], [0; 8], 0);
    // SAFETY: the batch is a live one, and the buffers as long as they say.
    unsafe {
        let mut varlen = |data, capacity, len| {
            kind(nx_batch_varlen(
                batch.0,
                1,
                0,
                offsets.as_mut_ptr(),
                4,
                data,
                capacity,
                len,
            ))
        };
        assert_eq!(varlen(null_mut(), 0, &mut len), 0);
        assert_eq!(len, 3);
        len = 0;
        assert_eq!(varlen(data.as_mut_ptr(), 2, &mut len), INVALID_ARGUMENT);
        assert_eq!(len, 3);
        assert_eq!(varlen(data.as_mut_ptr(), 8, &mut len), 0);
        assert_eq!(varlen(data.as_mut_ptr(), 8, null_mut()), INVALID_ARGUMENT);
    }
    assert_eq!((offsets, &data[..3]), ([0, 1, 1, 3], "xé".as_bytes()));
}

// rule: B-13
#[test]
fn readers_refuse_wrong_places_and_types() {
    let batch = sample();
    let (mut bytes, mut offsets, mut count) = ([0_u8; 64], [0_u64; 8], 0);
    // SAFETY: the batch is a live one, and the buffers as long as they say.
    unsafe {
        let values = bytes.as_mut_ptr().cast();
        for (error, wanted) in [
            (nx_batch_cells(batch.0, 3, 0, &mut count), INVALID_ARGUMENT),
            (nx_batch_cells(batch.0, 0, 3, &mut count), INVALID_ARGUMENT),
            (nx_batch_cells(batch.0, 0, 0, null_mut()), INVALID_ARGUMENT),
            (
                nx_batch_states(batch.0, 3, bytes.as_mut_ptr(), 3),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_states(batch.0, 0, bytes.as_mut_ptr(), 2),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_states(batch.0, 0, bytes.as_mut_ptr(), 4),
                INVALID_ARGUMENT,
            ),
            (nx_batch_states(batch.0, 0, null_mut(), 3), INVALID_ARGUMENT),
            (
                nx_batch_offsets(batch.0, 0, 0, offsets.as_mut_ptr(), 3),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_offsets(batch.0, 0, 0, null_mut(), 4),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_offsets(batch.0, 0, 1, offsets.as_mut_ptr(), 4),
                TYPE,
            ),
            (
                nx_batch_offsets(batch.0, 1, 0, offsets.as_mut_ptr(), 4),
                TYPE,
            ),
            (
                nx_batch_offsets(batch.0, 1, 1, offsets.as_mut_ptr(), 4),
                INVALID_ARGUMENT,
            ),
            (nx_batch_fixed(batch.0, 0, 2, values, 11), INVALID_ARGUMENT),
            (
                nx_batch_fixed(batch.0, 0, 2, null_mut(), 12),
                INVALID_ARGUMENT,
            ),
            (nx_batch_fixed(batch.0, 0, 0, values, 12), TYPE),
            (nx_batch_fixed(batch.0, 1, 0, values, 3), TYPE),
            (nx_batch_fixed(batch.0, 2, 1, values, 3), INVALID_ARGUMENT),
            (
                nx_batch_varlen(
                    batch.0,
                    2,
                    0,
                    offsets.as_mut_ptr(),
                    4,
                    null_mut(),
                    0,
                    &mut count,
                ),
                TYPE,
            ),
            (
                nx_batch_varlen(
                    batch.0,
                    1,
                    0,
                    offsets.as_mut_ptr(),
                    3,
                    values.cast(),
                    64,
                    &mut count,
                ),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_varlen(batch.0, 1, 0, null_mut(), 4, values.cast(), 64, &mut count),
                INVALID_ARGUMENT,
            ),
        ] {
            assert_eq!(kind(error), wanted);
        }
    }
}

// rule: B-13
#[test]
fn a_builder_refuses_and_keeps_what_was_set() {
    let schema = sample_schema();
    let (mut builder, mut batch) = (null_mut(), null_mut());
    let ends = [0_u64, 1, 0, 3];
    // SAFETY: the objects are live ones, and the buffers as long as they say.
    unsafe {
        assert_eq!(kind(nx_batch_builder_new(schema.0, 3, &mut builder)), 0);
        assert_eq!(
            kind(nx_batch_builder_finish(builder, &mut batch)),
            INVALID_ARGUMENT
        );
        fill(builder);
        for (error, wanted) in [
            (
                nx_batch_builder_states(builder, 1, [1_u8, 2, 1].as_ptr(), 3),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_states(builder, 0, [1_u8, 3, 1].as_ptr(), 3),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_states(builder, 0, null(), 3),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_states(builder, 0, null(), 0),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_offsets(builder, 0, 0, ends.as_ptr(), 4),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_offsets(builder, 0, 0, null(), 4),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_offsets(builder, 0, 0, null(), 0),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_offsets(builder, 0, 0, ends.as_ptr(), usize::MAX),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_offsets(builder, 0, 1, ends.as_ptr(), 4),
                TYPE,
            ),
            (
                nx_batch_builder_fixed(builder, 2, 0, [0_u8, 1, 2].as_ptr().cast(), 3),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_fixed(builder, 2, 0, null(), 3),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_fixed(builder, 1, 0, [0_u8; 3].as_ptr().cast(), 3),
                TYPE,
            ),
            (
                nx_batch_builder_varlen(
                    builder,
                    1,
                    0,
                    [0_u64, 1, 2, 3].as_ptr(),
                    4,
                    [0xff_u8; 3].as_ptr(),
                    3,
                ),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_varlen(builder, 1, 0, [0_u64, 1, 2, 3].as_ptr(), 4, null(), 3),
                INVALID_ARGUMENT,
            ),
            (
                nx_batch_builder_finish(builder, null_mut()),
                INVALID_ARGUMENT,
            ),
        ] {
            assert_eq!(kind(error), wanted);
        }
        assert_eq!(kind(nx_batch_builder_finish(builder, &mut batch)), 0);
        nx_batch_builder_free(builder);
    }
    assert_eq!(Owned(batch).ipc(), sample().ipc());
}

// rule: B-13
#[test]
fn a_batch_without_rows_needs_no_buffers() {
    let schema = Schema::new(vec![
        nullable("a", scalar(ScalarType::I64)),
        field("b", scalar(ScalarType::Bytes)),
    ]);
    let (mut builder, mut batch) = (null_mut(), null_mut());
    // SAFETY: the objects are live ones, and the buffers as long as they say.
    unsafe {
        assert_eq!(kind(nx_batch_builder_new(schema.0, 0, &mut builder)), 0);
        assert_eq!(kind(nx_batch_builder_states(builder, 0, null(), 0)), 0);
        assert_eq!(kind(nx_batch_builder_fixed(builder, 0, 0, null(), 0)), 0);
        let set = nx_batch_builder_varlen(builder, 1, 0, [0_u64].as_ptr(), 1, null(), 0);
        assert_eq!(kind(set), 0);
        assert_eq!(kind(nx_batch_builder_finish(builder, &mut batch)), 0);
        nx_batch_builder_free(builder);
        let batch = Owned(batch);
        assert_eq!(kind(nx_batch_states(batch.0, 0, null_mut(), 0)), 0);
        assert_eq!(kind(nx_batch_fixed(batch.0, 0, 0, null_mut(), 0)), 0);
        assert!(!batch.ipc().is_empty());
    }
}

#[test]
fn null_handles_are_refused_or_nothing() {
    // SAFETY: NULL is what is tested.
    unsafe {
        assert_eq!(nx_batch_row_count(null()), 0);
        assert!(nx_batch_retain(null_mut()).is_null());
        nx_batch_release(null_mut());
        nx_batch_builder_free(null_mut());
        let (mut schema, mut ipc, mut len, mut batch) = (null_mut(), null(), 0, null_mut());
        let mut builder = null_mut();
        let real = sample_schema();
        for error in [
            nx_batch_schema(null(), &mut schema),
            nx_batch_ipc(null(), &mut ipc, &mut len),
            nx_batch_cells(null(), 0, 0, &mut len),
            nx_batch_states(null(), 0, null_mut(), 0),
            nx_batch_offsets(null(), 0, 0, null_mut(), 0),
            nx_batch_fixed(null(), 0, 0, null_mut(), 0),
            nx_batch_varlen(null(), 0, 0, null_mut(), 0, null_mut(), 0, &mut len),
            nx_batch_builder_new(null(), 0, &mut builder),
            nx_batch_builder_new(real.0, 0, null_mut()),
            nx_batch_builder_states(null_mut(), 0, null(), 0),
            nx_batch_builder_offsets(null_mut(), 0, 0, null(), 0),
            nx_batch_builder_fixed(null_mut(), 0, 0, null(), 0),
            nx_batch_builder_varlen(null_mut(), 0, 0, null(), 0, null(), 0),
            nx_batch_builder_finish(null_mut(), &mut batch),
            nxx_batch_arrow(null(), null_mut(), null_mut()),
            nxx_batch_arrow(sample().0, null_mut(), null_mut()),
            nxx_batch_from_arrow(null(), null_mut(), null_mut(), &mut batch),
            nxx_batch_from_arrow(real.0, null_mut(), null_mut(), &mut batch),
            nxx_batch_from_arrow(real.0, null_mut(), null_mut(), null_mut()),
        ] {
            assert_eq!(kind(error), INVALID_ARGUMENT);
        }
    }
}

fn export(batch: &Owned) -> StructArray {
    let (mut schema, mut array) = (FFI_ArrowSchema::empty(), FFI_ArrowArray::empty());
    // SAFETY: the batch is a live one, and the structures can be written to and hold nothing.
    unsafe {
        assert_eq!(kind(nxx_batch_arrow(batch.0, &mut schema, &mut array)), 0);
        StructArray::from(arrow_array::ffi::from_ffi(array, &schema).unwrap())
    }
}

fn import(schema: &Schema, rows: &StructArray) -> Result<Owned, (i32, String)> {
    let (mut array, mut described) = arrow_array::ffi::to_ffi(&rows.to_data()).unwrap();
    let mut batch = null_mut();
    // SAFETY: the schema is a live one, the structures were just exported, and are not used again.
    let error = unsafe { nxx_batch_from_arrow(schema.0, &mut described, &mut array, &mut batch) };
    assert!(array.is_released());
    // They were consumed, so that dropping them does nothing.
    match take(error) {
        (0, _) => Ok(Owned(batch)),
        refused => Err(refused),
    }
}

fn addresses(data: &arrow_data::ArrayData, found: &mut Vec<usize>) {
    found.extend(data.buffers().iter().map(|buffer| buffer.as_ptr() as usize));
    found.extend(data.nulls().map(|nulls| nulls.buffer().as_ptr() as usize));
    data.child_data()
        .iter()
        .for_each(|child| addresses(child, found));
}

#[test]
fn a_batch_goes_through_arrow_and_back() {
    let batch = sample();
    let rows = export(&batch);
    let copied = import(&sample_schema(), &rows).unwrap();
    assert_eq!(copied.ipc(), batch.ipc());
    // What was copied lies in its own stream, and stays when everything else is gone.
    drop((rows, batch));
    let (mut ipc, mut len) = (null(), 0);
    // SAFETY: the batch is a live one, and the places can be written to.
    unsafe { assert_eq!(kind(nx_batch_ipc(copied.0, &mut ipc, &mut len)), 0) };
    let stream = ipc as usize..ipc as usize + len;
    let rows = export(&copied);
    drop(copied);
    let mut found = Vec::new();
    addresses(&rows.to_data(), &mut found);
    assert!(found.len() > 5 && found.iter().all(|address| stream.contains(address)));
    assert_eq!(rows.len(), 3);
}

fn table(columns: Vec<(&str, ArrayRef)>) -> StructArray {
    let columns = columns.into_iter().map(|(name, array)| {
        (
            Arc::new(Field::new(name, array.data_type().clone(), true)),
            array,
        )
    });
    StructArray::from(columns.collect::<Vec<_>>())
}

fn numbers(values: Vec<Option<i32>>) -> ArrayRef {
    Arc::new(Int32Array::from(values))
}

// rule: P-3, B-13
#[test]
fn arrow_must_be_of_the_same_fields() {
    let schema = Schema::new(vec![
        field("a", scalar(ScalarType::I32)),
        nullable("b", scalar(ScalarType::I32)),
    ]);
    let whole = || numbers(vec![Some(1), Some(2), Some(3)]);
    let gaps = || numbers(vec![Some(1), None, None]);
    assert!(import(&schema, &table(vec![("a", whole()), ("b", gaps())])).is_ok());
    let refused = |rows: StructArray, words: &[&str]| {
        let (kind, message) = import(&schema, &rows).err().unwrap();
        assert_eq!(kind, INVALID_ARGUMENT, "{message}");
        for word in words {
            assert!(message.contains(word), "{message}");
        }
    };
    refused(
        table(vec![("a", gaps()), ("b", whole())]),
        &["\"a\"", "row 1"],
    );
    refused(
        table(vec![("b", whole()), ("a", whole())]),
        &["column 0", "\"a\"", "\"b\""],
    );
    refused(table(vec![("a", whole())]), &["\"b\"", "missing"]);
    refused(
        table(vec![("a", whole()), ("b", whole()), ("c", whole())]),
        &["\"c\""],
    );
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x", "y", "z"]));
    refused(
        table(vec![("a", whole()), ("b", text)]),
        &["\"b\"", "Utf8", "Int32"],
    );
    let nulls = arrow_buffer::NullBuffer::from(vec![true, true, false]);
    let (fields, columns, _) = table(vec![("a", whole()), ("b", gaps())]).into_parts();
    refused(StructArray::new(fields, columns, Some(nulls)), &["row 2"]);
}

#[test]
fn slices_of_a_table_are_tables() {
    let schema = Schema::new(vec![field("a", scalar(ScalarType::I32))]);
    let rows = table(vec![("a", numbers((0..10).map(Some).collect()))]);
    let batch = import(&schema, &rows.slice(3, 4)).unwrap();
    let values: Vec<u8> = (3..7_i32).flat_map(i32::to_ne_bytes).collect();
    assert_eq!(batch.fixed(0, 0, 16), values);
}

#[test]
fn what_is_no_table_is_refused() {
    let schema = Schema::new(vec![field("a", scalar(ScalarType::I32))]);
    let column = numbers(vec![Some(1)]);
    let (mut array, mut described) = arrow_array::ffi::to_ffi(&column.to_data()).unwrap();
    let mut batch = null_mut();
    // SAFETY: the schema is a live one, and the structures were just exported.
    unsafe {
        let refused = nxx_batch_from_arrow(schema.0, &mut described, &mut array, &mut batch);
        assert_eq!(kind(refused), INVALID_ARGUMENT);
        // They were consumed: there is nothing in them any more.
        let refused = nxx_batch_from_arrow(schema.0, &mut described, &mut array, &mut batch);
        assert_eq!(kind(refused), INVALID_ARGUMENT);
    }
    // A schema that is not the array's.
    let (mut array, _) = arrow_array::ffi::to_ffi(&column.to_data()).unwrap();
    let kind_of = DataType::Struct(vec![Field::new("a", DataType::Int32, false)].into());
    let mut described = FFI_ArrowSchema::try_from(&kind_of).unwrap();
    // SAFETY: the schema is a live one; that the structures do not fit is what is tested.
    let refused = unsafe { nxx_batch_from_arrow(schema.0, &mut described, &mut array, &mut batch) };
    assert_eq!(kind(refused), INVALID_ARGUMENT);
}

#[test]
fn refusals_have_their_kinds() {
    use nervix_batch::Refusal;
    for (refusal, number) in [
        (Refusal::Argument("a".into()), INVALID_ARGUMENT),
        (Refusal::Type("a".into()), TYPE),
        (Refusal::Stream("a".into()), PROTOCOL),
    ] {
        assert_eq!(
            take(guarded(|| Err(refused(refusal)))),
            (number, "a".to_owned())
        );
    }
}
