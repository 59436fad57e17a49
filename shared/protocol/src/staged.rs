//! A staged version: a later publication, inside the descriptor in force, with the agents that get it first.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::labels::Labels;
use crate::name::{NodeName, ServiceName};
use crate::name_glob::NameGlob;

/// The most selectors of an audience.
pub const MAX_SELECTORS: usize = 100;

/// A complete later publication of the same service, and who gets it. Everybody else gets the one in force.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Staged {
    /// The exact bytes of its descriptor, which has its own envelope.
    pub descriptor: Box<RawValue>,
    /// Who gets it.
    #[serde(flatten)]
    pub audience: Audience,
}

/// The agents that get a staged version: those that a selector matches, and a part of all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Audience {
    /// Agents that any of these matches.
    #[serde(rename = "for", skip_serializing_if = "Vec::is_empty")]
    selectors: Vec<AgentSelector>,
    /// Of all agents, this part, 1 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    percent: Option<u8>,
}

/// Agents by their names or labels. A reader that does not know a field of it knows nothing of the audience: it could match
/// agents that it is not for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentSelector {
    /// A pattern of their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<NameGlob>,
    /// Their asserted labels. With `agents` too, both must match.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

#[derive(Deserialize)]
struct Unchecked {
    #[serde(default, rename = "for")]
    selectors: Vec<AgentSelector>,
    #[serde(default)]
    percent: Option<u8>,
}

/// An audience is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AudienceError {
    /// Neither selectors nor a part of all.
    #[error("nobody is named: set `for` to at least one selector, or `percent`")]
    Nobody,
    /// A selector without conditions.
    #[error("selector {0} of `for` names no agents: set `agents` to a pattern, or `labels`")]
    EmptySelector(usize),
    /// More than [`MAX_SELECTORS`].
    #[error("`for` has {0} selectors, more than {MAX_SELECTORS}: use `*` in patterns, or a label")]
    TooManySelectors(usize),
    /// Not a part of all.
    #[error("`percent` is {0}: it must be 1 to 100")]
    NotAPercentage(u8),
}

impl TryFrom<Unchecked> for Audience {
    type Error = AudienceError;

    fn try_from(Unchecked { selectors, percent }: Unchecked) -> Result<Self, AudienceError> {
        Self::new(selectors, percent)
    }
}

impl Audience {
    /// An audience.
    ///
    /// # Errors
    /// It names nobody, a selector has no condition, or a bound is exceeded.
    pub fn new(selectors: Vec<AgentSelector>, percent: Option<u8>) -> Result<Self, AudienceError> {
        let is_empty = |selector: &AgentSelector| selector.agents.is_none() && selector.labels.is_empty();
        if selectors.len() > MAX_SELECTORS {
            return Err(AudienceError::TooManySelectors(selectors.len()));
        }
        if let Some(empty) = selectors.iter().position(is_empty) {
            return Err(AudienceError::EmptySelector(empty + 1));
        }
        match percent {
            None if selectors.is_empty() => Err(AudienceError::Nobody),
            Some(percent) if !(1..=100).contains(&percent) => Err(AudienceError::NotAPercentage(percent)),
            _ => Ok(Self { selectors, percent }),
        }
    }

    /// Whether it has an agent with these asserted labels, as a reader of this service.
    pub fn includes(&self, agent: &NodeName, labels: &Labels, service: &ServiceName) -> bool {
        self.selectors.iter().any(|selector| selector.names(agent) && labels.contain(&selector.labels))
            || self.part_has(agent, service)
    }

    /// Whether everybody who is in `other` is certainly in this one.
    pub fn covers(&self, other: &Self) -> bool {
        other.selectors.iter().all(|selector| self.selectors.contains(selector)) && self.percent >= other.percent
    }

    /// Whether it may have an agent of which only the name is known.
    pub fn may_include(&self, agent: &NodeName, service: &ServiceName) -> bool {
        self.selectors.iter().any(|selector| selector.names(agent)) || self.part_has(agent, service)
    }

    fn part_has(&self, agent: &NodeName, service: &ServiceName) -> bool {
        self.percent.is_some_and(|percent| point_of(agent, service) < u64::from(percent))
    }
}

impl AgentSelector {
    fn names(&self, agent: &NodeName) -> bool {
        self.agents.as_ref().is_none_or(|pattern| pattern.matches(agent.as_str()))
    }
}

/// Where an agent stands among all readers of a service, 0 to 99: a part of all has those below it, so those that it has stay
/// in it when it grows. By service, so that no agent is the first everywhere.
fn point_of(agent: &NodeName, service: &ServiceName) -> u64 {
    let hash = blake3::hash(&[agent.as_str().as_bytes(), service.as_str().as_bytes()].join(&0));
    let (first, _) = hash.as_bytes().split_first_chunk::<8>().expect("a hash has 32 bytes");
    u64::from_be_bytes(*first) % 100
}

impl PartialEq for Staged {
    fn eq(&self, other: &Self) -> bool {
        self.descriptor.get() == other.descriptor.get() && self.audience == other.audience
    }
}

impl Eq for Staged {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{Descriptor, DescriptorFields, Publication};

    const AUDIENCE: &str = r#""for":[{"labels":{"ring":"canary"}},{"agents":"eu-*"}],"percent":10"#;

    fn audience(json: &str) -> Audience {
        serde_json::from_str(&format!("{{{json}}}")).unwrap()
    }

    fn in_force() -> DescriptorFields {
        let golden = include_str!("../golden/agent/descriptor.json").trim_end();
        Descriptor::parse(golden.into()).unwrap().fields().clone()
    }

    /// A later publication, and the one in force with it.
    fn staged() -> (Descriptor, Descriptor) {
        let mut later = in_force();
        later.publication.generation += 1;
        later.publication.digest = crate::digest::TarballDigest::of(b"later");
        let later = Descriptor::new(later);
        let staged =
            Staged { descriptor: serde_json::from_slice(later.bytes()).unwrap(), audience: audience(AUDIENCE) };
        let current = Descriptor::new(DescriptorFields { staged: Some(Box::new(staged)), ..in_force() });
        (later, current)
    }

    #[test]
    fn a_staged_version_stands_byte_for_byte_in_the_descriptor_in_force() {
        let (later, current) = staged();
        let (text, later) =
            (std::str::from_utf8(current.bytes()).unwrap(), std::str::from_utf8(later.bytes()).unwrap());
        assert!(text.ends_with(&format!(r#","staged":{{"descriptor":{later},{AUDIENCE}}}}}"#)), "{text}");
        let read = Descriptor::parse(current.bytes().clone()).unwrap();
        assert_eq!(read, current);
        assert_eq!(read.publication(), &in_force().publication, "it is the one in force");
    }

    /// The fields that nodes of the release before read.
    #[test]
    fn a_node_that_does_not_know_it_reads_the_version_in_force() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Former {
            publication: crate::descriptor::Publication,
            #[serde(rename = "ref")]
            followed_ref: String,
            revision: u64,
            representations: Vec<serde_json::Value>,
        }
        let (_, current) = staged();
        let former: Former = crate::json::from_slice(current.bytes()).unwrap();
        let without = Descriptor::new(in_force());
        assert_eq!(former, crate::json::from_slice::<Former>(without.bytes()).unwrap());
    }

    #[test]
    fn what_this_version_does_not_understand_is_passed_over() {
        let (_, current) = staged();
        let text = std::str::from_utf8(current.bytes()).unwrap();
        let read = |from: &str, to: &str| {
            let changed = text.replace(from, to);
            assert_ne!(changed, text);
            Descriptor::parse(changed.into()).unwrap().fields().staged.is_some()
        };
        assert!(read(r#","percent":10"#, r#","percent":10,"later":1"#));
        assert!(!read(r#"{"agents":"eu-*"}"#, r#"{"agents":"eu-*","later":1}"#), "it may be for fewer agents");
        assert!(!read(r#""percent":10"#, r#""percent":1000"#));
        assert!(!read(r#""staged":{"#, r#""staged":[1],"x":{"#));
    }

    #[test]
    fn a_later_version_is_of_the_same_service_and_above_the_one_in_force() {
        let (later, current) = staged();
        let read = |publication: &Publication| current.fields().staged.as_ref().unwrap().later_than(publication);
        assert_eq!(read(current.publication()), Some(later.clone()));
        let (mut same, other) = (
            current.publication().clone(),
            Publication { service: "other".parse().unwrap(), ..current.publication().clone() },
        );
        same.digest = later.publication().digest;
        for not in [later.publication(), &same, &other] {
            assert_eq!(read(not), None, "{not:?}");
        }
    }

    #[test]
    fn an_audience_has_agents_by_name_by_label_and_by_both() {
        let selectors = audience(r#""for":[{"labels":{"ring":"canary"}},{"agents":"eu-*","labels":{"ring":"early"}}]"#);
        for (agent, ring, expected) in
            [("us-1", "canary", true), ("eu-1", "early", true), ("us-1", "early", false), ("eu-1", "late", false)]
        {
            let labels = serde_json::from_value(serde_json::json!({ "ring": ring })).unwrap();
            let included = selectors.includes(&agent.parse().unwrap(), &labels, &"shop".parse().unwrap());
            assert_eq!(included, expected, "{agent} {ring}");
        }
        assert!(audience(r#""for":[{"agents":"eu-*"}]"#).includes(
            &"eu-1".parse().unwrap(),
            &Labels::default(),
            &"shop".parse().unwrap()
        ));
    }

    /// Every edge must find the same agents: these are in docs/protocol.md.
    #[test]
    fn a_part_of_all_agents_has_those_below_it() {
        for (agent, service, point) in [
            ("cluster-1", "shop-prod", 49),
            ("cluster-2", "shop-prod", 42),
            ("cluster-3", "shop-prod", 52),
            ("cluster-1", "docs", 17),
        ] {
            let (agent, service): (NodeName, ServiceName) = (agent.parse().unwrap(), service.parse().unwrap());
            assert_eq!(point_of(&agent, &service), point, "{agent} {service}");
            for percent in 1..=100u8 {
                let part = audience(&format!(r#""percent":{percent}"#));
                let included = part.includes(&agent, &Labels::default(), &service);
                assert_eq!(included, point < u64::from(percent), "{agent} {service} {percent}");
            }
        }
        let service: ServiceName = "shop-prod".parse().unwrap();
        let half = audience(r#""percent":50"#);
        let agents = (0..1000).map(|number| format!("cluster-{number}").parse::<NodeName>().unwrap());
        let included = agents.filter(|agent| half.includes(agent, &Labels::default(), &service)).count();
        assert!((450..550).contains(&included), "{included}");
    }

    #[test]
    fn an_audience_names_somebody_and_is_bounded() {
        let many = vec![r#"{"agents":"a"}"#; MAX_SELECTORS + 1].join(",");
        for (json, expected) in [
            (String::new(), "nobody is named"),
            (r#""for":[{"agents":"a"},{}]"#.to_owned(), "selector 2 of `for` names no agents"),
            (format!(r#""for":[{many}]"#), "more than 100"),
            (r#""percent":0"#.to_owned(), "`percent` is 0"),
            (r#""percent":101"#.to_owned(), "`percent` is 101"),
        ] {
            let error = serde_json::from_str::<Audience>(&format!("{{{json}}}")).unwrap_err().to_string();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[test]
    fn an_audience_covers_those_with_fewer_selectors_and_a_smaller_part() {
        let all = audience(AUDIENCE);
        for (other, expected) in [
            (AUDIENCE, true),
            (r#""for":[{"agents":"eu-*"}]"#, true),
            (r#""percent":10"#, true),
            (r#""percent":11"#, false),
            (r#""for":[{"agents":"eu-1"}]"#, false),
        ] {
            assert_eq!(all.covers(&audience(other)), expected, "{other}");
        }
        assert!(!audience(r#""for":[{"agents":"eu-*"}]"#).covers(&all));
    }
}
