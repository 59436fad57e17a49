//! `Retry-After` (RFC 9110).

use std::time::{Duration, SystemTime};

/// The longest pause that is honored.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Parses seconds or a date, where a past date is no pause. `None` if it is neither.
pub(crate) fn parse(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let pause = if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that overflows exceeds the maximum.
        value.parse().map_or(MAX_RETRY_AFTER, Duration::from_secs)
    } else {
        httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(pause.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn seconds_and_dates_are_parsed_and_limited() {
        let now = at(1_700_000_000);
        let read = |value: &str| parse(value, now).map(|pause| pause.as_secs());
        for (value, expected) in [("0", 0), (" 120 ", 120), ("86401", 86400), ("99999999999999999999999", 86400)] {
            assert_eq!(read(value), Some(expected), "{value}");
        }
        assert_eq!(read(&httpdate::fmt_http_date(at(1_700_000_090))), Some(90));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(0), "it has passed");
        assert_eq!(read("Fri, 31 Dec 9999 23:59:59 GMT"), Some(86400));
        for value in ["", "-1", "+5", "1.5", "soon", "12 s", "Sun, 06 Nov"] {
            assert_eq!(read(value), None, "{value}");
        }
    }

    proptest! {
        #[test]
        fn any_retry_after_is_bounded(value in ".*", now in 0u64..4_000_000_000) {
            prop_assert!(parse(&value, at(now)).is_none_or(|pause| pause <= MAX_RETRY_AFTER));
        }
    }
}
