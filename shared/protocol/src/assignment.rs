//! Agents and assignments: operators' rules that say which agents follow which services.
//!
//! An assignment never opens anything: what an agent may read comes from its credential.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::labels::Labels;
use crate::name::{AssignmentName, NodeName, ServiceName};
use crate::name_glob::NameGlob;

/// The most patterns of services in an assignment.
pub const MAX_SERVICE_PATTERNS: usize = 100;

/// What operators assert of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// Its name, as in its credential.
    pub name: NodeName,
    /// Its labels. They override the labels of its token.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

/// Which agents follow which services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Assignment {
    /// Its name.
    pub name: AssignmentName,
    /// A pattern of the names of agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<NameGlob>,
    /// The labels of agents. With `agents` too, both must match.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Patterns of services, 1 to [`MAX_SERVICE_PATTERNS`].
    pub services: Vec<NameGlob>,
}

#[derive(Deserialize)]
struct Unchecked {
    name: AssignmentName,
    #[serde(default)]
    agents: Option<NameGlob>,
    #[serde(default)]
    labels: Labels,
    services: Vec<NameGlob>,
}

/// An assignment is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssignmentError {
    /// Neither a pattern of names nor labels.
    #[error("assignment `{0}` names no agents: set `agents` to a pattern (`*` for all) or `labels`")]
    NoAgents(AssignmentName),
    /// No pattern of services.
    #[error("assignment `{0}` names no services: set `services` to at least one pattern, or remove the assignment")]
    NoServices(AssignmentName),
    /// More than [`MAX_SERVICE_PATTERNS`].
    #[error(
        "assignment `{0}` has more than {MAX_SERVICE_PATTERNS} patterns of services: use `*` in them, or several \
         assignments"
    )]
    TooManyServices(AssignmentName),
}

impl TryFrom<Unchecked> for Assignment {
    type Error = AssignmentError;

    fn try_from(Unchecked { name, agents, labels, services }: Unchecked) -> Result<Self, AssignmentError> {
        Self::new(name, agents, labels, services)
    }
}

impl Assignment {
    /// An assignment.
    ///
    /// # Errors
    /// It names no agents, no services, or too many patterns.
    pub fn new(
        name: AssignmentName,
        agents: Option<NameGlob>,
        labels: Labels,
        services: Vec<NameGlob>,
    ) -> Result<Self, AssignmentError> {
        if agents.is_none() && labels.is_empty() {
            Err(AssignmentError::NoAgents(name))
        } else if services.is_empty() {
            Err(AssignmentError::NoServices(name))
        } else if services.len() > MAX_SERVICE_PATTERNS {
            Err(AssignmentError::TooManyServices(name))
        } else {
            Ok(Self { name, agents, labels, services })
        }
    }

    /// Whether it is for an agent with these asserted labels.
    pub fn is_for(&self, agent: &NodeName, labels: &Labels) -> bool {
        self.agents.as_ref().is_none_or(|pattern| pattern.matches(agent.as_str())) && labels.contain(&self.labels)
    }
}

/// The known services that an agent is to follow, sorted. `labels` are asserted: by its token, or by operators.
pub fn assigned_services<'a>(
    agent: &NodeName,
    labels: &Labels,
    assignments: impl IntoIterator<Item = &'a Assignment>,
    known: impl IntoIterator<Item = &'a ServiceName>,
) -> Vec<ServiceName> {
    let for_agent = assignments.into_iter().filter(|assignment| assignment.is_for(agent, labels));
    let patterns: BTreeSet<&NameGlob> = for_agent.flat_map(|assignment| &assignment.services).collect();
    let is_assigned = |service: &&ServiceName| patterns.iter().any(|pattern| pattern.matches(service.as_str()));
    let services: BTreeSet<&ServiceName> = known.into_iter().filter(is_assigned).collect();
    services.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assignment(json: &str) -> Assignment {
        serde_json::from_str(json).unwrap()
    }

    fn services(names: &[&str]) -> Vec<ServiceName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn labels(json: &str) -> Labels {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn an_assignment_is_written_as_documented() {
        let json = concat!(
            r#"{"name":"shop-to-all","agents":"cluster-*","labels":{"ring":"canary"},"#,
            r#""services":["shop-*"]}"#
        );
        assert_eq!(serde_json::to_string(&assignment(json)).unwrap(), json);
        let json = r#"{"name":"a","labels":{"ring":"canary"},"services":["*"],"later":1}"#;
        assert_eq!(assignment(json).agents, None);
        let agent: Agent = serde_json::from_str(r#"{"name":"cluster-1","later":1}"#).unwrap();
        assert_eq!(serde_json::to_string(&agent).unwrap(), r#"{"name":"cluster-1"}"#);
    }

    #[test]
    fn an_assignment_without_agents_or_services_is_refused() {
        let many = serde_json::to_string(&vec!["a"; MAX_SERVICE_PATTERNS + 1]).unwrap();
        for (json, expected) in [
            (r#"{"name":"a","services":["*"]}"#.to_owned(), "assignment `a` names no agents"),
            (r#"{"name":"a","agents":"*","services":[]}"#.to_owned(), "assignment `a` names no services"),
            (format!(r#"{{"name":"a","agents":"*","services":{many}}}"#), "more than 100 patterns"),
            (r#"{"name":"A","agents":"*","services":["*"]}"#.to_owned(), "is not a"),
            (r#"{"name":"a","agents":"[a]","services":["*"]}"#.to_owned(), "`[a]` is not a pattern"),
        ] {
            let error = serde_json::from_str::<Assignment>(&json).unwrap_err().to_string();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[test]
    fn names_and_labels_must_both_match() {
        let known = services(&["shop-b", "docs", "shop-a", "shop"]);
        let rules = [
            assignment(r#"{"name":"1","agents":"cluster-*","labels":{"ring":"canary"},"services":["shop-*"]}"#),
            assignment(r#"{"name":"2","labels":{"docs":"yes"},"services":["docs","missing"]}"#),
            assignment(r#"{"name":"3","agents":"cluster-9","services":["*"]}"#),
        ];
        for (agent, asserted, expected) in [
            ("cluster-1", r#"{"ring":"canary"}"#, &["shop-a", "shop-b"][..]),
            ("cluster-1", r#"{"ring":"canary","docs":"yes"}"#, &["docs", "shop-a", "shop-b"]),
            ("cluster-1", r#"{"ring":"all"}"#, &[]),
            ("laptop", r#"{"ring":"canary"}"#, &[]),
            ("cluster-9", "{}", &["docs", "shop", "shop-a", "shop-b"]),
        ] {
            let assigned = assigned_services(&agent.parse().unwrap(), &labels(asserted), &rules, &known);
            assert_eq!(assigned, services(expected), "{agent} {asserted}");
        }
    }

    proptest! {
        /// The definition, service by service.
        #[test]
        fn a_service_is_assigned_as_defined(
            agent in "[ab]{1,3}", asserted in "[ab]",
            rules in proptest::collection::vec(("[ab*]{1,3}", proptest::option::of("[ab]"), "[ab*]{1,4}"), 0..5),
            known in proptest::collection::vec("[ab]{1,4}", 0..8),
        ) {
            let label = |value: &str| labels(&format!(r#"{{"x":"{value}"}}"#));
            let (agent, asserted): (NodeName, _) = (agent.parse().unwrap(), label(&asserted));
            let rule = |(agents, wanted, services): &(String, Option<String>, String)| {
                let wanted = wanted.as_deref().map(label).unwrap_or_default();
                let services = vec![services.parse().unwrap()];
                Assignment::new("r".parse().unwrap(), Some(agents.parse().unwrap()), wanted, services).unwrap()
            };
            let rules: Vec<_> = rules.iter().map(rule).collect();
            let known: Vec<ServiceName> = known.iter().map(|name| name.parse().unwrap()).collect();
            let assigned = assigned_services(&agent, &asserted, &rules, &known);
            prop_assert!(assigned.is_sorted_by(|a, b| a < b));
            for service in &known {
                let expected = rules.iter().any(|rule| {
                    rule.agents.as_ref().unwrap().matches(agent.as_str())
                        && (rule.labels.is_empty() || rule.labels == asserted)
                        && rule.services[0].matches(service.as_str())
                });
                prop_assert_eq!(assigned.contains(service), expected, "{}", service);
            }
        }
    }
}
