//! Places among the fetches, and the line of those who wait for one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::shares::{Shares, Taken, Who};
use super::state::WaitsFor;

/// The places of one origin, as [`Shares`] divides them.
pub(super) struct FetchPlaces {
    line: Mutex<Line>,
}

struct Line {
    shares: Shares,
    /// In the order of their arrival. Who may not have the place that is free is passed over.
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    who: Who,
    served: oneshot::Sender<FetchPlace>,
}

/// A place among the fetches; others get it when this is dropped.
pub(super) struct FetchPlace {
    places: Arc<FetchPlaces>,
    who: Who,
}

impl FetchPlaces {
    pub(super) fn new(shares: Shares) -> Self {
        Self { line: Mutex::new(Line { shares, waiting: VecDeque::new() }) }
    }

    /// A place, if there is one just now. The error is what there is none for.
    pub(super) fn try_enter(self: &Arc<Self>, who: &Who) -> Result<FetchPlace, WaitsFor> {
        self.line().shares.take(who)?;
        Ok(FetchPlace { places: self.clone(), who: who.clone() })
    }

    /// Waits for a place.
    pub(super) async fn enter(self: &Arc<Self>, who: &Who) -> FetchPlace {
        let served = {
            let mut line = self.line();
            if line.shares.take(who).is_ok() {
                return FetchPlace { places: self.clone(), who: who.clone() };
            }
            let (served, place) = oneshot::channel();
            line.waiting.push_back(Waiting { who: who.clone(), served });
            place
        };
        // Who stands in line is served or leaves it: nobody else drops the other end.
        served.await.expect("the line outlives those who stand in it")
    }

    /// What is taken now.
    pub(super) fn taken(&self) -> Taken {
        self.line().shares.taken()
    }

    /// What the host has that has the most.
    pub(super) fn taken_by_the_busiest_host(&self) -> usize {
        self.line().shares.taken_by_the_busiest_host()
    }

    fn give_back(self: &Arc<Self>, who: &Who) {
        let mut served = Vec::new();
        {
            let mut line = self.line();
            line.shares.give_back(who);
            for waiting in std::mem::take(&mut line.waiting) {
                if waiting.served.is_closed() {
                    continue;
                }
                match line.shares.take(&waiting.who) {
                    Ok(()) => served.push(waiting),
                    Err(_) => line.waiting.push_back(waiting),
                }
            }
        }
        for Waiting { who, served } in served {
            // Who left the line meanwhile gives it back again.
            drop(served.send(FetchPlace { places: self.clone(), who }));
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FetchPlace {
    fn drop(&mut self) {
        self.places.give_back(&self.who);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(host: &str) -> Who {
        Who { host: host.into(), large: false }
    }

    #[tokio::test]
    async fn who_waits_is_served_in_order_and_who_leaves_is_passed_over() {
        let places = Arc::new(FetchPlaces::new(Shares::new(1, 1)));
        let first = places.enter(&who("a")).await;
        assert!(places.try_enter(&who("b")).is_err());
        let (b, c, d) = (who("b"), who("c"), who("d"));
        let (mut left, mut second, mut third) =
            (Box::pin(places.enter(&b)), Box::pin(places.enter(&c)), Box::pin(places.enter(&d)));
        for waiting in [&mut left, &mut second, &mut third] {
            assert!(futures_util::poll!(waiting).is_pending());
        }
        drop(left);
        drop(first);
        let served = second.await;
        assert!(futures_util::poll!(&mut third).is_pending());
        assert_eq!(places.taken().changes, 1);
        drop(served);
        drop(third.await);
        assert_eq!(places.taken(), Taken::default());
    }

    #[tokio::test]
    async fn who_leaves_after_being_served_gives_the_place_back() {
        let places = Arc::new(FetchPlaces::new(Shares::new(1, 1)));
        let first = places.enter(&who("a")).await;
        let (b, c) = (who("b"), who("c"));
        let (mut second, mut third) = (Box::pin(places.enter(&b)), Box::pin(places.enter(&c)));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(futures_util::poll!(&mut third).is_pending());
        drop(first);
        drop(second);
        drop(third.await);
        assert_eq!(places.taken(), Taken::default());
    }
}
