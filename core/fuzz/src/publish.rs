//! What is published at the node past every endpoint: Arrow IPC streams, damaged or of other fields, and JSON. The node refuses
//! it, or takes as many rows as its client would read.

use std::cell::RefCell;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use nervix_batch::Batch;
use nervix_loopback_fuzz::fuzz::Relay;
use nervix_wire::types::{RowField, RowSchema};

use crate::given;

/// The fields of every relay here, as NSPL and as the client has them.
const FIELDS: &str = "a U8, b I8 OPTIONAL, c U16, d I32 OPTIONAL, e U64, f F32, g F64 OPTIONAL, h BOOL OPTIONAL, \
    i STRING OPTIONAL, j BYTES, k DATETIME OPTIONAL, l VEC<STRING> OPTIONAL, m ARRAY<I16, 2, 2>, n VEC<ARRAY<BOOL, 3>>";

pub fn schema() -> Arc<RowSchema> {
    use nervix_wire::types::{
        FieldType, FieldTypeShape, FixedListFieldType, ListFieldType, ScalarFieldType, ScalarType,
    };
    let scalar = |scalar| FieldType {
        shape: FieldTypeShape::ScalarFieldType(ScalarFieldType { scalar }),
    };
    let list = |element| FieldType {
        shape: FieldTypeShape::ListFieldType(Box::new(ListFieldType { element })),
    };
    let fixed = |element, length| FieldType {
        shape: FieldTypeShape::FixedListFieldType(Box::new(FixedListFieldType { element, length })),
    };
    let fields = [
        ("a", scalar(ScalarType::U8), false),
        ("b", scalar(ScalarType::I8), true),
        ("c", scalar(ScalarType::U16), false),
        ("d", scalar(ScalarType::I32), true),
        ("e", scalar(ScalarType::U64), false),
        ("f", scalar(ScalarType::F32), false),
        ("g", scalar(ScalarType::F64), true),
        ("h", scalar(ScalarType::Bool), true),
        ("i", scalar(ScalarType::String), true),
        ("j", scalar(ScalarType::Bytes), false),
        ("k", scalar(ScalarType::Datetime), true),
        ("l", list(scalar(ScalarType::String)), true),
        ("m", fixed(fixed(scalar(ScalarType::I16), 2), 2), false),
        ("n", list(fixed(scalar(ScalarType::Bool), 3)), false),
    ];
    Arc::new(RowSchema {
        fields: fields
            .into_iter()
            .map(|(name, field_type, nullable)| RowField {
                name: name.into(),
                field_type,
                nullable,
                sensitive: false,
            })
            .collect(),
        branch: None,
    })
}

thread_local! {
    static RELAY: RefCell<Relay> = RefCell::new(Relay::new(FIELDS).expect("these fields make a schema"));
    static SCHEMA: Arc<RowSchema> = schema();
}

fn publish(stream: &[u8]) -> bool {
    let theirs = RELAY.with_borrow_mut(|relay| relay.publish(stream));
    let ours = Batch::read(SCHEMA.with(Arc::clone), Bytes::copy_from_slice(stream));
    if let (Ok(rows), Ok(ours)) = (&theirs, &ours) {
        assert_eq!(*rows, ours.rows() as u64);
    }
    theirs.is_ok()
}

fn made(u: &mut Unstructured<'_>) -> Result<()> {
    let built = given::batch(u, &SCHEMA.with(Arc::clone))?;
    let stream = built.stream().unwrap();
    // One of no rows is taken or refused.
    assert!(
        publish(stream) || built.rows() == 0,
        "{} rows",
        built.rows()
    );
    let mut damaged = stream.to_vec();
    given::damage(u, &mut damaged)?;
    publish(&damaged);
    Ok(())
}

/// The first byte says what follows: bytes to make a stream of, a stream, or JSON.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    match kind {
        0..=100 => {
            let _ = made(&mut Unstructured::new(rest));
        }
        101..=200 => {
            publish(rest);
        }
        _ => {
            let _ = RELAY.with_borrow_mut(|relay| relay.publish_json(rest));
        }
    }
}
