//! The agent: follows services, verifies their tarballs, and switches releases atomically.
//!
//! ```text
//! poll (batch, events, follower) ── requests ──> edge_client (HTTP/3, HTTP/2, which of them) ──> edges
//!      │ something changed
//!      └─> fetch (decode, hash) ─> weir-release (unpack, switch, compare, prune) ─> hook (exec)
//! services (those that are followed now) <── roster (which ones begin and end), composition (their tasks)
//! observed (what is in place, and what stops it)
//! verify (signatures of publications, freshness statements): with `trust`
//! ```
//!
//! Only verified bytes are unpacked, and only a complete release has a release's name.

mod absence;
mod agent;
pub mod check;
pub mod command_line;
mod composition;
pub mod config;
mod dependencies;
pub mod doctor;
mod edge_client;
mod edge_url;
mod fetch;
mod freshness_monitor;
mod hook;
mod hook_labels;
mod metrics;
mod observed;
mod once;
mod phase;
pub mod pin_command;
mod poll;
mod readiness;
mod reload;
mod roster;
mod roster_messages;
mod selection;
mod services;
mod status;
mod supervise;
mod verify;

pub use agent::{Running, start, start_once};
pub use config::Config;
pub use edge_client::Protocol;
pub use edge_url::{EdgeUrl, EdgeUrlError};
pub use once::{DEFAULT_ONCE_TIMEOUT, OnceError, once};
pub use status::{Pinned, Release, ServiceStatus};
pub use verify::Assessment;
pub use weir_release::{ReleaseName, ReleaseNameError};

use weir_runtime::metric_families::Family;

/// The table of an agent's families of metrics, for the reference.
pub fn families() -> Vec<Family> {
    use metrics::{AgentMetrics, GenerationMetrics};
    [AgentMetrics::FAMILIES, edge_client::EdgeMetrics::FAMILIES, GenerationMetrics::FAMILIES].concat()
}
