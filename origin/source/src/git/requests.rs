//! What only a mirror of Git can do for the worker of its repository: the requests and the results.

use std::sync::Arc;
use std::time::Duration;

use weir_git::bundles::ReadPart;
use weir_git::lfs::{LfsFile, LfsOid};
use weir_model::stored_mirror::StoredLfsObject;
use weir_upstream::RepositoryConfig;

use crate::{RetainedRevisions, Service};

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

impl LfsFetchResult {
    pub(crate) fn fail(&mut self, reason: String) {
        if !self.failures.contains(&reason) {
            self.failures.push(reason);
        }
    }
}
