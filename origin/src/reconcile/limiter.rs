//! Limits the load on upstreams: permits for each kind of work, and a request budget for each host.
//!
//! Each kind has its own permits, so that a listing does not wait for fetches, and a fetch does not wait for first clones. A
//! waiter first acquires a permit of its host and then one of all, so nobody holds a global permit while waiting for a host.
//! A host has fewer than half of all permits, so that two hosts that hang leave some for others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_upstream::Endpoint;

use super::budget::Budget;
use super::state::WaitsFor;
use crate::config::LimitsConfig;
use crate::metrics::Metrics;

/// The most concurrent checks of mirrors, each of which reads a whole mirror. One cause, such as a full disk, may make all
/// mirrors suspect.
const CONCURRENT_MIRROR_CHECKS: usize = 2;

/// The work that a permit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Listing refs, which ends soon even if the host is slow.
    Listing,
    /// Fetching changes.
    Fetch,
    /// Cloning a repository, which may take hours.
    FirstClone,
    /// Fetching LFS objects of a mirrored repository.
    Lfs,
}

const KINDS: [Kind; 4] = [Kind::Listing, Kind::Fetch, Kind::FirstClone, Kind::Lfs];

/// The numbers of permits of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Caps {
    all: usize,
    per_host: usize,
}

/// The permits of one origin.
pub(crate) struct Limiter {
    caps: [Caps; KINDS.len()],
    permits: [Arc<Semaphore>; KINDS.len()],
    mirror_checks: Arc<Semaphore>,
    requests_per_minute: u32,
    /// The hosts of current repositories.
    hosts: Mutex<HashMap<String, Weak<Host>>>,
    metrics: Metrics,
}

/// The limits of an upstream host, shared by its repositories.
struct Host {
    permits: [Arc<Semaphore>; KINDS.len()],
    budget: Mutex<Budget>,
}

/// The limiter of one repository.
#[derive(Clone)]
pub(super) struct HostLimiter {
    limiter: Arc<Limiter>,
    host: Arc<Host>,
    /// The requests of one listing.
    requests_per_listing: u32,
}

/// Released when dropped.
pub(super) struct Permit {
    pub(super) kind: Kind,
    _host_permit: OwnedSemaphorePermit,
    _global_permit: OwnedSemaphorePermit,
}

impl Kind {
    /// The kind of a fetch that may be a clone.
    pub(super) fn of_fetch(is_clone: bool) -> Self {
        if is_clone { Self::FirstClone } else { Self::Fetch }
    }

    fn caps(self, limits: &LimitsConfig) -> Caps {
        let (fetches, per_host) = (limits.concurrent_fetches, limits.concurrent_fetches_per_host);
        let (all, per_host) = match self {
            Self::Listing => (limits.concurrent_listings, per_host),
            Self::Fetch => (fetches, per_host),
            // One permit more than half, so that two hosts that each use half of their quota leave one permit free.
            Self::FirstClone | Self::Lfs => (fetches / 2 + 1, per_host.div_ceil(2)),
        };
        let fewer_than_half = all.saturating_sub(1) / 2;
        Caps { all, per_host: per_host.min(fewer_than_half).max(1) }
    }

    /// The name of the limit in metrics.
    fn bound(self) -> &'static str {
        match self {
            Self::Listing => "listings",
            Self::Fetch => "fetches",
            Self::FirstClone => "large_fetches",
            Self::Lfs => "lfs_fetches",
        }
    }

    /// What a waiter waits for: first the permit of its host, then that of all.
    fn waits(self) -> [WaitsFor; 2] {
        match self {
            Self::Listing | Self::Fetch => [WaitsFor::HostPermit, WaitsFor::Permit],
            Self::FirstClone => [WaitsFor::LargePermit; 2],
            Self::Lfs => [WaitsFor::LfsPermit; 2],
        }
    }
}

impl Limiter {
    /// Registers the limits as metrics. For limits of hosts, the busiest host is shown.
    pub(crate) fn new(limits: &LimitsConfig, metrics: Metrics) -> Arc<Self> {
        let bounds = metrics.bounds.clone();
        let limiter = Arc::new(Self {
            caps: KINDS.map(|kind| kind.caps(limits)),
            permits: KINDS.map(|kind| bounds.semaphore(kind.bound(), kind.caps(limits).all)),
            mirror_checks: bounds.semaphore("mirror_checks", CONCURRENT_MIRROR_CHECKS),
            requests_per_minute: limits.requests_per_minute_per_host,
            hosts: Mutex::default(),
            metrics,
        });
        for (name, kind) in [("listings_per_host", Kind::Listing), ("fetches_per_host", Kind::Fetch)] {
            let cap = kind.caps(limits).per_host;
            limiter.show_busiest(name, cap, move |host| cap - host.permits[kind as usize].available_permits());
        }
        let burst = Budget::burst(limits.requests_per_minute_per_host);
        limiter.show_busiest("burst_requests_per_host", burst, |host| host.budget().in_use(Instant::now()));
        limiter
    }

    fn show_busiest(
        self: &Arc<Self>,
        name: &'static str,
        limit: usize,
        in_use: impl Fn(&Host) -> usize + Send + 'static,
    ) {
        let limiter = Arc::downgrade(self);
        self.metrics.bounds.show(name, limit, move || {
            let Some(limiter) = limiter.upgrade() else { return 0 };
            let hosts = limiter.hosts();
            hosts.values().filter_map(Weak::upgrade).map(|host| in_use(&host)).max().unwrap_or(0)
        });
    }

    /// The limiter for a repository with this upstream. All local repositories share one host.
    pub(super) fn for_upstream(self: &Arc<Self>, upstream: &Endpoint) -> HostLimiter {
        let requests_per_listing = upstream.requests_per_listing();
        let name = upstream.host().unwrap_or_default().to_owned();
        let mut hosts = self.hosts();
        hosts.retain(|_, host| host.strong_count() > 0);
        let host = hosts.get(&name).and_then(Weak::upgrade).unwrap_or_else(|| {
            let host = Arc::new(Host {
                permits: self.caps.map(|caps| Arc::new(Semaphore::new(caps.per_host))),
                budget: Mutex::new(Budget::new(self.requests_per_minute, Instant::now())),
            });
            hosts.insert(name, Arc::downgrade(&host));
            host
        });
        HostLimiter { limiter: self.clone(), host, requests_per_listing }
    }

    fn hosts(&self) -> MutexGuard<'_, HashMap<String, Weak<Host>>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostLimiter {
    /// Waits for a permit, and for a listing also for the request budget. `on_wait` is called with what is waited for, and with
    /// `None` afterwards.
    pub(super) async fn acquire(&self, kind: Kind, on_wait: impl Fn(Option<WaitsFor>)) -> Permit {
        let [at_host, among_all] = kind.waits();
        let host_permit = self.acquire_from(&self.host.permits[kind as usize], at_host, &on_wait).await;
        if kind == Kind::Listing {
            let wait = self.host.budget().reserve(self.requests_per_listing, Instant::now());
            if !wait.is_zero() {
                self.wait_for(WaitsFor::HostBudget, &on_wait, tokio::time::sleep(wait)).await;
            }
        }
        let global_permit = self.acquire_from(&self.limiter.permits[kind as usize], among_all, &on_wait).await;
        Permit { kind, _host_permit: host_permit, _global_permit: global_permit }
    }

    /// Acquires a permit if one is free.
    pub(super) fn try_acquire(&self, kind: Kind) -> Option<Permit> {
        let host_permit = self.host.permits[kind as usize].clone().try_acquire_owned().ok()?;
        let global_permit = self.limiter.permits[kind as usize].clone().try_acquire_owned().ok()?;
        Some(Permit { kind, _host_permit: host_permit, _global_permit: global_permit })
    }

    /// Waits for a permit to check a mirror.
    pub(super) async fn acquire_mirror_check(&self) -> OwnedSemaphorePermit {
        self.limiter.mirror_checks.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    async fn acquire_from(
        &self,
        permits: &Arc<Semaphore>,
        what: WaitsFor,
        on_wait: &impl Fn(Option<WaitsFor>),
    ) -> OwnedSemaphorePermit {
        if let Ok(permit) = permits.clone().try_acquire_owned() {
            return permit;
        }
        self.wait_for(what, on_wait, permits.clone().acquire_owned()).await.expect("the semaphore is never closed")
    }

    /// Awaits a future, and reports and counts the wait.
    async fn wait_for<T>(
        &self,
        what: WaitsFor,
        on_wait: &impl Fn(Option<WaitsFor>),
        future: impl Future<Output = T>,
    ) -> T {
        on_wait(Some(what));
        let start = Instant::now();
        let value = future.await;
        let waited = self.limiter.metrics.poll_wait_seconds.with_label_values(&[what.as_str()]);
        waited.inc_by(start.elapsed().as_secs_f64());
        on_wait(None);
        value
    }

    /// Takes one request from the budget. If there is none, returns the time until there is.
    pub(super) fn try_request(&self) -> Option<Duration> {
        self.host.budget().take(1, Instant::now()).err()
    }

    /// Charges the requests of a poll, except those that it had reserved.
    pub(super) fn charge(&self, requests: u32, reserved: u32) {
        self.host.budget().charge(requests.saturating_sub(reserved), Instant::now());
    }

    /// The requests that [`HostLimiter::acquire`] reserves for a listing.
    pub(super) fn requests_per_listing(&self) -> u32 {
        self.requests_per_listing
    }
}

impl Host {
    fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn limiter(concurrent_fetches: usize, concurrent_fetches_per_host: usize) -> Arc<Limiter> {
        let limits = LimitsConfig { concurrent_fetches, concurrent_fetches_per_host, ..LimitsConfig::default() };
        Limiter::new(&limits, Metrics::register(&prometheus::Registry::new()).unwrap())
    }

    /// Acquires all permits that a host can get.
    fn acquire_all(host: &HostLimiter, kind: Kind) -> Vec<Permit> {
        std::iter::from_fn(|| host.try_acquire(kind)).collect()
    }

    #[test]
    fn two_hanging_hosts_leave_permits_of_each_kind_to_others() {
        let limiter = limiter(8, 4);
        let [a, b, c] =
            ["a", "b", "c"].map(|host| limiter.for_upstream(&format!("https://{host}/shop.git").as_str().into()));
        for (kind, per_host) in KINDS.into_iter().zip([4, 3, 2, 2]) {
            let held = [&a, &b].map(|host| acquire_all(host, kind));
            assert_eq!(held.each_ref().map(Vec::len), [per_host; 2], "{kind:?}");
            assert!(c.try_acquire(kind).is_some(), "{kind:?}");
        }
    }

    #[test]
    fn with_few_permits_no_kind_of_work_blocks_another() {
        for (all, per_host) in [(1, 1), (2, 1), (2, 2), (8, 1)] {
            let limiter = limiter(all, per_host);
            let host = limiter.for_upstream(&"https://git.example/shop.git".into());
            let held: Vec<_> = KINDS.into_iter().map(|kind| acquire_all(&host, kind)).collect();
            assert!(held.iter().all(|held| !held.is_empty()), "{all} {per_host}");
        }
    }

    #[tokio::test]
    async fn a_waiter_for_its_host_has_no_global_permit_and_reports_its_wait() {
        let limiter = limiter(3, 1);
        let [a, b, c, d] =
            ["a", "b", "c", "d"].map(|host| limiter.for_upstream(&format!("https://{host}/shop.git").as_str().into()));
        let waits = std::cell::Cell::new(None);
        let acquire = |host| Box::pin(HostLimiter::acquire(host, Kind::Fetch, |what| waits.set(what)));
        let first = acquire(&a).await;
        let mut second = acquire(&a);
        assert!(futures_util::poll!(&mut second).is_pending());
        assert_eq!(waits.get(), Some(WaitsFor::HostPermit));
        let others = [acquire(&b).await, acquire(&c).await];
        let mut last = acquire(&d);
        assert!(futures_util::poll!(&mut last).is_pending());
        assert_eq!(waits.get(), Some(WaitsFor::Permit));
        drop(first);
        assert!(futures_util::poll!(&mut second).is_pending(), "d was first in the global queue");
        last.await;
        second.await;
        assert_eq!(waits.get(), None);
        drop(others);
    }
}
