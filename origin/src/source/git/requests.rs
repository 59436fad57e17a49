//! What only a mirror of Git can do for the worker of its repository: the requests and the results.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_protocol::digest::ObjectDigest;

use super::lfs::{LfsFile, LfsOid};
use crate::source::{MirrorManifest, Part, RepositoryConfig, RetainedRevisions, Service, StoredLfsObject};

/// Parameters of a fetch of LFS files.
pub(crate) struct LfsFetchRequest<'a> {
    pub(crate) config: &'a RepositoryConfig,
    pub(crate) files: &'a [LfsFile],
    /// Whether the mirror is complete. While it is cloned again it does not show which objects are needed.
    pub(crate) mirrored: bool,
    /// All services of the repository.
    pub(crate) services: &'a [Arc<Service>],
    pub(crate) published: &'a RetainedRevisions,
    /// Called before each HTTP request. Returns how long it must wait; `None`: it may be sent, and is counted.
    pub(crate) budget: &'a dyn Fn() -> Option<Duration>,
    /// Whether an object is still needed.
    pub(crate) is_needed: &'a dyn Fn(&LfsOid) -> bool,
    /// The objects of the stored mirror, which need no request to the upstream.
    pub(crate) stored: &'a [StoredLfsObject],
    pub(crate) read: ReadPart<'a>,
}

/// The result of a fetch of LFS files.
#[derive(Debug, Default)]
pub(crate) struct LfsFetchResult {
    /// The number of fetched objects.
    pub(crate) fetched: usize,
    /// Why objects could not be fetched, each reason once.
    pub(crate) failures: Vec<String>,
    /// The server's `Retry-After`.
    pub(crate) retry_after: Option<Duration>,
    pub(crate) interrupted: bool,
}

/// Parameters of maintenance.
pub(crate) struct MaintenanceRequest<'a> {
    pub(crate) published: &'a RetainedRevisions,
    /// All services of the repository, if LFS objects that none of them needs are to be removed.
    pub(crate) sweep: Option<&'a [Arc<Service>]>,
}

/// Reads an object of the stored mirror, or says why it cannot be read.
pub(crate) type ReadPart<'a> = &'a dyn Fn(&Part) -> Result<Bytes, String>;

/// Parameters of making content from bundles.
pub(crate) struct HydrateRequest<'a> {
    pub(crate) config: &'a RepositoryConfig,
    pub(crate) stored: &'a MirrorManifest,
    pub(crate) read: ReadPart<'a>,
    /// Take in newer bundles although there is content. Nothing else may change it.
    pub(crate) update: bool,
    /// Called with the reason when damaged content is set aside.
    pub(crate) on_mirror_replaced: &'a dyn Fn(&str),
}

/// Parameters of writing a bundle.
pub(crate) struct BundleRequest<'a> {
    /// What is stored already.
    pub(crate) stored: &'a MirrorManifest,
    pub(crate) read: ReadPart<'a>,
    /// Stores an object.
    pub(crate) write: &'a dyn Fn(Bytes) -> Result<ObjectDigest, String>,
    /// Unix milliseconds.
    pub(crate) now: u64,
    /// The repository is about to move.
    pub(crate) at_once: bool,
    /// The largest mirror to store, in bytes.
    pub(crate) max_mirror: u64,
    /// The largest part, in bytes.
    pub(crate) max_part: u64,
}

/// The result of writing a bundle.
#[derive(Debug)]
pub(crate) enum Bundled {
    /// Nothing moved since the last one.
    UpToDate,
    /// The last one is too recent.
    NotYet,
    Written(WrittenBundle),
}

/// A new bundle.
#[derive(Debug)]
pub(crate) struct WrittenBundle {
    /// All that is stored now.
    pub(crate) stored: MirrorManifest,
    pub(crate) is_full: bool,
    /// Bytes written.
    pub(crate) bytes: u64,
}

/// Why a bundle could not be written, or content not be made from bundles.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    #[error("the mirror has {bytes} bytes, more than `[store] max_mirror` = {limit}: raise it to store the mirror")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("it was interrupted")]
    Interrupted,
    /// For operators.
    #[error("{0}")]
    Failed(String),
}

impl BundleError {
    pub(crate) fn failed(error: &dyn std::fmt::Display) -> Self {
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
