//! Requests, replies and cancellation: C-1 to C-10.

use nervix_engine::{Done, ErrorKind, Stop};
use nervix_wire::types::*;

use crate::bench::{Bench, REQUEST_TIMEOUT};
use crate::common::frames::*;
use crate::common::{MS, SEC};

fn page(result: Result<Done, nervix_engine::Error>) -> String {
    match result {
        Ok(Done::Suggestions(page)) => page.suggestions[0].value.clone(),
        other => panic!("{other:?}"),
    }
}

// rule: C-1, C-5
#[test]
fn identities_are_unique_within_a_session_and_never_zero() {
    let (mut bench, conn) = Bench::connected();
    let mut ids = Vec::new();
    for _ in 0..10 {
        let call = bench.suggest("S");
        let id = bench.sent(conn).request_id;
        bench.reply(conn, id, suggestions(&["x"]));
        bench.result(call).unwrap();
        ids.push(id);
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 10);
    assert!(!ids.contains(&0));
}

// rule: C-2, C-3
#[test]
fn replies_find_their_requests_in_any_order() {
    let (mut bench, conn) = Bench::connected();
    let calls: Vec<_> = ["a", "b", "c"].map(|input| bench.suggest(input)).into();
    let sent = bench.all_sent(conn);
    assert_eq!(sent.len(), 3, "suggestions do not wait for one another");
    for message in sent.iter().rev() {
        let ClientRequest::SuggestRequest(request) = &message.request else {
            panic!("{message:?}")
        };
        bench.reply(conn, message.request_id, suggestions(&[&request.input]));
    }
    let pages: Vec<_> = calls
        .into_iter()
        .map(|call| page(bench.result(call)))
        .collect();
    assert_eq!(pages, ["a", "b", "c"]);
}

// rule: C-3
#[test]
fn unsolicited_bodies_complete_no_request() {
    let (mut bench, conn) = Bench::connected();
    let call = bench.suggest("S");
    let id = bench.sent(conn).request_id;
    let bodies = [
        notice("hello"),
        leadership(leads_itself()),
        nervix_wire::encode_server(&domains(&["d", "e"])).unwrap(),
        rows("nobody", 1, 1, 0..1),
        delivery_lost("nobody", 1, 3),
        rows_skipped("nobody", 1, 3),
        ended("nobody", 1, SubscriptionEndReason::RelayRemoved),
        server(ServerBody::ClusterObserved(ClusterObserved {
            running_domains: 1,
            graph_nodes: 2,
            relays: 3,
        })),
        server(ServerBody::ProducerEnded(ProducerEnded {
            producer: id,
            reason: ProducerEndReason::DomainStopped,
            message: String::new(),
        })),
        server(ServerBody::DomainClockAttachmentEnded(
            DomainClockAttachmentEnded {
                domain: "d".into(),
                reason: DomainClockAttachmentEndReason::DomainRemoved,
            },
        )),
    ];
    for body in bodies {
        bench.frame(conn, body);
        assert!(bench.is_waiting(call) && !bench.is_reset(conn));
    }
    bench.reply(conn, id, suggestions(&["x"]));
    assert_eq!(page(bench.result(call)), "x");
    bench.no_event();
}

// rule: C-3
#[test]
fn a_reply_for_nobody_is_discarded() {
    let (mut bench, conn) = Bench::connected();
    let gone = bench.suggest("gone");
    let old = bench.sent(conn).request_id;
    bench.stop(gone, Stop::Deadline);
    bench.fails(gone, ErrorKind::Deadline);
    let call = bench.suggest("S");
    let mut id = bench.sent(conn).request_id;
    if id == old + 1 {
        // The first was the cancellation of what nobody waits for.
        let next = bench.all_sent(conn);
        id = next.last().map_or(id, |message| message.request_id);
    }
    bench.reply(conn, old, suggestions(&["late"]));
    bench.reply(conn, 4711, suggestions(&["stray"]));
    bench.reply(
        conn,
        4712,
        completed("018bcfe5-0000-7000-8000-000000000000"),
    );
    assert!(bench.is_waiting(call) && !bench.is_reset(conn));
    bench.reply(conn, id, suggestions(&["mine"]));
    assert_eq!(page(bench.result(call)), "mine");
    // Its own identity is worth nothing a second time.
    bench.reply(conn, id, suggestions(&["again"]));
    assert!(!bench.is_reset(conn));
}

// rule: C-4, D-6
#[test]
fn the_end_of_a_session_ends_every_request_on_it() {
    for how in 0..4 {
        let (mut bench, conn) = Bench::connected();
        let first = bench.suggest("a");
        let second = bench.suggest("b");
        let id = bench.sent(conn).request_id;
        match how {
            0 => bench.lose(conn),
            1 => bench.frame(conn, ending(SessionEndReason::ServerShuttingDown)),
            2 => bench.frame(
                conn,
                ending(SessionEndReason::ProtocolViolated(ProtocolViolated {
                    message: "no".into(),
                })),
            ),
            _ => bench.frame(
                conn,
                ending(SessionEndReason::LeaderRedirect(LeaderRedirect {
                    leader: None,
                })),
            ),
        }
        // No reply follows, and one that does belongs to nobody.
        bench.reply(conn, id, suggestions(&["x"]));
        for call in [first, second] {
            if !bench.is_waiting(call) {
                bench.fails(call, ErrorKind::Transport);
            }
        }
        let after = bench.suggest("c");
        let conn = bench.reconnected();
        for message in bench.all_sent(conn) {
            bench.reply(conn, message.request_id, suggestions(&["y"]));
        }
        bench.result(after).unwrap();
    }
}

// rule: C-6
#[test]
fn at_most_64_requests_are_in_flight() {
    let (mut bench, conn) = Bench::connected();
    let calls: Vec<_> = (0..150).map(|_| bench.suggest("S")).collect();
    let mut waiting: std::collections::VecDeque<_> = bench.all_sent(conn).into();
    assert_eq!(waiting.len(), 64);
    let mut answered = 0;
    while let Some(message) = waiting.pop_front() {
        bench.reply(conn, message.request_id, suggestions(&["x"]));
        answered += 1;
        waiting.extend(bench.all_sent(conn));
        assert!(waiting.len() <= 64);
    }
    assert_eq!(answered, 150);
    for call in calls {
        bench.result(call).unwrap();
    }
}

// rule: C-6, C-9
#[test]
fn cancellations_count_among_the_64() {
    let (mut bench, conn) = Bench::connected();
    let calls: Vec<_> = (0..64).map(|_| bench.suggest("S")).collect();
    // The watch refuses a sixty-fifth.
    for call in calls {
        bench.stop(call, Stop::Cancelled);
        bench.fails(call, ErrorKind::Cancelled);
    }
    let call = bench.suggest("T");
    for _ in 0..200 {
        for message in bench.all_sent(conn) {
            match message.request {
                ClientRequest::CancelRequest(cancel) => bench.reply(
                    conn,
                    message.request_id,
                    cancel_outcome(cancel.target_request_id, CancelState::NotInFlight),
                ),
                _ => bench.reply(conn, message.request_id, suggestions(&["x"])),
            }
        }
    }
    bench.result(call).unwrap();
}

// rule: C-6, C-8
#[test]
fn a_request_that_was_not_admitted_is_sent_again() {
    for refusal in [
        RequestRejection::TooManyRequestsInFlight,
        RequestRejection::ServerBusy,
    ] {
        let (mut bench, conn) = Bench::connected();
        let suggest = bench.suggest("S");
        let first = bench.sent(conn);
        bench.reply(conn, first.request_id, rejected(refusal));
        assert!(bench.is_waiting(suggest));
        bench.pass(2 * SEC);
        let second = bench.sent(conn);
        assert_eq!(second.request, first.request);
        assert_ne!(second.request_id, first.request_id);
        bench.reply(conn, second.request_id, suggestions(&["x"]));
        bench.result(suggest).unwrap();

        let (call, _, _) = bench.execute("CREATE SCHEMA a (b I64);");
        let (id, command) = bench.command(conn);
        bench.reply(conn, id, rejected(refusal));
        assert!(bench.is_waiting(call));
        bench.pass(2 * SEC);
        let (again, same) = bench.command(conn);
        assert_eq!(same, command);
        assert_ne!(again, id);
        bench.reply(conn, again, completed(&command.execution_reference));
        bench.outcome(call);
    }
}

// rule: C-8
#[test]
fn waits_between_refusals_grow() {
    let (mut bench, conn) = Bench::connected();
    bench.suggest("S");
    let mut times = Vec::new();
    for _ in 0..5 {
        let sent = loop {
            if let Some(message) = bench.all_sent(conn).pop() {
                break message;
            }
            bench.pass(10 * MS);
        };
        times.push(bench.now);
        bench.reply(
            conn,
            sent.request_id,
            rejected(RequestRejection::ServerBusy),
        );
    }
    let first = times[1] - times[0];
    let last = times[4] - times[3];
    assert!(first >= 20 * MS && last > first, "{times:?}");
}

// rule: C-8
#[test]
fn a_defect_in_a_request_is_rejected_and_never_sent_again() {
    for rejection in DEFECTS {
        let (mut bench, conn) = Bench::connected();
        let suggest = bench.suggest("S");
        let id = bench.sent(conn).request_id;
        bench.reply(conn, id, rejected(rejection));
        let error = bench.fails(suggest, ErrorKind::Rejected);
        assert!(error.message.contains("not now"), "{error}");
        let (call, _, reference) = bench.execute("CREATE SCHEMA a (b I64);");
        let (id, _) = bench.command(conn);
        bench.reply(conn, id, rejected(rejection));
        let error = bench.fails(call, ErrorKind::Rejected);
        assert_eq!(error.reference, Some(reference));
        bench.pass(30 * SEC);
        bench.sends_nothing(conn);
    }
}

// rule: C-8, C-7
#[test]
fn what_a_server_says_of_a_refusal_is_cut_and_the_advice_behind_it_is_not() {
    let endless = |rejection| {
        ReplyBody::RequestRejected(RequestRejected {
            rejection,
            field: Some("f".repeat(300_000)),
            message: "m".repeat(300_000),
        })
    };
    let (mut bench, conn) = Bench::connected();
    let (call, _, _) = bench.execute("CREATE SCHEMA a (b I64);");
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, endless(RequestRejection::InvalidRequest));
    let error = bench.fails(call, ErrorKind::Rejected);
    assert!(error.message.len() < 3000, "{}", error.message.len());
    assert!(error
        .message
        .contains("the request is not valid (field fff"));
    assert!(error.message.contains("): mmm"));

    let (call, _, _) = bench.execute("CREATE SCHEMA a (b I64);");
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, endless(RequestRejection::ReplyTooLarge));
    let error = bench.fails(call, ErrorKind::Uncertain);
    assert!(error.message.len() < 3000, "{}", error.message.len());
    assert!(error
        .message
        .ends_with("execute the same execution again to learn its outcome"));
}

// rule: C-8, E-3
#[test]
fn a_reply_too_large_leaves_a_command_uncertain() {
    let (mut bench, conn) = Bench::connected();
    let (call, execution, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    let (id, command) = bench.command(conn);
    bench.reply(conn, id, rejected(RequestRejection::ReplyTooLarge));
    let error = bench.fails(call, ErrorKind::Uncertain);
    assert_eq!(error.reference.as_deref(), Some(&*reference));
    let again = bench.call(nervix_engine::Call::Execute(execution));
    let (id, same) = bench.command(conn);
    assert_eq!(same, command);
    bench.reply(conn, id, completed(&reference));
    bench.outcome(again);

    let suggest = bench.suggest("S");
    let id = bench.sent(conn).request_id;
    bench.reply(conn, id, rejected(RequestRejection::ReplyTooLarge));
    bench.fails(suggest, ErrorKind::Rejected);
}

// rule: C-7
#[test]
fn unread_events_hold_no_reply_back() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let call = bench.suggest("S");
    let id = bench.sent(conn).request_id;
    for place in 0..10_000 {
        bench.frame(conn, rows("s", 1, 1, place..place + 1));
    }
    bench.reply(conn, id, suggestions(&["x"]));
    bench.result(call).unwrap();
    assert!(bench.events().len() <= 129, "a queue without a bound (C-7)");
}

// rule: C-9
#[test]
fn a_cancellation_is_a_request_of_its_own() {
    for order in 0..4 {
        let (mut bench, conn) = Bench::connected();
        let call = bench.suggest("S");
        let id = bench.sent(conn).request_id;
        bench.stop(call, Stop::Cancelled);
        bench.fails(call, ErrorKind::Cancelled);
        let cancel = bench.sent(conn);
        assert_ne!(cancel.request_id, id);
        assert_eq!(
            cancel.request,
            ClientRequest::CancelRequest(CancelRequest {
                target_request_id: id
            })
        );
        let outcome = cancel_outcome(id, CancelState::Requested);
        match order {
            0 => {
                bench.reply(conn, cancel.request_id, outcome);
                bench.reply(conn, id, cancelled(CancellationStage::BeforeAdmission));
            }
            1 => {
                bench.reply(conn, id, cancelled(CancellationStage::AfterAdmission));
                bench.reply(conn, cancel.request_id, outcome);
            }
            2 => {
                bench.reply(conn, cancel.request_id, outcome);
                bench.reply(conn, id, suggestions(&["x"]));
            }
            _ => {
                bench.reply(conn, id, suggestions(&["x"]));
                bench.reply(
                    conn,
                    cancel.request_id,
                    cancel_outcome(id, CancelState::NotInFlight),
                );
            }
        }
        assert!(!bench.is_reset(conn));
        assert!(bench.watch.conns[&conn].flights.is_empty());
        // The session goes on.
        let call = bench.suggest("T");
        let id = bench.sent(conn).request_id;
        bench.reply(conn, id, suggestions(&["y"]));
        bench.result(call).unwrap();
    }
}

// rule: C-9
#[test]
fn a_cancellation_is_answered_by_its_outcome_alone() {
    let (mut bench, conn) = Bench::connected();
    let call = bench.suggest("S");
    bench.sent(conn);
    bench.stop(call, Stop::Cancelled);
    let cancel = bench.sent(conn);
    // Another kind of reply under the cancellation's identity breaks the protocol.
    bench.reply(conn, cancel.request_id, suggestions(&["x"]));
    assert!(bench.is_reset(conn));
}

// rule: C-9
#[test]
fn a_command_the_server_cancelled_is_told_as_cancelled() {
    let (mut bench, conn) = Bench::connected();
    let (call, execution, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    let (id, command) = bench.command(conn);
    bench.reply(conn, id, cancelled(CancellationStage::AfterAdmission));
    let error = bench.error(call);
    assert!(
        matches!(error.kind, ErrorKind::Cancelled | ErrorKind::Uncertain),
        "{error:?}"
    );
    assert_eq!(error.reference.as_deref(), Some(&*reference));
    // Its effect may go on, so it is recovered under its own reference.
    let call = bench.call(nervix_engine::Call::Execute(execution));
    let (id, same) = bench.command(conn);
    assert_eq!(same, command);
    bench.reply(conn, id, completed(&reference));
    bench.outcome(call);
}

// rule: C-10, C-3, E-3, B-1
#[test]
fn a_command_nobody_waits_for_is_recovered_by_its_reference() {
    for late in [true, false] {
        let (mut bench, conn) = Bench::connected();
        let (call, execution, reference) = bench.execute("CREATE SCHEMA a (b I64);");
        let (id, command) = bench.command(conn);
        bench.stop(call, Stop::Cancelled);
        let error = bench.fails(call, ErrorKind::Cancelled);
        assert_eq!(error.reference.as_deref(), Some(&*reference));
        for message in bench.all_sent(conn) {
            let ClientRequest::CancelRequest(cancel) = message.request else {
                panic!("{message:?}")
            };
            assert_eq!(cancel.target_request_id, id);
            bench.reply(
                conn,
                message.request_id,
                cancel_outcome(id, CancelState::Requested),
            );
        }
        if late {
            bench.reply(conn, id, cancelled(CancellationStage::AfterAdmission));
        }
        let again = bench.call(nervix_engine::Call::Execute(execution));
        if !late {
            // The reply to the abandoned request does not answer the new one with a cancellation.
            bench.reply(conn, id, cancelled(CancellationStage::AfterAdmission));
        }
        assert!(
            bench.is_waiting(again),
            "late {late}: {:?}",
            bench.result(again)
        );
        bench.pass(SEC);
        let (new, same) = bench.command(conn);
        assert_ne!(new, id);
        assert_eq!(same, command);
        bench.reply(
            conn,
            new,
            outcome(
                &reference,
                OutcomeOrigin::Recovered,
                CommandDisposition::CommandCompleted(CommandCompleted {
                    already_existed: false,
                }),
                "done",
            ),
        );
        assert_eq!(bench.outcome(again).message, "done");
    }
}

// rule: C-3, F-8
#[test]
fn a_reply_of_another_kind_breaks_the_protocol() {
    let (mut bench, conn) = Bench::connected();
    let call = bench.suggest("S");
    let id = bench.sent(conn).request_id;
    bench.reply(conn, id, domain_list(&["d"]));
    bench.fails(call, ErrorKind::Protocol);
    assert!(bench.is_reset(conn));

    let conn = {
        bench.suggest("T");
        bench.reconnected()
    };
    let (call, _, _) = bench.execute("LIST DOMAINS;");
    let id = bench.all_sent(conn).last().unwrap().request_id;
    bench.reply(conn, id, suggestions(&["x"]));
    assert!(bench.is_reset(conn));
    assert!(
        bench.is_waiting(call),
        "it is asked again on the next session"
    );
}

/// Replies to the requests that no call of a host makes. That none of them is ever sent, the watch sees to.
fn never_asked_for() -> Vec<ReplyBody> {
    let choice = Choice {
        value: ChoiceValue::LatestResourceVersion,
        presentation: ChoicePresentation {
            label: "the newest".into(),
            detail: None,
            group: None,
        },
    };
    let statuses = ChoiceStatus::ALL.iter().map(|status| {
        ReplyBody::ChoiceOutcome(ChoiceOutcome {
            status: *status,
            choices: vec![choice.clone()],
            page_cursor: None,
        })
    });
    let rejected = InspectionRejected {
        rejection: InspectionRejection::TransactionNotFound,
        message: "no".into(),
    };
    let selected = DomainNotFound { domain: "d".into() };
    statuses
        .chain([
            ReplyBody::InspectionOutcome(InspectionOutcome {
                disposition: InspectionDisposition::InspectionRejected(rejected),
            }),
            ReplyBody::DomainSelectionOutcome(DomainSelectionOutcome {
                selection: DomainSelection::DomainNotFound(selected),
            }),
        ])
        .collect()
}

// rule, CF-1, C-3, F-8
#[test]
fn what_nobody_asked_for_answers_nobody_and_no_other_request() {
    for body in never_asked_for() {
        let (mut bench, conn) = Bench::connected();
        let call = bench.suggest("S");
        let id = bench.sent(conn).request_id;
        bench.reply(conn, id + 1, body.clone());
        assert!(bench.is_waiting(call) && !bench.is_reset(conn));
        bench.no_event();
        // Under the identity of another request it breaks the protocol.
        bench.reply(conn, id, body);
        bench.fails(call, ErrorKind::Protocol);
        assert!(bench.is_reset(conn));
    }
}

// rule: T-8, C-4
#[test]
fn a_request_that_outlives_its_timeout_ends_its_session() {
    let (mut bench, conn) = Bench::connected();
    let call = bench.suggest("S");
    bench.sent(conn);
    bench.pass(REQUEST_TIMEOUT - 1);
    assert!(!bench.is_reset(conn));
    // Other traffic is no reply.
    bench.frame(conn, notice("still here"));
    bench.pass(2 * MS);
    assert!(bench.is_reset(conn));
    if !bench.is_waiting(call) {
        bench.fails(call, ErrorKind::Transport);
    }
}
