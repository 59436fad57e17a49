//! `/v1/services/{service}/stage` and `/v1/services/{service}/rollout`: a version for some agents first, and what becomes of it.

use http::Response;
use serde::Deserialize;
use serde_json::json;
use weir_observed::Table;
use weir_protocol::descriptor::Generation;
use weir_protocol::name::{ServiceName, StageName};
use weir_protocol::problem::Problem;
use weir_protocol::staged::{AgentSelector, Audience};
use weir_publish::RolloutVersion;
use weir_rollout::{Action, Counts, Target};
use weir_runtime::serve::Body;

use super::versions::{check_reason, parsed};
use super::{OperatorApi, problems, uncached};
use crate::rollouts::{describe, former_edges};
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
    /// Of an approval: the stage that may begin.
    stage: Option<StageName>,
    generation: Option<Generation>,
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RolloutAction {
    Promote,
    Abort,
    Pause,
    Resume,
    Approve,
}

impl RolloutRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Problem> {
        let request: Self = parsed(body)?;
        check_reason(request.reason.as_deref())?;
        if request.stage.is_some() && request.action != RolloutAction::Approve {
            return Err(Problem::malformed("`stage` is of the action `approve`: the stage that may begin."));
        }
        Ok(request)
    }

    pub(super) async fn apply(self, versions: &Versions, name: &ServiceName, by: &str) -> Result<(), Problem> {
        let change = ChangeRequest { by: Some(by.to_owned()), reason: self.reason, expected: self.generation };
        match self.action {
            RolloutAction::Promote => drop(versions.promote(name, change).await?),
            RolloutAction::Abort => versions.abort(name, change).await?,
            RolloutAction::Pause => versions.act(name, Action::Pause, change).await?,
            RolloutAction::Resume => versions.act(name, Action::Resume, change).await?,
            RolloutAction::Approve => versions.act(name, Action::Approve(self.stage), change).await?,
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
        if let Some(members) = &self.members {
            let Some(former) = members.cluster.former_members() else {
                return Ok(Some("this origin does not see the members of its cluster now".to_owned()));
            };
            if let Some(name) = former.first() {
                let reason =
                    format!("origin `{name}` is of an earlier release, which loses what is staged: upgrade it");
                return Ok(Some(reason));
            }
        }
        let former = |table: &Table, now| former_edges(table, now).map(|name| format!("`{name}`")).collect::<Vec<_>>();
        let former = self.observed.query(former).await.ok_or_else(problems::records_unreadable)?;
        let named = former.iter().take(NAMED_EDGES).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = former.len().saturating_sub(NAMED_EDGES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let reason = || {
            format!(
                "edges do not report the capability `staged`: {named}{more}. Upgrade them, wait until they report \
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
        let by_hand = rollout.audience.clone().filter(|_| rollout.by_plan.is_none());
        if let Some(audience) = by_hand {
            let RolloutVersion { digest, generation, .. } = rollout.to;
            let target = Target { service: name.clone(), digest, generation };
            let look = move |table: &Table, now: weir_observed::Now| {
                Counts::new(&[audience], 0, &target, table.of_service(&target.service, now))
            };
            let counts = self.observed.query(look).await.ok_or_else(problems::records_unreadable)?;
            merge(json!({ "stages": counts.stages, "agents": counts.failed.first }));
        }
        merge(json!(rollout));
        if let Some(state) = &rollout.by_plan {
            merge(describe(&self.rollouts, name, &rollout, state).await);
        }
        Ok(uncached(&answer))
    }
}
