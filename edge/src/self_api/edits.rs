//! Which agents an edit of operators' rules touches: the others go on as they were.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use weir_protocol::access_list::Fleet;
use weir_protocol::assignment::Assignment;
use weir_protocol::labels::Labels;
use weir_protocol::name::NodeName;

use crate::access::KnownFleet;

/// The most edits that are remembered. What is further behind counts as touched.
const MAX_EDITS: usize = 64;

/// What an edit changed.
#[derive(Debug)]
struct Edit {
    /// The agents of which operators say something else.
    agents: BTreeSet<NodeName>,
    /// The assignments that changed, as they were and as they are.
    assignments: Vec<Assignment>,
}

impl Edit {
    fn between(before: &Fleet, after: &Fleet) -> Self {
        let agents = before.agents.table().differing(after.agents.table());
        let assignments = before.assignments.table().differing(after.assignments.table());
        Self { agents: agents.map(|agent| agent.name.clone()).collect(), assignments: assignments.cloned().collect() }
    }

    /// Whether an agent may follow something else since. `labels`: those that it had before.
    fn touches(&self, agent: &NodeName, labels: &Labels) -> bool {
        self.agents.contains(agent) || self.assignments.iter().any(|assignment| assignment.is_for(agent, labels))
    }
}

/// The rules, and what the last edits changed.
#[derive(Debug)]
pub(super) struct Edits {
    fleet: watch::Receiver<Arc<KnownFleet>>,
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    fleet: Arc<Fleet>,
    /// All edits so far.
    version: u64,
    edits: VecDeque<Arc<Edit>>,
}

impl Edits {
    pub(super) fn new(fleet: watch::Receiver<Arc<KnownFleet>>) -> Self {
        let last = Last { fleet: fleet.borrow().fleet.clone(), version: 0, edits: VecDeque::new() };
        Self { fleet, last: Mutex::new(last) }
    }

    /// The rules as they are, with the number of the last edit.
    pub(super) fn now(&self) -> (Arc<Fleet>, u64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let fleet = &self.fleet.borrow().fleet;
        if !Arc::ptr_eq(fleet, &last.fleet) {
            if last.edits.len() == MAX_EDITS {
                last.edits.pop_front();
            }
            let edit = Edit::between(&last.fleet, fleet).into();
            last.edits.push_back(edit);
            last.version += 1;
            last.fleet = fleet.clone();
        }
        (fleet.clone(), last.version)
    }

    /// Whether an agent may follow something else than after an edit. `labels`: those that it had then.
    pub(super) fn have_touched(&self, agent: &NodeName, labels: &Labels, since: u64) -> bool {
        let edits: Vec<_> = {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let count = usize::try_from(last.version - since).unwrap_or(usize::MAX);
            let Some(first) = last.edits.len().checked_sub(count) else { return true };
            last.edits.range(first..).cloned().collect()
        };
        edits.iter().any(|edit| edit.touches(agent, labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_protocol::access_list::Entries;
    use weir_protocol::assignment::Agent;

    fn labels(ring: u8) -> Labels {
        serde_json::from_value(serde_json::json!({ "ring": ring.to_string() })).unwrap()
    }

    /// Some agents of three, each in a ring, and some assignments of three, each for a name, a ring, or both.
    fn fleet() -> impl Strategy<Value = Fleet> {
        let agents = prop::collection::btree_map(0u8..3, 0u8..2, 0..3);
        let rule = (prop::option::of(0u8..3), prop::option::of(0u8..2), 0u8..3);
        let assignments = prop::collection::btree_map(0u8..3, rule, 0..3);
        (agents, assignments).prop_map(|(agents, assignments)| {
            let agent = |(name, ring)| Agent { name: node(name), labels: labels(ring) };
            let assignment = |(name, (agent, ring, service)): (u8, (Option<u8>, Option<u8>, u8))| {
                let pattern = agent.map(|agent| node(agent).as_str().parse().unwrap());
                let pattern = pattern.or_else(|| ring.is_none().then(|| "*".parse().unwrap()));
                let services = vec![format!("service-{service}").parse().unwrap()];
                let name = format!("rule-{name}").parse().unwrap();
                Assignment::new(name, pattern, ring.map(labels).unwrap_or_default(), services).unwrap()
            };
            Fleet {
                agents: Entries::new(1, agents.into_iter().map(agent), []).unwrap(),
                assignments: Entries::new(1, assignments.into_iter().map(assignment), []).unwrap(),
                ..Fleet::default()
            }
        })
    }

    fn known(fleet: Fleet) -> Arc<KnownFleet> {
        Arc::new(KnownFleet { fleet: fleet.into(), ..KnownFleet::default() })
    }

    fn node(name: u8) -> NodeName {
        format!("cluster-{name}").parse().unwrap()
    }

    proptest! {
        #[test]
        fn who_is_not_touched_has_the_same_assignments(fleets in prop::collection::vec(fleet(), 2..6), of_token in 0u8..2) {
            let (sender, receiver) = watch::channel(known(fleets[0].clone()));
            let edits = Edits::new(receiver);
            let (_, since) = edits.now();
            for fleet in &fleets[1..] {
                sender.send_replace(known(fleet.clone()));
                edits.now();
            }
            for agent in (0..4).map(node) {
                let assigned = |fleet: &Fleet| {
                    let labels = fleet.labels_of(&agent, &labels(of_token));
                    let of = fleet.assignments.iter().filter(|one| one.is_for(&agent, &labels));
                    of.cloned().collect::<Vec<_>>()
                };
                let before = fleets[0].labels_of(&agent, &labels(of_token));
                if !edits.have_touched(&agent, &before, since) {
                    prop_assert_eq!(assigned(&fleets[0]), assigned(fleets.last().unwrap()));
                }
            }
        }
    }

    #[test]
    fn an_edit_touches_those_that_it_names() {
        let rule = |service: &str| {
            let services = vec![service.parse().unwrap()];
            Assignment::new("one".parse().unwrap(), Some("cluster-1".parse().unwrap()), Labels::default(), services)
        };
        let fleet =
            |service| Fleet { assignments: Entries::new(1, [rule(service).unwrap()], []).unwrap(), ..Fleet::default() };
        let (sender, receiver) = watch::channel(known(fleet("a")));
        let edits = Edits::new(receiver);
        let touched = |agent, since| edits.have_touched(&node(agent), &Labels::default(), since);
        assert!(!touched(1, 0));
        sender.send_replace(known(fleet("b")));
        assert_eq!((edits.now().1, edits.now().1), (1, 1));
        assert_eq!([touched(1, 0), touched(2, 0), touched(1, 1)], [true, false, false]);
        for _ in 0..MAX_EDITS {
            sender.send_replace(known(fleet("b")));
            edits.now();
        }
        assert!(touched(2, 0), "the first edit is not remembered any more");
        assert!(!touched(2, 1));
    }
}
