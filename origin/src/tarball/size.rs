//! How large a tarball would be, entry by entry, before any of it is made.

use super::run::tar_bytes;
use super::walk::Entry;
use super::{Limits, TarballError};

/// The entries so far.
pub(super) struct Size<'a> {
    bytes: u64,
    limits: &'a Limits,
}

impl<'a> Size<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        Self { bytes: 0, limits }
    }

    /// # Errors
    /// With this entry the tarball would be too large, as a build would find too.
    pub(super) fn add(&mut self, entry: &Entry) -> Result<(), TarballError> {
        self.bytes = self.bytes.saturating_add(tar_bytes(entry));
        let limit = self.limits.max_tarball_bytes;
        if self.bytes > limit { Err(TarballError::TooLarge { limit }) } else { Ok(()) }
    }
}
