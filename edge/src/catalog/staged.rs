//! Staged versions that are not offered yet.

use std::sync::Arc;
use std::time::SystemTime;

use weir_protocol::freshness::Freshness;
use weir_protocol::name::ServiceName;

use super::entry::Entry;
use super::record::Record;
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

    /// Offers the staged version that a statement is about, tells the agents that it is for, and queues this for disk.
    pub(crate) fn offer_staged(self: &Arc<Self>, statement: &Freshness) {
        let Freshness { service, generation, digest, .. } = statement;
        // Meanwhile no newer entry is stored.
        let mut queue = self.write_queue();
        let is_offered = |version: &Version| version.offer(*generation, *digest);
        let served = self.get(service).filter(|entry| entry.version.as_deref().is_some_and(is_offered));
        let Some(newest) = served.map(|served| queue.pending.get(service).cloned().unwrap_or(served)) else { return };
        let row = self.row(&newest, self.clock.now(), SystemTime::now());
        self.enqueue(&mut queue, |queue| queue.push(Record::Service { service: service.clone(), row }));
        self.changes.send_row(service);
    }
}

fn is_unoffered(entry: &Entry) -> bool {
    entry.version.as_deref().is_some_and(Version::is_unoffered)
}
