//! What agents run of one service, without a copy of the rows.

use weir_protocol::name::ServiceName;
use weir_protocol::observed::Desired;
use weir_rollout::{AgentRow, ServiceRow};

use crate::agent::State;
use crate::compact::{CompactRow, Pools, UNSAID};
use crate::pool::Id;
use crate::table::{Now, Table};

impl Table {
    /// All agents with what they run of a service, sorted by name. It costs a search in the rows of each.
    pub fn of_service<'a>(&'a self, service: &'a ServiceName, now: Now) -> impl Iterator<Item = AgentRow<'a>> {
        self.agents.iter().map(move |(name, agent)| {
            let of = self.matched(name, agent, now);
            let row = agent.position(&self.pools, service).ok().map(|at| self.pools.service_row(&agent.rows[at]));
            AgentRow {
                agent: name,
                labels: agent.statement.as_ref().map(|statement| &statement.labels),
                is_live: of.state == State::Live,
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
