//! Schemas, values and damage from the bytes of an input.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use nervix_batch::{levels, width, Batch, Builder};
use nervix_wire::types::*;

/// Changes some bytes, or none.
pub fn damage(u: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Result<()> {
    for _ in 0..u.int_in_range(0..=3)? {
        if bytes.is_empty() {
            break;
        }
        let at = u.choose_index(bytes.len())?;
        match u.int_in_range(0..=4)? {
            0 => bytes[at] ^= 1 << u.int_in_range(0..=7)?,
            1 => bytes[at] = u.arbitrary()?,
            2 => {
                let word: u32 = u.arbitrary()?;
                let end = bytes.len().min(at + 4);
                bytes[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
            }
            3 => bytes.truncate(at),
            _ => bytes.insert(at, u.arbitrary()?),
        }
    }
    Ok(())
}

fn field_type(u: &mut Unstructured<'_>) -> Result<FieldType> {
    let scalar = *u.choose(ScalarType::ALL)?;
    let mut found = FieldType {
        shape: FieldTypeShape::ScalarFieldType(ScalarFieldType { scalar }),
    };
    for _ in 0..u.int_in_range(0..=4)?.max(2) - 2 {
        let element = found;
        found = FieldType {
            shape: if u.ratio(1, 2)? {
                FieldTypeShape::ListFieldType(Box::new(ListFieldType { element }))
            } else {
                let length = u.int_in_range(1..=3)?;
                FieldTypeShape::FixedListFieldType(Box::new(FixedListFieldType { element, length }))
            },
        };
    }
    Ok(found)
}

pub fn fields(u: &mut Unstructured<'_>, sensitive: bool) -> Result<Vec<RowField>> {
    (0..u.int_in_range(1..=4)?)
        .map(|index| {
            Ok(RowField {
                name: format!("f{index}"),
                field_type: field_type(u)?,
                nullable: u.arbitrary()?,
                sensitive: sensitive && u.ratio(1, 5)?,
            })
        })
        .collect()
}

pub fn schema(u: &mut Unstructured<'_>) -> Result<RowSchema> {
    let branch = u.ratio(1, 3)?;
    Ok(RowSchema {
        fields: fields(u, true)?,
        branch: if branch {
            Some(RowBranch {
                branch: "b".into(),
                fields: fields(u, true)?,
            })
        } else {
            None
        },
    })
}

fn text(u: &mut Unstructured<'_>) -> Result<String> {
    let len = u.int_in_range(0..=6)?;
    Ok(String::from_utf8_lossy(u.bytes(len)?).into_owned())
}

fn value(u: &mut Unstructured<'_>, of: &FieldType) -> Result<CellValue> {
    let elements = |u: &mut Unstructured<'_>, element: &FieldType, count: u32| {
        let elements: Result<Vec<Cell>> = (0..count)
            .map(|_| {
                Ok(Cell {
                    value: value(u, element)?,
                })
            })
            .collect();
        Ok(CellValue::ListCell(ListCell {
            elements: elements?,
        }))
    };
    let scalar = match &of.shape {
        FieldTypeShape::ScalarFieldType(scalar) => scalar.scalar,
        FieldTypeShape::ListFieldType(list) => {
            let count = u.int_in_range(0..=3)?;
            return elements(u, &list.element, count);
        }
        FieldTypeShape::FixedListFieldType(list) => return elements(u, &list.element, list.length),
    };
    Ok(match scalar {
        ScalarType::U8 => CellValue::U8Cell(U8Cell {
            value: u.arbitrary()?,
        }),
        ScalarType::I8 => CellValue::I8Cell(I8Cell {
            value: u.arbitrary()?,
        }),
        ScalarType::U16 => CellValue::U16Cell(U16Cell {
            value: u.arbitrary()?,
        }),
        ScalarType::I16 => CellValue::I16Cell(I16Cell {
            value: u.arbitrary()?,
        }),
        ScalarType::U32 => CellValue::U32Cell(U32Cell {
            value: u.arbitrary()?,
        }),
        ScalarType::I32 => CellValue::I32Cell(I32Cell {
            value: u.arbitrary()?,
        }),
        ScalarType::U64 => CellValue::U64Cell(U64Cell {
            value: u.arbitrary()?,
        }),
        ScalarType::I64 => CellValue::I64Cell(I64Cell {
            value: u.arbitrary()?,
        }),
        ScalarType::F32 => CellValue::F32Cell(F32Cell {
            value: u.arbitrary()?,
        }),
        ScalarType::F64 => CellValue::F64Cell(F64Cell {
            value: u.arbitrary()?,
        }),
        ScalarType::Bool => CellValue::BoolCell(BoolCell {
            value: u.arbitrary()?,
        }),
        ScalarType::Datetime => CellValue::DatetimeCell(DatetimeCell {
            unix_nanos: u.arbitrary()?,
        }),
        ScalarType::String => CellValue::StringCell(StringCell { value: text(u)? }),
        ScalarType::Bytes => {
            let len = u.int_in_range(0..=6)?;
            CellValue::BytesCell(BytesCell {
                value: Bytes::copy_from_slice(u.bytes(len)?),
            })
        }
    })
}

/// One cell a field, as a server may send them.
pub fn cells(u: &mut Unstructured<'_>, fields: &[RowField]) -> Result<Vec<CellValue>> {
    fields
        .iter()
        .map(|field| {
            if field.sensitive {
                Ok(CellValue::RedactedCell)
            } else if field.nullable && u.ratio(1, 4)? {
                Ok(CellValue::NullCell)
            } else {
                value(u, &field.field_type)
            }
        })
        .collect()
}

fn ends(u: &mut Unstructured<'_>, count: usize) -> Result<Vec<u64>> {
    let mut ends = vec![0];
    for _ in 0..count {
        let next = ends.last().unwrap() + u.int_in_range(0..=2)?;
        ends.push(next);
    }
    Ok(ends)
}

/// A batch of a schema, built as a host builds one.
pub fn batch(u: &mut Unstructured<'_>, schema: &Arc<RowSchema>) -> Result<Batch> {
    let rows = u.int_in_range(0..=5)?;
    let mut builder = Builder::new(Arc::clone(schema), rows).unwrap();
    for (column, field) in schema.fields.iter().enumerate() {
        if field.nullable {
            let states: Result<Vec<u8>> = (0..rows).map(|_| u.int_in_range(1..=2)).collect();
            builder.states(column, &states?).unwrap();
        }
        let mut cells = rows;
        for (level, found) in levels(&field.field_type).enumerate() {
            let kind = match &found.shape {
                FieldTypeShape::ListFieldType(_) => {
                    let ends = ends(u, cells)?;
                    cells = usize::try_from(*ends.last().unwrap()).unwrap();
                    builder.offsets(column, level, ends.into_iter()).unwrap();
                    continue;
                }
                FieldTypeShape::FixedListFieldType(list) => {
                    cells *= list.length as usize;
                    continue;
                }
                FieldTypeShape::ScalarFieldType(scalar) => scalar.scalar,
            };
            if let Some(width) = width(kind) {
                let mut values = vec![0; cells * width];
                u.fill_buffer(&mut values)?;
                if kind == ScalarType::Bool {
                    values.iter_mut().for_each(|value| *value &= 1);
                }
                builder.fixed(column, level, &values).unwrap();
            } else {
                let ends = ends(u, cells)?;
                let mut data = vec![0; usize::try_from(*ends.last().unwrap()).unwrap()];
                u.fill_buffer(&mut data)?;
                data.iter_mut().for_each(|byte| *byte &= 0x7f);
                builder
                    .varlen(column, level, ends.into_iter(), &data)
                    .unwrap();
            }
        }
    }
    Ok(builder.finish().unwrap())
}
