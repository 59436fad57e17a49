//! Selects the version of HTTP for one edge. Pure.
//!
//! HTTP/3 is preferred. A request for which its handshake takes too long uses HTTP/2, while the handshake goes on. When the
//! handshake fails and HTTP/2 worked meanwhile, UDP is blocked: HTTP/3 is then avoided for a back-off that doubles up to a
//! limit. When both fail, the edge is down, which says nothing about UDP.

use std::time::{Duration, Instant};

use crate::config::HttpMode;

/// The longest back-off of HTTP/3, as a multiple of the configured interval.
const MAX_BACKOFF_FACTOR: u32 = 10;

/// How long a probe of HTTP/3 blocks the next one: its request may have been cancelled.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an edge may refuse handshakes because it is restarted.
const RESTART: Duration = Duration::from_secs(30);

/// The versions of HTTP to try for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocols {
    /// HTTP/3, or HTTP/2 if that fails or takes too long to connect.
    H3OrH2,
    H3,
    H2,
}

/// A change of state that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Http3Change {
    Usable,
    /// UDP is blocked; HTTP/3 is tried again after this time.
    Blocked(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Http3 {
    Untried,
    Usable,
    Blocked {
        until: Instant,
        backoff: Duration,
    },
    Probing {
        since: Instant,
        backoff: Duration,
    },
    /// A handshake succeeded after a back-off. No request has yet.
    Connected {
        backoff: Duration,
    },
}

/// What is known since the last handshake began, or the last response over HTTP/3.
#[derive(Debug, Default)]
struct Evidence {
    http3_failed: bool,
    /// Whether HTTP/2 answered; `false` once it failed.
    http2_answers: Option<bool>,
}

/// The state of HTTP/3 to one edge.
#[derive(Debug)]
pub(crate) struct ProtocolSelector {
    mode: HttpMode,
    retry_interval: Duration,
    http3: Http3,
    evidence: Evidence,
    /// Since when the edge refuses handshakes, and when it last did.
    refused: Option<(Instant, Instant)>,
}

impl ProtocolSelector {
    pub(crate) fn new(mode: HttpMode, retry_interval: Duration) -> Self {
        Self { mode, retry_interval, http3: Http3::Untried, evidence: Evidence::default(), refused: None }
    }

    /// The versions to try now. After a back-off one request probes HTTP/3 and the others use HTTP/2.
    pub(crate) fn select(&mut self, now: Instant) -> Protocols {
        match (self.mode, self.http3) {
            (HttpMode::H3, _) => Protocols::H3,
            (HttpMode::H2, _) => Protocols::H2,
            (HttpMode::Auto, Http3::Untried | Http3::Usable | Http3::Connected { .. }) => Protocols::H3OrH2,
            (HttpMode::Auto, Http3::Blocked { until, .. }) if now < until => Protocols::H2,
            (HttpMode::Auto, Http3::Probing { since, .. }) if now < since + PROBE_TIMEOUT => Protocols::H2,
            (HttpMode::Auto, Http3::Blocked { backoff, .. } | Http3::Probing { backoff, .. }) => {
                self.http3 = Http3::Probing { since: now, backoff };
                Protocols::H3OrH2
            }
        }
    }

    pub(crate) fn handshake_began(&mut self) {
        self.evidence = Evidence::default();
    }

    /// A handshake succeeded: the next requests use HTTP/3.
    pub(crate) fn connected(&mut self) {
        if let Http3::Blocked { backoff, .. } | Http3::Probing { backoff, .. } = self.http3 {
            self.http3 = Http3::Connected { backoff };
        }
    }

    /// HTTP/3 gave a response.
    pub(crate) fn http3_succeeded(&mut self) -> Option<Http3Change> {
        let change = (self.http3 != Http3::Usable).then_some(Http3Change::Usable);
        self.refused = None;
        self.http3 = Http3::Usable;
        self.evidence = Evidence::default();
        change
    }

    /// A handshake failed, or a connection is dead.
    pub(crate) fn http3_failed(&mut self, now: Instant) -> Option<Http3Change> {
        self.evidence.http3_failed = true;
        self.conclude(now)
    }

    /// The edge refused a handshake, over UDP: it is being restarted. One that goes on refusing has too many connections.
    pub(crate) fn http3_refused(&mut self, now: Instant) -> Option<Http3Change> {
        let before = self.refused.filter(|(_, last)| now.duration_since(*last) < RESTART);
        let since = before.map_or(now, |(since, _)| since);
        self.refused = Some((since, now));
        if now.duration_since(since) < RESTART { None } else { self.http3_failed(now) }
    }

    /// A request over HTTP/2 was answered, or failed. Then the edge is down, and an unfinished probe is due again.
    pub(crate) fn http2_ended(&mut self, is_answered: bool, now: Instant) -> Option<Http3Change> {
        if is_answered {
            self.evidence.http2_answers.get_or_insert(true);
            return self.conclude(now);
        }
        self.evidence.http2_answers = Some(false);
        if let Http3::Probing { backoff, .. } = self.http3 {
            self.http3 = Http3::Blocked { until: now, backoff };
        }
        None
    }

    fn conclude(&mut self, now: Instant) -> Option<Http3Change> {
        if !self.evidence.http3_failed || self.evidence.http2_answers != Some(true) {
            return None;
        }
        let (backoff, is_known) = match self.http3 {
            Http3::Untried | Http3::Usable => (self.retry_interval, false),
            Http3::Probing { backoff, .. } | Http3::Connected { backoff } => {
                ((backoff * 2).min(self.retry_interval * MAX_BACKOFF_FACTOR), true)
            }
            // Another request has found it already.
            Http3::Blocked { .. } => return None,
        };
        self.http3 = Http3::Blocked { until: now + backoff, backoff };
        (!is_known).then_some(Http3Change::Blocked(backoff))
    }

    /// Whether HTTP/3 succeeded last; `None` before the first response.
    pub(crate) fn http3_usable(&self) -> Option<bool> {
        match self.http3 {
            Http3::Untried => None,
            Http3::Usable => Some(true),
            Http3::Blocked { .. } | Http3::Probing { .. } | Http3::Connected { .. } => Some(false),
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

    /// A handshake fails, and the request succeeds over HTTP/2.
    fn falls_back(selector: &mut ProtocolSelector, now: Instant) -> Option<Http3Change> {
        selector.handshake_began();
        assert_eq!(selector.http3_failed(now), None);
        selector.http2_ended(true, now)
    }

    #[test]
    fn http3_is_tried_first_and_its_first_success_is_reported() {
        let (mut selector, now) = auto();
        assert_eq!((selector.select(now), selector.http3_usable()), (Protocols::H3OrH2, None));
        assert_eq!(selector.http3_succeeded(), Some(Http3Change::Usable));
        assert_eq!(selector.http3_succeeded(), None);
        assert_eq!((selector.select(now), selector.http3_usable()), (Protocols::H3OrH2, Some(true)));
    }

    #[test]
    fn a_slow_handshake_is_no_reason_to_avoid_http3_before_it_fails() {
        let (mut selector, now) = auto();
        selector.handshake_began();
        for _ in 0..3 {
            assert_eq!(selector.http2_ended(true, now), None);
            assert_eq!((selector.select(now), selector.http3_usable()), (Protocols::H3OrH2, None));
        }
        selector.connected();
        assert_eq!(selector.select(now), Protocols::H3OrH2);
        assert_eq!(selector.http3_succeeded(), Some(Http3Change::Usable));
        // The same with the other end.
        selector.handshake_began();
        assert_eq!(selector.http2_ended(true, now), None);
        assert_eq!(selector.http3_failed(now), Some(Http3Change::Blocked(MINUTE)));
        assert_eq!(selector.select(now), Protocols::H2);
    }

    #[test]
    fn blocked_udp_is_remembered_and_reported_once() {
        let (mut selector, now) = auto();
        selector.http3_succeeded();
        assert_eq!(falls_back(&mut selector, now), Some(Http3Change::Blocked(MINUTE)));
        assert_eq!(selector.http2_ended(true, now), None, "a second request of the same moment");
        assert_eq!(selector.select(now + MINUTE - Duration::from_millis(1)), Protocols::H2);
        assert_eq!(selector.select(now + MINUTE), Protocols::H3OrH2);
        assert_eq!(selector.select(now + MINUTE), Protocols::H2, "one probe at a time");
        selector.handshake_began();
        selector.connected();
        assert_eq!((selector.select(now + MINUTE), selector.http3_usable()), (Protocols::H3OrH2, Some(false)));
        assert_eq!(selector.http3_succeeded(), Some(Http3Change::Usable));
        assert_eq!(falls_back(&mut selector, now), Some(Http3Change::Blocked(MINUTE)), "the back-off starts over");
    }

    #[test]
    fn the_pause_doubles_up_to_ten_times() {
        let (mut selector, mut now) = auto();
        falls_back(&mut selector, now);
        let mut backoffs = Vec::new();
        for round in 0..6 {
            let Http3::Blocked { until, backoff } = selector.http3 else { panic!("blocked") };
            backoffs.push(backoff.as_secs() / 60);
            now = until;
            assert_eq!(selector.select(now), Protocols::H3OrH2);
            if round % 2 == 0 {
                assert_eq!(falls_back(&mut selector, now), None, "reported already");
            } else {
                // Handshakes pass, and larger datagrams do not.
                selector.handshake_began();
                selector.connected();
                selector.http3_failed(now);
                assert_eq!(selector.http2_ended(true, now), None);
            }
        }
        assert_eq!(backoffs, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn a_failure_of_both_versions_does_not_mark_udp_as_blocked() {
        let (mut selector, now) = auto();
        selector.handshake_began();
        selector.http2_ended(false, now);
        selector.http3_failed(now);
        // It came back before the handshake had failed: that was too late for the handshake.
        assert_eq!(selector.http2_ended(true, now), None);
        assert_eq!((selector.select(now), selector.http3_usable()), (Protocols::H3OrH2, None));
        falls_back(&mut selector, now);
        let later = now + MINUTE;
        selector.select(later);
        selector.http2_ended(false, later);
        assert_eq!(selector.select(later), Protocols::H3OrH2, "the probe is due again");
    }

    #[test]
    fn a_refusal_by_an_edge_that_is_restarted_does_not_mark_udp_as_blocked() {
        let (mut selector, now) = auto();
        selector.http3_succeeded();
        let refused = |selector: &mut ProtocolSelector, seconds| {
            let at = now + Duration::from_secs(seconds);
            selector.handshake_began();
            (selector.http3_refused(at), selector.http2_ended(true, at), selector.select(at))
        };
        for seconds in [0, 1, 20, 29] {
            assert_eq!(refused(&mut selector, seconds), (None, None, Protocols::H3OrH2));
        }
        assert_eq!(refused(&mut selector, 30), (None, Some(Http3Change::Blocked(MINUTE)), Protocols::H2));
        selector.http3_succeeded();
        assert_eq!(refused(&mut selector, 31), (None, None, Protocols::H3OrH2), "another restart");
        assert_eq!(refused(&mut selector, 400), (None, None, Protocols::H3OrH2), "a third, without an answer between");
    }

    #[test]
    fn a_lost_probe_is_replaced() {
        let (mut selector, now) = auto();
        falls_back(&mut selector, now);
        assert_eq!(selector.select(now + MINUTE), Protocols::H3OrH2);
        assert_eq!(selector.select(now + MINUTE + PROBE_TIMEOUT), Protocols::H3OrH2);
    }

    #[test]
    fn a_fixed_mode_is_fixed() {
        let now = Instant::now();
        for (mode, route) in [(HttpMode::H2, Protocols::H2), (HttpMode::H3, Protocols::H3)] {
            let mut selector = ProtocolSelector::new(mode, MINUTE);
            falls_back(&mut selector, now);
            assert_eq!(selector.select(now), route);
        }
    }
}
