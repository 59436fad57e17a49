//! `weir stage` and `weir rollout`: a version for some agents first, and what becomes of it.

use std::time::Duration;

use clap::{Args, Subcommand, value_parser};
use reqwest::Method;
use serde_json::{Value, json};
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::deliver::ServiceArguments;
use crate::freeze;
use crate::history::HistoryArguments;
use crate::http::{Client, Query, TimedOut};
use crate::kind::Kind;
use crate::output::{Format, pretty};
use crate::staged;
use crate::text::{revision, text};
use crate::token::{label, labels};

/// How long an origin may take to fetch and build what is to be staged.
const BUILD_TIMEOUT: Duration = Duration::from_mins(10);

pub(crate) const STAGE_EXAMPLES: &str = "\
Examples:
  weir stage shop-prod 4f2a9c1d5e6b7a8091a2b3c4d5e6f708192a3b4c -l ring=canary --reason CHG-7
  weir stage shop-prod feature-x --agent 'eu-*' --agent test-1   the tip of a branch
  weir stage shop-prod v1.5.0-rc1 -l ring=canary --percent 10    a tag, for canaries and a tenth of all

The commit is checked as what the service follows, and built. Everybody else keeps what is published, and later commits wait.
`weir rollout promote` publishes it for all; `weir rollout abort` returns its agents to what is published.";

/// What to stage, and for whom.
#[derive(Debug, Args)]
pub struct StageArguments {
    /// The service
    service: String,
    /// A branch, a tag, a whole commit, or what `weir rollback` takes
    revision: String,
    /// For agents with this label; may be repeated, for agents with all of them
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = label, required_unless_present_any = ["agent", "percent"])]
    label: Vec<(String, String)>,
    /// Also for agents with such a name; may be repeated
    #[arg(short, long, value_name = "PATTERN")]
    agent: Vec<String>,
    /// Also for this part of all agents, 1 to 100
    #[arg(long, value_name = "N", value_parser = value_parser!(u8).range(1..=100))]
    percent: Option<u8>,
    /// Why, for the history and the log: at most 256 bytes
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// What to do with a staged version.
#[derive(Debug, Subcommand)]
pub enum RolloutCommand {
    /// Show what is staged, and what the agents do that get it
    Status(HistoryArguments),
    /// Publish it for all. If the ref of the service leads elsewhere, the service is pinned to it
    Promote(ServiceArguments),
    /// Abort it: its agents return to what is published
    Abort(ServiceArguments),
    /// Let no further stage of its plan begin
    Pause(ServiceArguments),
    /// Go on after a pause, or after it has stopped: agents that failed are counted again
    Resume(ServiceArguments),
    /// Let the next stage of its plan begin that waits for an approval
    Approve(ApproveArguments),
}

/// Which stage may begin.
#[derive(Debug, Args)]
pub struct ApproveArguments {
    /// The stage that you have looked at: no other one is approved. Without it, the one that is next now
    #[arg(long, value_name = "NAME")]
    stage: Option<String>,
    #[command(flatten)]
    service: ServiceArguments,
}

pub(crate) async fn stage(arguments: &StageArguments) -> anyhow::Result<()> {
    let StageArguments { service, revision: wanted, label, agent, percent, reason, .. } = arguments;
    let client = Client::new(&arguments.connection)?.with_timeout(BUILD_TIMEOUT);
    let labels = labels(label)?;
    let by_labels = (!labels.is_empty()).then(|| json!({ "labels": labels }));
    let selectors: Vec<_> = by_labels.into_iter().chain(agent.iter().map(|agent| json!({ "agents": agent }))).collect();
    let body = json!({ "revision": wanted, "for": selectors, "percent": percent, "reason": reason });
    let path = format!("{}/stage", Kind::Service.path(service)?);
    let staged = client.send(Method::POST, &path, &Query::new(), Some(&body)).await;
    let (_, rollout) = staged.map_err(|error| match error.is::<TimedOut>() {
        true => anyhow::anyhow!("{error}: it may still be staged: `weir rollout status {service}`"),
        false => error,
    })?;
    print(format_args!(
        "{} of {service} is staged over {}. `weir rollout status {service}` shows who has it; `weir rollout promote {service}` \
         publishes it for all, and `abort` returns its agents to what is published.",
        revision(&rollout["to"]),
        revision(&rollout["from"])
    ))?;
    Ok(())
}

pub(crate) async fn run(command: &RolloutCommand) -> anyhow::Result<()> {
    match command {
        RolloutCommand::Status(arguments) => status(arguments).await,
        RolloutCommand::Promote(arguments) => {
            let client = Client::new(&arguments.connection)?;
            let (before, _) = end(&client, arguments, "promote", None).await?;
            let document = client.get(&Kind::Service.path(&arguments.service)?, &Query::new()).await;
            let condition = document.unwrap_or_default()["status"]["condition"].take();
            Ok(print(promoted(&arguments.service, &before, &condition))?)
        }
        RolloutCommand::Abort(arguments) => {
            let (_, rollout) = end(&Client::new(&arguments.connection)?, arguments, "abort", None).await?;
            let (service, to) = (&arguments.service, revision(&rollout["to"]));
            Ok(print(format_args!("{to} of {service} is aborted: its agents return to what is published."))?)
        }
        RolloutCommand::Pause(arguments) => act(arguments, "pause", None).await,
        RolloutCommand::Resume(arguments) => act(arguments, "resume", None).await,
        RolloutCommand::Approve(ApproveArguments { stage, service }) => act(service, "approve", stage.as_deref()).await,
    }
}

/// Tells the plan something, and prints where the rollout stands then.
async fn act(arguments: &ServiceArguments, action: &str, stage: Option<&str>) -> anyhow::Result<()> {
    let (_, rollout) = end(&Client::new(&arguments.connection)?, arguments, action, stage).await?;
    let (service, to) = (&arguments.service, revision(&rollout["to"]));
    Ok(print(format_args!("{to} of {service} is {}.", staged::standing(&rollout)))?)
}

/// What was promoted, and what the service does now.
fn promoted(service: &str, before: &Value, condition: &Value) -> String {
    let aborted = match before["state"] == "aborted" {
        true => format!(", which was aborted by {},", staged::who(before)),
        false => String::new(),
    };
    let pinned = match condition == "pinned" {
        true => format!(
            " The service is pinned to it, because its ref leads elsewhere: `weir unpin {service}` lets it follow again."
        ),
        false => String::new(),
    };
    format!("{} of {service}{aborted} is published for all.{pinned}", revision(&before["to"]))
}

/// Does something about a rollout. Returns it as it was, and as it is then.
async fn end(
    client: &Client,
    arguments: &ServiceArguments,
    action: &str,
    stage: Option<&str>,
) -> anyhow::Result<(Value, Value)> {
    let path = format!("{}/rollout", Kind::Service.path(&arguments.service)?);
    let before = client.get(&path, &Query::new()).await?;
    // What somebody else does meanwhile is not undone unseen.
    let mut body = json!({ "action": action, "generation": before["to"]["generation"], "reason": arguments.reason });
    if action == "approve" {
        body["stage"] = stage.map_or_else(|| before["next_stage"].clone(), Value::from);
    }
    let (_, after) = client.send(Method::POST, &path, &Query::new(), Some(&body)).await?;
    Ok((before, after))
}

async fn status(arguments: &HistoryArguments) -> anyhow::Result<()> {
    let HistoryArguments { service, output, .. } = arguments;
    let client = Client::new(&arguments.connection)?;
    let rollout = client.get(&format!("{}/rollout", Kind::Service.path(service)?), &Query::new()).await?;
    match output.output {
        Format::Json => print(pretty(&rollout))?,
        Format::Name => staged::failing(&rollout).try_for_each(|agent| print(text(&agent["agent"])))?,
        Format::Table | Format::Wide => {
            print(staged::shown(service, &rollout, output.clock(), output.is_wide()))?;
            let document = client.find(&Kind::Service.path(service)?).await?.unwrap_or_default();
            if let Some(frozen) = freeze::frozen(&document["status"], output.clock()) {
                print(format_args!("{service} is {frozen}."))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: StageArguments,
    }

    #[test]
    fn labels_and_a_percentage_that_no_agent_can_have_are_refused() {
        let line = |more: &str| Line::try_parse_from(format!("stage shop next {more}").split(' '));
        for wrong in ["-l ring", "-l =canary", "--percent 0", "--percent 101"] {
            assert_eq!(line(wrong).unwrap_err().kind(), clap::error::ErrorKind::ValueValidation, "{wrong}");
        }
        let of = |more: &str| labels(&line(more).unwrap().arguments.label);
        let said = of("-l ring=canary -l ring=stable").unwrap_err().to_string();
        assert!(said.contains("--label ring=canary and --label ring=stable"), "{said}");
        assert_eq!(of("-l ring=canary -l zone=b --percent 100").unwrap().len(), 2);
    }

    #[test]
    fn a_promotion_says_what_was_aborted_before_and_what_is_pinned_now() {
        let mut before = json!({ "state": "running", "to": { "commit": "b".repeat(40) }, "by": "ann" });
        let following = json!("following");
        assert_eq!(promoted("shop", &before, &following), "bbbbbbbbbbbb of shop is published for all.");
        before["state"] = json!("aborted");
        let said = promoted("shop", &before, &json!("pinned"));
        let expected =
            "bbbbbbbbbbbb of shop, which was aborted by ann, is published for all. The service is pinned to it";
        assert!(said.starts_with(expected), "{said}");
    }
}
