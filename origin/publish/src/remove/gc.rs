//! Garbage collection of one repository: it expires superseded versions, then deletes unreferenced objects.
//!
//! An unreadable page or manifest may reference any object. Nothing is deleted in that repository until it can be
//! read or is replaced; other repositories are not held up.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use futures_util::{StreamExt, stream};
use tokio::time::sleep;
use weir_model::failpoint;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_runtime::shutdown::Drain;
use weir_store::{Area, ObjectError, RecordKey};

use super::expiry::{Usage, is_too_old, over_limit};
use crate::config::RetentionConfig;
use crate::error::PublishError;
use crate::publisher::Publisher;
use crate::stored::mark::Mark;
use crate::stored::store_identity::StoreIdentity;
use crate::write::alignment::retire_moved_services;
use crate::write::protection::Collection;
use crate::write::repositories::{Handle, Repositories};
use crate::write::repository::Repository;

/// The longest time between two collections of a changing repository. The shortest is half of the grace period, if
/// that is less.
const MAX_INTERVAL: Duration = Duration::from_secs(300);

/// The most deleted services whose last generation stays stored; the oldest are removed.
const MAX_TOMBSTONES: usize = 10_000;

/// A repository counts as blocked after this many failed collections in a row.
const MAX_FAILURES: u32 = 3;

const CONCURRENT_DELETIONS: usize = 8;

/// Collects the garbage of owned repositories.
pub struct Collector {
    repositories: Arc<Repositories>,
    retention: RetentionConfig,
    identity: StoreIdentity,
    totals: Totals,
}

/// The result of the last collection of each repository.
#[derive(Debug, Default)]
struct Totals(HashMap<RepositoryName, Collected>);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Collected {
    /// Bytes of the referenced frames and manifests.
    bytes: u64,
    /// Unreferenced objects that are not deleted yet.
    unreferenced: usize,
    deleted: usize,
    /// A page, descriptor or manifest cannot be read.
    is_blocked: bool,
    /// Failed collections in a row.
    failures: u32,
}

impl Totals {
    fn bytes(&self) -> u64 {
        self.0.values().map(|collected| collected.bytes).sum()
    }
}

impl Collector {
    /// A collector of what a publisher stores.
    pub fn new(publisher: &Publisher, retention: RetentionConfig) -> Self {
        let (repositories, identity) = (publisher.repositories.clone(), publisher.identity.clone());
        Self { repositories, retention, identity, totals: Totals::default() }
    }

    /// Collects after publications and periodically, until the drain begins.
    pub async fn run(mut self, drain: Drain) {
        let interval = MAX_INTERVAL.min(self.repositories.shared.grace_period / 2);
        loop {
            tokio::select! {
                () = drain.begun() => return,
                () = sleep(interval) => {}
            }
            let all = async {
                retire_moved_services(&self.repositories, SystemTime::now()).await;
                let is_taken = |name: &RepositoryName| {
                    self.repositories.repository(name).is_some_and(|repository| repository.is_taken())
                };
                self.totals.0.retain(|name, _| is_taken(name));
                for handle in self.due(Instant::now()) {
                    self.collect(&handle, Instant::now()).await;
                }
                // After all, because only now the sum is right.
                self.expire_bytes().await;
            };
            tokio::select! {
                () = drain.begun() => return,
                () = all => {}
            }
        }
    }

    /// The repositories that need a collection.
    pub(crate) fn due(&self, now: Instant) -> Vec<Handle> {
        let oldest = |repository: &Repository| {
            let known = repository.known();
            let services = known.services.values();
            services.flat_map(|service| service.expirable().map(|retained| retained.seen)).min()
        };
        let is_due = |repository: &Repository| {
            repository.is_dirty.load(Ordering::Relaxed)
                || repository.protected.needs_mark(now, self.repositories.shared.grace_period)
                || oldest(repository).is_some_and(|oldest| is_too_old(oldest, now, self.retention.age))
        };
        self.owned().filter(|handle| is_due(&handle.repository)).collect()
    }

    fn owned(&self) -> impl Iterator<Item = Handle> + use<> {
        self.repositories.handles().into_iter().filter(|handle| handle.repository.is_taken())
    }

    pub(crate) async fn collect(&mut self, handle: &Handle, now: Instant) {
        let repository = &handle.repository;
        let before = self.totals.0.get(&repository.name).copied().unwrap_or_default();
        let (collected, word) = match Box::pin(self.collect_one(handle, now)).await {
            Ok(collected) if collected.is_blocked => (collected, "blocked"),
            Ok(collected) => (collected, "done"),
            Err(error) => {
                // Tried again even without another change of the repository.
                repository.is_dirty.store(true, Ordering::Relaxed);
                tracing::warn!(repository = %repository.name, %error, "garbage collection of the repository failed");
                let failures = before.failures + 1;
                (Collected { deleted: 0, is_blocked: failures >= MAX_FAILURES, failures, ..before }, "failed")
            }
        };
        let (metrics, totals) = (&self.repositories.shared.metrics, &mut self.totals);
        metrics.gc_runs.with_label_values(&[word]).inc();
        metrics.gc_deleted.inc_by(collected.deleted as u64);
        totals.0.insert(repository.name.clone(), collected);
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        metrics.stored_bytes.set(gauge(totals.bytes()));
        metrics.unreferenced.set(gauge(totals.0.values().map(|one| one.unreferenced as u64).sum()));
        metrics.gc_blocked_repositories.set(gauge(totals.0.values().filter(|one| one.is_blocked).count() as u64));
    }

    async fn collect_one(&self, handle: &Handle, now: Instant) -> Result<Collected, PublishError> {
        let repository = &handle.repository;
        self.expire_old(handle, now).await?;
        // Begins before the state is read: objects that become referenced later are protected.
        let collection = repository.protected.begin_collection();
        repository.is_dirty.store(false, Ordering::Relaxed);
        let (record, suspension) = {
            let known = repository.known();
            (known.record.clone(), known.suspension.clone())
        };
        if let Some(suspension) = suspension {
            let reason = suspension.reason;
            tracing::warn!(repository = %repository.name, reason, "garbage collection deletes nothing in a suspended repository");
            repository.is_dirty.store(true, Ordering::Relaxed);
            return Ok(Collected { is_blocked: true, ..Collected::default() });
        }
        let mut mark = Mark::of(self.repositories.objects(), &repository.name, &record).await;
        if let Some(error) = mark.failure {
            return Err(PublishError::Object(error));
        }
        let mut public = Usage::default();
        mark.versions.iter().for_each(|version| public.add(&version.objects));
        let bytes = public.bytes();
        // An unreadable descriptor may reference any object.
        mark.unreadable_pages.append(&mut mark.unreadable_versions);
        let is_blocked = !mark.unreadable_pages.is_empty() || !mark.unreadable_manifests.is_empty();
        for error in mark.unreadable_pages.iter().chain(&mark.unreadable_manifests) {
            tracing::error!(repository = %repository.name, error, "garbage collection deletes no object that the unreadable one may reference");
        }
        let (unreferenced, deleted) = self.sweep(repository, (&mark, &public), &collection, now).await?;
        drop(collection);
        if is_blocked {
            // Damage may be repaired without a publication.
            repository.is_dirty.store(true, Ordering::Relaxed);
        }
        Ok(Collected { bytes, unreferenced, deleted, is_blocked, failures: 0 })
    }

    /// Expires the versions that were superseded the longest ago, in whichever owned repository they are, until all
    /// repositories together have at most `retention.bytes`.
    pub(crate) async fn expire_bytes(&mut self) {
        let Some(limit) = self.retention.bytes.map(|bytes| bytes.as_u64()) else { return };
        let mut done = HashSet::new();
        while self.totals.bytes() > limit {
            let oldest = |handle: &Handle| {
                let known = handle.repository.known();
                known.services.values().flat_map(|service| service.expirable()).map(|one| one.superseded_at).min()
            };
            let handles = self.owned().filter(|handle| !done.contains(&handle.repository.name));
            let mut oldest: Vec<_> = handles.filter_map(|handle| Some((oldest(&handle)?, handle))).collect();
            oldest.sort_by_key(|(at, _)| *at);
            let Some((_, handle)) = oldest.first() else { return };
            let name = &handle.repository.name;
            let until = oldest.get(1).map_or(u64::MAX, |(next, _)| *next);
            let own = self.totals.0.entry(name.clone()).or_default().bytes;
            let limit = (limit + own).saturating_sub(self.totals.bytes());
            match Box::pin(self.expire_bytes_of(handle, limit, until)).await {
                Ok(bytes) if bytes < own => self.totals.0.entry(name.clone()).or_default().bytes = bytes,
                Ok(_) => drop(done.insert(name.clone())),
                Err(error) => {
                    tracing::warn!(repository = %name, %error, "superseded versions cannot be expired yet");
                    done.insert(name.clone());
                }
            }
        }
    }

    /// Expires versions of a repository that were superseded until a time. Returns the bytes that remain.
    async fn expire_bytes_of(&self, handle: &Handle, limit: u64, until: u64) -> Result<u64, PublishError> {
        let repository = &handle.repository;
        let record = repository.known().record.clone();
        let mark = Mark::of(self.repositories.objects(), &repository.name, &record).await;
        if let Some(error) = mark.failure {
            return Err(PublishError::Object(error));
        }
        let mut usage = Usage::default();
        mark.versions.iter().for_each(|version| usage.add(&version.objects));
        let over = over_limit(mark.versions, &mut usage, limit, until);
        self.expire(handle, "bytes", over.into_iter().map(|version| (version.service, version.digest))).await?;
        Ok(usage.bytes())
    }

    async fn expire_old(&self, handle: &Handle, now: Instant) -> Result<(), PublishError> {
        let repository = &handle.repository;
        let old: Vec<_> = {
            let known = repository.known();
            let services = known.services.iter();
            let retained = services.flat_map(|(service, known)| known.expirable().map(move |one| (service, one)));
            let old = retained.filter(|(_, one)| is_too_old(one.seen, now, self.retention.age));
            old.map(|(service, one)| (service.clone(), one.digest)).collect()
        };
        self.expire(handle, "age", old.into_iter()).await?;
        let gone = repository.known().excess_tombstones(MAX_TOMBSTONES);
        if gone.is_empty() || repository.suspension().is_some() {
            return Ok(());
        }
        let services = gone.clone();
        handle.edit(services, move |draft| gone.iter().try_for_each(|service| draft.drop_tombstone(service))).await
    }

    async fn expire(
        &self,
        handle: &Handle,
        bound: &str,
        versions: impl Iterator<Item = (ServiceName, TarballDigest)>,
    ) -> Result<(), PublishError> {
        let versions: Vec<_> = versions.collect();
        if versions.is_empty() || handle.repository.suspension().is_some() {
            return Ok(());
        }
        let dropped = handle.drop_versions(versions).await?;
        failpoint!("versions have expired");
        self.repositories.shared.metrics.expired_versions.with_label_values(&[bound]).inc_by(dropped as u64);
        Ok(())
    }

    /// Checks that the stored record is the known one, so that no other origin has referenced an object since.
    async fn check_owner(&self, repository: &Repository) -> Result<(), PublishError> {
        if !self.repositories.is_in_cluster() {
            return Ok(());
        }
        let before = repository.known().version.clone();
        let stored = self.repositories.shared.records.get(&RecordKey::repository(&repository.name)).await?;
        let stored = stored.map(|record| record.version);
        // The writer may have replaced it in between.
        if stored == before || stored == repository.known().version {
            return Ok(());
        }
        Err(PublishError::NotOwner(repository.name.clone()))
    }

    /// Deletes an object. It gives up at the end of the session: the next owner may reference the object from then on.
    async fn delete_while_valid(
        &self,
        repository: &RepositoryName,
        area: Area,
        digest: &ObjectDigest,
    ) -> Result<(), ObjectError> {
        let ended = || ObjectError::Unavailable("the session of this origin ended during the deletion".to_owned());
        tokio::select! {
            deleted = self.repositories.objects().delete(repository, area, digest) => deleted,
            () = self.repositories.shared.validity.ended() => Err(ended()),
        }
    }

    /// Deletes objects that were unreferenced for a grace period. Returns how many unreferenced objects remain, and
    /// how many were deleted.
    async fn sweep(
        &self,
        repository: &Repository,
        (mark, public): (&Mark, &Usage),
        collection: &Collection<'_>,
        now: Instant,
    ) -> Result<(usize, usize), PublishError> {
        if !mark.unreadable_pages.is_empty() {
            return Ok((0, 0));
        }
        self.identity.check(self.repositories.objects()).await?;
        let mut found: HashMap<ObjectDigest, Area> = HashMap::new();
        if mark.unreadable_manifests.is_empty() {
            let stored = self.repositories.objects().list(&repository.name, Area::Public).await?;
            let unreferenced = stored.iter().filter(|object| !public.contains(&object.digest));
            found.extend(unreferenced.map(|object| (object.digest, Area::Public)));
        }
        let private = self.repositories.objects().list(&repository.name, Area::Private).await?;
        let private = private.iter().filter(|object| !mark.private.contains(&object.digest));
        found.extend(private.map(|object| (object.digest, Area::Private)));
        let (count, due) = collection.unreferenced(found.keys().copied(), now, self.repositories.shared.grace_period);
        // A release waits until this is over.
        let _deleting = repository.deleting.lock().await;
        if !due.is_empty() {
            self.check_owner(repository).await?;
        }
        let may_delete = || repository.is_taken() && self.repositories.shared.validity.holds();
        let due = due.into_iter().filter(|digest| may_delete() && collection.begin_deletion(digest));
        let deletions = due.map(|digest| {
            let area = found[&digest];
            async move {
                let deleted = self.delete_while_valid(&repository.name, area, &digest).await;
                collection.end_deletion(&digest, deleted.is_ok());
                deleted.map_err(|error| (digest, error))
            }
        });
        let results: Vec<_> = stream::iter(deletions).buffer_unordered(CONCURRENT_DELETIONS).collect().await;
        if !results.is_empty() {
            failpoint!("unreferenced objects are deleted");
        }
        let deleted = results.iter().filter(|result| result.is_ok()).count();
        if let Some(Err((digest, error))) = results.iter().find(|result| result.is_err()) {
            let (failed, repository) = (results.len() - deleted, &repository.name);
            tracing::warn!(%repository, failed, object = %digest, %error, "unreferenced objects cannot be deleted");
        }
        if deleted > 0 {
            tracing::info!(repository = %repository.name, deleted, "unreferenced objects were deleted");
        }
        Ok((count - deleted, deleted))
    }
}
