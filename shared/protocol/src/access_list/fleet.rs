//! What operators define beside repositories and services: agents, assignments and issuers. It travels in the access
//! list.
//!
//! Each kind has *documents*, which all origins of a cluster share, and the entries of the sending origin's file.
//! Documents have a revision that grows with each change, across loss of data too. Of each cluster a reader takes those of
//! the highest revision it has seen, so that an origin that is behind, or has lost its documents, never empties a list. An
//! explicit deletion has a higher revision, and does.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::AccessListError;
use crate::assignment::{Agent, Assignment};
use crate::issuer::Issuer;
use crate::labels::Labels;
use crate::name::{AssignmentName, ClusterId, IssuerName, NodeName};

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

/// The entries of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries<T: Entry> {
    revision: u64,
    /// Whose documents these are. Origins that do not say it are one cluster.
    cluster: Option<ClusterId>,
    documents: BTreeMap<T::Name, T>,
    file: BTreeMap<T::Name, T>,
}

impl<T: Entry> Default for Entries<T> {
    fn default() -> Self {
        Self { revision: 0, cluster: None, documents: BTreeMap::new(), file: BTreeMap::new() }
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
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    file: Vec<T>,
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
        Ok(Self { revision, cluster: None, documents: by_name(documents, T::LIMIT)?, file: by_name(file, T::LIMIT)? })
    }

    /// The revision of the documents. 0: none are known.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The cluster whose documents these are. `None`: its origins do not say it.
    pub fn cluster(&self) -> Option<&ClusterId> {
        self.cluster.as_ref()
    }

    /// The documents, sorted by name, with those that a file overrides.
    pub fn documents(&self) -> impl Iterator<Item = &T> {
        self.documents.values()
    }

    /// The entries of the file, sorted by name.
    pub fn file(&self) -> impl Iterator<Item = &T> {
        self.file.values()
    }

    /// The entries that apply. The file wins over a document of the same name.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.file.values().chain(self.documents.values().filter(|entry| !self.file.contains_key(entry.name())))
    }

    /// The entry of a name that applies.
    pub fn get(&self, name: &T::Name) -> Option<&T> {
        self.file.get(name).or_else(|| self.documents.get(name))
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
        for entries in present {
            let newest = clusters.entry(&entries.cluster).or_insert(entries);
            *newest = newest.newer(entries);
            for (name, entry) in &entries.file {
                joined.file.entry(name.clone()).or_insert_with(|| entry.clone());
            }
        }
        for entries in departed {
            if let Some(newest) = clusters.get_mut(&entries.cluster) {
                *newest = newest.newer(entries);
            }
        }
        joined.cluster = joined_id(clusters.keys().copied());
        for entries in clusters.into_values() {
            joined.revision = joined.revision.saturating_add(entries.revision);
            for (name, entry) in &entries.documents {
                let kept = joined.documents.entry(name.clone()).or_insert_with(|| entry.clone());
                if kept != entry {
                    conflicts.push(format!("`{name}` of the {}", T::KIND));
                }
            }
        }
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
            self.documents = earlier.documents.clone();
        }
    }

    fn within_limits(&self) -> Result<(), AccessListError> {
        let is_within = self.file.len() <= T::LIMIT && self.documents.len() <= T::LIMIT;
        if is_within { Ok(()) } else { Err(AccessListError::TooMany { what: T::KIND, limit: T::LIMIT }) }
    }

    pub(super) fn document(&self) -> Option<EntriesDocument<T>> {
        (*self != Self::default()).then(|| EntriesDocument {
            revision: self.revision,
            cluster: self.cluster.clone(),
            documents: self.documents.values().cloned().collect(),
            file: self.file.values().cloned().collect(),
        })
    }

    pub(super) fn read(document: Option<EntriesDocument<T>>) -> Result<Self, AccessListError> {
        document.map_or_else(
            || Ok(Self::default()),
            |EntriesDocument { revision, cluster, documents, file }| {
                Ok(Self { cluster, ..Self::new(revision, documents, file)? })
            },
        )
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

    /// Checks that a list may carry it.
    ///
    /// # Errors
    /// There are too many of a kind.
    pub(super) fn within_limits(&self) -> Result<(), AccessListError> {
        self.agents.within_limits()?;
        self.assignments.within_limits()?;
        self.issuers.within_limits()
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
            Entries { file: BTreeMap::new(), ..of.clone() }
        }
        let (agents, assignments) = (documents(&self.agents), documents(&self.assignments));
        Self { agents, assignments, issuers: Entries::default() }
    }
}
