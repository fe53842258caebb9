//! Commands: what is sent for them, and what their dispositions require (E-1 to E-8, L-1 to L-3).
//!
//! Owns the one command at work. Whether a session is there is decided elsewhere.

use super::*;

impl Engine {
    pub(super) fn command_reply(
        &mut self,
        now: Now,
        conn: ConnId,
        execution: ExecutionId,
        body: ReplyBody,
    ) -> Result<(), Violation> {
        match body {
            ReplyBody::CommandOutcome(reply) => {
                let reference = self
                    .executions
                    .get(&execution)
                    .map(|held| Arc::clone(&held.reference));
                if reference.is_some_and(|reference| *reference != *reply.execution_reference) {
                    return Err(Violation::new(
                        "E-5",
                        "the outcome of another execution reference",
                    ));
                }
                self.check_transaction(execution, &reply)?;
                self.landed(execution);
                self.disposed(now, conn, execution, reply);
            }
            ReplyBody::RequestRejected(rejected) => {
                self.landed(execution);
                self.rejected(now, execution, &rejected, true);
            }
            ReplyBody::RequestCancelled(cancelled) => {
                self.landed(execution);
                self.cancelled(execution, &cancelled);
            }
            _ => {
                return Err(Violation::new(
                    "C-4",
                    "a reply that does not answer a command",
                ))
            }
        }
        Ok(())
    }

    /// Acts on a disposition (E-6).
    pub(super) fn disposed(
        &mut self,
        now: Now,
        conn: ConnId,
        execution: ExecutionId,
        reply: CommandOutcome,
    ) {
        let act = match self
            .executions
            .get(&execution)
            .and_then(|held| held.route.as_ref())
        {
            Some(Route::Command(act)) => *act,
            _ => Act::Change,
        };
        let completed = matches!(reply.disposition, CommandDisposition::CommandCompleted(_));
        self.transaction_outcome(conn, execution, act, &reply, completed);
        let known = !matches!(
            reply.disposition,
            CommandDisposition::OutcomeUnknown(_) | CommandDisposition::LeaderRedirect(_)
        );
        if known && act == Act::Begin && self.begun_on == Some(conn) {
            self.begun_on = None;
        }
        match &reply.disposition {
            // It is attached again, and the command repeated under its reference and position.
            CommandDisposition::TransactionDetached(detached)
                if self.detached_by_server(now, &detached.transaction_id) =>
            {
                let text = "the transaction is not attached to this session".to_owned();
                if let Some(held) = self.executions.get_mut(&execution) {
                    held.cause = Some((ErrorKind::Transport, text));
                }
            }
            // Whoever took it over has it; it is never taken back by itself.
            CommandDisposition::TransactionTakenOver(taken) => {
                let id = taken.transaction_id.clone();
                self.lose_transaction(&id, "another session took it over");
                self.settle(execution, of_command(reply));
            }
            CommandDisposition::LeaderRedirect(redirect) => {
                let target = match &redirect.leader {
                    Some(leader) => self.learn(leader),
                    None => Err("the server knows no leader".to_owned()),
                };
                let why = match &target {
                    Ok(origin) => format!("the server says that {origin} leads"),
                    Err(why) => why.clone(),
                };
                if let Some(held) = self.executions.get_mut(&execution) {
                    let text = format!("no leader took the command: {why}");
                    held.cause = Some((ErrorKind::Transport, text));
                }
                self.redirected(now, conn, execution, target.ok());
            }
            CommandDisposition::OutcomeUnknown(_) => {
                if let Some(held) = self.executions.get_mut(&execution) {
                    let text = format!("the server does not know it yet: {}", reply.message);
                    held.cause = Some((ErrorKind::Uncertain, text));
                    held.doubtful = true;
                }
                self.back_off(now, execution);
            }
            // It is of a transaction that the session was left without. Told, and not kept: what was never admitted may be asked
            // about again, and is then what the server says of it (E-3).
            CommandDisposition::TransactionDetached(_) => {
                let outcome = Arc::new(of_command(reply));
                for call in self.take_runs_of(execution) {
                    self.finish(call, Ok(Done::Outcome(Arc::clone(&outcome))));
                }
                self.forget_if_released(execution);
            }
            _ => {
                let mut outcome = of_command(reply);
                let of = self
                    .executions
                    .get(&execution)
                    .and_then(|held| held.transaction.clone());
                if of.is_some() && outcome.transaction.is_none() {
                    outcome.transaction = self.transaction_ended(of.as_deref());
                }
                self.settle(execution, outcome);
            }
        }
    }

    /// Follows a redirect, or waits when it names no leader that can be followed (D-1, D-2).
    pub(super) fn redirected(
        &mut self,
        now: Now,
        conn: ConnId,
        execution: ExecutionId,
        target: Option<Origin>,
    ) {
        let at_work = self
            .runs
            .front()
            .is_some_and(|run| run.execution == execution);
        if !at_work || self.current != Some(conn) {
            return;
        }
        let here = self
            .exchanges
            .get(&conn)
            .map(|exchange| exchange.origin.clone());
        let nowhere = target.is_none() || target == here;
        let redirects = self.runs.front_mut().map_or(0, |run| {
            run.redirects = run.redirects.saturating_add(1);
            run.leaderless = nowhere;
            run.redirects
        });
        // Servers that disagree about the leader would send the command around without end.
        if redirects > 1 || nowhere {
            self.back_off(now, execution);
        }
        match target {
            Some(origin) if Some(&origin) != here.as_ref() && self.attempt.is_none() => {
                self.begin_attempt(now, origin)
            }
            _ => {}
        }
    }

    pub(super) fn rejected(
        &mut self,
        now: Now,
        execution: ExecutionId,
        rejected: &RequestRejected,
        command: bool,
    ) {
        let text = describe_rejection(rejected);
        if is_busy(rejected) {
            if let Some(held) = self.executions.get_mut(&execution) {
                held.cause = Some((ErrorKind::Rejected, text));
            }
            self.back_off(now, execution);
            return;
        }
        let uncertain = command && rejected.rejection == RequestRejection::ReplyTooLarge;
        let Some(held) = self.executions.get(&execution) else {
            return;
        };
        let error = if uncertain || held.doubtful {
            self.unknown_error(execution, ErrorKind::Uncertain, &text)
        } else {
            Error::new(ErrorKind::Rejected, text).of_command(&held.reference)
        };
        self.fail_runs_of(execution, &error);
    }

    pub(super) fn cancelled(&mut self, execution: ExecutionId, cancelled: &RequestCancelled) {
        // The call that it cancels is over; the one that joined its request asks again, under the same reference.
        if let Some(run) = self.runs.iter_mut().find(|run| run.execution == execution) {
            if std::mem::take(&mut run.joined) {
                return;
            }
        }
        let Some(held) = self.executions.get(&execution) else {
            return;
        };
        let effect = match cancelled.stage {
            CancellationStage::BeforeAdmission => "this attempt had no effect",
            CancellationStage::AfterAdmission => "its effect continues",
        };
        let message = format!(
            "the server cancelled the request, and {effect}; execute the same execution again to learn the outcome \
             (reference {})",
            held.reference
        );
        let error = Error::new(ErrorKind::Cancelled, message).of_command(&held.reference);
        self.fail_runs_of(execution, &error);
    }

    pub(super) fn deleted(&mut self, execution: ExecutionId, sub: SubId) {
        self.landed(execution);
        self.subs.delete(sub);
        self.settle(
            execution,
            outcome(
                Disposition::Completed,
                "the subscription ended with its session",
            ),
        );
    }

    /// A clock is not followed any more, and the command that asked for it is done.
    pub(super) fn clock_detached(&mut self, execution: ExecutionId, message: &str) {
        self.landed(execution);
        let domain = self
            .executions
            .get(&execution)
            .and_then(|held| held.domain.clone());
        if let Some(domain) = domain {
            self.clocks.detached(&domain);
        }
        self.settle(execution, outcome(Disposition::Completed, message));
    }

    pub(super) fn clock_detaching(&mut self, execution: ExecutionId, detaching: bool) {
        if let Some(domain) = self
            .executions
            .get(&execution)
            .and_then(|held| held.domain.as_deref())
        {
            self.clocks.detaching(domain, detaching);
        }
    }

    /// Takes the command at work one step further; true when the next one may go on.
    pub(super) fn step(&mut self, now: Now) -> bool {
        let Some(run) = self.runs.front() else {
            return false;
        };
        let (call, execution, due, outside) = (run.call, run.execution, run.due, run.outside);
        let Some(held) = self.executions.get(&execution) else {
            self.runs.pop_front();
            let message = "this command was not prepared by this session";
            self.finish(call, Err(Error::new(ErrorKind::InvalidArgument, message)));
            return true;
        };
        if let Some(outcome) = held.outcome.clone() {
            self.runs.pop_front();
            self.finish(call, Ok(Done::Outcome(outcome)));
            self.forget_if_released(execution);
            return true;
        }
        if held.flight.is_some() || due > now.mono {
            return false;
        }
        let (reference, domain, query) = (
            Arc::clone(&held.reference),
            held.domain.clone(),
            Arc::clone(&held.query),
        );
        // Fixed when it was first written, and the same ever after (E-2); what no command carries is decided by what is held now.
        let written = match &held.route {
            Some(route @ Route::Command(_)) if held.written => Some((
                route.clone(),
                held.transaction.clone(),
                held.position,
                held.preview.clone(),
            )),
            _ => None,
        };
        let (wanted_position, wanted_preview) = (held.position, held.preview.clone());
        let bound = held.bound.clone();
        let recovered = held.recovered;
        if self.awaits_transaction_command(execution) {
            return false;
        }
        let (route, transaction, position, preview) = match written {
            Some(written) => {
                if let (Some(why), false) = (
                    self.belongs_elsewhere(written.1.as_deref()),
                    matches!(written.0, Route::Command(Act::Read)),
                ) {
                    let error = self.unknown_error(execution, ErrorKind::Uncertain, &why);
                    self.fail_runs_of(execution, &error);
                    return true;
                }
                written
            }
            None => {
                // While the transaction is on its way back, what a command belongs to is not known.
                if self.waits_for_attach(None) {
                    return false;
                }
                // A position is one in a transaction, whether it is still there or not.
                let of_transaction = recovered && wanted_position.is_some();
                let route = route(&query, of_transaction || self.holds_transaction());
                if let (true, Some(id), false) = (outside, self.held_id(), is_local(&route)) {
                    let message = format!(
                        "nothing was sent, as the session holds transaction {id}, which the command is no part of: COMMIT or REVERT \
                         that first"
                    );
                    let error = Error {
                        held: Some(id.to_string()),
                        ..Error::new(ErrorKind::Rejected, message).of_command(&reference)
                    };
                    self.runs.pop_front();
                    self.finish(call, Err(error.unsent()));
                    self.forget_if_released(execution);
                    return true;
                }
                if let (Some(why), false) = (
                    bound.and_then(|bound| self.is_without(&bound)),
                    is_local(&route),
                ) {
                    self.settle(execution, local(Disposition::Failed, why));
                    return true;
                }
                if let (Some(lost), false) = (self.transaction_lost(), is_local(&route)) {
                    let refused = Outcome {
                        transaction: self.transaction_ended(None),
                        ..local(Disposition::Failed, lost)
                    };
                    match &route {
                        Route::Command(Act::Begin) => self.leave_lost_transaction(),
                        Route::Command(Act::Revert) => {
                            self.leave_lost_transaction();
                            self.settle(execution, refused);
                            return true;
                        }
                        _ => {
                            self.settle(execution, refused);
                            return true;
                        }
                    }
                }
                if route == Route::Command(Act::Begin) && domain.is_none() {
                    let message = "a transaction begins in a domain, and none is selected: run USE <domain>; first, or connect \
                                   with a domain";
                    self.settle(execution, local(Disposition::Failed, message));
                    return true;
                }
                // A BEGIN in a transaction is one of its requests, too: what it does there is the server's to say, and repeated it
                // must not go elsewhere.
                let held = match &route {
                    Route::Command(Act::Begin | Act::Commit | Act::Revert | Act::Change) => {
                        self.transaction_position()
                    }
                    _ => None,
                };
                if let (Some(_), Some(why)) = (&held, self.of_another_domain(domain.as_deref())) {
                    self.settle(execution, local(Disposition::Failed, why));
                    return true;
                }
                // It was first sent as part of another transaction, or of none, unless that is known (E-2).
                if let (Some(_), true) = (&held, recovered) {
                    let why = self.is_not_of(&reference, wanted_position, wanted_preview.as_ref());
                    if let Some(why) = why {
                        let error = self.unknown_error(execution, ErrorKind::Uncertain, &why);
                        self.fail_runs_of(execution, &error);
                        return true;
                    }
                }
                match held {
                    Some((transaction, position, preview)) => {
                        // With statements before it, it finds more than that preview shows.
                        let fitting = !recovered
                            && route == Route::Command(Act::Commit)
                            && is_one_statement(&query);
                        let preview = wanted_preview.or(preview.filter(|_| fitting));
                        // One that it was prepared with is that of its first sending.
                        let position = wanted_position.unwrap_or(position);
                        (route, Some(transaction), Some(position), preview)
                    }
                    None => (route, None, wanted_position, wanted_preview),
                }
            }
        };
        if transaction.is_some() && self.waits_for_attach(transaction.as_deref()) {
            return false;
        }
        let (asked, request) = match route.clone() {
            Route::Refused {
                message,
                diagnostics,
            } => {
                self.settle(
                    execution,
                    Outcome {
                        diagnostics,
                        ..local(Disposition::Failed, message)
                    },
                );
                return true;
            }
            Route::Use { domain } => {
                let message = format!("domain {domain} is selected");
                self.domain = Some(domain);
                self.settle(execution, local(Disposition::Completed, message));
                return true;
            }
            Route::Subscribe { .. } => {
                let Some(domain) = domain else {
                    let message =
                        "no domain is selected: run USE <domain>; first, or connect with a domain";
                    self.settle(execution, local(Disposition::Failed, message));
                    return true;
                };
                let request = SubscribeRequest {
                    domain,
                    statement: query.to_string(),
                    subscription_type: SubscriptionType::Row,
                };
                (
                    Asked::Subscribe(execution),
                    ClientRequest::SubscribeRequest(request),
                )
            }
            Route::Unsubscribe { name } => match self.unsubscribe_step(execution, &name) {
                Step::Wait => return false,
                Step::Settled => return true,
                Step::Send(sub) => (
                    Asked::Unsubscribe(execution, sub),
                    ClientRequest::UnsubscribeRequest(UnsubscribeRequest { subscription: name }),
                ),
            },
            Route::AttachClock | Route::DetachClock => {
                let Some(domain) = domain else {
                    let message =
                        "no domain is selected: run USE <domain>; first, or connect with a domain";
                    self.settle(execution, local(Disposition::Failed, message));
                    return true;
                };
                if self.awaits_clock_command(execution, &domain, &route) {
                    return false;
                }
                if route == Route::AttachClock {
                    let request = AttachDomainClockRequest { domain };
                    (
                        Asked::AttachClock(execution),
                        ClientRequest::AttachDomainClockRequest(request),
                    )
                } else {
                    let request = DetachDomainClockRequest { domain };
                    (
                        Asked::DetachClock(execution),
                        ClientRequest::DetachDomainClockRequest(request),
                    )
                }
            }
            Route::ListDomains => (Asked::Domains(execution), ClientRequest::ListDomainsRequest),
            Route::Command(_) => (
                Asked::Command(execution),
                ClientRequest::CommandRequest(CommandRequest {
                    query: query.to_string(),
                    domain,
                    execution_reference: reference.to_string(),
                    expected_transaction_position: position,
                    expected_preview: preview.clone(),
                }),
            ),
        };
        // A move to the leader is under way for this command, or nothing is open.
        let Some(conn) = self.current else {
            return false;
        };
        if self.attempt.is_some() {
            return false;
        }
        let detaching = matches!(asked, Asked::DetachClock(_));
        let begins = route == Route::Command(Act::Begin);
        match self.send(now, conn, asked, request) {
            Ok(()) => {
                if detaching {
                    self.clock_detaching(execution, true);
                }
                if begins && transaction.is_none() {
                    self.begun_on = Some(conn);
                }
                if let Some(held) = self.executions.get_mut(&execution) {
                    held.route = Some(route);
                    held.transaction = transaction;
                    held.position = position;
                    held.preview = preview.clone();
                    held.sent.get_or_init(|| Sent { position, preview });
                    held.flight = Some(conn);
                    held.written = true;
                }
                false
            }
            Err(Unsent::Full) => false,
            Err(Unsent::Refused(refusal)) => {
                let message = format!("the statement cannot be sent: {refusal}");
                let error = Error::new(ErrorKind::InvalidArgument, message).of_command(&reference);
                self.fail_runs_of(execution, &error);
                true
            }
        }
    }

    /// Whether the answer to another attach or detach of the domain, one that nobody waits for any more, must come first: two on
    /// one session are answered in their order, on two sessions they are not, and an attach would be taken for what a detach
    /// before it ends (K-1).
    fn awaits_clock_command(&self, execution: ExecutionId, domain: &str, route: &Route) -> bool {
        self.executions.iter().any(|(id, other)| {
            let detaches = other.route == Some(Route::DetachClock);
            *id != execution
                && other.flight.is_some()
                && (detaches || other.route == Some(Route::AttachClock))
                && other.domain.as_deref() == Some(domain)
                && (other.flight != self.current || (detaches && *route == Route::AttachClock))
        })
    }

    /// Whether a command that opens a subscription of this name is in flight: whose name it is, its answer tells.
    pub(super) fn is_opening(&self, name: &str) -> bool {
        self.executions.values().any(|held| {
            held.flight.is_some()
                && matches!(&held.route, Some(Route::Subscribe { name: opening }) if opening == name)
        })
    }

    /// Whether a command that deletes this subscription is in flight.
    pub(super) fn is_deleting(&self, sub: SubId) -> bool {
        self.exchanges.values().any(|exchange| {
            exchange
                .in_flight()
                .any(|asked| matches!(asked, Asked::Unsubscribe(_, one) if one == sub))
        })
    }

    /// What deleting a subscription needs now (S-4, S-6, S-7).
    pub(super) fn unsubscribe_step(&mut self, execution: ExecutionId, name: &str) -> Step {
        // An opening of that name whose caller stopped waiting is answered first.
        if self.is_opening(name) {
            return Step::Wait;
        }
        let Some(sub) = self.subs.named(name) else {
            let outcome = if self.subs.delete_ended(name) {
                let message = format!("subscription {name} is deleted; the server had ended it");
                local(Disposition::Completed, message)
            } else {
                let message = format!("this session has no subscription {name}");
                local(Disposition::Failed, message)
            };
            self.settle(execution, outcome);
            return Step::Settled;
        };
        match self.subs.get(sub).map(|sub| sub.place) {
            Some(Place::Live | Place::Overflowed { .. }) => Step::Send(sub),
            Some(Place::Reopening | Place::Dropping) => Step::Wait,
            _ => {
                self.subs.delete(sub);
                let message =
                    format!("subscription {name} is deleted; no session held it any more");
                self.settle(execution, local(Disposition::Completed, message));
                Step::Settled
            }
        }
    }
}

/// What deleting a subscription needs next.
pub(super) enum Step {
    Wait,
    Settled,
    Send(SubId),
}

/// Whether a text is dealt with on this side of the wire, or touches no transaction.
fn is_local(route: &Route) -> bool {
    matches!(
        route,
        Route::Refused { .. } | Route::ListDomains | Route::Command(Act::Read)
    )
}
