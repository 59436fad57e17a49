//! Room for blobs on their way: bytes that are set aside before the first one is written.

use std::io;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Store;
use super::eviction::Policy;
use crate::metrics::Dropped;

/// In what bytes are counted here: a semaphore gives out 2^32 at the most.
const UNIT: u64 = 1 << 10;

/// The bytes that fills may set aside, all together: as many as the cache holds. A fill that finds too few waits until
/// others have ended, in the order in which they came; what they fetched can then be evicted for it.
pub(super) struct Rooms {
    units: Arc<Semaphore>,
    all: u32,
}

impl Rooms {
    pub(super) fn of(limit: u64) -> Self {
        let all = u32::try_from(limit / UNIT).unwrap_or(u32::MAX).max(1);
        Self { units: Arc::new(Semaphore::new(all as usize)), all }
    }

    async fn turn(&self, size: u64) -> io::Result<OwnedSemaphorePermit> {
        let units = u32::try_from(size.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.all);
        self.units.clone().acquire_many_owned(units).await.map_err(io::Error::other)
    }
}

/// Bytes that are set aside for a blob on its way; given back when this is dropped.
pub(in crate::blob_cache) struct Room {
    store: Arc<Store>,
    size: u64,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Sets bytes aside, evicting what has to go for it; none when the blob is larger than the whole cache, or when the
    /// disk takes no writes.
    pub(super) async fn reserve(store: Arc<Store>, size: u64) -> io::Result<Self> {
        let is_kept = !store.pause.is_on(store.clock.now()) && store.books().policy.fits(size);
        let (size, turn) = if is_kept { (size, Some(store.rooms.turn(size).await?)) } else { (0, None) };
        let reserved = tokio::task::spawn_blocking(move || {
            if size > 0 {
                let _naming = store.naming();
                let evicted = store.books().reserve(size);
                store.unlink(&evicted, Dropped::Size);
            }
            Room { store: store.clone(), size, _turn: turn }
        });
        reserved.await.map_err(io::Error::other)
    }

    /// Whether the blob is to be kept.
    pub(in crate::blob_cache) fn is_reserved(&self) -> bool {
        self.size > 0
    }

    /// Gives it back to a policy that is about to take up the blob.
    pub(super) fn release_in(mut self, policy: &mut Policy) {
        policy.release(std::mem::take(&mut self.size));
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.size > 0 {
            self.store.books().policy.release(self.size);
        }
    }
}
