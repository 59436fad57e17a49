//! What others hold of a repository's agent.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use weir_shared::digest::BlobDigest;

use super::state::RepositoryState;

/// Heals that wait for the agent at the most; who comes later waits for a place, as long as it wants.
pub(super) const HEAL_QUEUE: usize = 64;

/// Asks for a blob that is missing or was corrupt to be built again.
#[derive(Debug)]
pub(super) struct Heal {
    /// The blob.
    pub(super) blob: BlobDigest,
    /// Told when it was tried.
    pub(super) done: oneshot::Sender<()>,
}

/// What others hold of a repository's agent.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub(super) state: watch::Receiver<RepositoryState>,
    /// Any number of kicks is one.
    pub(super) kicks: Arc<Notify>,
    /// The same for looks.
    pub(super) looks: Arc<Notify>,
    pub(super) heals: mpsc::Sender<Heal>,
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

    /// Asks for a poll: something moved upstream.
    pub(crate) fn kick(&self) {
        self.kicks.notify_one();
    }

    /// Asks for a look at all services, by what the mirror holds: one was unpinned.
    pub(crate) fn look(&self) {
        self.looks.notify_one();
    }

    /// Waits until the agent has tried to build a blob again. The bound on the wait is the caller's.
    pub(crate) async fn heal(&self, blob: BlobDigest) {
        let (done, tried) = oneshot::channel();
        if self.heals.send(Heal { blob, done }).await.is_ok() {
            let _ = tried.await;
        }
    }
}
