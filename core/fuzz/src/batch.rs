//! Arrow IPC streams of a peer against a schema. What is accepted can be read whole, is valid as Arrow says, survives the C data
//! interface, and is the same batch when it is written anew.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use arrow_array::ffi::{from_ffi, to_ffi};
use arrow_array::{Array, StructArray};
use bytes::Bytes;
use nervix_batch::{levels, width, Batch, Refusal};
use nervix_wire::types::{FieldTypeShape, RowSchema, ScalarType};

use crate::given;

/// Reads everything as hosts do.
fn read(batch: &Batch) {
    for (column, field) in batch.schema().fields.iter().enumerate() {
        assert_eq!(batch.states(column).unwrap().count(), batch.rows());
        let count = levels(&field.field_type).count();
        assert_eq!(batch.cells(column, 0).unwrap(), batch.rows());
        for (level, found) in levels(&field.field_type).enumerate() {
            let cells = batch.cells(column, level).unwrap();
            match &found.shape {
                FieldTypeShape::ListFieldType(_) => {
                    let offsets = batch.offsets(column, level).unwrap();
                    assert_eq!(offsets.len(), cells + 1);
                    assert_eq!(offsets[0], 0);
                    assert!(offsets.windows(2).all(|pair| pair[0] <= pair[1]));
                    let inside = batch.cells(column, level + 1).unwrap() as u64;
                    assert_eq!(offsets[cells], inside);
                }
                FieldTypeShape::FixedListFieldType(list) => {
                    let inside = batch.cells(column, level + 1).unwrap();
                    assert_eq!(inside, cells * list.length as usize);
                }
                FieldTypeShape::ScalarFieldType(scalar) => match width(scalar.scalar) {
                    Some(width) => {
                        let length = batch.fixed_len(column, level).unwrap();
                        assert_eq!(length, cells * width);
                        let mut values = vec![0; length];
                        batch.write_fixed(column, level, &mut values).unwrap();
                    }
                    None => {
                        let values = batch.varlen(column, level).unwrap();
                        let offsets: Vec<u64> = values.offsets().collect();
                        assert_eq!(offsets.len(), cells + 1);
                        for pair in offsets.windows(2) {
                            let value = &values.data()[pair[0] as usize..pair[1] as usize];
                            if scalar.scalar == ScalarType::String {
                                std::str::from_utf8(value).unwrap();
                            }
                        }
                    }
                },
            }
        }
        assert!(matches!(
            batch.cells(column, count),
            Err(Refusal::Argument(_))
        ));
    }
    assert!(batch.cells(batch.schema().fields.len(), 0).is_err());
}

fn survey(schema: &Arc<RowSchema>, stream: Bytes) -> bool {
    let Ok(batch) = Batch::read(Arc::clone(schema), stream) else {
        return false;
    };
    read(&batch);
    let ours = batch.to_arrow().unwrap();
    let data = ours.to_data();
    data.validate_full().unwrap();
    let (array, arrow_schema) = to_ffi(&data).unwrap();
    // SAFETY: both were just exported, and are consumed here.
    let imported = StructArray::from(unsafe { from_ffi(array, &arrow_schema) }.unwrap());
    assert_eq!(imported, ours);
    let columns: Vec<_> = imported
        .columns()
        .iter()
        .map(|column| column.to_data())
        .collect();
    let again = Batch::copy_from(Arc::clone(schema), batch.rows(), &columns).unwrap();
    assert_eq!(again.to_arrow().unwrap(), ours);
    true
}

fn made(u: &mut Unstructured<'_>) -> Result<()> {
    let schema = Arc::new(RowSchema {
        fields: given::fields(u, false)?,
        branch: None,
    });
    let built = given::batch(u, &schema)?;
    read(&built);
    let stream = built.stream().unwrap().clone();
    assert!(
        survey(&schema, stream.clone()),
        "a batch that was built reads"
    );
    let mut damaged = stream.to_vec();
    given::damage(u, &mut damaged)?;
    survey(&schema, damaged.into());
    let other = Arc::new(RowSchema {
        fields: given::fields(u, false)?,
        branch: None,
    });
    survey(&other, stream);
    Ok(())
}

/// A byte says how many bytes describe the schema; the stream follows them. 255 is for a stream that is made up here.
pub fn run(data: &[u8]) {
    let Some((length, rest)) = data.split_first() else {
        return;
    };
    if *length == u8::MAX {
        let _ = made(&mut Unstructured::new(rest));
        return;
    }
    if let Some((described, stream)) = rest.split_at_checked(usize::from(*length)) {
        if let Ok(fields) = given::fields(&mut Unstructured::new(described), false) {
            let schema = Arc::new(RowSchema {
                fields,
                branch: None,
            });
            survey(&schema, Bytes::copy_from_slice(stream));
        }
    }
}
