//! Whether the origin can do its work, and what somebody should look at although it can.

use weir_shared::process::admin::Readiness;

use crate::catalog::Catalog;
use crate::repository_agent::Health;
use crate::service::Condition;

/// What is wrong, by numbers alone: who probes an origin need not know what it serves.
#[derive(Debug, Default)]
struct Troubles {
    repositories: usize,
    /// Of them.
    unhealthy_repositories: usize,
    services: usize,
    /// Of them.
    unhealthy_services: usize,
    /// Of them.
    lost_services: usize,
    beside: Beside,
}

/// What is known beside the catalogue.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// Why the disk takes nothing new.
    pub(crate) disk: Option<String>,
    /// A file of keys or denials cannot be used.
    pub(crate) access_files_unreadable: bool,
    /// The certificate that edges see has ended, and the one that operators see.
    pub(crate) certificates_have_ended: (bool, bool),
}

/// As it is now.
pub(crate) fn readiness(catalog: &Catalog, beside: Beside) -> Readiness {
    if let Err(reason) = catalog.ready() {
        return Readiness::NotReady(vec![reason]);
    }
    let snapshot = catalog.snapshot();
    let unhealthy = snapshot.agents.values().filter(|agent| matches!(agent.state().health, Health::Unhealthy { .. }));
    let ill = snapshot.services.values().filter(|each| matches!(each.condition(), Condition::Unhealthy { .. }));
    Troubles {
        repositories: snapshot.agents.len(),
        unhealthy_repositories: unhealthy.count(),
        services: snapshot.services.len(),
        unhealthy_services: ill.count(),
        lost_services: snapshot.services.values().filter(|each| each.condition().lost().is_some()).count(),
        beside,
    }
    .readiness()
}

impl Troubles {
    fn readiness(self) -> Readiness {
        let (of_edges, of_operators) = self.beside.certificates_have_ended;
        if of_edges {
            let reason = "the certificate that edges see has ended: replace it and send SIGHUP";
            return Readiness::NotReady(vec![reason.to_owned()]);
        }
        let mut reasons: Vec<String> = self.beside.disk.into_iter().collect();
        for (is_so, reason) in [
            (of_operators, "the certificate that operators see has ended: replace it and send SIGHUP"),
            (
                self.beside.access_files_unreadable,
                "a file of keys or denials cannot be used, and edges are told what it said last: the log says which line",
            ),
        ] {
            reasons.extend(is_so.then(|| reason.to_owned()));
        }
        for (ill, all, what) in [
            (self.unhealthy_repositories, self.repositories, "repositories cannot be polled"),
            (self.unhealthy_services, self.services, "services cannot follow their ref"),
        ] {
            if ill > 0 {
                reasons.push(format!("{ill} of {all} {what} (/status says why); what was published is served"));
            }
        }
        if self.lost_services > 0 {
            let (lost, all) = (self.lost_services, self.services);
            reasons.push(format!("{lost} of {all} services are pinned to what cannot be had (/status says why)"));
        }
        if reasons.is_empty() { Readiness::Ready } else { Readiness::Degraded(reasons) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_should_look_at_is_told_with_its_number() {
        let with = |beside| Troubles { repositories: 3, services: 5, beside, ..Troubles::default() };
        let well = || with(Beside::default());
        assert_eq!(well().readiness(), Readiness::Ready);
        let down = Troubles {
            unhealthy_repositories: 3,
            ..with(Beside { disk: Some("it is full".to_owned()), ..Beside::default() })
        };
        let Readiness::Degraded(reasons) = down.readiness() else { panic!("it is not well") };
        assert_eq!(reasons.len(), 2);
        assert!(reasons[0] == "it is full" && reasons[1].starts_with("3 of 3 repositories"), "{reasons:?}");
        let ill = Troubles { unhealthy_services: 1, ..well() };
        assert!(matches!(ill.readiness(), Readiness::Degraded(reasons) if reasons[0].starts_with("1 of 5 services")));
        let lost = Troubles { lost_services: 2, ..well() };
        assert!(
            matches!(lost.readiness(), Readiness::Degraded(reasons) if reasons[0].contains("pinned to what cannot"))
        );
    }
    #[test]
    fn files_that_cannot_be_used_and_certificates_that_have_ended_are_told() {
        let with = |beside| Troubles { beside, ..Troubles::default() }.readiness();
        let unreadable = Beside { access_files_unreadable: true, ..Beside::default() };
        assert!(matches!(with(unreadable), Readiness::Degraded(reasons) if reasons[0].contains("keys or denials")));
        let operators = Beside { certificates_have_ended: (false, true), ..Beside::default() };
        assert!(matches!(with(operators), Readiness::Degraded(reasons) if reasons[0].contains("operators")));
        let edges = Beside { certificates_have_ended: (true, true), ..Beside::default() };
        assert!(matches!(with(edges), Readiness::NotReady(reasons) if reasons[0].contains("SIGHUP")));
    }
}
