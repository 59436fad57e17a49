//! Signals to the worker of a repository.

use std::sync::Arc;

use tokio::sync::Notify;

use super::part_changes::Inbox;

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
    pub(super) part_changes: Inbox,
    /// Publishers of this repository's parts have applied a change.
    pub(super) parts_applied: Arc<Notify>,
}
