//! What others hold of a repository's agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::event::RevisionSeen;

use super::rebuild::Rebuild;
use super::start::Before;
use super::state::RepositoryState;
use super::threads::Threads;
use crate::config::RepositoryConfig;
use crate::data_dir::DataDir;
use crate::publish::{Publisher, Suspension};
use crate::service::Service;
use crate::source::Source;

/// What becomes of the mirror of an agent that is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MirrorFate {
    /// Another agent will use it, or a person decides.
    Kept,
    /// It goes, with what stands beside it.
    Removed,
}

/// The end of an agent: its jobs have ended and its mirror is free. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gone(pub(super) CancellationToken);

impl Gone {
    /// Waits for it.
    pub(crate) async fn wait(&self) {
        self.0.cancelled().await;
    }

    /// Whether it has come.
    pub(crate) fn has_come(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// What an agent is asked for without waiting. Any number of the same is one.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls {
    /// A poll.
    pub(super) kicks: Arc<Notify>,
    /// A look at all services.
    pub(super) looks: Arc<Notify>,
    /// Not to put off what failed.
    pub(super) retries: Arc<Notify>,
}

/// What others hold of a repository's agent.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(super) state: watch::Receiver<RepositoryState>,
    pub(super) calls: Calls,
    pub(super) rebuilds: mpsc::Sender<Box<Rebuild>>,
    pub(super) seen: watch::Receiver<Vec<RevisionSeen>>,
    pub(super) publisher: Arc<Publisher>,
    /// What it publishes.
    pub(super) services: Arc<watch::Sender<Vec<Arc<Service>>>>,
    pub(super) source: Arc<dyn Source>,
    pub(super) data_dir: DataDir,
    pub(super) threads: Threads,
    pub(super) stop: CancellationToken,
    pub(super) remove_mirror: Arc<AtomicBool>,
    pub(super) gone: Gone,
    pub(super) config: Arc<watch::Sender<Arc<RepositoryConfig>>>,
}

impl Handle {
    /// How the repository is, as it changes.
    pub(crate) fn follow(&self) -> watch::Receiver<RepositoryState> {
        self.state.clone()
    }

    /// How the repository is.
    pub(crate) fn state(&self) -> RepositoryState {
        self.state.borrow().clone()
    }

    /// What it goes by.
    pub(crate) fn config(&self) -> Arc<RepositoryConfig> {
        self.config.borrow().clone()
    }

    /// Has it go by another configuration from now on. The upstream must be asked as before
    /// ([`RepositoryConfig::is_asked_as`]): what is under way goes on.
    pub(crate) fn reconfigure(&self, config: RepositoryConfig) {
        self.config.send_if_modified(|current| {
            let news = **current != config;
            *current = Arc::new(config);
            news
        });
    }

    /// What it leaves to an agent of this configuration: that its host wants to be left alone is not undone by asking in
    /// another way.
    pub(crate) fn leaves_to(&self, config: &RepositoryConfig) -> Before {
        let state = self.state.borrow();
        let same_host = config.url.host() == self.config.borrow().url.host();
        let lfs_held_until = state.lfs.as_ref().and_then(|lfs| lfs.held_until);
        Before {
            polls: state.polls,
            attempts: state.attempts,
            held_until: state.held_until.filter(|_| same_host),
            lfs_held_until: lfs_held_until.filter(|_| same_host),
        }
    }

    /// Asks for a poll: something moved upstream.
    pub(crate) fn kick(&self) {
        self.calls.kicks.notify_one();
    }

    /// Asks for a poll, and for what failed to be tried again: a person has put something right.
    pub(crate) fn refresh(&self) {
        self.calls.retries.notify_one();
        self.kick();
    }

    /// Asks for a look at all services, by what the mirror holds: one was unpinned.
    pub(crate) fn look(&self) {
        self.calls.looks.notify_one();
    }

    /// Has it publish these services from now on. What is new among them is looked at at once.
    pub(crate) fn publish(&self, services: Vec<Arc<Service>>) {
        self.services.send_if_modified(|current| {
            let same = current.len() == services.len() && current.iter().zip(&services).all(|(a, b)| Arc::ptr_eq(a, b));
            *current = services;
            !same
        });
    }

    /// Its end.
    pub(crate) fn gone(&self) -> Gone {
        self.gone.clone()
    }

    /// Ends it: its jobs are told to stop, and nothing begins any more.
    pub(crate) fn stop(&self, mirror: MirrorFate) -> Gone {
        self.remove_mirror.store(mirror == MirrorFate::Removed, Ordering::Relaxed);
        self.stop.cancel();
        self.gone.clone()
    }

    /// Up to which revision the published content of each followed ref is right.
    pub(crate) fn revisions(&self) -> Vec<RevisionSeen> {
        self.seen.borrow().clone()
    }

    /// The same of one ref, as definitions have it.
    pub(crate) fn revision(&self, followed_ref: &str) -> Option<RevisionSeen> {
        let seen = self.seen.borrow();
        let at = seen.binary_search_by(|seen| seen.followed_ref.as_str().cmp(followed_ref)).ok()?;
        Some(seen[at].clone())
    }

    /// Why nothing new is published of the repository until an operator confirms its state.
    pub(crate) fn suspension(&self) -> Option<Suspension> {
        self.publisher.suspension(&self.config.borrow().name)
    }

    /// Waits until the agent has tried to have an object again that this version refers to. The bound on the wait is the
    /// caller's.
    pub(crate) async fn rebuild(&self, object: ObjectDigest, version: Descriptor) {
        let (done, tried) = oneshot::channel();
        if self.rebuilds.send(Box::new(Rebuild { object, version: version.into(), done })).await.is_ok() {
            let _ = tried.await;
        }
    }
}
