//! How much a mirror takes of the disk.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::{Mirror, MirrorError, stale_files};

/// What is in a mirror: nothing but packs, and what Git keeps beside them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MirrorSize {
    /// How many packs.
    pub packs: usize,
    /// How many bytes, with their indices.
    pub bytes: u64,
}

impl Mirror {
    /// How much there is.
    ///
    /// # Errors
    /// [`MirrorError::Local`] when it cannot be looked at.
    pub fn size(&self) -> Result<MirrorSize, MirrorError> {
        of(&self.dir).map_err(MirrorError::local("be measured"))
    }
}

/// How many bytes the indices have in a directory of objects.
pub(super) fn of_indices(objects: &Path) -> io::Result<u64> {
    let is_index = |name: &Path| {
        name.extension().is_some_and(|ending| ending == "idx") || name.to_string_lossy().starts_with("multi-pack-index")
    };
    let mut bytes = 0;
    for entry in fs::read_dir(objects.join("pack"))? {
        let entry = entry?;
        if is_index(Path::new(&entry.file_name())) {
            // A repack may take it away meanwhile.
            bytes += match entry.metadata() {
                Err(error) if error.kind() == ErrorKind::NotFound => 0,
                data => data?.len(),
            };
        }
    }
    Ok(bytes)
}

/// How much there is in the bare repository in a directory.
pub(super) fn of(repository: &Path) -> io::Result<MirrorSize> {
    let entries = match fs::read_dir(repository.join("objects/pack")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(MirrorSize::default()),
        entries => entries?,
    };
    let mut size = MirrorSize::default();
    for entry in entries {
        let entry = entry?;
        // What a repack writes takes the place of what is there.
        if stale_files::is_repack_file(&entry.file_name().to_string_lossy()) {
            continue;
        }
        size.packs += usize::from(Path::new(&entry.file_name()).extension().is_some_and(|ending| ending == "pack"));
        size.bytes += match entry.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            data => data?.len(),
        };
    }
    Ok(size)
}
