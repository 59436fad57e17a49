//! Evaluates the preconditions and the range of a request (RFC 9110 sections 13 and 14). Pure.

use std::borrow::Cow;
use std::ops::Range;

use http::{HeaderMap, HeaderValue, Method, header};
use weir_protocol::conditional::{if_none_match, if_range};
use weir_protocol::digest::TarballDigest;
use weir_protocol::range::{RequestedRange, parse_range};

use crate::request_headers::joined;
use crate::version::{EntityTag, Variant};

/// The kind of response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    /// The full body.
    Full,
    /// A range of it.
    Partial(Range<u64>),
    /// `304`, with the tag that matched.
    NotModified(HeaderValue),
    /// `412`: `If-Match` names another tag.
    PreconditionFailed,
    /// `416`: the range starts beyond the end.
    RangeNotSatisfiable,
}

/// Evaluates them for a tarball, of which a client has the content whatever its coding was.
pub(super) fn evaluate(
    method: &Method,
    headers: &HeaderMap,
    digest: &TarballDigest,
    variant: &Variant<'_>,
) -> ResponseKind {
    let none_match = |tags: &str| if_none_match(tags, digest, &variant.tag.text);
    evaluate_tag(method, headers, variant.tag, variant.length, none_match)
}

/// Evaluates in the order of RFC 9110 section 13.2.2. Dates are ignored: `Last-Modified` is never sent. `length`: without one
/// there are no ranges. `none_match`: the tag that matches one of `If-None-Match`.
pub(crate) fn evaluate_tag<'t>(
    method: &Method,
    headers: &HeaderMap,
    tag: &'t EntityTag,
    length: Option<u64>,
    none_match: impl FnOnce(&str) -> Option<Cow<'t, str>>,
) -> ResponseKind {
    let current = tag.text.as_str();
    if !if_match_holds(headers, current) {
        return ResponseKind::PreconditionFailed;
    }
    if let Some(matching) = joined(headers, &header::IF_NONE_MATCH).and_then(|tags| none_match(&tags)) {
        return ResponseKind::NotModified(matched(matching, tag));
    }
    if method != Method::GET {
        return ResponseKind::Full;
    }
    if joined(headers, &header::IF_RANGE).is_some_and(|tag| !if_range(&tag, current)) {
        return ResponseKind::Full;
    }
    // A body of unknown length has no ranges.
    let Some(length) = length else { return ResponseKind::Full };
    match parse_range(joined(headers, &header::RANGE).as_deref(), length) {
        RequestedRange::Full => ResponseKind::Full,
        RequestedRange::Partial(part) => ResponseKind::Partial(part),
        RequestedRange::Unsatisfiable => ResponseKind::RangeNotSatisfiable,
    }
}

/// The tag that matched, as a header value.
fn matched(tag: Cow<'_, str>, current: &EntityTag) -> HeaderValue {
    match tag {
        Cow::Borrowed(_) => current.value.clone(),
        Cow::Owned(other) if current.text.strip_prefix("W/") == Some(&other) => current.value.clone(),
        Cow::Owned(other) => HeaderValue::try_from(other).expect("it came in a header"),
    }
}

/// Whether `If-Match`, if present, matches the current tag.
pub(super) fn if_match_holds(headers: &HeaderMap, current: &str) -> bool {
    // A value that is not text matches none of our tags.
    !headers.contains_key(header::IF_MATCH)
        || joined(headers, &header::IF_MATCH).is_some_and(|tags| if_match(&tags, current))
}

/// Strong comparison of whole tags. None of our tags contains a comma.
fn if_match(header: &str, current: &str) -> bool {
    header.trim() == "*" || !current.starts_with("W/") && header.split(',').any(|tag| tag.trim() == current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::{Accepted, Version};
    use weir_protocol::descriptor::{Descriptor, DescriptorFields, FORMAT, Publication, Representation, Selector};
    use weir_protocol::digest::{ObjectDigest, Sha256};
    use weir_protocol::encoding::Encoding;

    fn version() -> Version {
        Version::new(Descriptor::new(DescriptorFields {
            publication: Publication {
                service: "shop".parse().unwrap(),
                repository: "shop".parse().unwrap(),
                generation: 5,
                digest: TarballDigest::of(b"tar"),
                sha256: Sha256::from_bytes([7; 32]),
                size: 1000,
                commit: Some("c".repeat(40).parse().unwrap()),
                version: None,
                parts: Vec::new(),
                revision_id: format!("sha1:{}", "c".repeat(40)).parse().unwrap(),
                selector: Selector,
                published_at: std::time::UNIX_EPOCH,
                format: FORMAT,
                omitted: Vec::new(),
            },
            followed_ref: "main".to_owned(),
            revision: 1,
            representations: vec![Representation {
                encoding: Encoding::Zstd,
                dictionary: None,
                digest: ObjectDigest::of(b"zstd"),
                size: 100,
                frames: 1,
            }],
            oci: None,
            staged: None,
        }))
    }

    fn accepting(encoding: &str) -> Accepted<'_> {
        Accepted { encoding: Some(encoding), dictionary: None }
    }

    fn evaluate_for(method: &Method, accept: &str, pairs: &[(header::HeaderName, &str)]) -> ResponseKind {
        let version = version();
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let value = value
                .replace("IDENTITY", version.variant(Accepted::default(), &[]).unwrap().tag.text.as_str())
                .replace("ZSTD", version.variant(accepting("zstd"), &[]).unwrap().tag.text.as_str());
            headers.append(name, value.parse().unwrap());
        }
        let variant = version.variant(accepting(accept), &[]).unwrap();
        evaluate(method, &headers, &version.descriptor().publication().digest, &variant)
    }

    #[test]
    fn preconditions_are_evaluated_in_the_order_of_the_rfc() {
        use header::{IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};
        let identity = version().variant(Accepted::default(), &[]).unwrap().tag.value.clone();
        for (pairs, expected) in [
            (vec![], ResponseKind::Full),
            (vec![(RANGE, "bytes=1-2")], ResponseKind::Partial(1..3)),
            (vec![(RANGE, "bytes=100-")], ResponseKind::RangeNotSatisfiable),
            (vec![(RANGE, "bytes=1-2"), (IF_RANGE, "ZSTD")], ResponseKind::Partial(1..3)),
            (vec![(RANGE, "bytes=1-2"), (IF_RANGE, "IDENTITY")], ResponseKind::Full),
            (vec![(RANGE, "bytes=1-2"), (IF_NONE_MATCH, "IDENTITY")], ResponseKind::NotModified(identity)),
            (vec![(IF_NONE_MATCH, "\"other\"")], ResponseKind::Full),
            (vec![(IF_MATCH, "ZSTD")], ResponseKind::Full),
            (vec![(IF_MATCH, "\"x\", ZSTD")], ResponseKind::Full),
            (vec![(IF_MATCH, "*")], ResponseKind::Full),
            (vec![(IF_MATCH, "W/ZSTD")], ResponseKind::PreconditionFailed),
            (vec![(IF_MATCH, "IDENTITY"), (IF_NONE_MATCH, "ZSTD")], ResponseKind::PreconditionFailed),
        ] {
            assert_eq!(evaluate_for(&Method::GET, "zstd", &pairs), expected, "{pairs:?}");
        }
    }

    #[test]
    fn head_and_transcoded_gzip_have_no_ranges() {
        let range = [(header::RANGE, "bytes=1-2")];
        assert_eq!(evaluate_for(&Method::GET, "identity", &range), ResponseKind::Partial(1..3));
        assert_eq!(evaluate_for(&Method::GET, "gzip", &range), ResponseKind::Full);
        assert_eq!(evaluate_for(&Method::HEAD, "zstd", &range), ResponseKind::Full);
        let version = version();
        let weak = version.variant(accepting("gzip"), &[]).unwrap().tag;
        let conditional = [(header::IF_NONE_MATCH, weak.text.as_str())];
        assert_eq!(evaluate_for(&Method::GET, "gzip", &conditional), ResponseKind::NotModified(weak.value.clone()));
        let strong = [(header::IF_MATCH, weak.text.as_str())];
        assert_eq!(evaluate_for(&Method::GET, "gzip", &strong), ResponseKind::PreconditionFailed);
    }
}
