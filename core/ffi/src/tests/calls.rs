//! Calls and their arguments, without a server.

use std::net::TcpListener;
use std::ptr::{null, null_mut};

use super::{kind, take, CANCELLED, DEADLINE, INVALID_ARGUMENT};
use crate::cancel::*;
use crate::options::*;
use crate::session::*;

type Text<'a> = Option<&'a [u8]>;

fn pointer(text: Text<'_>) -> (*const u8, usize) {
    text.map_or((null(), 0), |text| (text.as_ptr(), text.len()))
}

fn connect(
    server: Text,
    domain: Text,
    username: Text,
    password: Text,
    cancel: *const CancelObject,
) -> (i32, String) {
    connect_with(server, domain, username, password, null(), cancel)
}

fn connect_with(
    server: Text,
    domain: Text,
    username: Text,
    password: Text,
    options: *const OptionsObject,
    cancel: *const CancelObject,
) -> (i32, String) {
    let (server, domain, username, password) = (
        pointer(server),
        pointer(domain),
        pointer(username),
        pointer(password),
    );
    let mut out = null_mut();
    // SAFETY: the buffers are as long as they say, and the place can be written to.
    let error = unsafe {
        nxx_session_connect(
            server.0, server.1, domain.0, domain.1, username.0, username.1, password.0, password.1,
            options, cancel, &mut out,
        )
    };
    assert!(out.is_null());
    let mut out = null_mut();
    if options.is_null() {
        // SAFETY: as above.
        let same = unsafe {
            nx_session_connect(
                server.0, server.1, domain.0, domain.1, username.0, username.1, password.0,
                password.1, cancel, &mut out,
            )
        };
        assert!(out.is_null());
        let (one, other) = (take(error), take(same));
        assert_eq!(one, other);
        return one;
    }
    take(error)
}

const SERVER: Text = Some(b"http://127.0.0.1:9");

#[test]
fn arguments_that_cannot_be_read_are_invalid() {
    let refused = [
        (connect(None, None, None, None, null()), "server"),
        (connect(Some(b""), None, None, None, null()), "server"),
        (
            connect(Some(b"127.0.0.1:9"), None, None, None, null()),
            "http://",
        ),
        (
            connect(Some(b"http://a\xff"), None, None, None, null()),
            "UTF-8",
        ),
        (
            connect(SERVER, Some(b"\xc3("), None, None, null()),
            "domain",
        ),
        (connect(SERVER, Some(b""), None, None, null()), "domain"),
        (connect(SERVER, None, Some(b"u"), None, null()), "password"),
        (connect(SERVER, None, None, Some(b"p"), null()), "username"),
        (
            connect(SERVER, None, Some(b"\xff"), Some(b"p"), null()),
            "username",
        ),
        (
            connect(SERVER, None, Some(b"u:v"), Some(b"p"), null()),
            "colon",
        ),
    ];
    for ((kind, message), names) in refused {
        assert_eq!(kind, INVALID_ARGUMENT, "{message}");
        assert!(message.contains(names), "{message}");
    }
    let (_, message) = connect(Some(b"http://u:hunter2@a"), None, None, None, null());
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn null_with_a_length_is_invalid() {
    let mut out = null_mut();
    let server = pointer(SERVER);
    // SAFETY: a NULL pointer with a length is refused before it is read; so is a length that nothing has.
    unsafe {
        let error =
            nx_session_connect(null(), 3, null(), 0, null(), 0, null(), 0, null(), &mut out);
        assert_eq!(kind(error), INVALID_ARGUMENT);
        let error = nx_session_connect(
            server.0,
            server.1,
            null(),
            1,
            null(),
            0,
            null(),
            0,
            null(),
            &mut out,
        );
        assert_eq!(kind(error), INVALID_ARGUMENT);
        let error = nx_session_connect(
            server.0,
            usize::MAX,
            null(),
            0,
            null(),
            0,
            null(),
            0,
            null(),
            &mut out,
        );
        assert_eq!(kind(error), INVALID_ARGUMENT);
        let error = nx_session_connect(
            server.0,
            server.1,
            null(),
            0,
            null(),
            0,
            null(),
            0,
            null(),
            null_mut(),
        );
        assert_eq!(kind(error), INVALID_ARGUMENT);
    }
}

#[test]
fn calls_without_their_objects_are_invalid() {
    // SAFETY: NULL is refused.
    unsafe {
        let (mut execution, mut outcome, mut event, mut page) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        assert_eq!(
            kind(nx_session_prepare(
                null_mut(),
                b"X".as_ptr(),
                1,
                null(),
                &mut execution
            )),
            INVALID_ARGUMENT
        );
        assert_eq!(
            kind(nxx_session_prepare(
                null_mut(),
                b"X".as_ptr(),
                1,
                null(),
                0,
                null(),
                null(),
                0,
                0,
                null(),
                0,
                null(),
                &mut execution
            )),
            INVALID_ARGUMENT
        );
        assert_eq!(
            kind(nxx_session_prepare_in(
                null_mut(),
                b"d".as_ptr(),
                1,
                null(),
                0,
                b"X".as_ptr(),
                1,
                null(),
                &mut execution
            )),
            INVALID_ARGUMENT
        );
        assert_eq!(
            kind(nx_session_execute(null_mut(), null(), null(), &mut outcome)),
            INVALID_ARGUMENT
        );
        assert_eq!(
            kind(nx_session_next_event(null_mut(), null(), &mut event)),
            INVALID_ARGUMENT
        );
        assert_eq!(
            kind(nx_session_suggest(
                null(),
                null(),
                0,
                0,
                1,
                null(),
                0,
                null(),
                &mut page
            )),
            INVALID_ARGUMENT
        );
        let (mut text, mut len) = (null(), 9);
        nx_execution_reference(null(), &mut text, &mut len);
        assert_eq!(len, 0);
    }
}

#[test]
fn tokens_end_calls_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let mut expired = null_mut();
    // SAFETY: each token is freed once, at the end.
    unsafe {
        assert_eq!(
            kind(nx_cancel_with_deadline(0, null_mut())),
            INVALID_ARGUMENT
        );
        assert_eq!(kind(nx_cancel_with_deadline(0, &mut expired)), 0);
        let triggered = nx_cancel_new();
        nx_cancel_trigger(triggered);
        nx_cancel_trigger(triggered);
        nx_cancel_trigger(null());
        assert_eq!(
            connect(Some(server.as_bytes()), None, None, None, expired).0,
            DEADLINE
        );
        assert_eq!(
            connect(Some(server.as_bytes()), None, None, None, triggered).0,
            CANCELLED
        );
        nx_cancel_free(expired);
        nx_cancel_free(triggered);
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

// rule: B-5
#[test]
fn a_thread_that_drives_a_runtime_may_not_block() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let (kind, message) = runtime.block_on(async { connect(SERVER, None, None, None, null()) });
    assert_eq!(kind, INVALID_ARGUMENT);
    assert!(message.contains("thread"), "{message}");
}

#[test]
fn options_are_checked_as_they_are_set() {
    let options = nxx_connect_options_new();
    let seed = |text: &[u8]| {
        // SAFETY: the options are live ones, and the buffer is as long as it says.
        kind(unsafe { nxx_connect_options_add_seed(options, text.as_ptr(), text.len()) })
    };
    assert_eq!(
        (seed(b"http://a"), seed(b"a"), seed(b"")),
        (0, INVALID_ARGUMENT, INVALID_ARGUMENT)
    );
    // SAFETY: the options are live ones, or NULL, and freed once.
    unsafe {
        for (millis, wanted) in [(0, INVALID_ARGUMENT), (1, 0), (u64::MAX, 0)] {
            assert_eq!(
                kind(nxx_connect_options_request_timeout(options, millis)),
                wanted
            );
            assert_eq!(
                kind(nxx_connect_options_retry_timeout(options, millis)),
                wanted
            );
        }
        assert_eq!(
            kind(nxx_connect_options_retry_timeout(null_mut(), 1)),
            INVALID_ARGUMENT
        );
        let (number, message) = connect_with(Some(b"https://b"), None, None, None, options, null());
        assert_eq!(number, INVALID_ARGUMENT);
        assert!(message.contains("http://a"), "{message}");
        nxx_connect_options_free(options);
    }
}

#[test]
fn the_librarys_threads_take_no_signals() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let mut cancel = null_mut();
    // SAFETY: the token and the options are freed once.
    unsafe {
        assert_eq!(kind(nx_cancel_with_deadline(1, &mut cancel)), 0);
        let options = nxx_connect_options_new();
        connect_with(Some(server.as_bytes()), None, None, None, options, cancel);
        nxx_connect_options_free(options);
        nx_cancel_free(cancel);
    }
    let mut found = 0;
    for task in std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else {
            continue;
        };
        if status.starts_with("Name:\tnervix-client") {
            found += 1;
            let blocked = status
                .lines()
                .find_map(|line| line.strip_prefix("SigBlk:\t"))
                .unwrap();
            let blocked = u64::from_str_radix(blocked, 16).unwrap();
            for signal in [
                libc::SIGINT,
                libc::SIGTERM,
                libc::SIGCHLD,
                libc::SIGPIPE,
                libc::SIGALRM,
            ] {
                assert_ne!(blocked & (1 << (signal - 1)), 0, "{status}");
            }
        }
    }
    assert!(cfg!(not(target_os = "linux")) || found >= 1, "{found}");
}
