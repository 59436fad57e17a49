//! A session with an upstream: timeouts, limits on received bytes, and the first error.
//!
//! All waits for the network happen here. They end with the result, after the stall timeout, or soon after an
//! interrupt; a wait for the git program has no timeout. Errors of a transport are recorded here, because gix does not
//! preserve their types.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::{EnterGuard, Runtime};
use tokio::task::JoinHandle;

use super::limits::{BYTES_BEFORE_PACK, BYTES_PER_REF, LISTING_OVERHEAD};
use super::server_words::ServerWords;
use super::{FetchProgress, MirrorError};
use crate::source::{Upstream, runtime};

/// The interval at which a wait checks for an interrupt.
const INTERRUPT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// A session with an upstream.
pub(super) struct UpstreamSession<'a> {
    runtime: &'static Runtime,
    pub(super) upstream: &'a Upstream,
    interrupt: &'a AtomicBool,
    step: Cell<Step>,
    /// Bytes received in this step.
    received: Cell<u64>,
    fetch: RefCell<Option<PackContext>>,
    words: RefCell<ServerWords>,
    /// Requests over HTTP, connections otherwise.
    requests: Cell<u32>,
    failure: RefCell<Option<MirrorError>>,
}

/// The fetch of a pack.
struct PackContext {
    /// Tells whether the pack has started.
    progress: FetchProgress,
    /// The size of the mirror before the fetch, in bytes.
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
            words: RefCell::default(),
            requests: Cell::new(0),
            failure: RefCell::new(None),
        })
    }

    /// Starts the fetch of a pack, for a mirror of this size in bytes.
    pub(super) fn begin_fetch(&self, progress: &FetchProgress, mirrored: u64) {
        self.step.set(Step::Fetch);
        *self.fetch.borrow_mut() = Some(PackContext { progress: progress.clone(), mirrored });
        self.received.set(0);
    }

    /// Starts downloads of LFS objects, which limit their own sizes.
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

    /// The longest time to connect. It is shorter than the stall timeout, so that the error tells them apart.
    pub(super) fn connect_timeout(&self) -> Duration {
        CONNECT_TIMEOUT.min(self.upstream.stall_timeout * 3 / 4)
    }

    /// Whether the upstream has sent anything.
    pub(super) fn has_received(&self) -> bool {
        self.received.get() > 0 || !matches!(self.step.get(), Step::List)
    }

    /// Waits for the network, up to the stall timeout.
    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, MirrorError> {
        let after = self.upstream.stall_timeout;
        let stalled = |_| MirrorError::Stalled { step: self.step(), after };
        // The timer needs the runtime.
        self.wait_without_timeout(async { tokio::time::timeout(after, work).await })?.map_err(stalled)
    }

    /// Waits for a local program without a timeout.
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

    /// Runs a task in the background, such as reading the output of a program.
    pub(super) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Enters the runtime, which registers new sockets.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// A response of the server starts.
    pub(super) fn start_response(&self) {
        self.words.borrow_mut().start_response();
    }

    /// Adds the server's words to an error that they may explain.
    pub(super) fn explain(&self, error: MirrorError) -> MirrorError {
        match error {
            MirrorError::Upstream { step, cause } => {
                MirrorError::Upstream { step, cause: self.words.borrow().explain(cause) }
            }
            other => other,
        }
    }

    /// Whether the server has reported an error.
    pub(super) fn has_error(&self) -> bool {
        self.words.borrow().has_error()
    }

    /// Counts received bytes, and limits a listing and a pack.
    pub(super) fn received(&self, bytes: &[u8]) -> Result<(), MirrorError> {
        self.words.borrow_mut().received(bytes);
        let received = self.received.get() + bytes.len() as u64;
        self.received.set(received);
        let max_refs = self.upstream.max_refs;
        match (self.step.get(), &*self.fetch.borrow()) {
            (Step::List, _) if received > LISTING_OVERHEAD + max_refs as u64 * BYTES_PER_REF => {
                Err(MirrorError::TooManyRefs { limit: max_refs })
            }
            (Step::Fetch, Some(fetch)) if received > BYTES_BEFORE_PACK && !fetch.progress.has_pack() => {
                let cause = format!("it sent more than {BYTES_BEFORE_PACK} bytes before the pack");
                Err(MirrorError::Upstream { step: self.step(), cause })
            }
            (Step::Fetch, _) => self.check_pack(received),
            _ => Ok(()),
        }
    }

    /// Checks the size of a pack in bytes, while it is received or written.
    pub(super) fn check_pack(&self, bytes: u64) -> Result<(), MirrorError> {
        if bytes > self.max_pack_bytes() { Err(self.too_large()) } else { Ok(()) }
    }

    /// The same with its index, which counts towards the mirror's size.
    pub(super) fn check_pack_and_index(&self, pack: u64, index: u64) -> Result<(), MirrorError> {
        self.check_pack(pack)?;
        if pack.saturating_add(index) > self.mirror_bytes_left() {
            return Err(MirrorError::MirrorTooLarge { limit: self.upstream.max_mirror });
        }
        Ok(())
    }

    /// The largest pack that may be received, in bytes.
    pub(super) fn max_pack_bytes(&self) -> u64 {
        self.upstream.max_pack.min(self.mirror_bytes_left())
    }

    fn mirror_bytes_left(&self) -> u64 {
        let mirrored = self.fetch.borrow().as_ref().map_or(0, |fetch| fetch.mirrored);
        self.upstream.max_mirror.saturating_sub(mirrored)
    }

    /// The error for a larger pack.
    pub(super) fn too_large(&self) -> MirrorError {
        let Upstream { max_pack, max_mirror, .. } = *self.upstream;
        if max_pack <= self.mirror_bytes_left() {
            MirrorError::PackTooLarge { limit: max_pack }
        } else {
            MirrorError::MirrorTooLarge { limit: max_mirror }
        }
    }

    /// Set to interrupt the session.
    pub(super) fn interrupt(&self) -> &AtomicBool {
        self.interrupt
    }

    /// Checks for an interrupt, in work that does not wait.
    pub(super) fn check_interrupt(&self) -> Result<(), MirrorError> {
        if self.interrupt.load(Ordering::Relaxed) { Err(MirrorError::Interrupted) } else { Ok(()) }
    }

    /// Counts a request to the upstream or to a host it refers to.
    pub(super) fn count_request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    /// The number of requests.
    pub(super) fn requests(&self) -> u32 {
        self.requests.get()
    }

    /// Records the first error, and returns one that gix can pass on.
    pub(super) fn record(&self, error: MirrorError) -> io::Error {
        let error_for_gix = io::Error::other(error.to_string());
        self.failure.borrow_mut().get_or_insert(error);
        error_for_gix
    }

    /// Takes the first recorded error.
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
    fn a_wait_ends_after_the_stall_timeout_or_an_interrupt() {
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
    fn a_listing_and_a_pack_have_separate_limits() {
        let mut upstream = Upstream::new("git://host/x");
        (upstream.max_refs, upstream.max_pack, upstream.max_mirror) = (10, 1000, 5000);
        session(&upstream, |session, _| {
            let listing = usize::try_from(LISTING_OVERHEAD + 10 * BYTES_PER_REF).unwrap();
            session.received(&vec![b'0'; listing]).unwrap();
            assert!(matches!(session.received(b"0"), Err(MirrorError::TooManyRefs { limit: 10 })));
            session.begin_fetch(&FetchProgress::default(), 4000);
            session.received(&[b'0'; 1000]).unwrap();
            assert!(matches!(session.received(b"0"), Err(MirrorError::PackTooLarge { limit: 1000 })));
            session.begin_fetch(&FetchProgress::default(), 4001);
            assert!(matches!(session.received(&[b'0'; 1000]), Err(MirrorError::MirrorTooLarge { limit: 5000 })));
        });
    }

    #[test]
    fn the_first_error_is_recorded() {
        session(&Upstream::new("git://host/x"), |session, _| {
            let _ = session.record(MirrorError::TooManyRefs { limit: 1 });
            let _ = session.record(MirrorError::Interrupted);
            assert!(matches!(session.take_failure(), Some(MirrorError::TooManyRefs { .. })));
            assert!(session.take_failure().is_none());
        });
    }
}
