//! The progress of a fetch, as gix and the git program report it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gix::progress::{Count, Id, MessageLevel, NestedProgress, Progress, Step, StepShared, UNKNOWN, Unit};
use weir_upstream::Phase;

use super::FetchProgress;

/// The counters of objects: prepared by the upstream, received (our own), and resolved.
const PREPARED_OBJECTS: Id = *b"FERP";
pub(super) const RECEIVED_OBJECTS: Id = *b"RECV";
const RESOLVED_OBJECTS: Id = *b"IWRO";

/// The phase of a gix counter, if it shows the phase's progress.
fn phase_of_counter(id: Id) -> Option<Phase> {
    match id {
        PREPARED_OBJECTS => Some(Phase::Preparing),
        RECEIVED_OBJECTS => Some(Phase::Receiving),
        RESOLVED_OBJECTS => Some(Phase::Resolving),
        _ => None,
    }
}

/// The phase of a progress line of the git program.
fn phase_of_title(title: &str) -> Option<Phase> {
    match title {
        "Receiving objects" => Some(Phase::Receiving),
        "Resolving deltas" => Some(Phase::Resolving),
        "Checking objects" => Some(Phase::Checking),
        _ => None,
    }
}

/// Shows a progress line of the git program: `Resolving deltas:  50% (2/4)`, or `Checking objects: 7`.
pub(super) fn show_line(progress: &FetchProgress, line: &str) {
    let Some((title, counts)) = line.split_once(": ") else { return };
    let Some(phase) = phase_of_title(title) else { return };
    let counted = counts.split_once('(').map_or(counts, |(_, counted)| counted);
    let mut numbers = counted.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok());
    let done = Arc::new(AtomicUsize::new(numbers.next().unwrap_or(0)));
    progress.show(phase, done, counted.contains('/').then(|| numbers.next()).flatten());
}

/// A gix counter. Most of them are not shown.
pub(super) struct GixProgress {
    progress: FetchProgress,
    id: Id,
    counter: Arc<AtomicUsize>,
    max: Option<Step>,
}

impl GixProgress {
    /// The progress for gix.
    pub(super) fn new(progress: &FetchProgress) -> Self {
        Self { progress: progress.clone(), id: UNKNOWN, counter: Arc::default(), max: None }
    }

    /// Shows this counter, unless a later phase has started.
    fn show(&self) {
        if let Some(phase) = phase_of_counter(self.id) {
            self.progress.show_if_current(phase, self.counter.clone(), self.max);
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
    use weir_upstream::FetchSnapshot;

    use super::*;

    #[test]
    fn counters_and_lines_show_the_latest_phase() {
        let progress = FetchProgress::default();
        let _active = progress.start();
        progress.received(4096);
        let mut late = GixProgress::new(&progress).add_child_with_id("remote", *b"FERP");
        late.init(Some(9), None);
        let expect = |phase, done, total| {
            assert_eq!(progress.snapshot(), FetchSnapshot { phase, done, total, bytes: 4096 });
        };
        expect("receiving", 0, None);
        show_line(&progress, "Receiving objects:  21% (1234/5678), 1.5 MiB | 3.0 MiB/s");
        expect("receiving", 1234, Some(5678));
        show_line(&progress, "Resolving deltas: 100% (3/3), completed with 1 local object.");
        show_line(&progress, "fatal: (7/9)");
        expect("resolving", 3, Some(3));
        show_line(&progress, "Checking objects: 77, done.");
        expect("checking", 77, None);
    }
}
