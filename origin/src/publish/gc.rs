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
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_runtime::shutdown::Drain;

use super::error::PublishError;
use super::mark::Mark;
use super::protection::Collection;
use super::publisher::Publisher;
use super::retention::{Usage, is_too_old, over_limit};
use super::writer::Repository;
use weir_model::failpoint;
use weir_store::{Area, ObjectError, RecordKey};

/// The longest time between two collections of a changing repository. The shortest is half of the grace period, if
/// that is less.
const MAX_INTERVAL: Duration = Duration::from_secs(300);

/// The most deleted services whose last generation stays stored; the oldest are removed.
const MAX_TOMBSTONES: usize = 10_000;

/// A repository counts as blocked after this many failed collections in a row.
const MAX_FAILURES: u32 = 3;

const CONCURRENT_DELETIONS: usize = 8;

/// The result of the last collection of each repository.
#[derive(Debug, Default)]
pub(super) struct Totals(HashMap<RepositoryName, Collected>);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Collected {
    /// Bytes of the referenced frames and manifests.
    pub(super) bytes: u64,
    /// Unreferenced objects that are not deleted yet.
    pub(super) unreferenced: usize,
    pub(super) deleted: usize,
    /// A page, descriptor or manifest cannot be read.
    pub(super) is_blocked: bool,
    /// Failed collections in a row.
    failures: u32,
}

impl Totals {
    fn bytes(&self) -> u64 {
        self.0.values().map(|collected| collected.bytes).sum()
    }
}

impl Publisher {
    /// Collects after publications and periodically, until the drain begins.
    pub(crate) async fn collect_garbage(self: Arc<Self>, drain: Drain) {
        let interval = MAX_INTERVAL.min(self.shared.grace_period / 2);
        let mut totals = Totals::default();
        loop {
            tokio::select! {
                () = drain.begun() => return,
                () = sleep(interval) => {}
            }
            let all = async {
                self.retire_moved_services(SystemTime::now()).await;
                totals.0.retain(|name, _| self.repository(name).is_some_and(|repository| repository.is_taken()));
                for repository in self.due(Instant::now()) {
                    self.collect(&repository, &mut totals, Instant::now()).await;
                }
                // After all, because only now the sum is right.
                self.expire_bytes(&mut totals).await;
            };
            tokio::select! {
                () = drain.begun() => return,
                () = all => {}
            }
        }
    }

    /// Retires moved services in their old repository once the new one has published them.
    pub(super) async fn retire_moved_services(&self, now: SystemTime) {
        let repositories = self.repositories();
        let mut newest: HashMap<ServiceName, Generation> = HashMap::new();
        for repository in &repositories {
            for (service, known) in repository.known().services.iter().filter(|(_, known)| known.current.is_some()) {
                let generation = newest.entry(service.clone()).or_default();
                *generation = known.generation.max(*generation);
            }
        }
        for repository in repositories.into_iter().filter(|repository| repository.is_taken()) {
            let is_older =
                |service: &ServiceName, generation| newest.get(service).is_some_and(|newest| generation < *newest);
            let moved: Vec<_> = {
                let known = repository.known();
                let current = known.services.iter().filter(|(_, known)| known.current.is_some());
                let moved = current.filter(|(service, known)| is_older(service, known.generation));
                moved.map(|(service, known)| (service.clone(), known.generation)).collect()
            };
            if moved.is_empty() || repository.suspension().is_some() {
                continue;
            }
            if let Err(error) = self.retire_at(&repository.name, moved, now).await {
                tracing::warn!(repository = %repository.name, %error, "moved services cannot be deleted from their old repository yet");
            }
        }
    }

    /// The repositories that need a collection.
    pub(super) fn due(&self, now: Instant) -> Vec<Arc<Repository>> {
        let oldest = |repository: &Arc<Repository>| {
            let known = repository.known();
            let services = known.services.values();
            services.flat_map(|service| service.retained.iter().map(|retained| retained.seen)).min()
        };
        let is_due = |repository: &Arc<Repository>, oldest: Option<Instant>| {
            repository.is_dirty.load(Ordering::Relaxed)
                || repository.protected.needs_mark(now, self.shared.grace_period)
                || oldest.is_some_and(|oldest| is_too_old(oldest, now, self.retention.age))
        };
        let owned = self.repositories().into_iter().filter(|repository| repository.is_taken());
        owned.filter(|repository| is_due(repository, oldest(repository))).collect()
    }

    pub(super) async fn collect(&self, repository: &Repository, totals: &mut Totals, now: Instant) {
        let before = totals.0.get(&repository.name).copied().unwrap_or_default();
        let (collected, word) = match Box::pin(self.collect_one(repository, now)).await {
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
        let metrics = &self.shared.metrics;
        metrics.gc_runs.with_label_values(&[word]).inc();
        metrics.gc_deleted.inc_by(collected.deleted as u64);
        totals.0.insert(repository.name.clone(), collected);
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        metrics.stored_bytes.set(gauge(totals.bytes()));
        metrics.unreferenced.set(gauge(totals.0.values().map(|one| one.unreferenced as u64).sum()));
        metrics.gc_blocked_repositories.set(gauge(totals.0.values().filter(|one| one.is_blocked).count() as u64));
    }

    async fn collect_one(&self, repository: &Repository, now: Instant) -> Result<Collected, PublishError> {
        self.expire_old(repository, now).await?;
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
        let mut mark = Mark::of(self.objects(), &repository.name, &record).await;
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
    pub(super) async fn expire_bytes(&self, totals: &mut Totals) {
        let Some(limit) = self.retention.bytes.map(|bytes| bytes.as_u64()) else { return };
        let mut done = HashSet::new();
        while totals.bytes() > limit {
            let oldest = |repository: &Arc<Repository>| {
                let known = repository.known();
                known.services.values().flat_map(|service| &service.retained).map(|one| one.superseded_at).min()
            };
            let repositories =
                self.repositories().into_iter().filter(|one| one.is_taken() && !done.contains(&one.name));
            let mut oldest: Vec<_> = repositories.filter_map(|one| Some((oldest(&one)?, one))).collect();
            oldest.sort_by_key(|(at, _)| *at);
            let Some((_, repository)) = oldest.first() else { return };
            let until = oldest.get(1).map_or(u64::MAX, |(next, _)| *next);
            let own = totals.0.entry(repository.name.clone()).or_default().bytes;
            let limit = (limit + own).saturating_sub(totals.bytes());
            match Box::pin(self.expire_bytes_of(repository, limit, until)).await {
                Ok(bytes) if bytes < own => totals.0.entry(repository.name.clone()).or_default().bytes = bytes,
                Ok(_) => drop(done.insert(repository.name.clone())),
                Err(error) => {
                    tracing::warn!(repository = %repository.name, %error, "superseded versions cannot be expired yet");
                    done.insert(repository.name.clone());
                }
            }
        }
    }

    /// Expires versions of a repository that were superseded until a time. Returns the bytes that remain.
    async fn expire_bytes_of(&self, repository: &Repository, limit: u64, until: u64) -> Result<u64, PublishError> {
        let record = repository.known().record.clone();
        let mark = Mark::of(self.objects(), &repository.name, &record).await;
        if let Some(error) = mark.failure {
            return Err(PublishError::Object(error));
        }
        let mut usage = Usage::default();
        mark.versions.iter().for_each(|version| usage.add(&version.objects));
        let over = over_limit(mark.versions, &mut usage, limit, until);
        self.expire(repository, "bytes", over.into_iter().map(|version| (version.service, version.digest))).await?;
        Ok(usage.bytes())
    }

    async fn expire_old(&self, repository: &Repository, now: Instant) -> Result<(), PublishError> {
        let old: Vec<_> = {
            let known = repository.known();
            let services = known.services.iter();
            let retained = services.flat_map(|(service, known)| known.retained.iter().map(move |one| (service, one)));
            let old = retained.filter(|(_, one)| is_too_old(one.seen, now, self.retention.age));
            old.map(|(service, one)| (service.clone(), one.digest)).collect()
        };
        self.expire(repository, "age", old.into_iter()).await?;
        let gone = repository.known().excess_tombstones(MAX_TOMBSTONES);
        if gone.is_empty() || repository.suspension().is_some() {
            return Ok(());
        }
        self.drop_tombstones(&repository.name, gone).await
    }

    async fn expire(
        &self,
        repository: &Repository,
        bound: &str,
        versions: impl Iterator<Item = (ServiceName, weir_protocol::digest::TarballDigest)>,
    ) -> Result<(), PublishError> {
        let versions: Vec<_> = versions.collect();
        if versions.is_empty() || repository.suspension().is_some() {
            return Ok(());
        }
        let dropped = self.drop_versions(&repository.name, versions).await?;
        failpoint!("versions have expired");
        self.shared.metrics.expired_versions.with_label_values(&[bound]).inc_by(dropped as u64);
        Ok(())
    }

    /// Checks that the stored record is the known one, so that no other origin has referenced an object since.
    async fn check_owner(&self, repository: &Repository) -> Result<(), PublishError> {
        if !self.is_in_cluster() {
            return Ok(());
        }
        let before = repository.known().version.clone();
        let stored = self.shared.records.get(&RecordKey::repository(&repository.name)).await?;
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
            deleted = self.objects().delete(repository, area, digest) => deleted,
            () = self.shared.validity.ended() => Err(ended()),
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
        self.identity.check(self.objects()).await?;
        let mut found: HashMap<ObjectDigest, Area> = HashMap::new();
        if mark.unreadable_manifests.is_empty() {
            let stored = self.objects().list(&repository.name, Area::Public).await?;
            let unreferenced = stored.iter().filter(|object| !public.contains(&object.digest));
            found.extend(unreferenced.map(|object| (object.digest, Area::Public)));
        }
        let private = self.objects().list(&repository.name, Area::Private).await?;
        let private = private.iter().filter(|object| !mark.private.contains(&object.digest));
        found.extend(private.map(|object| (object.digest, Area::Private)));
        let (count, due) = collection.unreferenced(found.keys().copied(), now, self.shared.grace_period);
        // A release waits until this is over.
        let _deleting = repository.deleting.lock().await;
        if !due.is_empty() {
            self.check_owner(repository).await?;
        }
        let may_delete = || repository.is_taken() && self.shared.validity.holds();
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
