//! `GET` and `HEAD` of `/v1/services/{service}/tarball` and `/v1/services/{service}/tarballs/{digest}`.

use std::ops::Range;
use std::time::{Instant, SystemTime};

use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use weir_cache::{BodyRequest, ClientSlot, FillError, ReadyBody, Source, Transcoding};
use weir_protocol::cache_status::{CacheStatus, Forward};
use weir_protocol::dcz::{self, parse_available_dictionary};
use weir_protocol::descriptor::Representation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::encoding::Encoding;
use weir_protocol::name::ServiceName;
use weir_protocol::range::content_range;
use weir_protocol::request_id::RequestId;
use weir_runtime::serve::{Body, Peer, RequestBody};

use super::headers::CacheLifetime;
use super::preconditions::{ResponseKind, evaluate};
use super::timing::Timing;
use super::{ApiResponse, ReadContext};
use crate::api_error::ApiError;
use crate::catalog::{LookupError, LookupResult, RevalidateMode};
use crate::request_headers::{is_forced, joined, revalidate_mode};
use crate::version::{Accepted, Variant};

const AVAILABLE_DICTIONARY: HeaderName = HeaderName::from_static(dcz::AVAILABLE_DICTIONARY);
const USE_AS_DICTIONARY: HeaderName = HeaderName::from_static("use-as-dictionary");

/// A tarball of a service.
pub(super) enum TarballRef {
    /// The current version.
    Current(ServiceName),
    /// The version with this digest.
    Version(ServiceName, TarballDigest),
}

impl TarballRef {
    pub(super) fn service(&self) -> &ServiceName {
        match self {
            TarballRef::Current(service) | TarballRef::Version(service, _) => service,
        }
    }

    /// The error when it does not exist, or when the client may not see it: both look alike.
    pub(super) fn absent(&self) -> ApiError {
        match self {
            TarballRef::Current(service) => ApiError::Lookup(service.clone(), LookupError::Absent),
            TarballRef::Version(service, digest) => ApiError::NoSuchVersion(service.clone(), *digest),
        }
    }

    pub(super) fn lifetime(&self) -> CacheLifetime {
        match self {
            TarballRef::Current(_) => CacheLifetime::Current,
            TarballRef::Version(..) => CacheLifetime::Immutable,
        }
    }
}

impl ReadContext {
    /// Answers a request that needs no waiting: a conditional poll of a fresh entry, or a body that starts in memory.
    pub(super) fn tarball_fast_path(
        &self,
        request: &Request<RequestBody>,
        peer: &Peer,
        tarball: &TarballRef,
    ) -> Option<ApiResponse> {
        let TarballRef::Current(service) = tarball else { return None };
        if is_forced(request) {
            return None;
        }
        let found = self.of_client(self.lookup.fast_path(service)?, request, peer);
        let Ok((variant, kind)) = select(request, &found, tarball, &[]) else { return None };
        let part = match kind {
            ResponseKind::NotModified(tag) => return Some(self.not_modified(&found, tarball, tag)),
            ResponseKind::Full => None,
            ResponseKind::Partial(part) => Some(part),
            ResponseKind::PreconditionFailed | ResponseKind::RangeNotSatisfiable => return None,
        };
        if request.method() == Method::HEAD {
            return Some(self.head(request, &found, tarball, &variant));
        }
        if variant.transcoding != Transcoding::Passthrough {
            return None;
        }
        let range = part.clone().unwrap_or(0..variant.stored.size);
        let body = self.cache.open_in_memory(variant.stored, &range, || body_request(request, &found, &variant))?;
        Some(self.sent(&found, tarball, &variant, part, body, &Source::Memory))
    }

    /// Answers a request that may have to wait.
    pub(super) async fn tarball(
        &self,
        request: &Request<RequestBody>,
        peer: &Peer,
        tarball: &TarballRef,
    ) -> Result<ApiResponse, ApiError> {
        let started = Instant::now();
        let mut found = self.find(request, peer, tarball, revalidate_mode(request)).await?;
        let version = started.elapsed();
        let (mut retried, mut without) = (false, Vec::new());
        loop {
            let (variant, kind) = select(request, &found, tarball, &without)?;
            let part = match kind {
                ResponseKind::NotModified(tag) => return Ok(self.not_modified(&found, tarball, tag)),
                ResponseKind::PreconditionFailed => return Err(ApiError::PreconditionFailed),
                ResponseKind::RangeNotSatisfiable => {
                    return Err(ApiError::Unsatisfiable { length: variant.length.unwrap_or_default() });
                }
                ResponseKind::Full => None,
                ResponseKind::Partial(part) => Some(part),
            };
            if request.method() == Method::HEAD {
                return Ok(self.head(request, &found, tarball, &variant));
            }
            let Ok(slot) = self.slot(variant.transcoding, request, peer) else {
                // The next acceptable coding may need no slot.
                without.push(variant.encoding);
                continue;
            };
            let range = part.clone().unwrap_or(0..variant.length.unwrap_or(found.tar_size()));
            let request_body = body_request(request, &found, &variant);
            match self.cache.open_body(request_body, variant.transcoding, slot, range, is_forced(request)).await {
                Ok((body, source)) => {
                    let timing = Timing { version, body: Some(started.elapsed().saturating_sub(version)) };
                    return Ok(self.sent(&found, tarball, &variant, part, body, &source).after(timing));
                }
                // A delta saves bytes and nothing else depends on it.
                Err(_) if variant.encoding == Encoding::Dcz => {
                    without.push(Encoding::Dcz);
                    continue;
                }
                // Representations come and go: the descriptor may be out of date.
                Err(FillError::NotFound) if !retried => retried = true,
                Err(error) => return Err(ApiError::Body(tarball.service().clone(), error)),
            }
            found = self.find(request, peer, tarball, RevalidateMode::Always).await?;
        }
    }

    /// The slot of transcoding, of which a client takes a share.
    fn slot(
        &self,
        transcoding: Transcoding,
        request: &Request<RequestBody>,
        peer: &Peer,
    ) -> Result<Option<ClientSlot>, FillError> {
        if transcoding == Transcoding::Passthrough {
            return Ok(None);
        }
        let agent = self.access.agent(request.headers(), peer).ok().flatten();
        self.cache.slot(transcoding, agent.as_ref().map(|agent| agent.name.as_str()))
    }

    pub(super) async fn find(
        &self,
        request: &Request<RequestBody>,
        peer: &Peer,
        tarball: &TarballRef,
        revalidate_mode: RevalidateMode,
    ) -> Result<LookupResult, ApiError> {
        let request_id = RequestId::of(request.headers());
        let found = match tarball {
            TarballRef::Current(service) => {
                let found = self.lookup.find(service, revalidate_mode, request_id.as_ref()).await;
                found.map(|found| self.of_client(found, request, peer))
            }
            TarballRef::Version(service, digest) => {
                self.lookup.find_version(service, digest, revalidate_mode, request_id.as_ref()).await
            }
        };
        found.map_err(|error| match error {
            LookupError::Absent => tarball.absent(),
            error => ApiError::Lookup(tarball.service().clone(), error),
        })
    }

    pub(super) fn not_modified(&self, found: &LookupResult, tarball: &TarballRef, tag: HeaderValue) -> ApiResponse {
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        let headers = response.headers_mut();
        self.common_headers.validators(headers, found, &found.status, tarball.lifetime());
        headers.insert(header::ETAG, tag);
        ApiResponse { response, status: found.status, tier: None }
    }

    /// Answers a `HEAD` that finds a new version, whose body the client will request next.
    fn head(
        &self,
        request: &Request<RequestBody>,
        found: &LookupResult,
        tarball: &TarballRef,
        variant: &Variant<'_>,
    ) -> ApiResponse {
        if let TarballRef::Current(_) = tarball {
            self.cache.prefetch_manifest(variant.stored, || body_request(request, found, variant));
        }
        self.answer(found, tarball, variant, found.status, Body::Empty)
    }

    fn answer(
        &self,
        found: &LookupResult,
        tarball: &TarballRef,
        variant: &Variant<'_>,
        status: CacheStatus,
        body: Body,
    ) -> ApiResponse {
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        self.common_headers.validators(headers, found, &status, tarball.lifetime());
        self.common_headers.representation(headers, found, variant);
        if let TarballRef::Version(..) = tarball {
            headers.insert(USE_AS_DICTIONARY, found.version.values.use_as_dictionary.clone());
        }
        if let Some(length) = variant.length {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        ApiResponse { response, status, tier: None }
    }

    fn sent(
        &self,
        found: &LookupResult,
        tarball: &TarballRef,
        variant: &Variant<'_>,
        part: Option<Range<u64>>,
        body: ReadyBody,
        source: &Source,
    ) -> ApiResponse {
        let published_at = found.version.descriptor().publication().published_at;
        // Clocks may differ.
        let published_ago = SystemTime::now().duration_since(published_at).unwrap_or_default();
        let sent = self.metrics.served(source, Some(variant.encoding), part.is_some(), published_ago);
        let status = body_cache_status(found.status, source);
        let tier = self.access_log.wants(StatusCode::OK).then(|| body.farthest_tier(source));
        let mut answer = self.answer(found, tarball, variant, status, body.into_body(sent));
        answer.tier = tier;
        if let Source::Origin { upstream: Some(upstream), .. } = source {
            self.common_headers.append_to(upstream, answer.response.headers_mut(), &status);
        }
        if let Some((part, length)) = part.zip(variant.length) {
            *answer.response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let headers = answer.response.headers_mut();
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(part.end - part.start));
            let range = HeaderValue::try_from(content_range(&part, length)).expect("digits");
            headers.insert(header::CONTENT_RANGE, range);
        }
        answer
    }
}

fn body_request(request: &Request<RequestBody>, found: &LookupResult, variant: &Variant<'_>) -> BodyRequest {
    stored_body(request, found, variant.stored)
}

/// The body of a stored representation.
pub(super) fn stored_body(
    request: &Request<RequestBody>,
    found: &LookupResult,
    stored: &Representation,
) -> BodyRequest {
    BodyRequest {
        repository: found.version.descriptor().publication().repository.clone(),
        origin: found.origin,
        stored: stored.clone(),
        tar_size: found.tar_size(),
        request_id: RequestId::of(request.headers()),
    }
}

/// Selects the variant, codings in `without` excluded, and evaluates the preconditions.
fn select<'a>(
    request: &Request<RequestBody>,
    found: &'a LookupResult,
    tarball: &TarballRef,
    without: &[Encoding],
) -> Result<(Variant<'a>, ResponseKind), ApiError> {
    let headers = request.headers();
    let encoding = joined(headers, &header::ACCEPT_ENCODING);
    let dictionary = joined(headers, &AVAILABLE_DICTIONARY).and_then(|value| parse_available_dictionary(&value));
    let variant = found.version.variant(Accepted { encoding: encoding.as_deref(), dictionary }, without);
    let variant = variant.ok_or_else(|| match without {
        [] => ApiError::NotAcceptable(tarball.service().clone()),
        _ => ApiError::NoSlot(tarball.service().clone()),
    })?;
    let digest = &found.version.descriptor().publication().digest;
    let kind = evaluate(request.method(), request.headers(), digest, &variant);
    Ok((variant, kind))
}

/// The cache status of a body: the catalog's when it is not a fresh hit, else that of the object cache.
pub(crate) fn body_cache_status(table: CacheStatus, source: &Source) -> CacheStatus {
    match (table, source) {
        (table, Source::Memory | Source::Disk) => table,
        (CacheStatus::Forwarded { why, status, stored, collapsed }, Source::Origin { stored: body_stored, .. }) => {
            CacheStatus::Forwarded { why, status, stored: stored || *body_stored, collapsed }
        }
        // Staleness is reported whatever the source of the body.
        (CacheStatus::Hit { stale_for: 1.. }, Source::Origin { .. }) => table,
        (CacheStatus::Hit { .. }, Source::Origin { stored, collapsed, .. }) => {
            let (stored, collapsed) = (*stored, *collapsed);
            CacheStatus::Forwarded { why: Forward::Miss, status: Some(200), stored, collapsed }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_hit_stays_stale_when_its_body_is_fetched() {
        let fetched = Source::Origin { stored: true, collapsed: false, upstream: None };
        let stale = CacheStatus::Hit { stale_for: 7 };
        assert_eq!(body_cache_status(stale, &fetched), stale);
        let miss = CacheStatus::Forwarded { why: Forward::Miss, status: Some(200), stored: true, collapsed: false };
        assert_eq!(body_cache_status(CacheStatus::Hit { stale_for: 0 }, &fetched), miss);
        assert_eq!(body_cache_status(stale, &Source::Memory), stale);
    }
}
