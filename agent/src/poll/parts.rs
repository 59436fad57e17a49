//! How long the parts of an update take.

use std::time::Duration;

use crate::metrics::Metrics;

/// The parts of an update, in their order. What did not happen took no time. The hooks run after it, in a task of their own.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UpdateParts {
    /// From the event of the edge until the poll: the agent's part of `spread`.
    pub(super) wait: Duration,
    /// From the poll until the verified tarball is in a file: requests, composing, hashing.
    pub(super) fetch: Duration,
    /// Until all files are there: comparing, writing or linking.
    pub(super) unpack: Duration,
    /// Until they are on disk.
    pub(super) sync: Duration,
    pub(super) check: Duration,
    /// The switch itself.
    pub(super) switch: Duration,
}

impl UpdateParts {
    /// Shows them in the metrics.
    pub(super) fn observe(&self, metrics: &Metrics) {
        let Self { wait, fetch, unpack, sync, check, switch } = *self;
        let parts = [("wait", wait), ("fetch", fetch), ("unpack", unpack), ("sync", sync), ("check", check)];
        for (part, took) in parts.into_iter().chain([("switch", switch)]).filter(|(_, took)| !took.is_zero()) {
            metrics.update_part(part, took);
        }
    }
}

/// As logs have it.
pub(super) fn milliseconds(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}
