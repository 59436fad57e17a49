//! The frames of a representation, from a manifest or a single one.

use std::ops::Range;
use std::sync::Arc;

use weir_protocol::descriptor::Representation;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::manifest::{Frame, MAX_FRAME_TAR_BYTES, MAX_OBJECT_BYTES, Manifest, Slice};
use weir_protocol::name::RepositoryName;
use weir_protocol::request_id::RequestId;

use super::fill::{FillError, ObjectRequest, OriginId, Size};
use crate::cdn_loop::CdnLoop;

/// The most bytes per frame in a manifest.
const MAX_LISTED_FRAME_BYTES: u64 = 128;

/// A body to load, and the origin of its objects.
#[derive(Debug, Clone)]
pub struct BodyRequest {
    /// The repository it belongs to.
    pub repository: RepositoryName,
    /// The owner of its service; `None`: any origin.
    pub origin: Option<OriginId>,
    /// What the descriptor says of it.
    pub stored: Representation,
    /// The size of the tar in bytes.
    pub tar_size: u64,
    /// The id of the request for it; `None`: no client requests it.
    pub request_id: Option<RequestId>,
}

impl BodyRequest {
    pub(super) fn has_manifest(&self) -> bool {
        self.stored.frames > 1
    }

    /// The manifest, or the only frame.
    pub(super) fn named(&self) -> ObjectRequest {
        let size = match self.stored.frames {
            1 => Size::Exactly(self.stored.size),
            many => Size::AtMost((u64::from(many) * MAX_LISTED_FRAME_BYTES).min(MAX_OBJECT_BYTES as u64)),
        };
        self.object(self.stored.digest, size)
    }

    pub(super) fn frame(&self, frame: &Frame) -> ObjectRequest {
        self.object(frame.digest, Size::Exactly(frame.size))
    }

    fn object(&self, digest: ObjectDigest, size: Size) -> ObjectRequest {
        let (repository, passed, request_id) = (self.repository.clone(), CdnLoop::default(), self.request_id.clone());
        ObjectRequest { repository, digest, size, origin: self.origin, passed, request_id }
    }

    /// Checks that a manifest matches the descriptor.
    pub(super) fn check(&self, manifest: &Manifest) -> Result<(), FillError> {
        let found = (manifest.frames().len(), manifest.size(), manifest.tar_size());
        let expected = (self.stored.frames as usize, self.stored.size, self.tar_size);
        if found != expected {
            let reason = format!("(frames, bytes, bytes of tar) are {found:?}, and {expected:?} in the descriptor");
            return Err(FillError::BadManifest(reason));
        }
        Ok(())
    }
}

/// The frames of a body in order.
#[derive(Debug, Clone)]
pub(super) enum Frames {
    One(Frame),
    Many(Arc<Manifest>),
}

impl Frames {
    /// The only frame of a representation without a manifest.
    pub(super) fn one(request: &BodyRequest) -> Self {
        let Representation { digest, size, .. } = request.stored;
        Frames::One(Frame { digest, size, tar_size: request.tar_size })
    }

    pub(super) fn get(&self, index: usize) -> &Frame {
        &self.all()[index]
    }

    pub(super) fn all(&self) -> &[Frame] {
        match self {
            Frames::One(frame) => std::slice::from_ref(frame),
            Frames::Many(manifest) => manifest.frames(),
        }
    }

    /// The slices of frames that cover a range of the body, or of the tar with `of_tar`.
    pub(super) fn slices(&self, range: &Range<u64>, of_tar: bool) -> Vec<Slice> {
        match self {
            Frames::One(_) if range.is_empty() => Vec::new(),
            Frames::One(_) => vec![Slice { index: 0, start: range.start, end: range.end }],
            Frames::Many(manifest) if of_tar => manifest.tar_slices(range.clone()),
            Frames::Many(manifest) => manifest.slices(range.clone()),
        }
    }

    /// Whether each frame is within the limit of decoded bytes.
    pub(super) fn are_decodable(&self) -> bool {
        match self {
            Frames::One(frame) => frame.tar_size <= MAX_FRAME_TAR_BYTES,
            // Checked when the manifest was parsed.
            Frames::Many(_) => true,
        }
    }
}
