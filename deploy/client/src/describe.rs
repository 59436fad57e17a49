//! `weir describe`: one object, with its state and what depends on it.

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::fleet;
use crate::history;
use crate::http::{Client, Query};
use crate::kind::{Kind, segment};
use crate::output::{Format, OutputArguments, pretty};
use crate::text::text;

/// The publications that are shown of a service.
const PUBLICATIONS: usize = 5;

/// What to show.
#[derive(Debug, Args)]
pub struct DescribeArguments {
    /// The kind
    #[arg(value_enum)]
    kind: Kind,
    /// Its name
    name: String,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
}

pub(crate) async fn run(arguments: &DescribeArguments) -> anyhow::Result<()> {
    let DescribeArguments { kind, name, output, .. } = arguments;
    let (client, clock) = (Client::new(&arguments.connection)?, output.clock());
    let document = client.find(&kind.path(name)?).await?;
    // An agent needs no entry.
    let heard = match kind {
        Kind::Agent => {
            let query: Query = vec![("agent", segment(name)?.to_owned())];
            client.list("/v1/fleet/agents", &query, "agents").await?.0.into_iter().next()
        }
        _ => None,
    };
    if document.is_none() && heard.is_none() {
        bail!("there is no {} `{name}`", kind.singular());
    }
    if output.output == Format::Json {
        let shown = if *kind == Kind::Agent { json!({ "entry": document, "heard": heard }) } else { document.into() };
        return Ok(print(pretty(&shown))?);
    }
    for part in [document, heard].into_iter().flatten() {
        print(lines(&part, 0).join("\n"))?;
    }
    match kind {
        Kind::Service => {
            let query: Query = vec![("limit", PUBLICATIONS.to_string())];
            let answer = client.get(&format!("{}/history", kind.path(name)?), &query).await?;
            let publications = answer["publications"].as_array().cloned().unwrap_or_default();
            print(format_args!("\n{}", history::table(&publications, clock, false).render("nothing is published")))?;
            history::print_acts(&publications, clock)?;
            let query: Query = vec![("service", name.clone()), ("by", "revision".to_owned())];
            let (groups, answer) = client.list("/v1/fleet/summary", &query, "groups").await?;
            print(format_args!("\n{}", fleet::groups(&["REVISION"], &groups, clock).render("no agent follows it")))?;
            crate::not_known::print(&answer, clock)?;
        }
        Kind::Agent => {
            let query: Query = vec![("agent", name.clone())];
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
            let query: Query = vec![("repository", name.clone())];
            let (services, _) = client.list("/v1/services", &query, "services").await?;
            let names: Vec<_> = services.iter().map(|service| text(&service["name"])).collect();
            print(format_args!("\nservices  {}", if names.is_empty() { "-".to_owned() } else { names.join(" ") }))?;
        }
        Kind::Assignment | Kind::Issuer => {}
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
