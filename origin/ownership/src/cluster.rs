//! The cluster as this node sees it: its own valid session, the living members, and where repositories belong.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_protocol::name::{NodeName, RepositoryName};

use super::Settings;
use super::members::Members;
use super::placement::{Placement, place};
use super::records::{Claim, Digests, NodeRecord, NodeState, SessionId};
use super::timing::Timing;

#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) timing: Timing,
    pub(super) me: NodeName,
    weight: u32,
    /// When the node started, by both clocks.
    started: (Instant, u64),
    pub(super) now: Instant,
    /// The own session while it is valid.
    pub(super) session: Option<SessionId>,
    pub(super) is_draining: bool,
    members: Members,
    living: BTreeMap<NodeName, Living>,
    /// When the living members last changed.
    pub(super) changed_at: Instant,
}

/// A member with a living session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Living {
    /// The session of the member.
    pub session: SessionId,
    /// Active or draining.
    pub state: NodeState,
    /// Where other members and edges reach it.
    pub url: String,
    /// Its availability zone.
    pub zone: Option<String>,
    /// Its share of the repositories, relative to other nodes.
    pub weight: u32,
    /// What it should have in common with this node.
    pub digests: Digests,
    /// See [`NodeRecord::knows_shards`].
    pub knows_shards: bool,
    /// See [`NodeRecord::knows_blobs`].
    pub knows_blobs: bool,
    /// See [`NodeRecord::knows_staged`].
    pub knows_staged: bool,
}

/// Whether this node takes a repository that has no living owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rank {
    Winner,
    RunnerUp,
    Other,
}

impl Living {
    fn of(record: &NodeRecord) -> Self {
        let NodeRecord { session, state, weight, knows_shards, knows_blobs, knows_staged, .. } = *record;
        let (url, zone, digests) = (record.url.clone(), record.zone.clone(), record.digests.clone());
        Self { session, state, url, zone, weight, digests, knows_shards, knows_blobs, knows_staged }
    }
}

impl Cluster {
    pub(super) fn new(settings: &Settings, now: Instant) -> Self {
        Self {
            timing: settings.timing.clone(),
            me: settings.node.clone(),
            weight: settings.weight,
            started: (now, settings.clock),
            now,
            session: None,
            is_draining: false,
            members: Members::default(),
            living: BTreeMap::new(),
            changed_at: now,
        }
    }

    /// The clock, in Unix milliseconds.
    pub(super) fn clock(&self) -> u64 {
        let (started, clock) = self.started;
        clock + (self.now - started).as_millis() as u64
    }

    /// Takes the records of all nodes, read since `sent`. Whether the living members changed.
    pub(super) fn view(&mut self, records: Vec<NodeRecord>, sent: Instant) -> bool {
        self.members.update(records, sent, self.now, self.timing.ttl);
        let others = self.members.living().filter(|record| record.node != self.me);
        let living: BTreeMap<_, _> = others.map(|record| (record.node.clone(), Living::of(record))).collect();
        let has_changed = living != self.living;
        if has_changed {
            (self.living, self.changed_at) = (living, self.now);
        }
        has_changed
    }

    /// Forgets nodes that ended long ago. Returns their records that are still stored.
    pub(super) fn forget_nodes(&mut self) -> Vec<NodeRecord> {
        let mut old = self.members.forget(self.now, self.timing.forget_node_after);
        old.retain(|record| record.node != self.me);
        old
    }

    /// The sessions of other nodes that ended without being left.
    pub(super) fn ended(&self) -> Vec<SessionId> {
        self.members.ended().collect()
    }

    /// When the record of a node was last seen to change.
    pub(super) fn last_seen(&self, node: &NodeName) -> Option<Instant> {
        self.members.last_seen(node)
    }

    /// When the next view may show the end of a session.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.members.next_end()
    }

    /// The own session begins or ends.
    pub(super) fn set_session(&mut self, session: Option<SessionId>) {
        self.session = session;
        self.changed_at = self.now;
        self.members.forget_view();
    }

    /// Whether this node may decide about repositories.
    pub(super) fn can_decide(&self) -> bool {
        self.session.is_some() && self.members.has_view()
    }

    /// The other living members.
    pub(super) fn others(&self) -> &BTreeMap<NodeName, Living> {
        &self.living
    }

    /// The session of another living member.
    pub(super) fn session_of(&self, node: &NodeName) -> Option<SessionId> {
        self.living.get(node).map(|living| living.session)
    }

    pub(super) fn place(&self, repository: &RepositoryName) -> Placement {
        let others = self.living.iter().filter(|(_, living)| living.state == NodeState::Active);
        let me = (self.session.is_some() && !self.is_draining).then_some((&self.me, self.weight));
        place(repository, others.map(|(node, living)| (node, living.weight)).chain(me))
    }

    pub(super) fn rank(&self, placement: &Placement) -> Rank {
        let is_me = |node: &Option<NodeName>| node.as_ref() == Some(&self.me);
        match placement {
            _ if self.is_draining => Rank::Other,
            Placement { winner, .. } if is_me(winner) => Rank::Winner,
            Placement { runner_up, .. } if is_me(runner_up) => Rank::RunnerUp,
            _ => Rank::Other,
        }
    }

    /// Whether the claim is this node's own, of its valid session.
    pub(super) fn is_mine(&self, claim: &Claim) -> bool {
        !claim.is_released && Some(claim.session) == self.session && claim.owner == self.me
    }

    /// Whether a repository has no owner by a claim that was read before `noticed`: it was released, or its session has
    /// ended for certain.
    pub(super) fn is_free(&self, claim: &Claim, noticed: Instant) -> bool {
        if claim.is_released {
            return true;
        }
        if claim.owner == self.me {
            // This session replaced the earlier ones of the node after they had ended.
            return Some(claim.session) != self.session;
        }
        self.members.is_dead(claim, noticed, self.timing.ttl)
    }
}
