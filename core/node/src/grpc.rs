//! gRPC over HTTP/2 as far as sessions need it: message prefixes, flow control, statuses, and how a call's client
//! side ended. Must not know what the messages mean.

use std::collections::VecDeque;
use std::future::poll_fn;

use bytes::{BufMut, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use nervix_wire::Frame;

/// The compressed flag and the length before every message.
const PREFIX: usize = 5;
/// Messages up to this size go out in one piece with their prefix.
const JOINED_LIMIT: usize = 16 * 1024;

pub const OK: u16 = 0;
pub const OUT_OF_RANGE: u16 = 11;
pub const UNIMPLEMENTED: u16 = 12;
pub const INTERNAL: u16 = 13;
pub const UNAVAILABLE: u16 = 14;
pub const UNAUTHENTICATED: u16 = 16;

/// A grpc-status with its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub code: u16,
    pub message: String,
}

impl Status {
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-status", HeaderValue::from(self.code));
        if !self.message.is_empty() {
            if let Ok(message) = HeaderValue::from_str(&percent_encode(&self.message)) {
                headers.insert("grpc-message", message);
            }
        }
        headers
    }

    /// The answer that consists of this status alone.
    pub fn response(&self) -> Response<()> {
        let mut response = Response::new(());
        *response.headers_mut() = self.headers();
        response
            .headers_mut()
            .insert("content-type", HeaderValue::from_static("application/grpc"));
        response
    }

    /// Ends an answered call with this status.
    pub fn finish(&self, stream: &mut SendStream<Bytes>) {
        // A stream that is gone already needs no trailers.
        let _ = stream.send_trailers(self.headers());
    }
}

/// The start of an answer whose messages follow.
pub fn accepted() -> Response<()> {
    let mut response = Response::new(());
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// The answer to something that is no gRPC call.
pub fn not_grpc(status: StatusCode) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response
}

fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (0x20..=0x7e).contains(&byte) && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// How the client's side of a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallEnd {
    /// END_STREAM: the client half-closed.
    EndStream,
    /// RST_STREAM with this code.
    Reset(u32),
    /// The connection went away under the call.
    Lost(String),
}

impl CallEnd {
    pub fn from_error(error: &h2::Error) -> Self {
        match error.reason() {
            Some(reason) if error.is_reset() => Self::Reset(u32::from(reason)),
            _ => Self::Lost(error.to_string()),
        }
    }
}

/// What arrives next on a call.
#[derive(Debug)]
pub enum Incoming {
    Message(Frame),
    End(CallEnd),
    /// The client broke the framing; the call ends with this status.
    Refused(Status),
}

/// Cuts a call's request body into messages, copying each once into its frame.
pub struct MessageReader {
    body: RecvStream,
    assembly: Assembly,
}

impl MessageReader {
    pub fn new(body: RecvStream, limit: usize) -> Self {
        Self {
            body,
            assembly: Assembly::new(limit),
        }
    }

    pub async fn next(&mut self) -> Incoming {
        loop {
            match self.assembly.take() {
                Ok(Some(frame)) => return Incoming::Message(frame),
                Ok(None) => {}
                Err(status) => return Incoming::Refused(status),
            }
            match self.body.data().await {
                Some(Ok(chunk)) => {
                    // The assembly holds one message and one chunk at most, so the window can open at once.
                    let _ = self.body.flow_control().release_capacity(chunk.len());
                    self.assembly.push(chunk);
                }
                Some(Err(error)) => return Incoming::End(CallEnd::from_error(&error)),
                None if self.assembly.is_empty() => return Incoming::End(CallEnd::EndStream),
                None => {
                    return Incoming::Refused(Status::new(
                        INTERNAL,
                        "the request stream ended inside a message",
                    ))
                }
            }
        }
    }
}

/// Bytes of a request body that are not yet a message.
#[derive(Debug)]
struct Assembly {
    chunks: VecDeque<Bytes>,
    buffered: usize,
    limit: usize,
}

impl Assembly {
    fn new(limit: usize) -> Self {
        Self {
            chunks: VecDeque::new(),
            buffered: 0,
            limit,
        }
    }

    fn is_empty(&self) -> bool {
        self.buffered == 0
    }

    fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.buffered = self.buffered.saturating_add(chunk.len());
            self.chunks.push_back(chunk);
        }
    }

    fn prefix(&self) -> Option<[u8; PREFIX]> {
        let mut prefix = [0; PREFIX];
        let mut bytes = self.chunks.iter().flat_map(|chunk| chunk.iter());
        for place in &mut prefix {
            *place = *bytes.next()?;
        }
        Some(prefix)
    }

    fn take(&mut self) -> Result<Option<Frame>, Status> {
        let Some([flag, a, b, c, d]) = self.prefix() else {
            return Ok(None);
        };
        match flag {
            0 => {}
            1 => {
                return Err(Status::new(
                    UNIMPLEMENTED,
                    "compressed messages are not supported",
                ))
            }
            _ => {
                return Err(Status::new(
                    INTERNAL,
                    format!("a message has the undefined flag {flag}"),
                ))
            }
        }
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > self.limit {
            return Err(Status::new(
                OUT_OF_RANGE,
                format!(
                    "a message of {length} bytes is above the limit of {} bytes",
                    self.limit
                ),
            ));
        }
        if self.buffered.saturating_sub(PREFIX) < length {
            return Ok(None);
        }
        let _ = self.split(PREFIX);
        let parts = self.split(length);
        Ok(Some(Frame::from_chunks(
            length,
            parts.iter().map(|part| part.as_ref()),
        )))
    }

    /// Takes exactly `length` bytes, which are there.
    fn split(&mut self, mut length: usize) -> Vec<Bytes> {
        let mut parts = Vec::new();
        while length > 0 {
            let Some(mut chunk) = self.chunks.pop_front() else {
                break;
            };
            let part = chunk.split_to(length.min(chunk.len()));
            length -= part.len();
            self.buffered = self.buffered.saturating_sub(part.len());
            parts.push(part);
            if !chunk.is_empty() {
                self.chunks.push_front(chunk);
            }
        }
        parts
    }
}

/// A message with the flag and length a hostile server might give it.
#[derive(Debug, Clone)]
pub struct Envelope {
    pub flag: u8,
    pub frame: Bytes,
}

impl Envelope {
    pub fn plain(frame: Bytes) -> Self {
        Self { flag: 0, frame }
    }
}

/// Writes one message as the client's window allows; an error says how the client's side ended meanwhile.
pub async fn send_message(
    stream: &mut SendStream<Bytes>,
    message: Envelope,
) -> Result<(), CallEnd> {
    let length = u32::try_from(message.frame.len()).unwrap_or(u32::MAX);
    let joined = message.frame.len() <= JOINED_LIMIT;
    let mut head = BytesMut::with_capacity(PREFIX + if joined { message.frame.len() } else { 0 });
    head.put_u8(message.flag);
    head.put_u32(length);
    if joined {
        head.extend_from_slice(&message.frame);
        return send_all(stream, head.freeze()).await;
    }
    send_all(stream, head.freeze()).await?;
    send_all(stream, message.frame).await
}

async fn send_all(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), CallEnd> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let available = match poll_fn(|context| stream.poll_capacity(context)).await {
            Some(Ok(available)) => available,
            Some(Err(error)) => return Err(CallEnd::from_error(&error)),
            None => return Err(CallEnd::Lost("the stream is closed".to_owned())),
        };
        let piece = data.split_to(available.min(data.len()));
        if !piece.is_empty() {
            stream
                .send_data(piece, false)
                .map_err(|error| CallEnd::from_error(&error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn message(flag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![flag];
        bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    // rule: F-2, T-1
    #[test]
    fn messages_are_found_wherever_the_chunks_are_cut() {
        let mut stream = message(0, b"first");
        stream.extend(message(0, b""));
        stream.extend(message(0, b"second message"));
        for size in 1..stream.len() {
            let mut assembly = Assembly::new(64);
            let mut found = Vec::new();
            for chunk in stream.chunks(size) {
                assembly.push(Bytes::copy_from_slice(chunk));
                while let Some(frame) = assembly.take().unwrap() {
                    found.push(frame.as_slice().to_vec());
                }
            }
            assert_eq!(found, [&b"first"[..], b"", b"second message"]);
            assert!(assembly.is_empty());
        }
    }

    // rule: F-3, F-6, T-6
    #[test]
    fn an_oversized_message_is_refused_from_its_prefix_alone() {
        let mut assembly = Assembly::new(8);
        assembly.push(Bytes::from(vec![0, 0, 0, 0, 9]));
        assert_eq!(assembly.take().unwrap_err().code, OUT_OF_RANGE);
    }

    // rule: T-1
    #[test]
    fn compressed_messages_are_refused() {
        let mut assembly = Assembly::new(8);
        assembly.push(Bytes::from(message(1, b"x")));
        assert_eq!(assembly.take().unwrap_err().code, UNIMPLEMENTED);
        let mut assembly = Assembly::new(8);
        assembly.push(Bytes::from(message(7, b"x")));
        assert_eq!(assembly.take().unwrap_err().code, INTERNAL);
    }

    #[test]
    fn status_messages_are_percent_encoded() {
        assert_eq!(percent_encode("50% é\n"), "50%25 %C3%A9%0A");
    }
}
