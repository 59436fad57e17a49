//! Rebuilding a version of which an object is missing, or damaged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use weir_protocol::commit_id::CommitId;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::ServiceName;

use super::lfs::{Ask, Narrowed};
use super::work::Work;
use super::work_list::Cause;
use super::worker::Worker;
use crate::service::Service;
use crate::source::{RetryPolicy, ServiceFailure};
use crate::store::{Area, ObjectError};

/// Requests that wait for the agent at the most; who comes later waits for a slot, as long as it wants.
pub(super) const REBUILD_QUEUE: usize = 64;

/// The shortest time until a version is built again that could not be rebuilt: each request for one of its objects asks.
const SHORTEST_PAUSE: Duration = Duration::from_secs(60);

/// A version of a service.
type VersionName = (ServiceName, TarballDigest);

/// Versions that could not be rebuilt, and until when they are left alone.
pub(super) type LostVersions = HashMap<VersionName, Instant>;

/// The versions that are being rebuilt, each with those who ask for another of its objects, or for the same, meanwhile.
pub(super) type Rebuilding = HashMap<VersionName, Vec<Rebuild>>;

/// Asks for an object that is missing or was corrupt to be had again.
#[derive(Debug)]
pub(super) struct Rebuild {
    pub(super) object: ObjectDigest,
    /// The version that refers to it.
    pub(super) version: Arc<Descriptor>,
    /// Told when it was tried.
    pub(super) done: oneshot::Sender<()>,
}

/// How long a version is left alone that could not be rebuilt: what tries again takes a fifth of the time at the most.
fn pause_after(took: Duration) -> Duration {
    SHORTEST_PAUSE.max(4 * took)
}

/// How a rebuild ended.
pub(super) struct RebuildEnd {
    request: Rebuild,
    service: Arc<Service>,
    /// Nothing: a rebuild before this one fetched the object back, or the version was tried not long ago.
    tried: Option<Tried>,
}

/// How a version that was tried came out.
struct Tried {
    result: Result<(), Fault>,
    is_current: bool,
    /// It is missing or corrupt. What cannot be read just now may be good: nothing is forgotten because of it.
    is_lost: bool,
    took: Duration,
}

/// Why a version was not rebuilt.
enum Fault {
    /// Its commit gives another content.
    OtherContent,
    Failed(ServiceFailure),
}

impl Worker {
    /// Begins to have an object again, beside everything else.
    pub(super) fn begin_rebuild(&mut self, request: Rebuild, rebuilds: &mut JoinSet<RebuildEnd>) {
        // Who does not wait any more asks again; a build that fails each time must not be queued behind itself.
        if request.done.is_closed() {
            return;
        }
        let publication = request.version.publication();
        let Some(service) = self.services.get(&publication.service).cloned() else {
            let _ = request.done.send(());
            return;
        };
        let version = (service.name.clone(), publication.digest);
        if let Some(waiting) = self.rebuilding.get_mut(&version) {
            waiting.retain(|waiting| !waiting.done.is_closed());
            // Who finds too many others waiting asks again.
            if waiting.len() < REBUILD_QUEUE {
                waiting.push(request);
            }
            return;
        }
        let may_try = self.lost_versions.get(&version).is_none_or(|until| *until <= Instant::now());
        self.rebuilding.insert(version, Vec::new());
        let work = self.work.clone();
        rebuilds.spawn(self.context.threads.track(async move {
            let _permit = work.rebuilds.acquire().await;
            // Who does not wait any more asks again.
            let is_closed = request.done.is_closed();
            let tried = match is_closed {
                true => None,
                false => work.rebuild(request.object, &service, &request.version, may_try).await,
            };
            RebuildEnd { request, service, tried }
        }));
    }

    /// A rebuild has ended: tells who waits for it.
    pub(super) fn rebuild_ended(&mut self, end: Result<RebuildEnd, JoinError>, rebuilds: &mut JoinSet<RebuildEnd>) {
        let Ok(RebuildEnd { request, service, tried }) = end else {
            // It panicked, and whose it was is not known: who waits asks again.
            self.rebuilding.clear();
            return;
        };
        let version = (service.name.clone(), request.version.publication().digest);
        let waiting = self.rebuilding.remove(&version).unwrap_or_default();
        let _ = request.done.send(());
        match tried {
            // All of its objects were built.
            Some(tried) => {
                self.note_rebuild(&service, &version, request.object, tried);
                for waiting in waiting {
                    let _ = waiting.done.send(());
                }
            }
            None => waiting.into_iter().for_each(|waiting| self.begin_rebuild(waiting, rebuilds)),
        }
    }

    fn note_rebuild(&mut self, service: &Arc<Service>, version: &VersionName, object: ObjectDigest, tried: Tried) {
        let Tried { result, is_current, is_lost, took } = tried;
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
            Err(Fault::OtherContent) => "its commit gives another content by how the service is defined now".to_owned(),
            Err(Fault::Failed(failure)) => {
                let reason = self.context.data_dir.redact(&failure.reason);
                self.mend_mirror();
                tracing::warn!(%object, step = failure.step, reason, "a version cannot be rebuilt");
                reason
            }
        };
        if !self.is_assigned(service) {
            return;
        }
        let now = Instant::now();
        self.lost_versions.retain(|_, until| now < *until);
        self.lost_versions.insert(version.clone(), now + pause_after(took));
        if !is_current {
            return;
        }
        // A service that follows its ref is fetched there; one that is pinned to what is lost says so. What the mirror will
        // hold is not known while it is cloned.
        if !service.is_pinned() {
            self.list.due(&service.name, Cause::Follow);
        } else if is_lost && self.state.borrow().mirrored {
            let reason = format!("an object of the version that it is pinned to is lost, and cannot be rebuilt: {why}");
            service.mark_lost(reason, SystemTime::now());
        }
    }
}

impl Work {
    /// Tries to have an object again: from the commit of the version, or from one that has the same content.
    async fn rebuild(
        &self,
        object: ObjectDigest,
        service: &Arc<Service>,
        version: &Descriptor,
        may_try: bool,
    ) -> Option<Tried> {
        let (publisher, begun) = (&self.context.publisher, Instant::now());
        let read = publisher.objects().past_cache().get(&self.poller.name, Area::Public, &object).await;
        if read.is_ok() || !may_try {
            return None;
        }
        let is_lost = matches!(read, Err(ObjectError::Missing(_) | ObjectError::Corrupt(_)));
        let publication = version.publication();
        let is_current = service.current().is_some_and(|current| current.publication().digest == publication.digest);
        let mut result = self.rebuild_from(&publication.commit, service, version).await;
        if is_current
            && matches!(&result, Err(Fault::Failed(failure)) if failure.retry == RetryPolicy::NextPoll)
            && let Some(commit) = self.commit_of_the_same(service).await
            && commit != publication.commit
            && self.rebuild_from(&commit, service, version).await.is_ok()
        {
            result = Ok(());
        }
        if matches!(result, Err(Fault::OtherContent)) && !is_current && is_lost {
            self.forget(service, version).await;
        }
        Some(Tried { result, is_current, is_lost, took: begun.elapsed() })
    }

    /// Builds a version again from a commit.
    async fn rebuild_from(&self, commit: &CommitId, service: &Arc<Service>, version: &Descriptor) -> Result<(), Fault> {
        let ask = Ask { may_ask: true, told: None, narrowed: Narrowed::default() };
        self.fetch_lfs(service, commit, &ask).await?;
        // With no frames of the version that there is: they may be missing too.
        let (built, attempt) = self.build(service, commit, false).await?;
        match self.context.publisher.publish_rebuilt(service, version, built, attempt).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Fault::OtherContent),
            Err(error) => Err(ServiceFailure::from(error).into()),
        }
    }

    /// Where the ref of a service is, if the content there is what it has. The commit of what is published may be gone then.
    async fn commit_of_the_same(&self, service: &Arc<Service>) -> Option<CommitId> {
        let resolved = self.resolve(vec![service.clone()]).await.ok()?;
        let candidate = resolved.into_iter().next()?.1.ok()?;
        self.context.publisher.is_at(&candidate).then_some(candidate.commit)
    }

    async fn forget(&self, service: &Service, version: &Descriptor) {
        let publication = version.publication();
        if let Err(error) = self.context.publisher.drop_version(service, &publication.digest).await {
            tracing::warn!(service = %service.name, %error, "a retained version that is lost cannot be dropped");
        }
    }
}

impl From<ServiceFailure> for Fault {
    fn from(failure: ServiceFailure) -> Self {
        Self::Failed(failure)
    }
}
