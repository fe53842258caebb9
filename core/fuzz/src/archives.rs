//! The frames of uploads, downloads and restores. Six roots, told apart by the identifier of the frame; each reader is given
//! every frame.

use nervix_wire::Frame;

use crate::same;

macro_rules! root {
    ($frame:expr, $decode:ident, $encode:ident) => {
        if let Ok(message) = nervix_wire::$decode($frame) {
            if let Ok(bytes) = nervix_wire::$encode(&message) {
                let again = nervix_wire::$decode(&Frame::copy_from(&bytes)).unwrap();
                same(&again, &message);
            }
        }
    };
}

pub fn run(data: &[u8]) {
    let frame = &Frame::copy_from(data);
    root!(frame, decode_upload, encode_upload);
    root!(frame, decode_upload_reply, encode_upload_reply);
    root!(frame, decode_backup_request, encode_backup_request);
    root!(frame, decode_backup, encode_backup);
    root!(frame, decode_restore, encode_restore);
    root!(frame, decode_restore_reply, encode_restore_reply);
}
