//! What is staged of a service, in words.

use serde_json::Value;

use crate::table::Table;
use crate::text::{Clock, counted, revision, text};

/// The agents that cannot take what is staged.
pub(crate) fn failing(rollout: &Value) -> impl Iterator<Item = &Value> {
    rollout["agents"].as_array().into_iter().flatten()
}

/// Whether an agent that has this digest has what is staged for it.
pub(crate) fn is_staged(rollout: &Value, digest: &Value) -> bool {
    let is_over = matches!(rollout["state"].as_str(), None | Some("none" | "aborted"));
    !is_over && digest.is_string() && rollout["to"]["digest"] == *digest
}

/// Who staged or aborted it.
pub(crate) fn who(rollout: &Value) -> String {
    match (&rollout["by"], &rollout["plan"]) {
        (Value::Null, Value::String(plan)) => format!("the plan {plan}"),
        (by, _) => text(by),
    }
}

/// Who staged or aborted it, when, and why.
fn act(rollout: &Value, clock: Clock) -> String {
    let reason = rollout["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("by {}, {}{reason}", who(rollout), clock.ago(&rollout["since"]))
}

/// Where the rollout of a plan stands: its state, its stage, and what it waits for.
pub(crate) fn standing(rollout: &Value) -> String {
    let state = text(&rollout["state"]);
    let stage = match &rollout["stage"] {
        Value::Null => " before its first stage".to_owned(),
        stage => format!(" at stage {}", text(stage)),
    };
    let waits_for = rollout["waits_for"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{state}{stage}{waits_for}")
}

/// Of a service, in a line: what is staged or was aborted, if anything.
pub(crate) fn line(service: &str, rollout: &Value, clock: Clock) -> Option<String> {
    let (to, act) = (revision(&rollout["to"]), act(rollout, clock));
    match (rollout["state"].as_str()?, &rollout["plan"]) {
        ("none", _) => None,
        ("aborted", _) => Some(format!("{to} was aborted {act}; it is not published by itself")),
        (_, Value::Null) => {
            let who = audience(rollout);
            Some(format!("{to} for {who} {act}; later commits wait: `weir rollout status {service}`"))
        }
        (_, plan) => {
            let (plan, standing) = (text(plan), standing(rollout));
            Some(format!("{to} by the plan {plan}, {standing}; later commits wait: `weir rollout status {service}`"))
        }
    }
}

/// Who gets what is staged.
fn audience(rollout: &Value) -> String {
    let percent = rollout["percent"].as_u64().map(|percent| format!("{percent} % of all agents"));
    let selectors = rollout["for"].as_array().into_iter().flatten().map(|selector| {
        [&selector["agents"], &selector["labels"]]
            .into_iter()
            .filter(|it| !it.is_null())
            .map(text)
            .collect::<Vec<_>>()
            .join(" with ")
    });
    selectors.chain(percent).collect::<Vec<_>>().join(", ")
}

/// What is staged, in words, and the agents that cannot take it.
pub(crate) fn shown(service: &str, rollout: &Value, clock: Clock, is_wide: bool) -> String {
    let (to, from, act) = (revision(&rollout["to"]), revision(&rollout["from"]), act(rollout, clock));
    match rollout["state"].as_str() {
        Some("none") => return format!("nothing is staged of {service}"),
        Some("aborted") => {
            return format!("{to} of {service} was aborted {act}\nEverybody gets {from}.");
        }
        _ => {}
    }
    let mut lines = match &rollout["plan"] {
        Value::Null => by_hand(service, rollout, clock),
        plan => {
            let since = clock.ago(&rollout["since"]);
            format!(
                "{to} of {service} is staged over {from} by the plan {}, {since}\n{}",
                text(plan),
                standing(rollout)
            )
        }
    };
    if rollout["plan"].is_string() {
        let mut stages = Table::new(&["STAGE", "AGENTS", "DONE", "FAILED", "SILENT"]);
        for stage in rollout["stages"].as_array().into_iter().flatten() {
            stages.row(["name", "expected", "done", "failed", "silent"].map(|key| text(&stage[key])));
        }
        lines += &format!("\n\n{}", stages.render(""));
    }
    let mut table = Table::new(&["AGENT", "PROBLEM", "TEXT"]);
    for agent in failing(rollout) {
        table.row(["agent", "problem", "text"].map(|key| text(&agent[key])));
    }
    let agents = if is_wide { table } else { table.fitting_the_terminal() }.render("");
    if !agents.is_empty() {
        lines += &format!("\n\n{agents}");
    }
    let actions: Vec<_> = rollout["actions"].as_array().into_iter().flatten().map(text).collect();
    if !actions.is_empty() {
        lines += &format!("\n\nweir rollout {} {service}", actions.join("|"));
    }
    lines
}

/// What an operator staged, for whom, and what has become of it.
fn by_hand(service: &str, rollout: &Value, clock: Clock) -> String {
    let (to, from, act, who) =
        (revision(&rollout["to"]), revision(&rollout["from"]), act(rollout, clock), audience(rollout));
    let counts = &rollout["stages"][0];
    let [done, failed, silent] = ["done", "failed", "silent"].map(|key| text(&counts[key]));
    format!(
        "{to} of {service} is staged over {from} {act}\nFor {who}: {}, {done} done, {failed} failed, {silent} silent",
        counted(&counts["expected"], "agent")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_status_says_what_is_staged_for_whom_and_who_cannot_take_it() {
        let clock = Clock::new(true);
        assert_eq!(shown("shop", &json!({ "state": "none" }), clock, false), "nothing is staged of shop");
        let (to, from) = (json!({ "commit": "b".repeat(40) }), json!({ "commit": "a".repeat(40) }));
        let mut rollout = json!({
            "state": "running", "to": to, "from": from, "since": "2026-01-02T03:04:05Z", "by": "ann", "reason": "CHG-7",
            "for": [{ "labels": { "ring": "canary" } }, { "agents": "eu-*", "labels": { "zone": "b" } }], "percent": 10,
            "stages": [{ "expected": 3, "done": 1, "failed": 1, "silent": 0 }],
            "agents": [{ "agent": "eu-1", "problem": "hook-failed", "text": "exit 1" }],
        });
        let expected = "\
bbbbbbbbbbbb of shop is staged over aaaaaaaaaaaa by ann, 2026-01-02T03:04:05Z: CHG-7
For ring=canary, eu-* with zone=b, 10 % of all agents: 3 agents, 1 done, 1 failed, 0 silent

AGENT  PROBLEM      TEXT
eu-1   hook-failed  exit 1";
        assert_eq!(shown("shop", &rollout, clock, false), expected);
        rollout["state"] = json!("aborted");
        let expected =
            "bbbbbbbbbbbb of shop was aborted by ann, 2026-01-02T03:04:05Z: CHG-7\nEverybody gets aaaaaaaaaaaa.";
        assert_eq!(shown("shop", &rollout, clock, false), expected);
    }

    #[test]
    fn of_a_plan_the_status_has_each_stage_what_it_waits_for_and_what_can_be_done() {
        let clock = Clock::new(true);
        let stage =
            |name: &str, failed: u8| json!({ "name": name, "expected": 3, "done": 1, "failed": failed, "silent": 0 });
        let mut rollout = json!({
            "state": "stopped", "to": { "commit": "b".repeat(40), "digest": "b3-1" }, "from": { "commit": "a".repeat(40) },
            "plan": "careful", "stage": "canary", "waits_for": "failed at 1 agent", "since": "2026-01-02T03:04:05Z",
            "by": null, "stages": [stage("canary", 1), stage("half", 0)], "actions": ["resume", "promote", "abort"],
            "agents": [{ "agent": "eu-1", "problem": "hook-failed", "text": "exit 1" }],
        });
        let expected = "\
bbbbbbbbbbbb of shop is staged over aaaaaaaaaaaa by the plan careful, 2026-01-02T03:04:05Z
stopped at stage canary: failed at 1 agent

STAGE   AGENTS  DONE  FAILED  SILENT
canary  3       1     1       0
half    3       1     0       0

AGENT  PROBLEM      TEXT
eu-1   hook-failed  exit 1

weir rollout resume|promote|abort shop";
        assert_eq!(shown("shop", &rollout, clock, false), expected);
        let line = line("shop", &rollout, clock).unwrap();
        assert!(
            line.starts_with("bbbbbbbbbbbb by the plan careful, stopped at stage canary: failed at 1 agent;"),
            "{line}"
        );
        assert!(is_staged(&rollout, &json!("b3-1")) && !is_staged(&rollout, &json!("b3-2")));
        (rollout["state"], rollout["stage"], rollout["waits_for"]) = (json!("waiting"), Value::Null, json!("a window"));
        assert_eq!(standing(&rollout), "waiting before its first stage: a window");
        rollout["state"] = json!("aborted");
        assert!(!is_staged(&rollout, &json!("b3-1")));
        let aborted = shown("shop", &rollout, clock, false);
        assert!(aborted.starts_with("bbbbbbbbbbbb of shop was aborted by the plan careful, 2026"), "{aborted}");
    }
}
