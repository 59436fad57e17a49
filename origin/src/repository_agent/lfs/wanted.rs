//! Which LFS objects are waited for and by whom, which of them could not be had, and when they are asked for again. Pure:
//! time and chance are arguments.
//!
//! Each object that could not be had is left alone for a while, longer each time. Others are asked for at once, so that a
//! new commit does not wait for what an earlier one could not get.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use weir_shared::digest::ObjectDigest;
use weir_shared::name::ServiceName;

use super::super::back_off::{LONGEST_BACK_OFF, back_off, jittered, kept};
use super::super::state::{LfsFailure, LfsState};
use crate::lfs::{LfsFile, LfsOid};

/// Who waits for objects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Who {
    /// A service, to be published.
    Service(ServiceName),
    /// A blob, to be built again.
    Object(ObjectDigest),
}

/// What is waited for.
#[derive(Debug, Default)]
pub(in super::super) struct Wanted {
    waiting: BTreeMap<Who, Vec<LfsFile>>,
    /// Since when each has waited, for whatever: who is behind stays so when a newer commit needs other objects.
    since: BTreeMap<Who, SystemTime>,
    failed: HashMap<LfsOid, Failed>,
    /// Until then nothing is asked for, and why.
    held: Option<(Instant, Arc<str>)>,
    due: Option<Instant>,
}

/// An object that could not be had.
#[derive(Debug)]
struct Failed {
    /// Attempts in a row that did not bring it.
    attempts: u32,
    /// Those of them in which it was tried itself.
    tries: u32,
    since: SystemTime,
    until: Instant,
    reason: Arc<str>,
}

/// How an attempt went.
#[derive(Debug, Default)]
pub(in super::super) struct Attempted {
    /// Objects that are here now, and those that cannot be had.
    pub(super) tried: HashMap<LfsOid, Result<(), Arc<str>>>,
    /// Why the others were not tried, unless nobody wanted them any more.
    pub(super) ended_by: Option<Arc<str>>,
    /// How long a server asks to be left alone.
    pub(super) pause: Option<Duration>,
}

impl Attempted {
    /// Nothing was tried.
    pub(super) fn failed(reason: String) -> Self {
        Self { ended_by: Some(reason.into()), ..Self::default() }
    }

    /// Whether it brought anything.
    pub(super) fn brought_something(&self) -> bool {
        self.tried.values().any(Result::is_ok)
    }

    /// Whether it brought less than all.
    pub(super) fn has_failed(&self) -> bool {
        self.ended_by.is_some() || self.tried.values().any(Result::is_err)
    }
}

impl Wanted {
    /// Nothing is asked for until then: an agent before this one was told so.
    pub(in super::super) fn hold(&mut self, until: Instant) {
        self.held = Some((until, "the LFS server, or its storage, asked to be left alone".into()));
    }

    /// Nobody waits, and nothing else is known.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.failed.is_empty() && self.held.is_none()
    }

    /// Somebody waits for objects, and no longer for others.
    pub(super) fn waits(&mut self, who: Who, files: Vec<LfsFile>, clock: SystemTime) {
        self.since.entry(who.clone()).or_insert(clock);
        self.waiting.insert(who, files);
    }

    /// Somebody does not wait any more.
    pub(in super::super) fn waits_no_more(&mut self, who: &Who) {
        self.waiting.remove(who);
    }

    /// Those do not wait any more of whom that is not so.
    pub(super) fn retain(&mut self, waits: impl Fn(&Who) -> bool) {
        self.waiting.retain(|who, _| waits(who));
    }

    /// Whether somebody waits.
    pub(in super::super) fn is_waited_for_by(&self, who: &Who) -> bool {
        self.waiting.contains_key(who)
    }

    /// Why objects cannot be had just now, as far as that is known.
    pub(super) fn failure(&self, files: &[LfsFile], now: Instant) -> Option<String> {
        let mut failed = files.iter().filter_map(|file| self.failed.get(&file.pointer.oid));
        let Some(first) = failed.next() else {
            return self.held.as_ref().filter(|(until, _)| now < *until).map(|(_, reason)| reason.to_string());
        };
        let others = failed.filter(|other| other.reason != first.reason).count();
        Some(if others == 0 { first.reason.to_string() } else { format!("{} (and {others} more)", first.reason) })
    }

    /// What could not be had is asked for again at once, unless the server wants to be left alone.
    pub(in super::super) fn forget_failures(&mut self) {
        self.failed.clear();
    }

    /// After changes: what nobody waits for is forgotten by and by, and the rest is due at its time.
    pub(super) fn settle(&mut self, now: Instant) {
        let objects = self.objects();
        // Not when somebody no longer waits: he may be about to wait for others.
        self.since.retain(|who, _| self.waiting.contains_key(who));
        // Whoever wants it again soon does not begin anew.
        self.failed.retain(|oid, failed| objects.contains(oid) || now < failed.until + LONGEST_BACK_OFF);
        self.held = self.held.take().filter(|(until, _)| now < *until);
        let due = objects.iter().map(|oid| self.failed.get(oid).map_or(now, |failed| failed.until)).min();
        self.due = due.map(|due| self.held.as_ref().map_or(due, |(until, _)| due.max(*until)));
    }

    /// When the next attempt is due, if anything is waited for.
    pub(in super::super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// All objects that are waited for.
    pub(super) fn objects(&self) -> HashSet<LfsOid> {
        self.waiting.values().flatten().map(|file| file.pointer.oid).collect()
    }

    /// What is asked for now: each object once, together with those that the same one waits for. Little comes first, and what
    /// was tried in vain last, so that it does not keep others waiting for ever.
    pub(super) fn due_now(&self, now: Instant) -> Vec<Vec<LfsFile>> {
        let tries = |file: &LfsFile| self.failed.get(&file.pointer.oid).map_or(0, |failed| failed.tries);
        let mut seen = HashSet::new();
        let mut groups = Vec::new();
        for files in self.waiting.values() {
            let is_due = |file: &&LfsFile| self.failed.get(&file.pointer.oid).is_none_or(|failed| failed.until <= now);
            let mut due: Vec<LfsFile> = files.iter().filter(is_due).cloned().collect();
            due.retain(|file| seen.insert(file.pointer.oid));
            due.sort_by_key(tries);
            if let Some(last) = due.last() {
                let bytes = due.iter().fold(0u64, |sum, file| sum.saturating_add(file.pointer.size));
                groups.push(((tries(last), bytes), due));
            }
        }
        groups.sort_by_key(|(order, _)| *order);
        groups.into_iter().map(|(_, due)| due).collect()
    }

    /// An attempt to fetch `asked` has ended. `interval`: of the repository's polls.
    pub(super) fn attempted(
        &mut self,
        asked: &[LfsOid],
        attempted: &Attempted,
        interval: Duration,
        (now, clock): (Instant, SystemTime),
        chance: f64,
    ) {
        for oid in asked {
            let (reason, tries) = match (attempted.tried.get(oid), &attempted.ended_by) {
                (Some(Err(reason)), _) => (reason, 1),
                (None, Some(reason)) => (reason, 0),
                (Some(Ok(())), _) | (None, None) => {
                    self.failed.remove(oid);
                    continue;
                }
            };
            let (reason, new) =
                (reason.clone(), || Failed { attempts: 0, tries: 0, since: clock, until: now, reason: reason.clone() });
            let failed = self.failed.entry(*oid).or_insert_with(new);
            failed.attempts = failed.attempts.saturating_add(1);
            failed.tries = failed.tries.saturating_add(tries);
            failed.until = now + jittered(back_off(interval, failed.attempts), chance);
            failed.reason = reason;
        }
        let held = attempted.pause.zip(attempted.ended_by.clone());
        self.held = held.map(|(pause, reason)| (now + kept(pause, chance), reason));
    }

    /// For people.
    pub(super) fn show(&self, on_the_clock: impl Fn(Instant) -> SystemTime) -> Option<LfsState> {
        let held_until = self.held.as_ref().map(|(until, _)| on_the_clock(*until));
        if self.waiting.is_empty() && held_until.is_none() {
            return None;
        }
        let services = self.waiting.keys().filter_map(|who| match who {
            Who::Service(name) => Some((name.clone(), *self.since.get(who)?)),
            Who::Object(_) => None,
        });
        let objects = self.objects();
        let failed = objects.iter().filter_map(|oid| self.failed.get(oid));
        let failure = failed.min_by_key(|failed| (failed.since, &failed.reason));
        let failure = failure.map(|failed| LfsFailure {
            since: failed.since,
            reason: failed.reason.to_string(),
            attempts: failed.attempts,
        });
        Some(LfsState {
            services: services.collect(),
            objects: objects.len(),
            fetching: false,
            waits_for: None,
            failure,
            next_attempt: self.due.map(on_the_clock),
            held_until,
        })
    }
}

#[cfg(test)]
mod tests;
