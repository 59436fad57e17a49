//! The catalog: the current version of each service, its freshness, and when its origin is queried.
//!
//! [`Catalog`] stores the entries in memory and in a [`journal`]. [`Lookup`] queries origins as the policy in
//! [`freshness`] says. [`decision`] decides which updates are applied. [`lease`] extends freshness by the event
//! streams.

mod decision;
mod entry;
mod error;
mod freshness;
mod journal;
mod lease;
mod lookup;
mod metrics;
mod negative;
mod past;
mod record;
mod revisions;
mod rows;
mod store;
#[cfg(test)]
mod tests;
mod updates;
mod writer;

pub(crate) use decision::{Update, UpdateContent, UpdateSource};
pub(crate) use entry::{Entry, PurgeMode};
pub(crate) use error::LookupError;
pub(crate) use freshness::FreshnessPolicies;
pub(crate) use lease::FreshnessLease;
pub(crate) use lookup::{Lookup, LookupResult, RevalidateMode};
pub(crate) use metrics::CatalogMetrics;
pub(crate) use revisions::Seen;
pub(crate) use rows::CatalogBounds;
pub(crate) use store::Catalog;
pub(crate) use updates::Outcome;
