//! How many of something there may be at a time: fetches, those who wait for them, tarballs that are decoded or made gzip.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_runtime::bounds::Bound;

/// The slots.
#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    most: usize,
}

/// A slot; given back when it is dropped.
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

    /// Takes a slot when there is one, for what is held so long that nobody should wait for it.
    pub(super) fn try_take(&self) -> Option<Slot> {
        self.free.clone().try_acquire_owned().ok()
    }

    /// What is used of this bound.
    pub(super) fn bound(&self, name: &'static str) -> Bound {
        (name, (self.most - self.free.available_permits()) as u64, self.most as u64)
    }
}
