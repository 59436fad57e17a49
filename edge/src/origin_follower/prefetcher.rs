//! Prefetches new versions of services in use.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use weir_cache::clock::Clock;
use weir_cache::{BodyRequest, Cache};
use weir_protocol::encoding::Encoding;
use weir_protocol::name::ServiceName;

use super::FollowerContext;
use super::metrics::FollowerMetrics;
use crate::catalog::{Catalog, Entry};
use crate::version::Version;

/// The most queued services. Further ones are fetched on request.
const MAX_QUEUED: usize = 10_000;

/// The most concurrent prefetches.
const MAX_CONCURRENT_PREFETCHES: usize = 4;

/// A service, and whether clients of registries pull it.
type Queued = (ServiceName, bool);

/// A queue of services to prefetch. Cheap to clone.
#[derive(Clone)]
pub(super) struct Prefetcher {
    waiting: mpsc::Sender<Queued>,
    within: Duration,
    clock: Clock,
    metrics: FollowerMetrics,
}

impl Prefetcher {
    /// Starts the task. `within`: only services that a client requested within this time. `fills`: the most
    /// concurrent fills per origin, most of which are left to clients.
    pub(super) fn start(context: &FollowerContext, cache: Cache, within: Duration, fills: usize) -> Self {
        let (waiting, next) = mpsc::channel(MAX_QUEUED);
        let permits = (fills / 4).clamp(1, MAX_CONCURRENT_PREFETCHES);
        context.drain.spawn(prefetch_all(context.clone(), cache, next, permits));
        let (clock, metrics) = (context.clock, context.metrics.clone());
        Self { waiting, within, clock, metrics }
    }

    /// Queues a service with a new version if a client requested it recently.
    pub(super) fn enqueue(&self, service: ServiceName, entry: &Entry) {
        let now = self.clock.now();
        if !self.within.is_zero() && entry.last_request.idle(now) <= self.within {
            let is_pulled = entry.last_request.idle_pull(now) <= self.within;
            let queued = self.waiting.try_send((service, is_pulled)).is_ok();
            self.metrics.prefetched(if queued { "begun" } else { "dropped" });
        }
    }
}

async fn prefetch_all(context: FollowerContext, cache: Cache, mut next: mpsc::Receiver<Queued>, permits: usize) {
    let permits = Arc::new(Semaphore::new(permits));
    let all = async {
        while let Some((service, is_pulled)) = next.recv().await {
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let (catalog, cache, drain) = (context.catalog.clone(), cache.clone(), context.drain.clone());
            context.drain.spawn(async move {
                tokio::select! {
                    () = prefetch(&catalog, &cache, &service, is_pulled) => {}
                    () = drain.begun() => {}
                }
                drop(permit);
            });
        }
    };
    tokio::select! {
        () = all => {}
        () = context.drain.begun() => {}
    }
}

/// Prefetches the zstd representations of a service and of its staged version: most clients use zstd, and identity is made from
/// it. `is_pulled`: also the blobs of the OCI form.
async fn prefetch(catalog: &Catalog, cache: &Cache, service: &ServiceName, is_pulled: bool) {
    // Only the newest version is prefetched.
    let Some(entry) = catalog.get(service) else { return };
    for version in entry.version.iter().flat_map(Version::all) {
        let publication = version.descriptor().publication();
        let zstd = version.descriptor().representation(Encoding::Zstd).map(|zstd| (zstd.clone(), publication.size));
        let form = version.descriptor().oci().filter(|_| is_pulled);
        let blobs = form.into_iter().flat_map(|form| &form.blobs).map(|blob| version.blob(blob));
        for (stored, tar_size) in zstd.into_iter().chain(blobs) {
            let (repository, origin) = (publication.repository.clone(), entry.origin);
            cache.prefetch(BodyRequest { repository, origin, stored, tar_size, request_id: None }).await;
        }
    }
}
