//! The progress of polls.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The progress of a mirror's polls. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FetchProgress(Arc<Mutex<State>>);

/// A snapshot of the progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchSnapshot {
    /// The phase: `idle`, `connecting`, `listing`, `preparing` (the upstream builds the pack), `waiting` (for memory),
    /// `receiving`, `resolving` (deltas) or `checking` (that all reachable objects exist; of charts and artifacts, the signatures).
    pub phase: &'static str,
    /// Finished objects of the phase.
    pub done: u64,
    /// All objects of the phase, once known.
    pub total: Option<u64>,
    /// Received bytes of the pack.
    pub bytes: u64,
}

/// The phases of a poll, in their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// No poll runs.
    #[default]
    Idle,
    /// To the upstream.
    Connecting,
    /// What it has.
    Listing,
    /// A request for what is missing.
    Preparing,
    /// For memory.
    Waiting,
    /// What was requested.
    Receiving,
    /// Deltas.
    Resolving,
    /// What was received.
    Checking,
}

impl Phase {
    fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Listing => "listing",
            Self::Preparing => "preparing",
            Self::Waiting => "waiting",
            Self::Receiving => "receiving",
            Self::Resolving => "resolving",
            Self::Checking => "checking",
        }
    }
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    done: Option<Arc<AtomicUsize>>,
    total: Option<usize>,
    bytes: Option<u64>,
    requests: u32,
}

impl State {
    fn begin(&mut self, phase: Phase) {
        *self = Self { phase, requests: self.requests, ..Self::default() };
    }
}

impl FetchProgress {
    /// The current progress.
    pub fn snapshot(&self) -> FetchSnapshot {
        let state = self.state();
        FetchSnapshot {
            phase: state.phase.as_str(),
            done: state.done.as_ref().map_or(0, |counter| counter.load(Ordering::Relaxed) as u64),
            total: state.total.map(|total| total as u64),
            bytes: state.bytes.unwrap_or(0),
        }
    }

    /// Whether a pack has started.
    pub fn has_pack(&self) -> bool {
        self.state().bytes.is_some()
    }

    /// The requests of finished polls: HTTP requests, or connections; none for local upstreams.
    pub fn requests(&self) -> u32 {
        self.state().requests
    }

    /// Counts requests to the upstream.
    pub fn count_requests(&self, times: u32) {
        self.state().requests += times;
    }

    /// Starts a poll, which ends when the guard is dropped.
    pub fn start(&self) -> ActivePoll {
        self.state().begin(Phase::Connecting);
        ActivePoll(self.clone())
    }

    /// Refs are listed now.
    pub fn listing(&self) {
        self.state().phase = Phase::Listing;
    }

    /// Refs are listed, and a pack is requested.
    pub fn preparing(&self) {
        self.state().phase = Phase::Preparing;
    }

    /// The fetch waits for memory, and receives nothing meanwhile.
    pub fn waiting_for_memory(&self) {
        let mut state = self.state();
        let checks = state.done.take().filter(|_| state.phase == Phase::Waiting).unwrap_or_default();
        checks.fetch_add(1, Ordering::Relaxed);
        (state.phase, state.done, state.total) = (Phase::Waiting, Some(checks), None);
    }

    /// Counts received bytes of the pack.
    pub fn received(&self, bytes: usize) {
        let mut state = self.state();
        if state.phase < Phase::Receiving {
            (state.phase, state.done, state.total) = (Phase::Receiving, None, None);
        }
        state.bytes = Some(state.bytes.unwrap_or(0) + bytes as u64);
    }

    /// Shows the progress of a phase: a counter of finished objects, and all objects, once known.
    pub fn show(&self, phase: Phase, done: Arc<AtomicUsize>, total: Option<usize>) {
        let mut state = self.state();
        (state.phase, state.done, state.total) = (phase, Some(done), total);
    }

    /// The same, unless a later phase has started.
    pub fn show_if_current(&self, phase: Phase, done: Arc<AtomicUsize>, total: Option<usize>) {
        let mut state = self.state();
        if state.phase <= phase {
            (state.phase, state.done, state.total) = (phase, Some(done), total);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is for display only, so a panic elsewhere does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resets the phase to `idle` on drop.
pub struct ActivePoll(FetchProgress);

impl Drop for ActivePoll {
    fn drop(&mut self) {
        self.0.state().begin(Phase::Idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_has_the_latest_phase() {
        let progress = FetchProgress::default();
        assert_eq!(progress.snapshot().phase, "idle");
        let active = progress.start();
        progress.listing();
        assert!(!progress.has_pack());
        progress.received(2048);
        progress.waiting_for_memory();
        progress.waiting_for_memory();
        let waiting = FetchSnapshot { phase: "waiting", done: 2, total: None, bytes: 2048 };
        assert_eq!(progress.snapshot(), waiting, "the count shows that the fetch is alive");
        progress.received(2048);
        assert!(progress.has_pack());
        drop(active);
        assert_eq!(progress.snapshot(), FetchSnapshot { phase: "idle", done: 0, total: None, bytes: 0 });
    }
}
