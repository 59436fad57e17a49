//! Byte ranges (RFC 9110 section 14). Multiple ranges are answered in full, as the RFC allows.

use std::ops::Range;

/// The result of a `Range` header for a representation of known length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedRange {
    /// The full body: no range, several, another unit than bytes, or a malformed header.
    Full,
    /// One range: not empty, and within the length.
    Partial(Range<u64>),
    /// The range starts beyond the end: `416`.
    Unsatisfiable,
}

/// Evaluates a `Range` header for a representation of `length` bytes.
pub fn parse_range(header: Option<&str>, length: u64) -> RequestedRange {
    header.and_then(|header| parse(header, length)).unwrap_or(RequestedRange::Full)
}

fn parse(header: &str, length: u64) -> Option<RequestedRange> {
    let (unit, set) = header.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") || set.contains(',') {
        return None;
    }
    let (first, last) = set.trim().split_once('-')?;
    let part = match (first.trim(), last.trim()) {
        ("", suffix) => {
            let suffix = number(suffix)?;
            length.saturating_sub(suffix)..length
        }
        (first, "") => number(first)?..length,
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return None;
            }
            first..last.saturating_add(1).min(length)
        }
    };
    Some(if part.is_empty() { RequestedRange::Unsatisfiable } else { RequestedRange::Partial(part) })
}

/// Digits only: `str::parse` would accept a sign.
fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u64::MAX))
}

/// The `Content-Range` of a partial response.
pub fn content_range(part: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", part.start, part.end - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn single_ranges() {
        for (header, expected) in [
            ("bytes=0-0", RequestedRange::Partial(0..1)),
            ("bytes=0-99", RequestedRange::Partial(0..10)),
            ("bytes=3-", RequestedRange::Partial(3..10)),
            ("bytes=-3", RequestedRange::Partial(7..10)),
            ("bytes=-99", RequestedRange::Partial(0..10)),
            ("Bytes = 2-4", RequestedRange::Partial(2..5)),
            ("bytes=10-", RequestedRange::Unsatisfiable),
            ("bytes=-0", RequestedRange::Unsatisfiable),
            ("bytes=99999999999999999999-", RequestedRange::Unsatisfiable),
            ("bytes=5-4", RequestedRange::Full),
            ("bytes=0-1,3-4", RequestedRange::Full),
            ("bytes=+1-2", RequestedRange::Full),
            ("bytes=-", RequestedRange::Full),
            ("items=0-1", RequestedRange::Full),
            ("bytes", RequestedRange::Full),
        ] {
            assert_eq!(parse_range(Some(header), 10), expected, "{header}");
        }
        assert_eq!(parse_range(None, 10), RequestedRange::Full);
        assert_eq!(content_range(&(3..10), 10), "bytes 3-9/10");
    }

    proptest! {
        #[test]
        fn a_part_is_never_empty_and_never_beyond_the_end(header in "bytes=[0-9,-]{0,24}|[ -~]{0,20}", length in 0u64..100) {
            if let RequestedRange::Partial(part) = parse_range(Some(&header), length) {
                prop_assert!(part.start < part.end && part.end <= length);
            }
        }
    }
}
