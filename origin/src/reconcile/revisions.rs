//! Pure: for each followed ref, the newest revision whose content is published, and whether the upstream is reachable. Time is
//! an argument.
//!
//! A revision counts once every service of the ref has published it. A pinned service counts as published.

use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use weir_protocol::event::{RevisionSeen, Upstream};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::revision_id::RevisionId;

/// The published revisions of a repository's refs.
#[derive(Debug)]
pub(super) struct Revisions {
    repository: RepositoryName,
    /// The published revision of each service. Missing while it is unknown.
    published: HashMap<ServiceName, RevisionId>,
    /// By the ref in the services' definitions.
    refs: BTreeMap<String, Seen>,
    /// When a poll last followed all refs.
    complete_at: Option<SystemTime>,
    /// `None` until the first poll has ended.
    upstream: Option<Upstream>,
    /// Whether `upstream` changed since it was last reported.
    upstream_changed: bool,
}

#[derive(Debug)]
struct Seen {
    revision_id: RevisionId,
    seen_at: SystemTime,
}

impl Revisions {
    pub(super) fn new(repository: RepositoryName) -> Self {
        Self {
            repository,
            published: HashMap::new(),
            refs: BTreeMap::new(),
            complete_at: None,
            upstream: None,
            upstream_changed: false,
        }
    }

    /// The mirror has the refs that were fetched at this time, before the process started.
    pub(super) fn restored(&mut self, fetched_at: SystemTime) {
        self.complete_at = Some(fetched_at);
    }

    /// A poll succeeded. `complete`: it could follow all refs.
    pub(super) fn poll_succeeded(&mut self, complete: bool, now: SystemTime) {
        if complete {
            self.complete_at = Some(now);
        }
        self.set_reachable(true, now);
    }

    /// A poll failed.
    pub(super) fn poll_failed(&mut self, now: SystemTime) {
        self.set_reachable(false, now);
    }

    fn set_reachable(&mut self, reachable: bool, now: SystemTime) {
        if self.upstream.is_none_or(|known| known.reachable != reachable) {
            self.upstream = Some(Upstream { reachable, since: now });
            self.upstream_changed = true;
        }
    }

    /// A service has published this revision. `None`: it does not follow its ref.
    pub(super) fn set_published(&mut self, service: &ServiceName, revision: Option<RevisionId>) {
        match revision {
            Some(revision) => drop(self.published.insert(service.clone(), revision)),
            None => drop(self.published.remove(service)),
        }
    }

    /// Updates the refs of these services, and returns the changed ones for edges.
    pub(super) fn update<'a>(
        &mut self,
        services: impl Iterator<Item = (&'a ServiceName, String)>,
    ) -> Vec<RevisionSeen> {
        // For each ref the common revision of its services, if there is one.
        let (mut refs, mut published) = (BTreeMap::<String, Option<RevisionId>>::new(), HashMap::new());
        for (service, followed_ref) in services {
            let at = self.published.remove_entry(service);
            let common = refs.entry(followed_ref).or_insert_with(|| at.as_ref().map(|(_, at)| at.clone()));
            if common.as_ref() != at.as_ref().map(|(_, at)| at) {
                *common = None;
            }
            published.extend(at);
        }
        self.published = published;
        let Some(seen_at) = self.complete_at else { return Vec::new() };
        let mut changed = Vec::new();
        self.refs.retain(|name, _| refs.contains_key(name));
        for (name, revision_id) in refs {
            let Some(revision_id) = revision_id else { continue };
            let seen = Seen { revision_id: revision_id.clone(), seen_at };
            if self.refs.insert(name.clone(), seen).is_none_or(|before| before.revision_id != revision_id) {
                changed.push(name);
            }
        }
        if std::mem::take(&mut self.upstream_changed) {
            return self.all();
        }
        changed.iter().filter_map(|name| self.report(name, self.refs.get(name)?)).collect()
    }

    /// The published revisions of all refs.
    pub(super) fn all(&self) -> Vec<RevisionSeen> {
        self.refs.iter().filter_map(|(name, seen)| self.report(name, seen)).collect()
    }

    fn report(&self, followed_ref: &str, seen: &Seen) -> Option<RevisionSeen> {
        Some(RevisionSeen {
            repository: self.repository.clone(),
            followed_ref: followed_ref.to_owned(),
            revision_id: seen.revision_id.clone(),
            seen_at: seen.seen_at,
            upstream: self.upstream?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn id(text: &str) -> RevisionId {
        format!("sha1:{text}").parse().unwrap()
    }

    /// Two services of `main` and one of `next`.
    fn update(revisions: &mut Revisions) -> Vec<(String, String, bool)> {
        let services = [("a", "main"), ("b", "main"), ("c", "next")].map(|(name, of)| (name.parse().unwrap(), of));
        let services: Vec<(ServiceName, &str)> = services.into();
        let reports = revisions.update(services.iter().map(|(name, of)| (name, (*of).to_owned())));
        reports
            .into_iter()
            .map(|seen| (seen.followed_ref, seen.revision_id.to_string(), seen.upstream.reachable))
            .collect()
    }

    #[test]
    fn a_ref_is_reported_when_all_its_services_have_published_one_revision() {
        let mut revisions = Revisions::new("shop".parse().unwrap());
        let publish = |revisions: &mut Revisions, service: &str, revision: Option<&str>| {
            revisions.set_published(&service.parse().unwrap(), revision.map(id));
        };
        publish(&mut revisions, "a", Some("1"));
        publish(&mut revisions, "b", Some("1"));
        assert!(update(&mut revisions).is_empty(), "the upstream was not polled yet");
        revisions.poll_succeeded(true, at(1));
        let report = |name: &str, revision: &str, reachable| (name.to_owned(), format!("sha1:{revision}"), reachable);
        assert_eq!(update(&mut revisions), [report("main", "1", true)], "the other ref is unknown");

        revisions.poll_succeeded(true, at(2));
        assert!(update(&mut revisions).is_empty(), "an unchanged poll is not reported");
        assert_eq!(revisions.all()[0].seen_at, at(2), "but a snapshot has its time");
        publish(&mut revisions, "a", Some("2"));
        revisions.poll_succeeded(true, at(3));
        assert!(update(&mut revisions).is_empty(), "b has not published it yet");
        assert_eq!((revisions.all()[0].seen_at, revisions.all()[0].revision_id.clone()), (at(2), id("1")));
        publish(&mut revisions, "b", Some("2"));
        publish(&mut revisions, "c", Some("2"));
        assert_eq!(update(&mut revisions), [report("main", "2", true), report("next", "2", true)]);
        publish(&mut revisions, "b", None);
        revisions.poll_succeeded(true, at(4));
        assert!(update(&mut revisions).is_empty());
        assert_eq!(revisions.all()[0].seen_at, at(3), "an unpublished revision gets no later time");
    }

    #[test]
    fn after_a_restart_an_unreachable_upstream_is_reported_with_the_revisions_of_the_mirror() {
        let mut revisions = Revisions::new("shop".parse().unwrap());
        revisions.restored(at(1));
        revisions.set_published(&"c".parse().unwrap(), Some(id("1")));
        assert!(update(&mut revisions).is_empty() && revisions.all().is_empty(), "it was not polled yet");
        revisions.poll_failed(at(2));
        assert_eq!(update(&mut revisions), [("next".to_owned(), "sha1:1".to_owned(), false)]);
        assert_eq!((revisions.all()[0].seen_at, revisions.all()[0].upstream.since), (at(1), at(2)));
    }

    #[test]
    fn every_ref_is_reported_when_reachability_changes() {
        let mut revisions = Revisions::new("shop".parse().unwrap());
        for service in ["a", "b", "c"] {
            revisions.set_published(&service.parse().unwrap(), Some(id("1")));
        }
        revisions.poll_succeeded(true, at(1));
        assert_eq!(update(&mut revisions).len(), 2);
        revisions.poll_failed(at(2));
        let reports = update(&mut revisions);
        assert!(reports.len() == 2 && reports.iter().all(|(_, _, reachable)| !reachable));
        revisions.poll_failed(at(3));
        assert!(update(&mut revisions).is_empty());
        let seen = revisions.all();
        assert_eq!((seen[0].seen_at, seen[0].upstream.since), (at(1), at(2)));
        // With a broken ref the upstream is reachable, but the time of the last complete poll stays.
        revisions.poll_succeeded(false, at(4));
        assert_eq!(update(&mut revisions).len(), 2);
        assert_eq!((revisions.all()[0].seen_at, revisions.all()[0].upstream.reachable), (at(1), true));
        assert!(revisions.update(std::iter::empty()).is_empty() && revisions.all().is_empty());
    }
}
