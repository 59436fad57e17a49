//! Finds the version of a service for a request, and queries its origin when the freshness policy requires it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weir_cache::OriginId;
use weir_cache::clock::{Clock, Moment};
use weir_cache::single_flight::{Overloaded, SingleFlight, Waiter};
use weir_protocol::cache_status::{CacheStatus, Forward};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::request_id::RequestId;
use weir_runtime::bounds::Bound;
use weir_runtime::shutdown::Drain;

use super::apply::UpdateOutcome;
use super::entry::{Entry, PurgeMode};
use super::error::LookupError;
use super::freshness::{Freshness, FreshnessPolicies, FreshnessPolicy};
use super::list_files::ListFiles;
use super::metrics::{CatalogMetrics, StaleReason};
use super::negative_cache::{EXPLAINED_FOR, Failure, NegativeCache};
use super::past_versions::{PastVersion, PastVersions};
use super::queries::{FIRST_QUERY_TIMEOUT, MAX_QUERIES, wait_for};
use super::revisions::RevisionStatus;
use super::store::Catalog;
use super::update::{Update, UpdateContent, UpdateSource};
use super::version_lists::VersionLists;
use crate::origin_client::{OriginResponse, Origins};
use crate::version::Version;

/// How often clients can force a revalidation of one service.
const MIN_FORCED_INTERVAL: Duration = Duration::from_secs(1);

/// When the origin is queried before a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RevalidateMode {
    /// According to the freshness policy.
    IfStale,
    /// The client sent `no-cache`; at most once a second.
    Forced,
    /// Always: the stored version turned out to be wrong.
    Always,
}

/// A version of a service, and how it was found.
#[derive(Debug, Clone)]
pub(crate) struct LookupResult {
    pub(crate) version: Arc<Version>,
    pub(crate) origin: Option<OriginId>,
    /// The time since the last validation.
    pub(crate) age: Duration,
    pub(crate) policy: Arc<FreshnessPolicy>,
    pub(crate) status: CacheStatus,
}

impl LookupResult {
    /// The size of the tar in bytes.
    pub(crate) fn tar_size(&self) -> u64 {
        self.version.descriptor().publication().size
    }
}

/// The result of a query: the stored entry and the status of the origin's response.
#[derive(Debug, Clone)]
struct QueryAnswer {
    entry: Arc<Entry>,
    status: u16,
}

type QueryResult = Result<QueryAnswer, LookupError>;

#[derive(Clone)]
pub(crate) struct Lookup {
    pub(super) catalog: Arc<Catalog>,
    origins: Arc<Origins>,
    queries: SingleFlight<ServiceName, QueryResult>,
    negative: NegativeCache<ServiceName>,
    past: PastVersions,
    pub(super) lists: VersionLists,
    pub(super) policies: Arc<FreshnessPolicies>,
    pub(super) clock: Clock,
    metrics: CatalogMetrics,
}

impl Lookup {
    /// The names of the origins in use, by cluster.
    pub(crate) fn clusters(&self) -> Vec<Vec<String>> {
        self.origins.clusters()
    }

    pub(crate) fn new(catalog: Arc<Catalog>, files: ListFiles, drain: &Drain) -> Self {
        let (origins, clock) = (catalog.origins.clone(), catalog.clock);
        Self {
            past: PastVersions::new(catalog.clone(), origins.clone(), clock, drain),
            lists: VersionLists::new(catalog.clone(), files, drain),
            queries: SingleFlight::new(MAX_QUERIES, drain),
            negative: NegativeCache::new(EXPLAINED_FOR),
            policies: catalog.policies.clone(),
            metrics: catalog.metrics.clone(),
            clock,
            origins,
            catalog,
        }
    }

    /// The stored past versions that match, without counting as a use.
    pub(crate) fn past_versions(&self, wanted: impl Fn(&ServiceName, &TarballDigest) -> bool) -> Vec<Arc<Version>> {
        let listed = self.lists.select(|version| {
            let publication = version.descriptor().publication();
            wanted(&publication.service, &publication.digest)
        });
        self.past.select(wanted).into_iter().chain(listed).collect()
    }

    /// Why the last queries of services failed.
    pub(crate) fn failures(&self, is_wanted: impl Fn(&ServiceName) -> bool) -> HashMap<ServiceName, Failure> {
        self.negative.failures(is_wanted)
    }

    /// Purges a service with its past versions and negative entries. A hard purge has to be made
    /// [durable](Catalog::durable).
    pub(crate) fn purge(&self, service: &ServiceName, mode: PurgeMode) {
        self.catalog.purge(service, mode);
        self.negative.remove(service);
        self.past.purge(service, mode);
        self.lists.purge(service, mode);
    }

    /// The fill level of each bound.
    pub(crate) fn bounds(&self) -> impl Iterator<Item = Bound> + use<> {
        let (remembered, most) = self.negative.fill_level();
        let (refs, most_refs) = self.catalog.revisions().fill_level();
        let own = [
            ("queries", self.queries.in_flight() as u64, MAX_QUERIES as u64),
            ("cached_failures", remembered, most),
            ("announced_refs", refs, most_refs),
        ];
        self.catalog.fill_levels().into_iter().chain(own).chain(self.past.bounds()).chain(self.lists.bounds())
    }

    /// The newest revision of a ref for which this version is current, when the origin's event stream reports it.
    pub(crate) fn revision_status(&self, found: &LookupResult) -> Option<RevisionStatus> {
        self.catalog.revision_status(&found.version.descriptor().publication().service, &found.version)
    }

    /// The current version of a service when it is fresh. Does no I/O, starts no task, and never waits.
    pub(crate) fn fast_path(&self, service: &ServiceName) -> Option<LookupResult> {
        let entry = self.catalog.get(service)?;
        let age = self.fresh_age(&entry, self.clock.now())?;
        found(&entry, age, CacheStatus::Hit { stale_for: 0 }).ok()
    }

    /// The age of an entry when it is fresh. Counts as a request.
    pub(crate) fn fresh_age(&self, entry: &Entry, now: Moment) -> Option<Duration> {
        let age = self.catalog.age(entry, now);
        if entry.evaluate(age) != Freshness::Fresh {
            return None;
        }
        entry.last_request.record(now);
        Some(age)
    }

    /// The current version of a service, or the staged one, if it has what never changes, however old the entry is. Never waits.
    pub(crate) fn having(&self, service: &ServiceName, has: impl Fn(&Version) -> bool) -> Option<LookupResult> {
        let entry = self.catalog.get(service)?;
        let version = entry.version.as_ref()?.all().find(|version| has(version))?.clone();
        let now = self.clock.now();
        entry.last_request.record(now);
        let found = found(&entry, self.catalog.age(&entry, now), CacheStatus::Hit { stale_for: 0 }).ok()?;
        Some(LookupResult { version, ..found })
    }

    /// Finds the current version of a service. `request_id`: that of the request, for queries to origins.
    ///
    /// # Errors
    /// No version can be served.
    pub(crate) async fn find(
        &self,
        service: &ServiceName,
        mode: RevalidateMode,
        request_id: Option<&RequestId>,
    ) -> Result<LookupResult, LookupError> {
        let Some(entry) = self.catalog.get(service) else {
            let (answer, collapsed) = self.query(service, FIRST_QUERY_TIMEOUT, request_id).await?;
            return self.found_by_query(&answer, Forward::Miss, collapsed);
        };
        let now = self.clock.now();
        entry.last_request.record(now);
        let age = self.catalog.age(&entry, now);
        let freshness = entry.evaluate(age);
        // A query in flight is joined whenever it began: its answer is the newest there is.
        let may_force = || entry.since_queried(now) >= MIN_FORCED_INTERVAL || self.queries.is_in_flight(service);
        let why = match freshness {
            _ if mode == RevalidateMode::Always => Forward::Stale,
            _ if mode == RevalidateMode::Forced && may_force() => Forward::Request,
            Freshness::Fresh => return found(&entry, age, CacheStatus::Hit { stale_for: 0 }),
            Freshness::StaleWhileRevalidate => {
                self.revalidate_in_background(service);
                return self.stale(&entry, StaleReason::Revalidating);
            }
            // The origin is known to be down: do not wait for a timeout.
            Freshness::Revalidate if self.is_down(&entry) => {
                self.revalidate_in_background(service);
                return self.stale(&entry, StaleReason::OriginFailed);
            }
            Freshness::Revalidate | Freshness::Expired => Forward::Stale,
        };
        match self.query(service, entry.policy.limits.wait, request_id).await {
            Ok((answer, collapsed)) => self.found_by_query(&answer, why, collapsed),
            Err(LookupError::Absent) => Err(LookupError::Absent),
            Err(error) if freshness == Freshness::Expired => Err(LookupError::Expired(error.reason())),
            Err(error) => self.stale(&entry, error.stale_reason()),
        }
    }

    /// Finds one version of a service: the current one, or one that its origin retains.
    ///
    /// # Errors
    /// No version can be served.
    pub(crate) async fn find_version(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        mode: RevalidateMode,
        request_id: Option<&RequestId>,
    ) -> Result<LookupResult, LookupError> {
        let entry = self.known_entry(service, request_id).await?;
        let now = self.clock.now();
        let hit = CacheStatus::Hit { stale_for: 0 };
        if mode != RevalidateMode::Always {
            if let Some(found) = self.having(service, |version| version.descriptor().publication().digest == *digest) {
                return Ok(found);
            }
            if let Some(past) = self.past.get(service, digest) {
                return Ok(self.found_past(&past, now.since(past.since), hit));
            }
        }
        let again = mode == RevalidateMode::Always;
        let (past, collapsed) = self.past.query(service, digest, &entry, again, request_id).await?;
        let status = CacheStatus::Forwarded { why: Forward::Miss, status: Some(200), stored: true, collapsed };
        Ok(self.found_past(&past, Duration::ZERO, status))
    }

    /// The entry of a service that exists, before its versions are looked up: digests of one that does not exist never reach
    /// an origin.
    pub(super) async fn known_entry(
        &self,
        service: &ServiceName,
        request_id: Option<&RequestId>,
    ) -> Result<Arc<Entry>, LookupError> {
        if let Some(entry) = self.catalog.get(service).filter(|entry| entry.version.is_some()) {
            return Ok(entry);
        }
        self.find(service, RevalidateMode::IfStale, request_id).await?;
        self.catalog.get(service).ok_or(LookupError::Absent)
    }

    /// Removes the negative entry of a service after an update.
    pub(crate) fn clear_failure(&self, service: &ServiceName) {
        self.negative.remove(service);
    }

    /// Revalidates a service that no client waits for, and waits for the result.
    pub(crate) async fn revalidate(&self, service: &ServiceName) {
        if self.negative.get(service).is_none()
            && let Ok(waiter) = self.join(service, None)
        {
            // The result is in the catalog.
            let _ = waiter.result().await;
        }
    }

    /// Starts a revalidation in the background.
    pub(crate) fn revalidate_in_background(&self, service: &ServiceName) {
        if self.negative.get(service).is_none() {
            // With too many queries in flight a later request starts it.
            let _ = self.join(service, None);
        }
    }

    fn found_by_query(&self, answer: &QueryAnswer, why: Forward, collapsed: bool) -> Result<LookupResult, LookupError> {
        let stored = answer.status == 200;
        let status = CacheStatus::Forwarded { why, status: Some(answer.status), stored, collapsed };
        let now = self.clock.now();
        answer.entry.last_request.record(now);
        found(&answer.entry, self.catalog.age(&answer.entry, now), status)
    }

    fn stale(&self, entry: &Entry, why: StaleReason) -> Result<LookupResult, LookupError> {
        let age = self.catalog.age(entry, self.clock.now());
        // A forced revalidation may have failed while the entry is fresh by age.
        let stale_for = entry.policy.limits.stale_for(age).max(1);
        let found = found(entry, age, CacheStatus::Hit { stale_for })?;
        self.metrics.stale_served(why);
        Ok(found)
    }

    /// Queries the origin, or joins the query in flight. Waits at most `wait` from the start of the query.
    async fn query(
        &self,
        service: &ServiceName,
        wait: Duration,
        request_id: Option<&RequestId>,
    ) -> Result<(QueryAnswer, bool), LookupError> {
        if let Some(failure) = self.negative.get(service) {
            return Err(failure);
        }
        let waiter = self.join(service, request_id)?;
        let collapsed = waiter.collapsed;
        if collapsed {
            self.metrics.collapsed_queries.inc();
        }
        Ok((wait_for(wait, waiter).await?, collapsed))
    }

    fn is_down(&self, entry: &Entry) -> bool {
        entry.origin.is_some_and(|id| self.origins.are_down(id))
    }

    /// Joins the query in flight, or starts one with the id of this request.
    fn join(&self, service: &ServiceName, request_id: Option<&RequestId>) -> Result<Waiter<QueryResult>, Overloaded> {
        self.queries.join(service, || self.clone().query_origin(service.clone(), request_id.cloned()))
    }

    async fn query_origin(self, service: ServiceName, request_id: Option<RequestId>) -> QueryResult {
        let answered = self.query_and_apply(&service, request_id.as_ref()).await;
        match &answered {
            Ok(_) => self.negative.remove(&service),
            Err(error) => {
                let request_id = request_id.as_ref().map(tracing::field::display);
                tracing::debug!(%service, error = %error.reason(), request_id, "the query to the origin failed");
                self.negative.insert(service, error.clone(), self.catalog.all_streams_in_sync());
            }
        }
        answered
    }

    async fn query_and_apply(&self, service: &ServiceName, request_id: Option<&RequestId>) -> QueryResult {
        let stored = self.catalog.get(service);
        let at = self.clock.now();
        let source = UpdateSource::Query(self.catalog.highest(service));
        stored.iter().for_each(|stored| stored.queried(at));
        let owner = stored.as_ref().and_then(|stored| stored.origin);
        let version = stored.as_ref().and_then(|stored| stored.version.as_ref());
        let tag = version.map(|version| version.values.descriptor_tag.text.as_str());
        let response = self.origins.descriptor(service, owner, tag, request_id).await.map_err(LookupError::Origin)?;
        let update = match (response, stored) {
            (OriginResponse::Unchanged, Some(stored)) => {
                stored.confirm(at);
                // A newer version may have arrived meanwhile.
                return Ok(QueryAnswer { entry: self.catalog.get(service).unwrap_or(stored), status: 304 });
            }
            (OriginResponse::Found(origin, descriptor), _) => {
                Update { origin: Some(origin), source, at, content: UpdateContent::Current(descriptor) }
            }
            (OriginResponse::Absent | OriginResponse::Unchanged, _) => {
                Update { origin: owner, source, at, content: UpdateContent::Gone(service.clone(), None) }
            }
        };
        match self.catalog.apply(update).await {
            // Also when the response was "gone": the service has appeared meanwhile.
            UpdateOutcome::Stored(entry) | UpdateOutcome::Revised(entry) | UpdateOutcome::Unchanged(entry)
                if entry.version.is_some() =>
            {
                Ok(QueryAnswer { entry, status: 200 })
            }
            UpdateOutcome::Regressed => Err(LookupError::Regressed),
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
