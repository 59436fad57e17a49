//! What a member knows about the cluster.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::SystemTime;

use weir_ownership::{Digests, NodeState, SessionId, place};
use weir_protocol::members;
use weir_protocol::name::{NodeName, RepositoryName};

use crate::catalog::Map;

/// The members with living sessions, and what this one owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    /// This origin.
    pub(crate) me: Member,
    /// Whether the own session is valid.
    pub(crate) has_session: bool,
    /// Another process uses this origin's name, so it cannot join.
    pub(crate) is_name_taken: bool,
    /// Whether `others` are all of them.
    pub(crate) sees_members: bool,
    /// The other members.
    pub(crate) others: BTreeMap<NodeName, Member>,
    /// What this origin owns.
    pub(crate) owned: OwnedRepositories,
    /// All members have the same configured repositories and services, and the same signing keys.
    pub(crate) agree: bool,
}

/// The repositories that this origin owns. It may own ten thousand, and each event makes a view: clones share them, and two
/// are equal if nothing has changed between them.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnedRepositories {
    by_name: Map<RepositoryName, Owned>,
    changes: u64,
}

impl OwnedRepositories {
    pub(crate) fn insert(&mut self, repository: RepositoryName, owned: Owned) {
        self.by_name.insert_mut(repository, owned);
        self.changes += 1;
    }

    pub(crate) fn remove(&mut self, repository: &RepositoryName) {
        self.by_name.remove_mut(repository);
        self.changes += 1;
    }

    pub(crate) fn clear(&mut self) {
        *self = Self { by_name: Map::default(), changes: self.changes + 1 };
    }
}

impl Deref for OwnedRepositories {
    type Target = Map<RepositoryName, Owned>;

    fn deref(&self) -> &Self::Target {
        &self.by_name
    }
}

impl PartialEq for OwnedRepositories {
    fn eq(&self, other: &Self) -> bool {
        self.changes == other.changes
    }
}

impl Eq for OwnedRepositories {}

/// How this origin owns a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owned {
    /// The fence of the claim.
    pub(crate) fence: u64,
    pub(crate) since: SystemTime,
}

/// A member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: NodeName,
    /// Where other members and edges reach it.
    pub(crate) url: String,
    pub(crate) zone: Option<String>,
    pub(crate) weight: u32,
    pub(crate) state: NodeState,
    pub(crate) session: SessionId,
    /// What all members should have in common.
    pub(crate) digests: Digests,
    /// Reads and writes agents, assignments and issuers in shards.
    pub(crate) knows_shards: bool,
    /// Deletes no blobs that descriptors reference.
    pub(crate) knows_blobs: bool,
    /// Keeps what is staged when it writes the row of a service.
    pub(crate) knows_staged: bool,
}

impl View {
    /// This origin if its session is valid, and the others.
    pub(crate) fn living(&self) -> impl Iterator<Item = &Member> {
        self.has_session.then_some(&self.me).into_iter().chain(self.others.values())
    }

    /// Where a repository without an owner belongs.
    pub(crate) fn placed(&self, repository: &RepositoryName) -> Option<NodeName> {
        let active = self.living().filter(|member| member.state == NodeState::Active);
        place(repository, active.map(|member| (&member.name, member.weight))).winner
    }

    /// Why this origin is no member now, for its readiness.
    pub(crate) fn outside(&self) -> Option<&'static str> {
        match (self.has_session, self.is_name_taken) {
            (true, _) if self.me.state != NodeState::Active => {
                Some("this origin hands its repositories over and leaves")
            }
            (true, _) => None,
            (false, true) => Some(
                "another process uses this origin's name, or it has just died: this origin joins the cluster when the \
                 other's session has ended",
            ),
            (false, false) => {
                Some("this origin has no session in the cluster: the record store does not answer, or it is leaving")
            }
        }
    }

    /// The answer to `GET /v1/members`.
    pub(crate) fn members(&self) -> members::Members {
        let member = |member: &Member| members::Member {
            name: member.name.clone(),
            url: member.url.clone(),
            zone: member.zone.clone(),
            state: match member.state {
                NodeState::Active => members::MemberState::Active,
                NodeState::Draining | NodeState::Left => members::MemberState::Draining,
            },
        };
        members::Members { members: self.living().map(member).collect() }
    }

    /// The members whose configuration file or signing keys are not this origin's.
    pub(crate) fn differing(&self) -> impl Iterator<Item = &Member> {
        self.others.values().filter(|member| member.digests != self.me.digests)
    }
}
