//! Periodic revalidation of the services in use, spread over the interval: it finds changes that an event stream did
//! not announce.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::task::spawn_blocking;
use weir_cache::clock::Moment;
use weir_protocol::name::ServiceName;

use super::FollowerContext;
use crate::catalog::{Entry, Lookup};

/// The most concurrent queries.
const MAX_CONCURRENT_QUERIES: usize = 8;

/// How many times in an interval services that are due are looked for.
const CHECKS_PER_INTERVAL: u32 = 20;

/// Revalidates each service in use about once per `interval`, until the drain begins.
pub(super) fn start(context: &FollowerContext, interval: Duration) {
    let context = context.clone();
    context.drain.clone().spawn(async move {
        let rounds = async {
            loop {
                tokio::time::sleep(interval / CHECKS_PER_INTERVAL).await;
                let (catalog, now) = (context.catalog.clone(), context.clock.now());
                // A scan over all services.
                let due = spawn_blocking(move || {
                    let all = catalog.all().into_iter();
                    all.filter(|(service, entry)| is_due(service, entry, now, interval))
                        .map(|(service, _)| service)
                        .collect::<Vec<_>>()
                });
                revalidate(&context.lookup, due.await.unwrap_or_default()).await;
            }
        };
        tokio::select! {
            () = rounds => {}
            () = context.drain.begun() => {}
        }
    });
}

/// Revalidates services in a task of its own.
pub(super) fn revalidate_soon(context: &FollowerContext, services: Vec<ServiceName>) {
    let (lookup, drain) = (context.lookup.clone(), context.drain.clone());
    context.drain.spawn(async move {
        tokio::select! {
            () = revalidate(&lookup, services) => {}
            () = drain.begun() => {}
        }
    });
}

async fn revalidate(lookup: &Lookup, services: impl IntoIterator<Item = ServiceName>) {
    let query = async |service: ServiceName| lookup.revalidate(&service).await;
    stream::iter(services).for_each_concurrent(MAX_CONCURRENT_QUERIES, query).await;
}

fn is_due(service: &ServiceName, entry: &Entry, now: Moment, interval: Duration) -> bool {
    let is_in_use = entry.last_request.idle(now) <= 2 * interval;
    is_in_use && entry.since_queried(now) >= jittered(service, entry.last_queried(), interval)
}

/// Half to one and a half times the interval, different for each service and round.
fn jittered(service: &ServiceName, last_queried: Moment, interval: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    (service, last_queried).hash(&mut hasher);
    interval.mul_f64(0.5 + hasher.finish() as f64 / u64::MAX as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_cache::clock::Clock;

    #[test]
    fn queries_are_spread_over_the_interval() {
        let (begin, interval) = (Clock::start().now(), Duration::from_secs(300));
        let mut quarters = [0; 4];
        for number in 0..4000 {
            let jittered = jittered(&format!("service-{number}").parse().unwrap(), begin, interval);
            assert!(jittered >= interval / 2 && jittered <= interval * 3 / 2);
            quarters[(((jittered - interval / 2).as_secs_f64() / 75.0) as usize).min(3)] += 1;
        }
        assert!(quarters.iter().all(|number| *number > 800), "{quarters:?}");
    }
}
