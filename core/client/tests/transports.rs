//! Servers that break, or break the rules of HTTP/2 and gRPC: what each session comes to, that everybody who waits is told, that
//! nothing is sent again that must not be, that a good server then serves, and that nothing is left behind.
//!
//! The tests run one at a time, since they count the process's threads and descriptors.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
mod peer;
#[allow(dead_code)]
mod server;

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nervix_client::{Credentials, Options, Session};
use nervix_engine::{Disposition, Error, ErrorKind, Origin};
use nervix_wire::types::ClientRequest;
use peer::*;

/// What a server does, and what that is called.
type Named = (&'static str, fn(&mut Line));

static ALONE: Mutex<()> = Mutex::new(());

/// Holds back the other tests, and sees to it that this one leaves nothing behind.
struct Alone {
    _held: MutexGuard<'static, ()>,
    before: (usize, usize),
}

/// Those that the client has for all sessions.
const CLIENT_THREADS: usize = 2;

/// The descriptors of the process, and the threads of the client in it.
fn leftovers() -> (usize, usize) {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let threads = tasks.filter(|task| {
        let name = task.as_ref().unwrap().path().join("comm");
        std::fs::read_to_string(name).is_ok_and(|name| name.starts_with("nervix-client"))
    });
    (files, threads.count())
}

impl Alone {
    fn begin() -> Self {
        let held = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        nervix_client::start().unwrap();
        // A thread takes its name once it runs.
        let started = Instant::now();
        while leftovers().1 < CLIENT_THREADS {
            assert!(started.elapsed() < PATIENCE, "the client does not start");
            std::thread::sleep(Duration::from_millis(1));
        }
        Self {
            _held: held,
            before: leftovers(),
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let started = Instant::now();
        while !std::thread::panicking() && leftovers() != self.before {
            let (now, before) = (leftovers(), self.before);
            let late = started.elapsed() > PATIENCE;
            assert!(
                !late,
                "(descriptors, threads) are {now:?} instead of {before:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The bytes of memory that the process holds.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn credentials() -> Credentials {
    Credentials {
        username: "ada".to_owned(),
        password: "hunter2".to_owned(),
    }
}

fn open(origin: &Origin, options: &Options) -> Result<Session, Error> {
    let opened = Session::connect(origin, Some("d"), Some(&credentials()), options, None);
    opened.inspect_err(told)
}

fn connect(origin: &Origin) -> Result<Session, Error> {
    open(origin, &Options::default())
}

/// Every error is one line without credentials.
fn told(error: &Error) {
    let secret = error.message.contains("hunter2") || error.message.contains("YWRhOmh1bnRlcjI");
    assert!(!secret && !error.message.contains('\n'), "{error}");
}

/// Runs cases side by side, since most of their time is waiting.
fn each<T: Sync>(cases: &[T], run: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    run(case);
                }
            });
        }
    });
}

/// A good server still serves the session.
fn served(session: &Session, name: &str) {
    let execution = session.prepare("SHOW X;", None).unwrap();
    let outcome = session.execute(&execution, None);
    let outcome = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(outcome.disposition, Disposition::Completed, "{name}");
}

/// What a session comes to whose server did something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing: it goes on.
    GoesOn,
    /// It is lost, and the next one repeats the command (D-5, D-6).
    Lost,
    /// It is lost, and the command is not sent again by itself (T-6).
    Condemned,
    /// It is over (T-5).
    Refused,
}

/// A server that does something when a command and a question for completions wait for it, and then behaves well on that connection
/// and on every other.
fn in_session(name: &str, end: End, act: impl Fn(&mut Line) + Send + Sync + 'static) {
    let peer = Peer::once(move |line| {
        if !line.open() {
            return;
        }
        let waiting: Vec<_> = (0..2).map_while(|_| line.next()).collect();
        act(line);
        for received in &waiting {
            line.answer(received);
        }
        line.serve();
    });
    let options = Options {
        request_timeout: PATIENCE,
        ..Options::default()
    };
    let session = open(&peer.origin, &options).unwrap();
    let execution = session.prepare("CREATE X;", None).unwrap();
    let (outcome, page) = std::thread::scope(|scope| {
        let page = scope.spawn(|| session.suggest("", 0, 1, None, None));
        let outcome = session.execute(&execution, None);
        (outcome, page.join().unwrap())
    });
    let reference = execution.reference().to_owned();
    let sent = |times: usize| -> Vec<(usize, String)> {
        (0..times)
            .map(|number| (number, reference.clone()))
            .collect()
    };
    if end == End::GoesOn {
        page.unwrap_or_else(|error| panic!("{name}: {error}"));
    } else {
        let error = page.expect_err(name);
        told(&error);
        assert_eq!(error.kind, ErrorKind::Transport, "{name}: {error}");
    }
    match end {
        End::GoesOn | End::Lost => {
            let outcome = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(outcome.disposition, Disposition::Completed, "{name}");
        }
        End::Condemned | End::Refused => {
            let error = outcome.expect_err(name);
            told(&error);
            assert_eq!(error.kind, ErrorKind::Uncertain, "{name}: {error}");
            assert_eq!(error.reference.as_ref(), Some(&reference), "{name}");
            assert_eq!(peer.commands(), sent(1), "{name}");
        }
    }
    if end == End::Refused {
        let next = session.prepare("SHOW X;", None).unwrap();
        let error = session.execute(&next, None).expect_err(name);
        assert_eq!(error.kind, ErrorKind::Connect, "{name}: {error}");
        let error = session.suggest("", 0, 1, None, None).expect_err(name);
        assert_eq!(error.kind, ErrorKind::Closed, "{name}: {error}");
        assert_eq!(peer.connections(), 1, "{name}");
        return;
    }
    // Executing the same execution recovers it, whatever it came to.
    let again = session.execute(&execution, None);
    assert!(again.is_ok(), "{name}: {again:?}");
    let times = if end == End::GoesOn { 1 } else { 2 };
    assert_eq!(peer.commands(), sent(times), "{name}");
    served(&session, name);
    assert_eq!(peer.connections(), times, "{name}");
}

/// What connecting to a server comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Opens,
    /// The next server is tried, and without one it fails.
    Fails,
    /// The server is tried again.
    Again,
    /// It fails, whatever other servers there are.
    Refused,
}

/// A server that does something instead of answering the request of its first connection.
fn at_start(name: &str, start: Start, act: impl Fn(&mut Line) + Send + Sync + Clone + 'static) {
    let script = move |line: &mut Line| {
        if line.greet() && line.request() {
            act(line);
            line.lead();
            line.serve();
        }
    };
    let peer = Peer::once(script.clone());
    let other = Peer::once(|line| {
        if line.open() {
            line.serve();
        }
    });
    let attempts = match (connect(&peer.origin), start) {
        (Ok(session), Start::Opens | Start::Again) => {
            served(&session, name);
            if start == Start::Again {
                2
            } else {
                1
            }
        }
        (Err(error), Start::Fails | Start::Refused) => {
            assert_eq!(error.kind, ErrorKind::Connect, "{name}: {error}");
            let named = error.message.contains(&peer.origin.to_string());
            assert!(named, "{name}: {error}");
            1
        }
        (other, _) => panic!("{name}: {other:?}"),
    };
    assert_eq!(peer.connections(), attempts, "{name}");
    // The same process opens sessions as before, with the same server.
    served(&connect(&peer.origin).unwrap(), name);
    drop(peer);

    let peer = Peer::once(script);
    let options = Options {
        seeds: vec![other.origin.clone()],
        ..Options::default()
    };
    let session = open(&peer.origin, &options);
    match start {
        Start::Refused => {
            assert!(session.is_err(), "{name}");
            assert_eq!(other.connections(), 0, "{name}");
        }
        Start::Opens => assert_eq!(other.connections(), 0, "{name}"),
        // A server that is unavailable now is tried again after those that are not.
        Start::Fails | Start::Again => {
            served(&session.unwrap(), name);
            assert_eq!((peer.connections(), other.connections()), (1, 1), "{name}");
        }
    }
}

// ---- statuses

/// Each grpc-status there is, ones that there are not, and ones that are none.
const STATUSES: [&str; 22] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9",
    "10",
    "11",
    "12",
    "13",
    "14",
    "15",
    "16",
    "17",
    "4294967295",
    "99999999999",
    "-1",
    "what",
];

// rule: T-5, T-6, D-6, E-3, C-4
#[test]
fn each_status_ends_a_session_as_it_must() {
    let _alone = Alone::begin();
    each(&STATUSES, |&status| {
        let end = match status {
            "11" | "13" => End::Condemned,
            "16" => End::Refused,
            _ => End::Lost,
        };
        in_session(&format!("grpc-status {status}"), end, move |line| {
            let fields = [("grpc-status", status), ("grpc-message", "a%0Ab%zz")];
            line.send(&trailers(&fields));
        });
    });
}

// rule: T-5, D-4
#[test]
fn each_status_ends_connecting_as_it_must() {
    let _alone = Alone::begin();
    each(&STATUSES, |&status| {
        let start = match status {
            "14" => Start::Again,
            "16" => Start::Refused,
            _ => Start::Fails,
        };
        // In the answer's only headers.
        at_start(&format!("{status} in headers"), start, move |line| {
            let fields = [
                (":status", "200"),
                ("content-type", "application/grpc"),
                ("grpc-status", status),
            ];
            line.send(&trailers(&fields));
        });
        // After headers, as the end of an answer without messages.
        at_start(&format!("{status} in trailers"), start, move |line| {
            line.send(&answer_headers());
            line.send(&trailers(&[("grpc-status", status)]));
        });
    });
}

// rule: C-4, D-6, F-8
#[test]
fn an_answer_that_ends_without_a_status_is_a_lost_session() {
    let _alone = Alone::begin();
    let ends: [Named; 4] = [
        ("END_STREAM on data", |line| {
            line.send(&frame(DATA, END_STREAM, STREAM, &[]))
        }),
        ("trailers without it", |line| {
            line.send(&trailers(&[("x-other", "1")]))
        }),
        ("no trailers", |line| line.send(&trailers(&[]))),
        ("END_STREAM inside a message", |line| {
            line.send(&frame(DATA, END_STREAM, STREAM, &[0, 0, 0, 0, 9, 1]))
        }),
    ];
    for (name, act) in ends {
        in_session(name, End::Lost, act);
        at_start(name, Start::Fails, move |line| {
            line.send(&answer_headers());
            act(line);
        });
    }
}

// rule: F-8, T-6
#[test]
fn a_status_inside_a_message_is_a_violation_and_judges_nothing() {
    let _alone = Alone::begin();
    // 13 would be a judgement about what was sent, if the call had ended where a call can.
    at_start("a message that never ends", Start::Fails, |line| {
        line.send(&answer_headers());
        line.send(&frame(DATA, 0, STREAM, &[0, 0, 0, 0, 9, 1]));
        line.send(&trailers(&[("grpc-status", "13")]));
    });
}

// rule: T-1, T-5
#[test]
fn each_http_status_ends_connecting_as_it_must() {
    let _alone = Alone::begin();
    let statuses = [
        "200", "204", "301", "302", "307", "400", "401", "403", "404", "405", "408", "413", "415",
        "418", "429", "431", "500", "501", "502", "503", "504", "505", "599",
    ];
    each(&statuses, |&status| {
        let start = match status {
            "401" => Start::Refused,
            "429" | "502" | "503" | "504" => Start::Again,
            _ => Start::Fails,
        };
        at_start(&format!("HTTP {status}"), start, move |line| {
            let fields = fields(&[(":status", status), ("content-type", "text/html")]);
            line.send(&frame(HEADERS, END_HEADERS, STREAM, &fields));
            line.send(&frame(DATA, END_STREAM, STREAM, b"<html>no</html>"));
        });
    });
    // A status of gRPC says more than one of HTTP.
    for (http, grpc, start) in [
        ("503", "16", Start::Refused),
        ("400", "14", Start::Again),
        ("401", "5", Start::Fails),
    ] {
        at_start(&format!("HTTP {http} and {grpc}"), start, move |line| {
            line.send(&trailers(&[(":status", http), ("grpc-status", grpc)]));
        });
    }
}

// rule: D-5, D-6, T-5, T-6
#[test]
fn a_server_that_refuses_a_reconnection_is_asked_again() {
    let _alone = Alone::begin();
    each(&["1", "8", "11", "13", "14"], |&status| {
        let peer = Peer::start(move |line| {
            if !line.greet() || !line.request() {
                return;
            }
            match line.number {
                0 => {
                    line.lead();
                    line.next();
                }
                1 => {
                    let head = [(":status", "200"), ("grpc-status", status)];
                    line.send(&trailers(&head));
                    line.serve();
                }
                _ => {
                    line.lead();
                    line.serve();
                }
            }
        });
        let session = connect(&peer.origin).unwrap();
        let execution = session.prepare("CREATE X;", None).unwrap();
        let outcome = session.execute(&execution, None);
        assert!(outcome.is_ok(), "{status}: {outcome:?}");
        let reference = execution.reference();
        // No frame was on the call that ended so, and the command is sent again.
        let commands = peer.commands();
        let sent = [(0, reference.to_owned()), (2, reference.to_owned())];
        assert_eq!(commands, sent, "{status}");
    });
}

// ---- resets and GOAWAY

const NO_STREAM: u32 = 0;
const ANY_STREAM: u32 = 0x7fff_ffff;

/// Those of HTTP/2, and two that are none.
const CODES: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, u32::MAX];

// rule: D-6, E-3, T-6
#[test]
fn each_reset_is_a_lost_session() {
    let _alone = Alone::begin();
    each(&CODES, |&code| {
        in_session(&format!("reset {code}"), End::Lost, move |line| {
            line.send(&reset(code))
        });
        at_start(&format!("reset {code}"), Start::Fails, move |line| {
            line.send(&reset(code))
        });
    });
}

// rule: D-6, E-3, T-6
#[test]
fn a_goaway_that_leaves_the_stream_out_is_a_lost_session() {
    let _alone = Alone::begin();
    each(&CODES, |&code| {
        in_session(&format!("goaway {code}"), End::Lost, move |line| {
            line.send(&go_away(NO_STREAM, code))
        });
        at_start(&format!("goaway {code}"), Start::Fails, move |line| {
            line.send(&go_away(NO_STREAM, code))
        });
    });
}

// rule: C-4, D-6, E-3
#[test]
fn a_goaway_that_leaves_the_stream_in_ends_nothing_until_the_connection_ends() {
    let _alone = Alone::begin();
    each(&CODES, |&code| {
        let last = if code % 2 == 0 { STREAM } else { ANY_STREAM };
        in_session(&format!("goaway {code}"), End::GoesOn, move |line| {
            line.send(&go_away(last, code))
        });
        in_session(
            &format!("goaway {code} and close"),
            End::Lost,
            move |line| {
                line.send(&go_away(last, code));
                line.half_close();
            },
        );
    });
    in_session("two of them", End::Lost, |line| {
        line.send(&go_away(ANY_STREAM, 0));
        line.send(&go_away(NO_STREAM, 0));
    });
    at_start("before the answer", Start::Opens, |line| {
        line.send(&go_away(STREAM, 0))
    });
}

// rule: D-6, E-3
#[test]
fn a_connection_that_closes_is_a_lost_session() {
    let _alone = Alone::begin();
    in_session("close", End::Lost, Line::half_close);
    in_session("close inside a frame", End::Lost, |line| {
        line.send(&frame(DATA, 0, STREAM, &[0; 64])[..20]);
        line.half_close();
    });
    at_start("close", Start::Fails, Line::half_close);
}

// ---- nonsense

fn repeated(bytes: &[u8], times: usize) -> Vec<u8> {
    bytes.repeat(times)
}

/// What breaks HTTP/2 whenever it comes.
fn nonsense() -> Vec<(&'static str, Vec<u8>)> {
    let status = fields(&[(":status", "200")]);
    let promise = [&2_u32.to_be_bytes()[..], &status].concat();
    vec![
        ("no frames", b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\n".repeat(10)),
        ("ones", vec![0xff; 64]),
        (
            "a giant frame",
            [&[0xff; 3][..], &[0; 6], &[0; 4096]].concat(),
        ),
        (
            "a frame above our limit",
            frame(DATA, 0, STREAM, &vec![0; (256 << 10) + 1]),
        ),
        ("data on no stream", frame(DATA, 0, 0, &[0; 5])),
        ("data on an idle stream", frame(DATA, 0, 99, &[0; 5])),
        ("data on a stream of the server", frame(DATA, 0, 2, &[0; 5])),
        (
            "padding above the frame",
            frame(DATA, PADDED, STREAM, &[200, 1, 2]),
        ),
        ("no room for the padding", frame(DATA, PADDED, STREAM, &[])),
        (
            "headers on no stream",
            frame(HEADERS, END_HEADERS, 0, &status),
        ),
        (
            "headers on a stream of the server",
            frame(HEADERS, END_HEADERS, 2, &status),
        ),
        (
            "headers of an unknown index",
            frame(HEADERS, END_HEADERS, STREAM, &[0xff, 0xff, 0xff, 0x7f]),
        ),
        (
            "headers of index nothing",
            frame(HEADERS, END_HEADERS, STREAM, &[0x80]),
        ),
        (
            "headers cut short",
            frame(HEADERS, END_HEADERS, STREAM, &[0, 10, b'a']),
        ),
        (
            "headers of a number without end",
            frame(HEADERS, END_HEADERS, STREAM, &[0xff; 40]),
        ),
        (
            "headers that another frame interrupts",
            [
                frame(HEADERS, 0, STREAM, &status),
                frame(PING, 0, 0, &[0; 8]),
            ]
            .concat(),
        ),
        (
            "continuation of nothing",
            frame(CONTINUATION, END_HEADERS, STREAM, &status),
        ),
        (
            "priority of a wrong length",
            frame(PRIORITY, 0, STREAM, &[0; 4]),
        ),
        ("reset on no stream", frame(RST_STREAM, 0, 0, &[0; 4])),
        ("reset of an idle stream", frame(RST_STREAM, 0, 99, &[0; 4])),
        (
            "reset of a wrong length",
            frame(RST_STREAM, 0, STREAM, &[0; 3]),
        ),
        ("settings on a stream", frame(SETTINGS, 0, STREAM, &[])),
        ("settings of a wrong length", frame(SETTINGS, 0, 0, &[0; 5])),
        (
            "an acknowledgement with settings",
            frame(SETTINGS, ACK, 0, &[0; 6]),
        ),
        (
            "a window above its limit in settings",
            settings(&[(4, 0x8000_0000)]),
        ),
        ("a largest frame of nothing", settings(&[(5, 0)])),
        (
            "a largest frame above its limit",
            settings(&[(5, 0x0100_0000)]),
        ),
        ("push that is half on", settings(&[(2, 2)])),
        (
            "a promise",
            frame(PUSH_PROMISE, END_HEADERS, STREAM, &promise),
        ),
        ("ping of a wrong length", frame(PING, 0, 0, &[0; 7])),
        ("ping on a stream", frame(PING, 0, STREAM, &[0; 8])),
        ("goaway of a wrong length", frame(GOAWAY, 0, 0, &[0; 7])),
        ("goaway on a stream", frame(GOAWAY, 0, STREAM, &[0; 8])),
        ("a window that grows by nothing", window_update(0, 0)),
        (
            "a window of the stream that grows by nothing",
            window_update(STREAM, 0),
        ),
        (
            "a window above its limit",
            repeated(&window_update(0, 0x7fff_ffff), 2),
        ),
        (
            "a window of the stream above its limit",
            repeated(&window_update(STREAM, 0x7fff_ffff), 2),
        ),
        (
            "a window of a wrong length",
            frame(WINDOW_UPDATE, 0, 0, &[0; 3]),
        ),
        ("a window of an idle stream", window_update(99, 1)),
    ]
}

// rule: D-6, F-8, E-3
#[test]
fn what_breaks_http2_is_a_lost_session() {
    let _alone = Alone::begin();
    each(&nonsense(), |(name, bytes)| {
        let (early, late) = (bytes.clone(), bytes.clone());
        in_session(name, End::Lost, move |line| line.send(&late));
        at_start(name, Start::Fails, move |line| line.send(&early));
    });
    // What only breaks an answer that has begun.
    let second = fields(&[(":status", "200")]);
    for (name, bytes) in [
        (
            "a second answer",
            frame(HEADERS, END_HEADERS, STREAM, &second),
        ),
        (
            "trailers with a status of HTTP",
            trailers(&[(":status", "200"), ("grpc-status", "0")]),
        ),
        (
            "trailers without an end",
            frame(HEADERS, END_HEADERS, STREAM, &fields(&[("a", "b")])),
        ),
        ("names in capitals", trailers(&[("Grpc-Status", "13")])),
        ("a name of nothing", trailers(&[("", "x")])),
    ] {
        in_session(name, End::Lost, move |line| line.send(&bytes));
    }
    // And what only breaks one that has not.
    for (name, bytes) in [
        ("data before the answer", frame(DATA, 0, STREAM, &[0; 5])),
        (
            "an answer without a status",
            frame(HEADERS, END_HEADERS, STREAM, &fields(&[("a", "b")])),
        ),
        (
            "an answer of a wrong status",
            frame(HEADERS, END_HEADERS, STREAM, &fields(&[(":status", "20x")])),
        ),
        (
            "an answer to a request",
            frame(
                HEADERS,
                END_HEADERS,
                STREAM,
                &fields(&[(":method", "GET"), (":path", "/")]),
            ),
        ),
        ("an answer that is too long", {
            let long = "x".repeat(120);
            let many = vec![("x-much", long.as_str()); 700];
            let block = fields(
                &[
                    &[(":status", "200"), ("content-type", "application/grpc")],
                    &many[..],
                ]
                .concat(),
            );
            let mut bytes = frame(HEADERS, 0, STREAM, &block[..16384]);
            for (index, piece) in block[16384..].chunks(16384).enumerate() {
                let last = 16384 * (index + 1) + piece.len() == block.len();
                bytes.extend(frame(
                    CONTINUATION,
                    if last { END_HEADERS } else { 0 },
                    STREAM,
                    piece,
                ));
            }
            bytes
        }),
    ] {
        at_start(name, Start::Fails, move |line| line.send(&bytes));
    }
}

// rule: C-4, F-2
#[test]
fn what_http2_allows_ends_nothing() {
    let _alone = Alone::begin();
    for (name, bytes) in [
        ("a frame of an unknown kind", frame(0xfa, 0xff, 0, &[1; 99])),
        (
            "the same on the stream",
            frame(0xfa, 0xff, STREAM, &[1; 99]),
        ),
        ("an unknown setting", settings(&[(0xfafa, 7)])),
        ("an answer to no ping", frame(PING, ACK, 0, &[9; 8])),
        ("a priority", frame(PRIORITY, 0, STREAM, &[0, 0, 0, 3, 1])),
        (
            "data without data",
            repeated(&frame(DATA, 0, STREAM, &[]), 3),
        ),
        ("padding alone", frame(DATA, PADDED, STREAM, &[3, 0, 0, 0])),
        ("a large window", window_update(0, 1 << 30)),
        ("small frames", settings(&[(5, 16384)])),
    ] {
        in_session(name, End::GoesOn, move |line| line.send(&bytes));
    }
    at_start("news before the answer", Start::Opens, |line| {
        let news = fields(&[(":status", "103"), ("link", "</style.css>")]);
        line.send(&frame(HEADERS, END_HEADERS, STREAM, &news));
    });
}

// ---- floods

/// Bytes that a flood may cost, whatever the size of it.
const FLOOD_BOUND: usize = 48 << 20;

// rule: C-7, T-8
#[test]
fn a_flood_ends_nothing_and_costs_no_memory() {
    let _alone = Alone::begin();
    let before = resident();
    let floods: [(&str, Vec<u8>, usize); 4] = [
        ("pings", repeated(&frame(PING, 0, 0, &[7; 8]), 1000), 1000),
        ("settings", repeated(&settings(&[]), 100), 100),
        (
            "frames of an unknown kind",
            repeated(&frame(0xfa, 0, 0, &[1; 64]), 1000),
            0,
        ),
        (
            "priorities",
            repeated(&frame(PRIORITY, 0, STREAM, &[0, 0, 0, 3, 1]), 1000),
            0,
        ),
    ];
    for (name, bytes, answers) in floods {
        in_session(name, End::GoesOn, move |line| {
            for _ in 0..100 {
                line.send(&bytes);
                assert!(line.acknowledged(answers));
            }
        });
        let grown = resident().saturating_sub(before);
        assert!(grown < FLOOD_BOUND, "{name}: {grown} bytes");
    }
}

// rule: C-7, D-6, T-8
#[test]
fn a_flood_of_what_is_held_is_a_lost_session_and_costs_no_memory() {
    let _alone = Alone::begin();
    let before = resident();
    for size in [0, 1, 16384] {
        for started in [false, true] {
            let name = format!("continuations of {size} bytes, {started}");
            let act = move |line: &mut Line| {
                line.send(&frame(HEADERS, 0, STREAM, &[]));
                let piece = repeated(&frame(CONTINUATION, 0, STREAM, &vec![0; size]), 10);
                // It is told to stop long before.
                while line.try_send(&piece) {}
            };
            if started {
                in_session(&name, End::Lost, act);
            } else {
                at_start(&name, Start::Fails, act);
            }
        }
    }
    // Data costs its window, which is none here.
    in_session("data without data", End::Lost, |line| {
        let empty = repeated(&frame(DATA, 0, STREAM, &[]), 1000);
        while line.try_send(&empty) {}
    });
    at_start("news without end", Start::Fails, |line| {
        let news = fields(&[(":status", "103"), ("link", "</style.css>")]);
        let news = repeated(&frame(HEADERS, END_HEADERS, STREAM, &news), 100);
        while line.try_send(&news) {}
    });
    let grown = resident().saturating_sub(before);
    assert!(grown < FLOOD_BOUND, "{grown} bytes");
}

// ---- silence

fn hasty() -> Options {
    Options {
        request_timeout: Duration::from_millis(300),
        ..Options::default()
    }
}

/// A server that stops in some way once the session is open; the session is replaced after the request timeout.
fn stops(name: &str, query: &str, stop: impl Fn(&mut Line, &AtomicBool) + Send + Sync + 'static) {
    let over = Arc::new(AtomicBool::new(false));
    let until = over.clone();
    let peer = Peer::once(move |line| stop(line, &until));
    let session = open(&peer.origin, &hasty()).unwrap();
    let execution = session.prepare(query, None).unwrap();
    let outcome = session.execute(&execution, None);
    let outcome = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(outcome.disposition, Disposition::Completed, "{name}");
    let last = peer.commands().pop();
    assert_eq!(last, Some((1, execution.reference().to_owned())), "{name}");
    over.store(true, Ordering::SeqCst);
    served(&session, name);
    assert_eq!(peer.connections(), 2, "{name}");
}

// rule: T-8, D-4, D-6, E-3
#[test]
fn a_server_that_stops_is_replaced_after_the_request_timeout() {
    let _alone = Alone::begin();
    let long = format!("CREATE {};", "x".repeat(3 << 20));
    stops("answering", "CREATE X;", |line, _| {
        if line.open() {
            while line.next().is_some() {}
        }
    });
    stops("reading", &long, |line, until| {
        if line.open() {
            line.stand_still(until);
        }
    });
    stops("reading, with no room left", &long, |line, until| {
        if line.greet_with(&settings(&[(4, 0)])) && line.request() {
            line.lead();
            line.stand_still(until);
        }
    });
    stops("opening its window", "CREATE X;", |line, _| {
        if line.greet_with(&settings(&[(4, 0)])) && line.request() {
            line.lead();
            // Nothing of the command can be sent, and it is not counted as if it had been.
            assert!(line.next().is_none());
        }
    });
    stops("in the middle of a frame", "CREATE X;", |line, _| {
        if line.open() && line.next().is_some() {
            line.send(&frame(DATA, 0, STREAM, &[0; 64])[..20]);
            line.drain();
        }
    });
    stops("reading, and pings without end", "CREATE X;", |line, _| {
        if line.open() && line.next().is_some() {
            let pings = repeated(&frame(PING, 0, 0, &[7; 8]), 1000);
            while line.try_send(&pings) {}
        }
    });
}

// rule: X-7, T-8
#[test]
fn a_session_is_let_go_of_at_once_whatever_its_server_does() {
    let _alone = Alone::begin();
    let over = Arc::new(AtomicBool::new(false));
    let until = over.clone();
    let peer = Peer::start(move |line| {
        if line.open() {
            line.stand_still(&until);
        }
    });
    let session = connect(&peer.origin).unwrap();
    let query = format!("CREATE {};", "x".repeat(3 << 20));
    let execution = session.prepare(&query, None).unwrap();
    let soon = nervix_client::Cancel::with_deadline(Duration::from_millis(50));
    let error = session.execute(&execution, Some(&soon)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Deadline);
    assert!(error.message.contains("may have happened"), "{error}");
    let started = Instant::now();
    drop((execution, session));
    // Generous: it waits for nobody.
    assert!(started.elapsed() < Duration::from_secs(2));
    // Its socket goes although nothing can be written to it, while the server still stands.
    let descriptors = _alone.before.0;
    while leftovers().0 > descriptors + 2 {
        assert!(started.elapsed() < PATIENCE, "{:?}", leftovers());
        std::thread::sleep(Duration::from_millis(5));
    }
    over.store(true, Ordering::SeqCst);
}

// rule: T-8, D-4
#[test]
fn a_server_that_does_not_say_who_leads_is_given_up_after_ten_seconds() {
    let _alone = Alone::begin();
    let silences: [Named; 6] = [
        ("nothing", Line::drain),
        ("settings", |line| {
            line.greet();
            line.drain();
        }),
        ("no room for a stream", |line| {
            line.greet_with(&settings(&[(3, 0)]));
            assert!(line.next().is_none());
        }),
        ("headers", |line| {
            if line.greet() && line.request() {
                line.send(&answer_headers());
                line.drain();
            }
        }),
        ("half a frame", |line| {
            if line.greet() && line.request() {
                line.send(&answer_headers());
                line.send(&frame(DATA, 0, STREAM, &[0, 0, 0, 0, 99, 1, 2, 3]));
                line.drain();
            }
        }),
        ("pings", |line| {
            if line.greet() && line.request() {
                while line.try_send(&frame(PING, 0, 0, &[7; 8])) && line.acknowledged(1) {}
            }
        }),
    ];
    std::thread::scope(|scope| {
        for (name, silence) in silences {
            scope.spawn(move || {
                let peer = Peer::once(silence);
                let error = connect(&peer.origin).expect_err(name);
                assert_eq!(error.kind, ErrorKind::Connect, "{name}: {error}");
                assert!(error.message.contains("10 s"), "{name}: {error}");
                assert_eq!(peer.connections(), 1, "{name}");
                served(&connect(&peer.origin).unwrap(), name);
            });
        }
    });
}

// rule: D-3, D-5, T-8
#[test]
fn a_port_that_nobody_listens_on_any_more_is_told_and_the_next_server_serves() {
    let _alone = Alone::begin();
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let closed = Origin {
        secure: false,
        host: "127.0.0.1".to_owned(),
        port,
    };
    let error = connect(&closed).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Connect);
    assert!(error.message.contains(&port.to_string()), "{error}");
    let peer = Peer::once(|line| {
        if line.open() {
            while let Some(received) = line.next() {
                if matches!(received.request, ClientRequest::CommandRequest(_)) {
                    return;
                }
            }
        }
    });
    let options = Options {
        seeds: vec![peer.origin.clone()],
        ..Options::default()
    };
    let session = open(&closed, &options).unwrap();
    served(&session, "the seed");
    assert_eq!(peer.connections(), 2);
}
