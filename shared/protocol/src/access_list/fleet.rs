//! What operators define beside repositories and services: agents, assignments and issuers. It travels in the access
//! list.
//!
//! Each kind has *documents*, which all origins of a cluster share, and the entries of the sending origin's file.
//! Documents have a revision that grows with each change, across loss of data too. A reader takes those of the highest
//! revision it has seen, so that an origin that is behind, or has lost its documents, never empties a list. An explicit
//! deletion has a higher revision, and does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::AccessListError;
use crate::assignment::{Agent, Assignment};
use crate::issuer::Issuer;
use crate::name::{AssignmentName, IssuerName, NodeName};

/// The largest documents of one kind, in bytes of JSON, and the same for the entries of a file.
pub const MAX_KIND_BYTES: usize = 1 << 20;

/// An entry of a kind.
pub trait Entry: Clone + PartialEq + Serialize {
    /// The type of its name.
    type Name: Ord + Clone + std::fmt::Display;

    /// The kind, for messages and metrics: `agents`, `assignments` or `issuers`.
    const KIND: &'static str;

    /// The most documents, and the most entries of a file.
    const LIMIT: usize;

    /// Its name.
    fn name(&self) -> &Self::Name;
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
    documents: BTreeMap<T::Name, T>,
    file: BTreeMap<T::Name, T>,
}

impl<T: Entry> Default for Entries<T> {
    fn default() -> Self {
        Self { revision: 0, documents: BTreeMap::new(), file: BTreeMap::new() }
    }
}

/// The entries of a kind as JSON.
#[derive(Serialize, Deserialize)]
pub(super) struct EntriesDocument<T> {
    #[serde(default)]
    revision: u64,
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
        Ok(Self { revision, documents: by_name(documents)?, file: by_name(file)? })
    }

    /// The revision of the documents. 0: none are known.
    pub fn revision(&self) -> u64 {
        self.revision
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

    /// Adds the entries of another origin: its documents take the place of these if their revision is higher, and its
    /// file's entries are added. Of two with one name the present one stays.
    fn merge(&mut self, other: &Self) -> Result<(), AccessListError> {
        self.keep_newer(other);
        for (name, entry) in &other.file {
            self.file.entry(name.clone()).or_insert_with(|| entry.clone());
        }
        super::within(self.file.len(), T::LIMIT + 1, T::KIND)
    }

    /// Takes earlier documents back if their revision is higher.
    fn keep_newer(&mut self, earlier: &Self) {
        if earlier.revision > self.revision {
            (self.revision, self.documents) = (earlier.revision, earlier.documents.clone());
        }
    }

    pub(super) fn document(&self) -> Option<EntriesDocument<T>> {
        let is_unknown = self.revision == 0 && self.documents.is_empty() && self.file.is_empty();
        (!is_unknown).then(|| EntriesDocument {
            revision: self.revision,
            documents: self.documents.values().cloned().collect(),
            file: self.file.values().cloned().collect(),
        })
    }

    pub(super) fn read(document: Option<EntriesDocument<T>>) -> Result<Self, AccessListError> {
        document.map_or_else(
            || Ok(Self::default()),
            |EntriesDocument { revision, documents, file }| Self::new(revision, documents, file),
        )
    }
}

fn by_name<T: Entry>(entries: impl IntoIterator<Item = T>) -> Result<BTreeMap<T::Name, T>, AccessListError> {
    let mut named = BTreeMap::new();
    for entry in entries {
        super::within(named.len(), T::LIMIT, T::KIND)?;
        if let Some(twice) = named.insert(entry.name().clone(), entry) {
            return Err(AccessListError::TwoEntries { kind: T::KIND, name: twice.name().to_string() });
        }
    }
    Ok(named)
}

impl Fleet {
    pub(super) fn merge(&mut self, other: &Self) -> Result<(), AccessListError> {
        self.agents.merge(&other.agents)?;
        self.assignments.merge(&other.assignments)?;
        self.issuers.merge(&other.issuers)
    }

    /// Takes back what an earlier list of the same origin had, where this one is behind: an origin that lost its
    /// documents, or cannot read them yet, says nothing about them.
    pub fn keep_newer(&mut self, earlier: &Self) {
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
