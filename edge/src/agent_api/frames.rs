//! `GET` and `HEAD` of `/v1/services/{service}/tarballs/{digest}/frames`: the manifest of the zstd representation.

use std::time::Instant;

use http::{HeaderValue, Request, Response, StatusCode, header};
use weir_cache::{FillError, Source};
use weir_protocol::conditional::if_none_match_tag;
use weir_protocol::encoding::Encoding;
use weir_runtime::serve::{Body, Peer, RequestBody};

use super::headers::CacheLifetime;
use super::preconditions::if_match_holds;
use super::tarball::{TarballRef, body_cache_status, stored_body};
use super::timing::Timing;
use super::{ApiResponse, ReadContext};
use crate::api_error::ApiError;
use crate::catalog::RevalidateMode;
use crate::request_headers::{is_forced, joined, revalidate_mode};

impl ReadContext {
    pub(super) async fn frames(
        &self,
        request: &Request<RequestBody>,
        peer: &Peer,
        tarball: &TarballRef,
    ) -> Result<ApiResponse, ApiError> {
        let started = Instant::now();
        let mut found = self.find(request, peer, tarball, revalidate_mode(request)).await?;
        let version = started.elapsed();
        let mut retried = false;
        loop {
            let stored = found.version.descriptor().representation(Encoding::Zstd).filter(|stored| stored.frames > 1);
            let stored = stored.ok_or_else(|| ApiError::OneFrame(tarball.service().clone()))?;
            let tag = format!("\"{}\"", stored.digest);
            if !if_match_holds(request.headers(), &tag) {
                return Err(ApiError::PreconditionFailed);
            }
            let if_none_match = joined(request.headers(), &header::IF_NONE_MATCH);
            let is_cached = if_none_match.is_some_and(|tags| if_none_match_tag(&tags, &tag));
            let mut response = Response::new(Body::Empty);
            response.headers_mut().insert(header::ETAG, HeaderValue::try_from(tag).expect("a digest is visible ASCII"));
            if is_cached {
                // The client has the bytes of this digest, whatever is cached here.
                *response.status_mut() = StatusCode::NOT_MODIFIED;
                self.common_headers.caching(response.headers_mut(), &found, &found.status, CacheLifetime::Revalidated);
                return Ok(ApiResponse { response, status: found.status, tier: None });
            }
            match self.cache.manifest(&stored_body(request, &found, stored), is_forced(request)).await {
                Ok((manifest, source)) => {
                    let timing = Timing { version, body: Some(started.elapsed().saturating_sub(version)) };
                    let status = body_cache_status(found.status, &source);
                    let headers = response.headers_mut();
                    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                    self.common_headers.caching(headers, &found, &status, CacheLifetime::Revalidated);
                    if let Source::Origin { upstream: Some(upstream), .. } = &source {
                        self.common_headers.append_to(upstream, headers, &status);
                    }
                    *response.body_mut() = Body::Full(manifest);
                    return Ok(ApiResponse { response, status, tier: None }.after(timing));
                }
                // Representations come and go: the descriptor may be out of date.
                Err(FillError::NotFound) if !retried => retried = true,
                Err(error) => return Err(ApiError::Body(tarball.service().clone(), error)),
            }
            found = self.find(request, peer, tarball, RevalidateMode::Always).await?;
        }
    }
}
