//! How long a client is waited for that takes its answer slowly, over HTTP/2 and HTTP/3.
//!
//! There a client says how much it takes. One that took a byte now and then would hold a place, and what was read for it,
//! for as long as it likes. Over TCP the system is asked besides whether there is room ([`super::outgoing`]).

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

/// Bytes that a client has to take of an answer for each time that it is waited for in all ([`super::STALL_TIMEOUT`]): 273
/// bytes a second.
pub(super) const LEAST: usize = 16 << 10;

/// What is left of the time that a client is waited for.
#[derive(Debug)]
pub(super) struct Patience {
    whole: Duration,
    left: Duration,
    taken: usize,
}

impl Patience {
    /// All of it is left.
    pub(super) fn new(whole: Duration) -> Self {
        Self { whole, left: whole, taken: 0 }
    }

    /// Waits until the client takes some more; `None` when that lasts too long.
    pub(super) async fn wait<T>(&mut self, more: impl Future<Output = T>) -> Option<T> {
        let begun = Instant::now();
        let waited = tokio::time::timeout(self.left, more).await;
        self.waited(begun.elapsed());
        waited.ok()
    }

    fn waited(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }

    /// Waits for what comes next of an answer of which the client has taken all that there was. When that is not there yet
    /// the client has kept up, and what it was waited for before is forgiven: events come a few bytes at a time, for days.
    pub(super) async fn caught_up<T>(&mut self, next: impl Future<Output = T>) -> T {
        let mut next = pin!(next);
        if let Some(next) = next.as_mut().now_or_never() {
            return next;
        }
        *self = Self::new(self.whole);
        next.await
    }

    /// The client has taken this much.
    pub(super) fn took(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_add(bytes);
        if self.taken >= LEAST {
            *self = Self::new(self.whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_takes_little_at_a_time_is_waited_for_no_longer_than_who_takes_nothing() {
        let mut patience = Patience::new(60 * SECOND);
        for seconds in 1..=60 {
            patience.waited(SECOND);
            patience.took(1);
            assert_eq!(patience.left, (60 - seconds) * SECOND);
        }
    }

    #[test]
    fn who_takes_enough_is_waited_for_again_however_it_comes() {
        for at_a_time in [1, 1000, LEAST - 1, LEAST, usize::MAX] {
            let mut patience = Patience::new(60 * SECOND);
            patience.waited(59 * SECOND);
            (0..LEAST.div_ceil(at_a_time)).for_each(|_| patience.took(at_a_time));
            assert_eq!((patience.left, patience.taken), (60 * SECOND, 0), "{at_a_time}");
        }
    }

    #[tokio::test]
    async fn who_has_taken_all_that_there_was_is_forgiven_what_it_was_waited_for() {
        let mut patience = Patience::new(60 * SECOND);
        patience.waited(59 * SECOND);
        patience.took(1);
        patience.caught_up(std::future::ready(())).await;
        assert_eq!((patience.left, patience.taken), (SECOND, 1), "there was more");
        patience.caught_up(tokio::task::yield_now()).await;
        assert_eq!((patience.left, patience.taken), (60 * SECOND, 0));
    }

    #[tokio::test]
    async fn what_is_there_is_had_even_when_no_patience_is_left() {
        let mut patience = Patience::new(Duration::ZERO);
        assert_eq!(patience.wait(std::future::ready(7)).await, Some(7));
        assert_eq!(patience.wait(std::future::pending::<()>()).await, None);
    }
}
