//! Takes up blobs that were fetched: room for them, their bytes, their names; and what the disk says to that.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use tempfile::NamedTempFile;
use weir_shared::digest::BlobDigest;

use super::memory::Place;
use super::small::Small;
use super::{DiskTrouble, Room, Store};
use crate::metrics::WriteDropped;

/// What is the matter while the disk takes blobs, but small ones only in files of their own.
const SMALL_BROKEN: &str = "a write of small blobs failed; until the next start they are kept in files like the others";

impl Store {
    /// Whether a blob of this size is kept among the small ones, which need no room.
    pub(in crate::blob_cache) fn is_small(&self, size: u64) -> bool {
        Small::takes(size) && self.small.as_ref().is_some_and(|small| !small.is_broken())
    }

    /// Claims room for a blob that is to be kept in a file, if need be after a short wait.
    ///
    /// # Errors
    /// Why it is not to be kept: it is larger than the whole store, the disk takes no writes just now, or others have all
    /// the room there is for blobs on their way.
    pub(in crate::blob_cache) async fn claim(self: &Arc<Self>, size: u64) -> Result<Room, WriteDropped> {
        Room::claim(self, size).await
    }

    /// Whether a blob that is fetched into memory is to be kept.
    pub(in crate::blob_cache) fn keeps(&self, size: u64) -> bool {
        self.is_small(size) || !self.pause.is_on(self.clock.now()) && self.books().policy.fits(size)
    }

    /// A place in memory for a blob that is being fetched; `None` while readers have too much of the memory: it goes
    /// through a file then.
    pub(in crate::blob_cache) fn place(&self, size: u64) -> Option<Place> {
        self.memory.place(size)
    }

    /// A file for a blob that is being fetched; removed when it is dropped. Blocks.
    ///
    /// # Errors
    /// The disk failed.
    pub(in crate::blob_cache) fn incoming(&self) -> io::Result<NamedTempFile> {
        self.directory.incoming()
    }

    /// Gives a fetched blob, whose bytes are what `digest` says, its name. A disk that fails now takes nothing from those
    /// who read it. Blocks.
    pub(in crate::blob_cache) fn keep(&self, digest: BlobDigest, file: NamedTempFile, room: Room) {
        self.kept(&digest, self.keep_file(digest, file, room));
    }

    /// As [`Store::keep`], of a blob that is in memory. Blocks.
    pub(in crate::blob_cache) fn keep_bytes(&self, digest: BlobDigest, bytes: &Bytes, room: Room) {
        let kept = self.incoming().and_then(|file| {
            file.as_file().write_all_at(bytes, 0)?;
            self.keep_file(digest, file, room)
        });
        self.kept(&digest, kept);
    }

    /// As [`Store::keep`], of a small blob; `false` when it has to be kept in a file. Blocks.
    pub(in crate::blob_cache) fn keep_small(&self, digest: BlobDigest, bytes: Bytes) -> bool {
        self.small.as_ref().is_some_and(|small| small.put(digest, bytes))
    }

    /// What became of a blob that was to be kept.
    fn kept(&self, digest: &BlobDigest, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.disk_says(None),
            Err(error) => {
                self.write_failed(digest, &error);
            }
        }
    }

    fn keep_file(&self, digest: BlobDigest, file: NamedTempFile, mut room: Room) -> io::Result<()> {
        file.as_file().sync_all()?;
        let _naming = self.naming();
        let blob = self.directory.keep(&digest, file)?;
        let mut books = self.books();
        room.release_in(&mut books.policy);
        books.insert(digest, blob.length(), blob.stamp(), self.clock.now());
        Ok(())
    }

    /// A blob could not be kept: what is the matter with the disk.
    pub(in crate::blob_cache) fn write_failed(&self, digest: &BlobDigest, error: &io::Error) -> DiskTrouble {
        let trouble = DiskTrouble::from(error);
        self.pause.after(trouble, self.clock.now());
        self.disk_says(Some(error.to_string()));
        self.metrics.write_dropped(WriteDropped::Disk(trouble));
        tracing::warn!(blob = %digest, %error, "a blob cannot be kept: the disk of the cache does not take it");
        trouble
    }

    fn disk_says(&self, failure: Option<String>) {
        *self.disk_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// Why the disk did not take the last blob; `None` when it did.
    pub(in crate::blob_cache) fn disk_failure(&self) -> Option<String> {
        let failure = self.disk_failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_small_broken = self.small.as_ref().is_some_and(Small::is_broken);
        failure.or_else(|| is_small_broken.then(|| SMALL_BROKEN.to_owned()))
    }
}
