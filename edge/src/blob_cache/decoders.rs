//! How many tarballs are decoded at a time: each decoder holds a window of up to 8 MiB for as long as its client reads.

use std::sync::Arc;

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places of decoders.
pub(crate) struct Decoders {
    places: Arc<Semaphore>,
    busy: IntGauge,
}

/// A place; given back when it is dropped.
pub(crate) struct Decoding {
    busy: IntGauge,
    _place: OwnedSemaphorePermit,
}

impl Decoders {
    /// `most` places. `busy` shows how many are taken, `limit` how many there are.
    pub(crate) fn new(most: usize, busy: IntGauge, limit: &IntGauge) -> Self {
        limit.set(i64::try_from(most).unwrap_or(i64::MAX));
        Self { places: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))), busy }
    }

    /// Takes a place. Nobody waits for one: a client decides itself how long it reads, so that nobody can say when
    /// there will be one. `None`: all are taken.
    pub(crate) fn begin(&self) -> Option<Decoding> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        self.busy.inc();
        Some(Decoding { busy: self.busy.clone(), _place: place })
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        self.busy.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back() {
        let (busy, limit) = (IntGauge::new("busy", "busy").unwrap(), IntGauge::new("limit", "limit").unwrap());
        let decoders = Decoders::new(2, busy.clone(), &limit);
        let (one, _two) = (decoders.begin().unwrap(), decoders.begin().unwrap());
        assert!(decoders.begin().is_none());
        assert_eq!((busy.get(), limit.get()), (2, 2));
        drop(one);
        assert_eq!(busy.get(), 1);
        assert!(decoders.begin().is_some());
    }
}
