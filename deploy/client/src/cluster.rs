//! `weir cluster add`: everything that a new cluster needs at the hub, and what to run there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};
use weir_protocol::issuer::Issuer;
use weir_protocol::name::NodeName;
use weir_protocol::name_glob::NameGlob;
use weir_runtime::config::duration;
use weir_runtime::key_pair;
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query};
use crate::kind::Kind;
use crate::token::{Issued, Wanted, issue, label};

pub(crate) const EXAMPLES: &str = "\
Examples:
  weir cluster add cluster-7 --label ring=canary
      An entry with labels: assignments by labels find the cluster.
  weir cluster add cluster-7 --assign 'shop-*' --key fleet.key --edge https://edge.example:7443
      Also assigns services, and issues a token that opens them; it prints what to run at the cluster.
  kubectl get --raw /openid/v1/jwks >cluster-7.json
  weir cluster add cluster-7 --assign 'shop-*' --issuer https://kubernetes.default.svc --jwks cluster-7.json
      Accepts the tokens that the cluster makes itself, in place of an issued one.
  weir cluster add cluster-7 --assign 'shop-*' --issuer https://kubernetes.default.svc \\
      --jwks https://api.cluster-7.example:6443/openid/v1/jwks --jwks-ca cluster-7-ca.pem
      The same. Edges fetch the keys, if `key_hosts` in their [auth] has the host.";

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
    #[arg(long, value_name = "FILE", group = "credential")]
    key: Option<PathBuf>,
    /// The public keys with which the cluster signs tokens itself, in place of --key: a file, or an https URL
    #[arg(long, value_name = "FILE|URL", group = "credential", requires = "issuer")]
    jwks: Option<String>,
    /// The authority of the URL's host, PEM
    #[arg(long, value_name = "FILE", requires = "jwks")]
    jwks_ca: Option<PathBuf>,
    /// The `iss` of these tokens
    #[arg(long, value_name = "URL", requires = "jwks")]
    issuer: Option<String>,
    /// The `sub` of these tokens; may be repeated
    #[arg(long, value_name = "PATTERN", default_value = "system:serviceaccount:weir:agent")]
    subject: Vec<String>,
    /// The `aud` of these tokens
    #[arg(long, value_name = "TEXT", default_value = "weir")]
    audience: String,
    /// Services that the tokens open [default: those of --assign]; may be repeated
    #[arg(long, value_name = "PATTERN", requires = "credential")]
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

pub(crate) async fn run(command: &ClusterCommand) -> anyhow::Result<()> {
    let ClusterCommand::Add(arguments) = command;
    let (client, name) = (Client::new(&arguments.connection)?, arguments.name.as_str());
    // First what may be refused, so that nothing is half done.
    let mut wanted = vec![(Kind::Agent, json!({}))];
    if !arguments.label.is_empty() {
        wanted[0].1["labels"] = arguments.label.iter().cloned().collect();
    }
    if !arguments.assign.is_empty() {
        wanted.push((Kind::Assignment, json!({ "agents": name, "services": arguments.assign })));
    }
    if let Some(jwks) = &arguments.jwks {
        // The last one: it lets the agent in.
        wanted.push((Kind::Issuer, issuer(arguments, jwks)?));
    }
    let mut new = Vec::new();
    for (kind, document) in wanted {
        match client.find(&kind.path(name)?).await? {
            None => new.push((kind, document)),
            Some(present) => is_as_asked_for(kind, name, &present, &document)?,
        }
    }
    let issued = arguments.key.as_ref().map(|key| issued(arguments, key)).transpose()?;
    let out = arguments.out.clone().unwrap_or_else(|| format!("{name}.token").into());
    if let Some(issued) = &issued {
        key_pair::create(&out, 0o600, &format!("{}\n", issued.token))?;
    }
    for (kind, document) in new {
        create(&client, kind, name, &document).await?;
    }
    let mut command =
        format!("weir-agent --name {name} --edge {} --services assigned --root /var/lib/weir", arguments.edge);
    if let Some(issued) = issued {
        print(format_args!("{}: a token until {}", out.display(), humantime::format_rfc3339_seconds(issued.until)))?;
        eprintln!("{}", issued.advice);
        command = format!("{command} --token-file {}", out.display());
    } else if arguments.jwks.is_some() {
        print("Edges accept these tokens with `keys_from_origins = true` in [auth].")?;
        command = format!("{command} --token-file /var/run/weir/token");
    }
    Ok(print(format_args!(
        "\nRun at the cluster, with the token and the authority of the edge:\n  {command} --ca ca.pem"
    ))?)
}

/// What is there stays. What differs from it is changed by `weir apply`, which says what it changes.
fn is_as_asked_for(kind: Kind, name: &str, present: &Value, wanted: &Value) -> anyhow::Result<()> {
    for (key, value) in wanted.as_object().into_iter().flatten() {
        if present[key] != *value {
            let (kind, has) = (kind.singular(), &present[key]);
            bail!("the {kind} `{name}` is there with `{key}` = {has}, not {value}: change it with `weir apply`");
        }
    }
    Ok(print(format_args!("{} {name} is there", kind.singular()))?)
}

/// The services that the tokens open.
fn opened(arguments: &AddArguments) -> anyhow::Result<&Vec<NameGlob>> {
    let services = if arguments.opens.is_empty() { &arguments.assign } else { &arguments.opens };
    if services.is_empty() {
        bail!("say what the token opens: --opens 'shop-*'");
    }
    Ok(services)
}

/// The document of the issuer of the cluster's own tokens.
fn issuer(arguments: &AddArguments, jwks: &str) -> anyhow::Result<Value> {
    let jwks = key_set(jwks, arguments.jwks_ca.as_deref())?;
    let AddArguments { issuer, audience, subject, name, .. } = arguments;
    let services = opened(arguments)?;
    let document = json!({ "name": name, "issuer": issuer, "audience": audience, "subjects": subject, "agent": name,
        "services": services, "jwks": jwks });
    serde_json::from_value::<Issuer>(document.clone())?;
    Ok(document)
}

/// The keys of a file, or where edges fetch them.
fn key_set(jwks: &str, ca: Option<&Path>) -> anyhow::Result<Value> {
    let read = |file: &Path| std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
    match (jwks.contains("://"), ca) {
        (true, Some(ca)) => Ok(json!({ "url": jwks, "ca": read(ca)? })),
        (true, None) => bail!("a URL needs the authority of its host: --jwks-ca FILE"),
        (false, Some(_)) => bail!("--jwks-ca is for a URL: {jwks} is a file"),
        (false, None) => serde_json::from_str(&read(Path::new(jwks))?).with_context(|| format!("{jwks} is no JSON")),
    }
}

fn issued(arguments: &AddArguments, key: &Path) -> anyhow::Result<Issued> {
    let (subject, services, labels) = (arguments.name.clone(), opened(arguments)?.clone(), arguments.label.clone());
    issue(key, &Wanted { subject, services, labels, expires: arguments.expires, id: None })
}

async fn create(client: &Client, kind: Kind, name: &str, document: &Value) -> anyhow::Result<()> {
    let (_, answer) = client.send(Method::PUT, &kind.path(name)?, &Query::new(), Some(document)).await?;
    print(format_args!("{} {name} created", kind.singular()))?;
    for warning in answer["warnings"].as_array().into_iter().flatten() {
        print(format_args!("  warning: {}", crate::text::text(warning)))?;
    }
    Ok(())
}
