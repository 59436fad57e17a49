//! Keeps the interrupted download of a service, so that the next edge, or the next poll, needs to send the rest only.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use weir_protocol::digest::TarballDigest;

use crate::edge_client::BodyRange;
use crate::fetch::Download;

/// How long an interrupted download waits for its rest. It has a file, a thread and the window of a decoder.
const KEPT_FOR: Duration = Duration::from_secs(300);

/// The same for one that was interrupted for others: they go first.
const YIELDED_FOR: Duration = Duration::from_secs(3600);

/// The most interrupted downloads that wait.
const MAX_INTERRUPTED: usize = 8;

/// The limits of the downloads of all services.
#[derive(Clone)]
pub(crate) struct DownloadLimits {
    running: Arc<Semaphore>,
    /// Downloads that wait for their turn.
    waiting: Arc<AtomicUsize>,
    interrupted: Arc<Semaphore>,
}

impl DownloadLimits {
    /// As many may wait for their rest as may run, up to [`MAX_INTERRUPTED`].
    pub(crate) fn new(max_downloads: usize) -> Self {
        let permits = |number| Arc::new(Semaphore::new(number));
        let interrupted = permits(max_downloads.min(MAX_INTERRUPTED));
        Self { running: permits(max_downloads), waiting: Arc::default(), interrupted }
    }

    /// Waits until a download may run, behind those that wait already.
    pub(crate) async fn turn(&self) -> OwnedSemaphorePermit {
        let _waiting = Waiting::new(&self.waiting);
        self.running.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Gives a turn back to those that wait, and waits for another one; not if there is no room to keep what has arrived.
    pub(crate) async fn yielded(&self, turn: OwnedSemaphorePermit) -> OwnedSemaphorePermit {
        let Ok(_room) = self.interrupted.try_acquire() else { return turn };
        drop(turn);
        self.turn().await
    }

    /// Whether a download that trickles is to be interrupted: others wait, and there is room to keep it.
    pub(crate) fn are_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 && self.interrupted.available_permits() > 0
    }
}

/// Counts one that waits, until it is dropped.
struct Waiting<'c>(&'c AtomicUsize);

impl<'c> Waiting<'c> {
    fn new(count: &'c AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The interrupted download of one service.
pub(crate) struct Interrupted {
    slot: Arc<Mutex<Option<Kept>>>,
    permits: Arc<Semaphore>,
}

struct Kept {
    download: Download,
    rest: BodyRange,
    until: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Interrupted {
    pub(crate) fn new(limits: &DownloadLimits) -> Self {
        Self { slot: Arc::default(), permits: limits.interrupted.clone() }
    }

    /// Keeps a download for a while, if it can be continued and there is room. `has_yielded`: others go first.
    pub(crate) fn keep(&self, download: Download, has_yielded: bool) {
        self.keep_for(if has_yielded { YIELDED_FOR } else { KEPT_FOR }, download);
    }

    fn keep_for(&self, time: Duration, download: Download) {
        let Some(rest) = download.rest() else { return };
        let Ok(_permit) = self.permits.clone().try_acquire_owned() else { return };
        let until = Instant::now() + time;
        *lock(&self.slot) = Some(Kept { download, rest, until, _permit });
        let slot = Arc::downgrade(&self.slot);
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            if let Some(slot) = slot.upgrade() {
                lock(&slot).take_if(|kept| kept.until <= until);
            }
        });
    }

    /// What is missing of the download. `offered`: the digest that the service has, if that is known; a download of another
    /// one is dropped.
    pub(crate) fn rest(&self, offered: Option<TarballDigest>) -> Option<BodyRange> {
        let mut slot = lock(&self.slot);
        slot.take_if(|kept| offered.is_some_and(|offered| offered != kept.rest.digest));
        slot.as_ref().map(|kept| kept.rest.clone())
    }

    /// Takes the download out.
    pub(crate) fn take(&self) -> Option<Download> {
        lock(&self.slot).take().map(|kept| kept.download)
    }
}

fn lock(slot: &Mutex<Option<Kept>>) -> MutexGuard<'_, Option<Kept>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn few_interrupted_downloads_wait_and_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (TarballDigest::of(b"one"), TarballDigest::of(b"two"));
        let limits = DownloadLimits::new(1);
        let (shop, bakery) = (Interrupted::new(&limits), Interrupted::new(&limits));
        let download = |digest| Download::interrupted(digest, dir.path());
        shop.keep(download(one), false);
        assert_eq!(shop.rest(None).map(|rest| rest.digest), Some(one));
        bakery.keep(download(one), false);
        assert_eq!(bakery.rest(None), None, "there is no room");
        assert_eq!(shop.rest(Some(two)), None, "the service has another version");
        bakery.keep(download(two), false);
        assert_eq!(bakery.take().and_then(|download| download.rest()).map(|rest| rest.digest), Some(two));
        shop.keep_for(Duration::from_millis(1), download(one));
        let dropped = tokio::time::timeout(Duration::from_secs(60), limits.interrupted.acquire()).await;
        assert!(dropped.is_ok() && shop.rest(None).is_none());
    }

    #[tokio::test]
    async fn a_download_is_to_be_interrupted_while_others_wait_and_it_can_be_kept() {
        let dir = tempfile::tempdir().unwrap();
        let limits = DownloadLimits::new(1);
        let turn = limits.turn().await;
        assert!(!limits.are_wanted());
        let mut next = Box::pin(limits.turn());
        assert!(futures_util::poll!(&mut next).is_pending() && limits.are_wanted());
        let slow = Interrupted::new(&limits);
        slow.keep(Download::interrupted(TarballDigest::of(b"one"), dir.path()), true);
        assert!(!limits.are_wanted(), "another one would be lost");
        let turn = limits.yielded(turn).now_or_never().expect("the turn stays");
        drop(slow.take());
        let mut yielding = Box::pin(limits.yielded(turn));
        assert!(futures_util::poll!(&mut yielding).is_pending());
        drop(next.await);
        drop(yielding.await);
        assert!(!limits.are_wanted(), "none waits");
    }
}
