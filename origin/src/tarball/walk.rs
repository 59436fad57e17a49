//! What goes into a tarball, in order: takes what a source visits, and decides by paths, sizes and where links lead.

use std::sync::atomic::{AtomicBool, Ordering};

use weir_protocol::descriptor::{Omission, OmissionReason};
use weir_protocol::entry_path;

use super::entry::{Entry, EntryKind};
use super::filters::{Filters, Inclusion};
use super::{Contents, Limits, Selection, TarballError};

/// The longest list of omissions, in bytes of their JSON: well below what a descriptor may have.
const MAX_OMISSION_BYTES: usize = 8 << 20;

/// What a walk found besides the entries it handed out.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub(super) entries: u64,
    pub(super) omitted: Vec<Omission>,
}

/// A directory that the walk is in.
struct Level {
    inclusion: Inclusion,
    /// The length of its path below the folder, with its slash.
    path_bytes: usize,
    /// A directory is written when something below it is.
    written: bool,
}

/// A walk through a folder. It begins in the folder itself, which need not be left.
///
/// A source visits the names in a directory, each once, in the order of their bytes with a slash at the end of a
/// directory's. When a name is selected, the source says what it is before it visits the next: a directory is entered, what
/// is in it is visited, and the directory is left; for all else there are [`Self::file`], [`Self::symlink`] and
/// [`Self::omit`].
pub struct Walk<'a, F> {
    filters: &'a Filters,
    limits: &'a Limits,
    interrupt: &'a AtomicBool,
    /// What was visited last, below the folder.
    path: Vec<u8>,
    inclusion: Inclusion,
    levels: Vec<Level>,
    visited: usize,
    /// Of tar.
    bytes: u64,
    omission_bytes: usize,
    walked: Walked,
    emit: &'a mut dyn FnMut(Entry<F>) -> Result<(), TarballError>,
}

/// Walks through contents and hands out their entries in the order of the tarball, which would not be larger than it may.
pub(crate) fn walk<C: Contents>(
    contents: &C,
    selection: &Selection,
    (limits, interrupt): (&Limits, &AtomicBool),
    emit: &mut dyn FnMut(Entry<C::File>) -> Result<(), TarballError>,
) -> Result<Walked, TarballError> {
    let filters = &selection.filters;
    let mut walk = Walk {
        filters,
        limits,
        interrupt,
        path: Vec::new(),
        inclusion: filters.root(),
        levels: Vec::new(),
        visited: 0,
        bytes: 0,
        omission_bytes: 0,
        walked: Walked::default(),
        emit,
    };
    walk.levels.push(Level { inclusion: filters.root(), path_bytes: 0, written: true });
    contents.walk(&mut walk)?;
    Ok(walk.walked)
}

impl<F> Walk<'_, F> {
    /// Visits a name in the directory that was entered last. Whether it is selected. `left_out`: whether the source itself
    /// leaves it out, without a word; asked only of what the filters take.
    ///
    /// # Errors
    /// There are too many, or somebody asked to stop.
    pub fn visit(
        &mut self,
        name: &[u8],
        is_directory: bool,
        left_out: impl FnOnce() -> bool,
    ) -> Result<bool, TarballError> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(TarballError::Interrupted);
        }
        self.visited += 1;
        if self.visited > self.limits.max_entries {
            return Err(TarballError::TooManyEntries { limit: self.limits.max_entries });
        }
        let (above, path_bytes) =
            self.levels.last().map_or((Inclusion::Excluded, 0), |level| (level.inclusion, level.path_bytes));
        self.path.truncate(path_bytes);
        self.path.extend_from_slice(name);
        self.inclusion = self.filters.descend(above, &self.path, is_directory);
        let selected = match self.inclusion {
            Inclusion::Excluded => false,
            // Something in a directory may be matched by an include pattern; a file is not matched by any.
            Inclusion::Undecided => is_directory,
            Inclusion::Included => true,
        };
        if !selected || left_out() {
            return Ok(false);
        }
        if !entry_path::is_safe_component(name) {
            self.list_omission(OmissionReason::UnsafeName)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Enters the directory that was visited last.
    pub fn enter(&mut self) {
        self.path.push(b'/');
        self.levels.push(Level { inclusion: self.inclusion, path_bytes: self.path.len(), written: false });
    }

    /// Leaves the directory that was entered last.
    pub fn leave(&mut self) {
        self.levels.pop();
    }

    /// What was visited last is a file of so many bytes.
    ///
    /// # Errors
    /// It is too large, or the tarball is with it; or those of whoever takes the entries.
    pub fn file(&mut self, file: F, size: u64, executable: bool) -> Result<(), TarballError> {
        let limit = self.limits.max_file_bytes;
        if size > limit {
            let path = entry_path::percent_encode(&self.path);
            return Err(TarballError::FileTooLarge { path, size, limit });
        }
        self.write(EntryKind::File { file, size, executable })
    }

    /// What was visited last is a symlink. It is left out unless it stays in the folder, whatever other symlinks are on its
    /// way: `leads_through_link` tells whether one stands at a path or above it, be it selected or not.
    ///
    /// # Errors
    /// As of [`Self::file`].
    pub fn symlink(
        &mut self,
        target: Vec<u8>,
        mut leads_through_link: impl FnMut(&[u8]) -> Result<bool, TarballError>,
    ) -> Result<(), TarballError> {
        let Some(turning_points) = entry_path::turning_points(&self.path, &target) else {
            return self.omit(OmissionReason::Symlink);
        };
        for path in turning_points {
            if leads_through_link(&path)? {
                return self.omit(OmissionReason::Symlink);
            }
        }
        self.write(EntryKind::Symlink { target })
    }

    /// What was visited last is left out for this reason, and listed if it was asked for.
    ///
    /// # Errors
    /// The list is too long.
    pub fn omit(&mut self, reason: OmissionReason) -> Result<(), TarballError> {
        if self.inclusion == Inclusion::Undecided {
            return Ok(());
        }
        self.list_omission(reason)
    }

    fn list_omission(&mut self, reason: OmissionReason) -> Result<(), TarballError> {
        let path = entry_path::percent_encode(&self.path);
        // Quotes and backslashes take two bytes in JSON; controls are percent-encoded already.
        let escaped = path.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
        self.omission_bytes += path.len() + escaped + 48;
        if self.omission_bytes > MAX_OMISSION_BYTES {
            return Err(TarballError::TooManyOmissions);
        }
        self.walked.omitted.push(Omission { path, reason });
        Ok(())
    }

    /// Hands out the entry at `self.path`, after the directories above it that were not handed out yet.
    fn write(&mut self, kind: EntryKind<F>) -> Result<(), TarballError> {
        // Above a directory that is written all are.
        let written = self.levels.iter().rposition(|level| level.written).map_or(0, |at| at + 1);
        for at in written..self.levels.len() {
            let path = self.path[..self.levels[at].path_bytes].to_vec();
            self.levels[at].written = true;
            self.hand_out(Entry { path, kind: EntryKind::Directory })?;
        }
        self.hand_out(Entry { path: self.path.clone(), kind })
    }

    fn hand_out(&mut self, entry: Entry<F>) -> Result<(), TarballError> {
        self.walked.entries += 1;
        self.bytes = self.bytes.saturating_add(entry.tar_bytes());
        let limit = self.limits.max_tarball_bytes;
        if self.bytes > limit {
            return Err(TarballError::TooLarge { limit });
        }
        (self.emit)(entry)
    }
}
