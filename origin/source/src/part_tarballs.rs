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
pub struct PartTarballs {
    spools: SpoolStore,
    max_bytes: u64,
}

impl PartTarballs {
    /// In a directory, which is emptied before its first use. All that is unpacked at a time has at most `max_bytes`.
    pub fn new(directory: PathBuf, max_bytes: u64) -> Self {
        Self { spools: SpoolStore::new(directory), max_bytes }
    }

    /// The bytes of all that is unpacked now.
    pub fn bytes(&self) -> u64 {
        self.spools.bytes()
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
        // Its own size was bounded when it was published.
        let bounds = Bounds {
            max_archive: u64::MAX,
            max_archive_key: "",
            max_unpacked: u64::MAX,
            max_file: limits.max_file_bytes,
            max_spools: self.max_bytes,
        };
        let key = (sha256, Layout::AsIs);
        let spool = self.spools.add(key.clone(), tar, &bounds, stop).map_err(|error| {
            let retry = if error.is_in_archive() { RetryPolicy::Never } else { RetryPolicy::NextPoll };
            let reason = match error {
                // Of whoever reads frames.
                ArchiveError::Disk(error) => format!("its published tarball cannot be read: {error}"),
                ArchiveError::SpoolsTooLarge(limit) => {
                    format!("it does not fit on the disk: unpacked parts have more than `[upstreams] max_mirror` = {limit} bytes")
                }
                error => format!("its published tarball {error}"),
            };
            ServiceFailure { retry, ..ServiceFailure::transient("build", reason) }
        })?;
        self.spools.remove(&key);
        let tree = spool.open(&part.selection.folder).map(Tree::from);
        tree.map_err(|error| ServiceFailure::transient("build", without_path(&error).to_string()))
    }
}
