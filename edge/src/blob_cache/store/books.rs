//! The books: what is in the directory of files, and what the index does not know of it yet.

use std::collections::BTreeSet;

use weir_shared::digest::BlobDigest;

use super::eviction::{Evicted, Policy, Slot};
use super::file_stamp::FileStamp;
use crate::clock::Moment;

/// What is in the directory, and what the index does not know of it yet.
pub(super) struct Books {
    pub(super) policy: Policy,
    /// Blobs that came or went.
    pub(super) unwritten: BTreeSet<BlobDigest>,
    /// Blobs that were used.
    pub(super) used: BTreeSet<BlobDigest>,
}

impl Books {
    pub(super) fn touch(&mut self, digest: &BlobDigest, now: Moment) -> Option<Slot> {
        let slot = self.policy.touch(digest, now)?;
        self.used.insert(*digest);
        Some(slot)
    }

    pub(super) fn reserve(&mut self, size: u64) -> Vec<Evicted> {
        let evicted = self.policy.reserve(size);
        self.unwritten.extend(evicted.iter().map(|gone| gone.digest));
        evicted
    }

    pub(super) fn insert(&mut self, digest: BlobDigest, size: u64, verified: Option<FileStamp>, now: Moment) {
        self.policy.insert(digest, size, verified, now);
        self.unwritten.insert(digest);
    }

    pub(super) fn remove(&mut self, digest: &BlobDigest) -> Option<Evicted> {
        self.unwritten.insert(*digest);
        self.policy.remove(digest)
    }

    pub(super) fn shrink(&mut self) -> Vec<Evicted> {
        let evicted = self.policy.shrink();
        self.unwritten.extend(evicted.iter().map(|gone| gone.digest));
        evicted
    }
}
