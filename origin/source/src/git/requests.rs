//! What only a mirror of Git can do for the worker of its repository: the requests and the results.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_protocol::digest::ObjectDigest;
use weir_upstream::RepositoryConfig;

use super::lfs::{LfsFile, LfsOid};
use crate::{MirrorManifest, Part, RetainedRevisions, Service, StoredLfsObject};

/// Parameters of a fetch of LFS files.
pub struct LfsFetchRequest<'a> {
    /// The repository.
    pub config: &'a RepositoryConfig,
    /// The files to fetch.
    pub files: &'a [LfsFile],
    /// Whether the mirror is complete. While it is cloned again it does not show which objects are needed.
    pub mirrored: bool,
    /// All services of the repository.
    pub services: &'a [Arc<Service>],
    /// The versions whose objects are needed.
    pub published: &'a RetainedRevisions,
    /// Called before each HTTP request. Returns how long it must wait; `None`: it may be sent, and is counted.
    pub budget: &'a dyn Fn() -> Option<Duration>,
    /// Whether an object is still needed.
    pub is_needed: &'a dyn Fn(&LfsOid) -> bool,
    /// The objects of the stored mirror, which need no request to the upstream.
    pub stored: &'a [StoredLfsObject],
    /// Reads their parts.
    pub read: ReadPart<'a>,
}

/// The result of a fetch of LFS files.
#[derive(Debug, Default)]
pub struct LfsFetchResult {
    /// The number of fetched objects.
    pub fetched: usize,
    /// Why objects could not be fetched, each reason once.
    pub failures: Vec<String>,
    /// The server's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// Whether it was stopped before all were tried.
    pub interrupted: bool,
}

/// Parameters of maintenance.
pub struct MaintenanceRequest<'a> {
    /// The versions whose content is needed.
    pub published: &'a RetainedRevisions,
    /// All services of the repository, if LFS objects that none of them needs are to be removed.
    pub sweep: Option<&'a [Arc<Service>]>,
}

/// Reads an object of the stored mirror, or says why it cannot be read.
pub type ReadPart<'a> = &'a dyn Fn(&Part) -> Result<Bytes, String>;

/// Parameters of making content from bundles.
pub struct HydrateRequest<'a> {
    /// The repository.
    pub config: &'a RepositoryConfig,
    /// The stored mirror.
    pub stored: &'a MirrorManifest,
    /// Reads its parts.
    pub read: ReadPart<'a>,
    /// Take in newer bundles although there is content. Nothing else may change it.
    pub update: bool,
    /// Called with the reason when damaged content is set aside.
    pub on_mirror_replaced: &'a dyn Fn(&str),
}

/// Parameters of writing a bundle.
pub struct BundleRequest<'a> {
    /// What is stored already.
    pub stored: &'a MirrorManifest,
    /// Reads its parts.
    pub read: ReadPart<'a>,
    /// Stores an object.
    pub write: &'a dyn Fn(Bytes) -> Result<ObjectDigest, String>,
    /// Unix milliseconds.
    pub now: u64,
    /// The repository is about to move.
    pub at_once: bool,
    /// The largest mirror to store, in bytes.
    pub max_mirror: u64,
    /// The largest part, in bytes.
    pub max_part: u64,
}

/// The result of writing a bundle.
#[derive(Debug)]
pub enum Bundled {
    /// Nothing moved since the last one.
    UpToDate,
    /// The last one is too recent.
    NotYet,
    /// A bundle was written.
    Written(WrittenBundle),
}

/// A new bundle.
#[derive(Debug)]
pub struct WrittenBundle {
    /// All that is stored now.
    pub stored: MirrorManifest,
    /// Whether it has all of the mirror.
    pub is_full: bool,
    /// Bytes written.
    pub bytes: u64,
}

/// Why a bundle could not be written, or content not be made from bundles.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It is above the limit.
    #[error("the mirror has {bytes} bytes, more than `[store] max_mirror` = {limit}: raise it to store the mirror")]
    TooLarge {
        /// Bytes of the mirror.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// `stop` was set.
    #[error("it was interrupted")]
    Interrupted,
    /// For operators.
    #[error("{0}")]
    Failed(String),
}

impl BundleError {
    /// A failure with this reason.
    pub fn failed(error: &dyn std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

impl LfsFetchResult {
    pub(crate) fn fail(&mut self, reason: String) {
        if !self.failures.contains(&reason) {
            self.failures.push(reason);
        }
    }
}
