//! Who may ask an upstream just now: so many at a time in all and of each host, and each host only so often.
//!
//! A host that hangs takes the places of its own repositories. Others have theirs, because no host may take all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use gix::url::Scheme;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::budget::Budget;
use super::state::WaitsFor;
use crate::config::LimitsConfig;
use crate::metrics::Metrics;

/// The places of one origin.
pub(crate) struct Places {
    all: Arc<Semaphore>,
    of_a_host: usize,
    requests_per_minute: u32,
    /// Those that a repository is at.
    hosts: Mutex<HashMap<String, Weak<Host>>>,
    metrics: Metrics,
}

/// An upstream host as its repositories share it.
pub(super) struct Host {
    places: Arc<Semaphore>,
    budget: Mutex<Budget>,
    /// Held by the one who waits for the budget; others wait behind, in the order of their arrival.
    first_in_line: tokio::sync::Mutex<()>,
}

/// Where a repository is asked.
#[derive(Clone)]
pub(super) struct AtHost {
    host: Arc<Host>,
    /// Requests that list the refs: two over HTTP, one over SSH and `git://`, none at this machine.
    listing: u32,
}

/// A place among the polls; others get it when this is dropped.
pub(super) struct Place {
    _of_the_host: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Places {
    pub(crate) fn new(limits: &LimitsConfig, metrics: Metrics) -> Self {
        Self {
            all: Arc::new(Semaphore::new(limits.concurrent_fetches)),
            of_a_host: limits.concurrent_fetches_per_host.min(limits.concurrent_fetches),
            requests_per_minute: limits.requests_per_minute_per_host,
            hosts: Mutex::default(),
            metrics,
        }
    }

    /// The host of a URL. Repositories on this machine share one too.
    pub(super) fn at_host(&self, url: &str) -> AtHost {
        let url = gix::url::parse(url).ok();
        let name = url.as_ref().and_then(gix::Url::host).unwrap_or_default().to_ascii_lowercase();
        let listing = match url.map(|url| url.scheme) {
            Some(Scheme::Https | Scheme::Http) => 2,
            Some(Scheme::File) | None => 0,
            Some(_) => 1,
        };
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.retain(|_, host| host.strong_count() > 0);
        let known = hosts.get(&name).and_then(Weak::upgrade);
        let host = known.unwrap_or_else(|| {
            let host = Arc::new(Host {
                places: Arc::new(Semaphore::new(self.of_a_host)),
                budget: Mutex::new(Budget::new(self.requests_per_minute, Instant::now())),
                first_in_line: tokio::sync::Mutex::new(()),
            });
            hosts.insert(name, Arc::downgrade(&host));
            host
        });
        AtHost { host, listing }
    }

    /// Waits for a place and for what listing refs takes of the host's budget. `waits` is told what for, and that it is
    /// over. None: the origin stops.
    pub(super) async fn enter(&self, at: &AtHost, waits: impl Fn(Option<WaitsFor>)) -> Option<Place> {
        let of_the_host = at.host.places.clone().acquire_owned();
        let of_the_host = self.counted(WaitsFor::HostPlace, &waits, of_the_host).await.ok()?;
        self.counted(WaitsFor::HostBudget, &waits, at.take_listing()).await;
        // Last, so that nobody holds one while he waits for something else.
        let of_all = self.all.clone().acquire_owned();
        let of_all = self.counted(WaitsFor::Place, &waits, of_all).await.ok()?;
        Some(Place { _of_the_host: of_the_host, _of_all: of_all })
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
        loop {
            let taken = self.host.budget().take(self.listing, Instant::now());
            let Err(wait) = taken else { return };
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes a request besides those of a poll. How long it has to wait, if it has to.
    pub(super) fn request(&self) -> Option<Duration> {
        self.host.budget().take(1, Instant::now()).err()
    }

    /// A poll fetched something: a request more than the listing.
    pub(super) fn fetched(&self) {
        if self.listing > 0 {
            self.host.budget().charge(1, Instant::now());
        }
    }
}

impl Host {
    fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
