//! The clock of this machine beside the clocks of the servers that it talks to: upstreams over HTTP, the bucket, members.
//!
//! An origin whose clock is ahead publishes generations of the future, which readers remember. So a publication takes at most
//! the time of the servers and an hour. A server whose own clock is wrong stops nothing: generations grow all the same.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::HeaderMap;
use http::header::{AGE, DATE};
use prometheus::IntGauge;

/// A difference to the servers beyond which the origin is degraded.
const TOLERANCE: Duration = Duration::from_mins(5);

/// How far ahead of the servers the time of a publication may be.
const MAX_AHEAD: Duration = Duration::from_hours(1);

/// The servers whose last answer counts; further ones are not observed.
const MAX_SERVERS: usize = 64;

/// How long an answer counts.
const MAX_AGE: Duration = Duration::from_hours(2);

/// What the servers' clocks say. Clones share the observations.
#[derive(Debug, Clone, Default)]
pub struct ServerClocks {
    observations: Arc<Mutex<HashMap<String, Observation>>>,
    /// The median. `None`: no metric, as in commands.
    ahead: Option<IntGauge>,
}

/// Upstreams are compared by their configuration, whatever observes them.
impl PartialEq for ServerClocks {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for ServerClocks {}

/// The time of a server. It goes on with the monotonic clock, so a step of the clock shows at once.
#[derive(Debug, Clone, Copy)]
struct Observation {
    date: SystemTime,
    at: Instant,
}

impl ServerClocks {
    /// `ahead`: the metric of the median.
    pub fn new(ahead: IntGauge) -> Self {
        Self { observations: Arc::default(), ahead: Some(ahead) }
    }

    /// Takes the `Date` of an answer that `server` gave now (RFC 9110, section 6.6.1). An answer from a cache is ignored.
    pub fn observe(&self, server: &str, headers: &HeaderMap) {
        let date = headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
        if let Some(date) = date.filter(|_| !headers.contains_key(AGE)) {
            self.observe_at(server, date, Instant::now());
        }
    }

    fn observe_at(&self, server: &str, date: SystemTime, at: Instant) {
        let mut observations = self.observations.lock().unwrap_or_else(PoisonError::into_inner);
        if observations.len() >= MAX_SERVERS && !observations.contains_key(server) {
            observations.retain(|_, seen| at.duration_since(seen.at) < MAX_AGE);
            if observations.len() >= MAX_SERVERS {
                return;
            }
        }
        observations.insert(server.to_owned(), Observation { date, at });
        drop(observations);
        self.ahead(SystemTime::now(), at);
    }

    /// How many seconds this machine's clock is ahead of the servers': the median. `None`: no server has answered lately.
    fn ahead(&self, now: SystemTime, at: Instant) -> Option<i64> {
        let ahead = self.median(now, at);
        self.ahead.iter().for_each(|gauge| gauge.set(ahead.unwrap_or(0)));
        ahead
    }

    fn median(&self, now: SystemTime, at: Instant) -> Option<i64> {
        let observations = self.observations.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = observations.values().filter(|seen| at.duration_since(seen.at) < MAX_AGE);
        let ahead = |seen: &Observation| seconds_ahead(now, seen.date + at.duration_since(seen.at));
        let mut ahead: Vec<i64> = recent.map(ahead).collect();
        ahead.sort_unstable();
        // Of two in the middle the one that is closer to this clock.
        let middle = [ahead.len().checked_sub(1)? / 2, ahead.len() / 2];
        middle.into_iter().map(|index| ahead[index]).min_by_key(|ahead| ahead.unsigned_abs())
    }

    /// Why the clock cannot be relied on.
    pub fn problem(&self, now: SystemTime, at: Instant) -> Option<String> {
        let ahead = self.ahead(now, at).filter(|ahead| ahead.unsigned_abs() > TOLERANCE.as_secs())?;
        let by = humantime::format_duration(Duration::from_secs(ahead.unsigned_abs()));
        let side = if ahead > 0 { "ahead of" } else { "behind" };
        Some(format!(
            "the clock of this machine is {by} {side} the clocks of the servers that the origin talks to: correct it \
             (docs/how-to/clock-ahead.md)"
        ))
    }

    /// The time of a publication: `now`, but at most an hour ahead of the servers.
    pub fn bounded(&self, now: SystemTime, at: Instant) -> SystemTime {
        let ahead = u64::try_from(self.ahead(now, at).unwrap_or(0)).unwrap_or(0);
        let excess = Duration::from_secs(ahead).saturating_sub(MAX_AHEAD);
        now.checked_sub(excess).unwrap_or(now)
    }
}

fn seconds_ahead(now: SystemTime, date: SystemTime) -> i64 {
    let seconds = |ahead: Duration| i64::try_from(ahead.as_secs()).unwrap_or(i64::MAX);
    now.duration_since(date).map_or_else(|behind| -seconds(behind.duration()), seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    #[test]
    fn most_servers_decide_and_only_for_a_while() {
        let (clocks, now, at) = (ServerClocks::default(), SystemTime::now(), Instant::now());
        assert_eq!((clocks.ahead(now, at), clocks.problem(now, at)), (None, None));
        assert_eq!(clocks.bounded(now, at), now);
        clocks.observe_at("git.example", now - 30 * HOUR, at);
        assert_eq!(clocks.ahead(now, at), Some(30 * 3600));
        assert!(clocks.problem(now, at).unwrap().contains("1day 6h ahead of"));
        assert_eq!(clocks.bounded(now, at), now - 29 * HOUR);
        // One of two: that which agrees. Of three: the majority.
        clocks.observe_at("bucket.example", now, at);
        assert_eq!((clocks.problem(now, at), clocks.bounded(now, at)), (None, now));
        clocks.observe_at("charts.example", now - 31 * HOUR, at);
        assert_eq!(clocks.ahead(now, at), Some(30 * 3600));
        // A clock that is behind bounds nothing: generations grow from the last ones.
        clocks.observe_at("git.example", now + HOUR, at);
        clocks.observe_at("charts.example", now + 2 * HOUR, at);
        assert!(clocks.problem(now, at).unwrap().contains("1h behind"));
        assert_eq!(clocks.bounded(now, at), now);
        assert_eq!(clocks.ahead(now, at + MAX_AGE), None);
    }

    #[test]
    fn a_step_of_the_clock_shows_before_the_next_answer() {
        let (clocks, now, at) = (ServerClocks::default(), SystemTime::now(), Instant::now());
        clocks.observe_at("git.example", now, at);
        assert_eq!(clocks.ahead(now + HOUR, at + HOUR), Some(0), "an hour has passed");
        assert_eq!(clocks.bounded(now + 50 * HOUR, at), now + HOUR);
    }

    #[test]
    fn servers_are_bounded_and_cached_answers_ignored() {
        let (clocks, now, at) = (ServerClocks::default(), SystemTime::now(), Instant::now());
        for server in 0..2 * MAX_SERVERS {
            clocks.observe_at(&server.to_string(), now, at);
        }
        assert_eq!(clocks.observations.lock().unwrap().len(), MAX_SERVERS);
        clocks.observe_at("late", now, at + MAX_AGE);
        assert_eq!(clocks.observations.lock().unwrap().len(), 1, "answers that no longer count leave room");
        let clocks = ServerClocks::default();
        let mut headers = HeaderMap::new();
        headers.insert(DATE, httpdate::fmt_http_date(now).try_into().unwrap());
        headers.insert(AGE, 600.into());
        clocks.observe("proxy.example", &headers);
        assert_eq!(clocks.ahead(now, at), None);
        headers.remove(AGE);
        clocks.observe("proxy.example", &headers);
        assert!(clocks.ahead(now, at).unwrap() <= 1);
    }
}
