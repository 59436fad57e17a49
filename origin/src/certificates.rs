//! The certificates of the listeners for edges and operators. SIGHUP replaces them without closing a connection.
//!
//! All files are read before anything changes, so either all are replaced or none.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use anyhow::Context;
use prometheus::{IntGaugeVec, Registry};
use rustls::ServerConfig;
use weir_runtime::metric_families;
use weir_runtime::serve::ServerTls;
use weir_runtime::tls::{self, ClientAuth, TlsError};

use crate::config::Config;

/// The TLS files of a listener, read.
pub(crate) struct ListenerTls {
    tls: ServerConfig,
    shown: ListenerCertificate,
}

/// The certificate of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ListenerCertificate {
    certificate: PathBuf,
    not_after: SystemTime,
}

/// The TLS files of all listeners, read.
pub(crate) struct LoadedCertificates {
    edges: ListenerTls,
    /// `None`: there is no listener for operators.
    operators: Option<ListenerTls>,
}

impl LoadedCertificates {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// A file cannot be read, or a key does not match its certificate.
    pub(crate) fn of(config: &Config) -> anyhow::Result<Self> {
        let of_edges = &config.tls;
        config.check_member_certificate().context("[cluster] needs another [tls] certificate")?;
        let required = ClientAuth::Required { ca: &of_edges.client_ca };
        let edges = ListenerTls::new(
            tls::server_config(&of_edges.certificate, &of_edges.key, required)?,
            &of_edges.certificate,
        )?;
        let operators = config.operator_listen.map(|_| {
            let certificate = config.operator.tls(of_edges).certificate;
            ListenerTls::new(config.operator.server_tls(of_edges)?, &certificate)
        });
        Ok(Self { edges, operators: operators.transpose().context("[operator]")? })
    }

    /// Checks that all certificates are valid at a time.
    ///
    /// # Errors
    /// A certificate has expired, or is not valid yet.
    pub(crate) fn check_validity(&self, now: SystemTime) -> Result<(), TlsError> {
        self.each().try_for_each(|(_, shown)| tls::check_validity(&shown.certificate, now))
    }

    fn each(&self) -> impl Iterator<Item = (&'static str, &ListenerCertificate)> {
        let operators = self.operators.iter().map(|read| (OPERATORS, &read.shown));
        [(EDGES, &self.edges.shown)].into_iter().chain(operators)
    }
}

impl ListenerTls {
    fn new(tls: ServerConfig, certificate: &Path) -> Result<Self, TlsError> {
        let shown =
            ListenerCertificate { certificate: certificate.to_owned(), not_after: tls::not_after(certificate)? };
        Ok(Self { tls, shown })
    }
}

/// The listeners, as labels of metrics.
const EDGES: &str = "edge";
const OPERATORS: &str = "operators";

metric_families! {
    /// The families of certificates.
    pub(crate) struct CertificateMetrics {
        /// When the listener's certificate ends, in Unix seconds. Alert two weeks before.
        not_after: IntGaugeVec = "weir_origin_certificate_not_after_timestamp_seconds" { listener: ["edge", "operators"] };
    }
}

/// The current certificates of the listeners.
pub(crate) struct Certificates {
    edges: ServerTls,
    operators: Option<ServerTls>,
    shown: Mutex<Vec<(&'static str, ListenerCertificate)>>,
    metrics: CertificateMetrics,
}

impl Certificates {
    /// Starts with the certificates that were read at the start.
    ///
    /// # Errors
    /// The metrics were registered before.
    pub(crate) fn new(read: LoadedCertificates, registry: &Registry) -> prometheus::Result<Self> {
        let metrics = CertificateMetrics::register(registry)?;
        let shown: Vec<_> = read.each().map(|(listener, shown)| (listener, shown.clone())).collect();
        for file in expired(&shown, SystemTime::now()).map(|(_, shown)| shown.certificate.display()) {
            tracing::warn!(%file, "the certificate has expired: clients will refuse to connect; replace it and send SIGHUP");
        }
        let (edges, operators) = (read.edges.tls.into(), read.operators.map(|read| read.tls.into()));
        let certificates = Self { edges, operators, shown: Mutex::new(shown), metrics };
        certificates.update_metrics();
        Ok(certificates)
    }

    /// The TLS configuration of the listener for edges.
    pub(crate) fn of_edges(&self) -> ServerTls {
        self.edges.clone()
    }

    /// The TLS configuration of the listener for operators.
    pub(crate) fn of_operators(&self) -> Option<ServerTls> {
        self.operators.clone()
    }

    /// Replaces the certificates for all later handshakes.
    pub(crate) fn replace(&self, read: LoadedCertificates) {
        let now = read.each().map(|(listener, shown)| (listener, shown.clone())).collect();
        self.edges.replace(read.edges.tls);
        if let (Some(operators), Some(read)) = (&self.operators, read.operators) {
            operators.replace(read.tls);
        }
        *self.shown() = now;
        self.update_metrics();
    }

    /// Whether the certificate for edges has expired, and whether that for operators has.
    pub(crate) fn have_expired(&self, now: SystemTime) -> (bool, bool) {
        let shown = self.shown();
        let of = |wanted| expired(&shown, now).any(|(listener, _)| *listener == wanted);
        (of(EDGES), of(OPERATORS))
    }

    fn update_metrics(&self) {
        for (listener, shown) in self.shown().iter() {
            let ends = shown.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            self.metrics
                .not_after
                .with_label_values(&[listener])
                .set(i64::try_from(ends.as_secs()).unwrap_or(i64::MAX));
        }
    }

    fn shown(&self) -> MutexGuard<'_, Vec<(&'static str, ListenerCertificate)>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn expired<'s>(
    shown: &'s [(&'static str, ListenerCertificate)],
    now: SystemTime,
) -> impl Iterator<Item = &'s (&'static str, ListenerCertificate)> {
    shown.iter().filter(move |(_, shown)| shown.not_after < now)
}
