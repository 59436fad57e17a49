//! Pure: the agents that an origin knows, and what of an assignment matches nothing.

use std::collections::{BTreeMap, BTreeSet};

use weir_observed::Incomplete;
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::labels::Labels;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::name_glob::NameGlob;

/// What edges tell of agents.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// With their asserted labels. `None`: only the name is known.
    pub(crate) agents: BTreeMap<NodeName, Option<Labels>>,
    pub(crate) incomplete: Vec<Incomplete>,
}

/// What the answer to a change of an assignment has besides the document.
#[derive(Debug, Default)]
pub(crate) struct Advice {
    pub(crate) warnings: Vec<String>,
    pub(crate) incomplete: Vec<Incomplete>,
}

/// What assignments are compared with.
pub(crate) struct Known<'a> {
    pub(crate) services: &'a BTreeSet<ServiceName>,
    /// `None`: the agents are not known yet.
    pub(crate) agents: Option<&'a BTreeMap<NodeName, Labels>>,
    /// Edges may know further agents.
    pub(crate) is_short: bool,
}

impl Seen {
    /// The labels of all known agents under `entries`, which win over those of tokens. What edges tell has those of the
    /// current entries in it: they go first.
    pub(crate) fn labels(
        &self,
        current: &BTreeMap<NodeName, Agent>,
        entries: &BTreeMap<NodeName, Agent>,
    ) -> BTreeMap<NodeName, Labels> {
        let none = Labels::default();
        let of = |name: &NodeName| {
            let told = self.agents.get(name).and_then(Option::as_ref).unwrap_or(&none);
            let own = current.get(name).map_or(&none, |entry| &entry.labels);
            let others = told.iter().filter(|label| !own.iter().any(|it| it == *label));
            let others: BTreeMap<String, String> = others.map(|(key, value)| (key.into(), value.into())).collect();
            let of_token = Labels::try_from(others).unwrap_or_default();
            of_token.overridden_by(entries.get(name).map_or(&none, |entry| &entry.labels))
        };
        self.agents.keys().chain(entries.keys()).map(|name| (name.clone(), of(name))).collect()
    }

    /// A sentence about agents that lose labels of their entries: those of their tokens come back then, which no edge tells.
    pub(crate) fn lost_labels(
        &self,
        current: &BTreeMap<NodeName, Agent>,
        entries: &BTreeMap<NodeName, Agent>,
    ) -> Option<String> {
        let loses = |entry: &&Agent| {
            let new = entries.get(&entry.name);
            let stays = |key: &str| new.is_some_and(|new| new.labels.iter().any(|(it, _)| it == key));
            self.agents.contains_key(&entry.name) && entry.labels.iter().any(|(key, _)| !stays(key))
        };
        let mut losing = current.values().filter(loses);
        let (first, more) = (losing.next()?, losing.count());
        let others = if more == 0 { String::new() } else { format!(" and {more} more") };
        Some(format!(
            "agent `{}`{others}: its entry loses labels; if its token asserts the same keys, these count again, and this \
             answer does not count them: compare with the token",
            first.name
        ))
    }
}

impl Known<'_> {
    /// What of an assignment matches nothing: a sentence for each such pattern and label.
    pub(crate) fn warnings(&self, rule: &Assignment) -> Vec<String> {
        let name = &rule.name;
        let is_vain = |pattern: &&NameGlob| !self.services.iter().any(|it| pattern.matches(it.as_str()));
        let of_services = rule.services.iter().filter(is_vain).map(|pattern| {
            format!(
                "assignment `{name}`: `{}` in `services` matches no service: correct it, or create the service",
                pattern.as_str()
            )
        });
        of_services.chain(self.warnings_of_agents(rule)).collect()
    }

    fn warnings_of_agents(&self, rule: &Assignment) -> Vec<String> {
        let name = &rule.name;
        let Some(agents) = self.agents else {
            return vec![format!(
                "assignment `{name}`: which agents it matches is not known yet, because the names from before the start are \
                 not read: ask again with a dry run"
            )];
        };
        let short = if self.is_short { ". Edges in `incomplete` may know others" } else { "" };
        if agents.iter().any(|(agent, labels)| rule.is_for(agent, labels)) {
            return Vec::new();
        }
        let mut warnings = Vec::new();
        if let Some(pattern) = &rule.agents
            && !agents.keys().any(|agent| pattern.matches(agent.as_str()))
        {
            warnings.push(format!(
                "assignment `{name}`: `{}` in `agents` matches no known agent: correct it, or start the agent{short}",
                pattern.as_str()
            ));
        }
        for (key, value) in rule.labels.iter() {
            if !agents.values().any(|labels| labels.iter().any(|label| label == (key, value))) {
                warnings.push(format!(
                    "assignment `{name}`: no known agent has the label `{key}={value}`: correct it, or give it to an agent, \
                     by its entry or its token{short}"
                ));
            }
        }
        if warnings.is_empty() {
            warnings.push(format!(
                "assignment `{name}`: no known agent has all that it asks for, though each part matches one: correct \
                 `agents` or `labels`{short}"
            ));
        }
        warnings
    }
}
