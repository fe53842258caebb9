//! The messages of a stream, in whatever pieces they arrive: the same frames come out, or the same refusal.

use arbitrary::{Result, Unstructured};
use bytes::{Buf, Bytes};
use nervix_wire::Frame;

#[allow(dead_code)]
#[path = "../../client/src/framing.rs"]
mod framing;

use framing::{Assembler, Message};

fn assemble(pieces: impl Iterator<Item = Bytes>) -> (Vec<Frame>, Option<String>, bool) {
    let (mut assembler, mut frames) = (Assembler::default(), Vec::new());
    for piece in pieces {
        if let Err(refused) = assembler.push(piece, |frame| frames.push(frame)) {
            return (frames, Some(refused), false);
        }
    }
    (frames, None, assembler.is_partial())
}

fn stream(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for _ in 0..u.int_in_range(0..=4)? {
        // Some are longer than what is held in one piece.
        let length = u.int_in_range(0..=9000)?;
        let mut message = Message::new(vec![u.arbitrary()?; length]).unwrap();
        while message.has_remaining() {
            let taken = message
                .chunk()
                .len()
                .min(1 + usize::from(u.arbitrary::<u8>()?));
            bytes.extend_from_slice(&message.chunk()[..taken]);
            message.advance(taken);
        }
    }
    let rest = u.int_in_range(0..=20)?;
    bytes.extend_from_slice(u.bytes(rest.min(u.len()))?);
    Ok(bytes)
}

fn cut(u: &mut Unstructured<'_>) -> Result<()> {
    let bytes = Bytes::from(stream(u)?);
    let mut pieces = Vec::new();
    let mut rest = bytes.clone();
    while !rest.is_empty() {
        let longest = if u.ratio(1, 2)? { 8 } else { rest.len() };
        let length = u.int_in_range(0..=longest.min(rest.len()))?;
        if length == 0 && u.is_empty() {
            break;
        }
        pieces.push(rest.split_to(length));
    }
    pieces.push(rest);
    let at_once = assemble(std::iter::once(bytes));
    assert_eq!(assemble(pieces.into_iter()), at_once);
    Ok(())
}

pub fn run(data: &[u8]) {
    let _ = cut(&mut Unstructured::new(data));
}
