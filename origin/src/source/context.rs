//! What all sources of one origin share.

use std::sync::Arc;

use weir_model::{Bounds, ServerClocks};
use weir_tarball::Limits;

use crate::source::git::mirror::FetchMemory;
use crate::source::{DataDir, SourceMetrics, UpstreamsConfig};

/// What all sources of one origin share.
pub(crate) struct SourceContext {
    pub(crate) data_dir: DataDir,
    pub(crate) metrics: SourceMetrics,
    /// Takes the time of the upstreams' answers.
    pub(crate) clocks: ServerClocks,
    /// The largest tarball.
    pub(crate) limits: Limits,
    /// Free bytes on the disk that a source does not use.
    pub(crate) min_free: u64,
    /// Which upstreams are allowed, and how much is fetched from each.
    pub(crate) upstreams: UpstreamsConfig,
    /// The memory of all fetches.
    pub(crate) fetch_memory: Arc<FetchMemory>,
}

/// The memory of all fetches from these upstreams.
pub(crate) fn fetch_memory(upstreams: &UpstreamsConfig, bounds: &Bounds) -> Arc<FetchMemory> {
    let memory = Arc::new(FetchMemory::new(upstreams.max_object.as_u64(), upstreams.max_objects));
    let (shown, limit) = (memory.clone(), usize::try_from(memory.limit()).unwrap_or(usize::MAX));
    bounds.show("fetch_memory_bytes", limit, move || shown.in_use() as usize);
    memory
}
