//! Pure: what a change of agents and assignments would begin and end, per agent.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use weir_observed::Incomplete;
use weir_protocol::access_list::Fleet;
use weir_protocol::assignment::{Agent, Assignment, assigned_services};
use weir_protocol::labels::Labels;
use weir_protocol::name::{AssignmentName, NodeName, ServiceName};

use super::advice::{Known, Seen};
use crate::config::{AgentConfig, AssignmentConfig, EntryDocument as _};

/// The most agents in an answer; all are counted.
const MAX_AGENTS_SHOWN: usize = 1_000;

/// The most services that begin or end in an agent's row; all are counted.
const MAX_SERVICES_SHOWN: usize = 100;

/// The most warnings in an answer; all are counted.
const MAX_WARNINGS_SHOWN: usize = 100;

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
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Effect {
    /// The agents for which something changes, sorted by name.
    agents: Vec<AgentEffect>,
    /// How many these are, and how many of them are not in the list.
    agents_total: usize,
    agents_left_out: usize,
    /// What begins and ends at all of them together.
    begins_total: usize,
    ends_total: usize,
    /// How many agents are known: those that edges know, and those with an entry.
    known_agents: usize,
    /// Agents whose labels are not known; only those of their entries are counted.
    agents_without_labels: usize,
    /// Edges whose agents may be missing.
    incomplete: Vec<Incomplete>,
    /// Assignments of the request that match no known agent or no known service.
    without_effect: Vec<AssignmentName>,
    /// What of the request matches nothing, in sentences.
    warnings: Vec<String>,
    warnings_left_out: usize,
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

impl Effect {
    fn add(&mut self, agent: &NodeName, was: &BTreeSet<ServiceName>, is: &BTreeSet<ServiceName>) {
        let (begins, ends): (Vec<_>, Vec<_>) = (is.difference(was).collect(), was.difference(is).collect());
        if begins.is_empty() && ends.is_empty() {
            return;
        }
        let (begins_total, ends_total) = (begins.len(), ends.len());
        self.agents_total += 1;
        self.begins_total += begins_total;
        self.ends_total += ends_total;
        if self.agents.len() == MAX_AGENTS_SHOWN {
            self.agents_left_out += 1;
            return;
        }
        let first = |of: Vec<&ServiceName>| of.into_iter().take(MAX_SERVICES_SHOWN).cloned().collect();
        let (begins, ends) = (first(begins), first(ends));
        self.agents.push(AgentEffect { agent: agent.clone(), begins, begins_total, ends, ends_total });
    }
}

/// Compares what known agents follow before and after a change: those that edges know, and those with an entry.
///
/// # Errors
/// An entry of the change is not valid; the message names it.
pub(crate) fn dry_run(
    fleet: &Fleet,
    seen: Seen,
    services: &BTreeSet<ServiceName>,
    change: &Change,
) -> Result<Effect, String> {
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
    let (is_before, is_after) = (seen.labels(&agents, &agents), seen.labels(&agents, &new_agents));
    let followed = |rules: BTreeMap<AssignmentName, Assignment>| Followed {
        assignments: rules.into_values().collect(),
        services,
        lists: BTreeMap::new(),
    };
    let (mut before, mut after) = (followed(rules), followed(new_rules));
    let all: BTreeSet<&NodeName> = is_before.keys().chain(is_after.keys()).collect();
    let mut effect = Effect { known_agents: all.len(), ..Effect::default() };
    let (none, mut effective) = (Labels::default(), BTreeSet::new());
    for agent in all {
        let was = before.of(agent, is_before.get(agent).unwrap_or(&none));
        let is = after.of(agent, is_after.get(agent).unwrap_or(&none));
        effective.extend(is.iter().copied());
        effect.add(agent, &before.lists[&was], &after.lists[&is]);
    }
    let matches_any =
        |rule: &Assignment| services.iter().any(|it| rule.services.iter().any(|p| p.matches(it.as_str())));
    let sent: BTreeSet<&AssignmentName> = change.assignments.iter().map(|assignment| &assignment.name).collect();
    let rules = || after.assignments.iter().enumerate().filter(|(_, rule)| sent.contains(&rule.name));
    let without_effect = rules().filter(|(index, rule)| !effective.contains(index) || !matches_any(rule));
    effect.without_effect = without_effect.map(|(_, rule)| rule.name.clone()).collect();
    let known = Known { services, agents: Some(&is_after), is_short: !seen.incomplete.is_empty() };
    effect.warnings = seen.lost_labels(&agents, &new_agents).into_iter().collect();
    effect.warnings.extend(rules().flat_map(|(_, rule)| known.warnings(rule)));
    effect.warnings_left_out = effect.warnings.len().saturating_sub(MAX_WARNINGS_SHOWN);
    effect.warnings.truncate(MAX_WARNINGS_SHOWN);
    effect.agents_without_labels = seen.agents.values().filter(|labels| labels.is_none()).count();
    effect.incomplete = seen.incomplete;
    Ok(effect)
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

    /// Edges know the label that the entry of `cluster-1` asserts, those of the tokens, and the mere name of `old`.
    fn seen() -> Seen {
        let labels = |json: serde_json::Value| serde_json::from_value(json).unwrap();
        let agents = [
            ("cluster-1", labels(json!({ "ring": "canary", "zone": "a" }))),
            ("laptop", labels(json!({ "ring": "all" }))),
            ("old", None),
        ];
        Seen { agents: agents.map(|(name, labels)| (name.parse().unwrap(), labels)).into(), incomplete: Vec::new() }
    }

    fn effect(change: serde_json::Value) -> serde_json::Value {
        let services: BTreeSet<ServiceName> =
            ["shop-a", "shop-b", "docs"].iter().map(|name| name.parse().unwrap()).collect();
        let change: Change = serde_json::from_value(change).unwrap();
        serde_json::to_value(dry_run(&fleet(), seen(), &services, &change).unwrap()).unwrap()
    }

    #[test]
    fn an_agent_s_row_has_what_begins_and_ends() {
        let nothing = effect(json!({}));
        assert_eq!((&nothing["agents"], &nothing["known_agents"]), (&json!([]), &json!(4)));
        assert_eq!(nothing["agents_without_labels"], 1);
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
        assert_eq!((&changed["begins_total"], &changed["ends_total"]), (&json!(1), &json!(3)));
        let deleted = effect(json!({ "delete_assignments": ["edge"], "delete_agents": ["cluster-1"] }));
        assert_eq!(deleted["agents"][0]["agent"], "laptop");
        let vain = json!([{ "name": "a", "agents": "cluster-9*", "services": ["*"] },
            { "name": "b", "agents": "*", "services": ["none"] }]);
        assert_eq!(effect(json!({ "assignments": vain }))["without_effect"], json!(["a", "b"]));
        let wrong: Change =
            serde_json::from_value(json!({ "assignments": [{ "name": "a", "services": ["*"] }] })).unwrap();
        let error = dry_run(&fleet(), seen(), &BTreeSet::new(), &wrong).unwrap_err();
        assert!(error.starts_with("assignment `a` names no agents"), "{error}");
    }

    #[test]
    fn labels_of_entries_win_over_those_of_tokens_and_go_with_them() {
        let by_label =
            |key: &str, value: &str| json!([{ "name": "l", "labels": { key: value }, "services": ["docs"] }]);
        let agents = |effect: &serde_json::Value| -> Vec<serde_json::Value> {
            effect["agents"].as_array().unwrap().iter().map(|row| row["agent"].clone()).collect()
        };
        assert_eq!(agents(&effect(json!({ "assignments": by_label("zone", "a") }))), ["cluster-1"], "by its token");
        let entry = json!([{ "name": "laptop", "labels": { "ring": "canary" } }]);
        let both = effect(json!({ "agents": entry, "assignments": by_label("ring", "canary") }));
        assert_eq!(agents(&both), ["cluster-1"], "the laptop has `docs` already: {both}");
        assert_eq!(both["warnings"], json!([]));
        let gone = effect(json!({ "delete_agents": ["cluster-1"], "assignments": by_label("ring", "canary") }));
        assert_eq!((agents(&gone), &gone["without_effect"]), (vec![], &json!(["l"])), "{gone}");
        let warnings = gone["warnings"].as_array().unwrap();
        for (warning, expected) in warnings.iter().zip(["agent `cluster-1`: its entry loses labels", "`ring=canary`"]) {
            assert!(warning.as_str().unwrap().contains(expected), "{warning}");
        }
        assert_eq!(warnings.len(), 2);
    }

    #[test]
    fn what_is_left_out_of_an_answer_is_counted() {
        let many = MAX_AGENTS_SHOWN + 1;
        let agents = (0..many).map(|n| (format!("a-{n}").parse().unwrap(), Some(Labels::default()))).collect();
        let services = (0..=MAX_SERVICES_SHOWN).map(|n| format!("s-{n}").parse().unwrap()).collect();
        let mut patterns: Vec<String> = (0..=MAX_WARNINGS_SHOWN / 2).map(|n| format!("x-{n}")).collect();
        patterns.push("s-*".to_owned());
        let rule = |name: &str| json!({ "name": name, "agents": "a-*", "services": patterns });
        let change = serde_json::from_value(json!({ "assignments": [rule("one"), rule("two")] })).unwrap();
        let seen = Seen { agents, incomplete: Vec::new() };
        let effect = dry_run(&Fleet::default(), seen, &services, &change).unwrap();
        assert_eq!((effect.agents.len(), effect.agents_total, effect.agents_left_out), (MAX_AGENTS_SHOWN, many, 1));
        let row = &effect.agents[0];
        assert_eq!((row.begins.len(), row.begins_total), (MAX_SERVICES_SHOWN, MAX_SERVICES_SHOWN + 1));
        assert_eq!((effect.begins_total, effect.ends_total), (many * (MAX_SERVICES_SHOWN + 1), 0));
        assert_eq!((effect.warnings.len(), effect.warnings_left_out), (MAX_WARNINGS_SHOWN, 2));
    }
}
