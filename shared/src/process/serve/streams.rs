//! The streams that one HTTP/2 connection has begun.
//!
//! hyper hands each request to an executor. To make a task of it costs a poll as much as its answer does, and lets the
//! connection write before the other requests that came with it are answered. So requests gather here while the
//! connection reads; then each is polled once, in the connection's own task, and becomes a task only when it has to
//! wait. The answers to all that came together leave in one write.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;

use super::stalled::Answers;

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The streams that were begun and not polled yet. A client bounds them: it may have only so many streams open.
#[derive(Default)]
pub(super) struct Streams {
    begun: Arc<Mutex<VecDeque<Stream>>>,
}

/// What a connection begins its streams with. Weak, because streams hold it themselves.
#[derive(Clone)]
pub(super) struct Begin {
    begun: Weak<Mutex<VecDeque<Stream>>>,
    answers: Arc<Answers>,
}

impl<S: Future<Output = ()> + Send + 'static> Executor<S> for Begin {
    fn execute(&self, stream: S) {
        if let Some(begun) = self.begun.upgrade() {
            let stream = Box::pin(self.answers.clone().run(stream));
            begun.lock().unwrap_or_else(PoisonError::into_inner).push_back(stream);
        }
    }
}

impl Streams {
    /// For the connection whose streams these are; `answers` runs each of them.
    pub(super) fn executor(&self, answers: Answers) -> Begin {
        Begin { begun: Arc::downgrade(&self.begun), answers: Arc::new(answers) }
    }

    /// Drives a connection and the streams that it begins. Those that had to wait go on by themselves.
    pub(super) async fn drive<C: Future>(&self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|cx| {
            loop {
                let polled = connection.as_mut().poll(cx);
                // Once more after its streams: it has answers to write.
                if polled.is_ready() || !self.poll_each() {
                    return polled;
                }
            }
        })
        .await
    }

    /// Polls each of them once. Gives whether there were any.
    fn poll_each(&self) -> bool {
        let mut any = false;
        while let Some(mut stream) = self.next() {
            any = true;
            // It is woken as a task: the first poll there leaves that task's waker.
            let polled =
                catch_unwind(AssertUnwindSafe(|| stream.as_mut().poll(&mut Context::from_waker(Waker::noop()))));
            // A panic has been told already; it is this stream's alone, which is reset when it is dropped.
            if let Ok(Poll::Pending) = polled {
                tokio::spawn(stream);
            }
        }
        any
    }

    fn next(&self) -> Option<Stream> {
        self.lock().pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Stream>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::serve::HttpMetrics;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    fn answers() -> Answers {
        let metrics = HttpMetrics::register(&prometheus::Registry::new()).unwrap().listener("test");
        Answers { stall_timeout: Duration::from_secs(60), metrics }
    }

    #[tokio::test]
    async fn a_stream_is_polled_beside_its_connection_and_goes_on_alone_when_it_waits() {
        let streams = Streams::default();
        let executor = streams.executor(answers());
        let answered = Arc::new(AtomicU32::new(0));
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let (told, end) = tokio::sync::oneshot::channel();
        let (count, polls) = (answered.clone(), AtomicU32::new(0));
        executor.execute(async { panic!("as the test wants it") });
        executor.execute(async move {
            released.await.unwrap();
            told.send(()).unwrap();
        });
        executor.execute(async move {
            count.fetch_add(1, Ordering::Relaxed);
        });
        // A connection that ends when it is polled after its streams.
        let connection = poll_fn(|_| match polls.fetch_add(1, Ordering::Relaxed) {
            0 => Poll::Pending,
            _ => Poll::Ready(answered.load(Ordering::Relaxed)),
        });
        assert_eq!(streams.drive(std::pin::pin!(connection)).await, 1);
        release.send(()).unwrap();
        end.await.unwrap();
    }

    #[test]
    fn streams_of_a_connection_that_has_gone_go_too() {
        let streams = Streams::default();
        let executor = streams.executor(answers());
        let held = Arc::new(());
        let (holds, itself) = (held.clone(), executor.clone());
        executor.execute(async move { drop((holds, itself)) });
        assert_eq!(Arc::strong_count(&held), 2);
        drop(streams);
        assert_eq!(Arc::strong_count(&held), 1);
        executor.execute(async {});
    }
}
