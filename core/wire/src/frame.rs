//! One received frame: immutable bytes at a fixed, aligned place, shared by everything read from it
//! in place (F-9). It knows nothing of what the bytes say.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

use crate::peek::batch_at;

const ALIGNMENT: usize = 64;

/// Immutable bytes whose first one (or a chosen one) is 64-byte aligned. Cloning shares them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    bytes: Bytes,
}

impl Frame {
    /// A frame of its own with these bytes, so that it does not pin the buffer they came from.
    pub fn copy_from(bytes: &[u8]) -> Self {
        Self::from_chunks(bytes.len(), std::iter::once(bytes))
    }

    /// The chunks joined with one copy. `len` reserves their total; chunks past it are joined too.
    pub fn from_chunks<'a>(len: usize, chunks: impl Iterator<Item = &'a [u8]>) -> Self {
        Self::from_chunks_aligned_at(len, 0, chunks)
    }

    /// As [`Frame::from_chunks`], with byte `aligned` of the frame at a 64-byte boundary instead of
    /// its first: column buffers inside a batch are aligned relative to the batch.
    pub fn from_chunks_aligned_at<'a>(
        len: usize,
        aligned: usize,
        chunks: impl Iterator<Item = &'a [u8]>,
    ) -> Self {
        let mut buffer: Vec<u8> = Vec::with_capacity(len.saturating_add(ALIGNMENT));
        let address = buffer.as_ptr() as usize;
        let past = address.wrapping_add(aligned) % ALIGNMENT;
        let lead = if past == 0 { 0 } else { ALIGNMENT - past };
        buffer.resize(lead, 0);
        for chunk in chunks {
            buffer.extend_from_slice(chunk);
        }
        // The buffer does not move from here on: Bytes takes the allocation over as it is.
        Self {
            bytes: Bytes::from(buffer).slice(lead..),
        }
    }

    /// The received pieces of one frame, joined with one copy so that the batch of a reply to a read, or the frame's first byte
    /// when it holds none, is 64-byte aligned.
    pub fn received(len: usize, pieces: &[&[u8]]) -> Self {
        let aligned = batch_at(pieces).unwrap_or(0);
        Self::from_chunks_aligned_at(len, aligned, pieces.iter().copied())
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// The same bytes, sharing this frame's memory.
    pub fn to_bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// A part of this frame, sharing its memory. `part` must have been read from this frame.
    pub(crate) fn share(&self, part: &[u8]) -> Bytes {
        self.bytes.slice_ref(part)
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Frame({} bytes)", self.bytes.len())
    }
}
