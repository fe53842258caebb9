//! Endpoints as a client on the wire uses them: descriptions, Arrow streams, and the requests about them.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use nervix_wire::types::{
    ClientRequest, CloseEmitterRequest, CloseIngestorRequest, EmitterBatchDecision,
    EmitterBatchReceived, EmitterOpened, EmitterSettlement, FieldType, FieldTypeShape,
    FixedListFieldType, ListFieldType, OpenEmitterDisposition, OpenEmitterRequest,
    OpenIngestorDisposition, OpenIngestorRequest, ProducerOpened, ReadEmitterBatchRequest,
    ReadEmitterDisposition, ReplyBody, RowField, ScalarFieldType, ScalarType,
    SettleEmitterBatchRequest, SubmissionDisposition, SubmitBatchRequest,
};

use super::Session;

pub const MIB: u64 = 1024 * 1024;

pub fn scalar(scalar: ScalarType) -> FieldType {
    FieldType {
        shape: FieldTypeShape::ScalarFieldType(ScalarFieldType { scalar }),
    }
}

pub fn list(element: FieldType) -> FieldType {
    FieldType {
        shape: FieldTypeShape::ListFieldType(Box::new(ListFieldType { element })),
    }
}

pub fn fixed_list(element: FieldType, length: u32) -> FieldType {
    FieldType {
        shape: FieldTypeShape::FixedListFieldType(Box::new(FixedListFieldType { element, length })),
    }
}

pub fn field(name: &str, field_type: FieldType) -> RowField {
    RowField {
        name: name.to_owned(),
        field_type,
        nullable: false,
        sensitive: false,
    }
}

pub fn nullable(name: &str, field_type: FieldType) -> RowField {
    RowField {
        nullable: true,
        ..field(name, field_type)
    }
}

pub fn sensitive(name: &str, field_type: FieldType) -> RowField {
    RowField {
        sensitive: true,
        ..field(name, field_type)
    }
}

/// One U32 field `n`.
pub fn numbers() -> Vec<RowField> {
    vec![field("n", scalar(ScalarType::U32))]
}

pub fn arrow_type(field_type: &FieldType) -> DataType {
    let item = |element: &FieldType| Arc::new(Field::new("item", arrow_type(element), false));
    match &field_type.shape {
        FieldTypeShape::ScalarFieldType(scalar) => match scalar.scalar {
            ScalarType::U8 => DataType::UInt8,
            ScalarType::I8 => DataType::Int8,
            ScalarType::U16 => DataType::UInt16,
            ScalarType::I16 => DataType::Int16,
            ScalarType::U32 => DataType::UInt32,
            ScalarType::I32 => DataType::Int32,
            ScalarType::U64 => DataType::UInt64,
            ScalarType::I64 => DataType::Int64,
            ScalarType::F32 => DataType::Float32,
            ScalarType::F64 => DataType::Float64,
            ScalarType::Bool => DataType::Boolean,
            ScalarType::String => DataType::Utf8,
            ScalarType::Bytes => DataType::Binary,
            ScalarType::Datetime => {
                DataType::Timestamp(TimeUnit::Nanosecond, Some("+00:00".into()))
            }
        },
        FieldTypeShape::FixedListFieldType(fixed) => {
            DataType::FixedSizeList(item(&fixed.element), i32::try_from(fixed.length).unwrap())
        }
        FieldTypeShape::ListFieldType(list) => DataType::List(item(&list.element)),
    }
}

pub fn arrow_schema(fields: &[RowField]) -> Arc<Schema> {
    let fields: Vec<Field> = fields
        .iter()
        .map(|field| Field::new(&field.name, arrow_type(&field.field_type), field.nullable))
        .collect();
    Arc::new(Schema::new(fields))
}

pub fn stream(fields: &[RowField], columns: Vec<ArrayRef>) -> Bytes {
    let schema = arrow_schema(fields);
    let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
    let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    Bytes::from(writer.into_inner().unwrap())
}

/// A stream of rows of `numbers`.
pub fn rows(values: impl IntoIterator<Item = u32>) -> Bytes {
    let column = UInt32Array::from_iter_values(values);
    stream(&numbers(), vec![Arc::new(column)])
}

pub fn read_back(stream: &[u8]) -> RecordBatch {
    let mut reader = StreamReader::try_new(stream, None).unwrap();
    let batch = reader.next().unwrap().unwrap();
    assert!(reader.next().is_none());
    batch
}

pub fn values(received: &EmitterBatchReceived) -> Vec<u32> {
    let batch = read_back(&received.batch);
    assert_eq!(batch.num_rows(), received.members as usize);
    let column = batch.column(0).as_any().downcast_ref::<UInt32Array>();
    column.unwrap().values().to_vec()
}

pub fn open_ingestor(
    domain: &str,
    ingestor: &str,
    fields: Vec<RowField>,
    batches: u32,
    bytes: u64,
) -> ClientRequest {
    ClientRequest::OpenIngestorRequest(OpenIngestorRequest {
        domain: domain.to_owned(),
        ingestor: ingestor.to_owned(),
        expected_fields: fields,
        max_outstanding_batches: batches,
        max_outstanding_bytes: bytes,
    })
}

pub fn open_emitter(
    domain: &str,
    emitter: &str,
    fields: Vec<RowField>,
    batches: u32,
    bytes: u64,
) -> ClientRequest {
    ClientRequest::OpenEmitterRequest(OpenEmitterRequest {
        domain: domain.to_owned(),
        emitter: emitter.to_owned(),
        expected_fields: fields,
        max_outstanding_batches: batches,
        max_outstanding_bytes: bytes,
    })
}

pub fn read(consumer: u64) -> ClientRequest {
    ClientRequest::ReadEmitterBatchRequest(ReadEmitterBatchRequest { consumer })
}

pub fn close_ingestor(producer: u64) -> ClientRequest {
    ClientRequest::CloseIngestorRequest(CloseIngestorRequest { producer })
}

pub fn close_emitter(consumer: u64) -> ClientRequest {
    ClientRequest::CloseEmitterRequest(CloseEmitterRequest { consumer })
}

pub fn producer_disposition(body: ReplyBody) -> OpenIngestorDisposition {
    match body {
        ReplyBody::OpenIngestorOutcome(outcome) => outcome.disposition,
        other => panic!("{other:?}"),
    }
}

pub fn consumer_disposition(body: ReplyBody) -> OpenEmitterDisposition {
    match body {
        ReplyBody::OpenEmitterOutcome(outcome) => outcome.disposition,
        other => panic!("{other:?}"),
    }
}

pub fn received(body: ReplyBody) -> Option<EmitterBatchReceived> {
    match body {
        ReplyBody::ReadEmitterBatchOutcome(outcome) => match outcome.disposition {
            ReadEmitterDisposition::EmitterBatchReceived(received) => Some(received),
            ReadEmitterDisposition::EmitterConsumerEnded => None,
        },
        other => panic!("{other:?}"),
    }
}

impl Session {
    /// Opens a producer and says its identity with its description.
    pub async fn producer(&mut self, request: ClientRequest) -> (u64, ProducerOpened) {
        let id = self.send(request).await;
        match producer_disposition(self.reply_to(id).await) {
            OpenIngestorDisposition::ProducerOpened(opened) => (id, opened),
            OpenIngestorDisposition::ProducerRefused(refused) => panic!("{refused:?}"),
        }
    }

    pub async fn consumer(&mut self, request: ClientRequest) -> (u64, EmitterOpened) {
        let id = self.send(request).await;
        match consumer_disposition(self.reply_to(id).await) {
            OpenEmitterDisposition::EmitterOpened(opened) => (id, opened),
            OpenEmitterDisposition::EmitterRefused(refused) => panic!("{refused:?}"),
        }
    }

    pub async fn submit(&mut self, producer: u64, batch: &Bytes) -> u64 {
        self.send(ClientRequest::SubmitBatchRequest(SubmitBatchRequest {
            producer,
            batch: batch.clone(),
        }))
        .await
    }

    pub async fn outcome(&mut self, submission: u64) -> SubmissionDisposition {
        match self.reply_to(submission).await {
            ReplyBody::SubmissionOutcome(outcome) => outcome.disposition,
            other => panic!("{other:?}"),
        }
    }

    /// Reads the next batch of a consumer that has one or gets one.
    pub async fn next(&mut self, consumer: u64) -> EmitterBatchReceived {
        received(self.ask(read(consumer)).await).expect("the consumer ended")
    }

    pub async fn settle(
        &mut self,
        consumer: u64,
        reference: [u8; 16],
        decision: EmitterBatchDecision,
        reason: &str,
    ) -> EmitterSettlement {
        let request = SettleEmitterBatchRequest {
            consumer,
            reference,
            decision,
            reason: reason.to_owned(),
        };
        match self
            .ask(ClientRequest::SettleEmitterBatchRequest(request))
            .await
        {
            ReplyBody::SettleEmitterBatchOutcome(outcome) => outcome.disposition,
            other => panic!("{other:?}"),
        }
    }

    pub async fn ack(
        &mut self,
        consumer: u64,
        received: &EmitterBatchReceived,
    ) -> EmitterSettlement {
        self.settle(consumer, received.reference, EmitterBatchDecision::Ack, "")
            .await
    }
}
