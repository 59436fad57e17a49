//! Which entry had a key of an issuer first. It keeps the key, also over restarts: a cluster that lists another's public key
//! takes over none of its agents. Pure but for the file.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};
use weir_protocol::token::VerifyingKey;
use weir_runtime::durable_file;

use super::entry::IssuerEntry;

/// The hash of a key with its `iss` and `kid` → [`IssuerEntry::source`] of its owner. At most one for each key that an entry
/// of now has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyOwners(BTreeMap<String, String>);

impl KeyOwners {
    /// Gives the new keys of these entries to the first that has them, and forgets owners that have given up a key. One whose
    /// keys were not read yet has not. Of two entries whose origins say when they were made the older has a key, so all edges
    /// agree.
    pub(crate) fn update(&mut self, entries: &[IssuerEntry]) {
        let by_source: HashMap<&str, &IssuerEntry> = entries.iter().map(|entry| (&*entry.source, entry)).collect();
        let has = |entry: &IssuerEntry| entry.keys.keys().map(|(kid, key)| name(entry, kid, key)).collect::<Vec<_>>();
        let held: HashSet<(&str, String)> =
            entries.iter().flat_map(|entry| has(entry).into_iter().map(|key| (&*entry.source, key))).collect();
        self.0.retain(|key, owner| {
            let entry = by_source.get(owner.as_str());
            entry.is_some_and(|entry| !entry.is_read() || held.contains(&(&*entry.source, key.clone())))
        });
        for entry in entries {
            for key in has(entry) {
                let owner = self.0.entry(key).or_insert_with(|| entry.source.clone());
                if by_source.get(owner.as_str()).is_some_and(|owner| entry.is_older_than(owner)) {
                    owner.clone_from(&entry.source);
                }
            }
        }
    }

    /// Whether another entry owns a key of this one.
    pub(super) fn has_other(&self, entry: &IssuerEntry, kid: &str, key: &VerifyingKey) -> bool {
        self.0.get(&name(entry, kid, key)).is_some_and(|owner| *owner != entry.source)
    }

    /// Reads the file. Without it, or when it is damaged, the order of the entries decides again. Blocks.
    pub(crate) fn read(path: &Path) -> Self {
        let read = || -> anyhow::Result<Self> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
        match read() {
            Ok(owners) => owners,
            Err(error) => {
                if path.exists() {
                    tracing::error!(file = %path.display(), %error, "the owners of issuers' keys cannot be read");
                }
                Self::default()
            }
        }
    }

    /// Replaces the file atomically and durably. Blocks.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        durable_file::replace(path, &serde_json::to_vec(self)?)
    }
}

fn name(entry: &IssuerEntry, kid: &str, key: &VerifyingKey) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in [entry.issuer.issuer.as_bytes(), kid.as_bytes(), &key.encoded()] {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher.finalize().to_hex().to_string()
}
