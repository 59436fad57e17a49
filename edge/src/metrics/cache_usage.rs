//! How full the blob cache is.

use prometheus::core::Collector;
use prometheus::{IntGauge, IntGaugeVec, Opts};

use crate::blob_cache::Holding;

/// How full the blob cache is. Filled in when somebody looks.
#[derive(Debug, Clone)]
pub(crate) struct CacheUsage {
    bytes: IntGauge,
    limit_bytes: IntGauge,
    entries: IntGauge,
    limit_entries: IntGauge,
    /// Of no value while nothing is kept.
    oldest_idle_seconds: IntGaugeVec,
    memory_bytes: IntGauge,
    memory_limit_bytes: IntGauge,
    memory_entries: IntGauge,
    small_limit_bytes: IntGauge,
    is_writing: IntGauge,
}

impl CacheUsage {
    pub(super) fn new() -> prometheus::Result<Self> {
        Ok(Self {
            bytes: IntGauge::new("weir_edge_cache_bytes", "Bytes of blobs in files, those being fetched included.")?,
            limit_bytes: IntGauge::new("weir_edge_cache_limit_bytes", "Bytes of blobs in files, at the most.")?,
            entries: IntGauge::new("weir_edge_cache_entries", "Blobs in files.")?,
            limit_entries: IntGauge::new("weir_edge_cache_limit_entries", "Blobs in files, at the most.")?,
            oldest_idle_seconds: IntGaugeVec::new(
                Opts::new(
                    "weir_edge_cache_oldest_idle_seconds",
                    "How long a blob that is next to be evicted has not been used: the longer, the roomier the cache.",
                ),
                &[],
            )?,
            memory_bytes: IntGauge::new("weir_edge_cache_memory_bytes", "Bytes of blobs in memory.")?,
            memory_limit_bytes: IntGauge::new(
                "weir_edge_cache_memory_limit_bytes",
                "Bytes of blobs in memory, at the most.",
            )?,
            memory_entries: IntGauge::new("weir_edge_cache_memory_entries", "Blobs in memory.")?,
            small_limit_bytes: IntGauge::new(
                "weir_edge_cache_small_limit_bytes",
                "Bytes on disk that are reserved for small blobs; 0 when small blobs are kept in files.",
            )?,
            is_writing: IntGauge::new(
                "weir_edge_cache_writing",
                "Whether blobs are kept on disk: 0 for a while after it was found full or read-only.",
            )?,
        })
    }

    pub(super) fn all(&self) -> Vec<Box<dyn Collector>> {
        let gauges = [
            &self.bytes,
            &self.limit_bytes,
            &self.entries,
            &self.limit_entries,
            &self.memory_bytes,
            &self.memory_limit_bytes,
            &self.memory_entries,
            &self.small_limit_bytes,
            &self.is_writing,
        ];
        let gauges = gauges.into_iter().map(|gauge| Box::new(gauge.clone()) as Box<dyn Collector>);
        gauges.chain([Box::new(self.oldest_idle_seconds.clone()) as Box<dyn Collector>]).collect()
    }

    pub(crate) fn set(&self, holding: &Holding, limit_entries: u64, is_writing: bool) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.bytes.set(number(holding.bytes));
        self.limit_bytes.set(number(holding.limit_bytes));
        self.entries.set(number(holding.blobs as u64));
        self.limit_entries.set(number(limit_entries));
        match holding.oldest_idle_seconds {
            Some(idle) => self.oldest_idle_seconds.with_label_values::<&str>(&[]).set(number(idle)),
            None => self.oldest_idle_seconds.reset(),
        }
        self.memory_bytes.set(number(holding.memory_bytes));
        self.memory_limit_bytes.set(number(holding.memory_limit_bytes));
        self.memory_entries.set(number(holding.memory_blobs as u64));
        self.small_limit_bytes.set(number(holding.small_limit_bytes));
        self.is_writing.set(i64::from(is_writing));
    }
}
