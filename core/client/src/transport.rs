//! Byte streams to servers.
//!
//! Owns name resolution, the choice among a name's addresses, sockets and TLS. Honours no proxy variable. Knows nothing of HTTP.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nervix_engine::Origin;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{lookup_host, TcpStream};
use tokio::time::timeout;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// What all addresses of a name may take together. The engine bounds a whole attempt a little above it, so that the last
/// address still gets its turn and its own reason.
const ALL_ADDRESSES: Duration = Duration::from_secs(9);

/// The only protocol that is spoken inside TLS.
const HTTP2: &[u8] = b"h2";

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A socket that writes one buffer at a time. Writing several at once would raise SIGPIPE when the peer is gone, which ends a host
/// that has not thought of it; a single buffer is written without.
struct Socket(TcpStream);

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Connects to an origin, over TLS when it is https. The error is one line.
pub(crate) async fn connect(origin: &Origin) -> Result<Box<dyn Stream>, String> {
    let stream = dial(origin).await?;
    if !origin.secure {
        return Ok(Box::new(stream));
    }
    let config = tokio::task::spawn_blocking(tls_config).await;
    let config = config.map_err(|error| format!("TLS could not be set up: {error}"))??;
    // The certificate is held to the name in the address, whichever address the name led to (T-2).
    let name = ServerName::try_from(origin.host.clone())
        .map_err(|_| format!("no certificate can be for the name {:?}", origin.host))?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|error| format!("TLS failed: {error}"))?;
    match stream.get_ref().1.alpn_protocol() {
        Some(HTTP2) => Ok(Box::new(stream)),
        _ => Err(
            "the server did not agree to speak HTTP/2: check that the port is a session port"
                .to_owned(),
        ),
    }
}

/// Trusts what the system trusts, which SSL_CERT_FILE and SSL_CERT_DIR replace. Read for each connection, since authorities
/// change while a process runs.
fn tls_config() -> Result<ClientConfig, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let why = found
            .errors
            .first()
            .map(|error| format!(" ({error})"))
            .unwrap_or_default();
        return Err(format!("the system has no usable certificate authorities{why}: name a file of them in SSL_CERT_FILE"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS could not be set up: {error}"))?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(config)
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
                return Ok(Socket(stream));
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
