//! The runs of an agent of which an edge has heard: two that live at the same time are a mistake. Pure.

use std::time::Duration;

use weir_cache::clock::Moment;
use weir_protocol::observed::{AGENT_INTERVAL_SECONDS, Instance};

/// After this time without a message a run is taken for ended.
const ENDED_AFTER: Duration = Duration::from_secs(2 * AGENT_INTERVAL_SECONDS);

/// The most runs of one name that are told apart.
const MAX_RUNS: usize = 4;

/// The runs of one name. Sorted by the time of the last message.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: Vec<Run>,
    /// The messages of all of them.
    messages: u64,
}

#[derive(Debug)]
struct Run {
    instance: Instance,
    /// The number of its first message.
    first: u64,
    /// That of its last one.
    last: u64,
    at: Moment,
}

impl Runs {
    /// A message of a run was accepted.
    pub(super) fn heard(&mut self, instance: &Instance, now: Moment) {
        let Self { runs, messages } = self;
        *messages += 1;
        runs.retain(|run| now.since(run.at) <= ENDED_AFTER);
        let known = runs.iter().position(|run| run.instance == *instance).map(|index| runs.remove(index));
        if runs.len() == MAX_RUNS {
            runs.remove(0);
        }
        let first = known.map_or(*messages, |known| known.first);
        runs.push(Run { instance: instance.clone(), first, last: *messages, at: now });
    }

    /// Runs that live at the same time: one was heard after the other had begun. A restart is not that.
    pub(super) fn living(&self) -> impl Iterator<Item = &Instance> {
        let overlaps = |one: &&Run| {
            let with = |other: &Run| other.instance != one.instance && one.first < other.last && other.first < one.last;
            self.runs.iter().any(with)
        };
        self.runs.iter().filter(overlaps).map(|run| &run.instance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_at_a_time_are_flagged_and_a_restart_is_not() {
        let (start, mut runs) = (weir_cache::clock::Clock::start().now(), Runs::default());
        let mut living = |instance: &str, seconds| {
            runs.heard(&instance.parse().unwrap(), start.after(Duration::from_secs(seconds)));
            runs.living().count()
        };
        assert_eq!([living("a", 0), living("b", 10), living("b", 20)], [0; 3], "it was restarted");
        assert_eq!(living("a", 30), 2, "the first lives");
        assert_eq!(living("b", 30 + 2 * AGENT_INTERVAL_SECONDS + 1), 0, "the first has ended");
    }
}
