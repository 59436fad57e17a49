//! What a request's preconditions and range make of it (RFC 9110 sections 13 and 14). Pure.

use std::borrow::Cow;
use std::ops::Range;

use http::{HeaderMap, HeaderValue, Method, header};
use weir_shared::conditional::{if_none_match, if_range};
use weir_shared::digest::TarballDigest;
use weir_shared::range::{Requested, requested};

use super::headers::joined;
use crate::version::{Tag, Variant};

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
pub(super) fn decide(method: &Method, headers: &HeaderMap, digest: &TarballDigest, variant: &Variant<'_>) -> Decision {
    let current = variant.tag.text.as_str();
    if !holds_if_match(headers, current) {
        return Decision::PreconditionFailed;
    }
    let not_modified = joined(headers, &header::IF_NONE_MATCH).and_then(|tags| if_none_match(&tags, digest, current));
    if let Some(tag) = not_modified {
        return Decision::NotModified(matched(tag, variant.tag));
    }
    if method != Method::GET {
        return Decision::Full;
    }
    if joined(headers, &header::IF_RANGE).is_some_and(|tag| !if_range(&tag, current)) {
        return Decision::Full;
    }
    // What is made on the way in an unknown length has no ranges.
    let Some(length) = variant.length else { return Decision::Full };
    match requested(joined(headers, &header::RANGE).as_deref(), length) {
        Requested::Full => Decision::Full,
        Requested::Part(part) => Decision::Part(part),
        Requested::Unsatisfiable => Decision::Unsatisfiable,
    }
}

/// The tag that matched, as a header's value.
fn matched(tag: Cow<'_, str>, current: &Tag) -> HeaderValue {
    match tag {
        Cow::Borrowed(_) => current.value.clone(),
        Cow::Owned(other) if current.text.strip_prefix("W/") == Some(&other) => current.value.clone(),
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
    header.trim() == "*" || !current.starts_with("W/") && header.split(',').any(|tag| tag.trim() == current)
}
