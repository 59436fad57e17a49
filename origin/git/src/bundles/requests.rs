//! What is requested of bundles, and the results.

use bytes::Bytes;
use weir_model::stored_mirror::{MirrorManifest, Part, StoredLfsObject};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;
use weir_upstream::RepositoryConfig;

use crate::lfs::LfsFile;

/// Reads an object of the stored mirror, or says why it cannot be read.
pub type ReadPart<'a> = &'a dyn Fn(&Part) -> Result<Bytes, String>;

/// Parameters of taking LFS objects from the stored mirror.
pub struct StoredLfsRequest<'a> {
    /// The repository, for messages.
    pub repository: &'a RepositoryName,
    /// The files whose objects are needed.
    pub files: &'a [LfsFile],
    /// The objects of the stored mirror.
    pub stored: &'a [StoredLfsObject],
    /// Reads their parts.
    pub read: ReadPart<'a>,
    /// The largest object to take, in bytes.
    pub max_object: u64,
}

/// Parameters of making content from bundles.
pub struct HydrateRequest<'a> {
    /// The repository.
    pub config: &'a RepositoryConfig,
    /// The stored mirror.
    pub stored: &'a MirrorManifest,
    /// Reads its parts.
    pub read: ReadPart<'a>,
    /// Take in newer bundles although there is content. Nothing else may change it.
    pub update: bool,
    /// Called with the reason when damaged content is set aside.
    pub on_mirror_replaced: &'a dyn Fn(&str),
}

/// Parameters of writing a bundle.
pub struct BundleRequest<'a> {
    /// What is stored already.
    pub stored: &'a MirrorManifest,
    /// Reads its parts.
    pub read: ReadPart<'a>,
    /// Stores an object.
    pub write: &'a dyn Fn(Bytes) -> Result<ObjectDigest, String>,
    /// Unix milliseconds.
    pub now: u64,
    /// The repository is about to move.
    pub at_once: bool,
    /// The largest mirror to store, in bytes.
    pub max_mirror: u64,
    /// The largest part, in bytes.
    pub max_part: u64,
}

/// The result of writing a bundle.
#[derive(Debug)]
pub enum Bundled {
    /// Nothing moved since the last one.
    UpToDate,
    /// The last one is too recent.
    NotYet,
    /// A bundle was written.
    Written(WrittenBundle),
}

/// A new bundle.
#[derive(Debug)]
pub struct WrittenBundle {
    /// All that is stored now.
    pub stored: MirrorManifest,
    /// Whether it has all of the mirror.
    pub is_full: bool,
    /// Bytes written.
    pub bytes: u64,
}

/// Why a bundle could not be written, or content not be made from bundles.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It is above the limit.
    #[error("the mirror has {bytes} bytes, more than `[store] max_mirror` = {limit}: raise it to store the mirror")]
    TooLarge {
        /// Bytes of the mirror.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// `stop` was set.
    #[error("it was interrupted")]
    Interrupted,
    /// For operators.
    #[error("{0}")]
    Failed(String),
}

impl BundleError {
    /// A failure with this reason.
    pub fn failed(error: &dyn std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}
