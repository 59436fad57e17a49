//! A look at what operators stored, beside an origin that may be running: for `--check-config`.

use anyhow::Context;
use prometheus::Registry;
use weir_protocol::name::{RepositoryName, ServiceName};

use crate::bounds::Bounds;
use crate::catalog::{Definitions, Documents};
use crate::config::Config;
use crate::publish::stored_definitions;
use crate::store::{Objects, Records, StoreMetrics};

/// What an operator should know of the stored documents before an upgrade.
#[derive(Debug, Default)]
pub struct StoredDocuments {
    /// Those that the rules of this version refuse: each with its kind and name, and why.
    pub refused: Vec<(String, String)>,
    /// Services of a repository that neither the file nor an operator defines, each with its name.
    pub left_alone: Vec<(ServiceName, RepositoryName)>,
}

/// Reads what operators stored, and writes nothing.
///
/// # Errors
/// The store cannot be read.
pub async fn stored_documents(config: &Config) -> anyhow::Result<StoredDocuments> {
    if !config.data_dir.join("records").try_exists()? {
        return Ok(StoredDocuments::default());
    }
    let metrics = StoreMetrics::register(&Registry::new())?;
    let objects = Objects::open(&config.store, &config.data_dir, metrics.clone(), &Bounds::default()).await?;
    let records = Records::open_local(&config.data_dir, metrics).context("the folder of records cannot be used")?;
    let api = Documents::stored(&stored_definitions(&objects, &records).await?);
    let defined = Definitions::of(&Documents::new(&config.repositories, &config.services), &api);
    let left_alone = defined.left_alone().map(|(service, repository)| (service.clone(), repository.clone()));
    Ok(StoredDocuments { refused: api.refused(), left_alone: left_alone.collect() })
}
