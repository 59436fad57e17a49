//! `[[repository]]`: an upstream and how it is polled.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_protocol::name::RepositoryName;
use weir_runtime::config::{self, duration};

use super::verify::VerifyConfig;
use crate::{Endpoint, LayerSelector, PlatformName, Redirects, SourceKind};

const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(120);
const DEFAULT_MIN_POLL_INTERVAL: Duration = Duration::from_secs(2);
const DEFAULT_STEP_BACK_AFTER: Duration = Duration::from_secs(300);
const DEFAULT_STALL_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_POLL_TIMEOUT: Duration = Duration::from_secs(3600);
const DEFAULT_BUILD_TIMEOUT: Duration = Duration::from_secs(1800);

/// A repository to mirror. Durations are at most `366d`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepositoryConfig {
    /// Name of the repository. Services refer to it.
    pub name: RepositoryName,
    /// What it is: `git`, `helm` for a Helm repository, or `oci` for the repository of an artifact in a registry. It cannot
    /// be changed. Default: `git`.
    #[serde(default, skip_serializing_if = "SourceKind::is_default")]
    pub kind: SourceKind,
    /// `https://…`, `http://…`, `ssh://user@host/path`, `user@host:path`, `git://…`, `file://…`, or a local path. Passwords,
    /// queries, and user names (except for SSH) are refused. Of a Helm repository: the `https://` or `http://` URL of the
    /// folder with its `index.yaml`, or `oci://host/path` as for `helm push`. Of an artifact: `oci://host/path`, without tag and digest.
    pub url: Endpoint,
    /// The registry speaks plain HTTP: for tests, without credentials. There is no other fall-back from HTTPS. For `oci://`
    /// only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
    /// Which layer of an artifact is followed, and what becomes of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<LayerSelector>,
    /// `os/architecture[/variant]`: which manifest of an index is followed. Default: an index is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<PlatformName>,
    /// As `oci` of its services, which may have their own. Default: `[oci] enabled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci: Option<bool>,
    /// Time between polls, ±10 %. At least `1s`. After a failure: 5 s (or the interval), doubled up to ten intervals, at most
    /// 30 min.
    #[serde(default = "default_poll_interval", with = "duration")]
    pub poll_interval: Duration,
    /// Shortest time between the starts of two polls, also for webhooks and requests of operators. May be `0s`.
    #[serde(default = "default_min_poll_interval", with = "duration")]
    pub min_poll_interval: Duration,
    /// How long every poll must find an older revision before it is published: a copy of the upstream may lag. At least one
    /// `poll_interval`. `0s`: it is published at once. Default: `5m`.
    #[serde(
        default = "default_step_back_after",
        with = "duration",
        skip_serializing_if = "is_default_step_back_after"
    )]
    pub step_back_after: Duration,
    /// Files with secrets of webhooks, at most 8, read for each delivery. Any of them is accepted. Without one, webhooks are
    /// refused.
    #[serde(default)]
    pub webhook_secret_files: Vec<PathBuf>,
    /// PEM file of a private authority, read for each poll. Only its certificates are trusted then, also those of an
    /// `https://` proxy. Default: the public authorities.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// User name; together with `password_file`. Only with an `https://` URL.
    #[serde(default)]
    pub username: Option<String>,
    /// File with the password, read for each poll.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// File with a bearer token, read for each poll; instead of `username`. Only with an `https://` URL.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// PEM file of the client certificate for an `https://` upstream, with its chain; together with `client_key`. Not with an
    /// `https://` proxy.
    #[serde(default)]
    pub client_certificate: Option<PathBuf>,
    /// PEM file of its private key.
    #[serde(default)]
    pub client_key: Option<PathBuf>,
    /// `http://host:port` or `https://host:port` of a proxy for `https://` (CONNECT) and `http://`. Proxies of the
    /// environment are not used.
    #[serde(default)]
    pub proxy: Option<Endpoint>,
    /// User name for the proxy; together with `proxy_password_file`.
    #[serde(default)]
    pub proxy_username: Option<String>,
    /// File with the password for the proxy, read for each poll.
    #[serde(default)]
    pub proxy_password_file: Option<PathBuf>,
    /// Allowed redirects: `"none"`, `"same-host"`, or a list of further hosts, such as `["git2.example.org",
    /// "*.mirror.example.org"]`.
    #[serde(default)]
    pub redirects: Redirects,
    /// File of an SSH private key without a passphrase. SSH needs it. For Git only, as the next key.
    #[serde(default)]
    pub ssh_key: Option<PathBuf>,
    /// File with the keys of the SSH host, as OpenSSH writes `known_hosts`. SSH needs it.
    #[serde(default)]
    pub ssh_known_hosts: Option<PathBuf>,
    /// The author. Not a key of the document.
    #[serde(skip)]
    pub defined_by: DefinedBy,
    /// Whether moved refs of a repository on this machine trigger polls. Not a key of the document.
    #[serde(skip)]
    pub watch_refs: bool,
    /// How long the upstream may send nothing before the poll fails. On a connection of an earlier poll that has died
    /// unnoticed, the request is then sent again over another one.
    #[serde(default = "default_stall_timeout", with = "duration")]
    pub stall_timeout: Duration,
    /// How long a poll may take, a first clone included. Then it is stopped, and `/status` shows `overdue`.
    #[serde(default = "default_poll_timeout", with = "duration")]
    pub poll_timeout: Duration,
    /// How long one build may take; at most a quarter of `retention.gc_grace_period` counts. A build that takes longer is
    /// retried later each time.
    #[serde(default = "default_build_timeout", with = "duration")]
    pub build_timeout: Duration,
    /// Which commits, charts or artifacts may be published. Without it, all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyConfig>,
}

/// The author of a definition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DefinedBy {
    /// The configuration file; operators cannot change it, and its author may name anything.
    #[default]
    File,
    /// Operators, through the API.
    Api,
}

impl DefinedBy {
    /// The values of a metric label.
    pub const ALL: [Self; 2] = [Self::File, Self::Api];

    /// The value in documents, `/status` and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            DefinedBy::File => "file",
            DefinedBy::Api => "api",
        }
    }
}

fn default_poll_interval() -> Duration {
    DEFAULT_POLL_INTERVAL
}

fn default_min_poll_interval() -> Duration {
    DEFAULT_MIN_POLL_INTERVAL
}

fn default_step_back_after() -> Duration {
    DEFAULT_STEP_BACK_AFTER
}

/// Documents of before keep their versions.
fn is_default_step_back_after(after: &Duration) -> bool {
    *after == DEFAULT_STEP_BACK_AFTER
}

fn default_stall_timeout() -> Duration {
    DEFAULT_STALL_TIMEOUT
}

fn default_poll_timeout() -> Duration {
    DEFAULT_POLL_TIMEOUT
}

fn default_build_timeout() -> Duration {
    DEFAULT_BUILD_TIMEOUT
}

impl RepositoryConfig {
    /// A repository with every default.
    pub fn new(name: RepositoryName, url: impl Into<Endpoint>) -> Self {
        Self {
            name,
            kind: SourceKind::default(),
            url: url.into(),
            insecure: false,
            layer: None,
            platform: None,
            oci: None,
            poll_interval: DEFAULT_POLL_INTERVAL,
            min_poll_interval: DEFAULT_MIN_POLL_INTERVAL,
            step_back_after: DEFAULT_STEP_BACK_AFTER,
            webhook_secret_files: Vec::new(),
            ca: None,
            username: None,
            password_file: None,
            token_file: None,
            client_certificate: None,
            client_key: None,
            proxy: None,
            proxy_username: None,
            proxy_password_file: None,
            redirects: Redirects::default(),
            ssh_key: None,
            ssh_known_hosts: None,
            defined_by: DefinedBy::File,
            watch_refs: false,
            stall_timeout: DEFAULT_STALL_TIMEOUT,
            poll_timeout: DEFAULT_POLL_TIMEOUT,
            build_timeout: DEFAULT_BUILD_TIMEOUT,
            verify: None,
        }
    }

    /// Whether the upstream and its credentials are the same, so that a running poll may continue. Intervals, timeouts and the
    /// policy may differ.
    pub fn has_same_upstream(&self, other: &Self) -> bool {
        let upstream = |config: &Self| Self {
            layer: Some(config.layer.clone().unwrap_or_default()),
            oci: None,
            poll_interval: Duration::ZERO,
            min_poll_interval: Duration::ZERO,
            step_back_after: Duration::ZERO,
            webhook_secret_files: Vec::new(),
            stall_timeout: Duration::ZERO,
            poll_timeout: Duration::ZERO,
            build_timeout: Duration::ZERO,
            verify: None,
            ..config.clone()
        };
        upstream(self) == upstream(other)
    }

    /// The named files, each with its key.
    pub fn files_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut PathBuf)> {
        let files = [
            ("ca", &mut self.ca),
            ("password_file", &mut self.password_file),
            ("token_file", &mut self.token_file),
            ("client_certificate", &mut self.client_certificate),
            ("client_key", &mut self.client_key),
            ("proxy_password_file", &mut self.proxy_password_file),
            ("ssh_key", &mut self.ssh_key),
            ("ssh_known_hosts", &mut self.ssh_known_hosts),
        ];
        let files = files.into_iter().filter_map(|(key, file)| Some((key, file.as_mut()?)));
        let files = files.chain(self.webhook_secret_files.iter_mut().map(|file| ("webhook_secret_files", file)));
        files.chain(self.verify.iter_mut().flat_map(VerifyConfig::files_mut))
    }

    /// The files of secrets, each with its key.
    pub fn secrets(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let of_polls = ["password_file", "token_file", "client_key", "proxy_password_file", "ssh_key"];
        let of_polls = self.files().filter(move |(key, _)| of_polls.contains(key));
        of_polls.chain(self.webhook_secret_files.iter().map(|file| ("webhook_secret_files", &**file)))
    }

    /// The files that a poll needs, each with its key.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let files = [
            ("ca", &self.ca),
            ("password_file", &self.password_file),
            ("token_file", &self.token_file),
            ("client_certificate", &self.client_certificate),
            ("client_key", &self.client_key),
            ("proxy_password_file", &self.proxy_password_file),
            ("ssh_key", &self.ssh_key),
            ("ssh_known_hosts", &self.ssh_known_hosts),
        ];
        let files = files.into_iter().filter_map(|(key, file)| Some((key, file.as_deref()?)));
        files.chain(self.verify.iter().flat_map(VerifyConfig::files))
    }

    /// Makes the paths of files, and a local upstream, relative to this folder.
    pub fn resolve_paths(&mut self, base: &Path) {
        for (_, path) in self.files_mut() {
            config::resolve(base, path);
        }
        self.url.resolve(base);
    }
}
