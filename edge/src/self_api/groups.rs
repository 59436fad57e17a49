//! Agents that want the same and may read the same follow the same services: they are one group, with one list, one state of
//! its rows and one line for each event. In which group an agent is follows from its credential and from operators' rules.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use moka::sync::Cache;
use weir_cache::clock::AtomicMoment;
use weir_protocol::labels::Labels;
use weir_runtime::bounds::Bound;

use super::edits::Edits;
use super::following::{Wanted, has_star};
use super::group_key::{GroupKey, TooMuchWork};
use super::rows::Following;
use crate::access::{Access, Agent};
use crate::catalog::Catalog;

/// The most memory for what groups of agents follow and were told, in bytes, about. What has no room is made for each request.
const MAX_FOLLOWING_BYTES: u64 = 128 << 20;

/// The most memory for which agent is in which group, in bytes, about.
const MAX_MEMBER_BYTES: u64 = 128 << 20;

/// What is not asked for so long is forgotten.
const IDLE: Duration = Duration::from_secs(600);

/// A group, with what it follows.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) key: GroupKey,
    now: Mutex<Option<Arc<Following>>>,
    weight: AtomicUsize,
    /// When the cache was told that it is in use.
    used_at: AtomicMoment,
}

/// The group of an agent.
#[derive(Debug, Clone)]
pub(super) struct Membership {
    group: Weak<Group>,
    /// The labels from which it follows.
    labels: Labels,
    /// The last edit that was looked at.
    edit: u64,
}

/// All groups.
pub(super) struct Groups {
    catalog: Arc<Catalog>,
    edits: Edits,
    groups: Cache<GroupKey, Arc<Group>>,
    members: Cache<(Agent, Wanted), Membership>,
}

impl Groups {
    pub(super) fn new(access: &Access, catalog: Arc<Catalog>) -> Self {
        let bytes = |weight: usize| u32::try_from(weight).unwrap_or(u32::MAX);
        let groups = Cache::builder().max_capacity(MAX_FOLLOWING_BYTES).time_to_idle(IDLE);
        let members = Cache::builder().max_capacity(MAX_MEMBER_BYTES).time_to_idle(IDLE);
        Self {
            catalog,
            edits: Edits::new(access.fleet()),
            groups: groups
                .weigher(move |key: &GroupKey, group: &Arc<Group>| {
                    bytes(2 * key.weight() + group.weight.load(Ordering::Relaxed))
                })
                .build(),
            members: members
                .weigher(move |(agent, wanted): &(Agent, Wanted), _: &Membership| {
                    bytes(500 + agent.weight() + wanted.weight())
                })
                .build(),
        }
    }

    /// The fill level of each bound.
    pub(super) fn bounds(&self) -> [Bound; 2] {
        self.groups.run_pending_tasks();
        self.members.run_pending_tasks();
        [
            ("agent_following_bytes", self.groups.weighted_size(), MAX_FOLLOWING_BYTES),
            ("agent_group_bytes", self.members.weighted_size(), MAX_MEMBER_BYTES),
        ]
    }

    /// The group of an agent if it is known, and no edit has touched the agent since.
    pub(super) fn known(&self, agent: &Agent, wanted: &Wanted) -> Option<Arc<Group>> {
        let key = member_key(agent, wanted);
        let mut member = self.members.get(&key)?;
        let before = member.edit;
        let group = self.still(&mut member, agent, wanted)?;
        if member.edit != before {
            self.members.insert(key, member);
        }
        Some(group)
    }

    /// The group of a member, unless an edit has touched it.
    pub(super) fn still(&self, member: &mut Membership, agent: &Agent, wanted: &Wanted) -> Option<Arc<Group>> {
        let group = member.group.upgrade()?;
        let (_, edit) = self.edits.now();
        if edit != member.edit {
            if *wanted == Wanted::Assigned && self.edits.have_touched(&agent.name, &member.labels, member.edit) {
                return None;
            }
            member.edit = edit;
        }
        Some(group)
    }

    /// Finds the group of an agent from the rules as they are.
    pub(super) fn join(&self, agent: &Agent, wanted: &Wanted) -> (Arc<Group>, Membership) {
        let (fleet, edit) = self.edits.now();
        let key = GroupKey::of(agent, wanted, &fleet);
        let group = self.groups.get_with_by_ref(&key, || {
            let used_at = AtomicMoment::new(self.catalog.clock().now());
            Arc::new(Group { key: key.clone(), now: Mutex::default(), weight: AtomicUsize::default(), used_at })
        });
        let labels = fleet.labels_of(&agent.name, &agent.labels);
        let member = Membership { group: Arc::downgrade(&group), labels, edit };
        self.members.insert(member_key(agent, wanted), member.clone());
        (group, member)
    }

    /// What a group follows now. `None`: it has not been made since the group was, or too many names have changed.
    pub(super) fn known_following(&self, group: &Arc<Group>) -> Option<Arc<Following>> {
        let at = self.catalog.clock().now();
        if at.since(group.used_at.get()) > IDLE / 2 {
            group.used_at.set(at);
            // Streams alone do not keep it there.
            self.groups.get_with_by_ref(&group.key, || group.clone());
        }
        let mut now = group.now.lock().unwrap_or_else(PoisonError::into_inner);
        let known = now.as_ref()?;
        if known.names_version() == self.catalog.names_version() {
            return Some(known.clone());
        }
        // Of the names only those are looked at that appeared or went since.
        let changed = self.catalog.names_since(known.names_version())?;
        if let Some(next) = known.after(&group.key, changed, |service| self.catalog.has_name(service)) {
            self.keep(group, now.insert(Arc::new(next)));
        }
        now.clone()
    }

    /// Makes what a group follows from all names.
    ///
    /// # Errors
    /// A request has too many patterns.
    pub(super) fn make_following(&self, group: &Arc<Group>) -> Result<Arc<Following>, TooMuchWork> {
        let mut now = group.now.lock().unwrap_or_else(PoisonError::into_inner);
        let names_version = self.catalog.names_version();
        if let Some(made) = now.as_ref().filter(|made| made.names_version() == names_version) {
            return Ok(made.clone());
        }
        let needs_names = group.key.patterns.iter().any(has_star);
        let readable = self.catalog.names(|service| needs_names && group.key.may_read(service));
        let following = Arc::new(Following::new(group.key.services(readable)?, names_version));
        self.keep(group, now.insert(following.clone()));
        Ok(following)
    }

    fn keep(&self, group: &Arc<Group>, following: &Following) {
        group.weight.store(following.weight(), Ordering::Relaxed);
        self.groups.insert(group.key.clone(), group.clone());
    }
}

/// Another token of the same agent opens the same.
fn member_key(agent: &Agent, wanted: &Wanted) -> (Agent, Wanted) {
    (Agent { valid_until: None, ..agent.clone() }, wanted.clone())
}
