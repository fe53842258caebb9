//! A frame of a client: read, or refused; the request identity that a refusal names is that of the request.

use nervix_wire::{client_request_id, decode_client, encode_client, Frame};

use crate::same;

pub fn run(data: &[u8]) {
    let frame = Frame::copy_from(data);
    let id = client_request_id(&frame);
    let Ok(message) = decode_client(&frame) else {
        return;
    };
    assert_eq!(id, Some(message.request_id));
    if let Ok(bytes) = encode_client(&message) {
        same(&decode_client(&Frame::copy_from(&bytes)).unwrap(), &message);
    }
}
