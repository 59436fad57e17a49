//! Where symlinks stand in a folder. What is at a path is looked up in Git: filters and attributes may leave it out, but make
//! nothing else of it.

use std::collections::VecDeque;
use std::rc::Rc;

use gix::{ObjectId, Repository};

use super::folder::{self, TreeEntry};
use crate::tarball::TarballError;

/// Trees that are kept, because many links lead through the same directories.
const MAX_TREES: usize = 16;

/// Looks for the links of a folder.
pub(super) struct Links {
    /// The folder's tree.
    root: ObjectId,
    /// Those that were read last.
    trees: VecDeque<(ObjectId, Rc<[TreeEntry]>)>,
}

impl Links {
    pub(super) fn new(root: ObjectId) -> Self {
        Self { root, trees: VecDeque::new() }
    }

    /// Whether a symlink stands at this path, or above it.
    pub(super) fn leads_through_link(&mut self, repo: &Repository, path: &[u8]) -> Result<bool, TarballError> {
        let mut tree = self.root;
        for name in path.split(|b| *b == b'/') {
            let entries = self.entries(repo, tree)?;
            match entries.iter().find(|entry| entry.name == name) {
                Some(entry) if entry.mode.is_link() => return Ok(true),
                Some(entry) if entry.mode.is_tree() => tree = entry.id,
                // Nobody gets past what is not there, or is no directory.
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    fn entries(&mut self, repo: &Repository, tree: ObjectId) -> Result<Rc<[TreeEntry]>, TarballError> {
        if let Some((_, entries)) = self.trees.iter().find(|(id, _)| *id == tree) {
            return Ok(entries.clone());
        }
        let entries: Rc<[TreeEntry]> = folder::read_tree(repo, tree)?.into();
        self.trees.truncate(MAX_TREES - 1);
        self.trees.push_front((tree, entries.clone()));
        Ok(entries)
    }
}
