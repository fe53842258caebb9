//! The two layouts of DomainInfo.

use bytes::Bytes;
use nervix_wire::types::*;
use nervix_wire::{
    decode_server, encode_server, encode_server_alternate_domain_info, split_reply, Frame,
    Reassembler,
};
use proptest::prelude::*;

use super::walk::{follow, slot};

fn observed(domains: Vec<DomainInfo>) -> ServerMessage {
    ServerMessage {
        body: ServerBody::DomainsObserved(DomainsObserved { domains }),
    }
}

fn listed(domains: Vec<DomainInfo>) -> ServerMessage {
    ServerMessage {
        body: ServerBody::Reply(Reply {
            request_id: 9,
            body: ReplyBody::DomainList(DomainList { domains }),
        }),
    }
}

fn info(start_version: u64) -> DomainInfo {
    DomainInfo {
        domain: "d".into(),
        status: DomainStatus::Running,
        start_version,
        pace: DomainPace::PacedDomain(PacedDomain {
            period_nanos: 5,
            skew_nanos: 0,
        }),
    }
}

/// Where the fields of the only domain of a DomainsObserved stand.
fn only_domain(bytes: &[u8]) -> usize {
    let body = follow(bytes, slot(bytes, follow(bytes, 0), 6).unwrap());
    let vector = follow(bytes, slot(bytes, body, 4).unwrap());
    follow(bytes, vector + 4)
}

// rule: F-1
#[test]
fn the_second_layout_has_the_start_version_last() {
    let message = observed(vec![info(0x0102)]);
    let first = encode_server(&message).unwrap();
    let at = slot(&first, only_domain(&first), 8).unwrap();
    assert_eq!(first[at..at + 8], 0x0102u64.to_le_bytes());
    let second = encode_server_alternate_domain_info(&message).unwrap();
    let domain = only_domain(&second);
    assert_eq!(second[slot(&second, domain, 8).unwrap()], 2, "PacedDomain");
    let at = slot(&second, domain, 12).unwrap();
    assert_eq!(second[at..at + 8], 0x0102u64.to_le_bytes());
}

fn any_domain() -> impl Strategy<Value = DomainInfo> {
    let pace = prop_oneof![
        Just(DomainPace::UnpacedDomain),
        (1u64.., any::<u64>()).prop_map(|(period_nanos, skew_nanos)| {
            DomainPace::PacedDomain(PacedDomain {
                period_nanos,
                skew_nanos,
            })
        }),
    ];
    let version = prop_oneof![0u64..4, any::<u64>()];
    (".{0,9}", 0..DomainStatus::ALL.len(), version, pace).prop_map(
        |(domain, status, start_version, pace)| DomainInfo {
            domain,
            status: DomainStatus::ALL[status],
            start_version,
            pace,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // rule: F-1, F-4, RP-4a
    #[test]
    fn domains_are_read_in_either_layout(domains in prop::collection::vec(any_domain(), 0..6)) {
        for message in [observed(domains.clone()), listed(domains.clone())] {
            let first = encode_server(&message).unwrap();
            let second = encode_server_alternate_domain_info(&message).unwrap();
            prop_assert_eq!(first == second, domains.is_empty());
            prop_assert_eq!(decode_server(&Frame::copy_from(&first)), Ok(message.clone()));
            prop_assert_eq!(decode_server(&Frame::copy_from(&second)), Ok(message));
        }
    }
}

// rule: F-7
#[test]
fn a_list_of_domains_in_parts_is_read_in_either_layout() {
    let message = listed(vec![info(1), info(2)]);
    let whole = Bytes::from(encode_server_alternate_domain_info(&message).unwrap());
    let mut reassembler = Reassembler::new(9);
    let mut joined = None;
    for part in split_reply(9, &whole, 50).unwrap() {
        let ServerBody::Reply(Reply {
            body: ReplyBody::TransferPart(part),
            ..
        }) = decode_server(&Frame::copy_from(&part)).unwrap().body
        else {
            panic!("no part");
        };
        joined = reassembler.push(9, &part).unwrap();
    }
    assert_eq!(joined, Some(message));
}

// rule: F-4, RP-4a
#[test]
fn neither_layout_forgives_a_broken_value() {
    let good = encode_server_alternate_domain_info(&observed(vec![info(1)])).unwrap();
    assert!(decode_server(&Frame::copy_from(&good)).is_ok());
    let domain = only_domain(&good);
    let broken = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        decode_server(&Frame::copy_from(&changed))
            .unwrap_err()
            .rule()
    };
    let status = slot(&good, domain, 6).unwrap();
    let tag = slot(&good, domain, 8).unwrap();
    let pace = follow(&good, slot(&good, domain, 10).unwrap());
    let period = slot(&good, pace, 4).unwrap();
    for (at, bytes) in [
        (status, &[3u8][..]),
        (status, &[255]),
        (tag, &[0]),
        (tag, &[3]),
        (period, &[0; 8]),
    ] {
        let rule = broken(at, bytes);
        assert!(rule == "F-3" || rule == "F-4");
    }
    // A version that is not there: its vtable entry, the last of five.
    let back = i32::from_le_bytes(good[domain..domain + 4].try_into().unwrap());
    let vtable = usize::try_from(domain as i64 - i64::from(back)).unwrap();
    assert!(["F-3", "F-4"].contains(&broken(vtable + 12, &[0, 0])));
}

// rule: F-4
#[test]
fn other_bodies_have_one_layout_only() {
    let restored = ServerMessage {
        body: ServerBody::ServerNotice(ServerNotice {
            level: NoticeLevel::Info,
            message: "hello".into(),
        }),
    };
    assert_eq!(
        encode_server(&restored),
        encode_server_alternate_domain_info(&restored)
    );
    let mut bytes = encode_server(&restored).unwrap();
    // The tag of DomainsObserved on another body does not make it one.
    let tag = slot(&bytes, follow(&bytes, 0), 4).unwrap();
    bytes[tag] = 4;
    assert!(decode_server(&Frame::copy_from(&bytes)).is_err());
}
