//! What edges ask an origin: descriptors, retained versions, blobs and their piece lists, and what changes.

mod blob;
mod descriptor;
mod descriptors;
mod events;
mod failure;
mod gzip;
mod heartbeat;
mod piece_body;
mod pieces;

use std::sync::Arc;

use http::{Method, Request, Response};
use tokio::sync::Semaphore;
use weir_shared::process::identity::Role;
use weir_shared::process::serve::{Body, Handler, Peer, RequestBody};
use weir_shared::route::{Route, RouteError};

use crate::catalog::Catalog;
use crate::config::LimitsConfig;
use crate::metrics::Metrics;
use crate::publisher::Publisher;
use crate::signing::Heartbeats;
use descriptors::Descriptors;
pub(crate) use events::Events;
use failure::Failure;
use gzip::Gzips;

/// Answers edges. Cheap to clone.
#[derive(Clone)]
pub(crate) struct EdgeApi {
    catalog: Arc<Catalog>,
    publisher: Arc<Publisher>,
    metrics: Metrics,
    /// Blobs that are verified at a time.
    verifications: Arc<Semaphore>,
    /// Of blobs that are sent.
    descriptors: Descriptors,
    gzips: Gzips,
    events: Events,
    heartbeats: Heartbeats,
}

impl EdgeApi {
    /// The answers from a catalogue, with these bounds.
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        publisher: Arc<Publisher>,
        metrics: Metrics,
        limits: &LimitsConfig,
        events: Events,
        heartbeats: Heartbeats,
    ) -> Self {
        let verifications = metrics.bounds.semaphore("verifications", limits.concurrent_verifications);
        let descriptors = Descriptors::new(&metrics.bounds);
        let turns = metrics.bounds.semaphore("gzips", limits.concurrent_gzips);
        let gzips = Gzips::new(turns, limits.min_free.as_u64());
        Self { catalog, publisher, metrics, verifications, descriptors, gzips, events, heartbeats }
    }

    async fn answer(&self, request: &Request<RequestBody>) -> Response<Body> {
        match Route::parse(request.uri().path()) {
            Ok(Route::Service(service)) => self.counted_descriptor(request, self.current_descriptor(request, &service)),
            Ok(Route::Version(service, digest)) => {
                let answer = self.retained_descriptor(request, &service, &digest).await;
                self.counted_descriptor(request, answer)
            }
            Ok(Route::Blob(digest)) => {
                if let Err(failure) = only_reads(request.method()) {
                    return failure.into_response();
                }
                let response = self.blob(request, &digest).await.unwrap_or_else(Failure::into_response);
                if request.method() == Method::GET {
                    self.metrics.blob_requests.with_label_values(&[response.status().as_str()]).inc();
                }
                response
            }
            Ok(Route::Pieces(digest)) => {
                if let Err(failure) = only_reads(request.method()) {
                    return failure.into_response();
                }
                let response = self.pieces(request, &digest).await.unwrap_or_else(Failure::into_response);
                self.metrics.piece_list_requests.with_label_values(&[response.status().as_str()]).inc();
                response
            }
            Ok(Route::Gzip(service, digest)) => {
                self.gzip(request, &service, &digest).await.unwrap_or_else(Failure::into_response)
            }
            Ok(Route::Standing(service)) => self.standing(request, &service).unwrap_or_else(Failure::into_response),
            Ok(Route::Heartbeat) => self.heartbeat(request).unwrap_or_else(Failure::into_response),
            Ok(Route::Events) => self.events.begin(request).unwrap_or_else(Failure::into_response),
            // Agents' paths: an origin has none of them.
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
            tracing::debug!(address = %peer.address, identity = ?peer.identity, "a certificate that is no edge's");
            return Failure::NotAnEdge.into_response();
        }
        self.answer(&request).await
    }
}

fn only_reads(method: &Method) -> Result<(), Failure> {
    if matches!(*method, Method::GET | Method::HEAD) { Ok(()) } else { Err(Failure::MethodNotAllowed) }
}
