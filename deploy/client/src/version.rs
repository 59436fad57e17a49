//! `weir version`: of this program, and of the origin that answers.

use clap::Args;
use serde_json::{Value, json};
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query};
use crate::output::{Format, OutputArguments, pretty};
use crate::text::text;

const MINE: &str = env!("CARGO_PKG_VERSION");

/// Which versions.
#[derive(Debug, Args)]
#[command(
    after_help = "`weir get edges -o wide` has the versions of edges, `weir get agents --by version` those of agents."
)]
pub struct VersionArguments {
    /// The version of this program alone: no hub is asked
    #[arg(long)]
    client: bool,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
}

pub(crate) async fn run(arguments: &VersionArguments) -> anyhow::Result<()> {
    let server = if arguments.client { Ok(None) } else { of_server(&arguments.connection).await };
    // Whatever the hub says, this much is known.
    let known = server.as_ref().ok().and_then(Option::as_ref).unwrap_or(&Value::Null);
    match arguments.output.output {
        Format::Json => print(pretty(&json!({ "client": { "version": MINE }, "server": known })))?,
        Format::Name => print(MINE)?,
        Format::Table | Format::Wide => print(lines(MINE, known).join("\n"))?,
    }
    server.map(drop)
}

/// `None`: no hub is chosen.
async fn of_server(connection: &ConnectionArguments) -> anyhow::Result<Option<Value>> {
    let Some(connection) = connection.chosen()? else { return Ok(None) };
    let client = Client::of(connection)?;
    let who = client.get("/v1/whoami", &Query::new()).await?;
    Ok(Some(json!({ "host": client.server(), "version": who["version"] })))
}

fn lines(mine: &str, server: &Value) -> Vec<String> {
    let mut lines = vec![format!("Client Version: {mine}")];
    if server.is_object() {
        lines.push(format!("Server Version: {} ({})", text(&server["version"]), text(&server["host"])));
    }
    if let (Some(mine), Some(theirs)) = (minor(mine), server["version"].as_str().and_then(minor))
        && (mine.0 != theirs.0 || mine.1.abs_diff(theirs.1) > 1)
    {
        lines.push("warning: they differ by more than one minor version, and may misunderstand each other".to_owned());
    }
    lines
}

/// The major and the minor version.
fn minor(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_are_too_far_apart_are_told() {
        assert_eq!(lines("0.3.1", &Value::Null), ["Client Version: 0.3.1"]);
        let of = |version: &str| lines("0.3.1", &json!({"host": "hub.example", "version": version}));
        assert_eq!(of("0.2.9")[1..], ["Server Version: 0.2.9 (hub.example)"]);
        assert_eq!(of("0.4.0-rc.1").len(), 2);
        for far in ["0.1.0", "0.5.0", "1.3.1"] {
            assert!(of(far)[2].starts_with("warning: "), "{far}");
        }
        // An origin of an earlier release does not say its own.
        let silent = lines("0.3.1", &json!({"host": "hub.example", "version": null}));
        assert_eq!(silent[1..], ["Server Version: - (hub.example)"]);
    }
}
