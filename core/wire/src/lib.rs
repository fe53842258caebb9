//! The session protocol's frames: the schema and the code made from it, the limits, checking and
//! decoding what was received (F-3, F-4, F-5, R-2), encoding what is sent (F-2, F-5, F-6), and
//! joining the parts of a reply (F-7).
//!
//! It owns every decision about bytes and must not know sessions: which request waits, what a
//! violation ends, and when anything is sent is decided by those who use it.

#![deny(unsafe_code)]

mod codec;
mod decode;
mod domain_info;
mod encode;
mod encoder;
mod frame;
mod outcome;
mod peek;
mod raw;
mod rows;
mod rules;
mod transfer;
#[allow(unsafe_code)]
mod verified;
mod violation;

// Some owned values are far larger than others of their union; they are moved rarely.
#[allow(clippy::large_enum_variant)]
pub mod types;

/// flatc's code for the schema, checked in as it was generated.
#[allow(unsafe_code, unused_imports, dead_code, deprecated, mismatched_lifetime_syntaxes)]
#[allow(clippy::all, clippy::unwrap_used, clippy::indexing_slicing)]
#[rustfmt::skip]
#[path = "generated.rs"]
mod flatc;
use flatc::nervix::session as generated;

pub use codec::{
    client_request_id, decode_backup, decode_backup_request, decode_client, decode_restore,
    decode_restore_reply, decode_server, decode_upload, decode_upload_reply, encode_backup,
    encode_backup_request, encode_client, encode_restore, encode_restore_reply, encode_server,
    encode_server_alternate_domain_info, encode_server_reply_parts, encode_upload,
    encode_upload_reply, split_reply,
};
pub use frame::Frame;
pub use rows::{encode_rows, CellRef, CheckedRows, ListIter, ListRef, Part, RowsFrame};
pub use transfer::Reassembler;
pub use violation::{EncodeError, Violation};

/// The most bytes of one frame, either way (F-3, F-6).
pub const FRAME_LIMIT: usize = 4 * 1024 * 1024;
/// The most bytes of a reply that arrives in parts (F-7).
pub const TRANSFER_LIMIT: usize = 64 * 1024 * 1024;
/// The most bytes of a string that may be sent (F-6).
pub const STRING_LIMIT: usize = 64 * 1024 * 1024;
/// The most entries of a vector of anything but bytes that may be sent (F-6).
pub const ENTRIES_LIMIT: usize = 262_144;
/// How deep tables may nest, either way (F-3, F-6).
pub const DEPTH_LIMIT: usize = 64;
