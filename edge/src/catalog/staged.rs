//! Staged versions that are not offered yet.

use std::sync::Arc;
use std::time::SystemTime;

use weir_cache::OriginId;
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
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

    /// Offers the staged version of a stored version if it was offered before the restart. Without the origin that it came from,
    /// agents get their statements elsewhere, and nothing says that there are any of this version.
    pub(super) fn restore_offer(
        version: &Version,
        offered: Option<(Generation, TarballDigest)>,
        origin: Option<OriginId>,
    ) {
        if let (Some((generation, digest)), Some(_)) = (offered, origin) {
            version.offer(generation, digest);
        }
    }
}

fn is_unoffered(entry: &Entry) -> bool {
    entry.version.as_deref().is_some_and(Version::is_unoffered)
}

#[cfg(test)]
mod tests {
    use weir_protocol::descriptor::{Descriptor, DescriptorFields};
    use weir_protocol::staged::Staged;
    use weir_protocol::token::SigningKey;

    use super::super::entry::tests::descriptor;
    use super::*;

    #[test]
    fn exactly_the_version_that_was_offered_is_offered_again_if_its_origin_is_still_there() {
        let in_force = descriptor("shop", 7, 1, b"in force").fields().clone();
        let later = descriptor("shop", 8, 1, b"later").fields().clone();
        let later = Descriptor::signed(later, &[SigningKey::generate().unwrap().0], false);
        let staged = Staged {
            descriptor: serde_json::from_slice(later.bytes()).unwrap(),
            audience: serde_json::from_str(r#"{"percent":100}"#).unwrap(),
        };
        let current = Descriptor::new(DescriptorFields { staged: Some(Box::new(staged)), ..in_force });
        let digest = TarballDigest::of(b"later");
        for (offered, origin, expected) in [
            (Some((8, digest)), Some(0), true),
            (Some((9, digest)), Some(0), false),
            (Some((8, TarballDigest::of(b"another"))), Some(0), false),
            (Some((8, digest)), None, false),
            (None, Some(0), false),
        ] {
            let version = Version::new(current.clone());
            Catalog::restore_offer(&version, offered, origin);
            assert_eq!(version.is_unoffered(), !expected, "{offered:?} {origin:?}");
        }
    }
}
