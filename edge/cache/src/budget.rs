//! The memory budget of objects: each object counts once, however many readers it has, until the last one drops it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The accounting unit in bytes: sizes are rounded up.
const UNIT: u64 = 1024;

/// The memory budget: bytes of the memory tier, and of objects in flight (being fetched or read).
#[derive(Debug)]
pub(super) struct MemoryBudget {
    free: Arc<Semaphore>,
    units: usize,
    /// Units that read-ahead leaves free for clients.
    client_reserve: usize,
    max_wait: Duration,
}

/// Reserved bytes; released when it, or the bytes it is attached to, are dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    permit: OwnedSemaphorePermit,
}

/// Bytes with their reservation.
struct ReservedBytes {
    bytes: Vec<u8>,
    _reservation: Reservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl MemoryBudget {
    /// A budget of `memory` bytes for the memory tier and `in_flight` bytes beyond it.
    pub(super) fn new(memory: u64, in_flight: u64, max_wait: Duration) -> Self {
        let units = |bytes| usize::try_from(bytes / UNIT).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let (units, client_reserve) = (units(memory + in_flight), units(in_flight / 2));
        Self { free: Arc::new(Semaphore::new(units)), units, client_reserve, max_wait }
    }

    /// Waits until `bytes` can be reserved. `None`: the wait timed out.
    pub(super) async fn reserve(&self, bytes: u64) -> Option<Reservation> {
        let permit = timeout(self.max_wait, self.free.clone().acquire_many_owned(units(bytes))).await.ok()?;
        permit.ok().map(|permit| Reservation { permit })
    }

    /// Reserves `bytes` without waiting.
    pub(super) fn try_reserve(&self, bytes: u64) -> Option<Reservation> {
        self.free.clone().try_acquire_many_owned(units(bytes)).ok().map(|permit| Reservation { permit })
    }

    /// Whether there is room for read-ahead. Independent of the fill level of the memory tier.
    pub(super) fn has_room(&self) -> bool {
        self.free.available_permits() > self.client_reserve
    }

    pub(super) fn used(&self) -> u64 {
        (self.units - self.free.available_permits().min(self.units)) as u64 * UNIT
    }
}

impl Reservation {
    /// Attaches the reservation to the bytes, until their last clone is dropped. What they do not need is released now.
    pub(super) fn attach(mut self, bytes: Vec<u8>) -> Bytes {
        let needed = units(bytes.len() as u64) as usize;
        drop(self.permit.split(self.permit.num_permits().saturating_sub(needed)));
        Bytes::from_owner(ReservedBytes { bytes, _reservation: self })
    }
}

/// The bytes that an object of `bytes` counts for.
pub(super) fn counted(bytes: u64) -> u64 {
    u64::from(units(bytes)) * UNIT
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT).max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_count_until_their_last_clone_is_dropped() {
        let budget = MemoryBudget::new(6 * UNIT, 4 * UNIT, Duration::from_millis(1));
        let bytes = budget.reserve(5 * UNIT).await.unwrap().attach(vec![7; 1025]);
        let part = bytes.slice(3..5);
        drop(bytes);
        assert_eq!(budget.used(), 2 * UNIT);
        let memory = budget.try_reserve(4 * UNIT).unwrap();
        assert!(budget.has_room(), "the memory tier is full, and nothing is in flight");
        let rest = budget.try_reserve(4 * UNIT).unwrap();
        assert!(budget.try_reserve(1).is_none() && budget.reserve(1).await.is_none() && !budget.has_room());
        drop((part, memory, rest));
        assert_eq!(budget.used(), 0);
        assert_eq!(counted(0), UNIT);
    }
}
