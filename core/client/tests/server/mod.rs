//! A server for tests: one thread that speaks HTTP/2 and does to exchanges what a test asks for.

pub mod endpoints;

use std::net::SocketAddr;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use nervix_engine::Origin;
use nervix_wire::types::{
    ClientMessage, ClientRequest, CommandCompleted, CommandDisposition, CommandOutcome,
    LeaderIsServingNode, Leadership, LeadershipObserved, Reply, ReplyBody, ServerBody,
    ServerMessage,
};
use nervix_wire::{decode_client, encode_server, Frame};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

/// What the server does to one exchange.
#[derive(Clone)]
pub enum Act {
    /// Says that it leads, and answers commands. Some queries ask for something else, see `answer`.
    Lead,
    /// Answers with a status alone.
    Refuse(&'static str, &'static str),
    /// Answers with an HTTP status alone.
    Http(u16),
    /// Answers with these bytes as the stream's data.
    Raw(Vec<u8>),
    /// Never answers.
    Silent,
}

/// What the server saw.
#[derive(Debug)]
pub enum Seen {
    Opened(Request<()>),
    Message(ClientMessage),
    Reset(Reason),
    /// The client ended its half of the stream, which it must never do.
    HalfClosed,
    /// The connection went away without a word.
    Lost,
}

pub struct Server {
    pub origin: Origin,
    seen: Receiver<Seen>,
}

impl Server {
    /// Serves until the test's process ends; `acts` says what the nth exchange gets, and its last act is for all that follow.
    pub fn start(acts: Vec<Act>) -> Self {
        Self::start_with(acts, None)
    }

    /// As `start`, over TLS when there is a configuration for it.
    pub fn start_with(acts: Vec<Act>, tls: Option<Arc<ServerConfig>>) -> Self {
        let secure = tls.is_some();
        let (sender, seen) = channel();
        let (port, bound) = channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
                    .await
                    .unwrap();
                port.send(listener.local_addr().unwrap().port()).unwrap();
                let acts = Arc::new(acts);
                let mut count = 0_usize;
                loop {
                    let (socket, _) = listener.accept().await.unwrap();
                    socket.set_nodelay(true).unwrap();
                    let act = acts.get(count).or(acts.last()).unwrap().clone();
                    count += 1;
                    let seen = sender.clone();
                    let tls = tls.clone().map(TlsAcceptor::from);
                    tokio::spawn(async move {
                        match tls {
                            None => serve(socket, act, seen).await,
                            Some(tls) => {
                                if let Ok(socket) = tls.accept(socket).await {
                                    serve(socket, act, seen).await;
                                }
                            }
                        }
                    });
                }
            });
        });
        let port = bound.recv().unwrap();
        Self {
            origin: Origin {
                secure,
                host: if secure { "localhost" } else { "127.0.0.1" }.to_owned(),
                port,
            },
            seen,
        }
    }

    /// The next thing it sees.
    pub fn next(&self) -> Seen {
        self.seen
            .recv_timeout(Duration::from_secs(20))
            .expect("the server saw nothing more")
    }

    pub fn opened(&self) -> Request<()> {
        match self.next() {
            Seen::Opened(request) => request,
            other => panic!("{other:?}"),
        }
    }

    pub fn command(&self) -> nervix_wire::types::CommandRequest {
        match self.next() {
            Seen::Message(ClientMessage {
                request: ClientRequest::CommandRequest(command),
                ..
            }) => command,
            other => panic!("{other:?}"),
        }
    }

    /// What it saw and nobody has read yet.
    pub fn rest(&self) -> Vec<Seen> {
        self.seen.try_iter().collect()
    }
}

pub fn message(frame: &[u8]) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(frame.len()).unwrap().to_be_bytes());
    bytes.extend(frame);
    Bytes::from(bytes)
}

fn grpc() -> Response<()> {
    Response::builder()
        .header("content-type", "application/grpc")
        .body(())
        .unwrap()
}

fn trailers(code: &str, message: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.parse().unwrap());
    trailers.insert("grpc-message", message.parse().unwrap());
    trailers
}

async fn serve(socket: impl AsyncRead + AsyncWrite + Unpin, act: Act, seen: Sender<Seen>) {
    let Ok(mut connection) = h2::server::handshake(socket).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(exchange(act.clone(), request, respond, seen.clone()));
    }
}

async fn exchange(
    act: Act,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    seen: Sender<Seen>,
) {
    let (parts, body) = request.into_parts();
    let _ = seen.send(Seen::Opened(Request::from_parts(parts, ())));
    let mut sending = None;
    match &act {
        Act::Lead => {
            let mut stream = respond.send_response(grpc(), false).unwrap();
            stream.send_data(leads(), false).unwrap();
            sending = Some(stream);
        }
        Act::Refuse(code, text) => {
            let mut response = grpc();
            response.headers_mut().extend(trailers(code, text));
            respond.send_response(response, true).unwrap();
        }
        Act::Http(status) => {
            respond
                .send_response(Response::builder().status(*status).body(()).unwrap(), true)
                .unwrap();
        }
        Act::Raw(bytes) => {
            let mut stream = respond.send_response(grpc(), false).unwrap();
            stream.send_data(Bytes::from(bytes.clone()), false).unwrap();
            sending = Some(stream);
        }
        Act::Silent => {}
    }
    read(body, sending, seen).await;
    drop(respond);
}

async fn read(mut body: RecvStream, mut sending: Option<SendStream<Bytes>>, seen: Sender<Seen>) {
    let mut held = Vec::new();
    loop {
        match body.data().await {
            Some(Ok(bytes)) => {
                let _ = body.flow_control().release_capacity(bytes.len());
                held.extend_from_slice(&bytes);
            }
            Some(Err(error)) => {
                let _ = seen.send(match error.reason() {
                    Some(reason) if error.is_reset() => Seen::Reset(reason),
                    _ => Seen::Lost,
                });
                return;
            }
            None => {
                let _ = seen.send(Seen::HalfClosed);
                return;
            }
        }
        while held.len() >= 5 {
            assert_eq!(held[0], 0);
            let len = u32::from_be_bytes(held[1..5].try_into().unwrap()) as usize;
            if held.len() < 5 + len {
                break;
            }
            let frame: Vec<u8> = held.drain(..5 + len).skip(5).collect();
            let received = decode_client(&Frame::copy_from(&frame)).unwrap();
            let _ = seen.send(Seen::Message(received.clone()));
            if let (Some(stream), Some(body)) = (&mut sending, endpoints::answer(&received.request))
            {
                let request_id = received.request_id;
                let body = ServerBody::Reply(Reply { request_id, body });
                let frame = encode_server(&ServerMessage { body }).unwrap();
                // The client may have gone meanwhile.
                let _ = stream.send_data(message(&frame), false);
            }
            if let ClientRequest::CommandRequest(command) = received.request {
                answer(
                    received.request_id,
                    &command.query,
                    &command.execution_reference,
                    &mut sending,
                );
            }
        }
    }
}

fn answer(request_id: u64, query: &str, reference: &str, sending: &mut Option<SendStream<Bytes>>) {
    let Some(stream) = sending else { return };
    match query {
        "HANG;" => {}
        "RESET;" => stream.send_reset(Reason::INTERNAL_ERROR),
        "END;" => stream.send_data(Bytes::new(), true).unwrap(),
        "STATUS;" => stream
            .send_trailers(trailers("13", "the frame%0Ais%20malformed%"))
            .unwrap(),
        "COMPRESSED;" => stream
            .send_data(Bytes::from_static(&[1, 0, 0, 0, 8]), false)
            .unwrap(),
        _ => {
            let body = ServerBody::Reply(Reply {
                request_id,
                body: completed(reference, "x".repeat(query.len())),
            });
            // In pieces of every size, so that frames end anywhere in what arrives together.
            let mut bytes = message(&encode_server(&ServerMessage { body }).unwrap());
            let mut size = 1;
            while !bytes.is_empty() {
                stream
                    .send_data(bytes.split_to(size.min(bytes.len())), false)
                    .unwrap();
                size *= 2;
            }
        }
    }
}

/// The reply to a command that was carried out.
pub fn completed(reference: &str, message: String) -> ReplyBody {
    ReplyBody::CommandOutcome(CommandOutcome::plain(
        reference,
        CommandDisposition::CommandCompleted(CommandCompleted {
            already_existed: false,
        }),
        message,
    ))
}

/// What a server says first: that it leads.
pub fn leads() -> Bytes {
    let leadership = Leadership::LeaderIsServingNode(LeaderIsServingNode {
        node: "one".to_owned(),
    });
    let body = ServerBody::LeadershipObserved(LeadershipObserved { leadership });
    message(&encode_server(&ServerMessage { body }).unwrap())
}
