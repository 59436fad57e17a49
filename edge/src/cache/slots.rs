//! How many of something there may be at a time: tarballs that are decoded, or made gzip, for clients.

use std::sync::Arc;

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The slots.
#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    used: IntGauge,
}

/// A slot; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    used: IntGauge,
    _permit: OwnedSemaphorePermit,
}

impl Slots {
    /// `most` slots. `used` shows how many are taken, `limit` how many there are.
    pub(super) fn new(most: usize, used: IntGauge, limit: &IntGauge) -> Self {
        limit.set(i64::try_from(most).unwrap_or(i64::MAX));
        Self { free: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))), used }
    }

    /// Takes a slot. Nobody waits for one: it is held for as long as a client reads, and nobody can say how long that is.
    pub(super) fn try_take(&self) -> Option<Slot> {
        let permit = self.free.clone().try_acquire_owned().ok()?;
        self.used.inc();
        Some(Slot { used: self.used.clone(), _permit: permit })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.used.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_given_back() {
        let (used, limit) = (IntGauge::new("used", "used").unwrap(), IntGauge::new("limit", "limit").unwrap());
        let slots = Slots::new(2, used.clone(), &limit);
        let (one, _two) = (slots.try_take().unwrap(), slots.try_take().unwrap());
        assert!(slots.try_take().is_none());
        assert_eq!((used.get(), limit.get()), (2, 2));
        drop(one);
        assert_eq!(used.get(), 1);
        assert!(slots.try_take().is_some());
    }
}
