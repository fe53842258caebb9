//! Subscriptions and their rows: S-1 to S-9, R-1, R-2, B-7.

use nervix_engine::{Call, ConnId, Disposition, Done, ErrorKind, Event, EventKind, Stop};
use nervix_wire::types::*;
use nervix_wire::{encode_rows, encode_server_reply_parts, CellRef, Part};

use crate::bench::{Bench, REQUEST_TIMEOUT};
use crate::common::frames::*;
use crate::common::{MS, SEC};

fn places(event: &Event) -> Vec<u64> {
    let EventKind::Rows(rows) = &event.kind else {
        panic!("{event:?}")
    };
    (0..rows.row_count())
        .map(|row| match rows.cell(Part::Rows, row, 1) {
            Some(CellRef::U64(value)) => value,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn is_gap(event: &Event) -> bool {
    matches!(
        event.kind,
        EventKind::Interrupted { .. }
            | EventKind::Overflow { .. }
            | EventKind::RestorationFailed { .. }
    )
}

/// Loses the session and gets the next.
fn again(bench: &mut Bench, conn: nervix_engine::ConnId) -> nervix_engine::ConnId {
    bench.lose(conn);
    let call = bench.call(Call::NextEvent);
    let event = match bench.result(call) {
        Ok(Done::Event(event)) => event,
        other => panic!("{other:?}"),
    };
    assert!(matches!(event.kind, EventKind::Interrupted { .. }));
    let reader = bench.call(Call::NextEvent);
    let conn = bench.reconnected();
    if bench.is_waiting(reader) {
        bench.stop(reader, Stop::Cancelled);
    }
    let _ = bench.result(reader);
    conn
}

// rule: S-1
#[test]
fn a_subscription_is_asked_for_with_its_own_request() {
    let (mut bench, conn) = Bench::connected();
    let statement = "CREATE SUBSCRIPTION s TO r DROPPING WHERE a = 'x;y'";
    let (call, _, _) = bench.execute(&format!(" {statement} ; "));
    let (id, subscribe) = bench.subscribe(conn);
    assert_eq!(subscribe.domain, "d");
    assert_eq!(subscribe.subscription_type, SubscriptionType::Row);
    let sent = subscribe.statement.trim().trim_end_matches(';').trim();
    assert_eq!(sent, statement, "exactly that statement");
    bench.reply(conn, id, opened("s", 4, numbers()));
    let outcome = bench.outcome(call);
    assert_eq!(outcome.disposition, Disposition::Completed);
    let opened = outcome.subscription.as_ref().unwrap();
    assert_eq!((&*opened.name, opened.generation), ("s", 4));
    assert_eq!(*opened.schema, numbers());
}

// rule: S-1
#[test]
fn a_subscription_needs_a_domain() {
    let mut bench = Bench::with(&["http://a:1"], None);
    let conn = bench.connect();
    let (call, ..) = bench.execute("CREATE SUBSCRIPTION s TO r;");
    assert_eq!(bench.outcome(call).disposition, Disposition::Failed);
    bench.sends_nothing(conn);
}

// rule: S-1
#[test]
fn a_refused_opening_is_a_failed_outcome() {
    let (mut bench, conn) = Bench::connected();
    let (call, ..) = bench.execute("CREATE SUBSCRIPTION s TO r;");
    let (id, _) = bench.subscribe(conn);
    bench.reply(conn, id, not_opened("there is no relay r"));
    let outcome = bench.outcome(call);
    assert_eq!(outcome.disposition, Disposition::Failed);
    assert_eq!(outcome.message, "there is no relay r");
    assert_eq!(outcome.diagnostics.len(), 1);
    assert!(outcome.subscription.is_none());
    // It is no subscription: nothing is opened on the next session.
    bench.lose(conn);
    bench.suggest("S");
    let conn = bench.reconnected();
    for message in bench.all_sent(conn) {
        assert!(!matches!(
            message.request,
            ClientRequest::SubscribeRequest(_)
        ));
    }
}

// rule: S-2, R-1
#[test]
fn rows_that_follow_the_reply_at_once_are_read() {
    let (mut bench, conn) = Bench::connected();
    // Rows before the schema belong to nobody.
    bench.frame(conn, rows("s", 3, 1, 0..1));
    let (call, ..) = bench.execute("CREATE SUBSCRIPTION s TO r;");
    let (id, _) = bench.subscribe(conn);
    bench.frame(conn, rows("s", 3, 1, 1..2));
    bench.reply(conn, id, opened("s", 3, numbers()));
    bench.frame(conn, rows("s", 3, 1, 2..4));
    bench.outcome(call);
    assert!(!bench.is_reset(conn));
    let event = bench.event();
    assert_eq!((&*event.name, event.generation), ("s", 3));
    assert_eq!(places(&event), [2, 3]);
    bench.no_event();
}

// rule: S-3
#[test]
fn frames_of_handles_nobody_holds_are_ignored() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 5);
    for (name, generation) in [("s", 4), ("s", 6), ("t", 5), ("S", 5), ("", 5)] {
        bench.frame(conn, rows(name, generation, 1, 0..1));
        bench.frame(conn, delivery_lost(name, generation, 1));
        bench.frame(conn, rows_skipped(name, generation, 1));
        bench.frame(
            conn,
            ended(name, generation, SubscriptionEndReason::RelayChanged),
        );
    }
    assert!(!bench.is_reset(conn));
    bench.frame(conn, rows("s", 5, 1, 7..8));
    assert_eq!(places(&bench.event()), [7]);
    bench.no_event();
}

// rule: S-3
#[test]
fn the_end_of_an_earlier_generation_may_come_after_a_later_opening() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let (call, ..) = bench.execute("DELETE SUBSCRIPTION s;");
    let (id, name) = bench.unsubscribe(conn);
    assert_eq!(name, "s");
    bench.reply(conn, id, deleted("s", 1));
    bench.outcome(call);
    bench.subscription(conn, "s", 2);
    bench.frame(conn, ended("s", 1, SubscriptionEndReason::RelayChanged));
    bench.frame(conn, rows("s", 2, 1, 0..1));
    let event = bench.event();
    assert_eq!((places(&event), event.generation), (vec![0], 2));
    bench.no_event();
    // The later generation is kept.
    let conn = again(&mut bench, conn);
    bench.subscribe(conn);
}

// rule: S-4, B-7
#[test]
fn the_end_is_the_last_of_a_generation_and_is_not_opened_again() {
    for reason in [
        SubscriptionEndReason::RelayChanged,
        SubscriptionEndReason::RelayRemoved,
    ] {
        let (mut bench, conn) = Bench::connected();
        bench.subscription(conn, "s", 1);
        bench.frame(conn, rows("s", 1, 1, 0..1));
        bench.frame(conn, ended("s", 1, reason));
        bench.frame(conn, rows("s", 1, 1, 1..2));
        bench.frame(conn, delivery_lost("s", 1, 4));
        assert_eq!(places(&bench.event()), [0]);
        match bench.event().kind {
            EventKind::Ended {
                reason: told,
                message,
            } => {
                assert_eq!(told, reason);
                assert_eq!(message, "the relay changed");
            }
            other => panic!("{other:?}"),
        }
        bench.no_event();
        bench.lose(conn);
        bench.suggest("S");
        let conn = bench.reconnected();
        for message in bench.all_sent(conn) {
            assert!(matches!(message.request, ClientRequest::SuggestRequest(_)));
        }
        bench.no_event();
        // A new subscribe under the name opens a new generation, under the schema of now.
        let mut changed = numbers();
        changed.fields.pop();
        bench.subscription_of(conn, "s", 9, changed);
        let row = [vec![number(1)]];
        bench.frame(conn, encode_rows(&handle("s", 9), None, &row).unwrap());
        assert!(matches!(bench.event().kind, EventKind::Rows(_)));
    }
}

// rule: S-4
#[test]
fn an_ended_subscription_can_be_deleted() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.frame(conn, ended("s", 1, SubscriptionEndReason::RelayRemoved));
    let (call, ..) = bench.execute("DELETE SUBSCRIPTION s;");
    if bench.is_waiting(call) {
        let (id, _) = bench.unsubscribe(conn);
        bench.reply(conn, id, deleted("s", 1));
    }
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
    bench.subscription(conn, "s", 2);
}

// rule: S-5
#[test]
fn losses_are_told_with_their_counts_in_their_place() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.frame(conn, rows("s", 1, 1, 0..2));
    bench.frame(conn, delivery_lost("s", 1, u64::MAX));
    bench.frame(conn, delivery_lost("s", 1, 2));
    bench.frame(conn, rows("s", 1, 1, 9..10));
    bench.frame(conn, rows_skipped("s", 1, 3));
    bench.frame(conn, rows("s", 1, 1, 20..21));
    assert_eq!(places(&bench.event()), [0, 1]);
    let mut lost = 0u64;
    loop {
        let event = bench.event();
        match event.kind {
            EventKind::DeliveryLost { rows } => lost = lost.saturating_add(rows),
            _ => {
                assert_eq!(places(&event), [9]);
                break;
            }
        }
    }
    assert_eq!(lost, u64::MAX);
    match bench.event().kind {
        EventKind::RowsSkipped {
            rows,
            cause,
            message,
        } => {
            assert_eq!((rows, cause), (3, RowsSkippedCause::FilterFailed));
            assert_eq!(message, "the filter failed");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(places(&bench.event()), [20]);
}

// rule: S-6
#[test]
fn nothing_follows_a_deletion() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.frame(conn, rows("s", 1, 1, 0..1));
    let (call, ..) = bench.execute("DELETE SUBSCRIPTION s;");
    let (id, _) = bench.unsubscribe(conn);
    bench.frame(conn, rows("s", 1, 1, 1..2));
    bench.reply(conn, id, deleted("s", 1));
    let outcome = bench.outcome(call);
    assert_eq!(outcome.disposition, Disposition::Completed);
    bench.no_event();
    bench.frame(conn, rows("s", 1, 1, 2..3));
    bench.no_event();
    // The name is free at once.
    bench.subscription(conn, "s", 2);
    bench.frame(conn, rows("s", 2, 2, 0..1));
    assert_eq!(bench.event().generation, 2);
    // And the first is not opened again.
    let conn = again(&mut bench, conn);
    bench.subscribe(conn);
    bench.sends_nothing(conn);
}

// rule: S-6
#[test]
fn deleting_what_does_not_exist_fails() {
    let (mut bench, conn) = Bench::connected();
    let (call, ..) = bench.execute("DELETE SUBSCRIPTION nobody;");
    if bench.is_waiting(call) {
        let (id, name) = bench.unsubscribe(conn);
        assert_eq!(name, "nobody");
        bench.reply(conn, id, not_deleted("there is no such subscription"));
    }
    assert_eq!(bench.outcome(call).disposition, Disposition::Failed);
}

// rule: S-7, B-7, D-5
#[test]
fn a_lost_session_is_a_gap_and_a_new_generation() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.frame(conn, rows("s", 1, 1, 0..1));
    let reader = bench.call(Call::NextEvent);
    bench.result(reader).unwrap();
    let reader = bench.call(Call::NextEvent);
    bench.frame(conn, rows("s", 1, 1, 1..2));
    bench.result(reader).unwrap();
    bench.frame(conn, rows("s", 1, 1, 2..3));
    bench.lose(conn);
    // What was queued is handed out, then the gap.
    assert_eq!(places(&bench.event()), [2]);
    let gap = bench.event();
    assert!(matches!(gap.kind, EventKind::Interrupted { .. }));
    assert_eq!(gap.generation, 1);
    let reader = bench.call(Call::NextEvent);
    let conn = bench.reconnected();
    let (id, subscribe) = bench.subscribe(conn);
    assert_eq!(subscribe.domain, "d");
    // The server numbers its generations for itself: the same number is another generation.
    bench.frame(conn, rows("s", 1, 1, 7..8));
    assert!(bench.is_waiting(reader));
    bench.reply(conn, id, opened("s", 1, numbers()));
    bench.frame(conn, rows("s", 1, 1, 0..1));
    match bench.result(reader) {
        Ok(Done::Event(event)) => assert_eq!(places(&event), [0]),
        other => panic!("{other:?}"),
    }
}

// rule: S-7, L-1
#[test]
fn a_subscription_is_opened_again_in_its_own_domain() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let (call, ..) = bench.execute("USE other;");
    bench.outcome(call);
    let conn = again(&mut bench, conn);
    let (_, subscribe) = bench.subscribe(conn);
    assert_eq!(subscribe.domain, "d");
}

// rule: S-7, R-1
#[test]
fn a_new_generation_has_its_own_schema() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.frame(conn, rows("s", 1, 1, 0..1));
    bench.lose(conn);
    let first = bench.event();
    let second = bench.event();
    let reader = bench.call(Call::NextEvent);
    let conn = bench.reconnected();
    let (id, _) = bench.subscribe(conn);
    let mut schema = numbers();
    schema.fields.push(scalar("more", ScalarType::String));
    bench.reply(conn, id, opened("s", 2, schema.clone()));
    let row = [vec![
        number(1),
        number(2),
        CellValue::StringCell(StringCell {
            value: "x\0y".into(),
        }),
    ]];
    bench.frame(conn, encode_rows(&handle("s", 2), None, &row).unwrap());
    let third = match bench.result(reader) {
        Ok(Done::Event(event)) => event,
        other => panic!("{other:?}"),
    };
    assert!(is_gap(&second));
    match (first.kind, third.kind) {
        (EventKind::Rows(old), EventKind::Rows(new)) => {
            assert_eq!(**old.schema(), numbers());
            assert_eq!(**new.schema(), schema);
        }
        other => panic!("{other:?}"),
    }
    assert!(!bench.is_reset(conn));
}

// rule: S-7, B-7
#[test]
fn a_refused_reopening_is_told_and_repeated_after_growing_waits() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let conn = again(&mut bench, conn);
    let mut times = Vec::new();
    let reader = bench.call(Call::NextEvent);
    let mut reader = reader;
    for attempt in 0..5 {
        let mut sent = Vec::new();
        while sent.is_empty() {
            bench.pass(20 * MS);
            for message in bench.all_sent(conn) {
                if matches!(message.request, ClientRequest::ListDomainsRequest) {
                    bench.reply(conn, message.request_id, domain_list(&[]));
                } else {
                    sent.push(message);
                }
            }
            assert!(bench.now < 1000 * SEC, "never repeated");
        }
        assert_eq!(sent.len(), 1);
        let ClientRequest::SubscribeRequest(subscribe) = &sent[0].request else {
            panic!("{sent:?}")
        };
        assert_eq!(subscribe.statement, "CREATE SUBSCRIPTION s TO r;");
        times.push(bench.now);
        if attempt < 4 {
            bench.reply(conn, sent[0].request_id, not_opened("not ready"));
            match bench.result(reader) {
                Ok(Done::Event(event)) => match event.kind {
                    EventKind::RestorationFailed { message } => {
                        assert!(message.contains("not ready"), "{message}");
                    }
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
            reader = bench.call(Call::NextEvent);
        } else {
            bench.reply(conn, sent[0].request_id, opened("s", 3, numbers()));
            bench.frame(conn, rows("s", 3, 1, 0..1));
            match bench.result(reader) {
                Ok(Done::Event(event)) => assert_eq!(places(&event), [0]),
                other => panic!("{other:?}"),
            }
        }
    }
    let waits: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.windows(2).all(|pair| pair[1] > pair[0]), "{waits:?}");
}

// rule: S-7
#[test]
fn an_unanswered_reopening_is_told_and_repeated() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let conn = again(&mut bench, conn);
    bench.subscribe(conn);
    let reader = bench.call(Call::NextEvent);
    bench.pass(REQUEST_TIMEOUT + SEC);
    // A request that outlives its timeout ends its session.
    assert!(bench.is_reset(conn));
    match bench.result(reader) {
        Ok(Done::Event(event)) => assert!(is_gap(&event), "{event:?}"),
        other => panic!("{other:?}"),
    }
    bench.call(Call::NextEvent);
    let conn = bench.reconnected();
    bench.subscribe(conn);
}

// rule: S-7
#[test]
fn deleting_while_reopening_lets_the_late_opening_go() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let conn = again(&mut bench, conn);
    let (opening, _) = bench.subscribe(conn);
    let (delete, ..) = bench.execute("DELETE SUBSCRIPTION s;");
    let (create, ..) = bench.execute("CREATE SUBSCRIPTION s TO r2;");
    let early = bench.all_sent(conn);
    assert!(
        !early
            .iter()
            .any(|message| matches!(message.request, ClientRequest::SubscribeRequest(_))),
        "the name is used before the late opening is known"
    );
    bench.reply(conn, opening, opened("s", 2, numbers()));
    bench.frame(conn, rows("s", 2, 1, 0..1));
    let mut sent: Vec<_> = early.into_iter().chain(bench.all_sent(conn)).collect();
    let unsubscribe = sent.remove(0);
    assert!(matches!(
        unsubscribe.request,
        ClientRequest::UnsubscribeRequest(_)
    ));
    bench.reply(conn, unsubscribe.request_id, deleted("s", 2));
    assert_eq!(bench.outcome(delete).disposition, Disposition::Completed);
    sent.extend(bench.all_sent(conn));
    assert_eq!(sent.len(), 1, "{sent:?}");
    let ClientRequest::SubscribeRequest(subscribe) = &sent[0].request else {
        panic!("{sent:?}")
    };
    assert!(subscribe.statement.contains("r2"));
    bench.reply(conn, sent[0].request_id, opened("s", 3, numbers()));
    bench.outcome(create);
    bench.frame(conn, rows("s", 2, 1, 1..2));
    bench.frame(conn, rows("s", 3, 1, 5..6));
    let events = bench.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0].generation, 3);
}

// rule: S-7
#[test]
fn deleting_what_no_session_holds_completes_at_once() {
    // Refused to be opened again on this session.
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let conn = again(&mut bench, conn);
    let (opening, _) = bench.subscribe(conn);
    bench.reply(conn, opening, not_opened("not ready"));
    let (delete, ..) = bench.execute("DELETE SUBSCRIPTION s;");
    assert_eq!(bench.outcome(delete).disposition, Disposition::Completed);
    bench.sends_nothing(conn);
    let later = bench.events();
    assert!(later.is_empty(), "{later:?}");
    bench.pass(60 * SEC);
    for message in bench.all_sent(conn) {
        assert_eq!(message.request, ClientRequest::ListDomainsRequest);
    }
    bench.suggest("S");

    // The session that held it is gone.
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.lose(conn);
    let (delete, ..) = bench.execute("DELETE SUBSCRIPTION s;");
    if bench.is_waiting(delete) {
        let conn = bench.reconnected();
        for message in bench.all_sent(conn) {
            assert!(!matches!(
                message.request,
                ClientRequest::UnsubscribeRequest(_)
            ));
        }
    }
    assert_eq!(bench.outcome(delete).disposition, Disposition::Completed);
}

// rule: S-7
#[test]
fn a_deletion_whose_session_ends_is_complete() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let (delete, ..) = bench.execute("DELETE SUBSCRIPTION s;");
    bench.unsubscribe(conn);
    bench.lose(conn);
    assert_eq!(bench.outcome(delete).disposition, Disposition::Completed);
    let (create, ..) = bench.execute("CREATE SUBSCRIPTION s TO r2;");
    let conn = bench.reconnected();
    let (id, subscribe) = bench.subscribe(conn);
    assert!(subscribe.statement.contains("r2"));
    bench.sends_nothing(conn);
    bench.reply(conn, id, opened("s", 2, numbers()));
    bench.outcome(create);
}

// rule: S-7, C-10, B-1
#[test]
fn a_stopped_create_takes_its_first_requests_answer() {
    let (mut bench, conn) = Bench::connected();
    let (call, execution, _) = bench.execute("CREATE SUBSCRIPTION s TO r;");
    let (id, _) = bench.subscribe(conn);
    bench.stop(call, Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    bench.sends_nothing(conn);
    let again = bench.call(Call::Execute(execution));
    bench.sends_nothing(conn);
    bench.reply(conn, id, opened("s", 3, numbers()));
    let outcome = bench.outcome(again);
    assert_eq!(outcome.subscription.as_ref().unwrap().generation, 3);
    bench.frame(conn, rows("s", 3, 1, 0..1));
    assert_eq!(places(&bench.event()), [0]);
}

// rule: S-7, B-1
#[test]
fn a_stopped_create_is_answered_after_its_answer_came() {
    let (mut bench, conn) = Bench::connected();
    let (call, execution, _) = bench.execute("CREATE SUBSCRIPTION s TO r;");
    let (id, _) = bench.subscribe(conn);
    bench.stop(call, Stop::Deadline);
    bench.fails(call, ErrorKind::Deadline);
    for part in
        encode_server_reply_parts(&reply_message(id, opened("s", 3, numbers())), 64).unwrap()
    {
        bench.frame(conn, part);
    }
    let again = bench.call(Call::Execute(execution));
    let outcome = bench.outcome(again);
    assert_eq!(outcome.disposition, Disposition::Completed);
    assert_eq!(outcome.subscription.as_ref().unwrap().generation, 3);
    bench.sends_nothing(conn);
}

// rule: S-7, D-6
#[test]
fn a_create_whose_session_ends_is_sent_again() {
    let (mut bench, conn) = Bench::connected();
    let (call, ..) = bench.execute("CREATE SUBSCRIPTION s TO r;");
    let (_, first) = bench.subscribe(conn);
    bench.lose(conn);
    assert!(bench.is_waiting(call));
    let conn = bench.reconnected();
    let (id, same) = bench.subscribe(conn);
    assert_eq!(same, first);
    bench.sends_nothing(conn);
    bench.reply(conn, id, opened("s", 3, numbers()));
    bench.outcome(call);
    assert!(bench.events().iter().all(|event| !is_gap(event)));
}

// rule: S-8, C-7, B-7
#[test]
fn a_reader_too_slow_loses_its_queue_and_is_told() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.subscription(conn, "t", 2);
    bench.frame(conn, rows("t", 2, 2, 0..1));
    for place in 0..128 {
        bench.frame(conn, rows("s", 1, 1, place..place + 1));
    }
    bench.sends_nothing(conn);
    bench.frame(conn, rows("s", 1, 1, 128..129));
    let (id, name) = bench.unsubscribe(conn);
    assert_eq!(name, "s");
    bench.frame(conn, rows("s", 1, 1, 129..130));
    bench.reply(conn, id, deleted("s", 1));
    bench.frame(conn, rows("t", 2, 2, 1..2));
    let events = bench.events();
    let told: Vec<_> = events.iter().filter(|event| &*event.name == "s").collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(matches!(
        told[0].kind,
        EventKind::Overflow { dropped: 129 | 128 }
    ));
    let others: Vec<_> = events
        .iter()
        .filter(|event| &*event.name == "t")
        .flat_map(places)
        .collect();
    assert_eq!(others, [0, 1], "no other subscription suffers");
    // Not again on this session, and again on the next.
    for _ in 0..60 {
        bench.pass(SEC);
        for message in bench.all_sent(conn) {
            assert_eq!(message.request, ClientRequest::ListDomainsRequest);
            bench.reply(conn, message.request_id, domain_list(&[]));
        }
    }
    bench.lose(conn);
    bench.events();
    bench.call(Call::NextEvent);
    let conn = bench.reconnected();
    let sent = bench.all_sent(conn);
    assert_eq!(sent.len(), 2, "{sent:?}");
}

// rule: S-8, S-7
#[test]
fn an_overflow_comes_after_the_gaps_before_it() {
    for before in [0, 1, 40, 60, 63, 100, 126] {
        for refused in [false, true] {
            let (mut bench, conn) = Bench::connected();
            bench.subscription(conn, "s", 1);
            let mut conn = conn;
            for generation in [2, 3] {
                for place in 0..before / (generation - 1) {
                    bench.frame(conn, rows("s", generation - 1, 1, place..place + 1));
                }
                bench.lose(conn);
                bench.suggest("S");
                conn = bench.reconnected();
                let (mut id, _) = bench.subscribe(conn);
                if refused {
                    bench.reply(conn, id, not_opened("not ready"));
                    let suggest = bench.sent(conn).request_id;
                    bench.reply(conn, suggest, suggestions(&["x"]));
                    bench.pass(SEC);
                    id = bench.subscribe(conn).0;
                }
                bench.reply(conn, id, opened("s", generation, numbers()));
            }
            for place in 0..200 {
                bench.frame(conn, rows("s", 3, 1, place..place + 1));
            }
            let events = bench.events();
            let generations: Vec<_> = events.iter().map(|event| event.generation).collect();
            assert!(
                generations.is_sorted(),
                "{before} rows, refused {refused}: {generations:?}"
            );
            assert!(matches!(
                events.last().unwrap().kind,
                EventKind::Overflow { .. }
            ));
        }
    }
}

fn wide() -> RowSchema {
    RowSchema {
        fields: vec![scalar("text", ScalarType::String)],
        branch: None,
    }
}

fn big(name: &str, generation: u64, bytes: usize) -> Vec<u8> {
    let row = vec![CellValue::StringCell(StringCell {
        value: "x".repeat(bytes),
    })];
    encode_rows(&handle(name, generation), None, &[row]).unwrap()
}

// rule: S-8
#[test]
fn a_subscription_holds_eight_mebibytes_and_a_frame_of_the_limit() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription_of(conn, "s", 1, wide());
    let nearly = (4 << 20) - 4096;
    bench.frame(conn, big("s", 1, nearly));
    bench.sends_nothing(conn);
    bench.frame(conn, big("s", 1, nearly));
    bench.sends_nothing(conn);
    bench.frame(conn, big("s", 1, 64 << 10));
    bench.unsubscribe(conn);
    let events = bench.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(matches!(events[0].kind, EventKind::Overflow { .. }));
}

// rule: S-8
#[test]
fn reading_makes_room() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription_of(conn, "s", 1, wide());
    let nearly = (4 << 20) - 4096;
    for _ in 0..20 {
        bench.frame(conn, big("s", 1, nearly));
        assert!(matches!(bench.event().kind, EventKind::Rows(_)));
    }
    for round in 0..1000 {
        bench.frame(conn, big("s", 1, 10));
        if round >= 100 {
            assert!(matches!(bench.event().kind, EventKind::Rows(_)));
        }
    }
    bench.sends_nothing(conn);
}

// rule: S-8
#[test]
fn all_subscriptions_hold_64_mebibytes_and_the_largest_gives_way() {
    let (mut bench, conn) = Bench::connected();
    let names: Vec<String> = (0..10).map(|index| format!("s{index}")).collect();
    for (index, name) in names.iter().enumerate() {
        bench.subscription_of(conn, name, index as u64 + 1, wide());
    }
    // s0 holds most, 7.5 MiB; the others 6 MiB each.
    let half = 1 << 19;
    for (index, name) in names.iter().enumerate() {
        for _ in 0..if index == 0 { 15 } else { 12 } {
            bench.frame(conn, big(name, index as u64 + 1, half));
        }
    }
    for index in [6, 7, 8, 9] {
        bench.frame(conn, big(&names[index], index as u64 + 1, half));
    }
    bench.sends_nothing(conn);
    // The 128th half MiB, with what its frame takes besides, is too much.
    bench.frame(conn, big("s5", 6, half));
    let (_, name) = bench.unsubscribe(conn);
    assert_eq!(name, "s0");
    bench.sends_nothing(conn);
    let events = bench.events();
    let overflows: Vec<_> = events
        .iter()
        .filter(|event| matches!(event.kind, EventKind::Overflow { .. }))
        .map(|event| &*event.name)
        .collect();
    assert_eq!(overflows, ["s0"]);
    assert!(events.iter().filter(|event| &*event.name == "s1").count() == 12);
}

// rule: S-8
#[test]
fn the_bound_on_all_is_never_exceeded() {
    let (mut bench, conn) = Bench::connected();
    let nearly = (4 << 20) - 4096;
    for index in 0..40u64 {
        let name = format!("s{index}");
        bench.subscription_of(conn, &name, index + 1, wide());
        bench.frame(conn, big(&name, index + 1, nearly));
        for message in bench.all_sent(conn) {
            bench.reply(conn, message.request_id, deleted("whichever", 1));
        }
    }
    let held: usize = bench
        .events()
        .iter()
        .map(|event| match &event.kind {
            EventKind::Rows(rows) => rows.frame().len(),
            _ => 0,
        })
        .sum();
    assert!(held <= 64 << 20, "{held} bytes held");
    assert!(held >= 48 << 20, "{held} bytes held");
}

// rule: S-8, S-6
#[test]
fn an_overflowed_subscription_can_be_deleted_and_its_name_used() {
    for answered in [true, false] {
        let (mut bench, conn) = Bench::connected();
        bench.subscription(conn, "s", 1);
        for place in 0..200 {
            bench.frame(conn, rows("s", 1, 1, place..place + 1));
        }
        let (id, _) = bench.unsubscribe(conn);
        if answered {
            bench.reply(conn, id, deleted("s", 1));
        }
        let (delete, ..) = bench.execute("DELETE SUBSCRIPTION s;");
        if !answered {
            bench.reply(conn, id, deleted("s", 1));
        }
        for message in bench.all_sent(conn) {
            bench.reply(conn, message.request_id, not_deleted("it is gone already"));
        }
        assert_eq!(bench.outcome(delete).disposition, Disposition::Completed);
        bench.no_event();
        bench.subscription(conn, "s", 2);
        bench.frame(conn, rows("s", 2, 1, 0..1));
        assert_eq!(bench.event().generation, 2);
    }
}

// rule: C-6, S-8, S-6
#[test]
fn an_unsubscribe_that_was_not_admitted_is_sent_again() {
    for overflowed in [false, true] {
        let (mut bench, conn) = Bench::connected();
        bench.subscription(conn, "s", 1);
        let mut delete = None;
        if overflowed {
            for place in 0..200 {
                bench.frame(conn, rows("s", 1, 1, place..place + 1));
            }
        } else {
            delete = Some(bench.execute("DELETE SUBSCRIPTION s;").0);
        }
        for _ in 0..3 {
            let (id, name) = bench.unsubscribe(conn);
            assert_eq!(name, "s");
            bench.reply(
                conn,
                id,
                rejected(RequestRejection::TooManyRequestsInFlight),
            );
            bench.pass(2 * SEC);
        }
        let delete = delete.unwrap_or_else(|| bench.execute("DELETE SUBSCRIPTION s;").0);
        bench.pass(2 * SEC);
        let (id, _) = bench.unsubscribe(conn);
        bench.reply(conn, id, deleted("s", 1));
        assert_eq!(bench.outcome(delete).disposition, Disposition::Completed);
    }
}

// rule: C-8, S-8
#[test]
fn an_unsubscribe_that_the_server_calls_defective_is_not_sent_again() {
    for defect in DEFECTS {
        let (mut bench, conn) = Bench::connected();
        bench.subscription(conn, "s", 1);
        for place in 0..200 {
            bench.frame(conn, rows("s", 1, 1, place..place + 1));
        }
        let (id, _) = bench.unsubscribe(conn);
        bench.reply(conn, id, rejected(defect));
        assert_eq!(bench.quiet(conn, 60 * SEC), []);
        bench.frame(conn, rows("s", 1, 1, 200..201));
        assert!(matches!(bench.event().kind, EventKind::Overflow { .. }));
        bench.no_event();
        // Its host may still ask for it.
        let (delete, ..) = bench.execute("DELETE SUBSCRIPTION s;");
        let (id, _) = bench.unsubscribe(conn);
        bench.reply(conn, id, deleted("s", 1));
        assert_eq!(bench.outcome(delete).disposition, Disposition::Completed);
    }
}

// rule: S-7, C-6
#[test]
fn a_reopening_that_was_not_admitted_is_sent_again() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let conn = again(&mut bench, conn);
    for _ in 0..3 {
        let (id, _) = bench.subscribe(conn);
        bench.reply(
            conn,
            id,
            rejected(RequestRejection::TooManyRequestsInFlight),
        );
        bench.pass(8 * SEC);
    }
    let (id, _) = bench.subscribe(conn);
    bench.reply(conn, id, opened("s", 2, numbers()));
    bench.frame(conn, rows("s", 2, 1, 0..1));
    let events = bench.events();
    assert_eq!(places(events.last().unwrap()), [0]);
}

// rule: S-8, C-7
#[test]
fn gaps_do_not_pile_up_without_a_reader() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let mut conn = conn;
    for generation in 2..400 {
        bench.lose(conn);
        bench.suggest("S");
        conn = bench.reconnected();
        for message in bench.all_sent(conn) {
            match message.request {
                ClientRequest::SubscribeRequest(_) => {
                    bench.reply(conn, message.request_id, opened("s", generation, numbers()));
                }
                _ => bench.reply(conn, message.request_id, suggestions(&["x"])),
            }
        }
    }
    let events = bench.events();
    assert!(events.len() <= 130, "{} events held", events.len());
    let generations: Vec<_> = events.iter().map(|event| event.generation).collect();
    assert!(generations.is_sorted(), "{generations:?}");
}

// rule: S-3, S-5
#[test]
fn several_readers_share_the_events_in_order() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let readers: Vec<_> = (0..3).map(|_| bench.call(Call::NextEvent)).collect();
    for place in 0..3 {
        bench.frame(conn, rows("s", 1, 1, place..place + 1));
    }
    for (place, reader) in readers.into_iter().enumerate() {
        match bench.result(reader) {
            Ok(Done::Event(event)) => assert_eq!(places(&event), [place as u64]),
            other => panic!("{other:?}"),
        }
    }
    // A reader that stopped takes nothing with it.
    let reader = bench.call(Call::NextEvent);
    bench.stop(reader, Stop::Deadline);
    bench.fails(reader, ErrorKind::Deadline);
    bench.frame(conn, rows("s", 1, 1, 3..4));
    assert_eq!(places(&bench.event()), [3]);
}

// rule: D-5, S-7
#[test]
fn a_reader_alone_brings_the_session_back() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.lose(conn);
    assert!(is_gap(&bench.event()));
    let reader = bench.call(Call::NextEvent);
    let conn = bench.reconnected();
    let (id, _) = bench.subscribe(conn);
    bench.reply(conn, id, opened("s", 2, numbers()));
    bench.frame(conn, rows("s", 2, 1, 0..1));
    bench.result(reader).unwrap();
}

// ---- rows

fn field(name: &str, scalar_type: ScalarType, nullable: bool, sensitive: bool) -> RowField {
    RowField {
        nullable,
        sensitive,
        ..scalar(name, scalar_type)
    }
}

fn varied(branched: bool) -> RowSchema {
    let fixed = RowField {
        field_type: FieldType {
            shape: FieldTypeShape::FixedListFieldType(Box::new(FixedListFieldType {
                element: scalar("", ScalarType::I16).field_type,
                length: 2,
            })),
        },
        ..scalar("pair", ScalarType::U8)
    };
    RowSchema {
        fields: vec![
            field("maybe", ScalarType::I64, true, false),
            field("secret", ScalarType::String, false, true),
            field("sure", ScalarType::Bool, false, false),
            fixed,
        ],
        branch: branched.then(|| RowBranch {
            branch: "b".into(),
            fields: vec![scalar("key", ScalarType::U8)],
        }),
    }
}

fn pair(values: &[i16]) -> CellValue {
    CellValue::ListCell(ListCell {
        elements: values
            .iter()
            .map(|value| Cell {
                value: CellValue::I16Cell(I16Cell { value: *value }),
            })
            .collect(),
    })
}

fn good_row() -> Vec<CellValue> {
    vec![
        CellValue::NullCell,
        CellValue::RedactedCell,
        CellValue::BoolCell(BoolCell { value: true }),
        pair(&[1, 2]),
    ]
}

// rule: R-2, R-1, F-8
#[test]
fn rows_that_do_not_conform_break_the_protocol() {
    let key = [CellValue::U8Cell(U8Cell { value: 3 })];
    let with = |place: usize, value: CellValue| {
        let mut row = good_row();
        row[place] = value;
        row
    };
    let null_in_list = CellValue::ListCell(ListCell {
        elements: vec![
            Cell {
                value: CellValue::NullCell,
            },
            Cell {
                value: CellValue::NullCell,
            },
        ],
    });
    type Case<'a> = (&'a str, bool, Option<&'a [CellValue]>, Vec<CellValue>);
    let bad: Vec<Case<'_>> = vec![
        ("a key without a branch", false, Some(&key), good_row()),
        ("a branch without a key", true, None, good_row()),
        (
            "a key of two cells",
            true,
            Some(&[CellValue::NullCell, CellValue::NullCell]),
            good_row(),
        ),
        (
            "a key of another type",
            true,
            Some(&[CellValue::NullCell]),
            good_row(),
        ),
        ("a cell too few", false, None, good_row()[..3].to_vec()),
        (
            "a cell too many",
            false,
            None,
            [good_row(), vec![number(1)]].concat(),
        ),
        (
            "a bare secret",
            false,
            None,
            with(1, CellValue::StringCell(StringCell { value: "pw".into() })),
        ),
        ("a null secret", false, None, with(1, CellValue::NullCell)),
        (
            "a redacted open field",
            false,
            None,
            with(2, CellValue::RedactedCell),
        ),
        (
            "a null required field",
            false,
            None,
            with(2, CellValue::NullCell),
        ),
        ("another type", false, None, with(0, number(1))),
        ("a list too short", false, None, with(3, pair(&[1]))),
        ("a list too long", false, None, with(3, pair(&[1, 2, 3]))),
        ("a null element", false, None, with(3, null_in_list)),
    ];
    for (name, branched, key, row) in bad {
        let (mut bench, conn) = Bench::connected();
        bench.subscription_of(conn, "s", 1, varied(branched));
        let frame = encode_rows(&handle("s", 1), key, &[good_row(), row]).unwrap();
        let suggest = bench.suggest("S");
        bench.frame(conn, frame);
        assert!(bench.is_reset(conn), "{name}");
        bench.fails(suggest, ErrorKind::Protocol);
        // Not one value of the batch is exposed, not even its good row.
        let events = bench.events();
        assert_eq!(events.len(), 1, "{name}: {events:?}");
        assert!(matches!(events[0].kind, EventKind::Interrupted { .. }));
    }
    for branched in [false, true] {
        let (mut bench, conn) = Bench::connected();
        bench.subscription_of(conn, "s", 1, varied(branched));
        let key = branched.then_some(&key[..]);
        bench.frame(
            conn,
            encode_rows(&handle("s", 1), key, &[good_row(), good_row()]).unwrap(),
        );
        match bench.event().kind {
            EventKind::Rows(rows) => {
                assert_eq!((rows.row_count(), rows.has_key()), (2, branched));
            }
            other => panic!("{other:?}"),
        }
    }
}

// rule: R-2, S-3
#[test]
fn rows_of_nobody_are_not_checked_against_anybodys_schema() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription_of(conn, "s", 2, varied(false));
    // Of an earlier generation, which had another schema.
    bench.frame(conn, rows("s", 1, 1, 0..1));
    assert!(!bench.is_reset(conn));
    bench.no_event();
}

// rule: B-3
#[test]
fn an_event_outlives_its_session() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.frame(conn, rows("s", 1, 1, 0..3));
    let event = bench.event();
    bench.lose(conn);
    bench.shut_down();
    drop(bench);
    assert_eq!(places(&event), [0, 1, 2]);
}

/// A subscription that nobody reads, more of which arrived than is kept.
fn overrun(bench: &mut Bench, conn: ConnId) {
    for place in 0..200 {
        bench.frame(conn, rows("s", 1, 1, place..place + 1));
    }
}

// rule: S-6, S-8
#[test]
fn one_that_overflows_is_not_deleted_behind_the_opening_of_the_next() {
    for opens in [true, false] {
        let (mut bench, conn) = Bench::connected();
        bench.subscription(conn, "s", 1);
        let deleting = opens.then(|| {
            let (delete, ..) = bench.execute("DELETE SUBSCRIPTION s;");
            let (deleting, _) = bench.unsubscribe(conn);
            bench.stop(delete, Stop::Deadline);
            bench.error(delete);
            deleting
        });
        let (create, ..) = bench.execute("CREATE SUBSCRIPTION s TO r2;");
        let (creating, _) = bench.subscribe(conn);
        overrun(&mut bench, conn);
        bench.sends_nothing(conn);
        if let Some(deleting) = deleting {
            bench.reply(conn, deleting, deleted("s", 1));
            bench.reply(conn, creating, opened("s", 2, numbers()));
            assert_eq!(bench.outcome(create).disposition, Disposition::Completed);
            assert!(bench.quiet(conn, 5 * SEC).is_empty());
            bench.frame(conn, rows("s", 2, 1, 0..1));
            assert!(bench
                .events()
                .iter()
                .any(|event| event.generation == 2 && matches!(event.kind, EventKind::Rows(_))));
        } else {
            bench.reply(conn, creating, not_opened("s is there"));
            assert_eq!(bench.outcome(create).disposition, Disposition::Failed);
            let (_, name) = bench.unsubscribe(conn);
            assert_eq!(name, "s", "the one that overflowed is deleted then");
        }
    }
}

// rule: S-7, S-8
#[test]
fn one_whose_name_was_taken_is_not_opened_again() {
    for late in [false, true] {
        let (mut bench, conn) = Bench::connected();
        bench.subscription(conn, "s", 1);
        bench.lose(conn);
        let conn = bench.reconnected();
        let (mut reopening, _) = bench.subscribe(conn);
        let (create, ..) = if late {
            bench.reply(conn, reopening, not_opened("no relay r"));
            let create = bench.execute("CREATE SUBSCRIPTION s TO r2;");
            let (creating, _) = bench.subscribe(conn);
            assert!(
                bench.quiet(conn, SEC).is_empty(),
                "it would take the name before its answer is there"
            );
            reopening = creating;
            create
        } else {
            bench.execute("CREATE SUBSCRIPTION s TO r2;")
        };
        if late {
            bench.reply(conn, reopening, opened("s", 2, numbers()));
        } else {
            let (creating, _) = bench.subscribe(conn);
            bench.reply(conn, creating, opened("s", 2, numbers()));
            bench.reply(conn, reopening, not_opened("s exists"));
        }
        assert_eq!(bench.outcome(create).disposition, Disposition::Completed);
        let asked = bench.quiet(conn, 8 * SEC);
        assert!(asked.is_empty(), "{asked:?}");
        bench.events();
        bench.lose(conn);
        let conn = bench.reconnected();
        let (_, again) = bench.subscribe(conn);
        assert_eq!(again.statement, "CREATE SUBSCRIPTION s TO r2;");
        bench.sends_nothing(conn);
    }
}

// rule: S-7, S-6
#[test]
fn deleting_during_an_opening_lets_the_late_opening_go() {
    for opens in [true, false] {
        let (mut bench, conn) = Bench::connected();
        let (create, ..) = bench.execute("CREATE SUBSCRIPTION s TO r;");
        let (opening, _) = bench.subscribe(conn);
        bench.stop(create, Stop::Cancelled);
        bench.fails(create, ErrorKind::Cancelled);
        let (delete, ..) = bench.execute("DELETE SUBSCRIPTION s;");
        let (create, ..) = bench.execute("CREATE SUBSCRIPTION s TO r2;");
        bench.pass(SEC);
        bench.sends_nothing(conn);
        assert!(bench.is_waiting(delete), "what it deletes is not known yet");
        if opens {
            bench.reply(conn, opening, opened("s", 1, numbers()));
            bench.frame(conn, rows("s", 1, 1, 0..1));
            let (deleting, name) = bench.unsubscribe(conn);
            assert_eq!(name, "s");
            bench.sends_nothing(conn);
            bench.reply(conn, deleting, deleted("s", 1));
            assert_eq!(bench.outcome(delete).disposition, Disposition::Completed);
        } else {
            bench.reply(conn, opening, not_opened("no relay r"));
            assert_eq!(bench.outcome(delete).disposition, Disposition::Failed);
        }
        // Only now its name is used again.
        let (opening, subscribe) = bench.subscribe(conn);
        assert_eq!(subscribe.statement, "CREATE SUBSCRIPTION s TO r2;");
        bench.reply(conn, opening, opened("s", 2, numbers()));
        assert_eq!(bench.outcome(create).disposition, Disposition::Completed);
        bench.frame(conn, rows("s", 1, 1, 1..2));
        bench.frame(conn, rows("s", 2, 1, 5..6));
        let events = bench.events();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!((places(&events[0]), events[0].generation), (vec![5], 2));
        bench.sends_nothing(conn);
    }
}

// rule: S-7, S-6
#[test]
fn deleting_during_the_opening_of_the_next_deletes_the_next() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let (create, ..) = bench.execute("CREATE SUBSCRIPTION s TO r2;");
    let (opening, _) = bench.subscribe(conn);
    bench.stop(create, Stop::Deadline);
    bench.fails(create, ErrorKind::Deadline);
    let (delete, ..) = bench.execute("DELETE SUBSCRIPTION s;");
    bench.pass(SEC);
    bench.sends_nothing(conn);
    bench.frame(conn, ended("s", 1, SubscriptionEndReason::RelayRemoved));
    bench.reply(conn, opening, opened("s", 2, numbers()));
    let (deleting, _) = bench.unsubscribe(conn);
    bench.reply(conn, deleting, deleted("s", 2));
    assert_eq!(bench.outcome(delete).disposition, Disposition::Completed);
    bench.events();
    bench.frame(conn, rows("s", 2, 1, 0..1));
    bench.no_event();
    bench.lose(conn);
    bench.suggest("S");
    let conn = bench.reconnected();
    for message in bench.all_sent(conn) {
        assert!(matches!(message.request, ClientRequest::SuggestRequest(_)));
    }
}

// rule: S-3, R-1, D-1
#[test]
fn the_frames_of_a_session_left_behind_are_of_no_generation_of_the_next() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    // Keeps the session that is left alive.
    bench.producer(conn);
    let (next, call, reference) = bench.redirected(conn, "http://b:2");
    assert!(matches!(bench.event().kind, EventKind::Interrupted { .. }));
    // Generations are counted by each session, and what it reads may be defined otherwise there.
    let (opening, _) = bench.subscribe(next);
    bench.frame(conn, rows("s", 1, 1, 0..1));
    bench.reply(next, opening, opened("s", 1, varied(false)));
    bench.complete(next, call, &reference);
    bench.frame(conn, rows("s", 1, 1, 1..2));
    bench.frame(conn, delivery_lost("s", 1, 4));
    bench.frame(conn, rows_skipped("s", 1, 4));
    bench.frame(conn, ended("s", 1, SubscriptionEndReason::RelayRemoved));
    bench.no_event();
    assert!(!bench.is_reset(conn) && !bench.is_reset(next));
    let frame = encode_rows(&handle("s", 1), None, &[good_row()]).unwrap();
    bench.frame(next, frame);
    assert!(matches!(bench.event().kind, EventKind::Rows(_)));
    bench.frame(next, ended("s", 1, SubscriptionEndReason::RelayRemoved));
    assert!(matches!(bench.event().kind, EventKind::Ended { .. }));
    bench.no_event();
}

// rule: D-2
#[test]
fn what_a_session_left_behind_says_of_leaders_ends_no_wait_for_one() {
    let (mut bench, conn) = Bench::connected();
    bench.producer(conn);
    let (next, call, reference) = bench.redirected(conn, "http://b:2");
    bench.complete(next, call, &reference);
    let (call, _, reference) = bench.execute("CREATE SCHEMA c (d I64);");
    let (id, _) = bench.command(next);
    bench.reply(next, id, redirect(&reference, None));
    bench.frame(conn, leadership(leads_itself()));
    bench.frame(conn, leadership(led_by("http://b:2")));
    assert!(!bench.is_reset(conn));
    bench.sends_nothing(next);
    bench.opens_nothing();
    // The session that is there says when somebody leads.
    bench.frame(next, leadership(leads_itself()));
    bench.complete(next, call, &reference);
}

// rule: S-7, D-1
#[test]
fn a_deletion_that_is_unanswered_at_a_redirect_is_complete() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.subscription(conn, "kept", 1);
    bench.producer(conn);
    bench.frame(conn, rows("s", 1, 1, 0..1));
    let (delete, execution, _) = bench.execute("DELETE SUBSCRIPTION s;");
    let (deleting, _) = bench.unsubscribe(conn);
    bench.stop(delete, Stop::Cancelled);
    bench.fails(delete, ErrorKind::Cancelled);
    let (next, call, reference) = bench.redirected(conn, "http://b:2");
    // What was not deleted alone is opened again, and told of.
    let (opening, subscribe) = bench.subscribe(next);
    assert!(subscribe.statement.contains("kept"));
    bench.reply(next, opening, opened("kept", 1, numbers()));
    bench.complete(next, call, &reference);
    let events = bench.events();
    assert!(
        events.iter().all(|event| &*event.name == "kept"),
        "{events:?}"
    );
    let delete = bench.call(Call::Execute(execution));
    assert_eq!(bench.outcome(delete).disposition, Disposition::Completed);
    // Its name is free, whatever the session that was left says of it.
    bench.subscription(next, "s", 1);
    bench.reply(conn, deleting, deleted("s", 1));
    bench.frame(next, rows("s", 1, 1, 5..6));
    assert_eq!(places(&bench.event()), [5]);
    bench.sends_nothing(next);
}

// rule: S-7, D-1, C-10
#[test]
fn an_opening_that_is_unanswered_at_a_redirect_is_asked_for_again() {
    let (mut bench, conn) = Bench::connected();
    bench.producer(conn);
    let (create, execution, _) = bench.execute("CREATE SUBSCRIPTION s TO r;");
    let (left, _) = bench.subscribe(conn);
    bench.stop(create, Stop::Cancelled);
    bench.fails(create, ErrorKind::Cancelled);
    let (next, call, reference) = bench.redirected(conn, "http://b:2");
    bench.complete(next, call, &reference);
    let create = bench.call(Call::Execute(execution));
    let (opening, _) = bench.subscribe(next);
    bench.reply(conn, left, opened("s", 1, numbers()));
    assert!(
        bench.is_waiting(create),
        "what it opened ends with its session"
    );
    bench.reply(next, opening, opened("s", 4, numbers()));
    let outcome = bench.outcome(create);
    assert_eq!(outcome.subscription.as_ref().unwrap().generation, 4);
    bench.frame(conn, rows("s", 1, 1, 0..1));
    bench.frame(next, rows("s", 4, 1, 1..2));
    assert_eq!(places(&bench.event()), [1]);
    bench.no_event();
}

// rule: S-3, F-8
#[test]
fn a_generation_that_is_opened_twice_breaks_the_protocol() {
    // For a new subscription.
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let (create, ..) = bench.execute("CREATE SUBSCRIPTION s TO r2;");
    let (opening, _) = bench.subscribe(conn);
    bench.reply(conn, opening, opened("s", 1, numbers()));
    assert!(bench.is_reset(conn));
    assert!(bench.is_waiting(create), "asked for again");
    let event = bench.event();
    assert!(matches!(event.kind, EventKind::Interrupted { .. }));
    bench.no_event();

    // For one that is opened again.
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.subscription(conn, "u", 1);
    bench.lose(conn);
    let told = bench.events();
    assert_eq!(told.len(), 2, "{told:?}");
    bench.call(Call::NextEvent);
    let conn = bench.reconnected();
    for answered in ["s", "u"] {
        let (opening, subscribe) = bench.subscribe(conn);
        assert!(subscribe.statement.contains(answered));
        assert!(!bench.is_reset(conn));
        bench.reply(conn, opening, opened("s", 2, numbers()));
    }
    assert!(bench.is_reset(conn));
}
