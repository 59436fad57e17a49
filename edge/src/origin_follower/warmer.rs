//! Fetches new versions of what is in use before anybody asks for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use weir_shared::encoding::Encoding;
use weir_shared::name::ServiceName;

use super::Following;
use crate::blob_cache::{BlobCache, Wanted};
use crate::clock::Clock;
use crate::config::PushConfig;
use crate::metrics::FollowerMetrics;
use crate::service_table::{Entry, Table};

/// Services that wait for their turn. Further ones are fetched when somebody asks.
const MAX_WAITING: usize = 10_000;

/// Services whose blobs are fetched at a time, at the most.
const MAX_AT_A_TIME: usize = 4;

/// Hands on what is to be fetched. Cheap to clone.
#[derive(Clone)]
pub(super) struct Warmer {
    waiting: mpsc::Sender<ServiceName>,
    within: Duration,
    clock: Clock,
    metrics: FollowerMetrics,
}

impl Warmer {
    /// Starts the task. `fills`: the blobs that are fetched at a time for whomever; most of them are left to clients.
    pub(super) fn start(following: &Following, blobs: BlobCache, config: &PushConfig, fills: usize) -> Self {
        let (waiting, next) = mpsc::channel(MAX_WAITING);
        let turns = (fills / 4).clamp(1, MAX_AT_A_TIME);
        following.drain.spawn(warm_all(following.clone(), blobs, next, turns));
        let (clock, metrics) = (following.clock, following.metrics.clone());
        Self { waiting, within: config.warm_within, clock, metrics }
    }

    /// A service has a new version: it is fetched when clients have asked for the service not long ago.
    pub(super) fn consider(&self, service: ServiceName, entry: &Entry) {
        if !self.within.is_zero() && entry.usage.idle(self.clock.now()) <= self.within {
            let begun = self.waiting.try_send(service).is_ok();
            self.metrics.warmed(if begun { "begun" } else { "dropped" });
        }
    }
}

async fn warm_all(following: Following, blobs: BlobCache, mut next: mpsc::Receiver<ServiceName>, turns: usize) {
    let turns = Arc::new(Semaphore::new(turns));
    let all = async {
        while let Some(service) = next.recv().await {
            let Ok(turn) = turns.clone().acquire_owned().await else { return };
            let (table, blobs, drain) = (following.table.clone(), blobs.clone(), following.drain.clone());
            following.drain.spawn(async move {
                tokio::select! {
                    () = warm(&table, &blobs, &service) => {}
                    () = drain.begun() => {}
                }
                drop(turn);
            });
        }
    };
    tokio::select! {
        () = all => {}
        () = following.drain.begun() => {}
    }
}

/// Fetches what clients of a service will want of its version: zstd, and the codings in which they have read it.
async fn warm(table: &Table, blobs: &BlobCache, service: &ServiceName) {
    // What was waited for may be superseded by now: only the newest is of use.
    let Some(entry) = table.hot(service) else { return };
    let Some(version) = &entry.version else { return };
    for stored in version.descriptor().representations() {
        if stored.encoding == Encoding::Zstd || entry.usage.was_read(stored.encoding) {
            blobs.warm(Wanted { digest: stored.digest, size: stored.size, origin: entry.origin }).await;
        }
    }
}
