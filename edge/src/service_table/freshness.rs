//! How old an answer may be: the whole rule, without I/O and without a clock.

use std::time::Duration;

/// What `stale-if-error` says when there is no maximum, in seconds: a year, which readers take for "without end".
const WITHOUT_END: u64 = 31_536_000;

/// The parameters of the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// How long after the origin's last word an answer is served unasked.
    pub(crate) fresh: Duration,
    /// How long after that it is served while the origin is asked in the background.
    pub(crate) stale_while_revalidate: Duration,
    /// How long a request waits for the origin after that.
    pub(crate) wait: Duration,
    /// How long past its freshness an answer is served while the origin cannot be asked. `None`: without end.
    pub(crate) stale_if_error: Option<Duration>,
}

/// What to do with an answer of a certain age. From the mildest to the strictest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// Serve it; the origin is not asked.
    Fresh,
    /// Serve it, and ask the origin in the background.
    StaleWhileRevalidate,
    /// Ask the origin, and wait for it; when it cannot be asked, serve what is held.
    Ask,
    /// Ask the origin, and wait for it; when it cannot be asked, serve nothing (`504`).
    Expired,
}

impl Verdict {
    /// The word in `/status`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Verdict::Fresh => "fresh",
            Verdict::StaleWhileRevalidate => "stale-while-revalidate",
            Verdict::Ask => "ask",
            Verdict::Expired => "expired",
        }
    }
}

impl Parameters {
    /// What to do with an answer, `age` after the origin's last word.
    pub(crate) fn judge(&self, age: Duration) -> Verdict {
        let past = match age.checked_sub(self.fresh) {
            None | Some(Duration::ZERO) => return Verdict::Fresh,
            Some(past) => past,
        };
        if past <= self.stale_while_revalidate {
            Verdict::StaleWhileRevalidate
        } else if self.stale_if_error.is_some_and(|maximum| past > maximum) {
            Verdict::Expired
        } else {
            Verdict::Ask
        }
    }

    /// For how many seconds an answer has been stale; 0 when it is fresh. Rounded up, so that every stale one says so.
    pub(crate) fn stale_for(&self, age: Duration) -> u64 {
        let past = age.saturating_sub(self.fresh);
        past.as_secs().saturating_add(u64::from(past.subsec_nanos() > 0))
    }

    /// The age that is assumed when nobody knows it: old enough that the origin is asked before anything is served, and
    /// not so old that nothing may be served without it.
    pub(crate) fn unknown_age(&self) -> Duration {
        self.fresh
            .saturating_add(self.stale_while_revalidate)
            .saturating_add(Duration::from_secs(1))
            .min(self.stale_if_error.map_or(Duration::MAX, |maximum| self.fresh.saturating_add(maximum)))
    }

    /// The rule as `Cache-Control` tells it.
    pub(crate) fn cache_control(&self) -> String {
        format!(
            "max-age={}, stale-while-revalidate={}, stale-if-error={}",
            self.fresh.as_secs(),
            self.stale_while_revalidate.as_secs(),
            self.stale_if_error.map_or(WITHOUT_END, |maximum| maximum.as_secs()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn defaults(stale_if_error: Option<u64>) -> Parameters {
        Parameters {
            fresh: Duration::from_secs(15),
            stale_while_revalidate: Duration::from_secs(60),
            wait: Duration::from_secs(2),
            stale_if_error: stale_if_error.map(Duration::from_secs),
        }
    }

    #[test]
    fn the_contract_s_defaults() {
        let parameters = defaults(None);
        assert_eq!(parameters.cache_control(), "max-age=15, stale-while-revalidate=60, stale-if-error=31536000");
        for (seconds, verdict, stale_for) in [
            (0, Verdict::Fresh, 0),
            (15, Verdict::Fresh, 0),
            (16, Verdict::StaleWhileRevalidate, 1),
            (75, Verdict::StaleWhileRevalidate, 60),
            (76, Verdict::Ask, 61),
            (10_000_000, Verdict::Ask, 9_999_985),
        ] {
            let age = Duration::from_secs(seconds);
            assert_eq!((parameters.judge(age), parameters.stale_for(age)), (verdict, stale_for), "{seconds}");
        }
        assert_eq!(parameters.stale_for(Duration::from_millis(15_001)), 1);
    }

    #[test]
    fn a_maximum_ends_it() {
        let parameters = defaults(Some(3600));
        assert_eq!(parameters.judge(Duration::from_secs(3615)), Verdict::Ask);
        assert_eq!(parameters.judge(Duration::from_secs(3616)), Verdict::Expired);
        assert!(parameters.cache_control().ends_with("stale-if-error=3600"));
    }

    fn any_duration() -> impl Strategy<Value = Duration> {
        prop_oneof![
            (0u64..200_000).prop_map(Duration::from_millis),
            any::<u64>().prop_map(Duration::from_secs),
            Just(Duration::MAX),
        ]
    }

    proptest! {
        #[test]
        fn the_older_the_stricter(
            fresh in any_duration(), swr in any_duration(), sie in proptest::option::of(any_duration()),
            one in any_duration(), other in any_duration(),
        ) {
            let parameters = Parameters {
                fresh, stale_while_revalidate: swr, wait: Duration::from_secs(2),
                stale_if_error: sie.map(|maximum| maximum.max(swr)),
            };
            let rank = |age| match parameters.judge(age) {
                Verdict::Fresh => 0,
                Verdict::StaleWhileRevalidate => 1,
                Verdict::Ask => 2,
                Verdict::Expired => 3,
            };
            let (younger, older) = (one.min(other), one.max(other));
            prop_assert!(rank(younger) <= rank(older));
            prop_assert!(parameters.stale_for(younger) <= parameters.stale_for(older));
            // What is marked stale is what is not fresh.
            prop_assert_eq!(parameters.stale_for(one) == 0, rank(one) == 0);
            // Without a maximum nothing ever expires.
            prop_assert!(parameters.stale_if_error.is_some() || rank(Duration::MAX) < 3);
            // An unknown age is never taken for fresh unless everything is, and never for expired.
            prop_assert!(rank(parameters.unknown_age()) < 3);
            prop_assert!(rank(parameters.unknown_age()) > 0 || parameters.unknown_age() == fresh);
        }
    }
}
