//! The HTTP API of edges: descriptors, retained versions, objects, the event
//! stream, freshness statements, and what agents run. Other origins of the cluster read
//! them too, and have [requests](crate::member_api) of their own. Begin at [`EdgeApi::new`].

mod descriptor;
mod events;
mod heartbeats;
mod object;
mod observed;
mod part_statements;
mod problems;

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use http::{Method, Request, Response};
use tokio::sync::Semaphore;
use weir_protocol::problem::Problem;
use weir_protocol::route::{Route, RouteError};
use weir_publish::{Publisher, Signer};
use weir_runtime::admin;
use weir_runtime::identity::{Identity, Role};
use weir_runtime::serve::{Body, Handler, Peer, RequestBody, RequestFacts};

use crate::catalog::Catalog;
use crate::cluster::{Cluster, Replicas};
use crate::config::LimitsConfig;
use crate::delivery::Deliveries;
use crate::lost_definitions::LostDefinitions;
use crate::member_api::MemberApi;
use crate::member_client;
use crate::metrics::Metrics;
use crate::observed::Observed;
pub(crate) use events::Events;
pub(crate) use part_statements::PartStatements;

/// The most concurrent searches for the version that references a missing object.
const REFERENCE_LOOKUPS: usize = 2;

/// The request handler. Clones are cheap.
#[derive(Clone)]
pub(crate) struct EdgeApi {
    catalog: Arc<Catalog>,
    publisher: Arc<Publisher>,
    signer: Arc<Signer>,
    metrics: Metrics,
    /// Limits the objects in memory.
    object_permits: Arc<Semaphore>,
    reference_lookups: Arc<Semaphore>,
    events: Events,
    lost_definitions: LostDefinitions,
    observed: Observed,
    deliveries: Deliveries,
    /// The composed services without a freshness statement: the part that has none, and why.
    unstated: Arc<Mutex<heartbeats::Unstated>>,
    /// `None`: this origin is the only one.
    cluster: Option<InCluster>,
}

/// What an origin of a cluster also has.
#[derive(Clone)]
pub(crate) struct InCluster {
    pub(crate) cluster: Cluster,
    pub(crate) members: MemberApi,
    pub(crate) replicas: Replicas,
    pub(crate) statements: PartStatements,
}

impl EdgeApi {
    /// Creates the handler of a catalog.
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        publisher: Arc<Publisher>,
        signer: Arc<Signer>,
        metrics: Metrics,
        limits: &LimitsConfig,
        (events, observed): (Events, Observed),
        lost_definitions: LostDefinitions,
    ) -> Self {
        let object_permits = metrics.bounds.semaphore("objects", limits.concurrent_objects);
        let reference_lookups = metrics.bounds.semaphore("reference_lookups", REFERENCE_LOOKUPS);
        let (deliveries, cluster) = (Deliveries::new(metrics.delivery.clone()), None);
        Self {
            catalog,
            publisher,
            signer,
            metrics,
            object_permits,
            reference_lookups,
            events,
            lost_definitions,
            observed,
            deliveries,
            unstated: Arc::default(),
            cluster,
        }
    }

    /// Answers other origins too, and edges for what others own.
    pub(crate) fn in_cluster(self, cluster: InCluster) -> Self {
        Self { cluster: Some(cluster), ..self }
    }

    async fn answer(&self, request: Request<RequestBody>, peer: &Peer) -> Response<Body> {
        let route = Route::parse(request.uri().path());
        if route == Ok(Route::Heartbeats) {
            return self.heartbeats(request).await.unwrap_or_else(Problem::into_response);
        }
        if let Ok(Route::Observed | Route::ObservedVia(_)) = &route {
            let shield = if let Ok(Route::ObservedVia(shield)) = route { Some(shield) } else { None };
            return self.observed(request, peer, shield).await.unwrap_or_else(Problem::into_response);
        }
        let request = &request;
        match route {
            Ok(Route::Service(service)) => {
                let answer = self.current_descriptor(request, &service).await;
                self.counted_descriptor(request, answer)
            }
            Ok(Route::Versions(service)) => {
                let answer = self.versions(&service).await;
                self.counted_descriptor(request, answer)
            }
            Ok(Route::Version(service, digest)) => {
                let answer = self.retained_descriptor(request, &service, &digest).await;
                self.counted_descriptor(request, answer)
            }
            Ok(Route::Object(repository, digest)) => {
                if let Err(failure) = only_reads(request.method()) {
                    return failure.into_response();
                }
                let response = self.object(request, &repository, &digest).await.unwrap_or_else(Problem::into_response);
                self.metrics.object_requests.with_label_values(&[response.status().as_str()]).inc();
                response
            }
            Ok(Route::AccessShard(digest)) => {
                self.access_shard(request, &digest).await.unwrap_or_else(Problem::into_response)
            }
            Ok(Route::Events) => {
                self.events.begin(request, peer.certificate_ends).unwrap_or_else(Problem::into_response)
            }
            // Paths for agents, which only edges serve.
            Ok(Route::Members) if self.cluster.is_some() => {
                self.members(request).unwrap_or_else(Problem::into_response)
            }
            Ok(_) | Err(RouteError::Unknown) => Problem::no_such_path().into_response(),
            Err(RouteError::Malformed(detail)) => Problem::malformed(detail).into_response(),
        }
    }

    /// The origins of the cluster.
    fn members(&self, request: &Request<RequestBody>) -> Result<Response<Body>, Problem> {
        only_reads(request.method())?;
        let members = self.cluster.as_ref().map(|cluster| cluster.cluster.view().members());
        Ok(admin::json(&serde_json::to_value(members).unwrap_or_default()))
    }

    fn counted_descriptor(
        &self,
        request: &Request<RequestBody>,
        answer: Result<Response<Body>, Problem>,
    ) -> Response<Body> {
        let response = only_reads(request.method()).and(answer).unwrap_or_else(Problem::into_response);
        self.metrics.descriptor_requests.with_label_values(&[response.status().as_str()]).inc();
        response
    }
}

impl Handler for EdgeApi {
    async fn handle(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let facts = RequestFacts::of(&Route::parse(request.uri().path()));
        let mut response = match (caller(&peer, SystemTime::now()), &self.cluster) {
            (Err(failure), _) => failure.into_response(),
            (Ok(Identity { role: Role::Edge, .. }), _) => self.answer(request, &peer).await,
            (Ok(Identity { role: Role::Origin, name }), Some(InCluster { members, .. })) => {
                match member_client::Route::parse(&path) {
                    Some(route) => {
                        let mut response = members.answer(route, request, name.clone()).await;
                        response.extensions_mut().insert(RequestFacts { route: Some("member"), ..facts });
                        return response;
                    }
                    None => self.answer(request, &peer).await,
                }
            }
            (Ok(identity), _) => {
                tracing::debug!(address = %peer.address, ?identity, "a client certificate is not that of an edge");
                problems::not_an_edge().into_response()
            }
        };
        response.extensions_mut().insert(facts);
        response
    }
}

/// Whose certificate opened the connection. Connections outlive certificates.
fn caller(peer: &Peer, now: SystemTime) -> Result<&Identity, Problem> {
    if peer.has_expired(now) {
        return Err(problems::unauthorized("The client certificate has expired: connect with a new one."));
    }
    peer.identity.as_ref().ok_or_else(problems::not_an_edge)
}

fn only_reads(method: &Method) -> Result<(), Problem> {
    if matches!(*method, Method::GET | Method::HEAD) { Ok(()) } else { Err(Problem::method_not_allowed("GET, HEAD")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_certificate_that_expires_ends_requests_on_its_open_connection() {
        let now = SystemTime::now();
        for role in [Role::Edge, Role::Origin] {
            let identity = Identity { role, name: "a".parse().unwrap() };
            let ends = now + Duration::from_secs(60);
            let peer =
                Peer { address: ([127, 0, 0, 1], 1).into(), identity: Some(identity), certificate_ends: Some(ends) };
            assert!(caller(&peer, now).is_ok());
            let failure = caller(&peer, ends + Duration::from_secs(1)).unwrap_err();
            assert_eq!(failure.status(), 401, "{role:?}");
        }
    }
}
