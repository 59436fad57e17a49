//! What the table knows of one service, and which descriptors it takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_shared::descriptor::{Descriptor, Generation};

use crate::clock::{AtomicMoment, Moment};
use crate::origin_client::OriginId;
use crate::version::Version;

/// What the table knows of one service.
#[derive(Debug)]
pub(crate) struct Entry {
    /// What is served; `None` is a tombstone: the service is gone. Unless it is unreadable.
    pub(crate) version: Option<Arc<Version>>,
    /// What stands on disk cannot be read, by this version at least: nothing is known but the highest generation.
    pub(crate) is_unreadable: bool,
    /// The highest generation and revision ever seen, a tombstone's included.
    pub(crate) highest: (Generation, u64),
    /// Whose it is; `None` when that origin is no longer configured.
    pub(crate) origin: Option<OriginId>,
    last_word: AtomicMoment,
    last_asked: AtomicMoment,
    /// The last word is not on disk yet.
    unwritten: AtomicBool,
}

/// What becomes of a descriptor that an origin offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    /// It is newer than what is held.
    Newer,
    /// It is what is held.
    Same,
    /// It is older than what was seen before, or another publication under the same number: an alarm.
    Regressed,
}

impl Entry {
    pub(crate) fn new(
        version: Option<Arc<Version>>,
        highest: (Generation, u64),
        origin: Option<OriginId>,
        last_word: Moment,
    ) -> Self {
        Self {
            version,
            is_unreadable: false,
            highest,
            origin,
            last_word: AtomicMoment::new(last_word),
            last_asked: AtomicMoment::new(last_word),
            unwritten: AtomicBool::new(false),
        }
    }

    /// A service whose descriptor on disk cannot be read.
    pub(crate) fn unreadable(highest: (Generation, u64), origin: Option<OriginId>, last_word: Moment) -> Self {
        Self { is_unreadable: true, ..Self::new(None, highest, origin, last_word) }
    }

    /// A service of which `origin` just said that this is current.
    pub(crate) fn of(descriptor: Descriptor, origin: OriginId, at: Moment) -> Self {
        let highest = descriptor.version();
        Self::new(Some(Arc::new(Version::new(descriptor))), highest, Some(origin), at)
    }

    /// How long after the origin's last word `now` is.
    pub(crate) fn age(&self, now: Moment) -> Duration {
        now.since(self.last_word.get())
    }

    pub(crate) fn last_word(&self) -> Moment {
        self.last_word.get()
    }

    /// The origin has said that this is current.
    pub(crate) fn confirmed(&self, at: Moment) {
        self.last_word.advance(at);
        self.unwritten.store(true, Ordering::Relaxed);
    }

    /// Whether its last word has to be written; from now on it counts as written.
    pub(crate) fn take_unwritten(&self) -> bool {
        self.unwritten.swap(false, Ordering::Relaxed)
    }

    /// The origin is being asked about it.
    pub(crate) fn asked(&self, at: Moment) {
        self.last_asked.advance(at);
    }

    /// How long ago the origin was asked about it.
    pub(crate) fn since_asked(&self, now: Moment) -> Duration {
        now.since(self.last_asked.get())
    }

    /// What becomes of a descriptor that an origin offers.
    pub(crate) fn offer(&self, offered: &Descriptor) -> Offer {
        match (offered.version().cmp(&self.highest), &self.version) {
            (std::cmp::Ordering::Greater, _) => Offer::Newer,
            (std::cmp::Ordering::Less, _) => Offer::Regressed,
            (std::cmp::Ordering::Equal, Some(held)) if held.descriptor().publication() != offered.publication() => {
                Offer::Regressed
            }
            (std::cmp::Ordering::Equal, Some(_)) => Offer::Same,
            // The service is back as it was: its origin had forgotten it for a while.
            (std::cmp::Ordering::Equal, None) => Offer::Newer,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::clock::Clock;
    use weir_shared::descriptor::{DescriptorFields, FORMAT, Publication};
    use weir_shared::digest::{Sha256, TarballDigest};

    pub(in crate::service_table) fn descriptor(
        service: &str,
        generation: u64,
        revision: u64,
        content: &[u8],
    ) -> Descriptor {
        Descriptor::new(DescriptorFields {
            publication: Publication {
                service: service.parse().unwrap(),
                repository: "shop".parse().unwrap(),
                generation,
                digest: TarballDigest::of(content),
                sha256: Sha256::from_bytes([0; 32]),
                size: content.len() as u64,
                commit: "c".repeat(40).parse().unwrap(),
                published_at: std::time::UNIX_EPOCH,
                format: FORMAT,
                omitted: Vec::new(),
            },
            revision,
            representations: Vec::new(),
        })
    }

    #[test]
    fn only_what_is_not_older_is_taken() {
        let now = Clock::begin().now();
        let held = Arc::new(Version::new(descriptor("shop", 5, 2, b"a")));
        let entry = Entry::new(Some(held), (5, 2), Some(0), now);
        for (generation, revision, content, expected) in [
            (5, 2, b"a", Offer::Same),
            (5, 3, b"a", Offer::Newer),
            (6, 0, b"b", Offer::Newer),
            (5, 1, b"a", Offer::Regressed),
            (4, 9, b"b", Offer::Regressed),
            (5, 2, b"b", Offer::Regressed),
        ] {
            assert_eq!(
                entry.offer(&descriptor("shop", generation, revision, content)),
                expected,
                "{generation}.{revision}"
            );
        }
    }

    #[test]
    fn a_tombstone_remembers_the_highest_generation() {
        let entry = Entry::new(None, (5, 2), Some(0), Clock::begin().now());
        assert_eq!(entry.offer(&descriptor("shop", 4, 9, b"a")), Offer::Regressed);
        assert_eq!(entry.offer(&descriptor("shop", 5, 2, b"a")), Offer::Newer);
    }
}
