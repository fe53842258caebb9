//! What a session still has to send: replies and news in order, one bounded lane for each subscription, and the newest
//! of each clock and producer that it follows. Must not know sockets; a writer takes frames from it one by one.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use nervix_wire::types::{
    DomainClockAttachmentEndReason, DomainClockAttachmentEnded, DomainClockObservation,
    DomainClockObserved, DomainClockTicked, ProducerAdmission, ProducerAdmissionChanged,
    ProducerEndReason, ProducerEnded, RowsSkippedCause, ServerBody, ServerMessage,
    SubscriptionDeliveryLost, SubscriptionEndReason, SubscriptionEnded, SubscriptionHandle,
    SubscriptionRowsSkipped,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::graph::DeliveryMode;

/// Frames of rows that wait for one subscription.
pub const LANE_FRAMES: usize = 16;
/// A session with this many replies unsent is not read from until some were sent.
const REPLIES_LIMIT: usize = 256;

/// One frame on its way to the client.
#[derive(Debug, Clone)]
pub struct OutFrame {
    pub kind: &'static str,
    pub bytes: Bytes,
    /// What may flow once this frame was written.
    pub opens: Option<Opens>,
}

/// What a reply opens: news about it must not overtake the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opens {
    /// A subscription's generation.
    Subscription(u64),
    /// A domain's clock.
    Clock(String),
    Producer(u64),
}

/// How the node ends a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    Status { code: u16, message: String },
    Reset(u32),
    GoAway(u32),
    Close { abort: bool },
}

impl Finish {
    pub fn describe(&self) -> String {
        match self {
            Self::Status { code, message } if message.is_empty() => format!("status {code}"),
            Self::Status { code, message } => format!("status {code}: {message}"),
            Self::Reset(code) => format!("reset {code}"),
            Self::GoAway(code) => format!("goaway {code}"),
            Self::Close { abort: false } => "connection closed".to_owned(),
            Self::Close { abort: true } => "connection aborted".to_owned(),
        }
    }
}

/// What the writer does next.
#[derive(Debug)]
pub enum Next {
    Frame(OutFrame),
    Finish(Finish),
    /// The session is over and nobody listens.
    Closed,
}

#[derive(Debug)]
enum LaneItem {
    Rows(Bytes),
    Lost(u64),
    Skipped {
        cause: RowsSkippedCause,
        rows: u64,
        message: String,
    },
    Ended {
        reason: SubscriptionEndReason,
        message: String,
    },
}

#[derive(Debug)]
struct Lane {
    handle: SubscriptionHandle,
    flowing: bool,
    items: VecDeque<LaneItem>,
    frames: usize,
    ended: bool,
}

/// What a client that follows a clock has not been told yet: the newest clock, then the newest tick of it.
#[derive(Debug, Default)]
struct ClockLane {
    flowing: bool,
    state: Option<DomainClockObservation>,
    tick: Option<DomainClockTicked>,
    ended: Option<DomainClockAttachmentEndReason>,
}

/// What a client has not been told of a producer. Outcomes are replies, and all of them go out before.
#[derive(Debug, Default)]
struct ProducerLane {
    flowing: bool,
    admission: Option<ProducerAdmission>,
    ended: Option<(ProducerEndReason, String)>,
}

/// Frames that are sent again and again, as fast as the client takes them, whenever nothing else is to be sent.
#[derive(Debug)]
pub struct Flood {
    pub frames: Vec<OutFrame>,
    /// The last tick of a domain's clock that was sent; each round begins with the next one.
    pub tick: Option<DomainClockTicked>,
    /// Rounds that are still to be made; without it there is no end.
    pub rounds: Option<u64>,
    /// How often each frame was sent, and last the tick.
    pub sent: Vec<u64>,
    next: usize,
}

impl Flood {
    pub fn new(
        frames: Vec<OutFrame>,
        tick: Option<DomainClockTicked>,
        rounds: Option<u64>,
    ) -> Self {
        Self {
            sent: vec![0; frames.len().saturating_add(1)],
            next: frames.len(),
            frames,
            tick,
            rounds,
        }
    }

    fn take(&mut self) -> Option<OutFrame> {
        loop {
            if self.next >= self.frames.len() {
                if self.rounds == Some(0) || (self.frames.is_empty() && self.tick.is_none()) {
                    return None;
                }
                self.rounds = self.rounds.map(|rounds| rounds.saturating_sub(1));
                self.next = 0;
                if let Some(tick) = &mut self.tick {
                    tick.tick_id = tick.tick_id.saturating_add(1);
                    let frame = encoded(ServerBody::DomainClockTicked(tick.clone()));
                    self.count(self.frames.len());
                    return Some(frame);
                }
            }
            if let Some(frame) = self.frames.get(self.next).cloned() {
                self.count(self.next);
                self.next += 1;
                return Some(frame);
            }
        }
    }

    fn count(&mut self, place: usize) {
        if let Some(sent) = self.sent.get_mut(place) {
            *sent = sent.saturating_add(1);
        }
    }
}

#[derive(Debug, Default)]
struct State {
    replies: VecDeque<OutFrame>,
    clocks: BTreeMap<String, ClockLane>,
    producers: BTreeMap<u64, ProducerLane>,
    lanes: BTreeMap<u64, Lane>,
    served_last: u64,
    flood: Option<Flood>,
    finish: Option<(Finish, bool)>,
    closed: bool,
}

impl State {
    fn clear_lanes(&mut self) {
        self.clocks.clear();
        self.producers.clear();
        self.lanes.clear();
        self.flood = None;
    }

    /// The next frame about a clock that may flow: what changed first, what ticked after it.
    fn take_clock(&mut self) -> Option<OutFrame> {
        let (domain, lane) = self.clocks.iter_mut().find(|(_, lane)| {
            lane.flowing && (lane.state.is_some() || lane.tick.is_some() || lane.ended.is_some())
        })?;
        let domain = domain.clone();
        let body = if let Some(clock) = lane.state.take() {
            ServerBody::DomainClockObserved(DomainClockObserved { domain, clock })
        } else if let Some(tick) = lane.tick.take() {
            ServerBody::DomainClockTicked(tick)
        } else {
            let reason = lane.ended.take()?;
            self.clocks.remove(&domain);
            ServerBody::DomainClockAttachmentEnded(DomainClockAttachmentEnded { domain, reason })
        };
        Some(encoded(body))
    }

    fn take_producer(&mut self) -> Option<OutFrame> {
        let (producer, lane) = self
            .producers
            .iter_mut()
            .find(|(_, lane)| lane.flowing && (lane.admission.is_some() || lane.ended.is_some()))?;
        let producer = *producer;
        let body = if let Some(admission) = lane.admission.take() {
            ServerBody::ProducerAdmissionChanged(ProducerAdmissionChanged {
                producer,
                admission,
            })
        } else {
            let (reason, message) = lane.ended.take()?;
            self.producers.remove(&producer);
            ServerBody::ProducerEnded(ProducerEnded {
                producer,
                reason,
                message,
            })
        };
        Some(encoded(body))
    }
}

/// What became of a frame of rows.
#[derive(Debug, PartialEq, Eq)]
enum Push {
    Done,
    Full,
}

#[derive(Debug, Default)]
pub struct Outbox {
    state: Mutex<State>,
    writer: Notify,
    room: Notify,
    ended: Notify,
}

impl Outbox {
    pub fn send(&self, frame: OutFrame) {
        let mut state = self.state.lock();
        if state.closed || state.finish.is_some() {
            return;
        }
        state.replies.push_back(frame);
        drop(state);
        self.writer.notify_one();
    }

    /// Begins to flood the client, or ends that; says how often each frame of the flood before was sent, and last the tick.
    pub fn flood(&self, flood: Option<Flood>) -> Option<Vec<u64>> {
        let mut state = self.state.lock();
        if state.closed || state.finish.is_some() {
            return None;
        }
        let before = std::mem::replace(&mut state.flood, flood);
        drop(state);
        self.writer.notify_one();
        before.map(|flood| flood.sent)
    }

    /// Makes a lane that holds its frames until the reply that opens it was written.
    pub fn open_lane(&self, handle: SubscriptionHandle) {
        self.state.lock().lanes.insert(
            handle.generation,
            Lane {
                handle,
                flowing: false,
                items: VecDeque::new(),
                frames: 0,
                ended: false,
            },
        );
    }

    /// Makes a place for the news of a clock, kept until the reply that attaches it was written.
    pub fn open_clock(&self, domain: &str) {
        let lane = ClockLane::default();
        self.state.lock().clocks.insert(domain.to_owned(), lane);
    }

    /// Forgets a clock and what was not said of it.
    pub fn close_clock(&self, domain: &str) {
        self.state.lock().clocks.remove(domain);
    }

    /// The clock changed: its older state and every tick of it that waits are of no account any more.
    pub fn clock_changed(&self, domain: &str, clock: DomainClockObservation) {
        self.with_clock(domain, |lane| {
            lane.state = Some(clock);
            lane.tick = None;
        });
    }

    pub fn clock_ticked(&self, tick: DomainClockTicked) {
        let domain = tick.domain.clone();
        self.with_clock(&domain, |lane| lane.tick = Some(tick));
    }

    /// Says that a clock is gone, and nothing of it afterwards.
    pub fn clock_ended(&self, domain: &str, reason: DomainClockAttachmentEndReason) {
        self.with_clock(domain, |lane| {
            lane.state = None;
            lane.tick = None;
            lane.ended = Some(reason);
        });
    }

    fn with_clock(&self, domain: &str, change: impl FnOnce(&mut ClockLane)) {
        if let Some(lane) = self
            .state
            .lock()
            .clocks
            .get_mut(domain)
            .filter(|lane| lane.ended.is_none())
        {
            change(lane);
        }
        self.writer.notify_one();
    }

    /// Makes a place for the news of a producer, kept until the reply that opens it was written.
    pub fn open_producer(&self, producer: u64) {
        let lane = ProducerLane::default();
        self.state.lock().producers.insert(producer, lane);
    }

    /// Forgets a producer and what was not said of it.
    pub fn close_producer(&self, producer: u64) {
        self.state.lock().producers.remove(&producer);
    }

    pub fn admission_changed(&self, producer: u64, admission: ProducerAdmission) {
        if let Some(lane) = self.state.lock().producers.get_mut(&producer) {
            lane.admission = Some(admission);
        }
        self.writer.notify_one();
    }

    /// Says that a producer ended, and nothing of it afterwards. Its outcomes were given to `send` before.
    pub fn producer_ended(&self, producer: u64, reason: ProducerEndReason, message: String) {
        if let Some(lane) = self.state.lock().producers.get_mut(&producer) {
            lane.admission = None;
            lane.ended = Some((reason, message));
        }
        self.writer.notify_one();
    }

    pub fn let_flow(&self, opened: &Opens) {
        let mut state = self.state.lock();
        let flowing = match opened {
            Opens::Subscription(generation) => state
                .lanes
                .get_mut(generation)
                .map(|lane| &mut lane.flowing),
            Opens::Clock(domain) => state.clocks.get_mut(domain).map(|lane| &mut lane.flowing),
            Opens::Producer(producer) => state
                .producers
                .get_mut(producer)
                .map(|lane| &mut lane.flowing),
        };
        if let Some(flowing) = flowing {
            *flowing = true;
        }
        drop(state);
        self.writer.notify_one();
    }

    /// Drops a lane and what waits in it; whoever waits for its room goes on.
    pub fn close_lane(&self, generation: u64) {
        self.state.lock().lanes.remove(&generation);
        self.room.notify_waiters();
    }

    /// Puts the last frame of a generation behind what waits in its lane, and takes no further rows.
    pub fn end_lane(&self, generation: u64, reason: SubscriptionEndReason, message: String) {
        if let Some(lane) = self.state.lock().lanes.get_mut(&generation) {
            lane.ended = true;
            lane.items.push_back(LaneItem::Ended { reason, message });
        }
        self.writer.notify_one();
        self.room.notify_waiters();
    }

    fn try_rows(&self, generation: u64, frame: &Bytes, drops: Option<u64>) -> Push {
        let mut state = self.state.lock();
        let Some(lane) = state.lanes.get_mut(&generation).filter(|lane| !lane.ended) else {
            return Push::Done;
        };
        if lane.frames < LANE_FRAMES {
            lane.frames += 1;
            lane.items.push_back(LaneItem::Rows(frame.clone()));
        } else if let Some(rows) = drops {
            match lane.items.back_mut() {
                Some(LaneItem::Lost(lost)) => *lost = lost.saturating_add(rows),
                _ => lane.items.push_back(LaneItem::Lost(rows)),
            }
        } else {
            return Push::Full;
        }
        drop(state);
        self.writer.notify_one();
        Push::Done
    }

    /// Offers rows to a subscription; false when it is BLOCKING and has no room.
    pub fn offer(&self, generation: u64, mode: DeliveryMode, frame: &Bytes, rows: u64) -> bool {
        let drops = match mode {
            DeliveryMode::Blocking => None,
            DeliveryMode::Dropping => Some(rows),
        };
        self.try_rows(generation, frame, drops) == Push::Done
    }

    /// Offers rows to a subscription. BLOCKING waits for room, and calls `waiting` once before it does; DROPPING counts
    /// what finds none. A subscription that ended meanwhile takes nothing.
    pub async fn deliver<Guard>(
        &self,
        generation: u64,
        mode: DeliveryMode,
        frame: Bytes,
        rows: u64,
        waiting: impl FnOnce() -> Guard,
    ) {
        let drops = match mode {
            DeliveryMode::Blocking => None,
            DeliveryMode::Dropping => Some(rows),
        };
        if self.try_rows(generation, &frame, drops) == Push::Done {
            return;
        }
        let _guard = waiting();
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.try_rows(generation, &frame, drops) == Push::Done {
                return;
            }
            room.await;
        }
    }

    pub fn skipped(&self, generation: u64, cause: RowsSkippedCause, rows: u64, message: String) {
        let mut state = self.state.lock();
        let Some(lane) = state.lanes.get_mut(&generation).filter(|lane| !lane.ended) else {
            return;
        };
        // Reports behind the last frame are joined, so that a reader who is late bounds them too.
        for item in lane.items.iter_mut().rev() {
            match item {
                LaneItem::Rows(_) => break,
                LaneItem::Skipped {
                    cause: same,
                    rows: total,
                    ..
                } if *same == cause => {
                    *total = total.saturating_add(rows);
                    return;
                }
                _ => {}
            }
        }
        lane.items.push_back(LaneItem::Skipped {
            cause,
            rows,
            message,
        });
        drop(state);
        self.writer.notify_one();
    }

    /// Ends the session from the node's side, after what waits as a reply (`drain`) or at once.
    pub fn finish(&self, finish: Finish, drain: bool) {
        let mut state = self.state.lock();
        if state.closed
            || matches!(state.finish, Some((_, false)))
            || (state.finish.is_some() && drain)
        {
            return;
        }
        if !drain {
            state.replies.clear();
        }
        state.clear_lanes();
        state.finish = Some((finish, drain));
        drop(state);
        self.writer.notify_one();
        self.room.notify_waiters();
        self.ended.notify_waiters();
    }

    /// How the node ends this session, if it does.
    pub fn finishing(&self) -> Option<Finish> {
        self.state
            .lock()
            .finish
            .as_ref()
            .map(|(finish, _)| finish.clone())
    }

    /// Nothing more can be sent: the client is gone, or the writer is done.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.replies.clear();
        state.clear_lanes();
        drop(state);
        self.writer.notify_one();
        self.room.notify_waiters();
        self.ended.notify_waiters();
    }

    /// Waits until the session must stop without writing what it is writing.
    pub async fn abandoned(&self) {
        self.until_ended(|state| state.closed || matches!(state.finish, Some((_, false))))
            .await;
    }

    /// Waits until nothing more can be sent.
    pub async fn closed(&self) {
        self.until_ended(|state| state.closed).await;
    }

    /// Waits until the writer has ended the session as it was told.
    pub async fn finished(&self) {
        self.until_ended(|state| state.closed && state.finish.is_some())
            .await;
    }

    /// Whether what still arrives is of no account.
    pub fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.closed || state.finish.is_some()
    }

    async fn until_ended(&self, over: impl Fn(&State) -> bool) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if over(&self.state.lock()) {
                return;
            }
            ended.await;
        }
    }

    /// Waits until the client has taken enough replies to be read from again.
    pub async fn has_room(&self) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let state = self.state.lock();
                if state.closed || state.finish.is_some() || state.replies.len() < REPLIES_LIMIT {
                    return;
                }
            }
            room.await;
        }
    }

    pub async fn next(&self) -> Next {
        loop {
            if let Some(next) = self.take() {
                return next;
            }
            self.writer.notified().await;
        }
    }

    fn take(&self) -> Option<Next> {
        let mut state = self.state.lock();
        if state.closed {
            return Some(Next::Closed);
        }
        if let Some(frame) = state.replies.pop_front() {
            drop(state);
            self.room.notify_waiters();
            return Some(Next::Frame(frame));
        }
        if let Some((finish, _)) = &state.finish {
            return Some(Next::Finish(finish.clone()));
        }
        if let Some(frame) = state.take_producer() {
            return Some(Next::Frame(frame));
        }
        if let Some(frame) = state.take_clock() {
            return Some(Next::Frame(frame));
        }
        let after = state.served_last;
        let waiting = state
            .lanes
            .range(after.saturating_add(1)..)
            .chain(state.lanes.range(..=after))
            .find(|(_, lane)| lane.flowing && !lane.items.is_empty())
            .map(|(generation, _)| *generation);
        let Some(generation) = waiting else {
            return state.flood.as_mut()?.take().map(Next::Frame);
        };
        state.served_last = generation;
        let lane = state.lanes.get_mut(&generation)?;
        let item = lane.items.pop_front()?;
        let handle = lane.handle.clone();
        let frame = match item {
            LaneItem::Rows(bytes) => {
                lane.frames = lane.frames.saturating_sub(1);
                OutFrame {
                    kind: "SubscriptionRows",
                    bytes,
                    opens: None,
                }
            }
            LaneItem::Lost(dropped_rows) => encoded(ServerBody::SubscriptionDeliveryLost(
                SubscriptionDeliveryLost {
                    subscription: handle,
                    dropped_rows,
                },
            )),
            LaneItem::Skipped {
                cause,
                rows,
                message,
            } => encoded(ServerBody::SubscriptionRowsSkipped(
                SubscriptionRowsSkipped {
                    subscription: handle,
                    cause,
                    skipped_rows: rows,
                    message,
                },
            )),
            LaneItem::Ended { reason, message } => {
                state.lanes.remove(&generation);
                encoded(ServerBody::SubscriptionEnded(SubscriptionEnded {
                    subscription: handle,
                    reason,
                    message,
                }))
            }
        };
        drop(state);
        self.room.notify_waiters();
        Some(Next::Frame(frame))
    }
}

/// A small frame that always fits.
fn encoded(body: ServerBody) -> OutFrame {
    let kind = crate::kinds::body_kind(&body);
    let bytes = nervix_wire::encode_server(&ServerMessage { body }).unwrap_or_default();
    OutFrame {
        kind,
        bytes: Bytes::from(bytes),
        opens: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use nervix_wire::types::DomainClockObservedState;

    fn clock(generation: u64) -> DomainClockObservation {
        DomainClockObservation {
            generation,
            state: DomainClockObservedState::UnpacedDomainClock,
        }
    }

    fn tick(generation: u64, tick_id: u64) -> DomainClockTicked {
        DomainClockTicked {
            domain: "d".to_owned(),
            generation,
            tick_id,
            logical_boundary_unix_nanos: 0,
            authority_utc_unix_nanos: 0,
            serving_logical_unix_nanos: 0,
        }
    }

    fn told(outbox: &Outbox) -> Vec<ServerBody> {
        let mut bodies = Vec::new();
        while let Some(Next::Frame(frame)) = outbox.take() {
            let frame = nervix_wire::Frame::copy_from(&frame.bytes);
            bodies.push(nervix_wire::decode_server(&frame).unwrap().body);
        }
        bodies
    }

    // rule: K-2, K-3
    #[test]
    fn a_clock_tells_its_newest_state_and_then_its_newest_tick() {
        let outbox = Outbox::default();
        outbox.open_clock("d");
        outbox.clock_changed("d", clock(1));
        outbox.clock_ticked(tick(1, 1));
        outbox.clock_ticked(tick(1, 2));
        assert!(told(&outbox).is_empty());
        outbox.let_flow(&Opens::Clock("d".to_owned()));
        assert_eq!(
            told(&outbox),
            [
                ServerBody::DomainClockObserved(DomainClockObserved {
                    domain: "d".to_owned(),
                    clock: clock(1)
                }),
                ServerBody::DomainClockTicked(tick(1, 2)),
            ]
        );
        outbox.clock_ticked(tick(1, 3));
        outbox.clock_changed("d", clock(2));
        assert_eq!(
            told(&outbox),
            [ServerBody::DomainClockObserved(DomainClockObserved {
                domain: "d".to_owned(),
                clock: clock(2)
            })]
        );
        outbox.clock_ticked(tick(2, 1));
        outbox.clock_ended("d", DomainClockAttachmentEndReason::DomainRemoved);
        outbox.clock_ticked(tick(2, 2));
        assert!(matches!(
            told(&outbox).as_slice(),
            [ServerBody::DomainClockAttachmentEnded(_)]
        ));
        outbox.clock_changed("d", clock(3));
        assert!(told(&outbox).is_empty());
    }

    #[test]
    fn a_flood_flows_behind_everything_else_until_it_is_ended() {
        let outbox = Outbox::default();
        let frame = |kind: &'static str| OutFrame {
            kind,
            bytes: Bytes::new(),
            opens: None,
        };
        let kind = || match outbox.take() {
            Some(Next::Frame(frame)) => Some(frame.kind),
            _ => None,
        };
        let frames = vec![frame("a"), frame("b")];
        let flood = Flood::new(frames, Some(tick(1, 0)), None);
        assert_eq!(outbox.flood(Some(flood)), None);
        assert_eq!(kind(), Some("DomainClockTicked"));
        assert_eq!(kind(), Some("a"));
        outbox.send(frame("reply"));
        assert_eq!(kind(), Some("reply"));
        assert_eq!(kind(), Some("b"));
        assert_eq!(kind(), Some("DomainClockTicked"));
        assert_eq!(outbox.flood(None), Some(vec![1, 1, 2]));
        assert_eq!(kind(), None);
        assert_eq!(
            outbox.flood(Some(Flood::new(vec![frame("c")], None, Some(2)))),
            None
        );
        assert_eq!([kind(), kind(), kind()], [Some("c"), Some("c"), None]);
        assert_eq!(
            outbox.flood(Some(Flood::new(Vec::new(), None, None))),
            Some(vec![2, 0])
        );
        assert_eq!(kind(), None);
    }

    // rule: P-2, P-6
    #[test]
    fn a_producer_ends_behind_its_outcomes_and_nothing_follows() {
        let outbox = Outbox::default();
        outbox.open_producer(7);
        outbox.admission_changed(7, ProducerAdmission::Suspended);
        outbox.admission_changed(7, ProducerAdmission::Open);
        outbox.producer_ended(7, ProducerEndReason::Relocated, String::new());
        assert!(told(&outbox).is_empty());
        outbox.let_flow(&Opens::Producer(7));
        assert!(matches!(
            told(&outbox).as_slice(),
            [ServerBody::ProducerEnded(ended)] if ended.reason == ProducerEndReason::Relocated
        ));
        outbox.admission_changed(7, ProducerAdmission::Open);
        assert!(told(&outbox).is_empty());
    }
}
