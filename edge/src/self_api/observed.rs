//! What an agent runs: `POST /v1/agents/self/observed`.

use http::{Request, Response, StatusCode};
use weir_protocol::name::ServiceName;
use weir_protocol::observed::{AgentObserved, MAX_MESSAGE_BYTES, Row};
use weir_runtime::serve::{Body, RequestBody};

use super::Inner;
use super::message_rate::MessageRate;
use crate::access::Agent;
use crate::api_error::ApiError;
use crate::observed::Rejected;

/// Drops rows of services that the agent may not read, as removed: what was readable before would stay as it was. Returns how
/// many.
fn keep_readable(message: &mut AgentObserved, may_read: impl Fn(&ServiceName) -> bool) -> usize {
    let (readable, others): (Vec<Row>, Vec<Row>) =
        std::mem::take(&mut message.rows).into_iter().partition(|row| may_read(&row.service));
    message.rows = readable;
    let dropped = others.len();
    message.removed.extend(others.into_iter().map(|row| row.service));
    dropped
}

impl Inner {
    pub(super) async fn observe(
        &self,
        request: &mut Request<RequestBody>,
        agent: &Agent,
    ) -> Result<Response<Body>, ApiError> {
        let clock = self.catalog.clock();
        let rate = self.message_rates.get_with_by_ref(&agent.name, || MessageRate::new(clock.now()).into());
        if !rate.admits(clock.now()) {
            self.observed.metrics().received("too_many");
            return Err(ApiError::TooManyMessages);
        }
        let body = std::mem::replace(request.body_mut(), RequestBody::Empty).read(MAX_MESSAGE_BYTES).await?;
        let mut message = AgentObserved::parse(&body).map_err(|error| ApiError::Malformed(error.to_string()))?;
        let dropped = keep_readable(&mut message, |service| agent.may_read(service));
        self.observed.metrics().dropped_rows.inc_by(dropped as u64);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_an_agent_may_not_read_count_as_removed() {
        let golden = include_bytes!("../../../shared/protocol/golden/agent/observed.json");
        let mut message = AgentObserved::parse(golden).unwrap();
        assert_eq!(keep_readable(&mut message, |service| service.as_str() == "docs"), 1);
        let rows: Vec<_> = message.rows.iter().map(|row| row.service.as_str()).collect();
        let removed: Vec<_> = message.removed.iter().map(ServiceName::as_str).collect();
        assert_eq!((rows, removed), (vec!["docs"], vec!["old", "shop-prod"]));
    }
}
