//! The interface of a source, of every kind: the requests of a repository's worker and their results.
//!
//! All methods block. Where there is a `stop`, setting it ends the method soon.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;

use super::{FetchProgress, LeftOutRef, PollFailure, ServiceFailure};
use crate::config::RepositoryConfig;
use crate::publish::{Candidate, MirrorManifest, Part, PublishError, StoredLfsObject};
use crate::service::Service;
use crate::source::git::lfs::{LfsFile, LfsOid};
use crate::source::git::revision::Revision;
use crate::tarball::{BuildContext, Built, FrameSink, Limits, ListedEntry, Listing, Selection};

/// Follows the upstream of one repository and stores its content. Methods with a body are optional.
pub(crate) trait Source: Send + Sync {
    /// Queries the upstream for changes, and fetches them if it may.
    fn poll(&self, request: &PollRequest<'_>, stop: &AtomicBool) -> Result<PollOutcome, PollFailure>;

    /// The refs that the last poll left out.
    fn left_out(&self, _: &[Arc<Service>]) -> Vec<LeftOutRef> {
        Vec::new()
    }

    /// Resolves the revision of each service in the stored content, and the key of its tarball. An `Err` applies to all
    /// services.
    fn resolve(
        &self,
        config: &RepositoryConfig,
        services: &[Arc<Service>],
        stop: &AtomicBool,
    ) -> Result<ResolvedServices, ServiceFailure>;

    /// Builds the tarball of a service at a revision. Its LFS objects must be stored.
    fn build(
        &self,
        service: &Service,
        revision: &RevisionId,
        context: &BuildContext<'_>,
        sink: &dyn FrameSink,
    ) -> Result<Built, ServiceFailure>;

    /// Lists what a tarball would contain. Returns the revision, too.
    fn list(
        &self,
        request: &ListRequest<'_>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(ListedEntry),
    ) -> Result<(RevisionId, Listing), ServiceFailure>;

    /// Whether anything is stored that may be published without querying the upstream.
    fn has_content(&self) -> bool;

    /// When the stored refs last changed.
    fn refs_changed_at(&self) -> Option<SystemTime> {
        None
    }

    /// The LFS files that must be fetched before a service can be built at a revision.
    fn missing_lfs_files(&self, _: &Service, _: &RevisionId, _: &AtomicBool) -> Result<Vec<LfsFile>, ServiceFailure> {
        Ok(Vec::new())
    }

    /// Fetches LFS files, if there is room for them.
    fn fetch_lfs_files(&self, _: &LfsFetchRequest<'_>, _: &AtomicBool) -> Result<LfsFetchResult, ServiceFailure> {
        Ok(LfsFetchResult::default())
    }

    /// Maintains the stored content. It counts and logs the result itself.
    fn maintain(&self, _: &MaintenanceRequest<'_>, _: &AtomicBool) {}

    /// Makes stored content from bundles, if there is none or if it is damaged. Returns how many bundles were used.
    fn hydrate(&self, _: &HydrateRequest<'_>, _: &AtomicBool) -> Result<usize, BundleError> {
        Ok(0)
    }

    /// Writes the next bundle of the stored content, if one is due.
    fn write_bundle(&self, _: &BundleRequest<'_>, _: &AtomicBool) -> Result<Bundled, BundleError> {
        Ok(Bundled::UpToDate)
    }

    /// Counts and logs that maintenance could not run.
    fn maintenance_failed(&self, _reason: &str) {}

    /// Whether something failed that damage would explain, so that the stored content must be checked. Never waits for the
    /// disk.
    fn needs_check(&self) -> bool {
        false
    }

    /// Reads all of the stored content to find damage.
    fn check(&self, _now: Instant, _: &AtomicBool) {}

    /// Records that something failed that damage of the stored content would explain.
    fn suspect_damage(&self, _now: Instant) {}

    /// Whether the next poll repairs the stored content. Never waits for the disk.
    fn needs_repair(&self, _now: Instant) -> bool {
        false
    }

    /// Removes the content of the same repository at other URLs. Called once this content is complete.
    fn remove_other_mirrors(&self) {}

    /// Removes all stored content. Nothing may use it any more.
    fn remove_all(&self) {}
}

/// The result of resolving services: for each its revision and key, or why there is none.
pub(crate) type ResolvedServices = Vec<(Arc<Service>, Result<Candidate, ServiceFailure>)>;

/// The revisions of the repository's current and retained versions.
pub(crate) type RetainedRevisions = Result<Vec<(ServiceName, RevisionId)>, PublishError>;

/// Parameters of a poll.
pub(crate) struct PollRequest<'a> {
    pub(crate) config: &'a RepositoryConfig,
    /// The services whose refs are needed.
    pub(crate) services: &'a [Arc<Service>],
    /// Updated as the poll proceeds.
    pub(crate) progress: &'a FetchProgress,
    /// Whether changes may be fetched now. Listing refs is short; a fetch may be long and needs a permit of its own.
    pub(crate) may_fetch: &'a dyn Fn() -> bool,
    /// Called with the reason when damaged content is set aside and everything is fetched again.
    pub(crate) on_mirror_replaced: &'a dyn Fn(&str),
}

/// The result of a poll that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollOutcome {
    /// No ref changed.
    Unchanged,
    /// Refs changed, and their content was fetched.
    Changed,
    /// Refs changed, and fetching needs a permit first.
    FetchPending,
}

/// Parameters of a listing.
pub(crate) struct ListRequest<'a> {
    pub(crate) target: &'a ListTarget,
    pub(crate) selection: &'a Selection,
    pub(crate) limits: &'a Limits,
}

/// What is listed.
pub(crate) enum ListTarget {
    /// What a service with this ref would publish.
    Revision(Revision),
    /// A revision that was listed before, even if no ref leads to it any more.
    At(RevisionId),
}

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
