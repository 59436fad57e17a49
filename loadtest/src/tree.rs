//! Reads a directory tree into memory, to compare an agent's release with Git.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// An entry of a tree. The only permission is the executable bit, as in Git.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A folder.
    Folder,
    /// A file.
    File {
        /// Whether it may be executed.
        executable: bool,
        /// Its bytes.
        contents: Vec<u8>,
    },
    /// A symlink with its target.
    Link(Vec<u8>),
}

/// All entries below a directory, by their paths.
pub type Tree = BTreeMap<Vec<u8>, Entry>;

/// Reads everything below `root` without following symlinks, except `root` itself.
///
/// # Errors
/// An entry cannot be read, or is removed meanwhile.
pub fn read(root: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    let root = fs::canonicalize(root)?;
    let mut pending = vec![root.clone()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            let entry = if metadata.is_symlink() {
                Entry::Link(fs::read_link(&path)?.as_os_str().as_bytes().to_vec())
            } else if metadata.is_dir() {
                pending.push(path.clone());
                Entry::Folder
            } else {
                let executable = metadata.permissions().mode() & 0o111 != 0;
                Entry::File { executable, contents: fs::read(&path)? }
            };
            let relative = path.strip_prefix(&root).map_err(io::Error::other)?;
            tree.insert(relative.as_os_str().as_bytes().to_vec(), entry);
        }
    }
    Ok(tree)
}
