//! The catalog: what each service is now, how fresh that is, and when its origin is asked.
//!
//! [`freshness`] is the rule, [`Catalog`] what is stored (in memory, over a file), [`Lookup`] queries origins by the rule,
//! [`decision`] says which of their updates are taken, and [`lease`] what their event streams say of all their services
//! at once.

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
