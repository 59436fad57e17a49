//! Up to which revision the published content of each followed ref is right, and whether the upstream answers. Pure: time
//! is an argument.
//!
//! A ref is right as of a revision when every service that follows it is settled there. A pinned service is: it is where its
//! operator put it.

use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use weir_protocol::event::{RevisionSeen, Upstream};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::revision_id::RevisionId;

/// What an agent can say of the refs of its services.
#[derive(Debug)]
pub(super) struct Revisions {
    repository: RepositoryName,
    /// Where each service is settled; missing while it is not.
    settled: HashMap<ServiceName, RevisionId>,
    /// By the ref, as definitions have it.
    refs: BTreeMap<String, Seen>,
    /// When the upstream last answered with refs that could all be followed.
    answered_at: Option<SystemTime>,
    /// None until the first poll has ended.
    upstream: Option<Upstream>,
    /// Whether that became another one since it was last reported.
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
            settled: HashMap::new(),
            refs: BTreeMap::new(),
            answered_at: None,
            upstream: None,
            upstream_changed: false,
        }
    }

    /// The mirror has the refs that the upstream named at that time, before the process began.
    pub(super) fn restored(&mut self, named_at: SystemTime) {
        self.answered_at = Some(named_at);
    }

    /// The upstream answered. `complete`: all of its refs could be followed.
    pub(super) fn answered(&mut self, complete: bool, now: SystemTime) {
        if complete {
            self.answered_at = Some(now);
        }
        self.set_reachable(true, now);
    }

    /// A poll got no answer.
    pub(super) fn unreachable(&mut self, now: SystemTime) {
        self.set_reachable(false, now);
    }

    fn set_reachable(&mut self, reachable: bool, now: SystemTime) {
        if self.upstream.is_none_or(|known| known.reachable != reachable) {
            self.upstream = Some(Upstream { reachable, since: now });
            self.upstream_changed = true;
        }
    }

    /// The published content of a service is right as of this revision; `None`: it is not where its ref is.
    pub(super) fn settle(&mut self, service: &ServiceName, revision: Option<RevisionId>) {
        match revision {
            Some(revision) => drop(self.settled.insert(service.clone(), revision)),
            None => drop(self.settled.remove(service)),
        }
    }

    /// Takes over what is settled, for these services and the refs that they follow. What changed is returned: to be told to
    /// edges.
    pub(super) fn update<'a>(
        &mut self,
        services: impl Iterator<Item = (&'a ServiceName, String)>,
    ) -> Vec<RevisionSeen> {
        // For each ref the revision of all its services, unless they differ.
        let (mut refs, mut settled) = (BTreeMap::<String, Option<RevisionId>>::new(), HashMap::new());
        for (service, followed_ref) in services {
            let at = self.settled.remove_entry(service);
            let common = refs.entry(followed_ref).or_insert_with(|| at.as_ref().map(|(_, at)| at.clone()));
            if common.as_ref() != at.as_ref().map(|(_, at)| at) {
                *common = None;
            }
            settled.extend(at);
        }
        self.settled = settled;
        let Some(seen_at) = self.answered_at else { return Vec::new() };
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

    /// What is known of every ref.
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
        let told = revisions.update(services.iter().map(|(name, of)| (name, (*of).to_owned())));
        told.into_iter()
            .map(|seen| (seen.followed_ref, seen.revision_id.to_string(), seen.upstream.reachable))
            .collect()
    }

    #[test]
    fn a_ref_is_reported_when_all_its_services_are_settled_at_one_revision() {
        let mut revisions = Revisions::new("shop".parse().unwrap());
        let settle = |revisions: &mut Revisions, service: &str, revision: Option<&str>| {
            revisions.settle(&service.parse().unwrap(), revision.map(id));
        };
        settle(&mut revisions, "a", Some("1"));
        settle(&mut revisions, "b", Some("1"));
        assert!(update(&mut revisions).is_empty(), "the upstream was not asked yet");
        revisions.answered(true, at(1));
        let told = |name: &str, revision: &str, reachable| (name.to_owned(), format!("sha1:{revision}"), reachable);
        assert_eq!(update(&mut revisions), [told("main", "1", true)], "nothing is known of the other");

        revisions.answered(true, at(2));
        assert!(update(&mut revisions).is_empty(), "a poll that finds nothing is no news");
        assert_eq!(revisions.all()[0].seen_at, at(2), "but a snapshot knows of it");
        settle(&mut revisions, "a", Some("2"));
        revisions.answered(true, at(3));
        assert!(update(&mut revisions).is_empty(), "b is not there yet");
        assert_eq!((revisions.all()[0].seen_at, revisions.all()[0].revision_id.clone()), (at(2), id("1")));
        settle(&mut revisions, "b", Some("2"));
        settle(&mut revisions, "c", Some("2"));
        assert_eq!(update(&mut revisions), [told("main", "2", true), told("next", "2", true)]);
        settle(&mut revisions, "b", None);
        revisions.answered(true, at(4));
        assert!(update(&mut revisions).is_empty());
        assert_eq!(revisions.all()[0].seen_at, at(3), "what is not settled is not right as of later");
    }

    #[test]
    fn after_a_restart_an_upstream_that_is_gone_is_reported_with_what_the_mirror_has() {
        let mut revisions = Revisions::new("shop".parse().unwrap());
        revisions.restored(at(1));
        revisions.settle(&"c".parse().unwrap(), Some(id("1")));
        assert!(update(&mut revisions).is_empty() && revisions.all().is_empty(), "it was not asked yet");
        revisions.unreachable(at(2));
        assert_eq!(update(&mut revisions), [("next".to_owned(), "sha1:1".to_owned(), false)]);
        assert_eq!((revisions.all()[0].seen_at, revisions.all()[0].upstream.since), (at(1), at(2)));
    }

    #[test]
    fn every_ref_is_reported_when_the_upstream_goes_and_comes_back() {
        let mut revisions = Revisions::new("shop".parse().unwrap());
        for service in ["a", "b", "c"] {
            revisions.settle(&service.parse().unwrap(), Some(id("1")));
        }
        revisions.answered(true, at(1));
        assert_eq!(update(&mut revisions).len(), 2);
        revisions.unreachable(at(2));
        let told = update(&mut revisions);
        assert!(told.len() == 2 && told.iter().all(|(_, _, reachable)| !reachable));
        revisions.unreachable(at(3));
        assert!(update(&mut revisions).is_empty());
        let seen = revisions.all();
        assert_eq!((seen[0].seen_at, seen[0].upstream.since), (at(1), at(2)));
        // A ref that cannot be followed: the upstream answers, and when it was all right is not known.
        revisions.answered(false, at(4));
        assert_eq!(update(&mut revisions).len(), 2);
        assert_eq!((revisions.all()[0].seen_at, revisions.all()[0].upstream.reachable), (at(1), true));
        assert!(revisions.update(std::iter::empty()).is_empty() && revisions.all().is_empty());
    }
}
