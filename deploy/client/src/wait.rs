//! `weir wait`: until every agent has a revision of a service.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::{Args, ValueEnum};
use serde_json::Value;
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::fleet;
use crate::http::{Client, Query, is_absent, may_pass};
use crate::kind::{Kind, segment};
use crate::not_known::{self, was_heard};
use crate::pin;
use crate::text::{Clock, shortened, text};

pub(crate) const EXAMPLES: &str = "\
Examples:
  git push && weir wait shop-prod $(git rev-parse HEAD) --timeout 10m
  weir wait shop-prod 1.4.2 --for current

The exit status is 0 when every agent has it that follows the service and was heard within a day, and when nothing is unknown; 1
as soon as an agent's check refuses it, or the service is pinned at a version without it, or when the hub refuses the question, as
for a service that is not there; 2 when the time is over. A revision that nobody knows is not there yet.";

/// How often an origin is asked.
const PAUSE: Duration = Duration::from_secs(2);

/// What an agent must have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Until {
    /// Its hook has succeeded, or it has none
    Applied,
    /// It has switched to the release
    Current,
}

impl Until {
    /// The parameter of a question of who lacks something.
    pub(crate) fn lacks_by(self) -> (&'static str, String) {
        let by = if self == Self::Current { "current" } else { "applied" };
        ("lacks_by", by.to_owned())
    }
}

/// What to wait for.
#[derive(Debug, Args)]
pub struct WaitArguments {
    /// The service
    service: String,
    /// A commit, tag, version or revision id
    revision: String,
    /// What every agent must have done
    #[arg(long = "for", value_enum, default_value = "applied")]
    until: Until,
    /// The longest wait, such as 10m
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// No agent that follows the service is enough
    #[arg(long)]
    allow_none: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// How far it is.
#[derive(Debug, PartialEq)]
enum Progress {
    Done,
    /// Agents whose check has refused what is published.
    Refused(Vec<Value>),
    /// The service is pinned, and does not get it.
    Pinned(String),
    /// Who lacks it, and what else it waits for.
    Waits {
        lacking: Vec<Value>,
        why: Vec<String>,
    },
}

/// What an origin answers.
#[derive(Debug, Default)]
struct Answers {
    /// Rows that lack the revision; `None`: nobody knows it.
    lacking: Option<(Vec<Value>, Value)>,
    /// The pin that keeps the revision from the service.
    pin: Option<Value>,
    /// Rows whose hook has not succeeded for the current release: after a rollback they may have applied something newer.
    in_hook: Vec<Value>,
    /// The number of rows of the service.
    rows: u64,
    /// The digest that is published.
    published: Value,
}

pub(crate) async fn run(arguments: &WaitArguments) -> anyhow::Result<ExitCode> {
    let client = Client::new(&arguments.connection)?;
    let (ends, mut said) = (Instant::now() + arguments.timeout, String::new());
    loop {
        let answers = match ask(&client, arguments).await {
            Err(error) if may_pass(&error) && Instant::now() < ends => {
                eprintln!("weir: {error:#}; trying again");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            answers => answers?,
        };
        // Ages are those of this answer.
        let clock = Clock::new(false);
        let (lacking, why) = match progress(&answers, arguments, SystemTime::now(), clock) {
            Progress::Done => {
                print(format_args!("every agent has {} of {}", arguments.revision, arguments.service))?;
                return Ok(ExitCode::SUCCESS);
            }
            Progress::Refused(rows) => {
                print(fleet::table(&rows, clock, false).fitting_the_terminal().render(""))?;
                eprintln!("weir: refused by {}", agents(&rows).join(", "));
                return Ok(ExitCode::FAILURE);
            }
            Progress::Pinned(said) => {
                eprintln!("weir: {said}");
                return Ok(ExitCode::FAILURE);
            }
            Progress::Waits { lacking, why } => (lacking, why),
        };
        if Instant::now() >= ends {
            if !lacking.is_empty() {
                print(fleet::table(&lacking, clock, false).fitting_the_terminal().render(""))?;
            }
            why.iter().try_for_each(print)?;
            eprintln!("weir: the time is over");
            return Ok(ExitCode::from(2));
        }
        let says = match lacking.len() {
            0 => why.first().cloned().unwrap_or_default(),
            number => format!("{number} lack it: {}", shown(&agents(&lacking))),
        };
        if says != said {
            eprintln!("{says}");
            said = says;
        }
        tokio::time::sleep(PAUSE.min(ends.saturating_duration_since(Instant::now()))).await;
    }
}

async fn ask(client: &Client, arguments: &WaitArguments) -> anyhow::Result<Answers> {
    let service = segment(&arguments.service)?.to_owned();
    let filter: Query =
        vec![("service", service.clone()), ("lacks", arguments.revision.clone()), arguments.until.lacks_by()];
    let lacking = match client.list("/v1/fleet/rows", &filter, "rows").await {
        Ok((rows, answer)) => Some((rows, not_known::of_the_last_day(answer))),
        Err(error) if is_absent(&error) => None,
        Err(error) => return Err(error),
    };
    let is_lacked = lacking.as_ref().is_none_or(|(rows, _)| rows.iter().any(is_expected));
    let in_hook = match arguments.until {
        Until::Applied if !is_lacked => {
            let (rows, _) = client.list("/v1/fleet/rows", &vec![("service", service.clone())], "rows").await?;
            rows.into_iter().filter(is_in_hook).collect()
        }
        Until::Applied | Until::Current => Vec::new(),
    };
    let counted: Query = vec![("service", service.clone()), ("limit", "1".to_owned())];
    let counted = client.get("/v1/fleet/rows", &counted).await?;
    let document = client.get(&Kind::Service.path(&service)?, &Query::new()).await?;
    let (status, rows) = (&document["status"], counted["total"].as_u64().unwrap_or_default());
    let pin = match &lacking {
        Some((_, answer)) => answer["pinned"].get(0).cloned(),
        // Once it is known, the service does not get it.
        None => Some(status.clone()).filter(|status| status["pinned"].is_object()),
    };
    Ok(Answers { lacking, pin, in_hook, rows, published: status["published"]["digest"].clone() })
}

fn progress(answers: &Answers, arguments: &WaitArguments, now: SystemTime, clock: Clock) -> Progress {
    let waits = |lacking, why| Progress::Waits { lacking, why };
    if let Some(pin) = &answers.pin {
        let (service, at) = (&arguments.service, pin::pinned(pin, clock));
        return Progress::Pinned(format!(
            "{service} does not get {}: it is {at}. `weir unpin {service}` lets it follow again",
            shortened(&arguments.revision)
        ));
    }
    let Some((lacking, answer)) = &answers.lacking else {
        return waits(Vec::new(), vec![format!("no repository of {} has {}", arguments.service, arguments.revision)]);
    };
    let is_waited_for = |row: &&Value| is_expected(row) && was_heard(row, now);
    let mut behind: Vec<Value> = lacking.iter().filter(is_waited_for).cloned().collect();
    let refuses = |row: &&Value| {
        row["problem"]["kind"] == "check-vetoed"
            && row["desired"]["digest"] == answers.published
            && answers.published.is_string()
    };
    let refused: Vec<Value> = behind.iter().filter(refuses).cloned().collect();
    if !refused.is_empty() {
        return Progress::Refused(refused);
    }
    behind.extend(answers.in_hook.iter().filter(is_waited_for).cloned());
    let mut why = not_known::sentences(answer, clock);
    if answers.rows == 0 && !arguments.allow_none {
        why.push(format!("no agent has told that it follows {}", arguments.service));
    }
    if behind.is_empty() && why.is_empty() { Progress::Done } else { waits(behind, why) }
}

/// Whether an agent is to have the service: its `allow` may exclude it.
fn is_expected(row: &Value) -> bool {
    row["phase"] != "unassigned"
}

/// Whether the hook of the current release has not succeeded yet.
fn is_in_hook(row: &Value) -> bool {
    ["pending", "running", "failed"].iter().any(|state| row["hook"] == *state)
}

fn agents(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(&row["agent"])).collect::<BTreeSet<_>>().into_iter().collect()
}

fn shown(names: &[String]) -> String {
    const MOST: usize = 5;
    let more = if names.len() > MOST { format!(" and {} more", names.len() - MOST) } else { String::new() };
    format!("{}{more}", names[..names.len().min(MOST)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn arguments(until: Until) -> WaitArguments {
        let (service, revision) = ("shop".to_owned(), "1.0.0".to_owned());
        let (timeout, allow_none, connection) = (Duration::ZERO, false, ConnectionArguments::default());
        WaitArguments { service, revision, until, timeout, allow_none, connection }
    }

    #[test]
    fn it_is_done_when_nobody_lacks_it_and_nothing_is_unknown() {
        let now = humantime::parse_rfc3339("2026-01-03T00:00:00Z").unwrap();
        let row = |agent: &str, heard: &str, problem: Value| json!({"agent": agent, "heard_at": heard, "problem": problem, "desired": {"digest": "b3-2"}});
        let answers = |lacking: Vec<Value>, answer: Value, rows| Answers {
            lacking: Some((lacking, answer)),
            rows,
            published: json!("b3-2"),
            ..Answers::default()
        };
        let at = |answers: &Answers| progress(answers, &arguments(Until::Applied), now, Clock::new(true));
        let late = row("cluster-1", "2026-01-02T23:00:00Z", Value::Null);
        let gone = row("cluster-2", "2026-01-01T00:00:00Z", Value::Null);
        assert_eq!(at(&answers(vec![], json!({}), 1)), Progress::Done);
        assert_eq!(at(&answers(vec![gone.clone()], json!({}), 1)), Progress::Done);
        let mut not_allowed = late.clone();
        not_allowed["phase"] = "unassigned".into();
        assert_eq!(at(&answers(vec![not_allowed], json!({}), 1)), Progress::Done);
        let waits = |answers: &Answers| match at(answers) {
            Progress::Waits { lacking, why } => (agents(&lacking), why.len()),
            other => panic!("{other:?}"),
        };
        let one = vec!["cluster-1".to_owned()];
        let in_hook = Answers { in_hook: vec![late.clone()], ..answers(vec![], json!({}), 1) };
        assert_eq!(waits(&in_hook), (one.clone(), 0), "its hook fails after a rollback");
        assert_eq!(waits(&answers(vec![late, gone], json!({}), 2)), (one, 0));
        assert_eq!(waits(&answers(vec![], json!({"unknown": 1}), 1)), (vec![], 1));
        assert_eq!(waits(&answers(vec![], json!({}), 0)), (vec![], 1), "nobody follows it");
        assert_eq!(waits(&Answers { rows: 1, ..Answers::default() }), (vec![], 1), "nobody knows it");
        let pin = json!({"pinned": {"since": "2026-01-02T00:00:00Z", "by": "ana"}, "published": {"version": "0.9.0"}});
        let expected = "shop does not get 1.0.0: it is pinned at 0.9.0 since 2026-01-02T00:00:00Z, by ana. `weir unpin shop` lets it follow again";
        assert_eq!(at(&Answers { pin: Some(pin), ..Answers::default() }), Progress::Pinned(expected.to_owned()));
        let refusing = row("cluster-1", "2026-01-02T23:00:00Z", json!({"kind": "check-vetoed"}));
        assert_eq!(at(&answers(vec![refusing.clone()], json!({}), 1)), Progress::Refused(vec![refusing.clone()]));
        let of_another = Answers { published: json!("b3-3"), ..answers(vec![refusing], json!({}), 1) };
        assert_eq!(waits(&of_another).1, 0, "it has not seen the newest one");
    }
}
