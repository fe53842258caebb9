//! Streams and columns that others made: what is the same is taken, what is not is refused.

use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, DictionaryArray, FixedSizeListArray, Float32Array,
    Float64Array, Int16Array, Int32Array, Int64Array, Int8Array, LargeStringArray, ListArray,
    RecordBatch, StringArray, TimestampMicrosecondArray, TimestampNanosecondArray, UInt16Array,
    UInt32Array, UInt64Array, UInt8Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use nervix_batch::Batch;
use nervix_wire::types::{FieldType, RowField, ScalarType};

use super::{everything, field, fixed, is_argument, is_stream, list, nullable, scalar, schema};

fn written(schema: Schema, batches: &[Vec<ArrayRef>]) -> Bytes {
    let schema = Arc::new(schema);
    let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
    for columns in batches {
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns.clone()).unwrap();
        writer.write(&batch).unwrap();
    }
    Bytes::from(writer.into_inner().unwrap())
}

fn single(name: &str, array: ArrayRef, nullable: bool) -> Bytes {
    let field = Field::new(name, array.data_type().clone(), nullable);
    written(Schema::new(vec![field]), &[vec![array]])
}

fn read(fields: Vec<RowField>, stream: Bytes) -> Result<Batch, nervix_batch::Refusal> {
    Batch::read(schema(fields), stream)
}

fn samples() -> Vec<(FieldType, ArrayRef)> {
    let utc = "+00:00";
    vec![
        (scalar(ScalarType::U8), Arc::new(UInt8Array::from(vec![1]))),
        (scalar(ScalarType::I8), Arc::new(Int8Array::from(vec![1]))),
        (
            scalar(ScalarType::U16),
            Arc::new(UInt16Array::from(vec![1])),
        ),
        (scalar(ScalarType::I16), Arc::new(Int16Array::from(vec![1]))),
        (
            scalar(ScalarType::U32),
            Arc::new(UInt32Array::from(vec![1])),
        ),
        (scalar(ScalarType::I32), Arc::new(Int32Array::from(vec![1]))),
        (
            scalar(ScalarType::U64),
            Arc::new(UInt64Array::from(vec![1])),
        ),
        (scalar(ScalarType::I64), Arc::new(Int64Array::from(vec![1]))),
        (
            scalar(ScalarType::F32),
            Arc::new(Float32Array::from(vec![1.0])),
        ),
        (
            scalar(ScalarType::F64),
            Arc::new(Float64Array::from(vec![1.0])),
        ),
        (
            scalar(ScalarType::Bool),
            Arc::new(BooleanArray::from(vec![true])),
        ),
        (
            scalar(ScalarType::String),
            Arc::new(StringArray::from(vec!["a"])),
        ),
        (
            scalar(ScalarType::Bytes),
            Arc::new(BinaryArray::from(vec![b"a".as_slice()])),
        ),
        (
            scalar(ScalarType::Datetime),
            Arc::new(TimestampNanosecondArray::from(vec![1]).with_timezone(utc)),
        ),
        (list(scalar(ScalarType::I32)), lists("item", false, None)),
        (fixed(scalar(ScalarType::I32), 2), pairs(None, None)),
    ]
}

fn lists(name: &str, nullable: bool, nulls: Option<NullBuffer>) -> ArrayRef {
    let field = Arc::new(Field::new(name, DataType::Int32, nullable));
    let rows = nulls.as_ref().map_or(1, NullBuffer::len);
    let offsets = (0..=rows).map(|row| i32::try_from(2 * row).unwrap());
    let offsets = OffsetBuffer::new(offsets.collect::<Vec<_>>().into());
    let values: Vec<i32> = (0..).take(2 * rows).collect();
    let array = ListArray::try_new(field, offsets, Arc::new(Int32Array::from(values)), nulls);
    Arc::new(array.unwrap())
}

fn pairs(nulls: Option<NullBuffer>, inner: Option<NullBuffer>) -> ArrayRef {
    let field = Arc::new(Field::new("item", DataType::Int32, false));
    let rows = nulls.as_ref().map_or(1, NullBuffer::len);
    let values: Vec<i32> = (0..).take(2 * rows).collect();
    let values = Int32Array::new(ScalarBuffer::from(values), inner);
    Arc::new(FixedSizeListArray::try_new(field, 2, Arc::new(values), nulls).unwrap())
}

// rule: P-3, EC-3, R-3
#[test]
fn a_column_is_of_exactly_its_type() {
    for (wanted, (field_type, _)) in samples().into_iter().enumerate() {
        for (found, (_, array)) in samples().into_iter().enumerate() {
            let fields = vec![field("a", field_type.clone())];
            let stream = single("a", Arc::clone(&array), false);
            assert_eq!(
                read(fields.clone(), stream).is_ok(),
                wanted == found,
                "{wanted} {found}"
            );
            let copied = Batch::copy_from(schema(fields), 1, &[array.to_data()]);
            assert_eq!(copied.is_ok(), wanted == found, "{wanted} {found}");
        }
    }
}

// rule: P-3
#[test]
fn respellings_are_other_types() {
    let instant = || field("a", scalar(ScalarType::Datetime));
    let others: Vec<(RowField, ArrayRef)> = vec![
        (instant(), Arc::new(TimestampNanosecondArray::from(vec![1]))),
        (
            instant(),
            Arc::new(TimestampNanosecondArray::from(vec![1]).with_timezone("UTC")),
        ),
        (
            instant(),
            Arc::new(TimestampMicrosecondArray::from(vec![1]).with_timezone("+00:00")),
        ),
        (
            field("a", scalar(ScalarType::String)),
            Arc::new(LargeStringArray::from(vec!["a"])),
        ),
        (
            field("a", scalar(ScalarType::String)),
            Arc::new(
                vec!["a"]
                    .into_iter()
                    .collect::<DictionaryArray<Int32Type>>(),
            ),
        ),
        (
            field("a", fixed(scalar(ScalarType::I32), 3)),
            pairs(None, None),
        ),
    ];
    for (field, array) in others {
        is_stream(read(
            vec![field.clone()],
            single("a", Arc::clone(&array), false),
        ));
        is_argument(Batch::copy_from(schema(vec![field]), 1, &[array.to_data()]));
    }
}

// rule: P-3, EC-3
#[test]
fn a_schema_is_exactly_the_agreed_one() {
    let array = || -> ArrayRef { Arc::new(Int32Array::from(vec![1])) };
    let wanted = || vec![field("a", scalar(ScalarType::I32))];
    assert!(read(wanted(), single("a", array(), false)).is_ok());
    is_stream(read(wanted(), single("b", array(), false)));
    is_stream(read(wanted(), single("a", array(), true)));
    is_stream(read(
        vec![nullable(wanted().remove(0))],
        single("a", array(), false),
    ));
    let two = Schema::new(vec![
        Field::new("a", DataType::Int32, false),
        Field::new("b", DataType::Int32, false),
    ]);
    is_stream(read(wanted(), written(two, &[vec![array(), array()]])));
    is_stream(read(
        vec![wanted().remove(0), field("b", scalar(ScalarType::I32))],
        single("a", array(), false),
    ));
    let plain = Field::new("a", DataType::Int32, false);
    let noted = plain.clone().with_metadata([("k", "v")]);
    is_stream(read(
        wanted(),
        written(Schema::new(vec![noted]), &[vec![array()]]),
    ));
    let noted = Schema::new(vec![plain]).with_metadata([("k".to_owned(), "v".to_owned())]);
    is_stream(read(wanted(), written(noted, &[vec![array()]])));
    let wanted = || vec![field("a", list(scalar(ScalarType::I32)))];
    assert!(read(wanted(), single("a", lists("item", false, None), false)).is_ok());
    is_stream(read(
        wanted(),
        single("a", lists("element", false, None), false),
    ));
    is_stream(read(
        wanted(),
        single("a", lists("item", true, None), false),
    ));
}

// rule: P-3
#[test]
fn a_stream_holds_one_batch() {
    let array = || -> ArrayRef { Arc::new(Int32Array::from(vec![1])) };
    let schema = || Schema::new(vec![Field::new("a", DataType::Int32, false)]);
    let wanted = || vec![field("a", scalar(ScalarType::I32))];
    is_stream(read(wanted(), written(schema(), &[])));
    is_stream(read(
        wanted(),
        written(schema(), &[vec![array()], vec![array()]]),
    ));
    let mut longer = written(schema(), &[vec![array()]]).to_vec();
    longer.push(0);
    is_stream(read(wanted(), Bytes::from(longer)));
}

// rule: P-3, R-4
#[test]
fn a_required_column_has_no_null() {
    let array: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), Some(2), None, None]));
    let wanted = schema(vec![field("a", scalar(ScalarType::I32))]);
    let message = is_argument(Batch::copy_from(Arc::clone(&wanted), 4, &[array.to_data()]));
    assert!(
        message.contains("\"a\"") && message.contains("row 2"),
        "{message}"
    );
    // A slice without nulls is whole.
    let slice = array.slice(0, 2).to_data();
    assert_eq!(Batch::copy_from(wanted, 2, &[slice]).unwrap().rows(), 2);
}

#[test]
fn what_arrow_calls_elements_and_nullable_does_not_matter_for_columns() {
    let wanted = schema(vec![nullable(field("a", list(scalar(ScalarType::I32))))]);
    let nulls = || Some(NullBuffer::from(vec![true, false, true]));
    let plain = lists("item", false, nulls()).to_data();
    let other = lists("l", true, nulls()).to_data();
    let one = Batch::copy_from(Arc::clone(&wanted), 3, &[plain]).unwrap();
    let two = Batch::copy_from(wanted, 3, &[other]).unwrap();
    assert_eq!(everything(&one), everything(&two));
}

#[test]
fn slices_are_columns_of_their_own() {
    let fields = vec![
        nullable(field("text", scalar(ScalarType::String))),
        nullable(field("bools", scalar(ScalarType::Bool))),
        nullable(field("lists", list(scalar(ScalarType::I32)))),
        nullable(field("pairs", fixed(scalar(ScalarType::I32), 2))),
    ];
    let rows = 40;
    let nulls = || NullBuffer::from((0..rows).map(|row| row % 3 != 0).collect::<Vec<_>>());
    let columns: Vec<ArrayRef> = vec![
        Arc::new(
            (0..rows)
                .map(|row| (row % 3 != 0).then(|| "é".repeat(row % 5)))
                .collect::<StringArray>(),
        ),
        Arc::new(
            (0..rows)
                .map(|row| (row % 3 != 0).then_some(row % 2 == 0))
                .collect::<BooleanArray>(),
        ),
        lists("item", false, Some(nulls())),
        pairs(Some(nulls()), None),
    ];
    let whole: Vec<_> = columns.iter().map(|column| column.to_data()).collect();
    let whole = everything(&Batch::copy_from(schema(fields.clone()), rows, &whole).unwrap());
    for (begin, count) in [(0, 40), (0, 0), (40, 0), (1, 38), (7, 9), (8, 16), (13, 1)] {
        let slices: Vec<_> = columns
            .iter()
            .map(|column| column.slice(begin, count).to_data())
            .collect();
        let copied = Batch::copy_from(schema(fields.clone()), count, &slices).unwrap();
        // Arrow writes the slices too, and is read.
        let arrow = Schema::new(
            fields
                .iter()
                .zip(&columns)
                .map(|(field, column)| Field::new(&field.name, column.data_type().clone(), true))
                .collect::<Vec<_>>(),
        );
        let stream = written(
            arrow,
            &[columns
                .iter()
                .map(|column| column.slice(begin, count))
                .collect()],
        );
        let read = read(fields.clone(), stream).unwrap();
        let (copied, read) = (everything(&copied), everything(&read));
        assert_eq!(copied, read);
        for (part, all) in copied.iter().zip(&whole) {
            assert_eq!(part.rows, all.rows[begin..begin + count]);
        }
    }
}

// rule: R-4
#[test]
fn elements_are_null_only_where_no_list_is() {
    let wanted = || vec![nullable(field("a", fixed(scalar(ScalarType::I32), 2)))];
    let hidden = pairs(
        Some(NullBuffer::from(vec![true, false])),
        Some(NullBuffer::from(vec![true, true, false, false])),
    );
    let stream = single("a", Arc::clone(&hidden), true);
    let batch = read(wanted(), stream).unwrap();
    assert_eq!(batch.states(0).unwrap().collect::<Vec<_>>(), [true, false]);
    Batch::copy_from(schema(wanted()), 2, &[hidden.to_data()]).unwrap();
    let element = Arc::new(Field::new("item", DataType::Int32, true));
    let values = Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(4)]));
    let open = FixedSizeListArray::try_new(element, 2, values, None).unwrap();
    assert!(
        is_argument(Batch::copy_from(schema(wanted()), 2, &[open.to_data()])).contains("element")
    );
}

#[test]
fn columns_of_other_lengths_or_numbers_are_no_batch() {
    let array = Int32Array::from(vec![1, 2]).to_data();
    let wanted = schema(vec![field("a", scalar(ScalarType::I32))]);
    is_argument(Batch::copy_from(
        Arc::clone(&wanted),
        3,
        std::slice::from_ref(&array),
    ));
    is_argument(Batch::copy_from(Arc::clone(&wanted), 2, &[]));
    is_argument(Batch::copy_from(wanted, 2, &[array.clone(), array]));
}
