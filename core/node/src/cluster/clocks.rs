//! Which sessions follow which domain's clock, and what they are told of it. Must not know how a clock is computed.

use std::sync::Arc;

use nervix_wire::types::{
    AttachDomainClockRequest, DetachDomainClockRequest, DomainClockAlreadyAttached,
    DomainClockAttachDisposition, DomainClockAttachOutcome, DomainClockAttached,
    DomainClockAttachmentEndReason, DomainClockDetachDisposition, DomainClockDetachOutcome,
    DomainClockDetached, DomainClockNotAttached, DomainClockObservation, DomainClockTicked,
    DomainNotFound, RequestRejected,
};

use super::{check_domain, Cluster, State};
use crate::graph::Now;
use crate::outbox::Opens;
use crate::session::Session;

impl Cluster {
    /// Makes a session follow a domain's clock, and says what may flow once the reply was written.
    pub fn attach_clock(
        self: &Arc<Self>,
        session: &Session,
        request: &AttachDomainClockRequest,
    ) -> Result<(DomainClockAttachOutcome, Option<Opens>), RequestRejected> {
        check_domain(Some(&request.domain))?;
        let domain = request.domain.clone();
        Ok(self.change(|state| {
            let Some(clock) = state.world.clock(&domain) else {
                let message = format!("there is no domain `{domain}`");
                let disposition =
                    DomainClockAttachDisposition::DomainNotFound(DomainNotFound { domain });
                return (
                    DomainClockAttachOutcome {
                        disposition,
                        message,
                    },
                    None,
                );
            };
            let followers = state.followers.entry(domain.clone()).or_default();
            if !followers.insert(session.id) {
                let message = format!("the session follows the clock of `{domain}` already");
                let disposition = DomainClockAttachDisposition::DomainClockAlreadyAttached(
                    DomainClockAlreadyAttached { domain },
                );
                return (
                    DomainClockAttachOutcome {
                        disposition,
                        message,
                    },
                    None,
                );
            }
            session.outbox.open_clock(&domain);
            let now = Now(state.clock.now());
            if let Some(tick) = state.world.newest_tick(now, &domain) {
                session.outbox.clock_ticked(tick);
            }
            self.count_followers(state);
            let opens = Opens::Clock(domain.clone());
            let outcome = DomainClockAttachOutcome {
                message: format!("the session follows the clock of `{domain}`"),
                disposition: DomainClockAttachDisposition::DomainClockAttached(
                    DomainClockAttached { domain, clock },
                ),
            };
            (outcome, Some(opens))
        }))
    }

    pub fn detach_clock(
        self: &Arc<Self>,
        session: &Session,
        request: &DetachDomainClockRequest,
    ) -> Result<DomainClockDetachOutcome, RequestRejected> {
        check_domain(Some(&request.domain))?;
        let domain = request.domain.clone();
        Ok(if self.unfollow(session, &domain) {
            DomainClockDetachOutcome {
                message: format!("the session follows the clock of `{domain}` no longer"),
                disposition: DomainClockDetachDisposition::DomainClockDetached(
                    DomainClockDetached { domain },
                ),
            }
        } else {
            DomainClockDetachOutcome {
                message: format!("the session does not follow the clock of `{domain}`"),
                disposition: DomainClockDetachDisposition::DomainClockNotAttached(
                    DomainClockNotAttached { domain },
                ),
            }
        })
    }

    /// Takes a session from those who follow a clock; false when it is none of them.
    pub fn unfollow(&self, session: &Session, domain: &str) -> bool {
        let mut state = self.state.lock();
        let followed = state
            .followers
            .get_mut(domain)
            .is_some_and(|followers| followers.remove(&session.id));
        if followed {
            session.outbox.close_clock(domain);
            self.count_followers(&mut state);
        }
        followed
    }

    pub(super) fn forget_clocks(&self, state: &mut State, session: &Session) {
        for followers in state.followers.values_mut() {
            followers.remove(&session.id);
        }
        self.count_followers(state);
    }

    fn count_followers(&self, state: &mut State) {
        state.followers.retain(|_, followers| !followers.is_empty());
        self.counts.clocks(
            state
                .followers
                .values()
                .map(|sessions| sessions.len())
                .sum(),
        );
    }

    pub(super) fn clock_changed(
        &self,
        state: &mut State,
        domain: String,
        clock: Option<DomainClockObservation>,
    ) {
        for session in state.following(&domain) {
            match &clock {
                Some(clock) => session.outbox.clock_changed(&domain, clock.clone()),
                None => session
                    .outbox
                    .clock_ended(&domain, DomainClockAttachmentEndReason::DomainRemoved),
            }
        }
        if clock.is_none() {
            state.followers.remove(&domain);
            self.count_followers(state);
        }
    }

    pub(super) fn clock_ticked(&self, state: &State, tick: &DomainClockTicked) {
        for session in state.following(&tick.domain) {
            session.outbox.clock_ticked(tick.clone());
        }
    }

    pub fn clock_of(&self, domain: &str) -> Option<DomainClockObservation> {
        self.state.lock().world.clock(domain)
    }

    /// Lets a domain's clock read as not installed, as on a node that is behind; false when there is no such domain.
    pub fn set_clock_installed(self: &Arc<Self>, domain: &str, installed: bool) -> bool {
        self.change(|state| state.world.set_clock_installed(domain, installed))
    }
}

impl State {
    fn following(&self, domain: &str) -> Vec<Arc<Session>> {
        self.followers
            .get(domain)
            .into_iter()
            .flatten()
            .filter_map(|session| self.sessions.get(session).cloned())
            .collect()
    }
}
