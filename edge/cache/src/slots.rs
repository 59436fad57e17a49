//! A concurrency limit: for fills, waiters, decoders and encoders.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_runtime::bounds::Bound;

/// At most so many at a time. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Slots {
    free: Arc<Semaphore>,
    most: usize,
}

/// A slot; released when it is dropped.
pub type Slot = OwnedSemaphorePermit;

impl Slots {
    /// All are free.
    pub fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(most)), most }
    }

    /// Waits for a slot.
    pub async fn take(&self) -> Slot {
        self.free.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Takes a free slot, without waiting.
    pub fn try_take(&self) -> Option<Slot> {
        self.free.clone().try_acquire_owned().ok()
    }

    /// The fill level of this bound.
    pub fn bound(&self, name: &'static str) -> Bound {
        (name, (self.most - self.free.available_permits()) as u64, self.most as u64)
    }
}
