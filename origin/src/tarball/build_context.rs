//! What a build may use.

use std::sync::atomic::AtomicBool;

use super::Limits;
use super::base::Base;

/// What a build may use.
#[derive(Debug, Clone, Copy)]
pub struct BuildContext<'a> {
    /// What the tarball may not exceed.
    pub limits: &'a Limits,
    /// How many threads read, compress and put (at least one does); one more walks, and the calling thread hashes.
    pub threads: usize,
    /// A build to take frames from. The frames that are made do not depend on it.
    pub base: Option<&'a Base>,
    /// Set it to stop the build.
    pub interrupt: &'a AtomicBool,
}
