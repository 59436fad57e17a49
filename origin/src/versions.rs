//! What operators do with the versions of a service: look back, compare, go back, hold on, go on.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use weir_shared::descriptor::Generation;
use weir_shared::digest::{BlobDigest, TarballDigest};
use weir_shared::encoding::Encoding;
use weir_shared::name::ServiceName;

use crate::blob_store::{BlobError, StoredBlob};
use crate::bounds::Bounds;
use crate::catalog::Catalog;
use crate::diff::Stoppable;
pub use crate::diff::{Diff, Difference, Held, Kind};
pub use crate::publication::history::{Entry, Listed, Page, Why};
use crate::publication::{Order, OrderError, StateError};
use crate::publisher::Publisher;
use crate::repository_agent::Handle;
use crate::service::Service;

/// Diffs at a time: each reads two whole tarballs. Further ones wait.
const DIFFS: usize = 2;

/// Rollbacks at a time: each reads a whole blob. Further ones wait; not for diffs, because they are wanted in an emergency.
const ROLLBACKS: usize = 2;

/// How long they wait for their turn.
const TURN_WAIT: Duration = Duration::from_secs(10);

/// How long two tarballs are compared.
const DIFF_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a blob that is missing or damaged is waited for while it is built again.
const HEAL_WAIT: Duration = Duration::from_secs(60);

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
pub struct Asked {
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
    Overtaken {
        /// Of what.
        service: ServiceName,
        /// The one it is at.
        current: Option<Generation>,
    },
    /// It was changed or deleted while this was asked.
    #[error("`{0}` was changed or deleted just now, and nothing was done: ask again")]
    Withdrawn(ServiceName),
    /// Its bytes are gone.
    #[error("the blob {0} of that version is damaged or missing, and could not be built again; the log says why")]
    Lost(BlobDigest),
    /// The state or a blob cannot be read or written just now.
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

impl From<OrderError> for VersionError {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::State(error) => error.into(),
            OrderError::NothingPublished(service) => Self::NothingPublished(service),
            OrderError::NotRetained(service, digest) => Self::NotRetained(service, digest),
            OrderError::Overtaken { service, current } => Self::Overtaken { service, current },
            OrderError::Withdrawn(service) => Self::Withdrawn(service),
        }
    }
}

impl From<StateError> for VersionError {
    fn from(error: StateError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<std::io::Error> for VersionError {
    fn from(error: std::io::Error) -> Self {
        Self::Unreadable(format!("the version cannot be read: {error}"))
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
    ) -> Result<Page, VersionError> {
        let service = self.service(service)?;
        self.blocking(move |publisher| Ok(publisher.history(&service.name, before, limit)?)).await
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
        let (old, new) = (self.tarball(&service, old).await?, self.tarball(&service, new).await?);
        let stop = CancellationToken::new();
        // Also when whoever asked has gone.
        let _stops = stop.clone().drop_guard();
        let compared = self.blocking(move |_| {
            let tar = |zstd| Ok::<_, VersionError>(Stoppable::new(zstd::Decoder::new(zstd)?, stop.clone()));
            let diff = crate::diff::diff(tar(old.reader())?, tar(new.reader())?, limit)?;
            drop(turn);
            Ok(diff)
        });
        tokio::time::timeout(DIFF_TIMEOUT, compared).await.unwrap_or(Err(VersionError::TooLong))
    }

    /// Publishes a retained digest under a new generation, and pins the service to it until it is unpinned. The current
    /// digest is only pinned. A blob that is damaged is built again first.
    ///
    /// # Errors
    /// There is no such service, the digest is not retained or its bytes are lost, or another generation is current than
    /// the expected one.
    pub async fn roll_back(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        asked: Asked,
    ) -> Result<(), VersionError> {
        let (service, digest) = (self.service(service)?, *digest);
        let turn = turn(&self.rollbacks, "rollbacks").await?;
        self.tarball(&service, &digest).await?;
        drop(turn);
        // Looked up again: it may have been changed meanwhile.
        let service = self.service(&service.name)?;
        self.order(&service, asked, move |publisher, service, order| publisher.pin(service, order, Some(&digest))).await
    }

    /// Pins a service to what it is at, until it is unpinned.
    ///
    /// # Errors
    /// There is no such service, nothing is published of it, or another generation is current than the expected one.
    pub async fn pin(&self, service: &ServiceName, asked: Asked) -> Result<(), VersionError> {
        self.order(&self.service(service)?, asked, |publisher, service, order| publisher.pin(service, order, None))
            .await
    }

    /// Lets a service follow its ref again, at once, by what the mirror holds. False: it was not pinned.
    ///
    /// # Errors
    /// There is no such service, or another generation is current than the expected one.
    pub async fn unpin(&self, service: &ServiceName, asked: Asked) -> Result<bool, VersionError> {
        let service = self.service(service)?;
        let was_pinned = self.order(&service, asked, |publisher, service, order| publisher.unpin(service, order)).await;
        // Without an agent it is done all the same, and followed as soon as there is one. What failed may have been done.
        if let Ok(agent) = self.agent(&service) {
            agent.look();
        }
        was_pinned
    }

    fn service(&self, name: &ServiceName) -> Result<Arc<Service>, VersionError> {
        self.catalog.service(name).ok_or_else(|| VersionError::NoSuchService(name.clone()))
    }

    fn agent(&self, service: &Service) -> Result<Handle, VersionError> {
        let agent = self.catalog.repository(&service.repository);
        agent.ok_or_else(|| VersionError::NoSuchService(service.name.clone()))
    }

    async fn order<T: Send + 'static>(
        &self,
        service: &Arc<Service>,
        asked: Asked,
        follow: impl FnOnce(&Publisher, &Service, &Order<'_>) -> Result<T, OrderError> + Send + 'static,
    ) -> Result<T, VersionError> {
        let service = service.clone();
        self.blocking(move |publisher| {
            let Asked { by, expected } = &asked;
            let order =
                Order { service: &service.name, expected: *expected, by: by.as_deref(), now: SystemTime::now() };
            Ok(follow(publisher, &service, &order)?)
        })
        .await
    }

    /// The verified blob of a version, as zstd. One that is missing or damaged is built again first.
    async fn tarball(&self, service: &Arc<Service>, digest: &TarballDigest) -> Result<StoredBlob, VersionError> {
        let blob = match self.verified(service, digest).await? {
            Ok(file) => return Ok(file),
            Err(blob) => blob,
        };
        // A build that takes longer than the wait goes on, and helps whoever tries again.
        let _ = tokio::time::timeout(HEAL_WAIT, self.agent(service)?.heal(blob)).await;
        self.verified(service, digest).await?.map_err(VersionError::Lost)
    }

    /// The error within is the blob that is missing or damaged.
    async fn verified(
        &self,
        service: &Arc<Service>,
        digest: &TarballDigest,
    ) -> Result<Result<StoredBlob, BlobDigest>, VersionError> {
        let (service, digest) = (service.clone(), *digest);
        self.blocking(move |publisher| {
            let version = publisher.version(&service.name, &digest)?;
            let version = version.ok_or_else(|| VersionError::NotRetained(service.name.clone(), digest))?;
            let Some(zstd) = version.representation(Encoding::Zstd) else {
                return Err(VersionError::Unreadable(format!("the version {digest} has no zstd form")));
            };
            match publisher.open_verified(&zstd.digest) {
                Ok(blob) => Ok(Ok(blob)),
                Err(BlobError::Missing | BlobError::Corrupt) => Ok(Err(zstd.digest)),
                Err(BlobError::Unreadable(error)) => Err(error.into()),
            }
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Publisher) -> Result<T, VersionError> + Send + 'static,
    ) -> Result<T, VersionError> {
        let publisher = self.publisher.clone();
        spawn_blocking(move || work(&publisher)).await.map_err(|_| VersionError::Fault)?
    }
}
