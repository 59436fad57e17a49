//! TLS: server and client configurations from PEM files, with the one provider in the tree (ring).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A certificate, key or authority that cannot be used: which file, and why.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read or is not PEM of the expected kind.
    #[error("cannot read {what} from {}: {message}", path.display())]
    File {
        /// What was expected in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// The parts do not fit each other (a key of another certificate, say).
    #[error("{what} of {} cannot be used: {message}", path.display())]
    Unusable {
        /// What was to be made of it.
        what: &'static str,
        /// The file it began with.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

/// Whom a server asks for a certificate.
#[derive(Debug, Clone, Copy)]
pub enum ClientAuth<'a> {
    /// Nobody.
    None,
    /// Everybody, and nobody must have one. Whoever shows one that this authority did not sign gets no connection.
    Offered {
        /// The PEM file of the authority.
        ca: &'a Path,
    },
    /// Everybody: one that this authority signed. Without it there is no connection.
    Required {
        /// The PEM file of the authority.
        ca: &'a Path,
    },
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Reads all certificates of a PEM file; none is an error.
pub fn read_certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |message: String| TlsError::File { what, path: path.to_owned(), message };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(|found| found.collect::<Result<Vec<_>, _>>())
        .map_err(|e| error(e.to_string()))?;
    if certificates.is_empty() {
        return Err(error("there is no `BEGIN CERTIFICATE` in it".to_owned()));
    }
    Ok(certificates)
}

/// Reads a private key.
///
/// # Errors
/// The file cannot be read, or holds none.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|e| TlsError::File {
        what: "a private key",
        path: path.to_owned(),
        message: e.to_string(),
    })
}

/// Reads the authorities of a PEM file.
pub fn read_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path, "a certificate authority")? {
        roots.add(certificate).map_err(|e| TlsError::Unusable {
            what: "the authority",
            path: path.to_owned(),
            message: e.to_string(),
        })?;
    }
    Ok(roots)
}

/// When the certificate of a PEM file ends: the first to end of its chain.
///
/// # Errors
/// The file cannot be read, or what it holds is no certificate.
pub fn not_after(path: &Path) -> Result<SystemTime, TlsError> {
    let unusable = |message: String| TlsError::Unusable { what: "the certificate", path: path.to_owned(), message };
    let mut first = None::<i64>;
    for certificate in read_certificates(path, "a certificate")? {
        let (_, certificate) =
            x509_parser::parse_x509_certificate(&certificate).map_err(|error| unusable(error.to_string()))?;
        let end = certificate.validity().not_after.timestamp();
        first = Some(first.map_or(end, |first| first.min(end)));
    }
    let seconds = first.and_then(|end| u64::try_from(end).ok());
    seconds
        .map(|end| SystemTime::UNIX_EPOCH + Duration::from_secs(end))
        .ok_or_else(|| unusable("it ended before 1970".to_owned()))
}

/// Whether the certificate of a PEM file, and its chain, still is one at a time.
///
/// # Errors
/// It has ended by then, or cannot be read.
pub fn check_end(path: &Path, now: SystemTime) -> Result<(), TlsError> {
    let ends = not_after(path)?;
    if ends < now {
        let message = format!("it ended on {}", humantime::format_rfc3339_seconds(ends));
        return Err(TlsError::Unusable { what: "the certificate", path: path.to_owned(), message });
    }
    Ok(())
}

/// A server's configuration, without ALPN: whoever serves sets that.
///
/// Where certificates are asked of clients each handshake is a full one: a session that is resumed brings back the
/// certificate of before, and nobody looks whether it has ended since.
pub fn server_config(certificate: &Path, key: &Path, client_auth: ClientAuth<'_>) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring provides the default protocol versions");
    let builder = match client_auth {
        ClientAuth::None => builder.with_no_client_auth(),
        ClientAuth::Offered { ca } | ClientAuth::Required { ca } => {
            let roots = Arc::new(read_roots(ca)?);
            let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            if matches!(client_auth, ClientAuth::Offered { .. }) {
                verifier = verifier.allow_unauthenticated();
            }
            let verifier = verifier.build().map_err(|e| TlsError::Unusable {
                what: "the clients' authority",
                path: ca.to_owned(),
                message: e.to_string(),
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(read_certificates(certificate, "a certificate")?, read_key(key)?);
    let mut config = config.map_err(|e| TlsError::Unusable {
        what: "the certificate",
        path: certificate.to_owned(),
        message: e.to_string(),
    })?;
    if !matches!(client_auth, ClientAuth::None) {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

/// A client's configuration that trusts `ca` alone, without ALPN. `identity`: the client's own certificate and key.
pub fn client_config(ca: &Path, identity: Option<(&Path, &Path)>) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring provides the default protocol versions")
        .with_root_certificates(read_roots(ca)?);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => builder
            .with_client_auth_cert(read_certificates(certificate, "a certificate")?, read_key(key)?)
            .map_err(|e| TlsError::Unusable {
                what: "the client certificate",
                path: certificate.to_owned(),
                message: e.to_string(),
            }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates;
    use rustls::{ClientConnection, HandshakeKind, ServerConnection};

    #[test]
    fn a_certificate_that_has_ended_is_told_with_its_file_and_time() {
        let dir = tempfile::tempdir().unwrap();
        certificates::write(dir.path(), &[]).unwrap();
        let file = dir.path().join("edge.pem");
        check_end(&file, SystemTime::now()).unwrap();
        certificates::write_ended(dir.path(), "edge").unwrap();
        let ends = not_after(&file).unwrap();
        let told = check_end(&file, SystemTime::now()).unwrap_err().to_string();
        assert!(
            told.contains("edge.pem") && told.contains(&humantime::format_rfc3339_seconds(ends).to_string()),
            "{told}"
        );
    }

    /// Shakes hands, and sends a byte of an answer, with which tickets come.
    fn handshake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> HandshakeKind {
        let mut client = ClientConnection::new(client.clone(), "localhost".try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(server.clone()).unwrap();
        while client.is_handshaking() || server.is_handshaking() || client.wants_write() || server.wants_write() {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            server.read_tls(&mut &wire[..]).unwrap();
            server.process_new_packets().unwrap();
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            client.read_tls(&mut &wire[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        server.handshake_kind().unwrap()
    }

    #[test]
    fn a_client_whose_certificate_is_asked_for_is_looked_at_each_time() {
        let dir = tempfile::tempdir().unwrap();
        certificates::write(dir.path(), &[]).unwrap();
        let file = |name: &str| dir.path().join(name);
        let (ca, certificate, key) = (file("ca.pem"), file("edge.pem"), file("edge.key"));
        let agent = (file("agent.pem"), file("agent.key"));
        for (client_auth, second) in [
            (ClientAuth::None, HandshakeKind::Resumed),
            (ClientAuth::Offered { ca: &ca }, HandshakeKind::Full),
            (ClientAuth::Required { ca: &ca }, HandshakeKind::Full),
        ] {
            let server = Arc::new(server_config(&certificate, &key, client_auth).unwrap());
            let client = Arc::new(client_config(&ca, Some((&agent.0, &agent.1))).unwrap());
            assert_eq!(handshake(&client, &server), HandshakeKind::Full, "{client_auth:?}");
            assert_eq!(handshake(&client, &server), second, "{client_auth:?}");
        }
    }
}
