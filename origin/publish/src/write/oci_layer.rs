//! The SHA-256 of a body, by which OCI clients request it. It is serial, and no build reads the frames that it reuses: they are
//! read here, from the disk cache where the store is a bucket.

use futures_util::{StreamExt, stream};
use weir_protocol::digest::{Sha256, Sha256Hasher};
use weir_protocol::manifest::Frame;
use weir_protocol::name::RepositoryName;
use weir_store::{Area, ObjectError, Objects};

use crate::error::PublishError;

/// The frames in memory: one is hashed while the next one is read.
const FRAMES: usize = 2;

/// Hashes the frames of a stored body.
///
/// # Errors
/// The store did not answer, or a frame is lost that the build did not make: [`PublishError::LostFrame`].
pub(crate) async fn sha256_of(
    objects: &Objects,
    repository: &RepositoryName,
    frames: &[Frame],
) -> Result<Sha256, PublishError> {
    let digests: Vec<_> = frames.iter().map(|frame| frame.digest).collect();
    let read = |digest| async move { objects.get(repository, Area::Public, &digest).await };
    let mut reads = stream::iter(digests.into_iter().map(read)).buffered(FRAMES);
    let mut sha256 = Sha256Hasher::default();
    while let Some(frame) = reads.next().await {
        let frame = frame.map_err(|error| match error {
            ObjectError::Missing(_) | ObjectError::Corrupt(_) => PublishError::LostFrame(error.to_string()),
            ObjectError::Unavailable(_) => error.into(),
        });
        sha256.update(&frame?);
    }
    Ok(sha256.finish())
}
