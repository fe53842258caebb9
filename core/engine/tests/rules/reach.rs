//! Reaching servers, redirects, and what happens when a session is lost: D-1 to D-6, T-2, T-5, T-6, T-8.

use nervix_engine::{Call, Cause, ClockEventKind, Done, ErrorKind, EventKind};
use nervix_wire::types::*;

use crate::bench::{Bench, REQUEST_TIMEOUT, RETRY_TIMEOUT};
use crate::common::frames::*;
use crate::common::{MS, SEC};

const CREATE: &str = "CREATE SCHEMA a (b I64);";

fn refused() -> Cause {
    Cause::Unreachable("connection refused".into())
}

fn status(code: u32) -> Cause {
    Cause::Status {
        code,
        message: "told so".into(),
    }
}

// rule: D-3
#[test]
fn connecting_tries_each_seed_once_in_order() {
    let mut bench = Bench::new(&["http://a:1", "http://b:2", "http://c:3"]);
    let call = bench.call(Call::Connect);
    for origin in ["http://a:1", "http://b:2", "http://c:3"] {
        assert!(bench.is_waiting(call));
        let (conn, asked) = bench.opened();
        assert_eq!(asked, origin);
        bench.close(conn, refused());
    }
    let error = bench.fails(call, ErrorKind::Connect);
    assert!(error.message.contains("connection refused"), "{error}");
    bench.opens_nothing();
}

// rule: SM-1
#[test]
fn connecting_succeeds_when_the_server_said_who_leads() {
    let (mut bench, conn) = {
        let mut bench = Bench::new(&["http://a:1"]);
        let call = bench.call(Call::Connect);
        let (conn, _) = bench.opened();
        bench.pass(SEC);
        assert!(bench.is_waiting(call));
        bench.frame(conn, leadership(Leadership::LeaderUnknown));
        assert!(matches!(bench.result(call), Ok(Done::Connected)));
        (bench, conn)
    };
    bench.frame(
        conn,
        nervix_wire::encode_server_alternate_domain_info(&domains(&["d", "e"])).unwrap(),
    );
    assert!(!bench.is_reset(conn), "both layouts of DomainInfo are read");
}

// rule: T-8, D-4
#[test]
fn a_server_that_accepts_and_says_nothing_is_given_up_after_ten_seconds() {
    let mut bench = Bench::new(&["http://a:1"]);
    let call = bench.call(Call::Connect);
    let (conn, _) = bench.opened();
    bench.pass(10 * SEC - MS);
    assert!(bench.is_waiting(call));
    bench.pass(2 * MS);
    assert!(bench.is_reset(conn));
    bench.fails(call, ErrorKind::Connect);
}

// rule: T-8, D-4
#[test]
fn a_connect_that_runs_out_of_time_names_the_server_that_it_still_waits_for() {
    let seeds: Vec<String> = (1..100).map(|port| format!("http://a:{port}")).collect();
    let seeds: Vec<&str> = seeds.iter().map(String::as_str).collect();
    let mut bench = Bench::new(&seeds);
    let call = bench.call(Call::Connect);
    let (first, _) = bench.opened();
    bench.pass(3 * SEC);
    bench.close(first, refused());
    let mut last = String::new();
    while bench.is_waiting(call) {
        if bench.will_open() {
            last = bench.opened().1;
        }
        bench.pass(SEC);
    }
    let told = bench.fails(call, ErrorKind::Connect).message;
    assert!(told.contains("http://a:1: cannot be reached"), "{told}");
    assert!(told.ends_with(&format!("{last}: no answer yet")), "{told}");
}

// rule: F-8
#[test]
fn a_server_that_breaks_the_protocol_at_once_is_no_session() {
    for first in [
        b"GET / HTTP/1.1".to_vec(),
        notice("hello"),
        reply(1, completed("x")),
    ] {
        let mut bench = Bench::new(&["http://a:1"]);
        let call = bench.call(Call::Connect);
        let (conn, _) = bench.opened();
        bench.frame(conn, &first);
        if bench.is_waiting(call) {
            // Notices are for display, wherever they come.
            bench.greet(conn);
            assert!(matches!(bench.result(call), Ok(Done::Connected)));
        } else {
            bench.fails(call, ErrorKind::Connect);
            assert!(bench.is_reset(conn));
        }
    }
}

// rule: T-5
#[test]
fn refused_credentials_are_not_tried_again() {
    let mut bench = Bench::new(&["http://a:1", "http://b:2"]);
    let call = bench.call(Call::Connect);
    let (conn, _) = bench.opened();
    bench.close(conn, status(16));
    bench.fails(call, ErrorKind::Connect);
    bench.opens_nothing();
    bench.pass(300 * SEC);
    bench.opens_nothing();
}

// rule: T-5
#[test]
fn a_node_that_cannot_verify_now_is_asked_again_later() {
    let mut bench = Bench::new(&["http://a:1"]);
    let call = bench.call(Call::Connect);
    let mut at = Vec::new();
    for _ in 0..5 {
        let (conn, _) = bench.reopened();
        at.push(bench.now);
        bench.close(conn, status(14));
        assert!(bench.is_waiting(call));
        bench.opens_nothing();
    }
    let waits: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[0] >= 20 * MS && waits[3] > waits[0], "{waits:?}");
    let (conn, _) = bench.reopened();
    bench.greet(conn);
    assert!(matches!(bench.result(call), Ok(Done::Connected)));

    // Until the call's own deadline.
    let mut bench = Bench::new(&["http://a:1"]);
    let call = bench.call(Call::Connect);
    let start = bench.now;
    while bench.is_waiting(call) {
        if !bench.will_open() {
            bench.pass(100 * MS);
            continue;
        }
        let (conn, _) = bench.opened();
        bench.close(conn, status(14));
        assert!(bench.now - start < 2 * RETRY_TIMEOUT);
    }
    bench.fails(call, ErrorKind::Connect);
    assert!(bench.now - start >= RETRY_TIMEOUT - 2 * SEC);
}

// rule: T-5
#[test]
fn credentials_refused_later_end_the_session_for_good() {
    let (mut bench, conn) = Bench::connected();
    let (sent, _, reference) = bench.execute(CREATE);
    bench.command(conn);
    let (unsent, ..) = bench.execute("CREATE SCHEMA b (b I64);");
    let reader = bench.call(Call::NextEvent);
    bench.lose(conn);
    let (conn, _) = bench.reopened();
    bench.close(conn, status(16));
    let error = bench.fails(sent, ErrorKind::Uncertain);
    assert_eq!(error.reference, Some(reference));
    bench.fails(unsent, ErrorKind::Connect);
    bench.fails(reader, ErrorKind::Closed);
    let suggest = bench.suggest("S");
    bench.fails(suggest, ErrorKind::Closed);
    let reader = bench.call(Call::NextEvent);
    bench.fails(reader, ErrorKind::Closed);
    bench.pass(300 * SEC);
    bench.opens_nothing();
    assert_eq!(bench.engine.wakeup(), None);
}

// rule: T-6
#[test]
fn nothing_is_resent_that_a_server_found_malformed() {
    for code in [11, 13] {
        let (mut bench, conn) = Bench::connected();
        let (call, execution, reference) = bench.execute(CREATE);
        let (_, command) = bench.command(conn);
        let (waiting, _, next) = bench.execute("CREATE SCHEMA b (b I64);");
        let suggest = bench.suggest("S");
        bench.sent(conn);
        bench.close(conn, status(code));
        let error = bench.fails(call, ErrorKind::Uncertain);
        assert_eq!(error.reference.as_deref(), Some(&*reference));
        bench.fails(suggest, ErrorKind::Transport);
        // What was not in flight goes on.
        let conn = bench.reconnected();
        let (id, command_sent) = bench.command(conn);
        assert_eq!(command_sent.execution_reference, next);
        bench.reply(conn, id, completed(&next));
        bench.outcome(waiting);
        bench.pass(30 * SEC);
        for message in bench.all_sent(conn) {
            assert_eq!(message.request, ClientRequest::ListDomainsRequest);
            bench.reply(conn, message.request_id, domain_list(&[]));
        }
        // Its host may still ask for its outcome.
        let again = bench.call(Call::Execute(execution));
        let (id, same) = bench.command(conn);
        assert_eq!(same, command);
        bench.reply(conn, id, completed(&reference));
        bench.outcome(again);
    }
}

// rule: T-6, S-7, K-5
#[test]
fn what_was_being_opened_again_when_a_server_found_it_malformed_is_told_so() {
    for code in [11, 13] {
        let (mut bench, conn) = Bench::connected();
        bench.subscription(conn, "s", 1);
        bench.follow(conn, "d", clock(1, paced()));
        bench.lose(conn);
        let gap = bench.event().kind;
        assert!(matches!(gap, EventKind::Interrupted { .. }), "{gap:?}");
        assert_eq!(bench.clock_event().kind, ClockEventKind::Interrupted);
        let conn = bench.reconnected();
        bench.close(conn, status(code));
        let told = bench.event().kind;
        assert!(
            matches!(told, EventKind::RestorationFailed { .. }),
            "{told:?}"
        );
        let told = bench.clock_event().kind;
        assert_eq!(told, ClockEventKind::RestorationFailed);
    }
}

// rule: T-6, K-1
#[test]
fn an_attach_that_a_server_found_malformed_is_not_sent_again() {
    for code in [11, 13] {
        let (mut bench, conn) = Bench::connected();
        let (call, _, reference) = bench.execute("ATTACH DOMAIN CLOCK;");
        bench.clock_attach(conn);
        bench.close(conn, status(code));
        let error = bench.fails(call, ErrorKind::Transport);
        assert_eq!(error.reference.as_deref(), Some(&*reference));
        // Nothing is open that a session would be needed for.
        bench.pass(SEC);
        bench.opens_nothing();
    }
}

// rule: T-6, D-6
#[test]
fn any_other_end_is_a_lost_session() {
    for cause in [
        Cause::Lost("reset by peer".into()),
        status(14),
        status(1),
        status(2),
        status(0),
        status(8),
        Cause::Violation("a compressed message".into()),
    ] {
        let (mut bench, conn) = Bench::connected();
        let (call, _, reference) = bench.execute(CREATE);
        let (_, command) = bench.command(conn);
        bench.close(conn, cause.clone());
        assert!(bench.is_waiting(call), "{cause:?}");
        let conn = bench.reconnected();
        let (id, same) = bench.command(conn);
        assert_eq!(same, command);
        bench.reply(conn, id, completed(&reference));
        bench.outcome(call);
    }
}

// rule: D-1, E-2
#[test]
fn a_redirect_is_followed_and_the_command_repeated() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute(CREATE);
    let (id, command) = bench.command(conn);
    bench.reply(
        conn,
        id,
        redirect(&reference, Some(endpoints("b", Some("http://b:2")))),
    );
    let (leader, origin) = bench.opened();
    assert_eq!(origin, "http://b:2");
    bench.greet(leader);
    let (id, same) = bench.command(leader);
    assert_eq!(same, command);
    bench.reply(leader, id, completed(&reference));
    bench.outcome(call);
    bench.pass(SEC);
    assert!(bench.is_reset(conn), "the session moved");
    bench.sends_nothing(conn);
}

// rule: D-1, S-7, D-5
#[test]
fn a_redirect_moves_subscriptions_before_the_command() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.subscription(conn, "t", 2);
    let (call, _, reference) = bench.execute(CREATE);
    let (id, _) = bench.command(conn);
    bench.reply(
        conn,
        id,
        redirect(&reference, Some(endpoints("b", Some("http://b:2")))),
    );
    let (leader, _) = bench.opened();
    bench.greet(leader);
    let mut names = Vec::new();
    for generation in [7, 8] {
        let (id, subscribe) = bench.subscribe(leader);
        let name = crate::common::watch::subscription_name(&subscribe.statement);
        bench.reply(leader, id, opened(&name, generation, numbers()));
        bench.frame(leader, rows(&name, generation, 9, 0..1));
        names.push(name);
    }
    let (id, _) = bench.command(leader);
    bench.reply(leader, id, completed(&reference));
    bench.outcome(call);
    // Events of the exchange that was left are ignored.
    bench.frame(conn, rows("s", 1, 9, 5..6));
    let events = bench.events();
    for name in ["s", "t"] {
        let told: Vec<_> = events.iter().filter(|event| &*event.name == name).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(matches!(told[0].kind, EventKind::Interrupted { .. }));
        assert!(matches!(told[1].kind, EventKind::Rows(_)));
        assert!(told[1].generation >= 7);
    }
}

// rule: D-2
#[test]
fn a_redirect_to_nobody_backs_off_and_asks_again() {
    for leader in [None, Some(endpoints("b", None))] {
        let (mut bench, conn) = Bench::connected();
        let (call, _, reference) = bench.execute(CREATE);
        let (mut id, command) = bench.command(conn);
        for _ in 0..4 {
            bench.reply(conn, id, redirect(&reference, leader.clone()));
            bench.opens_nothing();
            bench.sends_nothing(conn);
            let since = bench.now;
            let mut next = Vec::new();
            while next.is_empty() {
                bench.pass(10 * MS);
                bench.opens_nothing();
                next = bench.all_sent(conn);
            }
            assert!(bench.now - since >= 20 * MS && bench.now - since <= 3 * SEC);
            assert_eq!(next.len(), 1);
            assert_eq!(
                next[0].request,
                ClientRequest::CommandRequest(command.clone())
            );
            id = next[0].request_id;
        }
        bench.reply(conn, id, completed(&reference));
        bench.outcome(call);
    }
}

// rule: D-2, D-3
#[test]
fn an_observed_leader_ends_the_wait_for_one() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute(CREATE);
    // Long enough for waits of a second.
    for _ in 0..12 {
        for message in bench.all_sent(conn) {
            bench.reply(conn, message.request_id, redirect(&reference, None));
        }
        bench.pass(SEC / 2);
    }
    for message in bench.all_sent(conn) {
        bench.reply(conn, message.request_id, redirect(&reference, None));
    }
    bench.sends_nothing(conn);
    bench.frame(conn, leadership(leads_itself()));
    bench.pass(MS);
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, redirect(&reference, None));
    bench.frame(conn, leadership(led_by("http://b:2")));
    bench.pass(MS);
    // Straight there, or by another redirect.
    for message in bench.all_sent(conn) {
        let leader = endpoints("b", Some("http://b:2"));
        bench.reply(conn, message.request_id, redirect(&reference, Some(leader)));
    }
    let (leader, origin) = bench.opened();
    assert_eq!(origin, "http://b:2");
    bench.greet(leader);
    // After so many redirects it may take its time.
    bench.pass(2 * SEC);
    let (id, _) = bench.command(leader);
    bench.reply(leader, id, completed(&reference));
    bench.outcome(call);
}

// rule: D-2
#[test]
fn redirects_that_lead_nowhere_make_no_storm() {
    // To itself, to nonsense, to another scheme, and to one another.
    for target in [
        "http://a:1",
        "http://a:1/",
        "gopher://b",
        "not an address",
        "",
        "http://user:pw@b:2",
        "http://b:2/path",
    ] {
        let (mut bench, conn) = Bench::connected();
        let (call, _, reference) = bench.execute(CREATE);
        let start = bench.now;
        let mut conn = conn;
        let mut asked = 0;
        while bench.now < start + 10 * SEC {
            for message in bench.all_sent(conn) {
                if matches!(message.request, ClientRequest::CommandRequest(_)) {
                    asked += 1;
                    bench.reply(
                        conn,
                        message.request_id,
                        redirect(&reference, Some(endpoints("x", Some(target)))),
                    );
                }
            }
            while bench.will_open() {
                let (next, origin) = bench.opened();
                assert_eq!(origin, "http://a:1", "an address nobody may follow");
                bench.greet(next);
                conn = next;
            }
            bench.pass(MS);
        }
        assert!(bench.is_waiting(call), "{target}");
        assert!((2..=60).contains(&asked), "{asked} times for {target:?}");
    }
}

// rule: D-2
#[test]
fn two_servers_that_name_each_other_make_no_storm() {
    let (mut bench, first) = Bench::connected();
    let (call, _, reference) = bench.execute(CREATE);
    let start = bench.now;
    let mut conns = vec![(first, "http://a:1".to_owned())];
    let mut asked = 0;
    while bench.now < start + 10 * SEC {
        for (conn, origin) in conns.clone() {
            let other = if origin == "http://a:1" {
                "http://b:2"
            } else {
                "http://a:1"
            };
            for message in bench.all_sent(conn) {
                if matches!(message.request, ClientRequest::CommandRequest(_)) {
                    asked += 1;
                    bench.reply(
                        conn,
                        message.request_id,
                        redirect(&reference, Some(endpoints("x", Some(other)))),
                    );
                }
            }
        }
        while bench.will_open() {
            let (conn, origin) = bench.opened();
            bench.greet_as(conn, Leadership::LeaderUnknown);
            conns.push((conn, origin));
        }
        bench.pass(MS);
    }
    assert!(bench.is_waiting(call));
    assert!((2..=80).contains(&asked), "{asked} times in ten seconds");
}

// rule: T-2, D-2
#[test]
fn a_leader_that_is_not_followed_is_told_with_the_reason() {
    let long = format!("http://{}", "x".repeat(100_000));
    for (named, told) in [
        (Some("http://b:2"), "https is not led to http://b:2"),
        (Some("nonsense"), "must begin with http:// or https://"),
        (Some("https://ada:secret@b:2"), "user information"),
        (Some(long.as_str()), "is no host name"),
        (None, "has no address"),
    ] {
        let mut bench = Bench::new(&["https://a:1"]);
        let conn = bench.connect();
        let (call, _, reference) = bench.execute(CREATE);
        while bench.is_waiting(call) {
            if let Some(asked) = bench.quiet(conn, SEC).first() {
                let id = asked.request_id;
                bench.reply(conn, id, redirect(&reference, Some(endpoints("b", named))));
            }
        }
        let error = bench.fails(call, ErrorKind::Uncertain);
        assert!(error.message.contains(told), "{error}");
        assert!(!error.message.contains("secret") && error.message.len() < 1000);
    }
}

// rule: T-2, D-2
#[test]
fn https_is_never_left_for_http() {
    let mut bench = Bench::new(&["https://a:1", "http://plain:1"]);
    let call = bench.call(Call::Connect);
    let (conn, origin) = bench.opened();
    assert_eq!(origin, "https://a:1");
    bench.greet_as(conn, led_by("http://b:2"));
    bench.result(call).unwrap();
    let (call, _, reference) = bench.execute(CREATE);
    let (id, _) = bench.command(conn);
    bench.reply(
        conn,
        id,
        redirect(&reference, Some(endpoints("b", Some("http://b:2")))),
    );
    bench.opens_nothing();
    bench.pass(2 * SEC);
    bench.opens_nothing();
    let (id, _) = bench.command(conn);
    bench.reply(
        conn,
        id,
        redirect(&reference, Some(endpoints("c", Some("https://c:3")))),
    );
    let (next, origin) = bench.opened();
    assert_eq!(origin, "https://c:3");
    bench.greet(next);
    bench.pass(2 * SEC);
    bench.command(next);
    bench.lose(next);
    for _ in 0..12 {
        let (conn, origin) = bench.reopened();
        assert!(origin.starts_with("https://"), "{origin}");
        bench.close(conn, refused());
        if !bench.is_waiting(call) {
            break;
        }
    }
}

// rule: D-3
#[test]
fn a_lost_session_tries_seeds_and_learned_endpoints() {
    let mut bench = Bench::new(&["http://a:1", "http://b:2"]);
    let call = bench.call(Call::Connect);
    let (conn, _) = bench.opened();
    bench.greet_as(conn, led_by("http://learned:3"));
    bench.result(call).unwrap();
    let (call, ..) = bench.execute(CREATE);
    bench.command(conn);
    bench.lose(conn);
    let mut tried = Vec::new();
    for _ in 0..9 {
        let (conn, origin) = bench.reopened();
        tried.push(origin);
        bench.close(conn, refused());
    }
    for origin in ["http://a:1", "http://b:2", "http://learned:3"] {
        assert!(tried.contains(&origin.to_owned()), "{tried:?}");
    }
    assert!(bench.is_waiting(call));
}

// rule: D-3
#[test]
fn learned_endpoints_are_bounded() {
    let (mut bench, conn) = Bench::connected();
    bench.watch.many_servers = 33;
    for node in 0..500 {
        bench.frame(conn, leadership(led_by(&format!("http://n{node}:1"))));
    }
    bench.frame(conn, leadership(leads_itself()));
    bench.execute(CREATE);
    bench.command(conn);
    bench.lose(conn);
    let mut tried = std::collections::BTreeSet::new();
    let start = bench.now;
    while bench.now < start + 30 * SEC && tried.len() < 100 {
        let (conn, origin) = bench.reopened();
        tried.insert(origin);
        bench.close(conn, refused());
    }
    assert!(tried.len() <= 34, "{}", tried.len());
    assert!(tried.contains("http://a:1"));
}

// rule: D-2
#[test]
fn while_a_node_is_away_the_waits_grow_to_a_second() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.lose(conn);
    bench.events();
    let reader = bench.call(Call::NextEvent);
    let mut at = Vec::new();
    for _ in 0..20 {
        let (conn, _) = bench.reopened();
        at.push(bench.now);
        bench.close(conn, refused());
    }
    let waits: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let last = *waits.last().unwrap();
    assert!(last > waits[0], "{waits:?}");
    assert!((300 * MS..=2 * SEC).contains(&last), "{waits:?}");
    assert!(bench.is_waiting(reader));
}

// rule: D-5, S-7
#[test]
fn a_new_session_opens_subscriptions_before_commands() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    bench.subscription(conn, "t", 2);
    let (call, _, reference) = bench.execute(CREATE);
    let (_, first) = bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    let a = bench.subscribe(conn);
    let b = bench.subscribe(conn);
    let mut statements = vec![a.1.statement, b.1.statement];
    statements.sort();
    assert_eq!(
        statements,
        ["CREATE SUBSCRIPTION s TO r;", "CREATE SUBSCRIPTION t TO r;"]
    );
    assert_eq!(a.1.domain, "d");
    bench.reply(conn, a.0, opened("s", 5, numbers()));
    bench.reply(conn, b.0, not_opened("the relay is not ready"));
    let (id, same) = bench.command(conn);
    assert_eq!(same, first);
    bench.reply(conn, id, completed(&reference));
    bench.outcome(call);
}

// rule: T-8
#[test]
fn silence_is_probed_and_ends_the_session() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let reader = bench.call(Call::NextEvent);
    bench.pass(REQUEST_TIMEOUT - MS);
    bench.sends_nothing(conn);
    bench.pass(2 * MS);
    let probe = bench.sent(conn);
    assert_eq!(probe.request, ClientRequest::ListDomainsRequest);
    bench.reply(conn, probe.request_id, domain_list(&["d"]));
    bench.pass(REQUEST_TIMEOUT / 2);
    bench.frame(conn, rows("s", 1, 1, 0..1));
    assert!(matches!(bench.result(reader), Ok(Done::Event(_))));
    let reader = bench.call(Call::NextEvent);
    bench.pass(REQUEST_TIMEOUT - MS);
    bench.sends_nothing(conn);
    bench.pass(2 * MS);
    assert_eq!(bench.sent(conn).request, ClientRequest::ListDomainsRequest);
    bench.pass(REQUEST_TIMEOUT + MS);
    assert!(bench.is_reset(conn), "over after another timeout");
    let event = match bench.result(reader) {
        Ok(Done::Event(event)) => event,
        other => panic!("{other:?}"),
    };
    assert!(matches!(event.kind, EventKind::Interrupted { .. }));
    let reader = bench.call(Call::NextEvent);
    let conn = bench.reconnected();
    let (id, _) = bench.subscribe(conn);
    bench.reply(conn, id, opened("s", 2, numbers()));
    bench.frame(conn, rows("s", 2, 1, 0..1));
    assert!(matches!(bench.result(reader), Ok(Done::Event(_))));
}

// rule: T-8
#[test]
fn nobody_waiting_means_no_probe() {
    let (mut bench, conn) = Bench::connected();
    bench.pass(20 * REQUEST_TIMEOUT);
    bench.sends_nothing(conn);
    assert!(!bench.is_reset(conn));
    assert_eq!(bench.engine.wakeup(), None);
}

// rule: D-2
#[test]
fn a_wake_up_is_never_in_vain() {
    // The bench refuses a wake-up that stays due.
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute(CREATE);
    bench.command(conn);
    bench.execute("CREATE SCHEMA b (b I64);");
    bench.suggest("S");
    bench.frame(conn, b"no frame of the protocol");
    bench.pass(20 * MS);
    let conn = bench.reconnected();
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, unknown(&reference));
    bench.pass(SEC);
    let (id, _) = bench.command(conn);
    bench.reply(conn, id, completed(&reference));
    bench.outcome(call);
}

// rule: D-4
#[test]
fn the_end_of_the_host_ends_everything() {
    let (mut bench, conn) = Bench::connected();
    let (call, _, reference) = bench.execute(CREATE);
    bench.command(conn);
    let (queued, ..) = bench.execute("CREATE SCHEMA b (b I64);");
    let suggest = bench.suggest("S");
    let reader = bench.call(Call::NextEvent);
    bench.shut_down();
    let error = bench.error(call);
    assert_eq!(error.reference, Some(reference));
    for call in [queued, suggest, reader] {
        bench.fails(call, ErrorKind::Closed);
    }
    assert!(bench.is_reset(conn));
    let late = bench.suggest("T");
    bench.fails(late, ErrorKind::Closed);
    bench.frame(conn, notice("late"));
    bench.pass(300 * SEC);
    bench.opens_nothing();
}
