//! Where the batch of a reply begins, before the reply is put together, so that it can be put where the columns of the batch
//! are aligned (design of receiving: one copy). Nothing is believed here: what cannot be read is no batch, and a wrong place costs
//! alignment and nothing else, since the frame is verified and decoded afterwards.

use crate::generated::{
    EmitterBatchReceived, ReadEmitterBatchOutcome, ReadEmitterDisposition, Reply, ReplyBody,
    ServerBody, ServerMessage,
};

/// The place of the batch in a frame that comes in these pieces; none when it carries none.
pub(crate) fn batch_at(pieces: &[&[u8]]) -> Option<usize> {
    let frame = Pieces(pieces);
    let message = frame.reference(0)?;
    let reply = frame.member(
        message,
        (ServerMessage::VT_BODY_TYPE, ServerBody::Reply.0),
        ServerMessage::VT_BODY,
    )?;
    let outcome = frame.member(
        reply,
        (Reply::VT_BODY_TYPE, ReplyBody::ReadEmitterBatchOutcome.0),
        Reply::VT_BODY,
    )?;
    let received = frame.member(
        outcome,
        (
            ReadEmitterBatchOutcome::VT_DISPOSITION_TYPE,
            ReadEmitterDisposition::EmitterBatchReceived.0,
        ),
        ReadEmitterBatchOutcome::VT_DISPOSITION,
    )?;
    let batch = frame.reference(frame.field(received, EmitterBatchReceived::VT_BATCH)?)?;
    // Behind the vector's length.
    batch.checked_add(4)
}

struct Pieces<'a>(&'a [&'a [u8]]);

impl Pieces<'_> {
    fn byte(&self, mut at: usize) -> Option<u8> {
        for piece in self.0 {
            match at.checked_sub(piece.len()) {
                None => return piece.get(at).copied(),
                Some(beyond) => at = beyond,
            }
        }
        None
    }

    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(at.checked_add(index)?)?;
        }
        Some(bytes)
    }

    /// Where the reference at a place leads.
    fn reference(&self, at: usize) -> Option<usize> {
        at.checked_add(usize::try_from(u32::from_le_bytes(self.bytes(at)?)).ok()?)
    }

    /// The place of a table's field, when the table has it.
    fn field(&self, table: usize, field: u16) -> Option<usize> {
        let back = isize::try_from(i32::from_le_bytes(self.bytes(table)?)).ok()?;
        let layout = table.checked_add_signed(back.checked_neg()?)?;
        let size = u16::from_le_bytes(self.bytes(layout)?);
        if field >= size {
            return None;
        }
        match u16::from_le_bytes(self.bytes(layout.checked_add(usize::from(field))?)?) {
            0 => None,
            offset => table.checked_add(usize::from(offset)),
        }
    }

    /// The table that a union holds, when it is of the wanted kind.
    fn member(&self, table: usize, (kind, wanted): (u16, u8), value: u16) -> Option<usize> {
        match self.byte(self.field(table, kind)?)? == wanted {
            true => self.reference(self.field(table, value)?),
            false => None,
        }
    }
}
