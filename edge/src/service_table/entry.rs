//! What the table knows of one service, and which descriptors it takes.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::encoding::Encoding;

use super::freshness::Verdict;
use super::rules::Rule;
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
    /// How old it may be.
    pub(crate) rule: Arc<Rule>,
    /// How it is asked for; the same for all versions of the service.
    pub(crate) usage: Arc<Usage>,
    last_word: AtomicMoment,
    last_asked: AtomicMoment,
    /// Up to then its origin has said that it is current, of it alone, since it was read from disk.
    heard_at: AtomicMoment,
    /// Up to then nothing that its origin has said of it counts.
    doubted_until: AtomicMoment,
    /// The last word is not on disk yet.
    unwritten: AtomicBool,
    /// Up to then an operator has declared stale what the origin had said.
    stale_until: AtomicMoment,
    /// Up to then an operator has declared it void: the origin is asked before anything is served.
    void_until: AtomicMoment,
    refused: Mutex<Option<Refused>>,
}

/// An offer of an origin that was refused, because a newer one was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The generation and revision that were offered.
    pub(crate) offered: (Generation, u64),
    /// When.
    pub(crate) at: Moment,
}

/// How far an operator's purge goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PurgeMode {
    /// What is held is declared stale, and looked at again before it is used.
    Soft,
    /// What is held is dropped.
    Hard,
}

/// How a service is asked for by clients.
#[derive(Debug)]
pub(crate) struct Usage {
    last: AtomicMoment,
    /// The codings whose blobs were read, a bit each.
    read: AtomicU8,
}

impl Usage {
    /// `last`: when it was asked for the last time.
    pub(crate) fn new(last: Moment) -> Arc<Self> {
        Arc::new(Self { last: AtomicMoment::new(last), read: AtomicU8::new(0) })
    }

    /// A client asks for it.
    pub(crate) fn asked(&self, now: Moment) {
        self.last.advance(now);
    }

    /// How long ago a client asked for it.
    pub(crate) fn idle(&self, now: Moment) -> Duration {
        now.since(self.last.get())
    }

    /// A client was given a blob in this coding.
    pub(crate) fn read(&self, encoding: Encoding) {
        self.read.fetch_or(bit(encoding), Ordering::Relaxed);
    }

    /// Whether a client was given a blob in this coding.
    pub(crate) fn was_read(&self, encoding: Encoding) -> bool {
        self.read.load(Ordering::Relaxed) & bit(encoding) != 0
    }
}

fn bit(encoding: Encoding) -> u8 {
    match encoding {
        Encoding::Identity => 1,
        Encoding::Zstd => 2,
        Encoding::Gzip => 4,
        Encoding::Dcz => 8,
    }
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
        rule: Arc<Rule>,
        usage: Arc<Usage>,
        last_word: Moment,
    ) -> Self {
        Self {
            version,
            is_unreadable: false,
            highest,
            origin,
            rule,
            usage,
            last_word: AtomicMoment::new(last_word),
            last_asked: AtomicMoment::new(last_word),
            heard_at: AtomicMoment::new(Moment::EARLIEST),
            doubted_until: AtomicMoment::new(Moment::EARLIEST),
            unwritten: AtomicBool::new(false),
            stale_until: AtomicMoment::new(Moment::EARLIEST),
            void_until: AtomicMoment::new(Moment::EARLIEST),
            refused: Mutex::default(),
        }
    }

    /// Nothing is known of it but that: its descriptor on disk cannot be read.
    pub(crate) fn unreadable(self) -> Self {
        Self { is_unreadable: true, version: None, ..self }
    }

    /// At its last word its origin said that it is current.
    pub(crate) fn heard(self) -> Self {
        self.heard_at.set(self.last_word.get());
        self
    }

    /// It is current as far as `held` is: what it replaces, or has more forms than.
    pub(crate) fn heard_as(self, held: &Entry) -> Self {
        self.heard_at.set(held.heard_at.get());
        self.doubted_until.set(held.doubted_until.get());
        self
    }

    /// Whether what its origin says of all its services together holds for it.
    pub(crate) fn can_be_vouched_for(&self) -> bool {
        self.heard_at.get() > self.doubted_until.get()
    }

    /// Its origin has said something of it that was refused, or could not be taken: what it says of all its services does
    /// not hold for this one until it has answered a question that was put after `at`.
    pub(crate) fn doubt(&self, at: Moment) {
        self.doubted_until.advance(at);
    }

    pub(crate) fn last_word(&self) -> Moment {
        self.last_word.get()
    }

    /// The origin has said that this was current then.
    pub(crate) fn confirmed(&self, at: Moment) {
        self.settle(at);
        self.heard_at.advance(at);
    }

    /// It was known to be current then, by what its origin said of all its services.
    pub(crate) fn settle(&self, at: Moment) {
        self.last_word.advance(at);
        self.unwritten.store(true, Ordering::Relaxed);
    }

    /// Its last word has to be written after all.
    pub(crate) fn keep_unwritten(&self) {
        self.unwritten.store(true, Ordering::Relaxed);
    }

    /// What its rule makes of it at this age, and what an operator has said since the origin's last word on it.
    pub(crate) fn judge(&self, age: Duration) -> Verdict {
        let verdict = self.rule.parameters.judge(age);
        let said = self.last_word.get();
        if self.void_until.get() >= said {
            verdict.max(Verdict::Ask)
        } else if self.stale_until.get() >= said {
            verdict.max(Verdict::StaleWhileRevalidate)
        } else {
            verdict
        }
    }

    /// What the origin has said until now counts no longer, of this service or of all of them. The highest generation is
    /// not forgotten.
    pub(crate) fn purge(&self, mode: PurgeMode, now: Moment) {
        match mode {
            PurgeMode::Soft => self.stale_until.advance(now),
            PurgeMode::Hard => self.void_until.advance(now),
        }
        self.doubt(now);
    }

    /// What an operator said of `earlier` goes for this too, until the origin has spoken after it.
    pub(crate) fn stays_purged_as(&self, earlier: &Entry) {
        self.stale_until.advance(earlier.stale_until.get());
        self.void_until.advance(earlier.void_until.get());
        self.doubt(self.stale_until.get().max(self.void_until.get()));
    }

    /// An offer of the origin was refused.
    pub(crate) fn refuse(&self, offered: (Generation, u64), at: Moment) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(Refused { offered, at });
    }

    /// The last offer that was refused.
    pub(crate) fn refused(&self) -> Option<Refused> {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its last word has to be written; from now on it counts as written.
    pub(crate) fn take_unwritten(&self) -> bool {
        self.unwritten.swap(false, Ordering::Relaxed)
    }

    /// The origin is being asked about it.
    pub(crate) fn asked(&self, at: Moment) {
        self.last_asked.advance(at);
    }

    /// When the origin was asked about it for the last time.
    pub(crate) fn last_asked(&self) -> Moment {
        self.last_asked.get()
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
    use crate::service_table::freshness::Parameters;
    use crate::service_table::rules::Rules;
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

    pub(in crate::service_table) fn entry(version: Option<Descriptor>, now: Moment) -> Entry {
        let parameters = Parameters {
            fresh: Duration::from_secs(15),
            stale_while_revalidate: Duration::from_secs(60),
            wait: Duration::from_secs(2),
            stale_if_error: None,
        };
        let rule = Rules::new([], parameters, false).of(&"shop".parse().unwrap()).clone();
        let version = version.map(|version| Arc::new(Version::new(version)));
        Entry::new(version, (5, 2), Some(0), rule, Usage::new(now), now)
    }

    #[test]
    fn a_purge_holds_until_the_origin_has_spoken_again() {
        let begun = Clock::begin().now();
        let later = |seconds| begun.after(Duration::from_secs(seconds));
        for (mode, expected) in [(PurgeMode::Soft, Verdict::StaleWhileRevalidate), (PurgeMode::Hard, Verdict::Ask)] {
            let entry = entry(None, begun).heard();
            let at = |entry: &Entry, seconds| entry.judge(later(seconds).since(entry.last_word()));
            assert_eq!(at(&entry, 1), Verdict::Fresh);
            entry.purge(mode, later(2));
            assert_eq!(at(&entry, 2), expected);
            assert!(!entry.can_be_vouched_for(), "what is said of all services is not said of it");
            // The answer to a question that was put before the purge is no answer to it.
            entry.confirmed(later(1));
            assert_eq!(at(&entry, 3), expected);
            assert!(!entry.can_be_vouched_for(), "and the next heartbeat is none either");
            assert_eq!(at(&entry, 100), Verdict::Ask, "it grows old as ever");
            entry.confirmed(later(4));
            assert_eq!(at(&entry, 4), Verdict::Fresh);
            assert!(entry.can_be_vouched_for());
            assert_eq!(entry.highest, (5, 2));
        }
    }

    #[test]
    fn codings_that_were_read_are_remembered() {
        let usage = Usage::new(Clock::begin().now());
        for encoding in Encoding::PREFERENCE {
            assert!(!usage.was_read(encoding));
            usage.read(encoding);
            assert!(usage.was_read(encoding));
        }
    }

    #[test]
    fn only_what_is_not_older_is_taken() {
        let entry = entry(Some(descriptor("shop", 5, 2, b"a")), Clock::begin().now());
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
        let entry = entry(None, Clock::begin().now());
        assert_eq!(entry.offer(&descriptor("shop", 4, 9, b"a")), Offer::Regressed);
        assert_eq!(entry.offer(&descriptor("shop", 5, 2, b"a")), Offer::Newer);
    }
}
