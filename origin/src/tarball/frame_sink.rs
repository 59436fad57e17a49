//! Where a build puts frames.

use std::io;

use bytes::Bytes;
use weir_protocol::digest::ObjectDigest;

/// Takes frames, each as an object of its own, from several threads of a build at once.
pub trait FrameSink: Sync {
    /// Takes one frame and returns its name. It need not be durable yet: a sink that waits for a disk here makes the build
    /// wait, so it should store frames meanwhile, wait for them before they are published, and block here only while too
    /// many are outstanding.
    ///
    /// # Errors
    /// This frame, or one before it, cannot be stored; the build ends with [`super::TarballError::Write`].
    fn put(&self, frame: Bytes) -> io::Result<ObjectDigest>;
}
