//! The inputs of a build besides the contents.

use std::sync::atomic::AtomicBool;

use super::Limits;
use super::base::Base;

/// The inputs of a build besides the contents.
#[derive(Debug, Clone, Copy)]
pub struct BuildContext<'a> {
    /// Limits of the tarball.
    pub limits: &'a Limits,
    /// Threads that read, compress and put frames, at least one. One more walks, and the calling thread hashes.
    pub threads: usize,
    /// A build to reuse frames from. It does not change the result.
    pub base: Option<&'a Base>,
    /// Set to `true` to stop the build.
    pub interrupt: &'a AtomicBool,
}
