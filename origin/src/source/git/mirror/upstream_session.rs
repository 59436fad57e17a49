//! One session at an upstream: how long it is waited for, how much is taken from it, and what went wrong first.
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

use super::limits::{BYTES_BEFORE_PACK, BYTES_PER_REF, LISTING_OVERHEAD};
use super::{FetchProgress, MirrorError};
use crate::source::{Upstream, runtime};

/// How soon a request to stop is seen while nothing comes.
const INTERRUPT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A connection takes at most this long to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// One session at an upstream.
pub(super) struct UpstreamSession<'a> {
    runtime: &'static Runtime,
    pub(super) upstream: &'a Upstream,
    interrupt: &'a AtomicBool,
    step: Cell<Step>,
    /// Bytes received in this step.
    received: Cell<u64>,
    fetch: RefCell<Option<PackContext>>,
    /// Requests, or connections where there are none.
    requests: Cell<u32>,
    failure: RefCell<Option<MirrorError>>,
}

/// A fetch under way.
struct PackContext {
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

impl<'a> UpstreamSession<'a> {
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
    pub(super) fn begin_fetch(&self, progress: &FetchProgress, mirrored: u64) {
        self.step.set(Step::Fetch);
        *self.fetch.borrow_mut() = Some(PackContext { progress: progress.clone(), mirrored });
        self.received.set(0);
    }

    /// What comes are LFS objects, each of which has its own length to keep to.
    pub(super) fn begin_lfs(&self) {
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
    pub(super) fn has_received(&self) -> bool {
        self.received.get() > 0 || !matches!(self.step.get(), Step::List)
    }

    /// Waits for something that the network is to bring.
    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, MirrorError> {
        let after = self.upstream.stall_timeout;
        let stalled = |_| MirrorError::Stalled { step: self.step(), after };
        // The clock belongs to the runtime.
        self.wait_without_timeout(async { tokio::time::timeout(after, work).await })?.map_err(stalled)
    }

    /// Waits for a program that works here, however long that takes.
    pub(super) fn wait_without_timeout<T>(&self, work: impl Future<Output = T>) -> Result<T, MirrorError> {
        self.runtime.block_on(async {
            tokio::pin!(work);
            loop {
                self.check_interrupt()?;
                tokio::select! {
                    biased;
                    done = &mut work => return Ok(done),
                    () = tokio::time::sleep(INTERRUPT_POLL_INTERVAL) => {}
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
            (Step::List, _) if received > LISTING_OVERHEAD + max_refs as u64 * BYTES_PER_REF => {
                Err(MirrorError::TooManyRefs { limit: max_refs })
            }
            (Step::Fetch, Some(fetch)) if received > BYTES_BEFORE_PACK && !fetch.progress.has_pack() => {
                let cause = format!("it says more than {BYTES_BEFORE_PACK} bytes before the pack begins");
                Err(MirrorError::Upstream { step: self.step(), cause })
            }
            (Step::Fetch, _) => self.check_pack(received),
            _ => Ok(()),
        }
    }

    /// Whether a pack may have so many bytes, as it comes or as it is written.
    pub(super) fn check_pack(&self, bytes: u64) -> Result<(), MirrorError> {
        if bytes > self.max_pack_bytes() { Err(self.too_large()) } else { Ok(()) }
    }

    /// The same of a pack with its index, which counts as a part of the mirror.
    pub(super) fn check_pack_and_index(&self, pack: u64, index: u64) -> Result<(), MirrorError> {
        self.check_pack(pack)?;
        if pack.saturating_add(index) > self.mirror_bytes_left() {
            return Err(MirrorError::MirrorTooLarge { limit: self.upstream.max_mirror });
        }
        Ok(())
    }

    /// How many bytes a pack may have.
    pub(super) fn max_pack_bytes(&self) -> u64 {
        self.upstream.max_pack.min(self.mirror_bytes_left())
    }

    fn mirror_bytes_left(&self) -> u64 {
        let mirrored = self.fetch.borrow().as_ref().map_or(0, |fetch| fetch.mirrored);
        self.upstream.max_mirror.saturating_sub(mirrored)
    }

    /// Which limit a pack is beyond that has more.
    pub(super) fn too_large(&self) -> MirrorError {
        let Upstream { max_pack, max_mirror, .. } = *self.upstream;
        if max_pack <= self.mirror_bytes_left() {
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
    pub(super) fn check_interrupt(&self) -> Result<(), MirrorError> {
        if self.interrupt.load(Ordering::Relaxed) { Err(MirrorError::Interrupted) } else { Ok(()) }
    }

    /// The upstream, or where it leads to, is asked something.
    pub(super) fn count_request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    /// How often it was asked.
    pub(super) fn requests(&self) -> u32 {
        self.requests.get()
    }

    /// Keeps what went wrong, and makes an error of it that error_for_gix through gix.
    pub(super) fn record(&self, error: MirrorError) -> io::Error {
        let error_for_gix = io::Error::other(error.to_string());
        self.failure.borrow_mut().get_or_insert(error);
        error_for_gix
    }

    /// What went wrong first, if a transport knows it.
    pub(super) fn take_failure(&self) -> Option<MirrorError> {
        self.failure.borrow_mut().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session<T>(upstream: &Upstream, work: impl FnOnce(&UpstreamSession, &AtomicBool) -> T) -> T {
        let interrupt = AtomicBool::new(false);
        work(&UpstreamSession::new(upstream, &interrupt).unwrap(), &interrupt)
    }

    #[test]
    fn silence_ends_a_wait_and_so_does_a_request_to_stop() {
        let mut upstream = Upstream::new("git://host/x");
        upstream.stall_timeout = Duration::from_millis(1);
        session(&upstream, |session, _| {
            let error = session.wait(std::future::pending::<()>()).unwrap_err();
            assert!(error.is_timeout() && error.step() == "list refs", "{error}");
            assert_eq!(session.wait(std::future::ready(7)).unwrap(), 7);
        });
        upstream.stall_timeout = Duration::from_secs(3600);
        session(&upstream, |session, interrupt| {
            let stop = async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                interrupt.store(true, Ordering::Relaxed);
                std::future::pending::<()>().await;
            };
            assert!(matches!(session.wait(stop), Err(MirrorError::Interrupted)));
        });
    }

    #[test]
    fn a_listing_and_a_pack_have_each_their_bound() {
        let mut upstream = Upstream::new("git://host/x");
        (upstream.max_refs, upstream.max_pack, upstream.max_mirror) = (10, 1000, 5000);
        session(&upstream, |session, _| {
            let listing = usize::try_from(LISTING_OVERHEAD + 10 * BYTES_PER_REF).unwrap();
            session.received(listing).unwrap();
            assert!(matches!(session.received(1), Err(MirrorError::TooManyRefs { limit: 10 })));
            session.begin_fetch(&FetchProgress::default(), 4000);
            session.received(1000).unwrap();
            assert!(matches!(session.received(1), Err(MirrorError::PackTooLarge { limit: 1000 })));
            session.begin_fetch(&FetchProgress::default(), 4001);
            assert!(matches!(session.received(1000), Err(MirrorError::MirrorTooLarge { limit: 5000 })));
        });
    }

    #[test]
    fn the_first_failure_is_the_one_that_counts() {
        session(&Upstream::new("git://host/x"), |session, _| {
            let _ = session.record(MirrorError::TooManyRefs { limit: 1 });
            let _ = session.record(MirrorError::Interrupted);
            assert!(matches!(session.take_failure(), Some(MirrorError::TooManyRefs { .. })));
            assert!(session.take_failure().is_none());
        });
    }
}
