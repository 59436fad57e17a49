//! `weir-agent doctor`: checks what an agent needs, one line each, with what to do. Works beside a running agent.

mod edge;
mod identity;
mod machine;

use futures_util::future::join_all;
pub use weir_runtime::doctor::{Finding, Report, Verdict};

use crate::config::Config;

/// Checks this machine and each edge of a valid configuration. Takes a few seconds when something does not respond.
pub async fn doctor(config: &Config) -> Report {
    let own = config.clone();
    let machine = tokio::task::spawn_blocking(move || machine::check(&own)).await.unwrap_or_default();
    let edges = join_all(config.edges.iter().map(|url| edge::check(url, config))).await;
    Report { findings: machine.into_iter().chain(edges.into_iter().flatten()).collect() }
}
