//! The freshness policy of a service (RFC 9111, RFC 5861). Pure.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use weir_protocol::name::ServiceName;
use weir_protocol::name_glob::NameGlob;

use crate::config::{AuthMode, Config, FreshnessConfig};

/// `stale-if-error` when no maximum is configured, in seconds: a year.
const WITHOUT_END: u64 = 31_536_000;

/// The freshness of a version at some age, from the mildest to the strictest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case", const_into_str)]
pub(crate) enum Freshness {
    /// Serve it without revalidation.
    Fresh,
    /// Serve it and revalidate in the background.
    StaleWhileRevalidate,
    /// Revalidate first; serve the stored version when that fails.
    Revalidate,
    /// Revalidate first; answer `504` when that fails.
    Expired,
}

/// The limits of a service and the `Cache-Control` that states them.
#[derive(Debug)]
pub(crate) struct FreshnessPolicy {
    pub(crate) limits: FreshnessConfig,
    pub(crate) cache_control: HeaderValue,
    /// The same of a version that not all agents get.
    pub(crate) private_cache_control: HeaderValue,
}

/// The policies of an edge. The first whose pattern matches a service applies.
#[derive(Debug)]
pub(crate) struct FreshnessPolicies {
    by_name: Vec<(NameGlob, Arc<FreshnessPolicy>)>,
    default: Arc<FreshnessPolicy>,
}

impl FreshnessConfig {
    /// Evaluates the freshness at `age` since the last validation.
    pub(crate) fn evaluate(&self, age: Duration) -> Freshness {
        let past = match age.checked_sub(self.fresh) {
            None | Some(Duration::ZERO) => return Freshness::Fresh,
            Some(past) => past,
        };
        if past <= self.stale_while_revalidate {
            Freshness::StaleWhileRevalidate
        } else if self.stale_if_error.is_some_and(|maximum| past > maximum) {
            Freshness::Expired
        } else {
            Freshness::Revalidate
        }
    }

    /// The seconds since the version became stale, rounded up; 0 when it is fresh.
    pub(crate) fn stale_for(&self, age: Duration) -> u64 {
        let past = age.saturating_sub(self.fresh);
        past.as_secs().saturating_add(u64::from(past.subsec_nanos() > 0))
    }

    /// The age that is assumed when it is unknown: it forces a revalidation, and is never beyond `stale-if-error`.
    pub(crate) fn unknown_age(&self) -> Duration {
        self.fresh
            .saturating_add(self.stale_while_revalidate)
            .saturating_add(Duration::from_secs(1))
            .min(self.stale_if_error.map_or(Duration::MAX, |maximum| self.fresh.saturating_add(maximum)))
    }

    fn cache_control(&self) -> String {
        format!(
            "max-age={}, stale-while-revalidate={}, stale-if-error={}",
            self.fresh.as_secs(),
            self.stale_while_revalidate.as_secs(),
            self.stale_if_error.map_or(WITHOUT_END, |maximum| maximum.as_secs()),
        )
    }
}

impl FreshnessPolicy {
    fn new(limits: FreshnessConfig, private: bool) -> Arc<Self> {
        let value = |text: &str| HeaderValue::try_from(text).expect("words and numbers");
        let lifetime = limits.cache_control();
        let private_cache_control = value(&format!("private, {lifetime}"));
        let cache_control = if private { private_cache_control.clone() } else { value(&lifetime) };
        Arc::new(Self { limits, cache_control, private_cache_control })
    }
}

impl FreshnessPolicies {
    pub(crate) fn configured(config: &Config) -> Self {
        let by_name = config.freshness_for.iter();
        let by_name = by_name.map(|some| (some.services.clone(), some.over(&config.freshness)));
        Self::new(by_name, config.freshness.clone(), config.auth.mode == AuthMode::Required)
    }

    /// `by_name` in the order of precedence. `private`: responses depend on the client, so shared caches must not store
    /// them.
    pub(super) fn new(
        by_name: impl IntoIterator<Item = (NameGlob, FreshnessConfig)>,
        default: FreshnessConfig,
        private: bool,
    ) -> Self {
        let by_name = by_name.into_iter().map(|(services, limits)| (services, FreshnessPolicy::new(limits, private)));
        Self { by_name: by_name.collect(), default: FreshnessPolicy::new(default, private) }
    }

    pub(crate) fn of(&self, service: &ServiceName) -> &Arc<FreshnessPolicy> {
        let own = self.by_name.iter().find(|(services, _)| services.matches(service.as_str()));
        own.map_or(&self.default, |(_, policy)| policy)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::catalog) fn limits(fresh: u64, stale_if_error: Option<u64>) -> FreshnessConfig {
        FreshnessConfig {
            fresh: Duration::from_secs(fresh),
            stale_while_revalidate: Duration::from_secs(60),
            wait: Duration::from_secs(2),
            stale_if_error: stale_if_error.map(Duration::from_secs),
        }
    }

    #[test]
    fn default_limits() {
        let limits = limits(15, None);
        assert_eq!(limits.cache_control(), "max-age=15, stale-while-revalidate=60, stale-if-error=31536000");
        for (seconds, freshness, stale_for) in [
            (0, Freshness::Fresh, 0),
            (15, Freshness::Fresh, 0),
            (16, Freshness::StaleWhileRevalidate, 1),
            (75, Freshness::StaleWhileRevalidate, 60),
            (76, Freshness::Revalidate, 61),
            (10_000_000, Freshness::Revalidate, 9_999_985),
        ] {
            let age = Duration::from_secs(seconds);
            assert_eq!((limits.evaluate(age), limits.stale_for(age)), (freshness, stale_for), "{seconds}");
        }
        assert_eq!(limits.stale_for(Duration::from_millis(15_001)), 1);
    }

    #[test]
    fn stale_if_error_limits_the_age() {
        let limits = limits(15, Some(3600));
        assert_eq!(limits.evaluate(Duration::from_secs(3615)), Freshness::Revalidate);
        assert_eq!(limits.evaluate(Duration::from_secs(3616)), Freshness::Expired);
        assert!(limits.cache_control().ends_with("stale-if-error=3600"));
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
        fn freshness_is_monotonic_in_age(
            fresh in any_duration(), swr in any_duration(), sie in proptest::option::of(any_duration()),
            one in any_duration(), other in any_duration(),
        ) {
            let limits = FreshnessConfig {
                fresh, stale_while_revalidate: swr, wait: Duration::from_secs(2),
                stale_if_error: sie.map(|maximum| maximum.max(swr)),
            };
            let (younger, older) = (one.min(other), one.max(other));
            prop_assert!(limits.evaluate(younger) <= limits.evaluate(older));
            prop_assert!(limits.stale_for(younger) <= limits.stale_for(older));
            prop_assert_eq!(limits.stale_for(one) == 0, limits.evaluate(one) == Freshness::Fresh);
            prop_assert!(limits.stale_if_error.is_some() || limits.evaluate(Duration::MAX) < Freshness::Expired);
            let unknown = limits.unknown_age();
            prop_assert!(limits.evaluate(unknown) < Freshness::Expired);
            prop_assert!(limits.evaluate(unknown) > Freshness::Fresh || unknown == fresh);
        }
    }
}
