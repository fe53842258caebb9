//! A relay at work: batches wait to enter it, enter it while it has room, and leave it once every emitter took them.
//! And what becomes of rows for which an endpoint has no use: ON MESSAGE ERROR.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::arrays;
use super::branch::BranchKey;
use super::catalog::Catalog;
use super::delivery::Source;
use super::expr::Scope;
use super::failure::Failure;
use super::ledger::{push_origin, select_origins, Ledger, Origin};
use super::program::{self, Failures, Program, Reads, RowFailure};
use super::Now;
use crate::lang::ast::{Field, MessageError};

/// Batches in a relay whose declaration names no CAPACITY.
const DEFAULT_CAPACITY: usize = 16;

/// Past so much data waiting to enter a relay, no more is admitted that could go there.
pub const MAX_WAITING_BYTES: usize = 32 << 20;

/// Rows of one branch on their way through a relay.
#[derive(Debug, Clone)]
pub struct RelayBatch {
    pub source: Arc<Source>,
    pub key: Option<Arc<BranchKey>>,
    pub origins: Vec<Origin>,
    pub bytes: usize,
}

impl RelayBatch {
    pub fn new(
        batch: RecordBatch,
        fields: &Arc<[Field]>,
        key: Option<Arc<BranchKey>>,
        origins: Vec<Origin>,
    ) -> Self {
        Self {
            bytes: arrays::data_bytes(&batch),
            source: Arc::new(Source {
                batch,
                fields: Arc::clone(fields),
            }),
            key,
            origins,
        }
    }

    pub fn rows(&self) -> usize {
        self.source.batch.num_rows()
    }
}

/// Batches on the way to relays that are named.
pub type Outbox = Vec<(String, RelayBatch)>;

#[derive(Debug, Clone)]
pub struct RelayState {
    pub capacity: usize,
    pub waiting: VecDeque<RelayBatch>,
    pub waiting_bytes: usize,
    pub entered: VecDeque<Arc<RelayBatch>>,
    /// The number of the first batch in `entered`.
    pub first: u64,
    /// Emitters that read it, and those among them whose consumers' acknowledgement is waited for.
    pub emitters: usize,
    pub attached: u64,
}

impl RelayState {
    pub fn new(capacity: Option<u64>) -> Self {
        Self {
            capacity: Self::capacity(capacity),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            entered: VecDeque::new(),
            first: 0,
            emitters: 0,
            attached: 0,
        }
    }

    pub fn capacity(declared: Option<u64>) -> usize {
        declared.map_or(DEFAULT_CAPACITY, |capacity| {
            usize::try_from(capacity).unwrap_or(usize::MAX)
        })
    }

    pub fn push(&mut self, batch: RelayBatch) {
        if batch.rows() > 0 {
            self.waiting_bytes = self.waiting_bytes.saturating_add(batch.bytes);
            self.waiting.push_back(batch);
        }
    }

    pub fn pop_waiting(&mut self) -> Option<RelayBatch> {
        let batch = self.waiting.pop_front()?;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(batch.bytes);
        Some(batch)
    }

    /// The number that the next batch to enter gets.
    pub fn end(&self) -> u64 {
        self.first + u64::try_from(self.entered.len()).unwrap_or(u64::MAX)
    }

    pub fn batch(&self, number: u64) -> Option<&Arc<RelayBatch>> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.entered.get(place)
    }

    /// Forgets what lies before a number.
    pub fn trim(&mut self, number: u64) {
        while self.first < number && self.entered.pop_front().is_some() {
            self.first += 1;
        }
    }

    pub fn has_room(&self) -> bool {
        self.emitters == 0 || self.entered.len() < self.capacity
    }
}

/// What becomes of rows that fail.
#[derive(Debug, Clone)]
pub enum ErrorPolicy {
    Log,
    Ignore,
    SendTo { relay: String, program: Program },
}

impl ErrorPolicy {
    /// `input` is what the endpoint's rows are made of.
    pub fn new(catalog: &Catalog, error: &MessageError, input: &[Field]) -> Result<Self, Failure> {
        Ok(match error {
            MessageError::Log => ErrorPolicy::Log,
            MessageError::Ignore => ErrorPolicy::Ignore,
            MessageError::SendTo { relay: name, set } => {
                let relay = catalog.find_relay(name)?;
                let scope = Scope {
                    input: Some(input),
                    error: true,
                    ..Scope::default()
                };
                ErrorPolicy::SendTo {
                    relay: name.text.clone(),
                    program: Program::new(None, set, &scope, relay.fields)?,
                }
            }
        })
    }

    pub fn relay(&self) -> Option<&str> {
        match self {
            ErrorPolicy::SendTo { relay, .. } => Some(relay),
            ErrorPolicy::Log | ErrorPolicy::Ignore => None,
        }
    }
}

/// Rows that failed, out of a batch that an endpoint read.
pub struct Failed<'a> {
    pub fields: &'a [Field],
    pub batch: &'a RecordBatch,
    pub failures: Failures,
    /// Of the whole batch.
    pub origins: &'a [Origin],
    /// The domain's time.
    pub time: Option<i64>,
}

/// Does to failed rows what the policy says.
pub fn fail_rows(
    policy: &ErrorPolicy,
    failed: Failed<'_>,
    now: Now,
    ledger: &mut Ledger,
    outbox: &mut Outbox,
) {
    let Some(first) = failed.failures.values().next() else {
        return;
    };
    let origins = select_origins(failed.origins, failed.failures.keys().copied());
    match policy {
        ErrorPolicy::Log => ledger.reject(&origins, &first.message),
        ErrorPolicy::Ignore => ledger.acknowledge(now, &origins),
        ErrorPolicy::SendTo { relay, program } => match send_to(program, &failed) {
            Ok((batch, lost)) => {
                let nobodys: Vec<Origin> = vec![Origin {
                    submission: None,
                    rows: batch.num_rows(),
                }];
                // A row that no error could be made of is refused, the others are done with.
                let (mut refused, mut done) = (Vec::new(), Vec::new());
                for (place, row) in failed.failures.keys().enumerate() {
                    let origin = select_origins(failed.origins, [*row]);
                    let into = if lost.contains_key(&place) {
                        &mut refused
                    } else {
                        &mut done
                    };
                    for origin in origin {
                        push_origin(into, origin);
                    }
                }
                outbox.push((
                    relay.clone(),
                    RelayBatch::new(batch, program.fields(), None, nobodys),
                ));
                ledger.acknowledge(now, &done);
                if let Some(failure) = lost.values().next() {
                    ledger.reject(&refused, &failure.message);
                }
            }
            Err(message) => ledger.reject(&origins, &message),
        },
    }
}

/// The rows of the errors, and which of them, counted among the failed, have none.
fn send_to(program: &Program, failed: &Failed<'_>) -> Result<(RecordBatch, Failures), String> {
    let rows: Vec<usize> = failed.failures.keys().copied().collect();
    let errors: Vec<RowFailure> = failed.failures.values().cloned().collect();
    let input = arrays::select(failed.batch, &rows).map_err(|error| error.to_string())?;
    let columns =
        program::columns(failed.fields, input.columns()).ok_or("a column has another type")?;
    let reads = Reads {
        input: &input,
        input_columns: &columns,
        message: None,
        errors: &errors,
        now: failed.time,
    };
    let mut lost = Failures::new();
    let made = program.run(&reads, &mut lost)?;
    let batch = arrays::batch(program.schema(), made, input.num_rows())
        .map_err(|error| error.to_string())?;
    let kept = program::kept(None, &reads, &[], &mut lost);
    let batch = arrays::select(&batch, &kept).map_err(|error| error.to_string())?;
    Ok((batch, lost))
}
