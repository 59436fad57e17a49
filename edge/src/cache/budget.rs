//! The memory that objects take, counted once for each object whoever reads it, until its last reader lets go.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The unit in which memory is counted, in bytes: what an object takes is rounded up.
const UNIT: u64 = 1024;

/// Bytes of objects in memory, at most a fixed number: those in the memory tier, and those beyond it that are being
/// fetched or read.
#[derive(Debug)]
pub(super) struct Budget {
    free: Arc<Semaphore>,
    units: usize,
    /// What stays free of objects that nobody waits for yet.
    reserve: usize,
    /// How long somebody waits for a part of it.
    patience: Duration,
}

/// The right to hold some bytes; given back when it, or the bytes that it was attached to, are dropped.
#[derive(Debug)]
pub(super) struct Charge {
    _permit: OwnedSemaphorePermit,
}

/// Bytes that count as long as somebody holds them.
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
    /// A budget for a memory tier of `memory` bytes and `in_flight` bytes beyond it.
    pub(super) fn new(memory: u64, in_flight: u64, patience: Duration) -> Self {
        let units = |bytes| usize::try_from(bytes / UNIT).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        let (units, reserve) = (units(memory + in_flight), units(in_flight / 2));
        Self { free: Arc::new(Semaphore::new(units)), units, reserve, patience }
    }

    /// Waits until `bytes` may be held. `None`: readers did not let go of what they hold in time.
    pub(super) async fn charge(&self, bytes: u64) -> Option<Charge> {
        let permit = timeout(self.patience, self.free.clone().acquire_many_owned(units(bytes))).await.ok()?;
        permit.ok().map(|permit| Charge { _permit: permit })
    }

    /// The same without waiting.
    pub(super) fn try_charge(&self, bytes: u64) -> Option<Charge> {
        self.free.clone().try_acquire_many_owned(units(bytes)).ok().map(|permit| Charge { _permit: permit })
    }

    /// Whether there is room for what nobody waits for yet: also when the memory tier is full.
    pub(super) fn is_ample(&self) -> bool {
        self.free.available_permits() > self.reserve
    }

    /// Bytes that are held.
    pub(super) fn used(&self) -> u64 {
        (self.units - self.free.available_permits().min(self.units)) as u64 * UNIT
    }
}

impl Charge {
    /// The bytes, counted until the last clone of them is dropped.
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
