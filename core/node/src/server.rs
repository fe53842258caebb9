//! The nodes' listeners and connections, and what makes a call a session: path, credentials, content type. Must not
//! know what sessions say.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::{Method, Request, StatusCode};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;

use crate::cluster::Cluster;
use crate::faults::CallFailure;
use crate::grpc::{self, Status};
use crate::session;

const EXCHANGE: &str = "/nervix.session.Session/Exchange";
/// Room for one frame a stream, so that a client writes a frame without waiting for us.
const STREAM_WINDOW: u32 = 8 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 32 * 1024 * 1024;
const MAX_STREAMS: u32 = 256;
/// What h2 may hold of a stream's data before it is on the wire: little, so that a reader who stops is felt soon.
const SEND_BUFFER: usize = 64 * 1024;
const MAX_HEADERS: u32 = 64 * 1024;
const BACKLOG: u32 = 1024;
/// How long a listener that cannot accept waits before it tries again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Rounds in which a connection gets to write what was given to it before it is cut.
const SETTLE_ROUNDS: usize = 32;

/// What a node's port does with connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listening {
    /// Connections are served.
    Serve,
    /// Connections are accepted and closed at once.
    Refuse,
    /// Connections are accepted and hear nothing.
    Stall,
    /// Nobody listens; the port stays reserved.
    Stopped,
}

enum ConnectionCommand {
    Settle(oneshot::Sender<()>),
    GoAway(u32),
    Close { abort: bool },
}

/// A hold on one connection, for whoever must end it.
#[derive(Clone)]
pub struct ConnectionControl {
    commands: mpsc::UnboundedSender<ConnectionCommand>,
    silence: Arc<Silence>,
}

/// Whether a connection's bytes go nowhere for now, in either direction, and whom that keeps waiting.
#[derive(Default)]
struct Silence {
    holding: Mutex<Option<Vec<Waker>>>,
}

impl Silence {
    fn begin(&self) {
        self.holding.lock().get_or_insert_with(Vec::new);
    }

    fn end(&self) {
        for waker in self.holding.lock().take().unwrap_or_default() {
            waker.wake();
        }
    }

    /// Whether the caller has to wait; it is woken then.
    fn holds(&self, context: &Context<'_>) -> bool {
        match self.holding.lock().as_mut() {
            Some(waiting) => {
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
                true
            }
            None => false,
        }
    }
}

impl ConnectionControl {
    /// Returns once what was given to the connection is on the wire, as far as the client takes it.
    pub async fn settle(&self) {
        let (done, settled) = oneshot::channel();
        if self.commands.send(ConnectionCommand::Settle(done)).is_ok() {
            let _ = settled.await;
        }
    }

    /// Says goodbye with this code and returns once the connection is gone.
    pub async fn go_away(&self, code: u32) {
        let _ = self.commands.send(ConnectionCommand::GoAway(code));
        self.commands.closed().await;
    }

    /// Lets nothing pass in either direction from now on, or lets everything pass again.
    fn be_silent(&self, silent: bool) {
        if silent {
            self.silence.begin();
        } else {
            self.silence.end();
        }
    }

    /// Closes the connection and returns once it is gone. A stream dropped earlier would be reset first.
    pub async fn close(&self, abort: bool) {
        let _ = self.commands.send(ConnectionCommand::Close { abort });
        self.commands.closed().await;
    }
}

type ListeningChange = (Listening, oneshot::Sender<io::Result<()>>);

/// Each open connection with its node, under a number of its own.
#[derive(Default)]
struct Connections {
    last: u64,
    open: HashMap<u64, (usize, ConnectionControl)>,
}

/// The listeners of all nodes.
pub struct Server {
    cluster: Arc<Cluster>,
    connections: Mutex<Connections>,
    ports: Mutex<Vec<mpsc::UnboundedSender<ListeningChange>>>,
    tls: Option<TlsAcceptor>,
}

/// A bound port that is not served yet.
pub struct Bound {
    listener: TcpListener,
    pub address: SocketAddr,
}

pub fn bind(address: SocketAddr) -> io::Result<Bound> {
    let listener = reserve(address)?.listen(BACKLOG)?;
    let address = listener.local_addr()?;
    Ok(Bound { listener, address })
}

fn reserve(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// A node's port, listened on or only kept from others.
struct Port {
    address: SocketAddr,
    listener: Option<TcpListener>,
    reserved: Option<TcpSocket>,
}

impl Port {
    fn change(&mut self, listening: Listening) -> io::Result<()> {
        if listening == Listening::Stopped {
            drop(self.listener.take());
            self.reserved = Some(reserve(self.address)?);
        } else if self.listener.is_none() {
            let socket = match self.reserved.take() {
                Some(socket) => socket,
                None => reserve(self.address)?,
            };
            self.listener = Some(socket.listen(BACKLOG)?);
        }
        Ok(())
    }
}

impl Server {
    pub fn new(cluster: Arc<Cluster>, tls: Option<TlsAcceptor>) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            connections: Mutex::new(Connections::default()),
            ports: Mutex::new(Vec::new()),
            tls,
        })
    }

    /// Serves the next node on this port.
    pub fn serve(self: &Arc<Self>, bound: Bound) {
        let (commands, received) = mpsc::unbounded_channel();
        let node = {
            let mut ports = self.ports.lock();
            ports.push(commands);
            ports.len() - 1
        };
        tokio::spawn(self.clone().listen(node, bound, received));
    }

    /// Changes what a node's port does, and returns once it does so.
    pub async fn set_listening(&self, node: usize, listening: Listening) -> io::Result<()> {
        let Some(port) = self.ports.lock().get(node).cloned() else {
            return Err(io::Error::other("there is no such node"));
        };
        let (done, applied) = oneshot::channel();
        let gone = |_| io::Error::other("the node's listener is gone");
        port.send((listening, done)).map_err(|_| gone(()))?;
        applied.await.map_err(|_| gone(()))?
    }

    /// Closes every connection of a node, with sessions or without, and returns once they are gone.
    pub async fn close_connections(&self, node: usize) {
        let connections: Vec<ConnectionControl> = self
            .connections
            .lock()
            .open
            .values()
            .filter(|(of, _)| *of == node)
            .map(|(_, connection)| connection.clone())
            .collect();
        for connection in connections {
            connection.close(false).await;
        }
    }

    /// Makes the connections of a node, or of all, silent, or lets them be heard again. Later ones are served.
    pub fn silence(&self, node: Option<usize>, silent: bool) -> usize {
        let connections = self.connections.lock();
        let mut found = 0;
        for (of, connection) in connections.open.values() {
            if node.is_none_or(|wanted| wanted == *of) {
                connection.be_silent(silent);
                found += 1;
            }
        }
        found
    }

    async fn listen(
        self: Arc<Self>,
        node: usize,
        bound: Bound,
        mut changes: mpsc::UnboundedReceiver<ListeningChange>,
    ) {
        let mut port = Port {
            address: bound.address,
            listener: Some(bound.listener),
            reserved: None,
        };
        let mut listening = Listening::Serve;
        let mut stalled = Vec::new();
        loop {
            let accepted = tokio::select! {
                biased;
                change = changes.recv() => match change {
                    None => return,
                    Some((next, done)) => {
                        listening = next;
                        stalled.clear();
                        let _ = done.send(port.change(listening));
                        continue;
                    }
                },
                accepted = accept(port.listener.as_ref()) => accepted,
            };
            let Ok((stream, _)) = accepted else {
                // Most likely the process has no descriptor left, and one that closes makes room.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            match listening {
                Listening::Serve => {
                    tokio::spawn(self.clone().connection(node, stream));
                }
                Listening::Stall => stalled.push(stream),
                Listening::Refuse | Listening::Stopped => self.cluster.counts.connection_refused(),
            }
        }
    }

    async fn connection(self: Arc<Self>, node: usize, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let (commands, received) = mpsc::unbounded_channel();
        let control = ConnectionControl {
            commands,
            silence: Arc::default(),
        };
        let id = {
            let mut connections = self.connections.lock();
            connections.last += 1;
            let id = connections.last;
            connections.open.insert(id, (node, control.clone()));
            id
        };
        self.cluster.counts.connection_opened();
        self.drive(node, stream, control, received).await;
        self.connections.lock().open.remove(&id);
        self.cluster.counts.connection_closed();
    }

    async fn drive(
        &self,
        node: usize,
        stream: TcpStream,
        control: ConnectionControl,
        mut commands: mpsc::UnboundedReceiver<ConnectionCommand>,
    ) {
        let abort_on_close = Arc::new(AtomicBool::new(false));
        let stream = Wire {
            stream,
            abort_on_close: abort_on_close.clone(),
            silence: control.silence.clone(),
        };
        let Some(tls) = &self.tls else {
            return self
                .speak(node, stream, abort_on_close, control, commands)
                .await;
        };
        let secured = tokio::select! {
            secured = tls.accept(stream) => secured,
            Some(_) = commands.recv() => return,
        };
        if let Ok(stream) = secured {
            self.speak(node, stream, abort_on_close, control, commands)
                .await;
        }
    }

    /// Speaks HTTP/2 on a connection until it ends.
    async fn speak<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        node: usize,
        stream: T,
        abort_on_close: Arc<AtomicBool>,
        control: ConnectionControl,
        mut commands: mpsc::UnboundedReceiver<ConnectionCommand>,
    ) {
        let mut builder = h2::server::Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADERS)
            .max_send_buffer_size(SEND_BUFFER);
        let handshake = tokio::select! {
            handshake = builder.handshake::<_, Bytes>(stream) => handshake,
            // Nothing is on this connection yet that could settle.
            Some(_) = commands.recv() => return,
        };
        let Ok(mut connection) = handshake else {
            return;
        };
        loop {
            let command = tokio::select! {
                biased;
                Some(command) = commands.recv() => command,
                accepted = connection.accept() => match accepted {
                    Some(Ok((request, respond))) => {
                        self.call(node, request, respond, &control);
                        continue;
                    }
                    Some(Err(_)) | None => return,
                },
            };
            for (request, respond) in settle(&mut connection).await {
                self.call(node, request, respond, &control);
            }
            match command {
                ConnectionCommand::Settle(done) => {
                    let _ = done.send(());
                }
                ConnectionCommand::GoAway(code) => connection.abrupt_shutdown(Reason::from(code)),
                ConnectionCommand::Close { abort } => {
                    abort_on_close.store(abort, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    fn call(
        &self,
        node: usize,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        control: &ConnectionControl,
    ) {
        let response = match self.admit(node, &request) {
            Ok(user) => {
                if let Ok(stream) = respond.send_response(grpc::accepted(), false) {
                    let body = request.into_body();
                    tokio::spawn(session::serve(
                        self.cluster.clone(),
                        node,
                        user,
                        body,
                        stream,
                        control.clone(),
                    ));
                }
                return;
            }
            Err(Refusal::NotGrpc(status)) => grpc::not_grpc(status),
            Err(Refusal::Status(status)) => status.response(),
        };
        // A call that is gone already needs no answer.
        let _ = respond.send_response(response, true);
    }

    fn admit(&self, node: usize, request: &Request<RecvStream>) -> Result<String, Refusal> {
        let header = |name: &str| {
            request
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        if request.method() != Method::POST {
            return Err(Refusal::NotGrpc(StatusCode::METHOD_NOT_ALLOWED));
        }
        if !header("content-type").is_some_and(|kind| kind.starts_with("application/grpc")) {
            return Err(Refusal::NotGrpc(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        if request.uri().path() != EXCHANGE {
            return Err(Refusal::Status(Status::new(
                grpc::UNIMPLEMENTED,
                format!("this node does not serve {}", request.uri().path()),
            )));
        }
        let failure = self.cluster.faults.call_failure(node);
        if failure == Some(CallFailure::Unavailable) {
            self.cluster.counts.call_unavailable();
            return Err(Refusal::Status(Status::new(
                grpc::UNAVAILABLE,
                "credentials cannot be verified now",
            )));
        }
        match self
            .cluster
            .user_of(header("authorization").and_then(basic))
        {
            Some(user) if failure.is_none() => Ok(user),
            _ => {
                self.cluster.counts.call_unauthenticated();
                Err(Refusal::Status(Status::new(
                    grpc::UNAUTHENTICATED,
                    "the credentials are missing or wrong",
                )))
            }
        }
    }
}

/// A connection's socket, which can be told to be silent, and to abort instead of closing when it is dropped.
struct Wire {
    stream: TcpStream,
    abort_on_close: Arc<AtomicBool>,
    silence: Arc<Silence>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.abort_on_close.load(Ordering::Relaxed) {
            // Failing that, the connection closes, which ends it too.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.silence.holds(context) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.silence.holds(context) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.silence.holds(context) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

enum Refusal {
    NotGrpc(StatusCode),
    Status(Status),
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// Lets a connection write what it has, and hands back the calls that arrive meanwhile.
async fn settle<T: AsyncRead + AsyncWrite + Unpin>(
    connection: &mut Connection<T, Bytes>,
) -> Vec<(Request<RecvStream>, SendResponse<Bytes>)> {
    let mut calls = Vec::new();
    for _ in 0..SETTLE_ROUNDS {
        let over = poll_fn(|context| {
            Poll::Ready(match connection.poll_accept(context) {
                Poll::Ready(Some(Ok(call))) => {
                    calls.push(call);
                    false
                }
                Poll::Ready(_) => true,
                Poll::Pending => false,
            })
        })
        .await;
        if over {
            break;
        }
        tokio::task::yield_now().await;
    }
    calls
}

/// The user and password of a Basic authorization header.
fn basic(header: &str) -> Option<(String, String)> {
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(encoded.trim())
        .ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // rule: T-4
    #[test]
    fn basic_credentials_are_read_exactly() {
        let read = |header: &str| basic(header);
        assert_eq!(
            read("Basic ZGVmYXVsdDpzOmVjcmV0"),
            Some(("default".to_owned(), "s:ecret".to_owned()))
        );
        assert_eq!(read("basic Og=="), Some((String::new(), String::new())));
        for bad in [
            "Bearer ZGVmYXVsdDpz",
            "Basic",
            "Basic !!!",
            "Basic ZGVmYXVsdA==",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
