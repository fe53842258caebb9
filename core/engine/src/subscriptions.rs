//! The subscriptions a session keeps and the events its host has not read (S-2 to S-9).
//!
//! Owns what each subscription is in the middle of, and one bounded queue of events. Knows no requests and no connections:
//! it is told when the exchange that holds subscriptions is lost, and says what overflowed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use nervix_wire::types::{RowSchema, SubscriptionHandle};

use crate::api::{brief, Event, EventKind};
use crate::reach::{Backoff, Jitter, BACKGROUND};

/// One subscription of the host, through all its generations. Never used twice.
pub(crate) type SubId = u64;

/// What may wait to be read (S-8).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// What the server said of one subscription, in events.
    pub(crate) events: usize,
    /// Bytes of one subscription, unless it is one event alone: that of a frame of the frame limit takes 12 MiB at most, for
    /// where its cells stand takes up to twice what they do.
    pub(crate) bytes: usize,
    /// Bytes of all subscriptions together.
    pub(crate) total: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            events: 128,
            bytes: 8 << 20,
            total: 64 << 20,
        }
    }
}

/// Names of ended subscriptions whose deletion is still answered as done.
const ENDED_NAMES: usize = 1024;

/// What an event costs beside its frame.
const OVERHEAD: usize = 256;

/// What a subscription is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The current exchange holds its generation.
    Live,
    /// A request to open it again is in flight on the current exchange.
    Reopening,
    /// No exchange holds it. It is opened again at this time, or as soon as an exchange is there.
    Waiting(Option<u64>),
    /// Its reader was too slow; the request to delete it on this session is to be sent at this time, or not again.
    Overflowed { due: Option<u64> },
    /// That request is in flight.
    Dropping,
    /// Deleted on this session after an overflow; opened again on the next one.
    Parked,
    /// A later generation has its name; only its own end may still arrive.
    Superseded,
    /// Deleted, or nothing of it can arrive any more; it is forgotten once its events are read.
    Gone,
}

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) name: Arc<str>,
    pub(crate) domain: String,
    pub(crate) statement: Arc<str>,
    pub(crate) place: Place,
    pub(crate) generation: u64,
    pub(crate) schema: Arc<RowSchema>,
    backoff: Backoff,
    queued: usize,
    queued_bytes: usize,
}

#[derive(Debug)]
struct Queued {
    sub: SubId,
    bytes: usize,
    event: Event,
}

#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    limits: Limits,
    next: SubId,
    subs: BTreeMap<SubId, Subscription>,
    /// Handles of the current exchange.
    handles: HashMap<(String, u64), SubId>,
    queue: VecDeque<Queued>,
    total_bytes: usize,
    /// The names that the server ended last and nobody deleted or used again (S-4), and whose they were.
    ended_names: VecDeque<(Arc<str>, SubId)>,
}

impl Subscriptions {
    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    pub(crate) fn get(&self, id: SubId) -> Option<&Subscription> {
        self.subs.get(&id)
    }

    /// Whether any is to be kept across sessions.
    pub(crate) fn any_kept(&self) -> bool {
        self.subs.values().any(|sub| kept(sub.place))
    }

    /// The newest subscription of that name that is not deleted.
    pub(crate) fn named(&self, name: &str) -> Option<SubId> {
        let known = |sub: &Subscription| {
            &*sub.name == name && !matches!(sub.place, Place::Superseded | Place::Gone)
        };
        self.subs
            .iter()
            .rev()
            .find(|(_, sub)| known(sub))
            .map(|(id, _)| *id)
    }

    pub(crate) fn holds(&self, handle: &SubscriptionHandle) -> bool {
        self.by_handle(handle).is_some()
    }

    /// The subscription a frame of the current exchange is about (S-3).
    pub(crate) fn by_handle(&self, handle: &SubscriptionHandle) -> Option<SubId> {
        self.handles
            .get(&(handle.name.clone(), handle.generation))
            .copied()
    }

    /// Follows a new subscription, from within the reader of the frame that opened it (S-2).
    pub(crate) fn open(
        &mut self,
        handle: &SubscriptionHandle,
        domain: &str,
        statement: &Arc<str>,
        schema: RowSchema,
    ) -> (Arc<str>, Arc<RowSchema>) {
        let older: Vec<SubId> = self
            .subs
            .iter()
            .filter(|(_, sub)| *sub.name == *handle.name)
            .map(|(id, _)| *id)
            .collect();
        for id in older {
            let place = match self.subs.get(&id).map(|sub| sub.place) {
                Some(Place::Live | Place::Superseded) => Place::Superseded,
                _ => Place::Gone,
            };
            self.move_to(id, place);
        }
        self.forget_ended(&handle.name);
        let name: Arc<str> = Arc::from(handle.name.as_str());
        let schema = Arc::new(schema);
        let id = self.next;
        self.next = self.next.saturating_add(1);
        self.subs.insert(
            id,
            Subscription {
                name: Arc::clone(&name),
                domain: domain.to_owned(),
                statement: Arc::clone(statement),
                place: Place::Live,
                generation: handle.generation,
                schema: Arc::clone(&schema),
                backoff: Backoff::default(),
                queued: 0,
                queued_bytes: 0,
            },
        );
        self.handles
            .insert((handle.name.clone(), handle.generation), id);
        (name, schema)
    }

    /// Follows the next generation of a subscription that was opened again.
    pub(crate) fn reopened(&mut self, id: SubId, handle: &SubscriptionHandle, schema: RowSchema) {
        if let Some(sub) = self.reopening(id) {
            sub.place = Place::Live;
            sub.generation = handle.generation;
            sub.schema = Arc::new(schema);
            sub.backoff.reset();
            self.handles
                .insert((handle.name.clone(), handle.generation), id);
        }
    }

    /// The one whose request to open it again is in flight, unless another one took its name meanwhile.
    fn reopening(&mut self, id: SubId) -> Option<&mut Subscription> {
        self.subs
            .get_mut(&id)
            .filter(|sub| sub.place == Place::Reopening)
    }

    /// Reports that it could not be opened again, and waits longer than the last time (S-7).
    pub(crate) fn reopening_refused(
        &mut self,
        id: SubId,
        now: u64,
        jitter: &mut Jitter,
        message: String,
    ) {
        if let Some(sub) = self.reopening(id) {
            let wait = sub.backoff.next(BACKGROUND, jitter);
            sub.place = Place::Waiting(Some(now.saturating_add(wait)));
            self.report(id, EventKind::RestorationFailed { message });
        }
    }

    pub(crate) fn move_to(&mut self, id: SubId, place: Place) {
        if let Some(sub) = self.subs.get_mut(&id) {
            sub.place = place;
        }
        self.forget_if_gone(id);
    }

    /// Deletes it with what its host has not read.
    pub(crate) fn delete(&mut self, id: SubId) {
        let queue = std::mem::take(&mut self.queue);
        for queued in queue {
            if queued.sub == id {
                self.uncount(&queued);
            } else {
                self.queue.push_back(queued);
            }
        }
        self.handles.retain(|_, held| *held != id);
        self.move_to(id, Place::Gone);
    }

    /// The subscriptions to open again now.
    pub(crate) fn due(&self, now: u64) -> Vec<SubId> {
        let due = |place| matches!(place, Place::Waiting(due) if due.is_none_or(|due| due <= now));
        self.subs
            .iter()
            .filter(|(_, sub)| due(sub.place))
            .map(|(id, _)| *id)
            .collect()
    }

    pub(crate) fn next_due(&self) -> Option<u64> {
        self.subs
            .values()
            .filter_map(|sub| match sub.place {
                Place::Waiting(due) => due,
                Place::Overflowed { due } => due,
                _ => None,
            })
            .min()
    }

    /// The overflowed subscriptions whose deletion is to be asked for now.
    pub(crate) fn to_drop(&self, now: u64) -> Vec<SubId> {
        let to_ask = |place| matches!(place, Place::Overflowed { due: Some(due) } if due <= now);
        self.subs
            .iter()
            .filter(|(_, sub)| to_ask(sub.place))
            .map(|(id, _)| *id)
            .collect()
    }

    /// The server did not take the request to delete it, which is sent again later if it may be.
    pub(crate) fn drop_refused(&mut self, id: SubId, now: u64, jitter: &mut Jitter, again: bool) {
        if let Some(sub) = self.subs.get_mut(&id) {
            if sub.place == Place::Dropping {
                let wait = sub.backoff.next(BACKGROUND, jitter);
                let due = again.then(|| now.saturating_add(wait));
                sub.place = Place::Overflowed { due };
            }
        }
    }

    /// The exchange that held subscriptions is over: each gap is reported once (B-7).
    pub(crate) fn exchange_lost(&mut self, message: &str) {
        self.handles.clear();
        let ids: Vec<SubId> = self.subs.keys().copied().collect();
        for id in ids {
            match self.subs.get(&id).map(|sub| sub.place) {
                Some(Place::Live | Place::Overflowed { .. } | Place::Dropping | Place::Parked) => {
                    self.move_to(id, Place::Waiting(None));
                    self.report(
                        id,
                        EventKind::Interrupted {
                            message: message.to_owned(),
                        },
                    );
                }
                // The gap that began with an earlier loss goes on.
                Some(Place::Reopening | Place::Waiting(_)) => {
                    self.move_to(id, Place::Waiting(None))
                }
                Some(Place::Superseded) => self.move_to(id, Place::Gone),
                Some(Place::Gone) | None => {}
            }
        }
    }

    /// Queues what the server sent about a live subscription, or overflows the queue (S-8).
    pub(crate) fn push(&mut self, id: SubId, kind: EventKind, held_bytes: usize) {
        let Some(sub) = self.subs.get(&id) else {
            return;
        };
        let bytes = held_bytes.saturating_add(OVERHEAD);
        let alone = sub.queued_bytes <= sub.queued.saturating_mul(OVERHEAD);
        if sub.queued >= self.limits.events
            || (!alone && sub.queued_bytes.saturating_add(bytes) > self.limits.bytes)
        {
            self.overflow(id, 1);
            return;
        }
        while self.total_bytes.saturating_add(bytes) > self.limits.total {
            let most = self
                .subs
                .iter()
                .max_by_key(|(_, sub)| sub.queued_bytes)
                .map(|(id, _)| *id);
            match most {
                Some(most) => {
                    let before = self.total_bytes;
                    self.overflow(most, u64::from(most == id));
                    if most == id {
                        return;
                    }
                    if self.total_bytes >= before {
                        break;
                    }
                }
                None => break,
            }
        }
        self.enqueue(id, kind, bytes);
    }

    /// The server ended it: nothing follows (S-4).
    pub(crate) fn ended(&mut self, id: SubId, kind: EventKind) {
        self.report(id, kind);
        self.handles.retain(|_, held| *held != id);
        if let Some(sub) = self.subs.get(&id) {
            if sub.place != Place::Superseded {
                if self.ended_names.len() >= ENDED_NAMES {
                    self.ended_names.pop_front();
                }
                self.ended_names.push_back((Arc::clone(&sub.name), id));
            }
        }
        self.move_to(id, Place::Gone);
    }

    /// Forgets that the server ended a subscription of this name, with what its host has not read; true when it did.
    pub(crate) fn delete_ended(&mut self, name: &str) -> bool {
        let ended = self.forget_ended(name);
        if let Some(id) = ended {
            self.delete(id);
        }
        ended.is_some()
    }

    fn forget_ended(&mut self, name: &str) -> Option<SubId> {
        let at = self
            .ended_names
            .iter()
            .position(|(ended, _)| **ended == *name)?;
        self.ended_names.remove(at).map(|(_, id)| id)
    }

    pub(crate) fn take(&mut self) -> Option<Event> {
        let queued = self.queue.pop_front()?;
        self.uncount(&queued);
        self.forget_if_gone(queued.sub);
        Some(queued.event)
    }

    /// Queues what the engine itself has to say. Of what repeats, only the newest waits, so that a host that reads nothing
    /// costs nothing.
    fn report(&mut self, id: SubId, kind: EventKind) {
        let kind = match kind {
            EventKind::Interrupted { message } => EventKind::Interrupted {
                message: brief(message),
            },
            EventKind::RestorationFailed { message } => EventKind::RestorationFailed {
                message: brief(message),
            },
            EventKind::Ended { reason, message } => EventKind::Ended {
                reason,
                message: brief(message),
            },
            other => other,
        };
        if let Some(last) = self.queue.iter_mut().rev().find(|queued| queued.sub == id) {
            let repeats = matches!(
                (&last.event.kind, &kind),
                (EventKind::Interrupted { .. }, EventKind::Interrupted { .. })
                    | (
                        EventKind::RestorationFailed { .. },
                        EventKind::RestorationFailed { .. }
                    )
            );
            if repeats {
                last.event.kind = kind;
                return;
            }
        }
        self.enqueue(id, kind, OVERHEAD);
        self.condense(id);
    }

    /// A subscription with more events than it may have keeps, of those that the engine made between two of the server's, the
    /// newest of each kind: sessions that come and go unread cost no more than one does.
    fn condense(&mut self, id: SubId) {
        let full = |sub: &Subscription| sub.queued > self.limits.events;
        if !self.subs.get(&id).is_some_and(full) {
            return;
        }
        let (mut interrupted, mut failed) = (false, false);
        // Where the newest overflow stands, from the end.
        let mut overflow: Option<usize> = None;
        let mut kept: VecDeque<Queued> = VecDeque::with_capacity(self.queue.len());
        for queued in std::mem::take(&mut self.queue).into_iter().rev() {
            let again = queued.sub == id
                && match &queued.event.kind {
                    EventKind::Interrupted { .. } => std::mem::replace(&mut interrupted, true),
                    EventKind::RestorationFailed { .. } => std::mem::replace(&mut failed, true),
                    EventKind::Overflow { dropped } => match overflow {
                        None => {
                            overflow = Some(kept.len());
                            false
                        }
                        Some(at) => {
                            let newest = kept
                                .len()
                                .checked_sub(at.saturating_add(1))
                                .and_then(|at| kept.get_mut(at));
                            if let Some(EventKind::Overflow { dropped: total }) =
                                newest.map(|queued| &mut queued.event.kind)
                            {
                                *total = total.saturating_add(*dropped);
                            }
                            true
                        }
                    },
                    _ => {
                        (interrupted, failed, overflow) = (false, false, None);
                        false
                    }
                };
            if again {
                self.uncount(&queued);
            } else {
                kept.push_front(queued);
            }
        }
        self.queue = kept;
    }

    fn enqueue(&mut self, id: SubId, kind: EventKind, bytes: usize) {
        let Some(sub) = self.subs.get_mut(&id) else {
            return;
        };
        sub.queued = sub.queued.saturating_add(1);
        sub.queued_bytes = sub.queued_bytes.saturating_add(bytes);
        self.total_bytes = self.total_bytes.saturating_add(bytes);
        let event = Event {
            name: Arc::clone(&sub.name),
            generation: sub.generation,
            kind,
        };
        self.queue.push_back(Queued {
            sub: id,
            bytes,
            event,
        });
    }

    /// Drops what waits of a subscription, and `more` that never waited, says so in its place, and ends its delivery on this
    /// session.
    fn overflow(&mut self, id: SubId, more: u64) {
        let mut dropped = more;
        let mut place = None;
        let queue = std::mem::take(&mut self.queue);
        for queued in queue {
            let from_server = matches!(
                queued.event.kind,
                EventKind::Rows(_) | EventKind::DeliveryLost { .. } | EventKind::RowsSkipped { .. }
            );
            if queued.sub == id && from_server {
                self.uncount(&queued);
                dropped = dropped.saturating_add(1);
                // Behind the gaps reported before it, ahead of what was reported since.
                place = Some(self.queue.len());
            } else {
                self.queue.push_back(queued);
            }
        }
        let Some(sub) = self.subs.get_mut(&id) else {
            return;
        };
        if sub.place == Place::Live {
            sub.place = Place::Overflowed { due: Some(0) };
            // What was dropped may be of generations before the gaps that wait; delivery ends now.
            place = None;
        }
        sub.queued = sub.queued.saturating_add(1);
        sub.queued_bytes = sub.queued_bytes.saturating_add(OVERHEAD);
        self.total_bytes = self.total_bytes.saturating_add(OVERHEAD);
        let event = Event {
            name: Arc::clone(&sub.name),
            generation: sub.generation,
            kind: EventKind::Overflow { dropped },
        };
        let at = place.unwrap_or(self.queue.len());
        self.queue.insert(
            at.min(self.queue.len()),
            Queued {
                sub: id,
                bytes: OVERHEAD,
                event,
            },
        );
        self.condense(id);
    }

    fn uncount(&mut self, queued: &Queued) {
        self.total_bytes = self.total_bytes.saturating_sub(queued.bytes);
        if let Some(sub) = self.subs.get_mut(&queued.sub) {
            sub.queued = sub.queued.saturating_sub(1);
            sub.queued_bytes = sub.queued_bytes.saturating_sub(queued.bytes);
        }
    }

    fn forget_if_gone(&mut self, id: SubId) {
        if self
            .subs
            .get(&id)
            .is_some_and(|sub| sub.place == Place::Gone && sub.queued == 0)
        {
            self.subs.remove(&id);
        }
    }
}

fn kept(place: Place) -> bool {
    matches!(
        place,
        Place::Live
            | Place::Reopening
            | Place::Waiting(_)
            | Place::Overflowed { .. }
            | Place::Dropping
            | Place::Parked
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use nervix_wire::types::SubscriptionEndReason;

    // rule: S-4, S-8
    #[test]
    fn ended_subscriptions_cost_nothing_once_they_are_read() {
        let mut subs = Subscriptions::default();
        let statement: Arc<str> = Arc::from("CREATE SUBSCRIPTION s TO r;");
        for generation in 1..=10_000_u64 {
            let name = format!("s{generation}");
            let handle = SubscriptionHandle { name, generation };
            let schema = RowSchema {
                fields: Vec::new(),
                branch: None,
            };
            subs.open(&handle, "d", &statement, schema);
            if let Some(id) = subs.by_handle(&handle) {
                let reason = SubscriptionEndReason::RelayRemoved;
                let message = String::new();
                subs.ended(id, EventKind::Ended { reason, message });
            }
            assert!(subs.take().is_some());
        }
        assert!(subs.subs.is_empty() && subs.handles.is_empty());
        assert_eq!(subs.ended_names.len(), ENDED_NAMES);
        assert!(subs.delete_ended("s10000") && !subs.delete_ended("s10000"));
        assert!(!subs.delete_ended("s1"));
    }

    fn handle(name: &str, generation: u64) -> SubscriptionHandle {
        SubscriptionHandle {
            name: name.to_owned(),
            generation,
        }
    }

    fn schema() -> RowSchema {
        RowSchema {
            fields: Vec::new(),
            branch: None,
        }
    }

    fn lost(subs: &mut Subscriptions, id: SubId, times: u64) {
        for _ in 0..times {
            subs.push(id, EventKind::DeliveryLost { rows: 1 }, 0);
        }
    }

    // rule: S-7, S-8
    #[test]
    fn sessions_that_come_and_go_unread_cost_no_more_than_the_bound() {
        let mut subs = Subscriptions::default();
        let statement: Arc<str> = Arc::from("CREATE SUBSCRIPTION s TO r;");
        subs.open(&handle("s", 1), "d", &statement, schema());
        let id = subs.by_handle(&handle("s", 1)).unwrap();
        let mut jitter = Jitter::new(1);
        let mut overflows = 0;
        for generation in 2..=2_000_u64 {
            // Sometimes too much of it, sometimes one event, sometimes none.
            let times = [1, 200, 0, 1][(generation % 4) as usize];
            overflows += u64::from(times > 128);
            lost(&mut subs, id, times);
            subs.exchange_lost(&"x".repeat(100_000));
            subs.move_to(id, Place::Reopening);
            subs.reopening_refused(id, 0, &mut jitter, "y".repeat(100_000));
            subs.move_to(id, Place::Reopening);
            subs.reopened(id, &handle("s", generation), schema());
            assert!(subs.queue.len() <= subs.limits.events + 3);
        }
        assert_eq!(subs.total_bytes, subs.queue.len() * OVERHEAD);
        let (mut generation, mut dropped) = (0, 0);
        while let Some(event) = subs.take() {
            assert!(generation <= event.generation, "in their order");
            generation = event.generation;
            match event.kind {
                EventKind::Overflow { dropped: some } => dropped += some,
                EventKind::Interrupted { message } | EventKind::RestorationFailed { message } => {
                    assert!(message.len() <= 1024);
                }
                _ => {}
            }
        }
        assert!(dropped >= overflows * 129, "no loss is forgotten");
        assert_eq!(
            (subs.total_bytes, subs.subs.get(&id).unwrap().queued),
            (0, 0)
        );
    }

    // rule: S-3, S-8
    #[test]
    fn rows_without_end_of_a_replaced_generation_cost_no_more_than_the_bound() {
        let mut subs = Subscriptions::default();
        let statement: Arc<str> = Arc::from("CREATE SUBSCRIPTION s TO r;");
        subs.open(&handle("s", 1), "d", &statement, schema());
        subs.open(&handle("s", 2), "d", &statement, schema());
        let old = subs.by_handle(&handle("s", 1)).unwrap();
        assert_eq!(subs.get(old).unwrap().place, Place::Superseded);
        lost(&mut subs, old, 100_000);
        assert!(subs.queue.len() <= subs.limits.events + 3);
        let mut dropped = 0;
        while let Some(event) = subs.take() {
            dropped += match event.kind {
                EventKind::Overflow { dropped } => dropped,
                _ => 1,
            };
        }
        assert_eq!(dropped, 100_000);
    }

    // rule: S-8
    #[test]
    fn an_event_of_any_size_fits_where_nothing_else_waits() {
        let mut subs = Subscriptions::default();
        let statement: Arc<str> = Arc::from("CREATE SUBSCRIPTION s TO r;");
        subs.open(&handle("s", 1), "d", &statement, schema());
        let id = subs.by_handle(&handle("s", 1)).unwrap();
        subs.exchange_lost("gone");
        subs.move_to(id, Place::Reopening);
        subs.reopened(id, &handle("s", 2), schema());
        subs.push(id, EventKind::DeliveryLost { rows: 1 }, 12 << 20);
        assert_eq!(subs.get(id).unwrap().place, Place::Live);
        subs.push(id, EventKind::DeliveryLost { rows: 1 }, 0);
        assert_ne!(subs.get(id).unwrap().place, Place::Live);
    }

    // rule: S-4, S-6
    #[test]
    fn deleting_an_ended_subscription_takes_what_was_not_read() {
        let mut subs = Subscriptions::default();
        let statement: Arc<str> = Arc::from("CREATE SUBSCRIPTION s TO r;");
        for name in ["kept", "deleted"] {
            let handle = SubscriptionHandle {
                name: name.to_owned(),
                generation: 1,
            };
            let schema = RowSchema {
                fields: Vec::new(),
                branch: None,
            };
            subs.open(&handle, "d", &statement, schema);
            let id = subs.by_handle(&handle).unwrap();
            subs.push(id, EventKind::DeliveryLost { rows: 1 }, 0);
            let reason = SubscriptionEndReason::RelayRemoved;
            let message = String::new();
            subs.ended(id, EventKind::Ended { reason, message });
        }
        assert!(subs.delete_ended("deleted"));
        for _ in 0..2 {
            assert_eq!(&*subs.take().unwrap().name, "kept");
        }
        assert!(subs.take().is_none() && subs.subs.is_empty());
    }
}
