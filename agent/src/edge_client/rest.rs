//! Requests the rest of a body that broke off.

use http::{HeaderMap, HeaderValue, header};
use weir_protocol::digest::TarballDigest;
use weir_protocol::range::content_range;

/// The missing part of an interrupted download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) digest: TarballDigest,
    pub(crate) etag: HeaderValue,
    /// The offset of its first byte.
    pub(crate) start: u64,
    /// The length of the whole body in bytes.
    pub(crate) length: u64,
}

impl Rest {
    /// Whether the headers of a `206` are those of exactly this part.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        let has = |name, value: &str| headers.get(name).is_some_and(|found| found.as_bytes() == value.as_bytes());
        headers.get(header::ETAG) == Some(&self.etag)
            && has("weir-digest", &self.digest.to_string())
            && has("content-range", &content_range(&(self.start..self.length), self.length))
    }
}
