//! The listener of an edge: agents, clients of registries, and other edges that have a certificate.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use weir_cache::cdn_loop::{CDN_LOOP, CdnLoop};
use weir_protocol::name::NodeName;
use weir_protocol::problem::Problem;
use weir_protocol::route::Route;
use weir_runtime::identity::Role;
use weir_runtime::serve::{Body, Handler, Peer, RequestBody, RequestFacts};

use crate::agent_api::AgentApi;
use crate::oci_api::{self, OciApi};
use crate::peer_api::PeerApi;

#[derive(Clone)]
pub(crate) struct EdgeListener {
    pub(crate) name: NodeName,
    pub(crate) agents: AgentApi,
    pub(crate) oci: OciApi,
    /// `None`: no authority of edges is configured.
    pub(crate) peers: Option<PeerApi>,
}

/// What a path says, for the access log.
pub(crate) fn facts_of(path: &str) -> RequestFacts {
    if oci_api::is_path(path) { oci_api::facts_of(path) } else { RequestFacts::of(&Route::parse(path)) }
}

impl EdgeListener {
    /// The API for an edge's request. Tarballs are for agents, whatever their certificates.
    fn of_peer(&self, request: &Request<RequestBody>, peer: &Peer) -> Option<&PeerApi> {
        let peers = self.peers.as_ref()?;
        peer.identity.as_ref().filter(|identity| identity.role == Role::Edge)?;
        let is_tarball = matches!(
            Route::parse(request.uri().path()),
            Ok(Route::Tarball(_) | Route::TarballVersion(..) | Route::TarballFrames(..))
        );
        (!is_tarball).then_some(peers)
    }

    /// The answer to a request that has passed this edge before.
    fn refuse_loop(&self, request: &Request<RequestBody>) -> Option<Response<Body>> {
        // Agents send no such header.
        request.headers().contains_key(CDN_LOOP).then_some(())?;
        CdnLoop::of(request.headers()).contains(&self.name).then(|| {
            let title = "The request has passed this edge before";
            let detail = "Edges name one another as shields in a circle: correct [[shield]] of one of them.";
            Problem::new(StatusCode::LOOP_DETECTED, "loop-detected", title, detail).into_response()
        })
    }
}

impl Handler for EdgeListener {
    fn fast_path(&self, request: &Request<RequestBody>, peer: &Peer) -> Option<Response<Body>> {
        let refused = self.refuse_loop(request);
        if refused.is_some() {
            return refused;
        }
        if oci_api::is_path(request.uri().path()) {
            return self.oci.fast_path(request, peer);
        }
        match self.of_peer(request, peer) {
            Some(_) => None,
            None => self.agents.fast_path(request, peer),
        }
    }

    async fn handle(&self, mut request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        if let Some(refused) = self.refuse_loop(&request) {
            return refused;
        }
        if oci_api::is_path(request.uri().path()) {
            return self.oci.handle(request, peer).await;
        }
        match self.of_peer(&request, &peer) {
            Some(peers) => {
                let passed = CdnLoop::of(request.headers());
                peers.answer(&mut request, &peer, passed).await
            }
            None => self.agents.handle(request, peer).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_both_apis_have_a_route_and_a_service() {
        let blob = format!("/v2/weir/shop/blobs/sha256:{}", "0".repeat(64));
        for (path, route, service) in [
            (&*blob, "oci_blob", Some("shop")),
            ("/v2/weir/shop/manifests/latest", "oci_manifest", Some("shop")),
            ("/v2/_catalog", "unknown", None),
            ("/v1/services/shop/tarball", "tarball", Some("shop")),
            ("/", "unknown", None),
        ] {
            let facts = facts_of(path);
            assert_eq!(
                (facts.route, facts.service),
                (Some(route), service.map(|name| name.parse().unwrap())),
                "{path}"
            );
        }
    }
}
