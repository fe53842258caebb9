use nervix_wire::types::{
    EmitterBatchDecision, EmitterSettlement, OutcomeUncertainty, ProcessingFailure,
    ProducerAdmission, ProducerEndReason, ProducerRefusal, ProducerWindow, SubmissionDisposition,
    SubmissionFailed, SubmissionNotAdmitted, SubmissionOutcomeUnknown, SubmissionRefusal,
};

use super::harness::*;
use super::*;
use crate::graph::{Effect, Opener};

fn refused(
    run: &mut Run,
    opener: Opener,
    change: impl FnOnce(&mut nervix_wire::types::OpenIngestorRequest),
) -> ProducerRefusal {
    let mut request = run.open_ingestor("i", "s", 2);
    change(&mut request);
    let (refusal, message) = run
        .world
        .open_producer(run.now, opener, &request)
        .unwrap_err();
    assert!(!message.is_empty());
    refusal
}

// rule: P-1
#[test]
fn an_open_is_refused_for_what_does_not_fit() {
    let mut run = plain();
    let refusals = [
        refused(&mut run, OPENER, |request| request.domain = "x".to_string()),
        refused(&mut run, OPENER, |request| {
            request.ingestor = "x".to_string();
        }),
        refused(&mut run, OPENER, |request| {
            request.expected_fields[0].name = "x".to_string();
        }),
        refused(&mut run, OPENER, |request| {
            request.expected_fields[0].nullable = true;
        }),
        refused(&mut run, OPENER, |request| {
            request.expected_fields[0].sensitive = true;
        }),
        refused(&mut run, OPENER, |request| {
            let field = request.expected_fields[0].clone();
            request.expected_fields.push(field);
        }),
        refused(&mut run, OPENER, |request| {
            request.max_outstanding_batches = 0;
        }),
        refused(&mut run, OPENER, |request| {
            request.max_outstanding_batches = 1_025;
        }),
        refused(&mut run, OPENER, |request| {
            request.max_outstanding_bytes = 0
        }),
        refused(&mut run, OPENER, |request| {
            request.max_outstanding_bytes = (32 << 20) + 1;
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
            ProducerRefusal::DomainNotFound,
            ProducerRefusal::IngestorNotFound,
            ProducerRefusal::SchemaMismatch,
            ProducerRefusal::SchemaMismatch,
            ProducerRefusal::SchemaMismatch,
            ProducerRefusal::SchemaMismatch,
            ProducerRefusal::InvalidLimits,
            ProducerRefusal::InvalidLimits,
            ProducerRefusal::InvalidLimits,
            ProducerRefusal::InvalidLimits,
            ProducerRefusal::InTransaction,
            ProducerRefusal::EndpointUnavailable,
        ]
    );
    run.world
        .force_producer_refusal("d", "i", ProducerRefusal::NotClientIngestor);
    assert_eq!(
        refused(&mut run, OPENER, |_| ()),
        ProducerRefusal::NotClientIngestor
    );
    run.execute("STOP");
    assert_eq!(
        refused(&mut run, OPENER, |_| ()),
        ProducerRefusal::DomainStopped
    );
}

// rule: P-1
#[test]
fn sessions_and_nodes_have_limits() {
    let mut run = plain();
    let opener = |session, node| Opener {
        session,
        node,
        ..OPENER
    };
    for _ in 0..32 {
        run.producer("i", "s", 1);
    }
    assert_eq!(
        refused(&mut run, OPENER, |_| ()),
        ProducerRefusal::TooManyProducers
    );
    let mut request = run.open_ingestor("i", "s", 1);
    request.max_outstanding_bytes = 32 << 20;
    for session in 2..5 {
        let opened = run
            .world
            .open_producer(run.now, opener(session, 1), &request);
        assert!(opened.is_ok());
        assert_eq!(
            refused(&mut run, opener(session, 1), |_| ()),
            ProducerRefusal::SessionCapacityExhausted
        );
    }
    // The node of the sessions has 128 MiB out: 32 of the first session, 96 of the others.
    assert_eq!(
        refused(&mut run, opener(5, 1), |_| ()),
        ProducerRefusal::NodeCapacityExhausted
    );
    let elsewhere = run.world.open_producer(run.now, opener(5, 2), &request);
    assert!(elsewhere.is_ok());
}

// rule: P-1, P-3
#[test]
fn an_open_describes_the_ingestor() {
    let mut run = plain();
    let (_, first) = run.opened_producer("i", "s", 7);
    let (_, second) = run.opened_producer("i", "s", 7);
    assert_eq!(first.generation, 1);
    assert_eq!(first.fields, run.fields("s"));
    let ProducerWindow::ParallelProducerWindow(window) = &first.window else {
        panic!("another window");
    };
    assert_eq!(window.max, 8);
    assert_eq!(first.ack_timeout_nanos, 60 * SECOND as u64);
    assert_eq!(first.retry_backoff_nanos, 100 * MS as u64);
    assert_eq!(first.retry_max_backoff_nanos, SECOND as u64);
    assert_eq!((first.granted_batches, first.granted_bytes), (7, 1 << 20));
    assert_eq!(
        (first.max_batch_bytes, first.max_batch_rows),
        (1 << 20, 65_536)
    );
    assert_eq!(first.admission, ProducerAdmission::Open);
    assert_eq!(first.contract, second.contract);
    assert_ne!(first.attachment, second.attachment);
    let mut wide = run.open_ingestor("i", "s", 1);
    wide.max_outstanding_bytes = 8 << 20;
    let (_, wide) = run.world.open_producer(run.now, OPENER, &wide).unwrap();
    assert_eq!(wide.max_batch_bytes, (4 << 20) - 256);
    // The same declarations in another generation are the same contract; others are another.
    run.execute("STOP");
    run.execute("START");
    let (_, again) = run.opened_producer("i", "s", 7);
    assert_eq!((again.generation, &again.contract), (2, &first.contract));
    run.execute("DROP EMITTER e");
    run.execute("DROP INGESTOR i");
    run.execute(&ingestor("SEQUENTIAL", NOW_ON));
    let (_, other) = run.opened_producer("i", "s", 7);
    assert_ne!(other.contract, first.contract);
    assert_eq!(other.window, ProducerWindow::SequentialProducerWindow);
}

// rule: P-5
#[test]
fn a_relay_without_emitters_completes_a_batch_at_once() {
    let mut run = Run::new(&[SCHEMA, RELAY, &ingestor("SEQUENTIAL", NOW_ON)]);
    let producer = run.producer("i", "s", 2);
    for rows in [ids(0..3), ids(0..0)] {
        let tag = run.submit(producer, "s", &rows);
        run.assert_outcome(tag, "Completed");
    }
}

// rule: P-5
#[test]
fn a_batch_is_complete_once_every_row_was_acknowledged() {
    let mut run = plain();
    let producer = run.producer("i", "s", 2);
    let consumer = run.consumer("e", "s", 8);
    let tag = run.submit(producer, "s", &ids(0..40));
    let first = run.delivery(consumer);
    let second = run.delivery(consumer);
    let third = run.delivery(consumer);
    assert_eq!([first.members, second.members, third.members], [16, 16, 8]);
    run.ack(consumer, &second);
    run.ack(consumer, &third);
    run.assert_pending(tag);
    run.ack(consumer, &first);
    run.assert_outcome(tag, "Completed");
}

// rule: P-5
#[test]
fn a_rejection_fails_the_batch_and_no_progress_times_it_out() {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    let consumer = run.consumer("e", "s", 4);
    let rejected = run.submit(producer, "s", &ids(0..1));
    let slow = run.submit(producer, "s", &ids(1..3));
    let received = run.delivery(consumer);
    assert_eq!(
        run.settle(consumer, &received, EmitterBatchDecision::Reject, "broken"),
        EmitterSettlement::Confirmed
    );
    let (outcome, message) = run.outcome_of(rejected).unwrap();
    assert_eq!(outcome, "Rejected");
    assert!(message.contains("broken"));
    run.pass(60 * SECOND - 1);
    run.assert_pending(slow);
    run.pass(1);
    run.assert_outcome(slow, "AckTimedOut");
    // The rows are still delivered, and owed to nobody.
    let received = run.delivery(consumer);
    run.ack(consumer, &received);
    assert_eq!(run.outcome_of(slow), None);
}

// rule: P-4, P-5
#[test]
fn the_window_of_the_source_bounds_what_is_outstanding() {
    let mut run = Run::new(&[
        SCHEMA,
        RELAY,
        &ingestor("PARALLEL MAX 2", NOW_ON),
        &emitter("ATTACHED", "SEQUENTIAL", SIXTEEN),
    ]);
    let one = run.producer("i", "s", 4);
    let two = run.producer("i", "s", 4);
    let first = run.submit(one, "s", &ids(0..1));
    let second = run.submit(two, "s", &ids(1..2));
    let third = run.submit(one, "s", &ids(2..3));
    run.assert_outcome(third, "Busy");
    let counts = ["producers", "outstanding batches", "admitted batches"];
    assert_eq!(
        run.described("DESCRIBE INGESTOR i", &counts),
        ["2", "2", "2"]
    );
    let consumer = run.consumer("e", "s", 4);
    let received = run.delivery(consumer);
    run.ack(consumer, &received);
    run.assert_outcome(first, "Completed");
    let third = run.submit(one, "s", &ids(2..3));
    for _ in 0..2 {
        let received = run.delivery(consumer);
        run.ack(consumer, &received);
    }
    run.assert_outcome(second, "Completed");
    run.assert_outcome(third, "Completed");
    let all = [
        "status",
        "admission",
        "outstanding batches",
        "outstanding bytes",
        "admitted batches",
    ];
    assert_eq!(
        run.described("DESCRIBE INGESTOR i", &all),
        ["running", "open", "0", "0", "3"]
    );
    assert!(run.execute("SHOW INGESTORS").starts_with("i "));
}

// rule: P-4
#[test]
fn a_batch_beyond_the_credit_ends_its_producer() {
    let mut run = plain();
    let producer = run.producer("i", "s", 1);
    let first = run.submit(producer, "s", &ids(0..1));
    let second = run.submit(producer, "s", &ids(1..2));
    run.assert_outcome(second, "CreditExceeded");
    run.assert_outcome(first, "UnknownInterrupted");
    assert!(matches!(
        run.seen.as_slice(),
        [Effect::ProducerEnded {
            reason: ProducerEndReason::ProtocolViolated,
            ..
        }]
    ));
    let third = run.submit(producer, "s", &ids(2..3));
    run.assert_outcome(third, "ProducerEnded");

    let mut request = run.open_ingestor("i", "s", 8);
    request.max_outstanding_bytes = 1_000;
    let (producer, _) = run.world.open_producer(run.now, OPENER, &request).unwrap();
    let large = run.submit(producer, "s", &ids(0..200));
    run.assert_outcome(large, "CreditExceeded");
}

// rule: P-8
#[test]
fn a_close_comes_after_every_outcome() {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    let consumer = run.consumer("e", "s", 4);
    let tag = run.submit(producer, "s", &ids(0..1));
    assert!(run.world.close_producer(run.now, producer));
    assert!(!run.world.close_producer(run.now, producer));
    let late = run.submit(producer, "s", &ids(1..2));
    run.assert_outcome(late, "Draining");
    let received = run.delivery(consumer);
    run.ack(consumer, &received);
    assert!(matches!(
        run.seen.as_slice(),
        [Effect::Submission { .. }, Effect::ProducerClosed { .. }]
    ));
    run.assert_outcome(tag, "Completed");
    let late = run.submit(producer, "s", &ids(1..2));
    run.assert_outcome(late, "ProducerEnded");
    // One that is through because time ran out refuses as well.
    let producer = run.producer("i", "s", 4);
    let tag = run.submit(producer, "s", &ids(0..1));
    assert!(run.world.close_producer(run.now, producer));
    run.now = run.now.after(60 * SECOND as u64);
    let late = run.submit(producer, "s", &ids(1..2));
    run.assert_outcome(tag, "AckTimedOut");
    run.assert_outcome(late, "ProducerEnded");
    // Without anything outstanding a close is through at once.
    run.seen.clear();
    let idle = run.producer("i", "s", 1);
    assert!(run.world.close_producer(run.now, idle));
    run.gather();
    assert!(matches!(
        run.seen.as_slice(),
        [Effect::ProducerClosed { .. }]
    ));
}

// rule: P-8
#[test]
fn what_a_lost_session_submitted_goes_on() {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    let tag = run.submit(producer, "s", &ids(0..1));
    run.world.abandon_producer(run.now, producer);
    run.gather();
    let counts = ["producers", "outstanding batches"];
    assert_eq!(run.described("DESCRIBE INGESTOR i", &counts), ["0", "1"]);
    let consumer = run.consumer("e", "s", 4);
    let received = run.delivery(consumer);
    run.ack(consumer, &received);
    assert_eq!(run.outcome_of(tag), None);
    assert_eq!(run.described("DESCRIBE INGESTOR i", &counts), ["0", "0"]);
    assert!(run.seen.is_empty());
}

// rule: P-6
#[test]
fn a_suspended_ingestor_refuses_and_says_when_it_is_open_again() {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    let consumer = run.consumer("e", "s", 4);
    let before = run.submit(producer, "s", &ids(0..1));
    assert!(run.world.suspend_ingestor(run.now, "d", "i"));
    assert!(run.world.suspend_ingestor(run.now, "d", "i"));
    let during = run.submit(producer, "s", &ids(1..2));
    run.assert_outcome(during, "Suspended");
    let (_, opened) = run.opened_producer("i", "s", 1);
    assert_eq!(opened.admission, ProducerAdmission::Suspended);
    assert_eq!(
        run.described("DESCRIBE INGESTOR i", &["admission"]),
        ["suspended"]
    );
    // What was admitted goes on.
    let received = run.delivery(consumer);
    run.ack(consumer, &received);
    run.assert_outcome(before, "Completed");
    assert!(run.world.resume_ingestor(run.now, "d", "i"));
    run.gather();
    let admissions: Vec<ProducerAdmission> = run
        .seen
        .iter()
        .filter_map(|effect| match effect {
            Effect::Admission {
                producer: of,
                admission,
            } if *of == producer => Some(*admission),
            _ => None,
        })
        .collect();
    assert_eq!(
        admissions,
        [ProducerAdmission::Suspended, ProducerAdmission::Open]
    );
    let after = run.submit(producer, "s", &ids(1..2));
    run.assert_pending(after);
    assert!(!run.world.suspend_ingestor(run.now, "d", "x"));
}

// rule: P-5
#[test]
fn tests_decide_outcomes_that_no_correct_client_causes() {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    let decided = [
        SubmissionDisposition::SubmissionNotAdmitted(SubmissionNotAdmitted {
            refusal: SubmissionRefusal::Busy,
        }),
        SubmissionDisposition::SubmissionNotAdmitted(SubmissionNotAdmitted {
            refusal: SubmissionRefusal::Busy,
        }),
        SubmissionDisposition::SubmissionFailed(SubmissionFailed {
            failure: ProcessingFailure::AckTimedOut,
        }),
        SubmissionDisposition::SubmissionOutcomeUnknown(SubmissionOutcomeUnknown {
            cause: OutcomeUncertainty::OwnerLost,
        }),
    ];
    for disposition in decided {
        run.world.force_submission("d", "i", disposition);
    }
    for expected in ["Busy", "Busy", "AckTimedOut", "UnknownOwnerLost"] {
        let tag = run.submit(producer, "s", &ids(0..1));
        run.assert_outcome(tag, expected);
    }
    let tag = run.submit(producer, "s", &ids(0..1));
    run.assert_pending(tag);
    assert!(run
        .world
        .end_producer(run.now, producer, ProducerEndReason::OwnerLost));
    run.gather();
    run.assert_outcome(tag, "UnknownOwnerLost");
    assert!(matches!(
        run.seen.as_slice(),
        [Effect::ProducerEnded {
            reason: ProducerEndReason::OwnerLost,
            ..
        }]
    ));
}

fn relay_flow(tail: &str) -> Vec<String> {
    vec![
        "CREATE SCHEMA t (id U64, at DATETIME, amount I32 OPTIONAL, tags VEC<STRING> OPTIONAL)".to_string(),
        "CREATE SCHEMA u (id U64, at DATETIME, amount I32 OPTIONAL, tags VEC<STRING> OPTIONAL, twice I32 OPTIONAL, seen DATETIME, label STRING)".to_string(),
        "CREATE SCHEMA bad (id U64, code STRING, text STRING)".to_string(),
        "CREATE RELAY r SCHEMA u UNBRANCHED".to_string(),
        "CREATE RELAY rejected SCHEMA bad UNBRANCHED".to_string(),
        format!(
            "CREATE INGESTOR i FROM CLIENT SCHEMA t MODE ACK PARALLEL MAX 8 ACK TIMEOUT 60s RETRY POLICY BACKOFF 100ms MAX 1s \
             ON QUIESCE SUSPEND TIMESTAMP AT at TO r INHERIT ALL SET twice = input.amount * 2, seen = now(), \
             label = 'in', twice = message.twice + 1 {tail} ON GENERAL ERROR LOG"
        ),
        "CREATE SUBSCRIPTION".to_string(),
    ]
}

fn start_flow(domain: &str, tail: &str) -> (Run, OpenedSubscription, OpenedSubscription) {
    let statements = relay_flow(tail);
    let statements: Vec<&str> = statements[..6].iter().map(String::as_str).collect();
    let mut run = Run::stopped(domain, &statements);
    run.execute("START");
    let rows = subscribe(&mut run.world, "CREATE SUBSCRIPTION a TO r");
    let errors = subscribe(&mut run.world, "CREATE SUBSCRIPTION b TO rejected");
    (run, rows, errors)
}

fn rows_seen(run: &mut Run, opened: &OpenedSubscription) -> Vec<String> {
    run.gather();
    run.seen
        .iter()
        .filter_map(|effect| match effect {
            Effect::Rows(delivery) if delivery.subscription == opened.id => {
                Some(row_lines(delivery, &opened.schema))
            }
            _ => None,
        })
        .flatten()
        .collect()
}

#[test]
fn rows_are_inherited_set_in_order_and_filtered() {
    let tail = "WHERE message.twice > 3 OR amount IS NULL FLUSH IMMEDIATE ON MESSAGE ERROR LOG";
    let (mut run, rows, _) = start_flow("CREATE UNPACED DOMAIN d", tail);
    let producer = run.producer("i", "t", 4);
    let tag = run.submit(
        producer,
        "t",
        r#"[{"id": 1, "at": 5, "amount": 1, "tags": ["a"]}, {"id": 2, "at": 6, "amount": 2, "tags": ["b", ""]}, {"id": 3, "at": 7}]"#,
    );
    run.assert_outcome(tag, "Completed");
    let now = run.now.0;
    assert_eq!(
        rows_seen(&mut run, &rows),
        [
            format!("ROW [] id=u64:2 at=datetime:6 amount=i32:2 tags=[str:62,str:] twice=i32:5 seen=datetime:{now} label=str:696e"),
            format!("ROW [] id=u64:3 at=datetime:7 amount=null tags=null twice=null seen=datetime:{now} label=str:696e"),
        ]
    );
}

/// A row too old for the window, one whose arithmetic overflows, and one in order.
fn submit_bad_rows(run: &mut Run) -> crate::graph::Tag {
    let producer = run.producer("i", "t", 4);
    let now = run.now.0;
    let rows = format!(
        r#"[{{"id": 1, "at": {}}}, {{"id": 2, "at": {now}, "amount": 2147483647}}, {{"id": 3, "at": {now}, "amount": 1}}]"#,
        now - 11 * MS
    );
    run.submit(producer, "t", &rows)
}

const PACED: &str = "CREATE PACED DOMAIN d WITH PERIOD 100ms SKEW 10ms";

#[test]
fn a_row_that_fails_is_logged_ignored_or_sent_on() {
    for (policy, expected) in [("LOG", "Rejected"), ("IGNORE", "Completed")] {
        let tail = format!("FLUSH IMMEDIATE ON MESSAGE ERROR {policy}");
        let (mut run, rows, _) = start_flow(PACED, &tail);
        let tag = submit_bad_rows(&mut run);
        run.assert_outcome(tag, expected);
        assert_eq!(rows_seen(&mut run, &rows).len(), 1, "{policy}");
    }
    let tail = "FLUSH IMMEDIATE ON MESSAGE ERROR SEND TO rejected SET id = input.id, code = error.code, text = error.message";
    let (mut run, rows, errors) = start_flow(PACED, tail);
    let tag = submit_bad_rows(&mut run);
    run.assert_outcome(tag, "Completed");
    assert_eq!(rows_seen(&mut run, &rows).len(), 1);
    let hex = |text: &str| {
        text.bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let errors = rows_seen(&mut run, &errors);
    assert_eq!(errors.len(), 2);
    assert!(errors[0].starts_with(&format!(
        "ROW [] id=u64:1 code=str:{} text=str:",
        hex("validation")
    )));
    assert!(errors[1].starts_with(&format!(
        "ROW [] id=u64:2 code=str:{} text=str:",
        hex("evaluation")
    )));
}

#[test]
fn an_unpaced_domain_admits_every_time() {
    let (mut run, rows, _) = start_flow("CREATE UNPACED DOMAIN d", NOW_ON);
    let producer = run.producer("i", "t", 4);
    let tag = run.submit(producer, "t", r#"{"id": 1, "at": -9223372036854775808}"#);
    run.assert_outcome(tag, "Completed");
    assert_eq!(rows_seen(&mut run, &rows).len(), 1);
}

#[test]
fn rows_are_buffered_by_branch_until_their_time_or_size() {
    let statements = [
        "CREATE SCHEMA s (id U64)",
        "CREATE SCHEMA k (id U64)",
        "CREATE BRANCH b SCHEMA k TTL 10m",
        "CREATE RELAY r SCHEMA s BRANCHED BY b",
        &ingestor(
            "PARALLEL MAX 8",
            "BRANCHED BY b SET id = input.id FLUSH EACH 200ms MAX BATCH SIZE 32bytes ON MESSAGE ERROR LOG",
        ),
    ];
    let mut run = Run::stopped("CREATE PACED DOMAIN d WITH PERIOD 1s SKEW 1s", &statements);
    run.execute("START TIME RATE 4.0");
    let opened = subscribe(&mut run.world, "CREATE SUBSCRIPTION a TO r");
    let producer = run.producer("i", "s", 8);
    run.seen.clear();
    let rows = r#"[{"id": 1}, {"id": 2}, {"id": 1}]"#;
    let first = run.submit(producer, "s", rows);
    run.pass(30 * MS);
    let second = run.submit(producer, "s", r#"{"id": 1}"#);
    assert!(rows_seen(&mut run, &opened).is_empty());
    // The branch of 1 is full with its fourth row.
    let third = run.submit(producer, "s", r#"{"id": 1}"#);
    assert_eq!(
        rows_seen(&mut run, &opened),
        vec!["ROW [id=u64:1] id=u64:1"; 4]
    );
    run.assert_outcome(second, "Completed");
    run.assert_outcome(third, "Completed");
    run.assert_pending(first);
    // 200 ms of the domain's time are 50 ms of UTC.
    run.pass(20 * MS - 1);
    run.assert_pending(first);
    run.pass(1);
    run.assert_outcome(first, "Completed");
    assert_eq!(rows_seen(&mut run, &opened)[4], "ROW [id=u64:2] id=u64:2");
}

// rule: P-3
#[test]
fn every_defect_of_a_batch_is_named_and_nothing_of_it_admitted() {
    let mut run = Run::new(&[
        SCHEMA,
        RELAY,
        &ingestor("SEQUENTIAL", NOW_ON),
        "CREATE SCHEMA other (id U32)",
    ]);
    let opened = subscribe(&mut run.world, "CREATE SUBSCRIPTION a TO r");
    let mut request = run.open_ingestor("i", "s", 8);
    request.max_outstanding_bytes = 32 << 20;
    let (producer, _) = run.world.open_producer(run.now, OPENER, &request).unwrap();
    let good = run.stream("s", &ids(0..2));
    let mut spoiled = good.clone();
    spoiled.truncate(good.len() - 8);
    let mut trailing = good.clone();
    trailing.push(0);
    let schema_only = {
        // The stream without its record batch: what comes before the second message, and the end.
        let metadata = i32::from_le_bytes(good[4..8].try_into().unwrap()) as usize;
        let mut stream = good[..8 + metadata].to_vec();
        stream.extend([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        stream
    };
    let metadata = i32::from_le_bytes(good[4..8].try_into().unwrap()) as usize;
    let (head, rest) = good.split_at(8 + metadata);
    let (body, end) = rest.split_at(rest.len() - 8);
    let twice = [head, body, body, end].concat();
    let two_schemas = [head, head, body, end].concat();
    let many = {
        use arrow_array::{RecordBatch, UInt64Array};
        use std::sync::Arc;
        let schema = arrow_schema::Schema::new(vec![arrow_schema::Field::new(
            "id",
            arrow_schema::DataType::UInt64,
            false,
        )]);
        let ids = UInt64Array::from_iter_values(0..65_537);
        let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(ids)]).unwrap();
        super::super::ipc::stream(&batch).unwrap()
    };
    let large = vec![0; (4 << 20) - 255];
    for (stream, expected) in [
        (&spoiled, "MalformedBatch"),
        (&trailing, "MalformedBatch"),
        (&Vec::from(b"not a stream"), "MalformedBatch"),
        (&schema_only, "NotOneBatch"),
        (&twice, "NotOneBatch"),
        (&two_schemas, "UnexpectedMessage"),
        (&run.stream("other", &ids(0..2)), "SchemaMismatch"),
        (&many, "TooManyRows"),
        (&large, "BatchTooLarge"),
    ] {
        let tag = run.submit_stream(producer, stream);
        run.assert_outcome(tag, expected);
    }
    assert!(rows_seen(&mut run, &opened).is_empty());
    let counts = ["outstanding batches", "admitted batches"];
    assert_eq!(run.described("DESCRIBE INGESTOR i", &counts), ["0", "0"]);
    let tag = run.submit_stream(producer, &good);
    run.assert_outcome(tag, "Completed");
}

/// A stream whose record batch says that it is compressed.
fn compressed(plain: &[u8]) -> Vec<u8> {
    use arrow_ipc::{
        BodyCompressionBuilder, CompressionType, MessageBuilder, MessageHeader, MetadataVersion,
        RecordBatchBuilder,
    };
    let mut builder = flatbuffers::FlatBufferBuilder::new();
    let mut compression = BodyCompressionBuilder::new(&mut builder);
    compression.add_codec(CompressionType::ZSTD);
    let compression = compression.finish();
    let mut batch = RecordBatchBuilder::new(&mut builder);
    batch.add_length(0);
    batch.add_compression(compression);
    let batch = batch.finish();
    let mut message = MessageBuilder::new(&mut builder);
    message.add_version(MetadataVersion::V5);
    message.add_header_type(MessageHeader::RecordBatch);
    message.add_header(batch.as_union_value());
    let message = message.finish();
    builder.finish(message, None);
    let mut metadata = builder.finished_data().to_vec();
    metadata.resize(metadata.len().next_multiple_of(8), 0);
    let schema = i32::from_le_bytes(plain[4..8].try_into().unwrap()) as usize;
    let mut stream = plain[..8 + schema].to_vec();
    stream.extend([0xff; 4]);
    stream.extend((metadata.len() as i32).to_le_bytes());
    stream.extend(metadata);
    stream.extend([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    stream
}

// rule: P-3
#[test]
fn data_that_is_not_what_it_says_is_refused() {
    let mut run = Run::new(&[
        "CREATE SCHEMA s (text STRING, n I64 OPTIONAL)",
        RELAY,
        &ingestor("SEQUENTIAL", NOW_ON),
    ]);
    let producer = run.producer("i", "s", 8);
    let good = run.stream("s", r#"[{"text": "abcd"}, {"text": "efgh"}]"#);
    let place = |needle: &[u8]| {
        good.windows(needle.len())
            .position(|window| window == needle)
            .unwrap()
    };
    let spoiled = |at: usize, bytes: &[u8]| {
        let mut stream = good.clone();
        stream[at..at + bytes.len()].copy_from_slice(bytes);
        stream
    };
    let offsets = place(&[0, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0]);
    for (stream, expected) in [
        (spoiled(place(b"abcd"), &[0xff]), "InvalidData"),
        (spoiled(offsets + 4, &[9, 0, 0, 0]), "InvalidData"),
        (spoiled(offsets + 8, &[99, 0, 0, 0]), "InvalidData"),
        (compressed(&good), "CompressedBatch"),
    ] {
        let tag = run.submit_stream(producer, &stream);
        run.assert_outcome(tag, expected);
    }
}

/// The elements of a null fixed list may be written as nulls; they are passed on as if they were not.
// rule: P-3, EC-3
#[test]
fn the_nulls_within_a_null_fixed_list_are_not_passed_on() {
    use arrow_array::{Array, ArrayRef, FixedSizeListArray, Int16Array, RecordBatch};
    use arrow_buffer::NullBuffer;
    use std::sync::Arc;
    let mut run = Run::new(&[
        "CREATE SCHEMA s (grid ARRAY<I16, 2, 2> OPTIONAL)",
        RELAY,
        &ingestor("SEQUENTIAL", NOW_ON),
        &emitter("ATTACHED", "SEQUENTIAL", SIXTEEN),
    ]);
    let item = |array: &dyn Array| {
        Arc::new(arrow_schema::Field::new(
            "item",
            array.data_type().clone(),
            false,
        ))
    };
    let grids = |outer: [bool; 2], inner: [bool; 4], numbers: [Option<i16>; 8]| {
        let numbers = Int16Array::from(numbers.to_vec());
        let inner = FixedSizeListArray::try_new(
            item(&numbers),
            2,
            Arc::new(numbers),
            Some(NullBuffer::from(inner.to_vec())),
        )
        .unwrap();
        let outer_nulls = Some(NullBuffer::from(outer.to_vec()));
        let field = item(&inner);
        let grid = FixedSizeListArray::try_new(field, 2, Arc::new(inner), outer_nulls).unwrap();
        let schema = arrow_schema::Schema::new(vec![arrow_schema::Field::new(
            "grid",
            grid.data_type().clone(),
            true,
        )]);
        let batch =
            RecordBatch::try_new(Arc::new(schema), vec![Arc::new(grid) as ArrayRef]).unwrap();
        super::super::ipc::stream(&batch).unwrap()
    };
    let one = Some(1);
    let stream = grids(
        [true, false],
        [true, true, false, false],
        [one, one, one, one, None, None, None, one],
    );
    let producer = run.producer("i", "s", 1);
    let consumer = run.consumer("e", "s", 1);
    let tag = run.submit_stream(producer, &stream);
    let received = run.delivery(consumer);
    run.ack(consumer, &received);
    run.assert_outcome(tag, "Completed");
    let batch = batch_of(&run, "s", &received);
    assert_eq!(batch.column(0).null_count(), 1);
    // Written again, no level but the outermost has a null.
    let again = {
        let message = &received.batch;
        let schema = 8 + i32::from_le_bytes(message[4..8].try_into().unwrap()) as usize;
        let metadata =
            i32::from_le_bytes(message[schema + 4..schema + 8].try_into().unwrap()) as usize;
        let message = &message[schema + 8..schema + 8 + metadata];
        let message = arrow_ipc::root_as_message(message).unwrap();
        let nodes = message.header_as_record_batch().unwrap().nodes().unwrap();
        nodes
            .iter()
            .map(|node| node.null_count())
            .collect::<Vec<_>>()
    };
    assert_eq!(again, [1, 0, 0]);
}
