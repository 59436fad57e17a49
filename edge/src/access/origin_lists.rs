//! The last access list of each origin, persisted: an edge that starts while an origin is down keeps its denials and
//! its keys.

use std::collections::{BTreeMap, BTreeSet};
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

/// The back-off after a failed write.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The last access list of each origin, by the origin's name.
#[derive(Debug, Clone, Default)]
pub(crate) struct OriginLists {
    lists: BTreeMap<String, AccessList>,
    /// Those of `lists` that are no longer known, or have left their cluster.
    departed: BTreeSet<String>,
}

impl OriginLists {
    pub(super) fn get(&self, origin: &str) -> Option<&AccessList> {
        self.lists.get(origin)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &AccessList> + Clone {
        self.lists.values()
    }

    /// Returns whether anything has changed.
    pub(super) fn insert(&mut self, origin: &str, list: AccessList) -> bool {
        let has_come_back = self.departed.remove(origin);
        let before = self.lists.insert(origin.to_owned(), list);
        has_come_back || before.as_ref() != self.lists.get(origin)
    }

    /// An origin has gone: its keys are not used any longer. Its denials stay, because nobody else may have them.
    pub(super) fn depart(&mut self, origin: &str) {
        if let Some(list) = self.lists.get_mut(origin) {
            *list = list.denials();
            self.departed.insert(origin.to_owned());
        }
    }

    /// Keeps the lists of these origins, and those of at most so many in all.
    pub(super) fn retain_known(&mut self, known: &[&str], most: usize) {
        let unknown: Vec<_> = self.lists.keys().filter(|origin| !known.contains(&origin.as_str())).cloned().collect();
        for origin in unknown {
            if self.lists.len() > most {
                self.lists.remove(&origin);
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
        let joined = AccessList::join(lists.all(), lists.fleet().0)?;
        Ok((lists.all().next().is_some()).then_some(joined))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct OriginListsFile {
    path: PathBuf,
    /// Held while the file may be written.
    _lock: Option<DirectoryLock>,
}

impl OriginListsFile {
    pub(crate) fn new(dir: &Path, lock: DirectoryLock) -> Self {
        Self { path: dir.join("access.json"), _lock: Some(lock) }
    }

    /// The file beside it with the owners of issuers' keys.
    pub(super) fn key_owners(&self) -> PathBuf {
        self.path.with_file_name("issuer-keys.json")
    }

    #[cfg(test)]
    pub(super) fn at(dir: &Path) -> Self {
        Self { path: dir.join("access.json"), _lock: None }
    }

    /// Reads the file; no lists when it does not exist. Blocks.
    ///
    /// # Errors
    /// The file is damaged. It is not skipped, because it may hold the only record of a denial.
    pub(crate) fn read(&self) -> anyhow::Result<OriginLists> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(OriginLists::default()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.path.display())),
        };
        let parse = || {
            let lists: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&text)?;
            let parsed =
                lists.into_iter().map(|(origin, list)| Ok((origin, AccessList::parse(list.get().as_bytes())?)));
            parsed.collect::<anyhow::Result<_>>()
        };
        let lists = parse().with_context(|| {
            format!(
                "{} (the access lists of the origins) is damaged; move it away to start without it: revoked tokens are \
                 accepted until each origin has sent its list",
                self.path.display()
            )
        })?;
        Ok(OriginLists { lists, departed: BTreeSet::new() })
    }

    /// Replaces the file atomically and durably. Blocks.
    fn write(&self, origin_lists: &OriginLists) -> io::Result<()> {
        let lists: BTreeMap<&str, Box<RawValue>> =
            origin_lists.lists.iter().map(|(name, list)| (name.as_str(), list.json())).collect();
        durable_file::replace(&self.path, &serde_json::to_vec(&lists)?)
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
