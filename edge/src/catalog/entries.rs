//! The stored entries, and the generation floors of evicted services. Both are bounded.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use weir_protocol::name::ServiceName;

use super::entry::Entry;
use super::names::NameChanges;
use super::record::GenerationFloor;

/// The most generation floors. Beyond it the lowest generations are dropped.
pub(super) const MAX_FLOORS: usize = 200_000;

/// Enough shards that readers of different services rarely share a lock.
const SHARDS: usize = 16;

/// The fraction evicted beyond a bound: one scan makes room for many inserts.
const EVICTION_FRACTION: u64 = 64;

/// The bounds of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CatalogBounds {
    /// The most services, tombstones included.
    pub(crate) services: u64,
    /// The most memory in bytes, approximately. Descriptors on disk take no more.
    pub(crate) bytes: u64,
}

type Shard = RwLock<HashMap<ServiceName, Arc<Entry>>>;

/// The stored entries: many readers, one writer.
#[derive(Debug, Default)]
pub(super) struct Entries {
    shards: [Shard; SHARDS],
    hasher: RandomState,
    count: AtomicU64,
    bytes: AtomicU64,
    /// Services that appear or go.
    pub(super) names: NameChanges,
}

impl Entries {
    pub(super) fn get(&self, service: &ServiceName) -> Option<Arc<Entry>> {
        self.shard(service).read().unwrap_or_else(PoisonError::into_inner).get(service).cloned()
    }

    pub(super) fn insert(&self, service: ServiceName, entry: Arc<Entry>) {
        self.bytes.fetch_add(entry.weight(), Ordering::Relaxed);
        let name = service.clone();
        let replaced = self.shard(&service).write().unwrap_or_else(PoisonError::into_inner).insert(service, entry);
        match replaced {
            Some(replaced) => {
                replaced.replace();
                self.bytes.fetch_sub(replaced.weight(), Ordering::Relaxed)
            }
            None => {
                self.names.add(&name);
                self.count.fetch_add(1, Ordering::Relaxed)
            }
        };
    }

    pub(super) fn remove(&self, service: &ServiceName) -> Option<Arc<Entry>> {
        let removed = self.shard(service).write().unwrap_or_else(PoisonError::into_inner).remove(service)?;
        removed.replace();
        self.bytes.fetch_sub(removed.weight(), Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.names.add(service);
        Some(removed)
    }

    /// All entries, in no order.
    pub(super) fn all(&self) -> Vec<(ServiceName, Arc<Entry>)> {
        let mut all = Vec::with_capacity(usize::try_from(self.count()).unwrap_or_default());
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            all.extend(shard.iter().map(|(service, entry)| (service.clone(), entry.clone())));
        }
        all
    }

    /// Those of the names that are wanted, in no order.
    pub(super) fn names(&self, is_wanted: impl Fn(&ServiceName) -> bool) -> Vec<ServiceName> {
        let mut names = Vec::new();
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            names.extend(shard.keys().filter(|service| is_wanted(service)).cloned());
        }
        names
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The approximate memory of all entries, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn exceeds(&self, bounds: CatalogBounds) -> bool {
        self.count() > bounds.services || self.bytes() > bounds.bytes
    }

    /// The entries to evict when a bound is exceeded: least recently requested first, then the oldest.
    pub(super) fn least_recently_requested(&self, bounds: CatalogBounds) -> Vec<ServiceName> {
        let over = |used: u64, bound: u64| if used > bound { used - (bound - bound / EVICTION_FRACTION) } else { 0 };
        let (mut count, mut bytes) = (over(self.count(), bounds.services), over(self.bytes(), bounds.bytes));
        let mut all = self.all();
        all.sort_unstable_by_key(|(_, entry)| (entry.last_request.last(), entry.since));
        let is_needed = |(_, entry): &(_, Arc<Entry>)| {
            let is_needed = count > 0 || bytes > 0;
            (count, bytes) = (count.saturating_sub(1), bytes.saturating_sub(entry.weight()));
            is_needed
        };
        all.into_iter().take_while(is_needed).map(|(service, _)| service).collect()
    }

    fn shard(&self, service: &ServiceName) -> &Shard {
        &self.shards[self.hasher.hash_one(service) as usize % SHARDS]
    }
}

/// The generation floors of evicted services.
#[derive(Debug, Default)]
pub(super) struct GenerationFloors(HashMap<ServiceName, GenerationFloor>);

impl GenerationFloors {
    pub(super) fn get(&self, service: &ServiceName) -> Option<GenerationFloor> {
        self.0.get(service).copied()
    }

    pub(super) fn insert(&mut self, service: ServiceName, floor: GenerationFloor) {
        self.0.insert(service, floor);
        if self.0.len() > MAX_FLOORS {
            let mut generations: Vec<_> = self.0.values().map(|floor| floor.highest).collect();
            let (_, lowest, _) = generations.select_nth_unstable(MAX_FLOORS / EVICTION_FRACTION as usize);
            let lowest = *lowest;
            self.0.retain(|_, floor| floor.highest > lowest);
        }
    }

    pub(super) fn remove(&mut self, service: &ServiceName) {
        self.0.remove(service);
    }

    /// The services that have a version somewhere, and no room here.
    pub(super) fn published(&self) -> impl Iterator<Item = &ServiceName> {
        self.0.iter().filter(|(_, floor)| floor.is_published).map(|(service, _)| service)
    }

    pub(super) fn all(&self) -> Vec<(ServiceName, GenerationFloor)> {
        self.0.iter().map(|(service, floor)| (service.clone(), *floor)).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::entry::LastRequest;
    use crate::catalog::entry::tests::{descriptor, entry};
    use proptest::prelude::*;
    use std::time::Duration;
    use weir_cache::clock::Clock;

    fn name(number: usize) -> ServiceName {
        format!("s{number}").parse().unwrap()
    }

    proptest! {
        #[test]
        fn the_least_recently_requested_are_evicted_until_both_bounds_hold(
            requested in proptest::collection::vec(0u64..50, 1..200), services in 1u64..200, kilobytes in 0u64..300,
        ) {
            let (entries, started) = (Entries::default(), Clock::start().now());
            let bounds = CatalogBounds { services, bytes: kilobytes << 10 };
            for (number, second) in requested.iter().enumerate() {
                let mut row = entry(Some(descriptor(&format!("s{number}"), 5, 2, b"a")), started);
                row.last_request = LastRequest::new(started.after(Duration::from_secs(*second)));
                entries.insert(name(number), Arc::new(row));
            }
            if entries.exceeds(bounds) {
                entries.least_recently_requested(bounds).iter().for_each(|service| drop(entries.remove(service)));
            }
            prop_assert!(!entries.exceeds(bounds));
            let all = entries.all();
            prop_assert_eq!(entries.count(), all.len() as u64);
            prop_assert_eq!(entries.bytes(), all.iter().map(|(_, entry)| entry.weight()).sum::<u64>());
            let least_recently_requested = all.iter().map(|(_, entry)| entry.last_request.last()).min();
            let evicted = (0..requested.len()).filter(|number| entries.get(&name(*number)).is_none());
            let hottest = evicted.map(|number| started.after(Duration::from_secs(requested[number]))).max();
            prop_assert!(least_recently_requested.is_none() || hottest <= least_recently_requested, "{hottest:?} {least_recently_requested:?}");
        }
    }

    #[test]
    fn floors_are_bounded_and_the_lowest_generations_are_evicted_first() {
        let mut floors = GenerationFloors::default();
        for number in 0..=MAX_FLOORS {
            floors.insert(name(number), GenerationFloor { highest: (number as u64, 1), ..GenerationFloor::default() });
        }
        assert!(floors.len() <= MAX_FLOORS && floors.len() > MAX_FLOORS / 2);
        assert!(floors.get(&name(0)).is_none() && floors.get(&name(MAX_FLOORS)).is_some());
    }
}
