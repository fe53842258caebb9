//! Tests of the frames: every rule of the manual's chapter on frames, and those on reading rows.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod domain_info;
mod fixtures;
mod frames;
mod hostile;
mod layout;
mod placement;
mod repairs;
mod rows;
// Not every type is sampled on its own.
#[allow(dead_code, clippy::modulo_one, clippy::match_like_matches_macro)]
mod samples;
mod schema;
mod transfer;
mod values;
mod walk;

use nervix_wire::types::{
    BackupDownloadMessage, BackupDownloadRequest, ClientMessage, RestoreMessage, RestoreReply,
    ServerBody, ServerMessage, UploadMessage, UploadReply,
};
use nervix_wire::{EncodeError, Frame, Violation};

/// A message of any root.
#[derive(Debug, Clone, PartialEq)]
enum Message {
    Client(ClientMessage),
    Server(ServerMessage),
    Upload(UploadMessage),
    UploadReply(UploadReply),
    BackupRequest(BackupDownloadRequest),
    Backup(BackupDownloadMessage),
    Restore(RestoreMessage),
    RestoreReply(RestoreReply),
}

impl Message {
    /// Decodes all of a frame of the named root, rows included.
    fn decode(root: &str, frame: &Frame) -> Result<Self, Violation> {
        Ok(match root {
            "ClientMessage" => Self::Client(nervix_wire::decode_client(frame)?),
            "ServerMessage" => {
                let message = nervix_wire::decode_server(frame)?;
                if let ServerBody::SubscriptionRows(rows) = &message.body {
                    rows.to_values()?;
                }
                Self::Server(message)
            }
            "UploadMessage" => Self::Upload(nervix_wire::decode_upload(frame)?),
            "UploadReply" => Self::UploadReply(nervix_wire::decode_upload_reply(frame)?),
            "BackupDownloadRequest" => {
                Self::BackupRequest(nervix_wire::decode_backup_request(frame)?)
            }
            "BackupDownloadMessage" => Self::Backup(nervix_wire::decode_backup(frame)?),
            "RestoreMessage" => Self::Restore(nervix_wire::decode_restore(frame)?),
            "RestoreReply" => Self::RestoreReply(nervix_wire::decode_restore_reply(frame)?),
            other => panic!("no root {other}"),
        })
    }

    fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        match self {
            Self::Client(message) => nervix_wire::encode_client(message),
            Self::Server(message) => nervix_wire::encode_server(message),
            Self::Upload(message) => nervix_wire::encode_upload(message),
            Self::UploadReply(message) => nervix_wire::encode_upload_reply(message),
            Self::BackupRequest(message) => nervix_wire::encode_backup_request(message),
            Self::Backup(message) => nervix_wire::encode_backup(message),
            Self::Restore(message) => nervix_wire::encode_restore(message),
            Self::RestoreReply(message) => nervix_wire::encode_restore_reply(message),
        }
    }

    /// The samples of a root.
    fn samples(root: &str) -> Box<dyn Iterator<Item = Self>> {
        match root {
            "ClientMessage" => Box::new(
                (0..samples::CLIENT_MESSAGE).map(|n| Self::Client(samples::client_message(n))),
            ),
            "ServerMessage" => Box::new(
                (0..samples::SERVER_MESSAGE).map(|n| Self::Server(samples::server_message(n))),
            ),
            "UploadMessage" => Box::new(
                (0..samples::UPLOAD_MESSAGE).map(|n| Self::Upload(samples::upload_message(n))),
            ),
            "UploadReply" => Box::new(
                (0..samples::UPLOAD_REPLY).map(|n| Self::UploadReply(samples::upload_reply(n))),
            ),
            "BackupDownloadRequest" => Box::new(
                (0..samples::BACKUP_DOWNLOAD_REQUEST)
                    .map(|n| Self::BackupRequest(samples::backup_download_request(n))),
            ),
            "BackupDownloadMessage" => Box::new(
                (0..samples::BACKUP_DOWNLOAD_MESSAGE)
                    .map(|n| Self::Backup(samples::backup_download_message(n))),
            ),
            "RestoreMessage" => Box::new(
                (0..samples::RESTORE_MESSAGE).map(|n| Self::Restore(samples::restore_message(n))),
            ),
            "RestoreReply" => Box::new(
                (0..samples::RESTORE_REPLY).map(|n| Self::RestoreReply(samples::restore_reply(n))),
            ),
            other => panic!("no root {other}"),
        }
    }
}
