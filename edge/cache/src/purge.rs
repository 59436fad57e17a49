//! Purges: a hard one removes representations, a soft one has them verified again.

use weir_protocol::digest::ObjectDigest;

use super::cache::Cache;
use super::representation::{BodyRequest, Frames};

/// What a purge removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Purged {
    /// So many objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Cache {
    /// The frames of a representation, as far as they are known without a fill. Blocks.
    fn peek_frames(&self, request: &BodyRequest) -> Option<Frames> {
        if !request.has_manifest() {
            return Some(Frames::one(request));
        }
        let (objects, digest) = (&self.objects, &request.stored.digest);
        if let Some(manifest) = objects.manifests.get(digest, request).ok()? {
            return Some(Frames::Many(manifest));
        }
        let bytes = objects.memory.get(digest).or_else(|| {
            let bytes = objects.disk.peek(digest)?;
            (ObjectDigest::of(&bytes) == *digest).then(|| bytes.into())
        })?;
        objects.manifests.parse(digest, request, &bytes).ok().map(Frames::Many)
    }

    /// Removes representations with their manifests and frames. Other versions may share frames and fetch them again.
    /// Blocks.
    pub fn purge(&self, representations: &[BodyRequest]) -> Purged {
        let mut purged = Purged::default();
        for request in representations {
            let frames = self.peek_frames(request);
            let listed = frames.iter().flat_map(|frames| frames.all().iter().map(|frame| frame.digest));
            for digest in listed.chain([request.stored.digest]) {
                let bytes = self.purge_object(&digest);
                purged.objects += u64::from(bytes.is_some());
                purged.bytes += bytes.unwrap_or(0);
            }
        }
        purged
    }

    /// Has representations verified before their next use by removing them from memory: reads from disk are always
    /// verified. Blocks.
    pub fn reverify(&self, representations: &[BodyRequest]) -> Purged {
        let mut dropped = Purged::default();
        for request in representations {
            let frames = self.peek_frames(request);
            self.objects.manifests.remove(&request.stored.digest);
            let listed = frames.iter().flat_map(|frames| frames.all().iter().map(|frame| frame.digest));
            for bytes in listed.chain([request.stored.digest]).filter_map(|digest| self.objects.memory.remove(&digest))
            {
                dropped.objects += 1;
                dropped.bytes += bytes;
            }
        }
        dropped
    }

    /// Removes one object. Returns its size. Blocks.
    pub fn purge_object(&self, digest: &ObjectDigest) -> Option<u64> {
        self.objects.purge(digest)
    }
}
