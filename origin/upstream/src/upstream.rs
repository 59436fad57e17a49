//! The upstream of a repository: its URL, credentials and limits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use weir_model::ServerClocks;

use super::egress_policy::EgressPolicy;
use super::endpoint::{Address, Endpoint};
use super::layer_selector::LayerSelector;
use super::platform_name::PlatformName;
use super::redirects::Redirects;

/// The default of [`Upstream::stall_timeout`].
pub(crate) const DEFAULT_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The default of [`Upstream::max_refs`].
pub(crate) const DEFAULT_MAX_REFS: usize = 100_000;

/// The default of [`Upstream::max_pack`], in bytes.
pub(crate) const DEFAULT_MAX_PACK: u64 = 16 << 30;

/// The default of [`Upstream::max_mirror`], in bytes.
pub(crate) const DEFAULT_MAX_MIRROR: u64 = 32 << 30;

/// The default of [`Upstream::max_object`], in bytes: more than hosting services accept.
pub const DEFAULT_MAX_OBJECT: u64 = 256 << 20;

/// The default of [`Upstream::max_objects`]: twice as many as Linux has. Indexing takes up to 400 bytes of memory for each.
pub(crate) const DEFAULT_MAX_OBJECTS: usize = 20_000_000;

/// The default of [`Upstream::max_lfs_object`], in bytes.
pub(crate) const DEFAULT_MAX_LFS_OBJECT: u64 = 2 << 30;

/// The default of [`Upstream::max_index`], in bytes: as Helm's and Flux's own.
pub(crate) const DEFAULT_MAX_INDEX: u64 = 50 << 20;

/// The default of [`Upstream::max_chart`], in bytes: as Flux's own.
pub(crate) const DEFAULT_MAX_CHART: u64 = 10 << 20;

/// The default of [`Upstream::max_artifact`], in bytes.
pub(crate) const DEFAULT_MAX_ARTIFACT: u64 = 256 << 20;

/// The default of [`Upstream::max_unpacked`], in bytes.
pub(crate) const DEFAULT_MAX_UNPACKED: u64 = 512 << 20;

/// The default of [`Upstream::max_tags`].
pub(crate) const DEFAULT_MAX_TAGS: usize = 10_000;

/// The default of [`Upstream::min_rate`], in bytes per second.
pub(crate) const DEFAULT_MIN_RATE: u64 = 1 << 10;

/// The upstream of a repository, and how it is accessed. All files are read again for each poll.
#[derive(Clone, PartialEq, Eq)]
pub struct Upstream {
    /// `https://…`, `http://…` (without credentials), `ssh://…`, `user@host:path`, `git://…`, `file://…` or a local path.
    pub url: Endpoint,
    /// Whether a registry speaks plain HTTP.
    pub insecure: bool,
    /// Which layer of an artifact is followed.
    pub layer: LayerSelector,
    /// Which image of an index is followed.
    pub platform: Option<PlatformName>,
    /// A PEM file with the only trusted certificate authorities for `https://`. `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// The user name for authentication.
    pub username: Option<String>,
    /// The file of the password: one line.
    pub password_file: Option<PathBuf>,
    /// The file of a bearer token.
    pub token_file: Option<PathBuf>,
    /// A PEM file with the client certificate and its chain.
    pub client_certificate: Option<PathBuf>,
    /// A PEM file with its key.
    pub client_key: Option<PathBuf>,
    /// The proxy of all HTTP requests: `http://host:port` or `https://host:port`.
    pub proxy: Option<Endpoint>,
    /// The user name for the proxy.
    pub proxy_username: Option<String>,
    /// The file of the password for the proxy.
    pub proxy_password_file: Option<PathBuf>,
    /// The allowed redirects.
    pub redirects: Redirects,
    /// The private key for SSH, without a passphrase.
    pub ssh_key: Option<PathBuf>,
    /// The file of trusted SSH host keys, as OpenSSH writes `known_hosts`.
    pub ssh_known_hosts: Option<PathBuf>,
    /// The allowed hosts and addresses.
    pub egress: Arc<EgressPolicy>,
    /// How long the upstream may send nothing before the poll fails.
    pub stall_timeout: Duration,
    /// The most refs of a listing.
    pub max_refs: usize,
    /// The most bytes of one fetch.
    pub max_pack: u64,
    /// The most bytes of the mirror. Nothing is fetched beyond.
    pub max_mirror: u64,
    /// The most bytes of an object. A fetch has some objects in memory.
    pub max_object: u64,
    /// The most objects of one fetch.
    pub max_objects: usize,
    /// The most bytes of an LFS object.
    pub max_lfs_object: u64,
    /// The most bytes of the index of a Helm repository.
    pub max_index: u64,
    /// The most bytes of the archive of a chart.
    pub max_chart: u64,
    /// The most bytes of an artifact's layer.
    pub max_artifact: u64,
    /// The most bytes of an archive without its compression.
    pub max_unpacked: u64,
    /// The most tags of a repository in a registry.
    pub max_tags: usize,
    /// The minimum rate of LFS downloads in bytes per second, on average over four stall timeouts.
    pub min_rate: u64,
    /// Takes the time of the upstream's answers.
    pub clocks: ServerClocks,
}

impl Upstream {
    /// An upstream without credentials, with the default limits.
    pub fn new(url: impl Into<Endpoint>) -> Self {
        Self {
            url: url.into(),
            insecure: false,
            layer: LayerSelector::default(),
            platform: None,
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
            egress: Arc::default(),
            stall_timeout: DEFAULT_STALL_TIMEOUT,
            max_refs: DEFAULT_MAX_REFS,
            max_pack: DEFAULT_MAX_PACK,
            max_mirror: DEFAULT_MAX_MIRROR,
            max_object: DEFAULT_MAX_OBJECT,
            max_objects: DEFAULT_MAX_OBJECTS,
            max_lfs_object: DEFAULT_MAX_LFS_OBJECT,
            max_index: DEFAULT_MAX_INDEX,
            max_chart: DEFAULT_MAX_CHART,
            max_artifact: DEFAULT_MAX_ARTIFACT,
            max_unpacked: DEFAULT_MAX_UNPACKED,
            max_tags: DEFAULT_MAX_TAGS,
            min_rate: DEFAULT_MIN_RATE,
            clocks: ServerClocks::default(),
        }
    }

    /// The URL to which HTTP requests go: of a registry its own, without a path.
    ///
    /// # Errors
    /// The upstream is not one of HTTP, or its URL is invalid. The reason has no part of the text.
    pub(crate) fn http_url(&self) -> Result<Url, &'static str> {
        match self.url.address() {
            Ok(Address::Oci(address)) => Ok(address.registry(self.insecure).clone()),
            _ => self.url.http().cloned(),
        }
    }
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream").field("url", &self.url).finish_non_exhaustive()
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
