//! Producers, consumers and deliveries against a server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
mod server;

use std::sync::Arc;
use std::time::Duration;

use nervix_batch::{Batch, Builder};
use nervix_client::{Cancel, Consumer, Expected, Options, Producer, Session};
use nervix_engine::{EndpointState, ErrorKind, OpenRefusal, Settlement, SubmissionResult};
use nervix_wire::types::{
    ClientRequest, FieldType, FieldTypeShape, ProducerAdmission, RowField, RowSchema,
    ScalarFieldType, ScalarType,
};
use server::endpoints::ROWS;
use server::{Act, Seen, Server};

fn fields() -> Vec<RowField> {
    let shape = FieldTypeShape::ScalarFieldType(ScalarFieldType {
        scalar: ScalarType::I64,
    });
    vec![RowField {
        name: "n".to_owned(),
        field_type: FieldType { shape },
        nullable: false,
        sensitive: false,
    }]
}

fn batch(fields: Vec<RowField>, rows: usize) -> Batch {
    let schema = RowSchema {
        fields,
        branch: None,
    };
    let mut builder = Builder::new(Arc::new(schema), rows).unwrap();
    builder.fixed(0, 0, &vec![7; rows * 8]).unwrap();
    builder.finish().unwrap()
}

fn expected<'a>(endpoint: &'a str, fields: &'a [RowField], bytes: u64) -> Expected<'a> {
    Expected {
        domain: "d",
        endpoint,
        fields,
        batches: 4,
        bytes,
    }
}

fn connect() -> (Server, Session) {
    let server = Server::start(vec![Act::Lead]);
    let session = Session::connect(&server.origin, None, None, &Options::default(), None).unwrap();
    server.opened();
    (server, session)
}

fn producer(session: &Session) -> Producer {
    session
        .open_ingestor(&expected("in", &fields(), 1 << 20), None)
        .unwrap()
}

fn consumer(session: &Session) -> Consumer {
    session
        .subscribe_emitter(&expected("out", &fields(), 1 << 20), None)
        .unwrap()
}

/// The next request that the server sees.
fn request(server: &Server) -> ClientRequest {
    match server.next() {
        Seen::Message(message) => message.request,
        other => panic!("{other:?}"),
    }
}

// rule: P-2, P-3, EC-3, B-14, B-15
#[test]
fn what_is_submitted_is_delivered_and_settled() {
    let (_server, session) = connect();
    let (producer, consumer) = (producer(&session), consumer(&session));
    assert_eq!(producer.contract().generation, 3);
    assert_eq!(producer.admission(), ProducerAdmission::Open);
    assert_eq!(producer.state(), EndpointState::Active);
    assert_eq!(producer.reopen_reason(), None);
    let sent = batch(fields(), 2);
    let submission = producer.submit(&sent, None).unwrap();
    assert_eq!(producer.pending().unwrap().len(), 1);
    let outcome = producer.rejoin(submission, None).unwrap();
    assert_eq!(outcome.result, SubmissionResult::Completed);
    assert!(producer.pending().unwrap().is_empty());
    for gone in [submission, submission + 1] {
        let rejoined = producer.rejoin(gone, None).unwrap_err();
        assert_eq!(rejoined.kind, ErrorKind::InvalidArgument);
        assert_eq!(
            producer.release(gone).unwrap_err().kind,
            ErrorKind::InvalidArgument
        );
    }
    let delivery = consumer.next(None).unwrap();
    assert_eq!(delivery.facts().identity, [1; 16]);
    assert_eq!(delivery.facts().batch, sent.stream().unwrap());
    let read = delivery.batch().unwrap();
    assert_eq!(read.stream().unwrap(), sent.stream().unwrap());
    // It is decoded once, in place: the stream is where the frame was received.
    assert!(Arc::ptr_eq(&read, &delivery.batch().unwrap()));
    assert_eq!(read.stream().unwrap().as_ptr() as usize % 64, 0);
    assert_eq!(delivery.ack(None).unwrap(), Settlement::Confirmed);
    consumer.close(None).unwrap();
    assert_eq!(consumer.state(), EndpointState::Closed);
    assert_eq!(consumer.next(None).unwrap_err().kind, ErrorKind::Closed);
    // Its attachment is gone, and nothing is sent through another.
    assert_eq!(delivery.retry(None).unwrap_err().kind, ErrorKind::Rejected);
    producer.close(None).unwrap();
    producer.close(None).unwrap();
    assert_eq!(producer.admission(), ProducerAdmission::Suspended);
}

// rule: P-1, B-12
#[test]
fn a_refused_open_attaches_nothing_and_says_why() {
    let (_server, session) = connect();
    let refused = session.open_ingestor(&expected("refused", &fields(), 1), None);
    let error = refused.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Rejected);
    assert_eq!(error.refusal, Some(OpenRefusal::EndpointNotFound));
    let refused = session.open_ingestor(&expected("in", &fields(), 0), None);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::InvalidArgument);
}

// rule: P-3, P-4
#[test]
fn what_the_grant_forbids_is_not_sent() {
    let (server, session) = connect();
    let producer = producer(&session);
    let _open = request(&server);
    let invalid = |submitted: Result<u64, nervix_engine::Error>| {
        assert_eq!(submitted.unwrap_err().kind, ErrorKind::InvalidArgument);
    };
    let mut other = fields();
    other[0].name = "m".to_owned();
    invalid(producer.submit(&batch(other, 1), None));
    let mut other = fields();
    other[0].sensitive = true;
    invalid(producer.submit(&batch(other, 1), None));
    invalid(producer.submit(&batch(fields(), ROWS as usize + 1), None));
    invalid(producer.submit_ipc(&[], None));
    invalid(producer.submit_ipc(&[0; 4097], None));
    // What else a host writes is for the server to judge.
    let submission = producer.submit_ipc(b"anything", None).unwrap();
    producer.rejoin(submission, None).unwrap();
    match request(&server) {
        ClientRequest::SubmitBatchRequest(submitted) => assert_eq!(submitted.batch, "anything"),
        other => panic!("{other:?}"),
    }
}

// rule: EC-3
#[test]
fn a_delivery_that_is_not_what_was_agreed_is_told() {
    let (_server, session) = connect();
    let (producer, consumer) = (producer(&session), consumer(&session));
    let one_row = batch(fields(), 1).stream().unwrap().to_vec();
    for (stream, word) in [
        (one_row, "members"),
        (b"no stream".to_vec(), "continuation"),
    ] {
        let submission = producer.submit_ipc(&stream, None).unwrap();
        producer.rejoin(submission, None).unwrap();
        let delivery = consumer.next(None).unwrap();
        for _ in 0..2 {
            let error = delivery.batch().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Protocol);
            assert!(error.message.contains(word), "{error}");
        }
        // It can be given up all the same.
        assert_eq!(
            delivery.reject("unreadable", None).unwrap(),
            Settlement::Confirmed
        );
    }
}

// rule: EC-4
#[test]
fn a_reason_has_its_limits() {
    let (_server, session) = connect();
    let (producer, consumer) = (producer(&session), consumer(&session));
    producer.submit(&batch(fields(), 2), None).unwrap();
    let delivery = consumer.next(None).unwrap();
    for length in [0, 1025] {
        let refused = delivery.reject(&"x".repeat(length), None).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    }
    let longest = "x".repeat(1024);
    assert_eq!(
        delivery.reject(&longest, None).unwrap(),
        Settlement::Confirmed
    );
}

// rule: EC-2, B-16
#[test]
fn a_wait_that_was_given_up_loses_no_delivery() {
    let (_server, session) = connect();
    let (producer, consumer) = (producer(&session), consumer(&session));
    let short = Cancel::with_deadline(Duration::ZERO);
    assert_eq!(
        consumer.next(Some(&short)).unwrap_err().kind,
        ErrorKind::Deadline
    );
    assert_eq!(
        producer
            .submit(&batch(fields(), 2), Some(&short))
            .unwrap_err()
            .kind,
        ErrorKind::Deadline
    );
    assert!(producer.pending().unwrap().is_empty());
    producer.submit(&batch(fields(), 2), None).unwrap();
    assert_eq!(consumer.next(None).unwrap().facts().members, 2);
}

// rule: B-2, X-7
#[test]
fn the_session_ends_with_the_last_of_what_belongs_to_it() {
    let (server, session) = connect();
    let (producer, consumer) = (producer(&session), consumer(&session));
    drop(session);
    producer.submit(&batch(fields(), 2), None).unwrap();
    drop(producer);
    let delivery = consumer.next(None).unwrap();
    drop(consumer);
    // The delivery alone keeps the session, though its attachment is gone.
    assert_eq!(delivery.ack(None).unwrap_err().kind, ErrorKind::Rejected);
    let (mut ingestor, mut emitter) = (false, false);
    while !(ingestor && emitter) {
        match request(&server) {
            ClientRequest::CloseIngestorRequest(_) => ingestor = true,
            ClientRequest::CloseEmitterRequest(_) => emitter = true,
            _ => {}
        }
    }
    let batch = delivery.batch().unwrap();
    drop(delivery);
    assert!(matches!(server.next(), Seen::Reset(_)));
    // The batch stays.
    assert_eq!(batch.rows(), 2);
}
