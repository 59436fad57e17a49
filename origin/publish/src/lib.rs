//! Publishing: objects are stored first, one compare-and-set of the repository's record follows, then requests see
//! the change.
//!
//! The crate knows the store, and of sources only what a [`Service`](weir_source::Service) is and which candidate was built
//! of it. Who follows the upstreams, who owns a repository and who tells edges is decided above it.
//!
//! Begin at [`Publisher`], which names its parts. [`Repositories`] has what is known of each repository, and the way to its
//! writer (`write/writer.rs`), which applies changes in batches; [`Ownership`] says when it may. A record
//! (`stored/record.rs`) names state pages and history segments, which are objects; each row of a page is one service. What
//! is in `decide` is pure. The folders use each other in this order: `stored`, `decide`, `write`, `read`, `remove`.

pub mod boot_clock;
mod config;
mod decide;
mod error;
mod freezes;
mod metrics;
mod open;
mod plans;
mod publication;
mod publisher;
mod read;
mod remove;
mod request;
mod rollouts;
mod stage;
mod stored;
#[cfg(test)]
mod tests;
mod write;

pub use config::RetentionConfig;
pub use decide::signer::Signer;
pub use error::{PublishError, StageError, TakeError, VersionChangeError};
pub use freezes::{Freezes, Frozen};
pub use metrics::PublishMetrics;
pub use open::{Options, open};
pub use plans::Plans;
pub use publisher::{Publisher, SeenTip};
pub use read::positions::{Past, PastQuery, Positions, Threshold};
pub use read::queries::Queries;
pub use read::reloads::{Reload, Reloaded, Reloads};
pub use read::revision_name::{CURRENT, MIN_PREFIX, PREVIOUS};
pub use read::rollout::{Rollout, RolloutState, RolloutVersion};
pub use read::verify;
pub use remove::gc::Collector;
pub use request::{Author, Cached, DefinitionChange, Outcome, StagedByPlan, VersionChange};
pub use stored::history::{Act, Entry, HistoryPage, Listed};
pub use stored::history_line::{Time, Why};
pub use stored::known::{Retired, Started, SuspendedUntil, Suspension};
pub use stored::record::{RepositoryRecordError, claim_of, reclaimed};
pub use stored::row::unix_milliseconds;
pub use stored::store_identity::StoreIdentity;
pub use stored::stored_definitions::{StoredDefinitions, stored_definitions};
pub use write::attempt::Attempt;
pub use write::deltas::{DeltaPlan, Deltas};
pub use write::mirror::{MirrorUpload, Mirrors};
pub use write::ownership::Ownership;
pub use write::repositories::Repositories;
pub use write::repository::{Announce, MayStoreBlobs};
pub use write::validity::Validity;
pub use write::write_pace::WritePace;
