//! Which repositories this origin may write, and how it reads the others.
//!
//! A single origin owns all its repositories from the start. In a cluster an origin owns one from [`Publisher::take`] to
//! [`Publisher::release`]; before and after, its state in memory is a view that [`Publisher::refresh`] reads again.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use futures_util::{StreamExt, stream};
use tokio::sync::oneshot;
use weir_ownership::Claim;
use weir_protocol::descriptor::Generation;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_store::{Listed, Version};

use super::error::PublishError;
use super::open::Started;
use super::publisher::Publisher;
use super::writer::{Request, Writer};

/// Repositories of other origins that are read again at a time.
const CONCURRENT_REFRESHES: usize = 8;

/// Why a repository was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TakeError {
    /// The record has another version: somebody else wrote it.
    #[error("the record of the repository has another version than the one that was claimed")]
    Superseded,
    /// Try again.
    #[error(transparent)]
    Failed(#[from] PublishError),
}

/// The last read of a repository that this origin does not own.
#[derive(Debug, Default)]
pub(super) struct LastRead {
    /// When the last successful one began.
    begun: Option<Instant>,
    /// When the last one failed, and why.
    failed: Option<(Instant, PublishError)>,
}

impl Publisher {
    /// Begins to write a repository whose claim this origin has written with this version. It reads the state, but of the
    /// pages only those that it does not know, and publishes services below the floor of generations again. Otherwise
    /// nothing is written: a hand-over signs and retires nothing.
    ///
    /// # Errors
    /// The repository is not taken.
    pub(crate) async fn take(&self, repository: &RepositoryName, version: &Version) -> Result<(), TakeError> {
        let handle = self.handle(repository);
        let (done, answer) = oneshot::channel();
        let sent = handle.requests.send(Request::Take(version.clone(), done)).await;
        sent.map_err(|_| PublishError::ShuttingDown)?;
        answer.await.map_err(|_| PublishError::ShuttingDown)??;
        let keys = handle.repository.known().record.signed_with.clone();
        if let Err(error) = self.update(&handle, HashSet::new(), keys, SystemTime::now()).await {
            self.release(repository).await;
            return Err(error.into());
        }
        Ok(())
    }

    /// Ends what [`Publisher::take`] began, except for a write that is in progress: changes are refused, nothing is
    /// announced any more, and garbage collection stops.
    pub(crate) fn withdraw(&self, repository: &RepositoryName) {
        if let Some(handle) = self.existing(repository).filter(|_| self.is_in_cluster()) {
            *handle.repository.taken() = false;
        }
    }

    /// [Withdraws](Publisher::withdraw), and waits until nothing writes the record or deletes objects any more. Returns
    /// whether no write has an unknown outcome. If the caller gives up, a write may still be in progress.
    pub(crate) async fn release(&self, repository: &RepositoryName) -> bool {
        self.withdraw(repository);
        let Some(handle) = self.existing(repository) else { return true };
        let (done, answer) = oneshot::channel();
        if handle.requests.send(Request::Release(done)).await.is_err() {
            return false;
        }
        let is_settled = answer.await.unwrap_or(false);
        drop(handle.repository.deleting.lock().await);
        is_settled
    }

    /// Retires services of an owned repository that are not configured, and signs its versions again if the keys have
    /// changed. Call it while all members have the same configuration and keys. Returns what has changed.
    ///
    /// # Errors
    /// This origin does not own the repository, or the record cannot be written.
    pub(crate) async fn align(
        &self,
        repository: &RepositoryName,
        is_configured: &(impl Fn(&ServiceName) -> bool + Sync),
        now: SystemTime,
    ) -> Result<Started, PublishError> {
        let not_owner = || PublishError::NotOwner(repository.clone());
        let handle = self.existing(repository).filter(|handle| handle.repository.is_taken()).ok_or_else(not_owner)?;
        let retired = self.align_one(&handle, is_configured, now).await?;
        let mut aligned = Started { retired, ..Started::default() };
        aligned.add(&handle.repository, is_configured);
        Ok(aligned)
    }

    /// Reads a repository of another origin again, unless a read that began within `max_age` has succeeded. Callers share
    /// one read. Does nothing for a repository that this origin owns.
    ///
    /// # Errors
    /// The stored state cannot be read; the one before stays.
    pub(crate) async fn refresh(&self, repository: &RepositoryName, max_age: Duration) -> Result<(), PublishError> {
        let asked = Instant::now();
        let handle = self.handle(repository);
        let mut last = handle.repository.last_read.lock().await;
        if last.begun.is_some_and(|begun| begun + max_age >= asked) {
            return Ok(());
        }
        // A store that does not answer must not be waited for by one caller after another.
        if let Some((_, error)) = last.failed.as_ref().filter(|(failed, _)| *failed >= asked) {
            return Err(error.clone());
        }
        let begun = Instant::now();
        let (done, answer) = oneshot::channel();
        handle.requests.send(Request::Refresh(done)).await.map_err(|_| PublishError::ShuttingDown)?;
        let read = answer.await.map_err(|_| PublishError::ShuttingDown)?;
        match &read {
            Ok(()) => last.begun = Some(begun),
            Err(error) => last.failed = Some((Instant::now(), error.clone())),
        }
        read
    }

    /// Reads again what other origins have written since, and finds their new repositories.
    ///
    /// # Errors
    /// Some of the stored state cannot be read.
    pub(crate) async fn refresh_all(&self) -> Result<(), PublishError> {
        self.refresh_listed(self.shared.records.list_versions("repositories/").await?).await
    }

    /// Reads the listed repositories of other origins again whose version is another one, or is not known.
    ///
    /// # Errors
    /// Some of the stored state cannot be read.
    pub(crate) async fn refresh_listed(&self, listed: Vec<Listed>) -> Result<(), PublishError> {
        let has_changed =
            |name: &RepositoryName, version: Option<Version>| version.is_none() || self.record_version(name) != version;
        let changed = listed.into_iter().filter_map(|(key, version)| {
            let name: RepositoryName = key.name().parse().ok()?;
            has_changed(&name, version).then_some(name)
        });
        let reads = stream::iter(changed.map(|name| async move { self.refresh(&name, Duration::ZERO).await }));
        let read: Vec<Result<(), PublishError>> = reads.buffer_unordered(CONCURRENT_REFRESHES).collect().await;
        read.into_iter().collect()
    }

    /// Whether anything is known about a repository: it has a record, or work here.
    pub(crate) fn knows(&self, repository: &RepositoryName) -> bool {
        self.existing(repository).is_some()
    }

    /// The claim in the last known record of a repository. `None`: it has no record.
    pub(crate) fn claim(&self, repository: &RepositoryName) -> Option<Claim> {
        let handle = self.existing(repository)?;
        let known = handle.repository.known();
        known.version.as_ref().and_then(|_| known.record.claim().ok())
    }

    /// The version of a repository's record that this origin knows.
    pub(crate) fn record_version(&self, repository: &RepositoryName) -> Option<Version> {
        self.existing(repository)?.repository.known().version.clone()
    }

    /// The deleted services of a repository, with their last generations. Those that have moved are not deleted.
    pub(crate) fn tombstones(&self, repository: &RepositoryName) -> BTreeMap<ServiceName, Generation> {
        let Some(handle) = self.existing(repository) else { return BTreeMap::new() };
        let known = handle.repository.known();
        let gone = known
            .services
            .iter()
            .filter(|(_, known)| known.current.is_none() && known.generation > 0 && !known.is_moving);
        gone.map(|(service, known)| (service.clone(), known.generation)).collect()
    }
}

impl Writer {
    pub(super) async fn take(&mut self, version: &Version) -> Result<(), TakeError> {
        // Whatever was outstanding belongs to a version before this one.
        self.outstanding = None;
        self.read().await?;
        if self.repository.known().version.as_ref() != Some(version) {
            return Err(TakeError::Superseded);
        }
        self.repository.protected.forget_unreferenced();
        // What was unreferenced here before has to be found again.
        self.repository.is_dirty.store(true, Ordering::Relaxed);
        // An owner in between may have been asked for services.
        self.repository.withdrawals.fetch_add(1, Ordering::SeqCst);
        *self.repository.taken() = true;
        Ok(())
    }

    pub(super) fn release(&mut self) -> bool {
        *self.repository.taken() = false;
        self.outstanding.take().is_none()
    }

    pub(super) async fn refresh(&mut self) -> Result<(), PublishError> {
        if self.may_write() {
            return Ok(());
        }
        if !self.repository.is_taken() {
            return self.read().await;
        }
        // The session has ended: what is in memory is right only if nobody else has written since.
        let stored = self.shared.records.get(&self.key).await?;
        let is_current = stored.map(|record| record.version) == self.repository.known().version;
        if is_current { Ok(()) } else { Err(self.not_owner()) }
    }

    /// Reads the stored state. After an error the one before stays.
    async fn read(&self) -> Result<(), PublishError> {
        let loaded = self.load().await;
        if let Some(failure) = loaded.problems.failures.first() {
            return Err(PublishError::Object(failure.clone()));
        }
        {
            let known = self.repository.known();
            if known.version.is_some() && loaded.known.version.is_none() {
                let damage = loaded.problems.damage.first().map_or("there is none any more", String::as_str);
                return Err(PublishError::Record(damage.to_owned()));
            }
            if known.version == loaded.known.version && known.suspension.is_none() && loaded.known.suspension.is_none()
            {
                return Ok(());
            }
        }
        self.replace_known(loaded);
        Ok(())
    }
}
