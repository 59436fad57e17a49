//! The history of a repository's publications: append-only segments, stored as objects.
//!
//! A segment is text with one entry a line. The last segment is rewritten with each publication until it is full. A
//! pin is an entry of its own, and is listed with its publication.

use std::collections::HashMap;
use std::time::SystemTime;

use serde::Serialize;
use weir_protocol::commit_id::CommitId;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;

use super::history_line::{LineEvent, Revision, ServiceLine, StagingLine};
use super::history_line::{Time, Why};
use crate::request::Author;

/// A segment of this size or more is closed.
pub(crate) const MAX_SEGMENT_BYTES: u64 = 64 << 10;

/// The most segments of a repository, about 120,000 publications; the oldest are dropped.
pub(crate) const MAX_SEGMENTS: usize = 512;

/// The most entries in one answer.
pub(crate) const LARGEST_PAGE: usize = 200;

/// The most acts that are listed with a publication.
const MOST_ACTS: usize = 20;

/// What was done with a publication.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Act {
    /// `pinned` or `unpinned`; `staged`: another version for some agents, and `promoted`, `aborted`
    /// or `staging-ended`.
    pub event: &'static str,
    /// When.
    pub at: Time,
    /// The other version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<TarballDigest>,
    /// Who did it, and why.
    #[serde(flatten)]
    pub author: Author,
}

/// One publication.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its generation.
    pub generation: Generation,
    /// Digest of its tarball.
    pub digest: TarballDigest,
    /// The commit of `revision_id`; `None` if that is no commit.
    pub commit: Option<CommitId>,
    /// The revision that it was built from.
    pub revision_id: RevisionId,
    /// The version of that revision, if its source names it by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<SourceVersion>,
    /// What that revision is composed of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// When it was published.
    pub published_at: Time,
    /// Why it was published.
    pub why: Why,
    /// The operator who rolled back to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why, in the operator's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its pins and unpins, and what was staged, the newest first. A rollback is one of the pins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acts: Vec<Act>,
    /// When it was last pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned_at: Option<Time>,
    /// When it was last unpinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unpinned_at: Option<Time>,
}

/// A publication with its state today.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// The publication itself.
    #[serde(flatten)]
    pub entry: Entry,
    /// Whether it is the current one.
    pub current: bool,
    /// Whether its tarball is still stored: operators can roll back to it.
    pub retained: bool,
}

/// A part of a service's history, the newest publications first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HistoryPage {
    /// The publications of this page.
    pub publications: Vec<Listed>,
    /// The `before` of the next page. `None`: there is none.
    pub next_before: Option<Generation>,
}

impl Entry {
    /// The entry of a publication without a pin.
    pub(crate) fn new(descriptor: &Descriptor, why: Why, by: Option<String>) -> Self {
        let publication = descriptor.publication();
        Self {
            generation: publication.generation,
            digest: publication.digest,
            commit: publication.commit.clone(),
            revision_id: publication.revision_id.clone(),
            version: publication.version.clone(),
            parts: publication.parts.clone(),
            published_at: publication.published_at.into(),
            why,
            by,
            reason: None,
            acts: Vec::new(),
            pinned_at: None,
            unpinned_at: None,
        }
    }
}

/// Selects entries of one service.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    pub(crate) service: ServiceName,
    /// Only publications before this generation.
    pub(crate) before: Option<Generation>,
    pub(crate) limit: usize,
    /// Only this many of the newest publications.
    pub(crate) remembered: usize,
    /// Only publications from this time on.
    pub(crate) since: SystemTime,
}

/// Collects entries from segments, beginning with the newest segment.
#[derive(Debug)]
pub(crate) struct Collected {
    query: Query,
    /// Pins whose publication is in an older segment.
    pins: HashMap<Generation, Vec<LineEvent>>,
    seen: usize,
    /// The newest first. One more than the limit shows that there is a next page.
    entries: Vec<Entry>,
}

impl Collected {
    pub(crate) fn new(query: Query) -> Self {
        Self { query, pins: HashMap::new(), seen: 0, entries: Vec::new() }
    }

    /// Whether older segments can add nothing.
    pub(crate) fn is_complete(&self) -> bool {
        self.entries.len() > self.query.limit || self.seen >= self.query.remembered
    }

    /// Adds the next older segment.
    pub(crate) fn add(&mut self, segment: &[u8]) {
        let begin = format!("{{\"service\":\"{}\",", self.query.service);
        for line in segment.split(|byte| *byte == b'\n').rev().filter(|line| line.starts_with(begin.as_bytes())) {
            if self.is_complete() {
                return;
            }
            match serde_json::from_slice::<ServiceLine>(line) {
                Ok(line) => self.take(line),
                Err(error) => {
                    tracing::warn!(service = %self.query.service, %error, "a line of the history cannot be read and is skipped");
                }
            }
        }
    }

    fn take(&mut self, ServiceLine { generation, event, .. }: ServiceLine) {
        let LineEvent::Published { digest, revision, published_at, why, by } = event else {
            return self.pins.entry(generation).or_default().push(event);
        };
        self.seen += 1;
        let pins = self.pins.remove(&generation).unwrap_or_default();
        if self.query.before.is_some_and(|before| generation >= before)
            || SystemTime::from(published_at) < self.query.since
        {
            return;
        }
        let Revision { id: revision_id, version, parts } = revision;
        let mut entry = Entry {
            generation,
            digest,
            commit: revision_id.commit(),
            revision_id,
            version,
            parts,
            published_at,
            why,
            by,
            reason: None,
            acts: Vec::new(),
            pinned_at: None,
            unpinned_at: None,
        };
        for event in pins {
            let (event, at, digest, author) = match event {
                LineEvent::Pinned { at, author } => {
                    entry.pinned_at.get_or_insert(at);
                    if why == Why::RolledBack {
                        // The oldest one, which comes last, is the rollback itself.
                        entry.reason.clone_from(&author.reason);
                    }
                    ("pinned", at, None, author)
                }
                LineEvent::Unpinned { at, author } => {
                    entry.unpinned_at.get_or_insert(at);
                    ("unpinned", at, None, author)
                }
                LineEvent::Staged(StagingLine { at, digest, author }) => ("staged", at, Some(digest), author),
                LineEvent::StagingEnded(StagingLine { at, digest, author }) => {
                    ("staging-ended", at, Some(digest), author)
                }
                LineEvent::Promoted(StagingLine { at, digest, author }) => ("promoted", at, Some(digest), author),
                LineEvent::Aborted(StagingLine { at, digest, author }) => ("aborted", at, Some(digest), author),
                LineEvent::StageBegun(StagingLine { at, digest, author }) => ("stage-begun", at, Some(digest), author),
                LineEvent::Stopped(StagingLine { at, digest, author }) => ("stopped", at, Some(digest), author),
                LineEvent::Paused(StagingLine { at, digest, author }) => ("paused", at, Some(digest), author),
                LineEvent::Resumed(StagingLine { at, digest, author }) => ("resumed", at, Some(digest), author),
                LineEvent::Approved(StagingLine { at, digest, author }) => ("approved", at, Some(digest), author),
                LineEvent::Published { .. } => continue,
            };
            if entry.acts.len() < MOST_ACTS {
                entry.acts.push(Act { event, at, digest, author });
            }
        }
        self.entries.push(entry);
    }

    /// The finished page. The current publication is always listed, even if its segment is gone. `is_retained`:
    /// whether the tarball of a digest is still stored.
    pub(crate) fn page(mut self, current: Option<&Entry>, is_retained: impl Fn(&TarballDigest) -> bool) -> HistoryPage {
        let is_current = |entry: &Entry| current.is_some_and(|current| current.generation == entry.generation);
        let is_missing = |current: &&Entry| {
            self.query.before.is_none_or(|before| current.generation < before) && !self.entries.iter().any(is_current)
        };
        if let Some(current) = current.filter(is_missing) {
            self.entries.insert(0, current.clone());
        }
        let has_more = self.entries.len() > self.query.limit;
        self.entries.truncate(self.query.limit);
        let next_before = self.entries.last().filter(|_| has_more).map(|last| last.generation);
        let listed = |entry: Entry| Listed { current: is_current(&entry), retained: is_retained(&entry.digest), entry };
        HistoryPage { publications: self.entries.into_iter().map(listed).collect(), next_before }
    }
}

#[cfg(test)]
mod tests {
    use weir_protocol::descriptor::DescriptorFields;

    use std::time::{Duration, UNIX_EPOCH};

    use bytes::Bytes;

    use super::super::history_line::{Line, appended};
    use super::*;
    use crate::decide::draft::tests::descriptor;

    fn at(number: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_000_000 + number)
    }

    fn published(service: &str, number: u64) -> Line {
        Line::published(&descriptor(service, number), Why::Followed, None)
    }

    fn query(limit: usize) -> Query {
        Query { service: "a".parse().unwrap(), before: None, limit, remembered: 1000, since: UNIX_EPOCH }
    }

    fn page(query: Query, segments: &[Bytes]) -> HistoryPage {
        let mut collected = Collected::new(query);
        for segment in segments.iter().rev() {
            collected.add(segment);
        }
        collected.page(None, |_| false)
    }

    fn numbers(page: &HistoryPage) -> Vec<u64> {
        let first = descriptor("a", 0).publication().generation;
        page.publications.iter().map(|listed| (listed.entry.generation - first) / 1000).collect()
    }

    #[test]
    fn pages_follow_one_another_over_segments_and_services() {
        let segment = |numbers: std::ops::Range<u64>| {
            let lines: Vec<Line> =
                numbers.flat_map(|number| [published("a", number), published("ab", number)]).collect();
            appended(b"", &lines)
        };
        let segments = [segment(0..4), segment(4..6), appended(&segment(6..7), &[published("a", 7)])];
        let first = page(query(3), &segments);
        assert_eq!(numbers(&first), [7, 6, 5]);
        let second = page(Query { before: first.next_before, ..query(3) }, &segments);
        assert_eq!(numbers(&second), [4, 3, 2]);
        let last = page(Query { before: second.next_before, ..query(3) }, &segments);
        assert_eq!((numbers(&last), last.next_before), (vec![1, 0], None));
        assert_eq!(numbers(&page(Query { remembered: 2, ..query(10) }, &segments)), [7, 6]);
        assert_eq!(numbers(&page(Query { since: at(5), ..query(10) }, &segments)), [7, 6, 5]);
    }

    #[test]
    fn each_pin_and_unpin_of_a_publication_is_shown_with_its_operator_and_reason() {
        let (first, second) = (descriptor("a", 1), descriptor("a", 2));
        let by = |name: &str| Some(name.to_owned());
        let author = |name: &str| Author { by: by(name), reason: Some(format!("{name} said so")) };
        let lines = [
            published("a", 1),
            Line::pinned(&first, at(10), author("ann")),
            Line::unpinned(&first, at(11), author("bob")),
            Line::pinned(&first, at(12), author("cid")),
            Line::published(&second, Why::RolledBack, by("dan")),
            Line::pinned(&second, at(13), author("dan")),
            Line::pinned(&second, at(14), author("eve")),
        ];
        let page = page(query(9), &[appended(b"", &lines[..2]), appended(b"", &lines[2..])]);
        let [second, first] = &page.publications[..] else { panic!("{page:?}") };
        let of = |listed: &Listed| (listed.entry.why, listed.entry.by.clone(), listed.entry.reason.clone());
        assert_eq!(of(second), (Why::RolledBack, by("dan"), by("dan said so")));
        assert_eq!(of(first), (Why::Followed, None, None), "nobody published it by hand");
        assert_eq!((first.entry.pinned_at, first.entry.unpinned_at), (Some(at(12).into()), Some(at(11).into())));
        let act = |event, second, name| Act { event, at: at(second).into(), digest: None, author: author(name) };
        assert_eq!(first.entry.acts, [act("pinned", 12, "cid"), act("unpinned", 11, "bob"), act("pinned", 10, "ann")]);
        assert_eq!(second.entry.acts, [act("pinned", 14, "eve"), act("pinned", 13, "dan")]);
    }

    #[test]
    fn a_publication_lists_the_newest_acts_alone() {
        let first = descriptor("a", 1);
        let mut lines = vec![published("a", 1)];
        lines.extend((0..30).map(|second| Line::pinned(&first, at(second), Author::default())));
        let acts = &page(query(9), &[appended(b"", &lines)]).publications[0].entry.acts;
        assert_eq!((acts.len(), acts[0].at), (MOST_ACTS, at(29).into()));
    }

    #[test]
    fn lines_of_former_origins_and_revisions_that_are_no_commits_are_read() {
        let chart = |mut fields: DescriptorFields| {
            fields.publication.commit = None;
            fields.publication.revision_id = "helm:1.2.3+sha256:aa".parse().unwrap();
            fields.publication.version = Some("1.2.3".parse().unwrap());
            Descriptor::new(fields)
        };
        let (commit, digest) = (format!("{:040x}", 7), TarballDigest::of(b"7"));
        // As it was written before revision ids.
        let former = format!(
            r#"{{"service":"a","generation":7,"event":"published","digest":"{digest}","commit":"{commit}","published_at":"2026-11-20T09:30:00Z","why":"followed","by":null}}"#
        );
        let nothing = former.replace(&format!(r#""commit":"{commit}","#), "");
        let git = appended(b"", &[published("a", 1)]);
        assert!(!String::from_utf8_lossy(&git).contains("revision_id"), "former origins read it too");
        let line = Line::published(&chart(descriptor("a", 2).fields().clone()), Why::Followed, None);
        let segment = [former.as_bytes(), b"\n", nothing.as_bytes(), b"\n", &git, &appended(b"", &[line])].concat();
        let page = page(query(9), &[segment.into()]);
        let read = page.publications.iter().map(|listed| {
            let Entry { commit, revision_id, version, .. } = &listed.entry;
            (
                commit.as_ref().map(ToString::to_string),
                revision_id.to_string(),
                version.as_ref().map(ToString::to_string),
            )
        });
        let one = format!("{:040x}", 1);
        assert_eq!(
            read.collect::<Vec<_>>(),
            [
                (None, "helm:1.2.3+sha256:aa".to_owned(), Some("1.2.3".to_owned())),
                (Some(one.clone()), format!("sha1:{one}"), None),
                (Some(commit.clone()), format!("sha1:{commit}"), None),
            ]
        );
    }

    #[test]
    fn the_current_publication_is_listed_when_its_segment_is_gone() {
        let current = Entry::new(&descriptor("a", 1), Why::RolledBack, Some("ann".to_owned()));
        let page = Collected::new(query(9)).page(Some(&current), |_| true);
        assert_eq!(page.publications, [Listed { entry: current, current: true, retained: true }]);
    }
}
