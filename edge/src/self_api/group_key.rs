//! What makes agents a group, and the services that follow from it. Pure.

use std::collections::BTreeSet;

use weir_protocol::access_list::Fleet;
use weir_protocol::name::ServiceName;
use weir_protocol::name_glob::NameGlob;

use super::following::{Wanted, has_star};
use crate::access::Agent;

/// The most comparisons of a request: its patterns with `*`, times the services that its agent may read. One takes at
/// most 0.2 µs, so this is a tenth of a second.
const MAX_COMPARISONS: usize = 500_000;

/// From what the services of a group follow.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct GroupKey {
    /// The services and patterns that its agents want, sorted.
    pub(super) patterns: Box<[NameGlob]>,
    /// What they may read, sorted.
    readable: Box<[NameGlob]>,
    /// The patterns are those of requests, and not of assignments: their work is bounded.
    is_of_requests: bool,
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

impl GroupKey {
    pub(super) fn of(agent: &Agent, wanted: &Wanted, fleet: &Fleet) -> Self {
        let mut readable = agent.services.clone();
        readable.sort_unstable();
        readable.dedup();
        let patterns = wanted.patterns(agent, fleet).into_iter().cloned().collect();
        Self { patterns, readable: readable.into(), is_of_requests: *wanted != Wanted::Assigned }
    }

    pub(super) fn may_read(&self, service: &ServiceName) -> bool {
        self.readable.iter().any(|glob| glob.matches(service.as_str()))
    }

    /// Whether a service is followed once it is known.
    pub(super) fn takes(&self, service: &ServiceName) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(service.as_str())) && self.may_read(service)
    }

    pub(super) fn weight(&self) -> usize {
        self.patterns.iter().chain(&self.readable).map(|glob| 50 + glob.as_str().len()).sum()
    }

    /// Its services, sorted. A pattern without `*` is a service even if it is not known. `readable`: the known services
    /// that may be read.
    ///
    /// # Errors
    /// A request has too many patterns with `*`. What operators assign is not bounded here.
    pub(super) fn services(&self, readable: Vec<ServiceName>) -> Result<Vec<ServiceName>, TooMuchWork> {
        let named = self.patterns.iter().filter_map(|pattern| pattern.as_str().parse().ok());
        let named: Vec<ServiceName> = named.filter(|service| self.may_read(service)).collect();
        let patterns: Vec<_> = self.patterns.iter().filter(|pattern| has_star(pattern)).collect();
        if self.is_of_requests && patterns.len() * readable.len() > MAX_COMPARISONS {
            return Err(TooMuchWork { patterns: patterns.len(), readable: readable.len() });
        }
        let matches = |name: &ServiceName| patterns.iter().any(|pattern| pattern.matches(name.as_str()));
        let followed: BTreeSet<ServiceName> = readable.into_iter().filter(matches).chain(named).collect();
        Ok(followed.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use weir_protocol::labels::Labels;
    use weir_protocol::observed::Proved;

    use super::*;
    use crate::self_api::following::{MAX_PATTERNS, WantedError};
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
        GroupKey::of(agent, wanted, &fleet()).services(readable)
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
