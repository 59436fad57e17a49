//! What must hold at each step.

use std::collections::{BTreeMap, BTreeSet};

use super::super::records::NodeRecord;
use super::engine::{Body, RowState};

#[derive(Debug, Default)]
pub(super) struct Checker {
    /// The first thing that was wrong.
    pub(super) violation: Option<String>,
    histories: BTreeMap<usize, History>,
    /// The last fence of each repository.
    fences: BTreeMap<usize, u64>,
    /// Changes of the owner of a repository, without first owners.
    pub(super) changes: u64,
    pub(super) publications: u64,
    pub(super) service_publications: u64,
    pub(super) deleted_nodes: u64,
    /// The last published generation of each service.
    pub(super) last_of_service: BTreeMap<usize, u64>,
}

/// The publications of one repository.
#[derive(Debug, Default)]
struct History {
    /// The content of each generation in the record.
    generations: BTreeMap<u64, u64>,
    /// The last generation that its owner confirmed to readers.
    shown: u64,
    /// Contents of which a caller was told that they are not published.
    failed: BTreeSet<u64>,
}

impl Checker {
    pub(super) fn violated(&mut self, what: impl FnOnce() -> String) {
        self.violation.get_or_insert_with(what);
    }

    pub(super) fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violated(what);
        }
    }

    pub(super) fn node_written(&mut self, before: Option<&NodeRecord>, after: &NodeRecord) {
        self.require(before != Some(after), || format!("two equal writes of a node: {after:?}"));
    }

    pub(super) fn repository_written(&mut self, repository: usize, before: Option<&Body>, after: &Body) {
        let context = || format!("repository {repository}: {after:?} replaced {before:?}");
        let zero = (0, 0, 0);
        let (fence, sequence, generation) =
            before.map_or(zero, |before| (before.claim.fence, before.sequence, before.generation));
        // I1: fence and sequence grow.
        self.require(after.claim.fence >= fence && after.sequence == sequence + 1, || format!("I1: {}", context()));
        // I2: a fence belongs to one session, also if the record was deleted in between.
        let is_same = before.is_some_and(|before| {
            (before.claim.session, before.claim.fence) == (after.claim.session, after.claim.fence)
        });
        let last = self.fences.insert(repository, after.claim.fence).unwrap_or_default();
        let follows = before.map_or(after.claim.fence > last, |before| after.claim.fence == before.claim.fence + 1);
        self.require(is_same || follows, || format!("I2: {}", context()));
        if before.is_some_and(|before| before.claim.session != after.claim.session) {
            self.changes += 1;
        }
        if after.generation == generation {
            return;
        }
        // I3: the session in the record published, the next generation, and once.
        let is_own = is_same
            && !after.claim.is_released
            && after.author == after.claim.session
            && after.generation == generation + 1;
        self.require(is_own, || format!("I3: {}", context()));
        let history = self.histories.entry(repository).or_default();
        let twice = history.generations.insert(after.generation, after.content);
        let has_failed = history.failed.contains(&after.content);
        self.require(twice.is_none(), || format!("a generation is published twice: {}", context()));
        self.require(!has_failed, || format!("a publication that was reported as failed is visible: {}", context()));
    }

    /// I8: the generations of a service grow, whatever repository publishes it.
    pub(super) fn services_written(&mut self, repository: usize, before: Option<&Body>, after: &Body) {
        for (name, row) in &after.rows {
            let was = before.and_then(|before| before.rows.get(name));
            let publishes = was.is_some_and(|was| was.state == RowState::Live && row.generation > was.generation);
            if publishes {
                self.service_publications += 1;
                let last = self.last_of_service.insert(*name, row.generation);
                self.require(last.is_none_or(|last| last < row.generation), || {
                    format!("I8: r{repository} publishes s{name} at {} after {last:?}", row.generation)
                });
            }
        }
    }

    /// The owner shows a publication to readers.
    pub(super) fn shown(&mut self, repository: usize, body: &Body) {
        self.publications += 1;
        let history = self.histories.entry(repository).or_default();
        let is_stored = history.generations.get(&body.generation) == Some(&body.content);
        let before = std::mem::replace(&mut history.shown, body.generation);
        self.require(is_stored, || format!("repository {repository} shows what its record never had: {body:?}"));
        // I5: readers never go back.
        self.require(body.generation > before, || format!("I5: repository {repository} shows {body:?} after {before}"));
    }

    /// A caller was told that a publication failed.
    pub(super) fn failed(&mut self, repository: usize, body: &Body) {
        let history = self.histories.entry(repository).or_default();
        history.failed.insert(body.content);
        let is_stored = history.generations.get(&body.generation) == Some(&body.content);
        self.require(!is_stored, || {
            format!("repository {repository}: a visible publication is reported as failed: {body:?}")
        });
    }
}
