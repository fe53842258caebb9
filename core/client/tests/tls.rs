//! Sessions over TLS. Alone in its process, because the authorities that it trusts are named by the environment.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

#[allow(dead_code)]
mod server;

use std::sync::Arc;

use nervix_client::{Options, Session};
use nervix_engine::{Disposition, ErrorKind, Origin};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use server::{Act, Server};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::ServerConfig;

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A server for the name localhost.
fn start(authority: &CertifiedIssuer<'_, KeyPair>, protocols: &[&[u8]]) -> Server {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Server::start_with(vec![Act::Lead], Some(Arc::new(config)))
}

fn refusal(origin: &Origin) -> String {
    let error = Session::connect(origin, None, None, &Options::default(), None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Connect);
    error.message
}

// rule: T-2
#[test]
fn a_certificate_is_held_to_the_name_and_its_authority() {
    let (known, unknown) = (authority(), authority());
    let file = std::env::temp_dir().join(format!("nervix-client-tls-{}.pem", std::process::id()));
    std::fs::write(&file, known.pem()).unwrap();
    std::env::set_var("SSL_CERT_FILE", &file);
    std::env::remove_var("SSL_CERT_DIR");

    let server = start(&known, &[b"h2"]);
    let session = Session::connect(&server.origin, None, None, &Options::default(), None).unwrap();
    let request = server.opened();
    assert_eq!(request.uri().scheme_str(), Some("https"));
    assert_eq!(
        request.uri().authority().unwrap().as_str(),
        server.origin.authority()
    );
    let execution = session.prepare("SHOW X;", None).unwrap();
    assert_eq!(
        session.execute(&execution, None).unwrap().disposition,
        Disposition::Completed
    );

    let by_address = Origin {
        host: "127.0.0.1".to_owned(),
        ..server.origin.clone()
    };
    assert!(refusal(&by_address).contains("TLS failed"));
    assert!(refusal(&start(&unknown, &[b"h2"]).origin).contains("TLS failed"));
    assert!(refusal(&start(&known, &[]).origin).contains("HTTP/2"));
    std::env::set_var("SSL_CERT_FILE", file.with_extension("none"));
    let message = refusal(&server.origin);
    assert!(message.contains("SSL_CERT_FILE"), "{message}");
    std::fs::remove_file(&file).unwrap();
}
