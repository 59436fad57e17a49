//! `weir get`: lists of objects.

use anyhow::bail;
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use serde_json::Value;
use weir_protocol::name_glob::NameGlob;
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query};
use crate::kind::Kind;
use crate::output::{Format, OutputArguments};
use crate::table::Table;
use crate::text::{Clock, followed, revision, shortened, text};

pub(crate) const EXAMPLES: &str = "\
Examples:
  weir get services                  all services with their state
  weir get services 'shop-*'         those whose names match
  weir get services --repository shop -o wide
  weir get agents --state silent     agents that no edge hears
  weir get edges                     edges: which are live, incomplete or away, with their agents
  weir get members -o wide           origins, and what each owns
  weir get assignments -o json       as the API has them";

/// What to list.
#[derive(Debug, Args)]
pub struct GetArguments {
    /// The kind
    #[arg(value_enum)]
    kind: Listed,
    /// Patterns of names, with `*`
    names: Vec<String>,
    /// Of services: those of one repository
    #[arg(long, value_name = "NAME")]
    repository: Option<String>,
    /// Of agents: live, silent or refused
    #[arg(long)]
    state: Option<String>,
    /// Of agents: those with this label, KEY=VALUE; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE")]
    label: Vec<String>,
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// What can be listed: objects that operators define, and what takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listed {
    Objects(Kind),
    Edges,
    Members,
}

impl ValueEnum for Listed {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Listed; 7] = [
            Listed::Objects(Kind::Repository),
            Listed::Objects(Kind::Service),
            Listed::Objects(Kind::Agent),
            Listed::Objects(Kind::Assignment),
            Listed::Objects(Kind::Issuer),
            Listed::Edges,
            Listed::Members,
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Objects(kind) => kind.to_possible_value(),
            Self::Edges => Some(PossibleValue::new("edges").alias("edge").help("Caches that report what agents run")),
            Self::Members => Some(PossibleValue::new("members").alias("member").help("The origins of the hub")),
        }
    }
}

impl Listed {
    fn singular(self) -> &'static str {
        match self {
            Self::Objects(kind) => kind.singular(),
            Self::Edges => "edge",
            Self::Members => "member",
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Objects(kind) => kind.plural(),
            Self::Edges => "edges",
            Self::Members => "members",
        }
    }
}

pub(crate) async fn run(arguments: &GetArguments) -> anyhow::Result<()> {
    let GetArguments { kind, names, output, .. } = arguments;
    let (client, clock, is_wide) = (Client::new(&arguments.connection)?, output.clock(), output.is_wide());
    let patterns = names.iter().map(|name| name.parse()).collect::<Result<Vec<NameGlob>, _>>()?;
    let mut query: Query = Vec::new();
    query.extend(arguments.repository.clone().map(|name| ("repository", name)));
    query.extend(arguments.state.clone().map(|state| ("state", state)));
    query.extend(arguments.label.iter().map(|label| ("label", label.clone())));
    // What agents are comes from what edges hear, and not only from entries.
    let (name_key, (mut entries, answer)) = match kind {
        Listed::Objects(Kind::Agent) => ("agent", client.list("/v1/fleet/agents", &query, "agents").await?),
        Listed::Objects(kind) => ("name", (client.with_states(*kind, &query).await?, Value::Null)),
        Listed::Edges | Listed::Members => {
            let key = kind.plural();
            // The names of what members own, where they are shown.
            if *kind == Listed::Members && matches!(output.output, Format::Wide | Format::Json) {
                query.push(("repositories", String::new()));
            }
            let mut answer = client.get(&format!("/v1/{key}"), &query).await?;
            let entries = answer[key].as_array_mut().map(std::mem::take).unwrap_or_default();
            ("name", (entries, answer))
        }
    };
    let name = |entry: &Value| entry[name_key].as_str().unwrap_or_default().to_owned();
    entries.retain(|entry| patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(&name(entry))));
    if let Some(missing) = names.iter().zip(&patterns).find(|(_, pattern)| {
        !pattern.as_str().contains('*') && !entries.iter().any(|entry| pattern.matches(&name(entry)))
    }) {
        bail!("there is no {} `{}`", kind.singular(), missing.0);
    }
    let matching = if patterns.is_empty() && query.is_empty() { "" } else { " that match" };
    let none = format!("there are no {}{matching}", kind.plural());
    output.list(kind.plural(), &entries, name, |entries| table(*kind, entries, clock, is_wide), &none)?;
    if let Some(number) = answer["unowned"]["repositories"].as_u64().filter(|number| *number > 0)
        && matches!(output.output, Format::Table | Format::Wide)
    {
        print(format_args!("\n{number} repositories have no owner now: {}", text(&answer["unowned"]["names"])))?;
    }
    if *kind == Listed::Objects(Kind::Agent) && matches!(output.output, Format::Table | Format::Wide) {
        crate::not_known::print(&answer, clock)?;
    }
    Ok(())
}

fn table(kind: Listed, entries: &[Value], clock: Clock, is_wide: bool) -> Table {
    let (head, wide): (&[&str], &[&str]) = match kind {
        Listed::Objects(Kind::Service) => (
            &["NAME", "REPOSITORY", "FOLLOWS", "CONDITION", "PUBLISHED", "AGE", "FAILURE"],
            &["DIGEST", "GENERATION", "DEFINED-BY"],
        ),
        Listed::Objects(Kind::Repository) => (
            &["NAME", "HEALTH", "SINCE", "LAST-SUCCESS", "FAILURE"],
            &["URL", "PHASE", "STEP", "WAITS-FOR", "DEFINED-BY"],
        ),
        Listed::Objects(Kind::Agent) => (
            &["NAME", "STATE", "HEARD", "EDGE", "SERVICES", "PROBLEMS"],
            &["VERSION", "LABELS", "PROVED", "NAME-TWICE", "REASON"],
        ),
        Listed::Objects(Kind::Assignment) => (&["NAME", "AGENTS", "LABELS", "SERVICES"], &["DEFINED-BY"]),
        Listed::Objects(Kind::Issuer) => (&["NAME", "ISSUER", "AGENT", "KEYS"], &["SERVICES", "DEFINED-BY"]),
        Listed::Edges => (&["NAME", "STATE", "SINCE", "HEARD", "AGENTS", "ROWS"], &["VERSION", "VIA"]),
        Listed::Members => (&["NAME", "STATE", "ZONE", "REPOSITORIES"], &["URL", "SESSION", "OWNS"]),
    };
    let mut table = Table::new(&head.iter().chain(wide.iter().filter(|_| is_wide)).copied().collect::<Vec<_>>());
    for entry in entries {
        let mut cells = cells(kind, entry, clock);
        cells.truncate(head.len() + if is_wide { wide.len() } else { 0 });
        table.row(cells);
    }
    table
}

fn cells(kind: Listed, entry: &Value, clock: Clock) -> Vec<String> {
    let (status, of) = (&entry["status"], |key: &str| text(&entry[key]));
    match kind {
        Listed::Objects(Kind::Service) => {
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
        Listed::Objects(Kind::Repository) => vec![
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
        Listed::Objects(Kind::Agent) => vec![
            of("agent"),
            of("state"),
            clock.time(&entry["heard_at"]),
            of("edge"),
            of("services"),
            of("problems"),
            of("version"),
            of("labels"),
            of("proved"),
            of("alternates"),
            of("reason"),
        ],
        Listed::Objects(Kind::Assignment) => {
            vec![of("name"), of("agents"), of("labels"), of("services"), of("defined_by")]
        }
        Listed::Objects(Kind::Issuer) => {
            let keys = entry["jwks"]["keys"].as_array().map_or(0, Vec::len).to_string();
            vec![of("name"), of("issuer"), of("agent"), keys, of("services"), of("defined_by")]
        }
        Listed::Edges => vec![
            of("name"),
            of("state"),
            clock.time(&entry["since"]),
            clock.time(&entry["heard_at"]),
            of("agents"),
            of("rows"),
            of("version"),
            of("via"),
        ],
        Listed::Members => {
            let owns = &entry["owns"];
            let (number, names) = (text(&owns["repositories"]), text(&owns["names"]));
            vec![of("name"), of("state"), of("zone"), number, of("url"), of("session"), names]
        }
    }
}
