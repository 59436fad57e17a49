//! What all sources of one origin share.

use std::sync::Arc;

use weir_git::mirror::FetchMemory;
use weir_model::ServerClocks;
use weir_runtime::bounds::Bounds;
use weir_tarball::Limits;
use weir_upstream::{DataDir, UpstreamsConfig};

use crate::SourceMetrics;

/// What all sources of one origin share.
pub struct SourceContext {
    /// Where sources store what they fetch.
    pub data_dir: DataDir,
    /// What sources count.
    pub metrics: SourceMetrics,
    /// Takes the time of the upstreams' answers.
    pub clocks: ServerClocks,
    /// The largest tarball.
    pub limits: Limits,
    /// Free bytes on the disk that a source does not use.
    pub min_free: u64,
    /// Which upstreams are allowed, and how much is fetched from each.
    pub upstreams: UpstreamsConfig,
    /// The memory of all fetches.
    pub fetch_memory: Arc<FetchMemory>,
}

/// The memory of all fetches from these upstreams.
pub fn fetch_memory(upstreams: &UpstreamsConfig, bounds: &Bounds) -> Arc<FetchMemory> {
    let memory = Arc::new(FetchMemory::new(upstreams.max_object.as_u64(), upstreams.max_objects));
    let (shown, limit) = (memory.clone(), usize::try_from(memory.limit()).unwrap_or(usize::MAX));
    bounds.show("fetch_memory_bytes", limit, move || shown.in_use() as usize);
    memory
}
