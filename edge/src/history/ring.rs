//! Samples of counters, the last hour of them. Pure: time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

use weir_cache::clock::Moment;

/// How far back the samples reach.
const REACH: Duration = Duration::from_secs(3600);

/// How long the owner waits between two samples.
pub(crate) const INTERVAL: Duration = Duration::from_secs(30);

/// The most samples: the last hour, and one at its beginning.
const MAX_SAMPLES: usize = (REACH.as_secs() / INTERVAL.as_secs()) as usize + 1;

/// A longer interval is a gap: the machine slept, and nobody knows when what it counted was.
const LONGEST: Duration = Duration::from_secs(90);

/// The last hour of `N` counters: at most 121 samples of `N` numbers.
#[derive(Debug)]
pub(super) struct Ring<const N: usize> {
    samples: VecDeque<(Moment, [u64; N])>,
}

/// What the counters counted between two samples.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Interval<const N: usize> {
    /// When it ended.
    pub(super) end: Moment,
    pub(super) counts: [u64; N],
}

impl<const N: usize> Ring<N> {
    /// The counters start at zero.
    pub(super) fn new(start: Moment) -> Self {
        Self { samples: VecDeque::from([(start, [0; N])]) }
    }

    /// Adds a sample, and drops those that are too old: the last that is an hour old stays, for the interval after it.
    pub(super) fn push(&mut self, now: Moment, counters: [u64; N]) {
        self.samples.push_back((now, counters));
        let is_old = |(at, _): &(Moment, _)| now.since(*at) >= REACH;
        while self.samples.len() > MAX_SAMPLES || self.samples.get(1).is_some_and(is_old) {
            self.samples.pop_front();
        }
    }

    /// What was counted between the samples, and from the last one until now, the oldest first; and the gaps, from and to.
    pub(super) fn intervals(&self, now: Moment, counters: [u64; N]) -> (Vec<Interval<N>>, Vec<(Moment, Moment)>) {
        let ends = self.samples.iter().copied().skip(1).chain([(now, counters)]);
        let pairs = self.samples.iter().zip(ends);
        let difference =
            |after: [u64; N], before: [u64; N]| std::array::from_fn(|n| after[n].saturating_sub(before[n]));
        let (mut intervals, mut gaps) = (Vec::new(), Vec::new());
        for ((start, before), (end, after)) in pairs.filter(|(_, (end, _))| now.since(*end) <= REACH) {
            if end.since(*start) > LONGEST {
                gaps.push((*start, end));
            } else {
                intervals.push(Interval { end, counts: difference(after, *before) });
            }
        }
        (intervals, gaps)
    }

    /// How far back they reach: an hour, or to the start.
    pub(super) fn reach(&self, now: Moment) -> Duration {
        self.samples.front().map_or(Duration::ZERO, |(at, _)| now.since(*at).min(REACH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_cache::clock::Clock;

    #[test]
    fn the_last_hour_is_kept_and_no_more() {
        let start = Clock::start().now();
        let at = |seconds: u64| start.after(Duration::from_secs(seconds));
        let mut ring = Ring::new(start);
        assert_eq!(ring.intervals(at(7), [5]).0, [Interval { end: at(7), counts: [5] }], "before the first sample");
        for sample in 1..=1000 {
            ring.push(at(30 * sample), [2 * sample]);
            assert!(ring.samples.len() <= MAX_SAMPLES);
        }
        let intervals = ring.intervals(at(30_010), [2003]).0;
        assert_eq!((intervals.len(), ring.reach(at(30_000))), (121, Duration::from_secs(3600)));
        assert_eq!(intervals[0], Interval { end: at(26_430), counts: [2] });
        assert_eq!(intervals[120], Interval { end: at(30_010), counts: [3] });
        assert_eq!(intervals.iter().map(|interval| interval.counts[0]).sum::<u64>(), 243);
    }

    #[test]
    fn a_pause_of_the_machine_is_a_gap() {
        let start = Clock::start().now();
        let at = |seconds: u64| start.after(Duration::from_secs(seconds));
        let mut ring = Ring::new(start);
        [30, 60, 40_000].into_iter().for_each(|seconds| ring.push(at(seconds), [seconds]));
        let (intervals, gaps) = ring.intervals(at(40_001), [40_001]);
        assert_eq!(intervals, [Interval { end: at(40_001), counts: [1] }]);
        assert_eq!((gaps, ring.reach(at(40_001))), (vec![(at(60), at(40_000))], REACH));
        // Samples that come too often push the oldest out.
        (0..500).for_each(|_| ring.push(at(40_002), [40_002]));
        assert_eq!(ring.samples.len(), MAX_SAMPLES);
    }
}
