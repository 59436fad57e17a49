//! What operators are shown of a rollout by a plan.

use serde_json::{Value, json};
use weir_protocol::name::ServiceName;
use weir_publish::{Rollout, StagedByPlan, Time};
use weir_rollout::{Counts, Reason, Standing, State, Step, VerdictKind};

use super::driver::Rollouts;
use super::state_name::state_name;

/// The fields of the answer that a plan adds.
pub(crate) async fn describe(rollouts: &Rollouts, service: &ServiceName, rollout: &Rollout, state: &State) -> Value {
    let ended = state.verdict.as_ref().map(|verdict| Standing::Ended(verdict.kind));
    let staged = StagedByPlan {
        repository: rollout.repository.clone(),
        service: service.clone(),
        digest: rollout.to.digest,
        generation: rollout.to.generation,
        state: std::sync::Arc::new(state.clone()),
    };
    // What was aborted is with no agent any more.
    let facts = match ended {
        Some(Standing::Ended(VerdictKind::Aborted)) => None,
        _ => rollouts.facts(std::slice::from_ref(&staged)).await.and_then(|mut facts| facts.pop()),
    };
    let standing = match &facts {
        Some(facts) => match rollouts.next(&staged, facts).0 {
            Step::Stay(standing) => Some(standing),
            // It is about to be done.
            _ => None,
        },
        None => ended,
    };
    let is_unknown = facts.is_none() && standing.is_none();
    let mut shown = shown(state, facts.map(|facts| facts.counts), standing.as_ref());
    if is_unknown {
        shown["state"] = json!(if state.paused.is_some() { "paused" } else { "waiting" });
        shown["waits_for"] = json!("this origin has not read yet which agents there are, or does not see its cluster");
    }
    shown
}

/// Pure: where a rollout stands, without what agents run.
pub(crate) fn summary(state: &State) -> Value {
    let State { stage, verdict, .. } = state;
    json!({
        "stage": stage.and_then(|stage| stage_name(state, stage)),
        "since": since(state),
        "paused": state.paused.is_some(),
        "verdict": verdict.as_ref().map(|verdict| json!({ "kind": verdict.kind, "reason": verdict.cause.reason })),
    })
}

fn stage_name(state: &State, stage: usize) -> Option<&str> {
    state.plan.known()?.stages().get(stage).map(|stage| stage.name.as_str())
}

/// Since when it stands so.
fn since(state: &State) -> Time {
    state.verdict.as_ref().map_or(state.since, |verdict| verdict.at).into()
}

/// Pure: the fields of the answer.
fn shown(state: &State, counts: Option<Counts>, standing: Option<&Standing>) -> Value {
    let name = |stage: usize| stage_name(state, stage);
    let counts = counts.unwrap_or_default();
    let stages = counts.stages.iter().enumerate().map(|(at, count)| {
        let mut shown = json!(count);
        shown["name"] = json!(name(at));
        shown
    });
    let stages: Vec<_> = stages.collect();
    let verdict = state.verdict.as_ref();
    let agents = verdict.map_or(&counts.failed.first, |verdict| &verdict.cause.agents);
    let state_is = standing.map_or("running", state_name);
    json!({
        "plan": state.plan.name(),
        "state": state_is,
        "stage": state.stage.and_then(name),
        "next_stage": state.next_stage().map(|(_, stage)| &stage.name),
        "since": since(state),
        "waits_for": match (verdict, standing) {
            (Some(verdict), _) => Some(verdict.cause.reason.clone()),
            (None, standing) => standing.map(ToString::to_string),
        },
        "stages": stages,
        "agents": agents,
        "actions": actions(state, standing),
    })
}

/// Pure: what an operator can do now.
fn actions(state: &State, standing: Option<&Standing>) -> Vec<&'static str> {
    let waits_for_approval = || matches!(standing, Some(Standing::Waiting(reasons)) if reasons.iter().any(|it| matches!(it, Reason::Approval(_))));
    let mut actions = match &state.verdict {
        None if state.paused.is_some() => vec!["resume"],
        None => vec!["pause"],
        Some(verdict) if verdict.kind == VerdictKind::Stopped => vec!["resume"],
        Some(_) => return vec!["promote"],
    };
    if waits_for_approval() {
        actions.insert(0, "approve");
    }
    actions.extend(["promote", "abort"]);
    actions
}
