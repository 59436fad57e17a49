//! The TLS of a listener, which can be replaced while it serves.

use std::sync::{Arc, PoisonError, RwLock};

use quinn::crypto::rustls::QuicServerConfig;
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::Suite;
use rustls::{ServerConfig, SupportedCipherSuite};

/// What TCP and QUIC show of one certificate. Cheap to clone; all clones are of one, and are replaced together.
///
/// A handshake uses what is in force when it begins; connections that exist live on. Nothing that was agreed with an
/// earlier configuration is resumed under a later one: each client then makes a whole handshake, and is checked anew.
#[derive(Clone)]
pub struct ServerTls {
    current: Arc<RwLock<Current>>,
}

#[derive(Clone)]
struct Current {
    tcp: Arc<ServerConfig>,
    quic: Arc<QuicServerConfig>,
}

impl From<ServerConfig> for ServerTls {
    fn from(config: ServerConfig) -> Self {
        Self { current: Arc::new(RwLock::new(config.into())) }
    }
}

impl From<ServerConfig> for Current {
    /// `config` without ALPN: that is set here.
    fn from(config: ServerConfig) -> Self {
        let (mut tcp, mut quic) = (config.clone(), config);
        tcp.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        quic.alpn_protocols = vec![b"h3".to_vec()];
        let quic = QuicServerConfig::with_initial(Arc::new(quic), first_packets());
        Self { tcp: Arc::new(tcp), quic: Arc::new(quic.expect("this is the suite that it takes")) }
    }
}

/// The suite of QUIC's first packets, which no configuration chooses (RFC 9001 section 5.2).
fn first_packets() -> Suite {
    let SupportedCipherSuite::Tls13(suite) = TLS13_AES_128_GCM_SHA256 else { unreachable!("its name says so") };
    suite.quic_suite().expect("ring has it for QUIC")
}

impl ServerTls {
    /// Replaces it for all handshakes that begin from now on. `config` without ALPN.
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
