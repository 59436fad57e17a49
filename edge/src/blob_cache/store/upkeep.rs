//! What the store does by itself: it writes its index, compares it with the directories, and reads its files again.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_shared::digest::BlobDigest;
use weir_shared::process::shutdown::Drain;

use super::blob::read_at;
use super::eviction::Slot;
use super::index::{Found, Known, Row};
use super::verified::Checked;
use super::{Blob, Dropped, Store};

/// How often the index is told which blobs came and went.
const INDEX_INTERVAL: Duration = Duration::from_secs(10);

/// Every so many times it is told how they were used, too: every ten minutes.
const USES_EVERY: u32 = 60;

/// Rows of the index that are gathered at a time: nobody waits for the books while all are gone through.
const INDEX_PAGE: usize = 4096;

/// The directories that blobs lie in.
const GROUPS: u16 = 256;

/// The pause between two directories when the index was read in full: what it does not know is little.
const GROUP_PAUSE: Duration = Duration::from_millis(10);

/// Bytes that the scrub reads at a time.
const SCRUB_CHUNK: usize = 256 << 10;

/// Bytes a second that the scrub reads at least, and at most, whatever a round would take.
const SCRUB_RATES: (u64, u64) = (1 << 20, 32 << 20);

/// How long the scrub waits when there is nothing to read.
const SCRUB_IDLE: Duration = Duration::from_secs(1);

/// Begins the work, which ends when the drain begins. A round of the scrub begins every `scrub`; none when that is zero.
pub(in crate::blob_cache) fn start(store: &Arc<Store>, scrub: Duration, drain: &Drain) {
    let until_drain = |work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        let begun = drain.clone();
        drain.spawn(async move {
            tokio::select! {
                () = begun.begun() => {}
                () = work => {}
            }
        });
    };
    until_drain(Box::pin(write_index(store.clone())));
    until_drain(Box::pin(reconcile(store.clone())));
    if !scrub.is_zero() {
        until_drain(Box::pin(scrub_rounds(store.clone(), scrub)));
    }
}

/// Writes all that the index does not know yet.
pub(in crate::blob_cache) async fn finish(store: &Arc<Store>) {
    store.clone().update_index(true).await;
    stop(store).await;
}

/// Ends what would go on writing to the directory.
pub(in crate::blob_cache) async fn stop(store: &Arc<Store>) {
    if let Some(small) = &store.small {
        small.close().await;
    }
}

async fn write_index(store: Arc<Store>) {
    for round in 1u32.. {
        tokio::time::sleep(INDEX_INTERVAL).await;
        store.clone().update_index(round % USES_EVERY == 0).await;
    }
}

impl Store {
    async fn update_index(self: Arc<Self>, uses: bool) {
        let written = tokio::task::spawn_blocking(move || self.write_index(uses)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            tracing::warn!(%error, "the index of the blobs could not be written; the next start takes longer");
        }
    }

    /// Writes to the index what it does not know yet; with `uses`, also how blobs were used. Blocks.
    ///
    /// # Errors
    /// The disk failed.
    fn write_index(&self, uses: bool) -> io::Result<()> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, wall) = (self.clock.now(), SystemTime::now());
        let known = |slot: &Slot| Known::of(slot, |moment| moment.on_the_wall(now, wall));
        let (mut changed, mut used, held) = {
            let mut books = self.books();
            let used = if uses { std::mem::take(&mut books.used) } else { BTreeSet::new() };
            (std::mem::take(&mut books.unwritten), used, books.policy.len())
        };
        if !index.is_overgrown(held) {
            changed.append(&mut used);
            let changed: Vec<BlobDigest> = changed.into_iter().collect();
            return changed.chunks(INDEX_PAGE).try_for_each(|page| {
                let rows: Vec<Row> = {
                    let books = self.books();
                    page.iter()
                        .map(|digest| Row { digest: *digest, held: books.policy.slot(digest).map(known) })
                        .collect()
                };
                index.append(&rows)
            });
        }
        let mut behind = None;
        index.rewrite(|| {
            let books = self.books();
            let page = books.policy.by_name(behind).take(INDEX_PAGE);
            let page: Vec<Row> = page.map(|(digest, slot)| Row { digest: *digest, held: Some(known(slot)) }).collect();
            behind = page.last().map(|row| row.digest);
            page
        })
    }

    /// Compares what is known of one directory with what is in it. Blocks.
    fn reconcile_group(&self, group: u8) -> io::Result<()> {
        let known: Vec<BlobDigest> = {
            let books = self.books();
            let first = group.checked_sub(1).map(last_of_group);
            let all = books.policy.by_name(first).map(|(digest, _)| *digest);
            all.take_while(|digest| digest.as_bytes()[0] == group).collect()
        };
        let mut present = self.directory.group(group)?;
        present.sort_unstable();
        for digest in present.iter().filter(|digest| known.binary_search(digest).is_err()) {
            if let Ok(size) = self.directory.size(digest) {
                self.take_up(digest, size);
            }
        }
        for digest in known.iter().filter(|digest| present.binary_search(digest).is_err()) {
            let _naming = self.naming();
            let is_gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
            if self.directory.size(digest).is_err_and(is_gone) {
                let gone = self.books().remove(digest);
                self.unlink(gone.as_slice(), Dropped::Vanished);
            }
        }
        Ok(())
    }
}

/// The last name that belongs to a group.
fn last_of_group(group: u8) -> BlobDigest {
    let mut bytes = [0xff; 32];
    bytes[0] = group;
    blake3::Hash::from_bytes(bytes).into()
}

/// Goes through the directories once: what the index did not know is taken up, what is gone is forgotten.
async fn reconcile(store: Arc<Store>) {
    let mut is_whole = true;
    let pause = if store.index_was == Found::Whole { GROUP_PAUSE } else { Duration::ZERO };
    for group in 0..GROUPS {
        let group = u8::try_from(group).expect("there are 256");
        let store = store.clone();
        let done = tokio::task::spawn_blocking(move || store.reconcile_group(group)).await;
        is_whole &= matches!(done, Ok(Ok(())));
        if let Ok(Err(error)) = done {
            tracing::warn!(%error, group, "a directory of blobs cannot be read");
        }
        tokio::time::sleep(pause).await;
    }
    store.is_reconciled.store(is_whole, Ordering::Relaxed);
    tracing::info!(blobs = store.holding().blobs, "the directories of the blobs were compared with the index");
}

/// Reads every file again, in rounds, at a bounded rate. Reading is no use: it changes nobody's turn to go.
async fn scrub_rounds(store: Arc<Store>, interval: Duration) {
    // A process that never lives for a whole round would otherwise read the same ones again and again.
    let random = RandomState::new();
    let mut start = [0; 32];
    start[..8].copy_from_slice(&random.hash_one(0).to_le_bytes());
    let start: BlobDigest = blake3::Hash::from_bytes(start).into();
    loop {
        let begun = tokio::time::Instant::now();
        let bytes = store.holding().bytes;
        let rate = bytes / (interval.as_secs() / 2).max(1);
        let rate = rate.clamp(SCRUB_RATES.0, SCRUB_RATES.1);
        scrub_part(&store, Some(start), None, rate).await;
        scrub_part(&store, None, Some(start), rate).await;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        store.metrics.scrub_round.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        tokio::time::sleep_until(begun + interval.max(SCRUB_IDLE)).await;
    }
}

async fn scrub_part(store: &Arc<Store>, mut behind: Option<BlobDigest>, last: Option<BlobDigest>, rate: u64) {
    loop {
        let next = store.books().policy.by_name(behind).next().map(|(digest, slot)| (*digest, slot.size));
        let Some((digest, size)) = next.filter(|(digest, _)| last.is_none_or(|last| *digest <= last)) else { return };
        behind = Some(digest);
        scrub_blob(store, digest, size, rate).await;
    }
}

async fn scrub_blob(store: &Arc<Store>, digest: BlobDigest, size: u64, rate: u64) {
    let opener = store.clone();
    let opened = tokio::task::spawn_blocking(move || opener.directory.blob(&digest, size)).await;
    let Ok(opened) = opened else { return };
    if let Ok(blob) = opened
        && let stamp = blob.stamp()
        && read_slowly(store, blob, digest, rate).await
    {
        store.metrics.scrubbed("ok");
        store.books().policy.verified(&digest, stamp);
        return;
    }
    // It may have been evicted or replaced meanwhile: looked at again, at once, and dropped if it is wrong.
    let checker = store.clone();
    let checked = tokio::task::spawn_blocking(move || {
        let is_known = checker.books().policy.slot(&digest).is_some();
        is_known && matches!(checker.check(&digest, size), Checked::Dropped)
    });
    if checked.await.unwrap_or(false) {
        store.metrics.scrubbed("dropped");
    }
}

/// Whether a file is what its name says.
async fn read_slowly(store: &Store, blob: Blob, digest: BlobDigest, rate: u64) -> bool {
    let Blob::File { file, length, .. } = blob else { return true };
    let mut hasher = blake3::Hasher::new();
    let mut offset = 0;
    loop {
        let file = file.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut chunk = vec![0; SCRUB_CHUNK];
            let read = read_at(&file, &mut chunk, offset)?;
            hasher.update(&chunk[..read]);
            io::Result::Ok((hasher, read as u64))
        });
        let Ok(Ok((so_far, read))) = read.await else { return false };
        hasher = so_far;
        if read == 0 {
            return offset == length && BlobDigest::from(hasher.finalize()) == digest;
        }
        offset += read;
        store.metrics.scrubbed_bytes.inc_by(read);
        tokio::time::sleep(Duration::from_secs_f64(read as f64 / rate as f64)).await;
    }
}
