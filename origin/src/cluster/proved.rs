//! Proves the engine before this origin trusts it with records for the first time.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::catalog::version;
use crate::config::{ClusterConfig, Config};
use crate::record_engine::prove;
use crate::starting::Starting;
use weir_runtime::durable_file;
use weir_store::proof::{Proof, ProofError};

/// What was proved by this data directory. A proof takes about 220 requests, so it is not repeated at each start.
const FILE: &str = "cluster-proved";

/// Proves the engine of `[cluster]`, unless this data directory has proved the same one before.
///
/// # Errors
/// The engine is not proved.
pub(crate) async fn ensure_proved(
    config: &Config,
    cluster: &ClusterConfig,
    data_dir: &Path,
    starting: &Starting,
) -> anyhow::Result<()> {
    let store = &config.store;
    let endpoints = cluster.etcd.as_ref().map(|etcd| (&etcd.endpoints, &etcd.prefix));
    let engine = version(&(cluster.engine, &store.url, &store.endpoint, endpoints));
    if fs::read_to_string(data_dir.join(FILE)).is_ok_and(|proved| proved.trim_end() == engine) {
        return Ok(());
    }
    tracing::info!(engine = %cluster.engine, "checking that the engine can hold the records of several origins");
    let refused = || format!("[cluster] engine = \"{}\"", cluster.engine);
    let is_unavailable = |error: &ProofError| matches!(error, ProofError::Unavailable(_));
    let proof = starting.until_answered(is_unavailable, async || Box::pin(prove(config)).await).await;
    let Proof { races, writers, .. } = proof.with_context(refused)?;
    tracing::info!(engine = %cluster.engine, races, writers, "the engine can hold the records of several origins");
    durable_file::replace(&data_dir.join(FILE), format!("{engine}\n").as_bytes()).context("data_dir cannot be written")
}
