//! Edge to every origin: `POST /v1/observed`.

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::from_agent::is_false;
use super::{Instance, MAX_VERSION_BYTES, ObservedError, Row, parse, take_agent, take_text};
use crate::descriptor::rfc3339;
use crate::labels::Labels;
use crate::name::{EdgeName, NodeName, ServiceName};

/// The path at an origin.
pub const PATH: &str = "/v1/observed";

/// The longest time between two messages of an edge, in seconds: also empty ones say that its agents are alive.
pub const INTERVAL_SECONDS: u64 = 10;

/// The kind of the problem with which an origin answers an edge that has the name of another living one.
pub const NAME_TWICE: &str = "name-twice";

/// The longest reason for which a credential was refused, in bytes.
pub const MAX_REASON_BYTES: usize = 256;

/// What an edge tells each origin of what its agents run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeObserved {
    /// The identity of the edge, which is the name in its certificate. Several edges may have it.
    pub edge: NodeName,
    /// The name of the edge among those with this identity. `None`: it is the identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<NodeName>,
    /// The version of the program. `None`: an edge of the release before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What it can do that edges of other releases cannot.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub capabilities: BTreeSet<Capability>,
    /// The run of the edge.
    pub instance: Instance,
    /// One more than that of the message before, of the same instance to the same origin.
    pub seq: u64,
    /// Everything follows, from this message on. It adds and replaces, and deletes nothing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub full: bool,
    /// The next message continues this one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub more: bool,
    /// The edge is stopping, and this is its last message.
    #[serde(default, skip_serializing_if = "is_false")]
    pub draining: bool,
    /// The agents that the edge has heard within the last 90 s.
    pub connected: u64,
    /// Agents with something new.
    #[serde(default)]
    pub agents: Vec<AgentRows>,
    /// Agents that the edge has not heard for 90 s.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unheard: Vec<NodeName>,
    /// The names that failed credentials claimed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedName>,
}

/// Something that not every release of an edge can do, and that origins count on only once all edges can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capability {
    /// It gives a staged version to the agents that it is for.
    Staged,
    /// One of a later version.
    #[serde(other)]
    Other,
}

/// What an edge knows of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRows {
    /// Its name.
    pub agent: NodeName,
    /// By what it proved its name; `None`: by nothing, in mode `open`.
    pub proved: Option<Proved>,
    /// The labels that operators or its token assert.
    #[serde(default)]
    pub labels: Labels,
    /// Those of its token or certificate alone. `None`: they are the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_labels: Option<Labels>,
    /// How long ago the last message of this run came, in seconds. Whether the agent lives, `unheard` says.
    pub heard_ago: u64,
    /// Its run.
    pub instance: Instance,
    /// The `seq` of its last message.
    pub seq: u64,
    /// The version of the program.
    pub version: String,
    /// These are all rows: those that are not here count no longer.
    #[serde(default, skip_serializing_if = "is_false")]
    pub full: bool,
    /// What changed.
    #[serde(default)]
    pub rows: Vec<Row>,
    /// Services of which it runs nothing any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<ServiceName>,
}

/// By what an agent proves its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proved {
    /// A client certificate.
    Certificate,
    /// A signed token.
    Token,
    /// A way of a later version.
    #[serde(other)]
    Other,
}

/// A name that a credential claimed which was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedName {
    /// The name.
    pub name: NodeName,
    /// Why the last one was refused. At most [`MAX_REASON_BYTES`].
    pub reason: String,
    /// When the first one was.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
    /// How often.
    pub count: u64,
}

impl EdgeObserved {
    /// Reads a message. Unknown fields are ignored.
    ///
    /// # Errors
    /// It is malformed, or exceeds a bound.
    pub fn parse(json: &[u8]) -> Result<Self, ObservedError> {
        let mut read: Self = parse(json)?;
        let mut names = BTreeSet::new();
        if let Some(twice) = read.agents.iter().find(|agent| !names.insert(&agent.agent)) {
            return Err(ObservedError::AgentTwice(twice.agent.clone()));
        }
        read.agents.iter_mut().try_for_each(|agent| take_agent(&mut agent.version, &mut agent.rows))?;
        read.version.iter_mut().try_for_each(|version| take_text("version", version, MAX_VERSION_BYTES))?;
        read.refused.iter_mut().try_for_each(|one| take_text("reason", &mut one.reason, MAX_REASON_BYTES))?;
        Ok(read)
    }

    /// The identity of the edge that a message names, of which nothing else is read.
    ///
    /// # Errors
    /// It is malformed, or exceeds a bound.
    pub fn identity_in(json: &[u8]) -> Result<NodeName, ObservedError> {
        #[derive(Deserialize)]
        struct Sender {
            edge: NodeName,
        }
        Ok(parse::<Sender>(json)?.edge)
    }

    /// The edge, as answers name it.
    pub fn sender(&self) -> EdgeName {
        EdgeName::of(&self.edge, self.name.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOLDEN: &str = include_str!("../../golden/edge/observed.json");

    #[test]
    fn a_message_has_exactly_these_bytes() {
        let read = EdgeObserved::parse(GOLDEN.as_bytes()).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap() + "\n", GOLDEN);
        let named = GOLDEN.replacen(r#""edge-1","#, r#""edge-1","name":"node-7","#, 1);
        let last = named.replace(r#""more":true"#, r#""draining":true"#);
        let last = EdgeObserved::parse(last.as_bytes()).unwrap();
        assert_eq!((read.sender().as_str(), last.sender().as_str(), last.draining), ("edge-1", "edge-1~node-7", true));
        assert_eq!(serde_json::to_string(&EdgeObserved::parse(named.as_bytes()).unwrap()).unwrap() + "\n", named);
        assert_eq!(EdgeObserved::identity_in(named.as_bytes()).unwrap(), read.edge);
        assert!(EdgeObserved::identity_in(b"{}").is_err());
        let long = GOLDEN.replace("expired", &"e".repeat(257));
        let error = EdgeObserved::parse(long.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "`reason` has more than 256 bytes");
        let mut twice = read.clone();
        twice.agents.push(read.agents[0].clone());
        let error = EdgeObserved::parse(&serde_json::to_vec(&twice).unwrap()).unwrap_err().to_string();
        assert_eq!(error, "agent `cluster-1` is there twice");
        let later = GOLDEN.replace(r#"["staged"]"#, r#"["staged","fly"]"#);
        let later = EdgeObserved::parse(later.as_bytes()).unwrap();
        assert_eq!(later.capabilities, [Capability::Staged, Capability::Other].into());
        let former = GOLDEN.replace(r#""capabilities":["staged"],"#, "");
        assert!(EdgeObserved::parse(former.as_bytes()).unwrap().capabilities.is_empty());
        // An edge of the release before passes on what its agents say.
        let hidden = GOLDEN.replace("expired", r"ex\u202epired").replace("0.3.0", r"0.\u00073.0");
        let read = EdgeObserved::parse(hidden.as_bytes()).unwrap();
        assert_eq!((&*read.refused[0].reason, &*read.agents[0].version), (r"ex\u{202e}pired", r"0.\u{7}3.0"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = EdgeObserved::parse(&bytes);
        }
    }
}
