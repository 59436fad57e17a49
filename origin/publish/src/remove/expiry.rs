//! Pure: decides which superseded versions expire, by age and by bytes.
//!
//! The age of a version is measured by the monotonic clock of this process, from when it was superseded or loaded. So a
//! wrong wall clock expires nothing, and a restart restarts all ages while the limit on their number still holds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weir_protocol::digest::ObjectDigest;

use crate::stored::mark::MarkedVersion;

pub(crate) fn is_too_old(superseded: Instant, now: Instant, age: Duration) -> bool {
    now.saturating_duration_since(superseded) >= age
}

/// Objects with their sizes and reference counts.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    objects: HashMap<ObjectDigest, (u64, u32)>,
    bytes: u64,
}

impl Usage {
    /// Adds the objects of a version.
    pub(crate) fn add(&mut self, objects: &[(ObjectDigest, u64)]) {
        for (digest, size) in objects {
            let (_, references) = self.objects.entry(*digest).or_insert_with(|| {
                self.bytes += size;
                (*size, 0)
            });
            *references += 1;
        }
    }

    /// Removes the objects of a version that was added.
    pub(crate) fn remove(&mut self, objects: &[(ObjectDigest, u64)]) {
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
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn contains(&self, digest: &ObjectDigest) -> bool {
        self.objects.contains_key(digest)
    }
}

/// The superseded versions to drop so that at most `limit` bytes are used, those first that were superseded first, and none
/// that was superseded after `until` (Unix milliseconds). Their objects are removed from `usage`.
pub(crate) fn over_limit(
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
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use weir_protocol::digest::TarballDigest;

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
                is_staged: false,
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
