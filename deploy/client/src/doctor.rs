//! `weir doctor`: whether this machine reaches a hub as an operator, and whether all of the hub takes part.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde_json::Value;
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Greeting, Query, is_forbidden};
use crate::text::{Clock, count, short, text};

/// A clock that differs by so much is worth a word: tokens and statements have times.
const CLOCK_DIFFERS: Duration = Duration::from_secs(5);

/// A certificate that ends so soon should have been renewed.
const ENDS_SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// Which hub.
#[derive(Debug, Args)]
#[command(after_help = "The exit status is 1 when a check fails. `weir-agent doctor` checks a cluster.")]
pub struct DoctorArguments {
    #[command(flatten)]
    connection: ConnectionArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// What a check found, and what to do.
type Finding = (Verdict, &'static str, String, Option<&'static str>);

type Check = fn(&Value) -> Vec<Finding>;

pub(crate) async fn run(arguments: &DoctorArguments) -> anyhow::Result<ExitCode> {
    let client = Client::new(&arguments.connection)?;
    let mut failed = false;
    let mut show = |(verdict, check, message, advice): Finding| -> anyhow::Result<()> {
        failed |= verdict == Verdict::Fail;
        let word = match verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        print(format_args!("  {word:<4}  {check:<11}  {message}"))?;
        Ok(advice.map_or(Ok(()), |advice| print(format_args!("{:21}→ {advice}", "")))?)
    };
    print(client.server())?;
    match client.greet().await {
        Err(error) => show((Verdict::Fail, "sign in", format!("{error:#}"), None))?,
        Ok(greeting) => {
            of_greeting(&greeting, SystemTime::now()).into_iter().try_for_each(&mut show)?;
            let parts: [(&str, Check); 2] = [("members", of_members), ("edges", of_edges)];
            for (key, check) in parts {
                match client.get(&format!("/v1/{key}"), &Query::new()).await {
                    Ok(answer) => check(&answer).into_iter().try_for_each(&mut show)?,
                    Err(error) if is_forbidden(&error) => {
                        show((Verdict::Ok, key, "not for the role of this operator".to_owned(), None))?;
                    }
                    Err(error) => show((Verdict::Fail, key, format!("{error:#}"), None))?,
                }
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn of_greeting(greeting: &Greeting, now: SystemTime) -> Vec<Finding> {
    let me = &greeting.who;
    let services = if me["services"].is_null() { "all services".to_owned() } else { text(&me["services"]) };
    let (name, role, by) = (text(&me["name"]), text(&me["role"]), text(&me["by"]));
    let mut found = vec![(Verdict::Ok, "sign in", format!("as {name}, {role} of {services}, by a {by}"), None)];
    // An origin of an earlier release does not say its own.
    let (mine, theirs) = (env!("CARGO_PKG_VERSION"), me["version"].as_str().unwrap_or("not known"));
    found.push((Verdict::Ok, "version", format!("of weir {mine}, of the origin {theirs}"), None));
    if let Some(ends) = greeting.certificate_ends {
        let left = ends.duration_since(now).unwrap_or_default();
        let message = format!("of the origin: it ends in {}", short(left));
        let advice = "renew it: the origin takes a changed file without a restart";
        found.push(match left < ENDS_SOON {
            true => (Verdict::Warn, "certificate", message, Some(advice)),
            false => (Verdict::Ok, "certificate", message, None),
        });
    }
    if let Some(theirs) = greeting.date {
        let (behind, ahead) = (theirs.duration_since(now), now.duration_since(theirs));
        let differs = behind.or(ahead).unwrap_or_default();
        found.push(match differs > CLOCK_DIFFERS {
            true => {
                let message = format!("this machine and the origin differ by {}", short(differs));
                (Verdict::Warn, "clock", message, Some("synchronize both: tokens and signed statements have times"))
            }
            false => (Verdict::Ok, "clock", "as the origin's".to_owned(), None),
        });
    }
    found
}

fn of_members(answer: &Value) -> Vec<Finding> {
    let members: Vec<_> = answer["members"].as_array().into_iter().flatten().collect();
    let mut found = Vec::new();
    for member in &members {
        let name = text(&member["name"]);
        match member["state"].as_str() {
            Some("active") => {}
            Some("outside") => found.push((
                Verdict::Fail,
                "members",
                format!("{name}, which answers, has no session: it owns nothing now"),
                Some("read its log: it does not reach the store, or its clock is wrong"),
            )),
            state => found.push((Verdict::Warn, "members", format!("{name} is {}", state.unwrap_or("-")), None)),
        }
    }
    if let Some(number) = answer["unowned"]["repositories"].as_u64().filter(|number| *number > 0) {
        let have = if number == 1 { "has" } else { "have" };
        let message = format!("{} {have} no owner now", count(number, "repository"));
        found.push((Verdict::Fail, "members", message, Some("wait a minute: the origins that are left take them")));
    }
    if found.is_empty() {
        let names: Vec<_> = members.iter().map(|member| text(&member["name"])).collect();
        found.push((Verdict::Ok, "members", names.join(", "), None));
    }
    found
}

fn of_edges(answer: &Value) -> Vec<Finding> {
    let edges: Vec<_> = answer["edges"].as_array().into_iter().flatten().collect();
    let clock = Clock::new(false);
    let is_live = |edge: &&&Value| edge["state"] == "live";
    let mut found = Vec::new();
    for edge in edges.iter().filter(|edge| !is_live(edge)) {
        let (name, state, since) = (text(&edge["name"]), text(&edge["state"]), clock.since(&edge["since"]));
        let advice = "if it is gone for good: `weir forget edge NAME`";
        found.push((Verdict::Warn, "edges", format!("{name} is {state} {since}"), Some(advice)));
    }
    let mut versions: Vec<_> = edges.iter().filter_map(|edge| edge["version"].as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    let message = format!("{} live, of version {}", edges.iter().filter(is_live).count(), versions.join(", "));
    found.push(match edges.is_empty() {
        true => (Verdict::Warn, "edges", "none reports to this hub".to_owned(), None),
        false => (Verdict::Ok, "edges", message, None),
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_does_not_take_part_is_named() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let well = Greeting {
            who: json!({"name": "ana", "role": "deliver", "services": ["shop-*"], "by": "token", "version": "0.1.9"}),
            date: Some(now),
            certificate_ends: Some(now + ENDS_SOON),
        };
        let words = |found: Vec<Finding>| {
            found.into_iter().map(|(verdict, _, message, _)| (verdict, message)).collect::<Vec<_>>()
        };
        let said = words(of_greeting(&well, now));
        assert_eq!(said[0].1, "as ana, deliver of shop-*, by a token");
        assert!(said.iter().all(|(verdict, _)| *verdict == Verdict::Ok), "{said:?}");
        let ill = Greeting { date: Some(now + Duration::from_secs(60)), certificate_ends: Some(now), ..well };
        let said = words(of_greeting(&ill, now));
        assert!(said[1].1.ends_with("of the origin 0.1.9"), "{said:?}");
        assert!(said[2..].iter().all(|(verdict, _)| *verdict == Verdict::Warn), "{said:?}");
        let members = json!({
            "members": [{"name": "one", "state": "active"}, {"name": "two", "state": "outside"}],
            "unowned": {"repositories": 3},
        });
        let said = words(of_members(&members));
        assert!(said.len() == 2 && said.iter().all(|(verdict, _)| *verdict == Verdict::Fail), "{said:?}");
        let one = json!({"members": [{"name": "one", "state": "active"}], "unowned": {"repositories": 0}});
        assert_eq!(words(of_members(&one)), [(Verdict::Ok, "one".to_owned())]);
        let edge = |name: &str, state: &str| json!({"name": name, "state": state, "since": null, "version": "0.2.0"});
        let said = words(of_edges(&json!({"edges": [edge("paris", "live"), edge("rome", "away")]})));
        assert_eq!(said[1], (Verdict::Ok, "1 live, of version 0.2.0".to_owned()));
        assert!(said[0].1.starts_with("rome is away") && said[0].0 == Verdict::Warn, "{said:?}");
    }
}
