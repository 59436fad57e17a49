//! The limits of a role's resources with their use, read when metrics are collected.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Registry};
use tokio::sync::Semaphore;

/// A bound's name, its use, and the bound.
pub type Bound = (&'static str, u64, u64);

crate::metric_families! {
    /// The families of bounds.
    pub struct BoundMetrics {
        /// How much of a bound is in use. See the reference of limits for each bound.
        in_use: IntGaugeVec = "weir_bound_in_use" { bound };
        /// The bound: how much may be in use.
        limit: IntGaugeVec = "weir_bound_limit" { bound };
    }
}

struct Collected {
    metrics: BoundMetrics,
    read: Box<dyn Fn() -> Vec<Bound> + Send + Sync>,
}

/// Registers the bounds that `read` returns.
///
/// # Errors
/// The names are registered already.
pub fn register(registry: &Registry, read: impl Fn() -> Vec<Bound> + Send + Sync + 'static) -> prometheus::Result<()> {
    registry.register(Box::new(Collected { metrics: BoundMetrics::build("")?, read: Box::new(read) }))
}

impl Collector for Collected {
    fn desc(&self) -> Vec<&Desc> {
        self.metrics.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for (name, in_use, limit) in (self.read)() {
            self.metrics.in_use.with_label_values(&[name]).set(number(in_use));
            self.metrics.limit.with_label_values(&[name]).set(number(limit));
        }
        self.metrics.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}

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
        register(registry, move || {
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
