//! Published tarballs that are parts of composed services.

use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use weir_protocol::digest::Sha256;
use weir_tarball::Limits;
use weir_upstream::without_path;

use crate::archive::{ArchiveError, Bounds, Layout, SpoolStore};
use crate::{RetryPolicy, Service, ServiceFailure, Tree};

/// Unpacks published tarballs for builds. Nothing stays of them: a build that needs one again reads its frames again.
pub struct PartTarballs(SpoolStore);

impl PartTarballs {
    /// In a directory, which is emptied before its first use.
    pub fn new(directory: PathBuf) -> Self {
        Self(SpoolStore::new(directory))
    }

    /// Unpacks the tarball of a part, whose bytes have this SHA-256. Blocks.
    ///
    /// # Errors
    /// It cannot be read, or the disk is full.
    pub fn unpack<'a>(
        &self,
        part: &'a Service,
        (sha256, tar): (Sha256, impl Read),
        limits: &Limits,
        stop: &AtomicBool,
    ) -> Result<Tree<'a>, ServiceFailure> {
        let bounds = Bounds {
            max_archive: u64::MAX,
            max_archive_key: "",
            max_unpacked: u64::MAX,
            max_file: limits.max_file_bytes,
            max_spools: u64::MAX,
        };
        let key = (sha256, Layout::AsIs);
        let spool = self.0.add(key.clone(), tar, &bounds, stop).map_err(|error| {
            let retry = if error.is_in_archive() { RetryPolicy::Never } else { RetryPolicy::NextPoll };
            let reason = match error {
                // Of whoever reads frames.
                ArchiveError::Disk(error) => format!("its published tarball cannot be read: {error}"),
                error => format!("its published tarball {error}"),
            };
            ServiceFailure { retry, ..ServiceFailure::transient("build", reason) }
        })?;
        self.0.remove(&key);
        let tree = spool.open(&part.selection.folder).map(Tree::from);
        tree.map_err(|error| ServiceFailure::transient("build", without_path(&error).to_string()))
    }
}
