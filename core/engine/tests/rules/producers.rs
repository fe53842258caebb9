//! Producers and their batches: P-1 to P-8, B-14, and their state machines.

use nervix_engine::{
    Call, CallId, ConnId, Done, EndpointId, EndpointState, ErrorKind, OpenRefusal, ReopenReason,
    Role, Stop, SubmissionResult, Uncertainty,
};
use nervix_wire::types::*;

use crate::bench::{Bench, REQUEST_TIMEOUT};
use crate::common::frames::*;
use crate::common::{MS, SEC};

fn producing() -> (Bench, ConnId, EndpointId, u64) {
    let (mut bench, conn) = Bench::connected();
    let (producer, wire) = bench.producer(conn);
    (bench, conn, producer, wire)
}

fn result(bench: &mut Bench, producer: EndpointId, submission: u64) -> SubmissionResult {
    bench.rejoin(producer, submission).result
}

/// Loses the session and asks for the producer again; the next session, and the request that restores it.
fn restoring(
    bench: &mut Bench,
    conn: ConnId,
    producer: EndpointId,
) -> (ConnId, CallId, u64, OpenIngestorRequest) {
    bench.lose(conn);
    let call = bench.call(Call::Submit(producer, content(1000)));
    assert!(bench.is_waiting(call));
    let conn = bench.reconnected();
    let (wire, open) = bench.open_ingestor(conn);
    (conn, call, wire, open)
}

fn is_over(bench: &mut Bench, producer: EndpointId, reason: ReopenReason) {
    assert_eq!(
        bench.engine.endpoint_state(producer),
        EndpointState::ReopenRequired
    );
    assert_eq!(bench.engine.reopen_reason(producer).unwrap().0, reason);
    assert_eq!(
        bench.engine.admission(producer),
        ProducerAdmission::Suspended
    );
    let call = bench.call(Call::Submit(producer, content(1)));
    bench.fails(call, ErrorKind::ReopenRequired);
}

// rule: P-1, EC-1, F-8
#[test]
fn what_is_opened_is_what_was_asked_for() {
    let changes: [fn(&mut ProducerOpened); 4] = [
        |o| o.granted_batches = 1025,
        |o| o.granted_bytes = u64::MAX,
        |o| o.fields.push(o.fields[0].clone()),
        |o| o.fields[1].nullable = true,
    ];
    for (which, change) in changes.into_iter().enumerate() {
        let (mut bench, conn) = Bench::connected();
        let call = bench.open(Role::Producer, "orders");
        let (wire, _) = bench.open_ingestor(conn);
        let mut opened = ingestor("d", "orders");
        change(&mut opened);
        bench.reply(conn, wire, producer_opened(opened));
        assert!(bench.is_reset(conn), "{which}");
        bench.fails(call, ErrorKind::Protocol);
    }
}

// rule: P-1, P-2, B-12
#[test]
fn an_open_says_exactly_what_it_expects() {
    let (mut bench, conn) = Bench::connected();
    let mut wanted = Bench::wanted("orders");
    wanted.fields[1].nullable = true;
    wanted.fields[1].sensitive = true;
    wanted.batches = 1024;
    wanted.bytes = 32 << 20;
    let call = bench.call(Call::Open(Role::Producer, wanted.clone()));
    let (wire, open) = bench.open_ingestor(conn);
    assert_eq!((&*open.domain, &*open.ingestor), ("d", "orders"));
    assert_eq!(open.expected_fields, wanted.fields);
    assert_eq!(open.max_outstanding_batches, 1024);
    assert_eq!(open.max_outstanding_bytes, 32 << 20);
    let mut opened = ingestor("d", "orders");
    opened.fields = wanted.fields.clone();
    bench.reply(conn, wire, producer_opened(opened.clone()));
    let Ok(Done::Endpoint(id, contract)) = bench.result(call) else {
        panic!()
    };
    assert_eq!(contract.schema.fields, wanted.fields);
    assert_eq!(contract.schema.branch, None);
    assert_eq!((&*contract.domain, &*contract.endpoint), ("d", "orders"));
    assert_eq!(contract.generation, 7);
    assert_eq!(contract.digest, opened.contract.bytes);
    assert_eq!(contract.window, Some(8));
    assert_eq!(contract.ack_timeout_nanos, opened.ack_timeout_nanos);
    assert_eq!((contract.batches, contract.bytes), (2, 1000));
    assert_eq!(contract.max_batch_rows, 65_536);
    assert_eq!(bench.engine.endpoint_contract(id), Some(contract));
    assert_eq!(bench.engine.endpoint_state(id), EndpointState::Active);
    assert_eq!(bench.engine.admission(id), ProducerAdmission::Open);
    assert_eq!(bench.engine.pending(id), []);
}

// rule: P-1
#[test]
fn an_open_names_its_own_domain() {
    let (mut bench, conn) = Bench::connected();
    let (call, ..) = bench.execute("USE other;");
    bench.outcome(call);
    bench.open(Role::Producer, "i");
    assert_eq!(bench.open_ingestor(conn).1.domain, "d");
}

// rule: P-1, B-12
#[test]
fn every_refusal_is_told() {
    let cases = [
        (ProducerRefusal::DomainNotFound, OpenRefusal::DomainNotFound),
        (ProducerRefusal::DomainStopped, OpenRefusal::DomainStopped),
        (
            ProducerRefusal::IngestorNotFound,
            OpenRefusal::EndpointNotFound,
        ),
        (
            ProducerRefusal::NotClientIngestor,
            OpenRefusal::NotClientEndpoint,
        ),
        (
            ProducerRefusal::EndpointUnavailable,
            OpenRefusal::EndpointUnavailable,
        ),
        (ProducerRefusal::SchemaMismatch, OpenRefusal::SchemaMismatch),
        (
            ProducerRefusal::TooManyProducers,
            OpenRefusal::TooManyEndpoints,
        ),
        (
            ProducerRefusal::SessionCapacityExhausted,
            OpenRefusal::SessionCapacityExhausted,
        ),
        (
            ProducerRefusal::NodeCapacityExhausted,
            OpenRefusal::NodeCapacityExhausted,
        ),
        (ProducerRefusal::InvalidLimits, OpenRefusal::InvalidLimits),
        (ProducerRefusal::InTransaction, OpenRefusal::InTransaction),
    ];
    for (wire, expected) in cases {
        let (mut bench, conn) = Bench::connected();
        let call = bench.open(Role::Producer, "i");
        let (id, _) = bench.open_ingestor(conn);
        bench.reply(conn, id, producer_refused(wire));
        let error = bench.fails(call, ErrorKind::Rejected);
        assert_eq!(error.refusal, Some(expected));
        bench.frame(conn, admission(id, ProducerAdmission::Suspended));
        bench.frame(conn, producer_ended(id, ProducerEndReason::Relocated));
        bench.pass(5 * SEC);
        bench.sends_nothing(conn);
        assert!(!bench.is_reset(conn));
    }
}

// rule: P-1, C-7
#[test]
fn what_a_server_says_of_a_refused_open_is_cut() {
    let (mut bench, conn) = Bench::connected();
    let call = bench.open(Role::Producer, "i");
    let (id, _) = bench.open_ingestor(conn);
    let mut refusal = producer_refused(ProducerRefusal::DomainStopped);
    if let ReplyBody::OpenIngestorOutcome(outcome) = &mut refusal {
        outcome.message = "m".repeat(300_000);
    }
    bench.reply(conn, id, refusal);
    let error = bench.fails(call, ErrorKind::Rejected);
    assert!(error.message.contains(": mmm"), "{error}");
    assert!(error.message.len() < 2000, "{}", error.message.len());
}

// rule: P-2
#[test]
fn frames_right_behind_the_opening_find_their_producer() {
    let (mut bench, conn) = Bench::connected();
    let call = bench.open(Role::Producer, "i");
    let (wire, _) = bench.open_ingestor(conn);
    // Nobody is followed yet.
    bench.frame(
        conn,
        producer_ended(wire + 5, ProducerEndReason::DomainStopped),
    );
    bench.frame(conn, admission(wire + 5, ProducerAdmission::Suspended));
    bench.reply(conn, wire, producer_opened(ingestor("d", "i")));
    bench.frame(conn, admission(wire, ProducerAdmission::Suspended));
    let producer = bench.endpoint(call);
    assert_eq!(
        bench.engine.admission(producer),
        ProducerAdmission::Suspended
    );
    bench.frame(conn, admission(wire + 1, ProducerAdmission::Open));
    assert_eq!(
        bench.engine.admission(producer),
        ProducerAdmission::Suspended,
        "another's"
    );
    bench.frame(
        conn,
        producer_ended(wire + 1, ProducerEndReason::DomainStopped),
    );
    assert_eq!(bench.engine.endpoint_state(producer), EndpointState::Active);
    bench.frame(conn, producer_ended(wire, ProducerEndReason::DomainStopped));
    is_over(&mut bench, producer, ReopenReason::DomainStopped);
    assert!(!bench.is_reset(conn));
}

// rule: P-2, P-6
#[test]
fn a_producer_opened_while_suspended_sends_nothing_yet() {
    let (mut bench, conn) = Bench::connected();
    let mut opened = ingestor("d", "i");
    opened.admission = ProducerAdmission::Suspended;
    let (producer, wire) = bench.producer_of(conn, opened);
    bench.submit(producer, 1);
    bench.pass(SEC);
    bench.sends_nothing(conn);
    bench.frame(conn, admission(wire, ProducerAdmission::Open));
    assert_eq!(bench.batch(conn).2, content(1));
}

// rule: P-2, P-8
#[test]
fn an_open_nobody_waited_for_is_released() {
    for answer_first in [false, true] {
        let (mut bench, conn) = Bench::connected();
        let call = bench.open(Role::Producer, "i");
        let (wire, _) = bench.open_ingestor(conn);
        bench.stop(call, Stop::Cancelled);
        bench.fails(call, ErrorKind::Cancelled);
        let cancel = bench.quiet(conn, 0);
        if answer_first {
            bench.reply(conn, wire, producer_opened(ingestor("d", "i")));
        }
        for message in cancel {
            let ClientRequest::CancelRequest(cancel) = message.request else {
                panic!("{message:?}")
            };
            assert_eq!(cancel.target_request_id, wire);
            let body = cancel_outcome(wire, CancelState::NotInFlight);
            bench.reply(conn, message.request_id, body);
        }
        if !answer_first {
            bench.reply(conn, wire, producer_opened(ingestor("d", "i")));
        }
        let released = bench.quiet(conn, 0);
        assert!(
            matches!(&released[..], [ClientMessage { request: ClientRequest::CloseIngestorRequest(close), .. }]
                if close.producer == wire),
            "{released:?}"
        );
        bench.reply(conn, released[0].request_id, producer_closed());
        assert_eq!(bench.quiet(conn, 5 * SEC), []);
    }
}

// rule: P-3, P-4
#[test]
fn a_batch_that_can_never_fit_is_never_sent() {
    let (mut bench, conn) = Bench::connected();
    let mut opened = ingestor("d", "i");
    opened.max_batch_bytes = 500;
    let (producer, _) = bench.producer_of(conn, opened);
    for length in [0, 501, 5000] {
        let call = bench.call(Call::Submit(producer, vec![1; length].into()));
        bench.fails(call, ErrorKind::InvalidArgument);
        bench.sends_nothing(conn);
    }
    assert_eq!(bench.engine.pending(producer), []);
    let call = bench.call(Call::Submit(producer, vec![1; 500].into()));
    bench.submitted(call);
    assert_eq!(bench.batch(conn).2.len(), 500);
}

// rule: P-4, B-14
#[test]
fn a_batch_holds_its_credit_until_its_outcome_is_taken() {
    let (mut bench, conn, producer, wire) = producing();
    let first = bench.submit(producer, 1);
    let second = bench.submit(producer, 2);
    assert_ne!(first, second);
    let (request, of, bytes) = bench.batch(conn);
    assert_eq!((of, bytes), (wire, content(1)));
    assert_eq!(bench.batch(conn).2, content(2));
    let third = bench.call(Call::Submit(producer, content(3)));
    let fourth = bench.call(Call::Submit(producer, content(4)));
    assert!(bench.is_waiting(third) && bench.is_waiting(fourth));
    assert_eq!(
        bench.engine.pending(producer),
        [(first, false), (second, false)]
    );
    bench.reply(conn, request, batch_completed());
    // The outcome is there, and nobody took it.
    assert!(bench.is_waiting(third));
    bench.sends_nothing(conn);
    assert_eq!(
        bench.engine.pending(producer),
        [(first, true), (second, false)]
    );
    let outcome = bench.rejoin(producer, first);
    assert_eq!(outcome.result, SubmissionResult::Completed);
    assert_eq!(outcome.message, "");
    let third = bench.submitted(third);
    assert!(bench.is_waiting(fourth));
    assert_eq!(bench.batch(conn).2, content(3));
    assert_eq!(
        bench.engine.pending(producer),
        [(second, false), (third, false)]
    );
    let call = bench.call(Call::Rejoin(producer, first));
    bench.fails(call, ErrorKind::InvalidArgument);
    bench.stop(fourth, Stop::Cancelled);
    bench.fails(fourth, ErrorKind::Cancelled);
}

// rule: P-4
#[test]
fn bytes_are_credit_too() {
    let (mut bench, conn) = Bench::connected();
    let mut opened = ingestor("d", "i");
    opened.granted_batches = 100;
    let (producer, _) = bench.producer_of(conn, opened);
    let mut submissions = Vec::new();
    for _ in 0..2 {
        let call = bench.call(Call::Submit(producer, vec![7; 400].into()));
        submissions.push(bench.submitted(call));
    }
    let big = bench.call(Call::Submit(producer, vec![8; 201].into()));
    assert!(bench.is_waiting(big));
    // Order is kept: what would fit does not overtake what waits.
    let (request, ..) = bench.batch(conn);
    bench.batch(conn);
    bench.sends_nothing(conn);
    bench.reply(conn, request, batch_completed());
    bench.rejoin(producer, submissions[0]);
    bench.submitted(big);
    assert_eq!(bench.batch(conn).2.len(), 201);
}

// rule: P-4, B-14
#[test]
fn a_released_submission_gives_its_credit_back() {
    let (mut bench, conn, producer, _) = producing();
    let first = bench.submit(producer, 1);
    let second = bench.submit(producer, 2);
    let (one, ..) = bench.batch(conn);
    bench.batch(conn);
    bench.reply(conn, one, batch_completed());
    let now = bench.time();
    let taken = bench.engine.release_submission(now, producer, first);
    assert_eq!(taken.unwrap().unwrap().result, SubmissionResult::Completed);
    assert!(bench
        .engine
        .release_submission(now, producer, first)
        .is_none());
    assert_eq!(
        bench.engine.release_submission(now, producer, second),
        Some(None)
    );
    assert_eq!(bench.engine.pending(producer), []);
    let call = bench.call(Call::Rejoin(producer, second));
    bench.fails(call, ErrorKind::InvalidArgument);
    // One is back, the other comes with its outcome.
    let third = bench.submit(producer, 3);
    let fourth = bench.call(Call::Submit(producer, content(4)));
    assert!(bench.is_waiting(fourth));
    let (three, ..) = bench.batch(conn);
    bench.reply(conn, three, batch_completed());
    bench.rejoin(producer, third);
    bench.submitted(fourth);
    bench.batch(conn);
}

// rule: P-4, B-14
#[test]
fn the_credit_of_a_released_submission_returns_with_its_outcome() {
    let (mut bench, conn, producer, _) = producing();
    let first = bench.submit(producer, 1);
    bench.submit(producer, 2);
    let (one, ..) = bench.batch(conn);
    bench.batch(conn);
    let now = bench.time();
    bench.engine.release_submission(now, producer, first);
    let third = bench.call(Call::Submit(producer, content(3)));
    assert!(bench.is_waiting(third));
    bench.reply(conn, one, batch_unknown(OutcomeUncertainty::Interrupted));
    bench.submitted(third);
    assert_eq!(bench.batch(conn).2, content(3));
}

// rule: P-5, P-7, C-8, N-8, SM-5
#[test]
fn every_outcome_is_told_as_it_is_and_nothing_is_sent_again() {
    let refused = SubmissionResult::NotAdmitted;
    let cases = [
        (batch_completed(), SubmissionResult::Completed),
        (
            batch_failed(ProcessingFailure::AckTimedOut),
            SubmissionResult::ProcessingFailed(ProcessingFailure::AckTimedOut),
        ),
        (
            batch_failed(ProcessingFailure::Rejected),
            SubmissionResult::ProcessingFailed(ProcessingFailure::Rejected),
        ),
        (
            batch_unknown(OutcomeUncertainty::Interrupted),
            SubmissionResult::OutcomeUnknown(Uncertainty::Interrupted),
        ),
        (
            batch_unknown(OutcomeUncertainty::OwnerLost),
            SubmissionResult::OutcomeUnknown(Uncertainty::OwnerLost),
        ),
        // There was an outcome, and it could not be carried.
        (
            rejected(RequestRejection::ReplyTooLarge),
            SubmissionResult::OutcomeUnknown(Uncertainty::Interrupted),
        ),
    ];
    let refusals = [
        SubmissionRefusal::MalformedBatch,
        SubmissionRefusal::UnexpectedMessage,
        SubmissionRefusal::CompressedBatch,
        SubmissionRefusal::SchemaMismatch,
        SubmissionRefusal::NotOneBatch,
        SubmissionRefusal::TooManyRows,
        SubmissionRefusal::BatchTooLarge,
        SubmissionRefusal::InvalidData,
        SubmissionRefusal::Draining,
        SubmissionRefusal::ProducerEnded,
        SubmissionRefusal::CreditExceeded,
    ];
    let cases = cases.into_iter().chain(
        refusals
            .into_iter()
            .map(|refusal| (batch_refused(refusal), refused(refusal))),
    );
    for (body, expected) in cases {
        let (mut bench, conn, producer, _) = producing();
        let submission = bench.submit(producer, 1);
        let waiting = bench.call(Call::Rejoin(producer, submission));
        let (request, ..) = bench.batch(conn);
        assert!(bench.is_waiting(waiting), "receipt is no outcome");
        bench.reply(conn, request, body);
        let outcome = bench.submission(waiting);
        assert_eq!(outcome.result, expected);
        if expected == SubmissionResult::Completed {
            assert_eq!(outcome.message, "");
        }
        assert_eq!(bench.quiet(conn, 30 * SEC), []);
        assert_eq!(bench.engine.pending(producer), []);
    }
}

// rule: P-5, SM-5
#[test]
fn busy_and_suspended_are_sent_again_after_the_declared_backoff() {
    for refusal in [SubmissionRefusal::Busy, SubmissionRefusal::Suspended] {
        let (mut bench, conn, producer, _) = producing();
        let submission = bench.submit(producer, 1);
        let call = bench.call(Call::Rejoin(producer, submission));
        let (mut request, ..) = bench.batch(conn);
        let mut waits = Vec::new();
        for _ in 0..5 {
            bench.reply(conn, request, batch_refused(refusal));
            assert!(bench.is_waiting(call));
            let since = bench.now;
            request = loop {
                if let Some(message) = bench.quiet(conn, 0).pop() {
                    let ClientRequest::SubmitBatchRequest(batch) = message.request else {
                        panic!()
                    };
                    assert_eq!(batch.batch, content(1));
                    assert_ne!(message.request_id, request);
                    break message.request_id;
                }
                bench.pass(MS);
                assert!(bench.now - since < 10 * SEC);
            };
            waits.push((bench.now - since) / MS);
        }
        for (wait, least) in waits.iter().zip([100, 200, 400, 400, 400]) {
            assert!((least..=least + least / 2 + 2).contains(wait), "{waits:?}");
        }
        bench.reply(conn, request, batch_completed());
        assert_eq!(bench.submission(call).result, SubmissionResult::Completed);
    }
}

// rule: P-5, P-6
#[test]
fn a_retry_waits_for_admission() {
    let (mut bench, conn, producer, wire) = producing();
    bench.submit(producer, 1);
    let (request, ..) = bench.batch(conn);
    bench.frame(conn, admission(wire, ProducerAdmission::Suspended));
    bench.reply(conn, request, batch_refused(SubmissionRefusal::Suspended));
    assert_eq!(bench.quiet(conn, 20 * SEC), []);
    bench.frame(conn, admission(wire, ProducerAdmission::Open));
    bench.pass(500 * MS);
    assert_eq!(bench.batch(conn).2, content(1));
    bench.sends_nothing(conn);
}

// rule: P-5
#[test]
fn a_batch_sent_again_holds_its_credit_meanwhile() {
    let (mut bench, conn, producer, _) = producing();
    bench.submit(producer, 1);
    bench.submit(producer, 2);
    let (request, ..) = bench.batch(conn);
    bench.batch(conn);
    bench.reply(conn, request, batch_refused(SubmissionRefusal::Busy));
    let third = bench.call(Call::Submit(producer, content(3)));
    assert!(bench.is_waiting(third));
    bench.pass(SEC);
    assert_eq!(bench.batch(conn).2, content(1));
    assert!(bench.is_waiting(third));
}

// rule: P-6, SM-5
#[test]
fn nothing_new_is_sent_while_admission_is_suspended() {
    let (mut bench, conn, producer, wire) = producing();
    let first = bench.submit(producer, 1);
    let (request, ..) = bench.batch(conn);
    bench.frame(conn, admission(wire, ProducerAdmission::Suspended));
    assert_eq!(
        bench.engine.admission(producer),
        ProducerAdmission::Suspended
    );
    assert_eq!(bench.engine.endpoint_state(producer), EndpointState::Active);
    let second = bench.submit(producer, 2);
    assert_eq!(bench.quiet(conn, 30 * SEC), []);
    // Outcomes go on arriving.
    bench.reply(conn, request, batch_completed());
    assert_eq!(
        result(&mut bench, producer, first),
        SubmissionResult::Completed
    );
    bench.submit(producer, 3);
    bench.frame(conn, admission(wire, ProducerAdmission::Suspended));
    bench.sends_nothing(conn);
    bench.frame(conn, admission(wire, ProducerAdmission::Open));
    bench.frame(conn, admission(wire, ProducerAdmission::Open));
    assert_eq!(bench.batch(conn).2, content(2));
    assert_eq!(bench.batch(conn).2, content(3));
    bench.sends_nothing(conn);
    assert_eq!(bench.engine.pending(producer)[0].0, second);
}

// rule: P-6, SM-5
#[test]
fn an_end_is_final_or_a_restoration() {
    let over = [
        (
            ProducerEndReason::DomainStopped,
            ReopenReason::DomainStopped,
        ),
        (
            ProducerEndReason::EndpointRemoved,
            ReopenReason::EndpointRemoved,
        ),
        (
            ProducerEndReason::ProtocolViolated,
            ReopenReason::ProtocolViolated,
        ),
    ];
    for (reason, expected) in over {
        let (mut bench, conn, producer, wire) = producing();
        bench.frame(conn, producer_ended(wire, reason));
        is_over(&mut bench, producer, expected);
        bench.pass(5 * SEC);
        bench.sends_nothing(conn);
        assert!(!bench.is_reset(conn), "the session goes on");
        // Nothing after the last frame.
        bench.frame(conn, admission(wire, ProducerAdmission::Open));
        is_over(&mut bench, producer, expected);
    }
    for reason in [
        ProducerEndReason::Relocated,
        ProducerEndReason::ShuttingDown,
        ProducerEndReason::OwnerLost,
    ] {
        let (mut bench, conn, producer, wire) = producing();
        bench.frame(conn, producer_ended(wire, reason));
        assert!(matches!(
            bench.engine.endpoint_state(producer),
            EndpointState::Interrupted | EndpointState::Restoring
        ));
        let call = bench.call(Call::Submit(producer, content(1)));
        assert!(bench.is_waiting(call));
        bench.pass(5 * SEC);
        let (again, open) = bench.open_ingestor(conn);
        assert_ne!(again, wire, "under a fresh identity");
        assert_eq!(open.ingestor, "i");
        assert_eq!(
            bench.engine.endpoint_state(producer),
            EndpointState::Restoring
        );
        bench.reply(conn, again, producer_opened(ingestor("d", "i")));
        bench.submitted(call);
        assert_eq!(bench.engine.endpoint_state(producer), EndpointState::Active);
        let (_, of, _) = bench.batch(conn);
        assert_eq!(of, again);
    }
}

// rule: P-6, P-5
#[test]
fn what_was_never_sent_when_a_producer_ends_was_not_admitted() {
    let (mut bench, conn, producer, wire) = producing();
    bench.frame(conn, admission(wire, ProducerAdmission::Suspended));
    let kept = bench.submit(producer, 1);
    bench.frame(conn, producer_ended(wire, ProducerEndReason::DomainStopped));
    assert_eq!(
        result(&mut bench, producer, kept),
        SubmissionResult::NotAdmitted(SubmissionRefusal::ProducerEnded)
    );
    is_over(&mut bench, producer, ReopenReason::DomainStopped);
}

// rule: P-7, B-14
#[test]
fn waiting_may_end_and_the_outcome_stays() {
    for (why, kind) in [
        (Stop::Cancelled, ErrorKind::Cancelled),
        (Stop::Deadline, ErrorKind::Deadline),
    ] {
        let (mut bench, conn, producer, _) = producing();
        let submission = bench.submit(producer, 1);
        let call = bench.call(Call::Rejoin(producer, submission));
        let (request, ..) = bench.batch(conn);
        bench.stop(call, why);
        bench.fails(call, kind);
        bench.sends_nothing(conn);
        bench.reply(conn, request, batch_completed());
        bench.stop(call, why);
        assert_eq!(bench.engine.pending(producer), [(submission, true)]);
        assert_eq!(
            result(&mut bench, producer, submission),
            SubmissionResult::Completed
        );
    }
}

// rule: B-14
#[test]
fn a_stopped_submit_submitted_nothing() {
    let (mut bench, conn, producer, _) = producing();
    let first = bench.submit(producer, 1);
    bench.submit(producer, 2);
    let (request, ..) = bench.batch(conn);
    bench.batch(conn);
    let stopped = bench.call(Call::Submit(producer, content(3)));
    bench.stop(stopped, Stop::Deadline);
    bench.fails(stopped, ErrorKind::Deadline);
    bench.reply(conn, request, batch_completed());
    bench.rejoin(producer, first);
    bench.pass(SEC);
    bench.sends_nothing(conn);
    assert_eq!(bench.engine.pending(producer).len(), 1);
    bench.submit(producer, 3);
    assert_eq!(bench.batch(conn).2, content(3));
}

// rule: P-8, SM-5
#[test]
fn a_close_waits_for_every_outcome_and_its_reply() {
    let (mut bench, conn, producer, wire) = producing();
    let first = bench.submit(producer, 1);
    let (request, ..) = bench.batch(conn);
    let close = bench.call(Call::Close(producer));
    let message = bench.sent(conn);
    let ClientRequest::CloseIngestorRequest(asked) = message.request else {
        panic!("{message:?}")
    };
    assert_eq!(asked.producer, wire);
    assert!(bench.is_waiting(close));
    let late = bench.call(Call::Submit(producer, content(2)));
    bench.fails(late, ErrorKind::Closed);
    bench.reply(conn, request, batch_completed());
    assert!(bench.is_waiting(close));
    bench.reply(conn, message.request_id, producer_closed());
    assert!(matches!(bench.result(close), Ok(Done::Closed)));
    assert_eq!(bench.engine.endpoint_state(producer), EndpointState::Closed);
    assert_eq!(
        result(&mut bench, producer, first),
        SubmissionResult::Completed,
        "until it is freed"
    );
    let again = bench.call(Call::Close(producer));
    assert!(matches!(bench.result(again), Ok(Done::Closed)));
    bench.sends_nothing(conn);
}

/// The next request on the connection, which comes after a wait.
fn later(bench: &mut Bench, conn: ConnId) -> ClientMessage {
    let since = bench.now;
    loop {
        if let Some(message) = bench.quiet(conn, 10 * MS).pop() {
            assert!(bench.now - since >= 20 * MS, "sent again at once");
            return message;
        }
        assert!(bench.now - since < 10 * SEC, "never sent again");
    }
}

// rule: P-8, C-6, C-8
#[test]
fn a_close_that_was_not_admitted_is_sent_again() {
    for rejection in [
        RequestRejection::TooManyRequestsInFlight,
        RequestRejection::ServerBusy,
    ] {
        let (mut bench, conn, producer, _) = producing();
        let submission = bench.submit(producer, 1);
        let (request, ..) = bench.batch(conn);
        let close = bench.call(Call::Close(producer));
        let mut asked = bench.sent(conn);
        for _ in 0..3 {
            bench.reply(conn, asked.request_id, rejected(rejection));
            assert!(bench.is_waiting(close), "the server has not released it");
            let again = later(&mut bench, conn);
            assert_eq!(again.request, asked.request);
            assert_ne!(again.request_id, asked.request_id);
            asked = again;
        }
        bench.reply(conn, request, batch_completed());
        bench.reply(conn, asked.request_id, producer_closed());
        assert!(matches!(bench.result(close), Ok(Done::Closed)));
        assert_eq!(
            result(&mut bench, producer, submission),
            SubmissionResult::Completed
        );
        assert_eq!(bench.quiet(conn, 5 * SEC), []);
    }
}

// rule: P-8, C-6, C-8
#[test]
fn what_was_opened_for_nobody_is_released_although_the_server_was_busy() {
    let (mut bench, conn) = Bench::connected();
    let call = bench.open(Role::Producer, "i");
    let (wire, _) = bench.open_ingestor(conn);
    // It may have been opened: only the answer could not be carried.
    bench.reply(conn, wire, rejected(RequestRejection::ReplyTooLarge));
    bench.fails(call, ErrorKind::Rejected);
    let mut asked = bench.sent(conn);
    for _ in 0..3 {
        assert_eq!(
            asked.request,
            ClientRequest::CloseIngestorRequest(CloseIngestorRequest { producer: wire })
        );
        bench.reply(
            conn,
            asked.request_id,
            rejected(RequestRejection::TooManyRequestsInFlight),
        );
        asked = later(&mut bench, conn);
    }
    bench.reply(conn, asked.request_id, producer_closed());
    assert_eq!(bench.quiet(conn, 5 * SEC), []);
}

// rule: P-8
#[test]
fn a_close_of_what_the_server_does_not_hold_is_complete() {
    let (mut bench, conn, producer, _) = producing();
    let close = bench.call(Call::Close(producer));
    let id = bench.sent(conn).request_id;
    bench.reply(conn, id, producer_not_open());
    assert!(matches!(bench.result(close), Ok(Done::Closed)));
}

// rule: P-8
#[test]
fn a_close_nobody_waits_for_goes_on() {
    let (mut bench, conn, producer, _) = producing();
    let close = bench.call(Call::Close(producer));
    bench.stop(close, Stop::Cancelled);
    bench.fails(close, ErrorKind::Cancelled);
    let sent = bench.all_sent(conn);
    assert_eq!(sent.len(), 1, "no cancellation of a close: {sent:?}");
    bench.reply(conn, sent[0].request_id, producer_closed());
    assert_eq!(bench.engine.endpoint_state(producer), EndpointState::Closed);
}

// rule: P-8, T-8
#[test]
fn a_close_outlives_the_request_timeout_while_the_session_lives() {
    let (mut bench, conn, producer, _) = producing();
    bench.submit(producer, 1);
    bench.batch(conn);
    let close = bench.call(Call::Close(producer));
    let id = bench.sent(conn).request_id;
    for _ in 0..40 {
        bench.pass(REQUEST_TIMEOUT / 4);
        for message in bench.all_sent(conn) {
            assert_eq!(message.request, ClientRequest::ListDomainsRequest);
            bench.reply(conn, message.request_id, domain_list(&["d"]));
        }
        assert!(!bench.is_reset(conn));
        assert!(bench.is_waiting(close));
    }
    bench.reply(conn, id, producer_closed());
    assert!(matches!(bench.result(close), Ok(Done::Closed)));
}

// rule: P-8
#[test]
fn a_freed_producer_is_closed_without_waiting() {
    let (mut bench, conn, producer, wire) = producing();
    let now = bench.time();
    bench.engine.free_endpoint(now, producer);
    bench.pass(0);
    let message = bench.sent(conn);
    assert_eq!(
        message.request,
        ClientRequest::CloseIngestorRequest(CloseIngestorRequest { producer: wire })
    );
    bench.reply(conn, message.request_id, producer_closed());
}

// rule: P-8, N-8, SM-5
#[test]
fn a_lost_session_leaves_what_was_sent_unknown_and_nothing_is_sent_again() {
    let (mut bench, conn) = Bench::connected();
    let mut opened = ingestor("d", "i");
    opened.granted_batches = 10;
    let (producer, wire) = bench.producer_of(conn, opened.clone());
    let sent = bench.submit(producer, 1);
    let busy = bench.submit(producer, 2);
    bench.batch(conn);
    let (request, ..) = bench.batch(conn);
    bench.reply(conn, request, batch_refused(SubmissionRefusal::Busy));
    bench.frame(conn, admission(wire, ProducerAdmission::Suspended));
    let kept = bench.submit(producer, 3);
    let waiting = bench.call(Call::Rejoin(producer, sent));
    bench.lose(conn);
    assert_eq!(
        bench.submission(waiting).result,
        SubmissionResult::OutcomeUnknown(Uncertainty::SessionLost)
    );
    assert_eq!(
        result(&mut bench, producer, kept),
        SubmissionResult::NotAdmitted(SubmissionRefusal::ProducerEnded)
    );
    // It was refused, and nothing of it is in the server.
    assert!(matches!(
        result(&mut bench, producer, busy),
        SubmissionResult::NotAdmitted(_)
    ));
    assert_eq!(
        bench.engine.endpoint_state(producer),
        EndpointState::Interrupted
    );
    assert_eq!(
        bench.engine.admission(producer),
        ProducerAdmission::Suspended
    );
    let next = bench.call(Call::Submit(producer, content(4)));
    let conn = bench.reconnected();
    let (wire, open) = bench.open_ingestor(conn);
    let wanted = Bench::wanted("orders").batches;
    assert_eq!(open.max_outstanding_batches, wanted, "what was asked for");
    bench.reply(conn, wire, producer_opened(opened));
    bench.submitted(next);
    let (_, of, bytes) = bench.batch(conn);
    assert_eq!((of, bytes), (wire, content(4)));
    bench.pass(SEC);
    bench.sends_nothing(conn);
}

// rule: P-8, P-4
#[test]
fn credit_is_whole_again_after_a_restoration() {
    let (mut bench, conn, producer, _) = producing();
    let mut conn = conn;
    for round in 0..3 {
        let one = bench.submit(producer, round);
        let two = bench.submit(producer, 100 + round);
        bench.all_sent(conn);
        bench.lose(conn);
        for submission in [one, two] {
            assert_eq!(
                result(&mut bench, producer, submission),
                SubmissionResult::OutcomeUnknown(Uncertainty::SessionLost)
            );
        }
        let call = bench.call(Call::Submit(producer, content(200 + round)));
        conn = bench.reconnected();
        let (wire, _) = bench.open_ingestor(conn);
        bench.reply(conn, wire, producer_opened(ingestor("d", "i")));
        let third = bench.submitted(call);
        let (request, ..) = bench.batch(conn);
        bench.reply(conn, request, batch_completed());
        bench.rejoin(producer, third);
    }
}

// rule: P-8, SM-5
#[test]
fn an_endpoint_that_changed_needs_a_new_producer() {
    type Change = fn(&mut ProducerOpened);
    let changes: [(Change, ReopenReason); 9] = [
        (|o| o.generation += 1, ReopenReason::GenerationChanged),
        (|o| o.fields[0].nullable = true, ReopenReason::SchemaChanged),
        (|o| o.contract.bytes[0] ^= 1, ReopenReason::ContractChanged),
        (|o| o.ack_timeout_nanos += 1, ReopenReason::ContractChanged),
        (
            |o| o.window = ProducerWindow::SequentialProducerWindow,
            ReopenReason::ContractChanged,
        ),
        (
            |o| o.retry_backoff_nanos += 1,
            ReopenReason::ContractChanged,
        ),
        (|o| o.granted_batches -= 1, ReopenReason::ContractChanged),
        (
            |o| (o.granted_bytes, o.max_batch_bytes) = (999, 999),
            ReopenReason::ContractChanged,
        ),
        (|o| o.max_batch_rows -= 1, ReopenReason::ContractChanged),
    ];
    for (change, reason) in changes {
        let (mut bench, conn, producer, _) = producing();
        let (conn, call, wire, _) = restoring(&mut bench, conn, producer);
        let mut opened = ingestor("d", "i");
        change(&mut opened);
        bench.reply(conn, wire, producer_opened(opened));
        bench.fails(call, ErrorKind::ReopenRequired);
        is_over(&mut bench, producer, reason);
        assert_eq!(bench.engine.reopen_reason(producer), Some((reason, None)));
        // What was opened in vain is released.
        let released = bench.quiet(conn, 0);
        assert!(
            matches!(&released[..], [ClientMessage { request: ClientRequest::CloseIngestorRequest(close), .. }]
                if close.producer == wire),
            "{released:?}"
        );
        let contract = bench.engine.endpoint_contract(producer).unwrap();
        assert_eq!(contract.generation, 7, "never changes on a handle");
    }
}

// rule: P-8
#[test]
fn a_refused_restoration_is_final_or_tried_again() {
    let last = [
        (
            ProducerRefusal::DomainNotFound,
            (ReopenReason::EndpointRemoved, None),
        ),
        (
            ProducerRefusal::DomainStopped,
            (ReopenReason::DomainStopped, None),
        ),
        (
            ProducerRefusal::IngestorNotFound,
            (ReopenReason::EndpointRemoved, None),
        ),
        (
            ProducerRefusal::SchemaMismatch,
            (ReopenReason::SchemaChanged, None),
        ),
        (
            ProducerRefusal::InvalidLimits,
            (ReopenReason::Refused, Some(OpenRefusal::InvalidLimits)),
        ),
    ];
    for (refusal, expected) in last {
        let (mut bench, conn, producer, _) = producing();
        let (conn, call, wire, _) = restoring(&mut bench, conn, producer);
        bench.reply(conn, wire, producer_refused(refusal));
        bench.fails(call, ErrorKind::ReopenRequired);
        assert_eq!(bench.engine.reopen_reason(producer), Some(expected));
        assert_eq!(bench.quiet(conn, 10 * SEC), []);
    }
    for refusal in [
        ProducerRefusal::EndpointUnavailable,
        ProducerRefusal::TooManyProducers,
        ProducerRefusal::SessionCapacityExhausted,
        ProducerRefusal::NodeCapacityExhausted,
    ] {
        let (mut bench, conn, producer, _) = producing();
        let (conn, call, mut wire, _) = restoring(&mut bench, conn, producer);
        let mut waits = Vec::new();
        for _ in 0..4 {
            bench.reply(conn, wire, producer_refused(refusal));
            let since = bench.now;
            wire = loop {
                assert!(bench.is_waiting(call));
                if let Some(message) = bench.quiet(conn, 0).pop() {
                    break message.request_id;
                }
                bench.pass(10 * MS);
                assert!(bench.now - since < 30 * SEC);
            };
            waits.push(bench.now - since);
        }
        assert!(waits[0] >= 10 * MS && waits[3] > waits[0], "{waits:?}");
        bench.reply(conn, wire, producer_opened(ingestor("d", "i")));
        bench.submitted(call);
    }
}

// rule: P-8, C-8
#[test]
fn a_restoration_that_the_server_calls_defective_is_not_sent_again() {
    for defect in DEFECTS {
        let (mut bench, conn, producer, _) = producing();
        let (conn, call, wire, _) = restoring(&mut bench, conn, producer);
        bench.reply(conn, wire, rejected(defect));
        bench.fails(call, ErrorKind::ReopenRequired);
        is_over(&mut bench, producer, ReopenReason::ProtocolViolated);
        assert_eq!(bench.quiet(conn, 30 * SEC), []);
    }
}

// rule: P-8
#[test]
fn a_close_wins_over_a_restoration_in_flight() {
    for free in [false, true] {
        let (mut bench, conn, producer, _) = producing();
        let (conn, call, wire, _) = restoring(&mut bench, conn, producer);
        if free {
            let now = bench.time();
            bench.engine.free_endpoint(now, producer);
            bench.pass(0);
        } else {
            let close = bench.call(Call::Close(producer));
            if bench.is_waiting(close) {
                bench.reply(conn, wire, producer_opened(ingestor("d", "i")));
                let message = bench.sent(conn);
                bench.reply(conn, message.request_id, producer_closed());
            }
            assert!(matches!(bench.result(close), Ok(Done::Closed)));
        }
        bench.fails(call, ErrorKind::Closed);
        assert_eq!(bench.engine.endpoint_state(producer), EndpointState::Closed);
        let before = bench.quiet(conn, 0);
        bench.reply(conn, wire, producer_opened(ingestor("d", "i")));
        let after = bench.quiet(conn, 0);
        let closes = before.iter().chain(&after).filter(|message| {
            matches!(&message.request, ClientRequest::CloseIngestorRequest(close) if close.producer == wire)
        });
        assert_eq!(closes.count(), 1, "{before:?} {after:?}");
        assert_eq!(bench.quiet(conn, 5 * SEC), []);
    }
}

// rule: P-8
#[test]
fn a_close_without_an_attachment_is_at_once() {
    let (mut bench, conn, producer, _) = producing();
    let sent = bench.submit(producer, 1);
    bench.all_sent(conn);
    bench.lose(conn);
    let close = bench.call(Call::Close(producer));
    assert!(matches!(bench.result(close), Ok(Done::Closed)));
    assert_eq!(
        result(&mut bench, producer, sent),
        SubmissionResult::OutcomeUnknown(Uncertainty::SessionLost)
    );
    bench.suggest("S");
    let conn = bench.reconnected();
    for message in bench.all_sent(conn) {
        assert!(matches!(message.request, ClientRequest::SuggestRequest(_)));
    }
}

// rule: P-8
#[test]
fn a_close_whose_session_is_lost_is_complete() {
    let (mut bench, conn, producer, _) = producing();
    let sent = bench.submit(producer, 1);
    let close = bench.call(Call::Close(producer));
    bench.lose(conn);
    assert!(matches!(bench.result(close), Ok(Done::Closed)));
    assert_eq!(
        result(&mut bench, producer, sent),
        SubmissionResult::OutcomeUnknown(Uncertainty::SessionLost)
    );
}

// rule: P-8, D-1, D-5
#[test]
fn a_producer_stays_on_its_session_when_commands_move() {
    let (mut bench, conn, producer, wire) = producing();
    let first = bench.submit(producer, 1);
    let (request, ..) = bench.batch(conn);
    let (call, _, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    let (id, _) = bench.command(conn);
    let leader = Some(endpoints("b", Some("http://b:2")));
    bench.reply(conn, id, redirect(&reference, leader));
    let (next, _) = bench.opened();
    bench.greet(next);
    let (id, _) = bench.command(next);
    bench.sends_nothing(next);
    bench.reply(next, id, completed(&reference));
    bench.outcome(call);
    bench.pass(5 * SEC);
    assert!(!bench.is_reset(conn), "kept while a producer is attached");
    bench.reply(conn, request, batch_completed());
    assert_eq!(
        result(&mut bench, producer, first),
        SubmissionResult::Completed
    );
    bench.submit(producer, 2);
    let (_, of, _) = bench.batch(conn);
    assert_eq!(of, wire);
    bench.sends_nothing(next);
    assert_eq!(bench.engine.endpoint_state(producer), EndpointState::Active);
    // When it is lost, the producer restores on the newest one.
    bench.lose(conn);
    let call = bench.call(Call::Submit(producer, content(3)));
    bench.pass(SEC);
    let (wire, _) = bench.open_ingestor(next);
    bench.reply(next, wire, producer_opened(ingestor("d", "i")));
    bench.submitted(call);
    assert_eq!(bench.batch(next).2, content(3));
    bench.opens_nothing();
}

// rule: D-1
#[test]
fn a_session_that_only_a_producer_keeps_ends_with_it() {
    let (mut bench, conn, producer, _) = producing();
    let (call, _, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    let (id, _) = bench.command(conn);
    let leader = Some(endpoints("b", Some("http://b:2")));
    bench.reply(conn, id, redirect(&reference, leader));
    let (next, _) = bench.opened();
    bench.greet(next);
    let (id, _) = bench.command(next);
    bench.reply(next, id, completed(&reference));
    bench.outcome(call);
    let close = bench.call(Call::Close(producer));
    let id = bench.sent(conn).request_id;
    bench.reply(conn, id, producer_closed());
    assert!(matches!(bench.result(close), Ok(Done::Closed)));
    bench.pass(SEC);
    assert!(bench.is_reset(conn));
    assert!(!bench.is_reset(next));
}

// rule: D-5, P-8
#[test]
fn endpoints_are_restored_after_subscriptions_and_before_commands() {
    let (mut bench, conn, producer, _) = producing();
    let (consumer, _) = bench.consumer(conn);
    bench.subscription(conn, "s", 1);
    bench.follow(conn, "d", clock(1, paced()));
    let (command, _, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    bench.command(conn);
    bench.lose(conn);
    let submit = bench.call(Call::Submit(producer, content(1)));
    let next = bench.call(Call::NextDelivery(consumer));
    bench.fails(next, ErrorKind::Interrupted);
    let next = bench.call(Call::NextDelivery(consumer));
    let conn = bench.reconnected();
    let mut seen = Vec::new();
    for _ in 0..20 {
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
                ClientRequest::CommandRequest(_) => ("command", completed(&reference)),
                ClientRequest::ReadEmitterBatchRequest(_) => ("", delivery(1, 1)),
                ClientRequest::SubmitBatchRequest(_) => ("", batch_completed()),
                other => panic!("{other:?}"),
            };
            if !what.is_empty() {
                seen.push(what);
            }
            bench.reply(conn, id, body);
        }
        bench.pass(100 * MS);
    }
    assert_eq!(
        seen,
        ["clock", "subscription", "endpoint", "endpoint", "command"]
    );
    bench.submitted(submit);
    bench.delivery(next);
    bench.outcome(command);
}

// rule: D-6, F-8
#[test]
fn an_open_in_flight_ends_with_its_session() {
    let (mut bench, conn) = Bench::connected();
    let call = bench.open(Role::Producer, "i");
    bench.open_ingestor(conn);
    bench.frame(conn, b"no frame");
    assert!(bench.is_reset(conn));
    bench.fails(call, ErrorKind::Protocol);
    let (mut bench, conn) = Bench::connected();
    let call = bench.open(Role::Producer, "i");
    bench.open_ingestor(conn);
    bench.lose(conn);
    bench.fails(call, ErrorKind::Transport);
}

// rule: F-8, P-8
#[test]
fn a_violation_leaves_batches_unknown() {
    let (mut bench, conn, producer, _) = producing();
    let sent = bench.submit(producer, 1);
    bench.all_sent(conn);
    bench.frame(conn, b"no frame");
    assert_eq!(
        result(&mut bench, producer, sent),
        SubmissionResult::OutcomeUnknown(Uncertainty::SessionLost)
    );
    assert_eq!(
        bench.engine.endpoint_state(producer),
        EndpointState::Interrupted
    );
}

// rule: P-7, B-14
#[test]
fn every_call_that_waits_for_an_outcome_gets_it() {
    let (mut bench, conn, producer, _) = producing();
    let sent = bench.submit(producer, 1);
    let request = bench.batch(conn).0;
    let waiting = [(); 3].map(|()| bench.call(Call::Rejoin(producer, sent)));
    // Letting it go meanwhile leaves nobody waiting for ever.
    let now = bench.time();
    assert_eq!(
        bench.engine.release_submission(now, producer, sent),
        Some(None)
    );
    bench.reply(conn, request, batch_completed());
    for call in waiting {
        assert_eq!(bench.submission(call).result, SubmissionResult::Completed);
    }
    assert_eq!(bench.engine.pending(producer), []);
}

// rule: P-8
#[test]
fn the_end_of_everything_answers_everyone() {
    let (mut bench, conn, producer, _) = producing();
    let sent = bench.submit(producer, 1);
    bench.submit(producer, 2);
    bench.all_sent(conn);
    let rejoin = bench.call(Call::Rejoin(producer, sent));
    let submit = bench.call(Call::Submit(producer, content(3)));
    let open = bench.open(Role::Producer, "j");
    bench.shut_down();
    assert_eq!(
        bench.submission(rejoin).result,
        SubmissionResult::OutcomeUnknown(Uncertainty::SessionLost)
    );
    bench.fails(submit, ErrorKind::Closed);
    bench.fails(open, ErrorKind::Closed);
}

// rule: P-5, C-6
#[test]
fn batches_are_bound_by_credit_and_not_by_the_requests_in_flight() {
    let (mut bench, conn) = Bench::connected();
    let mut opened = ingestor("d", "i");
    opened.granted_batches = 60;
    opened.granted_bytes = 10_000;
    let (producer, _) = bench.producer_of(conn, opened);
    for number in 0..60 {
        bench.submit(producer, number);
    }
    for number in 0..60 {
        assert_eq!(bench.batch(conn).2, content(number));
    }
}

// rule: P-1
#[test]
fn an_opened_producer_of_other_fields_or_limits_breaks_the_protocol() {
    type Change = fn(&mut ProducerOpened);
    let changes: [Change; 4] = [
        |o| o.max_batch_bytes = o.granted_bytes + 1,
        |o| o.retry_max_backoff_nanos = o.retry_backoff_nanos - 1,
        |o| o.granted_batches = 0,
        |o| o.fields.clear(),
    ];
    for change in changes {
        let (mut bench, conn) = Bench::connected();
        let call = bench.open(Role::Producer, "i");
        let (wire, _) = bench.open_ingestor(conn);
        let mut opened = ingestor("d", "i");
        change(&mut opened);
        bench.reply(conn, wire, producer_opened(opened));
        assert!(bench.is_reset(conn));
        bench.fails(call, ErrorKind::Protocol);
    }
}

// rule: P-5, P-6, C-4
#[test]
fn a_batch_that_crosses_the_end_of_its_producer_has_the_outcome_it_is_answered() {
    for (answer, expected) in [
        (
            batch_refused(SubmissionRefusal::ProducerEnded),
            SubmissionResult::NotAdmitted(SubmissionRefusal::ProducerEnded),
        ),
        // Through no other attachment is it sent again.
        (
            batch_refused(SubmissionRefusal::Busy),
            SubmissionResult::NotAdmitted(SubmissionRefusal::ProducerEnded),
        ),
        (batch_completed(), SubmissionResult::Completed),
    ] {
        for reason in [
            ProducerEndReason::Relocated,
            ProducerEndReason::DomainStopped,
        ] {
            let (mut bench, conn, producer, wire) = producing();
            let submission = bench.submit(producer, 1);
            let call = bench.call(Call::Rejoin(producer, submission));
            let (request, ..) = bench.batch(conn);
            bench.frame(conn, producer_ended(wire, reason));
            assert!(bench.is_waiting(call));
            if reason == ProducerEndReason::Relocated {
                let again = bench.call(Call::Submit(producer, content(2)));
                bench.pass(SEC);
                let (wire, _) = bench.open_ingestor(conn);
                bench.reply(conn, wire, producer_opened(ingestor("d", "i")));
                bench.submitted(again);
                bench.batch(conn);
            }
            bench.reply(conn, request, answer.clone());
            assert_eq!(bench.submission(call).result, expected);
            assert_eq!(bench.quiet(conn, 5 * SEC), []);
        }
    }
}

// rule: P-8
#[test]
fn what_a_crossing_batch_is_not_answered_is_lost_with_its_own_session() {
    let (mut bench, conn, producer, wire) = producing();
    let submission = bench.submit(producer, 1);
    bench.batch(conn);
    bench.frame(conn, producer_ended(wire, ProducerEndReason::DomainStopped));
    bench.lose(conn);
    assert_eq!(
        result(&mut bench, producer, submission),
        SubmissionResult::OutcomeUnknown(Uncertainty::SessionLost)
    );
}

// rule: T-8
#[test]
fn a_silent_session_that_batches_wait_on_is_noticed() {
    let (mut bench, conn, producer, wire) = producing();
    bench.frame(conn, admission(wire, ProducerAdmission::Suspended));
    let kept = bench.submit(producer, 1);
    bench.pass(2 * REQUEST_TIMEOUT + SEC);
    assert!(bench.is_reset(conn));
    assert_eq!(
        result(&mut bench, producer, kept),
        SubmissionResult::NotAdmitted(SubmissionRefusal::ProducerEnded)
    );
}

// rule: P-8, C-6
#[test]
fn what_was_opened_for_nobody_is_released_when_there_is_room() {
    let (mut bench, conn, producer, _) = producing();
    let (conn, _, wire, _) = restoring(&mut bench, conn, producer);
    for _ in 0..70 {
        bench.suggest("S");
    }
    let suggests = bench.quiet(conn, 0);
    let mut opened = ingestor("d", "i");
    opened.generation += 1;
    bench.reply(conn, wire, producer_opened(opened));
    let mut released = 0;
    let mut waiting: std::collections::VecDeque<_> = suggests.into();
    while let Some(message) = waiting.pop_front() {
        match message.request {
            ClientRequest::SuggestRequest(_) => {
                bench.reply(conn, message.request_id, suggestions(&["x"]));
            }
            ClientRequest::CloseIngestorRequest(close) => {
                assert_eq!(close.producer, wire);
                released += 1;
            }
            other => panic!("{other:?}"),
        }
        waiting.extend(bench.quiet(conn, 0));
    }
    assert_eq!(released, 1);
}

// rule: P-2, D-1
#[test]
fn an_identity_means_another_endpoint_on_each_session() {
    for (other, ends_here) in [
        (Role::Producer, true),
        (Role::Producer, false),
        (Role::Consumer, true),
    ] {
        let (mut bench, conn) = Bench::connected();
        // So that the two identities are one.
        let suggest = bench.suggest("S");
        let id = bench.sent(conn).request_id;
        bench.reply(conn, id, suggestions(&["x"]));
        bench.result(suggest).unwrap();
        let (left, left_wire) = match other {
            Role::Producer => bench.producer(conn),
            Role::Consumer => bench.consumer(conn),
        };
        let (next, call, reference) = bench.redirected(conn, "http://b:2");
        bench.complete(next, call, &reference);
        let (here, wire) = bench.producer(next);
        assert_eq!(wire, left_wire);
        let admissions =
            |bench: &Bench| (bench.engine.admission(left), bench.engine.admission(here));
        let (before, _) = admissions(&bench);
        bench.frame(next, admission(wire, ProducerAdmission::Suspended));
        assert_eq!(
            admissions(&bench),
            (before, ProducerAdmission::Suspended),
            "{other:?}"
        );
        bench.frame(next, admission(wire, ProducerAdmission::Open));
        bench.frame(conn, admission(wire, ProducerAdmission::Suspended));
        assert_eq!(bench.engine.admission(here), ProducerAdmission::Open);
        bench.frame(conn, admission(wire, ProducerAdmission::Open));
        assert_eq!(admissions(&bench), (before, ProducerAdmission::Open));
        let (ending, ended, goes_on) = if ends_here {
            (next, here, left)
        } else {
            (conn, left, here)
        };
        bench.frame(
            ending,
            producer_ended(wire, ProducerEndReason::DomainStopped),
        );
        is_over(&mut bench, ended, ReopenReason::DomainStopped);
        assert_eq!(bench.engine.endpoint_state(goes_on), EndpointState::Active);
        if other == Role::Producer {
            bench.submit(goes_on, 1);
            let (_, of, _) = bench.batch(if ends_here { conn } else { next });
            assert_eq!(of, wire);
        }
    }
}

/// The identity that a request releases.
fn releases(message: &ClientMessage) -> Option<(Role, u64)> {
    match &message.request {
        ClientRequest::CloseIngestorRequest(close) => Some((Role::Producer, close.producer)),
        ClientRequest::CloseEmitterRequest(close) => Some((Role::Consumer, close.consumer)),
        _ => None,
    }
}

fn release_answer(role: Role) -> ReplyBody {
    match role {
        Role::Producer => producer_closed(),
        Role::Consumer => consumer_closed(EmitterCloseDisposition::Closed),
    }
}

const STAGES: [(CancellationStage, bool); 2] = [
    (CancellationStage::BeforeAdmission, false),
    (CancellationStage::AfterAdmission, true),
];

// rule: C-9, P-2, EC-6
#[test]
fn an_open_that_was_cancelled_is_released_where_it_may_have_happened() {
    for role in [Role::Producer, Role::Consumer] {
        for (stage, happened) in STAGES {
            for stopped in [false, true] {
                let (mut bench, conn) = Bench::connected();
                let call = bench.open(role, "x");
                let wire = bench.sent(conn).request_id;
                if stopped {
                    bench.stop(call, Stop::Cancelled);
                    let cancel = bench.sent(conn).request_id;
                    let body = cancel_outcome(wire, CancelState::Requested);
                    bench.reply(conn, cancel, body);
                }
                bench.reply(conn, wire, cancelled(stage));
                bench.fails(call, ErrorKind::Cancelled);
                let sent = bench.quiet(conn, 0);
                let released: Vec<_> = sent.iter().map(releases).collect();
                let expected: &[_] = if happened { &[Some((role, wire))] } else { &[] };
                assert_eq!(released, expected, "{role:?}, {stage:?}");
                for message in sent {
                    bench.reply(conn, message.request_id, release_answer(role));
                }
                assert_eq!(bench.quiet(conn, 5 * SEC), []);
                assert!(!bench.is_reset(conn));
            }
        }
    }
}

// rule: C-9, P-8, EC-5
#[test]
fn a_restoration_that_was_cancelled_is_released_where_it_may_have_happened_and_asked_for_again() {
    for role in [Role::Producer, Role::Consumer] {
        for (stage, happened) in STAGES {
            for closed in [false, true] {
                let (mut bench, conn) = Bench::connected();
                let (endpoint, _) = match role {
                    Role::Producer => bench.producer(conn),
                    Role::Consumer => bench.consumer(conn),
                };
                bench.lose(conn);
                let call = match role {
                    Role::Producer => bench.call(Call::Submit(endpoint, content(1))),
                    Role::Consumer => {
                        let told = bench.call(Call::NextDelivery(endpoint));
                        bench.fails(told, ErrorKind::Interrupted);
                        bench.call(Call::NextDelivery(endpoint))
                    }
                };
                let conn = bench.reconnected();
                let wire = bench.sent(conn).request_id;
                if closed {
                    let close = bench.call(Call::Close(endpoint));
                    assert!(matches!(bench.result(close), Ok(Done::Closed)));
                    bench.fails(call, ErrorKind::Closed);
                }
                bench.reply(conn, wire, cancelled(stage));
                let sent = bench.quiet(conn, 0);
                let released: Vec<_> = sent.iter().map(releases).collect();
                let expected: &[_] = if happened { &[Some((role, wire))] } else { &[] };
                assert_eq!(released, expected, "{role:?}, {stage:?}, {closed}");
                for message in sent {
                    bench.reply(conn, message.request_id, release_answer(role));
                }
                let asked = bench.quiet(conn, 5 * SEC);
                if closed {
                    assert_eq!(asked, []);
                    continue;
                }
                assert!(bench.is_waiting(call));
                assert_eq!(asked.len(), 1, "{asked:?}");
                let again = asked[0].request_id;
                assert_ne!(again, wire);
                let body = match role {
                    Role::Producer => producer_opened(ingestor("d", "i")),
                    Role::Consumer => consumer_opened(emitter("d", "e")),
                };
                bench.reply(conn, again, body);
                assert_eq!(bench.engine.endpoint_state(endpoint), EndpointState::Active);
            }
        }
    }
}

// rule: C-9, P-8, EC-6
#[test]
fn a_freed_endpoint_whose_restoration_was_cancelled_is_released_as_what_it_was() {
    for role in [Role::Producer, Role::Consumer] {
        let (mut bench, conn) = Bench::connected();
        let (endpoint, _) = match role {
            Role::Producer => bench.producer(conn),
            Role::Consumer => bench.consumer(conn),
        };
        bench.lose(conn);
        match role {
            Role::Producer => {
                bench.call(Call::Submit(endpoint, content(1)));
            }
            Role::Consumer => {
                let told = bench.call(Call::NextDelivery(endpoint));
                bench.fails(told, ErrorKind::Interrupted);
                bench.call(Call::NextDelivery(endpoint));
            }
        }
        let conn = bench.reconnected();
        let wire = bench.sent(conn).request_id;
        bench.engine.free_endpoint(bench.time(), endpoint);
        bench.reply(conn, wire, cancelled(CancellationStage::AfterAdmission));
        let sent = bench.quiet(conn, 0);
        let released: Vec<_> = sent.iter().map(releases).collect();
        assert_eq!(released, [Some((role, wire))]);
    }
}
