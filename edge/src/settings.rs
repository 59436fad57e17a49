//! What each part is given of the configuration. The parts know nothing of it.

use crate::cache::Limits;
use crate::catalog::{CatalogBounds, FreshnessLimits, FreshnessPolicies};
use crate::config::{AuthMode, Config, FreshnessConfig};
use crate::origin_follower::FollowOptions;

impl Config {
    /// How old an answer may be, for each service.
    pub(crate) fn freshness_policies(&self) -> FreshnessPolicies {
        let by_name = self.freshness_for.iter();
        let by_name = by_name.map(|some| (some.services.clone(), freshness_limits(&some.over(&self.freshness))));
        FreshnessPolicies::new(by_name, freshness_limits(&self.freshness), self.auth.mode == AuthMode::Required)
    }

    /// How much the catalog stores.
    pub(crate) fn catalog_bounds(&self) -> CatalogBounds {
        CatalogBounds { services: self.cache.services, bytes: self.cache.service_bytes.as_u64() }
    }

    /// How much the cache stores, and does at a time.
    pub(crate) fn cache_limits(&self) -> Limits {
        let cache = &self.cache;
        Limits {
            dir: cache.dir.clone(),
            disk: cache.disk.as_u64(),
            memory: cache.memory.as_u64(),
            in_flight: cache.in_flight.as_u64(),
            fetches: cache.fetches,
            fetch_idle: cache.fetch_idle,
            wait: cache.fetch_wait,
            waiters: cache.waiters,
            decoders: cache.decoders,
            encoders: cache.encoders,
        }
    }

    /// What the followers of event streams do besides.
    pub(crate) fn follow_options(&self) -> FollowOptions {
        FollowOptions {
            prefetch_within: self.push.warm_within,
            fetches: self.cache.fetches,
            revalidate_interval: self.push.ask_interval,
        }
    }
}

fn freshness_limits(config: &FreshnessConfig) -> FreshnessLimits {
    FreshnessLimits {
        fresh: config.fresh,
        stale_while_revalidate: config.stale_while_revalidate,
        wait: config.wait,
        stale_if_error: config.stale_if_error,
    }
}
