//! A concurrency limit: for fills, waiters, decoders and encoders.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Slots that a client holds while it reads. One client with a name gets half of them at most: one that reads nothing leaves the
/// rest to others. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ClientSlots {
    slots: Slots,
    held: Held,
}

/// What each client holds that holds something.
#[derive(Debug, Clone, Default)]
struct Held(Arc<Mutex<HashMap<String, usize>>>);

/// A slot of a client; released when it is dropped.
#[derive(Debug)]
pub struct ClientSlot {
    client: Option<String>,
    held: Held,
    _slot: Slot,
}

impl Held {
    fn all(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSlots {
    /// All are free.
    pub fn new(most: usize) -> Self {
        Self { slots: Slots::new(most), held: Held::default() }
    }

    /// Takes a free slot, without waiting. `client`: its name, if it has one.
    pub fn try_take(&self, client: Option<&str>) -> Option<ClientSlot> {
        let mut all = self.held.all();
        let held = client.and_then(|client| all.get(client)).copied().unwrap_or_default();
        if held > 0 && held >= self.slots.most / 2 {
            return None;
        }
        let _slot = self.slots.try_take()?;
        if let Some(client) = client {
            *all.entry(client.to_owned()).or_default() += 1;
        }
        Some(ClientSlot { client: client.map(str::to_owned), held: self.held.clone(), _slot })
    }

    /// The fill level of this bound.
    pub fn bound(&self, name: &'static str) -> Bound {
        self.slots.bound(name)
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else { return };
        let mut all = self.held.all();
        if let Some(held) = all.get_mut(&client) {
            *held -= 1;
            if *held == 0 {
                all.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_half_of_the_slots_to_others() {
        let slots = ClientSlots::new(4);
        let mut one: Vec<_> = (0..4).filter_map(|_| slots.try_take(Some("one"))).collect();
        assert_eq!(one.len(), 2);
        let other = slots.try_take(Some("two")).expect("half is left");
        let nameless = slots.try_take(None).expect("one is left");
        assert!(slots.try_take(None).is_none() && slots.try_take(Some("three")).is_none());
        one.pop();
        assert!(slots.try_take(Some("one")).is_some());
        drop((one, other, nameless));
        assert_eq!((slots.bound("slots"), slots.held.all().len()), (("slots", 0, 4), 0));
        assert!(ClientSlots::new(1).try_take(Some("one")).is_some(), "the only one is nobody's");
    }
}
