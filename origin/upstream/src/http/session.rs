//! A session with an upstream: timeouts, interrupts, and the number of requests.
//!
//! All waits for the network happen here. They end with the result, after the stall timeout, or soon after an
//! interrupt; a wait for a local program has no timeout.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::{EnterGuard, Runtime};
use tokio::task::JoinHandle;

use super::super::error::UpstreamError;
use super::super::runtime::runtime;
use super::super::upstream::Upstream;

/// The interval at which a wait checks for an interrupt.
const INTERRUPT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// A session with an upstream.
pub struct UpstreamSession<'a> {
    runtime: &'static Runtime,
    /// The upstream.
    pub upstream: &'a Upstream,
    interrupt: &'a AtomicBool,
    step: Cell<&'static str>,
    /// Requests over HTTP, connections otherwise.
    requests: Cell<u32>,
}

impl<'a> UpstreamSession<'a> {
    /// Begins with a step, for errors.
    pub fn new(upstream: &'a Upstream, step: &'static str, interrupt: &'a AtomicBool) -> Result<Self, UpstreamError> {
        Ok(Self { runtime: runtime()?, upstream, interrupt, step: Cell::new(step), requests: Cell::new(0) })
    }

    /// The current step, for errors: `list refs`, `list`, `fetch` or `lfs`.
    pub fn step(&self) -> &'static str {
        self.step.get()
    }

    /// Changes the step.
    pub fn set_step(&self, step: &'static str) {
        self.step.set(step);
    }

    /// The longest time to connect. It is shorter than the stall timeout, so that the error tells them apart.
    pub fn connect_timeout(&self) -> Duration {
        CONNECT_TIMEOUT.min(self.upstream.config.stall_timeout * 3 / 4)
    }

    /// Waits for the network, up to the stall timeout.
    pub fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, UpstreamError> {
        let after = self.upstream.config.stall_timeout;
        let stalled = |_| UpstreamError::Stalled { step: self.step(), after };
        // The timer needs the runtime.
        self.wait_without_timeout(async { tokio::time::timeout(after, work).await })?.map_err(stalled)
    }

    /// Waits for a local program without a timeout.
    pub fn wait_without_timeout<T>(&self, work: impl Future<Output = T>) -> Result<T, UpstreamError> {
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
    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Enters the runtime, which registers new sockets.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Set to interrupt the session.
    pub fn interrupt(&self) -> &AtomicBool {
        self.interrupt
    }

    /// Checks for an interrupt, in work that does not wait.
    pub fn check_interrupt(&self) -> Result<(), UpstreamError> {
        if self.interrupt.load(Ordering::Relaxed) { Err(UpstreamError::Interrupted) } else { Ok(()) }
    }

    /// Counts a request to the upstream or to a host it refers to.
    pub fn count_request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    /// The number of requests.
    pub fn requests(&self) -> u32 {
        self.requests.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session<T>(upstream: &Upstream, work: impl FnOnce(&UpstreamSession, &AtomicBool) -> T) -> T {
        let interrupt = AtomicBool::new(false);
        work(&UpstreamSession::new(upstream, "list refs", &interrupt).unwrap(), &interrupt)
    }

    #[test]
    fn a_wait_ends_after_the_stall_timeout_or_an_interrupt() {
        let mut upstream = Upstream::new("git://host/x");
        upstream.config.stall_timeout = Duration::from_millis(1);
        session(&upstream, |session, _| {
            let error = session.wait(std::future::pending::<()>()).unwrap_err();
            assert!(error.is_timeout() && error.step() == "list refs", "{error}");
            assert_eq!(session.wait(std::future::ready(7)).unwrap(), 7);
        });
        upstream.config.stall_timeout = Duration::from_secs(3600);
        session(&upstream, |session, interrupt| {
            let stop = async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                interrupt.store(true, Ordering::Relaxed);
                std::future::pending::<()>().await;
            };
            assert!(matches!(session.wait(stop), Err(UpstreamError::Interrupted)));
        });
    }
}
