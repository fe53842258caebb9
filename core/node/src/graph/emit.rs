//! A client emitter at work: rows of its relays, of one branch each, are collected into batches, which are kept until a
//! consumer settled them.
//!
//! Must not know consumers: what is given to whom is the flow's matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;

use super::arrays;
use super::branch::BranchKey;
use super::catalog::Catalog;
use super::endpoints::ConsumerId;
use super::expr::{check_filter, Checked, Scope};
use super::failure::Failure;
use super::fields::arrow_schema;
use super::ingest::Moment;
use super::ipc;
use super::ledger::{push_origin, select_origins, slice_origins, Ledger, Origin};
use super::program::{self, Failures, Program, Reads, RowFailure};
use super::relay::{fail_rows, ErrorPolicy, Failed, Outbox, RelayBatch, RelayState};
use super::Now;
use crate::lang::ast::{AckMode, Emitter, Field, Flush, Window};

/// Batches kept beside those that the window lets out.
const RETAINED_BATCHES: usize = 32;

/// Past so much data in batches, no more are made.
const RETAINED_BYTES: usize = 32 << 20;

/// The most rows of a batch.
pub const MAX_ROWS: usize = 65_536;

/// Confirmed acknowledgements that are remembered, so that saying one again is confirmed again.
const REMEMBERED: usize = 1_024;

/// The code of a row that no batch has room for.
const TOO_LARGE: &str = "too_large";

/// The code of a row that a consumer rejected.
const REJECTED: &str = "rejected";

/// Which relay, and which branch of it.
type Place = (usize, Option<Vec<u8>>);

/// A relay that is read.
#[derive(Debug, Clone)]
pub struct Inlet {
    pub relay: String,
    fields: Arc<[Field]>,
    schema: SchemaRef,
    program: Program,
    filter: Option<Checked>,
    errors: ErrorPolicy,
    /// The relay's batch to read next, and its first row not read.
    pub position: (u64, usize),
}

#[derive(Debug, Clone)]
struct Collector {
    key: Option<Arc<BranchKey>>,
    batches: Vec<RecordBatch>,
    origins: Vec<Origin>,
    rows: usize,
    bytes: usize,
    /// In logical time.
    deadline: i64,
}

/// A batch for consumers.
#[derive(Debug, Clone)]
pub struct OutBatch {
    pub identity: [u8; 16],
    inlet: usize,
    pub fingerprint: Option<[u8; 32]>,
    pub stream: Bytes,
    pub members: u32,
    pub execution_now: i64,
    pub origins: Vec<Origin>,
    /// What it was made of, where a rejection needs that.
    rows: Option<RecordBatch>,
    pub state: OutState,
    backoff_nanos: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutState {
    Ready,
    BackingOff {
        until: Now,
    },
    Out {
        reference: [u8; 16],
        consumer: ConsumerId,
        deadline: Now,
    },
}

#[derive(Debug, Clone)]
pub struct EmitterState {
    pub attached: bool,
    pub mode: AckMode,
    pub contract: [u8; 32],
    pub fields: Arc<[Field]>,
    schema: SchemaRef,
    pub max_rows: usize,
    pub max_bytes: usize,
    /// So much data closes a batch.
    close_bytes: usize,
    flush: Flush,
    pub inlets: Vec<Inlet>,
    collectors: BTreeMap<Place, Collector>,
    due: BTreeSet<(i64, Place)>,
    next: u64,
    retained: BTreeMap<u64, OutBatch>,
    retained_bytes: usize,
    ready: BTreeSet<u64>,
    backing_off: BTreeSet<(Now, u64)>,
    out: BTreeSet<(Now, u64)>,
    references: BTreeMap<[u8; 16], u64>,
    confirmed: std::collections::VecDeque<([u8; 16], ConsumerId)>,
    /// Makes identities and references that no other emitter makes.
    seed: [u8; 32],
    attempts: u64,
}

/// What a reference stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    Current { batch: u64, consumer: ConsumerId },
    Confirmed { consumer: ConsumerId },
    Stale,
}

impl EmitterState {
    pub fn new(
        catalog: &Catalog,
        emitter: &Emitter,
        contract: [u8; 32],
        seed: [u8; 32],
    ) -> Result<Self, Failure> {
        let fields: Arc<[Field]> = catalog
            .find_schema(&emitter.schema)?
            .fields
            .as_slice()
            .into();
        let inlets = emitter
            .relays
            .iter()
            .map(|name| {
                let relay = catalog.find_relay(name)?;
                let scope = Scope {
                    input: Some(relay.fields),
                    message: Some(&fields),
                    ..Scope::default()
                };
                Ok(Inlet {
                    relay: name.text.clone(),
                    fields: relay.fields.into(),
                    schema: arrow_schema(relay.fields),
                    program: Program::new(Some(&emitter.inherit), &emitter.set, &scope, &fields)?,
                    filter: emitter
                        .filter
                        .as_ref()
                        .map(|filter| check_filter(filter, &scope))
                        .transpose()?,
                    errors: ErrorPolicy::new(catalog, &emitter.message_error, relay.fields)?,
                    position: (0, 0),
                })
            })
            .collect::<Result<Vec<Inlet>, Failure>>()?;
        Ok(Self {
            attached: emitter.attached,
            mode: emitter.mode,
            contract,
            schema: arrow_schema(&fields),
            fields,
            max_rows: usize::try_from(emitter.max_messages)
                .unwrap_or(usize::MAX)
                .clamp(1, MAX_ROWS),
            max_bytes: usize::try_from(emitter.max_bytes).unwrap_or(usize::MAX),
            close_bytes: match emitter.flush {
                Flush::Each {
                    max_bytes: Some(bytes),
                    ..
                } => usize::try_from(bytes.min(emitter.max_bytes)),
                _ => usize::try_from(emitter.max_bytes),
            }
            .unwrap_or(usize::MAX),
            flush: emitter.flush,
            inlets,
            collectors: BTreeMap::new(),
            due: BTreeSet::new(),
            next: 0,
            retained: BTreeMap::new(),
            retained_bytes: 0,
            ready: BTreeSet::new(),
            backing_off: BTreeSet::new(),
            out: BTreeSet::new(),
            references: BTreeMap::new(),
            confirmed: std::collections::VecDeque::new(),
            seed,
            attempts: 0,
        })
    }

    pub fn sends_errors_to(&self, relay: impl Fn(&str) -> bool) -> bool {
        self.inlets
            .iter()
            .filter_map(|inlet| inlet.errors.relay())
            .any(relay)
    }

    fn window(&self) -> usize {
        match self.mode.window {
            Window::Sequential => 1,
            Window::Parallel(max) => usize::try_from(max).unwrap_or(usize::MAX),
        }
    }

    fn has_room(&self) -> bool {
        let batches = self.retained.len().saturating_sub(self.out.len());
        batches < RETAINED_BATCHES && self.retained_bytes < RETAINED_BYTES
    }

    /// Batches that are made and not settled.
    pub fn retained(&self) -> usize {
        self.retained.len()
    }

    fn identity(&self, kind: &str, number: u64) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.seed);
        hasher.update(kind.as_bytes());
        hasher.update(&number.to_le_bytes());
        let mut identity = [0; 16];
        hasher.finalize_xof().fill(&mut identity);
        identity
    }

    // ---- collecting

    /// Takes what there is room for out of the relays; whether anything happened.
    pub fn collect(
        &mut self,
        relays: &BTreeMap<String, RelayState>,
        moment: Moment,
        ledger: &mut Ledger,
        outbox: &mut Outbox,
    ) -> bool {
        let mut happened = self.close_due(moment, ledger, outbox);
        for index in 0..self.inlets.len() {
            while let Some((batch, row)) = self.next_batch(index, relays) {
                if !self.take(index, &batch, row, moment, ledger, outbox) {
                    break;
                }
                happened = true;
            }
        }
        happened
    }

    fn next_batch(
        &mut self,
        index: usize,
        relays: &BTreeMap<String, RelayState>,
    ) -> Option<(Arc<RelayBatch>, usize)> {
        let inlet = self.inlets.get_mut(index)?;
        let (number, row) = inlet.position;
        let batch = relays.get(&inlet.relay)?.batch(number)?;
        Some((Arc::clone(batch), row))
    }

    /// Takes the next rows of a relay batch into their collector; false when it is full and cannot be closed.
    fn take(
        &mut self,
        index: usize,
        batch: &RelayBatch,
        row: usize,
        moment: Moment,
        ledger: &mut Ledger,
        outbox: &mut Outbox,
    ) -> bool {
        let place: Place = (index, batch.key.as_ref().map(|key| key.identity.clone()));
        if self.is_full(&place) {
            if !self.has_room() {
                return false;
            }
            self.close(&place, moment, ledger, outbox);
        }
        let (rows, bytes) = self
            .collectors
            .get(&place)
            .map_or((0, 0), |collector| (collector.rows, collector.bytes));
        let left = batch.rows().saturating_sub(row);
        let row_bytes = (batch.bytes / batch.rows().max(1)).max(1);
        let fit = (self.close_bytes.saturating_sub(bytes) / row_bytes).max(1);
        let taken = left.min(self.max_rows - rows).min(fit);
        let bytes = bytes.saturating_add(taken.saturating_mul(row_bytes));
        let full = rows + taken >= self.max_rows || bytes >= self.close_bytes;
        let deadline = match self.flush {
            _ if full => i64::MIN,
            Flush::Immediate => i64::MIN,
            Flush::Each { every_nanos, .. } => moment
                .time
                .unwrap_or(i64::MAX)
                .saturating_add_unsigned(every_nanos),
        };
        let due = &mut self.due;
        let collector = self.collectors.entry(place.clone()).or_insert_with(|| {
            due.insert((deadline, place.clone()));
            Collector {
                key: batch.key.clone(),
                batches: Vec::new(),
                origins: Vec::new(),
                rows: 0,
                bytes: 0,
                deadline,
            }
        });
        if full && collector.deadline != i64::MIN {
            due.remove(&(collector.deadline, place.clone()));
            due.insert((i64::MIN, place.clone()));
            collector.deadline = i64::MIN;
        }
        collector.batches.push(batch.source.batch.slice(row, taken));
        if self.attached {
            for origin in slice_origins(&batch.origins, row, taken) {
                push_origin(&mut collector.origins, origin);
            }
        } else {
            push_origin(
                &mut collector.origins,
                Origin {
                    submission: None,
                    rows: taken,
                },
            );
        }
        collector.rows += taken;
        collector.bytes = bytes;
        if let Some(inlet) = self.inlets.get_mut(index) {
            inlet.position = if taken == left {
                (inlet.position.0 + 1, 0)
            } else {
                (inlet.position.0, row + taken)
            };
        }
        self.close_due(moment, ledger, outbox);
        true
    }

    fn is_full(&self, place: &Place) -> bool {
        self.collectors.get(place).is_some_and(|collector| {
            collector.rows >= self.max_rows || collector.bytes >= self.close_bytes
        })
    }

    fn close_due(&mut self, moment: Moment, ledger: &mut Ledger, outbox: &mut Outbox) -> bool {
        let time = moment.time.unwrap_or(i64::MAX);
        let mut happened = false;
        while self.has_room() {
            let Some((deadline, place)) = self.due.first() else {
                break;
            };
            if *deadline > time {
                break;
            }
            let place = place.clone();
            self.close(&place, moment, ledger, outbox);
            happened = true;
        }
        happened
    }

    fn close(&mut self, place: &Place, moment: Moment, ledger: &mut Ledger, outbox: &mut Outbox) {
        let Some(collector) = self.collectors.remove(place) else {
            return;
        };
        self.due.remove(&(collector.deadline, place.clone()));
        let Collector {
            key,
            batches,
            origins,
            ..
        } = collector;
        let made = self.make(place.0, &batches, &key, &origins, moment, ledger, outbox);
        if let Err(message) = made {
            ledger.reject(&origins, &message);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn make(
        &mut self,
        index: usize,
        batches: &[RecordBatch],
        key: &Option<Arc<BranchKey>>,
        origins: &[Origin],
        moment: Moment,
        ledger: &mut Ledger,
        outbox: &mut Outbox,
    ) -> Result<(), String> {
        let text = |error: arrow_schema::ArrowError| error.to_string();
        let Some(inlet) = self.inlets.get(index) else {
            return Ok(());
        };
        let input = arrays::join(&inlet.schema, batches).map_err(text)?;
        let columns =
            program::columns(&inlet.fields, input.columns()).ok_or("a column has another type")?;
        let reads = Reads {
            input: &input,
            input_columns: &columns,
            message: None,
            errors: &[],
            now: moment.time,
        };
        let mut failures = Failures::new();
        let made = inlet.program.run(&reads, &mut failures)?;
        let made = arrays::batch(&self.schema, made, input.num_rows()).map_err(text)?;
        let message =
            program::columns(&self.fields, made.columns()).ok_or("a column has another type")?;
        let kept = program::kept(inlet.filter.as_ref(), &reads, &message, &mut failures);
        if kept.len() + failures.len() < input.num_rows() {
            let mut passed = kept.iter().copied().peekable();
            let left_out = (0..input.num_rows()).filter(|row| {
                let taken = passed.next_if_eq(row).is_some();
                !taken && !failures.contains_key(row)
            });
            ledger.acknowledge(moment.now, &select_origins(origins, left_out));
        }
        let mut written = Vec::new();
        write(&made, &kept, self.max_bytes, &mut written, &mut failures)?;
        let keeps_rows = matches!(inlet.errors, ErrorPolicy::SendTo { .. });
        let batches = written
            .into_iter()
            .map(|(stream, rows)| {
                let source = keeps_rows
                    .then(|| arrays::select(&input, &rows))
                    .transpose()
                    .map_err(text)?;
                Ok((
                    stream,
                    select_origins(origins, rows.iter().copied()),
                    rows.len(),
                    source,
                ))
            })
            .collect::<Result<Vec<_>, String>>()?;
        let failed = Failed {
            fields: &inlet.fields,
            batch: &input,
            failures,
            origins,
            time: moment.time,
        };
        fail_rows(&inlet.errors, failed, moment.now, ledger, outbox);
        for (stream, origins, members, rows) in batches {
            let number = self.next;
            self.next += 1;
            self.retained_bytes = self.retained_bytes.saturating_add(stream.len());
            self.ready.insert(number);
            let batch = OutBatch {
                identity: self.identity("batch", number),
                inlet: index,
                fingerprint: key.as_ref().map(|key| key.fingerprint),
                stream: stream.into(),
                members: u32::try_from(members).unwrap_or(u32::MAX),
                execution_now: moment.time.unwrap_or(moment.now.0),
                origins,
                rows,
                state: OutState::Ready,
                backoff_nanos: self.mode.backoff_nanos,
            };
            self.retained.insert(number, batch);
        }
        Ok(())
    }

    // ---- delivering

    /// The batch to deliver next, if the window lets one out.
    pub fn next_ready(&self) -> Option<(u64, &OutBatch)> {
        if self.out.len() >= self.window() {
            return None;
        }
        let number = *self.ready.first()?;
        if self.mode.window == Window::Sequential && self.retained.keys().next() != Some(&number) {
            return None;
        }
        Some((number, self.retained.get(&number)?))
    }

    /// Gives a ready batch to a consumer, under a new reference.
    pub fn hand_out(&mut self, number: u64, consumer: ConsumerId, now: Now) -> Option<[u8; 16]> {
        self.attempts += 1;
        let reference = self.identity("attempt", self.attempts);
        let deadline = now.after(self.mode.ack_timeout_nanos);
        let batch = self.retained.get_mut(&number)?;
        batch.state = OutState::Out {
            reference,
            consumer,
            deadline,
        };
        self.ready.remove(&number);
        self.out.insert((deadline, number));
        self.references.insert(reference, number);
        Some(reference)
    }

    pub fn batch(&self, number: u64) -> Option<&OutBatch> {
        self.retained.get(&number)
    }

    pub fn relay_of(&self, batch: &OutBatch) -> &str {
        self.inlets
            .get(batch.inlet)
            .map_or("", |inlet| inlet.relay.as_str())
    }

    pub fn reference(&self, reference: &[u8; 16]) -> Reference {
        if let Some(batch) = self.references.get(reference) {
            if let Some(OutState::Out { consumer, .. }) =
                self.retained.get(batch).map(|batch| batch.state)
            {
                return Reference::Current {
                    batch: *batch,
                    consumer,
                };
            }
        }
        self.confirmed
            .iter()
            .find(|(known, _)| known == reference)
            .map_or(Reference::Stale, |(_, consumer)| Reference::Confirmed {
                consumer: *consumer,
            })
    }

    /// Takes a batch back from its consumer: the reference is stale from now on. Says how many bytes it was.
    fn take_back(&mut self, number: u64) -> Option<(ConsumerId, u64)> {
        let batch = self.retained.get_mut(&number)?;
        let OutState::Out {
            reference,
            consumer,
            deadline,
        } = batch.state
        else {
            return None;
        };
        batch.state = OutState::Ready;
        self.references.remove(&reference);
        self.out.remove(&(deadline, number));
        self.ready.insert(number);
        Some((
            consumer,
            u64::try_from(batch.stream.len()).unwrap_or(u64::MAX),
        ))
    }

    fn remove(&mut self, number: u64) -> Option<OutBatch> {
        self.take_back(number);
        self.ready.remove(&number);
        let batch = self.retained.remove(&number)?;
        self.retained_bytes = self.retained_bytes.saturating_sub(batch.stream.len());
        Some(batch)
    }

    pub fn acknowledge(
        &mut self,
        number: u64,
        reference: [u8; 16],
        consumer: ConsumerId,
        now: Now,
        ledger: &mut Ledger,
    ) {
        if let Some(batch) = self.remove(number) {
            if self.confirmed.len() == REMEMBERED {
                self.confirmed.pop_front();
            }
            self.confirmed.push_back((reference, consumer));
            ledger.acknowledge(now, &batch.origins);
        }
    }

    /// Delivers a batch again after its backoff, which doubles.
    pub fn retry(&mut self, number: u64, now: Now) {
        self.take_back(number);
        let Some(batch) = self.retained.get_mut(&number) else {
            return;
        };
        let until = now.after(batch.backoff_nanos);
        batch.backoff_nanos = batch
            .backoff_nanos
            .saturating_mul(2)
            .min(self.mode.max_backoff_nanos);
        batch.state = OutState::BackingOff { until };
        self.ready.remove(&number);
        self.backing_off.insert((until, number));
    }

    /// Gives a batch up: its rows follow ON MESSAGE ERROR.
    pub fn reject(
        &mut self,
        number: u64,
        reason: &str,
        moment: Moment,
        ledger: &mut Ledger,
        outbox: &mut Outbox,
    ) {
        let Some(batch) = self.remove(number) else {
            return;
        };
        let Some(inlet) = self.inlets.get(batch.inlet) else {
            return;
        };
        let message = format!("a consumer rejected the batch: {reason}");
        match (&inlet.errors, &batch.rows) {
            (ErrorPolicy::Ignore, _) => ledger.acknowledge(moment.now, &batch.origins),
            (ErrorPolicy::SendTo { .. }, Some(rows)) => {
                let failure = RowFailure {
                    code: REJECTED,
                    message: reason.to_string(),
                };
                let failed = Failed {
                    fields: &inlet.fields,
                    batch: rows,
                    failures: (0..rows.num_rows())
                        .map(|row| (row, failure.clone()))
                        .collect(),
                    origins: &batch.origins,
                    time: moment.time,
                };
                fail_rows(&inlet.errors, failed, moment.now, ledger, outbox);
            }
            _ => ledger.reject(&batch.origins, &message),
        }
    }

    /// Takes back what was not settled in time: who had it, and how many bytes it was.
    pub fn expire(&mut self, now: Now) -> Vec<(ConsumerId, u64)> {
        let mut late = Vec::new();
        while let Some((deadline, number)) = self.out.first().copied() {
            if deadline > now {
                break;
            }
            match self.take_back(number) {
                Some(taken) => late.push(taken),
                None => {
                    self.out.remove(&(deadline, number));
                }
            }
        }
        while let Some((until, number)) = self.backing_off.first().copied() {
            if until > now {
                break;
            }
            self.backing_off.remove(&(until, number));
            if let Some(batch) = self.retained.get_mut(&number) {
                batch.state = OutState::Ready;
                self.ready.insert(number);
            }
        }
        late
    }

    /// Takes back everything a consumer has.
    pub fn revoke(&mut self, consumer: ConsumerId) {
        let held: Vec<u64> = self
            .retained
            .iter()
            .filter(|(_, batch)| {
                matches!(batch.state, OutState::Out { consumer: holder, .. } if holder == consumer)
            })
            .map(|(number, _)| *number)
            .collect();
        for number in held {
            self.take_back(number);
        }
    }

    /// When an attempt times out or a backoff ends.
    pub fn next_wake(&self) -> Option<Now> {
        let first = |set: &BTreeSet<(Now, u64)>| set.first().map(|(at, _)| *at);
        first(&self.out)
            .into_iter()
            .chain(first(&self.backing_off))
            .min()
    }

    /// When a batch is to be closed, in logical time; None while there is no room for it.
    pub fn next_flush(&self) -> Option<i64> {
        self.due
            .first()
            .filter(|_| self.has_room())
            .map(|(deadline, _)| *deadline)
    }

    /// Everything it holds, when it ends.
    pub fn into_origins(self) -> Vec<Origin> {
        let collected = self
            .collectors
            .into_values()
            .flat_map(|collector| collector.origins);
        let retained = self.retained.into_values().flat_map(|batch| batch.origins);
        collected.chain(retained).collect()
    }

    #[cfg(test)]
    pub fn held(&self) -> (u64, u64, u64) {
        let rows =
            |origins: &[Origin]| -> u64 { origins.iter().map(|origin| origin.rows as u64).sum() };
        let collected = self.collectors.values().map(|it| rows(&it.origins)).sum();
        let (mut kept, mut out) = (0, 0);
        for batch in self.retained.values() {
            let into = match batch.state {
                OutState::Out { .. } => &mut out,
                _ => &mut kept,
            };
            *into += rows(&batch.origins);
        }
        (collected, kept, out)
    }
}

/// Writes these rows of a batch as streams of at most so many bytes, each with its rows; a row that is too large by itself
/// fails.
fn write(
    batch: &RecordBatch,
    rows: &[usize],
    max_bytes: usize,
    written: &mut Vec<(Vec<u8>, Vec<usize>)>,
    failures: &mut Failures,
) -> Result<(), String> {
    if rows.is_empty() {
        return Ok(());
    }
    let selected = arrays::select(batch, rows).map_err(|error| error.to_string())?;
    let stream = ipc::stream(&selected).map_err(|error| error.to_string())?;
    if stream.len() <= max_bytes {
        written.push((stream, rows.to_vec()));
        return Ok(());
    }
    if let [row] = rows {
        failures.insert(
            *row,
            RowFailure {
                code: TOO_LARGE,
                message: format!(
                    "a batch of this row alone takes {} bytes, and {max_bytes} are allowed",
                    stream.len()
                ),
            },
        );
        return Ok(());
    }
    let (first, second) = rows.split_at(rows.len() / 2);
    write(batch, first, max_bytes, written, failures)?;
    write(batch, second, max_bytes, written, failures)
}
