//! Why something could not be published or changed.

use std::time::Duration;

use weir_protocol::descriptor::{Generation, MAX_DESCRIPTOR_BYTES};
use weir_protocol::digest::TarballDigest;
use weir_protocol::manifest::ManifestError;
use weir_protocol::name::{RepositoryName, ServiceName};

use crate::store::{ObjectError, RecordError};

/// What was found or built could not be stored or published. Nothing of it is shown.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum PublishError {
    /// An object cannot be stored or read just now.
    #[error("an object cannot be stored or read: {0}")]
    Object(String),
    /// The record cannot be read just now.
    #[error("the record of the repository cannot be read: {0}")]
    Record(String),
    /// The write may or may not have been committed. It is shown when it turns out that it was.
    #[error("whether the record of the repository was written is not known yet ({0}); it is tried again")]
    UnknownOutcome(String),
    /// An operator must look first.
    #[error("nothing is published of repository `{repository}` until an operator confirms its state: {reason}")]
    Suspended {
        /// Which.
        repository: RepositoryName,
        /// What is wrong, in plain words.
        reason: String,
    },
    /// What nothing refers to here may be needed by others.
    #[error(
        "the objects are those of store `{theirs}`, and the records those of `{ours}`: each origin needs a folder or a prefix \
         of its own. If the records were lost, put them back, or remove the object `store` to go on without them"
    )]
    ForeignObjects {
        /// The identity in the records.
        ours: String,
        /// The one in the object `store`.
        theirs: String,
    },
    /// Garbage collection may not wait for it any longer.
    #[error("storing its objects took longer than {} s, a quarter of gc_grace_period: it starts over", .0.as_secs())]
    AttemptExpired(Duration),
    /// Too many paths are left out.
    #[error(
        "the descriptor would have {0} bytes, more than the limit of {MAX_DESCRIPTOR_BYTES}: fewer paths must be left out"
    )]
    DescriptorTooLarge(usize),
    /// It has too many frames.
    #[error("{0}")]
    Manifest(String),
    /// The process ends.
    #[error("the origin is shutting down")]
    ShuttingDown,
}

impl From<ObjectError> for PublishError {
    fn from(error: ObjectError) -> Self {
        Self::Object(error.to_string())
    }
}

impl From<RecordError> for PublishError {
    fn from(error: RecordError) -> Self {
        Self::Record(error.to_string())
    }
}

impl From<ManifestError> for PublishError {
    fn from(error: ManifestError) -> Self {
        Self::Manifest(error.to_string())
    }
}

/// Why an operator's change of a version was not made. With any but [`PublishError::UnknownOutcome`], nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum VersionChangeError {
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("nothing is published of `{0}`: there is nothing to pin")]
    NothingPublished(ServiceName),
    #[error("`{0}` has no version {1}, or it is not retained any more: its history says which are")]
    NotRetained(ServiceName, TarballDigest),
    #[error("`{service}` is at generation {}, not at the one that was expected", shown(*.current))]
    GenerationConflict { service: ServiceName, current: Option<Generation> },
    #[error("`{0}` was changed or deleted just now, and nothing was done: try again")]
    Withdrawn(ServiceName),
}

fn shown(generation: Option<Generation>) -> String {
    generation.map_or("none".to_owned(), |generation| generation.to_string())
}
