//! Pure: whether a revision is a step back, and whether somebody asked for it. Time is an argument.

use std::time::{Duration, Instant, SystemTime};

use semver::Version;
use weir_protocol::descriptor::Generation;
use weir_protocol::revision_id::RevisionId;
use weir_tarball::ContentKey;

/// How long a webhook's revision is published at once.
const NAMED_FOR: Duration = Duration::from_secs(600);

/// The most revisions that webhooks have named and no poll has found yet.
const MAX_NAMED: usize = 16;

/// What tells how old a revision is.
#[derive(Debug, Clone, Default)]
pub struct Age {
    /// When the last successful poll of its upstream began. `None`: there was none since the start.
    pub seen_at: Option<Instant>,
    /// The version for which a range chose it.
    pub version: Option<Version>,
    /// When the upstream made the list that has it.
    pub listed: Option<SystemTime>,
    /// When it was committed, as the commit says. Of services with an OCI form alone.
    pub committed: Option<SystemTime>,
    /// Why it is older than what the service followed last, for operators.
    pub behind: Option<String>,
    /// Of a part that is a service: the generation of its publication.
    pub generation: Option<Generation>,
    /// Of a composed service: those of its parts.
    pub parts: Vec<Self>,
}

/// Why an older revision is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepBack {
    /// Every poll for `step_back_after` found it.
    Polls,
    /// An operator's refresh found it.
    Refresh,
    /// A webhook named it.
    Webhook,
}

/// What a service followed last, and what was asked for since. All of it ends when another origin takes the repository.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// Until it follows another revision. `None`: nothing since the start.
    pub(crate) last: Option<Last>,
    /// The key of its content.
    pub(crate) tip: Option<ContentKey>,
    /// Until a revision is admitted for it, or the poll finds none.
    asked: Option<Asked>,
    /// Until it is followed, or what a later poll found; or for [`NAMED_FOR`].
    named: Vec<(RevisionId, Instant)>,
    /// What was admitted as asked for: until any revision is followed, or another one found.
    admitted: Option<(RevisionId, Admission)>,
}

/// What a service followed last.
#[derive(Debug, Clone)]
pub(crate) struct Last {
    pub(crate) revision: RevisionId,
    pub(crate) version: Option<Version>,
    pub(crate) listed: Option<SystemTime>,
    pub(crate) generation: Option<Generation>,
}

/// What an operator asked for.
#[derive(Debug, Clone, Copy)]
enum Asked {
    /// Another definition, or the end of a pin: whatever it follows now.
    Now,
    /// A refresh: what a later poll finds.
    PollAfter(Instant),
}

/// Whether a revision may be published without further polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Yes: it is no step back, or an operator changed what the service follows.
    Forward,
    /// Yes: somebody asked for it.
    Asked(StepBack),
    /// No.
    Back,
}

impl Standing {
    /// That of a service that an operator has just defined anew.
    pub(crate) fn redefined() -> Self {
        Self { asked: Some(Asked::Now), ..Self::default() }
    }

    /// An operator unpinned the service.
    pub(crate) fn ask(&mut self) {
        self.asked = Some(Asked::Now);
    }

    /// An operator asked for a poll.
    pub(crate) fn ask_for_poll(&mut self, now: Instant) {
        if !matches!(self.asked, Some(Asked::Now)) {
            self.asked = Some(Asked::PollAfter(now));
        }
    }

    /// Whether an operator's poll has not ended yet.
    pub(crate) fn awaits_poll(&self) -> bool {
        matches!(self.asked, Some(Asked::PollAfter(_)))
    }

    /// A webhook named a revision.
    pub(crate) fn name(&mut self, revision: RevisionId, now: Instant) {
        self.named.retain(|(known, _)| *known != revision);
        self.named.truncate(MAX_NAMED - 1);
        self.named.insert(0, (revision, now));
    }

    /// A poll that began then found nothing that can be followed.
    pub(crate) fn not_found(&mut self, seen_at: Option<Instant>) {
        if matches!(self.asked, Some(Asked::PollAfter(at)) if seen_at.is_some_and(|seen_at| seen_at >= at)) {
            self.asked = None;
        }
    }

    /// The service follows a revision.
    pub(crate) fn followed(&mut self, revision: &RevisionId, age: &Age) {
        let same = self.last.as_ref().filter(|last| last.revision == *revision);
        let listed = age.listed.max(same.and_then(|last| last.listed));
        let generation = age.generation;
        self.last = Some(Last { revision: revision.clone(), version: age.version.clone(), listed, generation });
        self.admitted = None;
        self.named.retain(|(named, at)| named != revision && age.seen_at.is_none_or(|seen_at| *at > seen_at));
    }

    /// Whether an operator asked for a revision that was found, or a webhook named it. The answer stays until a revision is
    /// followed, because a build may fail.
    pub(crate) fn admit(&mut self, revision: &RevisionId, age: &Age, now: Instant) -> Option<Admission> {
        self.named.retain(|(_, at)| now.duration_since(*at) < NAMED_FOR);
        let named = || {
            let is_named = self.named.iter().any(|(named, _)| named == revision);
            is_named.then_some(Admission::Asked(StepBack::Webhook))
        };
        let asked = match self.asked {
            Some(Asked::Now) => Some(Admission::Forward),
            Some(Asked::PollAfter(at)) if age.seen_at.is_some_and(|seen_at| seen_at >= at) => {
                Some(Admission::Asked(StepBack::Refresh))
            }
            Some(Asked::PollAfter(_)) | None => None,
        };
        if asked.is_some() {
            self.asked = None;
        }
        let before = self.admitted.take().filter(|(admitted, _)| admitted == revision);
        let admission = asked.or(before.map(|(_, admission)| admission)).or_else(named);
        self.admitted = admission.map(|admission| (revision.clone(), admission));
        admission
    }
}

/// Why a revision is older than the last one, by its version and the list that has it.
pub(crate) fn behind(last: &Last, revision: &RevisionId, age: &Age) -> Option<String> {
    if last.revision == *revision {
        return None;
    }
    let lower = age.version.as_ref().zip(last.version.as_ref()).filter(|(version, last)| version < last);
    let older = age.listed.zip(last.listed).filter(|(listed, last)| listed < last);
    match (lower, older) {
        (Some((version, last)), _) => Some(format!("version {version} is lower than {last}")),
        (None, Some(_)) => Some("its index is older than the last one".to_owned()),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use weir_protocol::part::{self, Part};
    use weir_tarball::ContentKey;
    use weir_upstream::SourceKind;

    use super::*;
    use crate::{Candidate, Service};

    const BY_WEBHOOK: Admission = Admission::Asked(StepBack::Webhook);
    const BY_REFRESH: Admission = Admission::Asked(StepBack::Refresh);

    fn service() -> Service {
        of(json!({ "name": "shop", "repository": "shop" }))
    }

    fn of(config: serde_json::Value) -> Service {
        Service::new(&serde_json::from_value(config).unwrap(), |_| Some(SourceKind::Git), None).unwrap()
    }

    fn commit(number: u64) -> RevisionId {
        format!("sha1:{number:040x}").parse().unwrap()
    }

    /// Of a revision that a poll found, which began then.
    fn seen(at: Instant, is_behind: bool) -> Age {
        Age { seen_at: Some(at), behind: is_behind.then(|| "older".to_owned()), ..Age::default() }
    }

    /// Returns the time after so many seconds.
    fn clock() -> impl Fn(u64) -> Instant {
        let start = Instant::now();
        move |seconds| start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_webhook_s_name_ends_with_what_a_later_poll_finds() {
        let (service, at) = (service(), clock());
        let admit = |number, seconds| service.admit(&commit(number), &[], &seen(at(seconds), true), at(seconds));
        // Two pushes between two polls, and both deliveries again after the poll that found the second.
        service.name_revision(commit(5), at(1));
        service.name_revision(commit(6), at(2));
        service.followed(&commit(6), &[], &seen(at(3), false));
        assert_eq!(admit(5, 4), Admission::Back);
        service.name_revision(commit(6), at(5));
        service.followed(&commit(7), &[], &seen(at(4), false));
        assert_eq!(admit(6, 6), Admission::Back);
        // One that arrives while a poll runs is of the next one. It counts until it is followed, so also if a build fails.
        service.name_revision(commit(4), at(8));
        service.followed(&commit(8), &[], &seen(at(7), false));
        assert_eq!([admit(4, 9), admit(4, 10)], [BY_WEBHOOK; 2]);
        service.followed(&commit(4), &[], &seen(at(10), true));
        service.followed(&commit(8), &[], &seen(at(11), false));
        assert_eq!(admit(4, 12), Admission::Back);
    }

    #[test]
    fn what_a_refresh_found_is_admitted_until_it_is_followed_and_nothing_else_is() {
        let (service, at) = (service(), clock());
        let admit = |number, seconds| service.admit(&commit(number), &[], &seen(at(seconds), true), at(seconds));
        service.ask_for_poll(at(2));
        assert_eq!(admit(3, 1), Admission::Back, "an earlier poll");
        assert_eq!([admit(3, 3), admit(3, 4)], [BY_REFRESH; 2], "its build fails");
        assert_eq!([admit(2, 5), admit(3, 6)], [Admission::Back; 2]);
        service.ask_for_poll(at(7));
        assert_eq!(admit(3, 8), BY_REFRESH);
        service.followed(&commit(3), &[], &seen(at(8), true));
        assert_eq!(admit(3, 9), Admission::Back);
        service.ask_for_poll(at(10));
        service.not_found(Some(at(9)));
        assert!(service.awaits_poll());
        service.not_found(Some(at(11)));
        assert!(!service.awaits_poll());
    }

    #[test]
    fn another_origin_s_time_is_not_remembered() {
        let (service, at) = (service(), clock());
        service.followed(&commit(5), &[], &seen(at(1), false));
        service.ask_for_poll(at(2));
        service.set_aside();
        assert_eq!((service.last_revision(), service.awaits_poll()), (None, false));
    }

    #[test]
    fn every_part_that_is_behind_needs_a_request() {
        let part = |to: &str| json!({ "repository": to, "to": to });
        let service = Arc::new(of(json!({ "name": "shop", "parts": [part("a"), part("b")] })));
        let at = clock();
        let parts = ["a", "b"].map(|to| Part::of_repository(to.to_owned(), to.parse().unwrap(), commit(1)));
        let admit = |are_behind: [bool; 2], seconds| {
            let age = Age {
                parts: are_behind.map(|is_behind| seen(at(seconds), is_behind)).into(),
                ..seen(at(seconds), true)
            };
            service.admit(&part::revision_of(&parts), &parts, &age, at(seconds))
        };
        service.parts[1].ask_for_poll(at(1));
        assert_eq!(admit([true, false], 2), Admission::Back);
        assert_eq!(admit([true, true], 3), Admission::Back);
        assert_eq!(admit([false, true], 4), BY_REFRESH);
        service.parts[0].ask_for_poll(at(5));
        assert_eq!(admit([true, true], 6), BY_REFRESH);
    }

    #[test]
    fn the_history_says_which_parts_are_behind() {
        let part = |to: &str| json!({ "repository": to, "to": to });
        let service = Arc::new(of(json!({ "name": "shop", "parts": [part("a"), part("b")] })));
        let at = |numbers: [u64; 2]| {
            let part =
                |(to, number): (&str, u64)| Part::of_repository(to.to_owned(), to.parse().unwrap(), commit(number));
            let parts: Vec<Part> = ["a", "b"].into_iter().zip(numbers).map(part).collect();
            let age = Box::new(Age { parts: vec![Age::default(); 2], ..Age::default() });
            let (revision, key) = (part::revision_of(&parts), ContentKey::from_bytes([0; 32]));
            Candidate { service: service.clone(), revision, version: None, parts, key, age, stepped_back: None }
        };
        at([5, 5]).followed();
        for (whole, parts, behind) in [
            (false, [false, false], &[][..]),
            (true, [false, true], &["b"]),
            (true, [false, false], &["a"]),
            (false, [true, true], &["a", "b"]),
        ] {
            let mut candidate = at([4, 5]);
            candidate.followed_before(whole, &parts);
            let found: Vec<&str> = candidate.behind().into_iter().map(|(to, ..)| to).collect();
            assert_eq!((found.as_slice(), candidate.age.behind.is_some()), (behind, !behind.is_empty()));
        }
    }
}
