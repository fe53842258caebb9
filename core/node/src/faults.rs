//! What tests have armed: which frame is cut, spoiled, withheld or answered otherwise, and how often. Must not carry
//! anything out; whoever asks acts on the answer.

use nervix_wire::types::{CommandDisposition, ReplyBody, RequestRejection};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::answers::Change;
use crate::counts::Direction;
use crate::hostile::{BadParts, Corruption};
use crate::kinds;
use crate::outbox::Finish;

/// Where something happens; a rule's unset parts match everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub session: u64,
    pub node: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    pub session: Option<u64>,
    pub node: Option<usize>,
    pub kind: Option<String>,
}

impl Scope {
    pub fn covers(&self, place: Place) -> bool {
        self.session.is_none_or(|session| session == place.session)
            && self.node.is_none_or(|node| node == place.node)
    }

    fn matches(&self, place: Place, kind: &str) -> bool {
        self.covers(place) && kinds::matches(self.kind.as_deref(), kind)
    }
}

/// Before or after the frame it concerns, or before or after a request is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

/// A rule for some of the frames or requests its scope matches: it lets `skip` pass, then holds for `count`.
#[derive(Debug, Clone)]
pub struct Rule<T> {
    pub scope: Scope,
    pub skip: u64,
    pub count: u64,
    pub effect: T,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    pub direction: Direction,
    pub when: When,
    pub finish: Finish,
}

/// Leadership goes to another node, or to none, around a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderMove {
    pub direction: Direction,
    pub when: When,
    pub leader: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spoil {
    Corrupt(Corruption),
    /// The frame is sent as a compressed message, which nobody agreed on.
    Compressed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Split {
    /// Parts of this many bytes, with a notice between every two if so told.
    Parts {
        bytes: usize,
        notices: bool,
    },
    Bad(BadParts),
}

/// How long a request is kept waiting; without a time, until the next release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delay {
    pub when: When,
    pub millis: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub rejection: RequestRejection,
    pub field: Option<String>,
    pub message: String,
}

/// A command's answer in place of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub disposition: CommandDisposition,
    pub message: String,
    /// Whether the command is carried out and recorded all the same.
    pub execute: bool,
}

/// A reply in place of a request's own.
#[derive(Debug, Clone, PartialEq)]
pub struct Forced {
    pub body: ReplyBody,
    /// Whether the request is carried out all the same.
    pub execute: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFailure {
    Unauthenticated,
    Unavailable,
}

#[derive(Debug, Default)]
struct Armed {
    cuts: Vec<Rule<Cut>>,
    leader_moves: Vec<Rule<LeaderMove>>,
    spoils: Vec<Rule<Spoil>>,
    splits: Vec<Rule<Split>>,
    delays: Vec<Rule<Delay>>,
    drops: Vec<Rule<()>>,
    rejections: Vec<Rule<Rejection>>,
    answers: Vec<Rule<Answer>>,
    forced: Vec<Rule<Forced>>,
    changes: Vec<Rule<Change>>,
    wrong_references: Vec<Rule<String>>,
    refused_subscriptions: Vec<Rule<String>>,
    calls: Vec<Rule<CallFailure>>,
}

/// All armed rules, and the signal that lets held requests go.
#[derive(Debug)]
pub struct Faults {
    armed: Mutex<Armed>,
    releases: watch::Sender<u64>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            armed: Mutex::new(Armed::default()),
            releases: watch::Sender::new(0),
        }
    }
}

/// The effect of the first rule that holds here. Every matching rule counts what it sees, so that two rules for the
/// second and the fourth frame mean just that.
fn fire<T: Clone>(rules: &mut Vec<Rule<T>>, matches: impl Fn(&Rule<T>) -> bool) -> Option<T> {
    let mut effect = None;
    for rule in rules.iter_mut() {
        if !matches(rule) {
            continue;
        }
        if rule.skip > 0 {
            rule.skip -= 1;
        } else if effect.is_none() && rule.count > 0 {
            rule.count -= 1;
            effect = Some(rule.effect.clone());
        }
    }
    rules.retain(|rule| rule.count > 0);
    effect
}

macro_rules! arm {
    ($($name:ident($field:ident: $type:ty)),+ $(,)?) => {
        $(pub fn $name(&self, rule: Rule<$type>) {
            self.armed.lock().$field.push(rule);
        })+
    };
}

impl Faults {
    arm!(
        arm_cut(cuts: Cut),
        arm_leader_move(leader_moves: LeaderMove),
        arm_spoil(spoils: Spoil),
        arm_split(splits: Split),
        arm_delay(delays: Delay),
        arm_drop(drops: ()),
        arm_rejection(rejections: Rejection),
        arm_answer(answers: Answer),
        arm_forced(forced: Forced),
        arm_change(changes: Change),
        arm_wrong_reference(wrong_references: String),
        arm_refused_subscription(refused_subscriptions: String),
        arm_call_failure(calls: CallFailure),
    );

    /// Disarms everything and lets go what is held.
    pub fn clear(&self) {
        *self.armed.lock() = Armed::default();
        self.release();
    }

    /// A frame passes; the answer says whether the session ends before or after it.
    pub fn cut(&self, place: Place, direction: Direction, kind: &str) -> Option<(When, Finish)> {
        fire(&mut self.armed.lock().cuts, |rule| {
            rule.effect.direction == direction && rule.scope.matches(place, kind)
        })
        .map(|cut| (cut.when, cut.finish))
    }

    /// A frame passes; the answer says whether leadership moves before or after it, and where to.
    pub fn leader_move(
        &self,
        place: Place,
        direction: Direction,
        kind: &str,
    ) -> Option<LeaderMove> {
        fire(&mut self.armed.lock().leader_moves, |rule| {
            rule.effect.direction == direction && rule.scope.matches(place, kind)
        })
    }

    pub fn spoil(&self, place: Place, kind: &str) -> Option<Spoil> {
        fire(&mut self.armed.lock().spoils, |rule| {
            rule.scope.matches(place, kind)
        })
    }

    pub fn split(&self, place: Place, kind: &str) -> Option<Split> {
        fire(&mut self.armed.lock().splits, |rule| {
            rule.scope.matches(place, kind)
        })
    }

    pub fn delay(&self, place: Place, when: When, kind: &str) -> Option<Delay> {
        fire(&mut self.armed.lock().delays, |rule| {
            rule.effect.when == when && rule.scope.matches(place, kind)
        })
    }

    /// Whether the reply to this request is kept back for good.
    pub fn drops_reply(&self, place: Place, kind: &str) -> bool {
        fire(&mut self.armed.lock().drops, |rule| {
            rule.scope.matches(place, kind)
        })
        .is_some()
    }

    pub fn rejection(&self, place: Place, kind: &str) -> Option<Rejection> {
        fire(&mut self.armed.lock().rejections, |rule| {
            rule.scope.matches(place, kind)
        })
    }

    pub fn answer(&self, place: Place) -> Option<Answer> {
        fire(&mut self.armed.lock().answers, |rule| {
            rule.scope.covers(place)
        })
    }

    pub fn forced(&self, place: Place, kind: &str) -> Option<Forced> {
        fire(&mut self.armed.lock().forced, |rule| {
            rule.scope.matches(place, kind)
        })
    }

    /// What an endpoint's description says that is not so.
    pub fn change(&self, place: Place, kind: &str) -> Option<Change> {
        fire(&mut self.armed.lock().changes, |rule| {
            rule.scope.matches(place, kind)
        })
    }

    pub fn wrong_reference(&self, place: Place) -> Option<String> {
        fire(&mut self.armed.lock().wrong_references, |rule| {
            rule.scope.covers(place)
        })
    }

    pub fn refused_subscription(&self, place: Place) -> Option<String> {
        fire(&mut self.armed.lock().refused_subscriptions, |rule| {
            rule.scope.covers(place)
        })
    }

    pub fn call_failure(&self, node: usize) -> Option<CallFailure> {
        fire(&mut self.armed.lock().calls, |rule| {
            rule.scope.node.is_none_or(|wanted| wanted == node)
        })
    }

    pub fn release(&self) {
        self.releases
            .send_modify(|release| *release = release.wrapping_add(1));
    }

    /// Begins to wait as a delay says; a release from now on is seen.
    pub fn waiter(&self, delay: &Delay) -> Waiter {
        Waiter {
            releases: self.releases.subscribe(),
            millis: delay.millis,
        }
    }
}

/// A wait that has begun.
pub struct Waiter {
    releases: watch::Receiver<u64>,
    millis: Option<u64>,
}

impl Waiter {
    pub async fn wait(mut self) {
        match self.millis {
            Some(millis) => tokio::time::sleep(std::time::Duration::from_millis(millis)).await,
            None => {
                let _ = self.releases.changed().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Place = Place {
        session: 7,
        node: 0,
    };

    fn cut(skip: u64, kind: Option<&str>, session: Option<u64>) -> Rule<Cut> {
        Rule {
            scope: Scope {
                session,
                node: None,
                kind: kind.map(str::to_owned),
            },
            skip,
            count: 1,
            effect: Cut {
                direction: Direction::Out,
                when: When::After,
                finish: Finish::Reset(8),
            },
        }
    }

    #[test]
    fn a_rule_waits_for_its_frame_and_then_is_spent() {
        let faults = Faults::default();
        faults.arm_cut(cut(1, Some("SubscriptionRows"), None));
        assert_eq!(faults.cut(HERE, Direction::Out, "SubscriptionRows"), None);
        assert_eq!(faults.cut(HERE, Direction::Out, "CommandOutcome"), None);
        assert_eq!(faults.cut(HERE, Direction::In, "SubscriptionRows"), None);
        assert_eq!(
            faults.cut(HERE, Direction::Out, "SubscriptionRows"),
            Some((When::After, Finish::Reset(8)))
        );
        assert_eq!(faults.cut(HERE, Direction::Out, "SubscriptionRows"), None);
    }

    #[test]
    fn two_rules_count_the_same_frames() {
        let faults = Faults::default();
        faults.arm_cut(cut(0, None, None));
        faults.arm_cut(cut(2, None, None));
        let fired: Vec<bool> = (0..4)
            .map(|_| faults.cut(HERE, Direction::Out, "CommandOutcome").is_some())
            .collect();
        assert_eq!(fired, [true, false, true, false]);
    }

    #[test]
    fn a_scope_keeps_a_rule_from_other_sessions_and_kinds() {
        let faults = Faults::default();
        faults.arm_cut(cut(0, Some("Reply"), Some(8)));
        assert_eq!(faults.cut(HERE, Direction::Out, "CommandOutcome"), None);
        let there = Place {
            session: 8,
            node: 2,
        };
        assert_eq!(faults.cut(there, Direction::Out, "DomainsObserved"), None);
        assert!(faults
            .cut(there, Direction::Out, "CommandOutcome")
            .is_some());
    }

    #[test]
    fn leadership_moves_at_one_frame() {
        let faults = Faults::default();
        let moved = LeaderMove {
            direction: Direction::In,
            when: When::Before,
            leader: Some(1),
        };
        faults.arm_leader_move(Rule {
            scope: Scope {
                kind: Some("CommandRequest".to_owned()),
                ..Scope::default()
            },
            skip: 1,
            count: 1,
            effect: moved,
        });
        let mut commands =
            (0..3).map(|_| faults.leader_move(HERE, Direction::In, "CommandRequest"));
        assert!(commands.by_ref().take(1).all(|moved| moved.is_none()));
        assert_eq!(commands.collect::<Vec<_>>(), [Some(moved), None]);
    }

    #[test]
    fn clearing_disarms_everything() {
        let faults = Faults::default();
        faults.arm_cut(cut(0, None, None));
        faults.clear();
        assert_eq!(faults.cut(HERE, Direction::Out, "CommandOutcome"), None);
    }
}
