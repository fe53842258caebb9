//! Sessions against a server: what travels, how exchanges end, and how waits do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
mod server;

use std::net::TcpListener;
use std::time::Duration;

use h2::Reason;
use nervix_client::{Cancel, Credentials, Options, Session};
use nervix_engine::{Disposition, ErrorKind, Origin};
use server::{Act, Seen, Server};

fn connect(server: &Server) -> Session {
    Session::connect(&server.origin, Some("d"), None, &Options::default(), None).unwrap()
}

fn refusal(server: &Server) -> nervix_engine::Error {
    let credentials = Credentials {
        username: "u".to_owned(),
        password: "hunter2".to_owned(),
    };
    let error = Session::connect(
        &server.origin,
        None,
        Some(&credentials),
        &Options::default(),
        None,
    )
    .unwrap_err();
    assert!(
        !error.message.contains("hunter2") && !error.message.contains('\n'),
        "{error}"
    );
    error
}

/// Options under which a command without an answer is given up soon.
fn hasty() -> Options {
    Options {
        retry_timeout: Duration::from_millis(400),
        ..Options::default()
    }
}

// rule: T-1, T-4
#[test]
fn an_exchange_is_a_grpc_call_with_credentials() {
    let server = Server::start(vec![Act::Lead]);
    let credentials = Credentials {
        username: "ada".to_owned(),
        password: "pass:wörd".to_owned(),
    };
    let session = Session::connect(
        &server.origin,
        None,
        Some(&credentials),
        &Options::default(),
        None,
    )
    .unwrap();
    let request = server.opened();
    assert_eq!(request.method(), "POST");
    assert_eq!(request.uri().path(), "/nervix.session.Session/Exchange");
    assert_eq!(
        request.uri().authority().unwrap().as_str(),
        server.origin.authority()
    );
    assert_eq!(request.headers()["te"], "trailers");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    assert_eq!(
        request.headers()["authorization"],
        "Basic YWRhOnBhc3M6d8O2cmQ="
    );
    drop(session);
}

// rule: F-2, E-1, L-1
#[test]
fn commands_travel_as_whole_frames() {
    let server = Server::start(vec![Act::Lead]);
    let session = connect(&server);
    server.opened();
    for size in [1, 10_000, 1_000_000] {
        let query = format!("SHOW {};", "x".repeat(size));
        let execution = session.prepare(&query, None).unwrap();
        let outcome = session.execute(&execution, None).unwrap();
        assert_eq!(outcome.disposition, Disposition::Completed);
        assert_eq!(outcome.message.len(), query.len());
        assert_eq!(outcome.reference.as_deref(), Some(execution.reference()));
        let sent = server.command();
        assert_eq!((sent.query, sent.domain.as_deref()), (query, Some("d")));
        assert_eq!(sent.execution_reference, execution.reference());
    }
}

// rule: X-7
#[test]
fn dropping_a_session_resets_its_exchange() {
    let server = Server::start(vec![Act::Lead]);
    drop(connect(&server));
    server.opened();
    assert!(matches!(server.next(), Seen::Reset(Reason::CANCEL)));
    assert!(server.rest().is_empty());
}

// rule: X-7
#[test]
fn an_execution_may_outlive_its_session() {
    let server = Server::start(vec![Act::Lead]);
    let session = connect(&server);
    let execution = session.prepare("SHOW X;", None).unwrap();
    drop(session);
    server.opened();
    assert!(matches!(server.next(), Seen::Reset(Reason::CANCEL)));
    drop(execution);
}

#[test]
fn a_closed_port_is_named() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let origin = Origin {
        secure: false,
        host: "127.0.0.1".to_owned(),
        port,
    };
    let error = Session::connect(&origin, None, None, &Options::default(), None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Connect);
    assert!(
        error.message.contains(&format!("127.0.0.1:{port}")),
        "{error}"
    );
}

#[test]
fn a_name_without_an_address_is_named() {
    let origin = Origin {
        secure: false,
        host: "no-such-host.invalid".to_owned(),
        port: 1,
    };
    let error = Session::connect(&origin, None, None, &Options::default(), None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Connect);
    assert!(error.message.contains("no-such-host.invalid"), "{error}");
}

// rule: T-5
#[test]
fn refused_credentials_are_tried_once() {
    let server = Server::start(vec![Act::Refuse("16", "who%20are%20you")]);
    let error = refusal(&server);
    assert_eq!(error.kind, ErrorKind::Connect);
    assert!(error.message.contains("who are you"), "{error}");
    server.opened();
    assert!(!server
        .rest()
        .iter()
        .any(|seen| matches!(seen, Seen::Opened(_) | Seen::HalfClosed)));
}

// rule: T-5
#[test]
fn an_http_401_is_refused_credentials_too() {
    let server = Server::start(vec![Act::Http(401)]);
    assert_eq!(refusal(&server).kind, ErrorKind::Connect);
    server.opened();
    assert!(!server
        .rest()
        .iter()
        .any(|seen| matches!(seen, Seen::Opened(_))));
}

// rule: T-5
#[test]
fn a_node_that_cannot_verify_is_asked_again() {
    let server = Server::start(vec![Act::Refuse("14", ""), Act::Http(503), Act::Lead]);
    drop(connect(&server));
}

// rule: F-3, F-8, T-1
#[test]
fn what_is_no_frame_opens_no_session() {
    let over = (4 * 1024 * 1024_u32 + 1).to_be_bytes();
    let oversize = [&[0_u8][..], &over].concat();
    for (bytes, says) in [
        (oversize, "frame limit"),
        (vec![1, 0, 0, 0, 0], "compress"),
        (vec![0, 0, 0, 0, 0], ""),
    ] {
        let server = Server::start(vec![Act::Raw(bytes)]);
        let error = refusal(&server);
        assert!(error.message.contains(says), "{error}");
        server.opened();
        assert!(matches!(server.next(), Seen::Reset(Reason::CANCEL)));
    }
    let server = Server::start(vec![Act::Http(404)]);
    assert!(refusal(&server).message.contains("404"));
}

// rule: D-6, F-8, E-3
#[test]
fn a_command_whose_exchange_ends_is_repeated_under_its_reference() {
    for query in ["RESET;", "END;", "COMPRESSED;"] {
        let server = Server::start(vec![Act::Lead]);
        let session = Session::connect(&server.origin, None, None, &hasty(), None).unwrap();
        server.opened();
        let execution = session.prepare(query, None).unwrap();
        let error = session.execute(&execution, None).unwrap_err();
        assert_eq!(
            (error.kind, error.reference.as_deref()),
            (ErrorKind::Uncertain, Some(execution.reference()))
        );
        let (mut sent, mut opened) = (0, 0);
        drop(session);
        loop {
            match server.next() {
                Seen::Message(_) => sent += 1,
                Seen::Opened(_) => opened += 1,
                Seen::HalfClosed => panic!("{query}"),
                // The last thing is the end of the session, or of an attempt that came to nothing.
                Seen::Reset(_) | Seen::Lost if sent >= 2 => break,
                Seen::Reset(_) | Seen::Lost => {}
            }
        }
        assert!(sent >= 2 && opened >= 1, "{query}");
    }
}

// rule: T-6
#[test]
fn a_malformed_frame_is_not_sent_again() {
    let server = Server::start(vec![Act::Lead]);
    let session = connect(&server);
    server.opened();
    let execution = session.prepare("STATUS;", None).unwrap();
    let error = session.execute(&execution, None).unwrap_err();
    assert_eq!(
        (error.kind, error.reference.as_deref()),
        (ErrorKind::Uncertain, Some(execution.reference()))
    );
    assert!(error.message.contains("the frame is malformed%"), "{error}");
    server.command();
    assert!(!server
        .rest()
        .iter()
        .any(|seen| matches!(seen, Seen::Message(_))));
}

// rule: T-8
#[test]
fn a_silent_server_can_be_left() {
    let server = Server::start(vec![Act::Silent]);
    let cancel = Cancel::new();
    let other = cancel.clone();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            Session::connect(
                &server.origin,
                None,
                None,
                &Options::default(),
                Some(&cancel),
            )
        });
        server.opened();
        other.trigger();
        assert_eq!(
            waiting.join().unwrap().unwrap_err().kind,
            ErrorKind::Cancelled
        );
    });
    assert!(matches!(server.next(), Seen::Reset(Reason::CANCEL)));
}

// rule: T-8, D-4
#[test]
fn deadlines_end_every_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = Origin {
        secure: false,
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().unwrap().port(),
    };
    let soon = || Cancel::with_deadline(Duration::from_millis(50));
    let error =
        Session::connect(&origin, None, None, &Options::default(), Some(&soon())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Deadline);

    let server = Server::start(vec![Act::Lead]);
    let session = connect(&server);
    let execution = session.prepare("HANG;", None).unwrap();
    let error = session.execute(&execution, Some(&soon())).unwrap_err();
    assert_eq!(
        (error.kind, error.reference.as_deref()),
        (ErrorKind::Deadline, Some(execution.reference()))
    );
    assert_eq!(
        session.next_event(Some(&soon())).unwrap_err().kind,
        ErrorKind::Deadline
    );
    let next = session.prepare("SHOW X;", None).unwrap();
    assert_eq!(
        session.execute(&next, None).unwrap().disposition,
        Disposition::Completed
    );
}

#[test]
fn a_token_that_was_triggered_sends_nothing() {
    let server = Server::start(vec![Act::Lead]);
    let session = connect(&server);
    server.opened();
    let execution = session.prepare("SHOW X;", None).unwrap();
    let (triggered, expired) = (Cancel::new(), Cancel::with_deadline(Duration::ZERO));
    triggered.trigger();
    expired.trigger();
    for (cancel, kind) in [
        (triggered, ErrorKind::Cancelled),
        (expired, ErrorKind::Deadline),
    ] {
        let error = session.execute(&execution, Some(&cancel)).unwrap_err();
        assert_eq!(
            (error.kind, error.reference.as_deref()),
            (kind, Some(execution.reference()))
        );
        assert_eq!(
            session.prepare("SHOW X;", Some(&cancel)).unwrap_err().kind,
            kind
        );
        assert_eq!(session.next_event(Some(&cancel)).unwrap_err().kind, kind);
        assert_eq!(
            session
                .suggest("", 0, 1, None, Some(&cancel))
                .unwrap_err()
                .kind,
            kind
        );
    }
    assert!(server.rest().is_empty());
    session.execute(&execution, None).unwrap();
}

#[test]
fn one_trigger_ends_all_its_calls() {
    let server = Server::start(vec![Act::Lead]);
    let session = connect(&server);
    let cancel = Cancel::new();
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| session.next_event(Some(&cancel)).unwrap_err().kind))
            .collect();
        cancel.trigger();
        for call in calls {
            assert_eq!(call.join().unwrap(), ErrorKind::Cancelled);
        }
    });
}

#[test]
fn an_execution_belongs_to_its_session() {
    let server = Server::start(vec![Act::Lead]);
    let (one, other) = (connect(&server), connect(&server));
    let execution = one.prepare("SHOW X;", None).unwrap();
    let error = other.execute(&execution, None).unwrap_err();
    assert_eq!(
        (error.kind, error.reference.as_deref()),
        (ErrorKind::InvalidArgument, Some(execution.reference()))
    );
}

// rule: C-3
#[test]
fn threads_share_a_session() {
    let server = Server::start(vec![Act::Lead]);
    let session = connect(&server);
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let session = &session;
            scope.spawn(move || {
                for round in 0..50 {
                    let query = format!("SHOW {};", "y".repeat(thread * 100 + round));
                    let execution = session.prepare(&query, None).unwrap();
                    let outcome = session.execute(&execution, None).unwrap();
                    assert_eq!(outcome.message.len(), query.len());
                    assert_eq!(outcome.reference.as_deref(), Some(execution.reference()));
                }
            });
        }
    });
}
