//! The last access list of each origin, persisted: an edge that starts while an origin is down keeps its denials and
//! its keys.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use anyhow::Context;
use prometheus::IntGauge;
use serde_json::value::RawValue;
use tokio::sync::watch;
use weir_protocol::access_list::{AccessList, AccessListError, Fleet};
use weir_runtime::directory_lock::DirectoryLock;
use weir_runtime::durable_file;
use weir_runtime::shutdown::Drain;

/// The file of the lists, beside those of the shards.
const LISTS: &str = "lists.json";

/// The back-off after a failed write.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The last access list of each origin, by the origin's name.
#[derive(Debug, Clone, Default)]
pub(crate) struct OriginLists {
    lists: BTreeMap<String, AccessList>,
    /// The last lists that lack shards. Only their keys and denials apply.
    pub(super) incomplete: BTreeMap<String, AccessList>,
    /// Those of `lists` that are no longer known, or have left their cluster.
    departed: BTreeSet<String>,
    /// Agents, assignments and issuers of all of them.
    pub(super) joined: Arc<Fleet>,
}

impl OriginLists {
    pub(super) fn get(&self, origin: &str) -> Option<&AccessList> {
        self.lists.get(origin)
    }

    /// The origins whose lists apply.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.lists.keys()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &AccessList> + Clone {
        self.lists.values()
    }

    /// The same with the lists that lack shards.
    pub(super) fn all_sent(&self) -> impl Iterator<Item = &AccessList> + Clone {
        self.lists.values().chain(self.incomplete.values())
    }

    /// Returns whether anything has changed.
    pub(super) fn insert(&mut self, origin: &str, list: AccessList) -> bool {
        let has_come_back = self.departed.remove(origin);
        let before = self.lists.insert(origin.to_owned(), list);
        has_come_back || before.as_ref() != self.lists.get(origin)
    }

    /// An origin has gone: its keys are not used any longer. Its denials stay, because nobody else may have them.
    pub(super) fn depart(&mut self, origin: &str) {
        if let Some(mut first) = self.incomplete.remove(origin) {
            first.set_fleet(Fleet::default());
            self.lists.entry(origin.to_owned()).or_insert(first);
        }
        if let Some(list) = self.lists.get_mut(origin) {
            *list = list.denials();
            self.departed.insert(origin.to_owned());
        }
    }

    /// Keeps the lists of these origins, and those of at most so many in all.
    pub(super) fn retain_known(&mut self, known: &[&str], most: usize) {
        let sent = self.lists.keys().chain(self.incomplete.keys());
        let unknown: BTreeSet<_> = sent.filter(|origin| !known.contains(&origin.as_str())).cloned().collect();
        for origin in unknown {
            if self.lists.len() + self.incomplete.len() > most {
                self.lists.remove(&origin);
                self.incomplete.remove(&origin);
            }
            self.depart(&origin);
        }
    }

    /// What operators say of agents, and what two clusters define otherwise.
    pub(super) fn fleet(&self) -> (Fleet, Vec<String>) {
        let of = |is_departed: bool| {
            let lists = self.lists.iter().filter(move |(origin, _)| self.departed.contains(*origin) == is_departed);
            lists.map(|(_, list)| list.fleet())
        };
        Fleet::join(of(false), of(true))
    }
}

/// The lists as they change, for other edges.
pub(crate) struct FollowedLists(pub(super) watch::Receiver<Arc<OriginLists>>);

impl FollowedLists {
    /// Waits for a change.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// All lists in one. `None`: no origin has one.
    ///
    /// # Errors
    /// They exceed a bound together, or name different keys by one id.
    pub(crate) fn joined(&mut self) -> Result<Option<AccessList>, AccessListError> {
        let lists = self.0.borrow_and_update().clone();
        let joined = AccessList::join(lists.all_sent(), Fleet::clone(&lists.joined))?;
        Ok((lists.all().next().is_some()).then_some(joined))
    }
}

/// The folder `access`: `lists.json` has the lists, with the digests of shards. Each shard that a list names is a file, which is
/// written once for all lists and removed when none names it any longer.
#[derive(Debug, Clone)]
pub(crate) struct OriginListsFile {
    /// The folder above it.
    dir: PathBuf,
    /// Held while the file may be written.
    _lock: Option<DirectoryLock>,
}

impl OriginListsFile {
    pub(crate) fn new(dir: &Path, lock: DirectoryLock) -> Self {
        Self { dir: dir.to_owned(), _lock: Some(lock) }
    }

    /// The file beside it with the owners of issuers' keys.
    pub(super) fn key_owners(&self) -> PathBuf {
        self.dir.join("issuer-keys.json")
    }

    fn shards(&self) -> PathBuf {
        self.dir.join("access")
    }

    fn path(&self) -> PathBuf {
        self.shards().join(LISTS)
    }

    /// The file of the release before, which has whole lists.
    fn earlier_path(&self) -> PathBuf {
        self.dir.join("access.json")
    }

    #[cfg(test)]
    pub(crate) fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), _lock: None }
    }

    /// Reads the file; no lists when it does not exist. Blocks.
    ///
    /// # Errors
    /// The file is damaged. It is not skipped, because it may hold the only record of a denial.
    pub(crate) fn read(&self) -> anyhow::Result<OriginLists> {
        let written = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
        let (path, earlier) = (self.path(), self.earlier_path());
        // If both are there, an edge of the release before has written its own since, or this one could not remove it.
        let lists = self.read_from(if written(&earlier) > written(&path) { &earlier } else { &path })?;
        let (incomplete, lists) =
            lists.unwrap_or_default().into_iter().partition(|(_, list)| !list.lacking().is_empty());
        Ok(OriginLists { lists, incomplete, ..OriginLists::default() })
    }

    fn read_from(&self, path: &Path) -> anyhow::Result<Option<BTreeMap<String, AccessList>>> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let parse = || {
            let lists: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&text)?;
            let parsed = lists.into_iter().map(|(origin, list)| Ok((origin, self.with_shards(list.get().as_bytes())?)));
            parsed.collect::<anyhow::Result<_>>()
        };
        let lists = parse().with_context(|| {
            format!(
                "{} (the access lists of the origins) is damaged; move it away to start without it: revoked tokens are \
                 accepted until each origin has sent its list",
                path.display()
            )
        })?;
        Ok(Some(lists))
    }

    /// Parses a list, and reads the shards that it names. It lacks those that cannot be used, until its origin has sent them.
    fn with_shards(&self, json: &[u8]) -> anyhow::Result<AccessList> {
        let mut list = AccessList::parse(json)?;
        for digest in list.lacking() {
            let path = self.shards().join(digest.to_string());
            let read = fs::read(&path).map_err(anyhow::Error::from);
            if let Err(error) = read.and_then(|json| Ok(list.add_shard(&digest, &json)?)) {
                let file = path.display();
                tracing::error!(%file, error = format!("{error:#}"), "a shard cannot be used; it is fetched again");
                // Else it counts as written.
                let _ = fs::remove_file(&path);
            }
        }
        Ok(list)
    }

    /// Writes the shards that are not there yet, and then replaces the file atomically and durably. Blocks.
    fn write(&self, origin_lists: &OriginLists) -> io::Result<()> {
        fs::create_dir_all(self.shards())?;
        durable_file::sync_folder(&self.dir)?;
        let files = fs::read_dir(self.shards())?.collect::<io::Result<Vec<_>>>()?;
        let mut unused: HashSet<_> = files.into_iter().map(|file| file.file_name()).collect();
        let (mut lists, mut written) = (BTreeMap::<&str, Box<RawValue>>::new(), HashSet::new());
        let first = origin_lists.incomplete.iter().filter(|(name, _)| !origin_lists.lists.contains_key(*name));
        for (name, list) in origin_lists.lists.iter().chain(first) {
            let json = list.sharded_json();
            for digest in AccessList::parse(json.get().as_bytes()).map_err(io::Error::other)?.lacking() {
                let file = OsString::from(digest.to_string());
                let Some(shard) = list.fleet().shard_json(&digest) else { continue };
                if written.insert(file.clone()) && !unused.remove(&file) {
                    durable_file::replace(&self.shards().join(file), &shard)?;
                }
            }
            lists.insert(name, json);
        }
        durable_file::replace(&self.path(), &serde_json::to_vec(&lists)?)?;
        match fs::remove_file(self.earlier_path()) {
            Ok(()) => durable_file::sync_folder(&self.dir)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        unused.remove(OsStr::new(LISTS));
        // What stays is removed after the next change.
        unused.iter().for_each(|file| drop(fs::remove_file(self.shards().join(file))));
        Ok(())
    }
}

/// Writes the lists after each change, until the drain; a last change is written too. `unsaved` is 1 while writing
/// fails.
pub(super) async fn save(
    file: OriginListsFile,
    mut origin_lists: watch::Receiver<Arc<OriginLists>>,
    unsaved: IntGauge,
    drain: Drain,
) {
    loop {
        tokio::select! {
            changed = origin_lists.changed() => if changed.is_err() { return },
            () = drain.begun() => if !origin_lists.has_changed().unwrap_or(false) { return },
        }
        let (contents, file) = (origin_lists.borrow_and_update().clone(), file.clone());
        let written = tokio::task::spawn_blocking(move || file.write(&contents)).await;
        let failure = match written {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        unsaved.set(failure.is_some().into());
        if let Some(error) = failure {
            tracing::error!(
                error,
                "the access lists of the origins cannot be written; a restart would lose the changes"
            );
            if drain.has_begun() {
                return;
            }
            origin_lists.mark_changed();
            tokio::select! { () = tokio::time::sleep(RETRY_PAUSE) => {}, () = drain.begun() => {} }
        }
    }
}
