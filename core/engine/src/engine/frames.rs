//! What arrives unasked (S-2 to S-5, K-2, K-3, P-2, P-6).
//!
//! Owns which frames are read, and which are ignored. Replies go by their identity alone.

use super::*;

/// Redirects of one command after which a server that says that it leads is not believed at once.
const BELIEVED: u32 = 4;

impl Engine {
    pub(super) fn arrived(
        &mut self,
        now: Now,
        conn: ConnId,
        message: Result<ServerMessage, Violation>,
    ) {
        let attempt = self
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.conn == conn);
        if let Some(exchange) = self.exchanges.get_mut(&conn) {
            exchange.heard = now.mono;
        } else if !attempt {
            return;
        }
        let result = message.and_then(|message| {
            if attempt {
                self.greeted(now, message);
                Ok(())
            } else {
                self.message(now, conn, message)
            }
        });
        if let Err(violation) = result {
            let cause = Cause::Violation(violation.to_string());
            if attempt {
                self.attempt_failed(now, cause, true);
            } else {
                self.lose(now, conn, cause, true);
            }
        }
    }

    /// What a server says before it said who leads.
    pub(super) fn greeted(&mut self, now: Now, message: ServerMessage) {
        match message.body {
            ServerBody::LeadershipObserved(observed) => {
                self.opened(now);
                self.leadership(now, &observed.leadership);
            }
            ServerBody::SessionEnding(ending) => {
                let cause = self.ending(&ending.reason);
                self.attempt_failed(now, cause, true);
            }
            _ => {}
        }
    }

    pub(super) fn message(
        &mut self,
        now: Now,
        conn: ConnId,
        message: ServerMessage,
    ) -> Result<(), Violation> {
        let current = self.current == Some(conn);
        match message.body {
            ServerBody::Reply(reply) => return self.reply(now, conn, reply),
            ServerBody::SessionEnding(ending) => {
                let cause = self.ending(&ending.reason);
                self.lose(now, conn, cause, true);
            }
            // Clocks and endpoints may be held by an exchange that was left.
            ServerBody::DomainClockObserved(observed) => {
                self.clocks.observed(&observed.domain, conn, observed.clock)
            }
            ServerBody::DomainClockTicked(ticked) => self.clocks.ticked(conn, &ticked),
            ServerBody::DomainClockAttachmentEnded(ended) => {
                if self.clocks.is_held_by(&ended.domain, conn) {
                    self.clocks.ended(&ended.domain, ended.reason);
                }
            }
            ServerBody::ProducerAdmissionChanged(changed) => {
                self.admission_changed(
                    Wire {
                        conn,
                        id: changed.producer,
                    },
                    changed.admission,
                );
            }
            ServerBody::ProducerEnded(ended) => {
                self.producer_ended(
                    now,
                    Wire {
                        conn,
                        id: ended.producer,
                    },
                    ended.reason,
                    &ended.message,
                );
            }
            // What it says about subscriptions and leaders is old news.
            _ if !current => {}
            ServerBody::LeadershipObserved(observed) => self.leadership(now, &observed.leadership),
            ServerBody::SubscriptionRows(rows) => {
                let Some(id) = self.subs.by_handle(&rows.subscription) else {
                    return Ok(());
                };
                let Some(sub) = self.subs.get(id) else {
                    return Ok(());
                };
                if sub.place != Place::Live && sub.place != Place::Superseded {
                    return Ok(());
                }
                let rows = rows.check(Arc::clone(&sub.schema))?;
                let bytes = rows.held_bytes();
                self.subs.push(id, EventKind::Rows(rows), bytes);
            }
            ServerBody::SubscriptionDeliveryLost(lost) => {
                if let Some(id) = self.live(&lost.subscription) {
                    self.subs.push(
                        id,
                        EventKind::DeliveryLost {
                            rows: lost.dropped_rows,
                        },
                        0,
                    );
                }
            }
            ServerBody::SubscriptionRowsSkipped(skipped) => {
                if let Some(id) = self.live(&skipped.subscription) {
                    let bytes = skipped.message.len();
                    let kind = EventKind::RowsSkipped {
                        rows: skipped.skipped_rows,
                        cause: skipped.cause,
                        message: skipped.message,
                    };
                    self.subs.push(id, kind, bytes);
                }
            }
            ServerBody::SubscriptionEnded(ended) => {
                if let Some(id) = self.subs.by_handle(&ended.subscription) {
                    self.subs.ended(
                        id,
                        EventKind::Ended {
                            reason: ended.reason,
                            message: ended.message,
                        },
                    );
                }
            }
            // Notices are for display, and the rest answers requests this client does not send.
            ServerBody::ServerNotice(_)
            | ServerBody::DomainsObserved(_)
            | ServerBody::DomainSnapshotObserved(_)
            | ServerBody::ClusterObserved(_) => {}
        }
        Ok(())
    }

    pub(super) fn live(&self, handle: &nervix_wire::types::SubscriptionHandle) -> Option<SubId> {
        let id = self.subs.by_handle(handle)?;
        let live = matches!(self.subs.get(id)?.place, Place::Live | Place::Superseded);
        live.then_some(id)
    }

    pub(super) fn leadership(&mut self, now: Now, leadership: &Leadership) {
        let here = match leadership {
            Leadership::LeaderIsRemote(remote) => {
                // One that cannot be followed is told by the commands that it redirects.
                let _ = self.learn(&remote.leader);
                false
            }
            Leadership::LeaderIsServingNode(_) => true,
            Leadership::LeaderUnknown => return,
        };
        // Somebody leads again, so a command that waits for it need not wait longer. Servers that all say that they lead, and
        // redirect all the same, are believed a few times only.
        if let Some(run) = self.runs.front_mut() {
            if std::mem::take(&mut run.leaderless) || (here && run.redirects <= BELIEVED) {
                run.due = run.due.min(now.mono);
            }
        }
    }

    /// Remembers where the leader is; the error says why it cannot be followed (T-2).
    pub(super) fn learn(&mut self, leader: &LeaderEndpoints) -> Result<Origin, String> {
        let origin = leader
            .grpc_uri
            .as_deref()
            .ok_or_else(|| "the leader has no address".to_owned())
            .and_then(|uri| self.reach.follow(uri))
            .map_err(|why| {
                let why = brief(why);
                format!("the leader that the server named cannot be followed: {why}")
            })?;
        self.reach.learn(&origin);
        Ok(origin)
    }

    pub(super) fn ending(&mut self, reason: &SessionEndReason) -> Cause {
        Cause::Lost(match reason {
            SessionEndReason::ServerShuttingDown => "the server is shutting down".to_owned(),
            SessionEndReason::LeaderRedirect(redirect) => {
                if let Some(leader) = &redirect.leader {
                    let _ = self.learn(leader);
                }
                "the server ended the session because another one leads".to_owned()
            }
            SessionEndReason::ProtocolViolated(violated) => {
                format!(
                    "the server says that the protocol was violated: {}",
                    brief(violated.message.clone())
                )
            }
        })
    }
}
