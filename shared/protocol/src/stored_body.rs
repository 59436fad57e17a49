//! What is stored of a version as a body of frames, whatever it is for.

use crate::descriptor::Descriptor;
use crate::digest::ObjectDigest;

/// A body that a descriptor references: a representation, or a blob of the OCI form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredBody {
    /// The digest of the only frame, which is the body; or of the [manifest](crate::manifest).
    pub digest: ObjectDigest,
    /// Bytes.
    pub size: u64,
    /// The number of frames, at least one.
    pub frames: u32,
}

/// Every body that a descriptor references, once: a representation may be a blob too.
pub fn stored_bodies(descriptor: &Descriptor) -> Vec<StoredBody> {
    let representations = descriptor.representations().iter();
    let representations = representations.map(|it| StoredBody { digest: it.digest, size: it.size, frames: it.frames });
    let blobs = descriptor.oci().into_iter().flat_map(|form| &form.blobs);
    let blobs = blobs.map(|it| StoredBody { digest: it.digest, size: it.size, frames: it.frames });
    let mut bodies: Vec<StoredBody> = representations.chain(blobs).collect();
    bodies.sort_unstable();
    bodies.dedup();
    bodies
}
