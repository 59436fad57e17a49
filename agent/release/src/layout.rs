//! The folders in the directory of a service.

/// Complete releases.
pub const RELEASES: &str = "releases";

/// Releases and tarballs in progress.
pub(crate) const INCOMING: &str = "incoming";
