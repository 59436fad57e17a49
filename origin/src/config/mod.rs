//! The configuration of an origin: listeners, repositories and services.

mod access;
mod check_files;
mod cluster;
mod fleet;
mod limits;
mod oci;
mod operator;
pub(crate) mod rollouts;
mod signing;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_model::{ValidationError, joined};
use weir_protocol::descriptor::Generation;
use weir_protocol::name::{NodeName, ServiceName};
use weir_publish::RetentionConfig;
use weir_rollout::Plan;
use weir_runtime::admin::AdminConfig;
use weir_runtime::config::{self, ConfigError};
use weir_runtime::host_name::host_name;
use weir_runtime::identity::TrustDomain;
use weir_runtime::serve::LogConfig;
use weir_source::ServiceConfig;
use weir_upstream::{RepositoryConfig, UpstreamsConfig};

pub use access::AccessConfig;
pub use cluster::{ClusterConfig, EngineName};
pub use fleet::{AgentConfig, AssignmentConfig};
pub(crate) use fleet::{EntryDocument, IssuerDocument};
pub use limits::LimitsConfig;
pub use oci::OciConfig;
pub(crate) use operator::BY_TOKEN;
pub use operator::{OperatorApiConfig, OperatorConfig, OperatorRole};
pub use signing::SigningConfig;
pub use weir_store::{EtcdConfig, StoreConfig};

/// The largest generation floor. Every JSON parser can represent it and larger generations exactly.
pub(crate) const LARGEST_FLOOR: Generation = 1 << 52;

/// The keys and sections that SIGHUP applies.
pub const RELOADABLE: &[&str] = &[
    "repository",
    "service",
    "agent",
    "assignment",
    "rollout",
    "operator",
    "tls",
    "operator_api.certificate",
    "operator_api.key",
    "operator_api.client_ca",
];

/// The configuration of an origin: its listeners and its data.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The origin's name, in logs and in `/status`. Origins of a cluster need different names. Default: the host name.
    #[serde(default = "host_name")]
    pub name: NodeName,
    /// Listener of edges: HTTP/2 and HTTP/1.1 over mutual TLS.
    pub listen: SocketAddr,
    /// Listener of operators and webhooks: HTTP/2 and HTTP/1.1 over TLS. Without it, repositories and services are defined in
    /// this file only.
    #[serde(default)]
    pub operator_listen: Option<SocketAddr>,
    /// Listener of webhooks alone, with the certificate of `operator_listen`, so that Git servers need not reach the operators'
    /// port. `operator_listen` answers them too. Default: none.
    #[serde(default)]
    pub webhook_listen: Option<SocketAddr>,
    /// Listener of `/livez`, `/readyz`, `/metrics` and `/status`: plain HTTP. Keep it on loopback or behind a network policy.
    #[serde(default)]
    pub admin_listen: Option<SocketAddr>,
    /// Access to `admin_listen`.
    #[serde(default)]
    pub admin: AdminConfig,
    /// Read this file again when it changes, as SIGHUP does. A changed file that defines more than a tenth of the repositories,
    /// services, operators, agents or assignments no more needs the signal, because it may be cut off.
    #[serde(default)]
    pub watch_config: bool,
    /// Directory of records, objects and mirrors. One process at a time uses it.
    pub data_dir: PathBuf,
    /// The SPIFFE trust domain of certificates: roles are proved by `spiffe://<trust_domain>/<role>/<name>`.
    #[serde(default)]
    pub trust_domain: TrustDomain,
    /// The origin's certificate, and the authority of edges.
    pub tls: TlsConfig,
    /// Lowest generation, in Unix milliseconds. At most 2^52. Set it above the highest generation that edges have seen, after
    /// a clock was ahead or an old copy of the store was restored: current versions below it are published again, with the
    /// same content.
    #[serde(default)]
    pub generation_floor: Generation,
    /// Current versions with a generation of more than a day ahead of the clock are published again, at the clock, with the same
    /// content. The command line sets it for one run.
    #[serde(skip)]
    pub lower_generations: bool,
    /// The listener of operators.
    #[serde(default)]
    pub operator_api: OperatorApiConfig,
    /// Who has access to it.
    #[serde(default, rename = "operator", deserialize_with = "operator::operators_or_former")]
    pub operators: Vec<OperatorConfig>,
    /// The file calls `[operator_api]` `[operator]`, as in the release before.
    #[serde(skip)]
    pub has_former_operator: bool,
    /// Keys and denials that are announced to edges.
    #[serde(default)]
    pub access: AccessConfig,
    /// Keys that sign publications.
    #[serde(default)]
    pub signing: SigningConfig,
    /// Concurrency and sizes.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// The access log.
    #[serde(default)]
    pub log: LogConfig,
    /// Where objects are stored.
    #[serde(default)]
    pub store: StoreConfig,
    /// Several origins that share repositories.
    #[serde(default)]
    pub cluster: Option<ClusterConfig>,
    /// How long old versions are stored.
    #[serde(default)]
    pub retention: RetentionConfig,
    /// Versions for clients of the OCI distribution API.
    #[serde(default)]
    pub oci: OciConfig,
    /// Which upstreams are allowed, and how much is fetched.
    #[serde(default)]
    pub upstreams: UpstreamsConfig,
    /// Repositories to mirror.
    #[serde(default, rename = "repository")]
    pub repositories: Vec<RepositoryConfig>,
    /// Services to publish.
    #[serde(default, rename = "service")]
    pub services: Vec<ServiceConfig>,
    /// Agents with labels.
    #[serde(default, rename = "agent")]
    pub agents: Vec<AgentConfig>,
    /// Which agents follow which services.
    #[serde(default, rename = "assignment")]
    pub assignments: Vec<AssignmentConfig>,
    /// Plans of staged rollouts, which services name.
    #[serde(default, rename = "rollout")]
    pub rollouts: Vec<Plan>,
}

/// The origin's certificate, and the authority of edges. The files are read again when they
/// change, and on SIGHUP. A certificate that has expired, or a file that cannot be used, changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM file of the origin's certificate, with its chain. With `[cluster]` the origin connects to other origins with it: it
    /// then needs the SAN `spiffe://<trust_domain>/origin/<name>` too, and both key usages, `serverAuth` and `clientAuth`.
    pub certificate: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
    /// PEM file of the authority that signs the certificates of edges, and of the other origins of a cluster. Only a certificate
    /// with `spiffe://<trust_domain>/edge/<name>` is accepted; with `[cluster]` also one with `spiffe://<trust_domain>/origin/<name>`.
    pub client_ca: PathBuf,
}

impl Config {
    /// A configuration without repositories and services that listens on a free port of loopback.
    pub fn new(name: NodeName, data_dir: impl Into<PathBuf>, tls: TlsConfig) -> Self {
        Self {
            name,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            operator_listen: None,
            webhook_listen: None,
            admin_listen: None,
            admin: AdminConfig::default(),
            watch_config: false,
            data_dir: data_dir.into(),
            trust_domain: TrustDomain::default(),
            tls,
            generation_floor: 0,
            lower_generations: false,
            operator_api: OperatorApiConfig::default(),
            operators: Vec::new(),
            has_former_operator: false,
            access: AccessConfig::default(),
            signing: SigningConfig::default(),
            limits: LimitsConfig::default(),
            log: LogConfig::default(),
            store: StoreConfig::default(),
            cluster: None,
            retention: RetentionConfig::default(),
            oci: OciConfig::default(),
            upstreams: UpstreamsConfig::default(),
            repositories: Vec::new(),
            services: Vec::new(),
            agents: Vec::new(),
            assignments: Vec::new(),
            rollouts: Vec::new(),
        }
    }

    /// Reads a file, makes its paths relative to its folder, and checks it.
    ///
    /// # Errors
    /// The file cannot be read, a key is unknown or wrong, or keys contradict each other. The message names the object.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let read = Self::read(path)?;
        read.validate()?;
        Ok(read)
    }

    /// As [`Config::load`], without [`Config::validate`].
    ///
    /// # Errors
    /// The file cannot be read, or a key is unknown or has a wrong value.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let mut read: Self = config::read(path)?;
        if let Some(former) = operator::take_former(&mut read.operators) {
            if read.operator_api != OperatorApiConfig::default() {
                let both = "[operator] is the former name of [operator_api], which is there too: move its keys there";
                return Err(ConfigError::invalid(both));
            }
            (read.operator_api, read.has_former_operator) = (former, true);
        }
        let base = &config::base_dir(path);
        let tls = &mut read.tls;
        let own = [&mut read.data_dir, &mut tls.certificate, &mut tls.key, &mut tls.client_ca];
        let paths = own.into_iter().chain(read.access.paths()).chain(read.operator_api.paths());
        let paths = paths.chain(read.store.paths()).chain(&mut read.admin.metrics_token_file);
        let paths = paths.chain(read.cluster.iter_mut().flat_map(ClusterConfig::paths));
        for path in paths.chain(&mut read.signing.keys) {
            config::resolve(base, path);
        }
        for repository in &mut read.repositories {
            repository.resolve_paths(base);
        }
        if let Some(cluster) = &mut read.cluster {
            cluster.advertise = cluster.advertise.replace("{name}", read.name.as_str());
        }
        Ok(read)
    }

    /// Checks bounds, and keys that depend on each other.
    ///
    /// # Errors
    /// The configuration is invalid. The message has all errors.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut wrong = self.limits.errors();
        wrong.extend(self.log.error().map(str::to_owned));
        wrong.extend(self.signing.error());
        wrong.extend(self.operator_api.error().map(str::to_owned));
        wrong.extend(operator::errors(&self.operators));
        if self.webhook_listen.is_some() && self.operator_listen.is_none() {
            wrong.push("webhook_listen needs operator_listen, which has its certificate".to_owned());
        }
        wrong.extend(self.retention.errors());
        wrong.extend(self.store.errors());
        wrong.extend(self.cluster.iter().flat_map(|cluster| cluster.errors(&self.store)));
        wrong.extend(self.upstreams.errors_of_limits());
        if self.generation_floor > LARGEST_FLOOR {
            wrong.push(format!(
                "generation_floor = {}: it is in Unix milliseconds and must be at most {LARGEST_FLOOR}",
                self.generation_floor
            ));
        }
        let mut repositories = HashMap::new();
        for repository in &self.repositories {
            let name = &repository.name;
            if repositories.insert(name, repository.kind).is_some() {
                wrong.push(format!("two repositories are called `{name}`: give each [[repository]] its own name"));
            }
            let errors = [repository.errors(), self.upstreams.errors(repository)].concat();
            if !errors.is_empty() {
                wrong.push(format!("repository `{name}`: {}", joined(&errors)));
            }
        }
        for (kind, key, number, limit) in [
            ("repositories", "max_repositories", self.repositories.len(), self.limits.max_repositories),
            ("services", "max_services", self.services.len(), self.limits.max_services),
        ] {
            if number > limit {
                wrong.push(format!("there are {number} {kind}, but [limits] {key} = {limit}"));
            }
        }
        let (mut services, by_name) = (HashSet::new(), ServiceConfig::by_name(&self.services));
        for service in &self.services {
            let name = &service.name;
            if !services.insert(name) {
                wrong.push(format!("two services are called `{name}`: give each [[service]] its own name"));
            }
            let mut errors = service.errors();
            let missing: Vec<_> = service.repositories().filter(|name| !repositories.contains_key(name)).collect();
            errors.extend(missing.iter().map(|name| {
                let field = if service.parts.is_empty() { "repository" } else { "parts" };
                ValidationError::new(field, format!("there is no [[repository]] `{name}`"))
            }));
            if missing.is_empty() {
                errors.extend(service.followed(|name| repositories.get(name).copied()).err());
            }
            errors.extend(wrong_parts(service, &by_name));
            errors.extend(service.at_home(&by_name).error_in_cluster().filter(|_| self.cluster.is_some()));
            if !errors.is_empty() {
                wrong.push(format!("service `{name}`: {}", joined(&errors)));
            }
        }
        wrong.extend(self.fleet().err());
        wrong.extend(rollouts::errors(&self.rollouts, &self.services));
        if wrong.is_empty() { Ok(()) } else { Err(ConfigError::invalid(wrong.join("; "))) }
    }

    /// The largest mirror to store as bundles, in bytes. `None`: no mirror is stored.
    pub(crate) fn max_stored_mirror(&self) -> Option<u64> {
        let are_stored = self.store.mirrors.unwrap_or(self.cluster.is_some());
        are_stored.then_some(self.store.max_mirror.as_u64())
    }
}

/// Which parts of a service cannot be published, among the services of the file.
fn wrong_parts(service: &ServiceConfig, all: &HashMap<&ServiceName, &ServiceConfig>) -> Vec<ValidationError> {
    let wrong = |part: &ServiceName| {
        let reason = match all.get(part) {
            None => format!("there is no [[service]] `{part}`"),
            Some(of) if !of.parts.is_empty() && of.name != service.name => {
                format!("service `{part}` has parts itself: name these in place of it")
            }
            Some(_) => return None,
        };
        Some(ValidationError::new("parts", reason))
    };
    service.part_services().filter_map(wrong).collect()
}
