//! The part of a repository's state in memory: what requests and decisions need of each service, not its whole row.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_rollout::{Plan, State};
use weir_source::Pin;
use weir_store::Version;
use weir_tarball::ContentKey;

use super::record::RepositoryRecord;
use super::row::{self, Row, Staging};

/// Why and since when nothing new is published for a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspension {
    /// When it began.
    pub since: SystemTime,
    /// For operators.
    pub reason: String,
    /// What ends it.
    pub until: SuspendedUntil,
}

/// What ends a suspension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspendedUntil {
    /// The store did not answer: the next change or retry reads again.
    Read,
    /// The state was read with damage and is served like that. An operator compares it and confirms.
    Confirmed,
    /// The state was damaged during this run. The origin still serves the state from before the damage, so an
    /// operator can compare the stored state only after a restart.
    Restarted,
}

#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) record: RepositoryRecord,
    /// `None`: no record is stored yet.
    pub(crate) version: Option<Version>,
    pub(crate) services: BTreeMap<ServiceName, Box<KnownService>>,
    pub(crate) suspension: Option<Suspension>,
}

#[derive(Debug, Clone)]
pub(crate) struct KnownService {
    pub(crate) generation: Generation,
    /// See [`Row::generation_for_all`].
    pub(crate) generation_for_all: Generation,
    /// See [`Row::has_unknown_audience`].
    pub(crate) has_unknown_audience: bool,
    /// The staged version, if there is one.
    pub(crate) staged: Option<KnownStaged>,
    /// What was staged and aborted, while its content waits.
    pub(crate) aborted: Option<KnownAborted>,
    pub(crate) current: Option<KnownVersion>,
    pub(crate) pin: Option<Pin>,
    pub(crate) retained: Vec<KnownRetained>,
    /// Another key whose build had the current digest. Kept in memory only; a restart costs one build.
    pub(crate) other_key: Option<ContentKey>,
    pub(crate) is_tombstone: bool,
    pub(crate) is_moving: bool,
    /// When the document of operators was written that this repository stores, in Unix milliseconds.
    pub(crate) defined_at: Option<u64>,
}

#[derive(Debug, Clone)]
pub(crate) struct KnownVersion {
    pub(crate) descriptor: Arc<Descriptor>,
    pub(crate) key: ContentKey,
    pub(crate) recipe: Option<ObjectDigest>,
}

#[derive(Debug, Clone)]
pub(crate) struct KnownStaged {
    pub(crate) key: ContentKey,
    pub(crate) digest: TarballDigest,
    pub(crate) generation: Generation,
    /// See [`Staging::rollout`](super::row::Staging).
    pub(crate) rollout: Option<Arc<State>>,
    /// See [`Staging::followed_ref`](super::row::Staging).
    followed_ref: Option<String>,
    /// See [`Staging::was_tip`](super::row::Staging).
    pub(crate) was_tip: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct KnownAborted {
    key: ContentKey,
    followed_ref: Option<String>,
    is_lifted_by_another_tip: bool,
}

/// What a tip does while something is staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhileStaged {
    /// Nothing, and it is not built.
    Waits,
    /// It changes the row, from stored content.
    Decides,
}

#[derive(Debug, Clone)]
pub(crate) struct KnownRetained {
    pub(crate) digest: TarballDigest,
    pub(crate) key: ContentKey,
    /// Unix milliseconds.
    pub(crate) superseded_at: u64,
    /// When this process first saw it superseded.
    pub(crate) seen: Instant,
    /// It does not expire.
    pub(crate) is_staged: bool,
}

impl Known {
    pub(crate) fn new(record: RepositoryRecord, version: Option<Version>) -> Self {
        Self { record, version, services: BTreeMap::new(), suspension: None }
    }

    /// Updates the state from a durable row.
    pub(crate) fn take(&mut self, row: &Row, now: Instant) {
        let before = self.services.remove(&row.service);
        if !row.is_empty() {
            let known = KnownService::of(row, before.as_deref(), now);
            self.services.insert(row.service.clone(), Box::new(known));
        }
    }

    /// All tombstones except the newest `most`.
    pub(crate) fn excess_tombstones(&self, most: usize) -> Vec<ServiceName> {
        let tombstones = self.services.iter().filter(|(_, known)| known.is_tombstone);
        let mut tombstones: Vec<_> = tombstones.map(|(service, known)| (known.generation, service)).collect();
        tombstones.sort_unstable_by(|one, other| other.cmp(one));
        tombstones.into_iter().skip(most).map(|(_, service)| service.clone()).collect()
    }

    /// How many superseded versions are retained.
    pub(crate) fn retained(&self) -> usize {
        self.services.values().map(|service| service.retained.len()).sum()
    }
}

impl KnownService {
    fn of(row: &Row, before: Option<&Self>, now: Instant) -> Self {
        let current = row.current.as_ref().and_then(|version| {
            let read = version.descriptor().inspect_err(|error| {
                tracing::error!(service = %row.service, %error, "the current descriptor of the service cannot be read");
            });
            let (key, recipe) = (version.key, version.recipe);
            read.ok().map(|descriptor| KnownVersion { descriptor: Arc::new(descriptor), key, recipe })
        });
        let retained = row.retained.iter().map(|retained| {
            let (digest, key) = (retained.version.digest, retained.version.key);
            let (superseded_at, is_staged) = (retained.superseded_at, row.is_staged(&digest));
            let known = KnownRetained { digest, key, superseded_at, seen: now, is_staged };
            match before {
                Some(before) => known.inherit(before),
                None => known,
            }
        });
        Self {
            generation: row.generation,
            generation_for_all: row.generation_for_all(),
            has_unknown_audience: row.has_unknown_audience(),
            staged: row.staged.as_ref().and_then(|staged| {
                let key = row.version(&staged.digest)?.key;
                let Staging { digest, generation, rollout, followed_ref, was_tip, .. } = staged.clone();
                Some(KnownStaged { key, digest, generation, rollout: rollout.map(Arc::new), followed_ref, was_tip })
            }),
            aborted: row.aborted.as_ref().filter(|aborted| aborted.refuses()).map(|aborted| KnownAborted {
                key: aborted.key,
                followed_ref: aborted.followed_ref.clone(),
                is_lifted_by_another_tip: aborted.is_lifted_by_another_tip(),
            }),
            pin: row.pin.as_ref().map(row::Pin::shown),
            retained: retained.collect(),
            other_key: None,
            is_tombstone: row.is_tombstone(),
            is_moving: row.is_moving,
            defined_at: row.definition.as_ref().map(|definition| definition.written_at),
            current,
        }
    }

    /// Takes over since when its superseded versions are known to be that.
    pub(crate) fn inherit(&mut self, before: &Self) {
        let retained = std::mem::take(&mut self.retained);
        self.retained = retained.into_iter().map(|retained| retained.inherit(before)).collect();
    }

    /// The superseded versions that may expire.
    pub(crate) fn expirable(&self) -> impl Iterator<Item = &KnownRetained> {
        self.retained.iter().filter(|retained| !retained.is_staged)
    }

    /// Whether the repository has a published version or a document of it.
    pub(crate) fn is_present(&self) -> bool {
        self.current.is_some() || self.defined_at.is_some()
    }

    /// Whether the repository is the last that published the service, and may publish the next generation.
    pub(crate) fn holds(&self) -> bool {
        let is_last = |current: &KnownVersion| current.descriptor.publication().generation == self.generation_for_all;
        !self.is_moving && self.current.as_ref().is_some_and(is_last)
    }

    /// What a tip with this key does while something is staged or was aborted. `None`: it is published or staged as always.
    pub(crate) fn while_staged(&self, key: &ContentKey, followed: &str, has_plan: bool) -> Option<WhileStaged> {
        let follows_same = self.current.as_ref().is_some_and(|it| it.descriptor.followed_ref() == followed);
        let follows = |of: &Option<String>| of.as_ref().map_or(follows_same, |of| of == followed);
        if let Some(aborted) = self.aborted.as_ref().filter(|aborted| follows(&aborted.followed_ref)) {
            if aborted.key == *key {
                return Some(WhileStaged::Waits);
            }
            if aborted.is_lifted_by_another_tip && self.is_at(key) {
                return Some(WhileStaged::Decides);
            }
        }
        let staged = self.staged.as_ref()?;
        let has_begun = staged.rollout.as_ref().is_none_or(|rollout| rollout.stage.is_some());
        if !follows(&staged.followed_ref) || !has_plan && !has_begun {
            return None;
        }
        if self.is_at(key) {
            return staged.was_tip.then_some(WhileStaged::Decides);
        }
        if staged.key == *key {
            return Some(if staged.was_tip { WhileStaged::Waits } else { WhileStaged::Decides });
        }
        let plan = staged.rollout.as_ref().and_then(|rollout| rollout.plan.known());
        let is_replaced = !has_begun || plan.is_some_and(Plan::replaces);
        (!is_replaced).then_some(WhileStaged::Waits)
    }

    /// Whether the current content is known to have this key.
    pub(crate) fn is_at(&self, key: &ContentKey) -> bool {
        self.other_key.as_ref() == Some(key) || self.current.as_ref().is_some_and(|current| current.key == *key)
    }
}

impl KnownRetained {
    /// Takes over since when it is known to be superseded. The age of one that was staged begins with its end.
    fn inherit(self, before: &KnownService) -> Self {
        let known = before.retained.iter().find(|known| known.digest == self.digest);
        let known = known.filter(|known| known.is_staged == self.is_staged);
        Self { seen: known.map_or(self.seen, |known| known.seen), ..self }
    }
}

/// A deleted service, with its last generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retired {
    /// The repository whose record remembers it.
    pub repository: RepositoryName,
    /// Its name.
    pub service: ServiceName,
    /// Its last one.
    pub generation: Generation,
}

/// The published state after the start.
#[derive(Debug, Default)]
pub struct Started {
    /// The current descriptors of the configured services.
    pub current: HashMap<ServiceName, Descriptor>,
    /// What holds each pinned service.
    pub pins: HashMap<ServiceName, Pin>,
    /// Services that were retired.
    pub retired: Vec<Retired>,
}

impl Started {
    /// Adds those services of a repository that are configured.
    pub(crate) fn add(&mut self, known: &Known, is_configured: impl Fn(&ServiceName) -> bool) {
        for (service, known) in &known.services {
            let Some(current) = known.current.as_ref().filter(|_| is_configured(service)) else { continue };
            let descriptor = &current.descriptor;
            let is_newer = |other: &Descriptor| other.version() < descriptor.version();
            if self.current.get(service).is_none_or(is_newer) {
                self.current.insert(service.clone(), Descriptor::clone(descriptor));
                self.pins.remove(service);
                self.pins.extend(known.pin.clone().map(|pin| (service.clone(), pin)));
            }
        }
    }
}
