//! The minimum rate at which a client must take its answer over HTTP/2 and HTTP/3.
//!
//! Flow control lets a client take a byte now and then, and hold a stream and its buffers for as long as it likes. Over TCP
//! the kernel is asked besides whether there is room ([`super::outgoing`]).

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

/// Bytes that a client must take of an answer in each [`super::STALL_TIMEOUT`]: 273 bytes a second.
pub(super) const MIN_BYTES: usize = 16 << 10;

/// The time that is left for a client to take the next [`MIN_BYTES`]. Only time spent waiting for the client counts.
#[derive(Debug)]
pub(super) struct MinimumRateTimer {
    whole: Duration,
    left: Duration,
    taken: usize,
}

impl MinimumRateTimer {
    /// The whole time is left.
    pub(super) fn new(whole: Duration) -> Self {
        Self { whole, left: whole, taken: 0 }
    }

    /// Waits until the client takes more; `None` when its time is up.
    pub(super) async fn wait<T>(&mut self, more: impl Future<Output = T>) -> Option<T> {
        let begun = Instant::now();
        let waited = tokio::time::timeout(self.left, more).await;
        self.waited(begun.elapsed());
        waited.ok()
    }

    fn waited(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }

    /// Waits for the next part of an answer. When it is not there yet the client has kept up, and gets the whole time again:
    /// an event stream sends a few bytes at a time, for days.
    pub(super) async fn caught_up<T>(&mut self, next: impl Future<Output = T>) -> T {
        let mut next = pin!(next);
        if let Some(next) = next.as_mut().now_or_never() {
            return next;
        }
        *self = Self::new(self.whole);
        next.await
    }

    /// The client took this many bytes.
    pub(super) fn took(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_add(bytes);
        if self.taken >= MIN_BYTES {
            *self = Self::new(self.whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_client_that_takes_little_gets_no_more_time_than_one_that_takes_nothing() {
        let mut minimum_rate = MinimumRateTimer::new(60 * SECOND);
        for seconds in 1..=60 {
            minimum_rate.waited(SECOND);
            minimum_rate.took(1);
            assert_eq!(minimum_rate.left, (60 - seconds) * SECOND);
        }
    }

    #[test]
    fn a_client_that_takes_enough_gets_the_whole_time_again() {
        for at_a_time in [1, 1000, MIN_BYTES - 1, MIN_BYTES, usize::MAX] {
            let mut minimum_rate = MinimumRateTimer::new(60 * SECOND);
            minimum_rate.waited(59 * SECOND);
            (0..MIN_BYTES.div_ceil(at_a_time)).for_each(|_| minimum_rate.took(at_a_time));
            assert_eq!((minimum_rate.left, minimum_rate.taken), (60 * SECOND, 0), "{at_a_time}");
        }
    }

    #[tokio::test]
    async fn a_client_that_has_kept_up_gets_the_whole_time_again() {
        let mut minimum_rate = MinimumRateTimer::new(60 * SECOND);
        minimum_rate.waited(59 * SECOND);
        minimum_rate.took(1);
        minimum_rate.caught_up(std::future::ready(())).await;
        assert_eq!((minimum_rate.left, minimum_rate.taken), (SECOND, 1), "there was more");
        minimum_rate.caught_up(tokio::task::yield_now()).await;
        assert_eq!((minimum_rate.left, minimum_rate.taken), (60 * SECOND, 0));
    }

    #[tokio::test]
    async fn a_part_that_is_there_is_taken_even_when_no_time_is_left() {
        let mut minimum_rate = MinimumRateTimer::new(Duration::ZERO);
        assert_eq!(minimum_rate.wait(std::future::ready(7)).await, Some(7));
        assert_eq!(minimum_rate.wait(std::future::pending::<()>()).await, None);
    }
}
