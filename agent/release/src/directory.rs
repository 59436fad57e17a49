//! The directory of one service: the symlink, the releases, the state. Writes block; reads do not.
//!
//! The order of the steps makes a crash at any point of a switch harmless: the release is complete on disk before it
//! gets its name, the state records the pending `exec` before the symlink changes, and the symlink is replaced
//! atomically. At the next start the state is repaired to match the symlink.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use weir_protocol::digest::TarballDigest;
use weir_protocol::manifest::Manifest;
use weir_protocol::name::ServiceName;

use crate::changes::{Changes, changes};
use crate::compare::{Difference, compare, is_exhaustion};
use crate::error::{ReleaseError, disk};
use crate::generation::highest_credible;
use crate::layout::{INCOMING, RELEASES};
use crate::lock::RootLock;
use crate::modes::Modes;
use crate::name::ReleaseName;
use crate::pins;
use crate::rebuild::{RebuiltTar, digest_on_disk, has_links, has_modes};
use crate::state::{ReleaseRecord, State};
use crate::state_file::{read_state, write_state};
use crate::switch::{read_link, write_link};
use crate::tar_reader::{TarError, rewound};
use crate::tree::{make_directory, remove_tree, sync_directory};
use crate::unchanged::{Before, Unchanged};
use crate::unpack::{Limits, unpack};
use crate::writers::Unpacking;
use crate::{frames_file, prune, state_file, switch};

/// A release that is complete on disk.
#[derive(Debug, Clone, Copy)]
pub struct Created {
    /// Its name.
    pub name: ReleaseName,
    /// How long the sync took.
    pub sync: Duration,
}

/// One that was there.
impl From<ReleaseName> for Created {
    fn from(name: ReleaseName) -> Self {
        Self { name, sync: Duration::ZERO }
    }
}

/// How releases are made and kept.
#[derive(Debug, Clone, Copy)]
pub struct ReleaseOptions {
    /// How many are kept, with the current one.
    pub keep: usize,
    /// The limits of a tarball.
    pub limits: Limits,
    /// The permissions of their entries.
    pub modes: Modes,
    /// What happens to files that have not changed.
    pub unchanged: Unchanged,
    /// Whether commands run in releases: they may write into files.
    pub runs_commands: bool,
}

/// The directory of one service.
pub struct ServiceDirectory {
    root: PathBuf,
    service: ServiceName,
    path: PathBuf,
    options: ReleaseOptions,
    required_hooks: Option<String>,
    /// Held during writes to disk.
    writer: Mutex<()>,
    /// The old releases that could not be removed.
    unremoved: AtomicUsize,
    /// The last state written. Held briefly only.
    cached: Mutex<Cached>,
    /// The root stays locked while somebody may write here.
    lock: Arc<RootLock>,
}

pub(crate) struct Cached {
    pub(crate) state: State,
    /// Whether it is that of the disk.
    is_read: bool,
    /// The release that `exec` is running in, which must not be pruned.
    pub(crate) in_use: Option<ReleaseName>,
}

/// What was missing of a directory, and is no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    /// This is the first time: the state was read.
    Read,
    /// Nothing that readers see.
    Intact,
    /// `current` points at the release again.
    Link,
    /// The release was deleted. The state has none until it is fetched again.
    Forgotten,
}

impl ServiceDirectory {
    /// Touches no file: [`restore`](Self::restore) does. `required_hooks`: the hash of hooks that have to run, unless it is
    /// these that have succeeded.
    pub fn new(
        root: &Path,
        service: &ServiceName,
        options: ReleaseOptions,
        lock: Arc<RootLock>,
        required_hooks: Option<String>,
    ) -> Self {
        Self {
            root: root.to_owned(),
            service: service.clone(),
            path: root.join(service.as_str()),
            options,
            required_hooks,
            writer: Mutex::default(),
            unremoved: AtomicUsize::default(),
            cached: Mutex::new(Cached { state: State::default(), is_read: false, in_use: None }),
            lock,
        }
    }

    /// Reads the state first, and creates what somebody has deleted: the lock, folders, the state, `current`. A deleted release
    /// cannot be created.
    ///
    /// # Errors
    /// Something else is in the way, or the disk fails. Before the first success nothing may be switched.
    pub fn restore(&self) -> Result<Restored, ReleaseError> {
        self.lock.restore(&self.root, self.options.modes)?;
        make_directories(&self.path, self.options.modes)?;
        let link = read_link(&self.path)?;
        if !self.cached().is_read {
            self.read(link)?;
            return Ok(Restored::Read);
        }
        let state = self.state();
        let restored = match &state.release {
            Some(release) if link != Some(release.directory) => {
                tracing::warn!(service = %self.service, digest = %release.directory.digest(), "`current` does not point at the release any more");
                if switch::is_on_disk(&self.release_path(release.directory))? {
                    self.switch_at(release, None)?;
                    self.prune();
                    Restored::Link
                } else {
                    self.change(|state| *state = state.without_release())?;
                    Restored::Forgotten
                }
            }
            _ => Restored::Intact,
        };
        if self.unremoved() > 0 {
            self.prune();
        }
        if state != State::default() && state_file::is_missing(&self.path) {
            let _writer = self.writer();
            write_state(&self.path, &self.state())?;
        }
        Ok(restored)
    }

    /// Reads the state, removes temporary files of an earlier process, and repairs the state to match the symlink.
    fn read(&self, link: Option<ReleaseName>) -> Result<(), ReleaseError> {
        let service = &self.service;
        switch::remove_leftovers(&self.path)?;
        state_file::remove_leftovers(&self.path)?;
        frames_file::remove_leftovers(&self.path)?;
        if let Err(error) = prune::remove_leftovers(&self.path) {
            // It only wastes disk space.
            tracing::warn!(%service, %error, "temporary files of an earlier process cannot be removed");
        }
        let state = read_state(&self.path)?;
        let repaired = state.repaired(link);
        self.cached().state = state;
        if let Some(repaired) = repaired {
            tracing::warn!(
                %service,
                digest = link.map(|release| tracing::field::display(release.digest())),
                "the state does not match `current`, after a crash or a change of files; `current` is used"
            );
            self.change(|state| *state = repaired)?;
        }
        if let Some(hooks) = &self.required_hooks {
            self.change(|state| state.require_hooks(hooks))?;
        }
        self.cached().is_read = true;
        self.prune();
        Ok(())
    }

    /// Whether readers find a release.
    pub fn has_current(&self) -> bool {
        read_link(&self.path).is_ok_and(|link| link.is_some())
    }

    /// What is stored of the service.
    pub fn state(&self) -> State {
        self.cached().state.clone()
    }

    /// The directory of incoming tarballs.
    pub fn incoming(&self) -> PathBuf {
        self.path.join(INCOMING)
    }

    /// Where a release is, if it is there.
    pub fn release_path(&self, name: ReleaseName) -> PathBuf {
        self.path.join(RELEASES).join(name.to_string())
    }

    /// Whether `current` points at this release.
    pub fn points_at(&self, release: ReleaseName) -> Result<bool, ReleaseError> {
        Ok(read_link(&self.path)? == Some(release))
    }

    /// Compares a release with its verified tarball.
    pub fn compare(&self, tarball: &File, release: ReleaseName) -> Result<Option<Difference>, ReleaseError> {
        Ok(compare(rewound(tarball)?, &self.release_path(release), self.options.modes)?)
    }

    /// Reads the tar of a release, of `size` bytes, as it is rebuilt. Whether nobody has changed the release must be checked.
    pub fn open_tar(&self, release: ReleaseName, size: u64) -> io::Result<RebuiltTar> {
        RebuiltTar::open(&self.release_path(release), size)
    }

    /// The frames of the tarball with this digest, if they are the ones that are stored.
    pub fn stored_frames(&self, digest: TarballDigest) -> Option<Manifest> {
        frames_file::read(&self.path, digest)
    }

    /// Stores the frames of a tarball in place of those of another one.
    pub fn store_frames(&self, digest: TarballDigest, manifest: &Manifest) -> Result<(), ReleaseError> {
        let _writer = self.writer();
        frames_file::write(&self.path, digest, manifest)
    }

    /// Makes a release of the verified tarball: reuses an intact one, or unpacks it under the first free name of its
    /// digest, from number `first`. Unchanged files may be taken of the release `before`.
    pub fn create_release(
        &self,
        tarball: &File,
        digest: TarballDigest,
        first: u32,
        before: Option<ReleaseName>,
    ) -> Result<Created, ReleaseError> {
        for name in (first..).map(|number| ReleaseName::new(digest, number)) {
            let path = self.release_path(name);
            match fs::symlink_metadata(&path) {
                Ok(_) if compare(rewound(tarball)?, &path, self.options.modes)?.is_none() => {
                    // An earlier process may have been killed before the rename was on disk.
                    sync_directory(&self.path.join(RELEASES))?;
                    return Ok(name.into());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let sync = self.unpack(tarball, name, before)?;
                    return Ok(Created { name, sync });
                }
                Err(error) => return Err(disk("look at", &path)(error)),
            }
        }
        unreachable!("there are fewer releases than numbers")
    }

    /// Returns how long the sync took.
    fn unpack(&self, tarball: &File, name: ReleaseName, before: Option<ReleaseName>) -> Result<Duration, ReleaseError> {
        let ReleaseOptions { limits, modes, unchanged, runs_commands, .. } = self.options;
        let others_write = modes.group_write || runs_commands;
        let releases = self.path.join(RELEASES);
        let partial = releases.join(format!(".{name}.partial"));
        remove_tree(&partial)?;
        make_directory(&partial, modes.directory())?;
        let before = before.map(|before| self.release_path(before));
        let before = before.as_deref().map(|release| Before { release, unchanged, others_write });
        let unpacking = Unpacking { tarball, into: &partial, modes, before };
        let unpacked = unpack(&unpacking, limits).and_then(|unpacked| {
            let lost = if unpacked.is_on_disk { None } else { compare(rewound(tarball)?, &partial, modes)? };
            let lost = lost.map(|lost| TarError::cannot_write(&partial, b"", io::Error::other(lost.to_string())));
            lost.map_or(Ok(unpacked.sync), Err)
        });
        let sync = unpacked.inspect_err(|_| {
            if let Err(error) = remove_tree(&partial) {
                tracing::warn!(%error, "a partly unpacked release cannot be removed");
            }
        })?;
        fs::rename(&partial, self.release_path(name)).map_err(disk("rename", &partial))?;
        sync_directory(&releases)?;
        Ok(sync)
    }

    /// Points `current` at a release that an edge has just sent or confirmed. Old releases stay until
    /// [`prune`](Self::prune): their removal is no part of a switch.
    pub fn switch(&self, record: &ReleaseRecord) -> Result<(), ReleaseError> {
        self.switch_at(record, Some(SystemTime::now()))
    }

    /// Points `current` at the newest kept release of a digest that nobody has changed. The highest generation stays as it is.
    ///
    /// # Errors
    /// No such release is kept, or the disk fails.
    pub fn roll_back(&self, digest: TarballDigest) -> Result<(), ReleaseError> {
        for name in self.kept_of(digest)? {
            if self.is_as_unpacked(name)? {
                self.switch_at(&self.state().record_of(name), None)?;
                self.prune();
                return Ok(());
            }
            tracing::warn!(service = %self.service, release = %name, "a release was changed on disk: it is left out");
        }
        Err(ReleaseError::NotKept { digest })
    }

    /// The newest kept release of a digest that has its bytes, and the modes that it would get now. All of it is read.
    ///
    /// # Errors
    /// The disk fails.
    pub fn kept(&self, digest: TarballDigest) -> Result<Option<ReleaseName>, ReleaseError> {
        for name in self.kept_of(digest)? {
            let has_modes = has_modes(&self.release_path(name), self.options.modes).unwrap_or(false);
            if has_modes && self.has_bytes_of_digest(name)? {
                // An earlier process may have been killed before its name was on disk.
                sync_directory(&self.path.join(RELEASES))?;
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Those with a digest, the newest first.
    fn kept_of(&self, digest: TarballDigest) -> Result<Vec<ReleaseName>, ReleaseError> {
        let kept = prune::releases(&self.path)?.into_iter().map(|(_, name)| name);
        let mut kept: Vec<_> = kept.filter(|name| name.digest() == digest).collect();
        kept.sort_unstable_by(|one, other| other.cmp(one));
        Ok(kept)
    }

    /// Whether a release has the bytes of its digest. One without links is taken for that: only its own hooks have written to it.
    fn is_as_unpacked(&self, name: ReleaseName) -> Result<bool, ReleaseError> {
        Ok(has_links(&self.release_path(name)).is_ok_and(|has_links| !has_links) || self.has_bytes_of_digest(name)?)
    }

    fn has_bytes_of_digest(&self, name: ReleaseName) -> Result<bool, ReleaseError> {
        let path = self.release_path(name);
        match digest_on_disk(&path, self.options.limits.max_bytes) {
            Ok(found) => Ok(found == name.digest()),
            Err(error) if is_exhaustion(&error) => Err(disk("read", &path)(error)),
            Err(_) => Ok(false),
        }
    }

    /// Whether the service is pinned at another release.
    ///
    /// # Errors
    /// The pin cannot be read.
    pub fn is_pinned_elsewhere(&self, digest: TarballDigest) -> Result<bool, ReleaseError> {
        let pin = pins::pin_of(&self.root, self.service.as_str()).map_err(disk("read the pin in", &self.root))?;
        Ok(pin.is_some_and(|pin| pin.digest != digest))
    }

    fn switch_at(&self, record: &ReleaseRecord, confirmed: Option<SystemTime>) -> Result<(), ReleaseError> {
        let _writer = self.writer();
        let before = self.state();
        let mut next = before.switched_to(record.clone());
        if let Some(now) = confirmed {
            next.succeeded(now);
            let before = before.highest_generation_within(highest_credible(now));
            next.highest_generation = before.max(record.generation);
        }
        write_state(&self.path, &next)?;
        if let Err(error) = write_link(&self.path, record.directory) {
            // The symlink was not changed, so the state is restored.
            write_state(&self.path, &before)?;
            return Err(error);
        }
        self.cached().state = next;
        Ok(())
    }

    /// Records that an edge confirmed the release. Writes only when the highest generation rises, which must never be
    /// forgotten; everything else is written with the next change.
    pub fn confirm(&self, generation: u64, record: Option<ReleaseRecord>) -> Result<(), ReleaseError> {
        let now = SystemTime::now();
        let highest = self.state().highest_generation_within(highest_credible(now));
        let confirmed = |state: &mut State| {
            state.highest_generation = highest.max(generation);
            if record.is_some() {
                state.release = record;
            }
            state.succeeded(now);
        };
        if generation > highest {
            return self.change(confirmed);
        }
        let _writer = self.writer();
        confirmed(&mut self.cached().state);
        Ok(())
    }

    /// The differences between a release and an older one, in a file that is removed when they are dropped.
    pub fn changes(&self, before: Option<ReleaseName>, after: ReleaseName) -> Result<Changes, ReleaseError> {
        let before = before.map(|name| self.release_path(name));
        let after = self.release_path(after);
        changes(before.as_deref(), &after, &self.incoming()).map_err(disk("list the changes of", &after))
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), ReleaseError> {
        let _writer = self.writer();
        let before = self.state();
        let mut next = before.clone();
        change(&mut next);
        if next != before {
            write_state(&self.path, &next)?;
            self.cached().state = next;
        }
        Ok(())
    }

    /// Removes old releases. A failure is retried at the next poll and switch.
    pub fn prune(&self) {
        let _writer = self.writer();
        let (state, in_use) = {
            let cached = self.cached();
            (cached.state.clone(), cached.in_use)
        };
        let records = [&state.release, &state.previous, &state.applied].into_iter().flatten();
        let records = records.map(|record| record.directory);
        let linked = read_link(&self.path).ok().flatten();
        let mut needed: Vec<_> = records.chain(in_use).chain(linked).collect();
        // A rollback may be under way.
        if let Ok(Some(pin)) = pins::pin_of(&self.root, self.service.as_str()) {
            let kept = prune::releases(&self.path).unwrap_or_default().into_iter().map(|(_, name)| name);
            needed.extend(kept.filter(|name| name.digest() == pin.digest));
        }
        needed.sort_unstable();
        needed.dedup();
        let errors = prune::prune(&self.path, &needed, self.options.keep).unwrap_or_else(|error| vec![error]);
        // Logged when it changes: it is tried again at each poll.
        if self.unremoved.swap(errors.len(), Ordering::Relaxed) != errors.len()
            && let Some(error) = errors.first()
        {
            tracing::warn!(service = %self.service, count = errors.len(), %error, "old releases cannot be removed");
        }
    }

    /// The old releases that could not be removed.
    pub fn unremoved(&self) -> usize {
        self.unremoved.load(Ordering::Relaxed)
    }

    pub(crate) fn cached(&self) -> MutexGuard<'_, Cached> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_directories(service: &Path, modes: Modes) -> Result<(), ReleaseError> {
    make_directory(service, modes.directory())?;
    make_directory(&service.join(RELEASES), modes.directory())?;
    make_directory(&service.join(INCOMING), modes.private_directory())
}
