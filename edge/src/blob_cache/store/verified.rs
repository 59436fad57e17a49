//! Hands out blobs whose bytes are what their names say, and finds out which are not.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use weir_shared::digest::BlobDigest;

use super::directory::is_out_of_descriptors;
use super::file_stamp::FileStamp;
use super::small::{FoundIn, Small};
use super::{Blob, Store};
use crate::metrics::{Dropped, Tier, VerifiedAt};

/// What became of a file that was compared with its name.
pub(super) enum Checked {
    /// It is right.
    Right(Blob),
    /// It was wrong, and is dropped.
    Dropped,
    /// It is not held, or cannot be opened now.
    Unavailable,
}

impl Store {
    /// A blob of `size` bytes that lies in memory. Does not wait.
    pub(in crate::blob_cache) fn at_hand(&self, digest: &BlobDigest, size: u64) -> Option<Bytes> {
        let bytes = match self.small.as_ref().filter(|_| Small::takes(size)) {
            Some(small) => small.at_hand(digest)?,
            None => {
                let now = self.clock.now();
                let bytes = self.memory.get(digest, now)?;
                self.books().touch(digest, now);
                bytes
            }
        };
        let is_whole = bytes.len() as u64 == size;
        is_whole.then(|| {
            self.metrics.hit(Tier::Memory, size);
            bytes
        })
    }

    /// A blob of `size` bytes and where it was found, when it is there and was verified since the process began, and its
    /// file is as it was then. What is wrong with its file is found out by [`Store::verify`].
    pub(in crate::blob_cache) async fn verified(
        self: &Arc<Self>,
        digest: BlobDigest,
        size: u64,
    ) -> Option<(Blob, Tier)> {
        let now = self.clock.now();
        let slot = self.books().touch(&digest, now);
        if let Some(bytes) = self.memory.get(&digest, now).filter(|bytes| bytes.len() as u64 == size) {
            self.metrics.hit(Tier::Memory, size);
            return Some((Blob::Memory(bytes), Tier::Memory));
        }
        if let Some(found) = self.small_one(digest, size).await {
            return Some(found);
        }
        let slot = slot.filter(|slot| slot.verified.is_some())?;
        let store = self.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let opened = store.directory.blob(&digest, size).ok();
            let blob = opened.filter(|blob| blob.stamp() == slot.verified)?;
            // What is asked for the first time since it came is not likely to be asked for often.
            let is_wanted_again = slot.usage.uses > 0 || slot.usage.established;
            if is_wanted_again { store.bring_to_memory(digest, blob) } else { Some(blob) }
        });
        let blob = opened.await.ok()??;
        self.metrics.hit(Tier::File, size);
        Some((blob, Tier::File))
    }

    /// A blob of `size` bytes and where it was found, compared with its name now, in its turn. What is wrong is dropped.
    pub(in crate::blob_cache) async fn verify(self: &Arc<Self>, digest: BlobDigest, size: u64) -> Option<(Blob, Tier)> {
        if let Some((blob, tier)) = self.small_one(digest, size).await
            && blob.is(&digest).unwrap_or(false)
        {
            return Some((blob, tier));
        }
        if !self.may_hold(&digest) {
            return None;
        }
        let turn = self.verifications.clone().acquire_owned().await.ok()?;
        let store = self.clone();
        let checked = tokio::task::spawn_blocking(move || {
            // Until it is done, whoever waits for it.
            let _turn = turn;
            store.books().touch(&digest, store.clock.now());
            store.check(&digest, size)
        });
        let Checked::Right(blob) = checked.await.ok()? else { return None };
        self.metrics.hit(Tier::File, size);
        Some((blob, Tier::File))
    }

    /// Whether there may be a file. Until the directories were gone through there may be one that nobody knows of.
    fn may_hold(&self, digest: &BlobDigest) -> bool {
        !self.is_reconciled.load(Ordering::Relaxed) || self.books().policy.slot(digest).is_some()
    }

    /// Files that are being verified because somebody asks for them, and how many may be.
    pub(in crate::blob_cache) fn verifications(&self) -> (usize, usize) {
        (self.most_verifications - self.verifications.available_permits(), self.most_verifications)
    }

    /// A blob that is held among the small ones.
    async fn small_one(&self, digest: BlobDigest, size: u64) -> Option<(Blob, Tier)> {
        let small = self.small.as_ref().filter(|_| Small::takes(size))?;
        let (bytes, found_in) = small.get(digest).await?;
        let tier = match found_in {
            FoundIn::Memory => Tier::Memory,
            FoundIn::Disk => Tier::Small,
        };
        self.metrics.hit(tier, size);
        (bytes.len() as u64 == size).then_some((Blob::Memory(bytes), tier))
    }

    /// Opens a file and compares it with the name. What is wrong is dropped; a file that nobody knew of is taken up.
    /// Blocks.
    pub(super) fn check(&self, digest: &BlobDigest, size: u64) -> Checked {
        let (why, dropped) = match self.directory.blob(digest, size) {
            Ok(blob) => match blob.is(digest) {
                Ok(true) => {
                    self.take_up_verified(digest, size, blob.stamp());
                    return Checked::Right(blob);
                }
                Ok(false) => ("its bytes have changed".to_owned(), Dropped::Corrupt),
                Err(error) => (error.to_string(), Dropped::Corrupt),
            },
            Err(error) if is_out_of_descriptors(&error) => {
                tracing::warn!(blob = %digest, %error, "a blob on disk cannot be opened now; its origin is asked");
                return Checked::Unavailable;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => ("it is gone".to_owned(), Dropped::Vanished),
            Err(error) => (error.to_string(), Dropped::Corrupt),
        };
        // Nothing is wrong with one that was evicted meanwhile.
        if self.books().policy.slot(digest).is_none() {
            return Checked::Unavailable;
        }
        if dropped == Dropped::Corrupt {
            self.metrics.verify_failed(VerifiedAt::Disk);
        }
        tracing::warn!(blob = %digest, why, "a blob on disk cannot be used; it is dropped, and fetched when asked for");
        self.forget(&[*digest], dropped);
        Checked::Dropped
    }

    /// Notes that a file is what its name says, in the state that it was opened in. The index may not have known of it.
    fn take_up_verified(&self, digest: &BlobDigest, size: u64, as_of: Option<FileStamp>) {
        if self.books().policy.slot(digest).is_none() {
            self.take_up(digest, size);
        }
        self.books().policy.verified(digest, as_of);
    }

    /// Takes up a file that the index did not know of. Blocks.
    pub(super) fn take_up(&self, digest: &BlobDigest, size: u64) {
        let _naming = self.naming();
        let surplus = {
            let mut books = self.books();
            if books.policy.slot(digest).is_some() || self.directory.size(digest).ok() != Some(size) {
                return;
            }
            books.insert(*digest, size, None, self.clock.now());
            books.shrink()
        };
        self.unlink(&surplus, Dropped::Size);
    }

    /// The blob, in memory if that is where it belongs. Its bytes are compared with its name on the way: `None` when they
    /// are not what it says, or cannot be read. Blocks.
    fn bring_to_memory(&self, digest: BlobDigest, blob: Blob) -> Option<Blob> {
        let Some(coming) = self.memory.expect(digest, blob.length()) else { return Some(blob) };
        match blob.read() {
            Ok(bytes) if BlobDigest::of(&bytes) == digest => {
                let bytes = coming.put(bytes, self.clock.now());
                // One who forgot it meanwhile may have looked for it there too early.
                if self.books().policy.slot(&digest).is_none() {
                    self.memory.remove(&digest);
                }
                Some(Blob::Memory(bytes))
            }
            // Whoever asks verifies it next, and drops it there.
            Ok(_) => {
                self.books().policy.doubt(&digest);
                None
            }
            Err(error) => {
                self.cannot_read(&digest, &error);
                None
            }
        }
    }

    /// A file that was verified cannot be read: it is verified again before its next use.
    pub(in crate::blob_cache) fn cannot_read(&self, digest: &BlobDigest, error: &io::Error) {
        tracing::warn!(blob = %digest, %error, "a blob on disk cannot be read");
        self.metrics.read_failures.inc();
        self.books().policy.doubt(digest);
    }
}
