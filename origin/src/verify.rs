//! From the configuration to what `weir-origin verify` reads.

use prometheus::Registry;
use weir_model::ServerClocks;
use weir_publish::verify::{self, Report};
use weir_runtime::bounds::Bounds;
use weir_store::{Objects, StoreMetrics};
use weir_upstream::DataDir;

use crate::config::Config;
use crate::record_engine::open_records;

/// Verifies the store of a stopped origin. With `delete_corrupt`, damaged frames, manifests and recipes are deleted,
/// and nothing else.
///
/// # Errors
/// The data directory was never used, an origin is running on it, or the store cannot be opened or listed.
pub async fn verify(config: &Config, delete_corrupt: bool) -> anyhow::Result<Report> {
    // Opening the store would create missing folders and hide that the path is wrong.
    let records = config.data_dir.join("records");
    let exist = config.cluster.is_some() || records.try_exists()?;
    anyhow::ensure!(exist, "{} does not exist: no origin has stored anything there", records.display());
    let (data_dir, _released) = DataDir::open(&config.data_dir)?;
    let metrics = StoreMetrics::register(&Registry::new())?;
    let objects =
        Objects::open(&config.store, data_dir.root(), metrics.clone(), (&Bounds::default(), &ServerClocks::default()))
            .await?;
    let records = open_records(config, data_dir.root(), metrics)?;
    let of_file = config.repositories.iter().map(|repository| repository.name.clone()).collect();
    Ok(verify::verify(&objects, records, of_file, delete_corrupt).await?)
}
