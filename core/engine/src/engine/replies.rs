//! What answers requests (C-3 to C-10, S-1, S-6, S-7, K-1).
//!
//! Owns what each reply means for who asked, the dispositions of commands aside.

use super::*;

impl Engine {
    pub(super) fn reply(&mut self, now: Now, conn: ConnId, reply: Reply) -> Result<(), Violation> {
        let Some(exchange) = self.exchanges.get_mut(&conn) else {
            return Ok(());
        };
        let id = reply.request_id;
        let Some((asked, body)) = exchange.answered(reply)? else {
            return Ok(());
        };
        let execution = asked.execution();
        // Until it was acted on it is in flight, so that a violation finds who waits for it.
        self.act_on(now, Wire { conn, id }, asked, body)?;
        if let Some(exchange) = self.exchanges.get_mut(&conn) {
            exchange.completed(id);
        }
        if let Some(execution) = execution {
            self.forget_if_released(execution);
        }
        Ok(())
    }

    pub(super) fn act_on(
        &mut self,
        now: Now,
        wire: Wire,
        asked: Asked,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        let conn = wire.conn;
        match (asked, body) {
            (Asked::Command(execution), body) => self.command_reply(now, conn, execution, body)?,
            (Asked::Domains(execution), ReplyBody::DomainList(list)) => {
                self.landed(execution);
                self.settle(
                    execution,
                    outcome(Disposition::Completed, render_domains(&list.domains)),
                );
            }
            (Asked::Probe, ReplyBody::DomainList(_) | ReplyBody::RequestRejected(_)) => {}
            (Asked::Subscribe(execution), ReplyBody::SubscribeOutcome(reply)) => {
                self.landed(execution);
                match reply.disposition {
                    SubscribeDisposition::RequestFailed => {
                        let failed = outcome(Disposition::Failed, reply.message);
                        self.settle(
                            execution,
                            Outcome {
                                diagnostics: reply.diagnostics,
                                ..failed
                            },
                        );
                    }
                    SubscribeDisposition::SubscriptionOpened(opened) => {
                        if self.subs.holds(&opened.subscription) {
                            return Err(Violation::new(
                                "S-3",
                                "a generation of a subscription was opened twice",
                            ));
                        }
                        let Some(held) = self.executions.get(&execution) else {
                            return Ok(());
                        };
                        // It is opened again as it was asked for, whatever the server says that it opened.
                        let domain = held.domain.clone().unwrap_or_default();
                        let statement = Arc::clone(&held.query);
                        let handle = &opened.subscription;
                        let (name, schema) =
                            self.subs.open(handle, &domain, &statement, opened.schema);
                        let subscription = Some(OpenedSubscription {
                            name,
                            generation: opened.subscription.generation,
                            schema,
                        });
                        let done = outcome(Disposition::Completed, reply.message);
                        self.settle(
                            execution,
                            Outcome {
                                subscription,
                                diagnostics: reply.diagnostics,
                                ..done
                            },
                        );
                    }
                }
            }
            (Asked::Unsubscribe(execution, sub), ReplyBody::UnsubscribeOutcome(reply)) => {
                match reply.disposition {
                    UnsubscribeDisposition::SubscriptionDeleted(_) => {
                        self.landed(execution);
                        self.subs.delete(sub);
                        self.settle(execution, outcome(Disposition::Completed, reply.message));
                    }
                    UnsubscribeDisposition::RequestFailed => {
                        self.landed(execution);
                        let failed = outcome(Disposition::Failed, reply.message);
                        self.settle(
                            execution,
                            Outcome {
                                diagnostics: reply.diagnostics,
                                ..failed
                            },
                        );
                    }
                }
            }
            (Asked::Reopen(sub), ReplyBody::SubscribeOutcome(reply)) => match reply.disposition {
                SubscribeDisposition::SubscriptionOpened(opened) => {
                    if self.subs.holds(&opened.subscription) {
                        return Err(Violation::new(
                            "S-3",
                            "a generation of a subscription was opened twice",
                        ));
                    }
                    self.subs.reopened(sub, &opened.subscription, opened.schema);
                }
                SubscribeDisposition::RequestFailed => {
                    self.subs
                        .reopening_refused(sub, now.mono, &mut self.jitter, reply.message);
                }
            },
            (Asked::Reopen(sub), ReplyBody::RequestRejected(rejected)) => {
                self.subs.reopening_refused(
                    sub,
                    now.mono,
                    &mut self.jitter,
                    describe_rejection(&rejected),
                );
            }
            (Asked::Reopen(sub), ReplyBody::RequestCancelled(_)) => {
                let message = "the server cancelled it".to_owned();
                self.subs
                    .reopening_refused(sub, now.mono, &mut self.jitter, message);
            }
            (Asked::Drop(sub), ReplyBody::UnsubscribeOutcome(_)) => {
                if self.subs.get(sub).map(|sub| sub.place) == Some(Place::Dropping) {
                    self.subs.move_to(sub, Place::Parked);
                }
            }
            // Until it is deleted, what arrives for it is dropped.
            (Asked::Drop(sub), ReplyBody::RequestRejected(rejected)) => {
                // A defective request is not sent again unchanged (C-8); what still arrives is dropped for as long as the session lasts.
                let again = is_busy(&rejected);
                self.subs
                    .drop_refused(sub, now.mono, &mut self.jitter, again);
            }
            (Asked::Drop(sub), ReplyBody::RequestCancelled(_)) => {
                self.subs
                    .drop_refused(sub, now.mono, &mut self.jitter, true);
            }
            (Asked::Suggest(call), ReplyBody::SuggestOutcome(outcome)) => {
                if self.suggests.remove(&call).is_some() {
                    self.finish(call, Ok(Done::Suggestions(outcome)));
                }
            }
            (Asked::Suggest(call), ReplyBody::RequestCancelled(_)) => {
                if self.suggests.remove(&call).is_some() {
                    self.finish(
                        call,
                        Err(Error::new(
                            ErrorKind::Cancelled,
                            "the server cancelled the completion",
                        )),
                    );
                }
            }
            (Asked::Suggest(call), ReplyBody::RequestRejected(rejected)) => {
                if is_busy(&rejected) {
                    if let Some(suggest) = self.suggests.get_mut(&call) {
                        let wait = suggest.backoff.next(RETRY, &mut self.jitter);
                        suggest.due = now.mono.saturating_add(wait);
                        suggest.flight = None;
                    }
                } else if self.suggests.remove(&call).is_some() {
                    self.finish(
                        call,
                        Err(Error::new(
                            ErrorKind::Rejected,
                            describe_rejection(&rejected),
                        )),
                    );
                }
            }
            (Asked::Cancel, ReplyBody::CancelOutcome(_) | ReplyBody::RequestRejected(_)) => {}
            (
                Asked::Domains(execution)
                | Asked::Subscribe(execution)
                | Asked::Unsubscribe(execution, _),
                ReplyBody::RequestRejected(rejected),
            ) => {
                self.landed(execution);
                self.rejected(now, execution, &rejected, false);
            }
            (
                Asked::Domains(execution)
                | Asked::Subscribe(execution)
                | Asked::Unsubscribe(execution, _),
                ReplyBody::RequestCancelled(cancelled),
            ) => {
                self.landed(execution);
                self.cancelled(execution, &cancelled);
            }
            (Asked::Probe, ReplyBody::RequestCancelled(_)) => {}
            (Asked::AttachClock(execution), ReplyBody::DomainClockAttachOutcome(reply)) => {
                self.landed(execution);
                let disposition = match reply.disposition {
                    DomainClockAttachDisposition::DomainClockAttached(attached) => {
                        let asked = self
                            .executions
                            .get(&execution)
                            .and_then(|held| held.domain.as_deref());
                        if asked.is_some_and(|domain| domain != attached.domain) {
                            return Err(Violation::new(
                                "K-1",
                                "the clock of another domain was attached",
                            ));
                        }
                        let awaited = self.runs.iter().any(|run| run.execution == execution);
                        self.clocks
                            .attached(&attached.domain, conn, attached.clock, awaited);
                        Disposition::Completed
                    }
                    DomainClockAttachDisposition::DomainClockAlreadyAttached(_)
                    | DomainClockAttachDisposition::DomainNotFound(_)
                    | DomainClockAttachDisposition::RequestFailed => Disposition::Failed,
                };
                self.settle(execution, outcome(disposition, reply.message));
            }
            (Asked::DetachClock(execution), ReplyBody::DomainClockDetachOutcome(reply)) => {
                match reply.disposition {
                    DomainClockDetachDisposition::DomainClockDetached(_) => {
                        self.clock_detached(execution, &reply.message)
                    }
                    DomainClockDetachDisposition::DomainClockNotAttached(detached)
                        if self.clocks.follows(&detached.domain) =>
                    {
                        self.clock_detached(execution, &reply.message);
                    }
                    DomainClockDetachDisposition::DomainClockNotAttached(_)
                    | DomainClockDetachDisposition::RequestFailed => {
                        self.landed(execution);
                        self.clock_detaching(execution, false);
                        self.settle(execution, outcome(Disposition::Failed, reply.message));
                    }
                }
            }
            // A cancelled detach that was admitted has detached (K-1).
            (Asked::DetachClock(execution), ReplyBody::RequestCancelled(cancelled)) => {
                match cancelled.stage {
                    CancellationStage::AfterAdmission => {
                        self.clock_detached(execution, "the clock is detached")
                    }
                    CancellationStage::BeforeAdmission => {
                        self.landed(execution);
                        self.clock_detaching(execution, false);
                        self.cancelled(execution, &cancelled);
                    }
                }
            }
            (Asked::DetachClock(execution), ReplyBody::RequestRejected(rejected)) => {
                self.landed(execution);
                self.clock_detaching(execution, false);
                self.rejected(now, execution, &rejected, false);
            }
            (Asked::AttachClock(execution), ReplyBody::RequestRejected(rejected)) => {
                self.landed(execution);
                self.rejected(now, execution, &rejected, false);
            }
            (Asked::AttachClock(execution), ReplyBody::RequestCancelled(cancelled)) => {
                self.landed(execution);
                self.cancelled(execution, &cancelled);
            }
            (Asked::Reattach(domain), ReplyBody::DomainClockAttachOutcome(reply)) => {
                match reply.disposition {
                    DomainClockAttachDisposition::DomainClockAttached(attached) => {
                        if *attached.domain != *domain {
                            return Err(Violation::new(
                                "K-5",
                                "the clock of another domain was attached",
                            ));
                        }
                        self.clocks.reattached(&domain, conn, attached.clock);
                    }
                    DomainClockAttachDisposition::DomainClockAlreadyAttached(_) => {
                        self.clocks.already_attached(&domain, conn)
                    }
                    DomainClockAttachDisposition::DomainNotFound(_) => {
                        self.clocks.not_found(&domain, conn);
                    }
                    DomainClockAttachDisposition::RequestFailed => {
                        self.clocks
                            .reattach_refused(&domain, conn, now.mono, &mut self.jitter);
                    }
                }
            }
            (
                Asked::Reattach(domain),
                ReplyBody::RequestRejected(_) | ReplyBody::RequestCancelled(_),
            ) => {
                self.clocks
                    .reattach_refused(&domain, conn, now.mono, &mut self.jitter);
            }
            (Asked::AttachTransaction, body) => self.attach_reply(now, conn, body)?,
            (asked, body) => self.endpoint_reply(now, wire, asked, body)?,
        }
        Ok(())
    }
}
