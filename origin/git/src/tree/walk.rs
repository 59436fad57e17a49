//! Walks the trees of a folder: reads trees, attribute files, symlink targets and LFS pointers, but no contents.

use gix::ObjectId;
use gix::objs::tree::EntryKind;
use weir_protocol::descriptor::OmissionReason;
use weir_protocol::entry_path::MAX_LINK_TARGET_BYTES;
use weir_tarball::{TarballError, Walk};

use super::attributes::{Attributes, PathAttributes};
use super::contents::{GitFile, GitTree};
use super::folder::{self, TreeEntry};
use super::links::Links;
use crate::lfs::{MAX_POINTER_BYTES, Pointer, looks_like_pointer};

/// A directory that the walk has entered.
struct Level {
    entries: std::vec::IntoIter<TreeEntry>,
    /// The length of its path, with its slash.
    path_bytes: usize,
}

struct TreeWalk<'a, 'w> {
    tree: &'a GitTree<'a>,
    into: &'a mut Walk<'w, GitFile>,
    attributes: Attributes,
    links: Links,
    /// The current path from the root of the repository, to which attributes are relative.
    path: Vec<u8>,
    levels: Vec<Level>,
}

/// Visits all entries in the order of the tarball.
pub(super) fn walk(tree: &GitTree<'_>, into: &mut Walk<'_, GitFile>) -> Result<(), TarballError> {
    let folder = folder::find(&tree.repository, &tree.commit, &tree.selection.folder)?;
    if folder.export_ignored {
        return Ok(());
    }
    let mut path = tree.selection.folder.as_str().as_bytes().to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    let (attributes, links) = (folder.attributes, Links::new(folder.tree, into.max_entries()));
    let mut walk = TreeWalk { tree, into, attributes, links, path, levels: Vec::new() };
    walk.read(folder.tree)?;
    while let Some(level) = walk.levels.last_mut() {
        walk.path.truncate(level.path_bytes);
        match level.entries.next() {
            Some(entry) => walk.visit(&entry)?,
            None => {
                walk.levels.pop();
                walk.attributes.leave();
                walk.into.leave();
            }
        }
    }
    Ok(())
}

impl TreeWalk<'_, '_> {
    /// Reads the directory at `self.path`, which ends in a slash.
    fn read(&mut self, tree: ObjectId) -> Result<(), TarballError> {
        let repo = &self.tree.repository;
        let entries = folder::read_tree(repo, tree, &self.path, |_| self.into.count().map(|()| true))?;
        let directory = self.path.strip_suffix(b"/").unwrap_or(&self.path);
        folder::enter_attributes(repo, &mut self.attributes, directory, &entries, self.into.matcher())?;
        self.levels.push(Level { entries: entries.into_iter(), path_bytes: self.path.len() });
        Ok(())
    }

    fn visit(&mut self, entry: &TreeEntry) -> Result<(), TarballError> {
        self.path.extend_from_slice(&entry.name);
        let is_directory = matches!(entry.mode.kind(), EntryKind::Tree | EntryKind::Commit);
        let mut attributes = PathAttributes::default();
        let selected = self.into.visit(&entry.name, is_directory, |matcher| {
            attributes = self.attributes.of(&self.path, is_directory, matcher);
            attributes.export_ignore
        })?;
        if !selected {
            return Ok(());
        }
        match entry.mode.kind() {
            EntryKind::Tree => {
                self.path.push(b'/');
                self.into.enter();
                self.read(entry.id)
            }
            EntryKind::Commit => self.into.omit(OmissionReason::Submodule),
            EntryKind::Link => self.symlink(entry.id),
            EntryKind::Blob => self.file(entry.id, false, attributes),
            EntryKind::BlobExecutable => self.file(entry.id, true, attributes),
        }
    }

    fn file(&mut self, id: ObjectId, executable: bool, attributes: PathAttributes) -> Result<(), TarballError> {
        let repo = &self.tree.repository;
        let size = folder::blob_size(repo, id)?;
        if attributes.lfs && size < MAX_POINTER_BYTES {
            let mut contents = Vec::new();
            folder::read_blob(repo, id, &mut contents)?;
            if looks_like_pointer(&contents) {
                return match Pointer::parse(&contents).filter(|_| self.tree.selection.lfs) {
                    Some(pointer) => self.into.file(GitFile::Lfs(pointer), pointer.size, executable),
                    None => self.into.omit(OmissionReason::LfsPointer),
                };
            }
        }
        self.into.file(GitFile::Blob { id, line_ends: attributes.line_ends }, size, executable)
    }

    fn symlink(&mut self, id: ObjectId) -> Result<(), TarballError> {
        let repo = &self.tree.repository;
        let mut target = Vec::new();
        // A target that is too long is left empty, which is refused as well.
        if folder::blob_size(repo, id)? <= MAX_LINK_TARGET_BYTES as u64 {
            folder::read_blob(repo, id, &mut target)?;
        }
        self.into.symlink(target, |path| self.links.leads_through_link(repo, path))
    }
}
