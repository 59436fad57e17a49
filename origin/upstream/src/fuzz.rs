//! For the fuzzers in `loadtest/fuzz`: strings from upstreams and operators.

use std::time::{Duration, SystemTime};

use super::{endpoint, http};

/// `Retry-After`, redirects, and URLs.
pub fn fuzz_upstream_words(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    assert!(http::parse_retry_after(text, now).is_none_or(|pause| pause <= Duration::from_secs(24 * 3600)));
    http::fuzz_redirect(text);
    endpoint::fuzz(text);
}
