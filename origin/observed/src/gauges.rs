//! What metrics show of the table, counted in one pass.

use std::cmp::Reverse;
use std::collections::HashMap;

use weir_protocol::name::ServiceName;

use crate::agent::State;
use crate::table::{Now, Table};
use crate::words::PROBLEMS;

/// The most services that are counted by name for each kind of problem: those with the most rows.
pub const MAX_PROBLEM_SERVICES: usize = 50;

/// Counts for metrics.
#[derive(Debug, PartialEq, Eq)]
pub struct Gauges {
    /// Agents in each state; among the refused ones names that are no agent's.
    pub states: [(&'static str, usize); 4],
    /// Edges of which rows may be missing or old.
    pub incomplete: usize,
    /// Agents of which two instances alternate.
    pub duplicated: usize,
    /// Names that two edges have.
    pub duplicated_edges: usize,
    /// Rows of live agents by problem and service, the most frequent first; `None`: of all services of the kind that are
    /// not named.
    pub problems: Vec<(&'static str, Option<ServiceName>, usize)>,
}

impl Table {
    /// Counts for metrics. `is_known`: whether a service may be named.
    pub fn gauges(&self, now: Now, is_known: impl Fn(&ServiceName) -> bool) -> Gauges {
        let (mut states, mut duplicated) = (State::ALL.map(|(word, _)| (word, 0)), 0);
        let mut counts = vec![HashMap::<_, usize>::new(); PROBLEMS.len()];
        for (name, agent) in &self.agents {
            let state = self.matched(name, agent, now).state;
            states[state as usize].1 += 1;
            duplicated += usize::from(agent.alternates(now.monotonic));
            for row in agent.rows.iter().filter(|_| state == State::Live) {
                if let Some(problem) = &row.problem
                    && let Some(kind) = PROBLEMS.iter().position(|(_, kind)| *kind == problem.kind)
                {
                    *counts[kind].entry(row.service).or_default() += 1;
                }
            }
        }
        states[State::Refused as usize].1 +=
            self.refused.iter().filter(|(name, _)| !self.agents.contains_key(*name)).count();
        let mut problems = Vec::new();
        for ((word, _), of_kind) in PROBLEMS.iter().zip(counts) {
            let mut of_kind: Vec<_> =
                of_kind.into_iter().map(|(service, rows)| (self.pools.services.get(service), rows)).collect();
            of_kind.sort_unstable_by_key(|(service, rows)| (Reverse(*rows), *service));
            let (mut named, mut rest) = (0, 0);
            for (service, rows) in of_kind {
                if named < MAX_PROBLEM_SERVICES && is_known(service) {
                    named += 1;
                    problems.push((*word, Some(service.clone()), rows));
                } else {
                    rest += rows;
                }
            }
            problems.push((*word, None, rest));
        }
        let duplicated_edges = self.edges.values().filter(|edge| edge.is_named_twice(now.monotonic)).count();
        Gauges { states, incomplete: self.incomplete(now).len(), duplicated, duplicated_edges, problems }
    }
}
