//! A directory as a value, to compare what an agent unpacked with what Git holds.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What stands at a path. Of a file's mode only the executable bit is Git's.
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
    /// A symlink, with the bytes it points at.
    Link(Vec<u8>),
}

/// All entries below a folder, by their path as bytes.
pub type Tree = BTreeMap<Vec<u8>, Entry>;

/// Reads everything below `root`, following no link but `root` itself.
///
/// # Errors
/// Something cannot be read, or vanishes meanwhile.
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
