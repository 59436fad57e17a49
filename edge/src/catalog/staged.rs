//! Staged versions that are not offered yet.

use weir_protocol::freshness::Freshness;
use weir_protocol::name::ServiceName;

use super::store::Catalog;
use crate::version::Version;

impl Catalog {
    /// The services whose staged versions are offered to nobody.
    pub(crate) fn unoffered(&self) -> impl Iterator<Item = ServiceName> {
        let is_unoffered = |version: &Version| version.is_unoffered();
        let all = self.all().into_iter();
        all.filter(move |(_, entry)| entry.version.as_deref().is_some_and(is_unoffered)).map(|(service, _)| service)
    }

    pub(crate) fn is_unoffered(&self, service: &ServiceName) -> bool {
        self.get(service).and_then(|entry| entry.version.clone()).is_some_and(|version| version.is_unoffered())
    }

    /// Offers the staged version that a statement is about, and tells the agents that it is for.
    pub(crate) fn offer_staged(&self, statement: &Freshness) {
        let version = self.get(&statement.service).and_then(|entry| entry.version.clone());
        if version.is_some_and(|version| version.offer(statement.generation, statement.digest)) {
            self.changes.send_row(&statement.service);
        }
    }
}
