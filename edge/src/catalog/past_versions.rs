//! Past versions of services: requested by their digest, and cached in memory.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use weir_cache::OriginId;
use weir_cache::clock::{Clock, Moment};
use weir_cache::single_flight::SingleFlight;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::request_id::RequestId;
use weir_runtime::bounds::Bound;
use weir_runtime::shutdown::Drain;

use super::entry::{Entry, PurgeMode, VersionNumber};
use super::error::LookupError;
use super::negative_cache::NegativeCache;
use super::queries::{FIRST_QUERY_TIMEOUT, MAX_QUERIES, wait_for};
use super::store::Catalog;
use crate::origin_client::{OriginResponse, Origins};
use crate::version::Version;

/// The most memory for descriptors, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The most queries in flight about versions of one service: made-up digests cannot block other services.
const MAX_QUERIES_PER_SERVICE: usize = 8;

/// A past version with its origin.
#[derive(Debug)]
pub(super) struct PastVersion {
    pub(super) version: Arc<Version>,
    pub(super) origin: OriginId,
    /// When the origin was queried.
    pub(super) since: Moment,
}

type Key = (ServiceName, TarballDigest);

/// The highest known version is part of the key: a missing version may exist once the service has a newer one.
type Query = (Key, VersionNumber);

/// The past versions. Cheap to clone.
#[derive(Clone)]
pub(super) struct PastVersions {
    stored: Cache<Key, Arc<PastVersion>>,
    queries: SingleFlight<Key, Result<Arc<PastVersion>, LookupError>>,
    negative: NegativeCache<Query>,
    catalog: Arc<Catalog>,
    origins: Arc<Origins>,
    clock: Clock,
}

impl PastVersions {
    pub(super) fn new(catalog: Arc<Catalog>, origins: Arc<Origins>, clock: Clock, drain: &Drain) -> Self {
        let weigh = |_: &_, past: &Arc<PastVersion>| {
            // A parsed descriptor takes about as much again as its bytes.
            u32::try_from(1024 + 2 * past.version.descriptor().bytes().len()).unwrap_or(u32::MAX)
        };
        let stored = Cache::builder().max_capacity(MAX_BYTES).weigher(weigh).build();
        let (queries, negative) = (SingleFlight::new(MAX_QUERIES, drain), NegativeCache::new(Duration::ZERO));
        Self { stored, queries, negative, catalog, origins, clock }
    }

    pub(super) fn get(&self, service: &ServiceName, digest: &TarballDigest) -> Option<Arc<PastVersion>> {
        self.stored.get(&(service.clone(), *digest))
    }

    /// The stored versions that match, without counting as a use.
    pub(super) fn select(&self, wanted: impl Fn(&ServiceName, &TarballDigest) -> bool) -> Vec<Arc<Version>> {
        // An iterator, unlike `get`, does not count as a use.
        let all = self.stored.iter();
        all.filter(|(key, _)| wanted(&key.0, &key.1)).map(|(_, past)| past.version.clone()).collect()
    }

    /// Queries the origin of a service that is stored as `entry`, or joins the query in flight; the second value tells
    /// which. `again`: skip the negative cache.
    ///
    /// # Errors
    /// The version does not exist, or the query failed.
    pub(super) async fn query(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        entry: &Entry,
        again: bool,
        request_id: Option<&RequestId>,
    ) -> Result<(Arc<PastVersion>, bool), LookupError> {
        let key = (service.clone(), *digest);
        let query = (key.clone(), entry.highest);
        if !again && let Some(failure) = self.negative.get(&query) {
            return Err(failure);
        }
        let owner = entry.origin;
        let of_service = |(name, other): &Key| name == service && other != digest;
        if self.queries.count(of_service) >= MAX_QUERIES_PER_SERVICE {
            return Err(LookupError::Overloaded);
        }
        let waiter = self.queries.join(&key, || self.clone().query_origin(query, owner, request_id.cloned()))?;
        let collapsed = waiter.collapsed;
        Ok((wait_for(FIRST_QUERY_TIMEOUT, waiter).await?, collapsed))
    }

    /// Removes negative entries of a service, and with a hard purge its past versions.
    pub(super) fn purge(&self, service: &ServiceName, mode: PurgeMode) {
        let failed = self.negative.failures(|((name, _), _)| name == service).into_keys();
        failed.for_each(|query| self.negative.remove(&query));
        if mode == PurgeMode::Hard {
            for version in self.select(|name, _| name == service) {
                self.stored.invalidate(&(service.clone(), version.descriptor().publication().digest));
            }
        }
    }

    /// The fill level of each bound.
    pub(super) fn bounds(&self) -> [Bound; 3] {
        let (remembered, most) = self.negative.fill_level();
        [
            ("version_queries", self.queries.in_flight() as u64, MAX_QUERIES as u64),
            ("cached_version_failures", remembered, most),
            ("past_version_bytes", self.stored.weighted_size(), MAX_BYTES),
        ]
    }

    async fn query_origin(
        self,
        query: Query,
        owner: Option<OriginId>,
        request_id: Option<RequestId>,
    ) -> Result<Arc<PastVersion>, LookupError> {
        let since = self.clock.now();
        let (service, digest) = &query.0;
        let error = match self.origins.version(service, digest, owner, request_id.as_ref()).await {
            Ok(OriginResponse::Found(origin, descriptor)) => {
                return Ok(self.store(query.0, origin, *descriptor, since));
            }
            Ok(OriginResponse::Absent | OriginResponse::Unchanged) => LookupError::Absent,
            Err(error) => LookupError::Origin(error),
        };
        self.negative.insert(query, error.clone(), self.catalog.all_streams_in_sync());
        Err(error)
    }

    fn store(&self, key: Key, origin: OriginId, descriptor: Descriptor, since: Moment) -> Arc<PastVersion> {
        let past = Arc::new(PastVersion { version: Arc::new(Version::new(descriptor)), origin, since });
        self.stored.insert(key, past.clone());
        past
    }
}
