//! What a cluster stores about ownership: a record for each node, and the claim in each repository's record.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_protocol::name::NodeName;

/// One run of a node, or a part of one: a node whose session expired goes on with a new session, which counts on from the
/// random number of its run. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub u64);

impl SessionId {
    pub(super) fn is_of(self, run: u64) -> bool {
        self.0.wrapping_sub(run) <= u64::from(u32::MAX)
    }
}

/// Who owns a repository: a part of its record. Only the node that a claim names writes it, so an owner always knows that
/// it is one. Each write of the record also adds one to its sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The node that owns the repository.
    pub owner: NodeName,
    /// The session in which it does.
    pub session: SessionId,
    /// Grows with each change of the session. A fence belongs to one session. The first one of a repository is the clock in
    /// Unix milliseconds, so it is above all that the repository had before its record was deleted or lost.
    pub fence: u64,
    /// The owner has stopped all work, for the next owner to take the repository.
    pub is_released: bool,
}

/// The record `nodes/<name>`. No two writes are equal, because each renewal counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The version of this format. Later versions only add fields.
    pub format: u32,
    /// The name of the node.
    pub node: NodeName,
    /// The session of the node.
    pub session: SessionId,
    /// Counts the writes of this session.
    pub renewals: u64,
    /// Whether the node takes repositories.
    pub state: NodeState,
    /// The session ends for others when the record did not change for this many milliseconds.
    pub ttl_millis: u64,
    /// Where other members and edges reach the node.
    pub url: String,
    /// The availability zone of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The node's share of the repositories, relative to other nodes.
    pub weight: u32,
    /// What all nodes should have in common.
    #[serde(flatten)]
    pub digests: Digests,
    /// Sessions of other nodes that ended for this one without being left. They must stop if they are still in use: a
    /// machine that was suspended together with its clock does not know otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<SessionId>,
    /// The node reads and writes agents, assignments and issuers in shards. A node of 0.1 does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_shards: bool,
    /// The node knows that descriptors reference blobs, and does not delete these. A node of 0.1 does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_blobs: bool,
    /// The node keeps what is staged when it writes the row of a service. A node of 0.1 does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub knows_staged: bool,
}

/// Short digests of what all nodes of a cluster should have in common. A node of an earlier version has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digests {
    /// The repositories and services of the configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration: Option<String>,
    /// The public keys that publications are signed with, and whether they sign manifests, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_keys: Option<String>,
}

/// Whether a node takes repositories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// It takes repositories.
    Active,
    /// It hands all repositories over.
    Draining,
    /// The session has ended.
    Left,
}

impl NodeState {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Left => "left",
        }
    }
}

impl NodeRecord {
    pub(super) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_millis)
    }

    /// The version of the format.
    pub const FORMAT: u32 = 1;
}
