//! What the stored copy of a mirror consists of: Git bundles and LFS objects, in parts.

use serde::{Deserialize, Serialize};
use weir_protocol::digest::ObjectDigest;

/// The bundles of a mirror: a full one, and incremental ones, each on top of those before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MirrorManifest {
    pub(crate) bundles: Vec<Bundle>,
    /// The page of LFS objects, a list of [`StoredLfsObject`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lfs: Option<Part>,
}

/// A Git bundle. Its parts in a row are the file that `git clone` and `git fetch` read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bundle {
    /// Unix milliseconds.
    pub(crate) made_at: u64,
    /// How often it was combined with earlier incremental bundles.
    pub(crate) rank: u32,
    /// The header alone, which lists all refs, then the pack.
    pub(crate) parts: Vec<Part>,
}

/// An object that is part of something larger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) digest: ObjectDigest,
    /// Bytes.
    pub(crate) size: u64,
}

/// An LFS object of the mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredLfsObject {
    /// Its SHA-256, in hexadecimal.
    pub(crate) oid: String,
    pub(crate) parts: Vec<Part>,
}

impl Bundle {
    /// Bytes of all parts.
    pub(crate) fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.size).sum()
    }
}

impl MirrorManifest {
    /// When the newest bundle was made, in Unix milliseconds.
    pub(crate) fn made_at(&self) -> Option<u64> {
        self.bundles.last().map(|bundle| bundle.made_at)
    }

    /// All its objects: the parts of the bundles, and the page of LFS objects.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.bundles.iter().flat_map(|bundle| &bundle.parts).chain(&self.lfs)
    }
}
