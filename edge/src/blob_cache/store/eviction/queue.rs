//! The blobs of one kind, in the order in which their turn to go comes.

use std::collections::BTreeMap;

use weir_shared::digest::BlobDigest;

/// Blobs in the order in which their turn to go comes.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) turns: BTreeMap<u64, BlobDigest>,
    pub(super) bytes: u64,
}

impl Queue {
    pub(super) fn push(&mut self, turn: u64, digest: BlobDigest, size: u64) {
        self.turns.insert(turn, digest);
        self.bytes += size;
    }

    pub(super) fn remove(&mut self, turn: u64, size: u64) {
        if self.turns.remove(&turn).is_some() {
            self.bytes -= size;
        }
    }

    pub(super) fn first(&self) -> Option<BlobDigest> {
        self.turns.first_key_value().map(|(_, digest)| *digest)
    }
}
