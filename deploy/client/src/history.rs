//! `weir history` and `weir diff`: what a service has published.

use clap::Args;
use serde_json::Value;
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query};
use crate::kind::Kind;
use crate::output::{Format, OutputArguments, pretty};
use crate::patch;
use crate::table::Table;
use crate::text::{Clock, revision, shortened, text};

/// Whose history to list.
#[derive(Debug, Args)]
pub struct HistoryArguments {
    /// The service
    pub(crate) service: String,
    #[command(flatten)]
    pub(crate) output: OutputArguments,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

/// What to compare.
#[derive(Debug, Args)]
pub struct DiffArguments {
    /// The service
    service: String,
    /// A revision: `previous`, `current`, a version, or the beginning of a commit or digest
    #[arg(default_value = "previous")]
    from: String,
    /// The other revision
    #[arg(default_value = "current")]
    to: String,
    /// Show the lines that differ, as `diff -u` does. `patch -p1` takes them
    #[arg(long)]
    patch: bool,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// The most publications on a page.
const PAGE: &str = "200";

pub(crate) async fn list(arguments: &HistoryArguments) -> anyhow::Result<()> {
    let HistoryArguments { service, output, .. } = arguments;
    let client = Client::new(&arguments.connection)?;
    let (path, query) = (format!("{}/history", Kind::Service.path(service)?), vec![("limit", PAGE.to_owned())]);
    let (publications, _) = client.list(&path, &query, "publications").await?;
    let name = |one: &Value| text(&one["digest"]);
    let (clock, is_wide) = (output.clock(), output.is_wide());
    let none = format!("{service} has published nothing yet");
    output.list("publications", &publications, name, |all| table(all, clock, is_wide), &none)?;
    if matches!(output.output, Format::Table | Format::Wide) {
        print_acts(&publications, clock)?;
    }
    Ok(())
}

/// Prints who pinned, unpinned, staged, promoted and aborted which version, and why, the newest first.
pub(crate) fn print_acts(publications: &[Value], clock: Clock) -> anyhow::Result<()> {
    let acts = acts(publications, clock).fitting_the_terminal().render("");
    if acts.is_empty() { Ok(()) } else { Ok(print(format_args!("\n{acts}"))?) }
}

fn acts(publications: &[Value], clock: Clock) -> Table {
    let mut table = Table::new(&["WHEN", "WHO", "WHAT", "REVISION", "REASON"]);
    for publication in publications {
        for act in publication["acts"].as_array().into_iter().flatten() {
            let [who, what, reason] = ["by", "event", "reason"].map(|key| text(&act[key]));
            table.row([clock.time(&act["at"]), who, what, version(act, publication, publications), reason]);
        }
    }
    table
}

/// What an act is about: the version with its `digest`, or the publication that it is listed with.
fn version(act: &Value, publication: &Value, publications: &[Value]) -> String {
    let Some(digest) = act["digest"].as_str() else { return revision(publication) };
    let published = publications.iter().find(|one| one["digest"] == digest);
    published.map_or_else(|| shortened(digest), revision)
}

/// A row for each publication.
pub(crate) fn table(publications: &[Value], clock: Clock, is_wide: bool) -> Table {
    let mut head = vec!["PUBLISHED", "REVISION", "DIGEST", "WHY", "BY", "STATE"];
    if is_wide {
        head.extend(["GENERATION", "COMMIT", "CHANGED-PARTS"]);
    }
    let mut table = Table::new(&head);
    for one in publications {
        let state = match (one["current"] == true, one["pinned_at"].is_string() && one["unpinned_at"].is_null()) {
            (true, true) => "current, pinned",
            (true, false) => "current",
            _ if one["retained"] == true => "retained",
            _ => "gone",
        };
        let mut cells = vec![
            clock.time(&one["published_at"]),
            revision(one),
            shortened(&text(&one["digest"])),
            text(&one["why"]),
            text(&one["by"]),
            state.to_owned(),
        ];
        if is_wide {
            cells.extend([text(&one["generation"]), text(&one["commit"]), text(&one["changed_parts"])]);
        }
        table.row(cells);
    }
    table
}

pub(crate) async fn diff(arguments: &DiffArguments) -> anyhow::Result<()> {
    let DiffArguments { service, from, to, patch, output, .. } = arguments;
    let client = Client::new(&arguments.connection)?;
    let mut query: Query = vec![("from", from.clone()), ("to", to.clone()), ("limit", "1000".to_owned())];
    query.extend(patch.then(|| ("texts", String::new())));
    let answer = client.get(&format!("{}/diff", Kind::Service.path(service)?), &query).await?;
    if output.output == Format::Json {
        return Ok(print(pretty(&answer))?);
    }
    for difference in answer["differences"].as_array().into_iter().flatten() {
        let (old, new) = (&difference["old"], &difference["new"]);
        let mark = match (old.is_null(), new.is_null()) {
            (true, _) => "+",
            (_, true) => "-",
            _ => "~",
        };
        print(format_args!("{mark} {}{}", text(&difference["path"]).replace(char::is_control, "?"), what(old, new)))?;
        if *patch {
            patch::print(difference)?;
        }
    }
    let number = |key: &str| text(&answer[key]);
    print(format_args!(
        "{} to {}: {} added, {} removed, {} changed, {} unchanged",
        revision(&answer["from"]),
        revision(&answer["to"]),
        number("added"),
        number("removed"),
        number("changed"),
        number("unchanged")
    ))?;
    if answer["not_listed"].as_u64().is_some_and(|number| number > 0) {
        print(format_args!("{} more are not listed", number("not_listed")))?;
    }
    Ok(())
}

/// What differs besides the contents.
fn what(old: &Value, new: &Value) -> String {
    if old.is_null() || new.is_null() {
        return String::new();
    }
    let differs = |key: &&str| old[*key] != new[*key] && *key != "size";
    let keys = ["kind", "mode", "target"].into_iter().filter(differs);
    let said: Vec<_> = keys.map(|key| format!("{key} {} to {}", text(&old[key]), text(&new[key]))).collect();
    if said.is_empty() { String::new() } else { format!("  ({})", said.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_act_has_a_line_with_its_reason() {
        let at = |minute: u64| format!("2026-01-02T03:{minute:02}:00Z");
        let publications = [
            json!({"commit": "a".repeat(40), "published_at": at(9)}),
            json!({"commit": "b".repeat(40), "acts": [
                {"event": "unpinned", "at": at(8), "by": "bob", "reason": "mended"},
                {"event": "pinned", "at": at(7), "by": "ana", "reason": "INC-42\u{1b}"},
            ]}),
            json!({"commit": "c".repeat(40), "acts": [{"event": "pinned", "at": at(1), "by": "token"}]}),
        ];
        let expected = "\
WHEN                  WHO    WHAT      REVISION      REASON
2026-01-02T03:08:00Z  bob    unpinned  bbbbbbbbbbbb  mended
2026-01-02T03:07:00Z  ana    pinned    bbbbbbbbbbbb  INC-42
2026-01-02T03:01:00Z  token  pinned    cccccccccccc  -";
        assert_eq!(acts(&publications, Clock::new(true)).render(""), expected);
        assert_eq!(acts(&publications[..1], Clock::new(true)).render(""), "");
    }

    #[test]
    fn an_act_about_another_version_names_that_one() {
        let digest = |digit: &str| format!("b3-{}", digit.repeat(64));
        let act = |event, digit| json!({"event": event, "at": "2026-01-02T03:04:05Z", "digest": digest(digit)});
        let publications = [
            json!({"commit": "c".repeat(40), "digest": digest("2")}),
            json!({"commit": "a".repeat(40), "digest": digest("0"), "acts": [act("promoted", "2"), act("aborted", "1")]}),
        ];
        let expected = "\
WHEN                  WHO  WHAT      REVISION         REASON
2026-01-02T03:04:05Z  -    promoted  cccccccccccc     -
2026-01-02T03:04:05Z  -    aborted   b3-111111111111  -";
        assert_eq!(acts(&publications, Clock::new(true)).render(""), expected);
    }
}
