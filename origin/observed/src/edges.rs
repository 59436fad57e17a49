//! The list of edges.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use serde::Serialize;
use weir_protocol::descriptor::rfc3339;
use weir_protocol::name::EdgeName;
use weir_protocol::observed::Capability;

use crate::reporter::Reporter;
use crate::table::{Now, Table};

/// Whether an edge is there, and what it reports is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgeState {
    /// It was heard within the last 30 s, and all rows of its agents are here.
    Live,
    /// Rows of its agents may be missing or old.
    Incomplete,
    /// It has stopped, or reports through another shield, and nothing of it is awaited.
    Away,
}

/// An edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EdgeView {
    /// Its name.
    pub name: EdgeName,
    /// Whether it is there.
    pub state: EdgeState,
    /// When it was last heard.
    #[serde(with = "rfc3339")]
    pub heard_at: SystemTime,
    /// Of a live edge: when its run was first heard. Else: since when it is in this state.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
    /// The version of the program. `None`: it has not said so since this origin started.
    pub version: Option<String>,
    /// What it can do that edges of other releases cannot. Empty also while `version` is not known.
    pub capabilities: BTreeSet<Capability>,
    /// The agents that it heard last.
    pub agents: usize,
    /// What they run.
    pub rows: usize,
    /// The shield through which it reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<EdgeName>,
}

impl Table {
    /// All edges, sorted by name.
    pub fn list_edges(&self, now: Now) -> Vec<EdgeView> {
        let incomplete = self.incomplete(now).into_iter();
        let incomplete: BTreeMap<_, _> =
            incomplete.map(|it| (Reporter { edge: it.edge, via: it.via }, it.since)).collect();
        let mut in_use = BTreeMap::<&Reporter, (usize, usize)>::new();
        for agent in self.agents.values() {
            let Some(statement) = &agent.statement else { continue };
            let (agents, rows) = in_use.entry(&statement.reporter).or_default();
            (*agents, *rows) = (*agents + 1, *rows + agent.rows.len());
        }
        let shown = self.edges.iter().map(|(reporter, edge)| {
            let began = edge.run.as_ref().map_or(edge.heard, |(_, began, _)| *began);
            let (state, since) = match incomplete.get(reporter) {
                Some(since) => (EdgeState::Incomplete, *since),
                None if edge.is_silent(now.monotonic) || edge.draining => (EdgeState::Away, now.wall_of(edge.heard)),
                None => (EdgeState::Live, now.wall_of(began)),
            };
            let (agents, rows) = in_use.get(reporter).copied().unwrap_or_default();
            let (name, via, version) = (reporter.edge.clone(), reporter.via.clone(), edge.version.clone());
            let (heard_at, capabilities) = (now.wall_of(edge.heard), edge.capabilities.clone());
            EdgeView { name, state, heard_at, since, version, capabilities, agents, rows, via }
        });
        shown.collect()
    }
}
