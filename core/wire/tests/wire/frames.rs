//! Frames as such: what is refused before any field is read, what is refused to send, and where the
//! bytes stand in memory.

use bytes::Bytes;
use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};
use nervix_wire::types::*;
use nervix_wire::{
    client_request_id, decode_client, decode_server, decode_upload_reply, encode_client,
    encode_server, encode_upload, EncodeError, Frame, DEPTH_LIMIT, ENTRIES_LIMIT, FRAME_LIMIT,
};

fn notice(message: String) -> ServerMessage {
    ServerMessage {
        body: ServerBody::ServerNotice(ServerNotice {
            level: NoticeLevel::Info,
            message,
        }),
    }
}

fn submit(batch: Bytes) -> ClientMessage {
    ClientMessage {
        request_id: 1,
        request: ClientRequest::SubmitBatchRequest(SubmitBatchRequest { producer: 1, batch }),
    }
}

fn refusal(bytes: &[u8]) -> (&'static str, String) {
    let violation = decode_server(&Frame::copy_from(bytes)).unwrap_err();
    (violation.rule(), violation.message().to_owned())
}

/// The largest notice that fits into a frame, found by its own overhead.
fn largest_notice() -> (usize, Vec<u8>) {
    let overhead = encode_server(&notice("x".repeat(64))).unwrap().len() - 64;
    let len = (FRAME_LIMIT - overhead) / 4 * 4;
    (len, encode_server(&notice("x".repeat(len))).unwrap())
}

// rule: F-3, F-6
#[test]
fn a_frame_of_the_limit_is_read_and_one_byte_more_is_refused() {
    let (_, mut bytes) = largest_notice();
    bytes.resize(FRAME_LIMIT, 0);
    assert!(decode_server(&Frame::copy_from(&bytes)).is_ok());
    bytes.push(0);
    let (rule, message) = refusal(&bytes);
    assert_eq!(rule, "F-3");
    assert!(message.contains("above the limit"), "{message}");
}

// rule: F-3
#[test]
fn a_frame_has_at_least_eight_bytes() {
    for len in 0..8 {
        let bytes = &b"\x08\0\0\0NXSM"[..len];
        assert_eq!(
            refusal(bytes),
            ("F-3", "a frame has fewer than 8 bytes".into())
        );
    }
}

// rule: F-3
#[test]
fn a_frame_carries_the_identifier_of_its_stream() {
    let mut bytes = encode_server(&notice("hello".into())).unwrap();
    bytes[4..8].copy_from_slice(b"NXCM");
    assert_eq!(
        refusal(&bytes),
        ("F-3", "a frame carries another identifier".into())
    );
    let server = encode_server(&notice("hello".into())).unwrap();
    assert!(decode_client(&Frame::copy_from(&server)).is_err());
    assert!(decode_upload_reply(&Frame::copy_from(&server)).is_err());
}

type Offset = WIPOffset<TableFinishedWIPOffset>;

/// A table with offsets and single bytes in the given slots, written without any schema.
fn table(b: &mut FlatBufferBuilder, bytes: &[(u16, u8)], offsets: &[(u16, Offset)]) -> Offset {
    let start = b.start_table();
    for (slot, offset) in offsets {
        b.push_slot_always(*slot, *offset);
    }
    for (slot, byte) in bytes {
        b.push_slot_always(*slot, *byte);
    }
    b.end_table(start)
}

fn vector(b: &mut FlatBufferBuilder, entries: &[Offset]) -> Offset {
    WIPOffset::new(b.create_vector(entries).value())
}

fn string(b: &mut FlatBufferBuilder, text: &str) -> Offset {
    WIPOffset::new(b.create_string(text).value())
}

fn finished(mut b: FlatBufferBuilder, root: Offset) -> Vec<u8> {
    b.finish(root, Some("NXSM"));
    b.finished_data().to_vec()
}

fn handle(b: &mut FlatBufferBuilder) -> Offset {
    let name = string(b, "s");
    let start = b.start_table();
    b.push_slot_always(6, 1u64);
    b.push_slot_always(4, name);
    b.end_table(start)
}

/// A SubscribeOutcome whose only field is a list of lists, and so on, `lists` deep, written without
/// our encoder's limits. Nine tables nest around and in the innermost list's element type.
fn nested_field_type(lists: usize) -> Vec<u8> {
    let b = &mut FlatBufferBuilder::new();
    let scalar = table(b, &[(4, 0)], &[]);
    let mut field_type = table(b, &[(4, 1)], &[(6, scalar)]);
    for _ in 0..lists {
        let list = table(b, &[], &[(4, field_type)]);
        field_type = table(b, &[(4, 3)], &[(6, list)]);
    }
    let name = string(b, "f");
    let field = table(b, &[], &[(4, name), (6, field_type)]);
    let fields = vector(b, &[field]);
    let schema = table(b, &[], &[(4, fields)]);
    let handle = handle(b);
    let opened = table(
        b,
        &[(10, 0)],
        &[(4, handle), (6, name), (8, name), (12, schema)],
    );
    let none = vector(b, &[]);
    let outcome = table(b, &[(4, 1)], &[(6, opened), (8, name), (10, none)]);
    let start = b.start_table();
    b.push_slot_always(4, 1u64);
    b.push_slot_always(8, outcome);
    b.push_slot_always(6, 7u8);
    let reply = b.end_table(start);
    let root = table(b, &[(4, 1)], &[(6, reply)]);
    finished(std::mem::take(b), root)
}

// rule: F-3, F-6
#[test]
fn tables_nest_sixty_four_deep_and_no_deeper() {
    // ServerMessage, Reply, SubscribeOutcome, SubscriptionOpened, RowSchema, RowField and the
    // innermost FieldType and ScalarFieldType are 8; each list adds its FieldType and itself.
    let lists = (DEPTH_LIMIT - 8) / 2;
    let message = decode_server(&Frame::copy_from(&nested_field_type(lists))).unwrap();
    let (rule, text) = refusal(&nested_field_type(lists + 1));
    assert_eq!(rule, "F-3");
    assert!(text.contains("depth limit"), "{text}");

    assert!(encode_server(&message).is_ok());
    let deeper = deepen(message);
    assert_eq!(encode_server(&deeper), Err(EncodeError::TooDeep));
}

/// The same message with one list more around its field's type.
fn deepen(mut message: ServerMessage) -> ServerMessage {
    if let ServerBody::Reply(Reply {
        body: ReplyBody::SubscribeOutcome(outcome),
        ..
    }) = &mut message.body
    {
        if let SubscribeDisposition::SubscriptionOpened(opened) = &mut outcome.disposition {
            let field = &mut opened.schema.fields[0];
            field.field_type = FieldType {
                shape: FieldTypeShape::ListFieldType(Box::new(ListFieldType {
                    element: field.field_type.clone(),
                })),
            };
        }
    }
    message
}

// rule: F-3
#[test]
fn a_frame_has_at_most_one_table_for_four_bytes() {
    // A row of one cell many times over: two tables for each entry of four bytes.
    let b = &mut FlatBufferBuilder::new();
    let null = table(b, &[], &[]);
    let cell = table(b, &[(4, 1)], &[(6, null)]);
    let cells = vector(b, &vec![cell; 1000]);
    let row = table(b, &[], &[(4, cells)]);
    let rows = vector(b, &[row]);
    let batch = table(b, &[], &[(6, rows)]);
    let handle = handle(b);
    let body = table(b, &[], &[(4, handle), (6, batch)]);
    let root = table(b, &[(4, 7)], &[(6, body)]);
    let (rule, text) = refusal(&finished(std::mem::take(b), root));
    assert_eq!(rule, "F-3");
    assert!(text.contains("Too many tables"), "{text}");
}

// rule: F-3
#[test]
fn a_frame_appears_at_most_eight_times_its_size() {
    // One diagnostic with a long text, many times over.
    let suggestions = |repeats: usize| {
        let b = &mut FlatBufferBuilder::new();
        let text = string(b, &"x".repeat(1000));
        let diagnostic = table(b, &[], &[(4, text)]);
        let diagnostics = vector(b, &vec![diagnostic; repeats]);
        let failed = table(b, &[], &[]);
        let message = string(b, "");
        let outcome = table(
            b,
            &[(4, 3)],
            &[(6, failed), (8, message), (10, diagnostics)],
        );
        let start = b.start_table();
        b.push_slot_always(4, 1u64);
        b.push_slot_always(8, outcome);
        b.push_slot_always(6, 2u8);
        let reply = b.end_table(start);
        let root = table(b, &[(4, 1)], &[(6, reply)]);
        finished(std::mem::take(b), root)
    };
    assert!(decode_server(&Frame::copy_from(&suggestions(5))).is_ok());
    let (rule, text) = refusal(&suggestions(20));
    assert_eq!(rule, "F-3");
    assert!(text.contains("Apparent size"), "{text}");
}

// rule: F-3
#[test]
fn an_offset_outside_the_frame_is_refused() {
    let bytes = encode_server(&notice("hello".into())).unwrap();
    let mut changed = bytes.clone();
    changed[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(refusal(&changed).0, "F-3");
    // What stands after the text's end is padding.
    let end = bytes.windows(6).position(|w| w == b"hello\0").unwrap() + 6;
    for len in 8..end {
        assert!(
            decode_server(&Frame::copy_from(&bytes[..len])).is_err(),
            "{len}"
        );
    }
}

// rule: F-3
#[test]
fn text_that_is_not_utf8_is_refused() {
    let mut bytes = encode_server(&notice("hello".into())).unwrap();
    let at = bytes
        .windows(5)
        .position(|window| window == b"hello")
        .unwrap();
    bytes[at] = 0xff;
    assert_eq!(refusal(&bytes).0, "F-3");
}

// rule: F-6
#[test]
fn nothing_above_the_frame_limit_is_encoded() {
    let limit = EncodeError::TooLarge { limit: FRAME_LIMIT };
    let fits = submit(Bytes::from(vec![0; FRAME_LIMIT - 256]));
    let frame = encode_client(&fits).unwrap();
    assert!(frame.len() <= FRAME_LIMIT);
    assert_eq!(decode_client(&Frame::copy_from(&frame)), Ok(fits));
    let above = submit(Bytes::from(vec![0; FRAME_LIMIT - 16]));
    assert_eq!(encode_client(&above), Err(limit.clone()));
    let above = submit(Bytes::from(vec![0; 3 * FRAME_LIMIT]));
    assert_eq!(encode_client(&above), Err(limit.clone()));
    assert_eq!(
        encode_server(&notice("x".repeat(FRAME_LIMIT))),
        Err(limit.clone())
    );
    let chunk = UploadMessage {
        part: UploadPart::UploadChunk(UploadChunk {
            bytes: Bytes::from(vec![0; FRAME_LIMIT]),
        }),
    };
    assert_eq!(encode_upload(&chunk), Err(limit));
}

// rule: F-6
#[test]
fn no_vector_of_more_entries_than_allowed_is_encoded() {
    let entities = |count| {
        let entity = DomainEntityEntry {
            entity: DomainEntity::ResourceEntity(ResourceEntity {
                name: String::new(),
                latest_version: None,
            }),
        };
        encode_server(&ServerMessage {
            body: ServerBody::DomainSnapshotObserved(DomainSnapshotObserved {
                domain: "d".into(),
                graph_json: String::new(),
                entities: vec![entity; count],
            }),
        })
    };
    // So many cannot fit into a frame, but it is their number that is refused first.
    assert_eq!(
        entities(ENTRIES_LIMIT + 1),
        Err(EncodeError::TooManyEntries {
            entries: ENTRIES_LIMIT + 1
        })
    );
    assert!(entities(1000).is_ok());
}

// rule: F-6
#[test]
fn a_string_above_its_limit_is_refused_without_being_copied() {
    let query = "x".repeat(nervix_wire::STRING_LIMIT + 1);
    let message = ClientMessage {
        request_id: 1,
        request: ClientRequest::SelectDomainRequest(SelectDomainRequest { domain: query }),
    };
    assert_eq!(
        encode_client(&message),
        Err(EncodeError::TooLarge {
            limit: nervix_wire::STRING_LIMIT
        })
    );
}

// rule: F-9
#[test]
fn bytes_of_a_message_are_read_in_place_and_outlive_its_frame() {
    let bytes = encode_client(&submit(Bytes::from_static(b"a batch"))).unwrap();
    let frame = Frame::copy_from(&bytes);
    let range = frame.as_slice().as_ptr_range();
    let ClientRequest::SubmitBatchRequest(request) = decode_client(&frame).unwrap().request else {
        panic!("another request came back");
    };
    assert!(range.contains(&request.batch.as_ptr()));
    drop(frame);
    assert_eq!(&request.batch[..], b"a batch");
}

// rule: F-9
#[test]
fn a_frame_is_a_copy_of_its_own_at_an_aligned_place() {
    let chunks: [&[u8]; 3] = [b"one ", b"", b"two"];
    let frame = Frame::from_chunks(7, chunks.into_iter());
    assert_eq!(&frame[..], b"one two");
    assert_eq!(frame.as_ptr() as usize % 64, 0);
    assert_eq!(frame.to_bytes().as_ptr(), frame.as_ptr());
    for aligned in [0, 1, 7, 63, 64, 200] {
        let frame = Frame::from_chunks_aligned_at(256, aligned, std::iter::once(&[7; 256][..]));
        assert_eq!(&frame[..], [7; 256]);
        assert_eq!((frame.as_ptr() as usize + aligned) % 64, 0);
    }
    assert_eq!(Frame::copy_from(b"").len(), 0);
}

// rule: F-3, F-4
#[test]
fn a_server_can_name_the_request_it_refuses() {
    let mut bytes = encode_client(&submit(Bytes::new())).unwrap();
    assert!(decode_client(&Frame::copy_from(&bytes)).is_err());
    assert_eq!(client_request_id(&Frame::copy_from(&bytes)), Some(1));
    bytes[5] = b'?';
    assert_eq!(client_request_id(&Frame::copy_from(&bytes)), None);
}
