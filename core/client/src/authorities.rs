//! Who may vouch for a server: the certificate authorities of the system, or those of a file that the host names (T-2).
//!
//! Owns reading them, and saying what is wrong with a certificate. Knows nothing of connections.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use nervix_engine::{Error, ErrorKind};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, RootCertStore};

/// The only protocol that is spoken inside TLS.
pub(crate) const HTTP2: &[u8] = b"h2";

/// No file of authorities is longer; the whole world's fit in a thirtieth of it.
const FILE_LIMIT: u64 = 8 << 20;

/// The authorities of a file. Clones share them.
#[derive(Clone)]
pub struct Authorities {
    file: Arc<str>,
    config: Arc<ClientConfig>,
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authorities {{ {} }}", self.file)
    }
}

impl Authorities {
    /// Reads a file of PEM certificates, each of which is then trusted, and nobody else. What else the file holds is skipped.
    /// INVALID_ARGUMENT names the file that has none, or one that cannot be used.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file: Arc<str> = Arc::from(format!("{:?}", path.to_string_lossy()));
        let invalid = |why: String| {
            let message = format!("the CA file {file} {why}");
            Error::new(ErrorKind::InvalidArgument, message)
        };
        let mut pem = Vec::new();
        let read = File::open(path).and_then(|opened| {
            opened
                .take(FILE_LIMIT.saturating_add(1))
                .read_to_end(&mut pem)
        });
        if let Err(error) = read {
            return Err(invalid(format!("cannot be read: {error}")));
        }
        if u64::try_from(pem.len()).unwrap_or(u64::MAX) > FILE_LIMIT {
            return Err(invalid(format!("is longer than {FILE_LIMIT} bytes")));
        }
        let mut roots = RootCertStore::empty();
        for (number, found) in (1_u32..).zip(CertificateDer::pem_slice_iter(&pem)) {
            let unusable =
                |why: String| invalid(format!("cannot be used: its certificate {number} {why}"));
            let found = found.map_err(|error| unusable(format!("is not PEM: {error}")))?;
            roots
                .add(found)
                .map_err(|error| unusable(format!("is no certificate of an authority: {error}")))?;
        }
        if roots.is_empty() {
            return Err(invalid(
                "holds no certificate: it begins each with -----BEGIN CERTIFICATE-----".to_owned(),
            ));
        }
        let config = config(roots).map_err(&invalid)?;
        Ok(Self {
            file,
            config: Arc::new(config),
        })
    }
}

/// How servers are checked. The system's authorities, which SSL_CERT_FILE and SSL_CERT_DIR replace, are read for each
/// connection, since they change while a process runs.
pub(crate) async fn checks(trusted: Option<&Authorities>) -> Result<Arc<ClientConfig>, String> {
    if let Some(trusted) = trusted {
        return Ok(Arc::clone(&trusted.config));
    }
    let read = tokio::task::spawn_blocking(system).await;
    read.map_err(|error| format!("TLS could not be set up: {error}"))?
        .map(Arc::new)
}

fn system() -> Result<ClientConfig, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 {
        let why = found
            .errors
            .first()
            .map(|error| format!(" ({error})"))
            .unwrap_or_default();
        return Err(format!(
            "the system has no usable certificate authorities{why}: connect with a CA file, or name one in SSL_CERT_FILE"
        ));
    }
    config(roots)
}

fn config(roots: RootCertStore) -> Result<ClientConfig, String> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS could not be set up: {error}"))?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(config)
}

/// Why a server could not be trusted or spoken to, and what to do.
pub(crate) fn describe(error: &std::io::Error, trusted: Option<&Authorities>) -> String {
    use rustls::Error as Tls;
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref());
    let text = match cause {
        Some(Tls::InvalidCertificate(why)) => match why {
            CertificateError::UnknownIssuer => match trusted {
                Some(Authorities { file, .. }) => format!(
                    "the server's certificate is from none of the authorities in the CA file {file}"
                ),
                None => "the server's certificate is from no authority that the system trusts: connect with the CA file \
                         of the one it is from"
                    .to_owned(),
            },
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("the server's certificate is for another name: {why}")
            }
            why => format!("the server's certificate is not valid: {why}"),
        },
        // Not even the type of the first record is one of TLS.
        Some(Tls::InvalidMessage(rustls::InvalidMessage::InvalidContentType)) => {
            "the server does not speak TLS: check the port, and whether its address begins with http://".to_owned()
        }
        Some(Tls::AlertReceived(rustls::AlertDescription::NoApplicationProtocol)) => {
            NO_HTTP2.to_owned()
        }
        _ => error.to_string(),
    };
    format!("TLS failed: {text}")
}

pub(crate) const NO_HTTP2: &str =
    "the server did not agree to speak HTTP/2: check that the port is a session port";
