//! `weir status`: is all well? What is not, and since when.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::freeze;
use crate::http::{Client, Query, is_elsewhere};
use crate::kind::Kind;
use crate::not_known;
use crate::output::{Format, OutputArguments, pretty};
use crate::pin;
use crate::text::{Clock, counted, text};
use crate::unheard;

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
    /// Agents that operators have defined, and that no edge has reported.
    unheard: Vec<String>,
    problems: Vec<Value>,
    summary: Value,
    /// The patterns of the services that the operator sees. `Null`: all.
    services_of_operator: Value,
}

pub(crate) async fn run(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let (client, clock) = (Client::new(&arguments.connection)?, arguments.output.clock());
    let by_problem: Query = vec![("by", "problem".to_owned())];
    let all = Query::new();
    let (problems, summary) = client.list("/v1/fleet/summary", &by_problem, "groups").await?;
    let (agents, _) = client.list("/v1/fleet/agents", &all, "agents").await?;
    let answers = Answers {
        repositories: client.with_states(Kind::Repository, &all).await?,
        services: client.with_states(Kind::Service, &all).await?,
        unheard: unheard::names(&client, &agents).await?,
        agents,
        problems,
        summary: not_known::of_the_last_day(summary),
        services_of_operator: client.greet().await?.who["services"].take(),
    };
    let report = report(&answers, clock);
    match arguments.output.output {
        Format::Json => {
            let (well, Report { numbers, pinned, not_well, .. }) = (report.is_well(), &report);
            let services = &answers.services_of_operator;
            print(pretty(&json!({ "well": well, "services": services, "numbers": numbers, "pinned": pinned,
                "not_well": not_well })))?;
        }
        Format::Name => report.not_well.iter().try_for_each(print)?,
        Format::Table | Format::Wide => print(report.text(client.server()))?,
    }
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is, and what is not well.
struct Report {
    /// What of the hub it is about; empty: all.
    of: String,
    numbers: Vec<String>,
    pinned: Vec<String>,
    not_well: Vec<String>,
}

impl Report {
    fn is_well(&self) -> bool {
        self.not_well.is_empty()
    }

    fn text(&self, server: &str) -> String {
        let verdict = if self.is_well() { "all is well" } else { "something is not well" };
        let mut lines = vec![format!("{server}: {verdict}{}", self.of)];
        for (mark, block) in [("", &self.numbers), ("! ", &self.not_well), ("- ", &self.pinned)] {
            if !block.is_empty() {
                lines.push(String::new());
            }
            lines.extend(block.iter().map(|line| format!("  {mark}{line}")));
        }
        lines.join("\n")
    }
}

fn report(answers: &Answers, clock: Clock) -> Report {
    let Answers { repositories, services, agents, unheard, problems, summary, services_of_operator } = answers;
    let (mut not_well, mut pinned) = (Vec::new(), Vec::new());
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
    not_well.extend(unheard::said(unheard));
    for group in problems.iter().filter(|group| group["key"].is_string()) {
        let (kind, rows, agents) =
            (text(&group["key"]), counted(&group["rows"], "row"), counted(&group["agents"], "agent"));
        let since = clock.since(&group["since"]);
        not_well.push(format!("{kind}: {rows} of {agents}, the oldest {since} (`weir fleet --problem {kind}`)"));
    }
    not_well.extend(not_known::sentences(summary, clock));
    let is_pinned = |each: &&Value| each["status"]["pinned"].is_object();
    named(&mut pinned, "service", services.iter().filter(is_pinned), |one| {
        format!("{} is {}", text(&one["name"]), pin::pinned(&one["status"], clock))
    });
    let is_frozen = |each: &&Value| each["status"]["frozen"].is_object();
    named(&mut pinned, "service", services.iter().filter(is_frozen), |one| {
        format!("{} is {}", text(&one["name"]), freeze::frozen(&one["status"], clock).unwrap_or_default())
    });
    let of = match services_of_operator.as_array() {
        Some(_) => format!(" (the services {} and their agents alone)", text(services_of_operator)),
        None => String::new(),
    };
    Report { of, numbers: numbers(answers), pinned, not_well }
}

fn numbers(Answers { repositories, services, agents, unheard, summary, .. }: &Answers) -> Vec<String> {
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
    if !unheard.is_empty() {
        numbers[2] = format!("{}; {} never heard", numbers[2], unheard.len());
    }
    numbers
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
            unheard: Vec::new(),
            services_of_operator: Value::Null,
            problems: vec![json!({"key": null, "rows": 1, "agents": 1, "since": null})],
            summary: json!({"total": 1, "incomplete": [], "unknown": 0, "agents_without_rows": 0}),
        };
        let said = report(&well, Clock::new(true));
        assert!(said.is_well(), "{:?}", said.not_well);
        assert_eq!(said.numbers[0], "repositories  1, 1 healthy");
        assert!(said.text("hub.example").starts_with("hub.example: all is well\n"));
        let at = "2026-01-02T03:04:05Z";
        // What is pinned or frozen is well. An operator of some services is not told that all of the hub is.
        let held = Answers {
            services: vec![json!({"name": "shop-a", "status": {"condition": "pinned",
                "pinned": {"since": at, "by": "ana", "reason": "INC-42"}, "published": {"version": "1.2.0"}}})],
            services_of_operator: json!(["shop-*", "blog"]),
            ..well
        };
        let said = report(&held, Clock::new(true));
        assert!(said.is_well(), "{:?}", said.not_well);
        let text = said.text("hub.example");
        assert!(
            text.starts_with("hub.example: all is well (the services shop-*,blog and their agents alone)\n"),
            "{text}"
        );
        let pin = "\n\n  - service shop-a is pinned at 1.2.0 since 2026-01-02T03:04:05Z, by ana: INC-42";
        assert!(text.ends_with(pin), "{text}");
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
            unheard: vec!["cluster-9".to_owned()],
            services_of_operator: Value::Null,
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
            "agents        13, 0 live, 12 silent, 1 not reported yet; 1 never heard",
            "! never heard: 1 agent has an entry, and no edge has reported it: cluster-9",
            "! hook-failed: 1 row of 1 agent, the oldest since",
            "paris",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
