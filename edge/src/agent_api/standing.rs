//! `GET` and `HEAD` of `/v1/services/{service}/heartbeat`: what its origin signed last, byte for byte.

use std::time::Instant;

use http::{HeaderValue, Response, header};
use weir_shared::name::ServiceName;
use weir_shared::process::serve::Body;

use super::error::ApiError;
use super::timing::Waited;
use super::{Answer, Inner};

impl Inner {
    pub(super) async fn standing(&self, service: &ServiceName) -> Result<Answer, ApiError> {
        let begun = Instant::now();
        let found = self.standings.find(service).await;
        let waited = Waited { version: begun.elapsed(), blob: None };
        let found = found.map_err(|error| ApiError::Standing(service.clone(), error))?;
        let bytes = found.bytes.ok_or_else(|| ApiError::NotSigned(service.clone()))?;
        let mut response = Response::new(Body::Full(bytes));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        self.rendered.came_about(headers, found.age, &found.status);
        Ok(Answer { response, status: found.status }.after(waited))
    }
}
