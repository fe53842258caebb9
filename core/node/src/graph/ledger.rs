//! Who owes what for submitted rows: each admitted row is a share of its submission until everything attached behind it
//! settled it, and each submission has exactly one outcome.
//!
//! Owns producers and their outstanding submissions. Must not know where rows are.

use std::collections::BTreeMap;

use nervix_wire::types::{
    OutcomeUncertainty, ProcessingFailure, ProducerEndReason, SubmissionDisposition,
    SubmissionFailed, SubmissionNotAdmitted, SubmissionOutcomeUnknown, SubmissionRefusal,
};

use super::endpoints::{Effect, Opener, ProducerId, Tag};
use super::Now;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubmissionId(u64);

/// A run of rows and the submission they came with; None when nobody waits for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub submission: Option<SubmissionId>,
    pub rows: usize,
}

/// Appends a run, joining it to the one before if that is of the same submission.
pub fn push_origin(origins: &mut Vec<Origin>, origin: Origin) {
    match origins.last_mut() {
        _ if origin.rows == 0 => (),
        Some(last) if last.submission == origin.submission => last.rows += origin.rows,
        _ => origins.push(origin),
    }
}

/// The origins of so many rows from `start`.
pub fn slice_origins(origins: &[Origin], start: usize, rows: usize) -> Vec<Origin> {
    let mut sliced = Vec::new();
    let (mut at, end) = (0, start + rows);
    for origin in origins {
        let (from, to) = (at.max(start), (at + origin.rows).min(end));
        if from < to {
            push_origin(
                &mut sliced,
                Origin {
                    rows: to - from,
                    ..*origin
                },
            );
        }
        at += origin.rows;
    }
    sliced
}

/// The origins of these rows, which ascend.
pub fn select_origins(origins: &[Origin], rows: impl IntoIterator<Item = usize>) -> Vec<Origin> {
    let mut selected = Vec::new();
    let mut runs = origins.iter();
    let (mut run, mut end) = (runs.next(), 0);
    if let Some(first) = run {
        end = first.rows;
    }
    for row in rows {
        while row >= end {
            run = runs.next();
            match run {
                Some(next) => end += next.rows,
                None => return selected,
            }
        }
        if let Some(run) = run {
            push_origin(&mut selected, Origin { rows: 1, ..*run });
        }
    }
    selected
}

/// What an ingestor has going.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceCounts {
    pub outstanding_batches: u64,
    pub outstanding_bytes: u64,
    pub admitted_batches: u64,
}

#[derive(Debug, Clone)]
pub struct Producer {
    pub ingestor: String,
    pub opener: Opener,
    pub granted_batches: u64,
    pub granted_bytes: u64,
    pub max_batch_bytes: u64,
    pub outstanding_batches: u64,
    pub outstanding_bytes: u64,
    /// A close waits for the last outcome.
    pub draining: bool,
}

#[derive(Debug, Clone)]
struct Submission {
    ingestor: String,
    producer: ProducerId,
    tag: Tag,
    bytes: u64,
    /// Shares not settled yet.
    pending: u64,
    progress: Now,
    ack_timeout_nanos: u64,
}

impl Submission {
    fn deadline(&self) -> Now {
        self.progress.after(self.ack_timeout_nanos)
    }
}

/// Producers, submissions, and what is to be said about them.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    newest: u64,
    submissions: BTreeMap<SubmissionId, Submission>,
    producers: BTreeMap<ProducerId, Producer>,
    sources: BTreeMap<String, SourceCounts>,
    pub effects: Vec<Effect>,
}

pub fn not_admitted(refusal: SubmissionRefusal) -> SubmissionDisposition {
    SubmissionDisposition::SubmissionNotAdmitted(SubmissionNotAdmitted { refusal })
}

fn failed(failure: ProcessingFailure) -> SubmissionDisposition {
    SubmissionDisposition::SubmissionFailed(SubmissionFailed { failure })
}

fn unknown(cause: OutcomeUncertainty) -> SubmissionDisposition {
    SubmissionDisposition::SubmissionOutcomeUnknown(SubmissionOutcomeUnknown { cause })
}

fn count(rows: usize) -> u64 {
    u64::try_from(rows).unwrap_or(u64::MAX)
}

impl Ledger {
    // ---- producers

    pub fn add_producer(&mut self, id: ProducerId, producer: Producer) {
        self.producers.insert(id, producer);
    }

    pub fn producer(&self, id: ProducerId) -> Option<&Producer> {
        self.producers.get(&id)
    }

    pub fn producers(&self) -> impl Iterator<Item = (ProducerId, &Producer)> {
        self.producers.iter().map(|(id, producer)| (*id, producer))
    }

    pub fn producers_of(&self, ingestor: &str) -> Vec<ProducerId> {
        self.producers()
            .filter(|(_, producer)| producer.ingestor == ingestor)
            .map(|(id, _)| id)
            .collect()
    }

    pub fn counts(&self, ingestor: &str) -> SourceCounts {
        self.sources.get(ingestor).copied().unwrap_or_default()
    }

    pub fn close_producer(&mut self, id: ProducerId) -> bool {
        let Some(producer) = self.producers.get_mut(&id) else {
            return false;
        };
        if producer.draining {
            return false;
        }
        producer.draining = true;
        self.finish_drained(id);
        true
    }

    fn finish_drained(&mut self, id: ProducerId) {
        let drained = self
            .producers
            .get(&id)
            .is_some_and(|producer| producer.draining && producer.outstanding_batches == 0);
        if drained {
            self.producers.remove(&id);
            self.effects.push(Effect::ProducerClosed { producer: id });
        }
    }

    pub fn abandon_producer(&mut self, id: ProducerId) {
        self.producers.remove(&id);
    }

    /// Ends a producer, after giving everything it has outstanding an outcome.
    pub fn end_producer(&mut self, id: ProducerId, reason: ProducerEndReason, message: &str) {
        let cause = match reason {
            ProducerEndReason::OwnerLost => OutcomeUncertainty::OwnerLost,
            _ => OutcomeUncertainty::Interrupted,
        };
        let outstanding: Vec<SubmissionId> = self
            .submissions
            .iter()
            .filter(|(_, submission)| submission.producer == id)
            .map(|(id, _)| *id)
            .collect();
        for submission in outstanding {
            self.resolve(submission, unknown(cause), message);
        }
        if self.producers.remove(&id).is_some() {
            self.effects.push(Effect::ProducerEnded {
                producer: id,
                reason,
                message: message.to_string(),
            });
        }
    }

    // ---- submissions

    pub fn answer(
        &mut self,
        producer: ProducerId,
        tag: Tag,
        disposition: SubmissionDisposition,
        message: impl Into<String>,
    ) {
        self.effects.push(Effect::Submission {
            producer,
            tag,
            disposition,
            message: message.into(),
        });
    }

    /// Takes a submission in, owing one share: the caller's, who gives it back once every row's shares are added.
    pub fn admit(
        &mut self,
        now: Now,
        producer: ProducerId,
        ingestor: &str,
        tag: Tag,
        bytes: u64,
        ack_timeout_nanos: u64,
    ) -> SubmissionId {
        self.newest += 1;
        let id = SubmissionId(self.newest);
        self.submissions.insert(
            id,
            Submission {
                ingestor: ingestor.to_string(),
                producer,
                tag,
                bytes,
                pending: 1,
                progress: now,
                ack_timeout_nanos,
            },
        );
        let source = self.sources.entry(ingestor.to_string()).or_default();
        source.admitted_batches += 1;
        source.outstanding_batches += 1;
        source.outstanding_bytes += bytes;
        if let Some(producer) = self.producers.get_mut(&producer) {
            producer.outstanding_batches += 1;
            producer.outstanding_bytes += bytes;
        }
        id
    }

    /// Every one of these rows is owed `times` more.
    pub fn owe(&mut self, origins: &[Origin], times: u64) {
        for origin in origins {
            if let Some(submission) = origin
                .submission
                .and_then(|id| self.submissions.get_mut(&id))
            {
                submission.pending += count(origin.rows) * times;
            }
        }
    }

    /// One share of each of these rows is settled well.
    pub fn acknowledge(&mut self, now: Now, origins: &[Origin]) {
        for origin in origins {
            let Some(id) = origin.submission else {
                continue;
            };
            let Some(submission) = self.submissions.get_mut(&id) else {
                continue;
            };
            submission.progress = now;
            submission.pending = submission.pending.saturating_sub(count(origin.rows));
            if submission.pending == 0 {
                self.resolve(id, SubmissionDisposition::SubmissionCompleted, "");
            }
        }
    }

    /// These rows were refused for good, and their submissions fail with them.
    pub fn reject(&mut self, origins: &[Origin], message: &str) {
        for id in origins.iter().filter_map(|origin| origin.submission) {
            self.resolve(id, failed(ProcessingFailure::Rejected), message);
        }
    }

    /// These rows are gone, and nobody can tell what became of them.
    pub fn lose(&mut self, origins: &[Origin], message: &str) {
        for id in origins.iter().filter_map(|origin| origin.submission) {
            self.resolve(id, unknown(OutcomeUncertainty::Interrupted), message);
        }
    }

    /// Fails what made no progress for too long.
    pub fn expire(&mut self, now: Now) {
        let late: Vec<SubmissionId> = self
            .submissions
            .iter()
            .filter(|(_, submission)| submission.deadline() <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            self.resolve(
                id,
                failed(ProcessingFailure::AckTimedOut),
                "not every row was acknowledged within the ACK TIMEOUT",
            );
        }
    }

    pub fn next_deadline(&self) -> Option<Now> {
        self.submissions.values().map(Submission::deadline).min()
    }

    fn resolve(&mut self, id: SubmissionId, disposition: SubmissionDisposition, message: &str) {
        let Some(submission) = self.submissions.remove(&id) else {
            return;
        };
        if let Some(source) = self.sources.get_mut(&submission.ingestor) {
            source.outstanding_batches = source.outstanding_batches.saturating_sub(1);
            source.outstanding_bytes = source.outstanding_bytes.saturating_sub(submission.bytes);
        }
        let Some(producer) = self.producers.get_mut(&submission.producer) else {
            return;
        };
        producer.outstanding_batches = producer.outstanding_batches.saturating_sub(1);
        producer.outstanding_bytes = producer.outstanding_bytes.saturating_sub(submission.bytes);
        self.answer(submission.producer, submission.tag, disposition, message);
        self.finish_drained(submission.producer);
    }

    /// Gives everything of an ingestor that ends an outcome, and ends its producers.
    pub fn end_source(&mut self, ingestor: &str, reason: ProducerEndReason, message: &str) {
        for producer in self.producers_of(ingestor) {
            self.end_producer(producer, reason, message);
        }
        // What abandoned producers left.
        let left: Vec<SubmissionId> = self
            .submissions
            .iter()
            .filter(|(_, submission)| submission.ingestor == ingestor)
            .map(|(id, _)| *id)
            .collect();
        for id in left {
            self.resolve(id, unknown(OutcomeUncertainty::Interrupted), message);
        }
        self.sources.remove(ingestor);
    }

    /// Shares owed in all, for tests that count.
    #[cfg(test)]
    pub fn pending(&self) -> u64 {
        self.submissions
            .values()
            .map(|submission| submission.pending)
            .sum()
    }
}
