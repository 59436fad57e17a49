//! For the fuzzers in `loadtest/fuzz`: strings from upstreams and operators.

use std::time::{Duration, SystemTime};

use super::{ServerReport, endpoint, http};

/// `Retry-After`, redirects, URLs, and what servers report.
pub fn fuzz_upstream_words(bytes: &[u8]) {
    let report = ServerReport::of_body(bytes, None, &[]).to_string();
    assert!(report.chars().count() < 400 && !report.contains(char::is_control), "{report}");
    let Ok(text) = str::from_utf8(bytes) else { return };
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    assert!(http::parse_retry_after(text, now).is_none_or(|pause| pause <= Duration::from_secs(24 * 3600)));
    http::fuzz_redirect(text);
    endpoint::fuzz(text);
}
