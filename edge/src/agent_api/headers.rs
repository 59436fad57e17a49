//! The headers of tarballs, descriptors and blobs, shared by HEAD, GET, 206 and 304.

use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use weir_cache::{CACHE_STATUS, cache_status};
use weir_protocol::cache_status::CacheStatus;
use weir_protocol::encoding::Encoding;
use weir_protocol::name::NodeName;

use crate::catalog::LookupResult;
use crate::version::Variant;

const WEIR_DIGEST: HeaderName = HeaderName::from_static("weir-digest");
const WEIR_GENERATION: HeaderName = HeaderName::from_static("weir-generation");
const WEIR_COMMIT: HeaderName = HeaderName::from_static("weir-commit");
const WEIR_REVISION: HeaderName = HeaderName::from_static("weir-revision");
const WEIR_VERSION: HeaderName = HeaderName::from_static("weir-version");
const UNENCODED_DIGEST: HeaderName = HeaderName::from_static("unencoded-digest");

/// The `ma` of `Alt-Svc` in seconds: a day.
const ALT_SVC_MAX_AGE: u32 = 86_400;

/// The cache lifetime of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheLifetime {
    /// The current version.
    Current,
    /// A version addressed by its digest.
    Immutable,
    /// The frames of a version, which are others after its body was built again.
    Revalidated,
}

/// Header values that are the same in every response of this edge.
pub(crate) struct CommonHeaders {
    name: String,
    pub(super) alt_svc: HeaderValue,
    immutable: HeaderValue,
    no_cache: HeaderValue,
    vary: HeaderValue,
    hit: HeaderValue,
}

impl CommonHeaders {
    /// `private`: responses depend on the client, so shared caches must not store them.
    pub(super) fn new(name: &NodeName, port: u16, private: bool) -> Self {
        let value = |text: String| HeaderValue::try_from(text).expect("names and numbers are visible ASCII");
        Self {
            alt_svc: value(format!("h3=\":{port}\"; ma={ALT_SVC_MAX_AGE}")),
            immutable: HeaderValue::from_static(if private {
                "private, max-age=31536000, immutable"
            } else {
                "max-age=31536000, immutable"
            }),
            no_cache: HeaderValue::from_static(if private { "private, no-cache" } else { "no-cache" }),
            vary: HeaderValue::from_static("Accept-Encoding, Available-Dictionary"),
            hit: value(CacheStatus::Hit { stale_for: 0 }.header(name.as_str())),
            name: name.to_string(),
        }
    }

    /// The headers of a `304`, without the tag.
    pub(super) fn validators(
        &self,
        headers: &mut HeaderMap,
        found: &LookupResult,
        status: &CacheStatus,
        life: CacheLifetime,
    ) {
        let values = &found.version.values;
        headers.reserve(20);
        headers.insert(WEIR_DIGEST, values.digest.clone());
        if life == CacheLifetime::Current {
            headers.insert(WEIR_GENERATION, values.generation.clone());
            headers.insert(WEIR_REVISION, values.revision.clone());
            let optional = [(WEIR_COMMIT, &values.commit), (WEIR_VERSION, &values.source_version)];
            headers.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        }
        headers.insert(header::CONTENT_LOCATION, values.content_location.clone());
        headers.insert(header::VARY, self.vary.clone());
        self.caching(headers, found, status, life);
    }

    /// The headers that a `200` or `206` has in addition, without the length.
    pub(super) fn representation(&self, headers: &mut HeaderMap, found: &LookupResult, variant: &Variant<'_>) {
        headers.insert(header::ETAG, variant.tag.value.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
        if variant.encoding != Encoding::Identity {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(variant.encoding.as_str()));
        }
        headers.insert(UNENCODED_DIGEST, found.version.values.unencoded_digest.clone());
        let ranges = if variant.length.is_some() { "bytes" } else { "none" };
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static(ranges));
    }

    /// Adds `Cache-Control`, `Age` and `Cache-Status`.
    pub(crate) fn caching(
        &self,
        headers: &mut HeaderMap,
        found: &LookupResult,
        status: &CacheStatus,
        life: CacheLifetime,
    ) {
        let lifetime = match life {
            // What a certificate proves is in no `Vary`.
            CacheLifetime::Current if found.version.depends_on_agent() => &found.policy.private_cache_control,
            CacheLifetime::Current => &found.policy.cache_control,
            CacheLifetime::Immutable => &self.immutable,
            CacheLifetime::Revalidated => &self.no_cache,
        };
        headers.insert(header::CACHE_CONTROL, lifetime.clone());
        self.age_and_cache_status(headers, found.age, status);
    }

    /// Adds `Age` and `Cache-Status`.
    pub(super) fn age_and_cache_status(&self, headers: &mut HeaderMap, age: Duration, status: &CacheStatus) {
        headers.insert(header::AGE, HeaderValue::from(age.as_secs()));
        let status = match status {
            CacheStatus::Hit { stale_for: 0 } => self.hit.clone(),
            other => HeaderValue::try_from(other.header(&self.name)).expect("names and numbers are visible ASCII"),
        };
        headers.insert(CACHE_STATUS, status);
    }

    /// Appends this edge to the `Cache-Status` of the shield that sent a body.
    pub(crate) fn append_to(&self, upstream: &HeaderValue, headers: &mut HeaderMap, status: &CacheStatus) {
        headers.insert(CACHE_STATUS, cache_status(Some(upstream), &status.header(&self.name)));
    }
}
