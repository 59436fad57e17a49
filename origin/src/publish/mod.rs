//! Publishing: objects are stored first, one compare-and-set of the repository's record follows, then requests see
//! the change.
//!
//! Begin at [`publisher`], the interface, which names its parts. [`repositories`] has what is known of each repository, and
//! the way to its [`writer`], which applies changes in batches; [`ownership`] says when it may. A [`record`] names state
//! [`page`]s and history segments, which are objects; each row of a page is one service. [`decision`] and [`retention`] are
//! pure.

mod alignment;
mod attempt;
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
mod row;
mod state_write;
mod store_identity;
mod stored_definitions;
#[cfg(test)]
mod tests;
pub mod verify;
mod write_pace;
mod writer;

pub(crate) use attempt::Attempt;
pub(crate) use deltas::DeltaPlan;
pub(crate) use error::{PublishError, TakeError, VersionChangeError};
pub(crate) use gc::Collector;
pub use history::{Entry, HistoryPage, Listed};
pub(crate) use history_line::Time;
pub use history_line::Why;
pub(crate) use known::{Retired, Started, Suspension};
pub(crate) use metrics::PublishMetrics;
pub(crate) use mirror::MirrorUpload;
pub(crate) use open::{Options, open};
pub(crate) use positions::{MIN_PREFIX, Positions, ReadPositions};
pub(crate) use publisher::{Publisher, SeenTip};
pub(crate) use record::{claim_of, reclaimed};
pub(crate) use reloads::Reloaded;
pub(crate) use repositories::Repositories;
pub(crate) use request::{Cached, DefinitionChange, VersionChange};
pub(crate) use row::unix_milliseconds;
pub(crate) use stored_definitions::{StoredDefinitions, stored_definitions};
pub(crate) use write_pace::WritePace;
