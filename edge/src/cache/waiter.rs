//! Those who wait for an object: bounded, and counted.

use weir_runtime::bounds::Bound;
use weir_runtime::shutdown::Drain;

use super::fetch::{FetchError, ObjectRequest};
use super::metrics::CacheMetrics;
use super::slots::{Slot, Slots};
use super::{Outcome, Source};
use crate::single_flight::{Seat, SingleFlight};

/// Objects that are being fetched, or wait for their turn, at a time.
pub(super) const MAX_FLIGHTS: usize = 16_384;

/// The fetches under way, and who waits for them.
pub(super) struct Flights {
    flights: SingleFlight<ObjectRequest, Outcome>,
    waiters: Slots,
    metrics: CacheMetrics,
}

/// One who waits for a fetch.
pub(super) struct Waiter {
    seat: Seat<Outcome>,
    /// Somebody else had begun the fetch.
    collapsed: bool,
    /// Readers who have a part of their body already have none, nor do those who wait ahead of them: nobody is turned away
    /// in the middle.
    _slot: Option<Slot>,
}

impl Flights {
    /// `most`: who may wait at a time.
    pub(super) fn new(most: usize, metrics: CacheMetrics, drain: &Drain) -> Self {
        Self { flights: SingleFlight::new(MAX_FLIGHTS, drain), waiters: Slots::new(most), metrics }
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
        let slot = is_first.then(|| self.waiters.try_take().ok_or_else(refuse)).transpose()?;
        let seat = self.flights.join(request, begin).map_err(|_| refuse())?;
        Ok(self.waiter(seat, slot))
    }

    /// The same for what will be needed soon. `None`: as much is being fetched as may be for that.
    pub(super) fn join_ahead<F>(&self, request: &ObjectRequest, begin: impl FnOnce() -> F) -> Option<Waiter>
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let has_room = self.flights.len() < MAX_FLIGHTS / 2;
        has_room.then(|| self.flights.join(request, begin).ok()).flatten().map(|seat| self.waiter(seat, None))
    }

    fn waiter(&self, seat: Seat<Outcome>, slot: Option<Slot>) -> Waiter {
        let collapsed = seat.collapsed;
        self.metrics.collapsed.inc_by(u64::from(collapsed));
        Waiter { seat, collapsed, _slot: slot }
    }

    /// Who waits.
    pub(super) fn waiters(&self) -> Bound {
        self.waiters.bound("fill_waiters")
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
