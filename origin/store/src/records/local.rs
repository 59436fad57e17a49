//! The record engine of a single origin: one file for each record, in a folder for each kind.
//!
//! A write makes `<name>.new` durable, links the current copy as `<name>.previous`, renames `<name>.new` to
//! `<name>.record`, and flushes the folder. A kill between any two steps leaves the old record or the new one,
//! complete. The lock of the data directory excludes other processes; a mutex for each group of keys orders the
//! writes of this one.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::key::KINDS;
use super::record_file::{decode, encode};
use super::{Expect, Listed, PutOutcome, Record, RecordError, RecordKey, Version};
use weir_model::failpoint;
use weir_runtime::durable_file::sync_folder;

/// Requests for keys of one group run one at a time.
const KEY_GROUPS: usize = 64;

const CURRENT: &str = ".record";
const PREVIOUS: &str = ".previous";
const NEW: &str = ".new";
const LINK: &str = ".link";

/// Records in local files. Clones share the same engine.
#[derive(Clone)]
pub(crate) struct LocalEngine(Arc<Inner>);

struct Inner {
    root: PathBuf,
    hasher: RandomState,
    groups: [Mutex<Group>; KEY_GROUPS],
    sync_folder: Box<SyncFolder>,
}

/// Flushes a folder.
type SyncFolder = dyn Fn(&Path) -> io::Result<()> + Send + Sync;

#[derive(Debug, Default)]
struct Group {
    /// Records whose rename may not be durable: after a failed fsync a file system may return them from memory alone.
    /// They are rewritten before the next read.
    suspect: HashSet<RecordKey>,
}

impl LocalEngine {
    /// Opens the folder, or creates it, and makes its contents durable: an earlier run may have been killed before it
    /// did.
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        Self::open_with(root, sync_folder)
    }

    /// Opens with another fsync for folders, for tests.
    fn open_with(
        root: &Path,
        sync_folder: impl Fn(&Path) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        for kind in KINDS {
            let folder = root.join(kind);
            fs::create_dir_all(&folder)?;
            sync_folder(&folder)?;
        }
        sync_folder(root)?;
        root.parent().map_or(Ok(()), &sync_folder)?;
        let groups = std::array::from_fn(|_| Mutex::default());
        let sync_folder = Box::new(sync_folder);
        Ok(Self(Arc::new(Inner { root: root.to_owned(), hasher: RandomState::new(), groups, sync_folder })))
    }
}

impl fmt::Debug for LocalEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalEngine").field(&self.0.root).finish()
    }
}

impl LocalEngine {
    pub(crate) async fn get(&self, key: &RecordKey) -> Result<Option<Record>, RecordError> {
        let wanted = key.clone();
        self.blocking(key, move |inner| inner.get(&wanted)).await?
    }

    pub(crate) async fn put(&self, key: &RecordKey, bytes: Bytes, expect: Expect) -> PutOutcome {
        let written = key.clone();
        let done = self.blocking(key, move |inner| inner.put(&written, &bytes, &expect)).await;
        done.unwrap_or_else(PutOutcome::Unknown)
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<Listed>, RecordError> {
        let wanted = prefix.to_owned();
        let listed = self.blocking(&prefix, move |inner| inner.list(&wanted)).await?;
        let keys = listed.map_err(|error| unavailable(&prefix, &error))?;
        Ok(keys.into_iter().map(|key| (key, None)).collect())
    }

    pub(crate) async fn delete(&self, key: &RecordKey, version: &Version) -> Result<(), RecordError> {
        let (deleted, version) = (key.clone(), version.clone());
        self.blocking(key, move |inner| inner.delete(&deleted, &version)).await?
    }

    /// Runs blocking work to its end, even if the caller is cancelled.
    async fn blocking<T: Send + 'static>(
        &self,
        name: &impl ToString,
        work: impl FnOnce(&Inner) -> T + Send + 'static,
    ) -> Result<T, RecordError> {
        let inner = self.0.clone();
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.map_err(|error| RecordError::Unavailable { key: name.to_string(), cause: error.to_string() })
    }
}

impl Inner {
    fn lock(&self, key: &RecordKey) -> MutexGuard<'_, Group> {
        let group = self.hasher.hash_one(key) as usize % KEY_GROUPS;
        self.groups[group].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &RecordKey, suffix: &str) -> PathBuf {
        // No name ends in one of the suffixes, so appending one is unambiguous.
        self.root.join(format!("{key}{suffix}"))
    }

    fn get(&self, key: &RecordKey) -> Result<Option<Record>, RecordError> {
        let mut group = self.lock(key);
        if group.suspect.contains(key) {
            self.rewrite(key).map_err(|error| unavailable(key, &error))?;
            group.suspect.remove(key);
        }
        self.read(key)
    }

    fn put(&self, key: &RecordKey, bytes: &[u8], expect: &Expect) -> PutOutcome {
        let mut group = self.lock(key);
        let current = match self.read(key) {
            Ok(current) => current,
            Err(error) => return PutOutcome::Unknown(error),
        };
        let expected = match (&current, expect) {
            (None, Expect::Absent) => true,
            (Some(record), Expect::Version(version)) => record.version == *version,
            _ => false,
        };
        if !expected {
            return PutOutcome::Conflict;
        }
        let (file, version) = encode(bytes);
        // A damaged copy must not replace the intact previous one.
        let link_previous = current.is_some_and(|record| record.recovered.is_none());
        let prepared = self.prepare(key, &file).and_then(|()| {
            failpoint!("the new copy of the record is durable");
            if link_previous { self.link_previous(key) } else { Ok(()) }
        });
        if let Err(error) = prepared {
            return PutOutcome::Unknown(unavailable(key, &error));
        }
        failpoint!("the previous record has its name");
        match self.commit(key) {
            Ok(()) => {
                group.suspect.remove(key);
                PutOutcome::Done(version)
            }
            Err(error) => {
                group.suspect.insert(key.clone());
                PutOutcome::Unknown(unavailable(key, &error))
            }
        }
    }

    fn read(&self, key: &RecordKey) -> Result<Option<Record>, RecordError> {
        let damaged = |cause: String| RecordError::Damaged { key: key.clone(), cause };
        let read = |suffix| match fs::read(self.path(key, suffix)) {
            Ok(file) => Ok(Some(decode(&file.into()))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unavailable(key, &error)),
        };
        let why = match read(CURRENT)? {
            Some(Ok((bytes, version))) => return Ok(Some(Record { bytes, version, recovered: None })),
            Some(Err(why)) => why,
            None => "its file is gone",
        };
        match read(PREVIOUS)? {
            Some(Ok((bytes, version))) => {
                let recovered = Some(format!("record {key} is damaged: {why}"));
                Ok(Some(Record { bytes, version, recovered }))
            }
            Some(Err(previous)) => Err(damaged(format!("{why}; of its previous copy, {previous}"))),
            None if why == "its file is gone" => Ok(None),
            None => Err(damaged(format!("{why}; there is no previous copy"))),
        }
    }

    /// Writes the new copy to its own file. It becomes visible with [`Inner::commit`].
    fn prepare(&self, key: &RecordKey, file: &[u8]) -> io::Result<()> {
        let new = self.path(key, NEW);
        remove(&new)?;
        let mut written = File::create_new(&new)?;
        written.write_all(file)?;
        written.sync_all()
    }

    /// Links the current copy as the previous one.
    fn link_previous(&self, key: &RecordKey) -> io::Result<()> {
        let link = self.path(key, LINK);
        remove(&link)?;
        fs::hard_link(self.path(key, CURRENT), &link)?;
        fs::rename(&link, self.path(key, PREVIOUS))?;
        // A rename between two names of the same file does nothing, and a failed attempt may have left both.
        remove(&link)
    }

    /// Makes the new copy current. After an error either copy may be current.
    fn commit(&self, key: &RecordKey) -> io::Result<()> {
        fs::rename(self.path(key, NEW), self.path(key, CURRENT))?;
        failpoint!("the record is renamed");
        (self.sync_folder)(&self.root.join(key.kind()))
    }

    /// Writes the current copy to a new file: after a failed fsync, another fsync of the old file proves nothing.
    fn rewrite(&self, key: &RecordKey) -> io::Result<()> {
        match fs::read(self.path(key, CURRENT)) {
            Ok(file) => {
                self.prepare(key, &file)?;
                self.commit(key)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn delete(&self, key: &RecordKey, version: &Version) -> Result<(), RecordError> {
        let _group = self.lock(key);
        if self.read(key)?.is_none_or(|record| record.version != *version) {
            return Ok(());
        }
        let removed = [PREVIOUS, CURRENT].iter().try_for_each(|suffix| remove(&self.path(key, suffix)));
        let removed = removed.and_then(|()| (self.sync_folder)(&self.root.join(key.kind())));
        removed.map_err(|error| unavailable(key, &error))
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<RecordKey>> {
        let mut keys = BTreeSet::new();
        for kind in KINDS {
            for entry in fs::read_dir(self.root.join(kind))? {
                let file_name = entry?.file_name();
                let name = file_name.to_str().unwrap_or_default();
                // A record that has only its previous copy still exists.
                let name = name.strip_suffix(CURRENT).or_else(|| name.strip_suffix(PREVIOUS));
                let key = name.and_then(|name| format!("{kind}/{name}").parse::<RecordKey>().ok());
                keys.extend(key.filter(|key| key.as_str().starts_with(prefix)));
            }
        }
        Ok(keys.into_iter().collect())
    }
}

fn unavailable(key: &impl ToString, error: &io::Error) -> RecordError {
    RecordError::Unavailable { key: key.to_string(), cause: error.to_string() }
}

/// Removes a file, if it exists. The leftover of a killed write may be a link to the current copy, which stays.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
