//! Decides which repack is due, from the mirror's state and former results. Pure.

use std::time::{Duration, SystemTime};

use super::Repack;
use crate::mirror::MirrorSize;

/// The packs at which a geometric repack is due.
const PACKS_BEFORE_REPACK: usize = 16;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The interval of full repacks.
const FULL_INTERVAL: Duration = Duration::from_secs(7 * 24 * 3600);

/// After a failed full repack: one day, up to a month.
const FULL_BACKOFF: Backoff = Backoff { first: DAY, max_doublings: 5 };

/// After a failed geometric repack: ten minutes, up to a week.
const GEOMETRIC_BACKOFF: Backoff = Backoff { first: Duration::from_secs(600), max_doublings: 10 };

/// A back-off that doubles with each consecutive failure.
struct Backoff {
    first: Duration,
    max_doublings: u32,
}

/// The state of a mirror.
#[derive(Debug, Clone, Copy)]
pub(super) struct MirrorState {
    pub(super) size: MirrorSize,
    /// The time since the last full repack, or since the first check.
    pub(super) since_full: Duration,
    /// Whether refs changed since then, which may leave unreachable objects even without a fetch.
    pub(super) refs_changed: bool,
}

/// The results of former repacks.
#[derive(Debug, Default)]
pub(in super::super) struct RepackHistory {
    full: Failures,
    geometric: Failures,
    /// The mirror's size after the last full repack, in bytes.
    bytes_after_full: Option<u64>,
}

/// Consecutive failures.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    last: Option<SystemTime>,
}

impl Failures {
    /// A clock that was set back ends the back-off.
    fn backs_off(&self, pause: &Backoff, now: SystemTime) -> bool {
        let pause = pause.first * 2u32.pow(self.count.saturating_sub(1).min(pause.max_doublings));
        self.last.and_then(|last| now.duration_since(last).ok()).is_some_and(|since| since < pause)
    }
}

impl RepackHistory {
    pub(super) fn failed(&mut self, failed: Repack, now: SystemTime) {
        let failures = self.failures(failed);
        *failures = Failures { count: failures.count.saturating_add(1), last: Some(now) };
    }

    /// Records a success, and the mirror's size in bytes.
    pub(super) fn succeeded(&mut self, done: Repack, bytes: u64) {
        *self.failures(done) = Failures::default();
        if done == Repack::Full {
            self.bytes_after_full = Some(bytes);
        }
    }

    fn failures(&mut self, of: Repack) -> &mut Failures {
        if of == Repack::Full { &mut self.full } else { &mut self.geometric }
    }
}

/// The repack that is due now.
pub(super) fn due(state: &MirrorState, max_mirror: u64, history: &RepackHistory, now: SystemTime) -> Option<Repack> {
    let MirrorSize { packs, bytes } = state.size;
    // Close to its limit the mirror is repacked daily, unless the last full repack did not make it smaller.
    let grown = history.bytes_after_full.is_none_or(|after| bytes / 5 * 4 >= after);
    let full_interval = if grown && bytes >= max_mirror / 4 * 3 { DAY } else { FULL_INTERVAL };
    let has_garbage = packs > 1 || packs == 1 && state.refs_changed;
    if has_garbage && state.since_full >= full_interval && !history.full.backs_off(&FULL_BACKOFF, now) {
        Some(Repack::Full)
    } else if packs >= PACKS_BEFORE_REPACK && !history.geometric.backs_off(&GEOMETRIC_BACKOFF, now) {
        Some(Repack::Geometric)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn state(packs: usize, since_full: Duration) -> MirrorState {
        MirrorState { size: MirrorSize { packs, bytes: 100 }, since_full, refs_changed: false }
    }

    #[test]
    fn a_geometric_repack_depends_on_packs_and_a_full_one_on_time() {
        for (packs, since_full, expected) in [
            (0, 30 * DAY, None),
            (1, 30 * DAY, None),
            (15, DAY, None),
            (16, DAY, Some(Repack::Geometric)),
            (500, 6 * DAY, Some(Repack::Geometric)),
            (2, 7 * DAY, Some(Repack::Full)),
            (500, 7 * DAY, Some(Repack::Full)),
        ] {
            let due = due(&state(packs, since_full), 1000, &RepackHistory::default(), NOW);
            assert_eq!(due, expected, "{packs} packs, {since_full:?}");
        }
        // A branch that was forced back to an earlier commit brings no pack.
        let forced_back = MirrorState { refs_changed: true, ..state(1, 7 * DAY) };
        assert_eq!(due(&forced_back, 1000, &RepackHistory::default(), NOW), Some(Repack::Full));
        // Close to the limit.
        assert_eq!(due(&state(2, DAY), 133, &RepackHistory::default(), NOW), Some(Repack::Full));
        let mut history = RepackHistory::default();
        history.succeeded(Repack::Full, 90);
        assert_eq!(due(&state(2, DAY), 133, &history, NOW), None, "a full repack would not help");
        history.succeeded(Repack::Full, 80);
        assert_eq!(due(&state(2, DAY), 133, &history, NOW), Some(Repack::Full));
    }

    #[test]
    fn each_kind_of_repack_backs_off_on_its_own() {
        let mut history = RepackHistory::default();
        let many = state(20, 7 * DAY);
        let at = |history: &RepackHistory, since: Duration| due(&many, 1000, history, NOW + since);
        for days in [1, 2, 4, 8, 16, 32, 32] {
            let now_due = if days == 1 { Repack::Full } else { Repack::Geometric };
            assert_eq!(at(&history, Duration::ZERO), Some(now_due));
            history.failed(Repack::Full, NOW);
            assert_eq!(at(&history, days * DAY - Duration::from_secs(1)), Some(Repack::Geometric));
            assert_eq!(at(&history, days * DAY), Some(Repack::Full));
        }
        history.failed(Repack::Geometric, NOW);
        assert_eq!(at(&history, GEOMETRIC_BACKOFF.first - Duration::from_secs(1)), None);
        assert_eq!(at(&history, GEOMETRIC_BACKOFF.first), Some(Repack::Geometric));
        history.succeeded(Repack::Full, 100);
        assert_eq!(at(&history, Duration::ZERO), Some(Repack::Full));
        // The clock was set back.
        history.failed(Repack::Full, NOW + 100 * DAY);
        assert_eq!(at(&history, Duration::ZERO), Some(Repack::Full));
    }
}
