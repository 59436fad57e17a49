//! `edge.toml`: every key, its default, and what is refused.

mod admin;
mod agents;
mod auth;
mod freshness;
mod issuer;
mod key_hosts;
mod memory;
mod origin;
mod peers;
mod push;
mod tls;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_protocol::name::NodeName;
use weir_runtime::config::{ConfigError, base_dir, duration, read_with_keys, resolve};
use weir_runtime::host_name::host_name;
use weir_runtime::identity::TrustDomain;
use weir_runtime::memory_limit::memory_limit;
use weir_runtime::serve::LogConfig;
use weir_runtime::shutdown::DEFAULT_DRAIN_DEADLINE;

pub use admin::AdminConfig;
pub use agents::AgentsConfig;
pub use auth::{AuthConfig, AuthMode, CertificateRule};
pub use freshness::{FreshnessConfig, FreshnessForConfig};
pub use issuer::{IssuerConfig, KeySource};
pub use key_hosts::KeyHosts;
pub use origin::OriginConfig;
pub(crate) use origin::authority;
pub use peers::PeersConfig;
pub use push::PushConfig;
pub use tls::TlsConfig;
pub use weir_cache::CacheConfig;

/// The keys that SIGHUP applies.
pub const RELOADABLE: &[&str] = &["auth.keys", "auth.deny"];

/// The configuration of an edge: its listeners. SIGHUP reads the file again, and logs which changed keys need a restart. The
/// files that `[tls]`, `auth.client_ca`, `peers.ca`, `[[origin]]` and `[[shield]]` name are read again when they change, and
/// on SIGHUP. A reload is all or nothing. In a control group (version 2) with a limit of memory, as in a container, defaults of
/// `cache.memory`, `in_flight`, `service_bytes`, `decoders` and `encoders`, of `auth.fleet_bytes` and of `agents.observed_bytes` are
/// lower: all seven together allow three quarters of the limit.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The edge's name, in `Cache-Status` and in logs, and where origins say which edge reports an agent: as `<identity>~<name>`,
    /// or as the identity of its client certificate alone if that is the same. Edges with one identity need different names.
    /// Default: the environment variable `WEIR_EDGE_NAME`. Without both, the host name in `Cache-Status` and in logs, and the
    /// identity at origins.
    #[serde(default = "name_of_environment", skip_serializing_if = "Option::is_none")]
    pub name: Option<NodeName>,
    /// Listener of agents: TCP for HTTP/1.1 and HTTP/2, UDP of the same port for HTTP/3.
    pub listen: SocketAddr,
    /// Listener of `/livez`, `/readyz`, `/metrics`, `/status`, `/v1/explain` and `/v1/purge`. Beyond loopback it needs
    /// `admin.tls` or `admin.allow_plain`.
    #[serde(default)]
    pub admin_listen: Option<SocketAddr>,
    /// Access to `admin_listen`.
    #[serde(default)]
    pub admin: AdminConfig,
    /// Read this file again when it changes, as SIGHUP does. A changed file with another `mode` of `[auth]`, without its `deny`,
    /// or without one of its `keys` needs the signal, because it may be cut off.
    #[serde(default)]
    pub watch_config: bool,
    /// How long a drain may take before open responses are reset.
    #[serde(default = "default_drain_deadline", with = "duration")]
    pub drain_deadline: Duration,
    /// The SPIFFE trust domain of certificates: roles are proved by `spiffe://<trust_domain>/<role>/<name>`.
    #[serde(default)]
    pub trust_domain: TrustDomain,
    /// The edge's certificate.
    pub tls: TlsConfig,
    /// Who may read.
    #[serde(default)]
    pub auth: AuthConfig,
    /// Where objects are cached, and how many.
    pub cache: CacheConfig,
    /// Origins.
    #[serde(rename = "origin", default)]
    pub origins: Vec<OriginConfig>,
    /// Shields: other edges.
    #[serde(rename = "shield", default)]
    pub shields: Vec<OriginConfig>,
    /// Other edges that may read from this one as their shield.
    #[serde(default)]
    pub peers: PeersConfig,
    /// How old a response may be.
    #[serde(default)]
    pub freshness: FreshnessConfig,
    /// Freshness of some services.
    #[serde(default)]
    pub freshness_for: Vec<FreshnessForConfig>,
    /// Prefetching and periodic queries.
    #[serde(default)]
    pub push: PushConfig,
    /// Requests of agents about themselves.
    #[serde(default)]
    pub agents: AgentsConfig,
    /// The access log.
    #[serde(default)]
    pub log: LogConfig,
}

/// The environment variable with the name of an edge whose configuration has none: so one file serves all pods of a cluster.
const NAME_VARIABLE: &str = "WEIR_EDGE_NAME";

fn name_of_environment() -> Option<NodeName> {
    std::env::var(NAME_VARIABLE).ok()?.parse().ok()
}

fn default_drain_deadline() -> Duration {
    DEFAULT_DRAIN_DEADLINE
}

impl Config {
    /// A configuration with the defaults of everything that has one.
    pub fn new(
        name: NodeName,
        listen: SocketAddr,
        tls: TlsConfig,
        cache: CacheConfig,
        origins: Vec<OriginConfig>,
    ) -> Self {
        Self {
            name: Some(name),
            listen,
            admin_listen: None,
            admin: AdminConfig::default(),
            watch_config: false,
            drain_deadline: default_drain_deadline(),
            trust_domain: TrustDomain::default(),
            tls,
            auth: AuthConfig::default(),
            cache,
            origins,
            shields: Vec::new(),
            peers: PeersConfig::default(),
            freshness: FreshnessConfig::default(),
            freshness_for: Vec::new(),
            push: PushConfig::default(),
            agents: AgentsConfig::default(),
            log: LogConfig::default(),
        }
    }

    /// The name in `Cache-Status` and in logs.
    pub fn name(&self) -> NodeName {
        self.name.clone().unwrap_or_else(host_name)
    }

    /// Reads a file, resolves its paths relative to its folder, and validates it.
    ///
    /// # Errors
    /// The file cannot be read, a key is unknown, or the values contradict each other; the message names the key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let config = Self::read(path)?;
        config.validate()?;
        Ok(config)
    }

    /// The same, without validation.
    ///
    /// # Errors
    /// The file cannot be read, or a key is unknown or has a wrong value.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::read_within(path, memory_limit())
    }

    fn read_within(path: &Path, limit: Option<u64>) -> Result<Self, ConfigError> {
        let (mut config, keys): (Self, _) = read_with_keys(path)?;
        if let Some(limit) = limit {
            config.fit_memory(limit, &keys);
        }
        let base = &base_dir(path);
        let mut paths = vec![&mut config.tls.certificate, &mut config.tls.key, &mut config.cache.dir];
        paths.extend(&mut config.admin.operator_token_file);
        paths.extend(&mut config.admin.metrics_token_file);
        paths.extend(&mut config.peers.ca);
        for origin in config.origins.iter_mut().chain(&mut config.shields) {
            paths.extend([&mut origin.ca, &mut origin.client_certificate, &mut origin.client_key]);
        }
        paths.extend(config.auth.paths());
        for path in paths.into_iter().filter(|path| !path.as_os_str().is_empty()) {
            resolve(base, path);
        }
        Ok(config)
    }

    /// Validates the keys together.
    ///
    /// # Errors
    /// Values contradict each other; the message names each key and what it should be.
    pub fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::all(self.errors())
    }

    fn errors(&self) -> Vec<ConfigError> {
        let mut errors = self.auth.errors();
        if self.name.is_none()
            && let Ok(name) = std::env::var(NAME_VARIABLE)
        {
            errors.push(ConfigError::invalid(format!("{NAME_VARIABLE}=\"{name}\" is not the name of a node")));
        }
        if self.auth.mode == AuthMode::Open && !self.auth.allow_anonymous && !self.listen.ip().is_loopback() {
            errors.push(ConfigError::invalid(format!(
                "listen = \"{}\" is beyond loopback and [auth] mode = \"open\" allows every client: set mode = \
                 \"required\", listen on 127.0.0.1, or set allow_anonymous = true in [auth] if that is what you want",
                self.listen
            )));
        }
        if let Some(listen) = self.admin_listen
            && !listen.ip().is_loopback()
            && !self.admin.tls
            && !self.admin.allow_plain
        {
            errors.push(ConfigError::invalid(format!(
                "admin_listen = \"{listen}\" is beyond loopback and would be plain HTTP, which exposes the operator's \
                 token: listen on 127.0.0.1, or set tls = true in [admin], or allow_plain = true there if \
                 the network is private"
            )));
        }
        if self.origins.is_empty() {
            errors.push(ConfigError::invalid("there is no [[origin]]: an edge needs at least one"));
        }
        let mut seen = std::collections::HashSet::new();
        for node in self.origins.iter().chain(&self.shields) {
            match node.authority() {
                Ok(authority) if seen.insert(authority.clone()) => {}
                Ok(_) => {
                    let url = &node.url;
                    errors.push(ConfigError::invalid(format!("origin or shield url = \"{url}\" is configured twice")));
                }
                Err(error) => errors.push(error),
            }
        }
        errors.extend(self.peers.errors());
        errors.extend(self.cache.errors());
        errors.extend(self.push.errors());
        errors.extend(self.agents.errors());
        errors.extend(self.log.error().map(ConfigError::invalid));
        let freshness = self.freshness.errors("[freshness]");
        // The tables below inherit values, and would repeat these errors.
        if freshness.is_empty() {
            for some in &self.freshness_for {
                let section = format!("[[freshness_for]] services = \"{}\"", some.services);
                errors.extend(some.over(&self.freshness).errors(&section));
            }
        }
        errors.extend(freshness);
        errors
    }
}

#[cfg(test)]
mod tests {
    use bytesize::ByteSize;

    use super::*;

    const MINIMAL: &str = r#"
        name = "edge-1"
        listen = "127.0.0.1:7443"
        [tls]
        certificate = "edge.pem"
        key = "edge.key"
        [cache]
        dir = "edge-cache"
        [[origin]]
        url = "https://127.0.0.1:7400"
        ca = "ca.pem"
        client_certificate = "edge-client.pem"
        client_key = "edge-client.key"
    "#;

    fn load(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge.toml");
        std::fs::write(&path, text).unwrap();
        let config = Config::read_within(&path, None).map_err(|error| error.to_string())?;
        config.validate().map_err(|error| error.to_string())?;
        assert!(config.cache.dir.starts_with(dir.path()) && config.origins[0].ca.starts_with(dir.path()));
        Ok(config)
    }

    #[test]
    fn the_defaults() {
        let config = load(MINIMAL).unwrap();
        assert_eq!(config.cache.disk, ByteSize::gib(10));
        assert_eq!(config.cache.memory, ByteSize::mib(256));
        assert_eq!(config.freshness.fresh, Duration::from_secs(15));
        assert_eq!(config.freshness.stale_if_error, None);
        assert_eq!(config.auth.mode, AuthMode::Open);
        assert_eq!(config.drain_deadline, Duration::from_secs(30));
        let config = load(&format!("{MINIMAL}\n[freshness]\nfresh = '1s'\nstale_if_error = '1h'")).unwrap();
        assert_eq!(config.freshness.fresh, Duration::from_secs(1));
        assert_eq!(config.freshness.wait, Duration::from_secs(2));
        assert_eq!(config.freshness.stale_if_error, Some(Duration::from_secs(3600)));
    }

    #[test]
    fn some_services_have_their_own_freshness() {
        let config = load(&format!(
            "{MINIMAL}\n[freshness]\nfresh = '5s'\n[[freshness_for]]\nservices = 'shop-*'\nwait = '7s'\n\
             [[freshness_for]]\nservices = '*'\nfresh = '0s'\nstale_if_error = '1h'"
        ));
        let policies = crate::catalog::FreshnessPolicies::configured(&config.unwrap());
        let of = |service: &str| policies.of(&service.parse().unwrap()).limits.clone();
        let seconds = Duration::from_secs;
        assert_eq!((of("shop-prod").fresh, of("shop-prod").wait), (seconds(5), seconds(7)));
        assert_eq!(
            (of("docs").fresh, of("docs").wait, of("docs").stale_if_error),
            (seconds(0), seconds(2), Some(seconds(3600)))
        );
    }

    #[test]
    fn all_invalid_values_are_reported_at_once() {
        let cache = "dir = \"edge-cache\"\ndisk = \"0B\"\nmemory = \"0B\"\nservices = 0\nfills = 0\nfill_idle = \"0s\"";
        let others = "[auth]\ncached_tokens = 0\n[[auth.certificate]]\nagents = \"a\"\nservices = [\"a\"]\n[push]\nrevalidate_interval = \"0s\"\n\
                      [freshness]\nwait = \"0s\"\nstale_if_error = \"0s\"";
        let error = load(&(MINIMAL.replace("dir = \"edge-cache\"", cache) + others)).unwrap_err();
        for key in [
            "disk in",
            "memory in",
            "services in [cache]",
            "fills in",
            "fill_idle in",
            "mode = \"open\"",
            "client_ca in",
            "cached_tokens in",
            "revalidate_interval in",
            "wait in",
            "stale_if_error in",
        ] {
            assert!(error.contains(key), "{key}: {error}");
        }
    }

    #[test]
    fn invalid_values_are_refused_with_the_name_of_the_key() {
        for (from, to, expected) in [
            ("listen = \"127.0.0.1:7443\"", "listen = \"0.0.0.0:7443\"", "allow_anonymous = true"),
            ("listen = \"127.0.0.1:7443\"", "listen = \"127.0.0.1:7443\"\ndisc = 1", "disc"),
            ("https://127.0.0.1:7400", "http://127.0.0.1:7400", "https://"),
            ("https://127.0.0.1:7400", "https://127.0.0.1:7400/below", "no path"),
            ("https://127.0.0.1:7400", "https://me:secret@127.0.0.1:7400", "no user name"),
            ("https://127.0.0.1:7400", "me:secret@127.0.0.1:7400", "…@127.0.0.1:7400"),
            ("https://127.0.0.1:7400", "https:/me:secret@127.0.0.1:7400", "…@127.0.0.1:7400"),
            ("https://127.0.0.1:7400", "https://me:secret@more@127.0.0.1:7400", "…@127.0.0.1:7400"),
            ("dir = \"edge-cache\"", "", "dir in [cache] is needed"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\ndisk = \"0B\"", "disk"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\ndisk = \"many\"", "disk"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\ndisk = \"10\"", "unit"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\ndisk = \"10kB\"", "disk"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\nin_flight = \"1MiB\"", "in_flight"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\nmemory = \"1MiB\"", "memory"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\nencoders = 0", "encoders"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\nservice_bytes = \"1kB\"", "service_bytes"),
            ("[tls]", "[admin]\ntoken = \"x\"\n[tls]", "token"),
            ("[tls]\n", "admin_listen = \"0.0.0.0:7491\"\n[tls]\n", "allow_plain"),
            ("[tls]", "[auth]\nmode = \"tokens\"\n[tls]", "tokens"),
            ("[tls]", "[freshness]\nstale_if_error = \"1s\"\n[tls]", "stale_if_error"),
            ("[tls]", "[freshness]\nwait = \"0s\"\n[tls]", "wait"),
            ("[tls]", "[[freshness_for]]\nservices = \"a/*\"\n[tls]", "not a pattern"),
            ("[tls]", "[[freshness_for]]\nfresh = \"1s\"\n[tls]", "services"),
            ("[tls]", "[[freshness_for]]\nservices = \"*\"\nfrish = \"1s\"\n[tls]", "frish"),
            ("[tls]", "[[freshness_for]]\nservices = \"a-*\"\nwait = \"0s\"\n[tls]", "services = \"a-*\""),
            ("[tls]", "[push]\nrevalidate_interval = \"1ms\"\n[tls]", "revalidate_interval"),
            ("[tls]", "[log]\naccess = \"some\"\n[tls]", "`off`, `errors`, `all`"),
            ("[tls]", "[log]\naccess_lines = 0\n[tls]", "access_lines in [log]"),
        ] {
            let error = load(&MINIMAL.replace(from, to)).unwrap_err();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
        let anonymous = MINIMAL.replace("127.0.0.1:7443", "0.0.0.0:7443") + "\n[auth]\nallow_anonymous = true";
        assert!(load(&anonymous).is_ok());
        let none = MINIMAL.split("[[origin]]").next().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("edge.toml"), none).unwrap();
        assert!(Config::load(&dir.path().join("edge.toml")).unwrap_err().to_string().contains("[[origin]]"));
    }
}
