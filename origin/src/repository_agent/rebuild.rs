//! Rebuilding a version of which an object is missing, or damaged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;
use weir_shared::commit_id::CommitId;
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::{ObjectDigest, TarballDigest};
use weir_shared::name::ServiceName;

use super::build::{Again, ServiceFailure};
use super::lfs::Who;
use super::reconcile::Found;
use super::task::Task;
use crate::service::Service;
use crate::store::{Area, ObjectError};

/// Requests that wait for the agent at the most; who comes later waits for a slot, as long as it wants.
pub(super) const REBUILD_QUEUE: usize = 64;

/// The shortest time until a version is built again that could not be rebuilt: each request for one of its objects asks.
const SHORTEST_PAUSE: Duration = Duration::from_secs(60);

/// Versions that could not be rebuilt, and until when they are left alone.
pub(super) type LostVersions = HashMap<(ServiceName, TarballDigest), Instant>;

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

impl Task {
    /// Tries to have an object again, and tells so. When LFS objects have to be fetched for it, that is later.
    pub(super) async fn rebuild(&mut self, request: Rebuild) {
        // Who does not wait any more asks again; a build that fails each time must not be queued behind itself.
        if request.done.is_closed() {
            return;
        }
        if self.was_tried(request.object, &request.version).await {
            let _ = request.done.send(());
        } else {
            self.rebuild_later(request);
        }
        self.settle_lfs();
    }

    /// From the commit of the version, or from one that has the same content; when there is none, by bringing the service to
    /// where its ref is. False: it waits for LFS objects.
    async fn was_tried(&mut self, object: ObjectDigest, version: &Descriptor) -> bool {
        let publication = version.publication();
        let Some(service) = self.services.iter().find(|service| service.name == publication.service).cloned() else {
            return true;
        };
        let stored = self.context.publisher.objects().past_cache();
        let read = stored.get(&self.config.name, Area::Public, &object).await;
        if read.is_ok() {
            // A request before this one brought it back.
            return true;
        }
        // What cannot be read just now may be good: it is written again, and nothing is forgotten because of it.
        let is_lost = matches!(read, Err(ObjectError::Missing(_) | ObjectError::Corrupt(_)));
        let (tried, begun) = ((service.name.clone(), publication.digest), Instant::now());
        if self.lost_versions.get(&tried).is_some_and(|until| begun < *until) {
            return true;
        }
        let is_current = service.current().is_some_and(|current| current.publication().digest == publication.digest);
        let mut result = self.rebuild_from(&publication.commit, object, &service, version).await;
        if is_current
            && matches!(&result, Err(failure) if failure.again == Again::Soon)
            && let Some(settled) = self.settled_at(&service).await.filter(|settled| *settled != publication.commit)
            && let Ok(rebuilt @ (Some(true) | None)) = self.rebuild_from(&settled, object, &service, version).await
        {
            result = Ok(rebuilt);
        }
        let why = match result {
            Ok(None) => return false,
            Ok(Some(true)) => None,
            Ok(Some(false)) => {
                if !is_current && is_lost {
                    self.forget(&service, version).await;
                }
                Some("its commit gives another content by how the service is defined now".to_owned())
            }
            Err(failure) => {
                let reason = self.context.data_dir.redact(&failure.reason);
                self.mend_mirror();
                tracing::warn!(%object, step = failure.step, reason, "a version cannot be rebuilt");
                Some(reason)
            }
        };
        if why.is_some() {
            let now = Instant::now();
            self.lost_versions.retain(|_, until| now < *until);
            self.lost_versions.insert(tried, now + pause_after(now - begun));
        }
        if is_current {
            match &why {
                None => service.mark_found(),
                Some(why) if is_lost || !service.is_pinned() => self.current_is_lost(&service, why).await,
                Some(_) => {}
            }
        }
        let label = if why.is_none() { "rebuilt" } else { "failed" };
        self.context.metrics.object_rebuilds.with_label_values(&[label]).inc();
        tracing::info!(service = %service.name, %object, result = label, "an object was missing or corrupt");
        true
    }

    /// Builds a version again from a commit. False: that gives another content. `None`: it waits for LFS objects.
    async fn rebuild_from(
        &mut self,
        commit: &CommitId,
        object: ObjectDigest,
        service: &Arc<Service>,
        version: &Descriptor,
    ) -> Result<Option<bool>, ServiceFailure> {
        if !self.has_lfs(Who::Object(object), service, commit, true).await? {
            return Ok(None);
        }
        // With no frames of the version that there is: they may be missing too.
        let (built, attempt) = self.built(service, commit, false).await?;
        Ok(Some(self.context.publisher.publish_rebuilt(service, version, built, attempt).await?))
    }

    /// Where the ref of a service is, if nothing has to be built for that. The commit of what is published may be gone then:
    /// when the content is the same at another one, nothing is published.
    async fn settled_at(&self, service: &Arc<Service>) -> Option<CommitId> {
        let looked = self.look(std::slice::from_ref(service)).await.ok()?;
        looked.into_iter().find_map(|(_, found)| match found {
            Ok(Found::Settled(commit)) => Some(commit),
            Ok(Found::ToBuild(_)) | Err(_) => None,
        })
    }

    /// A service that follows its ref is brought there; one that is pinned to what is lost says so.
    async fn current_is_lost(&mut self, service: &Arc<Service>, why: &str) {
        // What the mirror will hold is not known while it is cloned.
        let is_mirrored = self.state.borrow().mirrored;
        if !service.is_pinned() {
            self.reconcile(std::slice::from_ref(service), !is_mirrored).await;
        } else if is_mirrored {
            let reason = format!("an object of the version that it is pinned to is lost, and cannot be rebuilt: {why}");
            service.mark_lost(reason, SystemTime::now());
        }
    }

    async fn forget(&self, service: &Service, version: &Descriptor) {
        let publication = version.publication();
        if let Err(error) = self.context.publisher.forget_version(service, &publication.digest).await {
            tracing::warn!(service = %service.name, %error, "a retained version that is lost cannot be dropped");
        }
    }
}
