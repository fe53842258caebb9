//! What the fuzz targets do, one module a target: `run` takes whatever bytes libFuzzer made up, and panics where a promise of
//! the code under it is broken.
//!
//! Owns the promises that can be checked of any input. Knows the crates through what they make public; what is private in the
//! client is compiled in from its place.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

pub mod abi;
pub mod archives;
pub mod batch;
pub mod client;
pub mod domains;
pub mod engine;
pub mod framing;
pub mod given;
pub mod lang;
pub mod publish;
pub mod reassembler;
pub mod rows;
pub mod seeds;
pub mod server;

#[allow(dead_code)]
#[path = "../../engine/tests/common/mod.rs"]
mod common;
#[allow(dead_code)]
#[path = "../../wire/tests/wire/repairs.rs"]
pub mod repairs;
#[allow(dead_code, clippy::modulo_one, clippy::match_like_matches_macro)]
#[path = "../../wire/tests/wire/samples.rs"]
pub mod samples;

use std::fmt::Debug;

/// Both are the same, not-a-numbers included.
#[track_caller]
fn same<T: PartialEq + Debug>(one: &T, other: &T) {
    if one != other {
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }
}
