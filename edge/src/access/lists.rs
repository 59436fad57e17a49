//! The lists of keys, denials and issuers: the edge's own, and those of its origins.

use std::collections::HashSet;
use std::sync::Arc;

use weir_protocol::access_list::{AccessList, Fleet};

use super::issuers::{self, IssuerEntry, IssuerTable, KeyConflict, KeyOwners};
use super::origin_lists::OriginLists;
use crate::config::MAX_ISSUERS;

/// The most entries that a warning names which two clusters define otherwise; the metric counts all.
const MAX_CONFLICTS_LOGGED: usize = 10;

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
    /// What two clusters of origins define otherwise.
    pub(super) conflicts: Vec<String>,
    /// Of the keys of all issuers.
    pub(super) key_owners: KeyOwners,
}

impl Lists {
    pub(super) fn new(
        own: Arc<AccessList>,
        issuers: Vec<IssuerEntry>,
        origin_lists: OriginLists,
        key_owners: KeyOwners,
    ) -> Self {
        let (fleet, origin_issuers, conflicts) = Default::default();
        let mut lists = Self { own, issuers, origin_lists, fleet, origin_issuers, conflicts, key_owners };
        lists.join_fleets();
        lists
    }

    pub(super) fn join_fleets(&mut self) {
        let (fleet, conflicts) = self.origin_lists.fleet();
        for entry in conflicts.iter().filter(|entry| !self.conflicts.contains(entry)).take(MAX_CONFLICTS_LOGGED) {
            tracing::warn!(
                entry,
                "operators of two clusters of origins define this differently; the definition from the cluster with the lower id applies"
            );
        }
        self.conflicts = conflicts;
        if fleet != *self.fleet {
            self.origin_issuers = issuers::of_origins(&fleet);
            self.fleet = Arc::new(fleet);
        }
    }

    /// The issuers of the configuration come first: a new key in two entries is that of the first.
    pub(super) fn all_issuers(&self, from_origins: bool) -> Vec<IssuerEntry> {
        let of_origins = if from_origins { &self.origin_issuers[..] } else { &[] };
        self.issuers.iter().chain(of_origins).take(MAX_ISSUERS).cloned().collect()
    }

    /// The issuers that origins announce, if their keys are not taken.
    pub(super) fn ignored_issuers(&self, from_origins: bool) -> HashSet<String> {
        self.origin_issuers.iter().filter(|_| !from_origins).map(|entry| entry.issuer.issuer.clone()).collect()
    }

    pub(super) fn issuer_table(&self, from_origins: bool) -> (IssuerTable, Vec<KeyConflict>) {
        IssuerTable::of(self.all_issuers(from_origins), &self.key_owners)
    }
}
