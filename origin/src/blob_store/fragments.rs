//! What blobs are made of, each in a file beside its blob: `blobs/ab/<64 hex>.fragments`.
//!
//! It lets the next build copy what did not change ([`Earlier`]). It goes with its blob, and where there is none, or a
//! wrong one, the next build makes everything anew.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;

use weir_shared::digest::BlobDigest;

use super::BlobStore;
use crate::tarball::{Earlier, FragmentIndex};

/// What follows the digest in the name of an index.
pub(super) const SUFFIX: &str = ".fragments";

/// A longer index is not read: 2 KiB for each 2 MiB of a tarball are 64 MiB for 64 GiB.
pub(super) const MAX_INDEX_BYTES: u64 = 64 << 20;

impl BlobStore {
    pub(super) fn fragments_path(&self, digest: &BlobDigest) -> PathBuf {
        let mut path = self.path(digest).into_os_string();
        path.push(SUFFIX);
        path.into()
    }

    /// Keeps what a blob is made of, unless it is kept already.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep_fragments(&self, digest: &BlobDigest, index: &FragmentIndex) -> io::Result<()> {
        let path = self.fragments_path(digest);
        if path.exists() {
            return Ok(());
        }
        let mut temporary = self.temporary()?;
        temporary.write_all(&index.to_bytes(digest))?;
        temporary.keep_as(&path)
    }

    /// A blob to take fragments from, if it is there and what it is made of is known. Its bytes are not looked at: each
    /// fragment is verified when it is taken.
    pub fn earlier(&self, digest: &BlobDigest) -> Option<Earlier> {
        let mut bytes = Vec::new();
        let path = self.fragments_path(digest);
        let index = File::open(&path).ok()?;
        index.take(MAX_INDEX_BYTES + 1).read_to_end(&mut bytes).ok()?;
        let Some(index) = FragmentIndex::parse(digest, &bytes) else {
            tracing::warn!(blob = %digest, "the file that says what a blob is made of is wrong; it is removed");
            // So that there is a right one again once the blob is built again.
            let _ = fs::remove_file(&path);
            return None;
        };
        Some(Earlier::new(self.open_stored(digest).ok()?, index))
    }
}
