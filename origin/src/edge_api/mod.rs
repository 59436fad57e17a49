//! The HTTP API of edges: descriptors, retained versions, objects and the event stream. Begin at [`EdgeApi::new`].

mod descriptor;
mod events;
mod failure;
mod object;

use std::sync::Arc;

use http::{Method, Request, Response};
use tokio::sync::Semaphore;
use weir_protocol::route::{Route, RouteError};
use weir_runtime::identity::Role;
use weir_runtime::serve::{Body, Handler, Peer, RequestBody};

use crate::catalog::Catalog;
use crate::config::LimitsConfig;
use crate::lost_definitions::LostDefinitions;
use crate::metrics::Metrics;
use crate::publish::Publisher;
pub(crate) use events::Events;
use failure::Failure;

/// The most concurrent searches for the version that references a missing object.
const REFERENCE_LOOKUPS: usize = 2;

/// The request handler. Clones are cheap.
#[derive(Clone)]
pub(crate) struct EdgeApi {
    catalog: Arc<Catalog>,
    publisher: Arc<Publisher>,
    metrics: Metrics,
    /// Limits the objects in memory.
    object_permits: Arc<Semaphore>,
    reference_lookups: Arc<Semaphore>,
    events: Events,
    lost_definitions: LostDefinitions,
}

impl EdgeApi {
    /// Creates the handler of a catalog.
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        publisher: Arc<Publisher>,
        metrics: Metrics,
        limits: &LimitsConfig,
        events: Events,
        lost_definitions: LostDefinitions,
    ) -> Self {
        let object_permits = metrics.bounds.semaphore("objects", limits.concurrent_objects);
        let reference_lookups = metrics.bounds.semaphore("reference_lookups", REFERENCE_LOOKUPS);
        Self { catalog, publisher, metrics, object_permits, reference_lookups, events, lost_definitions }
    }

    async fn answer(&self, request: &Request<RequestBody>) -> Response<Body> {
        match Route::parse(request.uri().path()) {
            Ok(Route::Service(service)) => self.counted_descriptor(request, self.current_descriptor(request, &service)),
            Ok(Route::Version(service, digest)) => {
                let answer = self.retained_descriptor(request, &service, &digest).await;
                self.counted_descriptor(request, answer)
            }
            Ok(Route::Object(repository, digest)) => {
                if let Err(failure) = only_reads(request.method()) {
                    return failure.into_response();
                }
                let response = self.object(request, &repository, &digest).await.unwrap_or_else(Failure::into_response);
                self.metrics.object_requests.with_label_values(&[response.status().as_str()]).inc();
                response
            }
            Ok(Route::Events) => self.events.begin(request).unwrap_or_else(Failure::into_response),
            // Paths for agents, which only edges serve.
            Ok(Route::Tarball(_) | Route::TarballVersion(..)) | Err(RouteError::Unknown) => {
                Failure::NoSuchPath.into_response()
            }
            Err(RouteError::Malformed(detail)) => Failure::Malformed(detail).into_response(),
        }
    }

    fn counted_descriptor(
        &self,
        request: &Request<RequestBody>,
        answer: Result<Response<Body>, Failure>,
    ) -> Response<Body> {
        let response = only_reads(request.method()).and(answer).unwrap_or_else(Failure::into_response);
        self.metrics.descriptor_requests.with_label_values(&[response.status().as_str()]).inc();
        response
    }
}

impl Handler for EdgeApi {
    async fn handle(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        if !peer.identity.as_ref().is_some_and(|identity| identity.role == Role::Edge) {
            tracing::debug!(address = %peer.address, identity = ?peer.identity, "a client certificate is not that of an edge");
            return Failure::NotAnEdge.into_response();
        }
        self.answer(&request).await
    }
}

fn only_reads(method: &Method) -> Result<(), Failure> {
    if matches!(*method, Method::GET | Method::HEAD) { Ok(()) } else { Err(Failure::MethodNotAllowed) }
}
