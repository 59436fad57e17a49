//! Restarts the tasks of a service after a panic: a bug that one tarball triggers must not silently stop the following
//! of a service.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use weir_runtime::shutdown::Drain;

/// The first back-off after a panic; doubled by each up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);

const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// A task that can continue after a panic: its state is on disk, or consistent after each step.
pub(crate) trait Task: Send {
    /// Runs until the drain begins.
    fn run(&mut self) -> impl Future<Output = ()> + Send;

    /// Reports a panic. The task is run again.
    fn panicked(&mut self, message: &str);
}

/// Runs a task until it ends or the drain begins.
pub(crate) async fn supervise(task: impl Task, drain: Drain) {
    supervise_with(task, drain, FIRST_PAUSE).await;
}

async fn supervise_with(mut task: impl Task, drain: Drain, mut pause: Duration) {
    while let Err(panic) = AssertUnwindSafe(task.run()).catch_unwind().await {
        task.panicked(words(panic.as_ref()));
        tokio::select! {
            () = drain.begun() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without words")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    struct Clumsy {
        runs: usize,
        good_after: usize,
        heard: Arc<Mutex<Vec<String>>>,
    }

    impl Task for Clumsy {
        async fn run(&mut self) {
            tokio::task::yield_now().await;
            self.runs += 1;
            assert!(self.runs > self.good_after, "run {}", self.runs);
        }

        fn panicked(&mut self, message: &str) {
            self.heard.lock().unwrap().push(message.to_owned());
        }
    }

    #[tokio::test]
    async fn what_panics_is_run_again_until_it_ends_well_or_the_drain_begins() {
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let task = Clumsy { runs: 0, good_after: 2, heard: heard.clone() };
        supervise_with(task, Drain::new(), Duration::from_millis(1)).await;
        assert_eq!(*heard.lock().unwrap(), ["run 1", "run 2"]);

        let drain = Drain::new();
        drain.spawn(supervise_with(
            Clumsy { runs: 0, good_after: usize::MAX, heard },
            drain.clone(),
            Duration::from_secs(3600),
        ));
        assert!(drain.finish(Duration::from_secs(60)).await);
    }
}
