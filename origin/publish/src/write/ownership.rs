//! Which repositories this origin may write, and how it reads the others.
//!
//! A single origin owns all its repositories from the start. In a cluster an origin owns one from [`Ownership::take`] to
//! [`Ownership::release`]; before and after, its state in memory is a view that [`Ownership::refresh`] reads again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::{StreamExt, stream};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_store::{Listed, Version};

use super::alignment::{retire_moved_services, update};
use super::repositories::{Handle, Repositories};
use super::writer::Request;
use crate::error::{PublishError, TakeError};
use crate::stored::known::{Retired, Started};

/// Repositories of other origins that are read again at a time.
const CONCURRENT_REFRESHES: usize = 8;

/// Takes and hands over repositories.
pub struct Ownership {
    pub(crate) repositories: Arc<Repositories>,
}

impl Ownership {
    /// Retires services that are not `configured`, signs versions again if the keys have changed, and republishes
    /// services below the floor of generations. Call it once, after [`open`](crate::open::open). In a cluster nothing is owned
    /// then, so nothing is written.
    ///
    /// # Errors
    /// A record cannot be written.
    pub async fn start(&self, configured: &HashSet<ServiceName>, now: SystemTime) -> Result<Started, PublishError> {
        let mut started = Started::default();
        // Before the floor is applied: a superseded version must not be republished.
        retire_moved_services(&self.repositories, now).await;
        let handles = self.repositories.handles();
        for handle in handles.iter().filter(|handle| handle.repository.is_taken()) {
            let is_configured = |service: &ServiceName| configured.contains(service);
            started.retired.extend(self.align_one(handle, &is_configured, now).await?);
        }
        for Handle { repository, .. } in &handles {
            started.add(&repository.known(), |service| configured.contains(service));
        }
        Ok(started)
    }

    /// Begins to write a repository whose claim this origin has written with this version. It reads the state, but of the
    /// pages only those that it does not know, and publishes services below the floor of generations again. Otherwise
    /// nothing is written: a hand-over signs and retires nothing.
    ///
    /// # Errors
    /// The repository is not taken.
    pub async fn take(&self, repository: &RepositoryName, version: &Version) -> Result<(), TakeError> {
        let handle = self.repositories.handle(repository);
        handle.ask(|done| Request::Take(version.clone(), done)).await??;
        let keys = handle.repository.known().record.signed_with.clone();
        if let Err(error) =
            update(&handle, &self.repositories.shared.rules, HashSet::new(), keys, SystemTime::now()).await
        {
            self.release(repository).await;
            return Err(error.into());
        }
        Ok(())
    }

    /// Ends what [`Ownership::take`] began, except for a write that is in progress: changes are refused, nothing is
    /// announced any more, and garbage collection stops.
    pub fn withdraw(&self, repository: &RepositoryName) {
        if let Some(handle) = self.repositories.existing(repository).filter(|_| self.repositories.is_in_cluster()) {
            *handle.repository.taken() = false;
        }
    }

    /// [Withdraws](Ownership::withdraw), and waits until nothing writes the record or deletes objects any more. Returns
    /// whether no write has an unknown outcome. If the caller gives up, a write may still be in progress.
    pub async fn release(&self, repository: &RepositoryName) -> bool {
        self.withdraw(repository);
        let Some(handle) = self.repositories.existing(repository) else { return true };
        let is_settled = handle.ask(Request::Release).await.unwrap_or(false);
        drop(handle.repository.deleting.lock().await);
        is_settled
    }

    /// Retires services of an owned repository that are not configured, and signs its versions again if the keys have
    /// changed. Call it while all members have the same configuration and keys. Returns what has changed.
    ///
    /// # Errors
    /// This origin does not own the repository, or the record cannot be written.
    pub async fn align(
        &self,
        repository: &RepositoryName,
        is_configured: &(impl Fn(&ServiceName) -> bool + Sync),
        now: SystemTime,
    ) -> Result<Started, PublishError> {
        let not_owner = || PublishError::NotOwner(repository.clone());
        let handle = self
            .repositories
            .existing(repository)
            .filter(|handle| handle.repository.is_taken())
            .ok_or_else(not_owner)?;
        let retired = self.align_one(&handle, is_configured, now).await?;
        let mut aligned = Started { retired, ..Started::default() };
        aligned.add(&handle.repository.known(), is_configured);
        Ok(aligned)
    }

    /// Brings a repository in line with the configured services and with the keys of now. Returns what it has retired.
    async fn align_one(
        &self,
        handle: &Handle,
        is_configured: &(impl Fn(&ServiceName) -> bool + Sync),
        now: SystemTime,
    ) -> Result<Vec<Retired>, PublishError> {
        // A service that no readable document defines may be defined in an unreadable one.
        let gone = if self.repositories.may_have_unknown_definitions() {
            HashSet::new()
        } else {
            let known = handle.repository.known();
            let current = known.services.iter().filter(|(_, row)| row.current.is_some());
            current.filter(|(service, _)| !is_configured(service)).map(|(service, _)| service.clone()).collect()
        };
        let rules = &self.repositories.shared.rules;
        update(handle, rules, gone, rules.signer.signs_with(), now).await
    }

    /// Reads a repository of another origin again, unless a read that began within `max_age` has succeeded. Callers share
    /// one read. Does nothing for a repository that this origin owns.
    ///
    /// # Errors
    /// The stored state cannot be read; the one before stays.
    pub async fn refresh(&self, repository: &RepositoryName, max_age: Duration) -> Result<(), PublishError> {
        let asked = Instant::now();
        let handle = self.repositories.handle(repository);
        let mut last = handle.repository.last_read.lock().await;
        if last.begun.is_some_and(|begun| begun + max_age >= asked) {
            return Ok(());
        }
        // A store that does not answer must not be waited for by one caller after another.
        if let Some((_, error)) = last.failed.as_ref().filter(|(failed, _)| *failed >= asked) {
            return Err(error.clone());
        }
        let begun = Instant::now();
        let read = handle.ask(Request::Refresh).await?;
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
    pub async fn refresh_all(&self) -> Result<(), PublishError> {
        self.refresh_listed(self.repositories.shared.records.list_versions("repositories/").await?).await
    }

    /// Reads the listed repositories of other origins again whose version is another one, or is not known.
    ///
    /// # Errors
    /// Some of the stored state cannot be read.
    pub async fn refresh_listed(&self, listed: Vec<Listed>) -> Result<(), PublishError> {
        let has_changed = |name: &RepositoryName, version: Option<Version>| {
            version.is_none() || self.repositories.record_version(name) != version
        };
        let changed = listed.into_iter().filter_map(|(key, version)| {
            let name: RepositoryName = key.name().parse().ok()?;
            has_changed(&name, version).then_some(name)
        });
        let reads = stream::iter(changed.map(|name| async move { self.refresh(&name, Duration::ZERO).await }));
        let read: Vec<Result<(), PublishError>> = reads.buffer_unordered(CONCURRENT_REFRESHES).collect().await;
        read.into_iter().collect()
    }
}
