//! Blocking work on its own thread.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use super::threads::Threads;
use tokio::sync::oneshot;

/// Blocking work on its own thread; a future of its result. Dropping it signals the work to stop. The thread is counted until
/// the work has noticed that and ended.
#[derive(Debug)]
pub(super) struct Job<T> {
    result: oneshot::Receiver<T>,
    interrupt: Arc<AtomicBool>,
}

/// The work panicked.
#[derive(Debug, thiserror::Error)]
#[error("a bug in the program ended it; the log of the process shows where")]
pub(super) struct JobPanicked;

impl<T: Send + 'static> Job<T> {
    /// Starts the work. The flag is set when the work must stop.
    pub(super) fn start(
        name: &str,
        threads: &Threads,
        work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    ) -> io::Result<Self> {
        let interrupt = Arc::new(AtomicBool::new(false));
        let (sender, result) = oneshot::channel();
        let (flag, counted) = (interrupt.clone(), threads.token());
        // Linux shows the first 15 bytes of the name.
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let result = work(&flag);
            drop(counted);
            let _ = sender.send(result);
        })?;
        Ok(Self { result, interrupt })
    }

    /// Tells the work to stop, which may take a while.
    pub(super) fn interrupt(&self) {
        self.interrupt.store(true, Ordering::Relaxed);
    }
}

impl<T> Future for Job<T> {
    type Output = Result<T, JobPanicked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.result).poll(cx).map_err(|_| JobPanicked)
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        self.interrupt.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_job_is_signalled_to_stop_and_counted_until_it_ends() {
        let threads = Threads::default();
        let job = Job::start("test", &threads, |stop| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        assert_eq!(threads.count(), 1);
        drop(job);
        threads.all_ended().await;
        assert_eq!(threads.count(), 0);
    }

    #[tokio::test]
    async fn a_result_and_a_panic_are_returned() {
        let threads = Threads::default();
        assert_eq!(Job::start("test", &threads, |_| 7).unwrap().await.unwrap(), 7);
        let panicked = Job::<()>::start("test", &threads, |_| panic!("on purpose")).unwrap().await;
        assert!(panicked.unwrap_err().to_string().contains("bug"));
    }
}
