//! Who may ask an upstream just now: so many at a time in all and of each host, and each host only so often.
//!
//! To list refs is short, and ends soon even where the host drips; to fetch what moved may take long, and a repository from
//! its beginning hours. So there are places for each, and a fetch takes none of those that the next poll needs. Files of LFS
//! have theirs too: a mirror that waits for them is there already, and waits for no first clone. A host that hangs
//! takes the places of its own repositories. Others have theirs, because no host may take all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::budget::Budget;
use super::fetch_places::{FetchPlace, FetchPlaces};
use super::shares::{Shares, Who, half};
use super::state::WaitsFor;
use crate::config::LimitsConfig;
use crate::metrics::Metrics;
use crate::source::Endpoint;

/// Mirrors that are read in full at a time: what makes one doubtful, a full disk, may make all of them so.
const CLOSE_LOOKS: usize = 2;

/// The places of one origin.
pub(crate) struct Places {
    listings: Arc<Semaphore>,
    fetches: Arc<FetchPlaces>,
    /// For files of LFS: as many as for first clones, divided likewise.
    lfs: Arc<FetchPlaces>,
    /// To read a whole mirror, packs and all.
    close_looks: Arc<Semaphore>,
    of_a_host: usize,
    requests_per_minute: u32,
    /// Those that a repository is at.
    hosts: Mutex<HashMap<Arc<str>, Weak<Host>>>,
    metrics: Metrics,
}

/// An upstream host as its repositories share it.
pub(super) struct Host {
    name: Arc<str>,
    listings: Arc<Semaphore>,
    budget: Mutex<Budget>,
    /// Held by the one who waits for the budget; others wait behind, in the order of their arrival.
    first_in_line: tokio::sync::Mutex<()>,
}

/// Where a repository is asked.
#[derive(Clone)]
pub(super) struct AtHost {
    host: Arc<Host>,
    /// Requests that list the refs.
    listing: u32,
}

/// A place among those who list refs; others get it when this is dropped.
pub(super) struct ListingPlace {
    _of_the_host: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Places {
    pub(crate) fn new(limits: &LimitsConfig, metrics: Metrics) -> Self {
        let of_a_host = limits.concurrent_fetches_per_host;
        Self {
            listings: metrics.bounds.semaphore("listings", limits.concurrent_listings),
            fetches: Arc::new(FetchPlaces::new(Shares::new(limits.concurrent_fetches, of_a_host))),
            lfs: Arc::new(FetchPlaces::new(Shares::new(half(limits.concurrent_fetches), half(of_a_host)))),
            close_looks: metrics.bounds.semaphore("close_looks", CLOSE_LOOKS),
            of_a_host,
            requests_per_minute: limits.requests_per_minute_per_host,
            hosts: Mutex::default(),
            metrics,
        }
    }

    /// Shows how many places are taken; of those of a host, by the one that takes the most.
    pub(crate) fn show(self: &Arc<Self>, limits: &LimitsConfig) {
        let bounds = &self.metrics.bounds;
        let of_a_host = limits.concurrent_fetches_per_host;
        let show = |name, limit, in_use: fn(&Self) -> usize| {
            let places = Arc::downgrade(self);
            bounds.show(name, limit, move || places.upgrade().map_or(0, |places| in_use(&places)));
        };
        show("fetches", limits.concurrent_fetches, |places| places.fetches.taken().changes);
        show("large_fetches", half(limits.concurrent_fetches), |places| places.fetches.taken().large);
        show("lfs_fetches", half(limits.concurrent_fetches), |places| places.lfs.taken().changes);
        show("fetches_of_a_host", of_a_host, |places| places.fetches.taken_by_the_busiest_host());
        show("listings_of_a_host", of_a_host, |places| {
            places.busiest(|host| places.of_a_host - host.listings.available_permits())
        });
        show("saved_up_requests_of_a_host", Budget::saved_up(limits.requests_per_minute_per_host), |places| {
            places.busiest(|host| host.budget().taken(Instant::now()))
        });
    }

    /// A place to read a whole mirror.
    pub(super) async fn to_look_closely(&self) -> OwnedSemaphorePermit {
        self.close_looks.clone().acquire_owned().await.expect("it is never closed")
    }

    fn busiest(&self, in_use: impl Fn(&Host) -> usize) -> usize {
        let hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.values().filter_map(Weak::upgrade).map(|host| in_use(&host)).max().unwrap_or(0)
    }

    /// The host of an upstream. Repositories on this machine share one too.
    pub(super) fn at_host(&self, upstream: &Endpoint) -> AtHost {
        let name: Arc<str> = upstream.host().unwrap_or_default().into();
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|_, host| host.strong_count() > 0);
        let known = hosts.get(&name).and_then(Weak::upgrade);
        let host = known.unwrap_or_else(|| {
            let host = Arc::new(Host {
                name: name.clone(),
                listings: Arc::new(Semaphore::new(self.of_a_host)),
                budget: Mutex::new(Budget::new(self.requests_per_minute, Instant::now())),
                first_in_line: tokio::sync::Mutex::new(()),
            });
            hosts.insert(name, Arc::downgrade(&host));
            host
        });
        AtHost { host, listing: upstream.requests_to_list() }
    }

    /// Waits for a place to list refs, and for what that takes of the host's budget. `waits` is told what for, and that it
    /// is over. None: the origin stops.
    pub(super) async fn to_list(&self, at: &AtHost, waits: impl Fn(Option<WaitsFor>)) -> Option<ListingPlace> {
        let of_the_host = at.host.listings.clone().acquire_owned();
        let of_the_host = self.counted(WaitsFor::HostPlace, &waits, of_the_host).await.ok()?;
        self.counted(WaitsFor::HostBudget, &waits, at.take_listing()).await;
        // Last, so that nobody holds one while he waits for something else.
        let of_all = self.listings.clone().acquire_owned();
        let of_all = self.counted(WaitsFor::Place, &waits, of_all).await.ok()?;
        Some(ListingPlace { _of_the_host: of_the_host, _of_all: of_all })
    }

    /// A place to fetch, if there is one just now.
    pub(super) fn try_to_fetch(&self, at: &AtHost, large: bool) -> Result<FetchPlace, WaitsFor> {
        self.fetches.try_enter(&at.who(large))
    }

    /// Waits for a place to fetch; `large`: as one does that may take hours. Nobody keeps a connection open in line.
    pub(super) async fn to_fetch(&self, at: &AtHost, large: bool, waits: impl Fn(Option<WaitsFor>)) -> FetchPlace {
        let who = at.who(large);
        match self.fetches.try_enter(&who) {
            Ok(place) => place,
            Err(what) => self.counted(what, &waits, self.fetches.enter(&who)).await,
        }
    }

    /// Waits for a place to fetch files of LFS.
    pub(super) async fn to_fetch_lfs(&self, at: &AtHost, waits: impl Fn(Option<WaitsFor>)) -> FetchPlace {
        let who = at.who(false);
        match self.lfs.try_enter(&who) {
            Ok(place) => place,
            Err(_) => self.counted(WaitsFor::LfsPlace, &waits, self.lfs.enter(&who)).await,
        }
    }

    /// Awaits something, and tells and counts when it is not there at once.
    async fn counted<T>(&self, what: WaitsFor, waits: impl Fn(Option<WaitsFor>), wanted: impl Future<Output = T>) -> T {
        let mut wanted = std::pin::pin!(wanted);
        if let Poll::Ready(value) = std::future::poll_fn(|cx| Poll::Ready(wanted.as_mut().poll(cx))).await {
            return value;
        }
        waits(Some(what));
        let begun = Instant::now();
        let value = wanted.await;
        self.metrics.poll_wait_seconds.with_label_values(&[what.as_str()]).inc_by(begun.elapsed().as_secs_f64());
        waits(None);
        value
    }
}

impl AtHost {
    async fn take_listing(&self) {
        if self.listing == 0 {
            return;
        }
        let _first = self.host.first_in_line.lock().await;
        // Not looked at again and again, or else whoever asks for single requests would always be before it.
        let wait = self.host.budget().reserve(self.listing, Instant::now());
        tokio::time::sleep(wait).await;
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

    fn who(&self, large: bool) -> Who {
        Who { host: self.host.name.clone(), large }
    }
}

impl Host {
    fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_of_lfs_wait_for_each_other_and_for_no_first_clone() {
        let limits = LimitsConfig { concurrent_fetches: 1, concurrent_fetches_per_host: 1, ..LimitsConfig::default() };
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
        let places = Places::new(&limits, metrics);
        let at = places.at_host(&"https://git.example/shop.git".into());
        let told = std::cell::Cell::new(None);
        let waits = |what| told.set(what);
        let _clone = places.to_fetch(&at, true, waits).await;
        let _change = places.to_fetch(&at, false, waits).await;
        let first = places.to_fetch_lfs(&at, waits).await;
        let mut second = Box::pin(places.to_fetch_lfs(&at, waits));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert_eq!(told.get(), Some(WaitsFor::LfsPlace));
        drop(first);
        second.await;
        assert_eq!(told.get(), None);
    }
}
