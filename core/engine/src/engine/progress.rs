//! Letting everything go on that can, in the order that the manual requires (D-5), and ending what waited too long (D-4, T-8).
//!
//! Owns the order of work after each event. Each step decides for itself whether it can go on.

use super::*;

impl Engine {
    /// Lets everything go on that can.
    pub(super) fn drive(&mut self, now: Now) {
        self.driven = now.mono;
        if self.over.is_some() {
            self.fail_what_waits();
            return;
        }
        self.expire(now);
        if self.restore(now) && self.open_endpoints(now) {
            self.attach_transaction(now);
        }
        while self.step(now) {}
        self.send_suggests(now);
        self.drive_endpoints(now);
        self.probe(now);
        self.replace_spent(now);
        self.deliver();
        self.close_retired();
        self.reach_out(now);
    }

    pub(super) fn expire(&mut self, now: Now) {
        if self
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.deadline <= now.mono)
        {
            let cause =
                Cause::Unreachable("the server did not say who leads within 10 s".to_owned());
            self.attempt_failed(now, cause, true);
        }
        if let Some(connect) = self.connect.take_if(|connect| connect.deadline <= now.mono) {
            let pending = self.attempt.as_ref();
            let pending = pending.map(|attempt| format!("{}: no answer yet", attempt.origin));
            let causes: Vec<String> = connect.causes.into_iter().chain(pending).collect();
            let message = format!("no session could be opened in time: {}", causes.join("; "));
            self.finish(connect.call, Err(Error::new(ErrorKind::Connect, message)));
            self.end("the session was never opened", ErrorKind::Closed);
            return;
        }
        let timeout = self.config.request_timeout;
        let silent: Vec<ConnId> = self
            .exchanges
            .values()
            .filter(|exchange| {
                exchange
                    .oldest()
                    .is_some_and(|sent| sent.saturating_add(timeout) <= now.mono)
            })
            .map(|exchange| exchange.conn)
            .collect();
        for conn in silent {
            self.unanswered_restorations(now, conn);
            let cause =
                Cause::Lost("the server did not answer within the request timeout".to_owned());
            self.lose(now, conn, cause, true);
        }
        let late: Vec<(ExecutionId, CallId)> = self
            .runs
            .iter()
            .filter(|run| run.deadline <= now.mono)
            .map(|run| (run.execution, run.call))
            .collect();
        for (execution, call) in late {
            let held = self.executions.get(&execution);
            // What came in time, or together with the end of the time, is the answer.
            if let Some(outcome) = held.and_then(|held| held.outcome.clone()) {
                self.runs.retain(|run| run.call != call);
                self.finish(call, Ok(Done::Outcome(outcome)));
                self.forget_if_released(execution);
                continue;
            }
            let cause = held.and_then(|held| held.cause.clone());
            let (kind, text) = if held.is_some_and(|held| held.flight.is_some()) {
                (
                    ErrorKind::Connect,
                    "no answer came within the retry timeout",
                )
            } else if self.current.is_some() {
                (
                    ErrorKind::Transport,
                    "its turn behind earlier requests of the session did not come within the retry timeout",
                )
            } else {
                (
                    ErrorKind::Connect,
                    "no session was open within the retry timeout",
                )
            };
            let (kind, text) = cause.unwrap_or((kind, text.to_owned()));
            // Its last cause may be one that an execute never ends with by itself.
            let kind = match kind {
                ErrorKind::Connect | ErrorKind::Protocol => kind,
                _ => ErrorKind::Transport,
            };
            let error = self.unknown_error(execution, kind, &text);
            self.runs.retain(|run| run.call != call);
            self.finish(call, Err(error));
            self.forget_if_released(execution);
        }
        let late: Vec<CallId> = self
            .suggests
            .iter()
            .filter(|(_, suggest)| suggest.deadline <= now.mono)
            .map(|(call, _)| *call)
            .collect();
        for call in late {
            if let Some(suggest) = self.suggests.remove(&call) {
                let cause = suggest.cause;
                let (kind, text) = cause.unwrap_or((
                    ErrorKind::Connect,
                    "no answer came within the retry timeout".to_owned(),
                ));
                self.finish(
                    call,
                    Err(Error::new(kind, format!("no completions arrived: {text}"))),
                );
                if let Some(conn) = suggest.flight {
                    self.cancel_request(now, conn, Asked::Suggest(call));
                }
            }
        }
        self.expire_endpoint_calls(now);
    }

    /// What was to be kept open and got no answer counts as refused, and is asked for again after growing waits (S-7, K-5).
    pub(super) fn unanswered_restorations(&mut self, now: Now, conn: ConnId) {
        let Some(exchange) = self.exchanges.get(&conn) else {
            return;
        };
        for asked in exchange.in_flight().collect::<Vec<_>>() {
            match asked {
                Asked::Reopen(sub) => {
                    let message = "the server left the request unanswered".to_owned();
                    self.subs
                        .reopening_refused(sub, now.mono, &mut self.jitter, message);
                }
                Asked::Reattach(domain) => {
                    self.clocks
                        .reattach_refused(&domain, conn, now.mono, &mut self.jitter)
                }
                Asked::Restore(endpoint, _) => self.restoration_refused(now, endpoint),
                _ => {}
            }
        }
    }

    /// Opens kept subscriptions again, and deletes those whose reader was too slow, ahead of any command (D-5).
    pub(super) fn restore(&mut self, now: Now) -> bool {
        let Some(conn) = self.current else {
            return false;
        };
        if self.forbids_restoring(conn) {
            return true;
        }
        for domain in self.clocks.due(now.mono, conn) {
            let request = AttachDomainClockRequest {
                domain: domain.to_string(),
            };
            let request = ClientRequest::AttachDomainClockRequest(request);
            if self
                .send(now, conn, Asked::Reattach(Arc::clone(&domain)), request)
                .is_err()
            {
                return false;
            }
            self.clocks.attaching(&domain, conn);
        }
        for sub in self.subs.due(now.mono) {
            let Some(held) = self
                .subs
                .get(sub)
                .filter(|held| !self.is_opening(&held.name))
            else {
                continue;
            };
            let request = ClientRequest::SubscribeRequest(SubscribeRequest {
                domain: held.domain.clone(),
                statement: held.statement.to_string(),
                subscription_type: SubscriptionType::Row,
            });
            if self.send(now, conn, Asked::Reopen(sub), request).is_err() {
                return false;
            }
            self.subs.move_to(sub, Place::Reopening);
        }
        for sub in self.subs.to_drop(now.mono) {
            // Behind the opening of a new one it would delete that.
            let Some(held) = self
                .subs
                .get(sub)
                .filter(|held| !self.is_opening(&held.name) && !self.is_deleting(sub))
            else {
                continue;
            };
            let request = ClientRequest::UnsubscribeRequest(UnsubscribeRequest {
                subscription: held.name.to_string(),
            });
            if self.send(now, conn, Asked::Drop(sub), request).is_err() {
                return false;
            }
            self.subs.move_to(sub, Place::Dropping);
        }
        true
    }

    pub(super) fn send_suggests(&mut self, now: Now) {
        let Some(conn) = self.current else { return };
        let ready: Vec<CallId> = self
            .suggests
            .iter()
            .filter(|(_, suggest)| suggest.flight.is_none() && suggest.due <= now.mono)
            .map(|(call, _)| *call)
            .collect();
        for call in ready {
            let Some(suggest) = self.suggests.get(&call) else {
                continue;
            };
            let request = ClientRequest::SuggestRequest(suggest.request.clone());
            match self.send(now, conn, Asked::Suggest(call), request) {
                Ok(()) => {
                    if let Some(suggest) = self.suggests.get_mut(&call) {
                        suggest.flight = Some(conn);
                    }
                }
                Err(Unsent::Full) => return,
                Err(Unsent::Refused(refusal)) => {
                    self.suggests.remove(&call);
                    let message = format!("the text cannot be sent: {refusal}");
                    self.finish(call, Err(Error::new(ErrorKind::InvalidArgument, message)));
                }
            }
        }
    }

    /// Whether something waits for what a server sends unasked.
    pub(super) fn awaits_unsolicited(&self) -> bool {
        !self.readers.is_empty()
            || !self.clock_readers.is_empty()
            || self.subs.any_kept()
            || self.clocks.any()
    }

    /// Whether something is open or waits on this exchange that no request timeout bounds. An endpoint counts while it is attached:
    /// what is asked of one on a connection that is gone is lost, or not known, where an interrupted one would be restored first.
    pub(super) fn waits_on(&self, conn: ConnId) -> bool {
        (self.current == Some(conn) && self.awaits_unsolicited())
            || self.endpoints.any_on(conn)
            || self.exchanges.get(&conn).is_some_and(|exchange| {
                // A batch outlives the attachment that it was sent on.
                exchange
                    .in_flight()
                    .any(|asked| matches!(asked, Asked::Submit(..)))
            })
    }

    /// Neither side sends keepalives, so an exchange that is silent for a request timeout is asked for something (T-8).
    pub(super) fn probe(&mut self, now: Now) {
        let silent: Vec<ConnId> = self
            .exchanges
            .values()
            .filter(|exchange| {
                exchange.heard.saturating_add(self.config.request_timeout) <= now.mono
            })
            .filter(|exchange| {
                self.waits_on(exchange.conn) && exchange.asks(&Asked::Probe).is_none()
            })
            .map(|exchange| exchange.conn)
            .collect();
        for conn in silent {
            // Without room, what is in flight and bounded tells as well.
            let _ = self.send(now, conn, Asked::Probe, ClientRequest::ListDomainsRequest);
        }
    }

    /// Ends the exchanges whose identities are used up, so that what waits goes on with another one (C-1).
    fn replace_spent(&mut self, now: Now) {
        let spent: Vec<ConnId> = self
            .exchanges
            .values()
            .filter(|exchange| exchange.is_spent())
            .map(|exchange| exchange.conn)
            .collect();
        for conn in spent {
            let cause = Cause::Lost("every request identity of the session was used".to_owned());
            self.lose(now, conn, cause, true);
        }
    }

    pub(super) fn deliver(&mut self) {
        while let Some(reader) = self.readers.front().copied() {
            let Some(event) = self.subs.take() else { break };
            self.readers.pop_front();
            self.finish(reader, Ok(Done::Event(event)));
        }
        while let Some(reader) = self.clock_readers.front().copied() {
            let Some(event) = self.clocks.take() else {
                break;
            };
            self.clock_readers.pop_front();
            self.finish(reader, Ok(Done::ClockEvent(event)));
        }
    }

    /// Whether a call of the host waits for what only a session can bring.
    pub(super) fn any_call_waits(&self) -> bool {
        !self.runs.is_empty()
            || !self.suggests.is_empty()
            || !self.readers.is_empty()
            || !self.clock_readers.is_empty()
            || self.endpoints.want_session()
    }

    pub(super) fn wants_session(&self) -> bool {
        self.connect.is_some() || self.any_call_waits() || self.awaits_unsolicited()
    }

    pub(super) fn reach_out(&mut self, now: Now) {
        if self.current.is_some() || self.attempt.is_some() || self.over.is_some() {
            return;
        }
        if !self.wants_session() || self.reconnect_at > now.mono {
            return;
        }
        if self.candidates.is_empty() {
            self.candidates = self.reach.candidates();
        }
        if let Some(origin) = self.candidates.pop_front() {
            self.begin_attempt(now, origin);
        }
    }
}
