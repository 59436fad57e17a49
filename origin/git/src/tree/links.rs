//! Finds symlinks on paths of a folder. It reads Git trees, because attributes may exclude a symlink but cannot create
//! one.

use std::collections::VecDeque;
use std::rc::Rc;

use gix::objs::tree::EntryRef;
use gix::{ObjectId, Repository};
use weir_tarball::TarballError;

use super::folder::{self, TreeEntry};

/// The most cached trees. Many links share directories.
const MAX_TREES: usize = 16;

/// Looks up symlinks of a folder.
pub(super) struct Links {
    /// The folder's tree.
    root: ObjectId,
    /// The most entries of a tree, and of all cached trees.
    max_entries: usize,
    /// The links and directories of the trees that were read last.
    trees: VecDeque<(ObjectId, Rc<[TreeEntry]>)>,
}

impl Links {
    pub(super) fn new(root: ObjectId, max_entries: usize) -> Self {
        Self { root, max_entries, trees: VecDeque::new() }
    }

    /// Whether this path, or a parent of it, is a symlink.
    pub(super) fn leads_through_link(&mut self, repo: &Repository, path: &[u8]) -> Result<bool, TarballError> {
        let (mut tree, mut at) = (self.root, 0);
        for name in path.split(|b| *b == b'/') {
            let entries = self.entries(repo, tree, &path[..at])?;
            at += name.len() + usize::from(at > 0);
            match entries.iter().find(|entry| entry.name == name) {
                Some(entry) if entry.mode.is_link() => return Ok(true),
                Some(entry) if entry.mode.is_tree() => tree = entry.id,
                // A path ends at a missing entry and at a file.
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    fn entries(&mut self, repo: &Repository, tree: ObjectId, path: &[u8]) -> Result<Rc<[TreeEntry]>, TarballError> {
        if let Some((_, entries)) = self.trees.iter().find(|(id, _)| *id == tree) {
            return Ok(entries.clone());
        }
        let (limit, mut read) = (self.max_entries, 0);
        let links_and_directories = |entry: &EntryRef<'_>| {
            read += 1;
            if read > limit {
                return Err(TarballError::TooManyEntries { limit });
            }
            Ok(entry.mode.is_link() || entry.mode.is_tree())
        };
        let entries: Rc<[TreeEntry]> = folder::read_tree(repo, tree, path, links_and_directories)?.into();
        self.trees.truncate(MAX_TREES - 1);
        while self.trees.iter().map(|(_, cached)| cached.len()).sum::<usize>() + entries.len() > limit {
            self.trees.pop_back();
        }
        self.trees.push_front((tree, entries.clone()));
        Ok(entries)
    }
}
