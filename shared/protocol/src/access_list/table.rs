//! The documents of a kind as a table of [`SHARDS`] shards. A change makes a new version of one shard, and leaves the others
//! as they are. Pure: revisions are arguments.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::AccessListError;
use super::entry::{Entry, by_name};
use super::shard::{SHARDS, Shard, shard_of};

/// The documents of a kind, and the entries of a configuration file. Clones share their shards.
#[derive(Debug, Clone)]
pub struct Table<T: Entry> {
    shards: Vec<Arc<Shard<T>>>,
    file: Arc<BTreeMap<T::Name, T>>,
}

impl<T: Entry> PartialEq for Table<T> {
    fn eq(&self, other: &Self) -> bool {
        (Arc::ptr_eq(&self.file, &other.file) || self.file == other.file)
            && self.shards.iter().zip(&other.shards).all(|(one, other)| Arc::ptr_eq(one, other) || one == other)
    }
}

impl<T: Entry> Eq for Table<T> {}

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
        let mut shards = vec![Shard { version: revision, ..Shard::default() }; SHARDS];
        for entry in documents {
            if let Some(name) = shards[shard_of(&entry.name().to_string())].insert(revision, entry) {
                return Err(AccessListError::TwoEntries { kind: T::KIND, name: name.to_string() });
            }
        }
        let file = by_name(file, usize::MAX)?.into();
        Ok(Self { shards: shards.into_iter().map(Arc::new).collect(), file })
    }

    /// The documents of several tables, with the entries of a file, and what two of them define otherwise. Of two documents
    /// with one name that of the first table counts.
    pub(super) fn joined(tables: &[&Self], file: BTreeMap<T::Name, T>, conflicts: &mut Vec<String>) -> Self {
        let at = |index: usize| tables.iter().map(|table| &table.shards[index]).collect::<Vec<_>>();
        let shards = (0..SHARDS).map(|index| Shard::joined(&at(index), conflicts)).collect();
        Self { shards, file: file.into() }
    }

    /// Takes each shard of an earlier table that has the same documents, so that what was made of it stays.
    pub(super) fn share(&mut self, earlier: &Self) {
        for (shard, earlier) in self.shards.iter_mut().zip(&earlier.shards) {
            if shard == earlier {
                shard.clone_from(earlier);
            }
        }
    }

    /// The entries of each that the other does not have.
    pub fn differing<'t>(&'t self, other: &'t Self) -> impl Iterator<Item = &'t T> {
        // A document may come forth from under an entry of the file.
        let same_file = Arc::ptr_eq(&self.file, &other.file) || self.file == other.file;
        let of = move |one: &'t Self, other: &'t Self| {
            let shards = one.shards.iter().zip(&other.shards);
            let shards = shards.filter(move |(one, other)| !(same_file && Arc::ptr_eq(one, other)));
            let documents = shards.flat_map(|(shard, _)| shard.created().map(|(_, entry)| entry));
            let documents = documents.filter(|entry| !one.is_of_file(entry.name()));
            let entries = one.file.values().filter(move |_| !same_file).chain(documents);
            entries.filter(|entry| other.get(entry.name()).is_none_or(|known| known != *entry))
        };
        of(self, other).chain(of(other, self))
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

    /// Takes the entries of the file of another table.
    pub fn set_file(&mut self, other: &Self) {
        self.file = other.file.clone();
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

    /// The entries that apply: those of the file, and the documents of other names. Both are sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.file.values().chain(self.documents().filter(|entry| !self.is_of_file(entry.name())))
    }

    /// The same in any order, without the work of sorting them.
    pub fn unsorted(&self) -> impl Iterator<Item = &T> {
        let documents = self.shards.iter().flat_map(|shard| shard.created());
        self.file.values().chain(documents.map(|(_, entry)| entry).filter(|entry| !self.is_of_file(entry.name())))
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assignment::Agent;
    use crate::digest::ObjectDigest;
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
        let documents = r#"[{"created":3,"entry":{"name":"a1","labels":{"ring":"7"}}}]"#;
        let json = format!(r#"{{"version":9,"documents":{documents}}}"#);
        let index = shard_of("a1");
        let shard = Shard::<Agent>::parse(index, json.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(shard.json()).unwrap(), json);
        let extended = json.replacen('{', r#"{"later":1,"#, 1).replacen(r#"{"created""#, r#"{"by":"x","created""#, 1);
        assert_eq!(Shard::parse(index, extended.as_bytes()), Ok(shard.clone()));
        assert_eq!(
            (shard.documents_json(), shard.digest()),
            (documents.into(), ObjectDigest::of(documents.as_bytes()))
        );
        // What a later version has written stays known by its digest, and is passed on under that of what was read.
        let later = documents.replacen('{', r#"{"later":1,"#, 1);
        let read = Shard::<Agent>::parse_documents(index, later.as_bytes()).unwrap();
        assert!([&*later, documents].iter().all(|json| read.is(&ObjectDigest::of(json.as_bytes()))));
        assert_eq!((read.digest(), read.version), (shard.digest(), 0));
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
        }
    }
}
