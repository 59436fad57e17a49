//! `weir status`: is all well? What is not, and since when.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query, if_permitted, is_elsewhere};
use crate::kind::Kind;
use crate::not_known;
use crate::output::{Format, OutputArguments, pretty};
use crate::text::{Clock, counted, text};

/// The most objects of a kind that are named.
const MOST: usize = 10;

/// How to show it.
#[derive(Debug, Args)]
#[command(after_help = "The exit status is 0 when all is well, and 1 when something is not or is not known.")]
pub struct StatusArguments {
    #[command(flatten)]
    output: OutputArguments,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// What the API answered.
struct Answers {
    repositories: Vec<Value>,
    services: Vec<Value>,
    agents: Vec<Value>,
    problems: Vec<Value>,
    summary: Value,
}

pub(crate) async fn run(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let (client, clock) = (Client::new(&arguments.connection)?, arguments.output.clock());
    let by_problem: Query = vec![("by", "problem".to_owned())];
    let all = Query::new();
    let (problems, summary) = client.list("/v1/fleet/summary", &by_problem, "groups").await?;
    let answers = Answers {
        repositories: client.with_states(Kind::Repository, &all).await?,
        services: client.with_states(Kind::Service, &all).await?,
        agents: if_permitted(client.list("/v1/fleet/agents", &all, "agents").await)?.unwrap_or_default().0,
        problems,
        summary: not_known::of_the_last_day(&client, summary).await?,
    };
    let report = report(&answers, clock);
    match arguments.output.output {
        Format::Json => {
            let Report { numbers, not_well } = &report;
            print(pretty(&json!({ "well": report.is_well(), "numbers": numbers, "not_well": not_well })))?;
        }
        Format::Name => report.not_well.iter().try_for_each(print)?,
        Format::Table | Format::Wide => print(report.text(client.server()))?,
    }
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is, and what is not well.
struct Report {
    numbers: Vec<String>,
    not_well: Vec<String>,
}

impl Report {
    fn is_well(&self) -> bool {
        self.not_well.is_empty()
    }

    fn text(&self, server: &str) -> String {
        let verdict = if self.is_well() { "all is well" } else { "something is not well" };
        let mut lines = vec![format!("{server}: {verdict}"), String::new()];
        lines.extend(self.numbers.iter().map(|line| format!("  {line}")));
        if !self.is_well() {
            lines.push(String::new());
            lines.extend(self.not_well.iter().map(|line| format!("  ! {line}")));
        }
        lines.join("\n")
    }
}

fn report(answers: &Answers, clock: Clock) -> Report {
    let Answers { repositories, services, agents, problems, summary } = answers;
    let mut not_well = Vec::new();
    let ill = |each: &&Value| each["status"]["health"] == "unhealthy" || each["status"]["suspended"].is_object();
    named(&mut not_well, "repository", repositories.iter().filter(ill), |one| {
        let (status, suspended) = (&one["status"], &one["status"]["suspended"]);
        let (since, reason) = if suspended.is_object() {
            (&suspended["since"], &suspended["reason"])
        } else {
            (&status["since"], &status["failure"]["reason"])
        };
        format!("{} {}: {}", text(&one["name"]), clock.since(since), text(reason))
    });
    let ill = |each: &&Value| each["status"]["condition"] == "unhealthy";
    named(&mut not_well, "service", services.iter().filter(ill), |one| {
        let failure = &one["status"]["failure"];
        format!("{} {}: {}", text(&one["name"]), clock.since(&failure["since"]), text(&failure["reason"]))
    });
    named(
        &mut not_well,
        "not known, its owner does not answer:",
        repositories.iter().filter(|each| is_elsewhere(each)),
        |one| format!("repository {}", text(&one["name"])),
    );
    // What is not known of an agent yet is counted below.
    let silent = |each: &&Value| each["state"] != "live" && each["state"] != "unknown";
    named(&mut not_well, "agent", agents.iter().filter(silent), |one| {
        let reason = one["reason"].as_str().map_or(String::new(), |reason| format!(": {reason}"));
        format!(
            "{} is {}, last heard {}{reason}",
            text(&one["agent"]),
            text(&one["state"]),
            clock.ago(&one["heard_at"])
        )
    });
    for group in problems.iter().filter(|group| group["key"].is_string()) {
        let (kind, rows, agents) =
            (text(&group["key"]), counted(&group["rows"], "row"), counted(&group["agents"], "agent"));
        let since = clock.since(&group["since"]);
        not_well.push(format!("{kind}: {rows} of {agents}, the oldest {since} (`weir fleet --problem {kind}`)"));
    }
    not_well.extend(not_known::sentences(summary, clock));
    let count = |all: &[Value], is: &dyn Fn(&Value) -> bool| all.iter().filter(|each| is(each)).count();
    let condition = |name: &'static str| count(services, &move |each| each["status"]["condition"] == name);
    let state = |name: &'static str| count(agents, &move |each| each["state"] == name);
    let healthy = count(repositories, &|each| each["status"]["health"] == "healthy");
    let mut numbers = vec![
        format!("repositories  {}, {healthy} healthy", repositories.len()),
        format!(
            "services      {}, {} following, {} pinned, {} pending",
            services.len(),
            condition("following"),
            condition("pinned"),
            condition("pending")
        ),
        format!("agents        {}, {} live, {} silent", agents.len(), state("live"), state("silent")),
        format!("rows          {}, one for each agent and service", text(&summary["total"])),
    ];
    if state("unknown") > 0 {
        numbers[2] = format!("{}, {} not reported yet", numbers[2], state("unknown"));
    }
    Report { numbers, not_well }
}

/// Names some objects, and counts the rest.
fn named<'a>(to: &mut Vec<String>, kind: &str, ill: impl Iterator<Item = &'a Value>, say: impl Fn(&Value) -> String) {
    let ill: Vec<_> = ill.collect();
    to.extend(ill.iter().take(MOST).map(|one| format!("{kind} {}", say(one))));
    if ill.len() > MOST {
        to.push(format!("{kind}: {} more", ill.len() - MOST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_well_is_named_with_its_reason() {
        let well = Answers {
            repositories: vec![json!({"name": "shop", "status": {"health": "healthy"}})],
            services: vec![json!({"name": "shop-a", "status": {"condition": "following"}})],
            agents: vec![json!({"agent": "cluster-1", "state": "live"})],
            problems: vec![json!({"key": null, "rows": 1, "agents": 1, "since": null})],
            summary: json!({"total": 1, "incomplete": [], "unknown": 0, "agents_without_rows": 0}),
        };
        let said = report(&well, Clock::new(true));
        assert!(said.is_well(), "{:?}", said.not_well);
        assert_eq!(said.numbers[0], "repositories  1, 1 healthy");
        let at = "2026-01-02T03:04:05Z";
        let ill = Answers {
            repositories: vec![
                json!({"name": "far", "status": {"health": "elsewhere"}}),
                json!({"name": "shop", "status": {"health": "unhealthy", "since": at, "failure": {"reason": "no route"}}}),
            ],
            services: vec![
                json!({"name": "shop-a", "status": {"condition": "unhealthy", "failure": {"since": at, "reason": "no folder"}}}),
            ],
            agents: (0..13)
                .map(|n| json!({"agent": format!("c{n}"), "state": if n < 12 { "silent" } else { "unknown" }, "heard_at": at}))
                .collect(),
            problems: vec![json!({"key": "hook-failed", "rows": 1, "agents": 1, "since": at})],
            summary: json!({"total": 3, "incomplete": [{"edge": "paris", "since": at}]}),
        };
        let said = report(&ill, Clock::new(true)).text("hub.example");
        for part in [
            "hub.example: something is not well",
            "! repository shop since 2026-01-02T03:04:05Z: no route",
            "! not known, its owner does not answer: repository far",
            "! service shop-a since 2026-01-02T03:04:05Z: no folder",
            "! agent: 2 more",
            "agents        13, 0 live, 12 silent, 1 not reported yet",
            "! hook-failed: 1 row of 1 agent, the oldest since",
            "paris",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
