//! Logs: text on a terminal, JSON elsewhere. Metrics are not here: each component registers its own family.

use std::env;
use std::io::{self, IsTerminal};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// The environment variable that chooses what is logged: `debug`, or `info,weir_edge=debug`.
pub const LOG_VARIABLE: &str = "WEIR_LOG";

/// The environment variable that chooses the form of the log: `text` or `json`.
pub const LOG_FORMAT_VARIABLE: &str = "WEIR_LOG_FORMAT";

/// The form of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// A line for a person.
    Text,
    /// A JSON document a line.
    Json,
}

impl LogFormat {
    /// What a role uses unless [`LOG_FORMAT_VARIABLE`] says otherwise: text on a terminal, JSON elsewhere.
    pub fn of_role() -> Self {
        if io::stderr().is_terminal() { Self::Text } else { Self::Json }
    }

    /// What [`LOG_FORMAT_VARIABLE`] says, else this.
    ///
    /// # Errors
    /// It says neither.
    pub fn or_environment(self) -> anyhow::Result<Self> {
        match env::var(LOG_FORMAT_VARIABLE).as_deref() {
            Err(_) | Ok("") => Ok(self),
            Ok("text") => Ok(Self::Text),
            Ok("json") => Ok(Self::Json),
            Ok(other) => anyhow::bail!("{LOG_FORMAT_VARIABLE}=`{other}` is not known: set it to `text` or `json`"),
        }
    }
}

/// Sends logs to standard error. `default_filter` is in force when [`LOG_VARIABLE`] is unset, and `format` when
/// [`LOG_FORMAT_VARIABLE`] is.
///
/// # Errors
/// One of the variables has a wrong value.
pub fn init_logs(default_filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let text = env::var(LOG_VARIABLE).unwrap_or_else(|_| default_filter.to_owned());
    let filter: Targets = text.parse().map_err(|error| {
        anyhow::anyhow!("{LOG_VARIABLE}=`{text}` is not a filter such as `info,weir_edge=debug`: {error}")
    })?;
    let layer = match format.or_environment()? {
        LogFormat::Text => {
            fmt::layer().with_writer(io::stderr).with_target(false).with_ansi(io::stderr().is_terminal()).boxed()
        }
        LogFormat::Json => fmt::layer().with_writer(io::stderr).json().flatten_event(true).boxed(),
    };
    // A second role in the same process finds it done.
    let _ = tracing_subscriber::registry().with(layer.with_filter(filter)).try_init();
    Ok(())
}
