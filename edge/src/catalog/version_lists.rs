//! The versions that origins retain of services: one list for each service, requested when a client names a version that is
//! not current. The last list stays, in memory and on disk, for the time when no origin answers.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use moka::sync::Cache;
use tokio::task::spawn_blocking;
use weir_cache::OriginId;
use weir_cache::clock::{Clock, Moment};
use weir_cache::single_flight::SingleFlight;
use weir_protocol::cache_status::{CacheStatus, Forward};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::request_id::RequestId;
use weir_protocol::versions::Versions;
use weir_runtime::bounds::Bound;
use weir_runtime::shutdown::Drain;

use super::entry::{Entry, PurgeMode, VersionNumber};
use super::error::LookupError;
use super::list_files::ListFiles;
use super::negative_cache::NegativeCache;
use super::queries::{FIRST_QUERY_TIMEOUT, MAX_QUERIES, wait_for};
use super::store::Catalog;
use crate::origin_client::OriginResponse;
use crate::version::Version;

/// The most memory for lists, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// How long a list is used without a query.
pub(crate) const LIST_TTL: Duration = Duration::from_secs(60);

/// The least time between two queries for the list of a service: it may lack a version that a client knows.
pub(crate) const MIN_LIST_INTERVAL: Duration = Duration::from_secs(1);

/// A version in a list.
#[derive(Debug)]
pub(crate) struct ListedVersion {
    pub(crate) version: Arc<Version>,
    /// The service went on from it by following its ref.
    pub(crate) followed: bool,
}

/// The list of a service.
#[derive(Debug)]
pub(crate) struct VersionList {
    /// As the origin wrote it.
    pub(crate) bytes: Bytes,
    /// The newest first.
    pub(crate) versions: Arc<[ListedVersion]>,
    pub(super) origin: Option<OriginId>,
    /// When the origin was queried.
    pub(super) since: Moment,
}

/// What is known of the versions of a service.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) list: Option<Arc<VersionList>>,
    pub(crate) status: CacheStatus,
    /// Why there is no newer one.
    pub(crate) failure: Option<LookupError>,
}

type Answer = Result<Arc<VersionList>, LookupError>;

/// A missing list may exist once the service has a newer version.
type Query = (ServiceName, VersionNumber);

/// The lists. Cheap to clone.
#[derive(Clone)]
pub(super) struct VersionLists {
    stored: Cache<ServiceName, Arc<VersionList>>,
    files: Arc<ListFiles>,
    queries: SingleFlight<ServiceName, Answer>,
    negative: NegativeCache<Query>,
    catalog: Arc<Catalog>,
    clock: Clock,
}

impl VersionList {
    /// `before`: the last list of the service. Clients that request digests that no version has make it be requested each second:
    /// what is the same is not read again, nor what is attached to its manifests.
    fn read_after(
        before: Option<&Self>,
        service: &ServiceName,
        bytes: Bytes,
        origin: Option<OriginId>,
        since: Moment,
    ) -> Result<Self, serde_json::Error> {
        match before.filter(|before| before.bytes == bytes) {
            Some(Self { bytes, versions, .. }) => {
                Ok(Self { bytes: bytes.clone(), versions: versions.clone(), origin, since })
            }
            None => Self::read(service, bytes, origin, since),
        }
    }

    fn read(
        service: &ServiceName,
        bytes: Bytes,
        origin: Option<OriginId>,
        since: Moment,
    ) -> Result<Self, serde_json::Error> {
        let read = Versions::parse(&bytes)?.into_iter();
        let own = read.filter(|(descriptor, _)| descriptor.publication().service == *service);
        let version = |(descriptor, followed)| ListedVersion { version: Arc::new(Version::new(descriptor)), followed };
        Ok(Self { bytes, versions: own.map(version).collect(), origin, since })
    }

    /// The newest version that has this.
    pub(crate) fn newest(&self, has: impl Fn(&Version) -> bool) -> Option<Arc<Version>> {
        self.versions.iter().map(|listed| &listed.version).find(|version| has(version)).cloned()
    }

    /// The versions that have tags beside the one in force: a consumer of ranges takes the highest, which must be none that the
    /// service went back from. What an older list has before the version in force was gone back from since.
    pub(crate) fn tagged(&self, in_force: TarballDigest) -> impl Iterator<Item = &Arc<Version>> {
        let is_in_force = |listed: &ListedVersion| listed.version.descriptor().publication().digest == in_force;
        let gone_back_from = self.versions.iter().position(is_in_force).unwrap_or_default();
        self.versions.iter().skip(gone_back_from).filter(|listed| listed.followed).map(|listed| &listed.version)
    }

    /// Its memory, approximately, in bytes.
    fn weight(&self) -> u32 {
        // Parsed descriptors take about as much again as their bytes.
        u32::try_from(1024 * (1 + self.versions.len()) + 2 * self.bytes.len()).unwrap_or(u32::MAX)
    }
}

impl VersionLists {
    pub(super) fn new(catalog: Arc<Catalog>, files: ListFiles, drain: &Drain) -> Self {
        let stored = Cache::builder().max_capacity(MAX_BYTES).weigher(|_, list: &Arc<VersionList>| list.weight());
        Self {
            stored: stored.build(),
            files: Arc::new(files),
            queries: SingleFlight::new(MAX_QUERIES, drain),
            negative: NegativeCache::new(Duration::ZERO),
            clock: catalog.clock,
            catalog,
        }
    }

    /// The list of a service in memory, however old it is.
    pub(super) fn get(&self, service: &ServiceName) -> Option<Arc<VersionList>> {
        self.stored.get(service)
    }

    /// The list of a service that is stored as `entry`. The origin is queried when it is older than `max_age`.
    pub(super) async fn find(
        &self,
        service: &ServiceName,
        entry: &Entry,
        max_age: Duration,
        request_id: Option<&RequestId>,
    ) -> Listing {
        let list = match self.get(service) {
            None => self.restored(service, entry.origin).await,
            stored => stored,
        };
        let age = list.as_ref().map(|list| self.clock.now().since(list.since));
        if age.is_some_and(|age| age <= max_age) {
            return Listing { list, status: CacheStatus::Hit { stale_for: 0 }, failure: None };
        }
        let wait = if list.is_some() { entry.policy.limits.wait } else { FIRST_QUERY_TIMEOUT };
        match self.query(service, entry, wait, request_id).await {
            Ok((list, collapsed)) => {
                let status = CacheStatus::Forwarded { why: Forward::Miss, status: Some(200), stored: true, collapsed };
                // A shield that cannot renew its list answers with the one that it has.
                let is_old = self.clock.now().since(list.since) > LIST_TTL;
                let failure = is_old
                    .then(|| LookupError::Expired("the list of versions at the shield is out of date".to_owned()));
                Listing { list: Some(list), status, failure }
            }
            Err(failure) => {
                let stale_for = age.unwrap_or_default().saturating_sub(LIST_TTL).as_secs();
                Listing { list, status: CacheStatus::Hit { stale_for }, failure: Some(failure) }
            }
        }
    }

    async fn query(
        &self,
        service: &ServiceName,
        entry: &Entry,
        wait: Duration,
        request_id: Option<&RequestId>,
    ) -> Result<(Arc<VersionList>, bool), LookupError> {
        let query = (service.clone(), entry.highest);
        if let Some(failure) = self.negative.get(&query) {
            return Err(failure);
        }
        let owner = entry.origin;
        let waiter = self.queries.join(service, || self.clone().query_origin(query, owner, request_id.cloned()))?;
        let collapsed = waiter.collapsed;
        Ok((wait_for(wait, waiter).await?, collapsed))
    }

    async fn query_origin(self, query: Query, owner: Option<OriginId>, request_id: Option<RequestId>) -> Answer {
        let (service, since) = (&query.0, self.clock.now());
        let origins = &self.catalog.origins;
        let error = match origins.versions(service, owner, request_id.as_ref()).await {
            Ok(OriginResponse::Found(origin, (bytes, age))) => {
                let before = self.get(service);
                match VersionList::read_after(before.as_deref(), service, bytes, Some(origin), since.before(age)) {
                    Ok(list) => return Ok(self.store(service, list).await),
                    Err(error) => LookupError::Origin(origins.get(origin).bad_response(&error.to_string())),
                }
            }
            Ok(OriginResponse::Absent | OriginResponse::Unchanged) => LookupError::Absent,
            Err(error) => LookupError::Origin(error),
        };
        self.negative.insert(query, error.clone(), self.catalog.all_streams_in_sync());
        Err(error)
    }

    async fn store(&self, service: &ServiceName, list: VersionList) -> Arc<VersionList> {
        let list = Arc::new(list);
        let before = self.stored.get(service);
        self.stored.insert(service.clone(), list.clone());
        if before.is_none_or(|before| before.bytes != list.bytes) {
            let (files, service, bytes) = (self.files.clone(), service.clone(), list.bytes.clone());
            // Without the file a start during an outage knows less.
            let _ = spawn_blocking(move || files.write(&service, &bytes)).await;
        }
        list
    }

    /// The list of an earlier process.
    async fn restored(&self, service: &ServiceName, owner: Option<OriginId>) -> Option<Arc<VersionList>> {
        if !self.files.has(service) {
            return None;
        }
        let (files, name) = (self.files.clone(), service.clone());
        let read = spawn_blocking(move || files.read(&name)).await.ok()?;
        let failed = |error: &dyn Display| tracing::warn!(%service, %error, "a list of versions cannot be read");
        let (bytes, written) = read.inspect_err(|error| failed(error)).ok()?;
        // It is requested again before it is believed that something is not in it.
        let age = SystemTime::now().duration_since(written).unwrap_or_default().max(2 * LIST_TTL);
        let since = self.clock.now().before(age);
        let Ok(list) = VersionList::read(service, bytes, owner, since).inspect_err(|error| failed(error)) else {
            // It would be read again for each request.
            let (files, name) = (self.files.clone(), service.clone());
            let _ = spawn_blocking(move || files.remove(&name)).await;
            return None;
        };
        let list = Arc::new(list);
        self.stored.insert(service.clone(), list.clone());
        Some(list)
    }

    /// The versions of all lists in memory that match.
    pub(super) fn select(&self, wanted: impl Fn(&Version) -> bool) -> Vec<Arc<Version>> {
        let lists = self.stored.iter().map(|(_, list)| list);
        let versions =
            lists.flat_map(|list| list.versions.iter().map(|listed| listed.version.clone()).collect::<Vec<_>>());
        versions.filter(|version| wanted(version)).collect()
    }

    /// Removes the list of a service from memory, and with a hard purge its file. Blocks.
    pub(super) fn purge(&self, service: &ServiceName, mode: PurgeMode) {
        self.stored.invalidate(service);
        if mode == PurgeMode::Hard {
            self.files.remove(service);
        }
    }

    /// The fill level of each bound.
    pub(super) fn bounds(&self) -> [Bound; 3] {
        [
            ("version_list_queries", self.queries.in_flight() as u64, MAX_QUERIES as u64),
            ("version_list_bytes", self.stored.weighted_size(), MAX_BYTES),
            self.files.bound(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::descriptor;
    use super::*;
    use serde_json::value::RawValue;
    use weir_protocol::versions::ListedVersion as Written;

    #[test]
    fn what_a_list_has_before_the_version_in_force_was_gone_back_from() {
        let (service, contents): (ServiceName, _) = ("shop".parse().unwrap(), ["3", "2", "1"]);
        let written = contents.map(|content| {
            let of = descriptor("shop", content.parse().unwrap(), 1, content.as_bytes());
            let json = String::from_utf8(of.bytes().to_vec()).unwrap();
            // The service went back from 2 before.
            Written { descriptor: RawValue::from_string(json).unwrap(), followed: content != "2" }
        });
        let bytes = Versions { versions: written.into() }.to_json().into();
        let list = VersionList::read(&service, bytes, None, Clock::start().now()).unwrap();
        let digest = |content: &str| TarballDigest::of(content.as_bytes());
        for (in_force, tagged) in [("3", vec!["3", "1"]), ("2", vec!["1"]), ("1", vec!["1"]), ("4", vec!["3", "1"])] {
            let found = list.tagged(digest(in_force)).map(|version| version.descriptor().publication().digest);
            let expected: Vec<_> = tagged.into_iter().map(digest).collect();
            assert_eq!(found.collect::<Vec<_>>(), expected, "{in_force} is in force");
        }
        let second = list.newest(|version| version.descriptor().publication().digest == digest("2"));
        assert_eq!(second.unwrap().descriptor().publication().generation, 2);

        // Requested again.
        let later =
            |bytes: Bytes| VersionList::read_after(Some(&list), &service, bytes, None, list.since).unwrap().versions;
        assert!(Arc::ptr_eq(&later(list.bytes.clone()), &list.versions), "it was read once");
        assert!(later(Versions::default().to_json().into()).is_empty());
    }
}
