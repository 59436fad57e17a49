//! The engine of one origin: a file for each record, in the folder of its kind.
//!
//! A write goes to `<name>.new`, which becomes durable under that name first; then the current copy gets its second name
//! `<name>.previous`, `<name>.new` becomes `<name>.record`, and the folder becomes durable. A kill between any two steps
//! leaves the old record or the new one, whole. The lock of the data directory keeps other processes out; a mutex for
//! each group of keys serialises this one.

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
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::key::KINDS;
use super::record_file::{decode, encode};
use super::{Expect, PutOutcome, Record, RecordEngine, RecordError, RecordKey};
use crate::failpoint::failpoint;

/// The groups of keys: in each, one request at a time is in progress.
const KEY_GROUPS: usize = 64;

const CURRENT: &str = ".record";
const PREVIOUS: &str = ".previous";
const NEW: &str = ".new";
const LINK: &str = ".link";

/// Records in local files. Clones are the same.
#[derive(Clone)]
pub(crate) struct LocalEngine(Arc<Inner>);

struct Inner {
    root: PathBuf,
    hasher: RandomState,
    groups: [Mutex<Group>; KEY_GROUPS],
    sync_folder: Box<SyncFolder>,
}

/// Makes the names in a folder durable.
type SyncFolder = dyn Fn(&Path) -> io::Result<()> + Send + Sync;

/// What is known of a group of keys.
#[derive(Debug, Default)]
struct Group {
    /// Records that were renamed and are perhaps not durable: what a file system reads back after a failed fsync may
    /// be in its memory alone. They are written again before anybody sees them.
    suspect: HashSet<RecordKey>,
}

impl LocalEngine {
    /// Opens the folder, and creates it when it does not exist. What it holds is durable afterwards: a run that ended
    /// early may have left names in it that were not.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        Self::open_with(root, sync_folder)
    }

    /// The same with another fsync of folders.
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

impl RecordEngine for LocalEngine {
    fn get(&self, key: RecordKey) -> BoxFuture<'static, Result<Option<Record>, RecordError>> {
        let inner = self.0.clone();
        let name = key.to_string();
        blocking(name, move || inner.get(&key)).map(|result| result.and_then(|result| result)).boxed()
    }

    fn put(&self, key: RecordKey, bytes: Bytes, expect: Expect) -> BoxFuture<'static, PutOutcome> {
        let inner = self.0.clone();
        let name = key.to_string();
        blocking(name, move || inner.put(&key, &bytes, &expect))
            .map(|result| result.unwrap_or_else(PutOutcome::Unknown))
            .boxed()
    }

    fn list(&self, prefix: String) -> BoxFuture<'static, Result<Vec<RecordKey>, RecordError>> {
        let inner = self.0.clone();
        let list = {
            let prefix = prefix.clone();
            move || inner.list(&prefix).map_err(|error| unavailable(&prefix, &error))
        };
        blocking(prefix, list).map(|result| result.and_then(|result| result)).boxed()
    }
}

/// Runs it where it may wait for the disk. It runs to its end also when nobody waits for it any more.
async fn blocking<T: Send + 'static>(
    name: String,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RecordError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| RecordError::Unavailable { key: name, cause: error.to_string() })
}

impl Inner {
    fn lock(&self, key: &RecordKey) -> MutexGuard<'_, Group> {
        let group = self.hasher.hash_one(key) as usize % KEY_GROUPS;
        self.groups[group].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &RecordKey, suffix: &str) -> PathBuf {
        // Both parts of a key are names, and no name has a suffix of its own: this one is the last.
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
        // A damaged copy must not take the place of the good one before it.
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
            Some(Err(previous)) => Err(damaged(format!("{why}; of the previous one, {previous}"))),
            None if why == "its file is gone" => Ok(None),
            None => Err(damaged(format!("{why}; there is no previous one"))),
        }
    }

    /// Writes the new copy beside the current one. Nobody sees it before [`Inner::commit`].
    fn prepare(&self, key: &RecordKey, file: &[u8]) -> io::Result<()> {
        let new = self.path(key, NEW);
        remove_leftover(&new)?;
        let mut written = File::create_new(&new)?;
        written.write_all(file)?;
        written.sync_all()
    }

    /// Gives the current copy its second name.
    fn link_previous(&self, key: &RecordKey) -> io::Result<()> {
        let link = self.path(key, LINK);
        remove_leftover(&link)?;
        fs::hard_link(self.path(key, CURRENT), &link)?;
        fs::rename(&link, self.path(key, PREVIOUS))?;
        // A rename between two names of one file does nothing: an attempt that failed after this step left them so.
        remove_leftover(&link)
    }

    /// Makes the new copy the current one. An error says nothing about which of them is.
    fn commit(&self, key: &RecordKey) -> io::Result<()> {
        fs::rename(self.path(key, NEW), self.path(key, CURRENT))?;
        failpoint!("the record is renamed");
        (self.sync_folder)(&self.root.join(key.kind()))
    }

    /// Writes the current copy again, in a new file: an fsync of the old one proves nothing after one that failed.
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

    fn list(&self, prefix: &str) -> io::Result<Vec<RecordKey>> {
        let mut keys = BTreeSet::new();
        for kind in KINDS {
            for entry in fs::read_dir(self.root.join(kind))? {
                let file_name = entry?.file_name();
                let name = file_name.to_str().unwrap_or_default();
                // A record of which only the previous copy is left is one.
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

/// Removes what a write that was killed left behind. It may be a second name of the current copy: it is never written to.
fn remove_leftover(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
