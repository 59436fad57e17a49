//! The local cache of a remote store: one file for each object, with an LRU index in memory that is rebuilt from the
//! folder at start. It holds only copies, so every failure counts as a miss.

#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;
use weir_protocol::digest::ObjectDigest;

use super::metrics::StoreMetrics;
use super::object_location::{Area, ObjectLocation};

/// The least that a file counts towards the limit, which bounds the number of small files.
const MIN_FILE_BYTES: u32 = 4096;

#[derive(Debug, Clone)]
pub(crate) struct DiskCache {
    folder: PathBuf,
    /// The size of each file. An index entry without its file is a miss.
    index: Cache<ObjectLocation, u32>,
    metrics: StoreMetrics,
}

impl DiskCache {
    /// Opens the folder, or creates it. Blocks while it lists the files.
    pub(crate) fn open(folder: PathBuf, limit_bytes: u64, metrics: StoreMetrics) -> io::Result<Self> {
        metrics.cache_limit_bytes.set(i64::try_from(limit_bytes).unwrap_or(i64::MAX));
        fs::create_dir_all(&folder)?;
        let evicted = folder.clone();
        let index = Cache::builder()
            .max_capacity(limit_bytes)
            .weigher(|_, bytes: &u32| *bytes)
            .eviction_policy(EvictionPolicy::lru())
            .eviction_listener(move |object: Arc<ObjectLocation>, _, cause| {
                if cause.was_evicted() {
                    let _ = fs::remove_file(evicted.join(file_name(&object)));
                }
            })
            .build();
        let cache = Self { folder, index, metrics };
        let mut found = Vec::new();
        for entry in fs::read_dir(&cache.folder)? {
            let entry = entry?;
            let object = entry.file_name().to_str().and_then(parse_file_name);
            match (object, entry.metadata()) {
                (Some(object), Ok(metadata)) => {
                    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    found.push((modified, object, file_bytes(metadata.len())));
                }
                // Left by a write that was killed.
                _ => drop(fs::remove_file(entry.path())),
            }
        }
        found.sort_unstable_by_key(|(modified, ..)| *modified);
        for (_, object, bytes) in found {
            cache.index.insert(object, bytes);
        }
        cache.show();
        Ok(cache)
    }

    /// Returns an object after verifying it. A damaged file is removed and counts as a miss.
    pub(crate) async fn get(&self, object: &ObjectLocation) -> Option<Bytes> {
        let known = self.index.get(object).is_some();
        let read = if known { self.read(object).await } else { None };
        let result = match &read {
            Some(Ok(_)) => "hit",
            Some(Err(())) => "damaged",
            None => "miss",
        };
        self.metrics.cache_lookups.with_label_values(&[result]).inc();
        if result != "hit" && known {
            self.remove(object).await;
        }
        read?.ok()
    }

    /// The bytes of the file; `Err` if they do not match the digest.
    async fn read(&self, object: &ObjectLocation) -> Option<Result<Bytes, ()>> {
        let (path, digest) = (self.path(object), object.digest);
        let read = spawn_blocking(move || {
            let bytes = Bytes::from(fs::read(path).ok()?);
            Some(if ObjectDigest::of(&bytes) == digest { Ok(bytes) } else { Err(()) })
        });
        read.await.ok()?
    }

    /// Caches an object. A failure is counted, and is no error.
    pub(crate) async fn insert(&self, object: ObjectLocation, bytes: Bytes) {
        let cache = self.clone();
        let inserted = spawn_blocking(move || {
            write(&cache.folder, &cache.path(&object), &bytes)?;
            cache.index.insert(object, file_bytes(bytes.len() as u64));
            cache.show();
            io::Result::Ok(())
        });
        if !matches!(inserted.await, Ok(Ok(()))) {
            self.metrics.cache_write_failures.inc();
        }
    }

    pub(crate) async fn remove(&self, object: &ObjectLocation) {
        self.index.invalidate(object);
        let path = self.path(object);
        // If the removal fails, the next start finds the file again.
        let _ = spawn_blocking(move || fs::remove_file(path)).await;
        self.show();
    }

    fn path(&self, object: &ObjectLocation) -> PathBuf {
        self.folder.join(file_name(object))
    }

    /// Evicts down to the limit, and updates the metric.
    fn show(&self) {
        self.index.run_pending_tasks();
        self.metrics.cache_bytes.set(i64::try_from(self.index.weighted_size()).unwrap_or(i64::MAX));
    }
}

/// The file name of an object. It includes the repository and the area, so that a cached copy of one cannot answer
/// for another.
fn file_name(object: &ObjectLocation) -> String {
    format!("{},{},{}", object.repository, object.area.as_str(), object.digest)
}

fn parse_file_name(name: &str) -> Option<ObjectLocation> {
    let [repository, area, digest] = name.split(',').collect::<Vec<_>>()[..] else { return None };
    let area = [Area::Public, Area::Private].into_iter().find(|known| known.as_str() == area)?;
    Some(ObjectLocation { repository: repository.parse().ok()?, area, digest: digest.parse().ok()? })
}

fn file_bytes(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).max(MIN_FILE_BYTES)
}

/// Not flushed: damage by a crash is a miss.
fn write(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
