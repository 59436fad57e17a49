//! `/v1/services/{service}/stage` and `/v1/services/{service}/rollout`: a version for some agents first, and what becomes of it.

use http::Response;
use serde::Deserialize;
use serde_json::json;
use weir_observed::{EdgeState, ServiceAgent, State, Table};
use weir_protocol::descriptor::Generation;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::Capability;
use weir_protocol::problem::Problem;
use weir_protocol::staged::{AgentSelector, Audience};
use weir_publish::RolloutVersion;
use weir_runtime::serve::Body;

use super::versions::{check_reason, parsed};
use super::{OperatorApi, problems, uncached};
use crate::versions::{ChangeRequest, VersionError, Versions};

/// The most edges that a refusal names.
const NAMED_EDGES: usize = 5;

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
            let RolloutVersion { digest, generation, .. } = rollout.to;
            let target = Target { service: name.clone(), digest, generation };
            let look = move |table: &Table, now: weir_observed::Now| {
                let agents = table.of_service(&target.service, now).map(agent_row);
                Counts::new(&[audience], 0, &target, agents)
            };
            let counts = self.observed.query(look).await.ok_or_else(problems::records_unreadable)?;
            merge(json!({ "stages": counts.stages, "agents": counts.failed.first }));
        }
        merge(json!(rollout));
        Ok(uncached(&answer))
    }
}

/// What an agent runs, as it is counted.
fn agent_row(of: ServiceAgent<'_>) -> AgentRow<'_> {
    let ServiceAgent { agent, labels, state, heard_ago, row } = of;
    let row = row.map(|row| {
        let weir_observed::ServiceRow { desired, current, phase, hook, problem } = row;
        ServiceRow { desired, current, phase, hook, problem }
    });
    AgentRow { agent, labels, is_live: state == State::Live, heard_ago, row }
}
