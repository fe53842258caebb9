//! A frame of a server on a session: read, or refused; what was read is written again in either layout and reads the same.

use nervix_wire::types::ServerBody;
use nervix_wire::{decode_server, encode_server, encode_server_alternate_domain_info, Frame};

use crate::same;

pub fn run(data: &[u8]) {
    let Ok(message) = decode_server(&Frame::copy_from(data)) else {
        return;
    };
    if let ServerBody::SubscriptionRows(rows) = &message.body {
        let _ = rows.to_values();
        let _ = rows.row_count();
        return;
    }
    // What a frame shares between its tables may be too long when it is written once each.
    if let Ok(bytes) = encode_server(&message) {
        same(&decode_server(&Frame::copy_from(&bytes)).unwrap(), &message);
    }
    if let Ok(bytes) = encode_server_alternate_domain_info(&message) {
        same(&decode_server(&Frame::copy_from(&bytes)).unwrap(), &message);
    }
}
