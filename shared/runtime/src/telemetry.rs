//! Logs: text on a terminal, JSON elsewhere. Metrics are not here: each component registers its own family.

use std::env;
use std::io::{self, IsTerminal};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// The environment variable that chooses what is logged: `debug`, or `info,weir=debug`.
pub const LOG_VARIABLE: &str = "WEIR_LOG";

/// The environment variable that chooses the format of the log: `text` or `json`.
pub const LOG_FORMAT_VARIABLE: &str = "WEIR_LOG_FORMAT";

/// The format of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// The default of a role: text on a terminal, JSON elsewhere.
    pub fn of_role() -> Self {
        if io::stderr().is_terminal() { Self::Text } else { Self::Json }
    }

    /// The value of [`LOG_FORMAT_VARIABLE`], else this.
    ///
    /// # Errors
    /// The value is neither `text` nor `json`.
    pub fn or_environment(self) -> anyhow::Result<Self> {
        match env::var(LOG_FORMAT_VARIABLE).as_deref() {
            Err(_) | Ok("") => Ok(self),
            Ok("text") => Ok(Self::Text),
            Ok("json") => Ok(Self::Json),
            Ok(other) => anyhow::bail!("{LOG_FORMAT_VARIABLE}=`{other}` is neither `text` nor `json`"),
        }
    }
}

/// Writes logs to standard error. `default_filter` applies if [`LOG_VARIABLE`] is unset, and `format` if
/// [`LOG_FORMAT_VARIABLE`] is.
///
/// # Errors
/// One of the variables has an invalid value.
pub fn init_logs(default_filter: &str, format: LogFormat) -> anyhow::Result<()> {
    let text = env::var(LOG_VARIABLE).unwrap_or_else(|_| default_filter.to_owned());
    let filter: Targets = text.parse().map_err(|error| {
        anyhow::anyhow!("{LOG_VARIABLE}=`{text}` is not a filter such as `info,weir=debug`: {error}")
    })?;
    let layer = match format.or_environment()? {
        LogFormat::Text => {
            fmt::layer().with_writer(io::stderr).with_target(false).with_ansi(io::stderr().is_terminal()).boxed()
        }
        LogFormat::Json => fmt::layer().with_writer(io::stderr).json().flatten_event(true).boxed(),
    };
    // Fails for a second role in the same process, which shares the first one's.
    let _ = tracing_subscriber::registry().with(layer.with_filter(filter)).try_init();
    Ok(())
}
