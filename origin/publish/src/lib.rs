//! Publishing: objects are stored first, one compare-and-set of the repository's record follows, then requests see
//! the change.
//!
//! The crate knows the store, and of sources only what a [`Service`](weir_source::Service) is and which candidate was built
//! of it. Who follows the upstreams, who owns a repository and who tells edges is decided above it.
//!
//! Begin at [`Publisher`], which names its parts. [`Repositories`] has what is known of each repository, and the way to its
//! writer (`writer.rs`), which applies changes in batches; [`Ownership`] says when it may. A record (`record.rs`) names state
//! pages and history segments, which are objects; each row of a page is one service. `decision.rs` and `retention.rs` are
//! pure.

mod alignment;
mod attempt;
pub mod boot_clock;
mod config;
mod decision;
mod delta_queue;
mod deltas;
mod draft;
mod error;
mod gc;
mod generation;
mod history;
mod history_line;
mod homes;
mod keeper;
mod known;
mod load;
mod mark;
mod metrics;
mod mirror;
mod oci_form;
mod oci_layer;
mod open;
mod ownership;
mod page;
mod pending_change;
mod positions;
mod protection;
mod publication;
mod publisher;
mod queries;
mod record;
mod reloads;
mod repositories;
mod repository;
mod request;
mod retention;
mod revision_name;
mod row;
mod signer;
mod state_write;
mod store_identity;
mod stored_definitions;
#[cfg(test)]
mod tests;
mod validity;
pub mod verify;
mod write_pace;
mod writer;

pub use attempt::Attempt;
pub use config::RetentionConfig;
pub use deltas::{DeltaPlan, Deltas};
pub use error::{PublishError, TakeError, VersionChangeError};
pub use gc::Collector;
pub use history::{Act, Entry, HistoryPage, Listed};
pub use history_line::{Time, Why};
pub use known::{Retired, Started, SuspendedUntil, Suspension};
pub use metrics::PublishMetrics;
pub use mirror::{MirrorUpload, Mirrors};
pub use open::{Options, open};
pub use ownership::Ownership;
pub use positions::{Past, PastQuery, Positions, Threshold};
pub use publisher::{Publisher, SeenTip};
pub use queries::Queries;
pub use record::{RepositoryRecordError, claim_of, reclaimed};
pub use reloads::{Reload, Reloaded, Reloads};
pub use repositories::Repositories;
pub use repository::{Announce, MayStoreBlobs};
pub use request::{Author, Cached, DefinitionChange, Outcome, VersionChange};
pub use revision_name::{CURRENT, MIN_PREFIX, PREVIOUS};
pub use row::unix_milliseconds;
pub use signer::Signer;
pub use store_identity::StoreIdentity;
pub use stored_definitions::{StoredDefinitions, stored_definitions};
pub use validity::Validity;
pub use write_pace::WritePace;
