//! `[[repository]]`: an upstream and how it is asked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_shared::name::RepositoryName;
use weir_shared::process::config::{self, ConfigError, duration};
use weir_shared::process::tls;

use super::verify::VerifyConfig;
use crate::mirror::Upstream;
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
    /// Where it is: `https://`, `http://`, `git://`, `file://`, or a path. Without user name and password.
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
    /// A file with the password or token, read again for each poll.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
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
            stall_timeout: DEFAULT_STALL_TIMEOUT,
            poll_timeout: DEFAULT_POLL_TIMEOUT,
            build_timeout: DEFAULT_BUILD_TIMEOUT,
            verify: None,
        }
    }

    /// The part that the mirror looks at.
    pub fn upstream(&self) -> Upstream {
        Upstream {
            ca: self.ca.clone(),
            username: self.username.clone(),
            password_file: self.password_file.clone(),
            stall_timeout: self.stall_timeout,
            ..Upstream::new(self.url.as_str())
        }
    }

    /// The files that it names, each with its key.
    pub(crate) fn files_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut PathBuf)> {
        let files = [("ca", &mut self.ca), ("password_file", &mut self.password_file)];
        let files = files.into_iter().filter_map(|(key, file)| Some((key, file.as_mut()?)));
        let files = files.chain(self.webhook_secret_files.iter_mut().map(|file| ("webhook_secret_files", file)));
        files.chain(self.verify.iter_mut().flat_map(VerifyConfig::files_mut))
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

    /// The files that are named.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let verify = self.verify.iter().flat_map(VerifyConfig::paths);
        self.ca.iter().chain(&self.password_file).chain(&self.webhook_secret_files).chain(verify)
    }

    /// Opens the files that are named.
    pub(super) fn check_files(&self) -> Result<(), ConfigError> {
        let named = |error: String| ConfigError::invalid(format!("repository `{}`: {error}", self.name));
        if let Some(ca) = &self.ca {
            tls::read_roots(ca).map_err(|error| named(format!("`ca`: {error}")))?;
        }
        if let Some(file) = &self.password_file {
            let read = std::fs::read_to_string(file);
            let password = read.map_err(|error| named(format!("`password_file` {}: {error}", file.display())))?;
            if password.trim().is_empty() {
                return Err(named(format!("`password_file` {} is empty", file.display())));
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
        if self.url.is_empty() {
            return wrong("`url` is empty".to_owned());
        }
        // The message must not repeat the URL: it may hold a password.
        let Ok(url) = gix::url::parse(self.url.as_str()) else {
            return wrong("`url` is not an address such as `https://git.example/acme/shop.git`".to_owned());
        };
        if url.scheme == gix::url::Scheme::Ssh {
            return wrong("`url` is of SSH, which is not supported yet: use `https://`".to_owned());
        }
        if url.password().is_some() || url.user().is_some() {
            return wrong(
                "`url` holds a user name or a password: put the user into `username` and the password into a file \
                 named by `password_file`"
                    .to_owned(),
            );
        }
        if let Some(Err(reason)) = self.verify.as_ref().map(VerifyConfig::validate) {
            return wrong(reason);
        }
        match (&self.username, &self.password_file) {
            (Some(_), None) => return wrong("`username` needs `password_file`".to_owned()),
            (None, Some(_)) => return wrong("`password_file` needs `username`".to_owned()),
            (Some(_), Some(_)) if url.scheme != gix::url::Scheme::Https => {
                return wrong(
                    "a password is sent over `https://` only, where nobody else can read it: change `url`, or take \
                     `username` and `password_file` away"
                        .to_owned(),
                );
            }
            _ => {}
        }
        if self.webhook_secret_files.len() > MOST_WEBHOOK_SECRETS {
            return wrong(format!("`webhook_secret_files` names more than {MOST_WEBHOOK_SECRETS} files"));
        }
        if self.shortest_gap > LONGEST_INTERVAL {
            return wrong("`shortest_gap` must be at most `366d`".to_owned());
        }
        for (key, value) in [
            ("poll_interval", self.poll_interval),
            ("stall_timeout", self.stall_timeout),
            ("poll_timeout", self.poll_timeout),
            ("build_timeout", self.build_timeout),
        ] {
            if value < SHORTEST_INTERVAL {
                return wrong(format!("`{key}` must be at least `1s`"));
            }
            if value > LONGEST_INTERVAL {
                return wrong(format!("`{key}` must be at most `366d`"));
            }
        }
        Ok(())
    }
}

/// Whether a URL is a path that depends on the working directory.
fn is_relative_path(url: &str) -> bool {
    !url.is_empty()
        && !url.contains("://")
        && Path::new(url).is_relative()
        && gix::url::parse(url).is_ok_and(|url| url.scheme == gix::url::Scheme::File)
}
