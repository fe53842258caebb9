//! Commands that are prepared with more than their text, and what is told of a transaction that ended meanwhile: E-2, E-3,
//!

use nervix_engine::{Call, Cause, Disposition, ErrorKind, ExecutionId, Given, Stop};
use nervix_wire::types::*;

use crate::bench::Bench;
use crate::common::frames::*;
use crate::common::watch::GivenParts;

const REFERENCE: &str = "01890a5d-ac96-774b-bcce-b302099a8057";
const OTHER: &str = "01890a5d-ac96-774b-bcce-b302099a8058";

fn prepare(bench: &mut Bench, query: &str, given: Given) -> Result<ExecutionId, ErrorKind> {
    let now = bench.time();
    let parts = GivenParts {
        position: given.position.is_some(),
        preview: given.preview.is_some(),
    };
    let entropy = [bench.watch.given.len() as u8; 10];
    let (id, reference) = bench
        .engine
        .prepare_with(now, query, entropy, given)
        .map_err(|error| error.kind)?;
    bench.watch.given.insert(reference.to_string(), parts);
    Ok(id)
}

// rule: E-2, E-3
#[test]
fn a_given_reference_and_position_are_sent_and_repeated_as_they_are() {
    let (mut bench, conn) = Bench::connected();
    let given = Given {
        reference: Some(REFERENCE.into()),
        position: Some(4),
        ..Given::default()
    };
    let execution = prepare(&mut bench, "STOP;", given).unwrap();
    let call = bench.call(Call::Execute(execution));
    let (_, first) = bench.command(conn);
    assert_eq!(first.execution_reference, REFERENCE);
    assert_eq!(first.expected_transaction_position, Some(4));
    bench.lose(conn);
    let conn = bench.reconnected();
    let (request, second) = bench.command(conn);
    assert_eq!(second, first);
    bench.reply(conn, request, completed(REFERENCE));
    assert_eq!(bench.outcome(call).reference.as_deref(), Some(REFERENCE));
}

// rule
#[test]
fn a_given_preview_takes_the_place_of_the_newest_and_leaves_the_position() {
    let (mut bench, conn) = Bench::connected();
    bench.begin(conn, "t");
    bench.append(conn, "t", 1);
    bench.append(conn, "t", 2);
    let reviewed = preview("t", 1, 9);
    let given = Given {
        preview: Some(reviewed.clone()),
        ..Given::default()
    };
    let execution = prepare(&mut bench, "COMMIT;", given).unwrap();
    bench.call(Call::Execute(execution));
    let (_, commit) = bench.command(conn);
    assert_eq!(commit.expected_preview, Some(reviewed));
    assert_eq!(commit.expected_transaction_position, Some(2));
}

// rule: E-1, X-4
#[test]
fn what_cannot_be_given_is_refused() {
    let (mut bench, conn) = Bench::connected();
    for reference in [
        "",
        "mine",
        "01890a5d-ac96-474b-bcce-b302099a8057",
        "01890A5D-AC96-774B-BCCE-B302099A8057",
        "01890a5d-ac96-774b-ccce-b302099a8057",
    ] {
        let given = Given {
            reference: Some(reference.into()),
            ..Given::default()
        };
        assert_eq!(
            prepare(&mut bench, "STOP;", given),
            Err(ErrorKind::InvalidArgument),
            "{reference}"
        );
    }
    let given = Given {
        preview: Some(preview("t", 1, 1)),
        ..Given::default()
    };
    assert_eq!(
        prepare(&mut bench, "REVERT;", given),
        Err(ErrorKind::InvalidArgument)
    );
    bench.sends_nothing(conn);
}

// rule
#[test]
fn outcomes_after_the_end_of_a_transaction_say_how_it_ended() {
    let (mut bench, conn) = Bench::connected();
    bench.begin(conn, "t");
    bench.lose(conn);
    let (call, _, _) = bench.execute("STOP;");
    let conn = bench.reconnected();
    let (request, _) = bench.transaction_attach(conn);
    let expired = transaction_in("t", TransactionState::TransactionExpired, 0);
    bench.reply(conn, request, transaction_finished(expired.clone()));
    // What it was decided to be is not known before the attach was answered, and nothing of it was sent.
    let outcome = bench.outcome(call);
    assert_eq!(outcome.disposition, Disposition::Failed);
    assert!(outcome.decided_locally);
    assert_eq!(outcome.transaction, Some(expired.clone()));

    let (call, _, _) = bench.execute("REVERT;");
    assert_eq!(bench.outcome(call).transaction, Some(expired));
    let (call, _, reference) = bench.execute("STOP;");
    let (request, command) = bench.command(conn);
    assert_eq!(command.expected_transaction_position, None);
    bench.reply(conn, request, completed(&reference));
    assert_eq!(bench.outcome(call).transaction, None);
}

// rule: X-6, E-6
#[test]
fn an_append_that_was_never_admitted_fails_with_the_end_of_its_transaction() {
    let (mut bench, conn) = Bench::connected();
    bench.begin(conn, "t");
    let (call, _, reference) = bench.execute("STOP;");
    let (_, append) = bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    let (request, _) = bench.transaction_attach(conn);
    let expired = transaction_in("t", TransactionState::TransactionExpired, 0);
    bench.reply(conn, request, transaction_finished(expired.clone()));
    let (request, again) = bench.command(conn);
    assert_eq!(again, append);
    bench.reply(
        conn,
        request,
        command_failed(&reference, "it was never admitted"),
    );
    let outcome = bench.outcome(call);
    assert_eq!(outcome.disposition, Disposition::Failed);
    assert_eq!(outcome.transaction, Some(expired));
}

// rule: L-1
#[test]
fn a_command_of_a_given_domain_leaves_the_selected_one() {
    let (mut bench, conn) = Bench::connected();
    let given = Given {
        domain: Some("annex".into()),
        ..Given::default()
    };
    let there = prepare(&mut bench, "STOP;", given).unwrap();
    let given = Given {
        reference: Some(REFERENCE.into()),
        ..Given::default()
    };
    let here = prepare(&mut bench, "STOP;", given).unwrap();
    bench.call(Call::Execute(there));
    let (request, command) = bench.command(conn);
    assert_eq!(command.domain.as_deref(), Some("annex"));
    bench.reply(conn, request, completed(&command.execution_reference));
    bench.call(Call::Execute(here));
    assert_ne!(bench.command(conn).1.domain.as_deref(), Some("annex"));
}

// rule: X-2, D-1
#[test]
fn what_was_prepared_for_a_transaction_is_never_sent_outside_of_it() {
    let (mut bench, mut conn) = Bench::connected();
    for (number, ends) in ["COMMIT;", "REVERT;"].into_iter().enumerate() {
        let id = format!("t{number}");
        bench.begin(conn, &id);
        let given = || Given {
            transaction: Some(id.clone()),
            ..Given::default()
        };
        let late: Vec<ExecutionId> = ["STOP;", "COMMIT;", "REVERT;"]
            .iter()
            .map(|query| prepare(&mut bench, query, given()).unwrap())
            .collect();
        let appended_one = prepare(&mut bench, "STOP;", given()).unwrap();
        let call = bench.call(Call::Execute(appended_one));
        let (request, command) = bench.command(conn);
        assert_eq!(command.expected_transaction_position, Some(0));
        let reply = appended(&command.execution_reference, &id, 1, 1);
        bench.reply(conn, request, reply);
        bench.outcome(call);
        let (call, ..) = bench.execute(ends);
        let (request, command) = bench.command(conn);
        // One waits behind the end of the transaction, the others come later.
        let behind = bench.call(Call::Execute(late[0]));
        bench.reply(conn, request, completed(&command.execution_reference));
        bench.outcome(call);
        let mut refused = vec![behind];
        refused.extend(late.iter().map(|one| bench.call(Call::Execute(*one))));
        bench.begin(conn, "another");
        refused.extend(late.iter().map(|one| bench.call(Call::Execute(*one))));
        for call in refused {
            let outcome = bench.outcome(call);
            assert_eq!(outcome.disposition, Disposition::Failed);
            assert!(outcome.decided_locally);
            assert!(outcome.message.contains(&id), "{}", outcome.message);
        }
        bench.sends_nothing(conn);
        let reading = prepare(&mut bench, "SHOW SCHEMAS;", given()).unwrap();
        bench.call(Call::Execute(reading));
        bench.command(conn);
        (bench, conn) = Bench::connected();
    }
}

// rule
#[test]
fn what_was_sent_into_a_transaction_is_recovered_when_that_is_over() {
    let (mut bench, conn) = Bench::connected();
    bench.begin(conn, "t");
    let given = Given {
        transaction: Some("t".into()),
        ..Given::default()
    };
    let execution = prepare(&mut bench, "STOP;", given).unwrap();
    let call = bench.call(Call::Execute(execution));
    let (_, first) = bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    let (attach, _) = bench.transaction_attach(conn);
    let over = transaction_in("t", TransactionState::TransactionReverted, 1);
    bench.reply(conn, attach, transaction_finished(over));
    let (request, again) = bench.command(conn);
    assert_eq!(again, first);
    bench.reply(
        conn,
        request,
        appended(&again.execution_reference, "t", 1, 1),
    );
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
}

// rule: L-1, L-3, X-1
#[test]
fn the_domain_selected_before_a_transaction_is_selected_again_after_it() {
    for ends in ["COMMIT;", "REVERT;", "attach"] {
        let (mut bench, mut conn) = Bench::connected();
        let given = Given {
            domain: Some("x".into()),
            ..Given::default()
        };
        let begin = prepare(&mut bench, "BEGIN;", given).unwrap();
        let call = bench.call(Call::Execute(begin));
        let (request, command) = bench.command(conn);
        let mut status = transaction("t", 0);
        status.domain = "x".into();
        let reply = bound(completed(&command.execution_reference), status);
        bench.reply(conn, request, reply);
        bench.outcome(call);
        let (inside, _) = bench.prepare("STOP;");
        if ends == "attach" {
            bench.lose(conn);
            let call = bench.call(Call::Execute(inside));
            conn = bench.reconnected();
            let (attach, _) = bench.transaction_attach(conn);
            let mut over = transaction_in("t", TransactionState::TransactionExpired, 0);
            over.domain = "x".into();
            bench.reply(conn, attach, transaction_finished(over));
            assert_eq!(bench.outcome(call).disposition, Disposition::Failed);
            let (call, ..) = bench.execute("REVERT;");
            bench.outcome(call);
        } else {
            let (call, ..) = bench.execute(ends);
            let (request, command) = bench.command(conn);
            assert_eq!(command.domain.as_deref(), Some("x"));
            bench.reply(conn, request, completed(&command.execution_reference));
            bench.outcome(call);
        }
        bench.execute("CREATE SCHEMA a (b I64);");
        let (_, command) = bench.command(conn);
        assert_eq!(command.domain.as_deref(), Some("d"), "after {ends}");
    }
}

// rule: X-2, L-3
#[test]
fn what_is_no_part_of_a_transaction_is_never_sent_into_one() {
    let (mut bench, conn) = Bench::connected();
    let outside = |bench: &mut Bench, query: &str| {
        let (execution, reference) = bench.prepare(query);
        let call = bench.call(Call::ExecuteOutside(execution));
        (execution, call, reference)
    };
    let (_, call, reference) = outside(&mut bench, "STOP;");
    let (request, _) = bench.command(conn);
    bench.reply(conn, request, completed(&reference));
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
    // One waits behind the BEGIN of another thread, the other comes when that is answered.
    let (begin, _, begun) = bench.execute("BEGIN;");
    let (request, _) = bench.command(conn);
    let (first, behind, _) = outside(&mut bench, "STOP;");
    bench.reply(conn, request, bound(completed(&begun), transaction("t", 0)));
    bench.outcome(begin);
    let (second, late, _) = outside(&mut bench, "STOP;");
    for call in [behind, late] {
        let error = bench.fails(call, ErrorKind::Rejected);
        assert!(error.unsent, "{error:?}");
        assert_eq!(error.held.as_deref(), Some("t"));
        assert!(error.message.contains("transaction t"));
    }
    bench.sends_nothing(conn);
    // A read is no part of any.
    let (_, call, reference) = outside(&mut bench, "SHOW SCHEMAS;");
    let (request, _) = bench.command(conn);
    bench.reply(conn, request, completed(&reference));
    bench.outcome(call);
    // The host may have one become part of it after all, and runs the other one later.
    let call = bench.call(Call::Execute(first));
    let (request, command) = bench.command(conn);
    assert_eq!(command.expected_transaction_position, Some(0));
    let reply = appended(&command.execution_reference, "t", 1, 1);
    bench.reply(conn, request, reply);
    bench.outcome(call);
    let (call, _, reference) = bench.execute("COMMIT;");
    let (request, _) = bench.command(conn);
    bench.reply(conn, request, completed(&reference));
    bench.outcome(call);
    let call = bench.call(Call::ExecuteOutside(second));
    let (request, command) = bench.command(conn);
    assert_eq!(command.expected_transaction_position, None);
    bench.reply(conn, request, completed(&command.execution_reference));
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
}

// rule: D-4, E-3
#[test]
fn an_error_says_whether_anything_of_its_command_was_ever_sent() {
    let (mut bench, conn) = Bench::connected();
    bench.lose(conn);
    let (execution, _) = bench.prepare("STOP;");
    let call = bench.call(Call::Execute(execution));
    bench.stop(call, Stop::Deadline);
    assert!(bench.fails(call, ErrorKind::Deadline).unsent);
    let call = bench.call(Call::Execute(execution));
    let conn = bench.reconnected();
    bench.command(conn);
    bench.stop(call, Stop::Deadline);
    assert!(!bench.fails(call, ErrorKind::Deadline).unsent);
    bench.lose(conn);
    let call = bench.call(Call::Execute(execution));
    bench.stop(call, Stop::Cancelled);
    assert!(
        !bench.fails(call, ErrorKind::Cancelled).unsent,
        "it was sent before"
    );
}

// rule: E-2, X-2
#[test]
fn a_given_reference_is_sent_with_what_it_was_given_and_nothing_else() {
    let (mut bench, conn) = Bench::connected();
    let given = |position| Given {
        reference: Some(REFERENCE.into()),
        position,
        ..Given::default()
    };
    bench.begin(conn, "t");
    bench.append(conn, "t", 1);
    // It was sent outside of any transaction: it is no part of this one, and what became of it is not known.
    for query in ["STOP;", "COMMIT;", "REVERT;", "BEGIN;"] {
        let execution = prepare(&mut bench, query, given(None)).unwrap();
        let call = bench.call(Call::Execute(execution));
        let error = bench.fails(call, ErrorKind::Uncertain);
        assert!(error.message.contains("may have happened"), "{error:?}");
        assert!(
            error
                .message
                .contains("not known to belong to transaction t"),
            "{error:?}"
        );
        assert!(!error.unsent);
        bench.sends_nothing(conn);
    }
    // Which transaction a position is in, nobody can say.
    let execution = prepare(&mut bench, "STOP;", given(Some(1))).unwrap();
    let call = bench.call(Call::Execute(execution));
    bench.fails(call, ErrorKind::Uncertain);
    bench.sends_nothing(conn);
    // Of a commit the preview says it.
    for (of, sent) in [("u", false), ("t", true)] {
        let given = Given {
            preview: Some(preview(of, 1, 1)),
            ..given(Some(1))
        };
        let commit = prepare(&mut bench, "COMMIT;", given).unwrap();
        let call = bench.call(Call::Execute(commit));
        if !sent {
            bench.fails(call, ErrorKind::Uncertain);
            bench.sends_nothing(conn);
            continue;
        }
        let (request, command) = bench.command(conn);
        assert_eq!(command.expected_transaction_position, Some(1));
        assert_eq!(command.expected_preview, Some(preview(of, 1, 1)));
        let status = transaction_in("t", TransactionState::TransactionCommitted, 1);
        bench.reply(conn, request, bound(completed(REFERENCE), status));
        bench.outcome(call);
    }
    // Outside of one it goes as it did.
    let other = Given {
        reference: Some(OTHER.into()),
        ..Given::default()
    };
    let execution = prepare(&mut bench, "STOP;", other).unwrap();
    bench.call(Call::Execute(execution));
    let (_, sent) = bench.command(conn);
    assert_eq!(sent.expected_transaction_position, None);
}

// rule: E-2, N-2
#[test]
fn a_given_command_that_was_not_sent_may_have_happened_all_the_same() {
    let (mut bench, conn) = Bench::connected();
    bench.lose(conn);
    let given = Given {
        reference: Some(REFERENCE.into()),
        ..Given::default()
    };
    let execution = prepare(&mut bench, "STOP;", given).unwrap();
    let call = bench.call(Call::Execute(execution));
    bench.stop(call, Stop::Deadline);
    let error = bench.fails(call, ErrorKind::Deadline);
    assert!(error.message.contains("may have happened"), "{error:?}");
    assert!(!error.unsent);
}

// rule: E-2
#[test]
fn it_is_told_what_a_command_was_first_sent_with() {
    let (mut bench, conn) = Bench::connected();
    bench.begin(conn, "t");
    bench.append(conn, "t", 1);
    let (execution, _) = bench.prepare("COMMIT;");
    let told = bench.engine.sent(execution).unwrap();
    assert_eq!(told.get(), None);
    bench.call(Call::Execute(execution));
    let (_, commit) = bench.command(conn);
    let sent = told.get().unwrap();
    assert_eq!(sent.position, commit.expected_transaction_position);
    assert_eq!(sent.preview, commit.expected_preview);
    assert!(sent.preview.is_some());
    // One that is given its reference was sent with what it is given.
    let given = Given {
        reference: Some(REFERENCE.into()),
        position: Some(4),
        ..Given::default()
    };
    let execution = prepare(&mut bench, "STOP;", given).unwrap();
    let told = bench.engine.sent(execution).unwrap();
    assert_eq!(told.get().map(|sent| sent.position), Some(Some(4)));
}

// rule: X-4, E-7
#[test]
fn a_commit_behind_other_statements_expects_no_preview_that_is_older() {
    for (query, expects) in [
        ("COMMIT;", true),
        ("COMMIT ; // done", true),
        ("STOP; COMMIT;", false),
    ] {
        let (mut bench, conn) = Bench::connected();
        bench.begin(conn, "t");
        bench.append(conn, "t", 1);
        bench.execute(query);
        let (_, commit) = bench.command(conn);
        assert_eq!(commit.expected_transaction_position, Some(1));
        assert_eq!(commit.expected_preview.is_some(), expects, "{query}");
    }
}

// rule: T-6
#[test]
fn a_command_whose_frame_was_found_malformed_says_so_and_waits_for_the_host() {
    for (code, condemned) in [(11, true), (13, true), (14, false)] {
        let (mut bench, conn) = Bench::connected();
        let (call, execution, reference) = bench.execute("STOP;");
        bench.command(conn);
        let message = "no good".into();
        bench.close(conn, Cause::Status { code, message });
        if condemned {
            let error = bench.fails(call, ErrorKind::Uncertain);
            assert!(error.condemned);
            bench.call(Call::Execute(execution));
        }
        let conn = bench.reconnected();
        let (_, command) = bench.command(conn);
        assert_eq!(command.execution_reference, reference);
    }
}

// rule: E-2, L-2
#[test]
fn statements_that_went_together_in_a_transaction_are_repeated_together_outside_of_it() {
    let (mut bench, conn) = Bench::connected();
    for (position, sent) in [(None, false), (Some(2), true)] {
        let given = Given {
            reference: Some(if sent { REFERENCE } else { OTHER }.into()),
            position,
            ..Given::default()
        };
        let execution = prepare(&mut bench, "STOP; COMMIT;", given).unwrap();
        let call = bench.call(Call::Execute(execution));
        if sent {
            let (_, command) = bench.command(conn);
            assert_eq!(command.expected_transaction_position, position);
        } else {
            let outcome = bench.outcome(call);
            assert!(outcome.decided_locally);
            bench.sends_nothing(conn);
        }
    }
}

// rule: X-6, E-2, X-2
#[test]
fn what_was_part_of_a_transaction_that_was_recovered_is_recovered_in_it() {
    let (mut bench, conn) = Bench::connected();
    let given = |reference: &str, position| Given {
        reference: Some(reference.into()),
        position,
        ..Given::default()
    };
    let begin = prepare(&mut bench, "BEGIN;", given(OTHER, None)).unwrap();
    let call = bench.call(Call::Execute(begin));
    let (request, _) = bench.command(conn);
    bench.reply(conn, request, bound(completed(OTHER), transaction("t", 0)));
    bench.outcome(call);
    let append = prepare(&mut bench, "STOP;", given(REFERENCE, Some(0))).unwrap();
    bench.call(Call::Execute(append));
    let (_, command) = bench.command(conn);
    assert_eq!(command.execution_reference, REFERENCE);
    assert_eq!(command.expected_transaction_position, Some(0));
}

// rule: X-6, E-2
#[test]
fn what_this_session_sent_in_a_transaction_may_be_given_again() {
    let (mut bench, conn) = Bench::connected();
    bench.begin(conn, "t");
    let (first, _, reference) = bench.execute("STOP;");
    bench.command(conn);
    bench.stop(first, Stop::Deadline);
    bench.fails(first, ErrorKind::Deadline);
    let given = Given {
        reference: Some(reference.clone()),
        position: Some(0),
        ..Given::default()
    };
    let again = prepare(&mut bench, "STOP;", given).unwrap();
    let call = bench.call(Call::Execute(again));
    bench.lose(conn);
    let conn = bench.reconnected();
    let (request, _) = bench.transaction_attach(conn);
    bench.reply(conn, request, transaction_attached(transaction("t", 0)));
    let (_, command) = bench.command(conn);
    assert_eq!(command.execution_reference, reference);
    assert!(bench.is_waiting(call));
}
