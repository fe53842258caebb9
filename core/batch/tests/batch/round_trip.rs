//! What is written is what is read.

use std::sync::Arc;

use arrow_array::{Array, RecordBatch, StructArray};
use arrow_ipc::reader::StreamReader;
use bytes::Bytes;
use nervix_batch::{Batch, Builder};
use nervix_wire::types::ScalarType;
use proptest::prelude::*;

use super::random::{any_batch, fill, Random, SCALARS};
use super::{everything, field, fixed, list, nullable, scalar, schema};

/// What Arrow's own reader makes of a stream.
pub fn arrow(stream: &[u8]) -> Option<StructArray> {
    let mut reader = StreamReader::try_new(stream, None).ok()?;
    let batch: RecordBatch = reader.next()?.ok()?;
    reader.next().is_none().then(|| StructArray::from(batch))
}

/// Where the buffers of an array lie.
fn addresses(array: &arrow_data::ArrayData, found: &mut Vec<(usize, usize)>) {
    for buffer in array.buffers() {
        found.push((buffer.as_ptr() as usize, buffer.len()));
    }
    if let Some(nulls) = array.nulls() {
        found.push((nulls.buffer().as_ptr() as usize, nulls.buffer().len()));
    }
    for child in array.child_data() {
        addresses(child, found);
    }
}

fn aligned(stream: &[u8]) -> Bytes {
    nervix_wire::Frame::copy_from(stream).to_bytes()
}

proptest! {
    // rule: P-3, EC-3, B-13, R-3, R-5
    #[test]
    fn what_is_built_is_written_and_read(seed: u64) {
        let built = any_batch(seed);
        let stream = built.stream().unwrap().clone();
        let read = Batch::read(Arc::clone(built.schema()), stream.clone()).unwrap();
        prop_assert_eq!(read.rows(), built.rows());
        prop_assert_eq!(everything(&read), everything(&built));
        prop_assert_eq!(read.stream().unwrap(), &stream);
        // Arrow's own reader sees the same, in the same types.
        let theirs = arrow(&stream).unwrap();
        let ours = built.to_arrow().unwrap();
        prop_assert_eq!(theirs.data_type(), ours.data_type());
        prop_assert_eq!(&theirs, &read.to_arrow().unwrap());
        // Written again from its columns, it is the same stream.
        let columns: Vec<_> = read.to_arrow().unwrap().columns().iter().map(|one| one.to_data()).collect();
        let again = Batch::copy_from(Arc::clone(built.schema()), built.rows(), &columns).unwrap();
        prop_assert_eq!(again.stream().unwrap(), &stream);
    }

    #[test]
    fn a_batch_lies_in_its_stream(seed: u64) {
        let built = any_batch(seed);
        let stream = aligned(built.stream().unwrap());
        let read = Batch::read(Arc::clone(built.schema()), stream.clone()).unwrap();
        let mut places = Vec::new();
        addresses(&read.to_arrow().unwrap().to_data(), &mut places);
        let begin = stream.as_ptr() as usize;
        for (address, length) in places {
            let within = address >= begin && address + length <= begin + stream.len();
            // The one offset of no rows has no place of its own.
            prop_assert!(within || built.rows() == 0 || length <= 4, "{address} {length}");
        }
    }

    #[test]
    fn a_stream_may_lie_anywhere(seed: u64, shift in 1_usize..8) {
        let built = any_batch(seed);
        let mut bytes = vec![0; shift];
        bytes.extend_from_slice(built.stream().unwrap());
        let stream = aligned(&bytes).slice(shift..);
        let read = Batch::read(Arc::clone(built.schema()), stream).unwrap();
        prop_assert_eq!(everything(&read), everything(&built));
    }

    #[test]
    fn a_builder_builds_again(seed: u64) {
        let fields = vec![nullable(field("a", scalar(ScalarType::U16))), field("b", list(scalar(ScalarType::String)))];
        let schema = schema(fields);
        let mut builder = Builder::new(Arc::clone(&schema), 3).unwrap();
        prop_assert!(builder.finish().is_err());
        fill(&mut Random::new(seed), &mut builder, &schema, 3);
        let first = builder.finish().unwrap();
        // Nothing is left of the first.
        prop_assert!(builder.finish().is_err());
        fill(&mut Random::new(seed), &mut builder, &schema, 3);
        prop_assert_eq!(everything(&builder.finish().unwrap()), everything(&first));
    }
}

// rule: P-3
#[test]
fn a_stream_is_the_schema_one_batch_and_the_end() {
    let mut builder = Builder::new(schema(vec![field("a", scalar(ScalarType::I64))]), 2).unwrap();
    builder.fixed(0, 0, &[7; 16]).unwrap();
    let batch = builder.finish().unwrap();
    let stream = batch.stream().unwrap();
    assert_eq!(stream[..4], [0xff; 4]);
    assert_eq!(
        stream[stream.len() - 8..],
        [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]
    );
    assert_eq!(stream.len() % 8, 0);
    // No validity buffer is written where nothing is null, and the values are there once.
    assert_eq!(
        stream
            .windows(16)
            .filter(|window| *window == [7; 16])
            .count(),
        1
    );
}

// rule: F-6
#[test]
fn every_type_goes_through_at_every_depth() {
    for kind in SCALARS {
        for depth in [0, 1, 2, 28, 32] {
            for lists in [true, false] {
                let kind = (0..depth).fold(scalar(kind), |element, _| match lists {
                    true => list(element),
                    false => fixed(element, 1),
                });
                let schema = schema(vec![nullable(field("deep", kind))]);
                for rows in [0, 1, 9] {
                    let mut builder = Builder::new(Arc::clone(&schema), rows).unwrap();
                    fill(&mut Random::new(1), &mut builder, &schema, rows);
                    let built = builder.finish().unwrap();
                    let stream = built.stream().unwrap().clone();
                    let read = Batch::read(Arc::clone(&schema), stream).unwrap();
                    assert_eq!(everything(&read), everything(&built));
                }
            }
        }
    }
}
