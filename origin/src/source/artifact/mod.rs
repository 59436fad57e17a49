//! Sources of versions that are archives each: charts of Helm repositories.

mod chosen;
mod listing;

pub(crate) use chosen::{Blob, Chosen, Location, chart_revision};
pub(crate) use listing::list_charts;
