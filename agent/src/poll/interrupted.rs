//! Keeps the interrupted download of a service, so that the next edge, or the next poll, needs to send the rest only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use weir_protocol::digest::TarballDigest;

use crate::edge_client::Rest;
use crate::fetch::Download;

/// How long an interrupted download waits for its rest. It has a file, a thread and the window of a decoder.
const KEPT_FOR: Duration = Duration::from_secs(300);

/// The most interrupted downloads that wait.
const MAX_INTERRUPTED: usize = 8;

/// The limits of the downloads of all services.
#[derive(Clone)]
pub(crate) struct DownloadLimits {
    pub(crate) running: Arc<Semaphore>,
    interrupted: Arc<Semaphore>,
}

impl DownloadLimits {
    /// As many may wait for their rest as may run, up to [`MAX_INTERRUPTED`].
    pub(crate) fn new(max_downloads: usize) -> Self {
        let permits = |number| Arc::new(Semaphore::new(number));
        Self { running: permits(max_downloads), interrupted: permits(max_downloads.min(MAX_INTERRUPTED)) }
    }
}

/// The interrupted download of one service.
pub(crate) struct Interrupted {
    slot: Arc<Mutex<Option<Kept>>>,
    permits: Arc<Semaphore>,
}

struct Kept {
    download: Download,
    rest: Rest,
    until: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Interrupted {
    pub(crate) fn new(limits: &DownloadLimits) -> Self {
        Self { slot: Arc::default(), permits: limits.interrupted.clone() }
    }

    /// Keeps a download for a while, if it can be continued and there is room.
    pub(crate) fn keep(&self, download: Download) {
        self.keep_for(KEPT_FOR, download);
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
    pub(crate) fn rest(&self, offered: Option<TarballDigest>) -> Option<Rest> {
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

    #[tokio::test]
    async fn few_interrupted_downloads_wait_and_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (TarballDigest::of(b"one"), TarballDigest::of(b"two"));
        let limits = DownloadLimits::new(1);
        let (shop, bakery) = (Interrupted::new(&limits), Interrupted::new(&limits));
        let download = |digest| Download::interrupted(digest, dir.path());
        shop.keep(download(one));
        assert_eq!(shop.rest(None).map(|rest| rest.digest), Some(one));
        bakery.keep(download(one));
        assert_eq!(bakery.rest(None), None, "there is no room");
        assert_eq!(shop.rest(Some(two)), None, "the service has another version");
        bakery.keep(download(two));
        assert_eq!(bakery.take().and_then(|download| download.rest()).map(|rest| rest.digest), Some(two));
        shop.keep_for(Duration::from_millis(1), download(one));
        let dropped = tokio::time::timeout(Duration::from_secs(60), limits.interrupted.acquire()).await;
        assert!(dropped.is_ok() && shop.rest(None).is_none());
    }
}
