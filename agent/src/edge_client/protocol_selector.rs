//! Selects the version of HTTP for one edge. Pure.
//!
//! HTTP/3 is tried first. When it fails and HTTP/2 succeeds, UDP is blocked: HTTP/3 is then avoided for a back-off that
//! doubles up to a limit. When both fail, the edge is down, which says nothing about UDP.

use std::time::{Duration, Instant};

use crate::config::HttpMode;

/// The longest back-off of HTTP/3, as a multiple of the configured interval.
const MAX_BACKOFF_FACTOR: u32 = 10;

/// How long a probe of HTTP/3 blocks the next one: its task may have been cancelled.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// The versions of HTTP to try for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocols {
    /// HTTP/3, then HTTP/2 if it fails.
    H3ThenH2,
    H3,
    H2,
}

/// A change of state that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Usable,
    /// UDP is blocked; HTTP/3 is tried again after this time.
    Blocked(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Http3 {
    Untried,
    Usable,
    Blocked { until: Instant, backoff: Duration },
    Probing { since: Instant, backoff: Duration },
}

/// The state of HTTP/3 to one edge.
#[derive(Debug)]
pub(crate) struct ProtocolSelector {
    mode: HttpMode,
    retry_interval: Duration,
    http3: Http3,
}

impl ProtocolSelector {
    pub(crate) fn new(mode: HttpMode, retry_interval: Duration) -> Self {
        Self { mode, retry_interval, http3: Http3::Untried }
    }

    /// The versions to try now. After a back-off one request probes HTTP/3 and the others use HTTP/2.
    pub(crate) fn select(&mut self, now: Instant) -> Protocols {
        match (self.mode, self.http3) {
            (HttpMode::H3, _) => Protocols::H3,
            (HttpMode::H2, _) => Protocols::H2,
            (HttpMode::Auto, Http3::Untried | Http3::Usable) => Protocols::H3ThenH2,
            (HttpMode::Auto, Http3::Blocked { until, .. }) if now < until => Protocols::H2,
            (HttpMode::Auto, Http3::Probing { since, .. }) if now < since + PROBE_TIMEOUT => Protocols::H2,
            (HttpMode::Auto, Http3::Blocked { backoff, .. } | Http3::Probing { backoff, .. }) => {
                self.http3 = Http3::Probing { since: now, backoff };
                Protocols::H3ThenH2
            }
        }
    }

    pub(crate) fn http3_succeeded(&mut self) -> Option<Change> {
        let change = (self.http3 != Http3::Usable).then_some(Change::Usable);
        self.http3 = Http3::Usable;
        change
    }

    /// HTTP/3 failed and HTTP/2 succeeded.
    pub(crate) fn only_http2_succeeded(&mut self, now: Instant) -> Option<Change> {
        let backoff = match self.http3 {
            Http3::Untried | Http3::Usable => self.retry_interval,
            Http3::Probing { backoff, .. } => (backoff * 2).min(self.retry_interval * MAX_BACKOFF_FACTOR),
            // The first failed request has decided already.
            Http3::Blocked { .. } => return None,
        };
        let known = matches!(self.http3, Http3::Probing { .. });
        self.http3 = Http3::Blocked { until: now + backoff, backoff };
        (!known).then_some(Change::Blocked(backoff))
    }

    /// Both failed: the edge is down. An unfinished probe is due again.
    pub(crate) fn both_failed(&mut self, now: Instant) {
        if let Http3::Probing { backoff, .. } = self.http3 {
            self.http3 = Http3::Blocked { until: now, backoff };
        }
    }

    /// Whether HTTP/3 succeeded last; `None` before the first request.
    pub(crate) fn http3_usable(&self) -> Option<bool> {
        match self.http3 {
            Http3::Untried => None,
            Http3::Usable => Some(true),
            Http3::Blocked { .. } | Http3::Probing { .. } => Some(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn auto() -> (ProtocolSelector, Instant) {
        (ProtocolSelector::new(HttpMode::Auto, MINUTE), Instant::now())
    }

    #[test]
    fn http3_is_tried_first_and_its_first_success_is_reported() {
        let (mut selector, now) = auto();
        assert_eq!((selector.select(now), selector.http3_usable()), (Protocols::H3ThenH2, None));
        assert_eq!(selector.http3_succeeded(), Some(Change::Usable));
        assert_eq!(selector.http3_succeeded(), None);
        assert_eq!((selector.select(now), selector.http3_usable()), (Protocols::H3ThenH2, Some(true)));
    }

    #[test]
    fn blocked_udp_is_remembered_and_reported_once() {
        let (mut selector, now) = auto();
        selector.http3_succeeded();
        assert_eq!(selector.only_http2_succeeded(now), Some(Change::Blocked(MINUTE)));
        assert_eq!(selector.only_http2_succeeded(now), None, "a second request of the same moment");
        assert_eq!(selector.select(now + MINUTE - Duration::from_millis(1)), Protocols::H2);
        assert_eq!(selector.select(now + MINUTE), Protocols::H3ThenH2);
        assert_eq!(selector.select(now + MINUTE), Protocols::H2, "one probe at a time");
        assert_eq!(selector.http3_succeeded(), Some(Change::Usable));
        assert_eq!(selector.only_http2_succeeded(now), Some(Change::Blocked(MINUTE)), "the back-off starts over");
    }

    #[test]
    fn the_pause_doubles_up_to_ten_times() {
        let (mut selector, mut now) = auto();
        selector.only_http2_succeeded(now);
        let mut backoffs = Vec::new();
        for _ in 0..6 {
            let Http3::Blocked { until, backoff } = selector.http3 else { panic!("blocked") };
            backoffs.push(backoff.as_secs() / 60);
            now = until;
            assert_eq!(selector.select(now), Protocols::H3ThenH2);
            assert_eq!(selector.only_http2_succeeded(now), None, "reported already");
        }
        assert_eq!(backoffs, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn a_failure_of_both_versions_does_not_mark_udp_as_blocked() {
        let (mut selector, now) = auto();
        selector.both_failed(now);
        assert_eq!((selector.select(now), selector.http3_usable()), (Protocols::H3ThenH2, None));
        selector.only_http2_succeeded(now);
        let later = now + MINUTE;
        selector.select(later);
        selector.both_failed(later);
        assert_eq!(selector.select(later), Protocols::H3ThenH2, "the probe is due again");
    }

    #[test]
    fn a_lost_probe_is_replaced() {
        let (mut selector, now) = auto();
        selector.only_http2_succeeded(now);
        assert_eq!(selector.select(now + MINUTE), Protocols::H3ThenH2);
        assert_eq!(selector.select(now + MINUTE + PROBE_TIMEOUT), Protocols::H3ThenH2);
    }

    #[test]
    fn a_fixed_mode_is_fixed() {
        let now = Instant::now();
        for (mode, route) in [(HttpMode::H2, Protocols::H2), (HttpMode::H3, Protocols::H3)] {
            let mut selector = ProtocolSelector::new(mode, MINUTE);
            selector.only_http2_succeeded(now);
            assert_eq!(selector.select(now), route);
        }
    }
}
