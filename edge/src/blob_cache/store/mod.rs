//! What the cache holds: verified blobs in a directory, within a budget.
//!
//! The store knows nothing of origins, and who fetches knows nothing of files and budgets. They meet in three steps: a
//! [`Room`] is reserved before a blob is fetched, its bytes go to [`Store::incoming`], and [`Store::keep`] gives them
//! their name.

mod directory;
mod eviction;
mod room;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;
use weir_shared::digest::BlobDigest;

use self::eviction::{Accounting, Evicted};
use self::room::Rooms;
use crate::clock::Clock;
use crate::metrics::{CacheMetrics, Dropped, VerifiedAt};

pub(crate) use directory::{Blob, Directory};
pub(super) use room::Room;

/// The blobs that are kept.
pub(super) struct Store {
    directory: Directory,
    accounting: Mutex<Accounting>,
    /// Held while files are named or deleted, so that the accounting and the directory change together. Taken before
    /// `accounting`, and only on threads that may block.
    naming: Mutex<()>,
    rooms: Rooms,
    clock: Clock,
    metrics: CacheMetrics,
}

/// What the store holds, for `/status`.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(crate) struct Holding {
    bytes: u64,
    limit_bytes: u64,
    blobs: usize,
    oldest_idle_seconds: Option<u64>,
}

/// What a purge met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Purged {
    /// The blobs that were held.
    pub(crate) blobs: usize,
    /// Their bytes.
    pub(crate) bytes: u64,
}

/// How a blob is held.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub(crate) struct HeldBlob {
    /// Where: `disk`.
    pub(crate) tier: &'static str,
    /// Its bytes were compared with its name since the process began, or since it was purged softly.
    pub(crate) verified: bool,
    /// Its size.
    pub(crate) bytes: u64,
    /// For how long it has not been used.
    pub(crate) idle_seconds: u64,
}

impl Store {
    /// The store over a directory, with at most `limit` bytes; what lies there is taken up. Blocks.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(super) fn open(directory: Directory, limit: u64, clock: Clock, metrics: CacheMetrics) -> io::Result<Self> {
        let mut accounting = Accounting::new(limit);
        let now = clock.now();
        for present in directory.scan()? {
            accounting.insert(present.digest, present.size, false, now);
        }
        let surplus = accounting.shrink();
        let store = Self {
            directory,
            accounting: Mutex::new(accounting),
            naming: Mutex::default(),
            rooms: Rooms::of(limit),
            clock,
            metrics,
        };
        store.delete(&surplus, Dropped::Size);
        Ok(store)
    }

    /// A blob of `size` bytes, when it is there and was verified since the process began. What is wrong with its file is
    /// found out by [`Store::verify`].
    pub(super) async fn verified(self: &Arc<Self>, digest: BlobDigest, size: u64) -> Option<Blob> {
        let now = self.clock.now();
        self.accounting().touch(&digest, now).filter(|slot| slot.verified)?;
        let store = self.clone();
        let opened = tokio::task::spawn_blocking(move || store.directory.blob(&digest, size)).await;
        opened.ok()?.ok()
    }

    /// A blob of `size` bytes, compared with its name now. What is wrong is dropped. Blocks.
    ///
    /// # Errors
    /// Nothing can be said of the file: it stays.
    pub(super) fn verify(&self, digest: &BlobDigest, size: u64) -> io::Result<Option<Blob>> {
        if self.accounting().touch(digest, self.clock.now()).is_none() {
            return Ok(None);
        }
        let why = match self.directory.blob(digest, size) {
            Ok(blob) => match blob.is(digest) {
                Ok(true) => {
                    self.accounting().verified(digest);
                    return Ok(Some(blob));
                }
                Ok(false) => "its bytes have changed".to_owned(),
                Err(error) => error.to_string(),
            },
            Err(error) if says_nothing_of_the_file(&error) => return Err(error),
            Err(error) => error.to_string(),
        };
        let _naming = self.naming();
        // Nothing is wrong with one that was evicted meanwhile.
        let Some(dropped) = self.accounting().remove(digest) else { return Ok(None) };
        self.metrics.verify_failed(VerifiedAt::Disk);
        tracing::warn!(blob = %digest, why, "a blob on disk is damaged; it is dropped and fetched again");
        self.unlink(&[dropped], Dropped::Corrupt);
        Ok(None)
    }

    /// Sets room aside for a blob that is about to be fetched, in turn, evicting what has to go for it. A blob that is
    /// larger than the whole store gets none: it is served and not kept.
    ///
    /// # Errors
    /// The process ends.
    pub(super) async fn reserve(self: &Arc<Self>, size: u64) -> io::Result<Room> {
        Room::reserve(self.clone(), size).await
    }

    /// A file for a blob that is being fetched; removed when it is dropped. Blocks.
    ///
    /// # Errors
    /// The disk failed.
    pub(super) fn incoming(&self) -> io::Result<NamedTempFile> {
        self.directory.incoming()
    }

    /// Gives a fetched blob, whose bytes are what `digest` says, its name, when there is room for it. The flag says
    /// whether it is kept. Blocks.
    ///
    /// # Errors
    /// The disk failed.
    pub(super) fn keep(&self, digest: BlobDigest, file: NamedTempFile, room: Room) -> io::Result<(Blob, bool)> {
        if !room.is_reserved() {
            return Ok((Blob::of(file.into_file())?, false));
        }
        file.as_file().sync_all()?;
        let _naming = self.naming();
        let blob = self.directory.keep(&digest, file)?;
        let mut accounting = self.accounting();
        room.release_in(&mut accounting);
        accounting.insert(digest, blob.length, true, self.clock.now());
        Ok((blob, true))
    }

    /// Drops blobs. How many there were, and their bytes. Whoever reads one reads on. Blocks.
    pub(super) fn forget(&self, digests: &[BlobDigest], why: Dropped) -> Purged {
        let _naming = self.naming();
        let dropped: Vec<Evicted> = {
            let mut accounting = self.accounting();
            digests.iter().filter_map(|digest| accounting.remove(digest)).collect()
        };
        self.unlink(&dropped, why);
        Purged { blobs: dropped.len(), bytes: dropped.iter().map(|dropped| dropped.size).sum() }
    }

    /// Has blobs compared with their names before their next use. How many there are, and their bytes.
    pub(super) fn distrust(&self, digests: &[BlobDigest]) -> Purged {
        let mut accounting = self.accounting();
        let sizes: Vec<u64> = digests.iter().filter_map(|digest| accounting.distrust(digest)).collect();
        Purged { blobs: sizes.len(), bytes: sizes.iter().sum() }
    }

    /// What is held of a blob, which is not thereby used.
    pub(super) fn look_at(&self, digest: &BlobDigest) -> Option<HeldBlob> {
        let slot = self.accounting().look_at(digest)?;
        let idle = self.clock.now().since(slot.last_used_at);
        Some(HeldBlob { tier: "disk", verified: slot.verified, bytes: slot.size, idle_seconds: idle.as_secs() })
    }

    /// What is held.
    pub(super) fn holding(&self) -> Holding {
        let now = self.clock.now();
        let accounting = self.accounting();
        Holding {
            bytes: accounting.used(),
            limit_bytes: accounting.limit(),
            blobs: accounting.len(),
            oldest_idle_seconds: accounting.oldest_use().map(|used| now.since(used).as_secs()),
        }
    }

    /// Sets the gauges that describe what is held.
    pub(super) fn set_gauges(&self) {
        let holding = self.holding();
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.metrics.bytes.set(number(holding.bytes));
        self.metrics.limit_bytes.set(number(holding.limit_bytes));
        self.metrics.entries.set(number(holding.blobs as u64));
        self.metrics.oldest_idle_seconds.set(number(holding.oldest_idle_seconds.unwrap_or(0)));
    }

    /// Deletes the files of blobs that the accounting has forgotten. Blocks.
    fn delete(&self, dropped: &[Evicted], why: Dropped) {
        if !dropped.is_empty() {
            let _naming = self.naming();
            self.unlink(dropped, why);
        }
    }

    fn unlink(&self, dropped: &[Evicted], why: Dropped) {
        for Evicted { digest, size } in dropped {
            match self.directory.remove(digest) {
                Ok(()) => self.metrics.dropped(why, *size),
                Err(error) => tracing::warn!(blob = %digest, %error, "a blob cannot be deleted"),
            }
        }
    }

    fn accounting(&self) -> MutexGuard<'_, Accounting> {
        // The accounting's own operations do not panic half-way.
        self.accounting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn naming(&self) -> MutexGuard<'_, ()> {
        self.naming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether opening a file failed for want of descriptors or memory: a busy edge must not throw good blobs away.
fn says_nothing_of_the_file(error: &io::Error) -> bool {
    // The same numbers on every Unix.
    const TOO_MANY_IN_THE_SYSTEM: i32 = 23;
    const TOO_MANY_IN_THE_PROCESS: i32 = 24;
    error.kind() == io::ErrorKind::OutOfMemory
        || matches!(error.raw_os_error(), Some(TOO_MANY_IN_THE_SYSTEM | TOO_MANY_IN_THE_PROCESS))
}
