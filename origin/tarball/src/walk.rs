//! Selects and orders the entries of a tarball by paths, sizes and symlink targets.

use std::sync::atomic::{AtomicBool, Ordering};

use weir_protocol::descriptor::{Omission, OmissionReason};
use weir_protocol::entry_path;

use super::entry::{Entry, EntryKind};
use super::filters::{Filters, Inclusion};
use super::glob::Matcher;
use super::{KeyWriter, Limits, Selection, TarballError};

/// The longest list of omissions in bytes of JSON, well below the limit of a descriptor.
const MAX_OMISSION_BYTES: usize = 8 << 20;

/// The files and symlinks of a tarball, from any source. Each thread of a build has its own clone.
pub trait Contents: Clone + Send {
    /// Locates the bytes of a file, and the filters to apply. Keep it small: all files of the runs in progress are in
    /// memory.
    type File: Send;

    /// Visits all entries.
    ///
    /// # Errors
    /// Those of the walk and of the source.
    fn walk(&self, into: &mut Walk<'_, Self::File>) -> Result<(), TarballError>;

    /// Writes everything that determines a file's bytes and mode. The output for two different files must differ, and
    /// neither may be a prefix of the other.
    fn identify(file: &Self::File, executable: bool, key: &mut KeyWriter);

    /// Reads a file into `buffer` and replaces its contents. `path` is for errors.
    ///
    /// # Errors
    /// Those of the source.
    fn read(&self, path: &[u8], file: &Self::File, buffer: &mut Vec<u8>) -> Result<(), TarballError>;

    /// Reads a large file in pieces, and passes each on with the size of the whole. Only at the end is it known that the bytes
    /// are right. A source that has files whole in memory passes on one piece.
    ///
    /// # Errors
    /// Those of the source and of `take`.
    fn read_in_pieces(
        &self,
        path: &[u8],
        file: &Self::File,
        take: &mut dyn FnMut(u64, Vec<u8>) -> Result<(), TarballError>,
    ) -> Result<(), TarballError> {
        let mut contents = Vec::new();
        self.read(path, file, &mut contents)?;
        take(contents.len() as u64, contents)
    }
}

/// The bytes of a piece that a source reads from a disk.
pub const PIECE_BYTES: u64 = 1 << 20;

/// The totals of a walk.
#[derive(Debug, Default)]
pub struct Walked {
    pub entries: u64,
    pub omitted: Vec<Omission>,
}

/// A directory on the current path.
struct Level {
    inclusion: Inclusion,
    /// The length of its path, with the slash.
    path_bytes: usize,
    /// A directory is written once an entry below it is.
    written: bool,
}

/// A walk through a folder, beginning in the folder itself.
///
/// The source calls [`Self::count`] for each entry that it reads, and visits each name in a directory once, sorted by bytes with a slash after a directory's name. If
/// [`Self::visit`] returns true, the source describes the entry before the next visit. It enters a directory, visits
/// its names and leaves it; for others it calls [`Self::file`], [`Self::symlink`] or [`Self::omit`].
pub struct Walk<'a, F> {
    filters: &'a Filters,
    matcher: Matcher,
    limits: &'a Limits,
    interrupt: &'a AtomicBool,
    /// The path of the last visit, relative to the folder.
    path: Vec<u8>,
    /// The length of the path of the part that is walked, with its slash. Symlinks may not lead out of it.
    root: usize,
    inclusion: Inclusion,
    levels: Vec<Level>,
    counted: usize,
    /// Bytes of tar so far.
    bytes: u64,
    omission_bytes: usize,
    walked: Walked,
    emit: &'a mut dyn FnMut(Entry<F>) -> Result<(), TarballError>,
}

/// Walks through contents and passes the entries on in tarball order, within the limits.
pub fn walk<C: Contents>(
    contents: &C,
    selection: &Selection,
    (limits, interrupt): (&Limits, &AtomicBool),
    emit: &mut dyn FnMut(Entry<C::File>) -> Result<(), TarballError>,
) -> Result<Walked, TarballError> {
    let filters = &selection.filters;
    let mut walk = Walk {
        filters,
        matcher: Matcher::with_steps(limits.max_match_steps),
        limits,
        interrupt,
        path: Vec::new(),
        root: 0,
        inclusion: filters.root(),
        levels: Vec::new(),
        counted: 0,
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
    /// The most entries in the folder.
    pub fn max_entries(&self) -> usize {
        self.limits.max_entries
    }

    /// Where the source takes steps for what it matches, or reads to match.
    pub fn matcher(&mut self) -> &mut Matcher {
        &mut self.matcher
    }

    /// Counts an entry. A source calls this for each entry as it reads it, before it stores it, so that large directories
    /// take no more memory than the limit allows.
    ///
    /// # Errors
    /// There are too many entries, or the walk was interrupted.
    pub fn count(&mut self) -> Result<(), TarballError> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(TarballError::Interrupted);
        }
        self.counted += 1;
        if self.counted > self.limits.max_entries {
            return Err(TarballError::TooManyEntries { limit: self.limits.max_entries });
        }
        Ok(())
    }

    /// Visits a counted name in the current directory, and returns whether it is selected. `left_out` is called for names
    /// that pass the filters: it returns whether the source itself excludes them silently, and matches its patterns with the
    /// walk's steps.
    ///
    /// # Errors
    /// There are too many omissions, the patterns take too many steps, or the walk was interrupted.
    pub fn visit(
        &mut self,
        name: &[u8],
        is_directory: bool,
        left_out: impl FnOnce(&mut Matcher) -> bool,
    ) -> Result<bool, TarballError> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(TarballError::Interrupted);
        }
        let (above, path_bytes) =
            self.levels.last().map_or((Inclusion::Excluded, 0), |level| (level.inclusion, level.path_bytes));
        self.path.truncate(path_bytes);
        self.path.extend_from_slice(name);
        self.inclusion = self.filters.descend(above, &self.path, is_directory, &mut self.matcher);
        let selected = match self.inclusion {
            Inclusion::Excluded => false,
            // An include pattern may still match below a directory.
            Inclusion::Undecided => is_directory,
            Inclusion::Included => true,
        };
        let is_left_out = !selected || left_out(&mut self.matcher);
        if self.matcher.is_exhausted() {
            return Err(TarballError::PatternsTooSlow { limit: self.limits.max_match_steps });
        }
        if is_left_out {
            return Ok(false);
        }
        if !entry_path::is_safe_component(name) {
            self.list_omission(OmissionReason::UnsafeName)?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Enters the last visited directory.
    pub fn enter(&mut self) {
        self.path.push(b'/');
        self.levels.push(Level { inclusion: self.inclusion, path_bytes: self.path.len(), written: false });
    }

    /// Leaves the current directory.
    pub fn leave(&mut self) {
        self.levels.pop();
    }

    /// Walks a part of the contents in the last visited directory: `walk` visits the names in it. A symlink that leads out of
    /// the part is omitted.
    ///
    /// # Errors
    /// Those of `walk`, or nothing is left of the part.
    pub fn part(&mut self, walk: impl FnOnce(&mut Self) -> Result<(), TarballError>) -> Result<(), TarballError> {
        let (depth, root, before) = (self.levels.len(), self.root, self.walked.entries);
        self.enter();
        self.root = self.path.len();
        let result = walk(self);
        self.levels.truncate(depth);
        self.root = root;
        if result.is_ok() && self.walked.entries == before { Err(TarballError::Empty) } else { result }
    }

    /// Lets contents with other files visit names: `file` converts them.
    ///
    /// # Errors
    /// Those of `walk`.
    pub fn convert<P>(
        &mut self,
        file: impl Fn(P) -> F,
        walk: impl FnOnce(&mut Walk<'_, P>) -> Result<(), TarballError>,
    ) -> Result<(), TarballError> {
        let mut emit = |entry: Entry<P>| (self.emit)(entry.map_file(&file));
        let mut inner = Walk {
            filters: self.filters,
            matcher: std::mem::take(&mut self.matcher),
            limits: self.limits,
            interrupt: self.interrupt,
            path: std::mem::take(&mut self.path),
            root: self.root,
            inclusion: self.inclusion,
            levels: std::mem::take(&mut self.levels),
            counted: self.counted,
            bytes: self.bytes,
            omission_bytes: self.omission_bytes,
            walked: std::mem::take(&mut self.walked),
            emit: &mut emit,
        };
        let result = walk(&mut inner);
        let Walk { path, levels, matcher, counted, bytes, omission_bytes, walked, .. } = inner;
        (self.path, self.levels, self.matcher, self.walked) = (path, levels, matcher, walked);
        (self.counted, self.bytes, self.omission_bytes) = (counted, bytes, omission_bytes);
        result
    }

    /// Adds the last visited name as a file of `size` bytes.
    ///
    /// # Errors
    /// The file or the tarball is too large, or the receiver of entries fails.
    pub fn file(&mut self, file: F, size: u64, executable: bool) -> Result<(), TarballError> {
        let limit = self.limits.max_file_bytes;
        if size > limit {
            let path = entry_path::percent_encode(&self.path);
            return Err(TarballError::FileTooLarge { path, size, limit });
        }
        self.write(EntryKind::File { file, size, executable })
    }

    /// Adds the last visited name as a symlink, unless it leads out of the folder or through another symlink.
    /// `leads_through_link` returns whether there is a symlink at a path or above it, selected or not. Within a part its
    /// paths are relative to that.
    ///
    /// # Errors
    /// Those of [`Self::file`].
    pub fn symlink(
        &mut self,
        target: Vec<u8>,
        mut leads_through_link: impl FnMut(&[u8]) -> Result<bool, TarballError>,
    ) -> Result<(), TarballError> {
        let Some(turning_points) = entry_path::turning_points(&self.path[self.root..], &target) else {
            return self.omit(OmissionReason::Symlink);
        };
        for path in turning_points {
            if leads_through_link(&path)? {
                return self.omit(OmissionReason::Symlink);
            }
        }
        self.write(EntryKind::Symlink { target })
    }

    /// Omits the last visited name, and lists it if it is selected.
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
        // JSON escapes quotes and backslashes to two bytes; control characters are percent-encoded already.
        let escaped = path.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
        self.omission_bytes += path.len() + escaped + 48;
        if self.omission_bytes > MAX_OMISSION_BYTES {
            return Err(TarballError::TooManyOmissions);
        }
        self.walked.omitted.push(Omission { path, reason });
        Ok(())
    }

    /// Passes on the entry at `self.path`, after those of its directories that are not written yet.
    fn write(&mut self, kind: EntryKind<F>) -> Result<(), TarballError> {
        // All directories above a written one are written.
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
