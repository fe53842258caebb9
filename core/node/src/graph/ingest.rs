//! A client ingestor at work: a batch becomes rows of its relay, told apart by branch, buffered until they are flushed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::arrays;
use super::branch::{self, BranchKey, Group};
use super::catalog::Catalog;
use super::clock::Admission;
use super::expr::{check_filter, Checked, Scope};
use super::failure::Failure;
use super::fields::arrow_schema;
use super::ledger::{push_origin, slice_origins, Ledger, Origin, SubmissionId};
use super::program::{self, Failures, Program, Reads, RowFailure};
use super::relay::{fail_rows, ErrorPolicy, Failed, Outbox, RelayBatch};
use super::Now;
use crate::lang::ast::{AckMode, Field, Flush, Ingestor, Timestamp};

/// The code of a row whose time is not admitted.
const VALIDATION: &str = "validation";

/// A branch by its key's identity; None for an unbranched relay.
type BufferKey = Option<Vec<u8>>;

#[derive(Debug, Clone)]
struct Buffer {
    key: Option<Arc<BranchKey>>,
    batches: Vec<RecordBatch>,
    origins: Vec<Origin>,
    bytes: usize,
    /// In logical time.
    deadline: i64,
}

#[derive(Debug, Clone)]
pub struct IngestorState {
    pub mode: AckMode,
    pub fields: Arc<[Field]>,
    pub schema: SchemaRef,
    pub relay: String,
    pub contract: [u8; 32],
    pub suspended: bool,
    pub errors: ErrorPolicy,
    timestamp: Option<(usize, String)>,
    program: Program,
    key: Option<Program>,
    filter: Option<Checked>,
    flush: Flush,
    buffers: BTreeMap<BufferKey, Buffer>,
    due: BTreeSet<(i64, BufferKey)>,
}

/// The moment at which an endpoint works, in both times.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub now: Now,
    /// The domain's time.
    pub time: Option<i64>,
}

impl IngestorState {
    pub fn new(
        catalog: &Catalog,
        ingestor: &Ingestor,
        contract: [u8; 32],
    ) -> Result<Self, Failure> {
        let fields: Arc<[Field]> = catalog
            .find_schema(&ingestor.schema)?
            .fields
            .as_slice()
            .into();
        let relay = catalog.find_relay(&ingestor.relay)?;
        let scope = Scope {
            input: Some(&fields),
            message: Some(relay.fields),
            ..Scope::default()
        };
        let timestamp = match &ingestor.timestamp {
            Timestamp::Now => None,
            Timestamp::At(name) => fields
                .iter()
                .position(|field| field.name == *name)
                .map(|column| (column, name.text.clone())),
        };
        let key = match (&ingestor.branching, relay.branch) {
            (Some(branching), Some((_, key))) => {
                Some(Program::new(None, &branching.set, &scope, key)?)
            }
            _ => None,
        };
        Ok(Self {
            mode: ingestor.mode,
            schema: arrow_schema(&fields),
            relay: ingestor.relay.text.clone(),
            contract,
            suspended: false,
            errors: ErrorPolicy::new(catalog, &ingestor.message_error, &fields)?,
            timestamp,
            program: Program::new(Some(&ingestor.inherit), &ingestor.set, &scope, relay.fields)?,
            key,
            filter: ingestor
                .filter
                .as_ref()
                .map(|filter| check_filter(filter, &scope))
                .transpose()?,
            flush: ingestor.flush,
            buffers: BTreeMap::new(),
            due: BTreeSet::new(),
            fields,
        })
    }

    /// Takes the rows of an admitted batch, whose submission owes one share so far. `admission` is of their
    /// times.
    pub fn take(
        &mut self,
        batch: &RecordBatch,
        submission: SubmissionId,
        admission: Admission,
        moment: Moment,
        ledger: &mut Ledger,
        outbox: &mut Outbox,
    ) -> Result<(), String> {
        let mut failures = Failures::new();
        self.check_times(batch, admission, &mut failures);
        let rows = batch.num_rows();
        let columns =
            program::columns(&self.fields, batch.columns()).ok_or("a column has another type")?;
        let reads = Reads {
            input: batch,
            input_columns: &columns,
            message: None,
            errors: &[],
            now: moment.time,
        };
        let made = self.program.run(&reads, &mut failures)?;
        let made =
            arrays::batch(self.program.schema(), made, rows).map_err(|error| error.to_string())?;
        let message = program::columns(self.program.fields(), made.columns())
            .ok_or("a column has another type")?;
        let mut kept = program::kept(self.filter.as_ref(), &reads, &message, &mut failures);
        let groups = match &self.key {
            None => vec![Group {
                key: None,
                rows: kept,
            }],
            Some(key) => {
                let reads = Reads {
                    message: Some(&message),
                    ..reads
                };
                let keys = key.run(&reads, &mut failures)?;
                if !failures.is_empty() {
                    kept.retain(|row| !failures.contains_key(row));
                }
                let columns =
                    program::columns(key.fields(), &keys).ok_or("a column has another type")?;
                let columns: Vec<_> = key.fields().iter().zip(&columns).collect();
                branch::split(&columns, kept.into_iter())?
            }
        };
        let whole = [Origin {
            submission: Some(submission),
            rows,
        }];
        for group in groups {
            let origin = Origin {
                submission: Some(submission),
                rows: group.rows.len(),
            };
            let rows = arrays::select(&made, &group.rows).map_err(|error| error.to_string())?;
            ledger.owe(&[origin], 1);
            self.buffer(rows, group.key, origin, moment, outbox);
        }
        let failed = Failed {
            fields: &self.fields,
            batch,
            origins: &whole,
            time: moment.time,
            failures,
        };
        let owed = [Origin {
            submission: Some(submission),
            rows: failed.failures.len(),
        }];
        ledger.owe(&owed, 1);
        fail_rows(&self.errors, failed, moment.now, ledger, outbox);
        Ok(())
    }

    fn check_times(&self, batch: &RecordBatch, admission: Admission, failures: &mut Failures) {
        let Some((column, name)) = &self.timestamp else {
            return;
        };
        let Some(times) = batch
            .columns()
            .get(*column)
            .and_then(|array| array.as_primitive_opt::<TimestampNanosecondType>())
        else {
            return;
        };
        for (row, time) in times.values().iter().enumerate() {
            if !admission.admits(*time) {
                failures.insert(
                    row,
                    RowFailure {
                        code: VALIDATION,
                        message: format!(
                            "the time in `{name}` is further from every kept center of the domain's clock than its skew"
                        ),
                    },
                );
            }
        }
    }

    fn buffer(
        &mut self,
        rows: RecordBatch,
        key: Option<Arc<BranchKey>>,
        origin: Origin,
        moment: Moment,
        outbox: &mut Outbox,
    ) {
        let max_bytes = self.flush_bytes();
        let Flush::Each { every_nanos, .. } = self.flush else {
            let batch = RelayBatch::new(rows, self.program.fields(), key, vec![origin]);
            outbox.push((self.relay.clone(), batch));
            return;
        };
        if rows.num_rows() == 0 {
            return;
        }
        let place: BufferKey = key.as_ref().map(|key| key.identity.clone());
        let deadline = moment
            .time
            .unwrap_or(i64::MAX)
            .saturating_add_unsigned(every_nanos);
        let buffer = self.buffers.entry(place.clone()).or_insert_with(|| {
            self.due.insert((deadline, place.clone()));
            Buffer {
                key,
                batches: Vec::new(),
                origins: Vec::new(),
                bytes: 0,
                deadline,
            }
        });
        buffer.bytes = buffer.bytes.saturating_add(arrays::data_bytes(&rows));
        buffer.batches.push(rows);
        push_origin(&mut buffer.origins, origin);
        if buffer.bytes >= max_bytes {
            self.flush_one(&place, outbox);
        }
    }

    fn flush_bytes(&self) -> usize {
        match self.flush {
            Flush::Each {
                max_bytes: Some(bytes),
                ..
            } => usize::try_from(bytes).unwrap_or(usize::MAX),
            Flush::Each { .. } | Flush::Immediate => usize::MAX,
        }
    }

    fn flush_one(&mut self, place: &BufferKey, outbox: &mut Outbox) {
        let Some(buffer) = self.buffers.remove(place) else {
            return;
        };
        self.due.remove(&(buffer.deadline, place.clone()));
        let batches = match arrays::join(self.program.schema(), &buffer.batches) {
            Ok(joined) => vec![joined],
            // Too much text for one batch.
            Err(_) => buffer.batches,
        };
        let max_bytes = self.flush_bytes();
        let mut start = 0;
        for batch in batches {
            let bytes = arrays::data_bytes(&batch).max(1);
            let most = (batch.num_rows().saturating_mul(max_bytes) / bytes).max(1);
            let mut row = 0;
            while row < batch.num_rows() {
                let rows = most.min(batch.num_rows() - row);
                let origins = slice_origins(&buffer.origins, start, rows);
                let part = batch.slice(row, rows);
                let key = buffer.key.clone();
                let part = RelayBatch::new(part, self.program.fields(), key, origins);
                outbox.push((self.relay.clone(), part));
                row += rows;
                start += rows;
            }
        }
    }

    /// Flushes the branches whose time has come.
    pub fn flush_due(&mut self, time: Option<i64>, outbox: &mut Outbox) {
        let time = time.unwrap_or(i64::MAX);
        while let Some((deadline, place)) = self.due.first() {
            if *deadline > time {
                return;
            }
            let place = place.clone();
            self.flush_one(&place, outbox);
        }
    }

    pub fn flush_all(&mut self, outbox: &mut Outbox) {
        self.flush_due(None, outbox);
    }

    /// When something is to be flushed, in logical time.
    pub fn next_flush(&self) -> Option<i64> {
        self.due.first().map(|(deadline, _)| *deadline)
    }

    #[cfg(test)]
    pub fn buffered(&self) -> impl Iterator<Item = &Origin> {
        self.buffers.values().flat_map(|buffer| &buffer.origins)
    }
}
