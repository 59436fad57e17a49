//! `weir cluster add`: everything that a new cluster needs at the hub, and what to run there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use weir_protocol::labels::Labels;
use weir_protocol::name::NodeName;
use weir_protocol::name_glob::NameGlob;
use weir_protocol::token::{Claims, SigningKey, TokenId, unix_seconds};
use weir_runtime::config::duration;
use weir_runtime::key_pair;
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query};
use crate::kind::Kind;

pub(crate) const EXAMPLES: &str = "\
Examples:
  weir cluster add cluster-7 --label ring=canary
      An entry with labels: assignments by labels find the cluster.
  weir cluster add cluster-7 --assign 'shop-*' --key fleet.key --edge https://edge.example:7443
      Also assigns services, and issues a token that opens them; it prints what to run at the cluster.";

/// What to do with clusters.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Add a cluster: its entry, an assignment and a token
    #[command(after_long_help = EXAMPLES)]
    Add(AddArguments),
}

/// The cluster.
#[derive(Debug, Args)]
pub struct AddArguments {
    /// The name of its agent
    name: NodeName,
    /// A label, KEY=VALUE; may be repeated
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Services that it is to follow: a name or pattern; may be repeated. Without it assignments that exist decide
    #[arg(long, value_name = "PATTERN")]
    assign: Vec<NameGlob>,
    /// The private key that `weir token key` made: a token is issued
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Services that the token opens [default: those of --assign]; may be repeated
    #[arg(long, value_name = "PATTERN", requires = "key")]
    opens: Vec<NameGlob>,
    /// How long the token is valid
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = duration::parse)]
    expires: Duration,
    /// The new file for the token [default: NAME.token]
    #[arg(long, value_name = "FILE", requires = "key")]
    out: Option<PathBuf>,
    /// The URL of an edge, for what is printed
    #[arg(long, value_name = "URL", default_value = "https://edge.example:7443")]
    edge: String,
    #[command(flatten)]
    connection: ConnectionArguments,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("expected `KEY=VALUE`")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub(crate) async fn run(command: &ClusterCommand) -> anyhow::Result<()> {
    let ClusterCommand::Add(arguments) = command;
    let (client, name) = (Client::new(&arguments.connection)?, arguments.name.as_str());
    let labels: BTreeMap<_, _> = arguments.label.iter().cloned().collect();
    let labels = Labels::try_from(labels)?;
    // First what may be refused here: nothing is left behind then.
    let token = arguments.key.as_ref().map(|key| token(arguments, key, &labels)).transpose()?;
    put(&client, Kind::Agent, name, &json!({ "labels": labels })).await?;
    if !arguments.assign.is_empty() {
        put(&client, Kind::Assignment, name, &json!({ "agents": name, "services": arguments.assign })).await?;
    }
    let mut command =
        format!("weir-agent --name {name} --edge {} --services assigned --root /var/lib/weir", arguments.edge);
    if let Some((token, claims)) = token {
        let out = arguments.out.clone().unwrap_or_else(|| format!("{name}.token").into());
        key_pair::create(&out, 0o600, &format!("{token}\n"))?;
        let until = SystemTime::UNIX_EPOCH + Duration::from_secs(claims.expires);
        print(format_args!("{}: a token until {}", out.display(), humantime::format_rfc3339_seconds(until)))?;
        command = format!("{command} --token-file {}", out.display());
    }
    Ok(print(format_args!(
        "\nRun at the cluster, with the token and the authority of the edge:\n  {command} --ca ca.pem"
    ))?)
}

fn token(arguments: &AddArguments, key: &PathBuf, labels: &Labels) -> anyhow::Result<(String, Claims)> {
    let services = if arguments.opens.is_empty() { &arguments.assign } else { &arguments.opens };
    if services.is_empty() {
        bail!("say what the token opens: --opens 'shop-*'");
    }
    let pem = std::fs::read(key).with_context(|| format!("cannot read {}", key.display()))?;
    let key = SigningKey::from_pem(&pem).with_context(|| format!("{} is not a private key", key.display()))?;
    let now = unix_seconds(SystemTime::now());
    let claims = Claims {
        subject: arguments.name.clone(),
        id: Some(TokenId::random()?),
        services: services.clone(),
        labels: labels.clone(),
        expires: now + arguments.expires.as_secs(),
        not_before: None,
        issued_at: Some(now),
    };
    Ok((key.issue(&claims)?, claims))
}

async fn put(client: &Client, kind: Kind, name: &str, document: &Value) -> anyhow::Result<()> {
    let (status, answer) = client.send(Method::PUT, &kind.path(name)?, &Query::new(), Some(document)).await?;
    let done = if status == StatusCode::CREATED { "created" } else { "is there, as asked for" };
    print(format_args!("{} {name} {done}", kind.singular()))?;
    for warning in answer["warnings"].as_array().into_iter().flatten() {
        print(format_args!("  warning: {}", crate::text::text(warning)))?;
    }
    Ok(())
}
