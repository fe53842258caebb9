//! What sessions do to a node while it is gone, and when it is back: how often and how evenly they ask, what outlives an idle hour,
//! and what a connection that carries nothing any more costs. D-2 to D-6, S-7, K-5, P-8, EC-5, T-8.

use std::collections::BTreeMap;

use nervix_engine::{
    Call, CallId, Cause, ClockEventKind, ConnId, Done, EndpointId, EndpointState, ErrorKind,
    EventKind, Role,
};
use nervix_wire::types::*;

use crate::bench::{Bench, REQUEST_TIMEOUT, RETRY_TIMEOUT};
use crate::common::frames::*;
use crate::common::{MS, SEC};

const HOSTS: u64 = 100;
const MINUTE: u64 = 60 * SEC;
const CREATE: &str = "CREATE SCHEMA a (b I64);";

fn refused() -> Cause {
    Cause::Unreachable("connection refused".into())
}

/// What a host may have open, and wait for or not.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Open {
    Subscription,
    ReadSubscription,
    Clock,
    ReadClock,
    Producer,
    SentBatch,
    ClosingProducer,
    Consumer,
    ReadConsumer,
    ClosingConsumer,
}

const ALL: [Open; 10] = [
    Open::Subscription,
    Open::ReadSubscription,
    Open::Clock,
    Open::ReadClock,
    Open::Producer,
    Open::SentBatch,
    Open::ClosingProducer,
    Open::Consumer,
    Open::ReadConsumer,
    Open::ClosingConsumer,
];

/// What was opened, and the call that waits for it.
struct Opened {
    call: Option<CallId>,
    endpoint: Option<EndpointId>,
}

fn open(bench: &mut Bench, conn: ConnId, what: Open) -> Opened {
    let (mut call, mut endpoint) = (None, None);
    match what {
        Open::Subscription | Open::ReadSubscription => {
            bench.subscription(conn, "s", 1);
            if what == Open::ReadSubscription {
                call = Some(bench.call(Call::NextEvent));
            }
        }
        Open::Clock | Open::ReadClock => {
            bench.follow(conn, "d", clock(1, paced()));
            if what == Open::ReadClock {
                call = Some(bench.call(Call::NextClockEvent));
            }
        }
        Open::Producer | Open::SentBatch | Open::ClosingProducer => {
            let (id, _) = bench.producer(conn);
            endpoint = Some(id);
            if what != Open::Producer {
                let submission = bench.submit(id, 1);
                bench.batch(conn);
                call = Some(bench.call(Call::Rejoin(id, submission)));
            }
            if what == Open::ClosingProducer {
                call = Some(bench.call(Call::Close(id)));
                bench.sent(conn);
            }
        }
        Open::Consumer | Open::ReadConsumer | Open::ClosingConsumer => {
            let (id, _) = bench.consumer(conn);
            endpoint = Some(id);
            if what == Open::ReadConsumer {
                call = Some(bench.call(Call::NextDelivery(id)));
                bench.read(conn);
            } else if what == Open::ClosingConsumer {
                call = Some(bench.call(Call::Close(id)));
                bench.sent(conn);
            }
        }
    }
    bench.sends_nothing(conn);
    Opened { call, endpoint }
}

/// How many of the times fall into each part of a window.
fn parts(times: &[u64], from: u64, part: u64) -> BTreeMap<u64, usize> {
    let mut parts = BTreeMap::new();
    for at in times {
        *parts.entry((at - from) / part).or_default() += 1;
    }
    parts
}

// rule: D-5, D-2
#[test]
fn a_hundred_sessions_cut_at_once_come_back_spread_out() {
    const WINDOW: u64 = 250 * MS;
    let mut first = Vec::new();
    let mut later = Vec::new();
    let mut cut = 0;
    for lots in 0..HOSTS {
        let mut bench = Bench::one_of_many(lots);
        let conn = bench.connect();
        bench.subscription(conn, "s", 1);
        bench.quiet(conn, MINUTE);
        bench.call(Call::NextEvent);
        cut = bench.now;
        bench.lose(conn);
        let (conn, _) = bench.reopened();
        first.push(bench.now);
        bench.close(conn, refused());
        while bench.now < cut + 10 * SEC {
            let (conn, _) = bench.reopened();
            later.push(bench.now);
            bench.close(conn, refused());
        }
    }
    let tenths = parts(&first, cut, WINDOW / 10);
    println!("first attempts in each tenth: {tenths:?}");
    assert!(
        first.iter().all(|at| *at <= cut + WINDOW),
        "a quarter of a second at most"
    );
    assert!(tenths.len() == 10, "every tenth is used: {tenths:?}");
    assert!(tenths.values().all(|part| *part <= 25), "{tenths:?}");
    // And they stay apart while the node stays away.
    let most = parts(&later, cut, WINDOW / 10).into_values().max();
    println!("at most {most:?} further attempts in 25 ms");
    assert!(most <= Some(25));
}

/// Ten minutes of a node that does this with every connection; how many there were.
fn ten_minutes(bench: &mut Bench, mut node: impl FnMut(&mut Bench, ConnId)) -> usize {
    let end = bench.now + 10 * MINUTE;
    let mut attempts = 0;
    loop {
        while bench.will_open() {
            let (conn, _) = bench.opened();
            attempts += 1;
            node(bench, conn);
        }
        match bench.engine.wakeup() {
            Some(at) if at < end => bench.pass(at.saturating_sub(bench.now)),
            _ => return attempts,
        }
    }
}

// rule: D-2, D-4, S-7, K-5, EC-5
#[test]
fn a_node_that_stays_away_is_asked_at_a_bounded_rate() {
    // With a call that waits there are 0.5 to 1 s between two attempts, without one 7.5 to 15 s, once the waits have grown.
    let (busy, idle) = (600..=1215, 40..=95);
    for (what, expected) in [
        (Open::ReadSubscription, &busy),
        (Open::ReadClock, &busy),
        (Open::ReadConsumer, &busy),
        (Open::Subscription, &idle),
        (Open::Clock, &idle),
        (Open::Producer, &(0..=0)),
        (Open::Consumer, &(0..=0)),
    ] {
        let (mut bench, conn) = Bench::connected();
        let opened = open(&mut bench, conn, what);
        bench.quiet(conn, MINUTE);
        bench.lose(conn);
        // A gap is told, and the host reads on.
        match opened.call.map(|call| bench.result(call)) {
            Some(Ok(Done::Event(event))) => {
                assert!(matches!(event.kind, EventKind::Interrupted { .. }));
                bench.call(Call::NextEvent);
            }
            Some(Ok(Done::ClockEvent(event))) => {
                assert_eq!(event.kind, ClockEventKind::Interrupted);
                bench.call(Call::NextClockEvent);
            }
            Some(Err(error)) => {
                assert_eq!(error.kind, ErrorKind::Interrupted);
                bench.call(Call::NextDelivery(opened.endpoint.unwrap()));
            }
            other => assert!(other.is_none(), "{what:?}: {other:?}"),
        }
        let attempts = ten_minutes(&mut bench, |bench, conn| bench.close(conn, refused()));
        println!("{what:?}: {attempts} attempts in ten minutes");
        assert!(expected.contains(&attempts), "{what:?}: {attempts}");
    }
}

// rule: D-2, D-6, T-5
#[test]
fn a_node_that_ends_every_session_is_asked_no_more_than_one_that_is_away() {
    type Node = fn(&mut Bench, ConnId);
    let nodes: [(&str, Node); 5] = [
        ("greets and resets", |bench, conn| {
            bench.greet(conn);
            bench.lose(conn);
        }),
        ("greets and shuts down", |bench, conn| {
            bench.greet(conn);
            bench.frame(conn, ending(SessionEndReason::ServerShuttingDown));
        }),
        ("greets and breaks the protocol", |bench, conn| {
            bench.greet(conn);
            bench.frame(conn, b"nonsense, long enough");
        }),
        ("finds the restoration malformed", |bench, conn| {
            bench.greet(conn);
            bench.subscribe(conn);
            let (code, message) = (13, "malformed".into());
            bench.close(conn, Cause::Status { code, message });
        }),
        ("restores and resets", |bench, conn| {
            bench.greet(conn);
            let (id, _) = bench.subscribe(conn);
            let generation = 1000 + conn.0;
            bench.reply(conn, id, opened("s", generation, numbers()));
            bench.lose(conn);
        }),
    ];
    for (name, node) in nodes {
        for (what, expected) in [
            (Open::ReadSubscription, 600..=1215),
            (Open::Subscription, 40..=95),
        ] {
            let (mut bench, conn) = Bench::connected();
            let mut reader = open(&mut bench, conn, what).call;
            bench.quiet(conn, MINUTE);
            bench.lose(conn);
            let (mut gaps, mut ends) = (0, 1);
            let attempts = ten_minutes(&mut bench, |bench, conn| {
                node(bench, conn);
                ends += 1;
                while let Some(call) = reader.filter(|call| !bench.is_waiting(*call)) {
                    match bench.result(call) {
                        Ok(Done::Event(event)) => {
                            gaps +=
                                usize::from(matches!(event.kind, EventKind::Interrupted { .. }));
                        }
                        other => panic!("{other:?}"),
                    }
                    reader = Some(bench.call(Call::NextEvent));
                }
            });
            println!("{name}, {what:?}: {attempts} attempts in ten minutes, {gaps} gaps told");
            assert!(expected.contains(&attempts), "{name}, {what:?}: {attempts}");
            if name == "restores and resets" && reader.is_some() {
                assert_eq!(
                    gaps, ends,
                    "each generation that was opened ended with a gap"
                );
            } else if reader.is_some() {
                assert_eq!(gaps, 1, "nothing was open in between");
            }
        }
    }
}

// rule: D-3, D-2
#[test]
fn a_server_that_ends_every_session_keeps_nobody_from_the_others() {
    let mut bench = Bench::new(&["http://a:1", "http://b:2"]);
    let conn = bench.connect();
    bench.subscription(conn, "s", 1);
    bench.quiet(conn, MINUTE);
    bench.lose(conn);
    let mut tried = Vec::new();
    let conn = loop {
        let (conn, origin) = bench.reopened();
        tried.push(origin.clone());
        bench.greet(conn);
        if origin == "http://b:2" {
            break conn;
        }
        assert!(tried.len() < 4, "{tried:?}");
        bench.lose(conn);
    };
    assert_eq!(tried, ["http://a:1", "http://b:2"]);
    let (id, _) = bench.subscribe(conn);
    bench.reply(conn, id, opened("s", 2, numbers()));
}

// rule: D-2
#[test]
fn a_host_that_asks_again_and_again_makes_no_storm() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.quiet(conn, MINUTE);
    bench.lose(conn);
    bench.event();
    let end = bench.now + 10 * MINUTE;
    let mut attempts = 0;
    while bench.now < end {
        // Each call asks for a session at once, and waits for it no longer than a moment.
        let call = bench.call(Call::NextEvent);
        bench.pass(20 * MS);
        bench.stop(call, nervix_engine::Stop::Deadline);
        bench.fails(call, ErrorKind::Deadline);
        while bench.will_open() {
            attempts += 1;
            let (conn, _) = bench.opened();
            bench.close(conn, refused());
        }
    }
    println!("{attempts} attempts in ten minutes");
    assert!((300..=620).contains(&attempts), "{attempts}");
}

// rule: D-2
#[test]
fn a_session_that_answered_a_call_is_followed_by_the_next_at_once() {
    let (mut bench, mut conn) = Bench::connected();
    for _ in 0..20 {
        let (call, _, reference) = bench.execute(CREATE);
        let (id, _) = bench.command(conn);
        bench.reply(conn, id, completed(&reference));
        bench.outcome(call);
        let cut = bench.now;
        bench.lose(conn);
        bench.call(Call::NextEvent);
        let (next, _) = bench.reopened();
        assert!(bench.now - cut <= 250 * MS, "{}", bench.now - cut);
        bench.greet(next);
        conn = next;
    }
}

// rule: D-2
#[test]
fn a_session_that_lasted_is_followed_by_the_next_at_once() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.call(Call::NextEvent);
    let mut conn = conn;
    for _ in 0..20 {
        bench.quiet(conn, 2 * SEC);
        let cut = bench.now;
        bench.lose(conn);
        let (next, _) = bench.reopened();
        assert!(bench.now - cut <= 250 * MS, "{}", bench.now - cut);
        bench.greet(next);
        conn = next;
    }
}

// rule: S-7, K-5, P-8, EC-5, B-7, B-9, B-16
#[test]
fn refused_restorations_are_repeated_at_a_bounded_rate_and_each_is_told() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.follow(conn, "d", clock(1, paced()));
    let (producer, _) = bench.producer(conn);
    let (consumer, _) = bench.consumer(conn);
    bench.lose(conn);
    assert!(matches!(bench.event().kind, EventKind::Interrupted { .. }));
    assert_eq!(bench.clock_event().kind, ClockEventKind::Interrupted);
    let next = bench.call(Call::NextDelivery(consumer));
    bench.fails(next, ErrorKind::Interrupted);
    let (mut reader, mut clocks) = (
        bench.call(Call::NextEvent),
        bench.call(Call::NextClockEvent),
    );
    let next = bench.call(Call::NextDelivery(consumer));
    let conn = bench.reconnected();
    let end = bench.now + 10 * MINUTE;
    let mut submit = bench.call(Call::Submit(producer, content(1)));
    let mut asked: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let (mut told, mut told_clock) = (0, 0);
    while bench.now < end {
        if !bench.is_waiting(submit) {
            // Nothing was submitted within the call's own time, and the host tries again.
            bench.fails(submit, ErrorKind::Transport);
            submit = bench.call(Call::Submit(producer, content(1)));
        }
        for message in bench.quiet(conn, 0) {
            let (what, body) = match message.request {
                ClientRequest::SubscribeRequest(_) => ("subscription", not_opened("not now")),
                ClientRequest::AttachDomainClockRequest(_) => {
                    ("clock", clock_attach_failed("not now"))
                }
                ClientRequest::OpenIngestorRequest(_) => (
                    "producer",
                    producer_refused(ProducerRefusal::EndpointUnavailable),
                ),
                ClientRequest::OpenEmitterRequest(_) => (
                    "consumer",
                    consumer_refused(EmitterOpenRefusal::EndpointUnavailable),
                ),
                other => panic!("{other:?}"),
            };
            asked.entry(what).or_default().push(bench.now);
            bench.reply(conn, message.request_id, body);
        }
        if !bench.is_waiting(reader) {
            match bench.result(reader) {
                Ok(Done::Event(event)) => {
                    assert!(matches!(event.kind, EventKind::RestorationFailed { .. }));
                }
                other => panic!("{other:?}"),
            }
            told += 1;
            reader = bench.call(Call::NextEvent);
        }
        if !bench.is_waiting(clocks) {
            match bench.result(clocks) {
                Ok(Done::ClockEvent(event)) => {
                    assert_eq!(event.kind, ClockEventKind::RestorationFailed);
                }
                other => panic!("{other:?}"),
            }
            told_clock += 1;
            clocks = bench.call(Call::NextClockEvent);
        }
        bench.pass(10 * MS);
    }
    assert!(bench.is_waiting(next) && !bench.is_reset(conn));
    assert_eq!(asked.len(), 4, "{asked:?}");
    for (what, times) in &asked {
        println!("{what}: asked for {} times in ten minutes", times.len());
        assert!((40..=95).contains(&times.len()), "{what}: {}", times.len());
        let waits: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(
            waits[6] > waits[3] && waits[3] > waits[0],
            "{what}: {waits:?}"
        );
        assert!(
            waits.iter().all(|wait| *wait <= 16 * SEC),
            "{what}: {waits:?}"
        );
    }
    assert_eq!(told, asked["subscription"].len());
    assert_eq!(told_clock, asked["clock"].len());
}

// rule: T-8, EC-2, P-6
#[test]
fn what_is_idle_outlives_ten_request_timeouts_on_one_session() {
    for what in ALL {
        // The release of a consumer waits for nobody else, so its answer has the time of any other.
        if what == Open::ClosingConsumer {
            continue;
        }
        let (mut bench, conn) = Bench::connected();
        let opened = open(&mut bench, conn, what);
        assert_eq!(bench.quiet(conn, 10 * REQUEST_TIMEOUT), [], "{what:?}");
        assert!(!bench.is_reset(conn), "{what:?}");
        bench.opens_nothing();
        assert!(
            opened.call.is_none_or(|call| bench.is_waiting(call)),
            "{what:?}"
        );
    }
}

// rule: T-8, D-6, SM-1
#[test]
fn a_connection_that_carries_nothing_any_more_is_over_within_two_request_timeouts() {
    for what in ALL {
        for idle in [0, 1, 25] {
            let (mut bench, conn) = Bench::connected();
            let opened = open(&mut bench, conn, what);
            if what != Open::ClosingConsumer {
                bench.quiet(conn, idle * REQUEST_TIMEOUT / 10);
            }
            bench.pass(2 * REQUEST_TIMEOUT);
            assert!(bench.is_reset(conn), "{what:?} after {idle}");
            match what {
                Open::Subscription => {
                    assert!(matches!(bench.event().kind, EventKind::Interrupted { .. }));
                }
                Open::Clock => assert_eq!(bench.clock_event().kind, ClockEventKind::Interrupted),
                Open::Producer | Open::Consumer => {
                    let state = bench.engine.endpoint_state(opened.endpoint.unwrap());
                    assert_eq!(state, EndpointState::Interrupted);
                    continue;
                }
                _ => match (what, bench.result(opened.call.unwrap())) {
                    (Open::ReadSubscription, Ok(Done::Event(event))) => {
                        assert!(matches!(event.kind, EventKind::Interrupted { .. }));
                    }
                    (Open::ReadClock, Ok(Done::ClockEvent(event))) => {
                        assert_eq!(event.kind, ClockEventKind::Interrupted);
                    }
                    (Open::SentBatch, Ok(Done::Submission(_)))
                    | (Open::ClosingProducer | Open::ClosingConsumer, Ok(Done::Closed)) => continue,
                    (Open::ReadConsumer, Err(error)) => {
                        assert_eq!(error.kind, ErrorKind::Interrupted);
                        bench.call(Call::NextDelivery(opened.endpoint.unwrap()));
                    }
                    (_, other) => panic!("{what:?}: {other:?}"),
                },
            }
            let conn = bench.reconnected();
            assert_eq!(bench.all_sent(conn).len(), 1, "{what:?} is restored");
        }
    }
}

// rule: T-8, C-6
#[test]
fn silence_is_found_out_even_when_only_what_may_take_any_time_fills_the_session() {
    let (mut bench, conn) = Bench::connected();
    let mut calls = Vec::new();
    for _ in 0..32 {
        let (consumer, _) = bench.consumer(conn);
        calls.push(bench.call(Call::NextDelivery(consumer)));
        bench.read(conn);
        let (producer, _) = bench.producer(conn);
        bench.call(Call::Close(producer));
        bench.sent(conn);
    }
    bench.watch.asks_without_room = true;
    bench.pass(2 * REQUEST_TIMEOUT);
    assert!(bench.is_reset(conn));
    for call in calls {
        bench.fails(call, ErrorKind::Interrupted);
    }
}

// rule: EC-6, T-8
#[test]
fn the_release_of_a_consumer_is_answered_within_the_request_timeout_or_its_session_is_over() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let closing = open(&mut bench, conn, Open::ClosingConsumer).call.unwrap();
    let end = bench.now + REQUEST_TIMEOUT;
    while bench.now < end {
        // The session is alive, and this request alone is forgotten.
        assert!(bench.is_waiting(closing) && !bench.is_reset(conn));
        bench.frame(conn, rows("s", 1, 1, 0..1));
        bench.pass(SEC);
    }
    assert!(bench.is_reset(conn));
    assert!(matches!(bench.result(closing), Ok(Done::Closed)));
}

// rule: P-5, P-7, T-8, B-14
#[test]
fn a_batch_that_is_never_answered_is_never_given_up_nor_sent_again() {
    // No time is promised for its outcome, so its session is not taken for lost: the wait is the host's to bound.
    let (mut bench, conn) = Bench::connected();
    let (producer, _) = bench.producer(conn);
    let submission = bench.submit(producer, 1);
    let (batch, ..) = bench.batch(conn);
    for _ in 0..10 {
        let call = bench.call(Call::Rejoin(producer, submission));
        assert_eq!(bench.quiet(conn, REQUEST_TIMEOUT), []);
        bench.stop(call, nervix_engine::Stop::Deadline);
        let error = bench.fails(call, ErrorKind::Deadline);
        assert!(error.message.contains("stays with the producer"), "{error}");
        assert_eq!(bench.engine.pending(producer), [(submission, false)]);
    }
    assert!(!bench.is_reset(conn));
    bench.reply(conn, batch, batch_completed());
    assert_eq!(
        bench.rejoin(producer, submission).result,
        nervix_engine::SubmissionResult::Completed
    );
}

// rule: D-4, T-8
#[test]
fn every_call_of_a_session_that_never_comes_back_ends_by_itself_in_its_own_time() {
    let (mut bench, conn) = Bench::connected();
    let (producer, _) = bench.producer(conn);
    let (written, _, reference) = bench.execute(CREATE);
    bench.command(conn);
    bench.lose(conn);
    let start = bench.now;
    let (unwritten, ..) = bench.execute("CREATE SCHEMA b (b I64);");
    let calls = [
        (written, ErrorKind::Uncertain),
        (unwritten, ErrorKind::Connect),
        (bench.suggest("S"), ErrorKind::Connect),
        (bench.open(Role::Consumer, "e"), ErrorKind::Transport),
        (bench.open(Role::Producer, "i"), ErrorKind::Transport),
        (
            bench.call(Call::Submit(producer, content(1))),
            ErrorKind::Transport,
        ),
    ];
    while bench.now < start + RETRY_TIMEOUT {
        match bench.reopens() {
            Some((conn, _)) => bench.close(conn, refused()),
            None => break,
        }
    }
    for (call, kind) in calls {
        let error = bench.fails(call, kind);
        if call == written {
            assert_eq!(error.reference.as_deref(), Some(&*reference));
        }
    }
    bench.opens_nothing();
    assert_eq!(bench.engine.wakeup(), None, "nothing is left to do");
}

// rule: D-6, D-5, F-8, E-3
#[test]
fn however_a_session_ends_everything_on_it_is_told_alike() {
    type End = fn(&mut Bench, ConnId);
    let ends: [End; 6] = [
        |bench, conn| bench.lose(conn),
        |bench, conn| {
            let (code, message) = (14, "away".into());
            bench.close(conn, Cause::Status { code, message });
        },
        |bench, conn| bench.frame(conn, ending(SessionEndReason::ServerShuttingDown)),
        |bench, conn| {
            let redirect = LeaderRedirect { leader: None };
            bench.frame(conn, ending(SessionEndReason::LeaderRedirect(redirect)));
        },
        |bench, conn| {
            let message = "says the server".to_owned();
            let violated = ProtocolViolated { message };
            bench.frame(conn, ending(SessionEndReason::ProtocolViolated(violated)));
        },
        |bench, conn| bench.frame(conn, b"nonsense, long enough"),
    ];
    for end in ends {
        let (mut bench, conn) = Bench::connected();
        bench.follow(conn, "d", clock(1, paced()));
        bench.subscription(conn, "s", 1);
        let (producer, _) = bench.producer(conn);
        let (consumer, _) = bench.consumer(conn);
        let submission = bench.submit(producer, 1);
        bench.batch(conn);
        let delivery = bench.deliver(conn, consumer, 1, 1);
        let settle = bench.settle(&delivery, nervix_engine::Decision::Ack);
        bench.settlement(conn);
        let next = bench.call(Call::NextDelivery(consumer));
        bench.read(conn);
        let (command, _, reference) = bench.execute(CREATE);
        let (_, first) = bench.command(conn);
        let suggest = bench.suggest("S");
        bench.sent(conn);
        end(&mut bench, conn);
        bench.sends_nothing(conn);
        assert!(bench.is_waiting(command), "repeated until it is known");
        let suggest = bench.error(suggest);
        assert!(matches!(
            suggest.kind,
            ErrorKind::Transport | ErrorKind::Protocol
        ));
        bench.fails(settle, ErrorKind::Uncertain);
        bench.fails(next, ErrorKind::Interrupted);
        assert_eq!(
            bench.rejoin(producer, submission).result,
            nervix_engine::SubmissionResult::OutcomeUnknown(
                nervix_engine::Uncertainty::SessionLost
            )
        );
        assert!(matches!(bench.event().kind, EventKind::Interrupted { .. }));
        assert_eq!(bench.clock_event().kind, ClockEventKind::Interrupted);
        // The host gives up before the next session: not known, and by which reference to ask.
        let conn = bench.reconnected();
        bench.clock_attach(conn);
        bench.subscribe(conn);
        let (_, same) = bench.command(conn);
        assert_eq!(same, first);
        bench.shut_down();
        let error = bench.fails(command, ErrorKind::Uncertain);
        assert_eq!(error.reference.as_deref(), Some(&*reference));
    }
}

// rule: X-9
#[test]
fn a_read_is_asked_anew_each_time_and_nothing_follows_from_what_it_said() {
    let (mut bench, conn) = Bench::connected();
    let show = "SHOW CREATE RELAY r;";
    let read = |bench: &mut Bench, answer: &str| {
        let (call, _, reference) = bench.execute(show);
        let (id, sent) = bench.command(conn);
        assert_eq!(
            (&*sent.query, sent.expected_transaction_position),
            (show, None)
        );
        let mut body = completed(&reference);
        if let ReplyBody::CommandOutcome(outcome) = &mut body {
            outcome.message = answer.into();
        }
        bench.reply(conn, id, body);
        bench.outcome(call)
    };
    assert_eq!(read(&mut bench, "as it was").message, "as it was");
    let (call, _, reference) = bench.execute("ALTER RELAY r SET CAPACITY 5;");
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, completed(&reference));
    bench.outcome(call);
    // A node that lags may say what was before, even after it said more, and neither is made one with the other.
    for answer in ["as it is", "as it was", "as it is"] {
        assert_eq!(read(&mut bench, answer).message, answer);
    }
    // A read that another node answers is that node's: it is followed to no leader and repeated for no other answer.
    bench.frame(conn, leadership(led_by("http://b:2")));
    assert_eq!(read(&mut bench, "as it was").message, "as it was");
    bench.opens_nothing();
    assert_eq!(bench.quiet(conn, MINUTE), []);
}

// rule: T-6, P-8, EC-5
#[test]
fn an_endpoint_whose_restoration_ends_each_call_is_restored_after_growing_waits() {
    for what in [Open::Producer, Open::ReadConsumer] {
        for (code, grows) in [(11, true), (13, true), (14, false)] {
            let (mut bench, mut conn) = Bench::connected();
            let opened = open(&mut bench, conn, what);
            bench.quiet(conn, MINUTE);
            bench.lose(conn);
            let endpoint = opened.endpoint.unwrap();
            // Only what is waited for is restored.
            if let Some(call) = opened.call {
                bench.fails(call, ErrorKind::Interrupted);
                bench.call(Call::NextDelivery(endpoint));
            } else {
                bench.call(Call::Submit(endpoint, content(1)));
            }
            let mut waits = Vec::new();
            for _ in 0..6 {
                conn = bench.reconnected();
                let back = bench.now;
                while bench.all_sent(conn).is_empty() {
                    bench.pass(10 * MS);
                }
                waits.push(bench.now - back);
                // Long enough that the session itself counts as one that lasted.
                bench.pass(3 * SEC);
                let message = "no good".into();
                bench.close(conn, Cause::Status { code, message });
            }
            println!("{what:?} after {code}: waits {waits:?}");
            assert_eq!(waits[0], 0);
            if grows {
                assert!(waits[5] >= SEC, "{what:?} after {code}: {waits:?}");
            } else {
                assert!(waits.iter().all(|wait| *wait == 0), "{waits:?}");
            }
        }
    }
}
