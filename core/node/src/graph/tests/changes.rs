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
