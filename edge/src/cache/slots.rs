//! A concurrency limit: for fills, waiters, decoders and encoders.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_runtime::bounds::Bound;

#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    most: usize,
}

/// A slot; released when it is dropped.
pub(crate) type Slot = OwnedSemaphorePermit;

impl Slots {
    pub(super) fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(most)), most }
    }

    /// Waits for a slot.
    pub(super) async fn take(&self) -> Slot {
        self.free.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Takes a free slot, without waiting.
    pub(super) fn try_take(&self) -> Option<Slot> {
        self.free.clone().try_acquire_owned().ok()
    }

    /// The fill level of this bound.
    pub(super) fn bound(&self, name: &'static str) -> Bound {
        (name, (self.most - self.free.available_permits()) as u64, self.most as u64)
    }
}
