//! Charts of Helm repositories: which version a service follows, and where it is.
//!
//! [`Chart`] is what a service follows. `index` reads an index as a stream and keeps one version for each followed chart,
//! `choice` decides which, and [`HelmIndex`] requests the index only if it changed. In a registry each chart is a repository
//! ([`ChartRegistry`]), and `tags` decides which version is followed. `provenance` reads what signers state.

mod chart;
mod choice;
mod index;
mod listing;
mod metadata;
mod provenance;
mod registry;
mod tags;
mod yaml;

pub(crate) use chart::Chart;
pub use chart::{ChartName, ChartNameError};
pub(crate) use choice::{Place, Release};
#[cfg(feature = "fuzzing")]
pub use index::fuzz_helm_index;
pub(crate) use listing::HelmIndex;
pub(crate) use metadata::{MAX_METADATA_BYTES, config as chart_config};
pub(crate) use provenance::{MAX_PROVENANCE_BYTES, provenance_url, signed_digest};
pub(crate) use registry::{ARCHIVE, CONFIG, ChartLayers, ChartRegistry, ChartTag, ChartVersion, PROVENANCE};
