//! Pure: which publications of a service are before a revision, from the lines of the history.
//!
//! A publication has the position of the tip whose content it carries: that of the first publication of this tip, and a
//! rollback that of the publication it returns to. A tip that changed nothing of the service has the position of the
//! publication that was current when the tip was seen. What a pinned service would have published at a tip is not known.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use weir_protocol::descriptor::Generation;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;

use super::revision_name::{CURRENT, Called, PREVIOUS};
use crate::stored::history_line::{Line, LineEvent, Revision, ServiceLine, Tip, Why};

/// What the history of a repository says about the order of publications.
#[derive(Debug, Default)]
pub struct Positions {
    services: HashMap<ServiceName, Vec<Published>>,
    /// From which lines on tips of services waited, and what for.
    held: HashMap<ServiceName, Vec<(usize, Held)>>,
    /// Tips at which a service did not publish anything, with their place among the lines.
    tips: Vec<(usize, Tip)>,
    lines: usize,
}

/// What tips of a service wait for. What the service would have published at one is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    No,
    Pinned,
    /// Something is staged, or was aborted.
    Staged,
}

#[derive(Debug)]
struct Published {
    line: usize,
    /// The line of the first publication of the tip whose content it carries. `None`: it is older than what was read.
    position: Option<usize>,
    /// Whether the service followed its ref to it.
    is_followed: bool,
    generation: Generation,
    digest: TarballDigest,
    names: Names,
}

/// What a revision is called.
#[derive(Debug, PartialEq, Eq)]
struct Names {
    revision: RevisionId,
    version: Option<SourceVersion>,
    /// Of a composed service: those of its parts, by their folders.
    parts: Vec<(String, RevisionId)>,
}

/// Where a revision is among the publications of a service.
#[derive(Debug, Clone)]
pub struct Threshold {
    /// Which generations are before it. `None`: the position of one is not known.
    is_before: HashMap<Generation, Option<bool>>,
    oldest: Generation,
}

/// A revision that a service may follow now.
#[derive(Debug, Clone, Copy)]
pub struct PastQuery<'a> {
    /// The service.
    pub service: &'a ServiceName,
    /// The ref that it follows.
    pub followed_ref: &'a str,
    /// The revision.
    pub revision: &'a RevisionId,
    /// What that is composed of.
    pub parts: &'a [Part],
}

/// Of a revision that a service may follow now, what it followed before the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    /// The revision itself.
    pub whole: bool,
    /// For each part, its revision.
    pub parts: Vec<bool>,
}

impl Positions {
    /// Adds the lines of the next newer segment. A line that cannot be read is skipped.
    pub fn add(&mut self, segment: &[u8]) {
        for line in segment.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(Line::Service(line)) => self.add_line(line),
                Ok(Line::Tip(tip)) => self.tips.push((self.lines, tip)),
                Err(_) => {}
            }
            self.lines += 1;
        }
    }

    fn add_line(&mut self, ServiceLine { service, generation, event }: ServiceLine) {
        use LineEvent::{Approved, Paused, Resumed, StageBegun, Stopped};
        let (digest, Revision { id, version, parts }, why) = match event {
            LineEvent::Published { digest, revision, why, .. } => (digest, revision, why),
            LineEvent::Pinned { .. } => return self.hold(service, Held::Pinned),
            // After an abort a tip with the aborted content waits.
            LineEvent::Staged(_) | LineEvent::Aborted(_) => return self.hold(service, Held::Staged),
            // It stays staged.
            StageBegun(_) | Stopped(_) | Paused(_) | Resumed(_) | Approved(_) => return,
            LineEvent::Unpinned { .. } | LineEvent::StagingEnded(_) | LineEvent::Promoted(_) => {
                return self.hold(service, Held::No);
            }
        };
        // An origin of before 0.2 ends what is staged without a line of its own.
        if self.held.get(&service).and_then(|held| held.last()).is_some_and(|(_, held)| *held == Held::Staged) {
            self.hold(service.clone(), Held::No);
        }
        let all = self.services.entry(service).or_default();
        let parts = parts.into_iter().map(|part| (part.to, part.revision_id)).collect();
        let names = Names { revision: id, version, parts };
        let is_followed = !matches!(why, Why::RolledBack | Why::FloorRaised | Why::Lowered);
        let position = match why {
            // The same tip again: of another definition of the service, or because the ref went back to it.
            Why::Followed | Why::SteppedBack | Why::Refreshed | Why::NamedByWebhook => {
                all.iter().rev().find(|it| it.names == names).map_or(Some(self.lines), |it| it.position)
            }
            Why::RolledBack | Why::FloorRaised | Why::Lowered => {
                all.iter().rev().find(|it| it.digest == digest).and_then(|it| it.position)
            }
        };
        all.push(Published { line: self.lines, position, is_followed, generation, digest, names });
    }

    fn hold(&mut self, service: ServiceName, held: Held) {
        self.held.entry(service).or_default().push((self.lines, held));
    }

    /// What of these revisions the services followed before the last one.
    pub fn past<'a>(&self, all: impl IntoIterator<Item = PastQuery<'a>>) -> Vec<Past> {
        let (mut last_seen, mut newest) = (HashMap::new(), HashMap::new());
        for (line, tip) in &self.tips {
            last_seen.insert((tip.tip.as_str(), &tip.revision_id), *line);
            newest.insert(tip.tip.as_str(), *line);
        }
        let is_past = |PastQuery { service, followed_ref, revision, parts }: PastQuery<'a>| {
            let published = self.services.get(service).map_or(&[][..], Vec::as_slice);
            let followed = || published.iter().rev().filter(|it| it.is_followed);
            let tip = newest.get(followed_ref).copied();
            let Some(current) = followed().next().map(|it| it.line).max(tip) else { return Past::default() };
            let own = followed().find(|it| it.names.revision == *revision).map(|it| it.line);
            let seen = own.max(last_seen.get(&(followed_ref, revision)).copied());
            let is_past_part = |part: &Part| {
                let at = || followed().filter_map(|it| it.names.parts.iter().find(|(to, _)| *to == part.to));
                at().next().is_some_and(|(_, last)| *last != part.revision_id)
                    && at().any(|(_, revision)| *revision == part.revision_id)
            };
            Past { whole: seen.is_some_and(|seen| seen < current), parts: parts.iter().map(is_past_part).collect() }
        };
        all.into_iter().map(is_past).collect()
    }

    /// Where a revision is: a commit or a digest, or a prefix of [`MIN_PREFIX`](crate::MIN_PREFIX) digits or more; a version;
    /// a revision id; [`CURRENT`] or [`PREVIOUS`]. `None`: the service has not seen it, or the history of that time is gone.
    pub fn find(&self, service: &ServiceName, followed_ref: &str, revision: &str) -> Option<Threshold> {
        let published = self.services.get(service)?.as_slice();
        let of_own = || match (revision, published.last()?) {
            (CURRENT, last) => Some(last),
            (PREVIOUS, last) => published.iter().rev().find(|it| it.digest != last.digest),
            _ => published.iter().find(|it| it.called().is(revision)),
        };
        let of_part = || published.iter().find(|it| it.names.parts.iter().any(|(_, part)| is_called(part, revision)));
        let of_tip = || {
            let is_it = |tip: &Tip| tip.tip == followed_ref && is_called(&tip.revision_id, revision);
            let (line, _) = self.tips.iter().find(|(_, tip)| is_it(tip))?;
            let held = self.held.get(service).map_or(&[][..], Vec::as_slice);
            let is_held = held.iter().rev().find(|(at, _)| at < line).is_some_and(|(_, held)| *held != Held::No);
            published.iter().rev().find(|it| it.line < *line).filter(|_| !is_held)
        };
        let found = of_own().or_else(of_tip).or_else(of_part)?;
        let threshold = found.position?;
        let is_before = |it: &Published| (it.generation, it.position.map(|position| position < threshold));
        let oldest = published.iter().map(|it| it.generation).min().unwrap_or_default();
        Some(Threshold { is_before: published.iter().map(is_before).collect(), oldest })
    }

    /// Whether any service, or any ref, was at this revision.
    pub fn knows(&self, revision: &str) -> bool {
        let is_part = |(_, part): &(String, RevisionId)| is_called(part, revision);
        self.services.values().flatten().any(|it| it.called().is(revision) || it.names.parts.iter().any(is_part))
            || self.tips.iter().any(|(_, tip)| is_called(&tip.revision_id, revision))
    }

    /// The revisions of a service of which a hash begins so.
    pub fn candidates(&self, service: &ServiceName, prefix: &str) -> BTreeSet<&RevisionId> {
        let published = self.services.get(service).into_iter().flatten();
        published.filter(|it| it.called().begins(prefix)).map(|it| &it.names.revision).collect()
    }
}

impl Threshold {
    /// Whether a release is before the revision, and so lacks it. `None`: its position is not known.
    pub fn lacks(&self, generation: Generation) -> Option<bool> {
        let of_old_time = || (generation > 0 && generation < self.oldest).then_some(true);
        self.is_before.get(&generation).copied().unwrap_or_else(of_old_time)
    }
}

impl Published {
    fn called(&self) -> Called<'_> {
        let Names { revision, version, .. } = &self.names;
        Called { revision, version: version.as_ref(), digest: Some(&self.digest) }
    }
}

/// Whether a revision of which nothing else is known is called so.
fn is_called(revision: &RevisionId, name: &str) -> bool {
    Called { revision, version: None, digest: None }.is(name)
}

/// The most repositories whose order is in memory, those asked for last.
const MAX_REPOSITORIES: usize = 16;

/// The orders that were read last, each with the segments that it was made of.
#[derive(Debug, Default)]
pub(crate) struct ReadPositions(Mutex<Vec<ReadOrder>>);

/// A repository, the segments that were read, and the order in them.
type ReadOrder = (RepositoryName, Vec<ObjectDigest>, Arc<Positions>);

impl ReadPositions {
    pub(crate) fn get(&self, repository: &RepositoryName, segments: &[ObjectDigest]) -> Option<Arc<Positions>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(name, of, _)| name == repository && of == segments)?;
        let found = all.remove(at);
        all.insert(0, found);
        all.first().map(|(.., positions)| positions.clone())
    }

    pub(crate) fn set(&self, repository: &RepositoryName, segments: Vec<ObjectDigest>, positions: Arc<Positions>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(name, ..)| name != repository);
        all.truncate(MAX_REPOSITORIES - 1);
        all.insert(0, (repository.clone(), segments, positions));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of the service `a`, at commit `name`; or a tip of `main`, which begins with `-`.
    fn line(generation: u64, name: &str, content: &str, why: &str) -> String {
        let commit = |name: &str| format!("{name:0<40}");
        match name.strip_prefix('-') {
            Some(tip) => format!(r#"{{"tip":"main","revision_id":"sha1:{}"}}"#, commit(tip)),
            None => format!(
                r#"{{"service":"a","generation":{generation},"event":"published","digest":"{}","commit":"{}","published_at":"2026-11-20T09:30:00Z","why":"{why}","by":null}}"#,
                TarballDigest::of(content.as_bytes()),
                commit(name),
            ),
        }
    }

    fn positions(lines: &[String]) -> Positions {
        let mut positions = Positions::default();
        let (older, newer) = lines.split_at(lines.len() / 2);
        positions.add((older.join("\n") + "\n").as_bytes());
        positions.add(newer.join("\n").as_bytes());
        positions
    }

    /// For each generation whether it lacks the revision: `x` yes, `-` no, `?` unknown.
    fn who_lacks(positions: &Positions, revision: &str, generations: std::ops::Range<u64>) -> String {
        let Some(threshold) = positions.find(&"a".parse().unwrap(), "main", revision) else { return "none".to_owned() };
        let shown = |generation| match threshold.lacks(generation) {
            Some(lacks) => {
                if lacks {
                    'x'
                } else {
                    '-'
                }
            }
            None => '?',
        };
        generations.map(shown).collect()
    }

    #[test]
    fn what_is_before_the_publication_in_force_lacks_the_revision() {
        let positions = positions(&[
            line(11, "aaaaaaa1", "one", "followed"),
            line(0, "-bbbbbbb2", "", ""),
            line(13, "ccccccc3", "two", "followed"),
            line(14, "ccccccc3", "another folder", "followed"),
            line(0, "-ddddddd4", "", ""),
            line(15, "eeeeeee5", "three", "followed"),
            line(16, "aaaaaaa1", "one", "rolled-back"),
            line(0, "-fffffff6", "", ""),
            line(18, "ffffff77", "four", "followed"),
        ]);
        for (revision, expected) in [
            // Generations 10 to 18; 12 and 17 were never published.
            ("aaaaaaa1", "x-?----?-"),
            ("bbbbbbb2", "x-?----?-"),
            ("ccccccc3", "xx?---x?-"),
            ("ddddddd", "xx?---x?-"),
            ("eeeeeee5", "xx?xx-x?-"),
            // Seen while the rollback was in force.
            ("fffffff6", "x-?----?-"),
            ("ffffff77", "xx?xxxx?-"),
            ("dddddd", "none"),
            ("0000000", "none"),
        ] {
            assert_eq!(who_lacks(&positions, revision, 10..19), expected, "{revision}");
        }
        assert!(positions.find(&"a".parse().unwrap(), "next", "bbbbbbb2").is_none(), "a tip of another ref");
        assert!(positions.find(&"b".parse().unwrap(), "main", "aaaaaaa1").is_none(), "another service");
    }

    #[test]
    fn what_cannot_be_compared_is_unknown() {
        let pin = |event: &str| {
            format!(r#"{{"service":"a","generation":10,"event":"{event}","at":"2026-11-20T09:30:00Z","by":null}}"#)
        };
        let positions = positions(&[
            line(10, "0000000a", "gone", "rolled-back"),
            line(0, "-0000000b", "", ""),
            line(11, "aaaaaaa1", "one", "followed"),
            pin("pinned"),
            line(0, "-bbbbbbb2", "", ""),
            pin("unpinned"),
            line(0, "-ccccccc3", "", ""),
            line(12, "ddddddd4", "two", "followed"),
            // The ref went back.
            line(13, "aaaaaaa1", "one", "followed"),
            line(0, "-eeeeeee5", "", ""),
        ]);
        for (revision, expected) in [
            ("0000000a", "none"),
            ("0000000b", "none"),
            ("aaaaaaa1", "x?---"),
            ("bbbbbbb2", "none"),
            ("ccccccc3", "x?---"),
            ("ddddddd4", "x?x-x"),
            ("eeeeeee5", "x?---"),
        ] {
            assert_eq!(who_lacks(&positions, revision, 9..14), expected, "{revision}");
        }
    }

    #[test]
    fn what_a_service_would_have_published_while_something_is_staged_or_was_aborted_is_unknown() {
        let act = |generation: u64, event: &str| {
            let digest = TarballDigest::of(b"two");
            format!(
                r#"{{"service":"a","generation":{generation},"event":"{event}","at":"2026-11-20T09:30:00Z","digest":"{digest}"}}"#
            )
        };
        let positions = positions(&[
            line(10, "aaaaaaa1", "one", "followed"),
            act(10, "staged"),
            line(0, "-bbbbbbb2", "", ""),
            line(12, "aaaaaaa1", "one", "followed"),
            act(12, "aborted"),
            line(0, "-ccccccc3", "", ""),
            line(13, "ddddddd4", "three", "followed"),
            line(0, "-eeeeeee5", "", ""),
        ]);
        for (revision, expected) in [("bbbbbbb2", "none"), ("ccccccc3", "none"), ("eeeeeee5", "x?x-")] {
            assert_eq!(who_lacks(&positions, revision, 10..14), expected, "{revision}");
        }
    }

    #[test]
    fn versions_and_revisions_of_parts_are_found() {
        let chart = |generation: u64, version: &str, part: char| {
            let (hex, commit) = (format!("{generation:064x}"), part.to_string().repeat(40));
            format!(
                r#"{{"service":"a","generation":{generation},"event":"published","digest":"{}","revision_id":"helm:{version}+sha256:{hex}","version":"{version}","parts":[{{"to":"values","repository":"values","revision_id":"sha1:{commit}"}}],"published_at":"2026-11-20T09:30:00Z","why":"followed","by":null}}"#,
                TarballDigest::of(version.as_bytes()),
            )
        };
        let positions = positions(&[chart(1, "1.0.0", 'a'), chart(2, "1.1.0", 'a'), chart(3, "1.1.0", 'b')]);
        let previous = TarballDigest::of(b"1.0.0").to_string();
        for (revision, expected) in [
            ("current", "?xx-"),
            ("previous", "?---"),
            (&previous[..12], "?---"),
            ("1.1.0", "?x--"),
            ("1.0.0", "?---"),
            ("aaaaaaa", "?---"),
            ("bbbbbbb", "?xx-"),
        ] {
            assert_eq!(who_lacks(&positions, revision, 0..4), expected, "{revision}");
        }
    }
}
