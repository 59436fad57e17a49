//! Which bundle is due. Pure: the time is an argument.
//!
//! A busy repository would have 4,000 incremental bundles in a month, and a new owner would read them one by one. So a
//! new bundle takes the place of the last one of its rank, of the one before with the next rank, and so on, as a binary
//! counter carries: there are never more than a dozen, and each byte is written a dozen times at most.

use std::time::Duration;

use weir_model::stored_mirror::Bundle;

/// The shortest time between two bundles.
pub const INCREMENTAL_INTERVAL: Duration = Duration::from_secs(600);

/// A full bundle of this age is replaced, once something moved.
const FULL_INTERVAL: Duration = Duration::from_secs(30 * 24 * 3600);

/// The same after history was rewritten: the bundles contain commits that the upstream has dropped. Branches that are
/// rebased rewrite history all day, so this is not done at once.
const REWRITTEN_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// How the mirror differs from its bundles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// A ref is new, deleted, or at another object.
    pub(super) moved: bool,
    /// A commit that was a tip is not reachable any more.
    pub(super) rewritten: bool,
}

/// The bundle to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextBundle {
    /// How many bundles stay below it; the others are replaced. 0: it is a full one.
    pub(super) base: usize,
    pub(super) rank: u32,
}

/// The bundle to write at `now`, in Unix milliseconds. `at_once`: the repository is about to move, so an incremental one
/// does not wait, and no full one is made.
pub(super) fn due(bundles: &[Bundle], changes: Changes, now: u64, at_once: bool) -> Option<NextBundle> {
    const FULL: NextBundle = NextBundle { base: 0, rank: 0 };
    let [full, incremental @ ..] = bundles else { return Some(FULL) };
    // A time in the future stems from another clock.
    let is_older = |bundle: &Bundle, than: Duration| {
        now.checked_sub(bundle.made_at).is_none_or(|age| u128::from(age) >= than.as_millis())
    };
    if !changes.moved {
        return None;
    }
    if !at_once {
        if !is_older(incremental.last().unwrap_or(full), INCREMENTAL_INTERVAL) {
            return None;
        }
        let has_outgrown = incremental.iter().map(Bundle::size).sum::<u64>() > full.size();
        let is_rewritten = changes.rewritten && is_older(full, REWRITTEN_INTERVAL);
        if has_outgrown || is_rewritten || is_older(full, FULL_INTERVAL) {
            return Some(FULL);
        }
    }
    let mut next = NextBundle { base: bundles.len(), rank: 0 };
    while next.base > 1 && bundles[next.base - 1].rank == next.rank {
        next = NextBundle { base: next.base - 1, rank: next.rank + 1 };
    }
    Some(next)
}

#[cfg(test)]
mod tests {
    use weir_protocol::digest::ObjectDigest;

    use super::*;
    use weir_model::stored_mirror::Part;

    const MINUTE: u64 = 60_000;
    const DAY: u64 = 24 * 60 * MINUTE;
    const MOVED: Changes = Changes { moved: true, rewritten: false };
    const REWRITTEN: Changes = Changes { moved: true, rewritten: true };
    const FULL: Option<NextBundle> = Some(NextBundle { base: 0, rank: 0 });

    fn bundle(made_at: u64, rank: u32, size: u64) -> Bundle {
        Bundle { made_at, rank, parts: vec![Part { digest: ObjectDigest::of(b""), size }] }
    }

    fn on(base: usize, rank: u32) -> Option<NextBundle> {
        Some(NextBundle { base, rank })
    }

    #[test]
    fn the_first_bundle_is_a_full_one() {
        assert_eq!(due(&[], Changes::default(), 0, false), FULL);
        assert_eq!(due(&[], Changes::default(), 0, true), FULL);
    }

    #[test]
    fn an_incremental_one_is_due_ten_minutes_after_the_last_if_something_moved() {
        let mut bundles = vec![bundle(DAY, 0, 1000)];
        assert_eq!(due(&bundles, MOVED, DAY + 10 * MINUTE - 1, false), None);
        assert_eq!(due(&bundles, MOVED, DAY + 10 * MINUTE, false), on(1, 0));
        bundles.push(bundle(DAY + 10 * MINUTE, 0, 1));
        assert_eq!(due(&bundles, MOVED, DAY + 19 * MINUTE, false), None);
        assert_eq!(due(&bundles, Changes::default(), 400 * DAY, false), None, "nothing moved");
        assert_eq!(due(&bundles, MOVED, 0, false), FULL, "the clock was set back");
    }

    #[test]
    fn before_a_planned_move_an_incremental_one_is_written_at_once() {
        let bundles = [bundle(DAY, 0, 10), bundle(DAY, 1, 1000)];
        assert_eq!(due(&bundles, REWRITTEN, 99 * DAY, true), on(2, 0));
        assert_eq!(due(&bundles, MOVED, DAY, true), on(2, 0));
        assert_eq!(due(&bundles, Changes::default(), DAY, true), None, "nothing moved");
    }

    #[test]
    fn a_full_one_is_due_after_a_month_a_rewrite_or_when_the_others_outgrow_it() {
        let bundles = [bundle(DAY, 0, 1000), bundle(DAY, 1, 600), bundle(DAY, 0, 400)];
        assert_eq!(due(&bundles, MOVED, 31 * DAY - 1, false), on(1, 2));
        assert_eq!(due(&bundles, MOVED, 31 * DAY, false), FULL);
        assert_eq!(due(&bundles, REWRITTEN, 2 * DAY - 1, false), on(1, 2), "at most daily");
        assert_eq!(due(&bundles, REWRITTEN, 2 * DAY, false), FULL);
        let outgrown = [&bundles[..2], &[bundle(DAY, 0, 401)]].concat();
        assert_eq!(due(&outgrown, MOVED, DAY + 10 * MINUTE, false), FULL);
    }

    #[test]
    fn a_month_of_pushes_leaves_a_dozen_bundles() {
        let (mut bundles, mut now, mut full, mut most) = (Vec::new(), DAY, 0, 0);
        let mut written = 0;
        while now < 61 * DAY {
            let next = due(&bundles, MOVED, now, false).unwrap();
            full += usize::from(next.base == 0);
            let size = 1 + bundles[next.base..].iter().map(Bundle::size).sum::<u64>();
            bundles.truncate(next.base);
            bundles.push(bundle(now, next.rank, if next.base == 0 { 1_000_000 } else { size }));
            written += if next.base == 0 { 0 } else { size };
            most = most.max(bundles.len());
            now += 10 * MINUTE;
        }
        assert_eq!(full, 2, "one a month");
        assert!(most <= 14, "{most}");
        assert!(written < 8640 * 13, "{written}");
    }
}
