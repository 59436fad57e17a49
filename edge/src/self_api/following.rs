//! Which services an agent is to follow and may read. Pure.

use std::collections::BTreeSet;

use weir_protocol::access_list::Fleet;
use weir_protocol::labels::Labels;
use weir_protocol::name::ServiceName;
use weir_protocol::name_glob::NameGlob;

use crate::access::Agent;

/// The most patterns of a request.
pub(crate) const MAX_PATTERNS: usize = 256;

/// What an agent wants to follow.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    /// What operators have assigned to it.
    Assigned,
    /// What matches these patterns, whether assigned or not.
    Matching(Vec<NameGlob>),
}

/// The query is not valid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WantedError {
    #[error("`services` has more than {MAX_PATTERNS} patterns: use `*` in them")]
    TooMany,
    #[error("`services` has an invalid pattern: {0}")]
    Pattern(#[from] weir_protocol::name_glob::NameGlobError),
}

impl Wanted {
    /// Reads the value of the parameter `services`: patterns, separated by commas.
    pub(crate) fn parse(services: Option<&str>) -> Result<Self, WantedError> {
        let Some(services) = services else { return Ok(Self::Assigned) };
        if services.split(',').count() > MAX_PATTERNS {
            return Err(WantedError::TooMany);
        }
        Ok(Self::Matching(services.split(',').map(str::parse).collect::<Result<_, _>>()?))
    }

    /// Whether the services depend on which there are.
    pub(crate) fn needs_names(&self) -> bool {
        match self {
            Self::Assigned => true,
            Self::Matching(patterns) => patterns.iter().any(|pattern| pattern.as_str().contains('*')),
        }
    }

    /// The services, sorted. A pattern without `*` is a service even if it is not known.
    pub(crate) fn services(&self, agent: &Agent, fleet: &Fleet, known: &[ServiceName]) -> Vec<ServiceName> {
        let patterns: BTreeSet<&NameGlob> = match self {
            Self::Matching(patterns) => patterns.iter().collect(),
            Self::Assigned => {
                let labels = fleet.agents.get(&agent.name).map(|entry| &entry.labels);
                let labels = labels.map_or_else(Labels::default, Labels::clone);
                let labels = agent.labels.clone().overridden_by(&labels);
                let assignments = fleet.assignments.iter().filter(|one| one.is_for(&agent.name, &labels));
                assignments.flat_map(|assignment| &assignment.services).collect()
            }
        };
        let matches = |name: &&ServiceName| patterns.iter().any(|pattern| pattern.matches(name.as_str()));
        let named = patterns.iter().filter_map(|pattern| pattern.as_str().parse().ok());
        let followed: BTreeSet<ServiceName> = known.iter().filter(matches).cloned().chain(named).collect();
        followed.into_iter().filter(|service| agent.may_read(service)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::access_list::Entries;
    use weir_protocol::assignment::{self, Assignment};

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Labels::try_from(pairs.collect::<std::collections::BTreeMap<_, _>>()).unwrap()
    }

    fn names(names: &[&str]) -> Vec<ServiceName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn agent(name: &str, may_read: &[&str], labels: Labels) -> Agent {
        let services = may_read.iter().map(|glob| glob.parse().unwrap()).collect();
        Agent { name: name.parse().unwrap(), labels, services, valid_until: None }
    }

    fn fleet() -> Fleet {
        let assign = |name: &str, agents: Option<&str>, with: &[(&str, &str)], services: &[&str]| {
            let services = services.iter().map(|glob| glob.parse().unwrap()).collect();
            let agents = agents.map(|glob| glob.parse().unwrap());
            Assignment::new(name.parse().unwrap(), agents, labels(with), services).unwrap()
        };
        let assignments = [
            assign("all", Some("cluster-*"), &[], &["shop-*", "not-there"]),
            assign("canaries", None, &[("ring", "canary")], &["next"]),
        ];
        let agent = assignment::Agent { name: "cluster-1".parse().unwrap(), labels: labels(&[("ring", "canary")]) };
        Fleet {
            agents: Entries::new(1, [agent], []).unwrap(),
            assignments: Entries::new(1, assignments, []).unwrap(),
            ..Fleet::default()
        }
    }

    #[test]
    fn assigned_services_are_those_of_its_name_and_labels_that_it_may_read() {
        let known = names(&["next", "other", "shop-a", "shop-b"]);
        for (name, may_read, expected) in [
            ("cluster-1", &["*"][..], &["next", "not-there", "shop-a", "shop-b"][..]),
            ("cluster-2", &["*"], &["not-there", "shop-a", "shop-b"]),
            ("cluster-2", &["*-b", "next"], &["shop-b"]),
            ("laptop", &["*"], &[]),
        ] {
            let agent = agent(name, may_read, Labels::default());
            assert_eq!(Wanted::Assigned.services(&agent, &fleet(), &known), names(expected), "{name}");
        }
        let asserted = agent("laptop", &["*"], labels(&[("ring", "canary")]));
        assert_eq!(Wanted::Assigned.services(&asserted, &fleet(), &known), names(&["next"]), "by its token");
        let overridden = agent("cluster-1", &["next"], labels(&[("ring", "stable")]));
        assert_eq!(Wanted::Assigned.services(&overridden, &fleet(), &known), names(&["next"]), "operators win");
    }

    #[test]
    fn patterns_of_a_request_need_no_assignment_and_open_nothing() {
        let known = names(&["next", "shop-a", "shop-b"]);
        let laptop = agent("laptop", &["shop-*"], Labels::default());
        let wanted = Wanted::parse(Some("*-a,next,shop-z")).unwrap();
        assert_eq!(wanted.services(&laptop, &fleet(), &known), names(&["shop-a", "shop-z"]));
        assert!(matches!(Wanted::parse(Some("a,,b")), Err(WantedError::Pattern(_))));
        assert!(matches!(Wanted::parse(Some(&"a,".repeat(MAX_PATTERNS))), Err(WantedError::TooMany)));
        assert_eq!(Wanted::parse(None).unwrap(), Wanted::Assigned);
    }
}
