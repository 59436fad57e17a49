//! Notices that refs of a repository on this machine have moved, by inotify.
//!
//! Git replaces files: `HEAD` in the folder of the checkout; `packed-refs`, what is below `refs`, and with reftables what is in
//! `reftable`, in the folder that all checkouts of the repository share. Folders are watched, because a watched file is gone
//! when it was replaced. Files on a network that another machine changes are not noticed.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout};

/// The most folders that are watched of a repository.
const MAX_FOLDERS: usize = 1_000;

/// A push, a commit or a rebase has ended when nothing has changed for this long.
const QUIET: Duration = Duration::from_millis(100);

/// A change is reported after this, also while others follow.
const LONGEST_BURST: Duration = Duration::from_secs(1);

/// The bytes of events that are read at a time.
const BUFFER: usize = 4 << 10;

/// What changes below these folders is a ref.
const REF_FOLDERS: [&str; 2] = ["refs", "reftable"];

/// A watch of the refs of one repository.
pub struct RefWatch {
    events: AsyncFd<OwnedFd>,
    /// The folders of the repository itself, with what they were when the watch began.
    tops: Vec<Top>,
}

struct Top {
    watch: i32,
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

/// What has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefChange {
    /// Refs may have moved.
    Refs,
    /// The same, and there are folders that this watch does not have: another one is needed.
    Folders,
}

/// Why refs are not watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// There is no repository.
    #[error("there is no repository at {}", .0.display())]
    NoRepository(PathBuf),
    /// It has too many folders.
    #[error("its refs are in more than {MAX_FOLDERS} folders")]
    TooManyFolders,
    /// The system has no watch left.
    #[error("all watches of this user are in use (sysctl fs.inotify.max_user_watches and max_user_instances)")]
    NoneLeft,
    /// The repository is another one now, or events were lost.
    #[error("its folder was replaced or unmounted, or too much changed at once")]
    Lost,
    /// The system refused it.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for WatchError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOSPC | Errno::MFILE => Self::NoneLeft,
            error => Self::Io(error.into()),
        }
    }
}

impl RefWatch {
    /// Watches the repository that the git program finds at this path. Blocks; within a runtime.
    ///
    /// # Errors
    /// There is no repository, or it cannot be watched.
    pub fn open(path: &Path) -> Result<Self, WatchError> {
        let descriptor = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut watched = HashSet::new();
        let mut tops = Vec::new();
        for top in folders_of(path)? {
            let watch = add(&descriptor, &top, &mut watched)?;
            let watch = watch.ok_or_else(|| WatchError::NoRepository(path.to_owned()))?;
            REF_FOLDERS.iter().try_for_each(|folder| add_all(&descriptor, top.join(folder), &mut watched))?;
            let identity = identity(&top)?;
            tops.push(Top { watch, path: top, identity });
        }
        #[expect(
            deprecated,
            reason = "what it says of other types is not true of an `OwnedFd`: it is open until it is dropped"
        )]
        let events = AsyncFd::new(descriptor)?;
        Ok(Self { events, tops })
    }

    /// Waits until refs may have moved.
    ///
    /// # Errors
    /// The watch is lost.
    pub async fn changed(&self) -> Result<RefChange, WatchError> {
        loop {
            if let Some(first) = self.read().await? {
                let (end, mut change) = (Instant::now() + LONGEST_BURST, first);
                while Instant::now() < end
                    && let Ok(more) = timeout(QUIET, self.read()).await
                {
                    change = if more? == Some(RefChange::Folders) { RefChange::Folders } else { change };
                }
                return Ok(change);
            }
        }
    }

    /// Whether the repository is still where it was when the watch began. Blocks.
    pub fn is_current(&self) -> bool {
        self.tops.iter().all(|top| identity(&top.path).is_ok_and(|now| now == top.identity))
    }

    /// Waits for events; `None`: none of them is about refs.
    async fn read(&self) -> Result<Option<RefChange>, WatchError> {
        let mut ready = self.events.readable().await?;
        let change = self.drain()?;
        ready.clear_ready();
        Ok(change)
    }

    /// Reads all events that there are.
    fn drain(&self) -> Result<Option<RefChange>, WatchError> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut events = Reader::new(self.events.get_ref(), &mut buffer);
        let mut change = None;
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(change),
                Err(error) => return Err(error.into()),
            };
            let is_top = self.tops.iter().any(|top| top.watch == event.wd());
            match meaning(is_top, event.events(), event.file_name().map_or(&[], |name| name.to_bytes()))? {
                Some(RefChange::Refs) => change = change.or(Some(RefChange::Refs)),
                Some(RefChange::Folders) => change = Some(RefChange::Folders),
                None => {}
            }
        }
    }
}

/// Pure: what an event says. `is_top`: it is of a folder that also has much else than refs.
fn meaning(is_top: bool, events: ReadFlags, name: &[u8]) -> Result<Option<RefChange>, WatchError> {
    let ended = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF;
    if events.intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::UNMOUNT) || is_top && events.intersects(ended) {
        return Err(WatchError::Lost);
    }
    let is_ref_folder = REF_FOLDERS.iter().any(|folder| folder.as_bytes() == name);
    let is_about_refs =
        if is_top { is_ref_folder || name == b"HEAD" || name == b"packed-refs" } else { !name.ends_with(b".lock") };
    if !is_about_refs || name.is_empty() {
        return Ok(None);
    }
    let is_new = events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
    Ok(Some(if events.contains(ReadFlags::ISDIR) && is_new { RefChange::Folders } else { RefChange::Refs }))
}

/// The folder of the repository or checkout at a path, and the one with its refs if that is another one, without symlinks.
fn folders_of(path: &Path) -> Result<Vec<PathBuf>, WatchError> {
    let candidates = [path.join(".git"), path.to_owned()];
    let found = candidates.iter().find_map(|candidate| {
        let folder = named_in(candidate, "gitdir: ").unwrap_or_else(|| candidate.clone());
        folder.join("HEAD").symlink_metadata().is_ok().then_some(folder)
    });
    let folder = found.ok_or_else(|| WatchError::NoRepository(path.to_owned()))?.canonicalize()?;
    let shared = named_in(&folder.join("commondir"), "").map(|shared| shared.canonicalize()).transpose()?;
    let shared = shared.filter(|shared| *shared != folder);
    Ok([folder].into_iter().chain(shared).collect())
}

/// The path that a small file names, relative to the file's folder.
fn named_in(file: &Path, prefix: &str) -> Option<PathBuf> {
    let text = fs::metadata(file).ok().filter(|file| file.is_file() && file.len() < 8 << 10);
    let text = text.and_then(|_| fs::read_to_string(file).ok())?;
    Some(file.parent()?.join(text.strip_prefix(prefix)?.trim_end_matches(['\n', '\r'])))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Watches a folder; `None`: there is none.
fn add(descriptor: &OwnedFd, folder: &Path, watched: &mut HashSet<i32>) -> Result<Option<i32>, WatchError> {
    let flags = WatchFlags::CREATE
        | WatchFlags::MOVE
        | WatchFlags::DELETE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    match inotify::add_watch(descriptor, folder, flags) {
        Ok(watch) => {
            watched.insert(watch);
            if watched.len() > MAX_FOLDERS { Err(WatchError::TooManyFolders) } else { Ok(Some(watch)) }
        }
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Watches a folder and all below. Each is watched before it is listed, so a folder that appears meanwhile is noticed.
fn add_all(descriptor: &OwnedFd, folder: PathBuf, watched: &mut HashSet<i32>) -> Result<(), WatchError> {
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        if add(descriptor, &folder, watched)?.is_none() {
            continue;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let entry = entry?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    fn git(dir: &Path, arguments: &[&str]) {
        let mut command = Command::new("git");
        command.current_dir(dir).args(["-c", "user.name=a", "-c", "user.email=a@b.c"]).args(arguments);
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        let run = command.env("GIT_DEFAULT_REF_FORMAT", "files").output().unwrap();
        assert!(run.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
    }

    /// Git has reftables since 2.45.
    fn has_reftables() -> bool {
        let help = Command::new("git").args(["init", "-h"]).output().unwrap();
        String::from_utf8_lossy(&help.stdout).contains("--ref-format")
    }

    /// A checkout with one commit.
    fn checkout(dir: &Path, format: &str) -> PathBuf {
        let work = dir.join(format!("work-{format}"));
        fs::create_dir(&work).unwrap();
        let option = format!("--ref-format={format}");
        let option = (format != "files").then_some(&*option);
        git(&work, &["init", "--quiet", "--initial-branch=main"].into_iter().chain(option).collect::<Vec<_>>());
        git(&work, &["commit", "--quiet", "--allow-empty", "--message=one"]);
        work
    }

    /// What a watch that begins before a git command notices.
    async fn noticed(watched: &Path, dir: &Path, arguments: &[&str]) -> RefChange {
        let watch = RefWatch::open(watched).unwrap();
        git(dir, arguments);
        tokio::time::timeout(Duration::from_secs(60), watch.changed())
            .await
            .unwrap_or_else(|_| panic!("{} {arguments:?}", watched.display()))
            .unwrap()
    }

    #[tokio::test]
    async fn all_that_git_does_to_refs_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        for format in ["files", "reftable"] {
            if format == "reftable" && !has_reftables() {
                eprintln!("SKIPPED: reftables need Git 2.45");
                continue;
            }
            let work = checkout(dir.path(), format);
            let (linked, tree) = (work.with_extension("linked"), work.with_extension("tree"));
            fs::create_dir(&linked).unwrap();
            symlink(work.join(".git"), linked.join(".git")).unwrap();
            git(&work, &["worktree", "add", "--quiet", "-b", "other", tree.to_str().unwrap()]);
            let nested = if format == "files" { RefChange::Folders } else { RefChange::Refs };
            for (watched, arguments, expected) in [
                (&work, &["commit", "--quiet", "--allow-empty", "--message=two"][..], RefChange::Refs),
                (&work, &["update-ref", "refs/heads/a/b/c", "HEAD"], nested),
                (&work, &["update-ref", "refs/heads/a/b/d", "HEAD"], RefChange::Refs),
                (&work, &["pack-refs", "--all"], RefChange::Refs),
                // Its lock brings the folders back.
                (&work, &["branch", "-D", "a/b/c"], nested),
                (&work, &["checkout", "--quiet", "-b", "new"], RefChange::Refs),
                (&work.join(".git"), &["commit", "--quiet", "--allow-empty", "--message=three"], RefChange::Refs),
                (&linked, &["commit", "--quiet", "--allow-empty", "--message=four"], RefChange::Refs),
                (&tree, &["update-ref", "refs/heads/shared", "HEAD"], RefChange::Refs),
            ] {
                if format == "reftable" && arguments[0] == "pack-refs" {
                    continue; // All is in one table already.
                }
                assert_eq!(noticed(watched, &work, arguments).await, expected, "{format} {arguments:?}");
            }
            assert_eq!(noticed(&tree, &tree, &["checkout", "--quiet", "--detach"]).await, RefChange::Refs, "{format}");
        }
    }

    #[tokio::test]
    async fn a_replaced_repository_ends_the_watch() {
        let dir = tempfile::tempdir().unwrap();
        let work = checkout(dir.path(), "files");
        let watch = RefWatch::open(&work).unwrap();
        assert!(watch.is_current());
        // No event says that a folder above has moved.
        fs::rename(&work, dir.path().join("away")).unwrap();
        assert!(!watch.is_current());
        fs::rename(dir.path().join("away/.git"), dir.path().join("git")).unwrap();
        assert!(matches!(watch.changed().await, Err(WatchError::Lost)));
        assert!(matches!(RefWatch::open(&work), Err(WatchError::NoRepository(_))));
    }

    #[tokio::test]
    async fn many_folders_are_not_watched() {
        let dir = tempfile::tempdir().unwrap();
        let work = checkout(dir.path(), "files");
        // `.git`, `refs`, `heads`, `tags` and `changes`.
        let folder = |number: usize| work.join(format!(".git/refs/changes/{number}"));
        (0..MAX_FOLDERS - 5).for_each(|number| fs::create_dir_all(folder(number)).unwrap());
        RefWatch::open(&work).unwrap();
        fs::create_dir(folder(MAX_FOLDERS)).unwrap();
        assert!(matches!(RefWatch::open(&work), Err(WatchError::TooManyFolders)));
    }

    #[test]
    fn what_is_not_about_refs_says_nothing() {
        let refs = Some(RefChange::Refs);
        for (is_top, name, expected) in [
            (true, "index.lock", None),
            (true, "COMMIT_EDITMSG", None),
            (true, "HEAD.lock", None),
            (true, "HEAD", refs),
            (true, "packed-refs", refs),
            (false, "main.lock", None),
            (false, "main", refs),
        ] {
            assert_eq!(meaning(is_top, ReadFlags::MOVED_TO, name.as_bytes()).unwrap(), expected, "{name}");
        }
        assert_eq!(meaning(false, ReadFlags::IGNORED, b"").unwrap(), None, "an empty folder was removed");
        assert!(matches!(meaning(false, ReadFlags::QUEUE_OVERFLOW, b""), Err(WatchError::Lost)));
    }
}
