//! What the table holds of an edge.

use std::time::{Duration, Instant};

use weir_protocol::observed::EdgeObserved;
use weir_protocol::observed::Instance;

/// After this time without a message an edge is incomplete.
pub const EDGE_SILENT_AFTER: Duration = Duration::from_secs(30);

/// After this time without a message an edge leaves the list, and a refused name too.
pub const EDGE_FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// How long after rows of an edge found no room it has to send everything again.
const LEFT_OUT_FOR: Duration = Duration::from_secs(600);

/// An edge.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) heard: Instant,
    /// Its instance and the last accepted `seq`. `None`: everything has to come again.
    last: Option<(Instance, u64)>,
    /// Its instance, when it was first heard, and its first epoch.
    pub(crate) run: Option<(Instance, Instant, u64)>,
    /// Grows with each `full`.
    pub(crate) epoch: u64,
    /// Since when not all of its rows are here.
    incomplete_since: Option<Instant>,
    /// Since when rows of it found no room, by this bound.
    left_out: Option<(Instant, &'static str)>,
}

impl Edge {
    /// An edge of which nothing but the name is known.
    pub(crate) fn new(heard: Instant) -> Self {
        let incomplete_since = Some(heard);
        Self { heard, last: None, run: None, epoch: 0, incomplete_since, left_out: None }
    }

    /// Starts to take in a message. `false`: what came before it is missing.
    pub(crate) fn begin(&mut self, message: &EdgeObserved, now: Instant) -> bool {
        let last = self.last.as_ref().filter(|(instance, _)| *instance == message.instance).map(|(_, seq)| *seq);
        if !message.full && last.is_some_and(|last| message.seq < last) {
            // It is late: the edge has given it up, and sent it again.
            return false;
        }
        self.heard = now;
        if message.full {
            self.epoch += 1;
            if self.run.as_ref().is_none_or(|(instance, ..)| *instance != message.instance) {
                self.run = Some((message.instance.clone(), now, self.epoch));
            }
            self.incomplete_since.get_or_insert(now);
            self.left_out = None;
            return true;
        }
        let is_over = |at: Instant| now.saturating_duration_since(at) >= LEFT_OUT_FOR;
        let follows = last.is_some_and(|last| message.seq <= last.saturating_add(1));
        if !follows || self.left_out.is_some_and(|(at, _)| is_over(at)) {
            self.interrupt(now);
            return false;
        }
        true
    }

    /// Everything has to come again.
    pub(crate) fn interrupt(&mut self, now: Instant) {
        self.last = None;
        self.incomplete_since.get_or_insert(now);
    }

    /// A part of a message found no room. The rest of what the edge sends counts.
    pub(crate) fn leave_out(&mut self, now: Instant, bound: &'static str) {
        self.left_out.get_or_insert((now, bound));
        self.incomplete_since.get_or_insert(now);
    }

    /// The bound for which agents of it were left out: nothing is known of these, and they will come again.
    pub(crate) fn left_out(&self) -> Option<&'static str> {
        self.left_out.map(|(_, bound)| bound)
    }

    /// A message was accepted.
    pub(crate) fn accept(&mut self, message: &EdgeObserved) {
        self.last = Some((message.instance.clone(), message.seq));
        if message.more || self.left_out.is_some() {
            self.incomplete_since.get_or_insert(self.heard);
        } else {
            self.incomplete_since = None;
        }
    }

    /// Since when rows of its agents may be missing or old.
    pub(crate) fn incomplete_since(&self, now: Instant) -> Option<Instant> {
        let is_silent = now.saturating_duration_since(self.heard) >= EDGE_SILENT_AFTER;
        self.incomplete_since.or(is_silent.then_some(self.heard))
    }
}
