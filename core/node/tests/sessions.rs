//! Sessions of a running node as a client on the wire sees them: opening, requests and their answers, commands and
//! their records, redirects.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use nervix_wire::types::{
    CancelRequest, CancelState, CancellationStage, ChoiceLookupRequest, ChoiceTarget,
    ClientRequest, CommandDisposition, CommandRequest, DomainSelection,
    ExecutionReferenceConflictKind, Leadership, OutcomeOrigin, ReplyBody, RequestRejected,
    RequestRejection, SelectDomainRequest, ServerBody, SessionEndReason, SuggestRequest,
};
use serde_json::{json, Value};
use support::{call, command, reference, subscribe, Node, Over, Session};

fn rejection(body: ReplyBody) -> RequestRejected {
    match body {
        ReplyBody::RequestRejected(rejected) => rejected,
        other => panic!("{other:?}"),
    }
}

fn completed(disposition: &CommandDisposition) -> bool {
    matches!(disposition, CommandDisposition::CommandCompleted(_))
}

fn suggest(page_size: u16) -> ClientRequest {
    ClientRequest::SuggestRequest(SuggestRequest {
        input: "CRE".to_owned(),
        cursor: 3,
        domain: None,
        page_size,
        continuation: None,
    })
}

// rule: T-1, C-4
#[tokio::test]
async fn a_session_begins_with_leadership_and_domains_and_runs_a_command() {
    let node = Node::start(&[]).await;
    let mut session = Session::open(&node.address(0)).await;
    let ServerBody::LeadershipObserved(observed) = session.frame().await.unwrap() else {
        panic!("not first")
    };
    assert!(
        matches!(observed.leadership, Leadership::LeaderIsServingNode(leader) if leader.node == "node-1")
    );
    let ServerBody::DomainsObserved(observed) = session.frame().await.unwrap() else {
        panic!("not second")
    };
    assert!(observed.domains.is_empty());
    let created = command(None, "CREATE UNPACED DOMAIN d;");
    let outcome = session.command(created.clone()).await;
    assert!(completed(&outcome.disposition), "{}", outcome.message);
    assert_eq!(outcome.execution_reference, created.execution_reference);
    assert_eq!(outcome.origin, OutcomeOrigin::Executed);
    let ServerBody::DomainsObserved(observed) = session.event().await else {
        panic!("the change is not observed")
    };
    assert_eq!(observed.domains[0].domain, "d");
}

// rule: E-3, E-6, E-8
#[tokio::test]
async fn a_repeated_reference_recovers_conflicts_or_expires() {
    let node = Node::start(&[]).await;
    let first = command(None, "CREATE UNPACED DOMAIN d;");
    let mut session = Session::begun(&node.address(0)).await;
    let executed = session.command(first.clone()).await;
    let mut session = Session::begun(&node.address(0)).await;
    let recovered = session.command(first.clone()).await;
    assert_eq!(recovered.origin, OutcomeOrigin::Recovered);
    assert_eq!(recovered.disposition, executed.disposition);
    assert_eq!(recovered.message, executed.message);
    let other = CommandRequest {
        query: "CREATE UNPACED DOMAIN e;".to_owned(),
        ..first.clone()
    };
    let conflict = session.command(other).await.disposition;
    assert!(matches!(
        conflict,
        CommandDisposition::ExecutionReferenceConflict(conflict)
            if conflict.conflict == ExecutionReferenceConflictKind::Content
    ));
    let elsewhere = CommandRequest {
        domain: Some("d".to_owned()),
        ..first.clone()
    };
    let conflict = session.command(elsewhere).await.disposition;
    assert!(matches!(
        conflict,
        CommandDisposition::ExecutionReferenceConflict(conflict)
            if conflict.conflict == ExecutionReferenceConflictKind::Domain
    ));
    assert_eq!(
        node.counts().await["executed"][&first.execution_reference],
        1
    );
    node.post("clock", json!({"advance": "16m"})).await;
    let expired = session.command(first).await.disposition;
    assert_eq!(expired, CommandDisposition::ExecutionReferenceExpired);
    let fresh = session
        .command(command(None, "CREATE UNPACED DOMAIN f;"))
        .await;
    assert!(completed(&fresh.disposition));
}

// rule: E-1, C-8
#[tokio::test]
async fn bad_references_are_rejected_before_any_effect() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    for bad in ["", "a b", "read-1"] {
        let request = CommandRequest {
            execution_reference: bad.to_owned(),
            ..command(None, "CREATE UNPACED DOMAIN d;")
        };
        let rejected = rejection(session.ask(ClientRequest::CommandRequest(request)).await);
        assert_eq!(
            rejected.rejection,
            RequestRejection::InvalidRequest,
            "{bad}"
        );
        assert_eq!(rejected.field.as_deref(), Some("execution_reference"));
    }
    let read = CommandRequest {
        execution_reference: "read-1".to_owned(),
        ..command(None, "SHOW CLUSTER STATUS;")
    };
    assert!(completed(&session.command(read).await.disposition));
    assert!(node.counts().await["executed"].as_object().unwrap().len() == 1);
}

// rule: L-2
#[tokio::test]
async fn a_command_is_one_statement_and_none_that_is_a_request() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    for (query, named) in [
        (
            "CREATE UNPACED DOMAIN d; CREATE UNPACED DOMAIN e;",
            "CREATE UNPACED DOMAIN e;",
        ),
        ("LIST DOMAINS;", "ListDomainsRequest"),
        ("CREATE SUBSCRIPTION s TO r;", "SubscribeRequest"),
        ("DELETE SUBSCRIPTION s;", "UnsubscribeRequest"),
        ("USE d;", "USE d;"),
    ] {
        let outcome = session.command(command(None, query)).await;
        assert_eq!(
            outcome.disposition,
            CommandDisposition::RequestFailed,
            "{query}"
        );
        assert!(outcome.message.contains(named), "{}", outcome.message);
        let span = outcome.diagnostics[0].span.unwrap();
        let text = &query[span.start as usize..span.end as usize];
        assert!(outcome.message.contains(text), "{text}");
    }
    assert_eq!(node.counts().await["executed"], json!({}));
}

// rule: C-8
#[tokio::test]
async fn defects_of_a_request_are_answered_with_the_field_and_end_nothing() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    for page_size in [0, 101] {
        let rejected = rejection(session.ask(suggest(page_size)).await);
        assert_eq!(rejected.rejection, RequestRejection::InvalidRequest);
        assert_eq!(rejected.field.as_deref(), Some("page_size"));
    }
    assert!(matches!(
        session.ask(suggest(100)).await,
        ReplyBody::SuggestOutcome(_)
    ));
    let select = |domain: &str| {
        ClientRequest::SelectDomainRequest(SelectDomainRequest {
            domain: domain.to_owned(),
        })
    };
    assert_eq!(
        rejection(session.ask(select("")).await).field.as_deref(),
        Some("domain")
    );
    let lookup = ClientRequest::ChoiceLookupRequest(ChoiceLookupRequest {
        target: ChoiceTarget::DomainPace,
        dependencies: Vec::new(),
        search: String::new(),
        page_size: 1,
        page_cursor: None,
    });
    assert_eq!(
        rejection(session.ask(lookup).await).rejection,
        RequestRejection::UnsupportedRequest
    );
    assert!(matches!(
        session.ask(ClientRequest::ListDomainsRequest).await,
        ReplyBody::DomainList(_)
    ));
}

#[tokio::test]
async fn selecting_a_domain_is_followed_by_what_only_that_brings() {
    let node = Node::start(&[]).await;
    node.post("execute", json!({"statement": "CREATE UNPACED DOMAIN d;"}))
        .await;
    let mut session = Session::begun(&node.address(0)).await;
    let select = |domain: &str| {
        ClientRequest::SelectDomainRequest(SelectDomainRequest {
            domain: domain.to_owned(),
        })
    };
    let ReplyBody::DomainSelectionOutcome(outcome) = session.ask(select("d")).await else {
        panic!("no selection")
    };
    assert!(matches!(
        outcome.selection,
        DomainSelection::DomainSelected(_)
    ));
    assert!(matches!(
        session.event().await,
        ServerBody::DomainSnapshotObserved(snapshot) if snapshot.domain == "d"
    ));
    assert!(matches!(
        session.event().await,
        ServerBody::ClusterObserved(_)
    ));
    let ReplyBody::DomainSelectionOutcome(outcome) = session.ask(select("e")).await else {
        panic!("no selection")
    };
    assert!(matches!(
        outcome.selection,
        DomainSelection::DomainNotFound(_)
    ));
}

// rule: C-5, C-6, C-8
#[tokio::test]
async fn requests_in_flight_are_limited_and_unique() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    node.post(
        "delay",
        json!({"kind": "ListDomainsRequest", "when": "before", "count": 64}),
    )
    .await;
    for _ in 0..64 {
        session.send(ClientRequest::ListDomainsRequest).await;
    }
    node.wait(json!({"held": 64})).await;
    let many = rejection(session.ask(ClientRequest::ListDomainsRequest).await);
    assert_eq!(many.rejection, RequestRejection::TooManyRequestsInFlight);
    session.send_as(7, ClientRequest::ListDomainsRequest).await;
    let duplicate = session.reply().await;
    assert_eq!(duplicate.request_id, 7);
    assert_eq!(
        rejection(duplicate.body).rejection,
        RequestRejection::DuplicateRequestId
    );
    node.post("release", json!({})).await;
    let mut answered: Vec<u64> = Vec::new();
    for _ in 0..64 {
        let reply = session.reply().await;
        assert!(matches!(reply.body, ReplyBody::DomainList(_)));
        answered.push(reply.request_id);
    }
    answered.sort_unstable();
    assert_eq!(answered, (1..=64).collect::<Vec<_>>());
}

// rule: C-9, C-10
#[tokio::test]
async fn a_cancellation_says_whether_the_request_was_admitted() {
    let node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    for (when, stage, executed) in [
        ("before", CancellationStage::BeforeAdmission, false),
        ("after", CancellationStage::AfterAdmission, true),
    ] {
        node.post("delay", json!({"when": when})).await;
        let request = command(None, &format!("CREATE UNPACED DOMAIN d{when};"));
        let target = session
            .send(ClientRequest::CommandRequest(request.clone()))
            .await;
        node.wait(json!({"held": 1})).await;
        let cancel = ClientRequest::CancelRequest(CancelRequest {
            target_request_id: target,
        });
        let ReplyBody::CancelOutcome(outcome) = session.ask(cancel.clone()).await else {
            panic!("no outcome of the cancellation")
        };
        assert_eq!(outcome.state, CancelState::Requested);
        let reply = session.reply().await;
        assert_eq!(reply.request_id, target);
        assert!(
            matches!(reply.body, ReplyBody::RequestCancelled(cancelled) if cancelled.stage == stage)
        );
        node.wait(json!({"held": 0})).await;
        let counted = node.counts().await["executed"][&request.execution_reference] == 1;
        assert_eq!(counted, executed);
        let ReplyBody::CancelOutcome(outcome) = session.ask(cancel).await else {
            panic!("no outcome of the cancellation")
        };
        assert_eq!(outcome.state, CancelState::NotInFlight);
    }
}

// rule: D-1, D-2
#[tokio::test]
async fn followers_redirect_commands_and_serve_reads() {
    let node = Node::start(&["--nodes", "3"]).await;
    assert_eq!(node.line["leader"], "node-1");
    let mut follower = Session::open(&node.address(1)).await;
    let ServerBody::LeadershipObserved(observed) = follower.frame().await.unwrap() else {
        panic!("not first")
    };
    let Leadership::LeaderIsRemote(remote) = observed.leadership else {
        panic!("{observed:?}")
    };
    assert_eq!(
        remote.leader.grpc_uri.as_deref(),
        node.line["nodes"][0]["uri"].as_str()
    );
    assert!(matches!(
        follower.frame().await,
        Ok(ServerBody::DomainsObserved(_))
    ));
    let create = command(None, "CREATE UNPACED DOMAIN d;");
    let CommandDisposition::LeaderRedirect(redirect) =
        follower.command(create.clone()).await.disposition
    else {
        panic!("a follower ran a command")
    };
    assert_eq!(
        redirect.leader.unwrap().grpc_uri.as_deref(),
        node.line["nodes"][0]["uri"].as_str()
    );
    assert!(completed(
        &follower
            .command(command(None, "SHOW CLUSTER STATUS;"))
            .await
            .disposition
    ));
    let mut leader = Session::begun(&node.address(0)).await;
    let executed = leader.command(create.clone()).await;
    assert!(completed(&executed.disposition));
    assert_eq!(executed.origin, OutcomeOrigin::Executed);
    assert!(matches!(
        follower.event().await,
        ServerBody::DomainsObserved(_)
    ));

    node.post("leader", json!({"leader": null})).await;
    assert!(matches!(
        follower.event().await,
        ServerBody::LeadershipObserved(observed) if observed.leadership == Leadership::LeaderUnknown
    ));
    let CommandDisposition::LeaderRedirect(redirect) =
        follower.command(create.clone()).await.disposition
    else {
        panic!("a follower ran a command")
    };
    assert_eq!(redirect.leader, None);

    node.post("leader", json!({"leader": "node-2"})).await;
    let recovered = follower.command(create).await;
    assert_eq!(recovered.origin, OutcomeOrigin::Recovered);
}

// rule: T-4, T-5
#[tokio::test]
async fn credentials_are_required_where_a_password_is_set() {
    let node = Node::start(&["--password", "secret"]).await;
    let address = node.address(0);
    let exchange = "/nervix.session.Session/Exchange";
    let right = "Basic ZGVmYXVsdDpzZWNyZXQ=";
    for wrong in [None, Some("Basic ZGVmYXVsdDp3cm9uZw=="), Some("Bearer x")] {
        assert_eq!(call(&address, exchange, wrong).await.err(), Some(Some(16)));
    }
    assert_eq!(
        call(&address, "/nervix.session.Session/Nothing", Some(right))
            .await
            .err(),
        Some(Some(12))
    );
    node.post("auth", json!({"answer": "unavailable"})).await;
    assert_eq!(
        call(&address, exchange, Some(right)).await.err(),
        Some(Some(14))
    );
    node.post("auth", json!({"answer": "unauthenticated"}))
        .await;
    assert_eq!(
        call(&address, exchange, Some(right)).await.err(),
        Some(Some(16))
    );
    assert!(call(&address, exchange, Some(right)).await.is_ok());
    assert_eq!(
        node.counts().await["calls"],
        json!({"unauthenticated": 4, "unavailable": 1})
    );
}

// rule: T-6, F-6
#[tokio::test]
async fn broken_framing_ends_the_call_with_the_status_that_says_so() {
    let node = Node::start(&[]).await;
    let address = node.address(0);
    let mut session = Session::begun(&address).await;
    session.send_raw(0, b"not a frame").await;
    assert_eq!(session.end().await, Over::Status(13));
    let mut session = Session::begun(&address).await;
    session
        .send_raw(0, &vec![0; nervix_wire::FRAME_LIMIT + 1])
        .await;
    assert_eq!(session.end().await, Over::Status(11));
    let mut session = Session::begun(&address).await;
    session.send_raw(1, b"compressed").await;
    assert_eq!(session.end().await, Over::Status(12));
    let counts = node.wait(json!({"ended": {"server": 3}})).await;
    assert_eq!(counts["frames"]["in"], json!({"Malformed": 3}));
}

// rule: X-7
#[tokio::test]
async fn each_end_of_a_session_is_told_apart() {
    let node = Node::start(&[]).await;
    let address = node.address(0);
    let mut session = Session::begun(&address).await;
    session.half_close();
    assert_eq!(session.end().await, Over::Status(0));
    node.wait(json!({"ended": {"end_stream": 1}})).await;
    let mut session = Session::begun(&address).await;
    session.reset();
    node.wait(json!({"ended": {"reset": 1}})).await;
    let session = Session::begun(&address).await;
    drop(session);
    let counts = node.wait(json!({"sessions": 0, "sessions_ended": 3})).await;
    assert_eq!(
        counts["sessions"]["ended"],
        json!({"end_stream": 1, "reset": 1, "lost": 1, "server": 0})
    );
    assert_eq!(counts["sessions"]["list"][1]["detail"], 8);
}

// rule: C-4, D-6
#[tokio::test]
async fn a_terminated_node_says_goodbye_to_its_sessions() {
    let mut node = Node::start(&[]).await;
    let mut session = Session::begun(&node.address(0)).await;
    let pid = node.child.id().unwrap();
    std::process::Command::new("kill")
        .arg(pid.to_string())
        .status()
        .unwrap();
    let ServerBody::SessionEnding(ending) = session.event().await else {
        panic!("no ending")
    };
    assert_eq!(ending.reason, SessionEndReason::ServerShuttingDown);
    assert_eq!(session.end().await, Over::Status(0));
    let status = tokio::time::timeout(support::PATIENCE, node.child.wait())
        .await
        .unwrap()
        .unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn a_node_ends_with_the_process_that_started_it() {
    let mut node = Node::start(&[]).await;
    drop(node.child.stdin.take());
    let status = tokio::time::timeout(support::PATIENCE, node.child.wait())
        .await
        .unwrap()
        .unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn a_file_of_statements_is_loaded_before_serving() {
    let path = std::env::temp_dir().join(format!("{}.nspl", reference()));
    std::fs::write(
        &path,
        "// two domains\nCREATE UNPACED DOMAIN d; CREATE UNPACED DOMAIN e;\nUSE d; CREATE SCHEMA s (n U32);\n\
         CREATE RELAY r SCHEMA s UNBRANCHED; START;",
    )
    .unwrap();
    let node = Node::start(&["--load", path.to_str().unwrap()]).await;
    std::fs::remove_file(&path).unwrap();
    let mut session = Session::begun(&node.address(0)).await;
    let shown = session
        .command(command(Some("d"), "SHOW CREATE RELAY r;"))
        .await;
    assert!(completed(&shown.disposition), "{}", shown.message);
    let ReplyBody::SubscribeOutcome(_) =
        session.ask(subscribe("CREATE SUBSCRIPTION x TO r;")).await
    else {
        panic!("not loaded")
    };
}

#[tokio::test]
async fn the_control_endpoint_says_what_is_wrong_with_a_body() {
    let node = Node::start(&[]).await;
    for (action, body, complaint) in [
        ("nothing", json!({}), "no action"),
        ("publish", json!({"domain": "d"}), "`relay`"),
        ("cut", json!({"how": "gently"}), "gently"),
        (
            "cut",
            json!({"direction": "in", "kind": "CommandOutcome"}),
            "CommandOutcome",
        ),
        ("corrupt", json!({"what": "everything"}), "everything"),
        ("notice", json!({"message": "x", "moon": 1}), "moon"),
        ("leader", json!({"leader": "node-9"}), "node-9"),
        ("wait", json!({}), "at least one"),
        ("expire", json!({"reference": "x"}), "x"),
        ("reject", json!({"reason": "Mood"}), "Mood"),
        ("delay", json!({"nth": 0}), "begin at 1"),
    ] {
        let (status, answer) = node.try_post(action, body).await;
        assert!(status == 400 || status == 404, "{action}: {status}");
        assert!(
            answer["error"].as_str().unwrap().contains(complaint),
            "{action}: {answer}"
        );
    }
    let (status, answer) = node
        .try_post("wait", json!({"sessions": 1, "timeout_ms": 1}))
        .await;
    assert_eq!(status, 408);
    assert!(matches!(answer["counts"], Value::Object(_)));
}

#[tokio::test]
async fn a_body_with_an_unknown_field_has_done_nothing() {
    let node = Node::start(&["--nodes", "3", "--frozen-time"])
        .await
        .with_endpoints("SEQUENTIAL")
        .await;
    let mut session = Session::begun(&node.address(0)).await;
    let rows = json!([{"n": 1}]);
    for (action, mut body) in [
        (
            "publish",
            json!({"domain": "d", "relay": "r", "rows": rows}),
        ),
        (
            "flood",
            json!({"domain": "d", "relay": "r", "rows": rows, "times": 2}),
        ),
        ("execute", json!({"statement": "CREATE UNPACED DOMAIN e;"})),
        ("cut", json!({})),
        ("cut", json!({"direction": "in"})),
        ("end", json!({"reason": "ServerShuttingDown"})),
        ("node", json!({"node": "node-1", "state": "stopped"})),
        ("accept", json!({"mode": "refuse"})),
        ("leader", json!({"leader": "node-2"})),
        ("delay", json!({})),
        ("release", json!({})),
        ("clear", json!({})),
        ("drop_reply", json!({})),
        ("parts", json!({"bytes": 1})),
        ("inject", json!({"frame": ""})),
        ("corrupt", json!({"what": "enum"})),
        ("wrong_reference", json!({})),
        ("reject", json!({"reason": "ServerBusy"})),
        ("refuse_subscribe", json!({})),
        ("disposition", json!({"disposition": "RequestFailed"})),
        ("expire", json!({})),
        ("auth", json!({"answer": "unauthenticated"})),
        ("domain_info", json!({"layout": "alternate"})),
        ("clock", json!({"frozen": false, "advance": "15m"})),
        ("notice", json!({"message": "soon"})),
        ("suspend", json!({"domain": "d", "ingestor": "i"})),
        ("resume", json!({"domain": "d", "ingestor": "i"})),
        ("end_producer", json!({})),
        ("end_consumer", json!({})),
        (
            "answer",
            json!({"kind": "SubmitBatchRequest", "with": "Busy"}),
        ),
        (
            "answer",
            json!({"kind": "SubmitBatchRequest", "with": "Busy", "domain": "d", "ingestor": "i"}),
        ),
        (
            "describe_otherwise",
            json!({"kind": "OpenIngestorRequest", "change": "Contract"}),
        ),
        (
            "clock_installed",
            json!({"domain": "d", "installed": false}),
        ),
        ("clock_frame", json!({"domain": "d", "what": "ended"})),
        ("producer_frame", json!({"producer": 1, "what": "open"})),
        ("wait", json!({"sessions": 1})),
    ] {
        body["colour"] = json!("green");
        let before = node.post("clock", json!({})).await;
        let (status, answer) = node.try_post(action, body).await;
        assert_eq!(status, 400, "{action}: {answer}");
        assert!(
            answer["error"].as_str().unwrap().contains("`colour`"),
            "{action}: {answer}"
        );
        assert_eq!(node.post("clock", json!({})).await, before, "{action}");
    }
    // Nothing was published, nobody was told anything, and what is asked next is answered as ever.
    let counts = node.counts().await;
    assert_eq!(counts["published_rows"], 0);
    assert_eq!(counts["sessions"]["opened"], 1);
    assert_eq!(counts["sessions"]["open"], 1);
    assert_eq!(node.get("health").await["leader"], "node-1");
    let outcome = session.command(command(None, "SHOW CLUSTER STATUS;")).await;
    assert!(completed(&outcome.disposition));
    let ReplyBody::DomainList(list) = session.ask(ClientRequest::ListDomainsRequest).await else {
        panic!("no list")
    };
    assert_eq!(list.domains.len(), 1);
    assert!(session.news.is_empty(), "{:?}", session.news);
    Session::begun(&node.address(0)).await;
}
