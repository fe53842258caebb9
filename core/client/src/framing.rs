//! The gRPC message framing: one flag byte and four bytes of length before each message (T-1).
//!
//! Owns prefixes, and putting the pieces that arrive together into frames with one copy. Knows nothing of what frames hold.

use bytes::{Buf, Bytes, BytesMut};
use nervix_wire::{Frame, FRAME_LIMIT};

const PREFIX: usize = 5;

/// Pieces shorter than this are joined as they come, so that a peer that sends many tiny ones pins no more memory than it sent.
const SMALL: usize = 4096;

/// One message on its way out.
#[derive(Debug)]
pub(crate) struct Message {
    prefix: [u8; PREFIX],
    sent: usize,
    body: Bytes,
}

impl Message {
    /// None for a frame longer than its prefix can say.
    pub(crate) fn new(frame: Vec<u8>) -> Option<Self> {
        let length = u32::try_from(frame.len()).ok()?.to_be_bytes();
        let mut prefix = [0; PREFIX];
        prefix
            .iter_mut()
            .skip(1)
            .zip(length)
            .for_each(|(to, from)| *to = from);
        Some(Self {
            prefix,
            sent: 0,
            body: Bytes::from(frame),
        })
    }
}

impl Buf for Message {
    fn remaining(&self) -> usize {
        PREFIX
            .saturating_sub(self.sent)
            .saturating_add(self.body.len())
    }

    fn chunk(&self) -> &[u8] {
        match self.prefix.get(self.sent..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => &self.body,
        }
    }

    fn advance(&mut self, count: usize) {
        let of_prefix = count.min(PREFIX.saturating_sub(self.sent));
        self.sent = self.sent.saturating_add(of_prefix);
        self.body.advance(count.saturating_sub(of_prefix));
    }
}

/// Puts frames together from the pieces they arrive in.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    prefix: Vec<u8>,
    /// The length of the message being read, once its prefix is complete.
    wanted: Option<usize>,
    held: usize,
    pieces: Vec<Bytes>,
    tail: BytesMut,
}

impl Assembler {
    /// Takes a piece and hands out the frames that it completes. The error says what the message violates; nothing may be read
    /// after it.
    pub(crate) fn push(
        &mut self,
        mut piece: Bytes,
        mut take: impl FnMut(Frame),
    ) -> Result<(), String> {
        loop {
            let wanted = match self.wanted {
                Some(wanted) => wanted,
                None => {
                    let missing = PREFIX.saturating_sub(self.prefix.len()).min(piece.len());
                    self.prefix.extend_from_slice(&piece.split_to(missing));
                    let [flag, length @ ..] = self.prefix.as_slice() else {
                        return Ok(());
                    };
                    let Ok(length) = <[u8; 4]>::try_from(length) else {
                        return Ok(());
                    };
                    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                    if *flag != 0 {
                        return Err(format!(
                            "a message has the compression flag {flag}, and none may be compressed"
                        ));
                    }
                    if length > FRAME_LIMIT {
                        return Err(format!("a message of {length} bytes is longer than the frame limit of {FRAME_LIMIT}"));
                    }
                    self.prefix.clear();
                    self.wanted = Some(length);
                    length
                }
            };
            let missing = wanted.saturating_sub(self.held);
            if piece.len() < missing {
                self.hold(piece);
                return Ok(());
            }
            let last = piece.split_to(missing);
            let frame = if self.held == 0 {
                Frame::received(wanted, &[&last])
            } else {
                let tail = std::mem::take(&mut self.tail);
                let parts = self.pieces.iter().map(Bytes::as_ref);
                let parts: Vec<&[u8]> = parts.chain([tail.as_ref(), last.as_ref()]).collect();
                Frame::received(wanted, &parts)
            };
            self.pieces.clear();
            self.held = 0;
            self.wanted = None;
            take(frame);
        }
    }

    /// Whether a message has begun and is not complete.
    pub(crate) fn is_partial(&self) -> bool {
        self.wanted.is_some() || !self.prefix.is_empty()
    }

    fn hold(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        self.held = self.held.saturating_add(piece.len());
        if piece.len() < SMALL {
            self.tail.extend_from_slice(&piece);
            return;
        }
        if !self.tail.is_empty() {
            self.pieces.push(self.tail.split().freeze());
        }
        self.pieces.push(piece);
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wire(frames: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            let mut message = Message::new(frame.clone()).unwrap();
            while message.has_remaining() {
                let chunk = message.chunk().len().min(3);
                bytes.extend_from_slice(&message.chunk()[..chunk]);
                message.advance(chunk);
            }
        }
        bytes
    }

    proptest! {
        // rule: F-2
        #[test]
        fn frames_come_out_as_they_went_in(
            sizes in prop::collection::vec(prop_oneof![0..20_usize, 4000..20_000_usize], 0..6),
            pieces in prop::collection::vec(prop_oneof![0..8_usize, 4000..9000_usize], 1..12),
        ) {
            let frames: Vec<Vec<u8>> = (1..).zip(&sizes).map(|(seed, size)| (0..*size).map(|at| (at * seed) as u8).collect()).collect();
            let mut bytes = Bytes::from(wire(&frames));
            let mut assembler = Assembler::default();
            let mut received = Vec::new();
            for size in pieces.iter().cycle() {
                if bytes.is_empty() {
                    break;
                }
                let piece = bytes.split_to((*size).max(1).min(bytes.len()));
                assembler.push(piece, |frame| received.push(frame.as_slice().to_vec())).unwrap();
            }
            prop_assert_eq!(received, frames);
            prop_assert!(!assembler.is_partial());
        }
    }

    // rule: F-3, T-1
    #[test]
    fn refuses_long_and_compressed_messages_by_their_prefix() {
        let limit = u32::try_from(FRAME_LIMIT).unwrap();
        for (flag, length, legal) in [
            (0, limit, true),
            (0, limit + 1, false),
            (0, u32::MAX, false),
            (1, 8, false),
            (2, 8, false),
        ] {
            let mut prefix = vec![flag];
            prefix.extend(length.to_be_bytes());
            let mut assembler = Assembler::default();
            let taken = assembler.push(Bytes::from(prefix), |_| panic!("no frame is complete"));
            assert_eq!(taken.is_ok(), legal, "{flag} {length}");
        }
    }

    #[test]
    fn tiny_pieces_pin_no_more_than_they_hold() {
        let frame = vec![7; 100_000];
        let mut assembler = Assembler::default();
        let mut received = Vec::new();
        for byte in wire(std::slice::from_ref(&frame)) {
            assembler
                .push(Bytes::from(vec![byte]), |frame| received.push(frame))
                .unwrap();
            assert!(assembler.pieces.is_empty());
        }
        assert_eq!(received.first().unwrap().as_slice(), frame);
    }
}
