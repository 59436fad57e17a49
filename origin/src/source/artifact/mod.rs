//! Sources of versions that are archives each: charts of Helm repositories.

mod chosen;

pub(crate) use chosen::{Blob, Chosen, Location, chart_revision};
