//! Logs: text on a terminal, JSON elsewhere. Metrics are not here: each component registers its own family.

use std::io::IsTerminal;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// The environment variable that chooses what is logged: `debug`, or `info,weir_edge=debug`.
pub const LOG_VARIABLE: &str = "WEIR_LOG";

/// Sends logs to standard error. `default_filter` is in force when [`LOG_VARIABLE`] is unset.
///
/// # Errors
/// The variable is not a filter.
pub fn init_logs(default_filter: &str) -> anyhow::Result<()> {
    let text = std::env::var(LOG_VARIABLE).unwrap_or_else(|_| default_filter.to_owned());
    let filter: Targets = text.parse().map_err(|error| {
        anyhow::anyhow!("{LOG_VARIABLE}=`{text}` is not a filter such as `info,weir_edge=debug`: {error}")
    })?;
    let terminal = std::io::stderr().is_terminal();
    let layer = if terminal {
        fmt::layer().with_writer(std::io::stderr).with_target(false).boxed()
    } else {
        fmt::layer().with_writer(std::io::stderr).json().flatten_event(true).boxed()
    };
    // A second role in the same process finds it done.
    let _ = tracing_subscriber::registry().with(layer.with_filter(filter)).try_init();
    Ok(())
}
