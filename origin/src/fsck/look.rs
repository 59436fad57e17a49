//! What a data directory holds, read in full and left as it is.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, anyhow};
use weir_shared::digest::BlobDigest;

use super::Progress;
use crate::blob_store::{BlobStore, Bytes, Examined, Listed};
use crate::catalog::{self, Documents};
use crate::config::Config;
use crate::data_dir::DataDir;
use crate::database::DatabaseFile;
use crate::publication::{Inspected, State};

/// The database of publications.
pub(super) const STATE: &str = "state.redb";
/// The database of what operators defined.
pub(super) const CATALOG: &str = "catalog.redb";

/// All that was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Databases that are not sound, by their names.
    pub(super) unsound: Vec<(&'static str, Unsound)>,
    /// What operators defined.
    pub(super) api: Documents,
    /// How many documents those are.
    pub(super) definitions: u64,
    /// Documents that are refused: which, and why.
    pub(super) refused_definitions: Vec<(String, String)>,
    pub(super) state: Inspected,
    /// The names in the store.
    pub(super) listed: Listed,
    /// What the blobs are like.
    pub(super) blobs: BTreeMap<BlobDigest, Examined>,
}

/// What is wrong with a database as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unsound {
    /// No row is lost.
    Repairable,
    /// It cannot be read: why.
    Damaged(String),
}

/// Looks at everything.
pub(super) fn look(
    config: &Config,
    data_dir: &DataDir,
    threads: usize,
    progress: &(dyn Fn(Progress) + Sync),
) -> anyhow::Result<Seen> {
    let mut seen = databases(config, data_dir)?;
    let store = BlobStore::untouched(&data_dir.blobs());
    seen.listed = store.list().context("the blobs cannot be listed")?;
    seen.blobs = examine(&store, &seen.listed.blobs, threads, progress)?;
    Ok(seen)
}

/// Looks at everything again; blobs that were whole the last time are not read once more.
pub(super) fn look_again(config: &Config, data_dir: &DataDir, before: &Seen, threads: usize) -> anyhow::Result<Seen> {
    let mut seen = databases(config, data_dir)?;
    let store = BlobStore::untouched(&data_dir.blobs());
    seen.listed = store.list().context("the blobs cannot be listed")?;
    let was_whole = |digest: &BlobDigest, size: u64| {
        let known = before.blobs.get(digest).filter(|blob| blob.size == size && blob.bytes == Bytes::Sound);
        known.filter(|blob| !blob.has_wrong_pieces && !blob.has_wrong_fragments).cloned()
    };
    let mut to_read = Vec::new();
    for (digest, size) in &seen.listed.blobs {
        match was_whole(digest, *size) {
            Some(blob) => drop(seen.blobs.insert(*digest, blob)),
            None => to_read.push((*digest, *size)),
        }
    }
    seen.blobs.extend(examine(&store, &to_read, threads, &|_| ())?);
    Ok(seen)
}

fn databases(config: &Config, data_dir: &DataDir) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    if catalog::is_lost(data_dir.root()) {
        seen.unsound.push((CATALOG, Unsound::Damaged("it is not there, although state.redb is".to_owned())));
    }
    let catalog = database(&data_dir.catalog(), |file| Ok(catalog::inspect(&file)?)).context(CATALOG)?;
    if let Some(api) = seen.taken(CATALOG, catalog) {
        seen.refused_definitions = api.refused();
        seen.definitions = (api.repositories.len() + api.services.len() + api.nameless.len()) as u64;
        seen.api = api;
    }
    let read = |file| Ok(State::of(file, config.retention.clone())?.inspect()?);
    let state = database(&data_dir.state(), read).context(STATE)?;
    seen.state = seen.taken(STATE, state).unwrap_or_default();
    Ok(seen)
}

impl Seen {
    fn taken<T>(&mut self, name: &'static str, (what, unsound): (Option<T>, Option<Unsound>)) -> Option<T> {
        self.unsound.extend(unsound.map(|unsound| (name, unsound)));
        what
    }
}

/// What is `read` of a database, if it is there and can be read; and what is wrong with it.
fn database<T>(
    path: &Path,
    read: impl FnOnce(DatabaseFile) -> anyhow::Result<T>,
) -> anyhow::Result<(Option<T>, Option<Unsound>)> {
    if !path.try_exists()? {
        return Ok((None, None));
    }
    let (file, is_sound) = match DatabaseFile::look(path) {
        Err(error) if error.is_damage() => return Ok((None, Some(Unsound::Damaged(error.to_string())))),
        looked_at => looked_at?,
    };
    // redb asserts what it expects of its own file, also while it is read.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(file))) {
        Ok(what) => Ok((Some(what?), (!is_sound).then_some(Unsound::Repairable))),
        Err(_) => Ok((None, Some(Unsound::Damaged("it contradicts itself".to_owned())))),
    }
}

/// Every byte of some blobs, by a few threads.
fn examine(
    store: &BlobStore,
    blobs: &[(BlobDigest, u64)],
    threads: usize,
    progress: &(dyn Fn(Progress) + Sync),
) -> anyhow::Result<BTreeMap<BlobDigest, Examined>> {
    let all = blobs.iter().map(|(_, size)| size).sum();
    let (next, read, examined) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some((digest, size)) = blobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            // One that cannot be opened holds up no other.
            let blob = store.examine(digest).unwrap_or_else(|error| Some(Examined::unreadable(*size, &error)));
            if let Some(blob) = blob {
                examined.lock().unwrap_or_else(PoisonError::into_inner).insert(*digest, blob);
            }
            let read = read.fetch_add(*size, Ordering::Relaxed) + size;
            progress(Progress { read, all });
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| anyhow!("a fault in the program")))
    })
    .context("the blobs cannot be read")?;
    Ok(examined.into_inner().unwrap_or_else(PoisonError::into_inner))
}
