//! A node in a process of its own and a bare client: HTTP/2 and frames, nothing that could share a mistake with ours.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    dead_code
)]

pub mod batches;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::Request;
use nervix_wire::types::{
    ClientMessage, ClientRequest, CommandOutcome, CommandRequest, Reply, ReplyBody, ServerBody,
    SubscribeDisposition, SubscribeRequest, SubscriptionOpened, SubscriptionType,
};
use nervix_wire::{decode_server, encode_client, Frame};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// No wait of a test is longer; it bounds a failure and is never slept through.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Node {
    pub child: Child,
    pub line: Value,
}

impl Node {
    pub async fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nervix-loopback"))
            .args(["--listen", "127.0.0.1:0", "--exit-with-parent"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        timeout(PATIENCE, output.read_line(&mut line))
            .await
            .unwrap()
            .unwrap();
        let line = serde_json::from_str(&line).unwrap();
        Self { child, line }
    }

    pub fn address(&self, node: usize) -> String {
        let uri = self.line["nodes"][node]["uri"].as_str().unwrap();
        uri.strip_prefix("http://").unwrap().to_owned()
    }

    pub async fn post(&self, action: &str, body: Value) -> Value {
        let (status, answer) = self.try_post(action, body).await;
        assert_eq!(status, 200, "{action}: {answer}");
        answer
    }

    pub async fn try_post(&self, action: &str, body: Value) -> (u16, Value) {
        let body = body.to_string();
        let head = format!("POST /{action} HTTP/1.1\r\nhost: node\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        self.http(&(head + &body)).await
    }

    pub async fn counts(&self) -> Value {
        self.get("counts").await
    }

    pub async fn get(&self, what: &str) -> Value {
        let (status, answer) = self
            .http(&format!(
                "GET /{what} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n"
            ))
            .await;
        assert_eq!(status, 200);
        answer
    }

    async fn http(&self, request: &str) -> (u16, Value) {
        let address = self.line["control"]
            .as_str()
            .unwrap()
            .strip_prefix("http://")
            .unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .unwrap()
            .unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }

    /// A domain `d` as `with_relay` has it, with a client ingestor `i` and a client emitter `e` of the same field. The window
    /// is `PARALLEL MAX n` or `SEQUENTIAL`.
    pub async fn with_endpoints(self, window: &str) -> Self {
        let node = self.with_relay().await;
        let ingestor = format!(
            "CREATE INGESTOR i FROM CLIENT SCHEMA s MODE ACK {window} ACK TIMEOUT 60s RETRY POLICY BACKOFF 100ms MAX 1s
             ON QUIESCE SUSPEND TIMESTAMP NOW TO r INHERIT ALL FLUSH IMMEDIATE ON MESSAGE ERROR LOG
             ON GENERAL ERROR LOG;"
        );
        let emitter = format!(
            "CREATE EMITTER e FROM r TO CLIENT SCHEMA s MODE ACK {window} ACK TIMEOUT 60s RETRY POLICY BACKOFF 100ms MAX 1s
             INHERIT ALL BATCH MAX MESSAGES 16 MAX SIZE 64KiB FLUSH IMMEDIATE ON MESSAGE ERROR LOG
             ON GENERAL ERROR LOG;"
        );
        node.execute(Some("d"), &["STOP;", &ingestor, &emitter, "START;"])
            .await;
        node
    }

    /// What DESCRIBE says, line by line.
    pub async fn describe(&self, domain: &str, what: &str) -> Vec<String> {
        let statement = format!("DESCRIBE {what};");
        let answer = self
            .post("execute", json!({"domain": domain, "statement": statement}))
            .await;
        let message = answer["message"].as_str().unwrap();
        message.lines().map(str::to_owned).collect()
    }

    /// Runs statements for nobody in particular.
    pub async fn execute(&self, domain: Option<&str>, statements: &[&str]) {
        for statement in statements {
            self.post("execute", json!({"domain": domain, "statement": statement}))
                .await;
        }
    }

    pub async fn wait(&self, what: Value) -> Value {
        self.post("wait", what).await
    }

    /// An unpaced domain `d` with a relay `r` of one U32 field `n`, started.
    pub async fn with_relay(self) -> Self {
        for (domain, statement) in [
            (None, "CREATE UNPACED DOMAIN d;"),
            (Some("d"), "CREATE SCHEMA s (n U32);"),
            (Some("d"), "CREATE RELAY r SCHEMA s UNBRANCHED;"),
            (Some("d"), "START;"),
        ] {
            self.post("execute", json!({"domain": domain, "statement": statement}))
                .await;
        }
        self
    }
}

/// How a session ended, as its client saw it.
#[derive(Debug, PartialEq, Eq)]
pub enum Over {
    Status(u16),
    Reset(u32),
    GoAway(u32),
    Lost,
}

pub struct Session {
    requests: SendStream<Bytes>,
    replies: RecvStream,
    buffer: BytesMut,
    next_id: u64,
    pub news: VecDeque<ServerBody>,
    /// Replies that came while another was waited for.
    replied: VecDeque<Reply>,
    connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
    _sender: SendRequest<Bytes>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

pub async fn call(
    address: &str,
    path: &str,
    authorization: Option<&str>,
) -> Result<Session, Option<u16>> {
    let stream = TcpStream::connect(address).await.map_err(|_| None)?;
    let handshake = timeout(
        PATIENCE,
        h2::client::Builder::new()
            .initial_window_size(65_535)
            .handshake::<_, Bytes>(stream),
    );
    let (sender, connection) = handshake.await.unwrap().map_err(|_| None)?;
    let connection = tokio::spawn(connection);
    let mut sender = timeout(PATIENCE, sender.ready())
        .await
        .unwrap()
        .map_err(|_| None)?;
    let mut request = Request::post(format!("http://{address}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    let (response, requests) = sender
        .send_request(request.body(()).unwrap(), false)
        .map_err(|_| None)?;
    let response = timeout(PATIENCE, response)
        .await
        .unwrap()
        .map_err(|_| None)?;
    if let Some(status) = response.headers().get("grpc-status") {
        return Err(Some(status.to_str().unwrap().parse().unwrap()));
    }
    assert_eq!(response.status(), 200);
    Ok(Session {
        requests,
        replies: response.into_body(),
        buffer: BytesMut::new(),
        next_id: 0,
        news: VecDeque::new(),
        replied: VecDeque::new(),
        connection,
        _sender: sender,
    })
}

impl Session {
    pub async fn open(address: &str) -> Self {
        call(address, "/nervix.session.Session/Exchange", None)
            .await
            .unwrap_or_else(|status| panic!("refused: {status:?}"))
    }

    /// Opens a session and reads the two frames every session begins with.
    pub async fn begun(address: &str) -> Self {
        let mut session = Self::open(address).await;
        assert!(matches!(
            session.frame().await,
            Ok(ServerBody::LeadershipObserved(_))
        ));
        assert!(matches!(
            session.frame().await,
            Ok(ServerBody::DomainsObserved(_))
        ));
        session
    }

    pub async fn send_raw(&mut self, flag: u8, body: &[u8]) {
        let mut message = BytesMut::new();
        message.put_u8(flag);
        message.put_u32(u32::try_from(body.len()).unwrap());
        message.extend_from_slice(body);
        let mut message = message.freeze();
        while !message.is_empty() {
            self.requests.reserve_capacity(message.len());
            let Some(Ok(room)) = poll_fn(|context| self.requests.poll_capacity(context)).await
            else {
                return;
            };
            if self
                .requests
                .send_data(message.split_to(room.min(message.len())), false)
                .is_err()
            {
                return;
            }
        }
    }

    pub async fn send(&mut self, request: ClientRequest) -> u64 {
        self.next_id += 1;
        self.send_as(self.next_id, request).await
    }

    pub async fn send_as(&mut self, request_id: u64, request: ClientRequest) -> u64 {
        let frame = encode_client(&ClientMessage {
            request_id,
            request,
        })
        .unwrap();
        self.send_raw(0, &frame).await;
        request_id
    }

    pub async fn raw_frame(&mut self) -> Result<Frame, Over> {
        timeout(PATIENCE, self.raw_frame_unbounded())
            .await
            .expect("no frame came")
    }

    async fn raw_frame_unbounded(&mut self) -> Result<Frame, Over> {
        loop {
            if self.buffer.len() >= 5 {
                let length = u32::from_be_bytes(self.buffer[1..5].try_into().unwrap()) as usize;
                if self.buffer.len() >= 5 + length {
                    let message = self.buffer.split_to(5 + length);
                    return Ok(Frame::copy_from(&message[5..]));
                }
            }
            match self.replies.data().await {
                Some(Ok(chunk)) => {
                    self.replies
                        .flow_control()
                        .release_capacity(chunk.len())
                        .unwrap();
                    self.buffer.extend_from_slice(&chunk);
                }
                Some(Err(error)) => return Err(over(&error)),
                None => {
                    return Err(match self.replies.trailers().await {
                        Ok(Some(trailers)) => {
                            Over::Status(trailers["grpc-status"].to_str().unwrap().parse().unwrap())
                        }
                        Ok(None) => Over::Lost,
                        Err(error) => over(&error),
                    })
                }
            }
        }
    }

    pub async fn frame(&mut self) -> Result<ServerBody, Over> {
        let frame = self.raw_frame().await?;
        Ok(decode_server(&frame)
            .unwrap_or_else(|violation| panic!("{violation}"))
            .body)
    }

    /// The next frame that is no reply.
    pub async fn event(&mut self) -> ServerBody {
        if let Some(event) = self.news.pop_front() {
            return event;
        }
        match self.frame().await.unwrap() {
            ServerBody::Reply(reply) => panic!("{reply:?}"),
            event => event,
        }
    }

    /// The next frame that is no reply and that this finds, those before it forgotten. Replies are kept.
    pub async fn event_where<Found>(
        &mut self,
        mut found: impl FnMut(ServerBody) -> Option<Found>,
    ) -> Found {
        loop {
            let event = match self.news.pop_front() {
                Some(event) => event,
                None => match self.frame().await.unwrap() {
                    ServerBody::Reply(reply) => {
                        self.replied.push_back(reply);
                        continue;
                    }
                    event => event,
                },
            };
            if let Some(found) = found(event) {
                return found;
            }
        }
    }

    /// The reply to one request, whatever else comes before it.
    pub async fn reply_to(&mut self, request_id: u64) -> ReplyBody {
        if let Some(at) = self
            .replied
            .iter()
            .position(|reply| reply.request_id == request_id)
        {
            return self.replied.remove(at).unwrap().body;
        }
        loop {
            match self.frame().await.unwrap() {
                ServerBody::Reply(reply) if reply.request_id == request_id => return reply.body,
                ServerBody::Reply(reply) => self.replied.push_back(reply),
                event => self.news.push_back(event),
            }
        }
    }

    /// Whether this request was answered before the others that were read so far.
    pub fn answered_meanwhile(&self, request_id: u64) -> bool {
        self.replied
            .iter()
            .any(|reply| reply.request_id == request_id)
    }

    pub async fn reply(&mut self) -> Reply {
        if let Some(reply) = self.replied.pop_front() {
            return reply;
        }
        loop {
            match self.frame().await.unwrap() {
                ServerBody::Reply(reply) => return reply,
                event => self.news.push_back(event),
            }
        }
    }

    pub async fn ask(&mut self, request: ClientRequest) -> ReplyBody {
        let id = self.send(request).await;
        self.reply_to(id).await
    }

    pub async fn command(&mut self, request: CommandRequest) -> CommandOutcome {
        match self.ask(ClientRequest::CommandRequest(request)).await {
            ReplyBody::CommandOutcome(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }

    pub async fn subscribe(&mut self, statement: &str) -> SubscriptionOpened {
        let request = subscribe(statement);
        match self.ask(request).await {
            ReplyBody::SubscribeOutcome(outcome) => match outcome.disposition {
                SubscribeDisposition::SubscriptionOpened(opened) => opened,
                SubscribeDisposition::RequestFailed => panic!("{}", outcome.message),
            },
            other => panic!("{other:?}"),
        }
    }

    pub async fn end(&mut self) -> Over {
        loop {
            if let Err(over) = self.raw_frame().await {
                if over != Over::Lost {
                    return over;
                }
                // Only the connection knows whether the server said goodbye.
                return match timeout(PATIENCE, &mut self.connection)
                    .await
                    .unwrap()
                    .unwrap()
                {
                    Err(error) if error.is_go_away() => {
                        Over::GoAway(error.reason().unwrap().into())
                    }
                    _ => Over::Lost,
                };
            }
        }
    }

    pub fn half_close(&mut self) {
        self.requests.send_data(Bytes::new(), true).unwrap();
    }

    pub fn reset(&mut self) {
        self.requests.send_reset(h2::Reason::CANCEL);
    }
}

fn over(error: &h2::Error) -> Over {
    match error.reason() {
        Some(reason) if error.is_reset() => Over::Reset(reason.into()),
        Some(reason) if error.is_go_away() => Over::GoAway(reason.into()),
        _ => Over::Lost,
    }
}

pub fn subscribe(statement: &str) -> ClientRequest {
    ClientRequest::SubscribeRequest(SubscribeRequest {
        domain: "d".to_owned(),
        statement: statement.to_owned(),
        subscription_type: SubscriptionType::Row,
    })
}

/// A fresh UUIDv7.
pub fn reference() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let millis = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_millis();
    let tail = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(
        "{:08x}-{:04x}-7000-8000-{tail:012x}",
        millis >> 16,
        millis & 0xffff
    )
}

pub fn command(domain: Option<&str>, query: &str) -> CommandRequest {
    CommandRequest {
        query: query.to_owned(),
        domain: domain.map(str::to_owned),
        execution_reference: reference(),
        expected_transaction_position: None,
        expected_preview: None,
    }
}
