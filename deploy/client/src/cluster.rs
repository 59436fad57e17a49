//! `weir cluster add`: everything that a new cluster needs at the hub, and what to run there.

use std::fmt;
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
use crate::token::{Issued, Wanted, issue, label, labels};

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
      The same. Edges fetch the keys, if `key_hosts` in their [auth] has the host.
  weir cluster add $(cat names) --assign 'shop-*' --issuer https://kubernetes.default.svc --jwks '{name}.json' --helm >install.sh
      Many clusters, each with its own keys. install.sh has the commands of Helm for each, by contexts of their names.";

/// What to do with clusters.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Add clusters: for each its entry, an assignment and a token
    #[command(after_long_help = EXAMPLES)]
    Add(Box<AddArguments>),
}

/// What stands for the name of each of several clusters.
const NAME: &str = "{name}";

/// What the chart asks for by itself.
const DEFAULT_AUDIENCE: &str = "weir";

/// The clusters.
#[derive(Debug, Args)]
pub struct AddArguments {
    /// The name of its agent; takes several. Then `{name}` in --jwks, --jwks-ca and --out is the name of each
    #[arg(required = true, value_name = "NAME")]
    names: Vec<NodeName>,
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
    jwks_ca: Option<String>,
    /// The `iss` of these tokens
    #[arg(long, value_name = "URL", requires = "jwks")]
    issuer: Option<String>,
    /// The `sub` of these tokens [default: system:serviceaccount:weir:agent, or with --helm that of the chart]; may be repeated
    #[arg(long, value_name = "PATTERN", requires = "jwks")]
    subject: Vec<String>,
    /// The `aud` of these tokens
    #[arg(long, value_name = "TEXT", default_value = DEFAULT_AUDIENCE)]
    audience: String,
    /// Services that the tokens open [default: those of --assign]; may be repeated
    #[arg(long, value_name = "PATTERN", requires = "credential")]
    opens: Vec<NameGlob>,
    /// How long the token is valid
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = duration::parse)]
    expires: Duration,
    /// The new file for the token [default: NAME.token]
    #[arg(long, value_name = "FILE", requires = "key")]
    out: Option<String>,
    /// The URL of an edge, for what is printed
    #[arg(long, value_name = "URL")]
    edge: Option<String>,
    /// Print what to run for the chart weir-agent, and nothing else to standard output
    #[arg(long)]
    helm: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

pub(crate) async fn run(command: &ClusterCommand) -> anyhow::Result<()> {
    let ClusterCommand::Add(arguments) = command;
    let (client, names) = (Client::new(&arguments.connection)?, &arguments.names);
    // A role that is not enough is the fault of no cluster. It is refused before anything is read or written.
    let dry_run: Query = vec![("dry_run", "true".to_owned())];
    client.send(Method::POST, "/v1/batch", &dry_run, Some(&json!({}))).await?;
    if let [name] = &names[..] {
        return add(&client, arguments, name).await;
    }
    let own = [("--jwks", arguments.jwks.as_deref()), ("--out", arguments.out.as_deref())];
    let shared = own.iter().find(|(_, value)| value.is_some_and(|value| !value.contains(NAME)));
    if let Some((option, _)) = shared {
        bail!(
            "each cluster needs its own {option}: write `{NAME}` where its name is, as in {option} 'clusters/{NAME}'"
        );
    }
    let mut failed = Vec::new();
    for name in names {
        // One that is refused keeps no other from its place.
        if let Err(error) = add(&client, arguments, name).await {
            eprintln!("weir: {name}: {error:#}");
            failed.push(name.as_str());
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} clusters are not added: {}", failed.len(), names.len(), failed.join(" "));
    }
    Ok(())
}

async fn add(client: &Client, arguments: &AddArguments, name: &NodeName) -> anyhow::Result<()> {
    // First what may be refused, so that nothing is half done.
    let mut wanted = vec![(Kind::Agent, json!({}))];
    if !arguments.label.is_empty() {
        wanted[0].1["labels"] = json!(labels(&arguments.label)?);
    }
    if !arguments.assign.is_empty() {
        wanted.push((Kind::Assignment, json!({ "agents": name, "services": arguments.assign })));
    }
    if let Some(jwks) = &arguments.jwks {
        // The last one: it lets the agent in.
        wanted.push((Kind::Issuer, issuer(arguments, name, &of(jwks, name))?));
    }
    let mut new = Vec::new();
    for (kind, document) in wanted {
        match client.find(&kind.path(name.as_str())?).await? {
            None => new.push((kind, document)),
            Some(present) => {
                is_as_asked_for(kind, name, &present, &document)?;
                arguments.say(format_args!("{} {name} is there", kind.singular()))?;
            }
        }
    }
    let issued = arguments.key.as_ref().map(|key| issued(arguments, name, key)).transpose()?;
    let out = arguments.out.as_ref().map_or_else(|| format!("{name}.token"), |out| of(out, name));
    if let Some(issued) = &issued {
        key_pair::create(Path::new(&out), 0o600, &format!("{}\n", issued.token))?;
    }
    for (kind, document) in new {
        create(client, arguments, kind, name, &document).await?;
    }
    if let Some(issued) = &issued {
        arguments.say(format_args!("{out}: a token until {}", humantime::format_rfc3339_seconds(issued.until)))?;
        eprintln!("{}", issued.advice);
    } else if arguments.jwks.is_some() {
        arguments.say(format_args!("Edges accept these tokens with `keys_from_origins = true` in [auth]."))?;
    }
    let token = issued.map(|_| out);
    Ok(print(if arguments.helm { by_helm(arguments, name, token) } else { by_hand(arguments, name, token) })?)
}

impl AddArguments {
    /// Tells what was done: where standard output has commands alone, beside it.
    fn say(&self, done: fmt::Arguments<'_>) -> anyhow::Result<()> {
        if self.helm {
            eprintln!("{done}");
            return Ok(());
        }
        Ok(print(done)?)
    }
}

/// A value of one of several clusters.
fn of(value: &str, name: &NodeName) -> String {
    value.replace(NAME, name.as_str())
}

/// What to run at a cluster. `token`: the file of an issued one.
fn by_hand(arguments: &AddArguments, name: &NodeName, token: Option<String>) -> String {
    let edge = arguments.edge.as_deref().unwrap_or("https://edge.example:7443");
    let mut command = format!("weir-agent --name {name} --edge {edge} --services assigned --root /var/lib/weir");
    let of_cluster = arguments.jwks.as_ref().map(|_| "/var/run/weir/token".to_owned());
    if let Some(token) = token.or(of_cluster) {
        command = format!("{command} --token-file {token}");
    }
    format!("\nRun at the cluster, with the token and the authority of the edge:\n  {command} --ca ca.pem")
}

/// The same by the chart, as docs/how-to/agents-by-helm.md has it. One of several clusters is found by its context.
fn by_helm(arguments: &AddArguments, name: &NodeName, token: Option<String>) -> String {
    let context = |option: &str| match arguments.names.len() {
        1 => String::new(),
        _ => format!(" --{option} {name}"),
    };
    let kubectl = format!("kubectl{} --namespace weir", context("context"));
    let mut commands = format!("# {name}\n");
    let mut set = format!("--set-file ca.pem=ca.pem --set name={name}");
    if let Some(token) = token {
        commands += &format!("{kubectl} create namespace weir\n");
        commands += &format!("{kubectl} create secret generic weir-token --from-file=token={token}\n");
        set += " --set identity.tokenSecret=weir-token";
    }
    if arguments.audience != DEFAULT_AUDIENCE {
        set += &format!(" --set identity.audience='{}'", arguments.audience);
    }
    if let Some(edge) = &arguments.edge {
        set += &format!(" --set edges='{{{edge}}}'");
    }
    let install = format!("helm install weir-agent deploy/helm/weir-agent{}", context("kube-context"));
    format!("{commands}{install} --namespace weir --create-namespace --values values.yaml \\\n  {set}")
}

/// What is there stays. What differs from it is changed by `weir apply`, which says what it changes.
fn is_as_asked_for(kind: Kind, name: &NodeName, present: &Value, wanted: &Value) -> anyhow::Result<()> {
    for (key, value) in wanted.as_object().into_iter().flatten() {
        if present[key] != *value {
            let (kind, has) = (kind.singular(), &present[key]);
            bail!("the {kind} `{name}` is there with `{key}` = {has}, not {value}: change it with `weir apply`");
        }
    }
    Ok(())
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
fn issuer(arguments: &AddArguments, name: &NodeName, jwks: &str) -> anyhow::Result<Value> {
    let ca = arguments.jwks_ca.as_ref().map(|ca| of(ca, name));
    let jwks = key_set(jwks, ca.as_deref().map(Path::new))?;
    let AddArguments { issuer, audience, subject, helm, .. } = arguments;
    let services = opened(arguments)?;
    let account = if *helm { "weir-agent" } else { "agent" };
    let subjects = match &subject[..] {
        [] => vec![format!("system:serviceaccount:weir:{account}")],
        given => given.to_vec(),
    };
    let document = json!({ "name": name, "issuer": issuer, "audience": audience, "subjects": subjects, "agent": name,
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

fn issued(arguments: &AddArguments, name: &NodeName, key: &Path) -> anyhow::Result<Issued> {
    let (subject, services, labels) = (name.clone(), opened(arguments)?.clone(), arguments.label.clone());
    issue(key, &Wanted { subject, services, labels, expires: arguments.expires, id: None })
}

async fn create(
    client: &Client,
    arguments: &AddArguments,
    kind: Kind,
    name: &NodeName,
    document: &Value,
) -> anyhow::Result<()> {
    let (_, answer) = client.send(Method::PUT, &kind.path(name.as_str())?, &Query::new(), Some(document)).await?;
    arguments.say(format_args!("{} {name} created", kind.singular()))?;
    for warning in answer["warnings"].as_array().into_iter().flatten() {
        arguments.say(format_args!("  warning: {}", crate::text::text(warning)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: AddArguments,
    }

    fn arguments(line: &str) -> AddArguments {
        Line::try_parse_from(format!("add {line}").split(' ')).unwrap().arguments
    }

    #[test]
    fn the_commands_of_the_chart_are_those_of_its_page() {
        let name = "cluster-1".parse().unwrap();
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let one = by_helm(&arguments("cluster-1 --helm"), &name, None);
        let command = words(one.strip_prefix("# cluster-1\n").unwrap());
        assert!(words(include_str!("../../../docs/how-to/agents-by-helm.md")).contains(&command), "{command}");
        let several = arguments("cluster-1 cluster-2 --helm --edge https://edge.example --audience fleet");
        let expected = "\
# cluster-1
kubectl --context cluster-1 --namespace weir create namespace weir
kubectl --context cluster-1 --namespace weir create secret generic weir-token --from-file=token=cluster-1.token
helm install weir-agent deploy/helm/weir-agent --kube-context cluster-1 --namespace weir --create-namespace --values values.yaml \\
  --set-file ca.pem=ca.pem --set name=cluster-1 --set identity.tokenSecret=weir-token --set identity.audience='fleet' --set edges='{https://edge.example}'";
        assert_eq!(by_helm(&several, &name, Some("cluster-1.token".to_owned())), expected);
    }

    #[test]
    fn the_issuer_names_the_account_that_the_agent_has() {
        let dir = tempfile::tempdir().unwrap();
        let jwks = dir.path().join("{name}.json");
        let key = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"one","x":"AAAA"}]}"#;
        std::fs::write(dir.path().join("cluster-1.json"), key).unwrap();
        let name = "cluster-1".parse().unwrap();
        let subjects = |more: &str| {
            let jwks = jwks.display();
            let line = format!("cluster-1 --opens shop --issuer https://k8s.example --jwks {jwks}{more}");
            let arguments = arguments(&line);
            issuer(&arguments, &name, &of(arguments.jwks.as_ref().unwrap(), &name)).unwrap()["subjects"].clone()
        };
        assert_eq!(subjects(""), json!(["system:serviceaccount:weir:agent"]));
        assert_eq!(subjects(" --helm"), json!(["system:serviceaccount:weir:weir-agent"]));
        assert_eq!(subjects(" --helm --subject a"), json!(["a"]));
    }
}
