//! Staged versions that are not offered yet.

use weir_protocol::freshness::Freshness;
use weir_protocol::name::ServiceName;

use super::entry::Entry;
use super::store::Catalog;
use crate::version::Version;

impl Catalog {
    /// The services whose staged versions are offered to nobody.
    pub(crate) fn unoffered(&self) -> impl Iterator<Item = ServiceName> {
        self.all().into_iter().filter(|(_, entry)| is_unoffered(entry)).map(|(service, _)| service)
    }

    pub(crate) fn is_unoffered(&self, service: &ServiceName) -> bool {
        self.get(service).is_some_and(|entry| is_unoffered(&entry))
    }

    /// Offers the staged version that a statement is about, and tells the agents that it is for.
    pub(crate) fn offer_staged(&self, statement: &Freshness) {
        let version = self.get(&statement.service).and_then(|entry| entry.version.clone());
        if version.is_some_and(|version| version.offer(statement.generation, statement.digest)) {
            self.changes.send_row(&statement.service);
        }
    }
}

fn is_unoffered(entry: &Entry) -> bool {
    entry.version.as_deref().is_some_and(Version::is_unoffered)
}
