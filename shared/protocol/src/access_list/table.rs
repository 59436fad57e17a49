//! The documents of a kind as a table of [`SHARDS`] shards. A change makes a new version of one shard, and leaves the others
//! as they are. Pure: revisions are arguments.
//!
//! Each document has the revision of its creation and that of its last change, and a shard remembers deletions with their
//! revisions. They are stored for readers of an earlier version, to be told what has changed since; edges still get whole lists.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::fleet::by_name;
use super::{AccessListError, Entries, Entry, UniqueKey};

/// The number of shards of a kind.
pub const SHARDS: usize = 64;

/// The largest JSON of a shard, in bytes.
pub const MAX_SHARD_BYTES: usize = 8 << 20;

/// The most deletions that a shard remembers. Readers of versions from before the oldest need the whole shard.
pub const MAX_DELETIONS: usize = 1_000;

/// The shard of a name: the first byte of the BLAKE3 of its text, modulo 64.
pub fn shard_of(name: &str) -> usize {
    usize::from(blake3::hash(name.as_bytes()).as_bytes()[0]) % SHARDS
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Document<T> {
    created: u64,
    changed: u64,
    /// Of its JSON.
    bytes: usize,
    entry: Arc<T>,
}

/// The documents whose names are in one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard<T: Entry> {
    version: u64,
    documents: BTreeMap<T::Name, Document<T>>,
    deleted: BTreeMap<T::Name, u64>,
    /// Deletions up to this revision may be missing in `deleted`.
    forgotten: u64,
    bytes: usize,
    unique: HashMap<UniqueKey, T::Name>,
}

/// A shard as JSON.
#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>, N: Ord + Deserialize<'de>"))]
struct ShardDocument<T, N> {
    version: u64,
    #[serde(default)]
    forgotten: u64,
    #[serde(default = "Vec::new")]
    documents: Vec<Stamped<T>>,
    #[serde(default = "BTreeMap::new")]
    deleted: BTreeMap<N, u64>,
}

#[derive(Serialize, Deserialize)]
struct Stamped<T> {
    created: u64,
    changed: u64,
    entry: T,
}

impl<T: Entry> Default for Shard<T> {
    fn default() -> Self {
        Self {
            version: 0,
            documents: BTreeMap::new(),
            deleted: BTreeMap::new(),
            forgotten: 0,
            bytes: 0,
            unique: HashMap::new(),
        }
    }
}

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
    fn changed(&self, name: &T::Name, new: Option<T>, version: u64) -> Self {
        let mut shard = Self { version, ..self.clone() };
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
        match new {
            Some(entry) => {
                shard.deleted.remove(name);
                shard.insert(before.map_or(version, |before| before.created), version, entry);
            }
            None => {
                shard.deleted.insert(name.clone(), version);
                shard.forget_deletions();
            }
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

    fn insert(&mut self, created: u64, changed: u64, entry: T) -> Option<T::Name> {
        let (name, bytes) = (entry.name().clone(), serde_json::to_vec(&entry).map_or(0, |json| json.len()));
        self.bytes += bytes;
        for key in entry.unique_keys() {
            self.unique.entry(key).or_insert_with(|| name.clone());
        }
        let twice = self.documents.insert(name.clone(), Document { created, changed, bytes, entry: entry.into() });
        twice.map(|_| name)
    }

    fn forget_deletions(&mut self) {
        while self.deleted.len() > MAX_DELETIONS {
            let oldest = self.deleted.iter().min_by_key(|(_, revision)| **revision);
            let Some((name, revision)) = oldest.map(|(name, revision)| (name.clone(), *revision)) else { return };
            self.deleted.remove(&name);
            self.forgotten = self.forgotten.max(revision);
        }
    }

    /// Parses the JSON of the shard `index`. Unknown fields are ignored.
    ///
    /// # Errors
    /// It is malformed, or has a document of another shard.
    pub fn parse(index: usize, json: &[u8]) -> Result<Self, AccessListError>
    where
        T: DeserializeOwned,
    {
        let malformed = |error: String| AccessListError::Malformed(error);
        let read: ShardDocument<T, T::Name> =
            crate::json::from_slice(json).map_err(|error| malformed(error.to_string()))?;
        let mut shard =
            Self { version: read.version, forgotten: read.forgotten, deleted: read.deleted, ..Self::default() };
        for Stamped { created, changed, entry } in read.documents {
            if shard_of(&entry.name().to_string()) != index {
                return Err(malformed(format!("`{}` is not in shard {index} of the {}", entry.name(), T::KIND)));
            }
            if let Some(name) = shard.insert(created, changed, entry) {
                return Err(AccessListError::TwoEntries { kind: T::KIND, name: name.to_string() });
            }
        }
        shard.forget_deletions();
        Ok(shard)
    }

    /// Encodes the JSON document.
    pub fn json(&self) -> Vec<u8> {
        let documents = self.documents.values().map(|document| Stamped {
            created: document.created,
            changed: document.changed,
            entry: &*document.entry,
        });
        let document = ShardDocument {
            version: self.version,
            forgotten: self.forgotten,
            documents: documents.collect(),
            deleted: self.deleted.iter().map(|(name, revision)| (name, *revision)).collect(),
        };
        serde_json::to_vec(&document).expect("plain data")
    }
}

/// The documents of a kind, and the entries of a configuration file. Clones share their shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table<T: Entry> {
    shards: Vec<Arc<Shard<T>>>,
    file: Arc<BTreeMap<T::Name, T>>,
}

impl<T: Entry> Default for Table<T> {
    fn default() -> Self {
        Self { shards: vec![Arc::default(); SHARDS], file: Arc::default() }
    }
}

impl<T: Entry> Table<T> {
    /// Documents that were all created at `revision`, with the entries of a file.
    ///
    /// # Errors
    /// Two have one name.
    pub fn new(
        revision: u64,
        documents: impl IntoIterator<Item = T>,
        file: impl IntoIterator<Item = T>,
    ) -> Result<Self, AccessListError> {
        let empty = || Shard { version: revision, forgotten: revision, ..Shard::default() };
        let mut shards: Vec<_> = (0..SHARDS).map(|_| empty()).collect();
        for entry in documents {
            if let Some(name) = shards[shard_of(&entry.name().to_string())].insert(revision, revision, entry) {
                return Err(AccessListError::TwoEntries { kind: T::KIND, name: name.to_string() });
            }
        }
        let file = by_name(file, usize::MAX)?.into();
        Ok(Self { shards: shards.into_iter().map(Arc::new).collect(), file })
    }

    /// The highest version of a shard. It grows with each change. 0: there never were documents.
    pub fn revision(&self) -> u64 {
        self.shards.iter().map(|shard| shard.version).max().unwrap_or_default()
    }

    /// The shard after a change at `now` (Unix milliseconds), with its index: the document `name` is replaced by `new`, or
    /// deleted. Its version is above all versions of the table.
    pub fn changed(&self, name: &T::Name, new: Option<T>, now: u64) -> (usize, Shard<T>) {
        let index = shard_of(&name.to_string());
        (index, self.shards[index].changed(name, new, now.max(self.revision() + 1)))
    }

    /// The shard `index` again, with a version above all others of the table, unless it has one. Readers of whole lists take
    /// that of the highest version, so it must be one that has this shard.
    pub fn above_others(&self, index: usize) -> Option<Shard<T>> {
        let others = self.shards.iter().enumerate().filter(|(other, _)| *other != index);
        let highest = others.map(|(_, shard)| shard.version).max().unwrap_or_default();
        let shard = &self.shards[index];
        (shard.version <= highest).then(|| Shard { version: highest + 1, ..Shard::clone(shard) })
    }

    /// The shards, each at its index.
    pub fn shards(&self) -> &[Arc<Shard<T>>] {
        &self.shards
    }

    /// Replaces a shard.
    pub fn set_shard(&mut self, index: usize, shard: impl Into<Arc<Shard<T>>>) {
        self.shards[index] = shard.into();
    }

    /// Takes the shards of another table, and keeps the file. Returns whether any of them is another one.
    pub fn take_shards(&mut self, other: &Self) -> bool {
        let is_other = self.shards.iter().zip(&other.shards).any(|(one, other)| !Arc::ptr_eq(one, other));
        self.shards.clone_from(&other.shards);
        is_other
    }

    /// Replaces the entries of the file.
    pub fn set_file(&mut self, entries: &Entries<T>) {
        self.file = Arc::new(entries.file().map(|entry| (entry.name().clone(), entry.clone())).collect());
    }

    /// The number of documents.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    /// Whether there are no documents.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the documents as JSON.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.bytes).sum()
    }

    /// The entries of the file, sorted by name.
    pub fn file(&self) -> impl ExactSizeIterator<Item = &T> {
        self.file.values()
    }

    /// Whether the file defines a name.
    pub fn is_of_file(&self, name: &T::Name) -> bool {
        self.file.contains_key(name)
    }

    /// A document, also one that the file overrides.
    pub fn document(&self, name: &T::Name) -> Option<&T> {
        self.shards[shard_of(&name.to_string())].documents.get(name).map(|document| &*document.entry)
    }

    /// The documents, sorted by name, with those that the file overrides.
    pub fn documents(&self) -> impl ExactSizeIterator<Item = &T> {
        let all = self.shards.iter().flat_map(|shard| &shard.documents);
        let mut sorted: Vec<_> = all.collect();
        sorted.sort_unstable_by_key(|(name, _)| *name);
        sorted.into_iter().map(|(_, document)| &*document.entry)
    }

    /// The entries that apply: those of the file, and the documents of other names.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.file.values().chain(self.documents().filter(|entry| !self.is_of_file(entry.name())))
    }

    /// The entry of a name that applies.
    pub fn get(&self, name: &T::Name) -> Option<&T> {
        self.file.get(name).or_else(|| self.document(name))
    }

    /// Another document that has a unique key of this one.
    pub fn holder_of_key(&self, entry: &T) -> Option<&T> {
        let keys = entry.unique_keys();
        let holders = self.shards.iter().flat_map(|shard| keys.iter().filter_map(|key| shard.unique.get(key)));
        let other = holders.into_iter().find(|name| *name != entry.name())?;
        self.document(other)
    }

    /// The whole list, for readers that know no shards.
    ///
    /// # Errors
    /// There are more entries than such a list may have.
    pub fn list(&self) -> Result<Entries<T>, AccessListError> {
        Entries::new(self.revision(), self.documents().cloned(), self.file().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assignment::Agent;
    use crate::issuer::Issuer;
    use proptest::prelude::*;

    fn agent(name: usize, ring: u8) -> Agent {
        serde_json::from_value(
            serde_json::json!({ "name": format!("a{name}"), "labels": { "ring": ring.to_string() } }),
        )
        .unwrap()
    }

    fn edited(table: &Table<Agent>, name: usize, ring: Option<u8>, now: u64) -> Table<Agent> {
        let (mut table, name) = (table.clone(), (agent(name, 0).name, ring.map(|ring| agent(name, ring))));
        let (index, shard) = table.changed(&name.0, name.1, now);
        table.set_shard(index, shard);
        table
    }

    #[test]
    fn the_documented_hash_finds_the_shard() {
        assert_eq!(["cluster-1", "cluster-2", "a"].map(shard_of), [28, 16, 23]);
    }

    #[test]
    fn a_shard_has_exactly_these_bytes() {
        let json = r#"{"version":9,"forgotten":2,"documents":[{"created":3,"changed":9,"entry":{"name":"a1","labels":{"ring":"7"}}}],"deleted":{"a2":8}}"#;
        let index = shard_of("a1");
        let shard = Shard::<Agent>::parse(index, json.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(shard.json()).unwrap(), json);
        let extended = json.replacen('{', r#"{"later":1,"#, 1).replacen(r#"{"created""#, r#"{"by":"x","created""#, 1);
        assert_eq!(Shard::parse(index, extended.as_bytes()), Ok(shard));
        let elsewhere = Shard::<Agent>::parse((index + 1) % SHARDS, json.as_bytes()).unwrap_err();
        assert!(elsewhere.to_string().contains("`a1` is not in shard"), "{elsewhere}");
        for whole in [r#"{"revision":1,"documents":[]}"#, "{}", ""] {
            assert!(Shard::<Agent>::parse(0, whole.as_bytes()).is_err(), "{whole}");
        }
    }

    #[test]
    fn a_shard_gets_above_all_others_once() {
        let mut table = edited(&edited(&Table::default(), 1, Some(1), 9), 2, Some(1), 7);
        let [one, two] = ["a1", "a2"].map(shard_of);
        assert!(one != two && table.above_others(two).is_none());
        let again = table.above_others(one).unwrap();
        assert_eq!((again.version(), &again.documents), (11, &table.shards[one].documents));
        table.set_shard(one, again);
        assert!(table.above_others(one).is_none() && table.above_others(two).unwrap().version() == 12);
    }

    #[test]
    fn deletions_are_remembered_up_to_a_bound() {
        let mut shard = Shard::<Agent>::default();
        for revision in 1..=MAX_DELETIONS + 2 {
            shard = shard.changed(&agent(revision, 0).name, None, revision as u64);
        }
        assert_eq!((shard.deleted.len(), shard.forgotten), (MAX_DELETIONS, 2));
    }

    #[test]
    fn the_holder_of_a_key_is_found() {
        let issuer = |name: &str, kids: &[&str]| -> Issuer {
            let keys: Vec<_> = kids.iter().map(|kid| serde_json::json!({ "kid": kid })).collect();
            serde_json::from_value(serde_json::json!({ "name": name, "issuer": "https://i", "audience": "weir",
                "subjects": ["s"], "jwks": { "keys": keys }, "agent": "a", "services": ["*"] }))
            .unwrap()
        };
        let mut table = Table::new(1, [issuer("one", &["k1", "k2"])], []).unwrap();
        let holder = |table: &Table<Issuer>, entry: &Issuer| table.holder_of_key(entry).map(|it| it.name.to_string());
        assert_eq!(holder(&table, &issuer("two", &["k0", "k2"])).as_deref(), Some("one"));
        assert_eq!(holder(&table, &issuer("one", &["k2"])), None, "it is its own");
        let (index, shard) = table.changed(&"one".parse().unwrap(), Some(issuer("one", &["k1"])), 2);
        table.set_shard(index, shard);
        assert_eq!(holder(&table, &issuer("two", &["k2"])), None, "it was given up");
        assert_eq!(holder(&table, &issuer("two", &["k1"])).as_deref(), Some("one"));

        // Two origins defined another with the same key at the same time, in the same shard.
        let mut names = (0..).map(|number| format!("n{number}"));
        let twin = names.find(|name| shard_of(name) == index).unwrap();
        for (removed, left) in [("one", &*twin), (&*twin, "one")] {
            let mut table = Table::new(1, [issuer("one", &["k1"]), issuer(&twin, &["k1"])], []).unwrap();
            let (index, shard) = table.changed(&removed.parse().unwrap(), None, 2);
            table.set_shard(index, shard);
            assert_eq!(holder(&table, &issuer("two", &["k1"])).as_deref(), Some(left));
        }
    }

    proptest! {
        #[test]
        fn any_edits_leave_the_table_that_a_map_has(
            edits in proptest::collection::vec((0usize..20, proptest::option::of(any::<u8>()), 0u64..50), 0..60),
        ) {
            let (mut table, mut expected, mut created) = (Table::default(), BTreeMap::new(), BTreeMap::new());
            for (name, ring, now) in edits {
                let before = table.revision();
                table = edited(&table, name, ring, now);
                prop_assert!(table.revision() > before, "also when a clock stands");
                match ring {
                    Some(ring) => {
                        expected.insert(agent(name, 0).name, agent(name, ring));
                        created.entry(agent(name, 0).name).or_insert(table.revision());
                    }
                    None => {
                        expected.remove(&agent(name, 0).name);
                        created.remove(&agent(name, 0).name);
                    }
                }
            }
            prop_assert!(table.iter().eq(expected.values()));
            prop_assert_eq!(table.len(), expected.len());
            let stamps = table.shards.iter().flat_map(|shard| &shard.documents);
            let stamps: BTreeMap<_, _> = stamps.map(|(name, it)| (name.clone(), it.created)).collect();
            prop_assert_eq!(stamps, created);
            let bytes: usize = expected.values().map(|agent| serde_json::to_vec(agent).unwrap().len()).sum();
            prop_assert_eq!(table.bytes(), bytes);
            for (index, shard) in table.shards().iter().enumerate() {
                prop_assert_eq!(&Shard::parse(index, &shard.json()).unwrap(), &**shard);
            }
            prop_assert!(table.list().unwrap().documents().eq(expected.values()));
        }
    }
}
