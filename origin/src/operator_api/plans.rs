//! `/v1/rollouts`: the plans of rollouts, and what they stage now.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use weir_model::ValidationError;
use weir_protocol::name::{RolloutName, ServiceName};
use weir_protocol::problem::Problem;
use weir_rollout::{Plan, State};
use weir_runtime::serve::Body;
use weir_source::ServiceConfig;
use weir_upstream::DefinedBy;

use super::conditions::precondition;
use super::document::{Document, listing};
use super::page::Page;
use super::permissions::Permissions;
use super::validation::{Object, ParsedDocument};
use super::{OperatorApi, no_content, read, status_of, uncached};
use crate::catalog::{Precondition, RawDocument};
use crate::config::OperatorRole;
use crate::fleet::FleetError;
use crate::plans::DefinedPlan;
use crate::rollouts::summary;

/// The most services in a plan's state; all are counted.
const MAX_SERVICES_SHOWN: usize = 100;

impl Object for Plan {
    const REQUIRED: &'static [(&'static str, &'static str)] =
        &[("name", "\"x\""), ("stages", r#"[{"name":"some","percent":1},{"name":"all"}]"#)];

    fn check(&self) -> Vec<ValidationError> {
        Vec::new()
    }
}

/// The services that name plans, and what plans stage.
struct InUse {
    services: BTreeMap<RolloutName, Vec<ServiceName>>,
    staged: BTreeMap<ServiceName, Arc<State>>,
}

impl InUse {
    /// The state of a plan. Services of which something is staged come first.
    fn state(&self, name: &RolloutName, defined: &DefinedPlan) -> Value {
        let services = self.services.get(name).map_or(&[][..], Vec::as_slice);
        let staged = |service: &&ServiceName| {
            self.staged.get(*service).filter(|state| state.plan.name() == name.as_str()).map(|state| summary(state))
        };
        let (with, without): (Vec<_>, Vec<_>) =
            services.iter().map(|service| (service, staged(&service))).partition(|(_, staged)| staged.is_some());
        let shown = with.into_iter().chain(without).take(MAX_SERVICES_SHOWN);
        let shown: Vec<_> = shown.map(|(service, staged)| json!({ "service": service, "staged": staged })).collect();
        let failure = defined.refused().map(|reason| json!({ "step": "document", "reason": reason }));
        json!({ "services": shown, "services_total": services.len(), "failure": failure })
    }
}

impl OperatorApi {
    /// A page of the plans, with the services that the operator sees.
    pub(super) async fn list_plans(&self, head: &Parts, may: &Permissions) -> Result<Response<Body>, Problem> {
        let page = Page::<RolloutName>::parse(head.uri.query(), "`limit` and `page`", |_, _| Ok(false))?;
        self.plans.read_again().await?;
        let (all, in_use) = (self.plans.all(), self.in_use(may));
        let (shown, next) = page.of(&all, |_, _| true);
        let documents =
            shown.into_iter().map(|(name, defined)| Document::of_plan(defined, in_use.state(name, defined)));
        Ok(listing("rollouts", documents, next.as_ref()))
    }

    pub(super) async fn read_plan(
        &self,
        name: &RolloutName,
        head: &Parts,
        may: &Permissions,
    ) -> Result<Response<Body>, Problem> {
        self.plans.read_again().await?;
        Ok(self.shown_plan(name, may)?.answer(StatusCode::OK, &head.headers))
    }

    pub(super) async fn put_plan(
        &self,
        name: &RolloutName,
        head: &Parts,
        body: Bytes,
        may: &Permissions,
    ) -> Result<Response<Body>, Problem> {
        let (plan, precondition) = read_plan(name, head, body).await?;
        let outcome = self.plans.edit(name, Some(plan), &precondition, &[]).await?;
        Ok(self.shown_plan(name, may)?.answer(status_of(outcome), &head.headers))
    }

    /// Says what the `PUT` of a document would do, or why it would be refused.
    pub(super) async fn dry_run_plan(
        &self,
        name: &RolloutName,
        head: &Parts,
        body: Bytes,
    ) -> Result<Response<Body>, Problem> {
        let (plan, precondition) = read_plan(name, head, body).await?;
        let outcome = self.plans.check(plan, &precondition).await?;
        Ok(uncached(&json!({ "rollout": name, "outcome": outcome.into_str() })))
    }

    /// Deletes a plan that no service names. A service that names it at the same moment publishes nothing new, and says so.
    pub(super) async fn delete_plan(&self, name: &RolloutName, head: &Parts) -> Result<Response<Body>, Problem> {
        let precondition = precondition(&head.headers)?;
        self.read_services_again().await?;
        let all = Permissions::of_role(OperatorRole::Admin);
        let services = self.in_use(&all).services.remove(name).unwrap_or_default();
        self.plans.edit(name, None, &precondition, &services).await?;
        Ok(no_content())
    }

    /// What is wrong with the plan that a service names.
    pub(super) async fn check_plan(&self, service: &ServiceConfig) -> Result<Option<ValidationError>, Problem> {
        let Some(name) = &service.rollout else { return Ok(None) };
        if self.plans.all().get(name).is_none_or(|defined| defined.by != DefinedBy::File) {
            // Another origin may have just stored or deleted it.
            self.plans.read_again().await?;
        }
        let reason = match self.plans.all().get(name).map(DefinedPlan::refused) {
            Some(None) => return Ok(None),
            Some(Some(reason)) => format!("this origin does not follow rollout `{name}`: {reason}"),
            None => format!("there is no rollout `{name}`: create it first"),
        };
        Ok(Some(ValidationError::new("rollout", reason)))
    }

    fn shown_plan(&self, name: &RolloutName, may: &Permissions) -> Result<Document, Problem> {
        let missing = || FleetError::Missing { kind: "rollout", name: name.to_string() };
        let all = self.plans.all();
        let defined = all.get(name).ok_or_else(missing)?;
        Ok(Document::of_plan(defined, self.in_use(may).state(name, defined)))
    }

    fn in_use(&self, may: &Permissions) -> InUse {
        let snapshot = self.catalog.snapshot();
        let mut services = BTreeMap::<_, Vec<_>>::new();
        for (service, defined) in snapshot.definitions.services.iter().filter(|(service, _)| may.sees(service)) {
            let plan = match &defined.document {
                RawDocument::Valid(document) => document.rollout.clone(),
                // A later release may follow it.
                RawDocument::Refused(refused) => refused.field("rollout").as_str().and_then(|name| name.parse().ok()),
            };
            if let Some(plan) = plan {
                services.entry(plan).or_default().push(service.clone());
            }
        }
        let staged = self.versions.publisher.staged_by_plans().into_iter();
        InUse { services, staged: staged.map(|staged| (staged.service, staged.state)).collect() }
    }
}

async fn read_plan(name: &RolloutName, head: &Parts, body: Bytes) -> Result<(Plan, Precondition), Problem> {
    let mut precondition = precondition(&head.headers)?;
    let ParsedDocument { document, based_on } = read::<Plan>("rollout", name.to_string(), body, |_| Vec::new()).await?;
    precondition.based_on = based_on;
    Ok((document, precondition))
}
