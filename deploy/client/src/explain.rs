//! `weir explain`: why an agent has what it has of a service, from the upstream to the cluster.

use anyhow::bail;
use clap::Args;
use serde_json::Value;
use weir_protocol::assignment::Assignment;
use weir_protocol::labels::Labels;
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::describe::output_of;
use crate::edge::EdgeArguments;
use crate::freeze;
use crate::http::{Client, Query, if_permitted};
use crate::kind::{Kind, segment};
use crate::pin;
use crate::staged;
use crate::text::{Clock, counted, followed, revision, shortened, text};

/// Whom to explain.
#[derive(Debug, Args)]
pub struct ExplainArguments {
    /// The agent
    agent: String,
    /// The service
    service: String,
    #[command(flatten)]
    edge: EdgeArguments,
    /// Show times in UTC, and not how long ago they were
    #[arg(long)]
    utc: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// What an origin knows.
struct Found {
    service: Option<Value>,
    /// What is staged of the service, or was aborted.
    rollout: Value,
    row: Option<Value>,
    agent: Option<Value>,
    /// What operators say of the agent.
    entry: Option<Value>,
    /// `None`: they are not for the role of this operator.
    assignments: Option<Vec<Value>>,
    answer: Value,
}

pub(crate) async fn run(arguments: &ExplainArguments) -> anyhow::Result<()> {
    let ExplainArguments { agent, service, .. } = arguments;
    let (connection, clock) = (arguments.connection.resolve()?, Clock::new(arguments.utc));
    let edge = arguments.edge.ask(connection.ca.clone(), agent, service).await?;
    let client = Client::of(connection)?;
    let agents: Query = vec![("agent", segment(agent)?.to_owned())];
    let rows: Query = vec![("agent", agent.clone()), ("service", segment(service)?.to_owned())];
    let (rows, answer) = client.list("/v1/fleet/rows", &rows, "rows").await?;
    let of_service = Kind::Service.path(service)?;
    let found = Found {
        service: client.find(&of_service).await?,
        rollout: client.find(&format!("{of_service}/rollout")).await?.unwrap_or_default(),
        row: rows.into_iter().next(),
        agent: if_permitted(client.list("/v1/fleet/agents", &agents, "agents").await)?
            .and_then(|(agents, _)| agents.into_iter().next()),
        entry: if_permitted(client.find(&Kind::Agent.path(agent)?).await)?.flatten(),
        assignments: if_permitted(client.list("/v1/assignments", &Query::new(), "assignments").await)?
            .map(|(assignments, _)| assignments),
        answer,
    };
    if [&found.service, &found.row, &found.agent, &found.entry].into_iter().all(Option::is_none) {
        bail!("the hub knows neither an agent `{agent}` nor a service `{service}`");
    }
    let published = found.service.as_ref().map_or(&Value::Null, |document| &document["status"]["published"]);
    let mut lines = story(agent, service, &found, clock);
    for (number, said) in edge.iter().flat_map(|edge| edge.lines(published, clock)).enumerate() {
        lines.push(format!("  {:10} {said}", if number == 0 { "edge" } else { "" }));
    }
    print(lines.join("\n"))?;
    crate::not_known::print(&found.answer, clock)
}

/// One line for each tier, and the verdict first.
fn story(agent: &str, service: &str, found: &Found, clock: Clock) -> Vec<String> {
    let status = found.service.as_ref().map_or(&Value::Null, |document| &document["status"]);
    let published = &status["published"];
    let row = found.row.as_ref().unwrap_or(&Value::Null);
    let mut lines = vec![format!("{service} at {agent}: {}", verdict(found, status))];
    let mut line = |what: &str, said: String| lines.push(format!("  {what:10} {said}"));
    for (what, said) in held(service, status, &found.rollout, clock) {
        line(what, said);
    }
    match &found.service {
        None => line("defined", "no: no service of the hub has this name".to_owned()),
        Some(document) => {
            let seen = &status["seen"];
            let at = if seen["revision_id"].is_string() {
                let newest = seen["revision_id"].as_str().map_or(String::new(), shortened);
                format!(", which is at {newest}, seen {}", clock.ago(&seen["seen_at"]))
            } else {
                String::new()
            };
            line("upstream", format!("{}{at}", followed(document)));
            if seen["upstream_unreachable_since"].is_string() {
                let since = clock.since(&seen["upstream_unreachable_since"]);
                line("", format!("it has not answered {since}: whether it has a newer one is not known"));
            }
            let at = clock.generation(&published["generation"]);
            line("published", format!("{} ({at}), {}", revision(published), text(&status["condition"])));
            if let Some(reason) = status["failure"]["reason"].as_str() {
                line("", format!("nothing newer is: {reason}"));
            }
        }
    }
    let labels = found.agent.as_ref().or(found.entry.as_ref()).map_or(&Value::Null, |known| &known["labels"]);
    if let Some(all) = &found.assignments {
        let by = all.iter().filter(|one| assigns(one, agent, labels, service));
        let by: Vec<_> = by.map(|one| text(&one["name"])).collect();
        line("assigned", if by.is_empty() { "by no assignment".to_owned() } else { format!("by {}", by.join(", ")) });
    }
    match found.agent.as_ref().or(found.row.as_ref()) {
        None => line("agent", "no edge has heard it".to_owned()),
        Some(heard) => {
            let (state, edge) = (text(&heard["state"]), text(&heard["edge"]));
            let at = if state == "live" { String::new() } else { format!(", heard {}", clock.ago(&heard["heard_at"])) };
            line("agent", format!("{state}{at} by the edge {edge}"));
            if let Some(reason) = heard["reason"].as_str() {
                line("", format!("its credential was refused: {reason}"));
            }
        }
    }
    if found.row.is_some() {
        let current = &row["current"];
        line("has", format!("{} {}", revision(current), clock.since(&current["since"])));
        if row["applied"]["digest"] != current["digest"] && row["hook"] != "none" {
            let applied = &row["applied"];
            let last = if applied.is_object() {
                format!("{} {}", revision(applied), clock.since(&applied["since"]))
            } else {
                "nothing that is known of: its hook has not succeeded".to_owned()
            };
            line("applied", last);
        }
        line("does", format!("{}, its hook: {}", text(&row["phase"]), text(&row["hook"])));
        let problem = &row["problem"];
        if problem.is_object() {
            line("problem", said_of(problem, clock));
            output_of(row).for_each(|written| line("", written.to_owned()));
        }
    }
    lines
}

/// What keeps new commits of the service from the agent.
fn held(service: &str, status: &Value, rollout: &Value, clock: Clock) -> impl Iterator<Item = (&'static str, String)> {
    let pinned = || format!("it is {}; `weir unpin {service}` lets it follow again", pin::pinned(status, clock));
    let pinned = status["pinned"].is_object().then(pinned);
    let (frozen, staged) = (freeze::frozen(status, clock), staged::line(service, rollout, clock));
    let all = [("pinned", pinned), ("frozen", frozen), ("staged", staged)];
    all.into_iter().filter_map(|(what, said)| Some((what, said?)))
}

/// What a problem is, since when, and how often.
fn said_of(problem: &Value, clock: Clock) -> String {
    let (kind, tries, since) =
        (text(&problem["kind"]), counted(&problem["tries"], "try"), clock.since(&problem["since"]));
    format!("{kind} {since}, {tries}: {}", text(&problem["text"]))
}

fn verdict(found: &Found, status: &Value) -> &'static str {
    let published = &status["published"];
    let Some(row) = &found.row else { return "the agent has not told of it" };
    let (has, problem) = (&row["current"]["digest"], &row["problem"]);
    let is_hook_at_it = row["hook"] == "pending" || row["hook"] == "running";
    if staged::is_staged(&found.rollout, has) {
        return match problem.is_object() {
            true => "it has what is staged for it, but all is not well",
            false if is_hook_at_it => "it has what is staged for it, and its hook has not ended",
            false => "it has what is staged for it",
        };
    }
    match (has == &published["digest"] && has.is_string(), problem.is_object()) {
        (true, false) if is_hook_at_it => "it has what is published, and its hook has not ended",
        (true, false) if status["pinned"].is_object() => "it has what is published, where the service is pinned",
        (true, false) => "it has what is published",
        (true, true) => "it has what is published, but all is not well",
        (false, true) => "it lacks what is published, because of a problem",
        (false, false) if row["phase"] == "pinned" => "it is pinned at the cluster",
        (false, false) => "it does not have what is published yet",
    }
}

/// Whether an assignment gives a service to an agent.
fn assigns(assignment: &Value, agent: &str, labels: &Value, service: &str) -> bool {
    let labels = serde_json::from_value::<Labels>(labels.clone()).unwrap_or_default();
    let (assignment, agent) = (serde_json::from_value::<Assignment>(assignment.clone()), agent.parse());
    let (Ok(assignment), Ok(agent)) = (assignment, agent) else { return false };
    assignment.is_for(&agent, &labels) && assignment.services.iter().any(|pattern| pattern.matches(service))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found() -> Found {
        Found {
            rollout: Value::Null,
            service: Some(json!({
                "ref": "main", "folder": "prod",
                "status": {
                    "condition": "following", "seen": {"revision_id": "sha1:4f2a9c1d4f2a9c1d", "seen_at": "2026-01-02T03:04:05Z"},
                    "published": {"digest": "b3-1", "version": "1.2.0", "generation": 1_000},
                },
            })),
            row: Some(json!({
                "current": {"digest": "b3-0", "revision_id": "old", "since": null}, "phase": "hook", "hook": "failed",
                "applied": {"digest": "b3-9", "revision_id": "older", "since": "2026-01-01T00:00:00Z"},
                "problem": {"kind": "hook-failed", "tries": 7, "since": "2026-01-02T03:04:05Z", "text": "exit status 1", "output": "no such namespace"},
            })),
            agent: Some(json!({"state": "live", "edge": "paris", "labels": {"ring": "canary"}})),
            entry: None,
            assignments: Some(vec![
                json!({"name": "canaries", "labels": {"ring": "canary"}, "services": ["shop-*"]}),
                json!({"name": "others", "agents": "laptop-*", "services": ["*"]}),
            ]),
            answer: Value::Null,
        }
    }

    #[test]
    fn the_story_has_every_tier_and_who_is_at_fault() {
        let said = story("cluster-1", "shop-a", &found(), Clock::new(true)).join("\n");
        let expected = "\
shop-a at cluster-1: it lacks what is published, because of a problem
  upstream   main:prod, which is at 4f2a9c1d4f2a, seen 2026-01-02T03:04:05Z
  published  1.2.0 (1970-01-01T00:00:01Z), following
  assigned   by canaries
  agent      live by the edge paris
  has        old since -
  applied    older since 2026-01-01T00:00:00Z
  does       hook, its hook: failed
  problem    hook-failed since 2026-01-02T03:04:05Z, 7 tries: exit status 1
             no such namespace";
        assert_eq!(said, expected);
        let mut held = found();
        let (service, row) = (held.service.as_mut().unwrap(), held.row.as_mut().unwrap());
        service["status"]["pinned"] = json!({"since": "2026-01-02T03:04:05Z", "by": "ana", "reason": "INC-42"});
        (row["current"]["digest"], row["problem"], row["hook"]) = (json!("b3-1"), Value::Null, json!("succeeded"));
        let said = story("cluster-1", "shop-a", &held, Clock::new(true));
        let expected = [
            "shop-a at cluster-1: it has what is published, where the service is pinned",
            "  pinned     it is pinned at 1.2.0 since 2026-01-02T03:04:05Z, by ana: INC-42; `weir unpin shop-a` lets it follow again",
        ];
        assert_eq!(said[..2], expected);
        let mut staged = found();
        staged.rollout = json!({
            "state": "running", "to": {"commit": "b".repeat(40), "digest": "b3-0"}, "for": [{"labels": {"ring": "canary"}}],
            "since": "2026-01-02T03:04:05Z", "by": "ana", "reason": "CHG-7",
        });
        staged.row.as_mut().unwrap()["problem"] = Value::Null;
        let said = story("cluster-1", "shop-a", &staged, Clock::new(true));
        let expected = [
            "shop-a at cluster-1: it has what is staged for it",
            "  staged     bbbbbbbbbbbb for ring=canary by ana, 2026-01-02T03:04:05Z: CHG-7; later commits wait: `weir rollout status shop-a`",
        ];
        assert_eq!(said[..2], expected);
        (staged.rollout["plan"], staged.rollout["state"]) = (json!("careful"), json!("stopped"));
        (staged.rollout["stage"], staged.rollout["waits_for"]) = (json!("canary"), json!("failed at 1 agent"));
        let said = story("cluster-1", "shop-a", &staged, Clock::new(true));
        let expected = [
            "shop-a at cluster-1: it has what is staged for it",
            "  staged     bbbbbbbbbbbb by the plan careful, stopped at stage canary: failed at 1 agent; later commits wait: `weir rollout status shop-a`",
        ];
        assert_eq!(said[..2], expected);
        staged.rollout["state"] = json!("aborted");
        let said = story("cluster-1", "shop-a", &staged, Clock::new(true));
        let expected = [
            "shop-a at cluster-1: it does not have what is published yet",
            "  staged     bbbbbbbbbbbb was aborted by ana, 2026-01-02T03:04:05Z: CHG-7; it is not published by itself",
        ];
        assert_eq!(said[..2], expected);
        let nobody = Found { service: None, row: None, agent: None, ..found() };
        let said = story("cluster-1", "bank", &nobody, Clock::new(true)).join("\n");
        assert!(said.contains("no service of the hub") && said.contains("by no assignment"), "{said}");
    }
}
