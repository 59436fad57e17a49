//! Follows the event streams of the origins, so that what they publish is in the catalog within milliseconds.
//!
//! One task for each origin ([`follower`]) reads its stream ([`stream`]), comes back after a [`pause`] when it breaks
//! off, and applies its events to the catalog. New versions of what is in use are fetched before a client asks for them
//! ([`prefetcher`]), and the origin is queried now and then all the same ([`periodic_revalidation`]).

mod follower;
mod metrics;
mod pause;
mod periodic_revalidation;
mod prefetcher;
mod stream;

use std::sync::Arc;

use weir_runtime::shutdown::Drain;

use self::follower::Follower;
use self::prefetcher::Prefetcher;
use crate::access::Access;
use crate::cache::Cache;
use crate::catalog::{Catalog, Lookup};
use crate::clock::Clock;
use crate::config::PushConfig;
use crate::origin_client::Origins;

pub(crate) use self::metrics::FollowerMetrics;

/// What a follower works with. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Following {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) lookup: Lookup,
    pub(crate) origins: Arc<Origins>,
    pub(crate) access: Access,
    pub(crate) clock: Clock,
    pub(crate) metrics: FollowerMetrics,
    pub(crate) drain: Drain,
}

/// Follows all origins until the drain begins. `fetches`: the objects that are fetched at a time for whomever.
pub(crate) fn start(following: &Following, cache: Cache, config: &PushConfig, fetches: usize) {
    let prefetcher = Prefetcher::start(following, cache, config.prefetch_within, fetches);
    periodic_revalidation::start(following, config.revalidate_interval);
    for id in 0..following.origins.all().len() {
        following.drain.spawn(Follower::new(id, following.clone(), prefetcher.clone()).run());
    }
}
