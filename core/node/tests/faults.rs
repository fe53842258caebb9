//! The faults a test can arm in a running node, each as a client on the wire meets it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use base64::Engine;
use nervix_wire::types::{
    ClientRequest, CommandDisposition, NoticeLevel, OutcomeOrigin, ReplyBody, RequestRejection,
    ServerBody, ServerMessage, ServerNotice, SessionEndReason, UnknownOutcomeCause,
};
use nervix_wire::{decode_server, encode_server, Reassembler};
use serde_json::json;
use support::{call, command, Node, Over, Session};

fn show() -> ClientRequest {
    ClientRequest::CommandRequest(command(None, "SHOW CLUSTER STATUS;"))
}

// rule: D-6
#[tokio::test]
async fn a_session_is_cut_in_each_way() {
    let node = Node::start(&[]).await;
    for (body, over) in [
        (json!({}), Over::Lost),
        (json!({"how": "abort"}), Over::Lost),
        (json!({"how": "reset", "code": 2}), Over::Reset(2)),
        (json!({"how": "goaway", "code": 11}), Over::GoAway(11)),
        (
            json!({"how": "status", "code": 14, "message": "going"}),
            Over::Status(14),
        ),
    ] {
        let mut session = Session::begun(&node.address(0)).await;
        assert_eq!(node.post("cut", body.clone()).await["sessions"], 1);
        assert_eq!(session.end().await, over, "{body}");
        node.wait(json!({"sessions": 0})).await;
    }
    assert_eq!(node.counts().await["sessions"]["ended"]["server"], 5);
}

// rule: D-6, E-3
#[tokio::test]
async fn a_session_is_cut_before_or_after_a_frame_of_either_direction() {
    let node = Node::start(&[]).await;
    for (index, (direction, kind, when, how, answered, executed)) in [
        ("in", "CommandRequest", "before", "close", false, false),
        ("in", "CommandRequest", "after", "close", false, true),
        ("out", "CommandOutcome", "before", "close", false, true),
        ("out", "CommandOutcome", "after", "close", true, true),
        ("out", "CommandOutcome", "after", "reset", true, true),
        ("out", "Reply", "after", "goaway", true, true),
    ]
    .into_iter()
    .enumerate()
    {
        let mut session = Session::begun(&node.address(0)).await;
        // The first command passes, the second meets the cut.
        node.post(
            "cut",
            json!({"how": how, "direction": direction, "kind": kind, "when": when, "nth": 2}),
        )
        .await;
        session.ask(show()).await;
        let request = command(None, &format!("CREATE UNPACED DOMAIN d{index};"));
        session
            .send(ClientRequest::CommandRequest(request.clone()))
            .await;
        let mut seen = false;
        loop {
            match session.frame().await {
                Ok(ServerBody::Reply(_)) => seen = true,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        assert_eq!(seen, answered, "{direction} {kind} {when} {how}");
        let counted = node.counts().await["executed"][&request.execution_reference] == 1;
        assert_eq!(counted, executed, "{direction} {kind} {when} {how}");
        let mut session = Session::begun(&node.address(0)).await;
        let outcome = session.command(request).await;
        let expected = if executed {
            OutcomeOrigin::Recovered
        } else {
            OutcomeOrigin::Executed
        };
        assert_eq!(outcome.origin, expected, "{direction} {kind} {when} {how}");
    }
}

// rule: E-3, E-6
#[tokio::test]
async fn the_reply_of_a_command_is_dropped_and_recovered() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    node.post("drop_reply", json!({})).await;
    let request = command(None, "CREATE UNPACED DOMAIN d;");
    session
        .send(ClientRequest::CommandRequest(request.clone()))
        .await;
    let outcome = session.command(request.clone()).await;
    assert_eq!(outcome.origin, OutcomeOrigin::Recovered);
    assert_eq!(
        node.post("expire", json!({"reference": request.execution_reference}))
            .await["expired"],
        1
    );
    let expired = session.command(request).await.disposition;
    assert_eq!(expired, CommandDisposition::ExecutionReferenceExpired);
}

// rule: E-6
#[tokio::test]
async fn a_disposition_is_answered_with_or_without_execution() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    for (name, execute) in [("a", false), ("b", true)] {
        node.post(
            "disposition",
            json!({"disposition": "OutcomeUnknown", "cause": "StillApplying", "execute": execute}),
        )
        .await;
        let request = command(None, &format!("CREATE UNPACED DOMAIN {name};"));
        let CommandDisposition::OutcomeUnknown(unknown) =
            session.command(request.clone()).await.disposition
        else {
            panic!("another disposition")
        };
        assert_eq!(unknown.cause, UnknownOutcomeCause::StillApplying);
        let recovered = session.command(request).await.origin == OutcomeOrigin::Recovered;
        assert_eq!(recovered, execute);
    }
    for disposition in [
        json!({"disposition": "LeaderRedirect"}),
        json!({"disposition": "LeaderRedirect", "leader": "node-1"}),
        json!({"disposition": "LeaderRedirect", "leader": "node-7", "grpc_uri": "http://127.0.0.1:1"}),
        json!({"disposition": "TransactionDetached", "transaction_id": "t"}),
        json!({"disposition": "TransactionTakenOver", "transaction_id": "t"}),
        json!({"disposition": "ExecutionReferenceConflict", "conflict": "Owner"}),
        json!({"disposition": "ExecutionReferenceExpired"}),
        json!({"disposition": "PreviewStale", "transaction_id": "t"}),
        json!({"disposition": "RequestFailed"}),
    ] {
        node.post("disposition", disposition.clone()).await;
        let outcome = session
            .command(command(None, "CREATE UNPACED DOMAIN c;"))
            .await;
        assert!(
            !matches!(outcome.disposition, CommandDisposition::CommandCompleted(_)),
            "{disposition}"
        );
    }
    assert_eq!(
        node.counts().await["executed"].as_object().unwrap().len(),
        2
    );
}

// rule: C-8
#[tokio::test]
async fn requests_of_a_kind_are_rejected_for_a_reason() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    node.post(
        "reject",
        json!({"kind": "ListDomainsRequest", "reason": "ServerBusy", "count": 2}),
    )
    .await;
    for _ in 0..2 {
        let ReplyBody::RequestRejected(rejected) =
            session.ask(ClientRequest::ListDomainsRequest).await
        else {
            panic!("not rejected")
        };
        assert_eq!(rejected.rejection, RequestRejection::ServerBusy);
    }
    assert!(matches!(
        session.ask(ClientRequest::ListDomainsRequest).await,
        ReplyBody::DomainList(_)
    ));
}

// rule: F-7
#[tokio::test]
async fn replies_are_split_with_other_frames_between_the_parts() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    node.post("parts", json!({"bytes": 16, "notices": true}))
        .await;
    let id = session.send(show()).await;
    let mut reassembler = Reassembler::new(id);
    let whole = loop {
        let reply = session.reply().await;
        assert_eq!(reply.request_id, id);
        let ReplyBody::TransferPart(part) = reply.body else {
            panic!("{reply:?}")
        };
        assert!(part.chunk.len() <= 16);
        if let Some(whole) = reassembler.push(id, &part).unwrap() {
            break whole;
        }
    };
    assert!(!session.news.is_empty());
    let ServerBody::Reply(reply) = whole.body else {
        panic!("no reply")
    };
    assert!(matches!(reply.body, ReplyBody::CommandOutcome(_)));
    node.post(
        "parts",
        json!({"bad": "offset_gap", "kind": "CommandOutcome"}),
    )
    .await;
    let id = session.send(show()).await;
    let mut reassembler = Reassembler::new(id);
    let mut refused = false;
    for _ in 0..2 {
        let ReplyBody::TransferPart(part) = session.reply().await.body else {
            panic!("no part")
        };
        refused |= reassembler.push(id, &part).is_err();
    }
    assert!(refused);
}

// rule: F-3, F-4
#[tokio::test]
async fn a_frame_of_a_kind_is_corrupted() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    for what in [
        "identifier",
        "union_tag",
        "enum",
        "required",
        "truncated",
        "empty",
        "nesting",
        "tables",
    ] {
        node.post("corrupt", json!({"what": what, "kind": "CommandOutcome"}))
            .await;
        session.send(show()).await;
        let frame = session.raw_frame().await.unwrap();
        assert!(decode_server(&frame).is_err(), "{what}");
    }
    node.post("corrupt", json!({"what": "oversize"})).await;
    session.send(show()).await;
    assert_eq!(
        session.raw_frame().await.unwrap().as_slice().len(),
        nervix_wire::FRAME_LIMIT + 1
    );
    assert!(matches!(
        session.ask(show()).await,
        ReplyBody::CommandOutcome(_)
    ));
}

// rule: E-5
#[tokio::test]
async fn an_outcome_carries_another_reference() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    node.post("wrong_reference", json!({})).await;
    let request = command(None, "SHOW CLUSTER STATUS;");
    let wrong = session.command(request.clone()).await;
    assert_ne!(wrong.execution_reference, request.execution_reference);
}

// rule: C-3, F-3
#[tokio::test]
async fn raw_frames_and_notices_are_sent() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    let notice = ServerNotice {
        level: NoticeLevel::Warning,
        message: "soon".to_owned(),
    };
    let frame = encode_server(&ServerMessage {
        body: ServerBody::ServerNotice(notice.clone()),
    })
    .unwrap();
    let frame = base64::engine::general_purpose::STANDARD.encode(frame);
    assert_eq!(
        node.post("inject", json!({"frame": frame})).await["sessions"],
        1
    );
    assert!(matches!(session.event().await, ServerBody::ServerNotice(seen) if seen == notice));
    node.post("notice", json!({"level": "Warning", "message": "soon"}))
        .await;
    assert!(matches!(session.event().await, ServerBody::ServerNotice(seen) if seen == notice));
}

#[tokio::test]
async fn domains_come_in_their_other_layout_until_told() {
    let node = Node::start(&[]).await;
    node.post("execute", json!({"statement": "CREATE UNPACED DOMAIN d;"}))
        .await;
    let mut frames = Vec::new();
    for layout in ["standard", "alternate"] {
        node.post("domain_info", json!({"layout": layout})).await;
        let mut session = Session::open(&node.address(0)).await;
        session.raw_frame().await.unwrap();
        let frame = session.raw_frame().await.unwrap();
        let ServerBody::DomainsObserved(observed) = decode_server(&frame).unwrap().body else {
            panic!("not second")
        };
        assert_eq!(observed.domains[0].domain, "d");
        frames.push(frame.as_slice().to_vec());
    }
    assert_ne!(frames[0], frames[1]);
}

// rule: D-6
#[tokio::test]
async fn sessions_are_ended_with_each_reason() {
    let node = Node::start(&["--nodes", "3"]).await;
    for (body, expected) in [
        (
            json!({"reason": "ServerShuttingDown"}),
            "ServerShuttingDown",
        ),
        (
            json!({"reason": "ProtocolViolated", "message": "m"}),
            "ProtocolViolated",
        ),
        (
            json!({"reason": "LeaderRedirect", "leader": "node-2"}),
            "LeaderRedirect",
        ),
    ] {
        let mut session = Session::begun(&node.address(0)).await;
        node.post("end", body).await;
        let ServerBody::SessionEnding(ending) = session.event().await else {
            panic!("no ending")
        };
        let name = match ending.reason {
            SessionEndReason::ServerShuttingDown => "ServerShuttingDown",
            SessionEndReason::ProtocolViolated(_) => "ProtocolViolated",
            SessionEndReason::LeaderRedirect(redirect) => {
                assert!(redirect.leader.unwrap().grpc_uri.is_some());
                "LeaderRedirect"
            }
        };
        assert_eq!(name, expected);
        assert_eq!(session.end().await, Over::Status(0));
    }
}

// rule: D-3
#[tokio::test]
async fn nodes_stop_start_and_refuse_connections() {
    let node = Node::start(&["--nodes", "3"]).await;
    let exchange = "/nervix.session.Session/Exchange";
    let mut on_leader = Session::begun(&node.address(0)).await;
    let mut follower = Session::begun(&node.address(1)).await;
    let health = node
        .post("node", json!({"node": "node-1", "state": "stopped"}))
        .await;
    assert_eq!(health["leader"], json!(null));
    assert_eq!(on_leader.end().await, Over::Lost);
    assert!(matches!(
        follower.event().await,
        ServerBody::LeadershipObserved(_)
    ));
    assert_eq!(
        call(&node.address(0), exchange, None).await.err(),
        Some(None)
    );
    let health = node
        .post("node", json!({"node": "node-1", "state": "running"}))
        .await;
    assert_eq!(health["leader"], "node-1");
    Session::begun(&node.address(0)).await;

    node.post("accept", json!({"mode": "refuse", "node": "node-1"}))
        .await;
    assert_eq!(
        call(&node.address(0), exchange, None).await.err(),
        Some(None)
    );
    node.wait(json!({"connections_refused": 1})).await;
    Session::begun(&node.address(1)).await;
    node.post("accept", json!({"mode": "accept"})).await;
    Session::begun(&node.address(0)).await;
}

#[tokio::test]
async fn the_clock_stands_still_and_moves_when_told() {
    let node = Node::start(&["--frozen-time"]).await;
    let before = node.post("clock", json!({})).await;
    assert_eq!(before["frozen"], true);
    let after = node.post("clock", json!({"advance": "2s"})).await;
    let nanos = |body: &serde_json::Value| body["now_unix_nanos"].as_i64().unwrap();
    assert_eq!(nanos(&after) - nanos(&before), 2_000_000_000);
    assert_eq!(
        node.post("clock", json!({"frozen": false})).await["frozen"],
        false
    );
}

// rule: C-4, T-8
#[tokio::test]
async fn a_silent_connection_says_nothing_until_it_is_let_speak() {
    let node = Node::start(&["--nodes", "3"]).await;
    let mut silent = Session::begun(&node.address(0)).await;
    let mut other = Session::begun(&node.address(1)).await;
    let done = node.post("silence", json!({"node": "node-1"})).await;
    assert_eq!(done["connections"], 1);
    silent.send(show()).await;
    // The other node's sessions, and new ones of the same node, are served.
    other.ask(show()).await;
    let mut later = Session::begun(&node.address(0)).await;
    later.ask(show()).await;
    assert_eq!(node.counts().await["frames"]["in"]["CommandRequest"], 2);
    node.post("silence", json!({"silent": false})).await;
    let answered = loop {
        if let ServerBody::Reply(reply) = silent.frame().await.unwrap() {
            break reply;
        }
    };
    assert!(matches!(answered.body, ReplyBody::CommandOutcome(_)));
    assert_eq!(node.counts().await["frames"]["in"]["CommandRequest"], 3);

    node.post("silence", json!({"node": "node-1"})).await;
    node.post("cut", json!({"node": "node-1"})).await;
    assert_eq!(silent.end().await, Over::Lost);
}

// rule: C-5, P-7
#[tokio::test]
async fn what_no_client_may_do_is_counted() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    node.post(
        "reject",
        json!({"kind": "CommandRequest", "reason": "InvalidRequest"}),
    )
    .await;
    session.ask(show()).await;
    assert_eq!(node.counts().await["violations"], json!({}));
    session
        .ask(ClientRequest::CommandRequest(command(None, "")))
        .await;
    let counts = node.counts().await;
    assert_eq!(counts["violations"], json!({"InvalidRequest": 1}));
}
