//! What origins send: their lists, and the shards that these name.

use std::collections::BTreeSet;

use weir_protocol::access_list::{AccessList, AccessListError};
use weir_protocol::digest::ObjectDigest;

use super::lists::{Lists, within};
use super::{Access, Inner};

/// What became of a shard that was fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardOutcome {
    /// It is in the list.
    Added,
    /// It has other bytes than its digest says.
    Damaged,
    /// The list cannot be used: the one before applies until the origin sends another one.
    Unusable,
}

impl Access {
    /// Replaces the access list of an origin, and returns the shards that it lacks. Its keys and denials apply at once, and all
    /// of it when [`add_shard`](Self::add_shard) has got them. It is persisted soon after. A malformed list changes nothing.
    pub(crate) fn set_origin_list(&self, name: &str, json: &[u8]) -> BTreeSet<ObjectDigest> {
        let inner = &*self.inner;
        let list = match AccessList::parse(json) {
            Ok(list) => list,
            Err(error) => {
                inner.metrics.lists_refused.inc();
                tracing::error!(origin = name, %error, "the access list of an origin is malformed; the previous one applies");
                return BTreeSet::new();
            }
        };
        inner.change(|lists| {
            let (applies, lacking) = lists.sent(name, list);
            match applies {
                Some(list) => inner.apply(lists, name, list),
                // Its denials must survive a restart.
                None => inner.persist(lists),
            }
            inner.note_incomplete(lists);
            lacking
        })
    }

    /// Adds a shard to the last list of an origin, which applies once it is complete. Blocks, without the lock of the lists while it
    /// is parsed.
    pub(crate) fn add_shard(&self, name: &str, digest: &ObjectDigest, json: &[u8]) -> ShardOutcome {
        let inner = &*self.inner;
        let added = || {
            let mut part = inner.lists().to_complete(name);
            within(&part, json.len(), inner.fleet_bytes)?;
            part.add_shard(digest, json)?;
            inner.lists().add_part(name, (&part, json.len()), inner.fleet_bytes)
        };
        let is_complete = match added() {
            Ok(is_complete) => is_complete,
            Err(error) => {
                inner.metrics.lists_refused.inc();
                tracing::error!(origin = name, shard = %digest, %error, "the access list of an origin cannot be used; the previous one applies");
                let is_damaged = matches!(error, AccessListError::Corrupt(_));
                return if is_damaged { ShardOutcome::Damaged } else { ShardOutcome::Unusable };
            }
        };
        if is_complete {
            inner.change(|lists| {
                if let Some(list) = lists.take_complete(name) {
                    inner.apply(lists, name, list);
                }
                inner.note_incomplete(lists);
            });
        }
        ShardOutcome::Added
    }

    /// The documents of a shard of the lists of all origins together.
    pub(crate) fn shard_json(&self, digest: &ObjectDigest) -> Option<Vec<u8>> {
        let joined = self.inner.persisted.borrow().joined.clone();
        joined.shard_json(digest)
    }

    /// An origin has left its cluster: its denials stay, and its keys are not used any longer.
    pub(crate) fn origin_left(&self, name: &str) {
        self.inner.change(|lists| {
            lists.depart(name);
            self.inner.persist(lists);
            self.inner.note_incomplete(lists);
        });
    }
}

impl Inner {
    fn apply(&self, lists: &mut Lists, name: &str, list: AccessList) {
        if lists.origin_lists.insert(name, list) {
            tracing::info!(origin = name, "an origin changed its access list");
            self.persist(lists);
        }
    }

    fn note_incomplete(&self, lists: &Lists) {
        self.metrics.lists_incomplete.set(i64::try_from(lists.incomplete()).unwrap_or(i64::MAX));
    }
}
