//! `weir get`: lists of objects.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};
use weir_protocol::name_glob::NameGlob;
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query};
use crate::kind::{Kind, Shown};
use crate::output::{Format, OutputArguments};
use crate::table::Table;
use crate::text::{Clock, NONE, count, followed, heard, revision, shortened, text};
use crate::unheard;

pub(crate) const EXAMPLES: &str = "\
Examples:
  weir get services                  all services with their state
  weir get services 'shop-*'         those whose names match
  weir get services --repository shop -o wide
  weir get agents --state silent     agents that no edge hears
  weir get agents --by edge          how many agents each edge has, and how many of them are silent
  weir get edges                     edges: which are live, incomplete or away, with their agents
  weir get members -o wide           origins, and what each owns
  weir get rollouts                  plans, and what they stage now
  weir get assignments -o json       as the API has them";

/// What to list.
#[derive(Debug, Args)]
pub struct GetArguments {
    /// The kind
    #[arg(value_enum)]
    kind: Shown,
    /// Patterns of names, with `*`
    names: Vec<String>,
    /// Of services: those of one repository
    #[arg(long, value_name = "NAME")]
    repository: Option<String>,
    /// Of agents: live, silent, refused, or unknown right after a start of the origin
    #[arg(long)]
    state: Option<String>,
    /// Of agents: those with this label, KEY=VALUE; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE")]
    label: Vec<String>,
    /// Count agents by: edge, state, version or label:KEY
    #[arg(long, value_name = "KEY")]
    by: Option<String>,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
}

pub(crate) async fn run(arguments: &GetArguments) -> anyhow::Result<()> {
    let GetArguments { kind, names, output, .. } = arguments;
    let (client, clock, is_wide) = (Client::new(&arguments.connection)?, output.clock(), output.is_wide());
    let patterns = names.iter().map(|name| name.parse()).collect::<Result<Vec<NameGlob>, _>>()?;
    let is_meant = |name: &str| patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name));
    let mut query: Query = Vec::new();
    query.extend(arguments.repository.clone().map(|name| ("repository", name)));
    query.extend(arguments.state.clone().map(|state| ("state", state)));
    query.extend(arguments.label.iter().map(|label| ("label", label.clone())));
    let (name_key, (mut entries, answer)) = list(&client, *kind, &query, output.output).await?;
    let name = |entry: &Value| entry[name_key].as_str().unwrap_or_default().to_owned();
    entries.retain(|entry| is_meant(&name(entry)));
    let is_agents = *kind == Shown::Objects(Kind::Agent);
    // A filter says nothing of agents that are only entries.
    let unheard: Vec<String> = match is_agents && query.is_empty() {
        true => unheard::names(&client, &entries).await?.into_iter().filter(|name| is_meant(name)).collect(),
        false => Vec::new(),
    };
    if let Some(missing) = names.iter().zip(&patterns).find(|(_, pattern)| {
        !pattern.as_str().contains('*')
            && !entries.iter().map(&name).chain(unheard.iter().cloned()).any(|name| pattern.matches(&name))
    }) {
        bail!("there is no {} `{}`", kind.singular(), missing.0);
    }
    let matching = if patterns.is_empty() && query.is_empty() { "" } else { " that match" };
    let none = match unheard.is_empty() {
        true => format!("there are no {}{matching}", kind.plural()),
        false => format!("no edge has reported agents{matching}"),
    };
    match &arguments.by {
        Some(_) if !is_agents => bail!("--by is about agents: `weir get agents --by edge`"),
        Some(by) => {
            let (groups, key) = (grouped(&entries, by)?, |group: &Value| text(&group["key"]));
            output.list("groups", &groups, key, |groups| table_of_groups(groups, by), &none)?;
        }
        None => output.list(kind.plural(), &entries, name, |entries| table(*kind, entries, clock, is_wide), &none)?,
    }
    if !matches!(output.output, Format::Table | Format::Wide) {
        return Ok(());
    }
    print_unowned(&answer)?;
    if is_agents {
        crate::not_known::print(&answer, clock)?;
    }
    if let Some(said) = unheard::said(&unheard) {
        print(format_args!("\n{said}"))?;
    }
    Ok(())
}

/// Prints which repositories no member owns.
pub(crate) fn print_unowned(answer: &Value) -> anyhow::Result<()> {
    if let Some(number) = answer["unowned"]["repositories"].as_u64().filter(|number| *number > 0) {
        let (all, have) = (count(number, "repository"), if number == 1 { "has" } else { "have" });
        print(format_args!("\n{all} {have} no owner now: {}", text(&answer["unowned"]["names"])))?;
    }
    Ok(())
}

/// The key of the names, the entries, and the rest of the answer.
async fn list(
    client: &Client,
    kind: Shown,
    query: &Query,
    format: Format,
) -> anyhow::Result<(&'static str, (Vec<Value>, Value))> {
    Ok(match kind {
        // What agents are comes from what edges hear, and not only from entries.
        Shown::Objects(Kind::Agent) => ("agent", client.list("/v1/fleet/agents", query, "agents").await?),
        Shown::Objects(kind) => ("name", (client.with_states(kind, query).await?, Value::Null)),
        Shown::Freezes => {
            let mut answer = client.get("/v1/freezes", query).await?;
            let entries = answer["freezes"].as_array_mut().map(std::mem::take).unwrap_or_default();
            ("name", (entries, Value::Null))
        }
        Shown::Edges | Shown::Members => {
            let mut query = query.clone();
            // The names of what members own, where they are shown.
            if kind == Shown::Members && matches!(format, Format::Wide | Format::Json) {
                query.push(("repositories", String::new()));
            }
            ("name", taking_part(client, kind, &query).await?)
        }
    })
}

/// The edges or the members, and the rest of the answer.
pub(crate) async fn taking_part(client: &Client, kind: Shown, query: &Query) -> anyhow::Result<(Vec<Value>, Value)> {
    let key = kind.plural();
    let mut answer = client.get(&format!("/v1/{key}"), query).await?;
    let entries = answer[key].as_array_mut().map(std::mem::take).unwrap_or_default();
    Ok((entries, answer))
}

/// How many agents have each value of a key, and in which state.
fn grouped(agents: &[Value], by: &str) -> anyhow::Result<Vec<Value>> {
    let pointer = match by.split_once(':') {
        Some(("label", label)) => format!("/labels/{}", label.replace('~', "~0").replace('/', "~1")),
        None if ["edge", "state", "version"].contains(&by) => format!("/{by}"),
        _ => bail!("--by is one of edge, state, version, label:KEY, and not `{by}`"),
    };
    let mut groups = BTreeMap::<String, BTreeMap<&str, u64>>::new();
    for agent in agents {
        let key = agent.pointer(&pointer).map_or_else(|| NONE.to_owned(), text);
        let group = groups.entry(key).or_default();
        *group.entry("agents").or_default() += 1;
        *group.entry(agent["state"].as_str().unwrap_or_default()).or_default() += 1;
    }
    let document = |(key, mut of): (String, BTreeMap<&str, u64>)| {
        for state in ["live", "silent", "refused"] {
            of.entry(state).or_default();
        }
        let mut document = json!(of);
        document["key"] = key.into();
        document
    };
    Ok(groups.into_iter().map(document).collect())
}

fn table_of_groups(groups: &[Value], by: &str) -> Table {
    let head = match by {
        "edge" => "EDGE",
        "state" => "STATE",
        "version" => "VERSION",
        _ => "LABEL",
    };
    let mut table = Table::new(&[head, "AGENTS", "LIVE", "SILENT", "REFUSED"]);
    for group in groups {
        table.row(["key", "agents", "live", "silent", "refused"].map(|key| text(&group[key])));
    }
    table
}

/// A row for each entry.
pub(crate) fn table(kind: Shown, entries: &[Value], clock: Clock, is_wide: bool) -> Table {
    let (head, wide): (&[&str], &[&str]) = match kind {
        Shown::Objects(Kind::Service) => (
            &["NAME", "REPOSITORY", "FOLLOWS", "CONDITION", "PUBLISHED", "AGE", "FAILURE"],
            &["DIGEST", "GENERATION", "DEFINED-BY"],
        ),
        Shown::Objects(Kind::Rollout) => (&["NAME", "STAGES", "SERVICES", "STAGED"], &["FAILURE", "DEFINED-BY"]),
        Shown::Objects(Kind::Repository) => (
            &["NAME", "HEALTH", "SINCE", "LAST-SUCCESS", "FAILURE"],
            &["URL", "PHASE", "STEP", "WAITS-FOR", "DEFINED-BY"],
        ),
        Shown::Objects(Kind::Agent) => (
            &["NAME", "STATE", "HEARD", "EDGE", "SERVICES", "PROBLEMS"],
            &["VERSION", "LABELS", "PROVED", "NAME-TWICE", "REASON"],
        ),
        Shown::Objects(Kind::Assignment) => (&["NAME", "AGENTS", "LABELS", "SERVICES"], &["DEFINED-BY"]),
        Shown::Objects(Kind::Issuer) => (&["NAME", "ISSUER", "AGENT", "KEYS"], &["SERVICES", "DEFINED-BY"]),
        Shown::Freezes => (&["NAME", "SERVICES", "ENDS", "REASON"], &[]),
        Shown::Edges => (&["NAME", "STATE", "SINCE", "HEARD", "AGENTS", "ROWS"], &["VERSION", "VIA"]),
        Shown::Members => (&["NAME", "STATE", "ZONE", "REPOSITORIES"], &["URL", "SESSION", "OWNS"]),
    };
    let mut table = Table::new(&head.iter().chain(wide.iter().filter(|_| is_wide)).copied().collect::<Vec<_>>());
    for entry in entries {
        let mut cells = cells(kind, entry, clock);
        cells.truncate(head.len() + if is_wide { wide.len() } else { 0 });
        table.row(cells);
    }
    table
}

fn cells(kind: Shown, entry: &Value, clock: Clock) -> Vec<String> {
    let (status, of) = (&entry["status"], |key: &str| text(&entry[key]));
    match kind {
        Shown::Objects(Kind::Service) => {
            let published = &status["published"];
            let repository = entry["repository"].as_str().or(entry["parts"][0]["repository"].as_str());
            vec![
                of("name"),
                repository.unwrap_or("-").to_owned(),
                followed(entry),
                text(&status["condition"]),
                revision(published),
                clock.generation(&published["generation"]),
                text(&status["failure"]["reason"]),
                shortened(&text(&published["digest"])),
                text(&published["generation"]),
                of("defined_by"),
            ]
        }
        Shown::Objects(Kind::Rollout) => cells_of_plan(entry),
        Shown::Objects(Kind::Repository) => vec![
            of("name"),
            text(&status["health"]),
            clock.time(&status["since"]),
            clock.time(&status["last_success"]),
            text(&status["failure"]["reason"]),
            of("url"),
            text(&status["phase"]),
            text(&status["failure"]["step"]),
            text(&status["waits_for"]),
            of("defined_by"),
        ],
        Shown::Objects(Kind::Agent) => vec![
            of("agent"),
            of("state"),
            heard(entry, clock),
            of("edge"),
            of("services"),
            of("problems"),
            of("version"),
            of("labels"),
            of("proved"),
            of("alternates"),
            of("reason"),
        ],
        Shown::Objects(Kind::Assignment) => {
            vec![of("name"), of("agents"), of("labels"), of("services"), of("defined_by")]
        }
        Shown::Objects(Kind::Issuer) => {
            let keys = entry["jwks"]["keys"].as_array().map_or(0, Vec::len).to_string();
            let keys = entry["jwks"]["url"].as_str().map_or(keys, ToOwned::to_owned);
            vec![of("name"), of("issuer"), of("agent"), keys, of("services"), of("defined_by")]
        }
        Shown::Freezes => vec![of("name"), of("services"), clock.time(&entry["until"]), of("reason")],
        Shown::Edges => vec![
            of("name"),
            of("state"),
            clock.time(&entry["since"]),
            clock.time(&entry["heard_at"]),
            of("agents"),
            of("rows"),
            of("version"),
            of("via"),
        ],
        Shown::Members => {
            let owns = &entry["owns"];
            let (number, names) = (text(&owns["repositories"]), text(&owns["names"]));
            vec![of("name"), of("state"), of("zone"), number, of("url"), of("session"), names]
        }
    }
}

fn cells_of_plan(plan: &Value) -> Vec<String> {
    let names = |list: &Value, name: &dyn Fn(&Value) -> Option<String>| {
        let names: Vec<_> = list.as_array().into_iter().flatten().filter_map(name).collect();
        if names.is_empty() { NONE.to_owned() } else { names.join(" ") }
    };
    let status = &plan["status"];
    vec![
        text(&plan["name"]),
        names(&plan["stages"], &|stage| Some(text(&stage["name"]))),
        text(&status["services_total"]),
        names(&status["services"], &staged),
        text(&status["failure"]["reason"]),
        text(&plan["defined_by"]),
    ]
}

/// A service of which a plan stages something, with its stage. `None`: nothing of it is staged.
fn staged(service: &Value) -> Option<String> {
    let staged = service["staged"].as_object()?;
    let stage = match (&staged["verdict"]["kind"], &staged["paused"]) {
        (Value::String(verdict), _) => verdict.clone(),
        (_, Value::Bool(true)) => "paused".to_owned(),
        _ => staged["stage"].as_str().unwrap_or("waiting").to_owned(),
    };
    Some(format!("{}:{stage}", text(&service["service"])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_counted_by_a_key_and_their_states() {
        let agent = |edge: Value, state: &str| json!({"agent": "a", "edge": edge, "state": state, "labels": {"ring": "canary"}});
        let agents = [agent(json!("paris"), "live"), agent(json!("paris"), "silent"), agent(Value::Null, "unknown")];
        let shown = |by| table_of_groups(&grouped(&agents, by).unwrap(), by).render("");
        let expected = "\
EDGE   AGENTS  LIVE  SILENT  REFUSED
-      1       0     0       0
paris  2       1     1       0";
        assert_eq!(shown("edge"), expected);
        assert!(shown("label:ring").contains("canary  3       1     1       0"), "{}", shown("label:ring"));
        assert!(grouped(&agents, "colour").unwrap_err().to_string().contains("label:KEY"));
    }
}
