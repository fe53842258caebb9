//! Damaged streams: nothing panics, and what is accepted is what Arrow's own reader sees.

use std::panic::catch_unwind;
use std::sync::Arc;

use bytes::Bytes;
use nervix_batch::{Batch, Builder};
use nervix_wire::types::{FieldTypeShape, RowSchema, ScalarType};
use proptest::prelude::*;

use super::random::{any_batch, Random};
use super::round_trip::arrow;
use super::{everything, field, is_stream, list, nullable, scalar, schema};

/// Reads everything of a stream that is accepted.
fn survey(schema: &Arc<RowSchema>, stream: Vec<u8>) -> Option<Batch> {
    let batch = Batch::read(Arc::clone(schema), Bytes::from(stream)).ok()?;
    everything(&batch);
    for (column, field) in schema.fields.iter().enumerate() {
        let innermost = nervix_batch::levels(&field.field_type).count() - 1;
        let last = nervix_batch::levels(&field.field_type).last().unwrap();
        if !matches!(&last.shape, FieldTypeShape::ScalarFieldType(kind) if kind.scalar == ScalarType::String)
        {
            continue;
        }
        // What is given out as text is text, null or not.
        let text = batch.varlen(column, innermost).unwrap();
        let offsets: Vec<u64> = text.offsets().collect();
        for pair in offsets.windows(2) {
            std::str::from_utf8(&text.data()[pair[0] as usize..pair[1] as usize]).unwrap();
        }
    }
    Some(batch)
}

/// What Arrow's reader makes of it, unless it panics.
fn agrees(batch: &Batch, stream: &[u8]) -> bool {
    let theirs = catch_unwind(|| arrow(stream));
    match theirs {
        Ok(Some(theirs)) => theirs == batch.to_arrow().unwrap(),
        _ => true,
    }
}

fn quietly<T>(run: impl FnOnce() -> T) -> T {
    // Arrow's reader panics on some of what ours refuses; nobody has to read of it.
    static QUIET: std::sync::Once = std::sync::Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let ours = panic
                .location()
                .is_none_or(|place| !place.file().contains("arrow"));
            if ours {
                usual(panic);
            }
        }));
    });
    run()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    // rule: EC-3
    #[test]
    fn flipped_bits_never_panic_and_never_lie(seed: u64, flips in prop::collection::vec(any::<u64>(), 1..4)) {
        let built = any_batch(seed);
        let mut stream = built.stream().unwrap().to_vec();
        for flip in flips {
            let at = (flip >> 8) as usize % stream.len();
            stream[at] ^= 1 << (flip % 8);
        }
        if let Some(batch) = survey(built.schema(), stream.clone()) {
            prop_assert!(quietly(|| agrees(&batch, &stream)));
        }
    }

    // rule: EC-3
    #[test]
    fn overwritten_words_never_panic(seed: u64, writes in prop::collection::vec((any::<u64>(), any::<u64>()), 1..4)) {
        let built = any_batch(seed);
        let mut stream = built.stream().unwrap().to_vec();
        for (place, value) in writes {
            let value = match value % 5 {
                0 => u32::MAX,
                1 => 1 << 31,
                2 => 0,
                3 => i32::MAX as u32,
                _ => (value >> 8) as u32 % 64,
            };
            let at = (place as usize % (stream.len() - 3)) & !3;
            stream[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        survey(built.schema(), stream);
    }

    #[test]
    fn random_bytes_are_no_stream(seed: u64, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let built = any_batch(seed);
        prop_assert!(survey(built.schema(), bytes.clone()).is_none());
        // Behind a schema that is right, too.
        let stream = built.stream().unwrap();
        let metadata = u32::from_le_bytes(stream[4..8].try_into().unwrap()) as usize;
        let mut stream = stream[..8 + metadata].to_vec();
        stream.extend(bytes);
        prop_assert!(survey(built.schema(), stream).is_none());
    }

    // rule: EC-3
    #[test]
    fn a_stream_that_ends_early_is_none(seed: u64) {
        let built = any_batch(seed);
        let stream = built.stream().unwrap();
        for end in 0..stream.len() {
            prop_assert!(survey(built.schema(), stream[..end].to_vec()).is_none());
        }
    }

    #[test]
    fn a_stream_of_another_schema_is_refused_or_the_same(seed: u64) {
        let built = any_batch(seed);
        let other = super::random::any_schema(&mut Random::new(seed.wrapping_add(1)));
        let read = Batch::read(Arc::clone(&other), built.stream().unwrap().clone());
        prop_assert_eq!(read.is_ok(), other.fields.iter().zip(&built.schema().fields).all(|(one, two)| {
            (&one.name, &one.field_type, one.nullable) == (&two.name, &two.field_type, two.nullable)
        }) && other.fields.len() == built.schema().fields.len());
    }
}

/// The stream with the one place where `from` stands overwritten.
fn patched(stream: &[u8], from: &[u8], to: &[u8]) -> Bytes {
    let found: Vec<usize> = (0..stream.len() - from.len())
        .filter(|at| stream[*at..].starts_with(from))
        .collect();
    assert_eq!(found.len(), 1);
    let mut patched = stream.to_vec();
    patched[found[0]..found[0] + to.len()].copy_from_slice(to);
    Bytes::from(patched)
}

// rule: EC-3, R-3
#[test]
fn text_is_text_where_there_is_a_value_and_nothing_elsewhere() {
    let schema = schema(vec![nullable(field("a", list(scalar(ScalarType::String))))]);
    let mut builder = Builder::new(Arc::clone(&schema), 2).unwrap();
    builder.states(0, &[1, 2]).unwrap();
    builder.offsets(0, 0, [0, 1, 2].into_iter()).unwrap();
    builder
        .varlen(0, 1, [0, 5, 10].into_iter(), b"valueghost")
        .unwrap();
    let batch = builder.finish().unwrap();
    let stream = batch.stream().unwrap();
    let broken = patched(stream, b"value", &[0xff; 5]);
    assert!(is_stream(Batch::read(Arc::clone(&schema), broken)).contains("UTF-8"));
    let ghost = patched(stream, b"ghost", &[0xff; 5]);
    let read = Batch::read(schema, ghost).unwrap();
    assert_eq!(everything(&read), everything(&batch));
    assert_eq!(read.varlen(0, 1).unwrap().data(), b"value\0\0\0\0\0");
}

// rule: EC-3
#[test]
fn offsets_that_decrease_or_lead_outside_are_refused() {
    let schema = schema(vec![field("a", scalar(ScalarType::Bytes))]);
    let mut builder = Builder::new(Arc::clone(&schema), 3).unwrap();
    builder
        .varlen(0, 0, [0, 17, 18, 19].into_iter(), &[1; 19])
        .unwrap();
    let batch = builder.finish().unwrap();
    let words = |offsets: [i32; 4]| {
        offsets
            .iter()
            .flat_map(|end| end.to_le_bytes())
            .collect::<Vec<_>>()
    };
    for offsets in [
        [0, 18, 17, 19],
        [0, 17, 18, 20],
        [0, 17, 18, i32::MAX],
        [-1, 17, 18, 19],
        [0, -17, 18, 19],
        [0, 17, 18, -1],
        [i32::MIN, 17, 18, 19],
    ] {
        let stream = patched(
            batch.stream().unwrap(),
            &words([0, 17, 18, 19]),
            &words(offsets),
        );
        is_stream(Batch::read(Arc::clone(&schema), stream));
    }
    // They may begin later.
    let stream = patched(
        batch.stream().unwrap(),
        &words([0, 17, 18, 19]),
        &words([5, 17, 18, 19]),
    );
    let read = Batch::read(schema, stream).unwrap();
    assert_eq!(
        read.varlen(0, 0).unwrap().offsets().collect::<Vec<_>>(),
        [0, 12, 13, 14]
    );
    assert_eq!(read.varlen(0, 0).unwrap().data().len(), 14);
}
