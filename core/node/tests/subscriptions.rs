//! Subscriptions of a running node as a client on the wire sees them: opening, rows, loss, ends.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::sync::Arc;

use nervix_wire::types::{
    ClientRequest, ReplyBody, ServerBody, SubscribeDisposition, SubscriptionEndReason,
    SubscriptionHandle, UnsubscribeDisposition, UnsubscribeRequest,
};
use nervix_wire::{CellRef, Part};
use serde_json::json;
use support::{subscribe, Node, Session};

/// Frames of rows that a lane holds.
const LANE: usize = 16;

fn unsubscribe(name: &str) -> ClientRequest {
    ClientRequest::UnsubscribeRequest(UnsubscribeRequest {
        subscription: name.to_owned(),
    })
}

fn handle_of(event: &ServerBody) -> SubscriptionHandle {
    match event {
        ServerBody::SubscriptionRows(rows) => rows.subscription.clone(),
        ServerBody::SubscriptionDeliveryLost(lost) => lost.subscription.clone(),
        ServerBody::SubscriptionRowsSkipped(skipped) => skipped.subscription.clone(),
        ServerBody::SubscriptionEnded(ended) => ended.subscription.clone(),
        other => panic!("{other:?}"),
    }
}

fn failed(body: &ReplyBody) -> bool {
    match body {
        ReplyBody::SubscribeOutcome(outcome) => {
            outcome.disposition == SubscribeDisposition::RequestFailed
        }
        ReplyBody::UnsubscribeOutcome(outcome) => {
            outcome.disposition == UnsubscribeDisposition::RequestFailed
        }
        _ => false,
    }
}

async fn numbers(
    session: &mut Session,
    opened: &nervix_wire::types::SubscriptionOpened,
    count: usize,
) -> Vec<u32> {
    let schema = Arc::new(opened.schema.clone());
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let ServerBody::SubscriptionRows(rows) = session.event().await else {
            panic!("no rows")
        };
        assert_eq!(rows.subscription, opened.subscription);
        let rows = rows.check(schema.clone()).unwrap();
        assert!(rows.row_count() <= 256);
        for cell in rows.column(Part::Rows, 0).unwrap() {
            let CellRef::U32(number) = cell else {
                panic!("{cell:?}")
            };
            numbers.push(number);
        }
    }
    numbers
}

fn rows(numbers: std::ops::Range<u32>) -> serde_json::Value {
    numbers.map(|n| json!({ "n": n })).collect()
}

// rule: S-2, S-3, R-1
#[tokio::test]
async fn rows_follow_the_opening_reply_in_frames_of_at_most_256() {
    let node = Node::start(&[]).await.with_relay().await;
    let mut session = Session::begun(&node.address(0)).await;
    let opened = session.subscribe("CREATE SUBSCRIPTION x TO r;").await;
    assert_eq!(
        (
            opened.subscription.name.as_str(),
            opened.subscription.generation
        ),
        ("x", 1)
    );
    assert_eq!((opened.domain.as_str(), opened.relay.as_str()), ("d", "r"));
    let published = node
        .post(
            "publish",
            json!({"domain": "d", "relay": "r", "rows": rows(0..600)}),
        )
        .await;
    assert_eq!(published["rows"], 600);
    assert_eq!(
        numbers(&mut session, &opened, 600).await,
        (0..600).collect::<Vec<_>>()
    );
    assert_eq!(
        node.wait(json!({"frames": {"out": {"SubscriptionRows": 3}}}))
            .await["subscriptions"],
        1
    );
}

// rule: S-6
#[tokio::test]
async fn a_name_is_held_once_and_free_after_its_deletion() {
    let node = Node::start(&[]).await.with_relay().await;
    let mut session = Session::begun(&node.address(0)).await;
    let first = session.subscribe("CREATE SUBSCRIPTION x TO r;").await;
    assert!(failed(
        &session.ask(subscribe("CREATE SUBSCRIPTION x TO r;")).await
    ));
    let mut other = Session::begun(&node.address(0)).await;
    let second = other.subscribe("CREATE SUBSCRIPTION x TO r;").await;
    let ReplyBody::UnsubscribeOutcome(outcome) = session.ask(unsubscribe("x")).await else {
        panic!("no outcome")
    };
    assert!(matches!(
        outcome.disposition,
        UnsubscribeDisposition::SubscriptionDeleted(_)
    ));
    assert!(failed(&session.ask(unsubscribe("x")).await));
    let third = session.subscribe("CREATE SUBSCRIPTION x TO r;").await;
    // Each opening is a generation of its own, whichever session opens it.
    let generations = [first, second, third].map(|opened| opened.subscription.generation);
    assert!(generations.is_sorted_by(|earlier, later| earlier < later));
    drop(other);
    node.wait(json!({"subscriptions": {"exactly": 1}})).await;
}

// rule: S-1
#[tokio::test]
async fn what_is_no_subscription_is_refused_with_a_diagnostic() {
    let node = Node::start(&[]).await.with_relay().await;
    let mut session = Session::begun(&node.address(0)).await;
    for statement in [
        "CREATE SUBSCRIPTION x TO nothing;",
        "SHOW CLUSTER STATUS;",
        "CREATE SUBSCRIPTION",
    ] {
        assert!(
            failed(&session.ask(subscribe(statement)).await),
            "{statement}"
        );
    }
    node.post("refuse_subscribe", json!({"message": "not now"}))
        .await;
    assert!(failed(
        &session.ask(subscribe("CREATE SUBSCRIPTION x TO r;")).await
    ));
    session.subscribe("CREATE SUBSCRIPTION x TO r;").await;
}

// rule: S-4
#[tokio::test]
async fn an_ended_generation_gives_its_name_to_the_next() {
    let node = Node::start(&[]).await.with_relay().await;
    let mut session = Session::begun(&node.address(0)).await;
    let opened = session.subscribe("CREATE SUBSCRIPTION x TO r;").await;
    for statement in [
        "STOP;",
        "DROP RELAY r;",
        "CREATE RELAY r SCHEMA s UNBRANCHED;",
        "START;",
    ] {
        node.post("execute", json!({"domain": "d", "statement": statement}))
            .await;
    }
    let ended = loop {
        match session.event().await {
            ServerBody::SubscriptionEnded(ended) => break ended,
            ServerBody::DomainsObserved(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ended.subscription, opened.subscription);
    assert_eq!(ended.reason, SubscriptionEndReason::RelayRemoved);
    assert_eq!(
        session
            .subscribe("CREATE SUBSCRIPTION x TO r;")
            .await
            .subscription
            .generation,
        2
    );
    assert_eq!(node.counts().await["subscriptions"], 1);
}

// rule: S-5
#[tokio::test]
async fn a_dropping_subscription_that_is_not_read_counts_what_it_lost() {
    let node = Node::start(&[]).await.with_relay().await;
    let mut session = Session::begun(&node.address(0)).await;
    let opened = session
        .subscribe("CREATE SUBSCRIPTION x TO r DROPPING;")
        .await;
    let (times, batch) = (400, 256);
    node.post(
        "flood",
        json!({"domain": "d", "relay": "r", "rows": rows(0..batch), "times": times}),
    )
    .await;
    // The flood came to an end although nobody read: what is on the way is read now, and a last row behind it.
    let (mut received, mut lost) = (0, 0);
    while received + lost < u64::from(times * batch) {
        let event = session.event().await;
        assert_eq!(handle_of(&event), opened.subscription);
        match event {
            ServerBody::SubscriptionRows(rows) => received += rows.row_count() as u64,
            ServerBody::SubscriptionDeliveryLost(loss) => lost += loss.dropped_rows,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received + lost, u64::from(times * batch));
    assert!(lost > 0);
    assert!(received >= (LANE as u64) * u64::from(batch));
}

// rule: S-9
#[tokio::test]
async fn a_blocking_subscription_holds_back_the_relay_and_loses_nothing() {
    let node = Arc::new(Node::start(&[]).await.with_relay().await);
    let mut session = Session::begun(&node.address(0)).await;
    let opened = session
        .subscribe("CREATE SUBSCRIPTION x TO r BLOCKING;")
        .await;
    let (times, batch) = (400_usize, 256_u32);
    let flood = tokio::spawn({
        let node = node.clone();
        async move {
            node.post(
                "flood",
                json!({"domain": "d", "relay": "r", "rows": rows(0..batch), "times": times}),
            )
            .await
        }
    });
    node.wait(json!({"blocked_publications": 1})).await;
    // Other requests of the session go on while its rows wait.
    let received = numbers(&mut session, &opened, times * batch as usize).await;
    assert_eq!(received.len(), times * batch as usize);
    assert_eq!(flood.await.unwrap()["rows"], times * batch as usize);
}

// rule: S-9
#[tokio::test]
async fn a_held_back_relay_goes_on_when_the_session_that_holds_it_ends() {
    let node = Arc::new(Node::start(&[]).await.with_relay().await);
    let mut session = Session::begun(&node.address(0)).await;
    session
        .subscribe("CREATE SUBSCRIPTION x TO r BLOCKING;")
        .await;
    let flood = tokio::spawn({
        let node = node.clone();
        async move {
            node.post(
                "flood",
                json!({"domain": "d", "relay": "r", "rows": rows(0..256), "times": 400}),
            )
            .await
        }
    });
    node.wait(json!({"blocked_publications": 1})).await;
    node.post("cut", json!({})).await;
    assert_eq!(flood.await.unwrap()["rows"], 256 * 400);
    node.wait(json!({"sessions": 0, "subscriptions": 0, "blocked_publications": 0}))
        .await;
}

// rule: D-6
#[tokio::test]
async fn nothing_is_opened_for_a_session_that_is_over() {
    let node = Node::start(&[]).await.with_relay().await;
    for round in 1..=100 {
        let cut = json!({"direction": "in", "when": "before", "kind": "ListDomainsRequest", "how": "abort"});
        node.post("cut", cut).await;
        let mut session = Session::open(&node.address(0)).await;
        // The cut comes while those before it are being carried out.
        for number in 0..20 {
            let statement = format!("CREATE SUBSCRIPTION s{number} TO r;");
            session.send(subscribe(&statement)).await;
        }
        session.send(ClientRequest::ListDomainsRequest).await;
        node.wait(json!({"session_over": round, "subscriptions": 0, "timeout_ms": 2000}))
            .await;
    }
}
