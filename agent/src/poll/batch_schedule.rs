//! When to ask for all services at once. Pure: the time and chance are arguments.

use std::time::{Duration, Instant};

use weir_protocol::name::NodeName;

use super::schedule::{ANNOUNCED_PAUSE, MAX_RETRY_AFTER, back_off, jittered};
use crate::phase::phase;

/// How long an edge is not asked that has no batch poll for this agent.
const UNAVAILABLE_FOR: Duration = Duration::from_secs(600);

/// The schedule of the batch poll.
#[derive(Debug)]
pub(crate) struct BatchSchedule {
    interval: Duration,
    /// The position of the polls in the interval, from 0 to 1.
    phase: f64,
    answered_before: bool,
    errors: u32,
    /// The agent's turn.
    next: Instant,
    /// A poll out of turn.
    wanted: Option<Instant>,
    /// No other one before this.
    not_before: Instant,
}

impl BatchSchedule {
    /// The first poll is due immediately.
    pub(crate) fn new(agent: &NodeName, interval: Duration, now: Instant) -> Self {
        let phase = phase(&[agent.as_str(), "batch"]);
        Self { interval, phase, answered_before: false, errors: 0, next: now, wanted: None, not_before: now }
    }

    pub(crate) fn next(&self) -> Instant {
        self.wanted.map_or(self.next, |wanted| wanted.min(self.next))
    }

    /// An edge answered. `random` is from 0 to 1. After the start, and after an outage, agents go back to their phases.
    /// A poll out of turn moves no turn: events that many agents get at once would gather their polls.
    pub(crate) fn answered(&mut self, now: Instant, random: f64) {
        let is_in_phase = self.answered_before && self.errors == 0;
        if self.wanted.take().is_some() && is_in_phase && now < self.next {
            return;
        }
        self.next = now
            + if is_in_phase { jittered(self.interval, random) } else { self.interval.mul_f64(0.1 + 0.9 * self.phase) };
        self.answered_before = true;
        self.errors = 0;
    }

    /// No edge answered.
    pub(crate) fn failed(&mut self, retry_after: Option<Duration>, now: Instant, random: f64) {
        let retry_after = retry_after.unwrap_or_default().min(MAX_RETRY_AFTER).mul_f64(1.0 + 0.1 * random);
        self.next = now + back_off(&mut self.errors, self.interval, random).max(retry_after);
        self.wanted = None;
    }

    /// No edge has the batch poll for this agent.
    pub(crate) fn unavailable(&mut self, now: Instant, random: f64) {
        self.errors = 0;
        self.next = now + jittered(UNAVAILABLE_FOR, random);
        self.wanted = None;
    }

    /// Something changed: a poll is due within `spread`, always at the same part of it.
    pub(crate) fn wanted(&mut self, now: Instant, spread: Duration) {
        let wanted = (now + spread.mul_f64(self.phase)).max(self.not_before);
        if self.wanted.is_none_or(|before| wanted < before) {
            (self.wanted, self.not_before) = (Some(wanted), wanted + ANNOUNCED_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    fn schedule(agent: &str, now: Instant) -> BatchSchedule {
        BatchSchedule::new(&agent.parse().unwrap(), INTERVAL, now)
    }

    #[test]
    fn agents_that_start_together_poll_apart_also_after_an_outage() {
        let now = Instant::now();
        let second = |agent: usize, outage: bool| {
            let mut schedule = schedule(&format!("cluster-{agent}"), now);
            assert_eq!(schedule.next(), now);
            if outage {
                schedule.answered(now, 0.5);
                schedule.failed(None, now, 0.5);
            }
            schedule.answered(now, 0.5);
            schedule.next() - now
        };
        for outage in [false, true] {
            let times: Vec<_> = (0..1000).map(|agent| second(agent, outage)).collect();
            assert!(times.iter().all(|time| (INTERVAL / 10..=INTERVAL).contains(time)));
            for third in 0..3 {
                let (from, to) = (INTERVAL * (1 + 3 * third) / 10, INTERVAL * (4 + 3 * third) / 10);
                let share = times.iter().filter(|time| (from..to).contains(*time)).count();
                assert!((250..=420).contains(&share), "{share} of 1000 in the third {third}");
            }
        }
    }

    #[test]
    fn a_poll_out_of_turn_moves_no_turn() {
        let start = Instant::now();
        let mut schedule = schedule("cluster-1", start);
        schedule.answered(start, 0.5);
        let (turn, event) = (schedule.next(), start + Duration::from_secs(1));
        schedule.wanted(event, Duration::ZERO);
        assert_eq!(schedule.next(), event);
        schedule.answered(event, 0.5);
        assert_eq!(schedule.next(), turn);
        schedule.wanted(turn, Duration::from_secs(10));
        schedule.answered(turn, 0.5);
        assert_eq!(schedule.next(), turn + INTERVAL, "the poll of the turn is the one that was wanted");
    }

    #[test]
    fn each_outcome_has_its_pause() {
        let now = Instant::now();
        let mut schedule = schedule("cluster-1", now);
        schedule.answered(now, 0.5);
        schedule.answered(now, 0.5);
        assert_eq!(schedule.next(), now + INTERVAL);
        schedule.wanted(now, Duration::ZERO);
        assert_eq!(schedule.next(), now);
        schedule.wanted(now, Duration::from_secs(10));
        assert_eq!(schedule.next(), now, "it is due already");
        schedule.failed(None, now, 1.0);
        assert_eq!(schedule.next(), now + Duration::from_secs(1));
        schedule.failed(None, now, 1.0);
        assert_eq!(schedule.next(), now + Duration::from_secs(2));
        schedule.failed(Some(Duration::from_secs(100)), now, 0.0);
        assert_eq!(schedule.next(), now + Duration::from_secs(100));
        schedule.unavailable(now, 0.5);
        assert_eq!(schedule.next(), now + UNAVAILABLE_FOR);
        schedule.wanted(now, Duration::from_secs(10));
        assert!(schedule.next() <= now + Duration::from_secs(10));
    }
}
