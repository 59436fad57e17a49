//! The table: takes in messages of edges, and forgets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use weir_protocol::name::{EdgeName, NodeName};
use weir_protocol::observed::{AgentRows, EdgeObserved, MAX_AGENT_ROWS};
use weir_protocol::token::unix_seconds;

use crate::agent::{Agent, Choice, Statement};
use crate::bounds::{AGENT_SILENT_AFTER, Bounds, MAX_EDGES};
use crate::compact::{CompactRow, Pools, from_unix};
use crate::delivered::{Delivered, Times};
use crate::edge::{EDGE_FORGOTTEN_AFTER, Edge, Rejected};
use crate::names::{LastSeen, Names};
use crate::refused::Refusals;
use crate::reporter::Reporter;

/// After this time without news an agent is forgotten.
pub const AGENT_FORGOTTEN_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// The present, by both clocks of the machine.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// What periods are measured with.
    pub monotonic: Instant,
    /// What people read.
    pub wall: SystemTime,
}

impl Now {
    /// The clocks.
    pub fn of_clocks() -> Self {
        Self { monotonic: Instant::now(), wall: SystemTime::now() }
    }

    fn ago(self, period: Duration) -> Instant {
        self.monotonic.checked_sub(period).unwrap_or(self.monotonic)
    }

    /// A past moment for people.
    pub(crate) fn wall_of(self, moment: Instant) -> SystemTime {
        self.wall - self.monotonic.saturating_duration_since(moment)
    }

    /// A past time of a record.
    fn moment_of(self, seen: LastSeen) -> Instant {
        self.ago(self.wall.duration_since(from_unix(seen.at.saturating_mul(60))).unwrap_or_default())
    }

    fn minutes_of(self, moment: Instant) -> u64 {
        unix_seconds(self.wall_of(moment)) / 60
    }

    fn seen(self, moment: Instant) -> LastSeen {
        LastSeen { at: self.minutes_of(moment), deleted: false }
    }
}

/// What was taken in of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// All of it.
    Whole,
    /// What was known has been updated. For the rest there is no room, by this bound.
    Part(&'static str),
}

/// Why an agent's part of a message does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// What came before it is missing.
    Resync,
    /// There is no room, by this bound.
    Bound(&'static str),
}

/// Last values of all agents. A clone shares its agents until they change, so that questions are answered from one while messages
/// come in.
#[derive(Debug, Clone)]
pub struct Table {
    pub(crate) agents: BTreeMap<NodeName, Arc<Agent>>,
    pub(crate) edges: BTreeMap<Reporter, Edge>,
    pub(crate) pools: Pools,
    pub(crate) refused: Refusals,
    bounds: Bounds,
    /// What has arrived at agents since it was taken.
    delivered: Vec<Delivered>,
    rows: usize,
    /// Of agents and their rows.
    bytes: usize,
}

impl Table {
    /// An empty table.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            agents: BTreeMap::new(),
            edges: BTreeMap::new(),
            pools: Pools::new(),
            refused: Refusals::default(),
            bounds,
            delivered: Vec::new(),
            rows: 0,
            bytes: 0,
        }
    }

    /// What is in use of the bounds.
    pub fn in_use(&self) -> Bounds {
        let bytes = self.bytes + self.pools.bytes();
        Bounds { agents: self.agents.len(), rows: self.rows, bytes, ..self.bounds }
    }

    /// What has arrived at agents by the messages since the last call.
    pub fn take_delivered(&mut self) -> Vec<Delivered> {
        std::mem::take(&mut self.delivered)
    }

    /// How many edges are known.
    pub fn edges(&self) -> usize {
        self.edges.len()
    }

    /// Whether a record lacks an edge, or that one has left.
    pub fn has_news_of_edges(&self, stored: &Names, now: Now) -> bool {
        let has_left = |edge: &Edge| edge.has_left(now.monotonic);
        self.edges.iter().any(|(name, edge)| stored.edges.get(name).is_none_or(|it| it.deleted != has_left(edge)))
    }

    /// Takes in a message of an edge, and the name of the shield through which it came. What was silent longest gives way to agents that the edge has heard.
    ///
    /// # Errors
    /// The edge has to send everything again, has the name of another one, or is one too many.
    pub fn apply(&mut self, mut message: EdgeObserved, via: Option<EdgeName>, now: Now) -> Result<Taken, Rejected> {
        let (name, at) = (Reporter { edge: message.sender(), via }, now.monotonic);
        self.room_for_edge(&name)?;
        if message.full {
            self.note_heard(&[name.clone()].into(), false);
        }
        let edge = self.edges.entry(name.clone()).or_insert_with(|| Edge::new(at));
        edge.begin(&message, at)?;
        let epoch = edge.epoch;
        self.refused.accept(&name, std::mem::take(&mut message.refused), at);
        let mut agents = std::mem::take(&mut message.agents);
        let unheard: BTreeSet<NodeName> = std::mem::take(&mut message.unheard).into_iter().collect();
        self.make_room(&name, &agents, &unheard, now);
        let (mut is_missing, mut bound) = (false, None);
        agents.sort_by_key(|agent| unheard.contains(&agent.agent));
        for agent in agents {
            let silent = unheard.get(&agent.agent);
            match (self.apply_agent((&name, epoch), agent, silent.is_some(), now), silent) {
                (Ok(()), _) => {}
                (Err(Left::Resync), _) => is_missing = true,
                (Err(Left::Bound(by)), None) => bound = bound.or(Some(by)),
                // It gives way, whole: a part of it would be taken for all once it is back.
                (Err(Left::Bound(_)), Some(name)) => _ = self.delete_agent(name),
            }
        }
        for agent in &unheard {
            self.set_unheard(&name, agent, now);
        }
        self.note_through_others(&name, &message, at);
        if let Some(edge) = self.edges.get_mut(&name) {
            if let Some(bound) = bound {
                edge.leave_out(at, bound);
            }
            if is_missing {
                edge.interrupt(at);
                return Err(Rejected::Resync);
            }
            edge.accept(&message);
        }
        Ok(bound.map_or(Taken::Whole, Taken::Part))
    }

    /// Whether an edge is known, or may be added.
    fn room_for_edge(&self, name: &Reporter) -> Result<(), Rejected> {
        if self.edges.contains_key(name) {
            return Ok(());
        }
        if self.edges.len() >= MAX_EDGES {
            return Err(Rejected::Edges);
        }
        let limit = self.bounds.edges_per_identity;
        let of_identity = self.edges.keys().filter(|known| known.certificate() == name.certificate()).count();
        if of_identity < limit { Ok(()) } else { Err(Rejected::EdgesOfIdentity { limit }) }
    }

    /// What a run of an edge reports through one shield says that it lives also where it reported through others.
    fn note_through_others(&mut self, name: &Reporter, message: &EdgeObserved, at: Instant) {
        let of_edge = self.edges.range_mut(Reporter { edge: name.edge.clone(), via: None }..);
        for (other, edge) in of_edge.take_while(|(other, _)| other.edge == name.edge) {
            let is_same_run = edge.run.as_ref().is_some_and(|(instance, ..)| *instance == message.instance);
            if other != name && name.speaks_for(other) && is_same_run {
                (edge.heard, edge.draining) = (at, message.draining);
            }
        }
    }

    /// Forgets the agents that were silent longest, as far as live ones of a message need their room.
    fn make_room(&mut self, edge: &Reporter, message: &[AgentRows], unheard: &BTreeSet<NodeName>, now: Now) {
        let (mut agents, mut rows) = (0, 0);
        let is_live = |agent: &&AgentRows| agent.full && !unheard.contains(&agent.agent);
        for agent in message.iter().filter(is_live) {
            let known = self.agents.get(&agent.agent);
            agents += usize::from(known.is_none());
            rows += agent.rows.len().saturating_sub(known.map_or(0, |known| known.rows.len()));
        }
        let (bounds, bytes) = (self.bounds, rows * size_of::<CompactRow>());
        let is_short = |used: Bounds| {
            let of_agents = used.agents + agents > bounds.agents || used.bytes + bytes > bounds.bytes;
            (of_agents, used.rows + rows > bounds.rows)
        };
        if agents + rows == 0 || is_short(self.in_use()) == (false, false) {
            return;
        }
        // What the edge itself states in full can be taken in again.
        let is_of_it = |name| {
            self.agents.get(name).and_then(|it| it.statement.as_ref()).is_some_and(|it| it.reporter.edge == edge.edge)
        };
        let named = message.iter().filter(|it| !it.full || !unheard.contains(&it.agent) || !is_of_it(&it.agent));
        let named: BTreeSet<&NodeName> = named.map(|agent| &agent.agent).collect();
        let silent = self.agents.iter().map(|(name, agent)| (self.heard_at(agent), name));
        let silent = silent.filter(|(heard, _)| now.monotonic.saturating_duration_since(*heard) >= AGENT_SILENT_AFTER);
        let silent = silent.filter(|(_, name)| !named.contains(name));
        let mut silent: Vec<_> = silent.map(|(heard, name)| (heard, name.clone())).collect();
        silent.sort_unstable();
        for (_, name) in silent {
            let has_rows = self.agents.get(&name).is_some_and(|agent| !agent.rows.is_empty());
            match is_short(self.in_use()) {
                (false, false) => return,
                (false, true) if !has_rows => {}
                _ => _ = self.delete_agent(&name),
            }
        }
    }

    fn apply_agent(
        &mut self,
        (reporter, epoch): (&Reporter, u64),
        new: AgentRows,
        unheard: bool,
        now: Now,
    ) -> Result<(), Left> {
        let heard = now.ago(Duration::from_secs(new.heard_ago).min(AGENT_FORGOTTEN_AFTER));
        let is_new = !self.agents.contains_key(&new.agent);
        let known = self.agents.get(&new.agent);
        let is_live = known.is_some_and(|agent| self.is_live(agent, now));
        let before = known.filter(|_| new.full).map(|agent| now.wall_of(agent.heard));
        if is_new {
            if !new.full {
                let left_out = self.edges.get(reporter).and_then(Edge::left_out);
                return Err(left_out.map_or(Left::Resync, Left::Bound));
            }
            self.room_for_agent()?;
        }
        let (room, of_all) = self.room_for_rows();
        let agent = self.agents.entry(new.agent.clone()).or_insert_with(|| Arc::new(Agent::new(heard, now.monotonic)));
        let agent = Arc::make_mut(agent);
        match agent.choose(&reporter.edge, (&new, unheard), (heard, is_live), now.monotonic) {
            Choice::Accept => {}
            Choice::Ignore => return Ok(()),
            Choice::Resync => return Err(Left::Resync),
        }
        if !is_new {
            (self.rows, self.bytes) = (self.rows - agent.rows.len(), self.bytes - agent.bytes());
        }
        let AgentRows { proved, labels, token_labels, instance, seq, version, full, rows, removed, .. } = new;
        let reporter = reporter.clone();
        let statement =
            Statement { reporter, epoch, instance, seq, unheard, listed: None, proved, labels, token_labels, version };
        agent.accept(statement, heard);
        let times = Times { before, now: now.wall };
        let (left_out, delivered) = agent.accept_rows(&mut self.pools, (rows, removed), full, (room, times));
        self.delivered.extend(delivered);
        (self.rows, self.bytes) = (self.rows + agent.rows.len(), self.bytes + agent.bytes());
        let bound = if agent.rows.len() < MAX_AGENT_ROWS { of_all } else { "agent_rows" };
        if left_out == 0 { Ok(()) } else { Err(Left::Bound(bound)) }
    }

    fn room_for_agent(&self) -> Result<(), Left> {
        if self.agents.len() >= self.bounds.agents {
            return Err(Left::Bound("agents"));
        }
        if self.in_use().bytes >= self.bounds.bytes { Err(Left::Bound("bytes")) } else { Ok(()) }
    }

    /// How many rows may be added, and which bound says so. Bytes are exceeded by what one message brings at most.
    fn room_for_rows(&self) -> (usize, &'static str) {
        let bytes = self.bounds.bytes.saturating_sub(self.in_use().bytes);
        let rows = self.bounds.rows.saturating_sub(self.rows);
        let of_bytes = bytes / size_of::<CompactRow>();
        if of_bytes < rows { (of_bytes, "bytes") } else { (rows, "rows") }
    }

    fn set_unheard(&mut self, reporter: &Reporter, agent: &NodeName, now: Now) {
        let is_of_it = |it: &Statement| reporter.speaks_for(&it.reporter) && !it.unheard;
        let agent = self.agents.get_mut(agent).filter(|agent| agent.statement.as_ref().is_some_and(is_of_it));
        if let Some(statement) = agent.and_then(|agent| Arc::make_mut(agent).statement.as_mut()) {
            (statement.unheard, statement.listed) = (true, Some(now.ago(AGENT_SILENT_AFTER)));
        }
    }

    /// Forgets agents, edges and refused names that were not heard for long.
    pub fn expire(&mut self, now: Now) {
        let is_over = |heard: Instant, after: Duration| now.monotonic.saturating_duration_since(heard) >= after;
        let edges = self.edges.iter().filter(|(_, edge)| is_over(edge.heard, EDGE_FORGOTTEN_AFTER));
        let edges = edges.map(|(name, _)| name.clone()).collect();
        self.delete_edges(&edges);
        self.refused.retain(|at| !is_over(at, EDGE_FORGOTTEN_AFTER));
        let gone = self.agents.iter().filter(|(_, agent)| is_over(self.heard_at(agent), AGENT_FORGOTTEN_AFTER));
        let gone: Vec<NodeName> = gone.map(|(name, _)| name.clone()).collect();
        for name in &gone {
            self.delete_agent(name);
        }
    }

    /// Removes edges from the list, in one pass over all agents. Their agents stay, as silent ones.
    fn delete_edges(&mut self, edges: &BTreeSet<Reporter>) {
        if !edges.is_empty() {
            self.note_heard(edges, true);
            self.edges.retain(|name, _| !edges.contains(name));
        }
    }

    /// Notes when edges heard their agents: they begin again to list them, or are gone.
    fn note_heard(&mut self, edges: &BTreeSet<Reporter>, are_gone: bool) {
        for agent in self.agents.values_mut() {
            let Some(of) = agent.statement.as_ref().filter(|it| edges.contains(&it.reporter)) else { continue };
            let heard = agent.heard_at(self.edges.get(&of.reporter));
            if let Some(statement) = &mut Arc::make_mut(agent).statement {
                statement.listed = if statement.unheard { statement.listed } else { Some(heard) };
                statement.unheard |= are_gone;
            }
        }
    }

    /// Removes an agent. `false`: it is not here.
    pub fn delete_agent(&mut self, name: &NodeName) -> bool {
        let Some(agent) = self.agents.remove(name) else { return false };
        (self.rows, self.bytes) = (self.rows - agent.rows.len(), self.bytes - agent.bytes());
        agent.rows.iter().for_each(|row| self.pools.release(row));
        true
    }

    /// When an edge last heard an agent.
    pub(crate) fn heard_at(&self, agent: &Agent) -> Instant {
        agent.heard_at(agent.statement.as_ref().and_then(|statement| self.edges.get(&statement.reporter)))
    }

    /// Whether an edge has heard an agent a short time ago.
    pub(crate) fn is_live(&self, agent: &Agent, now: Now) -> bool {
        let is_recent = || now.monotonic.saturating_duration_since(self.heard_at(agent)) < AGENT_SILENT_AFTER;
        agent.statement.is_some() && is_recent()
    }

    /// The names in the table. Edges that have left are deleted.
    pub fn names(&self, now: Now) -> Names {
        let seen = |edge: &Edge| LastSeen { deleted: edge.has_left(now.monotonic), ..now.seen(edge.heard) };
        Names {
            edges: self.edges.iter().map(|(name, edge)| (name.clone(), seen(edge))).collect(),
            agents: self.agents.iter().map(|(name, agent)| (name.clone(), now.seen(self.heard_at(agent)))).collect(),
        }
    }

    /// Adds names of a record, and removes the deleted ones: what was heard before the start, or by other origins.
    pub fn learn(&mut self, names: &Names, now: Now) {
        let is_gone = |(name, seen): &(&Reporter, &LastSeen)| {
            let known = self.edges.get(*name);
            seen.deleted && known.is_some_and(|edge| seen.at >= now.minutes_of(edge.heard))
        };
        let gone = names.edges.iter().filter(is_gone).map(|(name, _)| name.clone()).collect();
        self.delete_edges(&gone);
        for (name, seen) in names.edges.iter().filter(|(_, seen)| !seen.deleted) {
            if self.room_for_edge(name).is_ok() {
                self.edges.entry(name.clone()).or_insert_with(|| Edge::new(now.moment_of(*seen)));
            }
        }
        // Those seen last come first: there may be no room for all.
        let mut agents: Vec<_> = names.agents.iter().collect();
        agents.sort_unstable_by_key(|(_, seen)| std::cmp::Reverse(**seen));
        for (name, seen) in agents {
            match self.agents.get(name) {
                Some(agent) if seen.deleted && seen.at >= now.minutes_of(self.heard_at(agent)) => {
                    self.delete_agent(name);
                }
                None if !seen.deleted && self.room_for_agent().is_ok() => {
                    let agent = Agent::new(now.moment_of(*seen), now.monotonic);
                    self.bytes += agent.bytes();
                    self.agents.insert(name.clone(), Arc::new(agent));
                }
                _ => {}
            }
        }
        self.expire(now);
    }
}

#[cfg(test)]
mod tests;
