//! The `Date` header: formatted once a second on each thread, not for each response.

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

use http::HeaderValue;

thread_local! {
    static LAST: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
}

/// The header value for a time after 1970.
pub(super) fn at(now: SystemTime) -> HeaderValue {
    let second = now.duration_since(SystemTime::UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs);
    LAST.with_borrow_mut(|last| match last {
        Some((of, date)) if *of == second => date.clone(),
        _ => {
            let date =
                HeaderValue::try_from(httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(second)));
            let date = date.expect("a date is visible ASCII");
            *last = Some((second, date.clone()));
            date
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_the_second_of_its_time() {
        for (millis, date) in [
            (784_111_777_000, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_777_999, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (784_111_778_000, "Sun, 06 Nov 1994 08:49:38 GMT"),
            // A clock that was set back.
            (784_111_777_500, "Sun, 06 Nov 1994 08:49:37 GMT"),
        ] {
            assert_eq!(at(SystemTime::UNIX_EPOCH + Duration::from_millis(millis)), date);
        }
    }
}
