//! The batch poll: `GET` and `HEAD` of `/v1/agents/self/services`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use http::{HeaderValue, Request, Response, StatusCode, header};
use weir_protocol::conditional::if_none_match_tag;
use weir_protocol::labels::Labels;
use weir_protocol::request_id::RequestId;
use weir_runtime::serve::{Body, RequestBody};

use super::rows::{Following, Polled, Row, Rows};
use super::{Inner, Parameters};
use crate::access::Agent;
use crate::api_error::ApiError;
use crate::catalog::{LookupError, RevalidateMode};
use crate::request_headers::{is_forced, joined, revalidate_mode};

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
        let (rows, age) =
            self.current(&following, revalidate_mode(request), RequestId::of(request.headers()).as_ref()).await?;
        let labels = self.labels_of(agent);
        let rows = self.variants.of(&following, rows, &agent.name, || labels.clone());
        let rows = rows.map_err(|error| ApiError::TooManyServices(error.to_string()))?;
        Ok(response(request, &rows, &labels, age))
    }

    /// Answers a poll that finds what the last one found, as most do. Does no I/O, and looks up no service.
    pub(super) fn unchanged_batch_poll(&self, request: &Request<RequestBody>, agent: &Agent) -> Option<Response<Body>> {
        if is_forced(request) {
            return None;
        }
        let parameters = Parameters::parse(request.uri().query().unwrap_or_default(), false).ok()?;
        let following = self.groups.known_following(&self.groups.known(agent, &parameters.wanted)?)?;
        let (rows, age) = self.unchanged(&following)?;
        let labels = self.labels_of(agent);
        let rows = self.variants.of(&following, rows, &agent.name, || labels.clone()).ok()?;
        Some(response(request, &rows, &labels, age))
    }

    /// The rows of the last poll and the age of the oldest, if all that it found is still in the catalog and fresh.
    fn unchanged(&self, following: &Following) -> Option<(Arc<Rows>, Duration)> {
        let (polled, now) = (following.polled()?, self.catalog.clock().now());
        let mut oldest = Duration::ZERO;
        for entry in &polled.entries {
            oldest = oldest.max(self.lookup.fresh_age(entry, now).filter(|_| !entry.is_replaced())?);
        }
        Some((polled.rows.clone(), oldest))
    }

    /// The rows by the freshness policy, and the age of the oldest.
    async fn current(
        &self,
        following: &Following,
        mode: RevalidateMode,
        request_id: Option<&RequestId>,
    ) -> Result<(Arc<Rows>, Duration), ApiError> {
        let (services, now) = (&following.services, self.catalog.clock().now());
        let mut oldest = Duration::ZERO;
        let (mut states, mut entries) = (Vec::with_capacity(services.len()), Vec::with_capacity(services.len()));
        let mut missing = Vec::new();
        for (index, service) in services.iter().enumerate() {
            let entry = self.catalog.get(service).filter(|_| mode == RevalidateMode::IfStale);
            let fresh =
                entry.and_then(|entry| Some((entry.version.clone()?, self.lookup.fresh_age(&entry, now)?, entry)));
            states.push(match fresh {
                Some((version, age, entry)) => {
                    oldest = oldest.max(age);
                    entries.push(entry);
                    Row::Current(version)
                }
                None => {
                    missing.push(index);
                    Row::NotPublished
                }
            });
        }
        let find = |index: usize| async move { (index, self.lookup.find(&services[index], mode, request_id).await) };
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
        let rows = following.rows(states).map_err(|error| ApiError::TooManyServices(error.to_string()))?;
        if entries.len() == services.len() {
            following.set_polled(Polled { entries, rows: rows.clone() });
        }
        Ok((rows, oldest))
    }
}

/// `304` if the client has these rows and labels.
fn response(request: &Request<RequestBody>, rows: &Rows, labels: &Labels, age: Duration) -> Response<Body> {
    let etag = match labels.is_empty() {
        true => rows.etag.clone(),
        false => {
            HeaderValue::try_from(format!("\"{}\"", rows.tag_with(labels))).expect("quoted digits are visible ASCII")
        }
    };
    let if_none_match = joined(request.headers(), &header::IF_NONE_MATCH);
    let mut response = Response::new(Body::Empty);
    if if_none_match.is_some_and(|tags| if_none_match_tag(&tags, etag.to_str().unwrap_or_default())) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        *response.body_mut() = Body::Full(rows.body_with(labels));
    }
    let headers = response.headers_mut();
    headers.insert(header::ETAG, etag);
    headers.insert(header::AGE, HeaderValue::from(age.as_secs()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
