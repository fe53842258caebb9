//! Transactions of a running node as a client on the wire sees them: appends, previews, commits, and who holds one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use nervix_wire::types::{
    AttachDisposition, AttachDomainClockRequest, AttachOutcome, AttachTransactionRequest,
    ClientRequest, CommandDisposition, CommandOutcome, CommandRequest, DetachDomainClockRequest,
    DomainClockAttachDisposition, DomainClockDetachDisposition, InspectTransactionRequest,
    InspectionDisposition, InspectionRejection, InspectionTarget, OpenIngestorDisposition,
    OpenIngestorRequest, OutcomeOrigin, ProducerRefusal, ReplyBody, RowField, ScalarType,
    StatementDisposition, SubscribeDisposition, TransactionById, TransactionOperation,
    TransactionState, TransactionStatus, UnsubscribeDisposition, UnsubscribeRequest,
};
use serde_json::{json, Value};
use support::{command, subscribe, Node, Session};

const SCHEMA: &str = "CREATE SCHEMA t (n U8);";
const RELAY: &str = "CREATE RELAY tr SCHEMA t UNBRANCHED;";

async fn started() -> (Node, Session) {
    let node = Node::start(&[]).await.with_relay().await;
    let session = Session::begun(&node.address(0)).await;
    (node, session)
}

fn at(position: u64, query: &str) -> CommandRequest {
    CommandRequest {
        expected_transaction_position: Some(position),
        ..command(Some("d"), query)
    }
}

fn completed(outcome: &CommandOutcome) -> bool {
    matches!(outcome.disposition, CommandDisposition::CommandCompleted(_))
}

fn failed(outcome: &CommandOutcome) -> bool {
    outcome.disposition == CommandDisposition::RequestFailed
}

fn status(outcome: &CommandOutcome) -> TransactionStatus {
    outcome.transaction.clone().expect("a transaction's status")
}

async fn begin(session: &mut Session) -> String {
    let outcome = session.command(command(Some("d"), "BEGIN;")).await;
    assert!(completed(&outcome), "{}", outcome.message);
    let status = status(&outcome);
    assert_eq!(
        (status.domain.as_str(), status.accepted_operations),
        ("d", 0)
    );
    assert_eq!(status.state, TransactionState::TransactionOpen);
    status.transaction_id
}

async fn append(session: &mut Session, position: u64, query: &str) -> CommandOutcome {
    let outcome = session.command(at(position, query)).await;
    assert!(completed(&outcome), "{}", outcome.message);
    outcome
}

async fn attach(session: &mut Session, id: &str) -> AttachOutcome {
    let request = AttachTransactionRequest {
        transaction_id: id.to_owned(),
    };
    match session
        .ask(ClientRequest::AttachTransactionRequest(request))
        .await
    {
        ReplyBody::AttachOutcome(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

async fn attached(session: &mut Session, id: &str) -> TransactionStatus {
    match attach(session, id).await.disposition {
        AttachDisposition::TransactionAttached(attached) => attached.transaction,
        other => panic!("{other:?}"),
    }
}

async fn inspect(
    session: &mut Session,
    id: Option<&str>,
    operation: Option<u64>,
) -> InspectionDisposition {
    let request = InspectTransactionRequest {
        target: match id {
            None => InspectionTarget::AttachedTransaction,
            Some(id) => InspectionTarget::TransactionById(TransactionById {
                transaction_id: id.to_owned(),
            }),
        },
        operation,
    };
    match session
        .ask(ClientRequest::InspectTransactionRequest(request))
        .await
    {
        ReplyBody::InspectionOutcome(outcome) => outcome.disposition,
        other => panic!("{other:?}"),
    }
}

async fn exists(node: &Node, what: &str) -> bool {
    let statement = format!("SHOW CREATE {what};");
    let body = json!({"domain": "d", "statement": statement});
    node.try_post("execute", body).await.0 == 200
}

async fn only(node: &Node) -> Value {
    node.get("transactions").await["transactions"][0].clone()
}

// rule: X-1
#[tokio::test]
async fn a_transaction_begins_in_a_domain_that_exists_and_once_a_session() {
    let (_node, mut session) = started().await;
    for domain in [None, Some("nowhere")] {
        let outcome = session.command(command(domain, "BEGIN;")).await;
        assert!(failed(&outcome) && outcome.transaction.is_none());
    }
    begin(&mut session).await;
    let again = session.command(command(Some("d"), "BEGIN;")).await;
    assert!(failed(&again));
    assert_eq!(status(&again).state, TransactionState::TransactionOpen);
}

// rule
#[tokio::test]
async fn appends_are_checked_and_carried_out_together_in_order() {
    let (node, mut session) = started().await;
    let id = begin(&mut session).await;
    let first = append(&mut session, 0, SCHEMA).await;
    assert!(!exists(&node, "SCHEMA t").await);
    // It needs the one before it, which is nowhere but in the transaction.
    let second = append(&mut session, 1, RELAY).await;
    let admission = second.transaction_admission.clone().unwrap();
    assert_eq!((admission.operation, admission.preview.position), (2, 2));
    assert_eq!(admission.preview.transaction_id, id);
    assert_ne!(
        first.transaction_admission.unwrap().preview.planning_basis,
        admission.preview.planning_basis
    );
    let mut commit = at(2, "COMMIT;");
    commit.expected_preview = Some(admission.preview);
    let outcome = session.command(commit).await;
    assert!(completed(&outcome), "{}", outcome.message);
    let status = status(&outcome);
    assert_eq!(status.state, TransactionState::TransactionCommitted);
    assert_eq!(
        (status.accepted_operations, status.applied_operations),
        (2, 2)
    );
    assert!(exists(&node, "RELAY tr").await);
    let counts = node.counts().await;
    assert_eq!(counts["applied"][&first.execution_reference], 1);
    assert_eq!(counts["applied"][&second.execution_reference], 1);
    assert_eq!(counts["forbidden_in_transaction"], json!({}));
}

// rule
#[tokio::test]
async fn a_refused_append_leaves_the_transaction_as_it_was() {
    let (node, mut session) = started().await;
    begin(&mut session).await;
    append(&mut session, 0, SCHEMA).await;
    for (request, told) in [
        (at(1, SCHEMA), None),
        (at(1, "CREATE NONSENSE;"), None),
        (at(1, "CREATE UNPACED DOMAIN e;"), None),
        (at(0, RELAY), Some("position")),
        (at(2, RELAY), Some("position")),
        (command(Some("d"), RELAY), Some("position")),
        (
            CommandRequest {
                domain: None,
                ..at(1, RELAY)
            },
            Some("domain"),
        ),
    ] {
        let before = node.counts().await["forbidden_in_transaction"].clone();
        let outcome = session.command(request.clone()).await;
        assert!(failed(&outcome), "{}", request.query);
        assert!(outcome.transaction_admission.is_none());
        let status = status(&outcome);
        assert_eq!(
            (status.state, status.accepted_operations),
            (TransactionState::TransactionOpen, 1)
        );
        let after = node.counts().await["forbidden_in_transaction"].clone();
        match told {
            None => assert_eq!(before, after),
            Some(what) => assert_eq!(
                after[what].as_u64().unwrap(),
                before[what].as_u64().unwrap_or(0) + 1
            ),
        }
    }
    append(&mut session, 1, RELAY).await;
}

// rule: E-7, L-2
#[tokio::test]
async fn several_statements_are_reported_one_by_one() {
    let (node, mut session) = started().await;
    let query = format!("BEGIN; {SCHEMA} {RELAY}");
    let outcome = session.command(command(Some("d"), &query)).await;
    assert!(completed(&outcome), "{}", outcome.message);
    assert_eq!(outcome.statements.len(), 3);
    assert_eq!(status(&outcome).accepted_operations, 2);
    assert_eq!(outcome.transaction_admission.unwrap().operation, 2);

    let query = "CREATE RELAY x SCHEMA t UNBRANCHED; CREATE RELAY tr SCHEMA t UNBRANCHED; STOP;";
    let outcome = session.command(at(2, query)).await;
    assert!(failed(&outcome));
    let dispositions: Vec<_> = outcome
        .statements
        .iter()
        .map(|statement| statement.disposition.clone())
        .collect();
    assert!(matches!(
        dispositions.as_slice(),
        [
            StatementDisposition::CommandCompleted(_),
            StatementDisposition::RequestFailed
        ]
    ));
    // Its diagnostics point into the whole text.
    let span = outcome.diagnostics[0].span.unwrap();
    assert_eq!(&query[span.start as usize..span.end as usize], "tr");
    assert_eq!(status(&outcome).accepted_operations, 3);

    for query in ["SHOW TRANSACTIONS; STOP;", "STOP; DESCRIBE TRANSACTION;"] {
        assert!(failed(&session.command(at(3, query)).await));
    }
    let outcome = session.command(at(3, "STOP; COMMIT;")).await;
    assert!(completed(&outcome), "{}", outcome.message);
    assert_eq!(
        status(&outcome).state,
        TransactionState::TransactionCommitted
    );
    assert!(exists(&node, "RELAY x").await);
    let outside = session.command(command(Some("d"), "START; STOP;")).await;
    assert!(failed(&outside) && outside.transaction.is_none());
}

// rule: X-4
#[tokio::test]
async fn a_commit_against_another_preview_applies_nothing_and_leaves_it_open() {
    let (node, mut session) = started().await;
    begin(&mut session).await;
    let old = append(&mut session, 0, SCHEMA).await;
    let old = old.transaction_admission.unwrap().preview;
    let new = append(&mut session, 1, RELAY).await;
    let new = new.transaction_admission.unwrap().preview;
    let mut commit = at(2, "COMMIT;");
    commit.expected_preview = Some(old.clone());
    let outcome = session.command(commit).await;
    let CommandDisposition::PreviewStale(stale) = &outcome.disposition else {
        panic!("{outcome:?}")
    };
    assert_eq!((&stale.expected, &stale.current), (&old, &new));
    assert_eq!(status(&outcome).state, TransactionState::TransactionOpen);
    assert!(!exists(&node, "SCHEMA t").await);
    let mut commit = at(2, "COMMIT;");
    commit.expected_preview = Some(new);
    assert!(completed(&session.command(commit).await));
}

// rule: X-3, N-2
#[tokio::test]
async fn a_commit_that_fails_names_its_operation_and_applies_none() {
    let (node, mut session) = started().await;
    begin(&mut session).await;
    append(&mut session, 0, SCHEMA).await;
    append(&mut session, 1, "CREATE RELAY x SCHEMA s UNBRANCHED;").await;
    node.execute(Some("d"), &["CREATE RELAY x SCHEMA s UNBRANCHED;"])
        .await;
    let outcome = session.command(at(2, "COMMIT;")).await;
    assert!(failed(&outcome));
    let status = status(&outcome);
    let TransactionState::TransactionFailed(why) = status.state else {
        panic!("{status:?}")
    };
    assert_eq!((why.failing_operation, status.applied_operations), (2, 0));
    assert!(!exists(&node, "SCHEMA t").await);
    assert!(completed(
        &session.command(command(Some("d"), SCHEMA)).await
    ));
}

// rule: X-7
#[tokio::test]
async fn reverts_apply_nothing_and_only_a_clean_end_is_one() {
    let (node, mut session) = started().await;
    begin(&mut session).await;
    append(&mut session, 0, SCHEMA).await;
    let outcome = session.command(at(1, "REVERT;")).await;
    assert_eq!(
        status(&outcome).state,
        TransactionState::TransactionReverted
    );
    assert!(!exists(&node, "SCHEMA t").await);

    for (clean, state) in [(true, "REVERTED"), (false, "OPEN")] {
        let mut session = Session::begun(&node.address(0)).await;
        let id = begin(&mut session).await;
        if clean {
            session.half_close();
        } else {
            session.reset();
        }
        let _ = session.end().await;
        node.wait(json!({"sessions": {"exactly": 1}})).await;
        let list = node.get("transactions").await;
        let one = list["transactions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|it| it["id"] == id.as_str())
            .unwrap()
            .clone();
        assert_eq!(
            (&one["state"], &one["session"]),
            (&json!(state), &Value::Null)
        );
    }
}

// rule: X-8
#[tokio::test]
async fn a_transaction_expires_unless_it_is_renewed() {
    let node = Node::start(&["--frozen-time", "--transaction-idle", "10m"])
        .await
        .with_relay()
        .await;
    let mut session = Session::begun(&node.address(0)).await;
    let id = begin(&mut session).await;
    node.post("clock", json!({"advance": "9m"})).await;
    append(&mut session, 0, SCHEMA).await;
    node.post("clock", json!({"advance": "9m"})).await;
    let mut other = Session::begun(&node.address(0)).await;
    attached(&mut other, &id).await;
    node.post("clock", json!({"advance": "9m"})).await;
    // Looking at it renews nothing.
    assert!(matches!(
        inspect(&mut other, None, None).await,
        InspectionDisposition::TransactionInspected(_)
    ));
    assert_eq!(only(&node).await["state"], "OPEN");
    node.post("clock", json!({"advance": "1m"})).await;
    assert_eq!(only(&node).await["state"], "EXPIRED");
    let outcome = other.command(at(1, RELAY)).await;
    assert!(failed(&outcome));
    assert_eq!(status(&outcome).state, TransactionState::TransactionExpired);
    assert!(!exists(&node, "SCHEMA t").await);
    // It is over, and said to be; the next command is one of no transaction.
    assert!(completed(&other.command(command(Some("d"), SCHEMA)).await));
}

// rule
#[tokio::test]
async fn a_transaction_survives_its_session_and_outcomes_are_recovered() {
    let (node, mut session) = started().await;
    let started = command(Some("d"), "BEGIN;");
    let id = status(&session.command(started.clone()).await).transaction_id;
    let first = at(0, SCHEMA);
    let executed = session.command(first.clone()).await;
    drop(session);
    node.wait(json!({"sessions": 0})).await;

    // Whoever recovers the BEGIN learns that the transaction is there, and has to attach it.
    let mut session = Session::begun(&node.address(0)).await;
    let recovered = session.command(started).await;
    assert_eq!(recovered.origin, OutcomeOrigin::Recovered);
    let outcome = session.command(at(1, RELAY)).await;
    assert!(matches!(
        &outcome.disposition,
        CommandDisposition::TransactionDetached(detached) if detached.transaction_id == id
    ));
    let status = attached(&mut session, &id).await;
    assert_eq!(
        (status.domain.as_str(), status.accepted_operations),
        ("d", 1)
    );
    let recovered = session.command(first.clone()).await;
    assert_eq!(
        CommandOutcome {
            origin: OutcomeOrigin::Executed,
            ..recovered
        },
        executed
    );
    // Its position is part of what a reference stands for.
    let moved = CommandRequest {
        expected_transaction_position: Some(1),
        ..first
    };
    let outcome = session.command(moved).await;
    assert!(matches!(
        outcome.disposition,
        CommandDisposition::ExecutionReferenceConflict(_)
    ));
    append(&mut session, 1, RELAY).await;
    assert!(completed(&session.command(at(2, "COMMIT;")).await));
    let counts = node.counts().await;
    assert_eq!(counts["applied"][&executed.execution_reference], 1);
}

// rule: X-6
#[tokio::test]
async fn who_loses_a_transaction_to_another_session_is_told_once() {
    let (node, mut session) = started().await;
    let id = begin(&mut session).await;
    let mut other = Session::begun(&node.address(0)).await;
    attached(&mut other, &id).await;
    let outcome = session.command(at(0, SCHEMA)).await;
    assert!(matches!(
        &outcome.disposition,
        CommandDisposition::TransactionTakenOver(taken) if taken.transaction_id == id
    ));
    assert!(completed(
        &session.command(command(Some("d"), SCHEMA)).await
    ));
    append(&mut other, 0, "CREATE SCHEMA u (n U8);").await;

    node.post("transaction", json!({"action": "take_over"}))
        .await;
    let outcome = other.command(at(1, "COMMIT;")).await;
    assert!(matches!(
        outcome.disposition,
        CommandDisposition::TransactionTakenOver(_)
    ));
    assert_eq!(only(&node).await["session"], 0);
}

// rule: X-6
#[tokio::test]
async fn what_cannot_be_attached_is_told_apart() {
    let node = Node::start(&[
        "--user",
        "ann",
        "--password",
        "a",
        "--user",
        "bob",
        "--password",
        "b",
    ])
    .await
    .with_relay()
    .await;
    let path = "/nervix.session.Session/Exchange";
    // ann:a and bob:b
    let mut ann = support::call(&node.address(0), path, Some("Basic YW5uOmE="))
        .await
        .unwrap_or_else(|status| panic!("{status:?}"));
    let mut bob = support::call(&node.address(0), path, Some("Basic Ym9iOmI="))
        .await
        .unwrap_or_else(|status| panic!("{status:?}"));
    let id = begin(&mut ann).await;
    for (session, id) in [(&mut bob, id.as_str()), (&mut ann, "nothing")] {
        let outcome = attach(session, id).await;
        // Whoever holds one attaches no other, and nobody what is not there or not theirs.
        assert_eq!(outcome.disposition, AttachDisposition::RequestFailed);
    }
    assert!(matches!(
        inspect(&mut bob, Some(&id), None).await,
        InspectionDisposition::InspectionRejected(it) if it.rejection == InspectionRejection::NotOwner
    ));
    assert!(completed(&ann.command(at(0, "COMMIT;")).await));
    let AttachDisposition::TransactionAlreadyFinished(finished) =
        attach(&mut ann, &id).await.disposition
    else {
        panic!("not finished")
    };
    assert_eq!(
        finished.transaction.state,
        TransactionState::TransactionCommitted
    );
    // A command that was never admitted fails for good.
    assert!(failed(&ann.command(at(0, SCHEMA)).await));
}

// rule: X-6, D-1
#[tokio::test]
async fn a_new_leader_knows_the_transaction_and_not_its_session() {
    let node = Node::start(&["--nodes", "3"]).await.with_relay().await;
    let mut first = Session::begun(&node.address(0)).await;
    let id = begin(&mut first).await;
    append(&mut first, 0, SCHEMA).await;
    node.post("leader", json!({"leader": "node-2"})).await;
    let outcome = first.command(at(1, RELAY)).await;
    assert!(matches!(
        outcome.disposition,
        CommandDisposition::LeaderRedirect(_)
    ));
    assert!(matches!(
        attach(&mut first, &id).await.disposition,
        AttachDisposition::LeaderRedirect(_)
    ));
    assert!(matches!(
        inspect(&mut first, None, None).await,
        InspectionDisposition::LeaderRedirect(_)
    ));
    let mut second = Session::begun(&node.address(1)).await;
    // Without an attach the session holds nothing.
    assert!(failed(&second.command(at(1, RELAY)).await));
    attached(&mut second, &id).await;
    append(&mut second, 1, RELAY).await;
    node.post("leader", json!({"leader": "node-1"})).await;
    // The first session is there still, and has it no more.
    let outcome = first.command(at(2, "COMMIT;")).await;
    assert!(matches!(
        outcome.disposition,
        CommandDisposition::TransactionTakenOver(_)
    ));
    let mut third = Session::begun(&node.address(0)).await;
    attached(&mut third, &id).await;
    assert!(completed(&third.command(at(2, "COMMIT;")).await));
    assert!(exists(&node, "RELAY tr").await);
}

// rule: X-6
#[tokio::test]
async fn a_detached_session_is_told_until_it_attaches() {
    let (node, mut session) = started().await;
    let id = begin(&mut session).await;
    node.post("transaction", json!({"action": "detach"})).await;
    for _ in 0..2 {
        let outcome = session.command(at(0, SCHEMA)).await;
        assert!(matches!(
            outcome.disposition,
            CommandDisposition::TransactionDetached(_)
        ));
    }
    attached(&mut session, &id).await;
    append(&mut session, 0, SCHEMA).await;
    node.post("transaction", json!({"action": "expire", "id": id}))
        .await;
    assert!(failed(&session.command(at(1, "COMMIT;")).await));
    let (code, _) = node
        .try_post("transaction", json!({"action": "detach"}))
        .await;
    assert_eq!(code, 400);
}

// rule: L-3, P-1, EC-1
#[tokio::test]
async fn what_goes_with_no_transaction_is_refused_and_counted() {
    let node = Node::start(&[])
        .await
        .with_endpoints("PARALLEL MAX 4")
        .await;
    let mut session = Session::begun(&node.address(0)).await;
    session.subscribe("CREATE SUBSCRIPTION a TO r;").await;
    begin(&mut session).await;
    let ReplyBody::SubscribeOutcome(outcome) =
        session.ask(subscribe("CREATE SUBSCRIPTION b TO r;")).await
    else {
        panic!("no outcome")
    };
    assert_eq!(outcome.disposition, SubscribeDisposition::RequestFailed);
    let request = UnsubscribeRequest {
        subscription: "a".to_owned(),
    };
    let ReplyBody::UnsubscribeOutcome(outcome) = session
        .ask(ClientRequest::UnsubscribeRequest(request))
        .await
    else {
        panic!("no outcome")
    };
    assert_eq!(outcome.disposition, UnsubscribeDisposition::RequestFailed);
    let domain = "d".to_owned();
    let request = AttachDomainClockRequest {
        domain: domain.clone(),
    };
    let ReplyBody::DomainClockAttachOutcome(outcome) = session
        .ask(ClientRequest::AttachDomainClockRequest(request))
        .await
    else {
        panic!("no outcome")
    };
    assert_eq!(
        outcome.disposition,
        DomainClockAttachDisposition::RequestFailed
    );
    let request = DetachDomainClockRequest {
        domain: domain.clone(),
    };
    let ReplyBody::DomainClockDetachOutcome(outcome) = session
        .ask(ClientRequest::DetachDomainClockRequest(request))
        .await
    else {
        panic!("no outcome")
    };
    assert_eq!(
        outcome.disposition,
        DomainClockDetachDisposition::RequestFailed
    );
    let request = OpenIngestorRequest {
        domain,
        ingestor: "i".to_owned(),
        expected_fields: vec![RowField {
            name: "n".to_owned(),
            field_type: support::batches::scalar(ScalarType::U32),
            nullable: false,
            sensitive: false,
        }],
        max_outstanding_batches: 1,
        max_outstanding_bytes: 1024,
    };
    let ReplyBody::OpenIngestorOutcome(outcome) = session
        .ask(ClientRequest::OpenIngestorRequest(request))
        .await
    else {
        panic!("no outcome")
    };
    assert!(matches!(
        outcome.disposition,
        OpenIngestorDisposition::ProducerRefused(refused) if refused.refusal == ProducerRefusal::InTransaction
    ));
    assert_eq!(
        node.counts().await["forbidden_in_transaction"],
        json!({
            "SubscribeRequest": 1,
            "UnsubscribeRequest": 1,
            "AttachDomainClockRequest": 1,
            "DetachDomainClockRequest": 1,
            "OpenIngestorRequest": 1,
        })
    );
    assert!(completed(&session.command(at(0, "COMMIT;")).await));
    session.subscribe("CREATE SUBSCRIPTION b TO r;").await;
}

// rule: X-4
#[tokio::test]
async fn an_inspection_says_what_the_transaction_holds() {
    let (_node, mut session) = started().await;
    assert!(matches!(
        inspect(&mut session, None, None).await,
        InspectionDisposition::InspectionRejected(it)
            if it.rejection == InspectionRejection::NoAttachedTransaction
    ));
    let id = begin(&mut session).await;
    append(&mut session, 0, SCHEMA).await;
    let outcome = append(&mut session, 1, "STOP;").await;
    let preview = outcome.transaction_admission.unwrap().preview;
    let InspectionDisposition::TransactionInspected(inspected) =
        inspect(&mut session, Some(&id), Some(2)).await
    else {
        panic!("not inspected")
    };
    assert_eq!(inspected.report.planning_basis, preview.planning_basis);
    assert_eq!(
        (inspected.report.position, inspected.operation),
        (2, Some(2))
    );
    assert!(matches!(
        inspected.report.operations[1].operation,
        TransactionOperation::StopDomainOperation(_)
    ));
    for (id, operation, why) in [
        (
            Some("nothing"),
            None,
            InspectionRejection::TransactionNotFound,
        ),
        (None, Some(3), InspectionRejection::OperationNotFound),
    ] {
        assert!(matches!(
            inspect(&mut session, id, operation).await,
            InspectionDisposition::InspectionRejected(it) if it.rejection == why
        ));
    }
    let described = session
        .command(command(Some("d"), "DESCRIBE TRANSACTION;"))
        .await;
    assert_eq!(described.inspection.unwrap().report, inspected.report);
    let shown = session.command(command(None, "SHOW TRANSACTIONS;")).await;
    assert!(shown.message.contains(&id) && shown.message.contains("OPEN, accepted 2"));
    // Reads take no position and leave it where it is.
    assert!(completed(
        &session.command(command(Some("d"), "SHOW INGESTORS;")).await
    ));
    assert_eq!(status(&shown).accepted_operations, 2);
}

// rule: X-5, E-6
#[tokio::test]
async fn a_commit_that_is_unknown_for_a_while_is_recovered() {
    let (node, mut session) = started().await;
    begin(&mut session).await;
    append(&mut session, 0, SCHEMA).await;
    let unknown =
        json!({"disposition": "OutcomeUnknown", "cause": "StillApplying", "execute": true});
    node.post("disposition", unknown).await;
    let commit = at(1, "COMMIT;");
    let outcome = session.command(commit.clone()).await;
    assert_eq!(
        status(&outcome).state,
        TransactionState::TransactionCommitting
    );
    let outcome = session.command(commit).await;
    assert!(completed(&outcome));
    assert_eq!(outcome.origin, OutcomeOrigin::Recovered);
    assert_eq!(
        status(&outcome).state,
        TransactionState::TransactionCommitted
    );
}
