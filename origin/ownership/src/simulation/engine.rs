//! A fake record store with versions. It counts requests and shows the checker each write of a repository.

use std::collections::BTreeMap;

use weir_protocol::name::{NodeName, ServiceName};

use super::super::names::{Entry, Names};
use super::super::records::{Claim, NodeRecord, SessionId};
use super::check::Checker;

/// The version of a record, never used again.
pub(super) type Version = u64;

/// The record of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) claim: Claim,
    pub(super) sequence: u64,
    pub(super) generation: u64,
    /// The session that published the generation.
    pub(super) author: SessionId,
    /// Identifies the publication: stands for its content.
    pub(super) content: u64,
    pub(super) rows: BTreeMap<usize, Row>,
}

/// A service in the record of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) generation: u64,
    pub(super) state: RowState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowState {
    Live,
    Withdrawn { to: usize },
    Gone,
}

#[derive(Debug, Clone)]
pub(super) enum Operation {
    ReadNode(NodeName),
    WriteNode { expect: Option<Version>, record: NodeRecord, wall: i64 },
    ReadNodes,
    DeleteNode(NodeRecord),
    ListRepositories,
    ReadRepository(usize),
    WriteRepository { repository: usize, expect: Option<Version>, body: Body },
    ReadNames(usize),
    WriteNames { bucket: usize, expect: Option<Version>, names: Names },
}

#[derive(Debug, Clone)]
pub(super) enum Reply {
    Node(Option<(NodeRecord, Version)>),
    /// With the wall clock of each writer.
    Nodes(Vec<(NodeRecord, i64)>),
    Repositories(Vec<(usize, Version)>),
    Repository(usize, Option<(Body, Version)>),
    Names(Option<(Names, Version)>),
    Written(Version),
    Deleted,
    Conflict,
    Unknown,
}

/// Requests as a bucket counts them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) node_puts: u64,
    pub(super) node_gets: u64,
    pub(super) node_lists: u64,
    pub(super) repository_puts: u64,
    pub(super) repository_gets: u64,
    pub(super) repository_lists: u64,
}

#[derive(Debug, Default)]
pub(super) struct Engine {
    nodes: BTreeMap<NodeName, (NodeRecord, Version, i64)>,
    repositories: BTreeMap<usize, (Body, Version)>,
    pub(super) names: BTreeMap<usize, (Names, Version)>,
    last: Version,
    /// Any writer may replace any record of a repository.
    pub(super) ignores_versions: bool,
    pub(super) counts: Counts,
    /// What each node knows of the records of nodes: only those that changed are read again.
    listed: BTreeMap<usize, BTreeMap<NodeName, Version>>,
}

/// The names records.
pub(super) const BUCKETS: usize = 2;

/// The most keys in one answer of a listing.
const KEYS_PER_LISTING: u64 = 1000;

impl Engine {
    pub(super) fn repository(&self, repository: usize) -> Option<&Body> {
        self.repositories.get(&repository).map(|(body, _)| body)
    }

    pub(super) fn entry(&self, name: usize) -> Option<&Entry> {
        self.names.get(&(name % BUCKETS))?.0.get(&service(name))
    }

    /// I7: who has a service that may be published has its name.
    pub(super) fn check_names(&self, checker: &mut Checker) {
        for (repository, body) in self.bodies() {
            for name in body.rows.keys().copied().filter(|name| live(body, *name)) {
                let has_it = matches!(self.entry(name), Some(Entry::Held { repository: holder, passed_to: None, .. })
                    if holder.as_str() == format!("r{repository}"));
                checker.require(has_it, || format!("I7: r{repository} may publish s{name}: {:?}", self.entry(name)));
            }
        }
    }

    pub(super) fn bodies(&self) -> impl Iterator<Item = (usize, &Body)> {
        self.repositories.iter().map(|(index, (body, _))| (*index, body))
    }

    pub(super) fn apply(&mut self, by: usize, own: &NodeName, operation: Operation, checker: &mut Checker) -> Reply {
        match operation {
            Operation::ReadNode(node) => {
                self.counts.node_gets += 1;
                Reply::Node(self.nodes.get(&node).map(|(record, version, _)| (record.clone(), *version)))
            }
            Operation::ReadNodes => {
                self.counts.node_lists += 1;
                let known = self.listed.entry(by).or_default();
                for (node, (_, version, _)) in &self.nodes {
                    // It knows its own record.
                    if known.insert(node.clone(), *version) != Some(*version) && node != own {
                        self.counts.node_gets += 1;
                    }
                }
                Reply::Nodes(self.nodes.values().map(|(record, _, wall)| (record.clone(), *wall)).collect())
            }
            Operation::DeleteNode(record) => {
                // A bucket compares versions some time before it deletes: the node may have written since.
                checker.deleted_nodes += u64::from(self.nodes.remove(&record.node).is_some());
                Reply::Deleted
            }
            Operation::ListRepositories => {
                self.counts.repository_lists += (self.repositories.len() as u64).div_ceil(KEYS_PER_LISTING).max(1);
                Reply::Repositories(self.repositories.iter().map(|(index, (_, version))| (*index, *version)).collect())
            }
            Operation::ReadRepository(repository) => {
                self.counts.repository_gets += 1;
                Reply::Repository(repository, self.repositories.get(&repository).cloned())
            }
            Operation::WriteNode { expect, record, wall } => {
                self.counts.node_puts += 1;
                let stored = self.nodes.get(&record.node);
                if stored.map(|(_, version, _)| *version) != expect {
                    return Reply::Conflict;
                }
                checker.node_written(stored.map(|(record, ..)| record), &record);
                self.last += 1;
                self.nodes.insert(record.node.clone(), (record, self.last, wall));
                Reply::Written(self.last)
            }
            Operation::WriteRepository { repository, expect, body } => {
                self.counts.repository_puts += 1;
                let stored = self.repositories.get(&repository);
                if stored.map(|(_, version)| *version) != expect && !self.ignores_versions {
                    return Reply::Conflict;
                }
                checker.repository_written(repository, stored.map(|(body, _)| body), &body);
                checker.services_written(repository, stored.map(|(body, _)| body), &body);
                self.last += 1;
                self.repositories.insert(repository, (body, self.last));
                self.check_names(checker);
                Reply::Written(self.last)
            }
            Operation::ReadNames(bucket) => Reply::Names(self.names.get(&bucket).cloned()),
            Operation::WriteNames { bucket, expect, names } => {
                if self.names.get(&bucket).map(|(_, version)| *version) != expect {
                    return Reply::Conflict;
                }
                self.last += 1;
                self.names.insert(bucket, (names, self.last));
                self.check_names(checker);
                Reply::Written(self.last)
            }
        }
    }
}

pub(super) fn service(index: usize) -> ServiceName {
    format!("s{index}").parse().expect("a name")
}

fn live(body: &Body, name: usize) -> bool {
    body.rows.get(&name).is_some_and(|row| row.state == RowState::Live)
}
