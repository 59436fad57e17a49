//! The fills in flight and their waiters, bounded and counted.

use weir_runtime::bounds::Bound;
use weir_runtime::shutdown::Drain;

use super::fill::{FillError, FillKey, ObjectRequest};
use super::metrics::CacheMetrics;
use super::slots::{Slot, Slots};
use super::source::{Loaded, Source};
use crate::single_flight::{SingleFlight, Waiter};

pub(super) type LoadResult = Result<Loaded, FillError>;

/// The most objects in flight, queued ones included.
pub(super) const MAX_IN_FLIGHT: usize = 16_384;

pub(super) struct InFlightFills {
    fills: SingleFlight<FillKey, LoadResult>,
    waiters: Slots,
    metrics: CacheMetrics,
}

/// Waits for a fill.
pub(super) struct FillWaiter {
    waiter: Waiter<LoadResult>,
    /// Another request had started the fill.
    collapsed: bool,
    /// Only waiters without a byte of their body count against the bound: a body in progress is never refused.
    _slot: Option<Slot>,
}

impl InFlightFills {
    /// `most`: the most waiters.
    pub(super) fn new(most: usize, metrics: CacheMetrics, drain: &Drain) -> Self {
        Self { fills: SingleFlight::new(MAX_IN_FLIGHT, drain), waiters: Slots::new(most), metrics }
    }

    /// Joins the fill of an object, or starts it with the future that `begin` makes, as a detached task. `is_first`:
    /// nothing of the body was sent yet.
    ///
    /// # Errors
    /// [`FillError::Overloaded`]: a bound is reached.
    pub(super) fn join<F>(
        &self,
        request: &ObjectRequest,
        is_first: bool,
        begin: impl FnOnce() -> F,
    ) -> Result<FillWaiter, FillError>
    where
        F: Future<Output = LoadResult> + Send + 'static,
    {
        let refuse = || {
            self.metrics.waiters_refused.inc();
            FillError::Overloaded
        };
        let slot = is_first.then(|| self.waiters.try_take().ok_or_else(refuse)).transpose()?;
        let waiter = self.fills.join(&request.key(), begin).map_err(|_| refuse())?;
        Ok(self.waiter(waiter, slot))
    }

    /// Joins or starts read-ahead. `None`: half of the bound is in use.
    pub(super) fn join_read_ahead<F>(&self, request: &ObjectRequest, begin: impl FnOnce() -> F) -> Option<FillWaiter>
    where
        F: Future<Output = LoadResult> + Send + 'static,
    {
        let has_room = self.fills.in_flight() < MAX_IN_FLIGHT / 2;
        has_room.then(|| self.fills.join(&request.key(), begin).ok()).flatten().map(|waiter| self.waiter(waiter, None))
    }

    fn waiter(&self, waiter: Waiter<LoadResult>, slot: Option<Slot>) -> FillWaiter {
        let collapsed = waiter.collapsed;
        self.metrics.collapsed.inc_by(u64::from(collapsed));
        FillWaiter { waiter, collapsed, _slot: slot }
    }

    pub(super) fn waiters(&self) -> Bound {
        self.waiters.bound("fill_waiters")
    }

    pub(super) fn len(&self) -> usize {
        self.fills.in_flight()
    }
}

impl FillWaiter {
    pub(super) async fn result(self) -> LoadResult {
        let mut loaded = self.waiter.result().await.unwrap_or(Err(FillError::Abandoned))?;
        if let Source::Origin { collapsed, .. } = &mut loaded.source {
            *collapsed = self.collapsed;
        }
        Ok(loaded)
    }
}
