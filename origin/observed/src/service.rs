//! What agents run of one service, without a copy of the rows.

use std::time::Duration;

use weir_protocol::labels::Labels;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::observed::{Desired, HookState, Phase, Problem};

use crate::agent::State;
use crate::compact::{CompactRow, Pools, UNSAID};
use crate::pool::Id;
use crate::table::{Now, Table};

/// An agent, and what it runs of a service.
#[derive(Debug, Clone, Copy)]
pub struct ServiceAgent<'a> {
    /// Its name.
    pub agent: &'a NodeName,
    /// Its asserted labels. `None`: only the name is known.
    pub labels: Option<&'a Labels>,
    /// Whether it is there.
    pub state: State,
    /// How long ago an edge heard it.
    pub heard_ago: Duration,
    /// `None`: it does not follow the service, as far as it is known.
    pub row: Option<ServiceRow<'a>>,
}

/// What an agent runs of a service.
#[derive(Debug, Clone, Copy)]
pub struct ServiceRow<'a> {
    /// What it should have.
    pub desired: Option<Desired>,
    /// What it has.
    pub current: Option<Desired>,
    /// What it does about it.
    pub phase: Phase,
    /// The hook of what it has.
    pub hook: HookState,
    /// What stops it.
    pub problem: Option<&'a Problem>,
}

impl Table {
    /// All agents with what they run of a service, sorted by name. It costs a search in the rows of each.
    pub fn of_service<'a>(&'a self, service: &'a ServiceName, now: Now) -> impl Iterator<Item = ServiceAgent<'a>> {
        self.agents.iter().map(move |(name, agent)| {
            let of = self.matched(name, agent, now);
            let row = agent.position(&self.pools, service).ok().map(|at| self.pools.service_row(&agent.rows[at]));
            ServiceAgent {
                agent: name,
                labels: agent.statement.as_ref().map(|statement| &statement.labels),
                state: of.state,
                heard_ago: now.monotonic.saturating_duration_since(of.heard),
                row,
            }
        })
    }
}

impl Pools {
    fn service_row<'a>(&self, row: &'a CompactRow) -> ServiceRow<'a> {
        let version = |release: Id| {
            let release = (release < UNSAID).then(|| self.releases.get(release))?;
            Some(Desired { digest: release.digest, generation: release.generation })
        };
        ServiceRow {
            desired: version(row.desired),
            current: version(row.current),
            phase: row.phase,
            hook: row.hook,
            problem: row.problem.as_deref(),
        }
    }
}
