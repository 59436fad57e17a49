//! `GET` and `HEAD` of `/v1/services/{service}`: the origin's descriptor byte for byte, with the revision status added.

use std::time::Instant;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use weir_protocol::conditional::if_none_match_tag;
use weir_protocol::name::ServiceName;
use weir_protocol::request_id::RequestId;
use weir_runtime::serve::{Body, Peer, RequestBody};

use super::headers::CacheLifetime;
use super::preconditions::if_match_holds;
use super::revision_status::with_revision_status;
use super::timing::Timing;
use super::{ApiResponse, ReadContext};
use crate::api_error::ApiError;
use crate::request_headers::{joined, revalidate_mode};

impl ReadContext {
    pub(super) async fn descriptor(
        &self,
        request: &Request<RequestBody>,
        peer: &Peer,
        service: &ServiceName,
    ) -> Result<ApiResponse, ApiError> {
        let (started, request_id) = (Instant::now(), RequestId::of(request.headers()));
        let found = self.lookup.find(service, revalidate_mode(request), request_id.as_ref()).await;
        let timing = Timing { version: started.elapsed(), body: None };
        let found = found.map_err(|error| ApiError::Lookup(service.clone(), error))?;
        let found = self.of_client(found, request, peer);
        let (bytes, tag) = (found.version.descriptor().bytes(), &found.version.values.descriptor_tag.text);
        let (bytes, tag) = match self.lookup.revision_status(&found) {
            Some(seen) => with_revision_status(bytes, tag, &seen),
            None => (bytes.clone(), tag.clone()),
        };
        if !if_match_holds(request.headers(), &tag) {
            return Err(ApiError::PreconditionFailed);
        }
        let if_none_match = joined(request.headers(), &header::IF_NONE_MATCH);
        let not_modified = if_none_match.is_some_and(|if_none_match| if_none_match_tag(&if_none_match, &tag));
        let mut response = Response::new(Body::Empty);
        let headers = response.headers_mut();
        headers.insert(header::ETAG, HeaderValue::try_from(tag).expect("digits are visible ASCII"));
        self.common_headers.caching(headers, &found, &found.status, CacheLifetime::Current);
        if not_modified {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *response.body_mut() = Body::Full(bytes);
        }
        let answer = ApiResponse { response, status: found.status, tier: None };
        Ok(if request.method() == Method::GET { answer.after(timing) } else { answer })
    }
}
