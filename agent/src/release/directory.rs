//! The folder of one service: its link, its releases, its state. Everything here blocks.
//!
//! The order of the steps of a switch makes a crash between any two harmless: the release is complete on disk before
//! it has its name; the state says that `exec` is pending before the link points at the release; the link is replaced
//! in one step. At the next start the link is the truth and the state is made to fit it.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, BufReader, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use weir_shared::digest::TarballDigest;
use weir_shared::name::ServiceName;

use super::beneath::Beneath;
use super::compare::{Difference, compare};
use super::lock::RootLock;
use super::name::ReleaseName;
use super::state::{HookMark, Record, State, StateError};
use super::tar_reader::TarError;
use super::unpack::{Limits, unpack};

const CURRENT: &str = "current";
const CURRENT_NEW: &str = ".current.new";
const STATE: &str = "state";
const STATE_NEW: &str = ".state.new";
const RELEASES: &str = "releases";
const INCOMING: &str = "incoming";

/// Why a release could not be put on disk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReleaseError {
    /// Something that is not ours stands where the link should.
    #[error("{} is not a symlink that this agent made ({found}); move it away", path.display())]
    InTheWay { path: PathBuf, found: String },
    /// The disk.
    #[error("cannot {doing} {}: {source}", path.display())]
    Disk { doing: &'static str, path: PathBuf, source: io::Error },
    /// The tarball.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// The state file of another version.
    #[error("{}: {source}", path.display())]
    State { path: PathBuf, source: StateError },
}

fn disk(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReleaseError {
    let path = path.to_owned();
    move |source| ReleaseError::Disk { doing, path, source }
}

/// An `exec` that has to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HookJob {
    pub(crate) release: Record,
    pub(crate) previous: Option<TarballDigest>,
    /// Runs for this release that failed.
    pub(crate) attempts: u32,
}

/// The folder of one service.
pub(crate) struct ServiceDirectory {
    path: PathBuf,
    keep_releases: usize,
    limits: Limits,
    inner: Mutex<Inner>,
    /// As long as somebody may write here, the root is locked.
    _lock: Arc<RootLock>,
}

struct Inner {
    state: State,
    /// Where `exec` runs at this moment; not to be pruned.
    in_use: Option<ReleaseName>,
}

impl ServiceDirectory {
    /// Opens the folder, makes it where it is missing, removes what a killed agent left, and makes the state fit the
    /// link.
    pub(crate) fn open(
        root: &Path,
        service: &ServiceName,
        keep_releases: usize,
        limits: Limits,
        lock: Arc<RootLock>,
    ) -> Result<Self, ReleaseError> {
        let path = root.join(service.as_str());
        make_directory(&path, 0o755)?;
        make_directory(&path.join(RELEASES), 0o755)?;
        make_directory(&path.join(INCOMING), 0o700)?;
        remove_leftovers(&path)?;
        let link = read_link(&path)?;
        let state = read_state(&path)?;
        let repaired = state.repaired(link);
        let this = Self { path, keep_releases, limits, inner: Mutex::new(Inner { state, in_use: None }), _lock: lock };
        if let Some(repaired) = repaired {
            tracing::info!(%service, release = ?link, "the state is made to fit `current`");
            this.change(|state| *state = repaired)?;
        }
        this.prune(&this.inner());
        Ok(this)
    }

    /// What is remembered now.
    pub(crate) fn state(&self) -> State {
        self.inner().state.clone()
    }

    /// Where tarballs come in.
    pub(crate) fn incoming(&self) -> PathBuf {
        self.path.join(INCOMING)
    }

    /// The folder of a release.
    pub(crate) fn release_path(&self, name: ReleaseName) -> PathBuf {
        self.path.join(RELEASES).join(name.to_string())
    }

    /// Compares the current release with the verified tarball that it was unpacked from.
    pub(crate) fn compare(&self, tarball: &File, release: ReleaseName) -> Result<Option<Difference>, ReleaseError> {
        Ok(compare(rewound(tarball)?, &self.release_path(release))?)
    }

    /// Makes the verified tarball a release: one that is there and equal to it, or a new one under the first free name
    /// of its digest.
    pub(crate) fn place(&self, tarball: &File, digest: TarballDigest) -> Result<ReleaseName, ReleaseError> {
        for number in 0.. {
            let name = ReleaseName::new(digest, number);
            let path = self.release_path(name);
            match fs::symlink_metadata(&path) {
                Ok(_) if compare(rewound(tarball)?, &path)?.is_none() => return Ok(name),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return self.unpack(tarball, name),
                Err(error) => return Err(disk("look at", &path)(error)),
            }
        }
        unreachable!("there are fewer releases than numbers")
    }

    fn unpack(&self, tarball: &File, name: ReleaseName) -> Result<ReleaseName, ReleaseError> {
        let releases = self.path.join(RELEASES);
        let partial = releases.join(format!(".{name}.partial"));
        remove_tree(&partial)?;
        make_directory(&partial, 0o755)?;
        if let Err(error) = unpack(rewound(tarball)?, &partial, self.limits) {
            if let Err(error) = remove_tree(&partial) {
                tracing::warn!(%error, "a half release cannot be removed");
            }
            return Err(error.into());
        }
        let path = self.release_path(name);
        fs::rename(&partial, &path).map_err(disk("rename", &partial))?;
        sync_directory(&releases)?;
        Ok(name)
    }

    /// Makes `current` point at a release that was placed. Returns what holds then.
    pub(crate) fn switch(&self, record: Record) -> Result<State, ReleaseError> {
        let mut inner = self.inner();
        let mut next = inner.state.switched_to(record.clone());
        next.succeeded(SystemTime::now());
        self.write_state(&next)?;
        if let Err(error) = self.write_link(record.directory) {
            // The link stayed as it was, and so does what is remembered.
            self.write_state(&inner.state)?;
            return Err(error);
        }
        inner.state = next;
        self.prune(&inner);
        Ok(inner.state.clone())
    }

    /// An edge confirmed the release. Written only when that says something new.
    pub(crate) fn confirm(&self, generation: u64, record: Option<Record>) -> Result<(), ReleaseError> {
        let known = self.state();
        if generation <= known.highest_generation && (record.is_none() || record == known.release) {
            return Ok(());
        }
        self.change(|state| {
            state.highest_generation = state.highest_generation.max(generation);
            if record.is_some() {
                state.release = record;
            }
            state.succeeded(SystemTime::now());
        })
    }

    /// The `exec` that has to run now, if any.
    pub(crate) fn hook_job(&self) -> Option<HookJob> {
        let state = &self.inner().state;
        let release = state.release.clone().filter(|_| state.hook == HookMark::Pending)?;
        Some(HookJob { release, previous: state.previous_digest(), attempts: state.hook_attempts })
    }

    /// `exec` begins to run in a release.
    pub(crate) fn hook_begins(&self, release: ReleaseName) {
        self.inner().in_use = Some(release);
    }

    /// `exec` ended. It says nothing about the present release when that is another one by now.
    pub(crate) fn hook_ended(&self, release: ReleaseName, succeeded: bool) -> Result<(), ReleaseError> {
        self.inner().in_use = None;
        self.change(|state| {
            if state.release.as_ref().is_some_and(|present| present.directory == release) {
                if succeeded {
                    state.hook = HookMark::Done;
                } else {
                    state.hook_attempts = state.hook_attempts.saturating_add(1);
                }
            }
        })
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), ReleaseError> {
        let mut inner = self.inner();
        let mut next = inner.state.clone();
        change(&mut next);
        if next != inner.state {
            self.write_state(&next)?;
            inner.state = next;
        }
        Ok(())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_state(&self, state: &State) -> Result<(), ReleaseError> {
        let (new, path) = (self.path.join(STATE_NEW), self.path.join(STATE));
        let mut file = File::create(&new).map_err(disk("write", &new))?;
        file.write_all(&state.to_bytes()).and_then(|()| file.sync_all()).map_err(disk("write", &new))?;
        fs::rename(&new, &path).map_err(disk("rename", &new))?;
        sync_directory(&self.path)
    }

    fn write_link(&self, release: ReleaseName) -> Result<(), ReleaseError> {
        let (new, path) = (self.path.join(CURRENT_NEW), self.path.join(CURRENT));
        // Somebody may have put something of his own there since the start.
        read_link(&self.path)?;
        remove_file(&new)?;
        symlink(Path::new(RELEASES).join(release.to_string()), &new).map_err(disk("create", &new))?;
        fs::rename(&new, &path).map_err(disk("rename", &new))?;
        sync_directory(&self.path)
    }

    /// Removes all but the current and the previous release, one that is in use, and the youngest up to the number that
    /// is kept. What cannot be removed is tried again at the next switch.
    fn prune(&self, inner: &Inner) {
        if let Err(error) = self.try_prune(inner) {
            tracing::warn!(%error, "old releases cannot be removed");
        }
    }

    fn try_prune(&self, inner: &Inner) -> Result<(), ReleaseError> {
        let releases = self.path.join(RELEASES);
        let records = [&inner.state.release, &inner.state.previous].into_iter().flatten();
        let needed: Vec<_> = records.map(|record| record.directory).chain(inner.in_use).collect();
        let mut others = Vec::new();
        for entry in fs::read_dir(&releases).map_err(disk("list", &releases))? {
            let entry = entry.map_err(disk("list", &releases))?;
            // What has another name is not ours to remove.
            let name = entry.file_name().to_str().and_then(|name| name.parse::<ReleaseName>().ok());
            if let Some(name) = name.filter(|name| !needed.contains(name)) {
                let made = entry.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
                others.push((made, name));
            }
        }
        others.sort_unstable();
        others.reverse();
        for (_, name) in others.into_iter().skip(self.keep_releases.saturating_sub(needed.len())) {
            // Away from its name first: under a release's name there is always a whole one.
            let removed = releases.join(format!(".{name}.removed"));
            remove_tree(&removed)?;
            fs::rename(self.release_path(name), &removed).map_err(disk("rename", &removed))?;
            remove_tree(&removed)?;
        }
        Ok(())
    }
}

/// A new reader of the file, from its beginning.
fn rewound(file: &File) -> Result<BufReader<&File>, ReleaseError> {
    let mut reader = file;
    reader.rewind().map_err(TarError::Read)?;
    Ok(BufReader::with_capacity(64 << 10, file))
}

/// Makes a directory with exactly this mode; one that is there keeps its own.
fn make_directory(path: &Path, mode: u32) -> Result<(), ReleaseError> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode)).map_err(disk("set the mode of", path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(disk("create the directory", path)(error)),
    }
}

fn sync_directory(path: &Path) -> Result<(), ReleaseError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(disk("sync", path))
}

fn remove_file(path: &Path) -> Result<(), ReleaseError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Removes a directory with all that is in it, or a file; nothing there is fine.
fn remove_tree(path: &Path) -> Result<(), ReleaseError> {
    let removed = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => {
            Beneath::open(path).and_then(|mut beneath| beneath.remove_contents()).and_then(|()| fs::remove_dir(path))
        }
        Ok(_) => fs::remove_file(path),
    };
    removed.map_err(disk("remove", path))
}

/// The release that `current` points at; `None` when there is no link, or nothing at its end.
fn read_link(service: &Path) -> Result<Option<ReleaseName>, ReleaseError> {
    let path = service.join(CURRENT);
    let in_the_way = |found: String| ReleaseError::InTheWay { path: path.clone(), found };
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(disk("look at", &path)(error)),
        Ok(metadata) if !metadata.is_symlink() => return Err(in_the_way("it is no symlink".to_owned())),
        Ok(_) => {}
    }
    let target = fs::read_link(&path).map_err(disk("read", &path))?;
    let name = target
        .strip_prefix(RELEASES)
        .ok()
        .and_then(Path::to_str)
        .and_then(|name| name.parse::<ReleaseName>().ok())
        .ok_or_else(|| in_the_way(format!("it points at {}", target.display())))?;
    if !service.join(RELEASES).join(name.to_string()).is_dir() {
        tracing::warn!(path = %path.display(), "the release that `current` points at is gone; it is fetched again");
        return Ok(None);
    }
    Ok(Some(name))
}

fn read_state(service: &Path) -> Result<State, ReleaseError> {
    let path = service.join(STATE);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
        Err(error) => return Err(disk("read", &path)(error)),
    };
    match State::parse(&bytes) {
        Ok(state) => Ok(state),
        Err(StateError::Damaged(error)) => {
            tracing::warn!(path = %path.display(), %error, "the state file is damaged; going on from `current` alone");
            Ok(State::default())
        }
        Err(source) => Err(ReleaseError::State { path, source }),
    }
}

fn remove_leftovers(service: &Path) -> Result<(), ReleaseError> {
    remove_file(&service.join(CURRENT_NEW))?;
    remove_file(&service.join(STATE_NEW))?;
    for (folder, prefix) in [(RELEASES, "."), (INCOMING, "")] {
        let folder = service.join(folder);
        for entry in fs::read_dir(&folder).map_err(disk("list", &folder))? {
            let entry = entry.map_err(disk("list", &folder))?;
            if entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
                remove_tree(&entry.path())?;
            }
        }
    }
    Ok(())
}
