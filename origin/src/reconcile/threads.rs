//! The threads of an agent's jobs, counted: whoever takes over its mirror waits until the last of them has ended.

use std::future::Future;

use tokio_util::task::TaskTracker;

/// Counts the threads of one agent. All clones count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Threads(TaskTracker);

impl Threads {
    /// Held by a thread until it ends.
    pub(super) fn token(&self) -> impl Send + 'static + use<> {
        self.0.token()
    }

    /// Counts a task that begins jobs, until it is dropped.
    pub(super) fn counted<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        self.0.track_future(task)
    }

    /// Waits until this agent has no thread any more.
    pub(super) async fn ended(&self) {
        self.0.close();
        self.0.wait().await;
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}
