//! `GET` and `HEAD` of `/v2/weir/{service}/blobs/{digest}`.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use weir_cache::{BodyRequest, FillError, ReadyBody, Source, Transcoding};
use weir_protocol::cache_status::CacheStatus;
use weir_protocol::conditional::if_none_match_tag;
use weir_protocol::digest::Sha256;
use weir_protocol::name::ServiceName;
use weir_protocol::oci::{EMPTY_CONFIG, OciBlob};
use weir_protocol::range::content_range;
use weir_protocol::request_id::RequestId;
use weir_runtime::serve::RequestBody;

use super::error::OciError;
use super::{By, Named, OciApi};
use crate::agent_api::{ApiResponse, CacheLifetime, ResponseKind, Timing, body_cache_status, evaluate_tag};
use crate::api_error::ApiError;
use crate::catalog::{LookupResult, RevalidateMode};
use crate::request_headers::is_forced;
use crate::version::{EntityTag, Version};

static EMPTY_CONFIG_DIGEST: LazyLock<Sha256> = LazyLock::new(|| Sha256::of(EMPTY_CONFIG));

/// A blob of a version.
enum Blob<'v> {
    /// It is the empty config, or belongs to what is attached to the manifest.
    InMemory(Bytes),
    Stored(&'v OciBlob),
}

impl<'v> Blob<'v> {
    fn of(version: &'v Version, sha256: &Sha256) -> Option<Self> {
        let form = version.descriptor().oci()?;
        if let Some(stored) = form.blob(sha256) {
            return Some(Self::Stored(stored));
        }
        if *sha256 == *EMPTY_CONFIG_DIGEST {
            return Some(Self::InMemory(Bytes::from_static(EMPTY_CONFIG)));
        }
        version.attached().iter().find_map(|attached| attached.blob(sha256)).cloned().map(Self::InMemory)
    }

    fn size(&self) -> u64 {
        match self {
            Self::InMemory(bytes) => bytes.len() as u64,
            Self::Stored(blob) => blob.size,
        }
    }
}

/// What is known of a response before its body is opened.
enum Begun {
    /// It has none.
    Whole(ApiResponse),
    Body(Part),
}

/// The bytes of a blob that are sent, and whether the client asked for a part.
struct Part {
    range: Range<u64>,
    is_part: bool,
}

impl OciApi {
    /// Answers a request that needs no waiting: a body that starts in memory.
    pub(super) fn blob_fast_path(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
        sha256: &Sha256,
    ) -> Option<ApiResponse> {
        let found = self.in_force(request, service, By::Digest, |version| Blob::of(version, sha256).is_some())?;
        let blob = Blob::of(&found.version, sha256)?;
        let wanted = match self.begin(request, &found, &blob, sha256).ok()? {
            Begun::Whole(answer) => return Some(answer),
            Begun::Body(wanted) => wanted,
        };
        let ready = match blob {
            Blob::InMemory(ref bytes) => part(bytes, &wanted.range),
            Blob::Stored(blob) => {
                let (stored, _) = found.version.blob(blob);
                self.reads.cache.open_in_memory(&stored, &wanted.range, || body_request(request, &found, blob))?
            }
        };
        Some(self.sent(&found, &blob, sha256, wanted, ready, &Source::Memory))
    }

    pub(super) async fn blob(
        &self,
        request: &Request<RequestBody>,
        service: &ServiceName,
        sha256: &Sha256,
    ) -> Result<ApiResponse, OciError> {
        let (started, has) = (Instant::now(), |version: &Version| Blob::of(version, sha256).is_some());
        let mut found = self.find(request, service, By::Digest, has).await?;
        let version = started.elapsed();
        let mut retried = false;
        loop {
            let now = found.as_ref().ok_or_else(|| OciError::no_such_blob(service))?;
            let blob = Blob::of(&now.version, sha256).ok_or_else(|| OciError::no_such_blob(service))?;
            let wanted = match self.begin(request, now, &blob, sha256)? {
                Begun::Whole(answer) => return Ok(answer),
                Begun::Body(wanted) => wanted,
            };
            let (cache, range) = (&self.reads.cache, wanted.range.clone());
            let opened = match blob {
                Blob::InMemory(ref bytes) => Ok((part(bytes, &range), Source::Memory)),
                Blob::Stored(blob) => {
                    let body = body_request(request, now, blob);
                    cache.open_body(body, Transcoding::Passthrough, None, range, is_forced(request)).await
                }
            };
            match opened {
                Ok((ready, source)) => {
                    let timing = Timing { version, body: Some(started.elapsed().saturating_sub(version)) };
                    return Ok(self.sent(now, &blob, sha256, wanted, ready, &source).after(timing));
                }
                // A body that was built again is another object: the descriptor may be out of date.
                Err(FillError::NotFound) if !retried => retried = true,
                Err(error) => return Err(ApiError::Body(service.clone(), error).into()),
            }
            found = self.look_up(request, service, By::Digest, has, RevalidateMode::Always).await?;
        }
    }

    /// Evaluates the request, and answers it if the response has no body.
    fn begin(
        &self,
        request: &Request<RequestBody>,
        found: &LookupResult,
        blob: &Blob<'_>,
        sha256: &Sha256,
    ) -> Result<Begun, OciError> {
        let (tag, length) = (tag(sha256), blob.size());
        let none_match = |tags: &str| if_none_match_tag(tags, &tag.text).then_some(Cow::from(&tag.text));
        match evaluate_tag(request.method(), request.headers(), &tag, Some(length), none_match) {
            ResponseKind::PreconditionFailed => Err(ApiError::PreconditionFailed.into()),
            ResponseKind::RangeNotSatisfiable => Err(ApiError::Unsatisfiable { length }.into()),
            ResponseKind::NotModified(_) => Ok(Begun::Whole(self.described(found, found.status, sha256, None))),
            ResponseKind::Full if *request.method() == Method::HEAD => {
                Ok(Begun::Whole(self.described(found, found.status, sha256, Some(length))))
            }
            ResponseKind::Full => Ok(Begun::Body(Part { range: 0..length, is_part: false })),
            ResponseKind::Partial(range) => Ok(Begun::Body(Part { range, is_part: true })),
        }
    }

    /// A response without its body. `length`: of the body; `None`: the client has it.
    fn described(
        &self,
        found: &LookupResult,
        status: CacheStatus,
        sha256: &Sha256,
        length: Option<u64>,
    ) -> ApiResponse {
        let tag = tag(sha256);
        let digest = HeaderValue::from_str(tag.text.trim_matches('"')).expect("a digest is visible ASCII");
        let content = length.map(|length| (&OCTETS, length));
        let mut answer =
            self.respond(found, status, CacheLifetime::Immutable, &Named { digest: &digest, tag: &tag.value, content });
        if length.is_some() {
            answer.response.headers_mut().insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        }
        answer
    }

    fn sent(
        &self,
        found: &LookupResult,
        blob: &Blob<'_>,
        sha256: &Sha256,
        Part { range, is_part }: Part,
        ready: ReadyBody,
        source: &Source,
    ) -> ApiResponse {
        let reads = &self.reads;
        let published_at = found.version.descriptor().publication().published_at;
        // Clocks may differ.
        let published_ago = SystemTime::now().duration_since(published_at).unwrap_or_default();
        let sent = reads.metrics.served(source, None, is_part, published_ago);
        let status = body_cache_status(found.status, source);
        let mut answer = self.described(found, status, sha256, Some(range.end - range.start));
        answer.tier = reads.access_log.wants(StatusCode::OK).then(|| ready.farthest_tier(source));
        *answer.response.body_mut() = ready.into_body(sent);
        if is_part {
            *answer.response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let range = HeaderValue::try_from(content_range(&range, blob.size())).expect("digits");
            answer.response.headers_mut().insert(header::CONTENT_RANGE, range);
        }
        if let Source::Origin { upstream: Some(upstream), .. } = source {
            reads.common_headers.append_to(upstream, answer.response.headers_mut(), &status);
        }
        answer
    }
}

/// The manifest that names a blob says what it is.
static OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

fn tag(sha256: &Sha256) -> EntityTag {
    EntityTag::new(format!("\"sha256:{sha256}\""))
}

fn part(bytes: &Bytes, range: &Range<u64>) -> ReadyBody {
    // The range is within its length.
    let at = |byte: u64| usize::try_from(byte).map_or(bytes.len(), |at| at.min(bytes.len()));
    ReadyBody::Part(bytes.slice(at(range.start)..at(range.end)))
}

fn body_request(request: &Request<RequestBody>, found: &LookupResult, blob: &OciBlob) -> BodyRequest {
    let (stored, tar_size) = found.version.blob(blob);
    BodyRequest {
        repository: found.version.descriptor().publication().repository.clone(),
        origin: found.origin,
        stored,
        tar_size,
        request_id: RequestId::of(request.headers()),
    }
}
