//! Finds at start what an earlier process has left on disk, in the background: until it is done, look-ups go to the file
//! system.

use std::fs;
use std::sync::atomic::Ordering;

use super::Disk;
use super::layout::Found;

/// Notes every file, and removes what a crash left half written. Blocks; ends early when `stop` says so.
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
                tracing::warn!(folder = format!("{first:02x}"), %error, "a folder of the cache cannot be read");
            }
        }
    }
    // What lies in a folder that cannot be read may yet be asked for: then it is looked for on disk.
    disk.is_scanned.store(unread == 0, Ordering::Release);
    disk.metrics.scanning.set(i64::from(unread > 0));
    tracing::info!(objects = disk.index.entries(), bytes = disk.index.bytes(), "the cache's files are known");
}

fn note(disk: &Disk, found: Found) {
    match found {
        // What was written since the start is noted already.
        Found::Object(digest, _) if disk.index.contains(&digest) => {}
        Found::Object(digest, bytes) => match u32::try_from(bytes) {
            Ok(size) if disk.index.takes(bytes) => disk.index.insert(digest, size),
            _ => disk.layout.unlink(&digest),
        },
        Found::Leftover(path) => {
            if let Err(error) = fs::remove_file(&path) {
                tracing::debug!(%error, "a half-written file of the cache cannot be removed");
            }
        }
    }
}
