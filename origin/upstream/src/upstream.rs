//! The upstream of a repository: its definition, its limits, and who may be contacted for it.

use std::fmt;
use std::sync::Arc;

use reqwest::Url;
use weir_model::ServerClocks;

use super::config::{RepositoryConfig, UpstreamsConfig};
use super::egress_policy::EgressPolicy;
use super::endpoint::{Address, Endpoint};

/// The upstream of a repository, and how it is accessed. All files are read again for each poll.
#[derive(Clone)]
pub struct Upstream {
    /// Its URL, its credentials, and how its answers are read.
    pub config: RepositoryConfig,
    /// How much is fetched from it.
    pub limits: UpstreamsConfig,
    /// The allowed hosts and addresses.
    pub egress: Arc<EgressPolicy>,
    /// Takes the time of the upstream's answers.
    pub clocks: ServerClocks,
}

impl Upstream {
    /// The upstream of a repository.
    pub fn of(config: &RepositoryConfig, limits: &UpstreamsConfig, clocks: ServerClocks) -> Self {
        let egress = Arc::new(limits.egress_policy(config.defined_by));
        Self { config: config.clone(), limits: limits.clone(), egress, clocks }
    }

    /// An upstream without credentials, with the default limits.
    pub fn new(url: impl Into<Endpoint>) -> Self {
        let config = RepositoryConfig::new("upstream".parse().expect("a valid name"), url);
        Self::of(&config, &UpstreamsConfig::default(), ServerClocks::default())
    }

    /// The URL to which HTTP requests go: of a registry its own, without a path.
    ///
    /// # Errors
    /// The upstream is not one of HTTP, or its URL is invalid. The reason has no part of the text.
    pub(crate) fn http_url(&self) -> Result<Url, &'static str> {
        match self.config.url.address() {
            Ok(Address::Oci(address)) => Ok(address.registry(self.config.insecure).clone()),
            _ => self.config.url.http().cloned(),
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("url", &self.config.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let upstream = Upstream::new("https://me:secret@git.example/a.git");
        assert!(!format!("{upstream:?}").contains("secret"));
    }
}
