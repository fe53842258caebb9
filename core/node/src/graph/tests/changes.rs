use nervix_wire::types::{EmitterOpenRefusal, ProducerEndReason, ProducerRefusal};

use super::harness::*;
use super::*;
use crate::graph::Effect;

/// What was said, without outcomes, in words.
fn said(run: &mut Run) -> Vec<String> {
    run.gather();
    run.seen
        .iter()
        .filter_map(|effect| match effect {
            Effect::Submission { disposition, .. } => Some(outcome(disposition)),
            Effect::ProducerEnded { reason, .. } => Some(format!("{reason:?}")),
            Effect::Read { received: None, .. } => Some("ReadEnded".to_string()),
            Effect::ConsumerEnded { .. } => Some("ConsumerEnded".to_string()),
            _ => None,
        })
        .collect()
}

/// A producer with a batch outstanding, and a consumer with that batch and a parked read.
fn busy() -> Run {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    let consumer = run.consumer("e", "s", 4);
    run.submit(producer, "s", &ids(0..1));
    run.delivery(consumer);
    run.park(consumer);
    run.seen.clear();
    run
}

// rule: P-6, P-8, EC-3, EC-5
#[test]
fn what_ends_an_endpoint_ends_its_producers_after_their_outcomes_and_its_consumers() {
    for (statement, reason) in [
        ("STOP", ProducerEndReason::DomainStopped),
        ("DROP DOMAIN d", ProducerEndReason::EndpointRemoved),
        (
            "ALTER SCHEMA s ADD more U8 OPTIONAL",
            ProducerEndReason::EndpointChanged,
        ),
        (
            "ALTER RELAY r SET SCHEMA same",
            ProducerEndReason::EndpointChanged,
        ),
    ] {
        let mut run = busy();
        run.execute("CREATE SCHEMA same (id U64)");
        run.execute(statement);
        assert_eq!(
            said(&mut run),
            [
                "UnknownInterrupted".to_string(),
                format!("{reason:?}"),
                "ReadEnded".to_string(),
                "ConsumerEnded".to_string(),
            ],
            "{statement}"
        );
    }
    let mut run = busy();
    run.execute("DROP INGESTOR i");
    assert_eq!(said(&mut run), ["UnknownInterrupted", "EndpointRemoved"]);
    let mut run = busy();
    run.execute("DROP EMITTER e");
    assert_eq!(
        said(&mut run),
        ["UnknownInterrupted", "ReadEnded", "ConsumerEnded"]
    );
    let mut run = busy();
    run.execute("ALTER RELAY r SET CAPACITY 3");
    assert_eq!(said(&mut run), [""; 0]);
}

// rule: P-8, EC-5
#[test]
fn an_altered_endpoint_works_with_its_new_fields() {
    let mut run = plain();
    let (_, before) = run.opened_producer("i", "s", 4);
    run.execute("ALTER SCHEMA s ADD more U8 OPTIONAL");
    run.seen.clear();
    let (producer, after) = run.opened_producer("i", "s", 4);
    assert_eq!(after.generation, before.generation);
    assert_ne!(after.contract, before.contract);
    assert_eq!(after.fields.len(), 2);
    let consumer = run.consumer("e", "s", 4);
    let tag = run.submit(producer, "s", r#"{"id": 5, "more": 6}"#);
    let received = run.delivery(consumer);
    assert_eq!(batch_of(&run, "s", &received).num_columns(), 2);
    run.ack(consumer, &received);
    run.assert_outcome(tag, "Completed");
}

// rule: P-8, EC-5
#[test]
fn a_new_start_is_a_new_generation_with_nothing_of_the_old_one() {
    let mut run = plain();
    let producer = run.producer("i", "s", 4);
    run.submit(producer, "s", &ids(0..1));
    let consumer = run.consumer("e", "s", 4);
    let old = run.delivery(consumer);
    run.execute("STOP");
    let request = run.open_ingestor("i", "s", 1);
    let (refusal, _) = run
        .world
        .open_producer(run.now, OPENER, &request)
        .unwrap_err();
    assert_eq!(refusal, ProducerRefusal::DomainStopped);
    let request = run.open_emitter("e", "s", 1);
    let (refusal, _) = run
        .world
        .open_consumer(run.now, OPENER, &request)
        .unwrap_err();
    assert_eq!(refusal, EmitterOpenRefusal::DomainStopped);
    assert_eq!(
        run.described("DESCRIBE INGESTOR i", &["status", "admission", "producers"]),
        ["stopped", "suspended", "0"]
    );
    run.execute("START");
    let (consumer, opened) = run.opened_consumer("e", "s", 4);
    assert_eq!(opened.generation, 2);
    assert!(run.idle(consumer));
    let (producer, opened) = run.opened_producer("i", "s", 4);
    assert_eq!(opened.generation, 2);
    run.submit(producer, "s", &ids(0..1));
    let new = run.delivery(consumer);
    assert_ne!(new.identity, old.identity);
    assert_ne!(new.reference, old.reference);
}

#[test]
fn endpoints_declared_in_a_running_domain_run() {
    let mut run = Run::new(&[SCHEMA, RELAY]);
    run.execute(&ingestor("PARALLEL MAX 8", NOW_ON));
    let producer = run.producer("i", "s", 4);
    let early = run.submit(producer, "s", &ids(0..1));
    run.assert_outcome(early, "Completed");
    run.execute(&emitter("ATTACHED", "PARALLEL MAX 4", SIXTEEN));
    let consumer = run.consumer("e", "s", 4);
    // What went through before is not seen.
    assert!(run.idle(consumer));
    let late = run.submit(producer, "s", &ids(1..2));
    let received = run.delivery(consumer);
    assert_eq!(ids_of(&run, &received), [1]);
    run.ack(consumer, &received);
    run.assert_outcome(late, "Completed");
}

#[test]
fn a_blocking_subscription_without_room_holds_the_relay_back() {
    let mut run = plain();
    let opened = subscribe(&mut run.world, "CREATE SUBSCRIPTION n TO r BLOCKING");
    let producer = run.producer("i", "s", 4);
    let consumer = run.consumer("e", "s", 4);
    let rows_of = |run: &Run| {
        run.seen
            .iter()
            .filter(|effect| matches!(effect, Effect::Rows(delivery) if delivery.subscription == opened.id))
            .count()
    };
    run.submit(producer, "s", &ids(0..1));
    assert_eq!(rows_of(&run), 1);
    run.world.set_reader_room(run.now, opened.id, false);
    run.submit(producer, "s", &ids(1..2));
    assert_eq!(rows_of(&run), 1);
    let first = run.delivery(consumer);
    assert_eq!(ids_of(&run, &first), [0]);
    assert!(run.idle(consumer));
    run.world.set_reader_room(run.now, opened.id, true);
    run.gather();
    assert_eq!(rows_of(&run), 2);
    let second = run.delivery(consumer);
    assert_eq!(ids_of(&run, &second), [1]);
    // One that is deleted holds nothing back either.
    run.world.set_reader_room(run.now, opened.id, false);
    run.submit(producer, "s", &ids(2..3));
    assert!(run.idle(consumer));
    run.world.unsubscribe(opened.id);
    run.world.advance(run.now);
    let third = run.delivery(consumer);
    assert_eq!(ids_of(&run, &third), [2]);
}

#[test]
fn published_rows_reach_emitters_too() {
    let mut run = plain();
    let consumer = run.consumer("e", "s", 4);
    let published = publish(&mut run.world, "r", &ids(0..20));
    assert_eq!(published.rows, 20);
    let (first, second) = (run.delivery(consumer), run.delivery(consumer));
    assert_eq!((first.members, second.members), (16, 4));
}

/// The graph of the paced simulation: two ingestors into one branched relay, errors into another, CAPACITY 1.
fn simulation() -> Run {
    let reading = "reading_id STRING, sensor STRING, tick U64";
    let ingestor = |name: &str, timestamp: &str, source: &str| {
        format!(
            "CREATE INGESTOR {name} FROM CLIENT SCHEMA reading MODE ACK PARALLEL MAX 8 ACK TIMEOUT 30s RETRY POLICY \
             BACKOFF 100ms MAX 2s ON QUIESCE SUSPEND TIMESTAMP {timestamp} TO readings INHERIT ALL \
             SET admitted_at = now(), timestamp_source = '{source}' BRANCHED BY by_sensor SET sensor = message.sensor \
             FLUSH EACH 100ms MAX BATCH SIZE 1MiB ON MESSAGE ERROR SEND TO rejected_readings SET reading_id = input.reading_id, \
             occurred_at = input.occurred_at, error_code = error.code, error_message = error.message ON GENERAL ERROR LOG"
        )
    };
    let emitter = |name: &str, from: &str, schema: &str, window: &str, batch: &str| {
        format!(
            "CREATE ATTACHED EMITTER {name} FROM {from} TO CLIENT SCHEMA {schema} MODE ACK {window} ACK TIMEOUT 30s \
             RETRY POLICY BACKOFF 100ms MAX 2s INHERIT ALL BATCH {batch} FLUSH EACH 100ms \
             ON MESSAGE ERROR LOG ON GENERAL ERROR LOG"
        )
    };
    let statements = [
        format!("CREATE SCHEMA reading ({reading}, occurred_at DATETIME, value I64)"),
        format!(
            "CREATE SCHEMA observed_reading ({reading}, occurred_at DATETIME, admitted_at DATETIME, timestamp_source STRING, value I64)"
        ),
        "CREATE SCHEMA rejected_reading (reading_id STRING, occurred_at DATETIME, error_code STRING, error_message STRING)".to_string(),
        "CREATE SCHEMA sensor_key (sensor STRING)".to_string(),
        "CREATE BRANCH by_sensor SCHEMA sensor_key TTL 10m".to_string(),
        "CREATE RELAY readings SCHEMA observed_reading BRANCHED BY by_sensor CAPACITY 1".to_string(),
        "CREATE RELAY rejected_readings SCHEMA rejected_reading UNBRANCHED CAPACITY 1".to_string(),
        ingestor("simulated_readings", "AT occurred_at", "at"),
        ingestor("live_readings", "NOW", "now"),
        emitter("observed_readings", "readings", "observed_reading", "PARALLEL MAX 4", "MAX MESSAGES 256 MAX SIZE 256KiB"),
        emitter("rejection_notices", "rejected_readings", "rejected_reading", "SEQUENTIAL", "MAX MESSAGES 64 MAX SIZE 64KiB"),
        "START AT NOW TIME RATE 4.0".to_string(),
    ];
    let statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    Run::stopped(
        "CREATE PACED DOMAIN d WITH PERIOD 100ms SKEW 100ms",
        &statements,
    )
}

#[test]
fn a_paced_simulation_runs_through() {
    use nervix_wire::types::EmitterBatchDecision;
    for name in ["simulated_readings", "live_readings"] {
        let mut run = simulation();
        run.seen.clear();
        let producer = run.producer(name, "reading", 8);
        let consumers: Vec<_> = (0..3)
            .map(|_| run.consumer("observed_readings", "observed_reading", 8))
            .collect();
        let notices = run.consumer("rejection_notices", "rejected_reading", 8);
        let origin = NOW.0;
        let mut tags = Vec::new();
        let mut applied = 0;
        let mut rejected = 0;
        let mut reads: Vec<_> = consumers
            .iter()
            .chain([&notices])
            .map(|consumer| (*consumer, run.park(*consumer)))
            .collect();
        for tick in 0..60_i64 {
            let center = origin + tick * 100 * MS;
            if tick < 50 {
                let rows: Vec<String> = (0..3)
                    .map(|sensor| {
                        let at = if sensor == 0 && tick % 5 == 4 {
                            center.min(origin + tick * 100 * MS) - 400 * 100 * MS
                        } else {
                            center
                        };
                        format!(
                            r#"{{"reading_id": "{tick}-{sensor}", "sensor": "sensor-{sensor}", "tick": {tick}, "occurred_at": {at}, "value": 1}}"#
                        )
                    })
                    .collect();
                tags.push(run.submit(producer, "reading", &format!("[{}]", rows.join(","))));
            }
            run.pass(25 * MS);
            // Whoever has something settles it a tick later.
            for (consumer, read) in &mut reads {
                let consumer = *consumer;
                let Some(received) = run.answer(*read) else {
                    continue;
                };
                let received = received.unwrap();
                if consumer == notices {
                    rejected += received.members;
                } else {
                    assert!(received.branch_fingerprint.is_some());
                    applied += received.members;
                }
                let settled = run.settle(consumer, &received, EmitterBatchDecision::Ack, "");
                assert_eq!(settled, nervix_wire::types::EmitterSettlement::Confirmed);
                *read = run.park(consumer);
            }
        }
        run.pass(SECOND);
        for tag in tags {
            run.assert_outcome(tag, "Completed");
        }
        let expected = if name == "live_readings" {
            (150, 0)
        } else {
            (140, 10)
        };
        assert_eq!((applied, rejected), expected, "{name}");
        let lines = [
            "producers",
            "outstanding batches",
            "outstanding bytes",
            "admitted batches",
        ];
        let query = format!("DESCRIBE INGESTOR {name}");
        assert_eq!(run.described(&query, &lines), ["1", "0", "0", "50"]);
        let lines = ["consumers", "retained batches"];
        assert_eq!(
            run.described("DESCRIBE EMITTER observed_readings", &lines),
            ["3", "0"]
        );
    }
}
