//! What follows from a change of the graph: telling sessions what concerns them, in order, and waking up when time alone
//! has something to change. Must not know what an effect means to a client beyond whom it concerns.

use std::sync::Arc;
use std::time::Duration;

use super::{parts_of, Cluster, Parts, Route, RowsPart, State};
use crate::clock::Clock;
use crate::graph::{Delivery, Effect, Now, SubscriptionId};

/// A clock that was moved lets the graph see each deadline on the way, up to this many.
const STEPS: usize = 100_000;
/// What the driver sleeps at least, so that a deadline that does not pass keeps no processor busy.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

impl Cluster {
    /// Does something with the cluster's state, and sees to all that follows from it.
    pub(super) fn change<Done>(self: &Arc<Self>, change: impl FnOnce(&mut State) -> Done) -> Done {
        let mut state = self.state.lock();
        let done = change(&mut state);
        self.collect(&mut state);
        drop(state);
        self.tell();
        done
    }

    /// Takes the effects of the graph. Those that concern clocks are told at once, since an attachment that is made
    /// afterwards must not hear of them; the others wait until the state can be let go.
    fn collect(&self, state: &mut State) {
        let mut effects = self.effects.lock();
        for effect in state.world.take_effects() {
            match effect {
                Effect::Clock { domain, clock } => self.clock_changed(state, domain, clock),
                Effect::Tick(tick) => self.clock_ticked(state, &tick),
                other => effects.push_back(other),
            }
        }
        drop(effects);
        let deadline = if state.clock.is_frozen() {
            None
        } else {
            state.world.next_deadline(Now(state.clock.now()))
        };
        if deadline != state.deadline {
            state.deadline = deadline;
            self.wake.notify_one();
        }
    }

    /// Tells sessions what is to tell. Whoever comes meanwhile waits, so that nothing is told out of its order.
    fn tell(self: &Arc<Self>) {
        let mut full = Vec::new();
        {
            let _telling = self.telling.lock();
            loop {
                let Some(effect) = self.effects.lock().pop_front() else {
                    break;
                };
                match effect {
                    Effect::Rows(delivery) => full.extend(self.tell_rows(delivery)),
                    other => self.tell_endpoint(other),
                }
            }
        }
        for (subscription, route, parts) in full {
            self.hold_back(subscription, route, parts);
        }
    }

    /// Gives rows to the lane of a subscription. What a BLOCKING one has no room for comes back.
    fn tell_rows(&self, delivery: Delivery) -> Option<(SubscriptionId, Route, Parts)> {
        let subscription = delivery.subscription;
        let route = self.state.lock().routes.get(&subscription).cloned()?;
        let generation = route.handle.generation;
        let mut parts = parts_of(&route, delivery);
        let mut held = route.held.lock();
        if held.moving {
            held.parts.push_back(parts);
            return None;
        }
        while let Some(part) = parts.next() {
            match part {
                RowsPart::Rows(frame, rows) => {
                    if !route.outbox.offer(generation, route.mode, &frame, rows) {
                        held.moving = true;
                        drop(held);
                        let first = std::iter::once(RowsPart::Rows(frame, rows));
                        return Some((subscription, route, Box::new(first.chain(parts))));
                    }
                }
                RowsPart::Skipped(cause, rows, message) => {
                    route.outbox.skipped(generation, cause, rows, message);
                }
            }
        }
        None
    }

    /// Holds a relay back until the rows that its BLOCKING subscription has no room for are on their way.
    fn hold_back(self: &Arc<Self>, subscription: SubscriptionId, route: Route, parts: Parts) {
        self.change(|state| {
            let now = Now(state.clock.now());
            state.world.set_reader_room(now, subscription, false);
        });
        let cluster = self.clone();
        tokio::spawn(async move {
            let mut next = Some(parts);
            while let Some(parts) = next {
                cluster.deliver_parts(&route, parts).await;
                let mut held = route.held.lock();
                next = held.parts.pop_front();
                held.moving = next.is_some();
            }
            cluster.change(|state| {
                let now = Now(state.clock.now());
                state.world.set_reader_room(now, subscription, true);
            });
        });
    }

    // ---- time

    /// Changes the node's clock and says what it reads afterwards, and whether it stands still. The graph sees every
    /// deadline that was passed, in its order.
    pub fn with_clock(self: &Arc<Self>, change: impl FnOnce(&mut Clock)) -> (i64, bool) {
        self.change(|state| {
            let mut at = Now(state.clock.now());
            change(&mut state.clock);
            let end = Now(state.clock.now());
            for _ in 0..STEPS {
                let Some(due) = state.world.next_deadline(at).filter(|due| *due <= end) else {
                    break;
                };
                at = at.max(due);
                state.world.advance(at);
                self.collect(state);
            }
            state.world.advance(end);
            (end.0, state.clock.is_frozen())
        })
    }

    /// Lets happen what is due, for as long as the process lives.
    pub async fn drive(self: Arc<Self>) {
        loop {
            let sleep = self.advance();
            let due = async {
                match sleep {
                    Some(sleep) => tokio::time::sleep(sleep).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Lets happen what is due, and says how long until something else is.
    fn advance(self: &Arc<Self>) -> Option<Duration> {
        self.change(|state| state.world.advance(Now(state.clock.now())));
        let state = self.state.lock();
        let deadline = state.deadline?;
        let nanos = deadline.0.saturating_sub(state.clock.now());
        let sleep = Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
        Some(sleep.max(SHORTEST_SLEEP))
    }
}
