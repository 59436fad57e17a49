//! What an answer about the fleet does not know. It is said below each table, so that no number is smaller without a word.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::text::{Clock, count, text};

/// An agent that nobody has heard for so long is not expected to have anything.
const EXPECTED_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// A sentence for each thing that is not known.
pub(crate) fn sentences(answer: &Value, clock: Clock) -> Vec<String> {
    let mut said = Vec::new();
    for edge in answer["incomplete"].as_array().into_iter().flatten() {
        let (name, since) = (text(&edge["edge"]), clock.since(&edge["since"]));
        said.push(format!("not known: what agents of the edge {name} run; it has not told all {since}"));
    }
    let number = |key: &str| answer[key].as_u64().filter(|number| *number > 0);
    // Those of pinned services are told with their pins.
    let pinned = number("unknown_pinned").unwrap_or_default();
    if let Some(number) = number("unknown").map(|all| all.saturating_sub(pinned)).filter(|number| *number > 0) {
        let lack = if number == 1 { "lacks" } else { "lack" };
        let rows = count(number, "more row");
        said.push(format!("not known: whether {rows} {lack} the revision: it is not in the history, or their agents do not say what they applied"));
    }
    if let Some(number) = number("agents_without_rows") {
        let (agents, run) = (count(number, "agent"), if number == 1 { "runs" } else { "run" });
        said.push(format!("not known: what {agents} {run}, which no edge has heard since the origin started"));
    }
    said
}

/// The same answer without agents that nobody has heard for a day: names of clusters that are gone stay for a month. An origin of
/// the release before tells no number.
pub(crate) fn of_the_last_day(mut answer: Value) -> Value {
    for (key, gone) in [("unknown", "unknown_gone"), ("agents_without_rows", "agents_without_rows_gone")] {
        let [all, gone] = [key, gone].map(|key| answer[key].as_u64().unwrap_or_default());
        if gone > 0 {
            answer[key] = all.saturating_sub(gone).into();
        }
    }
    answer
}

/// Whether an edge has heard the agent of an entry within a day. One that cannot be read counts.
pub(crate) fn was_heard(entry: &Value, now: SystemTime) -> bool {
    let at = entry["heard_at"].as_str().and_then(|text| humantime::parse_rfc3339(text).ok());
    at.is_none_or(|at| now.duration_since(at).unwrap_or_default() < EXPECTED_WITHIN)
}

/// Prints them.
pub(crate) fn print(answer: &Value, clock: Clock) -> anyhow::Result<()> {
    let said = sentences(answer, clock);
    if !said.is_empty() {
        weir_runtime::output::print(format_args!("\n{}", said.join("\n")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn everything_that_is_not_known_is_said() {
        let clock = Clock::new(true);
        assert!(sentences(&json!({"incomplete": [], "unknown": 0, "agents_without_rows": 0}), clock).is_empty());
        let answer = json!({
            "incomplete": [{"edge": "paris", "since": "2026-01-02T03:04:05Z"}], "unknown": 2, "agents_without_rows": 3,
        });
        let said = sentences(&answer, clock);
        assert!(said[0].contains("paris") && said[0].contains("2026-01-02T03:04:05Z"), "{said:?}");
        assert!(said[1].contains("2 more rows lack") && said[2].contains("3 agents run"), "{said:?}");
        let one = sentences(&json!({"unknown": 1, "agents_without_rows": 1}), clock);
        assert!(one[0].contains("1 more row lacks") && one[1].contains("1 agent runs"), "{one:?}");
        let pinned = sentences(&json!({"unknown": 3, "unknown_pinned": 3}), clock);
        assert!(pinned.is_empty(), "{pinned:?}");
        for (key, gone) in [("unknown", "unknown_gone"), ("agents_without_rows", "agents_without_rows_gone")] {
            let kept = |answer| of_the_last_day(answer)[key].clone();
            assert_eq!(kept(json!({key: 3, gone: 2})), 1);
            assert_eq!((kept(json!({key: 3})), kept(json!({}))), (json!(3), Value::Null));
        }
    }
}
