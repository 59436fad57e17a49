//! `GET` and `HEAD` of `/v1/services/{service}/tarball` and `/v1/services/{service}/tarballs/{digest}`.

use std::ops::Range;
use std::time::{Instant, SystemTime};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use weir_protocol::cache_status::{CacheStatus, Forward};
use weir_protocol::digest::TarballDigest;
use weir_protocol::encoding::Encoding;
use weir_protocol::name::ServiceName;
use weir_protocol::range::content_range;
use weir_runtime::serve::{Body, RequestBody};

use super::conditions::{Decision, decide};
use super::error::ApiError;
use super::headers::{Lifetime, joined};
use super::timing::Waited;
use super::{Answer, Inner, is_forced, revalidate_mode};
use crate::cache::{BodyRequest, FetchError, ReadyBody, Source, Transcoding};
use crate::catalog::{LookupError, LookupResult, RevalidateMode};
use crate::version::Variant;

/// A tarball of a service.
pub(super) enum Which {
    /// The current version.
    Current(ServiceName),
    /// The version with this digest.
    Version(ServiceName, TarballDigest),
}

impl Which {
    pub(super) fn service(&self) -> &ServiceName {
        match self {
            Which::Current(service) | Which::Version(service, _) => service,
        }
    }

    /// The error when it does not exist, or when the client may not see it: both look alike.
    pub(super) fn absent(&self) -> ApiError {
        match self {
            Which::Current(service) => ApiError::Lookup(service.clone(), LookupError::Absent),
            Which::Version(service, digest) => ApiError::NoSuchVersion(service.clone(), *digest),
        }
    }

    pub(super) fn lifetime(&self) -> Lifetime {
        match self {
            Which::Current(_) => Lifetime::Current,
            Which::Version(..) => Lifetime::Immutable,
        }
    }
}

impl Inner {
    /// Answers a request that needs no waiting: a conditional poll of a fresh entry, or a body that starts in memory.
    pub(super) fn tarball_at_once(&self, request: &Request<RequestBody>, which: &Which) -> Option<Answer> {
        let Which::Current(service) = which else { return None };
        if is_forced(request) {
            return None;
        }
        let found = self.lookup.fast_path(service)?;
        let Ok((variant, decision)) = select(request, &found, which, &[]) else { return None };
        let part = match decision {
            Decision::NotModified(tag) => return Some(self.not_modified(&found, which, tag)),
            Decision::Full => None,
            Decision::Part(part) => Some(part),
            Decision::PreconditionFailed | Decision::Unsatisfiable => return None,
        };
        if request.method() == Method::HEAD {
            return Some(self.head(&found, which, &variant));
        }
        if variant.transcoding != Transcoding::Passthrough {
            return None;
        }
        let range = part.clone().unwrap_or(0..variant.stored.size);
        let body = self.cache.open_in_memory(variant.stored, &range, || body_request(&found, &variant))?;
        Some(self.sent(&found, which, &variant, part, body, Source::Memory))
    }

    /// Answers a request that may have to wait.
    pub(super) async fn tarball(&self, request: &Request<RequestBody>, which: &Which) -> Result<Answer, ApiError> {
        let begun = Instant::now();
        let mut found = self.find(which, revalidate_mode(request)).await?;
        let version = begun.elapsed();
        let (mut asked_again, mut without) = (false, Vec::new());
        loop {
            let (variant, decision) = select(request, &found, which, &without)?;
            let part = match decision {
                Decision::NotModified(tag) => return Ok(self.not_modified(&found, which, tag)),
                Decision::PreconditionFailed => return Err(ApiError::PreconditionFailed),
                Decision::Unsatisfiable => {
                    return Err(ApiError::Unsatisfiable { length: variant.length.unwrap_or_default() });
                }
                Decision::Full => None,
                Decision::Part(part) => Some(part),
            };
            if request.method() == Method::HEAD {
                return Ok(self.head(&found, which, &variant));
            }
            let Ok(slot) = self.cache.slot(variant.transcoding) else {
                // The next acceptable coding may need no slot.
                without.push(variant.encoding);
                continue;
            };
            let range = part.clone().unwrap_or(0..variant.length.unwrap_or(found.tar_size()));
            let wanted = body_request(&found, &variant);
            match self.cache.open_body(wanted, variant.transcoding, slot, range, is_forced(request)).await {
                Ok((body, source)) => {
                    let waited = Waited { version, body: Some(begun.elapsed().saturating_sub(version)) };
                    return Ok(self.sent(&found, which, &variant, part, body, source).after(waited));
                }
                // Representations come and go: the descriptor may be out of date.
                Err(FetchError::NotFound) if !asked_again => asked_again = true,
                Err(error) => return Err(ApiError::Body(which.service().clone(), error)),
            }
            found = self.find(which, RevalidateMode::Always).await?;
        }
    }

    pub(super) async fn find(&self, which: &Which, revalidate_mode: RevalidateMode) -> Result<LookupResult, ApiError> {
        let found = match which {
            Which::Current(service) => self.lookup.find(service, revalidate_mode).await,
            Which::Version(service, digest) => self.lookup.find_version(service, digest, revalidate_mode).await,
        };
        found.map_err(|error| match error {
            LookupError::Absent => which.absent(),
            error => ApiError::Lookup(which.service().clone(), error),
        })
    }

    pub(super) fn not_modified(&self, found: &LookupResult, which: &Which, tag: HeaderValue) -> Answer {
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        let headers = response.headers_mut();
        self.rendered.validators(headers, found, &found.status, which.lifetime());
        headers.insert(header::ETAG, tag);
        Answer { response, status: found.status }
    }

    /// Answers a `HEAD` that finds a new version, whose body the client will request next.
    fn head(&self, found: &LookupResult, which: &Which, variant: &Variant<'_>) -> Answer {
        if let Which::Current(_) = which {
            self.cache.prefetch_manifest(variant.stored, || body_request(found, variant));
        }
        self.answer(found, which, variant, found.status, Body::Empty)
    }

    fn answer(
        &self,
        found: &LookupResult,
        which: &Which,
        variant: &Variant<'_>,
        status: CacheStatus,
        body: Body,
    ) -> Answer {
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        self.rendered.validators(headers, found, &status, which.lifetime());
        self.rendered.representation(headers, found, variant);
        if let Some(length) = variant.length {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        Answer { response, status }
    }

    fn sent(
        &self,
        found: &LookupResult,
        which: &Which,
        variant: &Variant<'_>,
        part: Option<Range<u64>>,
        body: ReadyBody,
        source: Source,
    ) -> Answer {
        let published_at = found.version.descriptor().publication().published_at;
        // Clocks may differ.
        let published_ago = SystemTime::now().duration_since(published_at).unwrap_or_default();
        let sent = self.metrics.served(source, published_ago);
        let status = with_body(found.status, source);
        let mut answer = self.answer(found, which, variant, status, body.into_body(sent));
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

fn body_request(found: &LookupResult, variant: &Variant<'_>) -> BodyRequest {
    BodyRequest {
        repository: found.version.descriptor().publication().repository.clone(),
        origin: found.origin,
        stored: variant.stored.clone(),
        tar_size: found.tar_size(),
    }
}

/// Selects the variant, codings in `without` excluded, and evaluates the preconditions.
fn select<'a>(
    request: &Request<RequestBody>,
    found: &'a LookupResult,
    which: &Which,
    without: &[Encoding],
) -> Result<(Variant<'a>, Decision), ApiError> {
    let accept = joined(request.headers(), &header::ACCEPT_ENCODING);
    let variant = found.version.variant(accept.as_deref(), without);
    let variant = variant.ok_or_else(|| match without {
        [] => ApiError::NotAcceptable(which.service().clone()),
        _ => ApiError::NoSlot(which.service().clone()),
    })?;
    let digest = &found.version.descriptor().publication().digest;
    let decision = decide(request.method(), request.headers(), digest, &variant);
    Ok((variant, decision))
}

/// The cache status of a body: the catalog's when it is not a fresh hit, else that of the object cache.
fn with_body(table: CacheStatus, source: Source) -> CacheStatus {
    match (table, source) {
        (table, Source::Memory | Source::Disk) => table,
        (CacheStatus::Forwarded { why, status, stored, collapsed }, Source::Origin { stored: body_stored, .. }) => {
            CacheStatus::Forwarded { why, status, stored: stored || body_stored, collapsed }
        }
        // Staleness is reported whatever the source of the body.
        (CacheStatus::Hit { stale_for: 1.. }, Source::Origin { .. }) => table,
        (CacheStatus::Hit { .. }, Source::Origin { stored, collapsed }) => {
            CacheStatus::Forwarded { why: Forward::Miss, status: Some(200), stored, collapsed }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stale_stays_so_when_its_body_is_fetched() {
        let fetched = Source::Origin { stored: true, collapsed: false };
        let stale = CacheStatus::Hit { stale_for: 7 };
        assert_eq!(with_body(stale, fetched), stale);
        let miss = CacheStatus::Forwarded { why: Forward::Miss, status: Some(200), stored: true, collapsed: false };
        assert_eq!(with_body(CacheStatus::Hit { stale_for: 0 }, fetched), miss);
        assert_eq!(with_body(stale, Source::Memory), stale);
    }
}
