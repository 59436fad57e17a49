//! The async runtime of connections to upstreams. Connections outlast the polls that use them.
//!
//! Each poll blocks its own thread, which may end after the process's main runtime. Therefore this runtime is separate and
//! never ends. It has one thread.

use std::io;
use std::sync::LazyLock;

use tokio::runtime::{Builder, Runtime};

use super::error::UpstreamError;

static RUNTIME: LazyLock<io::Result<Runtime>> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).thread_name("upstreams").enable_all().build());

/// The runtime of all connections to upstreams.
///
/// # Errors
/// It could not be started.
pub(crate) fn runtime() -> Result<&'static Runtime, UpstreamError> {
    RUNTIME.as_ref().map_err(|error| UpstreamError::Runtime(error.kind()))
}
