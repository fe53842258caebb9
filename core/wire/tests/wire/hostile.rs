//! Frames that no peer of ours makes: whatever bytes arrive, reading them ends in a message or in a
//! violation.

use std::sync::Arc;

use nervix_wire::types::*;
use nervix_wire::{decode_server, encode_rows, CheckedRows, Frame, Part};
use proptest::prelude::*;

use super::layout::ROOTS;
use super::{repairs, samples, Message};

/// Decodes as any root and reads all of it.
fn read(bytes: &[u8]) {
    let frame = Frame::copy_from(bytes);
    for (root, _) in ROOTS {
        if let Ok(message) = Message::decode(root, &frame) {
            // Shared parts may grow beyond the limits when written once each.
            let _ = message.encode();
        }
    }
    if let Ok(ServerMessage {
        body: ServerBody::SubscriptionRows(rows),
    }) = decode_server(&frame)
    {
        if let Ok(rows) = rows.check(Arc::new(schema())) {
            read_rows(&rows);
        }
    }
}

fn read_rows(rows: &CheckedRows) {
    for part in [Part::Rows, Part::BranchKey] {
        for column in 0..rows.fields(part).len() {
            for cell in rows.column(part, column).into_iter().flatten() {
                cell.to_value();
            }
        }
    }
}

/// A schema of every type, lists of each last.
fn schema() -> RowSchema {
    let scalars = ScalarType::ALL.iter().map(|scalar| FieldType {
        shape: FieldTypeShape::ScalarFieldType(ScalarFieldType { scalar: *scalar }),
    });
    let lists = (0..3).map(|n| FieldType {
        shape: FieldTypeShape::ListFieldType(Box::new(ListFieldType {
            element: repairs::list_field_type_element(n),
        })),
    });
    RowSchema {
        fields: scalars
            .chain(lists)
            .map(|field_type| RowField {
                name: "f".into(),
                field_type,
                nullable: true,
                sensitive: false,
            })
            .collect(),
        branch: None,
    }
}

fn list(elements: Vec<CellValue>) -> CellValue {
    CellValue::ListCell(ListCell {
        elements: elements.into_iter().map(|value| Cell { value }).collect(),
    })
}

/// Rows of that schema.
fn rows() -> Vec<u8> {
    let text = || {
        CellValue::StringCell(StringCell {
            value: "text".into(),
        })
    };
    let byte = CellValue::U8Cell(U8Cell { value: 7 });
    let double = CellValue::F64Cell(F64Cell { value: 0.5 });
    let row = vec![
        byte.clone(),
        CellValue::I8Cell(I8Cell { value: -7 }),
        CellValue::U16Cell(U16Cell { value: 7 }),
        CellValue::I16Cell(I16Cell { value: -7 }),
        CellValue::U32Cell(U32Cell { value: 7 }),
        CellValue::I32Cell(I32Cell { value: -7 }),
        CellValue::U64Cell(U64Cell { value: 7 }),
        CellValue::I64Cell(I64Cell { value: -7 }),
        CellValue::F32Cell(F32Cell { value: 0.5 }),
        double.clone(),
        CellValue::BoolCell(BoolCell { value: true }),
        text(),
        CellValue::DatetimeCell(DatetimeCell { unix_nanos: 7 }),
        CellValue::BytesCell(BytesCell {
            value: bytes::Bytes::from_static(b"bytes"),
        }),
        list(vec![byte]),
        list(vec![list(vec![text()])]),
        list(vec![list(vec![double])]),
    ];
    let handle = SubscriptionHandle {
        name: "s".into(),
        generation: 1,
    };
    encode_rows(&handle, None, &[row]).unwrap()
}

// rule: F-3
#[test]
fn no_single_changed_bit_of_rows_stops_the_reader() {
    let bytes = rows();
    let frame = decode_server(&Frame::copy_from(&bytes)).unwrap();
    let ServerBody::SubscriptionRows(frame) = frame.body else {
        panic!("rows are no rows");
    };
    assert!(frame.check(Arc::new(schema())).is_ok());
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            read(&changed);
        }
    }
}

// rule: F-3
#[test]
fn no_single_changed_byte_of_domains_stops_either_layout() {
    let message = ServerMessage {
        body: ServerBody::DomainsObserved(DomainsObserved {
            domains: (0..4).map(samples::domain_info).collect(),
        }),
    };
    for bytes in [
        nervix_wire::encode_server(&message).unwrap(),
        nervix_wire::encode_server_alternate_domain_info(&message).unwrap(),
    ] {
        for at in 0..bytes.len() {
            for value in [0, 1, 2, 3, 4, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                read(&changed);
            }
        }
    }
}

/// Any sample of any root.
fn sample() -> impl Strategy<Value = Vec<u8>> {
    (0..ROOTS.len(), any::<usize>()).prop_map(|(root, number)| {
        let (root, _) = ROOTS[root];
        let message = match root {
            "ServerMessage" => Message::Server(samples::server_message(number)),
            "RestoreReply" => Message::RestoreReply(samples::restore_reply(number)),
            "ClientMessage" => Message::Client(samples::client_message(number)),
            _ => Message::samples(root).next().unwrap(),
        };
        message.encode().unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    // rule: F-3
    #[test]
    fn no_changed_bits_of_any_frame_stop_the_reader(
        mut bytes in sample(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u32..8), 1..4),
    ) {
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        read(&bytes);
    }

    // rule: F-3
    #[test]
    fn no_random_bytes_stop_the_reader(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        root in 0..ROOTS.len(),
        plausible in any::<bool>(),
    ) {
        if plausible && bytes.len() >= 12 {
            bytes[0..4].copy_from_slice(&8u32.to_le_bytes());
            bytes[4..8].copy_from_slice(&ROOTS[root].1);
        }
        read(&bytes);
    }
}
