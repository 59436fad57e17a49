//! What the table holds of an agent.

use std::time::{Duration, Instant};

use serde::Serialize;
use weir_protocol::labels::Labels;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::observed::Instance;
use weir_protocol::observed::{AgentRows, Proved, Row};

use crate::compact::{CompactRow, Pools};
use crate::edge::Edge;

/// By how much the order is uncertain in which instances were heard, because edges send whole seconds.
const INSTANCE_MARGIN: Duration = Duration::from_secs(1);

/// How long an agent is flagged after two of its instances alternated.
const ALTERNATED_FOR: Duration = Duration::from_secs(900);

/// A label takes about this besides its text: its nodes of the tree, and two allocations.
const LABEL_OVERHEAD: usize = 100;

/// Whether an agent is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// An edge has heard it within the last 90 s.
    Live,
    /// No edge has.
    Silent,
    /// It is not live, and a credential with its name was refused since.
    Refused,
}

impl State {
    /// All states, for queries.
    pub const ALL: [(&'static str, Self); 3] =
        [("live", Self::Live), ("silent", Self::Silent), ("refused", Self::Refused)];
}

/// An agent.
#[derive(Debug)]
pub(crate) struct Agent {
    /// When an edge last had news of it.
    pub(crate) heard: Instant,
    /// `None`: only its name is known, from before the start.
    pub(crate) statement: Option<Statement>,
    /// Sorted by the names of the services.
    pub(crate) rows: Vec<CompactRow>,
    /// The instance before the current one.
    previous: Option<Instance>,
    alternated: Option<Instant>,
}

/// What an edge states of an agent.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) edge: NodeName,
    /// The [`Edge::epoch`] in which the edge stated it last.
    pub(crate) epoch: u64,
    pub(crate) instance: Instance,
    pub(crate) seq: u64,
    pub(crate) unheard: bool,
    /// When the edge was last heard before it began to list everything again, while it listed the agent; or before it said
    /// that it does not hear it any more.
    pub(crate) listed: Option<Instant>,
    pub(crate) proved: Option<Proved>,
    pub(crate) labels: Labels,
    /// What the token asserts of them, where an entry asserts others. `None`: the same.
    pub(crate) token_labels: Option<Labels>,
    pub(crate) version: String,
}

impl Statement {
    pub(crate) fn token_labels(&self) -> &Labels {
        self.token_labels.as_ref().unwrap_or(&self.labels)
    }
}

/// What becomes of a statement.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Accept,
    /// Another statement counts.
    Ignore,
    /// It would count, but what came before it is missing here.
    Resync,
}

impl Agent {
    pub(crate) fn new(heard: Instant) -> Self {
        Self { heard, statement: None, rows: Vec::new(), previous: None, alternated: None }
    }

    /// Whether a statement counts: of one instance the higher `seq`, otherwise the one heard last. `is_live`: so is the agent,
    /// by the statement that counts now. `unheard`: the edge does not hear the new one any more.
    pub(crate) fn choose(
        &mut self,
        edge: &NodeName,
        (new, unheard): (&AgentRows, bool),
        (heard, is_live): (Instant, bool),
        now: Instant,
    ) -> Choice {
        let whole = if new.full { Choice::Accept } else { Choice::Resync };
        let Some(current) = &self.statement else { return whole };
        let (is_same_edge, is_same_instance) = (current.edge == *edge, current.instance == new.instance);
        match (is_same_edge, is_same_instance) {
            (true, true) if new.seq < current.seq => Choice::Ignore,
            (true, true) => Choice::Accept,
            (false, true) if new.seq > current.seq => whole,
            (false, true) => Choice::Ignore,
            (true, false) => {
                self.note_alternation(&new.instance, now);
                whole
            }
            (false, false) if unheard && is_live || heard + INSTANCE_MARGIN < self.heard => Choice::Ignore,
            // Perhaps it was heard later. An edge that repeats everything within that second is rarer than an agent that
            // was restarted and found another edge.
            (false, false) if heard <= self.heard + INSTANCE_MARGIN && !new.full => Choice::Ignore,
            (false, false) => {
                // Edges that alternate would send everything again and again.
                let ignored = !new.full && is_live && (self.alternates(now) || self.is_previous(&new.instance));
                if !new.full && is_live {
                    // Another run goes on that began before.
                    self.alternated = Some(now);
                } else {
                    self.note_alternation(&new.instance, now);
                }
                if ignored { Choice::Ignore } else { whole }
            }
        }
    }

    fn note_alternation(&mut self, instance: &Instance, now: Instant) {
        if self.is_previous(instance) {
            self.alternated = Some(now);
        }
    }

    fn is_previous(&self, instance: &Instance) -> bool {
        self.previous.as_ref() == Some(instance)
    }

    /// Whether two instances with the agent's name alternate.
    pub(crate) fn alternates(&self, now: Instant) -> bool {
        self.alternated.is_some_and(|at| now.saturating_duration_since(at) < ALTERNATED_FOR)
    }

    /// Accepts all of a statement but its rows.
    pub(crate) fn accept(&mut self, statement: Statement, heard: Instant) {
        if let Some(before) = self.statement.take().filter(|before| before.instance != statement.instance) {
            self.previous = Some(before.instance);
            self.heard = heard;
        }
        self.heard = self.heard.max(heard);
        self.statement = Some(statement);
    }

    /// Accepts rows; `is_full`: there are no others. At most `most` that are new. Returns how many were left out.
    pub(crate) fn accept_rows(&mut self, pools: &mut Pools, rows: Vec<Row>, is_full: bool, most: usize) -> usize {
        let (mut known, mut new, mut left_out) = (vec![!is_full; self.rows.len()], Vec::new(), 0);
        for row in rows {
            match self.position(pools, &row.service) {
                Ok(at) => {
                    let row = pools.hold(row);
                    pools.release(&std::mem::replace(&mut self.rows[at], row));
                    known[at] = true;
                }
                Err(_) if new.len() < most => new.push(pools.hold(row)),
                Err(_) => left_out += 1,
            }
        }
        let mut known = known.into_iter();
        self.rows.retain(|row| {
            let stays = known.next().unwrap_or_default();
            if !stays {
                pools.release(row);
            }
            stays
        });
        if !new.is_empty() {
            self.rows.reserve_exact(new.len());
            self.rows.append(&mut new);
            self.rows.sort_by(|one, other| pools.services.get(one.service).cmp(pools.services.get(other.service)));
            // A service that a message has twice.
            let mut before = None;
            self.rows.retain(|row| {
                let is_first = before.replace(row.service) != Some(row.service);
                if !is_first {
                    pools.release(row);
                }
                is_first
            });
        }
        left_out
    }

    /// Removes the row of a service.
    pub(crate) fn remove(&mut self, pools: &mut Pools, service: &ServiceName) {
        if let Ok(at) = self.position(pools, service) {
            pools.release(&self.rows.remove(at));
        }
    }

    fn position(&self, pools: &Pools, service: &ServiceName) -> Result<usize, usize> {
        self.rows.binary_search_by(|row| pools.services.get(row.service).cmp(service))
    }

    /// When an edge heard it last. An edge that lists it sends no news of an agent at which nothing changes.
    pub(crate) fn heard_at(&self, edge: Option<&Edge>) -> Instant {
        let Some(statement) = &self.statement else { return self.heard };
        let lists = |edge: &&Edge| !statement.unheard && statement.epoch == edge.epoch;
        let listed = edge.filter(lists).map(|edge| edge.heard).max(statement.listed);
        listed.map_or(self.heard, |listed| listed.max(self.heard))
    }

    /// An estimate of what it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let of_rows = self.rows.capacity() * size_of::<CompactRow>();
        let boxed: usize = self.rows.iter().map(CompactRow::boxed_bytes).sum();
        let of_statement = self.statement.as_ref().map_or(0, |statement| {
            let label = |(key, value): (&str, &str)| key.len() + value.len() + LABEL_OVERHEAD;
            let all = statement.labels.iter().chain(statement.token_labels.iter().flat_map(Labels::iter));
            all.map(label).sum::<usize>() + statement.version.len()
        });
        // Twice: the tree of agents is about half full. The name and the instances have an allocation each.
        2 * size_of::<Self>() + 200 + of_rows + boxed + of_statement
    }
}
