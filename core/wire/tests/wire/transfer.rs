//! Replies in parts.

use bytes::Bytes;
use nervix_wire::types::*;
use nervix_wire::{
    decode_server, encode_server, encode_server_reply_parts, split_reply, EncodeError, Frame,
    Reassembler, Violation, FRAME_LIMIT, TRANSFER_LIMIT,
};
use proptest::prelude::*;

fn reply(request_id: u64, body: ReplyBody) -> ServerMessage {
    ServerMessage {
        body: ServerBody::Reply(Reply { request_id, body }),
    }
}

/// A reply whose frame is a little larger than `len`.
fn large_reply(request_id: u64, len: usize) -> ServerMessage {
    reply(
        request_id,
        ReplyBody::RequestRejected(RequestRejected {
            rejection: RequestRejection::InvalidRequest,
            field: None,
            message: "x".repeat(len),
        }),
    )
}

fn part_of(frame: &[u8]) -> (u64, TransferPart) {
    match decode_server(&Frame::copy_from(frame)).unwrap().body {
        ServerBody::Reply(Reply {
            request_id,
            body: ReplyBody::TransferPart(part),
        }) => (request_id, part),
        other => panic!("a part came back as {other:?}"),
    }
}

fn push_all(
    reassembler: &mut Reassembler,
    parts: &[Vec<u8>],
) -> Result<Option<ServerMessage>, Violation> {
    let mut whole = None;
    for frame in parts {
        assert_eq!(whole, None, "a reply before its last part");
        let (request_id, part) = part_of(frame);
        whole = reassembler.push(request_id, &part)?;
    }
    Ok(whole)
}

fn part(total_bytes: u64, offset: u64, chunk: &'static [u8]) -> TransferPart {
    TransferPart {
        total_bytes,
        offset,
        chunk: Bytes::from_static(chunk),
    }
}

fn refused(result: Result<Option<ServerMessage>, Violation>) -> String {
    let violation = result.unwrap_err();
    assert_eq!(violation.rule(), "F-7");
    violation.message().to_owned()
}

// rule: F-7
#[test]
fn a_reply_larger_than_a_frame_arrives_in_parts() {
    let message = large_reply(9, 3 * FRAME_LIMIT);
    let parts = encode_server_reply_parts(&message, usize::MAX).unwrap();
    assert_eq!(parts.len(), 4);
    assert!(parts.iter().all(|part| part.len() <= FRAME_LIMIT));
    let whole = push_all(&mut Reassembler::new(9), &parts);
    assert_eq!(whole, Ok(Some(message)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    // rule: F-7
    #[test]
    fn any_cut_of_a_reply_joins_to_it(len in 0usize..2000, part_bytes in 1usize..700) {
        let message = large_reply(9, len);
        let parts = encode_server_reply_parts(&message, part_bytes).unwrap();
        let joined = push_all(&mut Reassembler::new(9), &parts).unwrap();
        prop_assert_eq!(joined, Some(message));
    }
}

// rule: F-7
#[test]
fn a_part_for_another_request_is_refused() {
    let mut reassembler = Reassembler::new(9);
    reassembler.push(9, &part(10, 0, b"five!")).unwrap();
    let message = refused(reassembler.push(8, &part(10, 5, b"five!")));
    assert_eq!(message, "a part names request 8, not 9");
}

// rule: F-7
#[test]
fn a_part_with_another_total_is_refused() {
    let mut reassembler = Reassembler::new(9);
    reassembler.push(9, &part(10, 0, b"five!")).unwrap();
    assert!(refused(reassembler.push(9, &part(11, 5, b"five!"))).contains("another total"));
}

// rule: F-7
#[test]
fn a_total_above_the_transfer_limit_is_refused_and_one_at_it_costs_nothing() {
    let limit = TRANSFER_LIMIT as u64;
    let mut reassembler = Reassembler::new(9);
    assert!(refused(reassembler.push(9, &part(limit + 1, 0, b"x"))).contains("transferred"));
    let mut reassembler = Reassembler::new(9);
    assert_eq!(reassembler.push(9, &part(limit, 0, b"x")), Ok(None));
    assert_eq!(reassembler.received(), 1);
}

// rule: F-7
#[test]
fn a_part_begins_where_the_last_one_ended() {
    for offset in [0, 4, 6, u64::MAX] {
        let mut reassembler = Reassembler::new(9);
        reassembler.push(9, &part(10, 0, b"five!")).unwrap();
        assert!(refused(reassembler.push(9, &part(10, offset, b"five!"))).contains("begins at"));
    }
    let mut reassembler = Reassembler::new(9);
    assert!(refused(reassembler.push(9, &part(10, 1, b"x"))).contains("begins at"));
}

// rule: F-7
#[test]
fn parts_are_not_empty_and_not_more_than_their_total() {
    let mut reassembler = Reassembler::new(9);
    assert_eq!(
        refused(reassembler.push(9, &part(10, 0, b""))),
        "a part is empty"
    );
    let mut reassembler = Reassembler::new(9);
    reassembler.push(9, &part(10, 0, b"five!")).unwrap();
    assert!(refused(reassembler.push(9, &part(10, 5, b"six..."))).contains("more than"));
}

fn joined(whole: Vec<u8>) -> Result<Option<ServerMessage>, Violation> {
    let parts = split_reply(9, &Bytes::from(whole), 100).unwrap();
    push_all(&mut Reassembler::new(9), &parts)
}

// rule: F-7
#[test]
fn the_joined_frame_is_verified_like_any_other() {
    let mut bytes = encode_server(&large_reply(9, 300)).unwrap();
    bytes[4] = b'?';
    assert_eq!(joined(bytes.clone()).unwrap_err().rule(), "F-3");
    bytes[4] = b'N';
    bytes[0..4].fill(0xff);
    assert_eq!(joined(bytes).unwrap_err().rule(), "F-3");
}

// rule: F-7
#[test]
fn the_joined_frame_replies_to_the_same_request_with_a_whole_reply() {
    let bytes = encode_server(&large_reply(8, 300)).unwrap();
    assert!(refused(joined(bytes)).contains("request 8, not 9"));

    let inner = reply(9, ReplyBody::TransferPart(part(1, 0, b"x")));
    let bytes = encode_server(&inner).unwrap();
    assert_eq!(refused(joined(bytes)), "the joined reply is itself a part");

    let notice = ServerMessage {
        body: ServerBody::ServerNotice(ServerNotice {
            level: NoticeLevel::Info,
            message: "hello".into(),
        }),
    };
    let bytes = encode_server(&notice).unwrap();
    assert_eq!(refused(joined(bytes)), "the joined frame is no reply");
}

// rule: F-7
#[test]
fn only_replies_are_sent_in_parts_and_none_above_the_transfer_limit() {
    let notice = ServerMessage {
        body: ServerBody::ServerNotice(ServerNotice {
            level: NoticeLevel::Info,
            message: String::new(),
        }),
    };
    assert_eq!(
        encode_server_reply_parts(&notice, 100),
        Err(EncodeError::NotAReply)
    );
    assert_eq!(
        encode_server_reply_parts(&large_reply(9, TRANSFER_LIMIT), FRAME_LIMIT),
        Err(EncodeError::TooLarge {
            limit: TRANSFER_LIMIT
        })
    );
}
