use nervix_wire::types::{
    ConsumerWindow, EmitterBatchDecision, EmitterOpenRefusal, EmitterSettlement, OpenEmitterRequest,
};

use super::harness::*;
use super::*;
use crate::graph::Opener;

fn refused(
    run: &mut Run,
    opener: Opener,
    change: impl FnOnce(&mut OpenEmitterRequest),
) -> EmitterOpenRefusal {
    let mut request = run.open_emitter("e", "s", 2);
    change(&mut request);
    let (refusal, message) = run
        .world
        .open_consumer(run.now, opener, &request)
        .unwrap_err();
    assert!(!message.is_empty());
    refusal
}

// rule: EC-1
#[test]
fn an_open_is_refused_for_what_does_not_fit() {
    let mut run = plain();
    let refusals = [
        refused(&mut run, OPENER, |request| request.domain = "x".to_string()),
        refused(&mut run, OPENER, |request| {
            request.emitter = "x".to_string()
        }),
        refused(&mut run, OPENER, |request| {
            request.expected_fields[0].sensitive = true;
        }),
        refused(&mut run, OPENER, |request| {
            request.max_outstanding_batches = 0;
        }),
        refused(&mut run, OPENER, |request| {
            request.max_outstanding_bytes = (32 << 20) + 1;
        }),
        // One batch of the emitter does not fit.
        refused(&mut run, OPENER, |request| {
            request.max_outstanding_bytes = (1 << 20) - 1;
        }),
        refused(
            &mut run,
            Opener {
                in_transaction: true,
                ..OPENER
            },
            |_| (),
        ),
        refused(
            &mut run,
            Opener {
                available: false,
                ..OPENER
            },
            |_| (),
        ),
    ];
    assert_eq!(
        refusals,
        [
            EmitterOpenRefusal::DomainNotFound,
            EmitterOpenRefusal::EmitterNotFound,
            EmitterOpenRefusal::SchemaMismatch,
            EmitterOpenRefusal::InvalidLimits,
            EmitterOpenRefusal::InvalidLimits,
            EmitterOpenRefusal::InvalidLimits,
            EmitterOpenRefusal::InTransaction,
            EmitterOpenRefusal::EndpointUnavailable,
        ]
    );
    run.world
        .force_consumer_refusal("d", "e", EmitterOpenRefusal::NotClientEmitter);
    assert_eq!(
        refused(&mut run, OPENER, |_| ()),
        EmitterOpenRefusal::NotClientEmitter
    );
    for _ in 0..31 {
        run.consumer("e", "s", 1);
    }
    assert_eq!(
        refused(&mut run, OPENER, |request| {
            request.max_outstanding_bytes = 2 << 20;
        }),
        EmitterOpenRefusal::SessionCapacityExhausted
    );
    run.consumer("e", "s", 1);
    assert_eq!(
        refused(&mut run, OPENER, |_| ()),
        EmitterOpenRefusal::TooManyConsumers
    );
    let mut request = run.open_emitter("e", "s", 1);
    request.max_outstanding_bytes = 32 << 20;
    for session in 2..5 {
        let opener = Opener { session, ..OPENER };
        let opened = run.world.open_consumer(run.now, opener, &request);
        assert!(opened.is_ok());
    }
    let opener = Opener {
        session: 5,
        ..OPENER
    };
    assert_eq!(
        refused(&mut run, opener, |_| ()),
        EmitterOpenRefusal::NodeCapacityExhausted
    );
    run.execute("STOP");
    assert_eq!(
        refused(&mut run, OPENER, |_| ()),
        EmitterOpenRefusal::DomainStopped
    );
}

// rule: EC-1, EC-3
#[test]
fn an_open_describes_the_emitter() {
    let mut run = plain();
    let (_, opened) = run.opened_consumer("e", "s", 3);
    assert_eq!(
        (opened.domain.as_str(), opened.emitter.as_str()),
        ("d", "e")
    );
    assert_eq!((opened.generation, &opened.fields), (1, &run.fields("s")));
    let ConsumerWindow::ParallelConsumerWindow(window) = &opened.window else {
        panic!("another window");
    };
    assert_eq!(window.max, 4);
    assert_eq!(opened.ack_timeout_nanos, 10 * SECOND as u64);
    assert_eq!((opened.granted_batches, opened.granted_bytes), (3, 1 << 20));
    assert_eq!(
        (opened.max_batch_bytes, opened.max_batch_rows),
        (1 << 20, 16)
    );
}

// rule: EC-2, EC-3
#[test]
fn a_parked_read_is_answered_when_there_is_something() {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    let consumer = run.consumer("e", "s", 4);
    let read = run.park(consumer);
    assert_eq!(run.answer(read), None);
    run.submit(producer, "s", &ids(7..9));
    let received = run.answer(read).unwrap().unwrap();
    assert_eq!(ids_of(&run, &received), [7, 8]);
    assert_eq!(received.source_relay, "r");
    assert_eq!(received.branch_fingerprint, None);
    assert_eq!(received.execution_now_unix_nanos, run.now.0);
    assert!(!run.world.cancel_read(consumer, read));
    // A read that was taken back gets nothing.
    let taken_back = run.park(consumer);
    assert!(run.world.cancel_read(consumer, taken_back));
    run.submit(producer, "s", &ids(9..10));
    assert_eq!(run.answer(taken_back), None);
    assert_eq!(ids_of_next(&mut run, consumer), [9]);
}

fn ids_of_next(run: &mut Run, consumer: crate::graph::ConsumerId) -> Vec<u64> {
    let received = run.delivery(consumer);
    ids_of(run, &received)
}

// rule: EC-4, EC-5
#[test]
fn a_retry_comes_again_after_a_backoff_that_doubles() {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    let consumer = run.consumer("e", "s", 4);
    run.submit(producer, "s", &ids(0..3));
    let mut received = run.delivery(consumer);
    for backoff in [100, 200, 400, 800, 1_000, 1_000] {
        assert_eq!(
            run.settle(consumer, &received, EmitterBatchDecision::Retry, ""),
            EmitterSettlement::Confirmed
        );
        let read = run.park(consumer);
        run.pass(backoff * MS - 1);
        assert_eq!(run.answer(read), None);
        run.pass(1);
        let again = run.answer(read).unwrap().unwrap();
        assert_eq!(again.identity, received.identity);
        assert_eq!(again.batch, received.batch);
        assert_ne!(again.reference, received.reference);
        assert_eq!(
            run.settle(consumer, &received, EmitterBatchDecision::Ack, ""),
            EmitterSettlement::StaleReference
        );
        received = again;
    }
    run.ack(consumer, &received);
}

// rule: EC-5
#[test]
fn what_is_not_settled_in_time_comes_again() {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    let (one, two) = (run.consumer("e", "s", 4), run.consumer("e", "s", 4));
    let tag = run.submit(producer, "s", &ids(0..3));
    let first = run.delivery(one);
    let read = run.park(two);
    run.pass(10 * SECOND - 1);
    assert_eq!(run.answer(read), None);
    run.pass(1);
    let second = run.answer(read).unwrap().unwrap();
    assert_eq!(second.identity, first.identity);
    assert_eq!(second.batch, first.batch);
    assert_ne!(second.reference, first.reference);
    assert_eq!(
        run.settle(one, &first, EmitterBatchDecision::Ack, ""),
        EmitterSettlement::StaleReference
    );
    run.ack(two, &second);
    run.assert_outcome(tag, "Completed");
}

// rule: EC-5, EC-6
#[test]
fn a_consumer_that_goes_leaves_its_batches_to_the_others() {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    let one = run.consumer("e", "s", 4);
    let tag = run.submit(producer, "s", &ids(0..3));
    let first = run.delivery(one);
    let parked = run.park(one);
    let lines = ["consumers", "retained batches"];
    assert_eq!(run.described("DESCRIBE EMITTER e", &lines), ["1", "1"]);
    assert!(run.world.close_consumer(run.now, one));
    assert!(!run.world.close_consumer(run.now, one));
    run.gather();
    assert_eq!(run.answer(parked), Some(None));
    assert_eq!(run.described("DESCRIBE EMITTER e", &lines), ["0", "1"]);
    assert_eq!(
        run.settle(one, &first, EmitterBatchDecision::Ack, ""),
        EmitterSettlement::ConsumerEnded
    );
    let late = run.park(one);
    assert_eq!(run.answer(late), Some(None));
    let two = run.consumer("e", "s", 4);
    let second = run.delivery(two);
    assert_eq!(second.identity, first.identity);
    assert_eq!(second.batch, first.batch);
    assert_ne!(second.reference, first.reference);
    run.ack(two, &second);
    run.assert_outcome(tag, "Completed");
    assert_eq!(run.described("DESCRIBE EMITTER e", &lines), ["1", "0"]);
}

// rule: EC-4, EC-6
#[test]
fn a_settlement_is_for_the_current_attempt_of_its_own_consumer() {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    let (one, two) = (run.consumer("e", "s", 4), run.consumer("e", "s", 4));
    run.submit(producer, "s", &ids(0..1));
    let received = run.delivery(one);
    let (ack, retry, reject) = (
        EmitterBatchDecision::Ack,
        EmitterBatchDecision::Retry,
        EmitterBatchDecision::Reject,
    );
    for (consumer, decision, reason, expected) in [
        (two, ack, "", EmitterSettlement::WrongConsumer),
        (one, reject, "", EmitterSettlement::InvalidReason),
        (
            one,
            reject,
            "x".repeat(1_025).as_str(),
            EmitterSettlement::InvalidReason,
        ),
        (one, ack, "x", EmitterSettlement::InvalidReason),
        (one, retry, "x", EmitterSettlement::InvalidReason),
        (one, ack, "", EmitterSettlement::Confirmed),
        // Once more is the same; anything else is too late.
        (one, ack, "", EmitterSettlement::Confirmed),
        (two, ack, "", EmitterSettlement::WrongConsumer),
        (one, retry, "", EmitterSettlement::StaleReference),
        (one, reject, "x", EmitterSettlement::StaleReference),
    ] {
        assert_eq!(run.settle(consumer, &received, decision, reason), expected);
    }
    let mut unknown = received.clone();
    unknown.reference = [7; 16];
    assert_eq!(
        run.settle(one, &unknown, ack, ""),
        EmitterSettlement::StaleReference
    );
    run.submit(producer, "s", &ids(1..2));
    let received = run.delivery(one);
    run.world
        .force_settlement("d", "e", EmitterSettlement::WrongConsumer);
    assert_eq!(
        run.settle(one, &received, ack, ""),
        EmitterSettlement::WrongConsumer
    );
    let longest = "x".repeat(1_024);
    assert_eq!(
        run.settle(one, &received, reject, &longest),
        EmitterSettlement::Confirmed
    );
}

// rule: EC-1, EC-2
#[test]
fn windows_and_credit_bound_what_is_out() {
    let mut run = plain();
    let producer = run.producer("i", "s", 8);
    let (one, two) = (run.consumer("e", "s", 3), run.consumer("e", "s", 3));
    for id in 0..6 {
        run.submit(producer, "s", &ids(id..id + 1));
    }
    let held: Vec<_> = (0..3).map(|_| run.delivery(one)).collect();
    // Its credit is used up, and then the emitter's window.
    assert!(run.idle(one));
    run.delivery(two);
    assert!(run.idle(two));
    run.ack(one, &held[0]);
    let received = run.delivery(two);
    assert_eq!(ids_of(&run, &received), [4]);
}

// rule: EC-5
#[test]
fn a_sequential_emitter_keeps_its_order_over_retries() {
    let mut run = Run::new(&[
        SCHEMA,
        RELAY,
        &ingestor("PARALLEL MAX 8", NOW_ON),
        &emitter("ATTACHED", "SEQUENTIAL", SIXTEEN),
    ]);
    let producer = run.producer("i", "s", 8);
    let consumer = run.consumer("e", "s", 8);
    run.submit(producer, "s", &ids(0..1));
    run.submit(producer, "s", &ids(1..2));
    let first = run.delivery(consumer);
    assert!(run.idle(consumer));
    run.settle(consumer, &first, EmitterBatchDecision::Retry, "");
    assert!(run.idle(consumer));
    run.pass(100 * MS);
    let first = run.delivery(consumer);
    assert_eq!(ids_of(&run, &first), [0]);
    run.ack(consumer, &first);
    assert_eq!(ids_of_next(&mut run, consumer), [1]);
}

#[test]
fn competing_consumers_are_served_in_turn() {
    let mut run = Run::new(&[
        SCHEMA,
        RELAY,
        &ingestor("PARALLEL MAX 100", NOW_ON),
        &emitter("ATTACHED", "PARALLEL MAX 100", SIXTEEN),
    ]);
    let producer = run.producer("i", "s", 100);
    let consumers: Vec<_> = (0..3).map(|_| run.consumer("e", "s", 100)).collect();
    // The first asks for much more than the others.
    let reads: Vec<(usize, _)> = [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
        .iter()
        .map(|which| (*which, run.park(consumers[*which])))
        .collect();
    for id in 0..9 {
        run.submit(producer, "s", &ids(id..id + 1));
    }
    let mut served = [0; 3];
    for (which, read) in reads {
        if run.answer(read).is_some() {
            served[which] += 1;
        }
    }
    assert_eq!(served, [3, 3, 3]);
}

#[test]
fn branches_are_never_mixed_and_told_apart_by_their_fingerprint() {
    let mut run = Run::new(&[
        SCHEMA,
        "CREATE BRANCH b SCHEMA s TTL 10m",
        "CREATE RELAY r SCHEMA s BRANCHED BY b",
        "CREATE RELAY q SCHEMA s UNBRANCHED",
        &ingestor(
            "PARALLEL MAX 8",
            "BRANCHED BY b SET id = message.id FLUSH IMMEDIATE ON MESSAGE ERROR LOG",
        ),
        "CREATE EMITTER e FROM r, q TO CLIENT SCHEMA s MODE ACK PARALLEL MAX 8 ACK TIMEOUT 10s RETRY POLICY BACKOFF 100ms \
         MAX 1s INHERIT ALL BATCH MAX MESSAGES 3 MAX SIZE 1MiB FLUSH EACH 100ms MAX BATCH SIZE 1MiB ON MESSAGE ERROR LOG \
         ON GENERAL ERROR LOG",
    ]);
    let producer = run.producer("i", "s", 8);
    let consumer = run.consumer("e", "s", 8);
    run.submit(producer, "s", r#"[{"id": 1}, {"id": 2}, {"id": 1}]"#);
    run.submit(producer, "s", r#"[{"id": 2}, {"id": 1}, {"id": 1}]"#);
    publish(&mut run.world, "q", r#"[{"id": 1}]"#);
    // The branch of 1 has a whole batch; the rest waits for its time.
    let full = run.delivery(consumer);
    assert_eq!(ids_of(&run, &full), [1, 1, 1]);
    assert!(run.idle(consumer));
    run.pass(100 * MS - 1);
    assert!(run.idle(consumer));
    run.pass(1);
    let others: Vec<_> = (0..3).map(|_| run.delivery(consumer)).collect();
    let found: Vec<(Vec<u64>, &str, bool)> = others
        .iter()
        .map(|received| {
            (
                ids_of(&run, received),
                received.source_relay.as_str(),
                received.branch_fingerprint == full.branch_fingerprint,
            )
        })
        .collect();
    assert!(found.contains(&(vec![2, 2], "r", false)));
    assert!(found.contains(&(vec![1], "r", true)));
    assert!(found.contains(&(vec![1], "q", false)));
    let unbranched = others.iter().find(|it| it.source_relay == "q").unwrap();
    assert_eq!(unbranched.branch_fingerprint, None);
    // A fingerprint says nothing by itself.
    assert_eq!(full.branch_fingerprint.unwrap().len(), 32);
    assert_eq!(full.execution_now_unix_nanos, NOW.0);
    assert_eq!(others[0].execution_now_unix_nanos, NOW.0 + 100 * MS);
}

#[test]
fn batches_keep_to_their_size() {
    let mut run = Run::new(&[
        "CREATE SCHEMA s (id U64, text STRING)",
        RELAY,
        &ingestor("PARALLEL MAX 8", NOW_ON),
        &emitter(
            "ATTACHED",
            "PARALLEL MAX 100",
            "BATCH MAX MESSAGES 100 MAX SIZE 2KiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG",
        ),
    ]);
    let producer = run.producer("i", "s", 8);
    let consumer = run.consumer("e", "s", 100);
    let rows: Vec<String> = (0..50)
        .map(|id| format!(r#"{{"id": {id}, "text": "{}"}}"#, "x".repeat(id * 7 % 200)))
        .collect();
    let tag = run.submit(producer, "s", &format!("[{}]", rows.join(",")));
    let mut seen = Vec::new();
    while seen.len() < 50 {
        let received = run.delivery(consumer);
        assert!(received.batch.len() <= 2_048);
        seen.extend(ids_of(&run, &received));
        run.ack(consumer, &received);
    }
    assert_eq!(seen, (0..50).collect::<Vec<u64>>());
    run.assert_outcome(tag, "Completed");
    // A row that fits no batch is refused by itself.
    let huge = format!(
        r#"[{{"id": 0, "text": ""}}, {{"id": 1, "text": "{}"}}]"#,
        "x".repeat(3_000)
    );
    let tag = run.submit(producer, "s", &huge);
    let received = run.delivery(consumer);
    assert_eq!(ids_of(&run, &received), [0]);
    run.assert_outcome(tag, "Rejected");
}

#[test]
fn a_full_emitter_holds_its_relay_back_and_with_it_the_ingestor() {
    let mut run = Run::new(&[
        SCHEMA,
        "CREATE RELAY r SCHEMA s UNBRANCHED CAPACITY 1",
        &ingestor("PARALLEL MAX 100", NOW_ON),
        &emitter(
            "DETACHED",
            "SEQUENTIAL",
            "BATCH MAX MESSAGES 1 MAX SIZE 1MiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG",
        ),
    ]);
    let producer = run.producer("i", "s", 100);
    let tags: Vec<_> = (0..40)
        .map(|id| run.submit(producer, "s", &ids(id..id + 1)))
        .collect();
    let completed = |run: &mut Run, from: usize| {
        tags[from..]
            .iter()
            .take_while(|tag| run.outcome_of(**tag).is_some())
            .count()
    };
    // Nobody acknowledges for a detached emitter; but there is an end to what it and the relay keep.
    let kept = completed(&mut run, 0);
    assert!(kept < 40, "{kept}");
    let retained = run.described("DESCRIBE EMITTER e", &["retained batches"]);
    assert_eq!(retained, ["32"]);
    let consumer = run.consumer("e", "s", 1);
    for _ in 0..5 {
        let received = run.delivery(consumer);
        run.ack(consumer, &received);
    }
    assert_eq!(completed(&mut run, kept), 5);
}

#[test]
fn an_emitter_filters_constructs_and_lets_sensitive_values_out_on_purpose() {
    let mut run = Run::new(&[
        "CREATE SCHEMA s (id U64, secret STRING SENSITIVE, at DATETIME OPTIONAL)",
        "CREATE SCHEMA t (id U64, leaked STRING, at DATETIME, rest I64)",
        "CREATE RELAY r SCHEMA s UNBRANCHED",
        &ingestor("PARALLEL MAX 8", NOW_ON),
        "CREATE EMITTER e FROM r TO CLIENT SCHEMA t MODE ACK PARALLEL MAX 8 ACK TIMEOUT 10s RETRY POLICY BACKOFF 100ms MAX 1s \
         INHERIT id SET leaked = leak_sensitive(input.secret), at = now(), rest = 10 / 2 WHERE id != 2 \
         BATCH MAX MESSAGES 16 MAX SIZE 1MiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG ON GENERAL ERROR LOG",
    ]);
    let producer = run.producer("i", "s", 8);
    let consumer = run.consumer("e", "t", 8);
    let tag = run.submit(
        producer,
        "s",
        r#"[{"id": 1, "secret": "a"}, {"id": 2, "secret": "b"}, {"id": 3, "secret": "c"}]"#,
    );
    let received = run.delivery(consumer);
    let batch = batch_of(&run, "t", &received);
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt64Type};
    assert_eq!(
        batch.column(0).as_primitive::<UInt64Type>().values(),
        &[1, 3]
    );
    let leaked: Vec<_> = batch.column(1).as_string::<i32>().iter().collect();
    assert_eq!(leaked, [Some("a"), Some("c")]);
    assert_eq!(
        batch
            .column(2)
            .as_primitive::<TimestampNanosecondType>()
            .values(),
        &[run.now.0; 2]
    );
    assert_eq!(
        batch.column(3).as_primitive::<Int64Type>().values(),
        &[5, 5]
    );
    run.assert_pending(tag);
    run.ack(consumer, &received);
    run.assert_outcome(tag, "Completed");
    // A batch of which nothing is left is done with.
    let tag = run.submit(producer, "s", r#"{"id": 2, "secret": ""}"#);
    run.assert_outcome(tag, "Completed");
}

#[test]
fn rejected_rows_follow_on_message_error() {
    for (policy, expected) in [
        ("LOG", "Rejected"),
        ("IGNORE", "Completed"),
        (
            "SEND TO q SET id = input.id, code = error.code, text = error.message",
            "Completed",
        ),
    ] {
        let mut run = Run::new(&[
            SCHEMA,
            "CREATE SCHEMA bad (id U64, code STRING, text STRING)",
            RELAY,
            "CREATE RELAY q SCHEMA bad UNBRANCHED",
            &ingestor("PARALLEL MAX 8", NOW_ON),
            &emitter(
                "ATTACHED",
                "PARALLEL MAX 4",
                &format!("BATCH MAX MESSAGES 16 MAX SIZE 1MiB FLUSH IMMEDIATE ON MESSAGE ERROR {policy}"),
            ),
            "CREATE EMITTER notices FROM q TO CLIENT SCHEMA bad MODE ACK SEQUENTIAL ACK TIMEOUT 10s RETRY POLICY \
             BACKOFF 100ms MAX 1s INHERIT ALL BATCH MAX MESSAGES 16 MAX SIZE 1MiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG \
             ON GENERAL ERROR LOG",
        ]);
        let producer = run.producer("i", "s", 8);
        let consumer = run.consumer("e", "s", 8);
        let tag = run.submit(producer, "s", &ids(0..2));
        let received = run.delivery(consumer);
        run.settle(consumer, &received, EmitterBatchDecision::Reject, "no good");
        let (outcome, _) = run.outcome_of(tag).unwrap();
        assert_eq!(outcome, expected);
        let notices = run.consumer("notices", "bad", 1);
        if policy.starts_with("SEND") {
            let received = run.delivery(notices);
            let batch = batch_of(&run, "bad", &received);
            use arrow_array::cast::AsArray;
            assert_eq!(batch.column(1).as_string::<i32>().value(1), "rejected");
            assert_eq!(batch.column(2).as_string::<i32>().value(1), "no good");
        } else {
            assert!(run.idle(notices));
        }
    }
}

#[test]
fn a_detached_emitter_keeps_nobody_waiting() {
    let mut run = Run::new(&[
        SCHEMA,
        RELAY,
        &ingestor("PARALLEL MAX 8", NOW_ON),
        &emitter("DETACHED", "PARALLEL MAX 4", SIXTEEN),
    ]);
    let producer = run.producer("i", "s", 8);
    let tag = run.submit(producer, "s", &ids(0..2));
    run.assert_outcome(tag, "Completed");
    let consumer = run.consumer("e", "s", 8);
    assert_eq!(ids_of_next(&mut run, consumer), [0, 1]);
}

#[test]
fn each_attached_emitter_has_to_acknowledge() {
    let other = emitter("ATTACHED", "PARALLEL MAX 4", SIXTEEN).replace("EMITTER e", "EMITTER f");
    let mut run = Run::new(&[
        SCHEMA,
        RELAY,
        &ingestor("PARALLEL MAX 8", NOW_ON),
        &emitter("ATTACHED", "PARALLEL MAX 4", SIXTEEN),
        &other,
    ]);
    let producer = run.producer("i", "s", 8);
    let (one, two) = (run.consumer("e", "s", 8), run.consumer("f", "s", 8));
    let tag = run.submit(producer, "s", &ids(0..2));
    let (first, second) = (run.delivery(one), run.delivery(two));
    assert_ne!(first.identity, second.identity);
    run.ack(two, &second);
    run.assert_pending(tag);
    run.ack(one, &first);
    run.assert_outcome(tag, "Completed");
}

/// The conformance graph: every type through ingestor, branch and emitter.
// rule: P-3, EC-3
#[test]
fn every_type_comes_through_exactly() {
    let text = file("src/graph/testdata", "io.nspl");
    let mut world = World::new();
    assert_eq!(load(&mut world, &text).as_deref(), Some("conformance"));
    let domain = world.domains.remove("conformance").unwrap();
    // The harness calls its domain `d`.
    world.domains.insert("d".to_string(), domain);
    let mut run = Run::of(world);
    let rows = r#"[
      {"id": 1, "tenant": "acme", "u8v": 255, "i8v": 127, "u16v": 65535, "i16v": 32767, "u32v": 4294967295, "i32v": 2147483647,
       "u64v": 18446744073709551615, "i64v": 9223372036854775807, "f32v": {"bits": "7f7fffff"}, "f64v": {"bits": "7fefffffffffffff"},
       "flag": true, "text": "héllo 世界 🚀", "raw": {"hex": "00fffe8000"}, "at": 9223372036854775807, "tags": ["a", "", "héllo"],
       "grid": [[1, -2], [32767, -32768]], "spans": [[-9223372036854775808, 9223372036854775807]], "secret": "s1"},
      {"id": 2, "tenant": "acme", "u8v": 0, "i8v": -128, "u16v": 0, "i16v": -32768, "u32v": 0, "i32v": -2147483648,
       "u64v": 0, "i64v": -9223372036854775808, "f32v": {"bits": "80000000"}, "f64v": {"bits": "7ff8000000000001"},
       "flag": false, "text": "a\u0000b", "raw": {"hex": ""}, "at": -9223372036854775808, "maybe": 0, "tags": [],
       "grid": [[0, 0], [0, 0]], "secret": "s2"},
      {"id": 3, "tenant": "other", "u8v": 1, "i8v": -1, "u16v": 1, "i16v": -1, "u32v": 1, "i32v": -1,
       "u64v": 9007199254740993, "i64v": -9007199254740993, "f32v": 1.5, "f64v": 0.1,
       "flag": true, "at": 1, "maybe": 9007199254740992, "tags": ["x"],
       "grid": [[-1, 1], [2, -2]], "spans": [], "secret": "s3"}
    ]"#;
    let producer = run.producer("typed_in", "typed_in_row", 2);
    let consumer = run.consumer("typed_out", "typed_out_row", 4);
    let tag = run.submit(producer, "typed_in_row", rows);
    let sent = run.stream("typed_in_row", rows);
    let sent = {
        let fields = &run.world.domains["d"]
            .catalog
            .schema("typed_in_row")
            .unwrap()
            .fields;
        let schema = super::super::fields::arrow_schema(fields);
        super::super::ipc::batch(fields, &schema, 10, &sent).unwrap()
    };
    let mut at = 0;
    for members in [2, 1] {
        let received = run.delivery(consumer);
        assert_eq!(received.members, members);
        assert_eq!(received.source_relay, "typed_rows");
        assert!(received.branch_fingerprint.is_some());
        let batch = batch_of(&run, "typed_out_row", &received);
        let sent = sent.slice(at, batch.num_rows());
        for (column, sent) in sent.columns().iter().enumerate() {
            assert_eq!(batch.column(column).to_data(), sent.to_data(), "{column}");
        }
        // echo is the id again.
        assert_eq!(batch.column(21), batch.column(0));
        at += batch.num_rows();
        run.ack(consumer, &received);
    }
    run.assert_outcome(tag, "Completed");
}
