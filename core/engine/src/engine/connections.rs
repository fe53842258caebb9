//! Reaching servers, moving to the leader, and losing sessions (D-1 to D-6, T-5, T-6, F-8).
//!
//! Owns how connections come and go. What was in flight on one is told to those who asked.

use super::*;

impl Engine {
    pub(super) fn send(
        &mut self,
        now: Now,
        conn: ConnId,
        asked: Asked,
        request: ClientRequest,
    ) -> Result<(), Unsent> {
        let Some(exchange) = self.exchanges.get_mut(&conn) else {
            return Err(Unsent::Full);
        };
        let (_, frame) = exchange.register(asked, request, now.mono)?;
        self.outputs.push_back(Output::Send { conn, frame });
        Ok(())
    }

    pub(super) fn cancel_request(&mut self, now: Now, conn: ConnId, asked: Asked) {
        let target = self
            .exchanges
            .get(&conn)
            .and_then(|exchange| exchange.asks(&asked));
        if let Some(target_request_id) = target {
            // Without room the request ends by itself; cancelling is a courtesy (C-9, C-10).
            let _ = self.send(
                now,
                conn,
                Asked::Cancel,
                ClientRequest::CancelRequest(CancelRequest { target_request_id }),
            );
        }
    }

    pub(super) fn begin_attempt(&mut self, now: Now, origin: Origin) {
        self.attempted_at = now.mono;
        let conn = ConnId(self.next_conn);
        self.next_conn = self.next_conn.saturating_add(1);
        self.attempt = Some(Attempt {
            conn,
            origin: origin.clone(),
            deadline: now.mono.saturating_add(CONNECTION),
        });
        self.outputs.push_back(Output::Open { conn, origin });
    }

    pub(super) fn attempt_failed(&mut self, now: Now, cause: Cause, reset: bool) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        if reset {
            self.outputs.push_back(Output::Reset { conn: attempt.conn });
        }
        let text = format!("{}: {}", attempt.origin, describe(&cause));
        if let Cause::Status {
            code: UNAUTHENTICATED,
            ..
        } = cause
        {
            self.refused_credentials(&text);
            return;
        }
        if let Some(connect) = &mut self.connect {
            connect.again |= matches!(
                cause,
                Cause::Status {
                    code: UNAVAILABLE,
                    ..
                }
            );
            connect.causes.push(text);
            if !self.candidates.is_empty() {
                return;
            }
            if connect.again {
                connect.again = false;
                connect.causes.clear();
                self.candidates = self.reach.seeds();
                let wait = connect.backoff.next(RETRY, &mut self.jitter);
                self.reconnect_at = now.mono.saturating_add(wait);
                return;
            }
            let message = format!("no session could be opened: {}", connect.causes.join("; "));
            let call = connect.call;
            self.connect = None;
            self.finish(call, Err(Error::new(ErrorKind::Connect, message)));
            self.end("the session was never opened", ErrorKind::Closed);
            return;
        }
        let kind = if matches!(cause, Cause::Violation(_)) {
            ErrorKind::Protocol
        } else {
            ErrorKind::Connect
        };
        for run in &self.runs {
            if let Some(held) = self.executions.get_mut(&run.execution) {
                held.cause = Some((kind, text.clone()));
            }
        }
        for suggest in self.suggests.values_mut() {
            suggest.cause = Some((kind, text.clone()));
        }
        if self.current.is_some() {
            // A redirect led nowhere: ask again where the session is now.
            if let Some(execution) = self.runs.front().map(|run| run.execution) {
                self.back_off(now, execution);
            }
        } else if self.candidates.is_empty() {
            let wait = self.longer_wait();
            self.reconnect_at = now.mono.saturating_add(wait);
        }
    }

    /// The wait after one more failure to have a session: longer when no call waits for one.
    fn longer_wait(&mut self) -> u64 {
        let growth = if self.any_call_waits() {
            RETRY
        } else {
            BACKGROUND
        };
        self.reconnect_backoff.next(growth, &mut self.jitter)
    }

    /// The server will not have these credentials, so nothing is tried again (T-5).
    pub(super) fn refused_credentials(&mut self, text: &str) {
        let refused =
            "the credentials were refused; open a new session with a valid user name and password";
        if let Some(connect) = self.connect.take() {
            let message = format!("no session could be opened: {refused} ({text})");
            self.finish(connect.call, Err(Error::new(ErrorKind::Connect, message)));
        }
        for execution in self
            .runs
            .iter()
            .map(|run| run.execution)
            .collect::<Vec<_>>()
        {
            let error = self.unknown_error(
                execution,
                ErrorKind::Connect,
                &format!("{refused} ({text})"),
            );
            self.fail_runs_of(execution, &error);
        }
        self.end(
            &format!("the session is over: {refused} ({text})"),
            ErrorKind::Connect,
        );
    }

    /// The server spoke first on a new connection: it is a session now.
    pub(super) fn opened(&mut self, now: Now) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        let moved = self.current.take();
        if let Some(old) = moved {
            self.retire(old);
        }
        self.reach.used(&attempt.origin);
        self.exchanges.insert(
            attempt.conn,
            Exchange::new(attempt.conn, attempt.origin, now.mono),
        );
        self.current = Some(attempt.conn);
        self.clocks.exchange_opened();
        self.candidates.clear();
        if let Some(connect) = self.connect.take() {
            self.finish(connect.call, Ok(Done::Connected));
        }
    }

    /// An exchange that another one took over from finishes what it was asked and ends.
    pub(super) fn retire(&mut self, conn: ConnId) {
        self.transaction_detached(conn, None);
        self.subs.exchange_lost("the session moved to the leader");
        let asked: Vec<Asked> = self
            .exchanges
            .get(&conn)
            .map(|exchange| exchange.in_flight().collect())
            .unwrap_or_default();
        for asked in asked {
            match asked {
                // What it opened or deleted ends with it.
                Asked::Subscribe(execution) => self.landed(execution),
                Asked::Unsubscribe(execution, sub) => self.deleted(execution, sub),
                _ => {}
            }
        }
        if let Some(exchange) = self.exchanges.get_mut(&conn) {
            exchange.keep_only(|asked| {
                !matches!(
                    asked,
                    Asked::Subscribe(_)
                        | Asked::Unsubscribe(..)
                        | Asked::Reopen(_)
                        | Asked::Drop(_)
                        | Asked::AttachTransaction
                )
            });
        }
    }

    /// Ends the exchanges that were left, once nothing is asked of them and nothing is attached to them.
    pub(super) fn close_retired(&mut self) {
        let done: Vec<ConnId> = self
            .exchanges
            .values()
            .filter(|exchange| {
                let conn = exchange.conn;
                self.current != Some(conn)
                    && exchange.idle()
                    && !self.clocks.held_by(conn)
                    && !self.endpoints.any_on(conn)
            })
            .map(|exchange| exchange.conn)
            .collect();
        for conn in done {
            self.exchanges.remove(&conn);
            self.outputs.push_back(Output::Reset { conn });
        }
    }

    /// An exchange is over: every request on it ends without a reply (D-6, F-8).
    pub(super) fn lose(&mut self, now: Now, conn: ConnId, cause: Cause, reset: bool) {
        // The server judged a frame malformed or oversized: nothing that was in flight is sent again (T-6). What is kept open is
        // told to have been refused (S-7, K-5).
        let condemned = matches!(
            cause,
            Cause::Status {
                code: OUT_OF_RANGE | INTERNAL,
                ..
            }
        );
        if condemned {
            self.unanswered_restorations(now, conn);
        }
        let Some(exchange) = self.exchanges.remove(&conn) else {
            return;
        };
        if reset {
            self.outputs.push_back(Output::Reset { conn });
        }
        let text = format!("{}: {}", exchange.origin, describe(&cause));
        let kind = if matches!(cause, Cause::Violation(_)) {
            ErrorKind::Protocol
        } else {
            ErrorKind::Transport
        };
        for asked in exchange.in_flight() {
            match asked {
                Asked::Command(execution)
                | Asked::Domains(execution)
                | Asked::Subscribe(execution)
                | Asked::AttachClock(execution) => {
                    self.landed(execution);
                    if let Some(held) = self.executions.get_mut(&execution) {
                        held.cause = Some((kind, text.clone()));
                        held.doubtful |= matches!(asked, Asked::Command(_));
                    }
                    if condemned {
                        let error = if matches!(asked, Asked::Command(_)) {
                            Error {
                                condemned: true,
                                ..self.unknown_error(execution, ErrorKind::Transport, &text)
                            }
                        } else {
                            let reference = self
                                .executions
                                .get(&execution)
                                .map(|held| Arc::clone(&held.reference));
                            let error = Error::new(ErrorKind::Transport, text.clone());
                            reference
                                .map_or(error.clone(), |reference| error.of_command(&reference))
                        };
                        self.fail_runs_of(execution, &error);
                    }
                    self.forget_if_released(execution);
                }
                Asked::Unsubscribe(execution, sub) => self.deleted(execution, sub),
                Asked::Suggest(call) => {
                    if self.suggests.remove(&call).is_some() {
                        self.finish(
                            call,
                            Err(Error::new(kind, format!("the session was lost: {text}"))),
                        );
                    }
                }
                // No session holds the clock any more (K-1).
                Asked::DetachClock(execution) => {
                    self.clock_detached(execution, "the attachment ended with its session")
                }
                Asked::Reopen(_)
                | Asked::Drop(_)
                | Asked::Cancel
                | Asked::Probe
                | Asked::AttachTransaction => {}
                asked => self.endpoint_unanswered(now, asked, kind, &text),
            }
        }
        self.transaction_detached(conn, condemned.then_some(&text));
        self.clocks.exchange_lost(conn);
        self.endpoints_lost(now, conn, &text);
        if self.current == Some(conn) {
            self.current = None;
            self.subs.exchange_lost(&text);
            self.candidates = self.reach.candidates();
            let spread = self.jitter.up_to(SPREAD);
            let brief = now.mono.saturating_sub(exchange.since) < BRIEF;
            let wait = if brief && !exchange.of_use {
                // It keeps nobody from the servers that come after it.
                let here = self
                    .candidates
                    .iter()
                    .position(|one| *one == exchange.origin);
                self.candidates
                    .rotate_left(here.map_or(0, |here| here.saturating_add(1)));
                self.longer_wait()
            } else {
                self.reconnect_backoff.reset();
                0
            };
            self.reconnect_at = now.mono.saturating_add(spread.max(wait));
        }
        if let Cause::Status {
            code: UNAUTHENTICATED,
            ..
        } = cause
        {
            self.refused_credentials(&text);
        }
    }

    /// No request of this command is in flight any more.
    pub(super) fn landed(&mut self, execution: ExecutionId) {
        if let Some(held) = self.executions.get_mut(&execution) {
            held.flight = None;
        }
    }

    pub(super) fn end(&mut self, why: &str, unsent: ErrorKind) {
        if self.over.is_some() {
            return;
        }
        let error = Error::new(ErrorKind::Closed, why);
        self.over = Some(Over {
            error: error.clone(),
            unsent,
        });
        let attempt = self.attempt.take().map(|attempt| attempt.conn);
        let exchanges = std::mem::take(&mut self.exchanges);
        self.close_every_endpoint(why);
        for conn in attempt.into_iter().chain(exchanges.into_keys()) {
            self.outputs.push_back(Output::Reset { conn });
        }
        self.current = None;
        if let Some(connect) = self.connect.take() {
            self.finish(connect.call, Err(error));
        }
        self.fail_what_waits();
    }

    /// Ends every waiting call of a session that is over.
    pub(super) fn fail_what_waits(&mut self) {
        let Some(Over { error, unsent }) = self.over.clone() else {
            return;
        };
        // What was queued before the end is still to be read.
        self.deliver();
        for run in std::mem::take(&mut self.runs) {
            let known = self
                .executions
                .get(&run.execution)
                .and_then(|held| held.outcome.clone());
            let result = match known {
                Some(outcome) => Ok(Done::Outcome(outcome)),
                None => Err(self.unknown_error(run.execution, unsent, &error.message)),
            };
            self.finish(run.call, result);
        }
        let calls: Vec<CallId> = self
            .readers
            .drain(..)
            .chain(self.clock_readers.drain(..))
            .chain(std::mem::take(&mut self.suggests).into_keys())
            .collect();
        for call in calls {
            self.finish(call, Err(error.clone()));
        }
        self.fail_endpoint_calls(&error);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use nervix_wire::types::{LeaderIsServingNode, LeadershipObserved};
    use nervix_wire::{decode_client, encode_server, Frame};

    use super::*;

    const NOW: Now = Now {
        mono: 1_000_000_000,
        unix_millis: 1_700_000_000_000,
    };

    /// The server of the attempt says that it leads.
    fn greet(engine: &mut Engine) -> ConnId {
        let conn = std::iter::from_fn(|| engine.output())
            .find_map(|output| match output {
                Output::Open { conn, .. } => Some(conn),
                _ => None,
            })
            .unwrap();
        let leadership = Leadership::LeaderIsServingNode(LeaderIsServingNode { node: "n".into() });
        let body = ServerBody::LeadershipObserved(LeadershipObserved { leadership });
        let frame = Frame::copy_from(&encode_server(&ServerMessage { body }).unwrap());
        engine.input(NOW, Input::Frame { conn, frame });
        conn
    }

    fn sent(engine: &mut Engine) -> Vec<(ConnId, u64)> {
        std::iter::from_fn(|| engine.output())
            .filter_map(|output| match output {
                Output::Send { conn, frame } => {
                    let message = decode_client(&Frame::copy_from(&frame)).unwrap();
                    Some((conn, message.request_id))
                }
                _ => None,
            })
            .collect()
    }

    // rule: C-1
    #[test]
    fn a_session_whose_identities_are_used_up_is_replaced() {
        let mut engine = Engine::new(Config {
            seeds: vec![Origin::parse("http://a:1").unwrap()],
            domain: Some("d".into()),
            request_timeout: 10_000_000_000,
            retry_timeout: 40_000_000_000,
            seed: 1,
        });
        engine.call(NOW, CallId(0), Call::Connect);
        let first = greet(&mut engine);
        engine.exchanges.get_mut(&first).unwrap().begin_at(u64::MAX);
        let (execution, _) = engine.prepare(NOW, "CREATE SCHEMA a (b I64);", [7; 10]);
        engine.call(NOW, CallId(1), Call::Execute(execution));
        assert_eq!(
            sent(&mut engine),
            [(first, u64::MAX)],
            "the last one there is"
        );
        let suggest = Call::Suggest {
            input: String::new(),
            cursor: 0,
            page_size: 1,
            continuation: None,
        };
        engine.call(NOW, CallId(2), suggest);
        assert!(matches!(engine.output(), Some(Output::Reset { conn }) if conn == first));
        engine.wake(Now {
            mono: engine.wakeup().unwrap(),
            ..NOW
        });
        let second = greet(&mut engine);
        assert_eq!(
            sent(&mut engine),
            [(second, 1), (second, 2)],
            "from the first one on"
        );
    }
}
