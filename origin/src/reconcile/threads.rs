//! Counts the threads of a worker's jobs: the next user of its mirror waits until the last one has ended.

use std::future::Future;
use std::time::Instant;

use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// Counts the threads of one worker. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Threads(TaskTracker);

impl Threads {
    /// A thread keeps this until it ends.
    pub(super) fn token(&self) -> impl Send + 'static + use<> {
        self.0.token()
    }

    /// Counts a task that starts jobs, until it is dropped.
    pub(super) fn track<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        self.0.track_future(task)
    }

    /// Starts a task that is counted. Dropping its handle stops it.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> AbortOnDropHandle<T> {
        AbortOnDropHandle::new(tokio::spawn(self.track(task)))
    }

    /// Waits until the worker has no threads.
    pub(super) async fn all_ended(&self) {
        self.0.close();
        self.0.wait().await;
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

/// Waits for the end of a task; forever if there is none. Returns `None` if the task panicked.
pub(super) async fn ended<T>(task: &mut Option<AbortOnDropHandle<T>>) -> Option<T> {
    match task {
        Some(task) => task.await.ok(),
        None => std::future::pending().await,
    }
}

/// Waits for a time; forever if there is none.
pub(super) async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
