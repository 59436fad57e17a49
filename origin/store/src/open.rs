//! Opens the configured store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::task::spawn_blocking;
use weir_model::ServerClocks;
use weir_runtime::bounds::Bounds;

use super::bucket;
use super::disk_cache::DiskCache;
use super::local_folder::LocalFolder;
use super::metrics::StoreMetrics;
use super::objects::{CONCURRENT_REQUESTS, Objects};
use crate::config::{StoreConfig, StoreLocation};

/// The store cannot be opened; the message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The section `[store]` of the configuration cannot be used.
    #[error("{0}")]
    Config(String),
    #[error("the folder {} cannot be used: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
}

impl Objects {
    /// Opens the configured store. The caller must hold the lock of the data directory while it uses the store. No
    /// request is sent to a bucket yet.
    ///
    /// # Errors
    /// The configuration names no usable store, or a folder cannot be read or created.
    pub async fn open(
        config: &StoreConfig,
        data_dir: &Path,
        metrics: StoreMetrics,
        (bounds, clocks): (&Bounds, &ServerClocks),
    ) -> Result<Self, OpenError> {
        let location = config.location().map_err(OpenError::Config)?;
        let requests = bounds.semaphore("store_requests", CONCURRENT_REQUESTS);
        let StoreLocation::Bucket(url) = location else {
            let (folder, create) = match location {
                StoreLocation::Folder(folder) => (folder, false),
                _ => (data_dir.join("objects"), true),
            };
            let (folder, store) = open_folder(folder, move |folder| LocalFolder::open(folder, create)).await?;
            let store = Arc::new(store);
            return Ok(Self::new(store, Some(folder), None, requests, metrics));
        };
        let store = bucket::open(config, &url, None, clocks).map_err(OpenError::Config)?;
        let cache = match config.cache.as_u64() {
            0 => None,
            limit => {
                let metrics = metrics.clone();
                let open = move |folder: &Path| DiskCache::open(folder.to_owned(), limit, metrics);
                Some(open_folder(data_dir.join("object-cache"), open).await?)
            }
        };
        Ok(Self::new(store, None, cache, requests, metrics))
    }
}

async fn open_folder<T: Send + 'static>(
    path: PathBuf,
    open: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, OpenError> {
    let opened = spawn_blocking(move || open(&path).map_err(|source| OpenError::Folder { path, source })).await;
    opened.unwrap_or_else(|error| Err(OpenError::Config(error.to_string())))
}
