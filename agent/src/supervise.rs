//! Restarts the tasks of a service after a panic: a bug that one tarball triggers must not silently stop the following
//! of a service.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use weir_runtime::shutdown::Drain;

/// The first back-off after a panic; doubled by each up to [`MAX_BACKOFF`].
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// A task that can continue after a panic: its state is on disk, or consistent after each step.
pub(crate) trait Task: Send {
    /// Runs until the drain begins.
    fn run(&mut self) -> impl Future<Output = ()> + Send;

    /// Reports a panic. The task is run again.
    fn panicked(&mut self, message: &str);
}

/// Runs a task until it ends or the drain begins.
pub(crate) async fn supervise(task: impl Task, drain: Drain) {
    supervise_with(task, drain, FIRST_BACKOFF).await;
}

async fn supervise_with(mut task: impl Task, drain: Drain, mut backoff: Duration) {
    while let Err(panic) = AssertUnwindSafe(task.run()).catch_unwind().await {
        task.panicked(panic_message(panic.as_ref()));
        tokio::select! {
            () = drain.begun() => return,
            () = tokio::time::sleep(backoff) => {}
        }
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    struct Panicking {
        runs: usize,
        good_after: usize,
        messages: Arc<Mutex<Vec<String>>>,
    }

    impl Task for Panicking {
        async fn run(&mut self) {
            tokio::task::yield_now().await;
            self.runs += 1;
            assert!(self.runs > self.good_after, "run {}", self.runs);
        }

        fn panicked(&mut self, message: &str) {
            self.messages.lock().unwrap().push(message.to_owned());
        }
    }

    #[tokio::test]
    async fn a_panicking_task_is_restarted_until_it_ends_or_the_drain_begins() {
        let messages = Arc::<Mutex<Vec<String>>>::default();
        let task = Panicking { runs: 0, good_after: 2, messages: messages.clone() };
        supervise_with(task, Drain::new(), Duration::from_millis(1)).await;
        assert_eq!(*messages.lock().unwrap(), ["run 1", "run 2"]);

        let drain = Drain::new();
        drain.spawn(supervise_with(
            Panicking { runs: 0, good_after: usize::MAX, messages },
            drain.clone(),
            Duration::from_secs(3600),
        ));
        assert!(drain.finish(Duration::from_secs(60)).await);
    }
}
