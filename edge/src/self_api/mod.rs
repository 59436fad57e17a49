//! Answers an agent about itself, below `/v1/agents/self/`: the services that it follows, what changes there, signed
//! statements of their freshness, and what it says that it runs.
//!
//! The batch poll says what is, the event stream says that something changed. Both have the same rows, so the tag of the
//! one is the cursor of the other, at every edge.

mod batch;
mod edits;
mod events;
mod followers;
mod following;
mod group_key;
mod groups;
mod message_rate;
mod metrics;
mod observed;
mod rows;
mod variants;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Request, Response};
use moka::sync::Cache;
use prometheus::Registry;
use tokio::sync::Semaphore;
use weir_protocol::agent_event::AgentEventKind;
use weir_protocol::labels::Labels;
use weir_protocol::name::NodeName;
use weir_protocol::query::{self, QueryError};
use weir_protocol::route::Route;
use weir_runtime::bounds::Bound;
use weir_runtime::serve::{Body, Peer, RequestBody};
use weir_runtime::shutdown::Drain;

use self::followers::{Followers, spread};
use self::following::Wanted;
use self::groups::{Group, Groups, Membership};
use self::message_rate::MessageRate;

pub(crate) use self::metrics::SelfMetrics;
use self::rows::{Following, Row};
use self::variants::Variants;
use crate::access::{Access, Agent};
use crate::api_error::ApiError;
use crate::catalog::{Catalog, Lookup};
use crate::config::AgentsConfig;
use crate::heartbeats::Heartbeats;
use crate::observed::Observed;

/// The most batch polls in progress of agents with one name. One that finds what the last one found is not counted.
const MAX_POLLS_PER_AGENT: usize = 8;

/// The most agents whose batch polls in progress, and messages, are counted.
const MAX_COUNTED_AGENTS: u64 = 100_000;

/// The requests of agents about themselves. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SelfApi {
    inner: Arc<Inner>,
}

/// What the answers are made of.
pub(crate) struct SelfSources {
    pub(crate) lookup: Lookup,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) access: Access,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) observed: Observed,
}

struct Inner {
    lookup: Lookup,
    catalog: Arc<Catalog>,
    access: Access,
    heartbeats: Heartbeats,
    groups: Groups,
    variants: Variants,
    polls: Cache<NodeName, Arc<Semaphore>>,
    /// Of messages about what agents run.
    message_rates: Cache<NodeName, Arc<MessageRate>>,
    streams: Arc<Semaphore>,
    max_streams: usize,
    followers: Arc<Followers>,
    updates_per_second: usize,
    observed: Observed,
    metrics: SelfMetrics,
    /// This run of the edge: each gets all rows of its agents.
    instance: HeaderValue,
    drain: Drain,
}

/// Names the run of the edge in the answers of this API.
const EDGE_INSTANCE: HeaderName = HeaderName::from_static("weir-edge-instance");

impl SelfApi {
    pub(crate) fn new(
        config: &AgentsConfig,
        SelfSources { lookup, catalog, access, heartbeats, observed }: SelfSources,
        registry: &Registry,
        drain: &Drain,
    ) -> prometheus::Result<Self> {
        let max_streams = config.streams.min(Semaphore::MAX_PERMITS);
        let (groups, variants) = (Groups::new(&access, catalog.clone()), Variants::default());
        Ok(Self {
            inner: Arc::new(Inner {
                lookup,
                catalog,
                access,
                heartbeats,
                groups,
                variants,
                polls: Cache::new(MAX_COUNTED_AGENTS),
                message_rates: Cache::new(MAX_COUNTED_AGENTS),
                streams: Arc::new(Semaphore::new(max_streams)),
                max_streams,
                followers: Arc::default(),
                updates_per_second: config.updates_per_second,
                observed,
                metrics: SelfMetrics::register(registry)?,
                instance: HeaderValue::try_from(format!("{:016x}", fastrand::u64(..))).expect("hex digits"),
                drain: drain.clone(),
            }),
        })
    }

    /// The fill level of each bound.
    pub(crate) fn bounds(&self) -> [Bound; 4] {
        let inner = &*self.inner;
        let streams = (inner.max_streams - inner.streams.available_permits()) as u64;
        let [following, members] = inner.groups.bounds();
        [("agent_streams", streams, inner.max_streams as u64), following, members, inner.variants.bound()]
    }

    /// Answers a request that needs no waiting: a batch poll that finds what the last one found.
    pub(crate) fn fast_path(
        &self,
        request: &Request<RequestBody>,
        peer: &Peer,
        route: &Route,
    ) -> Option<Response<Body>> {
        let is_poll = *route == Route::AgentServices && matches!(*request.method(), Method::GET | Method::HEAD);
        let agent = is_poll.then(|| self.inner.access.agent(request.headers(), peer).ok()).flatten()??;
        let response = self.inner.unchanged_batch_poll(request, &agent)?;
        let runs_before = self.inner.observed.heard(&agent.name);
        Some(self.named(response, runs_before))
    }

    /// Says what the edge knows of the agent: another run of the edge knows nothing, and after another run of the agent's name
    /// that sent everything the rows of the first are gone. Where one reads another text than before, it sends everything.
    fn named(&self, mut response: Response<Body>, runs_before: u64) -> Response<Body> {
        let instance = match runs_before {
            0 => Some(self.inner.instance.clone()),
            runs => {
                let instance = self.inner.instance.to_str().unwrap_or_default();
                HeaderValue::try_from(format!("{instance}.{runs}")).ok()
            }
        };
        response.headers_mut().extend(instance.map(|instance| (EDGE_INSTANCE, instance)));
        response
    }

    /// Answers a request, whose route is one of these.
    pub(crate) async fn answer(
        &self,
        request: &mut Request<RequestBody>,
        peer: &Arc<Peer>,
        route: &Route,
    ) -> Result<Response<Body>, ApiError> {
        let session = self.inner.access.session(request.headers(), peer).map_err(ApiError::Unauthorized)?;
        let session = session.ok_or(ApiError::NoSelf)?;
        let (agent, name) = (&session.agent, session.agent.name.clone());
        self.inner.observed.heard(&agent.name);
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let answer = match route {
            Route::AgentServices if is_read => {
                let polls =
                    self.inner.polls.get_with_by_ref(&agent.name, || Semaphore::new(MAX_POLLS_PER_AGENT).into());
                let _permit = polls.try_acquire().map_err(|_| ApiError::TooManyPolls)?;
                self.inner.batch_poll(request, agent).await
            }
            Route::AgentEvents if *request.method() == Method::GET => self.events(request, session),
            Route::AgentObserved if *request.method() == Method::POST => self.inner.observe(request, agent).await,
            Route::AgentHeartbeats if *request.method() == Method::POST => {
                self.inner.heartbeats.answer(request, |service| agent.may_read(service)).await
            }
            Route::AgentServices => Err(ApiError::MethodNotAllowed("GET, HEAD")),
            Route::AgentEvents => Err(ApiError::MethodNotAllowed("GET")),
            Route::AgentObserved | Route::AgentHeartbeats => Err(ApiError::MethodNotAllowed("POST")),
            _ => Err(ApiError::NoSuchPath),
        };
        answer.map(|response| self.named(response, self.inner.observed.runs_before(&name)))
    }
}

/// The parameters of a request.
#[derive(Debug)]
struct Parameters {
    wanted: Wanted,
    since: Option<String>,
}

impl Parameters {
    fn parse(query: &str, takes_since: bool) -> Result<Self, ApiError> {
        let (mut services, mut since) = (None, None);
        for (key, value) in query::pairs(query).map_err(|error| ApiError::Malformed(error.to_string()))? {
            match key {
                "services" => services = Some(value.into_owned()),
                "since" if takes_since => since = Some(value.into_owned()),
                other => {
                    let expected = if takes_since { "`services` and `since`" } else { "`services`" };
                    return Err(ApiError::Malformed(QueryError::unknown(other, expected).to_string()));
                }
            }
        }
        let wanted = Wanted::parse(services.as_deref()).map_err(|error| ApiError::Malformed(error.to_string()))?;
        Ok(Self { wanted, since })
    }
}

impl Inner {
    /// Over what all agents that get an event now spread what follows from it.
    fn spread_of(&self, kind: &AgentEventKind) -> Option<Duration> {
        let is_upstream = matches!(kind, AgentEventKind::Upstream { .. });
        (!is_upstream).then(|| spread(self.followers.count(), self.updates_per_second))
    }

    fn labels_of(&self, agent: &Agent) -> Labels {
        self.access.labels_of(agent, || self.lookup.clusters())
    }

    /// The services that an agent follows now.
    ///
    /// # Errors
    /// No origin has said yet what is assigned: an empty list would be wrong. Or there are too many patterns.
    fn following(&self, agent: &Agent, wanted: &Wanted) -> Result<Arc<Following>, ApiError> {
        let group = match self.groups.known(agent, wanted) {
            Some(group) => group,
            None => self.join(agent, wanted)?.0,
        };
        self.following_of(&group, wanted)
    }

    fn join(&self, agent: &Agent, wanted: &Wanted) -> Result<(Arc<Group>, Membership), ApiError> {
        if *wanted == Wanted::Assigned && !self.access.knows_fleet(&self.lookup.clusters()) {
            return Err(ApiError::NoAssignmentsYet);
        }
        Ok(self.groups.join(agent, wanted))
    }

    fn following_of(&self, group: &Arc<Group>, wanted: &Wanted) -> Result<Arc<Following>, ApiError> {
        if let Some(known) = self.groups.known_following(group) {
            return Ok(known);
        }
        if wanted.needs_names() && !self.catalog.has_all_names() {
            return Err(ApiError::NoAssignmentsYet);
        }
        self.groups.make_following(group).map_err(|error| ApiError::TooManyServices(error.to_string()))
    }

    /// The states of services as the catalog has them, without a query.
    fn stored(&self, following: &Following) -> Vec<Row> {
        let now = self.catalog.clock().now();
        let stored = following.services.iter().map(|service| match self.catalog.get(service) {
            Some(entry) if self.catalog.is_expired(&entry, now) => Row::TooStale,
            // What there is now is not known here.
            None if self.catalog.was_evicted(service) => Row::TooStale,
            entry => entry.and_then(|entry| entry.version.clone()).map_or(Row::NotPublished, Row::Current),
        });
        stored.collect()
    }
}
