//! What a fork leaves of a session. Alone in its process, because the generation is the process's.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
mod server;

use nervix_client::{fork, Cancel, Expected, Options, Session};
use nervix_engine::{Disposition, EndpointState, ErrorKind};
use nervix_wire::types::{FieldType, FieldTypeShape, RowField, ScalarFieldType, ScalarType};
use server::{Act, Seen, Server};

fn number() -> RowField {
    let shape = FieldTypeShape::ScalarFieldType(ScalarFieldType {
        scalar: ScalarType::I64,
    });
    RowField {
        name: "n".to_owned(),
        field_type: FieldType { shape },
        nullable: false,
        sensitive: false,
    }
}

#[test]
fn what_was_made_before_a_fork_is_closed_and_left_alone() {
    let server = Server::start(vec![Act::Lead]);
    let connect =
        || Session::connect(&server.origin, None, None, &Options::default(), None).unwrap();
    let session = connect();
    server.opened();
    let execution = session.prepare("SHOW X;", None).unwrap();
    let cancel = Cancel::new();
    let fields = [number()];
    let expected = Expected {
        domain: "d",
        endpoint: "e",
        fields: &fields,
        batches: 1,
        bytes: 4096,
    };
    let producer = session.open_ingestor(&expected, None).unwrap();
    let consumer = session.subscribe_emitter(&expected, None).unwrap();
    let submission = producer.submit_ipc(b"stream", None).unwrap();
    let delivery = consumer.next(None).unwrap();
    // Whatever was sent has arrived once it is answered.
    delivery.retry(None).unwrap();
    server.rest();

    fork::forked();
    assert_eq!(producer.state(), EndpointState::Closed);
    assert_eq!(producer.contract().generation, 3);
    for kind in [
        producer.submit_ipc(b"stream", None).unwrap_err().kind,
        producer.rejoin(submission, None).unwrap_err().kind,
        producer.release(submission).unwrap_err().kind,
        producer.pending().unwrap_err().kind,
        producer.close(None).unwrap_err().kind,
        consumer.next(None).unwrap_err().kind,
        consumer.close(None).unwrap_err().kind,
        delivery.ack(None).unwrap_err().kind,
        session.open_ingestor(&expected, None).unwrap_err().kind,
        session.next_clock_event(None).unwrap_err().kind,
        session.domain_clock("d").unwrap_err().kind,
    ] {
        assert_eq!(kind, ErrorKind::Closed);
    }
    drop((producer, consumer, delivery));
    let error = session.execute(&execution, None).unwrap_err();
    assert_eq!(
        (error.kind, error.reference.as_deref()),
        (ErrorKind::Closed, Some(execution.reference()))
    );
    assert_eq!(
        session.prepare("SHOW X;", None).unwrap_err().kind,
        ErrorKind::Closed
    );
    assert_eq!(
        session.next_event(None).unwrap_err().kind,
        ErrorKind::Closed
    );
    cancel.trigger();
    drop((execution, session));

    let session = connect();
    let execution = session.prepare("SHOW Y;", None).unwrap();
    assert_eq!(
        session.next_event(Some(&cancel)).unwrap_err().kind,
        ErrorKind::Closed
    );
    assert_eq!(
        session.execute(&execution, None).unwrap().disposition,
        Disposition::Completed
    );
    // The server heard of the new session alone: the old one's exchange is neither used nor ended.
    server.opened();
    assert_eq!(server.command().query, "SHOW Y;");
    assert!(server.rest().is_empty());
    drop(session);
    assert!(matches!(server.next(), Seen::Reset(_)));
}
