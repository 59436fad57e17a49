//! The catalog: the current version of each service, its freshness, and when its origin is queried.
//!
//! [`Catalog`] stores the entries in memory and in a [`journal`]. [`Lookup`] queries origins as the policy in
//! [`freshness`] says. [`update`] decides which updates are applied. [`lease`] extends freshness by the event
//! streams.

mod apply;
mod changes;
mod entries;
mod entry;
mod error;
mod freshness;
mod journal;
mod lease;
mod list_files;
mod lookup;
mod metrics;
mod names;
mod negative_cache;
mod past_versions;
mod queries;
mod record;
mod retained;
mod revisions;
mod staged;
mod store;
#[cfg(test)]
mod tests;
mod unannounced;
mod update;
mod version_lists;
mod vouching;
mod write_queue;
mod writer;

pub(crate) use apply::UpdateOutcome;
pub(crate) use changes::{CatalogChange, OldestHeartbeat, RowChange};
pub(crate) use entries::CatalogBounds;
pub(crate) use entry::{Entry, PurgeMode};
pub(crate) use error::LookupError;
pub(crate) use freshness::FreshnessPolicies;
pub(crate) use lease::FreshnessLease;
pub(crate) use list_files::ListFiles;
pub(crate) use lookup::{Lookup, LookupResult, RevalidateMode};
pub(crate) use metrics::CatalogMetrics;
pub(crate) use negative_cache::Failure;
pub(crate) use revisions::RevisionStatus;
pub(crate) use store::Catalog;
pub(crate) use update::{Update, UpdateContent, UpdateSource};
pub(crate) use version_lists::{LIST_TTL, Listing, MIN_LIST_INTERVAL, VersionList};
