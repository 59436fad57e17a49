//! `[[repository]]`: an upstream and how it is asked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gix::url::Scheme;
use serde::{Deserialize, Serialize};
use weir_shared::name::RepositoryName;
use weir_shared::process::config::{self, ConfigError, duration};
use weir_shared::process::tls;

use super::NamedBy;
use super::verify::VerifyConfig;
use crate::mirror::{self, Redirects, Upstream};
use crate::webhook::Secret;

const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(120);
const DEFAULT_SHORTEST_GAP: Duration = Duration::from_secs(2);
const DEFAULT_STALL_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_POLL_TIMEOUT: Duration = Duration::from_secs(3600);
const DEFAULT_BUILD_TIMEOUT: Duration = Duration::from_secs(1800);
/// Each delivery of a webhook is verified with every one of them.
const MOST_WEBHOOK_SECRETS: usize = 8;
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(366 * 24 * 3600);

/// An upstream Git remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepositoryConfig {
    /// Its name here; services refer to it.
    pub name: RepositoryName,
    /// Where it is: `https://`, `http://`, `ssh://user@host/path` or `user@host:path`, `git://`, `file://`, or a path. No
    /// password, and no user name but that of SSH.
    pub url: String,
    /// How often it is asked whether something moved (jittered by a tenth). At least `1s`.
    #[serde(default = "default_poll_interval", with = "duration")]
    pub poll_interval: Duration,
    /// Polls begin at least this far apart, whatever webhooks ask for. May be nothing.
    #[serde(default = "default_shortest_gap", with = "duration")]
    pub shortest_gap: Duration,
    /// Files with the secrets of webhooks, read again for each delivery; several while a secret is changed.
    #[serde(default)]
    pub webhook_secret_files: Vec<PathBuf>,
    /// PEM file with the private authority of the upstream. Absent: the public ones.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// The user name, with `password_file`.
    #[serde(default)]
    pub username: Option<String>,
    /// A file with the password, read again for each poll.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// A file with a bearer token, read again for each poll, instead of `username` and `password_file`.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// PEM file with the certificate that the upstream is shown, and its chain; with `client_key`.
    #[serde(default)]
    pub client_certificate: Option<PathBuf>,
    /// PEM file with its key.
    #[serde(default)]
    pub client_key: Option<PathBuf>,
    /// `http://host:port` or `https://host:port` of a proxy for `https://` (by CONNECT) and `http://`.
    #[serde(default)]
    pub proxy: Option<String>,
    /// The user name for the proxy, with `proxy_password_file`.
    #[serde(default)]
    pub proxy_username: Option<String>,
    /// A file with the password for the proxy, read again for each poll.
    #[serde(default)]
    pub proxy_password_file: Option<PathBuf>,
    /// Which redirects are followed: `none`, `same-host`, or a list of hosts besides its own.
    #[serde(default)]
    pub redirects: Redirects,
    /// The file of a private key for SSH, without a passphrase.
    #[serde(default)]
    pub ssh_key: Option<PathBuf>,
    /// A file with the keys of the SSH host, as `known_hosts`.
    #[serde(default)]
    pub ssh_known_hosts: Option<PathBuf>,
    /// Who named it: no key, and not written.
    #[serde(skip)]
    pub(crate) named_by: NamedBy,
    /// How long the upstream may send nothing before a poll is given up.
    #[serde(default = "default_stall_timeout", with = "duration")]
    pub stall_timeout: Duration,
    /// How long a poll may take in all, a first clone included.
    #[serde(default = "default_poll_timeout", with = "duration")]
    pub poll_timeout: Duration,
    /// How long the build of one tarball may take.
    #[serde(default = "default_build_timeout", with = "duration")]
    pub build_timeout: Duration,
    /// Which commits may be published. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyConfig>,
}

fn default_poll_interval() -> Duration {
    DEFAULT_POLL_INTERVAL
}

fn default_shortest_gap() -> Duration {
    DEFAULT_SHORTEST_GAP
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
    pub fn new(name: RepositoryName, url: impl Into<String>) -> Self {
        Self {
            name,
            url: url.into(),
            poll_interval: DEFAULT_POLL_INTERVAL,
            shortest_gap: DEFAULT_SHORTEST_GAP,
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
            named_by: NamedBy::File,
            stall_timeout: DEFAULT_STALL_TIMEOUT,
            poll_timeout: DEFAULT_POLL_TIMEOUT,
            build_timeout: DEFAULT_BUILD_TIMEOUT,
            verify: None,
        }
    }

    /// The part that the mirror looks at; [`super::UpstreamsConfig`] bounds it.
    pub(super) fn upstream(&self) -> Upstream {
        Upstream {
            ca: self.ca.clone(),
            username: self.username.clone(),
            password_file: self.password_file.clone(),
            token_file: self.token_file.clone(),
            client_certificate: self.client_certificate.clone(),
            client_key: self.client_key.clone(),
            proxy: self.proxy.clone(),
            proxy_username: self.proxy_username.clone(),
            proxy_password_file: self.proxy_password_file.clone(),
            redirects: self.redirects.clone(),
            ssh_key: self.ssh_key.clone(),
            ssh_known_hosts: self.ssh_known_hosts.clone(),
            stall_timeout: self.stall_timeout,
            ..Upstream::new(self.url.as_str())
        }
    }

    /// The files that it names, each with its key.
    pub(crate) fn files_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut PathBuf)> {
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

    /// The files that a poll needs, with the keys that name them.
    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
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

    pub(super) fn resolve_paths(&mut self, base: &Path) {
        for (_, path) in self.files_mut() {
            config::resolve(base, path);
        }
        if is_relative_path(&self.url) {
            let mut path = PathBuf::from(&self.url);
            config::resolve(base, &mut path);
            self.url = path.to_string_lossy().into_owned();
        }
    }

    /// Opens the files that are named.
    pub(super) fn check_files(&self) -> Result<(), ConfigError> {
        let named = |error: String| ConfigError::invalid(format!("repository `{}`: {error}", self.name));
        if let Some(ca) = &self.ca {
            tls::read_roots(ca).map_err(|error| named(format!("`ca`: {error}")))?;
        }
        for (key, file) in self.files() {
            let read = std::fs::read(file);
            let contents = read.map_err(|error| named(format!("`{key}` {}: {error}", file.display())))?;
            if contents.trim_ascii().is_empty() {
                return Err(named(format!("`{key}` {} is empty", file.display())));
            }
        }
        for file in &self.webhook_secret_files {
            let read = std::fs::read(file);
            let secret = read.map_err(|error| named(format!("`webhook_secret_files` {}: {error}", file.display())))?;
            if Secret::from_file(&secret).is_none() {
                return Err(named(format!("`webhook_secret_files` {} is empty", file.display())));
            }
        }
        Ok(())
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let wrong = |what: String| Err(ConfigError::invalid(format!("repository `{}`: {what}", self.name)));
        self.validate_intervals().or_else(wrong)?;
        if let Some(Err(reason)) = self.verify.as_ref().map(VerifyConfig::validate) {
            return wrong(reason);
        }
        if self.url.is_empty() {
            return wrong("`url` is empty".to_owned());
        }
        // The message must not repeat the URL: it may hold a password.
        let Ok(url) = gix::url::parse(self.url.as_str()) else {
            return wrong("`url` is not an address such as `https://git.example/acme/shop.git`".to_owned());
        };
        if url.scheme == Scheme::Ssh {
            return self.validate_ssh().or_else(wrong);
        }
        if url.password().is_some() || url.user().is_some() {
            return wrong(
                "`url` holds a user name or a password: put the user into `username` and the password into a file \
                 named by `password_file`"
                    .to_owned(),
            );
        }
        self.validate_http(&url.scheme).or_else(wrong)?;
        Ok(())
    }

    fn validate_ssh(&self) -> Result<(), String> {
        mirror::check_ssh_address(&self.url).map_err(|reason| format!("`url`: {reason}"))?;
        if self.ssh_key.is_none() || self.ssh_known_hosts.is_none() {
            let reason = "SSH needs `ssh_key` (the file of a private key) and `ssh_known_hosts` (a file with the keys of \
                          the host): no other key is tried, and no host is trusted that is not known";
            return Err(reason.to_owned());
        }
        let for_http =
            self.files().find(|(key, _)| !key.starts_with("ssh_") && !key.starts_with("verify.")).map(|(key, _)| key);
        let for_http = for_http.or(self.username.as_ref().map(|_| "username")).or(self.proxy.as_ref().map(|_| "proxy"));
        match for_http {
            Some(key) => Err(format!("`{key}` means nothing for SSH: take it away")),
            None => Ok(()),
        }
    }

    fn validate_http(&self, scheme: &Scheme) -> Result<(), String> {
        for (one, other, names) in [
            (self.username.is_some(), self.password_file.is_some(), ["username", "password_file"]),
            (self.client_certificate.is_some(), self.client_key.is_some(), ["client_certificate", "client_key"]),
            (
                self.proxy_username.is_some(),
                self.proxy_password_file.is_some(),
                ["proxy_username", "proxy_password_file"],
            ),
        ] {
            let [first, second] = names;
            match (one, other) {
                (true, false) => return Err(format!("`{first}` needs `{second}`")),
                (false, true) => return Err(format!("`{second}` needs `{first}`")),
                _ => {}
            }
        }
        if self.ssh_key.is_some() || self.ssh_known_hosts.is_some() {
            return Err("`ssh_key` and `ssh_known_hosts` are for an `url` of SSH".to_owned());
        }
        let (password, token) = (self.username.is_some(), self.token_file.is_some());
        if password && token {
            return Err("`token_file` and `username` exclude each other".to_owned());
        }
        if (password || token) && *scheme != Scheme::Https {
            let reason = "a password or token is sent over `https://` only, where nobody else can read it: change `url`, \
                          or take it away";
            return Err(reason.to_owned());
        }
        if self.client_certificate.is_some() && *scheme != Scheme::Https {
            return Err("`client_certificate` is shown over `https://` only".to_owned());
        }
        match &self.proxy {
            Some(_) if !matches!(scheme, Scheme::Https | Scheme::Http) => {
                Err("`proxy` is for `https://` and `http://` only".to_owned())
            }
            Some(proxy) => validate_proxy(proxy),
            None if self.proxy_username.is_some() => Err("`proxy_username` needs `proxy`".to_owned()),
            None => Ok(()),
        }
    }

    fn validate_intervals(&self) -> Result<(), String> {
        if self.webhook_secret_files.len() > MOST_WEBHOOK_SECRETS {
            return Err(format!("`webhook_secret_files` names more than {MOST_WEBHOOK_SECRETS} files"));
        }
        if self.shortest_gap > LONGEST_INTERVAL {
            return Err("`shortest_gap` must be at most `366d`".to_owned());
        }
        for (key, value) in [
            ("poll_interval", self.poll_interval),
            ("stall_timeout", self.stall_timeout),
            ("poll_timeout", self.poll_timeout),
            ("build_timeout", self.build_timeout),
        ] {
            if value < SHORTEST_INTERVAL {
                return Err(format!("`{key}` must be at least `1s`"));
            }
            if value > LONGEST_INTERVAL {
                return Err(format!("`{key}` must be at most `366d`"));
            }
        }
        Ok(())
    }
}

fn validate_proxy(proxy: &str) -> Result<(), String> {
    let url = gix::url::parse(proxy).ok().filter(|url| matches!(url.scheme, Scheme::Http | Scheme::Https));
    match url {
        None => Err("`proxy` is not an address such as `http://proxy.example:3128`".to_owned()),
        Some(url) if url.user().is_some() || url.password().is_some() => {
            Err("`proxy` holds a user name or a password: use `proxy_username` and `proxy_password_file`".to_owned())
        }
        Some(_) => Ok(()),
    }
}

/// Whether a URL is a path that depends on the working directory.
fn is_relative_path(url: &str) -> bool {
    !url.is_empty()
        && !url.contains("://")
        && Path::new(url).is_relative()
        && gix::url::parse(url).is_ok_and(|url| url.scheme == Scheme::File)
}
