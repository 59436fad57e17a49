//! The configuration of clients.

use std::path::Path;

use rustls::client::WantsClientCert;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

use super::{
    AUTHORITY, CERTIFICATE, TlsError, mismatch, provider, read_certificates, read_key, read_roots, roots_of, unusable,
};

fn trusting(roots: RootCertStore) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring provides the default protocol versions")
        .with_root_certificates(roots)
}

/// A client's configuration that trusts `ca` alone, without ALPN. `identity`: the client's own certificate and key.
pub fn client_config(ca: &Path, identity: Option<(&Path, &Path)>) -> Result<ClientConfig, TlsError> {
    let builder = trusting(read_roots(ca)?);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => builder
            .with_client_auth_cert(read_certificates(certificate, CERTIFICATE)?, read_key(key)?)
            .map_err(|error| mismatch("the client certificate", certificate, key, &error)),
    }
}

/// A client's configuration that trusts the authorities in a PEM text alone, without ALPN. `name`: that of the text in errors.
pub fn client_config_of_text(ca: &str, name: &str) -> Result<ClientConfig, TlsError> {
    let name = Path::new(name);
    let certificates = CertificateDer::pem_slice_iter(ca.as_bytes()).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| unusable(AUTHORITY, name, &error.to_string()))?;
    Ok(trusting(roots_of(name, certificates)?).with_no_client_auth())
}
