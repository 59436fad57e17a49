//! What the kinds of entries have in common.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::AccessListError;
use crate::assignment::{Agent, Assignment};
use crate::issuer::Issuer;
use crate::name::{AssignmentName, IssuerName, NodeName};

/// The largest documents of one kind, in bytes of JSON, and the same for the entries of a file.
pub const MAX_KIND_BYTES: usize = 3 << 19;

/// What only one document of a kind may have, as a hash.
pub type UniqueKey = [u8; 16];

/// An entry of a kind.
pub trait Entry: Clone + PartialEq + Serialize {
    /// The type of its name.
    type Name: Ord + Clone + std::fmt::Debug + std::fmt::Display + Serialize + DeserializeOwned;

    /// The kind, for messages and metrics: `agents`, `assignments` or `issuers`.
    const KIND: &'static str;

    /// The most documents of a whole list, and the most entries of a file.
    const LIMIT: usize;

    /// Its name.
    fn name(&self) -> &Self::Name;

    /// What no other document may have.
    fn unique_keys(&self) -> Vec<UniqueKey> {
        Vec::new()
    }
}

impl Entry for Agent {
    type Name = NodeName;
    const KIND: &'static str = "agents";
    const LIMIT: usize = 10_000;

    fn name(&self) -> &NodeName {
        &self.name
    }
}

impl Entry for Assignment {
    type Name = AssignmentName;
    const KIND: &'static str = "assignments";
    const LIMIT: usize = 1_000;

    fn name(&self) -> &AssignmentName {
        &self.name
    }
}

impl Entry for Issuer {
    type Name = IssuerName;
    const KIND: &'static str = "issuers";
    const LIMIT: usize = 2_000;

    fn name(&self) -> &IssuerName {
        &self.name
    }

    fn unique_keys(&self) -> Vec<UniqueKey> {
        let hash = |id: &str| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(self.issuer.as_bytes()).update(b"\n").update(id.as_bytes());
            let mut key = UniqueKey::default();
            hasher.finalize_xof().fill(&mut key);
            key
        };
        self.key_ids().map(hash).collect()
    }
}

/// Entries by their names, at most `limit`.
pub(super) fn by_name<T: Entry>(
    entries: impl IntoIterator<Item = T>,
    limit: usize,
) -> Result<BTreeMap<T::Name, T>, AccessListError> {
    let mut named = BTreeMap::new();
    for entry in entries {
        super::within(named.len(), limit, T::KIND)?;
        if let Some(twice) = named.insert(entry.name().clone(), entry) {
            return Err(AccessListError::TwoEntries { kind: T::KIND, name: twice.name().to_string() });
        }
    }
    Ok(named)
}
