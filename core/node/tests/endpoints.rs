//! Producers and consumers of a running node as a client on the wire meets them: limits, credit, order, ends, and what
//! tests can arm.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use nervix_wire::types::{
    CancelRequest, ClientRequest, CloseIngestorDisposition, EmitterBatchDecision,
    EmitterCloseDisposition, EmitterOpenRefusal, EmitterSettlement, OpenEmitterDisposition,
    OpenIngestorDisposition, OutcomeUncertainty, ProcessingFailure, ProducerAdmission,
    ProducerEndReason, ProducerRefusal, ReplyBody, RequestRejection, ServerBody,
    SubmissionDisposition, SubmissionRefusal,
};
use serde_json::{json, Value};
use support::batches::{
    close_emitter, close_ingestor, consumer_disposition, numbers, open_emitter, open_ingestor,
    producer_disposition, read, received, rows, values, MIB,
};
use support::{Node, Session};

const KIB: u64 = 1024;

fn ingestor(batches: u32, bytes: u64) -> ClientRequest {
    open_ingestor("d", "i", numbers(), batches, bytes)
}

fn emitter(batches: u32, bytes: u64) -> ClientRequest {
    open_emitter("d", "e", numbers(), batches, bytes)
}

fn refusal(disposition: &SubmissionDisposition) -> Option<SubmissionRefusal> {
    match disposition {
        SubmissionDisposition::SubmissionNotAdmitted(refused) => Some(refused.refusal),
        _ => None,
    }
}

fn interrupted(disposition: &SubmissionDisposition) -> bool {
    matches!(
        disposition,
        SubmissionDisposition::SubmissionOutcomeUnknown(unknown)
            if unknown.cause == OutcomeUncertainty::Interrupted
    )
}

async fn refused_producer(session: &mut Session, request: ClientRequest) -> ProducerRefusal {
    match producer_disposition(session.ask(request).await) {
        OpenIngestorDisposition::ProducerRefused(refused) => refused.refusal,
        OpenIngestorDisposition::ProducerOpened(opened) => panic!("{opened:?}"),
    }
}

async fn refused_consumer(session: &mut Session, request: ClientRequest) -> EmitterOpenRefusal {
    match consumer_disposition(session.ask(request).await) {
        OpenEmitterDisposition::EmitterRefused(refused) => refused.refusal,
        OpenEmitterDisposition::EmitterOpened(opened) => panic!("{opened:?}"),
    }
}

async fn admission(session: &mut Session) -> (u64, ProducerAdmission) {
    session
        .event_where(|event| match event {
            ServerBody::ProducerAdmissionChanged(changed) => {
                Some((changed.producer, changed.admission))
            }
            _ => None,
        })
        .await
}

async fn producer_end(session: &mut Session) -> (u64, ProducerEndReason) {
    session
        .event_where(|event| match event {
            ServerBody::ProducerEnded(ended) => Some((ended.producer, ended.reason)),
            _ => None,
        })
        .await
}

async fn close(session: &mut Session, producer: u64) -> CloseIngestorDisposition {
    match session.ask(close_ingestor(producer)).await {
        ReplyBody::CloseIngestorOutcome(outcome) => outcome.disposition,
        other => panic!("{other:?}"),
    }
}

/// Returns once everything sent before was taken, batches and closes included.
async fn taken(session: &mut Session) {
    assert_eq!(
        close(session, u64::MAX).await,
        CloseIngestorDisposition::ProducerNotOpen
    );
}

fn rejection(body: &ReplyBody) -> Option<RequestRejection> {
    match body {
        ReplyBody::RequestRejected(rejected) => Some(rejected.rejection),
        _ => None,
    }
}

async fn node() -> Node {
    Node::start(&[]).await.with_endpoints("SEQUENTIAL").await
}

async fn parallel_node() -> Node {
    Node::start(&[])
        .await
        .with_endpoints("PARALLEL MAX 200")
        .await
}

// rule: P-1, EC-1
#[tokio::test]
async fn opens_are_refused_by_what_is_wrong_with_them() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let s = &mut session;
    let named = |domain, ingestor| open_ingestor(domain, ingestor, numbers(), 1, MIB);
    assert_eq!(
        refused_producer(s, named("nowhere", "i")).await,
        ProducerRefusal::DomainNotFound
    );
    assert_eq!(
        refused_producer(s, named("d", "nothing")).await,
        ProducerRefusal::IngestorNotFound
    );
    let named = |domain, emitter| open_emitter(domain, emitter, numbers(), 1, MIB);
    assert_eq!(
        refused_consumer(s, named("nowhere", "e")).await,
        EmitterOpenRefusal::DomainNotFound
    );
    assert_eq!(
        refused_consumer(s, named("d", "nothing")).await,
        EmitterOpenRefusal::EmitterNotFound
    );
    for (batches, bytes) in [(1_025, MIB), (1, 32 * MIB + 1)] {
        assert_eq!(
            refused_producer(s, ingestor(batches, bytes)).await,
            ProducerRefusal::InvalidLimits
        );
        assert_eq!(
            refused_consumer(s, emitter(batches, bytes)).await,
            EmitterOpenRefusal::InvalidLimits
        );
    }
    // One batch of the emitter must fit.
    assert_eq!(
        refused_consumer(s, emitter(1, 64 * KIB - 1)).await,
        EmitterOpenRefusal::InvalidLimits
    );
    for request in [
        ingestor(0, MIB),
        ingestor(1, 0),
        emitter(0, MIB),
        open_ingestor("", "i", numbers(), 1, MIB),
        open_emitter("d", "", numbers(), 1, MIB),
        open_ingestor("d", "i", Vec::new(), 1, MIB),
    ] {
        let body = s.ask(request).await;
        assert_eq!(rejection(&body), Some(RequestRejection::InvalidRequest));
    }
    node.execute(Some("d"), &["STOP;"]).await;
    assert_eq!(
        refused_producer(s, ingestor(1, MIB)).await,
        ProducerRefusal::DomainStopped
    );
    assert_eq!(
        refused_consumer(s, emitter(1, MIB)).await,
        EmitterOpenRefusal::DomainStopped
    );
}

// rule: C-1, P-2
#[tokio::test]
async fn an_identity_that_is_open_is_not_opened_again() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    session.send_as(producer, ingestor(1, MIB)).await;
    let body = session.reply_to(producer).await;
    assert_eq!(rejection(&body), Some(RequestRejection::DuplicateRequestId));
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    session.send_as(consumer, emitter(1, MIB)).await;
    let body = session.reply_to(consumer).await;
    assert_eq!(rejection(&body), Some(RequestRejection::DuplicateRequestId));
}

// rule: P-1, P-4, EC-1
#[tokio::test]
async fn sessions_and_nodes_share_their_limits() {
    let node = node().await;
    let mut many = Session::begun(&node.address(0)).await;
    for _ in 0..32 {
        many.producer(ingestor(1, 1)).await;
        many.consumer(emitter(1, 64 * KIB)).await;
    }
    assert_eq!(
        refused_producer(&mut many, ingestor(1, 1)).await,
        ProducerRefusal::TooManyProducers
    );
    assert_eq!(
        refused_consumer(&mut many, emitter(1, 64 * KIB)).await,
        EmitterOpenRefusal::TooManyConsumers
    );
    drop(many);
    node.wait(json!({"producers": 0, "consumers": 0})).await;
    let mut sessions = Vec::new();
    for _ in 0..4 {
        let mut session = Session::begun(&node.address(0)).await;
        let (producer, opened) = session.producer(ingestor(1_024, 16 * MIB)).await;
        assert_eq!(opened.max_batch_bytes, 4 * MIB - 256);
        session.producer(ingestor(1, 16 * MIB)).await;
        session.consumer(emitter(1, 32 * MIB)).await;
        assert_eq!(
            refused_producer(&mut session, ingestor(1, 1)).await,
            ProducerRefusal::SessionCapacityExhausted
        );
        assert_eq!(
            refused_consumer(&mut session, emitter(1, 64 * KIB)).await,
            EmitterOpenRefusal::SessionCapacityExhausted
        );
        sessions.push((session, producer));
    }
    let mut last = Session::begun(&node.address(0)).await;
    assert_eq!(
        refused_producer(&mut last, ingestor(1, 1)).await,
        ProducerRefusal::NodeCapacityExhausted
    );
    assert_eq!(
        refused_consumer(&mut last, emitter(1, 64 * KIB)).await,
        EmitterOpenRefusal::NodeCapacityExhausted
    );
    // What is closed gives its credit back.
    let (session, producer) = &mut sessions[0];
    assert_eq!(
        close(session, *producer).await,
        CloseIngestorDisposition::ProducerClosed
    );
    last.producer(ingestor(1, 16 * MIB)).await;
}

// rule: P-4
#[tokio::test]
async fn a_batch_beyond_the_credit_ends_its_producer() {
    let node = parallel_node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    let within = session.submit(producer, &rows([1])).await;
    let beyond = session.submit(producer, &rows([2])).await;
    let after = session.submit(producer, &rows([3])).await;
    let outcome = session.outcome(beyond).await;
    assert_eq!(refusal(&outcome), Some(SubmissionRefusal::CreditExceeded));
    assert!(interrupted(&session.outcome(within).await));
    assert!(session.news.is_empty());
    assert_eq!(
        producer_end(&mut session).await,
        (producer, ProducerEndReason::ProtocolViolated)
    );
    let outcome = session.outcome(after).await;
    assert_eq!(refusal(&outcome), Some(SubmissionRefusal::ProducerEnded));
    assert_eq!(
        close(&mut session, producer).await,
        CloseIngestorDisposition::ProducerNotOpen
    );
}

// rule: P-3, P-5
#[tokio::test]
async fn a_batch_that_is_none_is_not_admitted_and_holds_no_credit() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, opened) = session.producer(ingestor(1, MIB)).await;
    let good = rows([1]);
    let end = good.len() - 8;
    let mut trailing = good.to_vec();
    trailing.push(0);
    let mut empty = good.slice(..4 + 4 + length_at(&good, 4)).to_vec();
    empty.extend_from_slice(&good[end..]);
    let mut twice = good.slice(..end).to_vec();
    twice.extend_from_slice(&good[4 + 4 + length_at(&good, 4)..]);
    for (batch, expected) in [
        (vec![1, 2, 3], SubmissionRefusal::MalformedBatch),
        (trailing, SubmissionRefusal::MalformedBatch),
        (
            good.slice(..good.len() - 1).to_vec(),
            SubmissionRefusal::MalformedBatch,
        ),
        (empty, SubmissionRefusal::NotOneBatch),
        (twice, SubmissionRefusal::NotOneBatch),
        (rows(0..65_537).to_vec(), SubmissionRefusal::TooManyRows),
        (
            vec![0; usize::try_from(opened.max_batch_bytes).unwrap() + 1],
            // With the whole credit granted, what is too large for a batch is too much for the credit.
            SubmissionRefusal::CreditExceeded,
        ),
    ] {
        let submission = session.submit(producer, &batch.into()).await;
        let outcome = session.outcome(submission).await;
        assert_eq!(refusal(&outcome), Some(expected));
    }
    assert_eq!(
        producer_end(&mut session).await,
        (producer, ProducerEndReason::ProtocolViolated)
    );
}

/// The length of the message that begins at the start of a stream.
fn length_at(stream: &[u8], at: usize) -> usize {
    u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) as usize
}

// rule: P-6, P-8, EC-5
#[tokio::test]
async fn endpoints_end_with_what_they_are_endpoints_of() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    let parked = session.send(read(consumer)).await;
    node.wait(json!({"parked_reads": 1})).await;
    node.execute(Some("d"), &["DROP EMITTER e;", "DROP INGESTOR i;"])
        .await;
    assert_eq!(
        producer_end(&mut session).await,
        (producer, ProducerEndReason::EndpointRemoved)
    );
    assert_eq!(received(session.reply_to(parked).await), None);
    assert_eq!(
        refused_producer(&mut session, ingestor(1, MIB)).await,
        ProducerRefusal::IngestorNotFound
    );
    assert_eq!(
        refused_consumer(&mut session, emitter(1, MIB)).await,
        EmitterOpenRefusal::EmitterNotFound
    );
}

// rule: C-6, P-4
#[tokio::test]
async fn batches_do_not_count_as_requests_in_flight() {
    let node = parallel_node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(100, MIB)).await;
    let mut submissions = Vec::new();
    for n in 0..100 {
        submissions.push(session.submit(producer, &rows([n])).await);
    }
    let body = session.ask(ClientRequest::ListDomainsRequest).await;
    assert!(matches!(body, ReplyBody::DomainList(_)));
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    let mut delivered = Vec::new();
    while delivered.len() < 100 {
        let delivery = session.next(consumer).await;
        delivered.extend(values(&delivery));
        session.ack(consumer, &delivery).await;
    }
    assert_eq!(delivered, (0..100).collect::<Vec<_>>());
    for submission in submissions {
        assert_eq!(
            session.outcome(submission).await,
            SubmissionDisposition::SubmissionCompleted
        );
    }
}

// rule: P-7
#[tokio::test]
async fn a_submitted_batch_cannot_be_cancelled() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    let submission = session.submit(producer, &rows([1])).await;
    let body = session
        .ask(ClientRequest::CancelRequest(CancelRequest {
            target_request_id: submission,
        }))
        .await;
    assert_eq!(rejection(&body), Some(RequestRejection::InvalidRequest));
    let delivery = session.next(consumer).await;
    session.ack(consumer, &delivery).await;
    assert_eq!(
        session.outcome(submission).await,
        SubmissionDisposition::SubmissionCompleted
    );
}

// rule: P-8
#[tokio::test]
async fn a_close_waits_for_every_outcome() {
    let node = parallel_node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(4, MIB)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    let first = session.submit(producer, &rows([1])).await;
    let closing = session.send(close_ingestor(producer)).await;
    let late = session.submit(producer, &rows([2])).await;
    let outcome = session.outcome(late).await;
    assert_eq!(refusal(&outcome), Some(SubmissionRefusal::Draining));
    assert_eq!(
        close(&mut session, producer).await,
        CloseIngestorDisposition::ProducerNotOpen
    );
    let delivery = session.next(consumer).await;
    assert!(!session.answered_meanwhile(closing));
    session.ack(consumer, &delivery).await;
    let replies = [session.reply().await, session.reply().await];
    assert_eq!(replies.map(|reply| reply.request_id), [first, closing]);
    node.wait(json!({"producers": 0})).await;
}

// rule: EC-2
#[tokio::test]
async fn one_read_of_a_consumer_waits_at_a_time() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    let parked = session.send(read(consumer)).await;
    node.wait(json!({"parked_reads": 1})).await;
    let body = session.ask(read(consumer)).await;
    assert_eq!(rejection(&body), Some(RequestRejection::InvalidRequest));
    // Nothing else of the session waits for it.
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    session.submit(producer, &rows([7])).await;
    let delivery = received(session.reply_to(parked).await).unwrap();
    assert_eq!(values(&delivery), [7]);
}

// rule: EC-3, EC-4, EC-6
#[tokio::test]
async fn settlements_are_held_to_their_consumer_and_reference() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    let (other, _) = session.consumer(emitter(1, MIB)).await;
    session.submit(producer, &rows([1])).await;
    let delivery = session.next(consumer).await;
    let reference = delivery.reference;
    let long = "x".repeat(1_025);
    for reason in ["", long.as_str()] {
        assert_eq!(
            session
                .settle(consumer, reference, EmitterBatchDecision::Reject, reason)
                .await,
            EmitterSettlement::InvalidReason
        );
    }
    assert_eq!(
        session
            .settle(consumer, reference, EmitterBatchDecision::Ack, "why")
            .await,
        EmitterSettlement::InvalidReason
    );
    assert_eq!(
        session.ack(other, &delivery).await,
        EmitterSettlement::WrongConsumer
    );
    assert_eq!(
        session.ack(u64::MAX, &delivery).await,
        EmitterSettlement::ConsumerEnded
    );
    for _ in 0..2 {
        // Repeating a confirmed acknowledgement changes nothing.
        assert_eq!(
            session.ack(consumer, &delivery).await,
            EmitterSettlement::Confirmed
        );
    }
    // A close revokes what is not settled, and the batch comes again.
    let submission = session.submit(producer, &rows([2])).await;
    let delivery = session.next(consumer).await;
    let parked = session.send(read(consumer)).await;
    node.wait(json!({"parked_reads": 1})).await;
    for expected in [
        EmitterCloseDisposition::Closed,
        EmitterCloseDisposition::NotOpen,
    ] {
        match session.ask(close_emitter(consumer)).await {
            ReplyBody::CloseEmitterOutcome(outcome) => assert_eq!(outcome.disposition, expected),
            body => panic!("{body:?}"),
        }
    }
    assert_eq!(received(session.reply_to(parked).await), None);
    assert_eq!(
        session.ack(consumer, &delivery).await,
        EmitterSettlement::ConsumerEnded
    );
    assert_eq!(received(session.ask(read(consumer)).await), None);
    let again = session.next(other).await;
    assert_eq!(again.identity, delivery.identity);
    session.ack(other, &again).await;
    assert_eq!(
        session.outcome(submission).await,
        SubmissionDisposition::SubmissionCompleted
    );
}

// rule: P-5, EC-5
#[tokio::test]
async fn an_attempt_that_is_not_settled_times_out() {
    let node = Node::start(&["--frozen-time"])
        .await
        .with_endpoints("SEQUENTIAL")
        .await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    let submission = session.submit(producer, &rows([1])).await;
    let delivery = session.next(consumer).await;
    let parked = session.send(read(consumer)).await;
    node.wait(json!({"parked_reads": 1})).await;
    node.post("clock", json!({"advance": "59s"})).await;
    assert_eq!(node.counts().await["parked_reads"], 1);
    node.post("clock", json!({"advance": "3s"})).await;
    let again = received(session.reply_to(parked).await).unwrap();
    assert_eq!(again.identity, delivery.identity);
    assert_ne!(again.reference, delivery.reference);
    assert_eq!(
        session.ack(consumer, &delivery).await,
        EmitterSettlement::StaleReference
    );
    assert!(matches!(
        session.outcome(submission).await,
        SubmissionDisposition::SubmissionFailed(failed) if failed.failure == ProcessingFailure::AckTimedOut
    ));
}

// rule: P-6, P-8, EC-5
#[tokio::test]
async fn a_domain_that_stops_ends_its_endpoints_after_their_outcomes() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, first) = session.producer(ingestor(1, MIB)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    let submission = session.submit(producer, &rows([1])).await;
    let delivery = session.next(consumer).await;
    let parked = session.send(read(consumer)).await;
    node.wait(json!({"parked_reads": 1})).await;
    node.execute(Some("d"), &["STOP;"]).await;
    assert_eq!(
        producer_end(&mut session).await,
        (producer, ProducerEndReason::DomainStopped)
    );
    assert!(session.answered_meanwhile(submission));
    assert_eq!(received(session.reply_to(parked).await), None);
    assert_eq!(
        session.ack(consumer, &delivery).await,
        EmitterSettlement::ConsumerEnded
    );
    node.execute(Some("d"), &["START;"]).await;
    let (_, second) = session.producer(ingestor(1, MIB)).await;
    assert_eq!(second.generation, first.generation + 1);
    node.wait(json!({"producers": {"exactly": 1}, "consumers": 0}))
        .await;
}

// rule: P-6
#[tokio::test]
async fn an_ingestor_is_suspended_and_resumed() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    let body = json!({"domain": "d", "ingestor": "i"});
    node.post("suspend", body.clone()).await;
    assert_eq!(
        admission(&mut session).await,
        (producer, ProducerAdmission::Suspended)
    );
    let submission = session.submit(producer, &rows([1])).await;
    let outcome = session.outcome(submission).await;
    assert_eq!(refusal(&outcome), Some(SubmissionRefusal::Suspended));
    let (_, opened) = session.producer(ingestor(1, MIB)).await;
    assert_eq!(opened.admission, ProducerAdmission::Suspended);
    node.post("resume", body).await;
    assert_eq!(
        admission(&mut session).await,
        (producer, ProducerAdmission::Open)
    );
    let (status, _) = node
        .try_post("suspend", json!({"domain": "d", "ingestor": "nothing"}))
        .await;
    assert_eq!(status, 400);
}

// rule: P-6, P-8
#[tokio::test]
async fn producers_are_ended_for_each_reason() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    for (name, reason) in [
        ("EndpointChanged", ProducerEndReason::EndpointChanged),
        ("EndpointRemoved", ProducerEndReason::EndpointRemoved),
        ("DomainStopped", ProducerEndReason::DomainStopped),
        ("Relocated", ProducerEndReason::Relocated),
        ("ShuttingDown", ProducerEndReason::ShuttingDown),
        ("OwnerLost", ProducerEndReason::OwnerLost),
        ("ProtocolViolated", ProducerEndReason::ProtocolViolated),
    ] {
        let (producer, _) = session.producer(ingestor(1, MIB)).await;
        let submission = session.submit(producer, &rows([1])).await;
        taken(&mut session).await;
        let ended = node
            .post(
                "end_producer",
                json!({"producer": producer, "reason": name}),
            )
            .await;
        assert_eq!(ended["producers"], 1);
        assert_eq!(producer_end(&mut session).await, (producer, reason));
        assert!(session.answered_meanwhile(submission));
    }
}

// rule: EC-3, EC-6
#[tokio::test]
async fn a_consumer_is_ended_and_its_batch_comes_again() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    session.submit(producer, &rows([1])).await;
    let delivery = session.next(consumer).await;
    let parked = session.send(read(consumer)).await;
    node.wait(json!({"parked_reads": 1})).await;
    let ended = node
        .post("end_consumer", json!({"consumer": consumer}))
        .await;
    assert_eq!(ended["consumers"], 1);
    assert_eq!(received(session.reply_to(parked).await), None);
    assert_eq!(
        session.ack(consumer, &delivery).await,
        EmitterSettlement::ConsumerEnded
    );
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    assert_eq!(session.next(consumer).await.identity, delivery.identity);
}

// rule: P-6, P-8
#[tokio::test]
async fn an_outcome_that_is_kept_back_keeps_the_end_back_too() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    node.post("delay", json!({"kind": "SubmitBatchRequest"}))
        .await;
    let submission = session.submit(producer, &rows([1])).await;
    taken(&mut session).await;
    node.post("end_producer", json!({"producer": producer}))
        .await;
    node.wait(json!({"held": 1, "producers": {"exactly": 1}}))
        .await;
    node.post("release", json!({})).await;
    assert_eq!(
        producer_end(&mut session).await,
        (producer, ProducerEndReason::OwnerLost)
    );
    assert!(session.answered_meanwhile(submission));
}

// rule: P-5, EC-4, EC-6
#[tokio::test]
async fn answers_about_batches_are_lost_although_they_took_effect() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    node.post("drop_reply", json!({"kind": "SettleEmitterBatchRequest"}))
        .await;
    let submission = session.submit(producer, &rows([1])).await;
    let delivery = session.next(consumer).await;
    session
        .send(ClientRequest::SettleEmitterBatchRequest(
            nervix_wire::types::SettleEmitterBatchRequest {
                consumer,
                reference: delivery.reference,
                decision: EmitterBatchDecision::Ack,
                reason: String::new(),
            },
        ))
        .await;
    assert_eq!(
        session.outcome(submission).await,
        SubmissionDisposition::SubmissionCompleted
    );
    node.post("drop_reply", json!({"kind": "SubmitBatchRequest"}))
        .await;
    let lost = session.submit(producer, &rows([2])).await;
    let delivery = session.next(consumer).await;
    session.ack(consumer, &delivery).await;
    // An outcome that is lost keeps nothing waiting in the node.
    assert_eq!(
        close(&mut session, producer).await,
        CloseIngestorDisposition::ProducerClosed
    );
    assert!(!session.answered_meanwhile(lost));
}

const SUBMISSIONS: &[&str] = &[
    "Completed",
    "AckTimedOut",
    "Rejected",
    "Interrupted",
    "OwnerLost",
    "MalformedBatch",
    "UnexpectedMessage",
    "CompressedBatch",
    "SchemaMismatch",
    "NotOneBatch",
    "TooManyRows",
    "BatchTooLarge",
    "InvalidData",
    "Suspended",
    "Busy",
    "Draining",
    "ProducerEnded",
    "CreditExceeded",
];

// rule: P-1, P-5, EC-1, EC-4
#[tokio::test]
async fn requests_about_endpoints_are_answered_as_a_test_wants() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    for with in SUBMISSIONS {
        node.post(
            "answer",
            json!({"kind": "SubmitBatchRequest", "with": with}),
        )
        .await;
        let submission = session.submit(producer, &rows([1])).await;
        session.outcome(submission).await;
    }
    let batches = node.get("batches").await;
    let known = &batches["batches"][0];
    assert_eq!(known["outcomes"], json!(SUBMISSIONS));
    for with in [
        "DomainNotFound",
        "DomainStopped",
        "NotClientIngestor",
        "EndpointUnavailable",
        "SchemaMismatch",
        "TooManyProducers",
        "SessionCapacityExhausted",
        "NodeCapacityExhausted",
        "InvalidLimits",
        "InTransaction",
    ] {
        let body = json!({"kind": "OpenIngestorRequest", "with": with});
        node.post("answer", body).await;
        let refused = refused_producer(&mut session, ingestor(1, MIB)).await;
        assert_eq!(format!("{refused:?}"), with);
    }
    for with in [
        "NotClientEmitter",
        "EndpointUnavailable",
        "TooManyConsumers",
    ] {
        let body =
            json!({"kind": "OpenEmitterRequest", "with": with, "domain": "d", "emitter": "e"});
        node.post("answer", body).await;
        let refused = refused_consumer(&mut session, emitter(1, MIB)).await;
        assert_eq!(format!("{refused:?}"), with);
    }
    session.submit(producer, &rows([2])).await;
    let delivery = session.next(consumer).await;
    for (with, settlement) in [
        ("Confirmed", EmitterSettlement::Confirmed),
        ("StaleReference", EmitterSettlement::StaleReference),
        ("WrongConsumer", EmitterSettlement::WrongConsumer),
        ("InvalidReason", EmitterSettlement::InvalidReason),
        ("ConsumerEnded", EmitterSettlement::ConsumerEnded),
    ] {
        let body = json!({"kind": "SettleEmitterBatchRequest", "with": with});
        node.post("answer", body).await;
        assert_eq!(session.ack(consumer, &delivery).await, settlement);
    }
    // The batch is still to be settled, and now is, whatever is said.
    let body =
        json!({"kind": "SettleEmitterBatchRequest", "with": "StaleReference", "execute": true});
    node.post("answer", body).await;
    assert_eq!(
        session.ack(consumer, &delivery).await,
        EmitterSettlement::StaleReference
    );
    assert_eq!(
        session.ack(consumer, &delivery).await,
        EmitterSettlement::Confirmed
    );
    for (kind, with) in [
        ("SubmitBatchRequest", "Nonsense"),
        ("CommandRequest", "Confirmed"),
        ("AttachDomainClockRequest", "DomainNotFound"),
    ] {
        let (status, _) = node
            .try_post("answer", json!({"kind": kind, "with": with}))
            .await;
        assert_eq!(status, 400, "{kind} {with}");
    }
}

// rule: P-5
#[tokio::test]
async fn an_ingestor_is_busy_as_often_as_told_and_resends_are_counted() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    node.post(
        "answer",
        json!({"kind": "SubmitBatchRequest", "with": "Busy", "count": 2, "domain": "d", "ingestor": "i"}),
    )
    .await;
    let batch = rows([1]);
    for _ in 0..2 {
        let submission = session.submit(producer, &batch).await;
        let outcome = session.outcome(submission).await;
        assert_eq!(refusal(&outcome), Some(SubmissionRefusal::Busy));
    }
    let submission = session.submit(producer, &batch).await;
    let delivery = session.next(consumer).await;
    session.ack(consumer, &delivery).await;
    session.outcome(submission).await;
    let counts = node.counts().await;
    assert_eq!(
        counts["batches"],
        json!({"received": 3, "resent": 2, "forbidden_resends": 0, "contents": 1})
    );
    // A batch that was completed must not come again by itself.
    session.submit(producer, &batch).await;
    let counts = node.wait(json!({"batches": 4})).await;
    assert_eq!(counts["batches"]["forbidden_resends"], 1);
}

#[tokio::test]
async fn clearing_forgets_what_an_endpoint_was_to_answer() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (producer, _) = session.producer(ingestor(1, MIB)).await;
    let (consumer, _) = session.consumer(emitter(1, MIB)).await;
    for (kind, with, endpoint) in [
        ("SubmitBatchRequest", "Busy", "ingestor"),
        ("OpenIngestorRequest", "EndpointUnavailable", "ingestor"),
        ("OpenEmitterRequest", "EndpointUnavailable", "emitter"),
        ("SettleEmitterBatchRequest", "StaleReference", "emitter"),
    ] {
        let name = &endpoint[..1];
        let mut body = json!({"kind": kind, "with": with, "domain": "d"});
        body[endpoint] = json!(name);
        node.post("answer", body).await;
    }
    node.post("clear", json!({})).await;
    session.producer(ingestor(1, MIB)).await;
    session.consumer(emitter(1, MIB)).await;
    session.submit(producer, &rows([1])).await;
    let delivery = session.next(consumer).await;
    assert_eq!(
        session.ack(consumer, &delivery).await,
        EmitterSettlement::Confirmed
    );
}

// rule: P-8, EC-5
#[tokio::test]
async fn endpoints_are_described_otherwise_as_a_test_wants() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    let (_, producer) = session.producer(ingestor(2, MIB)).await;
    let (_, consumer) = session.consumer(emitter(2, MIB)).await;
    for change in [
        "Generation",
        "Contract",
        "Fields",
        "Window",
        "AckTimeout",
        "Retry",
        "GrantedBatches",
        "GrantedBytes",
        "MaxBatchBytes",
        "MaxBatchRows",
    ] {
        for kind in ["OpenIngestorRequest", "OpenEmitterRequest"] {
            node.post(
                "describe_otherwise",
                json!({"kind": kind, "change": change}),
            )
            .await;
        }
        let (_, changed) = session.producer(ingestor(2, MIB)).await;
        let same = nervix_wire::types::ProducerOpened {
            attachment: producer.attachment,
            ..changed
        };
        assert_ne!(same, producer, "{change}");
        let (_, changed) = session.consumer(emitter(2, MIB)).await;
        assert_ne!(changed, consumer, "{change}");
    }
    let (_, changed) = session.consumer(emitter(2, MIB)).await;
    assert_eq!(changed, consumer);
}

// rule: P-2, P-6
#[tokio::test]
async fn untrue_frames_of_a_producer_are_sent_as_told() {
    let node = node().await;
    let mut session = Session::begun(&node.address(0)).await;
    node.post(
        "producer_frame",
        json!({"producer": 9, "what": "suspended"}),
    )
    .await;
    assert_eq!(
        admission(&mut session).await,
        (9, ProducerAdmission::Suspended)
    );
    node.post(
        "producer_frame",
        json!({"producer": 9, "what": "ended", "reason": "Relocated"}),
    )
    .await;
    assert_eq!(
        producer_end(&mut session).await,
        (9, ProducerEndReason::Relocated)
    );
}

// rule: P-1, EC-1
#[tokio::test]
async fn endpoints_live_on_any_node_and_outlive_a_change_of_leaders() {
    let node = Node::start(&["--nodes", "3"])
        .await
        .with_endpoints("SEQUENTIAL")
        .await;
    let mut feeding = Session::begun(&node.address(2)).await;
    let mut reading = Session::begun(&node.address(1)).await;
    let (producer, _) = feeding.producer(ingestor(1, MIB)).await;
    let (consumer, _) = reading.consumer(emitter(1, MIB)).await;
    let parked = reading.send(read(consumer)).await;
    node.wait(json!({"parked_reads": 1})).await;
    for leader in [json!("node-2"), Value::Null] {
        node.post("leader", json!({"leader": leader})).await;
    }
    let submission = feeding.submit(producer, &rows([5])).await;
    let delivery = received(reading.reply_to(parked).await).unwrap();
    assert_eq!(values(&delivery), [5]);
    reading.ack(consumer, &delivery).await;
    assert_eq!(
        feeding.outcome(submission).await,
        SubmissionDisposition::SubmissionCompleted
    );
}

// rule: EC-6, P-8
#[tokio::test]
async fn a_session_that_ends_lets_go_of_what_it_had_open() {
    let node = node().await;
    let mut feeding = Session::begun(&node.address(0)).await;
    let (producer, _) = feeding.producer(ingestor(1, MIB)).await;
    feeding.submit(producer, &rows([3])).await;
    let mut reading = Session::begun(&node.address(0)).await;
    let (consumer, _) = reading.consumer(emitter(1, MIB)).await;
    let delivery = reading.next(consumer).await;
    reading.send(read(consumer)).await;
    node.wait(json!({"parked_reads": 1, "outstanding_batches": 1}))
        .await;
    feeding.half_close();
    feeding.end().await;
    reading.reset();
    node.wait(json!({
        "sessions": 0, "producers": 0, "consumers": 0, "parked_reads": 0, "outstanding_batches": 0
    }))
    .await;
    // What was submitted goes on, and what was delivered comes again.
    let mut other = Session::begun(&node.address(0)).await;
    let (consumer, _) = other.consumer(emitter(1, MIB)).await;
    let again = other.next(consumer).await;
    assert_eq!(again.identity, delivery.identity);
    assert_eq!(
        other.ack(consumer, &again).await,
        EmitterSettlement::Confirmed
    );
}

// rule: S-9, P-5
#[tokio::test]
async fn a_blocking_subscription_holds_back_what_producers_feed() {
    let node = parallel_node().await;
    node.execute(Some("d"), &["STOP;", "DROP EMITTER e;", "START;"])
        .await;
    let mut reading = Session::begun(&node.address(0)).await;
    reading
        .subscribe("CREATE SUBSCRIPTION x TO r BLOCKING;")
        .await;
    let mut feeding = Session::begun(&node.address(0)).await;
    let (producer, opened) = feeding.producer(ingestor(8, 8 * MIB)).await;
    let wide: Vec<u32> = (0..opened.max_batch_rows.min(20_000)).collect();
    let batch = rows(wide.iter().copied());
    let mut fed = 0;
    let held = loop {
        let submission = feeding.submit(producer, &batch).await;
        fed += wide.len();
        taken(&mut feeding).await;
        if node.counts().await["blocked_publications"] == 1 {
            break submission;
        }
    };
    let mut read = 0;
    while read < fed {
        if let ServerBody::SubscriptionRows(rows) = reading.event().await {
            read += rows.row_count();
        }
    }
    assert_eq!(read, fed);
    feeding.outcome(held).await;
}

// rule: P-1, EC-1, D-5
#[tokio::test]
async fn what_is_opened_ahead_of_a_transaction_is_not_opened_inside_of_it() {
    let node = Node::start(&[])
        .await
        .with_endpoints("PARALLEL MAX 8")
        .await;
    for _ in 0..50 {
        let mut session = Session::begun(&node.address(0)).await;
        let opens = [
            session.send(ingestor(1, MIB)).await,
            session.send(emitter(1, MIB)).await,
        ];
        let begin = support::command(Some("d"), "BEGIN;");
        session.command(begin).await;
        for open in opens {
            let opened = match session.reply_to(open).await {
                ReplyBody::OpenIngestorOutcome(outcome) => matches!(
                    outcome.disposition,
                    OpenIngestorDisposition::ProducerOpened(_)
                ),
                ReplyBody::OpenEmitterOutcome(outcome) => {
                    matches!(
                        outcome.disposition,
                        OpenEmitterDisposition::EmitterOpened(_)
                    )
                }
                other => panic!("{other:?}"),
            };
            assert!(opened);
        }
        session
            .command(support::command(Some("d"), "REVERT;"))
            .await;
    }
    assert_eq!(node.counts().await["forbidden_in_transaction"], json!({}));
}
