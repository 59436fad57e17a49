//! The threads of an agent's jobs, counted for itself and for the process.

use std::future::Future;

use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Counts the threads of one agent, and those of all agents of the process. All clones count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Threads {
    process: TaskTracker,
    agent: TaskTracker,
}

impl Threads {
    /// The same process, and an agent that has no thread yet.
    pub(super) fn of_another_agent(&self) -> Self {
        Self { process: self.process.clone(), agent: TaskTracker::new() }
    }

    /// All threads of the process.
    pub(crate) fn of_process(&self) -> &TaskTracker {
        &self.process
    }

    /// Held by a thread until it ends.
    pub(super) fn token(&self) -> impl Send + 'static + use<> {
        let tokens: (TaskTrackerToken, TaskTrackerToken) = (self.process.token(), self.agent.token());
        tokens
    }

    /// Counts a task that begins jobs, until it is dropped.
    pub(super) fn counted<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        self.agent.track_future(task)
    }

    /// Waits until this agent has no thread any more.
    pub(super) async fn ended(&self) {
        self.agent.close();
        self.agent.wait().await;
    }
}
