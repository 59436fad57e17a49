//! The names of agents and edges with the times when they were last heard: what outlives a restart.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_protocol::name::NodeName;

use crate::reporter::Reporter;

/// When a name was last heard, or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LastSeen {
    /// Unix minutes.
    pub at: u64,
    /// An operator deleted it at that time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
}

/// The names that origins know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Names {
    /// Edges.
    pub edges: BTreeMap<Reporter, LastSeen>,
    /// Agents.
    pub agents: BTreeMap<NodeName, LastSeen>,
}

/// The names as they are stored: an origin of the release before reads `edges`, and knows only names that are identities.
#[derive(Serialize, Deserialize)]
struct Stored {
    edges: BTreeMap<Reporter, LastSeen>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    named_edges: BTreeMap<Reporter, LastSeen>,
    agents: BTreeMap<NodeName, LastSeen>,
}

impl From<Stored> for Names {
    fn from(mut stored: Stored) -> Self {
        stored.edges.append(&mut stored.named_edges);
        Self { edges: stored.edges, agents: stored.agents }
    }
}

impl From<Names> for Stored {
    fn from(Names { edges, agents }: Names) -> Self {
        let (edges, named_edges) =
            edges.into_iter().partition(|(name, _)| name.to_string().parse::<NodeName>().is_ok());
        Self { edges, named_edges, agents }
    }
}

impl Names {
    /// Both: of each name what is later.
    #[must_use]
    pub fn merged(mut self, other: Self) -> Self {
        fn merge<N: Ord>(into: &mut BTreeMap<N, LastSeen>, from: BTreeMap<N, LastSeen>) {
            for (name, seen) in from {
                let later = into.get(&name).map_or(seen, |known| seen.max(*known));
                into.insert(name, later);
            }
        }
        merge(&mut self.edges, other.edges);
        merge(&mut self.agents, other.agents);
        self
    }

    /// Without the names that were last seen before these Unix minutes.
    pub fn forget(&mut self, edges_before: u64, agents_before: u64) {
        self.edges.retain(|_, seen| seen.at >= edges_before);
        self.agents.retain(|_, seen| seen.at >= agents_before);
    }

    /// Drops the agents seen longest ago, until at most `most` are left.
    pub fn keep_agents(&mut self, most: usize) {
        let mut agents: Vec<_> = std::mem::take(&mut self.agents).into_iter().collect();
        // By name, where many were seen at one time.
        agents.sort_unstable_by(|(one, first), (other, second)| second.cmp(first).then_with(|| one.cmp(other)));
        agents.truncate(most);
        self.agents = agents.into_iter().collect();
    }

    /// Whether `other` has a name that is not here, or a time that is `minutes` later than here.
    pub fn lacks(&self, other: &Self, minutes: u64) -> bool {
        fn lacks<N: Ord>(known: &BTreeMap<N, LastSeen>, other: &BTreeMap<N, LastSeen>, minutes: u64) -> bool {
            other.iter().any(|(name, seen)| {
                known.get(name).is_none_or(|known| known.deleted != seen.deleted || known.at + minutes <= seen.at)
            })
        }
        lacks(&self.edges, &other.edges, minutes) || lacks(&self.agents, &other.agents, minutes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(agents: &[(&str, u64, bool)]) -> Names {
        let seen = |&(name, at, deleted): &(&str, u64, bool)| (name.parse().unwrap(), LastSeen { at, deleted });
        Names { agents: agents.iter().map(seen).collect(), ..Names::default() }
    }

    #[test]
    fn edges_that_are_no_identity_are_stored_where_an_origin_of_the_release_before_does_not_look() {
        let seen = LastSeen { at: 5, deleted: false };
        let edges = ["pool", "pool~node-1", "pool@shield~a"].map(|name| (name.parse().unwrap(), seen));
        let names = Names { edges: edges.into(), ..Names::default() };
        let json = serde_json::to_string(&names).unwrap();
        assert_eq!(
            json,
            r#"{"edges":{"pool":{"at":5}},"named_edges":{"pool@shield~a":{"at":5},"pool~node-1":{"at":5}},"agents":{}}"#
        );
        assert_eq!(serde_json::from_str::<Names>(&json).unwrap(), names);
    }

    #[test]
    fn the_later_of_two_counts_also_a_deletion() {
        let one = names(&[("a", 5, false), ("b", 5, true), ("c", 5, false)]);
        let other = names(&[("a", 4, false), ("b", 6, false), ("c", 5, true), ("d", 1, false)]);
        let both = names(&[("a", 5, false), ("b", 6, false), ("c", 5, true), ("d", 1, false)]);
        assert_eq!(one.clone().merged(other.clone()), both);
        assert_eq!(other.merged(one), both);
        let mut fewer = both.clone();
        fewer.keep_agents(2);
        assert_eq!(fewer, names(&[("b", 6, false), ("c", 5, true)]));
        let mut at_once = names(&[("a", 5, false), ("b", 5, false), ("c", 5, false)]);
        at_once.keep_agents(2);
        assert_eq!(at_once, names(&[("a", 5, false), ("b", 5, false)]));
        fewer.forget(0, 6);
        assert_eq!(fewer, names(&[("b", 6, false)]));
        assert!(fewer.lacks(&both, 10) && !both.lacks(&fewer, 10));
        assert!(both.lacks(&names(&[("a", 15, false)]), 10) && !both.lacks(&names(&[("a", 14, false)]), 10));
    }
}
