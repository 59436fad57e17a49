//! An origin's configuration: what it listens on, which repositories it mirrors, which services it publishes.

mod access;
mod fault;
mod limits;
mod operator;
mod repository;
mod repository_faults;
mod retention;
mod service;
mod signing;
mod upstreams;
mod verify;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_shared::descriptor::Generation;
use weir_shared::name::NodeName;
use weir_shared::process::config::{self, ConfigError};
use weir_shared::process::tls::{self, ClientAuth};

pub use access::AccessConfig;
pub use fault::Fault;
pub(crate) use fault::told;
pub use limits::LimitsConfig;
pub use operator::OperatorConfig;
pub use repository::RepositoryConfig;
pub use retention::RetentionConfig;
pub use service::ServiceConfig;
pub use signing::SigningConfig;
pub use upstreams::{NamedBy, UpstreamsConfig};
pub use verify::{SignedBy, VerifyConfig};

/// The largest generation floor: a number that every reader of JSON keeps exactly, with room to grow above it.
const LARGEST_FLOOR: Generation = 1 << 52;

/// Everything an origin is told at its start.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The origin's name, for logs and `/status`.
    pub name: NodeName,
    /// Where edges connect: mutual TLS, HTTP/2 and 1.1. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where operators and webhooks connect: TLS, HTTP/2 and 1.1. Absent: nowhere.
    #[serde(default)]
    pub operator_listen: Option<SocketAddr>,
    /// `/livez`, `/readyz`, `/metrics` and `/status`, plain HTTP. Absent: none.
    #[serde(default)]
    pub admin_listen: Option<SocketAddr>,
    /// Where mirrors, blobs and publications are kept.
    pub data_dir: PathBuf,
    /// The origin's certificate, and whose certificates may connect.
    pub tls: TlsConfig,
    /// Generations are at least this: the way out after a clock that was far ahead. Unix milliseconds.
    #[serde(default)]
    pub generation_floor: Generation,
    /// Who may do what on `operator_listen`.
    #[serde(default)]
    pub operator: OperatorConfig,
    /// Which keys and denials its edges are told of.
    #[serde(default)]
    pub access: AccessConfig,
    /// What publications and heartbeats are signed with.
    #[serde(default)]
    pub signing: SigningConfig,
    /// How much of the machine and of the upstreams is used at a time, and how large a tarball may be.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// What is kept of the past.
    #[serde(default)]
    pub retention: RetentionConfig,
    /// Where upstreams may be, and how much is taken from one.
    #[serde(default)]
    pub upstreams: UpstreamsConfig,
    /// What is mirrored.
    #[serde(default, rename = "repository")]
    pub repositories: Vec<RepositoryConfig>,
    /// What is published.
    #[serde(default, rename = "service")]
    pub services: Vec<ServiceConfig>,
}

/// The origin's certificate, and whose certificates may connect. All PEM files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The origin's own certificate, with its chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that signs the certificates of edges.
    pub client_ca: PathBuf,
}

impl Config {
    /// A configuration without repositories and services that listens on a free port of loopback.
    pub fn new(name: NodeName, data_dir: impl Into<PathBuf>, tls: TlsConfig) -> Self {
        Self {
            name,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            operator_listen: None,
            admin_listen: None,
            data_dir: data_dir.into(),
            tls,
            generation_floor: 0,
            operator: OperatorConfig::default(),
            access: AccessConfig::default(),
            signing: SigningConfig::default(),
            limits: LimitsConfig::default(),
            retention: RetentionConfig::default(),
            upstreams: UpstreamsConfig::default(),
            repositories: Vec::new(),
            services: Vec::new(),
        }
    }

    /// Reads a file, makes its paths relative to its folder, and checks it.
    ///
    /// # Errors
    /// The file cannot be read, a key is unknown or wrong, or the whole makes no sense; the message names the object.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let mut read: Self = config::read(path)?;
        let base = config::base_dir(path);
        let tls = &mut read.tls;
        let own = [&mut read.data_dir, &mut tls.certificate, &mut tls.key, &mut tls.client_ca];
        let paths = own.into_iter().chain(read.access.paths()).chain(read.operator.paths());
        for path in paths.chain(&mut read.signing.keys) {
            config::resolve(base, path);
        }
        for repository in &mut read.repositories {
            repository.resolve_paths(base);
        }
        read.validate()?;
        Ok(read)
    }

    /// Checks what the types alone cannot say.
    ///
    /// # Errors
    /// The whole makes no sense; the message names all repositories and services with what to change in them.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.limits.validate()?;
        self.signing.validate()?;
        self.operator.validate()?;
        self.retention.validate()?;
        self.upstreams.validate()?;
        if self.generation_floor > LARGEST_FLOOR {
            return Err(ConfigError::invalid(format!(
                "generation_floor = {}: it is in Unix milliseconds and must be at most {LARGEST_FLOOR}",
                self.generation_floor
            )));
        }
        let mut wrong = Vec::new();
        let mut repositories = HashSet::new();
        for repository in &self.repositories {
            if !repositories.insert(&repository.name) {
                return Err(ConfigError::invalid(format!(
                    "two repositories are called `{}`: give each [[repository]] its own name",
                    repository.name
                )));
            }
            let faults = [repository.faults(), self.upstreams.faults(repository)].concat();
            if !faults.is_empty() {
                wrong.push(format!("repository `{}`: {}", repository.name, told(&faults)));
            }
        }
        for (kind, key, number, limit) in [
            ("repositories", "max_repositories", self.repositories.len(), self.limits.max_repositories),
            ("services", "max_services", self.services.len(), self.limits.max_services),
        ] {
            if number > limit {
                return Err(ConfigError::invalid(format!("there are {number} {kind}, and [limits] {key} = {limit}")));
            }
        }
        let mut services = HashSet::new();
        for service in &self.services {
            if !services.insert(&service.name) {
                return Err(ConfigError::invalid(format!(
                    "two services are called `{}`: give each [[service]] its own name",
                    service.name
                )));
            }
            let mut faults = service.faults();
            if !repositories.contains(&service.repository) {
                let detail = format!("there is no [[repository]] `{}`", service.repository);
                faults.push(Fault::new("repository", detail));
            }
            if !faults.is_empty() {
                wrong.push(format!("service `{}`: {}", service.name, told(&faults)));
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(ConfigError::invalid(wrong.join("; "))) }
    }

    /// The files that the configuration names and that are not there: a configuration is often checked where its
    /// secrets are not.
    pub fn missing_files(&self) -> Vec<&Path> {
        let TlsConfig { certificate, key, client_ca } = &self.tls;
        let own = [certificate, key, client_ca].into_iter();
        let upstreams = self.repositories.iter().flat_map(|repository| repository.files().map(|(_, file)| file));
        own.chain(&self.access.keys)
            .chain(&self.access.deny)
            .chain(self.repositories.iter().flat_map(|repository| &repository.webhook_secret_files))
            .chain(&self.signing.keys)
            .chain(self.operator.files())
            .map(PathBuf::as_path)
            .chain(upstreams)
            .filter(|path| !path.exists())
            .collect()
    }

    /// Opens the files that the configuration names: for `--check-config`. (A start opens the origin's own, and each
    /// poll its repository's, because those may come later and change.)
    ///
    /// # Errors
    /// A file is missing or holds something else; the message names it.
    pub fn check_files(&self) -> Result<(), ConfigError> {
        let TlsConfig { certificate, key, client_ca } = &self.tls;
        tls::server_config(certificate, key, ClientAuth::Required { ca: client_ca })
            .map_err(|error| ConfigError::invalid(format!("[tls]: {error}")))?;
        if self.operator_listen.is_some() {
            self.operator.check_files(&self.tls)?;
        }
        let access = self.access.files().read();
        access.map_err(|error| ConfigError::invalid(format!("[access]: {error}")))?;
        self.signing.read()?;
        self.repositories.iter().try_for_each(RepositoryConfig::check_files)
    }
}
