//! Frames that break the protocol, and replies in parts: F-3, F-4, F-7, F-8.

use bytes::Bytes;
use nervix_engine::{Call, Done, ErrorKind, EventKind};
use nervix_wire::types::*;
use nervix_wire::{encode_server, encode_server_reply_parts};

use crate::bench::Bench;
use crate::common::frames::*;
use crate::common::SEC;

fn part(id: u64, total_bytes: u64, offset: u64, chunk: &[u8]) -> Vec<u8> {
    reply(
        id,
        ReplyBody::TransferPart(TransferPart {
            total_bytes,
            offset,
            chunk: Bytes::copy_from_slice(chunk),
        }),
    )
}

// rule: F-7
#[test]
fn parts_are_joined_among_other_frames() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let first = bench.suggest("a");
    let second = bench.suggest("b");
    let one = bench.sent(conn).request_id;
    let two = bench.sent(conn).request_id;
    let parts = |id, value: &str| {
        encode_server_reply_parts(&reply_message(id, suggestions(&[value])), 40).unwrap()
    };
    let (a, b) = (parts(one, "one"), parts(two, "two"));
    assert!(a.len() > 3 && a.len() == b.len());
    for (place, (left, right)) in a.iter().zip(&b).enumerate() {
        assert!(bench.is_waiting(first) && bench.is_waiting(second));
        bench.frame(conn, left);
        bench.frame(conn, rows("s", 1, 1, place as u64..place as u64 + 1));
        bench.frame(conn, notice("between"));
        bench.frame(conn, right);
    }
    for (call, expected) in [(first, "one"), (second, "two")] {
        match bench.result(call) {
            Ok(Done::Suggestions(page)) => assert_eq!(page.suggestions[0].value, expected),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bench.events().len(), a.len());
}

// rule: F-7, S-2
#[test]
fn rows_follow_an_opening_reply_in_parts() {
    let (mut bench, conn) = Bench::connected();
    let (call, ..) = bench.execute("CREATE SUBSCRIPTION s TO r;");
    let (id, _) = bench.subscribe(conn);
    for part in
        encode_server_reply_parts(&reply_message(id, opened("s", 3, numbers())), 50).unwrap()
    {
        assert!(bench.is_waiting(call));
        bench.frame(conn, part);
    }
    bench.frame(conn, rows("s", 3, 1, 0..2));
    bench.outcome(call);
    assert!(matches!(bench.event().kind, EventKind::Rows(rows) if rows.row_count() == 2));
}

/// What a malformed frame may be, given the identity of a request in flight.
fn hostile(id: u64) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let whole = reply(id, suggestions(&["x"]));
    let total = whole.len() as u64;
    let joined = |frame: Vec<u8>| vec![part(id, frame.len() as u64, 0, &frame)];
    let mut foreign = whole.clone();
    foreign[4..8].copy_from_slice(b"NXCM");
    let mut torn = whole.clone();
    torn[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
    vec![
        (
            "a total of more than the limit",
            vec![part(id, (64 << 20) + 1, 0, b"x")],
        ),
        ("a first offset of not zero", vec![part(id, total, 1, b"x")]),
        (
            "a gap between parts",
            vec![part(id, total, 0, &whole[..10]), part(id, total, 11, b"x")],
        ),
        (
            "a part that comes twice",
            vec![
                part(id, total, 0, &whole[..10]),
                part(id, total, 0, &whole[..10]),
            ],
        ),
        (
            "another total",
            vec![
                part(id, total, 0, &whole[..10]),
                part(id, total + 1, 10, b"x"),
            ],
        ),
        ("more than the total", vec![part(id, 4, 0, b"12345")]),
        (
            "joined bytes that are no frame",
            joined(b"these are no bytes of a frame".to_vec()),
        ),
        (
            "a joined reply to another request",
            joined(reply(id + 1, suggestions(&["x"]))),
        ),
        ("a joined frame that is no reply", joined(notice("hello"))),
        ("a joined part", joined(part(id, 100, 0, b"x"))),
        (
            "a reply instead of the next part",
            vec![part(id, total, 0, &whole[..10]), whole.clone()],
        ),
        ("no bytes", vec![Vec::new()]),
        ("seven bytes", vec![b"\x04\0\0\0NXS".to_vec()]),
        ("another identifier", vec![foreign]),
        ("an offset outside", vec![torn]),
        ("half a frame", vec![whole[..whole.len() / 2].to_vec()]),
        ("too large a frame", vec![vec![0; (4 << 20) + 1]]),
    ]
}

// rule: F-3, F-4, F-7, F-8, D-6
#[test]
fn a_violation_ends_the_session_and_tells_its_waiters() {
    for case in 0..hostile(1).len() {
        let (mut bench, conn) = Bench::connected();
        bench.subscription(conn, "s", 1);
        let suggest = bench.suggest("S");
        let id = bench.sent(conn).request_id;
        let (name, frames) = hostile(id).swap_remove(case);
        let (call, _, reference) = bench.execute("CREATE SCHEMA a (b I64);");
        let (_, command) = bench.command(conn);
        let reader = bench.call(Call::NextEvent);
        for frame in frames {
            assert!(!bench.is_reset(conn), "{name}: too early");
            bench.frame(conn, frame);
        }
        assert!(bench.is_reset(conn), "{name}");
        bench.fails(suggest, ErrorKind::Protocol);
        match bench.result(reader) {
            Ok(Done::Event(event)) => {
                assert!(
                    matches!(event.kind, EventKind::Interrupted { .. }),
                    "{name}"
                );
            }
            other => panic!("{name}: {other:?}"),
        }
        assert!(
            bench.is_waiting(call),
            "{name}: a violation ends no execute"
        );
        // Nothing is read after it.
        bench.frame(conn, rows("s", 1, 1, 0..1));
        bench.no_event();
        let conn = bench.reconnected();
        bench.subscribe(conn);
        let (id, same) = bench.command(conn);
        assert_eq!(same, command);
        bench.reply(conn, id, completed(&reference));
        bench.outcome(call);
    }
}

// rule: F-7
#[test]
fn parts_for_nobody_keep_no_memory_and_no_session() {
    // Refused or discarded, but never joined to another request's reply.
    let (mut bench, conn) = Bench::connected();
    let call = bench.suggest("S");
    let id = bench.sent(conn).request_id;
    bench.frame(conn, part(id + 7, 100, 0, b"x"));
    if bench.is_reset(conn) {
        bench.fails(call, ErrorKind::Protocol);
        return;
    }
    bench.reply(conn, id, suggestions(&["x"]));
    bench.result(call).unwrap();
}

// rule: F-7
#[test]
fn a_partial_reply_is_never_delivered() {
    let (mut bench, conn) = Bench::connected();
    let call = bench.suggest("S");
    let id = bench.sent(conn).request_id;
    let parts = encode_server_reply_parts(&reply_message(id, suggestions(&["x"])), 30).unwrap();
    for part in &parts[..parts.len() - 1] {
        bench.frame(conn, part);
    }
    assert!(bench.is_waiting(call));
    bench.lose(conn);
    if bench.is_waiting(call) {
        // On the next session its parts begin anew.
        let conn = bench.reconnected();
        let id = bench.sent(conn).request_id;
        bench.reply(conn, id, suggestions(&["y"]));
        match bench.result(call) {
            Ok(Done::Suggestions(page)) => assert_eq!(page.suggestions[0].value, "y"),
            other => panic!("{other:?}"),
        }
    } else {
        bench.fails(call, ErrorKind::Transport);
    }
}

// rule: F-8, C-4
#[test]
fn what_arrives_late_on_a_finished_connection_is_ignored() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    let (id, _) = bench.command(conn);
    bench.frame(conn, b"garbage");
    bench.reply(conn, id, completed(&reference));
    bench.frame(conn, b"garbage");
    bench.lose(conn);
    bench.lose(conn);
    assert!(bench.is_waiting(call));
    let next = bench.reconnected();
    bench.frame(conn, ending(SessionEndReason::ServerShuttingDown));
    bench.lose(conn);
    let (id, _) = bench.command(next);
    bench.reply(next, id, completed(&reference));
    bench.outcome(call);
    // One nobody opened.
    bench.frame(nervix_engine::ConnId(9_999), notice("x"));
    bench.lose(nervix_engine::ConnId(9_999));
}

// rule: F-4
#[test]
fn both_layouts_of_domain_info_are_read_at_any_time() {
    let (mut bench, conn) = Bench::connected();
    for round in 0..4 {
        let message = domains(&["a", "b", "c"]);
        bench.frame(
            conn,
            if round % 2 == 0 {
                encode_server(&message).unwrap()
            } else {
                nervix_wire::encode_server_alternate_domain_info(&message).unwrap()
            },
        );
        assert!(!bench.is_reset(conn));
    }
    bench.pass(SEC);
}
