//! Notices that a configuration file was replaced (`watch_config`), as in a ConfigMap that is mounted as a folder.

use std::collections::BTreeSet;
use std::future::pending;
use std::path::PathBuf;

use tokio::task::spawn_blocking;

use super::file_watch::{CHECK_INTERVAL, Fingerprint, fingerprint, have_settled};

/// A file that is read again when it changes. A file may be seen half written: it has changed when two reads in a row agree.
pub struct ConfigWatch {
    file: Vec<PathBuf>,
    /// What was read last, to be applied.
    read: Fingerprint,
    /// The contents at the last look, if they are others.
    candidate: Option<Fingerprint>,
    is_on: bool,
}

impl ConfigWatch {
    /// To be made before the file is read for the first time, so that no change is missed. Blocks.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        let file = vec![file.into()];
        Self { read: fingerprint(&file), file, candidate: None, is_on: false }
    }

    /// Whether to look at the file: the key `watch_config` of the file itself.
    #[must_use]
    pub fn when(self, is_on: bool) -> Self {
        Self { is_on, ..self }
    }

    /// Waits until the file has changed since it was read. Dropping this loses nothing.
    ///
    /// # Panics
    /// The runtime ends.
    pub async fn changed(&mut self) {
        if !self.is_on {
            return pending().await;
        }
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let now = self.look().await;
            if self.settles(now) {
                return;
            }
        }
    }

    /// Notes that the file was read by somebody else, as after a signal.
    ///
    /// # Panics
    /// The runtime ends.
    pub async fn was_read(&mut self) {
        (self.read, self.candidate) = (self.look().await, None);
    }

    async fn look(&self) -> Fingerprint {
        let file = self.file.clone();
        spawn_blocking(move || fingerprint(&file)).await.expect("reading a file does not panic")
    }

    /// Whether these contents are to be read: others than before, and seen twice.
    fn settles(&mut self, now: Fingerprint) -> bool {
        let settles = have_settled(&mut self.candidate, self.read, now);
        if settles {
            (self.read, self.candidate) = (now, None);
        }
        settles
    }
}

/// A changed file without most of what it had, which nobody has confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the changed file defines {removed} of {before} {kind} no more, which is more than {MAX_REMOVED_PERCENT} %: it may be cut \
     off. If this is meant, send SIGHUP or restart the process. The first: {first}"
)]
pub struct TooManyRemoved {
    kind: &'static str,
    before: usize,
    removed: usize,
    first: String,
}

/// The share of a kind of definitions that a changed file may remove without a signal. A file that is cut off is often valid.
pub const MAX_REMOVED_PERCENT: usize = 10;

/// Compares the names of one kind, `repositories` for example, in the file that applies and in the changed one.
///
/// # Errors
/// More than [`MAX_REMOVED_PERCENT`] are gone.
pub fn check_removed<T: Ord + ToString>(
    kind: &'static str,
    before: &BTreeSet<T>,
    now: &BTreeSet<T>,
) -> Result<(), TooManyRemoved> {
    let mut removed = before.difference(now);
    let Some(first) = removed.next() else { return Ok(()) };
    let count = removed.count() + 1;
    if count * 100 <= before.len() * MAX_REMOVED_PERCENT {
        return Ok(());
    }
    Err(TooManyRemoved { kind, before: before.len(), removed: count, first: first.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_read_once_they_are_seen_twice() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("origin.toml");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write("one");
        let mut watch = ConfigWatch::new(&file).when(true);
        let look = |watch: &mut ConfigWatch| {
            let now = fingerprint(&watch.file);
            watch.settles(now)
        };
        assert!(!look(&mut watch) && !look(&mut watch), "nothing has changed");
        write("two");
        assert!(!look(&mut watch), "it may be half written");
        write("two, and more");
        assert!(!look(&mut watch));
        assert!(look(&mut watch));
        assert!(!look(&mut watch) && !look(&mut watch), "it is read once, whatever came of it");
        write("one");
        assert!(!look(&mut watch) && look(&mut watch), "it was put back");
    }

    #[tokio::test]
    async fn a_file_that_was_read_after_a_signal_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("origin.toml");
        std::fs::write(&file, "one").unwrap();
        let mut watch = ConfigWatch::new(&file).when(true);
        std::fs::write(&file, "two").unwrap();
        watch.was_read().await;
        let now = fingerprint(&watch.file);
        assert!(!watch.settles(now) && !watch.settles(now));
    }

    #[test]
    fn a_file_may_remove_a_tenth_and_add_anything() {
        let names = |range: std::ops::Range<u32>| range.collect::<BTreeSet<u32>>();
        let before = names(0..20);
        for now in [names(0..20), names(2..20), names(0..400), names(1..21)] {
            assert_eq!(check_removed("services", &before, &now), Ok(()));
        }
        let error = check_removed("services", &before, &names(3..500)).unwrap_err().to_string();
        assert!(error.contains("3 of 20 services") && error.ends_with("The first: 0"), "{error}");
        assert!(check_removed("services", &names(0..1), &names(1..9)).is_err());
        assert_eq!(check_removed("services", &names(0..0), &names(0..0)), Ok(()));
    }
}
