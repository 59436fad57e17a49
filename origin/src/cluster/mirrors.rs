//! The mirror of a repository that moves: its owner stores what the bundles lack before it asks, and the next owner gets
//! the bundles before it says that it is ready.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use weir_protocol::name::RepositoryName;
use weir_publish::Publisher;
use weir_upstream::RepositoryConfig;

use crate::catalog::Catalog;
use crate::reconcile::{self, Context, MirrorDisposal};

/// A mirror that was made ready so long ago is made again, which costs what moved since.
const READY_FOR: Duration = Duration::from_secs(60);

pub(super) struct Mirrors {
    source: Source,
    /// Mirrors that are made here for repositories of others, and since when they are ready. The task has the sender.
    coming: BTreeMap<RepositoryName, Coming>,
    /// Questions in progress about repositories of this origin. The task has the other half.
    going: BTreeMap<RepositoryName, Weak<()>>,
}

/// When a mirror became ready. The sender is gone when nothing more is done for it.
pub(super) type Coming = watch::Receiver<Option<Instant>>;

/// How mirrors are read and written. Clones are cheap.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) context: Context,
}

impl Mirrors {
    pub(super) fn new(source: Source) -> Self {
        Self { source, coming: BTreeMap::new(), going: BTreeMap::new() }
    }

    /// Whether the mirror of a repository is ready here. If not, the work that makes it so.
    pub(super) fn prepare(&mut self, repository: &RepositoryName) -> Result<(), Option<BoxFuture<'static, ()>>> {
        self.coming.retain(|_, coming| coming.has_changed().is_ok() || is_ready(coming));
        if let Some(coming) = self.coming.get(repository) {
            return if is_ready(coming) { Ok(()) } else { Err(None) };
        }
        let (done, coming) = watch::channel(None);
        self.coming.insert(repository.clone(), coming);
        let (source, repository) = (self.source.clone(), repository.clone());
        Err(Some(Box::pin(async move {
            if source.make(&repository).await {
                done.send_replace(Some(Instant::now()));
            }
        })))
    }

    /// What is done for the mirror of a repository that this origin owns from now on. Its worker must wait for the end.
    pub(super) fn take(&mut self, repository: &RepositoryName) -> Option<Coming> {
        self.coming.remove(repository)
    }

    /// Signals the worker of a repository to stop, without waiting for the catalog, which may wait for the store.
    pub(super) fn stop_worker(&self, repository: &RepositoryName) {
        if let Some(worker) = self.source.catalog.repository(repository) {
            worker.stop(MirrorDisposal::Keep);
        }
    }

    /// The work that stores what has moved, before another origin is asked. It returns false if the repository stops here
    /// first. `None`: it is being done.
    pub(super) fn store(&mut self, repository: &RepositoryName) -> Option<impl Future<Output = bool> + use<>> {
        self.going.retain(|_, question| question.strong_count() > 0);
        if self.going.contains_key(repository) {
            return None;
        }
        let question = Arc::new(());
        self.going.insert(repository.clone(), Arc::downgrade(&question));
        let worker = self.source.catalog.repository(repository);
        Some(async move {
            let may_ask = match worker {
                Some(worker) => worker.store_mirror().await,
                None => true,
            };
            drop(question);
            may_ask
        })
    }
}

fn is_ready(coming: &Coming) -> bool {
    coming.borrow().is_some_and(|at| at.elapsed() < READY_FOR)
}

impl Source {
    async fn make(&self, repository: &RepositoryName) -> bool {
        if let Err(error) = self.publisher.ownership.refresh(repository, Duration::ZERO).await {
            tracing::warn!(%repository, %error, "the repository cannot be prepared: its state cannot be read");
            return false;
        }
        let snapshot = self.catalog.snapshot();
        let Some(config) =
            snapshot.definitions.repositories.get(repository).and_then(|defined| defined.document.valid())
        else {
            // Without a definition nothing is mirrored.
            return true;
        };
        // The failure is logged.
        reconcile::prepare(&self.context, RepositoryConfig::clone(config)).await.is_ok()
    }
}
