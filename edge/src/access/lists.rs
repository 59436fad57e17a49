//! The lists of keys, denials and issuers: the edge's own, and those of its origins.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use weir_protocol::access_list::{AccessList, AccessListError, Fleet};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::token::JwkSet;

use super::issuers::{AnnouncedIssuers, FollowedKeys, IssuerEntry, IssuerTable, KeyConflict, KeyOwners};
use super::origin_lists::OriginLists;
use crate::config::AuthConfig;

/// The most entries that a warning names which two clusters define otherwise; the metric counts all.
const MAX_CONFLICTS_LOGGED: usize = 10;

/// What is known of agents.
#[derive(Debug, Default)]
pub(crate) struct KnownFleet {
    /// What operators say of them.
    pub(crate) fleet: Arc<Fleet>,
    /// The origins that have said it, now or before a restart.
    pub(crate) origins: BTreeSet<String>,
}

impl KnownFleet {
    /// The clusters, each the names of its origins, of which no origin has sent a list.
    pub(super) fn without_list<'c>(&self, clusters: &'c [Vec<String>]) -> Vec<&'c Vec<String>> {
        clusters.iter().filter(|origins| !origins.iter().any(|origin| self.origins.contains(origin))).collect()
    }
}

/// The lists that the key set is made of.
pub(super) struct Lists {
    pub(super) own: Arc<AccessList>,
    /// The issuers of the configuration, in its order.
    pub(super) issuers: Vec<IssuerEntry>,
    pub(super) origin_lists: OriginLists,
    /// What operators say of agents, of all `origin_lists`.
    pub(super) fleet: Arc<Fleet>,
    /// Its issuers.
    origin_issuers: Vec<IssuerEntry>,
    announced: AnnouncedIssuers,
    /// Those of them whose keys are fetched.
    pub(super) followed: FollowedKeys,
    /// Their keys are used.
    keys_from_origins: bool,
    /// What two clusters of origins define otherwise.
    pub(super) conflicts: Vec<String>,
    /// Of the keys of all issuers.
    pub(super) key_owners: KeyOwners,
    /// `None`: issuers have changed.
    table: Option<Arc<IssuerTable>>,
    /// The keys of issuers that other entries have.
    pub(super) key_conflicts: Vec<KeyConflict>,
    max_issuers: usize,
}

impl Lists {
    pub(super) fn new(
        own: Arc<AccessList>,
        issuers: Vec<IssuerEntry>,
        origin_lists: OriginLists,
        key_owners: KeyOwners,
        config: &AuthConfig,
    ) -> Self {
        let (fleet, origin_issuers, announced, conflicts) = Default::default();
        let (table, key_conflicts) = Default::default();
        let mut lists = Self {
            own,
            issuers,
            origin_lists,
            fleet,
            origin_issuers,
            announced,
            followed: FollowedKeys::new(config),
            keys_from_origins: config.keys_from_origins,
            conflicts,
            key_owners,
            table,
            key_conflicts,
            max_issuers: config.max_issuers,
        };
        lists.join_fleets();
        lists
    }

    /// Takes in the list that an origin sent. Returns the list that applies now, if there is one, and the shards that the sent
    /// one lacks. Its keys and denials apply at once, and its agents, assignments and issuers when it is complete.
    pub(super) fn sent(&mut self, origin: &str, mut list: AccessList) -> (Option<AccessList>, BTreeSet<ObjectDigest>) {
        let earlier = self.origin_lists.get(origin);
        if let Some(earlier) = earlier {
            list.keep_newer(earlier);
        }
        self.origin_lists.all_sent().for_each(|known| list.fill_from(known));
        let lacking = list.lacking();
        if lacking.is_empty() {
            self.origin_lists.incomplete.remove(origin);
            return (Some(list), lacking);
        }
        let applies = earlier.map(|earlier| {
            let mut applies = list.clone();
            applies.set_fleet(earlier.fleet().clone());
            applies
        });
        self.origin_lists.incomplete.insert(origin.to_owned(), list);
        (applies, lacking)
    }

    /// The documents of the last list of an origin if it lacks shards, so that one is parsed without the lock.
    pub(super) fn to_complete(&self, origin: &str) -> AccessList {
        let mut part = AccessList::default();
        part.set_fleet(self.origin_lists.incomplete.get(origin).map(|list| list.fleet().clone()).unwrap_or_default());
        part
    }

    /// Takes shards of `bytes` from a part into the last list of an origin. Returns whether it is complete now.
    ///
    /// # Errors
    /// The list would have more than `limit` bytes of documents.
    pub(super) fn add_part(
        &mut self,
        origin: &str,
        (part, bytes): (&AccessList, usize),
        limit: usize,
    ) -> Result<bool, AccessListError> {
        let Some(list) = self.origin_lists.incomplete.get_mut(origin) else { return Ok(false) };
        within(list, bytes, limit)?;
        list.fill_from(part);
        Ok(list.lacking().is_empty())
    }

    /// The last list of an origin if it is complete, and no later one has come meanwhile. It applies then.
    pub(super) fn take_complete(&mut self, origin: &str) -> Option<AccessList> {
        let mut list = self.origin_lists.incomplete.remove(origin)?;
        if !list.lacking().is_empty() {
            self.origin_lists.incomplete.insert(origin.to_owned(), list);
            return None;
        }
        if let Some(earlier) = self.origin_lists.get(origin) {
            list.keep_newer(earlier);
        }
        Some(list)
    }

    /// The number of origins whose last list lacks shards.
    pub(super) fn incomplete(&self) -> usize {
        self.origin_lists.incomplete.len()
    }

    /// An origin has left its cluster.
    pub(super) fn depart(&mut self, origin: &str) {
        self.origin_lists.depart(origin);
    }

    pub(super) fn join_fleets(&mut self) {
        let (mut fleet, conflicts) = self.origin_lists.fleet();
        for entry in conflicts.iter().filter(|entry| !self.conflicts.contains(entry)).take(MAX_CONFLICTS_LOGGED) {
            tracing::warn!(
                entry,
                "operators of two clusters of origins define this differently; the definition from the cluster with the lower id applies"
            );
        }
        self.conflicts = conflicts;
        if fleet != *self.fleet {
            fleet.share(&self.fleet);
            if fleet.issuers.table() != self.fleet.issuers.table() {
                self.origin_issuers = self.announced.entries(fleet.issuers.table());
                self.use_followed_keys();
            }
            self.fleet = Arc::new(fleet);
        }
        self.origin_lists.joined = self.fleet.clone();
    }

    /// Gives the issuers of origins the keys that were fetched for them.
    pub(super) fn use_followed_keys(&mut self) {
        if self.keys_from_origins {
            self.followed.update(&mut self.origin_issuers);
        }
        self.table = None;
    }

    /// Replaces the keys of an issuer of the configuration.
    pub(super) fn set_issuer_keys(&mut self, position: usize, keys: JwkSet) {
        self.issuers[position].keys = Arc::new(keys);
        self.table = None;
    }

    /// The issuers that origins announce, if their keys are not taken.
    pub(super) fn ignored_issuers(&self) -> HashSet<String> {
        self.origin_issuers
            .iter()
            .filter(|_| !self.keys_from_origins)
            .map(|entry| entry.issuer.issuer.clone())
            .collect()
    }

    /// The keys of all issuers, and whether they were found again. The issuers of the configuration come first: a new key in two
    /// entries is that of the first.
    pub(super) fn issuer_table(&mut self) -> (Arc<IssuerTable>, bool) {
        if let Some(table) = &self.table {
            return (table.clone(), false);
        }
        let of_origins = if self.keys_from_origins { &self.origin_issuers[..] } else { &[] };
        let entries: Vec<_> = self.issuers.iter().chain(of_origins).take(self.max_issuers).cloned().collect();
        self.key_owners.update(&entries);
        let (table, conflicts) = IssuerTable::of(entries, &self.key_owners);
        for conflict in &conflicts {
            tracing::error!(%conflict, "a key of an issuer is ignored");
        }
        self.key_conflicts = conflicts;
        (self.table.insert(table.into()).clone(), true)
    }
}

/// Checks that a list has room for a shard.
pub(super) fn within(list: &AccessList, bytes: usize, limit: usize) -> Result<(), AccessListError> {
    let what = "bytes of agents, assignments and issuers (`[auth] fleet_bytes`)";
    if list.fleet().bytes() + bytes <= limit { Ok(()) } else { Err(AccessListError::TooMany { what, limit }) }
}
