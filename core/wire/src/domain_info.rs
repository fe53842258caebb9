//! The other layout of DomainInfo. Whether a server declares `start_version` before `pace`, as our
//! schema does, or after it could not be confirmed, and DomainsObserved is the second frame of every
//! session, so both are read: this module has the second one, for DomainsObserved and a Reply with a
//! DomainList only. The two never verify alike. It goes away, with its few callers, when the place
//! is known.

use flatbuffers::{
    ForwardsUOffset, InvalidFlatbuffer, Vector, Verifiable, Verifier, VerifierOptions, WIPOffset,
};

use crate::encode;
use crate::encoder::Encoder;
use crate::frame::Frame;
use crate::generated as fb;
use crate::raw::{array, field, follow, string};
use crate::types::{
    DomainInfo, DomainList, DomainPace, DomainStatus, DomainsObserved, PacedDomain, Reply,
    ReplyBody, ServerBody, ServerMessage,
};
use crate::verified::{check_envelope, limits, SERVER_IDENTIFIER};
use crate::violation::EncodeError;

const VT_DOMAIN: u16 = 4;
const VT_STATUS: u16 = 6;
const VT_PACE_TYPE: u16 = 8;
const VT_PACE: u16 = 10;
const VT_START_VERSION: u16 = 12;

/// The message, when the frame is one of domains in this layout.
pub(crate) fn decode_other(frame: &Frame, limit: usize) -> Option<ServerMessage> {
    check_envelope(frame, SERVER_IDENTIFIER, limit).ok()?;
    let options: VerifierOptions = limits(frame.len());
    let mut verifier = Verifier::new(&options, frame);
    <ForwardsUOffset<OtherMessage>>::run_verifier(&mut verifier, 0).ok()?;
    message(frame, follow(frame, 0)?)
}

type Verified = Result<(), InvalidFlatbuffer>;

fn other_member(field: &'static str) -> Verified {
    InvalidFlatbuffer::new_inconsistent_union(field, field)
}

struct OtherMessage;

impl Verifiable for OtherMessage {
    fn run_verifier(v: &mut Verifier<'_, '_>, pos: usize) -> Verified {
        v.visit_table(pos)?
            .visit_union::<fb::ServerBody, _>(
                "body_type",
                fb::ServerMessage::VT_BODY_TYPE,
                "body",
                fb::ServerMessage::VT_BODY,
                true,
                |tag, v, pos| match tag {
                    fb::ServerBody::DomainsObserved => {
                        v.verify_union_variant::<ForwardsUOffset<OtherDomains>>("domains", pos)
                    }
                    fb::ServerBody::Reply => {
                        v.verify_union_variant::<ForwardsUOffset<OtherReply>>("reply", pos)
                    }
                    _ => other_member("body"),
                },
            )?
            .finish();
        Ok(())
    }
}

struct OtherReply;

impl Verifiable for OtherReply {
    fn run_verifier(v: &mut Verifier<'_, '_>, pos: usize) -> Verified {
        v.visit_table(pos)?
            .visit_field::<u64>("request_id", fb::Reply::VT_REQUEST_ID, false)?
            .visit_union::<fb::ReplyBody, _>(
                "body_type",
                fb::Reply::VT_BODY_TYPE,
                "body",
                fb::Reply::VT_BODY,
                true,
                |tag, v, pos| match tag {
                    fb::ReplyBody::DomainList => {
                        v.verify_union_variant::<ForwardsUOffset<OtherDomains>>("domains", pos)
                    }
                    _ => other_member("body"),
                },
            )?
            .finish();
        Ok(())
    }
}

/// DomainsObserved and DomainList alike: both have the domains and nothing else.
struct OtherDomains;

const VT_DOMAINS: u16 = fb::DomainsObserved::VT_DOMAINS;
const _: () = assert!(VT_DOMAINS == fb::DomainList::VT_DOMAINS);

impl Verifiable for OtherDomains {
    fn run_verifier(v: &mut Verifier<'_, '_>, pos: usize) -> Verified {
        v.visit_table(pos)?
            .visit_field::<ForwardsUOffset<Vector<'_, ForwardsUOffset<OtherInfo>>>>(
                "domains", VT_DOMAINS, true,
            )?
            .finish();
        Ok(())
    }
}

struct OtherInfo;

impl Verifiable for OtherInfo {
    fn run_verifier(v: &mut Verifier<'_, '_>, pos: usize) -> Verified {
        v.visit_table(pos)?
            .visit_field::<ForwardsUOffset<&str>>("domain", VT_DOMAIN, true)?
            .visit_field::<u8>("status", VT_STATUS, false)?
            .visit_union::<fb::DomainPace, _>(
                "pace_type",
                VT_PACE_TYPE,
                "pace",
                VT_PACE,
                true,
                |tag, v, pos| match tag {
                    fb::DomainPace::UnpacedDomain => v
                        .verify_union_variant::<ForwardsUOffset<fb::UnpacedDomain<'_>>>(
                            "unpaced", pos,
                        ),
                    fb::DomainPace::PacedDomain => {
                        v.verify_union_variant::<ForwardsUOffset<fb::PacedDomain<'_>>>("paced", pos)
                    }
                    _ => other_member("pace"),
                },
            )?
            .visit_field::<u64>("start_version", VT_START_VERSION, false)?
            .finish();
        Ok(())
    }
}

fn message(bytes: &[u8], at: usize) -> Option<ServerMessage> {
    let body = follow(bytes, field(bytes, at, fb::ServerMessage::VT_BODY)?)?;
    let body = match fb::ServerBody(byte(bytes, at, fb::ServerMessage::VT_BODY_TYPE)?) {
        fb::ServerBody::DomainsObserved => ServerBody::DomainsObserved(DomainsObserved {
            domains: domains(bytes, body)?,
        }),
        fb::ServerBody::Reply => {
            let request_id = long(bytes, body, fb::Reply::VT_REQUEST_ID).filter(|id| *id != 0)?;
            if fb::ReplyBody(byte(bytes, body, fb::Reply::VT_BODY_TYPE)?)
                != fb::ReplyBody::DomainList
            {
                return None;
            }
            let list = follow(bytes, field(bytes, body, fb::Reply::VT_BODY)?)?;
            ServerBody::Reply(Reply {
                request_id,
                body: ReplyBody::DomainList(DomainList {
                    domains: domains(bytes, list)?,
                }),
            })
        }
        _ => return None,
    };
    Some(ServerMessage { body })
}

fn domains(bytes: &[u8], at: usize) -> Option<Vec<DomainInfo>> {
    let vector = follow(bytes, field(bytes, at, VT_DOMAINS)?)?;
    let len = u32::from_le_bytes(array(bytes, vector)?) as usize;
    (1..=len)
        .map(|entry| {
            info(
                bytes,
                follow(bytes, vector.checked_add(entry.checked_mul(4)?)?)?,
            )
        })
        .collect()
}

fn info(bytes: &[u8], at: usize) -> Option<DomainInfo> {
    let pace = follow(bytes, field(bytes, at, VT_PACE)?)?;
    Some(DomainInfo {
        domain: string(bytes, follow(bytes, field(bytes, at, VT_DOMAIN)?)?)?.to_owned(),
        status: DomainStatus::from_wire(byte(bytes, at, VT_STATUS)?)?,
        start_version: long(bytes, at, VT_START_VERSION)?,
        pace: match fb::DomainPace(byte(bytes, at, VT_PACE_TYPE)?) {
            fb::DomainPace::UnpacedDomain => DomainPace::UnpacedDomain,
            fb::DomainPace::PacedDomain => DomainPace::PacedDomain(PacedDomain {
                period_nanos: long(bytes, pace, fb::PacedDomain::VT_PERIOD_NANOS)
                    .filter(|period| *period != 0)?,
                skew_nanos: long(bytes, pace, fb::PacedDomain::VT_SKEW_NANOS).unwrap_or(0),
            }),
            _ => return None,
        },
    })
}

fn byte(bytes: &[u8], table: usize, slot: u16) -> Option<u8> {
    bytes.get(field(bytes, table, slot)?).copied()
}

fn long(bytes: &[u8], table: usize, slot: u16) -> Option<u64> {
    Some(u64::from_le_bytes(array(
        bytes,
        field(bytes, table, slot)?,
    )?))
}

/// Writes one DomainInfo in this layout.
pub(crate) fn encode_other<'b>(
    e: &mut Encoder<'b>,
    v: &DomainInfo,
) -> Result<WIPOffset<fb::DomainInfo<'b>>, EncodeError> {
    e.enter()?;
    let domain = e.string(&v.domain)?;
    let (pace_type, pace) = encode::domain_pace(e, &v.pace)?;
    let builder = e.leave()?;
    let table = builder.start_table();
    builder.push_slot_always(VT_START_VERSION, v.start_version);
    builder.push_slot_always(VT_PACE, pace);
    builder.push_slot_always(VT_DOMAIN, domain);
    builder.push_slot_always(VT_PACE_TYPE, pace_type);
    builder.push_slot_always(VT_STATUS, v.status as u8);
    let table = builder.end_table(table);
    Ok(WIPOffset::new(table.value()))
}
