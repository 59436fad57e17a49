//! Where a build puts a blob.

use std::io;

use weir_shared::digest::BlobDigest;

/// Takes the bytes of a blob in their order.
pub trait BlobSink {
    /// The next bytes.
    ///
    /// # Errors
    /// They cannot be kept.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// The next bytes, which stand in the build's earlier blob from `offset` on, so that they need not be kept twice.
    ///
    /// # Errors
    /// They cannot be kept.
    fn append_earlier(&mut self, bytes: &[u8], _offset: u64) -> io::Result<()> {
        self.append(bytes)
    }

    /// The digest of all that was appended; no more is.
    fn end(&mut self) -> BlobDigest;
}

impl BlobSink for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self) -> BlobDigest {
        BlobDigest::of(self)
    }
}
