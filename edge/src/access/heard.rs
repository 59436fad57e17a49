//! What each origin said last of keys and denials, kept over a restart: an edge that starts while an origin is away
//! neither forgets what it denied nor locks out whom its keys let in.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prometheus::IntGauge;
use serde_json::value::RawValue;
use tempfile::NamedTempFile;
use tokio::sync::watch;
use weir_protocol::access_list::AccessList;
use weir_runtime::directory_lock::DirectoryLock;
use weir_runtime::shutdown::Drain;

/// How long after a failure it is tried again to write the file.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The last list of each origin, by the origin's name.
pub(crate) type Heard = BTreeMap<String, AccessList>;

/// The file in the cache's directory.
#[derive(Debug, Clone)]
pub(crate) struct HeardFile {
    path: PathBuf,
    /// Held for as long as somebody may write.
    _lock: Option<DirectoryLock>,
}

impl HeardFile {
    /// The file in a directory whose lock is held.
    pub(crate) fn new(dir: &Path, lock: DirectoryLock) -> Self {
        Self { path: dir.join("access.json"), _lock: Some(lock) }
    }

    #[cfg(test)]
    pub(super) fn at(dir: &Path) -> Self {
        Self { path: dir.join("access.json"), _lock: None }
    }

    /// Reads it; nothing was heard when it is not there. Blocks.
    ///
    /// # Errors
    /// It is damaged, which is said rather than passed over: it may be the only one that knows of a denial.
    pub(crate) fn read(&self) -> anyhow::Result<Heard> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Heard::new()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.path.display())),
        };
        let parse = || {
            let lists: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&text)?;
            let parsed =
                lists.into_iter().map(|(origin, list)| Ok((origin, AccessList::parse(list.get().as_bytes())?)));
            parsed.collect::<anyhow::Result<Heard>>()
        };
        parse().with_context(|| {
            format!(
                "{} (what origins said of keys and denials) is damaged; move it away to begin without: until each origin \
                 has been heard again, what it denied is not denied here",
                self.path.display()
            )
        })
    }

    /// Puts new contents in the place of the old ones: whoever reads finds the ones or the others. Blocks.
    fn write(&self, heard: &Heard) -> io::Result<()> {
        let lists: BTreeMap<&str, Box<RawValue>> =
            heard.iter().map(|(name, list)| (name.as_str(), list.json())).collect();
        let dir = self.path.parent().unwrap_or(Path::new("."));
        let mut file = NamedTempFile::new_in(dir)?;
        file.write_all(&serde_json::to_vec(&lists)?)?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        File::open(dir)?.sync_all()
    }
}

/// Writes what was heard whenever that changes, until the drain; a last change is written then too. `unsaved` is 1 while
/// it cannot be written.
pub(super) async fn save(file: HeardFile, mut heard: watch::Receiver<Arc<Heard>>, unsaved: IntGauge, drain: Drain) {
    loop {
        tokio::select! {
            changed = heard.changed() => if changed.is_err() { return },
            () = drain.begun() => if !heard.has_changed().unwrap_or(false) { return },
        }
        let (contents, file) = (heard.borrow_and_update().clone(), file.clone());
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
                "what origins said of keys and denials cannot be written: a restart would forget it"
            );
            if drain.has_begun() {
                return;
            }
            heard.mark_changed();
            tokio::select! { () = tokio::time::sleep(RETRY_PAUSE) => {}, () = drain.begun() => {} }
        }
    }
}
