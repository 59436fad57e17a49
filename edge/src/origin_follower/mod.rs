//! Follows the event streams of the origins, so that publications are in the catalog within milliseconds.
//!
//! One task learns who the [`members`] are. One task per origin ([`follower`]) reads its [`stream`], reconnects after a [`backoff`] and applies the events to the
//! catalog. New versions of services in use are prefetched ([`prefetcher`]). A [`periodic_revalidation`] finds changes
//! that a stream did not announce.

mod backoff;
mod follower;
mod members;
mod metrics;
mod periodic_revalidation;
mod prefetcher;
mod shards;
mod stream;

use std::sync::Arc;

use tokio::sync::Notify;
use weir_cache::Cache;
use weir_cache::clock::Clock;
use weir_runtime::shutdown::Drain;

use self::prefetcher::Prefetcher;
use crate::access::Access;
use crate::catalog::{Catalog, Lookup};
use crate::config::PushConfig;
use crate::origin_client::Origins;

pub(crate) use self::members::MembersFile;
pub(crate) use self::metrics::FollowerMetrics;

/// The dependencies of a follower. Cheap to clone.
#[derive(Clone)]
pub(crate) struct FollowerContext {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) lookup: Lookup,
    pub(crate) origins: Arc<Origins>,
    pub(crate) access: Access,
    /// Notified when the members may have changed.
    pub(crate) members_changed: Arc<Notify>,
    pub(crate) clock: Clock,
    pub(crate) metrics: FollowerMetrics,
    pub(crate) drain: Drain,
}

/// Learns the members and follows all of them until the drain begins. `fills`: the most concurrent fills per origin.
pub(crate) fn start(context: &FollowerContext, cache: Cache, config: &PushConfig, fills: usize, file: MembersFile) {
    let prefetcher = Prefetcher::start(context, cache, config.prefetch_within, fills);
    periodic_revalidation::start(context, config.revalidate_interval);
    context.drain.spawn(members::follow(context.clone(), prefetcher, file));
}
