//! What a source has as a whole: an archive as its upstream has it, which is published beside the tarball of its files.

use weir_protocol::digest::Sha256;
use weir_protocol::manifest::Frame;
use weir_protocol::oci::UpstreamManifest;

/// The archive of a source, and what belongs to it. Their bytes are in the sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whole {
    /// `None`: the upstream has none.
    pub manifest: Option<UpstreamManifest>,
    /// The archive, and what else the manifest names.
    pub blobs: Vec<WholeBlob>,
}

/// Bytes of a [`Whole`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeBlob {
    /// Their SHA-256.
    pub sha256: Sha256,
    /// What they are.
    pub media_type: String,
    /// Slices of them, at least one. What they say of a tar are the sizes of the slices.
    pub frames: Vec<Frame>,
}
