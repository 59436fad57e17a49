//! The certificates of the listeners for edges and operators, and of the client of other members. They are replaced without
//! closing a connection: when their files change, and on SIGHUP.
//!
//! All files are read before anything changes, so either all are replaced or none.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use anyhow::Context;
use prometheus::{IntGaugeVec, Registry};
use rustls::ServerConfig;
use weir_runtime::file_watch::Reload;
use weir_runtime::identity::TrustDomain;
use weir_runtime::last_reload::LastReload;
use weir_runtime::metric_families;
use weir_runtime::metric_families::unix_seconds;
use weir_runtime::serve::ServerTls;
use weir_runtime::tls::{self, ClientAuth, TlsError};

use crate::config::{Config, TlsConfig};
use crate::member_client::MemberClient;
use crate::metrics::Metrics;

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
    authority_ends: SystemTime,
}

/// The TLS files of all listeners, read.
pub(crate) struct LoadedCertificates {
    trust_domain: TrustDomain,
    edges: ListenerTls,
    /// `None`: there is no listener for operators.
    operators: Option<ListenerTls>,
    /// The ends of what is used with etcd, by the key of `[cluster] etcd`.
    etcd: Vec<(&'static str, SystemTime)>,
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
        let edges = ListenerTls::new(tls::server_config(&of_edges.certificate, &of_edges.key, required)?, of_edges)?;
        let operators = config
            .operator_listen
            .map(|_| ListenerTls::new(config.operator_api.server_tls(of_edges)?, &config.operator_api.tls(of_edges)));
        let operators = operators.transpose().context("[operator_api]")?;
        let mut etcd = Vec::new();
        if let Some(files) = config.cluster.as_ref().and_then(|cluster| cluster.etcd.as_ref()) {
            // Who connects to etcd says what is wrong with a file.
            let certificate = files.certificate.as_deref().and_then(|file| tls::not_after(file).ok());
            let authority = files.ca.as_deref().and_then(|file| tls::authority_ends(file).ok());
            let ends = [("certificate", certificate), ("ca", authority)];
            etcd.extend(ends.into_iter().filter_map(|(file, ends)| Some((file, ends?))));
        }
        Ok(Self { trust_domain: config.trust_domain.clone(), edges, operators, etcd })
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
    fn new(tls: ServerConfig, files: &TlsConfig) -> Result<Self, TlsError> {
        let shown = ListenerCertificate {
            certificate: files.certificate.clone(),
            not_after: tls::not_after(&files.certificate)?,
            authority_ends: tls::authority_ends(&files.client_ca)?,
        };
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
        /// When the authority of the listener's clients ends, in Unix seconds: of a file with several the last. Alert two weeks
        /// before.
        authority_not_after: IntGaugeVec = "weir_origin_authority_not_after_timestamp_seconds"
            { listener: ["edge", "operators"] };
        /// When the certificate that this origin shows etcd ends, or the authority of etcd's certificates, in Unix seconds.
        /// Alert two weeks before.
        etcd_not_after: IntGaugeVec = "weir_origin_etcd_certificate_not_after_timestamp_seconds" { file };
    }
}

impl CertificateMetrics {
    fn show_etcd(&self, ends: &[(&'static str, SystemTime)]) {
        for (file, ends) in ends {
            self.etcd_not_after.with_label_values(&[file]).set(unix_seconds(*ends));
        }
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
            tracing::warn!(%file, "the certificate has expired: clients will refuse to connect; replace it");
        }
        metrics.show_etcd(&read.etcd);
        let trust_domain = read.trust_domain;
        let server = |read: ListenerTls| ServerTls::new(read.tls, trust_domain.clone());
        let (edges, operators) = (server(read.edges), read.operators.map(server));
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
        self.metrics.show_etcd(&read.etcd);
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
            let families =
                [(&self.metrics.not_after, shown.not_after), (&self.metrics.authority_not_after, shown.authority_ends)];
            for (family, ends) in families {
                family.with_label_values(&[listener]).set(unix_seconds(ends));
            }
        }
    }

    fn shown(&self) -> MutexGuard<'_, Vec<(&'static str, ListenerCertificate)>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The files that are read.
pub(crate) fn files(config: &Config) -> Vec<PathBuf> {
    let operators = config.operator_listen.map(|_| config.operator_api.tls(&config.tls));
    let each = [Some(config.tls.clone()), operators].into_iter().flatten();
    let etcd = config.cluster.iter().filter_map(|cluster| cluster.etcd.as_ref());
    let etcd = etcd.flat_map(|files| files.certificate.iter().chain(&files.ca).cloned());
    each.flat_map(|tls| [tls.certificate, tls.key, tls.client_ca]).chain(etcd).collect()
}

/// All that uses certificates of the configuration.
pub(crate) struct CertificateUsers {
    /// What was applied last.
    config: Mutex<Config>,
    certificates: Arc<Certificates>,
    members: Option<Arc<MemberClient>>,
    metrics: Metrics,
    last_reload: LastReload,
}

impl CertificateUsers {
    pub(crate) fn new(
        config: Config,
        certificates: Arc<Certificates>,
        members: Option<Arc<MemberClient>>,
        (metrics, last_reload): (Metrics, LastReload),
    ) -> Self {
        Self { config: Mutex::new(config), certificates, members, metrics, last_reload }
    }

    /// Applies the certificates of a changed configuration. Blocks.
    ///
    /// # Errors
    /// A file cannot be used, or a certificate is not valid now. Nothing is changed then.
    pub(crate) fn apply(&self, now: Config) -> anyhow::Result<()> {
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        // A change of `operator_listen` needs a restart.
        let now = Config { operator_listen: config.operator_listen, ..now };
        let read = LoadedCertificates::of(&now)?;
        read.check_validity(SystemTime::now())?;
        if let Some(members) = &self.members {
            members.reload(&now.tls)?;
        }
        self.certificates.replace(read);
        *config = now;
        Ok(())
    }

    /// The configuration that applies.
    pub(crate) fn config(&self) -> Config {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Reload for CertificateUsers {
    fn files(&self) -> Vec<PathBuf> {
        files(&self.config())
    }

    fn apply(&self) -> anyhow::Result<()> {
        CertificateUsers::apply(self, self.config())
    }

    fn report(&self, outcome: &anyhow::Result<()>) {
        let result = match outcome {
            Ok(()) => {
                tracing::info!("certificates and keys were reloaded for new connections");
                "applied"
            }
            Err(error) => {
                tracing::error!(
                    error = format!("{error:#}"),
                    "changed certificates or keys cannot be used; the old ones stay in use"
                );
                "refused"
            }
        };
        self.metrics.reloads.with_label_values(&[result]).inc();
        self.last_reload.of_files(outcome);
    }
}

fn expired<'s>(
    shown: &'s [(&'static str, ListenerCertificate)],
    now: SystemTime,
) -> impl Iterator<Item = &'s (&'static str, ListenerCertificate)> {
    shown.iter().filter(move |(_, shown)| shown.not_after < now)
}
