//! Lists of domains in both layouts, damaged: read as either, or refused.

use arbitrary::{Result, Unstructured};
use nervix_wire::types::*;
use nervix_wire::{encode_server, encode_server_alternate_domain_info, Frame};

use crate::{given, same, samples, server};

fn frame(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let domains: Result<Vec<DomainInfo>> = (0..u.int_in_range(0..=3)?)
        .map(|_| {
            let mut domain = samples::domain_info(u.choose_index(samples::DOMAIN_INFO)?);
            if u.ratio(1, 2)? {
                domain.start_version = u.arbitrary()?;
            }
            Ok(domain)
        })
        .collect();
    let domains = domains?;
    let body = if u.ratio(1, 2)? {
        ServerBody::DomainsObserved(DomainsObserved { domains })
    } else {
        ServerBody::Reply(Reply {
            request_id: u.int_in_range(1..=u64::MAX)?,
            body: ReplyBody::DomainList(DomainList { domains }),
        })
    };
    let message = ServerMessage { body };
    let one = encode_server(&message).unwrap();
    let other = encode_server_alternate_domain_info(&message).unwrap();
    for bytes in [&one, &other] {
        let read = nervix_wire::decode_server(&Frame::copy_from(bytes)).unwrap();
        same(&read, &message);
    }
    let mut bytes = if u.ratio(1, 2)? { one } else { other };
    given::damage(u, &mut bytes)?;
    Ok(bytes)
}

pub fn run(data: &[u8]) {
    if let Ok(bytes) = frame(&mut Unstructured::new(data)) {
        server::run(&bytes);
    }
}
