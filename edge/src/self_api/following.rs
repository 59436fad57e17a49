//! Which services an agent is to follow and may read. Pure.

use std::collections::BTreeSet;

use weir_protocol::access_list::Fleet;
use weir_protocol::name::ServiceName;
use weir_protocol::name_glob::NameGlob;

use crate::access::Agent;

/// The most patterns of a request. The length of a URL bounds their bytes.
pub(crate) const MAX_PATTERNS: usize = 256;

/// The most comparisons of a request: its patterns with `*`, times the services that its agent may read. One takes at
/// most 0.2 µs, so this is a tenth of a second.
const MAX_COMPARISONS: usize = 500_000;

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

/// A request asks for more work than the edge does for one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`services` has {patterns} patterns with `*`, for {readable} services that the credential opens: more than {MAX_COMPARISONS} comparisons"
)]
pub(crate) struct TooMuchWork {
    patterns: usize,
    readable: usize,
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
            Self::Matching(patterns) => patterns.iter().any(has_star),
        }
    }

    /// The patterns of the services, and names.
    pub(crate) fn patterns<'w>(&'w self, agent: &Agent, fleet: &'w Fleet) -> BTreeSet<&'w NameGlob> {
        match self {
            Self::Matching(patterns) => patterns.iter().collect(),
            Self::Assigned => {
                let labels = fleet.labels_of(&agent.name, &agent.labels);
                let assignments = fleet.assignments.iter().filter(|one| one.is_for(&agent.name, &labels));
                assignments.flat_map(|assignment| &assignment.services).collect()
            }
        }
    }

    /// The services, sorted. A pattern without `*` is a service even if it is not known. `readable`: the known services that
    /// the agent may read.
    ///
    /// # Errors
    /// A request has too many patterns with `*`. What operators assign is not bounded here.
    pub(crate) fn services(
        &self,
        agent: &Agent,
        fleet: &Fleet,
        readable: Vec<ServiceName>,
    ) -> Result<Vec<ServiceName>, TooMuchWork> {
        let patterns = self.patterns(agent, fleet);
        let named = patterns.iter().filter_map(|pattern| pattern.as_str().parse().ok());
        let named: Vec<ServiceName> = named.filter(|service| agent.may_read(service)).collect();
        let patterns: Vec<_> = patterns.into_iter().filter(|pattern| has_star(pattern)).collect();
        if matches!(self, Self::Matching(_)) && patterns.len() * readable.len() > MAX_COMPARISONS {
            return Err(TooMuchWork { patterns: patterns.len(), readable: readable.len() });
        }
        let matches = |name: &ServiceName| patterns.iter().any(|pattern| pattern.matches(name.as_str()));
        let followed: BTreeSet<ServiceName> = readable.into_iter().filter(matches).chain(named).collect();
        Ok(followed.into_iter().collect())
    }

    /// The memory of the patterns, approximately, in bytes.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Assigned => 0,
            Self::Matching(patterns) => patterns.iter().map(|pattern| 50 + pattern.as_str().len()).sum(),
        }
    }
}

fn has_star(pattern: &NameGlob) -> bool {
    pattern.as_str().contains('*')
}

#[cfg(test)]
mod tests {
    use weir_protocol::labels::Labels;
    use weir_protocol::observed::Proved;

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

    /// What an agent follows of the known services.
    fn followed(wanted: &Wanted, agent: &Agent, known: &[ServiceName]) -> Result<Vec<ServiceName>, TooMuchWork> {
        let readable = known.iter().filter(|name| agent.may_read(name)).cloned().collect();
        wanted.services(agent, &fleet(), readable)
    }

    fn agent(name: &str, may_read: &[&str], labels: Labels) -> Agent {
        let services = may_read.iter().map(|glob| glob.parse().unwrap()).collect();
        Agent { name: name.parse().unwrap(), labels, proved: Proved::Token, services, valid_until: None }
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
            assert_eq!(followed(&Wanted::Assigned, &agent, &known), Ok(names(expected)), "{name}");
        }
        let asserted = agent("laptop", &["*"], labels(&[("ring", "canary")]));
        assert_eq!(followed(&Wanted::Assigned, &asserted, &known), Ok(names(&["next"])), "by its token");
        let overridden = agent("cluster-1", &["next"], labels(&[("ring", "stable")]));
        assert_eq!(followed(&Wanted::Assigned, &overridden, &known), Ok(names(&["next"])), "operators win");
    }

    #[test]
    fn patterns_of_a_request_need_no_assignment_and_open_nothing() {
        let known = names(&["next", "shop-a", "shop-b"]);
        let laptop = agent("laptop", &["shop-*"], Labels::default());
        let wanted = Wanted::parse(Some("*-a,next,shop-z")).unwrap();
        assert_eq!(followed(&wanted, &laptop, &known), Ok(names(&["shop-a", "shop-z"])));
        assert!(matches!(Wanted::parse(Some("a,,b")), Err(WantedError::Pattern(_))));
        assert!(matches!(Wanted::parse(Some(&"a,".repeat(MAX_PATTERNS))), Err(WantedError::TooMany)));
        assert_eq!(Wanted::parse(None).unwrap(), Wanted::Assigned);
    }

    #[test]
    fn the_work_of_a_request_is_bounded_by_what_its_credential_opens() {
        let known: Vec<ServiceName> = (0..20_000).map(|n| format!("shop-{n}").parse().unwrap()).collect();
        let most = (0..MAX_PATTERNS).map(|n| format!("*{n}*{n}*")).collect::<Vec<_>>().join(",");
        let wanted = Wanted::parse(Some(&most)).unwrap();
        let small = agent("small", &["shop-11"], Labels::default());
        assert_eq!(followed(&wanted, &small, &known), Ok(names(&["shop-11"])));
        let large = agent("large", &["*"], Labels::default());
        assert_eq!(followed(&wanted, &large, &known), Err(TooMuchWork { patterns: MAX_PATTERNS, readable: 20_000 }));
    }
}
