//! Answers agents: one handler for HTTP/1.1, 2 and 3.

mod conditions;
mod descriptor;
mod error;
mod headers;
mod metrics;
mod seen;
mod tarball;
mod timing;

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, Version, header};
use weir_protocol::cache_status::CacheStatus;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::route::Route;
use weir_runtime::serve::{Body, Handler, Peer, RequestBody};
use weir_runtime::shutdown::Drain;

use self::error::ApiError;
use self::headers::Rendered;
use self::tarball::Which;
use self::timing::Waited;
use crate::access::{Access, Decision};
use crate::cache::Cache;
use crate::catalog::{Lookup, RevalidateMode};

pub(crate) use self::metrics::{ApiFamilies, ApiMetrics};

/// The handler.
#[derive(Clone)]
pub(crate) struct AgentApi {
    inner: Arc<Inner>,
}

/// What answers are made from.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) lookup: Lookup,
    pub(crate) cache: Cache,
}

struct Inner {
    lookup: Lookup,
    cache: Cache,
    access: Access,
    metrics: ApiMetrics,
    rendered: Rendered,
    drain: Drain,
}

/// What an agent may ask for.
enum Target {
    Descriptor(ServiceName),
    Tarball(Which),
}

impl Target {
    fn of(request: &Request<RequestBody>, route: Route) -> Result<Self, ApiError> {
        let target = match route {
            Route::Service(service) => Target::Descriptor(service),
            Route::Tarball(service) => Target::Tarball(Which::Current(service)),
            Route::TarballVersion(service, digest) => Target::Tarball(Which::Version(service, digest)),
            // These are an origin's.
            Route::Version(..) | Route::Object(..) | Route::Events => return Err(ApiError::NoSuchPath),
        };
        only_reading(request).map(|()| target)
    }

    /// For a reader who may not see it there is no such thing.
    fn absent(self) -> ApiError {
        match self {
            Target::Descriptor(service) => Which::Current(service).absent(),
            Target::Tarball(which) => which.absent(),
        }
    }
}

/// What was decided about a request before it was looked at closely.
#[derive(Clone, Copy)]
struct Admission {
    /// Its route: the value of a metric's label.
    label: &'static str,
    decision: Decision,
}

/// A response, and what the cache did for it.
struct Answer {
    response: Response<Body>,
    status: CacheStatus,
}

impl Answer {
    /// Notes what it waited for, when it was not at hand.
    fn after(mut self, waited: Waited) -> Self {
        if matches!(self.status, CacheStatus::Forwarded { .. }) {
            self.response.extensions_mut().insert(waited);
        }
        self
    }
}

impl AgentApi {
    /// `port`: where HTTP/3 is served, for `Alt-Svc`.
    pub(crate) fn new(
        name: &NodeName,
        port: u16,
        sources: Sources,
        access: Access,
        metrics: ApiMetrics,
        drain: &Drain,
    ) -> Self {
        let rendered = Rendered::new(name, port, access.needs_credentials());
        let Sources { lookup, cache } = sources;
        Self { inner: Arc::new(Inner { lookup, cache, access, metrics, rendered, drain: drain.clone() }) }
    }
}

impl Handler for AgentApi {
    fn at_once(&self, request: &Request<RequestBody>, peer: &Peer) -> Option<Response<Body>> {
        let api = &*self.inner;
        let (admission, target) = api.admit(request, peer);
        let answered = match target {
            Ok(Target::Tarball(which)) => Ok(api.tarball_at_once(request, &which)?),
            Ok(Target::Descriptor(_)) => return None,
            Err(error) => Err(error),
        };
        Some(api.finish(request, peer, admission, answered))
    }

    async fn handle(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        let api = &*self.inner;
        let (admission, target) = api.admit(&request, &peer);
        let answered = match target {
            Ok(Target::Tarball(which)) => api.tarball(&request, &which).await,
            Ok(Target::Descriptor(service)) => api.descriptor(&request, &service).await,
            Err(error) => Err(error),
        };
        api.finish(&request, &peer, admission, answered)
    }
}

fn stale_seconds(status: &CacheStatus) -> u64 {
    match status {
        CacheStatus::Hit { stale_for } => *stale_for,
        CacheStatus::Forwarded { .. } => 0,
    }
}

impl Inner {
    /// What is asked for, if the reader may ask for it. Before anything is looked up, and before anything is said of the
    /// path.
    fn admit(&self, request: &Request<RequestBody>, peer: &Peer) -> (Admission, Result<Target, ApiError>) {
        let route = Route::parse(request.uri().path());
        let label = route.as_ref().map_or("unknown", Route::label);
        let service = route.as_ref().ok().and_then(Route::service);
        let decision = self.access.decide(request.headers(), peer, service);
        let target = match decision {
            Decision::Unauthorized(refusal) => Err(ApiError::Unauthorized(refusal)),
            Decision::Allowed(_) => route.map_err(ApiError::from).and_then(|route| Target::of(request, route)),
            Decision::Unseen => route
                .map_err(ApiError::from)
                .and_then(|route| Target::of(request, route))
                .and_then(|target| Err(target.absent())),
        };
        (Admission { label, decision }, target)
    }

    /// The response of an answer, counted.
    fn finish(
        &self,
        request: &Request<RequestBody>,
        peer: &Peer,
        admission: Admission,
        answered: Result<Answer, ApiError>,
    ) -> Response<Body> {
        self.access.note(admission.decision, peer);
        let (mut response, cache) = match answered {
            Ok(Answer { response, status }) => {
                if let CacheStatus::Hit { stale_for: 1.. } = status {
                    self.metrics.served_stale(stale_seconds(&status));
                }
                (response, status.as_str())
            }
            Err(error) => (error.into_response(), "error"),
        };
        timing::write(&mut response, cache);
        self.metrics.answered(admission.label, request.method(), cache, response.status());
        self.alternative(request.version(), &mut response);
        response
    }

    /// Tells who came over TCP where HTTP/3 is; in a drain, that it is there no longer.
    fn alternative(&self, version: Version, response: &mut Response<Body>) {
        if version != Version::HTTP_3 {
            let alternative =
                if self.drain.has_begun() { HeaderValue::from_static("clear") } else { self.rendered.alt_svc.clone() };
            response.headers_mut().insert(header::ALT_SVC, alternative);
        }
    }
}

fn only_reading(request: &Request<RequestBody>) -> Result<(), ApiError> {
    matches!(*request.method(), Method::GET | Method::HEAD).then_some(()).ok_or(ApiError::MethodNotAllowed)
}

/// A `GET` that wants the origin asked and the bytes verified again, whatever is held.
fn is_forced(request: &Request<RequestBody>) -> bool {
    let headers = request.headers();
    let no_cache = |value: &HeaderValue| {
        let directives = value.to_str().unwrap_or_default().split(',');
        directives.map(str::trim).any(|directive| directive.eq_ignore_ascii_case("no-cache"))
    };
    request.method() == Method::GET
        && !headers.contains_key(header::IF_NONE_MATCH)
        && !headers.contains_key("available-dictionary")
        && headers.get_all(header::CACHE_CONTROL).iter().any(no_cache)
}

fn revalidate_mode(request: &Request<RequestBody>) -> RevalidateMode {
    if is_forced(request) { RevalidateMode::Forced } else { RevalidateMode::IfStale }
}
