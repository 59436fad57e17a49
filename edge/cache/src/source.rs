//! Where bytes came from, and how `Cache-Status` says it.

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::metrics::Tier;

/// An object with its source.
#[derive(Debug, Clone)]
pub(super) struct Loaded {
    pub(super) bytes: Bytes,
    pub(super) source: Source,
}

/// Where an object, or the first frame of a body, came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// It was in memory.
    Memory,
    /// It was on disk.
    Disk,
    /// A fill brought it.
    Origin {
        /// It was inserted into the cache.
        stored: bool,
        /// Another request had started the fill.
        collapsed: bool,
        /// The `Cache-Status` of the shield that sent it.
        upstream: Option<HeaderValue>,
    },
}

impl Source {
    /// The tier it was in.
    pub fn tier(&self) -> Tier {
        match self {
            Self::Memory => Tier::Memory,
            Self::Disk => Tier::Disk,
            Self::Origin { .. } => Tier::Origin,
        }
    }

    /// The source of a body whose manifest and first frame have different sources.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (
                Source::Origin { stored, collapsed, upstream },
                Source::Origin { stored: too, collapsed: also, upstream: other },
            ) => Source::Origin { stored: stored && too, collapsed: collapsed || also, upstream: upstream.or(other) },
            (origin @ Source::Origin { .. }, _) | (_, origin @ Source::Origin { .. }) => origin,
            (Source::Memory, Source::Memory) => Source::Memory,
            (Source::Disk, _) | (_, Source::Disk) => Source::Disk,
        }
    }
}

/// The header.
pub const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// The value of `Cache-Status`: a cache's own member after those of the caches behind it (RFC 9211 section 2).
pub fn cache_status(upstream: Option<&HeaderValue>, own: &str) -> HeaderValue {
    let upstream = upstream.and_then(|value| value.to_str().ok());
    let all = upstream.map_or_else(|| own.to_owned(), |upstream| format!("{upstream}, {own}"));
    HeaderValue::try_from(all).expect("names and numbers, after text that was visible ASCII")
}
