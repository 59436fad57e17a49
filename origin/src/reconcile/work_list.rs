//! What is under way with each service of a repository. Pure: events in, what to do next out.
//!
//! ```text
//!   idle ──look, resolve──▶ deciding ──to build──▶ working ──ended──▶ idle
//!     ▲                        │ settled, refused
//!     └────────────────────────┘
//! ```
//!
//! One look at a time resolves the refs of all services that are due. Only a service that is idle is decided on and only
//! one work of it runs, so nothing old is ever published after something new; services do not wait for each other. While a
//! service fetches LFS objects it is looked at as well: where a newer commit has another content, the fetch goes on only
//! with what that one needs too, and when it ends the service is looked at again.

use std::collections::{BTreeMap, BTreeSet};

use weir_protocol::name::ServiceName;

use crate::tarball::ContentKey;

/// Why a service is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// The process has begun: what the mirror holds is published, and the upstream is not asked.
    Start,
    /// It is a new one: likewise, and a poll follows if that does not do.
    Assigned,
    /// Its ref may have moved, or something is tried again.
    Follow,
}

/// What to do with a service whose ref was resolved.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Find out whether its content is published or must be built.
    Decide,
    /// Its ref cannot be resolved.
    Fail,
    /// Nothing: it is being worked on already, or gone.
    Nothing,
    /// It is worked on for another content: go on only with what this one needs as well.
    Narrow,
}

/// The services of a repository, each with what is under way.
#[derive(Debug, Default)]
pub(super) struct WorkList {
    services: BTreeMap<ServiceName, Progress>,
    looking: BTreeSet<ServiceName>,
}

#[derive(Debug, Default)]
struct Progress {
    due: Option<Cause>,
    /// Why it was last looked at.
    looked_for: Option<Cause>,
    step: Step,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Idle,
    Deciding,
    Working {
        key: ContentKey,
        fetches_lfs: bool,
        /// Its ref has moved on to another content.
        outdated: bool,
    },
}

impl WorkList {
    /// A service is to be looked at, as soon as nothing stands against it.
    pub(super) fn due(&mut self, service: &ServiceName, cause: Cause) {
        let due = &mut self.services.entry(service.clone()).or_default().due;
        *due = (*due).max(Some(cause));
    }

    /// Services that are gone, or have another definition, are forgotten with what is under way.
    pub(super) fn forget(&mut self, service: &ServiceName) {
        self.services.remove(service);
        self.looking.remove(service);
    }

    /// The services whose refs are to be resolved now; nothing while a look is under way.
    pub(super) fn begin_look(&mut self) -> Vec<ServiceName> {
        if !self.looking.is_empty() {
            return Vec::new();
        }
        for (name, progress) in &mut self.services {
            if progress.may_be_looked_at() {
                progress.looked_for = progress.due.take();
                self.looking.insert(name.clone());
            }
        }
        self.looking.iter().cloned().collect()
    }

    /// Whether the ref of any service is to be resolved now.
    pub(super) fn has_due(&self) -> bool {
        self.services.values().any(Progress::may_be_looked_at)
    }

    /// The look has ended.
    pub(super) fn looked(&mut self) {
        self.looking.clear();
    }

    /// The ref of a service was resolved, or could not be (`None`).
    pub(super) fn resolved(&mut self, service: &ServiceName, found: Option<&ContentKey>) -> Next {
        let Some(progress) = self.services.get_mut(service).filter(|_| self.looking.contains(service)) else {
            return Next::Nothing;
        };
        match (&mut progress.step, found) {
            (Step::Idle, Some(_)) => {
                progress.step = Step::Deciding;
                Next::Decide
            }
            (Step::Working { key, outdated, .. }, found) => {
                // Also for the same content: it is to be published as of where the ref is now.
                *outdated = true;
                if found.is_some_and(|found| found != key) { Next::Narrow } else { Next::Nothing }
            }
            (Step::Idle, None) => Next::Fail,
            _ => Next::Nothing,
        }
    }

    /// A decision was made: to build this content, or nothing is to be done.
    pub(super) fn decided(&mut self, service: &ServiceName, to_build: Option<ContentKey>) {
        if let Some(progress) = self.services.get_mut(service) {
            progress.step =
                to_build.map_or(Step::Idle, |key| Step::Working { key, fetches_lfs: false, outdated: false });
        }
    }

    /// The work on a service begins, or has ended, to fetch LFS objects.
    pub(super) fn fetches_lfs(&mut self, service: &ServiceName, fetches: bool) {
        if let Some(Progress { step: Step::Working { fetches_lfs, .. }, .. }) = self.services.get_mut(service) {
            *fetches_lfs = fetches;
        }
    }

    /// The work on a service has ended.
    pub(super) fn ended(&mut self, service: &ServiceName) {
        let Some(progress) = self.services.get_mut(service) else { return };
        if let Step::Working { outdated: true, .. } = std::mem::take(&mut progress.step) {
            progress.due = progress.due.max(Some(Cause::Follow));
        }
    }

    /// Whether a service is to be looked at again: what is known of it may be of the past.
    pub(super) fn is_due(&self, service: &ServiceName) -> bool {
        self.looking.contains(service) || self.services.get(service).is_some_and(|progress| progress.due.is_some())
    }

    /// Why a service was last looked at.
    pub(super) fn cause(&self, service: &ServiceName) -> Option<Cause> {
        self.services.get(service)?.looked_for
    }

    /// Whether any service fetches LFS objects.
    pub(super) fn any_fetches_lfs(&self) -> bool {
        self.services.values().any(Progress::fetches_lfs)
    }

    /// How many services something is to be done with, or under way; but those that fetch LFS objects.
    pub(super) fn busy(&self) -> usize {
        let is_busy = |progress: &&Progress| match progress.step {
            Step::Idle => progress.due.is_some(),
            Step::Deciding => true,
            Step::Working { fetches_lfs, .. } => !fetches_lfs,
        };
        self.services.values().filter(is_busy).count() + self.looking.len()
    }
}

impl Progress {
    fn may_be_looked_at(&self) -> bool {
        self.due.is_some() && matches!(self.step, Step::Idle | Step::Working { fetches_lfs: true, .. })
    }

    fn fetches_lfs(&self) -> bool {
        matches!(self.step, Step::Working { fetches_lfs: true, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(name: &str) -> ServiceName {
        name.parse().unwrap()
    }

    fn key(byte: u8) -> ContentKey {
        ContentKey::from_bytes([byte; 32])
    }

    /// Services at which work on a content began.
    fn working(names: &[&str], content: u8) -> WorkList {
        let mut list = WorkList::default();
        names.iter().for_each(|each| list.due(&name(each), Cause::Follow));
        assert_eq!(list.begin_look().len(), names.len());
        for each in names {
            assert_eq!(list.resolved(&name(each), Some(&key(content))), Next::Decide);
            list.decided(&name(each), Some(key(content)));
        }
        list.looked();
        list
    }

    #[test]
    fn a_service_that_is_built_for_long_holds_up_no_other() {
        let (slow, other) = (name("slow"), name("other"));
        let mut list = working(&["slow", "other"], 1);
        list.ended(&other);
        assert!(!list.is_due(&other));
        list.due(&slow, Cause::Follow);
        list.due(&other, Cause::Follow);
        assert_eq!(
            list.begin_look(),
            std::slice::from_ref(&other),
            "the slow one is looked at when its work has ended"
        );
        assert_eq!(list.resolved(&other, Some(&key(2))), Next::Decide);
        list.decided(&other, None);
        list.looked();
        assert!(list.begin_look().is_empty());
        list.ended(&slow);
        assert_eq!(list.begin_look(), [slow]);
    }

    #[test]
    fn what_is_fetched_for_a_service_is_narrowed_when_its_content_moves_on_and_only_then() {
        let shop = name("shop");
        let mut list = working(&["shop"], 1);
        assert_eq!(list.busy(), 1);
        list.fetches_lfs(&shop, true);
        assert_eq!((list.busy(), list.any_fetches_lfs()), (0, true), "who waits for a poll does not wait for LFS");
        for (content, next) in [(1, Next::Nothing), (2, Next::Narrow)] {
            list.due(&shop, Cause::Follow);
            assert_eq!(list.begin_look().len(), 1);
            assert_eq!(list.resolved(&shop, Some(&key(content))), next);
            list.looked();
        }
        list.ended(&shop);
        assert!(list.is_due(&shop), "it is looked at again");
    }

    #[test]
    fn who_looks_for_a_poll_does_not_hide_what_a_start_hides() {
        let shop = name("shop");
        let mut list = WorkList::default();
        list.due(&shop, Cause::Start);
        list.due(&shop, Cause::Follow);
        list.due(&shop, Cause::Assigned);
        list.begin_look();
        assert_eq!(list.cause(&shop), Some(Cause::Follow));
        list.forget(&shop);
        assert_eq!(list.resolved(&shop, Some(&key(1))), Next::Nothing, "it is another by now");
        assert!(list.begin_look().is_empty());
    }

    proptest! {
        /// Whatever happens in whatever order: one work of a service at a time, and nothing that is due is lost.
        #[test]
        fn no_service_is_worked_on_twice_and_none_is_forgotten(
            steps in prop::collection::vec((0u8..6, 0usize..3, 0u8..3), 1..200)
        ) {
            let names = ["a", "b", "c"].map(name);
            let mut list = WorkList::default();
            let mut working = [false; 3];
            let (mut looking, mut seen) = (Vec::new(), [0u32; 3]);
            let mut wanted = [0u32; 3];
            for (step, at, content) in steps {
                let service = &names[at];
                match step {
                    0 => {
                        list.due(service, Cause::Follow);
                        wanted[at] += 1;
                    }
                    1 => {
                        let begun = list.begin_look();
                        prop_assert!(begun.is_empty() || looking.is_empty());
                        for service in begun {
                            let at = names.iter().position(|name| *name == service).unwrap();
                            seen[at] = wanted[at];
                            looking.push(service);
                        }
                    }
                    2 => {
                        for service in std::mem::take(&mut looking) {
                            let at = names.iter().position(|name| *name == service).unwrap();
                            match list.resolved(&service, Some(&key(content))) {
                                Next::Decide => {
                                    prop_assert!(!working[at]);
                                    working[at] = true;
                                    list.decided(&service, Some(key(content)));
                                }
                                _ => prop_assert!(working[at]),
                            }
                        }
                        list.looked();
                    }
                    3 | 4 => list.fetches_lfs(service, step == 3),
                    _ if working[at] => {
                        working[at] = false;
                        list.ended(service);
                    }
                    _ => {}
                }
            }
            // Once all that is under way has ended, whoever was due after he was last seen is looked at.
            list.looked();
            names.iter().for_each(|service| list.ended(service));
            let last = list.begin_look();
            for (at, service) in names.iter().enumerate() {
                prop_assert!(seen[at] == wanted[at] || last.contains(service), "{service} is forgotten");
            }
        }
    }
}
