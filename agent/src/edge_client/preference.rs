//! Which edge is asked first. Pure: the time and chance are arguments.
//!
//! Each agent has an order of its own. It uses the first edge; when that fails, the next one that works. After a back-off
//! one poll goes through the edges in their order again, and so finds its way back.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use crate::config::EdgeOrder;
use crate::config::EdgeUrl;

/// The longest back-off, as a multiple of the configured interval.
const MAX_BACKOFF_FACTOR: u32 = 10;

/// The edges of an agent, best first. `Spread` orders them by a hash of both names (rendezvous hashing): agents spread evenly,
/// and an edge that is added or removed changes the order of no others.
pub(super) fn ordered(order: EdgeOrder, agent: &str, edges: &[EdgeUrl]) -> Vec<EdgeUrl> {
    let mut edges = edges.to_vec();
    if order == EdgeOrder::Spread {
        edges.sort_by_cached_key(|edge| Reverse(*blake3::hash(format!("{agent} {edge}").as_bytes()).as_bytes()));
    }
    edges
}

/// The edge in use, as an index in the agent's order.
#[derive(Debug)]
pub(super) struct Preference {
    retry_interval: Duration,
    current: usize,
    /// How often the edge in use was decided on.
    decisions: u64,
    /// `None` while the first is in use.
    fail_back: Option<FailBack>,
}

#[derive(Debug)]
struct FailBack {
    backoff: Duration,
    due: Instant,
    /// A poll is on its way.
    is_probed: bool,
    /// A better edge answers, and is cut off from its origins: only polls that look at ages probe.
    is_for_age: bool,
}

impl FailBack {
    fn after(backoff: Duration, is_for_age: bool, now: Instant, random: f64) -> Self {
        Self { backoff, due: now + backoff.mul_f64(0.5 + random), is_probed: false, is_for_age }
    }
}

impl Preference {
    /// The first is in use. `retry_interval`: when it has failed, it is not tried for this long, ±50 %; doubled while it goes
    /// on failing, up to ten times this.
    pub(super) fn new(retry_interval: Duration) -> Self {
        Self { retry_interval, current: 0, decisions: 0, fail_back: None }
    }

    /// The edge in use.
    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// How often the edge in use was decided on.
    pub(super) fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Begins a poll. Returns whether it probes: it then asks the edges in their order, and ends with
    /// [`answered`](Self::answered) or [`probe_ended`](Self::probe_ended). One does at a time. `sees_age`: the poll looks at
    /// the age of what an edge answers.
    pub(super) fn begin(&mut self, sees_age: bool, now: Instant) -> bool {
        let is_due = |due: &&mut FailBack| !due.is_probed && now >= due.due && (sees_age || !due.is_for_age);
        let Some(fail_back) = self.fail_back.as_mut().filter(is_due) else { return false };
        fail_back.is_probed = true;
        true
    }

    /// A probe ended without an answer of any edge, which says nothing about the first: the next poll probes.
    pub(super) fn probe_ended(&mut self) {
        self.fail_back.iter_mut().for_each(|fail_back| fail_back.is_probed = false);
    }

    /// An edge works, after edges that failed or for a probe. Returns the edge that was in use, if it was another.
    /// `is_for_age`: the edges before it are cut off from their origins. `random` is from 0 to 1.
    pub(super) fn answered(
        &mut self,
        edge: usize,
        is_probe: bool,
        is_for_age: bool,
        now: Instant,
        random: f64,
    ) -> Option<usize> {
        self.decisions += 1;
        let before = std::mem::replace(&mut self.current, edge);
        self.fail_back = match self.fail_back.take() {
            _ if edge == 0 => None,
            None => Some(FailBack::after(self.retry_interval, is_for_age, now, random)),
            Some(FailBack { backoff, .. }) if is_probe => {
                let longest = self.retry_interval * MAX_BACKOFF_FACTOR;
                Some(FailBack::after((backoff * 2).min(longest), is_for_age, now, random))
            }
            waiting => waiting.map(|waiting| FailBack { is_for_age: waiting.is_for_age || is_for_age, ..waiting }),
        };
        (before != edge).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn edges(count: usize) -> Vec<EdgeUrl> {
        (1..=count).map(|n| format!("https://edge-{n}.example").parse().unwrap()).collect()
    }

    #[test]
    fn a_fleet_spreads_and_a_new_edge_changes_no_order() {
        let (three, four) = (edges(3), edges(4));
        let mut ways = std::collections::BTreeMap::<_, usize>::new();
        let mut moved = 0;
        for agent in 0..3000 {
            let before = ordered(EdgeOrder::Spread, &format!("cluster-{agent}"), &three);
            let after = ordered(EdgeOrder::Spread, &format!("cluster-{agent}"), &four);
            moved += usize::from(before[0] != after[0]);
            assert_eq!(after.into_iter().filter(|edge| *edge != four[3]).collect::<Vec<_>>(), before);
            *ways.entry(before.iter().map(ToString::to_string).collect::<Vec<_>>()).or_default() += 1;
        }
        // Of 6 orders each has 500, so also the agents of an edge that fails spread over the others.
        assert!(ways.len() == 6 && ways.values().all(|agents| (400..600).contains(agents)), "{ways:?}");
        assert!((600..900).contains(&moved), "{moved} of 3000 have the new edge first");
        assert_eq!(ordered(EdgeOrder::Listed, "cluster-1", &four), four);
    }

    #[test]
    fn the_first_edge_is_tried_again_after_a_back_off_that_grows() {
        let mut preference = Preference::new(MINUTE);
        let mut now = Instant::now();
        assert!(!preference.begin(false, now));
        assert_eq!(preference.answered(1, false, false, now, 0.5), Some(0));
        assert_eq!(preference.answered(1, false, false, now, 0.5), None, "another service found the same");
        let mut backoffs = Vec::new();
        for _ in 0..6 {
            let due = preference.fail_back.as_ref().unwrap().due;
            backoffs.push((due - now).as_secs());
            assert!(!preference.begin(false, due - Duration::from_millis(1)));
            now = due;
            assert!(preference.begin(false, now));
            assert!(!preference.begin(false, now), "one at a time");
            assert_eq!(preference.answered(1, true, false, now, 0.5), None);
        }
        assert_eq!(backoffs, [60, 120, 240, 480, 600, 600]);
        now += 10 * MINUTE;
        assert!(preference.begin(false, now));
        assert_eq!((preference.answered(0, true, false, now, 0.5), preference.current()), (Some(1), 0));
        assert!(!preference.begin(false, now + 10 * MINUTE));
        preference.answered(2, false, false, now, 0.5);
        assert_eq!(preference.fail_back.as_ref().unwrap().due, now + MINUTE, "the back-off starts over");
    }

    #[test]
    fn agents_that_fell_back_together_return_apart() {
        let now = Instant::now();
        let mut preference = Preference::new(MINUTE);
        for (random, seconds) in [(0.0, 30), (1.0, 90)] {
            preference.answered(0, false, false, now, 0.5);
            preference.answered(1, false, false, now, random);
            assert_eq!(preference.fail_back.as_ref().unwrap().due, now + Duration::from_secs(seconds));
        }
    }

    #[test]
    fn a_probe_without_an_answer_is_repeated_and_a_better_edge_is_taken() {
        let now = Instant::now();
        let later = now + 10 * MINUTE;
        let mut preference = Preference::new(MINUTE);
        preference.answered(2, false, false, now, 0.5);
        assert!(preference.begin(false, later));
        preference.probe_ended();
        assert!(preference.begin(false, later));
        assert_eq!(preference.answered(1, true, false, later, 0.5), Some(2));
        assert_eq!(preference.fail_back.as_ref().unwrap().due, later + 2 * MINUTE, "the first still fails");
        // The one in use fails: the wait for the first stays.
        assert_eq!(preference.answered(2, false, false, later + MINUTE, 0.5), Some(1));
        assert_eq!(preference.fail_back.as_ref().unwrap().due, later + 2 * MINUTE);
    }

    #[test]
    fn only_a_poll_that_sees_ages_goes_back_to_an_edge_that_was_left_for_its_age() {
        let mut preference = Preference::new(MINUTE);
        let now = Instant::now();
        assert_eq!(preference.answered(1, false, true, now, 0.5), Some(0));
        let later = now + MINUTE;
        assert!(!preference.begin(false, later) && preference.begin(true, later));
        assert_eq!(preference.answered(1, true, true, later, 0.5), None, "it is still cut off");
        assert!(!preference.begin(true, later + MINUTE) && preference.begin(true, later + 2 * MINUTE));
        assert_eq!(preference.answered(0, true, false, later + 2 * MINUTE, 0.5), Some(1));
    }
}
