//! What this origin does for the repositories that it owns: a task for each, from [`Work::start`] until the writer has
//! stopped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use weir_ownership::{Digests, Event};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::{Publisher, TakeError};
use weir_runtime::shutdown::Drain;
use weir_store::{Listed, Version};

use super::mirrors::{Coming, Mirrors};
use super::{ClusterMetrics, MirrorSource, Order};
use crate::catalog::{Catalog, Editor, Snapshot};
use crate::names::ServiceNames;

/// The pause before a repository is read again that could not be read.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The pause while the members have different files.
const SETTLE_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// All names are read once for the repositories that are taken within this time.
const NAMES_MAX_AGE: Duration = Duration::from_secs(10);

/// How often names are looked for that were taken in vain. What is due daily shares a read of all names for this time: each
/// repository would read them otherwise, also one that nobody defines any more.
const LOOK_EVERY: Duration = Duration::from_secs(600);

/// How often everything is brought in line again.
const ALIGN_EVERY: Duration = Duration::from_secs(24 * 3600);

pub(super) struct Work {
    parts: Parts,
    /// Ends the task of each repository that runs.
    running: BTreeMap<RepositoryName, CancellationToken>,
    /// The tasks since the last session ended.
    tasks: TaskTracker,
    mirrors: Mirrors,
}

/// What the task of each repository uses.
#[derive(Clone)]
pub(super) struct Parts {
    pub(super) publisher: Arc<Publisher>,
    pub(super) editor: Editor,
    pub(super) names: ServiceNames,
    pub(super) catalog: Arc<Catalog>,
    pub(super) queue: mpsc::Sender<Order>,
    /// What all members have in common, while they do.
    pub(super) agreed: watch::Receiver<Option<Digests>>,
    pub(super) metrics: ClusterMetrics,
    pub(super) drain: Drain,
}

impl Work {
    pub(super) fn new(parts: Parts, mirrors: MirrorSource) -> Self {
        Self { parts, running: BTreeMap::new(), tasks: TaskTracker::new(), mirrors: Mirrors::new(mirrors) }
    }

    /// Starts the writer and the worker of a repository whose record has this version.
    pub(super) fn start(&mut self, repository: RepositoryName, version: Version) {
        let stop = CancellationToken::new();
        self.running.insert(repository.clone(), stop.clone());
        let (parts, task) = (self.parts.clone(), self.tasks.token());
        let mirror = self.mirrors.take(&repository);
        self.parts.drain.spawn(async move {
            parts.own(repository, &version, mirror, &stop).await;
            drop(task);
        });
    }

    /// Stops them, then sends [`Event::Stopped`].
    pub(super) fn stop(&mut self, repository: &RepositoryName) {
        if let Some(stop) = self.running.remove(repository) {
            stop.cancel();
            self.mirrors.stop_worker(repository);
        }
    }

    /// Stops everything, then sends [`Event::AllStopped`].
    pub(super) fn stop_all(&mut self) {
        for (repository, stop) in std::mem::take(&mut self.running) {
            stop.cancel();
            self.mirrors.stop_worker(&repository);
        }
        let (tasks, parts) = (std::mem::take(&mut self.tasks), self.parts.clone());
        tasks.close();
        self.parts.drain.spawn(async move {
            tasks.wait().await;
            parts.send(Event::AllStopped).await;
        });
    }

    /// Reads again what other origins have written.
    pub(super) fn refresh(&self, listed: Vec<Listed>) {
        let publisher = self.parts.publisher.clone();
        self.parts.drain.spawn(async move {
            if let Err(error) = publisher.ownership.refresh_listed(listed).await {
                tracing::warn!(%error, "the state of other members' repositories cannot be read: it is read again on use");
            }
        });
    }

    /// Answers whether this origin is ready to own a repository, and gets ready.
    pub(super) fn prepare(&mut self, repository: &RepositoryName, reply: Option<oneshot::Sender<bool>>) {
        let prepared = self.mirrors.prepare(repository);
        if let Some(reply) = reply {
            // The caller may have gone.
            let _ = reply.send(prepared.is_ok());
        }
        if let Err(Some(work)) = prepared {
            self.parts.drain.spawn(work);
        }
    }

    /// The work that has to be done before another origin is asked whether it is ready. `None`: it is being done.
    pub(super) fn store_mirror(&mut self, repository: &RepositoryName) -> Option<impl Future<Output = bool> + use<>> {
        self.mirrors.store(repository)
    }
}

impl Parts {
    async fn own(
        self,
        repository: RepositoryName,
        version: &Version,
        mirror: Option<Coming>,
        stop: &CancellationToken,
    ) {
        let works = async {
            self.take(&repository, version, mirror).await;
            self.align(&repository).await;
        };
        tokio::select! {
            () = works => {}
            () = stop.cancelled() => {}
            // The drain stops the worker.
            () = self.drain.begun() => return,
        }
        // Neither answers when the origin is stopping.
        if let Some(terminated) = self.editor.release(&repository).await {
            terminated.wait().await;
        }
        let is_settled = self.publisher.ownership.release(&repository).await;
        self.send(Event::Stopped { repository, is_settled }).await;
    }

    /// Returns when the repository is taken. It is tried until the session ends.
    async fn take(&self, repository: &RepositoryName, version: &Version, mirror: Option<Coming>) {
        loop {
            match self.publisher.ownership.take(repository, version).await {
                Ok(()) => {
                    if let Some(mut mirror) = mirror {
                        while mirror.changed().await.is_ok() {}
                    }
                    // It fails when the origin is stopping.
                    self.editor.take(repository).await;
                    return;
                }
                Err(TakeError::Superseded) => {
                    self.send(Event::Superseded { repository: repository.clone() }).await;
                    // It is stopped then.
                    return std::future::pending().await;
                }
                Err(error) => {
                    self.metrics.failed_takes.inc();
                    tracing::error!(%repository, %error, "the repository's state cannot be read; the origin retries");
                    sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// Brings the names of services in line at once, and the state in line with the configuration whenever all members have the
    /// same new one; both daily. Never returns.
    async fn align(&self, repository: &RepositoryName) {
        let (mut agreed, mut aligned, mut max_age) = (self.agreed.clone(), None, NAMES_MAX_AGE);
        loop {
            let settled =
                self.names.settle(repository, max_age, |service| home(&self.catalog.snapshot(), service)).await;
            max_age = NAMES_MAX_AGE;
            let again = match settled {
                Ok(true) => None,
                Ok(false) => Some(SETTLE_AGAIN_AFTER),
                Err(_) => Some(RETRY_AFTER),
            };
            if let Err(error) = settled {
                tracing::warn!(%repository, %error, "the names of services could not be settled; the origin retries");
            }
            tokio::select! {
                is_daily = self.pause(repository, again) => if is_daily {
                    (aligned, max_age) = (None, LOOK_EVERY);
                },
                digests = wait_for(&mut agreed, aligned.as_ref()) => {
                    let Some(digests) = digests else { return std::future::pending().await };
                    if let Err(error) = self.editor.align(repository).await {
                        tracing::warn!(%repository, %error, "the state could not be reconciled with the configuration; the origin retries");
                        sleep(RETRY_AFTER).await;
                        continue;
                    }
                    aligned = Some(digests);
                }
            }
        }
    }

    /// Waits until the names are to be settled again, or for a day. Returns whether it is a day later.
    async fn pause(&self, repository: &RepositoryName, again: Option<Duration>) -> bool {
        if let Some(again) = again {
            sleep(again).await;
            return false;
        }
        for _ in 0..ALIGN_EVERY.as_secs() / LOOK_EVERY.as_secs() {
            sleep(LOOK_EVERY).await;
            // What was taken for a service that could not be defined blocks it for all other repositories.
            let at = self.catalog.snapshot();
            if self.names.has_unused(repository, |service| home(&at, service)) {
                return false;
            }
        }
        true
    }

    async fn send(&self, event: Event<Version>) {
        // The task ends first when the origin stops.
        let _ = self.queue.send(Order::Event(event)).await;
    }
}

/// The repository that defines a service.
fn home(at: &Snapshot, service: &ServiceName) -> Option<RepositoryName> {
    Some(at.definitions.services.get(service)?.document.repository().clone())
}

/// Waits until all members have the same configuration, and another one than this. `None`: the origin is stopping.
async fn wait_for(agreed: &mut watch::Receiver<Option<Digests>>, before: Option<&Digests>) -> Option<Digests> {
    let is_other = |now: &Option<Digests>| now.is_some() && now.as_ref() != before;
    agreed.wait_for(is_other).await.ok()?.clone()
}
