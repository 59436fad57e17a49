//! Follows the event streams of the origins, so that what they publish is in the table within milliseconds.
//!
//! One task for each origin ([`follower`]) reads its stream ([`stream`]), comes back after a [`pause`] when it breaks
//! off, and applies what it says to the table. New versions of what is in use are fetched before anybody asks for them
//! ([`warmer`]), and the origin is asked now and then all the same ([`safety_net`]).

mod follower;
mod pause;
mod safety_net;
mod stream;
mod warmer;

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use weir_shared::process::shutdown::Drain;

use self::follower::Follower;
use self::warmer::Warmer;
use crate::blob_cache::BlobCache;
use crate::clock::Clock;
use crate::config::Config;
use crate::metrics::FollowerMetrics;
use crate::origin_client::Origins;
use crate::service_table::{Lookup, Table};

/// What a follower works with. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Following {
    pub(crate) table: Arc<Table>,
    pub(crate) lookup: Lookup,
    pub(crate) origins: Arc<Origins>,
    pub(crate) clock: Clock,
    pub(crate) metrics: FollowerMetrics,
    pub(crate) drain: Drain,
}

/// What each origin says of who may read, as it last said it: a JSON value. In the order of the configuration.
pub(crate) type Access = Vec<watch::Receiver<Option<Bytes>>>;

/// Follows all origins until the drain begins.
pub(crate) fn start(following: &Following, blobs: BlobCache, config: &Config) -> Access {
    let warmer = Warmer::start(following, blobs, &config.push, config.cache.fills);
    safety_net::start(following, config.push.ask_interval);
    let follow = |id| {
        let (access, received) = watch::channel(None);
        let follower = Follower::new(id, following.clone(), warmer.clone(), access);
        following.drain.spawn(follower.run());
        received
    };
    (0..following.origins.all().len()).map(follow).collect()
}
