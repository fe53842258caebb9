//! Domain clocks of a running node as a client on the wire follows them. Time stands still unless a test moves it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use nervix_wire::types::{
    AttachDomainClockRequest, CancelRequest, CancellationStage, ClientRequest,
    DetachDomainClockRequest, DomainClockAttachDisposition, DomainClockAttachmentEndReason,
    DomainClockDetachDisposition, DomainClockObservation, DomainClockObservedState,
    DomainClockTicked, PacedDomainClock, ReplyBody, ServerBody,
};
use serde_json::json;
use support::{Node, Session};

const PERIOD: i64 = 100_000_000;
/// 2030-01-01T00:00:00Z and 2031-01-01T00:00:00Z.
const FIRST_ORIGIN: i64 = 1_893_456_000_000_000_000;
const SECOND_ORIGIN: i64 = 1_924_992_000_000_000_000;

const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/graph/testdata/clock.nspl");

fn attach(domain: &str) -> ClientRequest {
    ClientRequest::AttachDomainClockRequest(AttachDomainClockRequest {
        domain: domain.to_owned(),
    })
}

fn detach(domain: &str) -> ClientRequest {
    ClientRequest::DetachDomainClockRequest(DetachDomainClockRequest {
        domain: domain.to_owned(),
    })
}

fn attached(body: ReplyBody) -> DomainClockAttachDisposition {
    match body {
        ReplyBody::DomainClockAttachOutcome(outcome) => outcome.disposition,
        other => panic!("{other:?}"),
    }
}

fn detached(body: ReplyBody) -> DomainClockDetachDisposition {
    match body {
        ReplyBody::DomainClockDetachOutcome(outcome) => outcome.disposition,
        other => panic!("{other:?}"),
    }
}

async fn follow(session: &mut Session, domain: &str) -> DomainClockObservation {
    match attached(session.ask(attach(domain)).await) {
        DomainClockAttachDisposition::DomainClockAttached(attached) => {
            assert_eq!(attached.domain, domain);
            attached.clock
        }
        other => panic!("{other:?}"),
    }
}

fn paced(clock: &DomainClockObservation) -> &PacedDomainClock {
    match &clock.state {
        DomainClockObservedState::PacedDomainClock(paced) => paced,
        other => panic!("{other:?}"),
    }
}

/// News of clocks, in their order.
#[derive(Debug, PartialEq)]
enum News {
    State(DomainClockObservation),
    Tick(DomainClockTicked),
    Ended(DomainClockAttachmentEndReason),
}

async fn news(session: &mut Session) -> News {
    session
        .event_where(|event| match event {
            ServerBody::DomainClockObserved(observed) => Some(News::State(observed.clock)),
            ServerBody::DomainClockTicked(tick) => Some(News::Tick(tick)),
            ServerBody::DomainClockAttachmentEnded(ended) => Some(News::Ended(ended.reason)),
            _ => None,
        })
        .await
}

async fn tick(session: &mut Session) -> DomainClockTicked {
    match news(session).await {
        News::Tick(tick) => tick,
        other => panic!("{other:?}"),
    }
}

async fn state(session: &mut Session) -> DomainClockObservation {
    match news(session).await {
        News::State(clock) => clock,
        other => panic!("{other:?}"),
    }
}

async fn step(node: &Node, by: &str) {
    node.post("clock", json!({"advance": by})).await;
}

async fn scenario() -> Node {
    Node::start(&["--frozen-time", "--load", SCENARIO]).await
}

// rule: K-1
#[tokio::test]
async fn a_session_follows_a_domain_at_most_once() {
    let node = scenario().await;
    let mut session = Session::begun(&node.address(0)).await;
    let missing = attached(session.ask(attach("nowhere")).await);
    assert!(
        matches!(&missing, DomainClockAttachDisposition::DomainNotFound(missing) if missing.domain == "nowhere")
    );
    assert!(matches!(
        detached(session.ask(detach("conformance")).await),
        DomainClockDetachDisposition::DomainClockNotAttached(_)
    ));
    follow(&mut session, "conformance").await;
    let again = attached(session.ask(attach("conformance")).await);
    assert!(matches!(
        again,
        DomainClockAttachDisposition::DomainClockAlreadyAttached(_)
    ));
    let mut other = Session::begun(&node.address(0)).await;
    follow(&mut other, "conformance").await;
    assert_eq!(node.counts().await["clocks"], 2);
    assert!(matches!(
        detached(session.ask(detach("conformance")).await),
        DomainClockDetachDisposition::DomainClockDetached(_)
    ));
    follow(&mut session, "conformance").await;
    drop((session, other));
    node.wait(json!({"clocks": 0})).await;
}

// rule: K-2, K-3, K-4, K-5
#[tokio::test]
async fn a_clock_is_followed_through_generations_and_lost_sessions() {
    let node = scenario().await;
    let mut session = Session::begun(&node.address(0)).await;
    let first = follow(&mut session, "conformance").await;
    assert_eq!(first.generation, 1);
    assert_eq!(
        (
            paced(&first).period_nanos,
            paced(&first).skew_nanos,
            paced(&first).logical_origin_unix_nanos
        ),
        (100_000_000, 10_000_000, FIRST_ORIGIN)
    );
    assert_eq!(paced(&first).time_rate.to_bits(), 2.0_f64.to_bits());
    // The first tick was due at the start; whoever attaches later is told the newest.
    let told = tick(&mut session).await;
    assert_eq!((told.generation, told.tick_id), (1, 1));
    assert_eq!(told.logical_boundary_unix_nanos, FIRST_ORIGIN);
    step(&node, "50ms").await;
    let second = tick(&mut session).await;
    assert_eq!((second.generation, second.tick_id), (1, 2));
    assert_eq!(second.logical_boundary_unix_nanos, FIRST_ORIGIN + PERIOD);
    assert_eq!(
        second.authority_utc_unix_nanos,
        paced(&first).utc_anchor_unix_nanos + 50_000_000
    );
    assert_eq!(
        second.serving_logical_unix_nanos,
        second.logical_boundary_unix_nanos
    );

    node.execute(
        Some("conformance"),
        &["STOP;", "START AT '2031-01-01T00:00:00Z' TIME RATE 4.0;"],
    )
    .await;
    let mut clock = state(&mut session).await;
    if clock.state == DomainClockObservedState::StoppedDomainClock {
        assert_eq!(clock.generation, 1);
        clock = state(&mut session).await;
    }
    assert_eq!(clock.generation, 2);
    assert_eq!(paced(&clock).logical_origin_unix_nanos, SECOND_ORIGIN);
    let third = tick(&mut session).await;
    assert_eq!((third.generation, third.tick_id), (2, 1));
    assert_eq!(third.logical_boundary_unix_nanos, SECOND_ORIGIN);

    node.post("cut", json!({})).await;
    session.end().await;
    step(&node, "25ms").await;
    let mut session = Session::begun(&node.address(0)).await;
    assert_eq!(follow(&mut session, "conformance").await, clock);
    let fourth = tick(&mut session).await;
    assert_eq!((fourth.generation, fourth.tick_id), (2, 2));
    assert!(matches!(
        detached(session.ask(detach("conformance")).await),
        DomainClockDetachDisposition::DomainClockDetached(_)
    ));
    step(&node, "1s").await;
    // Nothing about the clock came before the answer to what was asked afterwards.
    session.news.clear();
    session.ask(ClientRequest::ListDomainsRequest).await;
    assert!(session.news.is_empty());
}

// rule: K-3
#[tokio::test]
async fn what_a_slow_reader_missed_is_joined_to_the_newest() {
    let node = scenario().await;
    let mut session = Session::begun(&node.address(0)).await;
    follow(&mut session, "conformance").await;
    step(&node, "10s").await;
    // 10 s at twice the speed are 200 periods; the ticks in between may be left out, and none comes twice.
    let mut newest = 0;
    while newest < 201 {
        let told = tick(&mut session).await;
        assert!(told.tick_id > newest);
        assert_eq!(
            told.logical_boundary_unix_nanos,
            FIRST_ORIGIN + (i64::try_from(told.tick_id).unwrap() - 1) * PERIOD
        );
        newest = told.tick_id;
    }
    assert_eq!(newest, 201);
}

// rule: K-2
#[tokio::test]
async fn what_happens_while_an_attach_is_answered_follows_the_answer() {
    let node = scenario().await;
    let mut session = Session::begun(&node.address(0)).await;
    node.post("delay", json!({"kind": "AttachDomainClockRequest"}))
        .await;
    let request = session.send(attach("conformance")).await;
    node.wait(json!({"held": 1})).await;
    node.execute(Some("conformance"), &["STOP;"]).await;
    node.post("release", json!({})).await;
    let DomainClockAttachDisposition::DomainClockAttached(told) =
        attached(session.reply_to(request).await)
    else {
        panic!("not attached")
    };
    assert_eq!(told.clock.generation, 1);
    paced(&told.clock);
    // Ticks of the clock that stopped meanwhile are not told.
    assert_eq!(
        news(&mut session).await,
        News::State(DomainClockObservation {
            generation: 1,
            state: DomainClockObservedState::StoppedDomainClock
        })
    );
}

// rule: K-1, C-9
#[tokio::test]
async fn an_attach_that_is_cancelled_attaches_nothing() {
    let node = scenario().await;
    let mut session = Session::begun(&node.address(0)).await;
    for (when, stage) in [
        ("before", CancellationStage::BeforeAdmission),
        ("after", CancellationStage::AfterAdmission),
    ] {
        node.post(
            "delay",
            json!({"kind": "AttachDomainClockRequest", "when": when}),
        )
        .await;
        let request = session.send(attach("conformance")).await;
        node.wait(json!({"held": 1})).await;
        let cancel = session
            .send(ClientRequest::CancelRequest(CancelRequest {
                target_request_id: request,
            }))
            .await;
        session.reply_to(cancel).await;
        let ReplyBody::RequestCancelled(cancelled) = session.reply_to(request).await else {
            panic!("not cancelled")
        };
        assert_eq!(cancelled.stage, stage);
        // The next attach waits in the ordered lane until this one is over.
        follow(&mut session, "conformance").await;
        session.ask(detach("conformance")).await;
    }
    assert_eq!(node.counts().await["clocks"], 0);
}

// rule: K-2, K-4
#[tokio::test]
async fn an_attachment_ends_with_its_domain() {
    let node = scenario().await;
    let mut session = Session::begun(&node.address(0)).await;
    follow(&mut session, "conformance").await;
    node.execute(Some("conformance"), &["STOP;"]).await;
    node.execute(None, &["DROP DOMAIN conformance;"]).await;
    loop {
        match news(&mut session).await {
            News::Ended(reason) => {
                assert_eq!(reason, DomainClockAttachmentEndReason::DomainRemoved);
                break;
            }
            News::State(clock) => {
                assert_eq!(clock.state, DomainClockObservedState::StoppedDomainClock);
            }
            News::Tick(_) => {}
        }
    }
    assert!(matches!(
        detached(session.ask(detach("conformance")).await),
        DomainClockDetachDisposition::DomainClockNotAttached(_)
    ));
    assert!(matches!(
        attached(session.ask(attach("conformance")).await),
        DomainClockAttachDisposition::DomainNotFound(_)
    ));
}

// rule: K-4
#[tokio::test]
async fn a_clock_has_each_of_its_states() {
    let node = Node::start(&["--frozen-time"]).await;
    node.execute(
        None,
        &[
            "CREATE UNPACED DOMAIN free;",
            "CREATE PACED DOMAIN d WITH PERIOD 1s SKEW 1s;",
        ],
    )
    .await;
    let mut session = Session::begun(&node.address(0)).await;
    let stopped = DomainClockObservation {
        generation: 0,
        state: DomainClockObservedState::StoppedDomainClock,
    };
    assert_eq!(follow(&mut session, "free").await, stopped);
    assert_eq!(follow(&mut session, "d").await, stopped);
    node.execute(Some("free"), &["START;"]).await;
    let unpaced = state(&mut session).await;
    assert_eq!(
        (unpaced.generation, unpaced.state),
        (1, DomainClockObservedState::UnpacedDomainClock)
    );
    node.execute(Some("d"), &["START AT NOW;"]).await;
    paced(&state(&mut session).await);
    tick(&mut session).await;
    node.post(
        "clock_installed",
        json!({"domain": "d", "installed": false}),
    )
    .await;
    let missing = state(&mut session).await;
    assert_eq!(
        missing.state,
        DomainClockObservedState::UninstalledDomainClock
    );
    node.post("clock_installed", json!({"domain": "d", "installed": true}))
        .await;
    paced(&state(&mut session).await);
}

// rule: K-1, K-5
#[tokio::test]
async fn attaches_are_refused_and_answered_as_a_test_wants() {
    let node = scenario().await;
    let mut session = Session::begun(&node.address(0)).await;
    node.post(
        "answer",
        json!({"kind": "AttachDomainClockRequest", "with": "RequestFailed", "count": 2}),
    )
    .await;
    for _ in 0..2 {
        assert_eq!(
            attached(session.ask(attach("conformance")).await),
            DomainClockAttachDisposition::RequestFailed
        );
    }
    follow(&mut session, "conformance").await;
    node.post(
        "answer",
        json!({"kind": "DetachDomainClockRequest", "with": "RequestFailed"}),
    )
    .await;
    assert_eq!(
        detached(session.ask(detach("conformance")).await),
        DomainClockDetachDisposition::RequestFailed
    );
    assert_eq!(node.counts().await["clocks"], 1);
}

// rule: K-2, K-3
#[tokio::test]
async fn untrue_frames_of_a_clock_are_sent_as_told() {
    let node = scenario().await;
    let mut session = Session::begun(&node.address(0)).await;
    node.post(
        "clock_frame",
        json!({"what": "tick", "domain": "conformance", "generation": 7, "tick_id": 3}),
    )
    .await;
    let told = tick(&mut session).await;
    assert_eq!((told.generation, told.tick_id), (7, 3));
    node.post(
        "clock_frame",
        json!({"what": "state", "domain": "conformance", "generation": 7, "state": "paced", "rate": 0.5, "origin": -4}),
    )
    .await;
    let told = state(&mut session).await;
    assert_eq!(paced(&told).logical_origin_unix_nanos, -4);
    node.post(
        "clock_frame",
        json!({"what": "ended", "domain": "conformance"}),
    )
    .await;
    assert!(matches!(news(&mut session).await, News::Ended(_)));
}

// rule: K-3
#[tokio::test]
async fn ticks_come_by_themselves_while_time_passes() {
    let node = Node::start(&["--load", SCENARIO]).await;
    let mut session = Session::begun(&node.address(0)).await;
    follow(&mut session, "conformance").await;
    let first = tick(&mut session).await;
    let second = tick(&mut session).await;
    assert!(second.tick_id > first.tick_id);
}

// rule: K-1
#[tokio::test]
async fn any_node_tells_the_clock_whoever_leads() {
    let node = Node::start(&["--frozen-time", "--nodes", "3", "--load", SCENARIO]).await;
    let mut session = Session::begun(&node.address(2)).await;
    follow(&mut session, "conformance").await;
    tick(&mut session).await;
    node.post("leader", json!({"leader": "node-2"})).await;
    step(&node, "50ms").await;
    assert_eq!(tick(&mut session).await.tick_id, 2);
}
