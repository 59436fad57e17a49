//! Agents, assignments and issuers: what operators define beside repositories and services. Begin at [`FleetStore`].
//!
//! The documents of a kind are a table of shards, each a record that any origin replaces by compare-and-set. The entries of
//! the configuration file are each origin's own. Both travel to edges in the access list.

mod batch;
mod dry_run;
mod edit;
mod error;
mod fleet_entry;
mod metrics;
mod record;
mod store;
mod stored;

pub(crate) use self::dry_run::{FleetChange, KnownFleet, Observed, dry_run};
pub(crate) use self::error::FleetError;
pub(crate) use self::fleet_entry::{FleetBounds, FleetEntry, Tables};
pub(crate) use self::metrics::FleetMetrics;
pub(crate) use self::store::FleetStore;
pub(crate) use self::stored::MayShard;
