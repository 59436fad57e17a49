//! The TLS configuration of a listener, which can be replaced while it serves.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use quinn::crypto::rustls::QuicServerConfig;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::CertificateDer;
use rustls::quic::Suite;
use rustls::{ServerConfig, SupportedCipherSuite};

use super::Peer;
use crate::identity::{Identity, TrustDomain};
use crate::tls;

/// The TLS configuration for TCP and QUIC. Cheap to clone; all clones share one configuration.
///
/// A handshake uses the configuration in force when it begins; open connections are kept. No session of an earlier
/// configuration is resumed under a later one: each client makes a full handshake and is verified again.
#[derive(Clone)]
pub struct ServerTls {
    current: Arc<RwLock<Current>>,
    trust_domain: TrustDomain,
}

#[derive(Clone)]
struct Current {
    tcp: Arc<ServerConfig>,
    quic: Arc<QuicServerConfig>,
}

/// With the default trust domain.
impl From<ServerConfig> for ServerTls {
    fn from(config: ServerConfig) -> Self {
        Self::new(config, TrustDomain::default())
    }
}

impl From<ServerConfig> for Current {
    /// `config` has no ALPN protocols: they are set here.
    fn from(config: ServerConfig) -> Self {
        let (mut tcp, mut quic) = (config.clone(), config);
        tcp.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        quic.alpn_protocols = vec![b"h3".to_vec()];
        let quic = QuicServerConfig::with_initial(Arc::new(quic), initial_suite());
        Self { tcp: Arc::new(tcp), quic: Arc::new(quic.expect("the suite of Initial packets is right")) }
    }
}

/// The fixed cipher suite of QUIC's Initial packets (RFC 9001 section 5.2).
fn initial_suite() -> Suite {
    let SupportedCipherSuite::Tls13(suite) = TLS13_AES_128_GCM_SHA256 else { unreachable!("its name says so") };
    suite.quic_suite().expect("ring has it for QUIC")
}

impl ServerTls {
    /// `config` has no ALPN protocols. `trust_domain`: that of the identities in clients' certificates.
    pub fn new(config: ServerConfig, trust_domain: TrustDomain) -> Self {
        Self { current: Arc::new(RwLock::new(config.into())), trust_domain }
    }

    /// Who is at the other end of a connection, by the verified chain of its certificate.
    pub(super) fn peer(&self, address: SocketAddr, chain: Option<&[CertificateDer<'_>]>) -> Peer {
        let leaf = chain.and_then(|chain| chain.first());
        let identity = leaf.and_then(|leaf| Identity::of_certificate(leaf, &self.trust_domain));
        let certificate_ends = identity.as_ref().and(leaf).and_then(tls::ends);
        Peer { address, identity, certificate_ends }
    }

    /// Replaces the configuration for all later handshakes. `config` has no ALPN protocols.
    pub fn replace(&self, config: ServerConfig) {
        let new = Current::from(config);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    pub(super) fn tcp(&self) -> Arc<ServerConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).tcp.clone()
    }

    pub(super) fn quic(&self) -> Arc<QuicServerConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).quic.clone()
    }
}
