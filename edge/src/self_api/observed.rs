//! What an agent runs: `POST /v1/agents/self/observed`.

use http::{Request, Response, StatusCode};
use weir_protocol::observed::{AgentObserved, MAX_MESSAGE_BYTES, Row};
use weir_runtime::serve::{Body, RequestBody};

use super::Inner;
use crate::access::Agent;
use crate::agent_api::ApiError;
use crate::observed::Rejected;

impl Inner {
    pub(super) async fn observe(
        &self,
        request: &mut Request<RequestBody>,
        agent: &Agent,
    ) -> Result<Response<Body>, ApiError> {
        let body = std::mem::replace(request.body_mut(), RequestBody::Empty).read(MAX_MESSAGE_BYTES).await?;
        let mut message = AgentObserved::parse(&body).map_err(|error| ApiError::Malformed(error.to_string()))?;
        let (readable, others) = message.rows.into_iter().partition(|row| agent.may_read(&row.service));
        message.rows = readable;
        // What was readable before would stay as it was.
        let others: Vec<Row> = others;
        self.observed.metrics().dropped_rows.inc_by(others.len() as u64);
        message.removed.extend(others.into_iter().map(|row| row.service));
        let accepted = self.observed.accept(&agent.name, agent.proved, &agent.labels, message);
        accepted.map_err(|rejected| match rejected {
            Rejected::Resync => ApiError::ObservedResync,
            Rejected::Full => ApiError::NoRoomForObserved,
        })?;
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::NO_CONTENT;
        Ok(response)
    }
}
