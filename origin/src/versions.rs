//! Operations of operators on the versions of a service: history, diff, rollback, pin and unpin.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::{Author, Entry, HistoryPage, Positions, PublishError, Publisher, VersionChange, VersionChangeError};
use weir_runtime::bounds::Bounds;
use weir_source::Service;
use weir_store::ObjectError;

use crate::catalog::Catalog;
use crate::diff::Cancellable;
pub use crate::diff::{Diff, Difference, EntryInfo, EntryKind, NoText};
use crate::tar_reader::{ReadError, TarReader};

/// The most concurrent diffs, each of which reads two tarballs; more wait.
const CONCURRENT_DIFFS: usize = 2;

/// The most concurrent rollbacks, each of which verifies every object of a version; more wait. Diffs have their own
/// limit, because rollbacks are needed in emergencies.
const CONCURRENT_ROLLBACKS: usize = 2;

/// The most versions that are being built and staged; more wait.
const CONCURRENT_STAGINGS: usize = 2;

/// The longest wait for a permit.
const PERMIT_WAIT: Duration = Duration::from_secs(10);

/// The longest time of a comparison.
const DIFF_TIMEOUT: Duration = Duration::from_secs(120);

/// The longest wait for the rebuild of a missing or damaged object.
const REBUILD_WAIT: Duration = Duration::from_secs(60);

/// Reads and changes versions. A change is completed even if the caller gives up.
#[derive(Clone)]
pub struct Versions {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) publisher: Arc<Publisher>,
    diffs: Arc<Semaphore>,
    rollbacks: Arc<Semaphore>,
    pub(crate) stagings: Arc<Semaphore>,
}

/// The operator of a change, and its precondition.
#[derive(Debug, Clone, Default)]
pub struct ChangeRequest {
    /// The operator's name, for the history.
    pub by: Option<String>,
    /// Why, in the operator's words, for the history.
    pub reason: Option<String>,
    /// Apply the change only to this generation.
    pub expected: Option<Generation>,
}

/// Why a version cannot be read or changed. Nothing was changed, except perhaps after [`VersionError::Unreadable`].
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// The service is not configured.
    #[error("there is no service `{0}`")]
    NoSuchService(ServiceName),
    /// The service has no version to pin.
    #[error("service `{0}` has no published version to pin")]
    NothingPublished(ServiceName),
    /// The version was never published, or has expired.
    #[error("service `{0}` has no retained version `{1}`; its history lists the retained versions")]
    NotRetained(ServiceName, String),
    /// Several retained versions are called so.
    #[error("service `{service}` has {} retained versions that are called `{name}`: name one by its digest", candidates.len())]
    Ambiguous {
        /// The service.
        service: ServiceName,
        /// What they are called.
        name: String,
        /// The versions.
        candidates: Vec<Entry>,
    },
    /// What is published is a rollback, and `previous` is what it left.
    #[error(
        "service `{service}` is rolled back already, to {to} by {by}: `previous` would undo that. Name the version to return to, as \
         its history lists them; an unpin lets the service follow again"
    )]
    RolledBack {
        /// The service.
        service: ServiceName,
        /// What is published.
        to: String,
        /// The operator who rolled back to it.
        by: String,
    },
    /// It cannot be staged, or promoted, now.
    #[error("nothing was changed: {reason}")]
    NotStageable {
        /// The service.
        service: ServiceName,
        /// For operators.
        reason: String,
    },
    /// Nothing is staged that could be promoted or aborted.
    #[error("nothing is staged of service `{0}`")]
    NothingStaged(ServiceName),
    /// Another generation than the expected one is current.
    #[error("service `{service}` is not at the expected generation: another write came first")]
    GenerationConflict {
        /// The service.
        service: ServiceName,
        /// Its current generation.
        current: Option<Generation>,
    },
    /// The service was changed or deleted meanwhile.
    #[error("service `{0}` was changed or deleted at the same time; nothing was done, try again")]
    Withdrawn(ServiceName),
    /// An object is lost.
    #[error("object {0} of the version is damaged or missing and could not be rebuilt; the log has the reason")]
    Lost(ObjectDigest),
    /// The state or an object cannot be read or written now.
    #[error("{0}")]
    Unreadable(String),
    /// The object store cannot be read now.
    #[error("the object store cannot be read now: {0}")]
    Store(String),
    /// Too many operations of this kind are running.
    #[error("too many {0} are running: try again")]
    Busy(&'static str),
    /// The comparison took too long.
    #[error("the comparison took longer than {} s and was cancelled", DIFF_TIMEOUT.as_secs())]
    TooLong,
    /// A bug in the program.
    #[error("a bug in the program ended the operation; the log of the process shows where")]
    Panicked,
}

impl From<VersionChangeError> for VersionError {
    fn from(error: VersionChangeError) -> Self {
        match error {
            VersionChangeError::Publish(error) => error.into(),
            VersionChangeError::NothingPublished(service) => Self::NothingPublished(service),
            VersionChangeError::NotRetained(service, digest) => Self::NotRetained(service, digest.to_string()),
            VersionChangeError::GenerationConflict { service, current } => {
                Self::GenerationConflict { service, current }
            }
            VersionChangeError::Withdrawn(service) => Self::Withdrawn(service),
        }
    }
}

impl From<PublishError> for VersionError {
    fn from(error: PublishError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<ReadError> for VersionError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Object(ObjectError::Missing(at) | ObjectError::Corrupt(at)) => Self::Lost(at.digest),
            ReadError::Object(ObjectError::Unavailable(reason)) => Self::Store(reason),
            error => Self::Unreadable(format!("the version cannot be read: {error}")),
        }
    }
}

/// Why a history was not read.
fn unread(error: PublishError) -> VersionError {
    match error {
        PublishError::Object(reason) => VersionError::Store(reason),
        error => error.into(),
    }
}

/// Waits for a permit.
pub(crate) async fn acquire(permits: &Arc<Semaphore>, of: &'static str) -> Result<OwnedSemaphorePermit, VersionError> {
    let permit = tokio::time::timeout(PERMIT_WAIT, permits.clone().acquire_owned()).await;
    permit.map_err(|_| VersionError::Busy(of))?.map_err(|_| VersionError::Panicked)
}

impl Versions {
    pub(crate) fn new(catalog: Arc<Catalog>, publisher: Arc<Publisher>, bounds: &Bounds) -> Self {
        let (diffs, rollbacks) =
            (bounds.semaphore("diffs", CONCURRENT_DIFFS), bounds.semaphore("rollbacks", CONCURRENT_ROLLBACKS));
        let stagings = bounds.semaphore("stagings", CONCURRENT_STAGINGS);
        Self { catalog, publisher, diffs, rollbacks, stagings }
    }

    /// A part of a service's history, the newest publications first: those before a generation, or from the newest
    /// on, at most 200. The page names the `before` of the next one.
    ///
    /// # Errors
    /// There is no such service, or the state cannot be read.
    pub async fn history(
        &self,
        service: &ServiceName,
        before: Option<Generation>,
        limit: usize,
    ) -> Result<HistoryPage, VersionError> {
        let service = self.service(service)?;
        let read = self.publisher.queries.history(&service.repository, &service.name, before, limit).await;
        read.map_err(unread)
    }

    /// The order of a repository's publications and tips.
    pub(crate) async fn positions(&self, repository: &RepositoryName) -> Result<Arc<Positions>, VersionError> {
        self.publisher.queries.positions(repository).await.map_err(unread)
    }

    /// The retained version that is called `name`: by a digest or a commit, or its first 7 digits or more; by a version; or
    /// `current` or `previous`.
    ///
    /// # Errors
    /// There is no such service, or none or several of its retained versions are called so.
    pub async fn resolve(&self, service: &ServiceName, name: &str) -> Result<Entry, VersionError> {
        let found = self.service(service)?;
        let mut called = self.publisher.queries.called(&found.repository, service, name).await?;
        match called.len() {
            0 => Err(VersionError::NotRetained(service.clone(), name.to_owned())),
            1 => Ok(called.remove(0)),
            _ => Err(VersionError::Ambiguous { service: service.clone(), name: name.to_owned(), candidates: called }),
        }
    }

    /// Compares two retained versions of a service. At most `limit` and 1,000 differences are listed; the others are
    /// counted. With texts, those of small files are in it.
    ///
    /// # Errors
    /// There is no such service, a version is not retained, its objects are lost, or the comparison takes too long.
    pub async fn diff(
        &self,
        service: &ServiceName,
        old: &TarballDigest,
        new: &TarballDigest,
        limit: usize,
        with_texts: bool,
    ) -> Result<Diff, VersionError> {
        let service = self.service(service)?;
        let permit = acquire(&self.diffs, "diffs").await?;
        let (old, new) = (self.readable(&service, old).await?, self.readable(&service, new).await?);
        let stop = CancellationToken::new();
        // Also stops the comparison if the client disconnects.
        let _stops = stop.clone().drop_guard();
        let runtime = Handle::current();
        let compared = spawn_blocking(move || {
            let tar = |reader: TarReader| Cancellable::new(reader.blocking(runtime.clone()), stop.clone());
            let diff = crate::diff::diff(tar(old), tar(new), limit, with_texts);
            drop(permit);
            diff.map_err(|error| VersionError::Unreadable(format!("the version cannot be read: {error}")))
        });
        match tokio::time::timeout(DIFF_TIMEOUT, compared).await {
            Ok(compared) => compared.map_err(|_| VersionError::Panicked)?,
            Err(_) => Err(VersionError::TooLong),
        }
    }

    /// Publishes a retained version under a new generation, and pins the service to it. The current version is only
    /// pinned. A version with a missing object is rebuilt first.
    ///
    /// # Errors
    /// There is no such service, the version is not retained or its objects are lost, or another generation than the
    /// expected one is current.
    pub async fn roll_back(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        request: ChangeRequest,
    ) -> Result<(), VersionError> {
        let (service, digest) = (self.service(service)?, *digest);
        let permit = acquire(&self.rollbacks, "rollbacks").await?;
        self.readable(&service, &digest).await?;
        drop(permit);
        // Looked up again, because it may have been changed meanwhile.
        let service = self.service(&service.name)?;
        self.pin_to(&service, Some(&digest), request).await
    }

    /// Pins a service to its current version.
    ///
    /// # Errors
    /// There is no such service, it has no published version, or another generation than the expected one is current.
    pub async fn pin(&self, service: &ServiceName, request: ChangeRequest) -> Result<(), VersionError> {
        let service = self.service(service)?;
        self.pin_to(&service, None, request).await
    }

    async fn pin_to(
        &self,
        service: &Arc<Service>,
        digest: Option<&TarballDigest>,
        request: ChangeRequest,
    ) -> Result<(), VersionError> {
        let pinned = self.publisher.pin(service, digest, request.change()).await;
        // A move that failed may have left its mark: the repository takes the service back, and the next attempt succeeds.
        if let (Err(VersionChangeError::Withdrawn(_)), Some(worker)) =
            (&pinned, self.catalog.repository(&service.repository))
        {
            worker.resolve_all();
        }
        Ok(pinned?)
    }

    /// Unpins a service, which follows its ref at once, using the mirror. Returns false if it was not pinned.
    ///
    /// # Errors
    /// There is no such service, or another generation than the expected one is current.
    pub async fn unpin(&self, service: &ServiceName, request: ChangeRequest) -> Result<bool, VersionError> {
        let service = self.service(service)?;
        let was_pinned = self.publisher.unpin(&service, request.change()).await;
        // Without a worker the unpin is complete; the service follows its ref once there is one. After an error it
        // may still have been committed.
        if let Some(worker) = self.catalog.repository(&service.repository) {
            worker.resolve_all();
        }
        Ok(was_pinned?)
    }

    /// Accepts the readable state of a damaged repository, so that it publishes again. Returns false if it was not
    /// suspended.
    ///
    /// # Errors
    /// The state cannot be read or written.
    pub async fn confirm(&self, repository: &RepositoryName) -> Result<bool, VersionError> {
        Ok(self.publisher.confirm(repository).await?)
    }

    pub(crate) fn service(&self, name: &ServiceName) -> Result<Arc<Service>, VersionError> {
        self.catalog.service(name).ok_or_else(|| VersionError::NoSuchService(name.clone()))
    }

    /// The tar of a version, after rebuilding missing or damaged objects.
    pub(crate) async fn readable(
        &self,
        service: &Arc<Service>,
        digest: &TarballDigest,
    ) -> Result<TarReader, VersionError> {
        let (version, lost) = match self.open(service, digest).await? {
            (_, Ok(tar)) => return Ok(tar),
            (version, Err(lost)) => (version, lost),
        };
        // A longer build continues, and helps the next attempt.
        if let Some(worker) = self.catalog.repository(&service.repository) {
            let _ = tokio::time::timeout(REBUILD_WAIT, worker.rebuild(lost, version)).await;
        }
        self.open(service, digest).await?.1.map_err(VersionError::Lost)
    }

    /// Opens a version. The inner error is a missing or damaged object.
    async fn open(
        &self,
        service: &Arc<Service>,
        digest: &TarballDigest,
    ) -> Result<(Descriptor, Result<TarReader, ObjectDigest>), VersionError> {
        let version = self.publisher.queries.version(&service.repository, &service.name, digest).await?;
        let version = version.ok_or_else(|| VersionError::NotRetained(service.name.clone(), digest.to_string()))?;
        match TarReader::open(self.publisher.repositories.objects(), &version).await.map_err(VersionError::from) {
            Ok(tar) => Ok((version, Ok(tar))),
            Err(VersionError::Lost(object)) => Ok((version, Err(object))),
            Err(error) => Err(error),
        }
    }
}

impl ChangeRequest {
    pub(crate) fn change(self) -> VersionChange {
        let author = Author { by: self.by, reason: self.reason };
        VersionChange { expected: self.expected, author, now: SystemTime::now() }
    }
}
