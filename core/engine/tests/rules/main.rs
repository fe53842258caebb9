//! One test, or more, for each rule of the protocol that the engine owns.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod clocks;
mod commands;
mod consumers;
mod frames;
mod given;
mod producers;
mod reach;
mod recovery;
mod requests;
mod subscriptions;
mod transactions;
