//! A future in a task that is often woken for other reasons.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Polls its future only after a wake-up of that future. All connections wait for the drain, whose lock each of them would
/// otherwise take whenever its task is polled.
pub(crate) struct WakeFilter<F> {
    future: Pin<Box<F>>,
    wake: Arc<FutureWake>,
    waker: Waker,
}

struct FutureWake {
    is_woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for FutureWake {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl<F: Future> WakeFilter<F> {
    pub(crate) fn new(future: F) -> Self {
        let wake = Arc::new(FutureWake { is_woken: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { future: Box::pin(future), waker: wake.clone().into(), wake }
    }
}

impl<F: Future> Future for WakeFilter<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // Registered before the check, so that no wake-up in between is lost.
        self.wake.task.register(cx.waker());
        if !self.wake.is_woken.swap(false, Ordering::Acquire) {
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
    async fn the_future_is_polled_only_when_it_is_woken() {
        let (send, mut receive) = oneshot::channel::<()>();
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = polls.clone();
        let mut wake_filter = WakeFilter::new(poll_fn(move |cx| {
            counted.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut receive).poll(cx)
        }));
        for _ in 0..10 {
            assert!(futures_util::poll!(&mut wake_filter).is_pending());
        }
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        let waiting = tokio::spawn(wake_filter);
        tokio::task::yield_now().await;
        send.send(()).unwrap();
        waiting.await.unwrap().unwrap();
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }
}
