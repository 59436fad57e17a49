//! Entity tags and conditional requests (RFC 9110 section 13) for tarballs.
//!
//! A tarball has one strong tag per representation: identity `"b3-<64 hex>"`, encoded `"b3-<64 hex>+zstd.<16 hex>"`
//! with the first 16 digits of the representation's digest. `If-None-Match` compares only the digest of the tarball,
//! because a client has the content whatever its coding was. `If-Range` compares the whole tag, because a range is of
//! one representation.

use std::borrow::Cow;

use crate::digest::{ObjectDigest, TarballDigest};
use crate::encoding::Encoding;

/// The entity tag of a tarball in one representation. `coded` is `None` for identity.
pub fn tarball_etag(digest: &TarballDigest, coded: Option<(Encoding, &ObjectDigest)>) -> String {
    match coded {
        None | Some((Encoding::Identity, _)) => format!("\"{digest}\""),
        Some((encoding, object)) => format!("\"{digest}+{encoding}.{}\"", &object.hex()[..16]),
    }
}

/// The opaque parts of a list of entity tags, weak or strong: `W/"a", "b"` gives `a`, `b`. Malformed members are
/// skipped.
pub fn opaque_tags(header: &str) -> impl Iterator<Item = &str> {
    let mut rest = header;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once('"')?;
        let (tag, after) = after.split_once('"')?;
        rest = after;
        Some(tag)
    })
}

/// Evaluates `If-None-Match` for the tarball with this digest.
///
/// `Some(tag)`: respond `304` with this tag, the one that matched. `current` is the tag of the selected representation,
/// which `*` matches.
pub fn if_none_match<'a>(header: &str, digest: &TarballDigest, current: &'a str) -> Option<Cow<'a, str>> {
    let header = header.trim();
    // The common case, without allocation: a poll sends the current tag alone.
    if header == "*" || header == current {
        return Some(current.into());
    }
    let text = digest.to_string();
    opaque_tags(header).find(|tag| tag.split('+').next() == Some(&text)).map(|tag| format!("\"{tag}\"").into())
}

/// Evaluates `If-None-Match` by weak comparison with one tag, quotes included; for descriptors.
pub fn if_none_match_tag(header: &str, current: &str) -> bool {
    header.trim() == "*" || opaque_tags(header).any(|tag| tag == current.trim_matches('"'))
}

/// Whether `If-Range` holds and the range may be served. Strong comparison; a date never matches, because
/// `Last-Modified` is never sent.
pub fn if_range(header: &str, current: &str) -> bool {
    header.trim() == current
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags() -> (TarballDigest, String, String) {
        let digest = TarballDigest::of(b"a");
        let coded = tarball_etag(&digest, Some((Encoding::Zstd, &ObjectDigest::of(b"z"))));
        (digest, tarball_etag(&digest, None), coded)
    }

    #[test]
    fn tags_match_by_digest_for_any_coding() {
        let (digest, identity, coded) = tags();
        let other = TarballDigest::of(b"b");
        assert_eq!(if_none_match(&identity, &digest, &coded), Some(Cow::from(&identity)));
        assert_eq!(if_none_match(&format!("W/{coded}"), &digest, &identity), Some(Cow::from(&coded)));
        assert_eq!(if_none_match(&format!("\"x\" , {identity}"), &digest, &coded), Some(Cow::from(&identity)));
        assert_eq!(if_none_match("*", &digest, &coded), Some(Cow::from(&coded)));
        assert_eq!(if_none_match(&identity, &other, &coded), None);
        for nonsense in ["", "\"", "\"\"", &digest.to_string(), "\"b3-\"", "W/"] {
            assert_eq!(if_none_match(nonsense, &digest, &coded), None, "{nonsense}");
        }
        // A longer digest is another one.
        let longer = format!("\"{digest}0\"");
        assert_eq!(if_none_match(&longer, &digest, &coded), None);
    }

    #[test]
    fn a_range_needs_the_whole_tag() {
        let (_, identity, coded) = tags();
        assert!(if_range(&coded, &coded));
        assert!(!if_range(&identity, &coded));
        assert!(!if_range(&format!("W/{coded}"), &coded));
        assert!(!if_range("Fri, 20 Nov 2026 09:30:00 GMT", &coded));
    }
}
