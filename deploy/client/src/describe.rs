//! `weir describe`: one object, with its state and what depends on it.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::{Value, json};
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::fleet;
use crate::get;
use crate::history;
use crate::http::{Client, Query, is_forbidden};
use crate::kind::{Kind, Shown, segment};
use crate::output::{Format, OutputArguments, pretty};
use crate::staged;
use crate::text::{Clock, counted, text};

/// The publications that are shown of a service.
const PUBLICATIONS: usize = 5;

/// What to show.
#[derive(Debug, Args)]
pub struct DescribeArguments {
    /// The kind
    #[arg(value_enum)]
    kind: Shown,
    /// Its name
    name: String,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
}

pub(crate) async fn run(arguments: &DescribeArguments) -> anyhow::Result<()> {
    let DescribeArguments { kind, name, output, .. } = arguments;
    let client = Client::new(&arguments.connection)?;
    match kind {
        Shown::Objects(kind) => object(&client, *kind, name, output).await,
        Shown::Freezes => {
            let freeze = client.get(&format!("/v1/freezes/{}", segment(name)?), &Query::new()).await?;
            let as_json = output.output == Format::Json;
            Ok(print(if as_json { pretty(&freeze) } else { lines(&freeze, 0).join("\n") })?)
        }
        Shown::Edges => edge(&client, name, output).await,
        Shown::Members => member(&client, name, output).await,
    }
}

/// An edge, with what stops its agents, and those of them that are not well.
async fn edge(client: &Client, name: &str, output: &OutputArguments) -> anyhow::Result<()> {
    let (edges, _) = get::taking_part(client, Shown::Edges, &Query::new()).await?;
    let edge = called(edges, Shown::Edges, name)?;
    if output.output == Format::Json {
        return Ok(print(pretty(&edge))?);
    }
    print(lines(&edge, 0).join("\n"))?;
    let (clock, mut query) = (output.clock(), vec![("edge", name.to_owned())]);
    let (agents, answer) = client.list("/v1/fleet/agents", &query, "agents").await?;
    query.push(("by", "problem".to_owned()));
    let (groups, _) = client.list("/v1/fleet/summary", &query, "groups").await?;
    print(format_args!(
        "\n{}",
        fleet::groups(&["PROBLEM"], &groups, clock).render("none of its agents runs a service")
    ))?;
    print(format_args!("\n{}", not_well(agents, clock)))?;
    crate::not_known::print(&answer, clock)
}

/// The agents that are silent or have problems.
fn not_well(mut agents: Vec<Value>, clock: Clock) -> String {
    agents.retain(|agent| agent["state"] != "live" || agent["problems"].as_u64().is_some_and(|number| number > 0));
    get::table(Shown::Objects(Kind::Agent), &agents, clock, false).render("no agent of it is silent or has a problem")
}

/// An origin, with the repositories that it owns.
async fn member(client: &Client, name: &str, output: &OutputArguments) -> anyhow::Result<()> {
    let query: Query = vec![("repositories", String::new())];
    let (members, answer) = get::taking_part(client, Shown::Members, &query).await?;
    let mut member = called(members, Shown::Members, name)?;
    if output.output == Format::Json {
        return Ok(print(pretty(&member))?);
    }
    let (clock, owned) = (output.clock(), member["owns"]["names"].take());
    let owned: BTreeSet<_> = owned.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    member["owns"] = counted(&member["owns"]["repositories"], "repository").into();
    print(lines(&member, 0).join("\n"))?;
    let (mut repositories, _) = client.list(&Kind::Repository.list(), &Query::new(), "repositories").await?;
    repositories.retain(|each| each["name"].as_str().is_some_and(|name| owned.contains(name)));
    let repositories = client.states(Kind::Repository, repositories).await;
    let table = get::table(Shown::Objects(Kind::Repository), &repositories, clock, output.is_wide());
    print(format_args!("\n{}", table.render("it owns no repository")))?;
    get::print_unowned(&answer)
}

/// The entry of a name.
fn called(entries: Vec<Value>, kind: Shown, name: &str) -> anyhow::Result<Value> {
    let found = entries.into_iter().find(|entry| entry["name"] == *name);
    found.with_context(|| format!("there is no {} `{name}`", kind.singular()))
}

async fn object(client: &Client, kind: Kind, name: &str, output: &OutputArguments) -> anyhow::Result<()> {
    let clock = output.clock();
    let found = client.find(&kind.path(name)?).await;
    // An agent needs no entry.
    let heard = match kind {
        Kind::Agent => {
            let query: Query = vec![("agent", segment(name)?.to_owned())];
            client.list("/v1/fleet/agents", &query, "agents").await?.0.into_iter().next()
        }
        _ => None,
    };
    let document = match found {
        // Entries are not for every operator who sees what the agent runs.
        Err(error) if heard.is_some() && is_forbidden(&error) => None,
        found => found?,
    };
    if document.is_none() && heard.is_none() {
        bail!("there is no {} `{name}`", kind.singular());
    }
    if output.output == Format::Json {
        let shown = if kind == Kind::Agent { json!({ "entry": document, "heard": heard }) } else { document.into() };
        return Ok(print(pretty(&shown))?);
    }
    for part in [document, heard].into_iter().flatten() {
        print(lines(&part, 0).join("\n"))?;
    }
    match kind {
        Kind::Service => {
            let rollout = client.find(&format!("{}/rollout", kind.path(name)?)).await?.unwrap_or_default();
            if let Some(staged) = staged::line(name, &rollout, clock) {
                print(format_args!("\nstaged  {staged}"))?;
            }
            let query: Query = vec![("limit", PUBLICATIONS.to_string())];
            let answer = client.get(&format!("{}/history", kind.path(name)?), &query).await?;
            let publications = answer["publications"].as_array().cloned().unwrap_or_default();
            print(format_args!("\n{}", history::table(&publications, clock, false).render("nothing is published")))?;
            history::print_acts(&publications, clock)?;
            let query: Query = vec![("service", name.to_owned()), ("by", "revision".to_owned())];
            let (groups, answer) = client.list("/v1/fleet/summary", &query, "groups").await?;
            print(format_args!("\n{}", fleet::groups(&["REVISION"], &groups, clock).render("no agent follows it")))?;
            crate::not_known::print(&answer, clock)?;
        }
        Kind::Agent => {
            let query: Query = vec![("agent", name.to_owned())];
            let (rows, answer) = client.list("/v1/fleet/rows", &query, "rows").await?;
            print(format_args!("\n{}", fleet::table(&rows, clock, false).render("it has told of no services")))?;
            for row in &rows {
                for line in output_of(row) {
                    print(format_args!("{}: {line}", text(&row["service"])))?;
                }
            }
            crate::not_known::print(&answer, clock)?;
        }
        Kind::Repository => {
            let query: Query = vec![("repository", name.to_owned())];
            let (services, _) = client.list("/v1/services", &query, "services").await?;
            let names: Vec<_> = services.iter().map(|service| text(&service["name"])).collect();
            print(format_args!("\nservices  {}", if names.is_empty() { "-".to_owned() } else { names.join(" ") }))?;
        }
        Kind::Rollout | Kind::Assignment | Kind::Issuer => {}
    }
    Ok(())
}

/// The last lines that the command wrote that failed, where the agent's configuration lets it tell.
pub(crate) fn output_of(row: &Value) -> impl Iterator<Item = &str> {
    row["problem"]["output"].as_str().unwrap_or_default().lines()
}

/// A document as lines: the names of fields, and what they have.
fn lines(value: &Value, indent: usize) -> Vec<String> {
    let Some(fields) = value.as_object() else { return vec![format!("{:indent$}{}", "", text(value))] };
    let width = fields.keys().map(String::len).max().unwrap_or_default() + 2;
    let mut lines = Vec::new();
    for (name, value) in fields {
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                lines.push(format!("{:indent$}{name}", ""));
                lines.extend(self::lines(value, indent + 2));
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                lines.push(format!("{:indent$}{name}", ""));
                for item in items {
                    let mut inner = self::lines(item, indent + 4);
                    if let Some(first) = inner.first_mut() {
                        first.replace_range(indent + 2..indent + 3, "-");
                    }
                    lines.extend(inner);
                }
            }
            value => lines.push(format!("{:indent$}{name:width$}{}", "", text(value).replace(char::is_control, " "))),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_edge_only_agents_that_are_not_well_are_listed() {
        let agent = |name: &str, state: &str, problems: u64| json!({"agent": name, "state": state, "edge": "paris", "services": 2, "problems": problems, "heard_at": "2026-01-02T03:04:05Z"});
        let agents = vec![agent("a", "live", 0), agent("b", "silent", 0), agent("c", "live", 1)];
        let expected = "\
NAME  STATE   HEARD                 EDGE   SERVICES  PROBLEMS
b     silent  2026-01-02T03:04:05Z  paris  2         0
c     live    <90s                  paris  2         1";
        assert_eq!(not_well(agents, Clock::new(true)), expected);
        assert!(not_well(vec![agent("a", "live", 0)], Clock::new(true)).starts_with("no agent"));
        let edges = || vec![json!({"name": "paris"}), json!({"name": "pool~node-7"})];
        assert!(called(edges(), Shown::Edges, "pool~node-7").is_ok());
        assert_eq!(called(edges(), Shown::Edges, "rome").unwrap_err().to_string(), "there is no edge `rome`");
    }

    #[test]
    fn a_document_is_shown_with_the_names_of_its_fields() {
        let document = json!({
            "name": "shop", "include": [], "parts": [{"service": "chart", "to": "c"}, {"service": "values"}],
            "status": {"condition": "following", "failure": null},
        });
        let expected = "\
name     shop
include  -
parts
  - service  chart
    to       c
  - service  values
status
  condition  following
  failure    -";
        assert_eq!(lines(&document, 0).join("\n"), expected);
    }
}
