//! The running generation of a domain: its relays, ingestors and emitters at work, with their producers and consumers.
//!
//! Owns when what moves. Each call that takes the time ends with everything moved that can move; between calls only time
//! itself makes a difference, and `next_deadline` says when.

use std::collections::{BTreeMap, VecDeque};

use nervix_wire::types::{
    EmitterBatchDecision, EmitterBatchReceived, EmitterSettlement, ProducerAdmission,
    ProducerEndReason,
};

use super::branch::Group;
use super::catalog::Catalog;
use super::clock::{Admission, PacedClock};
use super::delivery::{self, Delivery, Reader};
use super::emit::{EmitterState, Reference};
use super::endpoints::{ConsumerId, Effect, Opener, ProducerId, Tag};
use super::failure::Failure;
use super::ingest::{IngestorState, Moment};
use super::ipc::{self, DefectKind};
use super::ledger::{not_admitted, slice_origins, Ledger, Origin};
use super::relay::{Outbox, RelayBatch, RelayState, MAX_WAITING_BYTES};
use super::Now;
use crate::lang::ast::{Kind, Model, Window};
use nervix_wire::types::SubmissionRefusal;

/// The most rows of a submitted batch.
pub const MAX_BATCH_ROWS: usize = 65_536;

#[derive(Debug, Clone)]
pub struct Consumer {
    pub emitter: String,
    pub opener: Opener,
    pub granted_batches: u64,
    pub granted_bytes: u64,
    outstanding_batches: u64,
    outstanding_bytes: u64,
    reads: VecDeque<Tag>,
    /// When it was last given a batch, counted in batches.
    served: u64,
}

impl Consumer {
    pub fn new(emitter: String, opener: Opener, batches: u64, bytes: u64) -> Self {
        Self {
            emitter,
            opener,
            granted_batches: batches,
            granted_bytes: bytes,
            outstanding_batches: 0,
            outstanding_bytes: 0,
            reads: VecDeque::new(),
            served: 0,
        }
    }

    fn gives_back(&mut self, bytes: u64) {
        self.outstanding_batches = self.outstanding_batches.saturating_sub(1);
        self.outstanding_bytes = self.outstanding_bytes.saturating_sub(bytes);
    }
}

/// Everything that runs in one generation of a domain.
#[derive(Debug, Clone)]
pub struct Flow {
    pub generation: u64,
    clock: Option<PacedClock>,
    seed: [u8; 32],
    relays: BTreeMap<String, RelayState>,
    ingestors: BTreeMap<String, IngestorState>,
    emitters: BTreeMap<String, EmitterState>,
    consumers: BTreeMap<ConsumerId, Consumer>,
    /// Batches handed out so far.
    served: u64,
    /// Emitters set up so far.
    made: u64,
    pub ledger: Ledger,
}

/// What an endpoint promises those who open it, as one digest: its text, and every declaration it rests on.
fn contract(catalog: &Catalog, model: &Model) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let mut add = |model: Option<&Model>| {
        if let Some(model) = model {
            hasher.update(model.to_string().as_bytes());
            hasher.update(&[0]);
        }
    };
    add(Some(model));
    let (schema, relays) = match model {
        Model::Ingestor(ingestor) => (&ingestor.schema, vec![&ingestor.relay]),
        Model::Emitter(emitter) => (&emitter.schema, emitter.relays.iter().collect()),
        _ => return *hasher.finalize().as_bytes(),
    };
    add(catalog.get(Kind::Schema, &schema.text));
    for relay in relays {
        if let Some(view) = catalog.relay_view(&relay.text) {
            add(catalog.get(Kind::Schema, &view.relay.schema.text));
            if let Some((branch, _)) = view.branch {
                add(catalog.get(Kind::Branch, &branch.name.text));
                add(catalog.get(Kind::Schema, &branch.schema.text));
            }
        }
    }
    *hasher.finalize().as_bytes()
}

impl Flow {
    /// `seed` is another one for each generation of each domain of each process.
    pub fn new(
        generation: u64,
        clock: Option<PacedClock>,
        seed: [u8; 32],
        catalog: &Catalog,
    ) -> Result<Self, Failure> {
        let mut flow = Self {
            generation,
            clock,
            seed,
            relays: BTreeMap::new(),
            ingestors: BTreeMap::new(),
            emitters: BTreeMap::new(),
            consumers: BTreeMap::new(),
            served: 0,
            made: 0,
            ledger: Ledger::default(),
        };
        flow.sync(catalog)?;
        Ok(flow)
    }

    fn time(&self, now: Now) -> Option<i64> {
        match &self.clock {
            Some(clock) => clock.logical_time_at(now),
            None => Some(now.0),
        }
    }

    fn moment(&self, now: Now) -> Moment {
        Moment {
            now,
            time: self.time(now),
        }
    }

    fn wall(&self, now: Now, logical: i64) -> Option<Now> {
        match &self.clock {
            Some(clock) => clock
                .wall_duration_until(now, logical)
                .map(|nanos| now.after(nanos)),
            None => Some(Now(logical)),
        }
    }

    // ---- models

    /// Sets up what the catalog holds and does not run yet.
    pub fn sync(&mut self, catalog: &Catalog) -> Result<(), Failure> {
        for model in catalog.iter() {
            let name = &model.name().text;
            match model {
                Model::Relay(relay) => {
                    if let Some(state) = self.relays.get_mut(name) {
                        state.capacity = RelayState::capacity(relay.capacity);
                    } else {
                        let state = RelayState::new(relay.capacity);
                        self.relays.insert(name.clone(), state);
                    }
                }
                Model::Ingestor(ingestor) if !self.ingestors.contains_key(name) => {
                    let state = IngestorState::new(catalog, ingestor, contract(catalog, model))?;
                    self.ingestors.insert(name.clone(), state);
                }
                _ => (),
            }
        }
        for model in catalog.iter() {
            let name = &model.name().text;
            if let Model::Emitter(emitter) = model {
                if !self.emitters.contains_key(name) {
                    self.made += 1;
                    let seed = blake3::keyed_hash(&self.seed, &self.made.to_le_bytes());
                    let mut state = EmitterState::new(
                        catalog,
                        emitter,
                        contract(catalog, model),
                        *seed.as_bytes(),
                    )?;
                    for inlet in &mut state.inlets {
                        if let Some(relay) = self.relays.get(&inlet.relay) {
                            inlet.position = (relay.end(), 0);
                        }
                    }
                    self.emitters.insert(name.clone(), state);
                }
            }
        }
        self.count_readers();
        Ok(())
    }

    fn count_readers(&mut self) {
        for (name, relay) in &mut self.relays {
            let readers = self
                .emitters
                .values()
                .filter(|emitter| emitter.inlets.iter().any(|inlet| inlet.relay == *name));
            relay.emitters = 0;
            relay.attached = 0;
            for emitter in readers {
                relay.emitters += 1;
                relay.attached += u64::from(emitter.attached);
            }
        }
        self.trim();
    }

    /// Forgets relay batches that every emitter took.
    fn trim(&mut self) {
        for (name, relay) in &mut self.relays {
            if relay.entered.is_empty() {
                continue;
            }
            let reached = self
                .emitters
                .values()
                .flat_map(|emitter| &emitter.inlets)
                .filter(|inlet| inlet.relay == *name)
                .map(|inlet| inlet.position.0)
                .min();
            relay.trim(reached.unwrap_or(u64::MAX));
        }
    }

    pub fn ingestor(&self, name: &str) -> Option<&IngestorState> {
        self.ingestors.get(name)
    }

    pub fn emitter(&self, name: &str) -> Option<&EmitterState> {
        self.emitters.get(name)
    }

    pub fn end_ingestor(&mut self, name: &str, reason: ProducerEndReason, message: &str) {
        if let Some(mut state) = self.ingestors.remove(name) {
            let mut outbox = Outbox::new();
            state.flush_all(&mut outbox);
            self.forward(outbox);
            self.ledger.end_source(name, reason, message);
        }
    }

    pub fn end_emitter(&mut self, name: &str, message: &str) {
        let Some(state) = self.emitters.remove(name) else {
            return;
        };
        if state.attached {
            for inlet in &state.inlets {
                let Some(relay) = self.relays.get(&inlet.relay) else {
                    continue;
                };
                let (number, row) = inlet.position;
                for number in number..relay.end() {
                    if let Some(batch) = relay.batch(number) {
                        let start = if number == inlet.position.0 { row } else { 0 };
                        let rows = batch.rows().saturating_sub(start);
                        let origins = slice_origins(&batch.origins, start, rows);
                        self.ledger.lose(&origins, message);
                    }
                }
            }
        }
        self.ledger.lose(&state.into_origins(), message);
        let readers: Vec<ConsumerId> = self
            .consumers
            .iter()
            .filter(|(_, consumer)| consumer.emitter == name)
            .map(|(id, _)| *id)
            .collect();
        for id in readers {
            self.drop_consumer(id);
            self.ledger
                .effects
                .push(Effect::ConsumerEnded { consumer: id });
        }
        self.count_readers();
    }

    /// Ends a relay whose endpoints ended before.
    pub fn end_relay(&mut self, name: &str, message: &str) {
        if let Some(state) = self.relays.remove(name) {
            for batch in &state.waiting {
                self.ledger.lose(&batch.origins, message);
            }
            for batch in &state.entered {
                self.ledger.lose(&batch.origins, message);
            }
        }
    }

    /// Ends what rests on one of these relays or on this schema, for `sync` to set it up anew.
    pub fn end_changed(
        &mut self,
        catalog: &Catalog,
        relays: &[String],
        schema: Option<&str>,
        message: &str,
    ) {
        let on_relay = |name: &str| relays.iter().any(|relay| relay == name);
        let mut ingestors = Vec::new();
        let mut emitters = Vec::new();
        for model in catalog.iter() {
            let name = &model.name().text;
            match model {
                Model::Ingestor(ingestor)
                    if on_relay(&ingestor.relay.text)
                        || schema == Some(ingestor.schema.text.as_str())
                        || self
                            .ingestors
                            .get(name)
                            .and_then(|state| state.errors.relay())
                            .is_some_and(on_relay) =>
                {
                    ingestors.push(name.clone());
                }
                Model::Emitter(emitter)
                    if emitter.relays.iter().any(|relay| on_relay(&relay.text))
                        || schema == Some(emitter.schema.text.as_str())
                        || self
                            .emitters
                            .get(name)
                            .is_some_and(|state| state.sends_errors_to(on_relay)) =>
                {
                    emitters.push(name.clone());
                }
                _ => (),
            }
        }
        for name in ingestors {
            self.end_ingestor(&name, ProducerEndReason::EndpointChanged, message);
        }
        for name in emitters {
            self.end_emitter(&name, message);
        }
        for name in relays {
            self.end_relay(name, message);
        }
    }

    /// Ends everything, as STOP does: nothing of a generation outlives it.
    pub fn end(mut self, reason: ProducerEndReason, message: &str) -> Vec<Effect> {
        let names: Vec<String> = self.ingestors.keys().cloned().collect();
        for name in names {
            self.end_ingestor(&name, reason, message);
        }
        let names: Vec<String> = self.emitters.keys().cloned().collect();
        for name in names {
            self.end_emitter(&name, message);
        }
        self.ledger.effects
    }

    // ---- producers

    pub fn suspend(&mut self, name: &str, suspended: bool) -> bool {
        let Some(ingestor) = self.ingestors.get_mut(name) else {
            return false;
        };
        if ingestor.suspended != suspended {
            ingestor.suspended = suspended;
            let admission = if suspended {
                ProducerAdmission::Suspended
            } else {
                ProducerAdmission::Open
            };
            for producer in self.ledger.producers_of(name) {
                self.ledger.effects.push(Effect::Admission {
                    producer,
                    admission,
                });
            }
        }
        true
    }

    pub fn submit(&mut self, now: Now, id: ProducerId, tag: Tag, stream: &[u8]) {
        match self.admit(now, id, tag, stream) {
            Ok(()) => (),
            Err((refusal, message)) => {
                self.ledger.answer(id, tag, not_admitted(refusal), message);
                if refusal == SubmissionRefusal::CreditExceeded {
                    self.ledger.end_producer(
                        id,
                        ProducerEndReason::ProtocolViolated,
                        "a batch was sent that did not fit the producer's credit",
                    );
                }
            }
        }
    }

    fn admit(
        &mut self,
        now: Now,
        id: ProducerId,
        tag: Tag,
        stream: &[u8],
    ) -> Result<(), (SubmissionRefusal, String)> {
        let refuse = |refusal, message: &str| Err((refusal, message.to_string()));
        let Some(producer) = self.ledger.producer(id) else {
            return refuse(SubmissionRefusal::ProducerEnded, "the producer has ended");
        };
        let bytes = u64::try_from(stream.len()).unwrap_or(u64::MAX);
        if producer.draining {
            return refuse(SubmissionRefusal::Draining, "the producer is closing");
        }
        if producer.outstanding_batches >= producer.granted_batches
            || producer.outstanding_bytes.saturating_add(bytes) > producer.granted_bytes
        {
            return refuse(
                SubmissionRefusal::CreditExceeded,
                "the batch does not fit the producer's credit",
            );
        }
        if bytes > producer.max_batch_bytes {
            return Err((
                SubmissionRefusal::BatchTooLarge,
                format!(
                    "the batch takes {bytes} bytes, and at most {} are allowed",
                    producer.max_batch_bytes
                ),
            ));
        }
        let name = producer.ingestor.clone();
        let Some(ingestor) = self.ingestors.get_mut(&name) else {
            return refuse(SubmissionRefusal::ProducerEnded, "the ingestor is gone");
        };
        if ingestor.suspended {
            return refuse(SubmissionRefusal::Suspended, "the ingestor is suspended");
        }
        let window = match ingestor.mode.window {
            Window::Sequential => 1,
            Window::Parallel(max) => max,
        };
        if self.ledger.counts(&name).outstanding_batches >= window {
            return refuse(
                SubmissionRefusal::Busy,
                "as many batches are outstanding as the ingestor's window lets in",
            );
        }
        // Rows of batches that timed out are still there: without this they would pile up before a relay that is full.
        let held_back = [Some(ingestor.relay.as_str()), ingestor.errors.relay()]
            .into_iter()
            .flatten()
            .filter_map(|relay| self.relays.get(relay))
            .any(|relay| relay.waiting_bytes >= MAX_WAITING_BYTES);
        if held_back {
            return refuse(SubmissionRefusal::Busy, "the ingestor's relay is full");
        }
        let batch = ipc::batch(&ingestor.fields, &ingestor.schema, MAX_BATCH_ROWS, stream)
            .map_err(|defect| (refusal_for(defect.kind), defect.message))?;
        let moment = Moment {
            now,
            time: match &self.clock {
                Some(clock) => clock.logical_time_at(now),
                None => Some(now.0),
            },
        };
        let admission = match &self.clock {
            None => Admission::Every,
            Some(clock) => clock
                .admission_window(now)
                .map_or(Admission::Nothing, Admission::Near),
        };
        let timeout = ingestor.mode.ack_timeout_nanos;
        let submission = self.ledger.admit(now, id, &name, tag, bytes, timeout);
        let mut outbox = Outbox::new();
        let taken = ingestor.take(
            &batch,
            submission,
            admission,
            moment,
            &mut self.ledger,
            &mut outbox,
        );
        let own = [Origin {
            submission: Some(submission),
            rows: 1,
        }];
        match taken {
            Ok(()) => self.ledger.acknowledge(now, &own),
            Err(message) => self.ledger.reject(&own, &message),
        }
        self.forward(outbox);
        Ok(())
    }

    fn forward(&mut self, outbox: Outbox) {
        for (name, batch) in outbox {
            if let Some(relay) = self.relays.get_mut(&name) {
                relay.push(batch);
            }
        }
    }

    // ---- consumers

    pub fn add_consumer(&mut self, id: ConsumerId, consumer: Consumer) {
        self.consumers.insert(id, consumer);
    }

    pub fn consumers(&self) -> impl Iterator<Item = &Consumer> {
        self.consumers.values()
    }

    pub fn consumers_of(&self, emitter: &str) -> usize {
        self.consumers()
            .filter(|consumer| consumer.emitter == emitter)
            .count()
    }

    pub fn read(&mut self, id: ConsumerId, tag: Tag) -> bool {
        let Some(consumer) = self.consumers.get_mut(&id) else {
            return false;
        };
        consumer.reads.push_back(tag);
        true
    }

    pub fn cancel_read(&mut self, id: ConsumerId, tag: Tag) -> bool {
        let Some(consumer) = self.consumers.get_mut(&id) else {
            return false;
        };
        let before = consumer.reads.len();
        consumer.reads.retain(|read| *read != tag);
        consumer.reads.len() != before
    }

    /// Answers a consumer's reads, revokes its references and forgets it.
    pub fn drop_consumer(&mut self, id: ConsumerId) -> bool {
        let Some(consumer) = self.consumers.remove(&id) else {
            return false;
        };
        for tag in consumer.reads {
            self.ledger.effects.push(Effect::Read {
                consumer: id,
                tag,
                received: None,
            });
        }
        if let Some(emitter) = self.emitters.get_mut(&consumer.emitter) {
            emitter.revoke(id);
        }
        true
    }

    /// The emitter that a consumer reads.
    pub fn emitter_of(&self, id: ConsumerId) -> Option<&str> {
        self.consumers
            .get(&id)
            .map(|consumer| consumer.emitter.as_str())
    }

    pub fn settle(
        &mut self,
        now: Now,
        id: ConsumerId,
        reference: [u8; 16],
        decision: EmitterBatchDecision,
        reason: &str,
    ) -> (EmitterSettlement, &'static str) {
        let moment = self.moment(now);
        let Some(consumer) = self.consumers.get_mut(&id) else {
            return (EmitterSettlement::ConsumerEnded, "the consumer has ended");
        };
        let Some(emitter) = self.emitters.get_mut(&consumer.emitter) else {
            return (EmitterSettlement::ConsumerEnded, "the emitter is gone");
        };
        let reason_fits = match decision {
            EmitterBatchDecision::Reject => (1..=1_024).contains(&reason.len()),
            EmitterBatchDecision::Ack | EmitterBatchDecision::Retry => reason.is_empty(),
        };
        if !reason_fits {
            return (
                EmitterSettlement::InvalidReason,
                "a rejection has a reason of 1 to 1024 bytes, and nothing else has one",
            );
        }
        let batch = match emitter.reference(&reference) {
            Reference::Current { batch, consumer } if consumer == id => batch,
            Reference::Confirmed { consumer } if consumer == id => {
                return match decision {
                    EmitterBatchDecision::Ack => (EmitterSettlement::Confirmed, ""),
                    _ => (
                        EmitterSettlement::StaleReference,
                        "the batch was acknowledged already",
                    ),
                }
            }
            Reference::Current { .. } | Reference::Confirmed { .. } => {
                return (
                    EmitterSettlement::WrongConsumer,
                    "the batch was delivered to another consumer",
                )
            }
            Reference::Stale => {
                return (
                    EmitterSettlement::StaleReference,
                    "the reference stands for no attempt that can be settled",
                )
            }
        };
        let bytes = emitter.batch(batch).map_or(0, |batch| batch.stream.len());
        consumer.gives_back(u64::try_from(bytes).unwrap_or(u64::MAX));
        let mut outbox = Outbox::new();
        match decision {
            EmitterBatchDecision::Ack => {
                emitter.acknowledge(batch, reference, id, now, &mut self.ledger);
            }
            EmitterBatchDecision::Retry => emitter.retry(batch, now),
            EmitterBatchDecision::Reject => {
                emitter.reject(batch, reason, moment, &mut self.ledger, &mut outbox);
            }
        }
        self.forward(outbox);
        (EmitterSettlement::Confirmed, "")
    }

    // ---- movement

    /// Rows that enter a relay past every endpoint; its subscriptions were served already.
    pub fn publish(&mut self, relay: &str, batches: Vec<RelayBatch>) {
        if let Some(relay) = self
            .relays
            .get_mut(relay)
            .filter(|relay| relay.emitters > 0)
        {
            relay
                .entered
                .extend(batches.into_iter().map(std::sync::Arc::new));
        }
    }

    /// Moves everything that can move.
    pub fn pump(&mut self, now: Now, readers: &mut BTreeMap<String, Vec<Reader>>) {
        let moment = self.moment(now);
        self.ledger.expire(now);
        for emitter in self.emitters.values_mut() {
            for (consumer, bytes) in emitter.expire(now) {
                if let Some(consumer) = self.consumers.get_mut(&consumer) {
                    consumer.gives_back(bytes);
                }
            }
        }
        let mut outbox = Outbox::new();
        for ingestor in self.ingestors.values_mut() {
            ingestor.flush_due(moment.time, &mut outbox);
        }
        loop {
            let mut moved = !outbox.is_empty();
            self.forward(std::mem::take(&mut outbox));
            moved |= self.enter(moment, readers);
            for emitter in self.emitters.values_mut() {
                moved |= emitter.collect(&self.relays, moment, &mut self.ledger, &mut outbox);
            }
            self.trim();
            moved |= self.deliver(now);
            if !moved {
                return;
            }
        }
    }

    /// Lets batches into relays that have room.
    fn enter(&mut self, moment: Moment, readers: &mut BTreeMap<String, Vec<Reader>>) -> bool {
        let mut moved = false;
        for (name, relay) in &mut self.relays {
            if relay.waiting.is_empty() {
                continue;
            }
            let mut readers = readers.get_mut(name);
            let blocked = readers
                .iter()
                .any(|readers| readers.iter().any(|reader| !reader.room));
            while !blocked && relay.has_room() {
                let Some(batch) = relay.pop_waiting() else {
                    break;
                };
                moved = true;
                self.ledger.owe(&batch.origins, relay.attached);
                self.ledger.acknowledge(moment.now, &batch.origins);
                if let Some(readers) = readers.as_deref_mut() {
                    let deliveries = inform(&batch, moment.time, readers);
                    self.ledger
                        .effects
                        .extend(deliveries.into_iter().map(Effect::Rows));
                }
                if relay.emitters > 0 {
                    relay.entered.push_back(std::sync::Arc::new(batch));
                }
            }
        }
        moved
    }

    /// Gives batches to reads, to the consumer that waited longest first.
    fn deliver(&mut self, now: Now) -> bool {
        let mut moved = false;
        for (name, emitter) in &mut self.emitters {
            while let Some((number, batch)) = emitter.next_ready() {
                let bytes = u64::try_from(batch.stream.len()).unwrap_or(u64::MAX);
                let reader = self
                    .consumers
                    .iter_mut()
                    .filter(|(_, consumer)| {
                        consumer.emitter == *name
                            && !consumer.reads.is_empty()
                            && consumer.outstanding_batches < consumer.granted_batches
                            && consumer.outstanding_bytes.saturating_add(bytes)
                                <= consumer.granted_bytes
                    })
                    .min_by_key(|(_, consumer)| consumer.served);
                let Some((id, consumer)) = reader else {
                    break;
                };
                let Some(tag) = consumer.reads.pop_front() else {
                    break;
                };
                let Some(reference) = emitter.hand_out(number, *id, now) else {
                    break;
                };
                self.served += 1;
                consumer.served = self.served;
                consumer.outstanding_batches += 1;
                consumer.outstanding_bytes += bytes;
                let received = emitter.batch(number).map(|batch| EmitterBatchReceived {
                    identity: batch.identity,
                    reference,
                    source_relay: emitter.relay_of(batch).to_string(),
                    branch_fingerprint: batch.fingerprint,
                    batch: batch.stream.clone(),
                    members: batch.members,
                    execution_now_unix_nanos: batch.execution_now,
                });
                self.ledger.effects.push(Effect::Read {
                    consumer: *id,
                    tag,
                    received,
                });
                moved = true;
            }
        }
        moved
    }

    /// When `pump` has something to do next, if nothing else happens.
    pub fn next_deadline(&self, now: Now) -> Option<Now> {
        let flushes = self
            .ingestors
            .values()
            .filter_map(IngestorState::next_flush)
            .chain(self.emitters.values().filter_map(EmitterState::next_flush))
            .filter_map(|logical| self.wall(now, logical));
        self.emitters
            .values()
            .filter_map(EmitterState::next_wake)
            .chain(self.ledger.next_deadline())
            .chain(flushes)
            .min()
    }

    /// Rows by where they are: buffered, waiting, in relays, collected, retained, out.
    #[cfg(test)]
    #[allow(clippy::indexing_slicing, clippy::unwrap_used)]
    pub fn census(&self) -> Vec<u64> {
        let rows =
            |origins: &[Origin]| -> u64 { origins.iter().map(|origin| origin.rows as u64).sum() };
        let buffered = self
            .ingestors
            .values()
            .flat_map(IngestorState::buffered)
            .map(|origin| origin.rows as u64)
            .sum();
        let waiting = self
            .relays
            .values()
            .flat_map(|relay| &relay.waiting)
            .map(|batch| rows(&batch.origins))
            .sum();
        let mut entered = 0;
        let mut held = [0, 0, 0];
        for emitter in self.emitters.values() {
            for inlet in &emitter.inlets {
                let relay = &self.relays[&inlet.relay];
                for number in inlet.position.0..relay.end() {
                    entered += relay.batch(number).unwrap().rows() as u64;
                }
                entered -= inlet.position.1 as u64;
            }
            let (collected, kept, out) = emitter.held();
            held[0] += collected;
            held[1] += kept;
            held[2] += out;
        }
        let mut census = vec![buffered, waiting, entered];
        census.extend(held);
        census
    }
}

fn refusal_for(defect: DefectKind) -> SubmissionRefusal {
    match defect {
        DefectKind::MalformedBatch => SubmissionRefusal::MalformedBatch,
        DefectKind::UnexpectedMessage => SubmissionRefusal::UnexpectedMessage,
        DefectKind::CompressedBatch => SubmissionRefusal::CompressedBatch,
        DefectKind::SchemaMismatch => SubmissionRefusal::SchemaMismatch,
        DefectKind::NotOneBatch => SubmissionRefusal::NotOneBatch,
        DefectKind::TooManyRows => SubmissionRefusal::TooManyRows,
        DefectKind::InvalidData => SubmissionRefusal::InvalidData,
    }
}

/// What a relay's readers get of a batch that entered.
fn inform(batch: &RelayBatch, time: Option<i64>, readers: &mut [Reader]) -> Vec<Delivery> {
    let Some(columns) = batch.source.columns() else {
        return Vec::new();
    };
    let group = Group {
        key: batch.key.clone(),
        rows: (0..batch.rows()).collect(),
    };
    delivery::publish(&batch.source, &columns, &[group], time, readers.iter_mut())
}
