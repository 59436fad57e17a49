//! Errors of publishing and of changing versions.

use std::time::Duration;

use weir_protocol::descriptor::{Generation, MAX_DESCRIPTOR_BYTES};
use weir_protocol::digest::TarballDigest;
use weir_protocol::manifest::ManifestError;
use weir_protocol::name::{RepositoryName, RolloutName, ServiceName};
use weir_rollout::ActionError;
use weir_source::{RetryPolicy, ServiceFailure};
use weir_store::{ObjectError, RecordError};

/// A publication that could not be stored or made visible. Nothing of it is visible.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PublishError {
    /// The store failed, or an object is missing or damaged.
    #[error("an object cannot be stored or read: {0}")]
    Object(String),
    /// A reused frame is missing or damaged: a build without reuse stores it again.
    #[error("a frame of the version before is lost: {0}")]
    LostFrame(String),
    /// The record cannot be read or written now.
    #[error("the record of the repository cannot be read: {0}")]
    Record(String),
    /// The write may have been committed. The writer reads the record again and publishes the change if it was.
    #[error("the repository's record may or may not have been written ({0}); the origin tries again")]
    UnknownOutcome(String),
    /// The stored state is damaged or unread.
    #[error("publishing is suspended for repository `{repository}` until an operator confirms its state: {reason}")]
    Suspended {
        /// Which one.
        repository: RepositoryName,
        /// For operators.
        reason: String,
    },
    /// Objects that these records do not reference may belong to the other store.
    #[error(
        "the objects belong to store `{theirs}`, the records to store `{ours}`. If the objects are those of a cluster, set \
         [cluster]; otherwise give this origin a folder or a prefix of its own. If the records of the only origin here were \
         lost, put them back, or remove the object `store` to go on without them"
    )]
    ForeignObjects {
        /// The store identity in the records.
        ours: String,
        /// The store identity in the object `store`.
        theirs: String,
    },
    /// Generations cannot be lowered to this clock.
    #[error("generations cannot be lowered: {0}")]
    NotLowered(&'static str),
    /// Garbage collection protects the attempt's reused frames no longer.
    #[error("storing its objects took longer than {} s, a quarter of gc_grace_period; the build starts over", .0.as_secs())]
    AttemptExpired(Duration),
    /// A descriptor with this many bytes.
    #[error(
        "the descriptor would have {0} bytes, more than the limit of {MAX_DESCRIPTOR_BYTES}; leave out fewer paths"
    )]
    DescriptorTooLarge(usize),
    /// The manifest has too many frames.
    #[error("{0}")]
    Manifest(String),
    /// Another origin owns the repository, or none does now.
    #[error("this origin does not own repository `{0}` now: try again")]
    NotOwner(RepositoryName),
    /// The owner of another repository publishes the service, or is about to.
    #[error("service `{0}` moves to another repository: nothing of it is published here")]
    Moving(ServiceName),
    /// Another repository has the name of the service, and publishes it.
    #[error("service `{service}` is not published here until repository `{by}` releases it; the origin retries")]
    HeldElsewhere {
        /// The service.
        service: ServiceName,
        /// The other repository.
        by: RepositoryName,
    },
    /// Nothing says who may have the content of the service.
    #[error(
        "service `{service}` names rollout `{rollout}`, which is not defined, is of a later release, or could not be read yet: nothing new of it is published until then"
    )]
    NoSuchRollout {
        /// The service.
        service: ServiceName,
        /// The name of the plan.
        rollout: RolloutName,
    },
    /// Another member may define the service in another repository.
    #[error(
        "service `{0}` of the configuration file is not published before all members of the cluster have the same file; \
         it is tried again"
    )]
    FilesDiffer(ServiceName),
    /// Nothing is written any more.
    #[error("the origin is shutting down")]
    ShuttingDown,
}

/// Why a repository was not taken.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// The record has another version: somebody else wrote it.
    #[error("the record of the repository has another version than the one that was claimed")]
    Superseded,
    /// Try again.
    #[error(transparent)]
    Failed(#[from] PublishError),
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

impl From<PublishError> for ServiceFailure {
    fn from(error: PublishError) -> Self {
        let retry = match error {
            PublishError::DescriptorTooLarge(_) | PublishError::Manifest(_) => RetryPolicy::Never,
            // The other repository passes the name on when its owner has seen the move.
            PublishError::AttemptExpired(_) | PublishError::HeldElsewhere { .. } => RetryPolicy::BackOff,
            _ => RetryPolicy::NextPoll,
        };
        Self { retry, ..Self::transient("store", error.to_string()) }
    }
}

/// Why an operator's change of a version was refused. Nothing was changed, except perhaps after
/// [`PublishError::UnknownOutcome`].
#[derive(Debug, Clone, thiserror::Error)]
pub enum VersionChangeError {
    /// The change was not stored.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// There is no version to pin.
    #[error("service `{0}` has no published version to pin")]
    NothingPublished(ServiceName),
    /// The digest is not one of a retained version.
    #[error("service `{0}` has no retained version {1}; its history lists the retained versions")]
    NotRetained(ServiceName, TarballDigest),
    /// The service is at another generation than the operator has seen.
    #[error("service `{service}` is at generation {}, not at the expected one", displayed(*.current))]
    GenerationConflict {
        /// The service.
        service: ServiceName,
        /// Its current generation.
        current: Option<Generation>,
    },
    /// The definition that the operator meant is gone.
    #[error("service `{0}` was changed or deleted at the same time; nothing was done, try again")]
    Withdrawn(ServiceName),
}

/// Why a version was not staged. Nothing was changed, except perhaps after [`PublishError::UnknownOutcome`].
#[derive(Debug, Clone, thiserror::Error)]
pub enum StageError {
    /// As for every change of a version.
    #[error(transparent)]
    Change(#[from] VersionChangeError),
    /// The first publication is for everybody.
    #[error(
        "service `{0}` has no published version: its first one cannot be staged, because nothing is in force that stays"
    )]
    NothingInForce(ServiceName),
    /// Nothing can be promoted.
    #[error("service `{0}` has no staged version")]
    NothingStaged(ServiceName),
    /// An aborted version is promoted only if the request names the expected generation.
    #[error(
        "what was staged of service `{0}` was aborted: to publish it for all, send the `generation` of the version in force"
    )]
    Aborted(ServiceName),
    /// An operator has pinned the service.
    #[error("service `{0}` is pinned: unpin it first, because a pin is for everybody")]
    Pinned(ServiceName),
    /// It is the version in force.
    #[error("service `{0}` has published this content for everybody: stage another version")]
    InForce(ServiceName),
    /// A plan decides who gets the staged version.
    #[error("service `{0}` is staged by rollout `{1}`: promote or abort that first")]
    ByPlan(ServiceName, String),
    /// No plan stages the service.
    #[error("service `{0}` is not staged by a rollout, so there is nothing to pause, resume or approve")]
    NoPlan(ServiceName),
    /// An operator's action has no sense now.
    #[error("service `{0}`: {1}")]
    Action(ServiceName, ActionError),
    /// The descriptor in force with that of the staged version would have this many bytes.
    #[error(
        "the descriptor of service `{0}` would have {1} bytes with that of the staged version, more than the limit of \
         {MAX_DESCRIPTOR_BYTES}; leave out fewer paths"
    )]
    TooLarge(ServiceName, usize),
}

impl From<PublishError> for StageError {
    fn from(error: PublishError) -> Self {
        Self::Change(error.into())
    }
}

fn displayed(generation: Option<Generation>) -> String {
    generation.map_or("none".to_owned(), |generation| generation.to_string())
}
