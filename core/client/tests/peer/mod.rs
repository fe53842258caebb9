//! A server for tests that writes each byte of HTTP/2 itself, so that it can break any rule of it.
//!
//! Each connection runs a script in a thread of its own. A script behaves well for as long as it wants to, and then does not.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nervix_engine::Origin;
use nervix_wire::types::{
    ClientMessage, ClientRequest, Reply, ReplyBody, ServerBody, ServerMessage, SuggestOutcome,
    SuggestionStatus,
};
use nervix_wire::{decode_client, encode_server, Frame};

use crate::server::{completed, endpoints, leads, message};

/// What no wait of a test takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;

/// The only stream that a client opens.
pub const STREAM: u32 = 1;

/// One frame of HTTP/2.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The block of a header section, in literals alone.
pub fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

pub fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (name, value) in settings {
        payload.extend(name.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    frame(SETTINGS, 0, 0, &payload)
}

pub fn reset(code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, STREAM, &code.to_be_bytes())
}

pub fn go_away(last: u32, code: u32) -> Vec<u8> {
    let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
    frame(GOAWAY, 0, 0, &payload)
}

pub fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

/// The headers of an answer that goes on.
pub fn answer_headers() -> Vec<u8> {
    let block = fields(&[(":status", "200"), ("content-type", "application/grpc")]);
    frame(HEADERS, END_HEADERS, STREAM, &block)
}

/// The end of an answer.
pub fn trailers(status: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, STREAM, &fields(status))
}

/// One connection, as its script has it.
pub struct Line {
    /// The connections before this one.
    pub number: usize,
    socket: TcpStream,
    held: Vec<u8>,
    seen: Arc<Mutex<Vec<(usize, ClientMessage)>>>,
}

impl Line {
    /// Sends what may be refused: the client may be gone.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes);
    }

    /// Whether the client takes more.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.socket
            .write_all(bytes)
            .map_err(|error| gone(&error))
            .is_ok()
    }

    /// Waits for acknowledgements of settings or pings.
    pub fn acknowledged(&mut self, times: usize) -> bool {
        let mut left = times;
        while left > 0 {
            match self.frame() {
                Some((SETTINGS | PING, ACK, _)) => left -= 1,
                Some(_) => {}
                None => return false,
            }
        }
        true
    }

    fn receive(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        let read = self.socket.read_exact(&mut bytes).map(|()| bytes);
        read.map_err(|error| gone(&error)).ok()
    }

    /// The next frame: its kind, flags and payload. None once the client is gone.
    fn frame(&mut self) -> Option<(u8, u8, Vec<u8>)> {
        let head = self.receive(9)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        Some((head[3], head[4], self.receive(length)?))
    }

    /// Begins HTTP/2, with room for all that a client might send.
    pub fn greet(&mut self) -> bool {
        self.greet_with(&settings(&[(4, 1 << 24)]))
    }

    pub fn greet_with(&mut self, settings: &[u8]) -> bool {
        if self.receive(PREFACE.len()).as_deref() != Some(PREFACE) {
            return false;
        }
        self.send(settings);
        self.send(&window_update(0, 1 << 24));
        true
    }

    /// Waits for the client's request.
    pub fn request(&mut self) -> bool {
        loop {
            match self.frame() {
                Some((HEADERS, ..)) => return true,
                Some((SETTINGS, 0, _)) => self.send(&frame(SETTINGS, ACK, 0, &[])),
                Some(_) => {}
                None => return false,
            }
        }
    }

    /// Answers the request and says who leads.
    pub fn lead(&mut self) {
        self.send(&answer_headers());
        self.data(&leads());
    }

    /// All of it.
    pub fn open(&mut self) -> bool {
        let opened = self.greet() && self.request();
        if opened {
            self.lead();
        }
        opened
    }

    pub fn data(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(16384) {
            self.send(&frame(DATA, 0, STREAM, piece));
        }
    }

    /// The next message of the client. None once its stream or its connection is over.
    pub fn next(&mut self) -> Option<ClientMessage> {
        loop {
            if self.held.len() >= 5 {
                let length = u32::from_be_bytes(self.held[1..5].try_into().unwrap()) as usize;
                if self.held.len() >= 5 + length {
                    let frame: Vec<u8> = self.held.drain(..5 + length).skip(5).collect();
                    let received = decode_client(&Frame::copy_from(&frame)).unwrap();
                    let mut seen = self.seen.lock().unwrap();
                    seen.push((self.number, received.clone()));
                    return Some(received);
                }
            }
            match self.frame()? {
                (DATA, flags, payload) => {
                    // Ending the stream would revert what its session holds.
                    assert_eq!(flags & END_STREAM, 0, "the client ended its stream");
                    self.held.extend(payload);
                }
                (SETTINGS, 0, _) => self.send(&frame(SETTINGS, ACK, 0, &[])),
                (PING, 0, payload) => self.send(&frame(PING, ACK, 0, &payload)),
                (RST_STREAM, ..) => return None,
                _ => {}
            }
        }
    }

    pub fn reply(&mut self, request_id: u64, body: ReplyBody) {
        let body = ServerBody::Reply(Reply { request_id, body });
        let frame = encode_server(&ServerMessage { body }).unwrap();
        self.data(&message(&frame));
    }

    /// Answers a request well, if there is an answer to it.
    pub fn answer(&mut self, received: &ClientMessage) {
        let body = match &received.request {
            ClientRequest::CommandRequest(command) => {
                Some(completed(&command.execution_reference, String::new()))
            }
            ClientRequest::SuggestRequest(_) => Some(ReplyBody::SuggestOutcome(SuggestOutcome {
                status: SuggestionStatus::Ready,
                suggestions: Vec::new(),
                continuation: None,
            })),
            other => endpoints::answer(other),
        };
        if let Some(body) = body {
            self.reply(received.request_id, body);
        }
    }

    /// Behaves well until the client goes.
    pub fn serve(&mut self) {
        while let Some(received) = self.next() {
            self.answer(&received);
        }
    }

    /// Takes whatever comes until the client goes, which it must.
    pub fn drain(&mut self) {
        let mut bytes = vec![0; 65536];
        while self.socket.read(&mut bytes).unwrap_or_else(|error| {
            gone(&error);
            0
        }) > 0
        {}
    }

    /// Says nothing more, and waits for the client to go.
    pub fn half_close(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        self.drain();
    }

    /// Waits, without reading, for as long as `until` does not hold.
    pub fn stand_still(&mut self, until: &AtomicBool) {
        let started = Instant::now();
        while !until.load(Ordering::SeqCst) {
            assert!(started.elapsed() < PATIENCE, "nothing came of it");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Fails when a client neither spoke nor went for so long.
fn gone(error: &std::io::Error) {
    let late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    assert!(!late, "the client is still there");
}

/// A server whose nth connection runs a script.
pub struct Peer {
    pub origin: Origin,
    seen: Arc<Mutex<Vec<(usize, ClientMessage)>>>,
    connections: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Peer {
    pub fn start(script: impl Fn(&mut Line) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let over = Arc::new(AtomicBool::new(false));
        let listening = {
            let (seen, connections, over) = (seen.clone(), connections.clone(), over.clone());
            std::thread::spawn(move || {
                listen(&listener, &seen, &connections, &over, Arc::new(script))
            })
        };
        let origin = Origin {
            secure: false,
            host: "127.0.0.1".to_owned(),
            port,
        };
        Self {
            origin,
            seen,
            connections,
            over,
            listening: Some(listening),
        }
    }

    /// Runs a script on the first connection, and behaves well on all that follow.
    pub fn once(script: impl Fn(&mut Line) + Send + Sync + 'static) -> Self {
        Self::start(move |line| {
            if line.number == 0 {
                script(line);
            } else if line.open() {
                line.serve();
            }
        })
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// The references of the commands that it got, each with the number of its connection.
    pub fn commands(&self) -> Vec<(usize, String)> {
        let seen = self.seen.lock().unwrap();
        let commands = seen.iter().filter_map(|(number, message)| {
            let ClientRequest::CommandRequest(command) = &message.request else {
                return None;
            };
            Some((*number, command.execution_reference.clone()))
        });
        commands.collect()
    }
}

impl Drop for Peer {
    /// Waits until every script is over, and fails when one did. Sessions with it must be dropped before.
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let address = SocketAddr::from(([127, 0, 0, 1], self.origin.port));
        let _ = TcpStream::connect(address);
        let ended = self.listening.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(matches!(ended, Some(Ok(()))), "a script failed");
        }
    }
}

fn listen(
    listener: &TcpListener,
    seen: &Arc<Mutex<Vec<(usize, ClientMessage)>>>,
    connections: &AtomicUsize,
    over: &AtomicBool,
    script: Arc<impl Fn(&mut Line) + Send + Sync + 'static>,
) {
    let mut scripts = Vec::new();
    loop {
        let (socket, _) = listener.accept().unwrap();
        if over.load(Ordering::SeqCst) {
            break;
        }
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        let number = connections.fetch_add(1, Ordering::SeqCst);
        let mut line = Line {
            number,
            socket,
            held: Vec::new(),
            seen: seen.clone(),
        };
        let script = script.clone();
        scripts.push(std::thread::spawn(move || script(&mut line)));
    }
    for script in scripts {
        script.join().expect("a script failed");
    }
}
