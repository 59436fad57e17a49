//! Graceful shutdown: `/readyz` fails, work in flight is finished, and a deadline ends the rest.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::wake_filter::WakeFilter;

/// How long a drain may take before the remaining tasks are aborted, by default.
pub const DEFAULT_DRAIN_DEADLINE: Duration = Duration::from_secs(30);

/// How long the tasks of [`Drain::last`] may take to end, after all others.
const LAST_DEADLINE: Duration = Duration::from_secs(1);

/// The shutdown of one role: its tasks, and the signals to finish and to abort them.
///
/// Cheap to clone; all clones share one shutdown.
#[derive(Debug, Clone, Default)]
pub struct Drain {
    /// The same as `finish`, without its lock: every response checks it.
    has_begun: Arc<AtomicBool>,
    finish: CancellationToken,
    cut: CancellationToken,
    tasks: TaskTracker,
    is_part: bool,
    last: Option<Arc<Drain>>,
}

impl Drain {
    /// A shutdown that has not begun.
    pub fn new() -> Self {
        Self { last: Some(Arc::default()), ..Self::default() }
    }

    /// The shutdown of the tasks that report on this one, such as `/readyz`: it begins when all others have ended.
    pub fn last(&self) -> &Self {
        self.last.as_deref().unwrap_or(self)
    }

    /// Spawns a task that the drain waits for. It should end soon after [`Drain::begun`]; at the deadline it is dropped.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let cut = WakeFilter::new(self.cut.clone().cancelled_owned());
        // A future that is moved into another one takes its room twice.
        let task = Box::pin(task);
        self.tasks.spawn(async move {
            tokio::select! { () = cut => {}, () = task => {} }
        });
    }

    /// Resolves when the drain begins: accept no new work, and finish what is in progress.
    pub fn begun(&self) -> impl Future<Output = ()> + Send + Unpin + use<> {
        WakeFilter::new(self.finish.clone().cancelled_owned())
    }

    /// Whether the drain has begun.
    pub fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed) || self.is_part && self.finish.is_cancelled()
    }

    /// A part of this shutdown that can also end by itself. This one begins and cuts it, and waits for its tasks.
    #[must_use]
    pub fn part(&self) -> Self {
        let part =
            Self { finish: self.finish.child_token(), cut: self.cut.child_token(), is_part: true, ..Self::default() };
        let ended = part.clone();
        self.tasks.spawn(async move {
            ended.finish.cancelled().await;
            ended.tasks.close();
            ended.tasks.wait().await;
        });
        part
    }

    /// Begins the drain of a part. Resolves when its tasks have ended.
    pub fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        self.finish.cancel();
        self.tasks.close();
        let tasks = self.tasks.clone();
        async move { tasks.wait().await }
    }

    /// Begins the drain and waits until all tasks have ended; `deadline` aborts the rest. The tasks of [`last`](Self::last)
    /// end then, within a second. Returns whether all tasks ended by themselves.
    pub async fn finish(&self, deadline: Duration) -> bool {
        let clean = self.finish_tasks(deadline).await;
        match &self.last {
            Some(last) => last.finish_tasks(deadline.min(LAST_DEADLINE)).await && clean,
            None => clean,
        }
    }

    async fn finish_tasks(&self, deadline: Duration) -> bool {
        self.has_begun.store(true, Ordering::Relaxed);
        self.finish.cancel();
        self.tasks.close();
        let clean = tokio::time::timeout(deadline, self.tasks.wait()).await.is_ok();
        // Of a cut nothing else was expected.
        if !clean && !deadline.is_zero() {
            tracing::warn!(
                tasks = self.tasks.len(),
                "the drain's deadline has passed; the remaining tasks are aborted"
            );
        }
        self.cut.cancel();
        self.tasks.wait().await;
        clean
    }

    /// Aborts all tasks at once, like a crash that closes its files.
    pub async fn cut(&self) {
        self.finish(Duration::ZERO).await;
    }
}

/// Waits for SIGTERM or SIGINT. A second one ends the process at once.
///
/// # Errors
/// The handlers cannot be installed.
pub async fn requested() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        std::process::exit(130);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_part_ends_alone_or_with_the_whole() {
        let whole = Drain::new();
        let (one, other) = (whole.part(), whole.part());
        for part in [&one, &other] {
            part.spawn(part.begun());
        }
        one.end().await;
        assert!(one.has_begun() && !other.has_begun() && !whole.has_begun());
        assert!(whole.finish(PATIENCE).await, "it waits for its parts");
        assert!(other.has_begun());

        let whole = Drain::new();
        whole.part().spawn(std::future::pending());
        assert!(!whole.finish(Duration::from_millis(1)).await, "it cuts its parts");
    }
}
