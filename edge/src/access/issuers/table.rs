//! The keys of all issuers, found by (`iss`, `kid`).

use std::collections::HashMap;
use std::sync::Arc;

use weir_protocol::token::{IssuerPolicy, VerifyingKey};

use super::entry::IssuerEntry;
use super::fetch::KeyRequest;
use super::key_owners::KeyOwners;

/// The most entries whose different keys have one `iss` and `kid`: each costs a verification of a token.
const MAX_CANDIDATES: usize = 8;

/// The most entries of one `iss` whose keys are fetched for a token with an unknown key, which anybody can send. Those of further
/// ones are fetched when they are due.
const MAX_KEY_REQUESTS: usize = 64;

/// A key that an entry cannot have, because others have it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the key `{kid}` of the issuer {issuer} is in two entries, or its id in more than {MAX_CANDIDATES}; the entry that had it first keeps it"
)]
pub(crate) struct KeyConflict {
    /// [`IssuerEntry::source`] of the entry that cannot have it.
    pub(super) entry: String,
    issuer: String,
    kid: String,
}

/// All issuers. A lookup takes the same time for any number of them.
#[derive(Default)]
pub(crate) struct IssuerTable {
    entries: Vec<IssuerEntry>,
    by_name: HashMap<String, Keys>,
}

/// The keys of all entries with one `iss`.
#[derive(Default)]
struct Keys {
    /// `kid` → positions of the entries, each with a key of its own.
    entries: HashMap<String, Vec<usize>>,
    unknown_key: Vec<Arc<KeyRequest>>,
    /// Those of an entry are at a URL that is not fetched.
    are_not_fetched: bool,
}

impl IssuerTable {
    /// The table, and the keys that other entries own: they are left out.
    pub(crate) fn of(entries: Vec<IssuerEntry>, owners: &KeyOwners) -> (Self, Vec<KeyConflict>) {
        let mut by_name: HashMap<String, Keys> = HashMap::new();
        let mut conflicts = Vec::new();
        for (position, entry) in entries.iter().enumerate() {
            let issuer = &entry.issuer.issuer;
            let keys = by_name.entry(issuer.clone()).or_default();
            if keys.unknown_key.len() < MAX_KEY_REQUESTS {
                keys.unknown_key.extend(entry.unknown_key.clone());
            }
            keys.are_not_fetched |= entry.is_not_fetched();
            for (kid, key) in entry.keys.keys() {
                let candidates = keys.entries.entry(kid.to_owned()).or_default();
                if owners.has_other(entry, kid, key) || candidates.len() == MAX_CANDIDATES {
                    let (entry, issuer) = (entry.source.clone(), issuer.clone());
                    conflicts.push(KeyConflict { entry, issuer, kid: kid.to_owned() });
                } else {
                    candidates.push(position);
                }
            }
        }
        (Self { entries, by_name }, conflicts)
    }

    /// Whether tokens with this `iss` are those of an issuer, and not Weir's own.
    pub(crate) fn has(&self, issuer: &str) -> bool {
        self.by_name.contains_key(issuer)
    }

    /// The keys, each with what its tokens are worth. A token is that of the entry whose key has signed it.
    pub(crate) fn find(&self, issuer: &str, kid: &str) -> impl Iterator<Item = (&IssuerPolicy, &VerifyingKey)> {
        let positions = self.by_name.get(issuer).and_then(|keys| keys.entries.get(kid));
        let entries = positions.into_iter().flatten().map(|position| &self.entries[*position]);
        entries.filter_map(|entry| Some((&*entry.issuer, entry.keys.get(kid)?)))
    }

    /// A token of the issuer was signed with none of its keys: they are fetched soon, if they can be.
    pub(crate) fn request_keys(&self, issuer: &str) {
        self.key_requests(issuer).iter().for_each(|request| request.notify());
    }

    /// Whether keys of an issuer are at a URL that is not fetched.
    pub(crate) fn lacks_keys(&self, issuer: &str) -> bool {
        self.by_name.get(issuer).is_some_and(|keys| keys.are_not_fetched)
    }

    /// The requests for keys of an issuer.
    pub(crate) fn key_requests(&self, issuer: &str) -> &[Arc<KeyRequest>] {
        self.by_name.get(issuer).map_or(&[], |keys| &keys.unknown_key)
    }

    /// The entries of each key: they change with the owners alone, too.
    fn positions(&self) -> HashMap<&String, &HashMap<String, Vec<usize>>> {
        self.by_name.iter().map(|(issuer, keys)| (issuer, &keys.entries)).collect()
    }

    /// The number of keys.
    pub(crate) fn keys(&self) -> usize {
        self.by_name.values().flat_map(|keys| keys.entries.values()).map(Vec::len).sum()
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl PartialEq for IssuerTable {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries && self.positions() == other.positions()
    }
}
