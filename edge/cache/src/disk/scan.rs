//! Indexes the files of an earlier process, in the background. Until it is done, lookups go to the file system.

use std::fs;
use std::sync::atomic::Ordering;

use super::Disk;
use super::layout::ListedFile;

/// Indexes all files and removes temporary ones. Blocks; returns early when `stop` is true.
pub(super) fn scan(disk: &Disk, stop: impl Fn() -> bool) {
    let mut unread = 0;
    for first in 0..=u8::MAX {
        if stop() {
            return;
        }
        match disk.layout.list(first) {
            Ok(found) => found.into_iter().for_each(|found| note(disk, found)),
            Err(error) => {
                unread += 1;
                tracing::warn!(folder = format!("{first:02x}"), %error, "a cache directory cannot be read");
            }
        }
    }
    // Objects in an unreadable directory are still looked up on disk.
    disk.is_scanned.store(unread == 0, Ordering::Release);
    disk.metrics.scanning.set(i64::from(unread > 0));
    tracing::info!(objects = disk.index.entries(), bytes = disk.index.bytes(), "the cache files are indexed");
}

fn note(disk: &Disk, found: ListedFile) {
    match found {
        // A file written since the start is indexed already.
        ListedFile::Object(digest, _) if disk.index.contains(&digest) => {}
        ListedFile::Object(digest, bytes) => match u32::try_from(bytes) {
            Ok(size) if disk.index.takes(bytes) => disk.index.insert(digest, size),
            _ => disk.layout.unlink(&digest),
        },
        ListedFile::Temporary(path) => {
            if let Err(error) = fs::remove_file(&path) {
                tracing::debug!(%error, "a temporary cache file cannot be removed");
            }
        }
    }
}
