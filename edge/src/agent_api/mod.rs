//! Answers agents: one handler for HTTP/1.1, 2 and 3.

mod conditions;
mod descriptor;
mod error;
mod gzip;
mod headers;
mod tarball;
mod timing;

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, Version, header};
use weir_shared::cache_status::CacheStatus;
use weir_shared::name::NodeName;
use weir_shared::process::serve::{Body, Handler, Peer, RequestBody};
use weir_shared::process::shutdown::Drain;
use weir_shared::route::Route;

use self::error::ApiError;
use self::headers::Rendered;
use self::tarball::Which;
use self::timing::Waited;
use crate::access::{Access, Decision};
use crate::blob_cache::BlobCache;
use crate::metrics::ApiMetrics;
use crate::service_table::{Demand, Gzips, Lookup};

/// The handler.
#[derive(Clone)]
pub(crate) struct AgentApi {
    inner: Arc<Inner>,
}

/// What answers are made from.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) lookup: Lookup,
    pub(crate) gzips: Gzips,
    pub(crate) blobs: BlobCache,
}

struct Inner {
    lookup: Lookup,
    gzips: Gzips,
    blobs: BlobCache,
    access: Access,
    metrics: ApiMetrics,
    rendered: Rendered,
    drain: Drain,
}

/// Whether the reader may see the service that it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    /// It may.
    Seen,
    /// It may not: for this reader there is no such service.
    Unseen,
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
        let Sources { lookup, gzips, blobs } = sources;
        Self { inner: Arc::new(Inner { lookup, gzips, blobs, access, metrics, rendered, drain: drain.clone() }) }
    }
}

impl Handler for AgentApi {
    async fn handle(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        let api = &*self.inner;
        let route = Route::parse(request.uri().path());
        let label = route.as_ref().map_or("unknown", Route::label);
        // Before anything is looked up, and before anything is said of the path.
        let service = route.as_ref().ok().and_then(Route::service);
        let answered = match (api.access.decide(request.headers(), &peer, service), route) {
            (Decision::Unauthorized(refusal), _) => Err(ApiError::Unauthorized(refusal)),
            (_, Err(error)) => Err(error.into()),
            (Decision::Allowed(_), Ok(route)) => api.answer(&request, route, Sight::Seen).await,
            (Decision::Unseen, Ok(route)) => api.answer(&request, route, Sight::Unseen).await,
        };
        let (mut response, cache) = match answered {
            Ok(Answer { response, status }) => {
                if let CacheStatus::Hit { stale_for: 1.. } = status {
                    api.metrics.served_stale(stale_seconds(&status));
                }
                (response, status.as_str())
            }
            Err(error) => (error.into_response(), "error"),
        };
        timing::write(&mut response, cache);
        api.metrics.answered(label, request.method(), cache, response.status());
        api.alternative(request.version(), &mut response);
        response
    }
}

fn stale_seconds(status: &CacheStatus) -> u64 {
    match status {
        CacheStatus::Hit { stale_for } => *stale_for,
        CacheStatus::Forwarded { .. } => 0,
    }
}

impl Inner {
    async fn answer(&self, request: &Request<RequestBody>, route: Route, sight: Sight) -> Result<Answer, ApiError> {
        let which = match route {
            Route::Service(service) => {
                only_reading(request)?;
                if sight == Sight::Unseen {
                    return Err(Which::Current(service).absent());
                }
                return Box::pin(self.descriptor(request, &service)).await;
            }
            Route::Tarball(service) => Which::Current(service),
            Route::TarballVersion(service, digest) => Which::Version(service, digest),
            // These are an origin's.
            Route::Version(..) | Route::Gzip(..) | Route::Blob(_) | Route::Pieces(_) | Route::Events => {
                return Err(ApiError::NoSuchPath);
            }
        };
        only_reading(request)?;
        if sight == Sight::Unseen {
            return Err(which.absent());
        }
        self.tarball(request, &which).await
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

fn demand(request: &Request<RequestBody>) -> Demand {
    if is_forced(request) { Demand::Forced } else { Demand::Normal }
}
