//! The minimum rate at which a client must accept a response over HTTP/2 and HTTP/3.
//!
//! Flow control lets a client accept one byte at a time, and so hold a stream and its buffers as long as it likes. For TCP
//! connections as a whole see [`super::client_socket`].

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

/// Bytes of a response that a client must accept in each [`super::STALL_TIMEOUT`]: 273 bytes a second.
pub(super) const MIN_BYTES: usize = 16 << 10;

/// The time left for a client to accept the next [`MIN_BYTES`]. Only time spent waiting for the client counts.
#[derive(Debug)]
pub(super) struct MinimumRateTimer {
    period: Duration,
    left: Duration,
    accepted: usize,
}

impl MinimumRateTimer {
    /// A timer with the whole period left.
    pub(super) fn new(period: Duration) -> Self {
        Self { period, left: period, accepted: 0 }
    }

    /// Waits until the client accepts more; `None` when its time is up.
    pub(super) async fn wait<T>(&mut self, progress: impl Future<Output = T>) -> Option<T> {
        let begun = Instant::now();
        let waited = tokio::time::timeout(self.left, progress).await;
        self.waited(begun.elapsed());
        waited.ok()
    }

    fn waited(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }

    /// Waits for the next part of a response. If none is available yet, the client has kept up and the timer starts again:
    /// an event stream sends a few bytes at a time, for days.
    pub(super) async fn next_part<T>(&mut self, next: impl Future<Output = T>) -> T {
        let mut next = pin!(next);
        if let Some(next) = next.as_mut().now_or_never() {
            return next;
        }
        *self = Self::new(self.period);
        next.await
    }

    /// Counts bytes that the client accepted.
    pub(super) fn accepted(&mut self, bytes: usize) {
        self.accepted = self.accepted.saturating_add(bytes);
        if self.accepted >= MIN_BYTES {
            *self = Self::new(self.period);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_trickle_of_bytes_does_not_extend_the_time() {
        let mut minimum_rate = MinimumRateTimer::new(60 * SECOND);
        for seconds in 1..=60 {
            minimum_rate.waited(SECOND);
            minimum_rate.accepted(1);
            assert_eq!(minimum_rate.left, (60 - seconds) * SECOND);
        }
    }

    #[test]
    fn enough_bytes_start_the_timer_again() {
        for at_a_time in [1, 1000, MIN_BYTES - 1, MIN_BYTES, usize::MAX] {
            let mut minimum_rate = MinimumRateTimer::new(60 * SECOND);
            minimum_rate.waited(59 * SECOND);
            (0..MIN_BYTES.div_ceil(at_a_time)).for_each(|_| minimum_rate.accepted(at_a_time));
            assert_eq!((minimum_rate.left, minimum_rate.accepted), (60 * SECOND, 0), "{at_a_time}");
        }
    }

    #[tokio::test]
    async fn a_wait_for_the_next_part_starts_the_timer_again() {
        let mut minimum_rate = MinimumRateTimer::new(60 * SECOND);
        minimum_rate.waited(59 * SECOND);
        minimum_rate.accepted(1);
        minimum_rate.next_part(std::future::ready(())).await;
        assert_eq!((minimum_rate.left, minimum_rate.accepted), (SECOND, 1), "the part was available");
        minimum_rate.next_part(tokio::task::yield_now()).await;
        assert_eq!((minimum_rate.left, minimum_rate.accepted), (60 * SECOND, 0));
    }

    #[tokio::test]
    async fn a_client_that_accepts_at_once_needs_no_time() {
        let mut minimum_rate = MinimumRateTimer::new(Duration::ZERO);
        assert_eq!(minimum_rate.wait(std::future::ready(7)).await, Some(7));
        assert_eq!(minimum_rate.wait(std::future::pending::<()>()).await, None);
    }
}
