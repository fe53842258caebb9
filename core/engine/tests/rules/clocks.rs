//! Domain clocks: K-1 to K-5, B-9, B-11, CL-1.

use nervix_engine::{
    Call, CallId, ClockEvent, ClockEventKind, ConnId, Disposition, DomainClock, Done, ErrorKind,
    EventKind, ProjectionError, Stop, Tick,
};
use nervix_wire::types::*;
use proptest::prelude::*;

use crate::bench::{Bench, REQUEST_TIMEOUT};
use crate::common::frames::*;
use crate::common::{MS, SEC};

const ATTACH: &str = "ATTACH DOMAIN CLOCK;";
const DETACH: &str = "DETACH DOMAIN CLOCK;";

fn following() -> (Bench, ConnId) {
    let (mut bench, conn) = Bench::connected();
    bench.follow(conn, "d", clock(7, paced()));
    (bench, conn)
}

fn tick_of(event: &ClockEvent) -> (u64, u64) {
    match &event.kind {
        ClockEventKind::Tick { generation, tick } => (*generation, tick.id),
        other => panic!("{other:?}"),
    }
}

fn state_of(event: &ClockEvent) -> &DomainClockObservation {
    match &event.kind {
        ClockEventKind::State(clock) => clock,
        other => panic!("{other:?}"),
    }
}

fn tick_read(bench: &Bench) -> Option<u64> {
    bench.engine.domain_clock("d").unwrap().tick.map(|t| t.id)
}

/// Loses the session, reads the gap, and gets the next session with a reader waiting.
fn again(bench: &mut Bench, conn: ConnId) -> (ConnId, CallId) {
    bench.lose(conn);
    let event = bench.clock_event();
    assert_eq!(event.kind, ClockEventKind::Interrupted);
    let reader = bench.call(Call::NextClockEvent);
    assert!(bench.is_waiting(reader));
    let conn = bench.reconnected();
    (conn, reader)
}

fn read(bench: &mut Bench, reader: CallId) -> ClockEvent {
    match bench.result(reader) {
        Ok(Done::ClockEvent(event)) => event,
        other => panic!("{other:?}"),
    }
}

/// What a next session does not ask for.
fn is_forgotten(bench: &mut Bench, conn: ConnId) {
    bench.lose(conn);
    assert!(bench
        .clock_events()
        .iter()
        .all(|event| event.kind != ClockEventKind::Interrupted));
    bench.suggest("S");
    let conn = bench.reconnected();
    bench.pass(20 * MS);
    for message in bench.all_sent(conn) {
        assert!(
            matches!(message.request, ClientRequest::SuggestRequest(_)),
            "{message:?}"
        );
    }
}

// rule: K-1, B-11, L-2
#[test]
fn an_attach_names_its_domain_and_its_clock_is_there_before_any_event() {
    let (mut bench, conn) = Bench::connected();
    assert!(bench.engine.domain_clock("d").is_none());
    let (call, ..) = bench.execute("  attach  domain clock ");
    let (id, domain) = bench.clock_attach(conn);
    assert_eq!(domain, "d");
    assert!(bench.engine.domain_clock("d").is_none());
    bench.reply(conn, id, clock_attached("d", clock(7, paced())));
    let read = bench.engine.domain_clock("d").unwrap();
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
    assert_eq!((&*read.domain, read.tick), ("d", None));
    assert_eq!(read.clock, clock(7, paced()));
    // The attach's own clock is no event.
    bench.no_clock_event();
    assert!(bench.engine.domain_clock("e").is_none());
}

// rule: K-1, K-5
#[test]
fn the_clock_of_another_domain_is_no_answer() {
    let (mut bench, conn) = Bench::connected();
    let (call, ..) = bench.execute("ATTACH DOMAIN CLOCK;");
    let (id, _) = bench.clock_attach(conn);
    bench.reply(conn, id, clock_attached("e", clock(7, paced())));
    assert!(bench.is_reset(conn));
    assert!(bench.engine.domain_clock("e").is_none());
    let conn = bench.reconnected();
    let (id, domain) = bench.clock_attach(conn);
    assert_eq!(domain, "d");
    bench.reply(conn, id, clock_attached("d", clock(7, paced())));
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
    // Nor is it one when a session asks for it by itself.
    let (conn, _) = again(&mut bench, conn);
    let (id, _) = bench.clock_attach(conn);
    bench.reply(conn, id, clock_attached("e", clock(8, paced())));
    assert!(bench.is_reset(conn));
    assert!(bench.engine.domain_clock("e").is_none());
    let conn = bench.reconnected();
    assert_eq!(bench.clock_attach(conn).1, "d");
}

// rule: K-1
#[test]
fn a_clock_needs_a_domain() {
    let mut bench = Bench::with(&["http://a:1"], None);
    let conn = bench.connect();
    for query in [ATTACH, DETACH] {
        let (call, ..) = bench.execute(query);
        assert_eq!(bench.outcome(call).disposition, Disposition::Failed);
        bench.sends_nothing(conn);
    }
}

// rule: K-1
#[test]
fn a_refused_attach_fails_and_follows_nothing() {
    for refusal in [clock_domain_not_found("d"), clock_attach_failed("not now")] {
        let (mut bench, conn) = Bench::connected();
        let (call, ..) = bench.execute(ATTACH);
        let (id, _) = bench.clock_attach(conn);
        bench.reply(conn, id, refusal);
        let outcome = bench.outcome(call);
        assert_eq!(outcome.disposition, Disposition::Failed);
        assert!(!outcome.message.is_empty());
        assert!(bench.engine.domain_clock("d").is_none());
        bench.frame(conn, clock_observed("d", clock(7, paced())));
        bench.frame(conn, clock_ticked("d", 7, 1));
        bench.no_clock_event();
        is_forgotten(&mut bench, conn);
    }
}

// rule: K-1, B-11
#[test]
fn a_domain_is_followed_at_most_once() {
    let (mut bench, conn) = following();
    let (call, ..) = bench.execute(ATTACH);
    if bench.is_waiting(call) {
        let (id, _) = bench.clock_attach(conn);
        bench.reply(conn, id, clock_already_attached("d"));
    }
    assert_eq!(bench.outcome(call).disposition, Disposition::Failed);
    assert!(bench.engine.domain_clock("d").is_some(), "still followed");
    bench.frame(conn, clock_ticked("d", 7, 1));
    assert_eq!(tick_of(&bench.clock_event()), (7, 1));
}

// rule: K-1, K-3
#[test]
fn a_detach_ends_everything_about_the_clock() {
    for answer in [clock_detached("d"), clock_not_attached("d")] {
        let (mut bench, conn) = following();
        bench.frame(conn, clock_ticked("d", 7, 1));
        let (call, ..) = bench.execute(DETACH);
        let (id, domain) = bench.clock_detach(conn);
        assert_eq!(domain, "d");
        bench.frame(conn, clock_ticked("d", 7, 2));
        bench.reply(conn, id, answer);
        bench.outcome(call);
        assert!(bench.engine.domain_clock("d").is_none());
        bench.frame(conn, clock_ticked("d", 7, 3));
        bench.frame(conn, clock_observed("d", clock(8, paced())));
        bench.no_clock_event();
        is_forgotten(&mut bench, conn);
    }
}

// rule: K-1
#[test]
fn a_detach_that_failed_changes_nothing() {
    let (mut bench, conn) = following();
    let (call, ..) = bench.execute(DETACH);
    let (id, _) = bench.clock_detach(conn);
    bench.reply(conn, id, clock_detach_failed("no"));
    assert_eq!(bench.outcome(call).disposition, Disposition::Failed);
    bench.frame(conn, clock_ticked("d", 7, 1));
    assert_eq!(tick_of(&bench.clock_event()), (7, 1));
    let (conn, _) = again(&mut bench, conn);
    assert_eq!(bench.clock_attach(conn).1, "d");
}

// rule: K-1, C-9
#[test]
fn a_cancelled_attach_attaches_nothing() {
    for stage in [
        CancellationStage::BeforeAdmission,
        CancellationStage::AfterAdmission,
    ] {
        let (mut bench, conn) = Bench::connected();
        let (call, ..) = bench.execute(ATTACH);
        let (id, _) = bench.clock_attach(conn);
        bench.reply(conn, id, cancelled(stage));
        bench.fails(call, ErrorKind::Cancelled);
        assert!(bench.engine.domain_clock("d").is_none());
        bench.frame(conn, clock_ticked("d", 7, 1));
        bench.no_clock_event();
        is_forgotten(&mut bench, conn);
    }
}

// rule: K-1, C-9
#[test]
fn a_detach_cancelled_after_admission_has_detached() {
    for (stage, follows) in [
        (CancellationStage::BeforeAdmission, true),
        (CancellationStage::AfterAdmission, false),
    ] {
        let (mut bench, conn) = following();
        let (call, ..) = bench.execute(DETACH);
        let (id, _) = bench.clock_detach(conn);
        bench.reply(conn, id, cancelled(stage));
        let _ = bench.result(call);
        assert_eq!(bench.engine.domain_clock("d").is_some(), follows);
        if follows {
            bench.frame(conn, clock_ticked("d", 7, 1));
            assert_eq!(tick_of(&bench.clock_event()), (7, 1));
        } else {
            is_forgotten(&mut bench, conn);
        }
    }
}

// rule: K-1, K-5
#[test]
fn no_attach_is_sent_again_around_an_unanswered_detach() {
    let (mut bench, conn) = following();
    let (call, ..) = bench.execute(DETACH);
    bench.clock_detach(conn);
    bench.lose(conn);
    bench.suggest("S");
    let conn = bench.reconnected();
    let mut answered = 0;
    for _ in 0..30 {
        for message in bench.all_sent(conn) {
            match message.request {
                ClientRequest::SuggestRequest(_) => {}
                // The session that held it is over, so asking this one is needless and harmless.
                ClientRequest::DetachDomainClockRequest(_) => {
                    answered += 1;
                    bench.reply(conn, message.request_id, clock_not_attached("d"));
                }
                other => panic!("{other:?}"),
            }
        }
        bench.pass(100 * MS);
    }
    assert!(answered <= 1);
    assert!(!bench.is_waiting(call));
    bench.outcome(call);
    assert!(bench.engine.domain_clock("d").is_none());
    is_forgotten(&mut bench, conn);
}

// rule: K-1, K-5
#[test]
fn a_detach_stops_the_repetition_of_a_refused_attach() {
    let (mut bench, conn) = following();
    let (conn, reader) = again(&mut bench, conn);
    let (id, _) = bench.clock_attach(conn);
    bench.reply(conn, id, clock_attach_failed("not now"));
    let event = read(&mut bench, reader);
    assert_eq!(event.kind, ClockEventKind::RestorationFailed);
    let (call, ..) = bench.execute(DETACH);
    bench.pass(5 * SEC);
    if bench.is_waiting(call) {
        let (id, _) = bench.clock_detach(conn);
        bench.sends_nothing(conn);
        bench.reply(conn, id, clock_not_attached("d"));
    }
    bench.outcome(call);
    bench.pass(60 * SEC);
    for message in bench.all_sent(conn) {
        assert_eq!(message.request, ClientRequest::ListDomainsRequest);
        bench.reply(conn, message.request_id, domain_list(&["d"]));
    }
    assert!(bench.engine.domain_clock("d").is_none());
    bench.no_clock_event();
}

// rule: K-1, K-5
#[test]
fn a_detach_goes_behind_the_attach_that_was_sent_before_it() {
    let (mut bench, conn) = following();
    let (conn, _) = again(&mut bench, conn);
    let (attach, _) = bench.clock_attach(conn);
    let (call, ..) = bench.execute(DETACH);
    let (detach, _) = bench.clock_detach(conn);
    bench.reply(conn, attach, clock_attached("d", clock(7, paced())));
    bench.reply(conn, detach, clock_detached("d"));
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
    assert!(bench.engine.domain_clock("d").is_none());
    bench.frame(conn, clock_ticked("d", 7, 3));
    assert!(bench
        .clock_events()
        .iter()
        .all(|event| !matches!(event.kind, ClockEventKind::Tick { .. })));
    is_forgotten(&mut bench, conn);
}

// rule: K-2
#[test]
fn frames_of_domains_nobody_follows_are_ignored() {
    let (mut bench, conn) = Bench::connected();
    let (call, ..) = bench.execute(ATTACH);
    let (id, _) = bench.clock_attach(conn);
    // Before the reply nothing is followed.
    bench.frame(conn, clock_observed("d", clock(9, paced())));
    bench.frame(conn, clock_ticked("d", 9, 5));
    bench.frame(conn, clock_ended("d"));
    bench.reply(conn, id, clock_attached("d", clock(7, paced())));
    bench.outcome(call);
    for domain in ["e", "D", "d "] {
        bench.frame(conn, clock_observed(domain, clock(9, paced())));
        bench.frame(conn, clock_ticked(domain, 9, 5));
        bench.frame(conn, clock_ended(domain));
    }
    bench.no_clock_event();
    assert!(!bench.is_reset(conn));
    assert_eq!(
        bench.engine.domain_clock("d").unwrap().clock,
        clock(7, paced())
    );
}

// rule: K-2, B-11
#[test]
fn a_tick_is_never_handed_out_before_its_generations_clock() {
    let (mut bench, conn) = following();
    bench.frame(conn, clock_ticked("d", 8, 4));
    bench.no_clock_event();
    assert_eq!(tick_read(&bench), None);
    bench.frame(conn, clock_observed("d", clock(8, paced())));
    assert_eq!(tick_read(&bench), Some(4), "it waited for its clock");
    bench.frame(conn, clock_ticked("d", 8, 5));
    assert_eq!(*state_of(&bench.clock_event()), clock(8, paced()));
    assert_eq!(tick_of(&bench.clock_event()), (8, 5));
    // And none of the generation before it.
    bench.frame(conn, clock_ticked("d", 7, 100));
    bench.no_clock_event();
    assert_eq!(tick_read(&bench), Some(5));
}

// rule: K-2, B-9
#[test]
fn the_end_is_the_last_about_an_attachment() {
    let (mut bench, conn) = following();
    bench.frame(conn, clock_ticked("d", 7, 1));
    bench.frame(conn, clock_ended("d"));
    bench.frame(conn, clock_ticked("d", 7, 2));
    bench.frame(conn, clock_observed("d", clock(8, paced())));
    let events = bench.clock_events();
    assert_eq!(
        events.last().unwrap().kind,
        ClockEventKind::Ended(DomainClockAttachmentEndReason::DomainRemoved)
    );
    assert!(events.len() <= 2, "{events:?}");
    assert!(bench.engine.domain_clock("d").is_none());
    // Until a new attach, which follows the domain afresh.
    bench.follow(conn, "d", clock(1, paced()));
    bench.frame(conn, clock_ticked("d", 1, 1));
    assert_eq!(tick_of(&bench.clock_event()), (1, 1));
}

// rule: K-2, K-5
#[test]
fn an_ended_attachment_is_not_restored() {
    let (mut bench, conn) = following();
    bench.frame(conn, clock_ended("d"));
    bench.clock_events();
    is_forgotten(&mut bench, conn);
}

// rule: K-3, B-9
#[test]
fn states_and_ticks_are_coalesced_to_the_newest() {
    let (mut bench, conn) = following();
    for id in 1..50 {
        bench.frame(conn, clock_ticked("d", 7, id));
    }
    assert_eq!(tick_of(&bench.clock_event()), (7, 49));
    bench.no_clock_event();
    for generation in 8..20 {
        bench.frame(conn, clock_observed("d", clock(generation, paced())));
        bench.frame(conn, clock_ticked("d", generation, generation));
    }
    assert_eq!(*state_of(&bench.clock_event()), clock(19, paced()));
    assert_eq!(tick_of(&bench.clock_event()), (19, 19));
    bench.no_clock_event();
}

// rule: K-3
#[test]
fn a_tick_that_does_not_advance_is_ignored() {
    let (mut bench, conn) = following();
    bench.frame(conn, clock_ticked("d", 7, 10));
    assert_eq!(tick_of(&bench.clock_event()), (7, 10));
    for id in [10, 9, 1] {
        bench.frame(conn, clock_ticked("d", 7, id));
    }
    bench.no_clock_event();
    assert_eq!(tick_read(&bench), Some(10));
    bench.frame(conn, clock_ticked("d", 7, 13));
    bench.frame(conn, clock_ticked("d", 7, 12));
    assert_eq!(tick_of(&bench.clock_event()), (7, 13));
    bench.no_clock_event();
}

// rule: K-3
#[test]
fn a_new_state_clears_what_is_older() {
    for state in [
        clock(8, paced()),
        clock(7, DomainClockObservedState::StoppedDomainClock),
        clock(7, DomainClockObservedState::UninstalledDomainClock),
        clock(8, DomainClockObservedState::UnpacedDomainClock),
    ] {
        let (mut bench, conn) = following();
        bench.frame(conn, clock_ticked("d", 7, 10));
        bench.frame(conn, clock_observed("d", state.clone()));
        let read = bench.engine.domain_clock("d").unwrap();
        // Never older than what was handed out; it may be newer.
        if read.clock == state {
            assert_eq!(read.tick, None);
        }
        let events = bench.clock_events();
        assert_eq!(*state_of(events.last().unwrap()), state);
        let read = bench.engine.domain_clock("d").unwrap();
        assert_eq!((read.clock, read.tick), (state, None));
    }
}

// rule: K-3
#[test]
fn a_state_of_the_same_paced_generation_keeps_its_tick() {
    let (mut bench, conn) = following();
    bench.frame(conn, clock_ticked("d", 7, 10));
    bench.clock_event();
    bench.frame(conn, clock_observed("d", clock(7, paced())));
    for event in bench.clock_events() {
        state_of(&event);
    }
    assert_eq!(tick_read(&bench), Some(10));
    bench.frame(conn, clock_ticked("d", 7, 10));
    bench.no_clock_event();
}

// rule: K-4
#[test]
fn ids_and_instants_keep_their_whole_range() {
    let (mut bench, conn) = Bench::connected();
    bench.follow(
        conn,
        "d",
        clock(0, DomainClockObservedState::UninstalledDomainClock),
    );
    assert_eq!(bench.engine.domain_clock("d").unwrap().clock.generation, 0);
    let extreme = DomainClockObservedState::PacedDomainClock(PacedDomainClock {
        period_nanos: u64::MAX,
        skew_nanos: u64::MAX,
        logical_origin_unix_nanos: i64::MIN,
        utc_anchor_unix_nanos: i64::MAX,
        time_rate: f64::MIN_POSITIVE,
    });
    bench.frame(conn, clock_observed("d", clock(u64::MAX, extreme.clone())));
    let frame = server(ServerBody::DomainClockTicked(DomainClockTicked {
        domain: "d".into(),
        generation: u64::MAX,
        tick_id: u64::MAX,
        logical_boundary_unix_nanos: i64::MIN,
        authority_utc_unix_nanos: i64::MAX,
        serving_logical_unix_nanos: -1,
    }));
    bench.frame(conn, frame);
    assert_eq!(
        *state_of(&bench.clock_event()),
        clock(u64::MAX, extreme.clone())
    );
    let tick = Tick {
        id: u64::MAX,
        logical_boundary: i64::MIN,
        authority_utc: i64::MAX,
        serving_logical: -1,
    };
    assert_eq!(
        bench.clock_event().kind,
        ClockEventKind::Tick {
            generation: u64::MAX,
            tick
        }
    );
    let read = bench.engine.domain_clock("d").unwrap();
    assert_eq!(
        (read.clock, read.tick),
        (clock(u64::MAX, extreme), Some(tick))
    );
    assert!(!bench.is_reset(conn));
}

// rule: K-4, F-4, F-8
#[test]
fn a_clock_without_a_pace_breaks_the_protocol() {
    for (period_nanos, time_rate) in [
        (1, 0.0),
        (1, -1.0),
        (1, f64::NAN),
        (1, f64::INFINITY),
        (0, 1.0),
    ] {
        let state = DomainClockObservedState::PacedDomainClock(PacedDomainClock {
            period_nanos,
            skew_nanos: 0,
            logical_origin_unix_nanos: 0,
            utc_anchor_unix_nanos: 0,
            time_rate,
        });
        let (mut bench, conn) = following();
        let message = ServerMessage {
            body: ServerBody::DomainClockObserved(DomainClockObserved {
                domain: "d".into(),
                clock: clock(8, state),
            }),
        };
        let frame = nervix_wire::encode_server(&message).unwrap();
        bench.frame(conn, frame);
        assert!(bench.is_reset(conn), "{message:?}");
        assert_eq!(bench.clock_event().kind, ClockEventKind::Interrupted);
        let read = bench.engine.domain_clock("d").unwrap();
        assert_eq!(read.clock.generation, 7, "the last clock that was one");
    }
}

// rule: K-5, B-9, B-11, D-5
#[test]
fn a_lost_session_is_a_gap_and_the_restored_clock_a_state() {
    let (mut bench, conn) = following();
    bench.frame(conn, clock_ticked("d", 7, 10));
    bench.clock_event();
    bench.frame(conn, clock_ticked("d", 7, 11));
    bench.lose(conn);
    let read_between = bench.engine.domain_clock("d").unwrap();
    assert_eq!(
        (read_between.clock, read_between.tick),
        (clock(7, paced()), None)
    );
    // The unread tick is gone; the gap is told once.
    assert_eq!(bench.clock_event().kind, ClockEventKind::Interrupted);
    let reader = bench.call(Call::NextClockEvent);
    let conn = bench.reconnected();
    let (id, domain) = bench.clock_attach(conn);
    assert_eq!(domain, "d");
    bench.frame(conn, clock_ticked("d", 7, 20));
    assert!(bench.is_waiting(reader), "nothing before its reply");
    bench.reply(conn, id, clock_attached("d", clock(7, paced())));
    let event = read(&mut bench, reader);
    assert_eq!(
        *state_of(&event),
        clock(7, paced()),
        "told even when it is the same"
    );
    assert_eq!(tick_read(&bench), None);
    // The frontier starts anew.
    bench.frame(conn, clock_ticked("d", 7, 3));
    assert_eq!(tick_of(&bench.clock_event()), (7, 3));
    bench.no_clock_event();
}

// rule: K-5, D-5
#[test]
fn clocks_are_attached_before_subscriptions_and_commands() {
    let (mut bench, conn) = following();
    bench.subscription(conn, "s", 1);
    let (call, ..) = bench.execute("USE e;");
    bench.outcome(call);
    bench.follow(conn, "e", clock(1, paced()));
    let (call, _, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    bench.command(conn);
    bench.lose(conn);
    let conn = bench.reconnected();
    let mut seen = Vec::new();
    for message in bench.all_sent(conn) {
        match message.request {
            ClientRequest::AttachDomainClockRequest(attach) => {
                seen.push(attach.domain.clone());
                let reply = clock_attached(&attach.domain, clock(7, paced()));
                bench.reply(conn, message.request_id, reply);
            }
            ClientRequest::SubscribeRequest(_) => {
                seen.push("subscription".into());
                bench.reply(conn, message.request_id, opened("s", 2, numbers()));
            }
            ClientRequest::CommandRequest(_) => {
                seen.push("command".into());
                bench.reply(conn, message.request_id, completed(&reference));
            }
            other => panic!("{other:?}"),
        }
    }
    if seen.len() == 3 {
        let (id, _) = bench.command(conn);
        seen.push("command".into());
        bench.reply(conn, id, completed(&reference));
    }
    seen[..2].sort();
    assert_eq!(seen, ["d", "e", "subscription", "command"]);
    bench.outcome(call);
}

// rule: K-5, B-9
#[test]
fn a_session_that_holds_the_attachment_keeps_it() {
    let (mut bench, conn) = following();
    bench.frame(conn, clock_ticked("d", 7, 10));
    bench.clock_event();
    let (conn, reader) = again(&mut bench, conn);
    let (id, _) = bench.clock_attach(conn);
    bench.reply(conn, id, clock_already_attached("d"));
    let read_now = bench.engine.domain_clock("d").unwrap();
    assert_eq!((read_now.clock, read_now.tick), (clock(7, paced()), None));
    assert!(bench.is_waiting(reader), "with that session's later events");
    bench.frame(conn, clock_observed("d", clock(8, paced())));
    assert_eq!(*state_of(&read(&mut bench, reader)), clock(8, paced()));
    bench.frame(conn, clock_ticked("d", 8, 1));
    assert_eq!(tick_of(&bench.clock_event()), (8, 1));
}

// rule: K-5
#[test]
fn a_domain_that_is_gone_ends_its_attachment() {
    let (mut bench, conn) = following();
    let (conn, reader) = again(&mut bench, conn);
    let (id, _) = bench.clock_attach(conn);
    bench.reply(conn, id, clock_domain_not_found("d"));
    assert_eq!(
        read(&mut bench, reader).kind,
        ClockEventKind::Ended(DomainClockAttachmentEndReason::DomainRemoved)
    );
    assert!(bench.engine.domain_clock("d").is_none());
    bench.no_clock_event();
    is_forgotten(&mut bench, conn);
}

// rule: K-5, B-9
#[test]
fn a_refused_restoration_is_told_and_repeated_after_growing_waits() {
    let (mut bench, conn) = following();
    let (conn, mut reader) = again(&mut bench, conn);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let since = bench.now;
        let id = loop {
            if let Some(message) = bench.all_sent(conn).pop() {
                assert!(matches!(
                    message.request,
                    ClientRequest::AttachDomainClockRequest(_)
                ));
                break message.request_id;
            }
            bench.pass(10 * MS);
            assert!(bench.now - since < 120 * SEC);
        };
        waits.push(bench.now - since);
        bench.reply(conn, id, clock_attach_failed("not now"));
        assert_eq!(
            read(&mut bench, reader).kind,
            ClockEventKind::RestorationFailed
        );
        assert!(bench.engine.domain_clock("d").is_some(), "kept interrupted");
        reader = bench.call(Call::NextClockEvent);
        assert!(bench.is_waiting(reader));
    }
    assert!(waits[1] > 0 && waits[5] > waits[1], "{waits:?}");
    bench.reopens_within(conn);
}

impl Bench {
    /// The attach comes again and is answered, and the clock is followed.
    fn reopens_within(&mut self, conn: ConnId) {
        for _ in 0..6000 {
            if let Some(message) = self.all_sent(conn).pop() {
                self.reply(
                    conn,
                    message.request_id,
                    clock_attached("d", clock(9, paced())),
                );
                self.frame(conn, clock_ticked("d", 9, 1));
                assert_eq!(tick_read(self), Some(1));
                return;
            }
            self.pass(20 * MS);
        }
        panic!("never again");
    }
}

// rule: K-5, T-8
#[test]
fn an_unanswered_restoration_ends_its_session() {
    let (mut bench, conn) = following();
    let (conn, reader) = again(&mut bench, conn);
    bench.clock_attach(conn);
    bench.pass(REQUEST_TIMEOUT + SEC);
    assert!(bench.is_reset(conn));
    // A reader opens the next session rather than wait for the transport to fail.
    let mut reader = reader;
    let conn = bench.reconnected();
    let (id, _) = bench.clock_attach(conn);
    bench.reply(conn, id, clock_attached("d", clock(8, paced())));
    for _ in 0..3 {
        let event = read(&mut bench, reader);
        if matches!(event.kind, ClockEventKind::State(_)) {
            assert_eq!(*state_of(&event), clock(8, paced()));
            return;
        }
        assert!(matches!(
            event.kind,
            ClockEventKind::RestorationFailed | ClockEventKind::Interrupted
        ));
        reader = bench.call(Call::NextClockEvent);
    }
    panic!("no state");
}

/// A redirect moves the session to `http://b:2`; the new session, greeted, and the command that caused it.
fn moved(bench: &mut Bench, conn: ConnId) -> (ConnId, CallId, String) {
    bench.redirected(conn, "http://b:2")
}

// rule: K-2, K-5, D-1
#[test]
fn a_redirect_moves_a_clock_without_a_gap() {
    let (mut bench, conn) = following();
    // Keeps the session that is left alive, so that its frames arrive to the end.
    bench.producer(conn);
    bench.frame(conn, clock_ticked("d", 7, 10));
    bench.clock_event();
    let (next, ..) = moved(&mut bench, conn);
    let (id, _) = bench.clock_attach(next);
    // The previous session still brings what happens.
    bench.frame(conn, clock_ticked("d", 7, 11));
    assert_eq!(tick_of(&bench.clock_event()), (7, 11));
    bench.reply(next, id, clock_attached("d", clock(7, paced())));
    assert_eq!(tick_read(&bench), Some(11), "the newest tick is kept");
    bench.frame(next, clock_ticked("d", 7, 11));
    bench.frame(next, clock_ticked("d", 7, 5));
    for event in bench.clock_events() {
        assert_eq!(*state_of(&event), clock(7, paced()), "no gap, no old tick");
    }
    bench.frame(next, clock_ticked("d", 7, 12));
    assert_eq!(tick_of(&bench.clock_event()), (7, 12));
    // The old session is not heard any more.
    bench.frame(conn, clock_observed("d", clock(30, paced())));
    bench.frame(conn, clock_ticked("d", 30, 40));
    bench.frame(conn, clock_ticked("d", 7, 41));
    bench.frame(conn, clock_ended("d"));
    assert!(!bench.is_reset(conn));
    bench.no_clock_event();
    assert_eq!(tick_read(&bench), Some(12));
    bench.frame(next, clock_ended("d"));
    assert_eq!(
        bench.clock_event().kind,
        ClockEventKind::Ended(DomainClockAttachmentEndReason::DomainRemoved)
    );
}

// rule: K-5
#[test]
fn a_clock_that_changed_during_a_move_is_told() {
    for state in [
        clock(8, paced()),
        clock(7, DomainClockObservedState::StoppedDomainClock),
    ] {
        let (mut bench, conn) = following();
        bench.frame(conn, clock_ticked("d", 7, 10));
        bench.clock_event();
        let (next, ..) = moved(&mut bench, conn);
        let (id, _) = bench.clock_attach(next);
        bench.reply(next, id, clock_attached("d", state.clone()));
        let events = bench.clock_events();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(*state_of(&events[0]), state);
        assert_eq!(tick_read(&bench), None);
    }
}

// rule: K-3, K-5, B-11
#[test]
fn the_answer_to_a_move_takes_no_clock_back_that_was_told_meanwhile() {
    for state in [
        clock(8, paced()),
        clock(7, DomainClockObservedState::StoppedDomainClock),
    ] {
        let (mut bench, conn) = following();
        bench.frame(conn, clock_ticked("d", 7, 10));
        bench.clock_event();
        let (next, ..) = moved(&mut bench, conn);
        let (id, _) = bench.clock_attach(next);
        // The answer was given before this, and arrives after it, since it comes another way.
        bench.frame(conn, clock_observed("d", state.clone()));
        assert_eq!(*state_of(&bench.clock_event()), state);
        bench.reply(next, id, clock_attached("d", clock(7, paced())));
        bench.frame(next, clock_ticked("d", 7, 10));
        bench.no_clock_event();
        assert_eq!(bench.engine.domain_clock("d").unwrap().clock, state);
        assert_eq!(tick_read(&bench), None);
        bench.frame(next, clock_observed("d", state.clone()));
        for event in bench.clock_events() {
            assert_eq!(*state_of(&event), state);
        }
        // The new session tells what comes next.
        bench.frame(next, clock_observed("d", clock(9, paced())));
        bench.frame(next, clock_ticked("d", 9, 1));
        assert_eq!(*state_of(&bench.clock_event()), clock(9, paced()));
        assert_eq!(tick_of(&bench.clock_event()), (9, 1));
    }
}

// rule: K-5, K-1
#[test]
fn a_redirect_during_a_detach_attaches_nothing() {
    let (mut bench, conn) = following();
    let (detach, ..) = bench.execute(DETACH);
    let (id, _) = bench.clock_detach(conn);
    let (next, _) = {
        bench.frame(
            conn,
            ending(SessionEndReason::LeaderRedirect(LeaderRedirect {
                leader: Some(endpoints("b", Some("http://b:2"))),
            })),
        );
        bench.suggest("S");
        bench.reopened()
    };
    bench.greet(next);
    bench.pass(20 * MS);
    for message in bench.all_sent(next) {
        match message.request {
            ClientRequest::SuggestRequest(_) => {}
            ClientRequest::DetachDomainClockRequest(_) => {
                bench.reply(next, message.request_id, clock_not_attached("d"));
            }
            other => panic!("{other:?} for {id}"),
        }
    }
    bench.outcome(detach);
    assert!(bench.engine.domain_clock("d").is_none());
}

// rule: K-5, B-11
#[test]
fn an_attach_whose_session_is_lost_is_sent_again() {
    let (mut bench, conn) = Bench::connected();
    let (call, ..) = bench.execute(ATTACH);
    bench.clock_attach(conn);
    bench.lose(conn);
    assert!(bench.is_waiting(call));
    let conn = bench.reconnected();
    let (id, _) = bench.clock_attach(conn);
    bench.sends_nothing(conn);
    bench.reply(conn, id, clock_attached("d", clock(7, paced())));
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
    assert!(bench.engine.domain_clock("d").is_some());
    // There was no gap in a clock that was never followed.
    bench.no_clock_event();
}

// rule: B-11, B-1
#[test]
fn an_attach_nobody_waited_for_is_answered_to_the_next() {
    for (why, kind) in [
        (Stop::Cancelled, ErrorKind::Cancelled),
        (Stop::Deadline, ErrorKind::Deadline),
    ] {
        for cancels in [false, true] {
            let (mut bench, conn) = Bench::connected();
            let (call, execution, _) = bench.execute(ATTACH);
            let (id, _) = bench.clock_attach(conn);
            bench.stop(call, why);
            bench.fails(call, kind);
            let again = bench.call(Call::Execute(execution));
            let mut attached = false;
            for _ in 0..10 {
                for message in bench.all_sent(conn) {
                    match message.request {
                        ClientRequest::CancelRequest(cancel) => {
                            assert_eq!(cancel.target_request_id, id);
                            let (state, answer) = if cancels {
                                (
                                    CancelState::Requested,
                                    cancelled(CancellationStage::AfterAdmission),
                                )
                            } else {
                                attached = true;
                                (
                                    CancelState::NotInFlight,
                                    clock_attached("d", clock(7, paced())),
                                )
                            };
                            bench.reply(conn, id, answer);
                            bench.reply(conn, message.request_id, cancel_outcome(id, state));
                        }
                        ClientRequest::AttachDomainClockRequest(_) => {
                            let answer = if attached {
                                clock_already_attached("d")
                            } else {
                                attached = true;
                                clock_attached("d", clock(7, paced()))
                            };
                            bench.reply(conn, message.request_id, answer);
                        }
                        other => panic!("{other:?}"),
                    }
                }
                bench.pass(100 * MS);
            }
            if !attached {
                // It never asked for a cancellation: the first attach is answered late.
                bench.reply(conn, id, clock_attached("d", clock(7, paced())));
            }
            let outcome = bench.outcome(again);
            assert!(matches!(
                outcome.disposition,
                Disposition::Completed | Disposition::Failed
            ));
            let read = bench.engine.domain_clock("d").unwrap();
            assert_eq!(read.clock, clock(7, paced()), "the session follows it");
            bench.frame(conn, clock_ticked("d", 7, 1));
            assert_eq!(tick_of(&bench.clock_event()), (7, 1));
        }
    }
}

// rule: B-9
#[test]
fn clocks_of_two_domains_do_not_mix() {
    let (mut bench, conn) = following();
    let (call, ..) = bench.execute("USE e;");
    bench.outcome(call);
    bench.follow(conn, "e", clock(3, paced()));
    bench.frame(conn, clock_ticked("d", 7, 10));
    bench.frame(conn, clock_ticked("e", 3, 10));
    bench.frame(conn, clock_ticked("d", 7, 11));
    let mut seen: Vec<_> = bench
        .clock_events()
        .iter()
        .map(|event| (event.domain.to_string(), tick_of(event)))
        .collect();
    seen.sort();
    assert_eq!(seen, [("d".to_owned(), (7, 11)), ("e".to_owned(), (3, 10))]);
    // A detach of the selected one leaves the other.
    let (call, ..) = bench.execute(DETACH);
    let (id, domain) = bench.clock_detach(conn);
    assert_eq!(domain, "e");
    bench.reply(conn, id, clock_detached("e"));
    bench.outcome(call);
    bench.frame(conn, clock_ticked("e", 3, 11));
    bench.frame(conn, clock_ticked("d", 7, 12));
    let event = bench.clock_event();
    assert_eq!((&*event.domain, tick_of(&event)), ("d", (7, 12)));
    bench.no_clock_event();
}

// rule: B-9
#[test]
fn a_reader_of_a_session_that_follows_nothing_waits() {
    let (mut bench, conn) = Bench::connected();
    let reader = bench.call(Call::NextClockEvent);
    assert!(bench.is_waiting(reader));
    bench.follow(conn, "d", clock(7, paced()));
    bench.frame(conn, clock_ticked("d", 7, 1));
    assert_eq!(tick_of(&read(&mut bench, reader)), (7, 1));
    let reader = bench.call(Call::NextClockEvent);
    bench.shut_down();
    bench.fails(reader, ErrorKind::Closed);
}

// rule: B-9, K-5
#[test]
fn gaps_are_told_once_each_and_do_not_pile_up() {
    let (mut bench, conn) = following();
    let mut conn = conn;
    for round in 0..10 {
        bench.lose(conn);
        bench.suggest("S");
        conn = bench.reconnected();
        let (id, _) = bench.clock_attach(conn);
        bench.all_sent(conn);
        bench.reply(conn, id, clock_attached("d", clock(8 + round, paced())));
        bench.frame(conn, clock_ticked("d", 8 + round, 1));
    }
    let events = bench.clock_events();
    assert_eq!(events[0].kind, ClockEventKind::Interrupted);
    assert_eq!(*state_of(&events[1]), clock(17, paced()));
    assert_eq!(tick_of(&events[2]), (17, 1));
    assert_eq!(events.len(), 3, "{events:?}");
}

// rule: CL-1, S-5
#[test]
fn rows_without_domain_time_are_a_gap_like_any() {
    let (mut bench, conn) = Bench::connected();
    bench.subscription(conn, "s", 1);
    let frame = server(ServerBody::SubscriptionRowsSkipped(
        SubscriptionRowsSkipped {
            subscription: handle("s", 1),
            cause: RowsSkippedCause::DomainTimeUnavailable,
            skipped_rows: 4,
            message: "the domain has no time".into(),
        },
    ));
    bench.frame(conn, frame);
    bench.frame(conn, rows("s", 1, 1, 0..1));
    match bench.event().kind {
        EventKind::RowsSkipped { rows, cause, .. } => {
            assert_eq!((rows, cause), (4, RowsSkippedCause::DomainTimeUnavailable));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(bench.event().kind, EventKind::Rows(_)));
}

// ---- projections

fn of(state: DomainClockObservedState) -> DomainClock {
    DomainClock {
        domain: "d".into(),
        clock: clock(1, state),
        tick: None,
    }
}

fn paced_as(period: u64, skew: u64, origin: i64, anchor: i64, rate: f64) -> DomainClock {
    of(DomainClockObservedState::PacedDomainClock(
        PacedDomainClock {
            period_nanos: period,
            skew_nanos: skew,
            logical_origin_unix_nanos: origin,
            utc_anchor_unix_nanos: anchor,
            time_rate: rate,
        },
    ))
}

// rule: B-11
#[test]
fn a_clock_that_does_not_run_has_no_time() {
    for state in [
        DomainClockObservedState::StoppedDomainClock,
        DomainClockObservedState::UninstalledDomainClock,
    ] {
        let clock = of(state);
        let none = ProjectionError::NoTime;
        assert_eq!(clock.logical_time_at(5), Err(none));
        assert_eq!(clock.wall_duration_until(5, 6), Err(none));
        assert_eq!(clock.admission_window(5), Err(none));
        assert_eq!(clock.admits(5, 6), Err(none));
    }
    let clock = of(DomainClockObservedState::UnpacedDomainClock);
    assert_eq!(clock.logical_time_at(-5), Ok(-5));
    assert_eq!(clock.wall_duration_until(i64::MIN, i64::MAX), Ok(u64::MAX));
    assert_eq!(clock.wall_duration_until(6, 5), Ok(0));
    assert_eq!(clock.admission_window(5), Ok(None));
    assert_eq!(clock.admits(5, i64::MIN), Ok(true));
}

// rule: B-11, K-4
#[test]
fn the_mapping_rounds_as_it_must() {
    let second = 1_000_000_000;
    let fast = paced_as(second, 0, 0, 0, 4.0);
    assert_eq!(
        fast.wall_duration_until(0, second as i64),
        Ok(second / 4),
        "one second of logical time"
    );
    assert_eq!(fast.wall_duration_until(0, 1), Ok(1));
    assert_eq!(paced_as(1, 0, 0, 0, 0.3).logical_time_at(10), Ok(3));
    let even = paced_as(second, 0, 100, 50, 1.0);
    assert_eq!(even.logical_time_at(i64::MIN), Ok(100), "never before");
    let at = 50 + 3_500_000_000;
    assert_eq!(even.logical_time_at(at), Ok(100 + 3_500_000_000));
    assert_eq!(
        even.admission_window(at),
        Ok(Some((100, 100 + 3 * 1_000_000_000)))
    );
    assert_eq!(
        paced_as(1, 0, i64::MAX, 0, 1.0).logical_time_at(1),
        Err(ProjectionError::OutOfRange)
    );
    assert_eq!(
        paced_as(1, 0, 0, 0, 1e300).logical_time_at(1),
        Err(ProjectionError::OutOfRange)
    );
    assert_eq!(
        paced_as(1, 0, 0, 0, 1e-300).wall_duration_until(0, 1),
        Err(ProjectionError::OutOfRange)
    );
    // Gaps between the centers, and the 256 that are kept.
    let gaps = paced_as(10, 2, 0, 0, 1.0);
    for (event, admitted) in [
        (9998, true),
        (10000, true),
        (10002, true),
        (10003, false),
        (9997, false),
        (10000 - 255 * 10 - 2, true),
        (10000 - 255 * 10 - 3, false),
        (10000 - 256 * 10, false),
        (i64::MIN, false),
        (i64::MAX, false),
    ] {
        assert_eq!(gaps.admits(10_005, event), Ok(admitted), "{event}");
    }
}

fn fits(value: i128) -> Result<i64, ProjectionError> {
    i64::try_from(value).map_err(|_| ProjectionError::OutOfRange)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    // rule: B-11, K-4
    #[test]
    fn the_mapping_is_the_one_of_the_contract(
        period in prop_oneof![1u64..50, 1u64..2_000_000_000, any::<u64>().prop_map(|p| p.max(1))],
        skew in prop_oneof![0u64..100, any::<u64>()],
        origin in prop_oneof![-1000i64..1000, any::<i64>()],
        anchor in prop_oneof![-1000i64..1000, any::<i64>()],
        rate in prop_oneof![Just(1.0f64), Just(4.0), 0.001f64..1000.0],
        utc in prop_oneof![-2000i64..5000, any::<i64>()],
        other in prop_oneof![-2000i64..5000, any::<i64>()],
    ) {
        let clock = paced_as(period, skew, origin, anchor, rate);
        let elapsed = (i128::from(utc) - i128::from(anchor)).max(0);
        let passed = if rate == 1.0 { elapsed } else { ((elapsed as f64) * rate).floor() as i128 };
        let logical = fits(i128::from(origin) + passed);
        prop_assert_eq!(clock.logical_time_at(utc), logical);
        let Ok(logical) = logical else { return Ok(()) };
        let delta = i128::from(other) - i128::from(logical);
        let wait = if delta <= 0 {
            0
        } else if rate == 1.0 {
            delta
        } else {
            ((delta as f64 / rate).ceil() as i128).max(1)
        };
        prop_assert_eq!(
            clock.wall_duration_until(utc, other),
            u64::try_from(wait).map_err(|_| ProjectionError::OutOfRange)
        );
        let newest = (i128::from(logical) - i128::from(origin)) / i128::from(period);
        let earliest = (newest - 255).max(0);
        let center = |index: i128| i128::from(origin) + index * i128::from(period);
        prop_assert_eq!(
            clock.admission_window(utc),
            Ok(Some((fits(center(earliest)).unwrap(), fits(center(newest)).unwrap())))
        );
        // Every kept center, one after the other.
        let admitted = (earliest..=newest).any(|index| {
            (i128::from(other) - center(index)).unsigned_abs() <= u128::from(skew)
        });
        prop_assert_eq!(clock.admits(utc, other), Ok(admitted));
    }
}

// ---- the queue of events, against a model of it

/// What may happen to a followed clock.
#[derive(Debug, Clone)]
enum Step {
    Observed { newer: bool, paced: bool },
    Ticked { ahead: u64, generations: i8 },
    Lost,
    Restored { newer: bool, paced: bool },
    AlreadyAttached,
    Refused,
    Read,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(newer, paced)| Step::Observed { newer, paced }),
        5 => (0u64..4, prop_oneof![6 => Just(0i8), 1 => Just(-1), 1 => Just(1)])
            .prop_map(|(ahead, generations)| Step::Ticked { ahead, generations }),
        1 => Just(Step::Lost),
        3 => (any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(newer, paced)| Step::Restored { newer, paced }),
        1 => Just(Step::AlreadyAttached),
        1 => Just(Step::Refused),
        4 => Just(Step::Read),
    ];
    prop::collection::vec(step, 1..60)
}

/// A clock as its host must find it, and what it has not read.
struct Model {
    clock: DomainClockObservation,
    tick: Option<u64>,
    /// A tick of a generation that was not observed yet.
    early: Option<(u64, u64)>,
    attached: bool,
    gap: bool,
    refused: bool,
    state: bool,
    unread: bool,
}

impl Model {
    fn is_paced(&self) -> bool {
        matches!(
            self.clock.state,
            DomainClockObservedState::PacedDomainClock(_)
        )
    }

    fn next(&self, newer: bool, is_paced: bool) -> DomainClockObservation {
        let state = if is_paced {
            paced()
        } else {
            DomainClockObservedState::StoppedDomainClock
        };
        clock(self.clock.generation + u64::from(newer), state)
    }

    fn install(&mut self, observed: DomainClockObservation) {
        let same = self.clock.generation == observed.generation;
        let early = self.early.take();
        self.clock = observed;
        if !same || !self.is_paced() {
            (self.tick, self.unread) = (None, false);
        }
        self.state = true;
        match early {
            Some((generation, id)) if generation == self.clock.generation && self.is_paced() => {
                (self.tick, self.unread) = (Some(id), true);
            }
            _ => {}
        }
    }

    /// Everything that is unread, in its order.
    fn take(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        if std::mem::take(&mut self.gap) {
            events.push("gap".to_owned());
        }
        if std::mem::take(&mut self.refused) {
            events.push("refused".to_owned());
        }
        if std::mem::take(&mut self.state) {
            events.push(format!("state {:?}", self.clock));
        }
        if std::mem::take(&mut self.unread) {
            events.push(format!(
                "tick {} of {}",
                self.tick.unwrap(),
                self.clock.generation
            ));
        }
        events
    }
}

fn told(events: &[ClockEvent]) -> Vec<String> {
    events
        .iter()
        .map(|event| match &event.kind {
            ClockEventKind::Interrupted => "gap".to_owned(),
            ClockEventKind::RestorationFailed => "refused".to_owned(),
            ClockEventKind::State(clock) => format!("state {clock:?}"),
            ClockEventKind::Tick { generation, tick } => {
                format!("tick {} of {generation}", tick.id)
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    // rule: K-2, K-3, K-5, B-9, B-11
    #[test]
    fn what_is_unread_of_a_clock_is_what_the_model_says(steps in steps()) {
        let (mut bench, mut conn) = following();
        let mut model = Model {
            clock: clock(7, paced()),
            tick: None,
            early: None,
            attached: true,
            gap: false,
            refused: false,
            state: false,
            unread: false,
        };
        for step in steps {
            match step {
                Step::Observed { newer, paced } if model.attached => {
                    let observed = model.next(newer, paced);
                    bench.frame(conn, clock_observed("d", observed.clone()));
                    model.install(observed);
                }
                Step::Ticked { ahead, generations } if model.attached => {
                    let generation = model.clock.generation.saturating_add_signed(generations.into());
                    let id = (model.tick.unwrap_or(0) + ahead).max(1);
                    bench.frame(conn, clock_ticked("d", generation, id));
                    // Of a later generation it waits until that one is observed.
                    if generation == model.clock.generation
                        && model.is_paced()
                        && model.tick.is_none_or(|last| id > last)
                    {
                        (model.tick, model.unread) = (Some(id), true);
                    } else if generation > model.clock.generation {
                        model.early = Some((generation, id));
                    }
                }
                Step::Lost => {
                    let held = model.attached;
                    bench.lose(conn);
                    bench.suggest("S");
                    conn = bench.reconnected();
                    if held {
                        (model.gap, model.refused, model.state) = (true, false, false);
                    }
                    (model.tick, model.unread, model.early) = (None, false, None);
                    model.attached = false;
                }
                Step::Restored { .. } | Step::AlreadyAttached | Step::Refused if !model.attached => {
                    let attach = loop {
                        let sent = bench.quiet(conn, 100 * MS);
                        let attach = sent.iter().find(|message| {
                            matches!(message.request, ClientRequest::AttachDomainClockRequest(_))
                        });
                        for message in &sent {
                            if let ClientRequest::SuggestRequest(_) = message.request {
                                bench.reply(conn, message.request_id, suggestions(&["x"]));
                            }
                        }
                        if let Some(attach) = attach {
                            break attach.request_id;
                        }
                    };
                    match step {
                        Step::Restored { newer, paced } => {
                            let observed = model.next(newer, paced);
                            bench.reply(conn, attach, clock_attached("d", observed.clone()));
                            model.install(observed);
                            model.attached = true;
                        }
                        Step::AlreadyAttached => {
                            bench.reply(conn, attach, clock_already_attached("d"));
                            model.attached = true;
                        }
                        _ => {
                            bench.reply(conn, attach, clock_attach_failed("not now"));
                            model.refused = true;
                        }
                    }
                }
                Step::Read => {
                    let events = bench.clock_events();
                    prop_assert_eq!(told(&events), model.take());
                }
                _ => {}
            }
            let read = bench.engine.domain_clock("d").unwrap();
            prop_assert_eq!(&read.clock, &model.clock);
            prop_assert_eq!(read.tick.map(|tick| tick.id), model.tick);
        }
        let events = bench.clock_events();
        prop_assert_eq!(told(&events), model.take());
    }
}

// rule: D-5, K-5
#[test]
fn a_wait_after_a_refusal_ends_with_the_session_that_refused() {
    let (mut bench, conn) = following();
    let (conn, _) = again(&mut bench, conn);
    let (id, _) = bench.clock_attach(conn);
    bench.reply(conn, id, clock_attach_failed("not now"));
    let (call, _, reference) = bench.execute("CREATE SCHEMA a (b I64);");
    let (id, _) = bench.command(conn);
    let leader = Some(endpoints("b", Some("http://b:2")));
    bench.reply(conn, id, redirect(&reference, leader));
    let (next, _) = bench.opened();
    bench.greet(next);
    assert_eq!(bench.clock_attach(next).1, "d", "ahead of the command");
    let (id, _) = bench.command(next);
    bench.reply(next, id, completed(&reference));
    bench.outcome(call);
}

// rule: K-5, B-9
#[test]
fn a_move_whose_attach_is_refused_is_a_gap() {
    let (mut bench, conn) = following();
    bench.frame(conn, clock_ticked("d", 7, 10));
    bench.clock_event();
    let (next, ..) = moved(&mut bench, conn);
    let (id, _) = bench.clock_attach(next);
    bench.reply(next, id, clock_attach_failed("not now"));
    let kinds: Vec<_> = bench.clock_events().into_iter().map(|e| e.kind).collect();
    assert_eq!(
        kinds,
        [
            ClockEventKind::Interrupted,
            ClockEventKind::RestorationFailed
        ]
    );
    assert_eq!(tick_read(&bench), None);
    bench.frame(conn, clock_ticked("d", 7, 11));
    bench.no_clock_event();
}

// rule: K-1
#[test]
fn an_attach_waits_for_the_answer_to_an_abandoned_detach() {
    let (mut bench, conn) = following();
    let (call, ..) = bench.execute(DETACH);
    let (detach, _) = bench.clock_detach(conn);
    bench.stop(call, Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    bench.all_sent(conn);
    let (call, ..) = bench.execute(ATTACH);
    bench.pass(SEC);
    bench.sends_nothing(conn);
    bench.reply(conn, detach, clock_detached("d"));
    let (attach, _) = bench.clock_attach(conn);
    bench.reply(conn, attach, clock_attached("d", clock(7, paced())));
    assert_eq!(bench.outcome(call).disposition, Disposition::Completed);
    assert!(bench.engine.domain_clock("d").is_some());
}

// rule: B-9, B-11
#[test]
fn the_clock_of_an_abandoned_attach_is_told() {
    let (mut bench, conn) = Bench::connected();
    let (call, ..) = bench.execute(ATTACH);
    let (asked, _) = bench.clock_attach(conn);
    bench.stop(call, Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    bench.reply(conn, asked, clock_attached("d", clock(8, paced())));
    bench.frame(conn, clock_ticked("d", 8, 3));
    assert_eq!(*state_of(&bench.clock_event()), clock(8, paced()));
    assert_eq!(tick_of(&bench.clock_event()), (8, 3));
}

// rule: B-9, B-11, K-5
#[test]
fn the_clock_that_an_abandoned_attach_restored_is_told() {
    let (mut bench, conn) = following();
    let (conn, reader) = again(&mut bench, conn);
    let (own, _) = bench.clock_attach(conn);
    let (call, ..) = bench.execute(ATTACH);
    let (asked, _) = bench.clock_attach(conn);
    bench.stop(call, Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    bench.reply(conn, own, clock_attach_failed("not now"));
    assert_eq!(
        read(&mut bench, reader).kind,
        ClockEventKind::RestorationFailed
    );
    bench.reply(conn, asked, clock_attached("d", clock(8, paced())));
    bench.frame(conn, clock_ticked("d", 8, 3));
    assert_eq!(*state_of(&bench.clock_event()), clock(8, paced()));
    assert_eq!(tick_of(&bench.clock_event()), (8, 3));
}

// rule: K-1, K-5, D-1
#[test]
fn an_attach_that_a_session_left_behind_answers_late_changes_nothing() {
    for late in [
        clock_attached("d", clock(9, paced())),
        clock_already_attached("d"),
        clock_domain_not_found("d"),
        clock_attach_failed("not now"),
        rejected(RequestRejection::ServerBusy),
        cancelled(CancellationStage::AfterAdmission),
    ] {
        let (mut bench, first) = following();
        bench.frame(first, clock_ticked("d", 7, 10));
        bench.clock_event();
        let (second, call, reference) = moved(&mut bench, first);
        let (left, _) = bench.clock_attach(second);
        // The command is redirected once more, ahead of that answer.
        let (id, _) = bench.command(second);
        let leader = Some(endpoints("c", Some("http://c:3")));
        bench.reply(second, id, redirect(&reference, leader));
        let (third, _) = bench.opened();
        bench.greet(third);
        let (attach, _) = bench.clock_attach(third);
        bench.reply(second, left, late.clone());
        bench.frame(second, clock_observed("d", clock(9, paced())));
        bench.frame(second, clock_ticked("d", 9, 50));
        bench.frame(second, clock_ended("d"));
        bench.no_clock_event();
        // The first session holds it until the third one does.
        bench.frame(first, clock_ticked("d", 7, 11));
        assert_eq!(tick_of(&bench.clock_event()), (7, 11), "{late:?}");
        bench.reply(third, attach, clock_attached("d", clock(7, paced())));
        assert_eq!(tick_read(&bench), Some(11), "{late:?}");
        bench.no_clock_event();
        bench.frame(third, clock_ticked("d", 7, 12));
        assert_eq!(tick_of(&bench.clock_event()), (7, 12), "{late:?}");
        assert!(bench.is_reset(first) && bench.is_reset(second));
        bench.pass(5 * SEC);
        bench.complete(third, call, &reference);
        bench.sends_nothing(third);
    }
}

// rule: K-1, D-1
#[test]
fn a_detach_waits_for_the_attach_that_is_unanswered_on_the_session_left_behind() {
    for attached in [true, false] {
        let (mut bench, conn) = Bench::connected();
        let (call, ..) = bench.execute(ATTACH);
        let (asked, _) = bench.clock_attach(conn);
        bench.stop(call, Stop::Cancelled);
        bench.fails(call, ErrorKind::Cancelled);
        let (next, call, reference) = moved(&mut bench, conn);
        bench.complete(next, call, &reference);
        let (detach, ..) = bench.execute(DETACH);
        bench.pass(SEC);
        bench.sends_nothing(next);
        assert!(bench.is_waiting(detach), "what it ends is not known yet");
        if attached {
            bench.reply(conn, asked, clock_attached("d", clock(7, paced())));
            // What moves the clock goes ahead of what ends it.
            let (moving, _) = bench.clock_attach(next);
            let (id, _) = bench.clock_detach(next);
            bench.reply(next, moving, clock_attached("d", clock(7, paced())));
            bench.reply(next, id, clock_detached("d"));
            assert_eq!(bench.outcome(detach).disposition, Disposition::Completed);
        } else {
            bench.reply(conn, asked, clock_attach_failed("not now"));
            let (id, _) = bench.clock_detach(next);
            bench.reply(next, id, clock_not_attached("d"));
            assert_eq!(bench.outcome(detach).disposition, Disposition::Failed);
        }
        assert!(bench.engine.domain_clock("d").is_none());
        assert!(bench.is_reset(conn));
        bench.frame(next, clock_ticked("d", 7, 1));
        assert!(bench
            .clock_events()
            .iter()
            .all(|event| !matches!(event.kind, ClockEventKind::Tick { .. })));
        is_forgotten(&mut bench, next);
    }
}

// rule: K-1, D-1
#[test]
fn what_asks_for_a_clock_waits_for_the_detach_that_is_unanswered_on_the_session_left_behind() {
    for again in [ATTACH, DETACH] {
        let (mut bench, conn) = following();
        let (call, ..) = bench.execute(DETACH);
        let (detach, _) = bench.clock_detach(conn);
        bench.stop(call, Stop::Cancelled);
        bench.fails(call, ErrorKind::Cancelled);
        let (next, call, reference) = moved(&mut bench, conn);
        bench.complete(next, call, &reference);
        let (call, ..) = bench.execute(again);
        bench.pass(SEC);
        bench.sends_nothing(next);
        assert!(bench.is_waiting(call), "{again}");
        bench.reply(conn, detach, clock_detached("d"));
        let follows = again == ATTACH;
        if follows {
            let (id, _) = bench.clock_attach(next);
            bench.reply(next, id, clock_attached("d", clock(8, paced())));
        } else {
            let (id, _) = bench.clock_detach(next);
            bench.reply(next, id, clock_not_attached("d"));
        }
        let disposition = bench.outcome(call).disposition;
        assert_eq!(disposition == Disposition::Completed, follows);
        assert_eq!(bench.engine.domain_clock("d").is_some(), follows);
        bench.sends_nothing(next);
        bench.frame(next, clock_ticked("d", 8, 1));
        assert_eq!(bench.clock_events().len(), usize::from(follows), "{again}");
    }
}

// rule: K-1, D-1
#[test]
fn a_clock_command_of_another_domain_waits_for_none_on_the_session_left_behind() {
    let (mut bench, conn) = following();
    let (call, ..) = bench.execute(DETACH);
    bench.clock_detach(conn);
    bench.stop(call, Stop::Cancelled);
    bench.fails(call, ErrorKind::Cancelled);
    let (next, call, reference) = moved(&mut bench, conn);
    bench.complete(next, call, &reference);
    let (call, ..) = bench.execute("USE e;");
    bench.outcome(call);
    bench.follow(next, "e", clock(1, paced()));
    bench.frame(next, clock_ticked("e", 1, 1));
    assert_eq!(tick_of(&bench.clock_event()), (1, 1));
}
