//! What goes into a tarball, in order: reads trees, attribute files, symlink targets and LFS pointers, but no contents.

use std::sync::atomic::{AtomicBool, Ordering};

use gix::objs::tree::EntryKind;
use gix::{ObjectId, Repository};
use weir_shared::descriptor::{Omission, OmissionReason};
use weir_shared::entry_path;

use super::attributes::{self, LineEnds, PathAttributes};
use super::filters::Inclusion;
use super::folder::{self, Folder, TreeEntry};
use super::links::Links;
use super::{Limits, Selection, TarballError};
use crate::lfs::{MAX_POINTER_BYTES, Pointer, looks_like_pointer};

/// The longest list of omissions, in bytes of their JSON: well below what a descriptor may have.
const MAX_OMISSION_BYTES: usize = 8 << 20;

/// One entry of the tarball to be.
#[derive(Debug)]
pub(super) struct Entry {
    /// Relative to the folder; a directory's ends in `/`.
    pub(super) path: Vec<u8>,
    pub(super) kind: EntryContent,
}

/// What an entry holds.
#[derive(Debug)]
pub(super) enum EntryContent {
    /// Bytes that are still in the mirror. `size` is before line ends change.
    File {
        id: ObjectId,
        size: u64,
        executable: bool,
        line_ends: Option<LineEnds>,
    },
    /// Bytes that stand beside the mirror.
    Lfs {
        pointer: Pointer,
        executable: bool,
    },
    Directory,
    Symlink {
        target: Vec<u8>,
    },
}

/// What a walk found besides the entries it handed out.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) entries: u64,
    pub(super) omitted: Vec<Omission>,
}

/// A directory that the walk is in.
struct Level {
    entries: std::vec::IntoIter<TreeEntry>,
    inclusion: Inclusion,
    /// The length of this directory's path below the folder, with its slash.
    path_bytes: usize,
    /// A directory is written when something below it is.
    written: bool,
}

struct Walk<'a> {
    repo: &'a Repository,
    selection: &'a Selection,
    limits: &'a Limits,
    interrupt: &'a AtomicBool,
    attributes: attributes::Attributes,
    links: Links,
    /// The folder's path in the repository with a slash, and after it the path below the folder.
    path: Vec<u8>,
    prefix_bytes: usize,
    levels: Vec<Level>,
    seen: usize,
    omission_bytes: usize,
    walked: Walked,
    emit: &'a mut dyn FnMut(Entry) -> Result<(), TarballError>,
}

/// Walks a folder and hands out its entries in the order of the tarball.
pub(super) fn walk(
    repo: &Repository,
    folder: Folder,
    selection: &Selection,
    (limits, interrupt): (&Limits, &AtomicBool),
    emit: &mut dyn FnMut(Entry) -> Result<(), TarballError>,
) -> Result<Walked, TarballError> {
    if folder.export_ignored {
        return Ok(Walked::default());
    }
    let mut path = selection.folder.as_str().as_bytes().to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    let mut walk = Walk {
        repo,
        selection,
        limits,
        interrupt,
        attributes: folder.attributes,
        links: Links::new(folder.tree),
        prefix_bytes: path.len(),
        path,
        levels: Vec::new(),
        seen: 0,
        omission_bytes: 0,
        walked: Walked::default(),
        emit,
    };
    walk.enter(folder.tree, selection.filters.root())?;
    while let Some(level) = walk.levels.last_mut() {
        walk.path.truncate(walk.prefix_bytes + level.path_bytes);
        let inclusion = level.inclusion;
        match level.entries.next() {
            Some(entry) => walk.visit(&entry, inclusion)?,
            None => {
                walk.levels.pop();
                walk.attributes.leave();
            }
        }
    }
    Ok(walk.walked)
}

impl Walk<'_> {
    /// Reads the directory at `self.path`, which ends in its slash.
    fn enter(&mut self, tree: ObjectId, inclusion: Inclusion) -> Result<(), TarballError> {
        let entries = folder::read_tree(self.repo, tree)?;
        let directory = self.path.strip_suffix(b"/").unwrap_or(&self.path);
        folder::enter_attributes(self.repo, &mut self.attributes, directory, &entries)?;
        let path_bytes = self.path.len() - self.prefix_bytes;
        self.levels.push(Level { entries: entries.into_iter(), inclusion, path_bytes, written: path_bytes == 0 });
        Ok(())
    }

    fn visit(&mut self, entry: &TreeEntry, above: Inclusion) -> Result<(), TarballError> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(TarballError::Interrupted);
        }
        self.seen += 1;
        if self.seen > self.limits.max_entries {
            return Err(TarballError::TooManyEntries { limit: self.limits.max_entries });
        }
        self.path.extend_from_slice(&entry.name);
        let is_directory = matches!(entry.mode.kind(), EntryKind::Tree | EntryKind::Commit);
        let inclusion = self.selection.filters.descend(above, &self.path[self.prefix_bytes..], is_directory);
        // An undecided directory may hold what an include pattern matches; an undecided file is not matched by any.
        let out = inclusion == Inclusion::Excluded || (inclusion == Inclusion::Undecided && !entry.mode.is_tree());
        if out {
            return Ok(());
        }
        let attributes = self.attributes.of(&self.path, is_directory);
        if attributes.export_ignore {
            return Ok(());
        }
        if !entry_path::is_safe_component(&entry.name) {
            return self.omit(OmissionReason::UnsafeName);
        }
        match entry.mode.kind() {
            EntryKind::Tree => {
                self.path.push(b'/');
                self.enter(entry.id, inclusion)
            }
            EntryKind::Commit => self.omit(OmissionReason::Submodule),
            EntryKind::Link => self.symlink(entry.id),
            EntryKind::Blob => self.file(entry.id, false, attributes),
            EntryKind::BlobExecutable => self.file(entry.id, true, attributes),
        }
    }

    fn file(&mut self, id: ObjectId, executable: bool, attributes: PathAttributes) -> Result<(), TarballError> {
        let size = folder::blob_size(self.repo, id)?;
        if attributes.lfs && size < MAX_POINTER_BYTES {
            let mut contents = Vec::new();
            folder::read_blob(self.repo, id, &mut contents)?;
            if looks_like_pointer(&contents) {
                let Some(pointer) = Pointer::parse(&contents).filter(|_| self.selection.lfs) else {
                    return self.omit(OmissionReason::LfsPointer);
                };
                self.check_size(pointer.size)?;
                return self.write(EntryContent::Lfs { pointer, executable });
            }
        }
        self.check_size(size)?;
        self.write(EntryContent::File { id, size, executable, line_ends: attributes.line_ends })
    }

    fn check_size(&self, size: u64) -> Result<(), TarballError> {
        let limit = self.limits.max_file_bytes;
        if size <= limit {
            return Ok(());
        }
        let path = entry_path::percent_encode(&self.path[self.prefix_bytes..]);
        Err(TarballError::FileTooLarge { path, size, limit })
    }

    fn symlink(&mut self, id: ObjectId) -> Result<(), TarballError> {
        let mut target = Vec::new();
        if folder::blob_size(self.repo, id)? <= entry_path::MAX_LINK_TARGET_BYTES as u64 {
            folder::read_blob(self.repo, id, &mut target)?;
        }
        // A target that is too long was left empty, and an empty one is refused too.
        if self.links.is_safe(self.repo, &self.path[self.prefix_bytes..], &target)? {
            self.write(EntryContent::Symlink { target })
        } else {
            self.omit(OmissionReason::Symlink)
        }
    }

    /// Hands out the entry at `self.path`, after the directories above it that were not handed out yet.
    fn write(&mut self, kind: EntryContent) -> Result<(), TarballError> {
        let path = &self.path[self.prefix_bytes..];
        // Above a directory that is written all are.
        let written = self.levels.iter().rposition(|level| level.written).map_or(0, |at| at + 1);
        for level in &mut self.levels[written..] {
            level.written = true;
            self.walked.entries += 1;
            (self.emit)(Entry { path: path[..level.path_bytes].to_vec(), kind: EntryContent::Directory })?;
        }
        self.walked.entries += 1;
        (self.emit)(Entry { path: path.to_vec(), kind })
    }

    fn omit(&mut self, reason: OmissionReason) -> Result<(), TarballError> {
        let path = entry_path::percent_encode(&self.path[self.prefix_bytes..]);
        // Quotes and backslashes take two bytes in JSON; controls are percent-encoded already.
        let escaped = path.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
        self.omission_bytes += path.len() + escaped + 48;
        if self.omission_bytes > MAX_OMISSION_BYTES {
            return Err(TarballError::TooManyOmissions);
        }
        self.walked.omitted.push(Omission { path, reason });
        Ok(())
    }
}
