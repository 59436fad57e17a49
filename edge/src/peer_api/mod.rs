//! Answers other edges, for which this edge is a shield, as an origin does: descriptors, objects, the event stream,
//! signed freshness statements, and what their agents run, which it passes on.
//!
//! A client certificate of an edge opens all of it. All but the event stream comes from the catalog and the caches, which
//! query the origins once for all who ask.

mod descriptor;
mod error;
mod events;
mod metrics;
mod object;
mod observed;
mod shards;

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderValue, Method, Request, Response};
use weir_cache::cdn_loop::CdnLoop;
use weir_cache::{Cache, Tier, cache_status};
use weir_protocol::cache_status::CacheStatus;
use weir_protocol::name::NodeName;
use weir_protocol::problem::Problem;
use weir_protocol::route::Route;
use weir_runtime::bounds::Bound;
use weir_runtime::serve::{Body, Peer, RequestBody, RequestFacts};

pub(crate) use self::events::Events;
pub(crate) use self::metrics::PeerMetrics;
pub(crate) use self::observed::Reports;
use self::shards::Shards;
use crate::access::Refusal;
use crate::api_error::ApiError;
use crate::catalog::Lookup;
use crate::heartbeats::Heartbeats;

/// The request handler for edges. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PeerApi {
    inner: Arc<Inner>,
}

struct Inner {
    name: NodeName,
    lookup: Lookup,
    cache: Cache,
    events: Events,
    shards: Shards,
    heartbeats: Heartbeats,
    reports: Reports,
    metrics: PeerMetrics,
}

type Answer = Result<Response<Body>, Problem>;

impl PeerApi {
    pub(crate) fn new(
        name: NodeName,
        lookup: Lookup,
        cache: Cache,
        events: Events,
        heartbeats: Heartbeats,
        reports: Reports,
        metrics: PeerMetrics,
    ) -> Self {
        let shards = Shards::new(events.access.clone());
        Self { inner: Arc::new(Inner { name, lookup, cache, events, shards, heartbeats, reports, metrics }) }
    }

    /// The fill levels of the bounds on event streams, on shards of access lists and on messages that are passed on.
    pub(crate) fn bounds(&self) -> [Bound; 3] {
        [self.inner.events.bound(), self.inner.shards.bound(), self.inner.reports.bound()]
    }

    /// Answers an edge. `passed`: the edges that the request has passed.
    pub(crate) async fn answer(
        &self,
        request: &mut Request<RequestBody>,
        peer: &Peer,
        passed: CdnLoop,
    ) -> Response<Body> {
        let inner = &*self.inner;
        let route = Route::parse(request.uri().path());
        let (label, facts) = (route.as_ref().map_or("unknown", Route::label), RequestFacts::of(&route));
        let answered = match route {
            // Connections outlive certificates.
            _ if peer.has_expired(SystemTime::now()) => Err(ApiError::Unauthorized(Refusal::Expired).into()),
            Err(error) => Err(error.into()),
            Ok(Route::Heartbeats) if *request.method() == Method::POST => {
                inner.heartbeats.answer(request, |_| true).await.map_err(Problem::from)
            }
            Ok(Route::Observed) if *request.method() == Method::POST => inner.reports.pass_on(request, peer).await,
            Ok(Route::Heartbeats | Route::Observed) => Err(ApiError::MethodNotAllowed("POST").into()),
            Ok(_) if !matches!(*request.method(), Method::GET | Method::HEAD) => {
                Err(ApiError::MethodNotAllowed("GET, HEAD").into())
            }
            Ok(Route::Service(service)) => inner.current_descriptor(request, &service).await,
            Ok(Route::Versions(service)) => inner.versions(request, &service).await,
            Ok(Route::Version(service, digest)) => inner.version_descriptor(request, &service, &digest).await,
            Ok(Route::Object(repository, digest)) => inner.object(request, repository, digest, passed).await,
            Ok(Route::AccessShard(digest)) => inner.shards.answer(request.method(), digest).await,
            Ok(Route::Events) => inner.events.begin(request, peer.certificate_ends),
            Ok(_) => Err(ApiError::NoSuchPath.into()),
        };
        let mut response = answered.unwrap_or_else(Problem::into_response);
        let tier = response.extensions_mut().remove::<Tier>();
        let tier = tier.map(|tier| Arc::new(move || tier.as_str()) as Arc<_>);
        response.extensions_mut().insert(RequestFacts { tier, ..facts });
        inner.metrics.answered(label, response.status());
        response
    }
}

impl Inner {
    /// This edge's member of `Cache-Status`, after those of the caches behind it.
    fn cache_status(&self, status: &CacheStatus, upstream: Option<&HeaderValue>) -> HeaderValue {
        cache_status(upstream, &status.header(self.name.as_str()))
    }
}
