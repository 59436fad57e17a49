//! Publishing: objects are stored first, one compare-and-set of the repository's record follows, then requests see
//! the change.
//!
//! Begin at [`publisher`], the interface. A [`record`] names state [`page`]s and history segments, which are objects;
//! each row of a page is one service. One [`writer`] for each repository applies changes in batches; [`ownership`] says
//! when it may. [`decision`] and [`retention`] are pure.

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
mod known;
mod load;
mod mark;
mod metrics;
mod mirror;
mod moving;
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
mod request;
mod retention;
mod row;
mod state_write;
mod store_identity;
mod stored_definitions;
mod suspended;
#[cfg(test)]
mod tests;
mod tips;
pub mod verify;
mod write_pace;
mod writer;

pub(crate) use attempt::Attempt;
pub(crate) use deltas::DeltaPlan;
pub(crate) use error::{PublishError, VersionChangeError};
pub use history::{Entry, HistoryPage, Listed};
pub(crate) use history_line::Time;
pub use history_line::Why;
pub(crate) use known::Suspension;
pub(crate) use metrics::PublishMetrics;
pub(crate) use mirror::MirrorUpload;
pub(crate) use open::{Options, Retired, Started};
pub(crate) use ownership::TakeError;
pub(crate) use positions::{MIN_PREFIX, Positions, ReadPositions};
pub(crate) use publisher::Publisher;
pub(crate) use record::{claim_of, reclaimed};
pub(crate) use request::{Cached, DefinitionChange, VersionChange};
pub(crate) use row::unix_milliseconds;
pub(crate) use stored_definitions::{StoredDefinitions, stored_definitions};
pub(crate) use suspended::Reloaded;
pub(crate) use tips::SeenTip;
pub(crate) use write_pace::WritePace;
