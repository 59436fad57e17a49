//! The batch poll: `GET` and `HEAD` of `/v1/agents/self/services`.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use http::{HeaderValue, Request, Response, StatusCode, header};
use weir_protocol::conditional::if_none_match_tag;
use weir_protocol::name::ServiceName;
use weir_runtime::serve::{Body, RequestBody};

use super::rows::Row;
use super::{Inner, Parameters};
use crate::access::Agent;
use crate::agent_api::{ApiError, is_forced, joined};
use crate::catalog::{LookupError, RevalidateMode};

/// The most services of one request about which origins are queried at a time.
const MAX_QUERIES: usize = 32;

impl Inner {
    pub(super) async fn batch_poll(
        &self,
        request: &Request<RequestBody>,
        agent: &Agent,
    ) -> Result<Response<Body>, ApiError> {
        let parameters = Parameters::parse(request.uri().query().unwrap_or_default(), false)?;
        let following = self.following(agent, &parameters.wanted)?;
        let mode = if is_forced(request) { RevalidateMode::Forced } else { RevalidateMode::IfStale };
        let (states, age) = self.current(&following.services, mode).await;
        let rows = following.rows(states).map_err(|error| ApiError::TooManyServices(error.to_string()))?;
        let if_none_match = joined(request.headers(), &header::IF_NONE_MATCH);
        let mut response = Response::new(Body::Empty);
        if if_none_match.is_some_and(|tags| if_none_match_tag(&tags, rows.etag.to_str().unwrap_or_default())) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            *response.body_mut() = Body::Full(rows.body.clone());
        }
        let headers = response.headers_mut();
        headers.insert(header::ETAG, rows.etag.clone());
        headers.insert(header::AGE, HeaderValue::from(age.as_secs()));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(response)
    }

    /// The state of each service by the freshness policy, and the age of the oldest.
    async fn current(&self, services: &[ServiceName], mode: RevalidateMode) -> (Vec<Row>, Duration) {
        let mut oldest = Duration::ZERO;
        let mut states = Vec::with_capacity(services.len());
        let mut missing = Vec::new();
        for (index, service) in services.iter().enumerate() {
            let found = (mode == RevalidateMode::IfStale).then(|| self.lookup.fast_path(service)).flatten();
            states.push(match found {
                Some(found) => {
                    oldest = oldest.max(found.age);
                    Row::Current(found.version)
                }
                None => {
                    missing.push(index);
                    Row::NotPublished
                }
            });
        }
        let find = |index: usize| async move { (index, self.lookup.find(&services[index], mode).await) };
        let mut queries = stream::iter(missing).map(find).buffer_unordered(MAX_QUERIES);
        while let Some((index, found)) = queries.next().await {
            states[index] = match found {
                Ok(found) => {
                    oldest = oldest.max(found.age);
                    Row::Current(found.version)
                }
                Err(LookupError::Absent) => Row::NotPublished,
                // Nothing that is fresh enough: what there is now is not known.
                Err(_) => Row::TooStale,
            };
        }
        (states, oldest)
    }
}
