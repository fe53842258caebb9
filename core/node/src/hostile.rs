//! Frames that break the protocol, made on purpose: a good frame spoiled in one place, a bomb, or a reply cut into
//! parts that do not fit. Must not know when they are sent.
//!
//! FlatBuffers are edited here by their layout: a table begins with the distance back to its vtable, and the vtable
//! holds the distance from the table to each field, 0 for one that is absent.

use bytes::Bytes;
use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};
use nervix_wire::types::{
    NoticeLevel, Reply, ReplyBody, RowBranch, RowSchema, ServerBody, ServerMessage, ServerNotice,
    SubscribeDisposition, SubscribeOutcome, SubscriptionDeliveryLost, SubscriptionHandle,
    SubscriptionOpened, SubscriptionType, TransferPart,
};
use nervix_wire::{FRAME_LIMIT, TRANSFER_LIMIT};

macro_rules! named {
    ($(#[$about:meta])* $type:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type { $($variant),+ }

        impl $type {
            pub const ALL: &'static [(&'static str, Self)] = &[$(($name, Self::$variant)),+];

            pub fn parse(name: &str) -> Option<Self> {
                Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
            }
        }
    };
}

named! {
    /// One way to spoil a frame.
    Corruption {
        Identifier = "identifier",
        RootOffset = "root_offset",
        InnerOffset = "inner_offset",
        Vtable = "vtable",
        UnionTag = "union_tag",
        UnionNone = "union_none",
        ReplyTag = "reply_tag",
        DispositionTag = "disposition_tag",
        EnumValue = "enum",
        RequiredField = "required",
        RequiredScalar = "required_scalar",
        Zero = "zero",
        EmptyVector = "empty_vector",
        Utf8 = "utf8",
        Oversize = "oversize",
        Truncated = "truncated",
        Short = "short",
        Empty = "empty",
        Nesting = "nesting",
        Tables = "tables",
        ApparentSize = "apparent_size",
    }
}

named! {
    /// One way in which the parts of a reply do not make a reply.
    BadParts {
        OtherRequest = "other_request",
        OtherTotal = "other_total",
        TotalAboveLimit = "total_above_limit",
        FirstOffset = "first_offset",
        OffsetGap = "offset_gap",
        OffsetOverlap = "offset_overlap",
        EmptyChunk = "empty_chunk",
        Overrun = "overrun",
        NestedPart = "nested_part",
        NotAReply = "not_a_reply",
        OtherReply = "other_reply",
        Malformed = "malformed",
        Unfinished = "unfinished",
    }
}

const SERVER_IDENTIFIER: &str = "NXSM";
/// Slots of ServerMessage, Reply and CommandOutcome, and the tags past their unions' last.
const BODY_TYPE: usize = 0;
const BODY: usize = 1;
const REPLY_BODY_TYPE: usize = 1;
const REPLY_BODY: usize = 2;
const OUTCOME_ORIGIN: usize = 1;
const OUTCOME_DISPOSITION_TYPE: usize = 2;
const OUTCOME_MESSAGE: usize = 4;
const BODY_TAG_PAST_LAST: u8 = 17;
const REPLY_TAG_PAST_LAST: u8 = 23;
const DISPOSITION_TAG_PAST_LAST: u8 = 10;
/// How deep the nesting bomb nests lists; each level is two tables.
const BOMB_DEPTH: usize = 70;
const BOMB_ENTRIES: usize = 100_000;

/// The frame, spoiled. Where the frame has no place for that defect, another frame that has one takes its place.
pub fn corrupt(kind: &str, frame: &Bytes, corruption: Corruption) -> Bytes {
    let mut bytes = frame.to_vec();
    let outcome = kind == "CommandOutcome";
    let done = match corruption {
        Corruption::Identifier => put(&mut bytes, 4, b"NXXX"),
        Corruption::RootOffset => put(&mut bytes, 0, &0xffff_fff0_u32.to_le_bytes()),
        Corruption::InnerOffset => place(&bytes, &[], BODY)
            .and_then(|at| put(&mut bytes, at, &0x7fff_fff0_u32.to_le_bytes())),
        Corruption::Vtable => {
            root(&bytes).and_then(|at| put(&mut bytes, at, &i32::MAX.to_le_bytes()))
        }
        Corruption::UnionTag => set_byte(&mut bytes, &[], BODY_TYPE, BODY_TAG_PAST_LAST),
        Corruption::UnionNone => set_byte(&mut bytes, &[], BODY_TYPE, 0),
        Corruption::ReplyTag if crate::kinds::matches(Some("Reply"), kind) => {
            set_byte(&mut bytes, &[BODY], REPLY_BODY_TYPE, REPLY_TAG_PAST_LAST)
        }
        Corruption::DispositionTag if outcome => set_byte(
            &mut bytes,
            &[BODY, REPLY_BODY],
            OUTCOME_DISPOSITION_TYPE,
            DISPOSITION_TAG_PAST_LAST,
        ),
        Corruption::EnumValue if outcome => {
            set_byte(&mut bytes, &[BODY, REPLY_BODY], OUTCOME_ORIGIN, 2)
        }
        Corruption::RequiredField if outcome => {
            remove(&mut bytes, &[BODY, REPLY_BODY], OUTCOME_MESSAGE)
        }
        Corruption::RequiredField => remove(&mut bytes, &[], BODY),
        Corruption::RequiredScalar if outcome => {
            remove(&mut bytes, &[BODY, REPLY_BODY], OUTCOME_ORIGIN)
        }
        Corruption::Oversize => {
            bytes.resize(FRAME_LIMIT + 1, 0);
            Some(())
        }
        Corruption::Truncated => {
            bytes.truncate(bytes.len() / 2);
            Some(())
        }
        Corruption::Short => {
            bytes.truncate(7);
            Some(())
        }
        Corruption::Empty => {
            bytes.clear();
            Some(())
        }
        _ => None,
    };
    match done {
        Some(()) => Bytes::from(bytes),
        None => Bytes::from(substitute(corruption)),
    }
}

/// A frame of its own with the defect.
fn substitute(corruption: Corruption) -> Vec<u8> {
    let mut notice = encode(ServerBody::ServerNotice(ServerNotice {
        level: NoticeLevel::Info,
        message: "notice".to_owned(),
    }));
    match corruption {
        Corruption::ReplyTag | Corruption::DispositionTag => {
            set_byte(&mut notice, &[], BODY_TYPE, BODY_TAG_PAST_LAST);
        }
        Corruption::EnumValue => {
            set_byte(&mut notice, &[BODY], 0, 3);
        }
        Corruption::RequiredScalar => {
            remove(&mut notice, &[BODY], 0);
        }
        Corruption::Utf8 => {
            if let Some(at) = place(&notice, &[BODY], 1).and_then(|at| follow(&notice, at)) {
                put(&mut notice, at + 4, &[0xff]);
            }
        }
        Corruption::Zero => {
            return encode(ServerBody::SubscriptionDeliveryLost(
                SubscriptionDeliveryLost {
                    subscription: handle(),
                    dropped_rows: 0,
                },
            ))
        }
        Corruption::EmptyVector => {
            return encode(ServerBody::Reply(Reply {
                request_id: 1,
                body: ReplyBody::SubscribeOutcome(SubscribeOutcome {
                    disposition: SubscribeDisposition::SubscriptionOpened(SubscriptionOpened {
                        subscription: handle(),
                        domain: "d".to_owned(),
                        relay: "r".to_owned(),
                        subscription_type: SubscriptionType::Row,
                        schema: RowSchema {
                            fields: Vec::new(),
                            branch: Some(RowBranch {
                                branch: "b".to_owned(),
                                fields: Vec::new(),
                            }),
                        },
                    }),
                    message: String::new(),
                    diagnostics: Vec::new(),
                }),
            }))
        }
        Corruption::Nesting => return nesting_bomb(BOMB_DEPTH),
        Corruption::Tables => return shared_domains("d", BOMB_ENTRIES),
        Corruption::ApparentSize => return shared_domains(&"d".repeat(BOMB_ENTRIES), 1_000),
        _ => {
            put(&mut notice, 4, b"NXXX");
        }
    }
    notice
}

fn handle() -> SubscriptionHandle {
    SubscriptionHandle {
        name: "s".to_owned(),
        generation: 1,
    }
}

fn encode(body: ServerBody) -> Vec<u8> {
    nervix_wire::encode_server(&ServerMessage { body }).unwrap_or_default()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let slice = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(slice.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    let slice = bytes.get(at..at.checked_add(2)?)?;
    Some(usize::from(u16::from_le_bytes(slice.try_into().ok()?)))
}

fn follow(bytes: &[u8], at: usize) -> Option<usize> {
    at.checked_add(usize::try_from(word(bytes, at)?).ok()?)
}

fn root(bytes: &[u8]) -> Option<usize> {
    follow(bytes, 0)
}

/// Where the vtable keeps the distance of a table's field.
fn entry(bytes: &[u8], table: usize, slot: usize) -> Option<usize> {
    let back = i32::from_le_bytes(bytes.get(table..table.checked_add(4)?)?.try_into().ok()?);
    let vtable = table.checked_add_signed(isize::try_from(back).ok()?.checked_neg()?)?;
    let distance = slot.checked_mul(2)?.checked_add(4)?;
    (distance < half(bytes, vtable)?).then_some(vtable.checked_add(distance)?)
}

/// Where a field's value is: through the tables at `path`, then at `slot`. `None` when it is absent.
fn place(bytes: &[u8], path: &[usize], slot: usize) -> Option<usize> {
    let mut table = root(bytes)?;
    for step in path {
        table = follow(bytes, field(bytes, table, *step)?)?;
    }
    field(bytes, table, slot)
}

fn field(bytes: &[u8], table: usize, slot: usize) -> Option<usize> {
    match half(bytes, entry(bytes, table, slot)?)? {
        0 => None,
        distance => table.checked_add(distance),
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    bytes
        .get_mut(at..at.checked_add(value.len())?)?
        .copy_from_slice(value);
    Some(())
}

fn set_byte(bytes: &mut [u8], path: &[usize], slot: usize, value: u8) -> Option<()> {
    let at = place(bytes, path, slot)?;
    put(bytes, at, &[value])
}

/// Makes a field absent.
fn remove(bytes: &mut [u8], path: &[usize], slot: usize) -> Option<()> {
    let table = match path.split_last() {
        None => root(bytes)?,
        Some((last, before)) => follow(bytes, place(bytes, before, *last)?)?,
    };
    let at = entry(bytes, table, slot)?;
    put(bytes, at, &[0, 0])
}

type Table = WIPOffset<TableFinishedWIPOffset>;

enum Value {
    Byte(u8),
    Number(u64),
    Table(Table),
    Text(WIPOffset<flatbuffers::ForwardsUOffset<()>>),
}

fn text<'b>(builder: &mut FlatBufferBuilder<'b>, value: &str) -> Value {
    Value::Text(WIPOffset::new(builder.create_string(value).value()))
}

fn vector<'b>(builder: &mut FlatBufferBuilder<'b>, tables: &[Table]) -> Value {
    Value::Text(WIPOffset::new(builder.create_vector(tables).value()))
}

fn table(builder: &mut FlatBufferBuilder<'_>, fields: &[(u16, Value)]) -> Table {
    let unfinished = builder.start_table();
    for (slot, value) in fields {
        let place = 4 + 2 * slot;
        match value {
            Value::Byte(value) => builder.push_slot_always(place, *value),
            Value::Number(value) => builder.push_slot_always(place, *value),
            Value::Table(value) => builder.push_slot_always(place, *value),
            Value::Text(value) => builder.push_slot_always(place, *value),
        }
    }
    builder.end_table(unfinished)
}

fn finish(mut builder: FlatBufferBuilder<'_>, tag: u8, body: Table) -> Vec<u8> {
    let message = table(
        &mut builder,
        &[(0, Value::Byte(tag)), (1, Value::Table(body))],
    );
    builder.finish(message, Some(SERVER_IDENTIFIER));
    builder.finished_data().to_vec()
}

/// DomainsObserved whose entries are all one and the same table.
fn shared_domains(name: &str, entries: usize) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let name = text(&mut builder, name);
    let pace = table(&mut builder, &[]);
    let domain = table(
        &mut builder,
        &[
            (0, name),
            (1, Value::Byte(1)),
            (2, Value::Number(1)),
            (3, Value::Byte(1)),
            (4, Value::Table(pace)),
        ],
    );
    let domains = vector(&mut builder, &vec![domain; entries]);
    let observed = table(&mut builder, &[(0, domains)]);
    finish(builder, 4, observed)
}

/// A SubscribeOutcome with a field that is a list of lists, `depth` times.
fn nesting_bomb(depth: usize) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let scalar = table(&mut builder, &[(0, Value::Byte(0))]);
    let mut kind = table(
        &mut builder,
        &[(0, Value::Byte(1)), (1, Value::Table(scalar))],
    );
    for _ in 0..depth {
        let list = table(&mut builder, &[(0, Value::Table(kind))]);
        kind = table(
            &mut builder,
            &[(0, Value::Byte(3)), (1, Value::Table(list))],
        );
    }
    let name = text(&mut builder, "f");
    let field = table(&mut builder, &[(0, name), (1, Value::Table(kind))]);
    let fields = vector(&mut builder, &[field]);
    let schema = table(&mut builder, &[(0, fields)]);
    let name = text(&mut builder, "s");
    let subscription = table(&mut builder, &[(0, name), (1, Value::Number(1))]);
    let domain = text(&mut builder, "d");
    let relay = text(&mut builder, "r");
    let opened = table(
        &mut builder,
        &[
            (0, Value::Table(subscription)),
            (1, domain),
            (2, relay),
            (3, Value::Byte(0)),
            (4, Value::Table(schema)),
        ],
    );
    let message = text(&mut builder, "");
    let diagnostics = vector(&mut builder, &[]);
    let outcome = table(
        &mut builder,
        &[
            (0, Value::Byte(1)),
            (1, Value::Table(opened)),
            (2, message),
            (3, diagnostics),
        ],
    );
    let reply = table(
        &mut builder,
        &[
            (0, Value::Number(1)),
            (1, Value::Byte(7)),
            (2, Value::Table(outcome)),
        ],
    );
    finish(builder, 1, reply)
}

/// The parts of a reply, cut so that they break F-7 in one way.
pub fn bad_parts(request_id: u64, reply: &[u8], defect: BadParts) -> Vec<Vec<u8>> {
    let part = |request_id: u64, total: usize, offset: usize, chunk: &[u8]| {
        encode(ServerBody::Reply(Reply {
            request_id,
            body: ReplyBody::TransferPart(TransferPart {
                total_bytes: u64::try_from(total).unwrap_or(u64::MAX),
                offset: u64::try_from(offset).unwrap_or(u64::MAX),
                chunk: Bytes::copy_from_slice(chunk),
            }),
        }))
    };
    let whole = |frame: Vec<u8>| {
        let (first, second) = frame.split_at(frame.len() / 2);
        vec![
            part(request_id, frame.len(), 0, first),
            part(request_id, frame.len(), first.len(), second),
        ]
    };
    let total = reply.len();
    let (first, second) = reply.split_at(total / 2);
    let middle = first.len();
    let opening = part(request_id, total, 0, first);
    match defect {
        BadParts::OtherRequest => vec![
            opening,
            part(request_id.wrapping_add(1_000), total, middle, second),
        ],
        BadParts::OtherTotal => vec![opening, part(request_id, total + 1, middle, second)],
        BadParts::TotalAboveLimit => vec![part(request_id, TRANSFER_LIMIT + 1, 0, first)],
        BadParts::FirstOffset => vec![part(request_id, total, 1, first)],
        BadParts::OffsetGap => vec![opening, part(request_id, total, middle + 1, second)],
        BadParts::OffsetOverlap => vec![
            opening,
            part(request_id, total, middle.saturating_sub(1), second),
        ],
        BadParts::EmptyChunk => vec![opening, part(request_id, total, middle, &[])],
        BadParts::Overrun => vec![opening, part(request_id, total, middle, reply)],
        BadParts::NestedPart => whole(part(request_id, total, 0, reply)),
        BadParts::NotAReply => whole(encode(ServerBody::ServerNotice(ServerNotice {
            level: NoticeLevel::Info,
            message: "not a reply".to_owned(),
        }))),
        BadParts::OtherReply => {
            let mut other = reply.to_vec();
            if let Some(at) = place(&other, &[BODY], 0) {
                put(
                    &mut other,
                    at,
                    &request_id.wrapping_add(1_000).to_le_bytes(),
                );
            }
            whole(other)
        }
        BadParts::Malformed => {
            whole(corrupt("", &Bytes::copy_from_slice(reply), Corruption::RootOffset).to_vec())
        }
        BadParts::Unfinished => vec![opening],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use nervix_wire::types::{CommandCompleted, CommandDisposition, CommandOutcome};
    use nervix_wire::{decode_server, Frame, Reassembler};

    fn outcome() -> Bytes {
        Bytes::from(encode(ServerBody::Reply(Reply {
            request_id: 3,
            body: ReplyBody::CommandOutcome(CommandOutcome::plain(
                "r",
                CommandDisposition::CommandCompleted(CommandCompleted {
                    already_existed: false,
                }),
                "a message of some length",
            )),
        })))
    }

    // rule: F-3, F-4
    #[test]
    fn every_spoiled_frame_is_a_violation_whatever_it_was_made_from() {
        let notice = Bytes::from(encode(ServerBody::ServerNotice(ServerNotice {
            level: NoticeLevel::Error,
            message: "something".to_owned(),
        })));
        for (kind, frame) in [("CommandOutcome", outcome()), ("ServerNotice", notice)] {
            assert!(decode_server(&Frame::copy_from(&frame)).is_ok());
            for (name, corruption) in Corruption::ALL {
                let spoiled = corrupt(kind, &frame, *corruption);
                assert!(
                    decode_server(&Frame::copy_from(&spoiled)).is_err(),
                    "{kind} {name}"
                );
            }
        }
    }

    // rule: F-7
    #[test]
    fn every_bad_sequence_of_parts_is_refused() {
        let frame = outcome();
        for (name, defect) in BadParts::ALL {
            let mut reassembler = Reassembler::new(3);
            let mut refused = false;
            let mut delivered = false;
            for bytes in bad_parts(3, &frame, *defect) {
                let part = match decode_server(&Frame::copy_from(&bytes)) {
                    Ok(ServerMessage {
                        body:
                            ServerBody::Reply(Reply {
                                request_id,
                                body: ReplyBody::TransferPart(part),
                            }),
                    }) => (request_id, part),
                    Ok(other) => panic!("{other:?}"),
                    Err(_) => {
                        refused = true;
                        break;
                    }
                };
                match reassembler.push(part.0, &part.1) {
                    Ok(None) => {}
                    Ok(Some(_)) => delivered = true,
                    Err(_) => {
                        refused = true;
                        break;
                    }
                }
            }
            assert!(!delivered, "{name}");
            assert_eq!(refused, *defect != BadParts::Unfinished, "{name}");
        }
    }
}
