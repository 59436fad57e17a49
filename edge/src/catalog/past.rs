//! Versions of services that are not the current ones: asked for by their digest, and remembered.

use std::sync::Arc;

use moka::sync::Cache;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_runtime::bounds::Bound;
use weir_runtime::shutdown::Drain;

use super::entry::{Entry, Order, PurgeMode};
use super::error::LookupError;
use super::lookup::{FIRST_ANSWER_WAIT, MAX_QUERIES, within};
use super::negative::Negative;
use super::store::Catalog;
use crate::clock::{Clock, Moment};
use crate::origin_client::{OriginId, Origins, Word};
use crate::single_flight::SingleFlight;
use crate::version::Version;

/// The memory that their descriptors may take, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Queries for versions of one service under way at a time: whoever makes up digests holds up nobody else.
const MAX_QUERIES_PER_SERVICE: usize = 8;

/// A version that is not the current one, with its origin.
#[derive(Debug)]
pub(super) struct PastVersion {
    pub(super) version: Arc<Version>,
    pub(super) origin: OriginId,
    /// When its origin was asked for it.
    pub(super) since: Moment,
}

type Key = (ServiceName, TarballDigest);

/// A version that its origin does not have may be there again once the service has a newer one, so that is part of it.
type Query = (Key, Order);

/// The past versions. Cheap to clone.
#[derive(Clone)]
pub(super) struct PastVersions {
    stored: Cache<Key, Arc<PastVersion>>,
    queries: SingleFlight<Key, Result<Arc<PastVersion>, LookupError>>,
    negative: Negative<Query>,
    catalog: Arc<Catalog>,
    origins: Arc<Origins>,
    clock: Clock,
}

impl PastVersions {
    pub(super) fn new(catalog: Arc<Catalog>, origins: Arc<Origins>, clock: Clock, drain: &Drain) -> Self {
        let weigh = |_: &_, past: &Arc<PastVersion>| {
            // What is read of a descriptor takes about as much again as its bytes.
            u32::try_from(1024 + 2 * past.version.descriptor().bytes().len()).unwrap_or(u32::MAX)
        };
        let stored = Cache::builder().max_capacity(MAX_BYTES).weigher(weigh).build();
        let (queries, negative) = (SingleFlight::new(MAX_QUERIES, drain), Negative::new());
        Self { stored, queries, negative, catalog, origins, clock }
    }

    pub(super) fn get(&self, service: &ServiceName, digest: &TarballDigest) -> Option<Arc<PastVersion>> {
        self.stored.get(&(service.clone(), *digest))
    }

    /// Those of the services and digests that are `wanted`, without using them.
    pub(super) fn select(&self, wanted: impl Fn(&ServiceName, &TarballDigest) -> bool) -> Vec<Arc<Version>> {
        // An iterator, unlike `get`, does not count as a use.
        let all = self.stored.iter();
        all.filter(|(key, _)| wanted(&key.0, &key.1)).map(|(_, past)| past.version.clone()).collect()
    }

    /// Asks the origin of a service that is stored as `entry`, or joins a query that is under way; and whether it was the
    /// latter. `again`: errors that are remembered do not count.
    ///
    /// # Errors
    /// There is no such version, or its origin cannot be asked.
    pub(super) async fn query(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        entry: &Entry,
        again: bool,
    ) -> Result<(Arc<PastVersion>, bool), LookupError> {
        let key = (service.clone(), *digest);
        let query = (key.clone(), entry.highest);
        if !again && let Some(failure) = self.negative.get(&query) {
            return Err(failure);
        }
        let owner = entry.origin;
        let of_service = |(name, other): &Key| name == service && other != digest;
        if self.queries.count(of_service) >= MAX_QUERIES_PER_SERVICE {
            return Err(LookupError::Full);
        }
        let seat = self.queries.join(&key, || self.clone().ask_origin(query, owner))?;
        let collapsed = seat.collapsed;
        Ok((within(FIRST_ANSWER_WAIT, seat).await?, collapsed))
    }

    /// Forgets failed queries about a service, and, when the mode is hard, its versions.
    pub(super) fn purge(&self, service: &ServiceName, mode: PurgeMode) {
        let failed = self.negative.all().into_keys().filter(|((name, _), _)| name == service);
        failed.for_each(|query| self.negative.forget(&query));
        if mode == PurgeMode::Hard {
            for version in self.select(|name, _| name == service) {
                self.stored.invalidate(&(service.clone(), version.descriptor().publication().digest));
            }
        }
    }

    /// What is used of each bound, and the bound.
    pub(super) fn bounds(&self) -> [Bound; 3] {
        let (remembered, most) = self.negative.fill_level();
        [
            ("version_queries", self.queries.len() as u64, MAX_QUERIES as u64),
            ("cached_version_failures", remembered, most),
            ("past_version_bytes", self.stored.weighted_size(), MAX_BYTES),
        ]
    }

    async fn ask_origin(self, query: Query, owner: Option<OriginId>) -> Result<Arc<PastVersion>, LookupError> {
        let since = self.clock.now();
        let (service, digest) = &query.0;
        let error = match self.origins.version(service, digest, owner).await {
            Ok(Word::Descriptor(origin, descriptor)) => return Ok(self.store(query.0, origin, *descriptor, since)),
            Ok(Word::Absent | Word::Unchanged) => LookupError::Absent,
            Err(error) => LookupError::Origin(error),
        };
        self.negative.remember(query, error.clone(), self.catalog.all_streams_in_step());
        Err(error)
    }

    fn store(&self, key: Key, origin: OriginId, descriptor: Descriptor, since: Moment) -> Arc<PastVersion> {
        let past = Arc::new(PastVersion { version: Arc::new(Version::new(descriptor)), origin, since });
        self.stored.insert(key, past.clone());
        past
    }
}
