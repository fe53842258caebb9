//! Rows: the check against their schema, and that values stay what they are.

use std::slice::from_ref;
use std::sync::Arc;

use bytes::Bytes;
use nervix_wire::types::*;
use nervix_wire::{
    decode_server, encode_rows, encode_server, CellRef, CheckedRows, EncodeError, Frame, Part,
    RowsFrame, Violation,
};
use proptest::prelude::*;

fn scalar(scalar: ScalarType) -> FieldType {
    FieldType {
        shape: FieldTypeShape::ScalarFieldType(ScalarFieldType { scalar }),
    }
}

fn list(element: FieldType) -> FieldType {
    FieldType {
        shape: FieldTypeShape::ListFieldType(Box::new(ListFieldType { element })),
    }
}

fn fixed(element: FieldType, length: u32) -> FieldType {
    FieldType {
        shape: FieldTypeShape::FixedListFieldType(Box::new(FixedListFieldType { element, length })),
    }
}

fn field(name: &str, field_type: FieldType) -> RowField {
    RowField {
        name: name.into(),
        field_type,
        nullable: false,
        sensitive: false,
    }
}

fn nullable(field: RowField) -> RowField {
    RowField {
        nullable: true,
        ..field
    }
}

fn sensitive(field: RowField) -> RowField {
    RowField {
        sensitive: true,
        ..field
    }
}

fn schema(fields: &[RowField]) -> RowSchema {
    RowSchema {
        fields: fields.to_vec(),
        branch: None,
    }
}

fn branched(fields: &[RowField], key: &[RowField]) -> RowSchema {
    RowSchema {
        fields: fields.to_vec(),
        branch: Some(RowBranch {
            branch: "b".into(),
            fields: key.to_vec(),
        }),
    }
}

fn u8_cell(value: u8) -> CellValue {
    CellValue::U8Cell(U8Cell { value })
}

fn string_cell(value: &str) -> CellValue {
    CellValue::StringCell(StringCell {
        value: value.into(),
    })
}

fn list_cell(elements: Vec<CellValue>) -> CellValue {
    let elements = elements.into_iter().map(|value| Cell { value }).collect();
    CellValue::ListCell(ListCell { elements })
}

fn handle() -> SubscriptionHandle {
    SubscriptionHandle {
        name: "s".into(),
        generation: 3,
    }
}

fn frame_of(bytes: &[u8]) -> RowsFrame {
    match decode_server(&Frame::copy_from(bytes)).unwrap().body {
        ServerBody::SubscriptionRows(rows) => rows,
        other => panic!("rows came back as {other:?}"),
    }
}

fn check(
    schema: &RowSchema,
    key: Option<&[CellValue]>,
    rows: &[Vec<CellValue>],
) -> Result<CheckedRows, Violation> {
    let rows = frame_of(&encode_rows(&handle(), key, rows).unwrap());
    rows.check(Arc::new(schema.clone()))
}

fn refusal(schema: &RowSchema, key: Option<&[CellValue]>, rows: &[Vec<CellValue>]) -> String {
    let violation = check(schema, key, rows).unwrap_err();
    assert_eq!(violation.rule(), "R-2");
    violation.message().to_owned()
}

// rule: R-1
#[test]
fn a_frame_names_its_generation_before_any_cell_is_read() {
    let rows = frame_of(&encode_rows(&handle(), None, &[vec![], vec![]]).unwrap());
    assert_eq!(rows.subscription, handle());
    assert_eq!(rows.row_count(), 2);
}

// rule: R-2
#[test]
fn a_branch_key_is_there_exactly_when_the_schema_has_a_branch() {
    let fields = [field("a", scalar(ScalarType::U8))];
    let rows = [vec![u8_cell(1)]];
    let key = [u8_cell(2)];
    assert!(check(&schema(&fields), None, &rows).is_ok());
    assert!(check(&branched(&fields, &fields), Some(&key), &rows).is_ok());
    assert!(refusal(&schema(&fields), Some(&key), &rows).contains("unbranched"));
    assert!(refusal(&branched(&fields, &fields), None, &rows).contains("no branch key"));
}

// rule: R-2
#[test]
fn rows_and_keys_have_a_cell_for_each_field() {
    let one = [field("a", scalar(ScalarType::U8))];
    let both = branched(&one, &one);
    let key = [u8_cell(2)];
    let good = vec![u8_cell(1)];
    for bad in [vec![], vec![u8_cell(1), u8_cell(1)]] {
        assert!(refusal(&schema(&one), None, &[good.clone(), bad.clone()]).contains("a row has"));
        assert!(refusal(&both, Some(&bad), from_ref(&good)).contains("the branch key has"));
    }
    assert!(check(&both, Some(&key), &[good.clone(), good]).is_ok());
}

// rule
#[test]
fn exactly_sensitive_fields_are_redacted() {
    let plain = [field("a", scalar(ScalarType::U8))];
    let hidden = [nullable(sensitive(field("a", scalar(ScalarType::U8))))];
    let redacted = vec![CellValue::RedactedCell];
    let rows = check(&schema(&hidden), None, from_ref(&redacted)).unwrap();
    assert_eq!(rows.cell(Part::Rows, 0, 0), Some(CellRef::Redacted));
    assert!(refusal(
        &schema(&hidden),
        None,
        &[redacted.clone(), vec![u8_cell(1)]]
    )
    .contains("not redacted"));
    assert!(refusal(&schema(&hidden), None, &[vec![CellValue::NullCell]]).contains("not redacted"));
    assert!(refusal(&schema(&plain), None, from_ref(&redacted)).contains("not sensitive"));

    let key = branched(&[], &hidden);
    assert!(check(&key, Some(&redacted), &[vec![]]).is_ok());
    assert!(refusal(&key, Some(&[u8_cell(1)]), &[vec![]]).contains("not redacted"));
    let key = branched(&[], &plain);
    assert!(refusal(&key, Some(&redacted), &[vec![]]).contains("not sensitive"));
}

// rule
#[test]
fn only_nullable_fields_are_null() {
    let required = [field("a", scalar(ScalarType::U8))];
    let optional = [nullable(field("a", scalar(ScalarType::U8)))];
    let null = vec![CellValue::NullCell];
    let rows = check(&schema(&optional), None, &[null.clone(), vec![u8_cell(0)]]).unwrap();
    assert_eq!(rows.cell(Part::Rows, 0, 0), Some(CellRef::Null));
    assert_eq!(rows.cell(Part::Rows, 1, 0), Some(CellRef::U8(0)));
    assert!(refusal(&schema(&required), None, from_ref(&null)).contains("not nullable"));
    assert!(check(&branched(&[], &optional), Some(&null), &[vec![]]).is_ok());
    assert!(refusal(&branched(&[], &required), Some(&null), &[vec![]]).contains("not nullable"));
}

/// One value of each scalar type.
fn scalars() -> Vec<(ScalarType, CellValue)> {
    vec![
        (ScalarType::U8, u8_cell(255)),
        (ScalarType::I8, CellValue::I8Cell(I8Cell { value: -128 })),
        (
            ScalarType::U16,
            CellValue::U16Cell(U16Cell { value: 65535 }),
        ),
        (
            ScalarType::I16,
            CellValue::I16Cell(I16Cell { value: i16::MIN }),
        ),
        (
            ScalarType::U32,
            CellValue::U32Cell(U32Cell { value: u32::MAX }),
        ),
        (
            ScalarType::I32,
            CellValue::I32Cell(I32Cell { value: i32::MIN }),
        ),
        (
            ScalarType::U64,
            CellValue::U64Cell(U64Cell { value: u64::MAX }),
        ),
        (
            ScalarType::I64,
            CellValue::I64Cell(I64Cell { value: i64::MIN }),
        ),
        (ScalarType::F32, CellValue::F32Cell(F32Cell { value: 0.0 })),
        (ScalarType::F64, CellValue::F64Cell(F64Cell { value: 0.0 })),
        (
            ScalarType::Bool,
            CellValue::BoolCell(BoolCell { value: true }),
        ),
        (ScalarType::String, string_cell("a\0b")),
        (
            ScalarType::Bytes,
            CellValue::BytesCell(BytesCell {
                value: Bytes::from_static(b"\xff\0"),
            }),
        ),
        (
            ScalarType::Datetime,
            CellValue::DatetimeCell(DatetimeCell { unix_nanos: -1 }),
        ),
    ]
}

// rule
#[test]
fn a_cell_has_exactly_the_type_of_its_field() {
    for (wanted, _) in scalars() {
        for (found, value) in scalars() {
            for shape in [0, 1, 2] {
                let (field_type, cell) = match shape {
                    0 => (scalar(wanted), value.clone()),
                    1 => (list(scalar(wanted)), list_cell(vec![value.clone()])),
                    _ => (fixed(scalar(wanted), 1), list_cell(vec![value.clone()])),
                };
                let schema = schema(&[nullable(field("a", field_type))]);
                let checked = check(&schema, None, &[vec![cell.clone()]]);
                assert_eq!(
                    checked.is_ok(),
                    wanted == found,
                    "{wanted:?} {found:?} {shape}"
                );
                if let Ok(rows) = checked {
                    let read = rows.cell(Part::Rows, 0, 0).unwrap();
                    assert_eq!(read.to_value(), cell);
                }
            }
        }
        let scalar_schema = schema(&[field("a", scalar(wanted))]);
        assert!(refusal(&scalar_schema, None, &[vec![list_cell(vec![])]]).contains("ListCell"));
    }
    let list_schema = schema(&[field("a", list(scalar(ScalarType::U8)))]);
    assert!(refusal(&list_schema, None, &[vec![u8_cell(1)]]).contains("U8Cell"));
}

// rule: R-2
#[test]
fn a_fixed_list_has_its_declared_number_of_elements() {
    let fields = schema(&[field("a", fixed(scalar(ScalarType::U8), 2))]);
    let of = |count| vec![list_cell(vec![u8_cell(1); count])];
    assert!(check(&fields, None, &[of(2)]).is_ok());
    for count in [0, 1, 3] {
        assert!(refusal(&fields, None, &[of(count)]).contains("elements, not 2"));
    }
    let nested = schema(&[field("a", list(fixed(scalar(ScalarType::U8), 2)))]);
    let of = |count| vec![list_cell(vec![list_cell(vec![u8_cell(1); count])])];
    assert!(check(&nested, None, &[of(2)]).is_ok());
    assert!(refusal(&nested, None, &[of(1)]).contains("elements, not 2"));
}

// rule: R-2
#[test]
fn a_list_element_is_never_null_or_redacted() {
    for absent in [CellValue::NullCell, CellValue::RedactedCell] {
        let flat = schema(&[nullable(field("a", list(scalar(ScalarType::U8))))]);
        let row = vec![list_cell(vec![u8_cell(1), absent.clone()])];
        assert!(refusal(&flat, None, &[row]).contains("holds a"));
        let nested = schema(&[nullable(field("a", list(list(scalar(ScalarType::U8)))))]);
        let row = vec![list_cell(vec![list_cell(vec![absent.clone()])])];
        assert!(refusal(&nested, None, &[row]).contains("holds a"));
        let row = vec![list_cell(vec![absent])];
        assert!(refusal(&nested, None, &[row]).contains("holds a"));
    }
}

/// Changes the tag of the only cell of the only row.
fn with_cell_tag(bytes: &[u8], tag: u8) -> Vec<u8> {
    use super::walk::{follow, slot};
    let at = |table, number| follow(bytes, slot(bytes, table, number).unwrap());
    let batch = at(at(follow(bytes, 0), 6), 6);
    let row = follow(bytes, at(batch, 6) + 4);
    let cell = follow(bytes, at(row, 4) + 4);
    let mut changed = bytes.to_vec();
    changed[slot(bytes, cell, 4).unwrap()] = tag;
    changed
}

// rule: F-4, R-2
#[test]
fn an_undeclared_cell_is_refused_whatever_the_schema() {
    let bytes = encode_rows(&handle(), None, &[vec![u8_cell(1)]]).unwrap();
    for tag in [0, 18, 255] {
        let schema = schema(&[nullable(field("a", scalar(ScalarType::U8)))]);
        let rows = frame_of(&with_cell_tag(&bytes, tag));
        assert!(rows.to_values().is_err());
        assert_eq!(rows.check(Arc::new(schema)).unwrap_err().rule(), "F-4");
    }
}

// rule: F-4, R-5
#[test]
fn a_float_is_sent_even_when_it_is_zero_and_refused_when_absent() {
    // A U8Cell that is zero holds nothing, and reads as an F32Cell without its value.
    let bytes = encode_rows(&handle(), None, &[vec![u8_cell(0)]]).unwrap();
    for (tag, wanted) in [(11, ScalarType::F32), (12, ScalarType::F64)] {
        let rows = frame_of(&with_cell_tag(&bytes, tag));
        let schema = schema(&[field("a", scalar(wanted))]);
        assert_eq!(rows.check(Arc::new(schema)).unwrap_err().rule(), "F-4");
    }
}

// rule: R-5
#[test]
fn floats_keep_their_bits() {
    let bits64 = [0, 1 << 63, 0x7ff8_0000_0000_0001, 0xfff0_0000_0000_0001, 1];
    let bits32 = [0, 1 << 31, 0x7fc0_0001, 0xff80_0001, 1];
    let fields = schema(&[
        field("a", scalar(ScalarType::F64)),
        field("b", scalar(ScalarType::F32)),
    ]);
    let rows: Vec<_> = std::iter::zip(bits64, bits32)
        .map(|(long, short)| {
            vec![
                CellValue::F64Cell(F64Cell {
                    value: f64::from_bits(long),
                }),
                CellValue::F32Cell(F32Cell {
                    value: f32::from_bits(short),
                }),
            ]
        })
        .collect();
    let checked = check(&fields, None, &rows).unwrap();
    let longs: Vec<u64> = checked
        .column(Part::Rows, 0)
        .unwrap()
        .map(|cell| match cell {
            CellRef::F64(value) => value.to_bits(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(longs, bits64);
    let shorts: Vec<u32> = checked
        .column(Part::Rows, 1)
        .unwrap()
        .map(|cell| match cell {
            CellRef::F32(value) => value.to_bits(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(shorts, bits32);
}

// rule: F-9
#[test]
fn values_are_read_in_place_and_keep_their_frame() {
    let fields = schema(&[field("a", scalar(ScalarType::String))]);
    let rows = check(&fields, None, &[vec![string_cell("in place")]]).unwrap();
    let other = rows.clone();
    drop(rows);
    let range = other.frame().as_slice().as_ptr_range();
    let Some(CellRef::String(text)) = other.cell(Part::Rows, 0, 0) else {
        panic!("no string");
    };
    assert!(range.contains(&text.as_ptr()));
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    shared(&other);
}

// rule: R-2
#[test]
fn cells_outside_the_rows_are_none() {
    let fields = [field("a", scalar(ScalarType::U8))];
    let rows = check(&schema(&fields), None, &[vec![u8_cell(1)]]).unwrap();
    assert_eq!(rows.cell(Part::Rows, 1, 0), None);
    assert_eq!(rows.cell(Part::Rows, 0, 1), None);
    assert_eq!(rows.cell(Part::Rows, usize::MAX, usize::MAX), None);
    assert_eq!(rows.cell(Part::BranchKey, 0, 0), None);
    assert!(rows.column(Part::Rows, 1).is_none());
    assert!(rows.column(Part::BranchKey, 0).is_none());
    assert!(!rows.has_key());
}

// rule: F-4
#[test]
fn a_batch_has_a_row() {
    assert_eq!(encode_rows(&handle(), None, &[]), Err(EncodeError::NoRows));
}

// rule: F-6
#[test]
fn rows_are_sent_within_the_limits_of_frames() {
    let long = "x".repeat(nervix_wire::FRAME_LIMIT);
    assert_eq!(
        encode_rows(&handle(), None, &[vec![string_cell(&long)]]),
        Err(EncodeError::TooLarge {
            limit: nervix_wire::FRAME_LIMIT
        })
    );
    let mut deep = list_cell(vec![]);
    // ServerMessage, SubscriptionRows, RowBatch, Row, Cell and the value are 6 deep.
    for _ in 0..(nervix_wire::DEPTH_LIMIT - 6) / 2 {
        deep = list_cell(vec![deep]);
    }
    let bytes = encode_rows(&handle(), None, &[vec![deep.clone()]]).unwrap();
    assert!(frame_of(&bytes).to_values().is_ok());
    assert_eq!(
        encode_rows(&handle(), None, &[vec![list_cell(vec![deep])]]),
        Err(EncodeError::TooDeep)
    );
}

// rule: F-3
#[test]
fn the_smallest_cells_stay_within_the_limits_of_a_reader() {
    let fields = vec![nullable(field("a", scalar(ScalarType::Bool))); 200];
    for cell in [
        CellValue::NullCell,
        CellValue::BoolCell(BoolCell { value: false }),
        list_cell(vec![]),
    ] {
        let rows = vec![vec![cell; 200]; 256];
        let frame = frame_of(&encode_rows(&handle(), None, &rows).unwrap());
        assert_eq!(frame.row_count(), 256);
        if !matches!(rows[0][0], CellValue::ListCell(_)) {
            assert!(frame.check(Arc::new(schema(&fields))).is_ok());
        }
    }
}

// rule: F-4
#[test]
fn received_rows_can_be_sent_on() {
    let bytes = encode_rows(&handle(), Some(&[u8_cell(1)]), &[vec![string_cell("x")]]).unwrap();
    let message = decode_server(&Frame::copy_from(&bytes)).unwrap();
    let again = encode_server(&message).unwrap();
    assert_eq!(
        frame_of(&again).to_values().unwrap(),
        frame_of(&bytes).to_values().unwrap()
    );
}

fn any_type() -> impl Strategy<Value = FieldType> {
    let leaf = (0..ScalarType::ALL.len()).prop_map(|n| scalar(ScalarType::ALL[n]));
    leaf.prop_recursive(3, 6, 1, |inner| {
        prop_oneof![
            inner.clone().prop_map(list),
            (inner, 1u32..3).prop_map(|(element, length)| fixed(element, length)),
        ]
    })
}

fn any_field() -> impl Strategy<Value = RowField> {
    (any_type(), any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(field_type, nullable, sensitive)| RowField {
            name: "f".into(),
            field_type,
            nullable,
            sensitive,
        },
    )
}

/// A value of a type, drawn from a stream of numbers.
fn value_of(field_type: &FieldType, next: &mut impl FnMut() -> u64) -> CellValue {
    let (element, count) = match &field_type.shape {
        FieldTypeShape::ScalarFieldType(of) => return scalar_of(of.scalar, next()),
        FieldTypeShape::ListFieldType(list) => (&list.element, next() % 4),
        FieldTypeShape::FixedListFieldType(list) => (&list.element, list.length.into()),
    };
    list_cell((0..count).map(|_| value_of(element, next)).collect())
}

#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
fn scalar_of(scalar: ScalarType, bits: u64) -> CellValue {
    // Small numbers, and zero above all, are left out or shared by encoders: make them common.
    let bits = if bits.is_multiple_of(5) { 0 } else { bits };
    match scalar {
        ScalarType::U8 => u8_cell(bits as u8),
        ScalarType::I8 => CellValue::I8Cell(I8Cell { value: bits as i8 }),
        ScalarType::U16 => CellValue::U16Cell(U16Cell { value: bits as u16 }),
        ScalarType::I16 => CellValue::I16Cell(I16Cell { value: bits as i16 }),
        ScalarType::U32 => CellValue::U32Cell(U32Cell { value: bits as u32 }),
        ScalarType::I32 => CellValue::I32Cell(I32Cell { value: bits as i32 }),
        ScalarType::U64 => CellValue::U64Cell(U64Cell { value: bits }),
        ScalarType::I64 => CellValue::I64Cell(I64Cell { value: bits as i64 }),
        ScalarType::F32 => CellValue::F32Cell(F32Cell {
            value: f32::from_bits(bits as u32),
        }),
        ScalarType::F64 => CellValue::F64Cell(F64Cell {
            value: f64::from_bits(bits),
        }),
        ScalarType::Bool => CellValue::BoolCell(BoolCell {
            value: bits % 2 == 1,
        }),
        ScalarType::String => string_cell(&"ä\0b𝄞".repeat((bits % 4) as usize)),
        ScalarType::Datetime => CellValue::DatetimeCell(DatetimeCell {
            unix_nanos: bits as i64,
        }),
        ScalarType::Bytes => CellValue::BytesCell(BytesCell {
            value: Bytes::copy_from_slice(&bits.to_le_bytes()[..(bits % 9) as usize]),
        }),
    }
}

fn cells_of(fields: &[RowField], next: &mut impl FnMut() -> u64) -> Vec<CellValue> {
    fields
        .iter()
        .map(|field| {
            if field.sensitive {
                CellValue::RedactedCell
            } else if field.nullable && next().is_multiple_of(3) {
                CellValue::NullCell
            } else {
                value_of(&field.field_type, next)
            }
        })
        .collect()
}

/// Text that is equal exactly when the values are, float bits included.
fn exact(value: &CellValue) -> String {
    match value {
        CellValue::F32Cell(cell) => format!("f32 {:x}", cell.value.to_bits()),
        CellValue::F64Cell(cell) => format!("f64 {:x}", cell.value.to_bits()),
        CellValue::ListCell(list) => {
            let elements: Vec<_> = list
                .elements
                .iter()
                .map(|cell| exact(&cell.value))
                .collect();
            format!("{elements:?}")
        }
        other => format!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // rule
    #[test]
    fn conforming_rows_are_accepted_and_read_back_exactly(
        fields in prop::collection::vec(any_field(), 0..5),
        key_fields in prop::option::of(prop::collection::vec(any_field(), 1..3)),
        count in 1usize..5,
        seed in any::<u64>(),
    ) {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state ^ (state >> 29)
        };
        let rows: Vec<_> = (0..count).map(|_| cells_of(&fields, &mut next)).collect();
        let key = key_fields.as_deref().map(|fields| cells_of(fields, &mut next));
        let schema = match &key_fields {
            Some(key_fields) => branched(&fields, key_fields),
            None => schema(&fields),
        };
        let checked = check(&schema, key.as_deref(), &rows).unwrap();
        prop_assert_eq!(checked.row_count(), count);
        prop_assert_eq!(checked.has_key(), key.is_some());
        for (number, row) in rows.iter().enumerate() {
            for (column, value) in row.iter().enumerate() {
                let read = checked.cell(Part::Rows, number, column).unwrap().to_value();
                prop_assert_eq!(exact(&read), exact(value));
            }
        }
        for column in 0..fields.len() {
            let read: Vec<_> = checked.column(Part::Rows, column).unwrap()
                .map(|cell| exact(&cell.to_value())).collect();
            let sent: Vec<_> = rows.iter().map(|row| exact(&row[column])).collect();
            prop_assert_eq!(read, sent);
        }
        for (column, value) in key.iter().flatten().enumerate() {
            let read = checked.cell(Part::BranchKey, 0, column).unwrap().to_value();
            prop_assert_eq!(exact(&read), exact(value));
        }
    }
}
