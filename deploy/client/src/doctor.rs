//! `weir doctor`: whether this machine reaches a hub as an operator, and whether all of the hub takes part.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::Value;
use weir_runtime::doctor::{Findings, Report, clock};

use crate::connection::ConnectionArguments;
use crate::http::{Client, Greeting, Query, is_forbidden};
use crate::text::{Clock, count, short, text};

/// A certificate that ends so soon should have been renewed.
const ENDS_SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// Which hub.
#[derive(Debug, Args)]
#[command(
    after_help = "The exit status is 1 when a check fails. `weir-origin`, `weir-edge` and `weir-agent doctor` check a node."
)]
pub struct DoctorArguments {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

type Check = fn(&Value, &mut Findings);

pub(crate) async fn run(arguments: &DoctorArguments) -> anyhow::Result<ExitCode> {
    let client = Client::new(&arguments.connection)?;
    let mut findings = Findings::new(client.server());
    match client.greet().await {
        Err(error) => findings.fail("sign in", format!("{error:#}"), "Look at the context: `weir help context`."),
        Ok(greeting) => {
            of_greeting(&greeting, SystemTime::now(), &mut findings);
            let parts: [(&str, Check); 2] = [("members", of_members), ("edges", of_edges)];
            for (key, check) in parts {
                match client.get(&format!("/v1/{key}"), &Query::new()).await {
                    Ok(answer) => check(&answer, &mut findings),
                    Err(error) if is_forbidden(&error) => findings.ok(key, "not for the role of this operator"),
                    Err(error) => findings.fail(key, format!("{error:#}"), "The log of the origin has the reason."),
                }
            }
        }
    }
    Ok(Report { findings: findings.found }.print(arguments.json))
}

fn of_greeting(greeting: &Greeting, now: SystemTime, findings: &mut Findings) {
    let me = &greeting.who;
    let services = if me["services"].is_null() { "all services".to_owned() } else { text(&me["services"]) };
    let (name, role, by) = (text(&me["name"]), text(&me["role"]), text(&me["by"]));
    findings.ok("sign in", format!("as {name}, {role} of {services}, by a {by}"));
    // An origin of an earlier release does not say its own.
    let (mine, theirs) = (env!("CARGO_PKG_VERSION"), me["version"].as_str().unwrap_or("not known"));
    findings.ok("version", format!("of weir {mine}, of the origin {theirs}"));
    if let Some(ends) = greeting.certificate_ends {
        let left = ends.duration_since(now).unwrap_or_default();
        let message = format!("of the origin: it ends in {}", short(left));
        if left < ENDS_SOON {
            findings.warn("certificate", message, "Renew it: the origin takes a changed file without a restart.");
        } else {
            findings.ok("certificate", message);
        }
    }
    clock(findings, "origin", &greeting.headers, now);
}

fn of_members(answer: &Value, findings: &mut Findings) {
    let members: Vec<_> = answer["members"].as_array().into_iter().flatten().collect();
    let before = findings.found.len();
    for member in &members {
        let name = text(&member["name"]);
        match member["state"].as_str() {
            Some("active") => {}
            Some("outside") => findings.fail(
                "members",
                format!("{name}, which answers, has no session: it owns nothing now"),
                "Read its log: it does not reach the store, or its clock is wrong.",
            ),
            state => {
                let message = format!("{name} is {}", state.unwrap_or("-"));
                findings.warn("members", message, "It leaves: the others take what it owns.");
            }
        }
    }
    if let Some(number) = answer["unowned"]["repositories"].as_u64().filter(|number| *number > 0) {
        let have = if number == 1 { "has" } else { "have" };
        let message = format!("{} {have} no owner now", count(number, "repository"));
        findings.fail("members", message, "Wait a minute: the origins that are left take them.");
    }
    if findings.found.len() == before {
        let names: Vec<_> = members.iter().map(|member| text(&member["name"])).collect();
        findings.ok("members", names.join(", "));
    }
}

fn of_edges(answer: &Value, findings: &mut Findings) {
    let edges: Vec<_> = answer["edges"].as_array().into_iter().flatten().collect();
    let clock = Clock::new(false);
    let is_live = |edge: &&&Value| edge["state"] == "live";
    for edge in edges.iter().filter(|edge| !is_live(edge)) {
        let (name, state, since) = (text(&edge["name"]), text(&edge["state"]), clock.since(&edge["since"]));
        let advice = "If it is gone for good: `weir forget edge NAME`.";
        findings.warn("edges", format!("{name} is {state} {since}"), advice);
    }
    if edges.is_empty() {
        return findings.warn("edges", "none reports to this hub", "Start one, or read the log of one that runs.");
    }
    let mut versions: Vec<_> = edges.iter().filter_map(|edge| edge["version"].as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let live = edges.iter().filter(is_live).count();
    findings.ok("edges", format!("{live} live, of version {}", versions.join(", ")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::{DATE, HeaderMap};
    use serde_json::json;
    use weir_runtime::doctor::Verdict;

    fn dated(at: SystemTime) -> HeaderMap {
        HeaderMap::from_iter([(DATE, httpdate::fmt_http_date(at).parse().unwrap())])
    }

    #[test]
    fn what_does_not_take_part_is_named() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let well = Greeting {
            who: json!({"name": "ana", "role": "deliver", "services": ["shop-*"], "by": "token", "version": "0.1.9"}),
            headers: dated(now),
            certificate_ends: Some(now + ENDS_SOON),
        };
        let words = |check: &dyn Fn(&mut Findings)| {
            let mut findings = Findings::new("hub.example");
            check(&mut findings);
            findings.found.into_iter().map(|found| (found.verdict, found.message)).collect::<Vec<_>>()
        };
        let said = words(&|to| of_greeting(&well, now, to));
        assert_eq!(said[0].1, "as ana, deliver of shop-*, by a token");
        assert!(said.iter().all(|(verdict, _)| *verdict == Verdict::Ok), "{said:?}");
        let ill = Greeting { headers: dated(now + Duration::from_secs(30)), certificate_ends: Some(now), ..well };
        let said = words(&|to| of_greeting(&ill, now, to));
        assert!(said[1].1.ends_with("of the origin 0.1.9"), "{said:?}");
        assert!(said[2..].iter().all(|(verdict, _)| *verdict == Verdict::Warn), "{said:?}");
        let members = json!({
            "members": [{"name": "one", "state": "active"}, {"name": "two", "state": "outside"}],
            "unowned": {"repositories": 3},
        });
        let said = words(&|to| of_members(&members, to));
        assert!(said.len() == 2 && said.iter().all(|(verdict, _)| *verdict == Verdict::Fail), "{said:?}");
        let one = json!({"members": [{"name": "one", "state": "active"}], "unowned": {"repositories": 0}});
        assert_eq!(words(&|to| of_members(&one, to)), [(Verdict::Ok, "one".to_owned())]);
        let edge = |name: &str, state: &str| json!({"name": name, "state": state, "since": null, "version": "0.2.0"});
        let edges = json!({"edges": [edge("paris", "live"), edge("rome", "away")]});
        let said = words(&|to| of_edges(&edges, to));
        assert_eq!(said[1], (Verdict::Ok, "1 live, of version 0.2.0".to_owned()));
        assert!(said[0].1.starts_with("rome is away") && said[0].0 == Verdict::Warn, "{said:?}");
    }
}
