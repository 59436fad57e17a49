//! What is known of a rollout: counted from the table of what agents run.

use std::time::SystemTime;

use weir_observed::{EdgeState, Now, Table};
use weir_protocol::observed::Capability;
use weir_publish::{Freezes, StagedByPlan};
use weir_rollout::{Counts, Facts, Named, Target};

use crate::cluster::Cluster;

/// The edges that lose what is staged: agents behind them would be offered less than they have.
pub(crate) fn former_edges(table: &Table, now: Now) -> impl Iterator<Item = String> {
    let edges = table.list_edges(now).into_iter();
    let former = edges.filter(|it| it.state != EdgeState::Away && !it.capabilities.contains(&Capability::Staged));
    former.map(|edge| edge.name.to_string())
}

/// What is known of rollouts, in their order. `None`: this origin does not see the members of its cluster now.
pub(super) fn all_facts(
    rollouts: &[StagedByPlan],
    cluster: Option<&Cluster>,
    freezes: &Freezes,
) -> Option<impl FnOnce(&Table, Now) -> Vec<Facts> + use<>> {
    let members = match cluster {
        Some(cluster) => cluster.former_members()?,
        None => Vec::new(),
    };
    let now = SystemTime::now();
    let frozen = |rollout: &StagedByPlan| freezes.of(&rollout.service, now).map(|frozen| frozen.to_string());
    let rollouts: Vec<_> = rollouts.iter().map(|rollout| (rollout.clone(), frozen(rollout))).collect();
    Some(move |table: &Table, now: Now| {
        let members = members.iter().map(|name| format!("origin {name}"));
        let incapable = Named::of(members.chain(former_edges(table, now).map(|name| format!("edge {name}"))));
        let missing_edges = Named::of(table.incomplete(now).into_iter().map(|it| it.edge));
        let of = |(rollout, freeze): &(StagedByPlan, Option<String>)| Facts {
            counts: counts(rollout, table, now),
            missing_edges: missing_edges.clone(),
            incapable: incapable.clone(),
            freeze: freeze.clone(),
        };
        rollouts.iter().map(of).collect()
    })
}

fn counts(rollout: &StagedByPlan, table: &Table, now: Now) -> Counts {
    let StagedByPlan { service, digest, generation, state, .. } = rollout;
    let Some(plan) = state.plan.known() else { return Counts::default() };
    let target = Target { service: service.clone(), digest: *digest, generation: *generation };
    Counts::new(&plan.audiences(), state.stage.unwrap_or(0), &target, table.of_service(service, now))
}
