//! Removing the blobs that nothing names any more, and what is kept beside them.

use std::collections::HashSet;
use std::fs;
use std::io;

use weir_shared::digest::BlobDigest;

use super::{BlobStore, TEMPORARY, fragments, pieces};

/// What a sweep did and left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Blobs that were removed.
    pub(crate) removed: u64,
    /// Blobs that are left.
    pub(crate) blobs: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

impl BlobStore {
    /// Removes every blob but these. A download that runs keeps its open file. The caller sees to it that nothing is
    /// published meanwhile.
    pub(crate) fn sweep(&self, keep: &HashSet<BlobDigest>) -> io::Result<Swept> {
        let mut swept = Swept::default();
        for folder in fs::read_dir(&self.root)? {
            let folder = folder?;
            if folder.file_name() == TEMPORARY || !folder.file_type()?.is_dir() {
                continue;
            }
            for file in fs::read_dir(folder.path())? {
                let file = file?;
                // What has another kind of name is not ours to remove.
                let Some((digest, kind)) = file.file_name().to_str().and_then(read_name) else { continue };
                if keep.contains(&digest) {
                    if kind == Kind::Blob {
                        swept.blobs += 1;
                        swept.bytes += file.metadata()?.len();
                    }
                } else {
                    match fs::remove_file(file.path()) {
                        // A request found it corrupt and was faster.
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        removed => {
                            removed?;
                            swept.removed += u64::from(kind == Kind::Blob);
                        }
                    }
                }
            }
        }
        Ok(swept)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Blob,
    /// A piece list, or what the blob is made of.
    Beside,
}

fn read_name(name: &str) -> Option<(BlobDigest, Kind)> {
    let beside = [pieces::SUFFIX, fragments::SUFFIX].iter().find_map(|suffix| name.strip_suffix(suffix));
    let (hex, kind) = beside.map_or((name, Kind::Blob), |hex| (hex, Kind::Beside));
    Some((format!("b3-{hex}").parse().ok()?, kind))
}
