//! The fills under way: one per blob and origin, whoever asks. Who has another origin's word for a blob, or for its size,
//! has another fill: what is wrong with the one says nothing about the other.
//!
//! A fill belongs to nobody. It runs on when the one who began it goes away; only in a drain it ends with the last one
//! who wants it. One that has stood still for too long is joined by nobody new: the next request begins another.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use weir_shared::digest::BlobDigest;
use weir_shared::process::shutdown::Drain;

use super::progress::{Progress, Teller, Watcher, progress};
use super::{FillError, Wanted};
use crate::clock::{AtomicMoment, Clock, Moment};
use crate::metrics::CacheMetrics;

/// How many fills there may be, and how many may wait for them.
#[derive(Debug, Clone, Copy)]
pub(in crate::blob_cache) struct Bounds {
    /// Fills under way, those that wait for their turn included.
    pub(in crate::blob_cache) fills: usize,
    /// Requests that wait for a first byte, in all.
    pub(in crate::blob_cache) waiters: usize,
    /// Requests that wait for a first byte of one fill.
    pub(in crate::blob_cache) waiters_per_fill: usize,
    /// A fill for which nothing came for this long is joined by nobody new.
    pub(in crate::blob_cache) lock_age: Duration,
}

/// The fills under way.
pub(in crate::blob_cache) struct Running {
    fills: Fills,
    bounds: Bounds,
    places: Arc<Semaphore>,
    clock: Clock,
    drain: Drain,
    metrics: CacheMetrics,
}

type Fills = Arc<Mutex<HashMap<Wanted, Fill>>>;

#[derive(Clone)]
struct Fill {
    watcher: Watcher,
    /// When something came last. It stands for the fill: another one of the same blob has another.
    moved: Arc<AtomicMoment>,
    places: Arc<Semaphore>,
}

/// A place among those who wait for a fill.
#[derive(Debug)]
pub(in crate::blob_cache) struct Seat {
    /// How far the fill is.
    pub(in crate::blob_cache) watcher: Watcher,
    /// The fill was under way already: this caller did not begin it.
    pub(in crate::blob_cache) collapsed: bool,
    waiters: IntGauge,
    _places: [OwnedSemaphorePermit; 2],
}

impl Running {
    pub(in crate::blob_cache) fn new(bounds: Bounds, clock: Clock, metrics: CacheMetrics, drain: &Drain) -> Self {
        metrics.fill_waiters_limit.set(i64::try_from(bounds.waiters).unwrap_or(i64::MAX));
        let places = Arc::new(Semaphore::new(bounds.waiters.min(Semaphore::MAX_PERMITS)));
        Self { fills: Fills::default(), bounds, places, clock, drain: drain.clone(), metrics }
    }

    /// Joins the fill of a blob, or begins it with the task that `begin` makes.
    ///
    /// # Errors
    /// [`FillError::Full`]: a bound is reached.
    pub(in crate::blob_cache) fn join<F>(
        &self,
        wanted: Wanted,
        begin: impl FnOnce(Announcer) -> F,
    ) -> Result<Seat, FillError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let full = || self.metrics.fill_waiters_refused.inc();
        let place = self.places.clone().try_acquire_owned().map_err(|_| FillError::Full).inspect_err(|_| full())?;
        let now = self.clock.now();
        let mut fills = lock(&self.fills);
        let under_way = fills.get(&wanted).filter(|fill| fill.collapses(now, self.bounds.lock_age)).cloned();
        if let Some(fill) = under_way {
            drop(fills);
            let places = fill.places.try_acquire_owned().map_err(|_| FillError::Full).inspect_err(|_| full())?;
            self.metrics.collapsed_fills.inc();
            return Ok(self.seat(fill.watcher, true, [place, places]));
        }
        if fills.len() >= self.bounds.fills {
            return Err(FillError::Full);
        }
        let (teller, watcher) = progress();
        let moved = Arc::new(AtomicMoment::new(now));
        let places = Arc::new(Semaphore::new(self.bounds.waiters_per_fill.clamp(1, Semaphore::MAX_PERMITS)));
        let mine = places.clone().try_acquire_owned().map_err(|_| FillError::Full)?;
        fills.insert(wanted, Fill { watcher: watcher.clone(), moved: moved.clone(), places });
        drop(fills);
        let landing = Landing { fills: self.fills.clone(), wanted, moved: moved.clone() };
        let announcer = Announcer {
            landing: Mutex::new(Some(landing)),
            teller,
            moved,
            clock: self.clock,
            drain: self.drain.clone(),
        };
        self.drain.spawn(begin(announcer));
        Ok(self.seat(watcher, false, [place, mine]))
    }

    /// Whether a blob is on its way.
    pub(in crate::blob_cache) fn is_under_way(&self, digest: &BlobDigest) -> bool {
        lock(&self.fills).keys().any(|wanted| wanted.digest == *digest)
    }

    /// Fills that are under way.
    pub(in crate::blob_cache) fn len(&self) -> usize {
        lock(&self.fills).len()
    }

    fn seat(&self, watcher: Watcher, collapsed: bool, places: [OwnedSemaphorePermit; 2]) -> Seat {
        self.metrics.fill_waiters.inc();
        Seat { watcher, collapsed, waiters: self.metrics.fill_waiters.clone(), _places: places }
    }
}

impl Fill {
    /// Whether further requests wait for it.
    fn collapses(&self, now: Moment, lock_age: Duration) -> bool {
        let progress = self.watcher.now();
        // While it is queued another one would stand in the same queue.
        let is_moved = matches!(progress, Progress::Asked | Progress::Arriving { .. }) && !progress.is_whole();
        !is_moved || now < self.moved.get().after(lock_age)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.waiters.dec();
    }
}

/// What a fill holds of itself. When it is dropped the fill has ended, and the next to ask begins anew.
pub(in crate::blob_cache) struct Announcer {
    // Dropped first: whoever sees that the fill has ended finds it gone.
    landing: Mutex<Option<Landing>>,
    teller: Teller,
    /// When something came last.
    pub(super) moved: Arc<AtomicMoment>,
    clock: Clock,
    drain: Drain,
}

impl Announcer {
    /// Tells that the fill has come to an end without all of the blob: what is written of it stays readable.
    pub(super) fn end(&self, how: impl FnOnce(u64) -> Progress) {
        let written = self.teller.borrow().written();
        self.tell(how(written));
    }

    /// What came last is written: it need not be in memory any more. Nobody waits for that.
    pub(super) fn written(&self) {
        self.teller.send_if_modified(|progress| {
            if let Progress::Arriving { written, latest, .. } = progress {
                *written += latest.len() as u64;
                *latest = Bytes::new();
            }
            false
        });
    }

    /// Tells how far the fill is.
    pub(super) fn tell(&self, progress: Progress) {
        self.moved.advance(self.clock.now());
        self.teller.send_replace(progress);
    }

    /// Resolves in a drain, once nobody wants the fill and it is not whole: a drain waits for those who wait, and not for
    /// what nobody will have.
    pub(super) async fn deserted(&self) {
        self.drain.begun().await;
        drop(lock(&self.landing).take());
        self.teller.closed().await;
        if self.teller.borrow().is_whole() {
            // All of it has come, and only its last bytes are not written yet.
            std::future::pending::<()>().await;
        }
    }
}

struct Landing {
    fills: Fills,
    wanted: Wanted,
    moved: Arc<AtomicMoment>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut fills = lock(&self.fills);
        // Another may have begun since.
        if fills.get(&self.wanted).is_some_and(|fill| Arc::ptr_eq(&fill.moved, &self.moved)) {
            fills.remove(&self.wanted);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic runs while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use tokio::sync::Notify;

    const AGE: Duration = Duration::from_secs(20);

    fn running(fills: usize, waiters: usize, waiters_per_fill: usize) -> (Running, Drain) {
        let drain = Drain::new();
        let metrics = Metrics::register(&prometheus::Registry::new()).unwrap().cache;
        let bounds = Bounds { fills, waiters, waiters_per_fill, lock_age: AGE };
        (Running::new(bounds, Clock::begin(), metrics, &drain), drain)
    }

    fn blob(name: &str) -> Wanted {
        Wanted { digest: BlobDigest::of(name.as_bytes()), size: 9, origin: Some(0) }
    }

    fn failed(announcer: &Announcer) {
        announcer.end(|written| Progress::Failed { error: FillError::Corrupt, written });
    }

    async fn held(announcer: Announcer, gate: Arc<Notify>) {
        gate.notified().await;
        failed(&announcer);
    }

    /// Why the fill failed.
    async fn ended(seat: &mut Seat) -> &'static str {
        let Progress::Failed { error, .. } = seat.watcher.answered(0).await else { panic!("it brought something") };
        error.label()
    }

    #[tokio::test]
    async fn all_who_ask_meanwhile_share_one_fill_and_its_first_client_may_leave() {
        let (running, _drain) = running(2, 9, 9);
        let gate = Arc::new(Notify::new());
        let first = running.join(blob("a"), |announcer| held(announcer, gate.clone())).unwrap();
        let mut second = running.join(blob("a"), |_| async { panic!("it is under way") }).unwrap();
        assert!(!first.collapsed && second.collapsed);
        assert_eq!(running.metrics.fill_waiters.get(), 2);
        drop(first);
        gate.notify_one();
        assert_eq!(ended(&mut second).await, "corrupt");
        // Landed: the next to ask begins anew.
        while running.len() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(!running.join(blob("a"), |announcer| held(announcer, gate)).unwrap().collapsed);
        drop(second);
        assert_eq!(running.metrics.fill_waiters.get(), 0);
    }

    #[tokio::test]
    async fn who_is_told_of_a_blob_by_another_origin_waits_for_that_one() {
        let (running, _drain) = running(4, 9, 9);
        let gate = Arc::new(Notify::new());
        let wanted = blob("a");
        let _first = running.join(wanted, |announcer| held(announcer, gate.clone())).unwrap();
        for other in [Wanted { origin: Some(1), ..wanted }, Wanted { size: 10, ..wanted }] {
            assert!(!running.join(other, |announcer| held(announcer, gate.clone())).unwrap().collapsed);
        }
        assert!(running.is_under_way(&wanted.digest) && running.len() == 3);
    }

    #[tokio::test]
    async fn a_panic_ends_the_wait_of_all() {
        let (running, drain) = running(2, 9, 9);
        let mut seat = running.join(blob("a"), |_announcer| async { panic!("as the test wants it") }).unwrap();
        assert_eq!(ended(&mut seat).await, "abandoned");
        assert_eq!(running.len(), 0);
        let mut seat = running.join(blob("a"), |announcer| held(announcer, Arc::new(Notify::new()))).unwrap();
        drain.cut().await;
        assert_eq!(ended(&mut seat).await, "abandoned");
    }

    #[tokio::test]
    async fn fills_and_those_who_wait_for_them_are_bounded() {
        let (running, _drain) = running(2, 3, 2);
        let join = |name: &str| running.join(blob(name), |announcer| held(announcer, Arc::new(Notify::new())));
        let one = join("a").unwrap();
        let two = join("a").unwrap();
        assert!(matches!(join("a"), Err(FillError::Full)), "two wait for it");
        let three = join("b").unwrap();
        assert!(matches!(join("b"), Err(FillError::Full)), "three wait in all");
        assert_eq!(running.metrics.fill_waiters_refused.get(), 2);
        drop((one, two, three));
        assert!(matches!(join("c"), Err(FillError::Full)), "two are under way, whoever waits");
        assert!(join("b").unwrap().collapsed);
    }

    #[tokio::test]
    async fn a_fill_that_stands_still_is_joined_by_nobody_new_and_takes_no_other_with_it() {
        let (running, _drain) = running(4, 9, 9);
        let (asked, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let still = |announcer: Announcer| {
            let (asked, gate) = (asked.clone(), gate.clone());
            async move {
                announcer.tell(Progress::Asked);
                asked.notify_one();
                held(announcer, gate).await;
            }
        };
        let mut first = running.join(blob("a"), still).unwrap();
        asked.notified().await;
        assert!(running.join(blob("a"), still).unwrap().collapsed);
        {
            let fills = lock(&running.fills);
            let fill = &fills[&blob("a")];
            let moved = fill.moved.get();
            assert!(fill.collapses(moved.after(AGE - Duration::from_millis(1)), AGE));
            assert!(!fill.collapses(moved.after(AGE), AGE));
        }
        let running = Running { bounds: Bounds { lock_age: Duration::ZERO, ..running.bounds }, ..running };
        let second = running.join(blob("a"), |announcer| held(announcer, Arc::new(Notify::new()))).unwrap();
        assert!(!second.collapsed);
        gate.notify_one();
        assert_eq!(ended(&mut first).await, "corrupt");
        assert_eq!(running.len(), 1, "the second one is under way still");
        // It waits for its turn: that is no standstill.
        assert!(running.join(blob("a"), still).unwrap().collapsed);
    }

    #[tokio::test]
    async fn a_drain_ends_what_nobody_wants() {
        let (running, drain) = running(4, 9, 9);
        let begin = |gate: Arc<Notify>| {
            move |announcer: Announcer| async move {
                tokio::select! {
                    () = announcer.deserted() => {}
                    () = gate.notified() => failed(&announcer),
                }
            }
        };
        let gate = Arc::new(Notify::new());
        let deserted = running.join(blob("a"), begin(Arc::new(Notify::new()))).unwrap();
        let mut awaited = running.join(blob("b"), begin(gate.clone())).unwrap();
        drop(deserted);
        let draining = tokio::spawn(async move { drain.finish(Duration::from_secs(60)).await });
        let told = tokio::spawn(async move { ended(&mut awaited).await });
        gate.notify_one();
        assert_eq!(told.await.unwrap(), "corrupt");
        assert!(draining.await.unwrap(), "nothing was cut");
    }
}
