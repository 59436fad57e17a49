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
pub(super) struct Budget {
    free: Arc<Semaphore>,
    units: usize,
    /// Units that read-ahead leaves free for clients.
    reserve: usize,
    patience: Duration,
}

/// Reserved bytes; released when it, or the bytes it is attached to, are dropped.
#[derive(Debug)]
pub(super) struct Charge {
    _permit: OwnedSemaphorePermit,
}

/// Bytes with their reservation.
struct Charged {
    bytes: Vec<u8>,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Budget {
    /// A budget of `memory` bytes for the memory tier and `in_flight` bytes beyond it.
    pub(super) fn new(memory: u64, in_flight: u64, patience: Duration) -> Self {
        let units = |bytes| usize::try_from(bytes / UNIT).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let (units, reserve) = (units(memory + in_flight), units(in_flight / 2));
        Self { free: Arc::new(Semaphore::new(units)), units, reserve, patience }
    }

    /// Waits until `bytes` can be reserved. `None`: the wait timed out.
    pub(super) async fn charge(&self, bytes: u64) -> Option<Charge> {
        let permit = timeout(self.patience, self.free.clone().acquire_many_owned(units(bytes))).await.ok()?;
        permit.ok().map(|permit| Charge { _permit: permit })
    }

    /// Reserves `bytes` without waiting.
    pub(super) fn try_charge(&self, bytes: u64) -> Option<Charge> {
        self.free.clone().try_acquire_many_owned(units(bytes)).ok().map(|permit| Charge { _permit: permit })
    }

    /// Whether there is room for read-ahead. Independent of the fill level of the memory tier.
    pub(super) fn is_ample(&self) -> bool {
        self.free.available_permits() > self.reserve
    }

    pub(super) fn used(&self) -> u64 {
        (self.units - self.free.available_permits().min(self.units)) as u64 * UNIT
    }
}

impl Charge {
    /// Attaches the reservation to the bytes, until their last clone is dropped.
    pub(super) fn attach(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Charged { bytes, _charge: self })
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
    async fn bytes_count_until_their_last_reader_lets_go() {
        let budget = Budget::new(6 * UNIT, 4 * UNIT, Duration::from_millis(1));
        let bytes = budget.charge(UNIT + 1).await.unwrap().attach(vec![7; 1025]);
        let part = bytes.slice(3..5);
        drop(bytes);
        assert_eq!(budget.used(), 2 * UNIT);
        let memory = budget.try_charge(4 * UNIT).unwrap();
        assert!(budget.is_ample(), "the memory tier is full, and nothing is in flight");
        let rest = budget.try_charge(4 * UNIT).unwrap();
        assert!(budget.try_charge(1).is_none() && budget.charge(1).await.is_none() && !budget.is_ample());
        drop((part, memory, rest));
        assert_eq!(budget.used(), 0);
        assert_eq!(counted(0), UNIT);
    }
}
