//! Finds the version of a service that a request gets, asking its origin when the rule of freshness says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weir_protocol::cache_status::{CacheStatus, Forward};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_runtime::bounds::Bound;
use weir_runtime::shutdown::Drain;

use super::decision::{Update, UpdateContent, UpdateSource};
use super::entry::{Entry, PurgeMode};
use super::error::LookupError;
use super::freshness::{Freshness, FreshnessPolicies, FreshnessPolicy};
use super::metrics::{CatalogMetrics, StaleReason};
use super::negative::Negative;
use super::past::{PastVersion, PastVersions};
use super::revisions::Seen;
use super::store::Catalog;
use super::updates::Outcome;
use crate::clock::Clock;
use crate::origin_client::{OriginId, Origins, Word};
use crate::single_flight::{Full, Seat, SingleFlight};
use crate::version::Version;

/// How long a request waits for the first answer ever about a service, or a version of it.
pub(super) const FIRST_ANSWER_WAIT: Duration = Duration::from_secs(15);

/// How often clients can force a query about one service.
const FORCED_INTERVAL: Duration = Duration::from_secs(1);

/// Queries under way at a time.
pub(super) const MAX_QUERIES: usize = 1024;

/// When the origin is asked before a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RevalidateMode {
    /// When the rule of freshness says so.
    IfStale,
    /// The client wants it; at most once a second.
    Forced,
    /// Always: what is stored has proved wrong.
    Always,
}

/// A version of a service, and how it was found.
#[derive(Debug, Clone)]
pub(crate) struct LookupResult {
    /// The version.
    pub(crate) version: Arc<Version>,
    /// Whose it is.
    pub(crate) origin: Option<OriginId>,
    /// The time since its last validation.
    pub(crate) age: Duration,
    /// How old it may be.
    pub(crate) policy: Arc<FreshnessPolicy>,
    /// What the catalog did.
    pub(crate) status: CacheStatus,
}

impl LookupResult {
    /// Bytes of the tar.
    pub(crate) fn tar_size(&self) -> u64 {
        self.version.descriptor().publication().size
    }
}

/// A result of the single flight: what is stored now, with the status of the origin's answer.
#[derive(Debug, Clone)]
struct Answer {
    entry: Arc<Entry>,
    status: u16,
}

type Answered = Result<Answer, LookupError>;

/// Finds versions.
#[derive(Clone)]
pub(crate) struct Lookup {
    catalog: Arc<Catalog>,
    origins: Arc<Origins>,
    queries: SingleFlight<ServiceName, Answered>,
    negative: Negative<ServiceName>,
    past: PastVersions,
    policies: Arc<FreshnessPolicies>,
    clock: Clock,
    metrics: CatalogMetrics,
}

impl Lookup {
    pub(crate) fn new(catalog: Arc<Catalog>, drain: &Drain) -> Self {
        let (origins, clock) = (catalog.origins.clone(), catalog.clock);
        Self {
            past: PastVersions::new(catalog.clone(), origins.clone(), clock, drain),
            queries: SingleFlight::new(MAX_QUERIES, drain),
            negative: Negative::new(),
            policies: catalog.policies.clone(),
            metrics: catalog.metrics.clone(),
            clock,
            origins,
            catalog,
        }
    }

    /// The past versions that are stored of the services and digests that are `wanted`, without using them.
    pub(crate) fn past_versions(&self, wanted: impl Fn(&ServiceName, &TarballDigest) -> bool) -> Vec<Arc<Version>> {
        self.past.select(wanted)
    }

    /// The errors of the last queries, while they hold.
    pub(crate) fn failures(&self) -> HashMap<ServiceName, LookupError> {
        self.negative.all()
    }

    /// Forgets failures and past versions of a service, and has its origin asked as the mode says. A hard purge has to be
    /// made [durable](Catalog::durable).
    pub(crate) fn purge(&self, service: &ServiceName, mode: PurgeMode) {
        self.catalog.purge(service, mode);
        self.negative.forget(service);
        self.past.purge(service, mode);
    }

    /// What is used of each bound, and the bound.
    pub(crate) fn bounds(&self) -> impl Iterator<Item = Bound> + use<> {
        let (remembered, most) = self.negative.fill_level();
        let (refs, most_refs) = self.catalog.revisions().fill_level();
        let own = [
            ("queries", self.queries.len() as u64, MAX_QUERIES as u64),
            ("cached_failures", remembered, most),
            ("announced_refs", refs, most_refs),
        ];
        self.catalog.fill_levels().into_iter().chain(own).chain(self.past.bounds())
    }

    /// Up to which revision a current version is right, when its origin's event stream says so.
    pub(crate) fn seen(&self, found: &LookupResult) -> Option<Seen> {
        self.catalog.seen(&found.version.descriptor().publication().service, &found.version)
    }

    /// The current version of a service, when it is fresh: without I/O, without a task, without waiting.
    pub(crate) fn fast_path(&self, service: &ServiceName) -> Option<LookupResult> {
        let entry = self.catalog.get(service)?;
        let now = self.clock.now();
        let age = self.catalog.age(&entry, now);
        if entry.evaluate(age) != Freshness::Fresh {
            return None;
        }
        entry.usage.requested(now);
        found(&entry, age, CacheStatus::Hit { stale_for: 0 }).ok()
    }

    /// The current version of a service.
    ///
    /// # Errors
    /// There is nothing to serve.
    pub(crate) async fn find(&self, service: &ServiceName, mode: RevalidateMode) -> Result<LookupResult, LookupError> {
        let Some(entry) = self.catalog.get(service) else {
            let (answer, collapsed) = self.query(service, FIRST_ANSWER_WAIT).await?;
            return self.answered(&answer, Forward::Miss, collapsed);
        };
        let now = self.clock.now();
        entry.usage.requested(now);
        let age = self.catalog.age(&entry, now);
        let freshness = entry.evaluate(age);
        // A query that is under way already costs the origin nothing, and its answer is the newest there is.
        let may_force = || entry.since_queried(now) >= FORCED_INTERVAL || self.queries.is_under_way(service);
        let why = match freshness {
            _ if mode == RevalidateMode::Always => Forward::Stale,
            _ if mode == RevalidateMode::Forced && may_force() => Forward::Request,
            Freshness::Fresh => return found(&entry, age, CacheStatus::Hit { stale_for: 0 }),
            Freshness::StaleWhileRevalidate => {
                self.revalidate_behind(service);
                return self.stale(&entry, StaleReason::Revalidating);
            }
            // Its origin is known to be down: nobody is made to wait for what will not come.
            Freshness::Revalidate if self.is_down(&entry) => {
                self.revalidate_behind(service);
                return self.stale(&entry, StaleReason::OriginFailed);
            }
            Freshness::Revalidate | Freshness::Expired => Forward::Stale,
        };
        match self.query(service, entry.policy.limits.wait).await {
            Ok((answer, collapsed)) => self.answered(&answer, why, collapsed),
            Err(LookupError::Absent) => Err(LookupError::Absent),
            Err(error) if freshness == Freshness::Expired => Err(LookupError::Expired(error.reason())),
            Err(error) => self.stale(&entry, error.stale_reason()),
        }
    }

    /// One version of a service: the current one, or one that its origin retains.
    ///
    /// # Errors
    /// There is nothing to serve.
    pub(crate) async fn find_version(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        mode: RevalidateMode,
    ) -> Result<LookupResult, LookupError> {
        let stored = self.catalog.get(service).filter(|entry| entry.version.is_some());
        let entry = match stored {
            Some(entry) => entry,
            None => {
                // Whether there is such a service is found out first, and remembered: of one that is absent no digest
                // reaches an origin.
                self.find(service, RevalidateMode::IfStale).await?;
                self.catalog.get(service).ok_or(LookupError::Absent)?
            }
        };
        let now = self.clock.now();
        let hit = CacheStatus::Hit { stale_for: 0 };
        if mode != RevalidateMode::Always {
            let is_it = |version: &Arc<Version>| version.descriptor().publication().digest == *digest;
            if entry.version.as_ref().is_some_and(is_it) {
                entry.usage.requested(now);
                return found(&entry, self.catalog.age(&entry, now), hit);
            }
            if let Some(past) = self.past.get(service, digest) {
                return Ok(self.found_past(&past, now.since(past.since), hit));
            }
        }
        let (past, collapsed) = self.past.query(service, digest, &entry, mode == RevalidateMode::Always).await?;
        let status = CacheStatus::Forwarded { why: Forward::Miss, status: Some(200), stored: true, collapsed };
        Ok(self.found_past(&past, Duration::ZERO, status))
    }

    /// There is news of a service: errors that were remembered are void.
    pub(crate) fn forget_failure(&self, service: &ServiceName) {
        self.negative.forget(service);
    }

    /// Has the origin asked about a service that no client waits for, and waits until it was.
    pub(crate) async fn revalidate(&self, service: &ServiceName) {
        if self.negative.get(service).is_none()
            && let Ok(seat) = self.join(service)
        {
            // What came of it is in the catalog.
            let _ = seat.result().await;
        }
    }

    /// Has the origin asked while nobody waits for it.
    pub(crate) fn revalidate_behind(&self, service: &ServiceName) {
        if self.negative.get(service).is_none() {
            // When too many queries are under way, a later request begins it.
            let _ = self.join(service);
        }
    }

    fn answered(&self, answer: &Answer, why: Forward, collapsed: bool) -> Result<LookupResult, LookupError> {
        let stored = answer.status == 200;
        let status = CacheStatus::Forwarded { why, status: Some(answer.status), stored, collapsed };
        let now = self.clock.now();
        answer.entry.usage.requested(now);
        found(&answer.entry, self.catalog.age(&answer.entry, now), status)
    }

    fn stale(&self, entry: &Entry, why: StaleReason) -> Result<LookupResult, LookupError> {
        let age = self.catalog.age(entry, self.clock.now());
        // It may be fresh by its age and yet not what was wanted, when a forced query failed.
        let stale_for = entry.policy.limits.stale_for(age).max(1);
        let found = found(entry, age, CacheStatus::Hit { stale_for })?;
        self.metrics.stale_served(why);
        Ok(found)
    }

    /// Asks the origin, or joins a query that is under way, and waits: at most `wait` from the query's beginning.
    async fn query(&self, service: &ServiceName, wait: Duration) -> Result<(Answer, bool), LookupError> {
        if let Some(failure) = self.negative.get(service) {
            return Err(failure);
        }
        let seat = self.join(service)?;
        let collapsed = seat.collapsed;
        if collapsed {
            self.metrics.collapsed_queries.inc();
        }
        Ok((within(wait, seat).await?, collapsed))
    }

    fn is_down(&self, entry: &Entry) -> bool {
        entry.origin.is_some_and(|id| self.origins.all()[id].is_down())
    }

    fn join(&self, service: &ServiceName) -> Result<Seat<Answered>, Full> {
        self.queries.join(service, || self.clone().ask_origin(service.clone()))
    }

    async fn ask_origin(self, service: ServiceName) -> Answered {
        let answered = self.ask(&service).await;
        match &answered {
            Ok(_) => self.negative.forget(&service),
            Err(error) => {
                tracing::debug!(%service, error = %error.reason(), "the origin could not be asked");
                self.negative.remember(service, error.clone(), self.catalog.all_streams_in_step());
            }
        }
        answered
    }

    async fn ask(&self, service: &ServiceName) -> Answered {
        let stored = self.catalog.get(service);
        let at = self.clock.now();
        let source = UpdateSource::Query(self.catalog.highest(service));
        stored.iter().for_each(|stored| stored.queried(at));
        let owner = stored.as_ref().and_then(|stored| stored.origin);
        let version = stored.as_ref().and_then(|stored| stored.version.as_ref());
        let tag = version.map(|version| version.values.descriptor_tag.text.as_str());
        let word = self.origins.descriptor(service, owner, tag).await.map_err(LookupError::Origin)?;
        let update = match (word, stored) {
            (Word::Unchanged, Some(stored)) => {
                stored.confirm(at);
                // A newer one may have come meanwhile.
                return Ok(Answer { entry: self.catalog.get(service).unwrap_or(stored), status: 304 });
            }
            (Word::Descriptor(origin, descriptor), _) => {
                Update { origin: Some(origin), source, at, content: UpdateContent::Current(descriptor) }
            }
            (Word::Absent | Word::Unchanged, _) => {
                Update { origin: owner, source, at, content: UpdateContent::Gone(service.clone(), None) }
            }
        };
        match self.catalog.apply(update).await {
            // Also when it was said to be gone: it has appeared meanwhile.
            Outcome::Taken(entry) | Outcome::Revised(entry) | Outcome::Unchanged(entry) if entry.version.is_some() => {
                Ok(Answer { entry, status: 200 })
            }
            Outcome::Regressed => Err(LookupError::Regressed),
            _ => Err(LookupError::Absent),
        }
    }

    fn found_past(&self, past: &PastVersion, age: Duration, status: CacheStatus) -> LookupResult {
        let policy = self.policies.of(&past.version.descriptor().publication().service).clone();
        LookupResult { version: past.version.clone(), origin: Some(past.origin), age, policy, status }
    }
}

fn found(entry: &Entry, age: Duration, status: CacheStatus) -> Result<LookupResult, LookupError> {
    let version = entry.version.clone().ok_or(LookupError::Absent)?;
    Ok(LookupResult { version, origin: entry.origin, age, policy: entry.policy.clone(), status })
}

/// The result of a task, waited for at most `wait` from its beginning.
pub(super) async fn within<T: Clone>(wait: Duration, seat: Seat<Result<T, LookupError>>) -> Result<T, LookupError> {
    let left = wait.saturating_sub(seat.under_way());
    tokio::time::timeout(left, seat.result()).await.map_err(|_| LookupError::TooSlow)??
}
