//! Reads the stored documents of operators for `--check-config`; an origin may be running.

use prometheus::Registry;
use weir_model::ServerClocks;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_publish::stored_definitions;
use weir_runtime::bounds::Bounds;
use weir_store::{Objects, StoreMetrics};

use crate::catalog::{Definitions, Documents};
use crate::config::Config;
use crate::plans;
use crate::record_engine::open_records;

/// Problems of stored documents that an operator should know before an upgrade.
#[derive(Debug, Default)]
pub struct StoredDocuments {
    /// Documents that this version refuses: kind and name, and the reason.
    pub refused: Vec<(String, String)>,
    /// Services whose repository is not defined, with its name.
    pub without_repository: Vec<(ServiceName, RepositoryName)>,
}

/// Reads the documents without writing anything.
///
/// # Errors
/// The store cannot be read.
pub async fn stored_documents(config: &Config) -> anyhow::Result<StoredDocuments> {
    if config.cluster.is_none() && !config.data_dir.join("records").try_exists()? {
        return Ok(StoredDocuments::default());
    }
    let metrics = StoreMetrics::register(&Registry::new())?;
    let objects =
        Objects::open(&config.store, &config.data_dir, metrics.clone(), (&Bounds::default(), &ServerClocks::default()))
            .await?;
    let records = open_records(config, &config.data_dir, metrics)?;
    let api = Documents::stored(&stored_definitions(&objects, &records).await?, config.cluster.is_some());
    let defined = Definitions::of(&Documents::new(&config.repositories, &config.services), &api);
    let without_repository =
        defined.without_repository().map(|(service, repository)| (service.clone(), repository.clone()));
    let mut refused = defined.refused();
    let plans = plans::refused(&records).await?;
    refused.extend(plans.into_iter().map(|(name, reason)| (format!("rollout {name}"), reason)));
    Ok(StoredDocuments { refused, without_repository: without_repository.collect() })
}
