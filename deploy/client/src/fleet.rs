//! `weir fleet`: what every agent runs.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::Value;
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query, may_pass};
use crate::output::{Format, OutputArguments, pretty};
use crate::pin;
use crate::table::Table;
use crate::text::{Clock, NONE, heard, revision, shortened, text};
use crate::wait::Until;

pub(crate) const EXAMPLES: &str = "\
Examples:
  weir fleet                               all rows: one for each agent and service
  weir fleet --lacking 4f2a9c1             who lacks a commit (or a tag, or the version of a chart), and why
  weir fleet --problem any                 what does not go as it should
  weir fleet --by problem                  how many rows have which problem, and since when
  weir fleet --by label:ring --lacking 4f2a9c1 --repository shop
  weir fleet --by service,revision         which revisions of each service run
  weir fleet --by since:5 -s shop-prod     when what runs was applied, in five minutes each
  weir fleet -s 'shop-*' -l ring=canary    services and agents of one kind";

/// Which rows to show.
#[derive(Debug, Args)]
pub struct FleetArguments {
    /// Rows that lack a revision: a commit, tag, version or revision id
    #[arg(long, value_name = "REVISION")]
    lacking: Option<String>,
    /// Of --lacking: what an agent must have done
    #[arg(long = "for", value_enum, default_value = "applied", requires = "lacking")]
    until: Until,
    /// A pattern of services
    #[arg(short, long, value_name = "PATTERN")]
    service: Option<String>,
    /// A pattern of repositories
    #[arg(long, value_name = "PATTERN")]
    repository: Option<String>,
    /// A pattern of agents
    #[arg(short, long, value_name = "PATTERN")]
    agent: Option<String>,
    /// A pattern of edges
    #[arg(long, value_name = "PATTERN")]
    edge: Option<String>,
    /// Agents with this label; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE")]
    label: Vec<String>,
    /// What agents do about a service, such as `waiting` or `hook`
    #[arg(long)]
    phase: Option<String>,
    /// What stops an agent, such as `hook-failed`; `any` for all
    #[arg(long, value_name = "KIND")]
    problem: Option<String>,
    /// Count rows by: service, agent, revision, phase, problem, edge, label:KEY, since:MINUTES; or by two of these with a comma
    #[arg(long, value_name = "KEY")]
    by: Option<String>,
    /// Ask again every two seconds, until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// How often it asks with `--watch`.
const PAUSE: Duration = Duration::from_secs(2);

pub(crate) async fn run(arguments: &FleetArguments) -> anyhow::Result<()> {
    let client = Client::new(&arguments.connection)?;
    if !arguments.watch {
        return show(&client, arguments).await;
    }
    loop {
        // To the top of an empty screen (ECMA-48, CUP and ED).
        let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
        match writeln!(io::stdout(), "{clear}{}", humantime::format_rfc3339_seconds(SystemTime::now())) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        match show(&client, arguments).await {
            Err(error) if may_pass(&error) => eprintln!("weir: {error:#}; trying again"),
            shown => shown?,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn show(client: &Client, arguments: &FleetArguments) -> anyhow::Result<()> {
    let (output, clock) = (&arguments.output, arguments.output.clock());
    let mut query: Query = Vec::new();
    for (key, value) in [
        ("lacks", &arguments.lacking),
        ("service", &arguments.service),
        ("repository", &arguments.repository),
        ("agent", &arguments.agent),
        ("edge", &arguments.edge),
        ("phase", &arguments.phase),
        ("problem", &arguments.problem),
        ("by", &arguments.by),
    ] {
        query.extend(value.clone().map(|value| (key, value)));
    }
    query.extend(arguments.lacking.iter().map(|_| arguments.until.lacks_by()));
    query.extend(arguments.label.iter().map(|label| ("label", label.clone())));
    let (path, key) = match &arguments.by {
        Some(_) => ("/v1/fleet/summary", "groups"),
        None => ("/v1/fleet/rows", "rows"),
    };
    let (entries, mut answer) = client.list(path, &query, key).await?;
    let table = match &arguments.by {
        Some(by) => groups(&by.split(',').map(heading).collect::<Vec<_>>(), &entries, clock),
        None => table(&entries, clock, output.is_wide()),
    };
    match output.output {
        Format::Json => {
            answer[key] = entries.into();
            print(pretty(&answer))?;
        }
        Format::Name => entries.iter().try_for_each(|entry| match &arguments.by {
            Some(_) => print(text(&entry["key"])),
            None => print(format_args!("{} {}", text(&entry["agent"]), text(&entry["service"]))),
        })?,
        Format::Table | Format::Wide => {
            let table = if output.is_wide() { table } else { table.fitting_the_terminal() };
            print(table.render("there are no rows that match"))?;
            crate::not_known::print(&answer, clock)?;
            let held = pin::holding(&answer, arguments.lacking.as_deref().unwrap_or_default(), clock);
            if !held.is_empty() {
                print(format_args!("\n{}", held.join("\n")))?;
            }
        }
    }
    Ok(())
}

/// The head of the column of keys.
fn heading(by: &str) -> &'static str {
    match by {
        "service" => "SERVICE",
        "agent" => "AGENT",
        "revision" => "REVISION",
        "phase" => "PHASE",
        "problem" => "PROBLEM",
        "edge" => "EDGE",
        label if label.starts_with("label:") => "LABEL",
        _ => "APPLIED",
    }
}

/// A row for each agent and service.
pub(crate) fn table(rows: &[Value], clock: Clock, is_wide: bool) -> Table {
    let mut head = vec!["AGENT", "SERVICE", "STATE", "PHASE", "HAS", "SINCE", "PROBLEM", "FOR", "TEXT"];
    if is_wide {
        head.extend(["EDGE", "HEARD", "DIGEST", "HOOK", "APPLIED", "TRIES"]);
    }
    let mut table = Table::new(&head);
    for row in rows {
        let (current, problem) = (&row["current"], &row["problem"]);
        let mut cells = vec![
            text(&row["agent"]),
            text(&row["service"]),
            text(&row["state"]),
            text(&row["phase"]),
            has(row),
            clock.time(&current["since"]),
            text(&problem["kind"]),
            clock.time(&problem["since"]),
            text(&problem["text"]),
        ];
        if is_wide {
            let digest = current["digest"].as_str().map_or(NONE.to_owned(), shortened);
            cells.extend([
                text(&row["edge"]),
                heard(row, clock),
                digest,
                text(&row["hook"]),
                revision(&row["applied"]),
                text(&problem["tries"]),
            ]);
        }
        table.row(cells);
    }
    table
}

/// The release on disk, and its hook where that has not succeeded.
fn has(row: &Value) -> String {
    let has = revision(&row["current"]);
    match row["hook"].as_str() {
        Some(hook @ ("failed" | "pending" | "running")) => format!("{has}, hook {hook}"),
        _ => has,
    }
}

/// Counts.
pub(crate) fn groups(headings: &[&'static str], groups: &[Value], clock: Clock) -> Table {
    let mut table = Table::new(&[headings, &["ROWS", "AGENTS", "SINCE"]].concat());
    for group in groups {
        let key = |key: &Value| key.as_str().map_or(NONE.to_owned(), shortened);
        let keys =
            group["key"].as_array().map_or_else(|| vec![key(&group["key"])], |keys| keys.iter().map(key).collect());
        let counts = [text(&group["rows"]), text(&group["agents"]), clock.time(&group["since"])];
        table.row(keys.into_iter().chain(counts));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_release_whose_hook_has_failed_is_not_shown_as_applied() {
        let row = |hook: &str| json!({"agent": "a", "service": "s", "current": {"version": "1.2.0"}, "hook": hook});
        let rows = ["none", "succeeded", "failed", "running"].map(row);
        let shown = rows.iter().map(has).collect::<Vec<_>>();
        assert_eq!(shown, ["1.2.0", "1.2.0", "1.2.0, hook failed", "1.2.0, hook running"]);
        assert!(table(&rows, Clock::new(true), false).render("").contains("1.2.0, hook failed"));
    }
}
