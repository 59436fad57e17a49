//! `GET` and `HEAD` of `/v1/services/{service}/tarball` and `/v1/services/{service}/tarballs/{digest}`.

use std::ops::Range;
use std::time::{Instant, SystemTime};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use weir_shared::cache_status::{CacheStatus, Forward};
use weir_shared::digest::TarballDigest;
use weir_shared::encoding::Encoding;
use weir_shared::name::ServiceName;
use weir_shared::process::serve::{Body, RequestBody};
use weir_shared::range::content_range;

use super::conditions::{Decision, decide};
use super::error::ApiError;
use super::gzip::awaits_gzip;
use super::headers::{Lifetime, joined};
use super::timing::Waited;
use super::{Answer, Inner, demand, is_forced};
use crate::blob_cache::{FillError, Obtained, Source, Wanted};
use crate::service_table::{Demand, Found, GzipError, LookupError};
use crate::version::Form;

/// Which tarball of a service.
pub(super) enum Which {
    /// The one that is current.
    Current(ServiceName),
    /// The one with this digest.
    Version(ServiceName, TarballDigest),
}

impl Which {
    pub(super) fn service(&self) -> &ServiceName {
        match self {
            Which::Current(service) | Which::Version(service, _) => service,
        }
    }

    /// What is said when there is no such thing, or when the reader may not see it: the two look alike.
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
    /// The answer to a poll of what is held and fresh, or to a fetch of what lies in memory besides: without I/O, without
    /// waiting.
    pub(super) fn tarball_at_once(&self, request: &Request<RequestBody>, which: &Which) -> Option<Answer> {
        let Which::Current(service) = which else { return None };
        if is_forced(request) {
            return None;
        }
        let found = self.lookup.at_once(service)?;
        let Ok((form, decision)) = select(request, &found, which, None) else { return None };
        let part = match decision {
            Decision::NotModified(tag) => return Some(self.not_modified(&found, which, tag)),
            // Something better may not be made yet.
            Decision::Full if form.encoding == Encoding::Identity && awaits_gzip(request, &found) => return None,
            Decision::Full => None,
            Decision::Part(part) => Some(part),
            Decision::PreconditionFailed | Decision::Unsatisfiable => return None,
        };
        if request.method() == Method::HEAD {
            return Some(self.whole(&found, which, &form, found.status, Body::Empty));
        }
        if form.is_decoded() {
            return None;
        }
        let obtained = self.blobs.at_hand(&form.stored.digest, form.stored.size)?;
        found.was_read(form.stored.encoding);
        self.sent(&found, which, &form, part, obtained).ok()
    }

    /// The answer to what may have to wait.
    pub(super) async fn tarball(&self, request: &Request<RequestBody>, which: &Which) -> Result<Answer, ApiError> {
        let begun = Instant::now();
        let mut found = self.find(which, demand(request)).await?;
        let version = begun.elapsed();
        let mut asked_again = false;
        let mut no_gzip = None;
        loop {
            let selected = select(request, &found, which, no_gzip.as_ref());
            if no_gzip.is_none() && is_worse_than_gzip(&selected) && awaits_gzip(request, &found) {
                if let Some(answer) = self.without_gzip(request, &found, which)? {
                    return Ok(answer);
                }
                no_gzip = self.make_gzip(&mut found, which).await?;
                continue;
            }
            let (form, decision) = selected?;
            let part = match decision {
                Decision::NotModified(tag) => return Ok(self.not_modified(&found, which, tag)),
                Decision::PreconditionFailed => return Err(ApiError::PreconditionFailed),
                Decision::Unsatisfiable => return Err(ApiError::Unsatisfiable { length: form.length }),
                Decision::Full => None,
                Decision::Part(part) => Some(part),
            };
            if request.method() == Method::HEAD {
                let status = found.status;
                return Ok(self.whole(&found, which, &form, status, Body::Empty));
            }
            let wanted = Wanted { digest: form.stored.digest, size: form.stored.size, origin: found.origin };
            let first = part.as_ref().map_or(0, |part| part.start);
            match self.blobs.get(wanted, first, is_forced(request)).await {
                Ok(obtained) => {
                    found.was_read(form.stored.encoding);
                    let waited = Waited { version, blob: Some(begun.elapsed().saturating_sub(version)) };
                    return Ok(self.sent(&found, which, &form, part, obtained)?.after(waited));
                }
                // The representations of a version come and go: the descriptor that is held may be out of date.
                Err(FillError::NotFound) if !asked_again => asked_again = true,
                Err(error) => return Err(ApiError::Blob(which.service().clone(), error)),
            }
            found = self.find(which, Demand::Again).await?;
        }
    }

    pub(super) async fn find(&self, which: &Which, demand: Demand) -> Result<Found, ApiError> {
        let found = match which {
            Which::Current(service) => self.lookup.find(service, demand).await,
            Which::Version(service, digest) => self.lookup.find_version(service, digest, demand).await,
        };
        found.map_err(|error| match error {
            LookupError::Absent => which.absent(),
            error => ApiError::Lookup(which.service().clone(), error),
        })
    }

    pub(super) fn not_modified(&self, found: &Found, which: &Which, tag: HeaderValue) -> Answer {
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        let headers = response.headers_mut();
        self.rendered.validators(headers, found, &found.status, which.lifetime());
        headers.insert(header::ETAG, tag);
        Answer { response, status: found.status }
    }

    fn whole(&self, found: &Found, which: &Which, form: &Form<'_>, status: CacheStatus, body: Body) -> Answer {
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        self.rendered.validators(headers, found, &status, which.lifetime());
        self.rendered.representation(headers, found, form);
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(form.length));
        Answer { response, status }
    }

    fn sent(
        &self,
        found: &Found,
        which: &Which,
        form: &Form<'_>,
        part: Option<Range<u64>>,
        obtained: Obtained,
    ) -> Result<Answer, ApiError> {
        let status = with_blob(found.status, obtained.source);
        let decoding = if form.is_decoded() {
            Some(self.blobs.decoding().ok_or_else(|| ApiError::NoDecoder(which.service().clone()))?)
        } else {
            None
        };
        let published_at = found.version.descriptor().publication().published_at;
        // A clock that is behind the origin's makes nothing older than it is.
        let published_ago = SystemTime::now().duration_since(published_at).unwrap_or_default();
        let sent = self.metrics.served(obtained.source, published_ago);
        if let Some(decoding) = decoding {
            let body = obtained.decoded(form.stored.size, form.length, decoding, sent.clone());
            return Ok(self.whole(found, which, form, status, Body::stream(body)));
        }
        let range = part.clone().unwrap_or(0..form.length);
        let body = obtained.stored(range, sent);
        let mut answer = self.whole(found, which, form, status, body);
        if let Some(part) = part {
            *answer.response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let headers = answer.response.headers_mut();
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(part.end - part.start));
            let range = HeaderValue::try_from(content_range(&part, form.length)).expect("digits");
            headers.insert(header::CONTENT_RANGE, range);
        }
        Ok(answer)
    }
}

fn is_worse_than_gzip(selected: &Result<(Form<'_>, Decision), ApiError>) -> bool {
    selected.as_ref().map_or(true, |(form, _)| form.encoding == Encoding::Identity)
}

/// The form that the request gets, and how much of it.
fn select<'a>(
    request: &Request<RequestBody>,
    found: &'a Found,
    which: &Which,
    no_gzip: Option<&GzipError>,
) -> Result<(Form<'a>, Decision), ApiError> {
    let accept = joined(request.headers(), &header::ACCEPT_ENCODING);
    let form = found.version.form(accept.as_deref());
    let form = form.ok_or_else(|| match no_gzip {
        Some(reason) => ApiError::NoGzip(which.service().clone(), reason.clone()),
        None => ApiError::NotAcceptable(which.service().clone()),
    })?;
    let digest = &found.version.descriptor().publication().digest;
    let decision = decide(request.method(), request.headers(), digest, &form);
    Ok((form, decision))
}

/// What the cache did for a body: what the table did when a client waited for that, else what the blob's cache did.
fn with_blob(table: CacheStatus, source: Source) -> CacheStatus {
    match (table, source) {
        (table, Source::Memory | Source::Disk) => table,
        (CacheStatus::Forwarded { why, status, stored, collapsed }, Source::Origin { stored: blob_stored, .. }) => {
            CacheStatus::Forwarded { why, status, stored: stored || blob_stored, collapsed }
        }
        // That an answer is stale is told whatever its blob came from, which is counted by itself.
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
    fn what_is_stale_stays_so_when_its_blob_is_fetched() {
        let fetched = Source::Origin { stored: true, collapsed: false };
        let stale = CacheStatus::Hit { stale_for: 7 };
        assert_eq!(with_blob(stale, fetched), stale);
        let miss = CacheStatus::Forwarded { why: Forward::Miss, status: Some(200), stored: true, collapsed: false };
        assert_eq!(with_blob(CacheStatus::Hit { stale_for: 0 }, fetched), miss);
        assert_eq!(with_blob(stale, Source::Memory), stale);
    }
}
