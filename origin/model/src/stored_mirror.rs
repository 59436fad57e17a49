//! What the stored copy of a mirror consists of: Git bundles and LFS objects, in parts.

use serde::{Deserialize, Serialize};
use weir_protocol::digest::ObjectDigest;

/// The bundles of a mirror: a full one, and incremental ones, each on top of those before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorManifest {
    /// The bundles, oldest first.
    pub bundles: Vec<Bundle>,
    /// The page of LFS objects, a list of [`StoredLfsObject`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lfs: Option<Part>,
}

/// A Git bundle. Its parts in a row are the file that `git clone` and `git fetch` read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    /// Unix milliseconds.
    pub made_at: u64,
    /// How often it was combined with earlier incremental bundles.
    pub rank: u32,
    /// The header alone, which lists all refs, then the pack.
    pub parts: Vec<Part>,
}

/// An object that is part of something larger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its name.
    pub digest: ObjectDigest,
    /// Bytes.
    pub size: u64,
}

/// An LFS object of the mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLfsObject {
    /// Its SHA-256, in hexadecimal.
    pub oid: String,
    /// Its bytes, in a row.
    pub parts: Vec<Part>,
}

impl Bundle {
    /// Bytes of all parts.
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.size).sum()
    }
}

impl MirrorManifest {
    /// When the newest bundle was made, in Unix milliseconds.
    pub fn made_at(&self) -> Option<u64> {
        self.bundles.last().map(|bundle| bundle.made_at)
    }

    /// All its objects: the parts of the bundles, and the page of LFS objects.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.bundles.iter().flat_map(|bundle| &bundle.parts).chain(&self.lfs)
    }
}
