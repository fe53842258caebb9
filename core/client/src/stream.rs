//! One exchange: its HTTP/2 connection, from connecting to its end (T-1, T-4, T-6).
//!
//! Owns the request's headers, moving messages both ways, and naming how it ended. A request stream is never ended, only
//! reset: ending it would revert the transaction that its session holds. Knows nothing of what messages say.

use std::collections::VecDeque;
use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::task::{Context, Poll};
use std::time::Duration;

use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use nervix_engine::{Cause, Origin};
use nervix_wire::Frame;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use crate::authorities::Authorities;
use crate::framing::{Assembler, Message};
use crate::transport::{self, Stream};

const PATH: &str = "/nervix.session.Session/Exchange";

/// What a server may send ahead of what is read here. A reply waits behind that much of a flood, and every millisecond of a
/// connection's round trip costs a fast server this much a millisecond at most: 2 MiB are a few milliseconds of reading, and
/// 40 MiB/s over 50 ms.
const STREAM_WINDOW: u32 = 2 << 20;
/// There is one stream on a connection, whose window is the one that counts.
const CONNECTION_WINDOW: u32 = 4 << 20;
const HTTP_FRAME: u32 = 256 << 10;
const HEADERS: u32 = 64 << 10;

/// How long a reset may take to leave before the socket is closed all the same.
const FAREWELL: Duration = Duration::from_secs(1);

/// The longest part of a server's status message that is repeated to a host.
const MESSAGE_LIMIT: usize = 1024;

/// What an engine wants done with an exchange.
#[derive(Debug)]
pub(crate) enum Order {
    Send(Vec<u8>),
    Reset,
}

/// What every exchange of a session is opened with.
#[derive(Clone)]
pub(crate) struct Access {
    pub(crate) authorization: Option<HeaderValue>,
    /// Who may vouch for a server, when it is not whom the system trusts.
    pub(crate) trusted: Option<Authorities>,
}

pub(crate) type Orders = UnboundedReceiver<Order>;

/// Runs an exchange to its end. Frames go to `take` as they complete, and why it ended to `end`: nothing when it was reset by
/// order, which the end of the orders is too.
pub(crate) async fn run(
    origin: Origin,
    access: Access,
    mut orders: Orders,
    take: impl FnMut(Frame) + Send,
    end: impl FnOnce(Option<Cause>) + Send,
) {
    let mut early = VecDeque::new();
    let opened = {
        let mut opening = pin!(open(&origin, access));
        // An order to reset ends an attempt at any point; messages for it are kept.
        poll_fn(|cx| loop {
            match orders.poll_recv(cx) {
                Poll::Ready(Some(Order::Send(frame))) => early.push_back(frame),
                Poll::Ready(Some(Order::Reset) | None) => return Poll::Ready(None),
                Poll::Pending => return opening.as_mut().poll(cx).map(Some),
            }
        })
        .await
    };
    let mut exchange = match opened {
        Some(Ok(opened)) => Exchange {
            opened,
            orders,
            take,
            receiving: Receiving::Nothing,
            assembler: Assembler::default(),
        },
        Some(Err(why)) => return end(Some(Cause::Unreachable(why))),
        None => return end(None),
    };
    for frame in early {
        exchange.send(frame);
    }
    end(poll_fn(|cx| exchange.poll(cx)).await);
    exchange.close().await;
}

struct Opened {
    connection: Connection<Box<dyn Stream>, Message>,
    sending: SendStream<Message>,
    response: ResponseFuture,
    // The connection closes once nobody can open another stream on it.
    _requests: SendRequest<Message>,
}

async fn open(origin: &Origin, access: Access) -> Result<Opened, String> {
    let (stream, heard) = transport::connect(origin, access.trusted.as_ref()).await?;
    let refused = |error: h2::Error| format!("HTTP/2 with {origin} failed: {error}");
    let (requests, mut connection) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(HTTP_FRAME)
        .max_header_list_size(HEADERS)
        .enable_push(false)
        .handshake::<_, Message>(stream)
        .await
        .map_err(refused)?;
    // Who speaks something else on the port is not sent the credentials, and has said so once he is heard.
    poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
        Poll::Ready(Ok(())) => Poll::Ready(Err("the connection was closed".to_owned())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(lost(&error))),
        Poll::Pending if heard.get() => Poll::Ready(Ok(())),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    let mut requests = requests.ready().await.map_err(refused)?;
    let request = request(origin, access.authorization)?;
    let (response, sending) = requests.send_request(request, false).map_err(refused)?;
    Ok(Opened {
        connection,
        sending,
        response,
        _requests: requests,
    })
}

fn request(origin: &Origin, authorization: Option<HeaderValue>) -> Result<Request<()>, String> {
    let scheme = if origin.secure { "https" } else { "http" };
    let uri = format!("{scheme}://{}{PATH}", origin.authority());
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(uri)
        .header(http::header::TE, "trailers")
        .header(http::header::CONTENT_TYPE, "application/grpc")
        .header(
            http::header::USER_AGENT,
            concat!("nervix-ffi/", env!("CARGO_PKG_VERSION")),
        )
        .body(())
        .map_err(|error| format!("no request can be made for {origin}: {error}"))?;
    if let Some(authorization) = authorization {
        request
            .headers_mut()
            .insert(http::header::AUTHORIZATION, authorization);
    }
    Ok(request)
}

struct Exchange<F> {
    opened: Opened,
    orders: Orders,
    take: F,
    receiving: Receiving,
    assembler: Assembler,
}

/// How far the server's half is.
enum Receiving {
    Nothing,
    Messages(RecvStream),
    Trailers(RecvStream),
}

impl<F: FnMut(Frame)> Exchange<F> {
    fn send(&mut self, frame: Vec<u8>) {
        if let Some(message) = Message::new(frame) {
            // It fails only on a stream that is over, and its end is read where everything from the server is.
            let _ = self.opened.sending.send_data(message, false);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Cause>> {
        loop {
            loop {
                match self.orders.poll_recv(cx) {
                    Poll::Ready(Some(Order::Send(frame))) => self.send(frame),
                    Poll::Ready(Some(Order::Reset) | None) => return Poll::Ready(None),
                    Poll::Pending => break,
                }
            }
            // One task does everything, so that a message costs one wake; what is read below was read from the socket here.
            let over = match Pin::new(&mut self.opened.connection).poll(cx) {
                Poll::Ready(Ok(())) => Some("the connection was closed".to_owned()),
                Poll::Ready(Err(error)) => Some(lost(&error)),
                Poll::Pending => None,
            };
            let mut progress = false;
            loop {
                match self.receive(cx) {
                    Poll::Ready(Ok(())) => progress = true,
                    Poll::Ready(Err(cause)) => return Poll::Ready(Some(cause)),
                    Poll::Pending => break,
                }
            }
            match over {
                Some(why) => return Poll::Ready(Some(Cause::Lost(why))),
                // Answers and window updates leave before the task rests.
                None if progress => {}
                None => return Poll::Pending,
            }
        }
    }

    /// One step of the server's half.
    fn receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Cause>> {
        match &mut self.receiving {
            Receiving::Nothing => {
                let response = match std::task::ready!(Pin::new(&mut self.opened.response).poll(cx))
                {
                    Ok(response) => response,
                    Err(error) => return Poll::Ready(Err(Cause::Lost(lost(&error)))),
                };
                if let Some(cause) = refusal(&response) {
                    return Poll::Ready(Err(cause));
                }
                self.receiving = Receiving::Messages(response.into_body());
            }
            Receiving::Messages(stream) => match std::task::ready!(stream.poll_data(cx)) {
                Some(Ok(piece)) => {
                    // What is read is gone: the reader never waits for anybody (C-7).
                    let _ = stream.flow_control().release_capacity(piece.len());
                    if let Err(why) = self.assembler.push(piece, &mut self.take) {
                        return Poll::Ready(Err(Cause::Violation(why)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Err(Cause::Lost(lost(&error)))),
                None => {
                    if let Receiving::Messages(stream) =
                        std::mem::replace(&mut self.receiving, Receiving::Nothing)
                    {
                        self.receiving = Receiving::Trailers(stream);
                    }
                }
            },
            Receiving::Trailers(stream) => {
                let cause = match std::task::ready!(stream.poll_trailers(cx)) {
                    Ok(Some(trailers)) if !self.assembler.is_partial() => status(&trailers),
                    Ok(Some(_)) => Some(Cause::Violation(
                        "the call ended inside a message".to_owned(),
                    )),
                    Ok(None) => None,
                    Err(error) => Some(Cause::Lost(lost(&error))),
                };
                let none =
                    || Cause::Lost("the server ended the stream without a status".to_owned());
                return Poll::Ready(Err(cause.unwrap_or_else(none)));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Resets what is left of the stream and gives the reset a moment to leave. The stream is never ended.
    async fn close(self) {
        let Opened {
            connection,
            mut sending,
            response,
            _requests,
        } = self.opened;
        sending.send_reset(Reason::CANCEL);
        drop((sending, response, _requests, self.receiving));
        // Nobody hears of it when this fails: the socket is closed next.
        let _ = timeout(FAREWELL, connection).await;
    }
}

/// Why a response opens no exchange.
fn refusal(response: &Response<RecvStream>) -> Option<Cause> {
    // A call that ends at once has its status here instead of in trailers; it says more than one of HTTP.
    if let Some(cause) = status(response.headers()) {
        return Some(cause);
    }
    let code = response.status();
    if code == StatusCode::OK {
        let kind = response
            .headers()
            .get(http::header::CONTENT_TYPE)
            .map(HeaderValue::as_bytes);
        if kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
            return None;
        }
        return Some(Cause::Violation(
            "the server's answer is not gRPC: check that the port is a session port".to_owned(),
        ));
    }
    let message = format!("the server answered with HTTP status {}", code.as_u16());
    Some(match code {
        StatusCode::UNAUTHORIZED => Cause::Status { code: 16, message },
        StatusCode::FORBIDDEN => Cause::Status { code: 7, message },
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Cause::Status { code: 14, message },
        _ => Cause::Unreachable(format!("{message}: check that the port is a session port")),
    })
}

/// The status in headers or trailers, when they carry one.
fn status(headers: &HeaderMap) -> Option<Cause> {
    const STATUS: HeaderName = HeaderName::from_static("grpc-status");
    const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
    let code = headers.get(STATUS)?;
    // A code that cannot be read is 2, UNKNOWN, as gRPC has it.
    let code = code
        .to_str()
        .ok()
        .and_then(|code| code.parse().ok())
        .unwrap_or(2);
    let message = headers
        .get(MESSAGE)
        .map(|message| text(message.as_bytes()))
        .unwrap_or_default();
    Some(Cause::Status { code, message })
}

/// A percent-encoded message as one bounded line. What cannot be decoded stays as it is.
fn text(encoded: &[u8]) -> String {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut bytes = Vec::with_capacity(encoded.len().min(MESSAGE_LIMIT));
    let mut rest = encoded;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let mut byte = *first;
        if byte == b'%' {
            if let (Some(high), Some(low)) = (digit(after.first()), digit(after.get(1))) {
                byte = u8::try_from(high * 16 + low).unwrap_or(byte);
                rest = after.get(2..).unwrap_or_default();
            }
        }
        bytes.push(byte);
    }
    let line: String = String::from_utf8_lossy(&bytes)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    match line.char_indices().nth(MESSAGE_LIMIT) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// A broken stream or connection, whatever code the HTTP/2 library gives it.
fn lost(error: &h2::Error) -> String {
    if error.is_io() {
        return match error.get_io() {
            Some(error) => format!("the connection broke: {error}"),
            None => "the connection broke".to_owned(),
        };
    }
    let who = if error.is_remote() {
        "the server"
    } else {
        "the client"
    };
    match (error.is_reset(), error.is_go_away(), error.reason()) {
        (true, _, Some(reason)) => format!("{who} reset the stream: {reason}"),
        (_, true, Some(reason)) => format!("{who} closed the connection: {reason}"),
        _ => format!("the connection failed: {error}"),
    }
}
