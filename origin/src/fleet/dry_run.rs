//! Pure: what a change of agents and assignments would start and stop, per agent, and what of it matches nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use weir_observed::{Incomplete, Now, State, Table};
use weir_protocol::access_list::{self, Entry};
use weir_protocol::assignment::{Assignment, assigned_services};
use weir_protocol::labels::Labels;
use weir_protocol::name::{AssignmentName, NodeName, ServiceName};
use weir_protocol::name_glob::NameGlob;

use super::fleet_entry::Tables;
use crate::config::{AgentConfig, AssignmentConfig, EntryDocument};

/// The most agents in an answer; all are counted.
const MAX_AGENTS_SHOWN: usize = 1_000;

/// The most services that start or stop in an agent's row; all are counted.
const MAX_SERVICES_SHOWN: usize = 100;

/// The most warnings about assignments; all are counted.
const MAX_WARNINGS: usize = 100;

/// The most names in a warning; all are counted.
const MAX_NAMES_IN_WARNING: usize = 10;

/// A change to try, of entries of the file as well as of documents.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FleetChange {
    agents: Vec<AgentConfig>,
    assignments: Vec<AssignmentConfig>,
    delete_agents: BTreeSet<NodeName>,
    delete_assignments: BTreeSet<AssignmentName>,
}

/// What would happen.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Effect {
    /// Edges of which agents may be missing.
    incomplete: Vec<Incomplete>,
    /// How many agents are known: by edges, by an entry, or because an assignment names them without `*`.
    known_agents: usize,
    /// Of how many of these no edge has reported rows, so that the labels of their tokens are missing.
    agents_without_rows: usize,
    /// The agents for which something changes, sorted by name.
    agents: Vec<AgentEffect>,
    /// How many these are.
    agents_total: usize,
    /// How many of them are not in `agents`.
    agents_left_out: usize,
    /// Over all agents.
    starts_total: usize,
    /// Over all agents.
    stops_total: usize,
    /// Assignments of the request that match no known agent or no known service.
    without_effect: Vec<AssignmentName>,
    /// A sentence for each thing of the request that matches nothing, or of which the effect is not known.
    warnings: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct AgentEffect {
    agent: NodeName,
    /// `None`: no edge knows it.
    state: Option<State>,
    starts: Vec<ServiceName>,
    starts_total: usize,
    stops: Vec<ServiceName>,
    stops_total: usize,
}

/// The agents that edges know. The default: nothing was read yet.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// With the labels of their tokens; without any if only the name is known.
    agents: BTreeMap<NodeName, (State, Option<Labels>)>,
    incomplete: Vec<Incomplete>,
    is_read: bool,
}

impl Observed {
    /// What a table has now.
    pub(crate) fn of(table: &Table, now: Now) -> Self {
        let agents = table.known(now).map(|(name, state, labels)| (name.clone(), (state, labels.cloned())));
        Self { agents: agents.collect(), incomplete: table.incomplete(now), is_read: true }
    }

    /// What the token or certificate of an agent asserts.
    fn token_labels(&self, agent: &NodeName) -> Option<&Labels> {
        self.agents.get(agent)?.1.as_ref()
    }

    /// Why something is not known that agents have, in brackets.
    fn caveat(&self) -> String {
        let edges: Vec<&str> = self.incomplete.iter().map(|it| it.edge.as_str()).collect();
        let by_name = self.agents.values().filter(|(_, labels)| labels.is_none()).count();
        match (self.is_read, edges.is_empty(), by_name) {
            (false, ..) => " (this origin has just started, and does not know all agents yet)".to_owned(),
            (true, false, _) => {
                format!(" (agents may be missing of these edges: {})", listed(&edges))
            }
            (true, true, 0) => String::new(),
            (true, true, _) => {
                format!(" (the labels of {by_name} agents are unknown, because no edge has reported them)")
            }
        }
    }
}

/// What an assignment can match.
pub(crate) struct KnownFleet<'a> {
    /// `None`: those of other origins could not be read.
    services: Option<&'a BTreeSet<ServiceName>>,
    /// With their labels.
    agents: BTreeMap<&'a NodeName, Labels>,
    /// Of any agent.
    labels: BTreeSet<(String, String)>,
    caveat: String,
}

impl<'a> KnownFleet<'a> {
    /// Agents that edges know, and those with an entry.
    pub(crate) fn new(observed: &'a Observed, fleet: &'a Tables, services: Option<&'a BTreeSet<ServiceName>>) -> Self {
        let names = observed.agents.keys().chain(fleet.agents.iter().map(|entry| &entry.name));
        let none = Labels::default();
        let labels = |name| fleet.labels_of(name, observed.token_labels(name).unwrap_or(&none));
        let agents: BTreeMap<_, _> = names.map(|name| (name, labels(name))).collect();
        let labels = agents.values().flat_map(Labels::iter).map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self { services, labels: labels.collect(), agents, caveat: observed.caveat() }
    }

    /// A sentence for each part of an assignment that matches nothing.
    pub(crate) fn warnings(&self, rule: &Assignment) -> Vec<String> {
        let (name, caveat, mut warnings) = (&rule.name, &self.caveat, Vec::new());
        let is_vain = |pattern: &&NameGlob| {
            self.services.is_some_and(|all| !all.iter().any(|service| pattern.matches(service.as_str())))
        };
        let vain: Vec<&str> = rule.services.iter().filter(is_vain).map(NameGlob::as_str).collect();
        if !vain.is_empty() {
            let vain = listed(&vain);
            warnings.push(format!(
                "assignment `{name}`: no service matches {vain}: correct `services`, or define such a service"
            ));
        }
        if self.services.is_none() {
            warnings.push(format!(
                "assignment `{name}`: the services of other origins cannot be read now, so `services` was not checked"
            ));
        }
        let of_services = warnings.len();
        let is_missing = |pattern: &&NameGlob| !self.agents.keys().any(|agent| pattern.matches(agent.as_str()));
        if let Some(pattern) = rule.agents.as_ref().filter(is_missing) {
            warnings.push(format!(
                "assignment `{name}`: no known agent matches `{pattern}`{caveat}: correct `agents`, or start such an agent"
            ));
        }
        let is_missing = |(key, value): &(&str, &str)| !self.labels.contains(&((*key).to_owned(), (*value).to_owned()));
        let labels = rule.labels.iter().filter(is_missing).map(|(key, value)| format!("{key}={value}"));
        let labels: Vec<String> = labels.collect();
        if !labels.is_empty() {
            let labels = listed(&labels);
            warnings.push(format!(
                "assignment `{name}`: no known agent has the label {labels}{caveat}: correct `labels`, or give it to an agent by its entry or its token"
            ));
        }
        if warnings.len() == of_services && !self.agents.iter().any(|(agent, labels)| rule.is_for(agent, labels)) {
            warnings.push(format!(
                "assignment `{name}`: no known agent matches all of it at once{caveat}: correct `agents` or `labels`"
            ));
        }
        warnings
    }
}

/// Some names, and how many more there are.
fn listed(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<String> =
        names.iter().take(MAX_NAMES_IN_WARNING).map(|name| format!("`{}`", name.as_ref())).collect();
    let more = names.len() - shown.len();
    let shown = shown.join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// What each agent follows; one list for all to which the same assignments apply.
struct Followed<'a> {
    fleet: &'a Tables,
    assignments: Vec<&'a Assignment>,
    services: &'a BTreeSet<ServiceName>,
    lists: BTreeMap<Vec<usize>, BTreeSet<ServiceName>>,
}

impl<'a> Followed<'a> {
    fn new(fleet: &'a Tables, services: &'a BTreeSet<ServiceName>) -> Self {
        Self { fleet, assignments: fleet.assignments.iter().collect(), services, lists: BTreeMap::new() }
    }

    /// The key of the agent's list in `lists`: the assignments that apply.
    fn of(&mut self, agent: &NodeName, of_token: &Labels) -> Vec<usize> {
        let labels = self.fleet.labels_of(agent, of_token);
        let applying = self.assignments.iter().enumerate().filter(|(_, rule)| rule.is_for(agent, &labels));
        let key: Vec<usize> = applying.map(|(index, _)| index).collect();
        if !self.lists.contains_key(&key) {
            let rules = key.iter().map(|index| self.assignments[*index]);
            let services = assigned_services(agent, &labels, rules, self.services);
            self.lists.insert(key.clone(), services.into_iter().collect());
        }
        key
    }
}

/// The entries of a kind after a change.
fn changed<T: Entry>(
    table: &access_list::Table<T>,
    new: impl Iterator<Item = Result<T, String>>,
    deleted: &BTreeSet<T::Name>,
) -> Result<access_list::Table<T>, String> {
    let named = |entry: Result<T, String>| entry.map(|entry| (entry.name().clone(), entry));
    let new: BTreeMap<T::Name, T> = new.map(named).collect::<Result<_, _>>()?;
    let stays = |entry: &&T| !deleted.contains(entry.name()) && !new.contains_key(entry.name());
    let documents = table.documents().filter(stays).chain(new.values()).cloned();
    access_list::Table::new(0, documents, table.file().filter(stays).cloned()).map_err(|error| error.to_string())
}

/// Compares what known agents follow before and after a change. `denied` ones follow nothing new.
///
/// # Errors
/// An entry of the change is not valid; the message says it.
pub(crate) fn dry_run(
    fleet: &Tables,
    services: &BTreeSet<ServiceName>,
    (observed, denied): (&Observed, &BTreeSet<NodeName>),
    change: &FleetChange,
) -> Result<Effect, String> {
    let (agents, rules) =
        (change.agents.iter().map(EntryDocument::entry), change.assignments.iter().map(EntryDocument::entry));
    let new = Tables {
        agents: changed(&fleet.agents, agents, &change.delete_agents)?,
        assignments: changed(&fleet.assignments, rules, &change.delete_assignments)?,
        ..Tables::default()
    };
    let known = KnownFleet::new(observed, &new, Some(services));
    let rules = fleet.assignments.iter().chain(new.assignments.iter());
    let named: Vec<NodeName> = rules.filter_map(|rule| rule.agents.as_ref()?.as_str().parse().ok()).collect();
    let gone = fleet.agents.iter().map(|entry| &entry.name);
    let all: BTreeSet<&NodeName> = known.agents.keys().copied().chain(gone).chain(&named).collect();
    let mut effect = Effect {
        incomplete: observed.incomplete.clone(),
        known_agents: all.len(),
        agents_without_rows: all.iter().filter(|name| observed.token_labels(name).is_none()).count(),
        ..Effect::default()
    };
    let (mut before, mut after) = (Followed::new(fleet, services), Followed::new(&new, services));
    let (mut differences, mut effective, mut idle, none) =
        (BTreeMap::new(), BTreeSet::new(), Vec::new(), Labels::default());
    for agent in all {
        let of_token = observed.token_labels(agent).unwrap_or(&none);
        let (was, is) = (before.of(agent, of_token), after.of(agent, of_token));
        effective.extend(is.iter().copied());
        let (starts, stops) = differences.entry((was, is)).or_insert_with_key(|(was, is)| {
            let (was, is) = (&before.lists[was], &after.lists[is]);
            let less = |one: &BTreeSet<ServiceName>, other| one.difference(other).cloned().collect::<Vec<_>>();
            (less(is, was), less(was, is))
        });
        if starts.is_empty() && stops.is_empty() {
            continue;
        }
        if denied.contains(agent) {
            idle.push(agent.as_str());
            continue;
        }
        effect.add(agent, observed.agents.get(agent).map(|(state, _)| *state), (starts, stops));
    }
    let sent = |rule: &Assignment| change.assignments.iter().any(|it| it.name == rule.name);
    for (index, rule) in after.assignments.iter().enumerate().filter(|(_, rule)| sent(rule)) {
        let is_vain = rule.services.iter().all(|pattern| !services.iter().any(|it| pattern.matches(it.as_str())));
        if is_vain || !effective.contains(&index) {
            effect.without_effect.push(rule.name.clone());
        }
        effect.warnings.extend(known.warnings(rule));
    }
    let left_out = effect.warnings.len().saturating_sub(MAX_WARNINGS);
    if left_out > 0 {
        effect.warnings.truncate(MAX_WARNINGS);
        effect.warnings.push(format!("{left_out} more warnings are left out: try fewer assignments at a time"));
    }
    if !idle.is_empty() {
        let idle = listed(&idle);
        effect.warnings.push(format!("denied agents start and stop nothing, so these are not counted: {idle}"));
    }
    Ok(effect)
}

impl Effect {
    fn add(&mut self, agent: &NodeName, state: Option<State>, (starts, stops): (&[ServiceName], &[ServiceName])) {
        let (starts_total, stops_total) = (starts.len(), stops.len());
        self.agents_total += 1;
        self.starts_total += starts_total;
        self.stops_total += stops_total;
        if self.agents.len() == MAX_AGENTS_SHOWN {
            self.agents_left_out += 1;
            return;
        }
        let first = |of: &[ServiceName]| of.iter().take(MAX_SERVICES_SHOWN).cloned().collect();
        let (agent, starts, stops) = (agent.clone(), first(starts), first(stops));
        self.agents.push(AgentEffect { agent, state, starts, starts_total, stops, stops_total });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_observed::Bounds;
    use weir_protocol::assignment::Agent;
    use weir_protocol::observed::EdgeObserved;

    use super::*;

    fn fleet() -> Tables {
        let agents = json!([{ "name": "cluster-1", "labels": { "ring": "canary" } }, { "name": "cluster-2" }]);
        let rules = json!([{ "name": "shop", "agents": "cluster-*", "services": ["shop-*"] },
            { "name": "edge", "agents": "laptop", "services": ["docs"] }]);
        let agents: Vec<Agent> = serde_json::from_value(agents).unwrap();
        let rules: Vec<Assignment> = serde_json::from_value(rules).unwrap();
        let agents = access_list::Table::new(1, agents, []).unwrap();
        Tables { agents, assignments: access_list::Table::new(1, [], rules).unwrap(), ..Tables::default() }
    }

    /// What an edge reports of these agents, whose tokens assert labels.
    fn observed(agents: &[(&str, Value)], more: bool) -> Observed {
        let agent = |(name, of_token): &(&str, Value)| {
            let labels = fleet().labels_of(&name.parse().unwrap(), &serde_json::from_value(of_token.clone()).unwrap());
            json!({ "agent": name, "proved": "token", "labels": labels, "heard_ago": 0, "instance": "i", "seq": 1,
                "token_labels": of_token, "full": true, "version": "1", "rows": [], "removed": [] })
        };
        let agents: Vec<Value> = agents.iter().map(agent).collect();
        let message = json!({ "edge": "edge-1", "instance": "e", "seq": 1, "full": true, "more": more, "connected": 1,
            "agents": agents });
        let mut table = Table::new(Bounds { agents: 5_000, rows: 10, bytes: 1 << 30, ..Bounds::default() });
        let now = Now::of_clocks();
        table.apply(EdgeObserved::parse(message.to_string().as_bytes()).unwrap(), None, now).unwrap();
        Observed::of(&table, now)
    }

    fn effect_for(observed: &Observed, denied: &[&str], change: Value) -> Value {
        let services: BTreeSet<ServiceName> =
            ["shop-a", "shop-b", "docs"].iter().map(|name| name.parse().unwrap()).collect();
        let change: FleetChange = serde_json::from_value(change).unwrap();
        let denied = denied.iter().map(|name| name.parse().unwrap()).collect();
        serde_json::to_value(dry_run(&fleet(), &services, (observed, &denied), &change).unwrap()).unwrap()
    }

    fn effect(change: Value) -> Value {
        effect_for(&observed(&[], false), &[], change)
    }

    fn row(agent: &str, state: Option<&str>, starts: &[&str], stops: &[&str]) -> Value {
        json!({ "agent": agent, "state": state, "starts": starts, "starts_total": starts.len(), "stops": stops,
            "stops_total": stops.len() })
    }

    #[test]
    fn an_agent_s_row_has_what_starts_and_stops() {
        let nothing = effect(json!({}));
        assert_eq!((&nothing["agents"], &nothing["known_agents"]), (&json!([]), &json!(3)));
        let canary = json!({ "name": "shop", "labels": { "ring": "canary" }, "services": ["shop-a", "docs"] });
        let changed = effect(json!({ "assignments": [canary] }));
        let rows = [row("cluster-1", None, &["docs"], &["shop-b"]), row("cluster-2", None, &[], &["shop-a", "shop-b"])];
        assert_eq!(changed["agents"], json!(rows));
        for (key, expected) in [("agents_total", 2), ("agents_left_out", 0), ("starts_total", 1), ("stops_total", 3)] {
            assert_eq!(changed[key], expected, "{key}");
        }
        assert_eq!((&changed["without_effect"], &changed["warnings"]), (&json!([]), &json!([])));
        let deleted = effect(json!({ "delete_assignments": ["edge"], "delete_agents": ["cluster-1"] }));
        assert_eq!(deleted["agents"][0]["agent"], "laptop");
        let wrong: FleetChange =
            serde_json::from_value(json!({ "assignments": [{ "name": "a", "services": ["*"] }] })).unwrap();
        let error = dry_run(&fleet(), &BTreeSet::new(), (&Observed::default(), &BTreeSet::new()), &wrong).unwrap_err();
        assert!(error.starts_with("assignment `a` names no agents"), "{error}");
    }

    #[test]
    fn agents_of_edges_count_with_the_labels_of_their_tokens() {
        let agents = [
            ("cluster-1", json!({ "ring": "stable", "region": "eu" })),
            ("cluster-2", json!({ "ring": "stable" })),
            ("phone", json!({ "ring": "canary" })),
        ];
        let seen = observed(&agents, false);
        let canary = json!({ "name": "new", "labels": { "ring": "canary" }, "services": ["docs"] });
        let changed = effect_for(&seen, &[], json!({ "assignments": [canary] }));
        let (one, phone) = (row("cluster-1", Some("live"), &["docs"], &[]), row("phone", Some("live"), &["docs"], &[]));
        assert_eq!((&changed["agents"], &changed["known_agents"]), (&json!([one, phone]), &json!(4)));
        assert_eq!((&changed["agents_without_rows"], &changed["warnings"]), (&json!(1), &json!([])), "the laptop");

        // The label of an entry wins. Without the entry that of the token counts, which edges report apart.
        let entries = json!([{ "name": "cluster-2", "labels": { "ring": "canary" } }]);
        let change = json!({ "assignments": [canary], "agents": entries, "delete_agents": ["cluster-1"] });
        let changed = effect_for(&seen, &["phone"], change);
        assert_eq!(changed["agents"], json!([row("cluster-2", Some("live"), &["docs"], &[])]));
        let warnings = changed["warnings"].to_string();
        assert!(warnings.contains("denied") && warnings.contains("`phone`"), "{warnings}");
    }

    #[test]
    fn what_matches_nothing_is_named() {
        let seen = observed(&[("cluster-3", json!({ "ring": "stable", "region": "eu" }))], false);
        let warnings = |observed: &Observed, rule: Value| {
            let mut rule = rule;
            rule["name"] = json!("a");
            let changed = effect_for(observed, &[], json!({ "assignments": [rule] }));
            let is_vain = changed["without_effect"] == json!(["a"]);
            let texts: Vec<String> = serde_json::from_value(changed["warnings"].clone()).unwrap();
            (texts.join("\n"), is_vain)
        };
        for (rule, expected, is_vain) in [
            (json!({ "agents": "*-3", "services": ["*"] }), "", false),
            (json!({ "labels": { "region": "eu" }, "services": ["docs", "shop-*"] }), "", false),
            (json!({ "agents": "prod-*", "services": ["*"] }), "no known agent matches `prod-*`: correct", true),
            (json!({ "agents": "laptop-2", "services": ["*"] }), "no known agent matches `laptop-2`: correct", false),
            (
                json!({ "labels": { "region": "eu", "ring": "cannary" }, "services": ["*"] }),
                "no known agent has the label `ring=cannary`: correct",
                true,
            ),
            (json!({ "agents": "*-3", "labels": { "ring": "canary" }, "services": ["*"] }), "all of it at once", true),
            (json!({ "agents": "*", "services": ["docs", "dosc", "x-*"] }), "no service matches `dosc`, `x-*`:", false),
            (json!({ "agents": "*", "services": ["none"] }), "no service matches `none`", true),
        ] {
            let (text, vain) = warnings(&seen, rule.clone());
            assert!(text.contains(expected) && text.is_empty() == expected.is_empty(), "{rule}: {text}");
            assert!(text.lines().count() < 2 && vain == is_vain, "{rule}: {text}");
        }
        let rule = json!({ "agents": "prod-*", "services": ["*"] });
        let (text, _) = warnings(&observed(&[], true), rule.clone());
        assert!(text.contains("of these edges: `edge-1`"), "{text}");
        let (text, _) = warnings(&Observed::default(), rule);
        assert!(text.contains("has just started"), "{text}");
        let by_name = Observed {
            agents: [("old".parse().unwrap(), (State::Silent, None))].into(),
            is_read: true,
            ..Observed::default()
        };
        let (text, _) = warnings(&by_name, json!({ "labels": { "ring": "x" }, "services": ["*"] }));
        assert!(text.contains("the labels of 1 agents are unknown"), "{text}");
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let names: Vec<String> = (0..MAX_AGENTS_SHOWN + 7).map(|number| format!("cluster-{number:04}")).collect();
        let agents: Vec<(&str, Value)> = names.iter().map(|name| (name.as_str(), json!({}))).collect();
        let changed = effect_for(&observed(&agents, false), &[], json!({ "delete_assignments": ["shop"] }));
        assert_eq!(changed["agents"].as_array().unwrap().len(), MAX_AGENTS_SHOWN);
        let wrong = |n: usize| json!({ "name": format!("a{n}"), "agents": "*", "services": ["none"] });
        let wrong: Vec<Value> = (0..MAX_WARNINGS + 5).map(wrong).collect();
        let warnings = &effect(json!({ "assignments": wrong }))["warnings"];
        let warnings = warnings.as_array().unwrap();
        assert_eq!((warnings.len(), warnings[100].as_str().unwrap().split_once(' ').unwrap().0), (101, "5"));
        // Those two with an entry, too.
        assert_eq!((&changed["agents_total"], &changed["agents_left_out"]), (&json!(1_009), &json!(9)));
        assert_eq!((&changed["starts_total"], &changed["stops_total"]), (&json!(0), &json!(2_018)));
    }
}
