//! Pure: the state machine of a repository's services.
//!
//! ```text
//!          resolved              needs a build
//!   Idle ────────────▶ Cached ─────────────────▶ Building ───┐
//!    ▲ ▲                  │ published, or failed             │ ended
//!    │ └──────────────────┘                                  │
//!    └───────────────────────────────────────────────────────┘
//! ```
//!
//! | state | event | next state | action |
//! |---|---|---|---|
//! | `Idle` | the ref was resolved | `Cached` | publish the content if it is cached |
//! | `Idle` | the ref cannot be resolved | `Idle` | record the failure |
//! | `Cached` | the content is published, or must not be | `Idle` | record the result |
//! | `Cached` | the content needs a build | `Building` | fetch LFS objects, build, publish |
//! | `Building`, fetches LFS objects | the ref has another content | `Building`, outdated | restrict the fetch to objects that the new content needs too |
//! | `Building`, fetches LFS objects | the ref has the same content, or cannot be resolved | `Building`, outdated | none |
//! | `Building` | the build ended | `Idle`, due if outdated | record the result |
//! | any | the service was removed or redefined | none | forget it |
//!
//! A service is due after an event that may change its result ([`Cause`]). One task at a time resolves all services that are
//! due and `Idle`, or that fetch LFS objects. A service has one publication at a time, so an older content is never published
//! after a newer one. Services do not wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use weir_protocol::name::ServiceName;
use weir_tarball::ContentKey;

/// Why a service is due. Of several causes the greatest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// The process started: the content of the mirror is published without querying the upstream.
    Started,
    /// The service is new: likewise, and a poll follows if that fails.
    Assigned,
    /// Its ref may have changed, or a failure is retried.
    Changed,
}

/// What the worker does with a resolved service.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Publish its content if it is cached, and find out whether it needs a build.
    PublishCached,
    /// Record that its ref cannot be resolved.
    RecordFailure,
    /// Restrict the LFS fetch of its build to objects that the new content needs too.
    RestrictFetch,
    None,
}

/// The states of all services of a repository.
#[derive(Debug, Default)]
pub(super) struct ServiceStates {
    services: BTreeMap<ServiceName, ServiceState>,
    resolving: BTreeSet<ServiceName>,
}

#[derive(Debug, Default)]
struct ServiceState {
    due: Option<Cause>,
    /// Why it was last resolved.
    last_cause: Option<Cause>,
    step: Step,
    /// It is due after the next poll even if no ref changes.
    needs_reconcile: bool,
    /// It has not applied all polls: the number of the first missing one.
    unapplied_poll: Option<u64>,
    /// It waits for LFS objects: since when, and for how many.
    lfs_wait: Option<(SystemTime, usize)>,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Idle,
    Cached,
    Building {
        key: ContentKey,
        fetches_lfs: bool,
        /// The service was resolved again since the build started.
        outdated: bool,
    },
}

impl ServiceStates {
    /// A service must be resolved once its state allows it.
    pub(super) fn mark_due(&mut self, service: &ServiceName, cause: Cause) {
        let due = &mut self.entry(service).due;
        *due = (*due).max(Some(cause));
    }

    /// The same, because something changed.
    pub(super) fn mark_each_due<'a>(&mut self, names: impl IntoIterator<Item = &'a ServiceName>) {
        names.into_iter().for_each(|name| self.mark_due(name, Cause::Changed));
    }

    /// A service is due after the next poll even if no ref changes.
    pub(super) fn reconcile_after_poll(&mut self, service: &ServiceName) {
        self.entry(service).needs_reconcile = true;
    }

    /// This many polls have ended. The service is due if the last one changed the mirror, or if it waited for that poll.
    /// Returns whether it is.
    pub(super) fn polled(&mut self, service: &ServiceName, changed: bool, polls: u64) -> bool {
        let state = self.entry(service);
        let is_due = changed || state.needs_reconcile;
        if is_due {
            state.due = Some(Cause::Changed);
            state.unapplied_poll.get_or_insert(polls);
        }
        is_due
    }

    /// A service was removed or redefined.
    pub(super) fn remove(&mut self, service: &ServiceName) {
        self.services.remove(service);
        self.resolving.remove(service);
    }

    /// Starts resolving, and returns the services to resolve. Returns none while others are being resolved.
    pub(super) fn start_resolve(&mut self) -> Vec<ServiceName> {
        if !self.resolving.is_empty() {
            return Vec::new();
        }
        for (name, state) in &mut self.services {
            if state.may_be_resolved() {
                state.last_cause = state.due.take();
                // Set again if it fails again.
                state.needs_reconcile = false;
                self.resolving.insert(name.clone());
            }
        }
        self.resolving.iter().cloned().collect()
    }

    /// Whether any service may be resolved now.
    pub(super) fn has_due(&self) -> bool {
        self.services.values().any(ServiceState::may_be_resolved)
    }

    /// The ref of a service was resolved to a content. `None`: it cannot be resolved.
    pub(super) fn resolved(&mut self, service: &ServiceName, found: Option<&ContentKey>) -> Action {
        let Some(state) = self.services.get_mut(service).filter(|_| self.resolving.contains(service)) else {
            return Action::None;
        };
        match (&mut state.step, found) {
            (Step::Idle, Some(_)) => {
                state.step = Step::Cached;
                Action::PublishCached
            }
            (Step::Idle, None) => Action::RecordFailure,
            (Step::Building { key, outdated, .. }, found) => {
                // Also for the same content, because its published commit must be the ref's current one.
                *outdated = true;
                // Polls do not wait for LFS objects.
                state.unapplied_poll = None;
                if found.is_some_and(|found| found != key) { Action::RestrictFetch } else { Action::None }
            }
            (Step::Cached, _) => Action::None,
        }
    }

    /// All services were resolved.
    pub(super) fn end_resolve(&mut self) {
        self.resolving.clear();
    }

    /// A content was published from the cache, or must not be published; or it needs a build.
    pub(super) fn cached_ended(&mut self, service: &ServiceName, needs_build: Option<ContentKey>) {
        if let Some(state) = self.services.get_mut(service) {
            let building = |key| Step::Building { key, fetches_lfs: false, outdated: false };
            state.step = needs_build.map_or(Step::Idle, building);
        }
    }

    /// A build started to fetch this many LFS objects, or ended to.
    pub(super) fn set_lfs_fetch(&mut self, service: &ServiceName, missing: Option<usize>, now: SystemTime) {
        let Some(state) = self.services.get_mut(service) else { return };
        if let Step::Building { fetches_lfs, .. } = &mut state.step {
            *fetches_lfs = missing.is_some();
        }
        if let Some(missing) = missing {
            state.unapplied_poll = None;
            state.lfs_wait.get_or_insert((now, missing)).1 = missing;
        }
    }

    /// A build ended.
    pub(super) fn build_ended(&mut self, service: &ServiceName) {
        let Some(state) = self.services.get_mut(service) else { return };
        if let Step::Building { outdated: true, .. } = std::mem::take(&mut state.step) {
            state.due = state.due.max(Some(Cause::Changed));
        }
    }

    /// A service has a result: it has applied all polls, or all but the last of these if it is due again. `lacks_lfs`: LFS
    /// objects are missing.
    pub(super) fn ended(&mut self, service: &ServiceName, polls: u64, lacks_lfs: bool) {
        let is_due = self.is_due(service);
        let state = self.entry(service);
        state.unapplied_poll = state.unapplied_poll.filter(|_| is_due).map(|_| polls);
        state.lfs_wait = state.lfs_wait.filter(|_| lacks_lfs);
    }

    /// How many of these polls all services have applied.
    pub(super) fn applied_polls(&self, polls: u64) -> u64 {
        self.services.values().filter_map(|state| state.unapplied_poll).min().map_or(polls, |first| first - 1)
    }

    /// The services that wait for LFS objects: since when, and for how many.
    pub(super) fn lfs_waits(&self) -> impl Iterator<Item = (&ServiceName, SystemTime, usize)> {
        self.services.iter().filter_map(|(name, state)| state.lfs_wait.map(|(since, objects)| (name, since, objects)))
    }

    /// Whether a service is due or being resolved, so that its last result may be outdated.
    pub(super) fn is_due(&self, service: &ServiceName) -> bool {
        self.resolving.contains(service) || self.services.get(service).is_some_and(|state| state.due.is_some())
    }

    /// Whether a service is due or in progress.
    pub(super) fn is_busy(&self, service: &ServiceName) -> bool {
        self.is_due(service) || self.services.get(service).is_some_and(|state| state.step != Step::Idle)
    }

    /// Why a service was last resolved.
    pub(super) fn last_cause(&self, service: &ServiceName) -> Option<Cause> {
        self.services.get(service)?.last_cause
    }

    /// Whether any service fetches LFS objects.
    pub(super) fn any_fetches_lfs(&self) -> bool {
        self.services.values().any(ServiceState::fetches_lfs)
    }

    /// The number of services that are due or in progress, except those that fetch LFS objects.
    pub(super) fn busy(&self) -> usize {
        let is_busy = |state: &&ServiceState| match state.step {
            Step::Idle => state.due.is_some(),
            Step::Cached => true,
            Step::Building { fetches_lfs, .. } => !fetches_lfs,
        };
        self.services.values().filter(is_busy).count() + self.resolving.len()
    }

    fn entry(&mut self, service: &ServiceName) -> &mut ServiceState {
        self.services.entry(service.clone()).or_default()
    }
}

impl ServiceState {
    fn may_be_resolved(&self) -> bool {
        self.due.is_some() && (self.step == Step::Idle || self.fetches_lfs())
    }

    fn fetches_lfs(&self) -> bool {
        matches!(self.step, Step::Building { fetches_lfs: true, .. })
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

    /// Services whose builds of a content have started.
    fn building(names: &[&str], content: u8) -> ServiceStates {
        let mut states = ServiceStates::default();
        names.iter().for_each(|each| states.mark_due(&name(each), Cause::Changed));
        assert_eq!(states.start_resolve().len(), names.len());
        for each in names {
            assert_eq!(states.resolved(&name(each), Some(&key(content))), Action::PublishCached);
            states.cached_ended(&name(each), Some(key(content)));
        }
        states.end_resolve();
        states
    }

    #[test]
    fn a_long_build_delays_no_other_service() {
        let (slow, other) = (name("slow"), name("other"));
        let mut states = building(&["slow", "other"], 1);
        states.build_ended(&other);
        assert!(!states.is_due(&other));
        states.mark_due(&slow, Cause::Changed);
        states.mark_due(&other, Cause::Changed);
        assert_eq!(
            states.start_resolve(),
            std::slice::from_ref(&other),
            "the slow one is resolved when its build has ended"
        );
        assert_eq!(states.resolved(&other, Some(&key(2))), Action::PublishCached);
        states.cached_ended(&other, None);
        states.end_resolve();
        assert!(states.start_resolve().is_empty());
        states.build_ended(&slow);
        assert_eq!(states.start_resolve(), [slow]);
    }

    #[test]
    fn an_lfs_fetch_is_restricted_only_when_the_ref_has_another_content() {
        let shop = name("shop");
        let mut states = building(&["shop"], 1);
        assert_eq!(states.busy(), 1);
        states.set_lfs_fetch(&shop, Some(1), SystemTime::UNIX_EPOCH);
        assert_eq!((states.busy(), states.any_fetches_lfs()), (0, true), "polls do not wait for LFS fetches");
        for (content, action) in [(1, Action::None), (2, Action::RestrictFetch)] {
            states.mark_due(&shop, Cause::Changed);
            assert_eq!(states.start_resolve().len(), 1);
            assert_eq!(states.resolved(&shop, Some(&key(content))), action);
            states.end_resolve();
        }
        states.build_ended(&shop);
        assert!(states.is_due(&shop), "it is resolved again");
    }

    #[test]
    fn the_strongest_cause_counts_and_a_removed_service_is_forgotten() {
        let shop = name("shop");
        let mut states = ServiceStates::default();
        states.mark_due(&shop, Cause::Started);
        states.mark_due(&shop, Cause::Changed);
        states.mark_due(&shop, Cause::Assigned);
        states.start_resolve();
        assert_eq!(states.last_cause(&shop), Some(Cause::Changed));
        states.remove(&shop);
        assert_eq!(states.resolved(&shop, Some(&key(1))), Action::None, "it was redefined");
        assert!(states.start_resolve().is_empty());
    }

    proptest! {
        /// After any sequence of events a service has one build at a time, and no due service is lost.
        #[test]
        fn no_service_is_built_twice_at_a_time_and_none_is_forgotten(
            steps in prop::collection::vec((0u8..6, 0usize..3, 0u8..3), 1..200)
        ) {
            let names = ["a", "b", "c"].map(name);
            let mut states = ServiceStates::default();
            let mut building = [false; 3];
            let (mut resolving, mut seen) = (Vec::new(), [0u32; 3]);
            let mut requested = [0u32; 3];
            for (step, at, content) in steps {
                let service = &names[at];
                match step {
                    0 => {
                        states.mark_due(service, Cause::Changed);
                        requested[at] += 1;
                    }
                    1 => {
                        let started = states.start_resolve();
                        prop_assert!(started.is_empty() || resolving.is_empty());
                        for service in started {
                            let at = names.iter().position(|name| *name == service).unwrap();
                            seen[at] = requested[at];
                            resolving.push(service);
                        }
                    }
                    2 => {
                        for service in std::mem::take(&mut resolving) {
                            let at = names.iter().position(|name| *name == service).unwrap();
                            match states.resolved(&service, Some(&key(content))) {
                                Action::PublishCached => {
                                    prop_assert!(!building[at]);
                                    building[at] = true;
                                    states.cached_ended(&service, Some(key(content)));
                                }
                                _ => prop_assert!(building[at]),
                            }
                        }
                        states.end_resolve();
                    }
                    3 | 4 => states.set_lfs_fetch(service, (step == 3).then_some(1), SystemTime::UNIX_EPOCH),
                    _ if building[at] => {
                        building[at] = false;
                        states.build_ended(service);
                    }
                    _ => {}
                }
            }
            // After everything in progress has ended, each service that was due since it was last resolved is resolved.
            states.end_resolve();
            names.iter().for_each(|service| states.build_ended(service));
            let last = states.start_resolve();
            for (at, service) in names.iter().enumerate() {
                prop_assert!(seen[at] == requested[at] || last.contains(service), "{service} is forgotten");
            }
        }
    }
}
