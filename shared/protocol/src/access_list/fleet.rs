//! What operators define beside repositories and services: agents, assignments and issuers. It travels in the access
//! list.
//!
//! Each kind has *documents*, which all origins of a cluster share, and the entries of the sending origin's file.
//! Documents have a revision that grows with each change, across loss of data too. Of each cluster a reader takes those of
//! the highest revision it has seen, so that an origin that is behind, or has lost its documents, never empties a list. An
//! explicit deletion has a higher revision, and does.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::AccessListError;
use super::entry::{Entry, by_name};
use super::shard::{MAX_SHARD_BYTES, SHARDS, Shard};
use super::table::Table;
use crate::assignment::{Agent, Assignment};
use crate::digest::ObjectDigest;
use crate::issuer::Issuer;
use crate::labels::Labels;
use crate::name::{ClusterId, NodeName};

/// Agents, assignments and issuers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fleet {
    /// The agents.
    pub agents: Entries<Agent>,
    /// The assignments.
    pub assignments: Entries<Assignment>,
    /// The issuers.
    pub issuers: Entries<Issuer>,
}

/// The entries of one kind. Clones share them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries<T: Entry> {
    revision: u64,
    /// Whose documents these are. Origins that do not say it are one cluster.
    cluster: Option<ClusterId>,
    table: Table<T>,
    /// The shards of which only the digest is known, by their index.
    lacking: BTreeMap<usize, ObjectDigest>,
}

impl<T: Entry> Default for Entries<T> {
    fn default() -> Self {
        Self { revision: 0, cluster: None, table: Table::default(), lacking: BTreeMap::new() }
    }
}

/// The entries of a kind as JSON.
#[derive(Serialize, Deserialize)]
pub(super) struct EntriesDocument<T> {
    #[serde(default)]
    revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterId>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    documents: Vec<T>,
    /// The digests of all shards, in place of the documents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shards: Option<Vec<ObjectDigest>>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    file: Vec<T>,
}

/// How a list has its documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Representation {
    /// All documents.
    Whole,
    /// The digests of shards.
    Shards,
}

impl<T: Entry> Entries<T> {
    /// Entries of a revision: 0 without documents, else max(last + 1, Unix milliseconds of the change).
    ///
    /// # Errors
    /// Two have one name, or there are too many.
    pub fn new(
        revision: u64,
        documents: impl IntoIterator<Item = T>,
        file: impl IntoIterator<Item = T>,
    ) -> Result<Self, AccessListError> {
        let (documents, file) = (by_name(documents, T::LIMIT)?, by_name(file, T::LIMIT)?);
        let table = Table::new(0, documents.into_values(), file.into_values())?;
        Ok(Self { revision, table, ..Self::default() })
    }

    /// Those of a table.
    pub fn of(table: &Table<T>) -> Self {
        Self { revision: table.revision(), table: table.clone(), ..Self::default() }
    }

    /// The revision of the documents. 0: none are known.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The cluster whose documents these are. `None`: its origins do not say it.
    pub fn cluster(&self) -> Option<&ClusterId> {
        self.cluster.as_ref()
    }

    /// The documents, and the entries of the file.
    pub fn table(&self) -> &Table<T> {
        &self.table
    }

    /// The documents, sorted by name, with those that a file overrides.
    pub fn documents(&self) -> impl ExactSizeIterator<Item = &T> {
        self.table.documents()
    }

    /// The entries of the file, sorted by name.
    pub fn file(&self) -> impl ExactSizeIterator<Item = &T> {
        self.table.file()
    }

    /// The entries that apply. The file wins over a document of the same name.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.table.iter()
    }

    /// The entry of a name that applies.
    pub fn get(&self, name: &T::Name) -> Option<&T> {
        self.table.get(name)
    }

    /// The digests of the shards that are not known yet.
    pub(super) fn lacking(&self) -> impl Iterator<Item = ObjectDigest> {
        self.lacking.values().copied()
    }

    /// Takes the shards that it lacks from others that have them.
    pub(super) fn fill_from(&mut self, known: &Self) {
        let Self { table, lacking, .. } = self;
        lacking.retain(|index, digest| {
            let shard = &known.table.shards()[*index];
            let is_it = !known.lacking.contains_key(index) && shard.is(digest);
            if is_it {
                table.set_shard(*index, shard.clone());
            }
            !is_it
        });
    }

    /// Adds a shard that it lacks.
    pub(super) fn add_shard(&mut self, digest: &ObjectDigest, json: &[u8]) -> Result<(), AccessListError>
    where
        T: DeserializeOwned,
    {
        let indices: Vec<_> = self.lacking.iter().filter(|(_, of)| *of == digest).map(|(index, _)| *index).collect();
        for index in indices {
            if json.len() > MAX_SHARD_BYTES {
                return Err(AccessListError::TooLarge(json.len()));
            }
            self.table.set_shard(index, Shard::parse_documents(index, json)?);
            self.lacking.remove(&index);
        }
        Ok(())
    }

    /// The shard that a digest names.
    pub(super) fn shard_json(&self, digest: &ObjectDigest) -> Option<Vec<u8>> {
        self.table.shards().iter().find(|shard| shard.digest() == *digest).map(|shard| shard.documents_json())
    }

    /// Takes what an earlier list has of the same documents, so that what was made of it stays.
    pub(super) fn share(&mut self, earlier: &Self) {
        self.table.share(&earlier.table);
    }

    /// What several origins have together: see [`Fleet::join`]. `conflicts` gets what two clusters define otherwise.
    fn join<'a>(
        present: impl Iterator<Item = &'a Self>,
        departed: impl Iterator<Item = &'a Self>,
        conflicts: &mut Vec<String>,
    ) -> Self
    where
        T: 'a,
    {
        let (mut joined, mut clusters) = (Self::default(), BTreeMap::<_, &Self>::new());
        let mut file = BTreeMap::new();
        for entries in present {
            let newest = clusters.entry(&entries.cluster).or_insert(entries);
            *newest = newest.newer(entries);
            for entry in entries.file() {
                file.entry(entry.name().clone()).or_insert_with(|| entry.clone());
            }
        }
        for entries in departed {
            if let Some(newest) = clusters.get_mut(&entries.cluster) {
                *newest = newest.newer(entries);
            }
        }
        joined.cluster = joined_id(clusters.keys().copied());
        joined.revision = clusters.values().fold(0, |sum, entries| sum.saturating_add(entries.revision));
        let tables: Vec<_> = clusters.into_values().map(|entries| &entries.table).collect();
        joined.table = Table::joined(&tables, file, conflicts);
        joined
    }

    fn newer<'a>(&'a self, other: &'a Self) -> &'a Self {
        if other.revision > self.revision { other } else { self }
    }

    /// Takes earlier documents of the same origin back if their revision is higher. An origin that has joined another
    /// cluster says nothing about its earlier one; without documents it may have lost them.
    fn keep_newer(&mut self, earlier: &Self) {
        let may_be_behind = self.revision == 0 || self.cluster == earlier.cluster;
        if may_be_behind && earlier.revision > self.revision {
            (self.revision, self.cluster) = (earlier.revision, earlier.cluster.clone());
            self.table.take_shards(&earlier.table);
            self.lacking.clone_from(&earlier.lacking);
        }
        // What was made of documents that are the same stays.
        self.table.share(&earlier.table);
    }

    /// Leaves the documents out if a whole list cannot have them, or has no room for so many bytes. Returns whether it did,
    /// and takes what is left from the room.
    fn fit(&mut self, room: &mut usize) -> bool {
        let of_file: usize = self.file().map(|entry| serde_json::to_vec(entry).map_or(0, |json| json.len())).sum();
        // With a comma for each.
        let bytes = self.table.bytes() + self.table.len() + of_file + self.file().len();
        let is_left_out = self.table.len() > T::LIMIT || bytes > *room;
        if is_left_out {
            self.revision = 0;
            self.table.take_shards(&Table::default());
        }
        *room = room.saturating_sub(if is_left_out { of_file } else { bytes });
        is_left_out
    }

    pub(super) fn document(&self, representation: Representation) -> Option<EntriesDocument<T>> {
        (*self != Self::default()).then(|| {
            let digest = |(index, shard): (usize, &Arc<Shard<T>>)| {
                self.lacking.get(&index).copied().unwrap_or_else(|| shard.digest())
            };
            let (documents, shards) = match representation {
                Representation::Whole => (self.documents().cloned().collect(), None),
                Representation::Shards => {
                    (Vec::new(), Some(self.table.shards().iter().enumerate().map(digest).collect()))
                }
            };
            let file = self.file().cloned().collect();
            EntriesDocument { revision: self.revision, cluster: self.cluster.clone(), documents, shards, file }
        })
    }

    pub(super) fn read(document: Option<EntriesDocument<T>>) -> Result<Self, AccessListError> {
        let Some(EntriesDocument { revision, cluster, documents, shards, file }) = document else {
            return Ok(Self::default());
        };
        let lacking: BTreeMap<_, _> = shards.into_iter().flatten().enumerate().collect();
        if !lacking.is_empty() && (lacking.len() != SHARDS || !documents.is_empty()) {
            let error = format!("the {} must have the digests of {SHARDS} shards, or documents", T::KIND);
            return Err(AccessListError::Malformed(error));
        }
        let mut entries = Self { cluster, lacking, ..Self::new(revision, documents, file)? };
        // Those without documents are known.
        entries.fill_from(&Self::default());
        Ok(entries)
    }
}

impl Entries<Issuer> {
    /// Leaves out the issuers whose keys are at a URL: who reads whole lists knows only keys, and would reject the list.
    fn leave_out_urls(&mut self) {
        fn with_keys<'i>(issuers: impl Iterator<Item = &'i Issuer>) -> Vec<Issuer> {
            issuers.filter(|issuer| !issuer.has_url()).cloned().collect()
        }
        if self.table.unsorted().any(Issuer::has_url) {
            let table = Table::new(0, with_keys(self.documents()), with_keys(self.file()));
            self.table = table.expect("the names differ, as before");
        }
    }
}

/// The id of clusters together: that of the only one, or a hash of all.
fn joined_id<'a>(clusters: impl ExactSizeIterator<Item = &'a Option<ClusterId>>) -> Option<ClusterId> {
    let several = clusters.len() > 1;
    let mut hasher = blake3::Hasher::new();
    let mut only = None;
    for cluster in clusters {
        let text = cluster.as_ref().map_or("", ClusterId::as_str);
        hasher.update(text.as_bytes()).update(b"\n");
        only.clone_from(cluster);
    }
    if several { Some(hasher.finalize().to_hex().parse().expect("hex digits are an id")) } else { only }
}

impl Fleet {
    /// What several origins have together, and a phrase for each document that two clusters define otherwise.
    ///
    /// Of each cluster, the documents of the highest revision that one of its origins has sent are used. What origins that
    /// have `departed` sent counts only if an origin of their cluster is `present`. The result has the documents of all
    /// clusters. If two clusters define one name, the document of the cluster with the lower id is used; if two files do,
    /// the entry of the first origin.
    ///
    /// Several clusters together have an id of their own, and the sum of the revisions, which grows with each change. So a
    /// reader never takes them for the documents of one, nor compares their revision with another's.
    pub fn join<'a>(
        present: impl Iterator<Item = &'a Self>,
        departed: impl Iterator<Item = &'a Self>,
    ) -> (Self, Vec<String>) {
        let (present, departed): (Vec<_>, Vec<_>) = (present.collect(), departed.collect());
        let mut conflicts = Vec::new();
        macro_rules! join {
            ($kind:ident) => {
                Entries::join(
                    present.iter().map(|fleet| &fleet.$kind),
                    departed.iter().map(|fleet| &fleet.$kind),
                    &mut conflicts,
                )
            };
        }
        let fleet = Self { agents: join!(agents), assignments: join!(assignments), issuers: join!(issuers) };
        (fleet, conflicts)
    }

    /// Takes what an earlier one has of the same documents, so that what was made of it stays.
    pub fn share(&mut self, earlier: &Self) {
        self.agents.share(&earlier.agents);
        self.assignments.share(&earlier.assignments);
        self.issuers.share(&earlier.issuers);
    }

    /// The documents of the shard that a digest names, as JSON.
    pub fn shard_json(&self, digest: &ObjectDigest) -> Option<Vec<u8>> {
        let of_agents = self.agents.shard_json(digest).or_else(|| self.assignments.shard_json(digest));
        of_agents.or_else(|| self.issuers.shard_json(digest))
    }

    /// The bytes of all documents as JSON.
    pub fn bytes(&self) -> usize {
        self.agents.table.bytes() + self.assignments.table.bytes() + self.issuers.table.bytes()
    }

    /// The labels of an agent: those of its token, and those that operators assert, which win.
    pub fn labels_of(&self, agent: &NodeName, of_token: &Labels) -> Labels {
        let asserted = self.agents.get(agent).map(|entry| &entry.labels);
        asserted.map_or_else(|| of_token.clone(), |asserted| of_token.clone().overridden_by(asserted))
    }

    /// Says to which cluster the documents belong.
    #[must_use]
    pub fn of_cluster(mut self, cluster: &ClusterId) -> Self {
        self.agents.cluster = Some(cluster.clone());
        self.assignments.cluster = Some(cluster.clone());
        self.issuers.cluster = Some(cluster.clone());
        self
    }

    /// Checks that a list may carry its files.
    ///
    /// # Errors
    /// There are too many entries of a kind.
    pub(super) fn files_within_limits(&self) -> Result<(), AccessListError> {
        fn check<T: Entry>(entries: &Entries<T>) -> Result<(), AccessListError> {
            let is_within = entries.file().len() <= T::LIMIT;
            if is_within { Ok(()) } else { Err(AccessListError::TooMany { what: T::KIND, limit: T::LIMIT }) }
        }
        check(&self.agents)?;
        check(&self.assignments)?;
        check(&self.issuers)
    }

    /// Leaves out the documents of kinds that a whole list cannot have, and names these. Readers keep those that they have. Of the
    /// issuers those are left out whose keys are at a URL.
    pub(super) fn fit(&mut self, mut room: usize) -> Vec<&'static str> {
        self.issuers.leave_out_urls();
        // Issuers come first: without them agents are not let in, and a removed one would be trusted on.
        let issuers = self.issuers.fit(&mut room).then_some(Issuer::KIND);
        let agents = self.agents.fit(&mut room).then_some(Agent::KIND);
        let assignments = self.assignments.fit(&mut room).then_some(Assignment::KIND);
        issuers.into_iter().chain(agents).chain(assignments).collect()
    }

    /// Takes back what an earlier list of the same origin had, where this one is behind: an origin that lost its
    /// documents, or cannot read them yet, says nothing about them.
    pub(super) fn keep_newer(&mut self, earlier: &Self) {
        self.agents.keep_newer(&earlier.agents);
        self.assignments.keep_newer(&earlier.assignments);
        self.issuers.keep_newer(&earlier.issuers);
    }

    /// What stays when the origin that sent it is gone: agents and assignments that all origins share. Neither keys nor
    /// the entries of its file.
    pub(super) fn shared(&self) -> Self {
        fn documents<T: Entry>(of: &Entries<T>) -> Entries<T> {
            let mut table = Table::default();
            table.take_shards(&of.table);
            Entries { table, ..of.clone() }
        }
        let (agents, assignments) = (documents(&self.agents), documents(&self.assignments));
        Self { agents, assignments, issuers: Entries::default() }
    }
}
