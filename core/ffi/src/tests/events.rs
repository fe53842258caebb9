//! Events and their column accessors.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use nervix_engine::EventKind;
use nervix_wire::types::{
    BoolCell, CellValue, DatetimeCell, F32Cell, F64Cell, RowsSkippedCause, ScalarType,
    SubscriptionEndReason,
};
use proptest::prelude::*;

use super::rows::{
    any_rows, branched, bytes, cells, checked, exact, field, fixed, i64_cell, list, nullable,
    scalar, schema, sensitive, text, u8_cell, Owned,
};
use super::{borrowed, kind, INVALID_ARGUMENT, TYPE};
use crate::event::*;
use crate::schema::nx_schema_free;

const ROWS: i32 = 1;
const KEY: i32 = 2;

fn states(event: &Owned, part: i32, column: usize, count: usize) -> Result<Vec<u8>, i32> {
    let mut states = vec![9; count];
    // SAFETY: the buffer is as long as it says.
    match kind(unsafe { nx_event_column_states(event.0, part, column, states.as_mut_ptr(), count) })
    {
        0 => Ok(states),
        kind => Err(kind),
    }
}

fn values(event: &Owned, part: i32, column: usize, len: usize) -> Result<Vec<u8>, i32> {
    // One byte more, to read into memory that is not aligned.
    let mut values = vec![9; len + 1];
    // SAFETY: the buffer is as long as it says.
    let error = unsafe {
        nx_event_column_fixed(
            event.0,
            part,
            column,
            values[1..].as_mut_ptr().cast::<c_void>(),
            len,
        )
    };
    match kind(error) {
        0 => Ok(values[1..].to_vec()),
        kind => Err(kind),
    }
}

fn varlen(
    event: &Owned,
    part: i32,
    column: usize,
    count: usize,
) -> Result<(Vec<u64>, Vec<u8>), i32> {
    let mut len = usize::MAX;
    // SAFETY: without a data buffer only the length is written.
    match kind(unsafe {
        nx_event_column_varlen(
            event.0,
            part,
            column,
            null_mut(),
            0,
            null_mut(),
            0,
            &mut len,
        )
    }) {
        0 => {}
        kind => return Err(kind),
    }
    let (mut offsets, mut data) = (vec![9; count + 1], vec![9; len + 1]);
    let mut written = 0;
    // SAFETY: the buffers are as long as they say.
    let error = unsafe {
        nx_event_column_varlen(
            event.0,
            part,
            column,
            offsets.as_mut_ptr(),
            count + 1,
            data.as_mut_ptr(),
            len,
            &mut written,
        )
    };
    assert_eq!((kind(error), written, data.pop()), (0, len, Some(9)));
    Ok((offsets, data))
}

fn cell(event: &Owned, part: i32, row: usize, column: usize) -> Result<Vec<u8>, i32> {
    let (mut value, mut len) = (null(), 0);
    // SAFETY: the places can be written to, and the value lives as long as the event.
    unsafe {
        match kind(nx_event_cell_varlen(
            event.0, part, row, column, &mut value, &mut len,
        )) {
            0 => Ok(borrowed(value, len).to_vec()),
            kind => Err(kind),
        }
    }
}

fn sample() -> Owned {
    let fields = vec![
        field("u8", scalar(ScalarType::U8)),
        nullable("i64", scalar(ScalarType::I64)),
        field("text", scalar(ScalarType::String)),
        nullable("bytes", scalar(ScalarType::Bytes)),
        sensitive("secret", scalar(ScalarType::String)),
        field("list", list(scalar(ScalarType::U8))),
    ];
    let row = |number: u8, wide, octets| {
        vec![
            u8_cell(number),
            wide,
            text(&"ä\0".repeat(number.into())),
            octets,
            CellValue::RedactedCell,
            cells([u8_cell(1)]),
        ]
    };
    let rows = [
        row(0, i64_cell(-1), CellValue::NullCell),
        row(2, CellValue::NullCell, bytes(&[0xff, 0])),
    ];
    let key = vec![
        field("carrier", scalar(ScalarType::String)),
        field("day", scalar(ScalarType::U8)),
    ];
    Owned::rows(
        branched(fields, key),
        Some(&[text("UA"), u8_cell(7)]),
        &rows,
    )
}

// rule
#[test]
fn columns_read_as_the_header_says() {
    let event = sample();
    // SAFETY: the event is a live one.
    unsafe {
        assert_eq!(
            (nx_event_kind_of(event.0), nx_event_row_count(event.0)),
            (1, 2)
        );
        let (mut name, mut len, mut generation) = (null(), 0, 0);
        nx_event_subscription(event.0, &mut name, &mut len, &mut generation);
        assert_eq!((borrowed(name, len), generation), (&b"flights"[..], 3));
    }
    assert_eq!(states(&event, ROWS, 0, 2), Ok(vec![1, 1]));
    assert_eq!(states(&event, ROWS, 1, 2), Ok(vec![1, 2]));
    assert_eq!(states(&event, ROWS, 4, 2), Ok(vec![3, 3]));
    assert_eq!(states(&event, ROWS, 5, 2), Ok(vec![1, 1]));
    assert_eq!(states(&event, KEY, 0, 1), Ok(vec![1]));
    assert_eq!(values(&event, ROWS, 0, 2), Ok(vec![0, 2]));
    assert_eq!(
        values(&event, ROWS, 1, 16),
        Ok([(-1_i64).to_ne_bytes(), [0; 8]].concat())
    );
    assert_eq!(values(&event, KEY, 1, 1), Ok(vec![7]));
    assert_eq!(
        varlen(&event, ROWS, 2, 2),
        Ok((vec![0, 0, 6], "ä\0ä\0".into()))
    );
    assert_eq!(
        varlen(&event, ROWS, 3, 2),
        Ok((vec![0, 0, 2], vec![0xff, 0]))
    );
    assert_eq!(varlen(&event, ROWS, 4, 2), Ok((vec![0, 0, 0], vec![])));
    assert_eq!(varlen(&event, KEY, 0, 1), Ok((vec![0, 2], "UA".into())));
    assert_eq!(cell(&event, ROWS, 1, 2), Ok("ä\0ä\0".into()));
    assert_eq!(cell(&event, ROWS, 0, 2), Ok(vec![]));
    assert_eq!(cell(&event, ROWS, 1, 3), Ok(vec![0xff, 0]));
    assert_eq!(cell(&event, KEY, 0, 0), Ok("UA".into()));
}

#[test]
fn what_a_column_does_not_hold_is_a_type_error() {
    let event = sample();
    for (column, len) in [(2, 2), (3, 2), (4, 2), (5, 2)] {
        assert_eq!(values(&event, ROWS, column, len), Err(TYPE));
    }
    for column in [0, 1, 5] {
        assert_eq!(varlen(&event, ROWS, column, 2), Err(TYPE));
        assert_eq!(cell(&event, ROWS, 0, column), Err(TYPE));
    }
    assert_eq!(cell(&event, ROWS, 0, 3), Err(TYPE));
    assert_eq!(cell(&event, ROWS, 0, 4), Err(TYPE));
}

#[test]
fn places_that_are_not_there_are_invalid() {
    let event = sample();
    for part in [0, 3, -1] {
        assert_eq!(states(&event, part, 0, 2), Err(INVALID_ARGUMENT));
        assert_eq!(values(&event, part, 0, 2), Err(INVALID_ARGUMENT));
        assert_eq!(varlen(&event, part, 2, 2), Err(INVALID_ARGUMENT));
        assert_eq!(cell(&event, part, 0, 2), Err(INVALID_ARGUMENT));
    }
    for (part, column) in [(ROWS, 6), (KEY, 2), (ROWS, usize::MAX)] {
        assert_eq!(states(&event, part, column, 2), Err(INVALID_ARGUMENT));
        assert_eq!(values(&event, part, column, 2), Err(INVALID_ARGUMENT));
        assert_eq!(varlen(&event, part, column, 2), Err(INVALID_ARGUMENT));
        assert_eq!(cell(&event, part, 0, column), Err(INVALID_ARGUMENT));
    }
    assert_eq!(cell(&event, ROWS, 2, 2), Err(INVALID_ARGUMENT));
    assert_eq!(cell(&event, KEY, 1, 0), Err(INVALID_ARGUMENT));
    let unbranched = Owned::rows(
        schema(vec![field("a", scalar(ScalarType::U8))]),
        None,
        &[vec![u8_cell(1)]],
    );
    assert_eq!(states(&unbranched, KEY, 0, 1), Err(INVALID_ARGUMENT));
}

#[test]
fn buffers_must_fit() {
    let event = sample();
    for count in [0, 1, 3, usize::MAX / 2] {
        let mut one = 9;
        // SAFETY: a length that does not fit is refused before anything is written.
        assert_eq!(
            kind(unsafe { nx_event_column_states(event.0, ROWS, 0, &mut one, count) }),
            INVALID_ARGUMENT
        );
        // SAFETY: as above.
        let error =
            unsafe { nx_event_column_fixed(event.0, ROWS, 1, (&raw mut one).cast(), count) };
        assert_eq!((kind(error), one), (INVALID_ARGUMENT, 9));
    }
    let (mut offsets, mut data, mut len) = ([9_u64; 4], [9_u8; 8], usize::MAX);
    for offsets_len in [0, 2, 4] {
        // SAFETY: a length that does not fit is refused before anything is written.
        let error = unsafe {
            nx_event_column_varlen(
                event.0,
                ROWS,
                2,
                offsets.as_mut_ptr(),
                offsets_len,
                data.as_mut_ptr(),
                8,
                &mut len,
            )
        };
        assert_eq!((kind(error), len), (INVALID_ARGUMENT, usize::MAX));
    }
    // SAFETY: the buffers are as long as they say.
    let error = unsafe {
        nx_event_column_varlen(
            event.0,
            ROWS,
            2,
            offsets.as_mut_ptr(),
            3,
            data.as_mut_ptr(),
            5,
            &mut len,
        )
    };
    assert_eq!((kind(error), len), (INVALID_ARGUMENT, 6));
    assert_eq!((offsets, data), ([9; 4], [9; 8]));
    // SAFETY: NULL is refused.
    unsafe {
        assert_eq!(
            kind(nx_event_column_states(event.0, ROWS, 0, null_mut(), 2)),
            INVALID_ARGUMENT
        );
        assert_eq!(
            kind(nx_event_column_fixed(event.0, ROWS, 0, null_mut(), 2)),
            INVALID_ARGUMENT
        );
        let error = nx_event_column_varlen(
            event.0,
            ROWS,
            2,
            null_mut(),
            3,
            data.as_mut_ptr(),
            8,
            &mut len,
        );
        assert_eq!(kind(error), INVALID_ARGUMENT);
        let error =
            nx_event_column_varlen(event.0, ROWS, 2, null_mut(), 0, null_mut(), 0, null_mut());
        assert_eq!(kind(error), INVALID_ARGUMENT);
        let error = nx_event_cell_varlen(event.0, ROWS, 0, 2, null_mut(), &mut len);
        assert_eq!(kind(error), INVALID_ARGUMENT);
        assert_eq!(
            kind(nx_event_frame(event.0, null_mut(), &mut len)),
            INVALID_ARGUMENT
        );
        assert_eq!(kind(nx_event_schema(event.0, null_mut())), INVALID_ARGUMENT);
        assert_eq!(kind(nx_event_schema(null(), null_mut())), INVALID_ARGUMENT);
    }
}

// rule: B-3
#[test]
fn a_reference_keeps_what_was_borrowed() {
    let rows = checked(
        schema(vec![field("a", scalar(ScalarType::String))]),
        None,
        &[vec![text("kept")]],
    );
    let event = Owned::of(EventKind::Rows(rows.clone()));
    let (mut frame, mut len) = (null(), 0);
    // SAFETY: one reference is added and one released, so that the event lives to the end of the test.
    unsafe {
        assert_eq!(nx_event_retain(event.0), event.0);
        assert_eq!(kind(nx_event_frame(event.0, &mut frame, &mut len)), 0);
        nx_event_release(event.0);
        assert_eq!(borrowed(frame, len), rows.frame().as_slice());
        assert_eq!(frame as usize % 64, 0);
    }
    let mut schema = null_mut();
    // SAFETY: the schema outlives the event it was read from.
    unsafe {
        assert_eq!(kind(nx_event_schema(event.0, &mut schema)), 0);
        drop(event);
        let mut count = 0;
        assert_eq!(
            kind(crate::schema::nx_schema_field_count(
                schema, ROWS, &mut count
            )),
            0
        );
        assert_eq!(count, 1);
        nx_schema_free(schema);
    }
}

#[test]
fn events_without_rows_say_what_they_carry() {
    let lost = EventKind::DeliveryLost { rows: 5 };
    let skipped = EventKind::RowsSkipped {
        rows: 6,
        cause: RowsSkippedCause::EncodingFailed,
        message: "why".to_owned(),
    };
    let ended = EventKind::Ended {
        reason: SubscriptionEndReason::RelayChanged,
        message: "gone".to_owned(),
    };
    let interrupted = EventKind::Interrupted {
        message: "gap".to_owned(),
    };
    let overflow = EventKind::Overflow { dropped: 9 };
    let failed = EventKind::RestorationFailed {
        message: "no".to_owned(),
    };
    let all = [
        (lost, 2, 5, None, None, Some("")),
        (skipped, 3, 6, None, Some(3), Some("why")),
        (ended, 4, 0, Some(2), None, Some("gone")),
        (interrupted, 5, 0, None, None, Some("gap")),
        (overflow, 6, 0, None, None, None),
        (failed, 7, 0, None, None, Some("no")),
    ];
    for (event, number, count, reason, cause, message) in all {
        let event = Owned::of(event);
        // SAFETY: the event is a live one, and the places can be written to.
        unsafe {
            assert_eq!(
                (nx_event_kind_of(event.0), nx_event_row_count(event.0)),
                (number, count)
            );
            let mut written = -1;
            assert_eq!(
                nxx_event_end_reason(event.0, &mut written).then_some(written),
                reason
            );
            assert_eq!(
                nxx_event_skip_cause(event.0, &mut written).then_some(written),
                cause
            );
            let (mut text, mut len) = (null(), 0);
            nxx_event_message(event.0, &mut text, &mut len);
            let text = std::str::from_utf8(borrowed(text, len)).unwrap();
            assert!(message.is_none_or(|message| message == text), "{text}");
            let mut schema = null_mut();
            assert_eq!(
                (kind(nx_event_schema(event.0, &mut schema)), schema),
                (TYPE, null_mut())
            );
            let (mut frame, mut len) = (null(), 0);
            assert_eq!(
                (kind(nx_event_frame(event.0, &mut frame, &mut len)), frame),
                (TYPE, null())
            );
        }
        // Also where the part and the column are wrong: an event without rows has neither.
        assert_eq!(states(&event, 9, 0, 1), Err(TYPE));
        assert_eq!(values(&event, ROWS, 0, 1), Err(TYPE));
        assert_eq!(varlen(&event, ROWS, 0, 1), Err(TYPE));
        assert_eq!(cell(&event, ROWS, 0, 0), Err(TYPE));
    }
}

// rule: R-5
#[test]
fn floats_keep_their_bits() {
    let fields = vec![
        field("f32", scalar(ScalarType::F32)),
        field("f64", scalar(ScalarType::F64)),
        field("at", scalar(ScalarType::Datetime)),
        field("flag", scalar(ScalarType::Bool)),
    ];
    let (small, large) = (
        f32::from_bits(0x7fa0_0001),
        f64::from_bits(0xfff4_0000_0000_0001),
    );
    let row = vec![
        CellValue::F32Cell(F32Cell { value: small }),
        CellValue::F64Cell(F64Cell { value: large }),
        CellValue::DatetimeCell(DatetimeCell {
            unix_nanos: i64::MIN,
        }),
        CellValue::BoolCell(BoolCell { value: true }),
    ];
    let zero = vec![
        CellValue::F32Cell(F32Cell { value: -0.0 }),
        CellValue::F64Cell(F64Cell { value: -0.0 }),
        CellValue::DatetimeCell(DatetimeCell {
            unix_nanos: i64::MAX,
        }),
        CellValue::BoolCell(BoolCell { value: false }),
    ];
    let event = Owned::rows(schema(fields), None, &[row, zero]);
    assert_eq!(
        values(&event, ROWS, 0, 8),
        Ok([0x7fa0_0001_u32.to_ne_bytes(), 0x8000_0000_u32.to_ne_bytes()].concat())
    );
    assert_eq!(
        values(&event, ROWS, 1, 16),
        Ok([large.to_bits().to_ne_bytes(), (1_u64 << 63).to_ne_bytes()].concat())
    );
    assert_eq!(
        values(&event, ROWS, 2, 16),
        Ok([i64::MIN.to_ne_bytes(), i64::MAX.to_ne_bytes()].concat())
    );
    assert_eq!(values(&event, ROWS, 3, 2), Ok(vec![1, 0]));
}

/// A value as a fixed accessor gives it.
fn native(value: &CellValue) -> Option<Vec<u8>> {
    Some(match value {
        CellValue::U8Cell(cell) => cell.value.to_ne_bytes().to_vec(),
        CellValue::I8Cell(cell) => cell.value.to_ne_bytes().to_vec(),
        CellValue::U16Cell(cell) => cell.value.to_ne_bytes().to_vec(),
        CellValue::I16Cell(cell) => cell.value.to_ne_bytes().to_vec(),
        CellValue::U32Cell(cell) => cell.value.to_ne_bytes().to_vec(),
        CellValue::I32Cell(cell) => cell.value.to_ne_bytes().to_vec(),
        CellValue::U64Cell(cell) => cell.value.to_ne_bytes().to_vec(),
        CellValue::I64Cell(cell) => cell.value.to_ne_bytes().to_vec(),
        CellValue::F32Cell(cell) => cell.value.to_bits().to_ne_bytes().to_vec(),
        CellValue::F64Cell(cell) => cell.value.to_bits().to_ne_bytes().to_vec(),
        CellValue::DatetimeCell(cell) => cell.unix_nanos.to_ne_bytes().to_vec(),
        CellValue::BoolCell(cell) => vec![u8::from(cell.value)],
        _ => return None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // rule
    #[test]
    fn every_column_reads_as_what_was_sent((schema, key, rows) in any_rows()) {
        let parts = [(ROWS, Some(&rows[..]), schema.fields.clone()), (
            KEY,
            key.as_ref().map(std::slice::from_ref),
            schema.branch.as_ref().map(|branch| branch.fields.clone()).unwrap_or_default(),
        )];
        let event = Owned::rows(schema.clone(), key.as_deref(), &rows);
        for (part, rows, fields) in parts {
            let rows = rows.unwrap_or_default();
            for column in 0..fields.len() {
                let sent: Vec<&CellValue> = rows.iter().map(|row| &row[column]).collect();
                let wanted: Vec<u8> = sent.iter().map(|value| match value {
                    CellValue::NullCell => 2,
                    CellValue::RedactedCell => 3,
                    _ => 1,
                }).collect();
                prop_assert_eq!(states(&event, part, column, rows.len()).unwrap(), wanted);
                let width = sent.iter().find_map(|value| native(value)).map(|bytes| bytes.len());
                if let Some(width) = width {
                    let wanted: Vec<u8> = sent.iter().flat_map(|value| native(value).unwrap_or(vec![0; width])).collect();
                    prop_assert_eq!(values(&event, part, column, rows.len() * width).unwrap(), wanted);
                }
                if let Ok((offsets, data)) = varlen(&event, part, column, rows.len()) {
                    for (row, value) in sent.iter().enumerate() {
                        let range = offsets[row] as usize..offsets[row + 1] as usize;
                        let octets = match value {
                            CellValue::StringCell(cell) => Some(cell.value.clone().into_bytes()),
                            CellValue::BytesCell(cell) => Some(cell.value.to_vec()),
                            _ => None,
                        };
                        prop_assert_eq!(&data[range], octets.as_deref().unwrap_or_default(), "{}", exact(value));
                        prop_assert_eq!(cell(&event, part, row, column), octets.ok_or(TYPE));
                    }
                }
            }
        }
    }
}

#[test]
fn a_null_fixed_list_is_a_state() {
    let of_lists = schema(vec![nullable("a", fixed(scalar(ScalarType::U8), 2))]);
    let event = Owned::rows(
        of_lists,
        None,
        &[
            vec![CellValue::NullCell],
            vec![cells([u8_cell(1), u8_cell(2)])],
        ],
    );
    assert_eq!(states(&event, ROWS, 0, 2), Ok(vec![2, 1]));
    assert_eq!(values(&event, ROWS, 0, 4), Err(TYPE));
}
