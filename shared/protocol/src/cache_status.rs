//! `Cache-Status` (RFC 9211): the result of a cache, with one vocabulary for the header, metrics and logs.

use std::fmt::Write;

/// Why a request was forwarded (RFC 9211 section 2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Forward {
    /// Nothing was cached.
    Miss,
    /// The cached response was stale.
    Stale,
    /// The request demanded it, with `no-cache`.
    Request,
}

impl Forward {
    /// The token of RFC 9211.
    pub fn as_str(self) -> &'static str {
        match self {
            Forward::Miss => "miss",
            Forward::Stale => "stale",
            Forward::Request => "request",
        }
    }
}

/// The result of one cache for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheStatus {
    /// Served from the cache. `stale_for`: seconds since it became stale, 0 when it is fresh.
    Hit {
        /// Seconds since it became stale.
        stale_for: u64,
    },
    /// Forwarded to the next cache or the origin.
    Forwarded {
        /// The reason.
        why: Forward,
        /// The status of the forwarded response, if there was one.
        status: Option<u16>,
        /// The response was stored.
        stored: bool,
        /// The request waited for one in flight.
        collapsed: bool,
    },
}

impl CacheStatus {
    /// The value of a metric's label, and of a log's field.
    pub fn as_str(&self) -> &'static str {
        match self {
            CacheStatus::Hit { stale_for: 0 } => "hit",
            CacheStatus::Hit { .. } => "stale",
            CacheStatus::Forwarded { collapsed: true, .. } => "collapsed",
            CacheStatus::Forwarded { why, .. } => match why {
                Forward::Miss => "miss",
                Forward::Stale => "revalidated",
                Forward::Request => "forced",
            },
        }
    }

    /// This node's member of the header. `name` is its node name.
    pub fn header(&self, name: &str) -> String {
        // An sf-token starts with a letter; other names are written as strings.
        let mut out =
            if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name.to_owned() } else { format!("\"{name}\"") };
        match *self {
            CacheStatus::Hit { stale_for: 0 } => out.push_str("; hit"),
            CacheStatus::Hit { stale_for } => write!(out, "; hit; ttl=-{stale_for}").expect("a String takes all"),
            CacheStatus::Forwarded { why, status, stored, collapsed } => {
                write!(out, "; fwd={}", why.as_str()).expect("a String takes all");
                if let Some(status) = status {
                    write!(out, "; fwd-status={status}").expect("a String takes all");
                }
                if stored {
                    out.push_str("; stored");
                }
                if collapsed {
                    out.push_str("; collapsed");
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_members() {
        let miss = CacheStatus::Forwarded { why: Forward::Miss, status: Some(200), stored: true, collapsed: true };
        assert_eq!(miss.header("edge-1"), "edge-1; fwd=miss; fwd-status=200; stored; collapsed");
        assert_eq!(CacheStatus::Hit { stale_for: 0 }.header("edge-1"), "edge-1; hit");
        assert_eq!(CacheStatus::Hit { stale_for: 42 }.header("edge-1"), "edge-1; hit; ttl=-42");
        assert_eq!(CacheStatus::Hit { stale_for: 0 }.header("7th"), "\"7th\"; hit");
    }
}
