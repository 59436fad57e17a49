//! Finds versions that are not current, in the lists of what origins retain.

use std::sync::Arc;
use std::time::Duration;

use weir_protocol::cache_status::CacheStatus;
use weir_protocol::name::ServiceName;
use weir_protocol::request_id::RequestId;

use super::error::LookupError;
use super::lookup::{Lookup, LookupResult};
use super::version_lists::{LIST_TTL, Listing, MIN_LIST_INTERVAL, VersionList};
use crate::version::Version;

impl Lookup {
    /// A client of registries requested something of a service: new versions are prefetched for such clients, too.
    pub(crate) fn pulled(&self, service: &ServiceName) {
        if let Some(entry) = self.catalog.get(service) {
            entry.last_request.record_pull(self.clock.now());
        }
    }

    /// A version in the list in memory that has what never changes, however old the list is. Never waits.
    pub(crate) fn listed(&self, service: &ServiceName, has: impl Fn(&Version) -> bool) -> Option<LookupResult> {
        // Not of a service that is gone.
        self.catalog.get(service)?.version.as_ref()?;
        let list = self.lists.get(service)?;
        self.found_in(service, &list, CacheStatus::Hit { stale_for: 0 }, |list| list.newest(&has))
    }

    /// The version that `choose` finds among those that the origin of a service retains. `None`: it finds none. `is_stale`: the
    /// list in memory turned out to be wrong.
    ///
    /// # Errors
    /// The list is not known, or has no such version and cannot be requested again.
    pub(crate) async fn find_listed(
        &self,
        service: &ServiceName,
        choose: impl Fn(&VersionList) -> Option<Arc<Version>>,
        is_stale: bool,
        request_id: Option<&RequestId>,
    ) -> Result<Option<LookupResult>, LookupError> {
        let mut failure = None;
        // The second time for a version that is newer than the list.
        for max_age in [LIST_TTL, MIN_LIST_INTERVAL].into_iter().skip(usize::from(is_stale)) {
            let listing = self.versions(service, max_age, request_id).await?;
            let found = listing.list.and_then(|list| self.found_in(service, &list, listing.status, &choose));
            if found.is_some() {
                return Ok(found);
            }
            failure = listing.failure;
        }
        match failure {
            // An origin of the release before has no lists.
            None | Some(LookupError::Absent) => Ok(None),
            Some(failure) => Err(failure),
        }
    }

    /// The list of the versions of a service, not older than `max_age` unless it cannot be requested.
    ///
    /// # Errors
    /// The service does not exist, or it is not known whether it does.
    pub(crate) async fn versions(
        &self,
        service: &ServiceName,
        max_age: Duration,
        request_id: Option<&RequestId>,
    ) -> Result<Listing, LookupError> {
        let entry = self.known_entry(service, request_id).await?;
        Ok(self.lists.find(service, &entry, max_age, request_id).await)
    }

    /// The time since an origin was queried for a list.
    pub(crate) fn list_age(&self, list: &VersionList) -> Duration {
        self.clock.now().since(list.since)
    }

    fn found_in(
        &self,
        service: &ServiceName,
        list: &Arc<VersionList>,
        status: CacheStatus,
        choose: impl Fn(&VersionList) -> Option<Arc<Version>>,
    ) -> Option<LookupResult> {
        let version = choose(list)?;
        let (age, policy) = (self.list_age(list), self.policies.of(service).clone());
        Some(LookupResult { version, origin: list.origin, age, policy, status })
    }
}
