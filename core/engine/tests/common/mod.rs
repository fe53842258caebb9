//! What the engine's tests share: frames of a node, and a watch over everything an engine puts out.
//!
//! Owns no decision of a test. Knows the engine only through its public interface and the protocol only through the wire
//! crate and the manual.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod frames;
pub mod watch;

pub const MS: u64 = 1_000_000;
pub const SEC: u64 = 1_000_000_000;
/// The Unix time of the simulated time zero, in milliseconds.
pub const EPOCH: u64 = 1_700_000_000_000;

/// A splitmix64: everything random in a test comes from its seed.
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from `low` up to and without `high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.word() % (high - low).max(1)
    }

    pub fn index(&mut self, len: usize) -> usize {
        (self.word() % len.max(1) as u64) as usize
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: f64) -> bool {
        ((self.word() >> 11) as f64) < percent / 100.0 * (1u64 << 53) as f64
    }

    pub fn entropy(&mut self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&self.word().to_le_bytes());
        bytes[8..].copy_from_slice(&self.word().to_le_bytes()[..2]);
        bytes
    }
}
