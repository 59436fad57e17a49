//! Maintenance of the mirror, after polls that changed it, and at least daily. Polls and builds run concurrently.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;
use weir_git::bundles::{BundleError, INCREMENTAL_INTERVAL};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::revision_id::RevisionId;
use weir_source::{Candidate, MaintenanceRequest, Service, ServiceFailure};

use super::bundles;
use super::job::Job;
use super::repository::{Repository, Services};

/// The longest time between two maintenances, because leftover files become removable with time.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The longest time between two removals of unneeded LFS objects, because versions expire with time. Objects are also removed
/// after a start and after services have changed.
const LFS_SWEEP_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The maintenance of a mirror. Dropping it stops a running one, which leaves unfinished work as it was.
pub(super) struct Maintenance {
    /// Not a spawned task: it holds the data directory, and must end with the worker.
    running: Option<Pin<Box<dyn Future<Output = MaintenanceEnd> + Send>>>,
    /// Another mirror is being maintained: this one is next, so that what is due does not wait for the next poll.
    waiting: Option<Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send>>>,
    /// What `waiting` ended with.
    permit: Option<OwnedSemaphorePermit>,
    /// Whether the mirror may have changed since the last maintenance.
    pub(super) is_due: bool,
    last_start: Option<Instant>,
    pub(super) last_lfs_sweep: Option<Instant>,
    /// Whether the mirror may have changed since its last bundle.
    pub(super) needs_bundle: bool,
    last_bundle: Option<Instant>,
}

/// The end of a maintenance.
struct MaintenanceEnd {
    /// A bundle was not due yet, or failed.
    needs_bundle: bool,
}

impl Maintenance {
    pub(super) fn new() -> Self {
        Self {
            running: None,
            waiting: None,
            permit: None,
            is_due: true,
            last_start: None,
            last_lfs_sweep: None,
            needs_bundle: true,
            last_bundle: None,
        }
    }

    /// Waits for the end of a running maintenance, or until one that waits can start; forever if there is neither.
    pub(super) async fn ended(&mut self) {
        match (&mut self.running, &mut self.waiting) {
            (Some(running), _) => {
                self.needs_bundle |= running.await.needs_bundle;
                self.running = None;
            }
            (None, Some(waiting)) => {
                self.permit = Some(waiting.await);
                self.waiting = None;
            }
            (None, None) => std::future::pending().await,
        }
    }

    /// Whether one that waited can start.
    pub(super) fn can_start(&self) -> bool {
        self.permit.is_some()
    }

    /// Starts maintenance if it is due, or waits until no other mirror's is running. It keeps the published revisions, those of
    /// `parts` and those of `candidates`.
    pub(super) fn start<'a>(
        &mut self,
        repository: &Arc<Repository>,
        mirrored: bool,
        services: &Services,
        parts: &[Arc<Service>],
        candidates: impl Iterator<Item = &'a Candidate>,
    ) {
        let (now, context) = (Instant::now(), &repository.context);
        let has_passed = |last: Option<Instant>, interval| last.is_none_or(|last| now.duration_since(last) >= interval);
        let is_due = self.is_due || has_passed(self.last_start, MAINTENANCE_INTERVAL);
        // An incomplete mirror does not show which objects are needed.
        let sweep_lfs = mirrored && has_passed(self.last_lfs_sweep, LFS_SWEEP_INTERVAL);
        let bundle = context.max_stored_mirror.is_some()
            && self.needs_bundle
            && has_passed(self.last_bundle, INCREMENTAL_INTERVAL);
        let (waiting, permit) = (self.waiting.take(), self.permit.take());
        if self.running.is_some() || !(is_due || sweep_lfs || bundle) {
            return;
        }
        let permits = context.maintenance.clone();
        let Some(permit) = permit.or_else(|| permits.clone().try_acquire_owned().ok()) else {
            let acquire = async { permits.acquire_owned().await.expect("the semaphore is never closed") };
            self.waiting = waiting.or_else(|| Some(Box::pin(acquire)));
            return;
        };
        self.is_due = false;
        self.last_start = Some(now);
        if sweep_lfs {
            self.last_lfs_sweep = Some(now);
        }
        if bundle {
            self.needs_bundle = false;
            self.last_bundle = Some(now);
        }
        let sweep = sweep_lfs.then(|| services.values().cloned().collect());
        let name = &repository.name;
        let in_progress = candidates.flat_map(|candidate| {
            let parts = candidate.parts.iter().filter(|part| part.repository == *name).map(|part| &part.revision_id);
            parts.chain([&candidate.revision]).map(|revision| (candidate.service.name.clone(), revision.clone()))
        });
        let homes = parts.iter().filter_map(|part| Some(part.part_of.as_ref()?.home.clone()));
        let used = (in_progress.collect(), homes.filter(|home| home != name).collect());
        self.running = Some(Box::pin(maintain(repository.clone(), sweep, used, (permit, bundle))));
    }
}

/// Maintains the mirror, and keeps the published revisions and those `in_progress`. Removes LFS objects that none of the
/// services in `sweep` needs, if they are given. Then writes a `bundle`, if one is due.
async fn maintain(
    repository: Arc<Repository>,
    sweep: Option<Vec<Arc<Service>>>,
    (in_progress, homes): (Vec<(ServiceName, RevisionId)>, BTreeSet<RepositoryName>),
    (permit, bundle): (OwnedSemaphorePermit, bool),
) -> MaintenanceEnd {
    let permit = Arc::new(permit);
    let (held, source) = (permit.clone(), repository.source.clone());
    let published = repository.context.publisher.queries.revisions(&repository.name, &homes).await;
    let mut published = published.map_err(ServiceFailure::from);
    published.iter_mut().for_each(|published| published.extend_from_slice(&in_progress));
    let job = Job::start("maintenance", &repository.threads, move |stop| {
        // Released when the thread ends, even if the worker has stopped before.
        let _permit = held;
        let request = MaintenanceRequest { published: &published, sweep: sweep.as_deref() };
        source.mirror().inspect(|mirror| mirror.maintain_mirror(&request, stop));
    });
    let failed = match job {
        Ok(job) => job.await.err().map(|panicked| panicked.to_string()),
        Err(error) => Some(format!("no thread can be started: {error}")),
    };
    if let Some((mirror, reason)) = repository.source.mirror().zip(failed) {
        mirror.maintenance_failed(&reason);
    }
    // A mirror that is too large is not stored before it changes.
    let is_settled = |written| matches!(written, Ok(true) | Err(BundleError::TooLarge { .. }));
    MaintenanceEnd { needs_bundle: bundle && !is_settled(bundles::write(&repository, false).await) }
}
