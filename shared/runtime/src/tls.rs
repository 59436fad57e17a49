//! TLS: server and client configurations from PEM files, with the one provider in the tree (ring).

mod client;
mod role_verifier;

#[cfg(feature = "certificates")]
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::time::ASN1Time;

use super::identity::{Identity, Role, TrustDomain};
pub use client::{client_config, client_config_of_text};
use role_verifier::RoleVerifier;

const CERTIFICATE: &str = "the certificate";
const AUTHORITY: &str = "the certificate authority";

/// A certificate, key or authority that cannot be used: which file, and why.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or is not PEM of the expected kind.
    #[error("cannot read {what} from {}: {message}", path.display())]
    File {
        /// What was expected in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// The files do not match, such as a certificate and the key of another one.
    #[error("{what} of {} cannot be used: {message}", path.display())]
    Unusable {
        /// What the file is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

/// Whether a server requests client certificates.
#[derive(Debug, Clone, Copy)]
pub enum ClientAuth<'a> {
    /// It does not.
    None,
    /// It requests one but does not require it. A certificate of another authority fails the handshake.
    Offered {
        /// The PEM file of the authority.
        ca: &'a Path,
    },
    /// The same, with an authority for each role: no authority can issue certificates of another one's role.
    OfferedByRole {
        /// The PEM files. The first also verifies certificates of roles that are not named.
        authorities: &'a [(Role, &'a Path)],
        /// The trust domain of the roles.
        trust_domain: &'a TrustDomain,
    },
    /// It requires one of this authority; the handshake fails without.
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
        what: "the private key",
        path: path.to_owned(),
        message: e.to_string(),
    })
}

/// Reads the authorities of a PEM file.
pub fn read_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    roots_of(path, read_certificates(path, AUTHORITY)?)
}

fn roots_of(path: &Path, certificates: Vec<CertificateDer<'static>>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    // Other certificates may accompany an authority, as in the file of a whole chain.
    if let Some(Err(error)) = certificates.iter().map(|each| check_authority(path, each)).reduce(Result::or) {
        return Err(error);
    }
    for certificate in certificates {
        roots.add(certificate).map_err(|e| unusable(AUTHORITY, path, &e.to_string()))?;
    }
    Ok(roots)
}

/// When the certificate of a PEM file ends: the leaf, which comes first. The rest of the chain is its authority's affair.
///
/// # Errors
/// The file cannot be read, or what it holds is no certificate.
pub fn not_after(path: &Path) -> Result<SystemTime, TlsError> {
    let chain = read_certificates(path, CERTIFICATE)?;
    Ok(system_time(leaf(path, &chain)?.validity().not_after))
}

/// When the last authority of a PEM file ends: after that, nothing that it signed is accepted.
///
/// # Errors
/// The file cannot be read, or holds no certificate.
pub fn authority_ends(path: &Path) -> Result<SystemTime, TlsError> {
    let ends = read_certificates(path, AUTHORITY)?.iter().filter_map(ends).max();
    ends.ok_or_else(|| unusable(AUTHORITY, path, "it cannot be parsed"))
}

/// When a certificate ends. `None`: it cannot be read.
pub fn ends(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(system_time(parsed.validity().not_after))
}

/// A time before 1970 becomes 1970.
fn system_time(time: ASN1Time) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(time.timestamp().max(0).unsigned_abs())
}

/// The DNS names and IP addresses of the certificate in a PEM file, as texts.
#[cfg(feature = "certificates")]
pub(crate) fn host_names(path: &Path) -> Result<Vec<String>, TlsError> {
    let chain = read_certificates(path, CERTIFICATE)?;
    let leaf = leaf(path, &chain)?;
    let address = |bytes: &[u8]| match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        _ => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => address(bytes).map(|address| address.to_string()),
        _ => None,
    };
    Ok(alternative_names(&leaf).iter().filter_map(text).collect())
}

fn alternative_names<'c>(certificate: &'c X509Certificate<'c>) -> &'c [GeneralName<'c>] {
    certificate.subject_alternative_name().ok().flatten().map_or(&[], |names| &names.value.general_names)
}

/// What a certificate is presented for.
#[derive(Debug, Clone, Copy)]
pub enum Purpose<'a> {
    /// By a server to its clients.
    Server,
    /// By a client that must prove this role, in this trust domain. `None`: in one that only its server knows.
    Client(Role, Option<&'a TrustDomain>),
}

/// Checks that the certificate of a PEM file is valid at a time, before a running role takes it.
///
/// # Errors
/// The certificate has expired, is not valid yet, or cannot be read.
pub fn check_validity(path: &Path, now: SystemTime) -> Result<(), TlsError> {
    let chain = read_certificates(path, CERTIFICATE)?;
    check_dates(path, &leaf(path, &chain)?, now)
}

fn check_dates(path: &Path, leaf: &X509Certificate<'_>, now: SystemTime) -> Result<(), TlsError> {
    let [begins, ends] = [leaf.validity().not_before, leaf.validity().not_after].map(system_time);
    let date = humantime::format_rfc3339_seconds;
    if ends < now {
        return Err(unusable(CERTIFICATE, path, &format!("it expired on {}; renew it", date(ends))));
    }
    if begins > now {
        let (begins, now) = (date(begins), date(now));
        let message = format!(
            "it is not valid before {begins}; correct the clock, which says {now}, or use a certificate that is valid now"
        );
        return Err(unusable(CERTIFICATE, path, &message));
    }
    Ok(())
}

/// Checks that the certificate of a PEM file serves its purpose at a time: for `--check-config`. A running role warns of one
/// that has expired, and goes on.
///
/// # Errors
/// The certificate has expired, is not valid yet, is not for this purpose, or cannot be read.
pub fn check_certificate(path: &Path, purpose: Purpose<'_>, now: SystemTime) -> Result<(), TlsError> {
    let unusable = |message: &str| Err(unusable(CERTIFICATE, path, message));
    let chain = read_certificates(path, CERTIFICATE)?;
    let leaf = leaf(path, &chain)?;
    check_dates(path, &leaf, now)?;
    if leaf.is_ca() {
        return unusable("its first certificate is an authority's; put the certificate of this node first");
    }
    let usage = leaf.extended_key_usage().ok().flatten().map(|usage| usage.value);
    let serves = usage.is_none_or(|usage| usage.any || usage.server_auth);
    let is_host = |name: &GeneralName<'_>| matches!(name, GeneralName::DNSName(_) | GeneralName::IPAddress(_));
    match purpose {
        Purpose::Server if !serves => unusable("clients refuse it: its extended key usage lacks `serverAuth`"),
        Purpose::Server if !alternative_names(&leaf).iter().any(is_host) => {
            unusable("clients refuse it: it names no DNS name and no IP address")
        }
        Purpose::Client(role, trust_domain) => check_role(path, role, trust_domain),
        Purpose::Server => Ok(()),
    }
}

/// Checks that a client proves a role with the certificate of a PEM file, whether or not it is valid now. `trust_domain`: as in
/// [`Purpose::Client`].
///
/// # Errors
/// It does not, or the certificate cannot be read.
pub fn check_role(path: &Path, role: Role, trust_domain: Option<&TrustDomain>) -> Result<(), TlsError> {
    let unusable = |message: &str| Err(unusable(CERTIFICATE, path, message));
    let chain = read_certificates(path, CERTIFICATE)?;
    let leaf = leaf(path, &chain)?;
    let usage = leaf.extended_key_usage().ok().flatten().map(|usage| usage.value);
    if usage.is_some_and(|usage| !usage.any && !usage.client_auth) {
        return unusable("servers refuse it: its extended key usage lacks `clientAuth`");
    }
    let shown = match trust_domain {
        Some(trust_domain) => Identity::of_certificate(&chain[0], trust_domain),
        None => Identity::in_any_domain(&chain[0]),
    };
    if shown.is_none_or(|shown| shown.role != role) {
        let trust_domain = trust_domain.map_or("<trust domain>".to_owned(), TrustDomain::to_string);
        let uri = format!("spiffe://{trust_domain}/{}/<name>", role.as_str());
        return unusable(&format!(
            "it proves nothing: it needs exactly one URI `{uri}` among its subject alternative names"
        ));
    }
    Ok(())
}

/// What the certificate of a PEM file proves in any trust domain, whether or not it is valid now.
///
/// # Errors
/// It cannot be read.
pub fn identity(path: &Path) -> Result<Option<Identity>, TlsError> {
    let chain = read_certificates(path, CERTIFICATE)?;
    leaf(path, &chain)?;
    Ok(Identity::in_any_domain(&chain[0]))
}

/// All errors of a certificate and its key, each file by itself first: for `--check-config`.
pub fn check_pair(certificate: &Path, key: &Path, purpose: Purpose<'_>, now: SystemTime) -> Vec<TlsError> {
    let mut faults: Vec<TlsError> = read_key(key).err().into_iter().collect();
    match read_certificates(certificate, CERTIFICATE) {
        Err(error) => faults.push(error),
        Ok(_) => {
            if faults.is_empty() {
                faults.extend(server_config(certificate, key, ClientAuth::None).err());
            }
            faults.extend(check_certificate(certificate, purpose, now).err());
        }
    }
    faults
}

/// Checks that a certificate in an authority's PEM file can sign others, or is self-signed.
fn check_authority(path: &Path, certificate: &CertificateDer<'_>) -> Result<(), TlsError> {
    let leaf = leaf(path, std::slice::from_ref(certificate))?;
    if leaf.is_ca() || leaf.issuer() == leaf.subject() {
        return Ok(());
    }
    let issuer = leaf.issuer();
    Err(unusable(
        AUTHORITY,
        path,
        &format!("it is not the certificate of an authority; name the file of its issuer, `{issuer}`"),
    ))
}

fn leaf<'c>(path: &Path, chain: &'c [CertificateDer<'_>]) -> Result<X509Certificate<'c>, TlsError> {
    let parsed = x509_parser::parse_x509_certificate(&chain[0]);
    parsed.map(|(_, leaf)| leaf).map_err(|error| unusable(CERTIFICATE, path, &error.to_string()))
}

fn unusable(what: &'static str, path: &Path, message: &str) -> TlsError {
    TlsError::Unusable { what, path: path.to_owned(), message: message.to_owned() }
}

/// The error of a certificate and a key that do not match, in plain words.
fn mismatch(what: &'static str, certificate: &Path, key: &Path, error: &rustls::Error) -> TlsError {
    let message = match error {
        rustls::Error::InconsistentKeys(_) => {
            format!("the key {} does not belong to it; name the key that it was issued for", key.display())
        }
        error => error.to_string(),
    };
    unusable(what, certificate, &message)
}

/// A server's configuration without ALPN protocols, which the listener sets.
///
/// A server that requests client certificates resumes no sessions: a resumed session brings back the certificate of the first
/// handshake, and nothing checks whether it has expired since.
pub fn server_config(certificate: &Path, key: &Path, client_auth: ClientAuth<'_>) -> Result<ServerConfig, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring provides the default protocol versions");
    let builder = match client_auth {
        ClientAuth::None => builder.with_no_client_auth(),
        ClientAuth::Offered { ca } => builder.with_client_cert_verifier(client_verifier(ca, true)?),
        ClientAuth::Required { ca } => builder.with_client_cert_verifier(client_verifier(ca, false)?),
        ClientAuth::OfferedByRole { authorities, trust_domain } => {
            let verifiers = authorities.iter().map(|(role, ca)| Ok((*role, client_verifier(ca, true)?)));
            let verifiers = verifiers.collect::<Result<_, TlsError>>()?;
            builder.with_client_cert_verifier(Arc::new(RoleVerifier::new(verifiers, trust_domain.clone())))
        }
    };
    let config = builder.with_single_cert(read_certificates(certificate, CERTIFICATE)?, read_key(key)?);
    let mut config = config.map_err(|error| mismatch(CERTIFICATE, certificate, key, &error))?;
    if !matches!(client_auth, ClientAuth::None) {
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

fn client_verifier(ca: &Path, may_be_absent: bool) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(read_roots(ca)?), provider());
    if may_be_absent {
        verifier = verifier.allow_unauthenticated();
    }
    verifier.build().map_err(|error| unusable(AUTHORITY, ca, &error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates;
    use rustls::{ClientConfig, ClientConnection, HandshakeKind, ServerConnection};

    #[test]
    fn a_certificate_is_checked_for_its_purpose_and_validity() {
        let dir = tempfile::tempdir().unwrap();
        certificates::write(dir.path(), &[]).unwrap();
        let file = |name: &str| dir.path().join(name);
        let check = |name: &str, purpose| {
            check_certificate(&file(name), purpose, SystemTime::now()).map_err(|error| error.to_string())
        };
        let (weir, other) = (TrustDomain::default(), "other.example".parse().unwrap());
        let (weir, other) = (Some(&weir), Some(&other));
        check("edge.pem", Purpose::Server).unwrap();
        check("agent.pem", Purpose::Client(Role::Agent, None)).unwrap();
        check("edge-client.pem", Purpose::Client(Role::Edge, weir)).unwrap();
        for (name, purpose, reason) in [
            ("agent.pem", Purpose::Server, "`serverAuth`"),
            ("ca.pem", Purpose::Server, "an authority's"),
            ("edge.pem", Purpose::Client(Role::Edge, weir), "`clientAuth`"),
            ("origin.pem", Purpose::Client(Role::Edge, weir), "spiffe://weir/edge/<name>"),
            ("agent.pem", Purpose::Client(Role::Edge, weir), "spiffe://weir/edge/<name>"),
            ("edge-client.pem", Purpose::Client(Role::Edge, other), "spiffe://other.example/edge/<name>"),
            ("agent.pem", Purpose::Client(Role::Edge, None), "spiffe://<trust domain>/edge/<name>"),
            ("none.pem", Purpose::Server, "none.pem"),
        ] {
            let error = check(name, purpose).unwrap_err();
            assert!(error.contains(reason) && error.contains(name), "{error}");
        }
        certificates::write_expired(dir.path(), "edge").unwrap();
        let ends = humantime::format_rfc3339_seconds(not_after(&file("edge.pem")).unwrap()).to_string();
        let error = check("edge.pem", Purpose::Server).unwrap_err();
        assert!(error.contains("edge.pem") && error.contains(&ends), "{error}");

        certificates::write_not_yet_valid(dir.path(), "edge").unwrap();
        let error = check("edge.pem", Purpose::Server).unwrap_err();
        assert!(error.contains("edge.pem") && error.contains("it is not valid before"), "{error}");

        // The leaf decides, whatever else of the chain has expired.
        let chain = ["agent.pem", "edge.pem"].map(|name| std::fs::read_to_string(file(name)).unwrap()).concat();
        std::fs::write(file("chain.pem"), chain).unwrap();
        check("chain.pem", Purpose::Client(Role::Agent, weir)).unwrap();
    }

    #[test]
    fn files_that_do_not_match_are_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        certificates::write(dir.path(), &[]).unwrap();
        let file = |name: &str| dir.path().join(name);
        let error = server_config(&file("edge.pem"), &file("agent.key"), ClientAuth::None).unwrap_err().to_string();
        assert!(error.contains("edge.pem") && error.contains("agent.key does not belong to it"), "{error}");
        let identity = (&*file("agent.pem"), &*file("edge.key"));
        let error = client_config(&file("ca.pem"), Some(identity)).unwrap_err().to_string();
        assert!(error.contains("agent.pem") && error.contains("edge.key does not belong to it"), "{error}");
        let error = read_roots(&file("edge.pem")).unwrap_err().to_string();
        assert!(error.contains("edge.pem") && error.contains("Weir trial CA"), "{error}");
    }

    #[test]
    fn each_role_has_its_own_authority() {
        let (agents, edges) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        [&agents, &edges].iter().for_each(|dir| drop(certificates::write(dir.path(), &[]).unwrap()));
        let (of_agents, of_edges) = (agents.path().join("ca.pem"), edges.path().join("ca.pem"));
        let authorities = [(Role::Agent, &*of_agents), (Role::Edge, &*of_edges)];
        let (certificate, key) = (agents.path().join("edge.pem"), agents.path().join("edge.key"));
        let auth = ClientAuth::OfferedByRole { authorities: &authorities, trust_domain: &TrustDomain::default() };
        let server = Arc::new(server_config(&certificate, &key, auth).unwrap());
        let accepts = |issuer: &Path, name: &str| {
            let file = |end: &str| issuer.join(format!("{name}.{end}"));
            let client = client_config(&of_agents, Some((&file("pem"), &file("key")))).unwrap();
            handshake(&Arc::new(client), &server).is_ok()
        };
        assert!(accepts(agents.path(), "agent") && accepts(edges.path(), "edge-client"));
        assert!(!accepts(edges.path(), "agent"), "the authority of edges issues no agents");
        assert!(!accepts(agents.path(), "edge-client"), "the authority of agents issues no edges");
        assert!(accepts(agents.path(), "operator") && !accepts(edges.path(), "operator"), "the first has the rest");
        let anonymous = client_config(&of_agents, None).unwrap();
        assert!(handshake(&Arc::new(anonymous), &server).is_ok(), "a certificate is not required");
    }

    #[test]
    fn the_file_of_an_authority_may_hold_a_whole_chain() {
        let dir = tempfile::tempdir().unwrap();
        certificates::write(dir.path(), &[]).unwrap();
        for chain in [["edge.pem", "ca.pem"], ["ca.pem", "edge.pem"]] {
            let text = chain.map(|name| std::fs::read_to_string(dir.path().join(name)).unwrap()).concat();
            let path = dir.path().join("chain.pem");
            std::fs::write(&path, text).unwrap();
            assert_eq!(read_roots(&path).unwrap().len(), 2, "{chain:?}");
        }
    }

    /// Completes a handshake, with the session tickets that follow it.
    fn handshake(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Result<HandshakeKind, rustls::Error> {
        let mut client = ClientConnection::new(client.clone(), "localhost".try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(server.clone()).unwrap();
        while client.is_handshaking() || server.is_handshaking() || client.wants_write() || server.wants_write() {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            server.read_tls(&mut &wire[..]).unwrap();
            server.process_new_packets()?;
            let mut wire = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            client.read_tls(&mut &wire[..]).unwrap();
            client.process_new_packets()?;
        }
        Ok(server.handshake_kind().unwrap())
    }

    #[test]
    fn a_client_with_a_certificate_is_verified_at_each_handshake() {
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
            assert_eq!(handshake(&client, &server), Ok(HandshakeKind::Full), "{client_auth:?}");
            assert_eq!(handshake(&client, &server), Ok(second), "{client_auth:?}");
        }
    }
}
