//! What one agent says that it runs. Pure.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::time::Duration;

use weir_cache::clock::Moment;
use weir_protocol::labels::Labels;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::{AgentObserved, Applied, Instance, Problem, Proved, Row};

use super::runs::Runs;

/// The memory of a row without its texts, about, in bytes: with the unused part of the nodes of a tree, and of allocations.
const ROW_BYTES: usize = size_of::<(ServiceName, HeldRow)>() * 3 / 2 + 64;

/// The memory of an agent without its rows, about, in bytes.
pub(super) const AGENT_BYTES: usize = size_of::<AgentState>() + 400;

/// How often at most the runs of a name learn that another one took the place of their rows.
const COUNTED_EVERY: Duration = Duration::from_secs(600);

/// An agent, as its credential proves it.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) proved: Proved,
    /// The labels that its token asserts.
    pub(crate) token_labels: Labels,
    /// Together with those that operators assert.
    pub(crate) labels: Labels,
}

/// One agent.
#[derive(Debug)]
pub(super) struct AgentState {
    pub(super) identity: Identity,
    /// The labels that the agent gives itself.
    pub(super) own_labels: Labels,
    pub(super) version: String,
    pub(super) instance: Instance,
    /// How often another run of its name has taken the place of the one before, as far as agents are to learn of it.
    pub(super) runs_before: u64,
    /// When that was counted last.
    counted: Option<Moment>,
    pub(super) seq: u64,
    /// When its last message came, which is of this run.
    pub(super) messaged: Moment,
    /// When an agent of this name sent its last request, perhaps another run.
    pub(super) heard: Moment,
    /// It was not heard for long.
    pub(super) is_unheard: bool,
    /// The number of its last change.
    pub(super) number: u64,
    /// That of its last message, or of its last other labels.
    pub(super) stated: u64,
    /// That of the last time that it began to send all rows.
    pub(super) full_number: u64,
    pub(super) rows: BTreeMap<ServiceName, HeldRow>,
    /// Counts the times that it has sent all rows.
    round: u32,
    /// More of all rows follows.
    is_filling: bool,
    /// The rows with a problem.
    pub(super) problems: usize,
    pub(super) runs: Runs,
}

/// The last row of a service.
#[derive(Debug)]
pub(super) struct HeldRow {
    /// The number of its last change.
    pub(super) number: u64,
    /// The last time that all rows were sent with this one.
    round: u32,
    /// `None`: the agent runs nothing of the service any more.
    pub(super) row: Option<Row>,
}

/// How a message follows what is known of its agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Order {
    Next,
    /// A later one was accepted before.
    Old,
    /// One before it is missing.
    Gap,
}

/// How a message follows. `known`: the run that sent the last message, with its number.
pub(super) fn order(known: Option<(&Instance, u64)>, message: &AgentObserved) -> Order {
    match known {
        Some((instance, seq)) if *instance == message.instance && message.seq <= seq => Order::Old,
        _ if message.full => Order::Next,
        Some((instance, seq)) if *instance == message.instance && message.seq == seq + 1 => Order::Next,
        _ => Order::Gap,
    }
}

fn row_bytes(row: Option<&Row>) -> usize {
    let texts = |row: &Row| {
        let said = if let Applied::Said(said) = &row.applied { said.as_ref() } else { None };
        let revisions = row.current.iter().chain(said).filter_map(|current| current.revision_id.as_ref());
        let revisions: usize = revisions.map(|revision| revision.as_str().len()).sum();
        let of_problem = |problem: &Problem| problem.text.len() + problem.output.as_ref().map_or(0, String::len);
        row.service.as_str().len() + revisions + row.problem.as_ref().map_or(0, of_problem)
    };
    ROW_BYTES + row.map_or(0, texts)
}

fn has_problem(row: Option<&Row>) -> usize {
    row.is_some_and(|row| row.problem.is_some()).into()
}

impl AgentState {
    pub(super) fn new(identity: Identity, instance: Instance, now: Moment) -> Self {
        Self {
            identity,
            own_labels: Labels::default(),
            version: String::new(),
            instance,
            runs_before: 0,
            counted: None,
            seq: 0,
            messaged: now,
            heard: now,
            is_unheard: false,
            number: 0,
            stated: 0,
            full_number: 0,
            rows: BTreeMap::new(),
            round: 0,
            is_filling: false,
            problems: 0,
            runs: Runs::default(),
        }
    }

    /// The memory that a message adds, and the rows.
    pub(super) fn growth(&self, message: &AgentObserved) -> (usize, usize) {
        let new = message.rows.iter().filter(|row| !self.rows.contains_key(&row.service));
        let rows = message.rows.iter().map(|row| {
            let known = self.rows.get(&row.service).map_or(0, |held| row_bytes(held.row.as_ref()));
            row_bytes(Some(row)).saturating_sub(known)
        });
        (rows.sum(), new.count())
    }

    /// Takes in a message, all of whose changes get this number. Returns the memory before and after it.
    pub(super) fn apply(&mut self, message: AgentObserved, number: u64, now: Moment) -> (usize, usize) {
        let AgentObserved { instance, seq, full, more, version, labels, rows, removed } = message;
        self.runs.heard(&instance, now);
        // Two runs that go on would send each other's rows away again and again.
        if self.instance != instance && self.counted.is_none_or(|at| now.since(at) >= COUNTED_EVERY) {
            (self.runs_before, self.counted) = (self.runs_before + 1, Some(now));
        }
        (self.instance, self.seq, self.version, self.own_labels) = (instance, seq, version, labels);
        (self.messaged, self.heard, self.is_unheard) = (now, now, false);
        (self.number, self.stated) = (number, number);
        if full {
            self.round = self.round.wrapping_add(1);
            (self.is_filling, self.full_number) = (true, number);
        }
        let (mut before, mut after) = (0, 0);
        for row in rows {
            let service = row.service.clone();
            let (was, is) = self.set(service, Some(row), number);
            (before, after) = (before + was, after + is);
        }
        let mut gone = removed;
        if self.is_filling && !more {
            self.is_filling = false;
            let others = self.rows.iter().filter(|(_, held)| held.row.is_some() && held.round != self.round);
            gone.extend(others.map(|(service, _)| service.clone()));
        }
        for service in gone.into_iter().filter(|service| self.rows.contains_key(service)).collect::<Vec<_>>() {
            let (was, is) = self.set(service, None, number);
            (before, after) = (before + was, after + is);
        }
        (before, after)
    }

    /// The memory of the row before and after.
    fn set(&mut self, service: ServiceName, row: Option<Row>, number: u64) -> (usize, usize) {
        let round = self.round;
        let held = self.rows.get_mut(&service);
        let before = held.as_ref().map_or(0, |held| row_bytes(held.row.as_ref()));
        let after = row_bytes(row.as_ref());
        self.problems += has_problem(row.as_ref());
        match held {
            Some(held) => {
                self.problems -= has_problem(held.row.as_ref());
                held.round = round;
                if held.row != row {
                    (held.number, held.row) = (number, row);
                }
            }
            None => drop(self.rows.insert(service, HeldRow { number, round, row })),
        }
        (before, after)
    }

    /// Forgets removed rows up to a number. Returns their memory.
    pub(super) fn forget_removed(&mut self, number: u64) -> usize {
        let before = self.rows.len();
        self.rows.retain(|_, held| held.row.is_some() || held.number > number);
        (before - self.rows.len()) * ROW_BYTES
    }

    /// The memory of all of it.
    pub(super) fn bytes(&self) -> usize {
        AGENT_BYTES + self.rows.values().map(|held| row_bytes(held.row.as_ref())).sum::<usize>()
    }

    /// Whether two agents use its name at the same time.
    pub(super) fn is_duplicated(&self) -> bool {
        self.runs.living().next().is_some()
    }

    /// The rows that there are.
    pub(super) fn present(&self) -> impl Iterator<Item = &Row> {
        self.rows.values().filter_map(|held| held.row.as_ref())
    }
}
