//! Offers the tar of the release on disk as the dictionary of a delta, and rebuilds it when an edge sends one.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use weir_protocol::digest::Sha256;

use crate::fetch::Dictionary;
use crate::release::{ReleaseName, ServiceDirectory, TarRecord};

/// The unit of the memory for dictionaries, in bytes.
const UNIT: u64 = 1 << 10;

/// The memory for the dictionaries of all services.
#[derive(Clone)]
pub(crate) struct DictionaryMemory {
    max: u64,
    units: Arc<Semaphore>,
}

impl DictionaryMemory {
    /// At most `max` bytes; none: no deltas.
    pub(crate) fn new(max: u64) -> Self {
        let units = usize::try_from(max.div_ceil(UNIT)).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { max, units: Arc::new(Semaphore::new(units)) }
    }

    /// The largest tar that can be a dictionary, in bytes.
    pub(crate) fn max(&self) -> u64 {
        self.max
    }

    /// Room for a tar of `size` bytes. `None`: others use it, and may do so for long.
    fn reserve(&self, size: u64) -> Option<OwnedSemaphorePermit> {
        if size > self.max {
            return None;
        }
        let units = u32::try_from(size.div_ceil(UNIT)).ok()?;
        self.units.clone().try_acquire_many_owned(units).ok()
    }
}

/// The dictionary of one service.
pub(crate) struct Dictionaries {
    pub(crate) directory: Arc<ServiceDirectory>,
    pub(crate) memory: DictionaryMemory,
}

/// A dictionary that can be rebuilt. Its memory is reserved.
pub(crate) struct OfferedDictionary {
    pub(crate) sha256: Sha256,
    size: u64,
    release: ReleaseName,
    memory: OwnedSemaphorePermit,
}

impl Dictionaries {
    /// The tar of the current release. `None`: none, or one that this agent cannot rebuild.
    pub(crate) fn offer(&self) -> Option<OfferedDictionary> {
        let release = self.directory.state().release?;
        let TarRecord { sha256, size, .. } = release.tar.filter(TarRecord::can_be_rebuilt)?;
        let memory = self.memory.reserve(size)?;
        Some(OfferedDictionary { sha256, size, release: release.directory, memory })
    }

    /// Rebuilds a dictionary. `None`: the files on disk were changed.
    pub(crate) async fn rebuild(&self, offered: OfferedDictionary) -> Option<Dictionary> {
        let directory = self.directory.clone();
        let rebuilt = spawn_blocking(move || {
            let OfferedDictionary { sha256, size, release, memory: _memory } = offered;
            let tar = directory
                .rebuild_tar(release, size)
                .inspect_err(|error| tracing::debug!(digest = %release.digest(), %error, "the tar of the release cannot be rebuilt"))
                .ok()?;
            (Sha256::of(&tar) == sha256).then_some(Dictionary { sha256, tar, _memory })
        });
        rebuilt.await.ok().flatten()
    }
}
