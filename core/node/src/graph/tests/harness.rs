//! A world whose endpoints are used step by step at a time that the test moves.

use arrow_array::RecordBatch;
use nervix_wire::types::{
    EmitterBatchDecision, EmitterBatchReceived, EmitterOpened, EmitterSettlement,
    OpenEmitterRequest, OpenIngestorRequest, ProducerOpened, RowField, SubmissionDisposition,
};

use super::super::fields::{arrow_schema, wire_fields};
use super::super::{ipc, json, ConsumerId, Effect, Opener, ProducerId, Tag};
use super::*;

pub const MS: i64 = 1_000_000;
pub const SECOND: i64 = 1_000 * MS;

pub const OPENER: Opener = Opener {
    session: 1,
    node: 1,
    in_transaction: false,
    available: true,
};

pub struct Run {
    pub world: World,
    pub now: Now,
    pub seen: Vec<Effect>,
    tags: u64,
}

/// What an outcome is, in a word.
pub fn outcome(disposition: &SubmissionDisposition) -> String {
    match disposition {
        SubmissionDisposition::SubmissionCompleted => "Completed".to_string(),
        SubmissionDisposition::SubmissionNotAdmitted(it) => format!("{:?}", it.refusal),
        SubmissionDisposition::SubmissionFailed(it) => format!("{:?}", it.failure),
        SubmissionDisposition::SubmissionOutcomeUnknown(it) => format!("Unknown{:?}", it.cause),
    }
}

/// The batch of a delivery, read as strictly as a submission is.
pub fn batch_of(run: &Run, schema: &str, received: &EmitterBatchReceived) -> RecordBatch {
    let fields = &run.world.domains["d"]
        .catalog
        .schema(schema)
        .unwrap()
        .fields;
    let batch = ipc::batch(fields, &arrow_schema(fields), 65_536, &received.batch).unwrap();
    assert_eq!(batch.num_rows(), received.members as usize);
    batch
}

impl Run {
    /// These statements in the unpaced domain `d`, then START.
    pub fn new(statements: &[&str]) -> Self {
        let mut run = Self::stopped("CREATE UNPACED DOMAIN d", statements);
        run.execute("START");
        run.seen.clear();
        run
    }

    pub fn stopped(domain: &str, statements: &[&str]) -> Self {
        let mut world = World::new();
        done(&mut world, domain);
        for statement in statements {
            done(&mut world, statement);
        }
        Self::of(world)
    }

    pub fn of(world: World) -> Self {
        Self {
            world,
            now: NOW,
            seen: Vec::new(),
            tags: 0,
        }
    }

    pub fn execute(&mut self, query: &str) -> String {
        let result = self.world.execute(self.now, &cluster(), Some("d"), query);
        assert!(
            matches!(result.disposition, Disposition::Completed { .. }),
            "{query}: {}",
            result.message
        );
        self.seen.extend(self.world.take_effects());
        result.message
    }

    /// Lets time pass, stopping wherever something is due.
    pub fn pass(&mut self, nanos: i64) {
        let end = Now(self.now.0 + nanos);
        while let Some(due) = self.world.next_deadline(self.now).filter(|due| *due <= end) {
            assert!(due > self.now, "a deadline does not pass");
            self.now = due;
            self.world.advance(due);
        }
        self.now = end;
        self.world.advance(end);
        self.gather();
    }

    pub fn gather(&mut self) {
        self.seen.extend(self.world.take_effects());
    }

    pub fn fields(&self, schema: &str) -> Vec<RowField> {
        wire_fields(
            &self.world.domains["d"]
                .catalog
                .schema(schema)
                .unwrap()
                .fields,
        )
    }

    pub fn open_ingestor(&self, ingestor: &str, schema: &str, batches: u32) -> OpenIngestorRequest {
        OpenIngestorRequest {
            domain: "d".to_string(),
            ingestor: ingestor.to_string(),
            expected_fields: self.fields(schema),
            max_outstanding_batches: batches,
            max_outstanding_bytes: 1 << 20,
        }
    }

    pub fn producer(&mut self, ingestor: &str, schema: &str, batches: u32) -> ProducerId {
        self.opened_producer(ingestor, schema, batches).0
    }

    pub fn opened_producer(
        &mut self,
        ingestor: &str,
        schema: &str,
        batches: u32,
    ) -> (ProducerId, ProducerOpened) {
        let request = self.open_ingestor(ingestor, schema, batches);
        self.world
            .open_producer(self.now, OPENER, &request)
            .unwrap()
    }

    pub fn open_emitter(&self, emitter: &str, schema: &str, batches: u32) -> OpenEmitterRequest {
        OpenEmitterRequest {
            domain: "d".to_string(),
            emitter: emitter.to_string(),
            expected_fields: self.fields(schema),
            max_outstanding_batches: batches,
            max_outstanding_bytes: 1 << 20,
        }
    }

    pub fn consumer(&mut self, emitter: &str, schema: &str, batches: u32) -> ConsumerId {
        self.opened_consumer(emitter, schema, batches).0
    }

    pub fn opened_consumer(
        &mut self,
        emitter: &str,
        schema: &str,
        batches: u32,
    ) -> (ConsumerId, EmitterOpened) {
        let request = self.open_emitter(emitter, schema, batches);
        self.world
            .open_consumer(self.now, OPENER, &request)
            .unwrap()
    }

    pub fn stream(&self, schema: &str, rows: &str) -> Vec<u8> {
        let fields = &self.world.domains["d"]
            .catalog
            .schema(schema)
            .unwrap()
            .fields;
        let rows = serde_json::from_str(rows).unwrap();
        let batch = json::batch(fields, &arrow_schema(fields), &rows).unwrap();
        ipc::stream(&batch).unwrap()
    }

    pub fn submit_stream(&mut self, producer: ProducerId, stream: &[u8]) -> Tag {
        self.tags += 1;
        let tag = Tag(self.tags);
        self.world.submit(self.now, producer, tag, stream);
        self.gather();
        tag
    }

    pub fn submit(&mut self, producer: ProducerId, schema: &str, rows: &str) -> Tag {
        let stream = self.stream(schema, rows);
        self.submit_stream(producer, &stream)
    }

    /// The outcome of a submission, taken out of what was seen.
    pub fn outcome_of(&mut self, tag: Tag) -> Option<(String, String)> {
        let is_it =
            |effect: &Effect| matches!(effect, Effect::Submission { tag: of, .. } if *of == tag);
        let place = self.seen.iter().position(is_it)?;
        let Effect::Submission {
            disposition,
            message,
            ..
        } = self.seen.remove(place)
        else {
            return None;
        };
        assert!(!self.seen.iter().any(is_it), "a second outcome");
        Some((outcome(&disposition), message))
    }

    #[track_caller]
    pub fn assert_outcome(&mut self, tag: Tag, expected: &str) {
        let (outcome, message) = self.outcome_of(tag).expect("an outcome");
        assert_eq!(outcome, expected, "{message}");
        assert_eq!(message.is_empty(), outcome == "Completed");
    }

    #[track_caller]
    pub fn assert_pending(&mut self, tag: Tag) {
        assert_eq!(self.outcome_of(tag), None);
    }

    pub fn park(&mut self, consumer: ConsumerId) -> Tag {
        self.tags += 1;
        let tag = Tag(self.tags);
        self.world.read(self.now, consumer, tag);
        self.gather();
        tag
    }

    /// The answer to a read: None while it is parked, Some(None) when the consumer ended.
    pub fn answer(&mut self, read: Tag) -> Option<Option<EmitterBatchReceived>> {
        let is_it = |effect: &Effect| matches!(effect, Effect::Read { tag: of, .. } if *of == read);
        let place = self.seen.iter().position(is_it)?;
        match self.seen.remove(place) {
            Effect::Read { received, .. } => Some(received),
            _ => None,
        }
    }

    #[track_caller]
    pub fn delivery(&mut self, consumer: ConsumerId) -> EmitterBatchReceived {
        let read = self.park(consumer);
        self.answer(read)
            .expect("something to read")
            .expect("an open consumer")
    }

    /// Whether nothing is there to be read.
    pub fn idle(&mut self, consumer: ConsumerId) -> bool {
        let read = self.park(consumer);
        let nothing = self.answer(read).is_none();
        nothing && self.world.cancel_read(consumer, read)
    }

    pub fn settle(
        &mut self,
        consumer: ConsumerId,
        received: &EmitterBatchReceived,
        decision: EmitterBatchDecision,
        reason: &str,
    ) -> EmitterSettlement {
        let reference = received.reference;
        let (settlement, message) = self
            .world
            .settle(self.now, consumer, reference, decision, reason);
        assert_eq!(
            message.is_empty(),
            settlement == EmitterSettlement::Confirmed
        );
        self.gather();
        settlement
    }

    #[track_caller]
    pub fn ack(&mut self, consumer: ConsumerId, received: &EmitterBatchReceived) {
        assert_eq!(
            self.settle(consumer, received, EmitterBatchDecision::Ack, ""),
            EmitterSettlement::Confirmed
        );
    }

    /// The lines of a description with these keys.
    pub fn described(&mut self, query: &str, keys: &[&str]) -> Vec<String> {
        let text = self.execute(query);
        keys.iter()
            .map(|key| {
                text.lines()
                    .find_map(|line| line.strip_prefix(&format!("{key}: ")))
                    .unwrap_or_else(|| panic!("{key} in {text}"))
                    .to_string()
            })
            .collect()
    }
}

/// `id`s, a schema of one column away, as JSON rows.
pub fn ids(range: std::ops::Range<u64>) -> String {
    let rows: Vec<String> = range.map(|id| format!("{{\"id\": {id}}}")).collect();
    format!("[{}]", rows.join(","))
}

/// The `id`s of a delivery of the schema `s`.
pub fn ids_of(run: &Run, received: &EmitterBatchReceived) -> Vec<u64> {
    use arrow_array::cast::AsArray;
    use arrow_array::types::UInt64Type;
    batch_of(run, "s", received)
        .column(0)
        .as_primitive::<UInt64Type>()
        .values()
        .to_vec()
}

pub const SCHEMA: &str = "CREATE SCHEMA s (id U64)";
pub const RELAY: &str = "CREATE RELAY r SCHEMA s UNBRANCHED";

/// An ingestor `i` from `s` to `r` with the given window and end.
pub fn ingestor(window: &str, tail: &str) -> String {
    format!(
        "CREATE INGESTOR i FROM CLIENT SCHEMA s MODE ACK {window} ACK TIMEOUT 60s RETRY POLICY BACKOFF 100ms MAX 1s \
         ON QUIESCE SUSPEND TIMESTAMP NOW TO r INHERIT ALL {tail} ON GENERAL ERROR LOG"
    )
}

/// An emitter `e` from `r` to `s` with the given window and batches.
pub fn emitter(kind: &str, window: &str, tail: &str) -> String {
    format!(
        "CREATE {kind} EMITTER e FROM r TO CLIENT SCHEMA s MODE ACK {window} ACK TIMEOUT 10s RETRY POLICY BACKOFF 100ms MAX 1s \
         INHERIT ALL {tail} ON GENERAL ERROR LOG"
    )
}

pub const NOW_ON: &str = "FLUSH IMMEDIATE ON MESSAGE ERROR LOG";
pub const SIXTEEN: &str =
    "BATCH MAX MESSAGES 16 MAX SIZE 1MiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG";

/// The plainest way from an ingestor to an emitter.
pub fn plain() -> Run {
    Run::new(&[
        SCHEMA,
        RELAY,
        &ingestor("PARALLEL MAX 8", NOW_ON),
        &emitter("ATTACHED", "PARALLEL MAX 4", SIXTEEN),
    ])
}
