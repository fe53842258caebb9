//! Random schemas and batches, each from a number.

use std::sync::Arc;

use nervix_batch::{levels, width, Batch, Builder};
use nervix_wire::types::{FieldType, FieldTypeShape, RowSchema, ScalarType};

use super::{field, fixed, list, nullable, scalar, schema};

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

pub const SCALARS: [ScalarType; 14] = [
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

fn field_type(random: &mut Random) -> FieldType {
    let mut found = scalar(SCALARS[random.below(14) as usize]);
    for _ in 0..random.below(4) {
        found = match random.below(2) {
            0 => list(found),
            _ => fixed(found, 1 + random.below(3) as u32),
        };
    }
    found
}

pub fn any_schema(random: &mut Random) -> Arc<RowSchema> {
    let fields = (0..1 + random.below(4)).map(|index| {
        let found = field(&format!("f{index}"), field_type(random));
        match random.below(2) {
            0 => found,
            _ => nullable(found),
        }
    });
    schema(fields.collect())
}

fn offsets(random: &mut Random, cells: usize) -> Vec<u64> {
    let mut offsets = vec![0];
    // Many lists are short, or deep ones would never end.
    let most = if cells > 40 { 2 } else { 4 };
    for _ in 0..cells {
        offsets.push(offsets.last().unwrap() + random.below(most));
    }
    offsets
}

const LETTERS: [&str; 6] = ["a", "\0", "é", "漢", "🦀", ""];

/// Fills a builder with random values of its schema.
pub fn fill(random: &mut Random, builder: &mut Builder, schema: &RowSchema, rows: usize) {
    for (column, field) in schema.fields.iter().enumerate() {
        if field.nullable && random.below(4) > 0 {
            let states: Vec<u8> = (0..rows).map(|_| 1 + (random.below(3) / 2) as u8).collect();
            builder.states(column, &states).unwrap();
        }
        let mut cells = rows;
        for (level, found) in levels(&field.field_type).enumerate() {
            let kind = match &found.shape {
                FieldTypeShape::ListFieldType(_) => {
                    let ends = offsets(random, cells);
                    cells = *ends.last().unwrap() as usize;
                    builder.offsets(column, level, ends.into_iter()).unwrap();
                    continue;
                }
                FieldTypeShape::FixedListFieldType(list) => {
                    cells *= list.length as usize;
                    continue;
                }
                FieldTypeShape::ScalarFieldType(scalar) => scalar.scalar,
            };
            match width(kind) {
                Some(width) => {
                    let mut values = vec![0; cells * width];
                    for byte in &mut values {
                        *byte = match kind {
                            ScalarType::Bool => random.below(2) as u8,
                            _ => random.below(256) as u8,
                        };
                    }
                    builder.fixed(column, level, &values).unwrap();
                }
                None => {
                    let (mut ends, mut data) = (vec![0_u64], Vec::new());
                    for _ in 0..cells {
                        for _ in 0..random.below(3) {
                            match kind {
                                ScalarType::String => data.extend_from_slice(
                                    LETTERS[random.below(6) as usize].as_bytes(),
                                ),
                                _ => data.push(random.below(256) as u8),
                            }
                        }
                        ends.push(data.len() as u64);
                    }
                    builder
                        .varlen(column, level, ends.into_iter(), &data)
                        .unwrap();
                }
            }
        }
    }
}

pub fn any_batch(seed: u64) -> Batch {
    let mut random = Random::new(seed);
    let schema = any_schema(&mut random);
    let rows = random.below(12) as usize;
    let mut builder = Builder::new(Arc::clone(&schema), rows).unwrap();
    fill(&mut random, &mut builder, &schema, rows);
    builder.finish().unwrap()
}
