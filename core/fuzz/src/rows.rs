//! Rows against a schema: those of a frame as it comes, or of one that was written and damaged. What passes R-2 hands out
//! every cell, says the same in each way of reading, and passes again when it is written anew.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use nervix_wire::types::*;
use nervix_wire::{decode_server, encode_rows, CheckedRows, Frame, Part};

use crate::given;

fn check(frame: &[u8], schema: &Arc<RowSchema>) -> Option<CheckedRows> {
    match decode_server(&Frame::copy_from(frame)).ok()?.body {
        ServerBody::SubscriptionRows(rows) => rows.check(Arc::clone(schema)).ok(),
        _ => None,
    }
}

/// Every cell of a part, row by row.
fn cells(rows: &CheckedRows, part: Part) -> Vec<Vec<CellValue>> {
    let count = match part {
        Part::Rows => rows.row_count(),
        Part::BranchKey => usize::from(rows.has_key()),
    };
    let width = rows.fields(part).len();
    for column in 0..width {
        let by_column = rows.column(part, column).unwrap();
        let by_cell = (0..count).map(|row| rows.cell(part, row, column).unwrap());
        let (one, other): (Vec<_>, Vec<_>) = (by_column.collect(), by_cell.collect());
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }
    assert!(rows.column(part, width).is_none());
    assert!(rows.cell(part, count, 0).is_none());
    (0..count)
        .map(|row| {
            (0..width)
                .map(|column| rows.cell(part, row, column).unwrap().to_value())
                .collect()
        })
        .collect()
}

fn survey(frame: &[u8], schema: &Arc<RowSchema>) -> bool {
    let Some(rows) = check(frame, schema) else {
        return false;
    };
    let (key, values) = (cells(&rows, Part::BranchKey), cells(&rows, Part::Rows));
    assert_eq!(rows.has_key(), schema.branch.is_some());
    let key_cells = key.first().map(Vec::as_slice);
    if let Ok(again) = encode_rows(rows.subscription(), key_cells, &values) {
        let again =
            check(&again, schema).expect("rows that conform do so when they are written anew");
        assert_eq!(
            format!("{:?}", cells(&again, Part::Rows)),
            format!("{values:?}")
        );
        assert_eq!(
            format!("{:?}", cells(&again, Part::BranchKey)),
            format!("{key:?}")
        );
    }
    true
}

fn made(u: &mut Unstructured<'_>) -> Result<()> {
    let schema = Arc::new(given::schema(u)?);
    let handle = SubscriptionHandle {
        name: "s".into(),
        generation: u.int_in_range(1..=u64::MAX)?,
    };
    let key = schema
        .branch
        .as_ref()
        .map(|branch| given::cells(u, &branch.fields))
        .transpose()?;
    let rows: Result<Vec<Vec<CellValue>>> = (0..u.int_in_range(1..=4)?)
        .map(|_| given::cells(u, &schema.fields))
        .collect();
    let mut frame = encode_rows(&handle, key.as_deref(), &rows?).unwrap();
    assert!(survey(&frame, &schema), "rows of the schema conform to it");
    given::damage(u, &mut frame)?;
    survey(&frame, &schema);
    // Or they are read against another schema than they were written for.
    let other = Arc::new(given::schema(u)?);
    survey(&frame, &other);
    Ok(())
}

/// A byte says how many bytes describe the schema; the frame follows them. 255 is for a frame that is made up here.
pub fn run(data: &[u8]) {
    let Some((length, rest)) = data.split_first() else {
        return;
    };
    if *length == u8::MAX {
        let _ = made(&mut Unstructured::new(rest));
        return;
    }
    if let Some((described, frame)) = rest.split_at_checked(usize::from(*length)) {
        if let Ok(schema) = given::schema(&mut Unstructured::new(described)) {
            survey(frame, &Arc::new(schema));
        }
    }
}
