//! Consumers, their deliveries and settlements: EC-1 to EC-6, B-15, B-16.

use nervix_engine::{
    Call, CallId, ConnId, Decision, Done, EndpointId, EndpointState, ErrorKind, OpenRefusal,
    ReopenReason, Role, Settlement, Stop,
};
use nervix_wire::types::*;

use crate::bench::{Bench, REQUEST_TIMEOUT};
use crate::common::frames::*;
use crate::common::{MS, SEC};

fn consuming() -> (Bench, ConnId, EndpointId, u64) {
    let (mut bench, conn) = Bench::connected();
    let (consumer, wire) = bench.consumer(conn);
    (bench, conn, consumer, wire)
}

/// Reads the interruption of a lost session and asks again; the next session, and the request that restores.
fn restoring(
    bench: &mut Bench,
    conn: ConnId,
    consumer: EndpointId,
) -> (ConnId, CallId, u64, OpenEmitterRequest) {
    bench.lose(conn);
    let call = bench.call(Call::NextDelivery(consumer));
    bench.fails(call, ErrorKind::Interrupted);
    let call = bench.call(Call::NextDelivery(consumer));
    assert!(bench.is_waiting(call));
    let conn = bench.reconnected();
    let (wire, open) = bench.open_emitter(conn);
    (conn, call, wire, open)
}

fn is_over(bench: &mut Bench, consumer: EndpointId, reason: ReopenReason) {
    assert_eq!(
        bench.engine.endpoint_state(consumer),
        EndpointState::ReopenRequired
    );
    assert_eq!(bench.engine.reopen_reason(consumer).unwrap().0, reason);
    let call = bench.call(Call::NextDelivery(consumer));
    bench.fails(call, ErrorKind::ReopenRequired);
}

fn closes(messages: &[ClientMessage], wire: u64) -> usize {
    messages
        .iter()
        .filter(|message| {
            matches!(&message.request, ClientRequest::CloseEmitterRequest(close) if close.consumer == wire)
        })
        .count()
}

// rule: EC-1, B-12
#[test]
fn an_open_says_exactly_what_it_expects() {
    let (mut bench, conn) = Bench::connected();
    let mut wanted = Bench::wanted("orders");
    wanted.fields[0].sensitive = true;
    let call = bench.call(Call::Open(Role::Consumer, wanted.clone()));
    let (wire, open) = bench.open_emitter(conn);
    assert_eq!((&*open.domain, &*open.emitter), ("d", "orders"));
    assert_eq!(open.expected_fields, wanted.fields);
    assert_eq!(open.max_outstanding_batches, wanted.batches);
    assert_eq!(open.max_outstanding_bytes, wanted.bytes);
    let mut opened = emitter("d", "orders");
    opened.fields = wanted.fields.clone();
    opened.window = ConsumerWindow::SequentialConsumerWindow;
    bench.reply(conn, wire, consumer_opened(opened.clone()));
    let Ok(Done::Endpoint(id, contract)) = bench.result(call) else {
        panic!()
    };
    assert_eq!(contract.schema.fields, wanted.fields);
    assert_eq!(contract.digest, opened.contract.bytes);
    assert_eq!(contract.window, None);
    assert_eq!(
        (contract.max_batch_bytes, contract.max_batch_rows),
        (1000, 100)
    );
    assert_eq!(bench.engine.endpoint_state(id), EndpointState::Active);
    // Nothing is read for a host that asks for nothing.
    bench.sends_nothing(conn);
}

// rule: EC-1, B-12
#[test]
fn every_refusal_is_told() {
    let cases = [
        (
            EmitterOpenRefusal::DomainNotFound,
            OpenRefusal::DomainNotFound,
        ),
        (
            EmitterOpenRefusal::DomainStopped,
            OpenRefusal::DomainStopped,
        ),
        (
            EmitterOpenRefusal::EmitterNotFound,
            OpenRefusal::EndpointNotFound,
        ),
        (
            EmitterOpenRefusal::NotClientEmitter,
            OpenRefusal::NotClientEndpoint,
        ),
        (
            EmitterOpenRefusal::EndpointUnavailable,
            OpenRefusal::EndpointUnavailable,
        ),
        (
            EmitterOpenRefusal::SchemaMismatch,
            OpenRefusal::SchemaMismatch,
        ),
        (
            EmitterOpenRefusal::TooManyConsumers,
            OpenRefusal::TooManyEndpoints,
        ),
        (
            EmitterOpenRefusal::SessionCapacityExhausted,
            OpenRefusal::SessionCapacityExhausted,
        ),
        (
            EmitterOpenRefusal::NodeCapacityExhausted,
            OpenRefusal::NodeCapacityExhausted,
        ),
        (
            EmitterOpenRefusal::InvalidLimits,
            OpenRefusal::InvalidLimits,
        ),
        (
            EmitterOpenRefusal::InTransaction,
            OpenRefusal::InTransaction,
        ),
    ];
    for (wire, expected) in cases {
        let (mut bench, conn) = Bench::connected();
        let call = bench.open(Role::Consumer, "e");
        let (id, _) = bench.open_emitter(conn);
        bench.reply(conn, id, consumer_refused(wire));
        let error = bench.fails(call, ErrorKind::Rejected);
        assert_eq!(error.refusal, Some(expected));
        bench.pass(5 * SEC);
        bench.sends_nothing(conn);
    }
}

// rule: EC-1
#[test]
fn an_open_nobody_waited_for_is_released() {
    let (mut bench, conn) = Bench::connected();
    let call = bench.open(Role::Consumer, "e");
    let (wire, _) = bench.open_emitter(conn);
    bench.stop(call, Stop::Deadline);
    bench.fails(call, ErrorKind::Deadline);
    let mut sent = bench.all_sent(conn);
    bench.reply(conn, wire, consumer_opened(emitter("d", "e")));
    sent.extend(bench.all_sent(conn));
    assert_eq!(closes(&sent, wire), 1, "{sent:?}");
}

// rule: EC-2
#[test]
fn a_parked_read_holds_nothing_back() {
    let (mut bench, conn, consumer, wire) = consuming();
    let (producer, _) = bench.producer(conn);
    bench.follow(conn, "d", clock(7, paced()));
    let earlier = bench.deliver(conn, consumer, 1, 1);
    let call = bench.call(Call::NextDelivery(consumer));
    let (read, of) = bench.read(conn);
    assert_eq!(of, wire);
    let submission = bench.submit(producer, 1);
    let (request, ..) = bench.batch(conn);
    bench.reply(conn, request, batch_completed());
    bench.rejoin(producer, submission);
    bench.frame(conn, clock_ticked("d", 7, 1));
    bench.clock_event();
    let settle = bench.settle(&earlier, Decision::Ack);
    let (id, _) = bench.settlement(conn);
    bench.reply(conn, id, settled(EmitterSettlement::Confirmed));
    assert_eq!(bench.settled(settle), Settlement::Confirmed);
    let (command, _, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, completed(&reference));
    bench.outcome(command);
    assert!(bench.is_waiting(call));
    bench.reply(conn, read, delivery(2, 2));
    assert_eq!(bench.delivery(call).identity, sixteen(2));
}

// rule: EC-2
#[test]
fn one_read_is_parked_and_an_abandoned_one_serves_the_next() {
    let (mut bench, conn, consumer, _) = consuming();
    let first = bench.call(Call::NextDelivery(consumer));
    let (read, _) = bench.read(conn);
    bench.stop(first, Stop::Cancelled);
    bench.fails(first, ErrorKind::Cancelled);
    bench.sends_nothing(conn);
    let second = bench.call(Call::NextDelivery(consumer));
    bench.sends_nothing(conn);
    bench.reply(conn, read, delivery(1, 1));
    assert_eq!(bench.delivery(second).reference, sixteen(1));
    // And when the answer came while nobody waited.
    let third = bench.call(Call::NextDelivery(consumer));
    let (read, _) = bench.read(conn);
    bench.stop(third, Stop::Deadline);
    bench.fails(third, ErrorKind::Deadline);
    bench.reply(conn, read, delivery(2, 2));
    bench.sends_nothing(conn);
    let fourth = bench.call(Call::NextDelivery(consumer));
    assert_eq!(bench.delivery(fourth).reference, sixteen(2));
}

// rule: EC-2
#[test]
fn several_waiters_are_served_in_turn() {
    let (mut bench, conn, consumer, _) = consuming();
    let calls: Vec<_> = (0..3)
        .map(|_| bench.call(Call::NextDelivery(consumer)))
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        let (read, _) = bench.read(conn);
        bench.sends_nothing(conn);
        bench.reply(conn, read, delivery(number as u64, number as u64));
        assert_eq!(bench.delivery(call).identity, sixteen(number as u64));
    }
    bench.sends_nothing(conn);
}

// rule: EC-2, T-8
#[test]
fn a_parked_read_outlives_the_request_timeout() {
    let (mut bench, conn, consumer, _) = consuming();
    let call = bench.call(Call::NextDelivery(consumer));
    let (read, _) = bench.read(conn);
    assert_eq!(bench.quiet(conn, 10 * REQUEST_TIMEOUT), []);
    assert!(bench.is_waiting(call) && !bench.is_reset(conn));
    bench.reply(conn, read, delivery(1, 1));
    bench.delivery(call);
    // A connection that swallows everything is noticed all the same.
    let call = bench.call(Call::NextDelivery(consumer));
    bench.pass(2 * REQUEST_TIMEOUT + SEC);
    assert!(bench.is_reset(conn));
    bench.fails(call, ErrorKind::Interrupted);
}

// rule: B-16, EC-3
#[test]
fn one_of_the_waiting_reads_is_told_of_an_interruption_and_the_others_read_on() {
    let (mut bench, conn, consumer, _) = consuming();
    let [first, second, third] = [(); 3].map(|()| bench.call(Call::NextDelivery(consumer)));
    let (_, _) = bench.read(conn);
    bench.lose(conn);
    bench.fails(first, ErrorKind::Interrupted);
    assert!(bench.is_waiting(second) && bench.is_waiting(third));
    let conn = bench.reconnected();
    let (wire, _) = bench.open_emitter(conn);
    bench.reply(conn, wire, consumer_opened(emitter("d", "e")));
    for (call, identity) in [(second, 1), (third, 2)] {
        let (read, _) = bench.read(conn);
        bench.reply(conn, read, delivery(identity, identity));
        bench.delivery(call);
    }
}

// rule: EC-2, C-6, C-8
#[test]
fn a_read_that_was_not_admitted_is_sent_again_after_growing_waits() {
    for rejection in [
        RequestRejection::TooManyRequestsInFlight,
        RequestRejection::ServerBusy,
    ] {
        let (mut bench, conn, consumer, wire) = consuming();
        let call = bench.call(Call::NextDelivery(consumer));
        let (mut read, _) = bench.read(conn);
        let mut waits = Vec::new();
        for _ in 0..4 {
            bench.reply(conn, read, rejected(rejection));
            assert!(bench.is_waiting(call));
            let since = bench.now;
            read = loop {
                if let Some(message) = bench.quiet(conn, 5 * MS).pop() {
                    assert_eq!(
                        message.request,
                        ClientRequest::ReadEmitterBatchRequest(ReadEmitterBatchRequest {
                            consumer: wire
                        })
                    );
                    break message.request_id;
                }
                assert!(bench.now - since < 10 * SEC);
            };
            waits.push(bench.now - since);
        }
        assert!(waits[0] >= 20 * MS && waits[3] > waits[0], "{waits:?}");
        bench.reply(conn, read, delivery(1, 1));
        bench.delivery(call);
        bench.sends_nothing(conn);
    }
}

// rule: EC-3
#[test]
fn a_delivery_is_told_as_it_came() {
    let (mut bench, conn, consumer, _) = consuming();
    for fingerprint in [None, Some([9; 32])] {
        let call = bench.call(Call::NextDelivery(consumer));
        let (read, _) = bench.read(conn);
        let mut body = delivery(5, 6);
        if let ReplyBody::ReadEmitterBatchOutcome(ReadEmitterBatchOutcome {
            disposition: ReadEmitterDisposition::EmitterBatchReceived(received),
            ..
        }) = &mut body
        {
            received.branch_fingerprint = fingerprint;
        }
        bench.reply(conn, read, body);
        let delivery = bench.delivery(call);
        assert_eq!(delivery.consumer, consumer);
        assert_eq!(
            (delivery.identity, delivery.reference),
            (sixteen(5), sixteen(6))
        );
        assert_eq!(&*delivery.source_relay, "r");
        assert_eq!(delivery.branch_fingerprint, fingerprint);
        assert_eq!(delivery.batch, content(5));
        assert_eq!((delivery.members, delivery.execution_now), (3, -5));
    }
}

// rule: EC-3, EC-5, B-16
#[test]
fn an_attachment_that_ended_is_an_interruption_and_a_fresh_open() {
    let (mut bench, conn, consumer, wire) = consuming();
    let before = bench.deliver(conn, consumer, 1, 1);
    let call = bench.call(Call::NextDelivery(consumer));
    let (read, _) = bench.read(conn);
    bench.reply(conn, read, consumer_ended());
    bench.fails(call, ErrorKind::Interrupted);
    assert!(matches!(
        bench.engine.endpoint_state(consumer),
        EndpointState::Interrupted | EndpointState::Restoring
    ));
    let settle = bench.settle(&before, Decision::Ack);
    bench.fails(settle, ErrorKind::Rejected);
    let call = bench.call(Call::NextDelivery(consumer));
    bench.pass(5 * SEC);
    let (again, open) = bench.open_emitter(conn);
    assert_ne!(again, wire);
    assert_eq!(open.emitter, "e");
    bench.reply(conn, again, consumer_opened(emitter("d", "e")));
    let (read, of) = bench.read(conn);
    assert_eq!(of, again);
    bench.reply(conn, read, delivery(1, 2));
    assert_eq!(bench.delivery(call).identity, sixteen(1));
    assert!(!bench.is_reset(conn));
    let settle = bench.settle(&before, Decision::Ack);
    bench.fails(settle, ErrorKind::Rejected);
    bench.sends_nothing(conn);
}

// rule: EC-4, B-15, N-6
#[test]
fn a_settlement_says_what_the_host_decided() {
    let decisions = [
        (Decision::Ack, EmitterBatchDecision::Ack, ""),
        (Decision::Retry, EmitterBatchDecision::Retry, ""),
        (
            Decision::Reject("unfit".into()),
            EmitterBatchDecision::Reject,
            "unfit",
        ),
    ];
    let answers = [
        (EmitterSettlement::Confirmed, Settlement::Confirmed),
        (
            EmitterSettlement::StaleReference,
            Settlement::StaleReference,
        ),
        (EmitterSettlement::WrongConsumer, Settlement::WrongConsumer),
        (EmitterSettlement::InvalidReason, Settlement::InvalidReason),
        (EmitterSettlement::ConsumerEnded, Settlement::ConsumerEnded),
    ];
    for (decision, sent, reason) in decisions {
        for (answer, expected) in answers {
            let (mut bench, conn, consumer, wire) = consuming();
            let delivery = bench.deliver(conn, consumer, 1, 77);
            let call = bench.settle(&delivery, decision.clone());
            let (id, settle) = bench.settlement(conn);
            assert_eq!(settle.consumer, wire);
            assert_eq!(settle.reference, sixteen(77));
            assert_eq!((settle.decision, &*settle.reason), (sent, reason));
            bench.pass(SEC);
            assert!(bench.is_waiting(call), "nothing is confirmed yet");
            bench.reply(conn, id, settled(answer));
            assert_eq!(bench.settled(call), expected);
            bench.sends_nothing(conn);
        }
    }
}

// rule: EC-4, N-6
#[test]
fn nothing_settles_by_itself() {
    let (mut bench, conn, consumer, _) = consuming();
    for number in 0..3 {
        drop(bench.deliver(conn, consumer, number, number));
    }
    assert_eq!(bench.quiet(conn, 60 * SEC), []);
}

// rule: EC-4, B-15
#[test]
fn a_stopped_settlement_may_be_repeated() {
    let (mut bench, conn, consumer, _) = consuming();
    let delivery = bench.deliver(conn, consumer, 1, 1);
    let call = bench.settle(&delivery, Decision::Ack);
    let (first, _) = bench.settlement(conn);
    bench.stop(call, Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    let again = bench.settle(&delivery, Decision::Ack);
    bench.reply(conn, first, settled(EmitterSettlement::Confirmed));
    for message in bench.all_sent(conn) {
        let answer = match message.request {
            ClientRequest::SettleEmitterBatchRequest(_) => settled(EmitterSettlement::Confirmed),
            ClientRequest::CancelRequest(_) => cancel_outcome(first, CancelState::NotInFlight),
            other => panic!("{other:?}"),
        };
        bench.reply(conn, message.request_id, answer);
    }
    assert_eq!(bench.settled(again), Settlement::Confirmed);
}

// rule: EC-5
#[test]
fn the_same_batch_may_come_again_under_a_new_reference() {
    let (mut bench, conn, consumer, _) = consuming();
    let first = bench.deliver(conn, consumer, 1, 1);
    let second = bench.deliver(conn, consumer, 1, 2);
    assert_eq!(
        (first.identity, &first.batch),
        (second.identity, &second.batch)
    );
    let stale = bench.settle(&first, Decision::Ack);
    let (id, settle) = bench.settlement(conn);
    assert_eq!(settle.reference, sixteen(1));
    bench.reply(conn, id, settled(EmitterSettlement::StaleReference));
    assert_eq!(bench.settled(stale), Settlement::StaleReference);
    let fresh = bench.settle(&second, Decision::Ack);
    let (id, settle) = bench.settlement(conn);
    assert_eq!(settle.reference, sixteen(2));
    bench.reply(conn, id, settled(EmitterSettlement::Confirmed));
    assert_eq!(bench.settled(fresh), Settlement::Confirmed);
}

// rule: EC-5, EC-6, B-16
#[test]
fn a_lost_session_is_told_once_before_anything_new() {
    for waiting in [false, true] {
        let (mut bench, conn, consumer, _) = consuming();
        let old = bench.deliver(conn, consumer, 1, 1);
        let call = waiting.then(|| bench.call(Call::NextDelivery(consumer)));
        bench.lose(conn);
        assert_eq!(
            bench.engine.endpoint_state(consumer),
            EndpointState::Interrupted
        );
        let call = call.unwrap_or_else(|| bench.call(Call::NextDelivery(consumer)));
        bench.fails(call, ErrorKind::Interrupted);
        let settle = bench.settle(&old, Decision::Ack);
        bench.fails(settle, ErrorKind::Rejected);
        let call = bench.call(Call::NextDelivery(consumer));
        let conn = bench.reconnected();
        let (wire, _) = bench.open_emitter(conn);
        assert_eq!(
            bench.engine.endpoint_state(consumer),
            EndpointState::Restoring
        );
        bench.reply(conn, wire, consumer_opened(emitter("d", "e")));
        let (read, of) = bench.read(conn);
        assert_eq!(of, wire);
        bench.reply(conn, read, delivery(1, 9));
        let new = bench.delivery(call);
        assert_eq!((new.identity, new.reference), (sixteen(1), sixteen(9)));
        // The old one is settled through nothing else.
        let settle = bench.settle(&old, Decision::Ack);
        bench.fails(settle, ErrorKind::Rejected);
        bench.sends_nothing(conn);
        let settle = bench.settle(&new, Decision::Ack);
        let (id, asked) = bench.settlement(conn);
        assert_eq!((asked.consumer, asked.reference), (wire, sixteen(9)));
        bench.reply(conn, id, settled(EmitterSettlement::Confirmed));
        bench.settled(settle);
    }
}

// rule: EC-2, EC-6, B-16
#[test]
fn a_delivery_read_for_nobody_dies_with_its_attachment() {
    let (mut bench, conn, consumer, _) = consuming();
    let call = bench.call(Call::NextDelivery(consumer));
    let (read, _) = bench.read(conn);
    bench.stop(call, Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    bench.reply(conn, read, delivery(1, 1));
    let (conn, call, wire, _) = restoring(&mut bench, conn, consumer);
    bench.reply(conn, wire, consumer_opened(emitter("d", "e")));
    assert!(bench.is_waiting(call));
    let (read, _) = bench.read(conn);
    bench.reply(conn, read, delivery(1, 2));
    assert_eq!(bench.delivery(call).reference, sixteen(2));
}

// rule: EC-5, B-16
#[test]
fn every_loss_is_told() {
    let (mut bench, conn, consumer, _) = consuming();
    let mut conn = conn;
    for round in 0..4 {
        let (next, call, wire, _) = restoring(&mut bench, conn, consumer);
        conn = next;
        if round == 2 {
            // Lost before it was restored: a gap like any.
            bench.lose(conn);
            if !bench.is_waiting(call) {
                bench.fails(call, ErrorKind::Interrupted);
                let call = bench.call(Call::NextDelivery(consumer));
                conn = bench.reconnected();
                let (wire, _) = bench.open_emitter(conn);
                bench.reply(conn, wire, consumer_opened(emitter("d", "e")));
                let (read, _) = bench.read(conn);
                bench.reply(conn, read, delivery(round, round));
                bench.delivery(call);
                continue;
            }
            conn = bench.reconnected();
            let (wire, _) = bench.open_emitter(conn);
            bench.reply(conn, wire, consumer_opened(emitter("d", "e")));
            let (read, _) = bench.read(conn);
            bench.reply(conn, read, delivery(round, round));
            bench.delivery(call);
            continue;
        }
        bench.reply(conn, wire, consumer_opened(emitter("d", "e")));
        let (read, _) = bench.read(conn);
        bench.reply(conn, read, delivery(round, round));
        bench.delivery(call);
    }
}

// rule: EC-5, B-16
#[test]
fn an_endpoint_that_changed_needs_a_new_consumer() {
    type Change = fn(&mut EmitterOpened);
    let changes: [(Change, ReopenReason); 10] = [
        (|o| o.generation += 1, ReopenReason::GenerationChanged),
        (
            |o| o.fields[0].sensitive = true,
            ReopenReason::SchemaChanged,
        ),
        (|o| o.contract.bytes[0] ^= 1, ReopenReason::ContractChanged),
        (
            |o| o.window = ConsumerWindow::SequentialConsumerWindow,
            ReopenReason::ContractChanged,
        ),
        (|o| o.ack_timeout_nanos += 1, ReopenReason::ContractChanged),
        (
            |o| o.retry_max_backoff_nanos += 1,
            ReopenReason::ContractChanged,
        ),
        (|o| o.granted_batches += 1, ReopenReason::ContractChanged),
        (|o| o.granted_bytes += 1, ReopenReason::ContractChanged),
        (|o| o.max_batch_bytes -= 1, ReopenReason::ContractChanged),
        (|o| o.max_batch_rows += 1, ReopenReason::ContractChanged),
    ];
    for (change, reason) in changes {
        let (mut bench, conn, consumer, _) = consuming();
        let (conn, call, wire, _) = restoring(&mut bench, conn, consumer);
        let mut opened = emitter("d", "e");
        change(&mut opened);
        bench.reply(conn, wire, consumer_opened(opened));
        bench.fails(call, ErrorKind::ReopenRequired);
        is_over(&mut bench, consumer, reason);
        let sent = bench.quiet(conn, 0);
        assert_eq!((closes(&sent, wire), sent.len()), (1, 1), "{sent:?}");
    }
}

// rule: EC-5, B-16
#[test]
fn a_refused_restoration_is_final_or_tried_again() {
    let last = [
        (
            EmitterOpenRefusal::DomainNotFound,
            ReopenReason::EndpointRemoved,
        ),
        (
            EmitterOpenRefusal::DomainStopped,
            ReopenReason::DomainStopped,
        ),
        (
            EmitterOpenRefusal::EmitterNotFound,
            ReopenReason::EndpointRemoved,
        ),
        (
            EmitterOpenRefusal::SchemaMismatch,
            ReopenReason::SchemaChanged,
        ),
        (EmitterOpenRefusal::InvalidLimits, ReopenReason::Refused),
    ];
    for (refusal, reason) in last {
        let (mut bench, conn, consumer, _) = consuming();
        let (conn, call, wire, _) = restoring(&mut bench, conn, consumer);
        bench.reply(conn, wire, consumer_refused(refusal));
        bench.fails(call, ErrorKind::ReopenRequired);
        is_over(&mut bench, consumer, reason);
        assert_eq!(bench.quiet(conn, 10 * SEC), []);
    }
    let (mut bench, conn, consumer, _) = consuming();
    let (conn, call, mut wire, _) = restoring(&mut bench, conn, consumer);
    let mut waits = Vec::new();
    for _ in 0..5 {
        bench.reply(
            conn,
            wire,
            consumer_refused(EmitterOpenRefusal::EndpointUnavailable),
        );
        let since = bench.now;
        wire = loop {
            assert!(bench.is_waiting(call));
            if let Some(message) = bench.quiet(conn, 10 * MS).pop() {
                break message.request_id;
            }
            assert!(bench.now - since < 30 * SEC);
        };
        waits.push(bench.now - since);
    }
    assert!(waits[4] > waits[0], "{waits:?}");
    bench.reply(conn, wire, consumer_opened(emitter("d", "e")));
    let (read, _) = bench.read(conn);
    bench.reply(conn, read, delivery(1, 1));
    bench.delivery(call);
}

// rule: EC-6
#[test]
fn a_close_waits_for_its_reply_and_ends_what_waits() {
    for answer in [
        EmitterCloseDisposition::Closed,
        EmitterCloseDisposition::NotOpen,
    ] {
        let (mut bench, conn, consumer, wire) = consuming();
        let unsettled = bench.deliver(conn, consumer, 1, 1);
        let waiting = bench.call(Call::NextDelivery(consumer));
        let (read, _) = bench.read(conn);
        let close = bench.call(Call::Close(consumer));
        let sent = bench.all_sent(conn);
        assert_eq!((closes(&sent, wire), sent.len()), (1, 1), "{sent:?}");
        assert!(bench.is_waiting(close));
        let late = bench.call(Call::NextDelivery(consumer));
        bench.fails(late, ErrorKind::Closed);
        bench.reply(conn, read, consumer_ended());
        bench.fails(waiting, ErrorKind::Closed);
        bench.reply(conn, sent[0].request_id, consumer_closed(answer));
        assert!(matches!(bench.result(close), Ok(Done::Closed)));
        assert_eq!(bench.engine.endpoint_state(consumer), EndpointState::Closed);
        let settle = bench.settle(&unsettled, Decision::Ack);
        bench.fails(settle, ErrorKind::Rejected);
        bench.sends_nothing(conn);
        let again = bench.call(Call::Close(consumer));
        assert!(matches!(bench.result(again), Ok(Done::Closed)));
    }
}

// rule: EC-6, C-6, C-8
#[test]
fn a_close_that_was_not_admitted_is_sent_again() {
    let (mut bench, conn, consumer, wire) = consuming();
    let unsettled = bench.deliver(conn, consumer, 1, 1);
    let close = bench.call(Call::Close(consumer));
    for _ in 0..3 {
        let sent = bench.quiet(conn, 2 * SEC);
        assert_eq!((closes(&sent, wire), sent.len()), (1, 1), "{sent:?}");
        bench.reply(
            conn,
            sent[0].request_id,
            rejected(RequestRejection::TooManyRequestsInFlight),
        );
        assert!(bench.is_waiting(close), "the server still holds it");
        let settle = bench.settle(&unsettled, Decision::Ack);
        bench.fails(settle, ErrorKind::Rejected);
    }
    let sent = bench.quiet(conn, 2 * SEC);
    bench.reply(
        conn,
        sent[0].request_id,
        consumer_closed(EmitterCloseDisposition::Closed),
    );
    assert!(matches!(bench.result(close), Ok(Done::Closed)));
}

// rule: C-8, EC-6, N-6
#[test]
fn a_settlement_whose_answer_could_not_be_carried_is_uncertain() {
    let (mut bench, conn, consumer, _) = consuming();
    let delivery = bench.deliver(conn, consumer, 1, 1);
    let call = bench.settle(&delivery, Decision::Ack);
    let (id, _) = bench.settlement(conn);
    bench.reply(conn, id, rejected(RequestRejection::ReplyTooLarge));
    bench.fails(call, ErrorKind::Uncertain);
}

// rule: EC-6, T-8
#[test]
fn a_close_that_a_silent_session_does_not_answer_ends_with_it() {
    let (mut bench, conn, consumer, _) = consuming();
    let close = bench.call(Call::Close(consumer));
    bench.pass(2 * REQUEST_TIMEOUT + SEC);
    assert!(bench.is_reset(conn));
    assert!(matches!(bench.result(close), Ok(Done::Closed)));
}

// rule: EC-6
#[test]
fn a_freed_consumer_is_closed_without_waiting() {
    let (mut bench, conn, consumer, wire) = consuming();
    let unsettled = bench.deliver(conn, consumer, 1, 1);
    let now = bench.time();
    bench.engine.free_endpoint(now, consumer);
    bench.pass(0);
    let sent = bench.all_sent(conn);
    assert_eq!((closes(&sent, wire), sent.len()), (1, 1), "{sent:?}");
    bench.reply(
        conn,
        sent[0].request_id,
        consumer_closed(EmitterCloseDisposition::Closed),
    );
    let settle = bench.settle(&unsettled, Decision::Ack);
    bench.fails(settle, ErrorKind::Rejected);
    bench.sends_nothing(conn);
}

// rule: EC-5, C-8
#[test]
fn a_restoration_that_the_server_calls_defective_is_not_sent_again() {
    for defect in DEFECTS {
        let (mut bench, conn, consumer, _) = consuming();
        let (conn, call, wire, _) = restoring(&mut bench, conn, consumer);
        bench.reply(conn, wire, rejected(defect));
        bench.fails(call, ErrorKind::ReopenRequired);
        is_over(&mut bench, consumer, ReopenReason::ProtocolViolated);
        assert_eq!(bench.quiet(conn, 30 * SEC), []);
    }
}

// rule: EC-6
#[test]
fn a_close_wins_over_a_restoration_in_flight() {
    let (mut bench, conn, consumer, _) = consuming();
    let (conn, call, wire, _) = restoring(&mut bench, conn, consumer);
    let close = bench.call(Call::Close(consumer));
    bench.fails(call, ErrorKind::Closed);
    let mut sent = bench.all_sent(conn);
    bench.reply(conn, wire, consumer_opened(emitter("d", "e")));
    sent.extend(bench.all_sent(conn));
    assert_eq!((closes(&sent, wire), sent.len()), (1, 1), "{sent:?}");
    bench.reply(
        conn,
        sent[0].request_id,
        consumer_closed(EmitterCloseDisposition::Closed),
    );
    assert!(matches!(bench.result(close), Ok(Done::Closed)));
    assert_eq!(bench.engine.endpoint_state(consumer), EndpointState::Closed);
    assert_eq!(bench.quiet(conn, 5 * SEC), []);
}

// rule: EC-6, B-15, N-6
#[test]
fn a_settlement_whose_answer_is_lost_is_uncertain() {
    for violation in [false, true] {
        let (mut bench, conn, consumer, _) = consuming();
        let delivery = bench.deliver(conn, consumer, 1, 1);
        let call = bench.settle(&delivery, Decision::Ack);
        bench.settlement(conn);
        if violation {
            bench.frame(conn, b"no frame");
        } else {
            bench.lose(conn);
        }
        let error = bench.fails(call, ErrorKind::Uncertain);
        assert_eq!(error.reference, None, "no command");
        let again = bench.settle(&delivery, Decision::Ack);
        bench.fails(again, ErrorKind::Rejected);
    }
}

// rule: EC-6, D-1
#[test]
fn a_consumer_stays_on_its_session_when_commands_move() {
    let (mut bench, conn, consumer, wire) = consuming();
    let old = bench.deliver(conn, consumer, 1, 1);
    let next_call = bench.call(Call::NextDelivery(consumer));
    let (read, _) = bench.read(conn);
    let (call, _, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    let (id, _) = bench.command(conn);
    let leader = Some(endpoints("b", Some("http://b:2")));
    bench.reply(conn, id, redirect(&reference, leader));
    let (next, _) = bench.opened();
    bench.greet(next);
    let (id, _) = bench.command(next);
    bench.reply(next, id, completed(&reference));
    bench.outcome(call);
    bench.quiet(conn, 5 * SEC);
    assert!(!bench.is_reset(conn));
    let settle = bench.settle(&old, Decision::Ack);
    let (id, asked) = bench.settlement(conn);
    assert_eq!(asked.consumer, wire);
    bench.reply(conn, id, settled(EmitterSettlement::Confirmed));
    bench.settled(settle);
    bench.reply(conn, read, delivery(2, 2));
    let held = bench.delivery(next_call);
    bench.sends_nothing(next);
    // Its session lost, it restores on the newest, and what it held is void.
    bench.lose(conn);
    let call = bench.call(Call::NextDelivery(consumer));
    bench.fails(call, ErrorKind::Interrupted);
    let call = bench.call(Call::NextDelivery(consumer));
    bench.pass(SEC);
    let (again, _) = bench.open_emitter(next);
    bench.reply(next, again, consumer_opened(emitter("d", "e")));
    let (read, _) = bench.read(next);
    bench.reply(next, read, delivery(2, 5));
    bench.delivery(call);
    let settle = bench.settle(&held, Decision::Ack);
    bench.fails(settle, ErrorKind::Rejected);
    bench.sends_nothing(next);
}

// rule: EC-6
#[test]
fn producers_and_consumers_share_a_session() {
    let (mut bench, conn, consumer, wire) = consuming();
    let (producer, other) = bench.producer(conn);
    assert_ne!(wire, other);
    let submission = bench.submit(producer, 1);
    let (request, ..) = bench.batch(conn);
    let delivery = bench.deliver(conn, consumer, 1, 1);
    let settle = bench.settle(&delivery, Decision::Ack);
    let (id, _) = bench.settlement(conn);
    bench.reply(conn, id, settled(EmitterSettlement::Confirmed));
    bench.settled(settle);
    bench.reply(conn, request, batch_completed());
    bench.rejoin(producer, submission);
}

// rule: EC-6
#[test]
fn the_end_of_everything_answers_everyone() {
    let (mut bench, conn, consumer, _) = consuming();
    let delivery = bench.deliver(conn, consumer, 1, 1);
    let settle = bench.settle(&delivery, Decision::Ack);
    let next = bench.call(Call::NextDelivery(consumer));
    bench.shut_down();
    bench.fails(settle, ErrorKind::Uncertain);
    bench.fails(next, ErrorKind::Closed);
    let after = bench.call(Call::NextDelivery(consumer));
    bench.fails(after, ErrorKind::Closed);
    let after = bench.settle(&delivery, Decision::Ack);
    bench.fails(after, ErrorKind::Rejected);
    bench.sends_nothing_since(conn);
}

impl Bench {
    /// Only what was sent before the end.
    fn sends_nothing_since(&mut self, conn: ConnId) {
        for message in self.all_sent(conn) {
            assert!(
                matches!(
                    message.request,
                    ClientRequest::SettleEmitterBatchRequest(_)
                        | ClientRequest::ReadEmitterBatchRequest(_)
                ),
                "{message:?}"
            );
        }
    }
}

// rule: EC-5
#[test]
fn a_server_that_ends_every_attachment_at_once_is_asked_at_a_bounded_rate() {
    let (mut bench, conn) = Bench::connected();
    let (consumer, _) = bench.consumer(conn);
    let mut opened = 0;
    let start = bench.now;
    let mut read = bench.call(Call::NextDelivery(consumer));
    while bench.now - start < 60 * SEC {
        for message in bench.quiet(conn, 10 * MS) {
            let answer = match message.request {
                ClientRequest::OpenEmitterRequest(_) => {
                    opened += 1;
                    consumer_opened(emitter("d", "e"))
                }
                ClientRequest::ReadEmitterBatchRequest(_) => consumer_ended(),
                other => panic!("{other:?}"),
            };
            bench.reply(conn, message.request_id, answer);
        }
        // A host that reads on, as it is told to.
        if !bench.is_waiting(read) {
            bench.fails(read, ErrorKind::Interrupted);
            read = bench.call(Call::NextDelivery(consumer));
        }
    }
    assert!((30..200).contains(&opened), "{opened} in a minute");
}
