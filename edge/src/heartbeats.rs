//! Signed freshness statements: requested of origins for all agents together, and passed on unchanged.
//!
//! A statement is kept for [`MAX_AGE`]. Whoever wants one meanwhile shares it, or the request that is under way.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use http::{HeaderValue, Request, Response, header};
use prometheus::{IntCounterVec, Registry};
use tokio::sync::oneshot;
use weir_cache::OriginId;
use weir_cache::clock::{Clock, Moment};
use weir_protocol::freshness::{
    Freshness, HeartbeatAnswer, HeartbeatRequest, MAX_REQUEST_BYTES, MAX_SERVICES, SignedFreshness,
};
use weir_protocol::name::ServiceName;
use weir_runtime::bounds::Bound;
use weir_runtime::metric_families;
use weir_runtime::serve::{Body, RequestBody};
use weir_runtime::shutdown::Drain;

use crate::api_error::ApiError;
use crate::catalog::Catalog;
use crate::origin_client::Origins;

/// How long a statement is passed on, from the request to the origin.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The most services with a statement. Beyond it none is given for further ones.
const MAX_CACHED: usize = 20_000;

metric_families! {
    /// The families of statements.
    pub(crate) struct HeartbeatFamilies {
        /// Freshness statements that agents, other edges and the edge itself requested. `shared`: another request had already fetched them.
        /// `absent`: the origin provides none, or too many services were requested.
        statements: IntCounterVec = "weir_edge_freshness_statements_total" { result: ["fetched", "shared", "absent"] };
    }
}

/// The statements that one request to an origin brings.
type Batch = Shared<BoxFuture<'static, Arc<BTreeMap<ServiceName, SignedFreshness>>>>;

/// Statements of freshness. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Heartbeats {
    catalog: Arc<Catalog>,
    origins: Arc<Origins>,
    requested: Arc<Mutex<HashMap<ServiceName, (Moment, Batch)>>>,
    metrics: HeartbeatFamilies,
    clock: Clock,
    drain: Drain,
}

impl Heartbeats {
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        origins: Arc<Origins>,
        registry: &Registry,
        clock: Clock,
        drain: &Drain,
    ) -> prometheus::Result<Self> {
        let metrics = HeartbeatFamilies::register(registry)?;
        Ok(Self { catalog, origins, requested: Arc::default(), metrics, clock, drain: drain.clone() })
    }

    /// The use of the cache.
    pub(crate) fn bound(&self) -> Bound {
        ("freshness_statements", self.requested().len() as u64, MAX_CACHED as u64)
    }

    /// Answers a request of an agent or another edge: the statements, unchanged, of services that exist and that the client
    /// may read. The others are absent, whatever the reason.
    ///
    /// # Errors
    /// The body is no request for statements.
    pub(crate) async fn answer(
        &self,
        request: &mut Request<RequestBody>,
        may_read: impl Fn(&ServiceName) -> bool,
    ) -> Result<Response<Body>, ApiError> {
        let body = std::mem::replace(request.body_mut(), RequestBody::Empty).read(MAX_REQUEST_BYTES).await?;
        let wanted = HeartbeatRequest::parse(&body).map_err(|error| ApiError::Malformed(error.to_string()))?;
        let mut services = wanted.services;
        services.retain(may_read);
        let answer = HeartbeatAnswer { services: self.of(services).await };
        let mut response = Response::new(Body::from(answer.to_json()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    /// The statements of staged versions of these services, unverified: the edge has no keys of origins.
    pub(crate) async fn of_staged(&self, services: &BTreeSet<ServiceName>) -> Vec<Freshness> {
        let mut found = Vec::new();
        let all: Vec<_> = services.iter().cloned().collect();
        for part in all.chunks(MAX_SERVICES) {
            let statements = self.of(part.iter().cloned().collect()).await.into_iter();
            found.extend(statements.filter_map(|signed| Freshness::unverified(signed.staged.as_ref()?)));
        }
        found
    }

    /// The next statement of a service is a new one.
    pub(crate) fn forget(&self, service: &ServiceName) {
        self.requested().remove(service);
    }

    /// The statements of these services, sorted by name, as far as their origins give one.
    async fn of(&self, services: BTreeSet<ServiceName>) -> Vec<SignedFreshness> {
        let (batches, missing) = self.batches(&services);
        let count = |result, number: usize| self.metrics.statements.with_label_values(&[result]).inc_by(number as u64);
        let mut found = Vec::new();
        for (service, batch) in batches {
            found.extend(batch.await.get(&service).cloned());
        }
        let fetched = found.iter().filter(|signed| missing.contains(&signed.service)).count();
        count("fetched", fetched);
        count("shared", found.len() - fetched);
        count("absent", services.len() - found.len());
        found
    }

    /// For each service the batch that has its statement. Begins a request to each origin of those that were `missing`, which
    /// are returned too.
    fn batches(&self, services: &BTreeSet<ServiceName>) -> (BTreeMap<ServiceName, Batch>, BTreeSet<ServiceName>) {
        let now = self.clock.now();
        let mut requested = self.requested();
        let is_fresh = |at: Moment| now.since(at) < MAX_AGE;
        let mut missing = BTreeMap::<OriginId, BTreeSet<ServiceName>>::new();
        for service in services {
            if !requested.get(service).is_some_and(|(at, _)| is_fresh(*at))
                // What the catalog does not have is never looked up: agents choose the names.
                && let Some(owner) = self.catalog.get(service).filter(|entry| entry.version.is_some()).and_then(|entry| entry.origin)
            {
                missing.entry(owner).or_default().insert(service.clone());
            }
        }
        let count: usize = missing.values().map(BTreeSet::len).sum();
        if requested.len() + count > MAX_CACHED {
            requested.retain(|_, (at, _)| is_fresh(*at));
        }
        let mut begun = BTreeSet::new();
        for (owner, services) in missing {
            if requested.len() + services.len() > MAX_CACHED {
                continue;
            }
            let batch = self.begin(owner, services.clone());
            for service in services {
                requested.insert(service.clone(), (now, batch.clone()));
                begun.insert(service);
            }
        }
        let batch_of = |service: &ServiceName| {
            let (_, batch) = requested.get(service).filter(|(at, _)| is_fresh(*at))?;
            Some((service.clone(), batch.clone()))
        };
        (services.iter().filter_map(batch_of).collect(), begun)
    }

    /// Requests statements of an origin, whoever waits.
    fn begin(&self, owner: OriginId, services: BTreeSet<ServiceName>) -> Batch {
        let (sender, received) = oneshot::channel();
        let (origins, draining) = (self.origins.clone(), self.drain.clone());
        self.drain.spawn(async move {
            let answered = tokio::select! {
                answered = origins.heartbeats(owner, services) => answered,
                () = draining.begun() => return,
            };
            let statements = answered.unwrap_or_else(|error| {
                tracing::debug!(%error, "an origin provides no freshness statements");
                Vec::new()
            });
            let by_name = statements.into_iter().map(|signed| (signed.service.clone(), signed)).collect();
            // Nobody may wait any longer.
            let _ = sender.send(Arc::new(by_name));
        });
        received.map(Result::unwrap_or_default).boxed().shared()
    }

    fn requested(&self) -> std::sync::MutexGuard<'_, HashMap<ServiceName, (Moment, Batch)>> {
        self.requested.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
