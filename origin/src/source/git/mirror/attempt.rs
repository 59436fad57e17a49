//! One attempt at an upstream: how long it is waited for, how much is taken from it, and what went wrong first.
//!
//! All that waits for the network waits here. Every wait ends: with what was waited for, when nothing came for the stall
//! timeout, or soon after somebody asked to stop; the last alone ends a wait for the git program. What a transport finds wrong is kept here, because on its way through
//! gix an error loses what it was.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::{EnterGuard, Runtime};
use tokio::task::JoinHandle;

use super::{FetchProgress, MirrorError};
use crate::source::{Upstream, runtime};

/// How soon a request to stop is seen while nothing comes.
const GLANCE: Duration = Duration::from_millis(100);

/// A connection takes at most this long to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// What a ref may take of a listing, on average.
const BYTES_PER_REF: u64 = 256;

/// What a listing may take besides its refs.
const BYTES_BESIDE_REFS: u64 = 64 << 10;

/// What may come of an answer before its pack: which commits both sides have, a line for each, all of which gix keeps.
const BYTES_BEFORE_PACK: u64 = 4 << 20;

/// One attempt at an upstream.
pub(super) struct Attempt<'a> {
    runtime: &'static Runtime,
    pub(super) upstream: &'a Upstream,
    interrupt: &'a AtomicBool,
    step: Cell<Step>,
    /// Bytes received in this step.
    received: Cell<u64>,
    fetch: RefCell<Option<Fetch>>,
    /// Requests, or connections where there are none.
    requests: Cell<u32>,
    failure: RefCell<Option<MirrorError>>,
}

/// A fetch under way.
struct Fetch {
    /// Shows whether the pack has begun.
    progress: FetchProgress,
    /// What the mirror had before, in bytes.
    mirrored: u64,
}

#[derive(Clone, Copy)]
enum Step {
    List,
    Fetch,
    Lfs,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(upstream: &'a Upstream, interrupt: &'a AtomicBool) -> Result<Self, MirrorError> {
        Ok(Self {
            runtime: runtime()?,
            upstream,
            interrupt,
            step: Cell::new(Step::List),
            received: Cell::new(0),
            fetch: RefCell::new(None),
            requests: Cell::new(0),
            failure: RefCell::new(None),
        })
    }

    /// The refs are listed; what comes from now on is a pack, for a mirror that has so many bytes.
    pub(super) fn fetch_begins(&self, progress: &FetchProgress, mirrored: u64) {
        self.step.set(Step::Fetch);
        *self.fetch.borrow_mut() = Some(Fetch { progress: progress.clone(), mirrored });
        self.received.set(0);
    }

    /// What comes are LFS objects, each of which has its own length to keep to.
    pub(super) fn lfs_begins(&self) {
        self.step.set(Step::Lfs);
    }

    /// `list refs`, `fetch` or `lfs`.
    pub(super) fn step(&self) -> &'static str {
        match self.step.get() {
            Step::List => "list refs",
            Step::Fetch => "fetch",
            Step::Lfs => "lfs",
        }
    }

    /// How long a connection may take to come about: less than any silence, so that it is told which of them it was.
    pub(super) fn connect_timeout(&self) -> Duration {
        CONNECT_TIMEOUT.min(self.upstream.stall_timeout * 3 / 4)
    }

    /// Whether anything came of the upstream.
    pub(super) fn has_heard(&self) -> bool {
        self.received.get() > 0 || !matches!(self.step.get(), Step::List)
    }

    /// Waits for something that the network is to bring.
    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, MirrorError> {
        let after = self.upstream.stall_timeout;
        let stalled = |_| MirrorError::Stalled { step: self.step(), after };
        // The clock belongs to the runtime.
        self.wait_patiently(async { tokio::time::timeout(after, work).await })?.map_err(stalled)
    }

    /// Waits for a program that works here, however long that takes.
    pub(super) fn wait_patiently<T>(&self, work: impl Future<Output = T>) -> Result<T, MirrorError> {
        self.runtime.block_on(async {
            tokio::pin!(work);
            loop {
                self.goes_on()?;
                tokio::select! {
                    biased;
                    done = &mut work => return Ok(done),
                    () = tokio::time::sleep(GLANCE) => {}
                }
            }
        })
    }

    /// Has something done while others wait, such as reading what a program complains about.
    pub(super) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Where sockets belong that are waited for here.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Bytes came. No upstream fills the memory with refs, or the disk with a pack.
    pub(super) fn received(&self, bytes: usize) -> Result<(), MirrorError> {
        let received = self.received.get() + bytes as u64;
        self.received.set(received);
        let max_refs = self.upstream.max_refs;
        match (self.step.get(), &*self.fetch.borrow()) {
            (Step::List, _) if received > BYTES_BESIDE_REFS + max_refs as u64 * BYTES_PER_REF => {
                Err(MirrorError::TooManyRefs { limit: max_refs })
            }
            (Step::Fetch, Some(fetch)) if received > BYTES_BEFORE_PACK && !fetch.progress.has_pack() => {
                let cause = format!("it says more than {BYTES_BEFORE_PACK} bytes before the pack begins");
                Err(MirrorError::Upstream { step: self.step(), cause })
            }
            (Step::Fetch, _) => self.has_room(received),
            _ => Ok(()),
        }
    }

    /// Whether a pack may have so many bytes, as it comes or as it is written.
    pub(super) fn has_room(&self, bytes: u64) -> Result<(), MirrorError> {
        if bytes > self.room() { Err(self.no_room()) } else { Ok(()) }
    }

    /// The same of a pack with its index, which counts as a part of the mirror.
    pub(super) fn has_room_with_index(&self, pack: u64, index: u64) -> Result<(), MirrorError> {
        self.has_room(pack)?;
        if pack.saturating_add(index) > self.room_of_mirror() {
            return Err(MirrorError::MirrorTooLarge { limit: self.upstream.max_mirror });
        }
        Ok(())
    }

    /// How many bytes a pack may have.
    pub(super) fn room(&self) -> u64 {
        self.upstream.max_pack.min(self.room_of_mirror())
    }

    fn room_of_mirror(&self) -> u64 {
        let mirrored = self.fetch.borrow().as_ref().map_or(0, |fetch| fetch.mirrored);
        self.upstream.max_mirror.saturating_sub(mirrored)
    }

    /// Which limit a pack is beyond that has more.
    pub(super) fn no_room(&self) -> MirrorError {
        let Upstream { max_pack, max_mirror, .. } = *self.upstream;
        if max_pack <= self.room_of_mirror() {
            MirrorError::PackTooLarge { limit: max_pack }
        } else {
            MirrorError::MirrorTooLarge { limit: max_mirror }
        }
    }

    /// Set when somebody asks to stop.
    pub(super) fn interrupt(&self) -> &AtomicBool {
        self.interrupt
    }

    /// Whether nobody asked to stop: for work that does not wait for the network.
    pub(super) fn goes_on(&self) -> Result<(), MirrorError> {
        if self.interrupt.load(Ordering::Relaxed) { Err(MirrorError::Interrupted) } else { Ok(()) }
    }

    /// The upstream, or where it leads to, is asked something.
    pub(super) fn asks(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    /// How often it was asked.
    pub(super) fn requests(&self) -> u32 {
        self.requests.get()
    }

    /// Keeps what went wrong, and makes an error of it that passes through gix.
    pub(super) fn fail(&self, error: MirrorError) -> io::Error {
        let passes = io::Error::other(error.to_string());
        self.failure.borrow_mut().get_or_insert(error);
        passes
    }

    /// What went wrong first, if a transport knows it.
    pub(super) fn failure(&self) -> Option<MirrorError> {
        self.failure.borrow_mut().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt<T>(upstream: &Upstream, work: impl FnOnce(&Attempt, &AtomicBool) -> T) -> T {
        let interrupt = AtomicBool::new(false);
        work(&Attempt::new(upstream, &interrupt).unwrap(), &interrupt)
    }

    #[test]
    fn silence_ends_a_wait_and_so_does_a_request_to_stop() {
        let mut upstream = Upstream::new("git://host/x");
        upstream.stall_timeout = Duration::from_millis(1);
        attempt(&upstream, |attempt, _| {
            let error = attempt.wait(std::future::pending::<()>()).unwrap_err();
            assert!(error.is_timeout() && error.step() == "list refs", "{error}");
            assert_eq!(attempt.wait(std::future::ready(7)).unwrap(), 7);
        });
        upstream.stall_timeout = Duration::from_secs(3600);
        attempt(&upstream, |attempt, interrupt| {
            let stop = async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                interrupt.store(true, Ordering::Relaxed);
                std::future::pending::<()>().await;
            };
            assert!(matches!(attempt.wait(stop), Err(MirrorError::Interrupted)));
        });
    }

    #[test]
    fn a_listing_and_a_pack_have_each_their_bound() {
        let mut upstream = Upstream::new("git://host/x");
        (upstream.max_refs, upstream.max_pack, upstream.max_mirror) = (10, 1000, 5000);
        attempt(&upstream, |attempt, _| {
            let listing = usize::try_from(BYTES_BESIDE_REFS + 10 * BYTES_PER_REF).unwrap();
            attempt.received(listing).unwrap();
            assert!(matches!(attempt.received(1), Err(MirrorError::TooManyRefs { limit: 10 })));
            attempt.fetch_begins(&FetchProgress::default(), 4000);
            attempt.received(1000).unwrap();
            assert!(matches!(attempt.received(1), Err(MirrorError::PackTooLarge { limit: 1000 })));
            attempt.fetch_begins(&FetchProgress::default(), 4001);
            assert!(matches!(attempt.received(1000), Err(MirrorError::MirrorTooLarge { limit: 5000 })));
        });
    }

    #[test]
    fn the_first_failure_is_the_one_that_counts() {
        attempt(&Upstream::new("git://host/x"), |attempt, _| {
            let _ = attempt.fail(MirrorError::TooManyRefs { limit: 1 });
            let _ = attempt.fail(MirrorError::Interrupted);
            assert!(matches!(attempt.failure(), Some(MirrorError::TooManyRefs { .. })));
            assert!(attempt.failure().is_none());
        });
    }
}
