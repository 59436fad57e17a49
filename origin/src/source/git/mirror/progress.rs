//! The progress of a fetch, reported by gix and the git program.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gix::progress::{Count, Id, MessageLevel, NestedProgress, Progress, Step, StepShared, UNKNOWN, Unit};

/// The progress of a mirror's polls. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FetchProgress(Arc<Mutex<State>>);

/// A snapshot of the progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchSnapshot {
    /// The phase: `idle`, `connecting`, `listing`, `preparing` (the upstream builds the pack), `waiting` (for memory),
    /// `receiving`, `resolving` (deltas) or `checking` (that all reachable objects exist).
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
enum Phase {
    #[default]
    Idle,
    Connecting,
    Listing,
    Preparing,
    Waiting,
    Receiving,
    Resolving,
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

    /// The phase of a gix counter, if it shows the phase's progress.
    fn from_counter(id: Id) -> Option<Self> {
        match id {
            PREPARED_OBJECTS => Some(Self::Preparing),
            RECEIVED_OBJECTS => Some(Self::Receiving),
            RESOLVED_OBJECTS => Some(Self::Resolving),
            _ => None,
        }
    }

    /// The phase of a progress line of the git program.
    fn from_title(title: &str) -> Option<Self> {
        match title {
            "Receiving objects" => Some(Self::Receiving),
            "Resolving deltas" => Some(Self::Resolving),
            "Checking objects" => Some(Self::Checking),
            _ => None,
        }
    }
}

/// The counters of objects: prepared by the upstream, received (our own), and resolved.
const PREPARED_OBJECTS: Id = *b"FERP";
pub(super) const RECEIVED_OBJECTS: Id = *b"RECV";
const RESOLVED_OBJECTS: Id = *b"IWRO";

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    done: Option<StepShared>,
    total: Option<Step>,
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
    pub(super) fn has_pack(&self) -> bool {
        self.state().bytes.is_some()
    }

    /// The requests of finished polls: HTTP requests, or connections; none for local upstreams.
    pub fn requests(&self) -> u32 {
        self.state().requests
    }

    pub(super) fn count_requests(&self, times: u32) {
        self.state().requests += times;
    }

    /// Starts a poll, which ends when the guard is dropped.
    pub(super) fn start(&self) -> ActivePoll {
        self.state().begin(Phase::Connecting);
        ActivePoll(self.clone())
    }

    /// The progress for gix.
    pub(super) fn root(&self) -> GixProgress {
        GixProgress { progress: self.clone(), id: UNKNOWN, counter: Arc::default(), max: None }
    }

    pub(super) fn listing(&self) {
        self.state().phase = Phase::Listing;
    }

    /// Refs are listed, and a pack is requested.
    pub(super) fn preparing(&self) {
        self.state().phase = Phase::Preparing;
    }

    /// The fetch waits for memory, and receives nothing meanwhile.
    pub(super) fn waiting_for_memory(&self) {
        let mut state = self.state();
        let checks = state.done.take().filter(|_| state.phase == Phase::Waiting).unwrap_or_default();
        checks.fetch_add(1, Ordering::Relaxed);
        (state.phase, state.done, state.total) = (Phase::Waiting, Some(checks), None);
    }

    /// Counts received bytes of the pack.
    pub(super) fn received(&self, bytes: usize) {
        let mut state = self.state();
        if state.phase < Phase::Receiving {
            (state.phase, state.done, state.total) = (Phase::Receiving, None, None);
        }
        state.bytes = Some(state.bytes.unwrap_or(0) + bytes as u64);
    }

    /// Parses a progress line of the git program: `Resolving deltas:  50% (2/4)`, or `Checking objects: 7`.
    pub(super) fn parse_line(&self, line: &str) {
        let Some((title, counts)) = line.split_once(": ") else { return };
        let Some(phase) = Phase::from_title(title) else { return };
        let counted = counts.split_once('(').map_or(counts, |(_, counted)| counted);
        let mut numbers = counted.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
        let mut state = self.state();
        state.phase = phase;
        state.done = Some(Arc::new(AtomicUsize::new(numbers.next().unwrap_or(0))));
        state.total = counted.contains('/').then(|| numbers.next()).flatten();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is for display only, so a panic elsewhere does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resets the phase to `idle` on drop.
pub(super) struct ActivePoll(FetchProgress);

impl Drop for ActivePoll {
    fn drop(&mut self) {
        self.0.state().begin(Phase::Idle);
    }
}

/// A gix counter. Most of them are not shown.
pub(super) struct GixProgress {
    progress: FetchProgress,
    id: Id,
    counter: Arc<AtomicUsize>,
    max: Option<Step>,
}

impl GixProgress {
    /// Shows this counter, unless a later phase has started.
    fn show(&self) {
        let mut state = self.progress.state();
        if let Some(phase) = Phase::from_counter(self.id)
            && state.phase <= phase
        {
            state.phase = phase;
            state.done = Some(self.counter.clone());
            state.total = self.max;
        }
    }
}

impl Count for GixProgress {
    fn set(&self, step: Step) {
        self.counter.store(step, Ordering::Relaxed);
    }

    fn step(&self) -> Step {
        self.counter.load(Ordering::Relaxed)
    }

    fn inc_by(&self, step: Step) {
        self.counter.fetch_add(step, Ordering::Relaxed);
    }

    fn counter(&self) -> StepShared {
        self.counter.clone()
    }
}

impl Progress for GixProgress {
    fn init(&mut self, max: Option<Step>, _unit: Option<Unit>) {
        self.max = max;
        self.show();
    }

    fn max(&self) -> Option<Step> {
        self.max
    }

    fn set_max(&mut self, max: Option<Step>) -> Option<Step> {
        let before = std::mem::replace(&mut self.max, max);
        self.show();
        before
    }

    fn set_name(&mut self, _name: String) {}

    fn name(&self) -> Option<String> {
        None
    }

    fn id(&self) -> Id {
        self.id
    }

    fn message(&self, _level: MessageLevel, _message: String) {}
}

impl NestedProgress for GixProgress {
    type SubProgress = Self;

    fn add_child(&mut self, name: impl Into<String>) -> Self {
        self.add_child_with_id(name, UNKNOWN)
    }

    fn add_child_with_id(&mut self, _name: impl Into<String>, id: Id) -> Self {
        Self { progress: self.progress.clone(), id, counter: Arc::default(), max: None }
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
        let mut late = progress.root().add_child_with_id("remote", *b"FERP");
        late.init(Some(9), None);
        let expect = |phase, done, total| {
            assert_eq!(progress.snapshot(), FetchSnapshot { phase, done, total, bytes: 4096 });
        };
        expect("receiving", 0, None);
        progress.parse_line("Receiving objects:  21% (1234/5678), 1.5 MiB | 3.0 MiB/s");
        expect("receiving", 1234, Some(5678));
        progress.parse_line("Resolving deltas: 100% (3/3), completed with 1 local object.");
        progress.parse_line("fatal: (7/9)");
        expect("resolving", 3, Some(3));
        progress.parse_line("Checking objects: 77, done.");
        expect("checking", 77, None);
        drop(active);
        assert_eq!(progress.snapshot(), FetchSnapshot { phase: "idle", done: 0, total: None, bytes: 0 });
    }
}
