//! The disk usage of a mirror.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::{Mirror, MirrorError, stale_files};

/// The size of a mirror.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MirrorSize {
    /// The number of packs.
    pub packs: usize,
    /// Their size in bytes, indices included.
    pub bytes: u64,
}

impl Mirror {
    /// The mirror's size.
    ///
    /// # Errors
    /// [`MirrorError::Local`] if it cannot be read.
    pub fn size(&self) -> Result<MirrorSize, MirrorError> {
        measure(&self.dir).map_err(MirrorError::local("be measured"))
    }
}

/// The size of all indices in an object directory, in bytes.
pub(super) fn index_bytes(objects: &Path) -> io::Result<u64> {
    let is_index = |name: &Path| {
        name.extension().is_some_and(|ending| ending == "idx") || name.to_string_lossy().starts_with("multi-pack-index")
    };
    let mut bytes = 0;
    for entry in fs::read_dir(objects.join("pack"))? {
        let entry = entry?;
        if is_index(Path::new(&entry.file_name())) {
            // A concurrent repack may have removed it.
            bytes += match entry.metadata() {
                Err(error) if error.kind() == ErrorKind::NotFound => 0,
                data => data?.len(),
            };
        }
    }
    Ok(bytes)
}

/// The size of a bare repository.
pub(super) fn measure(repository: &Path) -> io::Result<MirrorSize> {
    let entries = match fs::read_dir(repository.join("objects/pack")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(MirrorSize::default()),
        entries => entries?,
    };
    let mut size = MirrorSize::default();
    for entry in entries {
        let entry = entry?;
        // Files of a running repack replace others.
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
