//! An engine under hosts that call in any order, connections that come and go, and servers that answer well, badly, late, twice
//! or not at all. Whatever happens: each call ends once, what is sent is a frame of the protocol under an identity of its own, a
//! repeated command is the same, and no server is approached in a way that nobody named.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::Bytes;
use nervix_engine::*;
use nervix_wire::types::*;
use nervix_wire::{decode_client, encode_server, encode_server_reply_parts, Frame};

use crate::common::frames::*;
use crate::{given, samples};

const STATEMENTS: &[&str] = &[
    "SHOW CLUSTER STATUS;",
    "LIST DOMAINS;",
    "CREATE SCHEMA s (a U8);",
    "CREATE SUBSCRIPTION s TO r;",
    "CREATE SUBSCRIPTION t TO r WHERE a > 1 DELIVERY DROPPING;",
    "DELETE SUBSCRIPTION s;",
    "DROP SUBSCRIPTION s;",
    "ATTACH DOMAIN CLOCK;",
    "DETACH DOMAIN CLOCK;",
    "USE d;",
    "USE e;",
    "BEGIN;",
    "COMMIT;",
    "REVERT;",
    "START; STOP;",
    "DESCRIBE TRANSACTION;",
    "SHOW TRANSACTIONS;",
    "ATTACH TRANSACTION 't';",
    "BACKUP TO 'x';",
    "",
];

#[derive(Default)]
struct Connection {
    over: bool,
    reset: bool,
    used: BTreeSet<u64>,
    flights: BTreeMap<u64, ClientRequest>,
}

struct Play {
    engine: Engine,
    now: u64,
    secure: bool,
    named: BTreeSet<String>,
    calls: BTreeMap<CallId, bool>,
    executions: Vec<ExecutionId>,
    prepared: u64,
    endpoints: Vec<EndpointId>,
    deliveries: Vec<Delivery>,
    submissions: Vec<(EndpointId, u64)>,
    subscriptions: Vec<(String, u64, RowSchema)>,
    connections: BTreeMap<ConnId, Connection>,
    commands: HashMap<String, CommandRequest>,
    shut: bool,
}

impl Play {
    fn time(&self) -> Now {
        Now {
            mono: self.now,
            unix_millis: 1_700_000_000_000 + self.now / 1_000_000,
        }
    }

    /// Never the same twice.
    fn entropy(&mut self) -> [u8; 10] {
        self.prepared += 1;
        let mut entropy = [7; 10];
        entropy[..8].copy_from_slice(&self.prepared.to_be_bytes());
        entropy
    }

    /// Takes what the engine puts out, and holds it to what no peer can excuse.
    fn take(&mut self) {
        while let Some(output) = self.engine.output() {
            match output {
                Output::Open { conn, origin } => {
                    let origin = origin.to_string();
                    assert!(self.named.contains(&origin), "nobody named {origin} (D-2)");
                    assert!(
                        !self.secure || origin.starts_with("https:"),
                        "{origin} after https (T-2)"
                    );
                    assert!(!self.shut, "{origin} is opened after the end");
                    let fresh = self.connections.insert(conn, Connection::default());
                    assert!(fresh.is_none(), "{conn:?} opened twice");
                }
                Output::Send { conn, frame } => {
                    let message =
                        decode_client(&Frame::copy_from(&frame)).expect("a frame of the protocol");
                    let on = self
                        .connections
                        .get_mut(&conn)
                        .expect("sent on an opened one");
                    assert!(!on.over, "sent on {conn:?} after its end: {message:?}");
                    assert!(
                        on.used.insert(message.request_id),
                        "{message:?} uses an identity again (C-1)"
                    );
                    match &message.request {
                        ClientRequest::CommandRequest(command) => {
                            let reference = command.execution_reference.clone();
                            let first = self
                                .commands
                                .entry(reference)
                                .or_insert_with(|| command.clone());
                            assert_eq!(first, command, "a repetition that differs (E-2)");
                        }
                        ClientRequest::CancelRequest(cancel) => {
                            let target = cancel.target_request_id;
                            assert!(on.used.contains(&target), "{target} was never sent (C-9)");
                            assert!(
                                !matches!(
                                    on.flights.get(&target),
                                    Some(ClientRequest::SubmitBatchRequest(_))
                                ),
                                "a batch is cancelled (P-7)"
                            );
                        }
                        _ => {}
                    }
                    on.flights.insert(message.request_id, message.request);
                    let counted = on
                        .flights
                        .values()
                        .filter(|flight| !matches!(flight, ClientRequest::SubmitBatchRequest(_)))
                        .count();
                    assert!(counted <= 64, "{counted} requests in flight (C-6)");
                }
                Output::Reset { conn } => {
                    let on = self
                        .connections
                        .get_mut(&conn)
                        .expect("a reset of an opened one");
                    assert!(!on.reset, "{conn:?} reset twice");
                    (on.reset, on.over) = (true, true);
                }
                Output::Done { call, result } => {
                    let waiting = self.calls.get_mut(&call).expect("a call that was made");
                    assert!(std::mem::take(waiting), "{call:?} answered twice");
                    self.done(result);
                }
            }
        }
    }

    fn done(&mut self, result: std::result::Result<Done, Error>) {
        match result {
            Ok(Done::Outcome(outcome)) => {
                if let Some(opened) = &outcome.subscription {
                    let schema = (*opened.schema).clone();
                    self.subscriptions
                        .push((opened.name.to_string(), opened.generation, schema));
                }
            }
            Ok(Done::Endpoint(id, _)) => self.endpoints.push(id),
            Ok(Done::Delivery(delivery)) => self.deliveries.push(delivery),
            Ok(Done::Submitted(submission)) => {
                if let Some(endpoint) = self.endpoints.last() {
                    self.submissions.push((*endpoint, submission));
                }
            }
            Err(error) => assert!(!error.message.is_empty() && !error.message.contains('\n')),
            Ok(_) => {}
        }
    }

    fn call(&mut self, what: Call) {
        let call = CallId(self.calls.len() as u64 + 1);
        self.calls.insert(call, true);
        self.engine.call(self.time(), call, what);
        self.take();
    }

    fn endpoint(&self, u: &mut Unstructured<'_>) -> Result<EndpointId> {
        if self.endpoints.is_empty() || u.ratio(1, 30)? {
            return Ok(EndpointId(u.int_in_range(0..=5)?));
        }
        Ok(*u.choose(&self.endpoints)?)
    }

    fn host(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let now = self.time();
        match u.int_in_range(0..=17)? {
            0 | 1 => {
                let text = if u.ratio(1, 20)? {
                    <&str>::arbitrary(u)?
                } else {
                    u.choose(STATEMENTS)?
                };
                let entropy = self.entropy();
                let (execution, _) = self.engine.prepare(now, text, entropy);
                self.executions.push(execution);
                self.call(Call::Execute(execution));
            }
            2 => {
                let text = *u.choose(STATEMENTS)?;
                let given = Given {
                    domain: u.ratio(1, 4)?.then(|| "d".to_owned()),
                    reference: None,
                    position: u.arbitrary()?,
                    transaction: u.ratio(1, 6)?.then(|| "t".to_owned()),
                    preview: u.ratio(1, 3)?.then(|| preview("t", 1, 2)),
                };
                // A host repeats a command as it was, with all that would be filled in now if it were left out.
                let known = self.commands.values().filter(|sent| {
                    let commits = sent.query.starts_with("COMMIT");
                    let position = sent.expected_transaction_position;
                    sent.domain.is_some()
                        && position.is_some()
                        && sent.expected_preview.is_some() == commits
                });
                let again = known.min_by_key(|sent| &sent.execution_reference).cloned();
                let (text, given) = match again {
                    Some(sent) if u.ratio(1, 2)? => (
                        sent.query,
                        Given {
                            domain: sent.domain,
                            reference: Some(sent.execution_reference),
                            position: sent.expected_transaction_position,
                            preview: sent.expected_preview,
                            transaction: None,
                        },
                    ),
                    _ => (text.to_owned(), given),
                };
                let entropy = self.entropy();
                if let Ok((execution, _)) = self.engine.prepare_with(now, &text, entropy, given) {
                    self.executions.push(execution);
                }
            }
            3 if !self.executions.is_empty() => {
                let execution = *u.choose(&self.executions)?;
                self.call(Call::Execute(execution));
            }
            4 if !self.executions.is_empty() => {
                let at = u.choose_index(self.executions.len())?;
                let execution = self.executions.swap_remove(at);
                self.engine.release(execution);
            }
            5 if !self.calls.is_empty() => {
                let call = CallId(u.int_in_range(0..=self.calls.len() as u64 + 1)?);
                let why = if u.ratio(1, 2)? {
                    Stop::Cancelled
                } else {
                    Stop::Deadline
                };
                self.engine.stop(now, call, why);
            }
            6 => self.call(Call::NextEvent),
            7 => self.call(Call::NextClockEvent),
            8 => {
                let input = <&str>::arbitrary(u)?.to_owned();
                let continuation = u.ratio(1, 3)?.then(|| "next".to_owned());
                self.call(Call::Suggest {
                    cursor: 0,
                    page_size: u.int_in_range(1..=100)?,
                    continuation,
                    input,
                });
            }
            9 | 10 => {
                let role = if u.ratio(1, 2)? {
                    Role::Producer
                } else {
                    Role::Consumer
                };
                let fields = if u.ratio(9, 10)? {
                    numbers().fields
                } else {
                    given::fields(u, true)?
                };
                self.call(Call::Open(
                    role,
                    OpenRequest {
                        domain: "d".into(),
                        endpoint: "e".into(),
                        fields,
                        batches: u.int_in_range(1..=4)?,
                        bytes: *u.choose(&[1, 1000, 1 << 20, 1 << 25])?,
                    },
                ));
            }
            11 => {
                let to = self.endpoint(u)?;
                let length = u.int_in_range(0..=200)?;
                self.call(Call::Submit(to, Bytes::from(vec![1; length])));
            }
            12 if !self.submissions.is_empty() => {
                let (endpoint, submission) = *u.choose(&self.submissions)?;
                if u.ratio(1, 2)? {
                    self.call(Call::Rejoin(endpoint, submission));
                } else {
                    let _ = self.engine.release_submission(now, endpoint, submission);
                }
            }
            13 => {
                let of = self.endpoint(u)?;
                self.call(Call::NextDelivery(of));
            }
            14 if !self.deliveries.is_empty() => {
                let delivery = u.choose(&self.deliveries)?.clone();
                let decision = match u.int_in_range(0..=2)? {
                    0 => Decision::Ack,
                    1 => Decision::Retry,
                    _ => Decision::Reject(<&str>::arbitrary(u)?.to_owned()),
                };
                self.call(Call::Settle(delivery, decision));
            }
            15 => {
                let of = self.endpoint(u)?;
                self.call(Call::Close(of));
            }
            16 => {
                let of = self.endpoint(u)?;
                self.engine.free_endpoint(now, of);
            }
            _ => {
                let of = self.endpoint(u)?;
                let _ = self.engine.domain_clock("d");
                let _ = self.engine.endpoint_contract(of);
                let _ = self.engine.endpoint_state(of);
                let _ = self.engine.reopen_reason(of);
                let _ = self.engine.admission(of);
                let pending = self.engine.pending(of);
                assert!(pending.windows(2).all(|pair| pair[0].0 < pair[1].0));
            }
        }
        Ok(())
    }

    /// An answer that suits a request.
    fn suitable(&self, u: &mut Unstructured<'_>, request: &ClientRequest) -> Result<ReplyBody> {
        let which = u.int_in_range(0..=9_u8)?;
        let status = || transaction("t", u64::from(which));
        Ok(match request {
            ClientRequest::CommandRequest(command) => {
                let reference = &command.execution_reference;
                match which {
                    0 => redirect(reference, None),
                    1 => redirect(reference, Some(endpoints("node-2", Some("http://b:2")))),
                    2 => unknown(reference),
                    3 => command_failed(reference, "no"),
                    4 => detached(reference, "t"),
                    5 => appended(reference, "t", u.int_in_range(0..=9)?, 1),
                    6 => bound(completed(reference), status()),
                    _ if command.query.starts_with("BEGIN") => {
                        bound(completed(reference), transaction("t", 0))
                    }
                    _ => completed(reference),
                }
            }
            ClientRequest::SubscribeRequest(subscribe) => {
                let name = subscribe.statement.split_whitespace().nth(2).unwrap_or("s");
                match which {
                    0 => not_opened("no"),
                    _ => opened(name, u.int_in_range(1..=3)?, numbers()),
                }
            }
            ClientRequest::UnsubscribeRequest(request) => match which {
                0 => not_deleted("no"),
                _ => deleted(&request.subscription, u.int_in_range(1..=3)?),
            },
            ClientRequest::AttachDomainClockRequest(attach) => match which {
                0 => clock_already_attached(&attach.domain),
                1 => clock_domain_not_found(&attach.domain),
                2 => clock_attach_failed("no"),
                _ => clock_attached(&attach.domain, clock(u.int_in_range(1..=3)?, paced())),
            },
            ClientRequest::DetachDomainClockRequest(detach) => match which {
                0 => clock_not_attached(&detach.domain),
                1 => clock_detach_failed("no"),
                _ => clock_detached(&detach.domain),
            },
            ClientRequest::OpenIngestorRequest(open) => match which {
                0 | 1 => producer_refused(*u.choose(ProducerRefusal::ALL)?),
                _ => producer_opened(ingestor(&open.domain, &open.ingestor)),
            },
            ClientRequest::OpenEmitterRequest(open) => match which {
                0 | 1 => consumer_refused(*u.choose(EmitterOpenRefusal::ALL)?),
                _ => consumer_opened(emitter(&open.domain, &open.emitter)),
            },
            ClientRequest::SubmitBatchRequest(_) => match which {
                0..=2 => batch_completed(),
                3 | 4 => batch_refused(SubmissionRefusal::Suspended),
                5 => batch_refused(*u.choose(SubmissionRefusal::ALL)?),
                6 => batch_failed(*u.choose(ProcessingFailure::ALL)?),
                _ => batch_unknown(*u.choose(OutcomeUncertainty::ALL)?),
            },
            ClientRequest::ReadEmitterBatchRequest(_) => match which {
                0 => consumer_ended(),
                _ => delivery(u.int_in_range(1..=3)?, u.int_in_range(1..=9)?),
            },
            ClientRequest::SettleEmitterBatchRequest(_) => {
                settled(*u.choose(EmitterSettlement::ALL)?)
            }
            ClientRequest::CloseIngestorRequest(_) => match which {
                0 => producer_not_open(),
                _ => producer_closed(),
            },
            ClientRequest::CloseEmitterRequest(_) => {
                consumer_closed(*u.choose(EmitterCloseDisposition::ALL)?)
            }
            ClientRequest::AttachTransactionRequest(_) => match which {
                0 => transaction_attach_failed(),
                1 => transaction_attach_redirect(Some("http://b:2")),
                2 => transaction_finished(transaction_in(
                    "t",
                    TransactionState::TransactionCommitted,
                    1,
                )),
                _ => transaction_attached(status()),
            },
            ClientRequest::CancelRequest(cancel) => {
                cancel_outcome(cancel.target_request_id, *u.choose(CancelState::ALL)?)
            }
            ClientRequest::SuggestRequest(_) => suggestions(&["SHOW", "LIST"]),
            _ => domain_list(&["d"]),
        })
    }

    fn unsolicited(&self, u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
        let (name, generation) = match self.subscriptions.last() {
            Some((name, generation, _)) if u.ratio(9, 10)? => (name.clone(), *generation),
            _ => ("s".to_owned(), u.int_in_range(1..=3)?),
        };
        let some = u.int_in_range(1..=4)?;
        Ok(match u.int_in_range(0..=15)? {
            0..=3 => rows(&name, generation, 1, 0..some),
            4 => delivery_lost(&name, generation, some),
            5 => rows_skipped(&name, generation, some),
            6 => ended(&name, generation, *u.choose(SubscriptionEndReason::ALL)?),
            7 => clock_observed("d", clock(some, paced())),
            8 => clock_ticked("d", some, u.int_in_range(1..=9)?),
            9 => clock_ended("d"),
            10 => admission(u.int_in_range(1..=9)?, *u.choose(ProducerAdmission::ALL)?),
            11 => producer_ended(u.int_in_range(1..=9)?, *u.choose(ProducerEndReason::ALL)?),
            12 => leadership(led_by("http://b:2")),
            13 => ending(SessionEndReason::ServerShuttingDown),
            14 => leadership(leads_itself()),
            _ => encode_server(&domains(&["d", "e"])).unwrap(),
        })
    }

    fn server(&mut self, u: &mut Unstructured<'_>, conn: ConnId) -> Result<()> {
        let flights: Vec<u64> = self.connections[&conn].flights.keys().copied().collect();
        let answering = !flights.is_empty() && u.ratio(3, 4)?;
        let mut frames = if answering {
            let id = *u.choose(&flights)?;
            let request = self.connections[&conn].flights[&id].clone();
            let body = match u.int_in_range(0..=20)? {
                0 => rejected(*u.choose(RequestRejection::ALL)?),
                1 => cancelled(*u.choose(CancellationStage::ALL)?),
                2 => samples::reply_body(u.choose_index(samples::REPLY_BODY)?),
                _ => self.suitable(u, &request)?,
            };
            if let Some(on) = self.connections.get_mut(&conn) {
                if !u.ratio(1, 30)? {
                    on.flights.remove(&id);
                }
            }
            let message = reply_message(id, body);
            if u.ratio(1, 10)? {
                encode_server_reply_parts(&message, u.int_in_range(1..=90)?).unwrap()
            } else {
                vec![encode_server(&message).unwrap()]
            }
        } else if u.ratio(4, 5)? {
            vec![self.unsolicited(u)?]
        } else {
            let sample = samples::server_message(u.choose_index(samples::SERVER_MESSAGE)?);
            vec![encode_server(&sample).unwrap()]
        };
        if u.ratio(1, 30)? {
            let at = u.choose_index(frames.len())?;
            given::damage(u, &mut frames[at])?;
        }
        // Whoever a server names may be gone to; the frames are the only ones that name anybody, the parts of a reply together.
        let mut joined = Vec::new();
        for frame in frames {
            if let Ok(message) = nervix_wire::decode_server(&Frame::copy_from(&frame)) {
                self.hear(&format!("{message:?}"));
                if let ServerBody::Reply(Reply {
                    body: ReplyBody::TransferPart(part),
                    ..
                }) = message.body
                {
                    joined.extend_from_slice(&part.chunk);
                    if let Ok(whole) = nervix_wire::decode_server(&Frame::copy_from(&joined)) {
                        self.hear(&format!("{whole:?}"));
                    }
                }
            }
            let frame = Frame::copy_from(&frame);
            self.engine.input(self.time(), Input::Frame { conn, frame });
            self.take();
        }
        Ok(())
    }

    /// Notes every URI in the words of a message.
    fn hear(&mut self, words: &str) {
        for quoted in words.split('"') {
            if let Ok(origin) = Origin::parse(quoted) {
                self.named.insert(origin.to_string());
            }
        }
    }

    fn network(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let open: Vec<ConnId> = self
            .connections
            .iter()
            .filter(|(_, on)| !on.over)
            .map(|(conn, _)| *conn)
            .collect();
        if open.is_empty() {
            if let Some(at) = self.engine.wakeup() {
                self.now = self.now.max(at);
                self.engine.wake(self.time());
            }
            return Ok(());
        }
        let conn = *u.choose(&open)?;
        match u.int_in_range(0..=15)? {
            0 => {
                let why = String::from("it fell over");
                let cause = match u.int_in_range(0..=3)? {
                    0 => Cause::Unreachable(why),
                    1 => Cause::Status {
                        code: u.int_in_range(0..=20)?,
                        message: why,
                    },
                    2 => Cause::Lost(why),
                    _ => Cause::Violation(why),
                };
                if let Some(on) = self.connections.get_mut(&conn) {
                    on.over = true;
                }
                self.engine
                    .input(self.time(), Input::Closed { conn, cause });
            }
            1 => {
                let length = u.int_in_range(0..=40)?;
                let frame = Frame::copy_from(u.bytes(length.min(u.len()))?);
                self.engine.input(self.time(), Input::Frame { conn, frame });
            }
            2 | 3 if self.connections[&conn].used.is_empty() => {
                for frame in [
                    leadership(leads_itself()),
                    encode_server(&domains(&["d"])).unwrap(),
                ] {
                    let frame = Frame::copy_from(&frame);
                    self.engine.input(self.time(), Input::Frame { conn, frame });
                }
            }
            _ => self.server(u, conn)?,
        }
        Ok(())
    }
}

fn play(u: &mut Unstructured<'_>) -> Result<()> {
    let secure = u.ratio(1, 4)?;
    let scheme = if secure { "https" } else { "http" };
    let seeds: Vec<Origin> = ["a:1", "b:2"]
        .iter()
        .take(u.int_in_range(1..=2)?)
        .map(|host| Origin::parse(&format!("{scheme}://{host}")).unwrap())
        .collect();
    let second = 1_000_000_000;
    let mut play = Play {
        named: seeds.iter().map(Origin::to_string).collect(),
        engine: Engine::new(Config {
            seeds,
            domain: u.ratio(9, 10)?.then(|| "d".to_owned()),
            request_timeout: 10 * second,
            retry_timeout: 40 * second,
            seed: 1,
        }),
        now: second,
        secure,
        calls: BTreeMap::new(),
        executions: Vec::new(),
        prepared: 0,
        endpoints: Vec::new(),
        deliveries: Vec::new(),
        submissions: Vec::new(),
        subscriptions: Vec::new(),
        connections: BTreeMap::new(),
        commands: HashMap::new(),
        shut: false,
    };
    if u.ratio(19, 20)? {
        play.call(Call::Connect);
        let conn = play.connections.keys().next().copied();
        for frame in [
            leadership(leads_itself()),
            encode_server(&domains(&["d"])).unwrap(),
        ] {
            if let Some(conn) = conn {
                let frame = Frame::copy_from(&frame);
                play.engine.input(play.time(), Input::Frame { conn, frame });
                play.take();
            }
        }
    }
    while !u.is_empty() {
        let acted = match u.int_in_range(0..=9)? {
            0..=3 => play.host(u),
            4..=8 => play.network(u),
            _ => {
                let passed = *u.choose(&[
                    1,
                    1_000_000,
                    second / 2,
                    5 * second,
                    11 * second,
                    60 * second,
                ])?;
                play.now += passed;
                play.engine.wake(play.time());
                Ok(())
            }
        };
        play.take();
        if acted.is_err() {
            break;
        }
    }
    play.shut = true;
    play.engine.shut_down();
    play.take();
    let left: Vec<_> = play.calls.iter().filter(|(_, waiting)| **waiting).collect();
    assert!(left.is_empty(), "{left:?} were never answered");
    Ok(())
}

pub fn run(data: &[u8]) {
    let _ = play(&mut Unstructured::new(data));
}
