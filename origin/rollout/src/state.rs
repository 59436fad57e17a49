//! Where a rollout stands: what is stored beside the staged version.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_protocol::descriptor::rfc3339;
use weir_protocol::freshness::optional_rfc3339;

use crate::counts::AgentProblem;
use crate::plan::Plan;

/// Where the rollout of a service stands. Unknown fields are ignored: a later release may have written it.
///
/// For how long all agents so far run the version is not stored: where the owner changes, that time begins again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The plan as it was when the rollout began: a change of it applies to the next one.
    pub plan: StoredPlan,
    /// The present stage. `None`: the first one has not begun, and nothing is staged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<usize>,
    /// When the present stage began, or the wait for the first one.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
    /// From when the deadline counts: the begin of the first stage, or when an operator resumed it.
    #[serde(default, with = "optional_rfc3339", skip_serializing_if = "Option::is_none")]
    pub deadline_from: Option<SystemTime>,
    /// An operator has paused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Mark>,
    /// The last approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<Approval>,
    /// It goes no further by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// A plan that is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StoredPlan {
    /// One that this release understands.
    Known(Plan),
    /// One of a later release. It is not followed, because it may have conditions that this release does not know.
    Later(Value),
}

/// Who did something, when and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// When.
    #[serde(with = "rfc3339")]
    pub at: SystemTime,
    /// The operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why, in the operator's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An approval of one stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// The stage that may begin.
    pub stage: usize,
    /// By whom.
    #[serde(flatten)]
    pub mark: Mark,
}

/// Why a rollout goes no further.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What follows.
    pub kind: VerdictKind,
    /// Since when.
    #[serde(with = "rfc3339")]
    pub at: SystemTime,
    /// Why.
    #[serde(flatten)]
    pub cause: Cause,
}

/// What follows from a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// The agents so far stay with the version, until an operator resumes, promotes or aborts it.
    Stopped,
    /// They get the version in force again.
    Aborted,
    /// One of a later release.
    #[serde(other)]
    Later,
}

/// Why a rollout stops.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// For people.
    pub reason: String,
    /// The agents at which the version failed: at most [`MAX_NAMED`](crate::MAX_NAMED).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentProblem>,
}

impl State {
    /// A rollout whose first stage has not begun.
    pub fn new(plan: Plan, now: SystemTime) -> Self {
        Self {
            plan: StoredPlan::Known(plan),
            stage: None,
            since: now,
            deadline_from: None,
            paused: None,
            approved: None,
            verdict: None,
        }
    }

    /// The stage begins.
    #[must_use]
    pub fn begun(self, stage: usize, now: SystemTime) -> Self {
        let deadline_from = self.deadline_from.or(Some(now));
        Self { stage: Some(stage), since: now, deadline_from, approved: None, ..self }
    }

    /// It goes no further.
    #[must_use]
    pub fn ended(self, kind: VerdictKind, cause: Cause, now: SystemTime) -> Self {
        Self { verdict: Some(Verdict { kind, at: now, cause }), ..self }
    }
}

impl StoredPlan {
    /// The plan, if this release understands it.
    pub fn known(&self) -> Option<&Plan> {
        match self {
            Self::Known(plan) => Some(plan),
            Self::Later(_) => None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Known(plan) => plan.name().as_str(),
            Self::Later(plan) => plan["name"].as_str().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_a_later_release_is_read_and_its_plan_is_kept() {
        let json = concat!(
            r#"{"plan":{"name":"p","stages":[{"name":"a","percent":5,"errors":1},{"name":"all"}]},"stage":0,"#,
            r#""since":"2026-11-30T08:00:00Z","deadline_from":"2026-11-30T08:00:00Z","#,
            r#""verdict":{"kind":"haunted","at":"2026-11-30T09:00:00Z","reason":"r"}"#
        );
        let state: State = serde_json::from_str(&format!(r#"{json},"later":1}}"#)).unwrap();
        assert_eq!(state.verdict.as_ref().map(|verdict| verdict.kind), Some(VerdictKind::Later));
        assert_eq!(state.plan.known(), None, "`errors` may be a condition");
        let written = serde_json::to_string(&state).unwrap();
        assert_eq!(written, format!("{json}}}").replace("haunted", "later"));
        let known: State = serde_json::from_str(&written.replace(r#","errors":1"#, "")).unwrap();
        assert_eq!(known.plan.known().map(|plan| plan.name().as_str()), Some("p"));
    }
}
