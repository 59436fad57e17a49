//! How much a table holds, and when an agent is silent.

use std::time::Duration;

/// After this time without news an agent is silent.
pub const AGENT_SILENT_AFTER: Duration = Duration::from_secs(90);

/// After this time without news the rows of an agent are not waited for: names of clusters that are gone stay for a month.
pub(crate) const AGENT_GONE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The most edges. Beyond it a new one is rejected.
pub const MAX_EDGES: usize = 1_000;

/// The most names that failed credentials claimed. Beyond it the ones heard first are dropped.
pub const MAX_REFUSED_NAMES: usize = 10_000;

/// How much a table holds. Beyond it the agents give way that were silent longest; then what is known is updated, and what
/// is new left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Agents.
    pub agents: usize,
    /// Rows of all agents.
    pub rows: usize,
    /// Estimated bytes.
    pub bytes: usize,
    /// Edges that report with one certificate. Beyond it a new one is rejected.
    pub edges_per_identity: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { agents: 50_000, rows: 1_000_000, bytes: 256 << 20, edges_per_identity: MAX_EDGES / 5 * 4 }
    }
}
