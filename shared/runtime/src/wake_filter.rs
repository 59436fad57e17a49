//! A future beside one that is polled often.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// A future that is polled only when it was woken itself. What all connections wait for (a drain, say) has a lock that all
/// of them would take whenever one of them is polled for something else.
pub(crate) struct Rarely<F> {
    future: Pin<Box<F>>,
    call: Arc<Call>,
    waker: Waker,
}

struct Call {
    is_woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl<F: Future> Rarely<F> {
    pub(crate) fn new(future: F) -> Self {
        let call = Arc::new(Call { is_woken: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { future: Box::pin(future), waker: call.clone().into(), call }
    }
}

impl<F: Future> Future for Rarely<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // Before the look: a call that comes in between wakes this task again.
        self.call.task.register(cx.waker());
        if !self.call.is_woken.swap(false, Ordering::Acquire) {
            return Poll::Pending;
        }
        let Self { future, waker, .. } = &mut *self;
        future.as_mut().poll(&mut Context::from_waker(waker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn it_is_polled_when_it_is_woken_and_then_alone() {
        let (send, mut receive) = oneshot::channel::<()>();
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = polls.clone();
        let mut rarely = Rarely::new(poll_fn(move |cx| {
            counted.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut receive).poll(cx)
        }));
        for _ in 0..10 {
            assert!(futures_util::poll!(&mut rarely).is_pending());
        }
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        let waiting = tokio::spawn(rarely);
        tokio::task::yield_now().await;
        send.send(()).unwrap();
        waiting.await.unwrap().unwrap();
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }
}
