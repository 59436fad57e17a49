//! For the fuzzers in `loadtest/fuzz`: words that upstreams send and operators write.

use std::time::{Duration, SystemTime};

use super::{http, retry_after, ssh};

/// `Retry-After`, where a redirect leads, and both ways to write an address of SSH.
pub fn fuzz_upstream_words(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    assert!(retry_after::parse(text, now).is_none_or(|pause| pause <= Duration::from_secs(24 * 3600)));
    http::fuzz_redirect(text);
    if let (Ok(url), Ok(seen)) = (http::parse_address(text), gix::url::parse(text)) {
        let plain = |host: &str| host.trim_matches(['[', ']']).to_ascii_lowercase();
        assert_eq!(url.host_str().map(plain), seen.host().map(plain), "{url}");
    }
    if let Ok(address) = ssh::parse(text) {
        for part in [&address.user, &address.host, &address.path] {
            assert!(!part.is_empty() && !part.starts_with('-') && !part.chars().any(char::is_control), "{address:?}");
        }
    }
}
