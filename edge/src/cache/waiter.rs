//! Those who wait for an object: bounded, and counted.

use std::sync::Arc;

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_shared::process::shutdown::Drain;

use super::fetch::{FetchError, ObjectRequest};
use super::metrics::CacheMetrics;
use super::{Outcome, Source};
use crate::single_flight::{Seat, SingleFlight};

/// Objects that are being fetched, or wait for their turn, at a time.
pub(super) const MAX_FLIGHTS: usize = 16_384;

/// The fetches under way, and who waits for them.
pub(super) struct Flights {
    flights: SingleFlight<ObjectRequest, Outcome>,
    free: Arc<Semaphore>,
    metrics: CacheMetrics,
}

/// One who waits for a fetch.
pub(super) struct Waiter {
    seat: Seat<Outcome>,
    /// Somebody else had begun the fetch.
    collapsed: bool,
    /// Readers who have a part of their body already have none, nor do those who wait ahead of them: nobody is turned away
    /// in the middle.
    _counted: Option<Counted>,
}

/// One of those who wait for the beginning of a body.
struct Counted {
    waiters: IntGauge,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.waiters.dec();
    }
}

impl Flights {
    /// `most`: who may wait at a time.
    pub(super) fn new(most: usize, metrics: CacheMetrics, drain: &Drain) -> Self {
        metrics.waiters_limit.set(i64::try_from(most).unwrap_or(i64::MAX));
        let free = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self { flights: SingleFlight::new(MAX_FLIGHTS, drain), free, metrics }
    }

    /// Joins the fetch of an object, or begins it with the future that `begin` makes: a task of its own, which runs on when
    /// those who wait leave. `is_first`: nothing of the body has come yet.
    ///
    /// # Errors
    /// [`FetchError::Overloaded`]: a bound is reached.
    pub(super) fn join<F>(
        &self,
        request: &ObjectRequest,
        is_first: bool,
        begin: impl FnOnce() -> F,
    ) -> Result<Waiter, FetchError>
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let refuse = || {
            self.metrics.waiters_refused.inc();
            FetchError::Overloaded
        };
        let permit = is_first.then(|| self.free.clone().try_acquire_owned().map_err(|_| refuse())).transpose()?;
        let seat = self.flights.join(request, begin).map_err(|_| refuse())?;
        let counted = permit.map(|permit| {
            self.metrics.waiters.inc();
            Counted { waiters: self.metrics.waiters.clone(), _permit: permit }
        });
        Ok(self.waiter(seat, counted))
    }

    /// The same for what will be needed soon. `None`: as much is being fetched as may be for that.
    pub(super) fn join_ahead<F>(&self, request: &ObjectRequest, begin: impl FnOnce() -> F) -> Option<Waiter>
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let has_room = self.flights.len() < MAX_FLIGHTS / 2;
        has_room.then(|| self.flights.join(request, begin).ok()).flatten().map(|seat| self.waiter(seat, None))
    }

    fn waiter(&self, seat: Seat<Outcome>, counted: Option<Counted>) -> Waiter {
        let collapsed = seat.collapsed;
        self.metrics.collapsed.inc_by(u64::from(collapsed));
        Waiter { seat, collapsed, _counted: counted }
    }

    /// Whether an object is being fetched, from wherever.
    pub(super) fn is_under_way(&self, request: &ObjectRequest) -> bool {
        self.flights.is_under_way(request)
    }

    /// Objects that are being fetched, or wait for their turn.
    pub(super) fn len(&self) -> usize {
        self.flights.len()
    }
}

impl Waiter {
    /// Waits for the object.
    pub(super) async fn result(self) -> Outcome {
        let mut loaded = self.seat.result().await.unwrap_or(Err(FetchError::Abandoned))?;
        if let Source::Origin { collapsed, .. } = &mut loaded.source {
            *collapsed = self.collapsed;
        }
        Ok(loaded)
    }
}
