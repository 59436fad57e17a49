//! `weir-origin members`: the members of a cluster and what they own, as the record store has it.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use weir_origin::cluster_records::{ListedRepository, Listing, list};
use weir_origin::config::Config;
use weir_runtime::failure;

/// Shows the members of a cluster and which repositories they own.
///
/// It reads the engine of `[cluster]`, so no origin needs to run. Each member renews its session every third of `session_ttl`:
/// `overdue` means that a renewal is missing, by the clocks of that member and of this machine. If its renewals grow from one
/// run to the next, it is alive, whatever its clock shows.
/// A repository whose owner is not in that session any more is `stale`; another member takes it over.
///
/// Exit codes: 0 all records were read; 1 the engine does not answer, or a record cannot be read; 2 the configuration is
/// invalid.
#[derive(Debug, Args)]
pub(crate) struct MembersArguments {
    /// The configuration of an origin.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Writes one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the command. What was found goes to standard output.
pub(crate) async fn run(arguments: &MembersArguments) -> ExitCode {
    let failed = |error: &anyhow::Error, code: u8| {
        failure::report(crate::PROGRAM, error);
        ExitCode::from(code)
    };
    let config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => return failed(&error.into(), 2),
    };
    let listing = match Box::pin(list(&config)).await {
        Ok(listing) => listing,
        Err(error) => return failed(&error, 1),
    };
    match write(&listing, arguments.json) {
        Ok(()) if listing.unreadable.is_empty() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => failed(&error, 1),
    }
}

fn write(listing: &Listing, json: bool) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, listing)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", in_words(listing))?;
    }
    Ok(())
}

/// Two tables, and what could not be read.
fn in_words(listing: &Listing) -> String {
    let mut members = vec![["MEMBER", "STATE", "RENEWED", "RENEWALS", "OWNS", "ZONE", "URL"].map(str::to_owned)];
    members.extend(listing.members.iter().map(|member| {
        let zone = member.zone.clone().unwrap_or_else(|| "-".to_owned());
        let overdue = if member.is_overdue { ", overdue" } else { "" };
        let renewed = member.renewed_seconds_ago.map_or_else(|| "-".to_owned(), |ago| format!("{ago} s ago{overdue}"));
        let (renewals, owns) = (member.renewals.to_string(), member.repositories.to_string());
        let (name, state) = (member.name.to_string(), member.state.as_str().to_owned());
        [name, state, renewed, renewals, owns, zone, member.url.clone()]
    }));
    let mut repositories = vec![["OWNER", "FENCE", "", "REPOSITORY"].map(str::to_owned)];
    let mut by_owner: Vec<&ListedRepository> = listing.repositories.iter().collect();
    by_owner.sort_by_key(|repository| (&repository.owner, &repository.name));
    repositories.extend(by_owner.into_iter().map(|repository| {
        let (owner, state) = match &repository.owner {
            None => ("-".to_owned(), "released"),
            Some(owner) if repository.is_current => (owner.to_string(), "owned"),
            Some(owner) => (owner.to_string(), "stale"),
        };
        [owner, repository.fence.to_string(), state.to_owned(), repository.name.to_string()]
    }));
    let unreadable = listing.unreadable.iter().map(|(record, reason)| format!("{record} cannot be read: {reason}\n"));
    format!("{}\n{}{}", table(&members), table(&repositories), unreadable.collect::<String>())
}

/// Columns as wide as their longest text; the last one is not padded.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["A", "LONGER"], ["longest", "b"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "A        LONGER\nlongest  b\n");
    }
}
