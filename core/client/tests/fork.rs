//! What a fork leaves of a session. Alone in its process, because the generation is the process's.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
mod server;

use nervix_client::{fork, Cancel, Options, Session};
use nervix_engine::{Disposition, ErrorKind};
use server::{Act, Seen, Server};

#[test]
fn what_was_made_before_a_fork_is_closed_and_left_alone() {
    let server = Server::start(vec![Act::Lead]);
    let connect =
        || Session::connect(&server.origin, None, None, &Options::default(), None).unwrap();
    let session = connect();
    server.opened();
    let execution = session.prepare("SHOW X;", None).unwrap();
    let cancel = Cancel::new();

    fork::forked();
    let error = session.execute(&execution, None).unwrap_err();
    assert_eq!(
        (error.kind, error.reference.as_deref()),
        (ErrorKind::Closed, Some(execution.reference()))
    );
    assert_eq!(
        session.prepare("SHOW X;", None).unwrap_err().kind,
        ErrorKind::Closed
    );
    assert_eq!(
        session.next_event(None).unwrap_err().kind,
        ErrorKind::Closed
    );
    cancel.trigger();
    drop((execution, session));

    let session = connect();
    let execution = session.prepare("SHOW Y;", None).unwrap();
    assert_eq!(
        session.next_event(Some(&cancel)).unwrap_err().kind,
        ErrorKind::Closed
    );
    assert_eq!(
        session.execute(&execution, None).unwrap().disposition,
        Disposition::Completed
    );
    // The server heard of the new session alone: the old one's exchange is neither used nor ended.
    server.opened();
    assert_eq!(server.command().query, "SHOW Y;");
    assert!(server.rest().is_empty());
    drop(session);
    assert!(matches!(server.next(), Seen::Reset(_)));
}
