//! Rebuilds versions of which an object is missing or corrupt.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::ServiceName;
use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_source::{Candidate, RetryPolicy, Service, ServiceFailure};
use weir_store::{Area, ObjectError};

use super::lfs::{LfsPolicy, NeededObjects};
use super::pipeline::Pipeline;
use super::repository::{Repository, Services};

/// The capacity of the queue of requests, and the most waiters for one rebuild.
pub(super) const REBUILD_QUEUE: usize = 64;

/// The most versions of a repository that are being rebuilt. Waiters for rebuilds give up soon.
const MAX_REBUILDS: usize = 8;

/// The shortest delay before a failed rebuild is tried again. Each request for one of the version's objects causes a try.
const MIN_DELAY: Duration = Duration::from_secs(60);

type VersionName = (ServiceName, TarballDigest);

/// The rebuilds of a repository. Dropping it stops them.
pub(super) struct Rebuilds {
    pipeline: Pipeline,
    permits: Arc<Semaphore>,
    tasks: JoinSet<RebuildEnd>,
    /// The versions being rebuilt, each with the requests that wait for the end.
    running: HashMap<VersionName, Vec<RebuildRequest>>,
    /// Versions that could not be rebuilt, and when they may be tried again.
    lost: HashMap<VersionName, Instant>,
}

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

struct RebuildEnd {
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

impl Rebuilds {
    pub(super) fn new(pipeline: Pipeline) -> Self {
        let permits = Arc::new(Semaphore::new(MAX_REBUILDS));
        Self { pipeline, permits, tasks: JoinSet::new(), running: HashMap::new(), lost: HashMap::new() }
    }

    /// Starts a rebuild, or adds the request to a running one.
    pub(super) fn start(&mut self, request: RebuildRequest, services: &Services) {
        // The caller gave up. Without this, builds that always fail would fill the queue.
        if request.done.is_closed() {
            return;
        }
        let publication = request.version.publication();
        let Some(service) = services.get(&publication.service).cloned() else {
            let _ = request.done.send(());
            return;
        };
        let version = (service.name.clone(), publication.digest);
        if let Some(waiting) = self.running.get_mut(&version) {
            waiting.retain(|waiting| !waiting.done.is_closed());
            // Otherwise the request is dropped, and its caller may repeat it.
            if waiting.len() < REBUILD_QUEUE {
                waiting.push(request);
            }
            return;
        }
        let may_try = self.lost.get(&version).is_none_or(|until| *until <= Instant::now());
        self.running.insert(version, Vec::new());
        let (pipeline, permits) = (self.pipeline.clone(), self.permits.clone());
        self.tasks.spawn(self.pipeline.repository.threads.track(async move {
            let _permit = permits.acquire().await;
            // The caller may have given up meanwhile.
            let is_closed = request.done.is_closed();
            let attempt = match is_closed {
                true => None,
                false => rebuild(&pipeline, request.object, &service, &request.version, may_try).await,
            };
            RebuildEnd { request, service, attempt }
        }));
    }

    /// Versions that could not be rebuilt may be tried again, because the cause may have gone.
    pub(super) fn retry_lost(&mut self) {
        self.lost.clear();
    }

    /// Waits for the end of a rebuild, and notifies its waiters. Returns the service if it must publish its current content
    /// again. Forever if there is none.
    pub(super) async fn next(&mut self, services: &Services) -> Option<ServiceName> {
        let Some(end) = self.tasks.join_next().await else { return std::future::pending().await };
        let Ok(RebuildEnd { request, service, attempt }) = end else {
            // It panicked. It is unknown which one, so all waiters must repeat their requests.
            self.running.clear();
            return None;
        };
        let version = (service.name.clone(), request.version.publication().digest);
        let waiting = self.running.remove(&version).unwrap_or_default();
        let _ = request.done.send(());
        let Some(attempt) = attempt else {
            waiting.into_iter().for_each(|waiting| self.start(waiting, services));
            return None;
        };
        // The attempt was for all objects of the version.
        let is_assigned = services.get(&service.name).is_some_and(|known| Arc::ptr_eq(known, &service));
        let is_due = self.record(&service, version, request.object, attempt, is_assigned);
        for waiting in waiting {
            let _ = waiting.done.send(());
        }
        is_due.then(|| service.name.clone())
    }

    /// Records a rebuild. Returns whether the service must publish its current content again.
    fn record(
        &mut self,
        service: &Arc<Service>,
        version: VersionName,
        object: ObjectDigest,
        attempt: RebuildAttempt,
        is_assigned: bool,
    ) -> bool {
        let RebuildAttempt { result, is_current, is_lost, took } = attempt;
        let repository = &self.pipeline.repository;
        let label = if result.is_ok() { "rebuilt" } else { "failed" };
        repository.context.metrics.object_rebuilds.with_label_values(&[label]).inc();
        tracing::info!(service = %service.name, %object, result = label, "an object was missing or corrupt");
        let why = match result {
            Ok(()) => {
                if is_current {
                    service.mark_recovered();
                }
                return false;
            }
            Err(RebuildError::OtherContent) => {
                "its revision has another content with the current definition of the service".to_owned()
            }
            Err(RebuildError::Failed(failure)) => {
                let reason = repository.context.data_dir.redact(&failure.reason);
                tracing::warn!(%object, step = failure.step, reason, "a version cannot be rebuilt");
                reason
            }
        };
        if !is_assigned {
            return false;
        }
        let now = Instant::now();
        self.lost.retain(|_, until| now < *until);
        self.lost.insert(version, now + delay_after(took));
        // A service that follows its ref publishes its current content. A pinned one shows the loss, unless the mirror is being
        // cloned and may get the commit.
        if is_current && service.is_pinned() && is_lost && self.pipeline.state.borrow().mirrored {
            let reason = format!("an object of the pinned version is lost and cannot be rebuilt: {why}");
            service.mark_lost(reason, SystemTime::now());
        }
        is_current && !service.is_pinned()
    }
}

/// Rebuilds a version from its revision, or from the ref's current one if that has the same content.
async fn rebuild(
    pipeline: &Pipeline,
    object: ObjectDigest,
    service: &Arc<Service>,
    version: &Descriptor,
    may_try: bool,
) -> Option<RebuildAttempt> {
    let (Repository { name, context, .. }, start) = (&*pipeline.repository, Instant::now());
    let read = context.publisher.repositories.objects().past_cache().get(name, Area::Public, &object).await;
    if read.is_ok() || !may_try {
        return None;
    }
    let is_lost = matches!(read, Err(ObjectError::Missing(_) | ObjectError::Corrupt(_)));
    let publication = version.publication();
    let is_current = service.current().is_some_and(|current| current.publication().digest == publication.digest);
    let stages = || service.current().is_some_and(|current| current.fields().staged.is_some());
    let staged_before = stages();
    let at = (&publication.revision_id, &publication.parts[..]);
    let mut result = rebuild_from(pipeline, at, service, version).await;
    if is_current
        && matches!(&result, Err(RebuildError::Failed(failure)) if failure.retry == RetryPolicy::NextPoll)
        && let Some(Candidate { revision, parts, .. }) = current_candidate(pipeline, service).await
        && revision != publication.revision_id
        && rebuild_from(pipeline, (&revision, &parts), service, version).await.is_ok()
    {
        result = Ok(());
    }
    if matches!(result, Err(RebuildError::OtherContent))
        && !is_current
        && is_lost
        && let Err(error) = context.publisher.drop_version(service, &publication.digest).await
    {
        tracing::warn!(service = %service.name, %error, "a lost retained version cannot be dropped");
    }
    if staged_before && !stages() {
        // The rebuild ended the staging, so the tip that waited for it is published now.
        pipeline.repository.signals.resolve_all.notify_one();
    }
    Some(RebuildAttempt { result, is_current, is_lost, took: start.elapsed() })
}

/// Rebuilds a version from a revision.
async fn rebuild_from(
    pipeline: &Pipeline,
    (revision, parts): (&RevisionId, &[Part]),
    service: &Arc<Service>,
    version: &Descriptor,
) -> Result<(), RebuildError> {
    let policy = LfsPolicy { may_fetch: true, progress: None, needed_objects: NeededObjects::default() };
    pipeline.lfs.fetch(service, revision, &policy).await?;
    // Without reuse, because frames of the current version may be missing too.
    let (built, attempt) = pipeline.build(service, (revision, parts), false).await?;
    match pipeline.repository.context.publisher.publish_rebuilt(service, version, built, attempt).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(RebuildError::OtherContent),
        Err(error) => Err(ServiceFailure::from(error).into()),
    }
}

/// The current revision of a service's ref, if it has the published content. The published revision itself may be gone.
async fn current_candidate(pipeline: &Pipeline, service: &Arc<Service>) -> Option<Candidate> {
    let resolved = pipeline.resolve(vec![service.clone()]).await.ok()?;
    let candidate = resolved.into_iter().next()?.1.ok()?;
    pipeline.repository.context.publisher.repositories.is_at(&candidate).then_some(candidate)
}

impl From<ServiceFailure> for RebuildError {
    fn from(failure: ServiceFailure) -> Self {
        Self::Failed(failure)
    }
}
