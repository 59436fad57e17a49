//! From the configuration to the engine of the records.

use std::path::Path;

use anyhow::Context as _;
use weir_store::proof::{self, Proof, ProofError};
use weir_store::{Records, SharedEngine, StoreMetrics};

use crate::config::Config;

fn shared_engine(config: &Config) -> Result<Option<SharedEngine<'_>>, String> {
    config.cluster.as_ref().map(|cluster| cluster.shared_engine(&config.store)).transpose()
}

/// Opens the records of an origin: those of its data directory, whose lock it must hold, or those that the members of its
/// cluster share.
///
/// # Errors
/// The folder or the configuration cannot be used.
pub(crate) fn open_records(config: &Config, data_dir: &Path, metrics: StoreMetrics) -> anyhow::Result<Records> {
    match shared_engine(config).map_err(anyhow::Error::msg)? {
        Some(engine) => Records::open_shared(engine, metrics).map_err(anyhow::Error::msg),
        None => Records::open_local(data_dir, metrics)
            .with_context(|| format!("the folder of records in {} cannot be used", data_dir.display())),
    }
}

/// Proves the engine of `[cluster]`.
///
/// # Errors
/// The engine is not proved.
pub async fn prove(config: &Config) -> Result<Proof, ProofError> {
    let engine = shared_engine(config).map_err(ProofError::Config)?.ok_or_else(|| {
        ProofError::Config("there is no section [cluster]: the records of a single origin are in data_dir".to_owned())
    })?;
    proof::prove(engine).await
}
