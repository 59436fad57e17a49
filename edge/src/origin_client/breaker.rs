//! The circuit breaker of one origin. Pure: time and chance are arguments.
//!
//! *Closed*: requests pass. [`FAILURES_TO_OPEN`] failures in a row *open* it: requests fail at once, for a back-off
//! that doubles each time. Then it is *half-open*: one trial request passes, and its result decides. Any response but
//! `401` and `403` is a success. A time-out of a request that may be slow is no failure; it only triggers a probe.

use std::time::Duration;

use weir_cache::clock::Moment;

/// Failures in a row that open the circuit. A pooled connection may be long dead, which accounts for one.
pub(crate) const FAILURES_TO_OPEN: u32 = 2;

/// The first back-off; jitter makes it 50 to 100 % of this.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);

const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// How long a trial request blocks the next one: its task may be gone.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Breaker {
    state: State,
    /// The number of back-offs since the last success.
    backoffs: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { until: Moment },
    HalfOpen { since: Moment },
}

/// The state of a circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(crate) enum Circuit {
    Closed,
    Open,
    HalfOpen,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { state: State::Closed { failures: 0 }, backoffs: 0 }
    }
}

impl Breaker {
    pub(crate) fn circuit(&self) -> Circuit {
        match self.state {
            State::Closed { .. } => Circuit::Closed,
            State::Open { .. } => Circuit::Open,
            State::HalfOpen { .. } => Circuit::HalfOpen,
        }
    }

    /// Whether the last request succeeded.
    pub(crate) fn is_healthy(&self) -> bool {
        self.state == State::Closed { failures: 0 }
    }

    /// Whether a request may be sent. Its result must be reported.
    pub(crate) fn admit(&mut self, now: Moment) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until } if now < until => false,
            State::HalfOpen { since } if now.since(since) < TRIAL_TIMEOUT => false,
            State::Open { .. } | State::HalfOpen { .. } => {
                self.state = State::HalfOpen { since: now };
                true
            }
        }
    }

    pub(crate) fn answered(&mut self) {
        *self = Self::default();
    }

    /// Reports a time-out of a request that may be slow, as the origin has to read or build the object. The next
    /// request decides.
    pub(crate) fn slow(&mut self) {
        if let State::Closed { failures } = &mut self.state {
            *failures = (*failures).max(1);
        }
    }

    /// Reports a failure. `chance`, from 0 to 1, adds jitter to the back-off.
    pub(crate) fn failed(&mut self, now: Moment, chance: f64) {
        match &mut self.state {
            State::Closed { failures } if *failures + 1 < FAILURES_TO_OPEN => *failures += 1,
            // A request from before the circuit opened.
            State::Open { .. } => {}
            State::Closed { .. } | State::HalfOpen { .. } => {
                let until = now.after(backoff(self.backoffs, chance));
                self.backoffs = self.backoffs.saturating_add(1);
                self.state = State::Open { until };
            }
        }
    }
}

/// The back-off after `before` others: doubled each time, with 50 % jitter.
fn backoff(before: u32, chance: f64) -> Duration {
    let longest = FIRST_BACKOFF.saturating_mul(1 << before.min(16)).min(MAX_BACKOFF);
    longest.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_cache::clock::Clock;

    #[test]
    fn a_dead_origin_gets_few_requests() {
        let begin = Clock::start().now();
        for chance in [0.0, 0.5, 1.0] {
            let (mut breaker, mut requests) = (Breaker::default(), 0);
            for milliseconds in 0..600_000 {
                let now = begin.after(Duration::from_millis(milliseconds));
                if breaker.admit(now) {
                    requests += 1;
                    breaker.failed(now, chance);
                }
            }
            let at_least = 600 / MAX_BACKOFF.as_secs();
            assert!((at_least..=3 * at_least).contains(&requests), "{requests} requests with chance {chance}");
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Admit,
        Answered,
        Slow,
        Failed(f64),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Admit),
            Just(Step::Answered),
            Just(Step::Slow),
            (0.0f64..=1.0).prop_map(Step::Failed),
            (0u64..20_000).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #[test]
        fn the_circuit_never_stays_open(
            steps in proptest::collection::vec(step(), 0..60),
        ) {
            let mut now = Clock::start().now();
            let mut breaker = Breaker::default();
            for step in steps {
                let before = breaker.clone();
                match step {
                    Step::Admit => {
                        if breaker.admit(now) && before.circuit() != Circuit::Closed {
                            // The trial request is the only one.
                            prop_assert!(!breaker.admit(now));
                        }
                    }
                    Step::Answered => {
                        breaker.answered();
                        prop_assert!(breaker.is_healthy());
                    }
                    Step::Slow => {
                        breaker.slow();
                        prop_assert_eq!(breaker.circuit(), before.circuit());
                        prop_assert!(!breaker.is_healthy(), "it triggers a probe only");
                    }
                    Step::Failed(chance) => {
                        breaker.failed(now, chance);
                        prop_assert!(!breaker.is_healthy());
                        if before.circuit() == Circuit::Closed {
                            prop_assert_eq!(breaker.circuit() == Circuit::Open, !before.is_healthy(), "the second in a row");
                        }
                        if breaker != before && breaker.circuit() == Circuit::Open {
                            prop_assert!(!breaker.admit(now), "a backoff is never nothing");
                        }
                    }
                    Step::Wait(milliseconds) => now = now.after(Duration::from_millis(milliseconds)),
                }
                // After the longest back-off a request passes, whatever happened.
                prop_assert!(breaker.clone().admit(now.after(MAX_BACKOFF.max(TRIAL_TIMEOUT))));
            }
        }

        #[test]
        fn pauses_are_bounded(before: u32, chance in -1.0f64..2.0) {
            let backoff = backoff(before, chance);
            prop_assert!(backoff >= FIRST_BACKOFF / 2 && backoff <= MAX_BACKOFF);
        }
    }
}
