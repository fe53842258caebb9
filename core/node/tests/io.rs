//! The whole way of typed rows over the wire: submitted by a producer, delivered to a consumer, retried, rejected,
//! acknowledged, held across a lost session.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod support;

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, Float32Array, Float64Array,
    Int16Array, Int32Array, Int64Array, Int8Array, ListArray, StringArray,
    TimestampNanosecondArray, UInt16Array, UInt32Array, UInt64Array, UInt8Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::DataType;
use bytes::Bytes;
use nervix_wire::types::{
    CancelRequest, CancellationStage, ClientRequest, CloseIngestorDisposition, ConsumerWindow,
    EmitterBatchDecision, EmitterBatchReceived, EmitterCloseDisposition, EmitterOpenRefusal,
    EmitterSettlement, OpenEmitterDisposition, OpenIngestorDisposition, ProcessingFailure,
    ProducerAdmission, ProducerRefusal, ProducerWindow, ReplyBody, RowField, ScalarType,
    SubmissionDisposition, SubmissionRefusal,
};
use serde_json::json;
use support::batches::{
    close_emitter, close_ingestor, consumer_disposition, field, fixed_list, list, nullable,
    open_emitter, open_ingestor, producer_disposition, read, read_back, scalar, sensitive, stream,
    MIB,
};
use support::{Node, Session};

const SCENARIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/graph/testdata/io.nspl");
const DOMAIN: &str = "conformance";

fn input_fields() -> Vec<RowField> {
    vec![
        field("id", scalar(ScalarType::U32)),
        field("tenant", scalar(ScalarType::String)),
        field("u8v", scalar(ScalarType::U8)),
        field("i8v", scalar(ScalarType::I8)),
        field("u16v", scalar(ScalarType::U16)),
        field("i16v", scalar(ScalarType::I16)),
        field("u32v", scalar(ScalarType::U32)),
        field("i32v", scalar(ScalarType::I32)),
        field("u64v", scalar(ScalarType::U64)),
        field("i64v", scalar(ScalarType::I64)),
        field("f32v", scalar(ScalarType::F32)),
        field("f64v", scalar(ScalarType::F64)),
        field("flag", scalar(ScalarType::Bool)),
        nullable("text", scalar(ScalarType::String)),
        nullable("raw", scalar(ScalarType::Bytes)),
        field("at", scalar(ScalarType::Datetime)),
        nullable("maybe", scalar(ScalarType::I64)),
        field("tags", list(scalar(ScalarType::String))),
        field(
            "grid",
            fixed_list(fixed_list(scalar(ScalarType::I16), 2), 2),
        ),
        nullable("spans", list(fixed_list(scalar(ScalarType::Datetime), 2))),
        sensitive("secret", scalar(ScalarType::String)),
    ]
}

fn output_fields() -> Vec<RowField> {
    let mut fields = input_fields();
    fields.push(field("echo", scalar(ScalarType::U32)));
    fields
}

fn fields_not_sensitive(mut fields: Vec<RowField>) -> Vec<RowField> {
    for field in &mut fields {
        field.sensitive = false;
    }
    fields
}

fn instants(values: Vec<i64>) -> TimestampNanosecondArray {
    TimestampNanosecondArray::from(values).with_timezone("+00:00")
}

fn inner_of(data_type: &DataType) -> arrow_schema::FieldRef {
    match data_type {
        DataType::List(inner) | DataType::FixedSizeList(inner, _) => inner.clone(),
        other => panic!("{other}"),
    }
}

/// The columns of the three rows that hold every extreme.
fn columns() -> Vec<ArrayRef> {
    let types: Vec<DataType> = support::batches::arrow_schema(&input_fields())
        .fields()
        .iter()
        .map(|field| field.data_type().clone())
        .collect();
    let tags = ListArray::new(
        inner_of(&types[17]),
        OffsetBuffer::from_lengths([3, 0, 1]),
        Arc::new(StringArray::from(vec!["a", "", "héllo", "x"])),
        None,
    );
    let cells: Vec<i16> = vec![1, -2, 32767, -32768, 0, 0, 0, 0, -1, 1, 2, -2];
    let rows_of_grid = inner_of(&types[18]);
    let grid = FixedSizeListArray::new(
        rows_of_grid.clone(),
        2,
        Arc::new(FixedSizeListArray::new(
            inner_of(rows_of_grid.data_type()),
            2,
            Arc::new(Int16Array::from(cells)),
            None,
        )),
        None,
    );
    let pair = inner_of(&types[19]);
    let spans = ListArray::new(
        pair.clone(),
        OffsetBuffer::from_lengths([1, 0, 0]),
        Arc::new(FixedSizeListArray::new(
            inner_of(pair.data_type()),
            2,
            Arc::new(instants(vec![i64::MIN, i64::MAX])),
            None,
        )),
        Some(NullBuffer::from(vec![true, false, true])),
    );
    vec![
        Arc::new(UInt32Array::from(vec![1, 2, 3])),
        Arc::new(StringArray::from(vec!["acme"; 3])),
        Arc::new(UInt8Array::from(vec![u8::MAX, 0, 1])),
        Arc::new(Int8Array::from(vec![i8::MAX, i8::MIN, -1])),
        Arc::new(UInt16Array::from(vec![u16::MAX, 0, 1])),
        Arc::new(Int16Array::from(vec![i16::MAX, i16::MIN, -1])),
        Arc::new(UInt32Array::from(vec![u32::MAX, 0, 1])),
        Arc::new(Int32Array::from(vec![i32::MAX, i32::MIN, -1])),
        Arc::new(UInt64Array::from(vec![u64::MAX, 0, (1 << 53) + 1])),
        Arc::new(Int64Array::from(vec![i64::MAX, i64::MIN, -(1 << 53) - 1])),
        Arc::new(Float32Array::from(vec![
            f32::from_bits(0x7f7f_ffff),
            f32::from_bits(0x8000_0000),
            1.5,
        ])),
        Arc::new(Float64Array::from(vec![
            f64::from_bits(0x7fef_ffff_ffff_ffff),
            f64::from_bits(1),
            0.1,
        ])),
        Arc::new(BooleanArray::from(vec![true, false, true])),
        Arc::new(StringArray::from(vec![
            Some("héllo 世界 🚀"),
            Some("a\0b"),
            None,
        ])),
        Arc::new(BinaryArray::from_opt_vec(vec![
            Some(&[0x00, 0xff, 0xfe, 0x80, 0x00]),
            Some(&[]),
            None,
        ])),
        Arc::new(instants(vec![i64::MAX, i64::MIN, 1])),
        Arc::new(Int64Array::from(vec![None, Some(0), Some(1 << 53)])),
        Arc::new(tags),
        Arc::new(grid),
        Arc::new(spans),
        Arc::new(StringArray::from(vec!["s1", "s2", "s3"])),
    ]
}

fn typed_rows() -> Bytes {
    stream(&input_fields(), columns())
}

/// One row that is told apart by its number.
fn row(id: u32) -> Bytes {
    let mut columns: Vec<ArrayRef> = columns().iter().map(|column| column.slice(2, 1)).collect();
    columns[0] = Arc::new(UInt32Array::from(vec![id]));
    stream(&input_fields(), columns)
}

fn with_echo(id: &ArrayRef, mut columns: Vec<ArrayRef>) -> Vec<ArrayRef> {
    columns.push(id.clone());
    columns
}

fn not_admitted(disposition: &SubmissionDisposition) -> Option<SubmissionRefusal> {
    match disposition {
        SubmissionDisposition::SubmissionNotAdmitted(refused) => Some(refused.refusal),
        _ => None,
    }
}

/// Submits a batch again and again while the ingestor's window is full, as a client may.
async fn submit_when_admitted(
    session: &mut Session,
    node: &Node,
    producer: u64,
    batch: &Bytes,
) -> u64 {
    loop {
        let submission = session.submit(producer, batch).await;
        // What follows a submission in the lane of batches is answered after it was taken.
        session.ask(close_ingestor(u64::MAX)).await;
        if !session.answered_meanwhile(submission) {
            return submission;
        }
        let outcome = session.outcome(submission).await;
        assert_eq!(not_admitted(&outcome), Some(SubmissionRefusal::Busy));
        node.wait(json!({"outstanding_batches": 0})).await;
    }
}

struct Endpoints {
    producer: u64,
    consumer: u64,
}

async fn opened(session: &mut Session) -> Endpoints {
    let (consumer, described) = session
        .consumer(open_emitter(DOMAIN, "typed_out", output_fields(), 4, MIB))
        .await;
    assert_eq!(described.fields, output_fields());
    assert_eq!(
        (described.generation, &described.window),
        (1, &ConsumerWindow::SequentialConsumerWindow)
    );
    assert_eq!(described.ack_timeout_nanos, 60_000_000_000);
    assert_eq!(
        (described.granted_batches, described.granted_bytes),
        (4, MIB)
    );
    assert_eq!(
        (described.max_batch_rows, described.max_batch_bytes),
        (16, MIB)
    );
    let (producer, described) = session
        .producer(open_ingestor(DOMAIN, "typed_in", input_fields(), 2, MIB))
        .await;
    assert_eq!(described.fields, input_fields());
    assert_eq!(
        (described.generation, described.admission),
        (1, ProducerAdmission::Open)
    );
    assert_eq!(described.window, ProducerWindow::SequentialProducerWindow);
    assert_eq!(
        (
            described.granted_batches,
            described.granted_bytes,
            described.max_batch_bytes
        ),
        (2, MIB, MIB)
    );
    assert_eq!(
        (
            described.retry_backoff_nanos,
            described.retry_max_backoff_nanos
        ),
        (100_000_000, 1_000_000_000)
    );
    Endpoints { producer, consumer }
}

fn check_delivery(delivery: &EmitterBatchReceived) {
    assert_eq!(
        (delivery.source_relay.as_str(), delivery.members),
        ("typed_rows", 3)
    );
    assert!(delivery.branch_fingerprint.is_some());
    let batch = read_back(&delivery.batch);
    assert_eq!(
        batch.schema(),
        support::batches::arrow_schema(&output_fields())
    );
    let submitted = columns();
    let expected = with_echo(&submitted[0], submitted.clone());
    for (index, (got, expected)) in batch.columns().iter().zip(&expected).enumerate() {
        assert_eq!(got.to_data(), expected.to_data(), "column {index}");
    }
    // Comparing floats as numbers would not see these.
    let f32v = batch.column(10).as_any().downcast_ref::<Float32Array>();
    assert_eq!(f32v.unwrap().value(1).to_bits(), 0x8000_0000);
}

// rule: P-1, P-2, P-5, P-8, EC-1, EC-2, EC-3, EC-4, EC-5, EC-6
#[tokio::test]
async fn typed_rows_go_the_whole_way() {
    let node = Node::start(&["--nodes", "3", "--load", SCENARIO]).await;
    let mut session = Session::begun(&node.address(1)).await;

    let body = session
        .ask(open_ingestor(
            DOMAIN,
            "typed_in",
            fields_not_sensitive(input_fields()),
            2,
            MIB,
        ))
        .await;
    assert!(matches!(
        producer_disposition(body),
        OpenIngestorDisposition::ProducerRefused(refused) if refused.refusal == ProducerRefusal::SchemaMismatch
    ));
    let body = session
        .ask(open_emitter(
            DOMAIN,
            "typed_out",
            fields_not_sensitive(output_fields()),
            4,
            MIB,
        ))
        .await;
    assert!(matches!(
        consumer_disposition(body),
        OpenEmitterDisposition::EmitterRefused(refused) if refused.refusal == EmitterOpenRefusal::SchemaMismatch
    ));
    let Endpoints { producer, consumer } = opened(&mut session).await;

    // A read that nothing came for has no effect when it is taken back.
    let parked = session.send(read(consumer)).await;
    node.wait(json!({"parked_reads": 1})).await;
    session
        .ask(ClientRequest::CancelRequest(CancelRequest {
            target_request_id: parked,
        }))
        .await;
    let ReplyBody::RequestCancelled(cancelled) = session.reply_to(parked).await else {
        panic!("not cancelled")
    };
    assert_eq!(cancelled.stage, CancellationStage::BeforeAdmission);

    let submitted = columns();
    let wrong = stream(
        &output_fields(),
        with_echo(&submitted[0], submitted.clone()),
    );
    let submission = session.submit(producer, &wrong).await;
    let outcome = session.outcome(submission).await;
    assert_eq!(
        not_admitted(&outcome),
        Some(SubmissionRefusal::SchemaMismatch)
    );

    let first = session.submit(producer, &typed_rows()).await;
    let delivery = session.next(consumer).await;
    check_delivery(&delivery);
    assert!(!session.answered_meanwhile(first));
    let retried = session
        .settle(
            consumer,
            delivery.reference,
            EmitterBatchDecision::Retry,
            "",
        )
        .await;
    assert_eq!(retried, EmitterSettlement::Confirmed);
    let again = session.next(consumer).await;
    assert_eq!(
        (again.identity, &again.batch),
        (delivery.identity, &delivery.batch)
    );
    assert_ne!(again.reference, delivery.reference);
    assert_eq!(
        session.ack(consumer, &delivery).await,
        EmitterSettlement::StaleReference
    );
    assert!(!session.answered_meanwhile(first));
    assert_eq!(
        session.ack(consumer, &again).await,
        EmitterSettlement::Confirmed
    );
    assert_eq!(
        session.outcome(first).await,
        SubmissionDisposition::SubmissionCompleted
    );

    let second = session.submit(producer, &row(4)).await;
    let delivery = session.next(consumer).await;
    let rejected = session
        .settle(
            consumer,
            delivery.reference,
            EmitterBatchDecision::Reject,
            "not wanted",
        )
        .await;
    assert_eq!(rejected, EmitterSettlement::Confirmed);
    assert!(matches!(
        session.outcome(second).await,
        SubmissionDisposition::SubmissionFailed(failed) if failed.failure == ProcessingFailure::Rejected
    ));

    // The window takes one batch at a time.
    let third = session.submit(producer, &row(5)).await;
    let fourth = session.submit(producer, &row(6)).await;
    let refused = session.outcome(fourth).await;
    assert_eq!(not_admitted(&refused), Some(SubmissionRefusal::Busy));
    for id in [5, 6] {
        let submission = if id == 5 {
            third
        } else {
            submit_when_admitted(&mut session, &node, producer, &row(6)).await
        };
        let delivery = session.next(consumer).await;
        assert_eq!(
            session.ack(consumer, &delivery).await,
            EmitterSettlement::Confirmed
        );
        assert_eq!(
            session.outcome(submission).await,
            SubmissionDisposition::SubmissionCompleted
        );
    }

    let (extra, _) = session
        .producer(open_ingestor(DOMAIN, "typed_in", input_fields(), 1, MIB))
        .await;
    session.submit(extra, &row(7)).await;
    let held = session.next(consumer).await;
    node.post("cut", json!({})).await;
    session.end().await;
    node.wait(json!({"producers": 0, "consumers": 0, "outstanding_batches": 0}))
        .await;

    let mut session = Session::begun(&node.address(2)).await;
    let Endpoints { producer, consumer } = opened(&mut session).await;
    assert_eq!(
        session.ack(consumer, &held).await,
        EmitterSettlement::StaleReference
    );
    let redelivered = session.next(consumer).await;
    assert_eq!(
        (redelivered.identity, &redelivered.batch),
        (held.identity, &held.batch)
    );
    assert_ne!(redelivered.reference, held.reference);
    session.ack(consumer, &redelivered).await;
    let sixth = submit_when_admitted(&mut session, &node, producer, &row(8)).await;
    let delivery = session.next(consumer).await;
    session.ack(consumer, &delivery).await;
    assert_eq!(
        session.outcome(sixth).await,
        SubmissionDisposition::SubmissionCompleted
    );
    let ReplyBody::CloseIngestorOutcome(closed) = session.ask(close_ingestor(producer)).await
    else {
        panic!("no outcome")
    };
    assert_eq!(closed.disposition, CloseIngestorDisposition::ProducerClosed);
    let ReplyBody::CloseEmitterOutcome(closed) = session.ask(close_emitter(consumer)).await else {
        panic!("no outcome")
    };
    assert_eq!(closed.disposition, EmitterCloseDisposition::Closed);
    let ingestor = node.describe(DOMAIN, "INGESTOR typed_in").await;
    for line in ["producers: 0", "outstanding batches: 0"] {
        assert!(ingestor.iter().any(|said| said == line), "{ingestor:?}");
    }
    let emitter = node.describe(DOMAIN, "EMITTER typed_out").await;
    for line in ["consumers: 0", "retained batches: 0"] {
        assert!(emitter.iter().any(|said| said == line), "{emitter:?}");
    }
    let counts = node.counts().await;
    assert_eq!(counts["batches"]["forbidden_resends"], 0);
}
