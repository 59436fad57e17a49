//! The service table: what each service is now, how fresh that is, and when its origin is asked.
//!
//! [`freshness`] is the rule, [`Table`] what is held (in memory over a file), [`Lookup`] asks origins by the rule.

mod changes;
mod entry;
pub(crate) mod freshness;
mod lookup;
mod store;
mod table;

pub(crate) use entry::Entry;
pub(crate) use lookup::{Demand, Found, Lookup, LookupError};
pub(crate) use store::Store;
pub(crate) use table::Table;
