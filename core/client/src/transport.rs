//! Byte streams to servers.
//!
//! Owns name resolution, the choice among a name's addresses, and sockets. Honours no proxy variable. Knows nothing of HTTP.

use std::time::Duration;

use nervix_engine::Origin;
use tokio::net::{lookup_host, TcpStream};
use tokio::time::timeout;

/// What all addresses of a name may take together. The engine bounds a whole attempt a little above it, so that the last
/// address still gets its turn and its own reason.
const ALL_ADDRESSES: Duration = Duration::from_secs(9);

/// Connects to an origin, trying each address of its name once, in order. The error is one line.
pub(crate) async fn connect(origin: &Origin) -> Result<TcpStream, String> {
    if origin.secure {
        return Err(
            "this build has no TLS: use an http address, or a library that was built with TLS"
                .to_owned(),
        );
    }
    let addresses: Vec<_> = match lookup_host((origin.host.as_str(), origin.port)).await {
        Ok(addresses) => addresses.collect(),
        Err(error) => {
            return Err(format!(
                "the name {:?} could not be resolved: {error}",
                origin.host
            ))
        }
    };
    let Some(share) = u32::try_from(addresses.len())
        .ok()
        .and_then(|count| ALL_ADDRESSES.checked_div(count))
    else {
        return Err(format!("the name {:?} has no address", origin.host));
    };
    let mut failures = Vec::new();
    for address in addresses {
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Small frames must not wait for each other. Without it they are slower and still right.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => failures.push(format!("{address}: {error}")),
            Err(_) => failures.push(format!("{address}: no answer")),
        }
    }
    Err(format!(
        "connecting failed ({}): check that a node listens there",
        failures.join("; ")
    ))
}
