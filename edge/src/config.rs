//! `edge.toml`: every key, its default, and what is refused.

mod auth;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use http::Uri;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weir_shared::name::NodeName;
use weir_shared::name_glob::NameGlob;
use weir_shared::process::config::{ConfigError, base_dir, duration, read, resolve};
use weir_shared::process::shutdown::DEFAULT_DRAIN_DEADLINE;

use crate::service_table::Rules;
use crate::service_table::freshness::Parameters;

pub use auth::{AuthConfig, AuthMode, CertificateRule};

/// The least of `[push] ask_interval`.
const LEAST_ASK_INTERVAL: Duration = Duration::from_secs(1);

/// The configuration of an edge.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The node's name: in `Cache-Status`, in logs.
    pub name: NodeName,
    /// Where agents connect. TCP carries HTTP/1.1 and 2, UDP of the same number HTTP/3. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// `/livez`, `/readyz`, `/metrics`, `/status`, and what operators ask for; none when absent.
    #[serde(default)]
    pub admin_listen: Option<SocketAddr>,
    /// Who may do what there.
    #[serde(default)]
    pub admin: AdminConfig,
    /// How long a drain may take before what is left is cut.
    #[serde(default = "default_drain_deadline", with = "duration")]
    pub drain_deadline: Duration,
    /// The edge's own certificate.
    pub tls: TlsConfig,
    /// Who may read.
    #[serde(default)]
    pub auth: AuthConfig,
    /// Where and how much is kept.
    pub cache: CacheConfig,
    /// The origins, which partition the services among them. At least one.
    #[serde(rename = "origin", default)]
    pub origins: Vec<OriginConfig>,
    /// How old an answer may be.
    #[serde(default)]
    pub freshness: FreshnessConfig,
    /// How old an answer may be for some services; the first whose pattern matches decides.
    #[serde(default)]
    pub freshness_for: Vec<FreshnessForConfig>,
    /// What the edge does beside the event streams of its origins.
    #[serde(default)]
    pub push: PushConfig,
}

/// `[tls]`: what agents see.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM file of the certificate, with its chain.
    pub certificate: PathBuf,
    /// PEM file of its key.
    pub key: PathBuf,
}

/// `[admin]`: who may do what on `admin_listen`.
#[derive(Debug, Clone, Default, serde::Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminConfig {
    /// The file of the token that operators show: one line of at least 16 characters, read anew for each request.
    /// Without it nobody may purge.
    #[serde(default)]
    pub operator_token_file: Option<PathBuf>,
    /// Serves it with the certificate of `[tls]`.
    #[serde(default)]
    pub tls: bool,
    /// Lets it listen beyond loopback without TLS: for private networks only, the token is sent in clear there.
    #[serde(default)]
    pub allow_plain: bool,
}

/// `[cache]`: where and how much is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// The directory of blobs and of the service table. One edge alone uses it.
    pub dir: PathBuf,
    /// The bytes of blobs that are kept on disk.
    #[serde(default = "default_disk")]
    pub disk: ByteSize,
    /// The blobs that are kept on disk as files.
    #[serde(default = "default_blobs")]
    pub blobs: usize,
    /// The bytes of `disk` that are set aside at the start for blobs of up to 256 KiB: an eighth of `disk`, at most 1 GiB,
    /// when absent; below 32 MiB there are none, and small blobs are kept in files like the others.
    #[serde(default)]
    pub small: Option<ByteSize>,
    /// The bytes of blobs that are held in memory.
    #[serde(default = "default_memory")]
    pub memory: ByteSize,
    /// How often all blobs on disk are read again and compared with their names; never when zero.
    #[serde(default = "default_scrub", with = "duration")]
    pub scrub: Duration,
    /// The services whose descriptors are held in memory; further ones are read from disk when they are asked for.
    #[serde(default = "default_services")]
    pub services: u64,
    /// The blobs that are fetched from origins at a time; further ones wait.
    #[serde(default = "default_fills")]
    pub fills: usize,
    /// How long an origin may be silent in the middle of a blob before the fill is resumed. Nobody new waits for a fill
    /// that has stood still for twice as long.
    #[serde(default = "default_fill_idle", with = "duration")]
    pub fill_idle: Duration,
    /// How long a request waits for the first byte of a blob, which may have to be verified or fetched first.
    #[serde(default = "default_fill_wait", with = "duration")]
    pub fill_wait: Duration,
    /// The requests that wait for the first bytes of blobs, in all; further ones are refused (`503`).
    #[serde(default = "default_waiters")]
    pub waiters: usize,
    /// The requests that wait for the first byte of one blob; further ones are refused (`503`).
    #[serde(default = "default_waiters_per_fill")]
    pub waiters_per_fill: usize,
    /// The answers whose bytes go past a disk that cannot take them, at a time; each takes up to 2 MiB of memory.
    /// Further ones wait as long as for a fill, and are refused then (`503`).
    #[serde(default = "default_past_disk")]
    pub past_disk: usize,
    /// The blobs in files that are compared with their names at a time, because somebody asks for them; further ones
    /// wait, as long as for a fill.
    #[serde(default = "default_verifications")]
    pub verifications: usize,
    /// The tarballs that are decoded at a time, for clients that take no stored coding; each takes up to 9 MiB of
    /// memory for as long as its client reads. Further ones are refused (`503`).
    #[serde(default = "default_decoders")]
    pub decoders: usize,
}

/// `[[origin]]`: a node that publishes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OriginConfig {
    /// `https://host:port`.
    pub url: String,
    /// PEM file of the authority that signed the origin's certificate.
    pub ca: PathBuf,
    /// PEM file of the certificate that the edge shows.
    pub client_certificate: PathBuf,
    /// PEM file of its key.
    pub client_key: PathBuf,
}

/// `[freshness]`: how old an answer may be.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FreshnessConfig {
    /// How long after the origin's last word an answer is served unasked.
    #[serde(with = "duration")]
    pub fresh: Duration,
    /// How long after that it is served while the origin is asked in the background.
    #[serde(with = "duration")]
    pub stale_while_revalidate: Duration,
    /// How long a request waits for the origin after that, before it gets what is held.
    #[serde(with = "duration")]
    pub wait: Duration,
    /// How long past its freshness an answer is served while the origin cannot be asked; without end when absent.
    #[serde(deserialize_with = "optional_duration", serialize_with = "write_optional_duration")]
    pub stale_if_error: Option<Duration>,
}

/// `[[freshness_for]]`: how old an answer may be for some services.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreshnessForConfig {
    /// Which: a pattern of names, such as `shop-*`.
    pub services: NameGlob,
    /// As in `[freshness]`, whose value holds when it is absent; so with the others.
    #[serde(default, serialize_with = "write_optional_duration", deserialize_with = "optional_duration")]
    pub fresh: Option<Duration>,
    /// As in `[freshness]`.
    #[serde(default, serialize_with = "write_optional_duration", deserialize_with = "optional_duration")]
    pub stale_while_revalidate: Option<Duration>,
    /// As in `[freshness]`.
    #[serde(default, serialize_with = "write_optional_duration", deserialize_with = "optional_duration")]
    pub wait: Option<Duration>,
    /// As in `[freshness]`.
    #[serde(default, serialize_with = "write_optional_duration", deserialize_with = "optional_duration")]
    pub stale_if_error: Option<Duration>,
}

/// `[push]`: what the edge does beside the event streams of its origins.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PushConfig {
    /// A new version of a service that was asked for within this time is fetched before anybody asks for it; zero: none.
    #[serde(with = "duration")]
    pub warm_within: Duration,
    /// How often the origin is asked about a service that is in use, although its stream says that nothing has changed.
    #[serde(with = "duration")]
    pub ask_interval: Duration,
}

fn default_drain_deadline() -> Duration {
    DEFAULT_DRAIN_DEADLINE
}

fn default_disk() -> ByteSize {
    ByteSize::gib(10)
}

/// The least memory that blobs can be held in.
const MIN_MEMORY: ByteSize = ByteSize::mib(4);

/// What is set aside for small blobs at the most, unless the configuration says more.
const DEFAULT_SMALL: ByteSize = ByteSize::gib(1);

fn default_blobs() -> usize {
    1_000_000
}

fn default_memory() -> ByteSize {
    ByteSize::mib(256)
}

fn default_scrub() -> Duration {
    Duration::from_secs(3 * 24 * 60 * 60)
}

fn default_services() -> u64 {
    100_000
}

fn default_fills() -> usize {
    64
}

fn default_fill_idle() -> Duration {
    Duration::from_secs(10)
}

fn default_fill_wait() -> Duration {
    Duration::from_secs(60)
}

fn default_waiters() -> usize {
    20_000
}

fn default_waiters_per_fill() -> usize {
    10_000
}

fn default_past_disk() -> usize {
    64
}

fn default_verifications() -> usize {
    8
}

fn default_decoders() -> usize {
    128
}

fn optional_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration::deserialize(deserializer).map(Some)
}

fn write_optional_duration<S: Serializer>(optional: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match optional {
        Some(given) => duration::serialize(given, serializer),
        None => serializer.serialize_none(),
    }
}

impl Default for PushConfig {
    fn default() -> Self {
        Self { warm_within: Duration::from_secs(2 * 3600), ask_interval: Duration::from_secs(5 * 60) }
    }
}

impl Default for FreshnessConfig {
    fn default() -> Self {
        Self {
            fresh: Duration::from_secs(15),
            stale_while_revalidate: Duration::from_secs(60),
            wait: Duration::from_secs(2),
            stale_if_error: None,
        }
    }
}

impl FreshnessConfig {
    fn parameters(&self) -> Parameters {
        Parameters {
            fresh: self.fresh,
            stale_while_revalidate: self.stale_while_revalidate,
            wait: self.wait,
            stale_if_error: self.stale_if_error,
        }
    }

    /// Checks a rule that stands in the table `section`.
    fn validate(&self, section: &str) -> Result<(), ConfigError> {
        if self.wait.is_zero() {
            return Err(ConfigError::invalid(format!(
                "wait in {section} must be more than nothing, for example \"2s\""
            )));
        }
        if self.stale_if_error.is_some_and(|maximum| maximum < self.stale_while_revalidate) {
            return Err(ConfigError::invalid(format!(
                "stale_if_error in {section} must not be less than stale_while_revalidate"
            )));
        }
        Ok(())
    }
}

impl FreshnessForConfig {
    /// What holds for its services: its own values, and the others of `[freshness]`.
    fn over(&self, others: &FreshnessConfig) -> FreshnessConfig {
        FreshnessConfig {
            fresh: self.fresh.unwrap_or(others.fresh),
            stale_while_revalidate: self.stale_while_revalidate.unwrap_or(others.stale_while_revalidate),
            wait: self.wait.unwrap_or(others.wait),
            stale_if_error: self.stale_if_error.or(others.stale_if_error),
        }
    }
}

impl CacheConfig {
    /// The bytes of `disk` that are for small blobs.
    pub(crate) fn small_bytes(&self) -> u64 {
        self.small.map_or((self.disk.as_u64() / 8).min(DEFAULT_SMALL.as_u64()), |small| small.as_u64())
    }

    /// A cache in `dir` with the default bounds.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            disk: default_disk(),
            blobs: default_blobs(),
            small: None,
            memory: default_memory(),
            scrub: default_scrub(),
            services: default_services(),
            fills: default_fills(),
            fill_idle: default_fill_idle(),
            fill_wait: default_fill_wait(),
            waiters: default_waiters(),
            waiters_per_fill: default_waiters_per_fill(),
            past_disk: default_past_disk(),
            verifications: default_verifications(),
            decoders: default_decoders(),
        }
    }
}

impl OriginConfig {
    /// An origin at `https://host:port`, with the PEM files of its authority and of the edge's own identity.
    pub fn new(
        url: impl Into<String>,
        ca: impl Into<PathBuf>,
        client_certificate: impl Into<PathBuf>,
        client_key: impl Into<PathBuf>,
    ) -> Self {
        Self {
            url: url.into(),
            ca: ca.into(),
            client_certificate: client_certificate.into(),
            client_key: client_key.into(),
        }
    }

    /// The `host:port` of the url, once it has been checked.
    pub(crate) fn authority(&self) -> Result<http::uri::Authority, ConfigError> {
        let wrong = |what: &str| ConfigError::invalid(format!("origin url = \"{}\" {what}", redacted(&self.url)));
        let uri: Uri = self.url.parse().map_err(|_| wrong("is not a URL such as `https://origin.example:7400`"))?;
        if uri.scheme_str() != Some("https") {
            return Err(wrong("must begin with `https://`: origins are called with mutual TLS only"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("must hold no user name or password: the client certificate is the credential"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("must end with the host and port: there is no path below which origins answer"));
        }
        Ok(authority.clone())
    }
}

/// A URL as it may appear in an error: without what stands before an `@`.
fn redacted(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        _ => url.to_owned(),
    }
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
            name,
            listen,
            admin_listen: None,
            admin: AdminConfig::default(),
            drain_deadline: default_drain_deadline(),
            tls,
            auth: AuthConfig::default(),
            cache,
            origins,
            freshness: FreshnessConfig::default(),
            freshness_for: Vec::new(),
            push: PushConfig::default(),
        }
    }

    /// How old an answer may be, for each service.
    pub(crate) fn rules(&self) -> Rules {
        let of_some = self.freshness_for.iter();
        let of_some = of_some.map(|some| (some.services.clone(), some.over(&self.freshness).parameters()));
        Rules::new(of_some, self.freshness.parameters(), self.auth.mode == AuthMode::Required)
    }

    /// Reads a file, makes its paths absolute or relative to its own folder, and checks that the whole makes sense.
    ///
    /// # Errors
    /// The file cannot be read, a key is unknown, or the values contradict each other; the message names the key.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = read(path)?;
        let base = base_dir(path);
        let mut paths = vec![&mut config.tls.certificate, &mut config.tls.key, &mut config.cache.dir];
        paths.extend(&mut config.admin.operator_token_file);
        for origin in &mut config.origins {
            paths.extend([&mut origin.ca, &mut origin.client_certificate, &mut origin.client_key]);
        }
        paths.extend(config.auth.paths());
        for path in paths {
            resolve(base, path);
        }
        config.validate()?;
        Ok(config)
    }

    /// Checks what no single key says.
    ///
    /// # Errors
    /// The values make no sense together; the message names the key and what it should be.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let invalid = |message: &str| Err(ConfigError::invalid(message));
        self.auth.validate()?;
        if self.auth.mode == AuthMode::Open && !self.auth.allow_anonymous && !self.listen.ip().is_loopback() {
            return Err(ConfigError::invalid(format!(
                "listen = \"{}\" is beyond loopback and [auth] mode = \"open\" lets everybody read: set mode = \
                 \"required\", listen on 127.0.0.1, or set allow_anonymous = true in [auth] if that is what you want",
                self.listen
            )));
        }
        if let Some(listen) = self.admin_listen
            && !listen.ip().is_loopback()
            && !self.admin.tls
            && !self.admin.allow_plain
        {
            return Err(ConfigError::invalid(format!(
                "admin_listen = \"{listen}\" is beyond loopback and would be plain HTTP, where everybody on the way reads \
                 the operator's token: listen on 127.0.0.1, or set tls = true in [admin], or allow_plain = true there if \
                 the network is private"
            )));
        }
        if self.origins.is_empty() {
            return invalid("there is no [[origin]]: an edge needs at least one");
        }
        let mut seen = std::collections::HashSet::new();
        for origin in &self.origins {
            if !seen.insert(origin.authority()?) {
                return Err(ConfigError::invalid(format!("origin url = \"{}\" is there twice", origin.url)));
            }
        }
        if self.cache.disk.as_u64() == 0 {
            return invalid("disk in [cache] must be more than nothing, for example \"10GiB\"");
        }
        if self.cache.small_bytes() >= self.cache.disk.as_u64() {
            return invalid("small in [cache] is part of disk and must be less");
        }
        if self.cache.memory < MIN_MEMORY {
            return invalid("memory in [cache] must be at least \"4MiB\"");
        }
        if self.cache.services == 0 || self.cache.fills == 0 || self.cache.decoders == 0 || self.cache.blobs == 0 {
            return invalid("blobs, services, fills and decoders in [cache] must be at least 1");
        }
        if self.push.ask_interval < LEAST_ASK_INTERVAL {
            return invalid("ask_interval in [push] must be at least \"1s\"");
        }
        if self.cache.verifications == 0 {
            return invalid("verifications in [cache] must be at least 1");
        }
        if self.cache.waiters == 0 || self.cache.waiters_per_fill == 0 || self.cache.past_disk == 0 {
            return invalid("waiters, waiters_per_fill and past_disk in [cache] must be at least 1");
        }
        if self.cache.fill_idle.is_zero() || self.cache.fill_wait.is_zero() {
            return invalid("fill_idle and fill_wait in [cache] must be more than nothing, for example \"10s\"");
        }
        self.freshness.validate("[freshness]")?;
        self.freshness_for.iter().try_for_each(|some| {
            let section = format!("[[freshness_for]] services = \"{}\"", some.services);
            some.over(&self.freshness).validate(&section)
        })
    }
}

#[cfg(test)]
mod tests {
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
        let config = Config::load(&path).map_err(|error| error.to_string())?;
        assert!(config.cache.dir.starts_with(dir.path()) && config.origins[0].ca.starts_with(dir.path()));
        Ok(config)
    }

    #[test]
    fn the_defaults() {
        let config = load(MINIMAL).unwrap();
        assert_eq!(config.cache.disk, ByteSize::gib(10));
        assert_eq!(config.cache.small_bytes(), 1 << 30);
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
        let rules = config.unwrap().rules();
        let of = |service: &str| rules.of(&service.parse().unwrap()).parameters.clone();
        let seconds = Duration::from_secs;
        assert_eq!((of("shop-prod").fresh, of("shop-prod").wait), (seconds(5), seconds(7)));
        assert_eq!(
            (of("docs").fresh, of("docs").wait, of("docs").stale_if_error),
            (seconds(0), seconds(2), Some(seconds(3600)))
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_the_key_s_name() {
        for (from, to, expected) in [
            ("listen = \"127.0.0.1:7443\"", "listen = \"0.0.0.0:7443\"", "allow_anonymous = true"),
            ("listen = \"127.0.0.1:7443\"", "listen = \"127.0.0.1:7443\"\ndisc = 1", "disc"),
            ("https://127.0.0.1:7400", "http://127.0.0.1:7400", "https://"),
            ("https://127.0.0.1:7400", "https://127.0.0.1:7400/below", "no path"),
            ("https://127.0.0.1:7400", "https://me:secret@127.0.0.1:7400", "no user name"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\ndisk = \"0B\"", "disk"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\ndisk = \"many\"", "disk"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\ndisk = \"1GiB\"\nsmall = \"1GiB\"", "small"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\nmemory = \"1MiB\"", "memory"),
            ("dir = \"edge-cache\"", "dir = \"edge-cache\"\nblobs = 0", "blobs"),
            ("[tls]", "[admin]\ntoken = \"x\"\n[tls]", "token"),
            ("[tls]\n", "admin_listen = \"0.0.0.0:7491\"\n[tls]\n", "allow_plain"),
            ("[tls]", "[auth]\nmode = \"tokens\"\n[tls]", "tokens"),
            ("[tls]", "[freshness]\nstale_if_error = \"1s\"\n[tls]", "stale_if_error"),
            ("[tls]", "[freshness]\nwait = \"0s\"\n[tls]", "wait"),
            ("[tls]", "[[freshness_for]]\nservices = \"a/*\"\n[tls]", "not a pattern"),
            ("[tls]", "[[freshness_for]]\nfresh = \"1s\"\n[tls]", "services"),
            ("[tls]", "[[freshness_for]]\nservices = \"*\"\nfrish = \"1s\"\n[tls]", "frish"),
            ("[tls]", "[[freshness_for]]\nservices = \"a-*\"\nwait = \"0s\"\n[tls]", "services = \"a-*\""),
            ("[tls]", "[push]\nask_interval = \"1ms\"\n[tls]", "ask_interval"),
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
