//! The handle of a repository's worker: signals, configuration, state and shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::event::RevisionSeen;
use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;
use weir_publish::{Frozen, Suspension};
use weir_source::Service;
use weir_upstream::RepositoryConfig;

use super::bundles;
use super::pipeline::Pipeline;
use super::rebuild::RebuildRequest;
use super::repository::Repository;
use super::state::RepositoryState;

/// What happens to the mirror of a stopped worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MirrorDisposal {
    /// It stays for the next worker, or until a person deletes it.
    Keep,
    /// It is removed, with the repository's other mirrors.
    Remove,
}

/// The termination of a worker: its jobs have ended, and its mirror is free. Clones are cheap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terminated(pub(super) CancellationToken);

impl Terminated {
    /// That of a worker that never ran.
    pub(crate) fn over() -> Self {
        let over = Self::default();
        over.0.cancel();
        over
    }

    pub(crate) async fn wait(&self) {
        self.0.cancelled().await;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// What a worker leaves to its successor.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Handover {
    /// As [`RepositoryState::polls`].
    pub(crate) polls: u64,
    /// As [`RepositoryState::applied_polls`].
    pub(crate) applied_polls: u64,
    /// The end of the upstream's `Retry-After`.
    pub(crate) held_until: Option<SystemTime>,
    /// The end of the LFS server's `Retry-After`.
    pub(crate) lfs_held_until: Option<SystemTime>,
}

/// The handle of a repository's worker. The worker also stops when its drain begins.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(super) repository: Arc<Repository>,
    pub(super) pipeline: Pipeline,
    pub(super) state: watch::Receiver<RepositoryState>,
    pub(super) rebuilds: mpsc::Sender<Box<RebuildRequest>>,
    pub(super) revisions: watch::Receiver<Vec<RevisionSeen>>,
    pub(super) services: Arc<watch::Sender<Vec<Arc<Service>>>>,
    pub(super) stop: CancellationToken,
    pub(super) remove_mirror: Arc<AtomicBool>,
    pub(super) terminated: Terminated,
    pub(super) config: Arc<watch::Sender<Arc<RepositoryConfig>>>,
}

impl Handle {
    /// The state of the repository, as it changes.
    pub(crate) fn follow(&self) -> watch::Receiver<RepositoryState> {
        self.state.clone()
    }

    /// The current state of the repository.
    pub(crate) fn state(&self) -> RepositoryState {
        self.state.borrow().clone()
    }

    /// The current configuration.
    pub(crate) fn config(&self) -> Arc<RepositoryConfig> {
        self.config.borrow().clone()
    }

    /// Changes the configuration. The upstream must be the same ([`RepositoryConfig::has_same_upstream`]), because a running
    /// poll continues.
    pub(crate) fn reconfigure(&self, config: RepositoryConfig) {
        self.config.send_if_modified(|current| {
            let has_changed = **current != config;
            *current = Arc::new(config);
            has_changed
        });
    }

    /// The knowledge for a successor with this configuration. A `Retry-After` of the same host still applies to it.
    pub(crate) fn handover(&self, config: &RepositoryConfig) -> Handover {
        let state = self.state.borrow();
        let same_host = config.url.host() == self.config.borrow().url.host();
        let lfs_held_until = state.lfs.as_ref().and_then(|lfs| lfs.held_until);
        Handover {
            polls: state.polls,
            applied_polls: state.applied_polls,
            held_until: state.held_until.filter(|_| same_host),
            lfs_held_until: lfs_held_until.filter(|_| same_host),
        }
    }

    /// Polls as soon as possible, because the upstream may have changed.
    pub(crate) fn trigger_poll(&self) {
        self.repository.signals.poll.notify_one();
    }

    /// A webhook said that refs (all, if none is given) have moved to these revisions: a poll that finds them publishes them.
    pub(crate) fn expect(&self, refs: &[String], revisions: &[RevisionId]) {
        let (now, services) = (Instant::now(), self.services.borrow());
        let may_follow =
            |service: &Service| refs.is_empty() || refs.iter().any(|it| service.followed.may_follow(Some(it)));
        for service in services.iter().filter(|service| may_follow(service)) {
            revisions.iter().for_each(|revision| service.name_revision(revision.clone(), now));
        }
    }

    /// Polls and retries failures as soon as possible, because an operator asked for it.
    pub(crate) fn refresh(&self) {
        let now = Instant::now();
        // Of a composed service its parts are followed.
        let followers = self.services.borrow();
        followers.iter().filter(|each| each.parts.is_empty()).for_each(|each| each.ask_for_poll(now));
        // What its other parts have published is used again, even if it is older.
        let parts = followers.iter().flat_map(|each| &each.parts).filter(|part| part.of_service().is_some());
        parts.for_each(|part| part.forget_standing());
        self.repository.signals.part_changes.notify();
        self.repository.signals.refresh.notify_one();
        self.trigger_poll();
    }

    /// Resolves all services from the mirror, because one was unpinned.
    pub(crate) fn resolve_all(&self) {
        self.repository.signals.resolve_all.notify_one();
    }

    /// Assigns the services to publish, which are resolved at once if they are new, and the parts that others publish.
    pub(crate) fn assign(&self, services: Vec<Arc<Service>>) {
        self.services.send_if_modified(|current| {
            let same = current.len() == services.len() && current.iter().zip(&services).all(|(a, b)| Arc::ptr_eq(a, b));
            *current = services;
            !same
        });
    }

    pub(crate) fn terminated(&self) -> Terminated {
        self.terminated.clone()
    }

    /// Stops the worker: its jobs are signalled to stop, and it starts nothing more.
    pub(crate) fn stop(&self, mirror: MirrorDisposal) -> Terminated {
        let Repository { name, source, context, .. } = &*self.repository;
        context.part_sources.remove(name, source);
        self.remove_mirror.store(mirror == MirrorDisposal::Remove, Ordering::Relaxed);
        self.stop.cancel();
        self.terminated.clone()
    }

    /// Stores what has moved, because the repository is about to move to another origin. Returns false if the worker stops
    /// first, and then nothing is written any more.
    pub(crate) async fn store_mirror(&self) -> bool {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            // The failure is logged, and the next owner fetches the rest from the upstream.
            _ = bundles::write_now(&self.repository) => true,
        }
    }

    /// The published revision of each followed ref.
    pub(crate) fn revisions(&self) -> Vec<RevisionSeen> {
        self.revisions.borrow().clone()
    }

    /// The published revision of a ref, as written in definitions.
    pub(crate) fn revision(&self, followed_ref: &str) -> Option<RevisionSeen> {
        let revisions = self.revisions.borrow();
        let at = revisions.binary_search_by(|seen| seen.followed_ref.as_str().cmp(followed_ref)).ok()?;
        Some(revisions[at].clone())
    }

    /// Why nothing is published until an operator confirms the repository's state.
    pub(crate) fn suspension(&self) -> Option<Suspension> {
        self.repository.context.publisher.repositories.suspension(&self.repository.name)
    }

    /// What freezes a service now.
    pub(crate) fn frozen(&self, service: &ServiceName) -> Option<Frozen> {
        self.repository.context.publisher.freezes.of(service, SystemTime::now())
    }

    /// Rebuilds a version of which this object is lost. Returns after the attempt; the caller bounds the wait.
    pub(crate) async fn rebuild(&self, object: ObjectDigest, version: Descriptor) {
        let (done, ended) = oneshot::channel();
        if self.rebuilds.send(Box::new(RebuildRequest { object, version: version.into(), done })).await.is_ok() {
            let _ = ended.await;
        }
    }
}
