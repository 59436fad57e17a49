//! `/v1/heartbeat` and `/v1/services/{service}/heartbeat`: what the origin signed last, and one service's place in it.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use weir_shared::name::ServiceName;
use weir_shared::process::serve::{Body, RequestBody};

use super::failure::Failure;
use super::{EdgeApi, only_reads};

impl EdgeApi {
    /// The last signed heartbeat.
    pub(super) fn heartbeat(&self, request: &Request<RequestBody>) -> Result<Response<Body>, Failure> {
        only_reads(request.method())?;
        let signed = self.heartbeats.borrow().clone().ok_or(Failure::NotSigned)?;
        Ok(json(signed.envelope()))
    }

    /// The last signed heartbeat with one service's place in it.
    pub(super) fn standing(
        &self,
        request: &Request<RequestBody>,
        name: &ServiceName,
    ) -> Result<Response<Body>, Failure> {
        only_reads(request.method())?;
        if self.catalog.service(name).is_none() {
            return Err(Failure::NoSuchService(name.clone()));
        }
        let signed = self.heartbeats.borrow().clone().ok_or(Failure::NotSigned)?;
        signed.standing(name).map(json).ok_or(Failure::NotSigned)
    }
}

fn json(bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    *response.body_mut() = Body::from(bytes);
    response
}
