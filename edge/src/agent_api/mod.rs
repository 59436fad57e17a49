//! Answers agents: one handler for HTTP/1.1, 2 and 3.

mod descriptor;
mod frames;
mod headers;
mod metrics;
mod preconditions;
mod revision_status;
mod tarball;
mod timing;

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, Version, header};
use weir_cache::{Cache, FarthestTier};
use weir_protocol::cache_status::CacheStatus;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::route::Route;
use weir_runtime::serve::{AccessLog, Body, Handler, Peer, RequestBody, RequestFacts};
use weir_runtime::shutdown::Drain;

use self::tarball::TarballRef;
use crate::access::{Access, AccessDecision};
use crate::api_error::ApiError;
use crate::catalog::{Lookup, LookupResult};
use crate::self_api::SelfApi;

pub(crate) use self::headers::{CacheLifetime, CommonHeaders};
pub(crate) use self::metrics::{ApiFamilies, ApiMetrics};
pub(crate) use self::preconditions::{ResponseKind, evaluate_tag};
pub(crate) use self::tarball::body_cache_status;
pub(crate) use self::timing::Timing;

#[derive(Clone)]
pub(crate) struct AgentApi {
    pub(crate) reads: Arc<ReadContext>,
    own: SelfApi,
}

#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) lookup: Lookup,
    pub(crate) cache: Cache,
    pub(crate) own: SelfApi,
}

/// What content is answered with, whatever the API.
pub(crate) struct ReadContext {
    pub(crate) lookup: Lookup,
    pub(crate) cache: Cache,
    pub(crate) access: Access,
    pub(crate) metrics: ApiMetrics,
    pub(crate) access_log: AccessLog,
    pub(crate) common_headers: CommonHeaders,
    drain: Drain,
}

/// The resource that an agent requests.
enum Target {
    Descriptor(ServiceName),
    Tarball(TarballRef),
    /// The manifest of a version.
    Frames(TarballRef),
    /// What the agent asks about itself.
    Own(Route),
}

impl Target {
    fn of(request: &Request<RequestBody>, route: Route) -> Result<Self, ApiError> {
        let target = match route {
            Route::Service(service) => Target::Descriptor(service),
            Route::Tarball(service) => Target::Tarball(TarballRef::Current(service)),
            Route::TarballVersion(service, digest) => Target::Tarball(TarballRef::Version(service, digest)),
            Route::TarballFrames(service, digest) => Target::Frames(TarballRef::Version(service, digest)),
            own @ (Route::AgentServices | Route::AgentEvents | Route::AgentObserved | Route::AgentHeartbeats) => {
                return Ok(Target::Own(own));
            }
            // Only edges and origins serve these, to edges.
            _ => return Err(ApiError::NoSuchPath),
        };
        check_method(request).map(|()| target)
    }

    /// The response for a client that may not see it: the same as if it did not exist.
    fn absent(self) -> ApiError {
        match self {
            Target::Descriptor(service) => TarballRef::Current(service).absent(),
            Target::Tarball(tarball) | Target::Frames(tarball) => tarball.absent(),
            Target::Own(_) => ApiError::NoSuchPath,
        }
    }
}

/// The route and the authorisation of a request.
#[derive(Clone, Copy)]
pub(crate) struct Authorized {
    /// The route, as a metric's label.
    pub(crate) label: &'static str,
    pub(crate) decision: AccessDecision,
}

/// A response and its cache status.
pub(crate) struct ApiResponse {
    pub(crate) response: Response<Body>,
    pub(crate) status: CacheStatus,
    /// The farthest tier that bytes of the body came from so far; `None`: there is no body, or it is not logged.
    pub(crate) tier: Option<FarthestTier>,
}

impl ApiResponse {
    /// A response that needs no origin.
    pub(crate) fn own(response: Response<Body>) -> Self {
        Self { response, status: CacheStatus::Hit { stale_for: 0 }, tier: None }
    }

    /// Attaches the timing of a response that was not a hit.
    pub(crate) fn after(mut self, timing: Timing) -> Self {
        if matches!(self.status, CacheStatus::Forwarded { .. }) {
            self.response.extensions_mut().insert(timing);
        }
        self
    }
}

impl AgentApi {
    /// `port`: the port of HTTP/3, for `Alt-Svc`.
    pub(crate) fn new(
        name: &NodeName,
        port: u16,
        sources: Sources,
        access: Access,
        (metrics, access_log): (ApiMetrics, AccessLog),
        drain: &Drain,
    ) -> Self {
        let common_headers = CommonHeaders::new(name, port, access.needs_credentials());
        let (Sources { lookup, cache, own }, drain) = (sources, drain.clone());
        let reads = ReadContext { lookup, cache, access, metrics, access_log, common_headers, drain };
        Self { reads: Arc::new(reads), own }
    }
}

impl Handler for AgentApi {
    fn fast_path(&self, request: &Request<RequestBody>, peer: &Peer) -> Option<Response<Body>> {
        let api = &*self.reads;
        let (authorized, target) = api.admit(request, peer);
        let answered = match target {
            Ok(Target::Tarball(tarball)) => Ok(api.tarball_fast_path(request, peer, &tarball)?),
            Ok(Target::Own(route)) => Ok(ApiResponse::own(self.own.fast_path(request, peer, &route)?)),
            Ok(Target::Descriptor(_) | Target::Frames(_)) => return None,
            Err(ApiError::Unauthorized(refusal)) if refusal.may_pass() => return None,
            Err(error) => Err(error),
        };
        Some(api.finish(request, peer, authorized, answered))
    }

    async fn handle(&self, mut request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        let api = &*self.reads;
        let (mut authorized, mut target) = api.admit(&request, &peer);
        if let Err(ApiError::Unauthorized(refusal)) = target
            && refusal.may_pass()
        {
            api.access.key_fetched(request.headers()).await;
            (authorized, target) = api.admit(&request, &peer);
        }
        let answered = match target {
            Ok(Target::Tarball(tarball)) => api.tarball(&request, &peer, &tarball).await,
            Ok(Target::Frames(tarball)) => api.frames(&request, &peer, &tarball).await,
            Ok(Target::Descriptor(service)) => api.descriptor(&request, &peer, &service).await,
            Ok(Target::Own(route)) => self.own.answer(&mut request, &peer, &route).await.map(ApiResponse::own),
            Err(error) => Err(error),
        };
        api.finish(&request, &peer, authorized, answered)
    }
}

fn stale_seconds(status: &CacheStatus) -> u64 {
    match status {
        CacheStatus::Hit { stale_for } => *stale_for,
        CacheStatus::Forwarded { .. } => 0,
    }
}

impl ReadContext {
    /// The requested resource, if the client may read it. Authorises before the path is evaluated or anything is looked
    /// up.
    fn admit(&self, request: &Request<RequestBody>, peer: &Peer) -> (Authorized, Result<Target, ApiError>) {
        let route = Route::parse(request.uri().path());
        let label = route.as_ref().map_or("unknown", Route::label);
        let service = route.as_ref().ok().and_then(Route::service);
        let decision = self.access.decide(request.headers(), peer, service);
        let target = match decision {
            AccessDecision::Unauthorized(refusal) => Err(ApiError::Unauthorized(refusal)),
            AccessDecision::Allowed(_) => route.map_err(ApiError::from).and_then(|route| Target::of(request, route)),
            AccessDecision::OutOfScope => route
                .map_err(ApiError::from)
                .and_then(|route| Target::of(request, route))
                .and_then(|target| Err(target.absent())),
        };
        (Authorized { label, decision }, target)
    }

    fn finish(
        &self,
        request: &Request<RequestBody>,
        peer: &Peer,
        authorized: Authorized,
        answered: Result<ApiResponse, ApiError>,
    ) -> Response<Body> {
        let facts = || RequestFacts::of(&Route::parse(request.uri().path()));
        self.complete(request, peer, authorized, answered.map_err(ApiError::into_response), facts)
    }

    /// What the client gets of a service whose current version was found: the staged one, if it proves to be an agent that this
    /// is for.
    fn of_client(&self, mut found: LookupResult, request: &Request<RequestBody>, peer: &Peer) -> LookupResult {
        if found.version.depends_on_agent()
            && let Ok(Some(agent)) = self.access.agent(request.headers(), peer)
        {
            let labels = self.access.labels_of(&agent, || self.lookup.clusters());
            if let Some(later) = found.version.later_for(&agent.name, &labels) {
                found.version = later.clone();
            }
        }
        found
    }

    /// Completes and counts a response. `facts`: what the path says, for the access log.
    pub(crate) fn complete(
        &self,
        request: &Request<RequestBody>,
        peer: &Peer,
        authorized: Authorized,
        answered: Result<ApiResponse, Response<Body>>,
        facts: impl FnOnce() -> RequestFacts,
    ) -> Response<Body> {
        self.access.record(authorized.decision, request.headers(), peer);
        let (mut response, cache, tier) = match answered {
            Ok(ApiResponse { response, status, tier }) => {
                if let CacheStatus::Hit { stale_for: 1.. } = status {
                    self.metrics.served_stale(stale_seconds(&status));
                }
                (response, status.as_str(), tier)
            }
            Err(response) => (response, "error", None),
        };
        if self.access_log.wants(response.status()) {
            response.extensions_mut().insert(RequestFacts {
                agent: self.access.agent(request.headers(), peer).ok().flatten().map(|agent| agent.name),
                cache: Some(cache),
                tier: tier.map(|tier| Arc::new(move || tier.get().as_str()) as Arc<_>),
                ..facts()
            });
        }
        timing::write(&mut response, cache);
        self.metrics.answered(authorized.label, request.method(), cache, response.status());
        self.add_alt_svc(request.version(), &mut response);
        response
    }

    /// Advertises HTTP/3 to clients over TCP; withdraws it in a drain.
    fn add_alt_svc(&self, version: Version, response: &mut Response<Body>) {
        if version != Version::HTTP_3 {
            let alt_svc = if self.drain.has_begun() {
                HeaderValue::from_static("clear")
            } else {
                self.common_headers.alt_svc.clone()
            };
            response.headers_mut().insert(header::ALT_SVC, alt_svc);
        }
    }
}

fn check_method(request: &Request<RequestBody>) -> Result<(), ApiError> {
    matches!(*request.method(), Method::GET | Method::HEAD).then_some(()).ok_or(ApiError::MethodNotAllowed("GET, HEAD"))
}
