//! `weir rollback`, `pin`, `unpin`, `refresh`, `confirm` and `forget`.

use clap::{Args, ValueEnum};
use reqwest::Method;
use serde_json::{Value, json};
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query};
use crate::kind::{Kind, segment};
use crate::text::{revision, text};

pub(crate) const ROLLBACK_EXAMPLES: &str = "\
Examples:
  weir rollback shop-prod previous   the retained version before the current one
  weir rollback shop-prod 1.4.2      the version of a chart or artifact
  weir rollback shop-prod 4f2a9c1 --reason INC-42   the content of a commit, and why

It is published under a new generation and needs no upstream. The service stays there, whatever is pushed, until `weir unpin`.
`previous` is refused while a rollback is what is published: repeated, it would undo the first one. Name the version then.";

pub(crate) const CONFIRM_HELP: &str = "\
Compare first what is published with what its upstream has (`weir describe repository NAME`): what an older copy of the records says
is published again.";

/// A service.
#[derive(Debug, Args)]
pub struct ServiceArguments {
    /// The service
    pub(crate) service: String,
    /// Why, for the history and the log: at most 256 bytes
    #[arg(long)]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

/// What to return to.
#[derive(Debug, Args)]
pub struct RollbackArguments {
    /// The service
    service: String,
    /// `previous`, a version, or the beginning of a commit or digest
    revision: String,
    /// Why, for the history and the log: at most 256 bytes
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// A repository.
#[derive(Debug, Args)]
pub struct RepositoryArguments {
    /// The repository
    repository: String,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Whom an origin is to forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Gone {
    /// An agent, such as that of a removed cluster
    Agent,
    /// An edge
    Edge,
}

/// What is gone.
#[derive(Debug, Args)]
pub struct ForgetArguments {
    /// The kind
    #[arg(value_enum)]
    kind: Gone,
    /// Its name. One that still reports is there again
    name: String,
    #[command(flatten)]
    connection: ConnectionArguments,
}

pub(crate) async fn forget(arguments: &ForgetArguments) -> anyhow::Result<()> {
    let (client, name) = (Client::new(&arguments.connection)?, segment(&arguments.name)?);
    let path = match arguments.kind {
        Gone::Agent => format!("/v1/fleet/agents/{name}"),
        Gone::Edge => format!("/v1/edges/{name}"),
    };
    client.send(Method::DELETE, &path, &Query::new(), None).await?;
    print(format_args!("{name} is forgotten, unless it reports again."))?;
    if arguments.kind == Gone::Agent {
        print(format_args!(
            "What operators defined for it stays: `weir delete agent {name}`, its assignments, and its token until it is denied."
        ))?;
    }
    Ok(())
}

pub(crate) async fn roll_back(arguments: &RollbackArguments) -> anyhow::Result<()> {
    let RollbackArguments { service, revision: wanted, reason, .. } = arguments;
    let client = Client::new(&arguments.connection)?;
    let path = Kind::Service.path(service)?;
    let current = client.get(&path, &Query::new()).await?["status"]["published"]["generation"].take();
    let mut body = json!({ "revision": wanted });
    // What somebody else has published meanwhile is not undone unseen.
    if current.is_number() {
        body["generation"] = current;
    }
    add_reason(&mut body, reason.as_ref());
    let (_, document) = client.send(Method::POST, &format!("{path}/rollback"), &Query::new(), Some(&body)).await?;
    let to = revision(&document["status"]["published"]);
    print(format_args!(
        "{service} is rolled back to {to}, and pinned there. `weir unpin {service}` lets it follow again; `weir fleet -s {service}` \
         shows who has it."
    ))?;
    Ok(())
}

pub(crate) async fn pin(arguments: &ServiceArguments) -> anyhow::Result<()> {
    let (client, service) = (Client::new(&arguments.connection)?, &arguments.service);
    let document = set_pin(&client, arguments, Method::PUT).await?;
    let published = revision(&document["status"]["published"]);
    Ok(print(format_args!("{service} stays at {published} until `weir unpin {service}`."))?)
}

pub(crate) async fn unpin(arguments: &ServiceArguments) -> anyhow::Result<()> {
    let (client, service) = (Client::new(&arguments.connection)?, &arguments.service);
    let document = set_pin(&client, arguments, Method::DELETE).await?;
    Ok(print(format_args!("{service} follows again: {}.", text(&document["status"]["condition"])))?)
}

async fn set_pin(client: &Client, arguments: &ServiceArguments, method: Method) -> anyhow::Result<Value> {
    let (path, mut body) = (format!("{}/pin", Kind::Service.path(&arguments.service)?), json!({}));
    add_reason(&mut body, arguments.reason.as_ref());
    Ok(client.send(method, &path, &Query::new(), Some(&body)).await?.1)
}

fn add_reason(body: &mut Value, reason: Option<&String>) {
    if let Some(reason) = reason {
        body["reason"] = json!(reason);
    }
}

pub(crate) async fn confirm(arguments: &RepositoryArguments) -> anyhow::Result<()> {
    let (client, repository) = (Client::new(&arguments.connection)?, &arguments.repository);
    let path = format!("{}/confirm", Kind::Repository.path(repository)?);
    client.send(Method::POST, &path, &Query::new(), None).await?;
    Ok(print(format_args!("{repository} publishes again."))?)
}

pub(crate) async fn refresh(arguments: &RepositoryArguments) -> anyhow::Result<()> {
    let (client, repository) = (Client::new(&arguments.connection)?, &arguments.repository);
    let path = format!("{}/refresh", Kind::Repository.path(repository)?);
    client.send(Method::POST, &path, &Query::new(), None).await?;
    Ok(print(format_args!("{repository} is polled as soon as its `min_poll_interval` allows."))?)
}
