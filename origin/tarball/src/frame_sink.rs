//! The output of a build.

use std::io;

use bytes::Bytes;
use weir_protocol::digest::ObjectDigest;

/// Stores frames as objects. Several threads of a build call it at once.
pub trait FrameSink: Sync {
    /// Takes one frame and returns its digest. The frame need not be durable yet: the caller waits for durability
    /// before it publishes. Block only while too many writes are outstanding, because blocking here slows the build.
    ///
    /// # Errors
    /// This frame or an earlier one cannot be stored; the build ends with [`super::TarballError::Write`].
    fn put(&self, frame: Bytes) -> io::Result<ObjectDigest>;
}
