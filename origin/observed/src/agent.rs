//! What the table holds of an agent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use weir_protocol::labels::Labels;
use weir_protocol::name::{EdgeName, ServiceName};
use weir_protocol::observed::{AgentRows, Instance, MAX_AGENT_ROWS, Proved, Row};

use crate::bounds::AGENT_SILENT_AFTER;
use crate::compact::{CompactRow, Pools};
use crate::delivered::{self, Delivered, Times};
use crate::edge::Edge;
use crate::reporter::Reporter;

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
    /// Only its name is known, since less than 90 s: edges may not have had the time to report it.
    Unknown,
}

impl State {
    /// All states, for queries.
    pub const ALL: [(&'static str, Self); 4] =
        [("live", Self::Live), ("silent", Self::Silent), ("refused", Self::Refused), ("unknown", Self::Unknown)];
}

/// An agent.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    /// When an edge last had news of it.
    pub(crate) heard: Instant,
    /// When its name came to be known here.
    known: Instant,
    /// `None`: only its name is known, from before the start.
    pub(crate) statement: Option<Statement>,
    /// Sorted by the names of the services.
    pub(crate) rows: Vec<CompactRow>,
    /// The instance before the current one.
    previous: Option<Instance>,
    alternated: Option<Instant>,
}

/// What an edge states of an agent.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    pub(crate) reporter: Reporter,
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
    pub(crate) fn new(heard: Instant, now: Instant) -> Self {
        Self { heard, known: now, statement: None, rows: Vec::new(), previous: None, alternated: None }
    }

    /// Whether a statement counts: of one instance the higher `seq`, otherwise the one heard last. `is_live`: so is the agent,
    /// by the statement that counts now. `unheard`: the edge does not hear the new one any more.
    pub(crate) fn choose(
        &mut self,
        edge: &EdgeName,
        (new, unheard): (&AgentRows, bool),
        (heard, is_live): (Instant, bool),
        now: Instant,
    ) -> Choice {
        let whole = if new.full { Choice::Accept } else { Choice::Resync };
        let Some(current) = &self.statement else { return whole };
        let (is_same_edge, is_same_instance) = (current.reporter.edge == *edge, current.instance == new.instance);
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

    /// Accepts rows and removals; `is_full`: there are no other rows. At most `most` more than it has, and [`MAX_AGENT_ROWS`] in
    /// all. Returns how many were left out, and what has arrived. It costs a search for each named service and one pass over
    /// the rows, however often services are named.
    pub(crate) fn accept_rows(
        &mut self,
        pools: &mut Pools,
        (rows, removed): (Vec<Row>, Vec<ServiceName>),
        is_full: bool,
        (most, times): (usize, Times),
    ) -> (usize, Vec<Delivered>) {
        let rows = rows.into_iter().map(|row| (row.service.clone(), Some(row)));
        let changes: BTreeMap<_, _> = rows.chain(removed.into_iter().map(|service| (service, None))).collect();
        let (mut stays, mut new, mut delivered) = (vec![!is_full; self.rows.len()], Vec::new(), Vec::new());
        for (service, row) in changes {
            match (self.position(pools, &service), row) {
                (Ok(at), Some(row)) => {
                    let mut row = pools.hold(row);
                    delivered.extend(delivered::compare(pools, &self.rows[at], &mut row, times));
                    pools.release(&std::mem::replace(&mut self.rows[at], row));
                    stays[at] = true;
                }
                (Ok(at), None) => stays[at] = false,
                (Err(at), Some(row)) => new.push((at, row)),
                (Err(_), None) => {}
            }
        }
        let staying = stays.iter().filter(|stays| **stays).count();
        // Rows that go make room.
        let most = (most + self.rows.len() - staying).min(MAX_AGENT_ROWS.saturating_sub(staying));
        let left_out = new.len().saturating_sub(most);
        new.truncate(new.len() - left_out);
        if staying < self.rows.len() || !new.is_empty() {
            let mut all = Vec::with_capacity(staying + new.len());
            let mut new = new.into_iter().peekable();
            for (at, (row, stays)) in std::mem::take(&mut self.rows).into_iter().zip(stays).enumerate() {
                while let Some((_, row)) = new.next_if(|(before, _)| *before <= at) {
                    all.push(pools.hold(row));
                }
                if stays {
                    all.push(row);
                } else {
                    pools.release(&row);
                }
            }
            all.extend(new.map(|(_, row)| pools.hold(row)));
            self.rows = all;
        }
        (left_out, delivered)
    }

    /// Where the row of a service is, or would be.
    pub(crate) fn position(&self, pools: &Pools, service: &ServiceName) -> Result<usize, usize> {
        self.rows.binary_search_by(|row| pools.services.get(row.service).cmp(service))
    }

    /// Whether edges may not have had the time to report it yet.
    pub(crate) fn is_awaited(&self, now: Instant) -> bool {
        self.statement.is_none() && now.saturating_duration_since(self.known) < AGENT_SILENT_AFTER
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
