//! Pure: what a change of agents and assignments would begin and end, per agent.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use weir_protocol::access_list::Fleet;
use weir_protocol::assignment::{Agent, Assignment, assigned_services};
use weir_protocol::labels::Labels;
use weir_protocol::name::{AssignmentName, NodeName, ServiceName};
use weir_protocol::name_glob::NameGlob;

use crate::config::{AgentConfig, AssignmentConfig, EntryDocument as _};

/// The most agents in an answer; all are counted.
const MAX_AGENTS_SHOWN: usize = 1_000;

/// The most services that begin or end in an agent's row; all are counted.
const MAX_SERVICES_SHOWN: usize = 100;

/// A change to try, of entries of the file as well as of documents.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Change {
    agents: Vec<AgentConfig>,
    assignments: Vec<AssignmentConfig>,
    delete_agents: BTreeSet<NodeName>,
    delete_assignments: BTreeSet<AssignmentName>,
}

/// What would happen.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Effect {
    /// The agents for which something changes, sorted by name.
    agents: Vec<AgentEffect>,
    /// How many these are.
    agents_total: usize,
    /// How many agents are known: those with an entry, and those that an assignment names without `*`.
    known_agents: usize,
    /// Assignments of the request that match no known agent or no known service.
    without_effect: Vec<AssignmentName>,
    /// Assignments that the change adds, replaces or deletes, and that also apply to agents without an entry: how many
    /// agents these are, and what begins and ends for them, is unknown here.
    unknown: Vec<AssignmentName>,
    /// One sentence for each of the unknown that applies to no known agent, before or after the change.
    warnings: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct AgentEffect {
    agent: NodeName,
    begins: Vec<ServiceName>,
    begins_total: usize,
    ends: Vec<ServiceName>,
    ends_total: usize,
}

/// What each agent follows; one list for all to which the same assignments apply.
struct Followed<'a> {
    assignments: Vec<Assignment>,
    services: &'a BTreeSet<ServiceName>,
    lists: BTreeMap<Vec<usize>, BTreeSet<ServiceName>>,
}

impl Followed<'_> {
    /// The key of the agent's list in `lists`.
    fn of(&mut self, agent: &NodeName, labels: &Labels) -> Vec<usize> {
        let applying = self.assignments.iter().enumerate().filter(|(_, rule)| rule.is_for(agent, labels));
        let key: Vec<usize> = applying.map(|(index, _)| index).collect();
        if !self.lists.contains_key(&key) {
            let rules = key.iter().map(|index| &self.assignments[*index]);
            let services = assigned_services(agent, labels, rules, self.services);
            self.lists.insert(key.clone(), services.into_iter().collect());
        }
        key
    }
}

/// Compares what known agents follow before and after a change. Agents without an entry and labels of tokens are not known
/// here, so assignments that may apply to them are listed as unknown.
///
/// # Errors
/// An entry of the change is not valid; the message names it.
pub(crate) fn dry_run(fleet: &Fleet, services: &BTreeSet<ServiceName>, change: &Change) -> Result<Effect, String> {
    let agents: BTreeMap<NodeName, Agent> = fleet.agents.iter().map(|it| (it.name.clone(), it.clone())).collect();
    let rules: BTreeMap<AssignmentName, Assignment> =
        fleet.assignments.iter().map(|it| (it.name.clone(), it.clone())).collect();
    let (mut new_agents, mut new_rules) = (agents.clone(), rules.clone());
    new_agents.retain(|name, _| !change.delete_agents.contains(name));
    new_rules.retain(|name, _| !change.delete_assignments.contains(name));
    for agent in &change.agents {
        new_agents.insert(agent.name.clone(), agent.entry()?);
    }
    for assignment in &change.assignments {
        new_rules.insert(assignment.name.clone(), assignment.entry()?);
    }
    let (unknown, warnings) = unknown(&rules, &new_rules, |rule| {
        let applies = |agents: &BTreeMap<NodeName, Agent>| agents.values().any(|it| rule.is_for(&it.name, &it.labels));
        applies(&agents) || applies(&new_agents)
    });
    let named = rules.values().chain(new_rules.values()).filter_map(|rule| rule.agents.as_ref()?.as_str().parse().ok());
    let known: BTreeSet<NodeName> = agents.keys().chain(new_agents.keys()).cloned().chain(named).collect();

    let followed = |rules: BTreeMap<AssignmentName, Assignment>| Followed {
        assignments: rules.into_values().collect(),
        services,
        lists: BTreeMap::new(),
    };
    let (mut before, mut after) = (followed(rules), followed(new_rules));
    let none = Labels::default();
    let labels = |agents: &BTreeMap<NodeName, Agent>, name: &NodeName| {
        agents.get(name).map_or(none.clone(), |it| it.labels.clone())
    };
    let (mut shown, mut agents_total, mut effective) = (Vec::new(), 0, BTreeSet::new());
    for agent in &known {
        let (was, is) = (before.of(agent, &labels(&agents, agent)), after.of(agent, &labels(&new_agents, agent)));
        effective.extend(is.iter().copied());
        let (was, is) = (&before.lists[&was], &after.lists[&is]);
        let (begins, ends): (Vec<_>, Vec<_>) = (is.difference(was).collect(), was.difference(is).collect());
        if begins.is_empty() && ends.is_empty() {
            continue;
        }
        agents_total += 1;
        if shown.len() < MAX_AGENTS_SHOWN {
            let (begins_total, ends_total) = (begins.len(), ends.len());
            let first = |of: Vec<&ServiceName>| of.into_iter().take(MAX_SERVICES_SHOWN).cloned().collect();
            let (begins, ends) = (first(begins), first(ends));
            shown.push(AgentEffect { agent: agent.clone(), begins, begins_total, ends, ends_total });
        }
    }
    let matches_any =
        |rule: &Assignment| services.iter().any(|it| rule.services.iter().any(|p| p.matches(it.as_str())));
    let sent: BTreeSet<&AssignmentName> = change.assignments.iter().map(|assignment| &assignment.name).collect();
    let rules = after.assignments.iter().enumerate().filter(|(_, rule)| sent.contains(&rule.name));
    let without_effect = rules.filter(|(index, rule)| !effective.contains(index) || !matches_any(rule));
    let without_effect = without_effect.map(|(_, rule)| rule.name.clone()).collect();
    Ok(Effect { agents: shown, agents_total, known_agents: known.len(), without_effect, unknown, warnings })
}

/// The assignments that differ before and after a change and have a `*` or labels in at least one of both, and a warning
/// for each version of them that `is_for_entry` returns false for.
fn unknown(
    before: &BTreeMap<AssignmentName, Assignment>,
    after: &BTreeMap<AssignmentName, Assignment>,
    is_for_entry: impl Fn(&Assignment) -> bool,
) -> (Vec<AssignmentName>, Vec<String>) {
    let (mut unknown, mut warnings) = (BTreeSet::new(), BTreeSet::new());
    let changed = |rule: &&Assignment| before.get(&rule.name) != after.get(&rule.name);
    for rule in before.values().chain(after.values()).filter(changed) {
        let pattern = rule.agents.as_ref().map_or("*", NameGlob::as_str);
        if !pattern.contains('*') && rule.labels.is_empty() {
            continue;
        }
        unknown.insert(rule.name.clone());
        if !is_for_entry(rule) {
            let name = &rule.name;
            warnings.insert(format!(
                "assignment `{name}`: no agent with an entry matches `{pattern}` and its labels; how many others do is unknown"
            ));
        }
    }
    (unknown.into_iter().collect(), warnings.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_protocol::access_list::Entries;

    use super::*;

    fn fleet() -> Fleet {
        let agents = json!([{ "name": "cluster-1", "labels": { "ring": "canary" } }, { "name": "cluster-2" }]);
        let rules = json!([{ "name": "shop", "agents": "cluster-*", "services": ["shop-*"] },
            { "name": "edge", "agents": "laptop", "services": ["docs"] }]);
        let agents: Vec<Agent> = serde_json::from_value(agents).unwrap();
        let rules: Vec<Assignment> = serde_json::from_value(rules).unwrap();
        let (agents, assignments) = (Entries::new(1, agents, []).unwrap(), Entries::new(1, [], rules).unwrap());
        Fleet { agents, assignments, issuers: Entries::default() }
    }

    fn effect(change: serde_json::Value) -> serde_json::Value {
        let services: BTreeSet<ServiceName> =
            ["shop-a", "shop-b", "docs"].iter().map(|name| name.parse().unwrap()).collect();
        let change: Change = serde_json::from_value(change).unwrap();
        serde_json::to_value(dry_run(&fleet(), &services, &change).unwrap()).unwrap()
    }

    #[test]
    fn an_agent_s_row_has_what_begins_and_ends() {
        let nothing = effect(json!({}));
        assert_eq!((&nothing["agents"], &nothing["known_agents"]), (&json!([]), &json!(3)));
        let canary = json!({ "name": "shop", "labels": { "ring": "canary" }, "services": ["shop-a", "docs"] });
        let changed = effect(json!({ "assignments": [canary] }));
        assert_eq!(
            changed["agents"],
            json!([
                { "agent": "cluster-1", "begins": ["docs"], "begins_total": 1, "ends": ["shop-b"], "ends_total": 1 },
                { "agent": "cluster-2", "begins": [], "begins_total": 0, "ends": ["shop-a", "shop-b"], "ends_total": 2 },
            ])
        );
        assert_eq!((&changed["agents_total"], &changed["without_effect"]), (&json!(2), &json!([])));
        let deleted = effect(json!({ "delete_assignments": ["edge"], "delete_agents": ["cluster-1"] }));
        assert_eq!(deleted["agents"][0]["agent"], "laptop");
        let vain = json!([{ "name": "a", "agents": "cluster-9*", "services": ["*"] },
            { "name": "b", "agents": "*", "services": ["none"] }]);
        assert_eq!(effect(json!({ "assignments": vain }))["without_effect"], json!(["a", "b"]));
        let wrong: Change =
            serde_json::from_value(json!({ "assignments": [{ "name": "a", "services": ["*"] }] })).unwrap();
        let error = dry_run(&fleet(), &BTreeSet::new(), &wrong).unwrap_err();
        assert!(error.starts_with("assignment `a` names no agents"), "{error}");
    }
}
