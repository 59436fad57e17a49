//! A time as a metric shows it.

use std::time::{SystemTime, UNIX_EPOCH};

/// A time as a metric shows it: seconds since 1970.
pub(crate) fn unix_seconds(at: SystemTime) -> i64 {
    let since_1970 = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX)
}
