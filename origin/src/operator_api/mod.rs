//! The HTTP API of operators: reads and changes repositories, services and versions, and receives webhooks.
//!
//! [`route`] parses paths, [`access`] authenticates, [`problems`] has the problems that several requests share, and [`forward`]
//! passes on what another member of the cluster has to answer. Begin at [`OperatorApi::new`].

mod access;
mod audit;
mod batch;
mod conditions;
mod document;
mod dry_run;
mod fleet;
mod forward;
mod freezes;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hidden;
mod lists;
mod members;
mod metrics;
mod moves;
mod named_source;
mod observed;
mod page;
mod permissions;
mod plans;
mod problems;
mod repositories;
mod rollout;
mod route;
mod services;
mod validation;
mod versions;
mod webhook;
mod webhook_token;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use prometheus::Registry;
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use weir_model::ValidationError;
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::issuer::Issuer;
use weir_protocol::name::{NodeName, RepositoryName};
use weir_protocol::problem::Problem;
use weir_protocol::query::{self, QueryError};
use weir_protocol::route::RouteError;
use weir_runtime::admin;
use weir_runtime::bounds::Bounds;
use weir_runtime::cross_site;
use weir_runtime::page::Page;
use weir_runtime::serve::{Body, Handler, Peer, RequestBody, RequestFacts};
use weir_upstream::UpstreamsConfig;

pub(crate) use self::access::Access;
use self::access::{Caller, Proof, whoami};
use self::conditions::precondition;
use self::document::{no_content, repository, service, status_of, uncached};
use self::dry_run::DryRuns;
pub(crate) use self::forward::Members;
use self::forward::{Answerer, DELIVERY_UNKNOWN};
pub(crate) use self::metrics::OperatorMetrics;
use self::page::no_keys;
use self::permissions::Permissions;
use self::rollout::{RolloutRequest, StageRequest};
use self::route::{Action, Route};
pub use self::route::{OperatorRequest, operator_requests};
use self::validation::{Object, ParsedDocument};
use self::versions::VersionRequest;
pub(crate) use self::webhook::WebhookApi;
use self::webhook::Webhooks;
use crate::access::SentList;
use crate::catalog::{Catalog, Edit, Editor};
use crate::config::{AgentConfig, AssignmentConfig, Config, IssuerDocument, OperatorRole};
use crate::fleet::FleetStore;
use crate::freezes::FreezeStore;
use crate::observed::{Forgotten, Observed};
use crate::plans::PlanStore;
use crate::rollouts::Rollouts;
use crate::versions::Versions;
use crate::webhook::{Delivery, UnknownProvider};

/// The longest accepted document in bytes.
const MAX_DOCUMENT_BYTES: usize = 256 << 10;

/// The request handler. Clones are cheap.
#[derive(Clone)]
pub(crate) struct OperatorApi {
    /// Of this origin.
    name: NodeName,
    catalog: Arc<Catalog>,
    editor: Editor,
    dry_runs: DryRuns,
    versions: Versions,
    fleet: FleetStore,
    observed: Observed,
    rollouts: Rollouts,
    freezes: FreezeStore,
    plans: PlanStore,
    assignment_dry_runs: Arc<Semaphore>,
    /// What edges get.
    access_list: watch::Receiver<Arc<SentList>>,
    secrets_dir: Option<PathBuf>,
    upstreams: UpstreamsConfig,
    access: Access,
    webhooks: Webhooks,
    /// `None`: this origin is the only one.
    members: Option<Members>,
    /// What `/` shows to people.
    page: Page,
    metrics: OperatorMetrics,
}

impl OperatorApi {
    /// Creates the handler of a catalog.
    ///
    /// # Errors
    /// The operators' token cannot be read, or the metrics are registered already.
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        editor: Editor,
        versions: Versions,
        (fleet, observed, access_list): (FleetStore, Observed, watch::Receiver<Arc<SentList>>),
        (rollouts, freezes, plans): (Rollouts, FreezeStore, PlanStore),
        config: &Config,
        (registry, bounds): (&Registry, &Bounds),
    ) -> anyhow::Result<Self> {
        let access = Access::new(config.operator_api.token().context("[operator_api]")?, &config.operators);
        let (secrets_dir, upstreams) = (config.operator_api.secrets_dir.clone(), config.upstreams.clone());
        let dry_runs = DryRuns::new(catalog.clone(), &config.limits, bounds)?;
        let metrics = OperatorMetrics::register(registry)?;
        let webhooks = Webhooks::new(catalog.clone(), metrics.clone(), bounds);
        let members = None;
        let script = concat!(include_str!("../page/fleet.js"), include_str!("../page/service.js"));
        let page = Page::new("fleet", include_str!("../page/fleet.html"), script);
        let assignment_dry_runs = bounds.semaphore("assignment_dry_runs", self::fleet::ASSIGNMENT_DRY_RUNS);
        Ok(Self {
            name: config.name.clone(),
            catalog,
            editor,
            dry_runs,
            versions,
            fleet,
            observed,
            rollouts,
            freezes,
            plans,
            assignment_dry_runs,
            access_list,
            secrets_dir,
            upstreams,
            access,
            webhooks,
            members,
            page,
            metrics,
        })
    }

    /// Who may do what.
    pub(crate) fn access(&self) -> Access {
        self.access.clone()
    }

    /// Passes requests about what other members own on to them.
    pub(crate) fn in_cluster(self, members: Members) -> Self {
        Self { members: Some(members), ..self }
    }

    /// Answers a request that the member `by` passes on. `caller`: the operator that it authenticated; webhooks have none.
    pub(crate) async fn forwarded(
        &self,
        request: Request<RequestBody>,
        caller: Option<(NodeName, Option<OperatorRole>)>,
        by: NodeName,
    ) -> Response<Body> {
        let route = Route::parse(request.uri().path());
        let answer = match (&route, caller) {
            (Ok(Route::Webhook(..)), _) => self.delivery(route, request, None).await,
            (Ok(route), Some((name, role))) => {
                // The member that passes it on has decided. One of the release before knows admins only.
                let may = Permissions::of_role(role.unwrap_or(OperatorRole::Admin));
                let caller = Caller { name: name.to_string(), may, proof: Proof::Member(by) };
                self.authenticated(route, request, caller).await
            }
            (Ok(_), None) => Err(Problem::malformed("a request of an operator needs its name.")),
            (Err(error), _) => Err(error.clone().into()),
        };
        answer.unwrap_or_else(Problem::into_response)
    }

    async fn answer(
        &self,
        route: Result<Route, RouteError>,
        request: Request<RequestBody>,
        peer: &Peer,
    ) -> Result<Response<Body>, Problem> {
        // Deliveries are authenticated by their signature; their senders have no token.
        if Route::is_of_webhooks(request.uri().path()) {
            return self.delivery(route, request, Some(peer.address)).await;
        }
        if let Some(problem) = cross_site::refuse(&request) {
            return Ok(problem.into_response());
        }
        // Checked before the path, so that only operators learn which paths exist.
        let caller = self.access.check(request.headers(), peer, SystemTime::now()).await?;
        let route = route?;
        let (action, needs) = route.action(request.method())?;
        let allowed = caller.may.check(&route, (action, needs), &self.catalog.snapshot().definitions);
        if let Err(refused) = allowed {
            let answer = Err(refused);
            if action.changes() {
                audit::log(&caller, request.method(), &route, (&audit::Facts::default(), &answer));
            }
            return answer;
        }
        self.authenticated(&route, request, caller).await
    }

    /// Answers a webhook. `from`: its sender; `None` if another member passes it on, which has limited its sender.
    async fn delivery(
        &self,
        route: Result<Route, RouteError>,
        request: Request<RequestBody>,
        from: Option<SocketAddr>,
    ) -> Result<Response<Body>, Problem> {
        let (head, body) = request.into_parts();
        let (provider, name) = match route.map(|route| (route.action(&head.method), route)) {
            Ok((Err(not_allowed), _)) => return Err(not_allowed),
            Ok((_, Route::Webhook(provider, name))) => (provider, name),
            Ok(_) | Err(RouteError::Unknown) => {
                let detail = format!("Send webhooks to /v1/webhooks/<provider>/<repository>; {UnknownProvider}.");
                return Err(Problem::new(StatusCode::NOT_FOUND, "no-such-path", "No such path", detail));
            }
            Err(error) => return Err(error.into()),
        };
        let _source = from.map(|from| self.webhooks.admit(provider, from)).transpose()?;
        // A delivery without a proof is refused here, before it costs the owner anything.
        if let Some(members) = self.members.as_ref().filter(|_| Delivery::has_proof(provider, &head.headers))
            && let Some(owner) = members.destination(&name, || self.catalog.snapshot(), false, from.is_none()).await?
        {
            return members.send(&owner, None, (head, Body::stream(body)), DELIVERY_UNKNOWN).await;
        }
        self.webhooks.take(provider, &name, &head.headers, body).await
    }

    async fn authenticated(
        &self,
        route: &Route,
        request: Request<RequestBody>,
        caller: Caller,
    ) -> Result<Response<Body>, Problem> {
        let (head, body) = request.into_parts();
        let (action, _) = route.action(&head.method)?;
        if !action.changes() {
            return self.routed((route, action), head, body, (&caller, &mut audit::Facts::default())).await;
        }
        // In a separate task: if the client disconnects, the change and its audit line are completed anyway.
        let (api, route, method) = (self.clone(), route.clone(), head.method.clone());
        let order = tokio::spawn(async move {
            let mut facts = audit::Facts::default();
            let answer = api.routed((&route, action), head, body, (&caller, &mut facts)).await;
            audit::log(&caller, &method, &route, (&facts, &answer));
            answer
        });
        order.await.unwrap_or_else(|panicked| Err(problems::failed(panicked)))
    }

    /// Answers an authenticated operator here, or at the owner of the repository.
    async fn routed(
        &self,
        (route, action): (&Route, Action),
        head: Parts,
        body: RequestBody,
        (caller, facts): (&Caller, &mut audit::Facts),
    ) -> Result<Response<Body>, Problem> {
        let longest = if *route == Route::Batch { batch::MAX_BATCH_BYTES } else { MAX_DOCUMENT_BYTES };
        let body = if action == Action::Read { Bytes::new() } else { body.read(longest).await? };
        facts.read(route, &body);
        if caller.forwarded_by().is_none() {
            caller.may.check_document(route, action, &body)?;
        }
        let Some(members) = &self.members else {
            return self.audited((route, action), head, body, (caller, facts)).await;
        };
        let at = || self.catalog.snapshot();
        let repository = match members.forward(at, (route, action), (&head, &body), caller).await? {
            Answerer::Other(answer) if matches!(route, Route::Repository(_)) => {
                return caller.may.limit_answer(answer).await;
            }
            Answerer::Other(answer) => return Ok(answer),
            Answerer::Me(repository) => repository.filter(|_| action.changes()),
        };
        let answer = members.announcing(repository, self.audited((route, action), head, body, (caller, facts))).await;
        let may_have_changed = answer.as_ref().map_or_else(|problem| problem.status().is_server_error(), |_| true);
        if action.changes() && may_have_changed && matches!(route, Route::Freeze(_) | Route::Plan(_)) {
            members.announce_lists().await;
        }
        answer
    }

    /// Answers here, and notes what the request changes.
    async fn audited(
        &self,
        (route, action): (&Route, Action),
        head: Parts,
        body: Bytes,
        (caller, facts): (&Caller, &mut audit::Facts),
    ) -> Result<Response<Body>, Problem> {
        if !action.changes() {
            return self.admitted((route, action), head, body, (caller, facts)).await;
        }
        facts.before = self.version_of(route);
        let answer = self.admitted((route, action), head, body, (caller, &mut *facts)).await;
        facts.after = self.version_of(route);
        answer
    }

    /// Answers an authenticated operator.
    async fn admitted(
        &self,
        (route, action): (&Route, Action),
        head: Parts,
        body: Bytes,
        (caller, facts): (&Caller, &mut audit::Facts),
    ) -> Result<Response<Body>, Problem> {
        let by = &caller.name;
        match (route, action) {
            (Route::Repositories, _) => self.repositories(&head, &caller.may),
            (Route::Repository(name), Action::Put) => self.put_repository(name, &head, body).await,
            (Route::Repository(name), Action::Delete) => {
                let edit = Edit::DeleteRepository { name: name.clone(), cascade: cascade(&head)? };
                self.delete(edit, &head).await
            }
            (Route::Repository(name), _) => self.read_repository(name, &head, &caller.may),
            (Route::Refresh(name), _) => self.refresh(name),
            (Route::RepositoryDryRun(name), _) => self.dry_run_repository(name, &head, body).await,
            (Route::Confirm(name), _) => self.confirm(name, &head).await,
            (Route::Webhook(..), _) => Err(RouteError::Unknown.into()),
            (Route::Services, _) => self.services(&head, &caller.may),
            (Route::Service(name), Action::Put) => self.put_service(name, &head, body, caller).await,
            (Route::Service(name), Action::Delete) => {
                self.delete(Edit::DeleteService { name: name.clone(), cascade: cascade(&head)? }, &head).await
            }
            (Route::Service(name), _) => service(&self.catalog.snapshot(), name, StatusCode::OK, &head),
            (Route::History(name), _) => versions::history(&self.versions, name, &head).await,
            (Route::Diff(name), _) => versions::diff(&self.versions, name, &head).await,
            (Route::Rollback(name) | Route::Pin(name), _) => {
                let request = VersionRequest::parse(&body)?;
                match (route, action) {
                    (Route::Rollback(_), _) => request.roll_back(&self.versions, name, by).await?,
                    (_, Action::Put) => request.pin(&self.versions, name, by).await?,
                    _ => request.unpin(&self.versions, name, by).await?,
                }
                service(&self.catalog.snapshot(), name, StatusCode::OK, &head)
            }
            (Route::Stage(name), _) => {
                // It is as large as a build.
                Box::pin(self.stage(name, StageRequest::parse(&body)?, by)).await?;
                self.rollout(name).await
            }
            (Route::Rollout(name), Action::Post) => {
                RolloutRequest::parse(&body)?.apply(&self.versions, name, by).await?;
                self.rollout(name).await
            }
            (Route::Rollout(name), _) => self.rollout(name).await,
            (Route::DryRun(name), _) => self.dry_run(name, &head, body).await,
            (Route::Plans, _) => self.list_plans(&head, &caller.may).await,
            (Route::Plan(name), Action::Put) => self.put_plan(name, &head, body, &caller.may).await,
            (Route::Plan(name), Action::Delete) => self.delete_plan(name, &head).await,
            (Route::Plan(name), _) => self.read_plan(name, &head, &caller.may).await,
            (Route::PlanDryRun(name), _) => self.dry_run_plan(name, &head, body).await,
            (Route::Freezes, _) => self.list_freezes(&head, &caller.may).await,
            (Route::Freeze(name), _) => self.freeze(name, action, &head, body, &caller.may).await,
            (Route::Agents, _) => self.entries::<Agent>(&head).await,
            (Route::Agent(name), _) => self.entry::<AgentConfig>(name, action, &head, body).await,
            (Route::Assignments, _) => self.entries::<Assignment>(&head).await,
            (Route::AssignmentDryRun, _) => self.dry_run_of_assignments(body).await,
            (Route::Assignment(name), Action::Put) => self.put_assignment(name, &head, body).await,
            (Route::Assignment(name), _) => self.entry::<AssignmentConfig>(name, action, &head, body).await,
            (Route::Issuers, _) => self.entries::<Issuer>(&head).await,
            (Route::Issuer(name), _) => self.entry::<IssuerDocument>(name, action, &head, body).await,
            (Route::Batch, _) => self.batch(&head, body, (caller, facts)).await,
            (Route::FleetRows, _) => self.fleet_rows(&head, &caller.may).await,
            (Route::FleetAgents, _) => self.fleet_agents(&head, &caller.may).await,
            (Route::FleetSummary, _) => self.fleet_summary(&head, &caller.may).await,
            (Route::FleetAgent(name), _) => self.forget(Forgotten::Agent(name.clone())).await,
            (Route::Edges, _) => self.list_edges(&head).await,
            (Route::Edge(name), _) => self.forget(Forgotten::Edge(name.clone())).await,
            (Route::Members, _) => self.list_members(&head).await,
            (Route::Whoami, _) => whoami(&head, caller),
        }
    }

    async fn delete(&self, edit: Edit, head: &Parts) -> Result<Response<Body>, Problem> {
        let precondition = precondition(&head.headers)?;
        match &self.members {
            None => drop(self.editor.edit(edit, precondition).await?),
            Some(members) => self.delete_in_cluster(members, edit, precondition).await?,
        }
        Ok(no_content())
    }

    /// Accepts the readable state of a damaged repository, so that it publishes again.
    async fn confirm(&self, name: &RepositoryName, head: &Parts) -> Result<Response<Body>, Problem> {
        let is_defined = || self.catalog.snapshot().definitions.repositories.contains_key(name);
        // A deleted repository may be suspended too, because of its tombstones.
        if !self.versions.confirm(name).await? && !is_defined() {
            return Err(problems::no_such_repository(name));
        }
        if let Some(worker) = self.catalog.repository(name) {
            worker.resolve_all();
        }
        if is_defined() { repository(&self.catalog.snapshot(), name, StatusCode::OK, head) } else { Ok(no_content()) }
    }

    /// Polls an upstream as soon as the minimum interval allows, and retries failed builds.
    fn refresh(&self, name: &RepositoryName) -> Result<Response<Body>, Problem> {
        let worker = self.catalog.repository(name).ok_or_else(|| problems::no_such_repository(name))?;
        let polls = worker.state().applied_polls;
        worker.refresh();
        let mut response = admin::json(&json!({ "repository": name, "polls": polls }));
        *response.status_mut() = StatusCode::ACCEPTED;
        Ok(response)
    }
}

impl Handler for OperatorApi {
    async fn handle(&self, mut request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        if request.uri().path() == "/" && matches!(*request.method(), Method::GET | Method::HEAD) {
            // It has no data: its script asks this API, as any other client.
            let refused = cross_site::refuse(&request).map(Problem::into_response);
            return self.answered(Some("page"), refused.unwrap_or_else(|| self.page.response()));
        }
        webhook_token::to_header(&mut request);
        let route = Route::parse(request.uri().path());
        let answer = self.answer(route.clone(), request, &peer).await;
        let label = route.as_ref().ok().map(Route::label);
        self.answered(label, answer.unwrap_or_else(Problem::into_response))
    }
}

impl OperatorApi {
    /// Counts a response, and names its route for the access log. `None`: its path leads nowhere.
    fn answered(&self, route: Option<&'static str>, mut response: Response<Body>) -> Response<Body> {
        self.metrics.answered(route, response.status());
        let facts = RequestFacts { route: route.or(Some("unknown")), ..RequestFacts::default() };
        response.extensions_mut().insert(facts);
        response
    }
}

/// Runs [`validation::read`] outside the runtime's threads, because a document may be long.
async fn read<T: Object + Send + 'static>(
    kind: &'static str,
    name: String,
    body: Bytes,
    more: impl Fn(&T) -> Vec<ValidationError> + Send + 'static,
) -> Result<ParsedDocument<T>, Problem> {
    let read =
        move || validation::read(&name, &body, more).map_err(|errors| problems::invalid_document(kind, &name, &errors));
    spawn_blocking(read).await.map_err(problems::failed)?
}

/// Parses `?cascade=true`.
fn cascade(head: &Parts) -> Result<bool, Problem> {
    let mut cascade = false;
    for (key, value) in query::pairs(head.uri.query().unwrap_or_default())? {
        match key {
            "cascade" => cascade = query::parsed(key, &value)?,
            other => return Err(QueryError::unknown(other, "`cascade`").into()),
        }
    }
    Ok(cascade)
}
