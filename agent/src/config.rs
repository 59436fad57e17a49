//! The configuration of an agent: `agent.toml`, flags and environment variables.

mod hook;
mod releases;
mod service;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use weir_protocol::labels::Labels;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::name_glob::{LabelGlob, NameGlob};
use weir_runtime::admin::AdminConfig;
use weir_runtime::config::{self, ConfigError, duration, size};
use weir_runtime::host_name::host_name;
use weir_runtime::http_client::ProxyUrl;

pub use self::hook::{HookCommand, SignalConfig, SignalName, WebhookConfig};
pub use self::releases::ReleasesConfig;
pub use self::service::ServiceConfig;
pub use crate::edge_url::EdgeUrl;

/// The shortest interval that is accepted for polls and refreshes.
pub const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The longest duration that is accepted; a longer one is probably a mistake.
pub const MAX_INTERVAL: Duration = Duration::from_secs(366 * 24 * 3600);

/// The shortest `max_proof_age` but 0: freshness statements are requested once a minute.
pub const MIN_PROOF_AGE: Duration = Duration::from_secs(120);

/// The only `spread` that edges shorten: another one was chosen.
pub const DEFAULT_SPREAD: Duration = Duration::from_secs(10);

/// The largest accepted `max_downloads`.
pub const MAX_DOWNLOADS: usize = 1024;

/// The keys that SIGHUP applies.
pub const RELOADABLE: &[&str] = &[
    "edges",
    "edge_order",
    "edge_retry_interval",
    "ca",
    "client_certificate",
    "client_key",
    "token_file",
    "http",
    "h3_retry_interval",
    "h3_connect_timeout",
    "max_connection_age",
    "proxy",
    "idle_timeout",
    "services",
    "allow",
    "service",
];

/// The versions of HTTP for requests to edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum HttpMode {
    /// HTTP/3, or HTTP/2 while UDP is blocked; HTTP/3 is retried.
    #[default]
    Auto,
    /// HTTP/3 only.
    H3,
    /// HTTP/2 only.
    H2,
}

/// The order in which an agent prefers its edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgeOrder {
    /// By a hash of the agent's name and the edge's URL: agents with the same list spread over all edges.
    #[default]
    Spread,
    /// As listed, best first.
    Listed,
}

/// Which services are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ServiceList {
    /// Those of the tables `[[service]]`.
    #[default]
    Listed,
    /// Those that operators assign to this agent.
    Assigned,
}

/// Public keys of origins, by patterns of services: `trust = [{ services = "*", keys = "origin.pub" }]`. With an entry, the
/// agent accepts only publications that one of the entry's keys signed, and rejects services that no entry names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustConfig {
    /// Pattern of services. The first entry that matches a service decides.
    pub services: NameGlob,
    /// File with the public keys of their origins, as `weir-origin keys` prints them. Read again when it changes.
    pub keys: PathBuf,
}

/// The configuration of an agent. Each key can also be given on the command line or in the environment, if the command line
/// has a flag for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The agent's name. It spreads a fleet over edges, and its polls and refreshes over time. Default: the host name.
    pub name: NodeName,
    /// Listener of `/livez`, `/readyz`, `/metrics` and `/status`: plain HTTP.
    pub admin_listen: Option<SocketAddr>,
    /// Access to `admin_listen`.
    pub admin: AdminConfig,
    /// Read this file again when it changes, as SIGHUP does. A changed file that names more than a tenth of the services no
    /// more needs the signal, because it may be cut off.
    pub watch_config: bool,
    /// Required. URLs of edges: `https://host[:port]`. The agent uses the best; while that fails, the next one that works.
    pub edges: Vec<EdgeUrl>,
    /// Which of the edges is best.
    pub edge_order: EdgeOrder,
    /// How long the best edge is not tried after it failed, ±50 %; doubled up to ten times this while it keeps failing. At
    /// least `1s`.
    #[serde(with = "duration")]
    pub edge_retry_interval: Duration,
    /// Required. PEM file of the authority that signs the edges' certificates. No other is trusted.
    pub ca: PathBuf,
    /// PEM file of the agent's certificate, for edges that need one; together with `client_key`.
    pub client_certificate: Option<PathBuf>,
    /// PEM file of its private key.
    pub client_key: Option<PathBuf>,
    /// File with the agent's bearer token, for edges that need one. Read for each request.
    pub token_file: Option<PathBuf>,
    /// Required. Directory with one folder for each service. One agent at a time uses it.
    pub root: PathBuf,
    /// Time between polls, ±10 %. At least `1s`. After errors: 1 s, doubled up to this.
    #[serde(with = "duration")]
    pub poll_interval: Duration,
    /// Time between forced refreshes, ±10 %: a full download, compared with the files on disk. At least `1s`.
    #[serde(with = "duration")]
    pub refresh_interval: Duration,
    /// Versions of HTTP.
    pub http: HttpMode,
    /// How long HTTP/3 is not tried after it failed; doubled up to ten times this. At least `1s`.
    #[serde(with = "duration")]
    pub h3_retry_interval: Duration,
    /// How long a QUIC handshake may take. With `http = "auto"` requests use HTTP/2 after 300 ms, while it goes on.
    #[serde(with = "duration")]
    pub h3_connect_timeout: Duration,
    /// After this, or up to a quarter earlier by the agent's name, new requests use a new connection, for which the edge's
    /// name is looked up again. Requests in flight end on the old one. At least `1s`.
    #[serde(with = "duration")]
    pub max_connection_age: Duration,
    /// Proxy to the edges: `http://[user:password@]host[:port]`. It opens a tunnel to each (CONNECT), so HTTP/2 is used.
    /// Variables such as `HTTPS_PROXY` are not read.
    pub proxy: Option<ProxyUrl>,
    /// How long a poll waits for the response's headers. At least `1s`.
    #[serde(with = "duration")]
    pub request_timeout: Duration,
    /// How long a download waits for the response's headers: the edge may have to fill its cache first. At least `1s`.
    #[serde(with = "duration")]
    pub fetch_timeout: Duration,
    /// How long a download may receive nothing. At least `1s`. A download slower than 1 KiB/s after its first minute fails as
    /// well.
    #[serde(with = "duration")]
    pub idle_timeout: Duration,
    /// How long each hook may take: `exec`, `check`, `touch`, `signal` and `webhook`. Then the process group of a command gets
    /// SIGTERM, and SIGKILL 5 s later. At least `1s`.
    #[serde(with = "duration")]
    pub exec_timeout: Duration,
    /// Releases on disk for each service. The current and the previous one are always kept. At least 1.
    pub keep_releases: usize,
    /// Let the group of `root` write: files have mode 0664 or 0775, directories 2775. Otherwise 0644, 0755 and 0755, less the
    /// umask.
    pub group_write: bool,
    /// How releases are written.
    pub releases: ReleasesConfig,
    /// Largest tarball, uncompressed.
    #[serde(with = "size")]
    pub max_tarball_bytes: ByteSize,
    /// Most entries of a tarball, with the folders above them. At least 1.
    pub max_files: u64,
    /// Downloads at a time, over all services. 1 to 1,024. One below 64 KiB/s after ten minutes is interrupted when others
    /// wait, and continued after them.
    pub max_downloads: usize,
    /// Give metrics of services the label `service`. Otherwise counters are sums, and times are those of the worst
    /// service.
    pub metrics_by_service: bool,
    /// The keys that may sign.
    pub trust: Vec<TrustConfig>,
    /// With `trust`: how long a service may lack a new freshness statement, or an announced update may be missing, before the
    /// service is degraded. `0s`: no statements are requested.
    #[serde(with = "duration")]
    pub max_proof_age: Duration,
    /// `"listed"`: the services of the tables `[[service]]`. `"assigned"`: those that operators assign to this agent, which its
    /// edges must know by a token or a certificate. The agent starts and stops following them while it runs. A service that is
    /// no longer assigned keeps its directory, and runs no hook.
    #[serde(rename = "services")]
    pub list: ServiceList,
    /// Patterns of services that the agent may follow, among those that are assigned or match a pattern. Empty: all.
    pub allow: Vec<NameGlob>,
    /// Longest delay between an event of an edge and the download. A hash of the agent's and the service's name decides the
    /// delay. `0s`: no delay. Edges with few agents shorten the default (`agents.updates_per_second` there), and no other value.
    #[serde(with = "duration")]
    pub spread: Duration,
    /// How long a followed service may be missing from the lists of the edge. Then the agent queries all edges, and stops
    /// following it if none lists it. Until then it is unassigned, which degrades the agent. With `trust` all edges must
    /// answer. At most a year.
    #[serde(with = "duration")]
    pub unassign_after: Duration,
    /// How long the directory of a service stays, with its pin, after the service is no longer followed. `0s`: for ever.
    #[serde(with = "duration")]
    pub remove_unassigned_after: Duration,
    /// Labels that the agent reports, for display only: `labels = { rack = "b2" }`. Labels that assignments use come from its
    /// token or from operators. Hooks with `labels = true` get both.
    pub labels: Labels,
    /// Keys, or patterns of keys, of the labels of edges that hooks with `labels = true` get. Empty: all keys; with `trust` none,
    /// because edges send them unsigned.
    pub labels_from_edge: Vec<LabelGlob>,
    /// Services to follow.
    #[serde(rename = "service")]
    pub services: Vec<ServiceConfig>,
}

impl Default for Config {
    /// Every key but `edges`, `ca`, `root` and the services, which have no default.
    fn default() -> Self {
        Self {
            name: host_name(),
            admin_listen: None,
            admin: AdminConfig::default(),
            watch_config: false,
            edges: Vec::new(),
            edge_order: EdgeOrder::Spread,
            edge_retry_interval: Duration::from_secs(60),
            ca: PathBuf::new(),
            client_certificate: None,
            client_key: None,
            token_file: None,
            root: PathBuf::new(),
            poll_interval: Duration::from_secs(30),
            refresh_interval: Duration::from_secs(2 * 3600),
            http: HttpMode::Auto,
            h3_retry_interval: Duration::from_secs(60),
            h3_connect_timeout: Duration::from_secs(5),
            max_connection_age: Duration::from_secs(3600),
            proxy: None,
            request_timeout: Duration::from_secs(10),
            fetch_timeout: Duration::from_secs(120),
            idle_timeout: Duration::from_secs(10),
            exec_timeout: Duration::from_secs(300),
            keep_releases: 3,
            group_write: false,
            releases: ReleasesConfig::default(),
            max_tarball_bytes: ByteSize::gib(4),
            max_files: 1_000_000,
            max_downloads: 4,
            metrics_by_service: false,
            trust: Vec::new(),
            max_proof_age: Duration::from_secs(600),
            list: ServiceList::Listed,
            allow: Vec::new(),
            spread: DEFAULT_SPREAD,
            unassign_after: Duration::from_secs(600),
            remove_unassigned_after: Duration::ZERO,
            labels: Labels::default(),
            labels_from_edge: Vec::new(),
            services: Vec::new(),
        }
    }
}

impl Config {
    /// A configuration with defaults, for programs that run an agent in their own process.
    pub fn new(edges: Vec<EdgeUrl>, ca: impl Into<PathBuf>, root: impl Into<PathBuf>) -> Self {
        Self { edges, ca: ca.into(), root: root.into(), ..Self::default() }
    }

    /// Reads a file. Relative paths are relative to it.
    ///
    /// # Errors
    /// It cannot be read, has an unknown key, or is invalid.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let config = Self::read(path)?;
        config.validate()?;
        Ok(config)
    }

    /// Reads a file without validating it, because flags may still override it.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = config::read(path)?;
        let base = &config::base_dir(path);
        let Self { ca, root, client_certificate, client_key, token_file, admin, trust, services, .. } = &mut config;
        let pinned = trust.iter_mut().map(|entry| &mut entry.keys);
        let optional = [client_certificate, client_key, token_file, &mut admin.metrics_token_file]
            .into_iter()
            .flatten()
            .chain(pinned);
        // An empty path is a missing key, which `validate` reports.
        let hooks = services.iter_mut().flat_map(ServiceConfig::paths);
        for path in [ca, root].into_iter().chain(optional).chain(hooks).filter(|path| !path.as_os_str().is_empty()) {
            config::resolve(base, path);
        }
        Ok(config)
    }

    /// What runs before and after a switch of a service, under its own name.
    pub(crate) fn hooks_of(&self, service: &ServiceName) -> ServiceConfig {
        let by_name = self.services.iter().find(|entry| entry.name.as_str() == service.as_str());
        let found = by_name.or_else(|| self.services.iter().find(|entry| entry.name.matches(service.as_str())));
        let own = ServiceConfig::new(service);
        match found {
            Some(entry) => ServiceConfig { name: own.name, ..entry.clone() },
            None => own,
        }
    }

    /// The services that the tables name, unless they only have the hooks of what is assigned.
    pub(crate) fn named(&self) -> impl Iterator<Item = ServiceName> {
        let is_listed = self.list == ServiceList::Listed;
        self.services.iter().filter(move |_| is_listed).filter_map(ServiceConfig::service)
    }

    /// The socket of `status`, in the root, which several agents may share.
    pub fn status_socket(&self) -> PathBuf {
        self.root.join(format!(".status-{}.sock", self.name))
    }

    /// Whether edges say which services there are.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.list == ServiceList::Assigned || self.services.iter().any(|entry| entry.service().is_none())
    }

    /// Why HTTP/3 is not used; `None` if it is.
    pub(crate) fn no_http3(&self) -> Option<&'static str> {
        match (&self.proxy, self.http) {
            (Some(_), _) => Some("only HTTP/2 goes through a `proxy`"),
            (None, HttpMode::H2) => Some("`http` is \"h2\""),
            (None, HttpMode::Auto | HttpMode::H3) => None,
        }
    }

    /// Validates all keys.
    ///
    /// # Errors
    /// The message names each invalid key.
    pub fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::all(self.errors().into_iter().map(ConfigError::invalid).collect())
    }

    fn errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let mut refuse = |is_wrong: bool, why: &str| errors.extend(is_wrong.then(|| why.to_owned()));
        refuse(self.edges.is_empty(), "`edges` is missing or empty: name at least one, or give `--edge URL`");
        refuse(self.ca.as_os_str().is_empty(), "`ca` is missing: name a PEM file, or give `--ca FILE`");
        refuse(self.root.as_os_str().is_empty(), "`root` is missing: name a folder, or give `--root DIR`");
        refuse(
            self.services.is_empty() && self.list == ServiceList::Listed,
            "there is no service to follow: add a `[[service]]`, or `--service NAME`, or set `services = \"assigned\"`",
        );
        for (index, service) in self.services.iter().enumerate() {
            let is_twice = self.services[..index].iter().any(|other| other.name == service.name);
            refuse(is_twice, &format!("the service `{}` is listed twice", service.name));
            let is_name = service.service().is_some() || service.name.as_str().contains('*');
            refuse(!is_name, &format!("`{}` is neither the name of a service nor a pattern with `*`", service.name));
            service.hook_errors().iter().for_each(|error| refuse(true, error));
            let is_named = service
                .service()
                .is_none_or(|name| self.trust.iter().any(|entry| entry.services.matches(name.as_str())));
            let why =
                format!("no entry of `trust` names the service `{}`: nothing of it would be accepted", service.name);
            refuse(!self.trust.is_empty() && !is_named, &why);
        }
        let of_services = ServiceConfig::cycle_error(&self.services).into_iter().chain(self.labels_error());
        of_services.for_each(|error| refuse(true, &error));
        let has_no_file = self.trust.iter().any(|entry| entry.keys.as_os_str().is_empty());
        refuse(has_no_file, "an entry of `trust` has no `keys`: name the file of the origin's public keys");
        let is_too_short = !self.max_proof_age.is_zero() && self.max_proof_age < MIN_PROOF_AGE;
        refuse(
            is_too_short,
            "`max_proof_age` is shorter than 2m: a statement is requested once a minute (`0s`: never)",
        );
        refuse(self.spread > MAX_INTERVAL, "`spread` is longer than a year");
        refuse(self.unassign_after > MAX_INTERVAL, "`unassign_after` is longer than a year");
        refuse(self.remove_unassigned_after > MAX_INTERVAL, "`remove_unassigned_after` is longer than a year");
        refuse(self.max_proof_age > MAX_INTERVAL, "`max_proof_age` is longer than a year");
        for (key, value) in [
            ("poll_interval", self.poll_interval),
            ("refresh_interval", self.refresh_interval),
            ("edge_retry_interval", self.edge_retry_interval),
            ("h3_retry_interval", self.h3_retry_interval),
            ("max_connection_age", self.max_connection_age),
            ("request_timeout", self.request_timeout),
            ("fetch_timeout", self.fetch_timeout),
            ("idle_timeout", self.idle_timeout),
            ("exec_timeout", self.exec_timeout),
        ] {
            refuse(value < MIN_INTERVAL, &format!("`{key}` is shorter than 1s"));
            refuse(value > MAX_INTERVAL, &format!("`{key}` is longer than a year"));
        }
        refuse(self.h3_connect_timeout > MAX_INTERVAL, "`h3_connect_timeout` is longer than a year");
        refuse(self.h3_connect_timeout.is_zero(), "`h3_connect_timeout` is 0: to use HTTP/2 only, set `http = \"h2\"`");
        refuse(
            self.http == HttpMode::H3 && self.proxy.is_some(),
            "`http` is \"h3\" with a `proxy`, through which only HTTP/2 goes: set `http = \"auto\"`, or no proxy",
        );
        refuse(self.keep_releases == 0, "`keep_releases` is 0: the current release is always kept, so at least 1");
        let is_zero = self.max_downloads == 0 || self.max_tarball_bytes.as_u64() == 0 || self.max_files == 0;
        refuse(is_zero, "`max_downloads`, `max_tarball_bytes` and `max_files` must be at least 1");
        refuse(self.max_downloads > MAX_DOWNLOADS, &format!("`max_downloads` is more than {MAX_DOWNLOADS}"));
        let is_half = self.client_certificate.is_some() != self.client_key.is_some();
        refuse(is_half, "`client_certificate` and `client_key` must be set together");
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_missing_ones_have_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        let text = r#"
            name = "cluster-1"
            admin_listen = "127.0.0.1:7492"
            edges = ["https://127.0.0.1:7443", "https://edge.example"]
            ca = "ca.pem"
            root = "agent-data"
            poll_interval = "30s"
            refresh_interval = "2h"
            http = "auto"
            [[service]]
            name = "shop-prod"
            exec = "kubectl apply -k ."
        "#;
        std::fs::write(&path, text).unwrap();
        let config = Config::load(&path).unwrap();
        let mut expected = Config::new(
            vec!["https://127.0.0.1:7443".parse().unwrap(), "https://edge.example:443".parse().unwrap()],
            dir.path().join("ca.pem"),
            dir.path().join("agent-data"),
        );
        expected.name = "cluster-1".parse().unwrap();
        expected.admin_listen = Some("127.0.0.1:7492".parse().unwrap());
        expected.services = vec![ServiceConfig {
            exec: Some("kubectl apply -k .".into()),
            ..ServiceConfig::new(&"shop-prod".parse().unwrap())
        }];
        assert_eq!(config, expected);

        std::fs::write(&path, format!("max_tarball_bytes = '1MiB'\n{text}")).unwrap();
        assert_eq!(Config::load(&path).unwrap().max_tarball_bytes, ByteSize::mib(1));
        for (wrong, named) in [
            (format!("pol_interval = '1s'\n{text}"), "pol_interval"),
            (text.replace("30s", "10ms"), "poll_interval"),
            (text.replace("2h", "500000000000y"), "refresh_interval"),
            (format!("max_downloads = {}\n{text}", i64::MAX), "max_downloads"),
            (text.replace("https://edge.example", "http://edge.example"), "https"),
            (format!("{text}\n[[service]]\nname = 'shop-prod'"), "twice"),
            (format!("{text}\nexe = 'x'"), "exe"),
            (format!("client_key = 'k'\n{text}"), "client_certificate"),
            (text.replace("\"auto\"", "\"h3\"\nproxy = 'http://proxy'"), "with a `proxy`"),
            (format!("proxy = 'https://user:secret@proxy'\n{text}"), "the URL of a proxy"),
            (format!("trust = [{{ services = 'bank', keys = 'k' }}]\n{text}"), "names the service `shop-prod`"),
            (format!("max_proof_age = '1m'\n{text}"), "max_proof_age"),
            (
                format!("{text}\ndepends_on = ['b']\n[[service]]\nname = 'b'\ndepends_on = ['shop-prod']"),
                "b → shop-prod → b",
            ),
            (format!("trust = [{{ services = '*', keys = 'k' }}]\n{text}\nlabels = true"), "`labels_from_edge`"),
            (format!("labels_from_edge = ['ri ng']\n{text}"), "a pattern over keys of labels"),
            (format!("{text}\ncheck = 1"), "a string for `sh -c`, or a list"),
            (format!("{text}\ncheck = []"), "`check` of the service `shop-prod` is empty"),
            (format!("{text}\nwebhook = {{ url = 'ftp://x' }}"), "`http://` or `https://`"),
            (format!("{text}\nwebhook = {{ url = 'https://user:secret@x' }}"), "a user name"),
            (format!("{text}\nsignal = {{ pid_file = 'p', signal = 'kill' }}"), "kill"),
        ] {
            std::fs::write(&path, &wrong).unwrap();
            let error = Config::load(&path).unwrap_err().to_string();
            assert!(error.contains(named) && !error.contains("secret"), "{error}");
        }
        let hooks =
            "check = ['/bin/true']\ntouch = 'touched'\nsignal = { pid_file = 'pid' }\nwebhook = { url = 'http://x' }";
        std::fs::write(&path, format!("{text}\n{hooks}")).unwrap();
        let service = Config::load(&path).unwrap().services.remove(0);
        assert_eq!(service.check, Some(HookCommand::Program(vec!["/bin/true".to_owned()])));
        assert_eq!(service.touch, Some(dir.path().join("touched")));
        let signal = SignalConfig { pid_file: dir.path().join("pid"), signal: SignalName::Hup };
        assert_eq!(service.signal, Some(signal));
        assert_eq!(service.webhook.unwrap().timeout, Duration::from_secs(10));
    }
}
