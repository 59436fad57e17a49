//! Metrics of the origin's limits: each limit with its current use.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::Registry;
use tokio::sync::Semaphore;
use weir_runtime::bounds::{self, Bound};

type ReadBound = Box<dyn Fn() -> Bound + Send>;

/// The registered limits. Clones share them.
#[derive(Clone, Default)]
pub struct Bounds(Arc<Mutex<Vec<ReadBound>>>);

impl Bounds {
    /// Registers the metrics of the limits that will be shown.
    ///
    /// # Errors
    /// Their names are registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let all = Self::default();
        let shown = all.clone();
        bounds::register(registry, move || {
            shown.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|bound| bound()).collect()
        })?;
        Ok(all)
    }

    /// Creates a semaphore that is registered under this name.
    pub fn semaphore(&self, name: &'static str, limit: usize) -> Arc<Semaphore> {
        let semaphore = Arc::new(Semaphore::new(limit));
        let watched = semaphore.clone();
        self.show(name, limit, move || limit - watched.available_permits());
        semaphore
    }

    /// Registers a limit. `in_use` is called for each collection of metrics.
    pub fn show(&self, name: &'static str, limit: usize, in_use: impl Fn() -> usize + Send + 'static) {
        let bound = move || (name, in_use() as u64, limit as u64);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(bound));
    }
}

impl std::fmt::Debug for Bounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bounds").finish_non_exhaustive()
    }
}
