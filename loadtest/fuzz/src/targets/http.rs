//! What clients send in a request: ranges, tags, codings, paths, and the frames of HTTP/3.

use weir_http3::fuzzing;
use weir_protocol::conditional::{if_none_match, if_none_match_tag, if_range, tarball_etag};
use weir_protocol::digest::TarballDigest;
use weir_protocol::encoding::{Encoding, negotiate};
use weir_protocol::range::{RequestedRange, content_range, parse_range};
use weir_protocol::route::Route;

/// A header, with a length before it in the first eight bytes.
pub(crate) fn range(bytes: &[u8]) {
    let Some((length, header)) = bytes.split_first_chunk::<8>() else { return };
    let (length, Ok(header)) = (u64::from_le_bytes(*length), std::str::from_utf8(header)) else { return };
    if let RequestedRange::Partial(part) = parse_range(Some(header), length) {
        assert!(part.start < part.end && part.end <= length);
        // It is the same range when a client asks for it in the plainest form.
        let plain = format!("bytes={}-{}", part.start, part.end - 1);
        assert_eq!(parse_range(Some(&plain), length), RequestedRange::Partial(part.clone()));
        assert!(content_range(&part, length).ends_with(&format!("/{length}")));
    }
}

pub(crate) fn entity_tags(bytes: &[u8]) {
    let Ok(header) = std::str::from_utf8(bytes) else { return };
    let digest = TarballDigest::of(b"tar");
    let current = tarball_etag(&digest, None);
    if let Some(tag) = if_none_match(header, &digest, &current) {
        // What is repeated in the 304 names this content.
        assert!(tag.starts_with(&current[..current.len() - 1]) && tag.ends_with('"'));
        assert_eq!(if_none_match(&tag, &digest, &current), Some(tag));
    }
    assert!(!if_none_match_tag(header, "\"1.1\"") || header.contains("1.1") || header.contains('*'));
    assert!(!if_range(header, &current) || header.trim() == current);
}

pub(crate) fn accept_encoding(bytes: &[u8]) {
    let Ok(header) = std::str::from_utf8(bytes) else { return };
    // With more to choose from, no client is worse off.
    let few = negotiate(Some(header), |encoding| encoding == Encoding::Identity);
    let all = negotiate(Some(header), |_| true);
    assert!(few.is_none() || all.is_some());
}

pub(crate) fn route(bytes: &[u8]) {
    let Ok(path) = std::str::from_utf8(bytes) else { return };
    if let Ok(route) = Route::parse(path) {
        assert_eq!(route.to_string(), path);
    }
}

pub(crate) fn http3_head(bytes: &[u8]) {
    fuzzing::http3_head(bytes);
}

pub(crate) fn http3_request(bytes: &[u8]) {
    fuzzing::http3_request(bytes);
}

pub(crate) fn http3_control(bytes: &[u8]) {
    fuzzing::http3_control(bytes);
}
