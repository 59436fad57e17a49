//! Where a tarball is cut into fragments: by the names and sizes of the entries beside a cut.
//!
//! Nothing from before the last cut counts, so that a file which changes moves no cut but those next to it. All other
//! fragments keep their bytes, and are taken over from an earlier blob. And because nothing but the entries counts, equal
//! contents are cut alike, whatever was built before.

/// A fragment is not ended before it has so many bytes of tar.
const MIN_BYTES: u64 = 2 << 20;

/// From then on an entry ends it with the chance of its size in this: small fragments are 4 MiB on average.
const MEAN_REST_BYTES: u64 = 2 << 20;

/// A fragment has at most so many bytes of tar, unless it is a single file.
pub(super) const MAX_BYTES: u64 = 8 << 20;

/// Tells where fragments begin, entry by entry.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// Of the fragment so far.
    bytes: u64,
    /// The last entry ends its fragment.
    ended: bool,
}

impl Cutter {
    /// Whether a fragment begins with this entry, of about so many bytes of tar.
    pub(super) fn begins(&mut self, path: &[u8], bytes: u64) -> bool {
        let begins = self.bytes > 0 && (self.ended || self.bytes + bytes > MAX_BYTES);
        if begins {
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.ended = self.bytes >= MIN_BYTES && may_end(path, bytes);
        begins
    }
}

/// Whether an entry ends a fragment that is long enough: always the same for a path and a size, and as good as random.
fn may_end(path: &[u8], bytes: u64) -> bool {
    let hash = blake3::hash(path);
    let at = hash.as_bytes().iter().take(8).fold(0, |at, byte| (at << 8) | u64::from(*byte));
    at % MEAN_REST_BYTES < bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The entries that begin fragments, as (path, size).
    fn beginnings(entries: &[(String, u64)]) -> Vec<&str> {
        let mut cutter = Cutter::default();
        let begins = entries.iter().filter(|(path, bytes)| cutter.begins(path.as_bytes(), *bytes));
        begins.map(|(path, _)| path.as_str()).collect()
    }

    fn many(bytes: impl Fn(u64) -> u64) -> Vec<(String, u64)> {
        (0..20_000).map(|number| (format!("folder/{number:05}"), bytes(number))).collect()
    }

    #[test]
    fn fragments_are_about_four_mebibytes_whatever_the_files() {
        let sizes: [fn(u64) -> u64; 3] = [|_| 1024, |number| 512 + number * 7919 % 100_000, |_| 300_000];
        for bytes in sizes {
            let entries = many(bytes);
            let total: u64 = entries.iter().map(|(_, bytes)| bytes).sum();
            let mean = total / (beginnings(&entries).len() as u64 + 1);
            assert!((3 << 20..5 << 20).contains(&mean), "{mean}");
        }
    }

    #[test]
    fn a_large_file_stands_alone_and_no_fragment_is_larger_than_allowed() {
        let mut entries = many(|number| 512 + number * 7919 % 100_000);
        entries.insert(5000, ("large".to_owned(), 100 << 20));
        assert!(beginnings(&entries).contains(&"large"));
        assert!(beginnings(&entries).contains(&entries[5001].0.as_str()));
        let mut cutter = Cutter::default();
        for (path, bytes) in &entries {
            cutter.begins(path.as_bytes(), *bytes);
            assert!(cutter.bytes <= MAX_BYTES || cutter.bytes == *bytes);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_change_moves_few_cuts(at in 0usize..20_000, bytes in 512u64..200_000, kind in 0..3) {
            let before = many(|number| 512 + number * 7919 % 50_000);
            let mut after = before.clone();
            match kind {
                0 => after[at].1 = bytes,
                1 => after.insert(at, ("new".to_owned(), bytes)),
                _ => drop(after.remove(at)),
            }
            let (before, after) = (beginnings(&before), beginnings(&after));
            let moved = after.iter().filter(|path| !before.contains(path)).count();
            // After a cut that moved, the next one that both have in common brings them together.
            prop_assert!(moved <= 12, "{moved} of {}", after.len());
        }
    }
}
