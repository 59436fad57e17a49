//! `/v1/objects/{repository}/{digest}`: an object from the cache, which fetches it once for all edges that ask.

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use weir_cache::cdn_loop::CdnLoop;
use weir_cache::{CACHE_STATUS, Source};
use weir_protocol::cache_status::{CacheStatus, Forward};
use weir_protocol::conditional::if_none_match_tag;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;
use weir_protocol::request_id::RequestId;
use weir_runtime::serve::{Body, RequestBody};

use super::error;
use super::{Answer, Inner};
use crate::request_headers::is_forced;

impl Inner {
    pub(super) async fn object(
        &self,
        request: &Request<RequestBody>,
        repository: RepositoryName,
        digest: ObjectDigest,
        passed: CdnLoop,
    ) -> Answer {
        let etag = format!("\"{digest}\"");
        let asked = request.headers().get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let is_known = asked.into_iter().any(|asked| if_none_match_tag(asked, &etag));
        let mut response = Response::new(Body::Empty);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=31536000, immutable"));
        headers.insert(header::ETAG, HeaderValue::try_from(etag).expect("a digest in quotes is a header value"));
        if is_known {
            // The client has the bytes of this digest, whatever is cached here.
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return Ok(response);
        }
        let request_id = RequestId::of(request.headers());
        let loaded = self.cache.object(repository, digest, passed, request_id, is_forced(request)).await;
        let (bytes, source) = loaded.map_err(|error| error::object(digest, &error))?;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        headers.insert(CACHE_STATUS, self.object_cache_status(&source));
        response.extensions_mut().insert(source.tier());
        if request.method() == Method::GET {
            self.metrics.sent_bytes.inc_by(bytes.len() as u64);
            // Its memory is accounted for until the last byte is sent.
            *response.body_mut() = Body::Full(bytes);
        }
        Ok(response)
    }

    fn object_cache_status(&self, source: &Source) -> HeaderValue {
        match source {
            Source::Memory | Source::Disk => self.cache_status(&CacheStatus::Hit { stale_for: 0 }, None),
            Source::Origin { stored, collapsed, upstream } => {
                let (stored, collapsed) = (*stored, *collapsed);
                let status = CacheStatus::Forwarded { why: Forward::Miss, status: Some(200), stored, collapsed };
                self.cache_status(&status, upstream.as_ref())
            }
        }
    }
}
