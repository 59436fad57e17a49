//! The service table: what each service is now, how fresh that is, and when its origin is asked.
//!
//! [`freshness`] is the rule, [`Table`] what is held (in memory over a file), [`Lookup`] asks origins by the rule,
//! [`decision`] is which of their words are taken, and [`vouch`] what their event streams say of all their services at
//! once.

mod changes;
mod decision;
mod entry;
mod error;
pub(crate) mod freshness;
mod gzip;
mod lookup;
mod missed;
mod negative;
mod past;
mod rules;
mod standing;
mod store;
mod table;
mod table_file;
mod undurable;
mod vouch;

pub(crate) use changes::{Change, Outcome, Said, Told};
pub(crate) use entry::{Entry, PurgeMode};
pub(crate) use error::LookupError;
pub(crate) use gzip::{GzipError, Gzips};
pub(crate) use lookup::{Demand, Found, Lookup};
pub(crate) use rules::Rules;
pub(crate) use standing::Standings;
pub(crate) use store::{Store, StoreError};
pub(crate) use table::Table;
pub(crate) use vouch::Vouch;
