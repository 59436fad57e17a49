//! Replaces small files so that after a crash each is the old one or the new one.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use tempfile::NamedTempFile;

/// Replaces a file atomically and durably. Blocks.
///
/// # Errors
/// The folder does not exist, or the disk fails: the file is the old one or the new one.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut new = NamedTempFile::new_in(folder)?;
    new.write_all(bytes)?;
    new.as_file().sync_all()?;
    new.persist(path)?;
    sync_folder(folder)
}

/// Makes the names in a folder durable. Blocks.
///
/// # Errors
/// The disk fails.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
