//! Transactions, L-3, D-1, D-5, E-2, E-6, E-7, SM-3, and what waits while one is held.

use nervix_engine::{
    Call, CallId, Cause, ConnId, Decision, Disposition, EndpointState, ErrorKind, EventKind,
    OpenRefusal, Role, Stop,
};
use nervix_wire::types::*;

use crate::bench::Bench;
use crate::common::frames::*;
use crate::common::{MS, SEC};

const CREATE: &str = "CREATE SCHEMA a (b I64);";

fn holding() -> (Bench, ConnId) {
    let (mut bench, conn) = Bench::connected();
    bench.begin(conn, "t");
    (bench, conn)
}

/// Whether the session still holds a transaction: only then is USE refused.
fn is_held(bench: &mut Bench) -> bool {
    let (call, ..) = bench.execute("USE d;");
    let outcome = bench.outcome(call);
    assert!(outcome.decided_locally);
    outcome.disposition == Disposition::Failed
}

/// The session holds it no more, and the host was not asked whether its commands may run outside: none does, until it says so.
fn is_lost(bench: &mut Bench, conn: ConnId) {
    for query in [CREATE, "COMMIT;", "USE e;", "CREATE SUBSCRIPTION s TO r;"] {
        let (call, ..) = bench.execute(query);
        let outcome = bench.outcome(call);
        assert!(outcome.decided_locally, "{query}");
        assert_eq!(outcome.disposition, Disposition::Failed, "{query}");
    }
    assert_eq!(bench.quiet(conn, 10 * SEC), []);
    let (call, ..) = bench.execute("REVERT;");
    assert!(bench.outcome(call).decided_locally);
    let (command, _) = run(bench, conn, CREATE, completed);
    assert_eq!(command.expected_transaction_position, None);
    assert_eq!(command.domain.as_deref(), Some("d"));
    assert!(!is_held(bench));
}

/// Runs a command and answers it.
fn run(
    bench: &mut Bench,
    conn: ConnId,
    query: &str,
    answer: impl FnOnce(&str) -> ReplyBody,
) -> (CommandRequest, std::sync::Arc<nervix_engine::Outcome>) {
    let (call, _, reference) = bench.execute(query);
    let (id, command) = bench.command(conn);
    bench.reply(conn, id, answer(&reference));
    (command, bench.outcome(call))
}

fn finished(state: TransactionState) -> impl FnOnce(&str) -> ReplyBody {
    move |reference| bound(completed(reference), transaction_in("t", state, 1))
}

// rule, F-5
#[test]
fn an_append_carries_the_newest_position() {
    let (mut bench, conn) = Bench::connected();
    let (begin, outcome) = run(&mut bench, conn, "BEGIN;", |reference| {
        bound(completed(reference), transaction("t", 0))
    });
    assert_eq!(begin.domain.as_deref(), Some("d"));
    assert_eq!(begin.expected_transaction_position, None);
    assert_eq!(begin.expected_preview, None);
    assert_eq!(outcome.transaction, Some(transaction("t", 0)));
    let first = bench.append(conn, "t", 1);
    assert_eq!(
        first.expected_transaction_position,
        Some(0),
        "zero, and not absent"
    );
    assert_eq!(first.expected_preview, None);
    // The server says how many there are, not the client.
    let second = bench.append(conn, "t", 5);
    assert_eq!(second.expected_transaction_position, Some(1));
    let third = bench.append(conn, "t", 6);
    assert_eq!(third.expected_transaction_position, Some(5));
}

// rule: X-2
#[test]
fn the_position_moves_only_by_what_an_outcome_reports() {
    let (mut bench, conn) = holding();
    bench.append(conn, "t", 1);
    // A failure that reports no status, one that reports the same, and a completion without one.
    run(&mut bench, conn, CREATE, |reference| {
        command_failed(reference, "no")
    });
    run(&mut bench, conn, CREATE, |reference| {
        bound(command_failed(reference, "no"), transaction("t", 1))
    });
    run(&mut bench, conn, "SHOW CLUSTER STATUS;", completed);
    let next = bench.append(conn, "t", 2);
    assert_eq!(next.expected_transaction_position, Some(1));
}

// rule: X-1, F-8
#[test]
fn a_begin_that_completes_without_an_open_transaction_breaks_the_protocol() {
    let ended = [
        None,
        Some(TransactionState::TransactionCommitted),
        Some(TransactionState::TransactionExpired),
    ];
    for state in ended {
        let (mut bench, conn) = Bench::connected();
        let (call, _, reference) = bench.execute("BEGIN;");
        let (id, _) = bench.command(conn);
        let answer = match &state {
            None => completed(&reference),
            Some(state) => bound(completed(&reference), transaction_in("t", state.clone(), 0)),
        };
        bench.reply(conn, id, answer);
        assert!(bench.is_reset(conn), "{state:?}");
        // It may have begun, and is asked about again.
        assert!(bench.is_waiting(call));
        let conn = bench.reconnected();
        let (id, again) = bench.command(conn);
        assert_eq!(again.execution_reference, reference);
        bench.reply(conn, id, bound(completed(&reference), transaction("t", 0)));
        bench.outcome(call);
        assert!(is_held(&mut bench));
    }
}

// rule: X-3, F-8
#[test]
fn an_append_that_another_transaction_accepted_breaks_the_protocol() {
    let (mut bench, conn) = holding();
    let (call, _, reference) = bench.execute(CREATE);
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, appended(&reference, "other", 1, 9));
    assert!(bench.is_reset(conn));
    assert!(bench.is_waiting(call));
}

// rule: X-3
#[test]
fn an_append_is_told_with_its_admission() {
    let (mut bench, conn) = holding();
    let (_, outcome) = run(&mut bench, conn, CREATE, |reference| {
        appended(reference, "t", 1, 9)
    });
    assert_eq!(outcome.disposition, Disposition::Completed);
    let admission = outcome.admission.as_ref().unwrap();
    assert_eq!(admission.operation, 1);
    assert_eq!(admission.preview, preview("t", 1, 9));
    assert_eq!(outcome.transaction.as_ref().unwrap().accepted_operations, 1);
    let (_, outcome) = run(&mut bench, conn, CREATE, |reference| {
        bound(command_failed(reference, "no"), transaction("t", 1))
    });
    assert_eq!(
        (outcome.disposition, outcome.admission.clone()),
        (Disposition::Failed, None)
    );
}

// rule: X-2, L-2, E-7
#[test]
fn several_statements_are_one_request_inside_a_transaction() {
    let (mut bench, conn) = holding();
    let query = "CREATE SCHEMA a (b I64); CREATE SCHEMA c (d I64);";
    let (call, _, reference) = bench.execute(query);
    let (id, command) = bench.command(conn);
    assert_eq!(command.query, query);
    assert_eq!(command.expected_transaction_position, Some(0));
    let mut body = appended(&reference, "t", 2, 1);
    if let ReplyBody::CommandOutcome(outcome) = &mut body {
        outcome.statements = (0..2)
            .map(|number| StatementOutcome {
                disposition: StatementDisposition::CommandCompleted(CommandCompleted {
                    already_existed: number == 1,
                }),
                message: format!("{number}"),
                diagnostics: Vec::new(),
            })
            .collect();
    }
    bench.reply(conn, id, body);
    let outcome = bench.outcome(call);
    let told: Vec<_> = outcome
        .statements
        .iter()
        .map(|statement| (statement.message.as_str(), statement.already_existed))
        .collect();
    assert_eq!(told, [("0", false), ("1", true)]);
    assert_eq!(
        bench.append(conn, "t", 3).expected_transaction_position,
        Some(2)
    );
}

// rule: X-4
#[test]
fn a_commit_carries_the_preview_of_the_last_append() {
    let (mut bench, conn) = holding();
    for (accepted, basis) in [(1, 5), (2, 6)] {
        run(&mut bench, conn, CREATE, |reference| {
            appended(reference, "t", accepted, basis)
        });
    }
    let (commit, outcome) = run(
        &mut bench,
        conn,
        "COMMIT;",
        finished(TransactionState::TransactionCommitted),
    );
    assert_eq!(commit.expected_preview, Some(preview("t", 2, 6)));
    assert_eq!(outcome.disposition, Disposition::Completed);
    assert!(!is_held(&mut bench));
    // What follows is in no transaction.
    let (after, _) = run(&mut bench, conn, CREATE, completed);
    assert_eq!(after.expected_transaction_position, None);
    assert_eq!(after.expected_preview, None);
}

// rule: X-4, E-6
#[test]
fn a_stale_preview_is_told_and_never_refreshed_by_itself() {
    let (mut bench, conn) = holding();
    run(&mut bench, conn, CREATE, |reference| {
        appended(reference, "t", 1, 5)
    });
    let current = preview("t", 1, 77);
    for _ in 0..2 {
        let (commit, told) = run(&mut bench, conn, "COMMIT;", |reference| {
            bound(
                outcome(
                    reference,
                    OutcomeOrigin::Executed,
                    CommandDisposition::PreviewStale(PreviewStale {
                        expected: preview("t", 1, 5),
                        current: current.clone(),
                    }),
                    "stale",
                ),
                transaction("t", 1),
            )
        });
        assert_ne!(commit.expected_preview.as_ref(), Some(&current));
        assert_eq!(told.disposition, Disposition::PreviewStale);
        bench.pass(5 * SEC);
        bench.sends_nothing(conn);
        assert!(is_held(&mut bench), "the transaction stays open");
    }
    // Another append brings a preview of its own.
    run(&mut bench, conn, CREATE, |reference| {
        appended(reference, "t", 2, 8)
    });
    let (commit, _) = run(
        &mut bench,
        conn,
        "COMMIT;",
        finished(TransactionState::TransactionCommitted),
    );
    assert_eq!(commit.expected_preview, Some(preview("t", 2, 8)));
}

// rule: X-4
#[test]
fn a_commit_carries_the_preview_of_an_inspection_of_what_is_held_as_it_is() {
    // The transaction that was inspected, its position, and the basis that the commit expects then.
    for (id, accepted, position, expected) in [
        ("t", 2, 2, 7),
        ("t", 2, 1, 5),
        ("u", 2, 2, 5),
        ("u", 1, 1, 5),
    ] {
        let (mut bench, conn) = holding();
        bench.append(conn, "t", 1);
        run(&mut bench, conn, CREATE, |reference| {
            appended(reference, "t", 2, 5)
        });
        let (describe, _) = run(&mut bench, conn, "DESCRIBE TRANSACTION;", |reference| {
            let told = inspected(reference, transaction(id, accepted), position, 7);
            bound(told, transaction("t", 2))
        });
        assert_eq!(describe.expected_preview, None);
        let (commit, _) = run(
            &mut bench,
            conn,
            "COMMIT;",
            finished(TransactionState::TransactionCommitted),
        );
        let case = format!("{id} with {accepted} at {position}");
        assert_eq!(
            commit.expected_preview,
            Some(preview("t", 2, expected)),
            "{case}"
        );
        assert_eq!(commit.expected_transaction_position, Some(2), "{case}");
    }
}

// rule: X-4
#[test]
fn a_commit_of_nothing_expects_no_preview() {
    let (mut bench, conn) = holding();
    let (commit, _) = run(
        &mut bench,
        conn,
        "COMMIT",
        finished(TransactionState::TransactionCommitted),
    );
    assert_eq!(commit.expected_preview, None);
    // Nor does the next transaction inherit one.
    bench.begin(conn, "u");
    bench.append(conn, "u", 1);
    run(&mut bench, conn, "REVERT;", |reference| {
        bound(
            completed(reference),
            transaction_in("u", TransactionState::TransactionReverted, 1),
        )
    });
    bench.begin(conn, "v");
    let (commit, _) = run(&mut bench, conn, "commit;", completed);
    assert_eq!(commit.expected_preview, None);
}

// rule: X-5, E-2, E-3
#[test]
fn a_commit_that_is_applied_is_waited_for_through_every_interruption() {
    let (mut bench, conn) = holding();
    bench.append(conn, "t", 1);
    let (call, _, reference) = bench.execute("COMMIT;");
    let (id, first) = bench.command(conn);
    assert_eq!(first.expected_preview, Some(preview("t", 1, 1)));
    bench.reply(
        conn,
        id,
        bound(
            unknown(&reference),
            transaction_in("t", TransactionState::TransactionCommitting, 1),
        ),
    );
    let again = bench.quiet(conn, 2 * SEC);
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!(
        again[0].request,
        ClientRequest::CommandRequest(first.clone())
    );
    assert!(bench.is_waiting(call));
    bench.lose(conn);
    let conn = bench.reconnected();
    let (attach, id) = bench.transaction_attach(conn);
    assert_eq!(id, "t");
    bench.sends_nothing(conn);
    // Committed, says the attach; of this commit it says nothing.
    bench.reply(
        conn,
        attach,
        transaction_finished(transaction_in(
            "t",
            TransactionState::TransactionCommitted,
            1,
        )),
    );
    assert!(bench.is_waiting(call));
    let (id, same) = bench.command(conn);
    assert_eq!(same, first);
    bench.reply(
        conn,
        id,
        finished(TransactionState::TransactionCommitted)(&reference),
    );
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
    assert!(!is_held(&mut bench));
    let (after, _) = run(&mut bench, conn, CREATE, completed);
    assert_eq!(after.expected_transaction_position, None);
}

// rule: X-6, E-2, E-6, D-5
#[test]
fn a_detached_transaction_is_attached_again_and_the_command_repeated() {
    let (mut bench, conn) = holding();
    bench.append(conn, "t", 1);
    let (call, _, reference) = bench.execute(CREATE);
    let (id, first) = bench.command(conn);
    bench.reply(conn, id, detached(&reference, "t"));
    bench.pass(2 * SEC);
    let (attach, id) = bench.transaction_attach(conn);
    assert_eq!(id, "t");
    bench.sends_nothing(conn);
    bench.reply(conn, attach, transaction_attached(transaction("t", 1)));
    let (id, same) = bench.command(conn);
    assert_eq!(same, first);
    assert_eq!(same.expected_transaction_position, Some(1));
    bench.reply(conn, id, appended(&reference, "t", 2, 1));
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
    assert_eq!(
        bench.append(conn, "t", 3).expected_transaction_position,
        Some(2)
    );
}

// rule
#[test]
fn what_an_attach_reports_moves_no_outstanding_command() {
    let (mut bench, conn) = holding();
    let (call, _, reference) = bench.execute(CREATE);
    let (_, first) = bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    // It was accepted, and its outcome lost.
    bench.reply(conn, attach, transaction_attached(transaction("t", 1)));
    assert!(bench.is_waiting(call), "not inferred from a count (X-3)");
    let (id, same) = bench.command(conn);
    assert_eq!(same, first, "its original position");
    bench.reply(conn, id, appended(&reference, "t", 1, 1));
    bench.outcome(call);
    assert_eq!(
        bench.append(conn, "t", 2).expected_transaction_position,
        Some(1)
    );
}

// rule: X-6, L-1
#[test]
fn the_domain_of_the_attached_transaction_is_adopted() {
    let (mut bench, conn) = holding();
    let (call, _, reference) = bench.execute(CREATE);
    let (id, first) = bench.command(conn);
    bench.reply(conn, id, detached(&reference, "t"));
    bench.pass(2 * SEC);
    let (attach, _) = bench.transaction_attach(conn);
    let moved = |accepted| TransactionStatus {
        domain: "other".into(),
        ..transaction("t", accepted)
    };
    bench.reply(conn, attach, transaction_attached(moved(0)));
    let (id, same) = bench.command(conn);
    assert_eq!(same, first, "repeated unchanged");
    bench.reply(conn, id, bound(appended(&reference, "t", 1, 1), moved(1)));
    bench.outcome(call);
    let next = bench.append(conn, "t", 2);
    assert_eq!(next.domain.as_deref(), Some("other"));
}

// rule
#[test]
fn after_a_finished_or_failed_attach_commands_ask_for_their_own_outcome() {
    let answers = [
        transaction_finished(transaction_in(
            "t",
            TransactionState::TransactionCommitted,
            1,
        )),
        transaction_finished(transaction_in(
            "t",
            TransactionState::TransactionReverted,
            1,
        )),
        transaction_finished(transaction_in("t", TransactionState::TransactionExpired, 1)),
        transaction_finished(transaction_in(
            "t",
            TransactionState::TransactionFailed(TransactionFailed {
                failing_operation: 1,
                error: "no".into(),
            }),
            1,
        )),
        transaction_attach_failed(),
    ];
    for answer in answers {
        let (mut bench, conn) = holding();
        let (call, _, reference) = bench.execute(CREATE);
        let (_, first) = bench.command(conn);
        bench.lose(conn);
        let conn = bench.reconnected();
        let (attach, _) = bench.transaction_attach(conn);
        bench.reply(conn, attach, answer);
        assert!(bench.is_waiting(call), "its state is not its outcome");
        let (id, same) = bench.command(conn);
        assert_eq!(same, first);
        bench.reply(conn, id, command_failed(&reference, "never admitted"));
        let outcome = bench.outcome(call);
        assert_eq!(
            (outcome.disposition, &*outcome.message),
            (Disposition::Failed, "never admitted")
        );
        is_lost(&mut bench, conn);
    }
}

// rule: X-6, E-6
#[test]
fn a_detached_transaction_that_is_over_ends_the_holding() {
    let (mut bench, conn) = holding();
    let (call, _, reference) = bench.execute(CREATE);
    let (id, first) = bench.command(conn);
    bench.reply(conn, id, detached(&reference, "t"));
    bench.pass(2 * SEC);
    let (attach, _) = bench.transaction_attach(conn);
    let over = transaction_in("t", TransactionState::TransactionExpired, 0);
    bench.reply(conn, attach, transaction_finished(over));
    let (id, same) = bench.command(conn);
    assert_eq!(same, first);
    bench.reply(conn, id, command_failed(&reference, "never admitted"));
    bench.outcome(call);
    is_lost(&mut bench, conn);
}

// rule: X-6, D-4
#[test]
fn a_server_that_detaches_for_ever_is_no_storm() {
    let (mut bench, conn) = holding();
    let (call, _, reference) = bench.execute(CREATE);
    let start = bench.now;
    let mut commands = 0;
    while bench.is_waiting(call) {
        for message in bench.all_sent(conn) {
            let body = match message.request {
                ClientRequest::CommandRequest(_) => {
                    commands += 1;
                    detached(&reference, "t")
                }
                ClientRequest::AttachTransactionRequest(_) => {
                    transaction_attached(transaction("t", 0))
                }
                other => panic!("{other:?}"),
            };
            bench.reply(conn, message.request_id, body);
            assert!(commands < 2000, "a storm");
        }
        bench.pass(20 * MS);
        assert!(bench.now - start < 100 * SEC);
    }
    bench.fails(call, ErrorKind::Uncertain);
    assert!(commands < 400, "{commands} repetitions");
}

// rule: X-7
#[test]
fn the_end_of_a_session_is_a_reset() {
    let (mut bench, conn) = holding();
    bench.shut_down();
    assert!(bench.is_reset(conn));
    bench.sends_nothing(conn);
}

// rule: X-8, SM-3
#[test]
fn a_transaction_that_expired_is_held_no_more() {
    let (mut bench, conn) = holding();
    let (_, outcome) = run(&mut bench, conn, CREATE, |reference| {
        bound(
            command_failed(reference, "the transaction expired"),
            transaction_in("t", TransactionState::TransactionExpired, 0),
        )
    });
    assert_eq!(outcome.disposition, Disposition::Failed);
    assert_eq!(
        outcome.transaction.as_ref().unwrap().state,
        TransactionState::TransactionExpired
    );
    is_lost(&mut bench, conn);
    bench.lose(conn);
    bench.suggest("S");
    let conn = bench.reconnected();
    for message in bench.all_sent(conn) {
        assert!(matches!(message.request, ClientRequest::SuggestRequest(_)));
    }
}

// rule: X-8, L-3, SM-3
#[test]
fn what_was_called_for_a_transaction_does_not_run_outside_of_it_once_it_expired() {
    for state in [
        TransactionState::TransactionExpired,
        TransactionState::TransactionReverted,
        TransactionState::TransactionCommitted,
    ] {
        let (mut bench, conn) = holding();
        let (first, _, reference) = bench.execute(CREATE);
        let (id, _) = bench.command(conn);
        // Called while the transaction was held as far as anybody here knew.
        let (second, ..) = bench.execute("CREATE SCHEMA other (a I64);");
        let (third, ..) = bench.execute("COMMIT;");
        let over = transaction_in("t", state, 0);
        let told = bound(command_failed(&reference, "it is over"), over.clone());
        bench.reply(conn, id, told);
        assert_eq!(bench.outcome(first).disposition, Disposition::Failed);
        for call in [second, third] {
            let outcome = bench.outcome(call);
            assert!(outcome.decided_locally);
            assert_eq!(outcome.disposition, Disposition::Failed);
            assert_eq!(outcome.transaction.as_ref(), Some(&over));
        }
        is_lost(&mut bench, conn);
    }
}

// rule: X-1, L-3, SM-3
#[test]
fn a_begin_that_is_recovered_holds_the_transaction_that_could_not_be_attached() {
    let (mut bench, conn) = Bench::connected();
    let (call, execution, reference) = bench.execute("BEGIN;");
    let (id, begin) = bench.command(conn);
    bench.reply(conn, id, unknown(&reference));
    bench.stop(call, nervix_engine::Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    // Another command tells what the session holds.
    run(&mut bench, conn, CREATE, |reference| {
        bound(command_failed(reference, "no"), transaction("t", 0))
    });
    assert!(is_held(&mut bench));
    bench.lose(conn);
    // It waits for the attach.
    let (waiting, ..) = bench.execute(CREATE);
    let conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    bench.reply(conn, attach, transaction_attach_failed());
    assert!(bench.outcome(waiting).decided_locally);
    let call = bench.call(Call::Execute(execution));
    let (id, again) = bench.command(conn);
    assert_eq!(again, begin);
    bench.reply(conn, id, bound(completed(&reference), transaction("t", 0)));
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
    assert!(is_held(&mut bench));
    let append = bench.append(conn, "t", 1);
    assert_eq!(append.expected_transaction_position, Some(0));
}

// rule: E-3, E-6, X-6
#[test]
fn a_command_of_a_transaction_that_was_left_is_asked_about_each_time() {
    let (mut bench, conn) = holding();
    let (call, execution, reference) = bench.execute(CREATE);
    let (_, first) = bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    bench.reply(conn, attach, transaction_attach_failed());
    let (id, same) = bench.command(conn);
    assert_eq!(same, first);
    bench.stop(call, nervix_engine::Stop::Cancelled);
    bench.reply(conn, id, unknown(&reference));
    bench.fails(call, ErrorKind::Cancelled);
    let (leave, ..) = bench.execute("REVERT;");
    assert!(bench.outcome(leave).decided_locally);
    let again = bench.call(Call::Execute(execution));
    let (id, same) = bench.command(conn);
    assert_eq!(same, first);
    bench.reply(conn, id, detached(&reference, "t"));
    let told = bench.outcome(again);
    assert_eq!(told.disposition, Disposition::TransactionDetached);
    // It was not kept as the outcome of the command: that is what the server says of it in the end.
    let again = bench.call(Call::Execute(execution));
    let (id, same) = bench.command(conn);
    assert_eq!(same, first);
    bench.reply(conn, id, command_failed(&reference, "never admitted"));
    assert_eq!(bench.outcome(again).disposition, Disposition::Failed);
    let again = bench.call(Call::Execute(execution));
    assert_eq!(bench.outcome(again).message, "never admitted");
}

// rule: E-6, SM-3
#[test]
fn a_transaction_taken_over_is_never_attached_back() {
    let (mut bench, conn) = holding();
    let (_, told) = run(&mut bench, conn, CREATE, |reference| {
        outcome(
            reference,
            OutcomeOrigin::Executed,
            CommandDisposition::TransactionTakenOver(TransactionTakenOver {
                transaction_id: "t".into(),
            }),
            "taken over",
        )
    });
    assert_eq!(told.disposition, Disposition::TransactionTakenOver);
    assert_eq!(bench.quiet(conn, 10 * SEC), []);
    bench.lose(conn);
    bench.suggest("S");
    let conn = bench.reconnected();
    bench.pass(SEC);
    let sent = bench.all_sent(conn);
    assert!(
        matches!(
            &sent[..],
            [ClientMessage {
                request: ClientRequest::SuggestRequest(_),
                ..
            }]
        ),
        "{sent:?}"
    );
    bench.reply(conn, sent[0].request_id, suggestions(&["x"]));
    is_lost(&mut bench, conn);
    // A new one may be begun at once, too.
    bench.begin(conn, "u");
    assert_eq!(
        bench.append(conn, "u", 1).expected_transaction_position,
        Some(0)
    );
}

// rule: E-6
#[test]
fn a_conflict_of_positions_is_told_and_never_repeated() {
    let (mut bench, conn) = holding();
    let (_, told) = run(&mut bench, conn, CREATE, |reference| {
        bound(
            outcome(
                reference,
                OutcomeOrigin::Executed,
                CommandDisposition::ExecutionReferenceConflict(ExecutionReferenceConflict {
                    conflict: ExecutionReferenceConflictKind::Position,
                }),
                "position",
            ),
            transaction("t", 4),
        )
    });
    assert_eq!(told.disposition, Disposition::ExecutionReferenceConflict);
    bench.pass(10 * SEC);
    bench.sends_nothing(conn);
    assert!(is_held(&mut bench));
}

// rule: SM-3, X-3
#[test]
fn commits_and_reverts_end_the_holding_by_their_outcome() {
    let ends: [(&str, TransactionState); 3] = [
        ("COMMIT;", TransactionState::TransactionCommitted),
        ("REVERT;", TransactionState::TransactionReverted),
        (
            "COMMIT;",
            TransactionState::TransactionFailed(TransactionFailed {
                failing_operation: 1,
                error: "no".into(),
            }),
        ),
    ];
    for (query, state) in ends {
        let (mut bench, conn) = holding();
        let failed = matches!(state, TransactionState::TransactionFailed(_));
        let (_, outcome) = run(&mut bench, conn, query, |reference| {
            let body = if failed {
                command_failed(reference, "no")
            } else {
                completed(reference)
            };
            bound(body, transaction_in("t", state, 1))
        });
        assert_eq!(outcome.disposition == Disposition::Failed, failed);
        assert!(!is_held(&mut bench), "{query}");
    }
    // An end that reports no status is one as well.
    for query in ["COMMIT;", "REVERT;"] {
        let (mut bench, conn) = holding();
        run(&mut bench, conn, query, completed);
        assert!(!is_held(&mut bench), "{query}");
    }
    // A failed end that leaves it open is none.
    for query in ["COMMIT;", "REVERT;"] {
        let (mut bench, conn) = holding();
        run(&mut bench, conn, query, |reference| {
            bound(command_failed(reference, "not now"), transaction("t", 0))
        });
        assert!(is_held(&mut bench), "{query}");
    }
}

// rule, SM-3
#[test]
fn an_end_that_fails_for_no_told_reason_asks_whether_it_is_over() {
    for query in ["COMMIT;", "REVERT;"] {
        for over in [false, true] {
            let (mut bench, conn) = holding();
            let (_, outcome) = run(&mut bench, conn, query, |reference| {
                command_failed(reference, "no transaction")
            });
            assert_eq!(outcome.disposition, Disposition::Failed);
            bench.pass(SEC);
            let (attach, id) = bench.transaction_attach(conn);
            assert_eq!(id, "t");
            let answer = if over {
                let state = TransactionState::TransactionExpired;
                transaction_finished(transaction_in("t", state, 0))
            } else {
                transaction_attached(transaction("t", 0))
            };
            bench.reply(conn, attach, answer);
            assert_eq!(is_held(&mut bench), !over);
        }
    }
}

// rule: X-1
#[test]
fn a_transaction_begins_in_the_selected_domain_or_not_at_all() {
    let mut bench = Bench::with(&["http://a:1"], None);
    let conn = bench.connect();
    for query in ["BEGIN;", "BEGIN; CREATE SCHEMA a (b I64);"] {
        let (call, ..) = bench.execute(query);
        let outcome = bench.outcome(call);
        assert!(outcome.decided_locally && outcome.message.contains("USE"));
        assert_eq!(outcome.disposition, Disposition::Failed);
        bench.sends_nothing(conn);
    }
    let (call, ..) = bench.execute("USE e;");
    bench.outcome(call);
    let (begin, _) = run(&mut bench, conn, "BEGIN;", |reference| {
        command_failed(reference, "there is no domain e")
    });
    assert_eq!(begin.domain.as_deref(), Some("e"));
    assert!(!is_held(&mut bench));
}

// rule: X-1, SM-3
#[test]
fn a_begin_that_failed_holds_nothing() {
    let (mut bench, conn) = Bench::connected();
    run(&mut bench, conn, "BEGIN;", |reference| {
        command_failed(reference, "no such domain")
    });
    assert!(!is_held(&mut bench));
}

// rule: L-3, B-12, P-1, EC-1
#[test]
fn what_a_transaction_forbids_is_refused_before_it_is_sent() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.follow(conn, "d", clock(1, paced()));
    bench.begin(conn, "t");
    for query in [
        "USE e;",
        "CREATE SUBSCRIPTION u TO r;",
        "DELETE SUBSCRIPTION s;",
        "DELETE SUBSCRIPTION nobody;",
        "ATTACH DOMAIN CLOCK;",
        "DETACH DOMAIN CLOCK;",
        "BACKUP CLUSTER TO '/tmp/x';",
        "RESTORE CLUSTER FROM '/tmp/x';",
    ] {
        let (call, ..) = bench.execute(query);
        let outcome = bench.outcome(call);
        assert_eq!(outcome.disposition, Disposition::Failed, "{query}");
        assert!(outcome.decided_locally && !outcome.message.is_empty());
        bench.sends_nothing(conn);
    }
    for role in [Role::Producer, Role::Consumer] {
        let call = bench.open(role, "x");
        let error = bench.fails(call, ErrorKind::Rejected);
        assert_eq!(error.refusal, Some(OpenRefusal::InTransaction));
        bench.sends_nothing(conn);
    }
    assert_eq!(
        bench.append(conn, "t", 1).domain.as_deref(),
        Some("d"),
        "the selected domain did not move"
    );
    // What was opened before goes on.
    bench.frame(conn, rows("s", 1, 1, 0..1));
    assert!(matches!(bench.event().kind, EventKind::Rows(_)));
    bench.frame(conn, clock_ticked("d", 1, 1));
    bench.clock_event();
    run(
        &mut bench,
        conn,
        "COMMIT;",
        finished(TransactionState::TransactionCommitted),
    );
    let (call, ..) = bench.execute("DELETE SUBSCRIPTION s;");
    let (id, _) = bench.unsubscribe(conn);
    bench.reply(conn, id, deleted("s", 1));
    bench.outcome(call);
}

// rule: L-3
#[test]
fn reads_and_endpoints_that_are_open_go_on_inside_a_transaction() {
    let (mut bench, conn) = Bench::connected();
    let (producer, _) = bench.producer(conn);
    let (consumer, _) = bench.consumer(conn);
    bench.begin(conn, "t");
    let submission = bench.submit(producer, 1);
    let (id, ..) = bench.batch(conn);
    bench.reply(conn, id, batch_completed());
    bench.rejoin(producer, submission);
    let delivery = bench.deliver(conn, consumer, 1, 1);
    let settle = bench.settle(&delivery, Decision::Ack);
    let (id, _) = bench.settlement(conn);
    bench.reply(conn, id, settled(EmitterSettlement::Confirmed));
    bench.settled(settle);
    bench.suggest("S");
    bench.sent(conn);
    let (call, ..) = bench.execute("LIST DOMAINS;");
    let id = bench.sent(conn).request_id;
    bench.reply(conn, id, domain_list(&["d"]));
    bench.outcome(call);
    let (_, outcome) = run(&mut bench, conn, "DESCRIBE TRANSACTION;", completed);
    assert_eq!(outcome.disposition, Disposition::Completed);
}

// rule: D-5, X-6
#[test]
fn a_next_session_restores_everything_in_its_order() {
    let (mut bench, conn) = Bench::connected();
    bench.follow(conn, "d", clock(1, paced()));
    bench.subscription(conn, "s", 1);
    let (producer, _) = bench.producer(conn);
    let (consumer, _) = bench.consumer(conn);
    bench.begin(conn, "t");
    let (command, _, reference) = bench.execute(CREATE);
    bench.command(conn);
    bench.lose(conn);
    let next = bench.call(Call::NextDelivery(consumer));
    bench.fails(next, ErrorKind::Interrupted);
    let next = bench.call(Call::NextDelivery(consumer));
    let submit = bench.call(Call::Submit(producer, content(1)));
    let conn = bench.reconnected();
    let mut seen = Vec::new();
    for _ in 0..50 {
        for message in bench.quiet(conn, 0) {
            let id = message.request_id;
            let (what, body) = match message.request {
                ClientRequest::AttachDomainClockRequest(_) => {
                    ("clock", clock_attached("d", clock(1, paced())))
                }
                ClientRequest::SubscribeRequest(_) => ("subscription", opened("s", 2, numbers())),
                ClientRequest::OpenIngestorRequest(_) => {
                    ("endpoint", producer_opened(ingestor("d", "i")))
                }
                ClientRequest::OpenEmitterRequest(_) => {
                    ("endpoint", consumer_opened(emitter("d", "e")))
                }
                ClientRequest::AttachTransactionRequest(attach) => {
                    assert_eq!(attach.transaction_id, "t");
                    ("transaction", transaction_attached(transaction("t", 0)))
                }
                ClientRequest::CommandRequest(_) => ("command", appended(&reference, "t", 1, 1)),
                ClientRequest::ReadEmitterBatchRequest(_) => ("", delivery(1, 1)),
                ClientRequest::SubmitBatchRequest(_) => ("", batch_completed()),
                other => panic!("{other:?}"),
            };
            if !what.is_empty() {
                seen.push(what);
            }
            bench.reply(conn, id, body);
        }
        bench.pass(20 * MS);
    }
    assert_eq!(
        seen,
        [
            "clock",
            "subscription",
            "endpoint",
            "endpoint",
            "transaction",
            "command"
        ]
    );
    bench.outcome(command);
    bench.submitted(submit);
    bench.delivery(next);
}

/// A session that follows a clock, keeps a subscription, and holds a transaction, lost; the next one, where both restorations
/// were refused and the transaction is attached.
fn held_with_refused_restorations() -> (Bench, ConnId) {
    let (mut bench, conn) = Bench::connected();
    bench.follow(conn, "d", clock(1, paced()));
    bench.subscription(conn, "s", 1);
    bench.begin(conn, "t");
    bench.lose(conn);
    bench.suggest("S");
    let conn = bench.reconnected();
    let mut attached = false;
    for _ in 0..10 {
        for message in bench.quiet(conn, 0) {
            let body = match message.request {
                ClientRequest::AttachDomainClockRequest(_) => clock_attach_failed("not now"),
                ClientRequest::SubscribeRequest(_) => not_opened("not now"),
                ClientRequest::AttachTransactionRequest(_) => {
                    attached = true;
                    transaction_attached(transaction("t", 0))
                }
                ClientRequest::SuggestRequest(_) => suggestions(&["x"]),
                other => panic!("{other:?}"),
            };
            bench.reply(conn, message.request_id, body);
        }
        bench.pass(MS);
    }
    assert!(attached);
    (bench, conn)
}

// rule: L-3, S-7, K-5, D-5
#[test]
fn repeated_restorations_wait_for_the_end_of_the_transaction() {
    let (mut bench, conn) = held_with_refused_restorations();
    assert_eq!(bench.quiet(conn, 120 * SEC), [], "nothing L-3 forbids");
    run(
        &mut bench,
        conn,
        "COMMIT;",
        finished(TransactionState::TransactionCommitted),
    );
    let mut seen = Vec::new();
    for message in bench.quiet(conn, 30 * SEC) {
        seen.push(match message.request {
            ClientRequest::AttachDomainClockRequest(_) => "clock",
            ClientRequest::SubscribeRequest(_) => "subscription",
            other => panic!("{other:?}"),
        });
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, ["clock", "subscription"]);
}

// rule: L-3, S-8
#[test]
fn the_unsubscribe_after_an_overflow_waits_for_the_end_of_the_transaction() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.begin(conn, "t");
    for place in 0..200 {
        bench.frame(conn, rows("s", 1, 1, place..place + 1));
    }
    assert_eq!(bench.quiet(conn, 30 * SEC), []);
    assert!(bench
        .events()
        .iter()
        .any(|event| matches!(event.kind, EventKind::Overflow { .. })));
    run(
        &mut bench,
        conn,
        "REVERT;",
        finished(TransactionState::TransactionReverted),
    );
    bench.pass(SEC);
    assert_eq!(bench.unsubscribe(conn).1, "s");
}

// rule: L-3, P-1, EC-1, P-8
#[test]
fn endpoints_are_restored_after_the_transaction_when_it_is_held_first() {
    let (mut bench, conn) = Bench::connected();
    let (producer, wire) = bench.producer(conn);
    let (consumer, _) = bench.consumer(conn);
    let next = bench.call(Call::NextDelivery(consumer));
    let (read, _) = bench.read(conn);
    bench.begin(conn, "t");
    bench.frame(conn, producer_ended(wire, ProducerEndReason::Relocated));
    bench.reply(conn, read, consumer_ended());
    bench.fails(next, ErrorKind::Interrupted);
    let submit = bench.call(Call::Submit(producer, content(1)));
    let next = bench.call(Call::NextDelivery(consumer));
    assert_eq!(bench.quiet(conn, 30 * SEC), []);
    assert!(bench.is_waiting(submit) && bench.is_waiting(next));
    for endpoint in [producer, consumer] {
        assert_eq!(
            bench.engine.endpoint_state(endpoint),
            EndpointState::Interrupted
        );
    }
    run(
        &mut bench,
        conn,
        "COMMIT;",
        finished(TransactionState::TransactionCommitted),
    );
    for message in bench.quiet(conn, 5 * SEC) {
        let body = match message.request {
            ClientRequest::OpenIngestorRequest(_) => producer_opened(ingestor("d", "i")),
            ClientRequest::OpenEmitterRequest(_) => consumer_opened(emitter("d", "e")),
            other => panic!("{other:?}"),
        };
        bench.reply(conn, message.request_id, body);
    }
    bench.submitted(submit);
    for message in bench.quiet(conn, SEC) {
        if matches!(message.request, ClientRequest::ReadEmitterBatchRequest(_)) {
            bench.reply(conn, message.request_id, delivery(1, 1));
        }
    }
    bench.delivery(next);
}

// rule: D-1, X-6, E-2
#[test]
fn a_redirect_attaches_the_transaction_before_it_repeats() {
    let (mut bench, conn) = Bench::connected();
    bench.follow(conn, "d", clock(1, paced()));
    bench.subscription(conn, "s", 1);
    bench.begin(conn, "t");
    let (call, _, reference) = bench.execute(CREATE);
    let (id, first) = bench.command(conn);
    let leader = Some(endpoints("b", Some("http://b:2")));
    bench.reply(conn, id, redirect(&reference, leader));
    let (next, origin) = bench.opened();
    assert_eq!(origin, "http://b:2");
    bench.greet(next);
    let mut seen = Vec::new();
    for _ in 0..20 {
        for message in bench.quiet(next, 0) {
            let id = message.request_id;
            let (what, body) = match message.request {
                ClientRequest::AttachDomainClockRequest(_) => {
                    ("clock", clock_attached("d", clock(1, paced())))
                }
                ClientRequest::SubscribeRequest(_) => ("subscription", opened("s", 2, numbers())),
                ClientRequest::AttachTransactionRequest(attach) => {
                    assert_eq!(attach.transaction_id, "t");
                    ("transaction", transaction_attached(transaction("t", 0)))
                }
                ClientRequest::CommandRequest(command) => {
                    assert_eq!(command, first);
                    ("command", appended(&reference, "t", 1, 1))
                }
                other => panic!("{other:?}"),
            };
            seen.push(what);
            bench.reply(next, id, body);
        }
        bench.pass(20 * MS);
    }
    assert_eq!(seen, ["clock", "subscription", "transaction", "command"]);
    bench.outcome(call);
    // On the session that it left nothing L-3 forbids was sent either.
    bench.sends_nothing(conn);
    assert!(is_held(&mut bench));
}

// rule: D-1, X-6
#[test]
fn an_attach_is_redirected_too() {
    let (mut bench, conn) = holding();
    let (call, _, reference) = bench.execute(CREATE);
    let (_, first) = bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    bench.reply(
        conn,
        attach,
        transaction_attach_redirect(Some("http://b:2")),
    );
    let (next, origin) = bench.reopened();
    assert_eq!(origin, "http://b:2");
    bench.greet(next);
    bench.pass(SEC);
    let (attach, _) = bench.transaction_attach(next);
    bench.sends_nothing(next);
    // And again to nobody: back off, and ask again.
    bench.reply(next, attach, transaction_attach_redirect(None));
    let mut repeated = false;
    let mut last = next;
    for _ in 0..400 {
        bench.pass(20 * MS);
        if bench.will_open() {
            last = bench.opened().0;
            bench.greet(last);
        }
        if let Some(message) = bench.all_sent(last).pop() {
            assert!(
                matches!(message.request, ClientRequest::AttachTransactionRequest(_)),
                "{message:?}"
            );
            repeated = true;
            bench.reply(
                last,
                message.request_id,
                transaction_attached(transaction("t", 0)),
            );
            break;
        }
    }
    assert!(repeated);
    bench.pass(5 * SEC);
    let (id, same) = bench.command(last);
    assert_eq!(same, first);
    bench.reply(last, id, appended(&reference, "t", 1, 1));
    bench.outcome(call);
}

// rule: E-2, X-2, X-4
#[test]
fn positions_and_previews_are_fixed_when_a_command_is_first_sent() {
    let (mut bench, conn) = holding();
    let (early, early_reference) = bench.prepare(CREATE);
    let (commit, commit_reference) = bench.prepare("COMMIT;");
    bench.append(conn, "t", 1);
    // Prepared before, sent now: the newest position of now.
    let call = bench.call(Call::Execute(early));
    let (id, command) = bench.command(conn);
    assert_eq!(command.expected_transaction_position, Some(1));
    bench.reply(conn, id, appended(&early_reference, "t", 2, 4));
    bench.outcome(call);
    let call = bench.call(Call::Execute(commit));
    let (_, first) = bench.command(conn);
    assert_eq!(first.expected_preview, Some(preview("t", 2, 4)));
    let mut conn = conn;
    for _ in 0..3 {
        bench.lose(conn);
        conn = bench.reconnected();
        let (attach, _) = bench.transaction_attach(conn);
        bench.reply(conn, attach, transaction_attached(transaction("t", 9)));
        let (_, same) = bench.command(conn);
        assert_eq!(same, first);
    }
    bench.lose(conn);
    conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    bench.reply(conn, attach, transaction_attached(transaction("t", 9)));
    let (id, _) = bench.command(conn);
    bench.reply(
        conn,
        id,
        finished(TransactionState::TransactionCommitted)(&commit_reference),
    );
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
}

// rule: X-1, E-3, X-6
#[test]
fn a_begin_whose_answer_is_lost_is_recovered_and_attached() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute("BEGIN;");
    let (_, first) = bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    let (id, same) = bench.command(conn);
    assert_eq!(same, first);
    bench.reply(conn, id, bound(completed(&reference), transaction("t", 0)));
    bench.outcome(call);
    assert!(is_held(&mut bench));
    let (call, _, reference) = bench.execute(CREATE);
    let mut attached = false;
    let mut position = None;
    for _ in 0..20 {
        for message in bench.quiet(conn, 0) {
            let body = match message.request {
                ClientRequest::AttachTransactionRequest(_) => {
                    attached = true;
                    transaction_attached(transaction("t", 0))
                }
                ClientRequest::CommandRequest(command) => {
                    let expected = command.expected_transaction_position;
                    assert_eq!(*position.get_or_insert(expected), Some(0));
                    if attached {
                        appended(&reference, "t", 1, 1)
                    } else {
                        detached(&reference, "t")
                    }
                }
                other => panic!("{other:?}"),
            };
            bench.reply(conn, message.request_id, body);
        }
        bench.pass(50 * MS);
    }
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
}

// rule: X-6, D-6, T-8
#[test]
fn an_attach_that_is_not_answered_ends_its_session() {
    let (mut bench, conn) = holding();
    let (call, _, reference) = bench.execute(CREATE);
    bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    bench.transaction_attach(conn);
    bench.pass(crate::bench::REQUEST_TIMEOUT + SEC);
    assert!(bench.is_reset(conn));
    let conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    bench.reply(conn, attach, transaction_attached(transaction("t", 0)));
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, appended(&reference, "t", 1, 1));
    bench.outcome(call);
}

// rule: X-6, C-6
#[test]
fn an_attach_that_was_not_admitted_is_sent_again() {
    let (mut bench, conn) = holding();
    let (call, _, reference) = bench.execute(CREATE);
    bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    bench.reply(
        conn,
        attach,
        rejected(RequestRejection::TooManyRequestsInFlight),
    );
    bench.pass(2 * SEC);
    let (attach, _) = bench.transaction_attach(conn);
    bench.sends_nothing(conn);
    bench.reply(conn, attach, transaction_attached(transaction("t", 0)));
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, appended(&reference, "t", 1, 1));
    bench.outcome(call);
}

// rule: X-6, F-8
#[test]
fn an_attach_answered_with_another_transaction_breaks_the_protocol() {
    let (mut bench, conn) = holding();
    let (call, _, reference) = bench.execute(CREATE);
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, detached(&reference, "t"));
    bench.pass(2 * SEC);
    let (attach, _) = bench.transaction_attach(conn);
    bench.reply(conn, attach, transaction_attached(transaction("u", 3)));
    assert!(bench.is_reset(conn));
    assert!(bench.is_waiting(call));
}

// rule: X-6, D-5
#[test]
fn a_session_without_a_command_attaches_its_transaction_too() {
    let (mut bench, conn) = holding();
    bench.lose(conn);
    let suggest: CallId = bench.suggest("S");
    let conn = bench.reconnected();
    let mut attached = false;
    for message in bench.quiet(conn, 100 * MS) {
        let body = match message.request {
            ClientRequest::AttachTransactionRequest(_) => {
                attached = true;
                transaction_attached(transaction("t", 0))
            }
            ClientRequest::SuggestRequest(_) => suggestions(&["x"]),
            other => panic!("{other:?}"),
        };
        bench.reply(conn, message.request_id, body);
    }
    assert!(attached);
    bench.result(suggest).unwrap();
    assert!(is_held(&mut bench));
    assert_eq!(
        bench.append(conn, "t", 1).expected_transaction_position,
        Some(0)
    );
}

// rule: D-5, C-6
#[test]
fn a_transaction_waits_for_the_last_of_many_restorations() {
    let (mut bench, conn) = Bench::connected();
    for number in 0..70 {
        bench.subscription(conn, &format!("s{number}"), 1);
    }
    bench.begin(conn, "t");
    let (call, _, reference) = bench.execute(CREATE);
    bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    let mut opening = 0;
    let mut over = Vec::new();
    for _ in 0..200 {
        let sent = bench.quiet(conn, 0);
        let mut answers = Vec::new();
        for message in sent {
            let body = match message.request {
                ClientRequest::SubscribeRequest(subscribe) => {
                    opening += 1;
                    let name = crate::common::watch::subscription_name(&subscribe.statement);
                    opened(&name, 2, numbers())
                }
                ClientRequest::AttachTransactionRequest(_) => {
                    over.push("transaction");
                    assert_eq!(opening, 70, "before every subscription was sent");
                    transaction_attached(transaction("t", 0))
                }
                ClientRequest::CommandRequest(_) => {
                    over.push("command");
                    appended(&reference, "t", 1, 1)
                }
                other => panic!("{other:?}"),
            };
            answers.push((message.request_id, body));
        }
        // One at a time, so that room comes one at a time.
        for (id, body) in answers {
            bench.reply(conn, id, body);
        }
        bench.pass(MS);
    }
    assert_eq!(over, ["transaction", "command"]);
    bench.outcome(call);
}

/// A command that was sent in transaction `t` and abandoned, and a session that holds `u` since.
fn holding_another() -> (Bench, ConnId, nervix_engine::ExecutionId, String) {
    let (mut bench, conn) = holding();
    let (call, append, reference) = bench.execute(CREATE);
    bench.command(conn);
    bench.stop(call, nervix_engine::Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    bench.lose(conn);
    let (call, _, revert) = bench.execute("REVERT;");
    let conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    bench.reply(conn, attach, transaction_attached(transaction("t", 0)));
    let (id, _) = bench.command(conn);
    bench.reply(
        conn,
        id,
        finished(TransactionState::TransactionReverted)(&revert),
    );
    bench.outcome(call);
    bench.begin(conn, "u");
    (bench, conn, append, reference)
}

// rule, E-3
#[test]
fn a_command_of_one_transaction_is_not_sent_into_another() {
    let (mut bench, conn, append, reference) = holding_another();
    let call = bench.call(Call::Execute(append));
    let error = bench.fails(call, ErrorKind::Uncertain);
    assert_eq!(error.reference.as_deref(), Some(&*reference));
    assert!(error.message.contains('u'), "{error}");
    bench.sends_nothing(conn);
    // Once that one is over, it asks for its own outcome.
    run(&mut bench, conn, "REVERT;", completed);
    let call = bench.call(Call::Execute(append));
    let (id, command) = bench.command(conn);
    assert_eq!(command.expected_transaction_position, Some(0));
    bench.reply(conn, id, command_failed(&reference, "never admitted"));
    assert_eq!(bench.outcome(call).disposition, Disposition::Failed);
}

// rule: X-2, E-3
#[test]
fn a_command_of_no_transaction_is_not_sent_into_one() {
    let (mut bench, conn) = Bench::connected();
    let (call, execution, reference) = bench.execute(CREATE);
    let (id, _) = bench.command(conn);
    bench.stop(call, nervix_engine::Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    bench.reply(conn, id, unknown(&reference));
    bench.begin(conn, "t");
    let call = bench.call(Call::Execute(execution));
    bench.fails(call, ErrorKind::Uncertain);
    bench.sends_nothing(conn);
    run(&mut bench, conn, "COMMIT;", completed);
    let call = bench.call(Call::Execute(execution));
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, completed(&reference));
    bench.outcome(call);
}

// rule: X-1, SM-3
#[test]
fn a_begin_inside_a_transaction_is_the_servers_to_refuse_and_goes_nowhere_else() {
    let (mut bench, conn) = holding();
    bench.append(conn, "t", 1);
    let (call, _, reference) = bench.execute("BEGIN;");
    let (_, first) = bench.command(conn);
    assert_eq!(first.expected_transaction_position, Some(1));
    bench.lose(conn);
    let conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    bench.reply(conn, attach, transaction_attached(transaction("t", 1)));
    let (id, same) = bench.command(conn);
    assert_eq!(same, first);
    bench.reply(
        conn,
        id,
        bound(
            command_failed(&reference, "one is held"),
            transaction("t", 1),
        ),
    );
    let outcome = bench.outcome(call);
    assert!(!outcome.decided_locally);
    assert_eq!(outcome.disposition, Disposition::Failed);
    assert!(is_held(&mut bench));
    let next = bench.append(conn, "t", 2);
    assert_eq!(next.expected_transaction_position, Some(1));
}

// rule
#[test]
fn a_begin_inside_a_transaction_that_expired_is_asked_about_and_may_begin_the_next() {
    let (mut bench, conn) = holding();
    let (call, _, reference) = bench.execute("BEGIN;");
    let (_, first) = bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    let expired = transaction_in("t", TransactionState::TransactionExpired, 0);
    bench.reply(conn, attach, transaction_finished(expired));
    let (id, same) = bench.command(conn);
    assert_eq!(same, first);
    bench.reply(
        conn,
        id,
        bound(completed(&reference), transaction("next", 0)),
    );
    bench.outcome(call);
    bench.append(conn, "next", 1);
}

// rule: L-3, L-1
#[test]
fn a_command_of_another_domain_is_not_sent_into_a_transaction() {
    let (mut bench, conn) = Bench::connected();
    let early: Vec<_> = [CREATE, "BEGIN;", "COMMIT;", "REVERT;"]
        .map(|query| bench.prepare(query).0)
        .into();
    let (read, read_reference) = bench.prepare("SHOW CLUSTER STATUS;");
    let (call, ..) = bench.execute("USE e;");
    bench.outcome(call);
    let (call, _, reference) = bench.execute("BEGIN;");
    let (id, _) = bench.command(conn);
    let mut status = transaction("t", 0);
    status.domain = "e".into();
    bench.reply(conn, id, bound(completed(&reference), status));
    bench.outcome(call);
    for execution in early {
        let call = bench.call(Call::Execute(execution));
        let outcome = bench.outcome(call);
        assert!(outcome.decided_locally, "{outcome:?}");
        assert_eq!(outcome.disposition, Disposition::Failed);
        bench.sends_nothing(conn);
    }
    let call = bench.call(Call::Execute(read));
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, completed(&read_reference));
    bench.outcome(call);
    assert!(is_held(&mut bench));
}

// rule, L-3
#[test]
fn what_an_abandoned_begin_does_is_awaited() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute("BEGIN;");
    let (id, _) = bench.command(conn);
    bench.stop(call, nervix_engine::Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    let (append, _, append_reference) = bench.execute(CREATE);
    let (subscribe, ..) = bench.execute("CREATE SUBSCRIPTION s TO r;");
    let open = bench.open(Role::Producer, "i");
    assert_eq!(bench.quiet(conn, SEC), []);
    bench.reply(conn, id, bound(completed(&reference), transaction("t", 0)));
    let (id, command) = bench.command(conn);
    assert_eq!(command.expected_transaction_position, Some(0));
    bench.reply(conn, id, appended(&append_reference, "t", 1, 1));
    bench.outcome(append);
    let outcome = bench.outcome(subscribe);
    assert!(outcome.decided_locally, "held by now");
    assert_eq!(bench.quiet(conn, SEC), []);
    assert!(bench.is_waiting(open));
}

// rule: X-2
#[test]
fn an_abandoned_append_is_awaited_before_the_next() {
    let (mut bench, conn) = holding();
    let (call, _, first) = bench.execute(CREATE);
    let (id, _) = bench.command(conn);
    bench.stop(call, nervix_engine::Stop::Deadline);
    bench.fails(call, ErrorKind::Deadline);
    let (call, _, second) = bench.execute("CREATE SCHEMA c (d I64);");
    bench.pass(SEC);
    bench.sends_nothing(conn);
    bench.reply(conn, id, appended(&first, "t", 1, 1));
    let (id, command) = bench.command(conn);
    assert_eq!(command.expected_transaction_position, Some(1));
    bench.reply(conn, id, appended(&second, "t", 2, 1));
    bench.outcome(call);
}

// rule: L-3
#[test]
fn what_was_sent_outside_is_not_sent_again_inside() {
    for query in [
        "CREATE SUBSCRIPTION s TO r;",
        "ATTACH DOMAIN CLOCK;",
        "DETACH DOMAIN CLOCK;",
    ] {
        let (mut bench, conn) = Bench::connected();
        let (call, execution, _) = bench.execute(query);
        let id = bench.sent(conn).request_id;
        bench.reply(
            conn,
            id,
            rejected(RequestRejection::TooManyRequestsInFlight),
        );
        bench.stop(call, nervix_engine::Stop::Cancelled);
        bench.fails(call, ErrorKind::Cancelled);
        bench.begin(conn, "t");
        let call = bench.call(Call::Execute(execution));
        let outcome = bench.outcome(call);
        assert_eq!(outcome.disposition, Disposition::Failed);
        assert!(outcome.decided_locally, "{query}");
        bench.sends_nothing(conn);
    }
}

// rule, SM-3
#[test]
fn a_transaction_whose_begin_nobody_waited_for_is_held_when_it_is_told() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute("BEGIN;");
    let (id, _) = bench.command(conn);
    bench.stop(call, nervix_engine::Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    bench.reply(conn, id, unknown(&reference));
    // Every outcome says what its session holds.
    let (command, _) = run(&mut bench, conn, CREATE, |reference| {
        bound(
            command_failed(reference, "a position is missing"),
            transaction("t", 0),
        )
    });
    assert_eq!(command.expected_transaction_position, None);
    assert!(is_held(&mut bench));
    let (revert, _) = run(
        &mut bench,
        conn,
        "REVERT;",
        finished(TransactionState::TransactionReverted),
    );
    assert_eq!(revert.expected_transaction_position, Some(0));
    assert!(!is_held(&mut bench));
}

// rule: E-3, E-6, X-1, SM-3
#[test]
fn a_begin_of_unknown_outcome_is_asked_about_although_its_transaction_was_told() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute("BEGIN;");
    let (id, first) = bench.command(conn);
    bench.reply(conn, id, bound(unknown(&reference), transaction("t", 0)));
    assert!(bench.is_waiting(call));
    bench.pass(5 * SEC);
    let (id, again) = bench.command(conn);
    assert_eq!(again, first);
    bench.reply(conn, id, bound(completed(&reference), transaction("t", 0)));
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
    assert!(is_held(&mut bench));
}

// rule: X-2, E-3
#[test]
fn how_it_stood_before_moves_no_position_back() {
    let (mut bench, conn) = Bench::connected();
    bench.begin(conn, "t");
    let (call, first, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    bench.command(conn);
    bench.stop(call, Stop::Deadline);
    bench.error(call);
    bench.lose(conn);
    let (call, _, second) = bench.execute("CREATE SCHEMA c (b I64);");
    let conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    bench.reply(conn, attach, transaction_attached(transaction("t", 1)));
    let (id, command) = bench.command(conn);
    assert_eq!(command.expected_transaction_position, Some(1));
    bench.reply(conn, id, appended(&second, "t", 2, 1));
    bench.outcome(call);
    // The outcome of the first is asked for now, and was recorded then.
    let call = bench.call(Call::Execute(first));
    let (id, _) = bench.command(conn);
    let mut body = appended(&reference, "t", 1, 1);
    if let ReplyBody::CommandOutcome(outcome) = &mut body {
        outcome.origin = OutcomeOrigin::Recovered;
    }
    bench.reply(conn, id, body);
    bench.outcome(call);
    bench.execute("CREATE SCHEMA e (b I64);");
    let (_, command) = bench.command(conn);
    assert_eq!(command.expected_transaction_position, Some(2));
}

// rule: T-6, X-6
#[test]
fn an_attach_that_ended_its_call_is_not_sent_again() {
    for (code, again) in [(11, false), (13, false), (14, true)] {
        let (mut bench, conn) = Bench::connected();
        bench.begin(conn, "t");
        bench.lose(conn);
        bench.call(Call::NextEvent);
        let (call, ..) = bench.execute("CREATE SCHEMA a (b I64);");
        let conn = bench.reconnected();
        bench.transaction_attach(conn);
        let message = "no good".into();
        bench.close(conn, Cause::Status { code, message });
        let conn = bench.reconnected();
        if again {
            bench.transaction_attach(conn);
            continue;
        }
        bench.sends_nothing(conn);
        let outcome = bench.outcome(call);
        assert_eq!(outcome.disposition, Disposition::Failed);
        assert!(outcome.message.contains("could not be attached"));
        assert!(outcome.message.contains("no good"));
    }
}

// rule: X-6, E-3
#[test]
fn a_server_that_attaches_and_detaches_is_asked_after_growing_waits() {
    let (mut bench, conn) = Bench::connected();
    bench.begin(conn, "t");
    let (call, _, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    let began = bench.now;
    let mut asked = 0;
    while bench.now < began + 10 * SEC {
        let (id, _) = bench.command(conn);
        asked += 1;
        bench.reply(conn, id, detached(&reference, "t"));
        let next = loop {
            if let [message] = &bench.all_sent(conn)[..] {
                break message.request_id;
            }
            bench.pass(10 * MS);
        };
        bench.reply(conn, next, transaction_attached(transaction("t", 0)));
    }
    println!("asked {asked} times in ten seconds");
    assert!((5..=20).contains(&asked), "{asked}");
    // Once it is answered, the next loss is made good at once.
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, appended(&reference, "t", 1, 1));
    bench.outcome(call);
    let (_, _, reference) = bench.execute("CREATE SCHEMA c (b I64);");
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, detached(&reference, "t"));
    assert_eq!(bench.quiet(conn, 150 * MS).len(), 1);
}

// rule: X-3
#[test]
fn an_outcome_that_tells_of_another_transaction_is_a_violation() {
    for query in ["COMMIT;", "REVERT;", "CREATE SCHEMA a (b I64);"] {
        let (mut bench, conn) = Bench::connected();
        bench.begin(conn, "t");
        let (call, _, reference) = bench.execute(query);
        let (id, _) = bench.command(conn);
        let other = transaction_in("u", TransactionState::TransactionCommitted, 0);
        bench.reply(conn, id, bound(completed(&reference), other));
        assert!(bench.is_reset(conn));
        assert!(bench.is_waiting(call), "it is asked about again");
    }
}

// rule: D-5, C-6, P-1, EC-1
#[test]
fn a_transaction_waits_for_restorations_of_every_kind_that_come_into_room_one_by_one() {
    const CLOCKS: usize = 25;
    const SUBSCRIPTIONS: usize = 50;
    const CONSUMERS: usize = 20;
    let (mut bench, conn) = Bench::connected();
    for number in 0..CLOCKS {
        let domain = format!("c{number}");
        let (call, ..) = bench.execute(&format!("USE {domain};"));
        bench.outcome(call);
        bench.follow(conn, &domain, clock(1, paced()));
    }
    let (call, ..) = bench.execute("USE d;");
    bench.outcome(call);
    for number in 0..SUBSCRIPTIONS {
        bench.subscription(conn, &format!("s{number}"), 1);
    }
    let consumers: Vec<_> = (0..CONSUMERS).map(|_| bench.consumer(conn).0).collect();
    bench.begin(conn, "t");
    let (call, _, reference) = bench.execute(CREATE);
    bench.command(conn);
    bench.lose(conn);
    for consumer in consumers {
        let told = bench.call(Call::NextDelivery(consumer));
        bench.fails(told, ErrorKind::Interrupted);
        bench.call(Call::NextDelivery(consumer));
    }
    let conn = bench.reconnected();
    let mut asked = Vec::new();
    let mut waiting = std::collections::VecDeque::new();
    loop {
        waiting.extend(bench.quiet(conn, 0));
        let Some(message) = waiting.pop_front() else {
            break;
        };
        let (what, body) = match &message.request {
            ClientRequest::AttachDomainClockRequest(attach) => {
                ("clock", clock_attached(&attach.domain, clock(1, paced())))
            }
            ClientRequest::SubscribeRequest(subscribe) => {
                let name = crate::common::watch::subscription_name(&subscribe.statement);
                ("subscription", opened(&name, 2, numbers()))
            }
            ClientRequest::OpenEmitterRequest(_) => {
                ("consumer", consumer_opened(emitter("d", "e")))
            }
            ClientRequest::AttachTransactionRequest(_) => {
                ("transaction", transaction_attached(transaction("t", 0)))
            }
            ClientRequest::CommandRequest(_) => ("command", appended(&reference, "t", 1, 1)),
            // Stays unanswered, and takes room.
            ClientRequest::ReadEmitterBatchRequest(_) => continue,
            other => panic!("{other:?}"),
        };
        asked.push(what);
        bench.reply(conn, message.request_id, body);
    }
    let mut expected = Vec::new();
    for (what, times) in [
        ("clock", CLOCKS),
        ("subscription", SUBSCRIPTIONS),
        ("consumer", CONSUMERS),
        ("transaction", 1),
        ("command", 1),
    ] {
        expected.extend(vec![what; times]);
    }
    assert_eq!(asked, expected);
    bench.outcome(call);
}

/// A command of a transaction that is over and whose outcome is not known, and a BEGIN since whose outcome is not known either.
fn with_a_begin_of_unknown_outcome() -> (Bench, ConnId, [(nervix_engine::ExecutionId, String); 2]) {
    let (mut bench, conn) = holding();
    let (call, append, reference) = bench.execute(CREATE);
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, unknown(&reference));
    bench.stop(call, Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    run(
        &mut bench,
        conn,
        "REVERT;",
        finished(TransactionState::TransactionReverted),
    );
    let (call, begin, begin_reference) = bench.execute("BEGIN;");
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, unknown(&begin_reference));
    bench.stop(call, Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    let commands = [(append, reference), (begin, begin_reference)];
    (bench, conn, commands)
}

// rule, E-3
#[test]
fn a_command_of_one_transaction_is_not_sent_into_one_that_may_have_begun() {
    for begins in [true, false] {
        let (mut bench, conn, [(append, reference), (begin, begin_reference)]) =
            with_a_begin_of_unknown_outcome();
        let call = bench.call(Call::Execute(append));
        let error = bench.fails(call, ErrorKind::Uncertain);
        assert_eq!(error.reference.as_deref(), Some(&*reference));
        assert!(error.message.contains("BEGIN"), "{error}");
        bench.sends_nothing(conn);
        // What it began, if anything, the BEGIN itself tells.
        let call = bench.call(Call::Execute(begin));
        let (id, _) = bench.command(conn);
        if begins {
            let body = bound(completed(&begin_reference), transaction("u", 0));
            bench.reply(conn, id, body);
            bench.outcome(call);
            let call = bench.call(Call::Execute(append));
            bench.fails(call, ErrorKind::Uncertain);
            bench.sends_nothing(conn);
            run(&mut bench, conn, "REVERT;", |reference| {
                bound(
                    completed(reference),
                    transaction_in("u", TransactionState::TransactionReverted, 0),
                )
            });
        } else {
            bench.reply(conn, id, command_failed(&begin_reference, "no"));
            bench.outcome(call);
        }
        let call = bench.call(Call::Execute(append));
        let (id, command) = bench.command(conn);
        assert_eq!(command.expected_transaction_position, Some(0));
        bench.reply(conn, id, command_failed(&reference, "never admitted"));
        assert_eq!(bench.outcome(call).disposition, Disposition::Failed);
    }
}

// rule, E-3
#[test]
fn what_may_have_begun_on_a_session_that_is_over_stands_in_no_commands_way() {
    let (mut bench, conn, [(append, reference), _]) = with_a_begin_of_unknown_outcome();
    bench.lose(conn);
    let call = bench.call(Call::Execute(append));
    let conn = bench.reconnected();
    let (id, command) = bench.command(conn);
    assert_eq!(command.execution_reference, reference);
    bench.reply(conn, id, command_failed(&reference, "never admitted"));
    assert_eq!(bench.outcome(call).disposition, Disposition::Failed);
}
