//! Room for blobs on their way: claimed before the origin is asked, made once some of the blob is there, and before the
//! first byte is written.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::Store;
use super::eviction::Policy;
use crate::metrics::{Dropped, WriteDropped};

/// How long a fill waits for others to give back room before its blob is served and not kept.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// Tells those who wait for room when some was given back. The smaller one goes first: it finds room where a larger one
/// does not.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    freed: Notify,
}

/// Room for a blob on its way; given back when this is dropped.
pub(in crate::blob_cache) struct Room {
    store: Arc<Store>,
    size: u64,
    is_made: bool,
}

impl Room {
    /// Claims room, if need be after a short wait. The error is why the blob is not to be kept.
    pub(super) async fn claim(store: &Arc<Store>, size: u64) -> Result<Self, WriteDropped> {
        let waited = tokio::time::timeout(ROOM_WAIT, async {
            loop {
                let freed = store.rooms.freed.notified();
                match Self::claim_now(store, size) {
                    Err(WriteDropped::NoRoom) => freed.await,
                    claimed => return claimed,
                }
            }
        });
        waited.await.unwrap_or(Err(WriteDropped::NoRoom))
    }

    /// The same without waiting.
    fn claim_now(store: &Arc<Store>, size: u64) -> Result<Self, WriteDropped> {
        if store.pause.is_on(store.clock.now()) {
            return Err(WriteDropped::Paused);
        }
        let mut books = store.books();
        if !books.policy.fits(size) {
            return Err(WriteDropped::TooLarge);
        }
        let is_claimed = books.policy.claim(size);
        is_claimed.then(|| Self { store: store.clone(), size, is_made: false }).ok_or(WriteDropped::NoRoom)
    }

    /// Makes it, unless that was done: what has to go is evicted. Blocks.
    pub(in crate::blob_cache) fn make(&mut self) {
        if self.is_made {
            return;
        }
        let store = self.store.clone();
        let _naming = store.naming();
        let evicted = store.books().reserve(self.size);
        self.is_made = true;
        store.unlink(&evicted, Dropped::Size);
    }

    /// Gives it back to a policy that is about to take up the blob.
    pub(super) fn release_in(&mut self, policy: &mut Policy) {
        if std::mem::take(&mut self.is_made) {
            policy.release(self.size);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut books = self.store.books();
        if self.is_made {
            books.policy.release(self.size);
        }
        books.policy.unclaim(self.size);
        drop(books);
        self.store.rooms.freed.notify_waiters();
    }
}
