//! What all sources of one origin share.

use std::sync::Arc;

use weir_tarball::Limits;

use crate::config::{LimitsConfig, UpstreamsConfig};
use crate::metrics::Metrics;
use crate::source::DataDir;
use crate::source::git::mirror::FetchMemory;

/// What all sources of one origin share.
pub(crate) struct SourceContext {
    pub(crate) data_dir: DataDir,
    pub(crate) metrics: Metrics,
    /// The largest tarball.
    pub(crate) limits: Limits,
    /// Free bytes on the disk that a source does not use.
    pub(crate) min_free: u64,
    /// Which upstreams are allowed, and how much is fetched from each.
    pub(crate) upstreams: UpstreamsConfig,
    /// The memory of all fetches.
    pub(crate) fetch_memory: Arc<FetchMemory>,
}

impl SourceContext {
    pub(crate) fn new(data_dir: DataDir, metrics: Metrics, limits: &LimitsConfig, upstreams: &UpstreamsConfig) -> Self {
        let fetch_memory = Arc::new(FetchMemory::new(upstreams.max_object.as_u64(), upstreams.max_objects));
        let (shown, limit) = (fetch_memory.clone(), usize::try_from(fetch_memory.limit()).unwrap_or(usize::MAX));
        metrics.bounds.show("fetch_memory_bytes", limit, move || shown.in_use() as usize);
        let (min_free, limits) = (limits.min_free.as_u64(), limits.tarball());
        Self { data_dir, metrics, limits, min_free, upstreams: upstreams.clone(), fetch_memory }
    }
}
