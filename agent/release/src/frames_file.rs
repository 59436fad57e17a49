//! The file `frames`: the manifest of the last tarball that was composed of frames. When it is lost or damaged, or of another
//! release, an edge is asked for that of the release.

use std::path::Path;

use serde::{Deserialize, Serialize};
use weir_protocol::digest::TarballDigest;
use weir_protocol::manifest::{Frame, MAX_OBJECT_BYTES, Manifest};

use crate::error::ReleaseError;
use crate::state_file::replace;
use crate::tree::{read_file, remove_file};

const FRAMES: &str = "frames";
const FRAMES_NEW: &str = ".frames.new";

/// The most bytes of the file: a manifest, and the digest.
const MAX_BYTES: u64 = MAX_OBJECT_BYTES as u64 + 1024;

#[derive(Serialize, Deserialize)]
struct Stored {
    digest: TarballDigest,
    frames: Vec<Frame>,
}

/// The frames of the tarball with this digest. `None`: others are stored, or none.
pub(crate) fn read(service: &Path, digest: TarballDigest) -> Option<Manifest> {
    let (bytes, _) = read_file(&service.join(FRAMES), MAX_BYTES).ok()?;
    let stored: Stored = serde_json::from_slice(&bytes).ok()?;
    Manifest::new(stored.frames).ok().filter(|_| stored.digest == digest)
}

pub(crate) fn write(service: &Path, digest: TarballDigest, manifest: &Manifest) -> Result<(), ReleaseError> {
    let stored = Stored { digest, frames: manifest.frames().to_vec() };
    let bytes = serde_json::to_vec(&stored).expect("frames are plain data");
    replace(&service.join(FRAMES_NEW), &service.join(FRAMES), &bytes)
}

/// Removes the temporary file of an earlier process.
pub(crate) fn remove_leftovers(service: &Path) -> Result<(), ReleaseError> {
    remove_file(&service.join(FRAMES_NEW))
}
