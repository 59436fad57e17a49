//! Readiness: whether the origin can work, and what an operator should look at.

use weir_runtime::admin::Readiness;
use weir_source::Condition;

use crate::catalog::Catalog;
use crate::reconcile::Health;

/// Numbers of problems, without names: a prober need not know what the origin serves.
#[derive(Debug, Default)]
struct Problems {
    repositories: usize,
    /// Part of `repositories`.
    unhealthy_repositories: usize,
    services: usize,
    /// Part of `services`.
    unhealthy_services: usize,
    /// Part of `services`.
    lost_services: usize,
    node: NodeHealth,
}

/// State outside the catalog.
#[derive(Debug, Default)]
pub(crate) struct NodeHealth {
    /// Why the disk accepts no new data.
    pub(crate) disk: Option<String>,
    /// Why the clock cannot be relied on.
    pub(crate) clock: Option<String>,
    /// A file of keys or denials cannot be used.
    pub(crate) access_files_unreadable: bool,
    /// Whether the certificates for edges and for operators have expired.
    pub(crate) certificates_have_expired: (bool, bool),
    /// Edges have services of which the store has no trace.
    pub(crate) definitions_lost: bool,
    /// Repositories with objects but without a record.
    pub(crate) without_record: usize,
    /// Repositories whose publishing is suspended.
    pub(crate) suspended: usize,
    /// Why the origin is no member of its cluster now.
    pub(crate) outside_cluster: Option<&'static str>,
    /// Members whose configuration file or signing keys are not this origin's.
    pub(crate) differing_members: usize,
}

/// The current readiness.
pub(crate) fn readiness(catalog: &Catalog, node: NodeHealth) -> Readiness {
    if let Err(reason) = catalog.ready() {
        return Readiness::NotReady(vec![reason]);
    }
    let snapshot = catalog.snapshot();
    let repositories =
        snapshot.workers.values().filter(|worker| matches!(worker.state().health, Health::Unhealthy { .. }));
    let services = snapshot.services.values().filter(|each| matches!(each.condition(), Condition::Unhealthy { .. }));
    Problems {
        repositories: snapshot.workers.size(),
        unhealthy_repositories: repositories.count(),
        services: snapshot.services.size(),
        unhealthy_services: services.count(),
        lost_services: snapshot.services.values().filter(|each| each.condition().lost().is_some()).count(),
        node,
    }
    .readiness()
}

impl Problems {
    fn readiness(self) -> Readiness {
        let (of_edges, of_operators) = self.node.certificates_have_expired;
        if of_edges {
            let reason = "the certificate that edges see has expired: replace it";
            return Readiness::NotReady(vec![reason.to_owned()]);
        }
        if let Some(reason) = self.node.outside_cluster {
            return Readiness::NotReady(vec![reason.to_owned()]);
        }
        let mut reasons: Vec<String> = self.node.disk.into_iter().chain(self.node.clock).collect();
        for (is_so, reason) in [
            (of_operators, "the certificate that operators see has expired: replace it"),
            (
                self.node.access_files_unreadable,
                "a file of keys or denials cannot be used, and edges keep its last valid content: the log says which line",
            ),
            (
                self.node.definitions_lost,
                "edges have services of which the store has no trace, and it has no definitions of operators: if its data was \
                 lost, restore it",
            ),
        ] {
            reasons.extend(is_so.then(|| reason.to_owned()));
        }
        for (unhealthy, all, what) in [
            (self.unhealthy_repositories, self.repositories, "repositories cannot be polled"),
            (self.unhealthy_services, self.services, "services cannot follow their ref"),
        ] {
            if unhealthy > 0 {
                reasons.push(format!(
                    "{unhealthy} of {all} {what} (/status has the reasons); what was published is served"
                ));
            }
        }
        if self.node.suspended > 0 {
            let suspended = self.node.suspended;
            reasons.push(format!(
                "{suspended} repositories publish nothing until an operator confirms their state, or until the store can be \
                 read (/status and the log have the reasons)"
            ));
        }
        if self.node.without_record > 0 {
            let lost = self.node.without_record;
            reasons.push(format!(
                "{lost} repositories have objects but no record: restore the records (the log names them)"
            ));
        }
        if self.node.differing_members > 0 {
            let differing = self.node.differing_members;
            reasons.push(format!(
                "{differing} members of the cluster have another configuration file or other signing keys than this origin: \
                 nothing is retired and nothing is signed again until all are equal (/status names them)"
            ));
        }
        if self.lost_services > 0 {
            let (lost, all) = (self.lost_services, self.services);
            reasons.push(format!("{lost} of {all} services are pinned to lost versions (/status has the reasons)"));
        }
        if reasons.is_empty() { Readiness::Ready } else { Readiness::Degraded(reasons) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_reported_with_their_number() {
        let with = |node| Problems { repositories: 3, services: 5, node, ..Problems::default() };
        let well = || with(NodeHealth::default());
        assert_eq!(well().readiness(), Readiness::Ready);
        let down = Problems {
            unhealthy_repositories: 3,
            ..with(NodeHealth { disk: Some("it is full".to_owned()), ..NodeHealth::default() })
        };
        let Readiness::Degraded(reasons) = down.readiness() else { panic!("not degraded") };
        assert_eq!(reasons.len(), 2);
        assert!(reasons[0] == "it is full" && reasons[1].starts_with("3 of 3 repositories"), "{reasons:?}");
        let unhealthy = Problems { unhealthy_services: 1, ..well() };
        assert!(
            matches!(unhealthy.readiness(), Readiness::Degraded(reasons) if reasons[0].starts_with("1 of 5 services"))
        );
        let lost = Problems { lost_services: 2, ..well() };
        assert!(
            matches!(lost.readiness(), Readiness::Degraded(reasons) if reasons[0].contains("pinned to lost versions"))
        );
    }
    #[test]
    fn unusable_files_and_expired_certificates_are_reported() {
        let with = |node| Problems { node, ..Problems::default() }.readiness();
        let unreadable = NodeHealth { access_files_unreadable: true, ..NodeHealth::default() };
        assert!(matches!(with(unreadable), Readiness::Degraded(reasons) if reasons[0].contains("keys or denials")));
        let missing = NodeHealth { definitions_lost: true, ..NodeHealth::default() };
        assert!(matches!(with(missing), Readiness::Degraded(reasons) if reasons[0].contains("no trace")));
        let suspended = NodeHealth { suspended: 1, ..NodeHealth::default() };
        assert!(matches!(with(suspended), Readiness::Degraded(reasons) if reasons[0].contains("an operator confirms")));
        let lost = NodeHealth { without_record: 2, ..NodeHealth::default() };
        assert!(matches!(with(lost), Readiness::Degraded(reasons) if reasons[0].contains("no record")));
        let outside = NodeHealth { outside_cluster: Some("no session"), ..NodeHealth::default() };
        assert_eq!(with(outside), Readiness::NotReady(vec!["no session".to_owned()]));
        let differing = NodeHealth { differing_members: 1, ..NodeHealth::default() };
        assert!(matches!(with(differing), Readiness::Degraded(reasons) if reasons[0].starts_with("1 members")));
        let operators = NodeHealth { certificates_have_expired: (false, true), ..NodeHealth::default() };
        assert!(matches!(with(operators), Readiness::Degraded(reasons) if reasons[0].contains("operators")));
        let edges = NodeHealth { certificates_have_expired: (true, true), ..NodeHealth::default() };
        assert!(matches!(with(edges), Readiness::NotReady(reasons) if reasons[0].contains("replace it")));
    }
}
