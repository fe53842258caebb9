//! Where a received frame is put in memory: so that the batch it carries is aligned, however it comes in pieces.

use bytes::Bytes;
use nervix_wire::types::*;
use nervix_wire::{decode_server, encode_server, encode_server_reply_parts, Frame, Reassembler};

fn delivery(batch: &[u8], relay: &str, fingerprint: bool) -> ServerMessage {
    let received = EmitterBatchReceived {
        identity: [1; 16],
        reference: [2; 16],
        source_relay: relay.to_owned(),
        branch_fingerprint: fingerprint.then_some([3; 32]),
        batch: Bytes::copy_from_slice(batch),
        members: 1,
        execution_now_unix_nanos: 7,
    };
    let outcome = ReadEmitterBatchOutcome {
        disposition: ReadEmitterDisposition::EmitterBatchReceived(received),
        message: "m".to_owned(),
    };
    ServerMessage {
        body: ServerBody::Reply(Reply {
            request_id: 9,
            body: ReplyBody::ReadEmitterBatchOutcome(outcome),
        }),
    }
}

fn batch_of(message: ServerMessage) -> Bytes {
    match message.body {
        ServerBody::Reply(Reply {
            body:
                ReplyBody::ReadEmitterBatchOutcome(ReadEmitterBatchOutcome {
                    disposition: ReadEmitterDisposition::EmitterBatchReceived(received),
                    ..
                }),
            ..
        }) => received.batch,
        other => panic!("{other:?}"),
    }
}

fn aligned(bytes: &[u8]) -> bool {
    (bytes.as_ptr() as usize).is_multiple_of(64)
}

// rule: EC-3, F-9
#[test]
fn the_batch_of_a_delivery_is_aligned() {
    for length in [1, 7, 64, 1000, 100_001] {
        for (relay, fingerprint) in [("r", false), ("a_longer_name", true), ("four", true)] {
            let batch: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let message = delivery(&batch, relay, fingerprint);
            let bytes = encode_server(&message).unwrap();
            for piece in [1, 3, 64, 4096, bytes.len()] {
                let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
                let frame = Frame::received(bytes.len(), &pieces);
                assert_eq!(frame.as_slice(), bytes);
                let read = batch_of(decode_server(&frame).unwrap());
                assert_eq!(read, batch);
                assert!(aligned(&read), "{length} {relay} {piece}");
            }
        }
    }
}

// rule: EC-3, F-7
#[test]
fn the_batch_of_a_delivery_in_parts_is_aligned() {
    let batch = vec![5; 10_000];
    let parts = encode_server_reply_parts(&delivery(&batch, "r", true), 1000);
    let mut reassembler = Reassembler::new(9);
    for part in parts.unwrap() {
        let ServerBody::Reply(reply) = decode_server(&Frame::copy_from(&part)).unwrap().body else {
            panic!("a part is a reply");
        };
        let ReplyBody::TransferPart(part) = reply.body else {
            panic!("a part is a part");
        };
        if let Some(message) = reassembler.push(9, &part).unwrap() {
            let read = batch_of(message);
            assert_eq!(read, batch);
            assert!(aligned(&read));
            return;
        }
    }
    panic!("the parts make no reply");
}

#[test]
fn other_frames_and_no_frames_are_aligned_themselves() {
    for bytes in [
        &b""[..],
        b"abc",
        &[0xff; 40],
        &[0; 40],
        &[4, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f],
    ] {
        let frame = Frame::received(bytes.len(), &[bytes]);
        assert_eq!(frame.as_slice(), bytes);
        assert!(aligned(&frame));
    }
    // A damaged frame is put somewhere, and never read past.
    let bytes = encode_server(&delivery(b"batch", "r", true)).unwrap();
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            assert_eq!(
                Frame::received(damaged.len(), &[&damaged]).as_slice(),
                damaged
            );
        }
    }
}
