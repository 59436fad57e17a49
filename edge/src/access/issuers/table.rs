//! The keys of all issuers, found by (`iss`, `kid`).

use std::collections::HashMap;
use std::sync::Arc;

use weir_protocol::token::{IssuerPolicy, JwkSet, VerifyingKey};

use super::fetch::KeyRequest;

/// An issuer with its keys.
#[derive(Debug, Clone)]
pub(crate) struct IssuerEntry {
    pub(crate) issuer: Arc<IssuerPolicy>,
    pub(crate) keys: Arc<JwkSet>,
    /// Notified of an unknown `kid`. `None`: the keys are not fetched.
    pub(crate) unknown_key: Option<Arc<KeyRequest>>,
}

impl PartialEq for IssuerEntry {
    fn eq(&self, other: &Self) -> bool {
        self.issuer == other.issuer && self.keys == other.keys
    }
}

/// A key that two entries claim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the key `{kid}` of the issuer {issuer} is in two entries; a key belongs to one")]
pub(crate) struct KeyConflict {
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
    /// `kid` → position of the entry.
    entries: HashMap<String, usize>,
    unknown_key: Vec<Arc<KeyRequest>>,
}

impl IssuerTable {
    /// The table, and the keys that an earlier entry has already: they are left out.
    pub(crate) fn of(entries: Vec<IssuerEntry>) -> (Self, Vec<KeyConflict>) {
        let mut by_name: HashMap<String, Keys> = HashMap::new();
        let mut conflicts = Vec::new();
        for (position, entry) in entries.iter().enumerate() {
            let issuer = &entry.issuer.issuer;
            let keys = by_name.entry(issuer.clone()).or_default();
            keys.unknown_key.extend(entry.unknown_key.clone());
            for (kid, _) in entry.keys.keys() {
                if keys.entries.contains_key(kid) {
                    conflicts.push(KeyConflict { issuer: issuer.clone(), kid: kid.to_owned() });
                } else {
                    keys.entries.insert(kid.to_owned(), position);
                }
            }
        }
        (Self { entries, by_name }, conflicts)
    }

    /// Whether tokens with this `iss` are those of an issuer, and not Weir's own.
    pub(crate) fn has(&self, issuer: &str) -> bool {
        self.by_name.contains_key(issuer)
    }

    /// The key, and what its tokens are worth. `None`: unknown; the keys are fetched soon, if they can be.
    pub(crate) fn find(&self, issuer: &str, kid: &str) -> Option<(&IssuerPolicy, &VerifyingKey)> {
        let keys = self.by_name.get(issuer)?;
        let Some(position) = keys.entries.get(kid) else {
            keys.unknown_key.iter().for_each(|request| request.notify());
            return None;
        };
        let entry = &self.entries[*position];
        Some((&entry.issuer, entry.keys.get(kid)?))
    }

    /// The requests for keys of an issuer.
    pub(crate) fn key_requests(&self, issuer: &str) -> &[Arc<KeyRequest>] {
        self.by_name.get(issuer).map_or(&[], |keys| &keys.unknown_key)
    }

    /// The number of keys.
    pub(crate) fn keys(&self) -> usize {
        self.by_name.values().map(|keys| keys.entries.len()).sum()
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl PartialEq for IssuerTable {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}
