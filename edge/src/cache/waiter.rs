//! The fetches in flight and their waiters, bounded and counted.

use weir_runtime::bounds::Bound;
use weir_runtime::shutdown::Drain;

use super::fetch::{FetchError, ObjectRequest};
use super::metrics::CacheMetrics;
use super::slots::{Slot, Slots};
use super::{Outcome, Source};
use crate::single_flight::{Seat, SingleFlight};

/// The most objects in flight, queued ones included.
pub(super) const MAX_FLIGHTS: usize = 16_384;

pub(super) struct Flights {
    flights: SingleFlight<ObjectRequest, Outcome>,
    waiters: Slots,
    metrics: CacheMetrics,
}

/// Waits for a fetch.
pub(super) struct Waiter {
    seat: Seat<Outcome>,
    /// Another request had started the fetch.
    collapsed: bool,
    /// Only waiters without a byte of their body count against the bound: a body in progress is never refused.
    _slot: Option<Slot>,
}

impl Flights {
    /// `most`: the most waiters.
    pub(super) fn new(most: usize, metrics: CacheMetrics, drain: &Drain) -> Self {
        Self { flights: SingleFlight::new(MAX_FLIGHTS, drain), waiters: Slots::new(most), metrics }
    }

    /// Joins the fetch of an object, or starts it with the future that `begin` makes, as a detached task. `is_first`:
    /// nothing of the body was sent yet.
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

    /// Joins or starts read-ahead. `None`: half of the bound is in use.
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

    pub(super) fn waiters(&self) -> Bound {
        self.waiters.bound("fill_waiters")
    }

    pub(super) fn len(&self) -> usize {
        self.flights.len()
    }
}

impl Waiter {
    pub(super) async fn result(self) -> Outcome {
        let mut loaded = self.seat.result().await.unwrap_or(Err(FetchError::Abandoned))?;
        if let Source::Origin { collapsed, .. } = &mut loaded.source {
            *collapsed = self.collapsed;
        }
        Ok(loaded)
    }
}
