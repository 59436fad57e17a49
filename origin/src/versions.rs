//! What operators do with the versions of a service: look back, compare, go back, hold on, go on.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};

use crate::bounds::Bounds;
use crate::catalog::Catalog;
use crate::diff::Stoppable;
pub use crate::diff::{Diff, Difference, EntryInfo, Kind};
pub use crate::publish::{Entry, HistoryPage, Listed, Why};
use crate::publish::{PublishError, Publisher, VersionChange, VersionChangeError};
use crate::service::Service;
use crate::store::ObjectError;
use crate::tar_reader::{ReadError, TarReader};

/// Diffs at a time: each reads two whole tarballs. Further ones wait.
const DIFFS: usize = 2;

/// Rollbacks at a time: each verifies every object of a version. Further ones wait; not for diffs, because they are wanted
/// in an emergency.
const ROLLBACKS: usize = 2;

/// How long they wait for their turn.
const TURN_WAIT: Duration = Duration::from_secs(10);

/// How long two tarballs are compared.
const DIFF_TIMEOUT: Duration = Duration::from_secs(120);

/// How long an object that is missing or damaged is waited for while it is rebuilt.
const REBUILD_WAIT: Duration = Duration::from_secs(60);

/// What operators do with versions. A call that is given up finishes what it had begun to write.
#[derive(Clone)]
pub struct Versions {
    catalog: Arc<Catalog>,
    publisher: Arc<Publisher>,
    diffs: Arc<Semaphore>,
    rollbacks: Arc<Semaphore>,
}

/// Who asks for a change, and of what.
#[derive(Debug, Clone, Default)]
pub struct ChangeRequest {
    /// The operator's name, for the history.
    pub by: Option<String>,
    /// Only when the current generation is this one.
    pub expected: Option<Generation>,
}

/// Why something cannot be done with a version. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// It is not configured.
    #[error("there is no service `{0}`")]
    NoSuchService(ServiceName),
    /// There is nothing to pin.
    #[error("nothing is published of `{0}`: there is nothing to pin")]
    NothingPublished(ServiceName),
    /// It was never published, or has expired.
    #[error("`{0}` has no version {1}, or it is not kept any more: its history says which are retained")]
    NotRetained(ServiceName, TarballDigest),
    /// Another generation is current than the one that was expected.
    #[error("`{service}` is not at the generation that was expected: another write came before")]
    GenerationConflict {
        /// Of what.
        service: ServiceName,
        /// The one it is at.
        current: Option<Generation>,
    },
    /// It was changed or deleted while the request was carried out.
    #[error("`{0}` was changed or deleted just now, and nothing was done: ask again")]
    Withdrawn(ServiceName),
    /// Its bytes are gone.
    #[error("the object {0} of that version is damaged or missing, and could not be rebuilt; the log says why")]
    Lost(ObjectDigest),
    /// Something cannot be read or written just now.
    #[error("{0}")]
    Unreadable(String),
    /// As many are made as may be at a time, and none ended soon.
    #[error("as many {0} are made as may be at a time: ask again")]
    Busy(&'static str),
    /// The comparison was given up.
    #[error("to compare them takes longer than {} s, and was given up", DIFF_TIMEOUT.as_secs())]
    TooLong,
    /// A fault in the program.
    #[error("a fault in the program ended it; the log of the process says where")]
    Fault,
}

impl From<VersionChangeError> for VersionError {
    fn from(error: VersionChangeError) -> Self {
        match error {
            VersionChangeError::Publish(error) => error.into(),
            VersionChangeError::NothingPublished(service) => Self::NothingPublished(service),
            VersionChangeError::NotRetained(service, digest) => Self::NotRetained(service, digest),
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
            error => Self::Unreadable(format!("the version cannot be read: {error}")),
        }
    }
}

/// Waits for one's turn.
async fn turn(turns: &Arc<Semaphore>, of: &'static str) -> Result<OwnedSemaphorePermit, VersionError> {
    let turn = tokio::time::timeout(TURN_WAIT, turns.clone().acquire_owned()).await;
    turn.map_err(|_| VersionError::Busy(of))?.map_err(|_| VersionError::Fault)
}

impl Versions {
    pub(crate) fn new(catalog: Arc<Catalog>, publisher: Arc<Publisher>, bounds: &Bounds) -> Self {
        let (diffs, rollbacks) = (bounds.semaphore("diffs", DIFFS), bounds.semaphore("rollbacks", ROLLBACKS));
        Self { catalog, publisher, diffs, rollbacks }
    }

    /// A part of a service's history, the newest publications first: those before a generation, or from the newest on.
    /// At most 200 at a time; the page says before which generation the next one begins.
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
        Ok(self.publisher.history(&service.repository, &service.name, before, limit).await?)
    }

    /// What differs between two retained digests of a service. `limit` differences are listed, at most 1,000; the others
    /// are counted.
    ///
    /// # Errors
    /// There is no such service, one of the two is not retained, its bytes are lost, or this takes too long.
    pub async fn diff(
        &self,
        service: &ServiceName,
        old: &TarballDigest,
        new: &TarballDigest,
        limit: usize,
    ) -> Result<Diff, VersionError> {
        let service = self.service(service)?;
        let turn = turn(&self.diffs, "diffs").await?;
        let (old, new) = (self.readable(&service, old).await?, self.readable(&service, new).await?);
        let stop = CancellationToken::new();
        // Also when the client has gone.
        let _stops = stop.clone().drop_guard();
        let runtime = Handle::current();
        let compared = spawn_blocking(move || {
            let tar = |reader: TarReader| Stoppable::new(reader.blocking(runtime.clone()), stop.clone());
            let diff = crate::diff::diff(tar(old), tar(new), limit);
            drop(turn);
            diff.map_err(|error| VersionError::Unreadable(format!("the version cannot be read: {error}")))
        });
        match tokio::time::timeout(DIFF_TIMEOUT, compared).await {
            Ok(compared) => compared.map_err(|_| VersionError::Fault)?,
            Err(_) => Err(VersionError::TooLong),
        }
    }

    /// Publishes a retained digest under a new generation, and pins the service to it until it is unpinned. The current
    /// digest is only pinned. A version of which an object is missing is rebuilt first.
    ///
    /// # Errors
    /// There is no such service, the digest is not retained or its bytes are lost, or another generation is current than
    /// the expected one.
    pub async fn roll_back(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        request: ChangeRequest,
    ) -> Result<(), VersionError> {
        let (service, digest) = (self.service(service)?, *digest);
        let turn = turn(&self.rollbacks, "rollbacks").await?;
        self.readable(&service, &digest).await?;
        drop(turn);
        // Looked up again: it may have been changed meanwhile.
        let service = self.service(&service.name)?;
        Ok(self.publisher.pin(&service, Some(&digest), request.change()).await?)
    }

    /// Pins a service to what it is at, until it is unpinned.
    ///
    /// # Errors
    /// There is no such service, nothing is published of it, or another generation is current than the expected one.
    pub async fn pin(&self, service: &ServiceName, request: ChangeRequest) -> Result<(), VersionError> {
        let service = self.service(service)?;
        Ok(self.publisher.pin(&service, None, request.change()).await?)
    }

    /// Lets a service follow its ref again, at once, by what the mirror holds. False: it was not pinned.
    ///
    /// # Errors
    /// There is no such service, or another generation is current than the expected one.
    pub async fn unpin(&self, service: &ServiceName, request: ChangeRequest) -> Result<bool, VersionError> {
        let service = self.service(service)?;
        let was_pinned = self.publisher.unpin(&service, request.change()).await;
        // Without an agent it is done all the same, and followed as soon as there is one. What failed may have been done.
        if let Some(agent) = self.catalog.repository(&service.repository) {
            agent.look();
        }
        Ok(was_pinned?)
    }

    /// Takes over what can be read of a repository's state after damage: it publishes again. False: it was not suspended.
    ///
    /// # Errors
    /// The state cannot be read or written.
    pub async fn confirm(&self, repository: &RepositoryName) -> Result<bool, VersionError> {
        Ok(self.publisher.confirm(repository).await?)
    }

    fn service(&self, name: &ServiceName) -> Result<Arc<Service>, VersionError> {
        self.catalog.service(name).ok_or_else(|| VersionError::NoSuchService(name.clone()))
    }

    /// The tar of a version all of whose objects are stored. One of which an object is missing or damaged is rebuilt first.
    async fn readable(&self, service: &Arc<Service>, digest: &TarballDigest) -> Result<TarReader, VersionError> {
        let (version, lost) = match self.open(service, digest).await? {
            (_, Ok(tar)) => return Ok(tar),
            (version, Err(lost)) => (version, lost),
        };
        // A build that takes longer than the wait goes on, and helps whoever tries again.
        if let Some(agent) = self.catalog.repository(&service.repository) {
            let _ = tokio::time::timeout(REBUILD_WAIT, agent.rebuild(lost, version)).await;
        }
        self.open(service, digest).await?.1.map_err(VersionError::Lost)
    }

    /// The error within is the object that is missing or damaged.
    async fn open(
        &self,
        service: &Arc<Service>,
        digest: &TarballDigest,
    ) -> Result<(Descriptor, Result<TarReader, ObjectDigest>), VersionError> {
        let version = self.publisher.version(&service.repository, &service.name, digest).await?;
        let version = version.ok_or_else(|| VersionError::NotRetained(service.name.clone(), *digest))?;
        match TarReader::open(self.publisher.objects(), &version).await.map_err(VersionError::from) {
            Ok(tar) => Ok((version, Ok(tar))),
            Err(VersionError::Lost(object)) => Ok((version, Err(object))),
            Err(error) => Err(error),
        }
    }
}

impl ChangeRequest {
    fn change(self) -> VersionChange {
        VersionChange { expected: self.expected, by: self.by, now: SystemTime::now() }
    }
}
