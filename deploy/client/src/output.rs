//! How answers are printed.

use clap::{Args, ValueEnum};
use serde_json::Value;
use weir_runtime::output::print;

use crate::table::Table;
use crate::text::Clock;

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table that fits the terminal
    Table,
    /// A table with more columns, which may be wider than the terminal
    Wide,
    /// The objects as the API has them. `| yq -P` makes YAML of it
    Json,
    /// Names alone, one in a line
    Name,
}

/// Options of output.
#[derive(Debug, Clone, Args)]
pub(crate) struct OutputArguments {
    /// The format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Format,
    /// Show times in UTC, and not how long ago they were
    #[arg(long)]
    utc: bool,
}

impl OutputArguments {
    pub(crate) fn clock(&self) -> Clock {
        Clock::new(self.utc)
    }

    pub(crate) fn is_wide(&self) -> bool {
        self.output == Format::Wide
    }

    /// Prints entries: as JSON with the key that the API has for them.
    pub(crate) fn list(
        &self,
        key: &str,
        entries: &[Value],
        name: impl Fn(&Value) -> String,
        table: impl FnOnce(&[Value]) -> Table,
        none: &str,
    ) -> anyhow::Result<()> {
        match self.output {
            Format::Json => print(pretty(&serde_json::json!({ key: entries })))?,
            Format::Name => entries.iter().try_for_each(|entry| print(name(entry)))?,
            Format::Table => print(table(entries).fitting_the_terminal().render(none))?,
            Format::Wide => print(table(entries).render(none))?,
        }
        Ok(())
    }
}

pub(crate) fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
