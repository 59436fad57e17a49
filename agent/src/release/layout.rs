//! The folders in the directory of a service.

/// Complete releases.
pub(crate) const RELEASES: &str = "releases";

/// Releases and tarballs in progress.
pub(super) const INCOMING: &str = "incoming";
