//! Work that blocks, on a thread of its own.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use super::threads::Threads;
use tokio::sync::oneshot;

/// Work that blocks, on a thread of its own. Await it for its result. Whoever drops it tells the work to stop; the
/// thread ends when the work looks, and until then it is counted.
#[derive(Debug)]
pub(super) struct Job<T> {
    result: oneshot::Receiver<T>,
    interrupt: Arc<AtomicBool>,
}

/// The work ended without a result: it panicked.
#[derive(Debug, thiserror::Error)]
#[error("a fault in the program ended it; the log of the process says where")]
pub(super) struct JobFault;

impl<T: Send + 'static> Job<T> {
    /// Begins the work. It is given the flag that tells it to stop.
    pub(super) fn begin(
        name: &str,
        threads: &Threads,
        work: impl FnOnce(&AtomicBool) -> T + Send + 'static,
    ) -> io::Result<Self> {
        let interrupt = Arc::new(AtomicBool::new(false));
        let (sender, result) = oneshot::channel();
        let (flag, counted) = (interrupt.clone(), threads.token());
        // Linux shows the first fifteen bytes.
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let result = work(&flag);
            drop(counted);
            let _ = sender.send(result);
        })?;
        Ok(Self { result, interrupt })
    }

    /// Tells the work to stop. It may take a while to look.
    pub(super) fn interrupt(&self) {
        self.interrupt.store(true, Ordering::Relaxed);
    }
}

impl<T> Future for Job<T> {
    type Output = Result<T, JobFault>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.result).poll(cx).map_err(|_| JobFault)
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
    async fn a_dropped_job_is_told_to_stop_and_counted_until_it_has() {
        let threads = Threads::default();
        let job = Job::begin("test", &threads, |stop| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        assert_eq!(threads.count(), 1);
        drop(job);
        threads.ended().await;
        assert_eq!(threads.count(), 0);
    }

    #[tokio::test]
    async fn a_result_and_a_panic_come_back() {
        let threads = Threads::default();
        assert_eq!(Job::begin("test", &threads, |_| 7).unwrap().await.unwrap(), 7);
        let fault = Job::<()>::begin("test", &threads, |_| panic!("on purpose")).unwrap().await;
        assert!(fault.unwrap_err().to_string().contains("fault"));
    }
}
