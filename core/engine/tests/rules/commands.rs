//! Commands and their identity: E-1 to E-8, D-4, L-1, L-2, B-1.

use nervix_engine::{Call, Disposition, ErrorKind, Stop};
use nervix_wire::types::*;

use crate::bench::{Bench, RETRY_TIMEOUT};
use crate::common::frames::*;
use crate::common::watch::assert_uuid_v7;
use crate::common::{EPOCH, MS, SEC};

const CREATE: &str = "CREATE SCHEMA a (b I64);";

// rule: E-1
#[test]
fn a_reference_is_a_uuid_v7_of_the_time_it_was_prepared() {
    let (mut bench, conn) = Bench::connected();
    let mut seen = Vec::new();
    for _ in 0..5 {
        bench.pass(7 * MS);
        let millis = EPOCH + bench.now / MS;
        let (call, _, reference) = bench.execute(CREATE);
        assert_uuid_v7(&reference);
        let hex: String = reference.chars().filter(|c| *c != '-').collect();
        assert_eq!(u64::from_str_radix(&hex[..12], 16).unwrap(), millis);
        let (id, command) = bench.command(conn);
        assert_eq!(command.execution_reference, reference);
        bench.reply(conn, id, completed(&reference));
        bench.outcome(call);
        assert!(!seen.contains(&reference));
        seen.push(reference);
    }
}

// rule: E-2, E-3, D-6, B-1
#[test]
fn a_lost_command_is_repeated_unchanged_under_its_reference() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute("  CREATE SCHEMA a (b I64) ; // as it is");
    let (_, first) = bench.command(conn);
    assert_eq!(first.query, "  CREATE SCHEMA a (b I64) ; // as it is");
    assert_eq!(first.domain.as_deref(), Some("d"));
    assert_eq!(first.expected_transaction_position, None);
    assert_eq!(first.expected_preview, None);
    let mut conn = conn;
    for _ in 0..3 {
        bench.lose(conn);
        assert!(bench.is_waiting(call));
        conn = bench.reconnected();
        let (_, again) = bench.command(conn);
        assert_eq!(again, first);
        bench.sends_nothing(conn);
    }
    bench.lose(conn);
    conn = bench.reconnected();
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, completed(&reference));
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
}

// rule: E-3, B-1
#[test]
fn an_outcome_stays_what_it_was() {
    let (mut bench, conn) = Bench::connected();
    let (call, execution, reference) = bench.execute(CREATE);
    let (id, _) = bench.command(conn);
    let second = bench.call(Call::Execute(execution));
    bench.reply(conn, id, completed(&reference));
    let outcome = bench.outcome(call);
    for message in bench.all_sent(conn) {
        // Asking again is allowed; the record answers.
        bench.reply(conn, message.request_id, completed(&reference));
    }
    assert_eq!(bench.outcome(second), outcome);
    let third = bench.call(Call::Execute(execution));
    assert_eq!(bench.outcome(third), outcome);
    bench.sends_nothing(conn);
}

// rule: E-5, F-8
#[test]
fn an_outcome_of_another_reference_breaks_the_protocol() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute(CREATE);
    let (id, command) = bench.command(conn);
    let suggest = bench.suggest("S");
    bench.reply(conn, id, completed("018bcfe5-0000-7000-8000-000000000000"));
    assert!(bench.is_reset(conn));
    bench.fails(suggest, ErrorKind::Protocol);
    assert!(bench.is_waiting(call), "a violation ends no execute");
    let conn = bench.reconnected();
    let (id, same) = bench.command(conn);
    assert_eq!(same, command);
    bench.reply(conn, id, completed(&reference));
    bench.outcome(call);
}

// rule: E-6
#[test]
fn every_terminal_disposition_is_reported_and_none_is_repeated() {
    let preview = || TransactionPreviewIdentity {
        transaction_id: "t".into(),
        position: 1,
        planning_basis: Fingerprint { bytes: [7; 32] },
    };
    let cases = [
        (
            CommandDisposition::CommandCompleted(CommandCompleted {
                already_existed: true,
            }),
            Disposition::Completed,
        ),
        (CommandDisposition::RequestFailed, Disposition::Failed),
        (
            CommandDisposition::TransactionTakenOver(TransactionTakenOver {
                transaction_id: "t".into(),
            }),
            Disposition::TransactionTakenOver,
        ),
        (
            CommandDisposition::ExecutionReferenceConflict(ExecutionReferenceConflict {
                conflict: ExecutionReferenceConflictKind::Content,
            }),
            Disposition::ExecutionReferenceConflict,
        ),
        (
            CommandDisposition::ExecutionReferenceExpired,
            Disposition::ExecutionReferenceExpired,
        ),
        (
            CommandDisposition::PreviewStale(PreviewStale {
                expected: preview(),
                current: preview(),
            }),
            Disposition::PreviewStale,
        ),
    ];
    for (wire, expected) in cases {
        let (mut bench, conn) = Bench::connected();
        let (call, execution, reference) = bench.execute(CREATE);
        let (id, _) = bench.command(conn);
        let existed = matches!(wire, CommandDisposition::CommandCompleted(_));
        let mut body = outcome(&reference, OutcomeOrigin::Executed, wire, "what it says");
        if let ReplyBody::CommandOutcome(outcome) = &mut body {
            outcome.diagnostics.push(Diagnostic {
                message: "here".into(),
                span: Some(SourceSpan { start: 0, end: 6 }),
            });
        }
        bench.reply(conn, id, body);
        let outcome = bench.outcome(call);
        assert_eq!(outcome.disposition, expected);
        assert_eq!(outcome.message, "what it says");
        assert_eq!(outcome.reference.as_deref(), Some(&*reference));
        assert_eq!(outcome.already_existed, existed);
        assert_eq!(outcome.diagnostics.len(), 1);
        assert!(!outcome.decided_locally);
        bench.pass(60 * SEC);
        bench.sends_nothing(conn);
        let again = bench.call(Call::Execute(execution));
        assert_eq!(bench.outcome(again), outcome);
        bench.sends_nothing(conn);
    }
}

// rule: E-6, E-8a
#[test]
fn an_unknown_outcome_is_asked_for_again_and_never_told() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute(CREATE);
    let (mut id, first) = bench.command(conn);
    let mut waits = Vec::new();
    for _ in 0..6 {
        bench.reply(conn, id, unknown(&reference));
        assert!(bench.is_waiting(call));
        bench.sends_nothing(conn);
        let since = bench.now;
        loop {
            bench.pass(10 * MS);
            if let Some(message) = bench.all_sent(conn).pop() {
                let ClientRequest::CommandRequest(command) = message.request else {
                    panic!()
                };
                assert_eq!(command, first);
                assert_ne!(message.request_id, id);
                id = message.request_id;
                break;
            }
        }
        waits.push(bench.now - since);
    }
    assert!(waits[0] >= 20 * MS && waits[5] > waits[0], "{waits:?}");
    assert!(waits[5] <= 3 * SEC, "{waits:?}");
    bench.reply(conn, id, completed(&reference));
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
}

// rule: E-6, D-4, N-4
#[test]
fn an_outcome_unknown_to_the_end_is_uncertain() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute(CREATE);
    let start = bench.now;
    while bench.is_waiting(call) {
        for message in bench.all_sent(conn) {
            bench.reply(conn, message.request_id, unknown(&reference));
        }
        bench.pass(100 * MS);
        assert!(bench.now - start < 2 * RETRY_TIMEOUT);
    }
    let error = bench.fails(call, ErrorKind::Uncertain);
    assert_eq!(error.reference.as_deref(), Some(&*reference));
    assert!(error.message.contains(&reference), "{error}");
    assert!(bench.now - start >= RETRY_TIMEOUT - SEC);
}

// rule: E-7
#[test]
fn each_statement_of_several_is_reported() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute(CREATE);
    let (id, _) = bench.command(conn);
    let mut body = outcome(
        &reference,
        OutcomeOrigin::Recovered,
        CommandDisposition::RequestFailed,
        "the second failed",
    );
    if let ReplyBody::CommandOutcome(outcome) = &mut body {
        outcome.statements = vec![
            StatementOutcome {
                disposition: StatementDisposition::CommandCompleted(CommandCompleted {
                    already_existed: true,
                }),
                message: "first".into(),
                diagnostics: Vec::new(),
            },
            StatementOutcome {
                disposition: StatementDisposition::RequestFailed,
                message: "second".into(),
                diagnostics: vec![Diagnostic {
                    message: "no".into(),
                    span: None,
                }],
            },
        ];
    }
    bench.reply(conn, id, body);
    let outcome = bench.outcome(call);
    assert_eq!(outcome.disposition, Disposition::Failed);
    let told: Vec<_> = outcome
        .statements
        .iter()
        .map(|s| (s.disposition, s.already_existed, &*s.message))
        .collect();
    assert_eq!(
        told,
        [
            (Disposition::Completed, true, "first"),
            (Disposition::Failed, false, "second")
        ]
    );
    assert_eq!(outcome.statements[1].diagnostics.len(), 1);
}

// rule: E-8
#[test]
fn a_recovered_outcome_is_the_outcome() {
    let mut told = Vec::new();
    for origin in [OutcomeOrigin::Executed, OutcomeOrigin::Recovered] {
        let (mut bench, conn) = Bench::connected();
        let (call, _, reference) = bench.execute(CREATE);
        let (id, _) = bench.command(conn);
        bench.reply(
            conn,
            id,
            outcome(
                &reference,
                origin,
                CommandDisposition::RequestFailed,
                "as it happened",
            ),
        );
        let outcome = bench.outcome(call);
        assert_eq!(outcome.origin, Some(origin));
        told.push((outcome.disposition, outcome.message.clone()));
    }
    assert_eq!(told[0], told[1]);
}

// rule: D-4, N-3, N-4
#[test]
fn a_deadline_after_sending_is_uncertain_and_names_the_reference() {
    let (mut bench, conn) = Bench::connected();
    let (call, execution, reference) = bench.execute(CREATE);
    let (_, first) = bench.command(conn);
    bench.lose(conn);
    // No server comes back.
    let start = bench.now;
    while bench.is_waiting(call) {
        let Some((conn, _)) = bench.reopens() else {
            break;
        };
        bench.close(conn, nervix_engine::Cause::Unreachable("refused".into()));
        assert!(bench.now - start <= RETRY_TIMEOUT + 2 * SEC);
    }
    let error = bench.fails(call, ErrorKind::Uncertain);
    assert_eq!(error.reference.as_deref(), Some(&*reference));
    let again = bench.call(Call::Execute(execution));
    let conn = bench.reconnected();
    let (id, same) = bench.command(conn);
    assert_eq!(same, first);
    bench.reply(conn, id, completed(&reference));
    bench.outcome(again);
}

// rule: D-4
#[test]
fn a_command_never_sent_fails_after_its_last_cause() {
    let (mut bench, conn) = Bench::connected();
    bench.lose(conn);
    let (call, _, reference) = bench.execute(CREATE);
    while bench.is_waiting(call) {
        let Some((conn, _)) = bench.reopens() else {
            break;
        };
        bench.close(conn, nervix_engine::Cause::Unreachable("refused".into()));
    }
    let error = bench.fails(call, ErrorKind::Connect);
    assert_eq!(error.reference.as_deref(), Some(&*reference));
    assert!(error.message.contains("refused"), "{error}");
}

// rule: D-4
#[test]
fn waiting_in_line_counts_against_the_deadline() {
    let (mut bench, conn) = Bench::connected();
    let (first, _, reference) = bench.execute(CREATE);
    let (second, ..) = bench.execute("CREATE SCHEMA b (b I64);");
    let start = bench.now;
    while bench.is_waiting(first) || bench.is_waiting(second) {
        for message in bench.all_sent(conn) {
            let ClientRequest::CommandRequest(command) = message.request else {
                continue;
            };
            assert_eq!(
                command.execution_reference, reference,
                "commands run one at a time"
            );
            bench.reply(conn, message.request_id, unknown(&reference));
        }
        bench.pass(50 * MS);
        assert!(bench.now - start <= RETRY_TIMEOUT + SEC);
    }
    bench.fails(first, ErrorKind::Uncertain);
    let error = bench.error(second);
    assert_ne!(error.kind, ErrorKind::Uncertain, "it was never sent");
}

#[test]
fn commands_run_one_at_a_time_in_order() {
    let (mut bench, conn) = Bench::connected();
    let (first, _, one) = bench.execute(CREATE);
    let (second, _, two) = bench.execute("SHOW CLUSTER STATUS;");
    let (id, command) = bench.command(conn);
    assert_eq!(command.execution_reference, one);
    bench.sends_nothing(conn);
    bench.reply(conn, id, completed(&one));
    bench.outcome(first);
    let (id, command) = bench.command(conn);
    assert_eq!(command.execution_reference, two);
    bench.reply(conn, id, completed(&two));
    bench.outcome(second);
}

// rule: N-3, C-10
#[test]
fn a_stopped_command_is_never_told_as_undone() {
    for (why, kind) in [
        (Stop::Cancelled, ErrorKind::Cancelled),
        (Stop::Deadline, ErrorKind::Deadline),
    ] {
        let (mut bench, conn) = Bench::connected();
        let (call, _, reference) = bench.execute(CREATE);
        bench.command(conn);
        bench.stop(call, why);
        let error = bench.fails(call, kind);
        assert_eq!(error.reference.as_deref(), Some(&*reference));
        assert!(error.message.contains(&reference), "{error}");
        // Stopping twice is nothing.
        bench.stop(call, why);
        assert!(bench.is_waiting(call));
    }
}

// rule: L-1
#[test]
fn a_command_names_the_domain_selected_when_it_was_prepared() {
    let mut bench = Bench::with(&["http://a:1"], None);
    let conn = bench.connect();
    let run = |bench: &mut Bench, query: &str| {
        let (call, _, reference) = bench.execute(query);
        let (id, command) = bench.command(conn);
        bench.reply(conn, id, completed(&reference));
        bench.outcome(call);
        command.domain
    };
    assert_eq!(run(&mut bench, CREATE), None);
    let (early, reference) = bench.prepare(CREATE);
    let (call, ..) = bench.execute("USE orders;");
    let outcome = bench.outcome(call);
    assert_eq!(outcome.disposition, Disposition::Completed);
    assert!(outcome.decided_locally);
    bench.sends_nothing(conn);
    assert_eq!(run(&mut bench, CREATE).as_deref(), Some("orders"));
    let call = bench.call(Call::Execute(early));
    let (id, command) = bench.command(conn);
    assert_eq!(command.domain, None, "prepared before");
    bench.reply(conn, id, completed(&reference));
    bench.outcome(call);
    // The server keeps no selection: it is the same on the next session.
    bench.lose(conn);
    let (call, _, reference) = bench.execute(CREATE);
    let conn = bench.reconnected();
    let (id, command) = bench.command(conn);
    assert_eq!(command.domain.as_deref(), Some("orders"));
    bench.reply(conn, id, completed(&reference));
    bench.outcome(call);
}

// rule: L-2
#[test]
fn statements_that_must_stand_alone_are_refused_in_company() {
    let (mut bench, conn) = Bench::connected();
    for query in [
        "USE a; SHOW CLUSTER STATUS;",
        "SHOW CLUSTER STATUS; USE a",
        "LIST DOMAINS; LIST DOMAINS;",
        "CREATE SUBSCRIPTION s TO r; CREATE SCHEMA a (b I64);",
        "DELETE SUBSCRIPTION s; DELETE SUBSCRIPTION t;",
        "ATTACH DOMAIN CLOCK; SHOW CLUSTER STATUS;",
        "SHOW CLUSTER STATUS; DETACH DOMAIN CLOCK;",
        "UPLOAD RESOURCE r VERSION '/tmp/x'; SHOW CLUSTER STATUS;",
        "SHOW CLUSTER STATUS; BACKUP CLUSTER TO '/tmp/x';",
        "RESTORE CLUSTER FROM '/tmp/x'; SHOW CLUSTER STATUS;",
        "CREATE SCHEMA a (b I64); CREATE SCHEMA c (b I64);",
        "DESCRIBE TRANSACTION; SHOW TRANSACTIONS;",
        "BEGIN; DESCRIBE TRANSACTION;",
        "use a; show cluster status;",
    ] {
        let (call, _, _) = bench.execute(query);
        let outcome = bench.outcome(call);
        assert_eq!(outcome.disposition, Disposition::Failed, "{query}");
        assert!(outcome.decided_locally && !outcome.message.is_empty());
        bench.sends_nothing(conn);
    }
}

// rule: L-2
#[test]
fn statements_end_where_they_end() {
    let (mut bench, conn) = Bench::connected();
    for query in [
        "CREATE SCHEMA a (b I64)",
        ";; CREATE SCHEMA a (b I64) ;;",
        "SHOW CREATE RELAY 'a;b';",
        "SHOW CREATE RELAY 'it''s; one';",
        "SHOW CLUSTER STATUS; // and; nothing; more",
        "// USE a;\nSHOW CLUSTER STATUS;",
        "DESCRIBE TRANSACTION;",
        "SHOW TRANSACTIONS",
    ] {
        let (call, _, reference) = bench.execute(query);
        let (id, command) = bench.command(conn);
        assert_eq!(command.query, query);
        bench.reply(conn, id, completed(&reference));
        bench.outcome(call);
    }
    for query in ["use  other ;", "USE // which\n other;", "\n\tUSE other"] {
        let (call, ..) = bench.execute(query);
        assert!(bench.outcome(call).decided_locally, "{query}");
        bench.sends_nothing(conn);
    }
}

// rule: L-2, RP-4a
#[test]
fn list_domains_is_a_request_of_its_own() {
    for alternate in [false, true] {
        let (mut bench, conn) = Bench::connected();
        let (call, ..) = bench.execute("LIST DOMAINS;");
        let message = bench.sent(conn);
        assert_eq!(message.request, ClientRequest::ListDomainsRequest);
        let body = domain_list(&["first", "second"]);
        let message = reply_message(message.request_id, body);
        // Both places that start_version may have.
        let frame = if alternate {
            nervix_wire::encode_server_alternate_domain_info(&message)
        } else {
            nervix_wire::encode_server(&message)
        };
        bench.frame(conn, frame.unwrap());
        let outcome = bench.outcome(call);
        assert_eq!(outcome.disposition, Disposition::Completed);
        let lines: Vec<_> = outcome.message.lines().collect();
        assert_eq!(lines.len(), 2);
        for (line, name) in lines.iter().zip(["first", "second"]) {
            let lower = line.to_lowercase();
            assert!(lower.contains(name) && lower.contains("running"), "{line}");
            assert!(lower.contains("unpaced") && lower.contains('7'), "{line}");
        }
    }
}

// rule: B-1
#[test]
fn a_released_execution_may_still_be_running() {
    let (mut bench, conn) = Bench::connected();
    let (call, execution, reference) = bench.execute(CREATE);
    let (id, _) = bench.command(conn);
    bench.engine.release(execution);
    bench.reply(conn, id, completed(&reference));
    bench.outcome(call);
}

// rule: E-3, D-4
#[test]
fn an_outcome_that_comes_with_the_end_of_its_time_is_told() {
    for behind in [false, true] {
        let (mut bench, conn) = Bench::connected();
        let (call, execution, reference) = bench.execute("CREATE SCHEMA a (b I64);");
        let (id, _) = bench.command(conn);
        let again = behind.then(|| bench.call(Call::Execute(execution)));
        // The process stood still meanwhile.
        bench.now += RETRY_TIMEOUT;
        bench.reply(conn, id, completed(&reference));
        for call in [Some(call), again].into_iter().flatten() {
            assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
        }
    }
}

// rule: X-2, D-4
#[test]
fn a_command_that_waited_for_the_answer_to_an_earlier_one_says_so() {
    let mut bench = Bench::that_gives_up_after(2 * SEC);
    let conn = bench.connect();
    bench.begin(conn, "t");
    let (call, ..) = bench.execute("CREATE SCHEMA a (b I64);");
    bench.command(conn);
    bench.stop(call, Stop::Deadline);
    bench.error(call);
    let (call, ..) = bench.execute("CREATE SCHEMA c (b I64);");
    assert!(bench.quiet(conn, 2 * SEC).is_empty());
    let error = bench.fails(call, ErrorKind::Transport);
    assert!(error.unsent);
    assert!(error.message.contains("was not sent"), "{error:?}");
    assert!(error.message.contains("earlier requests"), "{error:?}");
}
