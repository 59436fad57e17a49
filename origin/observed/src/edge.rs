//! What the table holds of an edge.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use weir_protocol::observed::{Capability, EdgeObserved, Instance};

use crate::bounds::{AGENT_SILENT_AFTER, MAX_EDGES};

/// After this time without a message an edge is incomplete.
pub const EDGE_SILENT_AFTER: Duration = Duration::from_secs(30);

/// After this time without a message an edge leaves the list, and a refused name too.
pub const EDGE_FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// How long after rows of an edge found no room it has to send everything again.
const LEFT_OUT_FOR: Duration = Duration::from_secs(600);

/// How long two edges with one name are flagged after both were heard: an edge that was told so tries again within four minutes.
const NAMED_TWICE_FOR: Duration = Duration::from_secs(300);

/// The most runs of an edge before the current one that are told apart from new ones.
const MAX_REPLACED: usize = 4;

/// Why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// What came before it is missing.
    #[error("what came before this message is missing here: send everything, with `full`")]
    Resync,
    /// Another living edge has the same name.
    #[error("another edge sends messages under the same name: give each a `name` or a certificate of its own")]
    NameTwice,
    /// It has no room for another edge.
    #[error("the origin has reached its limit of {MAX_EDGES} edges")]
    Edges,
    /// The same for edges with one certificate, or behind a shield with it.
    #[error(
        "the origin has {limit} edges with this certificate, or behind a shield with it: give further ones a certificate of \
         their own, or raise `[limits] observed_edges_per_identity`"
    )]
    EdgesOfIdentity {
        /// The bound.
        limit: usize,
    },
}

/// An edge.
#[derive(Debug, Clone)]
pub(crate) struct Edge {
    pub(crate) heard: Instant,
    /// The version of its program.
    pub(crate) version: Option<String>,
    /// What it can do that edges of other releases cannot.
    pub(crate) capabilities: BTreeSet<Capability>,
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
    /// Its instances before the current one: an edge that still has one of them is another edge.
    replaced: Vec<Instance>,
    /// When another edge with its name was heard, first and last.
    named_twice: Option<(Instant, Instant)>,
    /// Its last message said that it is stopping.
    pub(crate) draining: bool,
}

impl Edge {
    /// An edge of which nothing but the name is known.
    pub(crate) fn new(heard: Instant) -> Self {
        Self {
            heard,
            version: None,
            capabilities: BTreeSet::new(),
            last: None,
            run: None,
            epoch: 0,
            incomplete_since: Some(heard),
            left_out: None,
            replaced: Vec::new(),
            named_twice: None,
            draining: false,
        }
    }

    /// Starts to take in a message.
    ///
    /// # Errors
    /// What came before it is missing, or another living edge has the name.
    pub(crate) fn begin(&mut self, message: &EdgeObserved, now: Instant) -> Result<(), Rejected> {
        let is_other = self.run.as_ref().is_some_and(|(instance, ..)| *instance != message.instance);
        // A new instance is a restart, until the one before is heard again.
        let is_known = self.replaced.contains(&message.instance) || self.is_named_twice(now);
        if is_other && is_known && !self.draining && !self.is_silent(now) {
            if !message.draining {
                let first = self.named_twice.filter(|_| self.is_named_twice(now)).map_or(now, |(first, _)| first);
                self.named_twice = Some((first, now));
            }
            return Err(Rejected::NameTwice);
        }
        if is_other && !message.full {
            return Err(Rejected::Resync);
        }
        let last = self.last.as_ref().filter(|(instance, _)| *instance == message.instance).map(|(_, seq)| *seq);
        if !message.full && last.is_some_and(|last| message.seq < last) {
            // It is late: the edge has given it up, and sent it again.
            return Err(Rejected::Resync);
        }
        self.heard = now;
        if message.full {
            self.epoch += 1;
            if is_other || self.run.is_none() {
                let run = self.run.replace((message.instance.clone(), now, self.epoch));
                self.replaced.retain(|instance| *instance != message.instance);
                self.replaced.extend(run.map(|(instance, ..)| instance));
                self.replaced.drain(..self.replaced.len().saturating_sub(MAX_REPLACED));
            }
            self.incomplete_since.get_or_insert(now);
            self.left_out = None;
            return Ok(());
        }
        let is_over = |at: Instant| now.saturating_duration_since(at) >= LEFT_OUT_FOR;
        let follows = last.is_some_and(|last| message.seq <= last.saturating_add(1));
        if !follows || self.left_out.is_some_and(|(at, _)| is_over(at)) {
            self.interrupt(now);
            return Err(Rejected::Resync);
        }
        Ok(())
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
        self.draining = message.draining;
        self.version.clone_from(&message.version);
        self.capabilities.clone_from(&message.capabilities);
        if message.more || self.left_out.is_some() {
            self.incomplete_since.get_or_insert(self.heard);
        } else {
            self.incomplete_since = None;
        }
    }

    /// Since when rows of its agents may be missing or old. `has_agents`: live agents were last heard by it.
    pub(crate) fn incomplete_since(&self, now: Instant, has_agents: impl FnOnce() -> bool) -> Option<Instant> {
        if self.has_left(now) {
            return None;
        }
        let twice = self.named_twice.filter(|_| self.is_named_twice(now)).map(|(first, _)| first);
        let is_missing = || self.is_silent(now) && (!self.draining || has_agents());
        self.incomplete_since.or(twice).or_else(|| is_missing().then_some(self.heard))
    }

    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.heard) >= EDGE_SILENT_AFTER
    }

    /// Whether another edge has its name.
    pub(crate) fn is_named_twice(&self, now: Instant) -> bool {
        self.named_twice.is_some_and(|(_, last)| now.saturating_duration_since(last) < NAMED_TWICE_FOR)
    }

    /// Whether it has stopped, and its agents are at other edges, or silent.
    pub(crate) fn has_left(&self, now: Instant) -> bool {
        self.draining && now.saturating_duration_since(self.heard) >= AGENT_SILENT_AFTER
    }
}
