//! Signals to the worker of a repository.

use std::sync::Arc;

use tokio::sync::Notify;

/// Signals to a worker. Repeated signals are merged until the worker handles them.
#[derive(Debug, Clone, Default)]
pub(super) struct WorkerSignals {
    /// Poll as soon as possible.
    pub(super) poll: Arc<Notify>,
    /// Resolve all services from the mirror.
    pub(super) resolve_all: Arc<Notify>,
    /// End all back-offs, and resolve all services after the next poll.
    pub(super) refresh: Arc<Notify>,
    /// Resolve all composed services.
    pub(super) parts_changed: Arc<Notify>,
}
