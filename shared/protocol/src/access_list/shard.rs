//! The documents of a kind whose names are in one shard. A change makes a new version of it. Pure: revisions are arguments.
//!
//! Each document has the revision of its creation. Edges get the documents of a shard by the digest of their JSON.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::AccessListError;
use super::entry::{Entry, UniqueKey};
use crate::digest::ObjectDigest;

/// The number of shards of a kind.
pub const SHARDS: usize = 64;

/// The shard of a name: the first byte of the BLAKE3 of its text, modulo 64.
pub fn shard_of(name: &str) -> usize {
    usize::from(blake3::hash(name.as_bytes()).as_bytes()[0]) % SHARDS
}

/// The largest JSON of a shard, in bytes.
pub const MAX_SHARD_BYTES: usize = 8 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Document<T> {
    /// 0: not known.
    pub(super) created: u64,
    /// Of its JSON.
    bytes: usize,
    pub(super) entry: Arc<T>,
}

/// The documents whose names are in one shard.
#[derive(Debug, Clone)]
pub struct Shard<T: Entry> {
    pub(super) version: u64,
    pub(super) documents: BTreeMap<T::Name, Document<T>>,
    pub(super) bytes: usize,
    pub(super) unique: HashMap<UniqueKey, T::Name>,
    /// Of the documents as this version writes them.
    pub(super) digest: OnceLock<ObjectDigest>,
    /// Of the documents as they came: a later version may have written more.
    pub(super) received: Option<ObjectDigest>,
}

/// A shard as JSON.
#[derive(Serialize, Deserialize)]
struct ShardDocument<T> {
    version: u64,
    #[serde(default = "Vec::new")]
    documents: Vec<Stamped<T>>,
}

#[derive(Serialize, Deserialize)]
struct Stamped<T> {
    #[serde(default)]
    created: u64,
    entry: T,
}

impl<T: Entry> Default for Shard<T> {
    fn default() -> Self {
        Self {
            version: 0,
            documents: BTreeMap::new(),
            bytes: 0,
            unique: HashMap::new(),
            digest: OnceLock::new(),
            received: None,
        }
    }
}

impl<T: Entry> PartialEq for Shard<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.version, self.len()) == (other.version, other.len())
            && self.documents.iter().zip(&other.documents).all(|((_, one), (_, other))| {
                one.created == other.created && (Arc::ptr_eq(&one.entry, &other.entry) || one.entry == other.entry)
            })
    }
}

impl<T: Entry> Eq for Shard<T> {}

impl<T: Entry> Shard<T> {
    /// The revision of the last change. 0: there never was one.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The number of documents.
    pub fn len(&self) -> usize {
        self.documents.len()
    }

    /// Whether there are no documents.
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// The shard after a change at `version`: the document `name` is replaced by `new`, or deleted.
    #[must_use]
    pub(super) fn changed(&self, name: &T::Name, new: Option<T>, version: u64) -> Self {
        let mut shard = Self { version, digest: OnceLock::new(), received: None, ..self.clone() };
        let before = shard.documents.remove(name);
        let mut given_up = Vec::new();
        if let Some(before) = &before {
            shard.bytes -= before.bytes;
            given_up = before.entry.unique_keys();
            given_up.retain(|key| shard.unique.get(key) == Some(name));
            for key in &given_up {
                shard.unique.remove(key);
            }
        }
        if let Some(entry) = new {
            shard.insert(before.map_or(version, |before| before.created), entry);
        }
        given_up.retain(|key| !shard.unique.contains_key(key));
        if !given_up.is_empty() {
            shard.find_holders(&given_up);
        }
        shard
    }

    /// Finds the other holders of keys: two origins may have defined documents with the same one at the same time.
    fn find_holders(&mut self, keys: &[UniqueKey]) {
        for (name, document) in &self.documents {
            for key in document.entry.unique_keys().into_iter().filter(|key| keys.contains(key)) {
                self.unique.entry(key).or_insert_with(|| name.clone());
            }
        }
    }

    pub(super) fn insert(&mut self, created: u64, entry: T) -> Option<T::Name> {
        let (name, bytes) = (entry.name().clone(), serde_json::to_vec(&entry).map_or(0, |json| json.len()));
        self.bytes += bytes;
        for key in entry.unique_keys() {
            self.unique.entry(key).or_insert_with(|| name.clone());
        }
        let twice = self.documents.insert(name.clone(), Document { created, bytes, entry: entry.into() });
        twice.map(|_| name)
    }

    /// Parses the JSON of the shard `index`. Unknown fields are ignored.
    ///
    /// # Errors
    /// It is malformed, or has a document of another shard.
    pub fn parse(index: usize, json: &[u8]) -> Result<Self, AccessListError>
    where
        T: DeserializeOwned,
    {
        let read: ShardDocument<T> = crate::json::from_slice(json).map_err(|error| malformed(&error))?;
        Self::of(index, read.version, read.documents)
    }

    /// Parses the JSON of the documents of the shard `index`. Unknown fields are ignored.
    ///
    /// # Errors
    /// It is malformed, or has a document of another shard.
    pub fn parse_documents(index: usize, json: &[u8]) -> Result<Self, AccessListError>
    where
        T: DeserializeOwned,
    {
        let read: Vec<Stamped<T>> = crate::json::from_slice(json).map_err(|error| malformed(&error))?;
        Ok(Self { received: Some(ObjectDigest::of(json)), ..Self::of(index, 0, read)? })
    }

    fn of(index: usize, version: u64, documents: Vec<Stamped<T>>) -> Result<Self, AccessListError> {
        let mut shard = Self { version, ..Self::default() };
        for Stamped { created, entry } in documents {
            if shard_of(&entry.name().to_string()) != index {
                let name = entry.name();
                return Err(malformed(&format_args!("`{name}` is not in shard {index} of the {}", T::KIND)));
            }
            if let Some(name) = shard.insert(created, entry) {
                return Err(AccessListError::TwoEntries { kind: T::KIND, name: name.to_string() });
            }
        }
        Ok(shard)
    }

    /// Encodes the JSON document.
    pub fn json(&self) -> Vec<u8> {
        let document = ShardDocument { version: self.version, documents: self.stamped().collect() };
        serde_json::to_vec(&document).expect("plain data")
    }

    /// Encodes the documents alone.
    pub fn documents_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.stamped().collect::<Vec<_>>()).expect("plain data")
    }

    fn stamped(&self) -> impl Iterator<Item = Stamped<&T>> {
        self.documents.values().map(|document| Stamped { created: document.created, entry: &*document.entry })
    }

    /// The digest of [`documents_json`](Self::documents_json).
    pub fn digest(&self) -> ObjectDigest {
        *self.digest.get_or_init(|| ObjectDigest::of(&self.documents_json()))
    }

    /// Whether a digest names these documents.
    pub(super) fn is(&self, digest: &ObjectDigest) -> bool {
        self.received.as_ref() == Some(digest) || self.digest() == *digest
    }

    /// The documents, sorted by name, each with the revision of its creation. 0: it is not known.
    pub fn created(&self) -> impl Iterator<Item = (u64, &T)> {
        self.documents.values().map(|document| (document.created, &*document.entry))
    }

    /// The documents of several, and what two of them define otherwise. Of two with one name the first counts.
    pub(super) fn joined(shards: &[&Arc<Self>], conflicts: &mut Vec<String>) -> Arc<Self> {
        let with_any: Vec<_> = shards.iter().filter(|shard| !shard.is_empty()).collect();
        if let [only] = with_any[..] {
            return Arc::clone(only);
        }
        let mut joined = Self::default();
        for (name, document) in with_any.into_iter().flat_map(|shard| &shard.documents) {
            match joined.documents.get(name) {
                Some(first) if first.entry == document.entry => {}
                Some(_) => conflicts.push(format!("`{name}` of the {}", T::KIND)),
                None => {
                    joined.bytes += document.bytes;
                    joined.documents.insert(name.clone(), document.clone());
                }
            }
        }
        joined.into()
    }
}

fn malformed(error: &dyn std::fmt::Display) -> AccessListError {
    AccessListError::Malformed(error.to_string())
}
