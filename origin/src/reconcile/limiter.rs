//! Who may ask an upstream just now: permits for each kind of work, and a budget of requests for each host.
//!
//! Each kind has permits of its own, so that a listing waits for no fetch, and a change for no first clone. Whoever wants one
//! waits at its host first and then among all: nobody takes one of all to wait for a host with it. A host has fewer than half
//! of all, so that two which hang leave some to others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::budget::Budget;
use super::state::WaitsFor;
use crate::config::LimitsConfig;
use crate::metrics::Metrics;
use crate::source::Endpoint;

/// Mirrors that are read in full at a time: what makes one doubtful, a full disk, may make all of them so.
const CLOSE_LOOKS: usize = 2;

/// What a permit is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To list refs, which ends soon even where the host drips.
    Listing,
    /// To fetch what changed.
    Fetch,
    /// To fetch a whole repository, which may take hours.
    FirstClone,
    /// To fetch LFS files of what is mirrored already.
    Lfs,
}

const KINDS: [Kind; 4] = [Kind::Listing, Kind::Fetch, Kind::FirstClone, Kind::Lfs];

/// How many permits there are of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Caps {
    all: usize,
    of_a_host: usize,
}

/// The permits of one origin.
pub(crate) struct Limiter {
    caps: [Caps; KINDS.len()],
    permits: [Arc<Semaphore>; KINDS.len()],
    mirror_checks: Arc<Semaphore>,
    requests_per_minute: u32,
    /// Those that a repository is at.
    hosts: Mutex<HashMap<String, Weak<Host>>>,
    metrics: Metrics,
}

/// An upstream host as its repositories share it.
struct Host {
    permits: [Arc<Semaphore>; KINDS.len()],
    budget: Mutex<Budget>,
}

/// The limiter as a repository at a host sees it.
#[derive(Clone)]
pub(super) struct HostLimiter {
    limiter: Arc<Limiter>,
    host: Arc<Host>,
    /// Requests that list the refs: two over HTTP, one over SSH and `git://`, none at this machine.
    listing: u32,
}

/// Others get it when this is dropped.
pub(super) struct Permit {
    pub(super) kind: Kind,
    _of_the_host: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Kind {
    /// `whole`: of a repository from its beginning.
    pub(super) fn of_fetch(whole: bool) -> Self {
        if whole { Self::FirstClone } else { Self::Fetch }
    }

    fn caps(self, limits: &LimitsConfig) -> Caps {
        let (fetches, of_a_host) = (limits.concurrent_fetches, limits.concurrent_fetches_per_host);
        let (all, of_a_host) = match self {
            Self::Listing => (limits.concurrent_listings, of_a_host),
            Self::Fetch => (fetches, of_a_host),
            // The one more lets two hosts have half of theirs each, and leaves one.
            Self::FirstClone | Self::Lfs => (fetches / 2 + 1, of_a_host.div_ceil(2)),
        };
        let fewer_than_half = all.saturating_sub(1) / 2;
        Caps { all, of_a_host: of_a_host.min(fewer_than_half).max(1) }
    }

    fn bound(self) -> &'static str {
        match self {
            Self::Listing => "listings",
            Self::Fetch => "fetches",
            Self::FirstClone => "large_fetches",
            Self::Lfs => "lfs_fetches",
        }
    }

    /// What is waited for at the host, and then among all.
    fn waits(self) -> [WaitsFor; 2] {
        match self {
            Self::Listing | Self::Fetch => [WaitsFor::HostPlace, WaitsFor::Place],
            Self::FirstClone => [WaitsFor::LargePlace; 2],
            Self::Lfs => [WaitsFor::LfsPlace; 2],
        }
    }
}

impl Limiter {
    /// Its use is shown among the bounds; of those of a host, by the one that uses the most.
    pub(crate) fn new(limits: &LimitsConfig, metrics: Metrics) -> Arc<Self> {
        let bounds = metrics.bounds.clone();
        let limiter = Arc::new(Self {
            caps: KINDS.map(|kind| kind.caps(limits)),
            permits: KINDS.map(|kind| bounds.semaphore(kind.bound(), kind.caps(limits).all)),
            mirror_checks: bounds.semaphore("mirror_checks", CLOSE_LOOKS),
            requests_per_minute: limits.requests_per_minute_per_host,
            hosts: Mutex::default(),
            metrics,
        });
        for (name, kind) in [("listings_per_host", Kind::Listing), ("fetches_per_host", Kind::Fetch)] {
            let cap = kind.caps(limits).of_a_host;
            limiter.show_busiest(name, cap, move |host| cap - host.permits[kind as usize].available_permits());
        }
        let saved_up = Budget::saved_up(limits.requests_per_minute_per_host);
        limiter.show_busiest("burst_requests_per_host", saved_up, |host| host.budget().taken(Instant::now()));
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

    /// The limiter for a repository there. Repositories on this machine share a host too.
    pub(super) fn at_host(self: &Arc<Self>, upstream: &Endpoint) -> HostLimiter {
        let listing = upstream.requests_per_listing();
        let name = upstream.host().unwrap_or_default().to_owned();
        let mut hosts = self.hosts();
        hosts.retain(|_, host| host.strong_count() > 0);
        let host = hosts.get(&name).and_then(Weak::upgrade).unwrap_or_else(|| {
            let host = Arc::new(Host {
                permits: self.caps.map(|caps| Arc::new(Semaphore::new(caps.of_a_host))),
                budget: Mutex::new(Budget::new(self.requests_per_minute, Instant::now())),
            });
            hosts.insert(name, Arc::downgrade(&host));
            host
        });
        HostLimiter { limiter: self.clone(), host, listing }
    }

    fn hosts(&self) -> MutexGuard<'_, HashMap<String, Weak<Host>>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostLimiter {
    /// Waits for a permit; for one to list, also until the host may be asked. `waits` is told what for, and that it is over.
    pub(super) async fn acquire(&self, kind: Kind, waits: impl Fn(Option<WaitsFor>)) -> Permit {
        let [at_host, among_all] = kind.waits();
        let of_the_host = self.one_of(&self.host.permits[kind as usize], at_host, &waits).await;
        if kind == Kind::Listing {
            let wait = self.host.budget().reserve(self.listing, Instant::now());
            if !wait.is_zero() {
                self.waited(WaitsFor::HostBudget, &waits, tokio::time::sleep(wait)).await;
            }
        }
        let of_all = self.one_of(&self.limiter.permits[kind as usize], among_all, &waits).await;
        Permit { kind, _of_the_host: of_the_host, _of_all: of_all }
    }

    /// A permit to fetch, if there is one just now.
    pub(super) fn try_acquire(&self, kind: Kind) -> Option<Permit> {
        let of_the_host = self.host.permits[kind as usize].clone().try_acquire_owned().ok()?;
        let of_all = self.limiter.permits[kind as usize].clone().try_acquire_owned().ok()?;
        Some(Permit { kind, _of_the_host: of_the_host, _of_all: of_all })
    }

    /// Waits for a permit to read a whole mirror.
    pub(super) async fn close_look(&self) -> OwnedSemaphorePermit {
        self.limiter.mirror_checks.clone().acquire_owned().await.expect("it is never closed")
    }

    async fn one_of(
        &self,
        permits: &Arc<Semaphore>,
        what: WaitsFor,
        waits: &impl Fn(Option<WaitsFor>),
    ) -> OwnedSemaphorePermit {
        if let Ok(permit) = permits.clone().try_acquire_owned() {
            return permit;
        }
        self.waited(what, waits, permits.clone().acquire_owned()).await.expect("it is never closed")
    }

    /// Awaits something, and tells and counts that.
    async fn waited<T>(&self, what: WaitsFor, waits: &impl Fn(Option<WaitsFor>), wanted: impl Future<Output = T>) -> T {
        waits(Some(what));
        let begun = Instant::now();
        let value = wanted.await;
        let waited = self.limiter.metrics.poll_wait_seconds.with_label_values(&[what.as_str()]);
        waited.inc_by(begun.elapsed().as_secs_f64());
        waits(None);
        value
    }

    /// Takes a request besides those of a poll. How long it has to wait, if it has to.
    pub(super) fn request(&self) -> Option<Duration> {
        self.host.budget().take(1, Instant::now()).err()
    }

    /// A poll made so many requests; those beyond the listing that it waited for (`0`: it waited for none) others wait for.
    pub(super) fn asked(&self, requests: u32, waited_for: u32) {
        self.host.budget().charge(requests.saturating_sub(waited_for), Instant::now());
    }

    /// Requests that list the refs.
    pub(super) fn listing(&self) -> u32 {
        self.listing
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

    /// What a host gets that takes all it can.
    fn all_it_can(host: &HostLimiter, kind: Kind) -> Vec<Permit> {
        std::iter::from_fn(|| host.try_acquire(kind)).collect()
    }

    #[test]
    fn two_hosts_that_hang_leave_permits_of_each_kind_to_others() {
        let limiter = limiter(8, 4);
        let [a, b, c] =
            ["a", "b", "c"].map(|host| limiter.at_host(&format!("https://{host}/shop.git").as_str().into()));
        for (kind, of_a_host) in KINDS.into_iter().zip([4, 3, 2, 2]) {
            let held = [&a, &b].map(|host| all_it_can(host, kind));
            assert_eq!(held.each_ref().map(Vec::len), [of_a_host; 2], "{kind:?}");
            assert!(c.try_acquire(kind).is_some(), "{kind:?}");
        }
    }

    #[test]
    fn however_few_permits_there_are_no_kind_of_work_holds_up_another() {
        for (all, of_a_host) in [(1, 1), (2, 1), (2, 2), (8, 1)] {
            let limiter = limiter(all, of_a_host);
            let host = limiter.at_host(&"https://git.example/shop.git".into());
            let held: Vec<_> = KINDS.into_iter().map(|kind| all_it_can(&host, kind)).collect();
            assert!(held.iter().all(|held| !held.is_empty()), "{all} {of_a_host}");
        }
    }

    #[tokio::test]
    async fn who_waits_at_its_host_holds_none_of_all_and_is_told_what_for() {
        let limiter = limiter(3, 1);
        let [a, b, c, d] =
            ["a", "b", "c", "d"].map(|host| limiter.at_host(&format!("https://{host}/shop.git").as_str().into()));
        let told = std::cell::Cell::new(None);
        let acquire = |host| Box::pin(HostLimiter::acquire(host, Kind::Fetch, |what| told.set(what)));
        let first = acquire(&a).await;
        let mut second = acquire(&a);
        assert!(futures_util::poll!(&mut second).is_pending());
        assert_eq!(told.get(), Some(WaitsFor::HostPlace));
        let others = [acquire(&b).await, acquire(&c).await];
        let mut last = acquire(&d);
        assert!(futures_util::poll!(&mut last).is_pending());
        assert_eq!(told.get(), Some(WaitsFor::Place));
        drop(first);
        assert!(futures_util::poll!(&mut second).is_pending(), "d came first among all");
        last.await;
        second.await;
        assert_eq!(told.get(), None);
        drop(others);
    }
}
