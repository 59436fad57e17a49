//! Rebuilds versions of which an object is missing or corrupt.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;
use tokio::task::JoinError;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::ServiceName;
use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_source::{Candidate, RetryPolicy, Service, ServiceFailure};
use weir_store::{Area, ObjectError};

use super::lfs::{LfsPolicy, NeededObjects};
use super::pipeline::Pipeline;
use super::service_states::Cause;
use super::worker::Worker;

/// The capacity of the queue of requests, and the most waiters for one rebuild.
pub(super) const REBUILD_QUEUE: usize = 64;

/// The shortest delay before a failed rebuild is tried again. Each request for one of the version's objects causes a try.
const MIN_DELAY: Duration = Duration::from_secs(60);

type VersionName = (ServiceName, TarballDigest);

/// Versions that could not be rebuilt, and when they may be tried again.
pub(super) type LostVersions = HashMap<VersionName, Instant>;

/// The versions being rebuilt, each with the requests that wait for the end.
pub(super) type RunningRebuilds = HashMap<VersionName, Vec<RebuildRequest>>;

/// Requests a missing or corrupt object.
#[derive(Debug)]
pub(super) struct RebuildRequest {
    pub(super) object: ObjectDigest,
    /// The version that references the object.
    pub(super) version: Arc<Descriptor>,
    /// Notified after the attempt.
    pub(super) done: oneshot::Sender<()>,
}

/// The delay after a failed rebuild. Retries take at most a fifth of the time.
fn delay_after(took: Duration) -> Duration {
    MIN_DELAY.max(4 * took)
}

pub(super) struct RebuildEnd {
    request: RebuildRequest,
    service: Arc<Service>,
    /// `None`: an earlier rebuild restored the object, or the version was tried recently.
    attempt: Option<RebuildAttempt>,
}

struct RebuildAttempt {
    result: Result<(), RebuildError>,
    is_current: bool,
    /// Whether the object is missing or corrupt. An object that cannot be read now may be good.
    is_lost: bool,
    took: Duration,
}

enum RebuildError {
    /// The revision has another content with the service's current definition.
    OtherContent,
    Failed(ServiceFailure),
}

impl Worker {
    /// Starts a rebuild, or adds the request to a running one.
    pub(super) fn start_rebuild(&mut self, request: RebuildRequest) {
        // The caller gave up. Without this, builds that always fail would fill the queue.
        if request.done.is_closed() {
            return;
        }
        let publication = request.version.publication();
        let Some(service) = self.services.get(&publication.service).cloned() else {
            let _ = request.done.send(());
            return;
        };
        let version = (service.name.clone(), publication.digest);
        if let Some(waiting) = self.running_rebuilds.get_mut(&version) {
            waiting.retain(|waiting| !waiting.done.is_closed());
            // Otherwise the request is dropped, and its caller may repeat it.
            if waiting.len() < REBUILD_QUEUE {
                waiting.push(request);
            }
            return;
        }
        let may_try = self.lost_versions.get(&version).is_none_or(|until| *until <= Instant::now());
        self.running_rebuilds.insert(version, Vec::new());
        let pipeline = self.pipeline.clone();
        self.rebuild_tasks.spawn(self.context.threads.track(async move {
            let _permit = pipeline.rebuilds.acquire().await;
            // The caller may have given up meanwhile.
            let is_closed = request.done.is_closed();
            let attempt = match is_closed {
                true => None,
                false => pipeline.rebuild(request.object, &service, &request.version, may_try).await,
            };
            RebuildEnd { request, service, attempt }
        }));
    }

    /// Handles the end of a rebuild, and notifies its waiters.
    pub(super) fn handle_rebuild_end(&mut self, end: Result<RebuildEnd, JoinError>) {
        let Ok(RebuildEnd { request, service, attempt }) = end else {
            // It panicked. It is unknown which one, so all waiters must repeat their requests.
            self.running_rebuilds.clear();
            return;
        };
        let version = (service.name.clone(), request.version.publication().digest);
        let waiting = self.running_rebuilds.remove(&version).unwrap_or_default();
        let _ = request.done.send(());
        match attempt {
            // The attempt was for all objects of the version.
            Some(attempt) => {
                self.record_rebuild(&service, &version, request.object, attempt);
                for waiting in waiting {
                    let _ = waiting.done.send(());
                }
            }
            None => waiting.into_iter().for_each(|waiting| self.start_rebuild(waiting)),
        }
    }

    fn record_rebuild(
        &mut self,
        service: &Arc<Service>,
        version: &VersionName,
        object: ObjectDigest,
        attempt: RebuildAttempt,
    ) {
        let RebuildAttempt { result, is_current, is_lost, took } = attempt;
        let label = if result.is_ok() { "rebuilt" } else { "failed" };
        self.context.metrics.object_rebuilds.with_label_values(&[label]).inc();
        tracing::info!(service = %service.name, %object, result = label, "an object was missing or corrupt");
        let why = match result {
            Ok(()) => {
                if is_current {
                    service.mark_recovered();
                }
                return;
            }
            Err(RebuildError::OtherContent) => {
                "its revision has another content with the current definition of the service".to_owned()
            }
            Err(RebuildError::Failed(failure)) => {
                let reason = self.context.data_dir.redact(&failure.reason);
                self.poll_if_needed();
                tracing::warn!(%object, step = failure.step, reason, "a version cannot be rebuilt");
                reason
            }
        };
        if !self.is_assigned(service) {
            return;
        }
        let now = Instant::now();
        self.lost_versions.retain(|_, until| now < *until);
        self.lost_versions.insert(version.clone(), now + delay_after(took));
        if !is_current {
            return;
        }
        // A service that follows its ref publishes its current content. A pinned one shows the loss, unless the mirror is being
        // cloned and may get the commit.
        if !service.is_pinned() {
            self.states.mark_due(&service.name, Cause::Changed);
        } else if is_lost && self.state.borrow().mirrored {
            let reason = format!("an object of the pinned version is lost and cannot be rebuilt: {why}");
            service.mark_lost(reason, SystemTime::now());
        }
    }
}

impl Pipeline {
    /// Rebuilds a version from its revision, or from the ref's current one if that has the same content.
    async fn rebuild(
        &self,
        object: ObjectDigest,
        service: &Arc<Service>,
        version: &Descriptor,
        may_try: bool,
    ) -> Option<RebuildAttempt> {
        let (publisher, start) = (&self.context.publisher, Instant::now());
        let read = publisher.repositories.objects().past_cache().get(&self.poller.name, Area::Public, &object).await;
        if read.is_ok() || !may_try {
            return None;
        }
        let is_lost = matches!(read, Err(ObjectError::Missing(_) | ObjectError::Corrupt(_)));
        let publication = version.publication();
        let is_current = service.current().is_some_and(|current| current.publication().digest == publication.digest);
        let at = (&publication.revision_id, &publication.parts[..]);
        let mut result = self.rebuild_from(at, service, version).await;
        if is_current
            && matches!(&result, Err(RebuildError::Failed(failure)) if failure.retry == RetryPolicy::NextPoll)
            && let Some(Candidate { revision, parts, .. }) = self.current_candidate(service).await
            && revision != publication.revision_id
            && self.rebuild_from((&revision, &parts), service, version).await.is_ok()
        {
            result = Ok(());
        }
        if matches!(result, Err(RebuildError::OtherContent)) && !is_current && is_lost {
            self.drop_version(service, version).await;
        }
        Some(RebuildAttempt { result, is_current, is_lost, took: start.elapsed() })
    }

    /// Rebuilds a version from a revision.
    async fn rebuild_from(
        &self,
        (revision, parts): (&RevisionId, &[Part]),
        service: &Arc<Service>,
        version: &Descriptor,
    ) -> Result<(), RebuildError> {
        let policy = LfsPolicy { may_fetch: true, progress: None, needed_objects: NeededObjects::default() };
        self.fetch_lfs(service, revision, &policy).await?;
        // Without reuse, because frames of the current version may be missing too.
        let (built, attempt) = self.build(service, (revision, parts), false).await?;
        match self.context.publisher.publish_rebuilt(service, version, built, attempt).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(RebuildError::OtherContent),
            Err(error) => Err(ServiceFailure::from(error).into()),
        }
    }

    /// The current revision of a service's ref, if it has the published content. The published revision itself may be gone.
    async fn current_candidate(&self, service: &Arc<Service>) -> Option<Candidate> {
        let resolved = self.resolve(vec![service.clone()]).await.ok()?;
        let candidate = resolved.into_iter().next()?.1.ok()?;
        self.context.publisher.repositories.is_at(&candidate).then_some(candidate)
    }

    async fn drop_version(&self, service: &Service, version: &Descriptor) {
        let publication = version.publication();
        if let Err(error) = self.context.publisher.drop_version(service, &publication.digest).await {
            tracing::warn!(service = %service.name, %error, "a lost retained version cannot be dropped");
        }
    }
}

impl From<ServiceFailure> for RebuildError {
    fn from(failure: ServiceFailure) -> Self {
        Self::Failed(failure)
    }
}
