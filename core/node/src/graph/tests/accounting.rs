//! Whatever producers, consumers and time do, each admitted row is in exactly one place, and each batch has one outcome.

use std::collections::BTreeMap;

use nervix_wire::types::{EmitterBatchDecision, EmitterBatchReceived, EmitterSettlement};
use proptest::prelude::*;

use super::harness::*;
use crate::graph::{ConsumerId, Effect, ProducerId, Tag};

#[derive(Debug, Clone)]
enum Step {
    Submit { producer: usize, rows: u64 },
    Read { consumer: usize },
    Settle { delivery: usize, decision: u8 },
    CloseConsumer { consumer: usize },
    CloseProducer { producer: usize, abandon: bool },
    Pass { nanos: i64 },
    Suspend { suspended: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0..3_usize, 0..40_u64).prop_map(|(producer, rows)| Step::Submit { producer, rows }),
        6 => (0..3_usize).prop_map(|consumer| Step::Read { consumer }),
        6 => (0..8_usize, 0..5_u8).prop_map(|(delivery, decision)| Step::Settle { delivery, decision }),
        1 => (0..3_usize).prop_map(|consumer| Step::CloseConsumer { consumer }),
        1 => (0..3_usize, any::<bool>())
            .prop_map(|(producer, abandon)| Step::CloseProducer { producer, abandon }),
        3 => prop_oneof![0..300 * MS, 0..12 * SECOND, Just(61 * SECOND)]
            .prop_map(|nanos| Step::Pass { nanos }),
        1 => any::<bool>().prop_map(|suspended| Step::Suspend { suspended }),
    ];
    proptest::collection::vec(step, 1..80)
}

/// What became of a row at the consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Acknowledged,
    Rejected,
}

struct Book {
    run: Run,
    producers: Vec<ProducerId>,
    consumers: Vec<ConsumerId>,
    /// Deliveries that may still be settled, and to whom they were made.
    open: Vec<(ConsumerId, EmitterBatchReceived)>,
    /// The row numbers of each batch, which are the ids.
    batches: BTreeMap<Tag, std::ops::Range<u64>>,
    admitted: BTreeMap<Tag, bool>,
    outcomes: BTreeMap<Tag, String>,
    fates: BTreeMap<u64, Fate>,
    next: u64,
}

fn graph() -> Run {
    Run::new(&[
        SCHEMA,
        "CREATE SCHEMA k (id U64)",
        "CREATE BRANCH b SCHEMA k TTL 10m",
        "CREATE RELAY r SCHEMA s BRANCHED BY b CAPACITY 2",
        &ingestor(
            "PARALLEL MAX 5",
            "BRANCHED BY b SET id = message.id / 7 FLUSH EACH 100ms MAX BATCH SIZE 200bytes ON MESSAGE ERROR LOG",
        ),
        &emitter(
            "ATTACHED",
            "PARALLEL MAX 4",
            "BATCH MAX MESSAGES 5 MAX SIZE 1MiB FLUSH EACH 100ms MAX BATCH SIZE 1MiB ON MESSAGE ERROR LOG",
        ),
    ])
}

impl Book {
    fn new() -> Self {
        let mut run = graph();
        let producers = (0..3).map(|_| run.producer("i", "s", 4)).collect();
        let consumers = (0..3).map(|_| run.consumer("e", "s", 3)).collect();
        Self {
            run,
            producers,
            consumers,
            open: Vec::new(),
            batches: BTreeMap::new(),
            admitted: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            fates: BTreeMap::new(),
            next: 0,
        }
    }

    fn take(&mut self) {
        self.run.gather();
        for effect in std::mem::take(&mut self.run.seen) {
            match effect {
                Effect::Submission {
                    tag, disposition, ..
                } => {
                    let outcome = outcome(&disposition);
                    assert!(self.outcomes.insert(tag, outcome).is_none());
                }
                Effect::Read {
                    consumer,
                    received: Some(received),
                    ..
                } => self.open.push((consumer, received)),
                _ => (),
            }
        }
    }

    fn submit(&mut self, producer: usize, rows: u64) {
        let range = self.next..self.next + rows;
        self.next += rows;
        let stream = self.run.stream("s", &ids(range.clone()));
        let tag = self.run.submit_stream(self.producers[producer], &stream);
        self.batches.insert(tag, range);
        self.take();
        let refused = [
            "Busy",
            "Suspended",
            "Draining",
            "CreditExceeded",
            "ProducerEnded",
        ];
        let admitted = self
            .outcomes
            .get(&tag)
            .is_none_or(|outcome| !refused.contains(&outcome.as_str()));
        self.admitted.insert(tag, admitted);
    }

    fn settle(&mut self, delivery: usize, decision: u8) {
        if self.open.is_empty() {
            return;
        }
        let place = delivery % self.open.len();
        let (consumer, received) = self.open.remove(place);
        let (decision, reason, fate) = match decision {
            0..=2 => (EmitterBatchDecision::Ack, "", Some(Fate::Acknowledged)),
            3 => (EmitterBatchDecision::Retry, "", None),
            _ => (EmitterBatchDecision::Reject, "bad", Some(Fate::Rejected)),
        };
        let rows = ids_of(&self.run, &received);
        let settlement = self.run.settle(consumer, &received, decision, reason);
        if settlement == EmitterSettlement::Confirmed {
            for row in fate
                .into_iter()
                .flat_map(|fate| rows.iter().map(move |row| (*row, fate)))
            {
                assert!(self.fates.insert(row.0, row.1).is_none(), "settled twice");
            }
        } else {
            assert!(matches!(
                settlement,
                EmitterSettlement::StaleReference | EmitterSettlement::ConsumerEnded
            ));
        }
        self.take();
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Submit { producer, rows } => self.submit(producer, rows),
            Step::Read { consumer } => {
                self.run.park(self.consumers[consumer]);
            }
            Step::Settle { delivery, decision } => self.settle(delivery, decision),
            Step::CloseConsumer { consumer } => {
                self.run
                    .world
                    .close_consumer(self.run.now, self.consumers[consumer]);
                self.consumers[consumer] = self.run.consumer("e", "s", 3);
            }
            Step::CloseProducer { producer, abandon } => {
                let id = self.producers[producer];
                if abandon {
                    self.run.world.abandon_producer(self.run.now, id);
                    // Whatever it had is never heard of.
                } else {
                    self.run.world.close_producer(self.run.now, id);
                }
                self.producers[producer] = self.run.producer("i", "s", 4);
            }
            Step::Pass { nanos } => self.run.pass(nanos),
            Step::Suspend { suspended } => {
                if suspended {
                    self.run.world.suspend_ingestor(self.run.now, "d", "i");
                } else {
                    self.run.world.resume_ingestor(self.run.now, "d", "i");
                }
            }
        }
        self.take();
    }

    fn rows(&self, admitted: bool) -> u64 {
        self.batches
            .iter()
            .filter(|(tag, _)| self.admitted[tag] == admitted)
            .map(|(_, range)| range.end - range.start)
            .sum()
    }

    /// Every admitted row is settled, or in one place of the graph.
    fn check(&self) {
        let flow = self.run.world.domains["d"].flow.as_ref().unwrap();
        let census = flow.census();
        let settled = self.fates.len() as u64;
        assert_eq!(
            census.iter().sum::<u64>() + settled,
            self.rows(true),
            "{census:?}, and {settled} settled"
        );
        // What is owed is in the graph.
        assert!(flow.ledger.pending() <= census.iter().sum::<u64>());
        for (tag, range) in &self.batches {
            let fates = range.clone().map(|row| self.fates.get(&row));
            match self.outcomes.get(tag).map(String::as_str) {
                Some("Completed") => assert!(fates
                    .into_iter()
                    .all(|fate| fate == Some(&Fate::Acknowledged))),
                Some("Rejected") => {
                    assert!(fates.into_iter().any(|fate| fate == Some(&Fate::Rejected)));
                }
                // Its rows go on, and nobody is told what becomes of them.
                Some("AckTimedOut" | "UnknownInterrupted") | None => (),
                Some(_) => assert!(fates.into_iter().all(|fate| fate.is_none())),
            }
        }
    }

    /// Acknowledges everything that is left.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            self.run.pass(11 * SECOND);
            self.take();
            // After this long nothing that is out is still good.
            self.open.clear();
            let consumer = self.run.consumer("e", "s", 1_000);
            let mut any = false;
            loop {
                self.run.park(consumer);
                self.take();
                let Some((_, received)) = self.open.pop() else {
                    break;
                };
                any = true;
                self.open.push((consumer, received));
                self.settle(0, 0);
            }
            self.run.world.close_consumer(self.run.now, consumer);
            if !any {
                return;
            }
        }
        panic!("it does not end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    // rule: P-5, EC-5
    #[test]
    fn each_row_is_settled_retained_or_outstanding_and_nothing_else(steps in steps()) {
        let mut book = Book::new();
        for step in &steps {
            book.step(step);
            book.check();
        }
        for consumer in book.consumers.clone() {
            book.run.world.close_consumer(book.run.now, consumer);
        }
        book.take();
        book.finish();
        book.check();
        prop_assert_eq!(book.fates.len() as u64, book.rows(true));
        let flow = book.run.world.domains["d"].flow.as_ref().unwrap();
        prop_assert_eq!(flow.census().iter().sum::<u64>(), 0);
        prop_assert_eq!(flow.ledger.pending(), 0);
    }
}
