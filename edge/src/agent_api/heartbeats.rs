//! `POST /v1/agents/self/heartbeats`: signed statements of freshness, of the services that the client may read.

use http::{HeaderValue, Request, Response, header};
use weir_protocol::cache_status::CacheStatus;
use weir_protocol::freshness::{HeartbeatAnswer, HeartbeatRequest, MAX_REQUEST_BYTES};
use weir_runtime::serve::{Body, Peer, RequestBody, RequestBodyError};

use super::error::ApiError;
use super::{ApiResponse, Inner};
use crate::access::{AccessDecision, AuthMethod};

impl Inner {
    /// The statements, unchanged, of services that exist and that the client may read. The others are absent, whatever the
    /// reason.
    pub(super) async fn heartbeats(
        &self,
        request: &Request<RequestBody>,
        body: RequestBody,
        peer: &Peer,
        decision: AccessDecision,
    ) -> Result<ApiResponse, ApiError> {
        if decision == AccessDecision::Allowed(AuthMethod::None) {
            // There is no `self` for an anonymous client.
            return Err(ApiError::NoSuchPath);
        }
        let body = body.read(MAX_REQUEST_BYTES).await;
        let body = body.map_err(|error: RequestBodyError| ApiError::Malformed(error.to_string()))?;
        let wanted = HeartbeatRequest::parse(&body).map_err(|error| ApiError::Malformed(error.to_string()))?;
        let mut services = wanted.services;
        services.retain(|service| {
            matches!(self.access.decide(request.headers(), peer, Some(service)), AccessDecision::Allowed(_))
        });
        let answer = HeartbeatAnswer { services: self.heartbeats.of(services).await };
        let mut response = Response::new(Body::from(answer.to_json()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(ApiResponse { response, status: CacheStatus::Hit { stale_for: 0 } })
    }
}
