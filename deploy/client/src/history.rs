//! `weir history` and `weir diff`: what a service has published. Revisions as people name them.

use anyhow::bail;
use clap::Args;
use serde_json::Value;
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query};
use crate::kind::Kind;
use crate::output::{Format, OutputArguments, pretty};
use crate::table::Table;
use crate::text::{Clock, revision, shortened, text};

/// The fewest digits of a commit or digest.
const MIN_DIGITS: usize = 7;

/// Whose history to list.
#[derive(Debug, Args)]
pub struct HistoryArguments {
    /// The service
    service: String,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
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
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// The most publications on a page.
const PAGE: &str = "200";

/// The publications of a service, newest first.
pub(crate) async fn publications(client: &Client, service: &str) -> anyhow::Result<Vec<Value>> {
    let (path, query) = (format!("{}/history", Kind::Service.path(service)?), vec![("limit", PAGE.to_owned())]);
    Ok(client.list(&path, &query, "publications").await?.0)
}

/// The publication that a person means.
pub(crate) fn resolve<'a>(publications: &'a [Value], revision: &str) -> anyhow::Result<&'a Value> {
    let current = publications.iter().position(|one| one["current"] == true);
    let found: Vec<&Value> = match revision {
        "current" => current.map(|at| &publications[at]).into_iter().collect(),
        "previous" => {
            let current = current.map_or(&Value::Null, |at| &publications[at]["digest"]);
            let is_other = |one: &&Value| one["retained"] == true && one["digest"] != *current;
            publications.iter().filter(is_other).take(1).collect()
        }
        named => publications.iter().filter(|one| is_named(one, named)).collect(),
    };
    let mut digests: Vec<_> = found.iter().map(|one| &one["digest"]).collect();
    digests.dedup();
    match (found.first(), &digests[..]) {
        (Some(first), [_]) => Ok(first),
        (Some(_), several) => {
            let several: Vec<_> = several.iter().map(|digest| shortened(digest.as_str().unwrap_or_default())).collect();
            bail!("`{revision}` may be each of {}: give more digits, or the digest", several.join(", "))
        }
        (None, _) if revision == "previous" => bail!("no other version than the current one is retained"),
        (None, _) => bail!("nothing was published for `{revision}`: `weir history` lists what was"),
    }
}

/// Whether a publication has this version, or a commit or digest that begins so.
fn is_named(one: &Value, named: &str) -> bool {
    let digits = named.strip_prefix("b3-").unwrap_or(named);
    let begins = |key: &str| {
        let digits_of = |text: &str| text.rsplit(['-', ':']).next().unwrap_or_default().to_owned();
        digits.len() >= MIN_DIGITS && one[key].as_str().is_some_and(|text| digits_of(text).starts_with(digits))
    };
    one["version"] == *named || one["revision_id"] == *named || begins("digest") || begins("commit")
}

pub(crate) async fn list(arguments: &HistoryArguments) -> anyhow::Result<()> {
    let HistoryArguments { service, output, .. } = arguments;
    let client = Client::new(&arguments.connection)?;
    let publications = publications(&client, service).await?;
    let name = |one: &Value| text(&one["digest"]);
    let (clock, is_wide) = (output.clock(), output.is_wide());
    let none = format!("{service} has published nothing yet");
    output.list("publications", &publications, name, |all| table(all, clock, is_wide), &none)
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
    let DiffArguments { service, from, to, output, .. } = arguments;
    let client = Client::new(&arguments.connection)?;
    let publications = publications(&client, service).await?;
    let (from, to) = (resolve(&publications, from)?, resolve(&publications, to)?);
    let query: Query = vec![("from", text(&from["digest"])), ("to", text(&to["digest"])), ("limit", "1000".to_owned())];
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
    }
    let number = |key: &str| text(&answer[key]);
    print(format_args!(
        "{} to {}: {} added, {} removed, {} changed, {} unchanged",
        revision(from),
        revision(to),
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

    fn publication(digest: &str, commit: &str, version: Option<&str>, current: bool, retained: bool) -> Value {
        json!({
            "digest": format!("b3-{}", digest.repeat(8)), "commit": commit.repeat(8), "version": version,
            "current": current, "retained": retained,
        })
    }

    #[test]
    fn a_revision_is_what_people_call_it() {
        let all = [
            publication("aaaaaaaa", "11111111", Some("1.3.0"), true, true),
            publication("bbbbbbbb", "22222222", Some("1.2.0"), false, false),
            publication("aaaaaaaa", "33333333", None, false, true),
            publication("cccccccc", "33333333", Some("1.1.0"), false, true),
        ];
        let at = |revision| resolve(&all, revision).map(|found| all.iter().position(|one| one == found).unwrap());
        assert_eq!([at("current").unwrap(), at("previous").unwrap(), at("1.2.0").unwrap()], [0, 3, 1]);
        assert_eq!([at("22222222").unwrap(), at("b3-cccccccc").unwrap(), at("aaaaaaa").unwrap()], [1, 3, 0]);
        assert!(at("3333333").unwrap_err().to_string().contains("b3-aaaaaaaaaaaa, b3-cccccccccccc"));
        assert!(at("222").unwrap_err().to_string().contains("weir history"), "too few digits");
        assert!(resolve(&all[..1], "previous").is_err());
    }
}
