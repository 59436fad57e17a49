//! Pure: decides which superseded versions are retained.
//!
//! The limit on their number is applied at each publication. The age of a version is measured by the monotonic clock
//! of this process, from when it was superseded or loaded. So a wrong wall clock expires nothing, and a restart
//! restarts all ages while the limit on their number still holds.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use weir_protocol::digest::ObjectDigest;

use super::history_line::Why;
use super::mark::MarkedVersion;
use super::row::{Retained, Row, StoredVersion, unix_milliseconds};

/// The most bytes of retained descriptors in a row. Together with the largest current descriptor this stays well
/// below the largest object. Descriptors are large if they list many omitted paths.
const MAX_RETAINED_BYTES: usize = 8 << 20;

/// Makes a version current (`None`: retires the service) and retains its predecessor. At most `most` versions are
/// retained, fewer if they exceed the row's limit. Returns how many were dropped.
pub(super) fn supersede(row: &mut Row, next: Option<StoredVersion>, now: SystemTime, most: usize) -> usize {
    let before = std::mem::replace(&mut row.current, next);
    let before_count = row.retained.len() + usize::from(before.is_some());
    if let Some(version) = before {
        row.retained.retain(|retained| retained.version.digest != version.digest);
        let followed = row.current.as_ref().is_some_and(|next| next.why == Why::Followed);
        row.retained.insert(0, Retained { superseded_at: unix_milliseconds(now), followed, version });
    }
    if let Some(current) = row.current.as_ref().filter(|current| current.why != Why::Followed) {
        // Consumers of ranges must take none of those that were gone back from.
        let behind = row.retained.iter().take_while(|retained| retained.version.digest != current.digest).count();
        row.retained[..behind].iter_mut().for_each(|retained| retained.followed = false);
    }
    if let Some(current) = &row.current {
        row.retained.retain(|retained| retained.version.digest != current.digest);
    }
    let distinct = row.retained.len();
    let sizes = row.retained.iter().scan(0, |sum, retained| {
        *sum += retained.version.size();
        Some(*sum)
    });
    let fitting = sizes.take_while(|sum| *sum <= MAX_RETAINED_BYTES).count();
    row.retained.truncate(most.min(fitting));
    debug_assert!(distinct <= before_count);
    distinct - row.retained.len()
}

pub(super) fn is_too_old(superseded: Instant, now: Instant, age: Duration) -> bool {
    now.saturating_duration_since(superseded) >= age
}

/// Objects with their sizes and reference counts.
#[derive(Debug, Default)]
pub(super) struct Usage {
    objects: HashMap<ObjectDigest, (u64, u32)>,
    bytes: u64,
}

impl Usage {
    /// Adds the objects of a version.
    pub(super) fn add(&mut self, objects: &[(ObjectDigest, u64)]) {
        for (digest, size) in objects {
            let (_, references) = self.objects.entry(*digest).or_insert_with(|| {
                self.bytes += size;
                (*size, 0)
            });
            *references += 1;
        }
    }

    /// Removes the objects of a version that was added.
    pub(super) fn remove(&mut self, objects: &[(ObjectDigest, u64)]) {
        for (digest, size) in objects {
            let Some((_, references)) = self.objects.get_mut(digest) else { continue };
            *references -= 1;
            if *references == 0 {
                self.objects.remove(digest);
                self.bytes -= size;
            }
        }
    }

    /// The bytes of all objects, each counted once.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn contains(&self, digest: &ObjectDigest) -> bool {
        self.objects.contains_key(digest)
    }
}

/// The superseded versions to drop so that at most `limit` bytes are used, those first that were superseded first, and none
/// that was superseded after `until` (Unix milliseconds). Their objects are removed from `usage`.
pub(super) fn over_limit(
    mut versions: Vec<MarkedVersion>,
    usage: &mut Usage,
    limit: u64,
    until: u64,
) -> Vec<MarkedVersion> {
    versions.retain(|version| version.superseded_at.is_some_and(|at| at <= until));
    versions.sort_by(|one, other| one.superseded_at.cmp(&other.superseded_at).then(one.service.cmp(&other.service)));
    let mut gone = Vec::new();
    for version in versions {
        if usage.bytes() <= limit {
            break;
        }
        usage.remove(&version.objects);
        gone.push(version);
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::super::decision::rewritten;
    use super::super::draft::tests::descriptor;
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use weir_protocol::descriptor::{Descriptor, Omission, OmissionReason};
    use weir_protocol::digest::TarballDigest;
    use weir_tarball::ContentKey;

    fn version(number: u64) -> StoredVersion {
        StoredVersion::new(&descriptor("a", number), ContentKey::from_bytes([0; 32]), None, Why::Followed, None)
    }

    #[test]
    fn the_newest_are_retained_and_no_digest_twice() {
        let now = SystemTime::UNIX_EPOCH;
        let mut row = Row::new("a".parse().unwrap());
        let mut dropped = 0;
        for number in [1, 2, 3, 1, 4, 1] {
            dropped += supersede(&mut row, Some(version(number)), now, 2);
        }
        let digests: Vec<_> = row.retained.iter().map(|retained| retained.version.digest).collect();
        assert_eq!(digests, [version(4).digest, version(3).digest]);
        assert_eq!((row.current.as_ref().unwrap().digest, dropped), (version(1).digest, 1));
        supersede(&mut row, None, now, 2);
        let digests: Vec<_> = row.retained.iter().map(|retained| retained.version.digest).collect();
        assert!(row.current.is_none() && digests == [version(1).digest, version(4).digest]);
    }

    #[test]
    fn only_versions_that_the_service_went_on_from_keep_their_tags() {
        let (now, mut row) = (SystemTime::UNIX_EPOCH, Row::new("a".parse().unwrap()));
        let next = |number, why| {
            StoredVersion::new(&descriptor("a", number), ContentKey::from_bytes([0; 32]), None, why, None)
        };
        for (number, why) in [
            (1, Why::Followed),
            (2, Why::Followed),
            (3, Why::Followed),
            (4, Why::Followed),
            (2, Why::RolledBack),
            (5, Why::Followed),
        ] {
            supersede(&mut row, Some(next(number, why)), now, 10);
        }
        let followed = |row: &Row| row.retained.iter().map(|one| one.followed).collect::<Vec<_>>();
        // The latest superseded first: 2, 4, 3, 1. It went back past 3.
        assert_eq!(followed(&row), [true, false, false, true]);
        supersede(&mut row, Some(next(6, Why::SteppedBack)), now, 10);
        assert_eq!(followed(&row), [false; 5], "it is older than all that are known");
        supersede(&mut row, None, now, 10);
        assert!(!followed(&row)[0], "it was deleted");
    }

    #[test]
    fn a_row_has_room_for_versions_that_omit_much() {
        let (now, mut row) = (SystemTime::UNIX_EPOCH, Row::new("a".parse().unwrap()));
        for number in 1..=5 {
            let mut fields = rewritten(&descriptor("a", number));
            let path = "x".repeat(3 << 20);
            fields.publication.omitted = vec![Omission { path, reason: OmissionReason::Symlink }];
            let large = version(number).with(&Descriptor::new(fields));
            supersede(&mut row, Some(large), now, 20);
        }
        let digests: Vec<_> = row.retained.iter().map(|retained| retained.version.digest).collect();
        assert_eq!(digests, [version(4).digest, version(3).digest]);
        assert_eq!(row.current.unwrap().digest, version(5).digest);
    }

    #[test]
    fn age_is_measured_by_the_monotonic_clock() {
        let (start, age) = (Instant::now(), Duration::from_secs(60));
        assert!(!is_too_old(start, start + age - Duration::from_millis(1), age));
        assert!(is_too_old(start, start + age, age));
    }

    proptest! {
        #[test]
        fn the_oldest_versions_expire_until_the_bytes_are_below_the_limit(
            versions in proptest::collection::vec((0u64..20, proptest::collection::hash_set(0u8..12, 1..5)), 0..12),
            current in proptest::collection::hash_set(0u8..12, 0..4),
            limit in 0u64..1200,
        ) {
            let objects = |numbers: &HashSet<u8>| -> Vec<(ObjectDigest, u64)> {
                numbers.iter().map(|number| (ObjectDigest::of(&[*number]), 100)).collect()
            };
            let versions: Vec<MarkedVersion> = versions.iter().enumerate().map(|(number, (superseded_at, numbers))| MarkedVersion {
                service: format!("s{number}").parse().unwrap(),
                digest: TarballDigest::of(&[number as u8]),
                superseded_at: Some(*superseded_at),
                recipe: None,
                objects: objects(numbers),
            }).collect();
            let mut usage = Usage::default();
            usage.add(&objects(&current));
            versions.iter().for_each(|version| usage.add(&version.objects));
            let gone = over_limit(versions.clone(), &mut usage, limit, u64::MAX);
            let stay: Vec<_> = versions.iter().filter(|version| !gone.contains(version)).collect();
            let used: HashSet<_> =
                stay.iter().flat_map(|version| &version.objects).chain(&objects(&current)).copied().collect();
            prop_assert_eq!(usage.bytes(), 100 * used.len() as u64);
            prop_assert!(usage.bytes() <= limit || stay.is_empty());
            let last_gone = gone.iter().map(|version| version.superseded_at).max();
            prop_assert!(stay.iter().all(|version| last_gone.is_none_or(|last| version.superseded_at >= last)));
            if let Some((last, rest)) = gone.split_last() {
                let without_last: HashSet<_> = used.iter().chain(&last.objects).collect();
                prop_assert!(100 * without_last.len() as u64 > limit, "{} went for nothing", rest.len() + 1);
            }
        }
    }
}
