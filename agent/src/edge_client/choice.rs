//! Selects the version of HTTP for one edge. Pure.
//!
//! HTTP/3 is tried first. When it fails and HTTP/2 succeeds, UDP is blocked: HTTP/3 is then avoided for a back-off that
//! doubles up to a limit. When both fail, the edge is down, which says nothing about UDP.

use std::time::{Duration, Instant};

use crate::config::HttpMode;

/// The longest back-off of HTTP/3, as a multiple of the configured interval.
const MAX_PAUSE_FACTOR: u32 = 10;

/// How long a probe of HTTP/3 blocks the next one: its task may have been cancelled.
const PROBE_PATIENCE: Duration = Duration::from_secs(30);

/// The versions of HTTP to try for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
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
    Blocked { until: Instant, pause: Duration },
    Probing { since: Instant, pause: Duration },
}

/// The state of HTTP/3 to one edge.
#[derive(Debug)]
pub(crate) struct Choice {
    mode: HttpMode,
    retry_interval: Duration,
    http3: Http3,
}

impl Choice {
    pub(crate) fn new(mode: HttpMode, retry_interval: Duration) -> Self {
        Self { mode, retry_interval, http3: Http3::Untried }
    }

    /// The versions to try now. After a back-off one request probes HTTP/3 and the others use HTTP/2.
    pub(crate) fn route(&mut self, now: Instant) -> Route {
        match (self.mode, self.http3) {
            (HttpMode::H3, _) => Route::H3,
            (HttpMode::H2, _) => Route::H2,
            (HttpMode::Auto, Http3::Untried | Http3::Usable) => Route::H3ThenH2,
            (HttpMode::Auto, Http3::Blocked { until, .. }) if now < until => Route::H2,
            (HttpMode::Auto, Http3::Probing { since, .. }) if now < since + PROBE_PATIENCE => Route::H2,
            (HttpMode::Auto, Http3::Blocked { pause, .. } | Http3::Probing { pause, .. }) => {
                self.http3 = Http3::Probing { since: now, pause };
                Route::H3ThenH2
            }
        }
    }

    pub(crate) fn http3_answered(&mut self) -> Option<Change> {
        let change = (self.http3 != Http3::Usable).then_some(Change::Usable);
        self.http3 = Http3::Usable;
        change
    }

    /// HTTP/3 failed and HTTP/2 succeeded.
    pub(crate) fn only_http2_answered(&mut self, now: Instant) -> Option<Change> {
        let pause = match self.http3 {
            Http3::Untried | Http3::Usable => self.retry_interval,
            Http3::Probing { pause, .. } => (pause * 2).min(self.retry_interval * MAX_PAUSE_FACTOR),
            // The first failed request has decided already.
            Http3::Blocked { .. } => return None,
        };
        let known = matches!(self.http3, Http3::Probing { .. });
        self.http3 = Http3::Blocked { until: now + pause, pause };
        (!known).then_some(Change::Blocked(pause))
    }

    /// Both failed: the edge is down. An unfinished probe is due again.
    pub(crate) fn nothing_answered(&mut self, now: Instant) {
        if let Http3::Probing { pause, .. } = self.http3 {
            self.http3 = Http3::Blocked { until: now, pause };
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

    fn auto() -> (Choice, Instant) {
        (Choice::new(HttpMode::Auto, MINUTE), Instant::now())
    }

    #[test]
    fn http3_comes_first_and_its_first_answer_is_news() {
        let (mut choice, now) = auto();
        assert_eq!((choice.route(now), choice.http3_usable()), (Route::H3ThenH2, None));
        assert_eq!(choice.http3_answered(), Some(Change::Usable));
        assert_eq!(choice.http3_answered(), None);
        assert_eq!((choice.route(now), choice.http3_usable()), (Route::H3ThenH2, Some(true)));
    }

    #[test]
    fn blocked_udp_is_remembered_and_said_once() {
        let (mut choice, now) = auto();
        choice.http3_answered();
        assert_eq!(choice.only_http2_answered(now), Some(Change::Blocked(MINUTE)));
        assert_eq!(choice.only_http2_answered(now), None, "a second request of the same moment");
        assert_eq!(choice.route(now + MINUTE - Duration::from_millis(1)), Route::H2);
        assert_eq!(choice.route(now + MINUTE), Route::H3ThenH2);
        assert_eq!(choice.route(now + MINUTE), Route::H2, "one probe at a time");
        assert_eq!(choice.http3_answered(), Some(Change::Usable));
        assert_eq!(choice.only_http2_answered(now), Some(Change::Blocked(MINUTE)), "the pause begins anew");
    }

    #[test]
    fn the_pause_doubles_up_to_ten_times() {
        let (mut choice, mut now) = auto();
        choice.only_http2_answered(now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let Http3::Blocked { until, pause } = choice.http3 else { panic!("blocked") };
            pauses.push(pause.as_secs() / 60);
            now = until;
            assert_eq!(choice.route(now), Route::H3ThenH2);
            assert_eq!(choice.only_http2_answered(now), None, "said already");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn an_edge_that_is_away_says_nothing_about_udp() {
        let (mut choice, now) = auto();
        choice.nothing_answered(now);
        assert_eq!((choice.route(now), choice.http3_usable()), (Route::H3ThenH2, None));
        choice.only_http2_answered(now);
        let later = now + MINUTE;
        choice.route(later);
        choice.nothing_answered(later);
        assert_eq!(choice.route(later), Route::H3ThenH2, "the probe is due again");
    }

    #[test]
    fn a_probe_that_never_came_back_is_replaced() {
        let (mut choice, now) = auto();
        choice.only_http2_answered(now);
        assert_eq!(choice.route(now + MINUTE), Route::H3ThenH2);
        assert_eq!(choice.route(now + MINUTE + PROBE_PATIENCE), Route::H3ThenH2);
    }

    #[test]
    fn a_fixed_mode_is_fixed() {
        let now = Instant::now();
        for (mode, route) in [(HttpMode::H2, Route::H2), (HttpMode::H3, Route::H3)] {
            let mut choice = Choice::new(mode, MINUTE);
            choice.only_http2_answered(now);
            assert_eq!(choice.route(now), route);
        }
    }
}
