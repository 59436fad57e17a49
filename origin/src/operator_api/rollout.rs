//! `/v1/services/{service}/stage` and `/v1/services/{service}/rollout`: a version for some agents first, and what becomes of it.

use std::time::{Duration, SystemTime};

use http::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use weir_observed::{EdgeState, RowFilter, RowView, State, Table};
use weir_protocol::descriptor::Generation;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::observed::{Capability, HookState, Phase, Problem as RowProblem, ProblemKind};
use weir_protocol::problem::Problem;
use weir_protocol::staged::{AgentSelector, Audience};
use weir_publish::RolloutVersion;
use weir_runtime::serve::Body;

use super::versions::{check_reason, parsed};
use super::{OperatorApi, problems, uncached};
use crate::versions::{ChangeRequest, VersionError, Versions};

/// The most edges that a refusal names.
const NAMED_EDGES: usize = 5;

/// The most agents with a problem in an answer.
const LISTED_AGENTS: usize = 20;

/// Agents that were not heard for so long are not expected.
const EXPECTED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// The body of `POST …/stage`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StageRequest {
    revision: String,
    #[serde(default, rename = "for")]
    selectors: Vec<AgentSelector>,
    percent: Option<u8>,
    generation: Option<Generation>,
    reason: Option<String>,
}

impl StageRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Problem> {
        let request: Self = parsed(body)?;
        check_reason(request.reason.as_deref())?;
        Ok(request)
    }
}

/// The body of `POST …/rollout`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RolloutRequest {
    action: RolloutAction,
    generation: Option<Generation>,
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RolloutAction {
    Promote,
    Abort,
}

impl RolloutRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Problem> {
        let request: Self = parsed(body)?;
        check_reason(request.reason.as_deref())?;
        Ok(request)
    }

    pub(super) async fn apply(self, versions: &Versions, name: &ServiceName, by: &str) -> Result<(), Problem> {
        let change = ChangeRequest { by: Some(by.to_owned()), reason: self.reason, expected: self.generation };
        match self.action {
            RolloutAction::Promote => drop(versions.promote(name, change).await?),
            RolloutAction::Abort => versions.abort(name, change).await?,
        }
        Ok(())
    }
}

/// What the agents do that get the staged version.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    /// Those that follow the service and were heard within a day.
    expected: usize,
    /// They run it, and their hook succeeded, if they have one.
    done: usize,
    /// They cannot take it.
    failed: usize,
    /// No edge hears them now.
    silent: usize,
}

/// An agent that cannot take the staged version.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Failing {
    agent: NodeName,
    problem: ProblemKind,
    text: String,
}

impl OperatorApi {
    pub(super) async fn stage(&self, name: &ServiceName, request: StageRequest, by: &str) -> Result<(), Problem> {
        let StageRequest { revision, selectors, percent, generation, reason } = request;
        let audience = Audience::new(selectors, percent).map_err(|error| Problem::malformed(format!("{error}.")))?;
        if let Some(reason) = self.loses_staged().await? {
            return Err(VersionError::NotStageable { service: name.clone(), reason }.into());
        }
        let change = ChangeRequest { by: Some(by.to_owned()), reason, expected: generation };
        self.versions.stage(name, &revision, audience, change).await?;
        Ok(())
    }

    /// Which node does not know staged versions: agents behind it would be offered less than they have. `None`: all do.
    async fn loses_staged(&self) -> Result<Option<String>, Problem> {
        if let Some(reason) = self.members.as_ref().and_then(|members| members.cluster.loses_staged()) {
            return Ok(Some(reason));
        }
        let edges = self.observed.query(Table::list_edges).await.ok_or_else(problems::records_unreadable)?;
        let former = edges
            .into_iter()
            .filter(|edge| edge.state != EdgeState::Away && !edge.capabilities.contains(&Capability::Staged));
        let former: Vec<_> = former.map(|edge| format!("`{}`", edge.name)).collect();
        let named = former.iter().take(NAMED_EDGES).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = former.len().saturating_sub(NAMED_EDGES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let reason = || {
            format!(
                "edges have not said that they know staged versions: {named}{more}. Upgrade them, wait until they report \
                 again, or forget those that are gone (`weir forget edge NAME`)"
            )
        };
        Ok((!former.is_empty()).then(reason))
    }

    /// What is staged, or was and was aborted, and what agents do with it.
    pub(super) async fn rollout(&self, name: &ServiceName) -> Result<Response<Body>, Problem> {
        let Some(rollout) = self.versions.rollout(name).await? else {
            return Ok(uncached(&json!({ "service": name, "to": null, "state": "none" })));
        };
        let mut answer = json!({ "service": name, "plan": null });
        let mut merge = |more: serde_json::Value| {
            if let (Some(answer), serde_json::Value::Object(more)) = (answer.as_object_mut(), more) {
                answer.extend(more);
            }
        };
        if let Some(audience) = rollout.audience.clone() {
            let (name, to) = (name.clone(), rollout.to.clone());
            let look = move |table: &Table, now: weir_observed::Now| {
                let glob = name.as_str().parse().ok();
                let filter = RowFilter { service: glob, ..RowFilter::default() };
                let rows = table.rows(&filter, None, (None, usize::MAX), now).entries;
                let rows = rows.into_iter().filter(|row| audience.includes(&row.agent, &row.labels, &name));
                count(rows, &to, now.wall)
            };
            let (counts, agents) = self.observed.query(look).await.ok_or_else(problems::records_unreadable)?;
            merge(json!({ "stages": [counts], "agents": agents }));
        }
        merge(json!(rollout));
        Ok(uncached(&answer))
    }
}

/// Pure: counts the rows of agents that get the staged version, and lists those that cannot take it.
fn count(rows: impl Iterator<Item = RowView>, to: &RolloutVersion, now: SystemTime) -> (Counts, Vec<Failing>) {
    let (mut counts, mut failing) = (Counts::default(), Vec::new());
    for RowView { agent, state, heard_at, row, .. } in rows {
        let is_gone = now.duration_since(heard_at).is_ok_and(|ago| ago >= EXPECTED_FOR);
        if is_gone || matches!(row.phase, Phase::Pinned | Phase::Unassigned) {
            continue;
        }
        counts.expected += 1;
        let is_about_it = row.desired.is_some_and(|desired| desired.generation == to.generation);
        let stops = |problem: &RowProblem| {
            let kinds =
                [ProblemKind::CheckVetoed, ProblemKind::HookFailed, ProblemKind::HookTimeout, ProblemKind::Unpack];
            kinds.contains(&problem.kind)
        };
        let has_it = row.current.as_ref().is_some_and(|current| current.digest == to.digest);
        match row.problem.filter(|problem| is_about_it && stops(problem)) {
            Some(problem) => {
                counts.failed += 1;
                failing.push(Failing { agent, problem: problem.kind, text: problem.text });
            }
            None if state != State::Live => counts.silent += 1,
            None => counts.done += usize::from(has_it && matches!(row.hook, HookState::None | HookState::Succeeded)),
        }
    }
    failing.truncate(LISTED_AGENTS);
    (counts, failing)
}
