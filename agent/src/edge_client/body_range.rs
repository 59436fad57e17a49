//! Requests a part of a body.

use http::{HeaderMap, HeaderValue, header};
use weir_protocol::digest::TarballDigest;
use weir_protocol::range::content_range;

/// A part of a body: the rest of an interrupted download, or some of its frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BodyRange {
    pub(crate) digest: TarballDigest,
    pub(crate) etag: HeaderValue,
    /// The offset of its first byte.
    pub(crate) start: u64,
    /// The offset after its last byte.
    pub(crate) end: u64,
    /// The length of the whole body in bytes.
    pub(crate) length: u64,
}

impl BodyRange {
    /// The value of `Range`.
    pub(super) fn header(&self) -> String {
        let last = if self.end == self.length { String::new() } else { (self.end - 1).to_string() };
        format!("bytes={}-{last}", self.start)
    }

    /// Whether the headers of a `206` are those of exactly this part.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        let has = |name, value: &str| headers.get(name).is_some_and(|found| found.as_bytes() == value.as_bytes());
        headers.get(header::ETAG) == Some(&self.etag)
            && has("weir-digest", &self.digest.to_string())
            && has("content-range", &content_range(&(self.start..self.end), self.length))
    }
}
