//! The parts of a reply, in order or not: what F-7 accepts is exactly what a reader of the rule accepts.

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use nervix_wire::types::*;
use nervix_wire::{decode_server, encode_server, Frame, Reassembler, TRANSFER_LIMIT};

use crate::{given, same, samples};

fn whole(u: &mut Unstructured<'_>, id: u64) -> Result<Bytes> {
    let mut message = samples::server_message(u.choose_index(samples::SERVER_MESSAGE)?);
    if let ServerBody::Reply(reply) = &mut message.body {
        if u.ratio(9, 10)? {
            reply.request_id = id;
        }
    }
    let mut bytes = encode_server(&message).unwrap();
    if u.ratio(1, 4)? {
        given::damage(u, &mut bytes)?;
    }
    Ok(bytes.into())
}

/// What the joined bytes are worth by themselves.
fn judged(id: u64, bytes: &[u8]) -> Option<ServerMessage> {
    let message = decode_server(&Frame::copy_from(bytes)).ok()?;
    match &message.body {
        ServerBody::Reply(reply)
            if reply.request_id == id && !matches!(reply.body, ReplyBody::TransferPart(_)) =>
        {
            Some(message)
        }
        _ => None,
    }
}

fn transfer(u: &mut Unstructured<'_>) -> Result<()> {
    let id = u.int_in_range(1..=3)?;
    let whole = whole(u, id)?;
    let mut reassembler = Reassembler::new(id);
    let mut joined = Vec::new();
    let mut first = None;
    for _ in 0..64 {
        let taken = joined.len();
        let Some(rest) = whole.len().checked_sub(taken) else {
            return Ok(());
        };
        let length = u.int_in_range(0..=rest)?;
        let mut part = TransferPart {
            total_bytes: whole.len() as u64,
            offset: taken as u64,
            chunk: whole.slice(taken..taken + length),
        };
        let mut to = id;
        match u.int_in_range(0..=30)? {
            0 => to = u.arbitrary()?,
            1 => part.total_bytes = u.arbitrary()?,
            2 => part.offset = u.arbitrary()?,
            3 => part.chunk = Bytes::copy_from_slice(u.bytes(length.min(u.len()))?),
            _ => {}
        }
        let total = *first.get_or_insert(part.total_bytes);
        let end = (taken as u64).saturating_add(part.chunk.len() as u64);
        let fine = to == id
            && part.total_bytes == total
            && (1..=TRANSFER_LIMIT as u64).contains(&total)
            && part.offset == taken as u64
            && !part.chunk.is_empty()
            && end <= total;
        assert_eq!(reassembler.received(), taken);
        let pushed = reassembler.push(to, &part);
        if !fine {
            assert!(pushed.is_err(), "{part:?} of {total} at {taken} was taken");
            return Ok(());
        }
        joined.extend_from_slice(&part.chunk);
        if end < total {
            assert!(matches!(pushed, Ok(None)));
            continue;
        }
        match (pushed, judged(id, &joined)) {
            (Ok(Some(message)), Some(wanted)) => same(&message, &wanted),
            (Err(_), None) => {}
            (pushed, wanted) => panic!("{wanted:?} was joined as {pushed:?}"),
        }
        return Ok(());
    }
    Ok(())
}

pub fn run(data: &[u8]) {
    let _ = transfer(&mut Unstructured::new(data));
}
