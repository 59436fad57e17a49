//! Notices that files were replaced: certificates, keys and authorities, which other programs rotate without a signal.
//!
//! Contents are compared, because file times can stand still and a mounted Secret is swapped by a symlink. A file may be seen
//! half written, and of a certificate and its key one may be new already: a change is applied when two reads in a row agree.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::spawn_blocking;

use super::shutdown::Drain;

/// How often the files are read. A change is applied after twice this time.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The contents of files at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(u64);

/// The fingerprint of files as they are now. A file that cannot be read counts as empty. Blocks.
pub fn fingerprint(files: &[PathBuf]) -> Fingerprint {
    let mut hasher = DefaultHasher::new();
    files.iter().for_each(|file| std::fs::read(file).ok().hash(&mut hasher));
    Fingerprint(hasher.finish())
}

/// Whether files have other contents than those in use, the same at two looks in a row. `candidate`: what the last look found, if
/// it was another.
pub(super) fn have_settled(candidate: &mut Option<Fingerprint>, in_use: Fingerprint, now: Fingerprint) -> bool {
    let found = (now != in_use).then_some(now);
    let before = std::mem::replace(candidate, found);
    found.is_some() && found == before
}

/// What uses files that may be replaced.
pub trait Reload: Send + Sync + 'static {
    /// The files, as they are named now.
    fn files(&self) -> Vec<PathBuf>;

    /// Reads all files again and replaces the old ones: all or none. Blocks.
    ///
    /// # Errors
    /// A file cannot be used. The old ones stay in use.
    fn apply(&self) -> anyhow::Result<()>;

    /// Logs and counts an outcome.
    fn report(&self, outcome: &anyhow::Result<()>);
}

/// Files that are in use. Reloads are serialised.
pub struct WatchedFiles<R> {
    user: R,
    /// The contents that were applied last.
    applied: Mutex<Fingerprint>,
}

impl<R: Reload> WatchedFiles<R> {
    /// `read`: the fingerprint from before the files were read.
    pub fn new(user: R, read: Fingerprint) -> Self {
        Self { user, applied: Mutex::new(read) }
    }

    /// What uses the files.
    pub fn user(&self) -> &R {
        &self.user
    }

    /// Reloads, as an operator wants it. Blocks.
    ///
    /// # Errors
    /// A file cannot be used. The old ones stay in use.
    pub fn reload(&self) -> anyhow::Result<()> {
        let outcome = self.apply(R::apply);
        self.user.report(&outcome);
        outcome
    }

    /// The same, with another way to apply, and without a report. Blocks.
    ///
    /// # Errors
    /// That of `apply`.
    pub fn apply(&self, apply: impl FnOnce(&R) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let read = fingerprint(&self.user.files());
        apply(&self.user)?;
        *applied = read;
        Ok(())
    }

    /// Reloads whenever the files change, until the drain. What cannot be used is tried again and reported once.
    pub fn follow(self: &Arc<Self>, drain: &Drain) {
        let (watched, draining) = (self.clone(), drain.clone());
        drain.spawn(async move {
            let mut follower = Follower { watched, candidate: None, reported: None };
            loop {
                tokio::select! { () = tokio::time::sleep(CHECK_INTERVAL) => {}, () = draining.begun() => return }
                let check = move || {
                    follower.check();
                    follower
                };
                follower = spawn_blocking(check).await.expect("a reload does not panic");
            }
        });
    }
}

struct Follower<R> {
    watched: Arc<WatchedFiles<R>>,
    /// The contents at the last read, if they differ from those in use.
    candidate: Option<Fingerprint>,
    /// The last reported error.
    reported: Option<String>,
}

impl<R: Reload> Follower<R> {
    /// One check. Blocks.
    fn check(&mut self) {
        let applied = *self.watched.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let now = fingerprint(&self.watched.user.files());
        // What was refused may be as it was before.
        let is_back = now == applied && self.reported.is_some();
        if have_settled(&mut self.candidate, applied, now) || is_back {
            let outcome = self.watched.apply(R::apply);
            let error = outcome.as_ref().err().map(|error| format!("{error:#}"));
            if error.is_none() || error != self.reported {
                self.watched.user.report(&outcome);
            }
            self.reported = error;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct User {
        file: PathBuf,
        /// The results of all reloads.
        applied: Mutex<Vec<String>>,
        reported: Mutex<Vec<bool>>,
    }

    impl Reload for User {
        fn files(&self) -> Vec<PathBuf> {
            vec![self.file.clone()]
        }

        fn apply(&self) -> anyhow::Result<()> {
            let text = std::fs::read_to_string(&self.file)?;
            anyhow::ensure!(text.starts_with("good"), "it is {text}");
            self.applied.lock().unwrap().push(text);
            Ok(())
        }

        fn report(&self, outcome: &anyhow::Result<()>) {
            self.reported.lock().unwrap().push(outcome.is_ok());
        }
    }

    #[test]
    fn settled_changes_are_applied_and_each_error_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        // As Kubernetes mounts a Secret: the file is a link through a link that is swapped.
        for (version, text) in [("v1", "good 1"), ("v2", "good 2")] {
            std::fs::create_dir(path(version)).unwrap();
            std::fs::write(path(version).join("key"), text).unwrap();
        }
        let swap = |version: &str| {
            std::os::unix::fs::symlink(version, path("new")).unwrap();
            std::fs::rename(path("new"), path("..data")).unwrap();
        };
        swap("v1");
        std::os::unix::fs::symlink("..data/key", path("key")).unwrap();
        let user = User { file: path("key"), ..User::default() };
        let begun = fingerprint(&user.files());
        let watched = Arc::new(WatchedFiles::new(user, begun));
        let mut follower = Follower { watched: watched.clone(), candidate: None, reported: None };
        let mut check = |times: usize| {
            (0..times).for_each(|_| follower.check());
            (watched.user.applied.lock().unwrap().clone(), watched.user.reported.lock().unwrap().clone())
        };
        assert_eq!(check(3), (vec![], vec![]));
        swap("v2");
        assert_eq!(check(1), (vec![], vec![]), "it may be half written");
        assert_eq!(check(3), (vec!["good 2".to_owned()], vec![true]));
        std::fs::write(path("v2/key"), "bad").unwrap();
        assert_eq!(check(4).1, [true, false], "tried again and reported once");
        std::fs::write(path("v2/key"), "worse").unwrap();
        assert_eq!(check(4).1, [true, false, false]);
        std::fs::write(path("v2/key"), "good 3").unwrap();
        assert_eq!(check(3).1, [true, false, false, true]);
        std::fs::write(path("v2/key"), "good 4").unwrap();
        watched.reload().unwrap();
        assert_eq!(check(3).0, ["good 2", "good 3", "good 4"], "an operator's reload is not repeated");
    }
}
