//! Whole frames of each root: what is checked before any field is read (F-3), which identifier ends
//! a frame that is sent (F-2), and a reply cut into parts. What stands inside is up to `decode` and
//! `encode`.

use bytes::Bytes;

use crate::encoder::Encoder;
use crate::frame::Frame;
use crate::generated as fb;
use crate::rules::Decoder;
use crate::types::{
    BackupDownloadMessage, BackupDownloadRequest, ClientMessage, Reply, ReplyBody, RestoreMessage,
    RestoreReply, ServerBody, ServerMessage, TransferPart, UploadMessage, UploadReply,
};
use crate::verified::{check_envelope, limits, unverifiable, VerifiedServer};
use crate::violation::{EncodeError, Violation};
use crate::{decode, domain_info, encode, FRAME_LIMIT, TRANSFER_LIMIT};

pub(crate) const SERVER: &str = "NXSM";

/// Reads a frame of a server on a session.
///
/// # Errors
/// A protocol violation: F-3 or F-4. Rows are only checked as far as no schema is needed.
pub fn decode_server(frame: &Frame) -> Result<ServerMessage, Violation> {
    decode_server_within(frame, FRAME_LIMIT)
}

/// As [`decode_server`], for a frame joined from parts, which may be larger.
pub(crate) fn decode_server_within(
    frame: &Frame,
    limit: usize,
) -> Result<ServerMessage, Violation> {
    let first = VerifiedServer::new(frame, limit).and_then(|verified| {
        decode::server_message(&Decoder::of_server(&verified), verified.message())
    });
    first.or_else(|problem| domain_info::decode_other(frame, limit).ok_or(problem))
}

/// The frame of a message to a client (F-2, F-6).
///
/// # Errors
/// What F-6 refuses to send.
pub fn encode_server(message: &ServerMessage) -> Result<Vec<u8>, EncodeError> {
    server_frame(Encoder::new(FRAME_LIMIT), message)
}

/// As [`encode_server`], with every DomainInfo in its other layout.
///
/// # Errors
/// What F-6 refuses to send.
pub fn encode_server_alternate_domain_info(
    message: &ServerMessage,
) -> Result<Vec<u8>, EncodeError> {
    server_frame(Encoder::new(FRAME_LIMIT).with_other_domain_info(), message)
}

fn server_frame(mut encoder: Encoder<'_>, message: &ServerMessage) -> Result<Vec<u8>, EncodeError> {
    let root = encode::server_message(&mut encoder, message)?;
    encoder.finish(root, SERVER)
}

/// A reply as the frames of its parts, each with at most `part_bytes` bytes of it (F-7). A part is
/// made no larger than a frame can carry and never empty.
///
/// # Errors
/// A message that is not a Reply, and a reply above the transfer limit.
pub fn encode_server_reply_parts(
    message: &ServerMessage,
    part_bytes: usize,
) -> Result<Vec<Vec<u8>>, EncodeError> {
    let ServerBody::Reply(reply) = &message.body else {
        return Err(EncodeError::NotAReply);
    };
    let whole = Bytes::from(server_frame(Encoder::new(TRANSFER_LIMIT), message)?);
    split_reply(reply.request_id, &whole, part_bytes)
}

/// A finished reply frame as the frames of its parts, as [`encode_server_reply_parts`] makes them.
///
/// # Errors
/// What F-6 refuses to send.
pub fn split_reply(
    request_id: u64,
    whole: &Bytes,
    part_bytes: usize,
) -> Result<Vec<Vec<u8>>, EncodeError> {
    // A part's own tables take less than this.
    const OVERHEAD: usize = 256;
    let part_bytes = part_bytes.clamp(1, FRAME_LIMIT - OVERHEAD);
    let mut parts = Vec::new();
    let mut offset = 0;
    while offset < whole.len() {
        let end = offset.saturating_add(part_bytes).min(whole.len());
        parts.push(encode_server(&ServerMessage {
            body: ServerBody::Reply(Reply {
                request_id,
                body: ReplyBody::TransferPart(TransferPart {
                    total_bytes: whole.len() as u64,
                    offset: offset as u64,
                    chunk: whole.slice(offset..end),
                }),
            }),
        })?);
        offset = end;
    }
    Ok(parts)
}

/// The request identity of a client's frame that can be verified but perhaps not decoded, so that
/// a server can refuse the request and not the session.
pub fn client_request_id(frame: &Frame) -> Option<u64> {
    check_envelope(frame, b"NXCM", FRAME_LIMIT).ok()?;
    let message = root::<fb::ClientMessage<'_>>(frame).ok()?;
    Some(message.request_id()).filter(|id| *id != 0)
}

fn root<'f, T>(frame: &'f Frame) -> Result<T::Inner, Violation>
where
    T: flatbuffers::Follow<'f> + flatbuffers::Verifiable + 'f,
{
    flatbuffers::root_with_opts::<T>(&limits(frame.len()), frame)
        .map_err(|problem| unverifiable(&problem))
}

macro_rules! roots {
    ($($what:literal, $table:ident, $read:ident, $identifier:literal, $decode:ident, $encode:ident;)*) => {$(
        #[doc = concat!("Reads ", $what, ".\n\n# Errors\nA protocol violation: F-3 or F-4.")]
        pub fn $decode(frame: &Frame) -> Result<$table, Violation> {
            check_envelope(frame, $identifier, FRAME_LIMIT)?;
            decode::$read(&Decoder::new(frame), root::<fb::$table<'_>>(frame)?)
        }

        #[doc = concat!("The frame of ", $what, " (F-2, F-6).\n\n# Errors\nWhat F-6 refuses to send.")]
        pub fn $encode(message: &$table) -> Result<Vec<u8>, EncodeError> {
            const IDENTIFIER: &str = match std::str::from_utf8($identifier) {
                Ok(text) => text,
                Err(_) => "",
            };
            let mut encoder = Encoder::new(FRAME_LIMIT);
            let root = encode::$read(&mut encoder, message)?;
            encoder.finish(root, IDENTIFIER)
        }
    )*};
}

roots! {
    "a message of a client on a session", ClientMessage, client_message, b"NXCM",
        decode_client, encode_client;
    "a message of an upload", UploadMessage, upload_message, b"NXUM",
        decode_upload, encode_upload;
    "the reply to an upload", UploadReply, upload_reply, b"NXUR",
        decode_upload_reply, encode_upload_reply;
    "the request of a backup download", BackupDownloadRequest, backup_download_request, b"NXBQ",
        decode_backup_request, encode_backup_request;
    "a message of a backup download", BackupDownloadMessage, backup_download_message, b"NXBD",
        decode_backup, encode_backup;
    "a message of a restore", RestoreMessage, restore_message, b"NXRM",
        decode_restore, encode_restore;
    "the reply to a restore", RestoreReply, restore_reply, b"NXRR",
        decode_restore_reply, encode_restore_reply;
}
