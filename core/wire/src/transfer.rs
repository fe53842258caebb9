//! Joining the parts of a reply (F-7). One reassembler serves one request; which request a part is
//! for is said by the Reply around it.

use crate::codec::decode_server_within;
use crate::frame::Frame;
use crate::types::{ReplyBody, ServerBody, ServerMessage, TransferPart};
use crate::violation::Violation;
use crate::TRANSFER_LIMIT;

/// Collects the parts of the reply to one request. Memory grows with what arrives, whatever total a
/// peer declares.
#[derive(Debug)]
pub struct Reassembler {
    request_id: u64,
    total: Option<u64>,
    received: Vec<u8>,
}

impl Reassembler {
    pub fn new(request_id: u64) -> Self {
        Self {
            request_id,
            total: None,
            received: Vec::new(),
        }
    }

    /// The bytes joined so far.
    pub fn received(&self) -> usize {
        self.received.len()
    }

    /// Takes the next part of the reply to `request_id`; the whole reply comes back with the last.
    ///
    /// # Errors
    /// What F-7 refuses. The reassembler is of no further use then, nor after the whole reply.
    pub fn push(
        &mut self,
        request_id: u64,
        part: &TransferPart,
    ) -> Result<Option<ServerMessage>, Violation> {
        if request_id != self.request_id {
            return refuse(format!(
                "a part names request {request_id}, not {}",
                self.request_id
            ));
        }
        let total = *self.total.get_or_insert(part.total_bytes);
        if part.total_bytes != total {
            return refuse("a part names another total than the first".into());
        }
        if total == 0 || total > TRANSFER_LIMIT as u64 {
            return refuse(format!("a reply of {total} bytes cannot be transferred"));
        }
        let offset = self.received.len() as u64;
        if part.offset != offset {
            return refuse(format!("a part begins at {}, not at {offset}", part.offset));
        }
        if part.chunk.is_empty() {
            return refuse("a part is empty".into());
        }
        let end = offset.saturating_add(part.chunk.len() as u64);
        if end > total {
            return refuse("the parts are more than their total".into());
        }
        self.received.extend_from_slice(&part.chunk);
        if end < total {
            return Ok(None);
        }
        let received = std::mem::take(&mut self.received);
        let frame = Frame::received(received.len(), &[&received]);
        self.joined(&frame).map(Some)
    }

    fn joined(&self, frame: &Frame) -> Result<ServerMessage, Violation> {
        let message = decode_server_within(frame, TRANSFER_LIMIT)?;
        match &message.body {
            ServerBody::Reply(reply) if reply.request_id != self.request_id => refuse(format!(
                "the joined reply is to request {}, not {}",
                reply.request_id, self.request_id
            )),
            ServerBody::Reply(reply) if matches!(reply.body, ReplyBody::TransferPart(_)) => {
                refuse("the joined reply is itself a part".into())
            }
            ServerBody::Reply(_) => Ok(message),
            _ => refuse("the joined frame is no reply".into()),
        }
    }
}

fn refuse<T>(message: String) -> Result<T, Violation> {
    Err(Violation::new("F-7", message))
}
