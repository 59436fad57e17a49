//! `/v1/services/{service}`, `/v1/services/{service}/versions` and `/v1/services/{service}/versions/{digest}`: descriptors byte
//! for byte.

use http::{HeaderValue, Request, Response, StatusCode, header};
use weir_cache::CACHE_STATUS;
use weir_protocol::conditional::if_none_match_tag;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::request_id::RequestId;
use weir_runtime::serve::{Body, RequestBody};

use super::{Answer, Inner};
use crate::api_error::ApiError;
use crate::catalog::{Listing, LookupError, LookupResult, MIN_LIST_INTERVAL};
use crate::request_headers::revalidate_mode;

impl Inner {
    pub(super) async fn current_descriptor(&self, request: &Request<RequestBody>, service: &ServiceName) -> Answer {
        let request_id = RequestId::of(request.headers());
        let found = self.lookup.find(service, revalidate_mode(request), request_id.as_ref()).await;
        let found = found.map_err(|error| ApiError::Lookup(service.clone(), error))?;
        Ok(self.descriptor(request, &found))
    }

    pub(super) async fn version_descriptor(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
        digest: &TarballDigest,
    ) -> Answer {
        let (mode, request_id) = (revalidate_mode(request), RequestId::of(request.headers()));
        let found = self.lookup.find_version(service, digest, mode, request_id.as_ref()).await;
        let found = found.map_err(|error| match error {
            LookupError::Absent => ApiError::NoSuchVersion(service.clone(), *digest),
            error => ApiError::Lookup(service.clone(), error),
        })?;
        Ok(self.descriptor(request, &found))
    }

    /// The list of all versions. It is requested again for each edge that asks, at most once a second.
    pub(super) async fn versions(&self, request: &Request<RequestBody>, service: &ServiceName) -> Answer {
        let request_id = RequestId::of(request.headers());
        let listing = self.lookup.versions(service, MIN_LIST_INTERVAL, request_id.as_ref()).await;
        let failed = |error| ApiError::Lookup(service.clone(), error);
        let Listing { list, status, failure } = listing.map_err(failed)?;
        let list = list.ok_or_else(|| failed(failure.unwrap_or(LookupError::Absent)))?;
        let mut response = Response::new(Body::Full(list.bytes.clone()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::AGE, HeaderValue::from(self.lookup.list_age(&list).as_secs()));
        headers.insert(CACHE_STATUS, self.cache_status(&status, None));
        Ok(response)
    }

    fn descriptor(&self, request: &Request<RequestBody>, found: &LookupResult) -> Response<Body> {
        let tag = &found.version.values.descriptor_tag;
        let asked = request.headers().get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let mut response = Response::new(Body::Empty);
        if asked.into_iter().any(|asked| if_none_match_tag(asked, &tag.text)) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            let bytes = found.version.descriptor().bytes().clone();
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
            *response.body_mut() = Body::Full(bytes);
        }
        let headers = response.headers_mut();
        headers.insert(header::ETAG, tag.value.clone());
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::AGE, HeaderValue::from(found.age.as_secs()));
        headers.insert(CACHE_STATUS, self.cache_status(&found.status, None));
        response
    }
}
