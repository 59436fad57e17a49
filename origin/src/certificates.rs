//! The certificates that edges and operators see. SIGHUP replaces them without dropping a connection.
//!
//! All files are read before anything changes: they are taken over together, or not at all.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, bail};
use prometheus::{IntGaugeVec, Registry};
use rustls::ServerConfig;
use weir_runtime::metric_families;
use weir_runtime::serve::ServerTls;
use weir_runtime::tls::{self, ClientAuth, TlsError};

use crate::config::Config;

/// The files of one listener as they are now.
pub(crate) struct Read {
    tls: ServerConfig,
    shown: Shown,
}

/// What a listener shows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    certificate: PathBuf,
    not_after: SystemTime,
}

/// Those of all listeners.
pub(crate) struct ReadAll {
    edges: Read,
    /// None: operators connect nowhere.
    operators: Option<Read>,
}

impl ReadAll {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// One cannot be read, or they do not fit each other.
    pub(crate) fn of(config: &Config) -> anyhow::Result<Self> {
        let of_edges = &config.tls;
        let required = ClientAuth::Required { ca: &of_edges.client_ca };
        let edges =
            Read::new(tls::server_config(&of_edges.certificate, &of_edges.key, required)?, &of_edges.certificate)?;
        let operators = config.operator_listen.map(|_| {
            let certificate = config.operator.tls(of_edges).certificate;
            Read::new(config.operator.server_tls(of_edges)?, &certificate)
        });
        Ok(Self { edges, operators: operators.transpose().context("[operator]")? })
    }

    /// Whether they may take the place of others.
    ///
    /// # Errors
    /// A certificate has ended.
    pub(crate) fn check_ends(&self, now: SystemTime) -> anyhow::Result<()> {
        match self.each().find(|(_, shown)| shown.not_after < now) {
            None => Ok(()),
            Some((_, Shown { certificate, .. })) => {
                bail!("the certificate {} has ended: nobody would connect who looks at it", certificate.display())
            }
        }
    }

    fn each(&self) -> impl Iterator<Item = (&'static str, &Shown)> {
        let operators = self.operators.iter().map(|read| (OPERATORS, &read.shown));
        [(EDGES, &self.edges.shown)].into_iter().chain(operators)
    }
}

impl Read {
    fn new(tls: ServerConfig, certificate: &Path) -> Result<Self, TlsError> {
        let shown = Shown { certificate: certificate.to_owned(), not_after: tls::not_after(certificate)? };
        Ok(Self { tls, shown })
    }
}

/// The listeners, as metrics call them.
const EDGES: &str = "edge";
const OPERATORS: &str = "operators";

metric_families! {
    /// The families of certificates.
    pub(crate) struct CertificateMetrics {
        /// When the listener's certificate ends, in Unix seconds. Alert two weeks before.
        not_after: IntGaugeVec = "weir_origin_certificate_not_after_timestamp_seconds" { listener: ["edge", "operators"] };
    }
}

/// What listeners show now.
pub(crate) struct Certificates {
    edges: ServerTls,
    operators: Option<ServerTls>,
    shown: Mutex<Vec<(&'static str, Shown)>>,
    metrics: CertificateMetrics,
}

impl Certificates {
    /// Begins with what was read at the start.
    ///
    /// # Errors
    /// The metrics were registered before.
    pub(crate) fn new(read: ReadAll, registry: &Registry) -> prometheus::Result<Self> {
        let metrics = CertificateMetrics::register(registry)?;
        let shown: Vec<_> = read.each().map(|(listener, shown)| (listener, shown.clone())).collect();
        for file in ended(&shown, SystemTime::now()).map(|(_, shown)| shown.certificate.display()) {
            tracing::warn!(%file, "the certificate has ended: nobody will connect who looks at it");
        }
        let (edges, operators) = (read.edges.tls.into(), read.operators.map(|read| read.tls.into()));
        let certificates = Self { edges, operators, shown: Mutex::new(shown), metrics };
        certificates.count();
        Ok(certificates)
    }

    /// What edges see.
    pub(crate) fn of_edges(&self) -> ServerTls {
        self.edges.clone()
    }

    /// What operators see.
    pub(crate) fn of_operators(&self) -> Option<ServerTls> {
        self.operators.clone()
    }

    /// Takes over what was read, for all handshakes that begin from now on.
    pub(crate) fn replace(&self, read: ReadAll) {
        let now = read.each().map(|(listener, shown)| (listener, shown.clone())).collect();
        self.edges.replace(read.edges.tls);
        if let (Some(operators), Some(read)) = (&self.operators, read.operators) {
            operators.replace(read.tls);
        }
        *self.shown() = now;
        self.count();
    }

    /// The listeners whose certificate has ended: whether that of edges, and whether that of operators.
    pub(crate) fn have_ended(&self, now: SystemTime) -> (bool, bool) {
        let shown = self.shown();
        let of = |wanted| ended(&shown, now).any(|(listener, _)| *listener == wanted);
        (of(EDGES), of(OPERATORS))
    }

    fn count(&self) {
        for (listener, shown) in self.shown().iter() {
            let ends = shown.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            self.metrics
                .not_after
                .with_label_values(&[listener])
                .set(i64::try_from(ends.as_secs()).unwrap_or(i64::MAX));
        }
    }

    fn shown(&self) -> MutexGuard<'_, Vec<(&'static str, Shown)>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ended<'s>(shown: &'s [(&'static str, Shown)], now: SystemTime) -> impl Iterator<Item = &'s (&'static str, Shown)> {
    shown.iter().filter(move |(_, shown)| shown.not_after < now)
}
