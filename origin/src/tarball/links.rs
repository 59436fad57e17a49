//! Whether a symlink stays in its folder, whatever other symlinks are on its way.

use std::collections::VecDeque;
use std::rc::Rc;

use gix::{ObjectId, Repository};
use weir_shared::entry_path;

use super::TarballError;
use super::folder::{self, TreeEntry};

/// Trees that are kept, because many links turn at the same places.
const MAX_TREES: usize = 16;

/// Judges the links of a folder.
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

    /// Whether a link at `link` may point at `target`. What is at a turning point is looked up in Git: filters and
    /// attributes may leave it out, but make nothing else of it.
    pub(super) fn is_safe(&mut self, repo: &Repository, link: &[u8], target: &[u8]) -> Result<bool, TarballError> {
        let Some(turning_points) = entry_path::turning_points(link, target) else { return Ok(false) };
        for path in turning_points {
            if self.leads_through_link(repo, &path)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn leads_through_link(&mut self, repo: &Repository, path: &[u8]) -> Result<bool, TarballError> {
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
