//! `POST /v1/agents/self/heartbeats`: signed statements of freshness, of the services that the agent may read.

use http::{HeaderValue, Request, Response, header};
use weir_protocol::freshness::{HeartbeatAnswer, HeartbeatRequest, MAX_REQUEST_BYTES};
use weir_runtime::serve::{Body, RequestBody};

use super::Inner;
use crate::access::Agent;
use crate::agent_api::ApiError;

impl Inner {
    /// The statements, unchanged, of services that exist and that the agent may read. The others are absent, whatever the
    /// reason.
    pub(super) async fn heartbeats(
        &self,
        request: &mut Request<RequestBody>,
        agent: &Agent,
    ) -> Result<Response<Body>, ApiError> {
        let body = std::mem::replace(request.body_mut(), RequestBody::Empty).read(MAX_REQUEST_BYTES).await?;
        let wanted = HeartbeatRequest::parse(&body).map_err(|error| ApiError::Malformed(error.to_string()))?;
        let mut services = wanted.services;
        services.retain(|service| agent.may_read(service));
        let answer = HeartbeatAnswer { services: self.heartbeats.of(services).await };
        let mut response = Response::new(Body::from(answer.to_json()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}
