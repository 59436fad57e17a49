//! What upkeep is due, by what is found and what failed before.

use std::time::{Duration, SystemTime};

use super::Upkeep;
use crate::source::git::mirror::MirrorSize;

/// Packs that are left alone.
const PACKS_BEFORE_REPACK: usize = 16;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// From one full repack to the next.
const FULL_EVERY: Duration = Duration::from_secs(7 * 24 * 3600);

/// After a full repack that failed: a day, and a month at the most.
const FULL_PAUSE: Pause = Pause { first: DAY, most_doublings: 5 };

/// After a failure to join: ten minutes, and a week at the most.
const JOIN_PAUSE: Pause = Pause { first: Duration::from_secs(600), most_doublings: 10 };

/// How long something is left alone that failed: doubled with each further failure in a row.
struct Pause {
    first: Duration,
    most_doublings: u32,
}

/// What a mirror looks like.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) size: MirrorSize,
    /// Since the last full repack, or the first look.
    pub(super) since_full: Duration,
    /// Whether refs were moved or deleted since then: something may have been left behind, though nothing was fetched.
    pub(super) refs_moved: bool,
}

/// How upkeep went so far. What failed is left alone for a while.
#[derive(Debug, Default)]
pub(in super::super) struct RepackHistory {
    full: Row,
    join: Row,
    /// What the mirror had after the last full repack.
    bytes_after_full: Option<u64>,
}

/// Failures since the last success.
#[derive(Debug, Default)]
struct Row {
    length: u32,
    last: Option<SystemTime>,
}

impl Row {
    /// A clock that was set back ends the pause.
    fn holds(&self, pause: &Pause, now: SystemTime) -> bool {
        let pause = pause.first * 2u32.pow(self.length.saturating_sub(1).min(pause.most_doublings));
        self.last.and_then(|last| now.duration_since(last).ok()).is_some_and(|since| since < pause)
    }
}

impl RepackHistory {
    pub(super) fn failed(&mut self, failed: Upkeep, now: SystemTime) {
        let row = self.row(failed);
        *row = Row { length: row.length.saturating_add(1), last: Some(now) };
    }

    /// It was done, and the mirror has so many bytes since.
    pub(super) fn succeeded(&mut self, done: Upkeep, bytes: u64) {
        *self.row(done) = Row::default();
        if done == Upkeep::Full {
            self.bytes_after_full = Some(bytes);
        }
    }

    fn row(&mut self, of: Upkeep) -> &mut Row {
        if of == Upkeep::Full { &mut self.full } else { &mut self.join }
    }
}

/// What is to be done now.
pub(super) fn due(found: &Found, max_mirror: u64, past: &RepackHistory, now: SystemTime) -> Upkeep {
    let MirrorSize { packs, bytes } = found.size;
    // Its bound is near, and what is left behind may be the reason: not when it was as large after the last time.
    let grown = past.bytes_after_full.is_none_or(|after| bytes / 5 * 4 >= after);
    let full_every = if grown && bytes >= max_mirror / 4 * 3 { DAY } else { FULL_EVERY };
    let left_behind = packs > 1 || packs == 1 && found.refs_moved;
    if left_behind && found.since_full >= full_every && !past.full.holds(&FULL_PAUSE, now) {
        Upkeep::Full
    } else if packs >= PACKS_BEFORE_REPACK && !past.join.holds(&JOIN_PAUSE, now) {
        Upkeep::Joined
    } else {
        Upkeep::NotDue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn found(packs: usize, since_full: Duration) -> Found {
        Found { size: MirrorSize { packs, bytes: 100 }, since_full, refs_moved: false }
    }

    #[test]
    fn many_packs_are_joined_and_a_week_old_mirror_is_written_anew() {
        for (packs, since_full, expected) in [
            (0, 30 * DAY, Upkeep::NotDue),
            (1, 30 * DAY, Upkeep::NotDue),
            (15, DAY, Upkeep::NotDue),
            (16, DAY, Upkeep::Joined),
            (500, 6 * DAY, Upkeep::Joined),
            (2, 7 * DAY, Upkeep::Full),
            (500, 7 * DAY, Upkeep::Full),
        ] {
            let due = due(&found(packs, since_full), 1000, &RepackHistory::default(), NOW);
            assert_eq!(due, expected, "{packs} packs, {since_full:?}");
        }
        // A push that forced a branch back to what was there before brings no pack.
        let forced_back = Found { refs_moved: true, ..found(1, 7 * DAY) };
        assert_eq!(due(&forced_back, 1000, &RepackHistory::default(), NOW), Upkeep::Full);
        // Nearly as large as it may be.
        assert_eq!(due(&found(2, DAY), 133, &RepackHistory::default(), NOW), Upkeep::Full);
        let mut past = RepackHistory::default();
        past.succeeded(Upkeep::Full, 90);
        assert_eq!(due(&found(2, DAY), 133, &past, NOW), Upkeep::NotDue, "it is that large");
        past.succeeded(Upkeep::Full, 80);
        assert_eq!(due(&found(2, DAY), 133, &past, NOW), Upkeep::Full);
    }

    #[test]
    fn what_fails_is_left_alone_for_longer_each_time_and_the_other_goes_on() {
        let mut past = RepackHistory::default();
        let many = found(20, 7 * DAY);
        let at = |past: &RepackHistory, since: Duration| due(&many, 1000, past, NOW + since);
        for days in [1, 2, 4, 8, 16, 32, 32] {
            assert_eq!(at(&past, Duration::ZERO), if days == 1 { Upkeep::Full } else { Upkeep::Joined });
            past.failed(Upkeep::Full, NOW);
            assert_eq!(at(&past, days * DAY - Duration::from_secs(1)), Upkeep::Joined);
            assert_eq!(at(&past, days * DAY), Upkeep::Full);
        }
        past.failed(Upkeep::Joined, NOW);
        assert_eq!(at(&past, JOIN_PAUSE.first - Duration::from_secs(1)), Upkeep::NotDue);
        assert_eq!(at(&past, JOIN_PAUSE.first), Upkeep::Joined);
        past.succeeded(Upkeep::Full, 100);
        assert_eq!(at(&past, Duration::ZERO), Upkeep::Full);
        // The clock was set back.
        past.failed(Upkeep::Full, NOW + 100 * DAY);
        assert_eq!(at(&past, Duration::ZERO), Upkeep::Full);
    }
}
