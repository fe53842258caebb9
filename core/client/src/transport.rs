//! Byte streams to servers.
//!
//! Owns name resolution, the choice among a name's addresses, sockets and the TLS on them. Honours no proxy variable. Knows nothing of HTTP.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nervix_engine::Origin;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{lookup_host, TcpStream};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use crate::authorities::{self, Authorities, HTTP2, NO_HTTP2};

/// What all addresses of a name may take together. The engine bounds a whole attempt a little above it, so that the last
/// address still gets its turn and its own reason.
const ALL_ADDRESSES: Duration = Duration::from_secs(9);

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A socket that writes one buffer at a time. Writing several at once would raise SIGPIPE when the peer is gone, which ends a host
/// that has not thought of it; a single buffer is written without.
struct Socket {
    stream: TcpStream,
    /// Where HTTP/2 is to be spoken without TLS, until the first byte is here.
    unheard: Option<Heard>,
}

/// Whether the server's first byte was received, and could be one of HTTP/2.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heard(Arc<AtomicBool>);

impl Heard {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a server speaks whose first byte cannot begin HTTP/2: that is the length of its settings, and no settings are so long.
fn other_protocol(first: u8) -> Option<&'static str> {
    match first {
        // An alert, or a handshake.
        21 | 22 => Some(
            "the server speaks TLS: check the port, and whether its address begins with https://",
        ),
        b'H' => Some("the server speaks HTTP/1: check that the port is a session port"),
        _ => None,
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Some(first) = buffer.filled().get(before) {
            if let Some(heard) = self.unheard.take() {
                if let Some(why) = other_protocol(*first) {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
                }
                heard.set();
            }
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Connects to an origin, over TLS when it is https; then the server was heard. The error is one line.
pub(crate) async fn connect(
    origin: &Origin,
    trusted: Option<&Authorities>,
) -> Result<(Box<dyn Stream>, Heard), String> {
    let heard = Heard::default();
    let mut stream = dial(origin).await?;
    if !origin.secure {
        stream.unheard = Some(heard.clone());
        return Ok((Box::new(stream), heard));
    }
    let checks = authorities::checks(trusted).await?;
    // The certificate is held to the name in the address, whichever address the name led to (T-2).
    let name = ServerName::try_from(origin.host.clone())
        .map_err(|_| format!("no certificate can be for the name {:?}", origin.host))?;
    let stream = TlsConnector::from(checks)
        .connect(name, stream)
        .await
        .map_err(|error| authorities::describe(&error, trusted))?;
    match stream.get_ref().1.alpn_protocol() {
        Some(HTTP2) => {
            heard.set();
            Ok((Box::new(stream), heard))
        }
        _ => Err(NO_HTTP2.to_owned()),
    }
}

/// Opens a socket to the first address of the origin's name that takes it, trying each once, in order.
async fn dial(origin: &Origin) -> Result<Socket, String> {
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
                return Ok(Socket {
                    stream,
                    unheard: None,
                });
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
