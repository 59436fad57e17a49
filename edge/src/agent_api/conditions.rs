//! What a request's preconditions and range make of it (RFC 9110 sections 13 and 14). Pure.

use std::borrow::Cow;
use std::ops::Range;

use http::{HeaderMap, HeaderValue, Method, header};
use weir_shared::conditional::{if_none_match, if_range};
use weir_shared::digest::TarballDigest;
use weir_shared::range::{Requested, requested};

use super::headers::joined;
use crate::version::{Form, Tag, Version};

/// What is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// Everything.
    Full,
    /// These bytes.
    Part(Range<u64>),
    /// Nothing: the client holds it, under this tag.
    NotModified(HeaderValue),
    /// Nothing: `If-Match` names something else.
    PreconditionFailed,
    /// Nothing: the range begins beyond the end.
    Unsatisfiable,
}

/// Decides, in the order of RFC 9110 section 13.2.2. Dates are not looked at: no `Last-Modified` is ever sent.
pub(super) fn decide(method: &Method, headers: &HeaderMap, digest: &TarballDigest, form: &Form<'_>) -> Decision {
    let current = form.tag.text.as_str();
    if !holds_if_match(headers, current) {
        return Decision::PreconditionFailed;
    }
    let not_modified = joined(headers, &header::IF_NONE_MATCH).and_then(|tags| if_none_match(&tags, digest, current));
    if let Some(tag) = not_modified {
        return Decision::NotModified(matched(tag, form.tag));
    }
    if method != Method::GET || form.is_decoded() {
        return Decision::Full;
    }
    if joined(headers, &header::IF_RANGE).is_some_and(|tag| !if_range(&tag, current)) {
        return Decision::Full;
    }
    match requested(joined(headers, &header::RANGE).as_deref(), form.length) {
        Requested::Full => Decision::Full,
        Requested::Part(part) => Decision::Part(part),
        Requested::Unsatisfiable => Decision::Unsatisfiable,
    }
}

/// What preconditions alone decide of a representation that is not made yet, whose tag nobody knows: what is held by its
/// content needs none of it. `None`: nothing.
pub(super) fn decide_unmade(method: &Method, headers: &HeaderMap, version: &Version) -> Option<Decision> {
    let digest = &version.descriptor().publication().digest;
    match joined(headers, &header::IF_MATCH) {
        // A tag may yet turn out to match, once the representation is made; HEAD has it made by nobody.
        Some(tags) if tags.trim() != "*" => return (method == Method::HEAD).then_some(Decision::PreconditionFailed),
        _ => {}
    }
    let tags = joined(headers, &header::IF_NONE_MATCH)?;
    let identity = version.identity_tag();
    if_none_match(&tags, digest, &identity.text).map(|tag| Decision::NotModified(matched(tag, identity)))
}

/// The tag that matched, as a header's value.
fn matched(tag: Cow<'_, str>, current: &Tag) -> HeaderValue {
    match tag {
        Cow::Borrowed(_) => current.value.clone(),
        Cow::Owned(other) => HeaderValue::try_from(other).expect("it came in a header"),
    }
}

/// Whether `If-Match`, if there is one, names what is current.
pub(super) fn holds_if_match(headers: &HeaderMap, current: &str) -> bool {
    // What is no text names none of our tags.
    !headers.contains_key(header::IF_MATCH)
        || joined(headers, &header::IF_MATCH).is_some_and(|tags| if_match(&tags, current))
}

/// Strong comparison: the whole tag, and no weak one. None of our tags holds a comma.
fn if_match(header: &str, current: &str) -> bool {
    header.trim() == "*" || header.split(',').any(|tag| tag.trim() == current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_shared::descriptor::{Descriptor, DescriptorFields, FORMAT, Publication, Representation};
    use weir_shared::digest::{BlobDigest, Sha256};
    use weir_shared::encoding::Encoding;

    fn version() -> Version {
        Version::new(Descriptor::new(DescriptorFields {
            publication: Publication {
                service: "shop".parse().unwrap(),
                repository: "shop".parse().unwrap(),
                generation: 5,
                digest: TarballDigest::of(b"tar"),
                sha256: Sha256::from_bytes([7; 32]),
                size: 1000,
                commit: "c".repeat(40).parse().unwrap(),
                published_at: std::time::UNIX_EPOCH,
                format: FORMAT,
                omitted: Vec::new(),
            },
            revision: 1,
            representations: vec![Representation {
                encoding: Encoding::Zstd,
                dictionary: None,
                digest: BlobDigest::of(b"zstd"),
                size: 100,
            }],
        }))
    }

    fn decide_for(method: &Method, accept: &str, pairs: &[(header::HeaderName, &str)]) -> Decision {
        let version = version();
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let value = value
                .replace("IDENTITY", version.form(None).unwrap().tag.text.as_str())
                .replace("ZSTD", version.form(Some("zstd")).unwrap().tag.text.as_str());
            headers.append(name, value.parse().unwrap());
        }
        let form = version.form(Some(accept)).unwrap();
        decide(method, &headers, &version.descriptor().publication().digest, &form)
    }

    #[test]
    fn the_order_of_the_rfc() {
        use header::{IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};
        let identity = version().form(None).unwrap().tag.value.clone();
        for (pairs, expected) in [
            (vec![], Decision::Full),
            (vec![(RANGE, "bytes=1-2")], Decision::Part(1..3)),
            (vec![(RANGE, "bytes=100-")], Decision::Unsatisfiable),
            (vec![(RANGE, "bytes=1-2"), (IF_RANGE, "ZSTD")], Decision::Part(1..3)),
            (vec![(RANGE, "bytes=1-2"), (IF_RANGE, "IDENTITY")], Decision::Full),
            (vec![(RANGE, "bytes=1-2"), (IF_NONE_MATCH, "IDENTITY")], Decision::NotModified(identity)),
            (vec![(IF_NONE_MATCH, "\"other\"")], Decision::Full),
            (vec![(IF_MATCH, "ZSTD")], Decision::Full),
            (vec![(IF_MATCH, "\"x\", ZSTD")], Decision::Full),
            (vec![(IF_MATCH, "*")], Decision::Full),
            (vec![(IF_MATCH, "W/ZSTD")], Decision::PreconditionFailed),
            (vec![(IF_MATCH, "IDENTITY"), (IF_NONE_MATCH, "ZSTD")], Decision::PreconditionFailed),
        ] {
            assert_eq!(decide_for(&Method::GET, "zstd", &pairs), expected, "{pairs:?}");
        }
    }

    #[test]
    fn what_is_not_made_yet_can_still_be_held() {
        use header::{IF_MATCH, IF_NONE_MATCH};
        let version = version();
        let tag = version.identity_tag().text.clone();
        let not_modified = || Some(Decision::NotModified(HeaderValue::try_from(tag.as_str()).unwrap()));
        for (method, name, value, expected) in [
            (Method::GET, IF_NONE_MATCH, tag.as_str(), not_modified()),
            (Method::HEAD, IF_NONE_MATCH, tag.as_str(), not_modified()),
            (Method::GET, IF_NONE_MATCH, "*", not_modified()),
            (Method::GET, IF_NONE_MATCH, "\"other\"", None),
            (Method::GET, IF_MATCH, "\"other\"", None),
            (Method::HEAD, IF_MATCH, "\"other\"", Some(Decision::PreconditionFailed)),
            (Method::HEAD, IF_MATCH, "*", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name.clone(), value.parse().unwrap());
            assert_eq!(decide_unmade(&method, &headers, &version), expected, "{method} {name}: {value}");
        }
        assert_eq!(decide_unmade(&Method::GET, &HeaderMap::new(), &version), None);
    }

    #[test]
    fn identity_and_head_have_no_ranges() {
        let range = [(header::RANGE, "bytes=1-2")];
        assert_eq!(decide_for(&Method::GET, "identity", &range), Decision::Full);
        assert_eq!(decide_for(&Method::HEAD, "zstd", &range), Decision::Full);
    }
}
